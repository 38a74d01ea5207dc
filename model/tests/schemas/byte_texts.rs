//! Texts under a grammar, byte by byte.

use std::{collections::BTreeSet, path::Path};

use hearth_model::{
    TokenId,
    decode::constraint::{Constraint, GrammarCompiler},
    text::tokenizer::Tokenizer,
};
use serde_json::{Map, Value, json};

/// Number of tokens: one for each byte, and the end of a text.
const VOCAB_SIZE: usize = 257;
const END: TokenId = 256;

/// A compiler for a vocabulary of single bytes, whose ids are the bytes.
pub(crate) fn compiler() -> GrammarCompiler {
    // The characters by which byte-level tokenizers write bytes.
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    let mut n_others = 0;
    let vocab: Map<String, Value> = (0..=255u8)
        .map(|byte| {
            let character = if is_printable(byte) {
                char::from(byte)
            } else {
                n_others += 1;
                char::from_u32(0xff + n_others).unwrap()
            };
            (character.to_string(), byte.into())
        })
        .collect();
    let end = json!({
        "id": END, "content": "<|end|>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    });
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let json = json!({
        "added_tokens": [end], "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap();
    assert_eq!(tokenizer.vocab_size(), VOCAB_SIZE);
    GrammarCompiler::new(&tokenizer).unwrap()
}

/// The bytes that may come next, and whether the text may end.
fn next(constraint: &Constraint) -> hearth_model::Result<(Vec<u8>, bool)> {
    let logits = constraint.restrict(&[0.0; VOCAB_SIZE], &BTreeSet::from([END]))?;
    let bytes = (0..=255u8).filter(|byte| logits[usize::from(*byte)] == 0.0).collect();
    Ok((bytes, logits[END as usize] == 0.0))
}

/// Whether a grammar admits a whole text, or where it does not.
pub(crate) fn admits(grammar: &Constraint, text: &str) -> Result<(), usize> {
    let mut constraint = grammar.clone();
    let mut is_complete = false;
    for (at, byte) in text.bytes().enumerate() {
        if is_complete {
            return Err(at);
        }
        is_complete = constraint.accept(byte.into()).map_err(|_| at)?;
    }
    let may_end = is_complete || next(&constraint).is_ok_and(|(_, may_end)| may_end);
    if may_end { Ok(()) } else { Err(text.len()) }
}

/// A text of random bytes, of which some are more likely; `None` if it was still not complete after `max_bytes`.
///
/// # Panics
/// The grammar allows neither a byte nor the end, with the text so far.
pub(crate) fn random_text(grammar: &Constraint, seed: u64, max_bytes: usize) -> Option<String> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let favourites: &[u8] =
        [b"\"\\{}[],:u0".as_slice(), b"abcxyz019\"", b"\\\"\xc3\xa9\xf0\x9f", b""][seed as usize % 4];
    let mut constraint = grammar.clone();
    let mut text = Vec::new();
    for at in 0..max_bytes {
        let so_far = || String::from_utf8_lossy(&text).into_owned();
        let (bytes, may_end) = next(&constraint).unwrap_or_else(|error| panic!("{error} after {:?}", so_far()));
        if may_end && (bytes.is_empty() || random(3) == 0) {
            return Some(so_far());
        }
        // Towards the end, whatever closes something.
        let is_late = at > max_bytes / 3;
        let favourites = if is_late { b"\"}],:" } else { favourites };
        let likely: Vec<u8> = bytes.iter().copied().filter(|byte| favourites.contains(byte)).collect();
        let takes_likely = !likely.is_empty() && (random(3) == 0 || is_late && random(8) != 0);
        let choices = if takes_likely { &likely } else { &bytes };
        let byte = choices[random(choices.len())];
        text.push(byte);
        if constraint.accept(byte.into()).unwrap() {
            return Some(String::from_utf8_lossy(&text).into_owned());
        }
    }
    None
}
