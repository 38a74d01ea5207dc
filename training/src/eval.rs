//! Evaluation: of the validation split while training, and of any model afterwards.
//!
//! - [`score`]: the loss over a split, in windows side by side
//! - [`scorer`]: log-probabilities of given tokens, many texts per step; [`generation`]: generated texts, many per step
//! - [`sliding`]: windows over long texts; [`text_loss`](mod@text_loss): the loss over [`documents`]
//! - [`choices`]: multiple choice; [`translation`]: texts against references, by [`metrics`]
//! - [`classify`]: linear probes on embeddings; [`retrieval`]: search by embeddings
//! - [`jsonl`]: records of evaluation data; [`subsequence`]: the longest common subsequence

pub mod choices;
pub mod classify;
pub mod documents;
pub mod generation;
pub mod jsonl;
mod loss;
pub mod metrics;
mod packed;
pub mod retrieval;
pub mod scorer;
pub mod sliding;
pub mod subsequence;
pub mod text_loss;
pub mod translation;

pub use loss::{Score, Windows, score, score_in};
pub(crate) use loss::{read_floats, read_numbers};
