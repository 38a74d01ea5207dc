//! Keys of variants of Llama that set more than one field, or that only one class has.

use serde_json::{Value, json};

use super::{
    super::config_json::{Fields, Fixed},
    config_rows::{ConfigRow, custom, exact_inverse, inverse_root, number, set_score_scale},
    rope::{LLAMA4_BETA, ORIGINAL_LENGTH, nested_object},
};
use crate::{
    config::{GptConfig, MAX_LAYERS, NormPosition, Positions, QkNormSpan, QueryTemperature, Rope},
    error::Result,
};

/// MiniCPM's scales, from the depth and the width of the model on which they were tuned. No scales by default.
pub(super) const MINICPM_SCALES: &[ConfigRow] = &[
    number("scale_emb", |c| &mut c.embedding_multiplier, 1.0),
    minicpm_depth(|fields, config| set_depth(fields.number_or("scale_depth", 1.0)?, config)),
    minicpm_width(|fields, config| set_width(fields.number_or("dim_model_base", 1.0)?, config)),
];

/// As [`MINICPM_SCALES`], for MiniCPM 3: defaults are those of its first model, and `null` means no scale.
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

/// Mellum's class reads the older form of rotary positions in place of the newer one if it is written, and fails.
pub(super) const ONLY_NEWER_ROPE: ConfigRow = custom(
    &[],
    |_, _| Ok(()),
    |_, written| ["rope_theta", "rope_scaling"].iter().for_each(|key| drop(written.remove(*key))),
);

/// nanochat normalizes queries and keys after the rotation. Since the norms have no weights, this makes no difference
/// unless the rotation scales. Must follow the row of rotary positions.
pub(super) const NANOCHAT_NORMS: ConfigRow = custom(
    &[],
    |_, config| {
        config.qk_norm_after_rope =
            matches!(&config.positions, Positions::Rope(rope) if rope.scaling.attention_factor() != 1.0);
        Ok(())
    },
    |_, _| {},
);

/// If queries and keys are normalized, each head has its own weight. Must follow the row that reads whether they are.
pub(super) const NORM_OF_EACH_HEAD: ConfigRow = custom(
    &[],
    |_, config| {
        config.qk_norm_span = if config.qk_norm { QkNormSpan::EachHead } else { QkNormSpan::default() };
        Ok(())
    },
    |_, _| {},
);

/// Transformers has one setting for all biases of attention; the code that comes with the weights has one for the
/// biases of queries, keys and values only.
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

/// Ministral 3 scales queries up in steps of the original context's length. Both numbers are among the keys of rotary
/// positions.
pub(super) const MINISTRAL3_TEMPERATURE: ConfigRow = custom(
    &[],
    |fields, config| {
        if let Some(nested) = nested_object(fields)? {
            let interval = nested.size(ORIGINAL_LENGTH)?.ok_or_else(|| nested.missing(&[ORIGINAL_LENGTH]))?;
            let beta = nested.number(LLAMA4_BETA)?;
            config.query_temperature = (beta != 0.0).then_some(QueryTemperature { beta, interval });
        }
        Ok(())
    },
    |config, written| {
        for key in ["rope_scaling", "rope_parameters"] {
            if let (Some(nested), Some(temperature)) =
                (written.get_mut(key).and_then(Value::as_object_mut), config.query_temperature)
            {
                nested.insert(LLAMA4_BETA.to_owned(), json!(temperature.beta));
                nested.insert(ORIGINAL_LENGTH.to_owned(), json!(temperature.interval));
            }
        }
    },
);

/// HyperCLOVA X may also have norms after attention and MLP, and scales scores as usual if the key is `null`.
pub(super) const HYPERCLOVAX_NORMS: ConfigRow = custom(
    &["use_post_norm"],
    |fields, config| {
        let has_both = fields.flag_or("use_post_norm", true)?;
        config.norm_position = if has_both { NormPosition::Sandwich } else { NormPosition::Pre };
        Ok(())
    },
    |config, written| {
        written.insert("use_post_norm".to_owned(), json!(config.norm_position == NormPosition::Sandwich));
    },
);

/// See [`HYPERCLOVAX_NORMS`].
pub(super) const HYPERCLOVAX_ATTENTION: ConfigRow = custom(
    &["attention_multiplier"],
    |fields, config| {
        if let Some(scale) = fields.number_if_any("attention_multiplier")? {
            set_score_scale(config, scale);
        }
        Ok(())
    },
    |config, written| {
        written.insert("attention_multiplier".to_owned(), json!(config.score_scale()));
    },
);

/// CWM's class always requires this token.
pub(super) const CWM_BOS: ConfigRow = custom(
    &[],
    |_, _| Ok(()),
    |_, written| {
        written.insert("bos_token_id".to_owned(), json!(128_000));
    },
);

/// Rows that Hunyuan's dense models share with its models with experts. Their class normalizes queries and keys
/// whatever `use_qk_norm` says.
pub(super) const HUNYUAN_DENSE: ConfigRow = custom(
    &["use_qk_norm", "num_experts"],
    |fields, _| match fields.size_or("num_experts", 1)? {
        0 | 1 => Ok(()),
        _ => fields.only("num_experts", Fixed::Number(1.0)),
    },
    |_, _| {},
);

/// Muse Glimmer multiplies queries by this after their norm. Must follow the row of the heads.
pub(super) const MUSE_SCORES: ConfigRow = custom(
    &["qk_scale_factor"],
    |fields, config| {
        let factor = fields.number_or("qk_scale_factor", 3.87)?;
        set_score_scale(config, factor * inverse_root(config.head_dim as f64));
        Ok(())
    },
    |config, written| {
        let (scale, own) = (config.score_scale(), inverse_root(config.head_dim as f64));
        written.insert("qk_scale_factor".to_owned(), exact_inverse(scale, scale / own, |factor| factor * own));
    },
);

/// The output norms have a separate epsilon. Must follow the row of the other norms' epsilon.
pub(super) const MUSE_EPS: ConfigRow = custom(
    &["post_norm_eps"],
    |fields, config| {
        let eps = fields.number_or("post_norm_eps", 1e-8)?;
        config.out_norm_eps = (eps != config.norm_eps).then_some(eps);
        Ok(())
    },
    |config, written| {
        written.insert("post_norm_eps".to_owned(), json!(config.out_norm_eps.unwrap_or(config.norm_eps)));
    },
);

const THETAS: &str = "layer_rope_theta";

/// The rotary base of each layer, 0 for none; by default none for every fourth, counted from the last. Transformers rotates by the
/// base of the rotary positions, so others are refused. Behind the rows of rotary positions.
pub(super) const MUSE_ROTATION: ConfigRow = custom(
    &[THETAS],
    |fields, config| {
        let Positions::Rope(Rope { theta, .. }) = config.positions else { return Ok(()) };
        // The size is not validated yet: this limits the list.
        let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
        if fields.get(THETAS).is_none() {
            config.unrotated_layers = layers.filter(|layer| (config.n_layers - 1 - layer).is_multiple_of(4)).collect();
            return Ok(());
        }
        let thetas = fields.numbers(THETAS)?;
        if thetas.len() != config.n_layers || thetas.iter().any(|&other| other != 0.0 && other != theta) {
            let supported =
                format!("{theta}, the base of the rotary positions, or 0 for each of the {} layers", config.n_layers);
            return Err(fields.unsupported(THETAS, fields.get(THETAS).unwrap_or(&Value::Null), &supported));
        }
        config.unrotated_layers = layers.filter(|&layer| thetas[layer] == 0.0).collect();
        Ok(())
    },
    |config, written| {
        let Positions::Rope(rope) = &config.positions else { return };
        let theta = |layer| if config.unrotated_layers.contains(&layer) { 0.0 } else { rope.theta };
        written.insert(THETAS.to_owned(), json!((0..config.n_layers).map(theta).collect::<Vec<_>>()));
    },
);
