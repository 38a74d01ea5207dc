//! `hearth-train bench`: how fast training is on this machine.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result};
use hearth_model::{hub::ModelPart, model_source::ModelSource, ops, system::device, weights::model_dir};
use hearth_training::{
    cli::{model_path, print_json},
    config::{Layers, Purpose},
    data::shard::{Dataset, Split},
    plan::bench::{BenchReport, bench, random_tokens},
    run::adapter::require_model,
};

use super::options::Options;

/// The preset to measure if neither a preset nor a file is given.
const DEFAULT_PRESET: &str = "shakespeare-char-cpu";

/// Measures the speed of training, part by part
///
/// Trains a model for a few steps as `pretrain` does (with `--set model.init=MODEL` that one, with `--set lora.r=16` an adapter
/// of it), on random tokens unless there is data, and writes nothing. Run it alone on the machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder that `hearth-train prepare` wrote; without it, tokens are random
    #[arg(long, value_name = "DATA")]
    data: Option<PathBuf>,

    /// Size of the vocabulary of random tokens, unless `model.init` has one
    #[arg(long, value_name = "N", default_value_t = 65, conflicts_with = "data", value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    vocab_size: u32,

    /// Steps to time, after three that are not
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,

    /// Also show the time of each operation (on the CPU)
    #[arg(long)]
    profile: bool,

    #[command(flatten)]
    options: Options,
}

/// Measures and prints.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    ops::keep_freed_memory();
    let options = args.options;
    let layers =
        Layers { purpose: Some(Purpose::Bench), default_preset: Some(DEFAULT_PRESET.to_owned()), ..Layers::default() };
    let mut config = options.resolve(layers)?.config;
    if let Some(init) = config.model.init.take() {
        let path = model_path(&ModelSource::parse(&init), ModelPart::Whole)?;
        require_model(&path)?;
        config.model.init = Some(path);
    }
    let (tokens, vocab_size) = match &args.data {
        Some(path) => {
            let dataset = Dataset::open(path)?;
            (dataset.split(Split::Train).clone().into(), dataset.open_tokenizer()?.vocab_size())
        }
        None => {
            let vocab_size = match &config.model.init {
                Some(dir) => u32::try_from(model_dir::load_config(dir)?.vocab_size)?,
                None => args.vocab_size,
            };
            (random_tokens(vocab_size, config.model.max_seq_len), vocab_size as usize)
        }
    };
    let chosen = device::choose(options.device)?;
    writeln!(io::stderr(), "device: {} ({})", device::name(&chosen.device), chosen.reason)
        .context("cannot write to stderr")?;
    let report = bench(&config, (&tokens, vocab_size), &chosen.device, args.steps as usize, args.profile)?;
    if options.json {
        return print_json(&report);
    }
    io::stdout().write_all(text(&report).as_bytes()).context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}

fn text(report: &BenchReport) -> String {
    let megabytes =
        |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6));
    let ms = |ms: f64| format!("{ms:.2} ms");
    let mut rows = vec![
        ("parameters", report.n_params.to_string()),
        ("tokens a step", report.tokens_per_step.to_string()),
        ("speed", format!("{:.0} tok/s", report.tok_per_sec)),
        ("step", ms(report.ms_per_step)),
        ("  data", ms(report.data_ms)),
        ("  forward", ms(report.forward_ms)),
        ("  backward", ms(report.backward_ms)),
        ("  optimizer", ms(report.optimizer_ms)),
        ("evaluation", format!("{} a micro-batch", ms(report.eval_ms))),
        ("peak memory", format!("{} for training", megabytes(report.peak_bytes))),
        ("steady memory", megabytes(report.steady_bytes)),
    ];
    if let (Some(mfu), Some(rate)) = (report.mfu, report.gmadd_per_sec) {
        rows.push(("MFU", format!("{:.1} % of {rate:.1} billion multiply-adds a second", 100.0 * mfu)));
    }
    let mut text: String = rows.into_iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect();
    for op in &report.ops {
        text += &format!("{:<20} {:<9} {:>4} calls {:>9.2} ms\n", op.name, op.pass, op.calls, op.ms);
    }
    text
}
