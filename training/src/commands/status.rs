//! Progress on stderr: a line that is rewritten on terminals, and occasional lines elsewhere.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// Moves to the start of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Shows progress.
#[derive(Debug)]
pub(crate) struct Status {
    is_terminal: bool,
    every: Duration,
    started: Instant,
    /// When the current part of the work began.
    phase_started: Instant,
    shown: Option<Instant>,
}

impl Status {
    pub(crate) fn new() -> Status {
        let is_terminal = io::stderr().is_terminal();
        let every = Duration::from_millis(if is_terminal { 100 } else { 10_000 });
        let started = Instant::now();
        Status { is_terminal, every, started, phase_started: started, shown: None }
    }

    /// Begins another part of the work: the lines that follow are about its time.
    pub(crate) fn begin_phase(&mut self) {
        self.clear();
        (self.phase_started, self.shown) = (Instant::now(), None);
    }

    /// Since the current part of the work began.
    pub(crate) fn phase_elapsed(&self) -> Duration {
        self.phase_started.elapsed()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shows `line` if the last one is old enough. `line` gets the time since the current part of the work began. Nothing is
    /// shown in the first moments, in which most commands finish.
    pub(crate) fn show(&mut self, line: impl FnOnce(Duration) -> String) {
        let since = self.shown.unwrap_or(self.phase_started);
        if since.elapsed() < self.every {
            return;
        }
        self.shown = Some(Instant::now());
        let line = line(self.phase_elapsed());
        self.write(&if self.is_terminal { format!("{CLEAR_LINE}{line}") } else { format!("{line}\n") });
    }

    /// Clears the line in progress on a terminal.
    pub(crate) fn clear(&mut self) {
        if self.is_terminal && self.shown.take().is_some() {
            self.write(CLEAR_LINE);
        }
    }

    /// Writes a permanent line.
    pub(crate) fn note(&mut self, line: &str) {
        let clear = if self.is_terminal && self.shown.is_some() { CLEAR_LINE } else { "" };
        self.write(&format!("{clear}{line}\n"));
    }

    /// Work continues if stderr is closed.
    fn write(&self, text: &str) {
        let mut stderr = io::stderr();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }
}

/// Reports files of folders that were skipped.
pub(crate) fn note_not_text(status: &mut Status, paths: &[std::path::PathBuf]) {
    if let Some(first) = paths.first() {
        let files =
            if paths.len() == 1 { "1 file that is".to_owned() } else { format!("{} files that are", paths.len()) };
        status.note(&format!("left out: {files} not UTF-8 text (`{}`)", first.display()));
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    #[test]
    fn status_line_gets_the_time_since_its_phase_began() {
        let mut status = Status { is_terminal: false, every: Duration::ZERO, ..Status::new() };
        let pause = Duration::from_millis(30);
        let mut shown = Vec::new();
        sleep(pause);
        status.show(|elapsed| {
            shown.push(elapsed);
            "the first part".to_owned()
        });
        status.begin_phase();
        let begun = Instant::now();
        status.show(|elapsed| {
            shown.push(elapsed);
            "the second part".to_owned()
        });
        assert!(shown[0] >= pause && shown[1] <= begun.elapsed(), "{shown:?}");
        assert!(status.elapsed() >= pause && status.phase_elapsed() < status.elapsed());
    }
}
