//! The grammar for calls: for an answer that consists of calls, and for the text after a mark that begins a call.

use std::collections::BTreeSet;

use hearth_model::{
    TokenId,
    decode::constraint::{AfterGrammar, Mark, WatchRules},
    text::tokenizer::Tokenizer,
};
use serde_json::json;

use super::{
    call_arguments::{Function, Rules},
    call_format::{Bare, Body, CallFormat},
    tool_parser::Calls,
};

/// Maximum number of calls in an answer whose calls follow a grammar, or between one pair of marks.
const MAX_CALLS: usize = 16;

/// The white space in which calls without a mark may be written.
const BLANKS: &[u8] = b" \n\r\t";

/// Characters that may precede a call without a mark: white space, and separators of calls.
const SEPARATORS: &[u8] = b" \n\r\t;";

/// A grammar for calls.
#[derive(Clone, Debug)]
pub(crate) struct CallRules {
    /// Rules in Lark: `calls` is the whole text, `after_mark` the text after the mark that the model has written.
    pub(crate) lark: String,
    /// Special tokens that the rules refer to.
    pub(crate) special_tokens: Vec<TokenId>,
    /// For each function, the keywords of its schema that the rules do not enforce, with their paths.
    pub(crate) unheld: Vec<BTreeSet<String>>,
}

/// The grammar for calls of `functions`.
pub(crate) fn call_rules(
    format: &CallFormat,
    functions: &[Function],
    n_calls: Calls,
    marks: Vec<(&'static str, TokenId)>,
) -> CallRules {
    let mut rules = Rules::new(marks);
    let ([first, last], [before, _, after]) = (format.around_all, format.around_parts);
    let more = match n_calls {
        Calls::One => String::new(),
        Calls::Several => {
            format!("({} call){{0,{}}}", rules.text(&format!("{}{before}", format.separator)), MAX_CALLS - 1)
        }
    };
    // A mark after each call is also after the last one, where it does not promise another.
    let ended = match format.closing {
        Some(mark) if n_calls == Calls::Several && format.separator.starts_with(mark) => {
            format!(" ({})?", rules.text(mark))
        }
        _ => String::new(),
    };
    let first = rules.text(&format!("{first}{before}"));
    rules.add("calls", &format!("{first} call {more} {}{ended}", rules.text(last)));
    let opening = Some(format.first()).filter(|mark| !mark.is_empty());
    let head = format.after_opening(opening);
    let head = match format.body {
        // A line break may follow the mark.
        Body::Json { .. } => format!("/[ \\n]/? {}", rules.text(head.trim_start())),
        Body::Named { .. } | Body::Framed(_) => rules.text(&head),
    };
    let more = if format.has_group() { more } else { String::new() };
    rules.add("after_mark", &format!("{head} call {more} {}", rules.text(last)));
    let calls: Vec<String> = (0..functions.len()).map(|index| format!("call_{index}")).collect();
    rules.add("call", &calls.join(" | "));
    let mut unheld = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let name = format!("arguments_{index}");
        let arguments = match format.body {
            Body::Framed(arguments) => arguments,
            Body::Json { .. } | Body::Named { .. } => super::call_arguments::Arguments::Json,
        };
        let arguments = arguments.rule(&name, function, &mut rules);
        let betweens: Vec<String> =
            format.betweens().map(|text| rules.text(&format!("{}{text}", function.name))).collect();
        let right = format!("({}) {arguments} {}", betweens.join(" | "), rules.text(after));
        rules.add(&format!("call_{index}"), &right);
        unheld.push(rules.take_unheld());
    }
    CallRules { special_tokens: rules.special_tokens(), lark: rules.into_lark(), unheld }
}

/// The marks of a format that are special tokens.
pub(crate) fn special_marks(format: &CallFormat, tokenizer: &Tokenizer) -> Vec<(&'static str, TokenId)> {
    let special = |mark: &str| tokenizer.token_id(mark).filter(|&id| tokenizer.is_special(id));
    format.marks().filter_map(|mark| Some((mark, special(mark)?))).collect()
}

/// When the rule `after_mark` holds: after each mark, or once a call without a mark names a function.
pub(crate) fn watch_rules(format: &CallFormat, functions: &[Function], n_calls: Calls) -> WatchRules {
    let written = format.after_opening(Some(format.first()));
    let marked = format.openings.iter().map(|opening| {
        let left_out = match written.strip_suffix(&format.after_opening(Some(opening))) {
            Some(left_out) if format.head().contains(opening) => left_out,
            _ if opening.ends_with('[') => "[",
            _ => "",
        };
        Mark::anywhere(opening).reading(left_out)
    });
    let mut marks: Vec<Mark> = marked.collect();
    marks.extend(format.first_openings.iter().map(|opening| Mark::at_start(&[opening], [&[], &[]], "")));
    let head = format.after_opening(Some(format.first()).filter(|mark| format.head().contains(mark)));
    marks.extend(functions.iter().filter_map(|function| match format.bare {
        Bare::None => None,
        Bare::Json => {
            let name = json!(function.name).to_string();
            let read = format!("{}{}\"", head.trim_start(), function.name);
            Some(Mark::at_start(&["{", "\"name\"", ":", &name], [SEPARATORS, BLANKS], &read))
        }
        Bare::Python => Some(Mark::at_start(
            &["[", &function.name, "("],
            [SEPARATORS, BLANKS],
            &format!("{head}{}(", function.name),
        )),
    }));
    let after = if n_calls == Calls::One { AfterGrammar::End } else { AfterGrammar::Sleep };
    WatchRules { marks, after, shows_special: false }
}

#[cfg(test)]
mod tests;
