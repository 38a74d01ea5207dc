//! Progress on stderr: a line that is rewritten on terminals, and occasional lines elsewhere.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{
    data::corpus::{LeftOut, Notes, WhyLeftOut},
    run::progress::{ProgressLine, Style},
};

/// Maximum number of file names in a message.
const MAX_NAMES: usize = 5;

/// Shows progress.
#[derive(Debug)]
pub struct Status {
    line: ProgressLine,
    every: Duration,
    started: Instant,
    /// When the current part of the work began.
    phase_started: Instant,
    shown: Option<Instant>,
}

impl Default for Status {
    fn default() -> Status {
        Status::new()
    }
}

impl Status {
    /// Progress on stderr.
    pub fn new() -> Status {
        let line = ProgressLine::on_stderr();
        let every = match line.style() {
            Style::Terminal => Duration::from_millis(100),
            Style::Plain => Duration::from_secs(10),
        };
        let started = Instant::now();
        Status { line, every, started, phase_started: started, shown: None }
    }

    /// Begins another part of the work: the lines that follow are about its time.
    pub fn begin_phase(&mut self) {
        self.clear();
        (self.phase_started, self.shown) = (Instant::now(), None);
    }

    /// Since the current part of the work began.
    pub fn phase_elapsed(&self) -> Duration {
        self.phase_started.elapsed()
    }

    /// Since it was made.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shows `line` if the last one is old enough. `line` gets the time since the current part of the work began.
    /// Nothing is shown at first, since most commands finish quickly.
    pub fn show(&mut self, line: impl FnOnce(Duration) -> String) {
        let since = self.shown.unwrap_or(self.phase_started);
        if since.elapsed() < self.every {
            return;
        }
        self.shown = Some(Instant::now());
        let line = line(self.phase_elapsed());
        self.line.show(&line);
    }

    /// Clears the line in progress on a terminal.
    pub fn clear(&mut self) {
        self.line.clear();
    }

    /// Writes the notes about data.
    pub fn note_all(&mut self, notes: &Notes) {
        notes.lines().iter().for_each(|line| self.note(line));
    }

    /// Writes a permanent line.
    pub fn note(&mut self, line: &str) {
        self.line.note(line);
    }
}

/// Reports files of folders that were skipped.
pub fn note_not_text(status: &mut Status, paths: &[std::path::PathBuf]) {
    if let Some(first) = paths.first() {
        let files =
            if paths.len() == 1 { "1 file that is".to_owned() } else { format!("{} files that are", paths.len()) };
        status.note(&format!("left out: {files} not UTF-8 text (`{}`)", first.display()));
    }
}

/// Reports files of folders that were left out.
pub fn note_left_out(status: &mut Status, left_out: &[LeftOut]) {
    let mut by_reason: BTreeMap<WhyLeftOut, Vec<&str>> = BTreeMap::new();
    for LeftOut { name, why } in left_out {
        by_reason.entry(*why).or_default().push(name);
    }
    for (why, names) in by_reason {
        let shown = names[..names.len().min(MAX_NAMES)].join("`, `");
        let more =
            if names.len() > MAX_NAMES { format!(" and {} more", names.len() - MAX_NAMES) } else { String::new() };
        status.note(&format!("left out: `{shown}`{more} ({why})"));
    }
}

/// A count with its noun, such as `1 step` or `3 steps`.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    #[test]
    fn status_line_gets_the_time_since_its_phase_began() {
        let line = ProgressLine::new(Box::new(std::io::sink()), Style::Plain);
        let mut status = Status { line, every: Duration::ZERO, ..Status::new() };
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
