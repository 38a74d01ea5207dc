//! Tokenizers of GGUF files: those of other programs, and invalid ones.

use std::{fs, path::Path};

use hearth_model::{
    TokenId,
    text::tokenizer::{DecodeOptions, EncodeOptions},
    weights::model_dir,
};
use serde::Deserialize;

use super::{
    file::{Damaged, File, list_value, refused, text_value, texts_value, u32_value},
    gguf, tests,
};

#[derive(Deserialize)]
struct Encoded {
    text: String,
    ids: Vec<TokenId>,
}

/// What the `sentencepiece` library makes of texts by a model of its own (`gguf/make_sentencepiece.py`).
#[test]
fn gguf_sentencepiece_tokenizer_matches_the_library() {
    let tokenizer = model_dir::load_tokenizer(&gguf("sentencepiece")).unwrap();
    let cases = fs::read(tests().join("gguf/sentencepiece.json")).unwrap();
    for Encoded { text, ids } in serde_json::from_slice::<Vec<Encoded>>(&cases).unwrap() {
        assert_eq!(tokenizer.encode(&text, EncodeOptions::TEXT).unwrap(), ids, "{text:?}");
        // Pieces write a space as `▁`.
        assert_eq!(tokenizer.decode(&ids, DecodeOptions::default()), text.replace('▁', " "));
        // In a prompt, `<s>` is a special token.
        if !text.contains("<s") && !text.contains("</s") {
            let prompt = tokenizer.encode(&text, EncodeOptions::PROMPT).unwrap();
            assert_eq!(prompt.split_first(), Some((&1, ids.as_slice())), "a text begins with `bos`: {text:?}");
        }
    }
}

/// The vocabularies that llama.cpp has for its own tests, with texts and the ids that Hugging Face's tokenizers have.
#[test]
fn gguf_tokenizers_of_llama_cpp_families_give_the_expected_ids() {
    let Some(folder) = std::env::var_os("HEARTH_LLAMA_CPP") else {
        println!("skipped: set HEARTH_LLAMA_CPP=DIR to a checkout of llama.cpp to run");
        return;
    };
    let models = Path::new(&folder).join("models");
    let families = [
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "mpt",
        "phi-3",
        "qwen2",
        "refact",
        "starcoder",
    ];
    for family in families {
        let path = models.join(format!("ggml-vocab-{family}.gguf"));
        let tokenizer = model_dir::load_tokenizer(&path).unwrap();
        let read = |ending: &str| fs::read_to_string(path.with_extension(format!("gguf.{ending}"))).unwrap();
        let (texts, ids) = (read("inp"), read("out"));
        let mut ids = ids.lines();
        assert!(ids.clone().count() > 40);
        // The last text has no end of its own.
        for text in texts.split("\n__ggml_vocab_test__\n") {
            let Some(line) = ids.next() else { break };
            let expected: Vec<TokenId> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, EncodeOptions::TEXT).unwrap(), expected, "{family}: {text:?}");
        }
    }
}

#[test]
fn invalid_gguf_tokenizers_are_rejected() {
    refused(&["`tokenizer.ggml.model` is missing"], |file| {
        file.pairs.retain(|(key, _)| *key != "tokenizer.ggml.model");
    });
    refused(&["`tokenizer.ggml.model` is `rwkv`"], |file| file.set("tokenizer.ggml.model", text_value("rwkv")));
    refused(&["`tokenizer.ggml.pre` is `nonsense`", "smollm"], |file| {
        file.set("tokenizer.ggml.pre", text_value("nonsense"));
    });
    refused(&["`tokenizer.ggml.tokens` must be a list of strings"], |file| {
        file.set("tokenizer.ggml.tokens", u32_value(1));
    });
    refused(&["has `a` twice"], |file| file.set("tokenizer.ggml.tokens", texts_value(&["a", "b", "ab", "a"])));
    refused(&["has 3 entries, but there are 4 tokens"], |file| {
        file.set("tokenizer.ggml.token_type", list_value(5, 3, &[1; 12]));
    });
    refused(&["has the type 16843009"], |file| file.set("tokenizer.ggml.token_type", list_value(5, 4, &[1; 16])));
    refused(&["an entry that is not a pair"], |file| file.set("tokenizer.ggml.merges", texts_value(&["ab"])));
    for merge in ["b b", "ab ab", "<|end|> <|end|>"] {
        refused(&["the merge of", "vocabulary lacks"], |file| file.set("tokenizer.ggml.merges", texts_value(&[merge])));
    }
    refused(&["`tokenizer.ggml.bos_token_id` is 4, but there are 4 tokens"], |file| {
        file.set("tokenizer.ggml.bos_token_id", u32_value(4));
    });
    refused(&["`tokenizer.ggml.scores` is missing"], |file| file.set("tokenizer.ggml.model", text_value("llama")));
    refused(&["too long to derive merges"], |file| {
        file.set("tokenizer.ggml.model", text_value("llama"));
        file.set("tokenizer.ggml.scores", list_value(6, 4, &[0; 16]));
        file.set("tokenizer.ggml.tokens", texts_value(&["a", "b", &"x".repeat(1 << 16), "<|end|>"]));
    });
    refused(&["model.gguf", "template"], |file| {
        file.set("tokenizer.chat_template", text_value("{% for %}"));
    });
}

/// Many files give the padding or unknown token the id 0, which is `!` in byte-level vocabularies.
#[test]
fn gguf_words_with_a_role_stay_words() {
    for (token, text) in [("!", "a!!b!"), ("Ċ", "a\n\nb")] {
        for (role, kind) in [("padding", 1), ("unknown", 2), ("bos", 1)] {
            let mut file = File::valid();
            file.set("tokenizer.ggml.tokens", texts_value(&["a", "b", token, "<|end|>"]));
            file.set("tokenizer.ggml.token_type", list_value(5, 4, &[1i32, 1, kind, 3].map(i32::to_le_bytes).concat()));
            file.set("tokenizer.ggml.merges", texts_value(&[]));
            let key = match role {
                "padding" => "tokenizer.ggml.padding_token_id",
                "unknown" => "tokenizer.ggml.unknown_token_id",
                _ => "tokenizer.ggml.bos_token_id",
            };
            file.set(key, u32_value(2));
            let tokenizer = model_dir::load_tokenizer(&Damaged::new(&file.bytes()).path()).unwrap();
            let ids = tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
            assert_eq!(tokenizer.encode(text, EncodeOptions::TEXT).unwrap(), ids, "{role} {token}");
            let hidden = DecodeOptions { skip_special_tokens: true };
            assert_eq!(tokenizer.decode(&ids, hidden), text, "{role} {token}");
        }
    }
}

/// Expected are the ids of Hugging Face's library for the same vocabulary, with Gemma's stages.
#[test]
fn gguf_tokenizer_of_gemma_4_merges_text_with_its_spaces_and_finds_runs_of_line_ends_first() {
    let mut file = File::valid();
    let tokens = [
        "<pad>", "<eos>", "<bos>", "<unk>", "\n", "\n\n", "\n\n\n", "▁", "a", "b", "▁a", "ab", "▁ab", "▁▁", "<turn|>",
        "c",
    ];
    let kinds = [3, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1i32];
    let merges = ["a b", "▁ ab", "▁ a", "▁ ▁", "\n \n", "\n\n \n"];
    file.set("tokenizer.ggml.model", text_value("gemma4"));
    file.pairs.retain(|(key, _)| *key != "tokenizer.ggml.pre");
    file.set("tokenizer.ggml.tokens", texts_value(&tokens));
    file.set("tokenizer.ggml.token_type", list_value(5, 16, &kinds.map(i32::to_le_bytes).concat()));
    file.set("tokenizer.ggml.merges", texts_value(&merges));
    for (role, id) in [("bos", 2), ("eos", 1), ("unknown", 3), ("padding", 0)] {
        file.pairs.push((format!("tokenizer.ggml.{role}_token_id").leak(), u32_value(id)));
    }
    let damaged = Damaged::new(&file.bytes());
    let tokenizer = model_dir::load_tokenizer(&damaged.path()).unwrap();
    for (text, ids) in [
        (" ab a  ab", &[12, 10, 7, 12][..]),
        ("ab\n\n\n\n ab<turn|>a", &[11, 6, 4, 12, 14, 8]),
        ("c\n\ncx", &[15, 5, 15, 3]),
        ("a b ab", &[8, 7, 9, 12]),
    ] {
        let prompt = tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
        assert_eq!(prompt.split_first(), Some((&2, ids)), "{text:?}");
        if !text.contains('x') {
            assert_eq!(tokenizer.decode(ids, DecodeOptions::default()), text);
        }
    }
}
