//! Gradients of a step do not depend on its micro-batch sizes.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    config::{Experts, GptConfig},
    gpt::{Gpt, RouterLossWeights, lora::Training},
    ops::{Dtype, Precision},
    weights::{
        adapter::{Adapter, AdapterModel},
        model_dir::{self, LoadOptions, load_gpt},
    },
};
use hearth_training::{
    config::{Layers, ObjectiveKind, ObjectiveSettings, OptimSettings, Purpose, TrainConfig},
    data::loader::Batch,
    objective::StepIndex,
    run::learner::{Learner, LossGradients},
};

const VOCAB_SIZE: usize = 16;
const SEQ_LEN: usize = 16;

fn learner(sets: &[&str]) -> Learner {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = Layers { preset: Some("tiny".to_owned()), sets, ..Layers::default() }.resolve().unwrap();
    let gpt = Gpt::init(&config.gpt_config(VOCAB_SIZE).unwrap(), 1, &Device::flex().autodiff()).unwrap();
    Learner::new(gpt, config.optim, 1)
}

/// Rows from `first` on, `batch_size` of them.
fn batch(first: usize, batch_size: usize) -> Batch {
    let id = |at: usize| ((at * at / 7 + at / 3) % VOCAB_SIZE) as TokenId;
    let places = (first..first + batch_size).flat_map(|row| row * 31..row * 31 + SEQ_LEN);
    let (inputs, targets) = places.map(|at| (id(at), id(at + 1))).unzip();
    Batch {
        batch_size,
        seq_len: SEQ_LEN,
        inputs,
        targets,
        weights: None,
        context_tokens: None,
        positions: None,
        references: None,
        items: None,
        sources: None,
        epoch: 0,
    }
}

/// Micro-batches with these numbers of rows, one row after the other.
fn cut(sizes: &[usize]) -> Vec<(usize, Batch)> {
    let mut first = 0;
    let cut = sizes.iter().enumerate().map(|(number, &size)| {
        first += size;
        (number, batch(first - size, size))
    });
    cut.collect()
}

fn values(sums: &LossGradients) -> (f32, Vec<(String, Vec<f32>)>) {
    let paths: Vec<_> = sums.gradients.paths().map(str::to_owned).collect();
    let flat = |path: String| {
        let values = sums.gradients.get(&path).unwrap().clone().into_data().try_to_vec::<f32>().unwrap();
        (path, values)
    };
    (sums.loss.clone().into_scalar::<f32>(), paths.into_iter().map(flat).collect())
}

/// The largest difference of two gradients, divided by the largest value of the parameter's gradient.
fn largest_difference(whole: &[(String, Vec<f32>)], cut: &[(String, Vec<f32>)]) -> f32 {
    assert!(!whole.is_empty() && whole.len() == cut.len(), "gradients of {} and {} parameters", whole.len(), cut.len());
    let mut most = 0.0_f32;
    for ((path, whole), (cut_path, cut)) in whole.iter().zip(cut) {
        assert!(path == cut_path && whole.len() == cut.len(), "{path} and {cut_path}");
        let largest = whole.iter().fold(f32::MIN_POSITIVE, |max, value| max.max(value.abs()));
        let differences = whole.iter().zip(cut).map(|(whole, cut)| (whole - cut).abs() / largest);
        most = differences.fold(most, f32::max);
    }
    most
}

fn index(n_rows: usize) -> StepIndex {
    StepIndex { step: 3, total_weight: (n_rows * SEQ_LEN) as f64, n_context_tokens: 0 }
}

#[test]
fn loss_and_gradients_do_not_depend_on_the_micro_batch_sizes() {
    for sets in [&["model.arch=qwen3"][..], &["model.arch=gpt2", "optim.z_loss=0.01"]] {
        let learner = learner(sets);
        let of = |sizes: &[usize]| values(&learner.gradients(index(8), cut(sizes).into_iter()).unwrap().unwrap());
        let (loss, gradients) = of(&[8]);
        // Also micro-batches with different numbers of targets.
        for sizes in [&[1; 8][..], &[4, 4], &[1, 5, 2]] {
            let (cut_loss, cut_gradients) = of(sizes);
            assert!((loss - cut_loss).abs() <= 1e-6 * loss, "{sizes:?}: loss {cut_loss}, whole {loss}");
            let difference = largest_difference(&gradients, &cut_gradients);
            assert!(difference <= 1e-5, "{sizes:?}: gradients differ by {difference}");
        }
    }
}

/// The batches with weights: in row `row` of the step, the first `row` targets and every seventh have weight 0, the
/// others 1 or 2.
fn masked(mut batches: Vec<(usize, Batch)>) -> Vec<(usize, Batch)> {
    let mut row = 0;
    for (_, batch) in &mut batches {
        let mut weights = Vec::new();
        for _ in 0..batch.batch_size {
            let weight = |at: usize| if at < row || at % 7 == 3 { 0.0 } else { 1.0 + (at % 2) as f32 };
            weights.extend((0..SEQ_LEN).map(weight));
            row += 1;
        }
        batch.weights = Some(weights);
    }
    batches
}

#[test]
fn masked_loss_and_gradients_do_not_depend_on_the_micro_batch_sizes() {
    for sets in [&["model.arch=llama"][..], &["model.arch=gpt2", "optim.z_loss=0.01"]] {
        let learner = learner(sets);
        let of = |sizes: &[usize]| {
            let batches = masked(cut(sizes));
            let index = learner.step_index(3, batches.iter().map(|(_, batch)| batch));
            values(&learner.gradients(index, batches.into_iter()).unwrap().unwrap())
        };
        let (loss, gradients) = of(&[8]);
        let unmasked = values(&learner.gradients(index(8), cut(&[8]).into_iter()).unwrap().unwrap());
        assert!(largest_difference(&gradients, &unmasked.1) > 1e-2, "the masks change the gradients");
        for sizes in [&[1; 8][..], &[4, 4], &[1, 5, 2]] {
            let (cut_loss, cut_gradients) = of(sizes);
            assert!((loss - cut_loss).abs() <= 1e-6 * loss, "{sizes:?}: loss {cut_loss}, whole {loss}");
            let difference = largest_difference(&gradients, &cut_gradients);
            assert!(difference <= 1e-5, "{sizes:?}: gradients differ by {difference}");
        }
    }
}

#[test]
fn targets_of_weight_zero_do_not_affect_loss_and_gradients() {
    let learner = learner(&["model.arch=gpt2"]);
    let of = |change: bool| {
        let mut batches = masked(cut(&[2, 2]));
        for (_, batch) in &mut batches {
            for (target, weight) in batch.targets.iter_mut().zip(batch.weights.iter().flatten()) {
                if change && *weight == 0.0 {
                    *target = (*target + 1) % VOCAB_SIZE as TokenId;
                }
            }
        }
        let index = learner.step_index(3, batches.iter().map(|(_, batch)| batch));
        values(&learner.gradients(index, batches.into_iter()).unwrap().unwrap())
    };
    assert!(of(true) == of(false));
}

/// Micro-batches in which each pair of rows is a chosen and a rejected answer.
fn pairs() -> Vec<(usize, Batch)> {
    let mut pairs = cut(&[4, 4]);
    pairs.iter_mut().for_each(|(_, batch)| batch.references = Some(vec![[-3.0, -2.0]; batch.batch_size / 2]));
    pairs
}

/// The objective that has such batches.
fn objective_of(batches: &[(usize, Batch)]) -> ObjectiveSettings {
    let is_pairs = batches.iter().any(|(_, batch)| batch.references.is_some());
    let kind = if is_pairs { ObjectiveKind::Dpo } else { ObjectiveKind::NextToken };
    ObjectiveSettings { kind, ..ObjectiveSettings::default() }
}

/// The model in `golden/tuning/lora/start` with its adapter.
fn adapted(dtype: Dtype, dropout: f64) -> Gpt {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tuning/lora");
    let start = dir.join("start");
    let base = load_gpt(&start, &LoadOptions { device: Device::flex(), dtype: Some(dtype) }).unwrap();
    let config = base.config().clone();
    let model = AdapterModel::new(&config, Some(model_dir::load_class(&start).unwrap())).unwrap();
    let adapter = Adapter::open(&dir.join("adapter-start"), model).unwrap();
    base.with_lora(&adapter.values, dropout, Training::Yes).unwrap()
}

/// Marks the targets of weight 0 as those whose predictions `objective.keep` preserves.
fn context_tokens(mut batches: Vec<(usize, Batch)>) -> Vec<(usize, Batch)> {
    for (_, batch) in &mut batches {
        batch.context_tokens =
            batch.weights.as_ref().map(|weights| weights.iter().map(|&weight| weight == 0.0).collect());
    }
    batches
}

#[test]
fn objective_keep_adds_gradients_in_proportion_to_its_weight() {
    let of = |keep: f64, recompute: bool, batches: Vec<(usize, Batch)>| {
        let objective = ObjectiveSettings { keep, ..ObjectiveSettings::default() };
        let optim = OptimSettings { recompute, ..OptimSettings::default() };
        let learner = Learner::new(adapted(Dtype::F32, 0.0), optim, 1).with_objective(objective);
        let index = learner.step_index(3, batches.iter().map(|(_, batch)| batch));
        values(&learner.gradients(index, batches.into_iter()).unwrap().unwrap())
    };
    let batches = || context_tokens(masked(cut(&[2, 3])));
    let [without, one, two] = [0.0, 1.0, 2.0].map(|keep| of(keep, false, batches()));
    // The reported loss is that of the targets alone; to the gradients, `keep` times those of the divergence are added.
    assert_eq!((without.0, one.0), (one.0, two.0));
    let mut differ = false;
    for (((path, none), (_, one)), (_, two)) in without.1.iter().zip(&one.1).zip(&two.1) {
        let largest = two.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
        for ((none, one), two) in none.iter().zip(one).zip(two) {
            differ |= none != one;
            assert!((2.0 * one - none - two).abs() <= 1e-5 * largest, "{path}: {none}, {one}, {two}");
        }
    }
    assert!(differ);
    assert_eq!(of(2.0, true, batches()), two, "recomputed blocks");
    // In a step without targets, gradients are those of the divergence alone.
    let mut read = batches();
    read.iter_mut().for_each(|(_, batch)| {
        batch.context_tokens = batch.weights.as_ref().map(|weights| vec![true; weights.len()]);
        batch.weights = batch.weights.as_ref().map(|weights| vec![0.0; weights.len()]);
    });
    let (loss, gradients) = of(1.0, false, read);
    assert!(loss == 0.0 && gradients.iter().flat_map(|(_, values)| values).all(|value| value.is_finite()));
    assert!(gradients.iter().flat_map(|(_, values)| values).any(|value| *value != 0.0));
}

#[test]
fn lora_gradients_in_bf16_are_within_3_percent_of_those_in_f32() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Q8] {
        let of = |precision: Precision| {
            let learner = Learner::new(adapted(dtype, 0.0), OptimSettings { precision, ..OptimSettings::default() }, 1);
            let batches = masked(cut(&[2, 3]));
            let index = learner.step_index(3, batches.iter().map(|(_, batch)| batch));
            values(&learner.gradients(index, batches.into_iter()).unwrap().unwrap())
        };
        let [f32, bf16] = [Precision::F32, Precision::Bf16].map(of);
        assert!(f32.0 != bf16.0 && (f32.0 - bf16.0).abs() < 1e-3 * f32.0.abs(), "{dtype}: {} and {}", f32.0, bf16.0);
        assert!(!f32.1.is_empty());
        for ((path, f32), (_, bf16)) in f32.1.iter().zip(&bf16.1) {
            let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
            let off = norm(&mut f32.iter().zip(bf16).map(|(f32, bf16)| f32 - bf16));
            let whole = norm(&mut f32.iter().copied());
            assert!(off > 0.0 && off < 0.03 * whole, "{dtype}, {path}: {off} of {whole}");
        }
    }
}

#[test]
fn lora_gradients_are_bit_identical_with_recomputed_blocks() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let of = |recompute: bool, batches: Vec<(usize, Batch)>| {
            let optim = OptimSettings { recompute, ..OptimSettings::default() };
            let learner = Learner::new(adapted(dtype, 0.1), optim, 1).with_objective(objective_of(&batches));
            let index = learner.step_index(3, batches.iter().map(|(_, batch)| batch));
            values(&learner.gradients(index, batches.into_iter()).unwrap().unwrap())
        };
        for batches in [cut(&[4, 4]), masked(cut(&[1, 5])), masked(pairs())] {
            let kept = of(false, batches.clone());
            assert!(kept.1.len() > 4 && kept.1.iter().all(|(_, values)| values.iter().any(|&value| value != 0.0)));
            assert_eq!(kept, of(true, batches), "{dtype:?}");
        }
    }
}

#[test]
fn full_gradients_are_bit_identical_with_recomputed_blocks() {
    for sets in [
        &["model.arch=gpt2", "model.dropout=0.1", "optim.z_loss=0.01"][..],
        &["model.arch=llama", "model.n_kv_heads=1", "model.tie_embeddings=false"],
        &["model.arch=qwen3", "model.tie_embeddings=true", "optim.precision=bf16"],
    ] {
        let of = |sets: &[&str], batches: Vec<(usize, Batch)>| {
            let learner = learner(sets).with_objective(objective_of(&batches));
            let index = learner.step_index(3, batches.iter().map(|(_, batch)| batch));
            values(&learner.gradients(index, batches.into_iter()).unwrap().unwrap())
        };
        for batches in [cut(&[4, 4]), masked(cut(&[1, 5])), masked(pairs())] {
            let kept = of(sets, batches.clone());
            let recomputed = of(&[sets, &["optim.recompute=true"]].concat(), batches);
            assert!(!kept.1.is_empty() && kept.1.iter().any(|(_, values)| values.iter().any(|&value| value != 0.0)));
            assert_eq!(kept, recomputed, "{sets:?}");
        }
    }
}

fn settings(sets: &[&str]) -> TrainConfig {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    Layers { preset: Some("tiny".to_owned()), sets, ..Layers::default() }.resolve().unwrap()
}

/// A small mixture whose first layer has an MLP.
fn mixture(config: &TrainConfig) -> GptConfig {
    let experts = Experts { dense_layers: vec![0], balance_loss: 0.02, ..Experts::plain(4, 2, 24) };
    GptConfig { experts: Some(experts), n_layers: 3, ..config.gpt_config(VOCAB_SIZE).unwrap() }
}

#[test]
fn router_losses_have_the_same_gradients_with_recomputed_blocks_and_leave_the_loss() {
    let config = settings(&["model.arch=llama"]);
    let gpt = Gpt::init(&mixture(&config), 1, &Device::flex().autodiff()).unwrap();
    let of = |routers: RouterLossWeights, recompute: bool, batches: Vec<(usize, Batch)>| {
        let optim = OptimSettings { recompute, ..OptimSettings::default() };
        let learner = Learner::new(gpt.clone(), optim, 1).with_router_losses(routers);
        let index = learner.step_index(3, batches.iter().map(|(_, batch)| batch));
        learner.gradients(index, batches.into_iter()).unwrap().unwrap()
    };
    for batches in [cut(&[4, 4]), context_tokens(masked(cut(&[1, 5])))] {
        let n_rows = batches.iter().map(|(_, batch)| batch.batch_size * SEQ_LEN).sum::<usize>();
        let without = of(RouterLossWeights::default(), false, batches.clone());
        assert_eq!(without.balance, None);
        for routers in [RouterLossWeights { balance: 0.5, z: 0.0 }, RouterLossWeights { balance: 0.2, z: 0.3 }] {
            let kept = of(routers, false, batches.clone());
            let balance = kept.balance.clone().unwrap();
            // Two layers with two choices a row; padding there is none.
            assert_eq!(balance.counts.iter().sum::<u64>(), 4 * n_rows as u64);
            assert!(balance.loss >= 2.0 - 0.1 && balance.most_load() >= 1.0, "{balance:?}");
            let (kept, without) = (values(&kept), values(&without));
            assert_eq!(kept.0, without.0);
            assert!(largest_difference(&kept.1, &without.1) > 1e-2, "the losses change gradients");
            let recomputed = of(routers, true, batches.clone());
            assert_eq!(recomputed.balance, Some(balance));
            let difference = largest_difference(&kept.1, &values(&recomputed).1);
            assert!(difference <= 1e-5, "recomputed blocks: {difference}");
        }
    }
}

#[test]
fn router_losses_are_the_models_own_in_pretraining_and_off_in_finetuning() {
    let of = |purpose: Purpose, sets: &[&str]| {
        let config = TrainConfig { purpose: Some(purpose), ..settings(sets) };
        let weights = config.router_losses(&mixture(&config)).unwrap();
        [weights.balance, weights.z]
    };
    assert_eq!(of(Purpose::Pretrain, &[]), [0.02, 0.0]);
    assert_eq!(of(Purpose::Finetune, &[]), [0.0, 0.0]);
    assert_eq!(
        of(Purpose::Finetune, &["optim.router_aux_loss_coef=0.01", "optim.router_z_loss_coef=0.001"]),
        [0.01, 0.001]
    );
    assert_eq!(of(Purpose::Pretrain, &["optim.router_aux_loss_coef=0"]), [0.0, 0.0]);
    for set in ["optim.router_aux_loss_coef=0.01", "optim.router_z_loss_coef=0.001"] {
        let config = settings(&[set]);
        let error = config.router_losses(&config.gpt_config(VOCAB_SIZE).unwrap()).unwrap_err().to_string();
        assert!(error.contains(set.split('=').next().unwrap()) && error.contains("without experts"), "{error}");
    }
}
