//! Finds the packed matrices among a model's tensors, by their names and types.

use safetensors::Dtype as SafeDtype;
use serde_json::Value;

use super::{
    Method, PackedMatrices, PackedMatrix, Values,
    described::Stated,
    floats::{Floats, Fp8, Levels},
    ints::{ByGroup, Codes, Groups, Ints, Zeros},
    mxfp4,
    tensors::{Scales, Words},
};
use crate::{
    error::Result,
    ops::{Dtype, k_quants::Fp8Scales},
    weights::tensor_table::{StoredTensor, TensorTable, ValueKind},
};

/// Suffixes of tensors that accompany packed matrices but are for activations or for other programs.
const UNUSED: [&str; 7] = [
    ".input_scale",
    ".output_scale",
    ".input_zero_point",
    ".output_zero_point",
    ".input_global_scale",
    ".activation_scale",
    ".weight_format",
];
/// How the name of the tensor ends that has bitsandbytes' parameters of a matrix.
const QUANT_STATES: [&str; 2] = [".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"];
/// The factor of bitsandbytes for products of bytes and scales: `1 / 127`.
const BYTE_FACTOR: f32 = 7.874_016e-3;

/// Takes the tensors of packed matrices out of `table`. Modules that are not quantized keep their tensors.
///
/// # Errors
/// [`Error::Tensor`](crate::Error::Tensor) with the tensor that is missing, or has the wrong shape or type.
pub(in super::super) fn fold<'a>(table: &mut TensorTable<'a>, method: Method) -> Result<PackedMatrices<'a>> {
    let ending = match method {
        Method::Mxfp4 => return mxfp4::fold(table),
        Method::Gptq { .. } | Method::Awq => ".qweight",
        _ => ".weight",
    };
    let packed = |tensor: &'a str| {
        let name = tensor.strip_suffix(ending).or_else(|| tensor.strip_suffix(".weight_packed"))?;
        let is_float = |tensor: &StoredTensor<'a>| matches!(tensor.kind, ValueKind::Weights(_));
        // bitsandbytes may store its bytes under the type of floats.
        let has_state = QUANT_STATES.iter().any(|ending| table.get(&format!("{tensor}{ending}")).is_some());
        let is_plain = tensor.ends_with(".weight") && table.get(tensor).is_some_and(is_float) && !has_state;
        (!is_plain).then(|| name.to_owned())
    };
    let mut names: Vec<String> = table.names().filter_map(packed).collect();
    names.sort_unstable();
    let mut matrices = PackedMatrices::new();
    for name in names {
        let mut parts = Parts { table: &mut *table, name: &name, n_bytes: 0 };
        let matrix = match method {
            Method::Gptq { bits, added, has_order } => parts.gptq(bits, added, has_order)?,
            Method::Awq => parts.awq()?,
            Method::CompressedTensors(stated) if parts.has(".weight_packed") => parts.packed_rows(stated)?,
            Method::CompressedTensors(stated) => parts.bytes(stated.block, stated.has_zeros)?,
            Method::BitsAndBytes => parts.bits_and_bytes()?,
            Method::Fp8 { block } => parts.bytes(block, false)?,
            Method::Mxfp4 => parts.bytes(None, false)?,
        };
        for ending in UNUSED {
            parts.take(ending);
        }
        matrices.insert(format!("{name}.weight"), matrix);
    }
    Ok(matrices)
}

/// The tensors of one matrix.
struct Parts<'t, 'a> {
    table: &'t mut TensorTable<'a>,
    name: &'t str,
    /// Bytes of the tensors taken so far.
    n_bytes: usize,
}

impl<'a> Parts<'_, 'a> {
    fn has(&self, ending: &str) -> bool {
        self.table.get(&format!("{}{ending}", self.name)).is_some()
    }

    fn take(&mut self, ending: &str) -> Option<StoredTensor<'a>> {
        let tensor = self.table.take(&format!("{}{ending}", self.name))?;
        self.n_bytes += tensor.bytes.len();
        Some(tensor)
    }

    fn need(&mut self, ending: &str) -> Result<StoredTensor<'a>> {
        self.take(ending).ok_or_else(|| self.table.missing(&format!("{}{ending}", self.name)))
    }

    /// [`need`](Self::need) if `is_stated`, otherwise [`take`](Self::take).
    fn take_stated(&mut self, ending: &str, is_stated: bool) -> Result<Option<StoredTensor<'a>>> {
        if is_stated { self.need(ending).map(Some) } else { Ok(self.take(ending)) }
    }

    fn matrix(&self, tensor: StoredTensor<'a>, dims: [usize; 2], values: Values<'a>) -> PackedMatrix<'a> {
        PackedMatrix { tensor, dims, n_bytes: self.n_bytes, values }
    }

    /// GPTQ: `qweight [d_in / n, d_out]`, `qzeros [n_groups, d_out / n]`, `scales [n_groups, d_out]` and `g_idx [d_in]`, with
    /// `n` numbers to a word.
    fn gptq(&mut self, bits: u32, added: u8, has_order: bool) -> Result<PackedMatrix<'a>> {
        let tensor = self.need(".qweight")?;
        let n = 32 / bits as usize;
        let [rows, d_out] = two(&tensor)?;
        let d_in = rows * n;
        let scales = self.need(".scales")?;
        let [n_groups, _] = two(&scales)?;
        scales.require_shape(&[n_groups, d_out])?;
        let zeros = self.need(".qzeros")?;
        require(&zeros, d_out.is_multiple_of(n), "needs whole words of outputs")?;
        let zeros = Zeros::ByGroup(Words::of(&zeros, &[n_groups, d_out / n])?, added);
        let index = self.take_stated(".g_idx", has_order)?;
        let groups = groups(&tensor, d_in, n_groups, index.as_ref())?;
        let by_group = ByGroup { row_stride: 1, group_stride: d_out };
        let codes = Codes::ByInput(Words::of(&tensor, &[rows, d_out])?);
        let ints = Ints::new([d_out, d_in], bits, codes, (Scales::of(&scales)?, 1.0), zeros, (groups, by_group));
        Ok(self.matrix(tensor, [d_out, d_in], Values::Ints(ints)))
    }

    /// AWQ: `qweight [d_in, d_out / 8]`, `qzeros [n_groups, d_out / 8]` and `scales [n_groups, d_out]`.
    fn awq(&mut self) -> Result<PackedMatrix<'a>> {
        let tensor = self.need(".qweight")?;
        let [d_in, n_words] = two(&tensor)?;
        let d_out = n_words * 8;
        let scales = self.need(".scales")?;
        let [n_groups, _] = two(&scales)?;
        scales.require_shape(&[n_groups, d_out])?;
        let zeros = self.need(".qzeros")?;
        let zeros = Zeros::Awq(Words::of(&zeros, &[n_groups, n_words])?);
        let groups = groups(&tensor, d_in, n_groups, None)?;
        let by_group = ByGroup { row_stride: 1, group_stride: d_out };
        let codes = Codes::Awq(Words::of(&tensor, &[d_in, n_words])?);
        let ints = Ints::new([d_out, d_in], 4, codes, (Scales::of(&scales)?, 1.0), zeros, (groups, by_group));
        Ok(self.matrix(tensor, [d_out, d_in], Values::Ints(ints)))
    }

    /// Packed integers of compressed-tensors: `weight_packed [d_out, d_in / n]`, `weight_scale [d_out, n_groups]`,
    /// `weight_shape`, and perhaps `weight_zero_point [d_out / n, n_groups]` and `weight_g_idx [d_in]`.
    fn packed_rows(&mut self, stated: Stated) -> Result<PackedMatrix<'a>> {
        let tensor = self.need(".weight_packed")?;
        let shape = self.need(".weight_shape")?;
        let [d_out, n_words] = two(&tensor)?;
        let numbers: Vec<Option<usize>> = match shape.kind {
            ValueKind::Other(SafeDtype::I64) => {
                let (whole, _) = shape.bytes.as_chunks();
                whole.iter().map(|&bytes| usize::try_from(i64::from_le_bytes(bytes)).ok()).collect()
            }
            _ => Words::of(&shape, &[2])?.iter().map(|number| usize::try_from(number).ok()).collect(),
        };
        let d_in = match numbers[..] {
            [Some(rows), Some(d_in)] if rows == d_out && d_in > 0 => d_in,
            _ => return Err(shape.error(format!("does not begin with {d_out}, the rows of `{}`", tensor.name))),
        };
        let Some(bits) = [4, 8].into_iter().find(|bits| d_in.div_ceil(32 / bits) == n_words) else {
            let what = format!("has {n_words} words a row, which are not {d_in} numbers of 4 or 8 bits");
            return Err(tensor.error(what));
        };
        let (bits, n) = (bits as u32, 32 / bits);
        let scales = self.need(".weight_scale")?;
        let (n_groups, by_group) = scale_groups(&scales, d_out)?;
        let zeros = match self.take_stated(".weight_zero_point", stated.has_zeros)? {
            Some(zeros) => Zeros::ByRows(Words::of(&zeros, &[d_out.div_ceil(n), n_groups])?),
            None => Zeros::Middle,
        };
        let index = self.take_stated(".weight_g_idx", stated.has_order)?;
        let groups = groups(&tensor, d_in, n_groups, index.as_ref())?;
        let codes = Codes::ByRow(Words::of(&tensor, &[d_out, n_words])?);
        let ints = Ints::new([d_out, d_in], bits, codes, (Scales::of(&scales)?, 1.0), zeros, (groups, by_group));
        Ok(self.matrix(tensor, [d_out, d_in], Values::Ints(ints)))
    }

    /// `weight [d_out, d_in]` of signed bytes or 8-bit floats, and scales for the tensor, its rows, groups or blocks, which are of
    /// `stated` rows and inputs where the file says so.
    fn bytes(&mut self, stated: Option<[usize; 2]>, has_zeros: bool) -> Result<PackedMatrix<'a>> {
        let tensor = self.need(".weight")?;
        let dims @ [d_out, d_in] = two(&tensor)?;
        let scales = match self.take(".weight_scale_inv") {
            Some(scales) => scales,
            None => self.need(".weight_scale")?,
        };
        match tensor.kind {
            ValueKind::Other(SafeDtype::I8) => {
                let (n_groups, by_group) = scale_groups(&scales, d_out)?;
                let zeros = match self.take_stated(".weight_zero_point", has_zeros)? {
                    Some(zeros) if zeros.kind == ValueKind::Other(SafeDtype::I8) => {
                        zeros.require_shape(&scales.shape)?;
                        Zeros::Bytes(zeros.bytes)
                    }
                    Some(zeros) => return Err(zeros.error(format!("has type {:?}; it must be I8", zeros.kind))),
                    None => Zeros::Middle,
                };
                let groups = groups(&tensor, d_in, n_groups, None)?;
                let scales = (Scales::of(&scales)?, 1.0);
                let ints = Ints::new(dims, 8, Codes::Bytes(tensor.bytes), scales, zeros, (groups, by_group));
                Ok(self.matrix(tensor, dims, Values::Ints(ints)))
            }
            ValueKind::Other(SafeDtype::F8_E4M3) => {
                let [blocks_out, blocks_in] = match scales.shape[..] {
                    [] | [1] => [1, 1],
                    [rows, columns] if rows > 0 && columns > 0 => [rows, columns],
                    _ => return Err(scales.error(format!("has shape {:?}; it must be [rows, blocks]", scales.shape))),
                };
                if let Some(zeros) = self.take(".weight_zero_point") {
                    let are_zero = zeros.bytes.iter().all(|byte| byte & 0x7f == 0);
                    require(&zeros, are_zero, "must be 0 beside 8-bit floats")?;
                }
                // Where no size is stated, blocks are of 128, or of all; the last one may be smaller.
                let size = |n: usize, n_blocks: usize| {
                    if n_blocks == 1 { n } else { n.div_ceil(n_blocks).next_power_of_two() }
                };
                let fits = |[rows, inputs]: [usize; 2]| {
                    d_out.div_ceil(rows.max(1)) == blocks_out && d_in.div_ceil(inputs.max(1)) == blocks_in
                };
                let of_rows = if blocks_out == d_out { 1 } else { size(d_out, blocks_out) };
                let block = stated.filter(|stated| fits(*stated)).unwrap_or([of_rows, size(d_in, blocks_in)]);
                require(&scales, fits(block), &format!("does not fit the shape {dims:?} of the matrix"))?;
                let values = Scales::of(&scales)?.iter().collect();
                let scales = Fp8Scales { values, block, n_blocks: blocks_in };
                let fp8 = Fp8 { d_in, bytes: tensor.bytes, scales };
                Ok(self.matrix(tensor, dims, Values::Floats(Floats::Fp8(fp8))))
            }
            kind => Err(tensor.error(format!("has type {kind:?}; supported are I8 and F8_E4M3 beside scales"))),
        }
    }

    /// Levels of four bits in blocks, or bytes with a scale for each row.
    fn bits_and_bytes(&mut self) -> Result<PackedMatrix<'a>> {
        if self.has(".SCB") {
            let tensor = self.need(".weight")?;
            let dims @ [d_out, _] = two(&tensor)?;
            require(&tensor, tensor.kind == ValueKind::Other(SafeDtype::I8), "must be I8 beside `SCB`")?;
            let scales = self.need(".SCB")?;
            scales.require_shape(&[d_out])?;
            let by_group = ByGroup { row_stride: 1, group_stride: 0 };
            let groups = Groups { n: 1, index: None };
            let scales = (Scales::of(&scales)?, BYTE_FACTOR);
            let ints = Ints::new(dims, 8, Codes::Bytes(tensor.bytes), scales, Zeros::Middle, (groups, by_group));
            return Ok(self.matrix(tensor, dims, Values::Ints(ints)));
        }
        let tensor = self.need(".weight")?;
        let state = QUANT_STATES.iter().find_map(|ending| self.take(&format!(".weight{ending}")));
        let Some(state) = state else { return Err(tensor.error("has no `quant_state` beside it")) };
        let json: Value =
            serde_json::from_slice(state.bytes).map_err(|error| state.error(format!("is not JSON: {error}")))?;
        let number = |key: &str| json[key].as_u64().and_then(|number| usize::try_from(number).ok());
        let shape = json["shape"].as_array().map(Vec::as_slice).unwrap_or_default();
        let dims: Vec<usize> = shape.iter().filter_map(|size| usize::try_from(size.as_u64()?).ok()).collect();
        let &[d_out, d_in] = &dims[..] else { return Err(state.error("has no `shape` of two sizes")) };
        let n_values = d_out.checked_mul(d_in).filter(|n| n.div_ceil(2) == tensor.bytes.len());
        let Some(n_values) = n_values else {
            return Err(
                tensor.error(format!("has {} bytes, which are not {d_out} by {d_in} halves", tensor.bytes.len()))
            );
        };
        let Some(block) = number("blocksize").filter(|&size| size > 0) else {
            return Err(state.error("has no `blocksize`"));
        };
        let dtype = match json["dtype"].as_str() {
            Some("float16") => Dtype::F16,
            Some("bfloat16") => Dtype::Bf16,
            Some("float32") => Dtype::F32,
            _ => return Err(state.error(format!("has the dtype {}, which is not supported", json["dtype"]))),
        };
        let levels = self.need(".weight.quant_map")?;
        levels.require_shape(&[16])?;
        let levels = Scales::of(&levels)?;
        let sizes = self.need(".weight.absmax")?;
        sizes.require_shape(&[n_values.div_ceil(block)])?;
        let sizes = if matches!(sizes.kind, ValueKind::Other(SafeDtype::U8)) {
            let outer = number("nested_blocksize").filter(|&size| size > 0);
            let Some(outer) = outer else { return Err(state.error("has no `nested_blocksize`")) };
            let offset = json["nested_offset"].as_f64().unwrap_or_default() as f32;
            let map = self.need(".weight.nested_quant_map")?;
            map.require_shape(&[256])?;
            let outer_sizes = self.need(".weight.nested_absmax")?;
            outer_sizes.require_shape(&[sizes.bytes.len().div_ceil(outer)])?;
            let (map, outer_sizes) = (Scales::of(&map)?, Scales::of(&outer_sizes)?);
            let size = |(at, &code): (usize, &u8)| map.get(code.into()) * outer_sizes.get(at / outer) + offset;
            sizes.bytes.iter().enumerate().map(size).collect()
        } else {
            Scales::of(&sizes)?.iter().collect()
        };
        let levels = std::array::from_fn(|code| levels.get(code));
        let levels = Levels { d_in, bytes: tensor.bytes, levels, block, sizes, dtype };
        Ok(self.matrix(tensor, [d_out, d_in], Values::Floats(Floats::Levels(levels))))
    }
}

/// The two sizes of a matrix, neither of which is 0.
fn two(tensor: &StoredTensor<'_>) -> Result<[usize; 2]> {
    match tensor.shape[..] {
        [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
        _ => Err(tensor.error(format!("has shape {:?}; it must be a matrix", tensor.shape))),
    }
}

fn require(tensor: &StoredTensor<'_>, holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(tensor.error(what)) }
}

/// The groups of a tensor of scales, `[d_out, n_groups]`, or one for all rows.
fn scale_groups(scales: &StoredTensor<'_>, d_out: usize) -> Result<(usize, ByGroup)> {
    match scales.shape[..] {
        [] | [1] => Ok((1, ByGroup { row_stride: 0, group_stride: 0 })),
        [rows] if rows == d_out => Ok((1, ByGroup { row_stride: 1, group_stride: 0 })),
        [rows, n_groups] if rows == d_out && n_groups > 0 => {
            Ok((n_groups, ByGroup { row_stride: n_groups, group_stride: 1 }))
        }
        _ => Err(scales.error(format!("has shape {:?}, but the matrix has {d_out} rows", scales.shape))),
    }
}

/// The `n_groups` groups of `d_in` inputs, which `index` may name for each input.
fn groups(tensor: &StoredTensor<'_>, d_in: usize, n_groups: usize, index: Option<&StoredTensor<'_>>) -> Result<Groups> {
    if let Some(index) = index {
        let words = Words::of(index, &[d_in])?;
        let of_input: Vec<u32> = words.iter().collect();
        // If nothing was reordered, some files have -1 for each input.
        if !of_input.iter().all(|&group| group == u32::MAX) {
            require(
                index,
                of_input.iter().all(|&group| (group as usize) < n_groups),
                "names a group that has no scale",
            )?;
            return Ok(Groups { n: n_groups, index: Some(of_input) });
        }
    }
    require(
        tensor,
        d_in.is_multiple_of(n_groups),
        &format!("has {d_in} inputs, which are not {n_groups} equal groups"),
    )?;
    Ok(Groups { n: n_groups, index: None })
}
