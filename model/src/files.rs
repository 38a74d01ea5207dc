//! What is read and written safely, whatever the files are of, and how it is told to people.

pub mod byte_size;
pub mod decimal;
pub mod digest;
pub mod mmap;
pub mod open_files;
pub mod partial_file;
pub(crate) mod python_json;
pub mod regular_file;
