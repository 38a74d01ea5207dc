//! The staging buffer on a GPU that a captured step reads its inputs from, overwritten before each replay.

use burn::tensor::{Device, Int, Tensor};

use super::{Ints, Rows, cube};

/// Inputs of either type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Upload<'a> {
    Ints(&'a Ints),
    Rows(&'a Rows),
}

impl Upload<'_> {
    /// Numbers in it.
    fn len(self) -> usize {
        match self {
            Self::Ints(ints) => ints.host().len(),
            Self::Rows(rows) => rows.host.len(),
        }
    }
}

/// One buffer on a GPU for all inputs of a step, so that they are uploaded together.
#[derive(Debug)]
pub(crate) struct StagingBuffer {
    all: Tensor<1, Int>,
}

/// Alignment of each input, in numbers of 4 bytes: the largest that devices ask for.
const ALIGNMENT: usize = 64;

impl StagingBuffer {
    /// Uploads inputs for the first time.
    pub(crate) fn new(uploads: &[Upload<'_>], device: &Device) -> Self {
        let all = Tensor::<1, Int>::from_data(packed(uploads).as_slice(), device);
        let mut start = 0;
        for upload in uploads {
            let is_new = match upload {
                Upload::Ints(ints) => ints.tensor.set(cube::part_of_ints(&all, [start, ints.host().len()])).is_ok(),
                Upload::Rows(rows) => rows.tensor.set(cube::rows_in_ints(&all, start, rows.dims())).is_ok(),
            };
            assert!(is_new, "an input is uploaded once");
            start += upload.len().next_multiple_of(ALIGNMENT);
        }
        Self { all }
    }

    /// Overwrites the buffer in place; lengths must match. Tensors of the earlier inputs then have the new numbers.
    pub(crate) fn overwrite(&mut self, uploads: &[Upload<'_>]) {
        let numbers = packed(uploads);
        assert_eq!([numbers.len()], self.all.dims(), "inputs of other lengths");
        self.all.inplace(|all| cube::overwrite(all, numbers));
    }
}

/// The inputs one after the other, f32 as their bits.
fn packed(uploads: &[Upload<'_>]) -> Vec<i32> {
    let mut all = Vec::new();
    for upload in uploads {
        match upload {
            Upload::Ints(ints) => all.extend_from_slice(ints.host()),
            Upload::Rows(rows) => all.extend(rows.host.iter().map(|value| value.to_bits().cast_signed())),
        }
        all.resize(all.len().next_multiple_of(ALIGNMENT), 0);
    }
    all
}
