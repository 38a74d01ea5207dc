//! `metrics.jsonl`: one record per line.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufWriter, ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Record;
use crate::output_files::write_whole;

/// The part that every record has.
#[derive(Deserialize)]
struct StepOfLine {
    step: usize,
}

#[derive(Debug)]
pub(super) struct MetricsFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl MetricsFile {
    /// Opens the file at `path` and returns its records of the first `step` steps. Records of later steps, and a
    /// truncated last line, are removed.
    pub(super) fn open(path: &Path, step: usize) -> Result<(MetricsFile, Vec<Record>)> {
        let text = match fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read `{}`", path.display())),
        };
        let mut kept = Vec::new();
        let mut kept_lines = String::new();
        for line in text.lines() {
            let Ok(StepOfLine { step: of_line }) = serde_json::from_str(line) else { continue };
            if of_line <= step {
                // Another version of Hearth may have written other records, which stay in the file.
                kept.extend(serde_json::from_str::<Record>(line));
                // Unparsed, so that numbers keep their digits.
                kept_lines += line;
                kept_lines.push('\n');
            }
        }
        if kept_lines != text || text.is_empty() {
            write_whole(path, kept_lines.as_bytes())?;
        }
        let file = OpenOptions::new().append(true).open(path);
        let file = file.with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok((MetricsFile { path: path.to_owned(), file: BufWriter::new(file) }, kept))
    }

    pub(super) fn write(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_string(record)?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.flush());
        written.with_context(|| format!("cannot write `{}`", self.path.display()))
    }

    /// Flushes the file to disk.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.get_ref().sync_data().with_context(|| format!("cannot write `{}`", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::run::progress::{EvalRecord, SampleRecord, SkipRecord, StepRecord};

    fn step(step: usize) -> Record {
        Record::Step(StepRecord {
            step,
            epoch: 0.25,
            tokens: 64,
            loss: (step % 2 == 1).then_some(0.1 * step as f32),
            lr: 0.1,
            grad_norm: 2.0,
            tok_per_sec: 9.5,
            seconds: 1.25,
            balance_loss: None,
            expert_load: None,
        })
    }

    #[test]
    fn metrics_file_keeps_records_and_removes_those_of_later_steps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let (_, kept) = MetricsFile::open(&path, 0).unwrap();
        assert!(kept.is_empty());
        let eval = Record::Eval(EvalRecord {
            step: 2,
            val_loss: 1.5,
            val_perplexity: Some(4.5),
            val_bpb: Some(2.0),
            val_accuracy: None,
            best: true,
            patience_left: Some(3),
        });
        let sample = Record::Sample(SampleRecord { step: 2, sample: "a\nb".to_owned() });
        let skip = Record::Skip(SkipRecord { step: 2, skipped: "NaN".to_owned() });
        let all = [step(1), step(2), eval, sample, skip, step(3)];
        // Records of another version of Hearth cannot be read; records up to the step stay in the file.
        fs::write(&path, "{\"step\":1,\"energy\":2.50}\n{\"step\":9,\"energy\":2}\n").unwrap();
        let (mut file, kept) = MetricsFile::open(&path, 2).unwrap();
        assert!(kept.is_empty());
        all.iter().for_each(|record| file.write(record).unwrap());
        file.sync().unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, whole.clone() + "{\"step\":4,\"lo").unwrap();

        let (_, kept) = MetricsFile::open(&path, 2).unwrap();
        assert_eq!(kept, all[..5]);
        assert!(whole.starts_with("{\"step\":1,\"energy\":2.50}\n{\"step\":1,"));
        let expected: String = whole.lines().take(6).flat_map(|line| [line, "\n"]).collect();
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    }
}
