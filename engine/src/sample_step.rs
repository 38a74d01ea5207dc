//! Samples a step's logits for each request. Requests are independent, so they run on all threads: each row scans a
//! whole vocabulary, which on one thread would take as long as a small model's step.

use std::collections::BTreeMap;

use hearth_model::{Result, TokenId, decode::sampling::LogitRow, ops};

use crate::{
    event_senders::Progress,
    job::Job,
    observer::Observer,
    scheduler::{RequestId, SequenceId},
};

/// Minimum number of logits to use all threads. For fewer (tokens selected by a GPU, a small vocabulary), waking
/// threads takes longer than scanning.
const MIN_PARALLEL_LOGITS: usize = 1 << 15;

/// A row of a step whose logits are needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedRow {
    /// Its row in the step.
    pub(crate) row: usize,
    pub(crate) id: SequenceId,
    /// Its position in its sequence.
    pub(crate) position: usize,
    /// Whether the row's input token is a draft token.
    pub(crate) is_draft: bool,
}

/// The rows of one request, in order.
#[derive(Debug)]
struct JobRows<'a> {
    id: RequestId,
    job: &'a mut Job,
    rows: Vec<(WantedRow, LogitRow<'a>)>,
    results: Vec<RowResult>,
}

/// The result of one row.
#[derive(Debug)]
pub(crate) struct RowResult {
    /// Whether the row's input token is an accepted draft token.
    pub(crate) is_draft: bool,
    pub(crate) progress: Result<Progress>,
    /// Answers that fork at this row, and the row's effect on them.
    pub(crate) forks: Vec<(Job, Result<Progress>)>,
}

/// Passes each row's logits to its request, and returns the results by request in the order of their first rows.
/// `token_ids` has the input token of each row of the step.
pub(crate) fn sample_step<'a>(
    jobs: &'a mut BTreeMap<RequestId, Job>,
    rows: impl Iterator<Item = (WantedRow, LogitRow<'a>)>,
    token_ids: &[TokenId],
    observer: &dyn Observer,
) -> Vec<(RequestId, Vec<RowResult>)> {
    let mut rows_of: BTreeMap<RequestId, Vec<(WantedRow, LogitRow<'a>)>> = BTreeMap::new();
    for (wanted, logits) in rows {
        rows_of.entry(wanted.id.request).or_default().push((wanted, logits));
    }
    let mut all_rows: Vec<JobRows<'a>> = jobs
        .iter_mut()
        .filter_map(|(&id, job)| {
            let rows = rows_of.remove(&id)?;
            Some(JobRows { id, job, rows, results: Vec::new() })
        })
        .collect();
    all_rows.sort_by_key(|job_rows| job_rows.rows.first().map(|(wanted, _)| wanted.row));
    let take = |job_rows: &mut JobRows<'a>| job_rows.take(token_ids, observer);
    let n_logits: usize =
        all_rows.iter().flat_map(|job_rows| &job_rows.rows).map(|(_, logits)| logits.n_logits()).sum();
    if n_logits < MIN_PARALLEL_LOGITS {
        all_rows.iter_mut().for_each(take)
    } else {
        ops::parallel_for_each(&mut all_rows, take)
    }
    all_rows.into_iter().map(|job_rows| (job_rows.id, job_rows.results)).collect()
}

impl JobRows<'_> {
    fn take(&mut self, token_ids: &[TokenId], observer: &dyn Observer) {
        for (wanted, logits) in &self.rows {
            // A row whose input token differs from the sampled token, or that follows such a row, belongs to a rejected
            // draft.
            let known = self.job.token_ids(wanted.id.branch).get(wanted.position);
            if known.is_none() || known != token_ids.get(wanted.row).copied() {
                continue;
            }
            let place = (wanted.id.branch, wanted.position);
            let forks = self.job.take_forks(wanted.position);
            let progress = self.job.advance(place, logits, observer);
            let forks = forks.into_iter().map(|mut fork| {
                let progress = fork.advance(place, logits, observer);
                (fork, progress)
            });
            let forks = forks.collect();
            // Otherwise the request has ended, has failed or is held.
            let continues = matches!(progress, Ok(Progress::Nothing | Progress::Token(_) | Progress::Branches(_)));
            self.results.push(RowResult { is_draft: wanted.is_draft, progress, forks });
            if !continues {
                return;
            }
        }
    }
}
