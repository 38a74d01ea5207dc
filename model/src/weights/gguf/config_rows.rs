//! Rows for keys of GGUF files that no other format has, and for constants of llama.cpp that have no key.

use serde_json::{Value, json};

use super::{
    super::{
        architectures::{
            config_rows::{
                ConfigRow, custom, derived, exact_inverse, head_dim, inverse_root, number, one_kv_head_each,
                set_score_scale, size, size_or,
            },
            window,
        },
        config_json::{Fields, Fixed},
    },
    expert_rows::EXPERTS,
};
use crate::{
    config::{GptConfig, MAX_LAYERS, Positions, QueryTemperature, Rope, RopeScaling},
    error::Result,
};

/// The type of scaling whose factors are in the tensors [`FACTOR_LISTS`].
pub(super) const LONG_ROPE: &str = "longrope";
/// The tensors of the factors for short and long contexts.
pub(super) const FACTOR_LISTS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];
/// Multiplies cosines and sines.
pub(super) const ATTENTION_FACTOR: &str = "rope.scaling.attn_factor";

pub(super) const ROPE_KEYS: &[&str] = &[
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    ATTENTION_FACTOR,
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

pub(super) const SIZES: &[ConfigRow] = &[
    size(&["context_length"], |c| &mut c.max_seq_len),
    size(&["embedding_length"], |c| &mut c.d_model),
    size(&["block_count"], |c| &mut c.n_layers),
    size(&["feed_forward_length"], |c| &mut c.d_ff),
    size(&["attention.head_count"], |c| &mut c.n_heads),
];

pub(super) const GROUPED_HEADS: &[ConfigRow] = &[
    size_or(&["attention.head_count_kv"], |c| &mut c.n_kv_heads, |c| c.n_heads),
    size_or(&["attention.key_length"], |c| &mut c.head_dim, head_dim),
    VALUE_LENGTH,
];

pub(super) const PLAIN_HEADS: &[ConfigRow] = &[
    one_kv_head_each(),
    derived(|c| &mut c.head_dim, head_dim),
    of_key(&["attention.head_count_kv", "attention.key_length", "attention.value_length"], require_plain_heads),
];

pub(super) const RMS_EPS: ConfigRow = number("attention.layer_norm_rms_epsilon", |c| &mut c.norm_eps, 1e-5);
pub(super) const LAYER_NORM_EPS: ConfigRow = number("attention.layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5);
pub(super) const ROPE: ConfigRow = of_key(ROPE_KEYS, read_rope);
pub(super) const VALUE_LENGTH: ConfigRow = of_key(&["attention.value_length"], require_value_length);
pub(super) const WINDOW: ConfigRow = of_key(&["attention.sliding_window"], read_window);

fn require_plain_heads(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    fields.only("attention.head_count_kv", Fixed::Number(config.n_heads as f64))?;
    fields.only("attention.key_length", Fixed::Number(config.head_dim as f64))?;
    require_value_length(fields, config)
}

fn require_value_length(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    fields.only("attention.value_length", Fixed::Number(config.head_dim as f64))
}

/// 0 means no window, in files of Phi 3.
fn read_window(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    config.sliding_window = fields.size("attention.sliding_window")?.filter(|&window| window > 0);
    Ok(())
}

fn read_rope(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    let theta = fields.number_or("rope.freq_base", 10_000.0)?;
    let rotary_dim = fields.size_or("rope.dimension_count", config.head_dim)?;
    // 0 counts as absent, as in llama.cpp; the second key is from the first files.
    let factor = |key| Ok(fields.number_or(key, 0.0)?).map(|factor| (factor != 0.0).then_some(factor));
    let factor = factor("rope.scaling.factor")?.or(factor("rope.scale_linear")?);
    let kind = fields.text_or("rope.scaling.type", if factor.is_some() { "linear" } else { "none" })?;
    let attention_factor = yarn_attention_factor(fields, factor.filter(|_| kind == "yarn").unwrap_or(1.0))?;
    let scaling = match (kind, factor) {
        ("none", _) => RopeScaling::None,
        // The factors of `longrope` are tensors, which `rope_factors` reads.
        ("linear" | "yarn" | LONG_ROPE, None | Some(1.0)) => RopeScaling::None,
        (LONG_ROPE, Some(factor)) => {
            return Err(fields.unsupported("rope.scaling.factor", &json!(factor), "1, with the type longrope"));
        }
        ("linear", Some(factor)) => RopeScaling::Linear { factor },
        ("yarn", Some(factor)) => RopeScaling::Yarn {
            factor,
            attention_factor,
            beta_fast: fields.number_or("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: fields.number_or("rope.scaling.yarn_beta_slow", 1.0)?,
            original_max_seq_len: fields.size_or("rope.scaling.original_context_length", config.max_seq_len)?,
            truncate: true,
        },
        _ => return Err(fields.unsupported("rope.scaling.type", &json!(kind), "none, linear, yarn, longrope")),
    };
    config.positions = Positions::Rope(Rope { theta, rotary_dim, scaling });
    Ok(())
}

/// The scaling whose factors are two lists. `context` is the context length that the file states.
pub(super) fn long_rope(fields: &Fields<'_>, context: usize, [short, long]: [Vec<f32>; 2]) -> Result<RopeScaling> {
    let original_max_seq_len = fields.size_or("rope.scaling.original_context_length", context)?;
    let extension = context as f64 / original_max_seq_len as f64;
    let own = RopeScaling::long_rope_attention_factor(extension, original_max_seq_len);
    let found = fields.number_or(ATTENTION_FACTOR, 1.0)?;
    // The file has it in f32.
    let attention_factor = if (found - own).abs() < 1e-6 * own { own } else { found };
    Ok(RopeScaling::LongRope { short_factors: short, long_factors: long, attention_factor, original_max_seq_len })
}

/// YaRN's attention factor. llama.cpp multiplies it by the key, so 1 leaves it as it is; files may also have the factor itself.
fn yarn_attention_factor(fields: &Fields<'_>, factor: f64) -> Result<f64> {
    const KEY: &str = "rope.scaling.yarn_attn_factor";
    let own = 0.1 * factor.max(1.0).ln() + 1.0;
    match fields.number_or(KEY, 1.0)? {
        // The file has it in f32.
        found if found == 1.0 || (found - own).abs() < 1e-6 * own => Ok(own),
        found => Err(fields.unsupported(KEY, &json!(found), &format!("1, or for YaRN its own, here {own}"))),
    }
}

/// A row that reads `keys` with a custom function and writes nothing.
pub(super) const fn of_key(
    keys: &'static [&'static str],
    read: fn(&Fields<'_>, &mut GptConfig) -> Result<()>,
) -> ConfigRow {
    ConfigRow::Custom { keys, read, write: |_, _| {} }
}

/// A period, or a flag for each layer: whether it has the window.
pub(super) const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";
const WINDOW_KEYS: &[&str] = &["attention.sliding_window", WINDOW_PATTERN];

/// Every second layer has no window.
pub(super) const GEMMA2_WINDOW: ConfigRow = of_key(WINDOW_KEYS, |fields, config| {
    let window = fields.size_or("attention.sliding_window", 4096)?;
    read_periodic_window(fields, config, Some(window), 2)
});

/// Every sixth layer has no window.
pub(super) const GEMMA3_WINDOW: ConfigRow = of_key(WINDOW_KEYS, |fields, config| {
    let window = fields.size("attention.sliding_window")?.filter(|&window| window > 0);
    read_periodic_window(fields, config, window, 6)
});

/// Every fourth layer of OLMo 3 has no window.
pub(super) const OLMO2_WINDOW: ConfigRow = of_key(WINDOW_KEYS, |fields, config| {
    let window = fields.size("attention.sliding_window")?.filter(|&window| window > 0);
    read_periodic_window(fields, config, window, 4)
});

/// Every fourth layer has no window.
pub(super) const COHERE2_WINDOW: ConfigRow = of_key(WINDOW_KEYS, |fields, config| {
    let window = fields.size("attention.sliding_window")?;
    let window = window.ok_or_else(|| fields.missing(&["attention.sliding_window"]))?;
    read_periodic_window(fields, config, Some(window), 4)
});

/// Every second layer has no window.
pub(super) const GPT_OSS_WINDOW: ConfigRow = of_key(WINDOW_KEYS, |fields, config| {
    let window = fields.size("attention.sliding_window")?;
    let window = window.ok_or_else(|| fields.missing(&["attention.sliding_window"]))?;
    read_periodic_window(fields, config, Some(window), 2)
});

/// Files have no key for whether the ends of YaRN's blend are whole dimensions.
pub(super) const UNTRUNCATED: ConfigRow = of_key(&[], |_, config| {
    if let Positions::Rope(Rope { scaling: RopeScaling::Yarn { truncate, .. }, .. }) = &mut config.positions {
        *truncate = false;
    }
    Ok(())
});

/// Every `period`-th layer has no window, unless the file states another period or a flag for each layer.
fn read_periodic_window(
    fields: &Fields<'_>,
    config: &mut GptConfig,
    window: Option<usize>,
    period: usize,
) -> Result<()> {
    const KEY: &str = WINDOW_PATTERN;
    let n_layers = config.n_layers;
    let full_layers = match fields.get(KEY) {
        Some(found @ Value::Array(list)) => {
            let windowed = list.iter().map(Value::as_bool).collect::<Option<Vec<_>>>();
            let Some(windowed) = windowed.filter(|list| list.len() == n_layers) else {
                let supported = format!("a number, or true or false for each of the {n_layers} layers");
                return Err(fields.unsupported(KEY, found, &supported));
            };
            (0..n_layers).filter(|&layer| !windowed[layer]).collect()
        }
        _ => every(fields.size_or(KEY, period)?, config),
    };
    window::set(config, window, full_layers);
    Ok(())
}

/// Every `period`-th layer; none if `period` is 0.
fn every(period: usize, config: &GptConfig) -> Vec<usize> {
    // The size is not validated yet: this limits the list.
    let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
    layers.filter(|layer| (layer + 1).is_multiple_of(period)).collect()
}

/// Layers with the window have a separate rotary base, and no scaling.
pub(super) const GEMMA3_WINDOW_ROPE: ConfigRow =
    of_key(&["rope.freq_base_swa"], |fields, config| read_window_rope(fields, config, |_| 10_000.0));

/// Layers with the window have no scaling.
pub(super) const OLMO2_WINDOW_ROPE: ConfigRow =
    of_key(&["rope.freq_base_swa"], |fields, config| read_window_rope(fields, config, |rope| rope.theta));

fn read_window_rope(fields: &Fields<'_>, config: &mut GptConfig, absent: fn(&Rope) -> f64) -> Result<()> {
    let Positions::Rope(rope) = &config.positions else { return Ok(()) };
    let own = Rope::new(fields.number_or("rope.freq_base_swa", absent(rope))?, rope.rotary_dim);
    config.window_rope = (config.sliding_window.is_some() && own != *rope).then_some(own);
    Ok(())
}

/// Every fourth layer of SmolLM3 does not rotate. Files have no key for it.
pub(super) const SMOLLM3_UNROTATED: ConfigRow = of_key(&[], |_, config| {
    config.unrotated_layers = every(4, config);
    Ok(())
});

/// Files have no key for the scale of scores, which differs in the models of 27 billion parameters: they have this many layers.
pub(super) const GEMMA2_SCORES: ConfigRow = of_key(&[], |_, config| scale_by_width(config, 46));
pub(super) const GEMMA3_SCORES: ConfigRow = of_key(&[], |_, config| scale_by_width(config, 62));

fn scale_by_width(config: &mut GptConfig, n_layers: usize) -> Result<()> {
    if config.n_layers == n_layers {
        set_score_scale(config, inverse_root(head_dim(config) as f64));
    }
    Ok(())
}

/// 0 means none.
pub(super) const GEMMA3_LOGIT_CAP: ConfigRow = custom(
    &["final_logit_softcapping"],
    |fields, config| {
        config.logit_softcap = fields.number_if_any("final_logit_softcapping")?.filter(|&cap| cap != 0.0);
        Ok(())
    },
    |config, written| {
        written.extend(config.logit_softcap.map(|cap| ("final_logit_softcapping".to_owned(), json!(cap))))
    },
);

/// Layers without the window do not rotate, if there is a window.
pub(super) const EXAONE4_WINDOW: ConfigRow = of_key(WINDOW_KEYS, |fields, config| {
    let window = fields.size("attention.sliding_window")?.filter(|&window| window > 0);
    read_periodic_window(fields, config, window, 4)?;
    if window.is_some() {
        let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
        config.unrotated_layers = layers.filter(|&layer| config.window_of(layer).is_none()).collect();
    }
    Ok(())
});

/// The sections of heads that are rotated by each of a token's three coordinates. For text, these are equal.
pub(super) const ROPE_SECTIONS: ConfigRow = of_key(&["rope.dimension_sections"], |_, _| Ok(()));
/// How many layers pictures are added to.
pub(super) const DEEPSTACK: ConfigRow = of_key(&["n_deepstack_layers"], |_, _| Ok(()));

const TEMPERATURE: &str = "attention.temperature_scale";
/// DeepSeek's second factor of YaRN. The attention factor is divided by the value computed from it.
pub(super) const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

/// Queries grow in steps of the original context's length.
pub(super) const MISTRAL3_TEMPERATURE: ConfigRow = ConfigRow::Custom {
    keys: &[TEMPERATURE, LOG_MULTIPLIER],
    read: |fields, config| {
        let multiplier = fields.number_or(LOG_MULTIPLIER, 0.0)?;
        if let Positions::Rope(Rope { scaling: RopeScaling::Yarn { factor, attention_factor, .. }, .. }) =
            &mut config.positions
            && multiplier != 0.0
        {
            *attention_factor = log_factor(*factor, 1.0) / log_factor(*factor, multiplier);
        }
        let beta = fields.number_or(TEMPERATURE, 0.0)?;
        if beta != 0.0 {
            let interval = fields.size_or("rope.scaling.original_context_length", config.max_seq_len)?;
            config.query_temperature = Some(QueryTemperature { beta, interval });
        }
        Ok(())
    },
    write: |config, written| {
        written.extend(config.query_temperature.map(|it| (TEMPERATURE.to_owned(), json!(it.beta))));
        if let Positions::Rope(Rope { scaling: RopeScaling::Yarn { factor, attention_factor, .. }, .. }) =
            config.positions
        {
            let own = log_factor(factor, 1.0);
            let guess = (own / attention_factor - 1.0) / (own - 1.0);
            let multiplier = exact_inverse(attention_factor, guess, |it| own / log_factor(factor, it));
            // llama.cpp reads no whole number for it.
            written.insert(LOG_MULTIPLIER.to_owned(), json!(multiplier.as_f64()));
        }
    },
};

pub(super) fn log_factor(factor: f64, multiplier: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * multiplier * factor.ln() + 1.0 }
}

/// The first files leave the scales out: the defaults are those of the model with 2 billion parameters.
pub(super) const MINICPM_SCALES: &[ConfigRow] = &[
    number("embedding_scale", |c| &mut c.embedding_multiplier, 12.0),
    ConfigRow::Custom {
        keys: &["residual_scale"],
        read: |fields, config| {
            config.residual_multiplier = fields.number_or("residual_scale", 1.4 / (config.n_layers as f64).sqrt())?;
            Ok(())
        },
        write: |config, written| {
            written.insert("residual_scale".to_owned(), json!(config.residual_multiplier));
        },
    },
    ConfigRow::Custom {
        keys: &["logit_scale"],
        read: |fields, config| {
            config.logit_multiplier = fields.number_or("logit_scale", config.d_model as f64 / 256.0)?.recip();
            Ok(())
        },
        write: |config, written| {
            written.insert("logit_scale".to_owned(), json!(config.logit_multiplier.recip()));
        },
    },
];

/// 0 means the usual scale.
pub(super) const GRANITE_SCORES: ConfigRow = of_key(&["attention.scale"], |fields, config| {
    if let Some(scale) = fields.number_if_any("attention.scale")?.filter(|&scale| scale != 0.0) {
        set_score_scale(config, scale);
    }
    Ok(())
});

/// In Granite this key says whether layers rotate at all.
pub(super) const GRANITE_ROTATES: ConfigRow =
    of_key(&["rope.scaling.finetuned"], |fields, _| fields.only("rope.scaling.finetuned", Fixed::Flag(true)));

/// Granite's, with experts or without.
pub(super) const GRANITE_ROWS: &[&[ConfigRow]] =
    &[&[GRANITE_ROTATES], SIZES, GROUPED_HEADS, &[ROPE, EXPERTS], GRANITE_SCALES];

/// Granite's norms and multipliers.
pub(super) const GRANITE_SCALES: &[ConfigRow] = &[
    RMS_EPS,
    GRANITE_SCORES,
    number("embedding_scale", |c| &mut c.embedding_multiplier, 1.0),
    number("residual_scale", |c| &mut c.residual_multiplier, 1.0),
    ConfigRow::Divisor { key: "logit_scale", of: |c| &mut c.logit_multiplier, absent: 1.0 },
];
