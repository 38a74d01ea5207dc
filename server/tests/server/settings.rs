//! Settings of the binary: precedence of flags and variables, limits of memory, interrupted writes, and unusual files.

use std::{fs, process::Output};

use hearth_model::{files::partial_file::PartialFile, system::signals::ignores_hangups};
use serde_json::{Value, json};

use crate::cli::{hearth, model_dir, path, run, stderr, stdout};

const BENCH: [&str; 13] =
    ["bench", "--device", "cpu", "--prefill", "8", "--prompt", "8", "--steps", "4", "--batch", "1", "--runs", "1"];

fn bench(args: &[&str], variables: &[(&str, &str)]) -> Output {
    hearth(&[&BENCH, args].concat()).envs(variables.iter().copied()).output().unwrap()
}

fn dtype(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    let report: Value = serde_json::from_str(stdout(output).lines().last().unwrap()).unwrap();
    report["dtype"].as_str().unwrap().to_owned()
}

#[test]
fn command_line_flags_override_environment_variables() {
    let model = model_dir();
    let model = path(model.path());
    let with = |args: &[&str], variables: &[(&str, &str)]| bench(&[args, &["--model", model]].concat(), variables);
    assert_eq!(dtype(&with(&["--quantize", "q8"], &[("HEARTH_DTYPE", "f32")])), "q8");
    assert_eq!(dtype(&with(&["--dtype", "f16"], &[("HEARTH_QUANTIZE", "q8")])), "f16");
    assert_eq!(dtype(&with(&[], &[("HEARTH_QUANTIZE", "q8"), ("HEARTH_DTYPE", "")])), "q8");
    let both = [("HEARTH_DTYPE", "f32"), ("HEARTH_QUANTIZE", "q8")];
    assert_eq!(dtype(&with(&["--quantize", "q4"], &both)), "q4");
    // `--random` ignores `HEARTH_MODEL`, whose file does not exist.
    assert_eq!(dtype(&bench(&["--random", model], &[("HEARTH_MODEL", "/nowhere/at/all")])), "f32");

    let refused = with(&[], &both);
    assert_eq!(refused.status.code(), Some(2));
    let message = stderr(&refused);
    for name in ["`HEARTH_DTYPE`", "`HEARTH_QUANTIZE`", "`--dtype`", "`--quantize`", "hint: "] {
        assert!(message.contains(name), "{name}: {message}");
    }
    // Two exclusive flags are rejected, and so are two variables where the subcommand `serve` is implied.
    let refused = with(&["--quantize", "q8", "--dtype", "f32"], &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("cannot be used with"), "{}", stderr(&refused));
    let refused = hearth(&["--port", "0"]).envs(both).output().unwrap();
    assert!(stderr(&refused).contains("exclude each other, but both are set"), "{}", stderr(&refused));
}

#[test]
fn model_larger_than_memory_is_rejected_before_loading() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128_256, "hidden_size": 65_536,
        "intermediate_size": 262_144, "num_hidden_layers": 500, "num_attention_heads": 512, "num_key_value_heads": 512,
        "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 0.00001,
    });
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let text = dir.path().join("text");
    fs::write(&text, "some text").unwrap();
    let model = path(dir.path());
    for args in [
        &["serve", "--port", "0"][..],
        &["generate", "x"],
        &["generate", "x", "--quantize", "q4"],
        &["bench"],
        &["perplexity", path(&text)],
    ] {
        let output = run(&[args, &["--model", model, "--device", "cpu"]].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", stderr(&output));
        let message = stderr(&output);
        assert!(message.contains("GiB of memory, but there are"), "{args:?}: {message}");
        assert!(message.contains(model) && message.contains("hint: "), "{message}");
    }
}

#[test]
fn bench_random_uses_the_dtype_of_a_quantized_model_dir() {
    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let rounded = parent.path().join("rounded");
    let output = run(&["quantize", path(model.path()), path(&rounded), "--quantize", "q4"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(dtype(&bench(&["--random", path(&rounded)], &[])), "q4");
    assert_eq!(dtype(&bench(&["--random", path(&rounded), "--dtype", "f16"], &[])), "f16");
}

/// Whenever it is interrupted, the output is the whole model or nothing, and the partial folder is removed.
#[test]
#[cfg(unix)]
fn interrupted_quantize_leaves_a_whole_model_or_nothing() {
    use std::{thread, time::Duration};

    let model = model_dir();
    // A large file, so that copying takes a while.
    fs::write(model.path().join("vocab.json"), vec![b' '; 200 << 20]).unwrap();
    let mut n_interrupted = 0;
    for attempt in 0..6 {
        let (signal, interrupted) = if attempt < 3 { ("-INT", 130) } else { ("-TERM", 143) };
        let parent = tempfile::tempdir().unwrap();
        let (out, partial) = (parent.path().join("out"), parent.path().join("out.hearth-partial"));
        let mut child = hearth(&["quantize", path(model.path()), path(&out)]).spawn().unwrap();
        while !partial.exists() && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(10 * (attempt % 3)));
        let killed = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        let code = child.wait().unwrap().code();
        assert!(!partial.exists(), "exit code {code:?}, kill {killed}");
        assert_eq!(out.exists(), out.join("config.json").exists());
        n_interrupted += usize::from(code == Some(interrupted));
        assert!(out.exists() || code != Some(0));
    }
    assert!(n_interrupted > 0, "the test shows too little");
}

#[test]
#[cfg(unix)]
fn interrupted_export_leaves_no_files() {
    use std::{fs::File, io::Read, process::Command};

    let model = model_dir();
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        // Programs that this process starts ignore it, too.
        if signal == "-HUP" && ignores_hangups() {
            println!("skipped: SIGHUP, which is ignored here; run the tests without `nohup`");
            continue;
        }
        let parent = tempfile::tempdir().unwrap();
        let (out, partial) = (parent.path().join("out.gguf"), parent.path().join("out.gguf.hearth-partial"));
        assert!(Command::new("mkfifo").arg(&partial).status().unwrap().success());
        let mut child = hearth(&["export", path(model.path()), path(&out)]).spawn().unwrap();
        // It writes more than a pipe holds, and nobody reads the rest: it cannot end by itself.
        let mut pipe = File::open(&partial).unwrap();
        pipe.read_exact(&mut [0; 10]).unwrap();
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0, "{signal}");
    }
}

/// Another process is writing the same file: what it has written so far stays.
#[test]
#[cfg(unix)]
fn interrupted_export_leaves_the_partial_file_of_another_process() {
    use std::{fs::File, io::Read, process::Command};

    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let out = parent.path().join("out.gguf");
    let other = PartialFile::create(&out).unwrap();
    let own = parent.path().join("out.gguf.hearth-partial-2");
    assert!(Command::new("mkfifo").arg(&own).status().unwrap().success());
    let mut child = hearth(&["export", path(model.path()), path(&out)]).spawn().unwrap();
    let mut pipe = File::open(&own).unwrap();
    pipe.read_exact(&mut [0; 10]).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!own.exists());
    other.finish().unwrap();
    assert!(out.is_file());
}

#[test]
#[cfg(unix)]
fn broken_symlinks_and_device_files_are_reported_as_such() {
    use std::os::unix::fs::symlink;

    let model = model_dir();
    let config = model.path().join("config.json");
    fs::remove_file(&config).unwrap();
    symlink("../blobs/gone", &config).unwrap();
    let output = run(&["generate", "x", "--model", path(model.path())]);
    let expected = "config.json`: is a link to `../blobs/gone`, which does not exist\nhint: ";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    let link = model.path().join("link");
    symlink("/nowhere/at/all", &link).unwrap();
    let output = run(&["generate", "x", "--model", path(&link)]);
    assert!(stderr(&output).contains("is a link to `/nowhere/at/all`"), "{}", stderr(&output));

    let output = run(&["perplexity", "/dev/zero"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("`/dev/zero`: is a device"), "{}", stderr(&output));
}
