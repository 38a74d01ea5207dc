//! Captured GPU command graphs that can be replayed.
//!
//! A decoding step of a small model is a hundred launches of a few microseconds each, and launching takes the processor
//! longer than that. Burn and CubeCL can capture them: allocations, bindings and compiled kernels are kept with the
//! graph, and a replay is one call. (With CUDA it is a CUDA graph; with wgpu, commands are encoded again from resources
//! looked up before.)

use burn::{
    backend::{Backend, BackendTypes, Cube, Dispatch},
    tensor::{Device, Tensor},
};
use burn_cubecl::cubecl::server::Handle;

use super::cube_device;
use crate::error::{Error, Result};

/// Runs before capture: the first one fills the memory pools, which must then suffice for the captured run.
const WARM_UPS: usize = 2;
/// Spare buffers of each size: when memory becomes free depends on the timing of several threads, so a run may need
/// more than the one before.
const SPARE: usize = 4;
/// Spare buffers of size 0: they come from separate memory pools, which could otherwise run out.
const SPARE_EMPTY: usize = 64;

/// A captured graph.
#[derive(Debug)]
pub(crate) struct CapturedGraph {
    graph: <Dispatch as BackendTypes>::GraphPrimitive,
    device: Device,
}

impl CapturedGraph {
    /// Calls `run` twice, then captures it, and returns the captured call's result, which is computed at the first
    /// [`replay`](Self::replay). `run` must launch the same each time and must not upload anything. `sizes` are the
    /// sizes of the buffers that it allocates, in bytes; spare buffers are provided.
    ///
    /// # Errors
    /// [`Error::Execution`] if the device cannot capture, or ran out of memory. Capture has then ended, but tensors
    /// that the run would have written cannot be read until something else writes them.
    pub(crate) fn new<T>(device: &Device, sizes: &[usize], mut run: impl FnMut() -> T) -> Result<(Self, T)> {
        let dispatch = device.as_dispatch();
        Dispatch::graph_prepare(dispatch).map_err(failed)?;
        let spare = spare(device, sizes);
        let mut warm_up = || {
            // The result is held until the device is done: operations whose results are dropped are not executed.
            let made = run();
            Dispatch::sync(dispatch).map(|()| drop(made))
        };
        let warmed_up = (0..WARM_UPS).try_for_each(|_| warm_up());
        drop(spare);
        let begun = warmed_up.and_then(|()| Dispatch::graph_start_capture(dispatch));
        if let Err(error) = begun {
            // Ends the preparation. The error only says that nothing was captured.
            let _ = Dispatch::graph_stop_capture(dispatch);
            return Err(failed(error));
        }
        let made = run();
        let graph = Dispatch::graph_stop_capture(dispatch).map_err(failed)?;
        Ok((Self { graph, device: device.clone() }, made))
    }

    /// Replays the graph on the present contents of the memory that it reads, after the operations that were queued
    /// before.
    ///
    /// # Errors
    /// [`Error::Execution`] if the device fails.
    ///
    /// # Safety
    /// Every tensor that the captured run used and did not create must still be at the same address, and only this
    /// thread may use it meanwhile.
    #[expect(unsafe_code, reason = "the graph knows addresses, not tensors")]
    pub(crate) unsafe fn replay(&self) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { Dispatch::graph_replay(self.device.as_dispatch(), &self.graph) }.map_err(failed)
    }
}

/// The address of a tensor in a GPU's memory. Equal addresses are the same memory, at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    allocation: usize,
    offset: Option<u64>,
}

impl Address {
    /// The address of `tensor` after all queued operations, which this launches. `None` if it is not on a GPU.
    pub(crate) fn of(tensor: &Tensor<2>) -> Option<Self> {
        let handle = tensor.clone().try_into_primitive::<Cube>().ok()?.handle;
        Some(Self { allocation: handle.memory.descriptor().id.value, offset: handle.offset_start })
    }
}

/// Spare buffers of these sizes on `device`, from the pool of this thread's operations.
fn spare(device: &Device, sizes: &[usize]) -> Vec<Handle> {
    let client = cube_device(device).client();
    let empty = std::iter::repeat_n(0, SPARE_EMPTY);
    empty.chain(sizes.iter().flat_map(|&size| [size; SPARE])).map(|size| client.empty(size)).collect()
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Execution { what: error.to_string() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, unsafe_code, reason = "tests")]
mod tests {
    use super::*;
    use crate::{
        ops::{Ints, StagingBuffer, Upload, packed},
        test_gpu::gpu,
    };

    #[test]
    fn tensor_address_identifies_its_gpu_memory() {
        let Some(gpu) = gpu() else { return };
        let mut tensor = Tensor::<2>::zeros([4, 4], &gpu);
        let address = Address::of(&tensor);
        assert!(address.is_some());
        assert_eq!(Address::of(&tensor.clone()), address);
        assert_ne!(Address::of(&Tensor::zeros([4, 4], &gpu)), address);
        let held = tensor.clone();
        tensor = tensor + 1.0;
        assert_ne!(Address::of(&tensor), address, "the memory is reused");
        assert_eq!(Address::of(&held), address);
        assert_eq!(Address::of(&Tensor::zeros([4, 4], &Device::flex())), None);
    }

    fn values(x: &Tensor<1>) -> Vec<f32> {
        x.clone().into_data().try_into_vec().unwrap()
    }

    #[test]
    fn replayed_graph_reads_the_current_inputs() {
        let Some(gpu) = gpu() else { return };
        let input = Ints::new(vec![1, 2, 3], &gpu);
        let mut staging = StagingBuffer::new(&[Upload::Ints(&input)], &gpu);
        let (graph, output) = CapturedGraph::new(&gpu, &[], || input.tensor().float() * 2.0).unwrap();
        for n in [5, 7] {
            staging.overwrite(packed(&[Upload::Ints(&Ints::new(vec![n, 2 * n, 3 * n], &gpu))]));
            // SAFETY: input and output are here.
            unsafe { graph.replay() }.unwrap();
            let n = 2.0 * n as f32;
            assert_eq!(values(&output), [n, 2.0 * n, 3.0 * n]);
        }
    }

    /// If the captured run needs memory that the runs before did not, capture fails.
    #[test]
    fn graph_capture_fails_if_memory_must_be_allocated() {
        let Some(gpu) = gpu() else { return };
        let ones = Tensor::<1>::ones([64], &gpu);
        let mut n_runs = 0;
        let captured = CapturedGraph::new(&gpu, &[], || {
            n_runs += 1;
            let more = (n_runs > WARM_UPS).then(|| Tensor::<2>::ones([3000, 1001], &gpu) * 2.0);
            (ones.clone() + 1.0, more)
        });
        let what = captured.map(drop).unwrap_err().to_string();
        assert!(what.contains("capture"), "{what}");
        let (graph, sums) = CapturedGraph::new(&gpu, &[256], || ones.clone() + 2.0).unwrap();
        // SAFETY: both tensors are here.
        unsafe { graph.replay() }.unwrap();
        assert_eq!(values(&sums), vec![3.0; 64]);
    }
}
