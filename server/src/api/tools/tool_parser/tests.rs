//! Each text is parsed in one piece, and split into chunks.

use proptest::{prelude::*, sample};

use super::{
    super::call_format::{GRANITE, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED},
    *,
};

/// Parses the chunks of a text that the model ended; returns its content, and its calls with their arguments.
fn read(parser: ToolParser, pieces: &[&str]) -> (String, Vec<(String, String)>) {
    read_to(TextEnd::Whole, parser, pieces)
}

fn read_to(end: TextEnd, mut parser: ToolParser, pieces: &[&str]) -> (String, Vec<(String, String)>) {
    let mut all: Vec<Piece> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish(end));
    let (mut content, mut calls) = (String::new(), Vec::new());
    for piece in all {
        match piece {
            Piece::Reasoning(text) | Piece::Content(text) => content.push_str(&text),
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
pub(super) fn check(parser: &ToolParser, text: &str, content: &str, calls: &[(&str, &str)]) {
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
    let function = |name: &str| Function { name: name.into(), parameters: serde_json::json!({ "type": "object" }) };
    ToolParser::searching(format, [function("f"), function("get_weather")].into(), n_calls)
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
    check(&parser, &format!("{one}\n<think>"), "<think>", &[("f", ARGUMENTS)]);
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
        "<tool_call>{\"name\": \"f\", \"city\": 1}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": 7}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1\"}</tool_call>",
        "a <tool_call>not json</tool_call> b",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"argu",
        "<tool_call",
    ] {
        check(&parser, text, text, &[]);
    }
}

/// How models write calls of `f` without arguments.
const WITHOUT_ARGUMENTS: [&str; 8] = [
    r#"{"name": "f"}"#,
    r#"{"name": "f", "arguments": null}"#,
    r#"{"name": "f", "arguments": ""}"#,
    r#"{"name": "f", "arguments": " "}"#,
    r#"{"name": "f", "arguments": "null"}"#,
    r#"{"name": "f", "arguments": {}}"#,
    r#"{"name": "f", "parameters": null}"#,
    r#"{"type": "function", "name": "f", "id": "a1B2c3D4e"}"#,
];

#[test]
fn tool_call_without_arguments_is_parsed_in_every_format() {
    let nothing = [("f", "{}")];
    for call in WITHOUT_ARGUMENTS {
        check(&searching(&HERMES, Calls::Several), &format!("<tool_call>\n{call}\n</tool_call>"), "", &nothing);
        check(&searching(&HERMES, Calls::Several), &format!("a\n<tool_call>{call}"), "a", &nothing);
        for text in [call.to_owned(), format!("<|python_tag|>{call}"), format!("{call}; {call}")] {
            let n_calls = text.matches("\"f\"").count();
            check(&searching(&LLAMA, Calls::Several), &text, "", &vec![("f", "{}"); n_calls]);
        }
        for (format, opening) in LISTS {
            let two = format!("{opening}[{call}, {CALL}]");
            check(&searching(format, Calls::Several), &two, "", &[("f", "{}"), ("f", ARGUMENTS)]);
        }
    }
    let named = searching(&MISTRAL_NAMED, Calls::Several);
    for call in
        ["[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]null", "[TOOL_CALLS]f[CALL_ID]12[ARGS] \"\"", "[TOOL_CALLS]f"]
    {
        check(&named, &format!("a {call}"), "a", &nothing);
        check(
            &named,
            &format!("{call}{call}[TOOL_CALLS]f[ARGS]{ARGUMENTS}"),
            "",
            &[nothing[0], nothing[0], ("f", ARGUMENTS)],
        );
    }
    // An answer that was cut by a limit may lack the arguments.
    for text in ["[TOOL_CALLS]f", "[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]\n"] {
        assert_eq!(read_to(TextEnd::Cut, named.clone(), &[text]), (text.to_owned(), Vec::new()));
    }
    let json = r#"{"name": "f", "age": 3}"#;
    check(&searching(&LLAMA, Calls::Several), json, json, &[]);
}

#[test]
fn text_around_tool_calls_keeps_its_white_space() {
    for format in FORMATS {
        let parser = searching(format, Calls::Several);
        let call = format.written(&[("f".to_owned(), ARGUMENTS.to_owned())]);
        let one = [("f", ARGUMENTS)];
        // A call without a mark begins a line.
        check(&parser, &format!("  Before.\n\n{call} After. \n"), "  Before.\n\n After.", &one);
        check(&parser, &format!("Before.\n{call}\n{call}\nAfter."), "Before.\n\nAfter.", &[one[0], one[0]]);
        check(&parser, &format!(" \n{call}\nAfter."), "After.", &one);
        if format.bare == Bare::None {
            check(&parser, &format!("Before.{call}After."), "Before.\nAfter.", &one);
        }
    }
}

const FORMATS: [&CallFormat; 5] = [&HERMES, &LLAMA, &MISTRAL, &MISTRAL_NAMED, &GRANITE];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// The content and the calls, in order, contain everything that a model writes, however it arrives.
    #[test]
    fn streamed_tool_calls_equal_unstreamed_ones_and_no_text_is_lost(
        format in sample::select(FORMATS.to_vec()),
        is_cut: bool,
        fragments in prop::collection::vec(sample::select(FRAGMENTS.to_vec()), 0..14),
        cuts in prop::collection::vec(any::<sample::Index>(), 0..6),
    ) {
        let text = fragments.concat();
        let end = if is_cut { TextEnd::Cut } else { TextEnd::Whole };
        let parser = searching(format, Calls::Several);
        let whole = read_to(end, parser.clone(), &[&text]);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(cut.index(text.len() + 1))).collect();
        ends.extend([0, text.len()]);
        ends.sort_unstable();
        let pieces: Vec<&str> = ends.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
        prop_assert_eq!(read_to(end, parser.clone(), &pieces), whole.clone());
        check_nothing_is_lost(parser, end, &text)?;
        if whole.1.is_empty() {
            prop_assert_eq!(whole.0, text);
        }
    }
}

/// Pieces of answers; most are part of some format.
const FRAGMENTS: [&str; 30] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|tool_call|>",
    "<|python_tag|>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "{\"name\": \"f\"}",
    "{\"name\": \"f\", \"arguments\": {}}",
    "{\"name\": \"f\", \"parameters\": {\"a\": [1, \"é\"]}}",
    "{\"name\": \"f\", \"argu",
    "[",
    "]",
    "{",
    "}",
    "f",
    "get_weather",
    "null",
    "\"\"",
    ", ",
    "; ",
    "\n",
    " ",
    "Text.",
    "<",
    "é",
];

/// Finds the content and the names of the calls of an answer in its text, one after the other. The content at the start
/// and at the end must be the text's own.
fn check_nothing_is_lost(mut parser: ToolParser, end: TextEnd, text: &str) -> Result<(), TestCaseError> {
    let mut pieces = parser.push(text);
    pieces.extend(parser.finish(end));
    let mut parts: Vec<(bool, String)> = Vec::new();
    for piece in pieces {
        match (piece, parts.last_mut()) {
            (Piece::Content(text), Some((true, last))) => last.push_str(&text),
            (Piece::Content(text), _) => parts.push((true, text)),
            (Piece::Call(name), _) => parts.push((false, name)),
            (Piece::Reasoning(_) | Piece::Arguments(_), _) => {}
        }
    }
    if let Some((true, first)) = parts.first() {
        prop_assert!(text.trim_start().starts_with(first.trim()), "{first} at the start of {text}");
    }
    if let Some((true, last)) = parts.last() {
        prop_assert!(text.trim_end().ends_with(last.trim()), "{last} at the end of {text}");
    }
    let mut rest = text;
    for (_, part) in parts {
        let part = part.trim();
        let at = rest.find(part);
        prop_assert!(at.is_some(), "{part} in {rest}");
        rest = &rest[at.unwrap_or_default() + part.len()..];
    }
    Ok(())
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
            format!("{opening}[{CALL}, {{\"name\": \"f\", \"x\": 1}}]"),
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
        "[TOOL_CALLS]f[ARGS]nul",
        "[TOOL_CALLS]f[ARGS]x",
        "[TOOL_CALLS]f now",
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
    check(&searching(&HERMES, Calls::Several), &text, "<tool_call>{bad:\n\n-", &[("f", ARGUMENTS)]);
}

#[test]
fn grammar_constrained_tool_calls_keep_their_exact_arguments() {
    for format in FORMATS {
        let arguments = r#"{"x": "a\", \"arguments\": {", "y": {"z": [1, {}]}}"#;
        let call = ("get_weather".to_owned(), arguments.to_owned());
        let parser = ToolParser::following(format);
        let one = format.written(std::slice::from_ref(&call));
        check(&parser, &one, "", &[("get_weather", arguments)]);
        let two = format.written(&[call.clone(), call]);
        check(&parser, &two, "", &[("get_weather", arguments); 2]);
        // Cut by `max_tokens`: in the arguments, in the name, and in the second call's name.
        let start = one.find("\"y\"").unwrap_or_default();
        check(&parser, &one[..start], "", &[("get_weather", r#"{"x": "a\", \"arguments\": {", "#)]);
        let start = one.find("_weather").unwrap_or_default();
        check(&parser, &one[..start], &one[..start], &[]);
        let start = two.rfind("_weather").unwrap_or_default();
        let [_, last] = format.around_all;
        let n_first = one.len() - last.len() + format.separator.len();
        check(&parser, &two[..start], &two[n_first..start], &[("get_weather", arguments)]);
        for end in 0..two.len() {
            let (content, calls) = read(parser.clone(), &[&two[..end]]);
            assert!(!content.is_empty() || !calls.is_empty() || end == 0, "{}", &two[..end]);
        }
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
    for format in FORMATS {
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
