//! `x W^T` for many rows with the device's matrix instructions, which multiply f16.
//!
//! A row of the input is split into two of f16, the nearest numbers and the remainders, which keep 22 bits; so is a row
//! of the weight, if it has more bits than f16. Products of f16 are exact in f32, in which they are added; the product
//! of both remainders is omitted, since it is as small as the rounding errors of f32. So the result is as exact as that
//! of the other kernels. (After [Ootomo and Yokota](https://arxiv.org/abs/2203.03341).)
//!
//! The product of f16 is cubek's.

mod split;

use std::sync::{PoisonError, RwLock};

use burn::{
    backend::CubeDevice,
    tensor::{DType, Shape},
};
use burn_cubecl::{
    cubecl::{
        self,
        ir::{ElemType, FloatKind},
        prelude::*,
    },
    tensor::CubeTensor,
};
use cubek::{
    matmul::{
        definition::{MatmulElems, MatmulGlobalElems, MatmulSetupError},
        launch::launch_ref,
        multi_level,
        strategy::Strategy,
    },
    std::InputBinding,
};
use half::f16;

use split::{Rows, Weights, row_len};

use super::{
    epilogue::Epilogue,
    launch::{empty, grid, workgroup},
    matrix::{Format, Matrix},
};

/// Lanes of a workgroup.
const LANES: usize = 256;
/// Numbers in a slice of the weight in f16, at most: 64 MB.
const MAX_WEIGHTS: usize = 32 << 20;
/// Numbers in a slice of the products, at most: 64 MB.
const MAX_PRODUCTS: usize = 16 << 20;
/// Rows of a product are padded (with any values) to a multiple of this: the library's tiles have 128 rows on most
/// devices, so all products use the kernel that the warm-up compiled.
const ROWS: usize = 128;
/// Outputs of a slice are a multiple of this, which gives slices of f16 weights the alignment of buffers.
const OUTPUTS: usize = 128;
/// Operand and result types of matrix instructions.
const F16: ElemType = ElemType::Float(FloatKind::F16);
const F32: ElemType = ElemType::Float(FloatKind::F32);

/// Devices for which the library had no kernel: it is not tried again.
static REFUSED: RwLock<Vec<CubeDevice>> = RwLock::new(Vec::new());

fn is_refused(device: &CubeDevice) -> bool {
    REFUSED.read().unwrap_or_else(PoisonError::into_inner).contains(device)
}

fn refuse(device: &CubeDevice) {
    let mut refused = REFUSED.write().unwrap_or_else(PoisonError::into_inner);
    if !refused.contains(device) {
        refused.push(device.clone());
    }
}

/// Whether the matrix's device has such instructions and the matrix's format is split: f32 is not.
pub(super) fn has_body(matrix: &Matrix) -> bool {
    let properties = matrix.words.client.properties();
    let mut kinds = properties.features.matmul.cmma.iter();
    matrix.format != Format::F32
        && kinds.any(|config| [config.a_type, config.b_type, config.cd_type] == [F16, F16, F32])
        && properties.supports_type(F16)
        && !is_refused(&matrix.words.device)
}

/// Writes `x [n_rows, d_in]` times the transposed matrix, with bias and residual, to `output [n_rows, d_out]`. Returns
/// false if the library has no kernel for this device; `output` is then undefined and this path stays disabled for the
/// device.
pub(super) fn launch(x: &CubeTensor, matrix: &Matrix, epilogue: &Epilogue, output: &CubeTensor) -> bool {
    // The library's choice for devices with matrix instructions.
    let strategy = multi_level::Strategy::SimpleCyclicCmma(Default::default()).into();
    let n_rows = x.meta.shape()[0];
    let most = (MAX_WEIGHTS / row_len(matrix)).min(MAX_PRODUCTS / n_rows.clamp(1, LANES));
    let slice_out = (most / OUTPUTS * OUTPUTS).max(OUTPUTS);
    let slice_rows = (MAX_PRODUCTS / slice_out.min(matrix.d_out) / 2).max(1);
    match launch_in_slices(&strategy, [slice_rows, slice_out], x, matrix, epilogue, output) {
        Ok(()) => true,
        Err(error) => {
            refuse(&matrix.words.device);
            tracing::warn!(?error, device = ?matrix.words.device, "cannot use the device's matrix instructions");
            false
        }
    }
}

/// [`launch`] in slices of rows and outputs.
///
/// # Errors If `strategy` has no kernel for it.
fn launch_in_slices(
    strategy: &Strategy,
    [slice_rows, slice_out]: [usize; 2],
    x: &CubeTensor,
    matrix: &Matrix,
    epilogue: &Epilogue,
    output: &CubeTensor,
) -> Result<(), MatmulSetupError> {
    let (n_rows, width) = (x.meta.shape()[0], row_len(matrix));
    for first_output in (0..matrix.d_out).step_by(slice_out) {
        let n_outputs = slice_out.min(matrix.d_out - first_output);
        let weights = Weights::new(matrix, first_output, n_outputs);
        for first_row in (0..n_rows).step_by(slice_rows) {
            // The product with the nearest weights has rows for the nearest inputs, then for the remainders; the
            // product with the weights' remainders needs the former only.
            let multiple = if weights.rest.is_some() { ROWS } else { ROWS / 2 };
            let n = slice_rows.min(n_rows - first_row);
            let rows = Rows::new(x, first_row, [n, n.next_multiple_of(multiple)], width);
            let main = multiply(strategy, &rows.halves, &weights.nearest, 2 * rows.n_filled)?;
            let rest = weights.rest.as_ref();
            let rest = rest.map(|rest| multiply(strategy, &rows.halves, rest, rows.n_filled)).transpose()?;
            combine([main, rest.unwrap_or_else(|| x.clone())], &rows, &weights, epilogue, output);
        }
    }
    Ok(())
}

/// The first `n` rows of `x [.., width]` times the transposed `weights [n_outputs, width]`, both f16: `[n, n_outputs]`.
fn multiply(
    strategy: &Strategy,
    x: &CubeTensor,
    weights: &CubeTensor,
    n: usize,
) -> Result<CubeTensor, MatmulSetupError> {
    let [n_outputs, width] = weights.meta.shape().dims::<2>();
    let products = empty(x, [n, n_outputs]);
    let behind = ((x.meta.shape()[0] - n) * width * size_of::<f16>()) as u64;
    let handle = x.handle.clone().offset_end(behind);
    let shape = Shape::new([n, width]);
    let rows = CubeTensor::new_contiguous(x.client.clone(), x.device.clone(), shape, handle, DType::F16);
    let mut weights = InputBinding::new(weights.clone().binding(), F16);
    weights.swap_dims(0, 1);
    let rows = InputBinding::new(rows.binding(), F16);
    let mut elements = MatmulElems::from_globals(&MatmulGlobalElems { lhs: F16, rhs: F16, out: F32 });
    launch_ref(strategy, &x.client, rows, weights, products.clone().binding(), &mut elements)?;
    Ok(products)
}

fn combine([main, rest]: [CubeTensor; 2], rows: &Rows, weights: &Weights, epilogue: &Epilogue, output: &CubeTensor) {
    let or_absent = |tensor: &Option<CubeTensor>| tensor.as_ref().unwrap_or(&main).clone().into_buffer_arg();
    #[expect(unsafe_code, reason = "a kernel without bounds checks")]
    // SAFETY: a lane has one of the slice's products, and the slice is a part of the output; absent operands are not read.
    unsafe {
        combine_products::launch_unchecked(
            &output.client,
            grid((rows.n * weights.n).div_ceil(LANES), 1),
            CubeDim::new_1d(LANES as u32),
            main.clone().into_buffer_arg(),
            rest.into_buffer_arg(),
            rows.scales.clone().into_buffer_arg(),
            or_absent(&weights.scales),
            or_absent(&epilogue.bias),
            or_absent(&epilogue.residual),
            output.clone().into_buffer_arg(),
            rows.first,
            rows.n,
            rows.n_filled,
            weights.first,
            weights.n,
            output.meta.shape()[1],
            Parts {
                has_rest: weights.rest.is_some(),
                has_scales: weights.scales.is_some(),
                has_bias: epilogue.bias.is_some(),
                has_residual: epilogue.residual.is_some(),
            },
        );
    }
}

/// Which operands [`combine_products`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Parts {
    has_rest: bool,
    has_scales: bool,
    has_bias: bool,
    has_residual: bool,
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn combine_products(
    main: &[f32],
    rest: &[f32],
    row_scales: &[f32],
    scales: &[f32],
    bias: &[f32],
    residual: &[f32],
    output: &mut [f32],
    first_row: usize,
    n_rows: usize,
    n_filled: usize,
    first_output: usize,
    n_outputs: usize,
    d_out: usize,
    #[comptime] parts: Parts,
) {
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < n_rows * n_outputs {
        let (row, out) = (at / n_outputs, at % n_outputs);
        // Small terms first.
        let mut sum = main[at + n_filled * n_outputs];
        if comptime!(parts.has_rest) {
            sum += rest[at];
        }
        sum = (sum + main[at]) * row_scales[row];
        if comptime!(parts.has_scales) {
            sum *= scales[out];
        }
        if comptime!(parts.has_bias) {
            sum += bias[first_output + out];
        }
        let place = (first_row + row) * d_out + first_output + out;
        if comptime!(parts.has_residual) {
            sum += residual[place];
        }
        output[place] = sum;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use burn::{
        backend::WgpuDeviceKind,
        tensor::{Device, TensorData},
    };
    use burn_cubecl::cubecl::prelude::CubeElement;

    use super::{super::device::cube_device, *};
    use crate::{
        ops::{Dtype, Weight, weight::Form},
        test_gpu::gpu,
    };

    fn upload(values: &[f32], dims: [usize; 2], device: &CubeDevice) -> CubeTensor {
        let client = device.client();
        let handle = client.create_from_slice(f32::as_bytes(values));
        CubeTensor::new_contiguous(client, device.clone(), Shape::new(dims), handle, DType::F32)
    }

    /// The product with the library's kernels for devices without matrix instructions, if this is one: the results do
    /// not depend on the choice.
    fn product(
        x: &[f32],
        [n_rows, d_out]: [usize; 2],
        matrix: &Matrix,
        operands: &Epilogue,
        slices: [usize; 2],
        device: &CubeDevice,
    ) -> Vec<f32> {
        let input = upload(x, [n_rows, matrix.d_in], device);
        let output = empty(&input, [n_rows, d_out]);
        let strategy = match has_body(matrix) {
            true => multi_level::Strategy::SimpleCyclicCmma(Default::default()),
            false => multi_level::Strategy::SimpleUnit(Default::default()),
        };
        launch_in_slices(&strategy.into(), slices, &input, matrix, operands, &output).unwrap();
        f32::from_bytes(&output.client.read_one(output.handle.clone()).unwrap()).to_vec()
    }

    /// The largest error, compared with sums in f64 over the stored matrix, relative to the sum of the products'
    /// magnitudes.
    fn largest_error(
        [n_rows, d_in, d_out]: [usize; 3],
        slices: [usize; 2],
        dtype: Dtype,
        has_epilogue: bool,
        device: &Device,
    ) -> f64 {
        let cube = cube_device(device).unwrap();
        // Rows of very different magnitudes, with a few dominant values.
        let value = |at: usize, row: usize| {
            let noise = ((at * 7919 + 13) % 2003) as f32 / 1001.5 - 1.0;
            noise * [1.0, 3e-7, 2e5, 40.0][row % 4] * if at.is_multiple_of(97) { 300.0 } else { 1.0 }
        };
        let x: Vec<f32> = (0..n_rows * d_in).map(|at| value(at, at / d_in)).collect();
        let w: Vec<f32> = (0..d_out * d_in)
            .map(|at| ((at * 104_729 + 7) % 3001) as f32 / 1500.5 - 1.0)
            .enumerate()
            .map(|(at, value)| value * [0.02, 1.0, 8.0][at / d_in % 3])
            .collect();
        let weight = Weight::new(TensorData::new(w, [d_out, d_in]), dtype, device).unwrap();
        let Form::OnGpu(matrix) = weight.form() else { unreachable!("the device is a GPU") };
        let held = matrix.read().unwrap();
        let bias: Vec<f32> = (0..d_out).map(|at| at as f32 * 0.1).collect();
        let residual: Vec<f32> = (0..n_rows * d_out).map(|at| (at % 7) as f32).collect();
        let operands = Epilogue {
            bias: has_epilogue.then(|| upload(&bias, [1, d_out], cube)),
            residual: has_epilogue.then(|| upload(&residual, [n_rows, d_out], cube)),
            norm: None,
        };
        let output = product(&x, [n_rows, d_out], matrix, &operands, slices, cube);
        let mut largest: f64 = 0.0;
        for (at, &given) in output.iter().enumerate() {
            let (row, out) = (at / d_out, at % d_out);
            let pairs = x[row * d_in..][..d_in].iter().zip(&held[out * d_in..][..d_in]);
            let products = pairs.map(|(x, w)| f64::from(*x) * f64::from(*w));
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p: f64| (sum + p, size + p.abs()));
            let (sum, size) = match has_epilogue {
                true => {
                    let added = f64::from(bias[out]) + f64::from(residual[at]);
                    (sum + added, size + added.abs())
                }
                false => (sum, size),
            };
            largest = largest.max((f64::from(given) - sum).abs() / size);
        }
        largest
    }

    /// As exact as sums in f32 (without remainders the error would be 1e-4), for all magnitudes, formats and slices.
    #[test]
    fn products_of_halves_are_as_exact_as_f32() {
        let Some(device) = gpu() else { return };
        let all = usize::MAX;
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::Q8, Dtype::Q5_1, Dtype::Q4_1, Dtype::Q4] {
            for (dims, slices, has_epilogue) in
                [([33, 64, 48], [all, all], false), ([20, 96, 300], [7, 128], true), ([5, 30, 131], [5, 128], false)]
            {
                let error = largest_error(dims, slices, dtype, has_epilogue, &device);
                assert!(error < 2e-6, "{dtype} {dims:?} in slices of {slices:?}: {error:e}");
            }
        }
    }

    /// These devices need not exist, as they are not opened.
    #[test]
    fn a_device_without_a_kernel_leaves_the_others_theirs() {
        let [refused, other] = [77, 78].map(|number| CubeDevice::Wgpu(WgpuDeviceKind::DiscreteGpu(number).into()));
        refuse(&refused);
        assert!(is_refused(&refused) && !is_refused(&other));
    }

    #[test]
    fn what_is_no_number_stays_none() {
        let Some(device) = gpu() else { return };
        let ones = TensorData::new(vec![1.0f32; 20 * 32], [20, 32]);
        let weight = Weight::new(ones, Dtype::Q8, &device).unwrap();
        let Form::OnGpu(matrix) = weight.form() else { unreachable!("the device is a GPU") };
        for broken in [f32::NAN, f32::from_bits(0x7fff_ffff), f32::from_bits(0xffff_ffff), f32::INFINITY] {
            let mut x = vec![0.5; 3 * 32];
            x[32 + 7] = broken;
            let cube = cube_device(&device).unwrap();
            let output = product(&x, [3, 20], matrix, &Epilogue::default(), [usize::MAX; 2], cube);
            let is_broken: Vec<bool> = output.iter().map(|value| !value.is_finite()).collect();
            assert_eq!(is_broken, [[false; 20], [true; 20], [false; 20]].concat(), "{:x}", broken.to_bits());
        }
    }
}
