//! LitGPT's `lit_model.pth`: one module for many architectures, which `model_config.yaml` describes.

use std::path::Path;

use serde_json::json;

use super::{Checkpoint, Imported, Program, names, only_known, required, yaml};
use crate::{
    config::{Activation, GptConfig, NormKind, NormPosition, Positions, QkNormSpan, Rope, RopeScaling, Sizes},
    error::Result,
    weights::config_json::{Fields, Fixed},
};

pub(super) const FILE: &str = "lit_model.pth";
pub(super) const CONFIG_FILE: &str = "model_config.yaml";

/// The fields of LitGPT's `Config`.
const KNOWN: &[&str] = &[
    "name",
    "hf_config",
    "block_size",
    "n_layer",
    "n_embd",
    "vocab_size",
    "padding_multiple",
    "padded_vocab_size",
    "norm_class_name",
    "norm_eps",
    "norm_qk",
    "norm_qk_type",
    "post_attention_norm",
    "post_mlp_norm",
    "parallel_residual",
    "shared_attention_norm",
    "n_head",
    "head_size",
    "n_query_groups",
    "attn_bias",
    "attention_scores_scalar",
    "sliding_window_size",
    "sliding_window_indices",
    "sliding_window_layer_placing",
    "attention_logit_softcapping",
    "rope_base",
    "rotary_percentage",
    "rope_condense_ratio",
    "rope_adjustments",
    "rope_interleave",
    "rope_local_base_freq",
    "rope_indices",
    "intermediate_size",
    "moe_intermediate_size",
    "bias",
    "mlp_class_name",
    "gelu_approximate",
    "n_expert",
    "n_shared_expert",
    "n_expert_groups",
    "n_topk_groups",
    "n_topk_scores_per_group",
    "n_expert_per_token",
    "first_k_dense_replace",
    "routed_scaling_factor",
    "norm_topk_prob",
    "scale_embeddings",
    "lm_head_bias",
    "final_logit_softcapping",
    "norm_1",
    "norm_2",
    "latent_attention",
];

pub(super) fn load(checkpoint: &Checkpoint<'_, '_>, path: &Path) -> Result<Imported> {
    let settings = yaml::read(path)?;
    let fields = Fields::new(&settings, path);
    only_known(&fields, path, KNOWN)?;
    let config = read_config(&fields)?;
    let tensors = checkpoint.tensors()?;
    let (gpt, dtype) = checkpoint.build(&tensors, names::LITGPT, &config, "`model_config.yaml`")?;
    Ok(Imported {
        program: Program::LitGpt,
        path: checkpoint.path.to_path_buf(),
        gpt,
        class: None,
        dtype,
        dataset: None,
    })
}

fn read_config(fields: &Fields<'_>) -> Result<GptConfig> {
    for (key, only) in [
        ("rope_interleave", Fixed::Flag(false)),
        ("n_expert", Fixed::Nothing),
        ("latent_attention", Fixed::Nothing),
        ("first_k_dense_replace", Fixed::Nothing),
        // The name of `sliding_window_indices` in older versions, which counted layers differently.
        ("sliding_window_layer_placing", Fixed::Nothing),
    ] {
        fields.only(key, only)?;
    }
    let n_heads = required(fields, "n_head")?;
    let d_model = required(fields, "n_embd")?;
    let n_layers = required(fields, "n_layer")?;
    let vocab_size = match fields.size("padded_vocab_size")? {
        Some(size) => size,
        None => required(fields, "vocab_size")?
            .checked_next_multiple_of(fields.size_or("padding_multiple", 512)?)
            .ok_or_else(|| fields.unsupported("padding_multiple", &json!(0), "1 and above"))?,
    };
    let sizes = Sizes {
        vocab_size,
        max_seq_len: required(fields, "block_size")?,
        n_layers,
        n_heads,
        n_kv_heads: fields.size_or("n_query_groups", n_heads)?,
        d_model,
        d_ff: fields.size_or("intermediate_size", d_model.saturating_mul(4))?,
    };
    let head_dim = fields.size_or("head_size", d_model / n_heads.max(1))?;
    let bias = fields.flag_or("bias", true)?;
    let is_layer_norm = match fields.text_or("norm_class_name", "LayerNorm")? {
        "LayerNorm" => true,
        "RMSNorm" => false,
        other => return Err(fields.unsupported("norm_class_name", &json!(other), "\"LayerNorm\", \"RMSNorm\"")),
    };
    let approximation = match fields.text_or("gelu_approximate", "none")? {
        "none" => Activation::Gelu,
        "tanh" => Activation::GeluTanh,
        other => return Err(fields.unsupported("gelu_approximate", &json!(other), "\"none\", \"tanh\"")),
    };
    let (gated_mlp, activation) = match fields.text_or("mlp_class_name", "GptNeoxMLP")? {
        "GptNeoxMLP" => (false, approximation),
        "LLaMAMLP" => (true, Activation::Silu),
        "GemmaMLP" => (true, approximation),
        other => {
            let supported = "\"GptNeoxMLP\", \"LLaMAMLP\", \"GemmaMLP\"";
            return Err(fields.unsupported("mlp_class_name", &json!(other), supported));
        }
    };
    let parallel_residual = fields.flag_or("parallel_residual", true)?;
    let scalar = fields.number_if_any("attention_scores_scalar")?;
    // LitGPT decides by the model's name whether 1 is added to stored norm weights (Gemma), and whether norms have no
    // weights (OLMo).
    let name = fields.text_or("name", "")?;
    let is_gemma = !is_layer_norm && name.contains("Gemma");
    let norm_weight = !(is_layer_norm && name.contains("OLMo"));
    let (sliding_window, full_layers) = window(fields, n_layers)?;
    let config = GptConfig {
        head_dim,
        norm: if is_layer_norm { NormKind::LayerNorm } else { NormKind::RmsNorm },
        norm_eps: fields.number_or("norm_eps", 1e-5)?,
        norm_weight,
        norm_bias: is_layer_norm && norm_weight,
        norm_weight_offset: if is_gemma { 1.0 } else { 0.0 },
        norm_position: norm_position(fields)?,
        qk_norm: fields.flag_or("norm_qk", false)?,
        qk_norm_span: match fields.text_or("norm_qk_type", "default")? {
            "default" => QkNormSpan::Head,
            "olmo2" => QkNormSpan::AllHeads,
            other => return Err(fields.unsupported("norm_qk_type", &json!(other), "\"default\", \"olmo2\"")),
        },
        activation,
        gated_mlp,
        positions: Positions::Rope(rope(fields, head_dim)?),
        parallel_residual,
        shared_norm: fields.flag_or("shared_attention_norm", false)?,
        qkv_bias: bias || fields.flag_or("attn_bias", false)?,
        attn_out_bias: bias,
        mlp_bias: bias,
        lm_head_bias: fields.flag_or("lm_head_bias", false)?,
        scale_embeddings: fields.flag_or("scale_embeddings", false)?,
        logit_softcap: fields.number_if_any("final_logit_softcapping")?,
        attention_softcap: fields.number_if_any("attention_logit_softcapping")?,
        attention_scale: scalar.filter(|&scalar| scalar != head_dim as f64).map(|scalar| scalar.sqrt().recip()),
        sliding_window,
        full_layers,
        window_rope: window_rope(fields, head_dim)?,
        ..GptConfig::llama(sizes)
    };
    if config.qk_norm && is_layer_norm {
        return Err(fields.unsupported("norm_qk", &json!(true), "false, with `norm_class_name` \"LayerNorm\""));
    }
    Ok(config)
}

fn norm_position(fields: &Fields<'_>) -> Result<NormPosition> {
    let flags = [("norm_1", true), ("norm_2", true), ("post_attention_norm", false), ("post_mlp_norm", false)];
    let flags: Vec<_> = flags.iter().map(|(key, absent)| fields.flag_or(key, *absent)).collect::<Result<_>>()?;
    match flags[..] {
        [true, true, false, false] => Ok(NormPosition::Pre),
        [true, true, true, true] => Ok(NormPosition::Sandwich),
        [false, false, true, true] => Ok(NormPosition::Inside),
        _ => Err(fields.unsupported(
            "post_attention_norm",
            &json!(flags[2]),
            "`norm_1` as `norm_2`, `post_attention_norm` as `post_mlp_norm`, and norms before or after, or both",
        )),
    }
}

/// The window, and the layers that do not have it.
fn window(fields: &Fields<'_>, n_layers: usize) -> Result<(Option<usize>, Vec<usize>)> {
    let Some(window) = fields.size("sliding_window_size")? else { return Ok((None, Vec::new())) };
    let full: Vec<usize> = match fields.layer_flags("sliding_window_indices", n_layers)? {
        None => Vec::new(),
        Some(has_window) => (0..n_layers).filter(|&layer| !has_window[layer]).collect(),
    };
    Ok((Some(window).filter(|_| full.len() < n_layers), if full.len() < n_layers { full } else { Vec::new() }))
}

fn rotary_dim(fields: &Fields<'_>, head_dim: usize) -> Result<usize> {
    let share = fields.number_or("rotary_percentage", 0.25)?;
    if !(0.0..=1.0).contains(&share) {
        return Err(fields.unsupported("rotary_percentage", &json!(share), "0 to 1"));
    }
    Ok((share * head_dim as f64) as usize)
}

fn rope(fields: &Fields<'_>, head_dim: usize) -> Result<Rope> {
    let theta = fields.number_or("rope_base", 10_000.0)?;
    let condensed = fields.number_or("rope_condense_ratio", 1.0)?;
    let adjustments = fields.object("rope_adjustments")?;
    let scaling = match adjustments {
        None if condensed == 1.0 => RopeScaling::None,
        None => RopeScaling::Linear { factor: condensed },
        Some(_) if condensed != 1.0 => {
            return Err(fields.unsupported("rope_condense_ratio", &json!(condensed), "1, with `rope_adjustments`"));
        }
        Some(adjusted) => {
            let llama3 = ["factor", "low_freq_factor", "high_freq_factor", "original_max_seq_len"];
            let keys: Vec<_> = adjusted.keys().collect();
            if keys == ["factor"] {
                RopeScaling::Linear { factor: adjusted.number("factor")? }
            } else if keys.len() == llama3.len() && llama3.iter().all(|key| keys.contains(key)) {
                RopeScaling::Llama3 {
                    factor: adjusted.number("factor")?,
                    low_freq_factor: adjusted.number("low_freq_factor")?,
                    high_freq_factor: adjusted.number("high_freq_factor")?,
                    original_max_seq_len: required(&adjusted, "original_max_seq_len")?,
                }
            } else {
                let supported = format!("`factor` alone, or `{}`", llama3.join("`, `"));
                return Err(fields.unsupported("rope_adjustments", &json!(keys), &supported));
            }
        }
    };
    Ok(Rope { theta, rotary_dim: rotary_dim(fields, head_dim)?, scaling })
}

/// The rotation of layers with the window, if it differs from the other layers'. It has a separate base and no scaling.
fn window_rope(fields: &Fields<'_>, head_dim: usize) -> Result<Option<Rope>> {
    let Some(theta) = fields.number_if_any("rope_local_base_freq")? else { return Ok(None) };
    if fields.get("rope_indices") != fields.get("sliding_window_indices") {
        let found = fields.get("rope_indices").cloned().unwrap_or_default();
        return Err(fields.unsupported("rope_indices", &found, "the same as `sliding_window_indices`"));
    }
    Ok(Some(Rope::new(theta, rotary_dim(fields, head_dim)?)))
}
