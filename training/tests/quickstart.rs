//! `hearth-train quickstart` as a user runs it: one text, one command, and the model dir opens and writes.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs,
    ops::ControlFlow,
    path::Path,
    process::{Command, Output},
};

use burn::tensor::Device;
use hearth_model::{
    generate::{GenerateOptions, generate},
    sampling::SamplingParams,
    tokenizer::{DecodeOptions, EncodeOptions},
    weights::model_dir::{LoadOptions, LoadedModel, load},
};
use serde_json::Value;

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
    let ids = generate(&model.gpt, &prompt_ids, &options, |_| ControlFlow::Continue(())).unwrap();
    model.tokenizer.decode(&ids, DecodeOptions { skip_special_tokens: true })
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_text_becomes_a_model_that_opens_and_has_learned_it() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("text.txt"), dir.path().join("model"));
    fs::write(&file, text()).unwrap();
    let output = quickstart(&file, &out, &["--json", "--steps", "150"]);
    assert!(output.status.success(), "{}", stderr(&output));

    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let val_loss = report["val_loss"].as_f64().unwrap();
    assert!(val_loss < 0.5, "a rule this plain is learned: {val_loss}\n{}", stderr(&output));
    assert_eq!(report["steps"], 150);
    for key in ["best_val_loss", "best_step", "tok_per_sec", "seconds", "n_params", "val_bpb", "val_perplexity"] {
        assert!(report[key].is_number(), "{key}");
    }
    let metrics = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter(|line| line["loss"].is_number()).count(), 150, "every step is written down");
    assert_eq!(lines.iter().rfind(|line| line["val_loss"].is_number()).unwrap()["val_loss"], report["val_loss"]);
    assert!(lines.iter().any(|line| line["sample"].is_string()));

    let model = open(&out);
    assert_eq!(continue_text(&model, "line two of "), "the höuse\nli");
    // Character level: a character that the text lacked has no id, and the message says which.
    let error = model.tokenizer.encode("line €", EncodeOptions::TEXT).unwrap_err().to_string();
    assert!(error.contains('€'), "{error}");

    // The same command again must not touch what is there.
    let again = quickstart(&file, &out, &[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("--overwrite"), "{}", stderr(&again));
    fs::write(out.join("README.md"), "mine").unwrap();
    let run = || {
        let names = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| (name.clone(), fs::read(out.join(name)).unwrap())).collect::<BTreeMap<_, _>>()
    };
    let names = || fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<BTreeSet<_>>();
    let (before, names_before) = (run(), names());
    // A run that ends before its first model replaces nothing: no settings, no metrics.
    let diverged = quickstart(&file, &out, &["--overwrite", "--steps", "30", "--lr", "1e30", "--clip", "0"]);
    assert_eq!(diverged.status.code(), Some(1));
    assert!(stderr(&diverged).contains("diverged") || stderr(&diverged).contains("NaN"), "{}", stderr(&diverged));
    assert!(run() == before, "{}", stderr(&diverged));
    assert_eq!(names(), names_before);
    // One that saves a model replaces all of the earlier run, and nothing else.
    let again = quickstart(&file, &out, &["--overwrite", "--steps", "3", "--save-dtype", "bf16"]);
    assert!(again.status.success(), "{}", stderr(&again));
    let after = run();
    let n_bytes = |run: &BTreeMap<OsString, Vec<u8>>| run[OsStr::new("model.safetensors")].len();
    assert!(n_bytes(&after) < n_bytes(&before) * 2 / 3, "bf16 takes half the room");
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    assert_eq!(after[OsStr::new("README.md")], b"mine");
    let settings: Value = serde_json::from_slice(&after[OsStr::new("train_config.json")]).unwrap();
    assert_eq!(settings["schedule"]["max_steps"], 3);
    let metrics = String::from_utf8(after[OsStr::new("metrics.jsonl")].clone()).unwrap();
    assert_eq!(metrics.lines().filter(|line| line.contains("\"loss\"")).count(), 3, "{metrics}");
    assert_eq!(names(), names_before);
    open(&out);
}

/// The working directory cannot be replaced as a whole: that is said before the first step, not at the first model.
#[test]
fn a_folder_that_cannot_be_replaced_is_refused_before_training() {
    let dir = tempfile::tempdir().unwrap();
    let (file, here) = (dir.path().join("text.txt"), dir.path().join("here"));
    fs::write(&file, text()).unwrap();
    fs::create_dir(&here).unwrap();
    let output = command(&file, Path::new("."), &[]).current_dir(&here).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("is the working directory") && message.contains("\nhint: "), "{message}");
    assert!(!message.contains("step 1"), "{message}");
    assert_eq!(fs::read_dir(&here).unwrap().count(), 0);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn the_same_seed_gives_the_same_model_and_bpe_opens_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, text()).unwrap();
    let train = |name: &str, seed: &str| {
        let out = dir.path().join(name);
        let flags = ["--vocab-size", "280", "--arch", "gpt2", "--dropout", "0.1", "--steps", "12", "--seed", seed];
        let output = quickstart(&file, &out, &flags);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(output.stdout.is_empty(), "stdout is for data alone");
        out
    };
    let weights = |out: &Path| fs::read(out.join("model.safetensors")).unwrap();
    let (one, two, other) = (train("one", "1"), train("two", "1"), train("other", "2"));
    assert!(weights(&one) == weights(&two), "the same seed");
    assert!(weights(&one) != weights(&other), "another seed");
    let model = open(&one);
    assert_eq!(model.eos_token_ids.len(), 1);
    assert!(!continue_text(&model, "anything: ünïcode €").is_empty());
}

#[test]
fn bad_input_is_refused_with_its_name_and_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("text.txt"), dir.path().join("model"));
    fs::write(&file, text()).unwrap();
    let latin1 = dir.path().join("latin1.txt");
    fs::write(&latin1, b"caf\xe9").unwrap();
    let short = dir.path().join("short.txt");
    fs::write(&short, "only a few words").unwrap();
    let missing = dir.path().join("missing.txt");
    let cases: [(&Path, &[&str], i32, &str); 8] = [
        (&missing, &[], 1, "missing.txt"),
        (&latin1, &[], 1, "offset 3"),
        (&short, &[], 1, "needs at least 33"),
        (&file, &["--preset", "huge"], 1, "`huge`"),
        (&file, &["--heads", "5"], 1, "`model.n_heads`"),
        (&file, &["--vocab-size", "100"], 1, "from 257"),
        (&file, &["--lr", "-1"], 1, "`schedule.lr`"),
        (&file, &["--steps", "many"], 2, "--steps"),
    ];
    for (file, flags, code, message) in cases {
        let output = quickstart(file, &out, flags);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{flags:?}: {}", stderr(&output));
        assert!(!out.exists(), "{flags:?} wrote something");
    }
}
