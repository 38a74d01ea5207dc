//! Launches that a GPU was told of once and does again at a word.
//!
//! A decoding step of a small model is a hundred launches that take a few microseconds each, and telling a GPU of one
//! takes the processor longer than that. Burn and CubeCL can record them: what was allocated, bound and compiled is kept
//! with the recording, and doing it again is one call. (A CUDA graph there; on wgpu, commands that are encoded anew from
//! what was found out before.)

use burn::{
    backend::{Backend, BackendTypes, Dispatch},
    tensor::Device,
};

use super::count_launches;
use crate::error::{Error, Result};

/// Runs before recording: the first fills the memory pools that the recorded run has to do with.
const WARM_UPS: usize = 2;

/// Recorded launches.
#[derive(Debug)]
pub(crate) struct Recording {
    graph: <Dispatch as BackendTypes>::GraphPrimitive,
    device: Device,
    n_launches: usize,
}

impl Recording {
    /// Runs `run` twice, then records it, and gives what it made when it was recorded: its contents are there after the
    /// first [`replay`](Self::replay). It must launch the same each time and upload nothing.
    ///
    /// # Errors
    /// [`Error::Execution`] where the device cannot record, or ran out of memory. Nothing is left recording.
    pub(crate) fn new<T>(device: &Device, mut run: impl FnMut() -> T) -> Result<(Self, T)> {
        let dispatch = device.as_dispatch();
        Dispatch::graph_prepare(dispatch).map_err(failed)?;
        let mut warm_up = || {
            // Held until it ran: operations whose result nobody holds are left out.
            let made = run();
            Dispatch::sync(dispatch).map(|()| drop(made))
        };
        let begun = (0..WARM_UPS).try_for_each(|_| warm_up()).and_then(|()| Dispatch::graph_start_capture(dispatch));
        if let Err(error) = begun {
            // Ends what was prepared. There is no recording, as it will say.
            let _ = Dispatch::graph_stop_capture(dispatch);
            return Err(failed(error));
        }
        let ((made, graph), n_launches) = count_launches(|| (run(), Dispatch::graph_stop_capture(dispatch)));
        Ok((Self { graph: graph.map_err(failed)?, device: device.clone(), n_launches }, made))
    }

    /// What was recorded.
    pub(crate) fn n_launches(&self) -> usize {
        self.n_launches
    }

    /// Does all of it again, with what is in the memory that it reads now. Operations that were queued before go first.
    ///
    /// # Errors
    /// [`Error::Execution`] when the device fails.
    ///
    /// # Safety
    /// Every tensor that the recorded run read or wrote and did not make itself must still be where it was, and nobody else
    /// may use it meanwhile but from this thread.
    #[expect(unsafe_code, reason = "the recording knows addresses, not tensors")]
    pub(crate) unsafe fn replay(&self) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { Dispatch::graph_replay(self.device.as_dispatch(), &self.graph) }.map_err(failed)
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Execution { what: error.to_string() }
}
