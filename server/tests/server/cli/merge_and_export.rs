//! `hearth merge` and `hearth export`.

use std::{fs, path::Path};

use hearth_model::weights::{
    StagedDir,
    adapter::{Adapter, AdapterConfig, AdapterModel},
    model_dir,
};

use super::{model_dir as tiny_model, path, run, stderr, stdout};

/// Writes an adapter of the model in `base` that changes its output.
fn save_adapter(base: &Path, dir: &Path) {
    let config = model_dir::load_config(base).unwrap();
    let model = AdapterModel::new(&config, model_dir::load_class(base).ok()).unwrap();
    let settings = AdapterConfig { base: Some(base.display().to_string()), ..AdapterConfig::all_linear(2, 8.0) };
    let mut adapter = Adapter::new(model, settings, 3).unwrap();
    for (number, update) in adapter.values.0.values_mut().enumerate() {
        let n_a = update.shape.total_rank() * update.shape.d_in;
        let values = update.values[n_a..].iter_mut().enumerate();
        values.for_each(|(n, value)| *value = ((n * 7 + number) % 11) as f32 / 5.0 - 1.0);
    }
    let staged = StagedDir::replacing(dir).unwrap();
    adapter.write(&staged, model, &[]).unwrap();
    staged.commit().unwrap();
}

fn generate(model: &Path) -> String {
    let output = run(&["generate", "abcab", "--model", path(model), "--device", "cpu", "--temperature", "0"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output).to_owned()
}

#[test]
fn merged_model_generates_the_text_of_base_plus_adapter() {
    let (base, parent) = (tiny_model(), tempfile::tempdir().unwrap());
    let (adapter, merged) = (parent.path().join("adapter"), parent.path().join("merged"));
    save_adapter(base.path(), &adapter);
    let output = run(&["merge", path(base.path()), path(&adapter), path(&merged)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("MB of weights; serve it with `hearth serve --model "), "{}", stdout(&output));
    let [plain, with, as_merged] = [base.path(), &adapter, &merged].map(generate);
    assert_eq!(with, as_merged);
    assert_ne!(plain, with, "the adapter changes nothing");
    // An adapter cannot be merged into quantized weights, only used beside them.
    let rounded = parent.path().join("rounded");
    assert_eq!(run(&["quantize", path(base.path()), path(&rounded)]).status.code(), Some(0));
    let output = run(&["merge", path(&rounded), path(&adapter), path(&parent.path().join("no"))]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("the weights are stored in `q8`") && stderr(&output).contains("hint: "),
        "{}",
        stderr(&output)
    );
    assert!(!parent.path().join("no").exists());
    let beside = parent.path().join("beside");
    save_adapter(&rounded, &beside);
    generate(&beside);
    // An adapter whose base model is missing.
    let config = adapter.join("adapter_config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace(path(base.path()), "/nowhere/model")).unwrap();
    let output = run(&["generate", "a", "--model", path(&adapter), "--device", "cpu"]);
    assert!(
        stderr(&output).contains("the model that it updates is not on this machine\nhint: "),
        "{}",
        stderr(&output)
    );
    let output = run(&["merge", path(base.path()), path(base.path()), path(&parent.path().join("other"))]);
    assert!(stderr(&output).contains("adapter_config.json"), "{}", stderr(&output));
}

#[test]
fn bench_reads_adapters_before_the_model_and_lists_those_in_use() {
    let (base, parent) = (tiny_model(), tempfile::tempdir().unwrap());
    let adapters = ["one", "two"].map(|name| parent.path().join(name));
    adapters.iter().for_each(|dir| save_adapter(base.path(), dir));
    let bench = ["bench", "--device", "cpu", "--prefill", "8", "--prompt", "8", "--steps", "2", "--runs", "1"];
    let with = ["--model", path(base.path()), "--batch", "1", "2", "--lora", path(&adapters[0]), "--lora"];
    let output = run(&[&bench[..], &with, &[path(&adapters[1])]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for job in ["decode, 1 sequences ", "decode, 1 sequences, 1 adapters ", "decode, 2 sequences, 2 adapters "] {
        assert!(stdout(&output).contains(job), "{job} is not in {}", stdout(&output));
    }
    let missing = parent.path().join("missing");
    fs::write(base.path().join("model.safetensors"), "broken").unwrap();
    let output = run(&[&bench[..], &with, &[path(&missing)]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("missing/adapter_config.json"), "{}", stderr(&output));
}

#[test]
fn gguf_export_keeps_the_text_and_rejects_unsupported_tokenizers() {
    let (model, parent) = (tiny_model(), tempfile::tempdir().unwrap());
    let out = parent.path().join("out.gguf");
    let output = run(&["export", path(model.path()), path(&out)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("MB; serve it with `hearth serve --model "), "{}", stdout(&output));
    assert_eq!(generate(&out), generate(model.path()));
    let output = run(&["export", path(model.path()), path(&out)]);
    assert!(stderr(&output).contains("already exists\nhint: "), "{}", stderr(&output));
    let both = run(&["export", path(model.path()), path(&out), "--dtype", "f16", "--quantize", "q8"]);
    assert_eq!(both.status.code(), Some(2));
    let nowhere = parent.path().join("nowhere/out.gguf");
    let output = run(&["export", path(model.path()), path(&nowhere)]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("cannot write `") && message.contains("nowhere` does not exist"), "{message}");
    fs::remove_file(&out).unwrap();
    let tokenizer = model.path().join("tokenizer.json");
    let text = fs::read_to_string(&tokenizer).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["pre_tokenizer"] = serde_json::json!({ "type": "Whitespace" });
    fs::write(&tokenizer, json.to_string()).unwrap();
    let output = run(&["export", path(model.path()), path(&out)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("`tokenizer.json`") && stderr(&output).contains("hint: "), "{}", stderr(&output));
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
}
