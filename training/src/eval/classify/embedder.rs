//! Embeddings of texts, many texts a step, by the pooling of `/v1/embeddings`.

use anyhow::Result;
use burn::tensor::{DType, Tensor};
use hearth_model::{
    TokenId,
    gpt::Gpt,
    kv_cache::PAGE_SIZE,
    model_runner::ModelRunner,
    ops::KvDtype,
    pooling::{Pool, Pooling, VectorSteps},
};

use crate::eval::packed::{self, PackedText, ROWS_PER_STEP};

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
        let kv_dtype = KvDtype::choose(None, gpt.dtype(), &gpt.device())?;
        Ok(Self { gpt: gpt.clone(), kv_dtype })
    }

    /// The embeddings of each text, one per kind of pooling, each `[d_model]` and of length 1. `progress` is told the number of
    /// texts that are done.
    ///
    /// # Errors
    /// A hidden state is not a number, or the device fails.
    pub fn embed(
        &self,
        texts: &[Vec<TokenId>],
        poolings: &[Pooling],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Vec<Vec<Vec<f32>>>> {
        let batches = packed::batches(texts, ROWS_PER_STEP, Vec::len);
        let pages_of = |batch: &&[Vec<TokenId>]| batch.iter().map(|ids| ids.len().div_ceil(PAGE_SIZE)).sum();
        let n_pages: usize = batches.iter().map(pages_of).max().unwrap_or(0);
        let mut runner = ModelRunner::with_states(self.gpt.clone(), n_pages.max(1), n_pages.max(1), self.kv_dtype)?;
        let d_model = self.gpt.config().d_model;
        let mut embedded = Vec::with_capacity(texts.len());
        for batch in batches {
            let mut packed_texts: Vec<PackedText<'_>> =
                batch.iter().map(|ids| PackedText { table: runner.cache().table(), ids }).collect();
            let mut pools = vec![poolings.iter().map(|&pooling| Pool::new(pooling)).collect::<Vec<_>>(); batch.len()];
            packed::run(&mut runner, &mut packed_texts, ROWS_PER_STEP, &mut |runner, output, packed_rows| {
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
            let vectors =
                |pools: Vec<Pool>| pools.into_iter().map(|pool| pool.into_vector(&VectorSteps::default())).collect();
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
