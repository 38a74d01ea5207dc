//! What the fuzz targets call: the modules of `hearth-model` that read files and know no tensors, compiled from its
//! sources.
#![expect(dead_code, unused_imports, reason = "parts of another crate, not all of which are called here")]

// Relative to the folder of the model's sources.
#[path = "../../model/src"]
mod model {
    pub mod config;
    pub mod error;
    pub(crate) mod files {
        pub(crate) mod mmap;
        pub(crate) mod partial_file;
        pub(crate) mod python_json;
        pub(crate) mod regular_file;
    }
    pub(crate) mod gpt {
        pub mod param_specs;
    }
    pub mod ops {
        pub mod types {
            mod dtype;
            pub(crate) mod k_quants;
            mod matrix_rows;
            mod quantized_matrix;

            pub(crate) use dtype::BlockLayout;
            pub use dtype::{BLOCK_SIZE, Dtype};
            pub use matrix_rows::MatrixRows;
            pub use quantized_matrix::{QuantizedBlock, QuantizedMatrix};
        }

        pub use types::{BLOCK_SIZE, Dtype, MatrixRows, QuantizedBlock, QuantizedMatrix};
        pub(crate) use types::{BlockLayout, k_quants};

        // What the files want of the module that computes.
        pub fn nearest_q8(weights: &[f32; BLOCK_SIZE]) -> QuantizedBlock {
            let scale = weights.iter().fold(0.0_f32, |most, weight| most.max(weight.abs())) / 127.0;
            let values = weights.map(|weight| (weight / scale) as i8);
            QuantizedBlock { scale: half::f16::from_f32(scale), minimum: half::f16::ZERO, values }
        }
    }
    pub(crate) mod system {
        pub(crate) mod panics;
    }
    pub mod text {
        pub mod chat;
        pub mod tokenizer;
    }
    pub mod weights {
        mod architectures;
        mod config_json;
        mod files;
        mod ggml_types;
        // The parts of `weights::import` that use no tensors.
        pub mod import {
            mod pickle;
            mod tokenizers;
            mod torch_file;

            use std::path::Path;

            /// Reads a file of `torch.save` with all its tensors, and a pickled tokenizer.
            pub fn read(bytes: &[u8]) {
                drop(tokenizers::parse_tokenizer(bytes));
                let Ok(file) = torch_file::TorchFile::read(bytes, Path::new("ckpt.pt")) else { return };
                let root = file.root();
                drop(root.to_map());
                for state in [Some(root), root.get("model")].into_iter().flatten() {
                    for tensor in file.tensors(state).into_iter().flatten() {
                        if let super::tensor_table::ValueKind::Weights(element) = tensor.kind {
                            assert_eq!(tensor.bytes.len(), element.bytes_of(tensor.shape.iter().product()));
                        }
                    }
                }
            }
        }
        mod file_names;
        mod packed;
        mod passed_over;
        mod row_order;
        mod staged_dir;
        mod tensor_names;
        mod tensor_table;

        // The parts of `weights::gguf` that use no tensors.
        pub mod gguf {
            mod architectures;
            mod config_rows;
            mod description;
            mod encoders;
            mod expert_rows;
            mod header;
            mod latent;
            mod layer_rows;
            mod mamba;
            mod mixtures;
            mod names;
            mod pre_tokenizers;
            mod recurrent;
            mod tokenizer;
            mod word_piece;

            use std::path::Path;

            use crate::{
                ops::{QuantizedBlock, k_quants::KBlock},
                text::tokenizer::EncodeOptions,
            };

            /// Reads the front of a GGUF file, every tensor's values and, where there is one, the tokenizer.
            pub fn read(bytes: &[u8]) {
                let Ok(file) = header::Header::parse(bytes, Path::new("model.gguf")) else { return };
                for tensor in &file.tensors {
                    let n_values: usize = tensor.shape.iter().product();
                    let Ok(element) = tensor.element() else { unreachable!("GGUF files hold weights") };
                    assert_eq!(tensor.bytes.len(), element.bytes_of(n_values));
                    let Ok(values) = tensor.to_f32() else { unreachable!("GGUF files hold weights") };
                    let is_finite = values.iter().all(|value| value.is_finite());
                    assert_eq!(element.is_finite(tensor.bytes), is_finite);
                    let dtype = element.dtype();
                    if dtype.is_quantized() {
                        let mut blocks = vec![QuantizedBlock::default(); n_values / 32];
                        element.small_blocks(tensor.bytes, dtype.stored_as(), &mut blocks);
                    }
                    if dtype.has_super_blocks() {
                        let mut blocks = vec![KBlock::default(); n_values / 256];
                        element.k_blocks(tensor.bytes, &mut blocks);
                    }
                }
                if let Ok(Some(name)) = file.metadata.text("general.architecture") {
                    drop(architectures::named(name).map(|gguf| gguf.name));
                }
                let Ok(vocabulary) = tokenizer::read(&file.metadata) else { return };
                assert!(vocabulary.eos_token_ids.iter().all(|id| (*id as usize) < vocabulary.tokenizer.vocab_size()));
                if let Ok(ids) = vocabulary.tokenizer.encode("Once upon a time, 3 naïve 猫s\n", EncodeOptions::PROMPT)
                {
                    drop(vocabulary.tokenizer.decode(&ids, Default::default()));
                }
            }
        }

        use std::path::Path;

        use serde_json::{Map, Value};

        use crate::config::GptConfig;

        /// Opens a weights file and reads every tensor in it.
        pub fn read_weights(bytes: &'static [u8]) {
            let Ok(files) = files::TensorFiles::embedded(Path::new("model.safetensors"), bytes) else { return };
            for method in [
                packed::Method::CompressedTensors(packed::described::Stated {
                    block: None,
                    has_zeros: false,
                    has_order: false,
                }),
                packed::Method::Gptq { bits: 4, added: 1, has_order: false },
                packed::Method::Awq,
                packed::Method::Fp8 { block: None },
                packed::Method::BitsAndBytes,
            ] {
                let Ok(mut table) = files.table() else { return };
                for matrix in packed::fold(&mut table, method).into_iter().flatten().map(|(_, matrix)| matrix) {
                    let [n_rows, d_in] = matrix.dims();
                    let mut values = vec![0.0; d_in];
                    for row in [0, n_rows - 1] {
                        matrix.decode(row, &mut values);
                        if let Some(layout) = matrix.layout() {
                            assert!(layout.n_runs > 0);
                            matrix.runs(row, &mut vec![crate::ops::k_quants::GroupRun::default(); d_in / 32]);
                        }
                    }
                }
            }
            let Ok(table) = files.table() else { return };
            for tensor in table.iter() {
                if let (Ok(element), Ok(values)) = (tensor.element(), tensor.to_f32()) {
                    let is_finite = values.iter().all(|value| value.is_finite());
                    assert_eq!(element.is_finite(tensor.bytes), is_finite);
                }
            }
        }

        /// Reads a `config.json` as each class, and by our own names. What a class reads and accepts it must be able to
        /// count, and what it writes of it must read back as the same.
        pub fn read_config(json: &Map<String, Value>) {
            let path = Path::new("config.json");
            for class in architectures::architectures() {
                let Ok(config) = class.read(&config_json::Fields::new(json, path)) else { continue };
                if config.validate().is_err() {
                    continue;
                }
                assert!(config.n_params() > 0, "{config:?}");
                if let Some(written) = class.write(&config) {
                    let read = class.read(&config_json::Fields::new(&written, path)).map_err(|error| error.to_string());
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

pub use model::{config, error, ops, text, weights};
pub(crate) use model::{files, gpt, system};

/// As in `hearth-model`.
pub type TokenId = u32;
