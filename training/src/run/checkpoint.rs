//! A checkpoint: a model dir with a folder `train_state/`, which has everything else that the next step depends on. The
//! loader and the random numbers have no state: they are functions of the step.
//!
//! - `state.json`: [`TrainState`];
//! - `moments.safetensors`: the optimizer's moments, by parameter path;
//! - `config.toml`: the resolved configuration;
//! - `checksums.json`: SHA-256 of every file of the checkpoint, which is verified before anything is read.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use hearth_model::{
    files::digest::Digest,
    gpt::Gpt,
    ops::Dtype,
    weights::{
        StagedDir,
        adapter::Adapter,
        encoder_files,
        model_dir::{self, LoadOptions},
    },
};
use serde::{Deserialize, Serialize};

pub use self::moments_of_all::MomentsOfAll;
use crate::{
    config::{ObjectiveKind, TrainConfig},
    run::{optim::Optimizer, run_dir::RunDir},
};

mod moments;
mod moments_of_all;

const STATE_DIR: &str = "train_state";
const STATE_FILE: &str = "train_state/state.json";
const MOMENTS_FILE: &str = "train_state/moments.safetensors";
const CONFIG_FILE: &str = "train_state/config.toml";
const CHECKSUMS_FILE: &str = "train_state/checksums.json";

/// File in a run's best model: its evaluation.
const EVALUATION_FILE: &str = "evaluation.json";

/// Version of the files in `train_state/`.
const VERSION: u32 = 1;

/// The progress of a run, without weights and moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainState {
    /// Version of the files in `train_state/`.
    pub version: u32,
    /// Completed steps.
    pub step: usize,
    /// Tokens trained on.
    pub tokens: u64,
    /// Updates: completed steps minus skipped ones.
    pub n_updates: usize,
    /// With a budget in minutes: the steps of the run, known once only the cooldown, if any, is left.
    pub total_steps: Option<usize>,
    /// Duration of the steps in minutes.
    pub minutes: f64,
    /// The best evaluation.
    pub best: Option<Best>,
    /// Evaluations since then.
    #[serde(default)]
    pub n_since_best: usize,
    /// Gradient norms of the last steps, for the spike guard.
    pub recent_norms: VecDeque<f32>,
    /// Consecutive skipped steps.
    pub n_skipped: usize,
    /// The data that the run trains on.
    pub data: Digest,
    /// The tokenizer of the data.
    pub tokenizer: Digest,
    /// The fixed model: the base model of an adapter, or the reference model of preferences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Digest>,
}

/// The evaluation with the lowest loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Completed steps at the evaluation.
    pub step: usize,
    /// Loss on the validation split, in nats per token.
    #[serde(with = "exact")]
    pub val_loss: f64,
    /// `eval.batches` of the evaluation: losses over other batches do not compare with this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batches: Option<usize>,
}

impl Best {
    /// Records the evaluation in the staged folder of the model that was evaluated.
    pub fn write(&self, staged: &StagedDir) -> Result<()> {
        Ok(staged.write(EVALUATION_FILE, &json(self)?)?)
    }

    /// The evaluation of the model in `dir`, if it is recorded there.
    pub fn of_model(dir: &Path) -> Option<Best> {
        serde_json::from_slice(&fs::read(dir.join(EVALUATION_FILE)).ok()?).ok()
    }
}

/// Serializes a number with enough digits to read back the same value, which JSON parsers do not guarantee.
mod exact {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl TrainState {
    /// The state before the first step.
    pub fn new(data: Digest, tokenizer: Digest) -> TrainState {
        TrainState {
            version: VERSION,
            step: 0,
            tokens: 0,
            n_updates: 0,
            total_steps: None,
            minutes: 0.0,
            best: None,
            n_since_best: 0,
            recent_norms: VecDeque::new(),
            n_skipped: 0,
            data,
            tokenizer,
            base: None,
        }
    }
}

/// Writes a checkpoint to a staged folder that has the model's files already.
pub fn write(staged: &StagedDir, moments: &MomentsOfAll<'_>, state: &TrainState, config: &TrainConfig) -> Result<()> {
    staged.write(STATE_FILE, &json(state)?)?;
    staged.write(CONFIG_FILE, config.to_toml()?.as_bytes())?;
    moments::write(&staged.path().join(MOMENTS_FILE), moments)?;
    let checksums: BTreeMap<String, Digest> = files(staged.path())?
        .into_iter()
        .map(|name| Ok((name.clone(), Digest::of_file(&staged.path().join(name))?)))
        .collect::<Result<_>>()?;
    Ok(staged.write(CHECKSUMS_FILE, &json(&checksums)?)?)
}

/// A verified checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    /// The progress of the run.
    pub state: TrainState,
    /// The configuration of the run.
    pub config: TrainConfig,
}

impl Checkpoint {
    /// Reads and verifies the checkpoint in `dir`.
    ///
    /// # Errors
    /// A file is missing, damaged, or of another version.
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        let shown = dir.display();
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))
        };
        ensure!(
            dir.join(STATE_DIR).is_dir(),
            "`{shown}` is not a checkpoint: it has no `{STATE_DIR}`\nhint: checkpoints are in `RUN/checkpoints`"
        );
        let checksums: BTreeMap<String, Digest> = serde_json::from_slice(&read(CHECKSUMS_FILE)?)
            .map_err(|error| anyhow!("`{shown}/{CHECKSUMS_FILE}` is damaged: {error}"))?;
        let model = if Adapter::is_in(dir) { "adapter_config.json" } else { "config.json" };
        for name in [STATE_FILE, MOMENTS_FILE, CONFIG_FILE, model] {
            ensure!(checksums.contains_key(name), "`{shown}/{CHECKSUMS_FILE}` is damaged: `{name}` is missing");
        }
        for (name, expected) in &checksums {
            let found = Digest::of_file(&dir.join(name))?;
            ensure!(
                found == *expected,
                "`{shown}/{name}` is damaged: its checksum is {}, expected {}",
                found.short(),
                expected.short()
            );
        }
        let state: TrainState = serde_json::from_slice(&read(STATE_FILE)?)
            .map_err(|error| anyhow!("`{shown}/{STATE_FILE}` was written by another version of Hearth: {error}"))?;
        ensure!(
            state.version == VERSION,
            "`{shown}` has version {}, but this version of Hearth supports version {VERSION}",
            state.version
        );
        let config = TrainConfig::from_toml(&String::from_utf8_lossy(&read(CONFIG_FILE)?))
            .with_context(|| format!("`{shown}/{CONFIG_FILE}` was written by another version of Hearth"))?;
        Ok(Checkpoint { dir: dir.to_owned(), state, config })
    }

    /// The last intact checkpoint of `run`, if it has any; calls `report` for later ones that are damaged.
    ///
    /// # Errors
    /// All of them are damaged: starting from the beginning would replace them.
    pub fn latest(run: &RunDir, report: &mut dyn FnMut(&str)) -> Result<Option<Checkpoint>> {
        let mut damage = None;
        for step in run.checkpoints()?.into_iter().rev() {
            let dir = run.checkpoint_dir(step);
            match Checkpoint::open(&dir) {
                Ok(checkpoint) => return Ok(Some(checkpoint)),
                Err(error) => {
                    report(&format!("{error:#}; ignoring the checkpoint `{}`", dir.display()));
                    damage.get_or_insert(error);
                }
            }
        }
        match damage {
            Some(error) => bail!(
                "{error:#}; no checkpoint of the run is whole, so it cannot be resumed\nhint: begin again in another folder, or \
                 remove the damaged checkpoints to begin again in this one"
            ),
            None => Ok(None),
        }
    }

    /// Identifies all its files.
    ///
    /// # Errors
    /// It cannot be read any more.
    pub fn digest(&self) -> Result<Digest> {
        Ok(Digest::of_file(&self.dir.join(CHECKSUMS_FILE))?)
    }

    /// The checkpoint's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The model, for training: `device` must support autodiff.
    pub fn load_gpt(&self, device: &Device) -> Result<Gpt> {
        let options = LoadOptions { device: device.clone(), dtype: Some(Dtype::F32) };
        let mut gpt = model_dir::load_gpt(&self.dir, &options)?;
        if self.config.objective.mtp > 0.0 {
            let head = model_dir::load_prediction_head(&self.dir, &options, &gpt)?;
            let missing = || format!("`{}` is damaged: it has no prediction head", self.dir.display());
            gpt = gpt.with_prediction_head(head.with_context(missing)?);
        }
        if self.config.objective.kind == ObjectiveKind::Classify {
            let classifier = encoder_files::load_classifier(&self.dir)?;
            let missing = || format!("`{}` is damaged: it has no head for classes", self.dir.display());
            gpt = gpt.with_classifier(&classifier.with_context(missing)?, device)?;
        }
        Ok(gpt.with_dropout(self.config.model.dropout))
    }

    /// Restores the moments of the optimizer of `module`, of the parameters that it [owns](Optimizer::owns), whose names begin with
    /// `prefix` in the file.
    ///
    /// # Errors
    /// They cannot be read, or do not belong to the trained parameters.
    pub fn restore<M: Module>(
        &self,
        prefix: &str,
        optimizer: &mut Optimizer,
        module: &M,
        device: &Device,
    ) -> Result<()> {
        let is_own = |name: &str| name.rsplit_once('.').is_none_or(|(path, _)| optimizer.owns(path));
        let moments = self.moments(prefix, device, is_own)?;
        let path = self.dir.join(MOMENTS_FILE);
        optimizer
            .restore(self.state.n_updates, moments, module)
            .with_context(|| format!("`{}` does not match the configuration", path.display()))
    }

    /// The tensors of the optimizer's state whose names begin with `prefix`, by the rest of their names, if that is `wanted`.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn moments(
        &self,
        prefix: &str,
        device: &Device,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Tensor<1>>> {
        let path = self.dir.join(MOMENTS_FILE);
        let found = moments::read(&path, device, |name| name.strip_prefix(prefix).is_some_and(&wanted))?;
        Ok(found.into_iter().map(|(name, values)| (name[prefix.len()..].to_owned(), values)).collect())
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).context("cannot write JSON")?;
    text.push(b'\n');
    Ok(text)
}

/// The files of a folder by relative path, sorted.
fn files(dir: &Path) -> Result<Vec<String>> {
    fn below(dir: &Path, prefix: &str, found: &mut Vec<String>) -> std::io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                below(&entry.path(), &format!("{name}/"), found)?;
            } else {
                found.push(name);
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    below(dir, "", &mut found).with_context(|| format!("cannot read the folder `{}`", dir.display()))?;
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn train_state_json_round_trip_keeps_every_float_bit() {
        let best = Best { step: 3, val_loss: 1.0 / 3.0 + 1e-16, batches: Some(7) };
        let mut state = TrainState::new(Digest::of(b"data"), Digest::of(b"tokenizer"));
        state.best = Some(best);
        state.recent_norms = [0.1_f32, 1.0 / 3.0, f32::MIN_POSITIVE].into();
        let back: TrainState = serde_json::from_slice(&json(&state).unwrap()).unwrap();
        assert_eq!(back, state);
        assert_eq!(back.best.unwrap().val_loss.to_bits(), best.val_loss.to_bits());
    }
}
