//! `hearth bench`: measures the speed of a model, next to the limits of the machine.

use std::{
    collections::BTreeSet,
    fmt::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use burn::tensor::{Device, TensorData};
use clap::{Args, builder::BoolishValueParser};
use hearth_engine::memory;
use hearth_model::{
    TokenId,
    decode::{
        model_runner::ModelRunner,
        read_logits::LogitRows,
        sampling::{LogitRow, Sampler, SamplingParams},
    },
    gpt::{
        Gpt, Init, ParamSpec,
        kv_cache::{PAGE_SIZE, PageTable, StepPart},
        lora::{LoadedAdapter, LoraValues},
    },
    ops::{self, KvDtype, Precision},
    system::device,
    weights::{
        adapter::{Adapter, AdapterModel},
        model_dir,
    },
};
use serde::Serialize;

use super::{bench_grammars, download, output};
use crate::config::ModelConfig;

/// Default prompt length of the prefill measurement in tokens.
const DEFAULT_PREFILL: usize = 512;

/// The arguments of `hearth bench`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    model: ModelConfig,
    /// Folder with a `config.json`: use that architecture with random weights, instead of a model
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "grammars"])]
    random: Option<PathBuf>,
    /// Prompt length of the prefill measurement in tokens [default: 512, or the model's context if that is shorter]
    #[arg(long, value_name = "TOKENS")]
    prefill: Option<usize>,
    /// Prompt length of the decoding measurement in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    prompt: usize,
    /// Number of decoding steps to time
    #[arg(long, default_value_t = 64)]
    steps: usize,
    /// Batch sizes of the decoding measurement in sequences; several values measure each
    #[arg(long, value_name = "SEQUENCES", num_args = 1.., default_values_t = [1, 8, 16])]
    batch: Vec<usize>,
    /// Number of runs of each measurement; the fastest is reported
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Disable GPU graph capture for decoding
    #[arg(long, env = "HEARTH_ENFORCE_EAGER", value_parser = BoolishValueParser::new())]
    enforce_eager: bool,
    /// Measure decoding also with the LoRA adapters in these folders, which the sequences take by turns; a batch uses at
    /// most one per sequence (repeatable)
    #[arg(long, value_name = "DIR", conflicts_with = "grammars")]
    lora: Vec<PathBuf>,
    /// Measure structured output instead: the time to compile grammars and to compute token masks
    #[arg(long, conflicts_with_all = ["prefill", "prompt", "steps", "batch", "runs"])]
    grammars: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    /// The instruction set of the CPU's kernels.
    kernels: &'static str,
    /// Threads that compute on the CPU.
    threads: usize,
    dtype: String,
    /// The arithmetic of matrix products (`--precision`).
    precision: Precision,
    kv_cache_dtype: String,
    n_params: usize,
    weight_bytes_per_step: usize,
    /// Measured bandwidth for reading `weight_bytes_per_step` bytes on the same device in the same run.
    read_gb_per_sec: f64,
    /// Measured multiply-adds per second in billions, from registers, in the arithmetic of the dtype.
    gmacs_per_sec: f64,
    results: Vec<Measured>,
}

#[derive(Debug, Serialize)]
struct Measured {
    job: String,
    tok_per_sec: f64,
    /// Mean size of the keys and values that a step reads; decoding only.
    kv_bytes_per_step: Option<usize>,
    /// Kernels that a step launches; decoding on a GPU only.
    launches_per_step: Option<usize>,
    /// How many of the `launches_per_step` are in captured graphs; decoding on a GPU only.
    captured_launches_per_step: Option<usize>,
    /// Bytes that a greedy step reads back from the device; decoding on a GPU only.
    read_back_bytes_per_step: Option<usize>,
    /// Fraction of the measured bandwidth, counting the weights once per step; decoding only.
    fraction_of_bandwidth: Option<f64>,
    /// Fraction of the measured arithmetic rate, counting matrix products and attention.
    fraction_of_arithmetic: Option<f64>,
    /// Multiply-adds per token.
    #[serde(skip)]
    n_products: f64,
}

/// Prints a table, followed by one line of JSON.
pub(crate) fn run(args: BenchArgs) -> anyhow::Result<()> {
    // Before the model, which may take long to load.
    let adapters = adapter_values(&args)?;
    let gpt = match &args.random {
        Some(dir) => random(dir, &args.model)?,
        None => {
            let model = download::load_for_text(&args.model)?;
            if args.grammars {
                let kv_dtype = args.model.kv_dtype(&model.gpt)?;
                return bench_grammars::run(args.model.model_id(), &model, kv_dtype);
            }
            model.gpt
        }
    };
    let context = gpt.config().max_seq_len;
    let n_prefill = args.prefill.unwrap_or(DEFAULT_PREFILL.min(context));
    let longest = n_prefill.max(args.prompt.saturating_add(args.steps).saturating_add(1));
    anyhow::ensure!(
        longest <= context,
        "the measurements need {longest} tokens of context, the model has {context}\nhint: use a smaller `--prefill`, `--prompt` or `--steps`"
    );
    let counts = [("prefill", n_prefill), ("prompt", args.prompt), ("steps", args.steps), ("runs", args.runs)];
    if let Some((flag, _)) = counts.iter().find(|(_, count)| *count == 0) {
        anyhow::bail!("`--{flag}` must be at least 1, got 0");
    }
    anyhow::ensure!(args.batch.iter().all(|&batch| batch > 0), "`--batch` must be at least 1, got 0");

    let kv_dtype = args.model.kv_dtype(&gpt)?;
    require_memory(&gpt, kv_dtype, "prefill", (n_prefill, 1), n_prefill)?;
    for &batch in &args.batch {
        require_memory(&gpt, kv_dtype, "batch", (batch, batch), args.prompt + args.steps + 1)?;
    }

    let weight_bytes = gpt.step_bytes(1);
    let limits = || -> anyhow::Result<[f64; 2]> {
        let device = gpt.device();
        Ok([ops::read_bandwidth(weight_bytes, &device)?, ops::multiply_rate(gpt.dtype(), &device)?])
    };
    let before = limits()?;
    let mut results = vec![prefill(&gpt, kv_dtype, n_prefill, args.runs)?];
    let adapters = adapters.iter().map(|values| LoadedAdapter::new(gpt.config(), values, &gpt.device()).map(Arc::new));
    let adapters: Vec<Arc<LoadedAdapter>> = adapters.collect::<Result<_, _>>()?;
    let mut batches = Vec::new();
    for &batch in &args.batch {
        for adapters in [&[], adapters.as_slice()].iter().take(if adapters.is_empty() { 1 } else { 2 }) {
            results.push(decode(&gpt, kv_dtype, &args, (batch, adapters))?);
            batches.push(batch);
        }
    }
    // Measured again at the end: the machine may have been busy at the beginning.
    let after = limits()?;
    let [bandwidth, arithmetic] = [before[0].max(after[0]), before[1].max(after[1])];
    for (result, batch) in results.iter_mut().skip(1).zip(batches) {
        let steps_per_sec = result.tok_per_sec / batch as f64;
        result.fraction_of_bandwidth = Some(steps_per_sec * weight_bytes as f64 / bandwidth);
    }
    for result in &mut results {
        result.fraction_of_arithmetic = Some(result.tok_per_sec * result.n_products / arithmetic);
    }
    let report = Report {
        model: args.random.as_ref().map_or_else(|| args.model.model_id(), |dir| format!("random {}", dir.display())),
        device: device::name(&gpt.device()),
        kernels: ops::instruction_set()?,
        threads: ops::n_threads(),
        dtype: gpt.dtype().to_string(),
        precision: gpt.precision(),
        kv_cache_dtype: kv_dtype.to_string(),
        n_params: gpt.config().n_params(),
        weight_bytes_per_step: weight_bytes,
        read_gb_per_sec: bandwidth / 1e9,
        gmacs_per_sec: arithmetic / 1e9,
        results,
    };
    print(&report)
}

/// The adapters in the folders that were given.
fn adapter_values(args: &BenchArgs) -> anyhow::Result<Vec<LoraValues>> {
    if args.lora.is_empty() {
        return Ok(Vec::new());
    }
    let (config, class) = match &args.random {
        Some(dir) => (model_dir::load_config(dir)?, model_dir::load_class(dir).ok()),
        None => (download::gpt_config(&args.model)?, args.model.class()?),
    };
    let model = AdapterModel::new(&config, class)?;
    let values = args.lora.iter().map(|dir| Ok(Adapter::open(&model_dir::model_of(dir), model)?.values));
    values.collect()
}

/// Rejects the value of `flag` if the machine has not enough memory for the keys, values and logits of this many
/// sequences of `n_tokens`.
fn require_memory(
    gpt: &Gpt,
    kv_dtype: KvDtype,
    flag: &str,
    (value, n_sequences): (usize, usize),
    n_tokens: usize,
) -> anyhow::Result<()> {
    let config = gpt.config();
    let kv_bytes = n_tokens.next_multiple_of(PAGE_SIZE) as u128 * gpt.kv_bytes_per_token(kv_dtype)? as u128;
    let logit_bytes = (config.vocab_size * size_of::<f32>()) as u128;
    let n_bytes = n_sequences as u128 * (kv_bytes + logit_bytes);
    let required = memory::require(n_bytes, memory::available_on(&gpt.device()));
    required.map_err(|what| anyhow::anyhow!("`--{flag}` {value} {what}"))
}

/// A model with the shape of `config.json` in `dir` and random weights.
fn random(dir: &Path, options: &ModelConfig) -> anyhow::Result<Gpt> {
    let config = model_dir::load_config(dir)?;
    let device = options.device()?;
    let dtype = match options.held_as() {
        Some(dtype) => dtype,
        None => model_dir::load_stored_dtype(dir)?.unwrap_or_default(),
    };
    // A lower limit; the embedding is converted from f32.
    let n_embedding_bytes = 4 * config.vocab_size as u128 * config.d_model as u128;
    let n_bytes = memory::least_weight_bytes(config.n_params(), memory::bits_of(dtype)) + n_embedding_bytes;
    memory::require(n_bytes, memory::available_on(&device)).map_err(|what| {
        anyhow::anyhow!("a model of the shape in `{}` {what}\nhint: `--quantize q4` needs the least", dir.display())
    })?;
    let mut state = 1u64;
    // Uniform, by multiplication modulo 2^64: fast enough for a billion weights per second.
    let mut next = |std: f64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * (3.0f64.sqrt() * std) as f32
    };
    let values = &mut |spec: &ParamSpec| {
        let n = spec.shape.iter().product();
        let values: Vec<f32> = match spec.init {
            Init::Normal { std } => (0..n).map(|_| next(std)).collect(),
            Init::Constant(value) => vec![value; n],
            Init::Values(values) => values.to_vec(),
            Init::LogUniform { least, most } => vec![((least + most) / 2.0).ln() as f32; n],
        };
        Ok(TensorData::new(values, spec.shape.as_slice()))
    };
    Ok(options.with_max_seq_len(Gpt::from_params(&config, dtype, &device, values)?)?)
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut text = String::new();
    let n_params = report.n_params as f64 / 1e6;
    writeln!(
        text,
        "{} in {}, {n_params:.1} M parameters, on {} ({})",
        report.model, report.dtype, report.device, report.kernels
    )?;
    writeln!(
        text,
        "{:.0} MB of weights per step; limits: {:.1} GB/s of memory bandwidth at that size, {:.0} G multiply-adds/s",
        report.weight_bytes_per_step as f64 / 1e6,
        report.read_gb_per_sec,
        report.gmacs_per_sec
    )?;
    for result in &report.results {
        let Measured { job, tok_per_sec, .. } = result;
        let percent =
            |fraction: Option<f64>| fraction.map_or_else(|| "–".to_owned(), |f| format!("{:.0} %", 100.0 * f));
        let [bandwidth, arithmetic] = [result.fraction_of_bandwidth, result.fraction_of_arithmetic].map(percent);
        let kv_bytes = result.kv_bytes_per_step.map(|n| n as f64 / 1e6);
        let kv = kv_bytes.map(|n| format!(", KV cache {n:.0} MB in {}", report.kv_cache_dtype));
        let captured = result.captured_launches_per_step.unwrap_or(0);
        let launches = result.launches_per_step.map(|n| format!(", {n} launches a step ({captured} captured)"));
        let read_back = result.read_back_bytes_per_step.map(|n| format!(", {n} bytes read back"));
        writeln!(
            text,
            "{job:<36} {tok_per_sec:>9.1} tok/s {bandwidth:>6} of bandwidth {arithmetic:>6} of arithmetic{}",
            [kv, launches, read_back].map(Option::unwrap_or_default).concat()
        )?;
    }
    writeln!(text, "{}", serde_json::to_string(report)?)?;
    output::print(&text)
}

fn prefill(gpt: &Gpt, kv_dtype: KvDtype, n_tokens: usize, n_runs: usize) -> anyhow::Result<Measured> {
    let prompt = token_ids(gpt, 0, n_tokens);
    let mut best = f64::INFINITY;
    for _ in 0..n_runs {
        let mut runner = ModelRunner::new(gpt.clone(), n_tokens.div_ceil(PAGE_SIZE), kv_dtype)?;
        let mut tables = [runner.cache().table()];
        let start = Instant::now();
        step(&mut runner, (&mut tables, &[]), &[&prompt])?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    let job = format!("prefill of {}", n_tokens);
    Ok(Measured {
        job,
        tok_per_sec: n_tokens as f64 / best,
        kv_bytes_per_step: None,
        launches_per_step: None,
        captured_launches_per_step: None,
        read_back_bytes_per_step: None,
        fraction_of_bandwidth: None,
        fraction_of_arithmetic: None,
        n_products: gpt.n_products(n_tokens, 1, n_tokens * (n_tokens + 1) / 2) as f64 / n_tokens as f64,
    })
}

/// Decodes `batch` sequences, which take turns with `adapters`, if there are any.
fn decode(
    gpt: &Gpt,
    kv_dtype: KvDtype,
    args: &BenchArgs,
    (batch, adapters): (usize, &[Arc<LoadedAdapter>]),
) -> anyhow::Result<Measured> {
    let n_pages = batch * (args.prompt + args.steps + 1).div_ceil(PAGE_SIZE);
    let mut runner = ModelRunner::new(gpt.clone(), n_pages, kv_dtype)?;
    if !args.enforce_eager {
        runner.capture_steps();
        runner.go_ahead();
    }
    let mut best = f64::INFINITY;
    let mut tables: Vec<PageTable> = Vec::new();
    for _ in 0..args.runs {
        // The pages of the previous run are free again.
        tables.clear();
        tables.extend((0..batch).map(|_| runner.cache().table()));
        for (number, table) in tables.iter_mut().enumerate() {
            step(&mut runner, (std::slice::from_mut(table), &[]), &[&token_ids(gpt, number, args.prompt)])?;
        }
        let mut ids: Vec<Vec<TokenId>> = (0..batch).map(|sequence| token_ids(gpt, sequence, 1)).collect();
        let start = Instant::now();
        for number in 1..=args.steps {
            let ids_by_text: Vec<&[TokenId]> = ids.iter().map(Vec::as_slice).collect();
            let read = step(&mut runner, (&mut tables, adapters), &ids_by_text)?;
            // On a GPU, the most likely tokens, with which the next step is launched at once.
            let next = read.iter().enumerate().map(|(sequence, row)| match row {
                LogitRow::Best(best) => best.iter().map(|(id, _)| *id).take(1).collect(),
                LogitRow::Whole(_) => token_ids(gpt, sequence + number, 1),
            });
            ids = next.collect();
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    // Repeats the last step, whose shape has been captured, to count the launches outside of graphs.
    tables.iter_mut().for_each(|table| table.truncate(table.len() - 1));
    let ids: Vec<Vec<TokenId>> = (0..batch).map(|sequence| token_ids(gpt, sequence, 1)).collect();
    let ids: Vec<&[TokenId]> = ids.iter().map(Vec::as_slice).collect();
    let (n_read_bytes, n_uncaptured) = ops::count_launches(|| step(&mut runner, (&mut tables, adapters), &ids));
    let n_read_bytes = n_read_bytes?.n_read_bytes();
    // Once more without graphs, to count all launches.
    runner.stop_capture();
    tables.iter_mut().for_each(|table| table.truncate(table.len() - 1));
    let (again, n_launches) = ops::count_launches(|| step(&mut runner, (&mut tables, adapters), &ids));
    again?;
    let is_gpu = gpt.device() != Device::flex();
    let job = match adapters.len() {
        0 => format!("decode, {batch} sequences"),
        n_adapters => format!("decode, {batch} sequences, {} adapters", n_adapters.min(batch)),
    };
    // Keys in the step in the middle, the mean over all steps.
    let n_keys = batch * (args.prompt + args.steps.div_ceil(2));
    Ok(Measured {
        job,
        tok_per_sec: (args.steps * batch) as f64 / best,
        kv_bytes_per_step: Some(n_keys * gpt.kv_bytes_per_token(kv_dtype)?),
        launches_per_step: is_gpu.then_some(n_launches),
        captured_launches_per_step: is_gpu.then_some(n_launches.saturating_sub(n_uncaptured)),
        read_back_bytes_per_step: is_gpu.then_some(n_read_bytes),
        fraction_of_bandwidth: None,
        fraction_of_arithmetic: None,
        n_products: gpt.n_products(batch, batch, n_keys) as f64 / batch as f64,
    })
}

/// One forward pass up to the logits of each sequence's last row, reading back what the most likely token needs.
fn step(
    runner: &mut ModelRunner,
    (tables, adapters): (&mut [PageTable], &[Arc<LoadedAdapter>]),
    ids: &[&[TokenId]],
) -> anyhow::Result<LogitRows> {
    let adapter = |number: usize| adapters.get(number % adapters.len().max(1)).cloned();
    let parts = tables.iter_mut().zip(ids).enumerate();
    let part = |(number, (table, ids)): (usize, (_, &&[TokenId]))| StepPart {
        table,
        n_new: ids.len(),
        adapter: adapter(number),
        second_text: None,
        n_hidden: 0,
        source_len: 0,
    };
    let mut parts: Vec<StepPart<'_>> = parts.map(part).collect();
    let output = runner.step(&ids.concat(), &mut parts)?;
    let ends = ids.iter().scan(0, |end, ids| {
        *end += ids.len();
        Some(*end - 1)
    });
    let needs = Sampler::new(SamplingParams::greedy(), 0, &[]).needs(&BTreeSet::new(), &[]);
    Ok(runner.read_logits(&output, &ends.collect::<Vec<_>>(), &vec![needs; ids.len()])?)
}

/// `n` arbitrary tokens; the choice does not affect the speed.
fn token_ids(gpt: &Gpt, seed: usize, n: usize) -> Vec<TokenId> {
    let vocab_size = gpt.config().vocab_size;
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % vocab_size) as TokenId).collect()
}
