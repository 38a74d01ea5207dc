//! Models and adapters as files: Hugging Face's and PEFT's formats and GGUF, read and written, and checkpoints of other
//! training programs, read.

pub mod adapter;
mod architectures;
mod config_json;
mod dir_weights;
pub mod encoder_files;
mod file_names;
mod files;
mod generation_config;
mod ggml_types;
pub mod gguf;
mod hf_schema;
pub mod import;
mod larger_matrices;
mod loader;
pub mod model_dir;
mod opened_model;
mod own_classifier;
mod own_late;
mod own_pooling;
mod packed;
mod passed_over;
mod prediction_head;
pub mod repository;
mod row_order;
mod save;
mod save_dir;
mod staged_dir;
mod tensor_names;
mod tensor_table;

pub use architectures::known_architectures;
pub use files::DiskDtype;
pub use staged_dir::StagedDir;
