//! Launches kernels one at a time and says so, for a reader of what the driver prints.

use std::sync::Arc;

use burn_cubecl::cubecl::logging::{LaunchObservation, LaunchObserver, TimingRequest};

use super::{Case, Gpu};

/// Prints each launch, which ends before the next begins: its time is read.
struct Printed;

impl LaunchObserver for Printed {
    fn launched(&self, kernel: &'static str) {
        eprintln!("@launch {}", short_name(kernel));
    }

    fn timing(&self) -> TimingRequest {
        TimingRequest::Resolved
    }
}

/// The kernel's own name: of `a::b::gemv::Gemv<..>`, `gemv`.
pub fn short_name(kernel: &str) -> &str {
    let path = kernel.split('<').next().unwrap_or(kernel);
    path.rsplit("::").nth(1).unwrap_or(path)
}

/// Launches the kernels of `case` once.
///
/// # Errors
/// If the device fails.
pub fn launch(gpu: &Gpu, case: &Case) -> anyhow::Result<()> {
    eprintln!("@case {}", case.name);
    let observation = LaunchObservation::new(Arc::new(Printed));
    let output = (case.run)();
    drop(observation);
    gpu.wait(&output)
}
