//! Writes the parameters of a model as safetensors files.

use std::{borrow::Cow, collections::HashMap, ops::Range};

use burn::tensor::TensorData;

use super::{
    files::{DiskDtype, TensorPlan, TensorWriter},
    own_classifier, prediction_head,
    row_order::RowOrder,
    staged_dir::StagedDir,
    tensor_names::{OfExpert, TensorNames, TensorPart},
};
use crate::{
    error::{Error, Result},
    gpt::{Gpt, ParamSpec, class_head::OF_CLASSES, param_specs, params::ParamRef, prediction_head::OF_HEAD},
    ops::{Dtype, QuantizedMatrix, Weight},
};

/// Rows of `n_columns` values become columns.
fn transpose(values: &[f32], n_columns: usize) -> Vec<f32> {
    let n_rows = values.len() / n_columns.max(1);
    (0..n_columns).flat_map(|column| (0..n_rows).map(move |row| values[row * n_columns + column])).collect()
}

/// `len` values with the rows in the order of a tensor; 0 where the tensor has no row.
fn in_order(rows: &[f32], width: usize, len: usize, order: RowOrder) -> Vec<f32> {
    let mut placed = vec![0.0; len];
    for (n, row) in rows.chunks_exact(width).enumerate() {
        placed[order.place(n) * width..][..width].copy_from_slice(row);
    }
    placed
}

/// Writes every parameter of `gpt` to `folder` under these names, one in memory at a time.
pub(super) fn save_params(
    gpt: &Gpt,
    names: &TensorNames,
    folder: &StagedDir,
    (dtype, max_shard_bytes): (DiskDtype, usize),
) -> Result<()> {
    let config = gpt.config();
    let specs = param_specs(config).into_iter().chain(gpt.prediction_specs()).chain(gpt.class_params());
    let specs: HashMap<_, _> = specs.map(|spec| (spec.path.clone(), spec)).collect();
    let stored_as = gpt.dtype().stored_as();
    let saved = |(path, param)| match param {
        ParamRef::Matrix(matrix) if let Some(dtype) = quantized_dtype(matrix, stored_as)? => {
            Ok(Saved::Blocks { path, matrix, dtype })
        }
        _ => {
            let Some(spec) = specs.get(&path) else {
                unreachable!("`param_specs` lists every parameter of the model: `{path}`")
            };
            let parts = match () {
                () if path.starts_with(OF_HEAD) => prediction_head::saved_parts(names, spec, config)?,
                () if path.starts_with(OF_CLASSES) => own_classifier::saved_parts(names, spec),
                () => names.parts(spec, config, &|_| false),
            };
            let tensors = SavedTensor::of(parts, spec);
            Ok(Saved::Plain { path, param, tensors })
        }
    };
    let params = gpt.params().into_iter().map(saved).collect::<Result<Vec<_>>>()?;
    // A tensor may have parts of several parameters: these follow each other.
    let mut parts: Vec<(&Saved<'_>, usize)> = Vec::new();
    for param in &params {
        parts.extend((0..param.n_tensors()).map(|tensor| (param, tensor)));
    }
    let mut first = HashMap::new();
    for (number, (param, tensor)) in parts.iter().enumerate() {
        first.entry(param.name(*tensor)).or_insert(number);
    }
    parts.sort_by_key(|(param, tensor)| first[param.name(*tensor)]);
    let plan = params.iter().flat_map(|param| param.plan(dtype)).collect();
    let mut writer = TensorWriter::new(folder, dtype, max_shard_bytes, plan)?;
    let mut last_read: Option<(&str, TensorData)> = None;
    for (param, tensor) in parts {
        match param {
            Saved::Blocks { path, matrix, .. } => {
                if let Some(matrix) = matrix.read_quantized()? {
                    writer.write_quantized(path, &with_minima_of(matrix, stored_as))?;
                }
            }
            Saved::Plain { path, param, tensors } => {
                let data = match last_read.take().filter(|(last, _)| last == path) {
                    Some((_, data)) => data,
                    None => param.read()?,
                };
                let width = values(&data)?.len() / tensors.last().map_or(1, |tensor| tensor.rows.end);
                writer.write_values(&tensors[tensor].name, &tensors[tensor].values(values(&data)?, width))?;
                last_read = Some((path, data));
            }
        }
    }
    writer.finish()
}

/// A parameter that is to be saved.
enum Saved<'a> {
    /// A quantized matrix, under Hearth's own names.
    Blocks { path: String, matrix: &'a Weight, dtype: Dtype },
    /// Values that are stored as they are.
    Plain { path: String, param: ParamRef<'a>, tensors: Vec<SavedTensor> },
}

impl Saved<'_> {
    fn plan(&self, dtype: DiskDtype) -> Vec<TensorPlan> {
        match self {
            Self::Blocks { path, matrix, dtype } => TensorPlan::quantized(path, matrix.dims(), *dtype),
            Self::Plain { tensors, .. } => {
                let begins = |tensor: &&SavedTensor| tensor.expert.is_none_or(|expert| expert.number == 0);
                let tensors = tensors.iter().filter(begins);
                let plan = |tensor: &SavedTensor| TensorPlan::plain(tensor.name.clone(), dtype, tensor.shape.clone());
                tensors.map(plan).collect()
            }
        }
    }

    /// The number of tensors with separate [`name`](Self::name)s. All tensors of a quantized matrix are written
    /// together.
    fn n_tensors(&self) -> usize {
        match self {
            Self::Blocks { .. } => 1,
            Self::Plain { tensors, .. } => tensors.len(),
        }
    }

    fn name(&self, tensor: usize) -> &str {
        match self {
            Self::Blocks { path, .. } => path,
            Self::Plain { tensors, .. } => &tensors[tensor].name,
        }
    }
}

/// A tensor that consists of some of a parameter's rows.
pub(super) struct SavedTensor {
    name: String,
    shape: Vec<usize>,
    rows: Range<usize>,
    order: RowOrder,
    /// The part of the tensor, if this is not the whole.
    expert: Option<OfExpert>,
}

impl SavedTensor {
    /// The tensors of the parameter that `parts` make up.
    pub(super) fn of(parts: Vec<TensorPart>, spec: &ParamSpec) -> Vec<Self> {
        let mut first_row = 0;
        let tensor = |part: TensorPart| {
            let (shape, first) = (part.shape(spec), first_row);
            first_row += part.n_rows;
            Self { name: part.name, shape, rows: first..first_row, order: part.order, expert: part.expert }
        };
        parts.into_iter().map(tensor).collect()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Whether some of the parameter's rows are columns of the tensor.
    pub(super) fn has_columns(&self) -> bool {
        self.order.is_transposed() || matches!(self.order, RowOrder::HeadColumns { .. })
    }

    /// Blocks or other items in the order of the tensor, which must not be transposed. `all` are the parameter's items,
    /// `len` per row.
    pub(super) fn placed<T: Copy + Default>(&self, all: &[T], len: usize) -> Vec<T> {
        let rows = &all[self.rows.start * len..self.rows.end * len];
        let mut placed = vec![T::default(); rows.len()];
        for (n, row) in rows.chunks_exact(len.max(1)).enumerate() {
            placed[self.order.place(n) * len..][..len].copy_from_slice(row);
        }
        placed
    }

    /// The values of the tensor, or of its part, from `all` values of the parameter, whose rows have `width` values.
    pub(super) fn values<'a>(&self, all: &'a [f32], width: usize) -> Cow<'a, [f32]> {
        let rows = &all[self.rows.start * width..self.rows.end * width];
        match self.order {
            RowOrder::Same => rows.into(),
            RowOrder::LogOfNegated { .. } => rows.iter().map(|value| -value.exp()).collect::<Vec<_>>().into(),
            RowOrder::Transposed => transpose(rows, width).into(),
            order if order.is_transposed() => transpose(&in_order(rows, width, rows.len(), order), width).into(),
            RowOrder::HeadColumns { n_heads } => {
                let heads = rows.chunks_exact(rows.len() / n_heads);
                heads.flat_map(|head| transpose(head, width)).collect::<Vec<_>>().into()
            }
            order => {
                let n_parts = self.expert.map_or(1, |expert| expert.n_experts);
                in_order(rows, width, self.shape.iter().product::<usize>() / n_parts, order).into()
            }
        }
    }
}

/// All matrices of 4 bits have minima, or none has: the loader distinguishes the formats by that. `stored_as` is the dtype in
/// which most matrices of the model are stored.
fn with_minima_of(matrix: QuantizedMatrix, stored_as: Dtype) -> QuantizedMatrix {
    if stored_as.has_minima() { matrix.with_minima() } else { matrix }
}

/// The dtype in which `matrix` is stored, if it is in blocks.
fn quantized_dtype(matrix: &Weight, stored_as: Dtype) -> Result<Option<Dtype>> {
    match matrix.quantized_dtype() {
        // The scales decide between q4_1 and q8.
        Some(Dtype::Q4) if stored_as.has_minima() => {
            Ok(matrix.read_quantized()?.map(|matrix| with_minima_of(matrix, stored_as).dtype()))
        }
        dtype => Ok(dtype),
    }
}

/// The values of a parameter, in row order.
pub(super) fn values(data: &TensorData) -> Result<&[f32]> {
    data.as_slice::<f32>().map_err(|error| Error::Execution { what: format!("cannot read a parameter: {error:?}") })
}
