//! Adds the tokens of `tokenizer_config.json` to the tokens of `tokenizer.json`, as `transformers` does.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::sentence_piece;
use crate::TokenId;

/// The roles of tokens, in the order in which new tokens get ids.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Classes of byte-level tokenizers whose pre-tokenizer is built from the configuration.
const BYTE_LEVEL_CLASSES: [&str; 5] =
    ["CodeGenTokenizer", "CohereTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer"];

/// The parts of `tokenizer_config.json` and `special_tokens_map.json` that Hearth reads.
#[derive(Default, Deserialize)]
pub(super) struct ConfigJson {
    added_tokens_decoder: Option<BTreeMap<TokenId, TokenJson>>,
    additional_special_tokens: Option<ExtraJson>,
    extra_special_tokens: Option<ExtraJson>,
    tokenizer_class: Option<String>,
    add_prefix_space: Option<bool>,
    bos_token: Option<TokenJson>,
    eos_token: Option<TokenJson>,
    pad_token: Option<TokenJson>,
    unk_token: Option<TokenJson>,
    /// Further roles, and members that are not read.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Special tokens without a role, or with one that only this model has.
#[derive(Deserialize)]
#[serde(untagged)]
enum ExtraJson {
    List(Vec<TokenJson>),
    /// In the order of the file.
    Named(Map<String, Value>),
}

impl ExtraJson {
    fn tokens(&self) -> Vec<TokenJson> {
        match self {
            Self::List(tokens) => tokens.clone(),
            Self::Named(tokens) => tokens.values().filter_map(|token| TokenJson::deserialize(token).ok()).collect(),
        }
    }
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum TokenJson {
    Plain(String),
    Full(AddedTokenJson),
}

impl TokenJson {
    fn content(&self) -> &str {
        match self {
            Self::Plain(content) => content,
            Self::Full(token) => &token.content,
        }
    }

    /// The token as the library has it; special unless the file says otherwise.
    fn added(&self, is_special: bool) -> AddedToken {
        match self {
            Self::Plain(content) => AddedToken::from(content.clone(), is_special),
            Self::Full(token) => token.added(is_special),
        }
    }
}

/// An entry of `added_tokens`, or of `added_tokens_decoder`, which has the id as its key.
#[derive(Clone, Deserialize)]
pub(super) struct AddedTokenJson {
    pub(super) id: Option<TokenId>,
    pub(super) content: String,
    special: Option<bool>,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
}

impl AddedTokenJson {
    fn added(&self, is_special: bool) -> AddedToken {
        AddedToken {
            content: self.content.clone(),
            single_word: self.single_word,
            lstrip: self.lstrip,
            rstrip: self.rstrip,
            normalized: self.normalized.unwrap_or(!is_special),
            special: is_special,
        }
    }
}

impl ConfigJson {
    /// For folders whose tokenizer is a SentencePiece model; defaults as in `transformers` 5.
    pub(super) fn sentence_piece_options(&self) -> sentence_piece::Options {
        let flag = |key: &str, absent| self.rest.get(key).and_then(Value::as_bool).unwrap_or(absent);
        sentence_piece::Options {
            adds_bos: flag("add_bos_token", true),
            adds_eos: flag("add_eos_token", false),
            is_legacy: flag("legacy", false),
        }
    }

    /// Whether a setting of the class is on.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.rest.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The class that the file is for; empty if it does not say.
    pub(super) fn class(&self) -> &str {
        self.tokenizer_class.as_deref().unwrap_or_default()
    }

    /// A setting of the class that is a text.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.rest.get(key).and_then(Value::as_str)
    }

    /// Older folders have the roles in `special_tokens_map.json`, which applies if there is no `added_tokens_decoder`.
    pub(super) fn with_map(self, map: Self) -> Self {
        if self.added_tokens_decoder.is_some() {
            return self;
        }
        let mut rest = self.rest;
        rest.extend(map.rest);
        Self {
            bos_token: map.bos_token.or(self.bos_token),
            eos_token: map.eos_token.or(self.eos_token),
            pad_token: map.pad_token.or(self.pad_token),
            unk_token: map.unk_token.or(self.unk_token),
            additional_special_tokens: map.additional_special_tokens.or(self.additional_special_tokens),
            extra_special_tokens: map.extra_special_tokens.or(self.extra_special_tokens),
            rest,
            ..self
        }
    }

    /// Takes the usual roles that it does not state from `defaults`.
    pub(super) fn or_roles_of(self, defaults: Self) -> Self {
        Self {
            bos_token: self.bos_token.or(defaults.bos_token),
            eos_token: self.eos_token.or(defaults.eos_token),
            pad_token: self.pad_token.or(defaults.pad_token),
            unk_token: self.unk_token.or(defaults.unk_token),
            ..self
        }
    }

    /// The token with this role.
    pub(super) fn token(&self, role: &str) -> Option<&str> {
        let token = match role {
            "bos_token" => &self.bos_token,
            "eos_token" => &self.eos_token,
            "pad_token" => &self.pad_token,
            "unk_token" => &self.unk_token,
            _ => &None,
        };
        token.as_ref().map(TokenJson::content)
    }

    /// The tokens with a role: the usual ones, then model-specific ones, such as `image_token`.
    fn named(&self) -> Vec<TokenJson> {
        let further = |name: &str| self.rest.get(name).and_then(|value| TokenJson::deserialize(value).ok());
        let usual = ROLES.into_iter().filter_map(|role| match role {
            "bos_token" => self.bos_token.clone(),
            "eos_token" => self.eos_token.clone(),
            "pad_token" => self.pad_token.clone(),
            "unk_token" => self.unk_token.clone(),
            role => further(role),
        });
        let is_own = |name: &&String| name.ends_with("_token") && !ROLES.contains(&name.as_str());
        usual.chain(self.rest.keys().filter(is_own).filter_map(|name| further(name))).collect()
    }

    /// Special tokens without a role.
    fn extra(&self) -> Vec<TokenJson> {
        let extra = self.extra_special_tokens.as_ref().map(ExtraJson::tokens).filter(|tokens| !tokens.is_empty());
        extra.or_else(|| self.additional_special_tokens.as_ref().map(ExtraJson::tokens)).unwrap_or_default()
    }

    /// Whether texts begin with a space, for the classes of tokenizers that decide it by this file.
    pub(super) fn prefix_of_class(&self) -> Option<bool> {
        let class = self.tokenizer_class.as_deref()?;
        let class = class.strip_suffix("Fast").unwrap_or(class);
        BYTE_LEVEL_CLASSES.contains(&class).then(|| self.add_prefix_space.unwrap_or(false))
    }
}

/// Adds what only `tokenizer_config.json` has: tokens, their flags, and that a token is special.
pub(super) fn add(library: &mut tokenizers::Tokenizer, config: &ConfigJson) -> tokenizers::Result<()> {
    let decoder = config.added_tokens_decoder.iter().flatten();
    let tokens: Vec<AddedToken> = decoder
        .map(|(_, token)| match token {
            TokenJson::Full(full) => full.added(full.special.unwrap_or(false)),
            TokenJson::Plain(_) => token.added(false),
        })
        .collect();
    // The library skips tokens that it has already.
    library.add_tokens(tokens)?;
    for (id, token) in config.added_tokens_decoder.iter().flatten() {
        let found = library.token_to_id(token.content());
        if found != Some(*id) {
            let content = token.content();
            tracing::warn!("`added_tokens_decoder` has `{content}` as {id}; its id is {found:?}, as in transformers");
        }
    }
    let mut missing = Vec::new();
    for token in config.named() {
        missing.extend(with_role(library, &token));
    }
    for token in config.extra() {
        let known = added_token(library, token.content());
        if known.is_none_or(|known| !known.special) {
            missing
                .push(known.map_or_else(|| token.added(true), |known| AddedToken { special: true, ..known.clone() }));
        }
    }
    library.add_tokens(missing)?;
    Ok(())
}

fn added_token<'a>(library: &'a tokenizers::Tokenizer, content: &str) -> Option<&'a AddedToken> {
    let added = library.get_added_vocabulary();
    added.get_added_tokens_decoder().get(added.get_vocab().get(content)?)
}

/// The token to add for a role: a special token, unless it is an ordinary word. `None` if none is to be added.
fn with_role(library: &tokenizers::Tokenizer, token: &TokenJson) -> Option<AddedToken> {
    let content = token.content();
    let known = added_token(library, content);
    if known.is_some_and(|known| known.special) {
        return None;
    }
    if let Some(id) = library.token_to_id(content)
        && let Some(is_spelled) = spelling(library, content, id)
    {
        // `transformers` splits texts at the word, which `!!` shows.
        let is_split = is_spelled
            && known.is_none()
            && !matches!(token, TokenJson::Full(AddedTokenJson { special: Some(false), .. }));
        return is_split.then(|| AddedToken { special: false, normalized: false, ..token.added(false) });
    }
    Some(known.map_or_else(|| token.added(true), |known| AddedToken { special: true, ..known.clone() }))
}

/// Whether a token looks like one that no text has: `<pad>`, `[UNK]`, `<|endoftext|>`.
pub(crate) fn looks_like_control(content: &str) -> bool {
    let is_within = |open: char, close: char| {
        content.ends_with(close) && content.find(open).is_some_and(|at| at + 2 < content.len())
    };
    is_within('<', '>') || is_within('[', ']')
}

/// Whether the token of an ordinary word is spelled like the word (in byte-level vocabularies, a line break is `Ċ`).
/// `None` if the token is not a word into which text is split.
fn spelling(library: &tokenizers::Tokenizer, content: &str, id: TokenId) -> Option<bool> {
    if looks_like_control(content) {
        return None;
    }
    let finds = |text: &str| {
        let ids = crate::system::panics::caught(|| library.encode_fast(text, false)).ok()?.ok()?;
        ids.get_ids().contains(&id).then_some(())
    };
    if finds(content).is_some() {
        return Some(true);
    }
    let text = crate::system::panics::caught(|| library.decode(&[id], false)).ok()?.ok()?;
    finds(&text).map(|()| false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_in_brackets_look_like_control_tokens_and_brackets_do_not() {
        for control in ["<pad>", "[UNK]", "<|endoftext|>", "_<EOT>", "<｜end▁of▁sentence｜>"] {
            assert!(looks_like_control(control), "{control}");
        }
        for word in ["!", "<", ">", "[]", "<>", "the", "\n", "Ċ"] {
            assert!(!looks_like_control(word), "{word}");
        }
    }
}
