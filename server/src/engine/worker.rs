//! The one inference thread. It owns the device, the model and the cache; all else reaches it through its channel.
//!
//! Its spine is [`Worker::step`]: `schedule` decides, `run` computes, `advance` turns logits into tokens and events.

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

use hearth_model::{Error, Result, TokenId, sampling::RowNeeds};
use tokio::sync::watch;

use super::{
    Command, EngineState, EngineStats, Event,
    beams::BeamProgress,
    generation::Generation,
    runner::{Hidden, Input, Runner},
    scheduler::{RequestId, Scheduler, SequenceId, Step},
    sequence::Progress,
    speculation::{Decoding, Drafts, Outcome as DraftOutcome, Speculator},
    turn::{Outcome, RowProgress, WantedRow, take_turns},
};
use crate::metrics::{self, EngineMetrics};

/// Rows whose logits are on the host at once. A row is the whole vocabulary, so this bounds the memory of requests
/// that want the log-probabilities of a long prompt.
const LOGIT_ROWS: usize = 64;

/// How long a step waits for requests that are held, which may be settled just in time for it.
const GRACE: Duration = Duration::from_millis(1);
/// Time between two looks at them.
const LOOK: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) commands: Receiver<Command>,
    pub(crate) stats: watch::Sender<EngineStats>,
    pub(crate) metrics: Arc<EngineMetrics>,
    pub(crate) scheduler: Scheduler,
    pub(crate) runner: Runner,
    pub(crate) speculator: Option<Speculator>,
    pub(crate) generations: BTreeMap<RequestId, Generation>,
    pub(crate) n_accepted: u64,
    pub(crate) held: Held,
}

/// Requests that wait for their grammar, which takes more time than a step may wait for.
#[derive(Debug, Default)]
pub(crate) struct Held {
    requests: BTreeSet<RequestId>,
    /// Until when the next step waits for them.
    grace: Option<Instant>,
    /// Whether there was nothing else to do.
    is_all: bool,
}

/// Why the thread ends.
enum End {
    /// The engine's owner asked for it, or has gone.
    Stopped,
    /// A step failed: nobody can tell what state the device is in.
    Failed(String),
}

impl Worker {
    /// Serves until the engine is stopped or a step fails. Whoever still waits for an answer then is told.
    pub(crate) fn run(mut self) {
        let end = loop {
            if let Err(end) = self.receive() {
                break end;
            }
            self.drop_cancelled();
            // A panic in an operation must not leave clients waiting for events that never come.
            match catch_unwind(AssertUnwindSafe(|| self.step())) {
                Ok(Ok(())) => self.publish(EngineState::Running),
                Ok(Err(error)) => break End::Failed(error.to_string()),
                Err(panic) => break End::Failed(format!("inference panicked: {}", panic_message(panic.as_ref()))),
            }
        };
        let (state, event) = match end {
            End::Stopped => (EngineState::Stopped, Event::Stopped),
            End::Failed(what) => {
                tracing::error!(requests = self.generations.len(), "inference failed, requests in flight end: {what}");
                (EngineState::Failed(what.clone()), Event::Failed(format!("inference failed: {what}")))
            }
        };
        // The state first: a request that arrives now is refused, or is in the channel and told below.
        self.publish(state);
        for id in self.generations.keys().copied().collect::<Vec<_>>() {
            self.end(id, &event, metrics::Outcome::Error);
        }
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Generate(generations) = command {
                generations.iter().for_each(|generation| generation.end_with(&event));
            }
        }
        self.stats.send_modify(|stats| {
            (stats.running, stats.waiting, stats.free_pages) = (0, 0, self.runner.pool().n_free());
        });
    }

    /// Takes in what has arrived; waits for something while there is nothing to do.
    fn receive(&mut self) -> std::result::Result<(), End> {
        if self.generations.is_empty() {
            let command = self.commands.recv().map_err(|_| End::Stopped)?;
            self.accept(command)?;
        } else if self.held.is_all {
            match self.commands.recv_timeout(GRACE) {
                Ok(command) => self.accept(command)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(End::Stopped),
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.accept(command)?,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(End::Stopped),
            }
        }
    }

    fn accept(&mut self, command: Command) -> std::result::Result<(), End> {
        match command {
            Command::Stop => Err(End::Stopped),
            Command::Generate(generations) => {
                for mut generation in generations {
                    let id = self.next_id();
                    self.scheduler.add(id, generation.arrival());
                    self.generations.insert(id, generation);
                }
                Ok(())
            }
        }
    }

    fn next_id(&mut self) -> RequestId {
        self.n_accepted += 1;
        RequestId(self.n_accepted)
    }

    /// Ends requests whose client has gone or whose time is up, wherever they are.
    fn drop_cancelled(&mut self) {
        let now = Instant::now();
        let mut gone = Vec::new();
        for (&id, generation) in &mut self.generations {
            if generation.is_cancelled() {
                tracing::debug!(request = id.0, "cancelled: the client has gone");
                gone.push((id, None));
            } else if generation.is_late(now) {
                gone.push((id, generation.deadline()));
            }
        }
        for (id, deadline) in gone {
            match deadline {
                Some(deadline) => self.end(id, &Event::TimedOut(deadline), metrics::Outcome::Abort),
                None => self.forget(id, metrics::Outcome::Abort),
            }
        }
    }

    fn step(&mut self) -> Result<()> {
        self.settle();
        let mut step = self.scheduler.schedule();
        self.held.is_all = step.chunks.is_empty();
        if step.chunks.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let drafts = self.draft(&mut step)?;
        let token_ids = self.token_ids(&step, &drafts);
        let hidden = self.compute(&step, &token_ids)?;
        let n_accepted = self.advance(&step, &token_ids, &hidden)?;
        self.scheduler.roll_back(&step);
        self.learn(&step, &drafts, &n_accepted, started);
        Ok(())
    }

    /// Lets go of those who are held and whose grammar is ready. Waits for that a moment after they were held.
    fn settle(&mut self) {
        loop {
            let settled = self.held.requests.iter().filter_map(|&id| match self.generations.get_mut(&id) {
                Some(Generation::Sequence(sequence)) => sequence.settle().map(|progress| (id, progress)),
                _ => None,
            });
            for (id, progress) in settled.collect::<Vec<_>>() {
                self.held.requests.remove(&id);
                self.record_sequence(id, progress);
            }
            if self.held.requests.is_empty() || self.held.grace.is_none_or(|grace| Instant::now() >= grace) {
                self.held.grace = None;
                return;
            }
            thread::sleep(LOOK);
        }
    }

    /// Guesses at what follows the sequences that decode, and room for them in the step.
    fn draft(&mut self, step: &mut Step) -> Result<Drafts> {
        let Some(speculator) = &mut self.speculator else { return Ok(Drafts::new()) };
        let decoding: BTreeSet<RequestId> = step
            .chunks
            .iter()
            .filter(|chunk| chunk.n_tokens == 1 && chunk.predicts)
            .map(|chunk| chunk.id.request)
            .collect();
        let sequences = self.generations.iter_mut().filter_map(|(&id, generation)| match generation {
            Generation::Sequence(sequence) if decoding.contains(&id) => Some(Decoding { id, sequence }),
            _ => None,
        });
        let drafts = speculator.draft(sequences.collect(), self.scheduler.room(step))?;
        self.scheduler.add_drafts(step, |id| drafts.get(&id.request).map_or(0, |draft| draft.token_ids.len()));
        Ok(drafts)
    }

    /// The tokens of a step's rows.
    fn token_ids(&self, step: &Step, drafts: &Drafts) -> Vec<TokenId> {
        let mut token_ids = Vec::new();
        for chunk in &step.chunks {
            let known = self.generations.get(&chunk.id.request).map(|generation| generation.chunk(chunk));
            token_ids.extend(known.into_iter().flatten());
            if let Some(draft) = drafts.get(&chunk.id.request) {
                token_ids.extend(draft.token_ids.iter().take(chunk.n_drafts));
            }
        }
        token_ids
    }

    fn compute(&mut self, step: &Step, token_ids: &[TokenId]) -> Result<Hidden> {
        for chunk in &step.chunks {
            if let Some(generation) = self.generations.get_mut(&chunk.id.request) {
                generation.started(self.scheduler.n_cached(chunk.id.request).unwrap_or(0));
                let n_prompt = generation.n_prompt();
                self.metrics.started(generation.timeline(), n_prompt);
            }
        }
        let tables = self.scheduler.tables(step);
        let mut rest = token_ids;
        let inputs = step.chunks.iter().zip(tables).map(|(chunk, table)| {
            let (token_ids, others) = rest.split_at(chunk.n_tokens.min(rest.len()));
            rest = others;
            Input { table, token_ids }
        });
        self.runner.run(inputs.collect())
    }

    /// Hands each wanted row's logits to its request. Gives the number of guesses that came true, by request.
    fn advance(&mut self, step: &Step, token_ids: &[TokenId], hidden: &Hidden) -> Result<HashMap<RequestId, usize>> {
        let mut n_accepted = HashMap::new();
        self.scheduler.advance(step);
        let n_tokens = step.chunks.iter().map(|chunk| chunk.n_tokens).sum();
        self.metrics.step(n_tokens, self.scheduler.totals());
        self.pool(step, hidden)?;
        for rows in self.wanted_rows(step).chunks(LOGIT_ROWS) {
            let indices: Vec<usize> = rows.iter().map(|wanted| wanted.row).collect();
            let needs: Vec<RowNeeds> = rows.iter().map(|wanted| self.needs(wanted, token_ids)).collect();
            let logits = self.runner.logits(hidden, &indices, &needs)?;
            let rows = rows.iter().copied().zip(logits.iter());
            for (id, outcomes) in take_turns(&mut self.generations, rows, token_ids, &self.metrics) {
                for Outcome { is_guess, progress } in outcomes {
                    if is_guess {
                        *n_accepted.entry(id).or_default() += 1;
                    }
                    self.record(id, progress);
                }
            }
        }
        Ok(n_accepted)
    }

    /// What its request needs of a row's logits, whichever of the guesses before it come true.
    fn needs(&self, wanted: &WantedRow, token_ids: &[TokenId]) -> RowNeeds {
        if !self.runner.reads_parts() {
            return RowNeeds::Whole;
        }
        let Some(generation) = self.generations.get(&wanted.id.request) else { return RowNeeds::Whole };
        let n_ahead = (wanted.position + 1).saturating_sub(generation.token_ids(wanted.id.branch).len());
        let ahead = token_ids.get((wanted.row + 1).saturating_sub(n_ahead)..=wanted.row).unwrap_or_default();
        generation.needs(wanted.position, ahead)
    }

    /// Tells the speculator what became of its guesses and of the time that they took.
    fn learn(&mut self, step: &Step, drafts: &Drafts, n_accepted: &HashMap<RequestId, usize>, started: Instant) {
        let Some(speculator) = &mut self.speculator else { return };
        for chunk in step.chunks.iter().filter(|chunk| chunk.predicts && chunk.n_tokens - chunk.n_drafts == 1) {
            let id = chunk.id.request;
            let Some(draft) = drafts.get(&id) else { continue };
            let outcome = DraftOutcome {
                id,
                n_known: chunk.known_end(),
                n_verified: chunk.n_drafts,
                n_accepted: n_accepted.get(&id).copied().unwrap_or(0),
            };
            let sequence = match self.generations.get_mut(&id) {
                Some(Generation::Sequence(sequence)) => Some(sequence.as_mut()),
                _ => None,
            };
            speculator.learn(sequence, draft, &outcome);
            self.metrics.drafted(outcome.n_verified, outcome.n_accepted);
        }
        let n_guesses: usize = step.chunks.iter().map(|chunk| chunk.n_drafts).sum();
        if speculator.is_steady() && step.chunks.iter().all(|chunk| chunk.n_tokens - chunk.n_drafts == 1) {
            speculator.took(started.elapsed(), n_guesses);
        }
    }

    /// Hands each embedding request the hidden states of its rows.
    fn pool(&mut self, step: &Step, hidden: &Hidden) -> Result<()> {
        let mut first_row = 0;
        for chunk in &step.chunks {
            let rows = first_row..first_row + chunk.n_tokens;
            first_row = rows.end;
            let id = chunk.id.request;
            let Some(Generation::Embedding(embedding)) = self.generations.get_mut(&id) else { continue };
            let states = self.runner.hidden_rows(hidden, rows)?;
            match embedding.advance(chunk.start, &states, self.runner.d_model()) {
                Ok(false) => {}
                Ok(true) => self.forget(id, metrics::Outcome::Stop),
                Err(error) => self.end_failed(id, &error),
            }
        }
        Ok(())
    }

    fn wanted_rows(&self, step: &Step) -> Vec<WantedRow> {
        let mut wanted = Vec::new();
        let mut first_row = 0;
        for chunk in &step.chunks {
            let start = first_row;
            first_row += chunk.n_tokens;
            // An embedding that this step has finished is gone.
            let Some(generation) = self.generations.get(&chunk.id.request) else { continue };
            let predicts = chunk.predicts && generation.wants_next_token();
            for offset in 0..chunk.n_tokens {
                let position = chunk.start + offset;
                let predicts = predicts && position + 1 >= chunk.known_end();
                if predicts || generation.wants_prompt_row(position) {
                    let is_guess = position >= chunk.known_end();
                    wanted.push(WantedRow { row: start + offset, id: chunk.id, position, is_guess });
                }
            }
        }
        wanted
    }

    /// Takes note of what became of a request by a row.
    fn record(&mut self, id: RequestId, progress: RowProgress) {
        match progress {
            RowProgress::Sequence { own, forks } => {
                let mut forked = Vec::new();
                for (fork, progress) in forks {
                    let child = self.next_id();
                    self.scheduler.fork(id, child);
                    self.generations.insert(child, Generation::Sequence(Box::new(fork)));
                    forked.push((child, progress));
                }
                for (id, progress) in std::iter::once((id, own)).chain(forked) {
                    self.record_sequence(id, progress);
                }
            }
            RowProgress::Beams(progress) => self.record_beams(id, progress),
        }
    }

    fn record_sequence(&mut self, id: RequestId, progress: Result<Progress>) {
        match progress {
            Ok(Progress::PromptRow) => {}
            Ok(Progress::Token(key)) => self.scheduler.push_token(SequenceId { request: id, branch: 0 }, key),
            Ok(Progress::Held(key)) => {
                self.scheduler.push_token(SequenceId { request: id, branch: 0 }, key);
                self.scheduler.hold(id, true);
                self.held.requests.insert(id);
                self.held.grace = Instant::now().checked_add(GRACE);
            }
            Ok(Progress::GoesOn) => self.scheduler.hold(id, false),
            Ok(Progress::Ended(reason)) => self.forget(id, reason.into()),
            Err(error) => self.end_failed(id, &error),
        }
    }

    fn record_beams(&mut self, id: RequestId, progress: Result<BeamProgress>) {
        match progress {
            Ok(BeamProgress::Waits) => {}
            Ok(BeamProgress::Goes(parents)) => self.scheduler.branch(id, &parents),
            Ok(BeamProgress::Ended(answers)) => {
                if let Some(Generation::Beams(beams)) = self.generations.get_mut(&id) {
                    for &(reason, n_tokens) in &answers {
                        (0..n_tokens).for_each(|_| self.metrics.token(&mut beams.timeline));
                        self.metrics.ended(&beams.timeline, reason.into(), n_tokens);
                    }
                }
                self.drop_request(id);
            }
            Err(error) => self.end_failed(id, &error),
        }
    }

    fn end_failed(&mut self, id: RequestId, error: &Error) {
        let event = match error {
            Error::Param { name, .. } => Event::Refused { param: name, message: error.to_string() },
            error => Event::Failed(error.to_string()),
        };
        self.end(id, &event, metrics::Outcome::Error);
    }

    /// Ends a request with an event that its client gets to see.
    fn end(&mut self, id: RequestId, event: &Event, outcome: metrics::Outcome) {
        if let Some(generation) = self.generations.get(&id) {
            generation.end_with(event);
        }
        self.forget(id, outcome);
    }

    /// Counts a request's end; its events are out.
    fn forget(&mut self, id: RequestId, outcome: metrics::Outcome) {
        if let Some(generation) = self.generations.get_mut(&id) {
            let n_tokens = generation.n_completion();
            self.metrics.ended(generation.timeline(), outcome, n_tokens);
        }
        self.drop_request(id);
    }

    fn drop_request(&mut self, id: RequestId) {
        self.scheduler.remove(id);
        self.generations.remove(&id);
        self.held.requests.remove(&id);
        if let Some(speculator) = &mut self.speculator {
            speculator.forget(id);
        }
    }

    fn publish(&self, state: EngineState) {
        let running = self.scheduler.n_running();
        let waiting = self.scheduler.n_waiting() + self.generations.values().map(Generation::n_forks).sum::<usize>();
        let free_pages = self.runner.pool().n_free();
        self.stats.send_if_modified(|stats| {
            let now = EngineStats { state, running, waiting, free_pages, ..*stats };
            let modified = *stats != now;
            *stats = now;
            modified
        });
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
