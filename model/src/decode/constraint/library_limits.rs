//! Explains the limits of `llguidance`: its own messages name its settings and parts.

use llguidance::api::ParserLimits;

/// Which limit a message of the library is about, and what to do. `None` if it is about something else.
pub(super) fn in_words(message: &str, limits: &ParserLimits) -> Option<String> {
    const COUNTS: &str = "lower counts such as `{0,5000}` and `maxLength`, or use fewer alternatives";
    const RULES: &str = "use a terminal, named in capitals, for many alternatives, and write repetition with the rule at \
                         the start, as in `list: item | list \",\" item`";
    let to_prepare = "expressions, texts and counts that take more steps to prepare than";
    let table = [
        ("initial lexer configuration", to_prepare, limits.initial_lexer_fuel, COUNTS),
        ("lexer precomputation failed", to_prepare, limits.initial_lexer_fuel, COUNTS),
        ("fuel exhausted", to_prepare, limits.initial_lexer_fuel, COUNTS),
        ("schema too large", to_prepare, limits.initial_lexer_fuel, COUNTS),
        (
            "too many expressions constructed",
            "expressions that take more steps for a token than",
            limits.step_lexer_fuel,
            COUNTS,
        ),
        ("too many states", "expressions with more states than", limits.max_lexer_states as u64, COUNTS),
        ("grammar size", "more rules and parts of rules than", limits.max_grammar_size as u64, COUNTS),
        ("Current row has", "more rules that may be open at one place than", limits.max_items_in_row as u64, RULES),
        ("Too many items", "more ways to read one token than", limits.step_max_items as u64, RULES),
    ];
    let (_, words, most, hint) = table.into_iter().find(|(part, ..)| message.contains(part))?;
    // Only this message has the number.
    let given = message.split_once("Current row has ").and_then(|(_, rest)| rest.split(' ').next());
    let given = given.map_or_else(String::new, |given| format!(", got {given}"));
    Some(format!("it has {words} {most}, the most allowed{given}\nhint: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of llguidance 1.9.
    #[test]
    fn library_limits_are_reported_with_the_number_allowed() {
        let limits = ParserLimits::default();
        for (message, most) in [
            (
                "initial lexer configuration (grammar) too big (limit for this grammar: 1000000)",
                limits.initial_lexer_fuel,
            ),
            ("lexer precomputation failed; either increase limits.initial_lexer_fuel", limits.initial_lexer_fuel),
            ("DNF too large, fuel exhausted", limits.initial_lexer_fuel),
            ("lexer error: too many expressions constructed", limits.step_lexer_fuel),
            ("too many states: 50000 >= 50000", limits.max_lexer_states as u64),
            (
                "grammar size (number of symbols) too big (limit for this grammar: 500000)",
                limits.max_grammar_size as u64,
            ),
            (
                "Too many items (limit 50000; mask); try avoiding single-byte/short lexemes",
                limits.step_max_items as u64,
            ),
        ] {
            let words = in_words(message, &limits).unwrap_or_default();
            assert!(
                words.contains(&format!("{most}, the most allowed\nhint: ")) && !words.contains("lexer"),
                "{words}"
            );
        }
        let row = "Current row has 2003 items; max is 2000; consider making your grammar left-recursive";
        assert!(in_words(row, &limits).is_some_and(|words| words.contains("than 2000, the most allowed, got 2003\n")));
        assert_eq!(in_words("unknown rule \"x\"", &limits), None);
    }
}
