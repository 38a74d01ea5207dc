//! From a model dir's `config.json` and tensors to [`GptConfig`] and parameters, and back, by the table of architectures.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use burn::tensor::{Device, TensorData};
use serde_json::{Map, Value, json};

use super::{
    architectures::{ARCHITECTURES, Architecture, Tensors, expresses, known_architectures},
    fields::Fields,
    files::{StoredTensor, TensorFiles, TensorWriter, values},
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    gpt::{Gpt, ParamSpec, param_specs},
    ops::Dtype,
};

/// The class under which configurations are saved that no Hugging Face class expresses: Hearth's own field and
/// parameter names.
pub(super) const OWN_CLASS: &str = "HearthForCausalLM";
const OWN_MODEL_TYPE: &str = "hearth";

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

    /// The spelling that expresses `config`: the first class of the table that does, else Hearth's own.
    pub(super) fn for_config(config: &GptConfig) -> (Self, Map<String, Value>) {
        for architecture in ARCHITECTURES {
            if let Value::Object(written) = (architecture.write)(config)
                && expresses(architecture, config, &written)
            {
                return (Self::Class(architecture), written);
            }
        }
        let written = match serde_json::to_value(config) {
            Ok(Value::Object(map)) => map,
            _ => unreachable!("a struct of plain fields is a JSON object"),
        };
        (Self::Own, written)
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
            Self::Class(architecture) => (architecture.read)(&Fields::new(config, path))?,
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
            hint: String::new(),
        })?;
        Ok(read)
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
            Tensors::Stacked(tensors) => {
                Parts::Stacked(tensors.iter().map(|(tensor, rows)| (name(tensor), rows.count(config))).collect())
            }
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
        let tied_copy = config.tie_embeddings && tensor == "lm_head.weight";
        tied_copy || architecture.ignored.iter().any(|ending| tensor.ends_with(ending))
    }
}

/// Keys of `config.json` that are not the architecture's.
const SHARED_KEYS: &[&str] =
    &["architectures", "model_type", "dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id"];

/// What a parameter is made of in the files.
enum Parts {
    Same(String),
    Transposed(String),
    Stacked(Vec<(String, usize)>),
}

/// `blocks.3.attn.out.weight` to `blocks.{}.attn.out.weight` and `3`.
fn split_layer(path: &str) -> (String, &str) {
    let layer = path.strip_prefix("blocks.").and_then(|rest| rest.split('.').next()).unwrap_or_default();
    if layer.is_empty() { (path.to_owned(), "") } else { (path.replacen(layer, "{}", 1), layer) }
}

/// Builds the model from the tensors of a model dir.
pub(super) fn load_params(
    files: &TensorFiles,
    spelling: Spelling,
    config: &GptConfig,
    (dtype, device): (Dtype, &Device),
) -> Result<Gpt> {
    let mut used = HashSet::new();
    let gpt = Gpt::from_params(config, dtype, device, &mut |spec| {
        let mut find = |name: String| {
            // Base models were saved without the prefix of the class that holds them.
            let short = name.strip_prefix(spelling.base_prefix()).unwrap_or(&name);
            let found = [name.as_str(), short].into_iter().find(|name| files.contains(name));
            let tensor = found.and_then(|name| files.get(name)).ok_or_else(|| missing(files, &name))?;
            used.insert(tensor.name.clone());
            Ok(tensor)
        };
        let values = read_param(spec, spelling.parts(spec, config), &mut find)?;
        Ok(TensorData::new(values, spec.shape.as_slice()))
    })?;
    let surplus = files.names().find(|name| !used.contains(*name) && !spelling.is_ignored(name, config));
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

fn read_param<'a>(
    spec: &ParamSpec,
    parts: Parts,
    find: &mut dyn FnMut(String) -> Result<StoredTensor<'a>>,
) -> Result<Vec<f32>> {
    match parts {
        Parts::Same(name) => {
            let tensor = find(name)?;
            tensor.require_shape(&spec.shape)?;
            tensor.to_f32()
        }
        Parts::Transposed(name) => {
            let tensor = find(name)?;
            let (d_out, d_in) = (spec.shape[0], spec.shape[1]);
            tensor.require_shape(&[d_in, d_out])?;
            Ok(transpose(&tensor.to_f32()?, d_out))
        }
        Parts::Stacked(names) => {
            let mut values = Vec::with_capacity(spec.shape.iter().product());
            for (name, n_rows) in names {
                let tensor = find(name)?;
                let shape: Vec<usize> = std::iter::once(n_rows).chain(spec.shape[1..].iter().copied()).collect();
                tensor.require_shape(&shape)?;
                values.extend(tensor.to_f32()?);
            }
            Ok(values)
        }
    }
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

/// Hands every parameter of `gpt` to `writer` under the names of `spelling`.
pub(super) fn save_params(gpt: &Gpt, spelling: Spelling, writer: &mut TensorWriter) -> Result<()> {
    let config = gpt.config();
    let specs: HashMap<_, _> = param_specs(config).into_iter().map(|spec| (spec.path.clone(), spec)).collect();
    gpt.read_params(&mut |path, data| {
        let Some(spec) = specs.get(path) else {
            unreachable!("`param_specs` lists every parameter of the model: `{path}`")
        };
        let values = values(&data)?;
        match spelling.parts(spec, config) {
            Parts::Same(name) => writer.push(name, spec.shape.clone(), values),
            Parts::Transposed(name) => {
                let (d_out, d_in) = (spec.shape[0], spec.shape[1]);
                writer.push(name, vec![d_in, d_out], &transpose(values, d_in));
            }
            Parts::Stacked(names) => {
                let width: usize = spec.shape[1..].iter().product();
                let mut rest = values;
                for (name, n_rows) in names {
                    let (part, tail) = rest.split_at(n_rows * width);
                    let shape = std::iter::once(n_rows).chain(spec.shape[1..].iter().copied()).collect();
                    writer.push(name, shape, part);
                    rest = tail;
                }
            }
        }
        Ok(())
    })
}

/// `config.json` for `config`: how it is spelled, and its fields.
pub(super) fn config_json(config: &GptConfig, dtype_name: &str) -> (Spelling, Map<String, Value>) {
    let (spelling, fields) = Spelling::for_config(config);
    let mut json = Map::new();
    json.insert("architectures".to_owned(), json!([spelling.class()]));
    json.insert("model_type".to_owned(), json!(spelling.model_type()));
    json.insert("dtype".to_owned(), json!(dtype_name));
    json.extend(fields);
    (spelling, json)
}
