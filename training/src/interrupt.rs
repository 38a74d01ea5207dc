//! SIGTERM and ctrl-c. A run finishes its step, saves, and reports it; a second signal ends the process immediately. Commands that
//! write data remove what is not complete.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

/// Whether the process has received a signal.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    /// The signal's number, 0 before there is one.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Installs the handlers. The second signal ends the process, as without handlers.
    pub fn install() -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        let is_second = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the first signal finds `is_second` unset, and sets it.
            flag::register_conditional_shutdown(signal, exit_code(signal as usize).into(), is_second.clone())
                .and_then(|_| flag::register(signal, is_second.clone()))
                .and_then(|_| flag::register_usize(signal, interrupt.signal.clone(), signal as usize))
                .context("cannot listen for SIGTERM and ctrl-c")?;
        }
        Ok(interrupt)
    }

    /// The exit code after a signal: 128 plus its number, as in shells.
    pub fn exit_code(&self) -> Option<u8> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(exit_code(signal)),
        }
    }
}

/// From now on, the first signal removes `partial`, a file or a folder that may not exist yet, and ends the process. Where that
/// cannot be arranged, it ends the process immediately, and the next command that writes there removes what is left.
pub fn remove_when_interrupted(partial: &Path) {
    #[cfg(unix)]
    if let Err(error) = install_removal(partial.to_owned()) {
        tracing::debug!("cannot listen for SIGTERM and ctrl-c: {error}");
    }
    #[cfg(not(unix))]
    let _ = partial;
}

#[cfg(unix)]
fn install_removal(partial: std::path::PathBuf) -> std::io::Result<()> {
    use std::{fs, io::Read, os::unix::net::UnixStream, process, thread};

    use signal_hook::low_level::pipe;

    let (mut signals, sender) = UnixStream::pair()?;
    let interrupt = Interrupt::default();
    let received = interrupt.signal.clone();
    let wait = move || {
        // Ends without a byte if the handlers cannot be installed.
        if signals.read_exact(&mut [0]).is_err() {
            return;
        }
        // Files may still be created in a folder meanwhile.
        for _ in 0..100 {
            let removed = fs::remove_dir_all(&partial).or_else(|_| fs::remove_file(&partial));
            if removed.is_ok() || !partial.exists() {
                break;
            }
        }
        process::exit(interrupt.exit_code().unwrap_or_default().into());
    };
    thread::Builder::new().name("signals".into()).spawn(wait)?;
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the thread that is woken finds the signal's number.
        flag::register_usize(signal, received.clone(), signal as usize)?;
        pipe::register(signal, sender.try_clone()?)?;
    }
    Ok(())
}

fn exit_code(signal: usize) -> u8 {
    128 + signal as u8
}
