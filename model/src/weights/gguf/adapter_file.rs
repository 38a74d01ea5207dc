//! GGUF files of adapters, as llama.cpp's `convert_lora_to_gguf.py` writes them and its `--lora` reads them: for each tensor of
//! the model that is updated, `NAME.lora_a` and `NAME.lora_b`.

use std::path::Path;

use super::{
    ARCHITECTURE, architecture,
    export::metadata::described,
    header::Metadata,
    with_files,
    writer::{self, Entry, FileTensor, TensorForm},
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    files::partial_file::PartialFile,
    gpt::param_specs,
    weights::{files::DiskDtype, tensor_names::TensorNames, tensor_table::TensorTable},
};

const TYPE: &str = "general.type";
const ADAPTER: &str = "adapter";
const ADAPTER_TYPE: &str = "adapter.type";
const LORA: &str = "lora";
const ALPHA: &str = "adapter.lora.alpha";

/// A file's content.
pub(in super::super) struct AdapterFile<'a> {
    /// The architecture of the models that it updates, as in `general.architecture`.
    pub(in super::super) architecture: &'static str,
    names: TensorNames,
    /// Numerator of the scale; 0 if products are not scaled.
    pub(in super::super) alpha: f64,
    pub(in super::super) tensors: TensorTable<'a>,
}

impl AdapterFile<'_> {
    /// The tensor names; `None` if the architecture does not fit `config`.
    pub(in super::super) fn names_for(&self, config: &GptConfig) -> Option<&TensorNames> {
        param_specs(config).iter().all(|spec| self.names.knows(spec, config)).then_some(&self.names)
    }
}

/// Whether the file is an adapter and not a model.
pub(super) fn is_adapter(metadata: &Metadata<'_>) -> Result<bool> {
    Ok(metadata.text(TYPE)? == Some(ADAPTER))
}

/// Maps the file at `path` for as long as `read` runs.
///
/// # Errors
/// It is damaged, a model, or an adapter of another kind than LoRA.
pub(in super::super) fn read<T>(path: &Path, read: impl FnOnce(AdapterFile<'_>) -> Result<T>) -> Result<T> {
    with_files(path, |metadata, tensors| {
        if !is_adapter(metadata)? {
            return Err(Error::file(path, "is a model and not an adapter")
                .with_hint("use the file that `convert_lora_to_gguf.py` or `hearth export --adapter` wrote"));
        }
        match metadata.text(ADAPTER_TYPE)? {
            Some(LORA) => {}
            Some(kind) => return Err(metadata.error(format!("`{ADAPTER_TYPE}` is `{kind}`; supported is `{LORA}`"))),
            None => return Err(metadata.missing(ADAPTER_TYPE)),
        }
        let alpha = metadata.number(ALPHA)?.ok_or_else(|| metadata.missing(ALPHA))?;
        if !(0.0..=f64::from(f32::MAX)).contains(&alpha) {
            return Err(metadata.error(format!("`{ALPHA}` must be a finite number that is not negative, got {alpha}")));
        }
        let gguf = architecture(metadata)?;
        read(AdapterFile { architecture: gguf.name, names: gguf.names(), alpha, tensors })
    })
}

/// The architecture of a model of `config`, which was loaded from files of the Hugging Face class `class`, and its
/// tensor names.
///
/// # Errors
/// [`Error::Config`] if there is none.
pub(in super::super) fn architecture_of(
    config: &GptConfig,
    class: Option<&str>,
) -> Result<(&'static str, TensorNames)> {
    let (gguf, ..) = described(config, class)?;
    Ok((gguf.name, gguf.names()))
}

/// A tensor of an adapter.
pub(in super::super) struct AdapterTensor {
    pub(in super::super) name: String,
    pub(in super::super) shape: [usize; 2],
    pub(in super::super) values: Vec<f32>,
    pub(in super::super) form: DiskDtype,
}

impl FileTensor for AdapterTensor {
    fn name(&self) -> &str {
        &self.name
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn form(&self) -> TensorForm {
        TensorForm::Floats(self.form)
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        self.form.encode(&self.name, &self.values)
    }
}

/// Writes and finishes `file`.
///
/// # Errors
/// [`Error::Io`] if it cannot be written.
pub(in super::super) fn write(
    file: PartialFile,
    (architecture, name): (&str, &str),
    alpha: f32,
    tensors: &[AdapterTensor],
) -> Result<()> {
    let text = |text: &str| Entry::Text(text.to_owned());
    let pairs = [
        (ARCHITECTURE, text(architecture)),
        (TYPE, text(ADAPTER)),
        ("general.name", text(name)),
        (ADAPTER_TYPE, text(LORA)),
        (ALPHA, Entry::Float(alpha)),
    ];
    let tensors: Vec<_> = tensors.iter().map(|tensor| tensor as &dyn FileTensor).collect();
    writer::write(file, &pairs.map(|(key, entry)| (key.to_owned(), entry)), &tensors)
}
