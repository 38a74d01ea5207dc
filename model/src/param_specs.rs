//! The parts of an architecture and their parameters, without tensors: the only list of them.

use crate::config::{Experts, GptConfig, NormPosition, Positions, QkNormSpan};

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
    [before.into_iter().flatten().collect(), after.into_iter().flatten().collect()]
}

/// The parts of block `layer`, with paths within the block.
fn block_specs(config: &GptConfig, layer: usize) -> Vec<PartSpec> {
    let GptConfig { d_model, d_ff, norm_bias, .. } = *config;
    let (q_width, kv_width) = (config.q_width(), config.kv_width());
    let is_sandwich = config.norm_position == NormPosition::Sandwich;
    let norm = |path| PartSpec::norm(config, path, d_model, norm_bias);
    let qk_norm = |path, width| match config.qk_norm_span {
        QkNormSpan::Head => PartSpec::norm(config, path, config.head_dim, false),
        QkNormSpan::AllHeads => PartSpec::norm(config, path, width, false),
    };
    let qkv = [q_width + 2 * kv_width, d_model];
    let attention = [
        Some(norm("attn_norm")),
        Some(PartSpec::matrix(PartKind::Linear, "attn.qkv", qkv, INIT_STD, config.qkv_bias)),
        config.qk_norm.then(|| qk_norm("attn.q_norm", q_width)),
        config.qk_norm.then(|| qk_norm("attn.k_norm", kv_width)),
        Some(output_matrix(config, "attn.out", q_width, config.attn_out_bias)),
        is_sandwich.then(|| norm("attn_out_norm")),
        (!config.shared_norm).then(|| norm("mlp_norm")),
    ];
    let feed_forward = match config.experts_of(layer) {
        Some(experts) => {
            let routed = (0..experts.n_experts).flat_map(|expert| expert_specs(config, experts, expert));
            router_specs(config, experts).into_iter().chain(routed).chain(shared_specs(config, experts)).collect()
        }
        None => mlp_specs(config, "mlp", d_ff),
    };
    let last = is_sandwich.then(|| norm("mlp_out_norm"));
    attention.into_iter().flatten().chain(feed_forward).chain(last).collect()
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
    vec![router]
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
        // Blocks without experts are alike, and so are those with them, and the experts.
        let dense = Self { experts: None, ..self.clone() };
        let of_dense = of_parts(&block_specs(&dense, 0));
        let Some(experts) = &self.experts else {
            return outside.saturating_add(of_dense.saturating_mul(self.n_layers));
        };
        let n_dense = experts.dense_layers.len().min(self.n_layers);
        let always = of_dense
            .saturating_sub(of_parts(&mlp_specs(self, "mlp", self.d_ff)))
            .saturating_add(of_parts(&router_specs(self, experts)))
            .saturating_add(of_parts(&shared_specs(self, experts)));
        let of_expert = of_parts(&expert_specs(self, experts, 0));
        let routed = always.saturating_add(of_expert.saturating_mul(n_counted(experts)));
        let blocks = of_dense.saturating_mul(n_dense).saturating_add(routed.saturating_mul(self.n_layers - n_dense));
        outside.saturating_add(blocks)
    }
}
