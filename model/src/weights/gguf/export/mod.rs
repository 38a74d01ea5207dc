//! Writes a model as a GGUF file that llama.cpp opens: weights, configuration, tokenizer, chat templates and sampling
//! defaults.
//!
//! The metadata is read back by the rows of `architectures` and compared, so a model that GGUF cannot describe is
//! rejected, not changed.

pub(super) mod metadata;
mod tokenizer;

use std::{collections::HashMap, path::Path};

use self::metadata::{described, entries, factors, sampling_entries};
use super::{
    super::{
        file_names::GENERATION_FILE,
        opened_model::LoadedModel,
        own_pooling,
        save::{SavedTensor, values},
        tensor_names::TensorPart,
    },
    description::{Gguf, POOLING_TYPE},
    writer::{self, Entry, FileTensor, TensorForm},
};
use crate::{
    config::GptConfig,
    error::Result,
    files::{partial_file::PartialFile, regular_file::parse_json_object},
    gpt::{Gpt, ParamSpec, param_specs, params::ParamRef},
    ops::{BLOCK_SIZE, Dtype, QuantizedBlock, Weight},
    text::tokenizer::TOKENIZER_FILE,
};
use burn::tensor::{Device, TensorData};

/// How to write a model.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The dtype of matrices. `None`: blocks stay as they are, other values are f32.
    pub dtype: Option<Dtype>,
    /// The model's name in the file.
    pub name: String,
    /// The Hugging Face class that the model was loaded from, which decides between architectures that compute the same.
    pub class: Option<String>,
    /// The other files. `tokenizer.json` is required; `generation_config.json` gives the sampling defaults to export.
    pub extra_files: Vec<(String, Vec<u8>)>,
}

/// Writes `model` to `file`, and finishes it.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) if no architecture of GGUF files describes the model;
/// [`Error::File`](crate::Error::File) if GGUF has no name for how its tokenizer splits text, or if
/// `generation_config.json` is not a JSON object;
/// [`Error::Io`](crate::Error::Io) if the file cannot be written.
pub fn export(file: PartialFile, model: &LoadedModel, options: &ExportOptions) -> Result<()> {
    let LoadedModel {
        gpt,
        tokenizer,
        chat_template,
        eos_token_ids,
        decoder_start: _,
        sampling_defaults,
        own_pooling,
        writes_text: _,
        prompts: _,
        text_limit: _,
        classifier: _,
    } = model;
    let (gguf, config, own) = described(gpt.config(), options.class.as_deref())?;
    let mut pairs = entries(gguf, &own, &options.name);
    let pooling = own_pooling::gguf_number(own_pooling);
    pairs.extend(pooling.map(|number| (format!("{}.{POOLING_TYPE}", gguf.name), Entry::Unsigned(number))));
    let extra = |wanted: &str| options.extra_files.iter().find(|(name, _)| name == wanted).map(|(_, bytes)| &**bytes);
    let json = extra(TOKENIZER_FILE);
    pairs.extend(tokenizer::entries(json, tokenizer, eos_token_ids, config.vocab_size, chat_template.as_ref())?);
    let generation = extra(GENERATION_FILE).map(|bytes| parse_json_object(Path::new(GENERATION_FILE), bytes));
    pairs.extend(sampling_entries(sampling_defaults, &generation.transpose()?.unwrap_or_default()));
    let planned = plan(gpt, gguf, &config, options.dtype)?;
    let lists = factors(&config).into_iter();
    let lists: Vec<_> = lists.map(|(name, values)| FactorList { name, shape: [values.len()], values }).collect();
    let params = planned.iter().map(|planned| planned as &dyn FileTensor);
    let tensors: Vec<_> = params.chain(lists.iter().map(|list| list as &dyn FileTensor)).collect();
    writer::write(file, &pairs, &tensors)
}

/// Factors for the wavelength of each pair of dimensions.
struct FactorList {
    name: &'static str,
    shape: [usize; 1],
    values: Vec<f32>,
}

impl FileTensor for FactorList {
    fn name(&self) -> &str {
        self.name
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn form(&self) -> TensorForm {
        TensorForm::F32
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        Ok(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }
}

/// A tensor that is to be written.
struct Planned<'a> {
    form: TensorForm,
    /// The parts of the tensor with the parameters they come from: one, or one for each of a layer's experts, in order.
    parts: Vec<(SavedTensor, ParamRef<'a>)>,
    /// Values in a row of the parameter.
    width: usize,
    /// Added to all values: norms are stored as they are used.
    offset: f32,
}

/// All tensors in the order of the parameters.
fn plan<'a>(gpt: &'a Gpt, gguf: &Gguf, config: &GptConfig, dtype: Option<Dtype>) -> Result<Vec<Planned<'a>>> {
    let specs: HashMap<_, _> = param_specs(config).into_iter().map(|spec| (spec.path.clone(), spec)).collect();
    let names = gguf.names();
    let (mut planned, mut places) = (Vec::<Planned<'_>>::new(), HashMap::new());
    for (path, param) in gpt.params() {
        let Some(spec) = specs.get(&path) else {
            unreachable!("`param_specs` lists every parameter of the model: `{path}`")
        };
        let parts: Vec<TensorPart> = metadata::written_parts(&names, spec, config);
        // The norm behind a gated delta net has no offset.
        let norm =
            path.strip_suffix(".weight").filter(|part| part.ends_with("norm") && !part.ends_with(".recurrent.norm"));
        let offset = norm.map_or(0.0, |part| gpt.config().norm_options(part).1);
        let width = spec.shape[1..].iter().product();
        for tensor in SavedTensor::of(parts, spec) {
            let place = *places.entry(tensor.name().to_owned()).or_insert(planned.len());
            if place == planned.len() {
                let form = form_of(param, spec, &tensor, dtype);
                planned.push(Planned { form, parts: Vec::new(), width, offset });
            }
            planned[place].parts.push((tensor, param));
        }
    }
    Ok(planned)
}

/// Only matrices are rounded, and to blocks only where rows are whole blocks. llama.cpp adds learned positions in f32, and routers
/// are never rounded.
fn form_of(param: ParamRef<'_>, spec: &ParamSpec, tensor: &SavedTensor, dtype: Option<Dtype>) -> TensorForm {
    let ParamRef::Matrix(matrix) = param else { return TensorForm::F32 };
    if spec.path == "pos_embed.weight" || spec.path.contains(".router.") {
        return TensorForm::F32;
    }
    let is_embedding = spec.path == "embed.weight";
    let dtype = dtype.map(|dtype| if is_embedding { dtype.for_embeddings() } else { dtype });
    let dtype = dtype.or_else(|| matrix.quantized_dtype()).unwrap_or(Dtype::F32);
    match TensorForm::of(dtype) {
        TensorForm::Blocks(_) if !tensor.shape().last().is_some_and(|width| width.is_multiple_of(BLOCK_SIZE)) => {
            TensorForm::F32
        }
        form => form,
    }
}

impl FileTensor for Planned<'_> {
    fn name(&self) -> &str {
        self.parts[0].0.name()
    }

    fn shape(&self) -> &[usize] {
        self.parts[0].0.shape()
    }

    fn form(&self) -> TensorForm {
        self.form
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let parts = self.parts.iter().map(|(tensor, param)| self.bytes_of(tensor, *param));
        Ok(parts.collect::<Result<Vec<_>>>()?.concat())
    }
}

impl Planned<'_> {
    fn bytes_of(&self, tensor: &SavedTensor, param: ParamRef<'_>) -> Result<Vec<u8>> {
        let Self { form, width, offset, .. } = self;
        if let (TensorForm::Blocks(dtype), ParamRef::Matrix(matrix)) = (form, param)
            && !tensor.has_columns()
            && let Some(blocks) = matrix.read_quantized()?
            && blocks.dtype() == *dtype
        {
            let rows = tensor.placed(blocks.blocks(), width / BLOCK_SIZE);
            return Ok(rows.iter().flat_map(|block| block_bytes(block, *dtype)).collect());
        }
        let data = param.read()?;
        let values: Vec<f32> = tensor.values(values(&data)?, *width).iter().map(|value| value + offset).collect();
        let dtype = match form {
            TensorForm::Floats(form) => return form.encode(tensor.name(), &values),
            TensorForm::Blocks(dtype) => dtype,
        };
        let row = tensor.shape().last().copied().unwrap_or(1);
        let shape = [values.len() / row, row];
        let Some(blocks) = Weight::new(TensorData::new(values, shape), *dtype, &Device::flex())?.read_quantized()?
        else {
            unreachable!("a weight of {dtype} has blocks")
        };
        Ok(blocks.blocks().iter().flat_map(|block| block_bytes(block, *dtype)).collect())
    }
}

/// A block as GGML lays it out: scale, minimum, and numbers: of 4 bits, the first half in the low bits.
fn block_bytes(block: &QuantizedBlock, dtype: Dtype) -> Vec<u8> {
    let mut bytes = block.scale.to_le_bytes().to_vec();
    let codes = match dtype {
        Dtype::Q4 => block.values.map(|value| (value + 8).cast_unsigned()),
        _ => block.values.map(i8::cast_unsigned),
    };
    if dtype.has_minima() {
        bytes.extend(block.minimum.to_le_bytes());
    }
    if dtype == Dtype::Q5_1 {
        let high = codes.iter().enumerate().fold(0u32, |high, (at, code)| high | u32::from(code >> 4 & 1) << at);
        bytes.extend(high.to_le_bytes());
    }
    match dtype {
        Dtype::Q4 | Dtype::Q4_1 | Dtype::Q5_1 => {
            let (low, high) = codes.split_at(BLOCK_SIZE / 2);
            bytes.extend(low.iter().zip(high).map(|(low, high)| low & 15 | (high & 15) << 4));
        }
        _ => bytes.extend(codes),
    }
    bytes
}
