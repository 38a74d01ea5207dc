//! Validation of configurations: ranges of fields, and contradictions. Errors name the field.

use std::borrow::Cow;

use super::{GptConfig, NormKind, NormPosition, Positions, QkNormSpan, QueryTemperature, Rope, RopeScaling};
use crate::error::{Error, Result};

/// Far more layers than any model has; limits the number of parameters that a file can declare.
pub(crate) const MAX_LAYERS: usize = 1 << 12;
/// A thousand times the largest models, and far below overflow of sizes in bytes.
const MAX_PARAMS: usize = 1 << 50;

impl GptConfig {
    /// Checks all fields.
    ///
    /// # Errors
    /// [`Error::Config`] with the first field that is out of range.
    pub fn validate(&self) -> Result<()> {
        let positive = [
            ("vocab_size", self.vocab_size),
            ("max_seq_len", self.max_seq_len),
            ("n_layers", self.n_layers),
            ("n_heads", self.n_heads),
            ("n_kv_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("d_model", self.d_model),
            ("d_ff", self.d_ff),
        ];
        for (field, size) in positive {
            // The upper bound keeps every product of two sizes far from overflow.
            require(field, (1..=1 << 28).contains(&size), || format!("must be in 1..=2^28, got {size}"))?;
        }
        require("n_layers", self.n_layers <= MAX_LAYERS, || {
            format!("must be at most {MAX_LAYERS}, got {}", self.n_layers)
        })?;
        require("n_kv_heads", self.n_heads.is_multiple_of(self.n_kv_heads), || {
            format!("must divide n_heads = {}, got {}", self.n_heads, self.n_kv_heads)
        })?;
        let of_some = [("final_norm_eps", self.final_norm_eps), ("out_norm_eps", self.out_norm_eps)];
        for (field, eps) in [("norm_eps", Some(self.norm_eps))].into_iter().chain(of_some) {
            let eps = eps.unwrap_or(self.norm_eps);
            require(field, eps.is_finite() && eps >= 0.0, || format!("must be finite and not negative, got {eps}"))?;
        }
        require("final_norm_eps", self.final_norm || self.final_norm_eps.is_none(), || {
            "must be absent with final_norm = false".to_owned()
        })?;
        require("out_norm_eps", self.out_norm_eps.is_none() || self.norm_position == NormPosition::Sandwich, || {
            "must be absent unless norm_position is sandwich".to_owned()
        })?;
        let has_offset = self.final_norm && self.norm_weight;
        require("final_norm_offset", self.final_norm_offset.is_none_or(|it| it.is_finite() && has_offset), || {
            "must be finite, and absent with final_norm = false or norm_weight = false".to_owned()
        })?;
        require("plain_embed_norm", !self.plain_embed_norm || (self.embed_norm && !self.norm_bias), || {
            "must be false with embed_norm = false or norm_bias = true".to_owned()
        })?;
        require("plain_qk_norm", !self.plain_qk_norm || (self.qk_norm && !self.qk_norm_bias), || {
            "must be false with qk_norm = false or qk_norm_bias = true".to_owned()
        })?;
        require("norm_bias", !(self.norm_bias && self.norm == NormKind::RmsNorm), || {
            "must be false with norm = rms_norm".to_owned()
        })?;
        require("norm_bias", !self.norm_bias || self.norm_weight, || {
            "must be false with norm_weight = false".to_owned()
        })?;
        require("norm_weight_offset", self.norm_weight_offset.is_finite(), || {
            format!("must be finite, got {}", self.norm_weight_offset)
        })?;
        require("norm_weight_offset", self.norm_weight || self.norm_weight_offset == 0.0, || {
            "must be 0 with norm_weight = false".to_owned()
        })?;
        require("parallel_residual", !self.parallel_residual || self.norm_position == NormPosition::Pre, || {
            "must be false unless norm_position is pre".to_owned()
        })?;
        require("shared_norm", !self.shared_norm || self.parallel_residual, || {
            "must be false with parallel_residual = false".to_owned()
        })?;
        require("bidirectional", !self.bidirectional || self.positions != Positions::Alibi, || {
            "must be false with positions = alibi".to_owned()
        })?;
        require("bidirectional", !self.bidirectional || self.recurrent.is_none(), || {
            "must be false with recurrent layers".to_owned()
        })?;
        require("mlm_head", self.mlm_head.is_none() || self.bidirectional, || {
            "must be left out with bidirectional = false".to_owned()
        })?;
        require("n_token_types", self.n_token_types <= 1 << 16, || {
            format!("must be at most 65536, got {}", self.n_token_types)
        })?;
        let unnormed = self.embed_norm && self.norm_position == NormPosition::Pre && !self.shared_norm;
        require("unnormed_first_mixer", !self.unnormed_first_mixer || unnormed, || {
            "must be false unless embed_norm is true, norm_position is pre and norms are not shared".to_owned()
        })?;
        self.validate_factors()?;
        require("dropout", (0.0..1.0).contains(&self.dropout), || format!("must be in [0, 1), got {}", self.dropout))?;
        require("qk_norm_after_rope", self.qk_norm || !self.qk_norm_after_rope, || {
            "must be false with qk_norm = false".to_owned()
        })?;
        require("qk_norm_bias", (self.qk_norm && self.norm_weight) || !self.qk_norm_bias, || {
            "must be false with qk_norm = false or norm_weight = false".to_owned()
        })?;
        require("qk_norm_bias", self.qk_norm_span != QkNormSpan::EachHead || !self.qk_norm_bias, || {
            "must be false with qk_norm_span = each_head".to_owned()
        })?;
        require("clip_qkv", self.clip_qkv.is_none_or(|limit| limit > 0.0 && (limit as f32).is_normal()), || {
            format!("must be positive and within the range of f32, got {}", self.clip_qkv.unwrap_or_default())
        })?;
        require("clip_qkv", self.clip_qkv.is_none() || (!self.attention_gate && self.latent.is_none()), || {
            "must be absent with attention_gate, and with latent attention".to_owned()
        })?;
        require("xielu", !self.xielu || (!self.gated_mlp && self.experts.is_none()), || {
            "must be false with gated_mlp = true, and with experts".to_owned()
        })?;
        require("clamped_swiglu", self.clamped_swiglu.is_none() || self.gated_mlp, || {
            "must be absent with gated_mlp = false".to_owned()
        })?;
        if let Some(QueryTemperature { beta, interval }) = self.query_temperature {
            require("query_temperature.beta", beta > 0.0 && (beta as f32).is_normal(), || {
                format!("must be positive and within the range of f32, got {beta}")
            })?;
            require("query_temperature.interval", (1..=1 << 28).contains(&interval), || {
                format!("must be in 1..=2^28, got {interval}")
            })?;
        }
        if let Some(window) = self.sliding_window {
            require("sliding_window", (1..=1 << 32).contains(&window), || {
                format!("must be in 1..=2^32, got {window}")
            })?;
        }
        self.validate_layers()?;
        self.validate_heads()?;
        self.experts.iter().try_for_each(|experts| experts.validate(self))?;
        require("xielu", !self.xielu || self.experts.is_none(), || "must be false with experts".to_owned())?;
        self.recurrent.iter().try_for_each(|recurrent| recurrent.validate(self.n_layers))?;
        self.latent.iter().try_for_each(|latent| latent.validate(self))?;
        self.validate_seq2seq()?;
        // Valid sizes may still have too large a product.
        require("n_layers", self.n_params() <= MAX_PARAMS, || {
            format!("and the other sizes must result in at most {MAX_PARAMS} parameters, got {}", self.n_params())
        })
    }

    /// Checks multipliers and caps.
    fn validate_factors(&self) -> Result<()> {
        let factors = [
            ("embedding_multiplier", Some(self.embedding_multiplier)),
            ("residual_multiplier", Some(self.residual_multiplier)),
            ("logit_multiplier", Some(self.logit_multiplier)),
            ("logit_softcap", self.logit_softcap),
            ("attention_scale", self.attention_scale),
            ("attention_softcap", self.attention_softcap),
            ("clamped_swiglu.alpha", self.clamped_swiglu.map(|clamped| clamped.alpha)),
            ("clamped_swiglu.limit", self.clamped_swiglu.map(|clamped| clamped.limit)),
        ];
        for (field, factor) in factors {
            // They are applied in f32.
            let holds = factor.is_none_or(|factor| factor > 0.0 && (factor as f32).is_normal());
            require(field, holds, || {
                format!("must be positive and within the range of f32, got {}", factor.unwrap_or_default())
            })?;
        }
        Ok(())
    }

    /// Checks settings that vary by layer.
    fn validate_layers(&self) -> Result<()> {
        for (field, layers) in [
            ("full_layers", &self.full_layers),
            ("unrotated_layers", &self.unrotated_layers),
            ("layers_without_mlp", &self.layers_without_mlp),
            ("layers_without_mixer", &self.layers_without_mixer),
        ] {
            require_layers(field, layers, self.n_layers)?;
        }
        let attending = self.recurrent.as_ref().map(|recurrent| &recurrent.attention_layers);
        let dense = self.experts.as_ref().map(|experts| &experts.dense_layers);
        for (field, layers, other, others) in [
            ("layers_without_mixer", &self.layers_without_mixer, "layers_without_mlp", Some(&self.layers_without_mlp)),
            ("layers_without_mixer", &self.layers_without_mixer, "recurrent.attention_layers", attending),
            ("layers_without_mlp", &self.layers_without_mlp, "experts.dense_layers", dense),
        ] {
            let both = layers.iter().find(|layer| others.is_some_and(|others| others.contains(layer)));
            require(field, both.is_none(), || {
                format!("must have no layer of {other}, got {}", both.copied().unwrap_or_default())
            })?;
        }
        let are_whole = self.layers_without_mlp.is_empty() && self.layers_without_mixer.is_empty();
        require("parallel_residual", are_whole || !self.parallel_residual, || {
            "must be false with layers_without_mlp or layers_without_mixer".to_owned()
        })?;
        let windowed = self.sliding_window.is_some();
        require("full_layers", windowed || self.full_layers.is_empty(), || {
            "must be empty without sliding_window".to_owned()
        })?;
        if let Positions::Rope(rope) = &self.positions {
            // If layers with the window have no separate rotation, they use this one too.
            let narrowest = match self.window_rope {
                Some(_) => self.heads_with(false).head_dim,
                None => self.head_dim.min(self.heads_with(false).head_dim),
            };
            rope.validate("positions.rope", self.rotatable(narrowest))?;
        } else {
            require("unrotated_layers", self.unrotated_layers.is_empty(), || {
                "must be empty without rotary positions".to_owned()
            })?;
            require("window_rope", self.window_rope.is_none(), || {
                "must be absent without rotary positions".to_owned()
            })?;
        }
        require("window_rope", windowed || self.window_rope.is_none(), || {
            "must be absent without sliding_window".to_owned()
        })?;
        self.window_rope.iter().try_for_each(|rope| rope.validate("window_rope", self.rotatable(self.head_dim)))
    }
}

impl Rope {
    /// Checks the rotary positions in the field `path`. They have at most `most` dimensions, which the field
    /// `most_name` sets.
    fn validate(&self, path: &str, (most_name, most): (&str, usize)) -> Result<()> {
        let Self { theta, rotary_dim, ref scaling } = *self;
        // With theta up to 1, wavelengths do not grow with the dimension, and YaRN divides by its logarithm.
        require(format!("{path}.theta"), theta.is_finite() && theta > 1.0, || {
            format!("must be finite and above 1, got {theta}")
        })?;
        let fits = rotary_dim.is_multiple_of(2) && (2..=most).contains(&rotary_dim);
        require(format!("{path}.rotary_dim"), fits, || {
            format!("must be even and in 2..={most_name} = {most}, got {rotary_dim}")
        })?;
        scaling.validate(&format!("{path}.scaling"), rotary_dim / 2)
    }
}

impl RopeScaling {
    /// Checks the scaling of `n_pairs` pairs of dimensions in the field `path`.
    fn validate(&self, path: &str, n_pairs: usize) -> Result<()> {
        let at_least_one = |field: &str, factor: f64| {
            require(format!("{path}.{field}"), factor.is_finite() && factor >= 1.0, || {
                format!("must be finite and at least 1, got {factor}")
            })
        };
        let above_zero = |field: &str, value: f64| {
            require(format!("{path}.{field}"), value.is_finite() && value > 0.0, || {
                format!("must be finite and positive, got {value}")
            })
        };
        let length = |field: &str, length: usize| {
            require(format!("{path}.{field}"), (1..=1 << 28).contains(&length), || {
                format!("must be in 1..=2^28, got {length}")
            })
        };
        match *self {
            Self::None => Ok(()),
            Self::Linear { factor } => at_least_one("linear.factor", factor),
            Self::Dynamic { factor } => at_least_one("dynamic.factor", factor),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_seq_len } => {
                at_least_one("llama3.factor", factor)?;
                above_zero("llama3.low_freq_factor", low_freq_factor)?;
                let above = high_freq_factor.is_finite() && high_freq_factor > low_freq_factor;
                require(format!("{path}.llama3.high_freq_factor"), above, || {
                    format!("must be finite and above low_freq_factor = {low_freq_factor}, got {high_freq_factor}")
                })?;
                length("llama3.original_max_seq_len", original_max_seq_len)
            }
            Self::Yarn { factor, attention_factor, beta_fast, beta_slow, original_max_seq_len, .. } => {
                at_least_one("yarn.factor", factor)?;
                above_zero("yarn.attention_factor", attention_factor)?;
                above_zero("yarn.beta_slow", beta_slow)?;
                let above = beta_fast.is_finite() && beta_fast >= beta_slow;
                require(format!("{path}.yarn.beta_fast"), above, || {
                    format!("must be finite and not below beta_slow = {beta_slow}, got {beta_fast}")
                })?;
                length("yarn.original_max_seq_len", original_max_seq_len)
            }
            Self::LongRope { ref short_factors, ref long_factors, attention_factor, original_max_seq_len } => {
                validate_pair_factors(format!("{path}.long_rope.short_factors"), short_factors, n_pairs)?;
                validate_pair_factors(format!("{path}.long_rope.long_factors"), long_factors, n_pairs)?;
                length("long_rope.original_max_seq_len", original_max_seq_len)?;
                above_zero("long_rope.attention_factor", attention_factor)
            }
            Self::Proportional { n_pairs: rotated, factor } => {
                require(format!("{path}.proportional.n_pairs"), (1..=n_pairs).contains(&rotated), || {
                    format!("must be in 1..={n_pairs}, half of rotary_dim, got {rotated}")
                })?;
                at_least_one("proportional.factor", factor)
            }
        }
    }
}

/// Checks the list `factors` in the field `path`, which has an entry for each pair of dimensions.
fn validate_pair_factors(path: String, factors: &[f32], n_pairs: usize) -> Result<()> {
    require(path.clone(), factors.len() == n_pairs, || {
        format!("must have {n_pairs} factors, half of rotary_dim, got {}", factors.len())
    })?;
    // Their reciprocals are frequencies in f32.
    match factors.iter().find(|factor| !(factor.is_normal() && **factor > 0.0)) {
        None => Ok(()),
        Some(factor) => require(path, false, || format!("must be finite and positive, got {factor}")),
    }
}

/// Checks a list of layers of a model with `n_layers` layers.
pub(super) fn require_layers(field: &'static str, layers: &[usize], n_layers: usize) -> Result<()> {
    let ascending = layers.is_sorted_by(|a, b| a < b);
    require(field, ascending && layers.last().is_none_or(|&last| last < n_layers), || {
        format!("must be ascending and below n_layers = {n_layers}")
    })
}

pub(super) fn require(field: impl Into<Cow<'static, str>>, holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Config { field: field.into(), what: what() }) }
}
