//! Weights of 8, 5 and 4 bits: stored models equal models quantized at load to the bit, and invalid ones are rejected.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use burn::tensor::{Device, TensorData};
use half::f16;
use hearth_model::{
    gpt::{Gpt, ParamData, attention::AttentionContext, token_ids::token_tensor},
    ops::{BLOCK_SIZE, Dtype, QuantizedBlock, QuantizedMatrix, Weight},
    weights::model_dir::{self, LoadOptions, SaveOptions},
};
use safetensors::SafeTensors;

const QUANTIZED: [Dtype; 4] = [Dtype::Q8, Dtype::Q5_1, Dtype::Q4_1, Dtype::Q4];

fn golden(case: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case)
}

fn load(dir: &Path, dtype: Option<Dtype>) -> hearth_model::Result<Gpt> {
    model_dir::load_gpt(dir, &LoadOptions { device: Device::flex(), dtype })
}

fn logits(gpt: &Gpt) -> Vec<u32> {
    let ids: Vec<u32> = (0..12).map(|n| n * 5 % gpt.config().vocab_size as u32).collect();
    let hidden = gpt.forward(token_tensor(gpt, &ids), AttentionContext::dense(1, ids.len()));
    let logits: Vec<f32> = gpt.logits(hidden).into_data().try_into_vec().unwrap();
    logits.into_iter().map(f32::to_bits).collect()
}

/// Classes with transposed, stacked and tied tensors and with biases: quantized tensors have Hearth's parameter names.
#[test]
fn stored_quantized_model_equals_quantizing_at_load() {
    for case in ["gpt2", "gpt2-untied", "llama", "qwen3", "phi3", "gpt-neox-parallel", "bloom", "opt"] {
        for dtype in QUANTIZED {
            let rounded = load(&golden(case), Some(dtype)).unwrap();
            let dir = tempfile::tempdir().unwrap();
            model_dir::save(dir.path(), &rounded, &SaveOptions::default()).unwrap();
            for asked in [None, Some(dtype)] {
                let reopened = load(dir.path(), asked).unwrap();
                assert_eq!(reopened.dtype(), dtype);
                assert_eq!(reopened.config(), rounded.config(), "{case}");
                assert!(logits(&reopened) == logits(&rounded), "{case} in {dtype}");
            }
            for other in Dtype::ALL.iter().map(|(_, other)| *other).filter(|other| *other != dtype) {
                let message = load(dir.path(), Some(other)).unwrap_err().to_string();
                let flag = if other.is_quantized() { "quantize" } else { "dtype" };
                assert!(message.starts_with(&format!("`{flag}` is `{other}`, but the weights")), "{message}");
            }
        }
    }
}

#[test]
fn stored_quantized_tensors_have_the_sizes_of_their_format() {
    for dtype in QUANTIZED {
        let rounded = load(&golden("llama"), Some(dtype)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        model_dir::save(dir.path(), &rounded, &SaveOptions::default()).unwrap();
        let bytes = fs::read(dir.path().join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let n_bytes = |name: &str| file.tensor(name).map_or(0, |tensor| tensor.data().len());
        for (path, matrix) in rounded.matrices() {
            let [d_out, d_in] = matrix.dims();
            let n_blocks = d_out * d_in.div_ceil(BLOCK_SIZE);
            let (numbers, minimum) = match matrix.dtype() {
                Dtype::Q8 => (32, 0),
                Dtype::Q5_1 => (20, 2),
                Dtype::Q4_1 => (16, 2),
                _ => (16, 0),
            };
            assert_eq!(n_bytes(&path), n_blocks * numbers, "{path}");
            assert_eq!(n_bytes(&format!("{path}.scales")), n_blocks * 2, "{path}");
            assert_eq!(n_bytes(&format!("{path}.minima")), n_blocks * minimum, "{path}");
            // Panels of 32 rows.
            assert_eq!(matrix.n_bytes(), n_blocks.next_multiple_of(32) * (numbers + 2 + minimum), "{path}");
        }
        assert_eq!(rounded.matrices()[0].1.dtype(), Dtype::Q8, "embeddings keep 8 bits");
    }
}

/// Rounding would turn such values into infinity, or hide NaN.
#[test]
fn weights_that_do_not_fit_the_dtype_are_rejected() {
    let config = model_dir::load_config(&golden("llama")).unwrap();
    let make = |dtype: Dtype, value: f32| {
        Gpt::from_params(&config, dtype, &Device::flex(), &mut |spec| {
            let mut values = vec![0.01; spec.shape.iter().product()];
            if spec.path == "blocks.1.mlp.down.weight" {
                values[7] = value;
            }
            Ok(TensorData::new(values, spec.shape.as_slice()))
        })
    };
    for (dtype, value, told) in [
        (
            Dtype::F16,
            7e4,
            "`dtype` is `f16`, which represents weights up to 6.5504e4, but `blocks.1.mlp.down.weight` has 7e4",
        ),
        (
            Dtype::Q8,
            -9e6,
            "`quantize` is `q8`, which represents weights up to 8.319008e6, but `blocks.1.mlp.down.weight` has 9e6",
        ),
        (Dtype::Q4, f32::NAN, "has NaN"),
        (Dtype::Q4_1, f32::INFINITY, "has inf"),
    ] {
        let message = make(dtype, value).map(drop).unwrap_err().to_string();
        assert!(message.contains(told), "{message}");
    }
    for (dtype, value) in [(Dtype::F32, 3e38), (Dtype::F32, f32::NAN), (Dtype::Bf16, 7e4), (Dtype::F16, 6e4)] {
        make(dtype, value).unwrap();
    }
}

/// Only GGUF files have K-quants: a model dir gets the nearest other format, with scales rounded to f16.
#[test]
fn k_quants_are_stored_in_the_nearest_model_dir_format() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/quantized-Q4_K.gguf");
    let opened = load(&path, None).unwrap();
    assert_eq!(opened.dtype().to_string(), "q4_k");
    let dir = tempfile::tempdir().unwrap();
    model_dir::save(dir.path(), &opened, &SaveOptions::default()).unwrap();
    let reopened = load(dir.path(), None).unwrap();
    for ((path, matrix), (_, stored)) in opened.matrices().into_iter().zip(reopened.matrices()) {
        // Queries, keys and values are of several kinds in this file.
        let expected = if path == "blocks.0.attn.qkv.weight" { Dtype::Q8 } else { matrix.dtype().stored_as() };
        assert_eq!(stored.dtype(), expected, "{path}");
        let [expected, found] = [matrix, stored].map(|weight| weight.read().unwrap().try_into_vec::<f32>().unwrap());
        // Half a step of 8 bits, of the largest of all.
        let most = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / 250.0;
        assert!(expected.iter().zip(&found).all(|(expected, found)| (expected - found).abs() <= most), "{path}");
    }
    assert_eq!(logits(&reopened), logits(&load(dir.path(), Some(Dtype::Q4_1)).unwrap()));
    for other in [&path, &golden("llama")] {
        let message = load(other, Some(Dtype::Q6K)).unwrap_err().to_string();
        assert!(message.contains("`q6_k`, which only GGUF files have"), "{message}");
    }
}

/// 4-bit blocks with and without minima in one model, as in some GGUF files. A model dir states one format for all.
#[test]
fn model_of_mixed_q4_and_q4_1_is_stored_with_exact_weights() {
    let plain = load(&golden("llama"), None).unwrap();
    let mut params = Vec::new();
    plain
        .read_params(&mut |path, values| {
            params.push((path.to_owned(), values));
            Ok(())
        })
        .unwrap();
    let mixed = Gpt::from_params(plain.config(), Dtype::Q4_1, &Device::flex(), &mut |spec| {
        let (path, values) = params.iter().find(|(path, _)| *path == spec.path).unwrap();
        Ok(match path.as_str() {
            "blocks.0.attn.out.weight" => {
                ParamData::Placed(Weight::new(values.clone(), Dtype::Q4, &Device::flex()).unwrap())
            }
            _ => values.clone().into(),
        })
    });
    let mixed = mixed.unwrap();
    let dtypes = |gpt: &Gpt| -> Vec<_> { gpt.matrices().iter().map(|(_, matrix)| matrix.dtype()).collect() };
    assert!(dtypes(&mixed).contains(&Dtype::Q4) && dtypes(&mixed).contains(&Dtype::Q4_1));
    let dir = tempfile::tempdir().unwrap();
    model_dir::save(dir.path(), &mixed, &SaveOptions::default()).unwrap();
    let reopened = load(dir.path(), None).unwrap();
    assert!(!dtypes(&reopened).contains(&Dtype::Q4));
    for ((path, matrix), (_, stored)) in mixed.matrices().into_iter().zip(reopened.matrices()) {
        let [expected, found] = [matrix, stored].map(|weight| weight.read().unwrap().try_into_vec::<f32>().unwrap());
        assert!(expected == found, "{path}");
    }
}

#[test]
fn invalid_quantized_blocks_configs_and_tensors_are_rejected() {
    let block = QuantizedBlock { scale: f16::ONE, minimum: f16::ZERO, values: [-9; BLOCK_SIZE] };
    let refused = |dims, dtype, n| QuantizedMatrix::new(dims, dtype, vec![block; n]).unwrap_err().to_string();
    assert_eq!(refused([2, 33], Dtype::Q8, 3), "`blocks` must be 4 for a matrix of 2 by 33, got 3");
    assert!(refused([1, 32], Dtype::Q4, 1).contains("-8..=7"));
    assert!(refused([1, 32], Dtype::Q4_1, 1).contains("0..=15"));
    assert!(refused([1, 32], Dtype::F16, 1).contains("must be of `q8`, `q5_1`, `q4_1` or `q4`, got `f16`"));
    let shifted = QuantizedBlock { minimum: f16::ONE, ..block };
    let message = QuantizedMatrix::new([1, 32], Dtype::Q8, vec![shifted]).unwrap_err().to_string();
    assert!(message.contains("must have no minima for `q8`"), "{message}");

    let rounded = load(&golden("llama"), Some(Dtype::Q8)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    model_dir::save(dir.path(), &rounded, &SaveOptions::default()).unwrap();
    let config = dir.path().join("config.json");
    let good_config = fs::read_to_string(&config).unwrap();
    for (from, to, expected) in [
        ("\"hearth\",\n    \"dtype\"", "\"aqlm\",\n    \"dtype\"", "method \"aqlm\", which is not supported"),
        ("\"q8\"", "\"q2\"", "`quantization_config.dtype` must be `q8`, `q5_1`, `q4_1` or `q4`, got `q2`"),
    ] {
        assert!(good_config.contains(from), "{good_config}");
        fs::write(&config, good_config.replace(from, to)).unwrap();
        let message = load(dir.path(), None).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    fs::write(&config, good_config).unwrap();
    // The header alone is changed, to a name of the same length.
    let refused_without = |dir: &Path, missing: &str| {
        let weights = dir.join("model.safetensors");
        let mut broken = fs::read(&weights).unwrap();
        let at = broken.windows(missing.len()).position(|window| window == missing.as_bytes()).unwrap();
        broken[at + missing.len() - 1] = b'z';
        fs::write(&weights, broken).unwrap();
        let message = load(dir, None).unwrap_err().to_string();
        assert!(message.contains(&format!("`{missing}`: is missing")), "{message}");
    };
    refused_without(dir.path(), "embed.weight.scales");
    // 4-bit values with scales but without minima would be q4.
    for dtype in [Dtype::Q4_1, Dtype::Q5_1] {
        let rounded = load(&golden("llama"), Some(dtype)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        model_dir::save(dir.path(), &rounded, &SaveOptions::default()).unwrap();
        refused_without(dir.path(), "blocks.0.attn.out.weight.minima");
    }
}
