//! The most memory that a run holds on a GPU. Its peak lies inside a backward pass, and CubeCL's account only tells what is
//! held now; so a thread asks again and again.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use burn::tensor::Device;
use hearth_model::ops::{self, DeviceMemory};

/// Time between two questions: a backward pass over many layers is longer.
const INTERVAL: Duration = Duration::from_millis(2);

/// Watches a device's memory until it is asked for the peak.
#[derive(Debug)]
pub struct DeviceWatch {
    stop: Sender<()>,
    thread: JoinHandle<DeviceMemory>,
}

impl DeviceWatch {
    /// Begins to watch; `None` for the CPU, whose memory is the process's.
    pub fn start(device: &Device) -> Option<DeviceWatch> {
        let mut peak = ops::device_memory(device)?;
        let (stop, stopped) = mpsc::channel();
        let device = device.clone();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let Some(now) = ops::device_memory(&device) else { break };
                peak.in_use = peak.in_use.max(now.in_use);
                peak.reserved = peak.reserved.max(now.reserved);
            }
            peak
        });
        Some(DeviceWatch { stop, thread })
    }

    /// The most that was in use at a moment, and the most that was reserved; `None` if the watching thread failed.
    pub fn peak(self) -> Option<DeviceMemory> {
        drop(self.stop);
        self.thread.join().ok()
    }
}
