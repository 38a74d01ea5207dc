//! Keys of variants of Llama that set more than one field, or that only one class has.

use serde_json::json;

use super::{
    super::config_json::Fields,
    config_rows::{ConfigRow, custom, exact_inverse, number},
};
use crate::{config::GptConfig, error::Result};

/// MiniCPM's scales, by the depth and the width of the model for which they were found. By default there are none.
pub(super) const MINICPM_SCALES: &[ConfigRow] = &[
    number("scale_emb", |c| &mut c.embedding_multiplier, 1.0),
    minicpm_depth(|fields, config| set_depth(fields.number_or("scale_depth", 1.0)?, config)),
    minicpm_width(|fields, config| set_width(fields.number_or("dim_model_base", 1.0)?, config)),
];

/// The same in MiniCPM 3: defaults are those of its first model, and `null` stands for no scale.
pub(super) const MINICPM3_SCALES: &[ConfigRow] = &[
    number("scale_emb", |c| &mut c.embedding_multiplier, 12.0),
    minicpm_depth(|fields, config| {
        let absent = if fields.has("scale_depth") { (config.n_layers as f64).sqrt() } else { 1.4 };
        set_depth(fields.number_or("scale_depth", absent)?, config)
    }),
    minicpm_width(|fields, config| {
        let absent = if fields.has("dim_model_base") { config.d_model as f64 } else { 256.0 };
        set_width(fields.number_or("dim_model_base", absent)?, config)
    }),
];

type Read = fn(&Fields<'_>, &mut GptConfig) -> Result<()>;

const fn minicpm_depth(read: Read) -> ConfigRow {
    custom(&["scale_depth"], read, |config, written| {
        let value = config.residual_multiplier;
        let depth = exact_inverse(value, value * (config.n_layers as f64).sqrt(), |d| residual_of_depth(d, config));
        written.insert("scale_depth".to_owned(), depth);
    })
}

const fn minicpm_width(read: Read) -> ConfigRow {
    custom(&["dim_model_base"], read, |config, written| {
        let (value, width) = (config.logit_multiplier, config.d_model as f64);
        written.insert("dim_model_base".to_owned(), exact_inverse(value, value * width, |base| base / width));
    })
}

fn set_depth(scale_depth: f64, config: &mut GptConfig) -> Result<()> {
    config.residual_multiplier = residual_of_depth(scale_depth, config);
    Ok(())
}

fn set_width(dim_model_base: f64, config: &mut GptConfig) -> Result<()> {
    config.logit_multiplier = dim_model_base / config.d_model as f64;
    Ok(())
}

fn residual_of_depth(scale_depth: f64, config: &GptConfig) -> f64 {
    scale_depth / (config.n_layers as f64).sqrt()
}

/// EXAONE's epsilon under the names of newer and of older files.
pub(super) const EXAONE_EPS: ConfigRow = custom(
    &["rms_norm_eps", "layer_norm_epsilon"],
    |fields, config| {
        config.norm_eps = fields.number_or("rms_norm_eps", fields.number_or("layer_norm_epsilon", 1e-5)?)?;
        Ok(())
    },
    |config, written| drop(written.insert("rms_norm_eps".to_owned(), json!(config.norm_eps))),
);

/// Where the older form of rotary positions is written, Mellum's class reads it in place of the newer one, and cannot.
pub(super) const ONLY_NEWER_ROPE: ConfigRow = custom(
    &[],
    |_, _| Ok(()),
    |_, written| ["rope_theta", "rope_scaling"].iter().for_each(|key| drop(written.remove(*key))),
);

/// Transformers has one setting for all biases of attention, and the code beside the weights one for those of queries, keys and
/// values alone.
pub(super) const INTERNLM3_BIASES: ConfigRow = custom(
    &["attention_bias", "qkv_bias", "mlp_bias", "bias"],
    |fields, config| {
        config.qkv_bias = fields.flag_or("qkv_bias", fields.flag_or("attention_bias", false)?)?;
        config.mlp_bias = fields.flag_or("bias", fields.flag_or("mlp_bias", false)?)?;
        config.attn_out_bias = config.mlp_bias;
        Ok(())
    },
    |config, written| {
        written.insert("attention_bias".to_owned(), json!(config.qkv_bias));
        written.insert("mlp_bias".to_owned(), json!(config.mlp_bias));
    },
);
