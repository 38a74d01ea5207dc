//! What tokens before a beam's end do to its continuations.

use std::sync::Arc;

use super::super::{Sampler, SamplingParams};
use crate::{TokenId, error::Result};

/// Tokens that are excluded or penalized, as `transformers` does it under beam search: on the log-probabilities of a step, which are
/// not normalized again.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamRules {
    /// Neutral but for what [`of`](Self::of) takes.
    params: SamplingParams,
    /// Comes before the answers, and counts in penalties and repetitions.
    prompt: Arc<[TokenId]>,
}

impl BeamRules {
    /// `repetition_penalty`, `no_repeat_ngram_size` and `bad_words` of `params`. `None` if they change nothing.
    pub fn of(params: &SamplingParams, prompt: &Arc<[TokenId]>) -> Option<Self> {
        let neutral = SamplingParams::default();
        let params = SamplingParams {
            repetition_penalty: params.repetition_penalty,
            repeat_last_n: params.repeat_last_n,
            no_repeat_ngram_size: params.no_repeat_ngram_size,
            bad_words: params.bad_words.clone(),
            ..neutral.clone()
        };
        let acts = SamplingParams { repeat_last_n: None, ..params.clone() } != neutral;
        acts.then(|| Self { params, prompt: prompt.clone() })
    }

    /// The log-probabilities `[vocab_size]` of what may come after `output`; -infinity for what is excluded.
    ///
    /// # Errors
    /// [`Error::Param`](crate::Error::Param) if nothing is left.
    pub(super) fn applied(&self, output: &[TokenId], logprobs: &[f32]) -> Result<Vec<f32>> {
        let mut sampler = Sampler::sharing(self.params.clone(), 0, self.prompt.clone());
        output.iter().for_each(|&id| sampler.accept(id));
        sampler.penalized(logprobs)
    }
}
