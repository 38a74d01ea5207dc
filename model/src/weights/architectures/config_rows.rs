//! One key of `config.json`, and the field of [`GptConfig`] that it sets: the same row reads it and writes it.

use serde_json::{Map, Value, json};

use super::{
    super::config_json::{Fields, Fixed},
    rope::{LLAMA4_BETA, ORIGINAL_LENGTH, RopeKeys, nested_object},
    window::{self, WINDOW, WindowKeys},
};
use crate::{
    config::{Activation, GptConfig, MAX_LAYERS, NormPosition, Positions, QueryTemperature, Rope},
    error::Result,
};

/// A field of the configuration, to be read or set.
type Of<T> = fn(&mut GptConfig) -> &mut T;

const KV_HEADS: &str = "num_key_value_heads";

/// What a key of `config.json` sets.
pub(in super::super) enum ConfigRow {
    /// A size, under any of these names; the first is written. Where it is absent or `null` it follows from what was read
    /// before it; without such a rule it must be there.
    Size { keys: &'static [&'static str], of: Of<usize>, absent: Option<fn(&GptConfig) -> usize> },
    /// The number of key heads. Where the key is `null`, that of the query heads; where the file does not have the key,
    /// `absent`.
    KvHeads { absent: usize },
    /// A size that the class has no key for.
    Derived { of: Of<usize>, from: fn(&GptConfig) -> usize },
    /// A number.
    Number { key: &'static str, of: Of<f64>, absent: f64 },
    /// A number that divides where ours multiplies.
    Divisor { key: &'static str, of: Of<f64>, absent: f64 },
    /// A number or `null`. Where the file does not have the key, `absent`.
    Cap { key: &'static str, of: Of<Option<f64>>, absent: Option<f64> },
    /// True or false.
    Flag { key: &'static str, of: Of<bool>, absent: bool },
    /// The nonlinearity, by the class's names; the first name of each is written.
    Activation { key: &'static str, names: &'static [(&'static str, Activation)], absent: &'static str },
    /// Rotary positions.
    Rope(&'static RopeKeys),
    /// The sliding window.
    Window(&'static WindowKeys),
    /// Written, never read: part of the class's training that Hearth has no field for.
    Constant { key: &'static str, value: f64 },
    /// Keys that only one class has.
    Custom {
        /// Every key that it reads.
        keys: &'static [&'static str],
        read: fn(&Fields<'_>, &mut GptConfig) -> Result<()>,
        write: fn(&GptConfig, &mut Map<String, Value>),
    },
}

/// A size that must be there.
pub(in super::super) const fn size(keys: &'static [&'static str], of: Of<usize>) -> ConfigRow {
    ConfigRow::Size { keys, of, absent: None }
}

/// A size that may be left out.
pub(in super::super) const fn size_or(
    keys: &'static [&'static str],
    of: Of<usize>,
    absent: fn(&GptConfig) -> usize,
) -> ConfigRow {
    ConfigRow::Size { keys, of, absent: Some(absent) }
}

pub(in super::super) const fn derived(of: Of<usize>, from: fn(&GptConfig) -> usize) -> ConfigRow {
    ConfigRow::Derived { of, from }
}

pub(in super::super) const fn kv_heads(absent: usize) -> ConfigRow {
    ConfigRow::KvHeads { absent }
}

/// The class has no grouped heads.
pub(in super::super) const fn one_kv_head_each() -> ConfigRow {
    derived(|c| &mut c.n_kv_heads, |c| c.n_heads)
}

pub(in super::super) const fn number(key: &'static str, of: Of<f64>, absent: f64) -> ConfigRow {
    ConfigRow::Number { key, of, absent }
}

pub(in super::super) const fn flag(key: &'static str, of: Of<bool>, absent: bool) -> ConfigRow {
    ConfigRow::Flag { key, of, absent }
}

pub(in super::super) const fn constant(key: &'static str, value: f64) -> ConfigRow {
    ConfigRow::Constant { key, value }
}

/// The width of a head where the file does not give it.
pub(in super::super) fn head_dim(config: &GptConfig) -> usize {
    config.d_model / config.n_heads.max(1)
}

impl ConfigRow {
    /// Sets what the row is about in `config`.
    pub(in super::super) fn read(&self, fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
        match *self {
            Self::Size { keys, of, absent } => {
                let mut found = None;
                for key in keys {
                    let Some(size) = fields.size(key)? else { continue };
                    // Transformers takes one of two names, which of them depends on the class.
                    match found {
                        Some(first) if first != size => {
                            return Err(fields.unsupported(key, &json!(size), &format!("{first}, as `{}`", keys[0])));
                        }
                        _ => found = Some(size),
                    }
                }
                *of(config) = match (found, absent) {
                    (Some(size), _) => size,
                    (None, Some(absent)) => absent(config),
                    (None, None) => return Err(fields.missing(keys)),
                };
            }
            Self::KvHeads { absent } => {
                let absent = if fields.has(KV_HEADS) { config.n_heads } else { absent };
                config.n_kv_heads = fields.size_or(KV_HEADS, absent)?;
            }
            Self::Derived { of, from } => *of(config) = from(config),
            Self::Number { key, of, absent } => *of(config) = fields.number_or(key, absent)?,
            Self::Divisor { key, of, absent } => *of(config) = fields.number_or(key, absent)?.recip(),
            Self::Cap { key, of, absent } => {
                *of(config) = if fields.has(key) { fields.number_if_any(key)? } else { absent };
            }
            Self::Flag { key, of, absent } => *of(config) = fields.flag_or(key, absent)?,
            Self::Activation { key, names, absent } => {
                let found = fields.text_or(key, absent)?;
                let known = names.iter().find(|(name, _)| *name == found);
                config.activation = known.map(|(_, activation)| *activation).ok_or_else(|| {
                    let names: Vec<_> = names.iter().map(|(name, _)| format!("\"{name}\"")).collect();
                    fields.unsupported(key, &json!(found), &names.join(", "))
                })?;
            }
            Self::Rope(keys) => keys.read(fields, config)?,
            Self::Window(keys) => keys.read(fields, config)?,
            Self::Constant { .. } => {}
            Self::Custom { read, .. } => read(fields, config)?,
        }
        Ok(())
    }

    /// Whether the row itself reads `key`, not through the keys of rotary positions or windows.
    pub(in super::super) fn reads(&self, key: &str) -> bool {
        match self {
            Self::Size { keys, .. } | Self::Custom { keys, .. } => keys.contains(&key),
            Self::Number { key: own, .. }
            | Self::Divisor { key: own, .. }
            | Self::Cap { key: own, .. }
            | Self::Flag { key: own, .. }
            | Self::Activation { key: own, .. } => *own == key,
            Self::KvHeads { .. } => key == KV_HEADS,
            Self::Derived { .. } | Self::Rope(_) | Self::Window(_) | Self::Constant { .. } => false,
        }
    }

    /// Puts what `config` says into `written`. It need not check that the class can say it all: what is written is read
    /// back and compared.
    pub(in super::super) fn write(&self, config: &GptConfig, written: &mut Map<String, Value>) {
        let mut config = config.clone();
        let (key, value) = match *self {
            Self::Size { keys: [key, ..], of, .. } => (*key, json!(of(&mut config))),
            Self::Size { .. } | Self::Derived { .. } => return,
            Self::KvHeads { .. } => (KV_HEADS, json!(config.n_kv_heads)),
            Self::Number { key, of, .. } => (key, json!(of(&mut config))),
            Self::Divisor { key, of, .. } => (key, inverse(*of(&mut config), f64::recip, f64::recip)),
            Self::Cap { key, of, .. } => (key, json!(of(&mut config))),
            Self::Flag { key, of, .. } => (key, json!(of(&mut config))),
            Self::Activation { key, names, .. } => {
                let name = names.iter().find(|(_, activation)| *activation == config.activation);
                (key, json!(name.map(|(name, _)| name)))
            }
            Self::Rope(keys) => return keys.write(&config, written),
            Self::Window(keys) => return keys.write(&config, written),
            Self::Constant { key, value } => (key, json!(value)),
            Self::Custom { write, .. } => return write(&config, written),
        };
        written.insert(key.to_owned(), value);
    }
}

/// `forth(value)`, rounded to a whole number if `back` maps the rounded number to exactly `value`.
fn inverse(value: f64, forth: fn(f64) -> f64, back: fn(f64) -> f64) -> Value {
    let exact = forth(value);
    let whole = exact.round();
    if back(whole) == value && (1.0..1e15).contains(&whole) { json!(whole as u64) } else { json!(exact) }
}

/// A row for keys that only one class has.
pub(in super::super) const fn custom(
    keys: &'static [&'static str],
    read: fn(&Fields<'_>, &mut GptConfig) -> Result<()>,
    write: fn(&GptConfig, &mut Map<String, Value>),
) -> ConfigRow {
    ConfigRow::Custom { keys, read, write }
}

/// Granite's scale of the scores.
pub(in super::super) const GRANITE_ATTENTION: ConfigRow = ConfigRow::Custom {
    keys: &["attention_multiplier"],
    read: |fields, config| {
        set_score_scale(config, fields.number_or("attention_multiplier", 1.0)?);
        Ok(())
    },
    write: |config, written| {
        written.insert("attention_multiplier".to_owned(), json!(config.score_scale()));
    },
};

/// Gemma's scale of the scores: the root of this divides them.
pub(in super::super) const GEMMA_ATTENTION: ConfigRow = ConfigRow::Custom {
    keys: &["query_pre_attn_scalar"],
    read: |fields, config| {
        set_score_scale(config, inverse_root(fields.number_or("query_pre_attn_scalar", 256.0)?));
        Ok(())
    },
    write: |config, written| {
        let scalar = inverse(config.score_scale(), |scale| scale.powi(-2), inverse_root);
        written.insert("query_pre_attn_scalar".to_owned(), scalar);
    },
};

pub(in super::super) fn inverse_root(value: f64) -> f64 {
    value.sqrt().recip()
}

pub(in super::super) fn set_score_scale(config: &mut GptConfig, scale: f64) {
    config.attention_scale = None;
    if scale != config.score_scale() {
        config.attention_scale = Some(scale);
    }
}

/// The layers that do not rotate: the zeros of a list, or every n-th.
pub(in super::super) const NO_ROPE_LAYERS: ConfigRow = ConfigRow::Custom {
    keys: &["no_rope_layers", "no_rope_layer_interval"],
    read: |fields, config| {
        // The size is not validated yet: this limits the list.
        let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
        // As in transformers, there may be more flags than layers.
        config.unrotated_layers = match fields.layer_flags("no_rope_layers", config.n_layers)? {
            Some(rotates) => layers.filter(|&layer| !rotates[layer]).collect(),
            None => match fields.size_or("no_rope_layer_interval", 4)? {
                0 => return Err(fields.unsupported("no_rope_layer_interval", &json!(0), "1 and above")),
                interval => layers.filter(|layer| (layer + 1).is_multiple_of(interval)).collect(),
            },
        };
        Ok(())
    },
    write: |config, written| {
        let rotates = |layer| u8::from(!config.unrotated_layers.contains(&layer));
        written.insert("no_rope_layers".to_owned(), json!((0..config.n_layers).map(rotates).collect::<Vec<_>>()));
    },
};

/// The layers without the window do not rotate.
pub(in super::super) const ONLY_WINDOWS_ROTATE: ConfigRow = ConfigRow::Custom {
    keys: &[],
    read: |_, config| {
        let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
        config.unrotated_layers = layers.filter(|&layer| config.window_of(layer).is_none()).collect();
        Ok(())
    },
    write: |_, _| {},
};

/// As [`ONLY_WINDOWS_ROTATE`], if the file has a window. Without one, all layers rotate.
pub(in super::super) const EXAONE4_ROTATION: ConfigRow = custom(
    &[],
    |fields, config| {
        let has_window = fields.get(WINDOW).is_some() || !fields.has(WINDOW);
        let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
        let unrotated = layers.filter(|&layer| has_window && config.window_of(layer).is_none());
        config.unrotated_layers = unrotated.collect();
        Ok(())
    },
    |config, written| {
        if config.sliding_window.is_none() && config.unrotated_layers.is_empty() {
            written.insert(WINDOW.to_owned(), Value::Null);
        }
    },
);

/// Ministral 3 grows queries in steps of the original context's length. Both numbers are among those of the rotary positions.
pub(in super::super) const MINISTRAL3_TEMPERATURE: ConfigRow = custom(
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

/// GPT-Neo repeats lists of layers' kinds.
pub(in super::super) const GPT_NEO_WINDOWS: ConfigRow = custom(
    &["attention_types", "attention_layers", "window_size"],
    |fields, config| {
        let kinds = json!([[["global", "local"], 12]]);
        let types = fields.get("attention_types").unwrap_or(&kinds);
        let expanded = || -> Option<Vec<bool>> {
            let mut are_full = Vec::new();
            for item in types.as_array()? {
                let kind = |kind: &Value| match kind.as_str()? {
                    "global" => Some(true),
                    "local" => Some(false),
                    _ => None,
                };
                let kinds: Vec<bool> = item[0].as_array()?.iter().map(kind).collect::<Option<_>>()?;
                let n_times = usize::try_from(item[1].as_u64()?).ok()?;
                // The number of layers is not validated yet, and neither is this.
                are_full.extend(kinds.repeat(n_times.min(MAX_LAYERS + 1)).into_iter().take(MAX_LAYERS + 1));
            }
            Some(are_full)
        };
        let Some(are_full) = expanded().filter(|are_full| are_full.len() == config.n_layers) else {
            let supported = format!("lists of \"global\" or \"local\" for the {} layers", config.n_layers);
            return Err(fields.unsupported("attention_types", types, &supported));
        };
        let full_layers = (0..config.n_layers).filter(|&layer| are_full[layer]).collect();
        window::set(config, Some(fields.size_or("window_size", 256)?), full_layers);
        Ok(())
    },
    |config, written| {
        let kind = |layer| if config.window_of(layer).is_some() { "local" } else { "global" };
        let kinds: Vec<_> = (0..config.n_layers).map(kind).collect();
        written.insert("attention_types".to_owned(), json!([[kinds, 1]]));
        written.insert("attention_layers".to_owned(), json!(kinds));
        written.insert("window_size".to_owned(), json!(config.sliding_window.unwrap_or(256)));
    },
);

/// HyperCLOVA X may have norms after both parts besides, and scales scores as usual where the key is `null`.
pub(in super::super) const HYPERCLOVAX_NORMS: ConfigRow = custom(
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
pub(in super::super) const HYPERCLOVAX_ATTENTION: ConfigRow = custom(
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

/// CWM's class has no configuration without this token.
pub(in super::super) const CWM_BOS: ConfigRow = custom(
    &[],
    |_, _| Ok(()),
    |_, written| {
        written.insert("bos_token_id".to_owned(), json!(128_000));
    },
);

/// What Hunyuan's dense models share with those of experts. Their class normalizes queries and keys whatever `use_qk_norm` says.
pub(in super::super) const HUNYUAN_DENSE: ConfigRow = custom(
    &["use_qk_norm", "num_experts"],
    |fields, _| match fields.size_or("num_experts", 1)? {
        0 | 1 => Ok(()),
        _ => fields.only("num_experts", Fixed::Number(1.0)),
    },
    |_, _| {},
);

/// The number near `guess` that `back` maps to exactly `value`, with as few digits as possible; `guess` if there is none.
pub(in super::super) fn exact_inverse(value: f64, guess: f64, back: impl Fn(f64) -> f64) -> Value {
    let rounded = [0, 3, 6, 9, 12].map(|digits| {
        let unit = 10f64.powi(digits);
        (guess * unit).round() / unit
    });
    let exact = rounded.into_iter().chain([guess, guess.next_up(), guess.next_down()]).find(|&x| back(x) == value);
    match exact.unwrap_or(guess) {
        whole if whole.fract() == 0.0 && (1.0..1e15).contains(&whole) => json!(whole as u64),
        number => json!(number),
    }
}

/// GPT-J has no key for the rotary base, which is always 10,000.
pub(in super::super) const GPTJ_ROTARY_DIM: ConfigRow = ConfigRow::Custom {
    keys: &["rotary_dim"],
    read: |fields, config| {
        if fields.has("rotary_dim") && fields.get("rotary_dim").is_none() {
            return Err(fields.unsupported("rotary_dim", &Value::Null, "a whole number"));
        }
        let rotary_dim = fields.size_or("rotary_dim", 64)?;
        config.positions = Positions::Rope(Rope::new(10_000.0, rotary_dim));
        Ok(())
    },
    write: |config, written| {
        if let Positions::Rope(rope) = &config.positions {
            written.insert("rotary_dim".to_owned(), json!(rope.rotary_dim));
        }
    },
};

/// One key head or as many as queries.
pub(in super::super) const BIGCODE_KV_HEADS: ConfigRow = ConfigRow::Custom {
    keys: &["multi_query"],
    read: |fields, config| {
        config.n_kv_heads = if fields.flag_or("multi_query", true)? { 1 } else { config.n_heads };
        Ok(())
    },
    write: |config, written| {
        written.insert("multi_query".to_owned(), json!(config.n_kv_heads == 1));
    },
};

/// How Falcon's blocks are wired and how many key heads they have: `new_decoder_architecture` overrides what the others
/// say.
pub(in super::super) const FALCON_BLOCKS: ConfigRow = ConfigRow::Custom {
    keys: &[
        "new_decoder_architecture",
        "parallel_attn",
        "multi_query",
        "num_kv_heads",
        "n_head_kv",
        "num_ln_in_parallel_attn",
    ],
    read: |fields, config| {
        let is_new = fields.flag_or("new_decoder_architecture", false)?;
        let n_norms = fields.size("num_ln_in_parallel_attn")?;
        let is_known = matches!(n_norms, None | Some(1)) || (is_new && n_norms == Some(2));
        if !is_known {
            let supported = if is_new { "1 or 2" } else { "null or 1, with `new_decoder_architecture` false" };
            return Err(fields.unsupported("num_ln_in_parallel_attn", &json!(n_norms), supported));
        }
        if is_new {
            fields.only("parallel_attn", Fixed::Flag(true))?;
        }
        config.parallel_residual = is_new || fields.flag_or("parallel_attn", true)?;
        config.shared_norm = config.parallel_residual && !(is_new && n_norms != Some(1));
        let n_kv_heads = match fields.size("num_kv_heads")? {
            Some(n) => n,
            None => fields.size_or("n_head_kv", config.n_heads)?,
        };
        config.n_kv_heads = match () {
            () if is_new => n_kv_heads,
            () if fields.flag_or("multi_query", true)? => 1,
            // transformers only uses this number for its cache: the matrices have as many key heads as query heads.
            () => {
                fields.only("num_kv_heads", Fixed::Number(config.n_heads as f64))?;
                config.n_heads
            }
        };
        Ok(())
    },
    write: |config, written| {
        let mut write = |key: &str, value: Value| written.insert(key.to_owned(), value);
        let (n_heads, n_kv_heads) = (config.n_heads, config.n_kv_heads);
        let is_grouped = n_kv_heads != 1 && n_kv_heads != n_heads;
        let is_new = config.parallel_residual && (!config.shared_norm || is_grouped);
        write("new_decoder_architecture", json!(is_new));
        write("parallel_attn", json!(config.parallel_residual));
        write("multi_query", json!(n_kv_heads == 1));
        write("num_kv_heads", json!(n_kv_heads));
        write(
            "num_ln_in_parallel_attn",
            if is_new { json!(if config.shared_norm { 1 } else { 2 }) } else { Value::Null },
        );
    },
};

/// The nonlinearities by the names of most classes.
pub(in super::super) const ACTIVATIONS: &[(&str, Activation)] = &[
    ("relu", Activation::Relu),
    ("relu2", Activation::ReluSquared),
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

/// OPT's flag sets the position of the norms in blocks. Only with norms before is there a final norm.
pub(in super::super) const OPT_NORMS: ConfigRow = ConfigRow::Custom {
    keys: &["do_layer_norm_before", "_remove_final_layer_norm"],
    read: |fields, config| {
        let before = fields.flag_or("do_layer_norm_before", true)?;
        config.norm_position = if before { NormPosition::Pre } else { NormPosition::Post };
        config.final_norm = before && !fields.flag_or("_remove_final_layer_norm", false)?;
        Ok(())
    },
    write: |config, written| {
        let before = config.norm_position == NormPosition::Pre;
        written.insert("do_layer_norm_before".to_owned(), json!(before));
        written.insert("_remove_final_layer_norm".to_owned(), json!(before && !config.final_norm));
    },
};

/// One OPT model has narrower embeddings than blocks, with matrices in between, which is not supported. The other
/// models have this key too, with the width of the blocks.
pub(in super::super) const OPT_EMBEDDING_WIDTH: ConfigRow = ConfigRow::Custom {
    keys: &["word_embed_proj_dim"],
    read: |fields, config| match fields.size("word_embed_proj_dim")? {
        Some(width) if width != config.d_model => Err(fields.unsupported(
            "word_embed_proj_dim",
            &json!(width),
            &format!("{}, as `hidden_size`", config.d_model),
        )),
        _ => Ok(()),
    },
    write: |config, written| {
        written.insert("word_embed_proj_dim".to_owned(), json!(config.d_model));
    },
};

/// With these keys, transformers adds up BLOOM's products in slices, as in its training on several devices, and leaves out
/// two biases. That is rejected.
pub(in super::super) const BLOOM_SLICES: ConfigRow = ConfigRow::Custom {
    keys: &["pretraining_tp", "slow_but_exact"],
    read: |fields, _| match fields.size_or("pretraining_tp", 1)? {
        0 | 1 => Ok(()),
        _ => fields.only("slow_but_exact", Fixed::Flag(false)),
    },
    write: |_, _| {},
};

/// CTRL's key is for the last norm alone; those of the blocks have a constant of their own.
pub(in super::super) const CTRL_FINAL_NORM_EPS: ConfigRow = ConfigRow::Custom {
    keys: &["layer_norm_epsilon"],
    read: |fields, config| {
        let eps = fields.number_or("layer_norm_epsilon", config.norm_eps)?;
        config.final_norm_eps = (eps != config.norm_eps).then_some(eps);
        Ok(())
    },
    write: |config, written| {
        let eps = config.final_norm_eps.unwrap_or(config.norm_eps);
        written.insert("layer_norm_epsilon".to_owned(), json!(eps));
    },
};

/// Positions begin behind the padding token's id, 1, so files have two more of them than a text can have.
pub(in super::super) const POSITIONS_BEHIND_PADDING: ConfigRow = custom(
    &["max_position_embeddings"],
    |fields, config| match config.max_seq_len.checked_sub(2) {
        Some(max_seq_len) => {
            config.max_seq_len = max_seq_len;
            Ok(())
        }
        None => Err(fields.unsupported("max_position_embeddings", &json!(config.max_seq_len), "3 and above")),
    },
    |config, written| {
        written.insert("max_position_embeddings".to_owned(), json!(config.max_seq_len.saturating_add(2)));
        written.insert("pad_token_id".to_owned(), json!(1));
    },
);

/// The windows of ModernBERT's layers extend to half of their width on each side; every n-th layer has none.
pub(in super::super) const MODERN_BERT_WINDOW: ConfigRow = custom(
    &["local_attention", "global_attn_every_n_layers", "layer_types"],
    |fields, config| {
        let width = fields.size_or("local_attention", 128)?;
        let full_layers = window::listed_or_every(fields, config.n_layers, "global_attn_every_n_layers", 3)?;
        window::set(config, Some(width / 2 + 1), full_layers);
        Ok(())
    },
    |config, written| {
        let width = config.sliding_window.map_or(128, |window| 2 * window.saturating_sub(1));
        written.insert("local_attention".to_owned(), json!(width));
        window::write_kinds(config, written);
    },
);
