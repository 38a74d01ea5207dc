//! One sequence's sampler: its parameters, its random stream and the tokens it has seen.

use std::collections::{HashMap, HashSet};

use super::{
    SamplingParams,
    chain::{self, Candidate},
    random::{Purpose, RandomStream},
};
use crate::{TokenId, error::Result};

/// Chooses the tokens of one sequence.
///
/// A row of logits passes, in this order:
/// 1. `logit_bias`,
/// 2. `repetition_penalty` over the tokens of the prompt and of the output,
/// 3. `presence_penalty` and `frequency_penalty` over the tokens of the output,
/// 4. at `temperature` 0, the largest logit is taken (the lowest id among equals) and the rest does not apply,
/// 5. `temperature`,
/// 6. `top_k`,
/// 7. `top_p`, of what `top_k` left,
/// 8. `min_p`, of what `top_p` left,
/// 9. the draw.
///
/// Logits that are NaN or +infinity are an error, and so is a row of nothing but -infinity: the model's computation
/// failed. A single logit of -infinity rules its token out.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    random: RandomStream,
    prompt_ids: HashSet<TokenId>,
    /// How often the output has each token.
    output_counts: HashMap<TokenId, u32>,
}

impl Sampler {
    /// A sampler for the `choice`-th answer to a prompt. `params` are valid, see [`SamplingParams::validate`].
    pub fn new(params: SamplingParams, choice: u32, prompt_ids: &[TokenId]) -> Self {
        // Only this penalty looks at the prompt, which may be long.
        let is_prompt_used = params.repetition_penalty != 1.0;
        Self {
            random: RandomStream::new(params.seed, choice),
            prompt_ids: if is_prompt_used { prompt_ids.iter().copied().collect() } else { HashSet::new() },
            params,
            output_counts: HashMap::new(),
        }
    }

    /// The token for `position`, its index in the sequence. Does not change what the sampler has seen: call
    /// [`accept`](Self::accept) for a token that joins the output.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::error::Error::Execution) if the logits are not what a working model gives.
    pub fn sample(&self, logits: &[f32], position: usize) -> Result<TokenId> {
        let logits = self.adjust(logits)?;
        if self.params.is_greedy() {
            return chain::argmax(&logits);
        }
        let candidates = self.candidates(&logits)?;
        let uniform = self.random.uniform(position, Purpose::Token);
        // Never without a candidate: the largest logit survives every step.
        chain::draw(uniform, &candidates).map_or_else(|| chain::argmax(&logits), Ok)
    }

    /// Adds a token to the output that the penalties count.
    pub fn accept(&mut self, id: TokenId) {
        *self.output_counts.entry(id).or_insert(0) += 1;
    }

    /// The tokens that [`sample`](Self::sample) may return for these logits, each with its probability, the most
    /// likely first.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn distribution(&self, logits: &[f32]) -> Result<Vec<(TokenId, f32)>> {
        let logits = self.adjust(logits)?;
        if self.params.is_greedy() {
            return Ok(vec![(chain::argmax(&logits)?, 1.0)]);
        }
        let mut candidates = self.candidates(&logits)?;
        let n_candidates = candidates.len();
        chain::rank_first(n_candidates, &mut candidates);
        let total = chain::total_weight(&candidates);
        let probability = |candidate: &Candidate| (f64::from(candidate.weight) / total) as f32;
        Ok(candidates.iter().map(|candidate| (candidate.id, probability(candidate))).collect())
    }

    /// Steps 1 to 3: what changes single logits.
    fn adjust(&self, logits: &[f32]) -> Result<Vec<f32>> {
        let params = &self.params;
        let mut logits = chain::checked(logits)?.to_vec();
        chain::add_logit_bias(params, &mut logits);
        if params.repetition_penalty != 1.0 {
            let output_only = self.output_counts.keys().filter(|id| !self.prompt_ids.contains(id));
            let seen = self.prompt_ids.iter().chain(output_only).copied();
            chain::penalize_repetition(params.repetition_penalty, seen, &mut logits);
        }
        if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
            let counts = self.output_counts.iter().map(|(&id, &count)| (id, count));
            chain::penalize_output(params, counts, &mut logits);
        }
        Ok(logits)
    }

    /// Steps 5 to 8: which tokens are left, and their weights.
    fn candidates(&self, logits: &[f32]) -> Result<Vec<Candidate>> {
        let params = &self.params;
        let mut candidates = chain::candidates(logits, params.temperature)?;
        if params.top_k > 0 {
            chain::keep_top_k(params.top_k, &mut candidates);
        }
        if params.top_p < 1.0 {
            chain::keep_top_p(params.top_p, &mut candidates);
        }
        if params.min_p > 0.0 {
            chain::keep_min_p(params.min_p, &mut candidates);
        }
        Ok(candidates)
    }
}
