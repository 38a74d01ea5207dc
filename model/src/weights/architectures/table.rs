//! The rows of the table of architectures, one for each Hugging Face class: a list for each family.

mod encoders;
mod experts;
mod gemma;
mod gpt;
mod latent;
mod llama;
mod mamba;
mod norms;
mod recurrent;
mod seq2seq;
mod variants;

use super::Architecture;

/// A configuration that several classes can express is saved as the first of these classes.
const FAMILIES: &[&[Architecture]] = &[
    gpt::ROWS,
    llama::ROWS,
    gemma::ROWS,
    norms::ROWS,
    variants::ROWS,
    experts::ROWS,
    recurrent::ROWS,
    mamba::ROWS,
    latent::ROWS,
    encoders::ROWS,
    seq2seq::ROWS,
];

/// Every row of the table.
pub(in super::super) fn architectures() -> impl Iterator<Item = &'static Architecture> {
    FAMILIES.iter().copied().flatten()
}
