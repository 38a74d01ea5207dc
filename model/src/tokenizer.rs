//! Text to token ids and back, over the `tokenizers` library and Hugging Face's `tokenizer.json`.
//!
//! What may come in: how text becomes ids ([`Tokenizer`]), how ids become text ([`Detokenizer`]), and the table of
//! special tokens. Chat templates are in [`crate::chat`]; training a tokenizer belongs to the training crate.
//!
//! Encoding runs the library's own stages, but drives them itself, for three reasons: text that merely looks like a
//! special token stays text when asked, a character outside the vocabulary is an error that names it instead of a
//! gap, and the truncation or padding that some `tokenizer.json` carry is never applied.

mod detokenizer;
mod files;
mod pieces;
mod windows;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use tokenizers::{
    AddedVocabulary, Encoding, Model, NormalizedString, OffsetType, PostProcessor, PreTokenizedString, PreTokenizer,
    Token, normalizer::Range,
};

use self::pieces::PieceTable;
use crate::{
    TokenId,
    error::{Error, Result},
};

pub use self::detokenizer::Detokenizer;
pub(crate) use self::files::{TOKENIZER_CONFIG_FILE, TOKENIZER_FILE};

/// How [`Tokenizer::encode`] reads a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add what the tokenizer's own post-processor adds, for many families a `bos` token in front.
    pub add_special_tokens: bool,
    /// Strings that name a special token become that token; otherwise they stay text.
    pub parse_special_tokens: bool,
}

impl EncodeOptions {
    /// Nothing added, nothing parsed: text that a user wrote, a training document.
    pub const TEXT: Self = Self { add_special_tokens: false, parse_special_tokens: false };
    /// A whole prompt as `transformers` reads it: special tokens are added, and parsed from the text.
    pub const PROMPT: Self = Self { add_special_tokens: true, parse_special_tokens: true };
    /// A text that already spells its special tokens, such as a rendered chat template.
    pub const RENDERED: Self = Self { add_special_tokens: false, parse_special_tokens: true };
}

/// How ids become text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
}

/// A token with a role: where a document begins, where an answer ends, ...
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    /// Its id.
    pub id: TokenId,
    /// Its string, as chat templates write it.
    pub content: String,
}

/// A tokenizer as a model dir holds it. Clones share one copy.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    /// Bytes that are read as a whole, at most.
    longest_word: usize,
}

struct Inner {
    library: tokenizers::Tokenizer,
    /// The added tokens once more, set to leave special tokens in the text as text.
    text_vocabulary: AddedVocabulary,
    pieces: PieceTable,
    special_tokens: BTreeMap<TokenId, String>,
    /// What the library's model answers for an unknown character, if it has such a token.
    model_unk: Option<TokenId>,
    roles: Roles,
    /// Whether a text may be read in [`windows`].
    may_go_on: bool,
}

/// The special tokens that `tokenizer_config.json` gives a role.
#[derive(Debug, Default)]
struct Roles {
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
    pad: Option<SpecialToken>,
    unk: Option<SpecialToken>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, where there is one, `tokenizer_config.json` from a model dir.
    ///
    /// # Errors
    /// [`Error::Io`] if `tokenizer.json` cannot be read, [`Error::File`] if either file does not hold what it should.
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

    /// Refuses texts with a word of more bytes; where words are not read one by one, longer texts. Each byte of them takes
    /// up to two hundred of memory while it is read.
    #[must_use]
    pub fn with_longest_word(self, n_bytes: usize) -> Self {
        Self { longest_word: n_bytes, ..self }
    }

    /// The ids of `text`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], naming the character, if the vocabulary lacks one and has no token for the unknown; if there is
    /// a [longest word](Self::with_longest_word), for a longer one.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<TokenId>> {
        let library = &self.inner.library;
        let added =
            if options.parse_special_tokens { library.get_added_vocabulary() } else { &self.inner.text_vocabulary };
        self.finish(text, options, |text| Ok(added.extract_and_normalize(library.get_normalizer(), text)))
    }

    /// The ids of a rendered chat in which `mark` breaks up those special-token strings that must stay text. Special
    /// tokens are parsed first, then the marks are taken out.
    pub(crate) fn encode_marked(&self, text: &str, mark: char, options: EncodeOptions) -> Result<Vec<TokenId>> {
        let library = &self.inner.library;
        self.finish(text, options, |text| {
            let mut split = library.get_added_vocabulary().extract_and_normalize(library.get_normalizer(), text);
            let without_mark = |piece: &mut NormalizedString| {
                piece.filter(|character| character != mark);
                Ok(())
            };
            split.normalize(without_mark).map_err(from_library)?;
            Ok(split)
        })
    }

    fn finish(
        &self,
        text: &str,
        options: EncodeOptions,
        read: impl Fn(&str) -> Result<PreTokenizedString>,
    ) -> Result<Vec<TokenId>> {
        let ids = self.ids_in_windows(text, windows::WINDOW_BYTES, read)?;
        match self.inner.library.get_post_processor() {
            Some(post_processor) if options.add_special_tokens => post_process(post_processor, ids),
            _ => Ok(ids),
        }
    }

    /// The text of `ids`.
    ///
    /// Bytes that are no UTF-8 become U+FFFD. An id without a token stands for no text: a model's output may be wider
    /// than its tokenizer's vocabulary.
    pub fn decode(&self, ids: &[TokenId], options: DecodeOptions) -> String {
        let mut detokenizer = Detokenizer::new(self, options);
        let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// The token with this id as the vocabulary spells it, such as `Ġthe`.
    pub fn token(&self, id: TokenId) -> Option<String> {
        self.inner.library.id_to_token(id)
    }

    /// The id of a token as the vocabulary spells it.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.inner.library.token_to_id(token)
    }

    /// The bytes that a token adds to a text; of a special token, its string. Empty for an id without a token.
    pub fn token_bytes(&self, id: TokenId) -> Vec<u8> {
        self.inner.pieces.bytes(id).to_vec()
    }

    /// One more than the largest id, added tokens included: the least `vocab_size` that a model needs.
    pub fn vocab_size(&self) -> usize {
        self.inner.pieces.len()
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

    /// The token that ends a document or an answer. Models may end on others too: see their generation config.
    pub fn eos(&self) -> Option<SpecialToken> {
        self.inner.roles.eos.clone()
    }

    /// The token that fills up rows of a batch.
    pub fn pad(&self) -> Option<SpecialToken> {
        self.inner.roles.pad.clone()
    }

    /// The token for what the vocabulary lacks.
    pub fn unk(&self) -> Option<SpecialToken> {
        self.inner.roles.unk.clone()
    }

    fn pre_tokenize(&self, split: &mut PreTokenizedString) -> Result<()> {
        match self.inner.library.get_pre_tokenizer() {
            Some(pre_tokenizer) => pre_tokenizer.pre_tokenize(split).map_err(from_library),
            None => Ok(()),
        }
    }

    fn tokenize(&self, mut split: PreTokenizedString) -> Result<PreTokenizedString> {
        self.pre_tokenize(&mut split)?;
        split.tokenize(|piece| Ok(self.tokenize_piece(piece)?)).map_err(from_library)?;
        Ok(split)
    }

    fn tokenize_piece(&self, piece: &NormalizedString) -> Result<Vec<Token>> {
        let text = piece.get();
        self.tokenize_text(text).map_err(|lack| match lack {
            Lack::Library(what) => Error::Tokenizer { what, hint: String::new() },
            Lack::Character(at) => self.missing_character(original_character(piece, text, at)),
        })
    }

    /// Runs the library's model over one word. Special tokens cannot come out: some models hold their strings as
    /// ordinary pieces, so such a piece is cut after its first character.
    fn tokenize_text(&self, text: &str) -> Result<Vec<Token>, Lack> {
        let tokens = match self.inner.library.get_model().tokenize(text) {
            Ok(tokens) => tokens,
            Err(error) => {
                return Err(self.first_lack(text).unwrap_or_else(|| Lack::Library(error.to_string())));
            }
        };
        if let Some(special) = tokens.iter().find(|token| self.is_injected(token.id)) {
            return self.tokenize_cut(text, special.offsets.0);
        }
        // Models without an unknown token leave out what they lack; the offsets then end early.
        let covered = tokens.last().map_or(0, |token| token.offsets.1);
        if covered < text.len()
            && let Some(lack) = self.first_lack(text)
        {
            return Err(lack);
        }
        Ok(tokens)
    }

    fn tokenize_cut(&self, text: &str, special_start: usize) -> Result<Vec<Token>, Lack> {
        let first_len = text[special_start..].chars().next().map_or(0, char::len_utf8);
        let cut = special_start + first_len;
        if cut == text.len() {
            // One character, and it is the special token itself: it has no other spelling.
            return Err(Lack::Character(special_start));
        }
        let (left, right) = text.split_at(cut);
        let mut tokens = self.tokenize_text(left)?;
        let right_tokens = self.tokenize_text(right).map_err(|lack| lack.shifted(cut))?;
        tokens.extend(
            right_tokens
                .into_iter()
                .map(|token| Token { offsets: (token.offsets.0 + cut, token.offsets.1 + cut), ..token }),
        );
        Ok(tokens)
    }

    fn is_injected(&self, id: TokenId) -> bool {
        self.is_special(id) && self.inner.model_unk != Some(id)
    }

    /// The first character that the model cannot express by itself.
    fn first_lack(&self, text: &str) -> Option<Lack> {
        let model = self.inner.library.get_model();
        text.char_indices()
            .find(|&(at, character)| {
                let alone = &text[at..at + character.len_utf8()];
                model.tokenize(alone).map_or(true, |tokens| tokens.is_empty())
            })
            .map(|(at, _)| Lack::Character(at))
    }

    fn missing_character(&self, character: char) -> Error {
        Error::Tokenizer {
            what: format!(
                "the character `{}` (U+{:04X}) is not in the vocabulary of {} tokens",
                character.escape_debug(),
                u32::from(character),
                self.vocab_size()
            ),
            hint: "leave it out, or use a tokenizer that covers it (a byte-level one covers every text)".into(),
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

/// Why a word has no tokens.
enum Lack {
    /// The character at this byte of the normalized word is not in the vocabulary.
    Character(usize),
    /// Something else, in the library's words.
    Library(String),
}

impl Lack {
    fn shifted(self, by: usize) -> Self {
        match self {
            Self::Character(at) => Self::Character(at + by),
            library @ Self::Library(_) => library,
        }
    }
}

/// The character as the user wrote it, for the normalized one at byte `at` (byte-level words are not readable).
fn original_character(piece: &NormalizedString, text: &str, at: usize) -> char {
    let normalized = text[at..].chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
    piece
        .get_range_original(Range::Normalized(at..at + normalized.len_utf8()))
        .and_then(|original| original.chars().next())
        .unwrap_or(normalized)
}

fn ids_of(split: &PreTokenizedString) -> Vec<TokenId> {
    split
        .get_splits(tokenizers::OffsetReferential::Original, OffsetType::None)
        .into_iter()
        .filter_map(|(_, _, tokens)| tokens.as_ref())
        .flatten()
        .map(|token| token.id)
        .collect()
}

/// The ids with what the post-processor puts around them. It gets one token in place of all, since the library would take
/// a hundred bytes for each.
fn post_process(post_processor: &tokenizers::PostProcessorWrapper, ids: Vec<TokenId>) -> Result<Vec<TokenId>> {
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
        let what = "the post-processor leaves the text out".to_owned();
        return Err(Error::Tokenizer { what, hint: String::new() });
    };
    let (before, rest) = processed.get_ids().split_at(at);
    Ok([before, &ids, rest.get(1..).unwrap_or_default()].concat())
}

/// The library hands errors through as boxes; ours come back as they were.
fn from_library(error: tokenizers::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(ours) => *ours,
        Err(theirs) => Error::Tokenizer { what: theirs.to_string(), hint: String::new() },
    }
}
