//! The choice of the next token: what a client asks for ([`SamplingParams`]), the chain of logits processors, the
//! [`Sampler`] that runs it for one sequence, its random stream, and log-probabilities.
//!
//! What may come in: anything from a row of logits to one token. Tensors stay outside: a row is a [`LogitRow`], and a
//! sampler says [what of it](RowNeeds) it needs.
//! The order of the chain is documented in one place, at [`Sampler`].

pub mod beam;
mod candidates;
mod chain;
mod logprobs;
mod params;
mod random;
mod row;
mod sampler;
mod select;

pub use self::{
    logprobs::{TokenLogprobs, token_logprobs},
    params::{ChainStep, Dry, Mirostat, MirostatVersion, SamplingParams, Xtc},
    random::{Purpose, RandomStream},
    row::{LogitRow, RowNeeds},
    sampler::Sampler,
};
