//! What the device can do at most: reads, multiplications, and launches of nothing.

use burn::tensor::Device;
use burn_cubecl::{
    cubecl::{
        self,
        cmma::{self, Matrix, MatrixIdent, MatrixLayout},
        ir::{ElemType, FloatKind},
        prelude::*,
    },
    tensor::CubeTensor,
};

use super::{
    super::{launch::grid, measure},
    Case, Gpu,
};

/// Fragments that a plane multiplies in turn, so that none waits for its own last result.
const CHAINS: usize = 8;
/// Multiplications of each.
const TURNS: usize = 512;

/// Bytes per second that the device reads, of `n_bytes` again and again.
///
/// # Errors
/// If the device fails.
pub fn read_bandwidth(n_bytes: usize, device: &Device) -> anyhow::Result<f64> {
    Ok(measure::read_bandwidth(n_bytes, device)?)
}

/// Multiply-adds per second in f32, without matrix instructions.
///
/// # Errors
/// If the device fails.
pub fn multiply_rate(device: &Device) -> anyhow::Result<f64> {
    Ok(measure::multiply_rate(device)?)
}

/// Launches that do nothing.
pub fn nothing(gpu: &Gpu) -> Case {
    let output = gpu.floats(&[64]);
    Case::new("empty", [0, 0], move || {
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: the one number that is written is there.
        unsafe {
            do_nothing::launch_unchecked(
                &output.client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(32),
                output.clone().into_buffer_arg(),
                2.0,
            );
        }
        output.clone()
    })
}

#[cube(launch_unchecked)]
fn do_nothing(found: &mut [f32], value: f32) {
    // Never true.
    if value < 0.0f32 {
        found[0] = value;
    }
}

/// Matrix instructions on fragments in registers: of each kind of 16-bit numbers that the device multiplies, one case.
pub fn fragments(gpu: &Gpu, n_blocks: usize) -> Vec<Case> {
    let properties = gpu.client.properties();
    let plane = properties.hardware.plane_size_max as usize;
    let mut cases = Vec::new();
    for (name, element) in [("f16", FloatKind::F16), ("bf16", FloatKind::BF16)] {
        let element = ElemType::Float(element);
        let f32 = ElemType::Float(FloatKind::F32);
        let size = [16, 8].into_iter().find(|&size| {
            properties.features.matmul.cmma.iter().any(|found| {
                [found.a_type, found.b_type, found.cd_type] == [element, element, f32]
                    && [found.m, found.n, found.k] == [size; 3]
            })
        });
        if let Some(size) = size {
            let (size, planes) = (size as usize, 4);
            let macs = n_blocks * planes * CHAINS * TURNS * size * size * size;
            let output = gpu.floats(&[size * size]);
            cases.push(Case::new(format!("fragments {name} {size}x{size}x{size}"), [0, macs], move || {
                #[expect(unsafe_code, reason = "a kernel without bounds checks")]
                // SAFETY: the output is as large as a fragment.
                unsafe {
                    multiply_fragments::launch_unchecked(
                        &output.client,
                        grid(n_blocks, 1),
                        CubeDim::new_2d(plane as u32, planes as u32),
                        output.clone().into_buffer_arg(),
                        0.5,
                        size,
                        element,
                    );
                }
                output.clone()
            }));
        }
    }
    cases
}

#[cube(launch_unchecked)]
fn multiply_fragments<S: Numeric>(
    found: &mut [f32],
    value: f32,
    #[comptime] size: usize,
    #[define(S)] _element: ElemType,
) {
    let a = Matrix::<S>::from_value(MatrixIdent::A, size, size, size, MatrixLayout::RowMajor, S::cast_from(value));
    let b = Matrix::<S>::from_value(MatrixIdent::B, size, size, size, MatrixLayout::ColMajor, S::cast_from(value));
    let mut sums = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..CHAINS {
        let ident = MatrixIdent::Accumulator;
        sums.push(Matrix::<f32>::from_value(ident, size, size, size, MatrixLayout::Undefined, 0.0f32));
    }
    for _ in 0..TURNS {
        #[unroll]
        for i in 0..CHAINS {
            cmma::execute(&a, &b, sums.index(i), sums.index(i));
        }
    }
    #[unroll]
    for i in 0..CHAINS {
        // Never true, but unused sums would not be computed.
        if value < 0.0f32 {
            cmma::store(found.slice_mut(0, 1), sums.index(i), size as u32, MatrixLayout::RowMajor);
        }
    }
}
