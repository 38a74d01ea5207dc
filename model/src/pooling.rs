//! Pooling: the final hidden states of a text's tokens become one vector, its embedding. The server's `/v1/embeddings` and the
//! probes of `hearth-train eval classify` use the same code.

use crate::error::{Error, Result};

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
}

impl Pooling {
    /// Every kind, with its name.
    pub const ALL: [(&'static str, Self); 3] = [("mean", Self::Mean), ("last", Self::Last), ("max", Self::Max)];
}

/// How the files of a model say that the hidden states of a text become a vector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnPooling {
    /// They say nothing.
    #[default]
    Unstated,
    /// In this way.
    As(Pooling),
    /// In a way that is not supported: a clause that names the file and the way.
    Unsupported(String),
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
        if self.n_rows == 1 || self.pooling == Pooling::Last {
            self.values = row.collect();
            return;
        }
        for (value, new) in self.values.iter_mut().zip(row) {
            *value = if self.pooling == Pooling::Max { value.max(new) } else { *value + new };
        }
    }

    /// The pooled vector, `[d_model]`; empty if there were no rows.
    pub fn into_vector(self, scale: VectorScale) -> Vec<f32> {
        let divisor = if self.pooling == Pooling::Mean { self.n_rows as f64 } else { 1.0 };
        let norm = self.values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let divisor = match scale {
            VectorScale::AsIs => divisor,
            VectorScale::Unit if norm > 0.0 => norm,
            VectorScale::Unit => 1.0,
        };
        self.values.into_iter().map(|value| (value / divisor) as f32).collect()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, scale: VectorScale) -> Vec<f32> {
        let mut pool = Pool::new(pooling);
        pool.add_from(0, &[1.0, -4.0, 2.0, -2.0], 2).unwrap();
        // The second row is passed again and must count once.
        pool.add_from(1, &[2.0, -2.0, 0.0, 0.0], 2).unwrap();
        assert_eq!(pool.n_rows(), 3);
        pool.into_vector(scale)
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
    }

    #[test]
    fn pooling_nan_hidden_states_is_an_error() {
        let error = Pool::new(Pooling::Mean).add_from(0, &[1.0, f32::NAN], 2).unwrap_err().to_string();
        assert!(error.contains("hidden state of NaN"), "{error}");
    }
}
