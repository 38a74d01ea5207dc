//! What every launch needs: a grid of workgroups, and tensors to write to.

use burn::tensor::{DType, Shape};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    ops::numeric::empty_device_contiguous_dtype,
    tensor::CubeTensor,
};

/// `inner * outer` workgroups, numbered with `inner` running fastest; see [`workgroup`].
pub(super) fn grid(inner: usize, outer: usize) -> CubeCount {
    let n = inner * outer;
    // A dimension holds 65535 at most.
    let x = n.min(1 << 15);
    CubeCount::Static(x as u32, n.div_ceil(x.max(1)) as u32, 1)
}

/// The number of this workgroup in a [`grid`]; may be beyond the last.
#[cube]
pub(super) fn workgroup() -> usize {
    CUBE_POS_Y as usize * CUBE_COUNT_X as usize + CUBE_POS_X as usize
}

/// An f32 tensor with no values yet, where `like` is.
pub(super) fn empty<const D: usize>(like: &CubeTensor, dims: [usize; D]) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::new(dims), DType::F32)
}
