//! Masked tokens, as [BERT](https://arxiv.org/abs/1810.04805) (3.1) trains on them: some tokens of each row are hidden,
//! and the model predicts them. The choice is a function of the seed, the step and the row, so a resumed run hides the
//! same tokens.

use std::{ops::Range, sync::Arc};

use anyhow::{Context, Result, ensure};
use hearth_model::{
    TokenId,
    text::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
};

use super::{Batch, mix};

/// Thresholds for a random number that decides what happens to a predicted token: below the first it becomes the mask
/// token, between the two another token, above the second it stays.
const MASKED: f64 = 0.8;
const REPLACED: f64 = 0.9;

/// Keys of random numbers, which must differ from the loader's keys and from each other.
const ROWS_KEY: u64 = 0x6d61_736b_0001;
const KINDS_KEY: u64 = 0x6d61_736b_0002;
const TOKENS_KEY: u64 = 0x6d61_736b_0003;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaskSettings {
    /// The share of a row's tokens that is predicted.
    pub ratio: f64,
    /// Choose all tokens of a word, or none.
    pub whole_words: bool,
}

/// Hides tokens of rows. Clones share the tables.
#[derive(Clone, Debug)]
pub struct Masking {
    settings: MaskSettings,
    seed: u64,
    mask_id: TokenId,
    /// The tokens that the tokenizer adds before and after a text.
    frame: [Vec<TokenId>; 2],
    tokens: Arc<TokenTable>,
}

/// The relevant facts about each token, by id.
#[derive(Debug)]
struct TokenTable {
    is_special: Vec<bool>,
    /// All that are not special.
    ordinary: Vec<TokenId>,
    /// Whether the token can continue a word.
    continues: Vec<bool>,
    /// Whether a word can continue after the token.
    is_open: Vec<bool>,
}

impl Masking {
    /// Masking with the mask token `mask` of `tokenizer`.
    ///
    /// # Errors
    /// The tokenizer has no mask token, or no ordinary tokens.
    pub fn new(tokenizer: &Tokenizer, mask: Option<&str>, settings: MaskSettings, seed: u64) -> Result<Masking> {
        let mask_id = mask.and_then(|mask| tokenizer.token_id(mask)).context(
            "`objective.kind=mlm` needs a mask token, and the tokenizer has none\nhint: `hearth-train tokenizer --encoder` makes a \
             tokenizer with one",
        )?;
        let tokens = TokenTable::new(tokenizer, mask_id);
        ensure!(!tokens.ordinary.is_empty(), "the tokenizer has only special tokens, so there is nothing to mask");
        Ok(Masking { settings, seed, mask_id, frame: frame_of(tokenizer)?, tokens: Arc::new(tokens) })
    }

    /// Number of tokens of a text in a row of `seq_len`, without the frame.
    pub(super) fn text_len(&self, seq_len: usize) -> usize {
        seq_len.saturating_sub(self.frame.iter().map(Vec::len).sum()).max(1)
    }

    /// Rows of a stream with the tokens that the tokenizer adds before and after a text.
    pub(super) fn framed(&self, batch: &Batch) -> Batch {
        let [before, behind] = &self.frame;
        let rows = batch.inputs.chunks(batch.seq_len.max(1));
        let inputs: Vec<TokenId> = rows.flat_map(|row| [&before[..], row, &behind[..]].concat()).collect();
        let seq_len = batch.seq_len + before.len() + behind.len();
        Batch { seq_len, targets: inputs.clone(), inputs, ..batch.clone() }
    }

    /// `batch`, whose rows are the rows `first_row ..` of `step`, with hidden tokens. The targets are the original
    /// tokens; predicted ones have weight 1.
    pub(super) fn mask(&self, batch: Batch, step: u64, first_row: u64) -> Batch {
        let seq_len = batch.seq_len.max(1);
        // Padding belongs to no text.
        let is_text: Vec<bool> = match (&batch.weights, &batch.context_tokens) {
            (Some(weights), Some(context)) => {
                weights.iter().zip(context).map(|(weight, context)| *weight > 0.0 || *context).collect()
            }
            _ => vec![true; batch.inputs.len()],
        };
        let mut inputs = batch.inputs.clone();
        let mut weights = vec![0.0; inputs.len()];
        for (row, first) in (0..batch.inputs.len()).step_by(seq_len).enumerate() {
            let row_key = mix(mix(mix(self.seed ^ ROWS_KEY) ^ step) ^ (first_row + row as u64));
            let places = first..(first + seq_len).min(inputs.len());
            for place in self.chosen(&batch.inputs, &is_text, places, row_key) {
                let at = (place - first) as u64;
                weights[place] = 1.0;
                let kind = unit(mix(row_key ^ KINDS_KEY) ^ at);
                if kind < MASKED {
                    inputs[place] = self.mask_id;
                } else if kind < REPLACED {
                    let number = unit(mix(row_key ^ TOKENS_KEY) ^ at) * self.tokens.ordinary.len() as f64;
                    inputs[place] = self.tokens.ordinary[number as usize];
                }
            }
        }
        let context_tokens = is_text.iter().zip(&weights).map(|(is_text, weight)| *is_text && *weight == 0.0).collect();
        let targets = batch.inputs;
        Batch { inputs, targets, weights: Some(weights), context_tokens: Some(context_tokens), ..batch }
    }

    /// The predicted places of a row; `places` are all places of the row.
    fn chosen(&self, ids: &[TokenId], is_text: &[bool], places: Range<usize>, row_key: u64) -> Vec<usize> {
        let words = self.words(ids, is_text, places);
        let n_tokens: usize = words.iter().map(ExactSizeIterator::len).sum();
        if n_tokens == 0 {
            return Vec::new();
        }
        let n_wanted = ((n_tokens as f64 * self.settings.ratio).round() as usize).max(1);
        let mut order: Vec<usize> = (0..words.len()).collect();
        order.sort_by_key(|word| (mix(row_key ^ *word as u64), *word));
        let (mut chosen, mut n_chosen) = (Vec::new(), 0);
        for word in order {
            let len = words[word].len();
            // A row of one long word has something to predict too.
            if n_chosen == 0 || n_chosen + len <= n_wanted {
                chosen.extend(words[word].clone());
                n_chosen += len;
            }
            if n_chosen >= n_wanted {
                break;
            }
        }
        chosen
    }

    /// The words of a row, or its tokens, without special tokens.
    fn words(&self, ids: &[TokenId], is_text: &[bool], places: Range<usize>) -> Vec<Range<usize>> {
        let mut words: Vec<Range<usize>> = Vec::new();
        for place in places.filter(|place| is_text[*place] && !self.tokens.is_special(ids[*place])) {
            match words.last_mut() {
                Some(word)
                    if self.settings.whole_words
                        && word.end == place
                        && self.tokens.joins(ids[place - 1], ids[place]) =>
                {
                    word.end += 1;
                }
                _ => words.push(place..place + 1),
            }
        }
        words
    }
}

/// A number in `0..1` from a key.
fn unit(key: u64) -> f64 {
    (mix(key) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The tokens that `tokenizer` adds before and after a text.
fn frame_of(tokenizer: &Tokenizer) -> Result<[Vec<TokenId>; 2]> {
    // A text of some token, whatever the alphabet is.
    let ids = (0..tokenizer.vocab_size() as TokenId).filter(|id| !tokenizer.is_special(*id));
    let texts = ids.map(|id| tokenizer.decode(&[id], DecodeOptions::default()));
    let mut known = texts.filter_map(|text| Some((tokenizer.encode(&text, EncodeOptions::TEXT).ok()?, text)));
    let Some((without, text)) = known.find(|(ids, _)| !ids.is_empty()) else { return Ok(Default::default()) };
    let with = tokenizer.encode(&text, EncodeOptions { add_special_tokens: true, ..EncodeOptions::TEXT })?;
    let first = with.windows(without.len()).position(|window| window == without).unwrap_or(0);
    let end = (first + without.len()).min(with.len());
    Ok([with[..first].to_vec(), with[end..].to_vec()])
}

impl TokenTable {
    fn new(tokenizer: &Tokenizer, mask_id: TokenId) -> TokenTable {
        let ids = 0..tokenizer.vocab_size() as TokenId;
        let spelled: Vec<String> = ids.clone().map(|id| tokenizer.token(id).unwrap_or_default()).collect();
        let is_special: Vec<bool> = ids
            .clone()
            .map(|id| tokenizer.is_special(id) || id == mask_id || spelled[id as usize].is_empty())
            .collect();
        // In WordPiece, a mark shows that a token continues a word; elsewhere, that it begins one.
        let is_word_piece = spelled.iter().any(|token| token.len() > 2 && token.starts_with("##"));
        let begins = |token: &str| token.starts_with(['Ġ', '▁', ' ']);
        let continues = spelled.iter().map(|token| match is_word_piece {
            true => token.starts_with("##"),
            false => !begins(token) && token.chars().next().is_some_and(char::is_alphanumeric),
        });
        let is_open = spelled.iter().map(|token| {
            let letters = token.trim_start_matches(['Ġ', '▁']);
            is_word_piece || letters.chars().next_back().is_some_and(char::is_alphanumeric)
        });
        TokenTable {
            ordinary: ids.filter(|id| !is_special[*id as usize]).collect(),
            continues: continues.collect(),
            is_open: is_open.collect(),
            is_special,
        }
    }

    /// Ids that the tokenizer does not have count as special.
    fn is_special(&self, id: TokenId) -> bool {
        self.is_special.get(id as usize).copied().unwrap_or(true)
    }

    /// Whether `next` continues the word of `id`.
    fn joins(&self, id: TokenId, next: TokenId) -> bool {
        self.is_open[id as usize] && self.continues[next as usize]
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::data::{
        loader::{Documents, Loader, LoaderSettings, MaskedRows, Packing, RowOrder, RowSource},
        shard::Tokens,
        tokenizer_build::{BuiltTokenizer, SpecialTokens},
    };

    /// A space, which has the id 0, the letters, `</s>`, `<s>`, `<pad>` and `<mask>`.
    fn masking(settings: MaskSettings) -> Masking {
        let letters = "abcdefghijklmnopqrstuvwxyz ".chars().collect();
        let tokenizer =
            BuiltTokenizer::from_characters(&letters, &SpecialTokens::of_encoder()).unwrap().open().unwrap();
        Masking::new(&tokenizer, Some("<mask>"), settings, 5).unwrap()
    }

    const TOKENS: MaskSettings = MaskSettings { ratio: 0.15, whole_words: false };
    const MASK: TokenId = 30;

    /// Rows of words of one to five letters.
    fn row(seed: u32, len: usize) -> Vec<TokenId> {
        (0..len as u32)
            .map(|at| if (at * 7 + seed).is_multiple_of(5) { 0 } else { 1 + (at * at + seed) % 26 })
            .collect()
    }

    fn batch(n_rows: usize, len: usize) -> Batch {
        let inputs: Vec<TokenId> = (0..n_rows as u32).flat_map(|seed| row(seed, len)).collect();
        Batch { batch_size: n_rows, targets: inputs.clone(), inputs, ..Batch::empty(len) }
    }

    #[test]
    fn share_of_the_tokens_is_predicted_and_most_of_these_are_hidden() {
        let masked = masking(TOKENS).mask(batch(200, 100), 3, 0);
        let weights = masked.weights.as_ref().unwrap();
        for row in weights.chunks(100) {
            assert_eq!(row.iter().sum::<f32>(), 15.0);
        }
        assert_eq!(masked.targets, batch(200, 100).inputs);
        let predicted: Vec<(TokenId, TokenId)> = masked
            .inputs
            .iter()
            .zip(&masked.targets)
            .zip(weights)
            .filter(|(pair, weight)| {
                assert!(**weight > 0.0 || pair.0 == pair.1, "only predicted tokens change");
                **weight > 0.0
            })
            .map(|((input, target), _)| (*input, *target))
            .collect();
        let share = |holds: &dyn Fn(&(TokenId, TokenId)) -> bool| {
            predicted.iter().filter(|pair| holds(pair)).count() as f64 / predicted.len() as f64
        };
        assert!((share(&|(input, _)| *input == MASK) - 0.8).abs() < 0.03);
        // One in 27 random tokens is the token itself.
        assert!((share(&|(input, target)| input == target) - 0.1 - 0.1 / 27.0).abs() < 0.02);
        assert!(predicted.iter().all(|(input, _)| *input == MASK || *input < 27), "no other special token appears");
        assert_eq!(masked.n_tokens(), 200 * 100);
    }

    #[test]
    fn masks_are_a_function_of_seed_step_and_row() {
        let masking = masking(TOKENS);
        let of = |step, first_row| masking.mask(batch(4, 50), step, first_row);
        assert_eq!(of(1, 4), of(1, 4));
        assert_ne!(of(1, 4).weights, of(2, 4).weights);
        assert_ne!(of(1, 4).weights, of(1, 8).weights);
        let other = Masking { seed: 6, ..masking.clone() };
        assert_ne!(of(1, 4).weights, other.mask(batch(4, 50), 1, 4).weights);
        // Rows have the same masks in batches of other sizes.
        let halves: Vec<TokenId> = [0, 2]
            .into_iter()
            .flat_map(|first| {
                let inputs = batch(4, 50).inputs[first * 50..(first + 2) * 50].to_vec();
                let half = Batch { batch_size: 2, targets: inputs.clone(), inputs, ..Batch::empty(50) };
                masking.mask(half, 1, 4 + first as u64).inputs
            })
            .collect();
        assert_eq!(halves, of(1, 4).inputs);
    }

    #[test]
    fn masks_do_not_depend_on_the_size_of_micro_batches() {
        let masking = masking(TOKENS);
        let source = RowSource::from(Tokens::from_ids(row(3, 900), 0));
        let source = RowSource::Masked(Arc::new(MaskedRows::new(source, masking)));
        let inputs = |micro_batch_size, n_micro_batches| -> Vec<TokenId> {
            let order = RowOrder::Permuted;
            let settings = LoaderSettings { seed: 1, seq_len: 32, micro_batch_size, order, n_micro_batches };
            let loader = Loader::new(&source, settings).unwrap();
            (0..n_micro_batches).flat_map(|micro_step| loader.batch(2, micro_step).inputs).collect()
        };
        assert_eq!(inputs(6, 1), inputs(2, 3));
    }

    #[test]
    fn rows_of_a_stream_are_framed_as_texts_and_their_frames_are_not_predicted() {
        let source = RowSource::from(Tokens::from_ids(row(3, 900), 0));
        let rows = MaskedRows::new(source, masking(MaskSettings { ratio: 1.0, whole_words: false }));
        let source = RowSource::Masked(Arc::new(rows));
        assert_eq!(source.n_rows(32), 899 / 30);
        let order = RowOrder::Permuted;
        let settings = LoaderSettings { seed: 1, seq_len: 32, micro_batch_size: 2, order, n_micro_batches: 1 };
        let batch = Loader::new(&source, settings).unwrap().batch(0, 0);
        assert_eq!((batch.seq_len, batch.inputs.len()), (32, 64));
        for (inputs, weights) in batch.inputs.chunks(32).zip(batch.weights.unwrap().chunks(32)) {
            assert_eq!((inputs[0], inputs[31]), (28, 27));
            assert_eq!(weights, [&[0.0][..], &[1.0; 30], &[0.0]].concat());
        }
    }

    /// The two rows of a batch of documents, in reverse order.
    fn reversed(batch: Batch) -> Batch {
        let weights = batch.weights.unwrap();
        let targets = [&batch.targets[5..], &batch.targets[..5]].concat();
        Batch { targets, weights: Some([&weights[5..], &weights[..5]].concat()), ..Batch::empty(5) }
    }

    #[test]
    fn documents_are_masked_without_special_tokens_and_padding() {
        let letters = "abcdefghijklmnopqrstuvwxyz ".chars().collect();
        let tokenizer =
            BuiltTokenizer::from_characters(&letters, &SpecialTokens::of_encoder()).unwrap().open().unwrap();
        let texts = [vec![27, 1, 2, 3, 28, 28], vec![27, 4, 28, 28]].map(|ids| (ids.clone(), vec![true; ids.len()]));
        let documents = Documents::of_examples(texts, (6, Packing::Off), &tokenizer).unwrap();
        let rows = MaskedRows::new(documents.into(), masking(MaskSettings { ratio: 1.0, whole_words: false }));
        let order = RowOrder::Permuted;
        let settings = LoaderSettings { seed: 0, seq_len: 6, micro_batch_size: 2, order, n_micro_batches: 1 };
        let batch = Loader::new(&RowSource::Masked(Arc::new(rows)), settings).unwrap().batch(0, 0);
        let rows: Vec<&[TokenId]> = batch.targets.chunks(5).collect();
        let is_first = rows[0][1] == 1;
        let batch = if is_first { batch } else { reversed(batch) };
        assert_eq!(batch.targets, [27, 1, 2, 3, 28, 27, 4, 28, 0, 0]);
        assert_eq!(batch.weights.unwrap(), [0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn whole_words_are_predicted_or_not_at_all() {
        let masked = masking(MaskSettings { ratio: 0.3, whole_words: true }).mask(batch(50, 60), 0, 0);
        let weights = masked.weights.unwrap();
        for (ids, weights) in masked.targets.chunks(60).zip(weights.chunks(60)) {
            for at in 1..60 {
                let is_within = ids[at] != 0 && ids[at - 1] != 0;
                assert!(!is_within || weights[at] == weights[at - 1], "{ids:?} {weights:?}");
            }
            assert!((1.0..=18.0).contains(&weights.iter().sum::<f32>()));
        }
    }

    #[test]
    fn tokenizer_without_a_mask_token_is_refused() {
        let tokenizer = BuiltTokenizer::characters("abc", 8).unwrap().open().unwrap();
        let error = Masking::new(&tokenizer, None, TOKENS, 1).unwrap_err().to_string();
        assert!(error.contains("needs a mask token") && error.contains("\nhint: `hearth-train tokenizer --encoder`"));
    }
}
