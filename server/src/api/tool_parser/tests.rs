//! Each text is parsed at once and split into chunks.

use super::{
    super::call_format::{GRANITE, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED},
    *,
};

/// Parses the chunks of a text; returns its content, and its calls with their arguments.
fn read(mut parser: ToolParser, pieces: &[&str]) -> (String, Vec<(String, String)>) {
    let mut all: Vec<Piece> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let (mut content, mut calls) = (String::new(), Vec::new());
    for piece in all {
        match piece {
            Piece::Content(text) => content.push_str(&text),
            Piece::Call(name) => calls.push((name, String::new())),
            Piece::Arguments(text) => {
                if let Some((_, arguments)) = calls.last_mut() {
                    arguments.push_str(&text);
                }
            }
        }
    }
    (content, calls)
}

/// Checks the result of [`read`] for the whole text, for single characters, and for the text cut into two or three
/// pieces.
fn check(parser: &ToolParser, text: &str, content: &str, calls: &[(&str, &str)]) {
    let calls: Vec<_> = calls.iter().map(|(name, arguments)| (name.to_string(), arguments.to_string())).collect();
    let expected = (content.to_owned(), calls);
    let each: Vec<String> = text.chars().map(String::from).collect();
    let each: Vec<&str> = each.iter().map(String::as_str).collect();
    assert_eq!(read(parser.clone(), &[text]), expected, "{text}");
    assert_eq!(read(parser.clone(), &each), expected, "{text}");
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for &first in &cuts {
        assert_eq!(read(parser.clone(), &[&text[..first], &text[first..]]), expected, "{text} at {first}");
        for &second in cuts.iter().filter(|second| **second > first).step_by(3) {
            let pieces = [&text[..first], &text[first..second], &text[second..]];
            assert_eq!(read(parser.clone(), &pieces), expected, "{text} at {first} and {second}");
        }
    }
}

fn searching(format: &'static CallFormat, n_calls: Calls) -> ToolParser {
    ToolParser::searching(format, vec!["f".into(), "get_weather".into()], n_calls)
}

const CALL: &str = r#"{"name": "f", "arguments": {"x": "}{\"</b>é日", "y": [1, 2.0, null]}}"#;
const ARGUMENTS: &str = r#"{"x": "}{\"</b>é日", "y": [1, 2.0, null]}"#;

#[test]
fn hermes_tool_calls_are_parsed_at_any_chunk_split() {
    let parser = searching(&HERMES, Calls::Several);
    check(&parser, "no call <tool_ at all \n", "no call <tool_ at all \n", &[]);
    let one = format!("<tool_call>\n{CALL}\n</tool_call>");
    check(&parser, &one, "", &[("f", ARGUMENTS)]);
    check(&parser, &format!(" I look.\n\n{one}\n"), " I look.", &[("f", ARGUMENTS)]);
    check(&parser, &format!("{one}\n{one} done \n"), "done", &[("f", ARGUMENTS), ("f", ARGUMENTS)]);
    // Without the closing mark, which models may omit at the end, and with the arguments as a JSON string.
    check(&parser, &format!("<tool_call>{CALL}"), "", &[("f", ARGUMENTS)]);
    let text = r#"<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>"#;
    check(&parser, text, "", &[("f", r#"{"a": 1}"#)]);
}

#[test]
fn tool_call_arguments_keep_the_exact_text_of_the_model() {
    let parser = searching(&HERMES, Calls::Several);
    for arguments in
        [r#"{"id": 123456789012345678901234, "x": 1.10, "y": 1E2}"#, "{ \"a\" :\n[ ] ,\"a\":\"\\u00e9\\/\" }", "{}"]
    {
        for call in [
            format!("{{\"name\": \"f\", \"arguments\": {arguments}}}"),
            format!(" {{\"id\":7 ,\"arguments\":{arguments} ,\n\"name\":\"f\", \"x\": [null, true]}} "),
            format!(r#"{{"arguments": {{"first": 1}}, "parameters": {{}}, "arguments": {arguments}, "name": "f"}}"#),
            format!("{{\"name\": \"f\", \"arguments\": {}}}", Value::from(arguments)),
        ] {
            check(&parser, &format!("<tool_call>{call}</tool_call>"), "", &[("f", arguments)]);
        }
    }
}

#[test]
fn malformed_hermes_tool_calls_stay_content() {
    let parser = searching(&HERMES, Calls::Several);
    for text in [
        "<tool_call>{\"name\": \"f\"}</tool_call>",
        "a <tool_call>not json</tool_call> b",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"argu",
        "<tool_call",
    ] {
        check(&parser, text, text, &[]);
    }
}

#[test]
fn second_tool_call_is_dropped_without_parallel_calls() {
    let parser = searching(&HERMES, Calls::One);
    let one = format!("<tool_call>{CALL}</tool_call>");
    check(&parser, &format!("{one}{one}"), "", &[("f", ARGUMENTS)]);
}

#[test]
fn llama_tool_calls_are_parsed_at_any_chunk_split() {
    let parser = searching(&LLAMA, Calls::Several);
    let call = CALL.replace("arguments", "parameters");
    check(&parser, &call, "", &[("f", ARGUMENTS)]);
    check(&parser, &format!("<|python_tag|>{call}"), "", &[("f", ARGUMENTS)]);
    check(&parser, &format!("Sure.\n{call}"), "Sure.", &[("f", ARGUMENTS)]);
    check(&parser, &format!("Sure <|python_tag|> {call}"), "Sure", &[("f", ARGUMENTS)]);
    check(&parser, &format!("{call}; {call}"), "", &[("f", ARGUMENTS), ("f", ARGUMENTS)]);
    check(&parser, &format!("{call}\nThat is it."), "That is it.", &[("f", ARGUMENTS)]);
    check(&parser, &format!("{call} And <|python_tag|>{call}"), "And", &[("f", ARGUMENTS), ("f", ARGUMENTS)]);
    let typed = r#"{"type": "function", "name": "f", "parameters": {}}"#;
    check(&parser, typed, "", &[("f", "{}")]);
}

#[test]
fn json_that_is_no_llama_tool_call_stays_content() {
    let parser = searching(&LLAMA, Calls::Several);
    for text in [
        r#"{"name": "Alice", "parameters": {"age": 3}}"#,
        r#"{"answer": {"name": "f", "parameters": {}}}"#,
        r#"{"name": "f", "parameters": {"#,
        "use { and } and <|python",
        "<|python_tag|>print(1)",
        "{\n  \"a\": 1\n}",
    ] {
        check(&parser, text, text, &[]);
    }
}

/// Formats that write all calls as one list, with the mark before the list.
const LISTS: [(&CallFormat, &str); 4] =
    [(&MISTRAL, "[TOOL_CALLS]"), (&MISTRAL, "[TOOL_CALLS] "), (&GRANITE, "<|tool_call|>"), (&GRANITE, "<tool_call>")];

#[test]
fn mistral_and_granite_call_lists_are_parsed_at_any_chunk_split() {
    let with_id = r#"{"name": "get_weather", "arguments": {"city": "Oslo", "t": -1.5e-3}, "id": "a1B2c3D4e"}"#;
    let weather = r#"{"city": "Oslo", "t": -1.5e-3}"#;
    for (format, opening) in LISTS {
        let parser = searching(format, Calls::Several);
        check(&parser, &format!("{opening}[{CALL}]"), "", &[("f", ARGUMENTS)]);
        check(&parser, &format!("{opening}\n[ {CALL} ]\n\n"), "", &[("f", ARGUMENTS)]);
        check(&parser, &format!("I look.\n{opening}[{with_id}]"), "I look.", &[("get_weather", weather)]);
        let two = format!("{opening}[{with_id}, {CALL}]");
        check(&parser, &two, "", &[("get_weather", weather), ("f", ARGUMENTS)]);
        check(&parser, &format!("{two} done"), "done", &[("get_weather", weather), ("f", ARGUMENTS)]);
        // One object instead of a list.
        check(&parser, &format!("{opening}{CALL}"), "", &[("f", ARGUMENTS)]);
        check(&searching(format, Calls::One), &two, "", &[("get_weather", weather)]);
    }
}

#[test]
fn mistral_named_calls_are_parsed_at_any_chunk_split() {
    let parser = searching(&MISTRAL_NAMED, Calls::Several);
    let f = format!("[TOOL_CALLS]f[ARGS]{ARGUMENTS}");
    let weather = r#"[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"n": 10.5}"#;
    check(&parser, &f, "", &[("f", ARGUMENTS)]);
    check(&parser, weather, "", &[("get_weather", r#"{"n": 10.5}"#)]);
    check(&parser, &format!("Yes. {f} {weather}\n"), "Yes.", &[("f", ARGUMENTS), ("get_weather", r#"{"n": 10.5}"#)]);
    check(&parser, &format!("{f}{f} done"), "done", &[("f", ARGUMENTS); 2]);
    check(&searching(&MISTRAL_NAMED, Calls::One), &format!("{f}{weather}"), "", &[("f", ARGUMENTS)]);
}

#[test]
fn malformed_mistral_and_granite_calls_stay_content() {
    for (format, opening) in LISTS {
        let parser = searching(format, Calls::Several);
        for text in [
            "No call at all, not even [ or < or functool".to_owned(),
            opening.to_owned(),
            format!("a {opening} b"),
            format!("{opening}[]"),
            format!("{opening}[1]"),
            format!("{opening}[{{\"name\": \"unknown\", \"arguments\": {{}}}}]"),
            format!("{opening}[{CALL}, {{\"name\": \"f\"}}]"),
            format!("{opening}[{CALL}"),
            format!("{opening}[{{'name': 'f', 'arguments': {{}}}}]"),
            format!("{opening}[{{\"name\": \"f\", \"arguments\": {{\"x\": 1.e}}}}]"),
        ] {
            check(&parser, &text, &text, &[]);
        }
    }
    let parser = searching(&MISTRAL_NAMED, Calls::Several);
    for text in [
        "[TOOL_CALLS",
        "a [TOOL_CALLS] b",
        "[TOOL_CALLS]get_wea",
        "[TOOL_CALLS]get_weather[CALL_ID]12[AR",
        "[TOOL_CALLS]get_weather[CALL_ID]12[CALL_ID][ARGS]{}",
        "[TOOL_CALLS]unknown[ARGS]{}",
        "[TOOL_CALLS]f[ARGS][1]",
        "[TOOL_CALLS]f[ARGS]{\"x\": 1",
        "[TOOL_CALLS]f[ARGS]{'x': 1}",
        "[TOOL_CALLS]f[ARGS]",
    ] {
        check(&parser, text, text, &[]);
    }
}

#[test]
fn tool_call_after_a_malformed_one_is_parsed() {
    let hermes = format!("<tool_call>{{\"name\": \"f\", }}</tool_call>\n<tool_call>{CALL}</tool_call>");
    let broken = "<tool_call>{\"name\": \"f\", }</tool_call>";
    check(&searching(&HERMES, Calls::Several), &hermes, broken, &[("f", ARGUMENTS)]);
    let named = format!("[TOOL_CALLS]g[ARGS]{{}}[TOOL_CALLS]f[ARGS]{ARGUMENTS}");
    check(&searching(&MISTRAL_NAMED, Calls::Several), &named, "[TOOL_CALLS]g[ARGS]{}", &[("f", ARGUMENTS)]);
    // Also if the text ends with the possible start of a number.
    let text = format!("<tool_call>{{bad:\n<tool_call>{CALL}</tool_call>\n-");
    check(&searching(&HERMES, Calls::Several), &text, "<tool_call>{bad:-", &[("f", ARGUMENTS)]);
}

#[test]
fn grammar_constrained_tool_calls_keep_their_exact_arguments() {
    for format in [&HERMES, &LLAMA, &MISTRAL, &MISTRAL_NAMED, &GRANITE] {
        let arguments = r#"{"x": "a\", \"arguments\": {", "y": {"z": [1, {}]}}"#;
        let call = ("get_weather".to_owned(), arguments.to_owned());
        let parser = ToolParser::following(format);
        let one = format.written(std::slice::from_ref(&call));
        check(&parser, &one, "", &[("get_weather", arguments)]);
        check(&parser, &format.written(&[call.clone(), call]), "", &[("get_weather", arguments); 2]);
        // Cut by `max_tokens`.
        let start = one.find("\"y\"").unwrap_or_default();
        check(&parser, &one[..start], "", &[("get_weather", r#"{"x": "a\", \"arguments\": {", "#)]);
        // The same is found where no grammar enforces it.
        check(&searching(format, Calls::Several), &one, "", &[("get_weather", arguments)]);
    }
}

/// A parser that starts again at each character would take minutes for these texts.
#[test]
fn long_answers_are_parsed_character_by_character() {
    const N: usize = 1 << 18;
    let characters = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
    let arguments = format!("{{\"code\": \"{}\", \"n\": [{}0]}}", "\\n{ ".repeat(N / 4), "1, ".repeat(N / 4));
    let (blanks, braces) = ("\n".repeat(N), "{ ".repeat(N / 2));
    for format in [&HERMES, &LLAMA, &MISTRAL, &MISTRAL_NAMED, &GRANITE] {
        let call = format.written(&[("f".to_owned(), arguments.clone())]);
        let expected = vec![("f".to_owned(), arguments.clone())];
        for (text, content) in [
            (call.clone(), String::new()),
            (format!("{call}{blanks}x"), "x".to_owned()),
            (format!("x{blanks}{call}"), "x".to_owned()),
            // Without the mark after it.
            (format!("{}{blanks}x", call.trim_end_matches("</tool_call>")), "x".to_owned()),
        ] {
            let characters = characters(&text);
            let pieces: Vec<&str> = characters.iter().map(String::as_str).collect();
            let found = read(searching(format, Calls::Several), &pieces);
            assert!(found == (content, expected.clone()), "{format:?}");
        }
        let content = format!("x{blanks}y {braces}");
        let characters = characters(&content);
        let pieces: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert!(read(searching(format, Calls::Several), &pieces) == (content.clone(), Vec::new()), "{format:?}");
        assert!(read(searching(format, Calls::Several), &[&content]) == (content, Vec::new()), "{format:?}");
    }
}

/// As soon as the held text cannot become a call, it is released.
#[test]
fn malformed_tool_call_is_released_as_content_at_its_first_error() {
    for (format, begun, end) in [
        (&HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1, \"a\\n", "\u{1}"),
        (&HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1.", "e"),
        (&HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"\\u12x", "4"),
        (&LLAMA, "{\"na", "n"),
        (&LLAMA, "{\"name\": \"f\", \"parameters\": {", "'"),
        (&MISTRAL_NAMED, "[TOOL_CALLS]f[ARGS]{\"x\": tru", "x"),
    ] {
        let mut parser = searching(format, Calls::Several);
        for character in begun.chars() {
            assert_eq!(parser.push(&character.to_string()), [], "{begun}");
        }
        assert_ne!(parser.push(end), [], "{begun}");
    }
}
