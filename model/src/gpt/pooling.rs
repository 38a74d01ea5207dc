//! Pooling: the final hidden states of a text's tokens become one vector, its embedding. The server's `/v1/embeddings` and the
//! probes of `hearth-train eval classify` use the same code.

mod late_interaction;
mod prompts;

use std::sync::Arc;

pub use self::{
    late_interaction::{LateInteraction, LateText, QueryExpansion, max_sim},
    prompts::Prompts,
};

use crate::{
    error::{Error, Result},
    ops,
};

/// How to pool the hidden states of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// The last token's, which has attended to all others.
    Last,
    /// The maximum of each component.
    Max,
    /// The first token's, which encoders train for this ([BERT](https://arxiv.org/abs/1810.04805), 3).
    Cls,
    /// None: each token keeps its own vector; the vectors are concatenated.
    Tokens,
}

impl Pooling {
    /// Every kind that makes one vector, with its name.
    pub const ALL: [(&'static str, Self); 4] =
        [("mean", Self::Mean), ("last", Self::Last), ("max", Self::Max), ("cls", Self::Cls)];
}

/// The pooling of a text's hidden states, as the files of a model state it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum OwnPooling {
    /// The files do not state it.
    #[default]
    Unstated,
    /// With this pooling.
    As(Pooling),
    /// With this pooling, followed by these layers.
    Layered(Pooling, Arc<[DenseLayer]>),
    /// Not at all: each token has a vector.
    Late(Arc<LateInteraction>),
    /// An unsupported pooling: a clause that names the file and the pooling.
    Unsupported(String),
}

/// A layer that a pooled vector goes through: `norm(activation(weight * vector + bias))`.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseLayer {
    /// `[d_out, d_in]`.
    pub weight: Vec<f32>,
    /// `[d_out]`; empty for none.
    pub bias: Vec<f32>,
    /// Length of its inputs.
    pub d_in: usize,
    /// Its activation.
    pub activation: DenseActivation,
    /// The weight and the epsilon of a LayerNorm after it.
    pub norm: Option<(Vec<f32>, f64)>,
}

/// The activation of a [`DenseLayer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DenseActivation {
    /// None.
    #[default]
    Identity,
    /// The hyperbolic tangent.
    Tanh,
    /// `max(0, x)`.
    Relu,
    /// `x * Phi(x)`.
    Gelu,
}

impl DenseActivation {
    fn of(self, values: Vec<f64>) -> Vec<f64> {
        match self {
            Self::Identity => values,
            Self::Tanh => values.into_iter().map(f64::tanh).collect(),
            Self::Relu => values.into_iter().map(|value| value.max(0.0)).collect(),
            Self::Gelu => ops::gelu_of(&values.into_iter().map(|value| value as f32).collect::<Vec<_>>()),
        }
    }
}

impl DenseLayer {
    /// Length of its outputs.
    pub fn d_out(&self) -> usize {
        self.weight.len() / self.d_in.max(1)
    }

    fn apply(&self, vector: &[f64]) -> Vec<f64> {
        let rows = self.weight.chunks_exact(self.d_in.max(1));
        let biases = self.bias.iter().copied().map(f64::from).chain(std::iter::repeat(0.0));
        let sums = rows.zip(biases).map(|(row, bias)| {
            row.iter().zip(vector).map(|(weight, value)| f64::from(*weight) * value).sum::<f64>() + bias
        });
        let outputs = self.activation.of(sums.collect());
        let Some((weight, eps)) = &self.norm else { return outputs };
        let n = outputs.len() as f64;
        let mean = outputs.iter().sum::<f64>() / n;
        let variance = outputs.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
        let factor = (variance + eps).sqrt().recip();
        outputs.iter().zip(weight).map(|(value, weight)| (value - mean) * factor * f64::from(*weight)).collect()
    }
}

/// How a pair of texts is given to a model that compares them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PairForm {
    /// As the tokenizer joins them.
    #[default]
    Joined,
    /// Within a text: the strings before the first text, between the texts, and after the second.
    Within([String; 3]),
}

/// Turns hidden states into scores of classes, or of a pair of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// Which hidden states it reads.
    pub pooling: Pooling,
    /// Its layers, one after the other.
    pub layers: Arc<[DenseLayer]>,
    /// The names of the classes, in the order of the last layer's outputs.
    pub labels: Vec<String>,
    /// How the outputs become scores.
    pub scores: ClassScores,
    /// How it reads a pair of texts.
    pub pair_form: PairForm,
}

/// How the outputs of a classifier become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassScores {
    /// Probabilities of mutually exclusive classes.
    Softmax,
    /// A probability each.
    Sigmoid,
    /// The outputs themselves.
    Logits,
}

impl Classifier {
    /// Whether it tells the classes of single tokens, and not of a text.
    pub fn is_of_tokens(&self) -> bool {
        self.pooling == Pooling::Tokens
    }

    /// The scores of the classifier's outputs.
    pub fn scores_of(&self, outputs: &[f32]) -> Vec<f32> {
        match self.scores {
            ClassScores::Logits => outputs.to_vec(),
            ClassScores::Sigmoid => {
                outputs.iter().map(|output| (1.0 / (1.0 + (-f64::from(*output)).exp())) as f32).collect()
            }
            ClassScores::Softmax => {
                let most = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f64> = outputs.iter().map(|output| f64::from(output - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                weights.into_iter().map(|weight| (weight / sum) as f32).collect()
            }
        }
    }
}

/// Post-processing of a pooled vector.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VectorSteps {
    /// Layers, one after the other.
    pub layers: Arc<[DenseLayer]>,
    /// How many of the first components are kept, if not all ([Matryoshka](https://arxiv.org/abs/2205.13147)).
    pub dimensions: Option<usize>,
    /// How long the vector is then.
    pub scale: VectorScale,
}

/// How long a vector is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VectorScale {
    /// To Euclidean length 1. A zero vector is unchanged.
    #[default]
    Unit,
    /// Not at all.
    AsIs,
}

/// Accumulates rows one by one in double precision, so that the result does not depend on how a text is divided into steps.
#[derive(Clone, Debug)]
pub struct Pool {
    pooling: Pooling,
    values: Vec<f64>,
    n_rows: usize,
}

impl Pool {
    /// A pool without rows.
    pub fn new(pooling: Pooling) -> Self {
        Self { pooling, values: Vec::new(), n_rows: 0 }
    }

    /// Number of rows so far.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Adds the hidden states from position `start` on, row by row, each `[d_model]`. Rows that were added before are skipped:
    /// after a preemption they may come a second time.
    ///
    /// # Errors
    /// [`Error::Logits`] if a hidden state is not a finite number.
    pub fn add_from(&mut self, start: usize, hidden: &[f32], d_model: usize) -> Result<()> {
        if let Some(value) = hidden.iter().find(|value| !value.is_finite()) {
            return Err(Error::Logits { what: format!("there is a hidden state of {value}") });
        }
        let n_seen = self.n_rows.saturating_sub(start);
        hidden.chunks_exact(d_model).skip(n_seen).for_each(|row| self.add(row));
        Ok(())
    }

    fn add(&mut self, row: &[f32]) {
        let row = row.iter().copied().map(f64::from);
        self.n_rows += 1;
        if self.n_rows > 1 && self.pooling == Pooling::Cls {
            return;
        }
        match self.pooling {
            Pooling::Tokens => return self.values.extend(row),
            Pooling::Last => self.values.clear(),
            _ => {}
        }
        if self.values.is_empty() {
            self.values.extend(row);
            return;
        }
        for (value, new) in self.values.iter_mut().zip(row) {
            *value = if self.pooling == Pooling::Max { value.max(new) } else { *value + new };
        }
    }

    /// The pooled vector after `steps`: `[d_model]` if these have no layers; empty if there were no rows. With
    /// [`Pooling::Tokens`], the vectors of all rows, each after `steps`.
    pub fn into_vector(self, steps: &VectorSteps) -> Vec<f32> {
        match self.pooling {
            Pooling::Tokens => {
                let width = self.values.len() / self.n_rows.max(1);
                self.values.chunks_exact(width.max(1)).flat_map(|row| steps.applied_to(row.to_vec())).collect()
            }
            Pooling::Mean => {
                let n_rows = self.n_rows as f64;
                steps.applied_to(self.values.into_iter().map(|value| value / n_rows).collect())
            }
            _ => steps.applied_to(self.values),
        }
    }
}

impl VectorSteps {
    fn applied_to(&self, pooled: Vec<f64>) -> Vec<f32> {
        let mut vector = self.layers.iter().fold(pooled, |vector, layer| layer.apply(&vector));
        vector.truncate(self.dimensions.unwrap_or(usize::MAX));
        let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
        let divisor = if self.scale == VectorScale::Unit && norm > 0.0 { norm } else { 1.0 };
        vector.into_iter().map(|value| (value / divisor) as f32).collect()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, scale: VectorScale) -> Vec<f32> {
        let mut pool = Pool::new(pooling);
        pool.add_from(0, &[1.0, -4.0, 2.0, -2.0], 2).unwrap();
        // The second row is passed twice and must count once.
        pool.add_from(1, &[2.0, -2.0, 0.0, 0.0], 2).unwrap();
        assert_eq!(pool.n_rows(), 3);
        pool.into_vector(&VectorSteps { scale, ..VectorSteps::default() })
    }

    #[test]
    fn mean_max_and_last_pooling_and_unit_scaling_match_hand_values() {
        assert_eq!(pooled(Pooling::Mean, VectorScale::AsIs), [1.0, -2.0]);
        assert_eq!(pooled(Pooling::Max, VectorScale::AsIs), [2.0, 0.0]);
        assert_eq!(pooled(Pooling::Last, VectorScale::AsIs), [0.0, 0.0]);
        assert_eq!(pooled(Pooling::Max, VectorScale::Unit), [1.0, 0.0]);
        let unit = 0.2_f32.sqrt();
        assert_eq!(pooled(Pooling::Mean, VectorScale::Unit), [unit, -2.0 * unit]);
        assert_eq!(pooled(Pooling::Last, VectorScale::Unit), [0.0, 0.0], "no direction at all");
        assert_eq!(pooled(Pooling::Cls, VectorScale::AsIs), [1.0, -4.0]);
        assert_eq!(pooled(Pooling::Tokens, VectorScale::AsIs), [1.0, -4.0, 2.0, -2.0, 0.0, 0.0]);
        let half = 0.5_f32.sqrt();
        assert_eq!(pooled(Pooling::Tokens, VectorScale::Unit)[2..], [half, -half, 0.0, 0.0], "each row by itself");
    }

    #[test]
    fn layers_and_shorter_vectors_match_hand_values() {
        let mut pool = Pool::new(Pooling::Cls);
        pool.add_from(0, &[1.0, -4.0, 2.0, -2.0], 2).unwrap();
        let layer = |weight: &[f32], bias: &[f32], activation| DenseLayer {
            weight: weight.to_vec(),
            bias: bias.to_vec(),
            d_in: 2,
            activation,
            norm: None,
        };
        let identity = DenseActivation::Identity;
        let doubled = layer(&[2.0, 0.0, 0.0, 1.0], &[], identity);
        let three = layer(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], &[0.0, 7.0, 0.5], identity);
        let of = |layers: &[DenseLayer], dimensions, scale| {
            let steps = VectorSteps { layers: layers.to_vec().into(), dimensions, scale };
            pool.clone().into_vector(&steps)
        };
        assert_eq!(of(&[doubled.clone(), three.clone()], None, VectorScale::AsIs), [2.0, 3.0, -1.5]);
        assert_eq!(of(&[doubled.clone(), three], Some(2), VectorScale::AsIs), [2.0, 3.0]);
        assert_eq!(of(&[doubled], Some(1), VectorScale::Unit), [1.0], "the length is that of what is kept");
        let one = |activation| of(&[layer(&[1.0, 0.0], &[0.0], activation)], None, VectorScale::AsIs)[0];
        assert_eq!(one(DenseActivation::Tanh), 1f64.tanh() as f32);
        assert!((one(DenseActivation::Gelu) - 0.841_344_7).abs() < 1e-6);
        let normed = DenseLayer {
            norm: Some((vec![2.0, 1.0], 0.0)),
            ..layer(&[2.0, 0.0, 0.0, 1.0], &[], DenseActivation::Relu)
        };
        assert_eq!(of(&[normed], None, VectorScale::AsIs), [2.0, -1.0]);
    }

    #[test]
    fn pooling_nan_hidden_states_is_an_error() {
        let error = Pool::new(Pooling::Mean).add_from(0, &[1.0, f32::NAN], 2).unwrap_err().to_string();
        assert!(error.contains("hidden state of NaN"), "{error}");
    }
}
