//! The architecture, from token ids to logits, and every parameter it has.
//!
//! - [`attention`]: attention layers; [`position`]: position encodings; [`kv_cache`]: pages of keys and values
//! - `costs`: bytes and multiply-adds of a step; [`lora`]: low-rank adapters, and models with one
//! - [`recompute`]: training passes that keep only the input of each block
//! - [`pooling`]: hidden states to embeddings

pub mod attention;
mod by_operations;
pub mod class_head;
mod costs;
mod devices;
mod encoder;
pub(crate) mod forward_pass;
mod inputs;
pub mod kv_cache;
mod kv_dtypes;
mod latent;
pub(crate) mod layers;
pub mod lora;
mod losses;
pub(crate) mod param_specs;
pub(crate) mod params;
pub mod pooling;
pub mod position;
pub mod prediction_head;
pub mod recompute;
mod recurrent;
mod router_losses;
#[cfg(test)]
mod tests;
pub mod token_ids;

use std::collections::HashMap;

use burn::{
    module::Param,
    tensor::{Device, Int, Tensor, TensorData},
};

pub use self::router_losses::{RouterLogits, RouterLossWeights, RouterLosses};
use self::{
    by_operations::ByOperations, class_head::ClassHead, devices::require_bodies, encoder::Encoder,
    prediction_head::PredictionLayer,
};
pub use crate::gpt::{
    param_specs::{Init, ParamSpec, ROUTED, linear_dims, param_specs},
    params::{ParamData, ParamPath, ParamVisitor},
};
use crate::{
    config::{GptConfig, MaskedLmHead, NormPosition},
    error::Result,
    gpt::{
        forward_pass::{AttentionContext, ForwardPass},
        layers::{
            Conv, Decays, Embedding, Linear, LmHead, Norm, Part, PartList, Relative, Router, Scale, Vector, modules,
        },
        lora::AdapterRows,
        params::{ParamList, ParamRef, ParamSource},
    },
    ops::{
        self, BlockOperands, Dtype, ExpertsBesideMlp, FeedForward, KvSource, Mixer, NormParts, Precision, QkNormParts,
        RoutedExperts, Routing, SelfAttention, SharedExpert, Sublayer, Weight,
    },
    philox::{log_uniform_values, normal_values},
};

modules! {
    /// A transformer: a decoder, an encoder, or both.
    pub struct Gpt {
        embed: Embedding,
        pos_embed: Option<Embedding>,
        type_embed: Option<Embedding>,
        embed_norm: Option<Norm>,
        // Of distances, in all layers; some models have them in each attention.
        relative: Option<Relative>,
        per_layer: Option<PerLayerInputs>,
        encoder: Option<Encoder>,
        blocks: Vec<Block>,
        norm: Option<Norm>,
        mlm_head: Option<MlmHead>,
        lm_head: LmHead,
        // Trains beside the model.
        prediction: Option<PredictionLayer>,
        // Classification head of an encoder that trains.
        classes: Option<ClassHead>,
        ; config: GptConfig,
    }

    /// The mixer (attention or a recurrent layer), then the feed-forward network, each added to the residual stream. A
    /// layer may have only one of them.
    struct Block {
        // The mixer's.
        attn_norm: Option<Norm>,
        attn: Option<CausalSelfAttention>,
        // In place of attention.
        recurrent: Option<RecurrentLayer>,
        attn_out_norm: Option<Norm>,
        // To the rows of an encoder.
        cross_norm: Option<Norm>,
        cross: Option<CrossAttention>,
        // If there is none, the MLP uses attention's norm.
        mlp_norm: Option<Norm>,
        mlp: Option<Mlp>,
        // Instead of the MLP, or beside it.
        experts: Option<Experts>,
        mlp_out_norm: Option<Norm>,
        per_layer: Option<PerLayerUpdate>,
        scale: Option<Scale>,
    }

    /// Makes predictions of masked tokens possible.
    struct MlmHead {
        dense: Linear,
        norm: Norm,
    }

    /// The second embedding, of which every block reads a slice.
    struct PerLayerInputs {
        embed: Embedding,
        proj: Linear,
        norm: Norm,
    }

    /// A block's projection of its slice of the per-layer inputs.
    struct PerLayerUpdate {
        gate: Linear,
        proj: Linear,
        norm: Norm,
    }

    /// Masked multi-head self-attention with grouped key and value heads.
    struct CausalSelfAttention {
        // Queries, keys and values in one matrix, after gates if there are any: one product instead of three. Some
        // layers have no values, or only queries.
        qkv: Option<Linear>,
        // In place of that matrix.
        latent: Option<LatentProjections>,
        q_norm: Option<Norm>,
        k_norm: Option<Norm>,
        v_norm: Option<Norm>,
        sinks: Option<Vector>,
        relative: Option<Relative>,
        out: Linear,
    }

    /// Attention to the rows of an encoder.
    struct CrossAttention {
        q: Linear,
        // Projection of the encoder's rows.
        kv: Linear,
        out: Linear,
    }

    /// Queries, keys and values from latents.
    struct LatentProjections {
        q_down: Option<Linear>,
        q_norm: Option<Norm>,
        q: Linear,
        kv_down: Linear,
        kv_norm: Norm,
        kv_up: Linear,
    }

    /// A recurrent layer: a short convolution and, in most models, a recurrence.
    struct RecurrentLayer {
        // The convolution's input, and gates.
        input: Linear,
        // Betas and decays, before their functions.
        ba: Option<Linear>,
        conv: Conv,
        decays: Option<Decays>,
        norm: Option<Norm>,
        out: Linear,
    }

    /// The feed-forward network: `down(act(up(x)))`, or gated.
    struct Mlp {
        // If gated, the gate's rows, then the rows of `up`: one product instead of two.
        up: Linear,
        xielu: Option<Vector>,
        down: Linear,
    }

    /// Routed experts: each is an MLP, and a router chooses some for each row.
    struct Experts {
        router: Router,
        // The output norm of an MLP beside the experts.
        mlp_out_norm: Option<Norm>,
        router_norm: Option<Norm>,
        in_norm: Option<Norm>,
        out_norm: Option<Norm>,
        // To a narrower row that the chosen experts read, and back.
        latent_down: Option<Linear>,
        latent_up: Option<Linear>,
        routed: Vec<Mlp>,
        // Every row goes through it.
        shared: Option<Mlp>,
        shared_gate: Option<Router>,
    }
}

impl Gpt {
    /// A model with random weights; the same `seed` gives the same weights on every device.
    ///
    /// Matrices and embeddings are normal with deviation 0.02, the two projections that write into the residual stream
    /// with `0.02 / sqrt(2 n_layers)` (GPT-2, 2.3); biases are 0, norm weights act as 1.
    ///
    /// # Errors
    /// [`Error::Config`](crate::error::Error::Config) when `config` makes no model.
    pub fn init(config: &GptConfig, seed: u64, device: &Device) -> Result<Self> {
        let mut tensor = 0;
        Self::from_params(config, Dtype::F32, device, &mut |spec| {
            tensor += 1;
            Ok(initial_values(spec, seed, tensor))
        })
    }

    /// A model whose parameters come from `read`, one at a time. Matrices are stored in `dtype`, except those that
    /// `read` returns already placed on the device (`ParamData::Placed`); all other parameters are f32.
    ///
    /// # Errors
    /// [`Error::Config`](crate::error::Error::Config) when `config` is invalid, and whatever `read` reports.
    pub fn from_params<'a, P: Into<ParamData<'a>>>(
        config: &GptConfig,
        dtype: Dtype,
        device: &Device,
        read: &mut dyn FnMut(&ParamSpec) -> Result<P>,
    ) -> Result<Self> {
        config.validate()?;
        require_bodies(config, device)?;
        let mut read = |spec: &ParamSpec| read(spec).map(Into::into);
        Self::read("", &mut ParamSource::new(config, dtype, device, &mut read))
    }

    /// A copy of a model in training, ready to be served: its matrices are laid out for the device's kernels and record
    /// no gradients. If only an adapter trains, the matrices have this layout already, and the copy shares them.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::error::Error::Execution) when the device cannot be read.
    pub fn packed(&self) -> Result<Self> {
        if self.linears().into_iter().any(|(_, linear)| linear.lora().is_some() || linear.weight().is_packed()) {
            return Ok(self.clone());
        }
        let params: HashMap<String, ParamRef<'_>> = self.params().into_iter().collect();
        let packed =
            Self::from_params(&self.config, self.dtype(), &self.device(), &mut |spec| params[&spec.path].read())?;
        // Small, and f32.
        Ok(Self { classes: self.classes.clone(), ..packed })
    }

    /// The same model with another dropout probability for training, which model files may not state.
    #[must_use]
    pub fn with_dropout(mut self, dropout: f64) -> Self {
        self.config = self.config.with_dropout(dropout);
        self.encoder = self.encoder.map(|encoder| encoder.with_dropout(dropout));
        self
    }

    /// The same encoder without its masked-LM head.
    #[must_use]
    pub fn without_mlm_head(mut self) -> Self {
        if self.mlm_head.take().is_some() {
            self.config = self.config.without_mlm_head();
            self.lm_head.bias = None;
        }
        self
    }

    /// The same model for a context of `max_seq_len` tokens: at least 1, at most the model's own. This decides which
    /// factors [`RopeScaling::LongRope`](crate::config::RopeScaling::LongRope) uses. A model with learned positions
    /// keeps all of them, so it can compute, but not be saved.
    #[must_use]
    pub fn with_max_seq_len(mut self, max_seq_len: usize) -> Self {
        self.config.max_seq_len = max_seq_len.clamp(1, self.config.max_seq_len);
        self
    }

    /// The same model with another precision of its matrix products on the CPU: of all matrices in training, otherwise
    /// only of matrices that are stored in bf16.
    ///
    /// # Panics
    /// If a clone of the model shares its matrices.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.set_precision(precision));
        self.lm_head.weight.as_mut().unwrap_or(&mut self.embed.weight).set_precision(precision);
        self
    }

    /// The precision of its matrix products on the CPU.
    pub fn precision(&self) -> Precision {
        self.lm_head.weight.as_ref().unwrap_or(&self.embed.weight).precision()
    }

    /// The architecture.
    pub fn config(&self) -> &GptConfig {
        &self.config
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.embed.weight.device()
    }

    /// Token ids to hidden states: `[n_tokens]` to `[n_tokens, d_model]`. `context` defines which rows see each other.
    ///
    /// Ids must be below `vocab_size` and, with learned positions, positions below `max_seq_len`. A GPU does not report
    /// larger ones: it uses the last row instead.
    ///
    /// # Panics
    /// If `context` has another number of rows, or is a step over the cache of another architecture; on other devices
    /// than a GPU, also if an id or a position is too large.
    pub fn forward(&self, token_ids: Tensor<1, Int>, context: AttentionContext<'_>) -> Tensor<2> {
        let device = token_ids.device();
        self.run(token_ids, &mut ForwardPass::new(&self.config, context, &device))
    }

    /// [`forward`](Self::forward).
    pub(crate) fn run(&self, token_ids: Tensor<1, Int>, pass: &mut ForwardPass<'_>) -> Tensor<2> {
        let x = self.embed_input(token_ids, pass);
        self.run_blocks(x, pass)
    }

    /// Block `layer` on the residual stream `[n_rows, d_model]`.
    pub(crate) fn block(&self, layer: usize, x: Tensor<2>, pass: &mut ForwardPass<'_>) -> Tensor<2> {
        self.blocks[layer].forward(layer, x, &self.config, pass)
    }

    /// Runs the blocks and the final norm: from the first block's input, `[n_rows, d_model]`, to hidden states of the
    /// same shape.
    fn run_blocks(&self, mut x: Tensor<2>, pass: &mut ForwardPass<'_>) -> Tensor<2> {
        pass.record_residual(0, &x);
        for layer in 0..self.blocks.len() {
            x = self.block(layer, x, pass);
            pass.record_residual(layer + 1, &x);
        }
        self.final_norm(x)
    }

    /// Applies the last norm, if there is one, to the residual stream `[n_rows, d_model]`: final hidden states.
    pub(crate) fn final_norm(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }

    /// Scores of every token to come next: `[n_rows, d_model]` to `[n_rows, vocab_size]`.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let (weight, bias) = self.output();
        let logits = ops::linear(self.output_input(hidden), weight, bias);
        match self.config.logit_softcap {
            Some(cap) => ops::soft_cap(logits, cap),
            None => logits,
        }
    }

    /// Every parameter's path and value as f32, in the order of the layers. Reads one tensor at a time off the device.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::error::Error::Execution) when the device cannot be read, and whatever `visit` reports.
    pub fn read_params(&self, visit: &mut ParamVisitor<'_>) -> Result<()> {
        self.params().into_iter().try_for_each(|(path, param)| visit(&path, param.read()?))
    }

    /// Every parameter with its path, in the order of the layers. No values are read.
    pub(crate) fn params(&self) -> ParamList<'_> {
        self.parts().params
    }

    /// The dtype of most values in the blocks' matrices. Files may mix dtypes, and embeddings may be wider.
    pub fn dtype(&self) -> Dtype {
        let matrices: Vec<_> = self.block_matrices().collect();
        let n_values = |dtype: Dtype| -> usize {
            let held_so = matrices.iter().filter(|matrix| matrix.dtype() == dtype);
            held_so.map(|matrix| matrix.dims().iter().product::<usize>()).sum()
        };
        // If several are equally common, the widest.
        let dtypes = Dtype::every().rev().map(|(_, dtype)| dtype);
        dtypes.max_by_key(|dtype| n_values(*dtype)).unwrap_or_default()
    }

    fn parts(&self) -> PartList<'_> {
        let mut parts = PartList::default();
        self.list("", &mut parts);
        parts
    }

    /// The linear layers of the blocks, whose matrices adapters can update, with their paths, such as `blocks.3.attn.qkv`.
    pub(crate) fn linears(&self) -> Vec<(String, &Linear)> {
        self.parts().linears
    }

    /// [`linears`](Self::linears).
    pub(crate) fn linears_mut(&mut self) -> Vec<(String, &mut Linear)> {
        let mut linears = Vec::new();
        self.list_linears_mut("", &mut linears);
        linears
    }

    fn block_matrices(&self) -> impl Iterator<Item = &Weight> {
        self.linears().into_iter().map(|(_, linear)| linear.weight())
    }

    /// Every matrix with its path.
    pub fn matrices(&self) -> Vec<(String, &Weight)> {
        let matrix = |(path, param)| match param {
            ParamRef::Matrix(weight) => Some((path, weight)),
            ParamRef::Vector(_) | ParamRef::Conv(_) | ParamRef::Constant(_) => None,
        };
        self.params().into_iter().filter_map(matrix).collect()
    }

    /// The output matrix and its bias, for [`output_input`](Self::output_input).
    fn output(&self) -> (&Weight, Option<Tensor<1>>) {
        let weight = self.lm_head.weight.as_ref().unwrap_or(&self.embed.weight);
        let multiplier = self.config.logit_multiplier;
        let multiplied = |bias: Tensor<1>| if multiplier == 1.0 { bias } else { bias * multiplier };
        (weight, self.lm_head.bias.as_ref().map(Param::val).map(multiplied))
    }

    /// The row of the output matrix for the token `id`, with the multiplier of the logits: `[d_model]`.
    pub(crate) fn output_row(&self, id: crate::TokenId) -> Vec<f32> {
        let (weight, _) = self.output();
        let row = ops::embedding(weight, Tensor::from_data([id as i32], &self.device()));
        let row = (row * self.config.logit_multiplier).into_data().convert::<f32>().try_into_vec();
        row.unwrap_or_else(|_| unreachable!("just converted"))
    }

    /// The input of the output matrix from hidden states: applies the masked-LM head, and the logits' multiplier here,
    /// since logits have more values.
    fn output_input(&self, hidden: Tensor<2>) -> Tensor<2> {
        let hidden = match (&self.mlm_head, self.config.mlm_head) {
            (Some(MlmHead { dense, norm }), Some(MaskedLmHead { activation, .. })) => {
                let dense = ops::linear_with_lora(hidden, dense.parts(None, &[]));
                norm.forward(ops::activate(dense, activation))
            }
            _ => hidden,
        };
        let multiplier = self.config.logit_multiplier;
        if multiplier == 1.0 { hidden } else { hidden * multiplier }
    }
}

/// The values of the `tensor`-th parameter of a fresh model.
fn initial_values(spec: &ParamSpec, seed: u64, tensor: u32) -> TensorData {
    let n = spec.shape.iter().product();
    let values = match spec.init {
        Init::Normal { std } => normal_values(seed, tensor, n, std as f32),
        Init::Constant(value) => vec![value; n],
        Init::Values(values) => values.to_vec(),
        Init::LogUniform { least, most } => log_uniform_values(seed, tensor, n, [least, most]),
    };
    TensorData::new(values, spec.shape.as_slice())
}

impl Block {
    /// The residual stream `x [n_rows, d_model]` after the block.
    fn forward(&self, layer: usize, x: Tensor<2>, config: &GptConfig, pass: &mut ForwardPass<'_>) -> Tensor<2> {
        if let Some(relative) = self.attn.as_ref().and_then(|attention| attention.relative.as_ref()) {
            pass.add_relative(relative);
        }
        let adapters = pass.adapters();
        let block = &self.operands(layer, config, pass.dropout_seed(), &adapters, pass.per_layer_input(layer));
        match pass.paged(layer) {
            Some((attention, scratch)) if ops::has_block(&x, block) => ops::block(x, block, attention, scratch),
            _ => ops::run_block(&mut ByOperations { layer, block, pass }, block, x),
        }
    }

    /// The operands of the block. `dropout_seed` is for the model's own adapter, if the pass trains; each of `adapters`
    /// updates some rows of the step.
    fn operands<'a>(
        &'a self,
        layer: usize,
        config: &GptConfig,
        dropout_seed: Option<u64>,
        adapters: &'a [AdapterRows],
        per_layer_input: Option<Tensor<2>>,
    ) -> ops::Block<'a> {
        let norm = |norm: &Option<Norm>| norm.as_ref().map(Norm::parts);
        let linear = |linear: &'a Linear| linear.parts(dropout_seed, adapters);
        let norms_input = matches!(config.norm_position, NormPosition::Pre | NormPosition::Sandwich);
        let ends = |own: &Option<Norm>, out_norm: &Option<Norm>| match norms_input {
            true => (norm(own), norm(out_norm)),
            false => (None, norm(own)),
        };
        let mixer = match (&self.attn, &self.recurrent, &config.recurrent) {
            (Some(attention @ CausalSelfAttention { q_norm, k_norm, v_norm, sinks, out, .. }), _, _) => {
                Some(Mixer::Attention(SelfAttention {
                    qkv: attention.qkv(config, linear),
                    clip: config.clip_qkv.map(|limit| limit as f32),
                    is_gated: config.attention_gate,
                    kv: match () {
                        () if config.kv_layer_of(layer) != layer => KvSource::OtherLayer,
                        () if config.has_keys_as_values(layer) => KvSource::KeysOnly,
                        () => KvSource::Projected,
                    },
                    qk_norms: norm(q_norm).map(|q| QkNormParts {
                        norms: [q.clone(), norm(k_norm).unwrap_or(q)],
                        span: config.qk_norm_span,
                        after_rope: config.qk_norm_after_rope,
                    }),
                    v_norm: norm(v_norm),
                    sinks: sinks.as_ref().map(Vector::weight),
                    out: linear(out),
                }))
            }
            (None, Some(layer), Some(described)) => {
                Some(Mixer::Recurrent(layer.operands(described.recurrence, config.norm_eps, linear)))
            }
            _ => None,
        };
        let mlp = |Mlp { up, xielu, down }: &'a Mlp| ops::Mlp {
            up: linear(up),
            down: linear(down),
            activation: config.activation,
            xielu: xielu.as_ref().map(Vector::weight),
            gated: config.gated_mlp,
            clamped: config.clamped_swiglu,
        };
        let routed = |experts: &'a Experts| RoutedExperts {
            router: experts.router.parts(),
            routing: config.experts.as_ref().map_or_else(|| unreachable!("a router without experts"), Routing::of),
            experts: experts.routed.iter().map(mlp).collect(),
            latent: experts
                .latent_down
                .as_ref()
                .zip(experts.latent_up.as_ref())
                .map(|(down, up)| [down, up].map(linear)),
            shared: experts
                .shared
                .as_ref()
                .map(|shared| SharedExpert { mlp: mlp(shared), gate: experts.shared_gate.as_ref().map(Router::parts) }),
        };
        let feed_forward = match (&self.mlp, &self.experts) {
            (Some(dense), Some(experts)) => {
                let own = |part: &Option<Norm>| norm(part).unwrap_or_else(|| unreachable!("norms around both"));
                // The router's input is scaled as scores are.
                let NormParts { weight, bias, options } = own(&experts.router_norm);
                let weight = weight * (config.d_model as f64).sqrt().recip();
                Some(FeedForward::Both(Box::new(ExpertsBesideMlp {
                    mlp: mlp(dense),
                    mlp_out_norm: own(&experts.mlp_out_norm),
                    routed: routed(experts),
                    router_norm: NormParts { weight, bias, options },
                    in_norm: own(&experts.in_norm),
                    out_norm: own(&experts.out_norm),
                })))
            }
            (Some(dense), None) => Some(FeedForward::Dense(mlp(dense))),
            (None, Some(experts)) => Some(FeedForward::Routed(routed(experts))),
            (None, None) => None,
        };
        let (in_norm, out_norm) = ends(&self.attn_norm, &self.attn_out_norm);
        let mixer = mixer.map(|inner| Sublayer { in_norm, inner, out_norm });
        // If attention and MLP share a norm, it is attention's.
        let mlp_norm = if self.mlp_norm.is_some() { &self.mlp_norm } else { &self.attn_norm };
        let (in_norm, out_norm) = ends(mlp_norm, &self.mlp_out_norm);
        BlockOperands {
            mixer,
            cross: self.cross.as_ref().map(|CrossAttention { q, kv, out }| {
                let (in_norm, out_norm) = ends(&self.cross_norm, &None);
                let inner = ops::CrossAttention { q: linear(q), kv: linear(kv), out: linear(out) };
                Sublayer { in_norm, inner, out_norm }
            }),
            mlp: feed_forward.map(|inner| Sublayer { in_norm, inner, out_norm }),
            is_parallel: config.parallel_residual,
            norm_after_add: config.norm_position == NormPosition::Post,
            residual_multiplier: config.residual_multiplier,
            per_layer: self.per_layer.as_ref().zip(per_layer_input).map(|(update, input)| ops::PerLayerUpdate {
                input,
                gate: linear(&update.gate),
                activation: config.activation,
                proj: linear(&update.proj),
                norm: update.norm.parts(),
            }),
            scale: self.scale.as_ref().map(Scale::weight),
        }
    }
}
