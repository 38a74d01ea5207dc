//! Rows of a table by number, and the gradient of the table.

use burn::tensor::{Int, Tensor};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};

use super::LANES;
use crate::ops::{
    cube::{
        launch::{empty, grid, workgroup},
        tensors::{in_i32, plain, wrap, wrap_ints},
    },
    types::TrainingOp,
};

/// Input: the table `[n_entries, width]`. Output: its rows by number, `[n, width]`; see [`embedding`](crate::ops::embedding).
#[derive(Debug)]
pub(in crate::ops) struct Embed {
    /// `[n]`.
    ids: CubeTensor,
}

impl Embed {
    pub(in crate::ops) fn new(ids: Tensor<1, Int>) -> Self {
        Self { ids: plain(in_i32(ids)) }
    }
}

impl TrainingOp<CubeTensor> for Embed {
    fn forward(&self, inputs: &[CubeTensor], _wanted: &[bool]) -> (CubeTensor, Vec<CubeTensor>) {
        let (table, ids) = (wrap::<2>(inputs[0].clone()), wrap_ints(self.ids.clone()));
        (plain(table.select(0, ids)), Vec::new())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: Vec<CubeTensor>,
        gradient: &CubeTensor,
        _wanted: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let [n_entries, width] = inputs[0].meta.shape().dims::<2>();
        let of_table = empty(gradient, [n_entries, width]);
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: each workgroup writes one entry of the table; the gradient has a row for each id.
        unsafe {
            add_rows_of::launch_unchecked(
                &gradient.client,
                grid(n_entries, 1),
                CubeDim::new_1d(LANES as u32),
                self.ids.clone().into_buffer_arg(),
                gradient.clone().into_buffer_arg(),
                of_table.clone().into_buffer_arg(),
                self.ids.meta.shape()[0],
                n_entries,
                width,
            );
        }
        vec![Some(of_table)]
    }
}

/// The sum of the rows whose id is the workgroup's entry. The order of the sum depends only on the positions of these
/// rows.
#[cube(launch_unchecked)]
fn add_rows_of(ids: &[i32], gradient: &[f32], of_table: &mut [f32], n: usize, n_entries: usize, width: usize) {
    let entry = workgroup();
    if entry >= n_entries {
        terminate!();
    }
    let lane = UNIT_POS_X as usize;
    // For each lane, whether a row that it looks at has this id.
    let mut has_some = Shared::<[u32]>::new_slice(LANES);
    let mut found = 0u32;
    let mut row = lane;
    while row < n {
        if usize::cast_from(ids[row]) == entry {
            found = 1u32;
        }
        row += LANES;
    }
    has_some[lane] = found;
    let mut column = lane;
    while column < width {
        of_table[entry * width + column] = 0.0f32;
        column += LANES;
    }
    sync_cube();
    for other in 0..LANES {
        if has_some[other] == 1u32 {
            let mut row = other;
            while row < n {
                if usize::cast_from(ids[row]) == entry {
                    let mut column = lane;
                    while column < width {
                        of_table[entry * width + column] += gradient[row * width + column];
                        column += LANES;
                    }
                }
                row += LANES;
            }
        }
    }
}
