//! The outer step of replicas, beside its formula.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use burn::tensor::Device;
use hearth_model::gpt::Gpt;
use hearth_training::{
    config::{Layers, ParallelSettings},
    data::loader::Batch,
    ranks::Group,
    run::{learner::Learner, replicas::Replicas, schedule::Rates, sharding::weights_of},
};

const RATES: Rates = Rates { lr: 1.0, decay: 1.0, momentum: 0.9 };

fn batch(first: u32) -> Batch {
    let ids: Vec<u32> = (first..first + 33).map(|id| id * id % 16).collect();
    Batch {
        batch_size: 1,
        seq_len: 32,
        inputs: ids[..32].to_vec(),
        targets: ids[1..].to_vec(),
        weights: None,
        context_tokens: None,
        positions: None,
        references: None,
        sources: None,
        epoch: 0,
    }
}

fn weights(gpt: &Gpt) -> BTreeMap<String, Vec<f32>> {
    let read = |(path, values): (String, burn::tensor::Tensor<1>)| (path, values.into_data().try_to_vec().unwrap());
    weights_of(gpt).into_iter().map(read).collect()
}

/// Two rounds of two steps of two replicas: the same as learners that know nothing of each other, and arithmetic in f64.
#[test]
fn replicas_go_on_from_the_mean_of_their_ways_with_nesterov_momentum() {
    let config = Layers { preset: Some("tiny".to_owned()), ..Layers::default() }.resolve().unwrap();
    let gpt = Gpt::init(&config.gpt_config(16).unwrap(), 1, &Device::flex().autodiff()).unwrap();
    let learner = Learner::new(gpt, config.optim, 1);
    let settings =
        ParallelSettings { replicas: 2, sync_every: 2, outer_lr: 0.7, outer_momentum: 0.8, ..Default::default() };
    let mut replicas = Replicas::new(&settings, &learner, &Group::default()).unwrap().unwrap();
    let mut apart = [learner.clone(), learner.clone()];
    let mut global = learner.gpt.clone();
    let mut expected: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    let mut momentum: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (path, values) in weights(&global) {
        momentum.insert(path.clone(), vec![0.0; values.len()]);
        expected.insert(path, values.into_iter().map(f64::from).collect());
    }
    for round in 0..2 {
        for step in [2 * round, 2 * round + 1] {
            let batches = [batch(40 * step), batch(40 * step + 20)];
            let (all, gradients) = replicas.gradients(step as usize, &batches).unwrap();
            let mut losses = Vec::new();
            apart = apart.map(|learner| {
                let place = losses.len();
                let index = learner.step_index(step as usize, batches[place..=place].iter());
                let own = learner.step_gradients(index, [(place, batches[place].clone())].into_iter()).unwrap();
                losses.push(own.loss);
                learner.update(own.gradients, RATES)
            });
            assert!((all.loss - (losses[0] + losses[1]) / 2.0).abs() < 1e-6, "{} and {losses:?}", all.loss);
            replicas.update(gradients, RATES);
        }
        assert!(replicas.meet_after(2 * round as usize + 2) && !replicas.meet_after(2 * round as usize + 1));
        let ways = apart.each_ref().map(|learner| weights(&learner.gpt));
        for (path, values) in &mut expected {
            for (at, value) in values.iter_mut().enumerate() {
                let mean = (f64::from(ways[0][path][at]) + f64::from(ways[1][path][at])) / 2.0;
                let gradient = *value - mean;
                let momentum = &mut momentum.get_mut(path).unwrap()[at];
                *momentum = 0.8 * *momentum + gradient;
                *value -= 0.7 * (gradient + 0.8 * *momentum);
            }
        }
        global = replicas.meet(global).unwrap();
        for (path, found) in weights(&global) {
            for (found, expected) in found.iter().zip(&expected[&path]) {
                assert!((f64::from(*found) - expected).abs() < 1e-6, "{path}, round {round}: {found} and {expected}");
            }
        }
        apart.iter_mut().for_each(|learner| learner.gpt = global.clone());
    }
    assert_eq!(replicas.n_updates(), 4);
}
