//! Structured output: grammars as sets of allowed next tokens.
//!
//! Scope: grammars ([`Grammar`]), their compilation for a vocabulary ([`GrammarCompiler`]), and the state of one text
//! ([`Constraint`]). `llguidance` implements the grammars; its token trie is built from the vocabulary without special
//! tokens, so these occur within a text only where a grammar refers to them by id, if the caller allows them.

mod library_limits;
mod schema;
mod state;
mod task_threads;
mod vocabulary;
mod watch;

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
    text::tokenizer::Tokenizer,
};

use self::vocabulary::Vocabulary;
pub use self::{
    schema::{MAX_VALUES as MAX_SCHEMA_VALUES, check as check_schema, in_lark, lenient, log_passed_over},
    state::Constraint,
    watch::{AfterGrammar, Mark, Outlook, Watch, WatchRules},
};

/// Maximum size of a grammar's source in bytes.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;

/// Maximum nesting of brackets in a regular expression or a grammar.
const MAX_BRACKETS: usize = 200;

/// Limits on the cost of a grammar: about 20 ms and some tens of megabytes to compile, and 15 ms per mask, or some
/// hundreds if it is very ambiguous. The parser keeps 8 bytes for each item of each row. The default limit of 2,000
/// items per row admits right recursion 2,000 levels deep, which takes 16 MB; twice the limit would take four times
/// that.
fn limits() -> ParserLimits {
    ParserLimits { max_lexer_states: 100_000, verbose_errors: false, ..ParserLimits::default() }
}

/// Stack size for compiling, which recurses along brackets and along chains of names and references: twice what the
/// longest chains need within the limits below and the limits of schemas.
const STACK_BYTES: usize = 128 << 20;

/// Maximum number of rules and terminals in a grammar.
const MAX_DEFINITIONS: usize = 4_000;

/// Maximum number of operators in a grammar that intersect expressions: the library tracks every combination of their
/// states.
const MAX_JOINTS: usize = 16;

/// Maximum number of optional parts, as in `a?b*`, in a regular expression, a grammar, or the patterns of a schema: the
/// library takes a second for this many in a row, and four times as long for twice as many.
const MAX_OPTIONAL: usize = 5_000;

/// A grammar for a whole text.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// JSON that follows a [JSON Schema](https://json-schema.org/draft/2020-12), with members in the order of the schema.
    /// Between its tokens there is at most one space, or a line break with up to 20 spaces.
    Json(Value),
    /// A regular expression that matches the whole text, with or without anchors; `\d` means the ten ASCII digits.
    Regex(String),
    /// One of several texts.
    Choice(Vec<String>),
    /// A Lark grammar in [llguidance's syntax](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
    Lark(String),
}

/// Why a grammar is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct GrammarError {
    /// The location in a schema as a path such as `properties.age`; empty for the whole schema.
    pub at: String,
    /// The description of the error.
    pub what: String,
}

impl GrammarError {
    fn whole(what: impl Into<String>) -> Self {
        Self { at: String::new(), what: what.into() }
    }
}

/// Checks that a schema can be enforced as a whole.
///
/// # Errors
/// The schema is invalid, has a keyword that cannot be enforced, or exceeds a limit; with the location.
pub fn check_enforceable(schema: &Value) -> Result<(), GrammarError> {
    schema::check(schema)?;
    on_a_deep_stack(|| schema::written(schema).map(drop))
}

/// Compiles grammars for one vocabulary.
pub struct GrammarCompiler {
    factory: ParserFactory,
    vocabulary: Arc<Vocabulary>,
    /// The text tokens. A grammar can refer to others by id.
    text_tokens: Arc<SimpleVob>,
}

impl GrammarCompiler {
    /// A compiler for a tokenizer. Building the trie of the vocabulary takes a moment.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the trie cannot be built.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let no_trie = |what: String| Error::Tokenizer {
            what: format!("the vocabulary cannot be used for structured output: {what}"),
            hint: String::new(),
        };
        let words = Vocabulary::words(tokenizer);
        let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
        let trie = TokTrie::from(&info, &words);
        let mut text_tokens = trie.alloc_token_set();
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let vocabulary = Vocabulary::new(tokenizer, Arc::clone(&environment));
        vocabulary.text_ids().for_each(|id| text_tokens.allow_token(id));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| no_trie(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory, vocabulary: Arc::new(vocabulary), text_tokens: Arc::new(text_tokens) })
    }

    /// Compiles a grammar, within limits. `param` is the parameter that requests it, for error messages.
    ///
    /// # Errors
    /// The grammar is invalid, with its location, or the vocabulary cannot express it.
    pub fn compile(&self, grammar: &Grammar, param: &'static str) -> Result<Constraint, GrammarError> {
        self.compile_with_tokens(grammar, &[], param)
    }

    /// As [`compile`](Self::compile), for a Lark grammar that refers to these special tokens by id, as in `<[5]>`.
    /// References to other special tokens match nothing.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_with_tokens(
        &self,
        grammar: &Grammar,
        special_tokens: &[TokenId],
        param: &'static str,
    ) -> Result<Constraint, GrammarError> {
        check_size(grammar)?;
        let tokens = match special_tokens {
            [] => Arc::clone(&self.text_tokens),
            _ => {
                let mut tokens = SimpleVob::clone(&self.text_tokens);
                special_tokens.iter().for_each(|&id| tokens.allow_token(id));
                Arc::new(tokens)
            }
        };
        on_a_deep_stack(|| {
            let matcher = self.compile_source(grammar)?;
            if matcher.is_stopped() {
                return Err(GrammarError::whole("allows only the empty text"));
            }
            Constraint::new(matcher, tokens, Arc::clone(&self.vocabulary), param)
                .map_err(|error| GrammarError::whole(format!("is invalid: {}", library_message(&error))))
        })
    }

    fn compile_source(&self, grammar: &Grammar) -> Result<Matcher, GrammarError> {
        let source = match grammar {
            Grammar::Json(value) => TopLevelGrammar::from_lark(schema::written(value)?),
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(&with_plain_digits(without_anchors(regex))),
            Grammar::Choice(choices) => {
                let choices: Vec<String> =
                    choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
                // One terminal: as alternatives of a rule, thousands of choices would exceed the parser's limit.
                TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}", choices.join(" | ")))
            }
            Grammar::Lark(source) => TopLevelGrammar::from_lark(schema::written_in_lark(source)?),
        };
        let mut matcher = Matcher::new(self.factory.create_parser(source));
        // Detects a grammar that is complete from the start.
        matcher
            .consume_tokens(&[])
            .map_err(|error| GrammarError::whole(format!("is invalid: {}", library_message(&error))))?;
        Ok(matcher)
    }
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

/// The library's message without its notes for developers.
fn library_message(error: &impl fmt::Display) -> String {
    const MAX_CHARS: usize = 400;
    let text = error.to_string();
    let text = text.replace("<non-verbose/>", "");
    let text = text.split("<backtrace>").next().unwrap_or_default().trim();
    let text = text.split_once("<state>").map_or(text, |(before, _)| before.trim());
    if text.contains("panic: assertion failed: grammar.symbols.len()") {
        return "its grammar is too large".into();
    }
    if let Some(words) = library_limits::in_words(text, &limits()) {
        return words;
    }
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None if text.is_empty() || text == "NoExtensionBias" => {
            "no text matches, or none that the vocabulary can express".into()
        }
        None => text.to_owned(),
    }
}

fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        let worker = builder.spawn_scoped(scope, work);
        let worker =
            worker.map_err(|error| GrammarError::whole(format!("cannot start a thread to compile it: {error}")))?;
        worker.join().unwrap_or_else(|_| Err(GrammarError::whole("is too complex to compile")))
    })
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
        let n_definitions = source.lines().filter(|line| is_definition(line)).count();
        if n_definitions > MAX_DEFINITIONS {
            let what = format!("must have at most {MAX_DEFINITIONS} rules and terminals, got {n_definitions}");
            return Err(GrammarError::whole(what));
        }
        let n_joints = source.matches('&').count();
        if n_joints > MAX_JOINTS {
            return Err(GrammarError::whole(format!("must have at most {MAX_JOINTS} `&`, got {n_joints}")));
        }
    }
    if let Grammar::Lark(source) | Grammar::Regex(source) = grammar {
        let depth = bracket_depth(source);
        if depth > MAX_BRACKETS {
            let what = format!("must nest brackets at most {MAX_BRACKETS} deep, got {depth}");
            return Err(GrammarError::whole(what));
        }
    }
    let n_optional = match grammar {
        Grammar::Lark(source) | Grammar::Regex(source) => n_optional(source),
        Grammar::Json(value) => schema::patterns(value).into_iter().map(n_optional).sum(),
        Grammar::Choice(_) => 0,
    };
    if n_optional > MAX_OPTIONAL {
        let what = format!("must have at most {MAX_OPTIONAL} optional parts, such as `a?` and `a*`, got {n_optional}");
        return Err(GrammarError::whole(what));
    }
    if let Grammar::Choice(choices) = grammar
        && (choices.is_empty() || choices.iter().any(String::is_empty))
    {
        return Err(GrammarError::whole("must have at least one text, and no empty ones"));
    }
    Ok(())
}

/// Whether a line of a Lark grammar begins a rule or a terminal: `name:`, also with attributes, a priority or parameters.
fn is_definition(line: &str) -> bool {
    let line = line.trim_start().trim_start_matches(['?', '!']);
    let rest = line.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
    rest.len() < line.len() && rest.trim_start().starts_with([':', '.', '[', '{'])
}

/// Removes anchors at both ends, which the library does not support: the whole text is matched anyway.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(before) if before.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0 => before,
        _ => regex,
    }
}

/// Replaces `\d` by the ten ASCII digits; other interpretations differ between regex dialects.
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

/// The number of operators that make a part optional, and of empty alternatives. Escaped operators do not count.
/// Operators in quotes do, although they are text: there are few.
fn n_optional(source: &str) -> usize {
    let (mut n, mut before, mut is_escaped) = (0, '(', false);
    for character in source.chars() {
        let is_empty = matches!((before, character), ('(' | '|', '|') | ('|', ')'));
        n += usize::from(!is_escaped && (matches!(character, '?' | '*' | '{') || is_empty));
        is_escaped = character == '\\' && !is_escaped;
        before = character;
    }
    n
}

/// The nesting depth of brackets, without those that are escaped or in double quotes.
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{collections::BTreeSet, path::Path};

    use serde_json::{Map, json};

    use super::*;

    /// For a vocabulary of the printable ASCII characters.
    fn compiler() -> GrammarCompiler {
        let vocab: Map<String, Value> = (' '..='~').zip(0..).map(|(token, id)| (token.into(), id.into())).collect();
        let split = json!({ "type": "Split", "pattern": { "Regex": "." }, "behavior": "Isolated", "invert": false });
        let json = json!({
            "pre_tokenizer": split, "decoder": { "type": "Fuse" },
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "" },
        });
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json"));
        GrammarCompiler::new(&tokenizer.unwrap()).unwrap()
    }

    #[test]
    fn json_schema_error_of_a_long_wrong_typed_value_names_its_path() {
        for (keyword, schema) in [
            ("minimum", json!({ "minimum": "\u{fc}".repeat(60) })),
            ("required", json!({ "required": "\u{fc}".repeat(60) })),
        ] {
            let schema = Grammar::Json(json!({ "properties": { "a": { "items": schema } } }));
            let error = compiler().compile(&schema, "response_format").map(drop).unwrap_err();
            assert_eq!(error.at, format!("properties.a.items.{keyword}"));
            assert!(error.what.starts_with("must be a"), "{error}");
        }
    }

    #[test]
    fn special_tokens_occur_only_where_the_caller_and_the_grammar_allow_them() {
        let special = |id: TokenId, content: &str| {
            json!({
                "id": id, "content": content, "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        };
        let json = json!({
            "added_tokens": [special(3, "[MARK]"), special(4, "[OTHER]")], "decoder": { "type": "Fuse" },
            "model": { "type": "WordLevel", "vocab": { "a": 0, "{": 1, "}": 2 }, "unk_token": "a" },
        });
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json"));
        let compiler = GrammarCompiler::new(&tokenizer.unwrap()).unwrap();
        let grammar =
            Grammar::Lark("start: <[3]> json (\"a\" | <[4]>) <[3]>\njson: %json {\"type\": \"object\"}".into());
        assert!(compiler.compile(&grammar, "tool_choice").is_err());
        let mut constraint = compiler.compile_with_tokens(&grammar, &[3], "tool_choice").unwrap();
        for (id, is_last) in [(3, false), (1, false), (2, false), (0, false), (3, true)] {
            let logits = constraint.restrict(&[0.0; 5], &BTreeSet::new()).unwrap();
            let allowed: Vec<usize> = (0..5).filter(|&id| logits[id] == 0.0).collect();
            assert_eq!(allowed, [id as usize]);
            assert_eq!(constraint.accept(id).unwrap(), is_last);
        }
    }
}
