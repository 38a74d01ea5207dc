//! Sources and targets of encoder-decoders.

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;
use hearth_model::{
    TokenId,
    gpt::{Gpt, attention::AttentionContext},
    text::tokenizer::Tokenizer,
};

use super::{Batch, Documents, Packing, ids_on, in_batches, mix};

/// The sources of a batch: rows padded to equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceRows {
    /// Tokens in a row.
    pub seq_len: usize,
    /// The inputs of the encoder: `[batch_size, seq_len]`, row-major.
    pub inputs: Vec<TokenId>,
    /// The tokens of each row that are no padding, `[batch_size]`.
    pub lens: Arc<Vec<usize>>,
}

/// Targets with their sources. Clones share the tokens.
#[derive(Clone, Debug)]
pub struct Translations {
    /// Each target is a row.
    targets: Arc<Documents>,
    sources: Arc<Vec<Vec<TokenId>>>,
    /// Total number of tokens of all sources.
    n_source_tokens: u64,
}

impl SourceRows {
    /// Rows for these sources, as long as the longest.
    ///
    /// # Panics
    /// If one is empty.
    pub fn new(sources: &[&[TokenId]]) -> SourceRows {
        assert!(sources.iter().all(|source| !source.is_empty()), "a source has tokens");
        let seq_len = sources.iter().map(|source| source.len()).max().unwrap_or(0);
        let mut inputs = Vec::with_capacity(sources.len() * seq_len);
        for source in sources {
            inputs.extend_from_slice(source);
            inputs.resize(inputs.len() + seq_len - source.len(), 0);
        }
        SourceRows { seq_len, inputs, lens: Arc::new(sources.iter().map(|source| source.len()).collect()) }
    }

    /// The context of the encoder's pass: the padding after each source is a separate document.
    fn context(&self, dropout_seed: Option<u64>) -> AttentionContext<'static> {
        let batch_size = self.lens.len();
        let context = match dropout_seed {
            Some(seed) => AttentionContext::training(batch_size, self.seq_len, seed),
            None => AttentionContext::dense(batch_size, self.seq_len),
        };
        let positions = self.lens.iter().flat_map(|len| (0..*len as u32).chain(0..(self.seq_len - len) as u32));
        context.with_positions(Arc::new(positions.collect()))
    }
}

impl Batch {
    /// [`context`](Self::context) for `gpt` on `device`; if the rows have sources, with the encoder's output for them.
    pub fn context_with_source(
        &self,
        gpt: &Gpt,
        device: &Device,
        dropout_seed: Option<u64>,
    ) -> AttentionContext<'static> {
        let context = self.context(dropout_seed);
        let Some(sources) = &self.sources else { return context };
        // Other values are dropped than in the decoder.
        let of_encoder = sources.context(dropout_seed.map(mix));
        let encoded = gpt.encode(ids_on(&sources.inputs, device), of_encoder);
        context.with_sources(encoded, sources.lens.clone())
    }
}

impl Translations {
    /// Pairs of a source, which is not empty, and a target with whether each of its tokens is trained.
    ///
    /// # Errors
    /// There are no pairs, or a target has fewer than two tokens or more than `seq_len` inputs.
    pub fn new(
        pairs: impl IntoIterator<Item = (Vec<TokenId>, (Vec<TokenId>, Vec<bool>))>,
        seq_len: usize,
        tokenizer: &Tokenizer,
    ) -> Result<Translations> {
        let (sources, targets): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let targets = Documents::of_examples(targets, (seq_len, Packing::Off), tokenizer)?;
        let n_source_tokens = sources.iter().map(|source| source.len() as u64).sum();
        Ok(Translations { targets: Arc::new(targets), sources: Arc::new(sources), n_source_tokens })
    }

    /// The number of pairs.
    pub fn n_pairs(&self) -> usize {
        self.sources.len()
    }

    /// Tokens of sources and targets.
    pub fn n_tokens(&self) -> u64 {
        self.targets.n_tokens() + self.n_source_tokens
    }

    /// The targets.
    pub fn targets(&self) -> &Documents {
        &self.targets
    }

    /// The batch of the pairs `numbers`.
    pub(super) fn batch(&self, numbers: &[u64]) -> Batch {
        let sources: Vec<&[TokenId]> = numbers.iter().map(|number| &*self.sources[*number as usize]).collect();
        Batch { sources: Some(SourceRows::new(&sources)), ..self.targets.batch(numbers) }
    }

    /// All pairs in order, in batches.
    pub(crate) fn batches(&self, batch_size: usize) -> impl Iterator<Item = Batch> {
        in_batches(self.n_pairs() as u64, batch_size).map(|numbers| self.batch(&numbers))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::data::tokenizer_build::BuiltTokenizer;

    #[test]
    fn each_row_is_a_target_beside_its_source_and_both_are_filled_up() {
        let tokenizer = BuiltTokenizer::characters("abcdefgh", 8).unwrap().open().unwrap();
        let target = |ids: &[TokenId]| (ids.to_vec(), (0..ids.len()).map(|at| at > 0).collect());
        let pairs = [(vec![1, 2, 3], target(&[0, 4])), (vec![5], target(&[0, 6, 7]))];
        let translations = Translations::new(pairs, 4, &tokenizer).unwrap();
        assert_eq!((translations.n_pairs(), translations.n_tokens(), translations.targets().n_targets()), (2, 7, 3));
        let batch = translations.batch(&[1, 0]);
        assert_eq!((&*batch.inputs, &*batch.targets), (&[0, 6, 0, 0][..], &[6, 7, 4, 0][..]));
        assert_eq!(batch.weights.as_deref().unwrap(), [1.0, 1.0, 1.0, 0.0]);
        assert_eq!(batch.n_tokens(), 7);
        let sources = batch.sources.unwrap();
        assert_eq!((sources.seq_len, &*sources.inputs, &**sources.lens), (3, &[5, 0, 0, 1, 2, 3][..], &[1, 3][..]));
    }
}
