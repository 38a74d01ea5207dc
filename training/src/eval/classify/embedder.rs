//! Embeddings of texts, many texts a step, by the pooling of `/v1/embeddings`.

use anyhow::Result;
use burn::tensor::{DType, Tensor};
use hearth_model::{
    TokenId,
    decode::model_runner::ModelRunner,
    gpt::{
        Gpt,
        kv_cache::PAGE_SIZE,
        pooling::{Pool, Pooling, VectorSteps},
    },
    ops::KvDtype,
};

use crate::eval::packed::{self, PackedText, ROWS_PER_STEP};

/// The tokens of a text, or of a pair of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedText {
    /// All tokens.
    pub ids: Vec<TokenId>,
    /// Where the tokens of the second text begin, if the tokenizer has token types.
    pub second_text: Option<usize>,
}

impl From<Vec<TokenId>> for EncodedText {
    fn from(ids: Vec<TokenId>) -> EncodedText {
        EncodedText { ids, second_text: None }
    }
}

/// Embeds texts with a model.
#[derive(Debug)]
pub struct Embedder {
    gpt: Gpt,
    kv_dtype: KvDtype,
}

impl Embedder {
    /// An embedder on the model's device.
    ///
    /// # Errors
    /// The device does not support the dtype of the KV cache that serving would choose.
    pub fn new(gpt: &Gpt) -> Result<Self> {
        let kv_dtype = match gpt.config().bidirectional {
            // Keys and values of an encoder live for one step: a narrower dtype would save nothing.
            true => KvDtype::F32,
            false => KvDtype::choose(None, gpt.dtype(), &gpt.device())?,
        };
        Ok(Self { gpt: gpt.clone(), kv_dtype })
    }

    /// The vectors of each text, one for each pooling with its steps. Reports the number of finished texts to
    /// `progress`.
    ///
    /// # Errors
    /// A hidden state is not a number, or the device fails.
    pub fn embed(
        &self,
        texts: &[EncodedText],
        poolings: &[(Pooling, VectorSteps)],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Vec<Vec<Vec<f32>>>> {
        // Tokens of an encoder see later tokens, so a text is computed in one step.
        let rows_per_step = if self.gpt.config().bidirectional { usize::MAX } else { ROWS_PER_STEP };
        let batches = packed::batches(texts, rows_per_step.min(ROWS_PER_STEP), |text| text.ids.len());
        let pages_of = |batch: &&[EncodedText]| batch.iter().map(|text| text.ids.len().div_ceil(PAGE_SIZE)).sum();
        let n_pages: usize = batches.iter().map(pages_of).max().unwrap_or(0);
        let mut runner = ModelRunner::with_states(self.gpt.clone(), n_pages.max(1), n_pages.max(1), self.kv_dtype)?;
        let d_model = self.gpt.config().d_model;
        let mut embedded = Vec::with_capacity(texts.len());
        for batch in batches {
            let mut packed_texts: Vec<PackedText<'_>> = batch
                .iter()
                .map(|text| PackedText { table: runner.cache().table(), ids: &text.ids, second_text: text.second_text })
                .collect();
            let mut pools =
                vec![poolings.iter().map(|(pooling, _)| Pool::new(*pooling)).collect::<Vec<_>>(); batch.len()];
            packed::run(&mut runner, &mut packed_texts, rows_per_step, &mut |runner, output, packed_rows| {
                let n_rows: usize = packed_rows.iter().map(|rows| rows.n_rows).sum();
                let hidden = read(runner.hidden(output, &(0..n_rows).collect::<Vec<_>>()))?;
                for rows in packed_rows {
                    let of_text = &hidden[rows.row * d_model..(rows.row + rows.n_rows) * d_model];
                    for pool in &mut pools[rows.text] {
                        pool.add_from(rows.start, of_text, d_model)?;
                    }
                }
                Ok(())
            })?;
            let vectors = |pools: Vec<Pool>| {
                pools.into_iter().zip(poolings).map(|(pool, (_, steps))| pool.into_vector(steps)).collect()
            };
            embedded.extend(pools.into_iter().map(vectors));
            progress(embedded.len());
        }
        Ok(embedded)
    }
}

fn read(hidden: Tensor<2>) -> Result<Vec<f32>> {
    let data =
        hidden.cast(DType::F32).try_into_data().map_err(|error| anyhow::anyhow!("the device failed: {error}"))?;
    data.try_into_vec::<f32>().map_err(|error| anyhow::anyhow!("cannot read hidden states: {error:?}"))
}
