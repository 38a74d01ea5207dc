//! Scans a JSON list or object that arrives in pieces. It accepts what `serde_json` accepts, but looks at each byte once.

/// The state of the scanned text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scanned {
    /// The beginning of a list or object, or only whitespace.
    Open,
    /// A list or object that ends after this many bytes of the last piece.
    End(usize),
    /// Neither: the text is malformed.
    Malformed,
}

/// A list or object, as far as it has arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonScan {
    /// The open lists and objects, outermost first.
    open: Vec<Bracket>,
    expected: Expected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bracket {
    List,
    Object,
}

/// The part of the JSON to which the next byte belongs. Whitespace is allowed before every part except the rest of a
/// string, word or number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Value,
    /// A value or the end of the list.
    FirstValue,
    /// A member's name.
    Name,
    /// A member's name or the end of the object.
    FirstName,
    Colon,
    /// A comma or the end of the list or object.
    Comma,
    /// The rest of a string.
    Text(StringOf),
    /// The character after a backslash.
    Escape(StringOf),
    /// This many hexadecimal digits.
    Hex(StringOf, u8),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    Number(NumberPart),
    /// Nothing: the text is malformed.
    Nothing,
}

/// The role of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StringOf {
    Name,
    Value,
}

/// The last part of a number so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberPart {
    Minus,
    /// A leading zero, which no digit may follow.
    Zero,
    Whole,
    Point,
    Fraction,
    ExponentMark,
    ExponentSign,
    Exponent,
}

impl JsonScan {
    /// Scans the next piece.
    pub(crate) fn push(&mut self, text: &str) -> Scanned {
        for (at, byte) in text.bytes().enumerate() {
            self.expected = self.after(byte).unwrap_or(Expected::Nothing);
            match self.expected {
                Expected::Nothing => return Scanned::Malformed,
                Expected::Comma if self.open.is_empty() => return Scanned::End(at + 1),
                _ => {}
            }
        }
        Scanned::Open
    }

    /// The expected part after `byte`. `None` if the byte is not allowed.
    fn after(&mut self, byte: u8) -> Option<Expected> {
        match self.expected {
            Expected::Text(string) => match byte {
                b'"' => Some(string.then()),
                b'\\' => Some(Expected::Escape(string)),
                0..b' ' => None,
                _ => Some(self.expected),
            },
            Expected::Escape(string) => match byte {
                b'u' => Some(Expected::Hex(string, 4)),
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(Expected::Text(string)),
                _ => None,
            },
            Expected::Hex(string, n_left) => byte.is_ascii_hexdigit().then_some(match n_left {
                ..=1 => Expected::Text(string),
                _ => Expected::Hex(string, n_left - 1),
            }),
            Expected::Word(rest) => match rest.split_first() {
                Some((first, [])) if *first == byte => Some(Expected::Comma),
                Some((first, rest)) if *first == byte => Some(Expected::Word(rest)),
                _ => None,
            },
            Expected::Number(part) => self.after_digits(part, byte),
            expected if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => Some(expected),
            Expected::FirstValue if byte == b']' => self.close(Bracket::List),
            Expected::FirstName if byte == b'}' => self.close(Bracket::Object),
            Expected::Value | Expected::FirstValue => self.value(byte),
            Expected::Name | Expected::FirstName => (byte == b'"').then_some(Expected::Text(StringOf::Name)),
            Expected::Colon => (byte == b':').then_some(Expected::Value),
            Expected::Comma => self.after_value(byte),
            Expected::Nothing => None,
        }
    }

    /// The expected part after the first byte of a value.
    fn value(&mut self, byte: u8) -> Option<Expected> {
        match byte {
            b'[' => {
                self.open.push(Bracket::List);
                Some(Expected::FirstValue)
            }
            b'{' => {
                self.open.push(Bracket::Object);
                Some(Expected::FirstName)
            }
            _ if self.open.is_empty() => None,
            b'"' => Some(Expected::Text(StringOf::Value)),
            b't' => Some(Expected::Word(b"rue")),
            b'f' => Some(Expected::Word(b"alse")),
            b'n' => Some(Expected::Word(b"ull")),
            b'-' => Some(Expected::Number(NumberPart::Minus)),
            b'0' => Some(Expected::Number(NumberPart::Zero)),
            b'1'..=b'9' => Some(Expected::Number(NumberPart::Whole)),
            _ => None,
        }
    }

    /// The expected part after `byte`, which follows `part` of a number and may be the first byte after the number.
    fn after_digits(&mut self, part: NumberPart, byte: u8) -> Option<Expected> {
        use NumberPart::{Exponent, ExponentMark, ExponentSign, Fraction, Minus, Point, Whole, Zero};
        Some(Expected::Number(match (part, byte) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Whole, b'0'..=b'9') => Whole,
            (Zero | Whole, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Whole | Fraction, b'e' | b'E') => ExponentMark,
            (ExponentMark, b'+' | b'-') => ExponentSign,
            (ExponentMark | ExponentSign | Exponent, b'0'..=b'9') => Exponent,
            (Zero | Whole | Fraction | Exponent, b' ' | b'\n' | b'\r' | b'\t') => return Some(Expected::Comma),
            (Zero | Whole | Fraction | Exponent, _) => return self.after_value(byte),
            (Minus | Point | ExponentMark | ExponentSign, _) => return None,
        }))
    }

    fn after_value(&mut self, byte: u8) -> Option<Expected> {
        match (byte, self.open.last()?) {
            (b',', Bracket::List) => Some(Expected::Value),
            (b',', Bracket::Object) => Some(Expected::Name),
            (b']', _) => self.close(Bracket::List),
            (b'}', _) => self.close(Bracket::Object),
            _ => None,
        }
    }

    fn close(&mut self, bracket: Bracket) -> Option<Expected> {
        (self.open.pop() == Some(bracket)).then_some(Expected::Comma)
    }
}

impl StringOf {
    /// The expected part after the string.
    fn then(self) -> Expected {
        match self {
            Self::Name => Expected::Colon,
            Self::Value => Expected::Comma,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IgnoredAny;
    use serde_json::Deserializer;

    use super::*;

    /// The result of `serde_json` for a text that begins with a bracket. It calls an incomplete number, such as `1.`,
    /// malformed, so the text is also parsed with one more digit.
    fn parsed(text: &str) -> Scanned {
        let parse = |text: &str| {
            let mut values = Deserializer::from_str(text).into_iter::<IgnoredAny>();
            match values.next() {
                Some(Ok(_)) => Scanned::End(values.byte_offset()),
                Some(Err(error)) if !error.is_eof() => Scanned::Malformed,
                _ => Scanned::Open,
            }
        };
        match parse(text) {
            Scanned::Malformed if parse(&format!("{text}0")) != Scanned::Malformed => Scanned::Open,
            parsed => parsed,
        }
    }

    /// Compares the scan with the parser at each character of `text`.
    fn check(text: &str) {
        let mut scan = JsonScan::default();
        for (at, character) in text.char_indices() {
            let end = at + character.len_utf8();
            let scanned = match scan.push(&text[at..end]) {
                Scanned::End(n_bytes) => Scanned::End(at + n_bytes),
                scanned => scanned,
            };
            assert_eq!(scanned, parsed(&text[..end]), "{}", &text[..end]);
            assert_eq!(JsonScan::default().push(&text[..end]), scanned, "{}", &text[..end]);
            if scanned != Scanned::Open {
                return;
            }
        }
    }

    #[test]
    fn json_scan_finds_ends_and_errors_like_serde_json() {
        for text in [
            r#"{"a": "}\"]\\\u00e9é日", "b\n": [1, -2.50, 0, 0.1e-7, 3E+2, true, false, null], "c": {}, "d": [[], {"e": {}}]} "#,
            "[\n\t1 ,\r 2]",
            "{}",
            "[]",
            "[\"\u{7f}\"]",
        ] {
            check(text);
            assert!(matches!(JsonScan::default().push(text), Scanned::End(_)), "{text}");
        }
        for text in [
            "[1,]",
            "[,1]",
            "[1 2]",
            "[01]",
            "[-]",
            "[-a]",
            "[1.]",
            "[1.e5]",
            "[1e]",
            "[1e+]",
            "[+1]",
            "[.5]",
            "[1}",
            "{]",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a: 1}",
            "{'a': 1}",
            "[tru]",
            "[nulls]",
            "[True]",
            "[\"\\x\"]",
            "[\"\n\"]",
            "[\u{a0}1]",
            "[1\u{0}]",
            "[\"a\"\"b\"]",
            "[1:2]",
        ] {
            check(text);
            assert_eq!(JsonScan::default().push(text), Scanned::Malformed, "{text}");
        }
    }

    /// `serde_json` reads all four digits of an escape before it fails; the scan fails at the first bad digit.
    #[test]
    fn json_scan_rejects_a_unicode_escape_at_its_first_bad_digit() {
        assert_eq!(JsonScan::default().push(r#"["\u00E9"#), Scanned::Open);
        assert_eq!(JsonScan::default().push(r#"["\u00E9"]"#), Scanned::End(10));
        for text in [r#"["\u0x"#, r#"["\u00""#] {
            assert_eq!(JsonScan::default().push(text), Scanned::Malformed);
            assert_eq!(parsed(text), Scanned::Open);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn json_scan_agrees_with_serde_json_on_random_texts(text in r#"[\[{]([\[\]{}:,"tnul0-9.eE+ -]|\\["nx]|"a":|"a"|true|null){0,24}"#) {
            check(&text);
        }
    }
}
