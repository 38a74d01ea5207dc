//! Tenants: who sends requests. They share the batch (see [`scheduler`](crate::scheduler)) and, here, the places
//! of a queue.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hearth_model::files::digest::Digest;

/// Identifies who sent a request: an API key, or without keys an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u128);

impl TenantId {
    /// The holder of an API key.
    pub fn of_key(key: &[u8]) -> Self {
        let Digest(bytes) = Digest::of(key);
        Self(bytes.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte)))
    }

    /// Whoever connects from an address. Addresses of IPv6 count as one if their first 64 bits are equal: a network
    /// usually gives a customer all others.
    pub fn of_address(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits() >> 64 << 64,
        })
    }
}

/// Counts the places of a queue that are taken, by tenant. Clones share the counts.
///
/// A tenant may take all `max` places of a queue that nobody else uses. Beyond these there is a reserve of another
/// `max` places; each other tenant may take as many places as are left of it. So no tenant keeps others out, and at
/// most `2 * max` places are taken.
#[derive(Clone, Debug, Default)]
pub struct Queue(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    /// Tenants with at least one place.
    by_tenant: HashMap<TenantId, usize>,
}

/// Places in a [`Queue`]; dropping gives them back.
#[derive(Debug)]
pub struct QueuePlaces {
    queue: Queue,
    tenant: TenantId,
    n_places: usize,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `n_places` for a tenant; `None` if it may not take that many.
    pub fn take(&self, max: usize, tenant: TenantId, n_places: usize) -> Option<QueuePlaces> {
        let mut taken = self.lock();
        if !taken.has_room(max, tenant, n_places) {
            return None;
        }
        taken.total += n_places;
        *taken.by_tenant.entry(tenant).or_default() += n_places;
        Some(QueuePlaces { queue: self.clone(), tenant, n_places })
    }

    /// Whether a tenant may take a place.
    pub fn has_room(&self, max: usize, tenant: TenantId) -> bool {
        self.lock().has_room(max, tenant, 1)
    }
}

impl Taken {
    fn has_room(&self, max: usize, tenant: TenantId, n_places: usize) -> bool {
        let own = self.by_tenant.get(&tenant).copied().unwrap_or(0).saturating_add(n_places);
        let n_left = max.saturating_mul(2).saturating_sub(self.total);
        own <= max && (self.total.saturating_add(n_places) <= max || own <= n_left)
    }
}

impl QueuePlaces {
    /// Separates at most `n_places` from these places.
    pub fn split(&mut self, n_places: usize) -> Self {
        let n_places = n_places.min(self.n_places);
        self.n_places -= n_places;
        Self { queue: self.queue.clone(), tenant: self.tenant, n_places }
    }
}

impl Drop for QueuePlaces {
    fn drop(&mut self) {
        let mut taken = self.queue.lock();
        taken.total -= self.n_places;
        if let Some(own) = taken.by_tenant.get_mut(&self.tenant) {
            *own -= self.n_places;
            if *own == 0 {
                taken.by_tenant.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const ONE: TenantId = TenantId(1);
    const TWO: TenantId = TenantId(2);
    const THREE: TenantId = TenantId(3);

    #[test]
    fn tenant_may_fill_a_queue_but_not_keep_others_out() {
        for max in [1, 2, 7, 2048] {
            let queue = Queue::default();
            assert!(queue.take(max, ONE, max + 1).is_none());
            let all = queue.take(max, ONE, max).unwrap();
            assert!(!queue.has_room(max, ONE), "it has as many as there are");
            assert!(queue.has_room(max, TWO));
            assert!(queue.take(max, TWO, max).is_some(), "all of the reserve");
            let half = queue.take(max, TWO, max.div_ceil(2)).unwrap();
            assert_eq!(queue.has_room(max, THREE), max > 1);
            assert!(!queue.has_room(max, ONE));
            drop((all, half));
            assert!(queue.lock().by_tenant.is_empty() && queue.lock().total == 0);
        }
    }

    #[test]
    fn greedy_tenants_leave_places_for_the_next_and_never_take_more_than_twice_the_queue() {
        let (queue, max) = (Queue::default(), 2048);
        let mut taken = Vec::new();
        for tenant in 0..9 {
            let n_before = taken.len();
            while let Some(place) = queue.take(max, TenantId(tenant), 1) {
                taken.push(place);
            }
            assert!(taken.len() > n_before, "tenant {tenant} is kept out");
        }
        assert!(taken.len() <= 2 * max);
        // Places that are given back one by one become available to everybody.
        taken.truncate(max - 1);
        assert!(queue.take(max, TenantId(100), 1).is_some());
    }

    #[test]
    fn split_places_are_given_back_once() {
        let queue = Queue::default();
        let mut places = queue.take(5, ONE, 5).unwrap();
        let first = places.split(2);
        drop(places.split(9));
        assert_eq!(queue.lock().total, 2);
        drop((first, places));
        assert_eq!(queue.lock().total, 0);
    }

    #[test]
    fn tenants_are_keys_or_addresses_of_which_ipv6_counts_by_network() {
        assert_ne!(TenantId::of_key(b"sk-one"), TenantId::of_key(b"sk-two"));
        let of = |address: &str| TenantId::of_address(address.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
