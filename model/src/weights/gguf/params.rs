//! Parameters from the tensors of GGUF files: in the form that they are stored in, as nearly as the device can.

use std::collections::{HashMap, HashSet};

use burn::tensor::{Device, TensorData};
use rayon::prelude::*;

use super::{
    super::architectures::{Gguf, GgufRows},
    blocks::{Codes, ElementType, MAX_BLOCK},
    header::StoredTensor,
};
use crate::{
    config::{GptConfig, Positions},
    error::{Error, Result},
    gpt::{Gpt, ParamData, ParamSpec},
    ops::{BLOCK_SIZE, Dtype, QuantizedBlock, QuantizedMatrix, Weight},
};

/// The largest f16.
const MAX_F16: f32 = 65_504.0;

/// All tensors of a model, by name.
#[derive(Debug)]
pub(super) struct TensorTable<'a> {
    tensors: HashMap<&'a str, StoredTensor<'a>>,
}

impl<'a> TensorTable<'a> {
    /// The tensors of all of a model's files.
    ///
    /// # Errors
    /// [`Error::Tensor`] when a name is there twice.
    pub(super) fn new(tensors: impl IntoIterator<Item = StoredTensor<'a>>) -> Result<Self> {
        let mut table = HashMap::new();
        for tensor in tensors {
            if let Some(first) = table.insert(tensor.name, tensor) {
                let what = format!("of `{}` is also in another file of the model", first.path.display());
                return Err(first.error(what));
            }
        }
        Ok(Self { tensors: table })
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Takes a tensor out that is no parameter.
    pub(super) fn take(&mut self, name: &str) -> Option<StoredTensor<'a>> {
        self.tensors.remove(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&StoredTensor<'a>> {
        self.tensors.get(name)
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
        match (&spec.shape[..], dtype) {
            (&[d_out, d_in], None) => param.as_stored([d_out, d_in], device),
            (shape, _) => Ok(TensorData::new(param.values(), shape).into()),
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
    /// Values of a row.
    width: usize,
}

/// The rows of a parameter that are from one tensor.
struct Part<'t, 'a> {
    tensor: &'t StoredTensor<'a>,
    n_rows: usize,
    order: Order,
}

/// Where in a tensor a parameter's rows are.
#[derive(Clone, Copy)]
enum Order {
    /// In the same place.
    Same,
    /// Of each head, the two dimensions that turn together are next to each other; ours are half the rotated part apart.
    Interleaved { head_dim: usize, rotary_dim: usize },
}

impl Order {
    fn of(rows: GgufRows, config: &GptConfig) -> Self {
        match (rows, config.positions) {
            (GgufRows::InterleavedQueries | GgufRows::InterleavedKeys, Positions::Rope(rope)) => {
                Self::Interleaved { head_dim: config.head_dim, rotary_dim: rope.rotary_dim }
            }
            _ => Self::Same,
        }
    }

    /// The row of the tensor that is row `n` of the parameter.
    fn place(self, n: usize) -> usize {
        let Self::Interleaved { head_dim, rotary_dim } = self else { return n };
        let (dim, half) = (n % head_dim, rotary_dim / 2);
        n - dim
            + match dim {
                _ if dim < half => 2 * dim,
                _ if dim < rotary_dim => 2 * (dim - half) + 1,
                _ => dim,
            }
    }
}

impl<'t, 'a> Param<'t, 'a> {
    fn find(table: &'t TensorTable<'a>, gguf: &Gguf, config: &GptConfig, spec: &ParamSpec) -> Result<Self> {
        let (path, layer) = split_layer(&spec.path);
        let Some(row) = gguf.params.iter().copied().flatten().find(|row| row.path == path) else {
            // An architecture that can have this parameter names it; it read the configuration.
            unreachable!("`{}` has no name for `{path}`", gguf.name)
        };
        // All shapes are checked before anything is allocated.
        let part = |&(pattern, rows): &(&str, GgufRows)| {
            let name = pattern.replacen("{}", layer, 1);
            let tensor = table.get(&name).ok_or_else(|| missing(table, name))?;
            let n_rows = rows.count(config, spec.shape[0]);
            let expected: Vec<usize> = [n_rows].into_iter().chain(spec.shape[1..].iter().copied()).collect();
            if tensor.shape != expected {
                return Err(tensor.error(format!("has shape {:?}, the metadata asks for {expected:?}", tensor.shape)));
            }
            Ok(Part { tensor, n_rows, order: Order::of(rows, config) })
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
            && matches!(part.order, Order::Same)
        {
            // A vector is one row to its tensor.
            let mut values = vec![0.0; part.n_rows];
            part.tensor.element.decode(part.tensor.bytes, &mut values);
            return values;
        }
        let mut values = vec![0.0; self.parts.iter().map(|part| part.n_rows).sum::<usize>() * self.width];
        values.par_chunks_exact_mut(self.width).zip(self.rows()).for_each(|(values, (part, row))| part.row(row, values));
        values
    }

    /// A matrix in the form nearest to the file's, of those that the device computes with.
    fn as_stored(&self, dims: [usize; 2], device: &Device) -> Result<ParamData> {
        let dtype = self.parts.iter().map(|part| part.nearest_dtype()).max_by_key(|dtype| dtype.width());
        let dtype = dtype.unwrap_or_default();
        if dtype.is_quantized() && dtype.is_for(device) {
            let blocks = self.rows().flat_map_iter(|(part, row)| part.blocks(row, self.width, dtype)).collect();
            return QuantizedMatrix::new(dims, dtype, blocks).map(ParamData::Quantized);
        }
        // What a device has no form for is computed in full.
        let dtype = if dtype.is_quantized() { Dtype::F32 } else { dtype };
        Weight::new(TensorData::new(self.values(), dims), dtype, device).map(ParamData::Placed)
    }
}

impl Part<'_, '_> {
    fn row(&self, n: usize, out: &mut [f32]) {
        let ElementType { .. } = self.tensor.element;
        let n_bytes = self.tensor.element.bytes_of(out.len());
        self.tensor.element.decode(&self.tensor.bytes[n * n_bytes..][..n_bytes], out);
    }
}
