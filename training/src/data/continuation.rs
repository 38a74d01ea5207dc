//! A prompt and its continuation, as token ids.

use hearth_model::{
    Error, TokenId,
    text::tokenizer::{EncodeOptions, Tokenizer},
};

/// The tokens of a prompt, as when serving, and of its continuation. Both are tokenized as one text unless a token would span the
/// boundary; then separately, since models continue the prompt's own tokens.
///
/// # Errors
/// A character is not in the vocabulary.
pub fn encode_continued(
    tokenizer: &Tokenizer,
    prompt: &str,
    continuation: &str,
) -> Result<(Vec<TokenId>, Vec<TokenId>), Error> {
    let ids = tokenizer.encode(prompt, EncodeOptions::PROMPT)?;
    let whole = tokenizer.encode(&format!("{prompt}{continuation}"), EncodeOptions::PROMPT)?;
    let rest = match whole.strip_prefix(ids.as_slice()) {
        Some(rest) => rest.to_vec(),
        None => tokenizer.encode(continuation, EncodeOptions::RENDERED)?,
    };
    Ok((ids, rest))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::data::tokenizer_build::BuiltTokenizer;

    #[test]
    fn encode_continued_keeps_the_token_ids_of_the_prompt_alone() {
        let built = BuiltTokenizer::bpe(&"the other the other ".repeat(50), 270, 64).unwrap();
        let tokenizer = built.open().unwrap();
        let encode = |text: &str| tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
        for (prompt, continuation) in [("the", " other the"), ("the oth", "er the"), ("t", "he")] {
            let (ids, rest) = encode_continued(&tokenizer, prompt, continuation).unwrap();
            assert_eq!(ids, encode(prompt));
            let decoded: Vec<u8> = rest.iter().flat_map(|&id| tokenizer.token_bytes(id)).collect();
            assert_eq!(String::from_utf8(decoded).unwrap(), continuation, "behind `{prompt}`");
        }
        assert!(!encode("the").starts_with(&encode("t")), "a token crosses the border");
    }
}
