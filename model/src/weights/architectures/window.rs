//! Sliding windows, as the classes spell them.

use serde_json::{Map, Value, json};

use super::super::fields::Fields;
use crate::{config::GptConfig, error::Result};

const WINDOW: &str = "sliding_window";
const USED: &str = "use_sliding_window";
const FULL_LAYERS: &str = "max_window_layers";
const LAYER_TYPES: &str = "layer_types";

/// How a class says which layers see how far.
pub(super) enum WindowSpelling {
    /// The class has no windows.
    None,
    /// One window for all layers; `null` for none.
    All {
        /// Where the key is not there at all.
        absent: Option<usize>,
    },
    /// A window for the layers from `max_window_layers` on, if `use_sliding_window`. Newer files list the layers' kinds.
    From {
        /// `max_window_layers` where it is not there.
        absent: usize,
    },
}

pub(super) const NONE: WindowSpelling = WindowSpelling::None;
pub(super) const MISTRAL: WindowSpelling = WindowSpelling::All { absent: Some(4096) };
pub(super) const PHI3: WindowSpelling = WindowSpelling::All { absent: None };
pub(super) const QWEN: WindowSpelling = WindowSpelling::From { absent: 28 };

impl WindowSpelling {
    /// The window of every layer. Windows on some layers only are refused.
    pub(super) fn read(&self, fields: &Fields<'_>, n_layers: usize) -> Result<Option<usize>> {
        let refuse = |key: &str, supported: &str| {
            Err(fields.unsupported(key, fields.get(key).unwrap_or(&Value::Null), supported))
        };
        let window = match *self {
            Self::None if fields.get(WINDOW).is_some() => return refuse(WINDOW, "null, this class has no window"),
            Self::None => None,
            Self::All { absent } if !fields.has(WINDOW) => absent,
            Self::All { .. } => fields.size(WINDOW)?,
            Self::From { .. } if !fields.flag_or(USED, false)? => None,
            Self::From { .. } if !fields.has(WINDOW) => Some(4096),
            Self::From { .. } => fields.size(WINDOW)?,
        };
        let Some(types) = fields.get(LAYER_TYPES) else {
            let Self::From { absent } = *self else { return Ok(window) };
            return match fields.size_or(FULL_LAYERS, absent)? {
                0 => Ok(window),
                n_full if n_full >= n_layers => Ok(None),
                _ if window.is_none() => Ok(None),
                _ => refuse(FULL_LAYERS, "0 (all layers have the window), or the number of layers (none has)"),
            };
        };
        if types.as_array().is_none_or(|types| types.len() != n_layers) {
            return refuse(LAYER_TYPES, &format!("a list with an entry for each of the {n_layers} layers"));
        }
        let all = |kind: &str| types.as_array().is_some_and(|types| types.iter().all(|found| found == kind));
        match window {
            None if all("full_attention") => Ok(None),
            Some(_) if all("sliding_attention") => Ok(window),
            // Qwen's window is for the layers that are listed as having it.
            Some(_) if matches!(self, Self::From { .. }) && all("full_attention") => Ok(None),
            None => refuse(LAYER_TYPES, "\"full_attention\" for all layers"),
            Some(_) => refuse(LAYER_TYPES, "\"sliding_attention\" for all layers"),
        }
    }

    pub(super) fn write(&self, config: &GptConfig, written: &mut Map<String, Value>) {
        let mut write = |key: &str, value: Value| written.insert(key.to_owned(), value);
        match self {
            Self::None => {}
            Self::All { .. } => drop(write(WINDOW, json!(config.sliding_window))),
            Self::From { .. } => {
                let windowed = config.sliding_window.is_some();
                let kind = if windowed { "sliding_attention" } else { "full_attention" };
                write(USED, json!(windowed));
                write(WINDOW, json!(config.sliding_window));
                write(FULL_LAYERS, json!(if windowed { 0 } else { config.n_layers }));
                // A list per layer: bounded, as `validate` bounds the layers.
                write(LAYER_TYPES, json!(vec![kind; config.n_layers]));
            }
        }
    }
}
