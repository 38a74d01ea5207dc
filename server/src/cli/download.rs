//! Progress of downloads, and models that may have to be downloaded first.

use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
    time::{Duration, Instant},
};

use hearth_model::{
    config::GptConfig,
    hub::{Download, ModelPart},
    model_source::ModelSource,
    weights::model_dir::LoadedModel,
};

use crate::config::ModelConfig;

/// Moves to the start of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Time between lines where they cannot be rewritten.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Lines of progress, at most one per interval.
#[derive(Debug)]
struct Lines {
    interval: Duration,
    started: Instant,
    shown: Option<Instant>,
    /// Bytes that were already downloaded at the first call of [`next`](Self::next); not counted in the rate.
    first: Option<u64>,
}

impl Lines {
    fn new(interval: Duration) -> Self {
        Self { interval, started: Instant::now(), shown: None, first: None }
    }

    /// The next line, if it is time for one.
    fn next(&mut self, download: &Download) -> Option<String> {
        let first = *self.first.get_or_insert(download.bytes);
        if self.shown.unwrap_or(self.started).elapsed() < self.interval {
            return None;
        }
        self.shown = Some(Instant::now());
        Some(line(download, first, self.started.elapsed()))
    }
}

/// Shows progress on stderr: a line that is rewritten on a terminal, and occasional lines elsewhere. Dropping it clears the
/// line.
#[derive(Debug)]
pub(super) struct DownloadProgress {
    is_terminal: bool,
    lines: Lines,
}

impl DownloadProgress {
    pub(super) fn new() -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self { is_terminal, lines: Lines::new(if is_terminal { Duration::from_millis(100) } else { LINE_INTERVAL }) }
    }

    pub(super) fn show(&mut self, download: &Download) {
        if let Some(line) = self.lines.next(download) {
            self.write(&if self.is_terminal { format!("{CLEAR_LINE}{line}") } else { format!("{line}\n") });
        }
    }

    /// The download continues if stderr is closed.
    fn write(&self, text: &str) {
        let mut stderr = io::stderr();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }
}

impl Drop for DownloadProgress {
    fn drop(&mut self) {
        if self.is_terminal && self.lines.shown.is_some() {
            self.write(CLEAR_LINE);
        }
    }
}

/// Progress as lines of the log.
pub(super) fn to_log() -> impl FnMut(Download) {
    let mut lines = Lines::new(LINE_INTERVAL);
    move |download| {
        if let Some(line) = lines.next(&download) {
            tracing::info!("{line}");
        }
    }
}

/// The path of a model, which is downloaded if needed, with progress.
pub(super) fn open(source: &ModelSource) -> hearth_model::Result<PathBuf> {
    let mut progress = DownloadProgress::new();
    source.open(ModelPart::Whole, &mut |download| progress.show(&download))
}

/// Loads a model, which is downloaded if needed, with progress.
pub(super) fn load(model: &ModelConfig) -> hearth_model::Result<LoadedModel> {
    let mut progress = DownloadProgress::new();
    model.load(&mut |download| progress.show(&download))
}

/// As [`load`], for a command whose model must continue texts.
pub(super) fn load_for_text(model: &ModelConfig) -> anyhow::Result<LoadedModel> {
    let loaded = load_for_answers(model)?;
    anyhow::ensure!(
        !loaded.gpt.config().is_encoder_decoder(),
        "the model is an encoder-decoder, which writes a text about a source and continues none\nhint: `hearth generate` and \
         `/v1/completions` serve it"
    );
    Ok(loaded)
}

/// As [`load`], for a command whose model must write text.
pub(super) fn load_for_answers(model: &ModelConfig) -> anyhow::Result<LoadedModel> {
    let loaded = load(model)?;
    anyhow::ensure!(
        !loaded.gpt.config().bidirectional,
        "the model is an encoder, which makes vectors and no text\nhint: serve it: `hearth serve`, then `/v1/embeddings`"
    );
    Ok(loaded)
}

/// The architecture of a model, which is downloaded if needed, with progress.
pub(super) fn gpt_config(model: &ModelConfig) -> hearth_model::Result<GptConfig> {
    let mut progress = DownloadProgress::new();
    model.gpt_config(&mut |download| progress.show(&download))
}

fn line(download: &Download, first: u64, elapsed: Duration) -> String {
    let rate = download.bytes.saturating_sub(first) as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = match download.bytes_total.saturating_sub(download.bytes) as f64 / rate {
        seconds if seconds.is_finite() => format!(", {} left", duration(seconds)),
        _ => String::new(),
    };
    format!("{download}, {:.1} MB/s{left}", rate / 1e6)
}

fn duration(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn download_rate_excludes_bytes_present_at_the_start() {
        let download = |bytes| Download { name: "org/name".to_owned(), bytes, bytes_total: 300_000_000 };
        assert_eq!(
            line(&download(200_000_000), 100_000_000, Duration::from_secs(10)),
            "downloading `org/name`: 200.0 MB of 300.0 MB, 10.0 MB/s, 10 s left"
        );
        assert_eq!(line(&download(5), 5, Duration::ZERO), "downloading `org/name`: 5 bytes of 300.0 MB, 0.0 MB/s");
        assert_eq!([59.2, 60.5, 7200.0].map(duration), ["1 min", "2 min", "2.0 h"]);
    }
}
