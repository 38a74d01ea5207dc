//! What a transformer block is: its operands, and the order of its two parts, attention and the MLP ([`run_block`]).
//!
//! What happens within a part has two bodies: one operation after the other (`ByOperations` in `gpt.rs`: training, GPUs), and in
//! place on the CPU (`ops/cpu/block.rs`). `has_block` chooses; an operand that the second does not know must be refused there.

use burn::tensor::Tensor;

use super::QkNormParts;
use crate::config::Activation;

/// How a sublayer `f` of a block, attention or MLP, reads the residual stream and adds to it: `x + out_norm(f(in_norm(x)))`,
/// or, with [`norm_after_add`](BlockOperands::norm_after_add), `out_norm(x + f(in_norm(x)))`.
#[derive(Debug)]
pub(crate) struct Sublayer<N, L> {
    /// Norm of its input.
    pub(crate) in_norm: Option<N>,
    /// Its last matrix.
    pub(crate) out_proj: L,
    /// Norm of its output.
    pub(crate) out_norm: Option<N>,
}

/// The one description of a block. `N` is the type of its norms, `L` the type of its matrices.
#[derive(Debug)]
pub(crate) struct BlockOperands<N, L> {
    /// Attention's ends.
    pub(crate) attn: Sublayer<N, L>,
    /// Projection to queries, keys and values, stacked.
    pub(crate) qkv: L,
    /// Norms of queries and keys, before rotation.
    pub(crate) qk_norms: Option<QkNormParts<N>>,
    /// The MLP's ends.
    pub(crate) mlp: Sublayer<N, L>,
    /// First matrix of the MLP; if gated, the gate's rows, then those of `up`.
    pub(crate) up: L,
    /// Activation of the MLP.
    pub(crate) activation: Activation,
    /// The four numbers of [`xielu`](crate::ops::xielu), if that is the activation instead.
    pub(crate) xielu: Option<Tensor<1>>,
    /// Whether the MLP is gated.
    pub(crate) gated: bool,
    /// Whether the MLP reads the block's input; otherwise it reads the residual stream after attention.
    pub(crate) is_parallel: bool,
    /// Whether output norms apply to the sum with the residual stream (post-norm).
    pub(crate) norm_after_add: bool,
    /// Multiplies everything that is added to the residual stream.
    pub(crate) residual_multiplier: f64,
}

impl<N, L> BlockOperands<N, L> {
    /// The same block with norms and matrices in other forms.
    pub(crate) fn map<M, K>(&self, norm: impl Fn(&N) -> M, linear: impl Fn(&L) -> K) -> BlockOperands<M, K> {
        let ends = |ends: &Sublayer<N, L>| Sublayer {
            in_norm: ends.in_norm.as_ref().map(&norm),
            out_proj: linear(&ends.out_proj),
            out_norm: ends.out_norm.as_ref().map(&norm),
        };
        BlockOperands {
            attn: ends(&self.attn),
            qkv: linear(&self.qkv),
            qk_norms: self.qk_norms.as_ref().map(|qk| qk.map(&norm)),
            mlp: ends(&self.mlp),
            up: linear(&self.up),
            activation: self.activation,
            xielu: self.xielu.clone(),
            gated: self.gated,
            is_parallel: self.is_parallel,
            norm_after_add: self.norm_after_add,
            residual_multiplier: self.residual_multiplier,
        }
    }
}

/// How the sublayers of a block are computed: operation by operation on tensors, or in place in the CPU's memory.
pub(crate) trait BlockSteps {
    /// The residual stream, `[n_rows, d_model]`.
    type Stream;
    /// A sublayer before its last matrix: the outputs of the heads, or the activations of the MLP.
    type Hidden;

    /// The residual stream twice, for two uses.
    fn fork(&mut self, x: Self::Stream) -> [Self::Stream; 2];

    /// Attention up to its output projection.
    fn attention(&mut self, x: Self::Stream) -> Self::Hidden;

    /// The MLP up to its last matrix.
    fn mlp(&mut self, x: Self::Stream) -> Self::Hidden;

    /// Attention's output projection, added to the residual stream.
    fn add_attention(&mut self, residual: Self::Stream, attended: Self::Hidden) -> Self::Stream;

    /// The MLP's last matrix, added to the residual stream.
    fn add_mlp(&mut self, residual: Self::Stream, hidden: Self::Hidden) -> Self::Stream;
}

/// The residual stream `x` after a block: attention, then the MLP, each added to it in turn; or both of the same input, if the
/// block [is parallel](BlockOperands::is_parallel).
pub(crate) fn run_block<S: BlockSteps>(steps: &mut S, x: S::Stream, is_parallel: bool) -> S::Stream {
    let [residual, x] = steps.fork(x);
    if is_parallel {
        let [for_attention, for_mlp] = steps.fork(x);
        let (attended, hidden) = (steps.attention(for_attention), steps.mlp(for_mlp));
        let residual = steps.add_attention(residual, attended);
        return steps.add_mlp(residual, hidden);
    }
    let attended = steps.attention(x);
    let x = steps.add_attention(residual, attended);
    let [residual, x] = steps.fork(x);
    let hidden = steps.mlp(x);
    steps.add_mlp(residual, hidden)
}
