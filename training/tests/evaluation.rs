//! The loss over a split against a direct computation from logits, one window at a time, in f64.

#![expect(clippy::unwrap_used, reason = "tests")]

use burn::tensor::{Device, Int, Tensor};
use hearth_model::{
    TokenId,
    gpt::{Gpt, attention::AttentionContext},
};
use hearth_training::{
    config::{Layers, TrainConfig},
    data::shard::Tokens,
    eval::{Windows, score},
};

const VOCAB_SIZE: usize = 11;
const SEQ_LEN: usize = 8;

fn tiny() -> TrainConfig {
    Layers { preset: Some("tiny".to_owned()), ..Layers::default() }.resolve().unwrap()
}

/// Nats of `target` under `logits`.
fn nats(logits: &[f32], target: TokenId) -> f64 {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    sum.ln() - f64::from(logits[target as usize] - max)
}

#[test]
fn score_is_the_mean_loss_over_all_tokens_of_a_split() {
    let device = Device::flex();
    let gpt_config = tiny().gpt_config(VOCAB_SIZE).unwrap();
    let gpt = Gpt::init(&gpt_config, 5, &device).unwrap();
    // Full batches, a part of a batch and a part of a window.
    let ids: Vec<TokenId> = (0..1 + 5 * SEQ_LEN as u32 + 3).map(|at| (at * at + at / 5) % VOCAB_SIZE as u32).collect();

    let mut total = 0.0;
    for start in (0..ids.len() - 1).step_by(SEQ_LEN) {
        let end = (start + SEQ_LEN).min(ids.len() - 1);
        let inputs: Vec<i32> = ids[start..end].iter().map(|&id| id as i32).collect();
        let inputs = Tensor::<1, Int>::from_data(inputs.as_slice(), &device);
        let logits = gpt.logits(gpt.forward(inputs, AttentionContext::dense(1, end - start)));
        let logits = logits.into_data().try_to_vec::<f32>().unwrap();
        for (row, at) in logits.chunks(VOCAB_SIZE).zip(start..end) {
            total += nats(row, ids[at + 1]);
        }
    }
    let expected = total / (ids.len() - 1) as f64;

    for batch_size in [1, 2, 100] {
        let found = score(
            &gpt,
            &Tokens::from_ids(ids.clone(), 0).into(),
            Windows { batch_size, seq_len: SEQ_LEN, max_batches: None },
        )
        .unwrap();
        assert_eq!(found.n_targets, ids.len() - 1);
        assert!((found.loss - expected).abs() < 1e-6 * expected, "{} is not {expected}", found.loss);
    }
}

#[test]
fn score_rejects_a_split_without_a_target() {
    let gpt_config = tiny().gpt_config(VOCAB_SIZE).unwrap();
    let gpt = Gpt::init(&gpt_config, 5, &Device::flex()).unwrap();
    let error =
        score(&gpt, &Tokens::from_ids(vec![3], 1).into(), Windows { batch_size: 1, seq_len: 8, max_batches: None })
            .unwrap_err()
            .to_string();
    assert!(error.contains("at least 2 tokens, got 1"), "{error}");
}
