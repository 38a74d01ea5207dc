//! How long `hearth-train finetune` trains: passes over a handful of conversations, a smaller last step, and early ends.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::finetune::{Case, model, stderr, succeeded};

/// Conversations whose answers differ from the first word on.
const HANDFUL: [(&str, &str); 8] = [
    ("Who keeps the light?", "The old fox does."),
    ("When does the boat leave?", "At night."),
    ("What is the dog called?", "Lily."),
    ("Where is the key?", "Under the stone."),
    ("How deep is the lake?", "Not very deep."),
    ("Which way is the village?", "Past the big tree."),
    ("Why is the sky dark?", "It will rain soon."),
    ("Is the bridge open?", "No, not today."),
];

/// The lines of `metrics.jsonl` that have a number `key`.
fn metrics_with(run: &Path, key: &str) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line[key].is_number()).collect()
}

#[test]
fn handful_of_conversations_is_answered_as_taught_after_the_default_run() {
    let case = Case::new();
    let line = |(question, answer): &(&str, &str)| {
        json!({ "messages": [{ "role": "user", "content": question }, { "role": "assistant", "content": answer }] })
            .to_string()
            + "\n"
    };
    fs::write(case.path("eight.jsonl"), HANDFUL.iter().map(line).collect::<String>()).unwrap();
    let tune = |out: &str, flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/bundled");
        command.arg("finetune").arg(bundled).arg("--data").arg(case.path("eight.jsonl")).args(["--device", "cpu"]);
        command.arg("--out").arg(case.path(out)).args(flags).output().unwrap()
    };
    // A model this small learns only at a high rate; everything else is the default.
    let output = tune("run", &["--lora", "--set", "optim.lr=4e-3"]);
    succeeded(&output);
    let told = stderr(&output);
    assert!(told.contains("`schedule.epochs=12`, `schedule.warmup_steps=9`"), "{told}");
    assert!(told.contains("12.0 passes over the data") && told.contains("0 held out"), "{told}");
    let steps = metrics_with(&case.path("run"), "loss");
    assert_eq!(steps.len(), 96, "{told}");
    assert_eq!(steps[95]["epoch"], 12.0);
    for (question, answer) in HANDFUL {
        let prompt = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.arg("sample").arg(case.path("run")).arg(prompt).args(["--device", "cpu"]);
        let output = command.args(["--set", "sample.temperature=0"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{answer}\n"), "{question}: {}", stderr(&output));
    }

    // Three passes are three passes: no example is read a fourth time to fill a step, also where a step has more than all.
    let sets = ["schedule.epochs=3", "data.tokens_per_step=250", "model.max_seq_len=50"];
    let output = tune("three", &sets.into_iter().flat_map(|set| ["--set", set]).collect::<Vec<_>>());
    succeeded(&output);
    let (steps, told) = (metrics_with(&case.path("three"), "loss"), stderr(&output));
    assert_eq!(steps.last().unwrap()["epoch"], 3.0);
    let n_tokens = told.split(" tokens to train on").next().and_then(|text| text.rsplit(' ').next()).unwrap();
    assert_eq!(steps.last().unwrap()["tokens"], 3 * n_tokens.parse::<u64>().unwrap(), "{told}");
    assert!(told.contains("warning: the run has only ") && told.contains("fewer than 20"), "{told}");
}

/// The loss of the last, smaller step is the mean over its own targets.
#[test]
fn last_step_of_an_odd_number_of_rows_has_the_mean_loss_of_its_rows() {
    let case = Case::new();
    let lines = fs::read_to_string(case.path("train.jsonl")).unwrap();
    let line = lines.lines().next().unwrap().to_owned() + "\n";
    // Three equal rows in steps of two: the rate is so low that every step has the loss of the first.
    fs::write(case.path("three.jsonl"), line.repeat(3)).unwrap();
    let sets = [
        "data.rows=unpacked",
        "data.tokens_per_step=128",
        "schedule.epochs=1",
        "optim.lr=1e-12",
        "data.val_fraction=0",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
    command.arg("finetune").arg(model()).arg("--data").arg(case.path("three.jsonl")).args(["--device", "cpu"]);
    command.arg("--out").arg(case.path("run")).args(["--set", "model.max_seq_len=64"]);
    let output = command.args(sets.iter().flat_map(|set| ["--set", set])).output().unwrap();
    succeeded(&output);
    let steps = metrics_with(&case.path("run"), "loss");
    assert_eq!(steps.len(), 2, "{}", stderr(&output));
    let [first, last] =
        [0, 1].map(|step| (steps[step]["loss"].as_f64().unwrap(), steps[step]["tokens"].as_u64().unwrap()));
    assert!((first.0 - last.0).abs() < 1e-6, "{steps:?}");
    assert_eq!((2 * last.1, last.1 % 3), (3 * first.1, 0));
}

#[test]
fn run_without_better_evaluations_ends_early_and_stays_ended_when_resumed() {
    let case = Case::new();
    // At this rate the loss rises from some step on.
    let flags = [
        "--set",
        "eval.every=1",
        "--set",
        "eval.patience=2",
        "--set",
        "optim.lr=0.3",
        "--set",
        "schedule.kind=constant",
    ];
    let output = case.command("train.jsonl", "run", &[&flags[..], &["--json"]].concat()).output().unwrap();
    succeeded(&output);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = report["steps"].as_u64().unwrap();
    assert!(steps < 24 && report["complete"] == true, "{report}");
    assert_eq!(report["best_step"], steps - 2);
    assert!(
        stderr(&output).contains("no better evaluation in the last 2, so the run ends here"),
        "{}",
        stderr(&output)
    );
    let left: Vec<u64> = metrics_with(&case.path("run"), "val_loss")
        .iter()
        .map(|line| line["patience_left"].as_u64().unwrap())
        .collect();
    assert!(left.ends_with(&[2, 1, 0]) && !left[..left.len() - 1].contains(&0), "{left:?}");
    let metrics = || fs::read_to_string(case.path("run/metrics.jsonl")).unwrap();
    let before = metrics();
    succeeded(&case.command("train.jsonl", "run", &[&flags[..], &["--resume"]].concat()).output().unwrap());
    assert_eq!(metrics(), before);
    // Killed behind its last checkpoint but one, it ends at the same step.
    let last = case.path(&format!("run/checkpoints/step-{steps:08}"));
    fs::remove_dir_all(last).unwrap();
    succeeded(&case.command("train.jsonl", "run", &[&flags[..], &["--resume"]].concat()).output().unwrap());
    assert_eq!(metrics().lines().count(), before.lines().count());
    // Without a validation split it cannot work.
    let output = case
        .command("train.jsonl", "none", &[&flags[..], &["--set", "data.val_fraction=0"]].concat())
        .output()
        .unwrap();
    assert!(!output.status.success() && stderr(&output).contains("`eval.patience` needs a validation split"));
}
