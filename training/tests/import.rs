//! `hearth-train import` as a user runs it, on checkpoints that `golden/make_imports.py` made: the model dir computes the logits
//! of the program that wrote the checkpoint.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use burn::tensor::{Device, Int, Tensor, TensorData};
use hearth_model::{
    gpt::{Gpt, attention::AttentionContext},
    text::tokenizer::{DecodeOptions, EncodeOptions},
    weights::model_dir::{self, LoadOptions},
};
use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

/// The text that the script encodes.
const TEXT: &str = "To be, or not to be: 12345 was it?\n";

/// Largest difference of a logit, in standard deviations of the logits.
const TOLERANCE: f32 = 1e-4;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/imports").join(name)
}

fn import(checkpoint: &Path, out: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
    command.arg("import").arg(checkpoint).arg("--out").arg(out).args(flags).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder with a tokenizer of `n_tokens` tokens.
fn tokenizer(dir: &Path, n_tokens: usize) -> PathBuf {
    let vocab: serde_json::Map<_, _> = (0..n_tokens).map(|id| (format!("t{id}"), json!(id))).collect();
    let json = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "t0" },
    });
    let dir = dir.join("tokenizer");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("tokenizer.json"), json.to_string()).unwrap();
    dir
}

fn ints(file: &SafeTensors<'_>, name: &str) -> Vec<i32> {
    file.tensor(name).unwrap().data().as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect()
}

/// Asserts that the model in `dir` computes what is expected of the checkpoint `name`.
fn assert_logits(name: &str, dir: &Path) -> Gpt {
    let bytes = fs::read(golden(name).join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let expected: Vec<f32> =
        file.tensor("logits").unwrap().data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let ids = ints(&file, "input_ids");
    let device = Device::flex();
    let gpt = model_dir::load_gpt(dir, &LoadOptions { device: device.clone(), dtype: None }).unwrap();
    let n_rows = ids.len();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [n_rows]), &device);
    let logits: Vec<f32> =
        gpt.logits(gpt.forward(ids, AttentionContext::dense(1, n_rows))).into_data().try_into_vec().unwrap();
    assert_eq!(logits.len(), expected.len(), "{name}");
    let mean = expected.iter().sum::<f32>() / expected.len() as f32;
    let spread = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / expected.len() as f32).sqrt();
    assert!(spread > 0.1, "{name}: a case whose logits say nothing");
    for (found, expected) in logits.iter().zip(&expected) {
        assert!((found - expected).abs() <= TOLERANCE * spread, "{name}: {found}, expected {expected}");
    }
    gpt
}

/// Leaves the model and what it should compute in `$HEARTH_SAVE_DIR`, for `model/tests/golden/check_reopened.py`.
fn save_for_transformers_check(name: &str, dir: &Path) {
    let Some(saved) = std::env::var_os("HEARTH_SAVE_DIR") else { return };
    let saved = Path::new(&saved).join(format!("import-{name}"));
    fs::create_dir_all(&saved).unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), saved.join(entry.file_name())).unwrap();
    }
    let bytes = fs::read(golden(name).join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    // As a batch of one row.
    let batched = ["input_ids", "logits"].map(|name| {
        let tensor = file.tensor(name).unwrap();
        let shape = [&[1], tensor.shape()].concat();
        (name, TensorView::new(tensor.dtype(), shape, tensor.data()).unwrap())
    });
    fs::write(saved.join("expected.safetensors"), safetensors::serialize(batched, None).unwrap()).unwrap();
}

fn config(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap()
}

#[test]
fn imported_models_compute_the_logits_of_the_original_program() {
    let dir = tempfile::tempdir().unwrap();
    for (name, class, dtype) in [
        ("nanogpt", "GPT2LMHeadModel", "float32"),
        ("nanogpt-bf16", "GPT2LMHeadModel", "bfloat16"),
        ("litgpt-neox", "GPTNeoXForCausalLM", "float32"),
        ("litgpt-llama", "LlamaForCausalLM", "float16"),
        ("litgpt-gemma", "Gemma2ForCausalLM", "float32"),
        ("nanochat", "NanoChatForCausalLM", "float32"),
    ] {
        let out = dir.path().join(name);
        let given = tokenizer(dir.path(), 19);
        // nanoGPT's characters and nanochat's encoding are beside their checkpoints.
        let flags: &[&str] =
            if ["nanogpt", "nanochat"].contains(&name) { &[] } else { &["--tokenizer", given.to_str().unwrap()] };
        let output = import(&golden(name), &out, flags);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        assert_eq!(config(&out)["architectures"], json!([class]), "{name}");
        assert_eq!(config(&out)["dtype"], dtype, "{name}");
        assert_logits(name, &out);
        save_for_transformers_check(name, &out);
        model_dir::load(&out, &LoadOptions { device: Device::flex(), dtype: None }).unwrap();
    }
}

#[test]
fn imported_tokenizers_encode_as_the_original_ones() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["nanogpt", "nanochat"] {
        let out = dir.path().join(name);
        let output = import(&golden(name), &out, &["--json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let model = model_dir::load(&out, &LoadOptions { device: Device::flex(), dtype: None }).unwrap();
        assert_eq!(report["tokenizer_vocab_size"], model.tokenizer.vocab_size());
        let bytes = fs::read(golden(name).join("expected.safetensors")).unwrap();
        let expected = ints(&SafeTensors::deserialize(&bytes).unwrap(), "text_ids");
        let ids = model.tokenizer.encode(TEXT, EncodeOptions::TEXT).unwrap();
        assert_eq!(ids.iter().map(|&id| id as i32).collect::<Vec<_>>(), expected, "{name}");
        assert_eq!(model.tokenizer.decode(&ids, DecodeOptions { skip_special_tokens: false }), TEXT, "{name}");
        if name == "nanogpt" {
            // The embedding has 32 rows, more than there are characters. All are kept.
            assert_eq!(model.gpt.config().vocab_size, 32);
            assert!(stderr(&output).contains("the rest is kept"), "{}", stderr(&output));
        } else {
            // Of the embedding's 320 rows, only those of the tokenizer's tokens are kept.
            assert_eq!(model.gpt.config().vocab_size, model.tokenizer.vocab_size());
            let ends = ["<|assistant_end|>", "<|bos|>"].map(|token| model.tokenizer.token_id(token).unwrap());
            assert_eq!(model.eos_token_ids, ends);
            let prompt = model.tokenizer.encode("to", EncodeOptions::PROMPT).unwrap();
            assert_eq!(prompt[0], ends[1]);
            assert!(model.chat_template.is_some());
        }
    }
}

/// A copy of the golden `name`, without the files in `without`.
fn copy(name: &str, dir: &Path, without: &[&str]) -> PathBuf {
    let copy = dir.join(name);
    fs::create_dir_all(&copy).unwrap();
    for entry in fs::read_dir(golden(name)).unwrap() {
        let entry = entry.unwrap();
        if !without.contains(&entry.file_name().to_str().unwrap()) {
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
    copy
}

/// Asserts that importing fails with all of `expected` in its message, and leaves nothing.
fn assert_refused(checkpoint: &Path, flags: &[&str], expected: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let output = import(checkpoint, &dir.path().join("out"), flags);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    for part in expected {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    assert!(!dir.path().join("out").exists());
}

#[test]
fn import_without_a_tokenizer_is_rejected_saying_which_to_give() {
    let dir = tempfile::tempdir().unwrap();
    let nanogpt = copy("nanogpt", dir.path(), &["meta.pkl"]);
    assert_refused(&nanogpt, &[], &["no tokenizer for", "meta.pkl", "shakespeare_char", "GPT-2's `tokenizer.json`"]);
    let nanochat = copy("nanochat", dir.path(), &["tokenizer.pkl"]);
    assert_refused(&nanochat, &[], &["tokenizer/tokenizer.pkl", "--tokenizer PATH"]);
    assert_refused(&golden("litgpt-neox"), &[], &["tokenizer.json", "--tokenizer DIR"]);
    // The tokenizer is found where nanoGPT's own script looks for it.
    let nanogpt = copy("nanogpt", &dir.path().join("repository"), &["meta.pkl"]);
    let data = dir.path().join("repository/data/shakespeare_char");
    fs::create_dir_all(&data).unwrap();
    fs::copy(golden("nanogpt/meta.pkl"), data.join("meta.pkl")).unwrap();
    let output = import(&nanogpt.join("ckpt.pt"), &dir.path().join("out"), &[]);
    assert!(output.status.success(), "{}", stderr(&output));

    let large = tokenizer(dir.path(), 33);
    let flags = ["--tokenizer", large.to_str().unwrap()];
    assert_refused(&nanogpt, &flags, &["33 tokens", "the model in", "has 32"]);
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert_refused(&nanogpt, &["--tokenizer", empty.to_str().unwrap()], &["no `tokenizer.json`"]);
}

#[test]
fn import_rejects_missing_unknown_and_unsafe_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    assert_refused(&dir.path().join("none.pt"), &[], &["none.pt", "No such file"]);
    assert_refused(dir.path(), &[], &["has no checkpoint", "ckpt.pt", "lit_model.pth", "model_NNNNNN.pt"]);

    let lone = dir.path().join("lone.pth");
    fs::copy(golden("litgpt-llama/lit_model.pth"), &lone).unwrap();
    assert_refused(&lone, &[], &["of no known program", "model_config.yaml"]);

    let nanochat = copy("nanochat", dir.path(), &["meta_000010.json"]);
    assert_refused(&nanochat, &[], &["of no known program", "meta_NNNNNN.json"]);

    // Replaces bytes within the pickles by as many others. As in PyTorch, the archives' checksums are not verified.
    let patched = |name: &str, file: &str, from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let path = copy(name, dir.path(), &[]).join(file);
        let mut bytes = fs::read(&path).unwrap();
        let places: Vec<_> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(from.as_bytes())).collect();
        assert!(!places.is_empty(), "{from}");
        places.into_iter().for_each(|at| bytes[at..][..to.len()].copy_from_slice(to.as_bytes()));
        fs::write(&path, bytes).unwrap();
        path
    };
    for (name, file, from, to, expected) in [
        (
            "nanogpt",
            "ckpt.pt",
            "collections\nOrderedDict",
            "subprocess\ncheck_call_x",
            "asks for `subprocess.check_call_x`",
        ),
        ("nanogpt", "ckpt.pt", "dropout", "rmsnorm", "the setting `rmsnorm`, which is not known"),
        ("nanogpt", "ckpt.pt", "mlp.c_proj", "mlp.c_gate", "is missing"),
        ("nanogpt-bf16", "ckpt.pt", "BFloat16Storage", "ComplexFStorage", "asks for `torch.ComplexFStorage`"),
        ("nanochat", "model_000010.pt", "h.1.mlp.c_fc.weight", "h.1.attn.ve_gate.wt", "later form of nanochat"),
        ("nanochat", "tokenizer.pkl", "tiktoken.core", "tiktoken.evil", "asks for `tiktoken.evil.Encoding`"),
    ] {
        let path = patched(name, file, from, to);
        let message = expected;
        let checkpoint = path.parent().unwrap();
        assert_refused(checkpoint, &[], &[file, message]);
    }

    // A model that is there already is not overwritten.
    let out = dir.path().join("taken");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("model.safetensors"), "mine").unwrap();
    let output = import(&golden("nanochat"), &out, &[]);
    assert!(!output.status.success());
    assert_eq!(fs::read(out.join("model.safetensors")).unwrap(), b"mine");
}

#[test]
fn import_rejects_unknown_and_invalid_model_settings() {
    let dir = tempfile::tempdir().unwrap();
    let litgpt = copy("litgpt-llama", dir.path(), &[]);
    let path = litgpt.join("model_config.yaml");
    let yaml = fs::read_to_string(&path).unwrap();
    for (from, to, expected) in [
        ("norm_eps: 0.001", "norm_eps: .nan", "`.nan` is not a finite number"),
        ("norm_eps: 0.001", "norm_epsilon: 1.0", "`norm_epsilon`, which is not known"),
        ("n_expert: 0", "n_expert: 8", "`n_expert` is 8"),
        ("rope_interleave: false", "rope_interleave: true", "`rope_interleave` is true"),
        (
            "sliding_window_indices: null\nsliding_window_size: null",
            "sliding_window_indices:\n- 1\nsliding_window_size: 5",
            "`sliding_window_indices` is [1], which is not supported; supported: a list with 0 or 1 for each of the 2 layers",
        ),
        ("LLaMAMLP", "LLaMAMoE", "`mlp_class_name` is \"LLaMAMoE\""),
        ("n_layer: 2", "n_layer: 100000000", "`n_layers`: must be"),
        ("n_layer: 2", "n_layer: 1", "`transformer.h.1."),
        ("n_embd: 16", "n_embd: 24", "but `model_config.yaml` requires"),
    ] {
        assert!(yaml.contains(from), "{from}");
        fs::write(&path, yaml.replacen(from, to, 1)).unwrap();
        assert_refused(&litgpt, &[], &[expected]);
    }
    let nanochat = copy("nanochat", dir.path(), &[]);
    let path = nanochat.join("meta_000010.json");
    let meta = fs::read_to_string(&path).unwrap();
    for (from, to, expected) in [
        ("\"n_layer\": 2,", "\"n_layer\": 2, \"window_pattern\": \"SSSL\",", "window_pattern"),
        ("\"n_layer\": 2,", "\"n_layer\": 2, \"frozen\": true,", "`frozen`"),
        ("\"n_head\": 4,", "", "`model_config.n_head` is missing"),
        ("{", "", "is not a JSON object"),
    ] {
        assert!(meta.contains(from), "{from}");
        fs::write(&path, meta.replacen(from, to, 1)).unwrap();
        assert_refused(&nanochat, &[], &[expected]);
    }
}
