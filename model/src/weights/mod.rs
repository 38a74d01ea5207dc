//! Models and adapters as files: Hugging Face's and PEFT's formats and GGUF, read and written, and checkpoints of other
//! training programs, read.

pub mod adapter;
mod architectures;
mod element_type;
mod fields;
mod files;
mod generation_config;
pub mod gguf;
mod hf;
pub mod import;
mod layout;
mod loaded;
mod loader;
pub mod model_dir;
mod own_pooling;
mod passed_over;
pub mod repository;
mod row_order;
mod save;
mod staged_dir;
mod tensor_names;
mod tensor_table;

pub use architectures::known_architectures;
pub use files::DiskDtype;
pub use staged_dir::StagedDir;
