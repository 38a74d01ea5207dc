//! The ranks of this process: whether MPI's launcher started it, and how it ends then.

use std::{env, sync::OnceLock};

use anyhow::{Result, ensure};
use hearth_model::ops;

use super::Group;
#[cfg(feature = "mpi")]
use super::mpi::Running;

static OF_PROCESS: OnceLock<Group> = OnceLock::new();

/// How many processes OpenMPI's launcher started.
const OPENMPI_SIZE: &str = "OMPI_COMM_WORLD_SIZE";

/// The ranks that this process is one of. Alone before [`Launched::find`].
pub fn of_process() -> Group {
    OF_PROCESS.get().cloned().unwrap_or_default()
}

/// A process that knows whether it is one of several.
#[derive(Debug, Default)]
pub struct Launched {
    #[cfg(feature = "mpi")]
    running: Option<Running>,
}

impl Launched {
    /// Finds the ranks that MPI's launcher started with this process. A process that no launcher started is alone, and does not
    /// start MPI. Call it first, on the main thread, which alone may exchange with other ranks.
    ///
    /// # Errors
    /// MPI does not start, their number is not a power of two, or the build is without MPI.
    pub fn find() -> Result<Launched> {
        #[cfg(feature = "mpi")]
        if super::mpi::is_launched() {
            let (running, group) = Running::start()?;
            // If this is called several times, the first call counts; there is only one.
            OF_PROCESS.get_or_init(|| group);
            return Ok(Launched { running: Some(running) });
        }
        let size = env::var(OPENMPI_SIZE).ok().and_then(|size| size.parse::<usize>().ok()).unwrap_or(1);
        ensure!(
            size == 1 || cfg!(feature = "mpi"),
            "`mpirun` started {size} processes, and this build of Hearth has no MPI\nhint: build it with `--features mpi`, or start it \
             without `mpirun`"
        );
        Ok(Launched::default())
    }

    /// The number of compute threads of this rank if several ranks share its cores: its share of them.
    pub fn n_threads(&self) -> Option<usize> {
        let n_sharing = of_process().ranks().n_sharing_cores();
        let is_set = env::var_os("RAYON_NUM_THREADS").is_some();
        (n_sharing > 1 && !is_set).then(|| (ops::n_threads() / n_sharing).max(1))
    }

    /// Ends MPI, once this rank is done. The other ranks are waited for.
    pub fn end(self) {
        #[cfg(feature = "mpi")]
        if let Some(running) = self.running {
            running.end();
        }
    }

    /// Ends all ranks, since this one has failed. Returns only if it is alone.
    pub fn abort(&self) {
        #[cfg(feature = "mpi")]
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}
