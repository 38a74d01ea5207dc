//! Usage errors, settings, and `hearth doctor`.

use std::{fs, net::TcpListener, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{hearth, path, run, stderr, stdout};

#[test]
fn usage_errors_exit_with_2_and_failures_with_1() {
    for args in [&["--port", "high"][..], &["sing"], &["generate"], &["serve", "--device", "abacus"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
    let output = run(&["--port", "0", "--model", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("error: `/nowhere/at/all`: does not exist\nhint: "), "{}", stderr(&output));
    assert!(!stderr(&output).contains("listening"), "{}", stderr(&output));
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(stdout(&help).contains("doctor"));
    let help = run(&["serve", "--help"]);
    for flag in [
        "--host",
        "--port",
        "--model",
        "--device",
        "--dtype",
        "--quantize",
        "--kv-cache-dtype",
        "--max-queue",
        "--drain-timeout",
    ] {
        let variable = format!("HEARTH_{}", flag.trim_start_matches('-').replace('-', "_").to_uppercase());
        assert!(stdout(&help).contains(flag) && stdout(&help).contains(&variable), "{flag}");
    }
}

#[test]
fn port_in_use_is_reported_before_the_model_is_loaded() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    // The model does not exist, but the port is checked first.
    let output = run(&["--port", &port, "--model", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("error: cannot listen on `127.0.0.1:{port}`")), "{}", stderr(&output));
    assert!(stderr(&output).contains("hint: "));
}

#[test]
fn doctor_reports_the_cpu_device_as_text_and_json() {
    let output = run(&["doctor", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("`--device cpu`: requested"));
    let output = run(&["doctor", "--json", "--device", "cpu"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["asked_for"], "cpu");
    assert!(report["threads"].as_u64().unwrap() >= 1);
    assert!(report["adapters"].is_array());
    assert_eq!(report["problem"], Value::Null);
}

#[test]
fn doctor_says_what_a_model_takes_without_opening_its_weights() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/mixtral");
    let model = model.to_str().unwrap();
    let output = run(&["doctor", model, "--json", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let report = &report["model"];
    let weights = fs::metadata(Path::new(model).join("model.safetensors")).unwrap().len();
    assert_eq!((&report["class"], &report["weight_bytes"]), (&json!("MixtralForCausalLM"), &json!(weights)));
    assert!(report["n_active_params"].as_u64() < report["n_params"].as_u64());
    let number = |name: &str| report[name].as_u64().unwrap();
    assert_eq!(number("needed_bytes"), weights + number("kv_bytes_per_token") * number("max_context_tokens"));
    assert_eq!(number("fitting_tokens"), number("max_context_tokens"));
    let output = run(&["doctor", model, "--device", "cpu"]);
    for line in ["MixtralForCausalLM, ", "weights  ", "cache  ", "one full context, which fits", "speed     at most "] {
        assert!(stdout(&output).contains(line), "{line}: {}", stdout(&output));
    }
    // An encoder-decoder keeps the source of a text beside it.
    let translator = Path::new(model).with_file_name("t5");
    let output = run(&["doctor", translator.to_str().unwrap(), "--json", "--device", "cpu"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |name: &str| report["model"][name].as_u64().unwrap();
    let weights = fs::metadata(translator.join("model.safetensors")).unwrap().len();
    // Two layers with two heads of 8.
    assert_eq!(number("kv_bytes_per_token"), 2 * 2 * 8 * 2 * 4);
    assert_eq!(number("max_source_tokens"), 64);
    let n_places = number("max_context_tokens") + number("max_source_tokens");
    assert_eq!(number("needed_bytes"), weights + number("kv_bytes_per_token") * n_places);
    // Steps of the decoder do not read the encoder, which is more than half of the weights.
    let speed = report["model"]["most_tokens_per_sec"].as_f64().unwrap();
    let read_bytes_per_sec = report["model"]["read_bytes_per_sec"].as_f64().unwrap();
    assert!(read_bytes_per_sec / speed < weights as f64 * 0.7, "{speed}");
    let output = run(&["doctor", translator.to_str().unwrap(), "--device", "cpu"]);
    assert!(stdout(&output).contains("tokens and a source of 64"), "{}", stdout(&output));
    let with_head = Path::new(model).with_file_name("prediction-heads").join("qwen3_5");
    let output = run(&["doctor", with_head.to_str().unwrap(), "--json", "--device", "cpu"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Keys and values of one head of 12, in f32.
    assert_eq!(report["model"]["prediction_head_kv_bytes"], 2 * 12 * 4);
    let output = run(&["doctor", with_head.to_str().unwrap(), "--device", "cpu"]);
    assert!(stdout(&output).contains("--speculative mtp"), "{}", stdout(&output));
    // As opening it would say.
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("config.json"), r#"{"architectures": ["Gemma3nForConditionalGeneration"]}"#).unwrap();
    for (model, expected) in
        [("/nowhere/at/all", "does not exist"), (dir.path().to_str().unwrap(), "Gemma3nForConditional")]
    {
        let refused = run(&["doctor", model, "--device", "cpu"]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains(expected), "{}", stderr(&refused));
    }
}

/// The Vulkan loader and EGL find no driver, so there is no adapter, whatever GPU the machine has.
#[test]
#[cfg(target_os = "linux")]
fn doctor_without_a_gpu_chooses_the_cpu_and_fails_for_gpu_devices() {
    let doctor = |args: &[&str]| {
        let mut command = hearth(&["doctor"]);
        for name in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "__EGL_VENDOR_LIBRARY_FILENAMES"] {
            command.env(name, "/nowhere/at/all");
        }
        command.args(args).output().unwrap()
    };
    let line = |text: &str, name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or("none").to_owned();
    let has_support = cfg!(feature = "gpu");
    let output = doctor(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(line(stdout(&output), "gpus"), "gpus      none");
    let reason = if has_support { "no GPU " } else { "this build has no GPU support" };
    let device = line(stdout(&output), "device");
    assert!(device.starts_with(&format!("device    CPU (`--device auto`: {reason}")), "{device}");
    for (device, missing) in [("gpu", "no GPU adapter found"), ("wgpu-software", "no software adapter found")] {
        let output = doctor(&["--device", device]);
        assert_eq!(output.status.code(), Some(1), "{device}");
        assert_eq!(line(stdout(&output), "gpus"), "gpus      none");
        assert_eq!(line(stdout(&output), "device"), format!("device    none for `--device {device}`"));
        let missing = if has_support { missing } else { "this build has no GPU support" };
        let expected = format!("error: device `{device}`: {missing}\nhint: ");
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
        // The report is complete although the command fails.
        let output = doctor(&["--json", "--device", device]);
        assert_eq!(output.status.code(), Some(1), "{device}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["adapters"], &report["chosen"]), (&Value::Array(Vec::new()), &Value::Null));
        assert_eq!(report["asked_for"], device);
        let problem = report["problem"].as_str().unwrap();
        assert!(problem.starts_with(&format!("device `{device}`: {missing}\nhint: ")), "{problem}");
    }
}

#[test]
fn thread_count_and_instruction_set_are_applied_or_rejected() {
    let doctor = |(name, value): (&str, &str), args: &[&str]| {
        hearth(&["doctor", "--json", "--device", "cpu"]).args(args).env(name, value).output().unwrap()
    };
    let report = |variable, args: &[&str]| -> Value {
        let output = doctor(variable, args);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(report(("HEARTH_CPU", "portable"), &[])["kernels"], "portable");
    assert_eq!(report(("HEARTH_CPU", ""), &["--threads", "3"])["threads"], 3);
    assert_eq!(report(("HEARTH_THREADS", "2"), &[])["threads"], 2);
    let refused = doctor(("HEARTH_CPU", "mmx"), &[]);
    let expected = "`HEARTH_CPU` is `mmx`, and this machine can use `portable`";
    assert!(stderr(&refused).contains(expected), "{}", stderr(&refused));
    for (variable, args) in [(("HEARTH_THREADS", "0"), &[][..]), (("HEARTH_THREADS", ""), &["--threads", "1025"])] {
        assert_eq!(doctor(variable, args).status.code(), Some(2));
    }
}

#[test]
fn invalid_settings_are_rejected_without_showing_api_keys() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("keys");
    std::fs::write(&empty, "\n# sk-one\n").unwrap();
    let spaced = dir.path().join("spaced");
    std::fs::write(&spaced, "# Alice\nsk-one\nsk two\n").unwrap();
    for (args, message) in [
        (&["--api-key", "sk two"][..], "`--api-key`: an API key must consist of visible ASCII"),
        (&["--api-key-file", path(&empty)], "the file has no key"),
        (&["--api-key-file", path(&spaced)], "line 3: an API key must consist of visible ASCII"),
        (&["--api-key-file", "/nowhere/at/all"], "cannot read the file"),
        (&["--cors-origin", "example.org"], "`--cors-origin` must be `*`, `none` or origins"),
        (&["--cors-origin", "https://example.org/"], "trailing slash"),
        (&["--cors-origin", "https://*.example.org"], "got `https://*.example.org`"),
        (&["--allowed-host", "http://example.org"], "`--allowed-host` must be `*`, or names or IP addresses"),
        (&["--allowed-host", "a.example,b.example:80"], "got `b.example:80`"),
        (&["--allowed-host", "*,a.example"], "got `*`"),
        (&["--tls-cert", "/nowhere/at/all", "--tls-key", "/nowhere/at/all"], "`--tls-cert`: cannot read"),
        (&["--tls-cert", "x"], "`--tls-cert` requires `--tls-key`, which is not given"),
        (&["--tls-key", "x"], "`--tls-key` requires `--tls-cert`, which is not given"),
        (&["--max-batch-size", "0"], "`--max-batch-size` must be at least 1"),
        (&["--draft-dtype", "q4"], "`--draft-dtype` requires `--draft-model`"),
        (&["--num-speculative-tokens", "4"], "`--num-speculative-tokens` requires `--speculative`"),
        (&["--speculative", "prompt-lookup", "--draft-model", "x"], "requires `--speculative draft`"),
        (&["--speculative", "mtp", "--draft-model", "x"], "requires `--speculative draft`"),
        (&["--speculative", "draft"], "`--speculative draft` requires `--draft-model`"),
        (&["--otlp-endpoint", "localhost:4318"], "`--otlp-endpoint` must be an http or https address"),
        (&["--otlp-endpoint", "http://x", "--otlp-header", "sk two"], "`--otlp-header` must be `NAME=VALUE`"),
        (&["--otlp-endpoint", "http://x", "--otlp-certificate", "/nowhere"], "`--otlp-certificate`: cannot read"),
    ] {
        let output = run(&[&["--port", "0"], args].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
        assert!(!["sk two", "listening"].iter().any(|told| stderr(&output).contains(told)), "{}", stderr(&output));
    }
    for args in [&["--header-timeout", "0"][..], &["--max-connections", "0"], &["--log-format", "xml"]] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
    let mut help = hearth(&["serve", "--help"]);
    let help = help.env("HEARTH_API_KEY", "sk-in-the-environment").output().unwrap();
    assert!(!stdout(&help).contains("sk-in"), "{}", stdout(&help));
}
