//! Gathers the optimizer's moments, of which each rank has a part, for one checkpoint.

use anyhow::Result;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{eval::read_floats, ranks::Group};

/// The moments of all parameters, to be written by rank 0.
#[derive(Debug)]
pub struct MomentsOfAll<'a> {
    group: &'a Group,
    own: Vec<(String, Tensor<1>)>,
    /// All, in the order in which the file has them.
    all: Vec<SavedMoment>,
}

/// A tensor of the file, and the rank that has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SavedMoment {
    pub(super) name: String,
    pub(super) n_values: usize,
    rank: usize,
}

impl<'a> MomentsOfAll<'a> {
    /// Gathers `own`, by name, and the moments of the other ranks, which must call this too.
    ///
    /// # Errors
    /// A rank does not answer.
    pub fn new(own: Vec<(String, Tensor<1>)>, group: &'a Group) -> Result<MomentsOfAll<'a>> {
        let rank = group.rank();
        let described =
            own.iter().map(|(name, values)| SavedMoment { name: name.clone(), n_values: values.dims()[0], rank });
        let mut all = group.gather(&described.collect::<Vec<_>>())?.concat();
        // By path, then by the moment's own name, the order of a single process.
        let key = |moment: &SavedMoment| {
            let (path, name) = moment.name.rsplit_once('.').unwrap_or_default();
            (path.to_owned(), name.to_owned())
        };
        all.sort_by_cached_key(key);
        Ok(MomentsOfAll { group, own, all })
    }

    /// All moments, in the order in which they must be [read](Self::read).
    pub(super) fn all(&self) -> &[SavedMoment] {
        &self.all
    }

    /// The values of one, on rank 0.
    pub(super) fn read(&self, moment: &SavedMoment) -> Result<Vec<f32>> {
        if moment.rank == self.group.rank() {
            return self.own_values(moment);
        }
        let mut values = vec![0.0; moment.n_values];
        self.group.exchange(moment.rank, &[], &mut values)?;
        Ok(values)
    }

    /// Sends this rank's to rank 0, which reads them.
    ///
    /// # Errors
    /// Rank 0 does not answer, or the device fails.
    pub fn send(&self) -> Result<()> {
        let own = self.all.iter().filter(|moment| moment.rank == self.group.rank());
        own.into_iter().try_for_each(|moment| self.group.exchange(0, &self.own_values(moment)?, &mut []))
    }

    fn own_values(&self, moment: &SavedMoment) -> Result<Vec<f32>> {
        let found = self.own.iter().find(|(name, _)| *name == moment.name);
        found.map_or_else(|| Ok(Vec::new()), |(_, values)| read_floats(values.clone()))
    }
}
