//! `config.json`: older and newer keys of transformers, configurations that no class expresses, and values that are
//! rejected by name.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use hearth_model::{
    config::{Activation, GptConfig, NormKind, NormPosition, Positions, Rope, RopeScaling, Sizes},
    error::Error,
    gpt::{Gpt, attention::AttentionContext, token_ids::token_tensor},
    weights::{
        known_architectures,
        model_dir::{self, LoadOptions, SaveOptions},
    },
};
use serde_json::{Map, Value, json};

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case)
}

pub(crate) fn config_json(case: &str) -> Map<String, Value> {
    serde_json::from_slice(&fs::read(golden(case).join("config.json")).unwrap()).unwrap()
}

/// What is read from such a `config.json`.
pub(crate) fn read(json: &Map<String, Value>) -> Result<GptConfig, Error> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), Value::Object(json.clone()).to_string()).unwrap();
    model_dir::load_config(dir.path())
}

pub(crate) fn with(case: &str, key: &str, value: Value) -> Map<String, Value> {
    let mut json = config_json(case);
    json.insert(key.to_owned(), value);
    json
}

const ROPE_CASES: &[&str] = &[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "smollm3",
    "granite",
    "olmo2",
    "phi3",
    "stablelm",
    "stablelm-parallel",
    "phi",
    "falcon",
    "falcon-new",
    "cohere",
    "cohere2",
    "starcoder2",
    "ministral",
    "exaone4",
    "ernie4-5",
    "glm",
    "glm4",
    "seed-oss",
    "arcee",
    "nemotron",
    "jais2",
    "hyperclovax",
    "olmo",
    "helium",
    "cwm",
    "gemma",
    "gemma2",
    "gpt-neox-parallel",
    "gpt-neox-serial",
    "rope-linear",
    "rope-llama3",
    "rope-yarn",
    "phi3-longrope",
    "rope-dynamic",
];

/// The golden files have the keys of transformers 5; earlier versions wrote other keys.
#[test]
fn older_rope_and_dtype_keys_read_like_the_newer_ones() {
    for case in ROPE_CASES {
        let newer = config_json(case);
        for kind_key in ["rope_type", "type"] {
            let mut older = newer.clone();
            let Some(Value::Object(mut nested)) = older.remove("rope_parameters") else { unreachable!() };
            let is_neox = case.starts_with("gpt-neox");
            let (theta, share) =
                if is_neox { ("rotary_emb_base", "rotary_pct") } else { ("rope_theta", "partial_rotary_factor") };
            older.insert(theta.to_owned(), nested.remove("rope_theta").unwrap());
            if let Some(value) = nested.remove("partial_rotary_factor") {
                older.insert(share.to_owned(), value);
            }
            let kind = nested.remove("rope_type").unwrap();
            if kind == "default" {
                older.insert("rope_scaling".to_owned(), Value::Null);
            } else {
                nested.insert(kind_key.to_owned(), kind);
                older.insert("rope_scaling".to_owned(), Value::Object(nested));
            }
            let dtype = older.remove("dtype").unwrap();
            older.insert("torch_dtype".to_owned(), dtype);
            assert_eq!(read(&older).unwrap(), read(&newer).unwrap(), "{case}");
        }
    }
}

fn sizes() -> Sizes {
    Sizes { vocab_size: 23, max_seq_len: 40, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 24, d_ff: 20 }
}

/// Configurations that no Hugging Face class expresses, each for another reason.
fn own_configs() -> Vec<GptConfig> {
    let llama = GptConfig::llama(sizes());
    let gpt2 = GptConfig::gpt2(Sizes { n_kv_heads: 4, ..sizes() });
    let yarn = RopeScaling::Yarn {
        factor: 3.5,
        attention_factor: 1.1,
        beta_fast: 16.0,
        beta_slow: 0.5,
        original_max_seq_len: 13,
        truncate: false,
    };
    vec![
        GptConfig { positions: Positions::Alibi, ..llama.clone() },
        // nanoGPT without biases.
        GptConfig { norm_bias: false, qkv_bias: false, attn_out_bias: false, mlp_bias: false, ..gpt2.clone() },
        GptConfig { norm_position: NormPosition::Post, qk_norm: true, embed_norm: true, ..llama.clone() },
        GptConfig {
            norm: NormKind::LayerNorm,
            norm_bias: true,
            lm_head_bias: true,
            norm_weight_offset: 0.5,
            final_norm_eps: Some(0.1),
            ..llama.clone()
        },
        GptConfig {
            positions: Positions::Rope(Rope { theta: 123.25, rotary_dim: 4, scaling: yarn }),
            activation: Activation::Relu,
            sliding_window: Some(3),
            dropout: 0.25,
            ..llama.clone()
        },
        GptConfig { norm_position: NormPosition::Sandwich, qk_norm: true, residual_multiplier: 0.3, ..llama.clone() },
        GptConfig { parallel_residual: true, shared_norm: true, logit_softcap: Some(7.5), ..llama.clone() },
        GptConfig {
            sliding_window: Some(3),
            full_layers: vec![1],
            unrotated_layers: vec![0],
            window_rope: Some(Rope::new(77.0, 4)),
            embedding_multiplier: 1.1,
            logit_multiplier: 0.3,
            attention_scale: Some(0.3),
            ..llama.clone()
        },
        GptConfig { attention_softcap: Some(3.0), ..llama.clone() },
        GptConfig { positions: Positions::None, final_norm: false, ..llama },
        GptConfig { positions: Positions::Sinusoidal, scale_embeddings: true, tie_embeddings: false, ..gpt2 },
    ]
}

fn logits(gpt: &Gpt) -> Vec<f32> {
    let ids: Vec<u32> = (0..17).map(|n| n * 5 % 23).collect();
    let hidden = gpt.forward(token_tensor(gpt, &ids), AttentionContext::dense(1, ids.len()));
    gpt.logits(hidden).into_data().try_into_vec().unwrap()
}

#[test]
fn config_that_no_hugging_face_class_has_is_saved_as_hearth_class() {
    let device = Device::flex();
    for config in own_configs() {
        let gpt = Gpt::init(&config, 3, &device).unwrap();
        let dir = tempfile::tempdir().unwrap();
        model_dir::save(dir.path(), &gpt, &SaveOptions::default()).unwrap();
        assert_eq!(model_dir::load_class(dir.path()).unwrap(), "HearthForCausalLM", "{config:?}");
        let options = LoadOptions { device: device.clone(), dtype: None };
        let reopened = model_dir::load_gpt(dir.path(), &options).unwrap();
        assert_eq!(reopened.config(), &config);
        assert_eq!(logits(&reopened), logits(&gpt), "{config:?}");
        // Saving it under any other class is rejected.
        for class in known_architectures().into_iter().filter(|class| *class != "HearthForCausalLM") {
            let options = SaveOptions { class: Some(class.to_owned()), ..SaveOptions::default() };
            let error = model_dir::save(dir.path(), &gpt, &options).unwrap_err().to_string();
            assert!(error.contains(class) && error.contains("cannot express"), "{error}");
        }
    }
}

/// Files of `HearthForCausalLM` may lack the keys for layers of different kinds, multipliers and soft caps.
#[test]
fn hearth_config_without_newer_keys_is_read() {
    let config = GptConfig { positions: Positions::Alibi, ..GptConfig::llama(sizes()) };
    let mut json = serde_json::to_value(&config).unwrap();
    let json = json.as_object_mut().unwrap();
    json.insert("architectures".to_owned(), json!(["HearthForCausalLM"]));
    let newer = [
        "qk_norm_span",
        "shared_norm",
        "embedding_multiplier",
        "residual_multiplier",
        "logit_multiplier",
        "logit_softcap",
        "attention_scale",
        "attention_softcap",
        "full_layers",
        "unrotated_layers",
        "window_rope",
    ];
    for key in newer {
        json.remove(key).unwrap();
    }
    assert_eq!(read(json).unwrap(), config);
}

#[test]
fn saving_under_a_requested_class_uses_it_or_is_rejected() {
    let gpt = Gpt::init(&GptConfig::llama(sizes()), 3, &Device::flex()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let save = |class: Option<&str>| {
        let options = SaveOptions { class: class.map(str::to_owned), ..SaveOptions::default() };
        model_dir::save(dir.path(), &gpt, &options).map(|()| model_dir::load_class(dir.path()).unwrap())
    };
    // Several classes have the same architecture.
    assert_eq!(save(None).unwrap(), "LlamaForCausalLM");
    for class in ["LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "HearthForCausalLM"] {
        assert_eq!(save(Some(class)).unwrap(), class);
        assert_eq!(&model_dir::load_config(dir.path()).unwrap(), gpt.config());
    }
    let error = save(Some("NoSuchModel")).unwrap_err().to_string();
    assert!(error.contains("`NoSuchModel` is not known"), "{error}");
}

#[test]
fn unknown_architecture_is_rejected_with_the_list_of_known_ones() {
    let refused = [
        (with("llama", "architectures", json!(["Qwen2ForRewardModel"])), "architecture `Qwen2ForRewardModel`"),
        (with("llama", "architectures", json!(["LlamaForTokenClassification"])), "LlamaForTokenClassification"),
    ];
    let mut by_type = with("llama", "model_type", json!("mamba"));
    by_type.remove("architectures");
    for (json, named) in refused.into_iter().chain([(by_type, "model type `mamba`")]) {
        let error = read(&json).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
        assert!(known_architectures().iter().all(|class| error.contains(class)), "{error}");
    }
    let error = read(&Map::new()).unwrap_err().to_string();
    assert!(error.contains("neither `architectures` nor `model_type`"), "{error}");
}

#[test]
fn refused_architectures_that_people_ask_for_say_what_they_would_need() {
    for (class, reason) in [
        ("Gemma3nForConditionalGeneration", "several residual streams"),
        ("Gemma3nForCausalLM", "Gemma 4 are supported"),
        ("PhiMoEForCausalLM", "one after the other"),
        ("Mamba2ForCausalLM", "no attention"),
    ] {
        let error = read(
            &with("llama", "architectures", json!([class]))
                .into_iter()
                .filter(|(key, _)| key != "model_type")
                .collect(),
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains(&format!("`{class}` is not supported: ")) && error.contains(reason), "{error}");
    }
}

/// The `model_type` alone says which class it is, as in `AutoModelForCausalLM`.
#[test]
fn known_model_type_decides_whatever_the_class_is_called() {
    for case in ["gpt2", "llama", "bloom", "ctrl", "qwen3"] {
        let mut json = config_json(case);
        json.remove("architectures");
        assert_eq!(read(&json).unwrap(), read(&config_json(case)).unwrap());
        for class in [json!(["LLaMAForCausalLM"]), json!(["Qwen3Model"]), json!([]), json!("Qwen2ForCausalLM")] {
            assert_eq!(read(&with(case, "architectures", class)).unwrap(), read(&config_json(case)).unwrap());
        }
    }
    // Mistral's default for the number of key heads, which Llama does not have.
    let mut json = with("llama", "model_type", json!("mistral"));
    json.remove("num_key_value_heads");
    json.insert("num_attention_heads".to_owned(), json!(16));
    assert_eq!(read(&json).unwrap().n_kv_heads, 8);
    // A type that is not known is not asked.
    read(&with("llama", "model_type", json!("llama-of-someone"))).unwrap();
}

/// As Python's `json` reads it. What is not read may be any number.
#[test]
pub(crate) fn config_json_may_have_nan_infinity_and_keys_twice() {
    let text = Value::Object(config_json("llama")).to_string();
    let read_text = |text: &str| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), text).unwrap();
        model_dir::load_config(dir.path())
    };
    let odd = text.replacen(
        '{',
        "{\"hidden_size\": 8, \"time_step_limit\": [0.0, Infinity], \"x\": -Infinity, \"y\": NaN,",
        1,
    );
    assert_eq!(read_text(&odd).unwrap(), read(&config_json("llama")).unwrap());
    let error = read_text(&text.replace("0.001", "Infinity")).unwrap_err().to_string();
    assert!(error.contains("`rms_norm_eps` must be a number, got \"Infinity\""), "{error}");
    assert!(read_text(&text.replace("0.001", "infinity")).unwrap_err().to_string().contains("is not a JSON object"));
}

#[test]
fn unsupported_config_values_are_rejected_by_key() {
    let layers = |kinds: [&str; 2]| json!(kinds);
    let refused = [
        ("llama", "quantization_config", json!({ "quant_method": "aqlm" })),
        ("llama", "hidden_act", json!("quick_gelu")),
        ("llama", "attn_logit_softcapping", json!(50.0)),
        ("llama", "final_logit_softcapping", json!(30.0)),
        ("llama", "query_pre_attn_scalar", json!(256)),
        ("llama", "attention_multiplier", json!(0.015)),
        ("llama", "embedding_multiplier", json!(12)),
        ("llama", "residual_multiplier", json!(0.22)),
        ("llama", "logits_scaling", json!(8.0)),
        ("llama", "num_local_experts", json!(8)),
        ("llama", "per_layer_config", json!({ "1": { "rms_norm_eps": 1e-3 } })),
        ("llama", "is_causal", json!(false)),
        ("llama", "partial_rotary_factor", json!(0.5)),
        ("llama", "sliding_window", json!(5)),
        ("llama", "layer_types", layers(["full_attention", "linear_attention"])),
        ("gpt2", "scale_attn_weights", json!(false)),
        ("gpt2", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("gpt2", "add_cross_attention", json!(true)),
        ("gpt2", "num_hidden_layers", json!(1)),
        ("falcon", "n_head", json!(1)),
        ("gpt2", "activation_function", json!("tanh")),
        ("mistral", "attention_bias", json!(true)),
        ("llama", "layer_types", json!(["full_attention"])),
        ("mistral", "layer_types", layers(["full_attention", "sliding_attention"])),
        ("qwen2", "layer_types", layers(["full_attention", "sliding_attention"])),
        ("qwen3", "mlp_bias", json!(true)),
        ("smollm3", "no_rope_layers", json!([1, 0])),
        ("smollm3", "no_rope_layers", json!([1, 0, 2])),
        ("smollm3", "layer_types", json!(["full_attention", "full_attention", "chunked_attention"])),
        ("gemma3", "attn_logit_softcapping", json!(50.0)),
        ("gemma3", "use_bidirectional_attention", json!(true)),
        ("gemma3", "hidden_activation", json!("tanh")),
        ("olmo2", "clip_qkv", json!(8.0)),
        ("gemma", "use_bidirectional_attention", json!(true)),
        ("gemma", "hidden_act", json!("tanh")),
        ("gemma", "hidden_activation", json!("gelu")),
        ("gpt-neox-serial", "qk_layernorm", json!(true)),
        ("gptj", "rotary_dim", Value::Null),
        ("falcon", "alibi", json!(true)),
        ("falcon", "num_ln_in_parallel_attn", json!(2)),
        ("falcon-new", "parallel_attn", json!(false)),
        ("cohere2", "use_qk_norm", json!(true)),
        ("solar-open", "use_qk_norm", json!(true)),
        ("cohere2", "layer_types", json!(["full_attention"])),
        ("opt", "word_embed_proj_dim", json!(8)),
        ("opt", "layer_norm_elementwise_affine", json!(false)),
        ("bloom", "apply_residual_connection_post_layernorm", json!(true)),
        ("openai-gpt", "afn", json!("gelu_new")),
        ("ctrl", "is_encoder_decoder", json!(true)),
        ("mpt", "no_bias", json!(false)),
        ("mpt", "expansion_ratio", json!(2)),
        ("codegen", "n_embd", json!(18)),
        ("hunyuan", "num_experts", json!(8)),
        ("apertus", "hidden_act", json!("silu")),
        ("minicpm", "sparse_config", json!({ "topk": 64 })),
        ("ministral3", "attention_bias", json!(true)),
        ("ministral", "layer_types", json!(["chunked_attention", "full_attention", "full_attention"])),
        ("glm4", "sliding_window", json!(5)),
        ("bamba", "hidden_act", json!("gelu")),
        ("gpt-neox-serial", "head_dim", json!(12)),
        ("granite4-h", "hidden_act", json!("gelu")),
    ];
    for (case, key, value) in refused {
        let error = read(&with(case, key, value.clone())).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")) && error.contains("not supported"), "{case}, {key}: {error}");
        assert!(error.contains("config.json"), "{error}");
    }
    let mut slices = with("bloom", "slow_but_exact", json!(true));
    read(&slices).unwrap();
    slices.insert("pretraining_tp".to_owned(), json!(2));
    let error = read(&slices).unwrap_err().to_string();
    assert!(error.contains("`slow_but_exact`"), "{error}");
    // Neutral values of such keys are accepted.
    for (key, value) in [
        ("logits_scaling", json!(1)),
        ("num_local_experts", json!(0)),
        ("per_layer_config", json!({})),
        ("layer_types", Value::Null),
    ] {
        read(&with("llama", key, value)).unwrap();
    }
}

#[test]
fn out_of_range_config_value_error_names_field_and_key() {
    let cases = [
        ("llama", "num_hidden_layers", json!(0), "`n_layers`"),
        ("gpt2", "n_layer", json!(5000), "`n_layers`"),
        ("llama", "rms_norm_eps", json!(-1.0), "`norm_eps`"),
        ("mistral", "sliding_window", json!(1u64 << 40), "`sliding_window`"),
        ("llama", "rope_parameters", json!({ "rope_type": "default", "rope_theta": 0.5 }), "`positions.rope.theta`"),
        (
            "llama",
            "rope_parameters",
            json!({ "rope_type": "linear", "rope_theta": 500.0, "factor": 0.5 }),
            "`positions.rope.scaling.linear.factor`",
        ),
        (
            "gemma3",
            "rope_parameters",
            json!({ "full_attention": { "rope_theta": 500.0 }, "sliding_attention": { "rope_theta": 0.5 } }),
            "`window_rope.theta`",
        ),
    ];
    for (case, key, value, field) in cases {
        let error = read(&with(case, key, value)).unwrap_err().to_string();
        assert!(error.contains(field), "{case}, {key}: {error}");
        assert_eq!(error.contains(&format!("hint: it is set by `{key}`")), key != "sliding_window", "{error}");
    }
}

/// The layers without rotary positions by their interval, and the windows that follow from them.
#[test]
fn no_rope_layer_interval_sets_unrotated_and_windowed_layers() {
    let mut json = config_json("smollm3");
    for key in ["no_rope_layers", "layer_types"] {
        json.remove(key).unwrap();
    }
    json.insert("num_hidden_layers".to_owned(), json!(5));
    let config = read(&json).unwrap();
    assert_eq!((config.unrotated_layers, config.full_layers), (vec![3], vec![0, 1, 2, 4]));
    json.insert("no_rope_layer_interval".to_owned(), json!(2));
    json.insert("use_sliding_window".to_owned(), json!(false));
    let config = read(&json).unwrap();
    assert_eq!((config.unrotated_layers, config.sliding_window), (vec![1, 3], None));
    json.insert("no_rope_layer_interval".to_owned(), json!(0));
    let error = read(&json).unwrap_err().to_string();
    assert!(error.contains("`no_rope_layer_interval`"), "{error}");
}

#[test]
fn out_of_range_multipliers_and_layer_lists_are_rejected_by_name() {
    let refused = [
        ("granite", "residual_multiplier", json!(0.0), "residual_multiplier"),
        ("granite", "logits_scaling", json!(0), "logit_multiplier"),
        ("granite", "attention_multiplier", json!(-1.0), "attention_scale"),
        ("granite", "embedding_multiplier", json!(1e40), "embedding_multiplier"),
    ];
    for (case, key, value, named) in refused {
        let error = read(&with(case, key, value)).unwrap_err().to_string();
        assert!(error.contains(named), "{case}, {key}: {error}");
    }
    let own = |change: &dyn Fn(&mut GptConfig)| {
        let mut config = GptConfig::llama(sizes());
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    assert!(own(&|c| c.full_layers = vec![0]).contains("`full_layers`"));
    assert!(own(&|c| c.unrotated_layers = vec![1, 0]).contains("`unrotated_layers`"));
    assert!(own(&|c| c.unrotated_layers = vec![2]).contains("`unrotated_layers`"));
    assert!(own(&|c| c.window_rope = Some(Rope::new(9.0, 2))).contains("`window_rope`"));
    assert!(own(&|c| c.shared_norm = true).contains("`shared_norm`"));
    let error = own(&|c| {
        let scaling = RopeScaling::Linear { factor: 0.5 };
        (c.sliding_window, c.window_rope) = (Some(3), Some(Rope { scaling, ..Rope::new(9.0, 2) }));
    });
    assert!(error.contains("`window_rope.scaling.linear.factor`"), "{error}");
}

/// `null` has another meaning than a missing key.
#[test]
fn missing_num_key_value_heads_uses_the_default_of_the_class() {
    let n_kv_heads = |case: &str, value: Option<Value>| {
        let mut json = config_json(case);
        json.remove("num_key_value_heads");
        json.extend(value.map(|value| ("num_key_value_heads".to_owned(), value)));
        json.insert("num_attention_heads".to_owned(), json!(64));
        json.insert("hidden_size".to_owned(), json!(1024));
        read(&json).unwrap().n_kv_heads
    };
    for (case, absent) in [("mistral", 8), ("qwen2", 32), ("qwen3", 32), ("gemma", 16), ("llama", 64), ("phi3", 64)] {
        assert_eq!(n_kv_heads(case, None), absent, "{case}");
        assert_eq!(n_kv_heads(case, Some(Value::Null)), 64, "{case}");
    }
}

/// Qwen's windows have four keys.
#[test]
fn sliding_window_keys_give_windows_in_no_some_or_all_layers() {
    let read = |changes: Value| {
        let mut json = config_json("qwen2");
        json.remove("layer_types");
        json.extend(changes.as_object().unwrap().clone());
        read(&json)
    };
    let used = |max_window_layers: usize| json!({ "use_sliding_window": true, "sliding_window": 5, "max_window_layers": max_window_layers });
    assert_eq!(read(json!({ "sliding_window": 5 })).unwrap().sliding_window, None);
    assert_eq!(read(used(0)).unwrap().sliding_window, Some(5));
    assert_eq!(read(used(2)).unwrap().sliding_window, None);
    let some = read(used(1)).unwrap();
    assert_eq!((some.sliding_window, some.full_layers), (Some(5), vec![0]));
    let mut listed = used(0);
    listed["layer_types"] = json!(["sliding_attention", "full_attention"]);
    assert_eq!(read(listed).unwrap().full_layers, [1]);
    // A missing key has another meaning than `null`.
    let mut json = config_json("mistral");
    json.remove("sliding_window");
    assert_eq!(self::read(&json).unwrap().sliding_window, Some(4096));
    assert_eq!(self::read(&with("mistral", "sliding_window", Value::Null)).unwrap().sliding_window, None);
}

#[test]
fn config_fields_of_the_wrong_type_are_rejected_by_name() {
    let wrong = [
        ("llama", "hidden_size", json!("32")),
        ("llama", "hidden_size", json!(-32)),
        ("llama", "hidden_size", json!(32.5)),
        ("llama", "rms_norm_eps", json!(true)),
        ("llama", "tie_word_embeddings", json!("false")),
        ("llama", "rope_parameters", json!([1])),
        ("llama", "num_attention_heads", Value::Null),
        ("gpt2", "activation_function", json!(["gelu"])),
    ];
    for (case, key, value) in wrong {
        let error = read(&with(case, key, value)).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{case}, {key}: {error}");
    }
    let own = json!({ "architectures": ["HearthForCausalLM"], "vocab_size": 3, "no_such_field": 1 });
    let error = read(own.as_object().unwrap()).unwrap_err().to_string();
    assert!(error.contains("no_such_field"), "{error}");
}

/// Older files have other key names, and lack keys that the class's first version did not have.
#[test]
fn older_config_keys_of_bloom_and_gemma_are_read() {
    let mut older = config_json("bloom");
    for (new, old) in [("hidden_size", "n_embed"), ("n_head", "num_attention_heads"), ("n_layer", "num_hidden_layers")]
    {
        let value = older.remove(new).unwrap();
        older.insert(old.to_owned(), value);
    }
    older.insert("offset_alibi".to_owned(), json!(100));
    assert_eq!(read(&older).unwrap(), read(&config_json("bloom")).unwrap());
    let mut older = config_json("gemma");
    older.insert("hidden_act".to_owned(), json!("gelu"));
    older.remove("tie_word_embeddings");
    assert_eq!(read(&older).unwrap(), read(&config_json("gemma")).unwrap());
}
