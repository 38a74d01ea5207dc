//! SIGTERM and ctrl-c: the run finishes its step, saves, and reports it. A second signal ends the process immediately.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
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

fn exit_code(signal: usize) -> u8 {
    128 + signal as u8
}
