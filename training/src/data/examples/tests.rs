#![expect(clippy::unwrap_used, reason = "tests")]

mod as_written;
mod files;

use std::{fs, path::Path};

use hearth_model::text::{
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
    let special =
        SpecialTokens { eos: Some("</s>".into()), bos: Some("<s>".into()), has_chat: true, ..SpecialTokens::default() };
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
        (refuse(CHATML, json!({ "prompt": "a", "completion": "b", "label": 0 })), "`label` is `0`, which says that"),
        (refuse(CHATML, json!({ "instruction": "a", "output": "b", "label": "False" })), "`label` is `False`, which"),
        (
            refuse(CHATML, with(1, "role", json!("Assistant"))),
            "`messages[1].role` is `Assistant`, and roles are written",
        ),
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
