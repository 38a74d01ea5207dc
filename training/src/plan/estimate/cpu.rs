//! Memory of the operations of a training step on the CPU.

use hearth_model::{
    config::{GptConfig, Positions},
    ops::{ATTENTION_QUERIES, MAX_KEPT_BYTES, ROWS_AT_ONCE, loss_rows_at_once, n_threads},
};

use super::{
    AdapterSize, Run,
    account::{Account, Op, backward, forward},
    shape::{Shape, backward_block, trained_params},
};

/// Smaller tensors (in values) come from the allocator's heap, which keeps freed memory (`ops::keep_freed_memory`);
/// larger ones are returned to the system.
const LARGEST_IN_HEAP: usize = MAX_KEPT_BYTES / 4;

/// Sizes of one micro-batch on the CPU.
fn shape(gpt: &GptConfig, n_rows: usize, adapter: Option<AdapterSize>) -> Shape<'_> {
    // Groups of rows, each with separate sums.
    let n_groups = n_rows.div_ceil(ROWS_AT_ONCE);
    Shape {
        gpt,
        n_rows,
        adapter,
        params: trained_params(gpt, adapter),
        norm_scratch: n_groups * 2 * gpt.d_model,
        qk_norm_scratch: n_groups * 4 * gpt.head_dim,
        // Threads keep theirs from operation to operation: `kept_by_threads`.
        attention_scratch: 0,
        product_scratch: n_groups,
    }
}

/// Values of the buffers for attention that threads keep from one piece of work to the next.
fn kept_by_threads(gpt: &GptConfig, n_rows: usize, seq_len: usize) -> usize {
    let GptConfig { n_heads, n_kv_heads, head_dim, .. } = *gpt;
    let n_pieces = n_rows / seq_len.max(1) * n_kv_heads;
    let of_thread = (n_heads / n_kv_heads + 4) * seq_len * head_dim + 2 * ATTENTION_QUERIES * seq_len;
    n_threads().min(n_pieces) * of_thread
}

impl Shape<'_> {
    /// Cosines and sines, where queries and keys are rotated.
    fn angles(&self) -> usize {
        match &self.gpt.positions {
            Positions::Rope(rope) => self.n_rows * rope.rotary_dim,
            _ => 0,
        }
    }

    /// One forward and backward pass of `run`. Afterwards only the gradients of the parameters are held.
    fn pass(&self, account: &mut Account, run: &Run) {
        let gpt = self.gpt;
        let width = self.n_rows * gpt.d_model;
        // The output matrix and its bias have no gradients if they do not train.
        let head = if self.adapter.is_some() { 0 } else { gpt.vocab_size * gpt.d_model };
        account.take(self.angles());
        let first: Vec<Op> =
            gpt.embed_norm.then(|| self.norm("embed_norm")).into_iter().chain(self.dropout()).collect();
        forward(account, &first);
        let block = self.block();
        for layer in 0..gpt.n_layers {
            if run.recomputes {
                account.take(width);
            }
            if !run.recomputes || layer + 1 == gpt.n_layers {
                block.iter().for_each(|part| forward(account, part));
            }
        }
        let last: Vec<Op> = gpt.final_norm.then(|| self.norm("norm")).into_iter().collect();
        forward(account, &last);

        // The gradients of the hidden states and of the output matrix are computed with the cross entropy.
        let bias = if gpt.lm_head_bias && self.adapter.is_none() { gpt.vocab_size } else { 0 };
        account.take(width);
        account.take(width + head + bias);
        let chunk = loss_rows_at_once(gpt.vocab_size).min(self.n_rows);
        account.briefly(chunk * gpt.vocab_size);
        if run.keeps {
            // Logits of both models, hidden states of the former and their gradients.
            account.briefly(2 * chunk * gpt.vocab_size + 4 * width);
        }
        account.free(width);

        backward(account, &last, width);
        for layer in (0..gpt.n_layers).rev() {
            if run.recomputes && layer + 1 < gpt.n_layers {
                block.iter().for_each(|part| forward(account, part));
                // The product of output and gradient, and its gradient.
                account.briefly(2 * width);
            }
            if run.recomputes {
                account.free(width);
            }
            backward_block(account, &block);
        }
        backward(account, &first, width);
        if gpt.positions == Positions::Learned {
            account.take(self.params("pos_embed"));
        }
        if !gpt.tie_embeddings {
            account.take(head);
        } else if run.recomputes {
            // Otherwise, embeddings add theirs to the gradient of the output matrix.
            account.briefly(head);
        }
        account.free(width + self.angles());
    }
}

/// Values kept by the encoder's pass before `gpt` and by the attention to its rows, if there is an encoder: an upper
/// bound for sources of the length of the rows.
fn of_source(gpt: &GptConfig, (n_rows, seq_len): (usize, usize)) -> usize {
    let Some(encoder) = &gpt.encoder else { return 0 };
    let kept = |ops: &[Vec<Op>; 2]| ops.iter().flatten().map(|op| op.kept).sum::<usize>();
    let of_encoder = encoder.n_layers * kept(&shape(encoder, n_rows, None).block());
    // Plain operations keep scores, probabilities and their operands; only rotary and learned positions have one for all.
    let scores = 4 * n_rows * seq_len;
    let is_plain = usize::from(gpt.positions.buckets().is_some());
    let of_scores =
        scores * (gpt.n_heads * gpt.n_layers * (1 + is_plain) + encoder.n_heads * encoder.n_layers * is_plain);
    let of_cross = gpt.n_layers * n_rows * (4 * gpt.d_model + 4 * gpt.q_width());
    of_encoder + of_scores + of_cross
}

/// Peak number of values in memory during a step, weights included.
pub(super) fn peak(
    gpt: &GptConfig,
    (n_rows, seq_len): (usize, usize),
    adapter: Option<AdapterSize>,
    run: &Run,
) -> usize {
    let shape = shape(gpt, n_rows, adapter);
    let sizes = || shape.params.values().copied();
    let (n_params, largest_param) = (sizes().sum::<usize>(), sizes().max().unwrap_or(0));
    let mut account = Account::default();
    account.take(n_params + run.n_moments + kept_by_threads(gpt, n_rows, seq_len));
    account.take(of_source(gpt, (n_rows, seq_len)));
    // Measured fragmentation: smaller tensors are placed where a gradient was freed, so the next gradient needs new memory.
    account.take(sizes().filter(|&n_values| n_values < LARGEST_IN_HEAP).max().unwrap_or(0));
    // The partial sums before the last.
    account.take((run.n_partial_sums - 1) * n_params);
    shape.pass(&mut account, run);
    // Sums of two gradients, squares for the norm, clipped gradients: each a parameter at a time.
    account.briefly(largest_param);
    account.free((run.n_partial_sums - 1) * n_params);
    // For each matrix that is updated at the same time: its direction, the next one, and products of the shorter side.
    account.briefly(4 * run.largest_muon * n_threads());
    account.free(n_params);
    // A parameter is saved as values and as bytes.
    account.briefly(3 * largest_param);
    account.peak()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use hearth_model::config::NormPosition;

    use super::{super::MATRICES, *};
    use crate::config::Layers;

    #[test]
    fn memory_account_of_a_pass_ends_with_only_the_gradients_held() {
        for sets in [
            &["model.arch=gpt2"][..],
            &["model.arch=gpt2", "model.dropout=0.1", "model.tie_embeddings=false"],
            &["model.arch=llama", "model.n_kv_heads=1"],
            &["model.arch=qwen3", "model.tie_embeddings=true"],
            &["model.arch=qwen3", "model.n_experts=4"],
        ] {
            let sets = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = Layers { preset: Some("tiny".to_owned()), sets, ..Layers::default() }.resolve().unwrap();
            let gpt = config.gpt_config(100).unwrap();
            for position in [NormPosition::Pre, NormPosition::Post, NormPosition::Inside] {
                let gpt = GptConfig { norm_position: position, ..gpt.clone() };
                let shape = shape(&gpt, 64, None);
                let peaks = [false, true].map(|recomputes| {
                    let account = pass(&shape, recomputes);
                    assert_eq!(account.held(), gpt.n_params(), "{gpt:?}");
                    account.peak()
                });
                assert!(peaks[1] < peaks[0], "{peaks:?}, {gpt:?}");
            }
        }
    }

    #[test]
    fn memory_account_of_a_lora_pass_ends_with_only_adapter_gradients() {
        let sets = ["model.arch=gpt2", "model.tie_embeddings=false"].map(str::to_owned).to_vec();
        let config = Layers { preset: Some("tiny".to_owned()), sets, ..Layers::default() }.resolve().unwrap();
        let gpt = GptConfig { lm_head_bias: true, ..config.gpt_config(100).unwrap() };
        let n_values = 80 * MATRICES.len() * gpt.n_layers;
        let shape = shape(&gpt, 64, Some(AdapterSize { n_values, rank: 4, frozen_bytes: 0 }));
        assert_eq!(pass(&shape, false).held(), n_values);
    }

    fn pass(shape: &Shape<'_>, recomputes: bool) -> Account {
        let run = Run { n_partial_sums: 1, n_moments: 0, largest_muon: 0, recomputes, keeps: false };
        let mut account = Account::default();
        shape.pass(&mut account, &run);
        account
    }
}
