//! Of training, products alone.

#[path = "../../../../src/ops/cpu/training/product/mod.rs"]
mod product;
#[path = "../../../../src/ops/cpu/training/scratch.rs"]
mod scratch;

use std::time::Instant;

use self::product::{View, new_product};
use super::timing::noise;
use crate::ops::Precision;

/// A layer's product in training, and the two of its gradients.
pub(super) fn time(precision: Precision) {
    for [n_rows, d_in, d_out] in
        [[768, 128, 512], [2048, 384, 1536], [2048, 1536, 384], [2048, 512, 1376], [1024, 768, 3072], [1024, 768, 8192]]
    {
        let [x, weight, gradient] = [n_rows * d_in, d_out * d_in, n_rows * d_out].map(|len| noise(len, len as u32));
        let [x, weight, gradient] = [(&x, [n_rows, d_in]), (&weight, [d_out, d_in]), (&gradient, [n_rows, d_out])]
            .map(|(values, dims)| View::new(values, dims, dims[1]));
        print!("training in {precision:?}, {n_rows} rows of {d_in} to {d_out}:");
        for (name, operands) in [
            ("forward", [x, weight.transposed()]),
            ("of x", [gradient, weight]),
            ("of weight", [gradient.transposed(), x]),
        ] {
            let best = (0..12)
                .map(|_| {
                    let start = Instant::now();
                    std::hint::black_box(new_product(operands, None, precision));
                    start.elapsed().as_secs_f64()
                })
                .fold(f64::INFINITY, f64::min);
            print!("  {name} {:.1} G", (n_rows * d_in * d_out) as f64 / best / 1e9);
        }
        println!();
    }
}
