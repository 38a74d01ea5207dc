//! Ownership of pages by sequences, without tensors.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{PAGE_SIZE, free_pages::FreePages};

/// There are not enough free pages, or states; none was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the KV cache has {free} free {}, but {needed} are needed", self.of.name())]
pub struct OutOfPages {
    /// Which unit is missing.
    pub of: CacheUnit,
    /// How many the call needed.
    pub needed: usize,
    /// How many were free.
    pub free: usize,
}

/// A unit of the cache that sequences own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUnit {
    /// Keys and values of [`PAGE_SIZE`] tokens.
    Page,
    /// The state of the recurrent layers.
    State,
}

impl CacheUnit {
    fn name(self) -> String {
        match self {
            Self::Page => format!("pages of {PAGE_SIZE} tokens"),
            Self::State => "states of recurrent layers".to_owned(),
        }
    }
}

/// Identifies the contents of a full page: its tokens and all tokens before them. Equal keys must mean equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey(pub [u8; 32]);

/// A change of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixChange {
    /// The page with this key was added.
    Kept(PageKey),
    /// The page with this key was removed.
    Removed(PageKey),
}

/// The ownership of pages, and of the states of recurrent layers, without tensors. Clones share the pool.
#[derive(Clone, Debug)]
pub struct PagePool {
    owned: Arc<Mutex<Owned>>,
    has_states: bool,
}

#[derive(Debug)]
struct Owned {
    pages: Pages,
    /// As `pages`, for states, if the model has recurrent layers: each state has a number like a page.
    states: Option<Pages>,
}

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
    /// What was added to the prefix cache and removed from it since this was last taken, if that is recorded.
    changes: Option<Vec<PrefixChange>>,
}

/// The pages of one sequence, and its state if the model has recurrent layers. Dropping it releases them.
#[derive(Debug)]
pub struct PageTable {
    pages: Vec<usize>,
    /// The state after all tokens.
    state: Option<usize>,
    /// A length to which the sequence may go back, and the state there.
    mark: Option<(usize, usize)>,
    len: usize,
    pub(super) pool: PagePool,
}

/// A shared page that one of its owners is about to write to, and its copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopiedPage {
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The new state of a sequence in a step: a copy of another state, or zeros at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateMove {
    /// Equal to `to` if the state is changed in place.
    pub(super) from: Option<usize>,
    pub(super) to: usize,
}

impl PagePool {
    /// A pool of `n_pages` pages, all free.
    pub fn new(n_pages: usize) -> Self {
        let owned = Owned { pages: Pages::new(n_pages), states: None };
        Self { owned: Arc::new(Mutex::new(owned)), has_states: false }
    }

    /// A pool of `n_pages` pages and `n_states` states of recurrent layers, all free.
    pub fn with_states(n_pages: usize, n_states: usize) -> Self {
        let owned = Owned { pages: Pages::new(n_pages), states: Some(Pages::new(n_states)) };
        Self { owned: Arc::new(Mutex::new(owned)), has_states: true }
    }

    /// Whether sequences have states.
    pub fn has_states(&self) -> bool {
        self.has_states
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.owned, &other.owned)
    }

    /// An empty table.
    pub fn table(&self) -> PageTable {
        PageTable { pages: Vec::new(), state: None, mark: None, len: 0, pool: self.clone() }
    }

    /// Number of free pages.
    pub fn n_free(&self) -> usize {
        self.lock().pages.n_free()
    }

    /// Number of pages.
    pub fn n_pages(&self) -> usize {
        self.lock().pages.owners.len()
    }

    /// Records changes of the prefix cache from now on, for [`take_changes`](Self::take_changes).
    pub fn record_changes(&self) {
        self.lock().pages.changes.get_or_insert_default();
    }

    /// The changes of the prefix cache since the last call, in order; none if they are not recorded. States of recurrent layers
    /// are not among them.
    pub fn take_changes(&self) -> Vec<PrefixChange> {
        self.lock().pages.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The keys of all pages in the prefix cache.
    pub fn kept_keys(&self) -> Vec<PageKey> {
        self.lock().pages.kept.keys().copied().collect()
    }

    /// Checks that all of these tables can grow.
    ///
    /// # Errors
    /// [`OutOfPages`], with the missing unit.
    pub(super) fn require_room(&self, growth: &[(&PageTable, usize)]) -> Result<(), OutOfPages> {
        let (needed, free) = (self.pages_needed(growth.iter().copied()), self.n_free());
        if needed > free {
            return Err(OutOfPages { of: CacheUnit::Page, needed, free });
        }
        let owned = self.lock();
        let Some(states) = &owned.states else { return Ok(()) };
        let needed = growth.iter().filter(|(table, n_new)| *n_new > 0 && !table.owns_state(states)).count();
        let free = states.n_free();
        if needed > free { Err(OutOfPages { of: CacheUnit::State, needed, free }) } else { Ok(()) }
    }

    /// Pages that would be allocated by appending these numbers of tokens to the tables, including copies of shared
    /// last pages.
    pub fn pages_needed<'a>(&self, growth: impl IntoIterator<Item = (&'a PageTable, usize)>) -> usize {
        let owned = self.lock();
        let pages = &owned.pages;
        let mut needed = 0;
        let mut writers: HashMap<usize, usize> = HashMap::new();
        for (table, n_new) in growth {
            needed += (table.len + n_new).div_ceil(PAGE_SIZE) - table.pages.len();
            if n_new > 0
                && let Some(page) = table.shared_last_page(pages)
            {
                *writers.entry(page).or_default() += 1;
            }
        }
        // If all owners write to a page, the last one needs no copy.
        let copies = writers.into_iter().map(|(page, n_writers)| n_writers.min(pages.owners[page] as usize - 1));
        needed + copies.sum::<usize>()
    }

    /// The counts are consistent at any point that could panic, so a poisoned lock can still be used.
    fn lock(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageTable {
    /// Whether the sequence has a state of recurrent layers.
    pub fn has_states(&self) -> bool {
        self.pool.has_states()
    }

    /// Number of tokens in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A sequence with the same tokens, which shares every page and the state.
    pub fn fork(&self) -> Self {
        let mut pool = self.pool.lock();
        for &page in &self.pages {
            pool.pages.hold(page);
        }
        if let (Some(states), Some(state)) = (&mut pool.states, self.state) {
            states.hold(state);
        }
        Self { pages: self.pages.clone(), mark: None, pool: self.pool.clone(), ..*self }
    }

    /// Shares the pages in the prefix cache for `keys`, the keys of a sequence's first pages in order, up to the first
    /// that is missing; with recurrent layers, up to the last of these pages after which a state is kept. The table
    /// must be empty. Returns the number of tokens that need not be computed.
    pub fn share_kept(&mut self, keys: &[PageKey]) -> usize {
        if !self.pages.is_empty() {
            return 0;
        }
        let mut owned = self.pool.lock();
        let Owned { pages, states } = &mut *owned;
        let mut kept: Vec<usize> = keys.iter().map_while(|key| pages.kept.get(key).copied()).collect();
        if let Some(states) = states {
            let of_keys = keys.iter().take(kept.len()).enumerate().rev();
            let last = of_keys.map(|(index, key)| (index, states.kept.get(key))).find(|(_, state)| state.is_some());
            let (n_shared, state) = last.map_or((0, None), |(index, state)| (index + 1, state.copied()));
            kept.truncate(n_shared);
            state.into_iter().for_each(|state| states.hold(state));
            self.state = state;
        }
        kept.iter().for_each(|page| pages.hold(*page));
        self.pages = kept;
        self.len = self.pages.len() * PAGE_SIZE;
        self.len
    }

    /// Adds the state after all tokens, which must fill their last page, to the prefix cache. `key` is the key of the
    /// last page. Does nothing if the key is already there, or the model has no recurrent layers.
    pub fn keep_state(&self, key: PageKey) {
        let mut pool = self.pool.lock();
        if let (Some(states), Some(state)) = (&mut pool.states, self.state)
            && self.len.is_multiple_of(PAGE_SIZE)
        {
            states.keep(state, key);
        }
    }

    /// Removes a state from the prefix cache, such as an earlier state of a text that has a later one.
    pub fn drop_kept_state(&self, key: PageKey) {
        if let Some(states) = &mut self.pool.lock().states {
            states.drop_kept(key);
        }
    }

    /// Remembers the present length and state: until the next mark, [`truncate`](Self::truncate) can go back to here. Without
    /// recurrent layers it can go back to any length.
    pub fn mark(&mut self) {
        self.unmark();
        let mut pool = self.pool.lock();
        if let (Some(states), Some(state)) = (&mut pool.states, self.state) {
            states.hold(state);
            self.mark = Some((self.len, state));
        }
    }

    /// Removes the mark.
    pub fn unmark(&mut self) {
        let mut pool = self.pool.lock();
        if let (Some(states), Some((_, state))) = (&mut pool.states, self.mark.take()) {
            states.release(state);
        }
    }

    /// Whether the state has no other users, so that it can be changed in place.
    fn owns_state(&self, states: &Pages) -> bool {
        self.state.is_some_and(|state| states.owners[state] == 1 && states.keys[state].is_none())
    }

    /// Makes sure that the state has no other users.
    pub(super) fn move_state(&mut self) -> Option<StateMove> {
        let mut pool = self.pool.lock();
        let states = pool.states.as_mut()?;
        let from = self.state;
        if let Some(state) = from.filter(|_| self.owns_state(states)) {
            return Some(StateMove { from, to: state });
        }
        // Before the old one is released, so that it is not taken.
        let to = states.take(None);
        from.into_iter().for_each(|state| states.release(state));
        self.state = Some(to);
        Some(StateMove { from, to })
    }

    /// Adds the `index`-th page, which must be full, to the prefix cache. Does nothing if the key is already there.
    pub fn keep(&self, index: usize, key: PageKey) {
        let is_full = (index + 1) * PAGE_SIZE <= self.len;
        let Some(&page) = self.pages.get(index).filter(|_| is_full) else { return };
        self.pool.lock().pages.keep(page, key);
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
        self.pool.require_room(&[(self, n_new)])?;
        self.grow(n_new);
        if n_new > 0 {
            self.move_state();
        }
        Ok(())
    }

    /// Removes the tokens from position `len` on, and releases pages without other contents. With recurrent layers, the
    /// sequence returns to the [mark](Self::mark), if that is not after `len`, otherwise to its beginning.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        let mut owned = self.pool.lock();
        let Owned { pages, states } = &mut *owned;
        let mut len = len;
        if let Some(states) = states {
            let marked = self.mark.take();
            let back = marked.filter(|(marked, _)| *marked <= len);
            let released = [self.state.take(), marked.filter(|_| back.is_none()).map(|(_, state)| state)];
            released.into_iter().flatten().for_each(|state| states.release(state));
            (len, self.state) = back.map_or((0, None), |(len, state)| (len, Some(state)));
        }
        for page in self.pages.drain(len.div_ceil(PAGE_SIZE)..).rev() {
            pages.release(page);
        }
        self.len = len;
    }

    /// Whether the table can grow by one token and shrink again without another change: its last page has room, and is its own.
    pub(crate) fn has_room_of_its_own(&self) -> bool {
        let owned = self.pool.lock();
        let has_room = !self.len.is_multiple_of(PAGE_SIZE) && owned.states.is_none();
        has_room && self.shared_last_page(&owned.pages).is_none()
    }

    /// The last page, if it has room and is shared.
    fn shared_last_page(&self, pool: &Pages) -> Option<usize> {
        let partly_filled = !self.len.is_multiple_of(PAGE_SIZE);
        self.pages.last().copied().filter(|&page| partly_filled && pool.owners[page] > 1)
    }

    /// Allocates the pages for `n_new` more tokens; the caller has checked that there are enough. Returns the page to
    /// copy, if a shared one was replaced.
    pub(super) fn grow(&mut self, n_new: usize) -> Option<CopiedPage> {
        let mut owned = self.pool.lock();
        let pool = &mut owned.pages;
        let mut copied = None;
        if n_new > 0
            && let Some(from) = self.shared_last_page(pool)
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
        let mut owned = self.pool.lock();
        // The last page first, so that the start of a text stays in the prefix cache longest: later pages are useless
        // without it.
        for &page in self.pages.iter().rev() {
            owned.pages.release(page);
        }
        if let Some(states) = &mut owned.states {
            let held = [self.state, self.mark.map(|(_, state)| state)];
            held.into_iter().flatten().for_each(|state| states.release(state));
        }
    }
}

/// Fraction of all pages (one in this many) that are removed from the prefix cache at once, at most [`MAX_EVICTED`].
const EVICTED_SHARE: usize = 64;
const MAX_EVICTED: usize = 16;

impl Pages {
    fn new(n_pages: usize) -> Self {
        Self {
            free: FreePages::all(n_pages),
            owners: vec![0; n_pages],
            keys: vec![None; n_pages],
            kept: HashMap::new(),
            unused: BTreeMap::new(),
            given_back: vec![0; n_pages],
            clock: 0,
            changes: None,
        }
    }

    fn n_free(&self) -> usize {
        self.free.len() + self.unused.len()
    }

    /// Adds a page to the prefix cache, unless it or another page with its contents is there.
    fn keep(&mut self, page: usize, key: PageKey) {
        if self.keys[page].is_none() && !self.kept.contains_key(&key) {
            self.keys[page] = Some(key);
            self.kept.insert(key, page);
            self.changes.iter_mut().for_each(|changes| changes.push(PrefixChange::Kept(key)));
        }
    }

    /// Removes the entry `key` from the prefix cache.
    fn drop_kept(&mut self, key: PageKey) {
        let Some(&page) = self.kept.get(&key) else { return };
        self.forget(page);
        if self.owners[page] == 0 {
            self.unused.remove(&self.given_back[page]);
            self.free.insert(page);
        }
    }

    /// A page for a sequence whose last page is `last`.
    fn take(&mut self, last: Option<usize>) -> usize {
        if self.free.len() == 0 {
            // Removes several at once if there are many pages: pages that were released together are mostly neighbours,
            // so a sequence can get consecutive pages.
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
            self.changes.iter_mut().for_each(|changes| changes.push(PrefixChange::Removed(key)));
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
