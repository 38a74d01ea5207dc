//! The processes of a run, which MPI calls ranks: numbered from 0, rank 0 is the first. One process is rank 0 of 1.
//!
//! - [`Ranks`]: the interface of a launcher: an exchange of bytes between two ranks; [`Group`]: the collective
//!   operations of a run, built from such exchanges
//! - [`of_process`]: the ranks of this process; [`launch`]: finds them when a program starts
//! - [`same`]: checks that all ranks have the same inputs
//! - [`threads`]: ranks as threads of one process, for tests; `mpi`: ranks as processes that MPI started, with the feature `mpi`

mod alone;
pub mod launch;
#[cfg(feature = "mpi")]
mod mpi;
pub mod same;
pub mod threads;

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::{Serialize, de::DeserializeOwned};

pub use self::launch::of_process;

/// Ranks that can exchange bytes; a launcher need not do more. `MPI_Allreduce` guarantees no order of its additions,
/// and a collective call that hangs cannot name the rank that it waits for; an exchange with one known peer solves
/// both.
pub trait Ranks: fmt::Debug + Send + Sync {
    /// This rank's number.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Sends `send` to the rank `peer` and fills `receive` with the peer's message, which must have this length. Both
    /// may be empty.
    ///
    /// # Errors
    /// The peer has ended or does not answer; the message names it.
    fn exchange(&self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<()>;

    /// Bytes that this rank has sent so far.
    fn bytes_sent(&self) -> u64;

    /// How long [`exchange`](Self::exchange) waits for a peer, from now on.
    fn set_timeout(&self, _timeout: Duration) {}

    /// Ranks on this machine, itself included, which share its memory.
    fn n_on_machine(&self) -> usize {
        1
    }

    /// Number of ranks that share this rank's cores.
    fn n_sharing_cores(&self) -> usize {
        1
    }

    /// This rank's number among the ranks on its machine, by which it chooses a GPU.
    fn local_rank(&self) -> usize {
        0
    }
}

/// The ranks of a run. Clones are the same group.
#[derive(Clone, Debug)]
pub struct Group {
    ranks: Arc<dyn Ranks>,
}

impl Default for Group {
    /// One process alone.
    fn default() -> Group {
        Group { ranks: Arc::new(alone::Alone) }
    }
}

impl Group {
    /// A group of these ranks.
    ///
    /// # Errors
    /// Their number is not a power of two.
    pub fn new(ranks: Arc<dyn Ranks>) -> Result<Group> {
        let size = ranks.size();
        ensure!(
            size.is_power_of_two(),
            "the number of processes must be a power of two, got {size}: sums of gradients are a binary tree over them\nhint: start {} or \
             {}, with `mpirun -np`",
            size.next_power_of_two() / 2,
            size.next_power_of_two()
        );
        Ok(Group { ranks })
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.ranks.rank()
    }

    /// The number of ranks, a power of two.
    pub fn size(&self) -> usize {
        self.ranks.size()
    }

    /// Whether there is only this process.
    pub fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// Whether this is rank 0, which writes and reports.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// The ranks themselves.
    pub fn ranks(&self) -> &dyn Ranks {
        &*self.ranks
    }

    /// The levels of the binary tree over the ranks. At level `l`, ranks whose numbers differ in bit `l` alone meet.
    pub fn n_levels(&self) -> u32 {
        self.size().ilog2()
    }

    /// Exchanges values with `peer`, see [`Ranks::exchange`].
    ///
    /// # Errors
    /// The same.
    pub fn exchange(&self, peer: usize, send: &[f32], receive: &mut [f32]) -> Result<()> {
        self.ranks.exchange(peer, bytemuck::cast_slice(send), bytemuck::cast_slice_mut(receive))
    }

    /// The values that all ranks give, by rank. All ranks wait for each other.
    ///
    /// # Errors
    /// A peer does not answer.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, own: &T) -> Result<Vec<T>> {
        let own = serde_json::to_vec(own).context("cannot write a message to other ranks")?;
        let read =
            |message: Vec<u8>| serde_json::from_slice(&message).context("cannot read the message of another rank");
        self.gather_bytes(own)?.into_iter().map(read).collect()
    }

    /// Broadcasts rank 0's value to all ranks. All ranks wait for each other.
    ///
    /// # Errors
    /// A peer does not answer.
    pub fn of_first<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<T> {
        if self.is_alone() {
            return Ok(own);
        }
        let given = self.gather(&self.is_first().then_some(own))?;
        given.into_iter().next().flatten().context("rank 0 has sent nothing")
    }

    /// Whether the element `index` of a list is this rank's to compute, for [`in_turn`](Self::in_turn).
    pub fn is_mine(&self, index: usize) -> bool {
        index % self.size() == self.rank()
    }

    /// The whole list on all ranks; each rank has computed the elements that [are its own](Self::is_mine).
    ///
    /// # Errors
    /// A peer does not answer.
    pub fn in_turn<T: Serialize + DeserializeOwned>(&self, own: Vec<T>) -> Result<Vec<T>> {
        if self.is_alone() {
            return Ok(own);
        }
        let mut parts: Vec<_> = self.gather(&own)?.into_iter().map(Vec::into_iter).collect();
        let mut all = Vec::new();
        for turn in 0.. {
            let Some(element) = parts[turn % self.size()].next() else { break };
            all.push(element);
        }
        Ok(all)
    }

    /// The micro-batches of this rank in a step of `n_micro_batches`: the leaves below its part of the tree that adds them up
    /// (`run/tree_sum.rs`). In the last step of a run, some ranks may have none.
    pub fn micro_batches(&self, n_micro_batches: usize) -> Range<usize> {
        let share = n_micro_batches.next_power_of_two().max(self.size()) / self.size();
        let first = self.rank() * share;
        first.min(n_micro_batches)..(first + share).min(n_micro_batches)
    }

    /// Refuses a number of ranks that steps of `n_micro_batches` cannot be shared among.
    ///
    /// # Errors
    /// There are more ranks than leaves of the tree over the micro-batches.
    pub fn require_micro_batches(&self, n_micro_batches: usize) -> Result<()> {
        let most = n_micro_batches.next_power_of_two();
        ensure!(
            self.size() <= most,
            "a step has {n_micro_batches} micro-batch{}, which at most {most} process{} can share, got {}\nhint: `mpirun -np {most}`, or \
             more micro-batches in a step, by a larger `data.tokens_per_step` or a smaller `data.micro_batch_size`",
            if n_micro_batches == 1 { "" } else { "es" },
            if most == 1 { "" } else { "es" },
            self.size()
        );
        Ok(())
    }

    /// Each rank passes on all messages that it has, to a peer twice as far away each time.
    fn gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        // Messages of all ranks whose numbers differ from this one's only in the bits below `level`, in order.
        let mut messages = vec![own];
        for level in 0..self.n_levels() {
            let peer = self.rank() ^ (1 << level);
            let lengths: Vec<u64> = messages.iter().map(|message| message.len() as u64).collect();
            let mut lengths_there = vec![0_u64; lengths.len()];
            self.ranks.exchange(peer, bytemuck::cast_slice(&lengths), bytemuck::cast_slice_mut(&mut lengths_there))?;
            let n_bytes: u64 = lengths_there.iter().sum();
            let mut received = vec![0; n_bytes as usize];
            self.ranks.exchange(peer, &messages.concat(), &mut received)?;
            let mut rest = received.as_slice();
            let mut there = Vec::with_capacity(lengths.len());
            for length in lengths_there {
                let (message, behind) = rest.split_at(length as usize);
                there.push(message.to_vec());
                rest = behind;
            }
            if peer < self.rank() {
                std::mem::swap(&mut messages, &mut there);
            }
            messages.append(&mut there);
        }
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::{threads::run, *};

    #[test]
    fn each_rank_gets_the_messages_of_all_in_order() {
        for size in [1, 2, 8] {
            for (rank, got) in run(size, |group| {
                let mine = "x".repeat(3 * group.rank());
                let all = group.gather(&mine).unwrap();
                let first = group.of_first(group.rank() + 5).unwrap();
                let numbers: Vec<usize> = (0..11).filter(|index| group.is_mine(*index)).collect();
                (all.iter().map(String::len).collect::<Vec<_>>(), first, group.in_turn(numbers).unwrap())
            })
            .into_iter()
            .enumerate()
            {
                let expected: Vec<usize> = (0..size).map(|rank| 3 * rank).collect();
                assert_eq!(got, (expected, 5, (0..11).collect()), "rank {rank} of {size}");
            }
        }
    }

    #[test]
    fn micro_batches_of_ranks_are_subtrees_of_the_step_in_order() {
        let of = |size: usize, n: usize| run(size, |group| group.micro_batches(n));
        assert_eq!(of(1, 3), vec![0..3]);
        assert_eq!(of(2, 8), [0..4, 4..8]);
        assert_eq!(of(2, 5), [0..4, 4..5]);
        assert_eq!(of(4, 6), [0..2, 2..4, 4..6, 6..6]);
        // The last step of a run.
        assert_eq!(of(4, 1), [0..1, 1..1, 1..1, 1..1]);
    }

    #[test]
    fn number_of_ranks_that_makes_no_tree_is_refused_with_a_hint() {
        let ranks = threads::connected(3).remove(0);
        let error = Group::new(Arc::new(ranks)).unwrap_err().to_string();
        assert!(error.contains("power of two, got 3") && error.contains("\nhint: start 2 or 4"), "{error}");
        let errors = run(4, |group| {
            group.require_micro_batches(3).unwrap();
            [1, 2].map(|n| group.require_micro_batches(n).unwrap_err().to_string())
        });
        let [one, two] = &errors[0];
        assert!(
            one.contains("1 micro-batch, which at most 1 process can") && one.contains("hint: `mpirun -np 1`"),
            "{one}"
        );
        assert!(two.contains("2 micro-batches, which at most 2 processes can share, got 4\nhint: "), "{two}");
    }
}
