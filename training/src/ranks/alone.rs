//! One process.

use anyhow::{Result, bail};

use super::Ranks;

/// Rank 0 of 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone;

impl Ranks for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn exchange(&self, peer: usize, _send: &[u8], _receive: &mut [u8]) -> Result<()> {
        bail!("there is no rank {peer}: this process is alone")
    }

    fn bytes_sent(&self) -> u64 {
        0
    }
}
