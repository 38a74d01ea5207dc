//! `x W^T + b` and its gradients.

use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};

use super::LANES;
use crate::ops::{
    Precision,
    cube::{
        launch::{empty, grid, workgroup},
        product::{Causal, Operand, Product},
        tensors::{plain, wrap},
    },
    types::TrainingOp,
};

/// Maximum number of rows that a lane adds.
const ROWS: usize = 64;

/// Inputs: `x [n_rows, d_in]`, the weight `[d_out, d_in]` and an optional bias `[d_out]`; see [`linear`](crate::ops::linear).
#[derive(Debug)]
pub(in crate::ops) struct Linear {
    pub(in crate::ops) precision: Precision,
}

impl TrainingOp<CubeTensor> for Linear {
    fn forward(&self, inputs: &[CubeTensor], _wanted: &[bool]) -> (CubeTensor, Vec<CubeTensor>) {
        let ([n_rows, d_in], [d_out, _]) = (inputs[0].meta.shape().dims(), inputs[1].meta.shape().dims());
        let product = Product {
            a: Operand::new(&inputs[0], d_in),
            b: Operand::new(&inputs[1], d_in).transposed(),
            dims: [n_rows, d_out, d_in],
            batch: 1,
            causal: (Causal::No, 0),
            bias: inputs.get(2),
            precision: self.precision,
        };
        (multiply(product), Vec::new())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: Vec<CubeTensor>,
        gradient: &CubeTensor,
        wanted: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let ([n_rows, d_in], [d_out, _]) = (inputs[0].meta.shape().dims(), inputs[1].meta.shape().dims());
        let of_output = Operand::new(gradient, d_out);
        let product = |a, b, dims| Product {
            a,
            b,
            dims,
            batch: 1,
            causal: (Causal::No, 0),
            bias: None,
            precision: self.precision,
        };
        let of_x = || multiply(product(of_output, Operand::new(&inputs[1], d_in), [n_rows, d_in, d_out]));
        let of_weight =
            || multiply(product(of_output.transposed(), Operand::new(&inputs[0], d_in), [d_out, d_in, n_rows]));
        let mut gradients = vec![wanted[0].then(of_x), wanted[1].then(of_weight)];
        if let Some(&is_wanted) = wanted.get(2) {
            gradients.push(is_wanted.then(|| sums_of_columns(gradient)));
        }
        gradients
    }
}

/// The products by matrix instructions, or else by the library: `[batch * m, n]`.
pub(super) fn multiply(product: Product<'_>) -> CubeTensor {
    if product.has_kernel() {
        return product.to_tensor();
    }
    let [m, n, k] = product.dims;
    let side = |operand: Operand<'_>, [rows, columns]: [usize; 2]| {
        let [rows, columns] = if operand.is_transposed { [columns, rows] } else { [rows, columns] };
        assert_eq!(operand.stride, columns, "rows without padding");
        let matrices = wrap::<2>(operand.tensor.clone()).reshape([product.batch, rows, columns]);
        if operand.is_transposed { matrices.swap_dims(1, 2) } else { matrices }
    };
    let products = side(product.a, [m, k]).matmul(side(product.b, [k, n])).reshape([product.batch * m, n]);
    plain(match product.bias {
        Some(bias) => products + wrap::<1>(bias.clone()).reshape([1, n]),
        None => products,
    })
}

/// [`multiply`] of one pair, into rows of `stride` numbers; numbers after the `n`th are undefined. If there is no
/// kernel, the library's product has rows of `n` numbers.
pub(super) fn multiply_padded(product: Product<'_>, stride: usize) -> CubeTensor {
    if !product.has_kernel() {
        return multiply(product);
    }
    let output = empty(product.a.tensor, [product.dims[0], stride]);
    product.write(&output, stride, false);
    output
}

/// The product of one pair, added to `sum [m, n]` if there is one.
pub(super) fn multiply_onto(sum: Option<CubeTensor>, product: Product<'_>) -> CubeTensor {
    match sum {
        Some(sum) if product.has_kernel() => {
            product.write(&sum, product.dims[1], true);
            sum
        }
        Some(sum) => plain(wrap::<2>(sum) + wrap::<2>(multiply(product))),
        None => multiply(product),
    }
}

/// The sums of the columns of `values [n_rows, width]`: `[width]`.
pub(super) fn sums_of_columns(values: &CubeTensor) -> CubeTensor {
    let [n_rows, width] = values.meta.shape().dims::<2>();
    let n_parts = n_rows.div_ceil(ROWS).max(1);
    let sums = empty(values, [n_parts, width]);
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: each lane has its own column, and some of the rows.
    unsafe {
        add_rows::launch_unchecked(
            &values.client,
            grid(width.div_ceil(LANES) * n_parts, 1),
            CubeDim::new_1d(LANES as u32),
            values.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            n_rows,
            width,
            n_parts,
        );
    }
    match n_parts {
        1 => plain(wrap::<2>(sums).reshape([width])),
        _ => sums_of_columns(&sums),
    }
}

#[cube(launch_unchecked)]
fn add_rows(values: &[f32], sums: &mut [f32], n_rows: usize, width: usize, n_parts: usize) {
    let number = workgroup();
    let part = number % n_parts;
    let column = number / n_parts * LANES + UNIT_POS_X as usize;
    if column < width {
        let first = part * ROWS;
        let mut sum = 0.0f32;
        for row in first..min(first + ROWS, n_rows) {
            sum += values[row * width + column];
        }
        sums[part * width + column] = sum;
    }
}
