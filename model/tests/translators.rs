//! Tokenizers of translators, whose pieces and numbers are in two files. `sentencepiece/make_translators.py` makes them.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use hearth_model::text::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
use serde_json::{Value, json};

#[test]
fn tokenizers_of_translators_have_the_ids_and_texts_of_transformers() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sentencepiece");
    for name in ["marian", "m2m100"] {
        let tokenizer = Tokenizer::from_dir(&models.join(name)).unwrap();
        let cases: Value = serde_json::from_slice(&fs::read(models.join(name).join("ids.json")).unwrap()).unwrap();
        assert_reads(name, &tokenizer, &cases);
        assert_eq!(tokenizer.eos().unwrap().content, "</s>");
    }
}

fn assert_reads(name: &str, tokenizer: &Tokenizer, cases: &Value) {
    let mut wrong = Vec::new();
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids = tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
        let decoded = tokenizer.decode(&ids, DecodeOptions { skip_special_tokens: true });
        let expected = case["decoded"].as_str().unwrap();
        if json!(ids) != case["ids"] || decoded.trim() != expected.trim() {
            wrong.push(format!("{text:?}: {ids:?} {decoded:?}, expected {} {expected:?}", case["ids"]));
        }
    }
    assert!(wrong.is_empty(), "{name}: {} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(8)]);
}

#[test]
fn pieces_of_fairseq_alone_have_the_ids_and_texts_of_transformers() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sentencepiece");
    let all: Value = serde_json::from_slice(&fs::read(models.join("fairseq.json")).unwrap()).unwrap();
    for (class, case) in all.as_object().unwrap() {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(models.join("marian/source.spm"), dir.path().join("sentencepiece.bpe.model")).unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), case["config"].to_string()).unwrap();
        let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
        assert_reads(class, &tokenizer, &case["cases"]);
        assert_eq!(tokenizer.pad().unwrap().content, "<pad>");
    }
}

#[test]
fn translators_without_numbers_or_with_unknown_languages_are_rejected_by_name() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sentencepiece");
    let dir = tempfile::tempdir().unwrap();
    let open = || Tokenizer::from_dir(dir.path()).map(drop).unwrap_err().to_string();
    fs::copy(models.join("m2m100/sentencepiece.bpe.model"), dir.path().join("sentencepiece.bpe.model")).unwrap();
    assert!(open().contains("needs `vocab.json` beside it") && open().contains("mBART-50"), "{}", open());
    fs::copy(models.join("m2m100/vocab.json"), dir.path().join("vocab.json")).unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), r#"{"language_codes": "other"}"#).unwrap();
    assert!(open().contains("`language_codes` \"other\""), "{}", open());
    fs::write(dir.path().join("tokenizer_config.json"), r#"{"separate_vocabs": true}"#).unwrap();
    assert!(open().contains("separate_vocabs"), "{}", open());
}
