//! Measures the GPU's memory bandwidth and arithmetic rate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use burn::tensor::{DType, Device};
use burn_cubecl::{
    cubecl::{
        self, MemoryScope,
        logging::{LaunchObservation, LaunchObserver},
        prelude::*,
        server::Handle,
    },
    tensor::CubeTensor,
};

use super::{
    device::cube_device,
    launch::{LANES, grid, workgroup},
    matrix::Format,
    product,
};
use crate::{
    error::{Error, Result},
    ops::{DeviceMemory, GpuFeatures},
};

/// Vectors that a lane reads.
const READS: usize = 32;
/// Vectors that a lane loads before it uses the first.
const AT_A_TIME: usize = 4;
/// Largest buffer, if the device allows it.
const MAX_BYTES: usize = 1 << 30;
/// Passes per submission, so that its latency does not count.
const TOGETHER: usize = 8;
/// Number of measurements. The fastest counts, because disturbances only make them slower.
const PASSES: usize = 4;
/// Independent sums per lane, in vectors.
const CHAINS: usize = 4;
/// Multiply-adds per sum.
const TURNS: usize = 256;
/// Workgroups to begin with.
const FIRST_BLOCKS: usize = 64;
/// Least duration of a pass in seconds, so that latency does not count.
const LONG_PASS: f64 = 0.02;
/// Most workgroups.
const MAX_BLOCKS: usize = 1 << 22;

/// See [`device_memory`](crate::ops::device_memory).
pub(in crate::ops) fn device_memory(device: &Device) -> DeviceMemory {
    let client = cube_device(device).client();
    let usage = client.memory_report(MemoryScope::Device).usage();
    DeviceMemory {
        in_use: usage.bytes_in_use,
        reserved: usage.bytes_reserved,
        largest_tensor: client.properties().memory.max_page_size,
    }
}

/// See [`gpu_features`](crate::ops::gpu_features).
pub(in crate::ops) fn gpu_features(device: &Device) -> GpuFeatures {
    let client = cube_device(device).client();
    let properties = client.properties();
    let hardware = &properties.hardware;
    let instructions = properties.features.matmul.cmma.iter();
    GpuFeatures {
        interface: client.name().to_owned(),
        subgroup: [hardware.plane_size_min, hardware.plane_size_max],
        shared_bytes: hardware.max_shared_memory_size,
        largest_tensor: properties.memory.max_page_size,
        has_f16: properties.supports_type(Format::F16.element()),
        matrix_instructions: instructions
            .map(|found| {
                let [a, b, sums] = [found.a_type, found.b_type, found.cd_type];
                format!("{a} x {b} to {sums}, {}x{}x{}", found.m, found.n, found.k)
            })
            .collect(),
        products: product::choose_instructions(&client),
    }
}

/// Bytes per second at which the device reads `n_bytes` repeatedly.
pub(in crate::ops) fn read_bandwidth(n_bytes: usize, device: &Device) -> Result<f64> {
    let device = cube_device(device);
    let client = device.client();
    let block = LANES * READS * 16;
    let limit = usize::try_from(client.properties().memory.max_page_size).unwrap_or(usize::MAX).min(MAX_BYTES);
    let n_buffers = n_bytes.div_ceil((limit / block).max(1) * block).max(1);
    let n_blocks = n_bytes.div_ceil(n_buffers * block).max(1);
    let buffers: Vec<Handle> = (0..n_buffers).map(|_| client.empty(n_blocks * block)).collect();
    let buffer = |handle: &Handle, len: usize| {
        CubeTensor::new_contiguous(client.clone(), device.clone(), [len].into(), handle.clone(), DType::U32)
            .into_buffer_arg()
    };
    let found = client.create_from_slice(&[0; 4]);
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let start = Instant::now();
        for handle in (0..TOGETHER).flat_map(|_| &buffers) {
            #[expect(unsafe_code, reason = "a kernel without bounds checks")]
            // SAFETY: each workgroup reads its own block, and the grid has no more workgroups than there are blocks.
            unsafe {
                read_all::launch_unchecked(
                    &client,
                    grid(n_blocks, 1),
                    CubeDim::new_1d(LANES as u32),
                    buffer(handle, n_blocks * block / 4),
                    buffer(&found, 1),
                    n_blocks,
                );
            }
        }
        let read = client.read_one(found.clone());
        read.map_err(|error| Error::Execution { what: format!("cannot read the device's memory: {error:?}") })?;
        best = best.min(start.elapsed().as_secs_f64() / TOGETHER as f64);
    }
    Ok((n_buffers * n_blocks * block) as f64 / best)
}

/// Multiply-adds per second of the device with operands in registers, in f32.
pub(in crate::ops) fn multiply_rate(device: &Device) -> Result<f64> {
    let device = cube_device(device);
    let client = device.client();
    let found = client.create_from_slice(&[0; 4]);
    let pass = |n_blocks: usize| {
        let start = Instant::now();
        let found_arg =
            CubeTensor::new_contiguous(client.clone(), device.clone(), [1].into(), found.clone(), DType::F32);
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: nothing is read, and the output has the one number that is written.
        unsafe {
            multiply_all::launch_unchecked(
                &client,
                grid(n_blocks, 1),
                CubeDim::new_1d(LANES as u32),
                found_arg.into_buffer_arg(),
                0.5,
                1.0,
            );
        }
        let read = client.read_one(found.clone());
        read.map_err(|error| Error::Execution { what: format!("the device failed to compute: {error:?}") })?;
        Ok(start.elapsed().as_secs_f64())
    };
    // Compiles the kernel and wakes the device.
    pass(FIRST_BLOCKS)?;
    let mut n_blocks = FIRST_BLOCKS;
    while pass(n_blocks)? < LONG_PASS && n_blocks < MAX_BLOCKS {
        n_blocks *= 4;
    }
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        best = best.min(pass(n_blocks)?);
    }
    Ok((n_blocks * LANES * CHAINS * 4 * TURNS) as f64 / best)
}

/// Counts launches.
#[derive(Debug, Default)]
struct Launches(AtomicUsize);

impl LaunchObserver for Launches {
    fn launched(&self, _kernel: &'static str) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// [`count_launches`](crate::ops::count_launches).
pub(in crate::ops) fn count_launches<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let launches = Arc::new(Launches::default());
    let observation = LaunchObservation::new(launches.clone());
    let given = run();
    drop(observation);
    (given, launches.0.load(Ordering::Relaxed))
}

#[cube(launch_unchecked)]
fn multiply_all(found: &mut [f32], factor: f32, term: f32) {
    let factors = Vector::<f32, Const<4>>::new(factor);
    let terms = Vector::<f32, Const<4>>::new(term);
    let mut sums = Array::<Vector<f32, Const<4>>>::new(CHAINS);
    #[unroll]
    for i in 0..CHAINS {
        sums[i] = Vector::<f32, Const<4>>::new(term * i as f32);
    }
    for _ in 0..TURNS {
        #[unroll]
        for i in 0..CHAINS {
            sums[i] = fma(sums[i], factors, terms);
        }
    }
    let mut sum = 0.0f32;
    #[unroll]
    for i in 0..CHAINS {
        #[unroll]
        for j in 0..4usize {
            sum += sums[i].extract(j);
        }
    }
    // Never true, but an unused result would be optimized away.
    if sum < 0.0f32 {
        found[0] = sum;
    }
}

#[cube(launch_unchecked)]
fn read_all(values: &[Vector<u32, Const<4>>], found: &mut [u32], n_blocks: usize) {
    let block = workgroup();
    if block < n_blocks {
        let first = block * comptime!(LANES * READS) + UNIT_POS_X as usize;
        let mut sum = 0u32;
        for turn in 0..comptime!(READS / AT_A_TIME) {
            let mut several = Array::<Vector<u32, Const<4>>>::new(AT_A_TIME);
            #[unroll]
            for i in 0..AT_A_TIME {
                several[i] = values[first + (turn * AT_A_TIME + i) * LANES];
            }
            #[unroll]
            for i in 0..AT_A_TIME {
                #[unroll]
                for j in 0..4usize {
                    sum ^= several[i].extract(j);
                }
            }
        }
        // Practically never true, but unused values would not be read.
        if sum == 0x9e37_79b9u32 {
            found[0] = sum;
        }
    }
}
