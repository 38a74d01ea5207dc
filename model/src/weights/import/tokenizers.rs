//! Tokenizers that training programs pickle: nanoGPT's characters and nanochat's encoding of `tiktoken`.

use std::{collections::HashMap, path::Path};

use super::pickle::{Item, Pickle, Problem};
use crate::{
    TokenId,
    error::{Error, Result},
    files::regular_file,
};

/// A tokenizer in a pickle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PickledTokenizer {
    /// nanoGPT's `meta.pkl`: the characters in the order of their ids, from 0.
    Characters(Vec<char>),
    /// nanochat's `tokenizer.pkl`.
    Encoding(Encoding),
}

/// A byte-level BPE tokenizer as `tiktoken` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// The regular expression whose matches are encoded separately.
    pub pattern: String,
    /// The bytes of each token, in the order of their ids from 0. The pair whose concatenation has the lowest id is
    /// merged first.
    pub tokens: Vec<Vec<u8>>,
    /// Special tokens and their ids, ascending.
    pub special: Vec<(String, TokenId)>,
}

/// Reads nanoGPT's `meta.pkl`, which it writes next to character-level data, or nanochat's `tokenizer.pkl`, an
/// `Encoding` of `tiktoken`. Its code is never executed.
///
/// # Errors
/// [`Error::Io`] when it cannot be read; [`Error::File`] with the unexpected part.
pub fn read_tokenizer(path: &Path) -> Result<PickledTokenizer> {
    parse_tokenizer(&regular_file::read(path)?).map_err(|what| Error::file(path, what))
}

/// [`read_tokenizer`] of a file's contents.
pub(super) fn parse_tokenizer(bytes: &[u8]) -> Result<PickledTokenizer, String> {
    let pickle = Pickle::read(bytes).map_err(|Problem { at, what }| format!("at byte {at}: {what}"))?;
    let root = pickle.root();
    match root.encoding() {
        Some(attributes) => encoding(attributes).map(PickledTokenizer::Encoding),
        None => characters(root).map(PickledTokenizer::Characters),
    }
}

fn characters(root: Item<'_, '_>) -> Result<Vec<char>, String> {
    let itos =
        root.get("itos").ok_or("is neither an `Encoding` of tiktoken nor a dict with `itos`, the characters by id")?;
    let entries = itos.entries().ok_or_else(|| format!("`itos` is {}, not a dict", itos.kind()))?;
    let mut by_id = HashMap::new();
    for (id, text) in entries {
        let id = id.int().ok_or_else(|| format!("`itos` has a key that is {}, not an int", id.kind()))?;
        let mut characters = text.text().unwrap_or_default().chars();
        match (characters.next(), characters.next()) {
            (Some(character), None) => drop(by_id.insert(id, character)),
            _ => return Err(format!("`itos` has something other than a character for id {id}")),
        }
    }
    let in_order = (0..by_id.len() as i64).map(|id| by_id.get(&id).copied().ok_or(id));
    in_order.collect::<Result<_, _>>().map_err(|id| format!("`itos` has no character for id {id}"))
}

fn encoding(attributes: Item<'_, '_>) -> Result<Encoding, String> {
    let get = |key: &str| {
        let missing =
            || format!("its encoding has no `{key}`: it is one of tiktoken's own, of which only the name was saved");
        attributes.get(key).ok_or_else(missing)
    };
    let pattern = get("pat_str")?.text().ok_or("`pat_str` is no string")?.to_owned();
    let mut by_rank = HashMap::new();
    for (bytes, rank) in get("mergeable_ranks")?.entries().ok_or("`mergeable_ranks` is no dict")? {
        let (Some(bytes), Some(rank)) = (bytes.bytes(), rank.int()) else {
            return Err("`mergeable_ranks` has something other than bytes and their ranks".to_owned());
        };
        if by_rank.insert(rank, bytes).is_some() {
            return Err(format!("`mergeable_ranks` has rank {rank} twice"));
        }
    }
    let in_order = (0..by_rank.len() as i64).map(|rank| by_rank.get(&rank).map(|bytes| bytes.to_vec()).ok_or(rank));
    let tokens: Vec<_> =
        in_order.collect::<Result<_, _>>().map_err(|rank| format!("`mergeable_ranks` has no rank {rank}"))?;
    let mut special = Vec::new();
    for (name, id) in get("special_tokens")?.entries().ok_or("`special_tokens` is no dict")? {
        match (name.text(), id.int().and_then(|id| TokenId::try_from(id).ok())) {
            (Some(name), Some(id)) => special.push((name.to_owned(), id)),
            _ => return Err("`special_tokens` has something other than names and ids".to_owned()),
        }
    }
    special.sort_by_key(|(_, id)| *id);
    Ok(Encoding { pattern, tokens, special })
}
