//! Rotary positions, in both spellings of `config.json`: `rope_parameters` (transformers 5), and before it `rope_theta`
//! with `rope_scaling`.

use serde_json::{Map, Value, json};

use super::super::fields::Fields;
use crate::{
    config::{GptConfig, Positions, Rope, RopeScaling},
    error::Result,
};

const THETA: &str = "rope_theta";
const MAX_LENGTH: &str = "max_position_embeddings";
const ORIGINAL_LENGTH: &str = "original_max_position_embeddings";

/// The keys in which classes differ.
pub(super) struct RopeSpelling {
    /// The older key of the base.
    theta: &'static str,
    /// The older key of the share of each head that turns, and that share where the key is absent. Without a key it is
    /// all of the head.
    share: Option<(&'static str, f64)>,
    /// The names of the scalings that the class computes.
    types: &'static [&'static str],
}

pub(super) const WHOLE_HEADS: RopeSpelling = RopeSpelling { theta: THETA, share: None, types: TYPES };
pub(super) const NEOX: RopeSpelling =
    RopeSpelling { theta: "rotary_emb_base", share: Some(("rotary_pct", 0.25)), types: TYPES };
/// Phi 3 knows one scaling more, `longrope`, and no other.
pub(super) const PHI3: RopeSpelling =
    RopeSpelling { theta: THETA, share: Some(("partial_rotary_factor", 1.0)), types: &["default"] };
pub(super) const STABLELM: RopeSpelling =
    RopeSpelling { theta: THETA, share: Some(("partial_rotary_factor", 0.25)), types: TYPES };

const TYPES: &[&str] = &["default", "linear", "dynamic", "llama3", "yarn"];

/// The keys of the nested object that are understood, whatever its type. Others are refused: they may change the maths.
const NESTED_KEYS: &[&str] = &[
    "rope_type",
    "type",
    THETA,
    "partial_rotary_factor",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    ORIGINAL_LENGTH,
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    // Says how the scaling came about, not what it is.
    "finetuned",
];

impl RopeSpelling {
    /// Sets `config.positions`, and the longest sequence where the scaling decides it.
    pub(super) fn read(&self, fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
        let empty = Map::new();
        // As in transformers, the older key wins where a file has both.
        let nested = match fields.object("rope_scaling")?.filter(|nested| !nested.is_empty()) {
            Some(nested) => nested,
            None => fields.object("rope_parameters")?.unwrap_or_else(|| fields.within(&empty)),
        };
        if let Some(key) = nested.keys().find(|key| !NESTED_KEYS.contains(key) && nested.get(key).is_some()) {
            let value = nested.get(key).unwrap_or(&Value::Null);
            return Err(nested.unsupported(
                key,
                value,
                &format!("in the rotary positions are {}", NESTED_KEYS.join(", ")),
            ));
        }
        let theta = nested.number_or(THETA, fields.number_or(self.theta, 10_000.0)?)?;
        if self.theta != THETA && nested.get(THETA).is_none() {
            // Some versions of transformers read it for such a class, others do not.
            fields.only(THETA, super::Fixed::Number(theta))?;
        }
        let rotary_dim = match self.share {
            None => {
                for fields in [fields, &nested] {
                    fields.only("partial_rotary_factor", super::Fixed::Number(1.0))?;
                }
                config.head_dim
            }
            Some((key, absent)) => {
                let share = nested.number_or("partial_rotary_factor", fields.number_or(key, absent)?)?;
                // Rounded down, as Python's `int` does; shares that make no dimension are refused by `validate`.
                (config.head_dim as f64 * share) as usize
            }
        };
        let kind = nested.text_or("rope_type", nested.text_or("type", "default")?)?;
        if !self.types.contains(&kind) {
            return Err(nested.unsupported("rope_type", &json!(kind), &self.types.join(", ")));
        }
        let scaling = scaling(kind, fields, &nested, config.max_seq_len)?;
        if let RopeScaling::Dynamic { factor, original_max_seq_len } = scaling {
            config.max_seq_len = (factor * original_max_seq_len as f64) as usize;
        }
        config.positions = Positions::Rope(Rope { theta, rotary_dim, scaling });
        Ok(())
    }

    pub(super) fn write(&self, config: &GptConfig, written: &mut Map<String, Value>) {
        let Positions::Rope(rope) = config.positions else { return };
        let mut scaling = scaling_json(rope.scaling);
        if let RopeScaling::Dynamic { original_max_seq_len, .. } = rope.scaling {
            written.insert(MAX_LENGTH.to_owned(), json!(original_max_seq_len));
        }
        // Both spellings: transformers 5 reads either, all before it the older one only.
        written.insert(self.theta.to_owned(), json!(rope.theta));
        written.insert(
            "rope_scaling".to_owned(),
            match rope.scaling {
                RopeScaling::None => Value::Null,
                _ => Value::Object(scaling.clone()),
            },
        );
        scaling.insert(THETA.to_owned(), json!(rope.theta));
        if let Some((key, _)) = self.share {
            let share = rope.rotary_dim as f64 / config.head_dim as f64;
            written.insert(key.to_owned(), json!(share));
            scaling.insert("partial_rotary_factor".to_owned(), json!(share));
        }
        written.insert("rope_parameters".to_owned(), Value::Object(scaling));
    }
}

fn scaling(kind: &str, fields: &Fields<'_>, nested: &Fields<'_>, max_seq_len: usize) -> Result<RopeScaling> {
    let factor = || nested.number("factor");
    // As in transformers, a key outside of the nested object goes before one within.
    let original = || fields.size_or(ORIGINAL_LENGTH, nested.size_or(ORIGINAL_LENGTH, max_seq_len)?);
    Ok(match kind {
        "linear" => RopeScaling::Linear { factor: factor()? },
        "dynamic" => RopeScaling::Dynamic { factor: factor()?, original_max_seq_len: max_seq_len },
        "llama3" => RopeScaling::Llama3 {
            factor: factor()?,
            low_freq_factor: nested.number("low_freq_factor")?,
            high_freq_factor: nested.number("high_freq_factor")?,
            original_max_seq_len: original()?,
        },
        "yarn" => {
            let factor = factor()?;
            // Zero counts as absent, as in transformers.
            let beta =
                |key, absent| Ok(Some(nested.number_or(key, absent)?).filter(|&beta| beta != 0.0).unwrap_or(absent));
            RopeScaling::Yarn {
                factor,
                attention_factor: nested.number_or("attention_factor", yarn_attention_factor(factor, nested)?)?,
                beta_fast: beta("beta_fast", 32.0)?,
                beta_slow: beta("beta_slow", 1.0)?,
                original_max_seq_len: original()?,
                truncate: nested.flag_or("truncate", true)?,
            }
        }
        _ => RopeScaling::None,
    })
}

/// What YaRN multiplies cosines and sines by where the file does not say: `0.1 ln(factor) + 1` (the paper, 3.4), or the
/// ratio of two such values (DeepSeek).
fn yarn_attention_factor(factor: f64, nested: &Fields<'_>) -> Result<f64> {
    let value = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    let (mscale, mscale_all_dim) = (nested.number_or("mscale", 0.0)?, nested.number_or("mscale_all_dim", 0.0)?);
    let both = mscale != 0.0 && mscale_all_dim != 0.0;
    Ok(if both { value(mscale) / value(mscale_all_dim) } else { value(1.0) })
}

fn scaling_json(scaling: RopeScaling) -> Map<String, Value> {
    let json = match scaling {
        RopeScaling::None => json!({ "rope_type": "default" }),
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Dynamic { factor, .. } => json!({ "rope_type": "dynamic", "factor": factor }),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_seq_len } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            ORIGINAL_LENGTH: original_max_seq_len,
        }),
        RopeScaling::Yarn { factor, attention_factor, beta_fast, beta_slow, original_max_seq_len, truncate } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "attention_factor": attention_factor,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            ORIGINAL_LENGTH: original_max_seq_len,
            "truncate": truncate,
        }),
    };
    match json {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
