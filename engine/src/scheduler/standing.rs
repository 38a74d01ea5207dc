//! The order in which requests start, are prefilled and are preempted: rounds, turns of tenants, and ranks of a
//! tenant's requests. [`scheduler`](super) documents the rules.

use std::collections::{BTreeMap, HashMap};

use super::{
    Scheduler,
    request::{Rank, ScheduledRequest},
};
use crate::tenant::TenantId;

/// The order of all requests: smaller standings come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Standing {
    /// Number of places that its tenant's better requests take.
    pub(super) round: usize,
    pub(super) turn: u64,
    pub(super) rank: Rank,
}

/// A tenant that has requests.
#[derive(Debug)]
pub(super) struct Tenant {
    /// Its place in the order of tenants.
    pub(super) turn: u64,
    pub(super) waiting: BTreeMap<Rank, ScheduledRequest>,
    /// Number of places in the batch that its running requests take.
    pub(super) n_places: usize,
}

impl Scheduler {
    /// Adds a waiting request.
    pub(super) fn wait(&mut self, rank: Rank, request: ScheduledRequest) {
        let n_turns = &mut self.n_turns;
        let tenant = self.tenants.entry(request.tenant).or_insert_with(|| {
            *n_turns += 1;
            Tenant { turn: *n_turns, waiting: BTreeMap::new(), n_places: 0 }
        });
        tenant.waiting.insert(rank, request);
    }

    /// Adds a running request of a tenant that has one already, or had it waiting.
    pub(super) fn run(&mut self, rank: Rank, request: ScheduledRequest) {
        if let Some(tenant) = self.tenants.get_mut(&request.tenant) {
            tenant.n_places += request.width;
        }
        self.running.insert(rank, request);
    }

    /// Removes a running request, whose tenant keeps its turn.
    pub(super) fn take_running(&mut self, rank: Rank) -> Option<ScheduledRequest> {
        let request = self.running.remove(&rank)?;
        if let Some(tenant) = self.tenants.get_mut(&request.tenant) {
            tenant.n_places -= request.width;
        }
        Some(request)
    }

    /// The standings of running requests, in their order.
    pub(super) fn standings(&self) -> Vec<Standing> {
        let mut n_taken: HashMap<TenantId, usize> = HashMap::new();
        let standings = self.running.iter().filter_map(|(&rank, request)| {
            let n_taken = n_taken.entry(request.tenant).or_default();
            let round = *n_taken;
            *n_taken += request.width;
            Some(Standing { round, turn: self.tenants.get(&request.tenant)?.turn, rank })
        });
        let mut standings: Vec<_> = standings.collect();
        standings.sort_unstable();
        standings
    }

    /// The standing of a waiting request, which comes after its tenant's running requests.
    pub(super) fn standing_to_start(&self, tenant: TenantId, rank: Rank) -> Option<Standing> {
        let Tenant { turn, n_places, .. } = *self.tenants.get(&tenant)?;
        Some(Standing { round: n_places, turn, rank })
    }

    /// The waiting request that stands first, and its tenant.
    pub(super) fn next_to_start(&self) -> Option<(Standing, TenantId)> {
        let first_of_each = self.tenants.iter().filter_map(|(&id, &Tenant { turn, n_places, ref waiting })| {
            let (&rank, _) = waiting.first_key_value()?;
            Some((Standing { round: n_places, turn, rank }, id))
        });
        first_of_each.min()
    }

    /// Whether requests of other tenants may be preempted for the waiting request that stands first.
    pub(super) fn next_may_preempt(&self) -> bool {
        self.next_to_start().is_some_and(|(standing, tenant)| !self.running_behind(standing, tenant).is_empty())
    }

    /// The running requests of other tenants in later rounds, in the order in which they stand.
    pub(super) fn running_behind(&self, Standing { round, .. }: Standing, tenant: TenantId) -> Vec<Rank> {
        let later = self.standings().into_iter().filter(|running| running.round > round).map(|running| running.rank);
        later.filter(|rank| self.running.get(rank).is_some_and(|request| request.tenant != tenant)).collect()
    }
}
