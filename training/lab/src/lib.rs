//! Experiments for Hearth's recipes: data made for this project's own models, and a study of decoding methods.
//!
//! - [`tales`]: short stories and conversations, and a judge of the texts of models trained on them
//! - [`bilingual`]: sentences in English with translations into an invented language
//! - [`decoding`]: decoding methods compared with human text
//!
//! Users of Hearth need none of it; `training/recipes` and the guides on training do.

pub mod bilingual;
pub mod decoding;
mod draw;
pub mod tales;
