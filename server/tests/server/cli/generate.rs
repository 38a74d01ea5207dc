//! `hearth generate`.

use std::{
    fs,
    io::{Read, Write},
    process::Stdio,
};

use burn::tensor::Device;
use hearth_model::{
    decode::sampling::SamplingParams,
    weights::model_dir::{LoadOptions, load},
};
use hearth_server::{api::wire::state::AppState, config::SamplingDefaults, engine::Engine};
use serde_json::json;
use tempfile::TempDir;

use super::{hearth, model_dir, path, run, save_model, stderr, stdout};
use crate::support::{MODEL, OPTIONS, Server, tokenizer_files};

/// The tiny model without an end-of-text token.
fn endless_model_dir() -> TempDir {
    let [tokenizer, _] = tokenizer_files();
    save_model(&[], &[("tokenizer.json", tokenizer)])
}

#[test]
fn generate_writes_text_to_stdout_and_speed_to_stderr() {
    let dir = model_dir();
    let args =
        ["generate", "the hand", "--model", path(dir.path()), "--device", "cpu", "--max-tokens", "20", "--seed", "3"];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output).strip_suffix('\n').unwrap();
    assert!(stderr(&output).contains("prompt 4 tokens"), "{}", stderr(&output));
    // The prompt from standard input, and a stop string.
    let stop: String = text.chars().skip(3).take(2).collect();
    let mut child =
        hearth(&["generate", "-"]).args(&args[2..]).args(["--stop", &stop]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"the hand").unwrap();
    let stopped = child.wait_with_output().unwrap();
    assert_eq!(stdout(&stopped), format!("{}\n", &text[..text.find(&stop).unwrap()]));
}

/// `generation_config.json` applies unless a flag overrides it, and the text equals the server's.
#[tokio::test]
async fn generate_uses_the_models_sampling_defaults_like_the_server() {
    let dir = model_dir();
    let plain =
        ["generate", "the hand", "--model", path(dir.path()), "--device", "cpu", "--max-tokens", "20", "--seed", "3"];
    let generate = |more: &[&str]| {
        let output = run(&[&plain, more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output).strip_suffix('\n').unwrap().to_owned()
    };
    let unadvised = generate(&[]);
    let spelled = generate(&["--temperature", "0.6", "--top-k", "4", "--repetition-penalty", "1.3"]);
    assert_ne!(unadvised, spelled);
    let advice = r#"{"do_sample": true, "temperature": 0.6, "top_k": 4, "repetition_penalty": 1.3, "typical_p": 0.9}"#;
    fs::write(dir.path().join("generation_config.json"), advice).unwrap();
    let advised = generate(&[]);
    assert!(![&unadvised, &spelled].contains(&&advised), "the test shows too little");

    let files = dir.path().to_owned();
    let load = move || load(&files, &LoadOptions { device: Device::flex(), dtype: None });
    let engine = Engine::start(load, OPTIONS).unwrap();
    let server = Server { state: AppState::ready(MODEL, engine.clone()), engine };
    let served = server.complete(json!({ "prompt": "the hand", "max_tokens": 20, "seed": 3 })).await;
    assert_eq!(served["choices"][0]["text"], advised);
    // A flag overrides its default; the other defaults still apply.
    let neutral = ["--temperature", "1", "--top-k", "0", "--repetition-penalty", "1"];
    let typical = json!({
        "prompt": "the hand", "max_tokens": 20, "seed": 3, "temperature": 1, "top_k": 0, "repetition_penalty": 1,
    });
    assert_eq!(generate(&neutral), server.complete(typical).await["choices"][0]["text"]);
    assert_eq!(generate(&["--top-k", "1"]), generate(&["--top-k", "1", "--temperature", "0.9"]));
    // A flag or a variable turns all defaults of the model off.
    assert_eq!(generate(&["--sampling-defaults", "openai"]), unadvised);
    let openai = |flag, value| generate(&["--sampling-defaults", "openai", flag, value]);
    assert_eq!(openai("--top-p", "0"), openai("--top-k", "1"));
    let by_variable = hearth(&plain).env("HEARTH_SAMPLING_DEFAULTS", "openai").output().unwrap();
    assert_eq!(stdout(&by_variable), format!("{unadvised}\n"));
}

#[test]
fn generate_rejects_invalid_parameters() {
    let dir = model_dir();
    let with =
        |more: &[&str]| run(&[&["generate", "x", "--device", "cpu", "--model", path(dir.path())], more].concat());
    for (more, message) in [
        (&["--temperature", "-1"][..], "`temperature` must be"),
        (&["--top-p", "2"], "`top_p` must be"),
        (&["--stop", ""], "`--stop` must not be empty"),
    ] {
        let output = with(more);
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn generate_exits_with_0_when_its_stdout_is_closed() {
    let dir = endless_model_dir();
    let mut child = hearth(&["generate", "x", "--device", "cpu", "--model", path(dir.path()), "--max-tokens", "8000"])
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    // Graphics drivers may write to stderr; the program must not.
    assert!(!stderr(&output).contains("cannot write") && !stderr(&output).contains("tok/s"), "{}", stderr(&output));
}

#[test]
fn sampling_defaults_setting_uses_or_ignores_generation_config() {
    let dir = model_dir();
    std::fs::write(dir.path().join("generation_config.json"), r#"{"temperature": 0.5, "top_k": 7}"#).unwrap();
    let load = || load(dir.path(), &LoadOptions { device: Device::flex(), dtype: None }).unwrap();
    let advised = SamplingParams { temperature: 0.5, top_k: 7, ..SamplingParams::default() };
    assert_eq!(SamplingDefaults::Model.of(load()).sampling_defaults, advised);
    assert_eq!(SamplingDefaults::Openai.of(load()).sampling_defaults, SamplingParams::default());
    assert_eq!(run(&["--sampling-defaults", "mine"]).status.code(), Some(2));
    // Only the value out of range is left out.
    std::fs::write(dir.path().join("generation_config.json"), r#"{"top_p": 2, "temperature": 0.5}"#).unwrap();
    let without = SamplingParams { temperature: 0.5, ..SamplingParams::default() };
    assert_eq!(SamplingDefaults::Model.of(load()).sampling_defaults, without);
}
