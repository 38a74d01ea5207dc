//! Matrices of integers: a number minus a zero point, times a scale, which a group of a row's inputs shares.

use std::array;

use half::f16;

use super::tensors::{Scales, Words};
use crate::ops::{BLOCK_SIZE, Dtype, QuantizedBlock, k_quants::GroupRun};

/// The columns of a word of AWQ, from the lowest bits on: where column `n` of eight is.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A matrix `[d_out, d_in]`.
#[derive(Debug)]
pub(super) struct Ints<'a> {
    pub(super) dims: [usize; 2],
    pub(super) bits: u32,
    pub(super) codes: Codes<'a>,
    pub(super) scales: Scales<'a>,
    /// Factor of the scales.
    pub(super) factor: f32,
    pub(super) zeros: Zeros<'a>,
    pub(super) groups: Groups,
    /// How scales and, in bytes, zero points are laid out.
    pub(super) by_group: ByGroup,
    form: Form,
}

/// Where the numbers are, unsigned.
#[derive(Clone, Copy, Debug)]
pub(super) enum Codes<'a> {
    /// Row by row, each filled up to a word.
    ByRow(Words<'a>),
    /// Several inputs of a row to a word, `[d_in / n, d_out]`.
    ByInput(Words<'a>),
    /// Eight rows at an input to a word, `[d_in, d_out / 8]`, in the order of AWQ.
    Awq(Words<'a>),
    /// Signed bytes, row by row.
    Bytes(&'a [u8]),
}

/// Where the zero points are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Zeros<'a> {
    /// The middle of the numbers.
    Middle,
    /// Several rows per word, `[n_groups, d_out / n]`, and an offset added to each zero point.
    ByGroup(Words<'a>, u8),
    /// As [`ByGroup`](Self::ByGroup), in the order of AWQ.
    Awq(Words<'a>),
    /// Several rows to a word, `[d_out / n, n_groups]`.
    ByRows(Words<'a>),
    /// Signed bytes, laid out as the scales.
    Bytes(&'a [u8]),
}

/// The groups of a row's inputs.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    pub(super) n: usize,
    /// The group of each input, unless groups follow one another.
    pub(super) index: Option<Vec<u32>>,
}

/// Where the scale of a row and a group is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByGroup {
    pub(super) row_stride: usize,
    pub(super) group_stride: usize,
}

/// How the CPU computes with runs of inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct RunLayout {
    /// Runs of 32 inputs that share a scale and a zero point: 1, 2 or 4.
    pub(in super::super) n_runs: usize,
    /// The inputs in the order of the runs; `None` if they are in order.
    pub(in super::super) order: Option<Vec<u32>>,
}

/// A form that represents the values exactly.
#[derive(Debug)]
enum Form {
    /// Only f32.
    Wide,
    /// Blocks of [`Dtype::Q4`] or [`Dtype::Q8`].
    Small(Dtype),
    Runs(RunLayout),
}

impl<'a> Ints<'a> {
    /// A matrix of these parts, whose sizes have been checked.
    pub(super) fn new(
        dims: [usize; 2],
        bits: u32,
        codes: Codes<'a>,
        (scales, factor): (Scales<'a>, f32),
        zeros: Zeros<'a>,
        (groups, by_group): (Groups, ByGroup),
    ) -> Self {
        let mut ints = Self { dims, bits, codes, scales, factor, zeros, groups, by_group, form: Form::Wide };
        ints.form = ints.find_form();
        ints
    }

    fn find_form(&self) -> Form {
        let [d_out, d_in] = self.dims;
        let mut sizes = vec![0; self.groups.n];
        (0..d_in).for_each(|input| sizes[self.group(input)] += 1);
        let fits = |n: usize| sizes.iter().all(|size: &usize| size.is_multiple_of(n * BLOCK_SIZE));
        let Some(n_runs) = [4, 2, 1].into_iter().find(|&n| fits(n)) else { return Form::Wide };
        let middle = 1 << (self.bits - 1);
        let (mut is_symmetric, mut fits_bytes, mut is_short) = (true, true, true);
        let (mut scales, mut zeros) = (vec![0.0; self.groups.n], vec![0; self.groups.n]);
        for row in 0..d_out {
            self.factors(row, &mut scales, &mut zeros);
            is_symmetric &= zeros.iter().all(|&zero| zero == middle);
            fits_bytes &= self.bits < 8 || zeros.iter().all(|&zero| zero < 256);
            is_short &= scales.iter().all(|&scale| f16::from_f32(scale).to_f32() == scale);
        }
        let small = match self.bits {
            8 => Dtype::Q8,
            _ => Dtype::Q4,
        };
        let order = self.groups.index.as_ref().map(|index| {
            let mut order: Vec<u32> = (0..d_in as u32).collect();
            order.sort_by_key(|&input| index[input as usize]);
            order
        });
        let order = order.filter(|order| !order.is_sorted());
        match order {
            None if is_symmetric && is_short => Form::Small(small),
            order if fits_bytes => Form::Runs(RunLayout { n_runs, order }),
            _ => Form::Wide,
        }
    }

    pub(super) fn dtype(&self) -> Option<Dtype> {
        match self.form {
            Form::Wide => None,
            Form::Small(dtype) => Some(dtype),
            Form::Runs(_) if self.bits == 8 => Some(Dtype::Int8),
            Form::Runs(_) => Some(Dtype::Int4),
        }
    }

    pub(super) fn layout(&self) -> Option<&RunLayout> {
        match &self.form {
            Form::Runs(layout) => Some(layout),
            _ => None,
        }
    }

    pub(super) fn is_finite(&self) -> bool {
        self.scales.is_finite()
    }

    fn group(&self, input: usize) -> usize {
        match &self.groups.index {
            Some(index) => index[input] as usize,
            None => input * self.groups.n / self.dims[1],
        }
    }

    /// The scales and zero points of a row's groups.
    fn factors(&self, row: usize, scales: &mut [f32], zeros: &mut [i32]) {
        let n_in_word = 32 / self.bits as usize;
        let d_out = self.dims[0];
        for (group, (scale, zero)) in scales.iter_mut().zip(zeros).enumerate() {
            let place = row * self.by_group.row_stride + group * self.by_group.group_stride;
            *scale = self.scales.get(place) * self.factor;
            *zero = match self.zeros {
                Zeros::Middle => 1 << (self.bits - 1),
                Zeros::ByGroup(words, added) => {
                    let at = group * (d_out / n_in_word) + row / n_in_word;
                    i32::from(words.part(at, row % n_in_word, self.bits)) + i32::from(added)
                }
                Zeros::Awq(words) => words.part(group * (d_out / 8) + row / 8, AWQ_PLACES[row % 8], 4).into(),
                Zeros::ByRows(words) => {
                    words.part(row / n_in_word * self.groups.n + group, row % n_in_word, self.bits).into()
                }
                Zeros::Bytes(bytes) => 128 + i32::from(bytes[place].cast_signed()),
            };
        }
    }

    /// The numbers of a row, unsigned.
    fn codes(&self, row: usize, out: &mut [u8]) {
        let [d_out, d_in] = self.dims;
        let n_in_word = 32 / self.bits as usize;
        let each = out.iter_mut().enumerate();
        match self.codes {
            Codes::ByRow(words) => {
                let first = row * d_in.div_ceil(n_in_word);
                each.for_each(|(at, out)| *out = words.part(first + at / n_in_word, at % n_in_word, self.bits));
            }
            Codes::ByInput(words) => {
                each.for_each(|(at, out)| *out = words.part(at / n_in_word * d_out + row, at % n_in_word, self.bits));
            }
            Codes::Awq(words) => {
                each.for_each(|(at, out)| *out = words.part(at * (d_out / 8) + row / 8, AWQ_PLACES[row % 8], 4));
            }
            Codes::Bytes(bytes) => each.for_each(|(at, out)| *out = bytes[row * d_in + at] ^ 0x80),
        }
    }

    /// Numbers, scales and zero points of a row.
    fn row(&self, row: usize) -> (Vec<u8>, Vec<f32>, Vec<i32>) {
        let (mut codes, mut scales, mut zeros) =
            (vec![0; self.dims[1]], vec![0.0; self.groups.n], vec![0; self.groups.n]);
        self.codes(row, &mut codes);
        self.factors(row, &mut scales, &mut zeros);
        (codes, scales, zeros)
    }

    pub(super) fn decode(&self, row: usize, out: &mut [f32]) {
        let (codes, scales, zeros) = self.row(row);
        for (input, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            let group = self.group(input);
            *out = (i32::from(code) - zeros[group]) as f32 * scales[group];
        }
    }

    pub(super) fn runs(&self, row: usize, out: &mut [GroupRun]) {
        let (codes, scales, zeros) = self.row(row);
        let order = self.layout().and_then(|layout| layout.order.as_deref());
        let input = |at: usize| order.map_or(at, |order| order[at] as usize);
        // Numbers of 8 bits are stored around zero.
        let below = if self.bits == 8 { 128 } else { 0 };
        for (run, out) in out.iter_mut().enumerate() {
            let group = self.group(input(run * BLOCK_SIZE));
            *out = GroupRun {
                scale: scales[group],
                zero: (zeros[group] - below) as i8,
                values: array::from_fn(|at| (i32::from(codes[input(run * BLOCK_SIZE + at)]) - below) as i8),
            };
        }
    }

    /// The row in blocks of [`Form::Small`].
    pub(super) fn small_blocks(&self, row: usize, out: &mut [QuantizedBlock]) {
        let (codes, scales, zeros) = self.row(row);
        for (run, out) in out.iter_mut().enumerate() {
            let group = self.group(run * BLOCK_SIZE);
            let value = |at: usize| (i32::from(codes[run * BLOCK_SIZE + at]) - zeros[group]) as i8;
            let scale = f16::from_f32(scales[group]);
            *out = QuantizedBlock { scale, minimum: f16::ZERO, values: array::from_fn(value) };
        }
    }
}
