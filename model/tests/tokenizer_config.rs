//! What stands beside `tokenizer.json` against `transformers` (golden/tokenizers, made by the script beside it), words with a
//! role, and tokenizers on which the library panics.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use hearth_model::{
    error::Error,
    text::{
        chat::{ChatTemplate, Message, RenderContext},
        tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Golden {
    texts: Vec<String>,
    base: Map<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    /// Members that differ from the base.
    parts: Map<String, Value>,
    config: Value,
    map: Option<Value>,
    /// For each text, the ids with the tokens that are added to it, and without.
    ids: Vec<[Vec<u32>; 2]>,
}

fn golden() -> Golden {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizers/tokenizers.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The base with these members.
fn with_parts(base: &Map<String, Value>, parts: Map<String, Value>) -> Value {
    let mut json = base.clone();
    for (name, value) in parts {
        match name.as_str() {
            "dropout" | "merges" | "continuing_subword_prefix" => json["model"][name] = value,
            _ => {
                json.insert(name, value);
            }
        }
    }
    json.into()
}

fn open(tokenizer: &Value, config: &Value, map: Option<&Value>) -> Result<Tokenizer, Error> {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        ("tokenizer.json", Some(tokenizer)),
        ("tokenizer_config.json", Some(config)),
        ("special_tokens_map.json", map),
    ];
    for (name, content) in files.into_iter().filter_map(|(name, content)| Some((name, content?))) {
        fs::write(dir.path().join(name), content.to_string()).unwrap();
    }
    Tokenizer::from_dir(dir.path())
}

#[test]
fn tokenizer_config_changes_ids_as_in_transformers() {
    let Golden { texts, base, cases } = golden();
    for Case { name, parts, config, map, ids } in cases {
        let tokenizer = open(&with_parts(&base, parts), &config, map.as_ref()).unwrap();
        for (text, [with, without]) in texts.iter().zip(ids) {
            assert_eq!(tokenizer.encode(text, EncodeOptions::PROMPT).unwrap(), with, "{name}: {text:?}");
            assert_eq!(tokenizer.encode(text, EncodeOptions::RENDERED).unwrap(), without, "{name}: {text:?}");
        }
    }
}

#[test]
fn ordinary_words_with_a_role_stay_visible_and_can_be_written() {
    let base = with_parts(&golden().base, Map::new());
    let hidden = DecodeOptions { skip_special_tokens: true };
    for config in [
        json!({ "pad_token": "!" }),
        json!({ "pad_token": "Ċ" }),
        json!({ "unk_token": "hello" }),
        json!({ "bos_token": "w", "eos_token": "Ċ" }),
        json!({ "pad_token": { "content": "!", "special": true } }),
    ] {
        let tokenizer = open(&base, &config, None).unwrap();
        let text = "hello world!!\n\n!";
        for options in [EncodeOptions::TEXT, EncodeOptions::PROMPT] {
            let ids = tokenizer.encode(text, options).unwrap();
            assert_eq!(tokenizer.decode(&ids, hidden), text, "{config}");
        }
        let template = ChatTemplate::new("<s>{{ messages[0].content }}</s>", Path::new("chat_template.jinja")).unwrap();
        let ids = template.encode(&tokenizer, &[Message::new("user", text)], &RenderContext::new(&tokenizer)).unwrap();
        assert_eq!(tokenizer.decode(&ids, hidden), text, "{config}");
    }
    let tokenizer = open(&base, &json!({ "pad_token": "<a>", "eos_token": "</s>" }), None).unwrap();
    let special: Vec<String> = tokenizer.special_tokens().into_iter().map(|(_, content)| content).collect();
    assert_eq!(special, ["<s>", "</s>", "<a>"]);
}

/// A map of characters with this trie and these texts, in base64.
fn characters_map(length: u32, trie: &[u32], texts: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let trie = trie.iter().flat_map(|unit| unit.to_le_bytes());
    let bytes: Vec<u8> = length.to_le_bytes().into_iter().chain(trie).chain(texts.iter().copied()).collect();
    let group = |bytes: &[u8]| {
        let bits = bytes.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - bytes.len()));
        let digits = (0..4).map(|at| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]));
        digits.take(bytes.len() + 1).chain(std::iter::repeat_n('=', 3 - bytes.len())).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

#[test]
fn tokenizers_on_which_the_library_panics_are_refused_by_name() {
    let base = golden().base;
    let merges = |merge: Value| {
        let mut merges = base["model"]["merges"].as_array().unwrap().clone();
        merges.push(merge);
        json!({ "merges": merges })
    };
    let long = "hello".repeat(50);
    let template = |piece: Value| {
        let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
        json!({ "post_processor": { "type": "TemplateProcessing", "single": [piece, text], "pair": [], "special_tokens": {} } })
    };
    let normalizer = |normalizer: Value| json!({ "normalizer": { "type": "Sequence", "normalizers": [normalizer] } });
    let map = |map: String| normalizer(json!({ "type": "Precompiled", "precompiled_charsmap": map }));
    let replace = |pattern: Value| normalizer(json!({ "type": "Replace", "pattern": pattern, "content": "x" }));
    for (parts, words) in [
        (merges(json!(["h", "!"])), ["merge of `h` and `!`", "`h!`"]),
        (merges(json!([long, "h"])), ["merge of", "vocabulary lacks"]),
        (merges(json!("h !")), ["merge of `h` and `!`", "`h!`"]),
        (json!({ "continuing_subword_prefix": "####" }), ["lacks the prefix", "####"]),
        (replace(json!({ "String": "" })), ["`Replace`", "empty"]),
        (replace(json!({ "Regex": "" })), ["`Replace`", "empty"]),
        (replace(json!({ "Regex": "q*" })), ["`tokenizers` library", "tokenizer.json"]),
        (normalizer(json!({ "type": "Prepend", "prepend": "" })), ["`Prepend`", "empty"]),
        (json!({ "pre_tokenizer": { "type": "FixedLength", "length": 0 } }), ["`FixedLength`", "at least 1"]),
        (map(String::new()), ["`precompiled_charsmap`", "cut short"]),
        (map("#".into()), ["`precompiled_charsmap`", "base64"]),
        (map(characters_map(u32::MAX, &[0], b"")), ["`precompiled_charsmap`", "cut short"]),
        (map(characters_map(16, &[u32::MAX, u32::MAX, 0x8000_0001, 0x100], b"")), ["`precompiled_charsmap`", "trie"]),
        (map(characters_map(8, &[0, 0], b"\xff")), ["`precompiled_charsmap`", "UTF-8"]),
        (template(json!({ "SpecialToken": { "id": "<x>", "type_id": 0 } })), ["`TemplateProcessing`", "`<x>`"]),
        (template(json!({ "Sequence": { "id": "B", "type_id": 0 } })), ["`TemplateProcessing`", "`B`"]),
    ] {
        let error =
            open(&with_parts(&base, parts.as_object().unwrap().clone()), &json!({}), None).map(drop).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, Error::File { .. }), "{parts}: {error:?}");
        assert!(words.iter().all(|word| message.contains(word)) && message.contains("hint:"), "{parts}: {message}");
    }
}

/// A normalizer that only fails on a text which no tokenizer is tried with.
#[test]
fn library_panic_while_a_text_is_encoded_is_an_error_and_the_tokenizer_works_on() {
    let parts = json!({ "normalizer": { "type": "Replace", "pattern": { "Regex": "(?=edd)" }, "content": "x" } });
    let tokenizer = open(&with_parts(&golden().base, parts.as_object().unwrap().clone()), &json!({}), None).unwrap();
    for _ in 0..3 {
        let error = tokenizer.encode("edd hello", EncodeOptions::TEXT).unwrap_err();
        assert!(matches!(&error, Error::Tokenizer { what, .. } if what.contains("fails on this text")), "{error:?}");
        assert!(!tokenizer.encode("hello", EncodeOptions::TEXT).unwrap().is_empty());
    }
}
