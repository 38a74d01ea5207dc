//! A transformer block: its operands, and the order of its parts ([`run_block`]): a mixer of rows, in encoder-decoder
//! models cross-attention, and the MLP.
//!
//! The parts have two implementations: operation by operation (`ByOperations`: training, GPUs), and in place on the CPU
//! (`ops/cpu/block.rs`). `has_block` chooses; it must return false for operands that the second does not support.

use burn::tensor::Tensor;

use super::{GatedNormOptions, QkNormParts, RecurrentHeads, ShortConv};
use crate::config::{Activation, ClampedSwiglu, ExpertGroups, Experts, RouterScores};

/// How a sublayer `f` of a block, mixer or MLP, reads the residual stream and adds to it: `x + out_norm(f(in_norm(x)))`,
/// or, with [`norm_after_add`](BlockOperands::norm_after_add), `out_norm(x + f(in_norm(x)))`.
#[derive(Debug)]
pub(crate) struct Sublayer<N, F> {
    /// Norm of the sublayer's input.
    pub(crate) in_norm: Option<N>,
    /// The sublayer itself.
    pub(crate) inner: F,
    /// Norm of the sublayer's output.
    pub(crate) out_norm: Option<N>,
}

/// The one description of a block. `N` is the type of its norms, `L` of its matrices, and `R` of its small routing
/// matrices (experts' routers and gates).
#[derive(Debug)]
pub(crate) struct BlockOperands<N, L, R> {
    /// `None` in blocks that are an MLP only.
    pub(crate) mixer: Option<Sublayer<N, Mixer<N, L>>>,
    /// Attention to the rows of an encoder.
    pub(crate) cross: Option<Sublayer<N, CrossAttention<L>>>,
    /// `None` in blocks that are a mixer only.
    pub(crate) mlp: Option<Sublayer<N, FeedForward<N, L, R>>>,
    /// Whether the MLP reads the block's input; otherwise it reads the residual stream after the mixer.
    pub(crate) is_parallel: bool,
    /// Whether output norms apply to the sum with the residual stream (post-norm).
    pub(crate) norm_after_add: bool,
    /// Multiplies everything that is added to the residual stream.
    pub(crate) residual_multiplier: f64,
    /// Adds a projection of the block's own input, after the MLP.
    pub(crate) per_layer: Option<PerLayerUpdate<N, L>>,
    /// Multiplies the residual stream after the block: one number.
    pub(crate) scale: Option<Tensor<1>>,
}

/// `x + norm(proj(act(gate(x)) * input))`.
#[derive(Debug)]
pub(crate) struct PerLayerUpdate<N, L> {
    /// The block's own input, `[n_rows, width]`.
    pub(crate) input: Tensor<2>,
    pub(crate) gate: L,
    pub(crate) activation: Activation,
    pub(crate) proj: L,
    pub(crate) norm: N,
}

/// The part of a block in which rows depend on earlier rows.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives for one block of a pass")]
pub(crate) enum Mixer<N, L> {
    Attention(SelfAttention<N, L>),
    Recurrent(Recurrent<L>),
}

/// Attention with grouped key heads.
#[derive(Debug)]
pub(crate) struct SelfAttention<N, L> {
    pub(crate) qkv: Qkv<N, L>,
    /// Clamps the outputs of the `qkv` projection to this magnitude.
    pub(crate) clip: Option<f32>,
    /// Whether the heads' outputs are gated, with one gate per value.
    pub(crate) is_gated: bool,
    /// Where keys and values come from.
    pub(crate) kv: KvSource,
    /// Norms of queries and keys, before rotation. If another layer's keys are used, the norm of keys is not.
    pub(crate) qk_norms: Option<QkNormParts<N>>,
    /// Norm of each head's values.
    pub(crate) v_norm: Option<N>,
    /// A score for each head that joins the softmax's denominator, `[n_heads]`.
    pub(crate) sinks: Option<Tensor<1>>,
    /// Projection of the heads' outputs.
    pub(crate) out: L,
}

/// Cross-attention: every row sees all rows of an encoder.
#[derive(Debug)]
pub(crate) struct CrossAttention<L> {
    /// Projection of the decoder's rows to queries.
    pub(crate) q: L,
    /// Projection of the encoder's rows to keys and values. A step over a cache has these there.
    pub(crate) kv: L,
    /// Projection of the heads' outputs.
    pub(crate) out: L,
}

/// Where queries, keys and values come from.
#[derive(Debug)]
pub(crate) enum Qkv<N, L> {
    /// One stacked projection; it starts with the gates of the heads' outputs, if there are any.
    Stacked(L),
    Latent(LatentQkv<N, L>),
}

/// Projections of latent attention.
#[derive(Debug)]
pub(crate) struct LatentQkv<N, L> {
    /// Projection to the latent of queries, and its norm. Without them, queries come from the row.
    pub(crate) q_down: Option<(L, N)>,
    /// Projection to queries.
    pub(crate) q: L,
    /// Projection to the rotated part of all keys, followed by the latent of keys and values.
    pub(crate) kv_down: L,
    /// Norm of that latent.
    pub(crate) kv_norm: N,
    /// Projection of that latent to the other part of each key, and then the values.
    pub(crate) kv_up: L,
    pub(crate) heads: LatentHeads,
}

/// Sizes of latent attention's heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LatentHeads {
    pub(crate) n_heads: usize,
    /// Leading dimensions of a query and of a key that rotate.
    pub(crate) rope_dim: usize,
    /// The remaining dimensions.
    pub(crate) plain_dim: usize,
    pub(crate) value_dim: usize,
}

/// Where a layer's keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvSource {
    /// The projection has both.
    Projected,
    /// The projection has keys; before norm and rotation, they are the values too.
    KeysOnly,
    /// Another layer's keys and values are used; the projection has only queries.
    OtherLayer,
}

/// A recurrent layer. Its state has a constant size per sequence.
#[derive(Debug)]
pub(crate) struct Recurrent<L> {
    /// Projection to the convolution's input, and to gates or time steps beside it.
    pub(crate) input: L,
    pub(crate) conv: ShortConv,
    pub(crate) kind: RecurrentKind<L>,
    pub(crate) out: L,
}

/// What a recurrent layer computes besides its convolution.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives for one block of a pass")]
pub(crate) enum RecurrentKind<L> {
    /// The projection is the gate before the convolution, the gate after it, and the input.
    GatedConv,
    /// The projection is queries, keys and values, which the convolution reads, and the gates of the norm after the
    /// gated delta rule.
    GatedDelta {
        /// Projection to the inputs of betas and decays.
        ba: L,
        /// `[n_v_heads]`.
        a_log: Tensor<1>,
        /// `[n_v_heads]`.
        dt_bias: Tensor<1>,
        heads: RecurrentHeads,
        /// The norm's weight, `[v_dim]`.
        norm: Tensor<1>,
        options: GatedNormOptions,
    },
    /// The projection is the gates of the norm after the state space, then values, keys and queries, which the
    /// convolution reads, then the inputs of the time steps.
    StateSpace {
        /// `[n_v_heads]`.
        a_log: Tensor<1>,
        /// `[n_v_heads]`.
        dt_bias: Tensor<1>,
        /// `[n_v_heads]`; these times the values are added to the output.
        skip: Tensor<1>,
        heads: RecurrentHeads,
        /// The norm's weight, `[v_width]`.
        norm: Tensor<1>,
        options: GatedNormOptions,
        /// The shortest and the longest time step.
        time_steps: [f64; 2],
    },
}

/// The part of a block that works on each row alone.
#[derive(Debug)]
pub(crate) enum FeedForward<N, L, R> {
    Dense(Mlp<L>),
    Routed(RoutedExperts<L, R>),
    Both(Box<ExpertsBesideMlp<N, L, R>>),
}

/// An MLP and experts. Their outputs, each normalized, are added.
#[derive(Debug)]
pub(crate) struct ExpertsBesideMlp<N, L, R> {
    /// The MLP; it reads the sublayer's input.
    pub(crate) mlp: Mlp<L>,
    pub(crate) mlp_out_norm: N,
    /// The experts; they and their router read the residual stream, each after its own norm.
    pub(crate) routed: RoutedExperts<L, R>,
    pub(crate) router_norm: N,
    pub(crate) in_norm: N,
    pub(crate) out_norm: N,
}

/// An MLP, or one expert.
#[derive(Debug)]
pub(crate) struct Mlp<L> {
    /// First matrix; if gated, the gate's rows, then the rows of `up`.
    pub(crate) up: L,
    /// Last matrix.
    pub(crate) down: L,
    pub(crate) activation: Activation,
    /// The four numbers of [`xielu`](crate::ops::xielu), if that is the activation instead.
    pub(crate) xielu: Option<Tensor<1>>,
    pub(crate) gated: bool,
    /// How [`clamped_swiglu`](crate::ops::clamped_swiglu) gates, if it does so instead.
    pub(crate) clamped: Option<ClampedSwiglu>,
}

/// Experts, and the router that chooses some of them for each row.
#[derive(Debug)]
pub(crate) struct RoutedExperts<L, R> {
    pub(crate) router: R,
    pub(crate) routing: Routing,
    pub(crate) experts: Vec<Mlp<L>>,
    /// Projections from rows to the experts' latent dimension, and of the experts' sum back.
    pub(crate) latent: Option<[L; 2]>,
    /// The expert that every row goes through.
    pub(crate) shared: Option<SharedExpert<L, R>>,
}

#[derive(Debug)]
pub(crate) struct SharedExpert<L, R> {
    pub(crate) mlp: Mlp<L>,
    /// The expert's output is multiplied by the sigmoid of this one-output projection.
    pub(crate) gate: Option<R>,
}

/// How a router chooses; see the fields of the same names in [`Experts`](crate::config::Experts).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Routing {
    pub(crate) n_active: usize,
    pub(crate) scores: RouterScores,
    pub(crate) normalized: bool,
    pub(crate) weight_multiplier: f64,
    pub(crate) groups: Option<ExpertGroups>,
}

impl Routing {
    /// Takes the routing options from the configuration.
    pub(crate) fn of(experts: &Experts) -> Self {
        let Experts { n_active, scores, normalized, weight_multiplier, groups, .. } = *experts;
        Self { n_active, scores, normalized, weight_multiplier, groups }
    }
}

impl<N, F> Sublayer<N, F> {
    fn map<M, G>(&self, norm: &impl Fn(&N) -> M, inner: impl Fn(&F) -> G) -> Sublayer<M, G> {
        let Self { in_norm, inner: own, out_norm } = self;
        Sublayer { in_norm: in_norm.as_ref().map(norm), inner: inner(own), out_norm: out_norm.as_ref().map(norm) }
    }
}

impl<L> Mlp<L> {
    /// The same MLP with matrices in another form.
    fn map<K>(&self, linear: impl Fn(&L) -> K) -> Mlp<K> {
        let Self { up, down, activation, xielu, gated, clamped } = self;
        let (up, down, xielu) = (linear(up), linear(down), xielu.clone());
        Mlp { up, down, activation: *activation, xielu, gated: *gated, clamped: *clamped }
    }
}

impl<L> CrossAttention<L> {
    /// Its matrices.
    pub(crate) fn linears(&self) -> [&L; 3] {
        [&self.q, &self.kv, &self.out]
    }

    fn map<K>(&self, linear: &impl Fn(&L) -> K) -> CrossAttention<K> {
        CrossAttention { q: linear(&self.q), kv: linear(&self.kv), out: linear(&self.out) }
    }
}

impl<N, L> Mixer<N, L> {
    /// Its last matrix.
    pub(crate) fn out(&self) -> &L {
        match self {
            Self::Attention(attention) => &attention.out,
            Self::Recurrent(recurrent) => &recurrent.out,
        }
    }

    fn map<M, K>(&self, norm: &impl Fn(&N) -> M, linear: &impl Fn(&L) -> K) -> Mixer<M, K> {
        match self {
            Self::Attention(SelfAttention { qkv, clip, is_gated, kv, qk_norms, v_norm, sinks, out }) => {
                Mixer::Attention(SelfAttention {
                    qkv: qkv.map(norm, linear),
                    clip: *clip,
                    is_gated: *is_gated,
                    kv: *kv,
                    qk_norms: qk_norms.as_ref().map(|qk| qk.map(norm)),
                    v_norm: v_norm.as_ref().map(norm),
                    sinks: sinks.clone(),
                    out: linear(out),
                })
            }
            Self::Recurrent(Recurrent { input, conv, kind, out }) => Mixer::Recurrent(Recurrent {
                input: linear(input),
                conv: conv.clone(),
                kind: kind.map(linear),
                out: linear(out),
            }),
        }
    }
}

impl<N, L> Qkv<N, L> {
    fn map<M, K>(&self, norm: &impl Fn(&N) -> M, linear: &impl Fn(&L) -> K) -> Qkv<M, K> {
        match self {
            Self::Stacked(qkv) => Qkv::Stacked(linear(qkv)),
            Self::Latent(LatentQkv { q_down, q, kv_down, kv_norm, kv_up, heads }) => Qkv::Latent(LatentQkv {
                q_down: q_down.as_ref().map(|(down, of_latent)| (linear(down), norm(of_latent))),
                q: linear(q),
                kv_down: linear(kv_down),
                kv_norm: norm(kv_norm),
                kv_up: linear(kv_up),
                heads: *heads,
            }),
        }
    }
}

impl<L> RecurrentKind<L> {
    fn map<K>(&self, linear: &impl Fn(&L) -> K) -> RecurrentKind<K> {
        match self {
            Self::GatedConv => RecurrentKind::GatedConv,
            Self::GatedDelta { ba, a_log, dt_bias, heads, norm, options } => RecurrentKind::GatedDelta {
                ba: linear(ba),
                a_log: a_log.clone(),
                dt_bias: dt_bias.clone(),
                heads: *heads,
                norm: norm.clone(),
                options: *options,
            },
            Self::StateSpace { a_log, dt_bias, skip, heads, norm, options, time_steps } => RecurrentKind::StateSpace {
                a_log: a_log.clone(),
                dt_bias: dt_bias.clone(),
                skip: skip.clone(),
                heads: *heads,
                norm: norm.clone(),
                options: *options,
                time_steps: *time_steps,
            },
        }
    }
}

impl<N, L, R> FeedForward<N, L, R> {
    fn parts(&self) -> (Option<&Mlp<L>>, Option<&RoutedExperts<L, R>>) {
        match self {
            Self::Dense(mlp) => (Some(mlp), None),
            Self::Routed(routed) => (None, Some(routed)),
            Self::Both(both) => (Some(&both.mlp), Some(&both.routed)),
        }
    }

    /// Its matrices, except routing matrices.
    pub(crate) fn linears(&self) -> impl Iterator<Item = &L> {
        let (dense, routed) = self.parts();
        let of_dense = dense.into_iter().flat_map(|mlp| [&mlp.up, &mlp.down]);
        of_dense.chain(routed.into_iter().flat_map(RoutedExperts::linears))
    }

    /// Its routing matrices.
    pub(crate) fn routers(&self) -> impl Iterator<Item = &R> {
        self.parts().1.into_iter().flat_map(RoutedExperts::routers)
    }

    fn map<M, K, Q>(
        &self,
        norm: &impl Fn(&N) -> M,
        linear: &impl Fn(&L) -> K,
        router: &impl Fn(&R) -> Q,
    ) -> FeedForward<M, K, Q> {
        match self {
            Self::Dense(mlp) => FeedForward::Dense(mlp.map(linear)),
            Self::Routed(routed) => FeedForward::Routed(routed.map(linear, router)),
            Self::Both(both) => FeedForward::Both(Box::new(ExpertsBesideMlp {
                mlp: both.mlp.map(linear),
                mlp_out_norm: norm(&both.mlp_out_norm),
                routed: both.routed.map(linear, router),
                router_norm: norm(&both.router_norm),
                in_norm: norm(&both.in_norm),
                out_norm: norm(&both.out_norm),
            })),
        }
    }
}

impl<L, R> RoutedExperts<L, R> {
    /// The matrices of all experts, and the projections around them.
    pub(crate) fn linears(&self) -> impl Iterator<Item = &L> {
        let mlps = self.experts.iter().chain(self.shared.iter().map(|shared| &shared.mlp));
        mlps.flat_map(|mlp| [&mlp.up, &mlp.down]).chain(self.latent.iter().flatten())
    }

    /// Its routing matrices.
    pub(crate) fn routers(&self) -> impl Iterator<Item = &R> {
        [&self.router].into_iter().chain(self.shared.iter().filter_map(|shared| shared.gate.as_ref()))
    }

    /// The same experts with matrices in other forms.
    pub(crate) fn map<K, Q>(&self, linear: &impl Fn(&L) -> K, router: &impl Fn(&R) -> Q) -> RoutedExperts<K, Q> {
        RoutedExperts {
            router: router(&self.router),
            routing: self.routing,
            experts: self.experts.iter().map(|expert| expert.map(linear)).collect(),
            latent: self.latent.as_ref().map(|latent| latent.each_ref().map(linear)),
            shared: self.shared.as_ref().map(|SharedExpert { mlp, gate }| SharedExpert {
                mlp: mlp.map(linear),
                gate: gate.as_ref().map(router),
            }),
        }
    }
}

impl<N, L, R> BlockOperands<N, L, R> {
    /// The same block with norms and matrices in other forms.
    pub(crate) fn map<M, K, Q>(
        &self,
        norm: impl Fn(&N) -> M,
        linear: impl Fn(&L) -> K,
        router: impl Fn(&R) -> Q,
    ) -> BlockOperands<M, K, Q> {
        BlockOperands {
            mixer: self.mixer.as_ref().map(|mixer| mixer.map(&norm, |inner| inner.map(&norm, &linear))),
            cross: self.cross.as_ref().map(|cross| cross.map(&norm, |inner| inner.map(&linear))),
            mlp: self.mlp.as_ref().map(|mlp| mlp.map(&norm, |inner| inner.map(&norm, &linear, &router))),
            is_parallel: self.is_parallel,
            norm_after_add: self.norm_after_add,
            residual_multiplier: self.residual_multiplier,
            per_layer: self.per_layer.as_ref().map(|update| PerLayerUpdate {
                input: update.input.clone(),
                gate: linear(&update.gate),
                activation: update.activation,
                proj: linear(&update.proj),
                norm: norm(&update.norm),
            }),
            scale: self.scale.clone(),
        }
    }
}

/// How the sublayers of a block are computed: operation by operation on tensors, or in place in the CPU's memory.
pub(crate) trait BlockSteps<N, L, R> {
    /// The residual stream, `[n_rows, d_model]`.
    type Stream;
    /// A sublayer's result before it is added to the residual stream: the outputs of the heads, the activations of an
    /// MLP before its last matrix, or the output of experts.
    type Hidden;

    /// The residual stream twice, for two uses.
    fn fork(&mut self, x: Self::Stream) -> [Self::Stream; 2];

    /// The mixer up to its output projection.
    fn mixer(&mut self, mixer: &Sublayer<N, Mixer<N, L>>, x: Self::Stream) -> Self::Hidden;

    /// Attention to the encoder's rows up to its output projection.
    fn cross(&mut self, cross: &Sublayer<N, CrossAttention<L>>, x: Self::Stream) -> Self::Hidden;

    /// The MLP up to its last matrix, or the experts.
    fn mlp(&mut self, mlp: &Sublayer<N, FeedForward<N, L, R>>, x: Self::Stream) -> Self::Hidden;

    /// The mixer's output projection, added to the residual stream.
    fn add_mixer(
        &mut self,
        mixer: &Sublayer<N, Mixer<N, L>>,
        residual: Self::Stream,
        mixed: Self::Hidden,
    ) -> Self::Stream;

    /// The output projection of attention to the encoder's rows, added to the residual stream.
    fn add_cross(
        &mut self,
        cross: &Sublayer<N, CrossAttention<L>>,
        residual: Self::Stream,
        attended: Self::Hidden,
    ) -> Self::Stream;

    /// Adds the MLP's down projection, or the experts' outputs, to the residual stream.
    fn add_mlp(
        &mut self,
        mlp: &Sublayer<N, FeedForward<N, L, R>>,
        residual: Self::Stream,
        hidden: Self::Hidden,
    ) -> Self::Stream;

    /// Adds the projection of the block's own input, if it has one, and multiplies by its scale, if it has one.
    fn finish(&mut self, block: &BlockOperands<N, L, R>, x: Self::Stream) -> Self::Stream;
}

/// The residual stream `x` after a block. The parts that the block has are added one after the other: the mixer,
/// cross-attention and the MLP; or mixer and MLP read the same input, if the block [is
/// parallel](BlockOperands::is_parallel). Then come the block's own input and its scale.
pub(crate) fn run_block<N, L, R, S>(steps: &mut S, block: &BlockOperands<N, L, R>, mut x: S::Stream) -> S::Stream
where
    S: BlockSteps<N, L, R>,
{
    if let (true, Some(mixer), Some(mlp)) = (block.is_parallel, &block.mixer, &block.mlp) {
        let [residual, x] = steps.fork(x);
        let [for_mixer, for_mlp] = steps.fork(x);
        let (mixed, hidden) = (steps.mixer(mixer, for_mixer), steps.mlp(mlp, for_mlp));
        let residual = steps.add_mixer(mixer, residual, mixed);
        let x = steps.add_mlp(mlp, residual, hidden);
        return steps.finish(block, x);
    }
    if let Some(mixer) = &block.mixer {
        let [residual, input] = steps.fork(x);
        let mixed = steps.mixer(mixer, input);
        x = steps.add_mixer(mixer, residual, mixed);
    }
    if let Some(cross) = &block.cross {
        let [residual, input] = steps.fork(x);
        let attended = steps.cross(cross, input);
        x = steps.add_cross(cross, residual, attended);
    }
    if let Some(mlp) = &block.mlp {
        let [residual, input] = steps.fork(x);
        let hidden = steps.mlp(mlp, input);
        x = steps.add_mlp(mlp, residual, hidden);
    }
    steps.finish(block, x)
}
