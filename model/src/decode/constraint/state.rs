//! The state of one text in its grammar: the tokens that may come next.
//!
//! For most grammars a token is accepted immediately, and the next mask is computed on a thread for masks while the model
//! runs. If a grammar turns out to be slow, as very ambiguous ones do for long texts, both are done on separate threads for
//! slow grammars, so that other texts can continue. This does not change the allowed tokens.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use llguidance::{CancellationHandle, Matcher};
use toktrie::SimpleVob;

use super::{library_limits, limits, task_threads::TaskThreads, vocabulary::Vocabulary};
use crate::{
    TokenId,
    error::{Error, Result},
    ops,
};

/// A token that takes longer than this is slow: less than a step of a small model.
const SLOW: Duration = Duration::from_millis(5);
/// A grammar counts as slow for this many times the duration of a slow token, since a few fast tokens in between prove
/// nothing.
const SLOW_FOR: u32 = 20;

/// The state of a text in its grammar. A clone is independent.
pub struct Constraint {
    shared: Arc<Shared>,
    vocabulary: Arc<Vocabulary>,
    /// Cancels computations for a text that is no longer needed.
    _cancellation: CancelOnDrop,
    param: &'static str,
}

struct Shared {
    state: Mutex<State>,
    /// The time until which the grammar counts as slow. Shared by all clones, because they share the lexer and wait for
    /// each other.
    slow_until: Arc<Mutex<Option<Instant>>>,
    /// Whether a task that computes the mask is queued: there is at most one.
    is_queued: AtomicBool,
}

struct State {
    matcher: Matcher,
    text_tokens: Arc<SimpleVob>,
    /// The tokens that may come next, once computed.
    mask: Option<Result<SimpleVob, String>>,
    /// The result of a token that was accepted on another thread: whether the text is complete.
    accepted: Option<Result<bool, String>>,
    /// Time spent on the last token so far.
    took: Duration,
}

struct CancelOnDrop(Option<CancellationHandle>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.cancel();
        }
    }
}

impl State {
    fn mask(&mut self) -> &Result<SimpleVob, String> {
        let Self { matcher, text_tokens, mask, took, .. } = self;
        mask.get_or_insert_with(|| {
            let started = Instant::now();
            let computed = matcher.compute_mask();
            *took += started.elapsed();
            let mut mask = computed.map_err(|error| error.to_string())?;
            mask.and(text_tokens);
            if mask.is_zero() && !matcher.is_accepting().unwrap_or(false) { Err(String::new()) } else { Ok(mask) }
        })
    }

    fn accept(&mut self, ids: &[TokenId]) -> Result<bool, String> {
        self.mask = None;
        let started = Instant::now();
        let consumed = self.matcher.consume_tokens(ids);
        self.took = started.elapsed();
        consumed.map_err(|error| error.to_string())?;
        Ok(self.matcher.is_stopped())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn compute_mask(&self, state: &mut State) {
        state.mask();
        if state.took > SLOW {
            *lock(&self.slow_until) = Instant::now().checked_add(state.took * SLOW_FOR);
        }
        state.took = Duration::ZERO;
    }
}

impl Constraint {
    /// The state of an empty text.
    ///
    /// # Errors
    /// The library's error if no token can come first.
    pub(super) fn new(
        matcher: Matcher,
        text_tokens: Arc<SimpleVob>,
        vocabulary: Arc<Vocabulary>,
        param: &'static str,
    ) -> Result<Self, String> {
        let matcher = matcher.into_cancellable();
        let cancellation = CancelOnDrop(matcher.cancellation_handle());
        let mut state = State { matcher, text_tokens, mask: None, accepted: None, took: Duration::ZERO };
        if let Err(error) = state.mask() {
            return Err(error.clone());
        }
        // The first mask is ready, however long it took.
        state.took = Duration::ZERO;
        let shared = Shared { state: Mutex::new(state), slow_until: Arc::default(), is_queued: AtomicBool::new(false) };
        Ok(Self { shared: Arc::new(shared), vocabulary, _cancellation: cancellation, param })
    }

    /// The parameter that requests the grammar.
    pub fn param(&self) -> &'static str {
        self.param
    }

    pub(super) fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// Whether the last tokens were so slow that the next one should be accepted [on another
    /// thread](Self::accept_elsewhere).
    pub fn is_slow(&self) -> bool {
        lock(&self.shared.slow_until).is_some_and(|until| Instant::now() < until)
    }

    /// Starts computing the mask on another thread, while this one runs the model.
    pub fn prepare(&self) {
        // If the task has not started when the mask is needed, `restrict` computes the mask itself.
        let Some(threads) = mask_threads() else { return };
        if self.shared.is_queued.swap(true, Ordering::Relaxed) {
            return;
        }
        threads.spawn(&self.shared, |shared| {
            // Before the lock: its holder may advance to a state for which another task is wanted.
            shared.is_queued.store(false, Ordering::Relaxed);
            shared.compute_mask(&mut shared.lock());
        });
    }

    /// The logits, `[vocab_size]`, with -infinity for all tokens that may not come next. If the text may end, the
    /// `end_ids` are allowed.
    ///
    /// # Errors
    /// [`Error::Param`] if the grammar exceeds its limits, or if no token can continue the text.
    pub fn restrict(&self, logits: &[f32], end_ids: &BTreeSet<TokenId>) -> Result<Vec<f32>> {
        let mut state = self.shared.lock();
        let may_end = state.matcher.is_accepting().map_err(|error| self.failed(&error.to_string()))?;
        let mut allowed = vec![f32::NEG_INFINITY; logits.len()];
        let mut allow = |id: usize| {
            if let (Some(to), Some(from)) = (allowed.get_mut(id), logits.get(id)) {
                *to = *from;
            }
        };
        self.shared.compute_mask(&mut state);
        match state.mask() {
            // The text can only end, but there is no token that ends it.
            Ok(mask) if mask.is_zero() && end_ids.is_empty() => return Err(self.failed("")),
            Ok(mask) => mask.iter_set_entries(&mut allow),
            Err(_) if may_end && !end_ids.is_empty() => {}
            Err(what) => return Err(self.failed(what)),
        }
        for &id in end_ids {
            if may_end {
                allow(id as usize);
            }
        }
        Ok(allowed)
    }

    /// Whether this token may come next.
    pub fn allows(&self, id: TokenId) -> bool {
        let mut state = self.shared.lock();
        self.shared.compute_mask(&mut state);
        state.mask().as_ref().is_ok_and(|mask| (id as usize) < mask.len() && mask.is_allowed(id))
    }

    /// Adds an allowed token. Returns whether the text is complete, so that nothing may follow.
    ///
    /// # Errors
    /// [`Error::Param`] if the grammar does not allow the token, or exceeds its limits.
    pub fn accept(&mut self, id: TokenId) -> Result<bool> {
        self.shared.lock().accept(&[id]).map_err(|error| self.failed(&error))
    }

    /// Adds bytes that are allowed; they need not be a token. Returns as [`accept`](Self::accept).
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub(super) fn accept_bytes(&mut self, bytes: &[u8]) -> Result<bool> {
        let ids = self.vocabulary.byte_ids(bytes);
        self.shared.lock().accept(&ids).map_err(|error| self.failed(&error))
    }

    /// Whether these bytes may come next.
    pub(super) fn fits(&self, bytes: &[u8]) -> bool {
        let ids = self.vocabulary.byte_ids(bytes);
        self.shared.lock().matcher.validate_tokens(&ids).is_ok_and(|n_valid| n_valid == bytes.len())
    }

    /// Runs [`accept`](Self::accept) and [`prepare`](Self::prepare) on a thread for slow grammars. No other method may
    /// be called before [`accepted`](Self::accepted) returns the result.
    pub fn accept_elsewhere(&mut self, id: TokenId) {
        let work = move |shared: &Shared| {
            let mut state = shared.lock();
            let accepted = state.accept(&[id]);
            if accepted == Ok(false) {
                shared.compute_mask(&mut state);
            }
            state.accepted = Some(accepted);
        };
        match slow_threads() {
            Some(threads) => threads.spawn(&self.shared, work),
            None => work(&self.shared),
        }
    }

    /// The result of [`accept_elsewhere`](Self::accept_elsewhere); returned once, when it is ready.
    pub fn accepted(&mut self) -> Option<Result<bool>> {
        let accepted = match self.shared.state.try_lock() {
            Ok(mut state) => state.accepted.take(),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => Some(Err("its parser failed".to_owned())),
        };
        Some(accepted?.map_err(|error| self.failed(&error)))
    }

    fn failed(&self, what: &str) -> Error {
        let what = what.split(['\n', '<']).next().unwrap_or_default();
        if let Some(words) = library_limits::in_words(what, &limits()) {
            return Error::Param { name: self.param, what: format!("cannot be satisfied: {words}") };
        }
        let what = if what.is_empty() || what == "NoExtensionBias" {
            "no token of the vocabulary can continue the text"
        } else {
            what
        };
        Error::Param { name: self.param, what: format!("cannot be satisfied: {what}") }
    }
}

/// Threads that compute masks while the model runs: one fewer than the compute threads, at least one. `None` if they
/// cannot be started.
fn mask_threads() -> Option<&'static TaskThreads<Shared>> {
    static THREADS: OnceLock<Option<TaskThreads<Shared>>> = OnceLock::new();
    THREADS.get_or_init(|| start_threads("masks", ops::n_threads() - 1)).as_ref()
}

/// Threads for slow grammars, a quarter as many as compute threads, so that fast grammars never wait for slow ones.
/// `None` if they cannot be started.
fn slow_threads() -> Option<&'static TaskThreads<Shared>> {
    static THREADS: OnceLock<Option<TaskThreads<Shared>>> = OnceLock::new();
    THREADS.get_or_init(|| start_threads("slow grammars", ops::n_threads().div_ceil(4))).as_ref()
}

fn start_threads(name: &str, n_threads: usize) -> Option<TaskThreads<Shared>> {
    let threads = TaskThreads::start(name, n_threads);
    threads.inspect_err(|error| tracing::warn!("cannot start threads for {name}: {error}")).ok()
}

/// The library catches its panics; the matcher then reports an error.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clone for Constraint {
    fn clone(&self) -> Self {
        let state = self.shared.lock();
        // The lexer, which caches its states, is shared.
        let copy = State {
            matcher: state.matcher.clone(),
            text_tokens: Arc::clone(&state.text_tokens),
            mask: state.mask.clone(),
            accepted: state.accepted.clone(),
            took: Duration::ZERO,
        };
        let cancellation = CancelOnDrop(copy.matcher.cancellation_handle());
        let slow_until = Arc::clone(&self.shared.slow_until);
        let shared = Shared { state: Mutex::new(copy), slow_until, is_queued: AtomicBool::new(false) };
        let vocabulary = Arc::clone(&self.vocabulary);
        Self { shared: Arc::new(shared), vocabulary, _cancellation: cancellation, param: self.param }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("param", &self.param).finish_non_exhaustive()
    }
}
