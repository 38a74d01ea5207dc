//! Models as files: Hugging Face's format, read and written, and GGUF, read.

mod architectures;
mod fields;
mod files;
mod generation_config;
mod gguf;
mod hf;
mod loaded;
pub mod model_dir;
mod row_order;

pub use architectures::known_architectures;
pub use files::DiskDtype;
