//! Embeddings: a text goes through the model once, and the final hidden states of its tokens are pooled to a vector.
//!
//! A request is a prefill without an answer: it is scheduled in chunks like others, and its rows are pooled as they are
//! computed. All positions are needed, so it does not use the prefix cache.

use hearth_model::{
    Result,
    gpt::pooling::{Pool, Pooling},
};

use crate::{
    event::{Event, FinishReason},
    event_senders::{EventSenders, Progress},
    request::EngineRequest,
};

/// A text that is being embedded.
#[derive(Debug)]
pub(crate) struct TextEmbedding {
    request: EngineRequest,
    pool: Pool,
}

impl TextEmbedding {
    pub(crate) fn new(request: EngineRequest, pooling: Pooling) -> Self {
        Self { request, pool: Pool::new(pooling) }
    }

    pub(crate) fn request(&self) -> &EngineRequest {
        &self.request
    }

    /// Pools the final hidden states from position `start` on, row by row, each `[d_model]`. After a preemption, rows
    /// may be passed again.
    ///
    /// # Errors
    /// A hidden state is not a number.
    pub(crate) fn advance(
        &mut self,
        senders: &mut EventSenders,
        start: usize,
        hidden: &[f32],
        d_model: usize,
    ) -> Result<Progress> {
        self.pool.add_from(start, hidden, d_model)?;
        if self.pool.n_rows() < self.request.parts().prompt_ids.len() {
            return Ok(Progress::Nothing);
        }
        let pooled = std::mem::replace(&mut self.pool, Pool::new(Pooling::default()));
        senders.queue(0, Event::Embedding(pooled.into_vector(&self.request.parts().vector)));
        senders.queue_end(0, FinishReason::Stop, None, String::new());
        Ok(Progress::Ended(vec![(FinishReason::Stop, 0)]))
    }
}
