//! New models and files that commands write: there when they are complete, and not at all if a command is interrupted.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hearth_model::{
    Error,
    files::partial_file::PartialFile,
    weights::{StagedDir, adapter::Adapter, model_dir},
};

/// Stages the new model dir `out`. From now on, ctrl-c, SIGTERM and SIGHUP remove what has been written
/// and end the process.
///
/// # Errors
/// `out` is not empty, or it cannot be written to.
pub(super) fn stage(out: &Path) -> anyhow::Result<StagedDir> {
    let partial = Arc::default();
    // Locked until the folder is created: if a signal comes before, its handler waits and then finds the path.
    let mut path = lock(&partial);
    remove_when_interrupted(Arc::clone(&partial));
    let staged = StagedDir::creating(out)?;
    *path = Some(staged.path().to_owned());
    Ok(staged)
}

/// Begins the new file `out`. From now on, ctrl-c, SIGTERM and SIGHUP remove what has been written and end
/// the process.
///
/// # Errors
/// `out` cannot be written.
pub(super) fn create_file(out: &Path) -> anyhow::Result<PartialFile> {
    let partial = Arc::default();
    // As in `stage`.
    let mut path = lock(&partial);
    remove_when_interrupted(Arc::clone(&partial));
    let file = PartialFile::create(out).map_err(Error::io("write", out))?;
    *path = file.partial_path().map(Path::to_owned);
    Ok(file)
}

fn lock(partial: &Mutex<Option<PathBuf>>) -> MutexGuard<'_, Option<PathBuf>> {
    partial.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, ctrl-c, SIGTERM and SIGHUP remove `partial`, a file or a staged folder, and then end the process with
/// the exit code of shells, 128 plus the signal's number. If the handlers cannot be installed, nothing is removed: the
/// next run removes the leftovers.
#[cfg(unix)]
fn remove_when_interrupted(partial: Arc<Mutex<Option<PathBuf>>>) {
    use std::{process, thread};

    use tokio::signal::unix::{SignalKind, signal};

    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let (interrupt, terminate, hangup) = (SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup());
    let [interrupts, terminations] = [interrupt, terminate].map(|kind| runtime.block_on(async { signal(kind) }));
    let (Ok(mut interrupts), Ok(mut terminations)) = (interrupts, terminations) else { return };
    let mut hangups = if hearth_model::system::signals::ignores_hangups() {
        None
    } else {
        runtime.block_on(async { signal(hangup) }).ok()
    };
    let wait = move || {
        let received = runtime.block_on(async {
            tokio::select! {
                _ = interrupts.recv() => interrupt,
                _ = terminations.recv() => terminate,
                Some(_) = async { hangups.as_mut()?.recv().await } => hangup,
            }
        });
        let partial = lock(&partial);
        // Retried if it fails: files may still be created meanwhile.
        for _ in 0..100 {
            let remove = |path: &PathBuf| StagedDir::remove_unfinished(path).is_ok() || fs::remove_file(path).is_ok();
            if partial.as_ref().is_none_or(remove) {
                break;
            }
        }
        process::exit(128 + received.as_raw_value());
    };
    drop(thread::Builder::new().name("signals".into()).spawn(wait));
}

#[cfg(not(unix))]
fn remove_when_interrupted(_: Arc<Mutex<Option<PathBuf>>>) {}

/// Where the weights of `model` are: of a run that trained an adapter, those of the model that it updates.
///
/// # Errors
/// An adapter names no model that is on this machine.
pub(super) fn whole_model(model: &Path) -> anyhow::Result<PathBuf> {
    let dir = model_dir::model_of(model);
    Ok(if Adapter::is_in(&dir) { model_dir::adapter_base(&dir)? } else { dir.into_owned() })
}

/// The weights of `model`, a model dir, a run or a GGUF file, in megabytes.
///
/// # Errors
/// A file of weights is missing or cannot be read.
pub(super) fn megabytes(model: &Path) -> anyhow::Result<f64> {
    // Follows links: Hugging Face's cache consists of them.
    let sizes = model_dir::weight_files(model)?.into_iter().map(fs::metadata);
    Ok(sizes.map(|metadata| anyhow::Ok(metadata?.len())).sum::<anyhow::Result<u64>>()? as f64 / 1e6)
}

/// What a copy of `model` does not have, as the end of a clause: its prediction head. Empty if `model` has none.
///
/// # Errors
/// A file cannot be read.
pub(super) fn without_head(model: &Path) -> anyhow::Result<String> {
    Ok(match model_dir::prediction_head_bytes(model)? {
        0 => String::new(),
        n => format!(
            ", without the prediction head ({:.1} MB), so `--speculative mtp` needs the original",
            n as f64 / 1e6
        ),
    })
}
