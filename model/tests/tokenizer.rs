//! Text to ids and back: with a throw-away byte-level BPE, with SmolLM2's tokenizer, at the level of characters, and
//! in the manner of SentencePiece.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::print_stderr, reason = "a skipped test says so")]

use std::{fs, path::Path, sync::LazyLock};

use hearth_model::{
    error::Error,
    text::tokenizer::{DecodeOptions, Detokenizer, EncodeOptions, SpecialToken, Tokenizer},
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokenizers::{
    AddedToken, Tokenizer as LibraryTokenizer,
    models::{
        TrainerWrapper,
        bpe::{BPE, BpeTrainer},
    },
    pre_tokenizers::byte_level::ByteLevel,
};

const PLAIN: DecodeOptions = DecodeOptions { skip_special_tokens: false };
const SKIP: DecodeOptions = DecodeOptions { skip_special_tokens: true };

/// A tokenizer as Hearth reads it, and as the library does, which is the oracle.
struct Pair {
    ours: Tokenizer,
    library: LibraryTokenizer,
}

impl Pair {
    fn from_json(json: &str) -> Self {
        Self { ours: from_json(json).unwrap(), library: json.parse().unwrap() }
    }

    /// The characters of `text` that the vocabulary covers: SmolLM2's lacks 21 of the 256 bytes, and the library drops them.
    fn covered(&self, text: &str) -> String {
        let is_covered = |character: &char| {
            let encoding = self.library.encode(character.to_string(), false).unwrap();
            self.library.decode(encoding.get_ids(), false).unwrap() == character.to_string()
        };
        text.chars().filter(is_covered).collect()
    }
}

fn from_json(json: &str) -> Result<Tokenizer, Error> {
    Tokenizer::from_json(json.as_bytes(), None, Path::new("dir/tokenizer.json"))
}

/// A byte-level BPE trained on a few lines, with the special tokens `<|end|>` and `<|user|>`.
static BYTE_LEVEL: LazyLock<Pair> = LazyLock::new(|| {
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(400)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from("<|end|>", true), AddedToken::from("<|user|>", true)])
        .build()
        .into();
    let mut library = LibraryTokenizer::new(BPE::default());
    let byte_level = ByteLevel::default().add_prefix_space(false);
    library.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
    let lines = ["the end of the user story", "Grüße, naïve café: 你好你好 🙂🙂", "user end the <|end| |user|>"];
    library.train(&mut trainer, lines.into_iter().cycle().take(30).map(str::to_owned)).unwrap();
    Pair::from_json(&library.to_string(false).unwrap())
});

static SMOLLM2: LazyLock<Option<Pair>> = LazyLock::new(|| {
    let Some(shared) = std::env::var_os("HEARTH_SHARED") else {
        eprintln!("skipped: set HEARTH_SHARED=(the shared folder) to run with SmolLM2's tokenizer");
        return None;
    };
    let dir = Path::new(&shared).join("data/smollm2");
    let library = LibraryTokenizer::from_file(dir.join("tokenizer.json")).unwrap();
    Some(Pair { ours: Tokenizer::from_dir(&dir).unwrap(), library })
});

fn byte_level_pairs() -> impl Iterator<Item = &'static Pair> {
    std::iter::once(&*BYTE_LEVEL).chain(SMOLLM2.iter())
}

fn character_json(characters: &str, unk: Option<&str>) -> String {
    let mut vocab: Map<String, Value> =
        characters.chars().enumerate().map(|(id, character)| (character.to_string(), id.into())).collect();
    if let Some(unk) = unk {
        vocab.insert(unk.into(), vocab.len().into());
    }
    json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": false},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": unk.unwrap_or("<unk>")},
    })
    .to_string()
}

/// Llama 2's form: `▁` for spaces, one put in front and one taken off, bytes for what the vocabulary lacks.
static SENTENCE_PIECE: LazyLock<Pair> = LazyLock::new(|| {
    let mut vocab = json!([["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0]]);
    let pieces = vocab.as_array_mut().unwrap();
    pieces.extend((0..=255).map(|byte| json!([format!("<0x{byte:02X}>"), -20.0])));
    let letters = ["▁", "e", "t", "h", "s", "<", ">", "/", "é", "▁the", "the", "he", "▁▁", "\n"];
    pieces.extend(letters.map(|piece| json!([piece, -4.0 - 1.0 / piece.len() as f32])));
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    };
    let json = json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": true},
    });
    Pair::from_json(&json.to_string())
});

fn stream(detokenizer: &mut Detokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| detokenizer.push(id)).collect()
}

/// Strings that tokenizers find hard: any character, and pieces of special tokens.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<String>(),
        any::<char>().prop_map(String::from),
        "[ \n\t\r]{1,4}",
        "[a-z0-9' ]{1,12}",
        Just("<|end|>".to_owned()),
        Just("<|im_end|>".to_owned()),
        Just("<|".to_owned()),
        Just("▁é🙂".to_owned()),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn byte_level_tokenizer_round_trips_every_text(text in any_text()) {
        for pair @ Pair { ours, .. } in byte_level_pairs() {
            let text = pair.covered(&text);
            for options in [EncodeOptions::TEXT, EncodeOptions::PROMPT, EncodeOptions::RENDERED] {
                let ids = ours.encode(&text, options).unwrap();
                prop_assert_eq!(&ours.decode(&ids, PLAIN), &text);
            }
        }
    }

    #[test]
    fn encoding_matches_the_tokenizers_library(text in any_text()) {
        for pair @ Pair { ours, library } in byte_level_pairs().chain([&*SENTENCE_PIECE]) {
            let text = pair.covered(&text);
            for add_special_tokens in [false, true] {
                let options = EncodeOptions { add_special_tokens, parse_special_tokens: true };
                let expected = library.encode(text.as_str(), add_special_tokens).unwrap();
                prop_assert_eq!(&ours.encode(&text, options).unwrap(), expected.get_ids());
            }
        }
    }

    #[test]
    fn special_token_strings_in_text_stay_text(text in any_text()) {
        for pair @ Pair { ours, .. } in byte_level_pairs() {
            let text = pair.covered(&text);
            let ids = ours.encode(&text, EncodeOptions::TEXT).unwrap();
            prop_assert_eq!(&ours.decode(&ids, SKIP), &text);
            prop_assert!(!ids.iter().any(|&id| ours.is_special(id)));
        }
    }

    /// Random ids are mostly invalid UTF-8.
    #[test]
    fn detokenizer_deltas_concatenate_to_the_decoded_text(ids in prop::collection::vec(0..500_u32, 0..60), skip_special_tokens: bool) {
        let options = DecodeOptions { skip_special_tokens };
        for Pair { ours, library } in byte_level_pairs() {
            let mut detokenizer = Detokenizer::new(ours, options);
            let mut text = stream(&mut detokenizer, &ids).concat();
            text.push_str(&detokenizer.finish());
            prop_assert_eq!(&text, &ours.decode(&ids, options));
            prop_assert_eq!(&text, &library.decode(&ids, skip_special_tokens).unwrap());
        }
    }

    /// A character comes with the token that ends it: never U+FFFD before, never later.
    #[test]
    fn detokenizer_holds_back_only_incomplete_characters(text in any_text()) {
        prop_assume!(!text.contains(char::REPLACEMENT_CHARACTER));
        for pair @ Pair { ours, .. } in byte_level_pairs() {
            let ids = ours.encode(&pair.covered(&text), EncodeOptions::TEXT).unwrap();
            let mut detokenizer = Detokenizer::new(ours, PLAIN);
            let (mut given, mut bytes) = (String::new(), Vec::new());
            for &id in &ids {
                bytes.extend(ours.token_bytes(id));
                given.push_str(&detokenizer.push(id));
                let whole = str::from_utf8(&bytes).map_or_else(|error| error.valid_up_to(), str::len);
                prop_assert_eq!(given.as_bytes(), &bytes[..whole]);
            }
            prop_assert_eq!(detokenizer.finish(), "");
        }
    }

    #[test]
    fn detokenizer_with_prefix_continues_after_the_prompt(
        ids in prop::collection::vec(0..270_u32, 1..40), split in any::<prop::sample::Index>(), skip_special_tokens: bool,
    ) {
        let options = DecodeOptions { skip_special_tokens };
        for Pair { ours, .. } in [&*BYTE_LEVEL, &*SENTENCE_PIECE] {
            let (prompt, rest) = ids.split_at(split.index(ids.len()));
            let mut whole = Detokenizer::new(ours, options);
            let before = stream(&mut whole, prompt).concat();
            let mut after = Detokenizer::new(ours, options).with_prefix(prompt);
            let text = before + &stream(&mut after, rest).concat() + &after.finish();
            prop_assert_eq!(text, ours.decode(&ids, options));
        }
    }

    #[test]
    fn sentencepiece_tokenizer_round_trips_text(text in "[ theé</s>\n你🙂]{0,20}") {
        let Pair { ours, library } = &*SENTENCE_PIECE;
        let ids = ours.encode(&text, EncodeOptions::TEXT).unwrap();
        prop_assert!(!ids.iter().any(|&id| ours.is_special(id)));
        prop_assert_eq!(&ours.decode(&ids, SKIP), &text);
        prop_assert_eq!(&library.decode(&ids, true).unwrap(), &text);
    }

    #[test]
    fn character_level_tokenizer_round_trips_text(text in "[abc é\n\r🙂]{0,30}") {
        let tokenizer = from_json(&character_json("abc é\n\r🙂", None)).unwrap();
        let ids = tokenizer.encode(&text, EncodeOptions::PROMPT).unwrap();
        prop_assert_eq!(ids.len(), text.chars().count());
        prop_assert_eq!(tokenizer.decode(&ids, PLAIN), text);
    }
}

/// A tokenizer with a special token for each byte, for characters outside its vocabulary.
#[test]
fn special_byte_tokens_encode_characters_as_in_the_library() {
    let byte = |number: u32| format!("<0x{number:02X}>");
    let mut vocab: Map<String, Value> = (0..256).map(|number| (byte(number), number.into())).collect();
    vocab.insert("a".to_owned(), 256.into());
    let added: Vec<Value> = (0..256)
        .map(|number| {
            json!({
                "id": number, "content": byte(number), "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [{ "type": "ByteFallback" }, { "type": "Fuse" }] },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "vocab": vocab, "merges": [],
        },
    });
    let Pair { ours, library } = Pair::from_json(&json.to_string());
    for text in ["aéa", "\n", "🙂\u{0}é", ""] {
        let ids = ours.encode(text, EncodeOptions::TEXT).unwrap();
        assert_eq!(ids, library.encode(text, false).unwrap().get_ids(), "{text:?}");
        assert_eq!(ids.len(), text.len(), "{text:?}");
    }
}

#[test]
fn character_level_tokenizer_names_unknown_characters() {
    let tokenizer = from_json(&character_json("abc\n ", None)).unwrap();
    let message = |text| tokenizer.encode(text, EncodeOptions::TEXT).unwrap_err().to_string();
    assert!(
        message("abé ü").starts_with("tokenizer: the character `é` (U+00E9) is not in the vocabulary of 5 tokens"),
        "{}",
        message("abé ü")
    );
    assert!(message("a\t").contains("`\\t` (U+0009)"));
    assert!(message("🙂").contains("`🙂` (U+1F642)"));
    let with_unk = from_json(&character_json("abc", Some("<?>"))).unwrap();
    assert_eq!(with_unk.encode("aéb", EncodeOptions::TEXT).unwrap(), [0, 3, 1], "an unknown token stands for it");
}

/// The library drops such characters silently.
#[test]
fn byte_level_tokenizer_with_missing_bytes_names_the_character() {
    let mut json: Value = serde_json::from_str(&BYTE_LEVEL.library.to_string(false).unwrap()).unwrap();
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    vocab.retain(|token, _| !token.contains('©'));
    let vocab = vocab.clone();
    let is_known = |merge: &Value| {
        let (left, right) = (merge[0].as_str().unwrap(), merge[1].as_str().unwrap());
        [left, right, &format!("{left}{right}")].into_iter().all(|token| vocab.contains_key(token))
    };
    json["model"]["merges"].as_array_mut().unwrap().retain(is_known);
    let tokenizer = from_json(&json.to_string()).unwrap();
    assert!(tokenizer.encode("cafe ü", EncodeOptions::TEXT).is_ok());
    let message = tokenizer.encode("the café", EncodeOptions::TEXT).unwrap_err().to_string();
    assert!(message.contains("`é` (U+00E9)"), "{message}");
}

#[test]
fn smollm2_tokenizer_rejects_a_missing_byte_by_name() {
    let Some(Pair { ours, .. }) = &*SMOLLM2 else { return };
    let message = ours.encode("a \u{4} b", EncodeOptions::TEXT).unwrap_err().to_string();
    assert!(message.contains("`\\u{4}` (U+0004)"), "{message}");
    assert_eq!(ours.vocab_size(), 49_152);
    assert_eq!(ours.eos().map(|token| token.id), Some(2));
}

#[test]
fn special_tokens_are_parsed_only_if_requested() {
    let tokenizer = &BYTE_LEVEL.ours;
    let end = tokenizer.token_id("<|end|>").unwrap();
    let parsed = tokenizer.encode("the<|end|>", EncodeOptions::RENDERED).unwrap();
    let text = tokenizer.encode("the<|end|>", EncodeOptions::TEXT).unwrap();
    assert_eq!(parsed.last(), Some(&end));
    assert!(!text.contains(&end) && text.len() > parsed.len());
    assert_eq!(tokenizer.decode(&parsed, SKIP), "the");
    assert_eq!(tokenizer.decode(&parsed, PLAIN), "the<|end|>");
    assert_eq!(tokenizer.decode(&text, SKIP), "the<|end|>");
    assert_eq!(tokenizer.special_tokens(), [(0, "<|end|>".to_owned()), (1, "<|user|>".to_owned())]);
    assert_eq!(tokenizer.token(end).as_deref(), Some("<|end|>"));
    assert_eq!(tokenizer.token_bytes(end), b"<|end|>");
}

/// Unigram models hold control tokens as ordinary pieces: the text `</s>` would otherwise end the document.
#[test]
fn unigram_control_pieces_in_text_are_not_encoded_as_special() {
    let tokenizer = &SENTENCE_PIECE.ours;
    let ids = tokenizer.encode("the</s><s>", EncodeOptions::TEXT).unwrap();
    assert!(!ids.iter().any(|&id| tokenizer.is_special(id)), "{ids:?}");
    assert_eq!(tokenizer.decode(&ids, SKIP), "the</s><s>");
    let parsed = tokenizer.encode("the</s>", EncodeOptions::PROMPT).unwrap();
    assert_eq!((parsed[0], parsed[parsed.len() - 1]), (1, 2), "bos added, eos parsed");
}

#[test]
fn sentencepiece_detokenizer_drops_only_the_very_first_space() {
    let tokenizer = &SENTENCE_PIECE.ours;
    let the = tokenizer.token_id("▁the").unwrap();
    assert_eq!(tokenizer.token_bytes(the), b" the");
    let mut detokenizer = Detokenizer::new(tokenizer, PLAIN);
    assert_eq!(stream(&mut detokenizer, &[the, the]), ["the", " the"]);
    let mut after_prompt = Detokenizer::new(tokenizer, PLAIN).with_prefix(&[the]);
    assert_eq!(stream(&mut after_prompt, &[the]), [" the"]);
    let mut after_bos = Detokenizer::new(tokenizer, SKIP).with_prefix(&[1]);
    assert_eq!(stream(&mut after_bos, &[the]), ["the"]);
}

#[test]
fn detokenizer_replaces_only_the_invalid_bytes() {
    let tokenizer = &SENTENCE_PIECE.ours;
    let byte = |byte: u8| tokenizer.token_id(&format!("<0x{byte:02X}>")).unwrap();
    let ids = [0xC3, 0xA9, 0x80, 0xE5, 0x8F].map(byte);
    let mut detokenizer = Detokenizer::new(tokenizer, PLAIN);
    assert_eq!(stream(&mut detokenizer, &ids), ["", "é", "\u{FFFD}", "", ""]);
    assert_eq!(detokenizer.finish(), "\u{FFFD}");
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn metaspace_and_absent_decoder_decode_like_the_library() {
    let with_decoder = |decoder: Value| {
        let mut json: Value = serde_json::from_str(&character_json("ab▁", None)).unwrap();
        json["decoder"] = decoder;
        Pair::from_json(&json.to_string())
    };
    let decoders = [
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true}),
        Value::Null,
    ];
    for decoder in decoders {
        let Pair { ours, library } = with_decoder(decoder);
        for ids in [[2, 0, 2, 1].as_slice(), &[0, 2, 2, 1], &[2], &[]] {
            assert_eq!(ours.decode(ids, PLAIN), library.decode(ids, false).unwrap(), "{ids:?}");
        }
    }
}

#[test]
fn bos_eos_and_other_roles_are_read_from_tokenizer_config() {
    let json = BYTE_LEVEL.library.to_string(false).unwrap();
    let read =
        |config: &str| Tokenizer::from_json(json.as_bytes(), Some(config.as_bytes()), Path::new("dir/tokenizer.json"));
    let config = r#"{"bos_token": "<|user|>", "eos_token": {"content": "<|end|>", "lstrip": false}, "unk_token": null,
                     "pad_token": "[absent]", "additional_special_tokens": ["the"]}"#;
    let tokenizer = read(config).unwrap();
    assert_eq!(tokenizer.bos(), Some(SpecialToken { id: 1, content: "<|user|>".into() }));
    assert_eq!(tokenizer.eos(), Some(SpecialToken { id: 0, content: "<|end|>".into() }));
    let n = BYTE_LEVEL.ours.vocab_size();
    let absent = SpecialToken { id: n as u32, content: "[absent]".into() };
    assert_eq!((tokenizer.pad(), tokenizer.unk()), (Some(absent), None), "added, as in transformers");
    assert!(tokenizer.is_special(tokenizer.token_id("the").unwrap()), "named special, so special");
    assert_eq!(tokenizer.vocab_size(), n + 1);

    let message = read("{").unwrap_err().to_string();
    assert!(message.contains("`dir/tokenizer_config.json`: is not JSON"), "{message}");
}

#[test]
fn token_roles_are_read_from_special_tokens_map_json() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, json: &str| fs::write(dir.path().join(name), json).unwrap();
    write("tokenizer.json", &character_json("ab", Some("<unk>")));
    write("special_tokens_map.json", r#"{"bos_token": {"content": "a"}, "eos_token": "b"}"#);
    let roles = || {
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        [tokenizer.bos(), tokenizer.eos()].map(|token| token.map(|token| token.content))
    };
    assert_eq!(roles(), [Some("a".into()), Some("b".into())]);
    write("tokenizer_config.json", r#"{"bos_token": "b", "eos_token": null}"#);
    assert_eq!(roles(), [Some("a".into()), Some("b".into())], "the map counts, as in transformers");
    write("tokenizer_config.json", r#"{"bos_token": "b", "added_tokens_decoder": {}}"#);
    assert_eq!(roles(), [Some("b".into()), None]);
    write("tokenizer_config.json", "{}");
    write("special_tokens_map.json", "{");
    let message = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(message.contains("special_tokens_map.json`: is not JSON"), "{message}");
}

#[test]
fn unknown_token_ids_decode_to_empty_text() {
    let tokenizer = &BYTE_LEVEL.ours;
    assert_eq!(tokenizer.decode(&[4_000_000_000, 400], PLAIN), "");
    assert_eq!((tokenizer.token(400), tokenizer.token_bytes(400)), (None, vec![]));
    assert_eq!(tokenizer.vocab_size(), BYTE_LEVEL.library.get_vocab_size(true));
}

/// Truncation and padding are for training batches; some files have them nevertheless.
#[test]
fn truncation_and_padding_in_tokenizer_json_are_ignored() {
    let mut json: Value = serde_json::from_str(&BYTE_LEVEL.library.to_string(false).unwrap()).unwrap();
    json["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
                             "pad_id": 0, "pad_type_id": 0, "pad_token": "<|end|>"});
    let tokenizer = from_json(&json.to_string()).unwrap();
    let text = "the end of the user story";
    let ids = tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
    assert_eq!(tokenizer.decode(&ids, PLAIN), text);
}

#[test]
fn unusable_tokenizer_json_is_rejected_with_a_hint() {
    let message = |json: &str| from_json(json).unwrap_err().to_string();
    for (json, expected) in [
        ("not json", "`dir/tokenizer.json`: is not JSON"),
        (r#"{"model": {"type": "BPE", "vocab": {"#, "hint: the file may be truncated"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00", "is a Git LFS pointer"),
        ("{}", "missing field `model`"),
        (
            r#"{"version": "1.0", "added_tokens": [], "model": {"type": "Strange"}}"#,
            "the `tokenizers` library cannot read it",
        ),
    ] {
        let message = message(json);
        assert!(message.contains(expected) && message.contains("hint: "), "{message}");
    }
    let with_decoder = |decoder: Value| {
        let mut json: Value = serde_json::from_str(&character_json("ab", None)).unwrap();
        json["decoder"] = decoder;
        message(&json.to_string())
    };
    let ctc = json!({"type": "CTC", "pad_token": "x", "word_delimiter_token": "y", "cleanup": true});
    assert!(with_decoder(ctc).contains("`CTC`"));
    let regex = json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""});
    assert!(with_decoder(regex).contains("regex `a+`"));
}

#[test]
fn invalid_token_ids_in_tokenizer_json_are_rejected() {
    let change = |change: &dyn Fn(&mut Value)| {
        let mut json: Value = serde_json::from_str(&character_json("ab", None)).unwrap();
        change(&mut json);
        from_json(&json.to_string()).unwrap_err().to_string()
    };
    let moved = change(&|json| {
        json["added_tokens"] = json!([{"id": 9, "content": "<x>", "special": true, "normalized": false,
                                       "single_word": false, "lstrip": false, "rstrip": false}]);
    });
    assert!(moved.contains("added token `<x>` has the id 9"), "{moved}");
    let huge = change(&|json| json["model"]["vocab"]["a"] = 4_000_000_000_u32.into());
    assert!(huge.contains("past the largest allowed"), "{huge}");
    let twice = change(&|json| json["model"]["vocab"]["b"] = 0.into());
    assert!(twice.contains("share the id 0"), "{twice}");
}

#[test]
fn missing_tokenizer_json_is_reported_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_dir(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Io { .. }));
    let message = error.to_string();
    assert!(message.contains("tokenizer.json`") && message.contains("a model dir has"), "{message}");

    fs::write(dir.path().join("vocab.json"), "").unwrap();
    let message = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(message.contains("has `vocab.json` instead"), "{message}");
    fs::write(dir.path().join("tokenizer.model"), "").unwrap();
    let message = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(
        message.contains("tokenizer.model`: is no SentencePiece model") && message.contains("no pieces"),
        "{message}"
    );

    fs::write(dir.path().join("tokenizer.json"), BYTE_LEVEL.library.to_string(false).unwrap()).unwrap();
    assert!(Tokenizer::from_dir(dir.path()).is_ok(), "the configuration may be absent");
}

/// `sentencepiece/make_models.py`: the ids of `transformers`, or of the library `sentencepiece`, which puts a space in front
/// of a text that has one.
#[test]
fn sentencepiece_models_encode_as_the_library_does_and_decode_to_the_text() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sentencepiece");
    for name in ["bpe", "bpe-no-prefix", "unigram", "unigram-trimmed"] {
        let tokenizer = Tokenizer::from_dir(&models.join(name)).unwrap();
        let cases: Value = serde_json::from_slice(&fs::read(models.join(name).join("ids.json")).unwrap()).unwrap();
        for case in cases.as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            // The library does not parse special tokens, and puts a space in front of any text.
            let is_special = name != "bpe" && text.contains("<s>");
            if is_special
                || name == "unigram" && text.starts_with(' ')
                || name == "unigram-trimmed" && text.contains('<')
            {
                continue;
            }
            let found = tokenizer.encode(text, EncodeOptions::RENDERED).unwrap();
            assert_eq!(json!(found), case["ids"], "{name}: {text:?}");
            if name != "unigram-trimmed" && !text.starts_with(' ') {
                assert_eq!(tokenizer.decode(&found, PLAIN), text, "{name}");
            }
            let prompt = tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
            assert_eq!((prompt[0], &prompt[1..]), (1, &found[..]), "{name}: {text:?}");
        }
        let roles = [tokenizer.bos(), tokenizer.eos(), tokenizer.unk()].map(|role| role.unwrap().content.clone());
        assert_eq!(roles, ["<s>", "</s>", "<unk>"]);
    }
}

#[test]
fn damaged_sentencepiece_models_are_rejected_or_opened_without_a_panic() {
    let good = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sentencepiece/bpe/tokenizer.model")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let open = |bytes: &[u8]| {
        fs::write(dir.path().join("tokenizer.model"), bytes).unwrap();
        Tokenizer::from_dir(dir.path()).map(drop).map_err(|error| error.to_string())
    };
    open(&good).unwrap();
    for len in [1, 2, 10, good.len() / 2, good.len() - 1] {
        drop(open(&good[..len]));
    }
    for at in (0..400).chain(good.len() - 200..good.len()) {
        let mut changed = good.clone();
        changed[at] ^= 0xff;
        drop(open(&changed));
    }
    assert!(open(b"IQ== 0\nIg== 1\n").unwrap_err().contains("is no SentencePiece model"), "tiktoken's format");
}
