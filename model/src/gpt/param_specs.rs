//! The parts of an architecture and their parameters, without tensors. This is the only list of them.

use crate::config::{
    Experts, GatedDeltaNet, GptConfig, LatentAttention, MAX_LAYERS, Mamba2, NormPosition, PerLayerInputs, QkNormSpan,
    Recurrence, RelativeBuckets,
};

/// Standard deviation of fresh matrices and embeddings, GPT-2's.
const INIT_STD: f64 = 0.02;

/// A parameter of an architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Its path in the model, such as `blocks.3.attn.qkv.weight`.
    pub path: String,
    /// `[d_out, d_in]` for matrices, `[width]` for norms and biases.
    pub shape: Vec<usize>,
    /// Its initial value.
    pub init: Init,
}

/// The initial value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normally distributed with mean 0.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// A constant.
    Constant(f32),
    /// These values.
    Values(&'static [f32]),
    /// The logarithm of values that are uniformly distributed in this range.
    LogUniform {
        /// The least value.
        least: f64,
        /// The largest value.
        most: f64,
    },
}

/// A part of an architecture that has parameters, such as a linear layer or a norm.
#[derive(Clone, Debug)]
pub(crate) struct PartSpec {
    /// Its path in the model, such as `blocks.3.attn.qkv`.
    pub(crate) path: String,
    pub(crate) kind: PartKind,
    /// The block that it belongs to.
    pub(crate) layer: Option<usize>,
    /// Rows of a matrix (outputs or entries), or values of a norm.
    pub(crate) width: usize,
    /// Its parameters: [`path`](Self::path) with `.weight`, `.bias` and so on, if it has them. A norm may have none.
    pub(crate) params: Vec<ParamSpec>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartKind {
    /// A table, from which single rows are read.
    Embedding,
    /// A matrix of a block, which an adapter can update.
    Linear,
    /// A small matrix for routing, such as the one that chooses the experts of a row. It is never rounded.
    Router,
    Norm,
    /// The numbers of an activation.
    Activation,
    /// Relative position bias of the scores: a row for each bucket, with a number for each head. It is never rounded.
    Relative,
    /// Attention sinks: a score for each head, without a value.
    Sinks,
    /// The factor of a block's output.
    Scale,
    /// Small parameters of a recurrent layer. They are never rounded.
    Recurrence,
    /// The output matrix, unless it is the embedding, and its bias.
    LmHead,
}

impl PartSpec {
    fn matrix(kind: PartKind, path: &str, [d_out, d_in]: [usize; 2], std: f64, has_bias: bool) -> Self {
        let weight = param(path, "weight", vec![d_out, d_in], Init::Normal { std });
        let bias = has_bias.then(|| param(path, "bias", vec![d_out], Init::Constant(0.0)));
        let params = [weight].into_iter().chain(bias).collect();
        Self { path: path.into(), kind, layer: None, width: d_out, params }
    }

    fn norm(config: &GptConfig, path: &str, width: usize, has_bias: bool) -> Self {
        let one = Init::Constant(1.0 - config.norm_options(path).1);
        let weight = config.norm_weight.then(|| param(path, "weight", vec![width], one));
        let bias = has_bias.then(|| param(path, "bias", vec![width], Init::Constant(0.0)));
        let params = weight.into_iter().chain(bias).collect();
        Self { path: path.into(), kind: PartKind::Norm, layer: None, width, params }
    }

    /// Without parameters, if `is_plain`: a norm that only normalizes.
    fn plain_if(self, is_plain: bool) -> Self {
        if is_plain { Self { params: Vec::new(), ..self } } else { self }
    }

    /// `[d_out, d_in]`, of a part with a matrix.
    pub(crate) fn matrix_dims(&self) -> [usize; 2] {
        let d_in = self.params.first().and_then(|weight| weight.shape.get(1));
        [self.width, d_in.copied().unwrap_or_default()]
    }

    /// The same part within the module at `path`.
    fn within(&self, path: &str) -> Self {
        let within = |own: &str| format!("{path}.{own}");
        let param = |spec: &ParamSpec| ParamSpec { path: within(&spec.path), ..spec.clone() };
        Self { path: within(&self.path), params: self.params.iter().map(param).collect(), ..*self }
    }

    /// The same part of block `layer`.
    fn of_block(&self, layer: usize) -> Self {
        Self { layer: Some(layer), ..self.within(&format!("blocks.{layer}")) }
    }
}

/// The four stored parameters of xIELU: the inverse softplus of the factor above 0; the inverse softplus of the factor
/// below 0 minus `beta`; `beta`, the slope at 0; and `eps`, where the exponential begins. The last two do not train.
const XIELU: [f32; 4] = [0.203_597, -1.050_226, 0.5, -1e-6];

fn param(path: &str, name: &str, shape: Vec<usize>, init: Init) -> ParamSpec {
    ParamSpec { path: format!("{path}.{name}"), shape, init }
}

/// Every part of the architecture, in the order of the model. The fields of the model's modules have these names, and
/// are read and listed by these specifications: see [`modules`](crate::gpt::layers::modules).
pub(crate) fn part_specs(config: &GptConfig) -> Vec<PartSpec> {
    let [before, after] = specs_outside(config);
    let encoder = config.encoder.iter().flat_map(|encoder| encoder_specs(encoder));
    before.into_iter().chain(encoder).chain(blocks_specs(config)).chain(after).collect()
}

fn blocks_specs(config: &GptConfig) -> impl Iterator<Item = PartSpec> {
    (0..config.n_layers).flat_map(|layer| {
        let parts = block_specs(config, layer);
        parts.into_iter().map(move |part| part.of_block(layer))
    })
}

/// The path of an encoder's parts begins with it.
pub(crate) const ENCODER: &str = "encoder";

/// The parts of the encoder of a model. Its embedding is the decoder's.
fn encoder_specs(config: &GptConfig) -> Vec<PartSpec> {
    let [before, after] = outside_of_encoder(config);
    let parts = before.into_iter().chain(blocks_specs(config)).chain(after);
    parts.map(|part| part.within(ENCODER)).collect()
}

/// The parts of an encoder before and after its blocks, with paths within it.
fn outside_of_encoder(config: &GptConfig) -> [Vec<PartSpec>; 2] {
    specs_outside(config).map(|parts| {
        let is_own = |part: &PartSpec| part.path != "embed" && part.kind != PartKind::LmHead;
        parts.into_iter().filter(is_own).collect()
    })
}

/// The parts before the blocks, and after them.
fn specs_outside(config: &GptConfig) -> [Vec<PartSpec>; 2] {
    use PartKind::{Embedding, LmHead};
    let GptConfig { vocab_size, d_model, .. } = *config;
    let matrix = PartSpec::matrix;
    let norm = |path| PartSpec::norm(config, path, d_model, config.norm_bias);
    let per_layer = config.per_layer_inputs.map(|PerLayerInputs { vocab_size, width }| {
        let all = width.saturating_mul(config.n_layers);
        vec![
            matrix(Embedding, "per_layer.embed", [vocab_size, all], INIT_STD, false),
            matrix(PartKind::Linear, "per_layer.proj", [all, d_model], INIT_STD, false),
            PartSpec::norm(config, "per_layer.norm", width, false),
        ]
    });
    let before = [
        Some(matrix(Embedding, "embed", [vocab_size, d_model], INIT_STD, false)),
        config
            .positions
            .are_learned()
            .then(|| matrix(Embedding, "pos_embed", [config.max_seq_len, d_model], INIT_STD, false)),
        (config.n_token_types > 0)
            .then(|| matrix(Embedding, "type_embed", [config.n_token_types, d_model], INIT_STD, false)),
        config.embed_norm.then(|| norm("embed_norm").plain_if(config.plain_embed_norm)),
        config.positions.buckets().filter(|_| config.positions.own_buckets().is_none()).map(
            |RelativeBuckets { n_buckets, .. }| {
                matrix(PartKind::Relative, "relative", [n_buckets, config.n_heads], INIT_STD, false)
            },
        ),
    ];
    let mut lm_head = matrix(LmHead, "lm_head", [vocab_size, d_model], INIT_STD, config.lm_head_bias);
    if config.tie_embeddings {
        lm_head.params.remove(0);
    }
    let mlm_head = config.mlm_head.map(|head| {
        let dense = matrix(PartKind::Linear, "mlm_head.dense", [d_model, d_model], INIT_STD, head.bias);
        [dense, norm("mlm_head.norm")]
    });
    let after = [config.final_norm.then(|| norm("norm"))].into_iter().flatten();
    let after = after.chain(mlm_head.into_iter().flatten()).chain([lm_head]);
    let before = before.into_iter().flatten().chain(per_layer.into_iter().flatten());
    [before.collect(), after.collect()]
}

/// The parts of a prediction head before its layer: see [`PredictionHead`](crate::gpt::prediction_head::PredictionHead).
pub(crate) fn join_specs(config: &GptConfig) -> Vec<PartSpec> {
    let norm = |path| PartSpec::norm(config, path, config.d_model, config.norm_bias);
    let dims = [config.d_model, 2 * config.d_model];
    let linear = PartSpec::matrix(PartKind::Linear, "join.linear", dims, INIT_STD, false);
    vec![norm("join.token_norm"), norm("join.hidden_norm"), linear]
}

/// The parts of a head for `n_classes`: see [`class_head`](crate::gpt::class_head).
pub(crate) fn class_specs(config: &GptConfig, n_classes: usize, has_bias: bool, has_norm: bool) -> Vec<PartSpec> {
    let linear =
        |path, n_out, has_bias| PartSpec::matrix(PartKind::Linear, path, [n_out, config.d_model], INIT_STD, has_bias);
    let norm = has_norm.then(|| PartSpec::norm(config, "classes.norm", config.d_model, false));
    let ends = [linear("classes.dense", config.d_model, has_bias), linear("classes.out", n_classes, true)];
    ends.into_iter().chain(norm).collect()
}

/// The parts of block `layer`, with paths within the block.
fn block_specs(config: &GptConfig, layer: usize) -> Vec<PartSpec> {
    let mut parts = Vec::new();
    if config.has_mixer(layer) {
        let [before, behind] = norm_specs(config, "attn");
        parts.extend(before.filter(|_| layer > 0 || !config.unnormed_first_mixer));
        parts.extend(match config.recurrence_of(layer) {
            Some(recurrence) => recurrent_specs(config, recurrence),
            None => attention_specs(config, layer),
        });
        parts.extend(behind);
    }
    if let Some(encoder) = &config.encoder {
        parts.extend(cross_specs(config, encoder));
    }
    if config.has_mlp(layer) {
        let [before, behind] = norm_specs(config, "mlp");
        parts.extend(before);
        let width = [config.d_model, config.d_ff_of(layer)];
        parts.extend(match config.experts_of(layer) {
            Some(experts) => {
                let routed = (0..experts.n_experts).flat_map(|expert| expert_specs(config, experts, expert));
                let beside = experts.beside_mlp.then(|| mlp_specs(config, "mlp", width, config.mlp_bias));
                let parts = beside.into_iter().flatten().chain(router_specs(config, experts)).chain(routed);
                parts.chain(shared_specs(config, experts)).collect()
            }
            None => mlp_specs(config, "mlp", width, config.mlp_bias),
        });
        parts.extend(behind);
    }
    parts.extend(end_specs(config));
    parts
}

/// The parts after the MLP.
fn end_specs(config: &GptConfig) -> Vec<PartSpec> {
    let per_layer = config.per_layer_inputs.map(|PerLayerInputs { width, .. }| {
        let gate = [width, config.d_model];
        vec![
            PartSpec::matrix(PartKind::Linear, "per_layer.gate", gate, INIT_STD, false),
            output_matrix(config, "per_layer.proj", width, false),
            PartSpec::norm(config, "per_layer.norm", config.d_model, false),
        ]
    });
    let scale = config.layer_scale.then(scale_spec);
    per_layer.into_iter().flatten().chain(scale).collect()
}

fn scale_spec() -> PartSpec {
    let params = vec![param("scale", "weight", vec![1], Init::Constant(1.0))];
    PartSpec { path: "scale".into(), kind: PartKind::Scale, layer: None, width: 1, params }
}

/// The norms of a block's mixer (`attn`) or MLP (`mlp`): before and after it. The MLP may share attention's.
fn norm_specs(config: &GptConfig, sublayer: &str) -> [Option<PartSpec>; 2] {
    let norm = |place| PartSpec::norm(config, &format!("{sublayer}_{place}"), config.d_model, config.norm_bias);
    let has_own = sublayer == "attn" || !config.shared_norm;
    let is_sandwich = config.norm_position == NormPosition::Sandwich;
    [has_own.then(|| norm("norm")), is_sandwich.then(|| norm("out_norm"))]
}

fn attention_specs(config: &GptConfig, layer: usize) -> Vec<PartSpec> {
    let (q_width, [k_width, v_width]) = (config.q_width_of(layer), config.projected_kv_widths(layer));
    let has_own_keys = k_width > 0;
    let head_dim = config.heads_of(layer).head_dim;
    let qk_norm = |path, width| {
        let width = if config.qk_norm_span == QkNormSpan::Head { head_dim } else { width };
        PartSpec::norm(config, path, width, config.qk_norm_bias).plain_if(config.plain_qk_norm)
    };
    let qkv = [config.gate_width_of(layer) + q_width + k_width + v_width, config.d_model];
    let v_norm = || PartSpec::norm(config, "attn.v_norm", head_dim, false).plain_if(true);
    let sinks = || {
        let params = vec![param("attn.sinks", "weight", vec![config.n_heads], Init::Normal { std: INIT_STD })];
        PartSpec { path: "attn.sinks".into(), kind: PartKind::Sinks, layer: None, width: config.n_heads, params }
    };
    let relative = |RelativeBuckets { n_buckets, .. }| {
        PartSpec::matrix(PartKind::Relative, "attn.relative", [n_buckets, config.n_heads], INIT_STD, false)
    };
    let inputs = match &config.latent {
        Some(latent) => latent_specs(config, latent),
        None => vec![PartSpec::matrix(PartKind::Linear, "attn.qkv", qkv, INIT_STD, config.qkv_bias)],
    };
    let parts = [
        config.qk_norm.then(|| qk_norm("attn.q_norm", q_width)),
        (config.qk_norm && has_own_keys).then(|| qk_norm("attn.k_norm", k_width)),
        (config.value_norm && has_own_keys).then(v_norm),
        config.attention_sinks.then(sinks),
        config.positions.own_buckets().map(relative),
        Some(output_matrix(config, "attn.out", config.value_width_of(layer), config.attn_out_bias)),
    ];
    inputs.into_iter().chain(parts.into_iter().flatten()).collect()
}

/// Attention to the rows of the encoder.
fn cross_specs(config: &GptConfig, encoder: &GptConfig) -> Vec<PartSpec> {
    let linear = |path: &str, dims| PartSpec::matrix(PartKind::Linear, path, dims, INIT_STD, config.qkv_bias);
    vec![
        PartSpec::norm(config, "cross_norm", config.d_model, config.norm_bias),
        linear("cross.q", [config.q_width(), config.d_model]),
        linear("cross.kv", [2 * config.kv_width(), encoder.d_model]),
        output_matrix(config, "cross.out", config.q_width(), config.attn_out_bias),
    ]
}

/// Queries from a latent or from the row, keys and values from a latent.
fn latent_specs(config: &GptConfig, latent: &LatentAttention) -> Vec<PartSpec> {
    let GptConfig { n_heads, head_dim, d_model, .. } = *config;
    let LatentAttention { query_rank, kv_rank, rope_dim, value_dim, .. } = *latent;
    let linear = |path: &str, dims, has_bias| {
        PartSpec::matrix(PartKind::Linear, path, dims, INIT_STD, has_bias && config.qkv_bias)
    };
    let norm = |path, width| PartSpec::norm(config, path, width, false);
    let of_queries =
        query_rank.map(|rank| [linear("attn.latent.q_down", [rank, d_model], true), norm("attn.latent.q_norm", rank)]);
    let parts = [
        linear("attn.latent.q", [n_heads * head_dim, query_rank.unwrap_or(d_model)], false),
        linear("attn.latent.kv_down", [rope_dim + kv_rank, d_model], true),
        norm("attn.latent.kv_norm", kv_rank),
        linear("attn.latent.kv_up", [n_heads * (head_dim - rope_dim + value_dim), kv_rank], false),
    ];
    of_queries.into_iter().flatten().chain(parts).collect()
}

/// A recurrent layer in place of attention.
fn recurrent_specs(config: &GptConfig, recurrence: &Recurrence) -> Vec<PartSpec> {
    let channels = recurrence.conv_channels(config.d_model);
    let linear =
        |path, d_out, has_bias| PartSpec::matrix(PartKind::Linear, path, [d_out, config.d_model], INIT_STD, has_bias);
    match *recurrence {
        Recurrence::ShortConv(conv) => vec![
            linear("recurrent.input", 3 * channels, conv.bias),
            conv_spec(channels, conv.kernel, conv.bias),
            output_matrix(config, "recurrent.out", channels, conv.bias),
        ],
        Recurrence::GatedDelta(net) => {
            let GatedDeltaNet { n_value_heads, value_dim, conv_kernel, .. } = net;
            let v_width = net.value_width();
            // As published: decays of all lengths.
            let decays = [("a_log", Init::LogUniform { least: 0.01, most: 16.0 }), ("dt_bias", Init::Constant(1.0))];
            let decays = decays.map(|(name, init)| param("recurrent.decays", name, vec![n_value_heads], init));
            let norm = param("recurrent.norm", "weight", vec![value_dim], Init::Constant(1.0));
            vec![
                linear("recurrent.input", channels + v_width, false),
                linear("recurrent.ba", 2 * n_value_heads, false),
                conv_spec(channels, conv_kernel, false),
                small_spec("recurrent.decays", n_value_heads, decays.to_vec()),
                small_spec("recurrent.norm", value_dim, vec![norm]),
                output_matrix(config, "recurrent.out", v_width, false),
            ]
        }
        Recurrence::Mamba2(mamba) => {
            let Mamba2 { n_heads, conv_kernel, conv_bias, bias, .. } = mamba;
            let v_width = mamba.value_width();
            // As published: time steps in the middle of the usual range, 0.01, and decays of all lengths.
            let of_heads = [
                ("a_log", Init::LogUniform { least: 1.0, most: 16.0 }),
                ("dt_bias", Init::Constant(-4.6)),
                ("skip", Init::Constant(1.0)),
            ];
            let of_heads = of_heads.map(|(name, init)| param("recurrent.decays", name, vec![n_heads], init));
            let norm = param("recurrent.norm", "weight", vec![v_width], Init::Constant(1.0));
            vec![
                linear("recurrent.input", mamba.input_width(), bias),
                conv_spec(channels, conv_kernel, conv_bias),
                small_spec("recurrent.decays", n_heads, of_heads.to_vec()),
                small_spec("recurrent.norm", v_width, vec![norm]),
                output_matrix(config, "recurrent.out", v_width, bias),
            ]
        }
    }
}

/// A depthwise convolution.
fn conv_spec(channels: usize, kernel: usize, has_bias: bool) -> PartSpec {
    // PyTorch's, but normal.
    let init = Init::Normal { std: (3.0 * kernel as f64).sqrt().recip() };
    let weight = param("recurrent.conv", "weight", vec![channels, 1, kernel], init);
    let bias = has_bias.then(|| param("recurrent.conv", "bias", vec![channels], Init::Constant(0.0)));
    small_spec("recurrent.conv", channels, [weight].into_iter().chain(bias).collect())
}

fn small_spec(path: &str, width: usize, params: Vec<ParamSpec>) -> PartSpec {
    PartSpec { path: path.into(), kind: PartKind::Recurrence, layer: None, width, params }
}

/// A matrix whose outputs are added to the residual stream.
fn output_matrix(config: &GptConfig, path: &str, d_in: usize, has_bias: bool) -> PartSpec {
    PartSpec::matrix(PartKind::Linear, path, [config.d_model, d_in], residual_std(config), has_bias)
}

fn residual_std(config: &GptConfig) -> f64 {
    INIT_STD / (2.0 * config.n_layers as f64).sqrt()
}

/// An MLP, or an expert, that reads and writes rows of a width.
fn mlp_specs(config: &GptConfig, path: &str, [width, d_ff]: [usize; 2], has_bias: bool) -> Vec<PartSpec> {
    let d_up = if config.gated_mlp { 2 * d_ff } else { d_ff };
    let up = [d_up, width];
    let xielu = || {
        let path = format!("{path}.xielu");
        let params = vec![param(&path, "weight", vec![XIELU.len()], Init::Values(&XIELU))];
        PartSpec { path, kind: PartKind::Activation, layer: None, width: XIELU.len(), params }
    };
    let parts = [
        Some(PartSpec::matrix(PartKind::Linear, &format!("{path}.up"), up, INIT_STD, has_bias)),
        config.xielu.then(xielu),
        Some(PartSpec::matrix(
            PartKind::Linear,
            &format!("{path}.down"),
            [width, d_ff],
            residual_std(config),
            has_bias,
        )),
    ];
    parts.into_iter().flatten().collect()
}

/// The router, and the projections around the chosen experts.
fn router_specs(config: &GptConfig, experts: &Experts) -> Vec<PartSpec> {
    let dims = [experts.n_experts, config.d_model];
    let mut router = PartSpec::matrix(PartKind::Router, "experts.router", dims, INIT_STD, experts.router_bias);
    if experts.selection_bias {
        router.params.push(param("experts.router", "selection_bias", vec![dims[0]], Init::Constant(0.0)));
    }
    if experts.beside_mlp {
        router.params.push(param("experts.router", "expert_scale", vec![dims[0]], Init::Constant(1.0)));
    }
    let norm = |name| PartSpec::norm(config, &format!("experts.{name}"), config.d_model, config.norm_bias);
    let norms = experts.beside_mlp.then(|| ["mlp_out_norm", "router_norm", "in_norm", "out_norm"].map(norm));
    let latent = |path, dims| PartSpec::matrix(PartKind::Linear, path, dims, INIT_STD, false);
    let (width, d_model) = (experts.latent_width, config.d_model);
    let latent = (width > 0)
        .then(|| [latent("experts.latent_down", [width, d_model]), latent("experts.latent_up", [d_model, width])]);
    [router].into_iter().chain(norms.into_iter().flatten()).chain(latent.into_iter().flatten()).collect()
}

fn expert_specs(config: &GptConfig, experts: &Experts, expert: usize) -> Vec<PartSpec> {
    let width = if experts.latent_width > 0 { experts.latent_width } else { config.d_model };
    let has_bias = config.mlp_bias && !experts.unbiased;
    mlp_specs(config, &format!("experts.routed.{expert}"), [width, experts.d_ff], has_bias)
}

fn shared_specs(config: &GptConfig, experts: &Experts) -> Vec<PartSpec> {
    let gate = || PartSpec::matrix(PartKind::Router, "experts.shared_gate", [1, config.d_model], INIT_STD, false);
    let has_shared = experts.shared_d_ff > 0;
    let dims = [config.d_model, experts.shared_d_ff];
    let shared = has_shared.then(|| mlp_specs(config, "experts.shared", dims, config.mlp_bias));
    shared.into_iter().flatten().chain(experts.shared_gate.then(gate)).collect()
}

/// Every parameter of the architecture with its shape and initial value. Loading, saving and initializing use this
/// list.
pub fn param_specs(config: &GptConfig) -> Vec<ParamSpec> {
    part_specs(config).into_iter().flat_map(|part| part.params).collect()
}

/// The linear layers of the blocks, which adapters can update, in the order of the model.
pub(crate) fn linear_specs(config: &GptConfig) -> impl Iterator<Item = PartSpec> {
    part_specs(config).into_iter().filter(|part| part.kind == PartKind::Linear)
}

/// Path component of routed experts.
pub const ROUTED: &str = ".experts.routed.";

/// The linear layers of the blocks, with the dimensions `[d_out, d_in]` of their matrices, in the order of the model.
pub fn linear_dims(config: &GptConfig) -> Vec<(String, [usize; 2])> {
    linear_specs(config).map(|part| (part.path.clone(), part.matrix_dims())).collect()
}

/// Values of the parameters of `parts`.
fn count_values(parts: &[PartSpec]) -> usize {
    let params = parts.iter().flat_map(|part| &part.params);
    let sizes = params.map(|spec| spec.shape.iter().fold(1, |n: usize, &dim| n.saturating_mul(dim)));
    sizes.fold(0, usize::saturating_add)
}

impl GptConfig {
    /// Number of trained values; tied embeddings count once. Saturates for invalid sizes.
    pub fn n_params(&self) -> usize {
        self.count_params(|experts| experts.n_experts)
    }

    /// [`n_params`](Self::n_params), counting only the experts that a token goes through.
    pub fn n_active_params(&self) -> usize {
        self.count_params(|experts| experts.n_active)
    }

    /// Those of [`n_active_params`](Self::n_active_params) that are of the encoder of an encoder-decoder alone, which a step of its decoder
    /// does not go through.
    pub fn n_encoder_params(&self) -> usize {
        self.count_encoder_params(|experts| experts.n_active)
    }

    fn count_encoder_params(&self, n_counted: fn(&Experts) -> usize) -> usize {
        self.encoder.as_ref().map_or(0, |encoder| {
            let embedding_and_head = count_values(&specs_outside(encoder).concat())
                .saturating_sub(count_values(&outside_of_encoder(encoder).concat()));
            encoder.count_params(n_counted).saturating_sub(embedding_and_head)
        })
    }

    fn count_params(&self, n_counted: fn(&Experts) -> usize) -> usize {
        let of_parts = count_values;
        let outside = of_parts(&specs_outside(self).concat()).saturating_add(self.count_encoder_params(n_counted));
        // Layers of a kind are alike, and so are the experts.
        let of_recurrent = self.recurrent.as_ref().map_or(0, |of| of_parts(&recurrent_specs(self, &of.recurrence)));
        let n_mlps = self.n_layers.saturating_sub(self.layers_without_mlp.len());
        let n_routed = self.experts.as_ref().map_or(0, |of| n_mlps - of.dense_layers.len().min(n_mlps));
        let is_beside = self.experts.as_ref().is_some_and(|experts| experts.beside_mlp);
        let n_dense = if is_beside { n_mlps } else { n_mlps - n_routed };
        let of_routed = self.experts.as_ref().map_or(0, |experts| {
            let of_expert = of_parts(&expert_specs(self, experts, 0));
            let always = [router_specs(self, experts), shared_specs(self, experts)].concat();
            of_parts(&always).saturating_add(of_expert.saturating_mul(n_counted(experts)))
        });
        let of_norms = |sublayer| {
            norm_specs(self, sublayer).iter().flatten().map(|norm| of_parts(std::slice::from_ref(norm))).sum()
        };
        // A configuration with invalid sizes may state any number of layers.
        let layers = || 0..self.n_layers.min(MAX_LAYERS);
        let has_dense =
            |layer: &usize| self.has_mlp(*layer) && self.experts_of(*layer).is_none_or(|experts| experts.beside_mlp);
        let wide = self.d_ff_of(self.n_layers);
        let is_wide = |layer: &usize| self.wide_shared_mlp && self.d_ff_of(*layer) == wide && has_dense(layer);
        let n_wide = layers().filter(is_wide).count().min(n_dense);
        let of_mlp = |d_ff| of_parts(&mlp_specs(self, "mlp", [self.d_model, d_ff], self.mlp_bias));
        let mut kinds = vec![
            (of_norms("attn"), self.n_mixers() - usize::from(self.unnormed_first_mixer).min(self.n_mixers())),
            (of_norms("mlp"), n_mlps),
            (of_recurrent, self.n_recurrent_layers()),
            (of_mlp(self.d_ff), n_dense - n_wide),
            (of_mlp(wide), n_wide),
            (of_routed, n_routed),
            (of_parts(&end_specs(self)), self.n_layers),
            (self.encoder.as_ref().map_or(0, |encoder| of_parts(&cross_specs(self, encoder))), self.n_layers),
        ];
        let are_alike = self.full_heads.is_none() && !self.keys_as_values && self.n_shared_kv_layers == 0;
        match are_alike {
            true => kinds.push((of_parts(&attention_specs(self, 0)), self.n_attention_layers())),
            false => {
                let attending = layers().filter(|&layer| self.attends(layer));
                kinds.extend(attending.map(|layer| (of_parts(&attention_specs(self, layer)), 1)));
            }
        }
        kinds.into_iter().fold(outside, |sum, (of_layer, n)| sum.saturating_add(of_layer.saturating_mul(n)))
    }
}
