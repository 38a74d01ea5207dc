//! The one inference thread. It owns the device, the model and the cache; all else reaches it through its channel.
//!
//! Its spine is [`Worker::step`]: `schedule` decides, `run` computes, `advance` turns logits into tokens and events.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, TryRecvError},
};

use hearth_model::Result;
use tokio::sync::watch;

use super::{
    Command, EngineState, EngineStats,
    runner::{Hidden, Input, Runner},
    scheduler::{Scheduler, SequenceId, Step},
    sequence::{Progress, Sequence},
};

/// Rows whose logits are on the host at once. A row is the whole vocabulary, so this bounds the memory of requests
/// that want the log-probabilities of a long prompt.
const LOGIT_ROWS: usize = 64;

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) commands: Receiver<Command>,
    pub(crate) stats: watch::Sender<EngineStats>,
    pub(crate) scheduler: Scheduler,
    pub(crate) runner: Runner,
    pub(crate) sequences: BTreeMap<SequenceId, Sequence>,
    pub(crate) n_accepted: u64,
}

/// A row of a step whose logits somebody wants.
#[derive(Clone, Copy, Debug)]
struct WantedRow {
    /// Its place in the step.
    row: usize,
    id: SequenceId,
    /// Its place in its sequence.
    position: usize,
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
        let (state, message) = match end {
            End::Stopped => (EngineState::Stopped, "the server is shutting down".to_owned()),
            End::Failed(what) => {
                tracing::error!(requests = self.sequences.len(), "inference failed, requests in flight end: {what}");
                (EngineState::Failed(what.clone()), format!("inference failed: {what}"))
            }
        };
        // The state first: a request that arrives now is refused, or is in the channel and told below.
        self.publish(state);
        for id in self.sequences.keys().copied().collect::<Vec<_>>() {
            if let Some(sequence) = self.sequences.get(&id) {
                sequence.fail(&message);
            }
            self.forget(id);
        }
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Generate(sequences) = command {
                sequences.iter().for_each(|sequence| sequence.fail(&message));
            }
        }
        self.stats.send_modify(|stats| {
            (stats.running, stats.waiting, stats.free_pages) = (0, 0, self.runner.n_free_pages());
        });
    }

    /// Takes in what has arrived; waits for something while there is nothing to do.
    fn receive(&mut self) -> std::result::Result<(), End> {
        if self.sequences.is_empty() {
            let command = self.commands.recv().map_err(|_| End::Stopped)?;
            self.accept(command)?;
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
            Command::Generate(sequences) => {
                for sequence in sequences {
                    let id = SequenceId(self.n_accepted);
                    self.n_accepted += 1;
                    self.scheduler.add(id, sequence.extent());
                    self.sequences.insert(id, sequence);
                }
                Ok(())
            }
        }
    }

    fn drop_cancelled(&mut self) {
        let gone = self.sequences.iter().filter(|(_, sequence)| sequence.is_cancelled());
        for id in gone.map(|(&id, _)| id).collect::<Vec<_>>() {
            tracing::debug!(sequence = id.0, "cancelled: the client has gone");
            self.forget(id);
        }
    }

    fn step(&mut self) -> Result<()> {
        let step = self.scheduler.schedule();
        if step.chunks.is_empty() {
            return Ok(());
        }
        let inputs = self.inputs(&step);
        let hidden = self.runner.run(&inputs)?;
        self.advance(&step, &hidden)
    }

    fn inputs(&mut self, step: &Step) -> Vec<Input> {
        let mut inputs = Vec::with_capacity(step.chunks.len());
        for chunk in &step.chunks {
            if let Some(sequence) = self.sequences.get_mut(&chunk.id) {
                sequence.started();
                let token_ids = sequence.token_ids().iter().skip(chunk.start).take(chunk.n_tokens).copied().collect();
                inputs.push(Input { id: chunk.id, token_ids });
            }
        }
        inputs
    }

    /// Hands each wanted row's logits to its sequence.
    fn advance(&mut self, step: &Step, hidden: &Hidden) -> Result<()> {
        self.scheduler.advance(step);
        let vocab_size = self.runner.vocab_size();
        for rows in self.wanted_rows(step).chunks(LOGIT_ROWS) {
            let indices: Vec<usize> = rows.iter().map(|wanted| wanted.row).collect();
            let logits = self.runner.logits(hidden, &indices)?;
            for (wanted, logits) in rows.iter().zip(logits.chunks_exact(vocab_size)) {
                // A sequence that failed at an earlier row of this step is gone.
                let Some(sequence) = self.sequences.get_mut(&wanted.id) else { continue };
                match sequence.advance(wanted.position, logits) {
                    Ok(Progress::Goes) => {}
                    Ok(Progress::Ended) => self.forget(wanted.id),
                    Err(error) => {
                        sequence.fail(&error.to_string());
                        self.forget(wanted.id);
                    }
                }
            }
        }
        Ok(())
    }

    fn wanted_rows(&self, step: &Step) -> Vec<WantedRow> {
        let mut wanted = Vec::new();
        let mut first_row = 0;
        for chunk in &step.chunks {
            let Some(sequence) = self.sequences.get(&chunk.id) else { continue };
            for offset in 0..chunk.n_tokens {
                let position = chunk.start + offset;
                let is_last = chunk.predicts && offset + 1 == chunk.n_tokens;
                if is_last || sequence.wants_prompt_row(position) {
                    wanted.push(WantedRow { row: first_row + offset, id: chunk.id, position });
                }
            }
            first_row += chunk.n_tokens;
        }
        wanted
    }

    fn forget(&mut self, id: SequenceId) {
        self.scheduler.remove(id);
        self.runner.release(id);
        self.sequences.remove(&id);
    }

    fn publish(&self, state: EngineState) {
        let (running, waiting) = (self.scheduler.n_running(), self.scheduler.n_waiting());
        let free_pages = self.runner.n_free_pages();
        self.stats.send_if_modified(|stats| {
            let now = EngineStats { state, running, waiting, free_pages, n_pages: stats.n_pages };
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
