//! The parameters of an architecture, without tensors: the only list of them.

use std::collections::HashMap;

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
}

/// Every parameter of the architecture with its shape and initial value. Loading, saving and initializing use this
/// list.
pub fn param_specs(config: &GptConfig) -> Vec<ParamSpec> {
    specs_and_norms(config).0
}

/// Every norm of the architecture by its path, with its width. Not all norms have parameters.
pub(crate) fn norm_widths(config: &GptConfig) -> HashMap<String, usize> {
    specs_and_norms(config).1
}

fn specs_and_norms(config: &GptConfig) -> (Vec<ParamSpec>, HashMap<String, usize>) {
    let GptConfig { vocab_size, d_model, d_ff, .. } = *config;
    let mut norms = HashMap::new();
    let residual = INIT_STD / (2.0 * config.n_layers as f64).sqrt();
    let mut specs = Vec::new();
    let matrix = |specs: &mut Vec<ParamSpec>, path: String, [d_out, d_in]: [usize; 2], std: f64, bias: bool| {
        specs.push(ParamSpec { path: format!("{path}.weight"), shape: vec![d_out, d_in], init: Init::Normal { std } });
        if bias {
            specs.push(ParamSpec { path: format!("{path}.bias"), shape: vec![d_out], init: Init::Constant(0.0) });
        }
    };
    let mut norm = |specs: &mut Vec<ParamSpec>, path: String, width: usize, bias: bool| {
        if config.norm_weight {
            let one = Init::Constant(1.0 - config.norm_weight_offset);
            specs.push(ParamSpec { path: format!("{path}.weight"), shape: vec![width], init: one });
        }
        if bias {
            specs.push(ParamSpec { path: format!("{path}.bias"), shape: vec![width], init: Init::Constant(0.0) });
        }
        norms.insert(path, width);
    };
    let norm_bias = config.norm_bias;
    matrix(&mut specs, "embed".into(), [vocab_size, d_model], INIT_STD, false);
    if config.embed_norm {
        norm(&mut specs, "embed_norm".into(), d_model, norm_bias);
    }
    if config.positions == Positions::Learned {
        matrix(&mut specs, "pos_embed".into(), [config.max_seq_len, d_model], INIT_STD, false);
    }
    let d_up = if config.gated_mlp { 2 * d_ff } else { d_ff };
    for layer in 0..config.n_layers {
        let path = |part: &str| format!("blocks.{layer}.{part}");
        norm(&mut specs, path("attn_norm"), d_model, norm_bias);
        let d_qkv = config.q_width() + 2 * config.kv_width();
        matrix(&mut specs, path("attn.qkv"), [d_qkv, d_model], INIT_STD, config.qkv_bias);
        if config.qk_norm {
            for (part, width) in [("attn.q_norm", config.q_width()), ("attn.k_norm", config.kv_width())] {
                let width = match config.qk_norm_span {
                    QkNormSpan::Head => config.head_dim,
                    QkNormSpan::AllHeads => width,
                };
                norm(&mut specs, path(part), width, false);
            }
        }
        matrix(&mut specs, path("attn.out"), [d_model, config.q_width()], residual, config.attn_out_bias);
        if config.norm_position == NormPosition::Sandwich {
            norm(&mut specs, path("attn_out_norm"), d_model, norm_bias);
        }
        if !config.shared_norm {
            norm(&mut specs, path("mlp_norm"), d_model, norm_bias);
        }
        matrix(&mut specs, path("mlp.up"), [d_up, d_model], INIT_STD, config.mlp_bias);
        matrix(&mut specs, path("mlp.down"), [d_model, d_ff], residual, config.mlp_bias);
        if config.norm_position == NormPosition::Sandwich {
            norm(&mut specs, path("mlp_out_norm"), d_model, norm_bias);
        }
    }
    if config.final_norm {
        norm(&mut specs, "norm".into(), d_model, norm_bias);
    }
    if !config.tie_embeddings {
        matrix(&mut specs, "lm_head".into(), [vocab_size, d_model], INIT_STD, false);
    }
    if config.lm_head_bias {
        specs.push(ParamSpec { path: "lm_head.bias".into(), shape: vec![vocab_size], init: Init::Constant(0.0) });
    }
    (specs, norms)
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
