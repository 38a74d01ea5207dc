//! Fine-tuning against torch (`golden/tuning.py`): masks, packing, accumulation, LoRA and DPO, from the same weights and
//! examples. And packing against one example in each row.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    config::GptConfig,
    gpt::{Gpt, lora::Training},
    ops::Dtype,
    text::tokenizer::Tokenizer,
    weights::{
        adapter::{Adapter, AdapterModel},
        model_dir::{self, LoadOptions, load_gpt},
    },
};
use hearth_training::{
    config::{Layers, ObjectiveKind, ObjectiveSettings},
    data::{
        loader::{Batch, Documents, Loader, LoaderSettings, Packing, Pairs, RowOrder, RowSource},
        tokenizer_build::BuiltTokenizer,
    },
    run::{
        learner::{Learner, LossGradients},
        optim::Gradients,
        schedule::{RunSize, Schedule},
    },
};
use serde::Deserialize;

#[derive(Clone, Deserialize)]
struct Example {
    ids: Vec<TokenId>,
    trained: Vec<bool>,
}

#[derive(Deserialize)]
struct Golden {
    sets: Vec<String>,
    losses: Vec<f32>,
    norms: Vec<f32>,
    steps: Vec<Vec<Example>>,
}

const SEQ_LEN: usize = 24;

/// Used only for the number of bytes of each token.
fn tokenizer() -> Tokenizer {
    BuiltTokenizer::characters("abcdefghijklmnopqrstuvwxyz01234567", SEQ_LEN).unwrap().open().unwrap()
}

fn dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tuning").join(name)
}

fn load(dir: &Path, device: Device) -> Gpt {
    load_gpt(dir, &LoadOptions { device, dtype: Some(Dtype::F32) }).unwrap()
}

fn pair(example: &Example) -> (Vec<TokenId>, Vec<bool>) {
    (example.ids.clone(), example.trained.clone())
}

fn rows(examples: &[Example], packing: Packing) -> RowSource {
    Documents::of_examples(examples.iter().map(pair), (SEQ_LEN, packing), &tokenizer()).unwrap().into()
}

/// All rows once, `size` at a time, in the loader's order.
fn batches(source: &RowSource, size: usize) -> Vec<Batch> {
    let n_rows = source.n_rows(SEQ_LEN) as usize;
    let settings = LoaderSettings {
        seed: 3,
        seq_len: SEQ_LEN,
        micro_batch_size: size,
        order: RowOrder::Permuted,
        n_micro_batches: n_rows / size,
    };
    let loader = Loader::new(source, settings).unwrap();
    assert_eq!(n_rows % size, 0);
    (0..n_rows / size).map(|micro_step| loader.batch(0, micro_step)).collect()
}

fn gradients(learner: &Learner, step: usize, batches: Vec<Batch>) -> LossGradients {
    let index = learner.step_index(step, batches.iter());
    learner.gradients(index, batches.into_iter().enumerate()).unwrap().unwrap()
}

fn golden(name: &str) -> Golden {
    serde_json::from_slice(&fs::read(dir(name).join("run.json")).unwrap()).unwrap()
}

/// Runs a golden run with an objective of this kind; `source` makes the rows of a step.
fn follow(name: &str, kind: ObjectiveKind, start: Gpt, source: impl Fn(&[Example]) -> RowSource) -> Gpt {
    let golden = golden(name);
    let config = Layers { sets: golden.sets, ..Layers::default() }.resolve().unwrap();
    config.validate().unwrap();
    assert_eq!([golden.losses.len(), golden.norms.len()], [golden.steps.len(); 2], "{name}");
    let objective = ObjectiveSettings { kind, ..config.objective };
    let schedule = Schedule::new(&config, RunSize { n_params: 0, rows_per_epoch: 0, tokens_per_epoch: 0 });
    let mut learner = Learner::new(start, config.optim.clone(), 0).with_objective(objective);
    for (step, examples) in golden.steps.iter().enumerate() {
        let mut sums = gradients(&learner, step, batches(&source(examples), 1));
        let norm = learner.clip(&mut sums.gradients).unwrap().into_scalar::<f32>();
        let loss = sums.loss.into_scalar::<f32>();
        for (what, found, expected) in [("loss", loss, golden.losses[step]), ("norm", norm, golden.norms[step])] {
            assert!(
                (found - expected).abs() <= 1e-4 * expected,
                "{name}, step {step}: {what} {found}, torch {expected}"
            );
        }
        learner = learner.update(sums.gradients, schedule.rates(step, &config.optim));
    }
    learner.gpt
}

fn assert_close(name: &str, path: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{name}: values of `{path}`");
    let largest = expected.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
    let difference =
        found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0_f32, f32::max);
    assert!(difference <= 1e-4 * largest, "{name}: `{path}` differs by {difference}, its largest is {largest}");
}

fn assert_same_weights(name: &str, found: &Gpt, expected: &Gpt) {
    let mut all = Vec::new();
    let read = expected.read_params(&mut |path, data| {
        all.push((path.to_owned(), data.try_to_vec::<f32>().unwrap()));
        Ok(())
    });
    read.unwrap();
    let mut all = all.into_iter();
    let compare = found.read_params(&mut |path, data| {
        let (expected_path, expected) = all.next().unwrap();
        assert_eq!(path, expected_path);
        assert_close(name, path, &data.try_to_vec::<f32>().unwrap(), &expected);
        Ok(())
    });
    compare.unwrap();
    assert_eq!(all.next().map(|(path, _)| path), None, "{name}: a parameter is missing");
}

#[test]
fn full_finetuning_with_masks_packing_and_accumulation_matches_torch() {
    let start = load(&dir("full/start"), Device::flex().autodiff());
    let end = follow("full", ObjectiveKind::NextToken, start, |examples| rows(examples, Packing::BestFit));
    assert_same_weights("full", &end, &load(&dir("full/end"), Device::flex()));
}

fn load_with_head(dir: &Path, device: Device) -> Gpt {
    let options = LoadOptions { device, dtype: Some(Dtype::F32) };
    let gpt = load_gpt(dir, &options).unwrap();
    let head = model_dir::load_prediction_head(dir, &options, &gpt).unwrap().unwrap();
    gpt.with_prediction_head(head)
}

/// With texts packed, of whose last target the head predicts nothing.
#[test]
fn prediction_head_that_trains_beside_its_model_matches_torch() {
    let start = load_with_head(&dir("mtp/start"), Device::flex().autodiff());
    let end = follow("mtp", ObjectiveKind::NextToken, start, |examples| rows(examples, Packing::BestFit));
    assert_same_weights("mtp", &end, &load_with_head(&dir("mtp/end"), Device::flex()));
}

/// If the blocks of the model are computed again, gradients are the same.
#[test]
fn prediction_heads_train_alike_with_recomputation() {
    let golden = golden("mtp");
    let of = |recompute: bool| {
        let sets = [golden.sets.clone(), vec![format!("optim.recompute={recompute}")]].concat();
        let config = Layers { sets, ..Layers::default() }.resolve().unwrap();
        let start = load_with_head(&dir("mtp/start"), Device::flex().autodiff());
        let learner = Learner::new(start, config.optim.clone(), 0).with_objective(config.objective);
        gradients(&learner, 0, batches(&rows(&golden.steps[0], Packing::BestFit), 1)).gradients
    };
    let (plain, recomputed) = (of(false), of(true));
    let values = |gradients: &Gradients, path: &str| {
        gradients.get(path).unwrap().clone().into_data().try_to_vec::<f32>().unwrap()
    };
    assert!(plain.paths().any(|path| path == "prediction.join.linear.weight"));
    for path in plain.paths() {
        assert_close("recomputed", path, &values(&recomputed, path), &values(&plain, path));
    }
}

#[test]
fn lora_finetuning_matches_peft() {
    let base = load(&dir("lora/start"), Device::flex());
    let config = base.config().clone();
    let model = AdapterModel::new(&config, Some(model_dir::load_class(&dir("lora/start")).unwrap())).unwrap();
    let open = |name: &str| Adapter::open(&dir("lora").join(name), model).unwrap();
    let start = base.with_lora(&open("adapter-start").values, 0.0, Training::Yes).unwrap();
    let end = follow("lora", ObjectiveKind::NextToken, start, |examples| rows(examples, Packing::BestFit));
    let (found, expected) = (end.lora().unwrap().unwrap(), open("adapter-end").values);
    assert_eq!(found.0.keys().collect::<Vec<_>>(), expected.0.keys().collect::<Vec<_>>());
    assert!(!found.0.is_empty());
    for (path, found) in &found.0 {
        assert_close("lora", path, &found.values, &expected.0[path].values);
    }
}

#[test]
fn dpo_finetuning_matches_torch() {
    let reference = load(&dir("dpo/start"), Device::flex());
    let log_prob = |example: &Example| {
        let ids: Vec<i32> = example.ids.iter().map(|&id| id as i32).collect();
        let (inputs, targets) = (&ids[..ids.len() - 1], &ids[1..]);
        let tensor = |ids: &[i32]| burn::tensor::Tensor::from_ints(ids, &Device::flex());
        let context = hearth_model::gpt::attention::AttentionContext::dense(1, inputs.len());
        let hidden = reference.forward(tensor(inputs), context);
        let losses = reference.token_losses(hidden, tensor(targets)).unwrap();
        -losses.iter().zip(&example.trained[1..]).filter(|(_, trained)| **trained).map(|(loss, _)| loss).sum::<f32>()
    };
    let start = load(&dir("dpo/start"), Device::flex().autodiff());
    let end = follow("dpo", ObjectiveKind::Dpo, start, |examples| {
        let (both, rest) = examples.as_chunks::<2>();
        assert!(rest.is_empty());
        let pairs = Pairs::new(both.iter().map(|both| both.each_ref().map(pair)), SEQ_LEN, &tokenizer()).unwrap();
        RowSource::Pairs(pairs.with_references(both.iter().map(|both| both.each_ref().map(log_prob)).collect()))
    });
    // At the first step the model equals its reference, so the loss is `ln 2`.
    let first = golden("dpo").losses[0];
    assert!((first - 2_f32.ln()).abs() < 1e-6, "the first loss is {first}");
    assert_same_weights("dpo", &end, &load(&dir("dpo/end"), Device::flex()));
}

/// Attention does not cross examples, and positions restart in each: with learned, rotary and ALiBi positions, and with a
/// sliding window.
#[test]
fn packed_examples_have_the_loss_and_gradients_of_unpacked_ones() {
    let examples = golden("full").steps.concat();
    let models = ["gpt2", "llama", "bloom", "mistral", "gemma3", "nanochat"];
    for model in models {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(model);
        let gpt = load(&golden, Device::flex().autodiff()).with_dropout(0.0);
        let GptConfig { vocab_size, max_seq_len, .. } = *gpt.config();
        let cut = |example: &Example| {
            let n = example.ids.len().min(max_seq_len.min(SEQ_LEN) + 1);
            let ids = example.ids[..n].iter().map(|id| id % vocab_size as TokenId).collect();
            let mut trained = example.trained[..n].to_vec();
            trained[n - 1] = true;
            Example { ids, trained }
        };
        let examples: Vec<_> = examples.iter().take(24).map(cut).collect();
        let learner = Learner::new(gpt, Layers::default().resolve().unwrap().optim, 0);
        let of = |packing: Packing| {
            let source = rows(&examples, packing);
            let n_rows = source.n_rows(SEQ_LEN) as usize;
            (gradients(&learner, 0, batches(&source, n_rows)), n_rows)
        };
        let ((packed, n_packed), (unpacked, n_unpacked)) = (of(Packing::BestFit), of(Packing::Off));
        assert!(n_packed < n_unpacked && n_unpacked == examples.len(), "{n_packed} of {n_unpacked} rows");
        let [found, expected] = [&packed, &unpacked].map(|sums| sums.loss.clone().into_scalar::<f32>());
        assert!((found - expected).abs() <= 1e-6 * expected, "{model}: loss {found}, unpacked {expected}");
        for path in unpacked.gradients.paths() {
            let values = |sums: &LossGradients| {
                sums.gradients.get(path).unwrap().clone().into_data().try_to_vec::<f32>().unwrap()
            };
            let (found, expected) = (values(&packed), values(&unpacked));
            let largest = expected.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
            assert_eq!(found.len(), expected.len(), "{model}: values of `{path}`");
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() <= 1e-5 * largest, "{model}: `{path}` {found}, unpacked {expected}");
            }
        }
    }
}
