//! Structured output: what a text must look like, as the set of tokens that may come next.
//!
//! What may come in: grammars ([`Grammar`]), their compilation against a vocabulary ([`GrammarCompiler`]), and the state
//! of one text on its way through one ([`Constraint`]). The grammars themselves are the work of `llguidance`; its trie of
//! tokens is built from our own vocabulary, without special tokens, so that none of them can come up within a text.

mod schema;

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use llguidance::{
    Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
};
use serde_json::Value;
use toktrie::{ApproximateTokEnv, INVALID_TOKEN, SimpleVob, TokEnv, TokRxInfo, TokTrie};

use crate::{
    TokenId,
    error::{Error, Result},
    tokenizer::Tokenizer,
};

pub use self::schema::{check as check_schema, in_lark};

/// Longest grammar that is read, in bytes of its source.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;

/// How deep brackets may nest in a regular expression or in a grammar.
const MAX_BRACKETS: usize = 200;

/// Bounds on what a grammar may cost: about 20 ms and some tens of megabytes to compile, 15 ms for a mask.
fn limits() -> ParserLimits {
    ParserLimits { max_lexer_states: 50_000, verbose_errors: false, ..ParserLimits::default() }
}

/// Grammars are compiled recursively, schemas most of all.
const STACK_BYTES: usize = 32 << 20;

/// Longer tokens are left out of the trie, which does not hold them.
const MAX_TOKEN_BYTES: usize = 512;

/// What a text must look like, from its first token to its last.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// JSON that a [JSON Schema](https://json-schema.org/draft/2020-12) describes. What comes between its tokens is at
    /// most one space, or a line break with up to 20 spaces.
    Json(Value),
    /// A regular expression that the whole text matches, with or without anchors at its ends; `\d` is one of ten digits.
    Regex(String),
    /// One of some texts.
    Choice(Vec<String>),
    /// A grammar in Lark's syntax as
    /// [llguidance reads it](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
    Lark(String),
}

/// Why a grammar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct GrammarError {
    /// The place within a schema as a path such as `properties.age`; empty for the whole.
    pub at: String,
    /// What is wrong with it.
    pub what: String,
}

impl GrammarError {
    fn whole(what: impl Into<String>) -> Self {
        Self { at: String::new(), what: what.into() }
    }
}

/// Compiles grammars for one vocabulary.
pub struct GrammarCompiler {
    factory: ParserFactory,
    /// The tokens that are text. A grammar can name others by their ids.
    text_tokens: Arc<SimpleVob>,
}

impl GrammarCompiler {
    /// A compiler for a tokenizer. Takes a moment: the whole vocabulary becomes a trie.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary makes no trie.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let no_trie = |what: String| Error::Tokenizer {
            what: format!("the vocabulary cannot be used for structured output: {what}"),
            hint: String::new(),
        };
        let ids = 0..tokenizer.vocab_size() as TokenId;
        let words: Vec<Vec<u8>> = ids.map(|id| text_bytes(tokenizer, id)).collect();
        let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
        let trie = TokTrie::from(&info, &words);
        let mut text_tokens = trie.alloc_token_set();
        for (id, _) in (0..).zip(&words).filter(|(_, word)| !word.is_empty()) {
            text_tokens.allow_token(id);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| no_trie(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory, text_tokens: Arc::new(text_tokens) })
    }

    /// Compiles a grammar, within limits. `param` is the parameter that asked for it, as clients write it.
    ///
    /// # Errors
    /// What is wrong with the grammar and where, or what this vocabulary cannot write.
    pub fn compile(&self, grammar: &Grammar, param: &'static str) -> Result<Constraint, GrammarError> {
        check_size(grammar)?;
        on_a_deep_stack(|| match self.compile_source(grammar) {
            Ok(matcher) => {
                if matcher.is_stopped() {
                    return Err(GrammarError::whole("allows no text but the empty one"));
                }
                let mut state = State { matcher, text_tokens: Arc::clone(&self.text_tokens), mask: None };
                if let Err(error) = state.mask() {
                    return Err(GrammarError::whole(format!("cannot be used: {}", first_line(error))));
                }
                let is_json = matches!(grammar, Grammar::Json(_));
                Ok(Constraint { state: Arc::new(Mutex::new(state)), param, is_json })
            }
            Err(what) => Err(match grammar {
                Grammar::Json(value) => {
                    schema::locate(value, what, |part| self.compile_source(&Grammar::Json(part)).err())
                }
                _ => GrammarError::whole(what),
            }),
        })
    }

    fn compile_source(&self, grammar: &Grammar) -> Result<Matcher, String> {
        let source = match grammar {
            Grammar::Json(value) => TopLevelGrammar::from_json_schema(schema::with_settings(value.clone())),
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(&with_plain_digits(without_anchors(regex))),
            Grammar::Choice(choices) => {
                let choices: Vec<String> =
                    choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
                // One terminal: as alternatives of a rule, thousands would be more than the parser keeps at a time.
                TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}", choices.join(" | ")))
            }
            Grammar::Lark(source) => TopLevelGrammar::from_lark(source.clone()),
        };
        let mut matcher = Matcher::new(self.factory.create_parser(source));
        // Notices a grammar that is complete from the start.
        matcher.consume_tokens(&[]).map_err(|error| format!("cannot be used: {}", first_line(&error)))?;
        Ok(matcher)
    }
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

/// What the library says, without its notes for its own developers.
fn first_line(error: &impl fmt::Display) -> String {
    const MAX_CHARS: usize = 400;
    let text = error.to_string();
    let text = text.replace("<non-verbose/>", "");
    let text = text.split("<backtrace>").next().unwrap_or_default().trim();
    let text = text.split_once("<state>").map_or(text, |(before, _)| before.trim());
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None if text.is_empty() || text == "NoExtensionBias" => {
            "no text has this form, or none that the vocabulary can write".into()
        }
        None => text.to_owned(),
    }
}

fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        let worker = builder.spawn_scoped(scope, work);
        let worker = worker.map_err(|error| GrammarError::whole(format!("cannot be compiled now: {error}")))?;
        worker.join().unwrap_or_else(|_| Err(GrammarError::whole("is beyond what can be compiled")))
    })
}

/// What a token adds to a text; nothing for special tokens, and for bytes that no text has: the trie marks its own
/// special tokens with 0xff.
fn text_bytes(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    let is_text = !tokenizer.is_special(id) && bytes.len() <= MAX_TOKEN_BYTES && !bytes.contains(&0xff);
    if is_text { bytes } else { Vec::new() }
}

fn check_size(grammar: &Grammar) -> Result<(), GrammarError> {
    let n_bytes = match grammar {
        Grammar::Json(value) => {
            schema::check(value)?;
            value.to_string().len()
        }
        Grammar::Regex(source) | Grammar::Lark(source) => source.len(),
        Grammar::Choice(choices) => choices.iter().map(String::len).sum(),
    };
    if n_bytes > MAX_SOURCE_BYTES {
        return Err(GrammarError::whole(format!("must be at most {MAX_SOURCE_BYTES} bytes, got {n_bytes}")));
    }
    if let Grammar::Lark(source) | Grammar::Regex(source) = grammar {
        let depth = bracket_depth(source);
        if depth > MAX_BRACKETS {
            let what = format!("must nest brackets at most {MAX_BRACKETS} deep, got {depth}");
            return Err(GrammarError::whole(what));
        }
    }
    if let Grammar::Choice(choices) = grammar
        && (choices.is_empty() || choices.iter().any(String::is_empty))
    {
        return Err(GrammarError::whole("must hold at least one text, none of them empty"));
    }
    Ok(())
}

/// The whole text is to match, so anchors at both ends say nothing; the library knows none.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(before) if before.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0 => before,
        _ => regex,
    }
}

/// `\d` as the ten digits, which it means everywhere; which others it means, depends on whom one asks.
fn with_plain_digits(regex: &str) -> String {
    let mut plain = String::with_capacity(regex.len());
    let mut characters = regex.chars();
    while let Some(character) = characters.next() {
        match (character, if character == '\\' { characters.next() } else { None }) {
            (_, Some('d')) => plain.push_str("[0-9]"),
            (_, escaped) => {
                plain.push(character);
                plain.extend(escaped);
            }
        }
    }
    plain
}

/// How deep brackets nest, those behind a backslash and within double quotes not counted.
fn bracket_depth(source: &str) -> usize {
    let (mut depth, mut deepest, mut is_quoted, mut is_escaped) = (0usize, 0, false, false);
    for character in source.chars() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '\n' => is_quoted = false,
            '(' | '[' | '{' if !is_quoted => depth += 1,
            ')' | ']' | '}' if !is_quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// A text on its way through a grammar. A clone starts where the original stands and goes its own way.
pub struct Constraint {
    state: Arc<Mutex<State>>,
    param: &'static str,
    is_json: bool,
}

struct State {
    matcher: Matcher,
    text_tokens: Arc<SimpleVob>,
    /// Which tokens may come next, once that is known.
    mask: Option<Result<SimpleVob, String>>,
}

impl State {
    fn mask(&mut self) -> &Result<SimpleVob, String> {
        let Self { matcher, text_tokens, mask } = self;
        mask.get_or_insert_with(|| {
            let mut mask = matcher.compute_mask().map_err(|error| error.to_string())?;
            mask.and(text_tokens);
            if mask.is_zero() && !matcher.is_accepting().unwrap_or(false) { Err(String::new()) } else { Ok(mask) }
        })
    }
}

impl Constraint {
    /// The parameter that asked for it.
    pub fn param(&self) -> &'static str {
        self.param
    }

    /// Whether a part of the text would be no answer at all, because it is JSON.
    pub fn is_json(&self) -> bool {
        self.is_json
    }

    /// The same, for a grammar that is not JSON by its kind but whose text is of use only as a whole.
    pub fn as_json(self) -> Self {
        Self { is_json: true, ..self }
    }

    /// Starts to compute which tokens may come next on another thread, while this one runs the model.
    pub fn prepare(&self) {
        let state = Arc::clone(&self.state);
        // Whoever needs it before it is started computes it there.
        rayon::spawn(move || {
            lock(&state).mask();
        });
    }

    /// The logits, `[vocab_size]`, with all tokens ruled out that cannot come next; of `end_ids`, those that end a text,
    /// where it may end.
    ///
    /// # Errors
    /// [`Error::Param`] if the grammar has grown beyond its limits, or if no token of the vocabulary can go on.
    pub fn restrict(&self, logits: &[f32], end_ids: &BTreeSet<TokenId>) -> Result<Vec<f32>> {
        let mut state = lock(&self.state);
        let may_end = state.matcher.is_accepting().map_err(|error| self.failed(&error.to_string()))?;
        let mut allowed = vec![f32::NEG_INFINITY; logits.len()];
        let mut allow = |id: usize| {
            if let (Some(to), Some(from)) = (allowed.get_mut(id), logits.get(id)) {
                *to = *from;
            }
        };
        match state.mask() {
            // The text can end, and nothing else.
            Ok(mask) if mask.is_zero() && end_ids.is_empty() => return Err(self.failed("")),
            Ok(mask) => mask.iter_set_entries(&mut allow),
            Err(_) if may_end && !end_ids.is_empty() => {}
            Err(what) => return Err(self.failed(what)),
        }
        for &id in end_ids {
            if may_end {
                allow(id as usize);
            }
        }
        Ok(allowed)
    }

    /// Adds a token that was not ruled out. Returns whether the text is complete: nothing may follow.
    ///
    /// # Errors
    /// [`Error::Param`] if the grammar does not allow it, or has grown beyond its limits.
    pub fn accept(&mut self, id: TokenId) -> Result<bool> {
        let mut state = lock(&self.state);
        state.mask = None;
        state.matcher.consume_token(id).map_err(|error| self.failed(&error.to_string()))?;
        Ok(state.matcher.is_stopped())
    }

    fn failed(&self, what: &str) -> Error {
        let what = what.split(['\n', '<']).next().unwrap_or_default();
        let what = if what.is_empty() || what == "NoExtensionBias" {
            "no token of the vocabulary can go on with the text"
        } else {
            what
        };
        Error::Param { name: self.param, what: format!("cannot be kept to the end: {what}") }
    }
}

impl Clone for Constraint {
    fn clone(&self) -> Self {
        let state = lock(&self.state);
        // The lexer, which learns as it goes, is shared.
        let copy = State {
            matcher: state.matcher.clone(),
            text_tokens: Arc::clone(&state.text_tokens),
            mask: state.mask.clone(),
        };
        Self { state: Arc::new(Mutex::new(copy)), param: self.param, is_json: self.is_json }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("param", &self.param).finish_non_exhaustive()
    }
}

/// A panic in the library is caught there and makes the matcher report an error from then on.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
