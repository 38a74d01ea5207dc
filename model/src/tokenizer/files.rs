//! Reads `tokenizer.json` and `tokenizer_config.json`.

use std::{collections::BTreeMap, io, path::Path, sync::Arc};

use serde::Deserialize;
use tokenizers::AddedToken;

use super::{
    Inner, Roles, SpecialToken, Tokenizer,
    pieces::{Decoder, DecoderJson, Entry, PieceTable},
    windows,
};
use crate::{
    TokenId,
    error::{Error, Result},
    regular_file,
};

/// The file with vocabulary and tokenization rules.
pub(crate) const TOKENIZER_FILE: &str = "tokenizer.json";
/// The file with the roles of tokens.
pub(crate) const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";

/// The file with the roles of tokens in older model dirs.
const SPECIAL_TOKENS_MAP_FILE: &str = "special_tokens_map.json";

/// Far above any vocabulary; larger ids mean a damaged file, and tables have the length of the largest id.
const MAX_TOKEN_ID: TokenId = (1 << 24) - 1;

/// The parts of `tokenizer.json` that Hearth itself reads; the library reads the rest.
#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedTokenJson>,
    decoder: Option<DecoderJson>,
    model: ModelJson,
}

#[derive(Deserialize)]
struct AddedTokenJson {
    id: TokenId,
    content: String,
}

#[derive(Deserialize)]
struct ModelJson {
    unk_token: Option<String>,
    unk_id: Option<TokenId>,
}

/// The parts of `tokenizer_config.json` and `special_tokens_map.json` that Hearth reads.
#[derive(Default, Deserialize)]
struct ConfigJson {
    bos_token: Option<TokenJson>,
    eos_token: Option<TokenJson>,
    pad_token: Option<TokenJson>,
    unk_token: Option<TokenJson>,
    additional_special_tokens: Option<Vec<TokenJson>>,
}

impl ConfigJson {
    /// Fills in missing fields from `older`.
    fn or(self, older: Self) -> Self {
        Self {
            bos_token: self.bos_token.or(older.bos_token),
            eos_token: self.eos_token.or(older.eos_token),
            pad_token: self.pad_token.or(older.pad_token),
            unk_token: self.unk_token.or(older.unk_token),
            additional_special_tokens: self.additional_special_tokens.or(older.additional_special_tokens),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenJson {
    Plain(String),
    Full { content: String },
}

impl TokenJson {
    fn content(&self) -> &str {
        match self {
            Self::Plain(content) | Self::Full { content } => content,
        }
    }
}

pub(super) fn read_dir(dir: &Path) -> Result<Tokenizer> {
    let path = dir.join(TOKENIZER_FILE);
    let tokenizer_json = regular_file::read(&path).map_err(|error| unreadable(dir, error))?;
    let config = |name: &str| {
        let path = dir.join(name);
        match regular_file::read(&path) {
            Ok(bytes) => parse_json(&bytes, &path),
            Err(Error::Io { reason, .. }) if reason.kind() == io::ErrorKind::NotFound => Ok(ConfigJson::default()),
            Err(error) => Err(error),
        }
    };
    let config = config(TOKENIZER_CONFIG_FILE)?.or(config(SPECIAL_TOKENS_MAP_FILE)?);
    build(&tokenizer_json, &config, &path)
}

/// Adds to the error for a missing file what the folder has instead: older model dirs have the vocabulary in another format.
fn unreadable(dir: &Path, error: Error) -> Error {
    let (path, reason) = match error {
        Error::Io { path, reason, .. } if reason.kind() == io::ErrorKind::NotFound => (path, reason),
        other => return other,
    };
    let older = ["tokenizer.model", "vocab.json", "vocab.txt"].into_iter().find(|name| dir.join(name).exists());
    let what = match older {
        Some(older) => format!(
            "{reason}; the folder has `{older}` instead: create `{TOKENIZER_FILE}` with \
             `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)` of transformers (not possible for the few \
             models with a Python-only tokenizer, such as CTRL)"
        ),
        None => format!("{reason}; a model dir has `config.json`, `model.safetensors` and `{TOKENIZER_FILE}`"),
    };
    Error::io("read", &path)(io::Error::new(reason.kind(), what))
}

pub(super) fn parse(tokenizer_json: &[u8], config_json: Option<&[u8]>, origin: &Path) -> Result<Tokenizer> {
    let config_path = origin.with_file_name(TOKENIZER_CONFIG_FILE);
    let config: ConfigJson = config_json.map(|bytes| parse_json(bytes, &config_path)).transpose()?.unwrap_or_default();
    build(tokenizer_json, &config, origin)
}

fn build(tokenizer_json: &[u8], config: &ConfigJson, origin: &Path) -> Result<Tokenizer> {
    let json: TokenizerJson = parse_json(tokenizer_json, origin)?;
    let mut library = tokenizers::Tokenizer::from_bytes(tokenizer_json)
        .map_err(|error| unsupported(origin, format!("the `tokenizers` library cannot read it: {error}")))?;
    check_added_ids(&library, &json.added_tokens, origin)?;
    mark_special(&mut library, config, origin)?;

    let decoder = Decoder::new(json.decoder.as_ref()).map_err(|what| unsupported(origin, what))?;
    let pieces = PieceTable::new(&decoder, &entries(&library, origin)?);
    let mut text_vocabulary = library.get_added_vocabulary().clone();
    text_vocabulary.set_encode_special_tokens(true);
    let model_unk = json.model.unk_token.and_then(|token| library.token_to_id(&token)).or(json.model.unk_id);
    let inner = Inner {
        may_go_on: windows::may_go_on(&library),
        roles: roles(&library, config, origin),
        special_tokens: special_tokens(&library),
        text_vocabulary,
        pieces,
        model_unk,
        library,
    };
    Ok(Tokenizer { inner: Arc::new(inner), longest_word: usize::MAX })
}

fn parse_json<'a, T: Deserialize<'a>>(bytes: &'a [u8], path: &Path) -> Result<T> {
    regular_file::refuse_lfs_pointer(path, bytes)?;
    serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() {
            return unsupported(path, error.to_string());
        }
        Error::File {
            path: path.to_owned(),
            what: format!("is not JSON: {error}"),
            hint: "the file may be truncated: download or save it again".into(),
        }
    })
}

fn unsupported(path: &Path, what: String) -> Error {
    Error::File {
        path: path.to_owned(),
        what,
        hint: "Hearth reads Hugging Face tokenizers with the decoders `ByteLevel`, `ByteFallback`, `Metaspace`, \
               `Replace`, `Strip` and `Fuse`, or a `Sequence` of them"
            .into(),
    }
}

/// The library renumbers added tokens whose ids leave a gap, and the ids would no longer match the model's weights.
fn check_added_ids(library: &tokenizers::Tokenizer, added: &[AddedTokenJson], path: &Path) -> Result<()> {
    let moved = added.iter().find(|token| library.token_to_id(&token.content) != Some(token.id));
    moved.map_or(Ok(()), |token| {
        Err(Error::File {
            path: path.to_owned(),
            what: format!("the added token `{}` has the id {}, which leaves a gap", token.content, token.id),
            hint: "save the tokenizer again with a current version of transformers".into(),
        })
    })
}

/// Tokens in the configuration are special, even if `tokenizer.json` does not say so.
fn mark_special(library: &mut tokenizers::Tokenizer, config: &ConfigJson, path: &Path) -> Result<()> {
    let named = [&config.bos_token, &config.eos_token, &config.pad_token, &config.unk_token];
    let unmarked: Vec<AddedToken> = named
        .into_iter()
        .flatten()
        .chain(config.additional_special_tokens.iter().flatten())
        .map(TokenJson::content)
        .filter(|content| library.token_to_id(content).is_some())
        .filter(|content| !library.get_added_vocabulary().is_special_token(content))
        .map(|content| AddedToken::from(content, true))
        .collect();
    library.add_special_tokens(unmarked).map_err(|error| unsupported(path, error.to_string()))?;
    Ok(())
}

fn entries(library: &tokenizers::Tokenizer, path: &Path) -> Result<Vec<Entry>> {
    let added = library.get_added_vocabulary().get_added_tokens_decoder();
    let mut entries: Vec<Entry> = library
        .get_vocab(true)
        .into_iter()
        .map(|(token, id)| Entry { id, token, is_added: added.contains_key(&id) })
        .collect();
    entries.sort_unstable_by_key(|entry| entry.id);
    let Some(last) = entries.last() else {
        return Err(Error::File {
            path: path.to_owned(),
            what: "has no tokens".into(),
            hint: "save the tokenizer again".into(),
        });
    };
    if last.id > MAX_TOKEN_ID {
        let what =
            format!("the token `{}` has the id {}, past the largest allowed, {MAX_TOKEN_ID}", last.token, last.id);
        return Err(unsupported(path, what));
    }
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].id == pair[1].id) {
        let what = format!("the tokens `{}` and `{}` share the id {}", pair[0].token, pair[1].token, pair[0].id);
        return Err(unsupported(path, what));
    }
    Ok(entries)
}

fn special_tokens(library: &tokenizers::Tokenizer) -> BTreeMap<TokenId, String> {
    let added = library.get_added_vocabulary().get_added_tokens_decoder();
    added.iter().filter(|(_, token)| token.special).map(|(&id, token)| (id, token.content.clone())).collect()
}

fn roles(library: &tokenizers::Tokenizer, config: &ConfigJson, path: &Path) -> Roles {
    let role = |name: &str, token: &Option<TokenJson>| {
        let content = token.as_ref()?.content();
        let id = library.token_to_id(content);
        if id.is_none() {
            tracing::warn!(path = %path.display(), "`{name}` is `{content}`, which is not in the vocabulary: ignored");
        }
        Some(SpecialToken { id: id?, content: content.to_owned() })
    };
    Roles {
        bos: role("bos_token", &config.bos_token),
        eos: role("eos_token", &config.eos_token),
        pad: role("pad_token", &config.pad_token),
        unk: role("unk_token", &config.unk_token),
    }
}
