//! Each text is read in one piece, and split into many.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::{
    super::{
        call_arguments::Function,
        call_format::{
            COHERE, CallFormat, DEEPSEEK, GEMMA, GLM, GLM_DENSE, GPT_OSS, GRANITE, HERMES, LFM2, LLAMA, MINICPM,
            MINICPM_XML, MISTRAL, MISTRAL_NAMED, OLMO, QWEN_CODER, SEED_OSS,
        },
        tool_parser::Calls,
    },
    *,
};

const MARKS: [[&str; 2]; 2] = [["<think>", "</think>"], ["[THINK]", "[/THINK]"]];

const FORMATS: [&CallFormat; 5] = [&HERMES, &LLAMA, &MISTRAL, &MISTRAL_NAMED, &GRANITE];

/// Reasoning, content, and calls with their arguments.
type Read = (String, String, Vec<(String, String)>);

/// Reads the pieces of a text that the model ended.
fn read(mut reader: AnswerReader, texts: &[&str]) -> Read {
    let mut pieces: Vec<Piece> = texts.iter().flat_map(|text| reader.push(text)).collect();
    pieces.extend(reader.finish(TextEnd::Whole));
    let mut read = Read::default();
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => read.0.push_str(&text),
            Piece::Content(text) => read.1.push_str(&text),
            Piece::Call(name) => read.2.push((name, String::new())),
            Piece::Arguments(text) => read.2.last_mut().into_iter().for_each(|call| call.1.push_str(&text)),
        }
    }
    read
}

/// Checks the result of [`read`] for the whole text, for single characters, and for the text cut into two pieces.
fn check(reader: &AnswerReader, text: &str, reasoning: &str, content: &str, n_calls: usize) {
    let calls = vec![("f".to_owned(), "{}".to_owned()); n_calls];
    let expected = (reasoning.to_owned(), content.to_owned(), calls);
    assert_eq!(read(reader.clone(), &[text]), expected, "{text}");
    let each: Vec<String> = text.chars().map(String::from).collect();
    let each: Vec<&str> = each.iter().map(String::as_str).collect();
    assert_eq!(read(reader.clone(), &each), expected, "{text}");
    for (at, _) in text.char_indices() {
        assert_eq!(read(reader.clone(), &[&text[..at], &text[at..]]), expected, "{text} at {at}");
    }
}

/// The form of thoughts of a template.
fn form(source: Option<&str>) -> &'static ThoughtForm {
    ThoughtForm::of_template(source.unwrap_or("<think>")).unwrap()
}

/// The marks that can close a thought opened by `open`.
fn closes(open: &str) -> Option<&'static [&'static str]> {
    form(None).opened_by(open)
}

fn reader(calls: Option<&'static CallFormat>, format: ReasoningFormat) -> AnswerReader {
    AnswerReader::new(form(None), calls.map(parser), format)
}

/// A parser of calls of `f`.
fn parser(format: &'static CallFormat) -> ToolParser {
    let functions = [Function { name: "f".into(), parameters: serde_json::json!({ "type": "object" }) }];
    ToolParser::searching(format, functions.into(), Calls::Several)
}

#[test]
fn thoughts_are_apart_from_the_content_at_any_split() {
    let without_tools = reader(None, ReasoningFormat::Apart);
    let with_tools = reader(Some(&HERMES), ReasoningFormat::Apart);
    for reader in [without_tools, with_tools] {
        for [open, close] in MARKS {
            let thought = format!("{open}\na  b\n\n{close}\n\n");
            check(&reader, &format!("{thought}c é\n"), "a  b", "c é\n", 0);
            check(&reader, &format!(" \n{thought}c"), "a  b", "c", 0);
            check(&reader, &format!("{open}\n\n{close}\n\nc"), "", "c", 0);
            check(&reader, &thought, "a  b", "", 0);
            // Several thoughts, and one after content: they are not one word.
            check(&reader, &format!("{thought}{thought}c"), "a  b\na  b", "c", 0);
            check(&reader, &format!("c\n{thought}d"), "a  b", "c\nd", 0);
            // Without an end, all is kept.
            check(&reader, &format!("{open}a \n"), "a \n", "", 0);
            check(&reader, &format!("{open}a {}", &close[..3]), &format!("a {}", &close[..3]), "", 0);
            check(&reader, open, "", "", 0);
            // The prompt opens it.
            let within = reader.clone().within_thought(closes(open), false);
            check(&within, &format!("\na\n{close}\n\nc"), "a", "c", 0);
            let continued = reader.clone().within_thought(closes(open), true);
            check(&continued, &format!(" a\n{close}\n\nc"), " a", "c", 0);
        }
        check(&reader, " \n c", "", " \n c", 0);
        check(&reader, " \n", "", " \n", 0);
        check(&reader, "a </think> b", "", "a </think> b", 0);
    }
}

/// Texts of model families, from their published templates: a sign of the template, the end of the prompt, the text,
/// its reasoning and its content.
const FAMILIES: [(&str, &str, &str, &str, &str); 35] = [
    // Qwen 3 and SmolLM3.
    ("</think>", "", "<think>\nOkay: 2 < 3, \"ü\".\n</think>\n\nYes 🎉.", "Okay: 2 < 3, \"ü\".", "Yes 🎉."),
    ("</think>", "", "<think>\n\n</think>\n\nYes.", "", "Yes."),
    ("</think>", "", "Yes.", "", "Yes."),
    ("</think>", "<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
    // Qwen 3.5, DeepSeek's distillates and OLMo 3, whose prompts open the thought.
    ("</think>", "<think>\n", "Okay.\n</think>\n\nYes.", "Okay.", "Yes."),
    ("</think>", "<think>\n", "Okay.", "Okay.", ""),
    ("</think>", "<think>", "Okay.</think>Yes.", "Okay.", "Yes."),
    ("</think>", "<think>", "</think>Yes.", "", "Yes."),
    ("</think>", "<think>", "It is `</think>`.</think>Yes.", "It is `</think>`.", "Yes."),
    ("</think>", "<think>", "It ends `</think>", "It ends `", ""),
    ("</think>", "<think>", "It ends \"</think>Yes.", "It ends \"", "Yes."),
    ("</think>", "<think>", "print(\"</think>\")\n</think>\n\nYes.", "print(\"</think>\")", "Yes."),
    ("</think>", "", "<think>a</think>Use `<think>`:\n```\n<think>b\n```", "a", "Use `<think>`:\n```\n<think>b\n```"),
    ("</think>", "", "<think>a <think> b</think>c", "a <think> b", "c"),
    // Phi 4 reasoning, GLM, MiniCPM.
    ("<think>", "", "<think>Okay.</think>Yes.", "Okay.", "Yes."),
    ("<think>", "", "\n<think>Okay.</think>\nYes.", "Okay.", "Yes."),
    // Granite 3.2 and 3.3.
    (
        "Here is my thought process:",
        "",
        "Here is my thought process:\n\nOkay.\n\nHere is my response:\n\nYes.",
        "Okay.",
        "Yes.",
    ),
    ("Here is my thought process:", "", "Here's my thought process: Okay. Here's my response: Yes.", "Okay.", "Yes."),
    ("Here is my thought process:", "", "Here is my answer.", "", "Here is my answer."),
    ("<response>", "", "<think>Okay.</think><response>Yes.</response>", "Okay.", "Yes."),
    ("<response>", "", "<think>Okay.</think>\n\n<response>Yes.", "Okay.", "Yes."),
    // Magistral.
    ("[THINK]", "", "[THINK]Okay [1].[/THINK]Yes [2].", "Okay [1].", "Yes [2]."),
    ("[THINK]", "[THINK]", "Okay.[/THINK]Yes.", "Okay.", "Yes."),
    // Gemma 4.
    ("<|channel>", "", "<|channel>thought\nOkay.\n<channel|>Yes.", "Okay.", "Yes."),
    ("<|channel>", "", "<|channel>thought\n<channel|>Yes.", "", "Yes."),
    // gpt-oss.
    (
        "<|channel|>analysis",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Okay.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "Okay.",
        "Yes.",
    ),
    (
        "<|channel|>analysis",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Okay.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        "Okay.",
        "Yes.",
    ),
    ("<|channel|>analysis", "<|start|>assistant", "<|channel|>final<|message|>Yes.", "", "Yes."),
    // Words before the answer are content, and not one word with it.
    (
        "<|channel|>analysis",
        "<|start|>assistant",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>Okay.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "Okay.",
        "I look.\nYes.",
    ),
    (
        "<|channel>",
        "",
        "<|channel>thought\nA.\n<channel|>I look. <|channel>thought\nB.\n<channel|>Yes.",
        "A.\nB.",
        "I look. Yes.",
    ),
    ("<|channel|>analysis", "<|start|>assistant", "<|channel|>analysis<|message|>Okay.", "Okay.", ""),
    // Cohere.
    (
        "<|START_THINKING|>",
        "",
        "<|START_THINKING|>Okay.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
        "Okay.",
        "Yes.",
    ),
    // Others.
    ("<seed:think>", "", "<seed:think>Okay.</seed:think>Yes.", "Okay.", "Yes."),
    ("◁think▷", "", "◁think▷Okay.◁/think▷Yes.", "Okay.", "Yes."),
    ("<thought>", "<thought>\n", "Okay.\n</thought>\n\nYes.", "Okay.", "Yes."),
];

#[test]
fn texts_of_each_family_are_read_alike_at_any_cut() {
    for (sign, prompt, text, reasoning, content) in FAMILIES {
        let form = form(Some(sign));
        for calls in [None, Some(parser(&HERMES))] {
            let reader = AnswerReader::new(form, calls, ReasoningFormat::Apart);
            check(&reader.within_thought(form.opened_by(prompt), false), text, reasoning, content, 0);
        }
    }
}

#[test]
fn marks_in_text_strings_and_code_are_text() {
    for reader in [reader(None, ReasoningFormat::Apart), reader(Some(&HERMES), ReasoningFormat::Apart)] {
        for text in [
            "The tag <think> opens a thought, </think> closes it.",
            "`<think>`",
            "Like so:\n```xml\n<think>\na\n</think>\n```\nDone.",
            "{\"a\": \"<think>b</think>\"}",
        ] {
            check(&reader, text, "", text, 0);
        }
        check(
            &reader,
            "<think>It ends with `</think>`, or \"</think>\".</think>b",
            "It ends with `</think>`, or \"</think>\".",
            "b",
            0,
        );
        check(&reader, "<think>It is `x`</think>b", "It is `x`", "b", 0);
        check(&reader, "```\na\n```\n<think>b</think>c", "b", "```\na\n```\nc", 0);
    }
}

#[test]
fn no_call_is_taken_out_of_a_thought() {
    for format in FORMATS {
        let call = format.written(&[("f".to_owned(), "{}".to_owned())]);
        let (apart, within) =
            (reader(Some(format), ReasoningFormat::Apart), reader(Some(format), ReasoningFormat::InContent));
        for [open, close] in MARKS {
            let thought = format!("{open}\n{call}\n{close}");
            for thought in [thought.clone(), format!("{open}{call}"), format!("I look.\n{open}a\n{call} b")] {
                check(&within, &thought, "", &thought, 0);
                let content = if thought.starts_with('I') { "I look.\n" } else { "" };
                let reasoning = thought.trim_start_matches(content).trim_start_matches(open);
                check(&apart, &thought, reasoning.trim_end_matches(close).trim(), content, 0);
            }
            check(&within, &format!("{thought}{call}"), "", &thought, 1);
            check(&apart, &format!("{thought}{call}"), &call, "", 1);
            let text = format!("{thought}\n\n{call}\n{thought}");
            check(&within, &text, "", &format!("{thought}\n\n\n{thought}"), 1);
            check(&apart, &text, &format!("{call}\n{call}"), "", 1);
            // The prompt opens it.
            let rest = format!("a\n{call}\n{close}");
            let opened = within.clone().within_thought(closes(open), false);
            check(&opened, &rest, "", &rest, 0);
            check(&opened, &format!("{rest}\n{call}"), "", &rest, 1);
            check(&opened, &call, "", &call, 0);
            let opened = apart.clone().within_thought(closes(open), false);
            check(&opened, &format!("{rest}\n{call}"), &format!("a\n{call}"), "", 1);
        }
    }
}

#[test]
fn marks_in_the_arguments_of_a_call_stay_there() {
    let reader = reader(Some(&HERMES), ReasoningFormat::Apart);
    let arguments = "{\"x\": \"<think>\", \"y\":\n\"a\"\n}";
    let call = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {arguments}}}</tool_call>");
    let expected = (String::new(), String::new(), vec![("f".to_owned(), arguments.to_owned())]);
    assert_eq!(read(reader.clone(), &[&call]), expected);
    for (at, _) in call.char_indices() {
        assert_eq!(read(reader.clone(), &[&call[..at], &call[at..]]), expected);
    }
}

#[test]
fn thoughts_that_the_client_does_not_want_are_left_out() {
    check(&reader(None, ReasoningFormat::Omitted), "<think>\na\n</think>\n\nb", "", "b", 0);
}

/// Texts of model families before calls of `f` without arguments, from their published templates: a sign of the
/// template, the form of calls, the end of the prompt, the text, its reasoning, its content and the number of calls.
type CallText = (&'static str, &'static CallFormat, &'static str, &'static str, &'static str, &'static str, usize);

const CALLS: [CallText; 19] = [
    (
        "</think>",
        &HERMES,
        "",
        "<think>\nI need it.\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
        "I need it.",
        "",
        1,
    ),
    (
        "</think>",
        &HERMES,
        "<think>\n",
        "<tool_call>{\"name\": \"f\"}\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>{\"name\": \"f\"}",
        "",
        1,
    ),
    (
        "</think>",
        &QWEN_CODER,
        "<think>\n",
        "I need it.\n</think>\n\nI look.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
        "I need it.",
        "I look.",
        1,
    ),
    ("</think>", &OLMO, "<think>", "I need it.</think><function_calls>f()\nf()</function_calls>", "I need it.", "", 2),
    ("<think>", &GLM, "", "\n<think>I need it.</think>\n<tool_call>f\n</tool_call>", "I need it.", "", 1),
    (
        "<think>",
        &GLM_DENSE,
        "",
        "<think>I need it.</think><tool_call>f</tool_call><tool_call>f</tool_call>",
        "I need it.",
        "",
        2,
    ),
    (
        "<think>",
        &LFM2,
        "",
        "<think>I need it.</think><|tool_call_start|>[f(), f()]<|tool_call_end|>Wait.",
        "I need it.",
        "Wait.",
        2,
    ),
    (
        "<think>",
        &MINICPM,
        "",
        "<think>I need it.</think><|tool_call_start|>\n```python\nf()\n```\n<|tool_call_end|>",
        "I need it.",
        "",
        1,
    ),
    (
        "<think>",
        &MINICPM_XML,
        "",
        "<think>\nI need it.\n</think>\n\n<function name=\"f\"></function>",
        "I need it.",
        "",
        1,
    ),
    (
        "<think>",
        &DEEPSEEK,
        "<think>\n",
        "I need it.</think>\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "I need it.",
        "",
        1,
    ),
    (
        "<response>",
        &GRANITE,
        "",
        "<think>I need it.</think>\n<response>I look.</response><|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]",
        "I need it.",
        "I look.",
        1,
    ),
    ("[THINK]", &MISTRAL_NAMED, "", "[THINK]I need it.[/THINK][TOOL_CALLS]f[ARGS]{}", "I need it.", "", 1),
    (
        "<|channel>",
        &GEMMA,
        "",
        "<|channel>thought\nI need it.\n<channel|><|tool_call>call:f{}<tool_call|>",
        "I need it.",
        "",
        1,
    ),
    (
        "<|START_THINKING|>",
        &COHERE,
        "",
        "<|START_THINKING|>I need it.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {}}\n]<|END_ACTION|>",
        "I need it.",
        "",
        1,
    ),
    (
        "<seed:think>",
        &SEED_OSS,
        "",
        "<seed:think>I need it.</seed:think>\n<seed:tool_call>\n<function=f>\n</function>\n</seed:tool_call>",
        "I need it.",
        "",
        1,
    ),
    (
        "<|channel|>analysis",
        &GPT_OSS,
        "",
        "<|channel|>analysis<|message|>I need it.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
        "I need it.",
        "",
        1,
    ),
    (
        "<|channel|>analysis",
        &GPT_OSS,
        "",
        "<|channel|>analysis<|message|>I need it.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        "I need it.",
        "",
        1,
    ),
    (
        "<|channel|>analysis",
        &GPT_OSS,
        "",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        "",
        "I look.",
        1,
    ),
    ("<|channel|>analysis", &GPT_OSS, "", " to=functions.f<|channel|>commentary json<|message|>{}", "", "", 1),
];

#[test]
fn thoughts_and_calls_of_each_family_are_read_alike_at_any_cut() {
    for (sign, calls, prompt, text, reasoning, content, n_calls) in CALLS {
        let form = form(Some(sign));
        let reader = AnswerReader::new(form, Some(parser(calls)), ReasoningFormat::Apart);
        check(&reader.within_thought(form.opened_by(prompt), false), text, reasoning, content, n_calls);
    }
}
