//! Products of f32 matrices by the device's matrix instructions, which multiply numbers of 16 bits and add in f32.
//!
//! An operand is rounded to bf16, or, for the exactness of f32, it is split into two bf16 numbers, and three of their
//! four products are added (the product of both remainders is as small as the rounding error). This is known as bf16x3
//! ([Henry, Tang and Heinecke](https://arxiv.org/abs/1904.06376)); an error is at most some 2^-16 of the sum of the
//! magnitudes. bf16 has the range of f32, so nothing is scaled.

mod kernel;
#[cfg(test)]
mod tests;

use burn::tensor::Device;
use burn_cubecl::{
    cubecl::{
        client::Client,
        ir::{ElemType, FloatKind},
        prelude::*,
    },
    tensor::CubeTensor,
};

use super::{
    device::cube_device,
    launch::{empty, grid},
};
use crate::ops::Precision;
pub(super) use kernel::{Causal, Plan};
use kernel::{add_parts, product};

/// Numbers that are read at a time.
const TOGETHER: usize = 4;
/// Workgroups that keep a large device busy.
const ENOUGH: usize = 256;
/// Least terms of a sum that is divided among workgroups.
const LEAST_DEPTH: usize = 512;

/// An operand: a matrix, or one for each of a batch, row by row in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand<'a> {
    pub(super) tensor: &'a CubeTensor,
    /// Numbers from one row in memory to the next. If a row runs along the summed dimension, its padding must be 0.
    pub(super) stride: usize,
    /// Whether the matrix in memory is the operand's transpose.
    pub(super) is_transposed: bool,
}

impl<'a> Operand<'a> {
    /// A matrix whose rows of `width` values are contiguous, one after the other.
    pub(super) fn new(tensor: &'a CubeTensor, width: usize) -> Self {
        Self { tensor, stride: width, is_transposed: false }
    }

    pub(super) fn transposed(self) -> Self {
        Self { is_transposed: !self.is_transposed, ..self }
    }
}

/// Operands of a batched product: `[m, k]` by `[k, n]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product<'a> {
    pub(super) a: Operand<'a>,
    pub(super) b: Operand<'a>,
    /// `[m, n, k]`.
    pub(super) dims: [usize; 3],
    pub(super) batch: usize,
    /// The causal mask, and the number of keys.
    pub(super) causal: (Causal, usize),
    /// Added to each row, `[n]`.
    pub(super) bias: Option<&'a CubeTensor>,
    pub(super) precision: Precision,
}

impl Product<'_> {
    /// Whether [`write`](Self::write) has a kernel for these operands.
    pub(super) fn has_kernel(&self) -> bool {
        let is_read_together = [self.a, self.b].iter().all(|side| side.stride.is_multiple_of(TOGETHER));
        is_read_together && self.dims.iter().all(|&dim| dim > 0) && self.plan().is_some()
    }

    /// The products, `[batch * m, n]`.
    ///
    /// # Panics
    /// Unless [`has_kernel`](Self::has_kernel).
    pub(super) fn to_tensor(self) -> CubeTensor {
        let [m, n, _] = self.dims;
        let output = empty(self.a.tensor, [self.batch * m, n]);
        self.write(&output, n, false);
        output
    }

    /// Writes the products to `output`, whose rows have `stride` numbers, or adds them to it.
    ///
    /// # Panics
    /// Unless [`has_kernel`](Self::has_kernel).
    pub(super) fn write(&self, output: &CubeTensor, stride: usize, is_added: bool) {
        let Some(plan) = self.plan() else { unreachable!("`has_kernel` was not asked") };
        self.write_by(plan, output, stride, is_added);
    }

    /// [`write`](Self::write) with the tiles of `plan`, which must [fit](Plan::fits).
    pub(super) fn write_by(&self, mut plan: Plan, output: &CubeTensor, stride: usize, is_added: bool) {
        let [m, n, k] = self.dims;
        plan.has_bias = self.bias.is_some();
        plan.is_added = is_added;
        let (causal, seq_len) = self.causal;
        let leaves_out = match causal {
            Causal::No => false,
            Causal::Scores | Causal::Queries => seq_len.is_multiple_of(plan.m),
            Causal::Keys => seq_len == k,
        };
        plan.causal = if leaves_out { causal } else { Causal::No };
        // Rows of the output that begin at any place are written number by number.
        plan.is_aligned = stride.is_multiple_of(TOGETHER);
        let [row_tiles, column_tiles] = [m.div_ceil(plan.m), n.div_ceil(plan.n)];
        let n_tiles = row_tiles * column_tiles * self.batch;
        // Few tiles with long sums: some workgroups for each tile. How many depends on the dimensions only.
        let n_splits = match plan.has_bias || is_added || stride != n || plan.causal != Causal::No {
            true => 1,
            false => (ENOUGH / n_tiles.max(1)).min(k / LEAST_DEPTH).max(1),
        };
        let depth = k.div_ceil(n_splits).next_multiple_of(plan.k);
        let n_splits = k.div_ceil(depth);
        let partial = (n_splits > 1).then(|| empty(output, [n_splits * self.batch * m, n]));
        let target = partial.as_ref().unwrap_or(output);
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: rows, columns and terms are kept below the sizes of their operands; a missing bias is not read.
        unsafe {
            product::launch_unchecked(
                &output.client,
                grid(n_tiles * n_splits, 1),
                CubeDim::new_2d(plan.plane as u32, plan.planes() as u32),
                TOGETHER,
                self.a.tensor.clone().into_buffer_arg(),
                self.b.tensor.clone().into_buffer_arg(),
                self.bias.unwrap_or(self.a.tensor).clone().into_buffer_arg(),
                target.clone().into_buffer_arg(),
                m,
                n,
                k,
                self.a.stride,
                self.b.stride,
                stride,
                depth,
                row_tiles,
                column_tiles,
                self.batch,
                n_splits,
                seq_len,
                plan,
                plan.element,
            );
        }
        if let Some(partial) = partial {
            let n_values = self.batch * m * n;
            #[expect(unsafe_code, reason = "a kernel without bounds checks")]
            // SAFETY: a lane has one of the output's values, and adds one term per part.
            unsafe {
                add_parts::launch_unchecked(
                    &output.client,
                    grid(n_values.div_ceil(kernel::LANES), 1),
                    CubeDim::new_1d(kernel::LANES as u32),
                    partial.into_buffer_arg(),
                    output.clone().into_buffer_arg(),
                    n_values,
                    n_splits,
                );
            }
        }
    }

    /// How the device computes this product; `None` if it cannot.
    pub(super) fn plan(&self) -> Option<Plan> {
        let transposed = [self.a.is_transposed, self.b.is_transposed];
        plan(&self.a.tensor.client, self.precision, self.dims[1], transposed)
    }
}

/// How the device of `client` computes products with `n` columns; `None` if it cannot.
fn plan(client: &Client, precision: Precision, n: usize, transposed: [bool; 2]) -> Option<Plan> {
    let hardware = &client.properties().hardware;
    let (element, fragment) = instructions(client)?;
    let n_parts = if precision == Precision::Bf16 { 1 } else { 2 };
    let plane = hardware.plane_size_max as usize;
    let mut plan = Plan::new(element, fragment, n_parts, plane, n);
    [plan.a_transposed, plan.b_transposed] = transposed;
    plan.fits(hardware).then_some(plan)
}

/// Whether `device` multiplies numbers of bf16.
pub(in crate::ops) fn has_bf16_products(device: &Device) -> bool {
    has_instructions(&cube_device(device).client())
}

/// The matrix instructions that products use on the device, or why they use none.
pub(super) fn choose_instructions(client: &Client) -> Result<String, String> {
    let properties = client.properties();
    let hardware = &properties.hardware;
    let none = |why: &str| Err(why.to_owned());
    match instructions(client) {
        Some((element, size)) if has_instructions(client) => Ok(format!("{element}, {size}x{size}x{size}")),
        Some(_) if hardware.plane_size_min != hardware.plane_size_max => {
            none("its subgroups do not all have the same number of lanes")
        }
        Some(_) => none("its workgroups have too few lanes or too little shared memory"),
        None if properties.features.matmul.cmma.is_empty() => {
            none("it offers none to this build (the default build, in WGSL, has none on any GPU)")
        }
        None => none("it has none for bf16 in 16x16x16 with sums in f32"),
    }
}

/// Whether the device can compute every [`Product`] by matrix instructions, in each precision and with any operands
/// transposed.
pub(super) fn has_instructions(client: &Client) -> bool {
    // Products of fewer columns need less shared memory and fewer lanes.
    let fits = |precision| [false, true].map(|a| [false, true].map(|b| plan(client, precision, usize::MAX, [a, b])));
    [Precision::F32, Precision::Bf16].map(fits).iter().flatten().flatten().all(Option::is_some)
}

/// The 16-bit type of the device's matrix instructions, and the number of rows, columns and terms of one instruction.
fn instructions(client: &Client) -> Option<(ElemType, usize)> {
    let properties = client.properties();
    let has = |element, size| {
        properties.supports_type(element)
            && properties.features.matmul.cmma.iter().any(|found| {
                let types = [found.a_type, found.b_type, found.cd_type];
                types == [element, element, F32] && [found.m, found.n, found.k] == [size; 3]
            })
    };
    let mut kinds = [(BF16, 16), (F16, 8)].into_iter().filter(|&(element, _)| element == BF16 || allows_f16());
    kinds.find(|&(element, size)| has(element, size as u32))
}

/// Whether f16 may replace bf16 although its range is smaller. Only in tests: Mesa's software adapter has no bf16, and
/// tests use values in the range of f16.
#[cfg(not(test))]
fn allows_f16() -> bool {
    false
}

#[cfg(test)]
pub(in crate::ops) use tests::allow_f16;
#[cfg(test)]
use tests::allows_f16;

const F16: ElemType = ElemType::Float(FloatKind::F16);
const BF16: ElemType = ElemType::Float(FloatKind::BF16);
const F32: ElemType = ElemType::Float(FloatKind::F32);
