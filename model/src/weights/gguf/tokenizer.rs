//! Converts the tokenizer of a GGUF file to the format of `tokenizer.json`, so that there is one reader of tokenizers.
//!
//! `gpt2` is byte-level BPE with merges. `llama` is SentencePiece's BPE, which has scores instead of merges: the merge
//! that creates the token with the highest score comes first. It is converted to merges by listing, from the highest
//! score down, every pair of tokens whose concatenation is a token, as `transformers` does. `gemma4` is the same, but
//! with merges instead of scores.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::{
    header::{self, Metadata},
    pre_tokenizers::{self, PreTokenizer},
    word_piece::{self, WordPiece},
};
use crate::{
    TokenId,
    error::{Error, Result},
    text::tokenizer::{Tokenizer, looks_like_control, sentence_piece},
};

/// Special tokens that end a message or a text in some family, from llama.cpp: files contain only one `eos`.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
];

/// BERT's.
const BERT: &str = "bert";

/// The tokenizer, and the tokens that end a text.
pub(super) struct Vocabulary {
    pub(super) tokenizer: Tokenizer,
    pub(super) eos_token_ids: Vec<TokenId>,
}

/// The type of a token, from `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The token data of a file.
struct Tokens<'a> {
    metadata: &'a Metadata<'a>,
    tokens: Vec<&'a str>,
    types: Vec<TokenType>,
    roles: Roles,
}

#[derive(Clone, Copy, Default)]
struct Roles {
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    pad: Option<TokenId>,
    unk: Option<TokenId>,
}

/// Reads the tokenizer of the file.
pub(super) fn read(metadata: &Metadata<'_>) -> Result<Vocabulary> {
    let tokens = Tokens::read(metadata)?;
    let TokenizerFiles { tokenizer, config } = tokens.files()?;
    let tokenizer = Tokenizer::from_json(&tokenizer, Some(&config), metadata.path)?;
    Ok(Vocabulary { tokenizer, eos_token_ids: tokens.ends()? })
}

/// The tokenizer as files of a model dir.
pub(super) struct TokenizerFiles {
    /// `tokenizer.json`.
    pub(super) tokenizer: Vec<u8>,
    /// `tokenizer_config.json`.
    pub(super) config: Vec<u8>,
}

/// The tokenizer of the file, converted to files of a model dir.
pub(super) fn files(metadata: &Metadata<'_>) -> Result<TokenizerFiles> {
    Tokens::read(metadata)?.files()
}

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
/// SentencePiece's BPE by merges.
const GEMMA4: &str = "gemma4";

impl<'a> Tokens<'a> {
    fn read(metadata: &'a Metadata<'a>) -> Result<Self> {
        let tokens = metadata.texts(TOKENS)?.ok_or_else(|| metadata.missing(TOKENS))?;
        let mut first = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = first.insert(token, id) {
                return Err(
                    metadata.error(format!("`{TOKENS}` has `{}` twice, as {first} and {id}", token.escape_debug()))
                );
            }
        }
        let mut types = match metadata.ints(TYPES)? {
            None => vec![TokenType::Normal; tokens.len()],
            Some(numbers) => {
                require_len(metadata, TYPES, numbers.len(), tokens.len())?;
                numbers.into_iter().map(|number| token_type(metadata, number)).collect::<Result<_>>()?
            }
        };
        // Files differ in the type that they give to these tokens, which are never part of a text.
        for (token, kind) in tokens.iter().zip(&mut types) {
            if ENDS.contains(token) {
                *kind = TokenType::Control;
            }
        }
        let roles = Roles::read(metadata, tokens.len())?;
        Ok(Self { metadata, tokens, types, roles })
    }

    fn files(&self) -> Result<TokenizerFiles> {
        let json = match self.metadata.text(MODEL)? {
            Some("gpt2") => self.byte_level()?,
            Some("llama") => self.sentence_piece(self.merges_of_scores()?)?,
            Some(GEMMA4) => self.sentence_piece(self.merges()?)?,
            Some(BERT) => self.word_piece()?,
            Some(other) => {
                let what = format!(
                    "`{MODEL}` is `{other}`, which is not supported; supported: `gpt2`, `llama`, `{GEMMA4}`, \
                             `{BERT}`"
                );
                return Err(self.metadata.error(what));
            }
            None => return Err(self.metadata.missing(MODEL)),
        };
        let bytes = |json: Value| json.to_string().into_bytes();
        Ok(TokenizerFiles { tokenizer: bytes(Value::Object(json)), config: bytes(self.config_json()) })
    }

    /// Byte-level BPE.
    fn byte_level(&self) -> Result<Map<String, Value>> {
        let name = self.metadata.text(PRE)?;
        if name.is_none() {
            tracing::warn!(
                "`{}` does not specify how its tokenizer splits text: `{PRE}` is missing",
                self.metadata.path.display()
            );
        }
        let name = name.unwrap_or("default");
        let pre = pre_tokenizers::find(name).map_err(|names| {
            let what = format!("`{PRE}` is `{name}`, which is not supported");
            self.metadata.error(what).with_hint(format!("supported are {names}"))
        })?;
        let PreTokenizer { nfc, ignore_merges, add_bos, .. } = *pre;
        let normalizer = if nfc { json!({ "type": "NFC" }) } else { Value::Null };
        let model = json!({
            "type": "BPE",
            "ignore_merges": ignore_merges,
            "vocab": self.vocab(),
            "merges": self.merges()?,
        });
        let decoder = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
        self.tokenizer_json((normalizer, pre.json()), (model, decoder), add_bos)
    }

    /// The pairs of tokens to merge that the file lists.
    fn merges(&self) -> Result<Vec<Value>> {
        let merges = self.metadata.texts(MERGES)?.ok_or_else(|| self.metadata.missing(MERGES))?;
        // A token may start with a space, but none contains one.
        let pair = |merge: &str| {
            let space = merge.char_indices().skip(1).find(|(_, character)| *character == ' ');
            space.map(|(at, _)| json!([merge[..at], merge[at + 1..]]))
        };
        let merges: Option<Vec<Value>> = merges.iter().map(|merge| pair(merge)).collect();
        merges.ok_or_else(|| self.metadata.error(format!("`{MERGES}` has an entry that is not a pair")))
    }

    /// SentencePiece's BPE.
    fn sentence_piece(&self, merges: Vec<Value>) -> Result<Map<String, Value>> {
        let prefix = self.metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(!self.is_gemma4());
        let all_bytes: HashSet<&str> = self.of_type(TokenType::Byte).map(|(_, token)| token).collect();
        let model = json!({
            "type": "BPE",
            "unk_token": self.roles.unk.map(|unk| self.tokens[unk as usize]),
            "fuse_unk": true,
            "byte_fallback": all_bytes.len() == 256,
            "vocab": self.vocab(),
            "merges": merges,
        });
        let normalizer = json!({ "type": "Sequence", "normalizers": sentence_piece::normalizers(prefix) });
        self.tokenizer_json((normalizer, Value::Null), (model, sentence_piece::decoder(prefix)), true)
    }

    /// BERT's. A vocabulary without capital letters is one of texts in lower case.
    fn word_piece(&self) -> Result<Map<String, Value>> {
        const CLS: &str = "tokenizer.ggml.cls_token_id";
        // The converter spells it so.
        const SEP: &str = "tokenizer.ggml.seperator_token_id";
        let role = |key: &str| {
            let id = id_of_role(self.metadata, key, self.tokens.len())?;
            id.map(|id| (self.tokens[id as usize], id)).ok_or_else(|| self.metadata.missing(key))
        };
        let unk = self.roles.unk.ok_or_else(|| self.metadata.missing("tokenizer.ggml.unknown_token_id"))?;
        let is_cased = || self.of_type(TokenType::Normal).any(|(_, token)| token.chars().any(char::is_uppercase));
        let lowercase = self.metadata.flag("tokenizer.ggml.normalizer.lowercase")?.unwrap_or_else(|| !is_cased());
        let vocab = self.word_piece_vocab();
        let pieces = WordPiece::new(&vocab, self.tokens[unk as usize], lowercase);
        let around = (pieces.normalizer, pieces.pre_tokenizer);
        let mut json = self.tokenizer_json(around, (pieces.model, pieces.decoder), false)?;
        json.insert("post_processor".into(), word_piece::post_processor(role(CLS)?, role(SEP)?));
        Ok(json)
    }

    fn word_piece_vocab(&self) -> Map<String, Value> {
        let tokens = self.tokens.iter().zip(&self.types).enumerate();
        let entry = |(id, (token, kind)): (usize, (&&str, &TokenType))| {
            let spelled = match kind {
                TokenType::Control => (*token).to_owned(),
                _ => word_piece::spelled(token),
            };
            (spelled, Value::from(id))
        };
        tokens.map(entry).collect()
    }

    fn tokenizer_json(
        &self,
        (normalizer, pre_tokenizer): (Value, Value),
        (model, decoder): (Value, Value),
        add_bos: bool,
    ) -> Result<Map<String, Value>> {
        let flag = |key: &str, absent| Ok::<_, Error>(self.metadata.flag(key)?.unwrap_or(absent));
        let bos = self.roles.bos;
        let bos = if flag("tokenizer.ggml.add_bos_token", add_bos)? { bos } else { None };
        let eos = if flag("tokenizer.ggml.add_eos_token", false)? { self.roles.eos } else { None };
        let mut json = Map::new();
        json.insert("version".into(), "1.0".into());
        json.insert("added_tokens".into(), self.added_tokens().into());
        json.insert("normalizer".into(), normalizer);
        json.insert("pre_tokenizer".into(), pre_tokenizer);
        json.insert("post_processor".into(), self.post_processor(bos, eos));
        json.insert("decoder".into(), decoder);
        json.insert("model".into(), model);
        Ok(json)
    }

    fn vocab(&self) -> Map<String, Value> {
        self.tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect()
    }

    fn of_type(&self, kind: TokenType) -> impl Iterator<Item = (TokenId, &'a str)> {
        let tokens = self.tokens.iter().zip(&self.types).enumerate();
        tokens.filter(move |(_, (_, own))| **own == kind).map(|(id, (token, _))| (id as TokenId, *token))
    }

    /// Tokens that are found in a text before it is split into words.
    fn added_tokens(&self) -> Vec<Value> {
        let (strips, is_gemma4) = (self.strips_behind(), self.is_gemma4());
        let added = |(id, (token, kind)): (usize, (&&str, &TokenType))| {
            let special = match kind {
                TokenType::Control => true,
                // The model's own tokenizer finds runs of newlines first.
                TokenType::Normal if is_gemma4 && token.bytes().all(|byte| byte == b'\n') => false,
                // Some files give this type to an ordinary word.
                TokenType::Unknown if looks_like_control(token) => true,
                TokenType::UserDefined => false,
                TokenType::Unknown | TokenType::Normal | TokenType::Unused | TokenType::Byte => return None,
            };
            Some(json!({
                "id": id,
                "content": token,
                "single_word": false,
                "lstrip": false,
                "rstrip": strips && special && !matches!(*token, "<unk>" | "<s>" | "<|endoftext|>"),
                // Tokens are spelled with the space mark, so they match only after normalization.
                "normalized": token.contains('▁'),
                "special": special,
            }))
        };
        self.tokens.iter().zip(&self.types).enumerate().filter_map(added).collect()
    }

    fn is_gemma4(&self) -> bool {
        matches!(self.metadata.text(MODEL), Ok(Some(GEMMA4)))
    }

    /// Phi 3's special tokens include following spaces. Files do not say so; llama.cpp also checks the architecture's
    /// name.
    fn strips_behind(&self) -> bool {
        let is = |key: &str, value: &str| matches!(self.metadata.text(key), Ok(Some(found)) if found == value);
        is("general.architecture", "phi3") && is(MODEL, "llama")
    }

    fn post_processor(&self, bos: Option<TokenId>, eos: Option<TokenId>) -> Value {
        let token = |id: TokenId| self.tokens[id as usize];
        let special = |id: Option<TokenId>| id.map(|id| json!({ "SpecialToken": { "id": token(id), "type_id": 0 } }));
        let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
        let template: Vec<Value> = special(bos).into_iter().chain([text]).chain(special(eos)).collect();
        let tokens: Map<String, Value> = bos
            .into_iter()
            .chain(eos)
            .map(|id| (token(id).to_owned(), json!({ "id": token(id), "ids": [id], "tokens": [token(id)] })))
            .collect();
        if tokens.is_empty() {
            return Value::Null;
        }
        json!({ "type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": tokens })
    }

    /// The contents of `tokenizer_config.json`.
    fn config_json(&self) -> Value {
        // A role may belong to an ordinary word, which stays ordinary.
        let token = |id: Option<TokenId>| {
            let id = id? as usize;
            let content = self.tokens[id];
            Some(match self.types[id] {
                TokenType::Normal | TokenType::Unknown => json!({ "content": content, "special": false }),
                _ => json!(content),
            })
        };
        let Roles { bos, eos, pad, unk } = self.roles;
        json!({ "bos_token": token(bos), "eos_token": token(eos), "pad_token": token(pad), "unk_token": token(unk) })
    }

    /// Every pair of tokens whose concatenation is a token, best first.
    fn merges_of_scores(&self) -> Result<Vec<Value>> {
        let scores = self.metadata.floats(SCORES)?.ok_or_else(|| self.metadata.missing(SCORES))?;
        require_len(self.metadata, SCORES, scores.len(), self.tokens.len())?;
        let is_piece = |kind: TokenType| matches!(kind, TokenType::Normal | TokenType::UserDefined);
        let pieces = self.tokens.iter().zip(&self.types).zip(scores).enumerate();
        let pieces = pieces.filter(|(_, ((_, kind), _))| is_piece(**kind));
        let merges = sentence_piece::merges(pieces.map(|(id, ((token, _), score))| (id, *token, score)));
        let what = format!("`{TOKENS}` has tokens that are too long to derive merges from");
        merges.ok_or_else(|| self.metadata.error(what))
    }

    /// Tokens that end a text: tokens with that role in the file, and known ones.
    fn ends(&self) -> Result<Vec<TokenId>> {
        let role = |key: &str| id_of_role(self.metadata, key, self.tokens.len());
        let mut ends: Vec<TokenId> = self.roles.eos.into_iter().collect();
        ends.extend(role("tokenizer.ggml.eot_token_id")?);
        ends.extend(role("tokenizer.ggml.eom_token_id")?);
        ends.extend(self.of_type(TokenType::Control).filter(|(_, token)| ENDS.contains(token)).map(|(id, _)| id));
        let mut seen = HashSet::new();
        ends.retain(|id| seen.insert(*id));
        Ok(ends)
    }
}

impl Roles {
    fn read(metadata: &Metadata<'_>, n_tokens: usize) -> Result<Self> {
        let role = |key: &str| id_of_role(metadata, key, n_tokens);
        // SentencePiece's defaults.
        let is_sentence_piece = metadata.text(MODEL)? == Some("llama");
        let usual = |id: TokenId| Some(id).filter(|id| is_sentence_piece && (*id as usize) < n_tokens);
        Ok(Self {
            bos: role("tokenizer.ggml.bos_token_id")?.or(usual(1)),
            eos: role("tokenizer.ggml.eos_token_id")?.or(usual(2)),
            pad: role("tokenizer.ggml.padding_token_id")?,
            unk: role("tokenizer.ggml.unknown_token_id")?.or(usual(0)),
        })
    }
}

fn id_of_role(metadata: &Metadata<'_>, key: &str, n_tokens: usize) -> Result<Option<TokenId>> {
    // -1, or the same bits as an unsigned number, means none.
    if let Some(header::Value::Signed(-1) | header::Value::Unsigned(0xFFFF_FFFF | u64::MAX)) = metadata.get(key) {
        return Ok(None);
    }
    let Some(id) = metadata.unsigned(key)? else { return Ok(None) };
    match TokenId::try_from(id) {
        Ok(id) if (id as usize) < n_tokens => Ok(Some(id)),
        _ => Err(metadata.error(format!("`{key}` is {id}, but there are {n_tokens} tokens"))),
    }
}

fn token_type(metadata: &Metadata<'_>, number: i32) -> Result<TokenType> {
    Ok(match number {
        // Files use 0 for unknown types.
        0 | 1 => TokenType::Normal,
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        _ => return Err(metadata.error(format!("`{TYPES}` has the type {number}; 0 to 6 are allowed"))),
    })
}

fn require_len(metadata: &Metadata<'_>, key: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(metadata.error(format!("`{key}` has {found} entries, but there are {expected} tokens")))
}
