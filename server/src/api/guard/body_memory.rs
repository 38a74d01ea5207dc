//! The memory for the bodies of requests that are being received or prepared.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::{bounded_json::OTHER_BYTES_PER_BYTE, options::ApiOptions, preparation::LONG_BODY_BYTES};
use crate::api::error::ApiError;

/// Memory limit in bytes for the bodies of all requests that are being received or prepared, parsed values included. If
/// the settings allow a single request more memory than this, that is the limit (see [`max_bodies_bytes`]).
pub(crate) const MAX_BODIES_BYTES: usize = 512 << 20;

/// Memory in bytes beyond that limit, reserved for requests that take at most [`LONG_BODY_BYTES`], so that long
/// requests cannot keep short ones out.
const SHORT_BODIES_BYTES: usize = 64 << 20;

/// The memory for the bodies of all requests.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    free: Arc<AtomicUsize>,
    /// Limit in bytes for all long requests together, for error messages.
    most: usize,
}

impl BodyMemory {
    pub(crate) fn new(options: &ApiOptions) -> Self {
        let most = max_bodies_bytes(options);
        Self { free: Arc::new(most.saturating_add(SHORT_BODIES_BYTES).into()), most }
    }

    /// A reservation for a new request, which takes no memory yet.
    pub(crate) fn room(&self) -> BodyReservation {
        BodyReservation { free: Arc::clone(&self.free), n_bytes: 0, most: self.most }
    }
}

/// The memory that a request's body and its parsed values take of the limit for all requests ([`MAX_BODIES_BYTES`]).
/// Released when this is dropped.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    free: Arc<AtomicUsize>,
    n_bytes: usize,
    /// Limit in bytes for all long requests together, for error messages.
    most: usize,
}

impl BodyReservation {
    /// Takes `n_bytes` more.
    ///
    /// # Errors
    /// 429 if too little memory is left, because other requests use it.
    pub(crate) fn grow(&mut self, n_bytes: usize) -> Result<(), ApiError> {
        let wanted = self.n_bytes.saturating_add(n_bytes);
        let is_short = wanted <= LONG_BODY_BYTES;
        let rest = |free: usize| {
            let rest = free.checked_sub(n_bytes)?;
            (is_short || rest >= SHORT_BODIES_BYTES).then_some(rest)
        };
        if self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_err() {
            let message = format!("too many long requests: they may take {} bytes while they are prepared", self.most);
            return Err(ApiError::queue_full(message));
        }
        self.n_bytes = wanted;
        Ok(())
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.free.fetch_add(self.n_bytes, Ordering::Relaxed);
    }
}

fn max_bodies_bytes(options: &ApiOptions) -> usize {
    let one = options.max_body_bytes.saturating_mul(1 + OTHER_BYTES_PER_BYTE);
    MAX_BODIES_BYTES.max(one)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::api::wire::state::AppState;

    #[test]
    fn body_memory_limit_grows_with_max_body_bytes() {
        const GIB: usize = 1 << 30;
        let state = AppState::loading_with("x", ApiOptions { max_body_bytes: GIB, ..ApiOptions::default() });
        let mut room = state.body_memory();
        room.grow(GIB).unwrap();
        room.grow(5 * GIB).unwrap();
        assert!(state.body_memory().grow(3 * GIB + 1).is_err());
        room.grow(3 * GIB).unwrap();
        drop(room);
        assert!(state.body_memory().grow(9 * GIB).is_ok());
        let unlimited = AppState::loading_with("x", ApiOptions { max_body_bytes: usize::MAX, ..ApiOptions::default() });
        assert!(unlimited.body_memory().grow(usize::MAX / 2).is_ok());
    }

    #[test]
    fn memory_is_reserved_for_short_bodies_beside_long_ones() {
        let state = AppState::loading("x");
        let mut long = state.body_memory();
        long.grow(MAX_BODIES_BYTES).unwrap();
        let mut short = state.body_memory();
        short.grow(LONG_BODY_BYTES - 1).unwrap();
        short.grow(1).unwrap();
        assert!(short.grow(1).is_err(), "it is no longer short");
        let more = (1..SHORT_BODIES_BYTES / LONG_BODY_BYTES).map(|_| {
            let mut room = state.body_memory();
            room.grow(LONG_BODY_BYTES).unwrap();
            room
        });
        let more: Vec<_> = more.collect();
        assert!(state.body_memory().grow(1).is_err());
        drop((short, more));
        assert!(state.body_memory().grow(1).is_ok());
        assert!(long.grow(1).is_err());
    }
}
