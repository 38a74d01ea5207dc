//! The binary as a user runs it: output, messages and exit codes.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStderr, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    generate::next_logits,
    gpt::Gpt,
    kv_cache::KvCache,
    ops::KvDtype,
    sampling::SamplingParams,
    tokenizer::{EncodeOptions, Tokenizer},
    weights::model_dir::{LoadOptions, SaveOptions, load, save},
};
use hearth_server::{api::state::AppState, config::SamplingDefaults, engine::Engine};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    edges::tls_file,
    support::{EOS, MODEL, OPTIONS, Server, events, gpt, tokenizer_files},
};

/// The binary, with no settings but those of the test.
pub(crate) fn hearth(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if ["HEARTH_", "OTEL_"].iter().any(|start| name_text.starts_with(start)) || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn run(args: &[&str]) -> Output {
    hearth(args).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The tiny model as a model dir.
pub(crate) fn model_dir() -> TempDir {
    let [tokenizer, config] = tokenizer_files();
    save_model(&[EOS], &[("tokenizer.json", tokenizer), ("tokenizer_config.json", config)])
}

/// The same, but nothing says that a token ends a text.
fn endless_model_dir() -> TempDir {
    let [tokenizer, _] = tokenizer_files();
    save_model(&[], &[("tokenizer.json", tokenizer)])
}

fn save_model(eos_token_ids: &[TokenId], files: &[(&str, Vec<u8>)]) -> TempDir {
    save_gpt(&gpt(), eos_token_ids, files)
}

pub(crate) fn save_gpt(gpt: &Gpt, eos_token_ids: &[TokenId], files: &[(&str, Vec<u8>)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let extra_files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
    let options = SaveOptions { eos_token_ids: eos_token_ids.to_vec(), extra_files, ..SaveOptions::default() };
    save(dir.path(), gpt, &options).unwrap();
    dir
}

pub(crate) fn path(dir: &Path) -> &str {
    dir.to_str().unwrap()
}

#[test]
fn bad_usage_is_exit_code_2_and_failure_is_1() {
    for args in [&["--port", "high"][..], &["sing"], &["generate"], &["serve", "--device", "abacus"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
    let output = run(&["--port", "0", "--model", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("error: `/nowhere/at/all`: does not exist\nhint: "), "{}", stderr(&output));
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

/// Every command that has a cache takes the flag, and says what its cache was.
#[test]
fn the_cache_is_held_as_asked_for() {
    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let text = parent.path().join("text");
    fs::write(&text, "abcabcaabbcc".repeat(8)).unwrap();
    let last_line = |args: &[&str]| {
        let output = run(&[args, &["--model", path(model.path()), "--device", "cpu"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_str::<Value>(stdout(&output).lines().last().unwrap()).unwrap()
    };
    let bench = ["bench", "--prefill", "8", "--prompt", "24", "--steps", "16", "--batch", "2", "--runs", "1"];
    let perplexity = ["perplexity", path(&text), "--context", "32"];
    for (more, expected) in [
        (&[][..], "f32"),
        (&["--quantize", "q8"], "f16"),
        (&["--dtype", "f16", "--kv-cache-dtype", "auto"], "f16"),
        (&["--dtype", "bf16"], "f32"),
        (&["--quantize", "q8", "--kv-cache-dtype", "f32"], "f32"),
        (&["--kv-cache-dtype", "f16"], "f16"),
    ] {
        let report = last_line(&[&bench[..], more].concat());
        assert_eq!(report["kv_cache_dtype"], expected, "{more:?}");
        // Two sequences of 24 + 8 tokens in the middle of the run.
        let n_values = 2 * 32 * gpt().config().kv_bytes_per_token(1);
        let n_bytes = n_values * if expected == "f32" { 4 } else { 2 };
        assert_eq!(report["results"][1]["kv_bytes_per_step"], n_bytes, "{more:?}");
        assert_eq!(last_line(&[&perplexity[..], more].concat())["kv_cache_dtype"], expected, "{more:?}");
    }
    // Nothing is allocated that is not there.
    for (batch, flags) in [("18446744073709551615", ["--prompt", "8"]), ("1000000000000", ["--prompt", "16"])] {
        let vast =
            run(&[&["bench", "--model", path(model.path()), "--steps", "1", "--batch", batch], &flags[..]].concat());
        assert_eq!(vast.status.code(), Some(1), "{}", stderr(&vast));
        let message = format!("error: `--batch` {batch} needs ");
        assert!(stderr(&vast).contains(&message) && stderr(&vast).contains(" GiB are available"), "{}", stderr(&vast));
    }
    for (wrong, hint) in [(["--dtype", "q8"], "`--quantize q8`"), (["--quantize", "bf16"], "`--dtype bf16`")] {
        let output = run(&[&["generate", "a"][..], &wrong].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("must be") && stderr(&output).contains(hint), "{}", stderr(&output));
    }
    let wrong = run(&["generate", "a", "--kv-cache-dtype", "q8"]);
    assert_eq!(wrong.status.code(), Some(2));
    let message = stderr(&wrong);
    assert!(message.contains("'q8' for '--kv-cache-dtype") && message.contains("auto, f32, f16"), "{message}");
}

#[test]
fn a_busy_port_is_told_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    // Before the model is looked for.
    let output = run(&["--port", &port, "--model", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("error: cannot listen on `127.0.0.1:{port}`")), "{}", stderr(&output));
    assert!(stderr(&output).contains("hint: "));
}

/// Rounded once and stored, or at every load: the same text, with all files copied that are beside the weights.
#[test]
fn a_quantized_model_dir_is_served_as_it_is() {
    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let templates = model.path().join("additional_chat_templates");
    fs::create_dir(&templates).unwrap();
    fs::write(templates.join("tool_use.jinja"), "{{ tools }}").unwrap();
    fs::write(model.path().join("chat_template.jinja"), "{{ messages }}").unwrap();
    fs::write(model.path().join("generation_config.json"), r#"{"top_k": 3, "do_sample": true}"#).unwrap();
    let out = parent.path().join("rounded");
    let partial = parent.path().join("rounded.hearth-partial");
    fs::create_dir(&partial).unwrap();
    // A process that is at work on it has it locked.
    let at_work = File::open(&partial).unwrap();
    at_work.lock().unwrap();
    let refused = run(&["quantize", path(model.path()), path(&out), "--quantize", "q4"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("rounded.hearth-partial`: another process"), "{}", stderr(&refused));
    // One that was killed has not.
    drop(at_work);
    fs::write(partial.join("vocab.json"), "half a file").unwrap();
    let output = run(&["quantize", path(model.path()), path(&out), "--quantize", "q4"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("of weights in q4, from "), "{}", stdout(&output));
    assert!(!partial.exists() && !out.join("vocab.json").exists());
    for name in
        ["tokenizer.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja", "generation_config.json"]
    {
        let read = |dir: &Path| fs::read(dir.join(name)).unwrap();
        assert_eq!(read(&out), read(model.path()), "{name}");
    }
    let generate = |dir: &Path, more: &[&str]| {
        let args = ["generate", "abcab", "--model", path(dir), "--device", "cpu", "--temperature", "0"];
        let output = run(&[&args[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output).to_owned()
    };
    assert_eq!(generate(&out, &[]), generate(model.path(), &["--quantize", "q4"]));
    let again = run(&["quantize", path(model.path()), path(&out)]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("already exists and is not empty\nhint: "), "{}", stderr(&again));
    // An empty working directory cannot be replaced, but filled.
    let here = parent.path().join("here");
    fs::create_dir(&here).unwrap();
    let filled = hearth(&["quantize", path(model.path()), "."]).current_dir(&here).output().unwrap();
    assert_eq!(filled.status.code(), Some(0), "{}", stderr(&filled));
    assert_eq!(fs::read(here.join("tokenizer.json")).unwrap(), fs::read(model.path().join("tokenizer.json")).unwrap());
    assert_eq!(generate(&here, &[]), generate(model.path(), &["--quantize", "q8"]));
    let both = run(&["generate", "a", "--dtype", "f16", "--quantize", "q8"]);
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));
}

/// A file has all that a model dir has, so that one can be made of it.
#[test]
fn a_gguf_file_is_served_or_stored_rounded() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/gguf/quantized-Q8_0.gguf");
    let generate = |model: &Path, more: &[&str]| {
        let args = ["generate", "ABBA", "--model", path(model), "--device", "cpu", "--temperature", "0"];
        let output = run(&[&args[..], &["--max-tokens", "8"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output).to_owned()
    };
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("rounded");
    let output = run(&["quantize", path(&file), path(&out), "--quantize", "q4"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(generate(&out, &[]), generate(&file, &["--quantize", "q4"]));
    assert_ne!(generate(&out, &[]), generate(&file, &[]), "nothing shows in the text");
}

/// The definition by hand: the second half of each window but its first token, by the log-probabilities of the API.
#[test]
fn perplexity_is_what_its_definition_says() {
    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let text = parent.path().join("text");
    std::fs::write(&text, "abcabcaabbcc".repeat(5)).unwrap();
    let perplexity = |context: &str| {
        let args = ["perplexity", path(&text), "--model", path(model.path()), "--device", "cpu", "--context", context];
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json = stdout(&output).lines().last().unwrap().to_owned();
        serde_json::from_str::<Value>(&json).unwrap()
    };
    let report = perplexity("16");
    let gpt = gpt();
    let tokenizer = Tokenizer::from_dir(model.path()).unwrap();
    let ids = tokenizer.encode(&"abcabcaabbcc".repeat(5), EncodeOptions::TEXT).unwrap();
    let (mut loss, mut n) = (0.0, 0);
    for window in ids.chunks_exact(16) {
        for end in 9..16 {
            let mut cache = KvCache::new(gpt.config(), 1, KvDtype::F32, &gpt.device());
            let mut table = cache.table();
            let logits = next_logits(&gpt, &mut cache, &mut table, &window[..end]).unwrap();
            let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            loss += total.ln() - f64::from(logits[window[end] as usize]);
            n += 1;
        }
    }
    assert_eq!(report["n_predicted"], n);
    let found = report["perplexity"].as_f64().unwrap();
    assert!((found / (loss / f64::from(n)).exp() - 1.0).abs() < 1e-4, "{report}");
}

/// Rounding would make an infinity, or something harmless, of what is there.
#[test]
fn weights_that_do_not_fit_a_dtype_are_refused_by_name() {
    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let file = model.path().join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let n_header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + n_header]).unwrap();
    let matrix = &header["model.layers.0.mlp.down_proj.weight"];
    assert_eq!(matrix["dtype"], "F32");
    let at = 8 + n_header + matrix["data_offsets"][0].as_u64().unwrap() as usize;
    let out = parent.path().join("out");
    for (value, dtype, told) in [
        (
            9e6,
            "q8",
            "`quantize` is `q8`, which represents weights up to 8.319008e6, but `blocks.0.mlp.down.weight` has 9e6",
        ),
        (-6e5, "q4", "up to 5.24032e5"),
        (7e4, "q4_1", "up to 6.5504e4"),
        (3e38, "q5_1", "has 3e38"),
        (f32::NAN, "q8", "has NaN"),
        (f32::NEG_INFINITY, "q4", "has inf"),
    ] {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        fs::write(&file, &bytes).unwrap();
        let output = run(&["quantize", path(model.path()), path(&out), "--quantize", dtype]);
        assert_eq!(output.status.code(), Some(1), "{value} in {dtype}");
        assert!(stderr(&output).contains(told) && stderr(&output).contains("hint: "), "{}", stderr(&output));
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0, "{value} in {dtype}");
    }
    bytes[at..at + 4].copy_from_slice(&7e4f32.to_le_bytes());
    fs::write(&file, &bytes).unwrap();
    let generate =
        |dtype: &str| run(&["generate", "a", "--model", path(model.path()), "--device", "cpu", "--dtype", dtype]);
    assert!(stderr(&generate("f16")).contains("`dtype` is `f16`, which represents weights up to 6.5504e4"));
    assert_eq!(generate("bf16").status.code(), Some(0));
}

#[test]
fn a_shape_that_no_memory_holds_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let shape = json!({
        "model_type": "llama", "vocab_size": 1 << 28, "hidden_size": 16384, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 64, "max_position_embeddings": 64,
    });
    fs::write(dir.path().join("config.json"), shape.to_string()).unwrap();
    let output = run(&["bench", "--device", "cpu", "--random", path(dir.path())]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("GiB of memory, but") && stderr(&output).contains("hint: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn bench_measures_the_masks_of_grammars() {
    let dir = model_dir();
    let output = run(&["bench", "--grammars", "--device", "cpu", "--model", path(dir.path())]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    let grammars = report["grammars"].as_array().unwrap();
    assert_eq!(grammars.len(), 4);
    for measured in grammars {
        let number = |name: &str| measured[name].as_f64().unwrap();
        assert!(number("n_tokens") > 0.0 && number("mean_mask_us") > 0.0 && number("compile_ms") > 0.0, "{measured}");
        assert!(number("mean_mask_us") <= number("worst_mask_us") && number("mean_step_us") > 0.0, "{measured}");
    }
}

#[test]
fn doctor_reports_and_fails_for_a_device_that_is_not_there() {
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
fn generate_streams_text_to_stdout_and_speed_to_stderr() {
    let dir = model_dir();
    let args =
        ["generate", "the hand", "--model", path(dir.path()), "--device", "cpu", "--max-tokens", "20", "--seed", "3"];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output).strip_suffix('\n').unwrap();
    assert!(stderr(&output).contains("prompt 4 tokens"), "{}", stderr(&output));
    // From standard input, and stopped.
    let stop: String = text.chars().skip(3).take(2).collect();
    let mut child =
        hearth(&["generate", "-"]).args(&args[2..]).args(["--stop", &stop]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"the hand").unwrap();
    let stopped = child.wait_with_output().unwrap();
    assert_eq!(stdout(&stopped), format!("{}\n", &text[..text.find(&stop).unwrap()]));
}

/// The advice in `generation_config.json` counts where no flag does, and the text is the server's.
#[tokio::test]
async fn generate_follows_the_models_advice_as_the_server_does() {
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
    // A flag goes before advice; what no flag says stays advised.
    let neutral = ["--temperature", "1", "--top-k", "0", "--repetition-penalty", "1"];
    let typical = json!({
        "prompt": "the hand", "max_tokens": 20, "seed": 3, "temperature": 1, "top_k": 0, "repetition_penalty": 1,
    });
    assert_eq!(generate(&neutral), server.complete(typical).await["choices"][0]["text"]);
    assert_eq!(generate(&["--top-k", "1"]), generate(&["--top-k", "1", "--temperature", "0.9"]));
    // And all advice can be left out, by flag or variable.
    assert_eq!(generate(&["--sampling-defaults", "openai"]), unadvised);
    let by_variable = hearth(&plain).env("HEARTH_SAMPLING_DEFAULTS", "openai").output().unwrap();
    assert_eq!(stdout(&by_variable), format!("{unadvised}\n"));
}

#[test]
fn generate_refuses_what_makes_no_sense() {
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
fn a_reader_that_has_enough_is_no_error() {
    let dir = endless_model_dir();
    let mut child = hearth(&["generate", "x", "--device", "cpu", "--model", path(dir.path()), "--max-tokens", "8000"])
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    // Graphics drivers may have written there, the program has not.
    assert!(!stderr(&output).contains("cannot write") && !stderr(&output).contains("tok/s"), "{}", stderr(&output));
}

#[test]
#[cfg(unix)]
fn serve_answers_and_stops_on_sigterm() {
    let dir = model_dir();
    let mut command = hearth(&["--port", "0", "--device", "cpu"]);
    let mut child = command.env("HEARTH_MODEL", dir.path()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let address = wait_for_line(&mut log, "listening on http://");
    let address = address.trim().rsplit_once("http://").unwrap().1.to_owned();
    wait_for_line(&mut log, "is ready");

    let body = json!({ "prompt": "the", "max_tokens": 5, "stream": true, "ignore_eos": true, "stream_options": { "include_usage": true } }).to_string();
    let mut connection = TcpStream::connect(&address).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(events(&answer).last().unwrap()["usage"]["total_tokens"], 6);

    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(exit_code(&mut child), Some(0));
}

/// A server of the tiny model, which a test that fails does not leave behind.
#[cfg(unix)]
struct Served {
    child: Child,
    log: BufReader<ChildStderr>,
    port: String,
}

#[cfg(unix)]
impl Served {
    fn start(dir: &TempDir, args: &[&str]) -> Self {
        let mut command = hearth(&["--port", "0", "--device", "cpu", "--model", path(dir.path())]);
        let mut child = command.args(args).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut served = Self { child, log, port: String::new() };
        let line = wait_for_line(&mut served.log, "listening on ");
        served.port = line.trim().rsplit_once(':').unwrap().1.to_owned();
        wait_for_line(&mut served.log, "is ready");
        served
    }

    fn stop(mut self) {
        assert!(Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap().success());
        assert_eq!(exit_code(&mut self.child), Some(0));
    }
}

#[cfg(unix)]
impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One line, to standard output or as an error, and the exit code that goes with it.
fn health(args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = hearth(&["health"]).args(args).envs(variables.iter().copied()).output().unwrap();
    let (code, out, err) = (output.status.code(), stdout(&output), stderr(&output));
    let (told, other) = if code == Some(0) { (out, err) } else { (err, out) };
    assert_eq!((told.lines().count(), other), (1, ""), "{told}");
    (code, told.to_owned())
}

#[test]
#[cfg(unix)]
fn health_asks_the_server_that_has_these_settings() {
    let dir = model_dir();
    let served = Served::start(&dir, &[]);
    let port = served.port.clone();
    let healthy = (Some(0), format!("`http://127.0.0.1:{port}/health` is healthy\n"));
    assert_eq!(health(&["--port", &port], &[]), healthy);
    assert_eq!(health(&[], &[("HEARTH_PORT", &port)]), healthy);
    // The server's command line as it is, with flags that do nothing here.
    let all = ["--port", &port, "--device", "cpu", "--model", "/nowhere/at/all", "--max-queue", "3", "--api-key", "sk"];
    assert_eq!(health(&all, &[("HEARTH_PORT", "1")]), healthy);
    // Another protocol than the server's.
    let tls = [tls_file("cert.pem"), tls_file("key.pem")];
    let tls = ["--tls-cert", path(&tls[0]), "--tls-key", path(&tls[1])];
    let (code, told) = health(&[&["--port", &port], &tls[..]].concat(), &[]);
    assert_eq!(code, Some(1));
    assert!(told.starts_with(&format!("error: `https://127.0.0.1:{port}/health`: cannot speak TLS")), "{told}");
    served.stop();
    let (code, told) = health(&["--port", &port], &[]);
    assert_eq!(code, Some(1));
    assert!(told.starts_with(&format!("error: `http://127.0.0.1:{port}/health`: cannot connect: ")), "{told}");
}

/// A server behind TLS that listens on all addresses, as in a container: it is asked over loopback, which its certificate
/// does not name.
#[test]
#[cfg(unix)]
fn health_speaks_tls_where_the_server_does() {
    let dir = model_dir();
    let files = ["other-cert.pem", "other-key.pem", "cert.pem", "key.pem"].map(tls_file);
    let [certificate, key, another, its_key] = files.each_ref().map(|file| path(file));
    let args = ["--host", "0.0.0.0", "--tls-cert", certificate, "--tls-key", key];
    let served = Served::start(&dir, &args);
    let port = served.port.clone();
    let mut variables = [
        ("HEARTH_HOST", "0.0.0.0"),
        ("HEARTH_PORT", port.as_str()),
        ("HEARTH_TLS_CERT", certificate),
        ("HEARTH_TLS_KEY", key),
    ];
    let healthy = (Some(0), format!("`https://127.0.0.1:{port}/health` is healthy\n"));
    assert_eq!(health(&[], &variables), healthy);
    assert_eq!(health(&["--port", &port, "--tls-cert", certificate], &[]), healthy);
    // Not any certificate: that of these settings.
    (variables[2].1, variables[3].1) = (another, its_key);
    let (code, told) = health(&[], &variables);
    assert_eq!(code, Some(1));
    assert!(told.contains("cannot speak TLS with the certificate of `--tls-cert`"), "{told}");
    let (code, told) = health(&["--port", &port], &[]);
    assert_eq!(code, Some(1));
    assert!(told.starts_with(&format!("error: `http://127.0.0.1:{port}/health`: ")), "{told}");
    served.stop();
}

#[test]
fn health_says_what_is_wrong_in_bounded_time() {
    // What is there and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let started = Instant::now();
    let (code, told) = health(&["--port", &port], &[]);
    assert_eq!(code, Some(1));
    assert!(told.contains("did not answer within 4 s") && started.elapsed() < Duration::from_secs(20), "{told}");
    // What is there and is not well, or no server of this kind.
    let failed = r#"{"error": {"message": "inference failed: x\nhint: y"}}"#;
    for (answer, expected) in [
        (format!("HTTP/1.1 503 Service Unavailable\r\n\r\n{failed}"), "answered 503: inference failed: x\n"),
        ("HTTP/1.1 404 Not Found\r\n\r\n<html>".to_owned(), "answered 404\n"),
        ("SSH-2.0-x\r\n".to_owned(), "the response is not HTTP/1.1: does the server use TLS (`--tls-cert`)?\n"),
        (String::new(), "the response is not HTTP/1.1: does the server use TLS (`--tls-cert`)?\n"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let server = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                connection.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            connection.write_all(answer.as_bytes()).unwrap();
        });
        let (code, told) = health(&["--port", &port], &[]);
        assert_eq!(code, Some(1));
        assert!(told.starts_with("error: ") && told.ends_with(expected), "{told}");
        server.join().unwrap();
    }
    let (code, told) = health(&["--port", "0"], &[]);
    assert_eq!(code, Some(1));
    assert!(told.starts_with("error: `--port` must be the port"), "{told}");
    let output = run(&["health", "--tls-cert", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(
        told.contains("`--tls-cert`: cannot read `/nowhere/at/all`") && told.matches("os error").count() == 1,
        "{told}"
    );
    for wrong in [&["--port", "high"][..], &["--nonsense"]] {
        assert_eq!(run(&[&["health"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
    let help = run(&["health", "--help"]);
    assert!(stdout(&help).contains("HEARTH_TLS_CERT") && !stdout(&help).contains("--max-queue"), "{}", stdout(&help));
}

/// A log that nobody takes costs no answer, and no orderly end.
#[test]
#[cfg(unix)]
fn a_log_without_a_reader_is_no_reason_to_stop() {
    let dir = model_dir();
    for reads_no_more in [true, false] {
        let mut child = hearth(&["--port", "0", "--device", "cpu", "--model", path(dir.path())]).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let line = wait_for_line(&mut log, "listening on http://");
        let address = line.trim().rsplit_once("http://").unwrap().1.to_owned();
        wait_for_line(&mut log, "is ready");
        // The other one has the pipe, but does not read: some 200 lines fill it.
        let held = (!reads_no_more).then_some(log);
        for _ in 0..if reads_no_more { 3 } else { 600 } {
            let mut connection = TcpStream::connect(&address).unwrap();
            connection.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
            let body = r#"{"prompt": "a", "max_tokens": 1}"#;
            let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ";
            connection.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        assert_eq!(exit_code(&mut child), Some(0));
        drop(held);
    }
}

#[test]
#[cfg(unix)]
fn each_request_is_one_line_in_the_log_without_keys_and_prompts() {
    let dir = model_dir();
    let keys = dir.path().join("keys");
    std::fs::write(&keys, "sk-from-the-file\n\n  sk-another  \n").unwrap();
    for logs_prompts in [false, true] {
        let mut command =
            hearth(&["--port", "0", "--device", "cpu", "--log-format", "json", "--model", path(dir.path())]);
        command.args(["--api-key", "sk-from-the-flag", "--api-key-file", path(&keys)]);
        command.args(logs_prompts.then_some("--log-prompts"));
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let line = |log: &mut _, part: &str| -> Value { serde_json::from_str(&wait_for_line(log, part)).unwrap() };
        let listening = line(&mut log, "listening on http://")["message"].as_str().unwrap().to_owned();
        let address = listening.rsplit_once("http://").unwrap().1.to_owned();
        line(&mut log, "is ready");
        let ask = |key: &str, id: &str| {
            let body = json!({ "prompt": "the secret", "max_tokens": 5, "n": 2, "ignore_eos": true }).to_string();
            let head = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\nx-request-id: {id}\r\n\
                 authorization: Bearer {key}\r\ntraceparent: 00-{:032x}-{:016x}-01\r\n\r\n",
                body.len(),
                0xabc,
                1
            );
            let mut connection = TcpStream::connect(&address).unwrap();
            connection.write_all(format!("{head}{body}").as_bytes()).unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            answer
        };
        let mut texts = String::new();
        for (key, id, status) in [("sk-wrong", "a", 401), ("sk-from-the-flag", "b", 200), ("sk-another", "c", 200)] {
            assert!(ask(key, id).starts_with(&format!("HTTP/1.1 {status}")));
            let line = line(&mut log, "POST /v1/completions");
            texts += &line.to_string();
            assert_eq!((&line["request_id"], &line["status"]), (&json!(id), &json!(status)));
            assert_eq!(line["trace_id"], format!("{:032x}", 0xabc));
            assert!(line["total_ms"].as_f64().unwrap() > 0.0);
            if status == 200 {
                assert_eq!((&line["end"], &line["completion_tokens"]), (&json!("length"), &json!(10)));
                assert_eq!(line["prompt_tokens"], 8);
                let ms = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("no {name}: {line}"));
                assert!(ms("prefill_ms") > 0.0);
                // Both are counted from the request's arrival; the log rounds to microseconds.
                assert!(ms("ttft_ms") + 0.01 >= ms("queue_ms") + ms("prefill_ms"), "{line}");
                assert!(ms("queue_ms") + ms("prefill_ms") + ms("decode_ms") <= ms("total_ms"), "{line}");
                assert_eq!(line["cached_tokens"], 0);
            }
        }
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        log.read_to_string(&mut texts).unwrap();
        assert_eq!(exit_code(&mut child), Some(0));
        assert!(!texts.contains("sk-"), "{texts}");
        assert_eq!(texts.contains("the secret"), logs_prompts, "{texts}");
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_without_telling_keys() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("keys");
    std::fs::write(&empty, "\n").unwrap();
    for (args, message) in [
        (&["--api-key", "sk two"][..], "`--api-key`: an API key must consist of visible ASCII"),
        (&["--api-key-file", path(&empty)], "the file has no key"),
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

#[test]
fn the_models_advice_on_sampling_can_be_left_out() {
    let dir = model_dir();
    std::fs::write(dir.path().join("generation_config.json"), r#"{"temperature": 0.5, "top_k": 7}"#).unwrap();
    let load = || load(dir.path(), &LoadOptions { device: Device::flex(), dtype: None }).unwrap();
    let advised = SamplingParams { temperature: 0.5, top_k: 7, ..SamplingParams::default() };
    assert_eq!(SamplingDefaults::Model.of(load()).sampling_defaults, advised);
    assert_eq!(SamplingDefaults::Openai.of(load()).sampling_defaults, SamplingParams::default());
    assert_eq!(run(&["--sampling-defaults", "mine"]).status.code(), Some(2));
    std::fs::write(dir.path().join("generation_config.json"), r#"{"top_p": 2}"#).unwrap();
    let output = run(&["--port", "0", "--device", "cpu", "--model", path(dir.path())]);
    assert!(stderr(&output).contains("generation_config.json`: `top_p` must be above 0"), "{}", stderr(&output));
}

#[cfg(unix)]
pub(crate) fn wait_for_line(log: &mut impl BufRead, part: &str) -> String {
    let mut seen = String::new();
    loop {
        let start = seen.len();
        assert!(log.read_line(&mut seen).unwrap() > 0, "no `{part}` in: {seen}");
        if seen[start..].contains(part) {
            return seen[start..].to_owned();
        }
    }
}

#[cfg(unix)]
fn exit_code(child: &mut Child) -> Option<i32> {
    child.wait().unwrap().code()
}
