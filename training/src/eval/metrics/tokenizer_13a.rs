//! The tokenizer `13a` of NIST's `mteval-v13a.pl`, with which BLEU is defined: entities are resolved and punctuation is
//! split off, in four passes from left to right, each over the result of the previous one.

use super::text::words;

/// The words of `line`.
pub(crate) fn tokenize_13a(line: &str) -> Vec<String> {
    let mut line = line.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if line.contains('&') {
        line = line.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    }
    let padded: Vec<char> = format!(" {line} ").chars().collect();
    let split: Vec<char> = padded.into_iter().flat_map(spaced_if_punctuation).collect();
    // Splits off a period or comma after anything but a digit, then one before anything but a digit, then a dash after a digit.
    let split = pairs(
        &split,
        |first, second| !first.is_ascii_digit() && is_stop(second),
        |first, second| [first, ' ', second, ' '],
    );
    let split = pairs(
        &split,
        |first, second| is_stop(first) && !second.is_ascii_digit(),
        |first, second| [' ', first, ' ', second],
    );
    let split = pairs(
        &split,
        |first, second| first.is_ascii_digit() && second == '-',
        |first, second| [first, ' ', second, ' '],
    );
    let text: String = split.into_iter().collect();
    words(&text).map(str::to_owned).collect()
}

fn is_stop(character: char) -> bool {
    matches!(character, '.' | ',')
}

/// Puts spaces around all punctuation of ASCII except `'`, `,`, `-` and `.`.
fn spaced_if_punctuation(character: char) -> Vec<char> {
    match character {
        '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/' => vec![' ', character, ' '],
        _ => vec![character],
    }
}

/// Replaces pairs of adjacent characters; a pair begins after the end of the previous one.
fn pairs(text: &[char], is_pair: impl Fn(char, char) -> bool, replaced: impl Fn(char, char) -> [char; 4]) -> Vec<char> {
    let mut out = Vec::with_capacity(2 * text.len());
    let mut at = 0;
    while let Some(&first) = text.get(at) {
        match text.get(at + 1) {
            Some(&second) if is_pair(first, second) => {
                out.extend(replaced(first, second));
                at += 2;
            }
            _ => {
                out.push(first);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizer_13a_splits_off_punctuation_except_within_numbers() {
        assert_eq!(
            tokenize_13a("It costs $1,000.50, no-one's \"price\"."),
            ["It", "costs", "$", "1,000.50", ",", "no-one's", "\"", "price", "\"", "."]
        );
        assert_eq!(tokenize_13a("3-4 a.b &amp; <skipped>x-\ny\nz"), ["3", "-", "4", "a", ".", "b", "&", "xy", "z"]);
        assert_eq!(tokenize_13a("..."), [".", ".", "."]);
        assert_eq!(tokenize_13a("  \u{a0} \x1f"), [""; 0]);
    }
}
