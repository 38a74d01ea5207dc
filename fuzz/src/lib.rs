//! What the fuzz targets call: the modules of `hearth-model` that read files and know no tensors, compiled from its
//! sources.
#![expect(dead_code, reason = "parts of another crate, not all of which are called here")]

// Relative to the folder of the model's sources.
#[path = "../../model/src"]
mod model {
    pub mod chat;
    pub mod config;
    pub mod error;
    pub(crate) mod mmap;
    pub mod param_specs;
    pub(crate) mod regular_file;
    pub mod tokenizer;
    pub mod weights {
        mod architectures;
        mod fields;
        mod files;

        // What the table wants of the module that turns tensors into parameters.
        mod hf {
            pub(super) const OWN_CLASS: &str = "HearthForCausalLM";
        }

        use std::path::Path;

        use serde_json::{Map, Value};

        use crate::config::GptConfig;

        /// Opens a weights file and reads every tensor in it.
        pub fn read_weights(bytes: &'static [u8]) {
            let Ok(files) = files::TensorFiles::embedded(Path::new("model.safetensors"), bytes) else { return };
            for tensor in files.names().filter_map(|name| files.get(name)) {
                if let Ok(values) = tensor.to_f32() {
                    assert_eq!(values.len(), tensor.shape.iter().product::<usize>());
                }
            }
        }

        /// Reads a `config.json` as each class, and by our own names. What a class reads and accepts it must be able to
        /// count, and what it writes of it must read back as the same.
        pub fn read_config(json: &Map<String, Value>) {
            let path = Path::new("config.json");
            for class in architectures::ARCHITECTURES {
                let Ok(config) = class.read(&fields::Fields::new(json, path)) else { continue };
                if config.validate().is_err() {
                    continue;
                }
                assert!(config.n_params() > 0, "{config:?}");
                if let Some(written) = class.write(&config) {
                    let read = class.read(&fields::Fields::new(&written, path)).map_err(|error| error.to_string());
                    assert_eq!(read.map(without_dropout), Ok(without_dropout(config)), "{}", class.class);
                }
            }
            if let Ok(config) = serde_json::from_value::<GptConfig>(Value::Object(json.clone())) {
                drop(config.validate());
            }
        }

        fn without_dropout(config: GptConfig) -> GptConfig {
            GptConfig { dropout: 0.0, ..config }
        }
    }
}

pub use model::{chat, config, error, tokenizer, weights};
pub(crate) use model::{mmap, param_specs, regular_file};

/// As in `hearth-model`.
pub type TokenId = u32;
