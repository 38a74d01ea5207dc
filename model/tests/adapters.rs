//! Adapters beside a model: sequences of one step may each have another.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{path::Path, sync::Arc};

use burn::tensor::{Device, TensorData};
use hearth_model::{
    TokenId,
    config::GptConfig,
    decode::model_runner::ModelRunner,
    gpt::{
        Gpt,
        kv_cache::{PageTable, StepPart},
        lora::{LoadedAdapter, LoraValues},
    },
    ops::{Dtype, KvDtype},
    weights::{
        adapter::{Adapter, AdapterConfig, AdapterModel},
        model_dir::{self, LoadOptions},
    },
};
use proptest::prelude::*;

use crate::test_gpu::gpu;

const CASES: [&str; 6] = ["llama", "gpt2", "gpt-neox-parallel", "gpt-neox-serial", "gemma2", "openai-gpt"];

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A number from -1 to 1.
fn noise(seed: u64) -> f32 {
    let mixed = (seed.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 40) as f32 / (1 << 23) as f32) - 1.0
}

/// An adapter of all linear modules, with a `B` that is not 0.
fn adapter(config: &GptConfig, class: &str, rank: usize, seed: u64) -> LoraValues {
    let adapter_config = AdapterConfig::all_linear(rank, 2.0 * rank as f64);
    let model = AdapterModel::new(config, Some(class)).unwrap();
    let mut values = Adapter::new(model, adapter_config, seed).unwrap().values;
    for update in values.0.values_mut() {
        let first = update.shape.total_rank() * update.shape.d_in;
        for (value, n) in update.values[first..].iter_mut().zip(0..) {
            *value = 0.2 * noise(seed * 1_000_003 + n);
        }
    }
    values
}

fn load(name: &str, dtype: Dtype, device: &Device) -> Gpt {
    let options = LoadOptions { device: device.clone(), dtype: Some(dtype) };
    model_dir::load_gpt(&golden(name), &options).unwrap()
}

/// The model with an adapter added to its matrices, by the definition.
fn merged(gpt: &Gpt, adapter: &LoraValues) -> Gpt {
    let mut params = std::collections::HashMap::new();
    let read = &mut |path: &str, data: TensorData| {
        let (shape, mut values) = (data.shape().clone(), data.try_into_vec::<f32>().unwrap());
        if let Some(update) = path.strip_suffix(".weight").and_then(|path| adapter.0.get(path)) {
            let d_in = update.shape.d_in;
            for (pair, [of_a, of_b]) in update.shape.pairs.iter().zip(update.shape.places()) {
                let (a, b) = (&update.values[of_a], &update.values[of_b]);
                for (n, row) in pair.rows.clone().enumerate() {
                    for column in 0..d_in {
                        let product = |rank: usize| b[n * pair.rank + rank] * a[rank * d_in + column];
                        values[row * d_in + column] += pair.scale * (0..pair.rank).map(product).sum::<f32>();
                    }
                }
            }
        }
        params.insert(path.to_owned(), TensorData::new(values, shape));
        Ok(())
    };
    gpt.read_params(read).unwrap();
    Gpt::from_params(gpt.config(), Dtype::F32, &gpt.device(), &mut |spec| Ok(params[&spec.path].clone())).unwrap()
}

/// A text and its adapter.
struct Text {
    ids: Vec<TokenId>,
    adapter: Option<usize>,
}

/// All logits of each text, cut into chunks of up to `cut` tokens, all texts in the same steps.
fn run(gpt: &Gpt, adapters: &[Arc<LoadedAdapter>], texts: &[&Text], cut: usize) -> Vec<Vec<f32>> {
    let mut runner = ModelRunner::new(gpt.clone(), 64, KvDtype::F32).unwrap();
    let mut tables: Vec<PageTable> = texts.iter().map(|_| runner.cache().table()).collect();
    let mut logits = vec![Vec::new(); texts.len()];
    let vocab_size = gpt.config().vocab_size;
    loop {
        let (mut ids, mut parts, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (text, table)) in texts.iter().zip(&mut tables).enumerate() {
            // Some texts begin with more tokens than others, so that chunks of all lengths meet.
            let n_new = (cut + number % 3).min(text.ids.len() - table.len());
            if n_new > 0 {
                ids.extend(&text.ids[table.len()..][..n_new]);
                lengths.push((number, n_new));
                let adapter = text.adapter.map(|which| adapters[which].clone());
                parts.push(StepPart { table, n_new, adapter, second_text: None, n_hidden: 0, source_len: 0 });
            }
        }
        if parts.is_empty() {
            return logits;
        }
        let output = runner.step(&ids, &mut parts).unwrap();
        let rows: Vec<usize> = (0..ids.len()).collect();
        let mut rows = runner.logits(&output, &rows).into_data().try_into_vec::<f32>().unwrap().into_iter();
        for (number, n_new) in lengths {
            logits[number].extend(rows.by_ref().take(n_new * vocab_size));
        }
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// How far the numbers are apart, of the largest.
fn distance(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

/// Texts of the model's vocabulary, with adapters by turns, the base among them.
fn texts(gpt: &Gpt, lengths: &[usize], choices: &[usize]) -> Vec<Text> {
    let vocab_size = gpt.config().vocab_size as TokenId;
    let texts = lengths.iter().zip(choices).zip(0..);
    let text = |((&len, &choice), number): ((&usize, &usize), TokenId)| Text {
        ids: (0..len as TokenId).map(|at| (at * 7 + number * 13 + 3) % vocab_size).collect(),
        adapter: choice.checked_sub(1),
    };
    texts.map(text).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn sequence_with_adapter_is_bit_identical_alone_and_batched(
        lengths in prop::collection::vec(1..30usize, 2..9),
        choices in prop::collection::vec(0..4usize, 9),
        cut in 1..20usize,
    ) {
        for (name, dtype) in CASES.iter().flat_map(|name| [(name, Dtype::F32), (name, Dtype::Q8)]) {
            let gpt = load(name, dtype, &Device::flex());
            let class = model_dir::load_class(&golden(name)).unwrap();
            let adapters: Vec<_> = [(4, 1), (16, 2), (33, 3)].map(|(rank, seed)| {
                let values = adapter(gpt.config(), class, rank, seed);
                Arc::new(LoadedAdapter::new(gpt.config(), &values, &Device::flex()).unwrap())
            }).into();
            let texts = texts(&gpt, &lengths, &choices);
            let together = run(&gpt, &adapters, &texts.iter().collect::<Vec<_>>(), cut);
            for (text, together) in texts.iter().zip(&together) {
                let alone = run(&gpt, &adapters, &[text], usize::MAX / 2);
                prop_assert!(bits(&alone[0]) == bits(together), "{name} in {dtype}, adapter {:?}", text.adapter);
                if text.adapter.is_none() {
                    let base = run(&gpt, &[], &[text], usize::MAX / 2);
                    prop_assert!(bits(&base[0]) == bits(together), "{name} in {dtype}: the base's bits");
                }
            }
        }
    }
}

#[test]
fn batched_adapters_give_the_logits_of_merged_models() {
    for name in CASES {
        let gpt = load(name, Dtype::F32, &Device::flex());
        let class = model_dir::load_class(&golden(name)).unwrap();
        let values = [(2, 5), (16, 6)].map(|(rank, seed)| adapter(gpt.config(), class, rank, seed));
        let loaded = values
            .each_ref()
            .map(|values| Arc::new(LoadedAdapter::new(gpt.config(), values, &Device::flex()).unwrap()));
        let texts = texts(&gpt, &[20, 9, 30], &[1, 2, 0]);
        let found = run(&gpt, &loaded, &texts.iter().collect::<Vec<_>>(), 7);
        for (text, found) in texts.iter().zip(&found) {
            let base = &run(&gpt, &[], &[&Text { adapter: None, ids: text.ids.clone() }], 100)[0];
            let Some(which) = text.adapter else {
                assert_eq!(found, base);
                continue;
            };
            let merged = merged(&gpt, &values[which]);
            let expected = &run(&merged, &[], &[&Text { adapter: None, ids: text.ids.clone() }], 100)[0];
            let (far, changed) = (distance(found, expected), distance(base, expected));
            assert!(far < 1e-4, "{name}: {far} away");
            assert!(changed > 0.05, "{name}: the adapter changes logits by {changed} only");
        }
    }
}

#[test]
fn batched_adapters_on_gpu_give_the_logits_of_the_cpu() {
    let Some(device) = gpu() else { return };
    // Each compiles kernels of its own, which takes the software adapter long.
    for name in ["llama", "gpt2"] {
        let (gpt, on_gpu) = (load(name, Dtype::F32, &Device::flex()), load(name, Dtype::F32, &device));
        let class = model_dir::load_class(&golden(name)).unwrap();
        let values = [(2, 5), (16, 6)].map(|(rank, seed)| adapter(gpt.config(), class, rank, seed));
        let on = |device: &Device| {
            values.each_ref().map(|values| Arc::new(LoadedAdapter::new(gpt.config(), values, device).unwrap()))
        };
        let texts = texts(&gpt, &[9, 4, 12, 1], &[1, 2, 0, 1]);
        let all: Vec<_> = texts.iter().collect();
        let (expected, found) = (run(&gpt, &on(&Device::flex()), &all, 3), run(&on_gpu, &on(&device), &all, 3));
        for (found, expected) in found.iter().zip(&expected) {
            let far = distance(found, expected);
            assert!(far < 1e-3, "{name}: {far} away");
        }
    }
}

#[test]
fn loading_an_adapter_for_another_model_is_rejected() {
    let config = |name: &str| model_dir::load_config(&golden(name)).unwrap();
    let values = adapter(&config("llama"), "LlamaForCausalLM", 4, 1);
    let error = LoadedAdapter::new(&config("gpt2"), &values, &Device::flex()).unwrap_err().to_string();
    assert!(error.contains("does not fit `blocks.0.attn.out.weight`, which is [24, 24]"), "{error}");
    let shallow = GptConfig { n_layers: 1, ..config("llama") };
    let error = LoadedAdapter::new(&shallow, &values, &Device::flex()).unwrap_err().to_string();
    assert!(error.contains("updates `blocks.1.attn.out`, which the model does not have\nhint: it belongs"), "{error}");
}
