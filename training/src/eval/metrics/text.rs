//! White space as in Python's `str.split` and `str.rstrip`, on which sacrebleu's definitions are based: Unicode's, and
//! the four separators of ASCII.

/// Whether Python counts the character as white space.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

/// The words between white space.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// The text without white space at its end.
pub(super) fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}
