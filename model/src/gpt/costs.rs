//! The costs of a model's steps: bytes read and multiply-adds.

use super::{Gpt, Weight};
use crate::gpt::param_specs::ROUTED;

impl Gpt {
    /// Bytes of matrices that a decoding step for `n_rows` texts reads: all except embeddings, of which it reads single
    /// rows; of the experts, as many as can be chosen.
    pub fn step_bytes(&self, n_rows: usize) -> usize {
        let of_blocks = self
            .linears()
            .into_iter()
            .map(|(path, linear)| (linear.weight().n_bytes() as f64 * self.share_read(&path, n_rows)).round() as usize);
        of_blocks.sum::<usize>() + self.output().0.n_bytes()
    }

    /// The largest share of a matrix that a step of `n_rows` rows reads: below 1 for experts.
    fn share_read(&self, path: &str, n_rows: usize) -> f64 {
        match &self.config.experts {
            Some(experts) if path.contains(ROUTED) => {
                (n_rows as f64 * experts.n_active as f64 / experts.n_experts as f64).min(1.0)
            }
            _ => 1.0,
        }
    }

    /// The number of multiply-adds of a forward pass over `n_tokens` tokens, in its matrices and in attention.
    /// `n_logits` of the tokens get logits; `n_keys` is the number of keys that each token sees, summed over all
    /// tokens.
    pub fn n_products(&self, n_tokens: usize, n_logits: usize, n_keys: usize) -> usize {
        let size = |weight: &Weight| weight.dims().into_iter().product::<usize>();
        let of_token = self
            .linears()
            .into_iter()
            .map(|(path, linear)| (size(linear.weight()) as f64 * self.share_read(&path, 1)).round() as usize);
        // One for each dimension of a query, for the score, and one for each of a value, for the weighted sum.
        let config = &self.config;
        let attending = (0..config.n_layers).filter(|&layer| config.attends(layer));
        let of_key: usize = attending.map(|layer| config.q_width_of(layer) + config.value_width_of(layer)).sum();
        n_tokens * of_token.sum::<usize>() + n_logits * size(self.output().0) + n_keys * of_key
    }
}
