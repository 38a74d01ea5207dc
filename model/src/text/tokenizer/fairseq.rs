//! Tokenizers of fairseq's models in folders that have SentencePiece's file alone: XLM-RoBERTa, mBART and mBART-50, as transformers
//! opens them. fairseq has four tokens of its own before the pieces, in place of SentencePiece's first three, and the languages and the
//! mask behind them.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{
    config_tokens::ConfigJson,
    sentence_piece::{self, Options},
};
use crate::error::Result;

/// Before the pieces, by number.
const FIRST: [&str; 4] = ["<s>", "<pad>", "</s>", "<unk>"];
/// SentencePiece's own tokens, whose numbers [`FIRST`] has.
const N_OWN: usize = 3;
const MASK: &str = "<mask>";

/// Languages of mBART, by number.
const MBART: &str = "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX \
     ro_RO ru_RU si_LK tr_TR vi_VN zh_CN";

/// Those that mBART-50 has behind them.
const MBART50: &str = "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN \
     te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI";

/// What stands around a text.
#[derive(Clone, Copy)]
enum Around {
    /// `<s> text </s>`.
    Text,
    /// `text </s> language`.
    LanguageBehind,
    /// `language text </s>`.
    LanguageBefore,
}

/// A class of tokenizers.
struct Kind {
    class: &'static str,
    languages: &'static [&'static str],
    around: Around,
    /// Whether SentencePiece's replacements of characters are applied, and spaces joined.
    normalizes: bool,
    /// Whether texts are first split at white space of any kind.
    splits: bool,
}

const KINDS: [Kind; 3] = [
    Kind { class: "XLMRobertaTokenizer", languages: &[], around: Around::Text, normalizes: true, splits: true },
    Kind {
        class: "MBartTokenizer",
        languages: &[MBART],
        around: Around::LanguageBehind,
        normalizes: false,
        splits: true,
    },
    Kind {
        class: "MBart50Tokenizer",
        languages: &[MBART, MBART50],
        around: Around::LanguageBefore,
        normalizes: true,
        splits: false,
    },
];

/// The file `path` as `tokenizer.json` and `tokenizer_config.json`, for the class that `config` names. `None` if it is none of these.
/// `language` is the key of the language of the texts.
///
/// # Errors
/// The file is broken.
pub(super) fn read(path: &Path, config: &ConfigJson, language: &str) -> Result<Option<[Vec<u8>; 2]>> {
    let class = config.class();
    let Some(kind) = KINDS.iter().find(|kind| class.strip_suffix("Fast").unwrap_or(class) == kind.class) else {
        return Ok(None);
    };
    let options = Options { adds_bos: false, adds_eos: false, is_legacy: true };
    let [mut tokenizer, _] = sentence_piece::read_json(path, options)?;
    let pieces = tokenizer["model"]["vocab"].as_array().cloned().unwrap_or_default();
    let first = FIRST.map(|token| json!([token, 0.0]));
    let languages: Vec<&str> = kind.languages.iter().flat_map(|codes| codes.split_whitespace()).collect();
    let last = languages.iter().copied().chain([MASK]).map(|token| json!([token, 0.0]));
    let n_before_last = FIRST.len() + pieces.len().saturating_sub(N_OWN);
    let vocab: Vec<Value> = first.into_iter().chain(pieces.into_iter().skip(N_OWN)).chain(last).collect();
    let token = |id: usize, content: &str| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": content == MASK && !languages.is_empty(),
            "rstrip": false, "normalized": false,
        })
    };
    let user_defined = tokenizer["added_tokens"].as_array().into_iter().flatten().filter_map(|added| {
        let id = added["id"].as_u64().filter(|_| added["special"] == false)?;
        let mut added = added.clone();
        added["id"] = (id as usize + FIRST.len() - N_OWN).into();
        Some(added)
    });
    let user_defined: Vec<Value> = user_defined.collect();
    let first = FIRST.iter().enumerate().map(|(id, content)| token(id, content));
    let last = languages.iter().chain([&MASK]).enumerate().map(|(at, content)| token(n_before_last + at, content));
    tokenizer["added_tokens"] = first.chain(user_defined).chain(last).collect();
    tokenizer["model"] = json!({ "type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": false });
    let replacements = tokenizer["normalizer"]["normalizers"].as_array().into_iter().flatten();
    let replacements = replacements.filter(|stage| kind.normalizes && stage["type"] == "Precompiled").cloned();
    let joined = (!kind.splits).then(|| json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " }));
    let normalizers: Vec<Value> = replacements.chain(joined).collect();
    tokenizer["normalizer"] = json!({ "type": "Sequence", "normalizers": normalizers });
    let metaspace =
        json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true });
    let white_space = kind.splits.then(|| json!({ "type": "WhitespaceSplit" }));
    let stages: Vec<Value> = white_space.into_iter().chain([metaspace.clone()]).collect();
    tokenizer["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": stages });
    tokenizer["decoder"] = metaspace;
    let language = config.text(language).filter(|code| languages.contains(code)).unwrap_or("en_XX");
    tokenizer["post_processor"] = template(kind.around, language, |token| {
        let of_first = FIRST.iter().position(|first| *first == token);
        of_first.or(languages.iter().position(|known| *known == token).map(|at| n_before_last + at))
    });
    let roles = json!({
        "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>",
        "sep_token": "</s>", "mask_token": MASK,
    });
    Ok(Some([tokenizer, roles].map(|json| json.to_string().into_bytes())))
}

/// What is put around a text, or two; `id_of` numbers tokens.
fn template(around: Around, language: &str, id_of: impl Fn(&str) -> Option<usize>) -> Value {
    let special = |token: &str| json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
    let (before, between, behind): (&[&str], &[&str], &[&str]) = match around {
        Around::Text => (&["<s>"], &["</s>", "</s>"], &["</s>"]),
        Around::LanguageBehind => (&[], &[], &["</s>", language]),
        Around::LanguageBefore => (&[language], &[], &["</s>"]),
    };
    let tokens = |tokens: &[&str]| tokens.iter().map(|token| special(token)).collect::<Vec<_>>();
    let named = before.iter().chain(between).chain(behind);
    let named: Map<String, Value> = named
        .filter_map(|token| {
            Some(((*token).to_owned(), json!({ "id": token, "ids": [id_of(token)?], "tokens": [token] })))
        })
        .collect();
    let single = [tokens(before), vec![text("A")], tokens(behind)].concat();
    let pair = [tokens(before), vec![text("A")], tokens(between), vec![text("B")], tokens(behind)].concat();
    json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": named })
}
