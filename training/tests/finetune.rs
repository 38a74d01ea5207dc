//! `hearth-train finetune` as a command: killed and resumed runs end with the same bits, the output of a run loads, and
//! invalid input is rejected.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use burn::tensor::Device;
use hearth_model::weights::model_dir::{self, LoadOptions};
use serde_json::{Value, json};

fn hearth_train(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hearth-train")).args(args).output().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
}

/// A small model with a chat template, trained for 4 steps; made once.
pub(crate) fn model() -> &'static Path {
    static MODEL: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, run) = MODEL.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let text: String = (0..300).map(|n| format!("What is {n}? It is {} and {}.\n", n * 7 % 10, n % 3)).collect();
        fs::write(path("text.txt"), text).unwrap();
        let (text, tokenizer, data, run) = (path("text.txt"), path("tokenizer"), path("data"), path("run"));
        succeeded(&hearth_train(&["tokenizer", &text, "--out", &tokenizer, "--vocab-size", "320", "--chat"]));
        succeeded(&hearth_train(&["prepare", &text, "--tokenizer", &tokenizer, "--out", &data]));
        let sets = ["model.arch=qwen3", "model.max_seq_len=96", "schedule.max_steps=4", "schedule.warmup_steps=1"];
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let pretrain = ["pretrain", "--data", &data, "--out", &run, "--preset", "tiny", "--device", "cpu"];
        succeeded(&hearth_train(&[&pretrain[..], &sets].concat()));
        let run = PathBuf::from(run);
        (dir, run)
    });
    run
}

pub(crate) struct Case {
    dir: tempfile::TempDir,
}

/// Gradient accumulation, packed rows, evaluations, and checkpoints between evaluations.
const SETS: [&str; 7] = [
    "model.max_seq_len=64",
    "data.tokens_per_step=192",
    "schedule.max_steps=24",
    "schedule.warmup_steps=2",
    "optim.lr=1e-3",
    "eval.every=5",
    "checkpoint.every=3",
];

impl Case {
    pub(crate) fn new() -> Case {
        let case = Case { dir: tempfile::tempdir().unwrap() };
        let line = |n: usize| {
            let messages = json!([
                { "role": "user", "content": format!("What is {n}?") },
                { "role": "assistant", "content": format!("It is {}.", n * 7 % 10) },
            ]);
            json!({ "messages": messages }).to_string() + "\n"
        };
        fs::write(case.path("train.jsonl"), (0..60).map(line).collect::<String>()).unwrap();
        let pair = |n: usize| {
            let answer = |text: String| json!([{ "role": "assistant", "content": text }]);
            let prompt = json!([{ "role": "user", "content": format!("What is {n}?") }]);
            json!({ "prompt": prompt, "chosen": answer(format!("It is {}.", n % 10)), "rejected": answer("No.".into()) })
                .to_string()
                + "\n"
        };
        fs::write(case.path("pairs.jsonl"), (0..40).map(pair).collect::<String>()).unwrap();
        case
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// With a tenth of the examples held out.
    pub(crate) fn command(&self, data: &str, out: &str, flags: &[&str]) -> Command {
        self.command_with_default_split(data, out, &[&["--set", "data.val_fraction=0.1"], flags].concat())
    }

    fn command_with_default_split(&self, data: &str, out: &str, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.arg("finetune").arg(model()).arg("--data").arg(self.path(data)).arg("--out").arg(self.path(out));
        command.args(["--device", "cpu"]).args(SETS.iter().flat_map(|set| ["--set", set])).args(flags);
        command
    }

    fn train(&self, out: &str, flags: &[&str]) -> Output {
        self.command("train.jsonl", out, flags).output().unwrap()
    }

    /// Weights or adapter, moments and metrics.
    fn bits(&self, out: &str, weights: &str) -> BTreeMap<String, Vec<u8>> {
        let checkpoint = "checkpoints/step-00000024";
        let names = [
            format!("model/{weights}"),
            format!("{checkpoint}/{weights}"),
            format!("{checkpoint}/train_state/moments.safetensors"),
        ];
        let read = |name: String| {
            let bytes = fs::read(self.path(out).join(&name)).unwrap();
            (name, bytes)
        };
        let mut bits: BTreeMap<_, _> = names.into_iter().map(read).collect();
        let metrics = fs::read_to_string(self.path(out).join("metrics.jsonl")).unwrap();
        let without_times = metrics.lines().map(|line| {
            let mut record: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
            for time in ["tok_per_sec", "seconds"] {
                record.remove(time);
            }
            Value::Object(record).to_string() + "\n"
        });
        bits.insert("metrics".to_owned(), without_times.collect::<String>().into_bytes());
        bits
    }
}

/// Kills a run several times, after a new checkpoint and another delay each time, and resumes it to its end. Its files have
/// the bits of an uninterrupted run.
fn assert_bit_identical_after_kills(data: &str, flags: &[&str], weights: &str) {
    let n_kills: usize = std::env::var("HEARTH_KILLS").ok().map_or(3, |n| n.parse().unwrap());
    let case = Case::new();
    succeeded(&case.command(data, "whole", flags).output().unwrap());
    let expected = case.bits("whole", weights);
    let flags = [flags, &["--resume"]].concat();
    let last_checkpoint = || {
        let entries = fs::read_dir(case.path("killed/checkpoints")).into_iter().flatten().flatten();
        let number = |name: &str| name.strip_prefix("step-")?.parse::<usize>().ok();
        entries.filter_map(|entry| number(entry.file_name().to_str()?)).max()
    };
    let mut n_killed = 0;
    for number in 0..n_kills {
        let before = last_checkpoint();
        let begun = Instant::now();
        let mut command = case.command(data, "killed", &flags);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut ended = None;
        while last_checkpoint() == before && ended.is_none() {
            ended = child.try_wait().unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(7 * number as u64));
        ended = ended.or(child.try_wait().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        n_killed += usize::from(ended.is_none());
        eprintln!("kill {number} after {:?}, step {:?}", begun.elapsed(), last_checkpoint());
    }
    assert!(n_killed > 0, "{flags:?}: the run ended before every kill");
    let output = case.command(data, "killed", &flags).output().unwrap();
    succeeded(&output);
    assert!(stderr(&output).contains("resumed after step "), "{flags:?}: {}", stderr(&output));
    for (name, found) in case.bits("killed", weights) {
        assert!(found == expected[&name], "{flags:?}: other bits in {name}");
    }
}

#[test]
fn lora_finetuning_resumed_after_kills_is_bit_identical() {
    assert_bit_identical_after_kills(
        "train.jsonl",
        &["--lora", "r=4,dropout=0.1", "--set", "objective.keep=2"],
        "adapter_model.safetensors",
    );
}

#[test]
fn full_finetuning_resumed_after_kills_is_bit_identical() {
    assert_bit_identical_after_kills("train.jsonl", &["--set", "model.dropout=0.1"], "model.safetensors");
}

#[test]
fn dpo_finetuning_resumed_after_kills_is_bit_identical() {
    assert_bit_identical_after_kills("pairs.jsonl", &["--set", "objective.kind=dpo"], "model.safetensors");
    assert_bit_identical_after_kills(
        "pairs.jsonl",
        &["--set", "objective.kind=dpo", "--lora"],
        "adapter_model.safetensors",
    );
}

/// Without validation data, `model/` is the last model. A folder that is not a run yet has none.
#[test]
fn branch_without_validation_data_restarts_and_restores_its_model() {
    let case = Case::new();
    let lines = fs::read_to_string(case.path("train.jsonl")).unwrap();
    fs::write(case.path("one.jsonl"), lines.lines().next().unwrap()).unwrap();
    let sets = ["schedule.kind=constant", "schedule.max_steps=4", "checkpoint.every=2"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let output = case.command("one.jsonl", "run", &sets).output().unwrap();
    succeeded(&output);
    let told = stderr(&output);
    assert!(told.contains("rows have 64 tokens (`model.max_seq_len`), the model's context has 96"), "{told}");
    let checkpoint = case.path("run/checkpoints/step-00000002");
    let from = [&sets[..], &["--from", checkpoint.to_str().unwrap()]].concat();
    // The folder does not become a run: its configuration cannot be written.
    let obstacle = case.path("branch/config.toml.hearth-partial");
    fs::create_dir_all(&obstacle).unwrap();
    let output = case.command("one.jsonl", "branch", &from).output().unwrap();
    assert!(!output.status.success() && stderr(&output).contains("config.toml`"), "{}", stderr(&output));
    fs::remove_dir(&obstacle).unwrap();
    succeeded(&case.command("one.jsonl", "branch", &from).output().unwrap());
    let weights = case.path("branch/model/model.safetensors");
    assert!(weights.is_file());
    // A complete run whose model is gone has one again.
    fs::remove_dir_all(case.path("branch/model")).unwrap();
    let resume = [&sets[..], &["--resume"]].concat();
    succeeded(&case.command("one.jsonl", "branch", &resume).output().unwrap());
    assert!(weights.is_file());
}

/// The first DPO loss is `ln 2` in every precision: the model still equals its reference.
#[test]
fn dpo_loss_starts_at_ln_2_for_full_and_lora_training() {
    let case = Case::new();
    for (out, flags) in [
        ("full", &[][..]),
        ("lora", &["--lora"]),
        ("full-bf16", &["--set", "optim.precision=bf16"]),
        ("lora-bf16", &["--lora", "--set", "optim.precision=bf16"]),
        ("lora-q8", &["--lora", "base=q8"]),
    ] {
        let steps = ["--set", "objective.kind=dpo", "--set", "schedule.max_steps=4"];
        succeeded(&case.command("pairs.jsonl", out, &[&steps, flags].concat()).output().unwrap());
        let metrics = fs::read_to_string(case.path(out).join("metrics.jsonl")).unwrap();
        let losses: Vec<f64> =
            metrics.lines().filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64()).collect();
        assert_eq!(losses.len(), 4, "{metrics}");
        assert!((losses[0] - 2_f64.ln()).abs() < 1e-6, "{out}: the first loss is {}", losses[0]);
        assert!((losses[3] - 2_f64.ln()).abs() > 1e-6, "{out}: nothing is learned");
    }
}

/// Rows are shortened to the model's context and steps to whole rows, with a message. A warmup longer than the run is
/// rejected if the user asked for it.
#[test]
fn finetune_fits_settings_to_the_model_context_or_rejects_them() {
    let case = Case::new();
    let tune = |data: &str, flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.arg("finetune").arg(model()).arg("--data").arg(case.path(data)).args(["--device", "cpu"]);
        command.args(flags).output().unwrap()
    };
    let out = case.path("run");
    let out = out.to_str().unwrap();
    // The preset's rows are longer than the model's context of 96 tokens.
    let dry_run = ["--out", out, "--dry-run", "--json", "--set", "schedule.max_steps=12"];
    let output = tune("train.jsonl", &[&dry_run[..], &["--set", "data.tokens_per_step=4096"]].concat());
    succeeded(&output);
    let told = stderr(&output);
    assert!(told.contains("rows have 96 tokens, the model's context, instead of 1024"), "{told}");
    assert!(told.contains("a step has 4032 tokens, a multiple of 96, instead of 4096"), "{told}");
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["micro_steps"], json!(42), "{plan}");
    // Fewer steps than the warmup.
    let long_warmup = ["--set", "schedule.epochs=1", "--set", "schedule.warmup_steps=500"];
    let refused = tune("train.jsonl", &[&["--out", out], &long_warmup[..]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("`schedule.warmup_steps` must be at most the steps of the run, got 500"));
    // Settings are rejected before the model is loaded: this one has no weights.
    let hollow = case.path("hollow");
    fs::create_dir(&hollow).unwrap();
    for entry in fs::read_dir(model_dir::model_of(model())).unwrap().flatten() {
        if entry.file_name() != "model.safetensors" {
            fs::copy(entry.path(), hollow.join(entry.file_name())).unwrap();
        }
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
    command.arg("finetune").arg(&hollow).arg("--data").arg(case.path("train.jsonl")).args(["--out", out]);
    let refused = command.args(["--device", "cpu"]).args(long_warmup).output().unwrap();
    let message = stderr(&refused);
    assert!(message.contains("`schedule.warmup_steps` must be at most the steps of the run, got 500"), "{message}");
    // `--inspect` rejects the settings that the run would reject.
    for (flags, message) in [
        (&["--lora", "targets=w_proj"][..], "`w_proj`"),
        (&["--set", "data.rows=windows"], "`data.rows` must be `documents` or `unpacked`"),
        (&["--set", "optim.lr=-1"], "`optim.lr` must be above 0"),
        (&["--set", "lora.r=4"], "`--set lora.r=4` is a setting of an adapter, but all weights are trained"),
        (&["--set", "lora_alpha=4"], "`lora_alpha` (LitGPT, PEFT) is here `lora.alpha`"),
        (
            &["--set", "model.max_seq_len=80", "--set", "data.tokens_per_step=200"],
            "`data.tokens_per_step` must be a multiple",
        ),
        (
            &["--set", "model.n_layers=2"],
            "`--set model.n_layers=2`: `model.n_layers=2` has no effect: it is for fresh models",
        ),
    ] {
        let output = tune("train.jsonl", &[&["--inspect", "1"], flags].concat());
        assert_eq!(output.status.code(), Some(1), "{flags:?}");
        assert!(stderr(&output).contains(message), "{flags:?}: {}", stderr(&output));
    }
    assert!(!Path::new(out).exists());
}

/// LoRA and DPO runs resume only with the model that they started with.
#[test]
fn resume_rejects_a_changed_base_model_for_lora_and_dpo() {
    let case = Case::new();
    let base = case.path("base");
    let copy = |from: &Path| {
        fs::create_dir_all(&base).unwrap();
        for entry in fs::read_dir(model_dir::model_of(from)).unwrap().flatten() {
            fs::copy(entry.path(), base.join(entry.file_name())).unwrap();
        }
    };
    copy(model());
    let tune = |data: &str, out: &str, flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.arg("finetune").arg(&base).arg("--data").arg(case.path(data)).arg("--out").arg(case.path(out));
        command
            .args(["--device", "cpu"])
            .args(["--set", "data.val_fraction=0.1"])
            .args(SETS.iter().flat_map(|set| ["--set", set]))
            .args(flags);
        command.output().unwrap()
    };
    let runs = [
        ("train.jsonl", "adapter", &["--lora"][..]),
        ("pairs.jsonl", "pairs", &["--set", "objective.kind=dpo"]),
        ("train.jsonl", "full", &[]),
    ];
    for (data, out, flags) in runs {
        succeeded(&tune(data, out, &[flags, &["--set", "schedule.max_steps=6"]].concat()));
    }
    // Another model of the same shape in its place.
    copy(&case.path("full"));
    for (data, out, flags) in runs {
        let sets = ["--resume", "--set", "schedule.max_steps=6"];
        let output = tune(data, out, &[flags, &sets].concat());
        if out == "full" {
            // All of its weights are in the checkpoint.
            succeeded(&output);
        } else {
            assert_eq!(output.status.code(), Some(1), "{out}");
            assert!(stderr(&output).contains("was made with another model than"), "{out}: {}", stderr(&output));
        }
    }
}

/// The loss falls, and the saved models and adapters load, also over a quantized base.
#[test]
fn finetuned_models_and_adapters_load_and_have_a_lower_loss() {
    let case = Case::new();
    let long = ["--json", "--set", "schedule.max_steps=60", "--set", "optim.lr=3e-3"];
    // An adapter of a model that knows nearly nothing cannot learn as much as the model.
    for (out, flags, share) in [
        ("full", &[][..], 0.7),
        ("lora", &["--lora", "r=8"], 0.95),
        ("qlora", &["--lora", "r=8,base=q4"], 0.95),
        ("kept", &["--lora", "r=8,base=q4", "--set", "optim.recompute=false"], 0.95),
        ("unpacked", &["--lora", "--set", "data.rows=unpacked"], 0.95),
    ] {
        let output = case.train(out, &[&long[..], flags].concat());
        succeeded(&output);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let first: Value = {
            let metrics = fs::read_to_string(case.path(out).join("metrics.jsonl")).unwrap();
            serde_json::from_str(metrics.lines().next().unwrap()).unwrap()
        };
        let (before, after) = (first["loss"].as_f64().unwrap(), report["best_val_loss"].as_f64().unwrap());
        assert!(after < share * before, "{out}: {before} to {after}");
        let options = LoadOptions { device: Device::flex(), dtype: None };
        let loaded = model_dir::load(&case.path(out), &options).unwrap();
        assert!(loaded.chat_template.is_some(), "{out}");
    }
    // With a quantized base, blocks are recomputed by default. The adapter has the same bits either way.
    let [values, kept] = ["qlora", "kept"].map(|out| {
        let config = fs::read_to_string(case.path(out).join("config.toml")).unwrap();
        assert!(config.contains(&format!("recompute = {}", out == "qlora")), "{config}");
        fs::read(case.path(out).join("model/adapter_model.safetensors")).unwrap()
    });
    assert_eq!(values, kept);
    // An adapter cannot be the model that a run starts from.
    let adapter = case.path("lora");
    let output = hearth_train(&[
        "finetune",
        adapter.to_str().unwrap(),
        "--data",
        case.path("train.jsonl").to_str().unwrap(),
        "--out",
        case.path("again").to_str().unwrap(),
    ]);
    assert!(stderr(&output).contains("is an adapter"), "{}", stderr(&output));
    let init = format!("model.init={}", adapter.display());
    let bench = ["bench", "--preset", "tiny", "--device", "cpu", "--steps", "1"];
    let output = hearth_train(&bench);
    succeeded(&output);
    assert!(stderr(&output).contains("device: CPU (requested)"), "{}", stderr(&output));
    let output = hearth_train(&[&bench[..], &["--set", &init]].concat());
    assert!(stderr(&output).contains("is an adapter, not a model\nhint: "), "{}", stderr(&output));
    // With LoRA, `n_params` counts the adapter's values, which are proportional to the rank.
    let base = format!("model.init={}", model().display());
    let n_params = |rank: &str| {
        let output = hearth_train(&[&bench[..], &["--json", "--set", &base, "--set", rank]].concat());
        succeeded(&output);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["n_params"].as_u64().unwrap()
    };
    assert_eq!(2 * n_params("lora.r=2"), n_params("lora.r=4"));
    let text = case.path("text.txt");
    fs::write(&text, "What is it? It is a lamp.\n".repeat(100)).unwrap();
    let (text, again) = (text.to_str().unwrap(), case.path("again"));
    let quickstart = ["quickstart", text, "--out", again.to_str().unwrap(), "--preset", "tiny", "--device", "cpu"];
    let output = hearth_train(&[&quickstart[..], &["--set", &init]].concat());
    assert!(stderr(&output).contains("is an adapter, not a model\nhint: "), "{}", stderr(&output));
}

#[test]
fn finetune_inspect_shows_examples_with_their_trained_tokens() {
    let case = Case::new();
    let data = case.path("train.jsonl");
    let args = ["finetune", model().to_str().unwrap(), "--data", data.to_str().unwrap(), "--inspect", "2"];
    let output = hearth_train(&args);
    succeeded(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("line 1: ") && text.contains("line 2: ") && !text.contains("line 3: "), "{text}");
    assert!(text.contains("60 examples, ") && text.contains(" rows of up to 56 tokens"), "{text}");
    let output = hearth_train(&[&args[..], &["--json"]].concat());
    succeeded(&output);
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[2]["examples"]), (3, &json!(60)));
    let trained = lines[0]["trained"].as_array().unwrap().iter().filter(|trained| trained == &&json!(true)).count();
    assert!(trained > 2 && trained < lines[0]["ids"].as_array().unwrap().len(), "{}", lines[0]);
    // Of preference pairs, both answers are shown.
    let pairs = case.path("pairs.jsonl");
    let args = ["finetune", model().to_str().unwrap(), "--data", pairs.to_str().unwrap(), "--inspect", "2"];
    let dpo = ["--set", "objective.kind=dpo"];
    let output = hearth_train(&[&args[..], &dpo].concat());
    succeeded(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["line 1, `chosen`: ", "line 1, `rejected`: ", "line 2, `rejected`: ", "40 pairs; 0 cut, "] {
        assert!(text.contains(part) && !text.contains("line 3"), "{part}: {text}");
    }
    let output = hearth_train(&[&args[..], &dpo, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let summary: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((text.lines().count(), &summary["pairs"], &summary["rows"]), (5, &json!(40), &json!(80)));
}

#[test]
fn finetune_validates_on_the_files_for_it_or_on_nothing_and_resumes_so() {
    let case = Case::new();
    let lines = fs::read_to_string(case.path("train.jsonl")).unwrap();
    let parts: Vec<String> = lines.lines().collect::<Vec<_>>().chunks(20).map(|part| part.join("\n")).collect();
    for (name, part) in ["set/train.jsonl", "set/validation.jsonl", "set/test.jsonl"].iter().zip(&parts) {
        fs::create_dir_all(case.path("set")).unwrap();
        fs::write(case.path(name), part).unwrap();
    }
    let run = |data: &str, out: &str, flags: &[&str]| {
        let flags = [&["--set", "schedule.max_steps=6", "--json"], flags].concat();
        let output = case.command_with_default_split(data, out, &flags).output().unwrap();
        succeeded(&output);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (report["val_loss"].as_f64(), stderr(&output))
    };
    let (named, said) = run("set", "named", &[]);
    assert!(named.is_some() && said.contains("40 examples") && said.contains("20 for validation"), "{said}");
    assert!(said.contains("left out: `test.jsonl` (for tests, by name)"), "{said}");
    let output = case.command("set", "share", &["--set", "data.val_fraction=0.2"]).output().unwrap();
    assert!(
        !output.status.success() && stderr(&output).contains("there are 20 examples for validation already"),
        "{}",
        stderr(&output)
    );
    let validation = case.path("set/validation.jsonl");
    let (given, said) = run("set/train.jsonl", "given", &["--val", validation.to_str().unwrap()]);
    assert_eq!(given, named, "{said}");
    assert_eq!(run("set", "named", &["--resume"]).0, named);
    let none = ["--set", "data.val_fraction=0"];
    let (loss, said) = run("set/train.jsonl", "none", &none);
    assert!(loss.is_none() && said.contains("20 examples") && case.path("none/model").is_dir(), "{said}");
    // Another validation split is other data.
    let output = case
        .command_with_default_split("set/train.jsonl", "named", &["--set", "schedule.max_steps=6", "--resume"])
        .output()
        .unwrap();
    assert!(!output.status.success() && stderr(&output).contains("made with other data"), "{}", stderr(&output));
}

#[test]
fn finetune_rejects_invalid_data_and_settings_before_the_first_step() {
    let case = Case::new();
    let write = |name: &str, text: &str| fs::write(case.path(name), text).unwrap();
    write(
        "broken.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n{\"messages\": [\n",
    );
    write("alone.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
    write("long.jsonl", &(json!({ "text": "What is it? ".repeat(200) }).to_string() + "\n"));
    write("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\"}\n");
    write("kept.jsonl", "{\"keep\": \"What is it?\"}\n");
    write("two.jsonl", "{\"text\": \"What is it?\"}\n{\"text\": \"What\", \"keep\": \"is it?\"}\n");
    write("mixed.jsonl", "{\"text\": \"What is it?\"}\n{\"keep\": \"What is it?\"}\n");
    write(
        "apart.jsonl",
        "{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], \"rejected\": \
         [{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\"}]}\n",
    );
    let same = json!({ "prompt": "a", "chosen": "b", "rejected": "b" }).to_string() + "\n";
    write("same.jsonl", &same.repeat(3));
    write("rendered.jsonl", &(json!({ "text": "<|user|>\nHi</s>\n<|assistant|>\nHo</s>" }).to_string() + "\n"));
    for (data, flags, contains) in [
        ("same.jsonl", &["--set", "objective.kind=dpo"][..], &["in 3 of them", "are the same"][..]),
        ("rendered.jsonl", &[], &["rendered.jsonl", "line 1", "its `<|user|>` is no token of the model"]),
        ("missing.jsonl", &[], &["missing.jsonl"]),
        ("broken.jsonl", &[], &["broken.jsonl", "line 2"]),
        ("alone.jsonl", &[], &["alone.jsonl", "line 1"]),
        ("long.jsonl", &[], &["long.jsonl", "data.too_long=cut"]),
        ("train.jsonl", &["--lora", "targets=q_proj+w_proj"], &["`lora.targets`", "`w_proj`", "`q_proj`"]),
        ("train.jsonl", &["--lora", "r=0"], &["`lora.r`"]),
        ("train.jsonl", &["--lora", "rank=3"], &["`lora.rank`", "did you mean"]),
        ("train.jsonl", &["--lora", "r"], &["`r` has no `=`"]),
        ("train.jsonl", &["--lora", "base=q3"], &["q3"]),
        ("train.jsonl", &["--set", "objective.kind=dpo"], &["train.jsonl", "line 1"]),
        ("pairs.jsonl", &["--set", "objective.kind=dpo"], &["pairs.jsonl", "rejected"]),
        ("train.jsonl", &["--set", "objective.kind=kto"], &["kto"]),
        ("train.jsonl", &["--set", "objective.keep=1"], &["`objective.keep`", "--lora"]),
        ("train.jsonl", &["--lora", "--set", "objective.keep=-1"], &["`objective.keep`", "-1"]),
        ("kept.jsonl", &["--lora"], &["kept.jsonl", "line 1", "--set objective.keep=1"]),
        ("kept.jsonl", &["--lora", "--set", "objective.keep=1"], &["no example is trained"]),
        ("two.jsonl", &["--lora", "--set", "objective.keep=1"], &["two.jsonl", "line 2", "both `keep` and `text`"]),
        ("mixed.jsonl", &["--lora", "--set", "objective.keep=1"], &["all have `keep`", "data.val_fraction"]),
        (
            "apart.jsonl",
            &["--set", "objective.kind=dpo"],
            &["apart.jsonl", "line 1", "do not begin with the same message"],
        ),
        ("train.jsonl", &["--lora", "--set", "objective.keep=1e300"], &["`objective.keep`", "1000000"]),
        ("train.jsonl", &["--lora", "alpha=1e38"], &["`lora.alpha`", "1000000"]),
        ("train.jsonl", &["--set", "model.n_layers=1"], &["`model.n_layers=1` has no effect"]),
        ("train.jsonl", &["--set", "lora.r=8"], &["`--set lora.r=8`", "--lora"]),
    ] {
        let output = case.command(data, "refused", flags).output().unwrap();
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{data} {flags:?}: {message}");
        for part in contains {
            assert!(message.contains(part), "{data} {flags:?}: {message}");
        }
        assert!(message.contains("\nhint: "), "{data} {flags:?}: {message}");
        assert!(!message.contains("step 1/"), "{data} {flags:?}: {message}");
    }
    // A quantized model trains only as an adapter's base.
    let quantized = case.path("quantized");
    let gpt =
        model_dir::load(model(), &LoadOptions { device: Device::flex(), dtype: Some(hearth_model::ops::Dtype::Q8) });
    let options = model_dir::SaveOptions {
        extra_files: model_dir::files_beside_weights(model()).unwrap(),
        ..model_dir::SaveOptions::default()
    };
    model_dir::save(&quantized, &gpt.unwrap().gpt, &options).unwrap();
    let train = |out: &str, flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.arg("finetune").arg(&quantized).arg("--data").arg(case.path("train.jsonl"));
        command.arg("--out").arg(case.path(out)).args(["--device", "cpu"]);
        command
            .args(["--set", "data.val_fraction=0.1"])
            .args(SETS.iter().flat_map(|set| ["--set", set]))
            .args(flags)
            .output()
            .unwrap()
    };
    let output = train("whole", &[]);
    assert!(stderr(&output).contains("quantized matrices, which do not train\nhint: "), "{}", stderr(&output));
    succeeded(&train("adapter", &["--lora"]));
    // A run does not resume with other adapter settings.
    succeeded(&case.train("run", &["--lora", "r=4", "--set", "schedule.max_steps=6"]));
    let output = case.train("run", &["--lora", "r=8", "--set", "schedule.max_steps=6", "--resume"]);
    assert!(stderr(&output).contains("`lora.r` was `4` and is now `8`"), "{}", stderr(&output));
}
