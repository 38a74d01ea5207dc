//! Measures a card in one run of bounded time: JSON lines, one for each case, each written before the next is measured.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;
use burn::tensor::Device;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::{
    Choice, Size,
    ops::Dtype,
    ops::cube::bench::{
        Case, Gpu,
        cases::{self, Layer, Shape},
        ceilings, sweeps,
        timing::{Effort, time},
    },
};

/// The arguments of `card`.
#[derive(Args)]
pub struct CardArgs {
    #[command(flatten)]
    choice: Choice,
    /// Seconds for everything
    #[arg(long, default_value_t = 570)]
    seconds: u64,
    /// File to write, besides standard output
    #[arg(long)]
    out: Option<PathBuf>,
    /// Parts to run, in order; all by default
    #[arg(long, num_args = 1.., value_delimiter = ',')]
    parts: Vec<String>,
    /// A command of the part `end-to-end`, such as `target/release/hearth bench --random docs/shapes/llama-1b --device gpu` (repeatable)
    #[arg(long = "run", value_name = "COMMAND")]
    runs: Vec<String>,
    /// A command of the part `peers`, such as `python model/kernels-alone/gpu/peers.py` (repeatable)
    #[arg(long = "peer", value_name = "COMMAND")]
    peers: Vec<String>,
}

/// The arguments of `chain`.
#[derive(Args)]
pub struct ChainArgs {
    #[command(flatten)]
    choice: Choice,
    /// Launches in a submission
    #[arg(long)]
    tasks: usize,
}

/// The parts, and their shares of the time. What a part leaves goes to the later ones.
const PARTS: [(&str, u64); 9] = [
    ("ceilings", 4),
    ("launches", 4),
    ("submissions", 6),
    ("kernels", 18),
    ("gemv", 12),
    ("few-rows", 10),
    ("products", 12),
    ("end-to-end", 17),
    ("peers", 17),
];

/// Writes lines, and knows when to stop.
struct Report {
    out: Option<File>,
    begun: Instant,
    part: &'static str,
    /// When the part must end.
    end: Instant,
    n_left_out: usize,
    /// Cases of Hearth's that failed, or whose results are wrong.
    n_failed: usize,
}

impl Report {
    fn line(&mut self, fields: Value) -> anyhow::Result<()> {
        let mut line = Map::new();
        line.insert("at".to_owned(), json!((self.begun.elapsed().as_secs_f64() * 100.0).round() / 100.0));
        line.insert("part".to_owned(), json!(self.part));
        line.extend(fields.as_object().cloned().unwrap_or_default());
        let line = Value::Object(line).to_string();
        println!("{line}");
        std::io::stdout().flush()?;
        if let Some(out) = &mut self.out {
            writeln!(out, "{line}").context("cannot write the file of `--out`")?;
            out.sync_data().context("cannot write the file of `--out`")?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Times `case`, unless the part's time is over. A case that fails is a line too.
    fn time(&mut self, gpu: &Gpu, case: &Case, effort: Effort) -> anyhow::Result<()> {
        if self.is_over() {
            self.n_left_out += 1;
            return Ok(());
        }
        let timed = match time(gpu, case, effort) {
            Ok(timed) => timed,
            Err(error) => {
                self.n_failed += 1;
                return self.line(json!({ "case": case.name, "failed": error.to_string() }));
            }
        };
        let mut fields = json!({
            "case": case.name,
            "us": round(timed.median * 1e6),
            "us_least": round(timed.least * 1e6),
            "samples": timed.n,
        });
        if case.bytes > 0 {
            fields["gb_per_s"] = json!(round(case.bytes as f64 / timed.median / 1e9));
        }
        if case.macs > 0 {
            fields["tflop_per_s"] = json!(round(2.0 * case.macs as f64 / timed.median / 1e12));
        }
        if let Some(error) = timed.error {
            fields["error"] = json!(error);
            if error.is_nan() || error > MOST_ERROR {
                self.n_failed += 1;
                fields["failed"] = json!(format!("an error above {MOST_ERROR}"));
            }
        }
        self.line(fields)
    }
}

/// The largest error of a result, relative to the sum of the magnitudes of its terms: that of operands of bf16, of which one has
/// 8 bits.
const MOST_ERROR: f64 = 8e-3;

/// Four digits.
fn round(value: f64) -> f64 {
    let digits = 10f64.powf(3.0 - value.abs().max(1e-12).log10().floor());
    (value * digits).round() / digits
}

/// Runs `card`.
///
/// # Errors
/// If there is no such device, a part is unknown, a file cannot be written, or at the end if a case failed.
pub fn run(args: &CardArgs) -> anyhow::Result<()> {
    let known = PARTS.map(|(name, _)| name);
    if let Some(part) = args.parts.iter().find(|part| !known.contains(&part.as_str())) {
        anyhow::bail!("`--parts` must be among {}, got `{part}`", known.join(", "));
    }
    let out = args.out.as_ref().map(File::create).transpose().context("cannot create the file of `--out`")?;
    let begun = Instant::now();
    let mut report = Report { out, begun, part: "start", end: begun, n_left_out: 0, n_failed: 0 };
    let parts: Vec<_> =
        PARTS.iter().filter(|(name, _)| args.parts.is_empty() || args.parts.iter().any(|part| part == name)).collect();
    let device = args.choice.device.open(None)?;
    let gpu = Gpu::open(&device);
    report.line(about(&gpu))?;
    let total = Duration::from_secs(args.seconds);
    let mut left: u64 = parts.iter().map(|(_, share)| share).sum();
    for &&(name, share) in &parts {
        let time = total.saturating_sub(begun.elapsed());
        (report.part, report.end, report.n_left_out) = (name, Instant::now() + time * share as u32 / left as u32, 0);
        left -= share;
        // A broken part must not cost the others.
        if let Err(error) = run_part(&mut report, args, &gpu, &device) {
            report.n_failed += 1;
            report.line(json!({ "failed": error.to_string() }))?;
        }
        if report.n_left_out > 0 {
            let n = report.n_left_out;
            report.line(json!({ "left_out": n }))?;
        }
    }
    report.part = "end";
    report.line(json!({ "failed": report.n_failed }))?;
    anyhow::ensure!(report.n_failed == 0, "{} cases failed: see the lines with `failed`", report.n_failed);
    Ok(())
}

/// What is measured: card, driver and clocks.
fn about(gpu: &Gpu) -> Value {
    let properties = gpu.client.properties();
    let smi = Command::new("nvidia-smi")
        .args([
            "--query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu",
            "--format=csv,noheader",
        ])
        .output();
    let hardware = &properties.hardware;
    json!({
        "device": properties.identity.name,
        "compiler": gpu.client.name(),
        "nvidia_smi": smi.ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        "subgroup": [hardware.plane_size_min, hardware.plane_size_max],
        "shared_memory": hardware.max_shared_memory_size,
        "largest_buffer": properties.memory.max_page_size,
        "matrix_instructions": properties.features.matmul.cmma.iter().map(|found| format!("{found:?}")).collect::<Vec<_>>(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}

fn run_part(report: &mut Report, args: &CardArgs, gpu: &Gpu, device: &Device) -> anyhow::Result<()> {
    let is_tiny = args.choice.size == Size::Tiny;
    let effort = match is_tiny {
        true => Effort { chain: 4, warm: Duration::ZERO, time: Duration::from_millis(1) },
        false => Effort { chain: 64, warm: Duration::from_millis(60), time: Duration::from_millis(40) },
    };
    match report.part {
        "ceilings" => {
            let n_bytes = if is_tiny { 1 << 20 } else { 2 << 30 };
            // Wakes the card.
            let begun = Instant::now();
            while !is_tiny && begun.elapsed() < Duration::from_millis(500) {
                ceilings::read_bandwidth(n_bytes, device)?;
            }
            for _ in 0..2 {
                report.line(
                    json!({ "case": "read", "gb_per_s": round(ceilings::read_bandwidth(n_bytes, device)? / 1e9) }),
                )?;
            }
            if !is_tiny {
                let rate = ceilings::multiply_rate(device)?;
                report.line(json!({ "case": "multiply f32", "tflop_per_s": round(2.0 * rate / 1e12) }))?;
            }
            let once = Effort { chain: 2, ..effort };
            for case in ceilings::fragments(gpu, if is_tiny { 1 } else { 132 * 16 }) {
                report.time(gpu, &case, once)?;
            }
            Ok(())
        }
        "launches" => launches(report, gpu, effort),
        "submissions" => submissions(report, args),
        "kernels" => {
            let visit = |case: &Case| report.time(gpu, case, Effort { chain: chain_of(case, effort.chain), ..effort });
            cases::for_each(gpu, is_tiny, visit)
        }
        "gemv" => sweeps::gemv(gpu, is_tiny, &mut |case| report.time(gpu, case, effort)),
        "few-rows" => {
            let mut visit =
                |case: &Case| report.time(gpu, case, Effort { chain: chain_of(case, effort.chain), ..effort });
            let shape = if is_tiny { Shape::TINY } else { Shape::LLAMA_1B };
            sweeps::few_rows(gpu, is_tiny, &mut visit)?;
            for n_rows in if is_tiny { vec![] } else { vec![16, 64] } {
                cases::attend(gpu, shape, n_rows, 200, &mut visit)?;
            }
            Ok(())
        }
        "products" => sweeps::products(gpu, is_tiny, &mut |case| {
            report.time(gpu, case, Effort { chain: chain_of(case, effort.chain), ..effort })
        }),
        "end-to-end" => args.runs.iter().try_for_each(|command| foreign(report, command)),
        "peers" => args.peers.iter().try_for_each(|command| foreign(report, command)),
        part => unreachable!("no part {part}"),
    }
}

/// Fewer launches of what takes long anyway: a chain of some milliseconds.
fn chain_of(case: &Case, most: usize) -> usize {
    let flop = 2.0 * case.macs as f64;
    // A product of a prompt, at a modest rate.
    let seconds = flop / 30e12;
    ((0.02 / seconds.max(1e-9)) as usize).clamp(1, most)
}

/// Empty launches: captured, one by one, and alone with what is read back.
fn launches(report: &mut Report, gpu: &Gpu, effort: Effort) -> anyhow::Result<()> {
    let case = ceilings::nothing(gpu);
    for chain in [1, 16, 64, 256] {
        let timed = time(gpu, &case, Effort { chain, ..effort })?;
        report.line(json!({ "case": format!("empty, captured {chain}"), "us": round(timed.median * 1e6), "us_least": round(timed.least * 1e6) }))?;
    }
    let rounds = if effort.chain < 64 { 8 } else { 256 };
    let mut samples: Vec<[f64; 2]> = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        let output = case.launch();
        let launched = begun.elapsed();
        gpu.wait(&output)?;
        samples.push([launched, begun.elapsed()].map(|time| time.as_secs_f64() * 1e6));
    }
    for (at, name) in ["launch alone", "launch and read back"].into_iter().enumerate() {
        let mut times: Vec<f64> = samples.iter().map(|sample| sample[at]).collect();
        times.sort_by(f64::total_cmp);
        report.line(json!({ "case": name, "us": round(times[times.len() / 2]), "us_least": round(times[0]) }))?;
    }
    Ok(())
}

/// The same chain with other numbers of launches in a submission, each in a process of its own.
fn submissions(report: &mut Report, args: &CardArgs) -> anyhow::Result<()> {
    let is_tiny = args.choice.size == Size::Tiny;
    let this = std::env::current_exe()?;
    for tasks in if is_tiny { vec![8, 64] } else { vec![8, 16, 32, 64, 128] } {
        if report.is_over() {
            report.n_left_out += 1;
            continue;
        }
        let mut command = Command::new(&this);
        command.args(["chain", "--tasks", &tasks.to_string(), "--device", args.choice.device.name()]);
        if is_tiny {
            command.args(["--size", "tiny"]);
        }
        lines_of(report, command, &format!("tasks={tasks}"))?;
    }
    Ok(())
}

/// Runs `chain`: what `submissions` reads.
///
/// # Errors
/// If there is no such device, or it fails.
pub fn run_chain(args: &ChainArgs) -> anyhow::Result<()> {
    let gpu = Gpu::open(&args.choice.device.open(Some(args.tasks))?);
    let is_tiny = args.choice.size == Size::Tiny;
    let effort = match is_tiny {
        true => Effort { chain: 32, warm: Duration::ZERO, time: Duration::from_millis(1) },
        false => Effort { chain: 256, warm: Duration::from_millis(500), time: Duration::from_millis(200) },
    };
    let timed = time(&gpu, &ceilings::nothing(&gpu), effort)?;
    println!("{}", json!({ "us_empty": round(timed.median * 1e6), "us_empty_least": round(timed.least * 1e6) }));
    // The products of one block for one sequence, one after the other.
    let shape = if is_tiny { Shape::TINY } else { Shape::LLAMA_1B };
    let layer = Layer::new(&gpu, shape, Dtype::F16);
    layer.decode(&gpu, 1, &mut |case| {
        let timed = time(&gpu, case, Effort { chain: effort.chain / 4, ..effort })?;
        println!("{}", json!({ "case": case.name, "us": round(timed.median * 1e6) }));
        Ok(())
    })
}

/// Runs a command of somebody's until the part's time is over.
fn foreign(report: &mut Report, command: &str) -> anyhow::Result<()> {
    let mut words = command.split_whitespace();
    let program = words.next().context("a command is empty")?;
    let mut run = Command::new(program);
    run.args(words);
    lines_of(report, run, command)
}

/// Passes on the JSON lines that `command` prints.
fn lines_of(report: &mut Report, mut command: Command, name: &str) -> anyhow::Result<()> {
    if report.is_over() {
        report.n_left_out += 1;
        return Ok(());
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let mut child = child.with_context(|| format!("cannot run `{name}`"))?;
    let output = child.stdout.take().context("the command has no output")?;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    loop {
        match receiver.recv_timeout(report.end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Ok(value @ Value::Object(_)) = serde_json::from_str(&line) {
                    report.line(json!({ "run": name, "result": value }))?;
                }
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                return report.line(json!({ "run": name, "failed": "its time was over" }));
            }
        }
    }
    let status = child.wait()?;
    if !status.success() {
        report.line(json!({ "run": name, "failed": status.to_string() }))?;
    }
    Ok(())
}
