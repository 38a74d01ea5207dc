//! Memory of the operations of a training step on a GPU.

use hearth_model::{config::GptConfig, gpt::param_specs, ops::GPU_LOGITS_AT_ONCE};

use super::{
    AdapterSize, Run,
    account::{Account, Op, backward, forward},
    shape::{Shape, backward_block, trained_params},
};

/// Peak number of values on the device during a step, weights included.
pub(super) fn peak(
    gpt: &GptConfig,
    (n_rows, seq_len): (usize, usize),
    adapter: Option<AdapterSize>,
    run: &Run,
) -> usize {
    let n_trained = adapter.map_or(gpt.n_params(), |adapter| adapter.n_values);
    let n_frozen = adapter.map_or(0, |_| gpt.n_params());
    let d = n_rows * gpt.d_model;
    let head = gpt.vocab_size * gpt.d_model;
    let logits = (GPU_LOGITS_AT_ONCE / gpt.vocab_size.max(1)).clamp(1, n_rows.max(1)) * gpt.vocab_size;
    let shape = Shape {
        gpt,
        n_rows,
        adapter,
        params: trained_params(gpt, adapter),
        norm_scratch: 2 * n_rows,
        qk_norm_scratch: 2 * n_rows * (gpt.n_heads + gpt.n_kv_heads),
        // Probabilities and their gradients; queries, keys and values.
        attention_scratch: n_rows * (2 * gpt.n_heads * seq_len + 3 * gpt.q_width() + 4 * gpt.kv_width()),
        product_scratch: 0,
    };
    let mut account = Account::default();
    account.take(n_frozen + n_trained + run.n_moments + (run.n_partial_sums - 1) * n_trained);
    let first: Vec<Op> = gpt.embed_norm.then(|| shape.norm("embed_norm")).into_iter().collect();
    forward(&mut account, &first);
    let block = shape.block();
    for _ in 0..gpt.n_layers {
        block.iter().for_each(|part| forward(&mut account, part));
    }
    // The input of the last norm and the hidden states; then the logits of some rows at a time, and the gradients of the
    // hidden states and of the output matrix, which are sums of parts.
    let of_head = if adapter.is_some() { 0 } else { head };
    account.take(2 * d);
    // For a divergence: logits, log-probabilities and products, for all rows and both models.
    let compared = if run.keeps { 5 * n_rows * gpt.vocab_size } else { 0 };
    account.briefly(compared + logits + 2 * d + 3 * of_head);
    account.take(d + of_head);
    // Backward multiplies both.
    account.briefly(d + of_head);
    account.free(2 * d);
    for _ in 0..gpt.n_layers {
        backward_block(&mut account, &block);
    }
    backward(&mut account, &first, d);
    let has_positions = gpt.positions.are_learned() && adapter.is_none();
    account.briefly(of_head + if has_positions { gpt.max_seq_len * gpt.d_model } else { 0 });
    // Temporary values of clipping, AdamW and Muon, of a parameter at a time.
    let largest_trained = adapter.map_or_else(|| largest_param(gpt), |adapter| adapter.of_matrix(gpt));
    account.briefly(4 * largest_trained + 6 * run.largest_muon);
    account.peak()
}

fn largest_param(gpt: &GptConfig) -> usize {
    param_specs(gpt).into_iter().map(|spec| spec.shape.iter().product()).max().unwrap_or(0)
}

/// Values of the largest tensor: a parameter, the logits of a row (of more if the device takes them; of all rows for a
/// divergence, if `keeps`), the scores of attention or the inside of the MLP.
pub(super) fn largest_tensor(gpt: &GptConfig, n_rows: usize, seq_len: usize, keeps: bool) -> usize {
    let up = if gpt.gated_mlp { 2 * gpt.d_ff } else { gpt.d_ff };
    let of_row = (gpt.n_heads * seq_len).max(up).max(gpt.q_width() + 2 * gpt.kv_width());
    largest_param(gpt).max(n_rows * of_row).max(if keeps { n_rows } else { 1 } * gpt.vocab_size)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use hearth_model::config::Sizes;

    use super::*;
    use crate::config::Layers;

    const SIZES: Sizes =
        Sizes { vocab_size: 5000, max_seq_len: 64, n_layers: 3, n_heads: 4, n_kv_heads: 2, d_model: 32, d_ff: 48 };

    #[test]
    fn gpu_peak_estimate_includes_the_embedding_norm() {
        let (n_rows, d_model) = (512, SIZES.d_model);
        let peak = |embed_norm: bool| {
            let gpt = GptConfig { embed_norm, ..GptConfig::llama(SIZES) };
            let run = Run { n_partial_sums: 1, n_moments: 0, largest_muon: 0, recomputes: false, keeps: false };
            peak(&gpt, (n_rows, 64), None, &run)
        };
        // At the peak, the norm's input and its weight are held.
        assert_eq!(peak(true) - peak(false), n_rows * d_model + d_model);
    }

    #[test]
    fn gpu_peak_estimate_of_lora_excludes_base_gradients_and_moments() {
        let config = Layers { preset: Some("gpt2-124m".to_owned()), ..Layers::default() }.resolve().unwrap();
        let gpt = config.gpt_config(50257).unwrap();
        let size = (1024, 1024);
        let adapter = AdapterSize { n_values: 960_000, rank: 16, frozen_bytes: 4 * gpt.n_params() as u64 };
        let peak = |adapter: Option<AdapterSize>, n_partial_sums: usize| {
            let n_moments = 2 * adapter.map_or(gpt.n_params(), |adapter| adapter.n_values);
            peak(
                &gpt,
                size,
                adapter,
                &Run { n_partial_sums, n_moments, largest_muon: 0, recomputes: false, keeps: false },
            )
        };
        let keeping = Run { n_partial_sums: 1, n_moments: 1_920_000, largest_muon: 0, recomputes: false, keeps: true };
        // The divergence needs logits of 1,024 rows by 50,257 tokens.
        let of_divergence = super::peak(&gpt, size, Some(adapter), &keeping) - peak(Some(adapter), 1);
        assert!(of_divergence > 200_000_000, "{of_divergence}");
        assert_eq!(largest_tensor(&gpt, 1024, 1024, true), 1024 * 50257);
        // One more partial sum takes as much memory as the trained parameters.
        assert_eq!(peak(Some(adapter), 2) - peak(Some(adapter), 1), adapter.n_values);
        assert_eq!(peak(None, 2) - peak(None, 1), gpt.n_params());
        // Both hold the model; only full training holds its two moments, its gradients and the update's temporary values.
        let saved = peak(None, 1) - peak(Some(adapter), 1);
        let share = saved as f64 / gpt.n_params() as f64;
        let of_update = 4.0 * largest_param(&gpt) as f64 / gpt.n_params() as f64;
        assert!((2.0..3.0 + of_update).contains(&share), "{share}");
    }
}
