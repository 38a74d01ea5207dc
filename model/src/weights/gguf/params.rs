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
    blocks::MAX_BLOCK,
    header::StoredTensor,
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    gpt::{Gpt, ParamData, ParamSpec},
    mmap::Mmap,
    ops::{
        BLOCK_SIZE, Dtype, QuantizedBlock, QuantizedMatrix, Weight,
        k_quants::{KBlock, KMatrix},
    },
};

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
        let param = Param::find(table, gguf, config, spec)?;
        used.extend(param.parts.iter().map(|part| part.tensor.name));
        not_finite.extend(param.parts.iter().filter(|part| !part.is_finite()).map(|part| part.tensor.name));
        let data = match (&spec.shape[..], dtype) {
            (&[d_out, d_in], None) => param.as_stored([d_out, d_in], device),
            (shape, _) => Ok(TensorData::new(param.values(), shape).into()),
        };
        table.maps.iter().for_each(|map| map.release());
        data
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
    /// Values of a row.
    width: usize,
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
        Ok(Self { parts, width: spec.shape[1..].iter().product() })
    }

    /// The parts row by row: each part with the row's place in its tensor.
    fn rows(&self) -> impl IndexedParallelIterator<Item = (&Part<'t, 'a>, usize)> {
        let rows: Vec<_> =
            self.parts.iter().flat_map(|part| (0..part.n_rows).map(move |n| (part, part.order.place(n)))).collect();
        rows.into_par_iter()
    }

    /// In f32, in row order.
    fn values(&self) -> Vec<f32> {
        if let ([part], 1) = (&self.parts[..], self.width)
            && part.order == RowOrder::Same
        {
            // A vector is one row to its tensor.
            let mut values = vec![0.0; part.n_rows];
            part.tensor.element.decode(part.tensor.bytes, &mut values);
            return values;
        }
        let mut values = vec![0.0; self.parts.iter().map(|part| part.n_rows).sum::<usize>() * self.width];
        values
            .par_chunks_exact_mut(self.width)
            .zip(self.rows())
            .for_each(|(values, (part, row))| part.row(row, values));
        values
    }

    /// The parts as they are, if all are K-quants and each is whole panels where there are several kinds.
    fn as_k_quants(&self) -> Option<Vec<KMatrix>> {
        let mut parts: Vec<KMatrix> = Vec::new();
        for part in &self.parts {
            let dtype = part.tensor.element.dtype();
            if !dtype.is_k_quant() {
                return None;
            }
            let rows: Vec<_> = (0..part.n_rows).map(|n| part.order.place(n)).collect();
            let blocks = rows.into_par_iter().flat_map_iter(|row| part.k_blocks(row, self.width));
            match parts.last_mut() {
                Some(last) if last.dtype == dtype => {
                    last.dims[0] += part.n_rows;
                    last.blocks.par_extend(blocks);
                }
                _ => parts.push(KMatrix { dims: [part.n_rows, self.width], dtype, blocks: blocks.collect() }),
            }
        }
        let are_whole = parts.iter().all(|part| part.dims[0].is_multiple_of(BLOCK_SIZE));
        (parts.len() == 1 || are_whole).then_some(parts)
    }

    /// A matrix in the form nearest to the file's, of those that the device computes with.
    fn as_stored(&self, dims: [usize; 2], device: &Device) -> Result<ParamData> {
        let dtype = self.parts.iter().map(|part| part.tensor.element.dtype()).reduce(wider).unwrap_or_default();
        if Dtype::Q4K.is_for(device)
            && let Some(parts) = self.as_k_quants()
        {
            return Ok(ParamData::Placed(Weight::from_k_quants(&parts)));
        }
        let dtype = dtype.stored_as();
        if dtype.is_quantized() && dtype.is_for(device) {
            let blocks = self.rows().flat_map_iter(|(part, row)| part.blocks(row, self.width, dtype)).collect();
            return QuantizedMatrix::new(dims, dtype, blocks).map(ParamData::Quantized);
        }
        // What a device has no form for is computed in full.
        let dtype = if dtype.is_for(device) { dtype } else { Dtype::F32 };
        Weight::new(TensorData::new(self.values(), dims), dtype, device).map(ParamData::Placed)
    }
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
    /// Row `row` of the tensor, in f32.
    fn row(&self, row: usize, out: &mut [f32]) {
        let element = self.tensor.element;
        let n_bytes = element.bytes_of(out.len());
        element.decode(&self.tensor.bytes[row * n_bytes..][..n_bytes], out);
    }

    /// Row `row` of the tensor in blocks of `dtype`.
    fn blocks(&self, row: usize, width: usize, dtype: Dtype) -> Vec<QuantizedBlock> {
        let n_bytes = self.tensor.element.bytes_of(width);
        self.tensor.element.small_blocks(&self.tensor.bytes[row * n_bytes..][..n_bytes], dtype)
    }

    /// Row `row` of a tensor of K-quants.
    fn k_blocks(&self, row: usize, width: usize) -> impl Iterator<Item = KBlock> {
        let n_bytes = self.tensor.element.bytes_of(width);
        self.tensor.element.k_blocks(&self.tensor.bytes[row * n_bytes..][..n_bytes])
    }

    fn is_finite(&self) -> bool {
        self.chunks().all(|(n, values)| values[..n].iter().all(|value| value.is_finite()))
    }

    /// All values of the tensor, up to [`MAX_BLOCK`] at a time.
    fn chunks(&self) -> impl ParallelIterator<Item = (usize, [f32; MAX_BLOCK])> {
        let element = self.tensor.element;
        self.tensor.bytes.par_chunks(element.bytes_of(MAX_BLOCK)).map(move |bytes| {
            let (n, mut values) = (bytes.len() / element.block_bytes() * element.block_len(), [0.0; MAX_BLOCK]);
            element.decode(bytes, &mut values[..n]);
            (n, values)
        })
    }
}

/// `blocks.3.attn.out.weight` to `blocks.{}.attn.out.weight` and `3`.
fn split_layer(path: &str) -> (String, &str) {
    let layer = path.strip_prefix("blocks.").and_then(|rest| rest.split('.').next()).unwrap_or_default();
    if layer.is_empty() { (path.to_owned(), "") } else { (path.replacen(layer, "{}", 1), layer) }
}
