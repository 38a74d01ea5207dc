//! Ranks as threads of one process, for testing runs with several ranks without MPI.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use anyhow::{Result, anyhow, ensure};

use super::{Group, Ranks};

/// A rank of a process.
#[derive(Debug)]
pub struct ThreadRank {
    rank: usize,
    /// To and from each rank, by its number.
    senders: Vec<Sender<Vec<u8>>>,
    receivers: Vec<Mutex<Receiver<Vec<u8>>>>,
    sent: AtomicU64,
}

/// `size` ranks that are connected with each other.
pub fn connected(size: usize) -> Vec<ThreadRank> {
    let mut ranks: Vec<ThreadRank> = (0..size)
        .map(|rank| ThreadRank { rank, senders: Vec::new(), receivers: Vec::new(), sent: AtomicU64::new(0) })
        .collect();
    for from in 0..size {
        for to in 0..size {
            let (sender, receiver) = channel();
            ranks[from].senders.push(sender);
            // In the order of `from`.
            ranks[to].receivers.push(Mutex::new(receiver));
        }
    }
    ranks
}

/// Runs `rank` on `size` ranks at once; returns the results by rank.
///
/// # Panics
/// `size` is not a power of two, or a rank panics.
pub fn run<T: Send>(size: usize, rank: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let groups = connected(size).into_iter().map(|ranks| Group::new(Arc::new(ranks)));
    thread::scope(|scope| {
        let rank = &rank;
        let start = |group: Result<Group>| match group {
            Ok(group) => scope.spawn(move || rank(group)),
            #[expect(clippy::panic, reason = "tests")]
            Err(error) => panic!("{error}"),
        };
        let threads: Vec<_> = groups.map(start).collect();
        let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ended.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

impl Ranks for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.senders.len()
    }

    fn exchange(&self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<()> {
        let ended = || anyhow!("rank {peer} has ended");
        self.senders[peer].send(send.to_vec()).map_err(|_| ended())?;
        self.sent.fetch_add(send.len() as u64, Ordering::Relaxed);
        let receiver = self.receivers[peer].lock().unwrap_or_else(PoisonError::into_inner);
        let received = receiver.recv().map_err(|_| ended())?;
        ensure!(
            received.len() == receive.len(),
            "rank {peer} sent {} bytes, and {} were expected",
            received.len(),
            receive.len()
        );
        receive.copy_from_slice(&received);
        Ok(())
    }

    fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}
