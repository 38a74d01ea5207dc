//! Matrices of experts in MXFP4, as gpt-oss's folders have them: all experts of a layer in one tensor of numbers and one of
//! scales.

use safetensors::Dtype as SafeDtype;

use super::{
    super::{
        ggml_types::mx_block,
        tensor_table::{StoredTensor, TensorTable, ValueKind},
    },
    PackedMatrices, PackedMatrix, Values,
};
use crate::{
    error::Result,
    ops::{BLOCK_SIZE, k_quants::MxBlock},
};

/// How the names of the two tensors end.
const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";
/// Bytes of a block's numbers.
const BLOCK_BYTES: usize = BLOCK_SIZE / 2;

/// A matrix `[d_out, d_in]`.
#[derive(Debug)]
pub(super) struct Mxfp4<'a> {
    /// `[d_out, d_in / 32, 16]`.
    bytes: &'a [u8],
    /// Exponents, `[d_out, d_in / 32]`.
    exponents: &'a [u8],
    /// Blocks of a row.
    n_blocks: usize,
}

impl Mxfp4<'_> {
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = MxBlock> {
        let blocks = row * self.n_blocks..(row + 1) * self.n_blocks;
        let bytes = self.bytes[blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES].chunks_exact(BLOCK_BYTES);
        self.exponents[blocks].iter().zip(bytes).map(|(exponent, bytes)| mx_block(*exponent, bytes))
    }

    pub(super) fn decode(&self, row: usize, out: &mut [f32]) {
        out.chunks_exact_mut(BLOCK_SIZE)
            .zip(self.row(row))
            .for_each(|(out, block)| out.copy_from_slice(&block.weights()));
    }

    pub(super) fn is_finite(&self) -> bool {
        let is_finite = |(exponent, bytes): (&u8, &[u8])| {
            *exponent < 252 || mx_block(*exponent, bytes).weights().iter().all(|value| value.is_finite())
        };
        self.exponents.iter().zip(self.bytes.chunks_exact(BLOCK_BYTES)).all(is_finite)
    }
}

/// Takes the tensors of experts out of `table`: `NAME_blocks [n_experts, d_out, d_in / 32, 16]` and
/// `NAME_scales [n_experts, d_out, d_in / 32]`, of bytes. The matrix of an expert gets the name of the tensor with the expert's
/// number before its last part.
///
/// # Errors
/// [`Error::Tensor`](crate::Error::Tensor) with the tensor that is missing, or has the wrong shape or type.
pub(super) fn fold<'a>(table: &mut TensorTable<'a>) -> Result<PackedMatrices<'a>> {
    let mut names: Vec<&str> = table.names().filter_map(|name| name.strip_suffix(BLOCKS)).collect();
    names.sort_unstable();
    let mut matrices = PackedMatrices::new();
    for name in names {
        let Some(tensor) = table.take(&format!("{name}{BLOCKS}")) else { continue };
        let scales = format!("{name}{SCALES}");
        let scales = table.take(&scales).ok_or_else(|| table.missing(&scales))?;
        let &[n_experts, d_out, n_blocks, BLOCK_BYTES] = &tensor.shape[..] else {
            let what = format!("has shape {:?}; it must be [experts, rows, blocks, {BLOCK_BYTES}]", tensor.shape);
            return Err(tensor.error(what));
        };
        if tensor.bytes.is_empty() {
            return Err(tensor.error("is empty"));
        }
        scales.require_shape(&[n_experts, d_out, n_blocks])?;
        [&tensor, &scales].into_iter().try_for_each(require_bytes)?;
        let (layer, last) = name.rsplit_once('.').unwrap_or(("", name));
        let of_expert = |tensor: &StoredTensor<'a>| tensor.bytes.chunks_exact(tensor.bytes.len() / n_experts);
        for (expert, (bytes, exponents)) in of_expert(&tensor).zip(of_expert(&scales)).enumerate() {
            let matrix = PackedMatrix {
                tensor: tensor.clone(),
                dims: [d_out, n_blocks * BLOCK_SIZE],
                n_bytes: bytes.len() + exponents.len(),
                values: Values::Mxfp4(Mxfp4 { bytes, exponents, n_blocks }),
            };
            matrices.insert(format!("{layer}.{expert}.{last}"), matrix);
        }
    }
    Ok(matrices)
}

fn require_bytes(tensor: &StoredTensor<'_>) -> Result<()> {
    match tensor.kind {
        ValueKind::Other(SafeDtype::U8) => Ok(()),
        kind => Err(tensor.error(format!("has type {kind:?}; MXFP4 is stored as U8"))),
    }
}
