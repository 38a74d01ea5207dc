//! `hearth-train eval` as a command: what it prints, what it writes, and what it rejects before the model is opened.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

use crate::finetune::model;

fn eval(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hearth-train")).arg("eval").args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().last().unwrap()).unwrap()
}

fn tasks(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/eval").join(name)
}

#[test]
fn eval_treats_empty_environment_variables_as_unset() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
    command.args(["eval", "loss", "nowhere", "--data", "text.txt"]).env("HEARTH_DEVICE", "").env("HEARTH_THREADS", "");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("`nowhere`"), "{}", stderr(&output));
}

/// Both evaluate document by document: `eval loss`, and `pretrain` with `data.rows=documents`.
#[test]
fn eval_loss_of_prepared_data_matches_the_validation_loss_of_training() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let line = |n: usize| format!("{{\"text\": \"What is {n}? It is {} and {}.\"}}\n", n * 7 % 10, n % 3);
    let (text, tokenizer, data, run) = (path("all.jsonl"), path("tokenizer"), path("data"), path("run"));
    fs::write(&text, (0..60).map(line).collect::<String>()).unwrap();
    let hearth_train = |args: &[&str]| {
        let args = [args, &["--json"]].concat();
        json(&Command::new(env!("CARGO_BIN_EXE_hearth-train")).args(args).output().unwrap())
    };
    hearth_train(&["tokenizer", &text, "--out", &tokenizer, "--vocab-size", "300"]);
    let prepared =
        hearth_train(&["prepare", &text, "--tokenizer", &tokenizer, "--out", &data, "--val-fraction", "0.3"]);
    let sets = ["data.rows=documents", "model.max_seq_len=64", "schedule.max_steps=4", "schedule.warmup_steps=1"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let pretrain = ["pretrain", "--data", &data, "--out", &run, "--preset", "tiny", "--device", "cpu"];
    let trained = hearth_train(&[&pretrain[..], &sets].concat());
    let found = json(&eval(&["loss", &run, "--data", &data, "--device", "cpu", "--json"]));
    let [n_documents, n_tokens] = ["documents", "tokens"].map(|what| prepared["data"]["val"][what].as_u64().unwrap());
    assert!(n_documents > 5, "{prepared}");
    assert_eq!((&found["n_documents"], &found["n_windows"]), (&n_documents.into(), &n_documents.into()));
    assert_eq!(found["n_scored"], n_tokens - n_documents, "all tokens but the first of each document");
    for (found, expected) in [(&found["loss"], &trained["val_loss"]), (&found["bits_per_byte"], &trained["val_bpb"])] {
        let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
        assert!((found - expected).abs() < 1e-3 * expected, "{found}, while training {expected}");
    }
}

#[test]
fn eval_score_reports_the_metrics_of_hypothesis_files() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let hypotheses = write("hypotheses.txt", "the cat sat on the mat\nA dog\r\n");
    let first = write("first.txt", "the cat sat on the mat\nno dog\n");
    let second = write("second.txt", "a cat\na dog\n");
    let args = ["score", "--hypotheses", &hypotheses, "--references", &first, &second, "--json"];
    let scores = json(&eval(&args));
    let names: Vec<&str> = scores["scores"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["BLEU", "chrF2", "chrF2++", "TER"]);
    let signature = scores["scores"][0]["signature"].as_str().unwrap();
    assert!(signature.starts_with("nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:hearth-"), "{signature}");
    assert_eq!(scores["exact_match"], 50.0);
    assert_eq!(scores["scores"][3]["score"], 0.0, "TER ignores case: {scores}");
    assert_eq!(scores["rouge_l"]["f_measure"], 1.0);
    let scores = json(&eval(&[&args[..], &["--lowercase"]].concat()));
    assert!(scores["scores"][0]["signature"].as_str().unwrap().starts_with("nrefs:2|case:lc|"), "{scores}");
    let output = eval(&["score", "--hypotheses", &hypotheses, "--references", &write("short.txt", "one\n")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("short.txt` has 1 lines, but"), "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn eval_rejects_bad_arguments_and_files_before_opening_the_model() {
    let topics = tasks("topics.jsonl");
    let topics = topics.to_str().unwrap();
    let translation = tasks("translation.jsonl");
    let translation = translation.to_str().unwrap();
    let choices = tasks("choices.jsonl");
    let choices = choices.to_str().unwrap();
    let nowhere = "/nowhere/at/all.jsonl";
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (pipe, latin1) = (path("pipe"), path("latin1.txt"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(&latin1, b"one\ncaf\xe9\n").unwrap();
    for (args, code, message) in [
        (&["classify", "absent", "--data", topics, "--c", "0"][..], 2, "must be a number above 0, got 0"),
        (&["classify", "absent", "--data", topics, "--c", "nan"], 2, "must be a number above 0"),
        (&["classify", "absent", "--data", topics, "--out", nowhere], 1, "cannot write `/nowhere/at/all.jsonl`: "),
        (
            &["multiple-choice", "absent", "--data", choices, "--out", nowhere],
            1,
            "cannot write `/nowhere/at/all.jsonl`",
        ),
        (
            &["translation", "absent", "--data", translation, "--out", nowhere],
            1,
            "cannot write `/nowhere/at/all.jsonl`",
        ),
        (&["translation", "absent", "--data", translation, "--stop", ""], 2, "--stop"),
        (&["translation", "absent", "--data", &pipe], 1, "pipe`: it is not a regular file"),
        (&["score", "--hypotheses", &pipe, "--references", topics], 1, "pipe`: it is not a regular file"),
        (
            &["score", "--hypotheses", &latin1, "--references", topics],
            1,
            "latin1.txt` is not UTF-8 text: byte 0xe9 at offset 7, in line 2",
        ),
        (
            &["translation", "absent", "--data", translation, "--beams", "2", "--length-penalty", "11"],
            2,
            "must be from -10 to 10, got 11",
        ),
        (
            &["translation", "absent", "--data", translation, "--beams", "2", "--length-penalty", "-inf"],
            2,
            "must be from -10 to 10, got -inf",
        ),
        (&["multiple-choice", "absent", "--data", topics, "--labels", "a"], 1, "at least two different labels, got 1"),
    ] {
        let output = eval(args);
        let message_found = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {message_found}");
        assert!(message_found.contains(message), "{args:?}: {message_found}");
        // clap's own errors point to `--help`.
        assert!(message_found.contains("\nhint: ") || code == 2, "{args:?}: {message_found}");
    }
}

/// Equal texts are all trained on, or all tested on.
#[test]
fn eval_classify_keeps_equal_texts_in_one_split_or_warns() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("embeddings.jsonl");
    let lines: Vec<String> = (0..40)
        .map(|at| {
            format!(
                "{{\"text\": \"What is {}?\", \"label\": \"{}\"}}",
                at % 10,
                if at % 2 == 0 { "even" } else { "odd" }
            )
        })
        .collect();
    let data = dir.path().join("data.jsonl");
    fs::write(&data, lines.join("\n")).unwrap();
    let (data, out) = (data.to_str().unwrap(), out.to_str().unwrap());
    let model = model().to_str().unwrap();
    let args =
        ["classify", model, "--data", data, "--test-fraction", "0.35", "--device", "cpu", "--json", "--out", out];
    let report = json(&eval(&args));
    // Ten distinct texts, four times each; four of the ten are tested on.
    assert_eq!((&report["n_train"], &report["n_test"]), (&24.into(), &16.into()));
    for probe in report["probes"].as_array().unwrap() {
        assert_eq!(probe["converged"], true, "{probe}");
        assert!(probe["gradient"].as_f64().unwrap() < 1e-5, "{probe}");
    }
    assert_eq!(fs::read_to_string(out).unwrap().lines().count(), 40);
    // Testing on texts that are also trained on gives a warning.
    let output = eval(&["classify", model, "--data", data, "--test", data, "--device", "cpu"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("device: CPU (requested)"), "{}", stderr(&output));
    assert!(stderr(&output).contains("warning: 40 of the texts to test on are also trained on"), "{}", stderr(&output));
}
