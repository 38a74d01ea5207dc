//! The gradients of a whole step, over the micro-batches of all ranks.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Learner, LossGradients};
use crate::{
    data::loader::Batch,
    eval::read_numbers,
    objective::{RouterBalance, StepIndex},
    ranks::Group,
    run::{
        optim::Gradients,
        sharding::{Presence, Shards},
        tree_sum::{Sum, TreeSum},
    },
};

/// The gradients of a step, clipped, with its loss and norm, which are read off the device: a NaN must not reach the weights.
#[derive(Clone, Debug)]
pub struct StepGradients {
    /// See [`LossGradients::loss`].
    pub loss: f32,
    /// The norm of all gradients before clipping.
    pub grad_norm: f32,
    /// The gradients; with several ranks, only of the parameters that this rank updates.
    pub gradients: Gradients,
    /// See [`LossGradients::balance`].
    pub balance: Option<RouterBalance>,
}

/// A rank's results for its micro-batches. Floats are sent as bits, since JSON cannot represent all of them.
#[derive(Serialize, Deserialize)]
struct OfRank {
    loss: u32,
    balance: Option<(u64, Vec<u64>)>,
    /// Numbers of the parameters without a gradient.
    absent: Vec<usize>,
}

impl Sum for f32 {
    fn sum(left: f32, right: f32) -> f32 {
        left + right
    }
}

impl Learner {
    /// Makes this learner one of the ranks of `group`, which updates its share of the parameters. It must have made no
    /// step.
    #[must_use]
    pub fn with_group(mut self, group: &Group) -> Learner {
        if group.is_alone() {
            return self;
        }
        let device = self.gpt.device();
        let device = if device.is_autodiff() { device.inner() } else { device };
        let shards = Shards::new(group.clone(), &self.gpt, &self.optimizer, device);
        self.optimizer = self.optimizer.owning(shards.owned().map(str::to_owned).collect());
        self.shards = Some(shards);
        self
    }

    /// The owners of the parameters, with several ranks.
    pub fn shards(&self) -> Option<&Shards> {
        self.shards.as_ref()
    }

    /// The gradients of the step `index`, clipped as set. `own` are this rank's [own](Group::micro_batches)
    /// micro-batches, with the numbers of their micro-steps in order.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), or a rank does not answer.
    pub fn step_gradients(&self, index: StepIndex, own: impl Iterator<Item = (usize, Batch)>) -> Result<StepGradients> {
        let own = self.gradients(index, own)?;
        if let Some(shards) = &self.shards {
            return self.step_gradients_of_all(own, shards);
        }
        let LossGradients { loss, mut gradients, balance } = own.context("a step has micro-batches")?;
        let grad_norm = self.clip(&mut gradients)?;
        let [loss, grad_norm] = read_numbers([loss, grad_norm])?;
        Ok(StepGradients { loss, grad_norm, gradients, balance })
    }

    /// The model with the weights that other ranks have updated, after [`update`](Self::update).
    ///
    /// # Errors
    /// A rank does not answer, or the device fails.
    pub fn with_updates_of_all(mut self) -> Result<Learner> {
        if let Some(shards) = &self.shards {
            self.gpt = shards.with_updated(self.gpt)?;
        }
        Ok(self)
    }

    fn step_gradients_of_all(&self, own: Option<LossGradients>, shards: &Shards) -> Result<StepGradients> {
        let group = shards.group();
        let said = own.as_ref().map(|own| of_rank(own, shards)).transpose()?;
        let said = group.gather(&said)?;
        let (mut losses, mut balances) = (TreeSum::default(), TreeSum::default());
        // Only the last ranks may have no micro-batches.
        for OfRank { loss, balance, .. } in said.iter().flatten() {
            losses.push(f32::from_bits(*loss));
            let of_bits = |(loss, counts): &(u64, Vec<u64>)| RouterBalance {
                loss: f64::from_bits(*loss),
                counts: counts.clone(),
            };
            balances.push(balance.as_ref().map(of_bits));
        }
        let presence = Presence::new(said.into_iter().map(|said| Some(said?.absent)).collect());
        let gradients = own.map_or_else(Gradients::default, |own| own.gradients);
        let mut gradients = shards.sum(gradients, &presence)?;
        let squares = squares_of_all(&gradients, shards)?;
        let clip = self.optimizer.settings().clip;
        let grad_norm = gradients.clip_part(&squares, clip, shards.device())?;
        let loss = losses.finish().context("a step has micro-batches")?;
        Ok(StepGradients { loss, grad_norm, gradients, balance: balances.finish().flatten() })
    }
}

fn of_rank(own: &LossGradients, shards: &Shards) -> Result<OfRank> {
    let [loss] = read_numbers([own.loss.clone()])?;
    let balance = own.balance.as_ref().map(|balance| (balance.loss.to_bits(), balance.counts.clone()));
    Ok(OfRank { loss: loss.to_bits(), balance, absent: shards.absent(&own.gradients) })
}

/// The sums of the squares of all gradients, of which each rank has a part, in the order of their paths.
fn squares_of_all(gradients: &Gradients, shards: &Shards) -> Result<Vec<f64>> {
    let mut own = gradients.square_sums()?;
    let numbered = shards.params().iter().enumerate().filter_map(|(number, param)| {
        let squares = own.remove(&param.path)?;
        Some((number, squares.into_iter().map(f64::to_bits).collect::<Vec<_>>()))
    });
    let mut all = shards.group().gather(&numbered.collect::<Vec<_>>())?.concat();
    ensure!(!all.is_empty(), "no parameter of the model has a gradient");
    all.sort_unstable_by_key(|(number, _)| *number);
    Ok(all.into_iter().flat_map(|(_, squares)| squares).map(f64::from_bits).collect())
}
