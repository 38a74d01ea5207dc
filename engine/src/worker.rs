//! The inference thread. It owns the device, the model and the cache; other threads use its channel.
//!
//! Its main function is [`Worker::step`]: `schedule` selects the tokens, `compute` runs the model, `advance` converts
//! logits to tokens and events.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use hearth_model::{
    Result, TokenId,
    decode::{
        model_runner::{ModelRunner, StepOutput},
        sampling::LogitDemand,
    },
    gpt::kv_cache::StepPart,
};

use crate::{
    cache_changes,
    event::Failure,
    event_senders::Progress,
    job::Job,
    observer::Observer,
    outcome::Outcome,
    sample_step::{RowResult, WantedRow, sample_step},
    scheduler::{RequestId, Scheduler, SequenceId, Step},
    speculation::{ComputedRows, Decoding, DraftResult, Drafts, Speculator},
    startup::Compute,
    stats::{EngineState, EngineStats},
    stats_publisher::StatsPublisher,
    work_clock::{RunningWork, WorkClock},
};

/// Number of rows of logits in host memory at once. A row has the whole vocabulary, so this limits the memory of
/// requests for the log-probabilities of a long prompt.
const LOGIT_ROWS: usize = 64;

/// Maximum time that a step waits for held requests.
const GRACE: Duration = Duration::from_millis(1);
/// Interval for polling held requests.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// A command from another thread to the worker.
#[derive(Debug)]
pub(crate) enum Command {
    Run(Vec<Job>),
    Stop,
}

#[derive(Debug)]
pub(crate) struct Worker {
    commands: Receiver<Command>,
    stats: StatsPublisher,
    observer: Arc<dyn Observer>,
    work_clock: WorkClock,
    scheduler: Scheduler,
    runner: ModelRunner,
    speculator: Option<Speculator>,
    jobs: BTreeMap<RequestId, Job>,
    n_accepted: u64,
    held: Held,
}

/// Requests that wait for their grammar to process a token, which may take longer than a step.
#[derive(Debug, Default)]
struct Held {
    requests: BTreeMap<RequestId, RunningWork>,
    /// The next step waits for these requests until this time.
    grace: Option<Instant>,
    /// Whether no other request could run in the last step.
    is_all: bool,
}

impl Worker {
    /// A worker without requests; publishes the size of the cache.
    pub(crate) fn new(
        compute: Compute,
        commands: Receiver<Command>,
        stats: StatsPublisher,
        observer: Arc<dyn Observer>,
        work_clock: WorkClock,
    ) -> Self {
        let Compute { runner, kv_dtype, speculator, limits } = compute;
        let pool = runner.cache().pool().clone();
        if observer.follows_cache() {
            pool.record_changes();
        }
        stats.update(|stats| {
            (stats.free_pages, stats.n_pages, stats.kv_dtype) = (pool.n_free(), pool.n_pages(), kv_dtype);
        });
        Self {
            commands,
            stats,
            observer,
            work_clock,
            scheduler: Scheduler::new(limits, pool),
            runner,
            speculator,
            jobs: BTreeMap::new(),
            n_accepted: 0,
            held: Held::default(),
        }
    }

    /// Serves until the engine is stopped or a step fails, then ends all requests.
    pub(crate) fn run(mut self) {
        let state = loop {
            // A panic must not leave clients waiting.
            match catch_unwind(AssertUnwindSafe(|| self.serve_step())) {
                Ok(Ok(())) => {}
                Ok(Err(state)) => break state,
                Err(panic) => {
                    break EngineState::Failed(format!("inference panicked: {}", panic_message(panic.as_ref())));
                }
            }
        };
        let failure = match &state {
            EngineState::Failed(what) => {
                tracing::error!(requests = self.jobs.len(), "inference failed, requests in flight end: {what}");
                Failure::Failed(format!("inference failed: {what}"))
            }
            EngineState::Running | EngineState::Stopped => Failure::Stopped,
        };
        // Set before the channel is emptied: from now on requests are rejected, and those sent earlier are ended below.
        // Also set before anything that may panic after a failure.
        self.stats.update(|stats| stats.state = state);
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            self.fail(id, &failure);
        }
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Run(jobs) = command {
                jobs.iter().for_each(|job| job.fail(&failure));
            }
        }
        self.stats.update(|stats| {
            (stats.running, stats.waiting, stats.free_pages) = (0, 0, self.runner.cache().pool().n_free());
            stats.running_adapters.clear();
            stats.waiting_adapters.clear();
        });
    }

    /// Serves one step. If the engine ends, the error is its new state.
    pub(crate) fn serve_step(&mut self) -> std::result::Result<(), EngineState> {
        self.receive()?;
        self.drop_cancelled();
        let work = self.work_clock.start("a step of the model");
        let stepped = self.step();
        drop(work);
        // After an error, the device's state is unknown.
        stepped.map_err(|error| EngineState::Failed(error.to_string()))?;
        self.publish();
        Ok(())
    }

    /// Accepts all commands that have arrived; waits for one while no request can run. Errors when all engine handles
    /// are gone or stop was requested.
    fn receive(&mut self) -> std::result::Result<(), EngineState> {
        if self.jobs.is_empty() {
            let command = self.commands.recv().map_err(|_| EngineState::Stopped)?;
            self.accept(command)?;
        } else if self.held.is_all {
            match self.commands.recv_timeout(GRACE) {
                Ok(command) => self.accept(command)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(EngineState::Stopped),
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.accept(command)?,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(EngineState::Stopped),
            }
        }
    }

    fn accept(&mut self, command: Command) -> std::result::Result<(), EngineState> {
        match command {
            Command::Stop => Err(EngineState::Stopped),
            Command::Run(jobs) => {
                self.add(jobs);
                Ok(())
            }
        }
    }

    /// Adds requests, which the next steps serve.
    pub(crate) fn add(&mut self, jobs: Vec<Job>) {
        for mut job in jobs {
            let id = self.next_id();
            self.scheduler.add(id, job.arrival());
            self.jobs.insert(id, job);
        }
    }

    /// Whether there are no requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    fn next_id(&mut self) -> RequestId {
        self.n_accepted += 1;
        RequestId(self.n_accepted)
    }

    /// Ends requests whose client has disconnected or whose deadline has passed.
    pub(crate) fn drop_cancelled(&mut self) {
        let now = Instant::now();
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            if self.jobs.get(&id).is_some_and(Job::is_cancelled) {
                tracing::debug!(request = id.0, "cancelled: the client has gone");
                self.abandon(id, Outcome::Abort);
            } else {
                self.drop_if_late(id, now);
            }
        }
    }

    /// Ends a request whose deadline has passed; returns whether it did.
    fn drop_if_late(&mut self, id: RequestId, now: Instant) -> bool {
        let missed = self.jobs.get(&id).and_then(|job| job.missed_deadline(now));
        if let Some(deadline) = missed {
            self.fail(id, &Failure::TimedOut(deadline));
        }
        missed.is_some()
    }

    fn step(&mut self) -> Result<()> {
        self.poll_held();
        let mut step = self.scheduler.schedule();
        self.held.is_all = step.chunks.is_empty();
        if step.chunks.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let drafts = self.draft(&mut step)?;
        let token_ids = self.token_ids(&step, &drafts);
        let output = self.compute(&step, &token_ids)?;
        let n_accepted = self.advance(&step, &token_ids, &output)?;
        self.follow(&step, &output)?;
        self.scheduler.roll_back(&step);
        self.report_cache(&step);
        self.record_drafts(&step, &drafts, &n_accepted, started);
        Ok(())
    }

    /// Releases held requests whose grammar is ready. Waits up to [`GRACE`] for requests that were just held.
    fn poll_held(&mut self) {
        loop {
            let ready = self.held.requests.keys().filter_map(|&id| Some((id, self.jobs.get_mut(&id)?.poll_held()?)));
            for (id, progress) in ready.collect::<Vec<_>>() {
                self.held.requests.remove(&id);
                self.record(id, progress);
            }
            if self.held.requests.is_empty() || self.held.grace.is_none_or(|grace| Instant::now() >= grace) {
                self.held.grace = None;
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Drafts tokens for decoding sequences, and adds them to the step.
    fn draft(&mut self, step: &mut Step) -> Result<Drafts> {
        let Some(speculator) = &mut self.speculator else { return Ok(Drafts::new()) };
        let decoding: BTreeSet<RequestId> =
            step.chunks.iter().filter(|chunk| chunk.may_have_drafts()).map(|chunk| chunk.id.request).collect();
        let decoding = self.jobs.iter_mut().filter(|(id, _)| decoding.contains(id));
        let sequences = decoding.filter_map(|(&id, job)| Some(Decoding { id, sequence: job.sequence_mut()? }));
        let drafts = speculator.draft(sequences.collect(), self.scheduler.room(step))?;
        self.scheduler.add_drafts(step, |id| drafts.get(&id.request).map_or(0, |draft| draft.token_ids.len()));
        Ok(drafts)
    }

    /// The tokens of a step's rows.
    fn token_ids(&self, step: &Step, drafts: &Drafts) -> Vec<TokenId> {
        let mut token_ids = Vec::new();
        for chunk in &step.chunks {
            if let Some(job) = self.jobs.get(&chunk.id.request) {
                token_ids.extend(job.token_ids(chunk.id.branch).range(chunk.start..chunk.known_end()));
            }
            if let Some(draft) = drafts.get(&chunk.id.request) {
                token_ids.extend(draft.token_ids.iter().take(chunk.n_drafts));
            }
        }
        token_ids
    }

    fn compute(&mut self, step: &Step, token_ids: &[TokenId]) -> Result<StepOutput> {
        for chunk in &step.chunks {
            if let Some(job) = self.jobs.get_mut(&chunk.id.request) {
                job.started(self.scheduler.n_cached(chunk.id.request).unwrap_or(0), &*self.observer);
            }
        }
        let tables = self.scheduler.tables(step);
        let parts = step.chunks.iter().zip(tables).map(|(chunk, table)| {
            let job = self.jobs.get(&chunk.id.request);
            let adapter = job.and_then(|job| job.adapter().cloned());
            let second_text = job.and_then(|job| job.request().parts().second_text);
            let n_hidden = job.map_or(0, |job| job.request().parts().n_hidden);
            let source_len = job.map_or(0, |job| job.request().parts().source_ids.len());
            StepPart { table, n_new: chunk.n_tokens, adapter, second_text, n_hidden, source_len }
        });
        self.runner.step(token_ids, &mut parts.collect::<Vec<_>>())
    }

    /// Passes the logits of all wanted rows to their requests. Returns the number of accepted draft tokens by request,
    /// except for requests whose deadline has passed: their drafts were not verified, or only partly.
    fn advance(
        &mut self,
        step: &Step,
        token_ids: &[TokenId],
        output: &StepOutput,
    ) -> Result<HashMap<RequestId, usize>> {
        let mut n_accepted = HashMap::new();
        self.scheduler.advance(step);
        // Before any of its sequences end.
        self.report_cache(step);
        let n_tokens = step.chunks.iter().map(|chunk| chunk.n_tokens).sum();
        self.observer.step(n_tokens, self.scheduler.totals());
        self.pool(step, output)?;
        for rows in pieces(&self.wanted_rows(step)) {
            let indices: Vec<usize> = rows.iter().map(|wanted| wanted.row).collect();
            let needs: Vec<LogitDemand> = rows.iter().map(|wanted| self.needs(wanted, token_ids)).collect();
            let logits = self.runner.read_logits(output, &indices, &needs)?;
            // A step may take long: requests whose deadline passed meanwhile get no token from it.
            let now = Instant::now();
            for wanted in rows {
                if self.drop_if_late(wanted.id.request, now) {
                    n_accepted.remove(&wanted.id.request);
                }
            }
            let rows = rows.iter().copied().zip(logits.iter());
            for (id, outcomes) in sample_step(&mut self.jobs, rows, token_ids, &*self.observer) {
                *n_accepted.entry(id).or_default() += outcomes.iter().filter(|outcome| outcome.is_draft).count();
                for RowResult { progress, forks, .. } in outcomes {
                    // Before the parent ends, because they share its pages.
                    let forks: Vec<_> =
                        forks.into_iter().map(|(fork, progress)| (self.fork(id, fork), progress)).collect();
                    self.record(id, progress);
                    forks.into_iter().for_each(|(id, progress)| self.record(id, progress));
                }
            }
            self.jobs.values_mut().for_each(Job::send_events);
        }
        Ok(n_accepted)
    }

    /// Reports what the step has changed in the prefix cache so far, if somebody follows that.
    fn report_cache(&self, step: &Step) {
        let changes = self.runner.cache().pool().take_changes();
        if !changes.is_empty() {
            self.observer.cache_changed(&cache_changes::of_step(changes, step, &self.scheduler, &self.jobs));
        }
    }

    /// Passes the hidden states of the step's rows to a speculator that drafts from them.
    fn follow(&mut self, step: &Step, output: &StepOutput) -> Result<()> {
        let Some(speculator) = self.speculator.as_mut().filter(|speculator| speculator.follows()) else {
            return Ok(());
        };
        let mut n_rows = 0;
        let mut computed = Vec::new();
        for chunk in &step.chunks {
            let rows = n_rows..n_rows + chunk.n_tokens;
            n_rows = rows.end;
            let id = chunk.id.request;
            // Some have ended in this step.
            if let Some(sequence) = self.jobs.get(&id).and_then(Job::sequence) {
                computed.push(ComputedRows { id, sequence, start: chunk.start, rows });
            }
        }
        let all: Vec<usize> = (0..n_rows).collect();
        speculator.follow(computed, &self.runner.hidden(output, &all))
    }

    /// The part of a row's logits that its request needs, however many of the draft tokens before it are accepted.
    fn needs(&self, wanted: &WantedRow, token_ids: &[TokenId]) -> LogitDemand {
        if !self.runner.reads_parts() {
            return LogitDemand::Whole;
        }
        let Some(job) = self.jobs.get(&wanted.id.request) else { return LogitDemand::Whole };
        let n_ahead = (wanted.position + 1).saturating_sub(job.token_ids(wanted.id.branch).len());
        let ahead = token_ids.get((wanted.row + 1).saturating_sub(n_ahead)..=wanted.row).unwrap_or_default();
        job.needs(wanted.position, ahead)
    }

    /// Passes the acceptance and the duration of drafts to the speculator.
    fn record_drafts(
        &mut self,
        step: &Step,
        drafts: &Drafts,
        n_accepted: &HashMap<RequestId, usize>,
        started: Instant,
    ) {
        let Some(speculator) = &mut self.speculator else { return };
        for chunk in step.chunks.iter().filter(|chunk| chunk.predicts) {
            let id = chunk.id.request;
            let (Some(draft), Some(&n_accepted)) = (drafts.get(&id), n_accepted.get(&id)) else { continue };
            let outcome = DraftResult { id, n_known: chunk.known_end(), n_verified: chunk.n_drafts, n_accepted };
            let sequence = self.jobs.get_mut(&id).and_then(Job::sequence_mut);
            speculator.record_acceptance(sequence, draft, &outcome);
            self.observer.drafted(outcome.n_verified, outcome.n_accepted);
        }
        let n_drafts: usize = step.chunks.iter().map(|chunk| chunk.n_drafts).sum();
        if speculator.is_steady() && step.chunks.iter().all(|chunk| chunk.n_tokens - chunk.n_drafts == 1) {
            speculator.record_step_time(started.elapsed(), n_drafts);
        }
    }

    /// Passes the hidden states of embedding requests to them.
    fn pool(&mut self, step: &Step, output: &StepOutput) -> Result<()> {
        let mut first_row = 0;
        for chunk in &step.chunks {
            let rows = first_row..first_row + chunk.n_tokens;
            first_row = rows.end;
            let id = chunk.id.request;
            if !self.jobs.get(&id).is_some_and(Job::wants_hidden) {
                continue;
            }
            let states = self.runner.read_hidden(output, rows)?;
            self.drop_if_late(id, Instant::now());
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let progress = job.pool(chunk.start, &states, self.runner.gpt().config().d_model);
            self.record(id, progress);
        }
        Ok(())
    }

    /// The rows whose logits are needed.
    fn wanted_rows(&self, step: &Step) -> Vec<WantedRow> {
        let mut wanted = Vec::new();
        let mut first_row = 0;
        for chunk in &step.chunks {
            let start = first_row;
            first_row += chunk.n_tokens;
            // An embedding that this step has completed is already removed.
            let Some(job) = self.jobs.get(&chunk.id.request) else { continue };
            let predicts = chunk.predicts && !job.wants_hidden();
            for offset in 0..chunk.n_tokens {
                let position = chunk.start + offset;
                let predicts = predicts && position + 1 >= chunk.known_end();
                if predicts || job.wants_prompt_row(position) {
                    let is_draft = position >= chunk.known_end();
                    wanted.push(WantedRow { row: start + offset, id: chunk.id, position, is_draft });
                }
            }
        }
        wanted
    }

    /// Adds another answer to the prompt of `parent`.
    fn fork(&mut self, parent: RequestId, fork: Job) -> RequestId {
        let id = self.next_id();
        self.scheduler.fork(parent, id);
        self.jobs.insert(id, fork);
        id
    }

    /// Records the effect of a row on its request.
    fn record(&mut self, id: RequestId, progress: Result<Progress>) {
        match progress {
            Ok(Progress::Nothing) => {}
            Ok(Progress::Token(key)) => self.scheduler.push_token(SequenceId { request: id, branch: 0 }, key),
            Ok(Progress::Held(key)) => {
                self.scheduler.push_token(SequenceId { request: id, branch: 0 }, key);
                self.scheduler.hold(id);
                self.held.requests.insert(id, self.work_clock.start("the grammar of an answer"));
                self.held.grace = Instant::now().checked_add(GRACE);
            }
            Ok(Progress::Resumed) => self.scheduler.release(id),
            Ok(Progress::Branches(parents)) => self.scheduler.branch(id, &parents),
            Ok(Progress::Ended(answers)) => {
                self.end(id, answers.into_iter().map(|(reason, n_tokens)| (reason.into(), n_tokens)));
            }
            Err(error) => self.fail(id, &Failure::from(&error)),
        }
    }

    /// Ends a request with a failure, which its client receives.
    fn fail(&mut self, id: RequestId, failure: &Failure) {
        if let Some(job) = self.abandon(id, failure.into()) {
            job.fail(failure);
        }
    }

    /// Ends a request with unfinished answers.
    fn abandon(&mut self, id: RequestId, outcome: Outcome) -> Option<Job> {
        let n_tokens = self.jobs.get(&id).map(Job::n_tokens_by_answer).unwrap_or_default();
        self.end(id, n_tokens.into_iter().map(|n_tokens| (outcome, n_tokens)))
    }

    /// Counts the ends of a request's answers, each with its number of tokens, sends its events, and removes it.
    fn end(&mut self, id: RequestId, ends: impl IntoIterator<Item = (Outcome, usize)>) -> Option<Job> {
        let mut removed = self.jobs.remove(&id);
        if let Some(job) = &mut removed {
            ends.into_iter().for_each(|(outcome, n_tokens)| job.count_end(outcome, n_tokens, &*self.observer));
            job.send_events();
        }
        self.scheduler.remove(id);
        self.held.requests.remove(&id);
        if let Some(speculator) = &mut self.speculator {
            speculator.forget(id);
        }
        removed
    }

    fn publish(&self) {
        let running = self.scheduler.n_places_taken();
        let waiting = self.scheduler.n_waiting() + self.jobs.values().map(Job::n_forks).sum::<usize>();
        let free_pages = self.runner.cache().pool().n_free();
        let [running_adapters, waiting_adapters] = self.scheduler.adapters();
        self.stats.update(|stats| {
            *stats = EngineStats { running, waiting, free_pages, running_adapters, waiting_adapters, ..stats.clone() };
        });
    }
}

/// Cuts rows into pieces of at most [`LOGIT_ROWS`]. Drafts stay with the row before them: if its token holds the sequence,
/// they must not be processed before the grammar is ready.
fn pieces(mut rows: &[WantedRow]) -> Vec<&[WantedRow]> {
    let mut pieces = Vec::new();
    while !rows.is_empty() {
        let mut end = rows.len().min(LOGIT_ROWS);
        while end > 1 && rows.get(end).is_some_and(|row| row.is_draft) {
            end -= 1;
        }
        let (piece, rest) = rows.split_at(end);
        pieces.push(piece);
        rows = rest;
    }
    pieces
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_rows_never_begin_with_a_draft() {
        let row = |row: usize, is_draft: bool| {
            let id = SequenceId { request: RequestId(0), branch: 0 };
            WantedRow { row, id, position: row, is_draft }
        };
        // Every 17th row is a token, and the others are its drafts.
        let drafted: Vec<_> = (0..200).map(|at| row(at, at % 17 != 0)).collect();
        let lengths = |rows: &[WantedRow]| pieces(rows).iter().map(|piece| piece.len()).collect::<Vec<_>>();
        assert_eq!(lengths(&drafted), [51, 51, 51, 47]);
        assert_eq!(pieces(&drafted).concat().iter().map(|row| row.row).collect::<Vec<_>>(), Vec::from_iter(0..200));
        let plain: Vec<_> = (0..130).map(|at| row(at, false)).collect();
        assert_eq!(lengths(&plain), [LOGIT_ROWS, LOGIT_ROWS, 2]);
        assert!(pieces(&[]).is_empty());
    }
}
