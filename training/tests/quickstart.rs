//! `hearth-train quickstart` as a user runs it: one text, one command, and the model dir opens and writes.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use burn::tensor::Device;
use hearth_model::{
    decode::sampling::SamplingParams,
    text::tokenizer::{DecodeOptions, EncodeOptions},
    weights::model_dir::{LoadOptions, LoadedModel, load},
};
use serde_json::Value;

use crate::plain_generation::{GenerateOptions, generate};

/// A text with a rule that a tiny model learns in seconds.
fn text() -> String {
    (0..400).map(|line| format!("line {} of the höuse\n", ["one", "two", "three"][line % 3])).collect()
}

fn command(text: &Path, out: &Path, flags: &[&str]) -> Command {
    let preset: &[&str] = if flags.contains(&"--preset") { &[] } else { &["--preset", "tiny"] };
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
    command.arg("quickstart").arg(text).arg("--out").arg(out).args(["--device", "cpu"]).args(preset).args(flags);
    command
}

fn quickstart(text: &Path, out: &Path, flags: &[&str]) -> Output {
    command(text, out, flags).output().unwrap()
}

fn open(dir: &Path) -> LoadedModel {
    load(dir, &LoadOptions { device: Device::flex(), dtype: None }).unwrap()
}

fn continue_text(model: &LoadedModel, prompt: &str) -> String {
    let prompt_ids = model.tokenizer.encode(prompt, EncodeOptions::PROMPT).unwrap();
    let options = GenerateOptions {
        max_tokens: 12,
        kv_dtype: None,
        sampling: SamplingParams::greedy(),
        eos_token_ids: Vec::new(),
    };
    let ids = generate(&model.gpt, &prompt_ids, &options);
    model.tokenizer.decode(&ids, DecodeOptions { skip_special_tokens: true })
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn quickstart_trains_a_model_that_opens_and_has_learned_the_text() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("text.txt"), dir.path().join("run"));
    fs::write(&file, text()).unwrap();
    let flags =
        ["--json", "--set", "schedule.max_steps=150", "--set", "model.arch=llama", "--set", "checkpoint.every=40"];
    let output = quickstart(&file, &out, &flags);
    assert!(output.status.success(), "{}", stderr(&output));

    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let val_loss = report["val_loss"].as_f64().unwrap();
    assert!(val_loss < 0.5, "a rule this plain is learned: {val_loss}\n{}", stderr(&output));
    assert_eq!((&report["steps"], &report["complete"]), (&150.into(), &true.into()));
    for key in ["best_val_loss", "best_step", "tok_per_sec", "seconds", "n_params", "val_bpb", "val_perplexity"] {
        assert!(report[key].is_number(), "{key}");
    }
    let metrics = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter(|line| line["loss"].is_number()).count(), 150, "every step is written down");
    assert_eq!(lines.iter().rfind(|line| line["val_loss"].is_number()).unwrap()["val_loss"], report["val_loss"]);
    assert!(lines.iter().any(|line| line["sample"].is_string()));
    let config = fs::read_to_string(out.join("config.toml")).unwrap();
    assert!(config.contains("max_steps = 150") && config.contains("arch = \"llama\""), "{config}");
    assert!(fs::read_to_string(out.join("curves.svg")).unwrap().contains("validation loss"));
    assert_eq!(fs::read_dir(out.join("tensorboard")).unwrap().count(), 1);
    let names = fs::read_dir(out.join("checkpoints")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["step-00000120", "step-00000150"], "the last two are kept");

    // The run opens as its best model, and a checkpoint as a model.
    let model = open(&out);
    assert_eq!(continue_text(&model, "line two of "), "the höuse\nli");
    open(&out.join("checkpoints/step-00000150"));
    // Character level: a character that the text lacked has no id, and the message says which.
    let error = model.tokenizer.encode("line €", EncodeOptions::TEXT).unwrap_err().to_string();
    assert!(error.contains('€'), "{error}");

    let sample = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.arg("sample").arg(&out).arg("line two of ").args(["--device", "cpu"]).args(flags).output().unwrap()
    };
    let greedy = ["--set", "sample.temperature=0", "--set", "sample.max_tokens=12"];
    let output = sample(&greedy);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the höuse\nli\n", "{}", stderr(&output));
    let output = sample(&[&greedy[..], &["--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["text"], &report["n_tokens"]), (&"the höuse\nli".into(), &12.into()));
    // Several samples have one seed after the other.
    let [one, other] = ["5", "6"].map(|seed| sample(&["--json", "--set", &format!("seed={seed}")]));
    let several = sample(&["--json", "--set", "seed=5", "-n", "2"]);
    let samples: Value = serde_json::from_slice(&several.stdout).unwrap();
    let [one, other]: [Value; 2] = [one, other].map(|output| serde_json::from_slice(&output.stdout).unwrap());
    assert_eq!(samples["samples"], serde_json::json!([one, other]));
    assert_eq!(sample(&[&greedy[..], &["-n", "2"]].concat()).status.code(), Some(1), "they would be equal");

    // Without `sample.max_tokens`, generation ends when the context of 32 tokens is full.
    let output = sample(&["--json", "--set", "sample.temperature=0"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let n_prompt = "line two of ".len() as u64;
    assert_eq!(report["n_tokens"], 32 - n_prompt);
    assert!(stderr(&output).contains("it fills the model's context of 32 tokens"), "{}", stderr(&output));

    let written = dir.path().join("written.txt");
    let to_file = [&greedy[..], &["--out", written.to_str().unwrap()]].concat();
    assert!(sample(&to_file).status.success());
    assert_eq!(fs::read_to_string(&written).unwrap(), "the höuse\nli\n");
    // A command that fails leaves an existing output file as it is.
    let failed = sample(&[&to_file[..], &["--set", "sample.temperature=-1"]].concat());
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    assert_eq!(fs::read_to_string(&written).unwrap(), "the höuse\nli\n");

    // Running the same command again fails and leaves the run as it is.
    let again = quickstart(&file, &out, &[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("--resume"), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(out.join("metrics.jsonl")).unwrap(), metrics);
}

#[test]
fn diverging_run_reports_skipped_steps_and_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("text.txt"), dir.path().join("run"));
    fs::write(&file, text()).unwrap();
    let output = quickstart(&file, &out, &["--set", "optim.lr=1e30", "--set", "optim.clip=0"]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("diverged") && message.contains("skipped") && message.contains("hint"), "{message}");
}

#[test]
fn same_seed_gives_bit_identical_weights_and_another_seed_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, text()).unwrap();
    let train = |name: &str, seed: &str| {
        let out = dir.path().join(name);
        let sets =
            ["data.vocab_size=280", "model.dropout=0.1", "schedule.max_steps=12", "checkpoint.save_dtype=bf16", seed];
        let flags: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let output = quickstart(&file, &out, &flags);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(output.stdout.is_empty(), "stdout is for data alone");
        out
    };
    let weights = |out: &Path| fs::read(out.join("model/model.safetensors")).unwrap();
    let (one, two, other) = (train("one", "seed=1"), train("two", "seed=1"), train("other", "seed=2"));
    assert!(weights(&one) == weights(&two), "the same seed");
    assert!(weights(&one) != weights(&other), "another seed");
    let checkpoint = fs::read(one.join("checkpoints/step-00000012/model.safetensors")).unwrap();
    assert!(weights(&one).len() < checkpoint.len() * 2 / 3, "bf16 takes half the room of f32");
    let model = open(&one);
    assert_eq!(model.eos_token_ids.len(), 1);
    assert!(!continue_text(&model, "anything: ünïcode €").is_empty());
}

#[test]
fn dry_run_reports_parameters_and_memory_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("text.txt"), dir.path().join("run"));
    fs::write(&file, text()).unwrap();
    let output = quickstart(&file, &out, &["--dry-run"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && shown.contains("parameters") && shown.contains("peak memory"), "{shown}");
    let output = quickstart(&file, &out, &["--dry-run", "--json", "--set", "data.tokens_per_step=1024"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["micro_steps"], &report["n_partial_sums"]), (&4.into(), &3.into()));
    assert!(!out.exists());
}

#[test]
fn few_steps_are_trained_with_a_warmup_that_fits_and_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("text.txt"), dir.path().join("run"));
    fs::write(&file, text()).unwrap();
    let few = ["--set", "schedule.max_steps=3", "--set", "sample.every=0"];
    let output = quickstart(&file, &out, &few);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("settings that follow the data: `schedule.warmup_steps=0`"),
        "{}",
        stderr(&output)
    );
    assert!(stderr(&output).contains("warning: the run has only 3 updates"), "{}", stderr(&output));
    let config = fs::read_to_string(out.join("config.toml")).unwrap();
    assert!(
        config.contains("warmup_steps = 0") && !config.contains("muon") && !config.contains("cooldown"),
        "{config}"
    );
    // What the user asked for stays, or is refused.
    let output =
        quickstart(&file, &dir.path().join("other"), &[&few[..], &["--set", "schedule.warmup_steps=4"]].concat());
    assert!(stderr(&output).contains("`schedule.warmup_steps` must be at most the steps of the run, got 4 and 3"));
}

#[test]
fn quickstart_rejects_an_initial_model_with_another_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let (file, other) = (dir.path().join("text.txt"), dir.path().join("other.txt"));
    fs::write(&file, text()).unwrap();
    // The same number of distinct characters, but other ones.
    fs::write(&other, text().replace('h', "x")).unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let few = ["--set", "schedule.max_steps=2", "--set", "schedule.warmup_steps=1", "--set"];
    assert!(quickstart(&file, &first, &[&few[..], &["seed=1"]].concat()).status.success());
    let init = format!("model.init={:?}", first);
    let output = quickstart(&other, &second, &[&few[..], &[&init]].concat());
    let error = stderr(&output);
    assert!(!output.status.success() && error.contains("another tokenizer than the model"), "{error}");
    assert!(error.contains("\nhint: ") && !second.exists(), "{error}");
    let output = quickstart(&file, &second, &[&few[..], &[&init]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn quickstart_rejects_bad_input_by_name_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("text.txt"), dir.path().join("model"));
    fs::write(&file, text()).unwrap();
    let latin1 = dir.path().join("latin1.txt");
    fs::write(&latin1, b"caf\xe9").unwrap();
    let short = dir.path().join("short.txt");
    fs::write(&short, "only a few words").unwrap();
    let missing = dir.path().join("missing.txt");
    let documents = dir.path().join("documents.jsonl");
    fs::write(&documents, format!("{{\"text\": {:?}}}\n", text())).unwrap();
    let cases: [(&Path, &[&str], i32, &str); 13] = [
        (&documents, &[], 1, "is a file of documents"),
        (&missing, &[], 1, "missing.txt"),
        (&latin1, &[], 1, "offset 3"),
        (&short, &[], 1, "requires at least 33"),
        (&file, &["--preset", "huge"], 1, "`huge`"),
        (&file, &["--config", "nowhere.toml"], 1, "`nowhere.toml`"),
        (&file, &["--set", "model.n_heads=5"], 1, "`model.n_heads`"),
        (&file, &["--set", "data.vocab_size=100"], 1, "from 257"),
        (&file, &["--set", "optim.lr=-1"], 1, "`optim.lr`"),
        (&file, &["--set", "schedule.max_steps=many"], 1, "many"),
        (&file, &["--set", "max_steps=3"], 1, "`schedule.max_steps`"),
        (&file, &["--from", "nowhere"], 1, "`nowhere`"),
        (&file, &["--steps", "3"], 2, "--steps"),
    ];
    for (file, flags, code, message) in cases {
        let output = quickstart(file, &out, flags);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{flags:?}: {}", stderr(&output));
        assert!(!out.exists(), "{flags:?} wrote something");
    }
}
