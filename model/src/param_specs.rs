//! The parts of an architecture and their parameters, without tensors: the only list of them.

use crate::config::{
    Experts, GatedDeltaNet, GptConfig, MAX_LAYERS, NormPosition, PerLayerInputs, Positions, QkNormSpan, Recurrence,
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
    /// A small matrix that decides, such as which experts a row goes through. It is never rounded.
    Router,
    Norm,
    /// The numbers of an activation.
    Activation,
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
        let one = Init::Constant(1.0 - config.norm_weight_offset);
        let weight = config.norm_weight.then(|| param(path, "weight", vec![width], one));
        let bias = has_bias.then(|| param(path, "bias", vec![width], Init::Constant(0.0)));
        let params = weight.into_iter().chain(bias).collect();
        Self { path: path.into(), kind: PartKind::Norm, layer: None, width, params }
    }

    /// `[d_out, d_in]`, of a part with a matrix.
    pub(crate) fn matrix_dims(&self) -> [usize; 2] {
        let d_in = self.params.first().and_then(|weight| weight.shape.get(1));
        [self.width, d_in.copied().unwrap_or_default()]
    }

    /// The same part of block `layer`.
    fn of_block(&self, layer: usize) -> Self {
        let within = |path: &str| format!("blocks.{layer}.{path}");
        let param = |spec: &ParamSpec| ParamSpec { path: within(&spec.path), ..spec.clone() };
        let params = self.params.iter().map(param).collect();
        Self { path: within(&self.path), layer: Some(layer), params, ..*self }
    }
}

/// xIELU's four numbers in the form that is stored: what the softplus of is the factor above 0, and is the factor below 0 but
/// for `beta`; `beta`, the slope at 0; and `eps`, where the exponential begins. The last two do not train.
const XIELU: [f32; 4] = [0.203_597, -1.050_226, 0.5, -1e-6];

fn param(path: &str, name: &str, shape: Vec<usize>, init: Init) -> ParamSpec {
    ParamSpec { path: format!("{path}.{name}"), shape, init }
}

/// Every part of the architecture, in the order of the model. The fields of the model's modules have these names, and read
/// and list what is described here: see [`modules`](crate::layers::modules).
pub(crate) fn part_specs(config: &GptConfig) -> Vec<PartSpec> {
    let blocks = (0..config.n_layers).flat_map(|layer| {
        let parts = block_specs(config, layer);
        parts.into_iter().map(move |part| part.of_block(layer))
    });
    let [before, after] = specs_outside(config);
    before.into_iter().chain(blocks).chain(after).collect()
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
        config.embed_norm.then(|| norm("embed_norm")),
        (config.positions == Positions::Learned)
            .then(|| matrix(Embedding, "pos_embed", [config.max_seq_len, d_model], INIT_STD, false)),
    ];
    let mut lm_head = matrix(LmHead, "lm_head", [vocab_size, d_model], INIT_STD, config.lm_head_bias);
    if config.tie_embeddings {
        lm_head.params.remove(0);
    }
    let after = [config.final_norm.then(|| norm("norm")), Some(lm_head)];
    let before = before.into_iter().flatten().chain(per_layer.into_iter().flatten());
    [before.collect(), after.into_iter().flatten().collect()]
}

/// The parts of block `layer`, with paths within the block.
fn block_specs(config: &GptConfig, layer: usize) -> Vec<PartSpec> {
    let mixer = match config.recurrence_of(layer) {
        Some(recurrence) => recurrent_specs(config, recurrence),
        None => attention_specs(config, layer),
    };
    let feed_forward = match config.experts_of(layer) {
        Some(experts) => {
            let routed = (0..experts.n_experts).flat_map(|expert| expert_specs(config, experts, expert));
            let beside = experts.beside_mlp.then(|| mlp_specs(config, "mlp", config.d_ff_of(layer)));
            let parts = beside.into_iter().flatten().chain(router_specs(config, experts)).chain(routed);
            parts.chain(shared_specs(config, experts)).collect()
        }
        None => mlp_specs(config, "mlp", config.d_ff_of(layer)),
    };
    let [first, between, last] = norm_specs(config);
    let parts = first.into_iter().chain(mixer).chain(between).chain(feed_forward).chain(last);
    parts.chain(end_specs(config)).collect()
}

/// What is computed after the MLP.
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

/// The norms of a block: before its mixer, between mixer and MLP, and behind the MLP.
fn norm_specs(config: &GptConfig) -> [Vec<PartSpec>; 3] {
    let is_sandwich = config.norm_position == NormPosition::Sandwich;
    let norm = |path| PartSpec::norm(config, path, config.d_model, config.norm_bias);
    let between = [is_sandwich.then(|| norm("attn_out_norm")), (!config.shared_norm).then(|| norm("mlp_norm"))];
    let last = is_sandwich.then(|| norm("mlp_out_norm"));
    [vec![norm("attn_norm")], between.into_iter().flatten().collect(), last.into_iter().collect()]
}

fn attention_specs(config: &GptConfig, layer: usize) -> Vec<PartSpec> {
    let (q_width, [k_width, v_width]) = (config.q_width_of(layer), config.projected_kv_widths(layer));
    let has_own_keys = k_width > 0;
    let head_dim = config.heads_of(layer).head_dim;
    let qk_norm = |path, width| match config.qk_norm_span {
        QkNormSpan::Head => PartSpec::norm(config, path, head_dim, false),
        QkNormSpan::AllHeads => PartSpec::norm(config, path, width, false),
    };
    let qkv = [config.gate_width_of(layer) + q_width + k_width + v_width, config.d_model];
    // It only normalizes.
    let v_norm = || PartSpec { params: Vec::new(), ..PartSpec::norm(config, "attn.v_norm", head_dim, false) };
    let parts = [
        Some(PartSpec::matrix(PartKind::Linear, "attn.qkv", qkv, INIT_STD, config.qkv_bias)),
        config.qk_norm.then(|| qk_norm("attn.q_norm", q_width)),
        (config.qk_norm && has_own_keys).then(|| qk_norm("attn.k_norm", k_width)),
        (config.value_norm && has_own_keys).then(v_norm),
        Some(output_matrix(config, "attn.out", q_width, config.attn_out_bias)),
    ];
    parts.into_iter().flatten().collect()
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
    let residual_std = INIT_STD / (2.0 * config.n_layers as f64).sqrt();
    PartSpec::matrix(PartKind::Linear, path, [config.d_model, d_in], residual_std, has_bias)
}

/// An MLP, or an expert.
fn mlp_specs(config: &GptConfig, path: &str, d_ff: usize) -> Vec<PartSpec> {
    let d_up = if config.gated_mlp { 2 * d_ff } else { d_ff };
    let up = [d_up, config.d_model];
    let xielu = || {
        let path = format!("{path}.xielu");
        let params = vec![param(&path, "weight", vec![XIELU.len()], Init::Values(&XIELU))];
        PartSpec { path, kind: PartKind::Activation, layer: None, width: XIELU.len(), params }
    };
    let parts = [
        Some(PartSpec::matrix(PartKind::Linear, &format!("{path}.up"), up, INIT_STD, config.mlp_bias)),
        config.xielu.then(xielu),
        Some(output_matrix(config, &format!("{path}.down"), d_ff, config.mlp_bias)),
    ];
    parts.into_iter().flatten().collect()
}

fn router_specs(config: &GptConfig, experts: &Experts) -> Vec<PartSpec> {
    let dims = [experts.n_experts, config.d_model];
    let mut router = PartSpec::matrix(PartKind::Router, "experts.router", dims, INIT_STD, experts.router_bias);
    if experts.selection_bias {
        router.params.push(param("experts.router", "selection_bias", vec![dims[0]], Init::Constant(0.0)));
    }
    if !experts.beside_mlp {
        return vec![router];
    }
    router.params.push(param("experts.router", "expert_scale", vec![dims[0]], Init::Constant(1.0)));
    let norms = ["mlp_out_norm", "router_norm", "in_norm", "out_norm"];
    let norms = norms.map(|norm| PartSpec::norm(config, &format!("experts.{norm}"), config.d_model, config.norm_bias));
    [router].into_iter().chain(norms).collect()
}

fn expert_specs(config: &GptConfig, experts: &Experts, expert: usize) -> Vec<PartSpec> {
    mlp_specs(config, &format!("experts.routed.{expert}"), experts.d_ff)
}

fn shared_specs(config: &GptConfig, experts: &Experts) -> Vec<PartSpec> {
    let gate = || PartSpec::matrix(PartKind::Router, "experts.shared_gate", [1, config.d_model], INIT_STD, false);
    let has_shared = experts.shared_d_ff > 0;
    let shared = has_shared.then(|| mlp_specs(config, "experts.shared", experts.shared_d_ff));
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

/// In the paths of experts that a router chooses.
pub const ROUTED: &str = ".experts.routed.";

/// The linear layers of the blocks, with the dimensions `[d_out, d_in]` of their matrices, in the order of the model.
pub fn linear_dims(config: &GptConfig) -> Vec<(String, [usize; 2])> {
    linear_specs(config).map(|part| (part.path.clone(), part.matrix_dims())).collect()
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

    fn count_params(&self, n_counted: fn(&Experts) -> usize) -> usize {
        let of_parts = |parts: &[PartSpec]| {
            let params = parts.iter().flat_map(|part| &part.params);
            let sizes = params.map(|spec| spec.shape.iter().fold(1, |n: usize, &dim| n.saturating_mul(dim)));
            sizes.fold(0, usize::saturating_add)
        };
        let outside = of_parts(&specs_outside(self).concat());
        // The experts are alike, and so are most layers.
        let (n_layers, mut kinds) = (self.n_layers, Vec::new());
        let mut count = |parts: Vec<PartSpec>, n: usize| kinds.push((of_parts(&parts), n));
        let first_shared = n_layers.saturating_sub(self.n_shared_kv_layers);
        let n_attending = self.n_attention_layers();
        match self.full_heads.is_some() || self.keys_as_values || first_shared < n_layers {
            true => {
                let attending = (0..n_layers.min(MAX_LAYERS)).filter(|&layer| self.recurrence_of(layer).is_none());
                attending.for_each(|layer| count(attention_specs(self, layer), 1));
            }
            false => count(attention_specs(self, 0), n_attending),
        }
        if let Some(recurrent) = &self.recurrent {
            count(recurrent_specs(self, &recurrent.recurrence), n_layers - n_attending);
        }
        let n_mlps = [0..first_shared, first_shared..n_layers].map(|layers| match &self.experts {
            Some(experts) if !experts.beside_mlp => {
                experts.dense_layers.iter().filter(|&layer| layers.contains(layer)).count()
            }
            _ => layers.len(),
        });
        count(mlp_specs(self, "mlp", self.d_ff), n_mlps[0]);
        count(mlp_specs(self, "mlp", self.d_ff_of(n_layers)), n_mlps[1]);
        if let Some(experts) = &self.experts {
            let of_expert = of_parts(&expert_specs(self, experts, 0)).saturating_mul(n_counted(experts));
            let always = [router_specs(self, experts), shared_specs(self, experts)].concat();
            let n_dense = experts.dense_layers.len().min(n_layers);
            kinds.push((of_parts(&always).saturating_add(of_expert), n_layers - n_dense));
        }
        let each = [norm_specs(self).concat(), end_specs(self)].concat();
        kinds.push((of_parts(&each), n_layers));
        kinds.into_iter().fold(outside, |sum, (of_layer, n)| sum.saturating_add(of_layer.saturating_mul(n)))
    }
}
