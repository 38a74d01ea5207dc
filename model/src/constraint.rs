//! Structured output: what a text must look like, as the set of tokens that may come next.
//!
//! What may come in: grammars ([`Grammar`]), their compilation against a vocabulary ([`GrammarCompiler`]), and the state
//! of one text on its way through one ([`Constraint`]). The grammars themselves are the work of `llguidance`; its trie of
//! tokens is built from our own vocabulary, without special tokens, so that none of them can come up within a text.

mod schema;
mod state;

use std::{fmt, sync::Arc, thread};

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

pub use self::{
    schema::{check as check_schema, in_lark},
    state::Constraint,
};

/// Longest grammar that is read, in bytes of its source.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;

/// How deep brackets may nest in a regular expression or in a grammar.
const MAX_BRACKETS: usize = 200;

/// Bounds on what a grammar may cost: about 20 ms and some tens of megabytes to compile, and 15 ms for a mask, or some
/// hundreds where it is very ambiguous. The parser keeps 8 bytes for each item of each row: with 2,000 items in a row,
/// what 2,000 levels of right recursion have, 16 MB, and four times that with twice as many.
fn limits() -> ParserLimits {
    ParserLimits { max_lexer_states: 50_000, verbose_errors: false, ..ParserLimits::default() }
}

/// Grammars are compiled recursively, schemas most of all.
const STACK_BYTES: usize = 32 << 20;

/// Signs in a grammar that may join expressions which hold for the same text: the library knows each way in which all of
/// them may have begun.
const MAX_JOINTS: usize = 16;

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
                Constraint::new(matcher, Arc::clone(&self.text_tokens), param)
                    .map_err(|error| GrammarError::whole(format!("cannot be used: {}", first_line(&error))))
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
    if let Grammar::Lark(source) = grammar {
        schema::check_in_lark(source)?;
        let n_joints = source.matches('&').count();
        if n_joints > MAX_JOINTS {
            return Err(GrammarError::whole(format!("must hold at most {MAX_JOINTS} times `&`, got {n_joints}")));
        }
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
