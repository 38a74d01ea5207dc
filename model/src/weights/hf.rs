//! From a model dir's `config.json` and tensors to [`GptConfig`] and parameters, and back, by the table of architectures.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    path::Path,
};

use burn::tensor::{Device, TensorData};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

use super::{
    architectures::{ARCHITECTURES, Architecture, NameRow, OWN_CLASS, Rows, Tensors, known_architectures},
    fields::Fields,
    files::{DiskDtype, PlainValues, StoredTensor, TensorFiles, TensorPlan, TensorWriter, minima_of, scales_of},
    row_order::RowOrder,
    staged_dir::StagedDir,
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    gpt::{Gpt, ParamData, ParamSpec, param_specs},
    ops::{BLOCK_SIZE, Dtype, MatrixRows, QuantizedMatrix, Weight},
    params::ParamRef,
};

const OWN_MODEL_TYPE: &str = "hearth";

/// Bytes of a file that a thread looks at at a time.
const PIECE: usize = 1 << 16;

/// How a model dir spells its model: a row of the table, or Hearth's own names.
#[derive(Clone, Copy)]
pub(super) enum Spelling {
    Class(&'static Architecture),
    Own,
}

impl Spelling {
    /// What `config.json` at `path` says it is.
    pub(super) fn of(config: &Map<String, Value>, path: &Path) -> Result<Self> {
        let class = config.get("architectures").and_then(|classes| classes[0].as_str());
        let model_type = config.get("model_type").and_then(Value::as_str);
        if class == Some(OWN_CLASS) || (class.is_none() && model_type == Some(OWN_MODEL_TYPE)) {
            return Ok(Self::Own);
        }
        let known = ARCHITECTURES.iter().find(|known| match class {
            Some(class) => known.class == class,
            None => model_type == Some(known.model_type),
        });
        known.map(Self::Class).ok_or_else(|| Error::File {
            path: path.to_owned(),
            what: match (class, model_type) {
                (Some(class), _) => format!("architecture `{class}` is not supported"),
                (None, Some(model_type)) => format!("model type `{model_type}` is not supported"),
                (None, None) => "has neither `architectures` nor `model_type`".to_owned(),
            },
            hint: format!("supported are {}", known_architectures().join(", ")),
        })
    }

    /// The spelling that expresses `config`: the class asked for, else the first of the table that does, else Hearth's
    /// own.
    pub(super) fn for_config(config: &GptConfig, class: Option<&str>) -> Result<(Self, Map<String, Value>)> {
        let mut candidates = ARCHITECTURES.iter().filter(|known| class.is_none_or(|class| known.class == class));
        if let Some(found) = candidates.find_map(|known| Some((Self::Class(known), known.write(config)?))) {
            return Ok(found);
        }
        if let Some(class) = class.filter(|class| *class != OWN_CLASS) {
            let known = known_architectures().contains(&class);
            let what = if known { "cannot express this configuration" } else { "is not known" };
            return Err(Error::Config { field: "architecture", what: format!("class `{class}` {what}") });
        }
        let written = match serde_json::to_value(config) {
            Ok(Value::Object(map)) => map,
            _ => unreachable!("a struct of plain fields is a JSON object"),
        };
        Ok((Self::Own, written))
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Class(architecture) => architecture.class,
            Self::Own => OWN_CLASS,
        }
    }

    pub(super) fn model_type(self) -> &'static str {
        match self {
            Self::Class(architecture) => architecture.model_type,
            Self::Own => OWN_MODEL_TYPE,
        }
    }

    /// Reads the architecture from `config.json`.
    pub(super) fn read_config(self, config: &Map<String, Value>, path: &Path) -> Result<GptConfig> {
        let read = match self {
            Self::Class(architecture) => architecture.read(&Fields::new(config, path))?,
            Self::Own => {
                let own = config.iter().filter(|(key, _)| !SHARED_KEYS.contains(&key.as_str()));
                let own: Map<_, _> = own.map(|(key, value)| (key.clone(), value.clone())).collect();
                serde_json::from_value(Value::Object(own)).map_err(|error| Error::File {
                    path: path.to_owned(),
                    what: error.to_string(),
                    hint: String::new(),
                })?
            }
        };
        read.validate().map_err(|error| Error::File {
            path: path.to_owned(),
            what: error.to_string(),
            hint: self.spelling_of(&error, &read, config),
        })?;
        Ok(read)
    }

    /// What the file calls the field that `error` names, where that is another word.
    fn spelling_of(self, error: &Error, config: &GptConfig, file: &Map<String, Value>) -> String {
        let (Self::Class(architecture), Error::Config { field, .. }) = (self, error) else { return String::new() };
        let keys = architecture.keys_of(field, config);
        let keys: Vec<_> =
            keys.iter().filter(|key| key != field && file.contains_key(*key)).map(String::as_str).collect();
        if keys.is_empty() { String::new() } else { format!("it comes from `{}`", keys.join("`, `")) }
    }

    /// What makes up the parameter at `path`: the tensors' names, their rows where they are stacked, and whether the
    /// one tensor is transposed.
    fn parts(self, spec: &ParamSpec, config: &GptConfig) -> Parts {
        let Self::Class(architecture) = self else { return Parts::Same(spec.path.clone()) };
        let (row_path, layer) = split_layer(&spec.path);
        let Some(row) = architecture.names.iter().find(|row| row.path == row_path) else {
            // A class that can have this parameter names it; the configuration was read or checked by that class.
            unreachable!("`{}` has no name for `{}`", architecture.class, spec.path)
        };
        let name = |pattern: &str| pattern.replacen("{}", layer, 1);
        match row.tensors {
            Tensors::Same(tensor) => Parts::Same(name(tensor)),
            Tensors::Transposed(tensor) => Parts::Transposed(name(tensor)),
            Tensors::SameIf(holds, tensor, otherwise) => {
                Parts::Same(name(if holds(config) { tensor } else { otherwise }))
            }
            Tensors::Stacked(tensors) => {
                let part = |&(tensor, rows): &(_, Rows)| Part {
                    name: name(tensor),
                    n_rows: rows.count(config),
                    order: if rows.are_interleaved() { RowOrder::interleaved(config) } else { RowOrder::Same },
                };
                Parts::Stacked(tensors.iter().map(part).collect())
            }
            Tensors::ByKeyHead(tensor) => {
                let (n_rows, order) = (spec.shape[0], RowOrder::by_key_head(config));
                Parts::Stacked(vec![Part { name: name(tensor), n_rows, order }])
            }
            Tensors::Behind(n_rows, tensor) => Parts::Behind(n_rows, name(tensor)),
        }
    }

    fn base_prefix(self) -> &'static str {
        match self {
            Self::Class(architecture) => architecture.base_prefix,
            Self::Own => "",
        }
    }

    fn is_ignored(self, tensor: &str, config: &GptConfig) -> bool {
        let Self::Class(architecture) = self else { return false };
        self.tied_copy(config) == Some(tensor) || architecture.ignored.iter().any(|ending| tensor.ends_with(ending))
    }

    /// The tensor that holds tied embeddings a second time, in files that have it.
    fn tied_copy(self, config: &GptConfig) -> Option<&'static str> {
        let Self::Class(architecture) = self else { return None };
        let head = |row: &NameRow| match row.tensors {
            Tensors::Same(name) if row.path == "lm_head.weight" => Some(name),
            _ => None,
        };
        architecture.names.iter().find_map(head).filter(|_| config.tie_embeddings)
    }
}

/// The key of `config.json` that says how matrices are rounded.
const QUANTIZATION: &str = "quantization_config";
/// The value of `quant_method` in it for matrices in Hearth's blocks.
const OWN_METHOD: &str = "hearth";

/// How `config.json` says that matrices are rounded, if they are.
///
/// # Errors
/// [`Error::File`] for any other way than Hearth's.
pub(super) fn stored_dtype(config: &Map<String, Value>, path: &Path) -> Result<Option<Dtype>> {
    let Some(quantization) = config.get(QUANTIZATION).filter(|value| !value.is_null()) else { return Ok(None) };
    let refuse = |what: String| {
        let dtypes = Dtype::names(Dtype::is_quantized);
        let hint = format!("what `hearth quantize` writes has the method `{OWN_METHOD}` and the dtype {dtypes}");
        Err(Error::File { path: path.to_owned(), what, hint })
    };
    if quantization["quant_method"] != OWN_METHOD {
        return refuse(format!("`{QUANTIZATION}` has method {}, which is not supported", quantization["quant_method"]));
    }
    match Dtype::parse(quantization["dtype"].as_str().unwrap_or_default(), Dtype::is_quantized) {
        Ok(dtype) => Ok(Some(dtype)),
        Err(what) => refuse(format!("`{QUANTIZATION}.dtype` {what}")),
    }
}

/// What `config.json` says of matrices in blocks of `dtype`.
pub(super) fn quantization_json(dtype: Dtype) -> (String, Value) {
    let json = json!({ "quant_method": OWN_METHOD, "dtype": dtype.to_string(), "block_size": BLOCK_SIZE });
    (QUANTIZATION.to_owned(), json)
}

/// Keys of `config.json` that are not the architecture's.
const SHARED_KEYS: &[&str] = &[
    "architectures",
    "model_type",
    "dtype",
    "torch_dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    QUANTIZATION,
];

/// What a parameter is made of in the files.
enum Parts {
    Same(String),
    Transposed(String),
    Stacked(Vec<Part>),
    Behind(usize, String),
}

/// Some of a parameter's rows.
struct Part {
    name: String,
    n_rows: usize,
    order: RowOrder,
}

/// `blocks.3.attn.out.weight` to `blocks.{}.attn.out.weight` and `3`.
fn split_layer(path: &str) -> (String, &str) {
    let layer = path.strip_prefix("blocks.").and_then(|rest| rest.split('.').next()).unwrap_or_default();
    if layer.is_empty() { (path.to_owned(), "") } else { (path.replacen(layer, "{}", 1), layer) }
}

/// Builds the model from the tensors of a model dir. Without a `dtype`, matrices that are bf16 stay so where the device
/// computes with it, and the others become f32.
pub(super) fn load_params(
    files: &TensorFiles,
    spelling: Spelling,
    config: &GptConfig,
    (dtype, device): (Option<Dtype>, &Device),
) -> Result<Gpt> {
    let keeps_bf16 = dtype.is_none() && Dtype::Bf16.is_for(device);
    let tied_copy = spelling.tied_copy(config).and_then(|name| files.get(name));
    let (used, not_finite) = (HashSet::new(), Vec::new());
    let has_minima = dtype.is_some_and(Dtype::has_minima);
    let mut reader = ParamReader { files, spelling, tied_copy, device, keeps_bf16, has_minima, used, not_finite };
    let mut read = |spec: &ParamSpec| {
        // What was read so far; the rows that are given here are read behind this.
        files.release();
        reader.read_param(spec, spelling.parts(spec, config))
    };
    let gpt = Gpt::from_params(config, dtype.unwrap_or_default(), device, &mut read)?;
    if !reader.not_finite.is_empty() {
        let (path, tensors) = (files.path().display(), reader.not_finite.join("`, `"));
        tracing::warn!(
            "`{path}`: some values are infinite or no numbers, so the model's output will be too: `{tensors}`"
        );
    }
    let surplus = files.names().find(|name| !reader.used.contains(*name) && !spelling.is_ignored(name, config));
    match surplus {
        None => Ok(gpt),
        Some(tensor) => Err(Error::Tensor {
            path: files.path().to_owned(),
            tensor: tensor.to_owned(),
            what: format!("is no part of `{}` with this `config.json`", spelling.class()),
            hint: "the model would compute something else than it was trained for, so it is not opened".to_owned(),
        }),
    }
}

/// Puts parameters together from tensors, and remembers which.
struct ParamReader<'a> {
    files: &'a TensorFiles,
    spelling: Spelling,
    /// The embeddings once more.
    tied_copy: Option<StoredTensor<'a>>,
    device: &'a Device,
    /// Whether matrices of bf16 are put on the device as they are.
    keeps_bf16: bool,
    /// Whether matrices of blocks have minima, but for those in q8.
    has_minima: bool,
    used: HashSet<String>,
    /// Tensors with values that are infinite or no numbers.
    not_finite: Vec<String>,
}

impl<'a> ParamReader<'a> {
    fn read_param(&mut self, spec: &ParamSpec, parts: Parts) -> Result<ParamData<'a>> {
        // Matrices of blocks go by Hearth's own names, as they are.
        if let (Parts::Same(name), &[d_out, d_in]) = (&parts, spec.shape.as_slice())
            && let Some(values) = self.files.get(name).filter(StoredTensor::is_quantized)
        {
            let beside = |name: String| self.files.get(&name).ok_or_else(|| missing(self.files, &name));
            let scales = beside(scales_of(name))?;
            let minima = match self.files.get(&minima_of(name)) {
                // Without them, numbers of 4 bits would be taken for those of q4.
                None if self.has_minima && !values.is_q8() => return Err(missing(self.files, &minima_of(name))),
                minima => minima,
            };
            let (dtype, rows) = values.to_blocks(&scales, minima.as_ref(), [d_out, d_in])?;
            self.used.insert(values.name);
            for factors in [Some(scales), minima].into_iter().flatten() {
                self.values(&factors)?;
                self.used.insert(factors.name);
            }
            return Weight::from_blocks(&rows, dtype, self.device).map(ParamData::Placed);
        }
        let &[d_out, d_in] = spec.shape.as_slice() else {
            // A vector is a matrix of one column.
            let rows = self.rows([spec.shape[0], 1], spec, parts)?;
            return Ok(TensorData::new(rows.collect(), spec.shape.as_slice()).into());
        };
        let is_kept = self.keeps_bf16 && self.are_bf16(&parts);
        let rows = self.rows([d_out, d_in], spec, parts)?;
        if is_kept {
            return Weight::from_rows(&rows, Dtype::Bf16, self.device).map(ParamData::Placed);
        }
        Ok(ParamData::Rows(rows))
    }

    /// Whether all tensors that make up a parameter are bf16.
    fn are_bf16(&self, parts: &Parts) -> bool {
        let is_bf16 = |name: &String| self.get(name).is_some_and(|tensor| tensor.is_bf16());
        match parts {
            Parts::Same(name) | Parts::Transposed(name) | Parts::Behind(_, name) => is_bf16(name),
            Parts::Stacked(parts) => parts.iter().all(|part| is_bf16(&part.name)),
        }
    }

    /// A parameter as a matrix. All shapes are checked before anything is allocated.
    fn rows(&mut self, dims: [usize; 2], spec: &ParamSpec, parts: Parts) -> Result<MatrixRows<'a, f32>> {
        match parts {
            Parts::Same(name) => {
                let tensor = self.find(name, &spec.shape)?;
                if spec.path == "embed.weight" {
                    self.check_tied_copy(&tensor)?;
                }
                let values = self.values(&tensor)?;
                Ok(MatrixRows::new(dims, dims[1], move |row, out| values.row(row, out)))
            }
            Parts::Transposed(name) => {
                let [d_out, d_in] = dims;
                let tensor = self.find(name, &[d_in, d_out])?;
                let values = self.values(&tensor)?;
                Ok(MatrixRows::new(dims, dims[1], move |row, out| values.column(row, d_out, out)))
            }
            Parts::Stacked(parts) => {
                let find =
                    |Part { name, n_rows, order }| Ok((self.find(name, &with_rows(spec, n_rows))?, n_rows, order));
                let tensors: Vec<_> = parts.into_iter().map(find).collect::<Result<_>>()?;
                let values = |(tensor, n_rows, order)| Ok((self.values(&tensor)?, n_rows, order));
                let parts: Vec<_> = tensors.into_iter().map(values).collect::<Result<_>>()?;
                Ok(MatrixRows::new(dims, dims[1], move |mut row, out| {
                    for (values, n_rows, order) in &parts {
                        match row.checked_sub(*n_rows) {
                            Some(behind) => row = behind,
                            None => return values.row(order.place(row), out),
                        }
                    }
                }))
            }
            Parts::Behind(n_rows, name) => {
                let tensor = self.find(name, &with_rows(spec, dims[0] + n_rows))?;
                let values = self.values(&tensor)?;
                Ok(MatrixRows::new(dims, dims[1], move |row, out| values.row(n_rows + row, out)))
            }
        }
    }

    /// The tensor `name`. Base models were saved without the prefix of the class that holds them.
    fn get(&self, name: &str) -> Option<StoredTensor<'a>> {
        let short = name.strip_prefix(self.spelling.base_prefix()).unwrap_or(name);
        [name, short].into_iter().find_map(|name| self.files.get(name))
    }

    /// The tensor `name`, which must have this shape.
    fn find(&mut self, name: String, shape: &[usize]) -> Result<StoredTensor<'a>> {
        let tensor = self.get(&name).ok_or_else(|| missing(self.files, &name))?;
        tensor.require_shape(shape)?;
        self.used.insert(tensor.name.clone());
        Ok(tensor)
    }

    /// Versions of transformers differ in which of two matrices they take where a file has two for one.
    fn check_tied_copy(&self, embed: &StoredTensor<'_>) -> Result<()> {
        match &self.tied_copy {
            Some(copy) if !copy.has_values_of(embed)? => Err(Error::Tensor {
                path: copy.path.to_owned(),
                tensor: copy.name.clone(),
                what: format!("differs from `{}`, but `config.json` ties the two", embed.name),
                hint: "if the model has two matrices, say `\"tie_word_embeddings\": false`".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn values(&mut self, tensor: &StoredTensor<'a>) -> Result<PlainValues<'a>> {
        let values = tensor.plain()?;
        if !values.bytes.par_chunks(PIECE).all(|bytes| values.dtype.is_finite(bytes)) {
            self.not_finite.push(tensor.name.clone());
        }
        Ok(values)
    }
}

/// The shape of `spec`, but for the number of rows.
fn with_rows(spec: &ParamSpec, n_rows: usize) -> Vec<usize> {
    std::iter::once(n_rows).chain(spec.shape[1..].iter().copied()).collect()
}

fn missing(files: &TensorFiles, name: &str) -> Error {
    Error::Tensor {
        path: files.path().to_owned(),
        tensor: name.to_owned(),
        what: "is missing, `config.json` asks for it".to_owned(),
        hint: String::new(),
    }
}

/// Rows of `n_columns` values become columns.
fn transpose(values: &[f32], n_columns: usize) -> Vec<f32> {
    let n_rows = values.len() / n_columns.max(1);
    (0..n_columns).flat_map(|column| (0..n_rows).map(move |row| values[row * n_columns + column])).collect()
}

/// Writes every parameter of `gpt` to `folder` under the names of `spelling`, one in memory at a time.
pub(super) fn save_params(
    gpt: &Gpt,
    spelling: Spelling,
    folder: &StagedDir,
    (dtype, max_shard_bytes): (DiskDtype, usize),
) -> Result<()> {
    let config = gpt.config();
    let specs: HashMap<_, _> = param_specs(config).into_iter().map(|spec| (spec.path.clone(), spec)).collect();
    let stored_as = gpt.dtype().stored_as();
    let saved = |(path, param)| match param {
        ParamRef::Matrix(matrix) if let Some(dtype) = quantized_dtype(matrix, stored_as)? => {
            Ok(Saved::Blocks { path, matrix, dtype })
        }
        _ => {
            let Some(spec) = specs.get(&path) else {
                unreachable!("`param_specs` lists every parameter of the model: `{path}`")
            };
            Ok(Saved::Plain { param, tensors: SavedTensor::of(spelling.parts(spec, config), spec) })
        }
    };
    let params = gpt.params().into_iter().map(saved).collect::<Result<Vec<_>>>()?;
    let plan = params.iter().flat_map(|param| param.plan(dtype)).collect();
    let mut writer = TensorWriter::new(folder, dtype, max_shard_bytes, plan)?;
    for param in &params {
        match param {
            Saved::Blocks { path, matrix, .. } => {
                if let Some(matrix) = matrix.read_quantized()? {
                    writer.write_quantized(path, &with_minima_of(matrix, stored_as))?;
                }
            }
            Saved::Plain { param, tensors } => {
                let data = param.read()?;
                let values = values(&data)?;
                for tensor in tensors {
                    writer.write_values(&tensor.name, &tensor.values(values))?;
                }
            }
        }
    }
    writer.finish()
}

/// A parameter that is to be saved.
enum Saved<'a> {
    /// A matrix of blocks, which goes by Hearth's own names.
    Blocks { path: String, matrix: &'a Weight, dtype: Dtype },
    /// Values that are stored as they are.
    Plain { param: ParamRef<'a>, tensors: Vec<SavedTensor> },
}

impl Saved<'_> {
    fn plan(&self, dtype: DiskDtype) -> Vec<TensorPlan> {
        match self {
            Self::Blocks { path, matrix, dtype } => TensorPlan::quantized(path, matrix.dims(), *dtype),
            Self::Plain { tensors, .. } => {
                let plan = |tensor: &SavedTensor| TensorPlan::plain(tensor.name.clone(), dtype, tensor.shape.clone());
                tensors.iter().map(plan).collect()
            }
        }
    }
}

/// A tensor that is made of a parameter's values.
struct SavedTensor {
    name: String,
    shape: Vec<usize>,
    form: SavedForm,
}

/// Which of a parameter's values are in a tensor, and in which order.
#[derive(Clone, Copy)]
enum SavedForm {
    All,
    Transposed,
    /// Rows from this one on.
    Rows(usize, RowOrder),
    /// All, behind rows of zeros.
    Behind,
}

impl SavedTensor {
    /// The tensors of the parameter that `parts` make up.
    fn of(parts: Parts, spec: &ParamSpec) -> Vec<Self> {
        let one = |name, shape, form| vec![Self { name, shape, form }];
        match parts {
            Parts::Same(name) => one(name, spec.shape.clone(), SavedForm::All),
            Parts::Transposed(name) => one(name, vec![spec.shape[1], spec.shape[0]], SavedForm::Transposed),
            Parts::Stacked(parts) => {
                let mut first = 0;
                let tensor = |Part { name, n_rows, order }| {
                    let form = SavedForm::Rows(first, order);
                    first += n_rows;
                    Self { name, shape: with_rows(spec, n_rows), form }
                };
                parts.into_iter().map(tensor).collect()
            }
            Parts::Behind(n_rows, name) => one(name, with_rows(spec, spec.shape[0] + n_rows), SavedForm::Behind),
        }
    }

    /// The tensor's values, from `all` of the parameter's.
    fn values<'a>(&self, all: &'a [f32]) -> Cow<'a, [f32]> {
        let n_values: usize = self.shape.iter().product();
        let width = n_values / self.shape[0].max(1);
        match self.form {
            SavedForm::All => all.into(),
            SavedForm::Transposed => transpose(all, self.shape[0]).into(),
            SavedForm::Rows(first, order) => {
                let rows = &all[first * width..][..n_values];
                if order == RowOrder::Same {
                    return rows.into();
                }
                let mut placed = rows.to_vec();
                for (n, row) in rows.chunks_exact(width).enumerate() {
                    placed[order.place(n) * width..][..width].copy_from_slice(row);
                }
                placed.into()
            }
            SavedForm::Behind => {
                let mut rows = vec![0.0; n_values - all.len()];
                rows.extend(all);
                rows.into()
            }
        }
    }
}

/// Of numbers of 4 bits, all have minima or none: see `ParamReader::has_minima`. `stored_as` is how most matrices of the
/// model are stored.
fn with_minima_of(matrix: QuantizedMatrix, stored_as: Dtype) -> QuantizedMatrix {
    if stored_as.has_minima() { matrix.with_minima() } else { matrix }
}

/// The dtype in which `matrix` is stored, if it is in blocks.
fn quantized_dtype(matrix: &Weight, stored_as: Dtype) -> Result<Option<Dtype>> {
    match matrix.quantized_dtype() {
        // Which it will be depends on its scales.
        Some(Dtype::Q4) if stored_as.has_minima() => {
            Ok(matrix.read_quantized()?.map(|matrix| with_minima_of(matrix, stored_as).dtype()))
        }
        dtype => Ok(dtype),
    }
}

/// `config.json` for `config`: how it is spelled, and its fields.
///
/// # Errors
/// [`Error::Config`] when `class` is not known or cannot express `config`.
pub(super) fn config_json(
    config: &GptConfig,
    class: Option<&str>,
    dtype_name: &str,
) -> Result<(Spelling, Map<String, Value>)> {
    let (spelling, fields) = Spelling::for_config(config, class)?;
    let mut json = Map::new();
    json.insert("architectures".to_owned(), json!([spelling.class()]));
    json.insert("model_type".to_owned(), json!(spelling.model_type()));
    json.insert("dtype".to_owned(), json!(dtype_name));
    json.extend(fields);
    Ok((spelling, json))
}

/// The values of a parameter, in row order.
fn values(data: &TensorData) -> Result<&[f32]> {
    data.as_slice::<f32>()
        .map_err(|error| Error::Execution { what: format!("a parameter could not be read: {error:?}") })
}
