//! Signals. On SIGTERM, ctrl-c, SIGHUP (a closed terminal) and SIGXCPU (a limit of CPU time), a run finishes its step,
//! saves, and reports it; a second one ends the process immediately. On SIGUSR1 and SIGUSR2, with which batch systems
//! warn early, it saves and continues. Commands that write data remove incomplete output.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result};
use hearth_model::system::signals::ignores_hangups;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

/// Signals that end a run or a command.
#[cfg(unix)]
const ENDING: [i32; 4] = [SIGINT, SIGTERM, signal_hook::consts::SIGHUP, signal_hook::consts::SIGXCPU];
#[cfg(not(unix))]
const ENDING: [i32; 2] = [SIGINT, SIGTERM];

/// Signals that ask a run for a checkpoint.
#[cfg(unix)]
const SAVING: [i32; 2] = [signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2];
#[cfg(not(unix))]
const SAVING: [i32; 0] = [];

/// Whether a signal is ending the process, see [`remove_when_interrupted`].
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// If a signal is ending the process and incomplete output is being removed ([`remove_when_interrupted`]), waits for
/// the end: errors that occur meanwhile are meaningless.
pub fn wait_if_ending() {
    while IS_ENDING.load(Ordering::SeqCst) {
        thread::park();
    }
}

/// Whether the process has received a signal.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    /// The signal's number, 0 before there is one.
    signal: Arc<AtomicUsize>,
    /// Whether a signal has asked for a checkpoint.
    checkpoint: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs the handlers. The second signal ends the process, as without handlers.
    pub fn install() -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        interrupt.listen()?;
        for signal in SAVING {
            flag::register(signal, interrupt.checkpoint.clone()).context("cannot listen for SIGUSR1 and SIGUSR2")?;
        }
        Ok(interrupt)
    }

    fn listen(&self) -> Result<()> {
        let is_second = Arc::new(AtomicBool::new(false));
        for signal in ENDING.into_iter().filter(|signal| !is_left_ignored(*signal)) {
            // The order matters: the first signal finds `is_second` unset, and sets it.
            flag::register_conditional_shutdown(signal, exit_code(signal as usize).into(), is_second.clone())
                .and_then(|_| flag::register(signal, is_second.clone()))
                .and_then(|_| flag::register_usize(signal, self.signal.clone(), signal as usize))
                .context("cannot listen for SIGTERM, SIGHUP and ctrl-c")?;
        }
        Ok(())
    }

    /// Whether a signal has asked for a checkpoint since the last call.
    pub fn takes_checkpoint(&self) -> bool {
        self.checkpoint.swap(false, Ordering::Relaxed)
    }

    /// The number of the signal that has come.
    pub(crate) fn signal(&self) -> Option<usize> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    /// As if the signal with this number had come: it has, to another rank.
    pub fn receive(&self, signal: usize) {
        self.signal.store(signal, Ordering::Relaxed);
    }

    /// The exit code after a signal: 128 plus its number, as in shells.
    pub fn exit_code(&self) -> Option<u8> {
        self.signal().map(exit_code)
    }
}

/// From now on, the first signal removes `partial` and ends the process; a second one ends it immediately. `partial` is
/// a file or a [staged](hearth_model::weights::StagedDir) folder, which may not exist yet. If the handlers cannot be
/// installed, the first signal ends the process immediately, and the next command that writes there removes the
/// leftovers.
pub fn remove_when_interrupted(partial: &Path) {
    #[cfg(unix)]
    if let Err(error) = install_removal(partial.to_owned()) {
        tracing::debug!("what is interrupted will not be removed: {error:#}");
    }
    #[cfg(not(unix))]
    let _ = partial;
}

#[cfg(unix)]
fn install_removal(partial: std::path::PathBuf) -> Result<()> {
    use std::{io::Read, os::unix::net::UnixStream, process};

    use hearth_model::weights::StagedDir;
    use signal_hook::low_level::pipe;

    let (mut signals, sender) = UnixStream::pair()?;
    let interrupt = Interrupt::default();
    let received = interrupt.clone();
    let wait = move || {
        // Ends without a byte if the handlers cannot be installed.
        if signals.read_exact(&mut [0]).is_err() {
            return;
        }
        IS_ENDING.store(true, Ordering::SeqCst);
        // Retried if it fails: other threads may still create files in the folder.
        for _ in 0..100 {
            if StagedDir::remove_unfinished(&partial).is_ok() || fs::remove_file(&partial).is_ok() {
                break;
            }
        }
        process::exit(interrupt.exit_code().unwrap_or_default().into());
    };
    thread::Builder::new().name("signals".into()).spawn(wait)?;
    // The order matters: the thread that is woken finds the signal's number.
    received.listen()?;
    for signal in ENDING.into_iter().filter(|signal| !is_left_ignored(*signal)) {
        pipe::register(signal, sender.try_clone()?)?;
    }
    Ok(())
}

/// Whether `signal` is SIGHUP, which is 1, and stays ignored.
fn is_left_ignored(signal: i32) -> bool {
    signal == 1 && ignores_hangups()
}

fn exit_code(signal: usize) -> u8 {
    128 + signal as u8
}
