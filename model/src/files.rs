//! Reading and writing files safely, whatever they contain, and describing them in messages.

pub mod byte_size;
pub mod decimal;
pub mod digest;
pub mod mmap;
pub mod open_files;
pub mod partial_file;
pub(crate) mod python_json;
pub mod regular_file;
