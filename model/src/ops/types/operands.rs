//! Options and operands that the bodies of all devices share.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::upload::Ints;
use crate::config::{NormKind, QkNormSpan};

/// Tokens of a page of the KV cache.
pub const PAGE_SIZE: usize = 16;

/// How to normalize; see the fields of the same names in [`GptConfig`](crate::config::GptConfig).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormOptions {
    /// Which normalization.
    pub(crate) kind: NormKind,
    /// Added to the variance (LayerNorm) or the mean square (RMSNorm) under the root.
    pub(crate) eps: f64,
    /// Added to the weight before use.
    pub(crate) weight_offset: f32,
}

/// A norm's parameters.
#[derive(Clone, Debug)]
pub(crate) struct NormParts {
    /// `[width]`.
    pub(crate) weight: Tensor<1>,
    /// `[width]`.
    pub(crate) bias: Option<Tensor<1>>,
    /// How to normalize.
    pub(crate) options: NormOptions,
}

/// Norms of queries and keys.
#[derive(Clone, Debug)]
pub(crate) struct QkNormParts<N> {
    /// Norm of queries, and of keys.
    pub(crate) norms: [N; 2],
    /// Whether each head is normalized alone, or all together.
    pub(crate) span: QkNormSpan,
    /// Whether the norms apply after rotation.
    pub(crate) after_rope: bool,
}

impl<N> QkNormParts<N> {
    /// The same with the norms in another form.
    pub(in crate::ops) fn map<'a, M>(&'a self, norm: impl FnMut(&'a N) -> M) -> QkNormParts<M> {
        QkNormParts { norms: self.norms.each_ref().map(norm), span: self.span, after_rope: self.after_rope }
    }
}

/// How scores are computed, the same for every layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttentionOptions {
    /// Query heads.
    pub(crate) n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub(crate) n_kv_heads: usize,
    /// Width of a head.
    pub(crate) head_dim: usize,
    /// Scores are multiplied by this before the softmax; usually `1 / sqrt(head_dim)`.
    pub(crate) scale: f64,
    /// Scaled scores become `c * tanh(score / c)`, before slopes are added; see [`soft_cap`](crate::ops::soft_cap).
    pub(crate) softcap: Option<f64>,
    /// Each row sees this many positions, up to its own; in bidirectional models, as many from its own on, too.
    pub(crate) sliding_window: Option<usize>,
    /// Whether a row also sees later rows.
    pub(crate) bidirectional: bool,
    /// One slope per query head: `slope * (key position - query position)` is added to the score.
    pub(crate) alibi_slopes: Option<Vec<f32>>,
    /// Bias of the score by the distance between key and query.
    pub(crate) relative: Option<Arc<RelativeScores>>,
}

/// A number for each head and each distance from a query to a key, which is added to the scaled score.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RelativeScores {
    /// `[n_heads, n_distances]`, from the distance `-reach` on.
    values: Vec<f32>,
    n_distances: usize,
    reach: usize,
}

impl RelativeScores {
    /// `values [n_heads, n_distances]` are the biases for the distances from `-reach` on.
    pub(crate) fn new(values: Vec<f32>, n_distances: usize, reach: usize) -> Self {
        Self { values, n_distances, reach }
    }

    /// Bias of the scores of a head's query at `position`, for keys from position 0 on.
    ///
    /// # Panics
    /// If `position` is beyond the reach.
    pub(crate) fn of_keys(&self, head: usize, position: usize) -> &[f32] {
        &self.values[head * self.n_distances..][..self.n_distances][self.reach - position..]
    }
}

impl AttentionOptions {
    /// Bias of the score of `head` for the positions of a query and a key.
    pub(crate) fn of_places(&self, head: usize, query: usize, key: usize) -> f32 {
        let slope = self.alibi_slopes.as_ref().map_or(0.0, |slopes| slopes[head]);
        let relative = self.relative.as_ref().map_or(0.0, |relative| relative.of_keys(head, query)[key]);
        slope * (key as f32 - query as f32) + relative
    }

    /// Number of heads with different position biases: 1 if there are no biases.
    pub(crate) fn n_placed_heads(&self) -> usize {
        if self.alibi_slopes.is_some() || self.relative.is_some() { self.n_heads } else { 1 }
    }

    /// The positions that the row at `position` sees in a text of `n_positions`. Neither end decreases from one row to the next.
    pub(crate) fn seen(&self, position: usize, n_positions: usize) -> Range<usize> {
        let reach = self.sliding_window.unwrap_or(usize::MAX);
        let end = if self.bidirectional { position.saturating_add(reach).min(n_positions) } else { position + 1 };
        (position + 1).saturating_sub(reach)..end
    }
}

/// For each row of a sequence, where its document ends, from the position of each row in its document.
pub(in crate::ops) fn document_ends(positions: &[u32]) -> Vec<usize> {
    let mut ends = vec![positions.len(); positions.len()];
    for row in (1..positions.len()).rev() {
        ends[row - 1] = if positions[row] == 0 { row } else { ends[row] };
    }
    ends
}

/// The rows of one sequence in a step over the cache.
#[derive(Clone, Debug)]
pub(crate) struct PagedRows {
    /// The rows of the step.
    pub(crate) rows: Range<usize>,
    /// Position of the first of these rows in its sequence.
    pub(crate) start: usize,
    /// Position of the first key; above 0 if earlier ones are outside every row's sliding window.
    pub(crate) first_key: usize,
    /// Slots of the sequence's keys from `first_key` to the last row's own: `[n_keys]`. In cross-attention, the slots
    /// of the source's keys.
    pub(crate) slots: Slots,
}

/// Slots of a pool: on the host, and on a device once an operation needs them there.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    numbers: Ints,
    are_distinct: OnceLock<bool>,
}

impl Slots {
    /// Slots of pools on `device`.
    pub(crate) fn new(host: Vec<i32>, device: &Device) -> Self {
        Self { numbers: Ints::new(host, device), are_distinct: OnceLock::new() }
    }

    /// On the host.
    pub(crate) fn host(&self) -> &[i32] {
        self.numbers.host()
    }

    /// As an input of a captured step.
    pub(crate) fn numbers(&self) -> &Ints {
        &self.numbers
    }

    /// Whether all slots are different; computed at the first call.
    pub(crate) fn are_distinct(&self) -> bool {
        *self.are_distinct.get_or_init(|| {
            let mut sorted = self.host().to_vec();
            sorted.sort_unstable();
            sorted.is_sorted_by(|one, next| one < next)
        })
    }

    /// On the device; uploaded at the first call.
    pub(crate) fn tensor(&self) -> Tensor<1, Int> {
        self.numbers.tensor()
    }
}

/// How logits become [`Losses`](crate::ops::Losses).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LossOptions {
    /// The cap of [`soft_cap`](crate::ops::soft_cap), where there is one.
    pub(crate) softcap: Option<f64>,
    /// Weight of the mean of `ln(Z)^2`, where `Z` is the softmax's denominator; see [`Gpt::losses`](crate::gpt::Gpt::losses).
    pub(crate) z_loss: f64,
    /// The share of a target's probability that is spread over all tokens; see
    /// [`Gpt::smoothed_losses`](crate::gpt::Gpt::smoothed_losses).
    pub(crate) label_smoothing: f64,
}

/// The arithmetic of products with the matrices that train. Matrices, gradients and sums are f32 either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32.
    #[default]
    F32,
    /// Both operands are rounded to bf16, as in [Micikevicius et al., 2017](https://arxiv.org/abs/1710.03740), but without
    /// scaling the loss: bf16 has the exponents of f32.
    Bf16,
}

/// GPU memory use of this process, in bytes, as reported by CubeCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Tensors.
    pub in_use: u64,
    /// Pages that tensors are placed in; they are kept for later tensors.
    pub reserved: u64,
    /// The largest tensor that the device takes.
    pub largest_tensor: u64,
}

/// What a GPU offers, and what the kernels use of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFeatures {
    /// The interface, and the language that kernels are compiled to.
    pub interface: String,
    /// The fewest and the most lanes of a subgroup.
    pub subgroup: [u32; 2],
    /// Bytes of shared memory of a workgroup.
    pub shared_bytes: usize,
    /// Bytes of the largest tensor.
    pub largest_tensor: u64,
    /// Whether kernels read weights in f16 as such, and do not unpack them from integers.
    pub has_f16: bool,
    /// The matrix instructions, such as `bf16 x bf16 to f32, 16x16x16`.
    pub matrix_instructions: Vec<String>,
    /// The matrix instructions that prompts of many tokens and training use, or why they use none.
    pub products: Result<String, String>,
}

/// The numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the average of gradients.
    pub beta1: f64,
    /// Decay of the average of squared gradients.
    pub beta2: f64,
    /// Added to the root of the average of squared gradients.
    pub eps: f64,
    /// Decay of the value per unit of learning rate.
    pub weight_decay: f64,
    /// Updates made so far, this one included: at least 1.
    pub n_updates: usize,
}

/// Settings of one update by Muon.
#[derive(Clone, Copy, Debug)]
pub struct MuonStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the average of gradients.
    pub momentum: f64,
    /// Use Nesterov momentum.
    pub nesterov: bool,
    /// Decay of the value per unit of learning rate.
    pub weight_decay: f64,
    /// Newton-Schulz iterations.
    pub iterations: usize,
}

/// A parameter that [`muon`](crate::ops::muon) updates: flat, `[n_values]`, of stacked matrices that are updated
/// separately.
#[derive(Clone, Debug)]
pub struct MuonParam {
    /// Its value.
    pub value: Tensor<1>,
    /// Its gradient.
    pub gradient: Tensor<1>,
    /// Moving average of the gradients; `None` starts at 0.
    pub momentum: Option<Tensor<1>>,
    /// Rows of each matrix.
    pub rows: Vec<usize>,
    /// Columns of every matrix.
    pub width: usize,
}

/// Dropout of one tensor ([Srivastava et al., 2014](https://jmlr.org/papers/v15/srivastava14a.html)). Which values are
/// dropped depends on this alone, and on their index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dropout {
    /// The share of values that are dropped, below 1.
    pub(crate) probability: f64,
    /// Random seed of the forward pass.
    pub(crate) seed: u64,
    /// Identifies the tensor in the pass.
    pub(crate) place: u32,
}

impl Dropout {
    /// Values per block, whose random words are generated together. One call of Philox generates four words, for values
    /// that are a quarter of a block apart.
    pub(in crate::ops) const BLOCK: usize = 64;
    /// The last number of Philox's counter, which keeps these words apart from other uses.
    pub(in crate::ops) const PURPOSE: u32 = u32::from_le_bytes(*b"drop");

    /// Random words below this drop their value; it is `probability` of the range of words.
    pub(in crate::ops) fn threshold(self) -> u32 {
        (self.probability * 2f64.powi(32)) as u32
    }
}

/// Added to the norm of gradients before dividing by it; torch's.
pub(in crate::ops) const CLIP_EPS: f64 = 1e-6;

impl MuonStep {
    /// The coefficients of the Newton-Schulz iteration: they raise small singular values fastest and move all to 0.7 to 1.2.
    pub(in crate::ops) const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

    /// Added to a matrix's norm before dividing by it.
    pub(in crate::ops) const NORM_EPS: f64 = 1e-7;

    /// The learning rate of a matrix `[n_rows, width]`. If it has more rows than columns, the update is scaled by the
    /// root of their ratio.
    pub(in crate::ops) fn rate_of(&self, [n_rows, width]: [usize; 2]) -> f64 {
        self.lr * (n_rows as f64 / width as f64).max(1.0).sqrt()
    }
}

impl AdamWStep {
    /// Bias corrections, `1 - beta^n_updates`: the averages are divided by them, since they began at 0.
    pub(in crate::ops) fn corrections(&self) -> [f64; 2] {
        [self.beta1, self.beta2].map(|beta| 1.0 - beta.powf(self.n_updates as f64))
    }
}

/// Low-rank updates of one matrix `[d_out, d_in]` ([LoRA](https://arxiv.org/abs/2106.09685)): `x W^T + s (x A^T) B^T`,
/// each for a range of the matrix's rows (outputs).
///
/// All their values are one vector: every `A` (`[rank, d_in]`), one below the other, then every `B` (`[rows.len(), rank]`).
#[derive(Clone, Debug, PartialEq)]
pub struct LoraShape {
    /// Columns of the matrix.
    pub d_in: usize,
    /// The updates.
    pub pairs: Vec<LoraPair>,
}

/// An update of some rows of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraPair {
    /// The rows.
    pub rows: Range<usize>,
    /// Rows of `A` and columns of `B`.
    pub rank: usize,
    /// Multiplies the update.
    pub scale: f32,
}

/// A matrix's updates as an operand.
#[derive(Clone, Debug)]
pub(crate) struct LoraParts {
    /// `[shape.n_values()]`.
    pub(crate) values: Tensor<1>,
    pub(crate) shape: Arc<LoraShape>,
    /// Dropout of the updates' input.
    pub(crate) dropout: Option<Dropout>,
}

impl LoraShape {
    /// Sum of the ranks of all pairs.
    pub fn total_rank(&self) -> usize {
        self.pairs.iter().map(|pair| pair.rank).sum()
    }

    /// Number of values of all pairs.
    pub fn n_values(&self) -> usize {
        self.pairs.iter().map(|pair| pair.rank * (self.d_in + pair.rows.len())).sum()
    }

    /// The ranges of each pair's `A` and `B` in the flat values.
    pub fn places(&self) -> impl Iterator<Item = [Range<usize>; 2]> {
        let (mut of_a, mut of_b) = (0, self.total_rank() * self.d_in);
        self.pairs.iter().map(move |LoraPair { rows, rank, .. }| {
            let [a, b] = [of_a..of_a + rank * self.d_in, of_b..of_b + rank * rows.len()];
            (of_a, of_b) = (a.end, b.end);
            [a, b]
        })
    }
}
