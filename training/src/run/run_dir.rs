//! The folder of a run:
//!
//! - `config.toml`: the resolved configuration;
//! - `.lock`: locked while a process writes to the folder;
//! - `.reserved`: marks the folder of a run with `--from` that is still copying its first checkpoint, and has not begun;
//! - `metrics.jsonl`: every step, evaluation and sample, one JSON object per line;
//! - `curves.svg` and `tensorboard/`: the same as plots;
//! - `model/`: the best model so far, a model dir to serve, with its evaluation (`evaluation.json`);
//! - `checkpoints/step-NNNNNNNN/`: a model dir and `train_state/`, to resume from.
//!
//! Models and checkpoints are written under a temporary name and renamed (`hearth_model::weights::staged_dir`), so a
//! crash at any moment leaves intact ones.

use std::{
    fs::{self, File, TryLockError},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use hearth_model::{files::partial_file::PartialFile, weights::StagedDir};

use crate::{
    config::TrainConfig,
    output_files::{unwritable, write_whole},
};

const CONFIG_FILE: &str = "config.toml";
const LOCK_FILE: &str = ".lock";
/// Marks a folder that is [reserved](RunDir::reserve) for a run.
const RESERVED_FILE: &str = ".reserved";
const METRICS_FILE: &str = "metrics.jsonl";
const CURVES_FILE: &str = "curves.svg";
const TENSORBOARD_DIR: &str = "tensorboard";
const MODEL_DIR: &str = "model";
const CHECKPOINTS_DIR: &str = "checkpoints";

/// What to do about an existing run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Start a new run; the folder must be missing or empty.
    New,
    /// Continue the run in the folder, if there is one.
    Resume,
}

/// The folder of a run.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    start: Start,
    /// Whether there was a run when the folder was opened.
    held_run: bool,
    /// Locked while a process writes to the folder.
    lock: Option<File>,
}

impl RunDir {
    /// The folder `path`, which need not exist. Nothing is written before [`lock`](Self::lock).
    ///
    /// # Errors
    /// The folder has other contents than a run, or has a run although a new one should start.
    pub fn new(path: &Path, start: Start) -> Result<RunDir> {
        let shown = path.display();
        let mut run = RunDir { path: path.to_owned(), start, held_run: false, lock: None };
        run.held_run = run.holds_run();
        if path.exists() {
            let entries = fs::read_dir(path)
                .with_context(|| format!("cannot read the folder `{shown}`\nhint: give a new folder as `--out`"))?;
            // A process that ended at the beginning may have left these.
            let mut leftovers = vec![path.join(LOCK_FILE), PartialFile::leftover(&path.join(CONFIG_FILE))];
            if run.is_unfinished() {
                leftovers.extend([RESERVED_FILE, CHECKPOINTS_DIR].map(|name| path.join(name)));
            }
            let is_empty = entries.flatten().all(|entry| leftovers.contains(&entry.path()));
            ensure!(
                is_empty || run.holds_run(),
                "`{shown}` is not a training run and not empty\nhint: use a new folder as `--out`"
            );
            run.ensure_new()?;
        }
        Ok(run)
    }

    /// Rejects a folder with a run, unless it is the one to be continued.
    fn ensure_new(&self) -> Result<()> {
        let shown = self.path.display();
        ensure!(
            self.start == Start::Resume || !self.holds_run(),
            "`{shown}` has an earlier run\nhint: use a new folder as `--out`, or add `--resume`"
        );
        ensure!(
            self.held_run || !self.holds_run(),
            "another process has begun a run in `{shown}`\nhint: repeat the command, which then continues that run"
        );
        Ok(())
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the folder has a run.
    pub fn holds_run(&self) -> bool {
        self.path.join(CONFIG_FILE).is_file()
    }

    /// Whether the folder is reserved but is no run: the process that reserved it ended before the run began.
    pub fn is_unfinished(&self) -> bool {
        !self.holds_run() && self.path.join(RESERVED_FILE).is_file()
    }

    /// The configuration of the run in the folder.
    pub fn config(&self) -> Result<TrainConfig> {
        let path = self.path.join(CONFIG_FILE);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        TrainConfig::from_toml(&text).with_context(|| {
            format!("cannot read `{}`\nhint: undo what was changed in it, or begin a new run", path.display())
        })
    }

    /// Creates and locks the folder, for a checkpoint that is written to it before it is a run, which it is from
    /// [`begin`](Self::begin) on. If the process ends before, the checkpoint is not continued from, and the next process that
    /// begins a run here removes it.
    ///
    /// # Errors
    /// The folder cannot be written to, or another process is training in it or has begun a run there since
    /// [`new`](Self::new).
    pub fn reserve(&mut self) -> Result<()> {
        self.claim()?;
        // `claim` removes checkpoints only from folders with this mark: others, such as copies of another run's, must stay.
        File::create(self.path.join(RESERVED_FILE)).with_context(|| unwritable(&self.path))?;
        Ok(())
    }

    /// Creates and locks the folder, and removes the checkpoint of a process that ended after it had reserved the folder.
    fn claim(&mut self) -> Result<()> {
        let is_own = self.lock.is_some();
        self.lock()?;
        self.ensure_new()?;
        let checkpoints = self.path.join(CHECKPOINTS_DIR);
        if !is_own && self.is_unfinished() && checkpoints.exists() {
            fs::remove_dir_all(&checkpoints).with_context(|| unwritable(&self.path))?;
        }
        Ok(())
    }

    /// Creates and locks the folder, writes the configuration, which marks the folder as a run, and removes the
    /// leftovers of an earlier process that ended while it saved.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn begin(&mut self, config: &TrainConfig) -> Result<()> {
        self.claim()?;
        let unwritable = || unwritable(&self.path);
        let path = self.path.join(CONFIG_FILE);
        let text = config.to_toml()?;
        if fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            write_whole(&path, text.as_bytes())?;
        }
        match fs::remove_file(self.path.join(RESERVED_FILE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(unwritable),
            _ => {}
        }
        let checkpoints = self.path.join(CHECKPOINTS_DIR);
        for dir in [&checkpoints, &self.tensorboard_dir()] {
            fs::create_dir_all(dir).with_context(unwritable)?;
        }
        Ok(StagedDir::remove_leftovers(&checkpoints)?)
    }

    /// Creates and locks the folder, unless it is locked already. Until then, another process may write to it.
    ///
    /// # Errors
    /// The folder cannot be written to, or another process is training in it.
    pub fn lock(&mut self) -> Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        let unwritable = || unwritable(&self.path);
        fs::create_dir_all(&self.path).with_context(unwritable)?;
        let file = File::options().create(true).truncate(false).write(true).open(self.path.join(LOCK_FILE));
        let file = file.with_context(unwritable)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => bail!(
                "another process is training in `{}`\nhint: wait for it to end, or use another folder as `--out`",
                self.path.display()
            ),
            // Without file locks, a second process is not detected.
            Ok(()) | Err(TryLockError::Error(_)) => self.lock = Some(file),
        }
        Ok(())
    }

    /// The path of the metrics.
    pub fn metrics_path(&self) -> PathBuf {
        self.path.join(METRICS_FILE)
    }

    /// The folder of TensorBoard's event files.
    pub fn tensorboard_dir(&self) -> PathBuf {
        self.path.join(TENSORBOARD_DIR)
    }

    /// The path of the loss curves.
    pub fn curves_path(&self) -> PathBuf {
        self.path.join(CURVES_FILE)
    }

    /// The best model so far.
    pub fn model_dir(&self) -> PathBuf {
        self.path.join(MODEL_DIR)
    }

    /// The folder of the checkpoint of `step`.
    pub fn checkpoint_dir(&self, step: usize) -> PathBuf {
        self.path.join(CHECKPOINTS_DIR).join(format!("step-{step:08}"))
    }

    /// Writes the checkpoint of `step` atomically.
    pub fn save_checkpoint(&self, step: usize, write: impl FnOnce(&StagedDir) -> Result<()>) -> Result<()> {
        let staged = StagedDir::replacing(&self.checkpoint_dir(step))?;
        write(&staged)?;
        Ok(staged.commit()?)
    }

    /// The steps that have a checkpoint, ascending. The checkpoints are not verified.
    pub fn checkpoints(&self) -> Result<Vec<usize>> {
        let dir = self.path.join(CHECKPOINTS_DIR);
        if !dir.exists() {
            return Ok(Vec::new());
        }
        let mut steps = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot read the folder `{}`", dir.display()))? {
            let name = entry.with_context(|| format!("cannot read the folder `{}`", dir.display()))?.file_name();
            // Temporary folders of a save have a suffix, so their names are not numbers.
            steps.extend(name.to_str().and_then(|name| name.strip_prefix("step-")?.parse::<usize>().ok()));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// Removes the checkpoints up to `step` except the last `keep` and those of `keep_steps`. Later ones are kept: they
    /// are damaged, or the run would have continued from them.
    ///
    /// # Errors
    /// The first checkpoint that cannot be removed; the others are removed.
    pub fn prune_checkpoints(&self, step: usize, keep: usize, keep_steps: &[usize]) -> Result<()> {
        let mut steps = self.checkpoints()?;
        steps.retain(|found| *found <= step);
        let n_old = steps.len().saturating_sub(keep);
        let mut result = Ok(());
        for step in steps[..n_old].iter().filter(|step| !keep_steps.contains(step)) {
            let dir = self.checkpoint_dir(*step);
            let removed = fs::remove_dir_all(&dir).with_context(|| format!("cannot remove `{}`", dir.display()));
            result = result.and(removed);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use hearth_model::weights::model_dir;

    use super::*;

    #[test]
    fn run_dir_accepts_only_empty_folders_and_unlocked_runs() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("deep/out");
        let mut run = RunDir::new(&out, Start::New).unwrap();
        assert!(!out.exists(), "nothing is written before the run begins");
        let config = TrainConfig::default();
        run.begin(&config).unwrap();
        let error = RunDir::new(&out, Start::New).unwrap_err().to_string();
        assert!(error.contains("earlier run") && error.contains("--resume"), "{error}");
        let mut again = RunDir::new(&out, Start::Resume).unwrap();
        assert_eq!(again.config().unwrap(), config);
        let error = again.begin(&config).unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
        drop(run);
        fs::create_dir(out.join("checkpoints/step-00000777.hearth-partial")).unwrap();
        again.begin(&TrainConfig { seed: 3, ..config.clone() }).unwrap();
        assert_eq!(again.config().unwrap().seed, 3);
        assert_eq!(fs::read_dir(out.join("checkpoints")).unwrap().count(), 0, "the interrupted save is removed");

        // All three open the same empty folder, but only one can begin a run in it.
        let raced = dir.path().join("raced");
        let starts = [Start::New, Start::New, Start::Resume];
        let [mut first, mut second, mut third] = starts.map(|start| RunDir::new(&raced, start).unwrap());
        first.begin(&config).unwrap();
        assert!(second.begin(&config).unwrap_err().to_string().contains("another process"));
        drop(first);
        assert!(second.begin(&config).unwrap_err().to_string().contains("earlier run"));
        drop(second);
        // The third process opened the folder before the run had checkpoints, so it would start at step 0.
        assert!(third.begin(&config).unwrap_err().to_string().contains("has begun a run in"));

        let other = dir.path().join("photos");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("cat.jpg"), "").unwrap();
        for start in [Start::New, Start::Resume] {
            let error = RunDir::new(&other, start).unwrap_err().to_string();
            assert!(error.contains("is not a training run"), "{error}");
        }
        assert!(RunDir::new(&other.join("cat.jpg"), Start::New).is_err());
    }

    #[test]
    fn reserve_removes_only_checkpoints_of_a_run_that_never_began() {
        let dir = tempfile::tempdir().unwrap();
        let save = |run: &RunDir, step: usize| {
            run.save_checkpoint(step, |staged| Ok(staged.write("model.safetensors", b"")?)).unwrap();
        };
        let out = dir.path().join("out");
        let mut ended = RunDir::new(&out, Start::New).unwrap();
        ended.reserve().unwrap();
        save(&ended, 20);
        fs::create_dir(out.join("checkpoints/step-00000030.hearth-partial")).unwrap();
        drop(ended);
        let mut begun = RunDir::new(&out, Start::New).unwrap();
        assert!(begun.is_unfinished());
        begun.reserve().unwrap();
        assert!(begun.checkpoints().unwrap().is_empty());
        save(&begun, 10);
        begun.begin(&TrainConfig::default()).unwrap();
        assert_eq!(begun.checkpoints().unwrap(), [10]);
        assert!(!begun.is_unfinished() && !out.join(RESERVED_FILE).exists());

        // Checkpoints that were copied from elsewhere, without the rest of their run.
        let copied = dir.path().join("copied");
        fs::create_dir_all(copied.join("checkpoints/step-00000020/train_state")).unwrap();
        for start in [Start::New, Start::Resume] {
            let error = RunDir::new(&copied, start).unwrap_err().to_string();
            assert!(error.contains("is not a training run"), "{error}");
        }
    }

    #[test]
    fn model_of_a_run_folder_is_the_model_dir_within_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(model_dir::model_of(dir.path()), dir.path());
        RunDir::new(dir.path(), Start::New).unwrap().begin(&TrainConfig::default()).unwrap();
        assert_eq!(model_dir::model_of(dir.path()), RunDir::new(dir.path(), Start::Resume).unwrap().model_dir());
        let error = model_dir::load_config(dir.path()).unwrap_err().to_string();
        assert!(error.contains("model"), "{error}");
    }

    #[test]
    fn prune_checkpoints_keeps_the_newest_and_the_requested_steps() {
        let dir = tempfile::tempdir().unwrap();
        let mut run = RunDir::new(dir.path(), Start::New).unwrap();
        run.begin(&TrainConfig::default()).unwrap();
        for step in [10, 20, 30, 40] {
            run.save_checkpoint(step, |staged| Ok(staged.write("model.safetensors", b"")?)).unwrap();
        }
        fs::create_dir(dir.path().join("checkpoints/step-00000050.hearth-partial")).unwrap();
        run.prune_checkpoints(40, 2, &[10]).unwrap();
        assert_eq!(run.checkpoints().unwrap(), [10, 30, 40]);
        // The run continued from step 30, since the checkpoint of step 40 is damaged.
        run.save_checkpoint(35, |staged| Ok(staged.write("model.safetensors", b"")?)).unwrap();
        run.prune_checkpoints(35, 1, &[]).unwrap();
        assert_eq!(run.checkpoints().unwrap(), [35, 40]);
        // A file where a checkpoint folder should be cannot be removed; other old checkpoints are removed nevertheless.
        fs::write(run.checkpoint_dir(5), b"").unwrap();
        fs::create_dir(run.checkpoint_dir(6)).unwrap();
        let error = run.prune_checkpoints(35, 1, &[]).unwrap_err().to_string();
        assert!(error.contains("cannot remove `") && error.contains("step-00000005"), "{error}");
        fs::remove_file(run.checkpoint_dir(5)).unwrap();
        assert_eq!(run.checkpoints().unwrap(), [35, 40]);
        // A failed save leaves no files.
        assert!(run.save_checkpoint(60, |_| bail!("a full disk")).is_err());
        assert_eq!(run.checkpoints().unwrap(), [35, 40]);
    }
}
