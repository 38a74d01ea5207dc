//! How the files of a late-interaction model define the reading of texts: as sentence-transformers
//! (`MultiVectorEncoder`), PyLate or Stanford's ColBERT save it.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use serde_json::{Map, Value};

use super::{
    config_json::Fields,
    file_names::{PROMPTS_FILE, TEXT_LIMIT_FILE},
    files::TensorFiles,
    own_pooling::{dense_from, dense_layer, modules},
};
use crate::{
    config::GptConfig,
    error::Result,
    files::regular_file,
    gpt::pooling::{DenseActivation, LateInteraction, LateText, OwnPooling, Prompts, QueryExpansion},
    text::tokenizer::Tokenizer,
};

/// The class of Stanford's ColBERT.
const STANFORD: &str = "HF_ColBERT";
const STANFORD_FILE: &str = "artifact.metadata";
/// Keys that only PyLate writes.
const PYLATE_KEYS: [&str; 6] =
    ["query_prefix", "document_prefix", "query_length", "document_length", "do_query_expansion", "skiplist_words"];
/// Characters that get no vector in documents, by default.
const PUNCTUATION: &str = r##"!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~"##;
/// Default length of queries with their expansion.
const USUAL_LENGTH: usize = 32;

/// The settings in the files of the model dir `dir`, if the model is for late interaction.
///
/// # Errors
/// A file cannot be read, or one of its values is invalid.
pub(super) fn of_dir(
    dir: &Path,
    config_json: &Map<String, Value>,
    (config, tokenizer): (&GptConfig, &Tokenizer),
    prompts: &Prompts,
) -> Result<Option<OwnPooling>> {
    let class = config_json.get("architectures").and_then(|classes| classes[0].as_str());
    let late = if class == Some(STANFORD) {
        stanford(dir, tokenizer)?
    } else {
        let own = json_of(dir, PROMPTS_FILE)?;
        let modules = modules(dir)?;
        let has = |kind: &str| modules.iter().any(|(own, _)| own == kind);
        let is_pylate = !has("Pooling") && PYLATE_KEYS.iter().any(|key| own.contains_key(*key));
        if !is_pylate && !has("MultiVectorMask") {
            return Ok(None);
        }
        let layers = modules.iter().filter(|(kind, _)| kind == "Dense").filter_map(|(_, path)| path.as_ref());
        let layers: Result<Vec<_>> = layers.map(|path| dense_layer(&dir.join(path))).collect();
        let layers: std::result::Result<Vec<_>, String> = layers?.into_iter().collect();
        let late = LateInteraction {
            layers: match layers {
                Ok(layers) => layers.into(),
                Err(what) => return Ok(Some(OwnPooling::Unsupported(what))),
            },
            query: LateText {
                prompt: prompts.by_name.get("query").cloned().unwrap_or_default(),
                ..LateText::default()
            },
            document: LateText {
                prompt: prompts.by_name.get("document").cloned().unwrap_or_default(),
                ..LateText::default()
            },
            expansion: None,
            skipped: BTreeSet::new(),
        };
        if has("MultiVectorMask") {
            let path = modules.iter().find(|(kind, _)| kind == "MultiVectorMask").and_then(|(_, path)| path.clone());
            let mask = path.map(|path| json_of(dir, &format!("{}/config.json", path.display()))).transpose()?;
            match sentence_transformers(late, dir, &mask.unwrap_or_default(), tokenizer)? {
                Ok(late) if has("Normalize") => late,
                Ok(_) => {
                    let what = "`modules.json` has no module `Normalize` behind the vectors of tokens".to_owned();
                    return Ok(Some(OwnPooling::Unsupported(what)));
                }
                Err(what) => return Ok(Some(OwnPooling::Unsupported(what))),
            }
        } else {
            pylate(late, &Fields::new(&own, &dir.join(PROMPTS_FILE)), tokenizer)?
        }
    };
    let is_far =
        |window: usize| late.expansion.is_some_and(|expansion| !expansion.is_seen && expansion.length > window);
    let is_unseen = late.expansion.is_some_and(|expansion| !expansion.is_seen);
    let sees_all = config.bidirectional && !config.sliding_window.is_some_and(is_far);
    if is_unseen && !sees_all {
        let what =
            "its queries are filled up with tokens that others do not see, in a model that does not see whole texts";
        return Ok(Some(OwnPooling::Unsupported(what.to_owned())));
    }
    Ok(Some(OwnPooling::Late(Arc::new(late))))
}

/// The JSON object in the file `name` of `dir`; empty if there is no such file.
fn json_of(dir: &Path, name: &str) -> Result<Map<String, Value>> {
    let path = dir.join(name);
    if path.is_file() { regular_file::read_json_object(&path) } else { Ok(Map::new()) }
}

/// As sentence-transformers saves it: `mask` are the settings of its mask module.
fn sentence_transformers(
    late: LateInteraction,
    dir: &Path,
    mask: &Map<String, Value>,
    tokenizer: &Tokenizer,
) -> Result<std::result::Result<LateInteraction, String>> {
    let only = |key: &str, allowed: &Value| mask.get(key).is_none_or(|value| value.is_null() || value == allowed);
    if !only("skiplist_tasks", &Value::from(vec!["document"])) || !only("keep_only_token_ids", &Value::Null) {
        return Ok(Err("its module `MultiVectorMask` leaves out more than words of documents".to_owned()));
    }
    let path = dir.join(TEXT_LIMIT_FILE);
    let json = json_of(dir, TEXT_LIMIT_FILE)?;
    let fields = Fields::new(&json, &path);
    let expansion = match fields.object("query_expansion")? {
        None => None,
        Some(own) => {
            let named = own.get("token").and_then(Value::as_str).and_then(|token| tokenizer.token_id(token));
            let token = named.or_else(|| expansion_token(tokenizer));
            let token = token.ok_or_else(|| own.wrong("token", "a token of the tokenizer", &Value::Null))?;
            let is_least = own.text_or("strategy", "fixed")? == "min";
            let length = own.size_or("length", USUAL_LENGTH)?;
            Some(QueryExpansion { token, length, is_least, is_seen: own.flag_or("attend", false)? })
        }
    };
    let words = mask.get("skiplist_words").and_then(Value::as_array).into_iter().flatten();
    Ok(Ok(LateInteraction {
        query: LateText { max_tokens: fields.size("query_length")?, ..late.query },
        document: LateText { max_tokens: fields.size("document_length")?, ..late.document },
        expansion,
        skipped: skipped(words.filter_map(Value::as_str), tokenizer),
        ..late
    }))
}

/// As PyLate saves it: its `fields` are next to the prompts.
fn pylate(late: LateInteraction, fields: &Fields<'_>, tokenizer: &Tokenizer) -> Result<LateInteraction> {
    let prefixed = |text: LateText, key: &str, max_tokens| -> Result<LateText> {
        let prefix = fields.text_or(key, "")?;
        Ok(LateText { max_tokens, ..marked(prefix, text.prompt, tokenizer) })
    };
    let length = fields.size("query_length")?;
    let expands = fields.flag_or("do_query_expansion", true)?;
    let is_seen = fields.flag_or("attend_to_expansion_tokens", fields.flag_or("attend_to_mask_tokens", false)?)?;
    let words: Vec<String> = match fields.get("skiplist_words").and_then(Value::as_array) {
        Some(words) => words.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        None => PUNCTUATION.chars().map(String::from).collect(),
    };
    let expansion = |token| QueryExpansion { token, length: length.unwrap_or(USUAL_LENGTH), is_least: false, is_seen };
    Ok(LateInteraction {
        query: prefixed(late.query, "query_prefix", length)?,
        document: prefixed(late.document, "document_prefix", fields.size("document_length")?)?,
        expansion: expansion_token(tokenizer).filter(|_| expands).map(expansion),
        skipped: skipped(words.iter().map(String::as_str), tokenizer),
        layers: late.layers,
    })
}

/// As Stanford's ColBERT saves it: the layer is a tensor of the model's file.
fn stanford(dir: &Path, tokenizer: &Tokenizer) -> Result<LateInteraction> {
    let path = dir.join(STANFORD_FILE);
    let json = json_of(dir, STANFORD_FILE)?;
    let fields = Fields::new(&json, &path);
    let files = TensorFiles::open(dir)?;
    let layer = dense_from(&files.table()?, "linear", DenseActivation::Identity)?;
    let text = |key: &str, absent: &'static str, max_tokens| -> Result<LateText> {
        Ok(LateText { max_tokens, ..marked(fields.text_or(key, absent)?, String::new(), tokenizer) })
    };
    let length = fields.size_or("query_maxlen", USUAL_LENGTH)?;
    let is_seen = fields.flag_or("attend_to_mask_tokens", false)?;
    let skips = fields.flag_or("mask_punctuation", true)?;
    let marks: Vec<String> = PUNCTUATION.chars().filter(|_| skips).map(String::from).collect();
    let expansion = |token| QueryExpansion { token, length, is_least: false, is_seen };
    Ok(LateInteraction {
        layers: vec![layer].into(),
        query: text("query_token_id", "[unused0]", Some(length))?,
        document: text("doc_token_id", "[unused1]", fields.size("doc_maxlen")?)?,
        expansion: expansion_token(tokenizer).map(expansion),
        skipped: skipped(marks.iter().map(String::as_str), tokenizer),
    })
}

/// Texts that begin with `prefix`: it is a token, with or without the space after it, or else text.
fn marked(prefix: &str, prompt: String, tokenizer: &Tokenizer) -> LateText {
    let prompt = prompt.strip_prefix(prefix).map_or(prompt.clone(), str::to_owned);
    let mark = (!prefix.is_empty()).then(|| {
        tokenizer.token_id(prefix).or_else(|| tokenizer.token_id(prefix.split_whitespace().next().unwrap_or_default()))
    });
    match mark.flatten() {
        Some(mark) => LateText { mark: Some(mark), prompt, max_tokens: None },
        None => LateText { mark: None, prompt: format!("{prefix}{prompt}"), max_tokens: None },
    }
}

/// The mask token, or the token that ends texts.
fn expansion_token(tokenizer: &Tokenizer) -> Option<crate::TokenId> {
    let masks = ["[MASK]", "<mask>"].into_iter().find_map(|token| tokenizer.token_id(token));
    masks.or_else(|| tokenizer.eos().map(|eos| eos.id))
}

/// The tokens that are these words; words that are no token, or an unknown one, have no effect.
fn skipped<'a>(words: impl Iterator<Item = &'a str>, tokenizer: &Tokenizer) -> BTreeSet<crate::TokenId> {
    words.filter_map(|word| tokenizer.token_id(word)).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::config::{GptConfig, Sizes};

    fn tokenizer() -> Tokenizer {
        let words = ["[UNK]", "[MASK]", "[Q] ", "[D]", ".", "!", "a"];
        let vocab: Map<String, Value> =
            words.iter().enumerate().map(|(id, word)| ((*word).into(), id.into())).collect();
        let model = json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]" });
        let json = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": { "type": "Whitespace" },
            "post_processor": null, "decoder": null, "model": model,
        });
        Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
    }

    fn config() -> GptConfig {
        let heads = 2;
        GptConfig::bert(Sizes {
            vocab_size: 7,
            max_seq_len: 64,
            n_layers: 1,
            n_heads: heads,
            n_kv_heads: heads,
            d_model: 8,
            d_ff: 8,
        })
    }

    fn read(own: &Value, config: &GptConfig) -> Option<OwnPooling> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(PROMPTS_FILE), own.to_string()).unwrap();
        of_dir(dir.path(), &Map::new(), (config, &tokenizer()), &Prompts::default()).unwrap()
    }

    #[test]
    fn what_pylate_saved_is_read_and_other_models_are_none() {
        assert_eq!(read(&json!({ "prompts": { "query": "q: " } }), &config()), None);
        let own =
            json!({ "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 24, "document_length": 40 });
        let Some(OwnPooling::Late(late)) = read(&own, &config()) else { unreachable!("a model for late interaction") };
        assert_eq!(late.query, LateText { mark: Some(2), prompt: String::new(), max_tokens: Some(24) });
        assert_eq!(late.document, LateText { mark: Some(3), prompt: String::new(), max_tokens: Some(40) });
        let expansion = QueryExpansion { token: 1, length: 24, is_least: false, is_seen: false };
        assert_eq!(late.expansion, Some(expansion));
        assert_eq!(late.skipped, BTreeSet::from([4, 5]), "punctuation that is a token");
        let own = json!({ "query_prefix": "find: ", "do_query_expansion": false, "skiplist_words": ["a"] });
        let Some(OwnPooling::Late(late)) = read(&own, &config()) else { unreachable!("a model for late interaction") };
        assert_eq!((late.query.mark, &*late.query.prompt, late.expansion), (None, "find: ", None));
        assert_eq!(late.skipped, BTreeSet::from([6]));
    }

    #[test]
    fn tokens_that_others_do_not_see_need_a_model_that_sees_whole_texts() {
        let own = json!({ "query_length": 24 });
        let windowed = GptConfig { sliding_window: Some(8), ..config() };
        let causal = GptConfig { bidirectional: false, ..config() };
        for config in [windowed, causal] {
            assert!(matches!(read(&own, &config), Some(OwnPooling::Unsupported(what)) if what.contains("do not see")));
        }
        let wide = GptConfig { sliding_window: Some(24), ..config() };
        assert!(matches!(read(&own, &wide), Some(OwnPooling::Late(_))));
    }
}
