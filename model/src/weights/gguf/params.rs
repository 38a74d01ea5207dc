//! Parameters from the tensors of GGUF files: in the form that they are stored in, as nearly as the device can.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use burn::tensor::{Device, TensorData};
use rayon::prelude::*;

use super::{
    super::{
        architectures::{Gguf, GgufParam, GgufRows},
        row_order::RowOrder,
    },
    header::StoredTensor,
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    gpt::{Gpt, ParamData, ParamSpec},
    mmap::Mmap,
    ops::{
        BLOCK_SIZE, Dtype, MatrixRows, QuantizedBlock, Weight,
        k_quants::{K_BLOCK, KBlock},
    },
};

/// Blocks that a thread looks at at a time.
const PIECE: usize = 1 << 12;

/// All tensors of a model, by name.
#[derive(Debug)]
pub(super) struct TensorTable<'a> {
    tensors: HashMap<&'a str, StoredTensor<'a>>,
    /// The model's first file, for messages about what none of them holds.
    path: &'a Path,
    /// All of its files.
    maps: Vec<&'a Mmap>,
}

impl<'a> TensorTable<'a> {
    /// The tensors of all of a model's files.
    ///
    /// # Errors
    /// [`Error::Tensor`] when a name is there twice.
    pub(super) fn new(path: &'a Path, maps: Vec<&'a Mmap>, tensors: Vec<StoredTensor<'a>>) -> Result<Self> {
        let mut table = HashMap::new();
        for tensor in tensors {
            if let Some(first) = table.insert(tensor.name, tensor) {
                return Err(first.error("is also in another file of the model".to_owned()));
            }
        }
        Ok(Self { tensors: table, path, maps })
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Takes a tensor out that is no parameter.
    pub(super) fn take(&mut self, name: &str) -> Option<StoredTensor<'a>> {
        self.tensors.remove(name)
    }

    /// The tensor `name`.
    ///
    /// # Errors
    /// [`Error::Tensor`] when there is none.
    pub(super) fn require(&self, name: &str) -> Result<&StoredTensor<'a>> {
        self.tensors.get(name).ok_or_else(|| Error::Tensor {
            path: self.path.to_owned(),
            tensor: name.to_owned(),
            what: "is missing, the metadata asks for it".to_owned(),
            hint: String::new(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.tensors.len()
    }
}

/// Builds the model. `dtype` is that of all matrices; without one, each keeps its own.
pub(super) fn load(
    table: &TensorTable<'_>,
    gguf: &Gguf,
    config: &GptConfig,
    (dtype, device): (Option<Dtype>, &Device),
) -> Result<Gpt> {
    let mut used = HashSet::new();
    let mut not_finite = Vec::new();
    let gpt = Gpt::from_params(config, dtype.unwrap_or_default(), device, &mut |spec| {
        // What was read so far; the rows that are given here are read behind this.
        table.maps.iter().for_each(|map| map.release());
        let param = Param::find(table, gguf, config, spec)?;
        used.extend(param.parts.iter().map(|part| part.tensor.name));
        not_finite.extend(param.parts.iter().filter(|part| !part.is_finite()).map(|part| part.tensor.name));
        match (&spec.shape[..], dtype) {
            (&[d_out, d_in], None) => param.into_stored([d_out, d_in], device),
            (&[d_out, d_in], Some(_)) => Ok(ParamData::Rows(param.into_rows([d_out, d_in]))),
            (shape, _) => Ok(TensorData::new(param.vector(), shape).into()),
        }
    })?;
    if !not_finite.is_empty() {
        let tensors = not_finite.join("`, `");
        tracing::warn!("some values are infinite or no numbers, so the model's output will be too: `{tensors}`");
    }
    match table.tensors.values().find(|tensor| !used.contains(tensor.name)) {
        None => Ok(gpt),
        Some(surplus) => Err(Error::Tensor {
            path: surplus.path.to_owned(),
            tensor: surplus.name.to_owned(),
            what: format!("is no part of a `{}` with this metadata", gguf.name),
            hint: "the model would compute something else than it was trained for, so it is not opened".to_owned(),
        }),
    }
}

/// A parameter that is not read yet.
struct Param<'t, 'a> {
    parts: Vec<Part<'t, 'a>>,
}

/// The rows of a parameter that are from one tensor.
struct Part<'t, 'a> {
    tensor: &'t StoredTensor<'a>,
    n_rows: usize,
    order: RowOrder,
}

fn order_of(rows: GgufRows, config: &GptConfig) -> RowOrder {
    match rows {
        GgufRows::InterleavedQueries | GgufRows::InterleavedKeys => RowOrder::interleaved(config),
        _ => RowOrder::Same,
    }
}

impl<'t, 'a> Param<'t, 'a> {
    fn find(table: &'t TensorTable<'a>, gguf: &Gguf, config: &GptConfig, spec: &ParamSpec) -> Result<Self> {
        let (path, layer) = split_layer(&spec.path);
        let of_layer = |pattern: &str| pattern.replacen("{}", layer, 1);
        let rows = || gguf.params.iter().copied().flatten().filter(|row| row.path == path);
        let is_there = |row: &&GgufParam| row.tensors.iter().all(|(pattern, _)| table.contains(&of_layer(pattern)));
        let Some(row) = rows().find(is_there).or_else(|| rows().next()) else {
            // An architecture that can have this parameter names it; it read the configuration.
            unreachable!("`{}` has no name for `{path}`", gguf.name)
        };
        // All shapes are checked before anything is allocated.
        let part = |&(pattern, rows): &(&str, GgufRows)| {
            let tensor = table.require(&of_layer(pattern))?;
            let n_rows = rows.count(config, spec.shape[0]);
            let expected: Vec<usize> = [n_rows].into_iter().chain(spec.shape[1..].iter().copied()).collect();
            if tensor.shape != expected {
                return Err(tensor.error(format!("has shape {:?}, the metadata asks for {expected:?}", tensor.shape)));
            }
            Ok(Part { tensor, n_rows, order: order_of(rows, config) })
        };
        let parts = row.tensors.iter().map(part).collect::<Result<_>>()?;
        Ok(Self { parts })
    }

    /// The values of a vector.
    fn vector(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.parts.iter().map(|part| part.n_rows).sum()];
        let mut rest = &mut values[..];
        for part in &self.parts {
            let (out, behind) = rest.split_at_mut(part.n_rows);
            // A vector is one row to its tensor, which may have blocks.
            let mut stored = vec![0.0; part.n_rows];
            part.tensor.element.decode(part.tensor.bytes, &mut stored);
            out.iter_mut().enumerate().for_each(|(n, out)| *out = stored[part.order.place(n)]);
            rest = behind;
        }
        values
    }

    /// In f32.
    fn into_rows(self, dims: [usize; 2]) -> MatrixRows<'t, f32>
    where
        'a: 't,
    {
        MatrixRows::new(dims, dims[1], move |row, out| {
            let (part, row) = place(&self.parts, row);
            part.tensor.element.decode(part.bytes(row, dims[1]), out);
        })
    }

    /// The parts as they are, if all are K-quants and each is whole panels where there are several kinds.
    fn as_k_quants(&self, d_in: usize) -> Option<Vec<(Dtype, MatrixRows<'_, KBlock>)>> {
        let dtype = |part: &Part<'_, '_>| part.tensor.element.dtype();
        if !self.parts.iter().all(|part| dtype(part).is_k_quant()) {
            return None;
        }
        let of_one_kind = self.parts.chunk_by(|one, other| dtype(one) == dtype(other));
        let matrices: Vec<_> = of_one_kind
            .map(|parts| {
                let dims = [parts.iter().map(|part| part.n_rows).sum(), d_in];
                let read = move |row, out: &mut [KBlock]| {
                    let (part, row) = place(parts, row);
                    part.tensor.element.k_blocks(part.bytes(row, d_in), out);
                };
                (dtype(&parts[0]), MatrixRows::new(dims, d_in / K_BLOCK, read))
            })
            .collect();
        let are_whole = matrices.iter().all(|(_, matrix)| matrix.dims()[0].is_multiple_of(BLOCK_SIZE));
        (matrices.len() == 1 || are_whole).then_some(matrices)
    }

    /// A matrix in the form nearest to the file's, of those that the device computes with.
    fn into_stored(self, dims: [usize; 2], device: &Device) -> Result<ParamData<'t>>
    where
        'a: 't,
    {
        let d_in = dims[1];
        let dtype = self.parts.iter().map(|part| part.tensor.element.dtype()).reduce(wider).unwrap_or_default();
        if Dtype::Q4K.is_for(device)
            && let Some(parts) = self.as_k_quants(d_in)
        {
            return Ok(ParamData::Placed(Weight::from_k_quants(&parts)));
        }
        let dtype = dtype.stored_as();
        if dtype.is_quantized() && dtype.is_for(device) {
            let read = move |row, out: &mut [QuantizedBlock]| {
                let (part, row) = place(&self.parts, row);
                part.tensor.element.small_blocks(part.bytes(row, d_in), dtype, out);
            };
            let rows = MatrixRows::new(dims, d_in / BLOCK_SIZE, read);
            return Weight::from_blocks(&rows, dtype, device).map(ParamData::Placed);
        }
        // What a device has no form for is computed in full.
        let dtype = if dtype.is_for(device) { dtype } else { Dtype::F32 };
        Weight::from_rows(&self.into_rows(dims), dtype, device).map(ParamData::Placed)
    }
}

/// The part that row `row` of all is from, and the row's place in its tensor.
fn place<'p, 't, 'a>(parts: &'p [Part<'t, 'a>], mut row: usize) -> (&'p Part<'t, 'a>, usize) {
    for part in parts {
        match row.checked_sub(part.n_rows) {
            Some(behind) => row = behind,
            None => return (part, part.order.place(row)),
        }
    }
    unreachable!("the shapes of all parts were checked")
}

/// A dtype for the values of both.
fn wider(one: Dtype, other: Dtype) -> Dtype {
    if one == other {
        return one;
    }
    // Different K-quants have nothing in common but blocks of 32.
    let (one, other) = (one.stored_as(), other.stored_as());
    let rank =
        |dtype| [Dtype::Q4, Dtype::Q4_1, Dtype::Q5_1, Dtype::Q8, Dtype::F16].iter().position(|known| *known == dtype);
    match (rank(one), rank(other)) {
        _ if one == other => one,
        (Some(rank), Some(other_rank)) => {
            if rank > other_rank {
                one
            } else {
                other
            }
        }
        // bf16 has a range that the narrower ones have not, and they have digits that it has not.
        _ => Dtype::F32,
    }
}

impl Part<'_, '_> {
    /// Row `row` of the tensor, which has `width` values.
    fn bytes(&self, row: usize, width: usize) -> &[u8] {
        let n_bytes = self.tensor.element.bytes_of(width);
        &self.tensor.bytes[row * n_bytes..][..n_bytes]
    }

    fn is_finite(&self) -> bool {
        let element = self.tensor.element;
        self.tensor.bytes.par_chunks(element.block_bytes() * PIECE).all(|bytes| element.is_finite(bytes))
    }
}

/// `blocks.3.attn.out.weight` to `blocks.{}.attn.out.weight` and `3`.
fn split_layer(path: &str) -> (String, &str) {
    let layer = path.strip_prefix("blocks.").and_then(|rest| rest.split('.').next()).unwrap_or_default();
    if layer.is_empty() { (path.to_owned(), "") } else { (path.replacen(layer, "{}", 1), layer) }
}
