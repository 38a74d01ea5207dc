//! One key of `config.json`, and the field of [`GptConfig`] that it sets: the same row reads it and writes it.

use serde_json::{Map, Value, json};

use super::{
    super::config_json::Fields,
    rope::RopeKeys,
    window::{WINDOW, WindowKeys},
};
use crate::{
    config::{Activation, GptConfig, MAX_LAYERS},
    error::Result,
};

/// A field of the configuration, to be read or set.
type Of<T> = fn(&mut GptConfig) -> &mut T;

const KV_HEADS: &str = "num_key_value_heads";

/// How a key of `config.json` maps to the configuration.
pub(in super::super) enum ConfigRow {
    /// A size, under any of these names; the first is written. If it is absent or `null`, `absent` computes it from
    /// what was read before; without `absent` it is required.
    Size { keys: &'static [&'static str], of: Of<usize>, absent: Option<fn(&GptConfig) -> usize> },
    /// The number of key heads. If the key is `null`, the number of query heads; if the key is absent, `absent`.
    KvHeads { absent: usize },
    /// A size that sets a field through a function.
    Indirect { key: &'static str, absent: usize, set: fn(&mut GptConfig, usize), get: fn(&GptConfig) -> usize },
    /// A size for which the class has no key.
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
    /// Written, never read: a training setting of the class for which Hearth has no field.
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

/// An optional size.
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
    /// Sets the row's field in `config`.
    pub(in super::super) fn read(&self, fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
        match *self {
            Self::Size { keys, of, absent } => {
                let mut found = None;
                for key in keys {
                    let Some(size) = fields.size(key)? else { continue };
                    // Transformers reads one of two names, depending on the class.
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
            Self::Indirect { key, absent, set, .. } => set(config, fields.size_or(key, absent)?),
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
            | Self::Indirect { key: own, .. }
            | Self::Divisor { key: own, .. }
            | Self::Cap { key: own, .. }
            | Self::Flag { key: own, .. }
            | Self::Activation { key: own, .. } => *own == key,
            Self::KvHeads { .. } => key == KV_HEADS,
            Self::Derived { .. } | Self::Rope(_) | Self::Window(_) | Self::Constant { .. } => false,
        }
    }

    /// Writes `config` to `written`. It need not check that the class can express all of it: the result is read back
    /// and compared.
    pub(in super::super) fn write(&self, config: &GptConfig, written: &mut Map<String, Value>) {
        let mut config = config.clone();
        let (key, value) = match *self {
            Self::Size { keys: [key, ..], of, .. } => (*key, json!(of(&mut config))),
            Self::Size { .. } | Self::Derived { .. } => return,
            Self::KvHeads { .. } => (KV_HEADS, json!(config.n_kv_heads)),
            Self::Indirect { key, get, .. } => (key, json!(get(&config))),
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

/// The number near `guess` that `back` maps to exactly `value`, with as few digits as possible; `guess` if there is no
/// such number.
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
