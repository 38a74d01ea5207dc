//! Prediction heads against plain PyTorch: `golden/make_prediction_heads.py` makes the dirs and says what they have.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::{Device, Tensor, TensorData};
use hearth_model::{
    TokenId,
    config::GptConfig,
    decode::model_runner::PredictionRunner,
    gpt::{
        Gpt, attention::AttentionContext, kv_cache::StepPart, prediction_head::PredictionHead, token_ids::token_tensor,
    },
    ops::KvDtype,
    weights::model_dir::{self, LoadOptions, SaveOptions},
};
use safetensors::SafeTensors;

const CASES: [&str; 3] = ["qwen3_5", "qwen3_5-moe", "qwen3-next"];

/// What is allowed between f32 and float64, as a part of the logits' spread.
const TOLERANCE: f32 = 1e-4;

struct Oracle {
    ids: Vec<TokenId>,
    further_ids: Vec<TokenId>,
    hidden: Vec<f32>,
    logits: Vec<f32>,
    further_logits: Vec<f32>,
}

fn dir(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/prediction-heads").join(case)
}

fn oracle(case: &str) -> Oracle {
    let bytes = fs::read(dir(case).join("oracle.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        tensors.tensor(name).unwrap().data().chunks_exact(4).map(|bytes| bytes.try_into().unwrap()).collect()
    };
    let ids = |name: &str| words(name).into_iter().map(u32::from_le_bytes).collect();
    let values = |name: &str| words(name).into_iter().map(f32::from_le_bytes).collect();
    Oracle {
        ids: ids("input_ids"),
        further_ids: ids("further_ids"),
        hidden: values("hidden"),
        logits: values("logits"),
        further_logits: values("further_logits"),
    }
}

fn options() -> LoadOptions {
    LoadOptions { device: Device::flex(), dtype: None }
}

/// The model and its head.
fn load(path: &Path) -> (Gpt, PredictionHead) {
    let gpt = model_dir::load_gpt(path, &options()).unwrap();
    let head = model_dir::load_prediction_head(path, &options(), &gpt).unwrap().unwrap();
    (gpt, head)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

fn rows(values: &[f32], width: usize) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len() / width, width]), &Device::flex())
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], case: &str) {
    let mean = expected.iter().sum::<f32>() / expected.len() as f32;
    let spread = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / expected.len() as f32).sqrt();
    assert_eq!(found.len(), expected.len(), "{case}");
    let most = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(most <= TOLERANCE * spread, "{case}: off by {most}, the spread is {spread}");
}

/// The head's logits of the oracle's tokens, from the model's hidden states.
fn logits(gpt: &Gpt, head: &PredictionHead, oracle: &Oracle) -> Vec<f32> {
    let n = oracle.ids.len();
    let hidden = gpt.forward(token_tensor(gpt, &oracle.ids), AttentionContext::dense(1, n));
    let hidden = hidden.narrow(0, 0, n - 1);
    let next_ids = token_tensor(gpt, &oracle.ids[1..]);
    values(head.logits(head.forward(next_ids, hidden, AttentionContext::dense(1, n - 1))))
}

#[test]
fn logits_of_prediction_heads_are_those_of_plain_pytorch() {
    for case in CASES {
        let (oracle, (gpt, head)) = (oracle(case), load(&dir(case)));
        assert_close(&logits(&gpt, &head, &oracle), &oracle.logits, case);
    }
}

#[test]
fn a_head_in_a_gguf_file_computes_what_it_does_in_its_model_dir() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/prediction-head.gguf");
    let (oracle, (gpt, head)) = (oracle("qwen3_5-moe"), load(&path));
    assert_close(&logits(&gpt, &head, &oracle), &oracle.logits, "GGUF");
}

/// In chunks of every size, and on from its own hidden states.
#[test]
fn cached_logits_of_prediction_heads_have_the_same_bits_in_chunks_of_every_size() {
    for case in CASES {
        let (oracle, (gpt, head)) = (oracle(case), load(&dir(case)));
        let (width, n) = (gpt.config().d_model, oracle.ids.len() - 1);
        let mut runner = PredictionRunner::new(head, 8, KvDtype::F32).unwrap();
        let mut whole: Option<Vec<u32>> = None;
        for cut in [n, 1, 3, 7] {
            let mut table = runner.cache().table();
            let (mut found, mut last) = (Vec::new(), None);
            for start in (0..n).step_by(cut) {
                let end = (start + cut).min(n);
                let hidden = rows(&oracle.hidden[start * width..end * width], width);
                let part = StepPart::new(&mut table, end - start);
                let output = runner.step(&oracle.ids[start + 1..end + 1], hidden, &mut [part]).unwrap();
                found.extend(values(runner.head().logits(output.clone())));
                last = Some(output.narrow(0, end - start - 1, 1));
            }
            assert_close(&found, &oracle.logits, case);
            let mut further = Vec::new();
            for &id in &oracle.further_ids {
                let output = runner.step(&[id], last.take().unwrap(), &mut [StepPart::new(&mut table, 1)]).unwrap();
                further.extend(values(runner.head().logits(output.clone())));
                last = Some(output);
            }
            assert_close(&further, &oracle.further_logits, case);
            let bits: Vec<u32> = found.into_iter().chain(further).map(f32::to_bits).collect();
            assert!(*whole.get_or_insert_with(|| bits.clone()) == bits, "{case}: other bits in chunks of {cut}");
        }
    }
}

#[test]
fn a_model_without_a_head_has_none_and_the_model_is_the_same_with_one() {
    for case in CASES {
        let plain = dir(case).join("../..").join(case);
        let gpt = model_dir::load_gpt(&plain, &options()).unwrap();
        assert!(model_dir::load_prediction_head(&plain, &options(), &gpt).unwrap().is_none());
        let ids = oracle(case).ids;
        let logits = |gpt: &Gpt| {
            let hidden = gpt.forward(token_tensor(gpt, &ids), AttentionContext::dense(1, ids.len()));
            values(gpt.logits(hidden))
        };
        assert!(logits(&gpt) == logits(&load(&dir(case)).0), "{case}");
    }
}

/// The bytes of a file of tensors, changed.
fn changed(case: &str, change: impl Fn(&mut Vec<(String, safetensors::tensor::TensorView<'_>)>)) -> tempfile::TempDir {
    let bytes = fs::read(dir(case).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = tensors.tensors();
    change(&mut tensors);
    let scratch = tempfile::tempdir().unwrap();
    fs::copy(dir(case).join("config.json"), scratch.path().join("config.json")).unwrap();
    safetensors::serialize_to_file(tensors, None, &scratch.path().join("model.safetensors")).unwrap();
    scratch
}

#[test]
fn heads_with_missing_or_surplus_tensors_are_refused_by_their_names() {
    let refusal = |scratch: &tempfile::TempDir| {
        let gpt = model_dir::load_gpt(scratch.path(), &options()).unwrap();
        model_dir::load_prediction_head(scratch.path(), &options(), &gpt).map(drop).unwrap_err().to_string()
    };
    for missing in ["mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.self_attn.k_norm.weight"] {
        let error = refusal(&changed("qwen3_5", |tensors| tensors.retain(|(name, _)| name != missing)));
        assert!(error.contains(&format!("`{missing}`")) && error.contains("missing"), "{error}");
    }
    let second = changed("qwen3_5", |tensors| {
        let (_, tensor) = tensors.iter().find(|(name, _)| name == "mtp.layers.0.input_layernorm.weight").unwrap();
        let tensor = tensor.clone();
        tensors.push(("mtp.layers.1.input_layernorm.weight".to_owned(), tensor));
    });
    let error = refusal(&second);
    assert!(error.contains("mtp.layers.1.input_layernorm.weight"), "{error}");
}

/// A head that the class is not known to have.
#[test]
fn a_head_of_another_class_is_refused_and_passed_over_without_being_asked_for() {
    let scratch = tempfile::tempdir().unwrap();
    let plain = dir("qwen3_5").join("../../olmo2");
    fs::copy(plain.join("config.json"), scratch.path().join("config.json")).unwrap();
    let bytes = fs::read(plain.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = tensors.tensors();
    let norm = tensors.iter().find(|(name, _)| name == "model.norm.weight").unwrap().1.clone();
    tensors.push(("mtp.norm.weight".to_owned(), norm));
    safetensors::serialize_to_file(tensors, None, &scratch.path().join("model.safetensors")).unwrap();
    let gpt = model_dir::load_gpt(scratch.path(), &options()).unwrap();
    let error = model_dir::load_prediction_head(scratch.path(), &options(), &gpt).map(drop).unwrap_err().to_string();
    assert!(error.contains("`mtp.norm.weight`") && error.contains("prediction head"), "{error}");
}

#[test]
fn bytes_of_a_head_are_those_of_its_tensors() {
    let in_gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/prediction-head.gguf");
    for (case, path) in CASES.map(|case| (case, dir(case))).into_iter().chain([("qwen3_5-moe", in_gguf)]) {
        let bytes = fs::read(dir(case).join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let of_head = tensors.tensors().into_iter().filter(|(name, _)| name.starts_with("mtp."));
        let n_bytes: usize = of_head.map(|(_, tensor)| tensor.data().len()).sum();
        assert_eq!(model_dir::prediction_head_bytes(&path).unwrap(), n_bytes as u64, "{}", path.display());
        let (gpt, head) = load(&path);
        let GptConfig { n_kv_heads, head_dim, .. } = *gpt.config();
        assert_eq!(head.kv_bytes_per_token(KvDtype::F32).unwrap(), 2 * 4 * n_kv_heads * head_dim);
    }
    assert_eq!(model_dir::prediction_head_bytes(&dir("qwen3_5").join("../../qwen3_5")).unwrap(), 0);
}

/// The tensors of a head that trains beside its model have Qwen's names, whatever the class.
#[test]
fn heads_that_train_beside_their_models_are_saved_with_them() {
    let scratch = tempfile::tempdir().unwrap();
    let bits = |gpt: &Gpt| {
        let mut all = Vec::new();
        let read = gpt.read_params(&mut |path, data| {
            all.push((path.to_owned(), data.try_to_vec::<f32>().unwrap()));
            Ok(())
        });
        read.unwrap();
        all
    };
    for (case, seed) in [("qwen3_5", None), ("qwen3-next", None), ("llama", Some(7)), ("qwen3", Some(7))] {
        let gpt = match seed {
            None => {
                let (gpt, head) = load(&dir(case));
                gpt.with_prediction_head(head)
            }
            Some(seed) => {
                let gpt = model_dir::load_gpt(&dir("qwen3_5").join("../..").join(case), &options()).unwrap();
                let head = PredictionHead::init(&gpt, seed).unwrap();
                gpt.with_prediction_head(head)
            }
        };
        let path = scratch.path().join(case);
        model_dir::save(&path, &gpt, &SaveOptions::default()).unwrap();
        let (opened, head) = load(&path);
        assert!(bits(&opened.with_prediction_head(head)) == bits(&gpt), "{case}");
        let config: serde_json::Value = serde_json::from_slice(&fs::read(path.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["mtp_num_hidden_layers"], 1, "{case}");
        if seed.is_none() {
            let names = |path: &Path| {
                let bytes = fs::read(path.join("model.safetensors")).unwrap();
                let tensors = SafeTensors::deserialize(&bytes).unwrap();
                let of_head = tensors.names().into_iter().filter(|name| name.starts_with("mtp."));
                of_head.map(ToOwned::to_owned).collect::<BTreeSet<_>>()
            };
            assert_eq!(names(&path), names(&dir(case)), "{case}");
        }
    }
}
