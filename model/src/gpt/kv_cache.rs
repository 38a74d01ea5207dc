//! The KV cache: keys and values of past tokens, in pages shared by all sequences, and states of recurrent layers.
//!
//! Each layer has one pool of keys and one of values, `[n_slots, kv_width]`, allocated once, unless it shares another
//! layer's; a slot holds one token and a page is [`PAGE_SIZE`] slots. A sequence owns a [`PageTable`]: its pages in
//! order. Pages are reference counted: a fork shares all of them, a shared page is copied before one of its owners
//! writes to it, and a dropped table frees pages without other owners. The design is
//! [PagedAttention](https://arxiv.org/abs/2309.06180)'s.
//!
//! A full page can be kept in the prefix cache under a [`PageKey`] that identifies its contents. Without owners it
//! counts as free, but is allocated last, the least recently used first; until then a new sequence with the same
//! beginning shares it instead of computing it again.
//!
//! A recurrent layer has a pool of states instead, `[n_states, slot_len]`. A table has one state for all such layers:
//! the number of a slot. Before a step changes a state that something else still needs, it copies it to a free slot.
//!
//! With an encoder, a sequence begins with slots for the tokens of its source, in whole pages: they hold the keys and
//! values that the decoder's layers compute from the encoder's output. So forks share them, and the prefix cache keeps
//! them.
//!
//! [`PagePool`] manages page ownership without tensors, so that schedulers can plan without them.

mod free_pages;
mod pages;
mod sources;

use std::sync::Arc;

use burn::tensor::{Device, Tensor};

pub use crate::ops::PAGE_SIZE;
use crate::{
    config::{GptConfig, HeadSizes},
    gpt::lora::{AdapterRows, LoadedAdapter},
    ops::{self, Address, AttentionOptions, KvDtype, PagedRows, PagedSequences, RecurrentRows, Rotation, Slots},
};

pub use pages::{CacheUnit, OutOfPages, PageKey, PagePool, PageTable, PrefixChange};
use pages::{CopiedPage, StateMove};
pub(crate) use sources::SourcePages;
use sources::StepSources;
pub use sources::max_places;

/// The pools of all layers, and the ownership of pages.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerPool>,
    pages: PagePool,
    sliding_window: Option<usize>,
    device: Device,
    /// Whether operations have written to the pools since a step last checked their addresses: they may have moved.
    is_written: bool,
}

/// A layer's memory in the cache.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each layer")]
enum LayerPool {
    Attention {
        keys: Tensor<2>,
        values: Tensor<2>,
        /// `[n_kv_heads, head_dim]`.
        heads: [usize; 2],
    },
    /// `[n_states, slot_len]`.
    Recurrent(Tensor<2>),
    /// The layer attends to another layer's keys and values, or has no mixer of rows.
    Nothing,
}

/// Default number of states in a cache of `n_pages` pages: enough for a few dozen sequences. A state uses memory only
/// once a sequence has had it.
pub(crate) fn default_states(n_pages: usize) -> usize {
    n_pages.clamp(8, 64)
}

/// A sequence's part of a step: `n_new` tokens to append to those in `table`.
#[derive(Debug)]
pub struct StepPart<'a> {
    /// The sequence's pages.
    pub table: &'a mut PageTable,
    /// The number of the sequence's rows in the step.
    pub n_new: usize,
    /// The sequence's adapter, which must be for the model that runs. `None`: its rows are computed without an adapter.
    pub adapter: Option<Arc<LoadedAdapter>>,
    /// The position at which the second text of a pair begins, for models with token types.
    pub second_text: Option<usize>,
    /// How many of the last new tokens no token sees, in an encoder without a sliding window.
    pub n_hidden: usize,
    /// Number of tokens of the source that an encoder reads; 0 without an encoder. They come before the text in
    /// `table`, in whole pages. The sequence's first step must begin with all of them, followed by padding rows up to
    /// the end of the page.
    pub source_len: usize,
}

impl StepPart<'_> {
    /// Places of the source.
    pub(crate) fn n_source_places(&self) -> usize {
        self.source_len.next_multiple_of(PAGE_SIZE)
    }

    /// Rows of the source in this step, including the padding up to the end of the page.
    pub(crate) fn n_source_rows(&self) -> usize {
        if self.table.is_empty() { self.n_source_places() } else { 0 }
    }
}

impl<'a> StepPart<'a> {
    /// A part without an adapter.
    pub fn new(table: &'a mut PageTable, n_new: usize) -> Self {
        Self { table, n_new, adapter: None, second_text: None, n_hidden: 0, source_len: 0 }
    }
}

/// One step over the cache: the position of each row, the slot of its key and value, and the rows that it may see.
#[derive(Debug)]
pub struct PagedStep<'a> {
    layers: &'a mut [LayerPool],
    pub(crate) sequences: PagedSequences,
    slots: Slots,
    /// For each sequence with rows: the number of rows, the number of earlier tokens, and the slot of its state.
    recurrent: Vec<(usize, usize, usize)>,
    pub(crate) adapters: Arc<Vec<AdapterRows>>,
    /// For each sequence where the second text of a pair begins.
    second_texts: Vec<Option<usize>>,
    /// The sources of the sequences, if there is an encoder.
    sources: Option<StepSources>,
    is_written: &'a mut bool,
}

impl KvCache {
    /// A cache of `n_pages` pages of `dtype` for the model of `config`, with states for a few dozen sequences if it has recurrent
    /// layers.
    pub fn new(config: &GptConfig, n_pages: usize, dtype: KvDtype, device: &Device) -> Self {
        Self::of_layers(config, [n_pages, default_states(n_pages)], &vec![dtype; config.n_layers], device)
    }

    /// A cache of `n_pages` pages for the model of `config`, with a dtype for each layer in `dtypes`, and `n_states`
    /// states if some layers are recurrent.
    pub(crate) fn of_layers(
        config: &GptConfig,
        [n_pages, n_states]: [usize; 2],
        dtypes: &[KvDtype],
        device: &Device,
    ) -> Self {
        let attention = |layer: usize, dtype: KvDtype| {
            let HeadSizes { n_kv_heads, head_dim } = config.heads_of(layer);
            let heads = [n_kv_heads, config.padded_head_dim(head_dim)];
            let pool = || ops::new_pool(n_pages * PAGE_SIZE, heads, dtype, device);
            LayerPool::Attention { keys: pool(), values: pool(), heads }
        };
        let layer = |(layer, dtype): (usize, &KvDtype)| match config.recurrence_of(layer) {
            Some(recurrence) => {
                LayerPool::Recurrent(ops::new_states(n_states, recurrence.state_len(config.d_model), device))
            }
            None if config.attends(layer) && config.kv_layer_of(layer) == layer => attention(layer, *dtype),
            None => LayerPool::Nothing,
        };
        let layers = dtypes.iter().enumerate().map(layer).collect();
        // If some layers have no window, all keys are needed.
        let sliding_window = config.sliding_window.filter(|_| config.full_layers.is_empty());
        let pages = match config.n_recurrent_layers() > 0 {
            true => PagePool::with_states(n_pages, n_states),
            false => PagePool::new(n_pages),
        };
        let device = device.clone();
        Self { layers, pages, sliding_window, device, is_written: false }
    }

    /// An empty table.
    pub fn table(&self) -> PageTable {
        self.pages.table()
    }

    /// The ownership of pages.
    pub fn pool(&self) -> &PagePool {
        &self.pages
    }

    /// Number of free pages.
    pub fn n_free_pages(&self) -> usize {
        self.pages.n_free()
    }

    /// Number of pages.
    pub fn n_pages(&self) -> usize {
        self.pages.n_pages()
    }

    /// Allocates pages for the new tokens of all parts, and assigns slots. If there are too few pages for all parts, no
    /// table changes.
    ///
    /// The step's rows are the parts' rows, one part after the other.
    ///
    /// # Errors
    /// [`OutOfPages`], with the number needed and the number free.
    ///
    /// # Panics
    /// If a table belongs to another cache: its pages are not in these pools.
    pub fn step(&mut self, parts: &mut [StepPart<'_>]) -> Result<PagedStep<'_>, OutOfPages> {
        assert!(parts.iter().all(|part| part.table.pool.is(&self.pages)), "a page table of another cache");
        self.pages.require_room(&parts.iter().map(|part| (&*part.table, part.n_new)).collect::<Vec<_>>())?;
        let mut row_slots = Vec::new();
        let mut sequences = Vec::with_capacity(parts.len());
        let mut recurrent = Vec::new();
        let mut adapters = Vec::new();
        let second_texts = parts.iter().map(|part| part.second_text).collect();
        let has_hidden = parts.iter().any(|part| part.n_hidden > 0);
        let mut sources = parts.iter().any(|part| part.source_len > 0).then(|| StepSources::new(&self.device));
        for part in parts {
            let (n_before, n_source_rows) = (part.n_source_places(), part.n_source_rows());
            if let Some(copied) = part.table.grow(part.n_new) {
                self.copy_page(copied);
            }
            // Rows of the text, which follow the source.
            let n_new = part.n_new - n_source_rows;
            let start = part.table.len() - n_new - n_before;
            if part.n_new > 0
                && let Some(moved) = part.table.move_state()
            {
                self.move_state(moved);
                recurrent.push((part.n_new, start, moved.to));
            }
            let rows = row_slots.len()..row_slots.len() + n_new;
            // The first row sees furthest back.
            let first_key = self.sliding_window.map_or(0, |window| (start + 1).saturating_sub(window));
            let mut key_slots: Vec<i32> =
                (n_before + first_key..part.table.len()).map(|at| part.table.slot(at)).collect();
            row_slots.extend_from_slice(&key_slots[start - first_key..]);
            key_slots.truncate(key_slots.len().saturating_sub(part.n_hidden));
            if let Some(adapter) = &part.adapter {
                AdapterRows::add(&mut adapters, adapter, rows.clone());
            }
            if let Some(sources) = &mut sources {
                sources.add(rows.clone(), part.table, part.source_len, n_source_rows > 0);
            }
            sequences.push(PagedRows { rows, start, first_key, slots: Slots::new(key_slots, &self.device) });
        }
        let sequences = match has_hidden {
            true => PagedSequences::with_other_keys(sequences, &self.device),
            false => PagedSequences::new(sequences, &self.device),
        };
        let slots = Slots::new(row_slots, &self.device);
        let (layers, adapters, is_written) = (&mut self.layers, Arc::new(adapters), &mut self.is_written);
        let sources = sources.map(StepSources::finished);
        Ok(PagedStep { layers, sequences, slots, recurrent, adapters, second_texts, sources, is_written })
    }

    /// Clones the pools' tensors, so that they are not changed in place.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> Vec<Tensor<2>> {
        tensors(&self.layers).cloned().collect()
    }

    /// Copies the contents of page `copied.from` to `copied.to`, in every layer.
    fn copy_page(&mut self, copied: CopiedPage) {
        let slots = |page: usize| Slots::new(page_slots(page).collect(), &self.device);
        let (from, to) = (slots(copied.from), slots(copied.to));
        self.is_written = true;
        for layer in &mut self.layers {
            if let LayerPool::Attention { keys, values, heads } = layer {
                ops::copy_pages(keys, [&from, &to], *heads);
                ops::copy_pages(values, [&from, &to], *heads);
            }
        }
    }

    /// Copies a sequence's state to its new slot, in every recurrent layer.
    fn move_state(&mut self, StateMove { from, to }: StateMove) {
        let Some(from) = from.filter(|&from| from != to) else { return };
        for layer in &mut self.layers {
            if let LayerPool::Recurrent(states) = layer {
                ops::copy_state(states, from, to);
            }
        }
    }
}

impl PagedStep<'_> {
    /// For each sequence where the second text of a pair begins.
    pub(crate) fn second_texts(&self) -> &[Option<usize>] {
        &self.second_texts
    }

    /// Rotates the step's queries and keys in `qkv`, stores its keys and values of `layer`, and attends, optionally
    /// with sinks.
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        qkv: Tensor<2>,
        rotation_and_sinks: (Option<&Rotation>, Option<Tensor<1>>),
        options: &AttentionOptions,
    ) -> Tensor<2> {
        *self.is_written = true;
        let pools = pool_of(self.layers, layer).keys_and_values();
        ops::append_and_attend(qkv, rotation_and_sinks, pools, &self.slots, &self.sequences, options)
    }

    /// Rotates the step's `queries [n_rows, n_heads * head_dim]`, and attends to the keys and values of `layer`, which
    /// has already stored the step's own.
    pub(crate) fn attend_to(
        &mut self,
        layer: usize,
        queries: Tensor<2>,
        (rotation, sinks): (Option<&Rotation>, Option<Tensor<1>>),
        options: &AttentionOptions,
    ) -> Tensor<2> {
        let AttentionOptions { n_heads, head_dim, .. } = *options;
        let dims @ [n_rows, _] = queries.dims();
        let queries = match rotation {
            Some(rotation) => ops::rope(queries.reshape([n_rows, n_heads, head_dim]), rotation).reshape(dims),
            None => queries,
        };
        let [keys, values] = self.layers[layer].keys_and_values();
        ops::attention_paged(queries, [&*keys, &*values], &self.sequences, (options, sinks))
    }

    /// [`KvCache::hold`].
    #[cfg(test)]
    pub(crate) fn hold(&self) -> Vec<Tensor<2>> {
        tensors(self.layers).cloned().collect()
    }

    /// The addresses of the pools in a GPU's memory.
    pub(crate) fn addresses(&mut self) -> Vec<Option<Address>> {
        *self.is_written = false;
        tensors(self.layers).map(Address::of).collect()
    }

    /// Whether the pools are no longer at `addresses`. Operations change them in place, unless another owner holds a
    /// pool's tensor.
    pub(crate) fn has_moved(&mut self, addresses: &[Option<Address>]) -> bool {
        *self.is_written && self.addresses() != addresses
    }

    /// The slot of each row of the step.
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The pools of `layer`, the slots of the step's rows, the rows of each sequence, and the rows with their sources'
    /// keys.
    pub(crate) fn parts(&mut self, layer: usize) -> LayerParts<'_> {
        *self.is_written = true;
        let sources = self.sources.as_ref().map(|sources| sources.seen().as_slice());
        (pool_of(self.layers, layer).keys_and_values(), &self.slots, self.sequences.as_slice(), sources)
    }

    /// The rows of the step as recurrent layers see them.
    pub(crate) fn recurrent_rows(&self) -> RecurrentRows {
        RecurrentRows::stepped(self.recurrent.iter().copied())
    }

    /// The states of `layer`, which must be recurrent.
    pub(crate) fn states(&mut self, layer: usize) -> &mut Tensor<2> {
        match &mut self.layers[layer] {
            LayerPool::Recurrent(states) => states,
            LayerPool::Attention { .. } | LayerPool::Nothing => unreachable!("layer {layer} is not recurrent"),
        }
    }
}

/// Inputs of a block in a step.
type LayerParts<'a> = ([&'a mut Tensor<2>; 2], &'a Slots, &'a [PagedRows], Option<&'a [PagedRows]>);

/// The pool of `layer`. The layers of an encoder share one.
fn pool_of(layers: &mut [LayerPool], layer: usize) -> &mut LayerPool {
    let layer = if layers.len() == 1 { 0 } else { layer };
    &mut layers[layer]
}

impl LayerPool {
    fn keys_and_values(&mut self) -> [&mut Tensor<2>; 2] {
        match self {
            Self::Attention { keys, values, .. } => [keys, values],
            Self::Recurrent(_) | Self::Nothing => unreachable!("a layer without keys and values of its own"),
        }
    }
}

/// The pools of all layers.
fn tensors(layers: &[LayerPool]) -> impl Iterator<Item = &Tensor<2>> {
    layers.iter().flat_map(|layer| match layer {
        LayerPool::Attention { keys, values, .. } => vec![keys, values],
        LayerPool::Recurrent(states) => vec![states],
        LayerPool::Nothing => Vec::new(),
    })
}

fn page_slots(page: usize) -> impl Iterator<Item = i32> {
    (page * PAGE_SIZE..(page + 1) * PAGE_SIZE).map(|slot| slot as i32)
}
