//! RMSNorm with a gate.

use crate::ops::{
    cpu::{
        StridedRows, for_each_isa,
        math::{exp, sum},
        thread_pool,
    },
    types::{GateOrder, GatedNormOptions},
};

/// Values below which one thread is faster.
const PARALLEL_WORK: usize = 1 << 16;

/// [`gated_norm`](crate::ops::gated_norm::gated_norm) of `x` and `z`, `[n_rows, width]`.
pub(in crate::ops) fn gated_norm(x: &[f32], z: StridedRows<'_>, weight: &[f32], options: GatedNormOptions) -> Vec<f32> {
    let width = z.width();
    let run = |row: usize, output: &mut [f32]| {
        output.copy_from_slice(&x[row * width..][..width]);
        let weights = weight.chunks_exact(options.width).cycle();
        for ((output, z), weight) in
            output.chunks_exact_mut(options.width).zip(z.row(row).chunks_exact(options.width)).zip(weights)
        {
            gated_norm_group(output, z, weight, options);
        }
    };
    if x.len() < PARALLEL_WORK {
        let mut output = vec![0.0; x.len()];
        output.chunks_exact_mut(width).enumerate().for_each(|(row, output)| run(row, output));
        output
    } else {
        thread_pool::new_chunks(x.len(), width, run)
    }
}

for_each_isa!(gated_norm_group(x: &mut [f32], z: &[f32], weight: &[f32], options: GatedNormOptions) = group_body);

#[inline(always)]
fn group_body<const FUSED: bool>(x: &mut [f32], z: &[f32], weight: &[f32], options: GatedNormOptions) {
    let gate = |x: &mut [f32]| x.iter_mut().zip(z).for_each(|(x, &z)| *x *= z / (1.0 + exp::<FUSED>(-z)));
    if options.order == GateOrder::BeforeNorm {
        gate(x);
    }
    let mean_square = sum(x, |x| x * x) / x.len() as f32;
    let scale = 1.0 / (mean_square + options.eps as f32).sqrt();
    x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
    if options.order == GateOrder::AfterNorm {
        gate(x);
    }
}
