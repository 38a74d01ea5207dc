//! Which tokens of conversations are trained, against what transformers makes of the chat templates that TRL has
//! (`golden/masks/make.py`). The templates are other people's text and not in the repository.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::{collections::BTreeMap, env, fs, ops::Range, path::Path};

use hearth_model::{
    TokenId,
    files::digest::Digest,
    text::{
        chat::{ChatTemplate, Ending, MaskSource, MaskedChat, Message, RenderContext},
        tokenizer::{DecodeOptions, Tokenizer},
    },
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

const TEMPLATES: &str = "HEARTH_CHAT_TEMPLATES";

#[derive(Deserialize)]
struct Golden {
    families: BTreeMap<String, Family>,
    transformers_is_wrong: Wrong,
}

#[derive(Deserialize)]
struct Family {
    /// SHA-256 of the templates.
    published: String,
    marked: String,
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
struct Case {
    /// With the marked template.
    ids: Vec<TokenId>,
    trained: Vec<(usize, usize)>,
    /// With the published one, if they differ; null if it rejects the conversation.
    #[serde(default, deserialize_with = "present")]
    published_ids: Option<Option<Vec<TokenId>>>,
}

#[derive(Deserialize)]
struct Wrong {
    template: String,
    cases: BTreeMap<String, WrongCase>,
}

#[derive(Deserialize)]
struct WrongCase {
    messages: Vec<Message>,
    /// The mask, or the name of the error.
    transformers: Value,
}

#[derive(Deserialize)]
struct Conversation {
    messages: Vec<Message>,
    tools: Option<Value>,
}

/// Distinguishes null from nothing.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Vec<TokenId>>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// What the marked templates of these families train besides what the assistant writes: headers that a generation prompt
/// already has. By rendering, they are not trained.
const TRAINED_HEADERS: [(&str, &[&str]); 3] = [
    ("deepseek_r1_distill", &["<｜Assistant｜>", "<｜tool▁outputs▁end｜>"]),
    ("deepseekv3", &["<｜Assistant｜>", "<｜tool▁outputs▁end｜>"]),
    ("qwen2_5", &["\n"]),
];

/// After a tool's result, this family's prompt has no header, so the model must write it; and it ends a turn with a call by
/// the start of the result. The marked template trains neither.
const GEMMA_TOOL_CALL: [&str; 3] =
    ["<|tool_call>call:add{a:1,b:2}<tool_call|><|tool_response>", "<|turn>model\nIt is 3.<turn|>\n", "Bye<turn|>\n"];

/// This template puts a call's arguments into a text, which fails in Python if they are an object. Hearth gives them as JSON.
const TEXT_ARGUMENTS: &str = "deepseekv3";

/// This family asks whether the content of a message with calls is none. Hearth says that it is, as OpenAI's clients do;
/// transformers drops members that are none, so its text is another one.
const DIFFERS_ON_NONE: (&str, &str) = ("deepseek_r1_distill", "tool_call");

/// The marked text of this turn ends with `日`, which is three tokens. Transformers looks up the token of the last character,
/// finds the first of the three, and marks no more; the right answer marks all.
const CUT_CHARACTER: (&str, &str, [Range<usize>; 3]) = ("diffusion_gemma", "many_turns", [27..44, 71..83, 116..128]);

fn golden_dir() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/masks"))
}

fn json<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&fs::read_to_string(golden_dir().join(name)).unwrap()).unwrap()
}

fn encode(tokenizer: &Tokenizer, template: &str, conversation: &Conversation) -> hearth_model::Result<MaskedChat> {
    let template = ChatTemplate::new(template, Path::new("chat_template.jinja")).unwrap();
    let tools = conversation.tools.clone();
    let context = RenderContext { ending: Ending::Closed, tools, ..RenderContext::new(tokenizer) };
    let masked = template.encode_with_mask(tokenizer, &conversation.messages, &context, 0)?;
    let served = template.encode(tokenizer, &conversation.messages, &context).unwrap();
    assert_eq!(masked.ids, served, "the ids are those of serving");
    Ok(masked)
}

fn ranges(mask: &[bool]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, _) in mask.iter().enumerate().filter(|(_, is_trained)| **is_trained) {
        match ranges.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

#[test]
fn training_masks_match_transformers_with_the_templates_of_trl() {
    let Some(folder) = env::var_os(TEMPLATES) else {
        eprintln!("skipped: set {TEMPLATES} to the folder `trl/chat_templates` of the package trl 1.16");
        return;
    };
    let golden: Golden = json("masks.json");
    let conversations: BTreeMap<String, Conversation> = json("conversations.json");
    let tokenizer = Tokenizer::from_dir(&golden_dir().join("tokenizer")).unwrap();
    let (mut problems, mut n_compared) = (Vec::new(), 0);
    for (name, family) in &golden.families {
        let read = |file: String, digest: &str| {
            let text = fs::read_to_string(Path::new(&folder).join(&file)).unwrap();
            assert_eq!(Digest::of(text.as_bytes()).to_string(), digest, "{file} is of another version of trl");
            text
        };
        let published = read(format!("{name}.jinja"), &family.published);
        let marked = read(format!("{name}_training.jinja"), &family.marked);
        for (title, case) in &family.cases {
            let conversation = &conversations[title];
            let mut check = |what: &str, found: String, expected: String| {
                if found != expected {
                    problems.push(format!("{name}, {title}: {what}:\n  {found}\n  {expected}"));
                }
            };
            let tagged = encode(&tokenizer, &marked, conversation);
            if (name.as_str(), title.as_str()) == DIFFERS_ON_NONE {
                check("is rejected", tagged.is_err().to_string(), "false".to_owned());
                continue;
            }
            let tagged = tagged.unwrap();
            assert_eq!(tagged.source, MaskSource::GenerationTags);
            let mut expected: Vec<Range<usize>> = case.trained.iter().map(|&(start, end)| start..end).collect();
            if (name.as_str(), title.as_str()) == (CUT_CHARACTER.0, CUT_CHARACTER.1) {
                assert_eq!(expected[..2], [27..36, 38..44], "what transformers makes of it");
                expected = CUT_CHARACTER.2.to_vec();
            }
            check("ids", format!("{:?}", tagged.ids), format!("{:?}", case.ids));
            check("mask", format!("{:?}", ranges(&tagged.is_assistant)), format!("{expected:?}"));

            let found = match (&case.published_ids, encode(&tokenizer, &published, conversation)) {
                (Some(None), found) => {
                    let takes_text = name == TEXT_ARGUMENTS && title == "tool_call";
                    check("is rejected", found.is_err().to_string(), (!takes_text).to_string());
                    continue;
                }
                (_, found) => found.unwrap(),
            };
            assert_eq!(found.source, MaskSource::Rendering);
            let ids = case.published_ids.as_ref().and_then(Option::as_ref).unwrap_or(&case.ids);
            check("published ids", format!("{:?}", found.ids), format!("{ids:?}"));
            if case.published_ids.is_some() {
                // Another text, but all answers and their ends are trained.
                continue;
            }
            n_compared += 1;
            let text = |range: &Range<usize>| tokenizer.decode(&found.ids[range.clone()], DecodeOptions::default());
            let found_ranges = ranges(&found.is_assistant);
            let headers =
                TRAINED_HEADERS.iter().find(|(family, _)| family == name).map_or(&[][..], |(_, headers)| *headers);
            if name == "diffusion_gemma" && title == "tool_call" {
                let texts: Vec<String> = found_ranges.iter().map(text).collect();
                check("texts", format!("{texts:?}"), format!("{GEMMA_TOOL_CALL:?}"));
            } else if headers.is_empty() {
                check("mask by rendering", format!("{found_ranges:?}"), format!("{expected:?}"));
            } else {
                let without_header = |range: &Range<usize>| {
                    let is_header = |end: &usize| headers.contains(&text(&(range.start..*end)).as_str());
                    let end = (range.start..range.end).find(is_header).unwrap();
                    end..range.end
                };
                let expected: Vec<Range<usize>> = expected.iter().map(without_header).collect();
                check("mask by rendering", format!("{found_ranges:?}"), format!("{expected:?}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(golden.families.len() >= 12 && n_compared >= 100, "{n_compared}");
}

/// Transformers marks everything after a first turn of one token, and fails on a first turn that is empty
/// (<https://github.com/huggingface/transformers/issues/47325>). Here are the right answers.
#[test]
fn training_masks_are_right_where_those_of_transformers_are_wrong() {
    let Golden { transformers_is_wrong: Wrong { template, cases }, .. } = json("masks.json");
    let tokenizer = Tokenizer::from_dir(&golden_dir().join("tokenizer")).unwrap();
    for (name, case) in cases {
        let (theirs, right): (Value, &[bool]) = match name.as_str() {
            // `A`, `</s>`, `H`, `i`
            "first_token" => (serde_json::json!([1, 1, 1, 1]), &[true, false, false, false]),
            // `</s>`, `H`, `i`
            "empty_first" => ("OverflowError".into(), &[false, false, false]),
            other => unreachable!("{other}"),
        };
        let conversation = Conversation { messages: case.messages, tools: None };
        let masked = encode(&tokenizer, &template, &conversation).unwrap();
        assert_eq!((case.transformers, masked.is_assistant.as_slice()), (theirs, right), "{name}");
    }
}
