//! Runs that are stopped, killed or damaged, and then resumed, end with the bits of an uninterrupted run.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use hearth_model::{files::digest::Digest, system::signals::ignores_hangups};
use serde_json::Value;

/// Dropout, accumulation, evaluations, samples and checkpoints between them.
const SETS: [&str; 10] = [
    "model.dropout=0.2",
    "data.rows=epochs",
    "data.micro_batch_size=4",
    "data.tokens_per_step=384",
    "schedule.max_steps=120",
    "eval.every=7",
    "eval.log_every=3",
    "sample.every=25",
    "checkpoint.every=5",
    "optim.spike_factor=50",
];

fn text() -> String {
    (0..400).map(|line| format!("line {} of the house, {}\n", line * line % 17, ["one", "two"][line % 2])).collect()
}

struct Case {
    dir: tempfile::TempDir,
}

impl Case {
    fn new() -> Case {
        let case = Case { dir: tempfile::tempdir().unwrap() };
        fs::write(case.path("text.txt"), text()).unwrap();
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, out: &str, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.arg("quickstart").arg(self.path("text.txt")).arg("--out").arg(self.path(out));
        command.args(["--preset", "tiny", "--device", "cpu"]).args(flags);
        command
    }

    fn train(&self, out: &str, sets: &[&str], flags: &[&str]) -> Output {
        let sets: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).collect();
        self.command(out, flags).args(sets).output().unwrap()
    }

    /// The files that must be bit-identical between two runs.
    fn bits(&self, out: &str, step: usize) -> BTreeMap<String, Vec<u8>> {
        let out = self.path(out);
        let checkpoint = format!("checkpoints/step-{step:08}");
        let files = [
            "model/model.safetensors".to_owned(),
            format!("{checkpoint}/model.safetensors"),
            format!("{checkpoint}/train_state/moments.safetensors"),
        ];
        let mut bits: BTreeMap<_, _> =
            files.into_iter().map(|name| (name.clone(), fs::read(out.join(name)).unwrap())).collect();
        bits.insert("metrics".to_owned(), metrics(&out.join("metrics.jsonl")).into_bytes());
        let state = fs::read(out.join(checkpoint).join("train_state/state.json")).unwrap();
        let mut state: Value = serde_json::from_slice(&state).unwrap();
        state["minutes"].take();
        bits.insert("state".to_owned(), state.to_string().into_bytes());
        bits
    }
}

/// The metrics file without its timings.
fn metrics(path: &Path) -> String {
    let line = |line: &str| {
        let mut record: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
        for time in ["tok_per_sec", "seconds"] {
            record.remove(time);
        }
        Value::Object(record).to_string() + "\n"
    };
    fs::read_to_string(path).unwrap().lines().map(line).collect()
}

fn assert_same(found: &BTreeMap<String, Vec<u8>>, expected: &BTreeMap<String, Vec<u8>>, what: &str) {
    for (name, expected) in expected {
        if name == "metrics" && found[name] != *expected {
            let [found, expected] = [&found[name], expected].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
            assert!(differs.is_none(), "{what}: {differs:?}");
            assert_eq!(found.lines().count(), expected.lines().count(), "{what}: lines of metrics");
        }
        assert!(found[name] == *expected, "{what}: other bits in {name}");
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Killed at random moments and resumed, again and again, until it ends.
#[test]
fn run_resumed_after_kills_is_bit_identical_to_an_uninterrupted_run() {
    let n_kills: usize = std::env::var("HEARTH_KILLS").ok().map_or(4, |n| n.parse().unwrap());
    let case = Case::new();
    let started = Instant::now();
    let output = case.train("whole", &SETS, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let took = started.elapsed();
    let expected = case.bits("whole", 120);

    // Moments spread over the time that the run takes, beginning and end included.
    let seed = std::process::id() as u64;
    eprintln!("kills are seeded by {seed}");
    let mut killed = 0;
    let sets: Vec<_> = SETS.iter().flat_map(|set| ["--set", set]).collect();
    while killed < n_kills {
        let mut child = case
            .command("killed", &["--resume"])
            .args(&sets)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let share = (seed.wrapping_mul(6364136223846793005).wrapping_add((killed as u64 + 1) * 1442695040888963407)
            >> 33)
            % 1000;
        let moment = took.mul_f64(0.05 + 1.5 * share as f64 / 1000.0 / n_kills as f64);
        let begun = Instant::now();
        let mut ended = None;
        while begun.elapsed() < moment && ended.is_none() {
            ended = child.try_wait().unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        killed += 1;
        if ended.is_some_and(|status| status.success()) {
            eprintln!("it ended after {killed} kills; begun anew");
            fs::remove_dir_all(case.path("killed")).unwrap();
        }
    }
    // One more kill, after a checkpoint and before the end, so that at least one kill interrupts the run.
    let has_checkpoint = || {
        let entries = fs::read_dir(case.path("killed/checkpoints")).into_iter().flatten().flatten();
        let is_whole = |name: &str| name.strip_prefix("step-").is_some_and(|step| step.parse::<usize>().is_ok());
        entries.into_iter().any(|entry| entry.file_name().to_str().is_some_and(is_whole))
    };
    if case.path("killed/checkpoints/step-00000120").exists() {
        fs::remove_dir_all(case.path("killed")).unwrap();
    }
    let mut child =
        case.command("killed", &["--resume"]).args(&sets).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut ended = None;
    while !has_checkpoint() && ended.is_none() {
        ended = child.try_wait().unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it ended before the signal");

    let output = case.train("killed", &SETS, &["--resume"]);
    let message = stderr(&output);
    assert!(output.status.success() && message.contains("resumed after step "), "{message}");
    assert_same(&case.bits("killed", 120), &expected, "after the kills");

    // Resuming a complete run changes nothing.
    let output = case.train("killed", &SETS, &["--resume"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_same(&case.bits("killed", 120), &expected, "resumed at its end");
}

#[cfg(unix)]
#[test]
fn sigterm_saves_a_checkpoint_and_resuming_is_bit_identical() {
    let case = Case::new();
    let output = case.train("whole", &SETS, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let sets: Vec<_> = SETS.iter().flat_map(|set| ["--set", set]).collect();
    let child = case.command("stopped", &[]).args(&sets).stderr(Stdio::piped()).spawn().unwrap();
    let metrics = case.path("stopped/metrics.jsonl");
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(&metrics).unwrap_or_default().lines().count() < 8 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
    assert!(stderr(&output).contains("by a signal after step"), "{}", stderr(&output));
    let output = case.train("stopped", &SETS, &["--resume"]);
    assert!(output.status.success() && stderr(&output).contains("resumed after step"), "{}", stderr(&output));
    assert_same(&case.bits("stopped", 120), &case.bits("whole", 120), "after SIGTERM");
}

#[test]
fn resume_names_a_damaged_checkpoint_and_uses_the_one_before_it() {
    let case = Case::new();
    let short = [&SETS[..], &["schedule.max_steps=20"]].concat();
    let output = case.train("run", &short, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let expected = case.bits("run", 20);
    let damaged = case.path("run/checkpoints/step-00000020/train_state/moments.safetensors");
    let mut bytes = fs::read(&damaged).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let output = case.train("run", &short, &["--resume"]);
    let message = stderr(&output);
    assert!(output.status.success(), "{message}");
    assert!(message.contains("moments.safetensors` is damaged"), "{message}");
    assert!(message.contains("resumed after step 15"), "{message}");
    assert_same(&case.bits("run", 20), &expected, "after the damage");
}

#[test]
fn old_checkpoint_that_cannot_be_removed_is_only_a_warning() {
    let case = Case::new();
    let sets =
        [&SETS[..4], &["schedule.kind=constant", "checkpoint.every=5", "checkpoint.keep=1", "eval.every=0"]].concat();
    let train = |max_steps: &str, flags: &[&str]| {
        let output = case.train("run", &[&sets[..], &[max_steps]].concat(), flags);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    train("schedule.max_steps=10", &[]);
    // A file where a checkpoint folder should be: removing the folder fails.
    fs::write(case.path("run/checkpoints/step-00000001"), "").unwrap();
    let message = train("schedule.max_steps=15", &["--resume"]);
    assert!(message.contains("warning: cannot remove `") && message.contains("step-00000001"), "{message}");
    assert!(
        case.path("run/checkpoints/step-00000015").is_dir() && !case.path("run/checkpoints/step-00000010").exists()
    );
}

/// The process ends after its last checkpoint, having saved a better model, and `eval.every` changes on resume.
#[test]
fn best_model_after_a_crash_is_that_of_the_best_evaluation() {
    let case = Case::new();
    let sets =
        [&SETS[..4], &["schedule.kind=constant", "checkpoint.every=5", "checkpoint.keep=9", "sample.every=0"]].concat();
    let train = |sets_of_start: &[&str], flags: &[&str]| {
        let output = case.train("run", &[&sets[..], sets_of_start].concat(), &[&["--json"], flags].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let json = |name: &str| serde_json::from_slice::<Value>(&fs::read(case.path("run").join(name)).unwrap()).unwrap();
    let report = train(&["schedule.max_steps=20", "eval.every=4"], &[]);
    assert_eq!(json("model/evaluation.json")["step"], report["best_step"]);
    let later = report["best_step"].as_u64().unwrap();
    assert!((12..=20).contains(&later), "the loss falls: {report}");
    for step in [15, 20] {
        fs::remove_dir_all(case.path(&format!("run/checkpoints/step-{step:08}"))).unwrap();
    }
    // Makes the saved evaluation better than all later ones.
    let evaluation = case.path("run/model/evaluation.json");
    fs::write(&evaluation, serde_json::json!({ "step": later, "val_loss": "0.001" }).to_string()).unwrap();
    let weights = || fs::read(case.path("run/model/model.safetensors")).unwrap();
    let before = weights();

    let report = train(&["schedule.max_steps=24", "eval.every=11"], &["--resume"]);
    assert_eq!(report["best_step"], later);
    assert!(weights() == before, "the better model was replaced");
    // Without `evaluation.json`, the best step of the checkpoint counts.
    fs::remove_file(&evaluation).unwrap();
    fs::remove_dir_all(case.path("run/checkpoints/step-00000024")).unwrap();
    let report = train(&["schedule.max_steps=24", "eval.every=11"], &["--resume"]);
    assert_eq!(report["best_step"], later);
}

#[test]
fn best_loss_over_other_eval_batches_does_not_count_after_resume() {
    let case = Case::new();
    let own =
        ["schedule.kind=constant", "schedule.warmup_steps=1", "checkpoint.every=4", "eval.every=4", "sample.every=0"];
    let sets = [&SETS[..4], &own].concat();
    let train = |sets_of_start: &[&str], flags: &[&str]| {
        let output = case.train("run", &[&sets[..], sets_of_start].concat(), &[&["--json"], flags].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        (serde_json::from_slice::<Value>(&output.stdout).unwrap(), stderr(&output))
    };
    train(&["schedule.max_steps=4"], &[]);
    // A loss that no other evaluation reaches.
    let evaluation = case.path("run/model/evaluation.json");
    fs::write(&evaluation, serde_json::json!({ "step": 4, "val_loss": "0.001" }).to_string()).unwrap();
    let (report, message) = train(&["schedule.max_steps=8", "eval.batches=1"], &["--resume"]);
    assert_eq!(report["best_step"], 8);
    assert!(
        message.contains("`eval.batches` has changed") && message.contains("of step 4 (val loss 0.0010)"),
        "{message}"
    );
    let evaluated: Value = serde_json::from_slice(&fs::read(&evaluation).unwrap()).unwrap();
    assert_eq!((&evaluated["step"], &evaluated["batches"]), (&8.into(), &1.into()));
    // The same batches again.
    fs::write(&evaluation, serde_json::json!({ "step": 8, "val_loss": "0.001", "batches": 1 }).to_string()).unwrap();
    let (report, message) = train(&["schedule.max_steps=12", "eval.batches=1"], &["--resume"]);
    assert_eq!(report["best_step"], 8);
    assert!(!message.contains("has changed"), "{message}");
}

/// Otherwise `--resume` could find a run without a checkpoint and begin at step 0.
#[test]
fn branch_copies_its_first_checkpoint_before_it_becomes_a_run() {
    let case = Case::new();
    let sets =
        ["schedule.max_steps=10", "schedule.kind=constant", "checkpoint.every=5", "eval.every=0", "sample.every=0"];
    let output = case.train("run", &sets, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let checkpoint = case.path("run/checkpoints/step-00000005");
    // The folder does not become a run: its configuration cannot be written.
    fs::create_dir_all(case.path("branch/config.toml.hearth-partial")).unwrap();
    let output = case.train("branch", &sets, &["--from", checkpoint.to_str().unwrap()]);
    assert!(!output.status.success() && stderr(&output).contains("config.toml`"), "{}", stderr(&output));
    assert!(case.path("branch/checkpoints/step-00000005/train_state/state.json").is_file());
    let output = case.train("branch", &sets, &["--resume"]);
    let message = stderr(&output);
    assert!(!output.status.success() && message.contains("before its first step"), "{message}");
    // With `--resume` and `--from`, the command can be repeated at any time.
    fs::remove_dir(case.path("branch/config.toml.hearth-partial")).unwrap();
    let both = ["--resume", "--from", checkpoint.to_str().unwrap()];
    for step in [10, 12] {
        let output = case.train("branch", &[&sets[1..], &[&format!("schedule.max_steps={step}")]].concat(), &both);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(case.path(&format!("branch/checkpoints/step-{step:08}")).is_dir());
    }
    assert!(case.path("branch/checkpoints/step-00000010").is_dir(), "it went on from there");
}

#[test]
fn resume_applies_edits_of_config_toml_and_rejects_another_seed() {
    let case = Case::new();
    let sets =
        ["schedule.kind=constant", "schedule.max_steps=4", "schedule.warmup_steps=1", "eval.every=0", "sample.every=0"];
    let output = case.train("run", &sets, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let path = case.path("run/config.toml");
    let changed = |from: &str, to: &str| {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        // Without `--preset`, which would override the file.
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.arg("quickstart").arg(case.path("text.txt")).arg("--out").arg(case.path("run"));
        command.args(["--device", "cpu", "--resume"]).output().unwrap()
    };
    let output = changed("max_steps = 4", "max_steps = 6");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(case.path("run/checkpoints/step-00000006").is_dir());
    let output = changed("seed = 1337", "seed = 7");
    assert!(!output.status.success() && stderr(&output).contains("`seed`"), "{}", stderr(&output));
}

#[test]
fn max_minutes_can_be_extended_until_the_cooldown_begins() {
    let case = Case::new();
    let steps = |out: &str, kind: &str, minutes: &str, flags: &[&str]| -> Result<u64, String> {
        let sets = [format!("schedule.kind={kind}"), format!("schedule.max_minutes={minutes}")];
        let sets = [&SETS[..4], &sets.each_ref().map(String::as_str), &["eval.every=0", "sample.every=0"]].concat();
        let output = case.train(out, &sets, &[&["--json"], flags].concat());
        if !output.status.success() {
            return Err(stderr(&output));
        }
        let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap().to_owned();
        let report: Value = serde_json::from_str(&last).unwrap();
        assert_eq!(report["complete"], true);
        Ok(report["steps"].as_u64().unwrap())
    };
    let first = steps("constant", "constant", "0.001", &[]).unwrap();
    assert_eq!(steps("constant", "constant", "0.001", &["--resume"]).unwrap(), first);
    assert!(steps("constant", "constant", "0.003", &["--resume"]).unwrap() > first);
    steps("wsd", "wsd", "0.001", &[]).unwrap();
    let error = steps("wsd", "wsd", "0.003", &["--resume"]).unwrap_err();
    assert!(error.contains("the cooldown has begun\nhint: "), "{error}");
    // The first step takes longer than this.
    let output = case.train("short", &["schedule.kind=constant", "schedule.max_minutes=1e-9"], &[]);
    let message = stderr(&output);
    assert!(output.status.success() && message.contains("at step 1, in its warmup of 10 steps"), "{message}");
}

#[test]
fn sample_prompt_longer_than_the_context_does_not_end_the_run() {
    let case = Case::new();
    let prompt = format!("sample.prompt={}", "the house ".repeat(50));
    let output = case.train(
        "run",
        &[&SETS[..5], &["schedule.max_steps=4", "schedule.warmup_steps=1", "sample.every=2", &prompt]].concat(),
        &[],
    );
    assert!(output.status.success() && stderr(&output).contains("step 2, sample:"), "{}", stderr(&output));
}

#[test]
fn changed_settings_or_data_are_rejected_and_a_branch_may_be_longer() {
    let case = Case::new();
    let stable = [
        "schedule.kind=wsd",
        "schedule.cooldown_steps=5",
        "schedule.max_steps=15",
        "checkpoint.every=5",
        "eval.every=0",
    ];
    let output = case.train("run", &stable, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let refused = |sets: &[&str], what: &[&str]| {
        let output = case.train("run", &[&stable[..], sets].concat(), &["--resume"]);
        assert_eq!(output.status.code(), Some(1), "{sets:?}");
        let message = stderr(&output);
        assert!(what.iter().all(|what| message.contains(what)) && message.contains("hint: "), "{message}");
    };
    refused(&["optim.beta1=0.5"], &["`optim.beta1` was `0.9` and is now `0.5`"]);
    refused(&["seed=7"], &["`seed` was `1337` and is now `7`"]);
    refused(&["schedule.max_steps=30"], &["contradicts the 15 completed steps"]);

    // From a stable checkpoint on, both a longer run and another cooldown.
    let stable_checkpoint = case.path("run/checkpoints/step-00000010");
    let from = ["--from", stable_checkpoint.to_str().unwrap()];
    let sets = [&stable[..4], &["schedule.max_steps=20"]].concat();
    let output = case.train("branch", &sets, &from);
    let message = stderr(&output);
    assert!(output.status.success() && message.contains("resumed after step 10"), "{message}");
    let whole = case.train("straight", &sets, &[]);
    assert!(whole.status.success());
    let weights = |run: &str| fs::read(case.path(run).join("checkpoints/step-00000020/model.safetensors")).unwrap();
    assert!(weights("branch") == weights("straight"), "a branch is the run that would have been");
    // A branch that ended before its own first checkpoint resumes from the one that it started from.
    let output = case.train("early", &[&sets[..], &["checkpoint.keep=3"]].concat(), &from);
    assert!(output.status.success(), "{}", stderr(&output));
    for step in [15, 20] {
        fs::remove_dir_all(case.path(&format!("early/checkpoints/step-{step:08}"))).unwrap();
    }
    let output = case.train("early", &sets, &["--resume"]);
    assert!(output.status.success() && stderr(&output).contains("resumed after step 10"), "{}", stderr(&output));
    assert!(weights("early") == weights("straight"));
    // The best model of a branch is one of its own, even if the original run had a better one.
    let trained = stable_checkpoint.join("train_state");
    let json = |name: &str| serde_json::from_slice::<Value>(&fs::read(trained.join(name)).unwrap()).unwrap();
    let mut state = json("state.json");
    state["best"] = serde_json::json!({ "step": 5, "val_loss": "0.001" });
    fs::write(trained.join("state.json"), state.to_string()).unwrap();
    let mut checksums = json("checksums.json");
    checksums["train_state/state.json"] = Digest::of(state.to_string().as_bytes()).to_string().into();
    fs::write(trained.join("checksums.json"), checksums.to_string()).unwrap();
    let output = case.train("own", &sets, &[&from[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["best_val_loss"].as_f64().unwrap() > 0.001, "{report}");
    assert!(case.path("own/model/model.safetensors").is_file());
    // A dry run of a branch plans only the remaining steps.
    let output = case.train("left", &sets, &[&from[..], &["--json", "--dry-run"]].concat());
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&plan["steps"], &plan["steps_done"]), (&20.into(), &10.into()));
    let (expected, step) = (plan["expected_seconds"].as_f64().unwrap(), plan["seconds_per_step"].as_f64().unwrap());
    assert!((expected / step - 10.0).abs() < 1e-6, "{plan}");

    fs::write(case.path("text.txt"), text() + "another line\n").unwrap();
    refused(&[], &["other data"]);
}

/// Waits until the run has written `n` lines of metrics.
#[cfg(unix)]
fn wait_for_metrics(path: &Path, n: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(path).unwrap_or_default().lines().count() < n && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(unix)]
#[test]
fn closed_terminal_ends_a_run_with_a_checkpoint_and_early_warnings_save_one() {
    let case = Case::new();
    let sets: Vec<_> = SETS.iter().flat_map(|set| ["--set", set]).chain(["--set", "schedule.max_steps=4000"]).collect();
    let kill = |signal: &str, id: u32| {
        assert!(Command::new("kill").args([signal, &id.to_string()]).status().unwrap().success());
    };
    for (signal, code) in [("-HUP", 129), ("-XCPU", 152)] {
        // Programs that this process starts ignore it, too.
        if signal == "-HUP" && ignores_hangups() {
            eprintln!("skipped: SIGHUP, which is ignored here; run the tests without `nohup`");
            continue;
        }
        let child = case.command(signal, &[]).args(&sets).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_metrics(&case.path(signal).join("metrics.jsonl"), 8);
        kill(signal, child.id());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains("checkpoint saved"), "{}", stderr(&output));
    }
    let none = ["--set", "checkpoint.every=0", "--set", "eval.every=0", "--set", "sample.every=0"];
    let child = case.command("warned", &[]).args(&sets).args(none).stderr(Stdio::piped()).spawn().unwrap();
    let metrics = case.path("warned/metrics.jsonl");
    wait_for_metrics(&metrics, 8);
    for signal in ["-USR1", "-USR2"] {
        let n_lines = fs::read_to_string(&metrics).unwrap().lines().count();
        kill(signal, child.id());
        wait_for_metrics(&metrics, n_lines + 8);
    }
    kill("-TERM", child.id());
    let output = child.wait_with_output().unwrap();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(143), "{told}");
    assert_eq!(told.matches(" saved, as a signal asked").count(), 2, "{told}");
}

/// The process ends between the best models of several evaluations and the next checkpoint.
#[test]
fn evaluations_repeated_after_a_crash_are_the_best_again() {
    let case = Case::new();
    let sets =
        [&SETS[..4], &["schedule.max_steps=20", "checkpoint.every=10", "eval.every=2", "sample.every=0"]].concat();
    let train = |flags: &[&str]| {
        let output = case.train("run", &sets, flags);
        assert!(output.status.success(), "{}", stderr(&output));
        metrics(&case.path("run/metrics.jsonl"))
    };
    let expected = train(&[]);
    let n_best = expected.lines().filter(|line| line.contains("\"best\":true")).count();
    assert!(n_best > 6, "the loss falls: {expected}");
    let state = fs::read(case.path("run/checkpoints/step-00000020/train_state/state.json")).unwrap();
    let best = |state: &[u8]| serde_json::from_slice::<Value>(state).unwrap()["best"].clone();
    fs::remove_dir_all(case.path("run/checkpoints/step-00000020")).unwrap();
    assert_eq!(train(&["--resume"]), expected);
    let again = fs::read(case.path("run/checkpoints/step-00000020/train_state/state.json")).unwrap();
    assert_eq!(best(&again), best(&state));
}

/// The wall clock of each record of TensorBoard's file.
fn event_times(run: &Path) -> Vec<f64> {
    let file = fs::read_dir(run.join("tensorboard")).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(file).unwrap();
    let (mut rest, mut times) = (&bytes[..], Vec::new());
    while let Some((length, event)) = rest.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        times.push(f64::from_le_bytes(event[5..13].try_into().unwrap()));
        rest = &event[length + 8..];
    }
    times[1..].to_vec()
}

#[test]
fn resumed_run_keeps_the_times_of_its_records_and_counts_seconds_on() {
    let case = Case::new();
    let sets =
        [&SETS[..4], &["schedule.kind=constant", "checkpoint.every=10", "eval.every=0", "sample.every=0"]].concat();
    let train = |steps: &str, flags: &[&str]| {
        let output = case.train("run", &[&sets[..], &[steps]].concat(), flags);
        assert!(output.status.success(), "{}", stderr(&output));
        let lines = fs::read_to_string(case.path("run/metrics.jsonl")).unwrap();
        let seconds = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["seconds"].as_f64());
        (event_times(&case.path("run")), seconds.collect::<Vec<f64>>())
    };
    let (before, seconds) = train("schedule.max_steps=20", &[]);
    let (after, all_seconds) = train("schedule.max_steps=30", &["--resume"]);
    assert_eq!(after[..20], before[..20], "the records of 20 steps");
    assert_eq!(all_seconds[..20], seconds[..20]);
    assert!(all_seconds.is_sorted() && all_seconds.len() == 30, "{all_seconds:?}");
    assert!(after.is_sorted() && after[20] > before[19]);
    // Without the file, times are as far apart as the steps.
    fs::remove_dir_all(case.path("run/tensorboard")).unwrap();
    let (times, seconds) = train("schedule.max_steps=35", &["--resume"]);
    assert!(((times[19] - times[0]) - (seconds[19] - seconds[0])).abs() < 1e-3);
}

#[test]
fn resume_takes_smaller_micro_batches_of_the_same_step_and_says_what_changes() {
    let case = Case::new();
    let sets =
        [&SETS[..4], &["schedule.kind=constant", "checkpoint.every=10", "eval.every=0", "sample.every=0"]].concat();
    let train = |sets_of_start: &[&str], flags: &[&str]| case.train("run", &[&sets[..], sets_of_start].concat(), flags);
    let output = train(&["schedule.max_steps=10"], &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = train(&["schedule.max_steps=20", "data.micro_batch_size=2"], &["--resume"]);
    let told = stderr(&output);
    assert!(output.status.success() && told.contains("resumed after step 10"), "{told}");
    assert!(told.contains("`data.micro_batch_size` was 4 and is now 2: sums are rounded in another order"), "{told}");
    let output =
        train(&["schedule.max_steps=30", "data.micro_batch_size=2", "data.tokens_per_step=192"], &["--resume"]);
    assert!(!output.status.success() && stderr(&output).contains("`data.tokens_per_step`"), "{}", stderr(&output));
}
