//! Data are trained as they are written, or a note says otherwise.

use serde_json::{Value, json};

use super::*;

#[test]
fn chats_rendered_in_text_get_the_token_ids_of_their_messages() {
    let turns = [("system", "S"), ("user", "Hi"), ("assistant", "Yes"), ("user", "So?"), ("assistant", "No")];
    for (template, turns, mark) in [(CHATML, &turns[..], "<|im_start|>"), (INST, &turns[1..], "[INST]")] {
        let messages = conversation(turns);
        let expected = examples(template, std::slice::from_ref(&messages)).unwrap().remove(0).ids;
        let messages: Vec<Message> = serde_json::from_value(messages["messages"].clone()).unwrap();
        let encoder = encoder(template);
        let context = RenderContext { ending: Ending::Closed, ..RenderContext::new(encoder.tokenizer()) };
        let template_of = ChatTemplate::new(template, Path::new("chat_template.jinja")).unwrap();
        // The result of `apply_chat_template(tokenize=False)`.
        let text = json!({ "text": template_of.render(&messages, &context).unwrap() });
        let found = examples(template, std::slice::from_ref(&text)).unwrap();
        assert_eq!(found[0].ids, expected);
        assert_eq!(found[0].n_trained(), expected.len() - 1, "all of it is trained");
        let said = notes(template, &[text.clone(), text]);
        assert!(
            said.len() == 1 && said[0].contains("`data.jsonl`, line 1: it is a chat") && said[0].contains(mark),
            "{said:?}"
        );
    }
}

#[test]
fn marks_of_the_ends_of_documents_in_a_text_are_the_token_that_ends_it() {
    let lines = ["One</s>", "One</s>two", "One\n</s>\n</s>"].map(|text| json!({ "text": text }));
    let found = examples(CHATML, &lines).unwrap();
    let texts: Vec<String> = found.iter().map(marked).collect();
    assert_eq!(texts, ["«<s>One</s>»", "«<s>One</s><s>two</s>»", "«<s>One\n</s>»"]);
    let end = tokenizer().token_id("</s>").unwrap();
    assert_eq!(found.iter().flat_map(|example| &example.ids).filter(|&&id| id == end).count(), 4);
    assert_eq!(notes(CHATML, &lines), ["`data.jsonl`, line 1: `</s>` in a text ends a document there"]);
    // Another model's mark stays text, with a note.
    let other = json!({ "text": "One<|endoftext|>two" });
    assert_eq!(
        notes(CHATML, &[other]),
        ["`data.jsonl`, line 1: `<|endoftext|>` in a text is trained as plain characters"]
    );
    // In a text file, each document is an example.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    fs::write(&path, "One\n</s>\ntwo</s>").unwrap();
    let found = read(&[Origin::Path(path)], &encoder(CHATML), &settings(), &mut |_| {}).unwrap();
    assert_eq!(found.examples.iter().map(marked).collect::<Vec<_>>(), ["«<s>One\n</s>»", "«<s>\ntwo</s>»"]);
}

#[test]
fn what_is_not_trained_as_written_is_said_once_with_the_line_and_the_name() {
    let ok = conversation(&[("user", "Hi"), ("assistant", "Yes")]);
    let with = |name: &str, value: Value| {
        let mut line = ok.clone();
        line["messages"][1][name] = value;
        line
    };
    let mut more = ok.clone();
    (more["id"], more["source"], more["nothing"]) = (json!(1), json!("web"), json!([]));
    let empty = conversation(&[("user", "Hi"), ("assistant", "")]);
    let lines =
        [ok.clone(), more, with("time", json!(5)), with("time", json!(6)), empty, with("tool_calls", json!([]))];
    assert_eq!(
        notes(CHATML, &lines),
        [
            "`data.jsonl`, line 2: not read, here and elsewhere: `id`, `source`",
            "`data.jsonl`, line 3: the chat template does not write the member `time` of messages",
            "`data.jsonl`, line 5: an answer is empty; trained is that nothing is said, only the end of the turn",
        ]
    );
    // This template writes the reasoning of the last answer only.
    let turns = conversation(&[("user", "Hi"), ("assistant", "Yes"), ("user", "So?"), ("assistant", "No")]);
    let reasons = |index: usize| {
        let mut line = turns.clone();
        line["messages"][index]["reasoning"] = json!("because");
        line
    };
    assert!(notes(REASONING, &[reasons(3)]).is_empty());
    let said = notes(REASONING, &[reasons(1)]);
    assert_eq!(said, ["`data.jsonl`, line 1: the chat template leaves out `reasoning` of message 2 of 4"]);
    assert!(notes(CHATML, &[ok]).is_empty());
}
