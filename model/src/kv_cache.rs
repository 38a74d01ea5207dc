//! The KV cache: keys and values of past tokens, in pages shared by all sequences.
//!
//! Each layer has one pool of keys and one of values, `[n_slots, kv_width]`, allocated once; a slot holds one token and
//! a page is [`PAGE_SIZE`] slots. A sequence owns a [`PageTable`]: the pages that its positions lie in, in order. Pages
//! are reference counted: a fork shares all of them, a shared page is copied before one of its owners writes into it,
//! and a dropped table gives back what nobody else holds. The idea is
//! [PagedAttention](https://arxiv.org/abs/2309.06180)'s.
//!
//! A full page can be kept under a [`PageKey`] that names what is in it. While nobody holds it, it counts as free, but
//! it is the last to be handed out, the least recently used first; until then a new sequence with the same start takes
//! it as it is instead of computing it again.
//!
//! Who holds what is the [`PagePool`]'s business, which has no tensors: whoever plans what runs can do so without them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use burn::tensor::{Device, Tensor};

#[cfg(feature = "gpu")]
use crate::ops::Address;
use crate::{
    config::GptConfig,
    ops::{self, AttentionOptions, KvDtype, PagedRows, PagedSequences, Rotation, Slots},
    position::Span,
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
    pages: PagePool,
    sliding_window: Option<usize>,
    device: Device,
    /// Whether operations wrote to the pools since a step last looked where these lie: they may have moved.
    is_written: bool,
}

#[derive(Debug)]
struct LayerPool {
    keys: Tensor<2>,
    values: Tensor<2>,
}

/// Names the contents of a full page: its tokens and all tokens before them. Equal keys must mean equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey(pub [u8; 32]);

/// Who holds which page. Clones are the same pool; no tensors.
#[derive(Clone, Debug)]
pub struct PagePool(Arc<Mutex<Pages>>);

/// Free list, reference counts, and the pages that are kept for what is in them.
#[derive(Debug)]
struct Pages {
    /// Pages that nobody holds and whose contents nobody can ask for.
    free: Vec<usize>,
    owners: Vec<u32>,
    /// Under which key each page is kept, if it is.
    keys: Vec<Option<PageKey>>,
    kept: HashMap<PageKey, usize>,
    /// Kept pages that nobody holds, by the time at which they were last given back.
    unused: BTreeMap<u64, usize>,
    given_back: Vec<u64>,
    clock: u64,
}

/// The pages of one sequence. Dropping it frees them.
#[derive(Debug)]
pub struct PageTable {
    pages: Vec<usize>,
    len: usize,
    n_prompt: usize,
    pool: PagePool,
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
    pub(crate) sequences: PagedSequences,
    pub(crate) spans: Vec<Span>,
    slots: Slots,
    is_written: &'a mut bool,
}

impl KvCache {
    /// A cache of `n_pages` pages for the model that `config` describes, its numbers held as `dtype`.
    pub fn new(config: &GptConfig, n_pages: usize, dtype: KvDtype, device: &Device) -> Self {
        let pool = || ops::new_pool([n_pages * PAGE_SIZE, config.kv_width()], dtype, device);
        let layers = (0..config.n_layers).map(|_| LayerPool { keys: pool(), values: pool() }).collect();
        // Where some layers see everything, the step's keys are all of them.
        let sliding_window = config.sliding_window.filter(|_| config.full_layers.is_empty());
        Self { layers, pages: PagePool::new(n_pages), sliding_window, device: device.clone(), is_written: false }
    }

    /// A table that holds nothing yet.
    pub fn table(&self) -> PageTable {
        self.pages.table()
    }

    /// Who holds which page.
    pub fn pool(&self) -> &PagePool {
        &self.pages
    }

    /// Pages that nobody holds.
    pub fn n_free_pages(&self) -> usize {
        self.pages.n_free()
    }

    /// All pages.
    pub fn n_pages(&self) -> usize {
        self.pages.n_pages()
    }

    /// Makes room for the new tokens of every part and says where they go. All or nothing: when the pages do not
    /// suffice for all parts, no table changes.
    ///
    /// The step's rows are the parts' rows, one part after the other.
    ///
    /// # Errors
    /// [`OutOfPages`], with the numbers.
    ///
    /// # Panics
    /// When a table is another cache's: its pages are not in these pools.
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
            spans.extend(Span::of_rows(start..part.table.len, part.table.n_prompt));
            sequences.push(PagedRows { rows, start, first_key, slots: Slots::new(key_slots, &self.device) });
        }
        let sequences = PagedSequences::new(sequences, &self.device);
        let slots = Slots::new(row_slots, &self.device);
        Ok(PagedStep { layers: &mut self.layers, sequences, spans, slots, is_written: &mut self.is_written })
    }

    /// Holds the pools' tensors, so that nothing changes them in place.
    #[cfg(all(test, feature = "gpu"))]
    pub(crate) fn hold(&self) -> Vec<Tensor<2>> {
        tensors(&self.layers).cloned().collect()
    }

    /// Gives `copied.to` the contents of `copied.from`, in every layer.
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

    /// Where the pools lie in a GPU's memory.
    #[cfg(feature = "gpu")]
    pub(crate) fn addresses(&mut self) -> Vec<Option<Address>> {
        *self.is_written = false;
        tensors(self.layers).map(Address::of).collect()
    }

    /// Whether the pools lie elsewhere than at `addresses`, where they were when a step last looked. Operations change them
    /// in place, unless somebody else holds a pool's tensor.
    #[cfg(feature = "gpu")]
    pub(crate) fn has_moved(&mut self, addresses: &[Option<Address>]) -> bool {
        *self.is_written && self.addresses() != addresses
    }

    /// Where the step's rows go, one slot each.
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The pools of `layer`, where the step's rows go in them, and which rows are whose.
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

/// A shared page that one of its owners needed for itself.
#[derive(Clone, Copy, Debug)]
struct CopiedPage {
    from: usize,
    to: usize,
}

impl PagePool {
    /// A pool of `n_pages` pages, all free.
    pub fn new(n_pages: usize) -> Self {
        let pages = Pages {
            // A stack: the lowest page comes first.
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

    /// A table that holds nothing yet.
    pub fn table(&self) -> PageTable {
        PageTable { pages: Vec::new(), len: 0, n_prompt: 0, pool: self.clone() }
    }

    /// Pages that nobody holds.
    pub fn n_free(&self) -> usize {
        let pages = self.lock();
        pages.free.len() + pages.unused.len()
    }

    /// All pages.
    pub fn n_pages(&self) -> usize {
        self.lock().owners.len()
    }

    /// Pages that appending so many tokens to each of these tables would take from the free ones, counting the copies
    /// of shared last pages.
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
        // Where all owners write into a page, the last one needs no copy.
        let copies = writers.into_iter().map(|(page, n_writers)| n_writers.min(pages.owners[page] as usize - 1));
        needed + copies.sum::<usize>()
    }

    /// The counts are consistent between any two statements that could panic, so a poisoned lock is no reason to stop.
    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageTable {
    /// The table of a text whose first `n_prompt` tokens are there from the start, in however many steps they are
    /// computed; the others follow one by one. Only [`RopeScaling::Dynamic`](crate::config::RopeScaling::Dynamic) asks.
    /// Unless it is said, none are.
    #[must_use]
    pub fn of_prompt(mut self, n_prompt: usize) -> Self {
        self.n_prompt = n_prompt;
        self
    }

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
        let mut pool = self.pool.lock();
        for &page in &self.pages {
            pool.hold(page);
        }
        Self { pages: self.pages.clone(), len: self.len, n_prompt: self.n_prompt, pool: self.pool.clone() }
    }

    /// Puts the pages kept under `keys`, the keys of a sequence's first pages in order, into a table that holds nothing
    /// yet: as far as they are there without a gap. Gives the number of tokens that need not be computed.
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

    /// Keeps the `index`-th page, which must be full, for sequences that start alike. Where another page is kept under
    /// the key already, nothing changes.
    pub fn keep(&self, index: usize, key: PageKey) {
        let is_full = (index + 1) * PAGE_SIZE <= self.len;
        let Some(&page) = self.pages.get(index).filter(|_| is_full) else { return };
        let mut pool = self.pool.lock();
        if pool.keys[page].is_none() && !pool.kept.contains_key(&key) {
            pool.keys[page] = Some(key);
            pool.kept.insert(key, page);
        }
    }

    /// Pages that appending `n_new` tokens would take from the free ones, counting the copy of a shared last page.
    pub fn pages_needed(&self, n_new: usize) -> usize {
        self.pool.pages_needed([(self, n_new)])
    }

    /// Takes the pages for `n_new` more tokens, as [`KvCache::step`] does, without tensors: for rehearsing what a
    /// scheduler does.
    ///
    /// # Errors
    /// [`OutOfPages`]; nothing was taken.
    pub fn append(&mut self, n_new: usize) -> Result<(), OutOfPages> {
        let (needed, free) = (self.pages_needed(n_new), self.pool.n_free());
        if needed > free {
            return Err(OutOfPages { needed, free });
        }
        self.grow(n_new);
        Ok(())
    }

    /// Forgets the tokens from position `len` on, and gives back the pages that hold nothing else.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        let mut pool = self.pool.lock();
        for page in self.pages.drain(len.div_ceil(PAGE_SIZE)..).rev() {
            pool.release(page);
        }
        self.len = len;
        if len == 0 {
            // Many may wait like this.
            self.pages = Vec::new();
        }
    }

    /// The last page, if the next token goes into it and others hold it too.
    fn shared_last_page(&self, pool: &Pages) -> Option<usize> {
        let partly_filled = !self.len.is_multiple_of(PAGE_SIZE);
        self.pages.last().copied().filter(|&page| partly_filled && pool.owners[page] > 1)
    }

    /// Takes the pages for `n_new` more tokens; the caller has made sure that there are enough. Gives the page to copy,
    /// if a shared one had to be replaced.
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
            // It was full once, or it would have no name, and what it will hold is something else.
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
        // The last page first: the start of a text is worth more than its end, which is of no use without it.
        for &page in self.pages.iter().rev() {
            pool.release(page);
        }
    }
}

impl Pages {
    fn take(&mut self) -> usize {
        let page = self.free.pop().or_else(|| self.evict());
        // The free pages are counted before anything is taken.
        let page = page.unwrap_or_else(|| unreachable!("enough pages are free before any is taken"));
        self.owners[page] = 1;
        page
    }

    /// Forgets what is in the kept page that has been of no use for longest.
    fn evict(&mut self) -> Option<usize> {
        let (_, page) = self.unused.pop_first()?;
        self.forget(page);
        Some(page)
    }

    /// Nobody can ask for the page's contents any more.
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
