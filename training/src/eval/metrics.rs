//! Metrics of generated text against references: [`bleu`], [`chrf`] and [`ter`] as
//! [sacrebleu](https://github.com/mjpost/sacrebleu) defines them, with its signatures, and [`rouge_l`] as
//! [rouge-score](https://github.com/google-research/google-research/tree/master/rouge) does; [`exact_match`].
//!
//! A [`Corpus`] has a hypothesis and at least one reference per segment. Scores equal the originals' to the last bit or nearly so:
//! counts are the same integers, and floats are computed in the same order.

pub mod bleu;
pub mod chrf;
mod corpus;
pub mod exact_match;
mod ngrams;
pub mod rouge_l;
pub mod ter;
mod text;
mod tokenizer_13a;

pub use corpus::{Case, Corpus, Segment, SignedScore};
