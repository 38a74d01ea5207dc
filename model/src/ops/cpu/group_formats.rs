//! Integers of 4 or 8 bits with a scale and a zero point per group of inputs, which may be in another order than the
//! matrix's.

use std::array;

use half::f16;

use super::{
    panel_layout::{Line, PANEL},
    panel_storage::{Input, PanelValues, QuantPanels},
    prefetch::ReadRange,
    quant_blocks::{Bytes, GroupFactors, Nibbles, Numbers, QuantBlock, RowBlock},
    quant_rounding::nearest_q8,
    quant_rows::InputCorrection,
};
use crate::ops::{BLOCK_SIZE as BLOCK, Dtype, MatrixRows, Precision, QuantizedBlock, k_quants::GroupRun};

/// Lays out a matrix: see [`BlockRows::Groups`](crate::ops::k_quants::BlockRows::Groups).
pub(super) fn pack(
    rows: &MatrixRows<'_, GroupRun>,
    dtype: Dtype,
    n_runs: usize,
    order: Option<&[u32]>,
) -> Box<dyn PanelValues> {
    let values = match (dtype, n_runs) {
        (Dtype::Int4, 4) => pack_as::<Nibbles, 4>(rows),
        (Dtype::Int4, 2) => pack_as::<Nibbles, 2>(rows),
        (Dtype::Int4, _) => pack_as::<Nibbles, 1>(rows),
        (_, 4) => pack_as::<Bytes, 4>(rows),
        _ => pack_as::<Bytes, 1>(rows),
    };
    match order {
        Some(order) => Box::new(Reordered { order: order.to_vec(), values }),
        None => values,
    }
}

fn pack_as<N: Numbers, const RUNS: usize>(rows: &MatrixRows<'_, GroupRun>) -> Box<dyn PanelValues> {
    let read = |row, out: &mut [GroupRow<RUNS>]| {
        let mut runs = vec![GroupRun::default(); rows.row_len()];
        rows.read(row, &mut runs);
        for (out, runs) in out.iter_mut().zip(runs.as_chunks::<RUNS>().0) {
            *out = GroupRow { scale: runs[0].scale, zero: runs[0].zero, values: runs.map(|run| run.values) };
        }
    };
    Box::new(QuantPanels::<GroupBlock<N, RUNS>>::pack(&MatrixRows::new(rows.dims(), rows.row_len() / RUNS, read)))
}

/// A group of a row's inputs, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GroupRow<const RUNS: usize> {
    pub(super) scale: f32,
    pub(super) zero: i8,
    pub(super) values: [[i8; BLOCK]; RUNS],
}

impl<const RUNS: usize> Default for GroupRow<RUNS> {
    fn default() -> Self {
        Self { scale: 0.0, zero: 0, values: [[0; BLOCK]; RUNS] }
    }
}

impl<const RUNS: usize> RowBlock for GroupRow<RUNS> {
    fn weights(self) -> impl IntoIterator<Item = f32> {
        let weight = move |value| (i32::from(value) - i32::from(self.zero)) as f32 * self.scale;
        self.values.into_iter().flatten().map(weight)
    }

    fn small_blocks(self) -> impl IntoIterator<Item = QuantizedBlock> {
        let scale = f16::from_f32(self.scale);
        self.values.map(|values| {
            let values = values.map(|value| i32::from(value) - i32::from(self.zero));
            match values.iter().all(|&value| i8::try_from(value).is_ok()) && scale.to_f32() == self.scale {
                true => QuantizedBlock { scale, minimum: f16::ZERO, values: values.map(|value| value as i8) },
                false => nearest_q8(&values.map(|value| value as f32 * self.scale)),
            }
        })
    }
}

/// [`GroupRow`]s of a panel. With groups of 128 inputs, 4 bits take 4.375 bits a weight, and 8 bits 8.375.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct GroupBlock<N, const RUNS: usize> {
    scales: Line<f32, PANEL>,
    zeros: [i8; PANEL],
    runs: [N; RUNS],
}

impl<N: Numbers, const RUNS: usize> QuantBlock for GroupBlock<N, RUNS> {
    type Row = GroupRow<RUNS>;
    type Numbers = N;
    type Factors<'a> = GroupFactors<'a>;

    /// Bytes are signed.
    const OFFSET: i32 = if N::MIDDLE == 128 { 128 } else { 0 };
    const CORRECTION: InputCorrection =
        if N::MIDDLE == 128 { InputCorrection::OffsetAndSum(128) } else { InputCorrection::Sum };
    const RUNS: usize = RUNS;

    fn pack(rows: &[GroupRow<RUNS>; PANEL]) -> Self {
        let number = |run: usize, row: usize, input: usize| {
            rows[row].values[run][input].cast_unsigned().wrapping_add(Self::OFFSET as u8)
        };
        Self {
            scales: Line(rows.map(|row| row.scale)),
            zeros: rows.map(|row| row.zero),
            runs: array::from_fn(|run| N::pack(|row, group| array::from_fn(|n| number(run, row, 4 * group + n)))),
        }
    }

    fn unpack(&self, row: usize) -> GroupRow<RUNS> {
        let value = |run: usize, input| self.runs[run].get(row, input).wrapping_sub(Self::OFFSET as u8).cast_signed();
        let values = array::from_fn(|run| array::from_fn(|input| value(run, input)));
        GroupRow { scale: self.scales.0[row], zero: self.zeros[row], values }
    }

    #[inline(always)]
    fn numbers(&self, run: usize) -> &N {
        &self.runs[run]
    }

    #[inline(always)]
    fn scales(&self, _run: usize, _half: usize) -> GroupFactors<'_> {
        GroupFactors { scales: &self.scales.0, zeros: None }
    }

    #[inline(always)]
    fn minima(&self, _run: usize, _half: usize) -> Option<GroupFactors<'_>> {
        Some(GroupFactors { scales: &self.scales.0, zeros: Some(&self.zeros) })
    }

    /// As files define it: the zero point is subtracted before scaling, which may round otherwise than after it.
    fn widen(&self, run: usize, lines: &mut [[f32; PANEL]; BLOCK]) {
        for (input, line) in lines.iter_mut().enumerate() {
            *line = array::from_fn(|row| {
                let number = i32::from(self.runs[run].get(row, input)) - Self::OFFSET - i32::from(self.zeros[row]);
                number as f32 * self.scales.0[row]
            });
        }
    }
}

/// A matrix whose inputs are laid out in another order.
#[derive(Debug)]
struct Reordered {
    /// The input at each place.
    order: Vec<u32>,
    values: Box<dyn PanelValues>,
}

impl PanelValues for Reordered {
    fn n_bytes(&self) -> usize {
        self.values.n_bytes() + size_of_val(&*self.order)
    }

    fn read_range(&self, n_parts: usize) -> ReadRange {
        self.values.read_range(n_parts)
    }

    fn input<'a>(&self, x: &'a [f32], precision: Precision) -> Input<'a> {
        let rows = x.chunks_exact(self.order.len());
        let moved: Vec<f32> = rows.flat_map(|x| self.order.iter().map(|&input| x[input as usize])).collect();
        match self.values.input(&moved, precision) {
            Input::Quantized(rows) => Input::Quantized(rows),
            _ => unreachable!("these formats take rounded inputs"),
        }
    }

    fn multiply(&self, input: &Input<'_>, panel: usize, store: &mut dyn FnMut(usize, &[f32; PANEL])) {
        self.values.multiply(input, panel, store);
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let stored = self.values.row(row);
        let mut values = vec![0.0; stored.len()];
        self.order.iter().zip(stored).for_each(|(&input, value)| values[input as usize] = value);
        values
    }

    fn widen(&self, panel: usize, first: usize, lines: &mut [[f32; PANEL]]) {
        let mut stored = vec![[0.0; PANEL]; self.order.len()];
        self.values.widen(panel, 0, &mut stored);
        for (&input, stored) in self.order.iter().zip(stored) {
            if let Some(line) = (input as usize).checked_sub(first).and_then(|at| lines.get_mut(at)) {
                *line = stored;
            }
        }
    }

    fn blocks(&self, _: usize) -> Option<Vec<QuantizedBlock>> {
        None
    }
}
