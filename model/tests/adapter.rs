//! Adapters in PEFT's format, against PEFT: those that it saved (`golden/make_adapters.py`), and those that Hearth saves
//! (`golden/check_adapters.py`).
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use hearth_model::{
    files::partial_file::PartialFile,
    gpt::{
        Gpt,
        attention::AttentionContext,
        lora::{LoraValues, Training},
    },
    ops::Dtype,
    weights::{
        DiskDtype, StagedDir,
        adapter::{Adapter, AdapterConfig, AdapterModel, Targets},
        model_dir::{self, LoadOptions, SaveOptions},
    },
};
use safetensors::{
    Dtype as StoredDtype, SafeTensors,
    tensor::{TensorView, serialize},
};
use serde_json::json;

use crate::golden::{Oracle, distance, f32s, golden, load, logits};

/// Adapters that PEFT saved, and the models that they update.
const SAVED_BY_PEFT: [(&str, &str); 11] = [
    ("separate", "llama"),
    ("patterns", "llama"),
    ("pattern-of-names", "llama"),
    ("transposed", "gpt2"),
    ("by-key-head", "gpt-neox-parallel"),
    ("interleaved", "cohere"),
    ("fused", "phi3"),
    ("experts", "qwen3-moe"),
    ("experts-transposed", "gpt-oss"),
    ("experts-of-one-parameter", "granite-moe"),
    ("experts-one-by-one", "mixtral"),
];

/// Models that Hearth makes adapters for: separate, fused, transposed and interleaved projections, and experts.
const BASES: [&str; 11] = [
    "llama",
    "gpt2",
    "gpt-neox-parallel",
    "qwen3",
    "phi3",
    "cohere",
    "gptj",
    "gpt-bigcode",
    "mixtral",
    "qwen2-moe",
    "gpt-oss",
];

/// Relative to the spread of the logits.
const TOLERANCE: f32 = 1e-4;
/// For an unmerged adapter against a merged one.
const MERGED_TOLERANCE: f32 = 2e-5;

fn options(dtype: Option<Dtype>) -> LoadOptions {
    LoadOptions { device: Device::flex(), dtype }
}

fn merged(base: &Path, values: &LoraValues) -> Gpt {
    model_dir::load_gpt_merged(base, &options(None), Some(values)).unwrap()
}

fn class_of(base: &str) -> &'static str {
    model_dir::load_class(&golden(base)).unwrap()
}

#[test]
fn peft_adapters_give_the_logits_of_peft() {
    for (case, base) in SAVED_BY_PEFT {
        let dir = golden("adapters").join(case);
        let (gpt, oracle) = (load(base, &Device::flex()), Oracle::read(base));
        let bytes = fs::read(dir.join("logits.safetensors")).unwrap();
        let expected = f32s(SafeTensors::deserialize(&bytes).unwrap().tensor("logits").unwrap().data());
        let config = gpt.config().clone();
        let model = AdapterModel::new(&config, Some(class_of(base))).unwrap();
        let adapter = Adapter::open(&dir, model).unwrap();
        let beside = gpt.with_lora(&adapter.values, 0.0, Training::No).unwrap();
        let far = distance(&logits(&beside, &oracle), &expected);
        assert!(far < TOLERANCE, "{case}: logits are {far} spreads away");
        let far = distance(&logits(&merged(&golden(base), &adapter.values), &oracle), &expected);
        assert!(far < TOLERANCE, "{case}, merged: logits are {far} spreads away");
        // The folder names its model.
        let opened = model_dir::load_gpt(&model_dir::adapter_base(&dir).unwrap(), &options(None)).unwrap();
        assert_eq!(opened.config(), &config, "{case}");
        // Saved again, it is the same.
        let out = tempfile::tempdir().unwrap();
        save(&out.path().join("again"), &adapter, model);
        assert_eq!(Adapter::open(&out.path().join("again"), model).unwrap().values, adapter.values, "{case}");
    }
}

fn save(dir: &Path, adapter: &Adapter, model: AdapterModel<'_>) {
    let staged = StagedDir::replacing(dir).unwrap();
    adapter.write(&staged, model, &[]).unwrap();
    staged.commit().unwrap();
}

/// An adapter of all linear layers of `base`, both of whose matrices have values.
fn adapter_of(base: &str, gpt: &Gpt) -> Adapter {
    let model = AdapterModel::new(gpt.config(), Some(class_of(base))).unwrap();
    let config = AdapterConfig { parameters: model.parameter_names(), ..AdapterConfig::all_linear(3, 4.0) };
    let [mut adapter, other] = [1, 2].map(|seed| Adapter::new(model, config.clone(), seed).unwrap());
    for (update, other) in adapter.values.0.values_mut().zip(other.values.0.values()) {
        let n_a = update.shape.total_rank() * update.shape.d_in;
        let n_b = update.values.len() - n_a;
        let values: Vec<f32> = other.values.iter().copied().filter(|value| *value != 0.0).cycle().take(n_b).collect();
        update.values[n_a..].copy_from_slice(&values);
    }
    adapter
}

#[test]
fn unmerged_adapter_gives_the_logits_of_the_merged_model() {
    for base in BASES {
        let (gpt, oracle) = (load(base, &Device::flex()), Oracle::read(base));
        let adapter = adapter_of(base, &gpt);
        let of_merged = logits(&merged(&golden(base), &adapter.values), &oracle);
        let moved = distance(&logits(&gpt, &oracle), &of_merged);
        assert!(moved > 0.05, "{base}: the adapter moves the logits by {moved} only");
        let beside = gpt.with_lora(&adapter.values, 0.0, Training::No).unwrap();
        assert_eq!(beside.lora().unwrap().as_ref(), Some(&adapter.values));
        let far = distance(&logits(&beside, &oracle), &of_merged);
        assert!(far < MERGED_TOLERANCE, "{base}: {far} spreads");
        // The same operations with gradients recorded.
        let trained = load(base, &Device::flex()).with_lora(&adapter.values, 0.0, Training::Yes).unwrap();
        let context = AttentionContext::dense(oracle.batch, oracle.seq_len);
        let ids = oracle.ids(&Device::flex().autodiff());
        let found = trained.logits(trained.forward(ids, context)).into_data().try_into_vec::<f32>().unwrap();
        let far = distance(&found, &of_merged);
        assert!(far < MERGED_TOLERANCE, "{base}, recorded: {far} spreads");
    }
}

/// Leaves adapters, their models and the merged models as Hearth saves them in `$HEARTH_SAVE_DIR/adapters`, with the logits
/// that Hearth computes, for `golden/check_adapters.py` to open with `peft` and `transformers`.
#[test]
fn adapters_are_saved_for_the_check_adapters_script() {
    let Some(out) = std::env::var_os("HEARTH_SAVE_DIR").map(|dir| PathBuf::from(dir).join("adapters")) else {
        println!("skipped: set HEARTH_SAVE_DIR=DIR to save adapters there for golden/check_adapters.py");
        return;
    };
    for base in BASES {
        let (gpt, oracle) = (load(base, &Device::flex()), Oracle::read(base));
        let adapter = adapter_of(base, &gpt);
        let dir = out.join(base);
        let as_class = SaveOptions { class: Some(class_of(base).to_owned()), ..SaveOptions::default() };
        model_dir::save(&dir.join("base"), &gpt, &as_class).unwrap();
        let config = gpt.config().clone();
        save(&dir.join("adapter"), &adapter, AdapterModel::new(&config, Some(class_of(base))).unwrap());
        let merged = merged(&golden(base), &adapter.values);
        model_dir::save(&dir.join("merged"), &merged, &as_class).unwrap();
        let beside = gpt.with_lora(&adapter.values, 0.0, Training::No).unwrap();
        let logits = logits(&beside, &oracle);
        let shape = [oracle.batch, oracle.seq_len, config.vocab_size];
        let ids: Vec<u8> = oracle.input_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let logits: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        let tensors = [
            ("input_ids", TensorView::new(StoredDtype::I32, shape[..2].to_vec(), &ids).unwrap()),
            ("logits", TensorView::new(StoredDtype::F32, shape.to_vec(), &logits).unwrap()),
        ];
        fs::write(dir.join("expected-of-adapter.safetensors"), serialize(tensors, None).unwrap()).unwrap();
    }
}

#[test]
fn adapter_of_another_model_or_with_bad_files_is_rejected() {
    let open = |dir: &Path, base: &str| {
        let gpt = load(base, &Device::flex());
        Adapter::open(dir, AdapterModel::new(gpt.config(), Some(class_of(base))).unwrap()).unwrap_err().to_string()
    };
    let adapters = golden("adapters");
    for (case, base, contains) in [
        ("separate", "gpt2", "belongs to another model"),
        ("transposed", "llama", "is not of a linear module of `LlamaForCausalLM`"),
        ("by-key-head", "gpt2", "belongs to another model"),
    ] {
        let error = open(&adapters.join(case), base);
        assert!(error.contains(contains), "{case} on {base}: {error}");
    }
    // A rank that its configuration does not have.
    let dir = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(adapters.join("separate").join(file), dir.path().join(file)).unwrap();
    }
    let path = dir.path().join("adapter_config.json");
    let config = fs::read_to_string(&path).unwrap();
    assert!(config.contains("\"r\": 4") && config.contains("\"lora_alpha\": 6"));
    fs::write(&path, config.replace("\"r\": 4", "\"r\": 5")).unwrap();
    let error = open(dir.path(), "llama");
    assert!(error.contains("lora_A") && error.contains("has shape [4, ") && error.contains("requires [5, "), "{error}");
    // No memory is taken for what the files do not hold.
    fs::write(&path, config.replace("\"r\": 4", "\"r\": 4611686018427387904")).unwrap();
    let error = open(dir.path(), "llama");
    assert!(error.contains("lora_A") && error.contains("requires [4611686018427387904, "), "{error}");
    fs::write(&path, config.replace("\"lora_alpha\": 6", "\"lora_alpha\": 1e300")).unwrap();
    let error = open(dir.path(), "llama");
    assert!(error.contains("`lora_alpha`"), "{error}");
    // A damaged file, and none.
    fs::write(&path, config).unwrap();
    fs::write(dir.path().join("adapter_model.safetensors"), b"short").unwrap();
    assert!(open(dir.path(), "llama").contains("is not a safetensors file"));
    fs::remove_file(dir.path().join("adapter_model.safetensors")).unwrap();
    assert!(open(dir.path(), "llama").contains("cannot read"));
    assert!(open(&dir.path().join("none"), "llama").contains("adapter_config.json"));
}

/// Otherwise it would load and do nothing, or contradict its configuration.
#[test]
fn adapter_that_targets_no_module_of_the_model_is_rejected() {
    let gpt = load("llama", &Device::flex());
    let model = AdapterModel::new(gpt.config(), Some(class_of("llama"))).unwrap();
    let no_tensors: [(&str, TensorView<'_>); 0] = [];
    let empty = serialize(no_tensors, None).unwrap();
    let pairs = fs::read(golden("adapters").join("separate/adapter_model.safetensors")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let error = |weights: &[u8], targets: &[&str], layers: &[usize]| {
        let config = json!({
            "peft_type": "LORA", "r": 4, "target_modules": targets, "layers_to_transform": layers,
        });
        fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
        fs::write(dir.path().join("adapter_model.safetensors"), weights).unwrap();
        Adapter::open(dir.path(), model).unwrap_err().to_string()
    };
    for (weights, targets, layers) in [
        (&empty, &["query"][..], &[0][..]),
        (&empty, &[], &[0]),
        (&empty, &["q_proj"], &[99]),
        (&pairs, &["query"], &[0]),
    ] {
        let error = error(weights, targets, layers);
        assert!(error.contains("adapter_config.json") && error.contains("no linear module of the model"), "{error}");
        assert!(error.contains("hint: the model has `q_proj`, "), "{error}");
    }
    let error = error(&empty, &["q_proj"], &[0]);
    assert!(error.contains("adapter_model.safetensors") && error.contains("has no pair for"), "{error}");
}

#[test]
fn adapter_of_a_module_named_with_its_layer_reopens_unchanged() {
    let gpt = load("llama", &Device::flex());
    let model = AdapterModel::new(gpt.config(), Some(class_of("llama"))).unwrap();
    let targets = Targets::Named(vec!["layers.0.self_attn.q_proj".to_owned()]);
    let config = AdapterConfig { targets, ..AdapterConfig::all_linear(2, 4.0) };
    let lacks = AdapterConfig { layers: Some(vec![0, 9]), ..config.clone() };
    let error = Adapter::new(model, lacks, 1).unwrap_err().to_string();
    assert!(error.contains("`lora.layers` has 9, but the model has the layers 0 to"), "{error}");
    let adapter = Adapter::new(model, config, 1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    save(&dir.path().join("adapter"), &adapter, model);
    let again = Adapter::open(&dir.path().join("adapter"), model).unwrap();
    assert_eq!((again.config.targets, again.values), (adapter.config.targets, adapter.values));
}

/// A folder of an adapter opens as the model that it updates, with the adapter and its own tokenizer.
#[test]
fn adapter_folder_opens_as_its_base_model_with_the_adapter() {
    let (gpt, oracle) = (load("llama", &Device::flex()), Oracle::read("llama"));
    let parent = tempfile::tempdir().unwrap();
    let tokenizer = |n_tokens: usize| {
        let vocab: serde_json::Map<_, _> = (0..n_tokens).map(|id| (format!("<{id}>"), id.into())).collect();
        let model = json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "<0>" });
        json!({ "version": "1.0", "added_tokens": [], "model": model }).to_string()
    };
    for dtype in [None, Some(Dtype::Q8)] {
        let base = parent.path().join(dtype.map_or("base", |_| "quantized"));
        let stored = model_dir::load_gpt(&golden("llama"), &options(dtype)).unwrap();
        let class = dtype.is_none().then(|| class_of("llama").to_owned());
        model_dir::save(&base, &stored, &SaveOptions { class, ..SaveOptions::default() }).unwrap();
        fs::write(base.join("tokenizer.json"), tokenizer(61)).unwrap();
        let mut adapter = adapter_of("llama", &gpt);
        adapter.config.base = Some(base.display().to_string());
        let dir = parent.path().join(dtype.map_or("adapter", |_| "of-quantized"));
        save(&dir, &adapter, AdapterModel::new(gpt.config(), Some(class_of("llama"))).unwrap());
        let found = model_dir::load(&dir, &options(None)).unwrap();
        assert_eq!(found.tokenizer.vocab_size(), 61);
        let beside = stored.with_lora(&adapter.values, 0.0, Training::No).unwrap();
        let far = distance(&logits(&found.gpt, &oracle), &logits(&beside, &oracle));
        assert!(far < MERGED_TOLERANCE, "{dtype:?}: {far} spreads");
        fs::write(dir.join("tokenizer.json"), tokenizer(9)).unwrap();
        assert_eq!(model_dir::load(&dir, &options(None)).unwrap().tokenizer.vocab_size(), 9);
        fs::write(dir.join("tokenizer.json"), tokenizer(62)).unwrap();
        let found = model_dir::load(&dir, &options(None)).unwrap();
        assert_eq!(found.tokenizer.vocab_size(), 61, "the model has no embedding for the last token");
    }
}

#[test]
fn adapter_on_a_quantized_model_works_unmerged_but_cannot_be_merged() {
    let base = "llama";
    let (gpt, oracle) = (load(base, &Device::flex()), Oracle::read(base));
    let adapter = adapter_of(base, &gpt);
    let dir = tempfile::tempdir().unwrap();
    let quantized = model_dir::load_gpt(&golden(base), &options(Some(Dtype::Q8))).unwrap();
    model_dir::save(dir.path(), &quantized, &SaveOptions::default()).unwrap();
    let error = model_dir::load_gpt_merged(dir.path(), &options(None), Some(&adapter.values)).unwrap_err().to_string();
    assert!(error.contains("is quantized") && error.contains("hint: "), "{error}");
    assert!(model_dir::is_quantized(dir.path()).unwrap() && !model_dir::is_quantized(&golden(base)).unwrap());
    // The same rounded numbers as f32, to which the adapter can be added.
    let mut params = HashMap::new();
    let read = quantized.read_params(&mut |path, data| {
        params.insert(path.to_owned(), data);
        Ok(())
    });
    read.unwrap();
    let device = Device::flex();
    let widened = Gpt::from_params(gpt.config(), Dtype::F32, &device, &mut |spec| Ok(params[&spec.path].clone()));
    let wide = tempfile::tempdir().unwrap();
    let as_class = SaveOptions { class: Some(class_of(base).to_owned()), ..SaveOptions::default() };
    model_dir::save(wide.path(), &widened.unwrap(), &as_class).unwrap();
    let expected = logits(&merged(wide.path(), &adapter.values), &oracle);
    let beside = |trains| quantized.clone().with_lora(&adapter.values, 0.0, trains).unwrap();
    // While training, products are with the widened numbers; when serving, the kernels round their inputs, too.
    let trained = beside(Training::Yes);
    let context = AttentionContext::dense(oracle.batch, oracle.seq_len);
    let found = trained.logits(trained.forward(oracle.ids(&device.autodiff()), context));
    let far = distance(&found.into_data().try_into_vec::<f32>().unwrap(), &expected);
    assert!(far < MERGED_TOLERANCE, "{far} spreads");
    let far = distance(&logits(&beside(Training::No), &oracle), &expected);
    let moved = distance(&logits(&gpt, &oracle), &expected);
    assert!(far < 0.2 * moved, "{far} of {moved}");
}

/// In the format of llama.cpp; `golden/check_with_llama_cpp.py` opens one with llama.cpp.
#[test]
fn adapter_written_to_gguf_gives_the_same_logits() {
    let dir = tempfile::tempdir().unwrap();
    for base in ["llama", "gpt2", "gpt-neox-parallel", "qwen3", "phi3"] {
        let gpt = load(base, &Device::flex());
        let (config, oracle) = (gpt.config().clone(), Oracle::read(base));
        let model = AdapterModel::new(&config, Some(class_of(base))).unwrap();
        let adapter = adapter_of(base, &gpt);
        let expected = logits(&gpt.with_lora(&adapter.values, 0.0, Training::No).unwrap(), &oracle);
        for (dtype, tolerance) in [(DiskDtype::F32, 1e-6), (DiskDtype::Bf16, 2e-2)] {
            let path = dir.path().join(format!("{base}-{dtype:?}.gguf"));
            adapter.write_gguf(PartialFile::create(&path).unwrap(), model, dtype).unwrap();
            let rank = adapter.values.max_rank();
            assert_eq!(Adapter::open_config(&path).unwrap().rank, rank, "{base}");
            let found = Adapter::open(&path, model).unwrap();
            let logits =
                logits(&load(base, &Device::flex()).with_lora(&found.values, 0.0, Training::No).unwrap(), &oracle);
            let distance = distance(&logits, &expected);
            assert!(distance < tolerance, "{base}: {distance}");
        }
    }
}

#[test]
fn gguf_adapter_that_is_malformed_or_of_another_model_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let gpt = load("llama", &Device::flex());
    let config = gpt.config().clone();
    let model = AdapterModel::new(&config, Some("LlamaForCausalLM")).unwrap();
    let path = dir.path().join("a.gguf");
    let adapter = adapter_of("llama", &gpt);
    adapter.write_gguf(PartialFile::create(&path).unwrap(), model, DiskDtype::F32).unwrap();
    let error = model_dir::load(&path, &options(None)).unwrap_err().to_string();
    assert!(error.contains("is an adapter and not a model") && error.contains("--lora"), "{error}");
    // Of the same architecture, but of another width; and of another architecture.
    for (base, contains) in [("gpt2", "requires"), ("gemma2", "of the architecture `llama`")] {
        let other = load(base, &Device::flex());
        let model = AdapterModel::new(other.config(), Some(class_of(base))).unwrap();
        let error = Adapter::open(&path, model).unwrap_err().to_string();
        assert!(error.contains(contains), "{base}: {error}");
    }
    let bytes = fs::read(&path).unwrap();
    let broken = |name: &str, from: &[u8], to: &[u8]| {
        let places: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(from)).collect();
        assert!(!places.is_empty() && from.len() == to.len());
        let mut bytes = bytes.clone();
        places.iter().for_each(|at| bytes[*at..][..from.len()].copy_from_slice(to));
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        Adapter::open(&path, model).unwrap_err().to_string()
    };
    for (from, to, contains) in [
        ("lora_a", "lora_x", "has no pairs of matrices"),
        ("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_x", "is half of a pair"),
        ("blk.0.attn_q", "blk.9.attn_q", "is not of a linear module of `llama`"),
        ("adapter.type", "adapter.tipe", "`adapter.type` is missing"),
        ("adapter.lora.alpha", "adapter.lora.alphx", "`adapter.lora.alpha` is missing"),
        ("general.type", "general.tipe", "is a model and not an adapter"),
    ] {
        let error = broken("broken.gguf", from.as_bytes(), to.as_bytes());
        assert!(error.contains(contains), "{from}: {error}");
    }
    // NaN in a tensor.
    let not_a_number = |at: usize| {
        let mut bytes = bytes.clone();
        let end = bytes.len() - at;
        bytes[end - 4..end].copy_from_slice(&f32::NAN.to_le_bytes());
        fs::write(dir.path().join("nan.gguf"), bytes).unwrap();
        Adapter::open(&dir.path().join("nan.gguf"), model).unwrap_err().to_string()
    };
    assert!(not_a_number(64).contains("infinite or NaN"));
    for n_bytes in [0, 10, bytes.len() / 2, bytes.len() - 40] {
        fs::write(dir.path().join("short.gguf"), &bytes[..n_bytes]).unwrap();
        Adapter::open(&dir.path().join("short.gguf"), model).unwrap_err();
    }
}
