//! `hearth-train quickstart`: one text file to one model dir, in one command.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Context, Result};
use hearth_model::{
    device::{self, DeviceChoice},
    ops,
    weights::DiskDtype,
};
use hearth_training::{
    checkpoint::{Existing, RunDir},
    config::{Arch, PRESETS, TrainConfig},
    corpus::{encode_text, read_text, split_by_chars},
    metrics::{Reporter, Style},
    tokenizer_build::BuiltTokenizer,
    trainer::{Data, Trainer},
};
use serde::Serialize;

/// Trains a model on a text file
///
/// The last tenth of the text is held out; the model with the lowest loss on it is the one that is kept in `--out`, for
/// `hearth serve --model DIR` and for `transformers`. Sizes that are not given come from the preset.
#[derive(Debug, clap::Args)]
#[command(after_help = presets_help(), allow_negative_numbers = true)]
pub(crate) struct Args {
    /// The text to train on, UTF-8
    #[arg(value_name = "FILE")]
    text: PathBuf,

    /// Folder for the model, its settings and its metrics
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Replace an earlier run's folder, when the first model of this run is complete
    #[arg(long)]
    overwrite: bool,

    /// Where sizes and rates that are not given come from, see below
    #[arg(long, value_name = "NAME", default_value = PRESETS[0].name)]
    preset: String,

    /// Where to train: `auto` takes a GPU if there is one
    #[arg(long, env = "HEARTH_DEVICE", default_value = "auto")]
    device: DeviceChoice,

    /// How the model's values are stored: `f32`, `f16` or `bf16`; training itself is in f32
    #[arg(long, value_name = "DTYPE", default_value = "f32")]
    save_dtype: DiskDtype,

    /// Print the result on stdout as one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    settings: Settings,
}

/// The flags that replace a preset's settings.
#[derive(Debug, clap::Args)]
struct Settings {
    /// Architecture of the model
    #[arg(long, help_heading = "Model")]
    arch: Option<Arch>,
    /// Transformer layers
    #[arg(long, value_name = "N", help_heading = "Model")]
    layers: Option<usize>,
    /// Attention heads; must divide the width
    #[arg(long, value_name = "N", help_heading = "Model")]
    heads: Option<usize>,
    /// Heads for keys and values; must divide the heads [default: as many as heads]
    #[arg(long, value_name = "N", help_heading = "Model")]
    kv_heads: Option<usize>,
    /// Width of the residual stream
    #[arg(long, value_name = "N", help_heading = "Model")]
    width: Option<usize>,
    /// Width inside the MLP [default: 8/3 of the width for llama, 4 times for gpt2]
    #[arg(long, value_name = "N", help_heading = "Model")]
    d_ff: Option<usize>,
    /// Context length in tokens
    #[arg(long, value_name = "TOKENS", help_heading = "Model")]
    context: Option<usize>,
    /// Probability with which an activation is dropped while training
    #[arg(long, value_name = "P", help_heading = "Model")]
    dropout: Option<f64>,

    /// Train a byte-level BPE tokenizer of this many tokens, at least 257 [default: one token per character]
    #[arg(long, value_name = "TOKENS", help_heading = "Data")]
    vocab_size: Option<usize>,
    /// Sequences in one forward pass
    #[arg(long, value_name = "N", help_heading = "Data")]
    batch_size: Option<usize>,
    /// Forward passes whose gradients are averaged into one step
    #[arg(long, value_name = "N", help_heading = "Data")]
    grad_accum: Option<usize>,

    /// Optimizer steps
    #[arg(long, value_name = "N", help_heading = "Optimizer")]
    steps: Option<usize>,
    /// Highest learning rate, after the warmup
    #[arg(long, value_name = "RATE", help_heading = "Optimizer")]
    lr: Option<f64>,
    /// Learning rate at the last step [default: the preset's share of the highest]
    #[arg(long, value_name = "RATE", help_heading = "Optimizer")]
    min_lr: Option<f64>,
    /// Steps over which the learning rate rises [default: the preset's, at most a tenth of the steps]
    #[arg(long, value_name = "STEPS", help_heading = "Optimizer")]
    warmup: Option<usize>,
    /// Decay of matrices per unit of learning rate
    #[arg(long, value_name = "X", help_heading = "Optimizer")]
    weight_decay: Option<f64>,
    /// Decay of AdamW's average of gradients
    #[arg(long, value_name = "X", help_heading = "Optimizer")]
    beta1: Option<f64>,
    /// Decay of AdamW's average of squared gradients
    #[arg(long, value_name = "X", help_heading = "Optimizer")]
    beta2: Option<f64>,
    /// Largest norm of all gradients together; 0: no clipping
    #[arg(long, value_name = "NORM", help_heading = "Optimizer")]
    clip: Option<f64>,

    /// Steps between evaluations over the held-out text; 0: at the end only
    #[arg(long, value_name = "STEPS", help_heading = "Progress")]
    eval_every: Option<usize>,
    /// Steps between texts that the model writes; 0: none
    #[arg(long, value_name = "STEPS", help_heading = "Progress")]
    sample_every: Option<usize>,
    /// Steps between progress lines
    #[arg(long, value_name = "STEPS", help_heading = "Progress")]
    log_every: Option<usize>,
    /// Seeds weights, batches, dropout and samples
    #[arg(long, value_name = "N", help_heading = "Progress")]
    seed: Option<u64>,
}

/// What a finished run prints on stdout.
#[derive(Debug, Serialize)]
struct Report {
    /// Where the model is.
    out: PathBuf,
    /// Loss over the whole validation split after the last step, in nats per token.
    val_loss: f64,
    /// Perplexity there.
    val_perplexity: f64,
    /// Bits per byte there.
    val_bpb: f64,
    /// Loss of the model that was kept.
    best_val_loss: f64,
    /// Steps after which it was.
    best_step: usize,
    /// Optimizer steps made.
    steps: usize,
    /// Values that were trained.
    n_params: usize,
    /// Tokens trained on per second, without evaluations and samples.
    tok_per_sec: f64,
    /// Wall clock of the whole command's training.
    seconds: f64,
}

/// Reads, trains, saves, reports.
pub(crate) fn run(args: Args) -> Result<()> {
    // Before anything shares work: this thread takes part in it.
    ops::lead_threads();
    let config = args.settings.apply(TrainConfig::preset(&args.preset)?);
    config.validate()?;
    let text = read_text(&args.text)?;
    let split = split_by_chars(&text, config.data.val_fraction)?;
    let chosen = device::choose(args.device)?;
    let mut run_dir = RunDir::new(&args.out, if args.overwrite { Existing::Replace } else { Existing::Refuse })?
        .with_dtype(args.save_dtype);

    let context = config.model.max_seq_len;
    let built = match config.data.vocab_size {
        // From the whole text, so that the held-out part has no character without an id.
        None => BuiltTokenizer::characters(&text, context)?,
        Some(vocab_size) => BuiltTokenizer::bpe(split.train, vocab_size, context)?,
    };
    let tokenizer = built.open()?;
    let train_ids = encode_text(&tokenizer, split.train)?;
    let val_ids = encode_text(&tokenizer, split.val)?;
    let first_bytes = val_ids.first().map_or(0, |&id| tokenizer.token_bytes(id).len());
    let data = Data {
        tokenizer: &tokenizer,
        train_ids: &train_ids,
        val_ids: &val_ids,
        val_bytes: split.val.len().saturating_sub(first_bytes),
    };
    let trainer = Trainer::new(&config, data, &chosen.device)?;
    let n_params = trainer.n_params();
    run_dir.start(&config)?;

    let mut reporter = Reporter::new(Box::new(io::stderr()), Style::of_stderr(), config.schedule.max_steps)
        .with_jsonl(&run_dir.metrics_path())?;
    reporter.note(&format!("device: {}", chosen.reason));
    reporter.note(&format!(
        "data: {} tokens to train on, {} held out, a vocabulary of {}",
        train_ids.len(),
        val_ids.len(),
        tokenizer.vocab_size()
    ));
    reporter.note(&format!("model: {n_params} parameters, {}", serde_json::to_string(&config.model)?));
    reporter.note(&format!(
        "run: {} steps of {} tokens, {:.1} passes over the data",
        config.schedule.max_steps,
        config.tokens_per_step(),
        (config.schedule.max_steps * config.tokens_per_step()) as f64 / train_ids.len() as f64
    ));
    let outcome = trainer.run(&mut reporter, &mut |gpt| run_dir.save_model(gpt, &built, &tokenizer))?;

    let report = Report {
        out: args.out,
        val_loss: outcome.val.loss,
        val_perplexity: outcome.val.perplexity(),
        val_bpb: outcome.val.bits_per_byte(data.val_bytes),
        best_val_loss: outcome.best.val_loss,
        best_step: outcome.best.step,
        steps: config.schedule.max_steps,
        n_params,
        tok_per_sec: outcome.tok_per_sec,
        seconds: reporter.elapsed().as_secs_f64(),
    };
    reporter.note(&format!(
        "the model of step {} (val loss {:.4}) is in `{}`; serve it with `hearth serve --model {}`",
        report.best_step,
        report.best_val_loss,
        report.out.display(),
        report.out.display()
    ));
    if args.json {
        writeln!(io::stdout(), "{}", serde_json::to_string(&report)?).context("cannot write to stdout")?;
    }
    Ok(())
}

impl Settings {
    /// `config` with what was given in place of what it had.
    fn apply(self, mut config: TrainConfig) -> TrainConfig {
        fn set<T>(place: &mut T, given: Option<T>) {
            if let Some(given) = given {
                *place = given;
            }
        }
        let Settings {
            arch,
            layers,
            heads,
            kv_heads,
            width,
            d_ff,
            context,
            dropout,
            vocab_size,
            batch_size,
            grad_accum,
            steps,
            lr,
            min_lr,
            warmup,
            weight_decay,
            beta1,
            beta2,
            clip,
            eval_every,
            sample_every,
            log_every,
            seed,
        } = self;
        let TrainConfig { model, data, optim, schedule, eval, .. } = &mut config;
        set(&mut model.arch, arch);
        set(&mut model.n_layers, layers);
        set(&mut model.n_heads, heads);
        model.n_kv_heads = kv_heads.or(model.n_kv_heads);
        set(&mut model.d_model, width);
        model.d_ff = d_ff.or(model.d_ff);
        set(&mut model.max_seq_len, context);
        set(&mut model.dropout, dropout);
        data.vocab_size = vocab_size.or(data.vocab_size);
        set(&mut data.micro_batch_size, batch_size);
        set(&mut data.grad_accum_steps, grad_accum);
        set(&mut optim.weight_decay, weight_decay);
        set(&mut optim.beta1, beta1);
        set(&mut optim.beta2, beta2);
        set(&mut optim.clip, clip);
        set(&mut schedule.max_steps, steps);
        // A preset's lowest rate and its warmup follow what is set beside them; given ones are checked as they are.
        let (min_share, preset_warmup) = (schedule.min_lr / schedule.lr, schedule.warmup_steps);
        set(&mut schedule.min_lr, min_lr.or(lr.map(|lr| lr * min_share)));
        set(&mut schedule.warmup_steps, warmup.or(steps.map(|steps| preset_warmup.min(steps / 10))));
        set(&mut schedule.lr, lr);
        set(&mut eval.eval_every, eval_every);
        set(&mut eval.sample_every, sample_every);
        set(&mut eval.log_every, log_every);
        set(&mut config.seed, seed);
        config
    }
}

fn presets_help() -> String {
    let rows: Vec<_> = PRESETS.iter().map(|preset| format!("  {:<22}{}", preset.name, preset.about)).collect();
    format!("Presets:\n{}", rows.join("\n"))
}
