#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use hearth_model::{
    chat::{ChatTemplate, Ending, Message, RenderContext},
    tokenizer::{EncodeOptions, Tokenizer},
};
use serde_json::{Value, json};

use super::*;
use crate::data::{
    corpus::{Origin, WhyLeftOut, WordSplit},
    tokenizer_build::{BuiltTokenizer, SpecialTokens, WordCounts},
};

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    {% for call in m.tool_calls %}<call>{{ call.function | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Texts are trimmed, turns must alternate, and there is no generation prompt.
const INST: &str = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('roles must alternate') }}{% endif %}\
    {% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content | trim + ' [/INST]' }}\
    {% else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}";

/// The last answer has a reasoning block, which the generation prompt opens.
const REASONING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if loop.last and m.role == 'assistant' %}{{ '<think>\\n' }}{{ m.reasoning }}{{ '\\n</think>\\n' }}{% endif %}\
    {{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

/// The last turn ends with another token than the others.
const TWO_ENDS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    {% if loop.last %}</s>{% else %}<|im_end|>{% endif %}{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const TAGGED: &str = "{% for m in messages %}\n    {%- if m.role == 'assistant' %}\n\
    {{- '<|im_start|>assistant\\n' }}\n    {%- generation %}\n{{ m.content }}<|im_end|>\n    {%- endgeneration %}\n\
    {%- else %}\n    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\n    {%- endif %}\n\
    {%- endfor %}\n";

fn tokenizer() -> Tokenizer {
    let special = SpecialTokens { eos: Some("</s>".into()), bos: Some("<s>".into()), pad: None, has_chat: true };
    let mut counts = WordCounts::new(WordSplit::Gpt2);
    counts.add("the user and the assistant say hello to the other user and the assistant says Yes, yes, yes");
    BuiltTokenizer::from_words(&counts, 300, &special).unwrap().open().unwrap()
}

fn encoder(template: &str) -> ExampleEncoder {
    let tokenizer = tokenizer();
    let ends = ["</s>", "<|im_end|>"].map(|token| tokenizer.token_id(token).unwrap());
    let template = ChatTemplate::new(template, Path::new("chat_template.jinja")).unwrap();
    ExampleEncoder::new(&tokenizer, Some(&template), &ends)
}

fn settings() -> ExampleSettings {
    ExampleSettings { max_len: 1000, too_long: TooLong::Refuse, text_field: "text".into(), validation: Vec::new() }
}

/// A file of these lines.
fn file(dir: &Path, lines: &[Value]) -> Vec<Origin> {
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    text_file(dir, &lines.join("\n"))
}

fn text_file(dir: &Path, text: &str) -> Vec<Origin> {
    let path = dir.join("data.jsonl");
    fs::write(&path, text).unwrap();
    vec![Origin::Path(path)]
}

fn examples(template: &str, lines: &[Value]) -> Result<Vec<Example>, String> {
    let dir = tempfile::tempdir().unwrap();
    let found = read(&file(dir.path(), lines), &encoder(template), &settings(), &mut |_| {});
    found.map(|found| found.examples).map_err(|error| format!("{error:#}"))
}

/// The text, with `«` and `»` around each run of trained tokens.
fn marked(example: &Example) -> String {
    let tokenizer = tokenizer();
    let mut text = String::new();
    let mut is_trained = false;
    for (&id, &trained) in example.ids.iter().zip(&example.trained) {
        if trained != is_trained {
            text.push(if trained { '«' } else { '»' });
            is_trained = trained;
        }
        text.push_str(std::str::from_utf8(&tokenizer.token_bytes(id)).unwrap());
    }
    if is_trained {
        text.push('»');
    }
    text
}

fn conversation(messages: &[(&str, &str)]) -> Value {
    let message = |&(role, content): &(&str, &str)| json!({ "role": role, "content": content });
    json!({ "messages": messages.iter().map(message).collect::<Vec<_>>() })
}

fn marked_conversation(template: &str, messages: &[(&str, &str)]) -> String {
    let found = examples(template, &[conversation(messages)]).unwrap();
    let encoder = encoder(template);
    let messages: Vec<Message> = messages.iter().map(|&(role, content)| Message::new(role, content)).collect();
    let context = RenderContext { ending: Ending::Closed, ..RenderContext::new(encoder.tokenizer()) };
    let template = ChatTemplate::new(template, Path::new("chat_template.jinja")).unwrap();
    assert_eq!(found[0].ids, template.encode(encoder.tokenizer(), &messages, &context).unwrap(), "as when serving");
    marked(&found[0])
}

#[test]
fn conversation_trains_assistant_text_and_its_end_of_turn() {
    let turns = [("system", "S"), ("user", "Hi"), ("assistant", " Yes. \n"), ("user", "So?"), ("assistant", "No")];
    let expected = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\
        « Yes. \n<|im_end|>\n»<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n«No<|im_end|>\n»";
    assert_eq!(marked_conversation(CHATML, &turns), expected);
    assert_eq!(
        marked_conversation(INST, &turns[1..]),
        "<s>[INST] Hi [/INST]« Yes. </s>»<s>[INST] So? [/INST]« No </s>»"
    );
    assert_eq!(
        marked_conversation(REASONING, &turns[1..]),
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n« Yes. \n<|im_end|>\n»<|im_start|>user\nSo?<|im_end|>\n\
         <|im_start|>assistant\n«<think>\n\n</think>\nNo<|im_end|>\n»"
    );
    assert_eq!(
        marked_conversation(TWO_ENDS, &turns[1..]),
        "<|im_start|>user\nHi<|im_end|><|im_start|>assistant\n« Yes. \n<|im_end|>»<|im_start|>user\nSo?<|im_end|>\
         <|im_start|>assistant\n«No</s>»"
    );
}

#[test]
fn generation_tags_of_the_template_mark_the_trained_tokens() {
    let turns = [("user", "Hi"), ("assistant", "Yes"), ("user", "So?"), ("assistant", "")];
    assert_eq!(
        marked_conversation(TAGGED, &turns),
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n«Yes<|im_end|>»<|im_start|>user\nSo?<|im_end|>\n\
         <|im_start|>assistant\n\n«<|im_end|>»"
            .replace("assistant\n\n", "assistant\n")
    );
}

#[test]
fn empty_assistant_answer_trains_its_end_of_turn() {
    let turns = [("user", "Hi"), ("assistant", ""), ("user", "So?"), ("assistant", "")];
    assert_eq!(marked_conversation(INST, &turns), "<s>[INST] Hi [/INST]«  </s>»<s>[INST] So? [/INST]«  </s>»");
    let expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«<|im_end|>\n»";
    assert_eq!(marked_conversation(CHATML, &turns[..2]), expected);
    // The same content as lists of parts, as in some data sets.
    let parts = json!({ "messages": [
        { "role": "user", "content": [{ "type": "text", "text": "Hi" }], "name": null },
        { "role": "assistant", "content": [] },
    ] });
    assert_eq!(marked(&examples(CHATML, &[parts]).unwrap()[0]), expected);
}

#[test]
fn special_token_strings_in_messages_are_encoded_as_text() {
    let turns = [("user", "<|im_end|>\n<|im_start|>assistant\n"), ("assistant", "<|im_end|>x")];
    let found = marked_conversation(CHATML, &turns);
    assert!(found.ends_with("assistant\n«<|im_end|>x<|im_end|>\n»"), "{found}");
    let example = &examples(CHATML, &[conversation(&turns)]).unwrap()[0];
    let end = tokenizer().token_id("<|im_end|>").unwrap();
    assert_eq!(example.ids.iter().filter(|&&id| id == end).count(), 2);
}

#[test]
fn tool_calls_are_trained_and_tool_results_are_not() {
    let call = |arguments: Value| {
        json!({ "messages": [
            { "role": "user", "content": "1+2?" },
            { "role": "assistant", "content": null, "tool_calls": [{ "function": { "name": "add", "arguments": arguments } }] },
            { "role": "tool", "content": "3" },
            { "role": "assistant", "content": "It is 3." },
        ] })
    };
    let expected = "<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n\
        «<call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</call><|im_end|>\n»\
        <|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n«It is 3.<|im_end|>\n»";
    let found = examples(CHATML, &[call(json!({ "a": 1 })), call(json!("{\"a\": 1}"))]).unwrap();
    assert_eq!(found.iter().map(marked).collect::<Vec<_>>(), [expected, expected]);
}

/// A server gives tools, calls and results as text to a template that does not write them, and training does the same: also
/// where messages are joined, and one of the assistant's is not trained.
#[test]
fn tools_and_calls_that_the_template_does_not_write_are_text_as_in_serving() {
    let plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let call = |name: &str| json!({ "function": { "name": name, "arguments": { "a": 1 } } });
    let with_tools = json!({
        "tools": [{ "type": "function" }],
        "messages": [
            { "role": "user", "content": "1+2?" },
            { "role": "assistant", "content": "", "tool_calls": [call("f"), call("g")], "train": false },
            { "role": "tool", "content": "3" },
            { "role": "tool", "content": "4" },
            { "role": "assistant", "content": "It is 3." },
        ],
    });
    let found = examples(plain, &[with_tools]).unwrap();
    let marked = marked(&found[0]);
    let (system, rest) = marked.split_once("<|im_end|>\n").unwrap();
    assert!(system.contains("<tools>\n{\"type\":\"function\"}\n</tools>"), "{system}");
    let text = |name: &str| format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"a\":1}}}}\n</tool_call>");
    let expected = format!(
        "<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n{}\n{}<|im_end|>\n<|im_start|>user\n<tool_response>\n3\n\
         </tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n«It is 3.<|im_end|>\n»",
        text("f"),
        text("g")
    );
    assert_eq!(rest, expected);
}

#[test]
fn completion_continues_the_token_ids_of_its_prompt() {
    let lines = [
        json!({ "prompt": "Say the", "completion": " user" }),
        json!({ "prompt": "Say the", "completion": "m" }),
        json!({ "prompt": "", "completion": "x</s>" }),
        json!({ "prompt": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "A" }, { "role": "user", "content": "B" }],
                "completion": [{ "role": "assistant", "content": "C" }] }),
    ];
    let found = examples(CHATML, &lines).unwrap();
    let texts: Vec<String> = found.iter().map(marked).collect();
    assert_eq!(texts[..3], ["<s>Say the« user</s>»", "<s>Say the«m</s>»", "<s>«x</s>»"]);
    assert!(
        texts[3]
            .ends_with("assistant\nA<|im_end|>\n<|im_start|>user\nB<|im_end|>\n<|im_start|>assistant\n«C<|im_end|>\n»")
    );
    let prompt = tokenizer().encode("Say the", EncodeOptions::PROMPT).unwrap();
    assert!(found[..2].iter().all(|example| example.ids.starts_with(&prompt)));
    // With a template that has generation tags, too, only the completion is trained.
    let tagged = examples(TAGGED, &lines[3..]).unwrap();
    assert_eq!(marked(&tagged[0]).matches('«').count(), 1);
    assert!(marked(&tagged[0]).ends_with("«C<|im_end|>»"));
}

/// `train` is axolotl's flag, `weight` is OpenAI's, `loss` is ms-swift's.
#[test]
fn train_and_weight_flags_exclude_messages_from_training() {
    let turns =
        [("user", "A"), ("assistant", "B"), ("user", "C"), ("assistant", "D"), ("user", "E"), ("assistant", "F")];
    let with = |flags: &[(usize, &str, Value)]| {
        let mut line = conversation(&turns);
        for (message, name, value) in flags {
            line["messages"][*message][*name] = value.clone();
        }
        line
    };
    let lines = [
        with(&[]),
        with(&[(1, "train", json!(false))]),
        with(&[(3, "weight", json!(0))]),
        with(&[(1, "weight", json!(0.0)), (5, "train", json!(false))]),
        with(&[(1, "train", json!(false)), (3, "weight", json!(0)), (3, "train", json!(true))]),
        // Flags that repeat the defaults.
        with(&[
            (0, "train", json!(false)),
            (1, "train", json!(true)),
            (2, "weight", json!(1)),
            (3, "weight", json!(1)),
        ]),
        with(&[(1, "weight", json!(null)), (3, "train", json!(null))]),
        // Other programs' names.
        with(&[(1, "loss", json!(false)), (3, "loss_mask", json!(0))]),
        with(&[(1, "trainable", json!(false)), (3, "training", json!(0)), (5, "loss", json!(1))]),
    ];
    let expected = ["BDF", "DF", "BF", "D", "F", "BDF", "BDF", "F", "F"];
    for template in [CHATML, INST, TAGGED] {
        let found = examples(template, &lines).unwrap();
        for (example, expected) in found.iter().zip(expected) {
            assert_eq!(example.ids, found[0].ids, "the template does not see the flags");
            let marked = marked(example);
            let trained: String = marked.split('«').skip(1).filter_map(|run| run.trim_start().chars().next()).collect();
            assert_eq!(trained, expected, "{marked}");
        }
    }
    // Flags also count in a completion, and in both answers of a preference pair. The messages that the answers share
    // may have different flags.
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let mut earlier = message("assistant", "B");
    earlier["train"] = json!(false);
    let completion = json!([earlier, message("user", "C"), message("assistant", "D")]);
    let found = examples(CHATML, &[json!({ "prompt": [message("user", "A")], "completion": completion })]).unwrap();
    assert!(
        marked(&found[0])
            .ends_with("\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n«D<|im_end|>\n»")
    );
    let conversation = |second: &Value, answer: &str| {
        json!([message("user", "A"), second, message("user", "C"), message("assistant", answer)])
    };
    let pair =
        json!({ "chosen": conversation(&message("assistant", "B"), "D"), "rejected": conversation(&earlier, "E") });
    let dir = tempfile::tempdir().unwrap();
    let pairs = read_preferences(&file(dir.path(), &[pair]), &encoder(CHATML), &settings(), &mut |_| {}).unwrap();
    for (example, answer) in [(&pairs.examples[0].chosen, "D"), (&pairs.examples[0].rejected, "E")] {
        assert_eq!(marked(example).split_once('«').unwrap().1, format!("{answer}<|im_end|>\n»"));
    }
}

#[test]
fn text_example_trains_all_its_tokens_and_eos() {
    let found = examples(CHATML, &[json!({ "text": "One <s> two", "id": 7 })]).unwrap();
    assert_eq!(marked(&found[0]), "«<s>One <s> two</s>»");
    assert_eq!(found[0].n_trained(), found[0].ids.len() - 1);
}

#[test]
fn eos_is_trained_even_if_it_is_also_the_padding_token() {
    let json = |pad: &str| json!({ "eos_token": "</s>", "pad_token": pad }).to_string();
    let built = BuiltTokenizer::from_words(
        &WordCounts::new(WordSplit::Gpt2),
        260,
        &SpecialTokens { eos: Some("</s>".into()), ..SpecialTokens::default() },
    );
    let built = built.unwrap().tokenizer_json;
    let tokenizer = Tokenizer::from_json(built.as_bytes(), Some(json("</s>").as_bytes()), Path::new("t.json")).unwrap();
    let eos = tokenizer.eos().unwrap().id;
    assert_eq!(tokenizer.pad().unwrap().id, eos);
    let encoder = ExampleEncoder::new(&tokenizer, None, &[eos]);
    let dir = tempfile::tempdir().unwrap();
    let sources = file(dir.path(), &[json!({ "prompt": "a", "completion": "b" })]);
    let example = read(&sources, &encoder, &settings(), &mut |_| {}).unwrap().examples.remove(0);
    assert_eq!((example.ids.last(), example.trained.last()), (Some(&eos), Some(&true)));
}

#[test]
fn invalid_examples_are_rejected_by_line() {
    let ok = conversation(&[("user", "Hi"), ("assistant", "Yes")]);
    let refuse = |template: &str, line: Value| examples(template, &[ok.clone(), line]).unwrap_err();
    let with = |message: usize, name: &str, value: Value| {
        let mut line = ok.clone();
        line["messages"][message][name] = value;
        line
    };
    let no_end = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}";
    let doubled = "{{ bos_token + bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}";
    let cases = [
        (refuse(INST, conversation(&[("user", "a"), ("user", "b")])), "rejects these messages: roles must alternate"),
        (refuse(CHATML, conversation(&[("user", "a")])), "nothing of it would be trained"),
        (refuse(CHATML, json!({ "messages": [] })), "`messages` has no messages"),
        (refuse(CHATML, json!({ "messages": [{ "role": "user" }] })), "`messages[0]` has no `content`"),
        (refuse(CHATML, json!({ "messages": [{ "content": "x" }] })), "`messages[0]` has no `role`"),
        (refuse(CHATML, json!({ "messages": ["x"] })), "`messages[0]` is not an object"),
        (refuse(CHATML, json!({ "messages": "x" })), "`messages` is not a list of messages"),
        (refuse(CHATML, json!({ "prompt": "x" })), "there is a `prompt`, but no `completion`"),
        (refuse(CHATML, json!({ "completion": "x" })), "there is a `completion`, but no `prompt`"),
        (
            refuse(CHATML, json!({ "prompt": "x", "completion": [] })),
            "`prompt` and `completion` are of different kinds",
        ),
        (refuse(CHATML, json!({ "prompt": "x", "completion": "" })), "`completion` is empty"),
        (refuse(CHATML, json!({ "text": "" })), "`text` is empty"),
        (refuse(CHATML, json!({ "text": 5 })), "`text` is not a string"),
        (refuse(CHATML, json!({ "body": "x" })), "there is no example, only `body`"),
        (refuse(CHATML, json!({ "conversations": [] })), "`conversations` has no messages"),
        (
            refuse(CHATML, json!({ "conversations": [{ "from": "narrator", "value": "x" }] })),
            "`conversations[0].from` must be",
        ),
        (
            refuse(CHATML, json!({ "conversations": [{ "from": "function_call", "value": "{}" }] })),
            "`conversations[0].from` is `function_call`",
        ),
        (refuse(CHATML, json!({ "instruction": "a", "input": "b" })), "but no `output` (Alpaca's layout)"),
        (refuse(CHATML, json!({ "question": "a", "choices": ["b"], "answer": 0 })), "`choices` (MMLU's layout)"),
        (refuse(CHATML, json!({ "ctx": "a", "endings": ["b"], "label": 0 })), "`endings` (HellaSwag's layout)"),
        (refuse(CHATML, json!({ "prompt": "a", "chosen": "b", "rejected": "c" })), "these are for DPO"),
        (refuse(CHATML, json!({ "prompt": "a", "completion": "b", "label": false })), "KTO's layout"),
        (
            refuse(CHATML, json!({ "instruction": "a", "output": "b", "history": [["c", "d"]] })),
            "`history` is not read",
        ),
        (refuse(CHATML, json!({ "text": "a", "weight": 0 })), "`weight` of the whole record is 0"),
        (refuse(CHATML, json!({ "text": "a", "split": "test" })), "`split` is `test`, but the records of a file"),
        (refuse(CHATML, json!({ "text": "a", "train": false })), "`train` of the whole record is false"),
        (refuse(CHATML, json!({ "functions": [{}], "text": "a" })), "`functions` is not read"),
        (refuse(CHATML, with(1, "loss", json!(false))), "nothing of it would be trained"),
        (refuse(CHATML, with(1, "loss", json!(0.5))), "`messages[1].loss` must be `true`, `false`, 0 or 1, got 0.5"),
        (refuse(CHATML, with(1, "loss_mask", json!([0, 1]))), "`messages[1].loss_mask` must be"),
        (
            refuse(CHATML, with(0, "trainable", json!(true))),
            "`messages[0].trainable` must be `false` for the role `user`",
        ),
        (refuse(CHATML, with(1, "mask", json!(true))), "`messages[1].mask` may say whether the message is trained"),
        (refuse(CHATML, with(1, "do_not_train", json!(true))), "`messages[1].do_not_train` may say"),
        (
            refuse(CHATML, with(1, "function_call", json!({ "name": "f", "arguments": "{}" }))),
            "a message has `function_call`, but the model's chat template does not write it",
        ),
        (refuse(CHATML, with(1, "reasoning_content", json!("so"))), "a message has `reasoning_content`, but"),
        (refuse(CHATML, with(1, "thinking", json!("so"))), "a message has `thinking`, but"),
        (
            refuse(CHATML, json!({ "text": "<bos><start_of_turn>user\nHi<end_of_turn>\n" })),
            "its `<start_of_turn>` is no token of the model",
        ),
        (
            refuse(CHATML, with(0, "role", json!("human"))),
            "`messages[0].role` is `human`, which is ShareGPT's name for `user`",
        ),
        (refuse(CHATML, with(1, "weight", json!(0))), "nothing of it would be trained"),
        (refuse(CHATML, with(1, "train", json!(false))), "nothing of it would be trained"),
        (refuse(CHATML, with(1, "weight", json!(0.5))), "`messages[1].weight` must be 0 or 1, got 0.5"),
        (refuse(CHATML, with(1, "weight", json!("1"))), "`messages[1].weight` must be 0 or 1, got \"1\""),
        (refuse(CHATML, with(1, "train", json!("no"))), "`messages[1].train` must be `true` or `false`, got \"no\""),
        (refuse(CHATML, with(1, "train", json!(0))), "`messages[1].train` must be `true` or `false`, got 0"),
        (refuse(CHATML, with(0, "train", json!(true))), "`messages[0].train` must be `false` for the role `user`"),
        (refuse(CHATML, json!([])), "invalid type"),
    ];
    for (error, message) in cases {
        let is_complete = error.contains("data.jsonl`, line 2: ") && error.contains("\nhint: ");
        assert!(error.contains(message) && is_complete, "{message}: {error}");
    }
    for (template, message) in [(no_end, "no end of turn is trained"), (doubled, "two BOS tokens, `<s>`")] {
        let error = examples(template, std::slice::from_ref(&ok)).unwrap_err();
        assert!(error.contains(message) && error.contains("line 1: ") && error.contains("\nhint: "), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let sources = text_file(dir.path(), "{\"text\": \"a\"}\n\n{\"text\": \"b\n");
    let error = read(&sources, &encoder(CHATML), &settings(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("data.jsonl`, line 3: ") && error.contains("\nhint: each line must be"), "{error}");
    // The error of the earlier line is reported, although lines are encoded after they are parsed.
    let sources = text_file(dir.path(), "{\"text\": \"\"}\n{\"text\": \"b\n");
    let error = read(&sources, &encoder(CHATML), &settings(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("data.jsonl`, line 1: `text` is empty"), "{error}");
    let error = read(&text_file(dir.path(), "\n"), &encoder(CHATML), &settings(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("has no examples\nhint: "), "{error}");
}

#[test]
fn too_long_examples_are_rejected_cut_or_dropped_by_setting() {
    let dir = tempfile::tempdir().unwrap();
    let long = "user ".repeat(40);
    let lines = [
        conversation(&[("user", "Hi"), ("assistant", "Yes")]),
        conversation(&[("user", "Hi"), ("assistant", &long)]),
        conversation(&[("user", &long), ("assistant", "Yes")]),
    ];
    let sources = file(dir.path(), &lines);
    let read = |too_long| {
        read(&sources, &encoder(CHATML), &ExampleSettings { max_len: 30, too_long, ..settings() }, &mut |_| {})
    };
    let error = read(TooLong::Refuse).unwrap_err().to_string();
    assert!(
        error.contains("line 2: it has ") && error.contains("at most 30") && error.contains("too_long=cut"),
        "{error}"
    );
    let dropped = read(TooLong::Drop).unwrap();
    assert_eq!((dropped.examples.len(), dropped.n_cut, dropped.n_dropped), (1, 0, 2));
    // Cutting leaves the third example without trained tokens, so it is dropped.
    let cut = read(TooLong::Cut).unwrap();
    assert_eq!((cut.examples.len(), cut.n_cut, cut.n_dropped), (2, 1, 1));
    assert_eq!((cut.examples[1].ids.len(), cut.examples[1].trained.len()), (30, 30));
    assert_eq!(cut.n_endless, 1);
    // If no end of a turn is left, the model would never stop.
    let sources = file(dir.path(), &lines[1..2]);
    let settings = ExampleSettings { max_len: 30, too_long: TooLong::Cut, ..settings() };
    let error = super::read(&sources, &encoder(CHATML), &settings, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("removes the end of every answer") && error.contains("\nhint: "), "{error}");
}

fn notes(template: &str, lines: &[Value]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let found = read(&file(dir.path(), lines), &encoder(template), &settings(), &mut |_| {}).unwrap();
    found.notes.lines().iter().map(|line| line.replace(&format!("{}/", dir.path().display()), "")).collect()
}

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
        // What `apply_chat_template(tokenize=False)` gives.
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
    // Another model's mark stays text, and that is said.
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

#[test]
fn layouts_of_other_programs_are_read_as_conversations() {
    let start = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Yes<|im_end|>\n»";
    let system = "<|im_start|>system\nS<|im_end|>\n";
    let with_system = format!("{system}{start}");
    let below = start.replace("Hi", "Hi\nit");
    let turns = json!([{ "from": "human", "value": "Hi" }, { "from": "gpt", "value": "Yes" }]);
    let sharegpt = json!({ "conversations": turns.clone(), "system": "S" });
    for (line, expected) in [
        (json!({ "conversations": turns.clone() }), start),
        (json!({ "conversations": turns.to_string() }), start),
        (json!({ "messages": turns }), start),
        (sharegpt, &with_system),
        (json!({ "instruction": "Hi", "input": "", "output": "Yes" }), start),
        (json!({ "instruction": "Hi", "input": "it", "output": "Yes", "system": "S" }), &format!("{system}{below}")),
        (json!({ "instruction": "Hi", "context": "it", "response": "Yes", "category": "x" }), &below),
        (json!({ "prompt": "Hi", "response": "Yes" }), start),
        (json!({ "question": "Hi", "answer": "Yes" }), start),
        (json!({ "system_prompt": "S", "question": "Hi", "response": "Yes" }), &with_system),
        (json!({ "query": "Hi", "response": "Yes" }), start),
        (json!({ "input": "Hi", "output": "Yes" }), start),
        (json!({ "prompt": [{ "role": "user", "content": "Hi" }], "response": "Yes" }), start),
    ] {
        let found =
            examples(CHATML, std::slice::from_ref(&line)).unwrap_or_else(|error| unreachable!("{line}: {error}"));
        assert_eq!(marked(&found[0]), expected, "{line}");
    }
    let said = notes(CHATML, &[json!({ "instruction": "Hi", "input": "it", "output": "Yes" })]);
    assert!(said[0].contains("line 1: read as Alpaca: `instruction`"), "{said:?}");
}

#[test]
fn tables_as_text_and_json_under_another_name_are_read_as_examples() {
    let dir = tempfile::tempdir().unwrap();
    let start = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Yes, I do<|im_end|>\n»";
    for (name, text) in [
        ("alpaca.csv", "instruction,input,output\n\"Hi\",\"\",\"Yes, I do\"\n"),
        ("pairs.tsv", "question\tanswer\nHi\tYes, I do\n"),
        ("lines.txt", "{\"instruction\": \"Hi\", \"output\": \"Yes, I do\"}\n"),
        (
            "lines",
            "\n{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yes, I do\"}]}\n",
        ),
        ("array.data", "[\n{\"query\": \"Hi\", \"response\": \"Yes, I do\"}]"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let found = read(&[Origin::Path(path)], &encoder(CHATML), &settings(), &mut |_| {}).unwrap();
        assert_eq!(found.examples.iter().map(marked).collect::<Vec<_>>(), [start], "{name}");
    }
    let path = dir.path().join("short.csv");
    fs::write(&path, "prompt,completion\na,b\nc\n").unwrap();
    let error = read(&[Origin::Path(path)], &encoder(CHATML), &settings(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("short.csv`, line 3: the row has 1 values"), "{error}");
}

#[test]
fn examples_of_a_folder_are_split_by_the_names_of_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let line = |text: &str| json!({ "text": text }).to_string();
    for (name, text) in [
        ("train.jsonl", line("a")),
        ("dev/0.jsonl", line("b")),
        ("test.jsonl", line("c")),
        ("notes.txt", "d".into()),
        ("more.csv", "text\ne\n".into()),
    ] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let texts = |examples: &[Example]| examples.iter().map(marked).collect::<Vec<_>>();
    let folder = Origin::Path(dir.path().into());
    let found = read(std::slice::from_ref(&folder), &encoder(CHATML), &settings(), &mut |_| {}).unwrap();
    assert_eq!(
        (texts(&found.examples), texts(&found.val)),
        (vec!["«<s>e</s>»".into(), "«<s>a</s>»".into()], vec!["«<s>b</s>»".into()])
    );
    let left_out: Vec<_> = found.left_out.iter().map(|one| (one.name.as_str(), one.why)).collect();
    let [(test, WhyLeftOut::ForTests), (notes, WhyLeftOut::NotExamples)] = left_out[..] else {
        unreachable!("{left_out:?}")
    };
    assert!(test == "test.jsonl" && notes.ends_with("notes.txt"), "{left_out:?}");
    // Sources for validation: a file as it is, or the validation files of a folder.
    let train = [Origin::Path(dir.path().join("train.jsonl"))];
    for (source, expected) in [(Origin::Path(dir.path().join("test.jsonl")), "«<s>c</s>»"), (folder, "«<s>b</s>»")]
    {
        let settings = ExampleSettings { validation: vec![source], ..settings() };
        let found = read(&train, &encoder(CHATML), &settings, &mut |_| {}).unwrap();
        assert_eq!((texts(&found.examples), texts(&found.val)), (vec!["«<s>a</s>»".into()], vec![expected.into()]));
    }
    // They replace those of the folder, and are not trained on: here all but the table are.
    let folder = Origin::Path(dir.path().into());
    let validation = ["test.jsonl", "train.jsonl"].map(|name| Origin::Path(dir.path().join(name)));
    let only = ExampleSettings { validation: validation.into(), ..settings() };
    let found = read(std::slice::from_ref(&folder), &encoder(CHATML), &only, &mut |_| {}).unwrap();
    assert_eq!(
        (texts(&found.examples), texts(&found.val)),
        (vec!["«<s>e</s>»".into()], vec!["«<s>c</s>»".into(), "«<s>a</s>»".into()])
    );
    let left_out: Vec<_> = found.left_out.iter().map(|one| (one.name.as_str(), one.why)).collect();
    assert!(left_out.contains(&("dev/0.jsonl", WhyLeftOut::Replaced)) && left_out.len() == 2, "{left_out:?}");
    // A file that is named is trained on, and its name is remarked upon.
    let found =
        read(&[Origin::Path(dir.path().join("test.jsonl"))], &encoder(CHATML), &settings(), &mut |_| {}).unwrap();
    assert!(found.notes.lines()[0].contains("its name says `test`"), "{:?}", found.notes);
    fs::remove_file(dir.path().join("train.jsonl")).unwrap();
    fs::remove_file(dir.path().join("more.csv")).unwrap();
    fs::remove_file(dir.path().join("notes.txt")).unwrap();
    let error =
        read(&[Origin::Path(dir.path().into())], &encoder(CHATML), &settings(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("has no files to train on") && error.contains("\nhint: "), "{error}");
}

#[test]
fn pairs_without_a_difference_are_left_out_and_said() {
    let pair = |chosen: &str, rejected: &str| {
        let says = |text: &str| json!([{ "role": "assistant", "content": text }]);
        json!({ "prompt": [{ "role": "user", "content": "Hi" }], "chosen": says(chosen), "rejected": says(rejected) })
    };
    let long = "user ".repeat(40);
    let lines = [pair("Yes", "No"), pair("Yes", "Yes"), pair(&format!("{long}a"), &format!("{long}b"))];
    let dir = tempfile::tempdir().unwrap();
    let settings = ExampleSettings { max_len: 30, too_long: TooLong::Cut, ..settings() };
    let found = read_preferences(&file(dir.path(), &lines), &encoder(CHATML), &settings, &mut |_| {}).unwrap();
    assert_eq!((found.examples.len(), found.n_same, found.n_cut), (1, 2, 0));
    let said = found.notes.lines();
    assert!(said[0].contains("line 2: `chosen` and `rejected` are the same"), "{said:?}");
    assert!(said[1].contains("line 3: cut, `chosen` and `rejected` are the same"), "{said:?}");
    let question = json!({ "question": "Hi", "system": "S", "chosen": "Yes", "rejected": "No" });
    let found = read_preferences(&file(dir.path(), &[question]), &encoder(CHATML), &settings, &mut |_| {}).unwrap();
    assert!(marked(&found.examples[0].chosen).starts_with("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi"));
    let kto = json!({ "prompt": "Hi", "completion": "Yes", "label": true });
    let error = read_preferences(&file(dir.path(), &[kto]), &encoder(CHATML), &settings, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("KTO's layout"), "{error}");
}

#[test]
fn examples_are_read_from_jsonl_json_and_text_files_and_folders() {
    let dir = tempfile::tempdir().unwrap();
    let line = |text: &str| format!("{}\n", json!({ "text": text }));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(line("a").as_bytes()).unwrap();
    fs::write(dir.path().join("a.jsonl.gz"), gzip.finish().unwrap()).unwrap();
    fs::write(dir.path().join("b.json"), format!("[{},{}]", line("b"), line("c"))).unwrap();
    fs::write(dir.path().join("README.md"), "about").unwrap();
    let golden = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet").join(name);
    fs::copy(golden("snappy-required.parquet"), dir.path().join("c.parquet")).unwrap();
    let read = |path: PathBuf| read(&[Origin::Path(path)], &encoder(CHATML), &settings(), &mut |_| {});
    let error = read(dir.path().into()).unwrap_err().to_string();
    assert!(error.contains("c.parquet`, row 0: `text` is empty"), "{error}");
    fs::remove_file(dir.path().join("c.parquet")).unwrap();
    let found = read(dir.path().into()).unwrap();
    let texts: Vec<String> = found.examples.iter().map(marked).collect();
    assert_eq!(texts, ["«<s>a</s>»", "«<s>b</s>»", "«<s>c</s>»"]);
    assert!(found.examples[2].origin.ends_with("b.json`, element 2"), "{}", found.examples[2].origin);
    assert_eq!(marked(&read(dir.path().join("README.md")).unwrap().examples[0]), "«<s>about</s>»");
    // Row 0 of this file has no messages.
    let error = read(golden("messages.parquet")).unwrap_err().to_string();
    assert!(error.contains("messages.parquet`, row 0: there is no example, only an empty object"), "{error}");
    let error = read(golden("brotli.parquet")).unwrap_err().to_string();
    assert!(error.contains("brotli.parquet`") && error.contains("compression is not supported"), "{error}");
}

#[test]
fn preference_pairs_of_every_form_share_their_prompt() {
    let user = json!({ "role": "user", "content": "Hi" });
    let says = |text: &str| json!({ "role": "assistant", "content": text });
    let lines = [
        json!({ "prompt": [user], "chosen": [says("Yes")], "rejected": [says("No")] }),
        json!({ "messages": [user], "chosen": says("Yes"), "rejected": "No" }),
        json!({ "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
        json!({ "prompt": [user, says("A"), user], "chosen": [says("Yes")], "rejected": [says("No")] }),
        json!({ "prompt": "Hi", "chosen": " Yes", "rejected": " No" }),
        // As in UltraFeedback: the prompt also as text, and `messages` repeats the chosen conversation.
        json!({ "prompt": "Hi", "messages": [user, says("Yes")], "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
        json!({ "messages": [user, says("Yes")], "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
        json!({ "prompt": [user], "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
        json!({ "prompt": "Hi", "chosen": [says("Yes")], "rejected": [says("No")] }),
        json!({ "prompt": [{ "role": "user", "content": "Hi" }], "chosen": [user, says("Yes")], "rejected": says("No") }),
    ];
    let dir = tempfile::tempdir().unwrap();
    let read = |lines: &[Value]| read_preferences(&file(dir.path(), lines), &encoder(CHATML), &settings(), &mut |_| {});
    let found = read(&lines).unwrap().examples;
    let start = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    for pair in found[..3].iter().chain(&found[5..]) {
        assert_eq!(marked(&pair.chosen), format!("{start}«Yes<|im_end|>\n»"));
        assert_eq!(marked(&pair.rejected), format!("{start}«No<|im_end|>\n»"));
    }
    assert_eq!(marked(&found[3].chosen), format!("{start}A<|im_end|>\n{start}«Yes<|im_end|>\n»"));
    assert_eq!(
        (marked(&found[4].chosen), marked(&found[4].rejected)),
        ("<s>Hi« Yes</s>»".into(), "<s>Hi« No</s>»".into())
    );
    for (line, message) in [
        (json!({ "chosen": "a", "rejected": "b" }), "but there is no `prompt`"),
        (json!({ "prompt": "a", "chosen": "b" }), "there is no `rejected`, only `prompt`, `chosen`"),
        (
            json!({ "prompt": "a", "chosen": "b", "rejected": [says("c")] }),
            "`prompt` and `rejected` are of different kinds",
        ),
        (
            json!({ "prompt": [user], "chosen": [user], "rejected": [user] }),
            "`chosen` has only the messages of `prompt`",
        ),
        (
            json!({ "prompt": "Ho", "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
            "`chosen` and `rejected` do not begin with the `prompt` \"Ho\"",
        ),
        (
            json!({ "prompt": [says("Ho"), user], "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
            "`chosen` begins with a message of `user`, but not with those of `prompt`",
        ),
        (
            json!({ "prompt": [user], "chosen": [says("a")], "rejected": "a".repeat(5000) }),
            "line 2, `rejected`: it has ",
        ),
    ] {
        let error = read(&[lines[0].clone(), line]).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("line 2") && error.contains("\nhint: "), "{error}");
    }
}

#[test]
fn describe_and_inspect_json_show_the_trained_tokens() {
    let example = examples(INST, &[conversation(&[("user", "é"), ("assistant", "\u{1b}[0m日")])]).unwrap().remove(0);
    let shown = describe(&example, &tokenizer(), Style::Brackets);
    let (counts, tokens) = shown.split_once('\n').unwrap();
    assert!(counts.contains("data.jsonl`, line 1: ") && counts.ends_with(" trained, 1 BOS, 1 EOS"), "{counts}");
    assert!(tokens.starts_with("<s>[INST] é [/INST]"), "{tokens}");
    assert!(tokens.contains("[\\u{1b}]") && tokens.contains("[日]") && tokens.ends_with("[</s>]\n"), "{tokens}");
    let colored = describe(&example, &tokenizer(), Style::Color);
    assert!(colored.contains("日\u{1b}[0m") && !colored.contains("\u{1b}[0m日"), "{colored}");
    let json = inspect_json(&example, &tokenizer());
    assert_eq!(json["ids"].as_array().unwrap().len(), json["tokens"].as_u64().unwrap() as usize);
    assert_eq!((&json["bos"], &json["eos"]), (&json!(1), &json!(1)));
    let n_trained = json["trained"].as_array().unwrap().iter().filter(|trained| **trained == json!(true)).count();
    assert_eq!(json["trained_tokens"], json!(n_trained));
}
