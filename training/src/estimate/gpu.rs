//! What the operations of a training step hold on a GPU, where they are Burn's: each keeps the inputs and results that its
//! derivative needs.

use hearth_model::{
    config::{Activation, GptConfig, Positions},
    gpt::param_specs,
};

use super::{
    Run,
    account::{Account, Op, backward, forward},
};

/// Values that exist at once in a run, with those of the weights.
pub(super) fn peak(gpt: &GptConfig, n_rows: usize, seq_len: usize, run: &Run) -> usize {
    let n_params = gpt.n_params();
    let (d, logits) = (n_rows * gpt.d_model, n_rows * gpt.vocab_size);
    let head = gpt.vocab_size * gpt.d_model;
    let mut account = Account::default();
    account.take(n_params + run.n_moments + (run.n_partial_sums - 1) * n_params);
    let block = block(gpt, n_rows, seq_len);
    for _ in 0..gpt.n_layers {
        block.iter().for_each(|part| forward(&mut account, part));
    }
    // The last norm and the hidden states; then logits, their differences to the largest, exponentials and the result.
    account.take(3 * d);
    account.take(logits);
    account.briefly(3 * logits);
    // Backward: the gradient of the logits in three forms, and that of the head.
    account.briefly(3 * logits);
    account.take(d + head);
    account.free(logits + 3 * d);
    let mut gradient = d;
    for _ in 0..gpt.n_layers {
        for part in block.iter().rev() {
            let through = backward(&mut account, part, gradient, true);
            account.free(through);
        }
        gradient = d;
    }
    let positions = if gpt.positions == Positions::Learned { gpt.max_seq_len * gpt.d_model } else { 0 };
    account.briefly(head + positions);
    // Temporary values of clipping, AdamW and Muon, of a parameter at a time.
    account.briefly(4 * largest_param(gpt) + 6 * run.largest_muon);
    account.peak()
}

/// The operations of one block's attention, and those of its MLP.
fn block(gpt: &GptConfig, n_rows: usize, seq_len: usize) -> [Vec<Op>; 2] {
    let (d, q, kv) = (n_rows * gpt.d_model, n_rows * gpt.q_width(), n_rows * gpt.kv_width());
    let ff = n_rows * gpt.d_ff;
    let scores = n_rows * gpt.n_heads * seq_len;
    let size = |[d_out, d_in]: [usize; 2]| d_out * d_in;
    // What is normalized, and the normalized values; backward goes through as many.
    let norm = Op { kept: 2 * d, of_input: d, of_params: gpt.d_model, scratch: 3 * d };
    let linear = |d_out: usize, d_in: usize| Op {
        kept: n_rows * d_in,
        of_input: n_rows * d_in,
        of_params: size([d_out, d_in]),
        scratch: 0,
    };
    let qk_norm = gpt.qk_norm.then(|| Op {
        kept: 2 * (q + kv),
        of_input: q + 2 * kv,
        of_params: 2 * gpt.head_dim,
        scratch: 3 * (q + kv),
    });
    // Queries, keys and values; exponentials and probabilities.
    let attend =
        Op { kept: q + 2 * kv + 2 * scores, of_input: q + 2 * kv, of_params: 0, scratch: 3 * scores + q + 2 * kv };
    let (kept, up) = match (gpt.gated_mlp, gpt.activation) {
        // The gate, its activation and what it multiplies.
        (true, _) => (4 * ff, 2 * ff),
        (false, Activation::GeluTanh) => (3 * ff, ff),
        (false, _) => (ff, ff),
    };
    let activate = Op { kept, of_input: up, of_params: 0, scratch: 3 * ff };
    let dropout = (gpt.dropout > 0.0).then(|| Op { kept: d, of_input: d, ..Op::default() });
    let widths = gpt.q_width() + 2 * gpt.kv_width();
    let up = if gpt.gated_mlp { 2 * gpt.d_ff } else { gpt.d_ff };
    let attention = [norm, linear(widths, gpt.d_model)].into_iter().chain(qk_norm);
    let attention = attention.chain([attend, linear(gpt.d_model, gpt.q_width())]).chain(dropout);
    let mlp = [norm, linear(up, gpt.d_model), activate, linear(gpt.d_model, gpt.d_ff)].into_iter().chain(dropout);
    [attention.collect(), mlp.collect()]
}

fn largest_param(gpt: &GptConfig) -> usize {
    param_specs(gpt).into_iter().map(|spec| spec.shape.iter().product()).max().unwrap_or(0)
}

/// Values of the largest tensor: a parameter, the logits, the scores of attention or the inside of the MLP.
pub(super) fn largest_tensor(gpt: &GptConfig, n_rows: usize, seq_len: usize) -> usize {
    let up = if gpt.gated_mlp { 2 * gpt.d_ff } else { gpt.d_ff };
    let of_row = gpt.vocab_size.max(gpt.n_heads * seq_len).max(up).max(gpt.q_width() + 2 * gpt.kv_width());
    largest_param(gpt).max(n_rows * of_row)
}
