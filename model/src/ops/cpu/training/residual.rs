//! The residual stream: updates added to it, dropout, and tensors that are used twice.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use burn::{
    backend::flex::FlexTensor,
    tensor::{Tensor, TensorData},
};

use super::values;
use crate::{
    ops::{
        Dropout,
        cpu::{
            for_each_isa,
            tensors::{self, changed},
            thread_pool,
        },
        types::{AddUpdate, TrainingOp},
    },
    philox::{halves, philox},
};

/// Values per task: a multiple of [`BLOCK`], and all of them stay in the first-level cache.
const AT_ONCE: usize = 4096;
/// Values whose random numbers are made together: a call of Philox makes four.
const BLOCK: usize = Dropout::BLOCK;
/// Random numbers of 32 bits that are made side by side: as many as a register of AVX-512 holds.
const LANES: usize = BLOCK / 4;

impl TrainingOp<FlexTensor> for AddUpdate {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        (scaled(&inputs[0], inputs.get(1), self.multiplier, self.dropout), Vec::new())
    }

    fn keeps_inputs(&self) -> bool {
        false
    }

    fn backward(
        &self,
        _inputs: &[FlexTensor],
        _saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let is_unchanged = self.multiplier == 1.0 && self.dropout.is_none();
        let of_update =
            || if is_unchanged { gradient.clone() } else { scaled(gradient, None, self.multiplier, self.dropout) };
        let of_residual = wanted.get(1).map(|wanted| wanted.then(|| gradient.clone()));
        [wanted[0].then(of_update)].into_iter().chain(of_residual).collect()
    }
}

/// Returns its input: gives a tensor its own node in the autodiff graph.
#[derive(Debug)]
pub(in crate::ops) struct Pass;

impl TrainingOp<FlexTensor> for Pass {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        (inputs[0].clone(), Vec::new())
    }

    fn keeps_inputs(&self) -> bool {
        false
    }

    fn backward(
        &self,
        _inputs: &[FlexTensor],
        _saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        vec![Some(gradient.clone())]
    }
}

/// One of several uses of the input; see [`fork`](crate::ops::fork).
#[derive(Debug)]
pub(in crate::ops) struct Fork {
    /// Whether the gradient of another use has come; all uses share it.
    pub(in crate::ops) has_sum: Arc<AtomicBool>,
}

impl TrainingOp<FlexTensor> for Fork {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        (inputs[0].clone(), Vec::new())
    }

    fn keeps_inputs(&self) -> bool {
        false
    }

    fn takes_gradient(&self) -> bool {
        self.has_sum.swap(true, Ordering::Relaxed)
    }

    fn backward(
        &self,
        _inputs: &[FlexTensor],
        sum: Vec<FlexTensor>,
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let Some(sum) = sum.into_iter().next() else { return vec![Some(gradient.clone())] };
        let mut sum = tensors::owning(sum);
        add(sum.storage_mut(), values(gradient));
        vec![Some(sum)]
    }
}

/// [`add_gradients`](crate::ops::add_gradients).
pub(in crate::ops) fn add_gradients(left: Tensor<1>, right: Tensor<1>) -> Tensor<1> {
    let right = tensors::values(right);
    let right = right.as_slice();
    changed(left, |left| add(left, right))
}

fn add(left: &mut [f32], right: &[f32]) {
    thread_pool::parallel_chunks(left, AT_ONCE, |chunk, left| {
        let right = &right[chunk * AT_ONCE..];
        left.iter_mut().zip(right).for_each(|(left, right)| *left += right);
    });
}

/// `n_values` factors: 0 for dropped values, else 1 divided by the share that is kept.
pub(in crate::ops) fn dropout_factors(n_values: usize, dropout: Dropout) -> Vec<f32> {
    scaled_values(n_values, None, None, 1.0, Some(dropout))
}

/// `x` with some of its values dropped.
pub(super) fn dropped(x: &[f32], dropout: Dropout) -> Vec<f32> {
    scaled_values(x.len(), Some(x), None, 1.0, Some(dropout))
}

/// `residual + multiplier * dropout(update)`, in the shape of `update`.
fn scaled(update: &FlexTensor, residual: Option<&FlexTensor>, multiplier: f64, dropout: Option<Dropout>) -> FlexTensor {
    let output = scaled_values(values(update).len(), Some(values(update)), residual.map(values), multiplier, dropout);
    FlexTensor::from_data(TensorData::new(output, update.layout().shape().clone()))
}

/// As [`scaled`], for slices of `len` values. Without `update`, all its values are 1.
fn scaled_values(
    len: usize,
    update: Option<&[f32]>,
    residual: Option<&[f32]>,
    multiplier: f64,
    dropout: Option<Dropout>,
) -> Vec<f32> {
    let kept = 1.0 - dropout.map_or(0.0, |dropout| dropout.probability);
    let factor = (multiplier / kept) as f32;
    thread_pool::new_chunks(len, AT_ONCE, |chunk, output| {
        let range = chunk * AT_ONCE..chunk * AT_ONCE + output.len();
        let first_block = (chunk * AT_ONCE / BLOCK) as u64;
        match update {
            Some(update) => output.copy_from_slice(&update[range.clone()]),
            None => output.fill(1.0),
        }
        scale_part(output, residual.map(|residual| &residual[range.clone()]), factor, dropout, first_block);
    })
}

for_each_isa!(scale_part(
    update: &mut [f32],
    residual: Option<&[f32]>,
    factor: f32,
    dropout: Option<Dropout>,
    first_block: u64
) = scale_part_body);

/// Multiplies `update` by `factor`, or by 0 where it is dropped, and adds `residual`.
#[inline(always)]
fn scale_part_body<const FUSED: bool>(
    update: &mut [f32],
    residual: Option<&[f32]>,
    factor: f32,
    dropout: Option<Dropout>,
    first_block: u64,
) {
    match dropout {
        None => update.iter_mut().for_each(|value| *value *= factor),
        Some(dropout @ Dropout { seed, place, .. }) => {
            let threshold = dropout.threshold();
            for (block, values) in update.chunks_mut(BLOCK).enumerate() {
                let words = random_words(seed, place, first_block + block as u64);
                for (value, word) in values.iter_mut().zip(words.as_flattened()) {
                    *value *= if *word < threshold { 0.0 } else { factor };
                }
            }
        }
    }
    if let Some(residual) = residual {
        update.iter_mut().zip(residual).for_each(|(value, residual)| *value += residual);
    }
}

/// The random words of a block of values. `place` keeps the tensors of a pass apart.
#[inline(always)]
fn random_words(seed: u64, place: u32, block: u64) -> [[u32; LANES]; 4] {
    let mut words = [[0; LANES]; 4];
    for lane in 0..LANES {
        let [low, high] = halves(block * LANES as u64 + lane as u64);
        let made = philox(halves(seed), [low, high, place, Dropout::PURPOSE]);
        for (words, made) in words.iter_mut().zip(made) {
            words[lane] = made;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::isa::tests::{every_isa, with_isa};

    /// A run resumed on another machine drops the same values.
    #[test]
    fn dropout_mask_is_identical_across_instruction_sets() {
        let dropout = Dropout { probability: 0.4, seed: 9, place: 3 };
        let expected = dropout_factors(10_000, dropout);
        for isa in every_isa() {
            assert!(with_isa(isa, || dropout_factors(10_000, dropout)) == expected, "{isa:?}");
        }
    }
}
