//! The bytes of a vocabulary's tokens, as a trie.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use toktrie::{TokEnv, TokTrie, TrieNode};

use crate::{TokenId, text::tokenizer::Tokenizer};

/// Longer tokens are excluded: the trie does not support them.
const MAX_TOKEN_BYTES: usize = 512;

/// The byte with which the trie marks its own special tokens. It never occurs in text.
const NO_TEXT: u8 = 0xff;

/// A token, and the bytes that it has after a certain text in it.
pub(super) type Ending = (TokenId, Vec<u8>);

/// The bytes of tokens.
pub(super) struct Vocabulary {
    /// Has the text tokens, and after them one token for each byte, by which a grammar reads texts that are no tokens.
    environment: TokEnv,
    n_tokens: usize,
    /// Tokens with text that are not in the trie: special ones, and others that it does not support.
    others: BTreeMap<TokenId, Other>,
    /// By literal and the number of its bytes that a text ends with: the tokens that complete the literal and have more
    /// bytes. Literals are marks of model families, so there are few.
    endings: Mutex<Endings>,
}

type Endings = HashMap<(Vec<u8>, usize), Arc<Vec<Ending>>>;

struct Other {
    bytes: Vec<u8>,
    is_special: bool,
}

impl Vocabulary {
    /// The words for a trie: for each token, empty if it is not in the trie, and for each byte.
    pub(super) fn words(tokenizer: &Tokenizer) -> Vec<Vec<u8>> {
        let ids = 0..tokenizer.vocab_size() as TokenId;
        let bytes = (0..NO_TEXT).map(|byte| vec![byte]);
        ids.map(|id| text_bytes(tokenizer, id)).chain(bytes).collect()
    }

    /// The trie of `environment` has the [words](Self::words).
    pub(super) fn new(tokenizer: &Tokenizer, environment: TokEnv) -> Self {
        let n_tokens = tokenizer.vocab_size();
        let is_missing = |id: &TokenId| environment.tok_trie().token(*id).is_empty();
        let others = (0..n_tokens as TokenId).filter(is_missing).filter_map(|id| {
            let bytes = tokenizer.token_bytes(id);
            (!bytes.is_empty()).then(|| (id, Other { bytes, is_special: tokenizer.is_special(id) }))
        });
        Self { n_tokens, others: others.collect(), environment, endings: Mutex::default() }
    }

    fn trie(&self) -> &TokTrie {
        self.environment.tok_trie()
    }

    /// The ids of text tokens.
    pub(super) fn text_ids(&self) -> impl Iterator<Item = TokenId> {
        (0..self.n_tokens as TokenId).filter(|&id| !self.trie().token(id).is_empty())
    }

    /// The tokens that a grammar reads for these bytes.
    pub(super) fn byte_ids(&self, bytes: &[u8]) -> Vec<TokenId> {
        bytes.iter().map(|&byte| self.n_tokens as TokenId + TokenId::from(byte)).collect()
    }

    /// The bytes that a token adds to a text. Special tokens have some only if the text shows them.
    pub(super) fn bytes(&self, id: TokenId, shows_special: bool) -> &[u8] {
        match self.others.get(&id) {
            Some(other) if shows_special || !other.is_special => &other.bytes,
            None if (id as usize) < self.n_tokens => self.trie().token(id),
            _ => &[],
        }
    }

    /// The tokens that complete a literal, given that the text ends with its first `n` bytes, and have more bytes after
    /// it. Computed once.
    pub(super) fn endings_of_literal(
        &self,
        literal: &[u8],
        n: usize,
        compute: impl FnOnce() -> Vec<Ending>,
    ) -> Arc<Vec<Ending>> {
        let key = (literal.to_vec(), n);
        let lock = || self.endings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return Arc::clone(known);
        }
        let computed = Arc::new(compute());
        lock().insert(key, Arc::clone(&computed));
        computed
    }

    /// The tokens in which a text is complete, according to `step`, before the token ends, with their remaining bytes.
    /// `step` gets a state and a byte, and returns `None` if the text can no longer be completed.
    pub(super) fn endings<S: Clone>(&self, start: &S, step: &impl Fn(&mut S, u8) -> Option<bool>) -> Vec<Ending> {
        let mut found = Vec::new();
        self.visit(self.trie().root(), start, step, &mut found);
        for (&id, other) in &self.others {
            let mut state = start.clone();
            let end = other.bytes.iter().map(|&byte| step(&mut state, byte)).take_while(Option::is_some);
            let end = end.enumerate().find_map(|(at, is_end)| (is_end == Some(true)).then_some(at + 1));
            if let Some(rest) = end.and_then(|end| other.bytes.get(end..)).filter(|rest| !rest.is_empty()) {
                found.push((id, rest.to_vec()));
            }
        }
        found
    }

    fn visit<S: Clone>(
        &self,
        node: &TrieNode,
        state: &S,
        step: &impl Fn(&mut S, u8) -> Option<bool>,
        found: &mut Vec<Ending>,
    ) {
        for child in self.trie().node_children(node) {
            let mut next = state.clone();
            match step(&mut next, child.byte()) {
                Some(true) => self.collect(child, &mut Vec::new(), found),
                Some(false) => self.visit(child, &next, step, found),
                None => {}
            }
        }
    }

    /// The tokens below a node, with their bytes from there.
    fn collect(&self, node: &TrieNode, rest: &mut Vec<u8>, found: &mut Vec<Ending>) {
        for child in self.trie().node_children(node) {
            rest.push(child.byte());
            let id = child.token_id().filter(|&id| (id as usize) < self.n_tokens);
            found.extend(id.map(|id| (id, rest.clone())));
            self.collect(child, rest, found);
            rest.pop();
        }
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("n_tokens", &self.n_tokens).finish_non_exhaustive()
    }
}

/// The bytes that a token adds to a text. Empty for special tokens, for tokens that are too long, and for tokens with
/// the byte 0xff, with which the trie marks its own special tokens.
fn text_bytes(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    let is_text = !tokenizer.is_special(id) && bytes.len() <= MAX_TOKEN_BYTES && !bytes.contains(&NO_TEXT);
    if is_text { bytes } else { Vec::new() }
}
