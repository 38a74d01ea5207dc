//! Shared code of `pretrain`, `quickstart` and `finetune`: starts or resumes a run and reports the result.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use hearth_model::{
    config::GptConfig,
    files::digest::Digest,
    hub::ModelPart,
    model_source::ModelSource,
    ops::{self, Precision},
    system::{
        device::{self, Chosen},
        memory,
    },
    weights::model_dir,
};
use hearth_training::{
    cli::{Status, counted, model_path, print_json},
    config::{BaseDtype, Layers, MicroBatchSize, Purpose, Resolved, Rows, TrainConfig},
    interrupt::Interrupt,
    plan::{
        data_defaults::{Defaults, ExamplesSize},
        device_watch::DeviceWatch,
        estimate::Estimate,
        memory_fit::Limits,
    },
    ranks::{self, Group, same::Fact},
    run::{
        adapter::require_model,
        checkpoint::Checkpoint,
        progress::{ProgressLine, Reporter},
        run_dir::{RunDir, Start},
        schedule::{RunSize, Schedule, rows_per_step},
        trainer::{Data, RankCosts, RunOutcome, Trainer},
    },
};
use serde::Serialize;

use super::{
    options::Options,
    plan::{Prediction, Trial, of_a_token, print_plan, step_size},
};

/// A run with fewer updates gets a warning: the model learns little in it.
const FEW_UPDATES: usize = 20;

/// The arguments of a training run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Continue from the last complete checkpoint in `--out`, or begin if there is none
    #[arg(long)]
    resume: bool,

    /// Begin a new run with the weights, moments and step of a checkpoint, such as a cooldown of a stable run; with `--resume` only
    /// if there is no run in `--out` yet
    #[arg(long, value_name = "CHECKPOINT")]
    from: Option<PathBuf>,

    /// Print parameters, arithmetic, memory and the expected time, and end; measures a few steps
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    pub(crate) options: Options,
}

/// A run that is about to start.
#[derive(Debug)]
pub(crate) struct Session {
    args: RunArgs,
    out: PathBuf,
    run: RunDir,
    /// The checkpoint that the run continues from.
    checkpoint: Option<Checkpoint>,
    /// The resolved settings of the run.
    pub(crate) config: TrainConfig,
    /// Settings that may be adjusted to the data.
    pub(crate) defaults: Defaults,
    /// Settings that follow the data: `key=value`.
    followed: Vec<String>,
    /// Messages from before the reporter existed.
    notes: Vec<String>,
    /// The processes of the run.
    group: Group,
}

/// The result of a run, printed on stdout.
#[derive(Debug, Serialize)]
struct Report {
    /// The folder of the run.
    out: PathBuf,
    /// Completed steps.
    steps: usize,
    /// Whether these are all steps; if not, `--resume` continues the run.
    complete: bool,
    /// Loss on the validation split after the last step, in nats per token.
    val_loss: Option<f64>,
    /// Perplexity there.
    val_perplexity: Option<f64>,
    /// Bits per byte there.
    val_bpb: Option<f64>,
    /// With preferences, the share of validation pairs whose better answer is preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    val_accuracy: Option<f64>,
    /// Validation loss of the model in `model/`.
    best_val_loss: Option<f64>,
    /// Completed steps at that evaluation.
    best_step: Option<usize>,
    /// Trained parameters.
    n_params: usize,
    /// Tokens trained on per second, without evaluations and samples.
    tok_per_sec: f64,
    /// Duration of this process's training in seconds.
    seconds: f64,
    /// Peak resident memory of the process during training in bytes, if the system reports it.
    peak_resident_bytes: Option<u64>,
    /// Peak memory of tensors on a GPU in bytes.
    device_peak_bytes: Option<u64>,
    /// The bytes that the GPU's allocator holds at the end: pages in which tensors are placed, free parts included.
    device_reserved_bytes: Option<u64>,
    /// The predicted peak: on a GPU the estimate; on the CPU the estimate plus the process's memory before.
    predicted_peak_bytes: u64,
    /// The costs of each process, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<RankCosts>,
}

impl RunArgs {
    /// Whether the settings come from the command's default preset and `--set` alone.
    pub(crate) fn begins_by_itself(&self) -> bool {
        !self.resume && self.from.is_none() && self.options.preset.is_none() && self.options.config.is_none()
    }
}

impl Session {
    /// Resolves the settings: for a resumed run, on top of its own.
    pub(crate) fn new(out: PathBuf, mut args: RunArgs, command: Layers) -> Result<Session> {
        let group = ranks::of_process();
        ensure!(group.is_alone() || !args.dry_run, "`--dry-run` looks at one process\nhint: start it without `mpirun`");
        let mut notes = Vec::new();
        let mut run = RunDir::new(&out, if args.resume { Start::Resume } else { Start::New })?;
        if args.resume && run.holds_run() {
            args.from = None;
        }
        args.resume &= args.from.is_none();
        ensure!(
            !args.resume || !run.is_unfinished(),
            "the run in `{}` ended before its first step, while it copied the checkpoint of `--from`\nhint: repeat the command that \
             began it, with `--from`",
            out.display()
        );
        if run.holds_run() && !args.dry_run && group.is_first() {
            // A process that is still training would save later checkpoints.
            run.lock()?;
        }
        let mut checkpoint = match &args.from {
            Some(dir) => Some(Checkpoint::open(dir)?),
            None if args.resume => Checkpoint::latest(&run, &mut |note| notes.push(format!("warning: {note}")))?,
            None => None,
        };
        let base = match &checkpoint {
            Some(checkpoint) if args.from.is_some() => Some(checkpoint.config.clone()),
            // Not from the checkpoint: settings that the last start changed may not be in any checkpoint yet.
            _ if run.holds_run() => Some(run.config()?),
            _ => None,
        };
        let earlier = base.clone();
        let base = base.filter(|_| args.options.preset.is_none() && args.options.config.is_none());
        let settings = args.options.resolve(Layers { base, ..command })?;
        let defaults = Defaults::new(&settings, earlier.clone());
        let Resolved { mut config, notes: of_settings, .. } = settings;
        notes.extend(of_settings);
        if let (MicroBatchSize::Auto, Some(earlier)) = (config.data.micro_batch_size, &earlier) {
            // A resumed run keeps the size that `auto` found when the run began.
            config.data.micro_batch_size = earlier.data.micro_batch_size;
        }
        defaults.keep_earlier(&mut config);
        // Before the settings are checked; other budgets depend on the data.
        let steps = config.schedule.max_steps;
        let followed = defaults.fit_warmup(&mut config, steps);
        if let Some(checkpoint) = &mut checkpoint
            && args.from.is_some()
        {
            // The values belong to another run.
            (checkpoint.state.best, checkpoint.state.n_since_best) = (None, 0);
        }
        let session = Session { args, out, run, checkpoint, config, defaults, followed, notes, group };
        session.require_same()?;
        Ok(session)
    }

    /// Refuses processes that were started with something else. Before it, no process waits for another one.
    fn require_same(&self) -> Result<()> {
        if self.group.is_alone() {
            return Ok(());
        }
        self.group.ranks().set_timeout(self.config.parallel.peer_timeout());
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        // Paths may differ between machines; the contents of the files may not, and are compared later.
        let mut settings = self.config.clone();
        (settings.data.path, settings.model.init) = (None, None);
        let checkpoint = match &self.checkpoint {
            None => "none".to_owned(),
            Some(checkpoint) => format!("step {}, hash {}", checkpoint.state.step, checkpoint.digest()?.short()),
        };
        self.group.require_same(&[
            Fact {
                what: "program",
                value: Digest::of_file(&program)?.short(),
                hint: "install the same build on all machines",
            },
            Fact {
                what: "command",
                value: settings.purpose.map_or("", Purpose::command).to_owned(),
                hint: "give all processes the same command line",
            },
            Fact {
                what: "setting",
                value: settings.to_toml()?,
                hint: "give all processes the same command line, and a `--config` with the same contents",
            },
            Fact {
                what: "checkpoint to go on from",
                value: checkpoint,
                hint: "`--out` must be in a folder that all machines share, such as one on NFS",
            },
        ])
    }

    /// Fits the settings that the user did not set to the examples of a fine-tuning run.
    pub(crate) fn fit_examples(&mut self, size: ExamplesSize) {
        self.followed.extend(self.defaults.fit_examples(&mut self.config, size));
    }

    /// Opens the model to start from, if there is one, and returns the configuration of the model that trains.
    fn open_model(&mut self, data: &Data) -> Result<GptConfig> {
        if let Some(init) = self.config.model.init.take() {
            let path = model_path(&ModelSource::parse(&init), ModelPart::Whole)?;
            require_model(&path)?;
            self.config.model.init = Some(path);
        }
        let Some(dir) = &self.config.model.init else { return self.config.gpt_config(data.tokenizer.vocab_size()) };
        let (gpt_config, seq_len) = (model_dir::load_config(dir)?, self.config.model.max_seq_len);
        if seq_len < gpt_config.max_seq_len {
            self.notes.push(format!(
                "rows have {seq_len} tokens (`model.max_seq_len`), the model's context has {}",
                gpt_config.max_seq_len
            ));
        }
        let trains_vectors = self.config.objective.objective().trains_vectors();
        let gpt_config = if trains_vectors { gpt_config.without_mlm_head() } else { gpt_config };
        Ok(gpt_config.with_dropout(self.config.model.dropout))
    }

    /// Trains, or prints the estimate of `--dry-run`.
    pub(crate) fn train(mut self, data: Data) -> Result<ExitCode> {
        self.config.validate()?;
        ops::keep_freed_memory();
        let gpt_config = self.open_model(&data)?;
        self.config.objective.check_model(&gpt_config)?;
        let data = &data.masked(&self.config)?;
        let chosen = device::choose_for(self.args.options.device, self.group.ranks().local_rank())?;
        // Otherwise memory that was freed after reading the data would count as used.
        ops::give_back_memory();
        let limits = Limits::of(&chosen.device).shared_by(self.group.ranks().n_on_machine());
        self.choose_micro_batch_size(limits, &gpt_config, &chosen.device)?;
        if let Some(checkpoint) = &self.checkpoint {
            let (then, now) = (checkpoint.config.data.micro_batch_size, self.config.data.micro_batch_size);
            if then != now {
                self.notes.push(format!(
                    "warning: `data.micro_batch_size` was {then} and is now {now}: sums are rounded in another order from here on, so \
                     the weights will not be those of an uninterrupted run bit for bit"
                ));
            }
        }
        if self.config.optim.precision == Precision::Bf16 && !ops::has_fast_bf16_products(&chosen.device) {
            self.notes.push(
                "warning: `optim.precision=bf16` is no faster than f32 on this CPU (it is on AMD's with AVX512_BF16)"
                    .to_owned(),
            );
        }
        let prediction = Prediction {
            estimate: Estimate::new(&self.config, &gpt_config, &chosen.device)?,
            held_before: memory::resident_bytes().unwrap_or(0),
            limits,
        };
        // Before the model is made, which may take long.
        let size = RunSize::new(prediction.estimate.n_params, &data.train, self.config.model.max_seq_len);
        self.followed.extend(self.defaults.fit_run(&mut self.config, size));
        if !self.followed.is_empty() {
            self.notes.push(format!("settings that follow the data: {}", self.followed.join(", ")));
        }
        Schedule::new(&self.config, size).check()?;
        self.check_data(data, size)?;
        let fits = limits.require(&self.config, &gpt_config, &chosen.device);
        if self.args.dry_run {
            return self.dry_run(data, &chosen.device, &prediction, fits);
        }
        fits?;
        self.start(data, &chosen, &prediction)
    }

    /// Warns about a run in which a model learns little, and about settings that have no effect with this data.
    ///
    /// # Errors
    /// Early stopping without a validation split.
    fn check_data(&mut self, data: &Data, size: RunSize) -> Result<()> {
        let config = &self.config;
        if !data.val.has_targets() {
            ensure!(
                config.eval.patience.is_none(),
                "`eval.patience` needs a validation split, and nothing is held out\nhint: leave it out, or hold out data \
                 (`data.val_fraction`; `hearth-train prepare --val-fraction`)"
            );
            for key in ["eval.every", "eval.batches"].into_iter().filter(|key| self.defaults.is_set(key)) {
                self.notes.push(format!("warning: `{key}` has no effect: nothing is held out to evaluate on"));
            }
        }
        if let Some(total) = Schedule::new(config, size).total().filter(|total| *total < FEW_UPDATES) {
            self.notes.push(format!(
                "warning: the run has only {}, and a model learns little from fewer than {FEW_UPDATES}; smaller steps \
                 (`data.tokens_per_step`) or a larger budget (such as `schedule.epochs`) give it more",
                counted(total, "update")
            ));
        }
        if config.data.rows != Rows::Windows && rows_per_step(config) as u64 > size.rows_per_epoch {
            self.notes.push(format!(
                "warning: a step has {} rows, and the data only {}: each is trained several times in a step; smaller steps \
                 (`data.tokens_per_step`, `data.micro_batch_size`) avoid this",
                rows_per_step(config),
                size.rows_per_epoch
            ));
        }
        Ok(())
    }

    /// Replaces `data.micro_batch_size=auto` by the largest size that fits.
    fn choose_micro_batch_size(&mut self, limits: Limits, gpt_config: &GptConfig, device: &Device) -> Result<()> {
        if self.config.data.micro_batch_size != MicroBatchSize::Auto {
            return Ok(());
        }
        let rows = self.group.of_first(limits.largest(&self.config, gpt_config, device)?)?;
        self.config.data.micro_batch_size = MicroBatchSize::Rows(rows);
        self.notes.push(format!("`data.micro_batch_size=auto` is {rows}, the largest that fits and divides a step"));
        Ok(())
    }

    /// Prints the plan of the run, with the time of a step if the run `fits` in memory.
    fn dry_run(&self, data: &Data, device: &Device, prediction: &Prediction, fits: Result<()>) -> Result<ExitCode> {
        let trial = match &fits {
            Ok(()) => {
                let mut status = Status::new();
                self.notes.iter().for_each(|note| status.note(note));
                status.note("measuring a few steps");
                let trainer = trainer_of(self.checkpoint.as_ref(), &self.config, data, (device, &self.group))?;
                let (steps_done, total_steps) = (trainer.steps_done(), trainer.total_steps());
                Some(Trial { steps_done, total_steps, time: trainer.time_step()? })
            }
            Err(_) => None,
        };
        print_plan(&self.config, prediction, trial, &data.train, self.args.options.json)?;
        fits.map(|()| ExitCode::SUCCESS)
    }

    /// Trains and reports the result.
    fn start(mut self, data: &Data, chosen: &Chosen, prediction: &Prediction) -> Result<ExitCode> {
        let (config, device) = (&self.config, &chosen.device);
        memory::reset_peak();
        // The peak is only in the report.
        let watch = if self.args.options.json { DeviceWatch::start(device) } else { None };
        let trainer = trainer_of(self.checkpoint.as_ref(), config, data, (device, &self.group))?;
        let n_params = trainer.n_params();
        trainer.require_same_start()?;
        if self.args.from.is_some() {
            // `--resume` does not look for another run's checkpoint, so the folder gets a copy before it becomes a run.
            if self.group.is_first() {
                self.run.reserve()?;
            }
            trainer.save_checkpoint(&self.run)?;
        }
        if self.group.is_first() {
            self.run.begin(config)?;
        }
        let interrupt = Interrupt::install()?;
        let first = trainer.steps_done();
        let mut reporter = Reporter::new(ProgressLine::on_stderr());
        if self.group.is_first() {
            reporter = reporter.with_files(&self.run, first)?;
        }
        self.notes.iter().for_each(|note| reporter.note(note));
        reporter.note(&format!("device: {} ({})", device::name(device), chosen.reason));
        self.announce(&mut reporter, data, &trainer, prediction);
        let outcome = trainer.run(&self.run, &mut reporter, &interrupt)?;
        reporter.note(&self.result(&outcome));
        if self.args.options.json && self.group.is_first() {
            let device_memory = ops::device_memory(device);
            let report = Report {
                steps: outcome.step,
                complete: outcome.is_complete,
                val_loss: outcome.val.map(|val| val.loss),
                val_perplexity: outcome.val.filter(|val| val.accuracy.is_none()).map(|val| val.perplexity()),
                val_accuracy: outcome.val.and_then(|val| val.accuracy),
                val_bpb: outcome.val_bpb,
                best_val_loss: outcome.best.map(|best| best.val_loss),
                best_step: outcome.best.map(|best| best.step),
                n_params,
                tok_per_sec: outcome.tok_per_sec,
                seconds: reporter.elapsed().as_secs_f64(),
                peak_resident_bytes: memory::peak_resident_bytes(),
                device_peak_bytes: watch.and_then(DeviceWatch::peak),
                device_reserved_bytes: device_memory.map(|memory| memory.reserved),
                predicted_peak_bytes: prediction.estimate.peak_bytes
                    + if device_memory.is_none() { prediction.held_before } else { 0 },
                out: self.out.clone(),
                ranks: outcome.costs,
            };
            print_json(&report)?;
        }
        let stopped = interrupt.exit_code().filter(|_| !outcome.is_complete);
        Ok(stopped.map_or(ExitCode::SUCCESS, ExitCode::from))
    }

    /// Announces the run.
    fn announce(&self, reporter: &mut Reporter, data: &Data, trainer: &Trainer<'_>, prediction: &Prediction) {
        let (config, Prediction { estimate, held_before, .. }) = (&self.config, prediction);
        if !self.group.is_alone() {
            reporter.note(&format!(
                "processes: {}, {} on this machine, which compute with {} each",
                self.group.size(),
                self.group.ranks().n_on_machine(),
                counted(ops::n_threads(), "thread")
            ));
        }
        reporter.note(&format!(
            "data: {} tokens to train on, {} held out, a vocabulary of {}",
            data.train.n_tokens(),
            data.val.n_tokens(),
            data.tokenizer.vocab_size()
        ));
        let rows_per_item = config.objective.objective().rows().rows_per_item();
        reporter.note(&format!(
            "model: {} parameters{}, about {} a step, about {:.0} MB of memory, and the process has {:.0} MB",
            trainer.n_params(),
            of_a_token(estimate),
            flops(estimate.flops_per_token as f64 * (rows_per_item * config.tokens_per_step()) as f64),
            estimate.peak_bytes as f64 / 1e6,
            *held_before as f64 / 1e6
        ));
        let step = step_size(config);
        reporter.note(&match trainer.total_steps() {
            Some(total) => {
                format!(
                    "run: {} of {step}, {:.1} passes over the data",
                    counted(total, "step"),
                    trainer.size().passes(config, total)
                )
            }
            None => format!("run: {} minutes of steps of {step}", config.schedule.max_minutes.unwrap_or_default()),
        });
        match &self.checkpoint {
            Some(checkpoint) => reporter.note(&format!(
                "resumed after step {} from `{}`",
                trainer.steps_done(),
                checkpoint.dir().display()
            )),
            None if self.args.resume => reporter.note("no checkpoint found: starting at step 0"),
            None => {}
        }
    }

    /// The line that ends a run.
    fn result(&self, outcome: &RunOutcome) -> String {
        let out = self.out.display();
        let serve = match self.config.lora.as_ref().and_then(|lora| lora.base).zip(self.config.model.init.as_ref()) {
            // Over the matrices that it was trained over.
            Some((base @ (BaseDtype::Q8 | BaseDtype::Q4), model)) => {
                let format = if base == BaseDtype::Q8 { "q8" } else { "q4" };
                format!("hearth serve --model {} --quantize {format} --lora NAME={out}", model.display())
            }
            _ => format!("hearth serve --model {out}"),
        };
        match (outcome.best, outcome.is_complete) {
            (_, false) if outcome.step == 0 => {
                "stopped by a signal before the first step. To begin again, run the same command with `--resume`"
                    .to_owned()
            }
            (_, false) => format!(
                "stopped by a signal after step {}; checkpoint saved. To continue, run the same command with `--resume`",
                outcome.step
            ),
            (Some(best), true) => format!(
                "the model of step {} (val loss {:.4}) is in `{out}`; serve it with `{serve}`",
                best.step, best.val_loss
            ),
            (None, true) => format!("the model is in `{out}`; serve it with `{serve}`"),
        }
    }
}

/// A number of floating-point operations with at least two digits, such as `3.7 GFLOP`.
fn flops(count: f64) -> String {
    let units = [(1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")];
    let (unit, name) = units.into_iter().find(|(unit, _)| count >= 0.9995 * unit).unwrap_or((1e3, "kFLOP"));
    let scaled = count / unit;
    if scaled < 9.95 { format!("{scaled:.1} {name}") } else { format!("{scaled:.0} {name}") }
}

/// A trainer for a new run, or one that continues from `checkpoint`.
fn trainer_of<'a>(
    checkpoint: Option<&Checkpoint>,
    config: &'a TrainConfig,
    data: &'a Data,
    (device, group): (&Device, &Group),
) -> Result<Trainer<'a>> {
    match checkpoint {
        Some(checkpoint) => Trainer::resume(config, data, (device, group), checkpoint),
        None => Trainer::new(config, data, device, group),
    }
}

#[cfg(test)]
mod tests {
    use super::flops;

    #[test]
    fn number_of_operations_is_rounded_to_two_digits_or_more() {
        for (count, shown) in [
            (3_732_000_000.0, "3.7 GFLOP"),
            (3_960_000_000.0, "4.0 GFLOP"),
            (41_700_000.0, "42 MFLOP"),
            (999_600_000.0, "1.0 GFLOP"),
            (1.2e13, "12 TFLOP"),
            (512.0, "0.5 kFLOP"),
        ] {
            assert_eq!(flops(count), shown);
        }
    }
}
