//! Texts and pairs of texts for encoders, cut at their ends.

use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper};

use super::{EncodeOptions, Tokenizer, added_tokens, from_library};
use crate::{
    TokenId,
    error::{Error, Result},
};

/// The tokens of one text, or of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedTexts {
    /// All tokens.
    pub token_ids: Vec<TokenId>,
    /// Where the tokens of the second type begin, if the tokenizer has token types.
    pub second_text: Option<usize>,
    /// Tokens that were cut.
    pub n_cut: usize,
}

/// Which end of a text that is too long is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutAt {
    /// Cuts the last tokens.
    #[default]
    End,
    /// Cuts the first tokens.
    Start,
}

/// The tokens that the post-processor adds before, between and after two texts.
struct PairTemplate {
    added: [Vec<TokenId>; 3],
    /// Number of tokens between the texts that have the first token type.
    n_first_kind: usize,
    has_kinds: bool,
}

impl Tokenizer {
    /// Encodes `text`. If it has more than `max_tokens` tokens, tokens at one end are cut, but not the added ones.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); if there are more than `max_tokens` added tokens.
    pub fn encode_within(
        &self,
        text: &str,
        (max_tokens, cut_at): (usize, CutAt),
        options: EncodeOptions,
    ) -> Result<EncodedTexts> {
        let bare = EncodeOptions { add_special_tokens: false, ..options };
        let mut token_ids = self.encode(text, bare)?;
        let [before, after] = match self.inner.library.get_post_processor() {
            Some(post_processor) if options.add_special_tokens => super::guarded(|| added_tokens(post_processor))?,
            _ => Default::default(),
        };
        let room = room_for(max_tokens, before.len() + after.len())?;
        let n_cut = token_ids.len().saturating_sub(room);
        match cut_at {
            CutAt::End => token_ids.truncate(room),
            CutAt::Start => drop(token_ids.drain(..n_cut)),
        }
        Ok(EncodedTexts { token_ids: [before, token_ids, after].concat(), second_text: None, n_cut })
    }

    /// Encodes a pair of texts as the tokenizer joins them. If they have more than `max_tokens` tokens, tokens at the
    /// end of the longer text are cut, until both are equally long.
    ///
    /// # Errors
    /// As [`encode_within`](Self::encode_within); if the tokenizer does not join texts.
    pub fn encode_pair(&self, texts: [&str; 2], max_tokens: usize, options: EncodeOptions) -> Result<EncodedTexts> {
        let bare = EncodeOptions { add_special_tokens: false, ..options };
        let [mut first, mut second] = [self.encode(texts[0], bare)?, self.encode(texts[1], bare)?];
        let Some(post_processor) = self.inner.library.get_post_processor() else {
            let what = "the tokenizer does not say how two texts are joined".to_owned();
            return Err(Error::Tokenizer { what, hint: "use a model that was trained to compare texts".to_owned() });
        };
        let PairTemplate { added: [before, between, behind], n_first_kind, has_kinds } =
            super::guarded(|| PairTemplate::of(post_processor))?;
        let room = room_for(max_tokens, before.len() + between.len() + behind.len())?;
        let n_cut = cut_longest(&mut first, &mut second, room);
        let second_text = has_kinds.then_some(before.len() + first.len() + n_first_kind);
        Ok(EncodedTexts { token_ids: [before, first, between, second, behind].concat(), second_text, n_cut })
    }
}

impl Tokenizer {
    /// Encodes a pair of texts within a text: `around` has the strings before the first text, between the texts, and
    /// after the second. If there are more than `max_tokens` tokens, the last tokens of the second text are cut.
    ///
    /// # Errors
    /// As [`encode_within`](Self::encode_within).
    pub fn encode_pair_within(
        &self,
        [first, second]: [&str; 2],
        [before, between, behind]: &[String; 3],
        max_tokens: usize,
    ) -> Result<EncodedTexts> {
        let behind = self.encode(behind, EncodeOptions::RENDERED)?;
        let mut token_ids = self.encode(&format!("{before}{first}{between}{second}"), EncodeOptions::RENDERED)?;
        let room = room_for(max_tokens, behind.len())?;
        let n_cut = token_ids.len().saturating_sub(room);
        token_ids.truncate(room);
        token_ids.extend(behind);
        Ok(EncodedTexts { token_ids, second_text: None, n_cut })
    }
}

/// Cuts the ends of two texts to `room` tokens together: the longer one first, as `longest_first` of `transformers`. Returns how
/// many tokens were cut.
fn cut_longest(first: &mut Vec<TokenId>, second: &mut Vec<TokenId>, room: usize) -> usize {
    let n_before = first.len() + second.len();
    let n_cut = n_before.saturating_sub(room);
    for _ in 0..n_cut {
        if first.len() > second.len() {
            first.pop()
        } else {
            second.pop()
        };
    }
    n_cut
}

fn room_for(max_tokens: usize, n_added: usize) -> Result<usize> {
    max_tokens.checked_sub(n_added).filter(|room| *room > 0).ok_or_else(|| Error::Tokenizer {
        what: format!("{max_tokens} tokens leave no room for a text beside the {n_added} that the tokenizer adds"),
        hint: "allow more tokens".to_owned(),
    })
}

impl PairTemplate {
    fn of(post_processor: &PostProcessorWrapper) -> Result<Self> {
        let stand_in = |id: u32| {
            let (words, offsets) = (vec![None], vec![(0, 0)]);
            let (ids, kinds, tokens) = (vec![id], vec![0], vec![String::new()]);
            Encoding::new(ids, kinds, tokens, words, offsets, vec![0], vec![1], Vec::new(), Default::default())
        };
        let processed = post_processor.process(stand_in(0), Some(stand_in(0)), true).map_err(from_library)?;
        let (ids, kinds) = (processed.get_ids(), processed.get_type_ids());
        let special = processed.get_special_tokens_mask();
        let texts: Vec<usize> = (0..ids.len()).filter(|&at| special[at] == 0).collect();
        let &[first, second] = texts.as_slice() else {
            let what = "the post-processor does not join two texts".to_owned();
            return Err(Error::Tokenizer { what, hint: String::new() });
        };
        let second_kind = kinds.iter().position(|kind| *kind == 1);
        Ok(Self {
            added: [ids[..first].to_vec(), ids[first + 1..second].to_vec(), ids[second + 1..].to_vec()],
            n_first_kind: second_kind.map_or(0, |at| at.saturating_sub(first + 1)),
            has_kinds: second_kind.is_some_and(|at| at > first),
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// Words of one letter; `[CLS] a [SEP] b [SEP]`, with kinds, or `<s> a </s></s> b </s>` without.
    fn tokenizer(has_kinds: bool) -> Tokenizer {
        let special = |name: &str| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
        let text = |name: &str, kind: u32| json!({ "Sequence": { "id": name, "type_id": kind } });
        let last = json!({ "SpecialToken": { "id": "[SEP]", "type_id": u32::from(has_kinds) } });
        let kind = u32::from(has_kinds);
        let pair = match has_kinds {
            true => json!([special("[CLS]"), text("A", 0), special("[SEP]"), text("B", kind), last]),
            false => json!([special("[CLS]"), text("A", 0), special("[SEP]"), special("[SEP]"), text("B", 0), last]),
        };
        let of = |id: u32, name: &str| json!({ "id": name, "ids": [id], "tokens": [name] });
        let added = |id: u32, content: &str| {
            json!({ "id": id, "content": content, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false })
        };
        let json = json!({
            "version": "1.0",
            "added_tokens": [added(0, "[CLS]"), added(1, "[SEP]"), added(2, "[UNK]")],
            "normalizer": null,
            "pre_tokenizer": { "type": "Whitespace" },
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [special("[CLS]"), text("A", 0), special("[SEP]")],
                "pair": pair,
                "special_tokens": { "[CLS]": of(0, "[CLS]"), "[SEP]": of(1, "[SEP]") },
            },
            "decoder": null,
            "model": {
                "type": "WordLevel", "unk_token": "[UNK]",
                "vocab": { "[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3, "b": 4, "c": 5, "d": 6, "e": 7 },
            },
        });
        Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
    }

    #[test]
    fn pairs_are_joined_by_the_template_and_cut_at_the_end_of_the_longer_text() {
        let pair = |has_kinds, max_tokens| {
            let encoded =
                tokenizer(has_kinds).encode_pair(["a b c", "d e"], max_tokens, EncodeOptions::PROMPT).unwrap();
            (encoded.token_ids, encoded.second_text, encoded.n_cut)
        };
        assert_eq!(pair(true, 8), (vec![0, 3, 4, 5, 1, 6, 7, 1], Some(5), 0));
        assert_eq!(pair(true, 7), (vec![0, 3, 4, 1, 6, 7, 1], Some(4), 1));
        assert_eq!(pair(true, 6), (vec![0, 3, 4, 1, 6, 1], Some(4), 2), "of equally long texts the second is cut");
        assert_eq!(pair(false, 9), (vec![0, 3, 4, 5, 1, 1, 6, 7, 1], None, 0));
        let error = tokenizer(true).encode_pair(["a", "b"], 3, EncodeOptions::PROMPT).unwrap_err().to_string();
        assert!(error.contains("3 tokens leave no room for a text beside the 3"), "{error}");
    }

    #[test]
    fn texts_are_cut_at_an_end_and_keep_added_tokens() {
        let within = |max_tokens, cut_at| {
            let encoded = tokenizer(true).encode_within("a b c", (max_tokens, cut_at), EncodeOptions::PROMPT).unwrap();
            (encoded.token_ids, encoded.n_cut)
        };
        assert_eq!(within(9, CutAt::End), (vec![0, 3, 4, 5, 1], 0));
        assert_eq!(within(4, CutAt::End), (vec![0, 3, 4, 1], 1));
        assert_eq!(within(4, CutAt::Start), (vec![0, 4, 5, 1], 1));
        let bare = tokenizer(true).encode_within("a b c", (2, CutAt::End), EncodeOptions::TEXT).unwrap();
        assert_eq!((bare.token_ids, bare.n_cut), (vec![3, 4], 1));
    }
}
