//! Which pages belong to which sequences, without tensors.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{PAGE_SIZE, free_pages::FreePages};

/// There are not enough free pages; none was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the KV cache has {free} free pages of {PAGE_SIZE} tokens, but {needed} are needed")]
pub struct OutOfPages {
    /// Pages that the call needed.
    pub needed: usize,
    /// Pages that were free.
    pub free: usize,
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
    free: FreePages,
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
    pub(super) pool: PagePool,
}

/// A shared page that one of its owners must write to, and its copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopiedPage {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl PagePool {
    /// A pool of `n_pages` pages, all free.
    pub fn new(n_pages: usize) -> Self {
        let pages = Pages {
            free: FreePages::all(n_pages),
            owners: vec![0; n_pages],
            keys: vec![None; n_pages],
            kept: HashMap::new(),
            unused: BTreeMap::new(),
            given_back: vec![0; n_pages],
            clock: 0,
        };
        Self(Arc::new(Mutex::new(pages)))
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// An empty table.
    pub fn table(&self) -> PageTable {
        PageTable { pages: Vec::new(), len: 0, pool: self.clone() }
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
        Self { pages: self.pages.clone(), len: self.len, pool: self.pool.clone() }
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

    /// Allocates the pages for `n_new` more tokens, as [`KvCache::step`](super::KvCache::step) does, but without tensors:
    /// for simulating a scheduler.
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
    pub(super) fn grow(&mut self, n_new: usize) -> Option<CopiedPage> {
        let mut pool = self.pool.lock();
        let mut copied = None;
        if n_new > 0
            && let Some(from) = self.shared_last_page(&pool)
        {
            self.pages.pop();
            let to = pool.take(self.pages.last().copied());
            pool.release(from);
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
            self.pages.push(pool.take(self.pages.last().copied()));
        }
        copied
    }

    /// The slot of the token at `position`.
    pub(super) fn slot(&self, position: usize) -> i32 {
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

/// Pages that are removed from the prefix cache at once: one of so many of all pages, and at most [`MAX_EVICTED`].
const EVICTED_SHARE: usize = 64;
const MAX_EVICTED: usize = 16;

impl Pages {
    /// A page for a sequence whose last page is `last`.
    fn take(&mut self, last: Option<usize>) -> usize {
        if self.free.len() == 0 {
            // Several at once if there are many pages: those that were released together are mostly neighbours, so a sequence
            // can get pages that follow each other.
            let n_evicted = (self.owners.len() / EVICTED_SHARE).clamp(1, MAX_EVICTED);
            for page in (0..n_evicted).map_while(|_| self.evict()).collect::<Vec<_>>() {
                self.free.insert(page);
            }
        }
        // The free pages were counted before anything was allocated.
        let page = self.free.take(last).unwrap_or_else(|| unreachable!("enough pages are free before any is taken"));
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
            self.free.insert(page);
            return;
        }
        self.clock += 1;
        self.given_back[page] = self.clock;
        self.unused.insert(self.clock, page);
    }
}
