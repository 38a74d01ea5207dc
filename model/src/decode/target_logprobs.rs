//! Log-probabilities of given tokens: evaluation needs one number of each row of logits.

use burn::tensor::{Int, Tensor};

use crate::{
    TokenId,
    decode::sampling::logprob,
    error::{Error, Result},
    ops::{self, read, to_f32},
};

/// The log-probability in nats of `targets[i]` under row `i` of `logits [n_rows, vocab_size]`, before any sampling
/// parameter. A GPU returns one number per row.
///
/// # Errors
/// [`Error::Logits`] if the result is not a number, as the model's logits are invalid then; [`Error::Execution`] if the device
/// fails.
///
/// # Panics
/// If the number of targets is not the number of rows, or a target is outside the vocabulary.
pub fn target_logprobs(logits: Tensor<2>, targets: &[TokenId]) -> Result<Vec<f32>> {
    let [n_rows, vocab_size] = logits.dims();
    assert_eq!(n_rows, targets.len(), "rows, and targets");
    assert!(targets.iter().all(|&id| (id as usize) < vocab_size), "a target beyond the vocabulary of {vocab_size}");
    let logprobs = if ops::is_on_cpu(&logits.device()) {
        on_cpu(&to_f32(read(logits)?)?, targets, vocab_size)
    } else {
        on_device(logits, targets)?
    };
    match logprobs.iter().position(|logprob| logprob.is_nan()) {
        None => Ok(logprobs),
        Some(row) => {
            Err(Error::Logits { what: format!("the log-probability of token {} is not a number", targets[row]) })
        }
    }
}

fn on_cpu(logits: &[f32], targets: &[TokenId], vocab_size: usize) -> Vec<f32> {
    let mut rows: Vec<_> = logits.chunks_exact(vocab_size).zip(targets).map(|(row, &id)| (row, id, 0.0)).collect();
    ops::parallel_for_each(&mut rows, |(row, id, result)| *result = logprob(row, *id));
    rows.into_iter().map(|(_, _, result)| result).collect()
}

fn on_device(logits: Tensor<2>, targets: &[TokenId]) -> Result<Vec<f32>> {
    let ids: Vec<i32> = targets.iter().map(|&id| id as i32).collect();
    let ids = Tensor::<1, Int>::from_data(ids.as_slice(), &logits.device()).unsqueeze_dim::<2>(1);
    let largest = logits.clone().max_dim(1);
    let log_total = (logits.clone() - largest.clone()).exp().sum_dim(1).log() + largest;
    to_f32(read(logits.gather(1, ids) - log_total)?)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn target_logprobs_of_both_implementations_match_log_softmax() {
        let (vocab_size, n_rows) = (1000, 5);
        let logits: Vec<f32> = (0..n_rows * vocab_size).map(|at| ((at * 7919) % 4001) as f32 / 200.0 - 8.0).collect();
        let targets: Vec<TokenId> = vec![0, 999, 17, 500, 3];
        let expected: Vec<f64> = logits
            .chunks_exact(vocab_size)
            .zip(&targets)
            .map(|(row, &id)| {
                let total: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
                f64::from(row[id as usize]) - total.ln()
            })
            .collect();
        let tensor = Tensor::<1>::from_data(logits.as_slice(), &Device::flex()).reshape([n_rows, vocab_size]);
        for found in [target_logprobs(tensor.clone(), &targets).unwrap(), on_device(tensor, &targets).unwrap()] {
            for (found, expected) in found.iter().zip(&expected) {
                assert!((f64::from(*found) - expected).abs() < 2e-6, "{found} is not {expected}");
            }
        }
    }

    #[test]
    fn target_logprobs_of_nan_logits_is_an_error() {
        let tensor = Tensor::<1>::from_data([0.0, f32::NAN, 1.0].as_slice(), &Device::flex()).reshape([1, 3]);
        assert!(target_logprobs(tensor, &[0]).unwrap_err().to_string().contains("token 0 is not a number"));
    }
}
