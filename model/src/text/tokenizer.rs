//! Tokenizers: text to token ids and back, using the `tokenizers` library and Hugging Face's `tokenizer.json`.
//!
//! Scope: encoding ([`Tokenizer`]), decoding ([`Detokenizer`]), and the table of special tokens. Chat templates are in
//! [`crate::text::chat`]; the training crate trains tokenizers.
//!
//! Encoding runs the library's stages, but calls them itself, for three reasons: strings that look like special tokens
//! can stay text, a character outside the vocabulary is an error that names it instead of a gap, and the truncation or
//! padding in some `tokenizer.json` is not applied.

mod checks;
mod config_tokens;
mod detokenizer;
mod fairseq;
mod files;
mod pairs;
mod pieces;
pub(crate) mod sentence_piece;
mod tekken;
mod translators;
mod windows;

use std::{collections::BTreeMap, iter, ops::Range, path::Path, sync::Arc};

use tokenizers::{
    AddedVocabulary, Encoding, Model, ModelWrapper, NormalizedString, PostProcessor, PreTokenizedString, PreTokenizer,
    Token, normalizer,
};

use self::{pieces::PieceTable, translators::Cutter};
use crate::{
    TokenId,
    error::{Error, Result},
    system::panics,
};

pub(crate) use self::config_tokens::looks_like_control;
pub use self::{
    detokenizer::Detokenizer,
    pairs::{CutAt, EncodedTexts},
};
pub(crate) use self::{
    files::{TOKENIZER_CONFIG_FILE, TOKENIZER_FILE},
    sentence_piece::SENTENCE_PIECE_FILE,
    tekken::TEKKEN_FILE,
    translators::{BPE_PIECES_FILE, SOURCE_PIECES_FILE},
};

/// Options of [`Tokenizer::encode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the tokens of the post-processor, for many families a BOS token in front.
    pub add_special_tokens: bool,
    /// Parse strings of special tokens as these tokens; otherwise they stay text.
    pub parse_special_tokens: bool,
}

impl EncodeOptions {
    /// No special tokens are added or parsed: for text written by a user, or training documents.
    pub const TEXT: Self = Self { add_special_tokens: false, parse_special_tokens: false };
    /// Special tokens are added, and parsed in the text: for whole prompts, as in `transformers`.
    pub const PROMPT: Self = Self { add_special_tokens: true, parse_special_tokens: true };
    /// For text that already contains its special tokens, such as a rendered chat template.
    pub const RENDERED: Self = Self { add_special_tokens: false, parse_special_tokens: true };
}

/// Options for decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Omit special tokens from the text.
    pub skip_special_tokens: bool,
}

/// A token with a role, such as beginning of document or end of answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    /// Its id.
    pub id: TokenId,
    /// Its string, as in chat templates.
    pub content: String,
}

/// A tokenizer of a model dir. Clones share one copy.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    /// Maximum size of a word in bytes.
    longest_word: usize,
    /// Ids from this on are not in the model's vocabulary.
    n_known: usize,
}

struct Inner {
    library: tokenizers::Tokenizer,
    /// What cuts texts into pieces in place of the library's model, which then only numbers them.
    cutter: Option<Cutter>,
    /// The added tokens, configured to leave special tokens in the text as text.
    text_vocabulary: AddedVocabulary,
    pieces: PieceTable,
    special_tokens: BTreeMap<TokenId, String>,
    /// The library model's token for unknown characters, if it has one.
    model_unk: Option<TokenId>,
    roles: Roles,
    /// Whether a text may be split into [`windows`].
    may_go_on: bool,
}

/// The special tokens with a role in `tokenizer_config.json`.
#[derive(Debug, Default)]
struct Roles {
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
    pad: Option<SpecialToken>,
    unk: Option<SpecialToken>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, if present, `tokenizer_config.json` from a model dir.
    ///
    /// # Errors
    /// [`Error::Io`] if `tokenizer.json` cannot be read, [`Error::File`] if either file is invalid.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        files::read_dir(dir)
    }

    /// Builds a tokenizer from the bytes of `tokenizer.json` and, optionally, of `tokenizer_config.json`.
    /// `origin` is the path that messages name: the file `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::File`] if the bytes are not JSON, or describe a tokenizer that is not supported.
    pub fn from_json(tokenizer_json: &[u8], config_json: Option<&[u8]>, origin: &Path) -> Result<Self> {
        files::parse(tokenizer_json, config_json, origin)
    }

    /// Limits the size of words in bytes or, if the tokenizer cannot split texts, of whole texts. Words and texts of up
    /// to 128 KiB are always accepted. Tokenizing a word takes up to two hundred times its size in memory.
    #[must_use]
    pub fn with_longest_word(self, n_bytes: usize) -> Self {
        Self { longest_word: n_bytes, ..self }
    }

    /// The tokenizer for a model with a vocabulary of `vocab_size`. If the tokenizer has more tokens, such as one for
    /// images, texts with such a token cannot be encoded.
    #[must_use]
    pub fn for_vocabulary(self, vocab_size: usize) -> Self {
        Self { n_known: vocab_size, ..self }
    }

    /// Encodes `text`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], naming the character, if it is not in the vocabulary and there is no token for unknown
    /// characters; naming the token, if it is not in the [model's vocabulary](Self::for_vocabulary); for a word that exceeds
    /// the [limit](Self::with_longest_word); if the library panics.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<TokenId>> {
        guarded(|| self.encode_unguarded(text, options))
    }

    /// [`encode`](Self::encode), without turning panics into errors.
    fn encode_unguarded(&self, text: &str, options: EncodeOptions) -> Result<Vec<TokenId>> {
        let library = &self.inner.library;
        let added =
            if options.parse_special_tokens { library.get_added_vocabulary() } else { &self.inner.text_vocabulary };
        let read = |text: &str| Ok(added.extract_and_normalize(library.get_normalizer(), text));
        self.finish(self.split_language(text), options, read)
    }

    /// Encodes a rendered chat in which `mark` splits the special-token strings that must stay text. Special tokens are
    /// parsed first, then the marks are removed.
    pub(crate) fn encode_marked(&self, text: &str, mark: char, options: EncodeOptions) -> Result<Vec<TokenId>> {
        guarded(|| self.finish((None, text), options, |text| self.read_marked(text, mark)))
    }

    /// The tokens of [`encode_marked`](Self::encode_marked), each with its byte range in `text`; `None` if the
    /// post-processor added it. A token that is a part of a character has all bytes of the character.
    pub(crate) fn locate_marked(&self, text: &str, mark: char, options: EncodeOptions) -> Result<Located> {
        guarded(|| self.locate_unguarded(text, mark, options))
    }

    fn locate_unguarded(&self, text: &str, mark: char, options: EncodeOptions) -> Result<Located> {
        let read = |text: &str| self.read_marked(text, mark);
        let tokenize = |piece: &NormalizedString| {
            let mut tokens = self.tokenize_piece(piece)?;
            for token in &mut tokens {
                let (start, end) = token.offsets;
                let original = piece.convert_offsets(normalizer::Range::Normalized(start..end));
                token.offsets = original.map_or(token.offsets, |original| (original.start, original.end));
            }
            Ok(tokens)
        };
        let stages = windows::Stages { read: &read, tokenize: &tokenize };
        let mut located = Vec::new();
        let mut push = |id, bytes| located.push((id, Some(bytes)));
        self.tokens_in_windows(text, windows::WINDOW_BYTES, &stages, &mut push)?;
        self.require_known(located.iter().map(|(id, _)| *id))?;
        match self.inner.library.get_post_processor() {
            Some(post_processor) if options.add_special_tokens => {
                let [before, after] = added_tokens(post_processor)?;
                let added = |ids: Vec<TokenId>| ids.into_iter().map(|id| (id, None));
                Ok(added(before).chain(located).chain(added(after)).collect())
            }
            _ => Ok(located),
        }
    }

    fn read_marked(&self, text: &str, mark: char) -> Result<PreTokenizedString> {
        let library = &self.inner.library;
        let mut split = library.get_added_vocabulary().extract_and_normalize(library.get_normalizer(), text);
        let without_mark = |piece: &mut NormalizedString| {
            piece.filter(|character| character != mark);
            Ok(())
        };
        split.normalize(without_mark).map_err(from_library)?;
        Ok(split)
    }

    fn finish(
        &self,
        (language, text): (Option<TokenId>, &str),
        options: EncodeOptions,
        read: impl Fn(&str) -> Result<PreTokenizedString>,
    ) -> Result<Vec<TokenId>> {
        let mut ids = self.ids_in_windows(text, windows::WINDOW_BYTES, read)?;
        ids.splice(..0, language);
        self.require_known(ids.iter().copied())?;
        match self.inner.library.get_post_processor() {
            Some(post_processor) if options.add_special_tokens => {
                let [before, after] = added_tokens(post_processor)?;
                Ok([before, ids, after].concat())
            }
            _ => Ok(ids),
        }
    }

    /// Refuses tokens that are not in the model's vocabulary.
    fn require_known(&self, mut ids: impl Iterator<Item = TokenId>) -> Result<()> {
        let Some(id) = ids.find(|&id| id as usize >= self.n_known) else { return Ok(()) };
        let (token, n_known) = (self.token(id).unwrap_or_default(), self.n_known);
        Err(Error::Tokenizer {
            what: format!("the token `{token}` (id {id}) is not in the model's vocabulary of {n_known} tokens"),
            hint: format!("remove `{token}` from the text: only the tokenizer has it"),
        })
    }

    /// Decodes `ids`.
    ///
    /// Bytes that are not UTF-8 become U+FFFD. An id without a token has no text: a model's output may be wider than
    /// its tokenizer's vocabulary.
    pub fn decode(&self, ids: &[TokenId], options: DecodeOptions) -> String {
        let mut detokenizer = Detokenizer::new(self, options);
        let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// The token with this id as spelled in the vocabulary, such as `Ġthe`.
    pub fn token(&self, id: TokenId) -> Option<String> {
        self.inner.library.id_to_token(id)
    }

    /// The id of a token as spelled in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.inner.library.token_to_id(token)
    }

    /// The bytes that a token adds to a text; for a special token, its string. Empty for an id without a token.
    pub fn token_bytes(&self, id: TokenId) -> Vec<u8> {
        self.inner.pieces.bytes(id).to_vec()
    }

    /// Maximum number of bytes of a text of `n_tokens`. `None` if unknown, because the tokenizer may drop characters or
    /// turn any number of them into one token.
    pub fn max_text_bytes(&self, n_tokens: usize) -> Option<usize> {
        let Inner { library, pieces, model_unk, may_go_on, .. } = &*self.inner;
        let added = library.get_added_vocabulary().get_added_tokens_decoder();
        let takes_spaces = added.values().any(|token| token.lstrip || token.rstrip);
        if !may_go_on || model_unk.is_some() || takes_spaces {
            return None;
        }
        let longest = (0..pieces.len() as TokenId).map(|id| pieces.bytes(id).len()).max()?;
        // NFC is the only normalizer with which `may_go_on` is true. It shortens a text at most to a third; the factor
        // leaves a margin.
        let factor = if library.get_normalizer().is_some() { 4 } else { 1 };
        n_tokens.checked_mul(longest)?.checked_mul(factor)
    }

    /// Bytes of the text of `ids`. Special tokens are no text.
    pub fn text_bytes(&self, ids: &[TokenId]) -> u64 {
        let bytes_of = |&id: &TokenId| if self.is_special(id) { 0 } else { self.inner.pieces.bytes(id).len() as u64 };
        ids.iter().map(bytes_of).sum()
    }

    /// The first id, among the ids that both tokenizers have, whose tokens differ.
    pub fn first_difference(&self, other: &Tokenizer) -> Option<TokenId> {
        let n_ids = self.vocab_size().min(other.vocab_size()) as TokenId;
        (0..n_ids).find(|&id| self.inner.pieces.bytes(id) != other.inner.pieces.bytes(id))
    }

    /// The largest id plus 1, including added tokens, except tokens that the model [does not
    /// have](Self::for_vocabulary): the minimum `vocab_size` of a model.
    pub fn vocab_size(&self) -> usize {
        self.inner.pieces.len().min(self.n_known)
    }

    /// Every special token, by id.
    pub fn special_tokens(&self) -> Vec<(TokenId, String)> {
        self.inner.special_tokens.iter().map(|(&id, content)| (id, content.clone())).collect()
    }

    /// Whether this id is a special token.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.inner.special_tokens.contains_key(&id)
    }

    /// The token that begins a document.
    pub fn bos(&self) -> Option<SpecialToken> {
        self.inner.roles.bos.clone()
    }

    /// The token that ends a document or an answer. Models may end with others too: see their generation config.
    pub fn eos(&self) -> Option<SpecialToken> {
        self.inner.roles.eos.clone()
    }

    /// The token that fills up rows of a batch.
    pub fn pad(&self) -> Option<SpecialToken> {
        self.inner.roles.pad.clone()
    }

    /// The token for unknown characters.
    pub fn unk(&self) -> Option<SpecialToken> {
        self.inner.roles.unk.clone()
    }

    fn pre_tokenize(&self, split: &mut PreTokenizedString) -> Result<()> {
        match self.inner.library.get_pre_tokenizer() {
            Some(pre_tokenizer) => pre_tokenizer.pre_tokenize(split).map_err(from_library),
            None => Ok(()),
        }
    }

    fn tokenize_piece(&self, piece: &NormalizedString) -> Result<Vec<Token>> {
        let text = piece.get();
        self.tokenize_text(text).map_err(|lack| match lack {
            EncodeFailure::Library(what) => Error::Tokenizer { what, hint: String::new() },
            EncodeFailure::Character(at) => self.missing_character(original_character(piece, text, at)),
        })
    }

    /// Tokenizes one word without special tokens. Some models have the strings of special tokens in their vocabulary
    /// and would return them: such a word is split after the first character of each of these tokens, and its parts are
    /// tokenized again.
    fn tokenize_text(&self, text: &str) -> Result<Vec<Token>, EncodeFailure> {
        let mut tokens = Vec::new();
        // Start and end of the parts that are left, in reverse.
        let mut parts = vec![(0, text.len())];
        while let Some((start, end)) = parts.pop() {
            let found = self.tokenize_part(&text[start..end]).map_err(|lack| lack.shifted(start))?;
            let found = found.into_iter().map(|token| {
                let offsets = (token.offsets.0 + start, token.offsets.1 + start);
                Token { offsets, ..token }
            });
            let found: Vec<Token> = found.collect();
            let is_injected = |token: &&Token| self.is_injected(token, text);
            let specials = || found.iter().filter(is_injected).map(|token| token.offsets.0);
            let Some(first) = specials().next() else {
                tokens.extend(found);
                continue;
            };
            let cuts = specials().map(|at| at + text[at..].chars().next().map_or(0, char::len_utf8));
            let cuts = cuts.filter(|&cut| cut < end);
            let mut bounds: Vec<usize> = iter::once(start).chain(cuts).chain([end]).collect();
            bounds.dedup();
            if bounds.len() == 2 {
                // The special token is a single character: it cannot be split.
                return Err(EncodeFailure::Character(first));
            }
            parts.extend(bounds.windows(2).rev().map(|bounds| (bounds[0], bounds[1])));
        }
        Ok(tokens)
    }

    /// Runs the library's model.
    fn tokenize_part(&self, text: &str) -> Result<Vec<Token>, EncodeFailure> {
        let tokens = match self.model().tokenize(text) {
            Ok(tokens) => tokens,
            Err(error) => {
                return Err(self.first_failure(text).unwrap_or_else(|| EncodeFailure::Library(error.to_string())));
            }
        };
        // Models without an unknown token skip missing characters; the offsets then end early.
        let covered = tokens.last().map_or(0, |token| token.offsets.1);
        if covered < text.len()
            && let Some(lack) = self.first_failure(text)
        {
            return Err(lack);
        }
        Ok(match self.inner.cutter {
            Some(_) => tokens.into_iter().map(|token| self.numbered(token, text)).collect(),
            None => tokens,
        })
    }

    /// The model that splits texts into tokens.
    fn model(&self) -> &ModelWrapper {
        self.inner.cutter.as_ref().map_or(self.inner.library.get_model(), |cutter| &cutter.model)
    }

    /// A piece with its number in the vocabulary, by its text: one that the cutter does not know may have one.
    fn numbered(&self, token: Token, text: &str) -> Token {
        let value = text.get(token.offsets.0..token.offsets.1).unwrap_or(&token.value).to_owned();
        let number = self.inner.library.get_model().token_to_id(&value).or(self.inner.model_unk);
        Token { id: number.unwrap_or_default(), value, offsets: token.offsets }
    }

    /// Whether `token` is a special token whose string is spelled out in `text`. (A byte-fallback token, which
    /// represents a single byte, may also be marked as special; it is allowed.)
    fn is_injected(&self, token: &Token, text: &str) -> bool {
        self.is_special(token.id)
            && self.inner.model_unk != Some(token.id)
            && text.get(token.offsets.0..token.offsets.1) == Some(&*token.value)
    }

    /// The first character that the model cannot encode.
    fn first_failure(&self, text: &str) -> Option<EncodeFailure> {
        let model = self.model();
        text.char_indices()
            .find(|&(at, character)| {
                let alone = &text[at..at + character.len_utf8()];
                model.tokenize(alone).map_or(true, |tokens| tokens.is_empty())
            })
            .map(|(at, _)| EncodeFailure::Character(at))
    }

    fn missing_character(&self, character: char) -> Error {
        Error::Tokenizer {
            what: format!(
                "the character `{}` (U+{:04X}) is not in the vocabulary of {} tokens",
                character.escape_debug(),
                u32::from(character),
                self.vocab_size()
            ),
            hint: "remove it, or use a tokenizer that supports it (byte-level tokenizers support every text)".into(),
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("roles", &self.inner.roles)
            .finish_non_exhaustive()
    }
}

/// Why a word cannot be encoded.
enum EncodeFailure {
    /// The character at this byte of the normalized word is not in the vocabulary.
    Character(usize),
    /// Another error, from the library.
    Library(String),
}

impl EncodeFailure {
    fn shifted(self, by: usize) -> Self {
        match self {
            Self::Character(at) => Self::Character(at + by),
            library @ Self::Library(_) => library,
        }
    }
}

/// The character in the user's text for the normalized one at byte `at` (byte-level words are not readable).
fn original_character(piece: &NormalizedString, text: &str, at: usize) -> char {
    let normalized = text[at..].chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
    piece
        .get_range_original(normalizer::Range::Normalized(at..at + normalized.len_utf8()))
        .and_then(|original| original.chars().next())
        .unwrap_or(normalized)
}

/// The tokens that the post-processor adds before and after a text. The post-processor gets a single token in place of
/// the text's, since the library would use a hundred bytes for each.
fn added_tokens(post_processor: &tokenizers::PostProcessorWrapper) -> Result<[Vec<TokenId>; 2]> {
    let (words, offsets, others) = (vec![None], vec![(0, 0)], Vec::new());
    let stand_in = Encoding::new(
        vec![0],
        vec![0],
        vec![String::new()],
        words,
        offsets,
        vec![0],
        vec![1],
        others,
        Default::default(),
    );
    let processed = post_processor.process(stand_in, None, true).map_err(from_library)?;
    let Some(at) = processed.get_special_tokens_mask().iter().position(|is_special| *is_special == 0) else {
        let what = "the post-processor drops the text".to_owned();
        return Err(Error::Tokenizer { what, hint: String::new() });
    };
    let (before, rest) = processed.get_ids().split_at(at);
    Ok([before.to_vec(), rest.get(1..).unwrap_or_default().to_vec()])
}

/// Tokens with their bytes in the text.
type Located = Vec<(TokenId, Option<Range<usize>>)>;

/// Runs the library's stages. They panic on some inputs of some tokenizers, which becomes an error.
fn guarded<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    panics::caught(run).unwrap_or_else(|panic| {
        Err(Error::Tokenizer {
            what: format!("the `tokenizers` library fails on this text: {panic}"),
            hint: "the tokenizer of this model is faulty: use another text, or a corrected `tokenizer.json`".into(),
        })
    })
}

/// Unwraps our own errors from the library's boxed errors.
fn from_library(error: tokenizers::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(ours) => *ours,
        Err(theirs) => Error::Tokenizer { what: theirs.to_string(), hint: String::new() },
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    /// A Unigram model, which has its special tokens `</s>` and `$` as pieces.
    fn unigram() -> Tokenizer {
        let special = |id: TokenId, content: &str| {
            json!({
                "id": id, "content": content, "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        };
        let pieces = ["<unk>", "</s>", "$", "<", "/", "s", ">", "s>"].map(|piece| match piece {
            "<unk>" | "</s>" | "$" => json!([piece, 0.0]),
            _ => json!([piece, -2.0]),
        });
        let json = json!({
            "added_tokens": [special(0, "<unk>"), special(1, "</s>"), special(2, "$")],
            "decoder": { "type": "Fuse" },
            "model": { "type": "Unigram", "unk_id": 0, "vocab": pieces },
        });
        Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
    }

    /// One word with many strings of special tokens takes neither a deep stack nor quadratic time.
    #[test]
    fn encoding_100000_special_token_strings_needs_little_stack() {
        const N: usize = 100_000;
        let tokenizer = unigram();
        let encode = move || tokenizer.encode(&"</s>".repeat(N), EncodeOptions::TEXT);
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(encode).unwrap();
        let ids = thread.join().unwrap().unwrap();
        assert_eq!(ids, [3, 4, 7].repeat(N), "`<`, `/`, `s>`");
    }

    #[test]
    fn max_text_bytes_is_known_only_if_no_character_is_dropped() {
        let tokenizer = |normalizer: serde_json::Value, rstrip: bool| {
            let json = json!({
                "added_tokens": [{
                    "id": 2, "content": "<end>", "special": true,
                    "single_word": false, "lstrip": false, "rstrip": rstrip, "normalized": false,
                }],
                "normalizer": normalizer,
                "pre_tokenizer": {
                    "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
                },
                "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
                "model": { "type": "BPE", "vocab": { "a": 0, "aa": 1 }, "merges": [["a", "a"]] },
            });
            Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
        };
        assert_eq!(tokenizer(json!(null), false).max_text_bytes(10), Some(50));
        assert_eq!(tokenizer(json!({ "type": "NFC" }), false).max_text_bytes(10), Some(200));
        assert_eq!(
            tokenizer(json!({ "type": "Strip" , "strip_left": true, "strip_right": true }), false).max_text_bytes(10),
            None
        );
        assert_eq!(tokenizer(json!(null), true).max_text_bytes(10), None);
        assert_eq!(unigram().max_text_bytes(10), None);
    }

    #[test]
    fn one_character_special_token_in_text_is_rejected_by_name() {
        let error = unigram().encode("</s></s>s$", EncodeOptions::TEXT).unwrap_err().to_string();
        assert!(error.contains("the character `$` (U+0024)"), "{error}");
    }
}
