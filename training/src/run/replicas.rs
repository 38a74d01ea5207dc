//! Replicas of a model that train separately and synchronize at intervals: DiLoCo ([Douillard et al.,
//! 2023](https://arxiv.org/abs/2311.08105)), for processes with a slow network between them.
//!
//! The micro-batches of a step are divided among the replicas. Each replica updates its own weights with its own
//! optimizer. After `parallel.sync_every` steps, the average change of the weights is the gradient of an outer step,
//! SGD with Nesterov momentum. All replicas then continue from the same weights.
//!
//! Every rank has the same number of consecutive replicas. Their changes are summed as one binary tree, so a run has
//! the same bits on any number of ranks.

use std::{collections::BTreeMap, mem};

use anyhow::{Result, ensure};
use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use hearth_model::gpt::Gpt;

use crate::{
    config::ParallelSettings,
    data::loader::Batch,
    ranks::Group,
    run::{
        checkpoint::Checkpoint,
        learner::{Learner, StepGradients},
        optim::{Gradients, PutValues},
        schedule::Rates,
        sharding::{Presence, Shards, weights_of},
        tree_sum::TreeSum,
    },
};

/// Prefix of the names of the outer momentum in a checkpoint.
const OUTER: &str = "outer.";
/// Suffix of these names, as in torch.
const MOMENTUM: &str = ".momentum_buffer";
/// What the names of the weights of replicas that have not met begin with, before the replica's number.
const WEIGHTS: &str = "weights.";

/// The replicas of this rank, and its part of the outer optimizer.
#[derive(Debug)]
pub struct Replicas {
    settings: ParallelSettings,
    group: Group,
    inner: Vec<Learner>,
    /// The index of this rank's first replica, among the replicas of all ranks.
    first: usize,
    /// With several ranks: which rank makes the outer step of each parameter.
    shards: Option<Shards>,
    /// The outer momentum, flat, by path, of the parameters whose outer step this rank makes.
    momentum: BTreeMap<String, Tensor<1>>,
    /// Whether the replicas have been updated since they last met, and so have different weights.
    are_apart: bool,
    device: Device,
}

impl Replicas {
    /// Copies of `learner`, which must have made no step and share nothing with other ranks. `None` if there is only one.
    ///
    /// # Errors
    /// There are more ranks than replicas.
    pub fn new(settings: &ParallelSettings, learner: &Learner, group: &Group) -> Result<Option<Replicas>> {
        let n = settings.replicas;
        if n == 1 {
            return Ok(None);
        }
        ensure!(
            group.size() <= n,
            "the run has {n} replicas, which at most {n} processes can share, got {}\nhint: `mpirun -np {n}`",
            group.size()
        );
        let device = learner.gpt.device();
        let device = if device.is_autodiff() { device.inner() } else { device };
        let shards =
            (!group.is_alone()).then(|| Shards::new(group.clone(), &learner.gpt, &learner.optimizer, device.clone()));
        let n_here = n / group.size();
        Ok(Some(Replicas {
            settings: settings.clone(),
            group: group.clone(),
            inner: vec![learner.clone(); n_here],
            first: group.rank() * n_here,
            shards,
            momentum: BTreeMap::new(),
            are_apart: false,
            device,
        }))
    }

    /// The micro-batches of the replica `number` in a step of `n_micro_batches`.
    fn micro_batches(&self, number: usize, n_micro_batches: usize) -> std::ops::Range<usize> {
        let share = n_micro_batches.div_ceil(self.settings.replicas);
        (number * share).min(n_micro_batches)..((number + 1) * share).min(n_micro_batches)
    }

    /// The clipped gradients of this rank's replicas in the step `step`, and the loss and the norm over all replicas:
    /// means weighted by their micro-batches. `micro_batches` are the whole step's. In the last step of a run, replicas
    /// may have no micro-batches.
    ///
    /// # Errors
    /// As [`Learner::step_gradients`].
    pub fn gradients(&self, step: usize, micro_batches: &[Batch]) -> Result<(StepGradients, Vec<Option<Gradients>>)> {
        let (mut gradients, mut said) = (Vec::new(), Vec::new());
        for (number, learner) in (self.first..).zip(&self.inner) {
            let own = self.micro_batches(number, micro_batches.len());
            if own.is_empty() {
                gradients.push(None);
                continue;
            }
            let index = learner.step_index(step, micro_batches[own.clone()].iter());
            let found = learner.step_gradients(index, own.map(|micro| (micro, micro_batches[micro].clone())))?;
            // Bits, since JSON has not all floats.
            said.push((index.total_weight.to_bits(), found.loss.to_bits(), found.grad_norm.to_bits()));
            gradients.push(Some(found.gradients));
        }
        let all = self.group.gather(&said)?.concat();
        let total: f64 = all.iter().map(|(weight, ..)| f64::from_bits(*weight)).sum();
        let mean = |values: &mut dyn Iterator<Item = (u64, u32)>| {
            let sum: f64 = values.map(|(weight, bits)| f64::from_bits(weight) * f64::from(f32::from_bits(bits))).sum();
            (sum / if total == 0.0 { 1.0 } else { total }) as f32
        };
        let loss = mean(&mut all.iter().map(|(weight, loss, _)| (*weight, *loss)));
        let grad_norm = mean(&mut all.iter().map(|(weight, _, norm)| (*weight, *norm)));
        Ok((StepGradients { loss, grad_norm, gradients: Gradients::default(), balance: None }, gradients))
    }

    /// Updates each replica by its gradients.
    pub fn update(&mut self, gradients: Vec<Option<Gradients>>, rates: Rates) {
        let update = |(learner, gradients): (Learner, Option<Gradients>)| match gradients {
            Some(gradients) => learner.update(gradients, rates),
            None => learner,
        };
        self.inner = mem::take(&mut self.inner).into_iter().zip(gradients).map(update).collect();
        self.are_apart = true;
    }

    /// Updates of each replica so far.
    pub fn n_updates(&self) -> usize {
        self.inner.first().map_or(0, |learner| learner.optimizer.n_updates())
    }

    /// Whether the replicas meet after `done` steps.
    pub fn meet_after(&self, done: usize) -> bool {
        done.is_multiple_of(self.settings.sync_every)
    }

    /// The outer step from `gpt`, the weights of the last synchronization. All replicas continue from its result.
    ///
    /// # Errors
    /// A rank does not answer, or the device fails.
    pub fn meet(&mut self, gpt: Gpt) -> Result<Gpt> {
        let mut before = weights_of(&gpt);
        let mut ways = TreeSum::default();
        for learner in &self.inner {
            let mut way = Gradients::default();
            for (path, now) in weights_of(&learner.gpt) {
                let way_of_param = before.get(&path).map(|before| before.clone() - now);
                way.put(&path, way_of_param);
            }
            ways.push(way);
        }
        let mut way = ways.finish().unwrap_or_default();
        if let Some(shards) = &self.shards {
            way = shards.sum(way, &Presence::of_all(self.group.size()))?;
        }
        let ParallelSettings { replicas, outer_lr, outer_momentum, .. } = self.settings;
        let paths: Vec<String> = way.paths().map(str::to_owned).collect();
        let mut after = BTreeMap::new();
        for path in paths {
            let (Some(sum), Some(before)) = (way.take(&path), before.remove(&path)) else { continue };
            let gradient = sum / replicas as f64;
            let momentum = match self.momentum.remove(&path) {
                Some(momentum) => momentum * outer_momentum + gradient.clone(),
                None => gradient.clone(),
            };
            after.insert(path.clone(), before - (gradient + momentum.clone() * outer_momentum) * outer_lr);
            self.momentum.insert(path, momentum);
        }
        let mut gpt = gpt.map(&mut PutValues::new(after));
        if let Some(shards) = &self.shards {
            gpt = shards.with_updated(gpt)?;
        }
        self.inner.iter_mut().for_each(|learner| learner.gpt = gpt.clone());
        self.are_apart = false;
        Ok(gpt)
    }

    /// This rank's part of the state, flat, by name: `replica.NUMBER.` before the names of each [optimizer's
    /// moments](crate::run::optim::Optimizer::moments), and `outer.PATH.momentum_buffer`. Between two meetings also the weights of each
    /// replica, `weights.NUMBER.PATH`.
    pub fn moments(&self) -> Vec<(String, Tensor<1>)> {
        let of_replica = |(number, learner): (usize, &Learner)| {
            let named = move |(name, values): (String, Tensor<1>)| (format!("{}{name}", prefix(number)), values);
            learner.optimizer.moments().into_iter().map(named)
        };
        let outer = self.momentum.iter().map(|(path, values)| (format!("{OUTER}{path}{MOMENTUM}"), values.clone()));
        let mut moments: Vec<_> = (self.first..).zip(&self.inner).flat_map(of_replica).chain(outer).collect();
        for (number, learner) in (self.first..).zip(&self.inner).filter(|_| self.are_apart) {
            let named = |(path, values)| (format!("{}{path}", prefix_of_weights(number)), values);
            moments.extend(weights_of(&learner.gpt).into_iter().map(named));
        }
        moments
    }

    /// Bytes of the state of this rank's optimizers.
    pub fn n_bytes(&self) -> u64 {
        let of_optimizers = self.moments().into_iter().filter(|(name, _)| !name.starts_with(WEIGHTS));
        of_optimizers.map(|(_, values)| 4 * values.dims()[0] as u64).sum()
    }

    /// Goes on from `checkpoint`, whose model is the one at which the replicas last met.
    ///
    /// # Errors
    /// It cannot be read, or has not the state of these replicas.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        for (number, learner) in (self.first..).zip(&mut self.inner) {
            checkpoint.restore(&prefix(number), &mut learner.optimizer, &learner.gpt, &self.device)?;
            let weights = checkpoint.moments(&prefix_of_weights(number), &self.device, |_| true)?;
            self.are_apart |= !weights.is_empty();
            learner.gpt = learner.gpt.clone().map(&mut PutValues::new(weights));
        }
        let of_shards = self.shards.as_ref().map(|shards| shards.owned().map(str::to_owned).collect::<Vec<_>>());
        let outer = checkpoint.moments(OUTER, &self.device, |name| {
            let path = name.strip_suffix(MOMENTUM).unwrap_or(name);
            of_shards.as_ref().is_none_or(|owned| owned.iter().any(|owned| owned == path))
        })?;
        let of_path =
            |(name, values): (String, Tensor<1>)| (name.strip_suffix(MOMENTUM).unwrap_or(&name).to_owned(), values);
        self.momentum = outer.into_iter().map(of_path).collect();
        Ok(())
    }
}

/// Prefix of the names of a replica's moments in a checkpoint.
fn prefix(number: usize) -> String {
    format!("replica.{number}.")
}

/// What the names of a replica's weights begin with in a checkpoint.
fn prefix_of_weights(number: usize) -> String {
    format!("{WEIGHTS}{number}.")
}
