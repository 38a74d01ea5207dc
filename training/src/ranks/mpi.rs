//! Ranks as processes that MPI started.

use std::{
    env, fmt, fs,
    io::{self, Write},
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ferrompi::{Communicator, Mpi, Request, ThreadLevel};

use super::{Group, Ranks};

/// Maximum number of bytes of a message: MPI counts elements in 32 bits, and Debian's OpenMPI has no larger counts.
const MAX_BYTES: usize = 1 << 30;

/// How long a rank only looks for an answer before it sleeps between two looks: messages between processes of one machine take
/// microseconds.
const SPIN: Duration = Duration::from_micros(200);

/// How long it sleeps: others may need its core.
const SLEEP: Duration = Duration::from_micros(100);

/// Variables by which a launcher is detected: OpenMPI's `mpirun`, and `srun` and MPICH's `mpiexec` by PMIx and PMI.
const LAUNCHER_VARIABLES: [&str; 4] = ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"];

/// Variables with this rank's number among its machine's ranks, known before MPI starts.
const LOCAL_RANK_VARIABLES: [&str; 2] = ["LOCAL_RANK", "SLURM_LOCALID"];

/// Whether a launcher started this process.
pub(super) fn is_launched() -> bool {
    LAUNCHER_VARIABLES.iter().any(|name| env::var_os(name).is_some())
}

/// MPI, started.
pub(super) struct Running {
    /// Dropping it waits for the other ranks, so it is dropped only if all is well: not in a panic.
    mpi: ManuallyDrop<Mpi>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running")
    }
}

impl Running {
    /// Starts MPI and finds the ranks.
    pub(super) fn start() -> Result<(Running, Group)> {
        let mpi = ManuallyDrop::new(Mpi::init_thread(ThreadLevel::Funneled).context("MPI does not start")?);
        let world = mpi.world();
        let local = world.split_shared().context("MPI does not say which ranks share this machine")?;
        let number = |number: i32| usize::try_from(number).unwrap_or_default();
        let of_variable = |name: &&str| env::var(name).ok()?.parse().ok();
        let local_rank = LOCAL_RANK_VARIABLES.iter().find_map(of_variable).unwrap_or_else(|| number(local.rank()));
        let mut leader = [world.rank() as u64];
        local.broadcast(&mut leader, 0).context("MPI does not reach the ranks of this machine")?;
        let ranks = Arc::new(MpiRank {
            rank: number(world.rank()),
            size: number(world.size()),
            world,
            local_rank,
            n_on_machine: number(local.size()),
            n_sharing_cores: AtomicUsize::new(1),
            timeout_secs: AtomicU64::new(u64::MAX),
            sent: AtomicU64::new(0),
        });
        let group = Group::new(ranks.clone())?;
        // If the launcher gives each rank separate cores, they are divided already.
        let cores = (leader[0], allowed_cores());
        let n_sharing = group.gather(&cores)?.into_iter().filter(|other| *other == cores).count();
        ranks.n_sharing_cores.store(n_sharing, Ordering::Relaxed);
        Ok((Running { mpi }, group))
    }

    /// Ends MPI; waits until all ranks do.
    pub(super) fn end(self) {
        drop(ManuallyDrop::into_inner(self.mpi));
    }

    /// Ends all ranks.
    pub(super) fn abort(&self) -> ! {
        self.mpi.world().abort(1)
    }
}

/// The cores that the process may use, as the system writes them; the same text for all processes that may use the same.
fn allowed_cores() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default().trim().to_owned()
}

/// A rank started by MPI.
struct MpiRank {
    world: Communicator,
    rank: usize,
    size: usize,
    local_rank: usize,
    n_on_machine: usize,
    n_sharing_cores: AtomicUsize,
    /// Seconds that an exchange waits.
    timeout_secs: AtomicU64,
    sent: AtomicU64,
}

impl fmt::Debug for MpiRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

impl Ranks for MpiRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(&self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<()> {
        // Both ranks cut a message at the same places, so a part exists on both or on neither.
        let mut parts = send.chunks(MAX_BYTES);
        let mut parts_there = receive.chunks_mut(MAX_BYTES);
        loop {
            match (parts.next(), parts_there.next()) {
                (None, None) => break,
                (part, there) => self.exchange_part(peer, part.unwrap_or_default(), there.unwrap_or_default())?,
            }
        }
        self.sent.fetch_add(send.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn set_timeout(&self, timeout: Duration) {
        self.timeout_secs.store(timeout.as_secs(), Ordering::Relaxed);
    }

    fn n_on_machine(&self) -> usize {
        self.n_on_machine
    }

    fn n_sharing_cores(&self) -> usize {
        self.n_sharing_cores.load(Ordering::Relaxed)
    }

    fn local_rank(&self) -> usize {
        self.local_rank
    }
}

impl MpiRank {
    fn exchange_part(&self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<()> {
        let number = i32::try_from(peer).context("the number of a rank")?;
        let exchange = ferrompi::scope(|scope| {
            let mut requests: Vec<Request<'_>> = Vec::with_capacity(2);
            if !receive.is_empty() {
                requests.push(self.world.irecv(scope, receive, number, 0)?);
            }
            if !send.is_empty() {
                requests.push(self.world.isend(scope, send, number, 0)?);
            }
            let began = Instant::now();
            loop {
                let mut is_done = true;
                for request in &mut requests {
                    is_done &= request.test()?.is_some();
                }
                let waited = began.elapsed();
                match waited {
                    _ if is_done => return Ok(()),
                    // The end of the scope would wait on.
                    _ if waited.as_secs() >= self.timeout_secs.load(Ordering::Relaxed) => self.give_up(peer, waited),
                    _ if waited < SPIN => thread::yield_now(),
                    _ => thread::sleep(SLEEP),
                }
            }
        });
        exchange.with_context(|| format!("cannot exchange with rank {peer}"))
    }

    /// Ends all ranks, since a peer does not answer.
    fn give_up(&self, peer: usize, waited: Duration) -> ! {
        let message = format!(
            "error: rank {}: rank {peer} has not answered for {} s (`parallel.peer_timeout`), or waits itself for one that does not; all \
             ranks end\nhint: look at that process and its machine, then go on with `--resume`",
            self.rank,
            waited.as_secs()
        );
        // If stderr is closed too, only the exit code remains.
        let _ = writeln!(io::stderr(), "{message}");
        self.world.abort(1)
    }
}
