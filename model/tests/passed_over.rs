//! Model dirs that transformers opens although something in them is odd: they give the numbers of the plain folder.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use hearth_model::{
    decode::sampling::SamplingParams,
    error::Error,
    gpt::{Gpt, attention::AttentionContext, token_ids::token_tensor},
    text::tokenizer::EncodeOptions,
    weights::model_dir::{self, LoadOptions, LoadedModel},
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Shape and values of each tensor.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case)
}

/// A copy of the configuration of a golden dir, and its tensors.
fn copy(case: &str) -> (TempDir, Tensors) {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(golden(case).join("config.json"), dir.path().join("config.json")).unwrap();
    let bytes = fs::read(golden(case).join(WEIGHTS)).unwrap();
    let tensor = |(name, view): (&str, TensorView<'_>)| {
        let values = view.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        (name.to_owned(), (view.shape().to_vec(), values))
    };
    (dir, SafeTensors::deserialize(&bytes).unwrap().iter().map(tensor).collect())
}

fn write(path: &Path, tensors: &Tensors) {
    let bytes: BTreeMap<_, Vec<u8>> = tensors
        .iter()
        .map(|(name, (_, values))| (name, values.iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let view = |(name, (shape, _)): (&String, &(Vec<usize>, _))| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), &bytes[name]).unwrap())
    };
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, safetensors::serialize(tensors.iter().map(view), None).unwrap()).unwrap();
}

fn options() -> LoadOptions {
    LoadOptions { device: Device::flex(), dtype: None }
}

fn open(dir: &Path) -> Result<Gpt, Error> {
    model_dir::load_gpt(dir, &options())
}

fn logits(gpt: &Gpt) -> Vec<f32> {
    let ids: Vec<u32> = (0..17).map(|n| n * 5 % gpt.config().vocab_size as u32).collect();
    let hidden = gpt.forward(token_tensor(gpt, &ids), AttentionContext::dense(1, ids.len()));
    gpt.logits(hidden).into_data().try_into_vec().unwrap()
}

fn assert_same(dir: &Path, case: &str) {
    assert_eq!(logits(&open(dir).unwrap()), logits(&open(&golden(case)).unwrap()), "{case}");
}

#[test]
fn tied_model_may_have_the_head_in_place_of_the_embedding() {
    for (case, embed) in [
        ("gpt2", "transformer.wte.weight"),
        ("gemma", "model.embed_tokens.weight"),
        ("llama-tied-bias", "model.embed_tokens.weight"),
        ("opt", "model.decoder.embed_tokens.weight"),
    ] {
        let (dir, mut tensors) = copy(case);
        let values = tensors.remove(embed).unwrap();
        tensors.insert("lm_head.weight".to_owned(), values);
        write(&dir.path().join(WEIGHTS), &tensors);
        assert_same(dir.path(), case);
    }
    // Without tied embeddings, the head is another matrix.
    let (dir, mut tensors) = copy("llama");
    tensors.remove("model.embed_tokens.weight");
    write(&dir.path().join(WEIGHTS), &tensors);
    assert!(open(dir.path()).unwrap_err().to_string().contains("`model.embed_tokens.weight`: is missing"));
}

#[test]
fn surplus_tensors_that_are_no_parameters_are_passed_over() {
    for (case, name, shape) in [
        ("qwen3", "model.layers.0.self_attn.rotary_emb.inv_freq", vec![4]),
        ("granite", "model.rotary_emb.inv_freq", vec![4]),
        ("qwen3", "model.layers.1.self_attn.k_scale", vec![]),
        ("llama", "model.layers.1.self_attn.v_proj.v_scale", vec![1]),
        ("llama", "layers.0.self_attn.bias", vec![1, 1, 4, 4]),
        ("qwen3", "model.layers.0.self_attn.masked_bias", vec![]),
        ("cohere", "v_head.summary.weight", vec![1, 4]),
        // Layers that have the keys and values of earlier ones.
        ("gemma4-per-layer", "model.layers.2.self_attn.k_proj.weight", vec![16, 16]),
        ("gemma4-per-layer", "model.layers.3.self_attn.v_proj.weight", vec![24, 16]),
        ("gemma4-per-layer", "layers.3.self_attn.k_norm.weight", vec![12]),
    ] {
        let (dir, mut tensors) = copy(case);
        let n = shape.iter().product();
        tensors.insert(name.to_owned(), (shape, vec![0.5; n]));
        write(&dir.path().join(WEIGHTS), &tensors);
        assert_same(dir.path(), case);
    }
    for name in ["model.layers.0.self_attn.bias", "model.layers.0.self_attn.k_proj.weight_scale", "lm_head.bias"] {
        let (dir, mut tensors) = copy("llama");
        tensors.insert(name.to_owned(), (vec![16], vec![0.5; 16]));
        write(&dir.path().join(WEIGHTS), &tensors);
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}`: is not part of `LlamaForCausalLM`")), "{error}");
    }
    // The last layers without and with the window that have keys of their own.
    for name in ["model.layers.0.self_attn.k_proj.bias", "model.layers.1.self_attn.v_norm.weight"] {
        let (dir, mut tensors) = copy("gemma4-per-layer");
        tensors.insert(name.to_owned(), (vec![8], vec![0.5; 8]));
        write(&dir.path().join(WEIGHTS), &tensors);
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}`: is not part of `Gemma4ForCausalLM`")), "{error}");
    }
}

/// As in transformers, whatever the index says about such a tensor.
#[test]
fn tensor_in_several_shards_is_that_of_the_last_file_by_name() {
    const NAME: &str = "model.norm.weight";
    let write_shards = |overlay: &str, main: &str, good_is_in: &str, index_names: &str| {
        let (dir, mut tensors) = copy("llama");
        let good = tensors[NAME].clone();
        let bad = (good.0.clone(), vec![7.0; good.1.len()]);
        let [of_main, of_overlay] = if good_is_in == main { [&good, &bad] } else { [&bad, &good] };
        tensors.insert(NAME.to_owned(), of_main.clone());
        write(&dir.path().join(main), &tensors);
        write(&dir.path().join(overlay), &[(NAME.to_owned(), of_overlay.clone())].into());
        let mut map: Map<String, Value> = tensors.keys().map(|name| (name.clone(), json!(main))).collect();
        map.insert(NAME.to_owned(), json!(index_names));
        // Files count that are in the index at all.
        map.insert("model.embed_tokens.weight".to_owned(), json!(main));
        if index_names == main {
            map.insert("model.layers.0.input_layernorm.weight".to_owned(), json!(overlay));
        }
        fs::write(dir.path().join(INDEX), json!({ "weight_map": map }).to_string()).unwrap();
        dir
    };
    let dir = write_shards("overlay.safetensors", "main.safetensors", "overlay.safetensors", "overlay.safetensors");
    assert_same(dir.path(), "llama");
    let dir = write_shards("a.safetensors", "main.safetensors", "main.safetensors", "a.safetensors");
    assert_same(dir.path(), "llama");
    let dir = write_shards("overlay.safetensors", "main.safetensors", "overlay.safetensors", "main.safetensors");
    assert_same(dir.path(), "llama");
    let dir = write_shards("sub/b.safetensors", "./sub/a.safetensors", "sub/b.safetensors", "sub/b.safetensors");
    assert_same(dir.path(), "llama");
    let files = model_dir::weight_files(dir.path()).unwrap();
    assert_eq!(files, ["sub/a.safetensors", "sub/b.safetensors"].map(|name| dir.path().join(name)));
}

/// A model dir of the Llama golden case with a tokenizer of `n_tokens` words `<0>`, `<1>` and so on.
fn with_tokenizer(n_tokens: usize) -> TempDir {
    let (dir, tensors) = copy("llama");
    write(&dir.path().join(WEIGHTS), &tensors);
    let vocab: Map<String, Value> = (0..61).map(|id| (format!("<{id}>"), id.into())).collect();
    let added: Vec<Value> = (61..n_tokens)
        .map(|id| {
            json!({
                "id": id, "content": format!("<{id}>"), "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect();
    let json = json!({
        "added_tokens": added,
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<0>" },
    });
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    dir
}

fn load(dir: &TempDir) -> LoadedModel {
    model_dir::load(dir.path(), &options()).unwrap()
}

/// Gemma 3 270M has one token more than its model, CodeLlama 34B four.
#[test]
fn token_beyond_the_vocabulary_of_the_model_is_an_error_only_in_a_text() {
    for n_tokens in [62, 65] {
        let dir = with_tokenizer(n_tokens);
        let last = n_tokens - 1;
        fs::write(dir.path().join("tokenizer_config.json"), json!({ "eos_token": format!("<{last}>") }).to_string())
            .unwrap();
        let loaded = load(&dir);
        assert_eq!(loaded.tokenizer.vocab_size(), 61);
        assert_eq!(loaded.eos_token_ids, [2], "those of the golden files");
        for tokenizer in [loaded.tokenizer, model_dir::load_tokenizer(dir.path()).unwrap()] {
            assert_eq!(tokenizer.encode("<3> <60>", EncodeOptions::PROMPT).unwrap(), [3, 60]);
            let error = tokenizer.encode(&format!("<3> <{last}>"), EncodeOptions::PROMPT).unwrap_err().to_string();
            let expected = format!("the token `<{last}>` (id {last}) is not in the model's vocabulary of 61 tokens");
            assert!(error.contains(&expected), "{error}");
            assert_eq!(tokenizer.encode(&format!("<3> <{last}>"), EncodeOptions::TEXT).unwrap(), [3, 0], "as text");
        }
    }
}

#[test]
fn generation_config_with_values_out_of_range_is_read_without_them() {
    let dir = with_tokenizer(61);
    let text = r#"{"do_sample": true, "temperature": 0.5, "top_p": 1.5, "top_k": -7, "min_p": NaN, "eos_token_id": "</s>", "min_p": Infinity}"#;
    fs::write(dir.path().join("generation_config.json"), text).unwrap();
    let loaded = load(&dir);
    assert_eq!(loaded.sampling_defaults, SamplingParams { temperature: 0.5, ..SamplingParams::default() });
    assert_eq!(loaded.eos_token_ids, [2], "those of `config.json`");
}

/// As Python's `json` reads it.
#[test]
fn tokenizer_config_may_have_a_key_twice_and_infinite_numbers() {
    let dir = with_tokenizer(61);
    let text = r#"{"bos_token": "<1>", "model_max_length": Infinity, "bos_token": "<5>"}"#;
    fs::write(dir.path().join("tokenizer_config.json"), text).unwrap();
    assert_eq!(load(&dir).tokenizer.bos().unwrap().id, 5);
}
