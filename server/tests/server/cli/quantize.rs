//! `hearth quantize`, and models that are quantized when they are loaded.

use std::{
    fs::{self, File},
    path::Path,
};

use serde_json::Value;

use super::{hearth, model_dir, path, run, stderr, stdout};

/// A stored quantized model generates the text of quantizing at load, and all files beside the weights are copied.
#[test]
fn quantized_model_dir_generates_like_quantizing_at_load() {
    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let templates = model.path().join("additional_chat_templates");
    fs::create_dir(&templates).unwrap();
    fs::write(templates.join("tool_use.jinja"), "{{ tools }}").unwrap();
    fs::write(model.path().join("chat_template.jinja"), "{{ messages }}").unwrap();
    fs::write(model.path().join("generation_config.json"), r#"{"top_k": 3, "do_sample": true}"#).unwrap();
    let out = parent.path().join("rounded");
    let partial = parent.path().join("rounded.hearth-partial");
    fs::create_dir(&partial).unwrap();
    // A running process holds a lock on its partial folder.
    let at_work = File::open(&partial).unwrap();
    at_work.lock().unwrap();
    let refused = run(&["quantize", path(model.path()), path(&out), "--quantize", "q4"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("rounded.hearth-partial`: another process"), "{}", stderr(&refused));
    // After it was killed, the folder is unlocked and replaced.
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
    // An empty working directory is filled, as it cannot be replaced.
    let here = parent.path().join("here");
    fs::create_dir(&here).unwrap();
    let filled = hearth(&["quantize", path(model.path()), "."]).current_dir(&here).output().unwrap();
    assert_eq!(filled.status.code(), Some(0), "{}", stderr(&filled));
    assert_eq!(fs::read(here.join("tokenizer.json")).unwrap(), fs::read(model.path().join("tokenizer.json")).unwrap());
    assert_eq!(generate(&here, &[]), generate(model.path(), &["--quantize", "q8"]));
    let both = run(&["generate", "a", "--dtype", "f16", "--quantize", "q8"]);
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));
}

/// A GGUF file has everything that a model dir needs.
#[test]
fn gguf_quantized_to_a_model_dir_generates_like_quantizing_at_load() {
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

/// Rounding would turn these weights into infinities, or hide that they are not finite.
#[test]
fn weights_outside_the_range_of_a_dtype_are_rejected_by_name() {
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

/// A run has its model in a folder of its own, whose size is stated. What is not written is stated, too.
#[test]
fn quantized_run_states_the_size_before_and_the_prediction_head_that_it_leaves_out() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/prediction-heads/qwen3_5");
    let parent = tempfile::tempdir().unwrap();
    let (run_dir, out) = (parent.path().join("run"), parent.path().join("rounded"));
    let model = run_dir.join("model");
    fs::create_dir_all(&model).unwrap();
    fs::write(run_dir.join("config.toml"), "").unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(golden.join(name), model.join(name)).unwrap();
    }
    fs::copy(model_dir().path().join("tokenizer.json"), model.join("tokenizer.json")).unwrap();
    let output = run(&["quantize", path(&run_dir), path(&out)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let stated = stdout(&output);
    assert!(stated.contains(", from 0.1 MB, without the prediction head (0.0 MB)"), "{stated}");
    assert!(stated.contains("so `--speculative mtp` needs the original; serve it with"), "{stated}");
}
