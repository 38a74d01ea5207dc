//! Whole sequences side by side, and the trace of a pass over them.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use crate::ops;

/// `batch` sequences of `seq_len` rows, one after the other.
#[derive(Debug)]
pub struct Dense<'a> {
    /// Number of sequences.
    pub batch: usize,
    /// Rows per sequence.
    pub seq_len: usize,
    /// The position of each row in its document, `[batch * seq_len]`, if sequences consist of several documents
    /// (packing): a row then sees only rows of its own document. Without it, each sequence is one document.
    pub positions: Option<Arc<Vec<u32>>>,
    /// Records intermediate results, if set.
    pub trace: Option<&'a mut Trace>,
    /// The seed of dropout. Together with a value's place in the model, it decides whether the value is dropped.
    /// `None`: no dropout.
    pub dropout_seed: Option<u64>,
    /// The encoder's output, to which the decoder of an encoder-decoder attends.
    pub source: Option<Source>,
    /// Where the second text of each sequence begins, if sequences are pairs of texts and the model has token types.
    pub second_texts: Option<Arc<Vec<Option<usize>>>>,
}

/// The encoder's output for the source of each sequence.
#[derive(Clone, Debug)]
pub struct Source {
    /// `[batch * source_len, d_model]`: the same number of rows for each source.
    pub encoded: Tensor<2>,
    /// Number of tokens of each source, `[batch]`. The rows after them are padding, which is not attended to. `None`:
    /// all rows are tokens.
    pub lens: Option<Arc<Vec<usize>>>,
}

impl Source {
    /// Bias that hides padding in the scores of `batch` sequences: `[batch, 1, 1, source_len]`.
    pub(crate) fn bias(&self, batch: usize, device: &Device) -> Option<Tensor<4>> {
        let [n_rows, _] = self.encoded.dims();
        Some(ops::padding_bias(self.lens.as_ref()?, n_rows / batch.max(1), device))
    }
}

/// Intermediate results of a forward pass, for the requested layers.
#[derive(Debug)]
pub struct Trace {
    attention_layers: Vec<usize>,
    attention_heads: Vec<usize>,
    attention: Vec<(usize, Tensor<4>)>,
    cross: Vec<(usize, Tensor<4>)>,
    stream_layers: Vec<usize>,
    stream: Vec<(usize, Tensor<2>)>,
}

impl Trace {
    /// Traces `attention_heads` in `attention_layers`, and the residual stream after each number of blocks in
    /// `stream_layers`.
    pub(crate) fn new(attention_layers: Vec<usize>, attention_heads: Vec<usize>, stream_layers: Vec<usize>) -> Self {
        Self {
            attention_layers,
            attention_heads,
            attention: Vec::new(),
            cross: Vec::new(),
            stream_layers,
            stream: Vec::new(),
        }
    }

    /// Records the attention weights of a layer, `[batch, n_heads, seq_len, seq_len]`, if they were asked for.
    pub(crate) fn record_attention(&mut self, layer: usize, weights: Tensor<4>) {
        self.attention.extend(self.of_heads(layer, &weights));
    }

    /// Records the weights of a layer's attention to a source, `[batch, n_heads, seq_len, source_len]`, if they were asked for.
    pub(crate) fn record_cross(&mut self, layer: usize, weights: Tensor<4>) {
        self.cross.extend(self.of_heads(layer, &weights));
    }

    fn of_heads(&self, layer: usize, weights: &Tensor<4>) -> Option<(usize, Tensor<4>)> {
        if !self.attention_layers.contains(&layer) || self.attention_heads.is_empty() {
            return None;
        }
        let heads = self.attention_heads.iter().map(|&head| weights.clone().narrow(1, head, 1)).collect();
        Some((layer, Tensor::cat(heads, 1)))
    }

    /// Records the residual stream `x [n_rows, d_model]` after `n_blocks` blocks, if it was asked for.
    pub(super) fn record_residual(&mut self, n_blocks: usize, x: &Tensor<2>) {
        if self.stream_layers.contains(&n_blocks) {
            self.stream.push((n_blocks, x.clone()));
        }
    }

    /// The attention weights of a layer that was asked for, `[batch, attention_heads, seq_len, seq_len]`.
    ///
    /// # Panics
    /// If the layer was not asked for, or no pass has run.
    pub(crate) fn attention_of(&self, layer: usize) -> Tensor<4> {
        Self::traced(&self.attention, layer)
    }

    /// The same of its attention to a source, `[batch, attention_heads, seq_len, source_len]`.
    ///
    /// # Panics
    /// As [`attention_of`](Self::attention_of).
    pub(crate) fn cross_of(&self, layer: usize) -> Tensor<4> {
        Self::traced(&self.cross, layer)
    }

    fn traced(maps: &[(usize, Tensor<4>)], layer: usize) -> Tensor<4> {
        match maps.iter().find(|(traced, _)| *traced == layer) {
            Some((_, weights)) => weights.clone(),
            None => unreachable!("the attention of layer {layer} was not traced"),
        }
    }

    /// The residual stream after `n_blocks` blocks, `[n_rows, d_model]`.
    ///
    /// # Panics
    /// As [`attention_of`](Self::attention_of).
    pub(crate) fn stream_of(&self, n_blocks: usize) -> Tensor<2> {
        match self.stream.iter().find(|(traced, _)| *traced == n_blocks) {
            Some((_, stream)) => stream.clone(),
            None => unreachable!("the residual stream after {n_blocks} blocks was not traced"),
        }
    }
}

impl Dense<'_> {
    pub(super) fn new(batch: usize, seq_len: usize) -> Self {
        Self { batch, seq_len, positions: None, trace: None, dropout_seed: None, source: None, second_texts: None }
    }

    /// Whether attention weights are traced. One fused operation rotates and attends otherwise.
    pub(crate) fn traces_attention(&self) -> bool {
        self.trace.as_ref().is_some_and(|trace| !trace.attention_layers.is_empty())
    }
}
