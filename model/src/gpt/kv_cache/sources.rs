//! The sources of encoder-decoders in the cache, and the memory in which an encoder reads them.

use std::{ops::Range, sync::Arc};

use burn::tensor::{Device, Tensor};

use super::{LayerPool, PAGE_SIZE, PagedStep, pages::PageTable};
use crate::{
    config::GptConfig,
    ops::{self, AttentionOptions, KvDtype, PagedRows, PagedSequences, Slots},
};

/// Maximum number of slots of a sequence in the cache of a model: its source, in whole pages, and its text.
pub fn max_places(config: &GptConfig) -> usize {
    config.max_seq_len.saturating_add(config.max_source_len().next_multiple_of(PAGE_SIZE))
}

/// The sources of a step's sequences.
#[derive(Debug)]
pub(crate) struct StepSources {
    device: Device,
    sequences: Vec<PagedRows>,
    /// For each sequence, the rows of its text and the slots of its source's keys.
    seen: PagedSequences,
    /// The lengths of the sources that the step reads, and the slots of their tokens.
    new_lens: Vec<usize>,
    new_slots: Vec<i32>,
}

impl StepSources {
    pub(super) fn new(device: &Device) -> Self {
        let seen = PagedSequences::with_other_keys(Vec::new(), device);
        Self { device: device.clone(), sequences: Vec::new(), seen, new_lens: Vec::new(), new_slots: Vec::new() }
    }

    /// Adds the source of `len` tokens at the beginning of `table` for the step's `rows`.
    pub(super) fn add(&mut self, rows: Range<usize>, table: &PageTable, len: usize, is_new: bool) {
        let slots: Vec<i32> = (0..len).map(|at| table.slot(at)).collect();
        if is_new {
            self.new_lens.push(len);
            self.new_slots.extend_from_slice(&slots);
        }
        self.sequences.push(PagedRows { rows, start: 0, first_key: 0, slots: Slots::new(slots, &self.device) });
    }

    pub(super) fn finished(mut self) -> Self {
        self.seen = PagedSequences::with_other_keys(std::mem::take(&mut self.sequences), &self.device);
        self
    }

    pub(super) fn seen(&self) -> &PagedSequences {
        &self.seen
    }
}

impl PagedStep<'_> {
    /// The lengths of the sources that the step reads.
    pub(crate) fn new_sources(&self) -> &[usize] {
        self.sources.as_ref().map_or(&[], |sources| &sources.new_lens)
    }

    /// Stores the keys and values of `layer`, `[n_tokens, 2 * kv_width]`, of the sources that the step reads.
    pub(crate) fn store_sources(&mut self, layer: usize, keys_and_values: Tensor<2>) {
        let Some(sources) = &self.sources else { return };
        *self.is_written = true;
        let LayerPool::Attention { keys, values, heads } = &mut self.layers[layer] else {
            unreachable!("a decoder with an encoder attends in all layers")
        };
        let slots = Slots::new(sources.new_slots.clone(), &sources.device);
        ops::append(keys_and_values, [keys, values], &slots, *heads);
    }

    /// Cross-attention of `queries [n_rows, n_heads * head_dim]` to the keys and values of their sequences' sources in
    /// `layer`.
    ///
    /// # Panics
    /// If the sequences have no sources.
    pub(crate) fn attend_to_source(
        &mut self,
        layer: usize,
        queries: Tensor<2>,
        options: &AttentionOptions,
    ) -> Tensor<2> {
        let Some(sources) = &self.sources else { unreachable!("a source for each text of an encoder-decoder") };
        let [keys, values] = self.layers[layer].keys_and_values();
        ops::attention_paged(queries, [&*keys, &*values], sources.seen(), (options, None))
    }
}

/// Keys and values of sources while an encoder reads them: they are needed within a layer, so all layers share one pool, in f32.
pub(crate) struct SourcePages {
    layers: Vec<LayerPool>,
    lens: Vec<usize>,
    device: Device,
    is_written: bool,
}

impl SourcePages {
    /// For sources of these lengths, and the encoder of `config`.
    pub(crate) fn new(config: &GptConfig, lens: &[usize], device: &Device) -> Self {
        let n_slots = lens.iter().map(|len| len.next_multiple_of(PAGE_SIZE)).sum();
        let heads = [config.n_kv_heads, config.head_dim];
        let pool = || ops::new_pool(n_slots, heads, KvDtype::F32, device);
        let layers = vec![LayerPool::Attention { keys: pool(), values: pool(), heads }];
        Self { layers, lens: lens.to_vec(), device: device.clone(), is_written: false }
    }

    /// The step that reads all of them, one after the other.
    pub(crate) fn step(&mut self) -> PagedStep<'_> {
        let Self { layers, lens, device, is_written } = self;
        let (mut sequences, mut row_slots, mut first) = (Vec::new(), Vec::new(), 0);
        for len in lens.iter() {
            let slots: Vec<i32> = (first..first + len).map(|slot| slot as i32).collect();
            let rows = row_slots.len()..row_slots.len() + len;
            row_slots.extend_from_slice(&slots);
            sequences.push(PagedRows { rows, start: 0, first_key: 0, slots: Slots::new(slots, device) });
            first += len.next_multiple_of(PAGE_SIZE);
        }
        PagedStep {
            layers,
            sequences: PagedSequences::new(sequences, device),
            slots: Slots::new(row_slots, device),
            recurrent: Vec::new(),
            adapters: Arc::default(),
            second_texts: vec![None; lens.len()],
            sources: None,
            is_written,
        }
    }
}
