//! Prediction heads in a model's files: their tensors get the names of a model of one layer.

use std::collections::HashMap;

use super::{
    loader::{self, LoadPlan},
    packed::PackedMatrices,
    tensor_names::{TensorNames, TensorPart},
    tensor_table::TensorTable,
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    gpt::{
        Gpt, ParamSpec,
        param_specs::join_specs,
        prediction_head::{OF_HEAD, PredictionHead},
    },
};

/// The names of a head's tensors in files.
struct HeadNames {
    /// The layer's and the rest.
    prefix: &'static str,
    /// Whether the layer's number is the one after the model's last layer.
    is_behind: bool,
    /// Replacements of the prefix that follows `prefix` and the number; the first match counts. `None` drops the
    /// tensor: a copy of one of the model's.
    rest: &'static [(&'static str, Option<&'static str>)],
}

/// Names in files of Qwen; of GLM and DeepSeek; in GGUF files.
const NAMES: [HeadNames; 3] = [
    HeadNames { prefix: "mtp.", is_behind: false, rest: &[("", Some("model."))] },
    HeadNames {
        prefix: "model.layers.",
        is_behind: true,
        rest: &[
            ("embed_tokens.", None),
            ("shared_head.head.", None),
            ("shared_head.norm.", Some("model.norm.")),
            ("enorm.", Some("model.pre_fc_norm_embedding.")),
            ("hnorm.", Some("model.pre_fc_norm_hidden.")),
            ("eh_proj.", Some("model.fc.")),
            ("", Some("model.layers.0.")),
        ],
    },
    HeadNames {
        prefix: "blk.",
        is_behind: true,
        rest: &[
            ("nextn.embed_tokens.", None),
            ("nextn.shared_head_head.", None),
            ("nextn.shared_head_norm.", Some("output_norm.")),
            ("nextn.", Some("nextn.")),
            ("", Some("blk.0.")),
        ],
    },
];

impl HeadNames {
    /// The name of the head's tensor `name` in a model of one layer. `None` if it does not belong to a head after
    /// `n_layers` layers.
    fn name(&self, name: &str, n_layers: usize) -> Option<String> {
        let mut rest = name.strip_prefix(self.prefix)?;
        if self.is_behind {
            rest = rest.strip_prefix(&format!("{n_layers}."))?;
        }
        let (found, replaced) = self.rest.iter().find(|(beginning, _)| rest.starts_with(beginning))?;
        replaced.map(|replaced| format!("{replaced}{}", &rest[found.len()..]))
    }

    /// The reverse of [`name`](Self::name), for messages.
    fn file_name(&self, name: &str, n_layers: usize) -> Option<String> {
        let number = if self.is_behind { format!("{n_layers}.") } else { String::new() };
        self.rest.iter().find_map(|(beginning, replaced)| {
            let rest = name.strip_prefix((*replaced)?)?;
            Some(format!("{}{number}{beginning}{rest}", self.prefix))
        })
    }
}

/// The tensors of a parameter of a head that trained beside its model of `config`, named as Qwen's. `spec` has its path
/// in the model.
///
/// # Errors
/// [`Error::Config`] if no names are known for heads of the class.
pub(super) fn saved_parts(names: &TensorNames, spec: &ParamSpec, config: &GptConfig) -> Result<Vec<TensorPart>> {
    let path = spec.path.strip_prefix(OF_HEAD).unwrap_or(&spec.path).to_owned();
    let (spec, config) = (ParamSpec { path, ..spec.clone() }, config.of_prediction_head());
    if names.rows.is_none() || !names.knows(&spec, &config) {
        return Err(Error::Config {
            field: "class".into(),
            what: format!("`{}` has no prediction heads", names.class),
        });
    }
    let mut parts = names.parts(&spec, &config, &|_| false);
    for part in &mut parts {
        part.name = NAMES.iter().find_map(|names| names.file_name(&part.name, 0)).unwrap_or_default();
    }
    Ok(parts)
}

/// Bytes of the tensors of a head after `n_layers` layers; 0 without one.
pub(super) fn n_bytes(tensors: &TensorTable<'_>, n_layers: usize) -> u64 {
    let is_of_head = |name: &str| NAMES.iter().any(|names| names.name(name, n_layers).is_some());
    tensors.iter().filter(|tensor| is_of_head(tensor.name)).map(|tensor| tensor.bytes.len() as u64).sum()
}

/// The head of `gpt`, if the files of the model have one. `packed` are matrices that other programs quantized, `plan` is how
/// to load the rest.
///
/// # Errors
/// As [`loader::load`]; and if no head of the class is known.
pub(super) fn load(
    tensors: TensorTable<'_>,
    mut packed: PackedMatrices<'_>,
    plan: LoadPlan<'_>,
    gpt: &Gpt,
) -> Result<Option<PredictionHead>> {
    let n_layers = gpt.config().n_layers;
    let head_name = |name: &str| NAMES.iter().find_map(|names| names.name(name, n_layers));
    let mut names: HashMap<&str, String> = tensors.names().filter_map(|name| Some((name, head_name(name)?))).collect();
    let Some(first) = names.keys().min().copied().and_then(|name| tensors.get(name)).cloned() else { return Ok(None) };
    let config = gpt.config().of_prediction_head();
    if !join_specs(&config).iter().flat_map(|part| &part.params).all(|spec| plan.names.knows(spec, &config)) {
        let what = format!("is of a prediction head, and those of `{}` are not supported", plan.names.class);
        return Err(first.error(what).with_hint("without `--speculative mtp` it is passed over"));
    }
    let is_further = |name: &str| name.starts_with("model.layers.") && !name.starts_with("model.layers.0.");
    let further = names.iter().filter(|(_, name)| is_further(name)).map(|(name, _)| *name).min();
    if let Some(further) = further.and_then(|name| tensors.get(name)) {
        return Err(further.error("is of a second prediction layer, and heads of one are supported"));
    }
    // Some files have no norm for the head: the model's is used.
    const NORM: &str = "output_norm.weight";
    if tensors.get(NORM).is_some() && !names.values().any(|name| name == NORM) {
        names.insert(NORM, NORM.to_owned());
    }
    packed = packed.into_iter().filter_map(|(name, matrix)| Some((head_name(&name)?, matrix))).collect();
    let mut of_head: TensorTable<'_> = tensors;
    of_head.rename(|name| names.get(name).map(String::as_str))?;
    let plan = LoadPlan { packed: Some(&packed), config: &config, ..plan };
    let head = loader::load_by(&of_head, &plan, |dtype, read| PredictionHead::from_params(gpt, dtype, read));
    head.map(Some).map_err(|error| match error {
        Error::Tensor { path, tensor, what, hint } => {
            let names = NAMES.iter().find(|names| names.name(first.name, n_layers).is_some());
            let of_file = names.and_then(|names| names.file_name(&tensor, n_layers));
            Error::Tensor { path, tensor: of_file.unwrap_or(tensor), what, hint }
        }
        error => error,
    })
}
