#![expect(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;

use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl::prelude::CubeElement;

use super::{super::device::cube_device, *};
use crate::{
    decode::sampling::{Purpose, RandomStream},
    test_gpu::gpu,
};

thread_local! {
    static ALLOWS_F16: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn allows_f16() -> bool {
    ALLOWS_F16.get()
}

/// Lets f16 replace bf16 in this thread from now on.
pub(in crate::ops) fn allow_f16() {
    ALLOWS_F16.set(true);
}

/// A matrix on a device, and its values.
struct Held {
    tensor: CubeTensor,
    values: Vec<f32>,
    stride: usize,
}

impl Held {
    fn new(like: &CubeTensor, seed: u64, rows: usize, [n_used, stride]: [usize; 2]) -> Self {
        let random = RandomStream::new(seed, 0);
        // Rows of very different sizes.
        let has_bf16 = instructions(&like.client).is_some_and(|(element, _)| element == BF16);
        let size = |row: usize| if has_bf16 { [1.0, 3e-7, 2e5, 40.0] } else { [1.0, 0.02, 30.0, 4.0] }[row % 4];
        let value = |at: usize| match at % stride < n_used {
            true => (random.uniform(at, Purpose::Token) as f32 * 2.0 - 1.0) * size(at / stride),
            false => 0.0,
        };
        let values: Vec<f32> = (0..rows * stride).map(value).collect();
        let handle = like.client.create_from_slice(f32::as_bytes(&values));
        let shape = Shape::new([rows, stride]);
        let tensor = CubeTensor::new_contiguous(like.client.clone(), like.device.clone(), shape, handle, DType::F32);
        Self { tensor, values, stride }
    }

    fn operand(&self, is_transposed: bool) -> Operand<'_> {
        Operand { tensor: &self.tensor, stride: self.stride, is_transposed }
    }
}

/// Each value of the product in f64, and the sum of the magnitudes of its terms.
fn in_f64(product: &Product<'_>, a: &Held, b: &Held, bias: Option<&Held>) -> Vec<(f64, f64)> {
    let [m, n, k] = product.dims;
    let at = |held: &Held, is_transposed: bool, pair: usize, [row, column]: [usize; 2], [rows, columns]: [usize; 2]| {
        let ([row, column], rows) = match is_transposed {
            true => ([column, row], columns),
            false => ([row, column], rows),
        };
        f64::from(held.values[(pair * rows + row) * held.stride + column])
    };
    let mut all = Vec::new();
    for (pair, row, column) in (0..product.batch * m * n).map(|i| (i / (m * n), i / n % m, i % n)) {
        let added = bias.map_or(0.0, |bias| f64::from(bias.values[column]));
        let terms = (0..k).map(|term| {
            let of_a = at(a, product.a.is_transposed, pair, [row, term], [m, k]);
            of_a * at(b, product.b.is_transposed, pair, [term, column], [k, n])
        });
        all.push(terms.fold((added, added.abs()), |(sum, size), term| (sum + term, size + term.abs())));
    }
    all
}

fn read(tensor: &CubeTensor) -> Vec<f32> {
    f32::from_bytes(&tensor.client.read_one(tensor.handle.clone()).unwrap()).to_vec()
}

/// The largest error, relative to the sum of the magnitudes.
fn largest_error(found: &[f32], expected: &[(f64, f64)]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let errors = found.iter().zip(expected).map(|(&found, &(sum, size))| (f64::from(found) - sum).abs() / size);
    errors.fold(0.0, f64::max)
}

/// Includes a NaN with all bits set, which NVIDIA's GPUs write: rounded up, it would become 0.
#[test]
fn gpu_products_keep_nan_and_infinity_non_finite() {
    let Some(device) = gpu() else { return };
    allow_f16();
    let cube = cube_device(&device);
    let upload = |values: &[f32], dims: [usize; 2]| {
        let handle = cube.client().create_from_slice(f32::as_bytes(values));
        CubeTensor::new_contiguous(cube.client(), cube.clone(), Shape::new(dims), handle, DType::F32)
    };
    let weights = upload(&[1.0; 20 * 32], [20, 32]);
    for broken in [f32::NAN, f32::from_bits(0x7fff_ffff), f32::from_bits(0xffff_ffff), f32::INFINITY] {
        let mut x = vec![0.5; 3 * 32];
        x[32 + 7] = broken;
        let x = upload(&x, [3, 32]);
        let (a, b) = (Operand::new(&x, 32), Operand::new(&weights, 32).transposed());
        for precision in [Precision::F32, Precision::Bf16] {
            let product = Product { a, b, dims: [3, 20, 32], batch: 1, causal: (Causal::No, 0), bias: None, precision };
            if product.has_kernel() {
                let finite: Vec<bool> = read(&product.to_tensor()).iter().map(|value| value.is_finite()).collect();
                assert_eq!(finite, [[true; 20], [false; 20], [true; 20]].concat(), "{:x}", broken.to_bits());
            }
        }
    }
}

#[test]
fn gpu_products_by_matrix_instructions_are_close_to_f64() {
    let Some(device) = gpu() else { return };
    allow_f16();
    let cube = cube_device(&device);
    let like = CubeTensor::new_contiguous(
        cube.client(),
        cube.clone(),
        Shape::new([1]),
        cube.client().create_from_slice(&[0; 4]),
        DType::F32,
    );
    // Rows, columns and terms; which operands are transposed; how many pairs. The software adapter compiles each kind of kernel
    // for seconds.
    for (dims, [a_transposed, b_transposed], batch, precision) in [
        ([1, 1, 1], [false, true], 1, Precision::F32),
        ([65, 33, 129], [false, true], 1, Precision::F32),
        ([70, 200, 40], [false, false], 1, Precision::F32),
        ([16, 300, 96], [true, false], 1, Precision::F32),
        ([40, 24, 1100], [true, false], 3, Precision::F32),
        ([70, 200, 40], [true, true], 3, Precision::Bf16),
    ] {
        let [m, n, k] = dims;
        let side = |seed: u64, rows: usize, columns: usize, is_transposed: bool| {
            let [rows, columns] = if is_transposed { [columns, rows] } else { [rows, columns] };
            Held::new(&like, seed, batch * rows, [columns, columns.next_multiple_of(4) + 4])
        };
        let (a, b) = (side(1, m, k, a_transposed), side(2, k, n, b_transposed));
        let bias = (!a_transposed).then(|| Held::new(&like, 3, 1, [n, n]));
        let product = Product {
            a: a.operand(a_transposed),
            b: b.operand(b_transposed),
            dims,
            batch,
            causal: (Causal::No, 0),
            bias: bias.as_ref().map(|bias| &bias.tensor),
            precision,
        };
        if !product.has_kernel() {
            // Neither WGSL nor most software adapters have matrix instructions.
            return;
        }
        let expected = in_f64(&product, &a, &b, bias.as_ref());
        let error = largest_error(&read(&product.to_tensor()), &expected);
        // With one number of f16 or bf16 for an operand, the last of 11 or 8 bits is rounded.
        let most = if precision == Precision::F32 { 1.2e-5 } else { 8e-3 };
        assert!(error < most, "{dims:?} {a_transposed} {b_transposed} x {batch}: {error:e}");
        assert!(precision == Precision::F32 || error > 1e-6, "nothing was rounded: {error:e}");
        if batch == 1 && a_transposed {
            // The same product written and then added once more, to rows of another length.
            let stride = n + 3;
            let output = empty(&like, [m, stride]);
            product.write(&output, stride, false);
            product.write(&output, stride, true);
            let rows: Vec<f32> =
                read(&output).chunks(stride).flat_map(|row| &row[..n]).map(|value| value / 2.0).collect();
            let error = largest_error(&rows, &expected);
            assert!(error < most, "{dims:?} added: {error:e}");
        }
    }
}
