//! Of training, products alone.

#[path = "../../../../src/ops/cpu/training/product/mod.rs"]
mod product;
#[path = "../../../../src/ops/cpu/training/scratch.rs"]
mod scratch;

use std::time::Instant;

use self::product::{Accumulate, RightOperand, View, new_product, new_product_with};
use super::{Panels, allocator::keep_freed_memory, timing::noise};
use crate::ops::{Dtype, MatrixRows, Precision};

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

/// The products with matrices that do not train, by how they are stored.
pub(super) fn time_frozen() {
    keep_freed_memory();
    for [n_rows, d_in, d_out] in [[1024, 576, 3072], [1024, 1536, 576], [341, 576, 49152]] {
        let (x, gradient) = (noise(n_rows * d_in, 1), noise(n_rows * d_out, 2));
        let weight = noise(d_out * d_in, 3);
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Q8, Dtype::Q4] {
            // As many layers, so that operands come from memory.
            let n_layers = (1 << 22) / weight.len() + 1;
            let layers: Vec<_> =
                (0..n_layers).map(|_| Panels::from_rows(&MatrixRows::of(&weight, [d_out, d_in]), dtype)).collect();
            print!("frozen in {dtype}, {n_rows} rows of {d_in} to {d_out}:");
            for (name, lhs, n_cols) in [("forward", &x, d_in), ("of x", &gradient, d_out)] {
                let lhs = View::new(lhs, [n_rows, n_cols], n_cols);
                let best = (0..5)
                    .map(|_| {
                        let start = Instant::now();
                        for panels in &layers {
                            let rhs = if name == "forward" {
                                RightOperand::StoredTransposed(panels)
                            } else {
                                RightOperand::Stored(panels)
                            };
                            std::hint::black_box(new_product_with(lhs, rhs, None, Precision::F32));
                        }
                        start.elapsed().as_secs_f64()
                    })
                    .fold(f64::INFINITY, f64::min);
                print!("  {name} {:.1} G", (n_layers * n_rows * d_in * d_out) as f64 / best / 1e9);
            }
            println!();
        }
    }
}

/// The products with low-rank matrices in a step of LoRA.
pub(super) fn time_low_rank() {
    keep_freed_memory();
    for [n_rows, d_in, d_out, rank] in [[1024, 576, 3072, 32], [1024, 1536, 576, 16], [1024, 576, 960, 48]] {
        let lens = [n_rows * d_in, n_rows * d_out, n_rows * rank, rank * d_in, d_out * 16];
        let layers: Vec<_> = (0..6).map(|_| lens.map(|len| noise(len, len as u32))).collect();
        let mut outputs: Vec<_> = (0..6).map(|_| [noise(n_rows * d_in, 1), noise(n_rows * d_out, 2)]).collect();
        println!("{n_rows} rows of {d_in} to {d_out}, rank {rank}:");
        for name in ["x A^T", "+ r B^T", "g B", "g^T r", "r^T x", "+ r A"] {
            let (mut best, mut n) = (f64::INFINITY, 0);
            for _ in 0..7 {
                let start = Instant::now();
                n = 0;
                for ([x, g, r, a, b], [of_x, of_g]) in layers.iter().zip(&mut outputs) {
                    let part = d_out / (rank / 16);
                    let x = View::new(x, [n_rows, d_in], d_in);
                    let whole_r = View::new(r, [n_rows, rank], rank);
                    let a = View::new(a, [rank, d_in], d_in);
                    let parts = |run: &mut dyn FnMut(usize, View<'_>, View<'_>, View<'_>)| {
                        for p in 0..rank / 16 {
                            let g = View::new(&g[p * part..], [n_rows, part], d_out);
                            let r = View::new(&r[p * 16..], [n_rows, 16], rank);
                            run(p, g, r, View::new(&b[p * part * 16..], [part, 16], 16));
                        }
                    };
                    let mut of_r = vec![0.0; n_rows * rank];
                    let mut of_a = vec![0.0; rank * d_in];
                    let p32 = Precision::F32;
                    n += n_rows * rank * d_in;
                    match name {
                        "x A^T" => drop(std::hint::black_box(new_product([x, a.transposed()], None, p32))),
                        "r^T x" => product::product_at(
                            &mut of_a,
                            (0, d_in),
                            [whole_r.transposed(), x],
                            Accumulate::Nothing,
                            p32,
                        ),
                        "+ r A" => product::product_at(of_x, (0, d_in), [whole_r, a], Accumulate::Itself, p32),
                        _ => {
                            n += n_rows * d_out * 16 - n_rows * rank * d_in;
                            parts(&mut |p, g, r, b| match name {
                                "+ r B^T" => product::product_at(
                                    of_g,
                                    (p * part, d_out),
                                    [r, b.transposed()],
                                    Accumulate::Itself,
                                    p32,
                                ),
                                "g B" => {
                                    product::product_at(&mut of_r, (p * 16, rank), [g, b], Accumulate::Nothing, p32)
                                }
                                _ => drop(std::hint::black_box(new_product([r.transposed(), g], None, p32))),
                            });
                        }
                    }
                    std::hint::black_box((&of_r, &of_a));
                }
                best = f64::min(best, start.elapsed().as_secs_f64());
            }
            println!("  {name:8} {:6.1} G  {:6.0} us", n as f64 / best / 1e9, best / 6.0 * 1e6);
        }
    }
}
