//! The vectors of a batch's texts as plain numbers, and the way back: from the gradient of a vector to the gradient of
//! the hidden states.

use anyhow::{Result, ensure};
use burn::tensor::{Tensor, TensorData};
use hearth_model::{gpt::Gpt, ops::Losses};

use super::{TextPooling, TrainingPass};
use crate::{data::loader::Batch, eval::read_floats};

/// The hidden states of a batch with one text per row, and how the texts' vectors are pooled from them.
#[derive(Debug)]
pub(super) struct TextVectors {
    pooling: TextPooling,
    /// `[n_rows * seq_len, d_model]`, row by row.
    hidden: Vec<f32>,
    d_model: usize,
    seq_len: usize,
    /// Tokens of each row's text.
    lens: Vec<usize>,
    /// The vector of each row, `[d_model]`.
    pub(super) vectors: Vec<Vec<f64>>,
}

impl TextVectors {
    /// The vectors of `batch`, with the final hidden states `hidden [n_rows * seq_len, d_model]`, which must be without autodiff.
    ///
    /// # Errors
    /// The device fails.
    pub(super) fn new(batch: &Batch, hidden: Tensor<2>, pooling: TextPooling) -> Result<TextVectors> {
        let [n, d_model] = hidden.dims();
        let hidden = read_floats(hidden.reshape([n * d_model]))?;
        let mut found = TextVectors {
            pooling,
            hidden,
            d_model,
            seq_len: batch.seq_len,
            lens: batch.text_lens(),
            vectors: Vec::new(),
        };
        found.vectors = (0..found.lens.len()).map(|row| found.vector(row)).collect();
        Ok(found)
    }

    /// The hidden state of token `at` of row `row`.
    fn state(&self, row: usize, at: usize) -> &[f32] {
        &self.hidden[(row * self.seq_len + at) * self.d_model..][..self.d_model]
    }

    /// The token whose hidden state is largest in component `component`, the first among equals.
    fn largest(&self, row: usize, component: usize) -> usize {
        let value = |at: usize| self.state(row, at)[component];
        (1..self.lens[row]).fold(0, |best, at| if value(at) > value(best) { at } else { best })
    }

    fn vector(&self, row: usize) -> Vec<f64> {
        let of = |at: usize| self.state(row, at).iter().copied().map(f64::from).collect();
        match self.pooling {
            TextPooling::Cls => of(0),
            TextPooling::Last => of(self.lens[row].saturating_sub(1)),
            TextPooling::Max => {
                let largest = |component| f64::from(self.state(row, self.largest(row, component))[component]);
                (0..self.d_model).map(largest).collect()
            }
            TextPooling::Mean => {
                let mut sums = vec![0.0; self.d_model];
                for at in 0..self.lens[row] {
                    sums.iter_mut().zip(self.state(row, at)).for_each(|(sum, value)| *sum += f64::from(*value));
                }
                let n = self.lens[row].max(1) as f64;
                sums.into_iter().map(|sum| sum / n).collect()
            }
        }
    }

    /// The gradient of the hidden states, in their shape, from the gradient of each row's vector.
    fn gradient_of_hidden(&self, of_vectors: &[Vec<f64>]) -> Vec<f32> {
        let mut gradient = vec![0.0; self.hidden.len()];
        for (row, of_vector) in of_vectors.iter().enumerate() {
            let place = |at: usize| (row * self.seq_len + at) * self.d_model;
            let mut put = |at: usize, scale: f64| {
                let values = &mut gradient[place(at)..][..self.d_model];
                values.iter_mut().zip(of_vector).for_each(|(value, of)| *value = (of * scale) as f32);
            };
            match self.pooling {
                TextPooling::Cls => put(0, 1.0),
                TextPooling::Last => put(self.lens[row].saturating_sub(1), 1.0),
                TextPooling::Mean => (0..self.lens[row]).for_each(|at| put(at, (self.lens[row] as f64).recip())),
                TextPooling::Max => {
                    for (component, of) in of_vector.iter().enumerate() {
                        gradient[place(self.largest(row, component)) + component] = *of as f32;
                    }
                }
            }
        }
        gradient
    }

    /// The losses of a micro-batch with the hidden states `hidden`: `loss`, whose gradient with respect to each row's
    /// vector is `of_vectors`. Since these are plain numbers, the sum of the hidden states times their gradients has
    /// the gradient of the loss.
    pub(super) fn losses(
        &self,
        pass: &TrainingPass<'_>,
        hidden: Tensor<2>,
        (loss, of_vectors): (f64, &[Vec<f64>]),
    ) -> Losses {
        let device = pass.gpt.device().autodiff();
        let gradient = TensorData::new(self.gradient_of_hidden(of_vectors), hidden.dims());
        let objective = (hidden * Tensor::from_data(gradient, &device)).sum();
        Losses { objective, cross_entropy: Tensor::from_floats([loss as f32], &device.inner()) }
    }
}

/// The vectors of `batch` by `gpt`, which must be without autodiff.
///
/// # Errors
/// The device fails, or a hidden state is not a number.
pub(super) fn vectors_of(gpt: &Gpt, batch: &Batch, pooling: TextPooling) -> Result<Vec<Vec<f64>>> {
    let (inputs, _) = batch.to_device(&gpt.device());
    let found = TextVectors::new(batch, gpt.forward(inputs, batch.context(None)), pooling)?;
    let is_finite = found.vectors.iter().flatten().all(|value| value.is_finite());
    ensure!(is_finite, "a hidden state of a text is not a number");
    Ok(found.vectors)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn gradient_of_hidden_states_matches_finite_differences_of_the_vectors() {
        // Two rows of three places; the second row has two tokens.
        let batch = Batch { batch_size: 2, weights: Some(vec![1.0, 1.0, 1.0, 1.0, 1.0, 0.0]), ..Batch::empty(3) };
        let hidden: Vec<f32> = (0..12).map(|n| ((n * 7) % 12) as f32 * 0.25 - 1.0).collect();
        let of_vectors = [vec![0.5, -2.0], vec![3.0, 1.0]];
        let vectors = |hidden: &[f32], pooling| {
            let hidden = Tensor::from_data(TensorData::new(hidden.to_vec(), [6, 2]), &Device::flex());
            TextVectors::new(&batch, hidden, pooling).unwrap()
        };
        let loss = |hidden: &[f32], pooling| -> f64 {
            let all = vectors(hidden, pooling).vectors;
            all.iter().flatten().zip(of_vectors.iter().flatten()).map(|(value, of)| value * of).sum()
        };
        for pooling in [TextPooling::Mean, TextPooling::Cls, TextPooling::Max, TextPooling::Last] {
            let found = vectors(&hidden, pooling).gradient_of_hidden(&of_vectors);
            for (at, found) in found.into_iter().enumerate() {
                let mut moved = hidden.clone();
                moved[at] += 0.0625;
                let slope = (loss(&moved, pooling) - loss(&hidden, pooling)) / 0.0625;
                assert!((f64::from(found) - slope).abs() < 1e-5, "{pooling:?}, {at}: {found} and {slope}");
            }
        }
    }
}
