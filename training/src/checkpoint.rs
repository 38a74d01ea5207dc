//! What a run leaves in its folder, and whose folder it may write to.
//!
//! The folder is the model dir itself, with the run's settings and metrics beside the model. Files of the model are
//! replaced one by one, each at once, so that a run that dies leaves the model it saved last.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use hearth_model::{
    gpt::Gpt,
    tokenizer::Tokenizer,
    weights::{
        DiskDtype,
        model_dir::{self, SaveOptions},
    },
};

use crate::{config::TrainConfig, tokenizer_build::BuiltTokenizer};

/// Marks a folder as one that a run wrote.
const CONFIG_FILE: &str = "train_config.json";
const METRICS_FILE: &str = "metrics.jsonl";

/// What to do about a folder that an earlier run wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Leave it alone and fail.
    Refuse,
    /// Write over it. The old model stays until the new run saves its first.
    Replace,
}

/// The folder of a run.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
    dtype: DiskDtype,
}

impl RunDir {
    /// The folder `path`, which need not be there yet. One that holds anything but an earlier run is never written to.
    /// Nothing is written before [`RunDir::start`].
    pub fn new(path: &Path, existing: Existing) -> Result<RunDir> {
        let shown = path.display();
        if path.exists() {
            let mut entries = fs::read_dir(path).with_context(|| format!("cannot read the folder `{shown}`"))?;
            let is_empty = entries.next().is_none();
            let is_run = path.join(CONFIG_FILE).exists();
            match existing {
                _ if is_empty => {}
                _ if !is_run => {
                    bail!("`{shown}` holds something else than a training run\nhint: give a new folder as `--out`")
                }
                Existing::Refuse => {
                    bail!("`{shown}` holds an earlier run\nhint: give a new folder as `--out`, or add `--overwrite`")
                }
                Existing::Replace => {}
            }
        }
        Ok(RunDir { path: path.to_owned(), dtype: DiskDtype::default() })
    }

    /// The same folder, with the model's values stored in `dtype`.
    pub fn with_dtype(self, dtype: DiskDtype) -> RunDir {
        RunDir { dtype, ..self }
    }

    /// Makes the folder and writes down the settings of the run, all of them. This marks the folder as a run's.
    pub fn start(&self, config: &TrainConfig) -> Result<()> {
        fs::create_dir_all(&self.path)
            .with_context(|| format!("cannot create the folder `{}`", self.path.display()))?;
        let path = self.path.join(CONFIG_FILE);
        let json = serde_json::to_string_pretty(config)? + "\n";
        fs::write(&path, json).with_context(|| format!("cannot write `{}`", path.display()))
    }

    /// Where the run's numbers go.
    pub fn metrics_path(&self) -> PathBuf {
        self.path.join(METRICS_FILE)
    }

    /// Replaces the model in the folder.
    pub fn save_model(&self, gpt: &Gpt, built: &BuiltTokenizer, tokenizer: &Tokenizer) -> Result<()> {
        let file = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
        let options = SaveOptions {
            dtype: self.dtype,
            eos_token_ids: tokenizer.eos().map(|eos| eos.id).into_iter().collect(),
            extra_files: vec![
                file("tokenizer.json", &built.tokenizer_json),
                file("tokenizer_config.json", &built.tokenizer_config_json),
            ],
            ..SaveOptions::default()
        };
        Ok(model_dir::save(&self.path, gpt, &options)?)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::PRESETS;

    #[test]
    fn only_empty_folders_and_earlier_runs_are_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("deep/out");
        let run = RunDir::new(&out, Existing::Refuse).unwrap();
        assert!(!out.exists(), "nothing is written before the start");
        run.start(&PRESETS[0].config).unwrap();
        let error = RunDir::new(&out, Existing::Refuse).unwrap_err().to_string();
        assert!(error.contains("earlier run") && error.contains("--overwrite"), "{error}");
        RunDir::new(&out, Existing::Replace).unwrap();

        let other = dir.path().join("photos");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("cat.jpg"), "").unwrap();
        for existing in [Existing::Refuse, Existing::Replace] {
            let error = RunDir::new(&other, existing).unwrap_err().to_string();
            assert!(error.contains("something else"), "{error}");
        }
    }

    #[test]
    fn a_file_in_the_way_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("model");
        fs::write(&file, "").unwrap();
        assert!(RunDir::new(&file, Existing::Replace).is_err());
    }
}
