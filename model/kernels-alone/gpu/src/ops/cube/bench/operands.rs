//! Operands: numbers that are repeated every few thousand, so that any of them is known without keeping all.

use std::rc::Rc;

use burn::{
    backend::CubeDevice,
    tensor::{DType, Device, Shape},
};
use burn_cubecl::{
    cubecl::{client::Client, prelude::CubeElement},
    tensor::CubeTensor,
};
use half::{bf16, f16};

use super::super::{
    cube_device,
    matrix::{Format, Matrix},
};
use crate::ops::{BLOCK_SIZE, Dtype};

/// Numbers after which all repeat: a prime, so that rows differ.
const PERIOD: usize = 65_521;
/// The scale of each quantized block.
const SCALE: f32 = 0.01;

/// A device to launch on.
pub struct Gpu {
    /// Launches.
    pub client: Client,
    /// Burn's device, if the client is one of Burn's.
    pub device: Option<Device>,
    cube: CubeDevice,
    has_values: bool,
    /// Random words.
    words: Rc<Vec<u32>>,
}

impl Gpu {
    /// A device of Burn's.
    pub fn open(device: &Device) -> Self {
        let cube = cube_device(device);
        Self::new(cube.client(), cube.clone(), Some(device.clone()))
    }

    /// A client that is not one of Burn's.
    pub fn of_client(client: Client) -> Self {
        Self::new(client, CubeDevice::Wgpu(Default::default()), None).without_values()
    }

    fn new(client: Client, cube: CubeDevice, device: Option<Device>) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32) as u32
        };
        let words = Rc::new((0..PERIOD).map(|_| next()).collect());
        Self { client, cube, device, has_values: true, words }
    }

    /// The same, but operands keep whatever was in their memory.
    pub fn without_values(self) -> Self {
        Self { has_values: false, ..self }
    }

    fn tensor(&self, words: impl Fn(usize) -> u32, n_words: usize, dims: &[usize], dtype: DType) -> CubeTensor {
        let handle = match self.has_values {
            true => {
                let period: Vec<u32> = (0..PERIOD.min(n_words)).map(words).collect();
                let all: Vec<u32> = period.iter().copied().cycle().take(n_words).collect();
                self.client.create_from_slice(u32::as_bytes(&all))
            }
            false => self.client.empty(n_words * size_of::<u32>()),
        };
        CubeTensor::new_contiguous(self.client.clone(), self.cube.clone(), Shape::from(dims.to_vec()), handle, dtype)
    }

    /// Number `at` of each tensor of [`floats`](Self::floats): within `-1..1`.
    pub fn value(&self, at: usize) -> f32 {
        self.words[at % PERIOD].cast_signed() as f32 / 2f32.powi(31)
    }

    /// f32 of these dimensions.
    pub fn floats(&self, dims: &[usize]) -> CubeTensor {
        self.tensor(|at| self.value(at).to_bits(), dims.iter().product(), dims, DType::F32)
    }

    /// A pool of f16, or of f32 if the device has none: `[n_slots, width]`.
    pub fn pool(&self, dims: &[usize]) -> CubeTensor {
        if !self.client.properties().supports_type(Format::F16.element()) {
            return self.floats(dims);
        }
        let n: usize = dims.iter().product();
        self.tensor(|at| self.halves(at), n.div_ceil(2), dims, DType::F16)
    }

    /// Uploads these numbers.
    pub fn ints(&self, values: &[i32]) -> CubeTensor {
        let handle = self.client.create_from_slice(i32::as_bytes(values));
        CubeTensor::new_contiguous(
            self.client.clone(),
            self.cube.clone(),
            Shape::new([values.len()]),
            handle,
            DType::I32,
        )
    }

    /// Two numbers of f16 in a word.
    fn halves(&self, at: usize) -> u32 {
        let half = |value: f32| u32::from(f16::from_f32(value).to_bits());
        half(self.value(at)) | half(self.value(at + 1)) << 16
    }

    /// A matrix `[d_out, d_in]` of `dtype`.
    pub fn weights(&self, dtype: Dtype, [d_out, d_in]: [usize; 2]) -> Weights {
        let has_f16 = self.client.properties().supports_type(Format::F16.element());
        let format = match (dtype, dtype.layout()) {
            (_, Some(layout)) => Format::Blocks(layout),
            (Dtype::F16, _) if has_f16 => Format::F16,
            (Dtype::F16, _) => Format::F16Words,
            (Dtype::Bf16, _) => Format::Bf16,
            _ => Format::F32,
        };
        let empty = || self.ints(&[0]);
        let mut matrix = Matrix {
            d_out,
            d_in,
            dtype,
            format,
            words: empty(),
            scales: empty(),
            device: self.device.clone().unwrap_or_else(Device::flex),
        };
        let n_words = d_out * matrix.units() * format.unit_words();
        let words: Rc<Vec<u32>> = Rc::new((0..PERIOD).map(|at| self.word(at, format)).collect());
        matrix.words = self.tensor(|at| words[at], n_words, &[n_words], DType::U32);
        if format.is_quantized() {
            let scale = u32::from(f16::from_f32(SCALE).to_bits());
            let n_scales = d_out * matrix.scale_words();
            matrix.scales = self.tensor(|_| scale | scale << 16, n_scales, &[n_scales], DType::U32);
        }
        Weights { matrix, words }
    }

    fn word(&self, at: usize, format: Format) -> u32 {
        match format {
            Format::F32 => self.value(at).to_bits(),
            Format::F16 | Format::F16Words => self.halves(at),
            Format::Bf16 => self.value(at).to_bits() >> 16 | self.value(at + 1).to_bits() & 0xffff_0000,
            Format::Blocks(_) => self.words[at % PERIOD],
        }
    }
}

/// A matrix on a device whose values are known.
pub struct Weights {
    /// On the device.
    pub(in super::super) matrix: Matrix,
    words: Rc<Vec<u32>>,
}

impl Weights {
    /// The values of a row; of formats without minima.
    pub fn row(&self, row: usize) -> Vec<f64> {
        let Matrix { d_in, format, .. } = self.matrix;
        let row_words = self.matrix.units() * format.unit_words();
        let bits = 32 / format.per_word();
        let value = |at: usize| {
            let word = self.words[(row * row_words + at / format.per_word()) % PERIOD];
            let part = word >> (bits * (at % format.per_word()));
            match format {
                Format::F32 => f64::from(f32::from_bits(word)),
                Format::F16 | Format::F16Words => f64::from(f16::from_bits(part as u16).to_f32()),
                Format::Bf16 => f64::from(bf16::from_bits(part as u16).to_f32()),
                Format::Blocks(_) => {
                    let number = (part & ((1 << bits) - 1)).cast_signed() - format.offset();
                    f64::from(number) * f64::from(f16::from_f32(SCALE).to_f32())
                }
            }
        };
        (0..d_in).map(value).collect()
    }

    /// Bytes that a product reads.
    pub fn n_bytes(&self) -> usize {
        self.matrix.n_bytes()
    }

    /// The largest error of some values of `x W^T`, where `x [n_rows, d_in]` is of [`Gpu::floats`].
    pub fn error(&self, x: &[f32], found: &[f32], n_rows: usize) -> f64 {
        let [d_out, d_in] = [self.matrix.d_out, self.matrix.d_in];
        let mut largest = 0f64;
        for sample in 0..SAMPLES {
            let (row, out) = (sample * 7 % n_rows, (sample * 7919 + 1) % d_out);
            let terms = self
                .row(out)
                .into_iter()
                .enumerate()
                .map(|(at, weight)| weight * f64::from(x[(row * d_in + at) % PERIOD]));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + f64::abs(term)));
            largest = largest.max((f64::from(found[row * d_out + out]) - sum).abs() / size);
        }
        largest
    }
}

/// Results that are computed again in f64.
const SAMPLES: usize = 24;

impl Gpu {
    /// The numbers of [`floats`](Self::floats), as many as repeat.
    pub fn period(&self) -> Vec<f32> {
        (0..PERIOD).map(|at| self.value(at)).collect()
    }
}
