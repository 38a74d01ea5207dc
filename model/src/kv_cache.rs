//! The KV cache: keys and values of past tokens, in pages shared by all sequences.
//!
//! Each layer has one pool of keys and one of values, `[n_slots, kv_width]`, allocated once; a slot holds one token and
//! a page is [`PAGE_SIZE`] slots. A sequence owns a [`PageTable`]: the pages that its positions lie in, in order. Pages
//! are reference counted: a fork shares all of them, a shared page is copied before one of its owners writes into it,
//! and a dropped table gives back what nobody else holds. The idea is
//! [PagedAttention](https://arxiv.org/abs/2309.06180)'s.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::{
    config::GptConfig,
    ops::{self, PagedRows, Slots},
};

/// Tokens in a page.
pub const PAGE_SIZE: usize = 16;

/// There are not enough free pages for what was asked; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the KV cache has {free} free pages of {PAGE_SIZE} tokens, {needed} are needed")]
pub struct OutOfPages {
    /// Pages that the call would have taken.
    pub needed: usize,
    /// Pages that were free.
    pub free: usize,
}

/// The pools of all layers, and who holds which page.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerPool>,
    pages: Arc<Mutex<Pages>>,
    sliding_window: Option<usize>,
    device: Device,
}

#[derive(Debug)]
struct LayerPool {
    keys: Tensor<2>,
    values: Tensor<2>,
}

/// Free list and reference counts; no tensors.
#[derive(Debug)]
struct Pages {
    free: Vec<usize>,
    owners: Vec<u32>,
}

/// The pages of one sequence. Dropping it frees them.
#[derive(Debug)]
pub struct PageTable {
    pages: Vec<usize>,
    len: usize,
    pool: Arc<Mutex<Pages>>,
}

/// A sequence's part in a step: `n_new` tokens to append behind those that `table` holds.
#[derive(Debug)]
pub struct StepPart<'a> {
    /// The sequence's pages.
    pub table: &'a mut PageTable,
    /// How many rows of the step are this sequence's.
    pub n_new: usize,
}

/// One step over the cache: where each row stands, where its key and value go, and which it may see.
#[derive(Debug)]
pub struct PagedStep<'a> {
    layers: &'a mut [LayerPool],
    pub(crate) positions: Vec<usize>,
    pub(crate) sequences: Vec<PagedRows>,
    slots: Tensor<1, Int>,
}

impl KvCache {
    /// A cache of `n_pages` pages for the model that `config` describes, in f32.
    pub fn new(config: &GptConfig, n_pages: usize, device: &Device) -> Self {
        let pool = || Tensor::zeros([n_pages * PAGE_SIZE, config.kv_width()], device);
        let layers = (0..config.n_layers).map(|_| LayerPool { keys: pool(), values: pool() }).collect();
        // The free list is a stack: the lowest page comes first.
        let pages = Pages { free: (0..n_pages).rev().collect(), owners: vec![0; n_pages] };
        Self {
            layers,
            pages: Arc::new(Mutex::new(pages)),
            sliding_window: config.sliding_window,
            device: device.clone(),
        }
    }

    /// A table that holds nothing yet.
    pub fn table(&self) -> PageTable {
        PageTable { pages: Vec::new(), len: 0, pool: Arc::clone(&self.pages) }
    }

    /// Pages that nobody holds.
    pub fn n_free_pages(&self) -> usize {
        lock(&self.pages).free.len()
    }

    /// All pages.
    pub fn n_pages(&self) -> usize {
        lock(&self.pages).owners.len()
    }

    /// Makes room for the new tokens of every part and says where they go. All or nothing: when the pages do not
    /// suffice for all parts, no table changes.
    ///
    /// The step's rows are the parts' rows, one part after the other.
    ///
    /// # Errors
    /// [`OutOfPages`], with the numbers.
    pub fn step(&mut self, parts: &mut [StepPart<'_>]) -> Result<PagedStep<'_>, OutOfPages> {
        let needed = parts.iter().map(|part| part.table.pages_needed(part.n_new)).sum();
        let free = self.n_free_pages();
        if needed > free {
            return Err(OutOfPages { needed, free });
        }
        let (mut positions, mut row_slots) = (Vec::new(), Vec::new());
        let mut sequences = Vec::with_capacity(parts.len());
        for part in parts {
            if let Some(copied) = part.table.grow(part.n_new) {
                self.copy_page(copied);
            }
            let start = part.table.len - part.n_new;
            let rows = positions.len()..positions.len() + part.n_new;
            // The first row sees furthest back.
            let first_key = self.sliding_window.map_or(0, |window| (start + 1).saturating_sub(window));
            let key_slots: Vec<i32> = (first_key..part.table.len).map(|at| part.table.slot(at)).collect();
            row_slots.extend_from_slice(&key_slots[start - first_key..]);
            positions.extend(start..part.table.len);
            sequences.push(PagedRows { rows, start, first_key, slots: Slots::new(key_slots, &self.device) });
        }
        Ok(PagedStep { layers: &mut self.layers, positions, sequences, slots: ints(row_slots, &self.device) })
    }

    /// Gives `copied.to` the contents of `copied.from`, in every layer.
    fn copy_page(&mut self, copied: CopiedPage) {
        let slots = |page: usize| ints(page_slots(page).collect(), &self.device);
        for layer in &mut self.layers {
            for pool in [&mut layer.keys, &mut layer.values] {
                let rows = pool.clone().select(0, slots(copied.from));
                ops::kv_append(pool, rows, slots(copied.to));
            }
        }
    }
}

impl PagedStep<'_> {
    /// Stores the step's keys and values of `layer`, both `[n_rows, kv_width]`.
    pub(crate) fn append(&mut self, layer: usize, keys: Tensor<2>, values: Tensor<2>) {
        let pool = &mut self.layers[layer];
        ops::kv_append(&mut pool.keys, keys, self.slots.clone());
        ops::kv_append(&mut pool.values, values, self.slots.clone());
    }

    /// The keys and values of `layer`, `[n_slots, kv_width]` each.
    pub(crate) fn pools(&self, layer: usize) -> [&Tensor<2>; 2] {
        let pool = &self.layers[layer];
        [&pool.keys, &pool.values]
    }
}

/// A shared page that one of its owners needed for itself.
#[derive(Clone, Copy, Debug)]
struct CopiedPage {
    from: usize,
    to: usize,
}

impl PageTable {
    /// Tokens that the table holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Another sequence with the same past: shares every page.
    pub fn fork(&self) -> Self {
        let mut pool = lock(&self.pool);
        for &page in &self.pages {
            pool.owners[page] += 1;
        }
        Self { pages: self.pages.clone(), len: self.len, pool: Arc::clone(&self.pool) }
    }

    /// Pages that appending `n_new` tokens would take from the free ones, counting the copy of a shared last page.
    pub fn pages_needed(&self, n_new: usize) -> usize {
        let fresh = (self.len + n_new).div_ceil(PAGE_SIZE) - self.pages.len();
        fresh + usize::from(n_new > 0 && self.last_page_is_shared(&lock(&self.pool)))
    }

    /// Whether the next token goes into a page that others hold too.
    fn last_page_is_shared(&self, pool: &Pages) -> bool {
        let partly_filled = !self.len.is_multiple_of(PAGE_SIZE);
        partly_filled && self.pages.last().is_some_and(|&page| pool.owners[page] > 1)
    }

    /// Takes the pages for `n_new` more tokens; the caller has made sure that there are enough. Gives the page to copy,
    /// if a shared one had to be replaced.
    fn grow(&mut self, n_new: usize) -> Option<CopiedPage> {
        let mut pool = lock(&self.pool);
        let mut copied = None;
        if n_new > 0 && self.last_page_is_shared(&pool) {
            let to = pool.take();
            let from = self.pages.pop()?;
            pool.release(from);
            self.pages.push(to);
            copied = Some(CopiedPage { from, to });
        }
        self.len += n_new;
        while self.pages.len() * PAGE_SIZE < self.len {
            self.pages.push(pool.take());
        }
        copied
    }

    /// The slot of the token at `position`.
    fn slot(&self, position: usize) -> i32 {
        (self.pages[position / PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE) as i32
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        let mut pool = lock(&self.pool);
        for &page in &self.pages {
            pool.release(page);
        }
    }
}

impl Pages {
    fn take(&mut self) -> usize {
        // `step` has counted the free pages before anything is taken.
        let page = self.free.pop().unwrap_or_else(|| unreachable!("`step` checks that enough pages are free"));
        self.owners[page] = 1;
        page
    }

    fn release(&mut self, page: usize) {
        self.owners[page] -= 1;
        if self.owners[page] == 0 {
            self.free.push(page);
        }
    }
}

fn page_slots(page: usize) -> impl Iterator<Item = i32> {
    (page * PAGE_SIZE..(page + 1) * PAGE_SIZE).map(|slot| slot as i32)
}

fn ints(values: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}

/// The counts are consistent between any two statements that could panic, so a poisoned lock is no reason to stop.
fn lock(pages: &Mutex<Pages>) -> MutexGuard<'_, Pages> {
    pages.lock().unwrap_or_else(PoisonError::into_inner)
}
