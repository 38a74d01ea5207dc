//! Tokenizers of translation models: SentencePiece splits a text into pieces, and another file maps pieces to ids.
//!
//! Marian has `source.spm` and `vocab.json`, which also has the pieces of the target language; M2M100 has
//! `sentencepiece.bpe.model` and `vocab.json`, after whose ids come the ids of the languages. A piece without an id is
//! unknown.

use std::path::Path;

use serde_json::{Map, Value, json};
use tokenizers::ModelWrapper;

use super::{
    Tokenizer,
    config_tokens::ConfigJson,
    fairseq,
    sentence_piece::{self, Options},
};
use crate::{
    TokenId,
    error::{Error, Result},
    files::{python_json, regular_file},
};

/// Marian's pieces of the source language.
pub(crate) const SOURCE_PIECES_FILE: &str = "source.spm";
/// Marian's pieces of the target language.
const TARGET_PIECES_FILE: &str = "target.spm";
/// M2M100's pieces.
pub(crate) const BPE_PIECES_FILE: &str = "sentencepiece.bpe.model";
const VOCAB_FILE: &str = "vocab.json";

/// The languages of M2M100 by the value of `language_codes`, in the order of their ids.
const LANGUAGES: [(&str, &str); 2] = [
    (
        "m2m100",
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id \
         ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si \
         sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    ),
    ("wmt21", "en ha is ja cs ru zh de"),
];

/// A tokenizer of a translation model: the vocabulary as `tokenizer.json`, the roles of its tokens, and the model that
/// splits texts into pieces.
pub(super) struct Translator {
    pub(super) tokenizer_json: Vec<u8>,
    pub(super) config_json: Vec<u8>,
    pub(super) cutter: Cutter,
}

/// What cuts texts into pieces in place of the model that numbers these.
pub(super) struct Cutter {
    pub(super) model: ModelWrapper,
    /// Whether a text may begin with a language in `>>` and `<<`, which is one token, as in Marian; elsewhere in a text these are text.
    begins_with_language: bool,
}

impl Tokenizer {
    /// The language at the start of a text, if the tokenizer takes it from there, and the rest of the text. A language that it does not
    /// have is the unknown token.
    pub(super) fn split_language<'a>(&self, text: &'a str) -> (Option<TokenId>, &'a str) {
        let takes = self.inner.cutter.as_ref().is_some_and(|cutter| cutter.begins_with_language);
        let end = text.find("<<").filter(|_| takes && text.starts_with(">>"));
        let Some((language, rest)) = end.map(|at| text.split_at(at + "<<".len())) else { return (None, text) };
        (self.token_id(language).or(self.inner.model_unk), rest)
    }
}

/// The texts for which a tokenizer is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Target,
}

/// The tokenizer in `dir` for texts of a side as `tokenizer.json` and `tokenizer_config.json`, if its pieces need no other file.
///
/// # Errors
/// The file is broken.
pub(super) fn fairseq(dir: &Path, side: Side, config: &ConfigJson) -> Result<Option<[Vec<u8>; 2]>> {
    let path = dir.join(BPE_PIECES_FILE);
    if !path.is_file() || dir.join(VOCAB_FILE).exists() {
        return Ok(None);
    }
    fairseq::read(&path, config, if side == Side::Source { "src_lang" } else { "tgt_lang" })
}

/// The tokenizer in `dir` for texts of a side, if it has the files of one. `config` is what the file `config_path` says.
///
/// # Errors
/// A file is missing or broken, or has a separate vocabulary for each language.
pub(super) fn read(dir: &Path, side: Side, (config, config_path): (&ConfigJson, &Path)) -> Result<Option<Translator>> {
    let found = [SOURCE_PIECES_FILE, BPE_PIECES_FILE].into_iter().find(|name| dir.join(name).is_file());
    let Some(name) = found else { return Ok(None) };
    let (pieces, language) = match side {
        Side::Source => (name, "src_lang"),
        Side::Target if name == SOURCE_PIECES_FILE => (TARGET_PIECES_FILE, "tgt_lang"),
        Side::Target => (name, "tgt_lang"),
    };
    let (path, vocab_path) = (dir.join(pieces), dir.join(VOCAB_FILE));
    if config.flag("separate_vocabs") {
        let what = "has `separate_vocabs`: a vocabulary for each language, which is not supported";
        return Err(Error::file(config_path, what));
    }
    if name == BPE_PIECES_FILE && !vocab_path.exists() {
        let what = format!("needs `{VOCAB_FILE}` beside it, which numbers its pieces, or `tokenizer.json`");
        return Err(Error::file(&path, what).with_hint(
            "without them only XLM-RoBERTa, mBART and mBART-50 are opened, by `tokenizer_class` of `tokenizer_config.json`",
        ));
    }
    let vocab: Map<String, Value> = python_json::parse(&regular_file::read(&vocab_path)?)
        .map_err(|error| Error::file(&vocab_path, format!("is no JSON object: {error}")))?;
    let options = Options { adds_bos: false, adds_eos: false, is_legacy: true };
    let [mut tokenizer, _] = sentence_piece::read_json(&path, options)?;
    let model = serde_json::from_value(tokenizer["model"].take())
        .map_err(|error| Error::file(&path, format!("is no SentencePiece model that Hearth reads: {error}")))?;
    let role = |role: &str, usual: &str| config.token(role).unwrap_or(usual).to_owned();
    let roles = [("eos_token", "</s>"), ("pad_token", "<pad>"), ("unk_token", "<unk>")];
    let mut roles: Vec<(&str, String)> = roles.into_iter().map(|(name, usual)| (name, role(name, usual))).collect();
    let mut special = Vec::new();
    let mut prefix = None;
    if name == BPE_PIECES_FILE {
        roles.push(("bos_token", role("bos_token", "<s>")));
        let codes = config.text("language_codes").unwrap_or("m2m100");
        let Some((_, languages)) = LANGUAGES.iter().find(|(known, _)| *known == codes) else {
            let known = LANGUAGES.map(|(known, _)| format!("`{known}`")).join(" and ");
            let what = format!("has the `language_codes` {codes:?}; {known} are known");
            return Err(Error::file(config_path, what));
        };
        let languages = languages.split_whitespace().map(|code| format!("__{code}__"));
        special.extend(languages.zip(vocab.len()..));
        let source = format!("__{}__", config.text(language).unwrap_or("en"));
        prefix = special.iter().find(|(language, _)| *language == source).cloned();
    }
    let of_roles = roles.iter().filter_map(|(_, token)| {
        let id = vocab.get(token).and_then(Value::as_u64)?;
        Some((token.clone(), usize::try_from(id).ok()?))
    });
    let of_roles: Vec<(String, usize)> = of_roles.collect();
    let eos = of_roles.iter().find(|(token, _)| *token == roles[0].1).cloned();
    let added = of_roles.into_iter().chain(special).map(|(content, id)| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    });
    tokenizer["added_tokens"] = added.collect();
    tokenizer["model"] = json!({ "type": "WordLevel", "vocab": vocab, "unk_token": roles[2].1 });
    let around = |token: &(String, usize)| json!({ "SpecialToken": { "id": token.0, "type_id": 0 } });
    let whole = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let template: Vec<Value> = prefix.iter().map(around).chain([whole]).chain(eos.iter().map(around)).collect();
    let tokens = prefix.iter().chain(&eos);
    let tokens: Map<String, Value> =
        tokens.map(|(token, id)| (token.clone(), json!({ "id": token, "ids": [id], "tokens": [token] }))).collect();
    tokenizer["post_processor"] =
        json!({ "type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": tokens });
    let config_json: Map<String, Value> =
        roles.into_iter().map(|(name, token)| (name.to_owned(), token.into())).collect();
    Ok(Some(Translator {
        tokenizer_json: tokenizer.to_string().into_bytes(),
        config_json: Value::Object(config_json).to_string().into_bytes(),
        cutter: Cutter { model, begins_with_language: name == SOURCE_PIECES_FILE },
    }))
}
