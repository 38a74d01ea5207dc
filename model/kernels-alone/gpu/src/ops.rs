pub mod cube;
pub mod types;

pub(crate) use types::*;
