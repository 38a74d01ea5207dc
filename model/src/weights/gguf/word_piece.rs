//! BERT's tokenizer in GGUF files: pieces that begin a word are stored with a mark before them, the other pieces
//! without the `##` of BERT's vocabularies.

use serde_json::{Map, Value, json};

/// Before a token that begins a word.
const WORD: char = '▁';
/// Before a token that continues a word, in `tokenizer.json`.
const PIECE: &str = "##";

/// The spelling of a stored token in `tokenizer.json`, unless it is one that is found as a whole.
pub(super) fn spelled(token: &str) -> String {
    token.strip_prefix(WORD).map_or_else(|| format!("{PIECE}{token}"), str::to_owned)
}

/// The model and the stages around it, in the form of `tokenizer.json`.
pub(super) struct WordPiece {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) model: Value,
    pub(super) decoder: Value,
}

impl WordPiece {
    /// A tokenizer for a vocabulary in the spelling of `tokenizer.json`; `unk` is the unknown token.
    pub(super) fn new(vocab: &Map<String, Value>, unk: &str, lowercase: bool) -> Self {
        Self {
            normalizer: json!({
                "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
                "lowercase": lowercase,
            }),
            pre_tokenizer: json!({ "type": "BertPreTokenizer" }),
            model: json!({
                "type": "WordPiece", "unk_token": unk, "continuing_subword_prefix": PIECE,
                "max_input_chars_per_word": 100, "vocab": vocab,
            }),
            decoder: json!({ "type": "WordPiece", "prefix": PIECE, "cleanup": true }),
        }
    }
}

/// Special tokens around a text, and around a pair, whose second text has another token type: `cls A sep B sep`. Each
/// is a token and its id.
pub(super) fn post_processor(cls: (&str, u32), sep: (&str, u32)) -> Value {
    let special = |token: (&str, u32), kind: u32| json!({ "SpecialToken": { "id": token.0, "type_id": kind } });
    let text = |name: &str, kind: u32| json!({ "Sequence": { "id": name, "type_id": kind } });
    let of = |token: (&str, u32)| json!({ "id": token.0, "ids": [token.1], "tokens": [token.0] });
    let single = [special(cls, 0), text("A", 0), special(sep, 0)];
    let second = [text("B", 1), special(sep, 1)];
    let pair: Vec<Value> = single.iter().cloned().chain(second).collect();
    let tokens: Map<String, Value> = [cls, sep].into_iter().map(|token| (token.0.to_owned(), of(token))).collect();
    json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::text::tokenizer::{EncodeOptions, Tokenizer};

    #[test]
    fn stored_pieces_become_a_tokenizer_that_cuts_words() {
        let stored = ["▁cat", "s", "▁dog", "▁."];
        let spelled = stored.map(spelled);
        assert_eq!(spelled, ["cat", "##s", "dog", "."]);
        let special = ["[CLS]", "[SEP]", "[UNK]"].map(str::to_owned);
        let words = special.iter().chain(&spelled).enumerate();
        let vocab: Map<String, Value> = words.map(|(id, word)| (word.clone(), id.into())).collect();
        let WordPiece { normalizer, pre_tokenizer, model, decoder } = WordPiece::new(&vocab, "[UNK]", true);
        let json = json!({
            "version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor(("[CLS]", 0), ("[SEP]", 1)), "decoder": decoder, "model": model,
        });
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("x.gguf")).unwrap();
        let ids = |text: &str| tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
        assert_eq!(ids("Cats. dog bird"), [0, 3, 4, 6, 5, 2, 1]);
        let pair = tokenizer.encode_pair(["cat", "dog"], 9, EncodeOptions::PROMPT).unwrap();
        assert_eq!((pair.token_ids, pair.second_text), (vec![0, 3, 1, 5, 1], Some(3)));
    }
}
