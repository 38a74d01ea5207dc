//! The parts of an architecture and their parameters, without tensors: the only list of them.

use crate::config::{GptConfig, NormPosition, Positions, QkNormSpan};

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
    /// Its parameters: [`path`](Self::path) with `.weight` and `.bias`, if it has them. A norm may have none.
    pub(crate) params: Vec<ParamSpec>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartKind {
    /// A table, from which single rows are read.
    Embedding,
    /// A matrix of a block, which an adapter can update.
    Linear,
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
    use PartKind::{Embedding, Linear, LmHead};
    let GptConfig { vocab_size, d_model, d_ff, norm_bias, .. } = *config;
    let (q_width, kv_width) = (config.q_width(), config.kv_width());
    let residual_std = INIT_STD / (2.0 * config.n_layers as f64).sqrt();
    let d_up = if config.gated_mlp { 2 * d_ff } else { d_ff };
    let is_sandwich = config.norm_position == NormPosition::Sandwich;

    let matrix = PartSpec::matrix;
    let norm = |path| PartSpec::norm(config, path, d_model, norm_bias);
    let qk_norm = |path, width| match config.qk_norm_span {
        QkNormSpan::Head => PartSpec::norm(config, path, config.head_dim, false),
        QkNormSpan::AllHeads => PartSpec::norm(config, path, width, false),
    };
    let block = [
        Some(norm("attn_norm")),
        Some(matrix(Linear, "attn.qkv", [q_width + 2 * kv_width, d_model], INIT_STD, config.qkv_bias)),
        config.qk_norm.then(|| qk_norm("attn.q_norm", q_width)),
        config.qk_norm.then(|| qk_norm("attn.k_norm", kv_width)),
        Some(matrix(Linear, "attn.out", [d_model, q_width], residual_std, config.attn_out_bias)),
        is_sandwich.then(|| norm("attn_out_norm")),
        (!config.shared_norm).then(|| norm("mlp_norm")),
        Some(matrix(Linear, "mlp.up", [d_up, d_model], INIT_STD, config.mlp_bias)),
        config.xielu.then(|| PartSpec {
            path: "mlp.xielu".into(),
            kind: PartKind::Activation,
            layer: None,
            width: XIELU.len(),
            params: vec![param("mlp.xielu", "weight", vec![XIELU.len()], Init::Values(&XIELU))],
        }),
        Some(matrix(Linear, "mlp.down", [d_model, d_ff], residual_std, config.mlp_bias)),
        is_sandwich.then(|| norm("mlp_out_norm")),
    ];
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
    let blocks = (0..config.n_layers).flat_map(|layer| block.iter().flatten().map(move |part| part.of_block(layer)));
    let after = [config.final_norm.then(|| norm("norm")), Some(lm_head)];
    before.into_iter().flatten().chain(blocks).chain(after.into_iter().flatten()).collect()
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

impl GptConfig {
    /// Number of trained values; tied embeddings count once. Saturates for invalid sizes.
    pub fn n_params(&self) -> usize {
        let count = |n_layers| {
            let specs = param_specs(&Self { n_layers, ..self.clone() });
            let sizes = specs.iter().map(|spec| spec.shape.iter().fold(1, |n: usize, &dim| n.saturating_mul(dim)));
            sizes.fold(0, usize::saturating_add)
        };
        // All blocks are alike.
        let outside = count(0);
        let block = count(1).saturating_sub(outside);
        outside.saturating_add(block.saturating_mul(self.n_layers))
    }
}
