//! Of training, products alone.

#[path = "../../../../src/ops/cpu/training/product/mod.rs"]
mod product;
#[path = "../../../../src/ops/cpu/training/scratch.rs"]
mod scratch;

use std::time::Instant;

use self::product::{View, new_product};
use super::{arenas::keep_freed_memory, timing::noise};
use crate::ops::Precision;

/// A layer's product in training, and the two of its gradients.
pub(super) fn time(precision: Precision) {
    keep_freed_memory();
    for [n_rows, d_in, d_out] in
        [[768, 128, 512], [2048, 384, 1536], [2048, 1536, 384], [2048, 512, 1376], [1024, 768, 3072], [1024, 768, 8192]]
    {
        // As many layers, so that operands come from memory.
        let lens = [n_rows * d_in, d_out * d_in, n_rows * d_out];
        let layers: Vec<_> = (0..6).map(|_| lens.map(|len| noise(len, len as u32))).collect();
        print!("training in {precision:?}, {n_rows} rows of {d_in} to {d_out}:");
        for (n, name) in ["forward", "of x", "of weight"].into_iter().enumerate() {
            let best = (0..5)
                .map(|_| {
                    let start = Instant::now();
                    let outputs: Vec<_> = layers
                        .iter()
                        .map(|[x, weight, gradient]| {
                            let [x, weight, gradient] =
                                [(x, [n_rows, d_in]), (weight, [d_out, d_in]), (gradient, [n_rows, d_out])]
                                    .map(|(values, dims)| View::new(values, dims, dims[1]));
                            let operands =
                                [[x, weight.transposed()], [gradient, weight], [gradient.transposed(), x]][n];
                            new_product(operands, None, precision)
                        })
                        .collect();
                    let passed = start.elapsed().as_secs_f64();
                    std::hint::black_box(outputs);
                    passed
                })
                .fold(f64::INFINITY, f64::min);
            print!("  {name} {:.1} G", (layers.len() * n_rows * d_in * d_out) as f64 / best / 1e9);
        }
        println!();
    }
}
