//! `hearth quantize`: writes a quantized copy of a model, which is smaller and loads without quantizing.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context;
use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};
use hearth_model::{
    device::{self, DeviceChoice},
    model_source::ModelSource,
    ops::Dtype,
    weights::{
        StagedDir,
        model_dir::{self, LoadOptions, SaveOptions},
    },
};

use super::{download, output};

/// The arguments of `hearth quantize`.
#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    /// Model to read: model dir, GGUF file, or name of a model of the Hugging Face hub
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    model: ModelSource,
    /// Model dir to write: a new or an empty folder. It is created only when it is complete
    out: PathBuf,
    /// Format of weight matrices: `q8` (8.5 bits per weight), `q5_1` (6 bits), `q4_1` (5 bits) or `q4` (4.5 bits, the least
    /// accurate); embeddings are always q8
    #[arg(long, value_name = "DTYPE", default_value_t = Dtype::Q8, value_parser = |name: &str| Dtype::parse(name, Dtype::is_quantized))]
    quantize: Dtype,
}

/// The exit code after SIGINT, as in shells.
#[cfg(unix)]
const INTERRUPTED: i32 = 128 + 2;

/// Writes the new model dir and prints its size.
pub(crate) fn run(args: QuantizeArgs) -> anyhow::Result<()> {
    let QuantizeArgs { model, out, quantize } = args;
    let model = download::open(&model)?;
    let staged = {
        let partial = Arc::default();
        // Locked while the folder is created, so that ctrl-c finds it.
        let mut path = lock(&partial);
        remove_when_interrupted(Arc::clone(&partial));
        let staged = StagedDir::creating(&out)?;
        *path = Some(staged.path().to_owned());
        staged
    };
    let device = device::choose(DeviceChoice::Cpu)?.device;
    let loaded = model_dir::load(&model, &LoadOptions { device, dtype: Some(quantize) })?;
    let options = SaveOptions {
        eos_token_ids: loaded.eos_token_ids,
        extra_files: model_dir::files_beside_weights(&model)?,
        ..SaveOptions::default()
    };
    model_dir::write(&staged, &loaded.gpt, &options)?;
    staged.commit()?;
    let was = match model.is_dir() {
        true => format!(", from {:.1} MB", megabytes(&model)?),
        false => String::new(),
    };
    output::print(&format!(
        "`{0}`: {1:.1} MB of weights in {quantize}{was}; serve it with `hearth serve --model {0}`\n",
        out.display(),
        megabytes(&out)?
    ))
}

fn lock(partial: &Mutex<Option<PathBuf>>) -> MutexGuard<'_, Option<PathBuf>> {
    partial.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, ctrl-c removes `partial` and then ends the process. If the handler cannot be installed, ctrl-c ends the
/// process immediately, and the next run removes the folder.
#[cfg(unix)]
fn remove_when_interrupted(partial: Arc<Mutex<Option<PathBuf>>>) {
    use std::{process, thread};

    use tokio::signal::unix::{SignalKind, signal};

    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let interrupt = runtime.block_on(async { signal(SignalKind::interrupt()) });
    let Ok(mut interrupt) = interrupt else { return };
    let wait = move || {
        runtime.block_on(interrupt.recv());
        let partial = lock(&partial);
        // Files may still be created meanwhile.
        for _ in 0..100 {
            if partial.as_ref().is_none_or(|path| fs::remove_dir_all(path).is_ok() || !path.exists()) {
                break;
            }
        }
        process::exit(INTERRUPTED);
    };
    drop(thread::Builder::new().name("ctrl-c".into()).spawn(wait));
}

#[cfg(not(unix))]
fn remove_when_interrupted(_: Arc<Mutex<Option<PathBuf>>>) {}

fn megabytes(dir: &Path) -> anyhow::Result<f64> {
    Ok(weight_bytes(dir)? as f64 / 1e6)
}

fn weight_bytes(dir: &Path) -> anyhow::Result<u64> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read `{}`", dir.display()))?;
    let is_weights = |path: &Path| path.extension().is_some_and(|extension| extension == "safetensors");
    // Follows links: Hugging Face's cache consists of them.
    let sizes = entries.flatten().map(|entry| entry.path()).filter(|path| is_weights(path)).map(fs::metadata);
    sizes.map(|metadata| anyhow::Ok(metadata?.len())).sum()
}
