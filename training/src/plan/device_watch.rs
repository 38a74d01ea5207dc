//! The peak of the memory that the tensors of a run take on a GPU. The peak is inside a backward pass, and CubeCL reports only
//! the current use, so a thread polls it.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use burn::tensor::Device;
use hearth_model::ops;

/// Time between two polls; a backward pass over many layers takes longer.
const INTERVAL: Duration = Duration::from_millis(2);

/// Watches a device's memory until it is asked for the peak.
#[derive(Debug)]
pub struct DeviceWatch {
    stop: Sender<()>,
    thread: JoinHandle<u64>,
}

impl DeviceWatch {
    /// Starts watching; `None` for the CPU, which uses the process's memory.
    pub fn start(device: &Device) -> Option<DeviceWatch> {
        let mut peak = ops::device_memory(device)?.in_use;
        let (stop, stopped) = mpsc::channel();
        let device = device.clone();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                peak = ops::device_memory(&device).map_or(peak, |now| peak.max(now.in_use));
            }
            peak
        });
        Some(DeviceWatch { stop, thread })
    }

    /// Peak number of bytes in use; `None` if the watching thread failed.
    pub fn peak(self) -> Option<u64> {
        drop(self.stop);
        self.thread.join().ok()
    }
}
