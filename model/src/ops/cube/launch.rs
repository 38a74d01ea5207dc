//! Helpers of every kernel's launch: checked inputs, output tensors and grids of workgroups.

use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    kernel::into_contiguous,
    ops::numeric::empty_device_contiguous_dtype,
    tensor::CubeTensor,
};

/// Lanes per workgroup in most kernels.
pub(in crate::ops) const LANES: usize = 256;

/// Panics unless `tensor` is f32 of these dimensions: kernels check no bounds.
pub(in crate::ops) fn check<const D: usize>(name: &str, tensor: &Tensor<D>, dims: [usize; D]) {
    let (found, dtype) = (tensor.dims(), tensor.dtype());
    assert!(found == dims && dtype == DType::F32, "{name} must be f32 of {dims:?}, got {dtype:?} of {found:?}");
}

/// `inner * outer` workgroups, numbered with `inner` running fastest; see [`workgroup`].
pub(in crate::ops) fn grid(inner: usize, outer: usize) -> CubeCount {
    let n = inner * outer;
    // A dimension may be at most 65535.
    let x = n.min(1 << 15);
    CubeCount::Static(x as u32, n.div_ceil(x.max(1)) as u32, 1)
}

/// The number of this workgroup in a [`grid`]; may be beyond the last.
#[cube]
pub(in crate::ops) fn workgroup() -> usize {
    CUBE_POS_Y as usize * CUBE_COUNT_X as usize + CUBE_POS_X as usize
}

/// An uninitialized f32 tensor on the device of `like`.
pub(in crate::ops) fn empty<const D: usize>(like: &CubeTensor, dims: [usize; D]) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::new(dims), DType::F32)
}

/// A tensor to be written in place: itself if nothing else shares its memory, else a copy.
pub(super) fn writable(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

/// A tensor in the memory of another, from element `start`; both have elements of 4 bytes.
pub(super) fn part(all: &CubeTensor, start: usize, shape: Shape, dtype: DType) -> CubeTensor {
    let bytes = |n: usize| (n * size_of::<i32>()) as u64;
    let handle = all.handle.clone().offset_start(bytes(start));
    let behind = handle.size_in_used() - bytes(shape.num_elements());
    CubeTensor::new_contiguous(all.client.clone(), all.device.clone(), shape, handle.offset_end(behind), dtype)
}

/// Adds the first `n` rows of a workgroup's values, each of `width`, over groups of `lanes` lanes: as a tree, into each
/// group's first lane.
#[cube]
pub(super) fn add_lanes(
    values: &mut Shared<[f32]>,
    #[comptime] n: usize,
    #[comptime] lanes: usize,
    #[comptime] width: usize,
) {
    let lane = UNIT_POS_X as usize % lanes;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(lanes.ilog2() as usize) {
        let half = comptime!(lanes >> (step + 1));
        if lane < half {
            #[unroll]
            for row in 0..n {
                let at = row * width + UNIT_POS_X as usize;
                values[at] += values[at + half];
            }
        }
        sync_cube();
    }
}
