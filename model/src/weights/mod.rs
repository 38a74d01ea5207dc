//! Models as files: Hugging Face's format, read and written.

mod architectures;
mod fields;
mod files;
mod generation_config;
mod hf;
pub mod model_dir;

pub use architectures::known_architectures;
pub use files::DiskDtype;
