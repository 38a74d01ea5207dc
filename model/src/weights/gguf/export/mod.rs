//! Writes a model as a GGUF file that llama.cpp opens: weights, configuration, tokenizer and chat template.
//!
//! What is written is read back by the rows of `architectures` and compared, so a model that GGUF cannot describe is refused
//! and not changed.

mod metadata;
mod tokenizer;

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use burn::tensor::{Device, TensorData};
use half::{bf16, f16};

use self::metadata::{Entry, described, entries};
use super::{
    super::{
        loaded::LoadedModel,
        save::{SavedTensor, values},
        tensor_names::Part,
    },
    architectures::Gguf,
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    gpt::{Gpt, ParamSpec, param_specs},
    ops::{BLOCK_SIZE, Dtype, QuantizedBlock, Weight},
    params::ParamRef,
};

/// Tensors begin at multiples of this.
const ALIGNMENT: u64 = 32;

/// How to write a model.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The dtype of matrices. `None`: blocks stay as they are, other values are f32.
    pub dtype: Option<Dtype>,
    /// The model's name in the file.
    pub name: String,
    /// The Hugging Face class that the model was loaded from, which decides between architectures that compute the same.
    pub class: Option<String>,
    /// `tokenizer.json`, and the chat template.
    pub extra_files: Vec<(String, Vec<u8>)>,
}

/// Writes `model` to the file `path`, which is there when it is complete.
///
/// # Errors
/// [`Error::Config`] if no architecture of GGUF files describes the model; [`Error::File`] if GGUF has no name for how its
/// tokenizer splits text; [`Error::Io`] if the file cannot be written.
pub fn export(path: &Path, model: &LoadedModel, options: &ExportOptions) -> Result<()> {
    let LoadedModel { gpt, tokenizer, chat_template, eos_token_ids, .. } = model;
    let (gguf, config, own) = described(gpt.config(), options.class.as_deref())?;
    let mut pairs = entries(gguf, &own, &options.name);
    let json = options.extra_files.iter().find(|(name, _)| name == "tokenizer.json").map(|(_, bytes)| &**bytes);
    let source = chat_template.as_ref().map(|template| template.source());
    pairs.extend(tokenizer::entries(json, tokenizer, eos_token_ids, config.vocab_size, source)?);
    let tensors = plan(gpt, gguf, &config, options.dtype)?;
    let partial = partial_of(path);
    let written = write_file(&partial, &pairs, &tensors).and_then(|()| {
        fs::rename(&partial, path).map_err(|reason| Error::Io { action: "write", path: path.to_owned(), reason })
    });
    if written.is_err() {
        // Nothing is left of a file that could not be written.
        drop(fs::remove_file(&partial));
    }
    written
}

/// The file that [`export`] writes and then renames to `path`.
pub fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".hearth-partial");
    name.into()
}

/// A tensor that is to be written.
struct Planned<'a> {
    name: String,
    /// Outermost dimension first.
    shape: Vec<usize>,
    form: Form,
    tensor: SavedTensor,
    param: ParamRef<'a>,
    /// Added to all values: norms are stored as they are used.
    offset: f32,
}

/// How values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    F32,
    F16,
    Bf16,
    /// In blocks of this dtype.
    Blocks(Dtype),
}

impl Form {
    /// GGML's number of the type.
    fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 30,
            Self::Blocks(Dtype::Q4) => 2,
            Self::Blocks(Dtype::Q4_1) => 3,
            Self::Blocks(Dtype::Q5_1) => 7,
            Self::Blocks(_) => 8,
        }
    }

    fn n_bytes(self, n_values: usize) -> u64 {
        let of_block = |bits: usize, minimum: bool| 2 + usize::from(minimum) * 2 + bits * BLOCK_SIZE / 8;
        let bytes = match self {
            Self::F32 => 4 * n_values,
            Self::F16 | Self::Bf16 => 2 * n_values,
            Self::Blocks(Dtype::Q4) => n_values / BLOCK_SIZE * of_block(4, false),
            Self::Blocks(Dtype::Q4_1) => n_values / BLOCK_SIZE * of_block(4, true),
            Self::Blocks(Dtype::Q5_1) => n_values / BLOCK_SIZE * of_block(5, true),
            Self::Blocks(_) => n_values / BLOCK_SIZE * of_block(8, false),
        };
        bytes as u64
    }
}

impl Planned<'_> {
    fn n_bytes(&self) -> u64 {
        self.form.n_bytes(self.shape.iter().product())
    }
}

/// All tensors in the order of the parameters.
fn plan<'a>(gpt: &'a Gpt, gguf: &Gguf, config: &GptConfig, dtype: Option<Dtype>) -> Result<Vec<Planned<'a>>> {
    let specs: HashMap<_, _> = param_specs(config).into_iter().map(|spec| (spec.path.clone(), spec)).collect();
    let names = gguf.names();
    let mut planned = Vec::new();
    for (path, param) in gpt.params() {
        let Some(spec) = specs.get(&path) else {
            unreachable!("`param_specs` lists every parameter of the model: `{path}`")
        };
        let parts: Vec<Part> = names.parts(spec, config, &|_| false);
        let is_norm = path.ends_with("norm.weight");
        let offset = if is_norm { gpt.config().norm_weight_offset } else { 0.0 };
        let form = form_of(param, spec, dtype);
        for tensor in SavedTensor::of(parts, spec) {
            let (name, shape) = (tensor.name().to_owned(), tensor.shape().to_vec());
            planned.push(Planned { name, shape, form, tensor, param, offset });
        }
    }
    Ok(planned)
}

/// Only matrices are rounded, and to blocks only where rows are whole blocks. llama.cpp adds learned positions in f32.
fn form_of(param: ParamRef<'_>, spec: &ParamSpec, dtype: Option<Dtype>) -> Form {
    let ParamRef::Matrix(matrix) = param else { return Form::F32 };
    if spec.path == "pos_embed.weight" {
        return Form::F32;
    }
    let is_embedding = spec.path == "embed.weight";
    let dtype = dtype.map(|dtype| if is_embedding { dtype.for_embeddings() } else { dtype });
    let dtype = dtype.or_else(|| matrix.quantized_dtype()).unwrap_or(Dtype::F32);
    let is_whole = spec.shape[1].is_multiple_of(BLOCK_SIZE);
    match dtype {
        Dtype::F16 => Form::F16,
        Dtype::Bf16 => Form::Bf16,
        _ if dtype.is_quantized() && is_whole => Form::Blocks(dtype),
        _ => Form::F32,
    }
}

fn write_file(path: &Path, pairs: &[(String, Entry)], tensors: &[Planned<'_>]) -> Result<()> {
    let failed = |reason| Error::Io { action: "write", path: path.to_owned(), reason };
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((pairs.len() as u64).to_le_bytes());
    for (key, entry) in pairs {
        metadata::put_text(&mut header, key);
        entry.put(&mut header);
    }
    let mut offset = 0;
    for tensor in tensors {
        metadata::put_text(&mut header, &tensor.name);
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        for dim in tensor.shape.iter().rev() {
            header.extend((*dim as u64).to_le_bytes());
        }
        header.extend(tensor.form.number().to_le_bytes());
        header.extend(u64::to_le_bytes(offset));
        offset = (offset + tensor.n_bytes()).next_multiple_of(ALIGNMENT);
    }
    let padding = |n_bytes: u64| vec![0; (n_bytes.next_multiple_of(ALIGNMENT) - n_bytes) as usize];
    file.write_all(&header).map_err(failed)?;
    file.write_all(&padding(header.len() as u64)).map_err(failed)?;
    for tensor in tensors {
        let bytes = bytes_of(tensor)?;
        debug_assert_eq!(bytes.len() as u64, tensor.n_bytes(), "{}", tensor.name);
        file.write_all(&bytes).map_err(failed)?;
        file.write_all(&padding(bytes.len() as u64)).map_err(failed)?;
    }
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)
}

/// The bytes of a tensor.
fn bytes_of(planned: &Planned<'_>) -> Result<Vec<u8>> {
    let Planned { form, tensor, param, offset, .. } = planned;
    let width = if planned.shape.len() == 2 { planned.shape[1] } else { 1 };
    if let (Form::Blocks(dtype), ParamRef::Matrix(matrix)) = (form, param)
        && let Some(blocks) = matrix.read_quantized()?
        && blocks.dtype() == *dtype
    {
        let rows = tensor.placed(blocks.blocks(), width / BLOCK_SIZE);
        return Ok(rows.iter().flat_map(|block| block_bytes(block, *dtype)).collect());
    }
    let data = param.read()?;
    let all = values(&data)?;
    let values: Vec<f32> = tensor.values(all, width).iter().map(|value| value + offset).collect();
    if *form == Form::F16 && values.iter().any(|value| value.is_finite() && f16::from_f32(*value).is_infinite()) {
        let what = format!("is `f16`, but `{}` has numbers above {}\nhint: use `bf16`", planned.name, f16::MAX);
        return Err(Error::Param { name: "dtype", what });
    }
    Ok(match form {
        Form::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Form::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        Form::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        Form::Blocks(dtype) => {
            let data = TensorData::new(values, planned.shape.as_slice());
            let Some(blocks) = Weight::new(data, *dtype, &Device::flex())?.read_quantized()? else {
                unreachable!("a weight of {dtype} has blocks")
            };
            blocks.blocks().iter().flat_map(|block| block_bytes(block, *dtype)).collect()
        }
    })
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
