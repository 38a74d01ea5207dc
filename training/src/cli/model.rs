//! Models that a command opens: by path, or by name from the hub, with progress; and the options of commands that measure one.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::builder::{OsStringValueParser, TypedValueParser};
use hearth_model::{
    hub::ModelPart,
    model_source::ModelSource,
    ops::{self, Dtype},
    system::device::{self, DeviceChoice},
    weights::model_dir::{self, LoadOptions, LoadedModel},
};
use serde::Serialize;

use super::{output::print_json, status::Status};

/// The path of `source`; a model of the hub is downloaded unless the cache has it.
///
/// # Errors
/// There is no such model, or it cannot be downloaded.
pub fn model_path(source: &ModelSource, part: ModelPart) -> Result<PathBuf> {
    let mut status = Status::new();
    let path = source.open(part, &mut |download| status.show(|_| download.to_string()))?;
    status.clear();
    Ok(path)
}

/// Options of commands that measure a model: the model, the device and the output.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelArgs {
    /// A model dir, a run, a GGUF file, or a model of the Hugging Face hub (`ORG/NAME[@REVISION][:FILE]`)
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    model: ModelSource,

    /// Where to run: `auto` takes a GPU if there is one
    #[arg(long, env = "HEARTH_DEVICE", default_value = "auto")]
    device: DeviceChoice,

    /// Dtype of weight matrices, also a quantized one [default: the files' dtype if it is bf16, quantized or GGUF, else
    /// f32]
    #[arg(long, value_name = "DTYPE", value_parser = |name: &str| Dtype::parse(name, |_| true))]
    dtype: Option<Dtype>,

    /// Print the result as one JSON object, the last line on stdout
    #[arg(long)]
    json: bool,
}

/// A model, ready to be measured.
#[derive(Debug)]
pub struct OpenModel {
    /// The model with its tokenizer.
    pub loaded: LoadedModel,
    /// The path of the model.
    pub path: PathBuf,
    /// As it was given.
    pub name: String,
}

impl ModelArgs {
    /// Opens the device and the model, which is downloaded if needed.
    ///
    /// # Errors
    /// There is no such device or model, or it cannot be opened.
    pub fn open_any(&self) -> Result<OpenModel> {
        ops::keep_freed_memory();
        let path = model_path(&self.model, ModelPart::Whole)?;
        let chosen = device::choose(self.device)?;
        writeln!(io::stderr(), "device: {} ({})", device::name(&chosen.device), chosen.reason)
            .context("cannot write to stderr")?;
        let loaded = model_dir::load(&path, &LoadOptions { device: chosen.device, dtype: self.dtype })?;
        Ok(OpenModel { loaded, path, name: self.model.to_string() })
    }

    /// [`open_any`](Self::open_any) of a model that continues texts.
    ///
    /// # Errors
    /// The same, and another kind of model.
    pub fn open(&self) -> Result<OpenModel> {
        let opened = self.open_seq2seq_too()?;
        let is_both = opened.loaded.gpt.config().is_encoder_decoder();
        ensure!(!is_both, "`{}` is an encoder-decoder, which continues no text: it needs a source", self.model);
        Ok(opened)
    }

    /// As [`open`](Self::open), also an encoder-decoder.
    ///
    /// # Errors
    /// The same.
    pub fn open_seq2seq_too(&self) -> Result<OpenModel> {
        let opened = self.open_any()?;
        ensure!(!opened.loaded.gpt.config().bidirectional, "`{}` is an encoder, which writes no text", self.model);
        Ok(opened)
    }

    /// Prints a report: as JSON with `--json`, else the lines of `text`.
    ///
    /// # Errors
    /// Stdout cannot be written to.
    pub fn print(&self, report: &impl Serialize, text: &str) -> Result<ExitCode> {
        if self.json {
            return print_json(report);
        }
        io::stdout().write_all(text.as_bytes()).context("cannot write to stdout")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A line of progress: how many of how many are done, and how long the rest may take.
pub fn progress_line(status: &mut Status, what: &str, n_done: usize, n_all: usize) {
    status.show(|elapsed| {
        let left = elapsed.as_secs_f64() * n_all.saturating_sub(n_done) as f64 / n_done.max(1) as f64;
        format!("{n_done} of {n_all} {what}, about {left:.0} s left")
    });
}
