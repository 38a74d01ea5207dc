//! Configurations with the rotary scaling `longrope`: what is read, written and rejected. `golden` and `gguf` compare what such
//! models compute.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;

use burn::tensor::Device;
use hearth_model::{
    config::{Positions, RopeScaling},
    weights::model_dir::{self, LoadOptions, SaveOptions},
};
use serde_json::{Map, Value, json};

use crate::{
    config_json::{config_json, read},
    golden::golden,
};

const ORIGINAL: &str = "original_max_position_embeddings";

/// The golden configuration `case` with another value of a key of its rotary positions.
fn with(case: &str, key: &str, value: Value) -> Map<String, Value> {
    let mut json = config_json(case);
    json["rope_parameters"].as_object_mut().unwrap().insert(key.to_owned(), value);
    json
}

fn scaling(json: &Map<String, Value>) -> RopeScaling {
    match read(json).unwrap().positions {
        Positions::Rope(rope) => rope.scaling,
        _ => unreachable!("the goldens have rotary positions"),
    }
}

#[test]
fn longrope_factors_and_lengths_are_read() {
    let expected = RopeScaling::LongRope {
        short_factors: vec![1.0, 1.5, 2.5],
        long_factors: vec![1.25, 4.0, 20.0],
        attention_factor: (1.0 + (64f64 / 12.0).ln() / 12f64.ln()).sqrt(),
        original_max_seq_len: 12,
    };
    let config = read(&config_json("phi3-longrope")).unwrap();
    assert_eq!((scaling(&config_json("phi3-longrope")), config.max_seq_len), (expected, 64));
    let attention_factor = |json: &Map<String, Value>| match scaling(json) {
        RopeScaling::LongRope { attention_factor, .. } => attention_factor,
        other => unreachable!("{other:?}"),
    };
    // `factor` counts, if there is one, not the lengths.
    let of_factor = (1.0 + 4f64.ln() / 64f64.ln()).sqrt();
    assert_eq!(attention_factor(&config_json("phi3-longrope-short")), of_factor);
    assert_eq!(attention_factor(&with("phi3-longrope-short", "factor", json!(0.5))), 1.0);
    assert_eq!(attention_factor(&with("phi3-longrope", "attention_factor", json!(1.25))), 1.25);
}

/// The key outside the object counts, as in transformers; the first files call the type `su`.
#[test]
fn longrope_keys_of_older_files_are_read() {
    let expected = scaling(&config_json("phi3-longrope"));
    let mut inside = with("phi3-longrope", "rope_type", json!("su"));
    inside.remove(ORIGINAL);
    assert_eq!(scaling(&inside), expected);
    assert_eq!(scaling(&with("phi3-longrope", ORIGINAL, json!(13))), expected);
    let mut older = config_json("phi3-longrope");
    let mut nested = older.remove("rope_parameters").unwrap();
    let nested = nested.as_object_mut().unwrap();
    older.extend(["rope_theta", "partial_rotary_factor"].map(|key| (key.to_owned(), nested.remove(key).unwrap())));
    for key in ["rope_type", ORIGINAL] {
        nested.remove(key).unwrap();
    }
    nested.insert("type".to_owned(), json!("longrope"));
    older.insert("rope_scaling".to_owned(), Value::Object(nested.clone()));
    assert_eq!(read(&older).unwrap(), read(&config_json("phi3-longrope")).unwrap());
}

#[test]
fn invalid_longrope_parameters_are_rejected_by_name() {
    let refused = [
        ("short_factor", Value::Null, "`short_factor` is missing"),
        ("long_factor", json!(3.0), "`long_factor` must be a list of numbers, got 3.0"),
        ("long_factor", json!([1.0, 2.0, "3"]), "`long_factor` must be a list of numbers"),
        ("long_factor", json!([1.0, 2.0]), "long_factors`: must have 3 factors, half of rotary_dim, got 2"),
        ("short_factor", json!([1.0, 0.0, 2.0]), "short_factors`: must be finite and positive, got 0"),
        ("short_factor", json!([1.0, -2.0, 2.0]), "short_factors`: must be finite and positive, got -2"),
        ("short_factor", json!([1.0, 2.0, 1e300]), "short_factors`: must be finite and positive, got inf"),
        ("attention_factor", json!(0.0), "attention_factor`: must be finite and positive, got 0"),
    ];
    for (key, value, named) in refused {
        let error = read(&with("phi3-longrope", key, value)).unwrap_err().to_string();
        assert!(error.contains(named), "{key}: {error}");
    }
    for (length, named) in
        [(Value::Null, "`original_max_position_embeddings` is missing"), (json!(0), "must be in 1..=")]
    {
        let mut json = with("phi3-longrope", ORIGINAL, length.clone());
        json.insert(ORIGINAL.to_owned(), length);
        let error = read(&json).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

/// Older versions of transformers accept three keys in Phi 3's `rope_scaling`. An attention factor that does not follow from
/// the lengths needs a fourth.
#[test]
fn longrope_is_saved_under_newer_and_older_keys() {
    let options = LoadOptions { device: Device::flex(), dtype: None };
    let saved = |case: &str| {
        let dir = tempfile::tempdir().unwrap();
        let gpt = model_dir::load_gpt(&golden(case), &options).unwrap();
        let class = Some("Phi3ForCausalLM".to_owned());
        model_dir::save(dir.path(), &gpt, &SaveOptions { class, ..SaveOptions::default() }).unwrap();
        let json: Map<String, Value> =
            serde_json::from_slice(&fs::read(dir.path().join("config.json")).unwrap()).unwrap();
        json
    };
    let json = saved("phi3-longrope");
    let lists = json!({ "type": "longrope", "short_factor": [1.0, 1.5, 2.5], "long_factor": [1.25, 4.0, 20.0] });
    assert_eq!(json["rope_scaling"], lists);
    assert_eq!((&json[ORIGINAL], &json["max_position_embeddings"]), (&json!(12), &json!(64)));
    assert_eq!(json["rope_parameters"]["rope_type"], "longrope");
    let json = saved("phi3-longrope-short");
    assert_eq!(json["rope_scaling"]["attention_factor"], json["rope_parameters"]["attention_factor"]);
    assert_eq!(json["rope_parameters"][ORIGINAL], 64);
}
