//! Sliding windows, in the keys of the classes.

use serde_json::{Map, Value, json};

use super::super::config_json::Fields;
use crate::{config::GptConfig, error::Result};

pub(super) const WINDOW: &str = "sliding_window";
const USED: &str = "use_sliding_window";
const FULL_LAYERS: &str = "max_window_layers";
const LAYER_TYPES: &str = "layer_types";
const PERIOD: &str = "sliding_window_pattern";
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// How a class states the sliding window, and the layers that have it.
pub(in super::super) enum WindowKeys {
    /// The class has no windows.
    None,
    /// One window for all layers; `null` means none.
    All {
        /// The default if the key is absent.
        absent: Option<usize>,
    },
    /// One window for all layers, if `use_sliding_window`.
    Used,
    /// A window for the layers from `max_window_layers` on. Newer files list the layers' kinds.
    From {
        /// The default of `max_window_layers`.
        absent: usize,
        /// Whether `use_sliding_window` must be set for it.
        is_flagged: bool,
    },
    /// A window for every second layer, the first included, before `max_window_layers`, if `use_sliding_window`. Newer files list
    /// the layers' kinds.
    Alternating {
        /// `max_window_layers` where it is not there.
        absent: usize,
    },
    /// A window for the layers without rotary positions, if `use_sliding_window`. Files may list the layers' kinds.
    Unrotated,
    /// A window for all layers except one in each `period`. Newer files list the layers' kinds.
    Periodic {
        /// The period, where the file does not have it.
        period: usize,
        /// The first layer that sees everything, counted from 1; 0: the last layer sees everything.
        first: usize,
        /// The window where the file does not have the key.
        absent: usize,
        /// Whether the file may have the period, as `sliding_window_pattern`.
        has_key: bool,
    },
}

pub(in super::super) const NONE: WindowKeys = WindowKeys::None;
pub(in super::super) const MISTRAL: WindowKeys = WindowKeys::All { absent: Some(USUAL) };
pub(in super::super) const PHI3: WindowKeys = WindowKeys::All { absent: None };
pub(in super::super) const QWEN3_MOE: WindowKeys = WindowKeys::Used;
pub(in super::super) const QWEN: WindowKeys = WindowKeys::From { absent: 28, is_flagged: true };
pub(in super::super) const QWEN2_MOE: WindowKeys = WindowKeys::Alternating { absent: 28 };
pub(in super::super) const DOTS1: WindowKeys = WindowKeys::From { absent: 62, is_flagged: false };
pub(in super::super) const OLMO3: WindowKeys = periodic(4, false);
pub(in super::super) const GEMMA2: WindowKeys = periodic(2, false);
pub(in super::super) const GEMMA3: WindowKeys = periodic(6, true);
pub(in super::super) const GEMMA4: WindowKeys =
    WindowKeys::Periodic { period: 6, first: 6, absent: 512, has_key: false };
pub(in super::super) const COHERE2: WindowKeys = periodic(4, true);
pub(in super::super) const EXAONE4: WindowKeys = periodic(4, true);
pub(super) const AFMOE: WindowKeys = WindowKeys::Periodic { period: 4, first: 4, absent: 1024, has_key: false };
/// No layer has the window, unless the file lists them.
pub(super) const MELLUM: WindowKeys = WindowKeys::Periodic { period: 1, first: 1, absent: 1024, has_key: false };
/// All layers have the window, unless the file lists them.
pub(in super::super) const MINISTRAL: WindowKeys = periodic(usize::MAX, false);
pub(in super::super) const CWM: WindowKeys = WindowKeys::Periodic { period: 4, first: 1, absent: 8192, has_key: false };
pub(in super::super) const GPT_OSS: WindowKeys =
    WindowKeys::Periodic { period: 2, first: 2, absent: 128, has_key: false };
pub(in super::super) const MUSE_GLIMMER: WindowKeys =
    WindowKeys::Periodic { period: 4, first: 0, absent: 2048, has_key: false };
pub(in super::super) const SMOLLM3: WindowKeys = WindowKeys::Unrotated;

/// The window of most classes if the key is absent.
const USUAL: usize = 4096;

/// The last layer of each period sees everything.
const fn periodic(period: usize, has_key: bool) -> WindowKeys {
    WindowKeys::Periodic { period, first: period, absent: USUAL, has_key }
}

/// Sets the window, and the layers without it. If no layer has it, there is no window.
pub(in super::super) fn set(config: &mut GptConfig, window: Option<usize>, full_layers: Vec<usize>) {
    let windowed = window.is_some() && full_layers.len() < config.n_layers;
    config.sliding_window = window.filter(|_| windowed);
    config.full_layers = if windowed { full_layers } else { Vec::new() };
}

/// The layers without the window: from the list of layer types, otherwise the first of each `key`.
pub(super) fn listed_or_every(fields: &Fields<'_>, n_layers: usize, key: &str, absent: usize) -> Result<Vec<usize>> {
    if fields.get(LAYER_TYPES).is_some() {
        return GEMMA3.listed(fields, Some(1), n_layers);
    }
    // The size is not validated yet: this limits the list.
    let layers = 0..n_layers.min(crate::config::MAX_LAYERS + 1);
    match fields.size_or(key, absent)? {
        0 => Err(fields.unsupported(key, &json!(0), "1 and above")),
        period => Ok(layers.filter(|layer| layer.is_multiple_of(period)).collect()),
    }
}

/// Writes the list of the layers' kinds.
pub(super) fn write_kinds(config: &GptConfig, written: &mut Map<String, Value>) {
    written.insert(LAYER_TYPES.to_owned(), kinds(config));
}

/// A list per layer: bounded, as `validate` bounds the layers.
fn kinds(config: &GptConfig) -> Value {
    let kind = |layer| if config.window_of(layer).is_some() { SLIDING } else { FULL };
    json!((0..config.n_layers).map(kind).collect::<Vec<_>>())
}

impl WindowKeys {
    /// Sets the window, and the layers without it.
    pub(in super::super) fn read(&self, fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
        let refuse = |key: &str, supported: &str| {
            Err(fields.unsupported(key, fields.get(key).unwrap_or(&Value::Null), supported))
        };
        let n_layers = config.n_layers;
        let window = match *self {
            // With such a key, transformers computes without a window and still keeps only the window's keys and values
            // in a cache: its output depends on whether a cache is used.
            Self::None if fields.get(WINDOW).is_some() => return refuse(WINDOW, "null (this class has no window)"),
            Self::None => None,
            Self::All { absent } if !fields.has(WINDOW) => absent,
            Self::Used | Self::From { is_flagged: true, .. } | Self::Alternating { .. } | Self::Unrotated
                if !fields.flag_or(USED, false)? =>
            {
                None
            }
            Self::Used | Self::From { .. } | Self::Alternating { .. } if !fields.has(WINDOW) => Some(USUAL),
            Self::Periodic { absent, .. } if !fields.has(WINDOW) => Some(absent),
            _ => fields.size(WINDOW)?,
        };
        let full_layers = if fields.get(LAYER_TYPES).is_some() {
            self.listed(fields, window, n_layers)?
        } else {
            self.usual(fields, config)?
        };
        set(config, window, full_layers);
        Ok(())
    }

    /// The layers that see everything, by the list of the layers' kinds.
    fn listed(&self, fields: &Fields<'_>, window: Option<usize>, n_layers: usize) -> Result<Vec<usize>> {
        let types = fields.get(LAYER_TYPES).unwrap_or(&Value::Null);
        let refuse = |supported: &str| Err(fields.unsupported(LAYER_TYPES, types, supported));
        let Some(list) = types.as_array().filter(|list| list.len() == n_layers) else {
            return refuse(&format!("a list with an entry for each of the {n_layers} layers"));
        };
        if window.is_none() && list.iter().any(|kind| kind != FULL) {
            return refuse("\"full_attention\" for all layers, because there is no window");
        }
        if matches!(self, Self::All { .. } | Self::Used) && window.is_some() && list.iter().any(|kind| kind != SLIDING)
        {
            return refuse("\"sliding_attention\" for all layers");
        }
        if list.iter().any(|kind| kind != FULL && kind != SLIDING) {
            return refuse("\"full_attention\" or \"sliding_attention\" for each layer");
        }
        Ok((0..n_layers).filter(|&layer| list[layer] == FULL).collect())
    }

    /// The layers without the window, if the file has no list.
    fn usual(&self, fields: &Fields<'_>, config: &GptConfig) -> Result<Vec<usize>> {
        // The size is not validated yet: this limits the list.
        let layers = 0..config.n_layers.min(crate::config::MAX_LAYERS + 1);
        Ok(match *self {
            Self::None | Self::All { .. } | Self::Used => Vec::new(),
            Self::From { absent, .. } => {
                let n_full = fields.size_or(FULL_LAYERS, absent)?;
                layers.filter(|&layer| layer < n_full).collect()
            }
            Self::Alternating { absent } => {
                let end = fields.size_or(FULL_LAYERS, absent)?;
                layers.filter(|&layer| layer >= end || !layer.is_multiple_of(2)).collect()
            }
            Self::Unrotated => layers.filter(|layer| !config.unrotated_layers.contains(layer)).collect(),
            Self::Periodic { period: usual, first, has_key, .. } => {
                let period = if has_key { fields.size_or(PERIOD, usual)? } else { usual };
                let first = match first {
                    0 => config.n_layers,
                    first if first == usual => period,
                    first => first,
                };
                if period == 0 {
                    return Err(fields.unsupported(PERIOD, &json!(0), "1 and above"));
                }
                layers.filter(|layer| (layer + 1) % period == first % period).collect()
            }
        })
    }

    pub(in super::super) fn write(&self, config: &GptConfig, written: &mut Map<String, Value>) {
        let mut write = |key: &str, value: Value| written.insert(key.to_owned(), value);
        let windowed = config.sliding_window.is_some();
        let kinds = || kinds(config);
        match self {
            Self::None => {}
            Self::All { .. } => drop(write(WINDOW, json!(config.sliding_window))),
            Self::Used => {
                write(USED, json!(windowed));
                write(WINDOW, json!(config.sliding_window));
            }
            Self::From { is_flagged, .. } => {
                if *is_flagged {
                    write(USED, json!(windowed));
                }
                write(WINDOW, json!(config.sliding_window));
                let n_full = if windowed { config.full_layers.len() } else { config.n_layers };
                write(FULL_LAYERS, json!(n_full));
                write(LAYER_TYPES, kinds());
            }
            Self::Alternating { .. } | Self::Unrotated => {
                write(USED, json!(windowed));
                write(WINDOW, json!(config.sliding_window));
                write(LAYER_TYPES, kinds());
            }
            Self::Periodic { .. } => {
                // Transformers requires a window, even if no layer has it.
                write(WINDOW, json!(config.sliding_window.unwrap_or(USUAL)));
                write(LAYER_TYPES, kinds());
            }
        }
    }
}
