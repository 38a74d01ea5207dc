//! Keys about latent attention that set more than one field, or that only one class has.

use serde_json::{Value, json};

use super::{
    super::config_json::Fixed,
    bases::{experts, latent},
    config_rows::{ConfigRow, custom, exact_inverse, one_kv_head_each, set_score_scale, size_or},
    rope::nested_object,
};
use crate::config::{ExpertGroups, GptConfig, Positions, Rope, RopeScaling};

const QUERY_RANK: &str = "q_lora_rank";
const SCALES_SCORES: &str = "mscale_all_dim";
const ROPE_TYPE: &str = "rope_type";

/// DeepSeek's sizes, except those whose defaults differ between versions.
pub(super) const DEEPSEEK_HEADS: &[ConfigRow] = &[
    one_kv_head_each(),
    KV_HEADS,
    size_or(&["kv_lora_rank"], |c| &mut latent(c).kv_rank, |_| 512),
    size_or(&["qk_rope_head_dim"], |c| &mut latent(c).rope_dim, |_| 64),
];

/// Files may state the number of key heads, which must equal the number of query heads.
pub(super) const KV_HEADS: ConfigRow = custom(
    &["num_key_value_heads"],
    |fields, config| fields.only("num_key_value_heads", Fixed::Number(config.n_heads as f64)),
    |config, written| drop(written.insert("num_key_value_heads".to_owned(), json!(config.n_heads))),
);

/// Width of the part of a head that is not rotated.
pub(super) const fn plain_dim(absent: usize) -> ConfigRow {
    ConfigRow::Indirect {
        key: "qk_nope_head_dim",
        absent,
        set: |config, plain| config.head_dim = latent(config).rope_dim.saturating_add(plain),
        get: |config| config.head_dim.saturating_sub(config.latent.map_or(0, |latent| latent.rope_dim)),
    }
}

/// The width of the latent of queries; `null` means no latent.
pub(super) const fn query_rank<const ABSENT: usize>() -> ConfigRow {
    custom(
        &[QUERY_RANK],
        |fields, config| {
            let absent = (!fields.has(QUERY_RANK)).then_some(ABSENT);
            latent(config).query_rank = fields.size(QUERY_RANK)?.or(absent);
            Ok(())
        },
        |config, written| {
            written.insert(QUERY_RANK.to_owned(), json!(config.latent.and_then(|latent| latent.query_rank)));
        },
    )
}

/// With YaRN, scores are multiplied by the square of a factor from this key of the nested object.
pub(super) const SCORES: ConfigRow = custom(
    &[],
    |fields, config| {
        config.attention_scale = None;
        let Some(nested) = nested_object(fields)? else { return Ok(()) };
        let multiplier = nested.number_or(SCALES_SCORES, 0.0)?;
        if multiplier == 0.0 {
            return Ok(());
        }
        match &config.positions {
            Positions::Rope(Rope { scaling: RopeScaling::Yarn { factor, .. }, .. }) => {
                let scale = scaled_scores(config, *factor, multiplier);
                set_score_scale(config, scale);
                Ok(())
            }
            Positions::Rope(Rope { scaling: RopeScaling::None, .. }) => Ok(()),
            _ => nested.only(SCALES_SCORES, Fixed::Nothing),
        }
    },
    |config, written| {
        let Positions::Rope(Rope { scaling: RopeScaling::Yarn { factor, .. }, .. }) = config.positions else { return };
        let scale = config.score_scale();
        let own = GptConfig { attention_scale: None, ..config.clone() }.score_scale();
        if scale == own {
            return;
        }
        let guess = ((scale / own).sqrt() - 1.0) / (0.1 * factor.ln());
        let multiplier = exact_inverse(scale, guess, |multiplier| scaled_scores(config, factor, multiplier));
        for key in ["rope_parameters", "rope_scaling"] {
            if let Some(nested) = written.get_mut(key).and_then(Value::as_object_mut)
                && nested.contains_key(ROPE_TYPE)
            {
                nested.insert(SCALES_SCORES.to_owned(), multiplier.clone());
            }
        }
    },
);

fn scaled_scores(config: &GptConfig, factor: f64, multiplier: f64) -> f64 {
    let scale = GptConfig { attention_scale: None, ..config.clone() }.score_scale();
    let by_length = if factor <= 1.0 { 1.0 } else { 0.1 * multiplier * factor.ln() + 1.0 };
    scale * by_length * by_length
}

/// DeepSeek V2 chooses among all experts, or among the experts of the best groups.
pub(super) const V2_GROUPS: ConfigRow = custom(
    &["topk_method", "n_group", "topk_group"],
    |fields, config| {
        let groups = match fields.text_or("topk_method", "greedy")? {
            "greedy" => None,
            LIMITED => {
                let size = |key| fields.size(key)?.ok_or_else(|| fields.missing(&[key]));
                Some(ExpertGroups { n_groups: size("n_group")?, n_active: size("topk_group")?, n_best: 1 })
            }
            other => return Err(fields.unsupported("topk_method", &json!(other), &format!("greedy, {LIMITED}"))),
        };
        experts(config).groups = groups;
        Ok(())
    },
    |config, written| {
        let groups = config.experts.as_ref().and_then(|experts| experts.groups);
        let mut write = |key: &str, value: Value| drop(written.insert(key.to_owned(), value));
        write("topk_method", json!(if groups.is_some() { LIMITED } else { "greedy" }));
        write("n_group", json!(groups.map(|groups| groups.n_groups)));
        write("topk_group", json!(groups.map(|groups| groups.n_active)));
    },
);

const LIMITED: &str = "group_limited_greedy";

/// The width of a value; by default the residual stream's width divided by the number of heads.
pub(super) const MINICPM3_VALUES: ConfigRow = ConfigRow::Size {
    keys: &["v_head_dim"],
    of: |c| &mut latent(c).value_dim,
    absent: Some(super::config_rows::head_dim),
};
