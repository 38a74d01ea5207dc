//! Embeddings: a text goes through the model once, and the final hidden states of its tokens are pooled to a vector.
//!
//! A request is a prefill without an answer: it is scheduled in chunks like others, and its rows are pooled as they are
//! computed. All positions are needed, so it does not use the prefix cache.

use hearth_model::{Error, Result};

use super::{
    event::{Event, FinishReason},
    replies::{Progress, Replies},
    request::{EngineRequest, Pooling, VectorScale},
};

/// A text on its way to a vector.
#[derive(Debug)]
pub(crate) struct TextEmbedding {
    request: EngineRequest,
    scale: VectorScale,
    pool: Pool,
}

impl TextEmbedding {
    pub(crate) fn new(request: EngineRequest, pooling: Pooling, scale: VectorScale) -> Self {
        Self { request, scale, pool: Pool::new(pooling) }
    }

    pub(crate) fn request(&self) -> &EngineRequest {
        &self.request
    }

    /// Takes the final hidden states from position `start` on, row by row, each `[d_model]`. After a preemption they may
    /// come a second time.
    ///
    /// # Errors
    /// A hidden state is not a number.
    pub(crate) fn advance(
        &mut self,
        replies: &Replies,
        start: usize,
        hidden: &[f32],
        d_model: usize,
    ) -> Result<Progress> {
        if let Some(value) = hidden.iter().find(|value| !value.is_finite()) {
            return Err(Error::Logits { what: format!("there is a hidden state of {value}") });
        }
        let n_seen = self.pool.n_rows.saturating_sub(start);
        hidden.chunks_exact(d_model).skip(n_seen).for_each(|row| self.pool.add(row));
        if self.pool.n_rows < self.request.parts().prompt_ids.len() {
            return Ok(Progress::Waits);
        }
        let pooled = std::mem::take(&mut self.pool.values);
        replies.send(0, Event::Embedding(scaled(pooled, self.pool.divisor(), self.scale)));
        replies.finish(0, FinishReason::Stop, None, String::new());
        Ok(Progress::Ended(vec![(FinishReason::Stop, 0)]))
    }
}

/// Accumulates rows one by one in double precision, so that the result does not depend on the chunks.
#[derive(Debug)]
struct Pool {
    pooling: Pooling,
    values: Vec<f64>,
    n_rows: usize,
}

impl Pool {
    fn new(pooling: Pooling) -> Self {
        Self { pooling, values: Vec::new(), n_rows: 0 }
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

    fn divisor(&self) -> f64 {
        if self.pooling == Pooling::Mean { self.n_rows as f64 } else { 1.0 }
    }
}

fn scaled(values: Vec<f64>, divisor: f64, scale: VectorScale) -> Vec<f32> {
    let norm = values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let divisor = match scale {
        VectorScale::AsIs => divisor,
        VectorScale::Unit if norm > 0.0 => norm,
        VectorScale::Unit => 1.0,
    };
    values.into_iter().map(|value| (value / divisor) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, scale: VectorScale) -> Vec<f32> {
        let mut pool = Pool::new(pooling);
        [[1.0, -4.0], [2.0, -2.0], [0.0, 0.0]].iter().for_each(|row| pool.add(row));
        scaled(pool.values.clone(), pool.divisor(), scale)
    }

    #[test]
    fn rows_are_pooled_and_scaled() {
        assert_eq!(pooled(Pooling::Mean, VectorScale::AsIs), [1.0, -2.0]);
        assert_eq!(pooled(Pooling::Max, VectorScale::AsIs), [2.0, 0.0]);
        assert_eq!(pooled(Pooling::Last, VectorScale::AsIs), [0.0, 0.0]);
        assert_eq!(pooled(Pooling::Max, VectorScale::Unit), [1.0, 0.0]);
        let unit = 0.2_f32.sqrt();
        assert_eq!(pooled(Pooling::Mean, VectorScale::Unit), [unit, -2.0 * unit]);
        assert_eq!(pooled(Pooling::Last, VectorScale::Unit), [0.0, 0.0], "no direction at all");
    }
}
