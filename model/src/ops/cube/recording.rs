//! Launches that a GPU was told of once and does again at a word.
//!
//! A decoding step of a small model is a hundred launches that take a few microseconds each, and telling a GPU of one
//! takes the processor longer than that. Burn and CubeCL can record them: what was allocated, bound and compiled is kept
//! with the recording, and doing it again is one call. (A CUDA graph there; on wgpu, commands that are encoded anew from
//! what was found out before.)

use burn::{
    backend::{Backend, BackendTypes, Cube, Dispatch},
    tensor::{Device, Tensor},
};
use burn_cubecl::{CubeBackend, cubecl::server::Handle};

use super::cube_device;
use crate::error::{Error, Result};

/// Runs before recording: the first fills the memory pools that the recorded run has to do with.
const WARM_UPS: usize = 2;
/// Buffers of each size that are kept ready beside what those runs needed: when memory is free again depends on threads
/// that wait for each other, so a run may need more than the one before.
const SPARE: usize = 4;
/// The same, of buffers without contents, which have memory pools of their own: it was they that ran out.
const SPARE_EMPTY: usize = 64;

/// Recorded launches.
#[derive(Debug)]
pub(crate) struct Recording {
    graph: <Dispatch as BackendTypes>::GraphPrimitive,
    device: Device,
}

impl Recording {
    /// Runs `run` twice, then records it, and gives what it made when it was recorded: its contents are there after the
    /// first [`replay`](Self::replay). It must launch the same each time and upload nothing. `sizes` are those of buffers that
    /// it makes, in bytes: there will be some to spare.
    ///
    /// # Errors
    /// [`Error::Execution`] where the device cannot record, or ran out of memory. Nothing is left recording, but what the run
    /// would have written cannot be read until something has written it, though nothing in it changed.
    pub(crate) fn new<T>(device: &Device, sizes: &[usize], mut run: impl FnMut() -> T) -> Result<(Self, T)> {
        let dispatch = device.as_dispatch();
        Dispatch::graph_prepare(dispatch).map_err(failed)?;
        let spare = spare(device, sizes);
        let mut warm_up = || {
            // Held until it ran: operations whose result nobody holds are left out.
            let made = run();
            Dispatch::sync(dispatch).map(|()| drop(made))
        };
        let warmed_up = (0..WARM_UPS).try_for_each(|_| warm_up());
        drop(spare);
        let begun = warmed_up.and_then(|()| Dispatch::graph_start_capture(dispatch));
        if let Err(error) = begun {
            // Ends what was prepared. There is no recording, as it will say.
            let _ = Dispatch::graph_stop_capture(dispatch);
            return Err(failed(error));
        }
        let made = run();
        let graph = Dispatch::graph_stop_capture(dispatch).map_err(failed)?;
        Ok((Self { graph, device: device.clone() }, made))
    }

    /// Does all of it again, with what is in the memory that it reads now. Operations that were queued before go first.
    ///
    /// # Errors
    /// [`Error::Execution`] when the device fails.
    ///
    /// # Safety
    /// Every tensor that the recorded run read or wrote and did not make itself must still be where it was, and nobody else
    /// may use it meanwhile but from this thread.
    #[expect(unsafe_code, reason = "the recording knows addresses, not tensors")]
    pub(crate) unsafe fn replay(&self) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { Dispatch::graph_replay(self.device.as_dispatch(), &self.graph) }.map_err(failed)
    }
}

/// Where a tensor lies in a GPU's memory. Equal addresses are the same memory, however long ago one of them was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    allocation: usize,
    offset: Option<u64>,
}

impl Address {
    /// Where `tensor` lies once all queued operations have been launched, which this does. `None` unless it is on a GPU.
    pub(crate) fn of(tensor: &Tensor<2>) -> Option<Self> {
        let fused = tensor.clone().try_into_primitive::<Cube>().ok()?;
        let client = fused.client.clone();
        let handle = client.resolve_tensor_float::<CubeBackend>(fused).handle;
        Some(Self { allocation: handle.memory.descriptor().id.value, offset: handle.offset_start })
    }
}

/// Buffers of these sizes on `device`, where this thread's operations take theirs from.
fn spare(device: &Device, sizes: &[usize]) -> Vec<Handle> {
    let Some(cube) = cube_device(device) else { return Vec::new() };
    let client = cube.client();
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
        ops::{Ints, StagingBuffer, Upload},
        software_adapter::gpu,
    };

    #[test]
    fn an_address_is_that_of_the_memory() {
        let Some(gpu) = gpu() else { return };
        let mut tensor = Tensor::<2>::zeros([4, 4], &gpu);
        let address = Address::of(&tensor);
        assert!(address.is_some());
        assert_eq!(Address::of(&tensor.clone()), address);
        assert_ne!(Address::of(&Tensor::zeros([4, 4], &gpu)), address);
        let held = tensor.clone();
        tensor = tensor + 1.0;
        assert_ne!(Address::of(&tensor), address, "somebody else has the memory");
        assert_eq!(Address::of(&held), address);
        assert_eq!(Address::of(&Tensor::zeros([4, 4], &Device::flex())), None);
    }

    fn values(x: &Tensor<1>) -> Vec<f32> {
        x.clone().into_data().try_into_vec().unwrap()
    }

    #[test]
    fn what_is_recorded_reads_what_is_there_when_it_is_done_again() {
        let Some(gpu) = gpu() else { return };
        let input = Ints::new(vec![1, 2, 3], &gpu);
        let mut places = StagingBuffer::new(&[Upload::Ints(&input)], &gpu);
        let (recording, output) = Recording::new(&gpu, &[], || input.tensor().float() * 2.0).unwrap();
        for n in [5, 7] {
            places.overwrite(&[Upload::Ints(&Ints::new(vec![n, 2 * n, 3 * n], &gpu))]);
            // SAFETY: input and output are here.
            unsafe { recording.replay() }.unwrap();
            let n = 2.0 * n as f32;
            assert_eq!(values(&output), [n, 2.0 * n, 3.0 * n]);
        }
    }

    /// Where what is recorded needs memory that the runs before did not, there is no recording.
    #[test]
    fn what_cannot_be_recorded_is_an_error_and_the_device_goes_on() {
        let Some(gpu) = gpu() else { return };
        let ones = Tensor::<1>::ones([64], &gpu);
        let mut n_runs = 0;
        let recorded = Recording::new(&gpu, &[], || {
            n_runs += 1;
            let more = (n_runs > WARM_UPS).then(|| Tensor::<2>::ones([3000, 1001], &gpu) * 2.0);
            (ones.clone() + 1.0, more)
        });
        let what = recorded.map(drop).unwrap_err().to_string();
        assert!(what.contains("capture"), "{what}");
        let (recording, sums) = Recording::new(&gpu, &[256], || ones.clone() + 2.0).unwrap();
        // SAFETY: both tensors are here.
        unsafe { recording.replay() }.unwrap();
        assert_eq!(values(&sums), vec![3.0; 64]);
    }
}
