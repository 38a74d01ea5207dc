//! Broken and hostile model dirs: each gives an error that names what is wrong; nothing panics, hangs or allocates what
//! the files do not hold.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "hostile/templates.rs"]
mod templates;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use burn::tensor::Device;
use hearth_model::{
    config::GptConfig,
    error::Error,
    gpt::Gpt,
    weights::model_dir::{self, LoadOptions},
};
use proptest::prelude::*;
use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case)
}

/// A copy of a golden dir, to be damaged.
struct Dir(TempDir);

impl Dir {
    fn copy(case: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in fs::read_dir(golden(case)).unwrap().map(|file| file.unwrap()) {
            fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
        Self(dir)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn weights(&self) -> Vec<u8> {
        fs::read(self.path(WEIGHTS)).unwrap()
    }

    fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(file), bytes).unwrap();
    }

    fn set(&self, changes: Value) {
        let mut config: Map<String, Value> = serde_json::from_slice(&fs::read(self.path(CONFIG)).unwrap()).unwrap();
        config.extend(changes.as_object().unwrap().clone());
        self.write(CONFIG, Value::Object(config).to_string());
    }

    fn open(&self) -> Result<Gpt, Error> {
        let options = LoadOptions { device: Device::flex(), dtype: None };
        model_dir::load_gpt(self.0.path(), &options)
    }

    /// Opening fails, and the message has all of these parts.
    fn assert_rejected(&self, parts: &[&str]) {
        let error = self.open().map(drop).unwrap_err();
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{parts:?} are not all in: {message}");
        assert!(matches!(error, Error::File { .. } | Error::Tensor { .. } | Error::Io { .. }), "{error:?}");
    }
}

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A safetensors file with this header, valid or not.
fn with_header(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// The header's entry of a tensor in f32, valid or not.
fn info(shape: &[u64], start: u64, end: u64) -> Value {
    json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] })
}

/// The tensors of `bytes`, changed.
fn rewritten(bytes: &[u8], change: impl FnOnce(&mut Vec<(String, Vec<usize>, Vec<u8>)>)) -> Vec<u8> {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let tensors = file.iter().map(|(name, tensor)| (name.to_owned(), tensor.shape().to_vec(), tensor.data().to_vec()));
    let mut tensors: Vec<_> = tensors.collect();
    change(&mut tensors);
    let view = |shape: &[usize], data| TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data).unwrap();
    safetensors::serialize(tensors.iter().map(|(name, shape, data)| (name, view(shape, data))), None).unwrap()
}

#[test]
fn truncated_and_oversized_safetensors_files_are_rejected() {
    let dir = Dir::copy("llama");
    let whole = dir.weights();
    let header_len = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for len in [0, 1, 7, 8, 9, header_len, 8 + header_len, whole.len() / 2, whole.len() - 1] {
        dir.write(WEIGHTS, &whole[..len]);
        dir.assert_rejected(&[WEIGHTS, "truncated"]);
    }
    dir.write(WEIGHTS, [&whole[..], b"x"].concat());
    dir.assert_rejected(&[WEIGHTS, "is not a safetensors file"]);
    dir.write(WEIGHTS, whole);
    dir.open().unwrap();
}

#[test]
fn safetensors_headers_with_a_false_length_are_rejected() {
    let dir = Dir::copy("llama");
    let whole = dir.weights();
    for claimed in [0, 1, 100_000_000, 100_000_001, 100_000_000_000, 1 << 63, u64::MAX] {
        dir.write(WEIGHTS, [&claimed.to_le_bytes(), &whole[8..]].concat());
        dir.assert_rejected(&[WEIGHTS, "is not a safetensors file"]);
    }
    // A sparse file whose header has the claimed 100 GB.
    let file = fs::File::create(dir.path(WEIGHTS)).unwrap();
    if file.set_len(100_000_000_008).is_ok() {
        std::io::Write::write_all(&mut &file, &100_000_000_000u64.to_le_bytes()).unwrap();
        dir.assert_rejected(&[WEIGHTS, "header too large"]);
    }
}

#[test]
fn safetensors_headers_that_are_not_tensor_lists_are_rejected() {
    let dir = Dir::copy("llama");
    let deep = "[".repeat(100_000);
    let headers: [&[u8]; 6] =
        [b"", b"{", b"[]", b"\xff\xfe{}", deep.as_bytes(), br#"{"a": {"dtype": "F31", "shape": []}}"#];
    for header in headers {
        dir.write(WEIGHTS, with_header(header, &[]));
        dir.assert_rejected(&[WEIGHTS, "is not a safetensors file"]);
    }
}

#[test]
fn invalid_safetensors_offsets_and_shapes_are_rejected() {
    let dir = Dir::copy("llama");
    let refused = [
        (json!({ "a": info(&[2], 0, 8), "b": info(&[2], 4, 12) }), "offset"),
        (json!({ "a": info(&[2], 0, 8), "b": info(&[2], 0, 8) }), "offset"),
        (json!({ "a": info(&[1], 0, 4), "b": info(&[1], 8, 12) }), "offset"),
        (json!({ "a": info(&[2], 8, 0) }), "offset"),
        (json!({ "a": info(&[3], 0, 12), "b": info(&[1], 12, 16) }), "`b`: ends at byte 16, but the file has 12"),
        (json!({ "a": info(&[u64::MAX / 4], 0, u64::MAX) }), "`a`: ends at byte"),
        // The shape does not fit the bytes, or overflows.
        (json!({ "a": info(&[4], 0, 12) }), "is not a safetensors file"),
        (json!({ "a": info(&[1 << 32, 1 << 32], 0, 12) }), "is not a safetensors file"),
        (json!({ "a": { "dtype": "F32", "shape": [3], "data_offsets": [0, -12] } }), "is not a safetensors file"),
    ];
    for (header, named) in refused {
        dir.write(WEIGHTS, with_header(header.to_string().as_bytes(), &[0; 12]));
        dir.assert_rejected(&[WEIGHTS, named]);
    }
    // Sums of lengths that come out right only because they overflow.
    let mut header = Map::new();
    let mut start = 0u64;
    for name in 0..8 {
        header.insert(format!("{name}"), info(&[1 << 58], start, start.wrapping_add(1 << 60)));
        start = start.wrapping_add(1 << 60);
    }
    dir.write(WEIGHTS, with_header(Value::Object(header).to_string().as_bytes(), &[0; 12]));
    dir.assert_rejected(&[WEIGHTS, "ends at byte"]);
}

#[test]
fn unsupported_tensor_dtype_is_rejected_by_tensor_name() {
    let dir = Dir::copy("llama");
    let name = "model.embed_tokens.weight";
    for (dtype, width) in [("I32", 4), ("F64", 8), ("F8_E4M3", 1)] {
        let header = json!({ name: { "dtype": dtype, "shape": [61, 32], "data_offsets": [0, 61 * 32 * width] } });
        dir.write(WEIGHTS, with_header(header.to_string().as_bytes(), &vec![0; 61 * 32 * width]));
        dir.assert_rejected(&[name, "supported are F32, F16 and BF16"]);
    }
}

#[test]
fn missing_surplus_and_misshapen_tensors_are_rejected_by_name() {
    let dir = Dir::copy("llama");
    let whole = dir.weights();
    let name = "model.layers.1.self_attn.k_proj.weight";
    let position = |tensors: &[(String, Vec<usize>, Vec<u8>)]| tensors.iter().position(|(n, ..)| n == name).unwrap();
    dir.write(WEIGHTS, rewritten(&whole, |tensors| drop(tensors.remove(position(tensors)))));
    dir.assert_rejected(&[WEIGHTS, name, "is missing"]);
    dir.write(
        WEIGHTS,
        rewritten(&whole, |tensors| {
            let (at, extra) = (position(tensors), "model.layers.1.self_attn.k_proj.lora_A");
            let (_, shape, data) = tensors[at].clone();
            tensors.push((extra.to_owned(), shape, data));
        }),
    );
    dir.assert_rejected(&[WEIGHTS, "k_proj.lora_A", "is not part of `LlamaForCausalLM`"]);
    for shape in [vec![32, 16], vec![512], vec![16, 32, 1], vec![4, 4, 32]] {
        dir.write(
            WEIGHTS,
            rewritten(&whole, |tensors| {
                let at = position(tensors);
                tensors[at].1 = shape;
            }),
        );
        dir.assert_rejected(&[WEIGHTS, name, "requires [16, 32]"]);
    }
    // One layer less than the file has, and one more.
    dir.write(WEIGHTS, whole);
    dir.set(json!({ "num_hidden_layers": 1 }));
    dir.assert_rejected(&["model.layers.1.", "is not part of"]);
    dir.set(json!({ "num_hidden_layers": 3 }));
    dir.assert_rejected(&["model.layers.2.", "is missing"]);
}

#[test]
fn tied_embeddings_with_two_different_matrices_are_rejected() {
    let dir = Dir::copy("gpt2-untied");
    dir.set(json!({ "tie_word_embeddings": true }));
    dir.assert_rejected(&["`lm_head.weight`", "`transformer.wte.weight`", "tie_word_embeddings"]);
    let whole = dir.weights();
    dir.write(
        WEIGHTS,
        rewritten(&whole, |tensors| {
            let embed = tensors.iter().find(|(name, ..)| name == "transformer.wte.weight").unwrap().2.clone();
            tensors.iter_mut().find(|(name, ..)| name == "lm_head.weight").unwrap().2 = embed;
        }),
    );
    dir.open().unwrap();
}

/// In every class: shapes are checked before fused tensors are split.
#[test]
fn config_widths_that_do_not_fit_the_weights_are_rejected() {
    for (case, key, embed) in [
        ("gpt2", "n_embd", "transformer.wte.weight"),
        ("phi3", "hidden_size", "model.embed_tokens.weight"),
        ("gpt-neox-serial", "hidden_size", "gpt_neox.embed_in.weight"),
        ("opt", "hidden_size", "model.decoder.embed_tokens.weight"),
        ("bloom", "hidden_size", "transformer.word_embeddings.weight"),
        ("openai-gpt", "n_embd", "transformer.tokens_embed.weight"),
        ("ctrl", "n_embd", "transformer.w.weight"),
        ("qwen3", "hidden_size", "model.embed_tokens.weight"),
        ("gemma", "hidden_size", "model.embed_tokens.weight"),
        ("stablelm", "hidden_size", "model.embed_tokens.weight"),
    ] {
        let dir = Dir::copy(case);
        let stored = SafeTensors::deserialize(&dir.weights()).unwrap().tensor(embed).unwrap().shape().to_vec();
        for width in [8, 32, 1 << 20] {
            // In OPT's files it repeats the width.
            dir.set(json!({ key: width, "word_embed_proj_dim": width }));
            if (case, width) == ("gpt-neox-serial", 8) {
                // Of heads of 4 dimensions, a quarter rotates.
                dir.assert_rejected(&[CONFIG, "`positions.rope.rotary_dim`", "2..=head_dim = 4, got 1"]);
                continue;
            }
            let shapes = format!("has shape {stored:?}, but `config.json` requires [{}, {width}]", stored[0]);
            dir.assert_rejected(&[&format!("tensor `{embed}`"), &shapes]);
        }
    }
    // A fused matrix, of queries, keys and values or of gate and up projection.
    for (change, tensor, shapes) in [
        (json!({ "num_key_value_heads": 2 }), "self_attn.qkv_proj", "[32, 16], but `config.json` requires [48, 16]"),
        (json!({ "intermediate_size": 30 }), "mlp.gate_up_proj", "[56, 16], but `config.json` requires [60, 16]"),
    ] {
        let dir = Dir::copy("phi3");
        dir.set(change);
        dir.assert_rejected(&[&format!("tensor `model.layers.0.{tensor}.weight`"), shapes]);
    }
}

/// The peak memory of this process in bytes; none where the system does not report it.
fn peak_memory() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok()? * 1024)
}

#[test]
fn huge_config_sizes_are_rejected_without_allocating() {
    let huge: Value = json!(1u64 << 28);
    let sizes = [
        "vocab_size",
        "max_position_embeddings",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "hidden_size",
        "intermediate_size",
    ];
    let all: Map<_, _> = sizes.iter().map(|key| ((*key).to_owned(), huge.clone())).collect();
    let mut attacks: Vec<Value> = vec![
        Value::Object(all),
        json!({ "num_attention_heads": 1 << 20, "num_key_value_heads": 1 << 20, "head_dim": 1 << 20 }),
        json!({ "num_hidden_layers": 4096 }),
        json!({ "num_hidden_layers": 4096, "hidden_size": 1 << 20, "intermediate_size": 1 << 20 }),
        json!({ "hidden_size": 0 }),
        json!({ "num_attention_heads": 0 }),
        json!({ "num_key_value_heads": 0 }),
    ];
    for key in sizes.iter().filter(|key| **key != "max_position_embeddings") {
        for size in [json!(1 << 28), json!((1u64 << 28) + 1), json!(u64::MAX), json!(1e300)] {
            attacks.push(json!({ *key: size }));
        }
    }
    for attack in attacks {
        let dir = Dir::copy("llama");
        dir.set(attack);
        dir.assert_rejected(&[CONFIG]);
    }
    // The same with the keys of `HearthForCausalLM`: every field has a limit.
    let mut own = serde_json::to_value(model_dir::load_config(&golden("llama")).unwrap()).unwrap();
    own["architectures"] = json!(["HearthForCausalLM"]);
    for key in ["vocab_size", "n_layers", "n_heads", "head_dim", "d_model", "d_ff", "sliding_window", "max_seq_len"] {
        for size in [json!(1u64 << 33), json!(u64::MAX), json!(0)] {
            let dir = Dir::copy("llama");
            let mut config = own.clone();
            config[key] = size;
            dir.write(CONFIG, config.to_string());
            dir.assert_rejected(&[CONFIG, key]);
        }
    }
    let gpt2 = Dir::copy("gpt2");
    for (key, size) in [("n_embd", u64::MAX), ("n_positions", 1 << 28), ("n_inner", 1 << 28)] {
        gpt2.set(json!({ key: size }));
        gpt2.assert_rejected(&[CONFIG]);
    }
    if let Some(peak) = peak_memory() {
        assert!(peak < 1 << 30, "{peak} bytes were held");
    }
}

#[test]
fn malformed_config_json_is_rejected() {
    let dir = Dir::copy("llama");
    let deep = format!("{{\"a\": {}", "[".repeat(100_000));
    let texts: [&[u8]; 8] =
        [b"", b"null", b"[]", b"\"llama\"", b"{", b"\xff", deep.as_bytes(), br#"{"hidden_size": 1e999}"#];
    for text in texts {
        dir.write(CONFIG, text);
        dir.assert_rejected(&[CONFIG]);
    }
    for value in [json!("LlamaForCausalLM"), json!([]), json!([1]), json!({})] {
        dir.write(CONFIG, json!({ "architectures": value }).to_string());
        dir.assert_rejected(&[CONFIG]);
    }
}

#[test]
fn shard_index_with_invalid_file_names_or_tensors_is_rejected() {
    let dir = Dir::copy("llama-sharded");
    let index: Value = serde_json::from_slice(&fs::read(dir.path(INDEX)).unwrap()).unwrap();
    let name = "model.embed_tokens.weight";
    let outside = ["../model.safetensors", "/etc/passwd", "sub/../../model.safetensors", "..", ".", "", "./a/../../b"];
    for file in outside.into_iter().map(Value::from).chain([json!(1), Value::Null, json!(["a"])]) {
        let mut index = index.clone();
        index["weight_map"][name] = file;
        dir.write(INDEX, index.to_string());
        dir.assert_rejected(&[INDEX, name, "is not the path of a file in its folder"]);
    }
    let mut dotted = index.clone();
    dotted["weight_map"][name] = json!(format!("./{}", index["weight_map"][name].as_str().unwrap()));
    dir.write(INDEX, dotted.to_string());
    dir.open().unwrap();
    let mut missing = index.clone();
    missing["weight_map"][name] = json!("model-00009-of-00005.safetensors");
    dir.write(INDEX, missing.to_string());
    dir.assert_rejected(&["model-00009-of-00005.safetensors"]);
    // Tensors that no shard holds.
    let mut unheld = index.clone();
    unheld["weight_map"]["no.such.tensor"] = index["weight_map"][name].clone();
    dir.write(INDEX, unheld.to_string());
    dir.assert_rejected(&[INDEX, "no.such.tensor", "does not have it"]);
    fs::copy(dir.path("model-00001-of-00005.safetensors"), dir.path("model-00002-of-00005.safetensors")).unwrap();
    dir.write(INDEX, index.to_string());
    dir.assert_rejected(&[INDEX, "`model-00002-of-00005.safetensors`, which does not have it"]);
    for text in ["", "[]", "{}", "{\"weight_map\": []}"] {
        dir.write(INDEX, text);
        dir.assert_rejected(&[INDEX]);
    }
}

#[test]
fn folders_and_pipes_in_place_of_model_files_are_rejected() {
    for file in [CONFIG, WEIGHTS] {
        let dir = Dir::copy("llama");
        fs::remove_file(dir.path(file)).unwrap();
        if std::process::Command::new("mkfifo").arg(dir.path(file)).status().is_ok_and(|status| status.success()) {
            dir.assert_rejected(&[file, "is not a regular file"]);
            fs::remove_file(dir.path(file)).unwrap();
        }
        fs::create_dir(dir.path(file)).unwrap();
        dir.assert_rejected(&[file, "is a folder"]);
    }
}

fn tokenizer_json(ids: &[u32]) -> String {
    let vocab: Map<_, _> = ids.iter().map(|id| (format!("t{id}"), json!(id))).collect();
    json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "t0" },
    })
    .to_string()
}

#[test]
fn tokenizer_that_is_empty_or_has_a_huge_id_is_rejected() {
    let dir = Dir::copy("llama");
    let open = || model_dir::load(dir.0.path(), &LoadOptions { device: Device::flex(), dtype: None });
    dir.write("tokenizer.json", tokenizer_json(&[0, 1, 60]));
    assert_eq!(open().unwrap().gpt.config().vocab_size, 61);
    dir.write("tokenizer.json", tokenizer_json(&[0, u32::MAX]));
    let error = open().map(drop).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
    dir.write("tokenizer.json", tokenizer_json(&[]).replace("\"t0\"", "\"\""));
    let error = open().map(drop).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json") && error.contains("has no tokens"), "{error}");
}

/// Small models are often saved with the ids of the large ones.
#[test]
fn eos_token_ids_outside_the_vocabulary_are_dropped_with_a_warning() {
    let dir = Dir::copy("llama");
    dir.write("tokenizer.json", tokenizer_json(&[0, 1, 60]));
    let log = Log::default();
    let open = |config: Value, generation: Value| {
        dir.set(json!({ "eos_token_id": config }));
        dir.write("generation_config.json", json!({ "eos_token_id": generation }).to_string());
        let options = LoadOptions { device: Device::flex(), dtype: None };
        let opened = tracing::subscriber::with_default(log.clone(), || model_dir::load(dir.0.path(), &options));
        let warning = std::mem::take(&mut *log.0.lock().unwrap());
        opened.map(|model| (model.eos_token_ids, warning)).map_err(|error| error.to_string())
    };
    assert_eq!(open(json!(5), json!([60, 2])), Ok((vec![60, 2], String::new())));
    let (ids, warning) = open(json!(50256), json!([60, 61])).unwrap();
    assert_eq!(ids, [60]);
    assert!(warning.contains("generation_config.json") && warning.contains("[61]"), "{warning}");
    let (ids, warning) = open(json!(7), json!([-1, 4_294_967_298i64])).unwrap();
    assert_eq!(ids, [7]);
    assert!(warning.contains("[-1, 4294967298]"), "{warning}");
    for wrong in [json!("</s>"), json!(1.5), json!([1, null]), json!({ "id": 1 }), json!([[1]])] {
        let (ids, warning) = open(json!(5), wrong).unwrap();
        assert_eq!(ids, [5]);
        assert!(warning.contains("generation_config.json") && warning.contains("`eos_token_id`"), "{warning}");
    }
}

/// Models that were tuned on chats often name the token that ends a turn only there.
#[test]
fn eos_of_the_tokenizer_ends_answers_beside_that_of_the_generation_config() {
    let dir = Dir::copy("llama");
    dir.write("tokenizer.json", tokenizer_json(&[0, 1, 2, 60]));
    let eos_token_ids = |config: Value, generation: Value, eos: &str| {
        dir.set(config);
        dir.write("generation_config.json", generation.to_string());
        dir.write("tokenizer_config.json", json!({ "eos_token": eos }).to_string());
        let options = LoadOptions { device: Device::flex(), dtype: None };
        model_dir::load(dir.0.path(), &options).unwrap().eos_token_ids
    };
    assert_eq!(eos_token_ids(json!({ "eos_token_id": 5 }), json!({ "eos_token_id": 1 }), "t2"), [1, 2]);
    assert_eq!(eos_token_ids(json!({ "eos_token_id": 5 }), json!({}), "t2"), [5, 2]);
    assert_eq!(eos_token_ids(json!({ "eos_token_id": [2, 1] }), json!({}), "t1"), [2, 1]);
    assert_eq!(eos_token_ids(json!({ "eos_token_id": null }), json!({}), "t60"), [60]);
}

/// Keeps the log messages.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields<'a>(&'a mut String);
        impl tracing::field::Visit for Fields<'_> {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                writeln!(self.0, "{value:?}").unwrap();
            }
        }
        event.record(&mut Fields(&mut self.0.lock().unwrap()));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn nan_and_infinite_weights_open_with_a_warning_that_names_them() {
    let dir = Dir::copy("llama");
    let log = Log::default();
    let open = || {
        tracing::subscriber::with_default(log.clone(), || dir.open().unwrap());
        std::mem::take(&mut *log.0.lock().unwrap())
    };
    assert_eq!(open(), "");
    let damaged = ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"];
    let whole = dir.weights();
    dir.write(
        WEIGHTS,
        rewritten(&whole, |tensors| {
            for (name, value) in damaged.iter().zip([f32::NAN, f32::INFINITY]) {
                let (.., data) = tensors.iter_mut().find(|(n, ..)| n == name).unwrap();
                data[4..8].copy_from_slice(&value.to_le_bytes());
            }
        }),
    );
    let warning = open();
    assert!(damaged.iter().all(|name| warning.contains(&format!("`{name}`"))), "{warning}");
    assert!(!warning.contains("gate_proj") && !warning.contains("layers.1"), "{warning}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// With any bytes changed, opening returns a model or an error.
    #[test]
    fn damaged_safetensors_headers_never_panic(damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let dir = Dir::copy("rope-linear");
        let mut bytes = dir.weights();
        let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for (at, byte) in damages {
            bytes[at.index(8 + header_len)] = byte;
        }
        dir.write(WEIGHTS, bytes);
        drop(dir.open());
    }

    #[test]
    fn damaged_config_json_never_panics(
        case in prop::sample::select(vec!["gpt2", "llama", "mistral", "qwen3", "phi3", "gemma", "opt", "bloom", "ctrl", "rope-yarn"]),
        key in any::<prop::sample::Index>(),
        value in prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            (0..100u32).prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            ".*".prop_map(Value::from),
            Just(Value::Null),
            Just(json!([])),
            Just(json!({})),
        ],
    ) {
        let dir = Dir::copy(case);
        let config: Map<String, Value> = serde_json::from_slice(&fs::read(dir.path(CONFIG)).unwrap()).unwrap();
        let key = config.keys().nth(key.index(config.len())).unwrap().clone();
        dir.set(json!({ key: value }));
        drop(dir.open());
    }

    /// The parameters of configurations that pass can be counted without overflow.
    #[test]
    fn valid_config_has_a_parameter_count_that_does_not_overflow(sizes in prop::array::uniform8(0..40u32), power in 1..40u32) {
        let size = |n: usize| 1usize << (sizes[n] % power.max(1));
        let config = GptConfig {
            vocab_size: size(0),
            max_seq_len: size(1),
            n_layers: size(2),
            n_heads: size(3),
            n_kv_heads: size(4),
            head_dim: size(5),
            d_model: size(6),
            d_ff: size(7),
            positions: hearth_model::config::Positions::Learned,
            ..model_dir::load_config(&golden("llama")).unwrap()
        };
        if config.validate().is_ok() {
            prop_assert!((1..1 << 51).contains(&config.n_params()));
        }
    }
}
