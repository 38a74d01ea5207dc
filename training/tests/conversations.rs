//! Conversations in `hearth-train prepare`: the tokens are those of serving.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use hearth_model::text::{
    chat::{ChatTemplate, Ending, Message, RenderContext},
    tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
};
use hearth_training::data::shard::{Dataset, Split};

fn hearth_train(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hearth-train")).args(args).current_dir(dir).output().unwrap()
}

fn succeed(dir: &Path, args: &[&str]) {
    let output = hearth_train(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn fail(dir: &Path, args: &[&str]) -> String {
    let output = hearth_train(dir, args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn prepare_encodes_conversations_to_the_token_ids_of_serving() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let messages =
        vec![Message::new("user", "Hello <|im_end|>"), Message::new("assistant", "Hello! Shall I tell you a story?")];
    let line = serde_json::json!({ "messages": messages, "expected": {} }).to_string();
    fs::write(dir.join("a.jsonl"), format!("{line}\n").repeat(40)).unwrap();
    succeed(dir, &["tokenizer", "a.jsonl", "--out", "tokenizer", "--vocab-size", "300", "--chat"]);
    succeed(dir, &["prepare", "a.jsonl", "--tokenizer", "tokenizer", "--out", "data", "--split", "tail"]);

    let tokenizer = Tokenizer::from_dir(&dir.join("tokenizer")).unwrap();
    let template = ChatTemplate::from_dir(&dir.join("tokenizer")).unwrap().unwrap();
    let context = RenderContext { ending: Ending::Closed, ..RenderContext::new(&tokenizer) };
    let mut expected = template.encode(&tokenizer, &messages, &context).unwrap();
    let text = tokenizer.decode(&expected, DecodeOptions { skip_special_tokens: false });
    assert!(text.ends_with("story?<|im_end|>\n"), "{text}");
    expected.push(tokenizer.eos().unwrap().id);
    let end = tokenizer.encode("<|im_end|>", EncodeOptions::RENDERED).unwrap();
    assert_eq!(expected.iter().filter(|id| **id == end[0]).count(), 2, "the one in a message is text");

    let data = Dataset::open(&dir.join("data")).unwrap();
    let tokens = data.split(Split::Train);
    let mut found = vec![0; expected.len() * 2];
    tokens.read(0, &mut found);
    assert_eq!(found, expected.repeat(2));
    assert_eq!(tokens.len() as usize % expected.len(), 0, "no conversation is divided");

    succeed(dir, &["tokenizer", "a.jsonl", "--out", "plain", "--vocab-size", "300"]);
    let error = fail(dir, &["prepare", "a.jsonl", "--tokenizer", "plain", "--out", "other"]);
    assert!(error.contains("a.jsonl`") && error.contains("line 1") && error.contains("no chat template"), "{error}");
    fs::write(dir.join("b.jsonl"), format!("{line}\n{{\"messages\": [{{\"role\": 1}}]}}\n")).unwrap();
    let error = fail(dir, &["prepare", "b.jsonl", "--tokenizer", "tokenizer", "--out", "other"]);
    assert!(error.contains("`b.jsonl`, line 2: `messages[0]`: `role` must be a string"), "{error}");
}
