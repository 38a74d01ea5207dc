//! What a run leaves in its folder, and whose folder it may write to.
//!
//! The folder is the model dir itself, with the run's settings and metrics beside the model. It is always replaced as a
//! whole (`hearth_model::weights::staged_dir`): a run that dies leaves the model it saved last. A run that replaces an
//! earlier one writes its settings and metrics to a folder beside it, until its first model is complete.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use hearth_model::{
    gpt::Gpt,
    tokenizer::Tokenizer,
    weights::{
        DiskDtype, StagedDir,
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
    /// Replace it when the new run saves its first model; until then all of it stays as it is.
    Replace,
}

/// The folder of a run.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    dtype: DiskDtype,
    /// What will replace an earlier run.
    staged: Option<StagedDir>,
}

impl RunDir {
    /// The folder `path`, which need not be there yet. One that holds anything but an earlier run is never written to.
    /// Nothing is written before [`RunDir::start`].
    pub fn new(path: &Path, existing: Existing) -> Result<RunDir> {
        let shown = path.display();
        model_dir::mend(path)?;
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
        Ok(RunDir { path: path.to_owned(), dtype: DiskDtype::default(), staged: None })
    }

    /// The same folder, with the model's values stored in `dtype`.
    pub fn with_dtype(self, dtype: DiskDtype) -> RunDir {
        RunDir { dtype, ..self }
    }

    /// Writes down the settings of the run, all of them, which marks the folder as a run's. A new folder is there from now
    /// on; of an earlier run nothing changes before [`save_model`](Self::save_model).
    ///
    /// # Errors
    /// The folder cannot be made or replaced: nothing was trained yet.
    pub fn start(&mut self, config: &TrainConfig) -> Result<()> {
        let replaces = self.path.join(CONFIG_FILE).exists();
        let staged = StagedDir::replacing(&self.path)?;
        staged.write(CONFIG_FILE, (serde_json::to_string_pretty(config)? + "\n").as_bytes())?;
        if replaces {
            self.staged = Some(staged);
            return Ok(());
        }
        Ok(staged.commit()?)
    }

    /// Where the run's numbers go, from [`start`](Self::start) to the first model. The file comes along with the folder.
    pub fn metrics_path(&self) -> PathBuf {
        self.staged.as_ref().map_or(self.path.as_path(), StagedDir::path).join(METRICS_FILE)
    }

    /// Replaces the model in the folder.
    ///
    /// # Errors
    /// Those of [`model_dir::save`]: the last model that was saved is whole.
    pub fn save_model(&mut self, gpt: &Gpt, built: &BuiltTokenizer, tokenizer: &Tokenizer) -> Result<()> {
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
        let Some(staged) = self.staged.take() else { return Ok(model_dir::save(&self.path, gpt, &options)?) };
        model_dir::write(&staged, gpt, &options)?;
        Ok(staged.commit()?)
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
        let mut run = RunDir::new(&out, Existing::Refuse).unwrap();
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
