//! Sets of strings as intersections of regular expressions over JSON text.

use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use serde_json::Value;

use super::{
    WHITESPACE,
    characters::{ANY, literal},
    pattern::{Expression, Pattern},
    values::Texts,
};

/// Effort to find out whether a terminal matches any string.
const MAX_EFFORT: u64 = 500_000;

/// Lengths above this one are counted in pieces.
const LONG: u64 = 1_000;

/// The number of characters of a piece.
const PIECE: u64 = 64;

/// Strings that match all of `all` and none of `none`; these expressions do not include the quotes.
#[derive(Clone, Debug, Default)]
pub(super) struct Terminal {
    pub(super) all: Vec<String>,
    pub(super) none: Vec<String>,
}

impl Terminal {
    pub(super) fn and(mut self, pattern: &Pattern) -> Self {
        self.all.extend(pattern.all.iter().map(|expression| expression.surely.clone()));
        self.none.extend(pattern.none.iter().map(|expression| expression.maybe.clone()));
        self
    }

    pub(super) fn and_terminal(mut self, other: &Self) -> Self {
        self.all.extend(other.all.iter().cloned());
        self.none.extend(other.none.iter().cloned());
        self
    }

    /// The definition in Lark.
    pub(super) fn in_lark(&self) -> String {
        let any = [format!("{}*", *ANY)];
        let all = if self.all.is_empty() { any.as_slice() } else { &self.all };
        let wanted = all.iter().map(|regex| format!("/\"(?:{regex})\"/"));
        let refused = self.none.iter().map(|regex| format!("~/\"(?:{regex})\"/"));
        wanted.chain(refused).collect::<Vec<_>>().join(" & ")
    }
}

/// One of several texts, as a regular expression.
pub(super) fn one_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let literals: Vec<String> = texts.into_iter().map(literal).collect();
    format!("(?:{})", literals.join("|"))
}

/// The terminal of a set of strings.
pub(super) fn of_texts(texts: &Texts) -> Terminal {
    let mut terminal = Terminal::default().and(&texts.patterns);
    if let Some(only) = &texts.only {
        terminal.all.push(one_of(only.iter().map(AsRef::as_ref)));
    }
    if !texts.except.is_empty() {
        terminal.none.push(one_of(texts.except.iter().map(AsRef::as_ref)));
    }
    if texts.min_length > 0 || texts.max_length.is_some() {
        // Lengths count characters, however they are written.
        let max =
            texts.max_length.filter(|max| *max <= u64::from(u32::MAX)).map_or(String::new(), |max| max.to_string());
        terminal.all.push(format!("{}{{{},{max}}}", *ANY, texts.min_length));
    }
    terminal
}

/// Strings with large limits on their length, as a separate grammar: in a terminal, each length would be a state of the
/// lexer. `None` if there are other limits too, or only small ones.
pub(super) fn long_texts(texts: &Texts) -> Option<String> {
    let Texts { only: None, min_length: min, max_length: max, except, patterns } = texts else { return None };
    let is_plain = except.is_empty() && *patterns == Pattern::default();
    if !is_plain || max.unwrap_or(*min) <= LONG {
        return None;
    }
    // Whole pieces, and the rest, which ends with the quote.
    let ends = |least: u64, most: u64| format!("/{}{{{least},{most}}}\"/", *ANY);
    let after = |n: u64, end: String| if n == 0 { end } else { format!("PIECE{{{n}}} {end}") };
    let (first, least) = (min / PIECE, min % PIECE);
    let mut forms = Vec::new();
    match max.map(|max| (max / PIECE, max % PIECE)) {
        Some((last, most)) if last == first => forms.push(after(first, ends(least, most))),
        last => {
            forms.push(after(first, ends(least, PIECE - 1)));
            match last {
                None => forms.push(format!("PIECE{{{},}} {}", first + 1, ends(0, PIECE - 1))),
                Some((last, most)) => {
                    if last > first + 1 {
                        forms.push(format!("PIECE{{{},{}}} {}", first + 1, last - 1, ends(0, PIECE - 1)));
                    }
                    forms.push(after(last, ends(0, most)));
                }
            }
        }
    }
    // Within the string no white space is ignored; before it, some is allowed as between all tokens.
    Some(format!(
        "%lark {{\nstart: SPACE? \"\\\"\" ({})\nSPACE: /{WHITESPACE}/\nPIECE: /{}{{{PIECE}}}/\n}}",
        forms.join(" | "),
        *ANY
    ))
}

/// Whether a terminal matches no string.
///
/// # Errors
/// It takes too long to find out, or an expression is too large.
pub(super) fn is_empty(terminal: &Terminal) -> Result<bool, String> {
    if terminal.none.is_empty() && terminal.all.len() < 2 {
        return Ok(false);
    }
    let regex = |regex: &String| RegexAst::Regex(regex.clone());
    let mut parts: Vec<RegexAst> = terminal.all.iter().map(regex).collect();
    if parts.is_empty() {
        parts.push(RegexAst::Regex(format!("{}*", *ANY)));
    }
    parts.extend(terminal.none.iter().map(|part| RegexAst::Not(Box::new(regex(part)))));
    is_impossible(parts)
}

/// Whether no text matches all of these regular expressions.
///
/// # Errors
/// It takes too long to find out, or an expression is too large.
pub(super) fn have_no_text_in_common(regexes: &[String]) -> Result<bool, String> {
    is_impossible(regexes.iter().map(|regex| RegexAst::Regex(regex.clone())).collect())
}

fn is_impossible(parts: Vec<RegexAst>) -> Result<bool, String> {
    let mut builder = RegexBuilder::new();
    let both = builder.mk(&RegexAst::And(parts)).map_err(|error| error.to_string())?;
    let compiled = builder.to_regex_limited(both, MAX_EFFORT);
    Ok(compiled.map_err(|_| "its patterns are too complex together")?.always_empty())
}

/// Whether a pattern matches a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Matches {
    Yes,
    No,
    /// Depends on the dialect of regular expressions.
    InSomeDialects,
}

/// A pattern that is compared with texts.
pub(super) struct Matcher {
    all: Vec<[Regex; 2]>,
    none: Vec<[Regex; 2]>,
}

impl Matcher {
    /// # Errors
    /// An expression is too large.
    pub(super) fn new(pattern: &Pattern) -> Result<Self, String> {
        let compiled = |regex: &str| Regex::new(regex).map_err(|error| error.to_string());
        let both = |expression: &Expression| Ok([compiled(&expression.surely)?, compiled(&expression.maybe)?]);
        let all = |expressions: &[Expression]| expressions.iter().map(both).collect::<Result<Vec<_>, String>>();
        Ok(Self { all: all(&pattern.all)?, none: all(&pattern.none)? })
    }

    pub(super) fn matches(&mut self, text: &str) -> Matches {
        let quoted = Value::from(text).to_string();
        let inner = quoted.get(1..quoted.len() - 1).unwrap_or_default();
        let [surely, maybe] = [0, 1].map(|index: usize| {
            self.all.iter_mut().all(|regexes| regexes[index].is_match(inner))
                && !self.none.iter_mut().any(|regexes| regexes[1 - index].is_match(inner))
        });
        match (surely, maybe) {
            (true, _) => Matches::Yes,
            (false, true) => Matches::InSomeDialects,
            (false, false) => Matches::No,
        }
    }
}
