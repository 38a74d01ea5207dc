//! Splits a text into training and validation parts.

use anyhow::{Result, ensure};

/// A text in two parts, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitText<'a> {
    /// The training part.
    pub train: &'a str,
    /// The validation part.
    pub val: &'a str,
}

/// Holds out the last `val_fraction` of the text's characters, as nanoGPT does with 0.1: the first
/// `floor(n_chars * (1 - val_fraction))` characters are for training. Refuses a text too short to give both parts.
pub fn split_by_chars(text: &str, val_fraction: f64) -> Result<SplitText<'_>> {
    if val_fraction == 0.0 {
        return Ok(SplitText { train: text, val: "" });
    }
    let n_chars = text.chars().count();
    let n_train = (n_chars as f64 * (1.0 - val_fraction)) as usize;
    ensure!(
        n_train > 0 && n_train < n_chars,
        "the text is too short for a validation split: {n_chars} characters, of which {n_train} would be for training\nhint: \
         use a longer text, or another share for validation, such as `--set data.val_fraction=0.5`"
    );
    let at = text.char_indices().nth(n_train).map_or(text.len(), |(at, _)| at);
    let (train, val) = text.split_at(at);
    Ok(SplitText { train, val })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn split_by_chars_holds_out_the_last_fraction_of_the_characters() {
        let split = split_by_chars("äöüßéèêëñç", 0.1).unwrap();
        assert_eq!((split.train, split.val), ("äöüßéèêëñ", "ç"));
        assert_eq!(split_by_chars("a", 0.0).unwrap(), SplitText { train: "a", val: "" });
        // As nanoGPT's prepare.py: int(15 * 0.9) == 13.
        let split = split_by_chars("abcdefghijklmno", 0.1).unwrap();
        assert_eq!((split.train.len(), split.val.len()), (13, 2));
    }

    #[test]
    fn split_by_chars_rejects_a_text_too_short_to_split() {
        for (text, val_fraction) in [("a", 0.1), ("abcdefghi", 0.99)] {
            let error = split_by_chars(text, val_fraction).unwrap_err().to_string();
            assert!(error.contains("too short") && error.contains("\nhint: use a longer text"), "{error}");
        }
    }
}
