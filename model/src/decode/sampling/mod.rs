//! Sampling of the next token: parameters ([`SamplingParams`]), the chain of logits processors and the [`Sampler`] that
//! runs it for one sequence, its random stream, and log-probabilities.
//!
//! Scope: from a row of logits to one token, without tensors. A row is a [`LogitRow`], and a sampler declares [which
//! part](LogitDemand) of it it needs. The order of the chain is documented at [`Sampler`].

pub mod beam;
mod candidates;
mod chain;
mod logprobs;
mod params;
mod random;
mod row;
mod sampler;
mod select;

pub(crate) use logprobs::{entropy, logprob};

pub use self::{
    logprobs::{TokenLogprobs, logprobs_of, token_logprobs},
    params::{AdaptiveP, ChainStep, Dry, Mirostat, MirostatVersion, SamplingParams, Smoothing, Xtc},
    random::{Purpose, RandomStream},
    row::{LogitDemand, LogitRow},
    sampler::Sampler,
};
