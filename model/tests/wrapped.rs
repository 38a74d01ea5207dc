//! Classes that wrap a text class, against `transformers` (`golden/make_wrapped.py`): the text part opens, and is saved as its
//! own class.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use hearth_model::{
    error::Error,
    gpt::Gpt,
    weights::{
        adapter::{Adapter, AdapterModel},
        model_dir::{self, LoadOptions, SaveOptions},
    },
};
use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::golden::{Oracle, distance, golden, logits};

/// Cases, and the text classes that they are saved as.
const CASES: &[(&str, &str)] = &[
    ("gemma3", "Gemma3ForCausalLM"),
    ("mistral3", "MistralForCausalLM"),
    ("qwen2-vl", "Qwen2ForCausalLM"),
    ("qwen2-5-vl", "Qwen2ForCausalLM"),
    ("qwen3-vl", "Qwen3ForCausalLM"),
    ("qwen3-vl-moe", "Qwen3MoeForCausalLM"),
    ("qwen3_5", "Qwen3_5ForCausalLM"),
    ("gemma4", "Gemma4ForCausalLM"),
    ("gemma4-unified", "Gemma4UnifiedForCausalLM"),
    ("qwen3_5-moe", "Qwen3_5MoeForCausalLM"),
    ("muse-glimmer", "MuseGlimmerForCausalLM"),
];

fn wrapped(case: &str) -> PathBuf {
    golden("wrapped").join(case)
}

fn oracle(case: &str) -> Oracle {
    Oracle::read(&format!("wrapped/{case}"))
}

fn open(dir: &Path) -> Result<Gpt, Error> {
    model_dir::load_gpt(dir, &LoadOptions { device: Device::flex(), dtype: None })
}

/// A copy of the case with other names of tensors and another configuration.
fn changed(case: &str, name: impl Fn(&str) -> String, config: impl Fn(&mut Value)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut json: Value = serde_json::from_slice(&fs::read(wrapped(case).join("config.json")).unwrap()).unwrap();
    config(&mut json);
    fs::write(dir.path().join("config.json"), json.to_string()).unwrap();
    let bytes = fs::read(wrapped(case).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors: BTreeMap<String, TensorView<'_>> = file.iter().map(|(old, view)| (name(old), view)).collect();
    fs::write(dir.path().join("model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    dir
}

/// The name that other versions of transformers give to a tensor.
fn other_name(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        return format!("language_model.model.{rest}");
    }
    let renamed = [
        ("language_model.model.", "model.language_model."),
        ("language_model.", ""),
        ("model.visual.", "visual."),
        ("visual.", "model.visual."),
        ("vision_tower.", "model.vision_tower."),
        ("model.vision_", "vision_"),
        ("model.embed_", "embed_"),
        ("multi_modal_projector.", "model.multi_modal_projector."),
        ("model.", "model.language_model."),
    ];
    let found = renamed.iter().find_map(|(old, new)| Some(format!("{new}{}", name.strip_prefix(old)?)));
    found.unwrap_or_else(|| name.to_owned())
}

#[test]
fn text_parts_of_wrapper_classes_match_transformers() {
    for (case, class) in CASES {
        let oracle = oracle(case);
        let others = changed(case, other_name, |_| {});
        for dir in [&wrapped(case), others.path()] {
            let far = distance(&logits(&open(dir).unwrap(), &oracle), &oracle.logits);
            assert!(far < 1e-4, "{case}: logits are {far} spreads away");
            assert_eq!(model_dir::load_class(dir).unwrap(), *class);
        }
    }
}

#[test]
fn text_part_of_a_wrapper_class_is_saved_as_its_text_class() {
    for (case, class) in CASES {
        let gpt = open(&wrapped(case)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let options = SaveOptions { class: Some((*class).to_owned()), ..SaveOptions::default() };
        model_dir::save(dir.path(), &gpt, &options).unwrap();
        let config: Value = serde_json::from_slice(&fs::read(dir.path().join("config.json")).unwrap()).unwrap();
        assert_eq!((&config["architectures"], config.get("text_config")), (&json!([class]), None));
        let reopened = open(dir.path()).unwrap();
        assert_eq!(reopened.config(), gpt.config());
        assert_eq!(logits(&reopened, &oracle(case)), logits(&gpt, &oracle(case)), "{case}");
    }
}

/// Released files of Qwen 2 VL and 2.5 VL have the keys of the text part beside `vision_config`.
#[test]
fn wrapper_config_without_a_text_config_is_read() {
    for case in ["qwen2-vl", "qwen2-5-vl"] {
        let flat = |config: &mut Value| {
            let fields = config.as_object_mut().unwrap();
            let Some(Value::Object(mut text)) = fields.remove("text_config") else { unreachable!("saved so") };
            for key in ["model_type", "rope_parameters"] {
                text.remove(key);
            }
            fields.extend(text);
            fields.insert("rope_theta".to_owned(), json!(500.0));
            fields.insert("rope_scaling".to_owned(), json!({ "type": "mrope", "mrope_section": [1, 2, 1] }));
        };
        let gpt = open(changed(case, str::to_owned, flat).path()).unwrap();
        assert_eq!(gpt.config(), open(&wrapped(case)).unwrap().config(), "{case}");
    }
}

/// Released files of Gemma 3 leave out what is as in the first such model.
#[test]
fn keys_that_a_wrapper_config_may_leave_out_have_the_wrappers_defaults() {
    let config = |case, keys: &[&str]| {
        let without = |config: &mut Value| {
            let remove = |fields: &mut Value| {
                keys.iter().for_each(|key| drop(fields.as_object_mut().unwrap().remove(*key)));
            };
            remove(&mut config["text_config"]);
            remove(config);
        };
        model_dir::load_config(changed(case, str::to_owned, without).path()).unwrap()
    };
    let gemma3 = config("gemma3", &["vocab_size", "num_attention_heads", "max_position_embeddings"]);
    assert_eq!((gemma3.vocab_size, gemma3.n_heads, gemma3.max_seq_len), (262_208, 8, 131_072));
    assert!(!config("mistral3", &["tie_word_embeddings"]).tie_embeddings);
    assert_eq!(config("qwen2-vl", &["rms_norm_eps"]).norm_eps, 1e-5);
}

#[test]
fn wrapper_with_an_unknown_text_part_is_rejected_by_name() {
    let other = |config: &mut Value| config["text_config"]["model_type"] = json!("mamba");
    let error = open(changed("mistral3", str::to_owned, other).path()).unwrap_err().to_string();
    assert!(error.contains("`model_type` is \"mamba\"") && error.contains("ministral3"), "{error}");
    // A part that no wrapper is known to have.
    let audio = |name: &str| name.replace("vision_tower", "audio_tower");
    let error = open(changed("mistral3", audio, |_| {}).path()).unwrap_err().to_string();
    assert!(error.contains("audio_tower"), "{error}");
}

/// PEFT names an adapter's tensors after the model that it was trained with.
#[test]
fn adapters_of_wrapper_classes_are_read_under_all_their_names() {
    let gpt = open(&wrapped("qwen3-vl")).unwrap();
    let model = || AdapterModel::new(gpt.config(), Some("Qwen3ForCausalLM")).unwrap();
    let values: Vec<u8> = (0..24u8).flat_map(|n| f32::from(n).to_le_bytes()).collect();
    let read = |prefix: &str| {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({ "peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["o_proj"] });
        fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
        let pairs = (0..2).flat_map(|layer| {
            let tensor = |part: &str, shape: Vec<usize>| {
                let bytes = &values[..4 * shape.iter().product::<usize>()];
                let name = format!("base_model.model.{prefix}layers.{layer}.self_attn.o_proj.{part}.weight");
                (name, TensorView::new(safetensors::Dtype::F32, shape, bytes).unwrap())
            };
            [tensor("lora_A", vec![1, 24]), tensor("lora_B", vec![16, 1])]
        });
        let bytes = safetensors::serialize(pairs, None).unwrap();
        fs::write(dir.path().join("adapter_model.safetensors"), bytes).unwrap();
        Adapter::open(dir.path(), model()).map(|adapter| adapter.values)
    };
    let expected = read("model.").unwrap();
    for prefix in ["model.language_model.", "language_model.model."] {
        assert_eq!(read(prefix).unwrap(), expected, "{prefix}");
    }
    assert!(read("audio_tower.").is_err());
}
