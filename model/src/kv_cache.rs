//! The KV cache: keys and values of past tokens, in pages shared by all sequences.
//!
//! Each layer has one pool of keys and one of values, `[n_slots, kv_width]`, allocated once; a slot holds one token and
//! a page is [`PAGE_SIZE`] slots. A sequence owns a [`PageTable`]: its pages in order. Pages are reference counted: a
//! fork shares all of them, a shared page is copied before one of its owners writes to it, and a dropped table frees
//! pages without other owners. The design is [PagedAttention](https://arxiv.org/abs/2309.06180)'s.
//!
//! A full page can be kept in the prefix cache under a [`PageKey`] that identifies its contents. Without owners it
//! counts as free, but is allocated last, the least recently used first; until then a new sequence with the same
//! beginning shares it instead of computing it again.
//!
//! [`PagePool`] manages page ownership without tensors, so that schedulers can plan without them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use burn::tensor::{Device, Tensor};

#[cfg(feature = "gpu")]
use crate::ops::Address;
pub use crate::ops::PAGE_SIZE;
use crate::{
    config::GptConfig,
    lora::{AdapterRows, LoadedAdapter},
    ops::{self, AttentionOptions, KvDtype, PagedRows, PagedSequences, Rotation, Slots},
    position::PositionRange,
};

/// There are not enough free pages; none was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the KV cache has {free} free pages of {PAGE_SIZE} tokens, but {needed} are needed")]
pub struct OutOfPages {
    /// Pages that the call needed.
    pub needed: usize,
    /// Pages that were free.
    pub free: usize,
}

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

#[derive(Debug)]
struct LayerPool {
    keys: Tensor<2>,
    values: Tensor<2>,
}

/// Identifies the contents of a full page: its tokens and all tokens before them. Equal keys must mean equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey(pub [u8; 32]);

/// The ownership of pages, without tensors. Clones share the pool.
#[derive(Clone, Debug)]
pub struct PagePool(Arc<Mutex<Pages>>);

/// Free list, reference counts, and pages kept in the prefix cache.
#[derive(Debug)]
struct Pages {
    /// Pages without owners that are not in the prefix cache.
    free: Vec<usize>,
    owners: Vec<u32>,
    /// The prefix-cache key of each page, if it has one.
    keys: Vec<Option<PageKey>>,
    kept: HashMap<PageKey, usize>,
    /// Pages in the prefix cache without owners, by the time of their release.
    unused: BTreeMap<u64, usize>,
    /// When each page last became unused, by `clock`: its key in `unused`.
    given_back: Vec<u64>,
    /// The number of times that a page became unused so far.
    clock: u64,
}

/// The pages of one sequence. Dropping it releases them.
#[derive(Debug)]
pub struct PageTable {
    pages: Vec<usize>,
    len: usize,
    n_prompt: usize,
    pool: PagePool,
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
}

impl<'a> StepPart<'a> {
    /// A part without an adapter.
    pub fn new(table: &'a mut PageTable, n_new: usize) -> Self {
        Self { table, n_new, adapter: None }
    }
}

/// One step over the cache: the position of each row, the slot of its key and value, and the rows that it may see.
#[derive(Debug)]
pub struct PagedStep<'a> {
    layers: &'a mut [LayerPool],
    pub(crate) sequences: PagedSequences,
    pub(crate) spans: Vec<PositionRange>,
    slots: Slots,
    pub(crate) adapters: Arc<Vec<AdapterRows>>,
    is_written: &'a mut bool,
}

impl KvCache {
    /// A cache of `n_pages` pages of `dtype` for the model of `config`.
    pub fn new(config: &GptConfig, n_pages: usize, dtype: KvDtype, device: &Device) -> Self {
        let heads = [config.n_kv_heads, config.head_dim];
        let pool = || ops::new_pool(n_pages * PAGE_SIZE, heads, dtype, device);
        let layers = (0..config.n_layers).map(|_| LayerPool { keys: pool(), values: pool() }).collect();
        // If some layers have no window, all keys are needed.
        let sliding_window = config.sliding_window.filter(|_| config.full_layers.is_empty());
        Self { layers, pages: PagePool::new(n_pages), sliding_window, device: device.clone(), is_written: false }
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
    /// [`OutOfPages`], with the numbers.
    ///
    /// # Panics
    /// If a table belongs to another cache: its pages are not in these pools.
    pub fn step(&mut self, parts: &mut [StepPart<'_>]) -> Result<PagedStep<'_>, OutOfPages> {
        assert!(parts.iter().all(|part| part.table.pool.is(&self.pages)), "a page table of another cache");
        let needed = self.pages.pages_needed(parts.iter().map(|part| (&*part.table, part.n_new)));
        let free = self.n_free_pages();
        if needed > free {
            return Err(OutOfPages { needed, free });
        }
        let mut row_slots = Vec::new();
        let mut sequences = Vec::with_capacity(parts.len());
        let mut spans = Vec::with_capacity(parts.len());
        let mut adapters = Vec::new();
        for part in parts {
            if let Some(copied) = part.table.grow(part.n_new) {
                self.copy_page(copied);
            }
            let start = part.table.len - part.n_new;
            let rows = row_slots.len()..row_slots.len() + part.n_new;
            // The first row sees furthest back.
            let first_key = self.sliding_window.map_or(0, |window| (start + 1).saturating_sub(window));
            let key_slots: Vec<i32> = (first_key..part.table.len).map(|at| part.table.slot(at)).collect();
            row_slots.extend_from_slice(&key_slots[start - first_key..]);
            if let Some(adapter) = &part.adapter {
                AdapterRows::add(&mut adapters, adapter, rows.clone());
            }
            spans.extend(PositionRange::of_rows(start..part.table.len, part.table.n_prompt));
            sequences.push(PagedRows { rows, start, first_key, slots: Slots::new(key_slots, &self.device) });
        }
        let sequences = PagedSequences::new(sequences, &self.device);
        let slots = Slots::new(row_slots, &self.device);
        let (layers, adapters, is_written) = (&mut self.layers, Arc::new(adapters), &mut self.is_written);
        Ok(PagedStep { layers, sequences, spans, slots, adapters, is_written })
    }

    /// Clones the pools' tensors, so that they are not changed in place.
    #[cfg(all(test, feature = "gpu"))]
    pub(crate) fn hold(&self) -> Vec<Tensor<2>> {
        tensors(&self.layers).cloned().collect()
    }

    /// Copies the contents of page `copied.from` to `copied.to`, in every layer.
    fn copy_page(&mut self, copied: CopiedPage) {
        let slots = |page: usize| Slots::new(page_slots(page).collect(), &self.device);
        let (from, to) = (slots(copied.from), slots(copied.to));
        self.is_written = true;
        for layer in &mut self.layers {
            ops::copy_pages(&mut layer.keys, &from, &to);
            ops::copy_pages(&mut layer.values, &from, &to);
        }
    }
}

impl PagedStep<'_> {
    /// Rotates the step's queries and keys in `qkv`, stores its keys and values of `layer`, and attends.
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        qkv: Tensor<2>,
        rotation: Option<&Rotation>,
        options: &AttentionOptions,
    ) -> Tensor<2> {
        *self.is_written = true;
        let LayerPool { keys, values } = &mut self.layers[layer];
        ops::append_and_attend(qkv, rotation, [keys, values], &self.slots, &self.sequences, options)
    }

    /// [`KvCache::hold`].
    #[cfg(all(test, feature = "gpu"))]
    pub(crate) fn hold(&self) -> Vec<Tensor<2>> {
        tensors(self.layers).cloned().collect()
    }

    /// The addresses of the pools in a GPU's memory.
    #[cfg(feature = "gpu")]
    pub(crate) fn addresses(&mut self) -> Vec<Option<Address>> {
        *self.is_written = false;
        tensors(self.layers).map(Address::of).collect()
    }

    /// Whether the pools are no longer at `addresses`. Operations change them in place, unless another owner holds a
    /// pool's tensor.
    #[cfg(feature = "gpu")]
    pub(crate) fn has_moved(&mut self, addresses: &[Option<Address>]) -> bool {
        *self.is_written && self.addresses() != addresses
    }

    /// The slot of each row of the step.
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The pools of `layer`, the slots of the step's rows, and the rows of each sequence.
    pub(crate) fn parts(&mut self, layer: usize) -> ([&mut Tensor<2>; 2], &Slots, &[PagedRows]) {
        *self.is_written = true;
        let LayerPool { keys, values } = &mut self.layers[layer];
        ([keys, values], &self.slots, self.sequences.as_slice())
    }
}

/// The pools of all layers.
#[cfg(feature = "gpu")]
fn tensors(layers: &[LayerPool]) -> impl Iterator<Item = &Tensor<2>> {
    layers.iter().flat_map(|LayerPool { keys, values }| [keys, values])
}

/// A shared page that one of its owners must write to, and its copy.
#[derive(Clone, Copy, Debug)]
struct CopiedPage {
    from: usize,
    to: usize,
}

impl PagePool {
    /// A pool of `n_pages` pages, all free.
    pub fn new(n_pages: usize) -> Self {
        let pages = Pages {
            // A stack: the lowest page is allocated first.
            free: (0..n_pages).rev().collect(),
            owners: vec![0; n_pages],
            keys: vec![None; n_pages],
            kept: HashMap::new(),
            unused: BTreeMap::new(),
            given_back: vec![0; n_pages],
            clock: 0,
        };
        Self(Arc::new(Mutex::new(pages)))
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// An empty table.
    pub fn table(&self) -> PageTable {
        PageTable { pages: Vec::new(), len: 0, n_prompt: 0, pool: self.clone() }
    }

    /// Number of free pages.
    pub fn n_free(&self) -> usize {
        let pages = self.lock();
        pages.free.len() + pages.unused.len()
    }

    /// Number of pages.
    pub fn n_pages(&self) -> usize {
        self.lock().owners.len()
    }

    /// Pages that would be allocated by appending these numbers of tokens to the tables, including copies of shared
    /// last pages.
    pub fn pages_needed<'a>(&self, growth: impl IntoIterator<Item = (&'a PageTable, usize)>) -> usize {
        let pages = self.lock();
        let mut needed = 0;
        let mut writers: HashMap<usize, usize> = HashMap::new();
        for (table, n_new) in growth {
            needed += (table.len + n_new).div_ceil(PAGE_SIZE) - table.pages.len();
            if n_new > 0
                && let Some(page) = table.shared_last_page(&pages)
            {
                *writers.entry(page).or_default() += 1;
            }
        }
        // If all owners write to a page, the last one needs no copy.
        let copies = writers.into_iter().map(|(page, n_writers)| n_writers.min(pages.owners[page] as usize - 1));
        needed + copies.sum::<usize>()
    }

    /// The counts are consistent at any point that could panic, so a poisoned lock can still be used.
    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageTable {
    /// Declares that the first `n_prompt` tokens of the text are its prompt, in however many steps they are computed;
    /// the others are generated one by one. Only used for
    /// [`RopeScaling::Dynamic`](crate::config::RopeScaling::Dynamic). Default: 0.
    #[must_use]
    pub fn of_prompt(mut self, n_prompt: usize) -> Self {
        self.n_prompt = n_prompt;
        self
    }

    /// Number of tokens in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A sequence with the same tokens, which shares every page.
    pub fn fork(&self) -> Self {
        let mut pool = self.pool.lock();
        for &page in &self.pages {
            pool.hold(page);
        }
        Self { pages: self.pages.clone(), len: self.len, n_prompt: self.n_prompt, pool: self.pool.clone() }
    }

    /// Shares the pages in the prefix cache for `keys`, the keys of a sequence's first pages in order, up to the first
    /// that is missing. The table must be empty. Returns the number of tokens that need not be computed.
    pub fn share_kept(&mut self, keys: &[PageKey]) -> usize {
        if !self.pages.is_empty() {
            return 0;
        }
        let mut pool = self.pool.lock();
        for key in keys {
            let Some(&page) = pool.kept.get(key) else { break };
            pool.hold(page);
            self.pages.push(page);
        }
        self.len = self.pages.len() * PAGE_SIZE;
        self.len
    }

    /// Adds the `index`-th page, which must be full, to the prefix cache. Does nothing if the key is already there.
    pub fn keep(&self, index: usize, key: PageKey) {
        let is_full = (index + 1) * PAGE_SIZE <= self.len;
        let Some(&page) = self.pages.get(index).filter(|_| is_full) else { return };
        let mut pool = self.pool.lock();
        if pool.keys[page].is_none() && !pool.kept.contains_key(&key) {
            pool.keys[page] = Some(key);
            pool.kept.insert(key, page);
        }
    }

    /// Pages that would be allocated by appending `n_new` tokens, including a copy of a shared last page.
    pub fn pages_needed(&self, n_new: usize) -> usize {
        self.pool.pages_needed([(self, n_new)])
    }

    /// Allocates the pages for `n_new` more tokens, as [`KvCache::step`] does, but without tensors: for simulating a
    /// scheduler.
    ///
    /// # Errors
    /// [`OutOfPages`]; nothing was allocated.
    pub fn append(&mut self, n_new: usize) -> Result<(), OutOfPages> {
        let (needed, free) = (self.pages_needed(n_new), self.pool.n_free());
        if needed > free {
            return Err(OutOfPages { needed, free });
        }
        self.grow(n_new);
        Ok(())
    }

    /// Removes the tokens from position `len` on, and releases pages without other contents.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        let mut pool = self.pool.lock();
        for page in self.pages.drain(len.div_ceil(PAGE_SIZE)..).rev() {
            pool.release(page);
        }
        self.len = len;
    }

    /// The last page, if it has room and is shared.
    fn shared_last_page(&self, pool: &Pages) -> Option<usize> {
        let partly_filled = !self.len.is_multiple_of(PAGE_SIZE);
        self.pages.last().copied().filter(|&page| partly_filled && pool.owners[page] > 1)
    }

    /// Allocates the pages for `n_new` more tokens; the caller has checked that there are enough. Returns the page to
    /// copy, if a shared one was replaced.
    fn grow(&mut self, n_new: usize) -> Option<CopiedPage> {
        let mut pool = self.pool.lock();
        let mut copied = None;
        if n_new > 0
            && let Some(from) = self.shared_last_page(&pool)
        {
            let to = pool.take();
            pool.release(from);
            self.pages.pop();
            self.pages.push(to);
            copied = Some(CopiedPage { from, to });
        }
        if n_new > 0
            && !self.len.is_multiple_of(PAGE_SIZE)
            && let Some(&page) = self.pages.last()
        {
            // The page is in the prefix cache and is about to change: unregister it.
            pool.forget(page);
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
        let mut pool = self.pool.lock();
        // The last page first, so that the start of a text stays in the prefix cache longest: later pages are useless
        // without it.
        for &page in self.pages.iter().rev() {
            pool.release(page);
        }
    }
}

impl Pages {
    fn take(&mut self) -> usize {
        let page = self.free.pop().or_else(|| self.evict());
        // The free pages were counted before anything was allocated.
        let page = page.unwrap_or_else(|| unreachable!("enough pages are free before any is taken"));
        self.owners[page] = 1;
        page
    }

    /// Removes the least recently used page from the prefix cache.
    fn evict(&mut self) -> Option<usize> {
        let (_, page) = self.unused.pop_first()?;
        self.forget(page);
        Some(page)
    }

    /// Removes the page's key from the prefix cache.
    fn forget(&mut self, page: usize) {
        if let Some(key) = self.keys[page].take() {
            self.kept.remove(&key);
        }
    }

    fn hold(&mut self, page: usize) {
        if self.owners[page] == 0 {
            self.unused.remove(&self.given_back[page]);
        }
        self.owners[page] += 1;
    }

    fn release(&mut self, page: usize) {
        self.owners[page] -= 1;
        if self.owners[page] > 0 {
            return;
        }
        if self.keys[page].is_none() {
            self.free.push(page);
            return;
        }
        self.clock += 1;
        self.given_back[page] = self.clock;
        self.unused.insert(self.clock, page);
    }
}

fn page_slots(page: usize) -> impl Iterator<Item = i32> {
    (page * PAGE_SIZE..(page + 1) * PAGE_SIZE).map(|slot| slot as i32)
}
