//! Checkpoints of other training programs: nanoGPT, LitGPT and nanochat. They are pickles, which are programs; these
//! are never executed (`pickle`). A checkpoint's tensors become a [`Gpt`] by the same loader that opens model dirs.

mod litgpt;
mod names;
mod nanochat;
mod nanogpt;
mod pickle;
#[cfg(test)]
mod tests;
mod tokenizers;
mod torch_file;
mod yaml;

use std::{
    borrow::Cow,
    fmt, fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;

pub use self::tokenizers::{Encoding, PickledTokenizer, read_tokenizer};
use self::{
    pickle::Item,
    torch_file::{ReadTensor, TorchFile},
};
use super::{
    config_json::Fields,
    files::DiskDtype,
    ggml_types::ElementType,
    loader::{self, LoadPlan},
    passed_over::is_no_parameter,
    tensor_names::TensorNames,
    tensor_table::{StoredTensor, TensorTable, ValueKind},
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    files::mmap::Mmap,
    gpt::{Gpt, param_specs},
};

/// A program whose checkpoints are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// [nanoGPT](https://github.com/karpathy/nanoGPT): `ckpt.pt`.
    NanoGpt,
    /// [LitGPT](https://github.com/Lightning-AI/litgpt): `lit_model.pth` next to `model_config.yaml`.
    LitGpt,
    /// [nanochat](https://github.com/karpathy/nanochat): `model_NNNNNN.pt` next to `meta_NNNNNN.json`.
    NanoChat,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NanoGpt => "nanoGPT",
            Self::LitGpt => "LitGPT",
            Self::NanoChat => "nanochat",
        })
    }
}

/// A checkpoint that was read.
#[derive(Debug)]
pub struct Imported {
    /// The program that wrote it.
    pub program: Program,
    /// The file.
    pub path: PathBuf,
    /// The model.
    pub gpt: Gpt,
    /// The Hugging Face class to save it as. `None`: the first class that can express it, or Hearth's own.
    pub class: Option<&'static str>,
    /// The dtype in which all values can be saved without rounding: f16 or bf16 if all are stored in it, else f32.
    pub dtype: DiskDtype,
    /// nanoGPT: the name of the data that it was trained on.
    pub dataset: Option<String>,
}

/// Reads the checkpoint at `path`, a file or the folder that holds it. Its code is never executed.
///
/// # Errors
/// [`Error::Io`] and [`Error::File`] with the file that is missing, broken or of no known program, and where in it;
/// [`Error::Tensor`] with the tensor that is missing, surplus, broken or of another shape; [`Error::Config`] with an
/// invalid size.
pub fn load(path: &Path, device: &Device) -> Result<Imported> {
    let path = find(path)?;
    let map = Mmap::open(&path)?;
    let file = TorchFile::read(&map, &path)?;
    let checkpoint = Checkpoint { file: &file, path: &path, map: &map, device };
    let meta = nanochat::meta_path(&path).filter(|meta| meta.exists());
    let settings = path.with_file_name(litgpt::CONFIG_FILE);
    let imported = if file.root().get(nanogpt::MODEL_ARGS).is_some() {
        nanogpt::load(&checkpoint)
    } else if let Some(meta) = meta {
        nanochat::load(&checkpoint, &meta)
    } else if settings.exists() {
        litgpt::load(&checkpoint, &settings)
    } else {
        Err(Error::file(&path, "is of no known program").with_hint(format!(
            "nanoGPT's checkpoints have `{}` in them, LitGPT's a `{}` beside them, nanochat's, `model_NNNNNN.pt`, a \
             `meta_NNNNNN.json`",
            nanogpt::MODEL_ARGS,
            litgpt::CONFIG_FILE
        )))
    }?;
    Ok(Imported { path: path.clone(), ..imported })
}

/// The checkpoint in the folder `path`, or `path` itself.
fn find(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let known = [nanogpt::FILE, litgpt::FILE].map(|name| path.join(name));
    let entries = fs::read_dir(path).map_err(Error::io("read", path))?;
    let steps = entries.flatten().filter_map(|entry| Some((nanochat::step_of(&entry.path())?, entry.path())));
    let found = known.into_iter().find(|file| file.exists()).or_else(|| steps.max().map(|(_, file)| file));
    found.ok_or_else(|| {
        let (nanogpt, litgpt) = (nanogpt::FILE, litgpt::FILE);
        Error::file(path, format!("has no checkpoint: neither `{nanogpt}` nor `{litgpt}` nor `model_NNNNNN.pt`"))
            .with_hint("give the file of the checkpoint")
    })
}

/// A file of `torch.save` that is about to become a model.
struct Checkpoint<'c, 'a> {
    file: &'c TorchFile<'a>,
    path: &'a Path,
    map: &'a Mmap,
    device: &'c Device,
}

impl<'a> Checkpoint<'_, 'a> {
    /// The tensors of the model: the whole file, or its entry `model`.
    fn tensors(&self) -> Result<Vec<ReadTensor<'a>>> {
        let root = self.file.root();
        let state = root.get("model").filter(|state: &Item<'_, '_>| state.entries().is_some()).unwrap_or(root);
        self.file.tensors(state)
    }

    /// The model with these tensors. `asked_by` names the source of their shapes, for error messages.
    fn build(
        &self,
        tensors: &[ReadTensor<'_>],
        names: TensorNames,
        config: &GptConfig,
        asked_by: &'static str,
    ) -> Result<(Gpt, DiskDtype)> {
        config.validate()?;
        let stored = tensors.iter().map(|tensor| StoredTensor {
            path: self.path,
            name: &tensor.name,
            shape: tensor.shape.clone(),
            kind: tensor.kind,
            asked_by,
            bytes: &tensor.bytes,
        });
        let table = TensorTable::new(self.path, vec![self.map], asked_by, stored)?;
        let kinds: Vec<_> = table.iter().filter(|tensor| !is_no_parameter(tensor)).collect();
        let all_are = |element| kinds.iter().all(|tensor| tensor.kind == ValueKind::Weights(element));
        let dtype = match () {
            () if all_are(ElementType::F16) => DiskDtype::F16,
            () if all_are(ElementType::Bf16) => DiskDtype::Bf16,
            () => DiskDtype::F32,
        };
        let plan =
            LoadPlan { names, packed: None, config, dtype: None, keeps_f16: false, device: self.device, merged: None };
        Ok((loader::load(&table, &plan)?, dtype))
    }
}

/// Zeros for the biases of `config` that the checkpoint does not have.
fn zero_biases(names: &TensorNames, config: &GptConfig) -> Vec<ReadTensor<'static>> {
    let specs = param_specs(config).into_iter().filter(|spec| spec.path.ends_with(".bias"));
    let zeros = specs.flat_map(|spec| {
        let parts = names.parts(&spec, config, &|_| false);
        parts.into_iter().map(move |part| (part.shape(&spec), part.name))
    });
    let tensor = |(shape, name): (Vec<usize>, String)| ReadTensor {
        name,
        bytes: Cow::Owned(vec![0; 4 * shape.iter().product::<usize>()]),
        shape,
        kind: ValueKind::Weights(ElementType::F32),
    };
    zeros.map(tensor).collect()
}

/// Rejects unknown keys: they may change the computation.
fn only_known(fields: &Fields<'_>, path: &Path, known: &[&str]) -> Result<()> {
    match fields.keys().find(|key| !known.contains(key)) {
        None => Ok(()),
        Some(key) => Err(Error::file(path, format!("has the setting `{key}`, which is not known"))
            .with_hint(format!("it may change what the model computes; known are `{}`", known.join("`, `")))),
    }
}

/// A size that must be there.
fn required(fields: &Fields<'_>, key: &'static str) -> Result<usize> {
    fields.size(key)?.ok_or_else(|| fields.missing(&[key]))
}
