//! Timing of the formats that only files have, beside q4 and q8.

use std::array;

use half::{bf16, f16};

use super::{super::packed_matrix::Panels, time_products};
use crate::ops::{
    BLOCK_SIZE, Dtype, MatrixRows, QuantizedBlock,
    k_quants::{BlockRows, Fp8Scales, GroupRun, K_BLOCK, KBlock, MxBlock},
};

/// The matrices of a block of a model of 1B: `[d_out, d_in]`.
const MATRICES: [[usize; 2]; 4] = [[3072, 2048], [2048, 2048], [11_264, 2048], [2048, 5632]];
const COPIES: usize = 4;

pub(super) fn run(only: Option<&str>) {
    let levels = |dtype| -> &[i8] {
        match dtype {
            Dtype::Iq4Nl | Dtype::Iq4Xs => &[-127, -10, 1, 113],
            Dtype::Mxfp4 => &[0, 3, -6, 12],
            Dtype::Iq3S => &[-15, 1, 7, 13],
            Dtype::Iq3Xxs => &[-62, 4, 20, 62],
            Dtype::Iq2 => &[-43, -8, 25, 43],
            Dtype::Iq1 => &[-9, -1, 7, 9],
            Dtype::Q4K | Dtype::Q2K | Dtype::Int4 => &[0, 1, 2, 3],
            Dtype::Q2 => &[-1, 0, 1],
            _ => &[-4, -1, 0, 3],
        }
    };
    for dtype in [
        Dtype::Q8,
        Dtype::Q4,
        Dtype::Q6K,
        Dtype::Q4K,
        Dtype::Iq4Nl,
        Dtype::Iq4Xs,
        Dtype::Mxfp4,
        Dtype::Q3K,
        Dtype::Q2K,
        Dtype::Iq3S,
        Dtype::Iq3Xxs,
        Dtype::Iq2,
        Dtype::Iq1,
        Dtype::Q2,
        Dtype::Int4,
        Dtype::Int8,
        Dtype::Fp8,
    ] {
        let name = format!("{dtype}-file");
        if only.is_some_and(|only| {
            !only.split(',').any(|only| name.starts_with(only) && only.contains('-') || only == "files")
        }) {
            continue;
        }
        let levels = levels(dtype);
        let value = |row: usize, at: usize| levels[(row * 7 + at * 13 + at / 5) % levels.len()];
        let panels = |[d_out, d_in]: [usize; 2]| {
            let blocks = match dtype {
                Dtype::Mxfp4 => BlockRows::Mx(MatrixRows::new([d_out, d_in], d_in / BLOCK_SIZE, move |row, out| {
                    out.fill(MxBlock { scale: bf16::from_f32(0.0625), values: array::from_fn(|at| value(row, at)) });
                })),
                Dtype::Int4 | Dtype::Int8 => {
                    let read = move |row, out: &mut [GroupRun]| {
                        out.fill(GroupRun { scale: 0.01, zero: 2, values: array::from_fn(|at| value(row, at)) });
                    };
                    let rows = MatrixRows::new([d_out, d_in], d_in / BLOCK_SIZE, read);
                    BlockRows::Groups { rows, n_runs: 4, order: None }
                }
                Dtype::Fp8 => {
                    let rows = MatrixRows::new([d_out, d_in], d_in, |row, out: &mut [u8]| {
                        out.iter_mut().enumerate().for_each(|(at, out)| *out = 0x30 + ((row + at * 5) % 16) as u8);
                    });
                    let n_blocks = d_in / 128;
                    let scales = Fp8Scales { values: vec![0.01; d_out / 128 * n_blocks], block: [128, 128], n_blocks };
                    BlockRows::Fp8(rows, scales)
                }
                _ if dtype == Dtype::Q4K || dtype.has_super_blocks() => {
                    BlockRows::Super(MatrixRows::new([d_out, d_in], d_in / K_BLOCK, move |row, out| {
                        out.fill(KBlock {
                            scale: 0.125,
                            minimum: 0.0,
                            scales: [3; 16],
                            minima: [1; 16],
                            values: array::from_fn(|at| value(row, at)),
                        });
                    }))
                }
                _ => BlockRows::Small(MatrixRows::new([d_out, d_in], d_in / BLOCK_SIZE, move |row, out| {
                    let values = array::from_fn(|at| value(row, at));
                    out.fill(QuantizedBlock { scale: f16::from_f32(0.01), minimum: f16::ZERO, values });
                })),
            };
            Panels::from_parts(&[(dtype, blocks)])
        };
        let all: Vec<Panels> = (0..COPIES).flat_map(|_| MATRICES.map(panels)).collect();
        time_products(&dtype.to_string(), &all);
    }
}
