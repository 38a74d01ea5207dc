//! The predicted and the measured memory of a run.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path, process::Command};

use serde_json::Value;

fn hearth_train(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_hearth-train")).args(args).output().unwrap()
}

/// A text of 65 different characters.
fn write_text(dir: &Path) -> String {
    let text: String =
        (0..200_000_u32).map(|n| char::from(b'0' + (n.wrapping_mul(2_654_435_761) >> 16) as u8 % 65)).collect();
    let path = dir.join("text.txt");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The models are large enough to outweigh the rest of the process. Memory is measured within the training process.
#[cfg(target_os = "linux")]
#[test]
fn predicted_peak_memory_is_within_15_percent_of_the_measured_peak() {
    let shapes: [&[&str]; 2] = [
        &["--preset", "shakespeare-char-cpu", "--set", "data.micro_batch_size=64"],
        &[
            "--preset",
            "tiny",
            "--set",
            "model.arch=llama",
            "--set",
            "model.d_model=256",
            "--set",
            "model.max_seq_len=128",
        ],
    ];
    for shape in shapes {
        let dir = tempfile::tempdir().unwrap();
        let (text, out) = (write_text(dir.path()), dir.path().join("run"));
        let mut args = vec!["quickstart", &text, "--out", out.to_str().unwrap(), "--device", "cpu", "--json"];
        args.extend(["--set", "schedule.max_steps=6", "--set", "schedule.warmup_steps=1", "--set", "eval.batches=2"]);
        args.extend(shape);
        let output = hearth_train(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let [peak, predicted] =
            ["peak_resident_bytes", "predicted_peak_bytes"].map(|key| report[key].as_f64().unwrap());
        assert!((predicted / peak - 1.0).abs() < 0.15, "{shape:?}: {predicted} bytes were predicted, {peak} measured");
    }
}

#[test]
fn quickstart_rejects_a_run_beyond_available_memory_before_it_starts() {
    let dir = tempfile::tempdir().unwrap();
    let (text, out) = (write_text(dir.path()), dir.path().join("run"));
    let mut args = vec!["quickstart", &text, "--out", out.to_str().unwrap(), "--device", "cpu"];
    args.extend(["--set", "model.max_seq_len=4096", "--set", "data.micro_batch_size=16000"]);
    let output = hearth_train(&args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    for part in ["`data.micro_batch_size=16000` would take about", "are available", "\nhint: ", "fits"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(!out.exists());
}

#[test]
fn automatic_micro_batch_size_is_found_once_and_saved_in_the_config() {
    let dir = tempfile::tempdir().unwrap();
    let (text, out) = (write_text(dir.path()), dir.path().join("run"));
    let run = |flags: &[&str]| {
        let mut args = vec!["quickstart", &text, "--out", out.to_str().unwrap(), "--device", "cpu", "--preset", "tiny"];
        args.extend(["--set", "data.micro_batch_size=auto", "--set", "data.tokens_per_step=256"]);
        args.extend(flags);
        let output = hearth_train(&args);
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{shown}");
        (shown, String::from_utf8(output.stdout).unwrap())
    };
    let plan: Value = serde_json::from_str(&run(&["--dry-run", "--json"]).1).unwrap();
    assert_eq!((&plan["micro_batch_size"], &plan["micro_steps"]), (&8.into(), &1.into()));
    assert!(plan["expected_seconds"].as_f64().unwrap() > 0.0 && plan["peak_bytes"].is_number());
    assert!(!out.exists(), "a dry run writes nothing");

    let steps = ["--set", "schedule.max_steps=10", "--set", "checkpoint.every=5"];
    let shown = run(&steps).0;
    assert!(shown.contains("`data.micro_batch_size=auto` is 8"), "{shown}");
    let config = fs::read_to_string(out.join("config.toml")).unwrap();
    assert!(config.contains("micro_batch_size = 8"), "{config}");
    // Resuming with the same command uses the saved size.
    fs::remove_dir_all(out.join("checkpoints/step-00000010")).unwrap();
    let shown = run(&[&steps[..], &["--resume"]].concat()).0;
    assert!(shown.contains("resumed after step 5"), "{shown}");
}
