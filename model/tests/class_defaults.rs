//! Keys that files of single classes leave out, and what the classes in `transformers` make of that.
#![expect(clippy::unwrap_used, reason = "tests")]

use hearth_model::config::{
    ClampedSwiglu, GptConfig, HeadSizes, Mamba2, PerLayerInputs, Positions, QueryTemperature, Recurrence, Rope,
    RopeScaling,
};
use serde_json::{Map, Value, json};

use crate::config_json::{config_json, read};

/// The `config.json` of a golden dir without some keys, and with others.
fn changed(case: &str, without: &[&str], with: Value) -> Map<String, Value> {
    let mut json = config_json(case);
    without.iter().for_each(|key| drop(json.remove(*key)));
    json.extend(with.as_object().unwrap().clone());
    json
}

fn config(case: &str, without: &[&str], with: Value) -> GptConfig {
    read(&changed(case, without, with)).unwrap()
}

#[test]
fn classes_with_a_rope_scaling_of_their_own_must_state_it() {
    for case in ["ministral3", "cwm", "apertus", "gpt-oss"] {
        let error = read(&changed(case, &["rope_parameters"], json!({}))).unwrap_err().to_string();
        assert!(error.contains("`rope_parameters` or `rope_scaling` is missing"), "{case}: {error}");
    }
    let without_beta = json!({ "rope_parameters": { "rope_type": "default", "original_max_position_embeddings": 5 } });
    let error = read(&changed("ministral3", &[], without_beta)).unwrap_err().to_string();
    assert!(error.contains("`llama_4_scaling_beta` is missing"), "{error}");
}

#[test]
fn windows_and_rotations_of_single_classes_follow_their_defaults() {
    let windowed = |config: &GptConfig| {
        let layers = (0..config.n_layers).filter(|&layer| config.window_of(layer).is_some());
        (config.sliding_window, layers.collect::<Vec<_>>())
    };
    let layers = json!({ "num_hidden_layers": 6 });
    let until =
        json!({ "num_hidden_layers": 6, "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 5 });
    assert_eq!(windowed(&config("qwen2-moe", &["layer_types"], until)), (Some(8), vec![0, 2, 4]));
    let ministral = config("ministral", &["layer_types", "sliding_window"], layers.clone());
    assert_eq!(windowed(&ministral), (Some(4096), vec![0, 1, 2, 3, 4, 5]));
    let cwm = config("cwm", &["layer_types", "sliding_window"], layers.clone());
    assert_eq!(windowed(&cwm), (Some(8192), vec![1, 2, 3, 5]));
    let exaone4 = config("exaone4", &["layer_types", "sliding_window"], layers);
    assert_eq!(windowed(&exaone4), (Some(4096), vec![0, 1, 2, 4, 5]));
    assert_eq!(exaone4.unrotated_layers, [3]);
    // Without a window all layers rotate; with one that no layer has, none does.
    let full = |window: Value| json!({ "layer_types": vec!["full_attention"; 3], "sliding_window": window });
    assert!(config("exaone4", &[], full(Value::Null)).unrotated_layers.is_empty());
    assert_eq!(config("exaone4", &[], full(json!(6))).unrotated_layers, [0, 1, 2]);
}

#[test]
fn muse_glimmer_counts_layers_without_window_and_rotation_from_the_last() {
    let absent = ["layer_types", "layer_rope_theta", "sliding_window", "qk_scale_factor", "post_norm_eps"];
    let muse = config("muse-glimmer", &absent, json!({ "num_hidden_layers": 6 }));
    assert_eq!((muse.sliding_window, &muse.full_layers[..]), (Some(2048), &[1, 5][..]));
    assert_eq!((&muse.unrotated_layers[..], muse.out_norm_eps), (&[1, 5][..], Some(1e-8)));
    assert_eq!(muse.attention_scale, Some(3.87 * 12f64.sqrt().recip()));
    // Transformers rotates by the base of the rotary positions, 500.
    for thetas in [json!([500.0, 0.0]), json!([500.0, 0.0, 77.0]), json!([77.0, 77.0, 77.0])] {
        let error = read(&changed("muse-glimmer", &[], json!({ "layer_rope_theta": thetas }))).unwrap_err().to_string();
        assert!(error.contains("`layer_rope_theta`") && error.contains("each of the 3 layers"), "{error}");
    }
    // All layers have one.
    let thetas = json!({ "layer_rope_theta": [500.0, 500.0, 500.0] });
    assert!(config("muse-glimmer", &[], thetas).unrotated_layers.is_empty());
}

#[test]
fn released_hunyuan_and_minicpm_files_are_read() {
    // A fixed factor for the base, whatever the type is called.
    let scaling = json!({
        "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0, "type": "dynamic",
    });
    let keys = json!({ "rope_theta": 10_000.0, "rope_scaling": scaling, "use_qk_norm": true, "num_experts": 1 });
    let hunyuan = config("hunyuan", &["rope_parameters"], keys);
    let Positions::Rope(Rope { theta, scaling: RopeScaling::None, .. }) = hunyuan.positions else {
        unreachable!("{:?}", hunyuan.positions)
    };
    assert!((theta - 10_000.0 * 1000f64.powf(12.0 / 10.0)).abs() < 1e-3 * theta);
    let minicpm = config("minicpm", &[], json!({ "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256 }));
    let found = [minicpm.embedding_multiplier, minicpm.residual_multiplier, minicpm.logit_multiplier];
    assert_eq!(found, [12.0, 0.7, 16.0]);
}

#[test]
fn released_mixtures_say_that_queries_and_keys_are_normalized() {
    let hunyuan =
        json!({ "use_qk_norm": true, "moe_topk": [2, 2], "num_shared_expert": [1, 1], "use_mixed_mlp_moe": true });
    assert!(config("hunyuan-moe", &[], hunyuan).qk_norm);
    let minimax = json!({ "use_qk_norm": true, "qk_norm_type": "per_layer", "scoring_func": "sigmoid", "use_routing_bias": true,
        "shared_intermediate_size": 0, "num_mtp_modules": 3 });
    assert!(config("minimax-m2", &[], minimax).qk_norm);
    for (case, key, value) in [
        ("hunyuan-moe", "use_qk_norm", json!(false)),
        ("minimax-m2", "use_qk_norm", json!(false)),
        ("minimax-m2", "qk_norm_type", json!("per_head")),
        ("minimax-m2", "scoring_func", json!("softmax")),
    ] {
        let error = read(&changed(case, &[], json!({ key: value }))).unwrap_err().to_string();
        assert!(error.contains(key), "{case}: {error}");
    }
}

#[test]
fn ernie_mixtures_have_biases_everywhere_but_in_experts() {
    let ernie = config("ernie4_5-moe", &[], json!({ "use_bias": true }));
    assert!(ernie.qkv_bias && ernie.attn_out_bias && ernie.mlp_bias && ernie.lm_head_bias);
    assert!(ernie.experts.unwrap().unbiased);
}

#[test]
fn released_gpt_oss_files_are_read() {
    let absent = ["layer_types", "sliding_window", "swiglu_alpha", "swiglu_limit", "num_experts_per_tok"];
    let gpt_oss = config("gpt-oss", &absent, json!({ "num_hidden_layers": 4, "experts_per_token": 3 }));
    assert_eq!((gpt_oss.sliding_window, &gpt_oss.full_layers[..]), (Some(128), &[1, 3][..]));
    assert_eq!(gpt_oss.clamped_swiglu, Some(ClampedSwiglu { alpha: 1.702, limit: 7.0 }));
    assert_eq!(gpt_oss.experts.unwrap().n_active, 3);
    for (key, value) in [("hidden_act", json!("gelu")), ("swiglu_limit", json!(0.0)), ("experts_per_token", json!(4))] {
        let error = read(&changed("gpt-oss", &[], json!({ key: value }))).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn temperature_of_ministral_3_is_read_from_both_forms() {
    let expected = Some(QueryTemperature { beta: 0.6, interval: 5 });
    assert_eq!(config("ministral3", &[], json!({})).query_temperature, expected);
    let mut older = config_json("ministral3");
    let nested = older.remove("rope_parameters").unwrap();
    older.insert("rope_theta".to_owned(), nested["rope_theta"].clone());
    older.insert("rope_scaling".to_owned(), nested);
    assert_eq!(read(&older).unwrap(), config("ministral3", &[], json!({})));
}

#[test]
fn released_files_with_mamba_2_layers_are_read() {
    let kinds = json!(["mamba", "attention", "mamba"]);
    let nope = json!({ "layer_types": kinds, "mamba_d_head": "auto", "position_embedding_type": "nope" });
    let without = ["mamba_expand", "time_step_limit"];
    let unlimited = config("granite4-h", &without, nope);
    let limited = config("granite4-h", &[], json!({}));
    let mamba = |config: &GptConfig| match config.recurrent.as_ref().map(|recurrent| recurrent.recurrence) {
        Some(Recurrence::Mamba2(mamba)) => mamba,
        other => unreachable!("{other:?}"),
    };
    assert_eq!((mamba(&limited).min_time_step, mamba(&limited).max_time_step), (0.4, Some(1.5)));
    assert_eq!(mamba(&unlimited), Mamba2 { min_time_step: 0.0, max_time_step: None, ..mamba(&limited) });
    // Both ways in which Python writes infinity.
    for infinity in [json!("Infinity"), json!({ "__float__": "Infinity" })] {
        let found = config("granite4-h", &[], json!({ "time_step_limit": [0.4, infinity] }));
        assert_eq!((mamba(&found).min_time_step, mamba(&found).max_time_step), (0.4, None));
    }
    // Granite 4 micro: all layers attend and rotate, and no part of the file about other layers counts.
    let attending =
        json!({ "layer_types": ["attention", "attention", "attention"], "position_embedding_type": "rope" });
    let micro = config("granite4-h", &[], attending);
    assert_eq!((&micro.recurrent, micro.n_attention_layers(), micro.d_ff), (&None, 3, 28));
    assert!(matches!(micro.positions, Positions::Rope(_)));
    // A letter for each layer.
    let mut letters = changed("nemotron-h-moe", &["layers_block_type"], json!({ "hybrid_override_pattern": "ME*E-" }));
    assert_eq!(read(&letters).unwrap(), config("nemotron-h-moe", &[], json!({})));
    letters.insert("num_hidden_layers".to_owned(), json!(4));
    let error = read(&letters).unwrap_err().to_string();
    assert!(error.contains("`num_hidden_layers` is 4"), "{error}");
}

#[test]
fn unsupported_mamba_2_layers_are_rejected_by_the_name_of_the_key() {
    for (case, key, value) in [
        ("granite4-h", "layer_types", json!(["mamba", "attention", "mlp"])),
        ("granite4-h", "mamba_d_head", json!(7)),
        ("granite4-h", "time_step_limit", json!([1])),
        ("granite4-h", "position_embedding_type", json!("alibi")),
        ("nemotron-h", "layers_block_type", json!(["mamba", "sparse"])),
        ("nemotron-h", "time_step_limit", json!([0.1, 0.5])),
        ("nemotron-h", "mlp_bias", json!(true)),
        ("nemotron-h", "attention_bias", json!(true)),
        ("bamba", "hidden_act", json!("tanh")),
    ] {
        let error = read(&changed(case, &[], json!({ key: value }))).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{case}, {key}: {error}");
    }
    // Figures that contradict each other.
    let error = read(&changed("nemotron-h", &[], json!({ "n_groups": 3 }))).unwrap_err().to_string();
    assert!(error.contains("n_heads") && error.contains("n_groups = 3"), "{error}");
}

/// The configurations of Google's four sizes, as far as they differ.
#[test]
fn released_gemma_4_files_are_read() {
    let read_text = |period: usize, own: Value| {
        let n_layers = own["num_hidden_layers"].as_u64().unwrap() as usize;
        let kind = |layer: usize| if layer % period == period - 1 { "full_attention" } else { "sliding_attention" };
        let text = json!({
            "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 2, "dtype": "bfloat16", "eos_token_id": 1,
            "expert_intermediate_size": null, "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.02, "max_position_embeddings": 131_072,
            "layer_types": (0..n_layers).map(kind).collect::<Vec<_>>(), "model_type": "gemma4_text", "pad_token_id": 0,
            "moe_intermediate_size": null, "num_experts": null, "num_global_key_value_heads": null, "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "full_attention": { "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional" },
                "sliding_attention": { "rope_theta": 10_000.0, "rope_type": "default" },
            },
            "tie_word_embeddings": true, "top_k_experts": null, "use_bidirectional_attention": null, "use_cache": true,
            "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144, "enable_moe_block": false,
        });
        let mut text = text.as_object().unwrap().clone();
        text.extend(own.as_object().unwrap().clone());
        let json = json!({
            "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "tie_word_embeddings": true,
            "text_config": text, "vision_config": { "model_type": "gemma4_vision" }, "eos_token_id": [1, 106],
        });
        read(json.as_object().unwrap()).unwrap()
    };
    let e2b = read_text(
        5,
        json!({
            "num_hidden_layers": 35, "hidden_size": 1536, "intermediate_size": 6144, "num_attention_heads": 8,
            "num_key_value_heads": 1, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20, "sliding_window": 512,
            "attention_k_eq_v": false, "use_double_wide_mlp": true,
        }),
    );
    assert_eq!((e2b.d_ff_of(14), e2b.d_ff_of(15), e2b.kv_layer_of(34), e2b.kv_layer_of(33)), (6144, 12_288, 14, 13));
    assert_eq!(e2b.per_layer_inputs, Some(PerLayerInputs { vocab_size: 262_144, width: 256 }));
    assert_eq!(e2b.n_params() / 1_000_000, 4628);
    let experts = read_text(
        6,
        json!({
            "num_hidden_layers": 30, "hidden_size": 2816, "intermediate_size": 2112, "num_attention_heads": 16,
            "num_key_value_heads": 8, "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0, "sliding_window": 1024, "attention_k_eq_v": true, "use_double_wide_mlp": false,
            "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
            "use_bidirectional_attention": "vision",
        }),
    );
    assert_eq!(experts.full_heads, Some(HeadSizes { n_kv_heads: 2, head_dim: 512 }));
    assert_eq!(experts.n_params() / 1_000_000, 25_233);
    let dense = read_text(
        6,
        json!({
            "num_hidden_layers": 60, "hidden_size": 5376, "intermediate_size": 21_504, "num_attention_heads": 32,
            "num_key_value_heads": 16, "num_global_key_value_heads": 4, "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0, "sliding_window": 1024, "attention_k_eq_v": true, "use_double_wide_mlp": false,
            "use_bidirectional_attention": "vision",
        }),
    );
    assert!(dense.experts.is_none() && dense.per_layer_inputs.is_none());
    assert_eq!(dense.n_params() / 1_000_000, 30_697);
}

/// The configuration of nomic-embed-text-v1.5, with a smaller vocabulary, and that of EmbeddingGemma 300M but for sizes.
#[test]
fn released_encoders_have_keys_of_their_own() {
    let nomic = json!({
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "activation_function": "swiglu",
        "attn_pdrop": 0.0, "bos_token_id": null, "causal": false, "dense_seq_output": true, "embd_pdrop": 0.0,
        "eos_token_id": null, "fused_bias_fc": true, "fused_dropout_add_ln": true, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048, "mlp_fc1_bias": false, "mlp_fc2_bias": false,
        "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192,
        "pad_vocab_size_multiple": 64, "parallel_block": false, "parallel_block_tied_norm": false, "prenorm": false,
        "qkv_proj_bias": false, "reorder_and_upcast_attn": false, "resid_pdrop": 0.0, "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false, "rotary_emb_scale_base": null,
        "rotary_scaling_factor": null, "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true,
        "type_vocab_size": 2, "use_cache": true, "use_flash_attn": true, "use_rms_norm": false, "use_xentropy": true,
        "vocab_size": 1000,
    });
    let nomic = read(nomic.as_object().unwrap()).unwrap();
    assert_eq!((nomic.n_layers, nomic.d_model, nomic.d_ff, nomic.max_seq_len), (12, 768, 3072, 8192));
    assert_eq!(nomic.positions, Positions::Rope(Rope::new(1000.0, 64)));
    assert!(nomic.bidirectional && nomic.gated_mlp && !nomic.qkv_bias && nomic.norm_eps == 1e-12);
    let error = read(&changed("nomic-bert", &[], json!({ "rotary_emb_interleaved": true }))).unwrap_err().to_string();
    assert!(error.contains("`rotary_emb_interleaved` is true"), "{error}");

    let older = json!({ "rope_theta": 1e6, "rope_local_base_freq": 10_000.0, "sliding_window": 512 });
    let gemma = config("embedding-gemma", &["rope_parameters"], older);
    assert!(gemma.bidirectional);
    assert_eq!(gemma.sliding_window, Some(257), "256 tokens on each side");
    // The same class without the key is a language model without its head.
    assert!(!config("embedding-gemma", &["use_bidirectional_attention"], json!({})).bidirectional);
    let mpnet = read(&changed("mpnet", &[], json!({ "relative_attention_num_buckets": 16 }))).unwrap_err().to_string();
    assert!(mpnet.contains("`relative_attention_num_buckets` is 16"), "{mpnet}");
}
