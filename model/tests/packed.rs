//! Model dirs that other programs quantized (`packed/make_packed.py`): their logits equal those of the dequantized weights,
//! and matrices are held in forms of the same values. Damaged ones are rejected.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::{Device, Int, Tensor, TensorData};
use hearth_model::{
    gpt::{Gpt, attention::AttentionContext},
    ops::Dtype,
    weights::model_dir::{self, LoadOptions, SaveOptions},
};
use safetensors::{SafeTensors, tensor::TensorView};

/// The cases that open without `--dtype`, with the dtypes of two matrices: queries, keys and values, and the last of the MLP.
const EXACT: [(&str, &str, &str); 12] = [
    ("gptq", "int4", "int4"),
    // Each matrix has its inputs in another order.
    ("gptq-act", "int4", "int4"),
    ("gptq-8", "q8", "q8"),
    ("awq", "int4", "int4"),
    ("int4", "q4", "q4"),
    ("int4-asym", "int4", "int4"),
    ("int8-act", "int8", "int8"),
    ("int8", "int8", "int8"),
    ("fp8", "fp8", "fp8"),
    ("fp8-block", "fp8", "fp8"),
    ("fp8-powers", "fp8", "fp8"),
    ("nf4", "bf16", "bf16"),
];
/// A case whose groups of inputs fit no block.
const ROUNDED: [&str; 1] = ["gptq-odd"];

fn dir(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packed").join(case)
}

fn load(dir: &Path, dtype: Option<Dtype>) -> hearth_model::Result<Gpt> {
    model_dir::load_gpt(dir, &LoadOptions { device: Device::flex(), dtype })
}

/// The distance of the logits from the oracle's: the largest, and the root of the mean square; relative to their spread.
fn errors(gpt: &Gpt, case: &str) -> [f32; 2] {
    let bytes = fs::read(dir(case).join("oracle.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |name: &str| -> Vec<[u8; 4]> { file.tensor(name).unwrap().data().as_chunks().0.to_vec() };
    let ids: Vec<i32> = numbers("input_ids").into_iter().map(i32::from_le_bytes).collect();
    let expected: Vec<f32> = numbers("logits").into_iter().map(f32::from_le_bytes).collect();
    let n = ids.len();
    let ids: Tensor<1, Int> = Tensor::from_data(TensorData::new(ids, [n]), &gpt.device());
    let hidden = gpt.forward(ids, AttentionContext::dense(1, n));
    let found: Vec<f32> = gpt.logits(hidden).into_data().try_into_vec().unwrap();
    let mean = |values: &mut dyn Iterator<Item = f32>| values.sum::<f32>() / expected.len() as f32;
    let middle = mean(&mut expected.iter().copied());
    let spread = mean(&mut expected.iter().map(|x| (x - middle).powi(2))).sqrt();
    let differences: Vec<f32> = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / spread).collect();
    let square = mean(&mut differences.iter().map(|x| x * x)).sqrt();
    [differences.into_iter().fold(0.0, f32::max), square]
}

fn params(gpt: &Gpt) -> Vec<(String, Vec<f32>)> {
    let mut values = Vec::new();
    gpt.read_params(&mut |path, data| {
        values.push((path.to_owned(), data.try_into_vec::<f32>().unwrap()));
        Ok(())
    })
    .unwrap();
    values
}

#[test]
fn packed_model_dirs_give_the_logits_of_the_dequantized_weights() {
    for case in EXACT.iter().map(|(case, ..)| *case).chain(ROUNDED) {
        let [largest, _] = errors(&load(&dir(case), Some(Dtype::F32)).unwrap(), case);
        assert!(largest < 1e-4, "{case}: {largest}");
    }
}

#[test]
fn packed_matrices_are_held_in_forms_of_the_same_values() {
    for (case, qkv, down) in EXACT {
        let (stored, exact) = (load(&dir(case), None).unwrap(), load(&dir(case), Some(Dtype::F32)).unwrap());
        let dtypes: HashMap<String, String> =
            stored.matrices().into_iter().map(|(path, matrix)| (path, matrix.dtype().to_string())).collect();
        let dtype = |path: &str| dtypes.get(path).map(String::as_str).unwrap_or_else(|| panic!("{path} of {dtypes:?}"));
        assert_eq!(dtype("blocks.0.attn.qkv.weight"), qkv, "{case}");
        assert_eq!(dtype("blocks.0.mlp.down.weight"), down, "{case}");
        for ((path, exact), (_, stored)) in params(&exact).iter().zip(&params(&stored)) {
            assert!(exact == stored, "{case}: {path}");
        }
        // The kernels round activations to 8 bits.
        let [_, square] = errors(&stored, case);
        assert!(square < 0.05, "{case}: {square}");
    }
}

#[test]
fn packed_matrices_without_an_exact_form_need_a_dtype() {
    for case in ROUNDED {
        let message = load(&dir(case), None).unwrap_err().to_string();
        let bytes = "rounded to f16, the model's quantized matrices take 73.7 kB";
        assert!(message.contains(bytes) && message.contains("`--dtype f16`"), "{message}");
        for dtype in [Dtype::F16, Dtype::Q8] {
            let [_, square] = errors(&load(&dir(case), Some(dtype)).unwrap(), case);
            assert!(square < 0.05, "{case} as {dtype}: {square}");
        }
    }
}

/// gpt-oss's experts in MXFP4, as its folders have them.
const EXPERTS: &str = "mxfp4";

#[test]
fn experts_of_gpt_oss_in_mxfp4_are_computed_as_they_are_stored() {
    let (exact, stored) = (load(&dir(EXPERTS), Some(Dtype::F32)).unwrap(), load(&dir(EXPERTS), None).unwrap());
    let [largest, _] = errors(&exact, EXPERTS);
    assert!(largest < 1e-4, "{largest}");
    let [_, square] = errors(&stored, EXPERTS);
    assert!(square < 0.05, "{square}");
    for (path, matrix) in stored.matrices() {
        let expected = match path.contains(".experts.routed.") {
            true => Dtype::Mxfp4,
            false => Dtype::F32,
        };
        let is_as_expected = matrix.dtype() == expected || (expected == Dtype::F32 && !matrix.dtype().is_quantized());
        assert!(is_as_expected, "{path} is {}", matrix.dtype());
    }
    for ((path, exact), (_, stored)) in params(&exact).iter().zip(&params(&stored)) {
        assert!(exact == stored, "{path}");
    }
    // Merged to floats, they are saved under the names that `transformers` has for them.
    let target = tempfile::tempdir().unwrap();
    model_dir::save(target.path(), &exact, &SaveOptions::default()).unwrap();
    let reopened = load(target.path(), None).unwrap();
    assert_eq!(model_dir::load_class(target.path()).unwrap(), "GptOssForCausalLM");
    assert!(params(&reopened) == params(&exact));
}

#[test]
fn damaged_experts_in_mxfp4_are_rejected_by_name() {
    let is_scales = |name: &str| name == "model.layers.1.mlp.experts.down_proj_scales";
    let is_blocks = |name: &str| name == "model.layers.1.mlp.experts.down_proj_blocks";
    let same = |tensor: &TensorView<'_>| Some((tensor.shape().to_vec(), tensor.data().to_vec()));
    let rejected = |change: Change<'_>, expected: &str| {
        let message = load(changed(EXPERTS, change).path(), None).unwrap_err().to_string();
        assert!(message.contains("down_proj") && message.contains(expected), "{message}");
    };
    rejected(&|name, tensor| if is_scales(name) { None } else { same(tensor) }, "is missing");
    rejected(&|name, tensor| if is_blocks(name) { None } else { same(tensor) }, "is missing");
    let flat = |tensor: &TensorView<'_>| Some((vec![tensor.data().len()], tensor.data().to_vec()));
    rejected(
        &|name, tensor| if is_blocks(name) { flat(tensor) } else { same(tensor) },
        "must be [experts, rows, blocks, 16]",
    );
    rejected(&|name, tensor| if is_scales(name) { flat(tensor) } else { same(tensor) }, "has shape");
    let one_expert = |tensor: &TensorView<'_>| {
        let (shape, bytes) = (tensor.shape(), tensor.data());
        Some(([&[1], &shape[1..]].concat(), bytes[..bytes.len() / shape[0]].to_vec()))
    };
    let is_either = |name: &str| is_scales(name) || is_blocks(name);
    rejected(&|name, tensor| if is_either(name) { one_expert(tensor) } else { same(tensor) }, "is missing");
}

/// The new shape and bytes of a tensor; `None` to leave it out.
type Change<'a> = &'a dyn Fn(&str, &TensorView<'_>) -> Option<(Vec<usize>, Vec<u8>)>;

/// A copy of a case with its tensors changed.
fn changed(case: &str, change: Change<'_>) -> tempfile::TempDir {
    let (source, target) = (dir(case), tempfile::tempdir().unwrap());
    fs::copy(source.join("config.json"), target.path().join("config.json")).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors: Vec<_> = file
        .tensors()
        .into_iter()
        .filter_map(|(name, tensor)| change(&name, &tensor).map(|(shape, bytes)| (name, tensor.dtype(), shape, bytes)))
        .collect();
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &target.path().join("model.safetensors")).unwrap();
    target
}

#[test]
fn damaged_packed_model_dirs_are_rejected_or_opened_without_a_panic() {
    for case in EXACT.iter().map(|(case, ..)| *case).chain(ROUNDED) {
        let bytes = fs::read(dir(case).join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let names: Vec<String> =
            file.names().into_iter().filter(|name| name.contains("k_proj")).map(str::to_owned).collect();
        for damaged in &names {
            let without = changed(case, &|name, tensor| {
                (name != damaged).then(|| (tensor.shape().to_vec(), tensor.data().to_vec()))
            });
            // An order that is not stated is the inputs' own, and so are zero points. The case `gptq-act` states one.
            if !damaged.ends_with("weight_g_idx")
                && !damaged.ends_with("zero_point")
                && (case == "gptq-act" || !damaged.ends_with("g_idx"))
            {
                let message = load(without.path(), Some(Dtype::F32)).unwrap_err().to_string();
                assert!(message.contains("k_proj"), "{case} without {damaged}: {message}");
            } else {
                load(without.path(), Some(Dtype::F32)).unwrap();
            }
            // Other shapes of as many values, and other values.
            for round in 0..3 {
                let other = changed(case, &|name, tensor| {
                    let (mut shape, mut bytes) = (tensor.shape().to_vec(), tensor.data().to_vec());
                    if name == damaged {
                        match round {
                            0 => shape.reverse(),
                            1 => shape = vec![shape.iter().product()],
                            _ => bytes.fill(0xff),
                        }
                    }
                    Some((shape, bytes))
                });
                for dtype in [None, Some(Dtype::F32)] {
                    drop(load(other.path(), dtype));
                }
            }
        }
    }
}

#[test]
fn unsupported_quantization_methods_are_rejected_by_name() {
    for (case, from, to, expected) in [
        ("gptq", "\"bits\": 4", "\"bits\": 3", "`quantization_config.bits` is 3; supported are 2, 4 and 8"),
        ("awq", "\"gemm\"", "\"gemv\"", "`quantization_config` is AWQ \"gemv\""),
        ("awq", "\"awq\"", "\"aqlm\"", "method \"aqlm\", which is not supported"),
        ("int4", "pack-quantized", "nvfp4-pack-quantized", "`quantization_config.format` is \"nvfp4-pack-quantized\""),
        (
            "int4",
            "\"num_bits\": 4",
            "\"num_bits\": 3",
            "`quantization_config.config_groups.group_0.weights` are int of 3 bits",
        ),
        ("int4", "\"num_bits\": 4", "\"symmetric\": false, \"num_bits\": 4", "weight_zero_point`: is missing"),
        ("int4", "\"num_bits\": 4", "\"actorder\": \"group\", \"num_bits\": 4", "weight_g_idx`: is missing"),
        (
            "int8",
            "\"ignore\"",
            "\"transform_config\": { \"config_groups\": { \"u\": {} } }, \"ignore\"",
            "`quantization_config.transform_config` has transforms",
        ),
    ] {
        let target = changed(case, &|_, tensor| Some((tensor.shape().to_vec(), tensor.data().to_vec())));
        let config = target.path().join("config.json");
        let text = fs::read_to_string(&config).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&config, text.replace(from, to)).unwrap();
        let message = load(target.path(), None).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}
