//! Reads `tokenizer.json` and `tokenizer_config.json`.

use std::{collections::BTreeMap, io, path::Path, sync::Arc};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::{
    EncodeOptions, Inner, Roles, SpecialToken, Tokenizer, checks,
    config_tokens::{self, AddedTokenJson, ConfigJson},
    pieces::{Decoder, DecoderJson, Entry, PieceTable},
    sentence_piece::{self, SENTENCE_PIECE_FILE},
    tekken::{self, TEKKEN_FILE},
    translators::{self, Cutter, Side, Translator},
    windows,
};
use crate::{
    TokenId,
    error::{Error, Result},
    files::{python_json, regular_file},
    system::panics,
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
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    decoder: Option<DecoderJson>,
    model: ModelJson,
}

#[derive(Deserialize)]
struct ModelJson {
    unk_token: Option<String>,
    unk_id: Option<TokenId>,
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
}

impl Tokenizer {
    /// As [`from_dir`](Self::from_dir), for the texts that a translation model writes: Marian has a separate file with
    /// the pieces of target texts. For other models, it is the same tokenizer.
    ///
    /// # Errors
    /// As [`from_dir`](Self::from_dir).
    pub fn for_targets_from_dir(dir: &Path) -> Result<Self> {
        read_side(dir, Side::Target)
    }
}

pub(super) fn read_dir(dir: &Path) -> Result<Tokenizer> {
    read_side(dir, Side::Source)
}

fn read_side(dir: &Path, side: Side) -> Result<Tokenizer> {
    let path = dir.join(TOKENIZER_FILE);
    let [tekken_path, pieces_path] = [TEKKEN_FILE, SENTENCE_PIECE_FILE].map(|name| dir.join(name));
    let config = |name: &str| {
        let path = dir.join(name);
        match regular_file::read(&path) {
            Ok(bytes) => parse_json(&bytes, &path),
            Err(Error::Io { reason, .. }) if reason.kind() == io::ErrorKind::NotFound => Ok(ConfigJson::default()),
            Err(error) => Err(error),
        }
    };
    let config: ConfigJson = config(TOKENIZER_CONFIG_FILE)?.with_map(config(SPECIAL_TOKENS_MAP_FILE)?);
    let (tokenizer_json, own) = match regular_file::read(&path) {
        Err(Error::Io { reason, .. }) if reason.kind() == io::ErrorKind::NotFound && tekken_path.is_file() => {
            let [tokenizer, own] = tekken::read(&tekken_path)?;
            (tokenizer, parse_json(&own, &tekken_path)?)
        }
        Err(Error::Io { reason, .. }) if reason.kind() == io::ErrorKind::NotFound && pieces_path.is_file() => {
            let [tokenizer, own] = sentence_piece::read(&pieces_path, config.sentence_piece_options())?;
            (tokenizer, parse_json(&own, &pieces_path)?)
        }
        Err(Error::Io { reason, .. })
            if reason.kind() == io::ErrorKind::NotFound
                && let Some([tokenizer, own]) = translators::fairseq(dir, side, &config)? =>
        {
            (tokenizer, parse_json(&own, &path)?)
        }
        Err(Error::Io { reason, .. })
            if reason.kind() == io::ErrorKind::NotFound
                && let Some(Translator { tokenizer_json, config_json, cutter }) =
                    translators::read(dir, side, (&config, &dir.join(TOKENIZER_CONFIG_FILE)))? =>
        {
            let own = parse_json(&config_json, &path)?;
            return build(&tokenizer_json, &config.or_roles_of(own), &path, Some(cutter));
        }
        read => (read.map_err(|error| unreadable(dir, error))?, ConfigJson::default()),
    };
    build(&tokenizer_json, &config.or_roles_of(own), &path, None)
}

/// Adds the folder's other tokenizer files to the error for a missing file: older model dirs have the vocabulary in
/// another format.
fn unreadable(dir: &Path, error: Error) -> Error {
    let (path, reason) = match error {
        Error::Io { path, reason, .. } if reason.kind() == io::ErrorKind::NotFound => (path, reason),
        other => return other,
    };
    let older = ["vocab.json", "vocab.txt"].into_iter().find(|name| dir.join(name).exists());
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
    build(tokenizer_json, &config, origin, None)
}

/// `cutter` cuts texts into pieces in place of the model in `tokenizer_json`, which then numbers them.
fn build(tokenizer_json: &[u8], config: &ConfigJson, origin: &Path, cutter: Option<Cutter>) -> Result<Tokenizer> {
    let json: TokenizerJson = parse_json(tokenizer_json, origin)?;
    let refuse = |what: String| damaged(origin, what);
    checks::check_stages(&json.normalizer, &json.pre_tokenizer, &json.post_processor).map_err(refuse)?;
    if json.model.continuing_subword_prefix.as_deref().is_some_and(|prefix| !prefix.is_empty()) {
        // The library cuts the prefix off without looking.
        checks::check_merges(tokenizer_json).map_err(refuse)?;
    }
    let changed = changed_json(tokenizer_json, &json, config, origin)?;
    let mut library = read_library(changed.as_deref().unwrap_or(tokenizer_json), origin)?;
    check_added_ids(&library, &json.added_tokens, origin)?;
    config_tokens::add(&mut library, config).map_err(|error| unsupported(origin, error.to_string()))?;

    let decoder = Decoder::new(json.decoder.as_ref()).map_err(|what| unsupported(origin, what))?;
    let pieces = PieceTable::new(&decoder, &entries(&library, origin)?);
    let mut text_vocabulary = library.get_added_vocabulary().clone();
    text_vocabulary.set_encode_special_tokens(true);
    let model_unk = json.model.unk_token.and_then(|token| library.token_to_id(&token)).or(json.model.unk_id);
    let inner = Inner {
        may_go_on: cutter.is_none() && windows::may_go_on(&library),
        cutter,
        roles: roles(&library, config, origin),
        special_tokens: special_tokens(&library),
        text_vocabulary,
        pieces,
        model_unk,
        library,
    };
    let tokenizer = Tokenizer { inner: Arc::new(inner), longest_word: usize::MAX, n_known: usize::MAX };
    probe(&tokenizer, origin)?;
    Ok(tokenizer)
}

/// Reads `tokenizer.json` with the library.
fn read_library(json: &[u8], origin: &Path) -> Result<tokenizers::Tokenizer> {
    let read = panics::caught(|| {
        let mut library = tokenizers::Tokenizer::from_bytes(json)?;
        // Never wanted here.
        library.with_padding(None).with_truncation(None)?;
        Ok::<_, tokenizers::Error>(library)
    });
    let error = match read {
        Ok(Ok(library)) => return Ok(library),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic,
    };
    match checks::check_merges(json) {
        Err(what) => Err(damaged(origin, what)),
        Ok(()) => Err(unsupported(origin, format!("the `tokenizers` library cannot read it: {error}"))),
    }
}

/// Texts with everything that the stages of tokenizers treat specially: white space, digits, capitals, letters of many
/// scripts, combining characters, emoji.
const PROBES: [&str; 3] =
    ["", "Hello, wörld! 3.14\n\n  \t½ ﬁ Å A\u{30a} \u{200b}日本語 مرحبا 🙂👍🏽 <x> \u{2581}a  ", "a"];

/// Refuses a tokenizer that makes the library panic. Characters outside of the vocabulary are no fault.
fn probe(tokenizer: &Tokenizer, origin: &Path) -> Result<()> {
    for text in PROBES {
        for options in [EncodeOptions::PROMPT, EncodeOptions::TEXT] {
            if let Err(panic) = panics::caught(|| tokenizer.encode_unguarded(text, options).map(drop)) {
                return Err(damaged(origin, format!("the `tokenizers` library fails on a text with it: {panic}")));
            }
        }
    }
    Ok(())
}

/// `tokenizer.json` with the changes that `transformers` makes when it opens a folder: no merges are dropped at random,
/// and some classes of tokenizers put a space in front of texts if `tokenizer_config.json` says so. `None` if nothing
/// changes.
fn changed_json(bytes: &[u8], json: &TokenizerJson, config: &ConfigJson, origin: &Path) -> Result<Option<Vec<u8>>> {
    let drops = json.model.dropout.is_some();
    let mut pre_tokenizer = json.pre_tokenizer.clone();
    if let Some(prefix) = config.prefix_of_class() {
        set_prefix(&mut pre_tokenizer, prefix);
    }
    if !drops && pre_tokenizer == json.pre_tokenizer {
        return Ok(None);
    }
    let mut whole: Map<String, Value> = parse_json(bytes, origin)?;
    whole.insert("pre_tokenizer".into(), pre_tokenizer);
    if let Some(model) = whole.get_mut("model").and_then(Value::as_object_mut) {
        model.insert("dropout".into(), Value::Null);
    }
    Ok(Some(Value::Object(whole).to_string().into_bytes()))
}

/// Sets whether byte-level stages put a space in front of a text.
fn set_prefix(stage: &mut Value, prefix: bool) {
    if stage.get("type").and_then(Value::as_str) == Some("ByteLevel") {
        stage["add_prefix_space"] = prefix.into();
    }
    let stages = stage.get_mut("pretokenizers").and_then(Value::as_array_mut);
    stages.into_iter().flatten().for_each(|stage| set_prefix(stage, prefix));
}

fn parse_json<T: DeserializeOwned>(bytes: &[u8], path: &Path) -> Result<T> {
    regular_file::refuse_lfs_pointer(path, bytes)?;
    python_json::parse(bytes).map_err(|error| {
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
        hint: "Hearth reads Hugging Face tokenizers with the decoders `ByteLevel`, `ByteFallback`, `Metaspace`, `WordPiece`, \
               `Replace`, `Strip` and `Fuse`, or a `Sequence` of them"
            .into(),
    }
}

/// The error for a file whose contents contradict each other.
fn damaged(path: &Path, what: String) -> Error {
    let hint = "the file is damaged or was edited by hand: download or save it again".into();
    Error::File { path: path.to_owned(), what, hint }
}

/// The library renumbers added tokens if their ids have a gap, and the ids would no longer match the model's weights.
fn check_added_ids(library: &tokenizers::Tokenizer, added: &[AddedTokenJson], path: &Path) -> Result<()> {
    let moved = added.iter().find(|token| library.token_to_id(&token.content) != token.id);
    moved.map_or(Ok(()), |token| {
        Err(Error::File {
            path: path.to_owned(),
            what: match token.id {
                Some(id) => format!("the added token `{}` has the id {id}, which leaves a gap", token.content),
                None => format!("the added token `{}` has no id", token.content),
            },
            hint: "save the tokenizer again with a current version of transformers".into(),
        })
    })
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
    let added = library.get_added_vocabulary();
    let is_special = |(_, token): &(&TokenId, &AddedToken)| added.is_special_token(&token.content);
    let tokens = added.get_added_tokens_decoder().iter();
    tokens.filter(is_special).map(|(&id, token)| (id, token.content.clone())).collect()
}

fn roles(library: &tokenizers::Tokenizer, config: &ConfigJson, path: &Path) -> Roles {
    let role = |name: &str| {
        let content = config.token(name)?;
        let id = library.token_to_id(content);
        if id.is_none() {
            tracing::warn!(path = %path.display(), "`{name}` is `{content}`, which is not in the vocabulary: ignored");
        }
        Some(SpecialToken { id: id?, content: content.to_owned() })
    };
    Roles { bos: role("bos_token"), eos: role("eos_token"), pad: role("pad_token"), unk: role("unk_token") }
}
