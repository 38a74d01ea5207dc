//! A model and its KV cache, run step by step.
//!
//! On a GPU, launching kernels takes the processor longer than many kernels run. So a step that only decodes is captured as a
//! graph once steps of its shape have occurred a few times, and replayed from then on. What differs from step to step (token
//! ids, slots, page tables, positions) is written into a buffer that the graph reads. Steps have the same shape if they have as
//! many rows and, rounded up, as many pages. The graph also selects as many of each row's most likely tokens as the step before
//! was read for.

use std::{borrow::Cow, ops::Range};

use burn::tensor::{DType, Device, Tensor};

use crate::{
    TokenId,
    config::GptConfig,
    decode::{
        read_logits::{LogitRows, TopTokens, read_logits},
        sampling::LogitDemand,
    },
    error::{Error, Result},
    gpt::{
        Gpt,
        forward_pass::{AttentionContext, ForwardPass},
        kv_cache::{KvCache, PagedStep, SourcePages, StepPart},
        token_ids::check_token_ids,
    },
    ops::{self, Ints, KvDtype, Placement, read, to_f32},
};

mod prediction_runner;
mod step_ahead;
mod step_graphs;
mod warm_up;

pub use prediction_runner::PredictionRunner;
use step_ahead::{NextStep, StepAhead};
use step_graphs::StepGraphs;

/// A model and its KV cache.
#[derive(Debug)]
pub struct ModelRunner {
    // First, so that it is dropped first: graphs hold addresses of the others.
    graphs: Option<StepGraphs>,
    gpt: Gpt,
    cache: KvCache,
    /// Most likely tokens of each row that the last decoding step was read for; 0 if it was read for other logits. The next
    /// step's graph selects as many.
    n_top: usize,
    goes_ahead: bool,
    /// The step that probably follows the last one, until that is read.
    next: Option<NextStep>,
    /// The next step, launched already.
    ahead: Option<StepAhead>,
    n_ahead: u64,
}

/// The result of a step, valid until the next step.
#[derive(Clone, Debug)]
pub struct StepOutput {
    hidden: Tensor<2>,
    logits: Option<Tensor<2>>,
    top: Option<TopTokens>,
    /// For each row of the step its place in `hidden`, if the step has rows of sources, which are not there.
    places: Option<Vec<Option<usize>>>,
}

impl ModelRunner {
    /// A runner with a cache of `n_pages` pages.
    ///
    /// # Errors
    /// As [`Gpt::kv_cache`].
    pub fn new(gpt: Gpt, n_pages: usize, kv_dtype: KvDtype) -> Result<Self> {
        let cache = gpt.kv_cache(n_pages, kv_dtype)?;
        Ok(Self::of(gpt, cache))
    }

    fn of(gpt: Gpt, cache: KvCache) -> Self {
        Self { graphs: None, gpt, cache, n_top: 0, goes_ahead: false, next: None, ahead: None, n_ahead: 0 }
    }

    /// A runner with a cache of `n_pages` pages, and `n_states` states of the recurrent layers if there are such layers.
    ///
    /// # Errors
    /// As [`Gpt::kv_cache`].
    pub fn with_states(gpt: Gpt, n_pages: usize, n_states: usize, kv_dtype: KvDtype) -> Result<Self> {
        let cache = gpt.kv_cache_with_states(n_pages, n_states, kv_dtype)?;
        Ok(Self::of(gpt, cache))
    }

    /// Enables graph capture: steps that repeat are captured from now on. Does nothing on the CPU.
    pub fn capture_steps(&mut self) {
        if Placement::of(&self.gpt.device()) == Placement::Gpu {
            self.graphs.get_or_insert_default();
        }
    }

    /// From now on, a captured step of which the most likely token of every row is read is followed by the next one at once, with
    /// these tokens. If the next call of [`step`](Self::step) is for just that, its result is there. A [`StepOutput`] is then valid
    /// only until it is read.
    pub fn go_ahead(&mut self) {
        self.goes_ahead = true;
    }

    /// Drops all graphs, and captures no more.
    pub fn stop_capture(&mut self) {
        (self.graphs, self.next, self.ahead) = (None, None, None);
    }

    /// The model.
    pub fn gpt(&self) -> &Gpt {
        &self.gpt
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// The number of captured steps.
    pub fn n_graphs(&self) -> usize {
        self.graphs.as_ref().map_or(0, StepGraphs::n_graphs)
    }

    /// The number of steps that were launched before they were asked for ([`go_ahead`](Self::go_ahead)), used or not.
    pub fn n_ahead(&self) -> u64 {
        self.n_ahead
    }

    /// Appends tokens to sequences: `token_ids` has the tokens of all `parts`, one part after the other, at least one token.
    ///
    /// # Errors
    /// [`Error::Param`] if `parts` have another number of tokens, an id is outside the vocabulary, or a sequence gets
    /// longer than the model's learned positions; [`Error::Execution`] if there are too few free pages, or the device
    /// fails.
    pub fn step(&mut self, token_ids: &[TokenId], parts: &mut [StepPart<'_>]) -> Result<StepOutput> {
        let Self { graphs, gpt, cache, n_top, goes_ahead, next, ahead, .. } = self;
        *next = None;
        let ahead = ahead.take();
        check(gpt.config(), token_ids, parts)?;
        let device = gpt.device();
        let split = gpt.config().is_encoder_decoder().then(|| SplitRows::of(token_ids, parts));
        let mut step = cache.step(parts).map_err(|error| Error::Execution { what: error.to_string() })?;
        if let Some(SplitRows { sources, .. }) = &split {
            read_sources(gpt, sources, &mut step);
        }
        let token_ids = split.as_ref().map_or(token_ids, |split| &split.texts);
        let mut pass = ForwardPass::new(gpt.config(), AttentionContext::Paged(step), &device);
        let ids = Ints::new(token_ids.iter().map(|&id| id as i32).collect(), &device);
        if let Some(graphs) = graphs
            && pass.adapters().is_empty()
            && let Some(output) = graphs.step(gpt, &ids, &mut pass, (*n_top, ahead))?
        {
            drop(pass);
            if *goes_ahead && output.top.as_ref().is_some_and(TopTokens::is_one) {
                *next = NextStep::after(gpt, cache, parts);
            }
            return Ok(output);
        }
        let places = split.map(|split| split.places);
        Ok(StepOutput { hidden: gpt.run(ids.tensor(), &mut pass), logits: None, top: None, places })
    }

    /// The final hidden states of these rows of the last step: `[rows.len(), d_model]`.
    ///
    /// # Panics
    /// If the step had no such row.
    pub fn hidden(&self, output: &StepOutput, rows: &[usize]) -> Tensor<2> {
        ops::take_rows(output.hidden.clone(), &output.places_of(rows))
    }

    /// The logits of these rows of the last step: `[rows.len(), vocab_size]`.
    ///
    /// # Panics
    /// If the step had no such row.
    pub fn logits(&self, output: &StepOutput, rows: &[usize]) -> Tensor<2> {
        match &output.logits {
            Some(logits) => ops::take_rows(logits.clone(), &output.places_of(rows)),
            None => self.gpt.logits(self.hidden(output, rows)),
        }
    }

    /// The [logits](Self::logits) on the host, at least the parts in `needs`. May launch the next step
    /// ([`go_ahead`](Self::go_ahead)).
    ///
    /// # Errors
    /// [`Error::Execution`] if the device failed in this step.
    pub fn read_logits(&mut self, output: &StepOutput, rows: &[usize], needs: &[LogitDemand]) -> Result<LogitRows> {
        let vocab_size = self.gpt.config().vocab_size;
        // A step of which all rows are read only decodes.
        if output.places.is_none() && rows.len() == output.hidden.dims()[0] {
            self.n_top = TopTokens::count_for(needs, vocab_size).unwrap_or(0);
        }
        let next = self.next.take();
        let Some(top) = output.top.as_ref().filter(|top| top.satisfy(needs)) else {
            return read_logits(self.logits(output, rows), needs);
        };
        let next = next.filter(|next| rows.iter().copied().eq(0..next.n_rows));
        let (graphs, gpt) = (self.graphs.as_mut(), &self.gpt);
        let launch_next = || next.zip(graphs).map(|(next, graphs)| graphs.launch_ahead(gpt, next, top));
        let (found, launched) = top.read(rows, needs, launch_next)?;
        let ids = found.most_likely().unwrap_or_default();
        self.ahead = launched.transpose()?.flatten().map(|ahead| ahead.with_ids(&ids));
        self.n_ahead += u64::from(self.ahead.is_some());
        Ok(found)
    }

    /// Whether [`read_logits`](Self::read_logits) reads only parts of rows; otherwise it reads whole rows.
    pub fn reads_parts(&self) -> bool {
        self.gpt.device() != Device::flex()
    }

    /// The final hidden states of consecutive rows of the last step, on the host: `rows.len() * d_model` numbers, row by row.
    ///
    /// # Errors
    /// [`Error::Execution`] if the device failed in this step.
    pub fn read_hidden(&self, output: &StepOutput, rows: Range<usize>) -> Result<Vec<f32>> {
        to_f32(read(self.hidden(output, &rows.collect::<Vec<_>>()).cast(DType::F32))?)
    }
}

impl StepOutput {
    /// The places of rows of the step.
    ///
    /// # Panics
    /// If one is of a source.
    fn places_of<'a>(&self, rows: &'a [usize]) -> Cow<'a, [usize]> {
        let Some(places) = &self.places else { return Cow::Borrowed(rows) };
        let place = |row: &usize| match places.get(*row).copied().flatten() {
            Some(place) => place,
            None => unreachable!("row {row} is of a source, or beyond the step"),
        };
        Cow::Owned(rows.iter().map(place).collect())
    }
}

/// The rows of a step with sources: the encoder's and the decoder's.
struct SplitRows {
    sources: Vec<TokenId>,
    texts: Vec<TokenId>,
    /// For each row of the step its place among the decoder's.
    places: Vec<Option<usize>>,
}

impl SplitRows {
    fn of(token_ids: &[TokenId], parts: &[StepPart<'_>]) -> Self {
        let (mut sources, mut texts, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut rest = token_ids;
        for part in parts {
            let (own, others) = rest.split_at(part.n_new);
            let (source, text) = own.split_at(part.n_source_rows());
            // The rest of the last page is not read.
            sources.extend_from_slice(&source[..part.source_len.min(source.len())]);
            places.extend(source.iter().map(|_| None));
            places.extend((texts.len()..texts.len() + text.len()).map(Some));
            texts.extend_from_slice(text);
            rest = others;
        }
        Self { sources, texts, places }
    }
}

/// Encodes the new sources of a step, and stores the keys and values that the decoder attends to.
fn read_sources(gpt: &Gpt, token_ids: &[TokenId], step: &mut PagedStep<'_>) {
    let (device, config) = (gpt.device(), gpt.config());
    let Some(encoder) = config.encoder.as_ref().filter(|_| !token_ids.is_empty()) else { return };
    let mut pages = SourcePages::new(encoder, step.new_sources(), &device);
    let ids = Ints::new(token_ids.iter().map(|&id| id as i32).collect(), &device);
    let encoded = gpt.encode(ids.tensor(), AttentionContext::Paged(pages.step()));
    for layer in 0..config.n_layers {
        step.store_sources(layer, gpt.source_keys(layer, encoded.clone()));
    }
}

/// Refuses tokens and positions outside the embeddings.
fn check(config: &GptConfig, token_ids: &[TokenId], parts: &[StepPart<'_>]) -> Result<()> {
    let refuse = |what: String| Err(Error::Param { name: "token_ids", what });
    let n_new: usize = parts.iter().map(|part| part.n_new).sum();
    if token_ids.len() != n_new {
        return refuse(format!("must be {n_new} for the rows of this step, got {}", token_ids.len()));
    }
    check_token_ids("token_ids", token_ids, config.vocab_size)?;
    if config.bidirectional && parts.iter().any(|part| !part.table.is_empty()) {
        return refuse("must be a whole text for a model that looks both ways".to_owned());
    }
    let can_hide = |part: &StepPart<'_>| {
        let sees_all = config.sliding_window.is_none_or(|window| part.n_new <= window);
        config.bidirectional && sees_all && part.n_hidden < part.n_new
    };
    if parts.iter().any(|part| part.n_hidden > 0 && !can_hide(part)) {
        return refuse("must be seen by others unless each sees the whole text, both ways".to_owned());
    }
    check_sources(config, parts)?;
    let of_text = |part: &StepPart<'_>| part.table.len() + part.n_new - part.n_source_places();
    let longest = parts.iter().map(of_text).max().unwrap_or(0);
    if config.positions.are_learned() && longest > config.max_seq_len {
        return refuse(format!(
            "would make a sequence of {longest} tokens, the model has {} positions",
            config.max_seq_len
        ));
    }
    Ok(())
}

/// Refuses parts without the source that an encoder-decoder needs, and parts with one for other models.
fn check_sources(config: &GptConfig, parts: &[StepPart<'_>]) -> Result<()> {
    let refuse = |name, what: String| Err(Error::Param { name, what });
    let most = config.max_source_len();
    for part in parts {
        if (part.source_len > 0) != config.is_encoder_decoder() || part.source_len > most {
            return refuse("source_len", format!("must be from {} to {most}, got {}", most.min(1), part.source_len));
        }
        // The decoder's rows follow in the same step, or are in the cache already.
        if !config.is_encoder_decoder() {
            continue;
        }
        if part.n_new <= part.n_source_rows() || part.table.len() + part.n_new <= part.n_source_places() {
            return refuse("token_ids", "must have a whole source and a token behind it".to_owned());
        }
        if part.adapter.is_some() {
            return refuse("adapter", "must be absent for a model with an encoder and a decoder".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{config::Sizes, gpt::token_ids::token_tensor};

    fn sizes() -> Sizes {
        Sizes { vocab_size: 97, max_seq_len: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 32, d_ff: 48 }
    }

    /// Kernels do not check bounds. A rejected step changes nothing.
    #[test]
    fn step_rejects_unknown_token_ids_wrong_counts_and_long_sequences() {
        let config = GptConfig::gpt2(Sizes { n_kv_heads: 4, ..sizes() });
        let gpt = Gpt::init(&config, 1, &Device::flex()).unwrap();
        let mut runner = ModelRunner::new(gpt, 8, KvDtype::F32).unwrap();
        let mut table = runner.cache().table();
        let mut refused = |token_ids: &[TokenId], n_new: usize| {
            let parts = &mut [StepPart::new(&mut table, n_new)];
            let what = runner.step(token_ids, parts).map(drop).unwrap_err().to_string();
            assert_eq!((table.len(), runner.cache().n_free_pages()), (0, 8));
            what
        };
        assert_eq!(refused(&[5, 97], 2), "`token_ids` has token id 97, the vocabulary has 97");
        assert_eq!(
            refused(&[TokenId::MAX], 1),
            format!("`token_ids` has token id {}, the vocabulary has 97", u32::MAX)
        );
        assert_eq!(refused(&[5, 6], 3), "`token_ids` must be 3 for the rows of this step, got 2");
        let what = refused(&[5; 65], 65);
        assert_eq!(what, "`token_ids` would make a sequence of 65 tokens, the model has 64 positions");
    }

    #[test]
    #[should_panic(expected = "a token id beyond the vocabulary of 97")]
    fn token_tensor_panics_on_ids_beyond_the_vocabulary() {
        let gpt = Gpt::init(&GptConfig::llama(sizes()), 1, &Device::flex()).unwrap();
        let _ = token_tensor(&gpt, &[3, 97]);
    }

    #[test]
    #[should_panic(expected = "rows [0, 3] of 3")]
    fn hidden_panics_on_rows_beyond_those_of_the_step() {
        let gpt = Gpt::init(&GptConfig::llama(sizes()), 1, &Device::flex()).unwrap();
        let mut runner = ModelRunner::new(gpt, 8, KvDtype::F32).unwrap();
        let mut table = runner.cache().table();
        let output = runner.step(&[1, 2, 3], &mut [StepPart::new(&mut table, 3)]).unwrap();
        let _ = runner.hidden(&output, &[0, 3]);
    }
}
