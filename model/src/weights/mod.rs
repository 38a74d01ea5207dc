//! Models as files: Hugging Face's format, read and written, and GGUF, read.

mod architectures;
mod fields;
mod files;
mod generation_config;
mod gguf;
mod hf;
mod layout;
mod loaded;
pub mod model_dir;
mod row_order;
mod staged_dir;

pub use architectures::known_architectures;
pub use files::DiskDtype;
pub use staged_dir::StagedDir;
