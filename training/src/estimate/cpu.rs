//! What the operations of a training step hold on the CPU: `hearth_model`'s own, each of which says which of its inputs
//! and results it keeps for its backward pass.

use std::collections::BTreeMap;

use hearth_model::{
    config::{GptConfig, NormPosition, Positions},
    gpt::param_specs,
    ops,
};

use super::{
    AdapterSize, MATRICES, Run,
    account::{Account, Op, backward, forward, keeping},
};

/// Rows whose sums one piece of work adds up.
const ROWS_AT_ONCE: usize = 32;

/// Logits that exist at once, and rows that share a pass over them at least.
const LOGITS_AT_ONCE: usize = 1 << 24;
const MIN_ROWS: usize = 128;

/// Queries whose probabilities exist at once, for each thread.
const QUERIES: usize = 64;

/// Tensors of fewer values come from the allocator's heap, which keeps what is freed (`ops::keep_freed_memory`); larger ones
/// go back to the system.
const LARGEST_IN_HEAP: usize = (32 << 20) / 4;

/// Sizes of one micro-batch, in values.
pub(super) struct Shape<'a> {
    gpt: &'a GptConfig,
    n_rows: usize,
    seq_len: usize,
    /// Values of each parameter that trains, by path.
    params: BTreeMap<String, usize>,
    /// The adapter that trains instead of the model.
    adapter: Option<AdapterSize>,
}

impl<'a> Shape<'a> {
    pub(super) fn new(gpt: &'a GptConfig, n_rows: usize, seq_len: usize, adapter: Option<AdapterSize>) -> Shape<'a> {
        let params: BTreeMap<_, _> = match adapter {
            None => param_specs(gpt).into_iter().map(|spec| (spec.path, spec.shape.iter().product())).collect(),
            Some(adapter) => {
                let matrices =
                    (0..gpt.n_layers).flat_map(|layer| MATRICES.map(|matrix| format!("blocks.{layer}.{matrix}.lora")));
                let of_matrix = adapter.of_matrix(gpt);
                matrices.map(|path| (path, of_matrix)).collect()
            }
        };
        Shape { gpt, n_rows, seq_len, params, adapter }
    }

    /// Values of the parameters below a path.
    fn params(&self, prefix: &str) -> usize {
        let below = |path: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
        self.params.iter().filter(|(path, _)| below(path)).map(|(_, n_values)| n_values).sum()
    }

    fn n_params(&self) -> usize {
        self.params.values().sum()
    }

    fn largest_param(&self) -> usize {
        self.params.values().copied().max().unwrap_or(0)
    }

    /// Groups of rows, each with sums of its own.
    fn n_groups(&self) -> usize {
        self.n_rows.div_ceil(ROWS_AT_ONCE)
    }

    /// It keeps its input, which is computed for it alone, unless the input is `kept` by another operation.
    fn norm(&self, path: &str, kept: bool) -> Op {
        let width = self.n_rows * self.gpt.d_model;
        Op {
            kept: if kept { 0 } else { width },
            of_input: width,
            of_params: self.params(path),
            scratch: self.n_groups() * 2 * self.gpt.d_model,
        }
    }

    /// A product with `[d_out, d_in]`; it keeps its input, or computes it again from one of `recomputed_from` values.
    fn linear(&self, path: &str, [d_out, d_in]: [usize; 2], recomputed_from: Option<usize>) -> Op {
        let input = self.n_rows * d_in;
        // With an adapter, also what its first matrix makes of the input.
        let reduced = self.adapter.map_or(0, |adapter| self.n_rows * adapter.rank);
        let op = Op { kept: reduced, of_input: input, of_params: self.params(path), scratch: self.n_groups() * d_out };
        keeping(op, input, recomputed_from)
    }

    /// Dropout keeps nothing: it computes again what it dropped.
    fn dropout(&self) -> Option<Op> {
        (self.gpt.dropout > 0.0).then(|| Op { of_input: self.n_rows * self.gpt.d_model, ..Op::default() })
    }

    /// Norms of queries and keys keep their input.
    fn qk_norm(&self, path: &str) -> Option<Op> {
        let gpt = self.gpt;
        let qkv = self.n_rows * (gpt.q_width() + 2 * gpt.kv_width());
        gpt.qk_norm.then(|| Op {
            kept: qkv,
            of_input: qkv,
            of_params: self.params(&format!("{path}.q_norm")) + self.params(&format!("{path}.k_norm")),
            scratch: self.n_groups() * 4 * gpt.head_dim,
        })
    }

    /// The operations of one block's attention, and those of its MLP.
    pub(super) fn block(&self) -> [Vec<Op>; 2] {
        let gpt = self.gpt;
        let (n_rows, d, ff) = (self.n_rows, gpt.d_model, gpt.d_ff);
        let (q, kv) = (gpt.q_width(), gpt.kv_width());
        let up = if gpt.gated_mlp { 2 * ff } else { ff };
        let is_pre = matches!(gpt.norm_position, NormPosition::Pre | NormPosition::Sandwich);
        let path = |part: &str| format!("blocks.0.{part}");
        let qkv = n_rows * (q + 2 * kv);
        // It keeps queries, keys and values, and the logarithm of each row's sum; its output is kept by the product.
        let attend = Op { kept: n_rows * gpt.n_heads, of_input: qkv, ..Op::default() };
        let attend = keeping(attend, qkv, gpt.qk_norm.then_some(qkv));
        let activate = Op { kept: n_rows * up, of_input: n_rows * up, ..Op::default() };
        let part = |name: &str, inner: Vec<Op>, input: Op, output: Op| {
            let own = path(&format!("{name}_norm"));
            let out = path(&format!("{name}_out_norm"));
            // Parallel parts have one input, which attention's norm keeps.
            let is_kept = gpt.parallel_residual && name == "mlp";
            let before = is_pre.then(|| self.norm(&own, is_kept));
            let after = match gpt.norm_position {
                NormPosition::Pre => None,
                NormPosition::Sandwich => Some(self.norm(&out, false)),
                NormPosition::Inside | NormPosition::Post => Some(self.norm(&own, false)),
            };
            let ends = [output].into_iter().chain(after).chain(self.dropout());
            before.into_iter().chain([input]).chain(inner).chain(ends).collect()
        };
        let attention = self.qk_norm(&path("attn")).into_iter().chain([attend]).collect();
        let normed = is_pre.then_some(n_rows * d);
        [
            part(
                "attn",
                attention,
                self.linear(&path("attn.qkv"), [q + 2 * kv, d], normed),
                self.linear(&path("attn.out"), [d, q], None),
            ),
            part(
                "mlp",
                vec![activate],
                self.linear(&path("mlp.up"), [up, d], normed),
                self.linear(&path("mlp.down"), [d, ff], Some(n_rows * up)),
            ),
        ]
    }

    /// Cosines and sines, where queries and keys are rotated.
    fn angles(&self) -> usize {
        match &self.gpt.positions {
            Positions::Rope(rope) => self.n_rows * rope.rotary_dim,
            _ => 0,
        }
    }

    /// What threads keep for attention, from piece to piece.
    fn attention_scratch(&self) -> usize {
        let GptConfig { n_heads, n_kv_heads, head_dim, .. } = *self.gpt;
        let n_threads = ops::n_threads();
        let n_pieces = self.n_rows / self.seq_len.max(1) * n_kv_heads;
        let of_thread = (n_heads / n_kv_heads + 4) * self.seq_len * head_dim + 2 * QUERIES * self.seq_len;
        n_threads.min(n_pieces) * of_thread
    }

    /// One forward and backward pass of `run`, whose gradients stay. The gradient of the loss is multiplied, if micro-batches
    /// share the step.
    fn pass(&self, account: &mut Account, run: &Run) {
        let gpt = self.gpt;
        let width = self.n_rows * gpt.d_model;
        // The output matrix and its bias have no gradients if they do not train.
        let head = if self.adapter.is_some() { 0 } else { gpt.vocab_size * gpt.d_model };
        account.take(self.angles());
        let first: Vec<Op> =
            gpt.embed_norm.then(|| self.norm("embed_norm", false)).into_iter().chain(self.dropout()).collect();
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
        let last: Vec<Op> = gpt.final_norm.then(|| self.norm("norm", false)).into_iter().collect();
        forward(account, &last);

        // The gradients of the hidden states and of the output matrix are computed with the cross entropy.
        let bias = if gpt.lm_head_bias && self.adapter.is_none() { gpt.vocab_size } else { 0 };
        account.take(width);
        account.take(width + head + bias);
        let chunk = (LOGITS_AT_ONCE / gpt.vocab_size.max(1)).max(MIN_ROWS).min(self.n_rows);
        account.briefly(chunk * gpt.vocab_size);
        if run.keeps {
            // Logits of both models, hidden states of the former and their gradients.
            account.briefly(2 * chunk * gpt.vocab_size + 4 * width);
        }
        account.free(width);

        let mut gradient = backward(account, &last, width, false);
        for layer in (0..gpt.n_layers).rev() {
            if run.recomputes && layer + 1 < gpt.n_layers {
                block.iter().for_each(|part| forward(account, part));
                // The product of output and gradient, and its gradient.
                account.briefly(2 * width);
            }
            if run.recomputes {
                account.free(width);
            }
            for part in block.iter().rev() {
                // The gradient goes through the part and past it, and the two are added.
                let through = backward(account, part, gradient, true);
                account.free(through);
            }
            gradient = width;
        }
        backward(account, &first, gradient, false);
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

    /// Values that exist at once in a run, with those of the weights.
    pub(super) fn peak(&self, run: &Run) -> usize {
        let n_params = self.n_params();
        let mut account = Account::default();
        account.take(n_params + run.n_moments + self.attention_scratch());
        // Measured: where a gradient was freed, smaller tensors are placed, so that the next one needs another place.
        account.take(self.params.values().copied().filter(|&n_values| n_values < LARGEST_IN_HEAP).max().unwrap_or(0));
        // The partial sums before the last.
        account.take((run.n_partial_sums - 1) * n_params);
        self.pass(&mut account, run);
        // Sums of two gradients, squares for the norm, clipped gradients: each a parameter at a time.
        account.briefly(self.largest_param());
        account.free((run.n_partial_sums - 1) * n_params);
        // Momentum, direction and its parts, of a matrix at a time.
        account.briefly(6 * run.largest_muon);
        account.free(n_params);
        // A parameter is saved as values and as bytes.
        account.briefly(3 * self.largest_param());
        account.peak()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::Layers;

    #[test]
    fn a_pass_frees_all_that_it_takes_but_the_gradients() {
        for sets in [
            &["model.arch=gpt2"][..],
            &["model.arch=gpt2", "model.dropout=0.1", "model.tie_embeddings=false"],
            &["model.arch=llama", "model.n_kv_heads=1"],
            &["model.arch=qwen3", "model.tie_embeddings=true"],
        ] {
            let sets = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = Layers { preset: Some("tiny".to_owned()), sets, ..Layers::default() }.resolve().unwrap();
            let gpt = config.gpt_config(100).unwrap();
            for position in [NormPosition::Pre, NormPosition::Post, NormPosition::Inside] {
                let gpt = GptConfig { norm_position: position, ..gpt.clone() };
                let shape = Shape::new(&gpt, 64, 32, None);
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
    fn a_pass_of_an_adapter_leaves_only_its_own_gradients() {
        let sets = ["model.arch=gpt2", "model.tie_embeddings=false"].map(str::to_owned).to_vec();
        let config = Layers { preset: Some("tiny".to_owned()), sets, ..Layers::default() }.resolve().unwrap();
        let gpt = GptConfig { lm_head_bias: true, ..config.gpt_config(100).unwrap() };
        let n_values = 80 * MATRICES.len() * gpt.n_layers;
        let shape = Shape::new(&gpt, 64, 32, Some(AdapterSize { n_values, rank: 4, frozen_bytes: 0 }));
        assert_eq!(pass(&shape, false).held(), n_values);
    }

    fn pass(shape: &Shape<'_>, recomputes: bool) -> Account {
        let run = Run { n_partial_sums: 1, n_moments: 0, largest_muon: 0, recomputes, keeps: false };
        let mut account = Account::default();
        shape.pass(&mut account, &run);
        account
    }
}
