//! Rotary positions in `config.json`: each scaling is read, or rejected by its name.
#![expect(clippy::unwrap_used, reason = "tests")]

use hearth_model::config::{Positions, Rope, RopeScaling};
use serde_json::{Value, json};

use crate::config_json::{config_json, read, with};

#[test]
fn rope_scalings_of_the_golden_configs_are_read() {
    let scaling = |case| match read(&config_json(case)).unwrap().positions {
        Positions::Rope(rope) => rope.scaling,
        _ => unreachable!(),
    };
    assert_eq!(scaling("llama"), RopeScaling::None);
    assert_eq!(scaling("rope-linear"), RopeScaling::Linear { factor: 3.0 });
    assert_eq!(scaling("rope-dynamic"), RopeScaling::Dynamic { factor: 3.0 });
    // The original context: nothing is computed beyond it.
    assert_eq!(read(&config_json("rope-dynamic")).unwrap().max_seq_len, 24);
    let llama3 =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_seq_len: 64 };
    assert_eq!(scaling("rope-llama3"), llama3);
    let RopeScaling::Yarn { attention_factor, .. } = scaling("rope-yarn") else { unreachable!() };
    assert!((attention_factor - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
}

/// In files of DeepSeek, `null` means that the factor follows from the lengths.
#[test]
fn null_yarn_factor_is_the_ratio_of_the_context_lengths() {
    let read = |factor: Option<Value>| {
        let mut json = with("rope-yarn", "max_position_embeddings", json!(40));
        let rope = json["rope_parameters"].as_object_mut().unwrap();
        rope.insert("original_max_position_embeddings".to_owned(), json!(16));
        rope.remove("factor");
        rope.extend(factor.map(|factor| ("factor".to_owned(), factor)));
        read(&json)
    };
    assert_eq!(read(Some(Value::Null)).unwrap(), read(Some(json!(2.5))).unwrap());
    assert!(read(None).unwrap_err().to_string().contains("`factor` is missing"));
}

#[test]
fn unsupported_rope_parameters_are_rejected_by_name() {
    let rope = |extra: Value| {
        let mut nested = json!({ "rope_type": "default", "rope_theta": 500.0 });
        nested.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        nested
    };
    let refused = [
        ("llama", json!({ "rope_type": "longrope" }), "`original_max_position_embeddings` is missing"),
        ("qwen2", json!({ "rope_type": "mrope", "mrope_section": [1, 1, 2] }), "rope_type"),
        ("llama", json!({ "rope_type": "proportional" }), "rope_type"),
        ("llama", json!({ "partial_rotary_factor": 0.5 }), "partial_rotary_factor"),
        ("llama", json!({ "rope_type": "linear" }), "factor"),
        ("llama", json!({ "rope_type": "linear", "factor": "2" }), "factor"),
        ("llama", json!({ "rope_type": "linear", "factor": 0.5 }), "factor"),
        ("llama", json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0 }), "high_freq_factor"),
        ("llama", json!({ "rope_type": "dynamic", "factor": 0.5 }), "factor"),
        // Transformers reads YaRN in Phi 3's files as another scaling.
        ("phi3", json!({ "rope_type": "yarn", "factor": 2.0 }), "rope_type"),
        ("gpt-neox-parallel", json!({ "partial_rotary_factor": 0.1 }), "rotary_dim"),
        // Only Phi 3 has this name for `longrope`.
        ("stablelm", json!({ "rope_type": "su" }), "`rope_type` is \"su\""),
    ];
    for (case, extra, named) in refused {
        let error = read(&with(case, "rope_parameters", rope(extra))).unwrap_err().to_string();
        assert!(error.contains(named), "{case}, {named}: {error}");
    }
    let per_layer = json!({ "full_attention": { "rope_type": "default" } });
    let error = read(&with("llama", "rope_parameters", per_layer)).unwrap_err().to_string();
    assert!(error.contains("`full_attention`"), "{error}");
}

/// Keys that the type of scaling does not have; transformers only warns about them.
#[test]
fn rope_keys_that_transformers_passes_over_change_nothing() {
    for (case, extra) in [
        // DeepSeek-R1-0528-Qwen3-8B.
        ("rope-yarn", json!({ "attn_factor": 0.8782488562869419, "extrapolation_factor": 1.0 })),
        // The text part of Qwen 2 VL.
        ("qwen2", json!({ "mrope_section": [1, 1, 2], "mrope_interleaved": true })),
        ("llama", json!({ "factor": 4.0, "short_factor": [1.0], "original_max_position_embeddings": 7 })),
        ("rope-linear", json!({ "beta_fast": 32, "original_max_position_embeddings": 7 })),
        ("rope-dynamic", json!({ "alpha": 1000.0, "original_max_position_embeddings": 7 })),
        ("rope-llama3", json!({ "attention_factor": 3.0 })),
        ("phi3-longrope", json!({ "short_mscale": 1.1, "long_mscale": 1.2 })),
    ] {
        let mut json = config_json(case);
        let nested = json["rope_parameters"].as_object_mut().unwrap();
        nested.extend(extra.as_object().unwrap().clone());
        assert_eq!(read(&json).unwrap(), read(&config_json(case)).unwrap(), "{case}, {extra}");
        // Under the older key too.
        let nested = json.remove("rope_parameters").unwrap();
        json.insert("rope_scaling".to_owned(), nested);
        assert_eq!(read(&json).unwrap(), read(&config_json(case)).unwrap(), "{case}, {extra}");
    }
    for nothing in [json!(false), json!(0), json!(""), json!([]), json!({}), Value::Null] {
        assert_eq!(read(&with("llama", "rope_scaling", nothing)).unwrap(), read(&config_json("llama")).unwrap());
    }
    assert!(read(&with("llama", "rope_scaling", json!(true))).unwrap_err().to_string().contains("`rope_scaling`"));
}

/// In Python, `null` in place of a default is false.
#[test]
fn null_yarn_truncate_is_false() {
    let truncates = |value: Option<Value>| {
        let mut json = config_json("rope-yarn");
        let nested = json["rope_parameters"].as_object_mut().unwrap();
        nested.remove("truncate");
        nested.extend(value.map(|value| ("truncate".to_owned(), value)));
        match read(&json).unwrap().positions {
            Positions::Rope(Rope { scaling: RopeScaling::Yarn { truncate, .. }, .. }) => truncate,
            _ => unreachable!(),
        }
    };
    assert!(truncates(None) && truncates(Some(json!(true))));
    assert!(!truncates(Some(Value::Null)) && !truncates(Some(json!(false))));
}

/// The object for each kind of layers, and the older keys in its place.
#[test]
fn rope_parameters_per_layer_type_are_read() {
    let mut json = config_json("gemma3");
    let newer = read(&json).unwrap();
    let own = newer.window_rope.as_ref().unwrap();
    let Positions::Rope(usual) = &newer.positions else { unreachable!() };
    assert_eq!((own.theta, &own.scaling), (100.0, &RopeScaling::None));
    assert_eq!((usual.theta, &usual.scaling), (2000.0, &RopeScaling::Linear { factor: 3.0 }));
    json.remove("rope_parameters");
    json.insert("rope_theta".to_owned(), json!(2000.0));
    json.insert("rope_local_base_freq".to_owned(), json!(100.0));
    json.insert("rope_scaling".to_owned(), json!({ "rope_type": "linear", "factor": 3.0 }));
    assert_eq!(read(&json).unwrap(), newer);
    // Rejected: a scaling that transformers ignores, and parameters without an object for each kind of layer.
    json.insert("rope_scaling".to_owned(), json!({ "type": "linear", "factor": 3.0 }));
    assert!(read(&json).unwrap_err().to_string().contains("`type`"));
    let flat = with("gemma3", "rope_parameters", json!({ "rope_type": "default", "rope_theta": 5.0 }));
    assert!(read(&flat).unwrap_err().to_string().contains("an object for each kind of layer"));
    // Versions of transformers apply this base to different layers.
    let mut olmo = config_json("olmo3");
    olmo.remove("rope_parameters");
    olmo.insert("rope_theta".to_owned(), json!(500_000.0));
    assert_eq!(read(&olmo).unwrap().window_rope, None);
    olmo.insert("rope_theta".to_owned(), json!(500.0));
    assert!(read(&olmo).unwrap_err().to_string().contains("`rope_theta`"));
}

/// Some versions of transformers read GPT-NeoX's base under the other classes' key, others do not.
#[test]
fn gpt_neox_rope_theta_contradicting_rotary_emb_base_is_rejected() {
    let mut json = config_json("gpt-neox-parallel");
    json.remove("rope_parameters");
    json.insert("rotary_emb_base".to_owned(), json!(500));
    let plain = read(&json).unwrap();
    json.insert("rope_theta".to_owned(), json!(500.0));
    assert_eq!(read(&json).unwrap(), plain);
    json.insert("rope_theta".to_owned(), json!(10_000.0));
    let error = read(&json).unwrap_err().to_string();
    assert!(error.contains("`rope_theta`") && error.contains("500"), "{error}");
}
