//! A model from the `config.json` and the weights of a model dir.

use std::path::Path;

use serde_json::{Map, Value};

use super::{
    architectures::wrappers::{WrappedTensor, Wrapper},
    config_json::Fields,
    file_names::MODULES_FILE,
    files::TensorFiles,
    hf_schema::{self, HfSchema, Quantization},
    loader::{self, LoadPlan},
    opened_model::LoadOptions,
    own_classifier::SEQUENCE_CLASS,
    packed::{self, PackedMatrices},
    passed_over::{PassedOver, shown},
    tensor_table::TensorTable,
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    gpt::{Gpt, lora::LoraValues},
};

/// A `config.json`; for a wrapper, in the form of its text class.
#[derive(Clone, Copy)]
pub(super) struct DirConfig<'a> {
    pub(super) json: &'a Map<String, Value>,
    pub(super) wrapper: Option<&'a Wrapper>,
    /// Its file.
    pub(super) path: &'a Path,
}

/// The schema and the configuration that the fields of `config.json` describe.
pub(super) fn schema_and_config(fields: &Fields<'_>) -> Result<(HfSchema, GptConfig)> {
    let schema = HfSchema::of(fields)?;
    Ok((schema, schema.read_config(fields)?))
}

/// Builds the model.
pub(super) fn build(
    config: DirConfig<'_>,
    files: &TensorFiles,
    options: &LoadOptions,
    merged: Option<&LoraValues>,
) -> Result<Gpt> {
    open(config, files, options, |tensors, packed, plan| {
        loader::load(&tensors, &LoadPlan { packed: Some(&packed), merged, ..plan })
    })
}

/// Opens the weights; of a wrapper, only the text part's. `load` gets the tensors, the matrices that other programs
/// quantized, and the rest of the load plan.
pub(super) fn open<T>(
    DirConfig { json: config_json, wrapper, path }: DirConfig<'_>,
    files: &TensorFiles,
    options: &LoadOptions,
    load: impl FnOnce(TensorTable<'_>, PackedMatrices<'_>, LoadPlan<'_>) -> Result<T>,
) -> Result<T> {
    let passed_over = PassedOver::default();
    let fields = Fields::new(config_json, path).noting(&passed_over);
    let (mut schema, mut config) = schema_and_config(&fields)?;
    let mut tensors = files.table()?;
    if config.mlm_head.is_some() && !has_mlm_head(&tensors, schema) {
        // Embedding models were often saved with the class of the model from which they were made.
        fields.pass_over(|| format!("there are no tensors of the head of `{}`", schema.class()));
        schema = schema.without_mlm_head();
        config = schema.read_config(&fields)?;
    }
    if lacks_output(config_json, path, &tensors)? {
        fields.pass_over(|| "there is no output matrix, so the model writes no text".to_owned());
        (config.tie_embeddings, config.lm_head_bias) = (true, false);
    }
    passed_over.log(path);
    if config.is_extended_dynamically() {
        tracing::info!(
            "`{}`: dynamic rotary scaling is not supported, so texts have at most the original context of {} tokens",
            path.display(),
            config.max_seq_len
        );
    }
    let (stored, method) = match hf_schema::quantization(config_json, path)? {
        Some(Quantization::Own(dtype)) => (Some(dtype), None),
        Some(Quantization::Packed(method)) => (None, Some(method)),
        None => (None, None),
    };
    if let Some(wrapper) = wrapper {
        take_text_part(&mut tensors, wrapper, path)?;
    }
    let packed = method.map(|method| packed::fold(&mut tensors, method)).transpose()?.unwrap_or_default();
    if let (Some(stored), Some(asked)) = (stored, options.dtype)
        && stored != asked
    {
        let name = if asked.is_quantized() { "quantize" } else { "dtype" };
        let what = format!(
            "is `{asked}`, but the weights are stored in `{stored}`\nhint: quantized weights cannot be converted; use the model \
             before quantization"
        );
        return Err(Error::Param { name, what });
    }
    let plan = LoadPlan {
        names: schema.tensor_names(),
        packed: None,
        config: &config,
        dtype: options.dtype.or(stored),
        keeps_f16: false,
        device: &options.device,
        merged: None,
    };
    load(tensors, packed, plan)
}

/// Whether a decoder has no output matrix: it has a classification head instead, or `modules.json` says that it is an
/// embedding model.
pub(super) fn lacks_output(config_json: &Map<String, Value>, path: &Path, tensors: &TensorTable<'_>) -> Result<bool> {
    let fields = Fields::new(config_json, path);
    let (schema, config) = schema_and_config(&fields)?;
    if config.bidirectional || config.is_encoder_decoder() {
        return Ok(false);
    }
    let class = fields.get("architectures").and_then(|classes| classes[0].as_str());
    let has_head = class.is_some_and(|class| class.ends_with(SEQUENCE_CLASS));
    let is_for_vectors = path.with_file_name(MODULES_FILE).is_file();
    let is_there = || schema.tensor_names().has_part("lm_head.", |name| tensors.get(name).is_some());
    Ok(has_head || (is_for_vectors && !config.tie_embeddings && !is_there()))
}

/// Whether the tensors of the masked-LM head exist.
fn has_mlm_head(tensors: &TensorTable<'_>, schema: HfSchema) -> bool {
    schema.tensor_names().has_part("mlm_head.", |name| tensors.get(name).is_some())
}

/// How the names of experts' tensors go on behind that of the layer.
const EXPERTS: &str = ".mlp.experts.";

/// Whether the experts of a layer are in one tensor, transposed, as in released files of Qwen 3 VL.
fn has_transposed_experts(tensors: &TensorTable<'_>) -> bool {
    let up = tensors.iter().find(|tensor| tensor.name.ends_with(".mlp.experts.gate_up_proj"));
    let down = up.and_then(|up| tensors.get(&up.name.replace("gate_up_proj", "down_proj")));
    match (up.map(|up| &up.shape[..]), down.map(|down| &down.shape[..])) {
        (Some([_, inputs, _]), Some([_, _, outputs])) => inputs == outputs,
        _ => false,
    }
}

/// Takes the tensors of other parts than the text out of the table, and says so in the log.
fn take_text_part(tensors: &mut TensorTable<'_>, wrapper: &Wrapper, path: &Path) -> Result<()> {
    let are_transposed = has_transposed_experts(tensors);
    let others = tensors.rename(|name| match WrappedTensor::of(name, wrapper) {
        // Under names of their own.
        WrappedTensor::Text(name) if are_transposed && name.contains(EXPERTS) => {
            name.strip_suffix("_proj").or(Some(name))
        }
        WrappedTensor::Text(name) => Some(name),
        WrappedTensor::Other => None,
    })?;
    let (class, names) = (wrapper.class, shown(others.iter().map(|tensor| tensor.name).collect()));
    tracing::info!("`{}`: of `{class}`, only the text part is opened; passed over: {names}", path.display());
    Ok(())
}
