//! Short training runs against torch (`golden/recipe.py`), step by step, from the same weights and batches.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    gpt::Gpt,
    ops::Dtype,
    weights::model_dir::{LoadOptions, load_gpt},
};
use hearth_training::{
    config::Layers,
    data::loader::Batch,
    run::{
        learner::Learner,
        schedule::{RunSize, Schedule},
    },
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    sets: Vec<String>,
    losses: Vec<f32>,
    norms: Vec<f32>,
    /// `[step][row][position]`, one token more than a row has inputs.
    batches: Vec<Vec<Vec<TokenId>>>,
}

fn gpt(dir: &Path, device: Device) -> Gpt {
    load_gpt(dir, &LoadOptions { device, dtype: Some(Dtype::F32) }).unwrap()
}

fn params(gpt: &Gpt) -> BTreeMap<String, Vec<f32>> {
    let mut params = BTreeMap::new();
    gpt.read_params(&mut |path, data| {
        params.insert(path.to_owned(), data.try_to_vec::<f32>().unwrap());
        Ok(())
    })
    .unwrap();
    params
}

fn batch(rows: &[Vec<TokenId>]) -> Batch {
    Batch {
        batch_size: rows.len(),
        seq_len: rows[0].len() - 1,
        inputs: rows.iter().flat_map(|row| row[..row.len() - 1].to_vec()).collect(),
        targets: rows.iter().flat_map(|row| row[1..].to_vec()).collect(),
        weights: None,
        context_tokens: None,
        positions: None,
        references: None,
        items: None,
        sources: None,
        epoch: 0,
    }
}

fn assert_run_matches_torch(name: &str) {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/recipe").join(name);
    let golden: Golden = serde_json::from_slice(&fs::read(dir.join("run.json")).unwrap()).unwrap();
    let n_steps = golden.batches.len();
    assert!(n_steps > 1 && golden.losses.len() == n_steps && golden.norms.len() == n_steps, "{name}: a damaged golden");
    let config = Layers { sets: golden.sets, ..Layers::default() }.resolve().unwrap();
    config.validate().unwrap();
    let start = gpt(&dir.join("start"), Device::flex().autodiff());
    let schedule =
        Schedule::new(&config, RunSize { n_params: start.config().n_params(), rows_per_epoch: 0, tokens_per_epoch: 0 });
    let mut learner = Learner::new(start, config.optim.clone(), 0);
    for (step, rows) in golden.batches.iter().enumerate() {
        let batch = batch(rows);
        let index = learner.step_index(step, [&batch].into_iter());
        let mut sums = learner.gradients(index, std::iter::once((0, batch))).unwrap().unwrap();
        let norm = learner.clip(&mut sums.gradients).unwrap().into_scalar::<f32>();
        let loss = sums.loss.into_scalar::<f32>();
        for (what, found, expected) in [("loss", loss, golden.losses[step]), ("norm", norm, golden.norms[step])] {
            let bound = if what == "loss" { 1e-5 } else { 1e-4 };
            assert!(
                (found - expected).abs() <= bound * expected,
                "{name}, step {step}: {what} {found}, torch {expected}"
            );
        }
        learner = learner.update(sums.gradients, schedule.rates(step, &config.optim));
    }
    let expected = params(&gpt(&dir.join("end"), Device::flex()));
    let found = params(&learner.gpt);
    assert!(!expected.is_empty() && found.keys().eq(expected.keys()), "{name}: other parameters");
    for (path, found) in found {
        let expected = &expected[&path];
        assert_eq!(found.len(), expected.len(), "{name}: `{path}`");
        let largest = expected.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
        let differences = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
        let difference = differences.fold(0.0_f32, f32::max);
        assert!(difference <= 1e-4 * largest, "{name}: `{path}` differs by {difference}, its largest is {largest}");
    }
}

#[test]
fn adamw_run_with_clipping_and_a_schedule_matches_torch() {
    assert_run_matches_torch("adamw");
}

#[test]
fn muon_run_matches_its_published_form() {
    assert_run_matches_torch("muon");
}
