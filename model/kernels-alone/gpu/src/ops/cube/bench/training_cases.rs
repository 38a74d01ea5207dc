//! The kernels of a training step of GPT-2 124M.

use std::cell::RefCell;

use burn_cubecl::tensor::CubeTensor;

use super::{
    super::{
        optimizer,
        tensors::wrap,
        training::{Linear, RopeAttend},
    },
    Case, Gpu, Visit,
};
use crate::{
    config::{Activation, NormKind},
    ops::{
        AdamWStep, AttentionOptions, NormOptions, Precision,
        types::{Activate, Normalize, TrainingOp},
    },
};

/// Rows of a batch, and the sizes of a block.
struct Shape {
    batch: usize,
    seq_len: usize,
    d_model: usize,
    n_heads: usize,
}

/// Visits forward and backward pass of each operation of a block, and the optimizer.
pub fn for_each(gpu: &Gpu, is_tiny: bool, visit: Visit<'_>) -> anyhow::Result<()> {
    let shape = match is_tiny {
        true => Shape { batch: 2, seq_len: 64, d_model: 64, n_heads: 4 },
        false => Shape { batch: 8, seq_len: 1024, d_model: 768, n_heads: 12 },
    };
    let n_rows = shape.batch * shape.seq_len;
    let d_model = shape.d_model;
    for (name, precision) in [("f32", Precision::F32), ("bf16", Precision::Bf16)] {
        for (matrix, [d_out, d_in]) in [("up", [4 * d_model, d_model]), ("down", [d_model, 4 * d_model])] {
            let inputs = vec![gpu.floats(&[n_rows, d_in]), gpu.floats(&[d_out, d_in])];
            let work = [4 * (n_rows * (d_in + d_out) + d_out * d_in), n_rows * d_in * d_out];
            both(gpu, &format!("{matrix} {name}"), work, Linear { precision }, inputs, &[n_rows, d_out], visit)?;
        }
        let Shape { batch, seq_len, n_heads, .. } = shape;
        let head_dim = d_model / n_heads;
        let options = AttentionOptions {
            n_heads,
            n_kv_heads: n_heads,
            head_dim,
            scale: 1.0 / (head_dim as f64).sqrt(),
            softcap: None,
            sliding_window: None,
            bidirectional: false,
            alibi_slopes: None,
            relative: None,
        };
        let qkv = gpu.floats(&[n_rows, 3 * d_model]);
        let attend = RopeAttend::new(&options, batch, None, None, precision, &wrap::<2>(qkv.clone()));
        let work = [4 * n_rows * 4 * d_model, batch * n_heads * seq_len * (seq_len + 1) * head_dim];
        both(gpu, &format!("attention {name}"), work, attend, vec![qkv], &[n_rows, d_model], visit)?;
    }
    let norm = NormOptions { kind: NormKind::LayerNorm, eps: 1e-5, weight_offset: 0.0 };
    let inputs = vec![gpu.floats(&[n_rows, d_model]), gpu.floats(&[d_model]), gpu.floats(&[d_model])];
    both(gpu, "norm", [8 * n_rows * d_model, 0], Normalize(norm), inputs, &[n_rows, d_model], visit)?;
    let activate = Activate { kind: Activation::GeluTanh, is_gated: false };
    let inputs = vec![gpu.floats(&[n_rows, 4 * d_model])];
    both(gpu, "gelu", [32 * n_rows * d_model, 0], activate, inputs, &[n_rows, 4 * d_model], visit)?;
    adamw(gpu, 4 * d_model * d_model, visit)
}

/// Forward and backward pass.
fn both(
    gpu: &Gpu,
    name: &str,
    [bytes, macs]: [usize; 2],
    op: impl TrainingOp<CubeTensor> + 'static,
    inputs: Vec<CubeTensor>,
    output: &[usize],
    visit: Visit<'_>,
) -> anyhow::Result<()> {
    let op = std::rc::Rc::new(op);
    let wanted = vec![true; inputs.len()];
    let forward = {
        let (op, inputs, wanted) = (op.clone(), inputs.clone(), wanted.clone());
        move || op.forward(&inputs, &wanted).0
    };
    visit(&Case::new(format!("train {name} forward"), [bytes, macs], forward))?;
    let saved = op.forward(&inputs, &wanted).1;
    let gradient = gpu.floats(output);
    let backward = move || {
        let gradients = op.backward(&inputs, saved.clone(), &gradient, &wanted);
        gradients.into_iter().flatten().next_back().unwrap_or_else(|| gradient.clone())
    };
    visit(&Case::new(format!("train {name} backward"), [2 * bytes, 2 * macs], backward))
}

fn adamw(gpu: &Gpu, n_values: usize, visit: Visit<'_>) -> anyhow::Result<()> {
    let step = AdamWStep { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, n_updates: 3 };
    let gradient = gpu.floats(&[n_values]);
    let state = RefCell::new(Some([0, 1, 2].map(|_| gpu.floats(&[n_values]))));
    visit(&Case::new("train adamw", [28 * n_values, 0], move || {
        let [value, first, second] = state.take().unwrap_or_else(|| unreachable!("launched within a launch"));
        let changed = optimizer::adamw([value, gradient.clone(), first, second], step);
        let output = gradient.clone();
        state.replace(Some(changed));
        output
    }))
}
