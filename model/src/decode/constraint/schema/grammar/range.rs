//! Numbers within bounds, as regular expressions over their digits.
//!
//! Bounds are compared digit by digit: a number is above another one if, at the first digit in which both differ, it has the
//! larger one. The expressions expect numbers as JSON writes them without an exponent.

/// A bound, and whether it is excluded itself.
pub(super) type Bound = (f64, bool);

/// Numbers have fewer whole digits than bounds of this length, so such bounds need no comparison.
const TOO_LONG: usize = 31;

const DIGITS: &str = "[0-9]*";
const NOT_ZERO: &str = "[0-9]*[1-9][0-9]*";
/// An optional fraction.
const FRACTION: &str = r"(?:\.[0-9]+)?";

/// The bounds of numbers of one sign, as regular expressions that all must match.
pub(super) struct Signed {
    pub(super) sign: &'static str,
    /// About the number without its sign.
    pub(super) bounds: Vec<String>,
}

/// The numbers between two bounds, by sign. Readers round numbers to f64, which must not make them an excluded bound.
pub(super) fn within(least: Option<Bound>, most: Option<Bound>, is_integer: bool) -> Vec<Signed> {
    let included = |bound: Option<Bound>, next: fn(f64) -> f64| {
        bound.map(|(bound, is_excluded)| match is_excluded && bound != 0.0 && !is_integer {
            true => (next(bound), false),
            false => (bound, is_excluded),
        })
    };
    let (least, most) = (included(least, f64::next_up), included(most, f64::next_down));
    let negated = |bound: Option<Bound>| bound.map(|(bound, is_excluded)| (-bound, is_excluded));
    let signed = [("", least, most), ("-", negated(most), negated(least))];
    let signed = signed.into_iter().filter(|(_, _, most)| most.is_none_or(|(most, _)| most >= 0.0));
    let bounds = |least: Option<Bound>, most: Option<Bound>| {
        // Without its sign, every number is at least 0.
        let least = least.filter(|&(least, is_excluded)| least > 0.0 || least == 0.0 && is_excluded);
        let least = least.map(|(least, is_excluded)| Magnitude::of(least).at_least(is_excluded));
        let most = most.map(|(most, is_excluded)| Magnitude::of(most).at_most(is_excluded));
        least.into_iter().chain(most).collect()
    };
    signed.map(|(sign, least, most)| Signed { sign, bounds: bounds(least, most) }).collect()
}

/// The digits of a number that is not negative.
struct Magnitude {
    whole: String,
    /// Without zeros at the end.
    fraction: String,
}

impl Magnitude {
    fn of(number: f64) -> Self {
        let text = number.abs().to_string();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        Self { whole: whole.to_owned(), fraction: fraction.to_owned() }
    }

    /// The numbers that are larger, or equal unless that `is_excluded`.
    fn at_least(&self, is_excluded: bool) -> String {
        let Self { whole, fraction } = self;
        let n = whole.len();
        if n >= TOO_LONG {
            return "[^0-9]".to_owned();
        }
        let mut forms = vec![format!("[1-9][0-9]{{{n},}}{FRACTION}")];
        for (before, digit, n_after) in digits(whole).filter(|(_, digit, _)| *digit < '9') {
            forms.push(format!("{before}[{}-9][0-9]{{{n_after}}}{FRACTION}", next(digit, 1)));
        }
        for (before, digit, _) in digits(fraction).filter(|(_, digit, _)| *digit < '9') {
            forms.push(format!(r"{whole}\.{before}[{}-9]{DIGITS}", next(digit, 1)));
        }
        forms.push(match (fraction.is_empty(), is_excluded) {
            (true, false) => format!("{whole}{FRACTION}"),
            (_, true) => format!(r"{whole}\.{fraction}{NOT_ZERO}"),
            (false, false) => format!(r"{whole}\.{fraction}{DIGITS}"),
        });
        forms.join("|")
    }

    /// The numbers that are smaller, or equal unless that `is_excluded`.
    fn at_most(&self, is_excluded: bool) -> String {
        let Self { whole, fraction } = self;
        let n = whole.len();
        if n >= TOO_LONG {
            return format!("{DIGITS}{FRACTION}");
        }
        let mut forms = Vec::new();
        if n > 1 {
            forms.push(format!("(?:0|[1-9][0-9]{{0,{}}}){FRACTION}", n - 2));
        }
        for (before, digit, n_after) in digits(whole) {
            let first = if before.is_empty() && n > 1 { '1' } else { '0' };
            if digit > first {
                forms.push(format!("{before}[{first}-{}][0-9]{{{n_after}}}{FRACTION}", next(digit, -1)));
            }
        }
        for (before, digit, _) in digits(fraction) {
            // The number may end there, or continue with a smaller digit.
            forms.push(if before.is_empty() { whole.clone() } else { format!(r"{whole}\.{before}") });
            if digit > '0' {
                forms.push(format!(r"{whole}\.{before}[0-{}]{DIGITS}", next(digit, -1)));
            }
        }
        if !is_excluded && fraction.is_empty() {
            forms.push(format!(r"{whole}(?:\.0+)?"));
        } else if !is_excluded {
            forms.push(format!(r"{whole}\.{fraction}0*"));
        }
        if forms.is_empty() { "[^0-9]".to_owned() } else { forms.join("|") }
    }
}

/// Each digit with the text before it and the number of digits after it.
fn digits(text: &str) -> impl Iterator<Item = (&str, char, usize)> {
    text.char_indices().map(|(at, digit)| (&text[..at], digit, text.len() - at - 1))
}

fn next(digit: char, step: i32) -> char {
    digit.to_digit(10).and_then(|digit| char::from_digit(digit.saturating_add_signed(step), 10)).unwrap_or(digit)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use llguidance::derivre::Regex;

    use super::*;

    /// Whether a number, as it is written, is within the bounds.
    fn is_within(text: &str, least: Option<Bound>, most: Option<Bound>) -> bool {
        within(least, most, false).iter().any(|Signed { sign, bounds }| {
            let magnitude = text.strip_prefix('-');
            let matches = |text: &str| bounds.iter().all(|bound| Regex::new(bound).unwrap().is_match(text));
            match magnitude {
                Some(magnitude) => *sign == "-" && matches(magnitude),
                None => sign.is_empty() && matches(text),
            }
        })
    }

    #[test]
    fn numbers_match_the_bounds_that_they_are_within() {
        let bounds = [
            0.0, 0.05, 0.3, 1.0, 1.005, 9.0, 9.9, 10.0, 19.05, 99.0, 100.0, 1234.5678, -0.05, -1.0, -9.99, -10.0,
            -120.0,
        ];
        let ends = [
            "", ".0", ".00", ".04", ".05", ".050", ".0500001", ".3", ".29", ".5677", ".5678", ".56780", ".9", ".99",
            ".999",
        ];
        let wholes = [
            "0", "1", "2", "8", "9", "10", "11", "19", "20", "90", "99", "100", "101", "120", "999", "1234", "1235",
            "20000",
        ];
        for text in wholes.iter().flat_map(|whole| ends.iter().map(move |end| format!("{whole}{end}"))) {
            for text in [text.clone(), format!("-{text}")] {
                let number: f64 = text.parse().unwrap();
                for bound in bounds {
                    for is_excluded in [false, true] {
                        let given = Some((bound, is_excluded));
                        let (above, below) = (is_within(&text, given, None), is_within(&text, None, given));
                        let is_equal = number == bound && !is_excluded;
                        assert_eq!(above, number > bound || is_equal, "{text} above {bound}, {is_excluded}");
                        assert_eq!(below, number < bound || is_equal, "{text} below {bound}, {is_excluded}");
                    }
                }
            }
        }
    }

    #[test]
    fn number_that_readers_would_round_to_an_excluded_bound_is_outside() {
        assert!(!is_within("0.30000000000000000001", Some((0.3, true)), None));
        assert!(is_within("0.30000000000000004", Some((0.3, true)), None));
        assert!(!is_within("49.99999999999999999999", None, Some((50.0, true))));
        assert!(is_within("49.99999999999999", None, Some((50.0, true))));
        assert!(is_within("0.000000000000000000000000000001", Some((0.0, true)), None));
    }
}
