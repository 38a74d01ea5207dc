//! The kernel: tiles of both operands in shared memory, read from memory while the tiles before them are multiplied.

use burn_cubecl::cubecl::{
    self,
    cmma::{self, Matrix, MatrixIdent, MatrixLayout},
    ir::{ElemType, HardwareProperties},
    prelude::*,
};

use super::TOGETHER;
use crate::ops::cube::launch::workgroup;

/// Lanes of a workgroup that adds parts.
pub(super) const LANES: usize = 256;

/// The causal mask of a product: which factors are 0, or which results are not needed, because a query does not see
/// later keys; that work is skipped. There may be several times as many queries as keys, if several heads share them.
/// [`Product::write`](super::Product::write) then uses [`No`](Self::No) in place of [`Keys`](Self::Keys), and in place
/// of the others if a tile would have queries of two heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops::cube) enum Causal {
    No,
    /// Rows are queries and columns are keys: later keys are not computed.
    Scores,
    /// Rows are queries and terms are keys: later keys are 0.
    Queries,
    /// Rows are keys and terms are queries: earlier queries are 0.
    Keys,
}

/// Tile sizes of a workgroup, and the form of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops::cube) struct Plan {
    /// Rows, columns and terms of a tile.
    pub(in crate::ops::cube) m: usize,
    pub(in crate::ops::cube) n: usize,
    pub(in crate::ops::cube) k: usize,
    /// Rows and columns of a plane (a subgroup), in fragments.
    pub(in crate::ops::cube) rows: usize,
    pub(in crate::ops::cube) columns: usize,
    /// Rows, columns and terms of an instruction.
    pub(in crate::ops::cube) fragment: usize,
    /// Lanes of a plane.
    pub(super) plane: usize,
    /// The numbers that are multiplied.
    pub(super) element: ElemType,
    /// Number of parts into which an operand is split.
    n_parts: usize,
    /// Whether the operands in memory are transposed.
    pub(super) a_transposed: bool,
    pub(super) b_transposed: bool,
    pub(super) causal: Causal,
    pub(super) has_bias: bool,
    pub(super) is_added: bool,
    pub(super) is_aligned: bool,
}

impl Plan {
    /// For products of `n` columns. The sizes were the fastest on an H200 (`docs/lab/gpu-products.md`).
    pub(super) fn new(element: ElemType, fragment: usize, n_parts: usize, plane: usize, n: usize) -> Self {
        let (rows, columns) = (4, 2);
        let is_narrow = n <= 4 * fragment;
        Self {
            m: 8 * fragment,
            n: if is_narrow { 4 * fragment } else { 8 * fragment },
            k: if n_parts == 1 && !is_narrow { 4 * fragment } else { 2 * fragment },
            rows,
            columns,
            fragment,
            plane,
            element,
            n_parts,
            a_transposed: false,
            b_transposed: false,
            causal: Causal::No,
            has_bias: false,
            is_added: false,
            is_aligned: true,
        }
    }

    fn planes_abreast(self) -> usize {
        self.n / self.columns / self.fragment
    }

    pub(super) fn planes(self) -> usize {
        self.m / self.rows / self.fragment * self.planes_abreast()
    }

    fn lanes(self) -> usize {
        self.planes() * self.plane
    }

    fn a(self) -> Tile {
        Tile::new([self.m, self.k], self.a_transposed, self.lanes())
    }

    fn b(self) -> Tile {
        Tile::new([self.n, self.k], !self.b_transposed, self.lanes())
    }

    /// Bits of an f32's mantissa that the 16-bit type lacks.
    fn dropped_bits(self) -> u32 {
        if self.element == super::F16 { 13 } else { 16 }
    }

    /// Values of f32 that are buffered on their way to the output: one fragment of each plane.
    fn scratch(self) -> usize {
        self.planes() * self.fragment * self.fragment
    }

    fn shared_bytes(self) -> usize {
        let tiles = self.a().len() + self.b().len();
        self.n_parts * tiles * size_of::<half::bf16>() + self.scratch() * size_of::<f32>()
    }

    /// Whether there is a kernel with these sizes on a device with `hardware`.
    pub(in crate::ops::cube) fn fits(self, hardware: &HardwareProperties) -> bool {
        let is_divided = |side: usize, part: usize| side.is_multiple_of(part * self.fragment);
        hardware.plane_size_min == hardware.plane_size_max
            && is_divided(self.m, self.rows)
            && is_divided(self.n, self.columns)
            && is_divided(self.k, 1)
            && [self.m, self.n].iter().all(|outer| (outer * self.k).is_multiple_of(TOGETHER * self.lanes()))
            && self.shared_bytes() <= hardware.max_shared_memory_size
            && self.lanes() <= hardware.max_units_per_cube as usize
    }
}

/// A tile of an operand, as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tile {
    rows: usize,
    columns: usize,
    /// Whether its rows are terms of the sums.
    is_by_terms: bool,
    /// Vectors for each lane.
    each: usize,
    lanes: usize,
}

impl Tile {
    fn new([outer, terms]: [usize; 2], is_by_terms: bool, lanes: usize) -> Self {
        let [rows, columns] = if is_by_terms { [terms, outer] } else { [outer, terms] };
        Self { rows, columns, is_by_terms, each: outer * terms / TOGETHER / lanes, lanes }
    }

    /// Numbers from one row to the next in shared memory: rows begin in different banks.
    fn pitch(self) -> usize {
        self.columns + 8
    }

    fn len(self) -> usize {
        self.rows * self.pitch()
    }
}

/// Reads a tile. Values beyond `n_outer` rows (of `a`) or columns (of `b`), or from `last_term` on, are 0.
#[cube]
fn read_tile<V: Size>(
    matrix: &[Vector<f32, V>],
    held: &mut Array<Vector<f32, V>>,
    start: usize,
    stride: usize,
    first_outer: usize,
    n_outer: usize,
    first_term: usize,
    last_term: usize,
    #[comptime] tile: Tile,
) {
    let lane = UNIT_POS_Y as usize * CUBE_DIM_X as usize + UNIT_POS_X as usize;
    let wide = comptime!(tile.columns / TOGETHER);
    #[unroll]
    for i in 0..tile.each {
        let at = comptime!(i * tile.lanes) + lane;
        let (row, column) = (at / wide, at % wide * TOGETHER);
        let mut vector = Vector::<f32, V>::new(0.0f32);
        if comptime!(tile.is_by_terms) {
            if first_term + row < last_term && first_outer + column < n_outer {
                vector = matrix[(start + (first_term + row) * stride + first_outer + column) / TOGETHER];
            }
        } else if first_outer + row < n_outer && first_term + column < last_term {
            vector = matrix[(start + (first_outer + row) * stride + first_term + column) / TOGETHER];
        }
        held[i] = vector;
    }
}

/// Writes the tile that [`read_tile`] read to shared memory, part after part.
#[cube]
fn store_tile<S: Numeric, V: Size>(
    held: &Array<Vector<f32, V>>,
    shared: &mut Shared<[Vector<S, V>]>,
    #[comptime] tile: Tile,
    #[comptime] n_parts: usize,
    #[comptime] n_bits: u32,
) {
    let lane = UNIT_POS_Y as usize * CUBE_DIM_X as usize + UNIT_POS_X as usize;
    let wide = comptime!(tile.columns / TOGETHER);
    #[unroll]
    for i in 0..tile.each {
        let at = comptime!(i * tile.lanes) + lane;
        let place = at / wide * comptime!(tile.pitch() / TOGETHER) + at % wide;
        let mut left = held[i];
        #[unroll]
        for part in 0..n_parts {
            let place = place + comptime!(part * tile.len() / TOGETHER);
            let near = rounded::<V>(left, n_bits);
            shared[place] = Vector::<S, V>::cast_from(near);
            left -= near;
        }
    }
}

/// Rounds to the nearest numbers whose last `n_bits` are 0. Computed on integers, since a driver may truncate when it
/// converts f32 to bf16 (NVIDIA's does), and may optimize away a conversion to 16 bits and back. Without the `min`, a
/// NaN with all bits set would overflow into the sign and become 0.
#[cube]
fn rounded<V: Size>(values: Vector<f32, V>, #[comptime] n_bits: u32) -> Vector<f32, V> {
    let bits = Vector::<u32, V>::reinterpret(values);
    let sign = bits & Vector::<u32, V>::new(0x8000_0000u32);
    let odd = (bits >> Vector::<u32, V>::new(n_bits)) & Vector::<u32, V>::new(1u32);
    let half = Vector::<u32, V>::new(comptime!((1u32 << (n_bits - 1)) - 1));
    let magnitude = (bits & Vector::<u32, V>::new(0x7fff_ffffu32)) + half + odd;
    let kept = magnitude & Vector::<u32, V>::new(comptime!(u32::MAX << n_bits));
    let most = Vector::<u32, V>::new(comptime!(0x7fff_ffffu32 >> n_bits << n_bits));
    Vector::<f32, V>::reinterpret(min(kept, most) | sign)
}

/// The fragments of one plane along one side of a tile, part after part.
#[cube]
fn fragments<S: Numeric, V: Size>(
    shared: &Shared<[Vector<S, V>]>,
    first: usize,
    #[comptime] term: usize,
    #[comptime] many: usize,
    #[comptime] n_parts: usize,
    #[comptime] tile: Tile,
    #[comptime] ident: MatrixIdent,
    #[comptime] size: usize,
) -> Sequence<Matrix<S>> {
    let mut all = Sequence::<Matrix<S>>::new();
    // If a row of the tile in memory has all terms of a row of A or of a column of B, A is row-major and B is
    // column-major.
    let layout = comptime!(match (tile.is_by_terms, ident == MatrixIdent::A) {
        (true, true) | (false, false) => MatrixLayout::ColMajor,
        (false, true) | (true, false) => MatrixLayout::RowMajor,
    });
    #[unroll]
    for part in 0..n_parts {
        #[unroll]
        for i in 0..many {
            let outer = first + comptime!(i * size);
            let place = if comptime!(tile.is_by_terms) {
                comptime!(term * tile.pitch()) + outer
            } else {
                outer * comptime!(tile.pitch()) + term
            };
            let at = place / TOGETHER + comptime!(part * tile.len() / TOGETHER);
            #[expect(unsafe_code, reason = "it is loaded at once")]
            let mut fragment = unsafe { Matrix::<S>::uninitialized(ident, size, size, size, layout) };
            cmma::load(&mut fragment, shared.slice(at, at + 1), comptime!(tile.pitch() as u32));
            all.push(fragment);
        }
    }
    all
}

/// A workgroup computes a tile of one product: while it multiplies the fragments of a step, it reads the next step's tiles, and
/// finally stores or adds the sums. One function, since all phases share the fragments.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
pub(super) fn product<S: Numeric, V: Size>(
    a: &[Vector<f32, V>],
    b: &[Vector<f32, V>],
    bias: &[f32],
    output: &mut [f32],
    m: usize,
    n: usize,
    k: usize,
    a_stride: usize,
    b_stride: usize,
    stride: usize,
    depth: usize,
    row_tiles: usize,
    column_tiles: usize,
    batch: usize,
    n_splits: usize,
    seq_len: usize,
    #[comptime] plan: Plan,
    #[define(S)] _element: ElemType,
) {
    let (a_tile, b_tile) = comptime!((plan.a(), plan.b()));
    let (size, n_parts) = comptime!((plan.fragment, plan.n_parts));
    let number = workgroup();
    let first_m = number % row_tiles * plan.m;
    let number = number / row_tiles;
    let first_n = number % column_tiles * plan.n;
    let number = number / column_tiles;
    let pair = number % batch;
    let split = number / batch;
    if split >= n_splits {
        terminate!();
    }
    let mut first_k = split * depth;
    let mut end = min(first_k + depth, k);
    if comptime!(plan.causal == Causal::Scores || plan.causal == Causal::Queries) {
        let after = first_m % seq_len + plan.m;
        if comptime!(plan.causal == Causal::Queries) {
            end = min(end, after);
        } else if first_n >= after {
            terminate!();
        }
    }
    if comptime!(plan.causal == Causal::Keys) {
        first_k = first_m / plan.k * plan.k;
    }
    let plane = UNIT_POS_Y as usize;
    let plane_m = plane / comptime!(plan.planes_abreast()) * comptime!(plan.rows * size);
    let plane_n = plane % comptime!(plan.planes_abreast()) * comptime!(plan.columns * size);

    let mut a_shared =
        Shared::<[Vector<S, V>]>::new_aligned_slice(comptime!(n_parts * a_tile.len() / TOGETHER), 16usize);
    let mut b_shared =
        Shared::<[Vector<S, V>]>::new_aligned_slice(comptime!(n_parts * b_tile.len() / TOGETHER), 16usize);
    let mut scratch = Shared::<[f32]>::new_aligned_slice(comptime!(plan.scratch()), 16usize);
    let mut a_held = Array::<Vector<f32, V>>::new(comptime!(a_tile.each));
    let mut b_held = Array::<Vector<f32, V>>::new(comptime!(b_tile.each));

    let first_row = (split * batch + pair) * m + first_m;
    let is_whole = first_m + plan.m <= m && first_n + plan.n <= n;
    let mut sums = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..comptime!(plan.rows * plan.columns) {
        sums.push(Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            size,
            size,
            size,
            MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    if comptime!(plan.has_bias) {
        // The bias, once for each row of a fragment.
        let lane = plane * plan.plane + UNIT_POS_X as usize;
        #[unroll]
        for i in 0..comptime!(plan.scratch() / plan.lanes()) {
            let at = comptime!(i * plan.lanes()) + lane;
            let column = first_n + at % plan.n;
            let mut value = 0.0f32;
            if column < n {
                value = bias[column];
            }
            scratch[at] = value;
        }
        sync_cube();
        #[unroll]
        for i in 0..plan.rows {
            #[unroll]
            for j in 0..plan.columns {
                let at = plane_n + comptime!(j * size);
                let sum = sums.index_mut(comptime!(i * plan.columns + j));
                cmma::load_with_layout(
                    sum,
                    scratch.slice(at, at + 1),
                    comptime!(plan.n as u32),
                    MatrixLayout::RowMajor,
                );
            }
        }
    }

    // Where the operands of this pair begin: their rows in memory are the terms, or the rows of A and columns of B.
    let a_start = pair * if comptime!(a_tile.is_by_terms) { k * a_stride } else { m * a_stride };
    let b_start = pair * if comptime!(b_tile.is_by_terms) { k * b_stride } else { n * b_stride };
    let n_steps = (end - first_k).div_ceil(plan.k);
    for step in 0..n_steps + 1 {
        let term = first_k + step * plan.k;
        // Beyond the last step nothing is read.
        read_tile::<V>(a, &mut a_held, a_start, a_stride, first_m, m, term, end, a_tile);
        read_tile::<V>(b, &mut b_held, b_start, b_stride, first_n, n, term, end, b_tile);
        // The tiles of the step before.
        if step > 0 {
            #[unroll]
            for d in 0..comptime!(plan.k / size) {
                let term = comptime!(d * size);
                let a_parts =
                    fragments::<S, V>(&a_shared, plane_m, term, plan.rows, n_parts, a_tile, MatrixIdent::A, size);
                let b_parts =
                    fragments::<S, V>(&b_shared, plane_n, term, plan.columns, n_parts, b_tile, MatrixIdent::B, size);
                // The smallest products first.
                #[unroll]
                for turn in 0..n_parts {
                    let order = comptime!(n_parts - 1 - turn);
                    #[unroll]
                    for part in 0..comptime!(order + 1) {
                        #[unroll]
                        for i in 0..plan.rows {
                            #[unroll]
                            for j in 0..plan.columns {
                                let sum = sums.index(comptime!(i * plan.columns + j));
                                let of_a = a_parts.index(comptime!(part * plan.rows + i));
                                let of_b = b_parts.index(comptime!((order - part) * plan.columns + j));
                                cmma::execute(of_a, of_b, sum, sum);
                            }
                        }
                    }
                }
            }
        }
        sync_cube();
        store_tile::<S, V>(&a_held, &mut a_shared, a_tile, n_parts, comptime!(plan.dropped_bits()));
        store_tile::<S, V>(&b_held, &mut b_shared, b_tile, n_parts, comptime!(plan.dropped_bits()));
        sync_cube();
    }

    if is_whole && comptime!(plan.is_aligned && !plan.is_added) {
        #[unroll]
        for i in 0..plan.rows {
            #[unroll]
            for j in 0..plan.columns {
                let row = first_row + plane_m + comptime!(i * size);
                let at = row * stride + first_n + plane_n + comptime!(j * size);
                let sum = sums.index(comptime!(i * plan.columns + j));
                cmma::store(output.slice_mut(at, at + 1), sum, stride as u32, MatrixLayout::RowMajor);
            }
        }
    } else {
        let start = plane * comptime!(size * size);
        #[unroll]
        for i in 0..plan.rows {
            #[unroll]
            for j in 0..plan.columns {
                let sum = sums.index(comptime!(i * plan.columns + j));
                cmma::store(scratch.slice_mut(start, start + 1), sum, comptime!(size as u32), MatrixLayout::RowMajor);
                sync_cube();
                #[unroll]
                for pass in 0..comptime!(size * size / plan.plane) {
                    let at = comptime!(pass * plan.plane) + UNIT_POS_X as usize;
                    let row = plane_m + comptime!(i * size) + at / size;
                    let column = first_n + plane_n + comptime!(j * size) + at % size;
                    if first_m + row < m && column < n {
                        let place = (first_row + row) * stride + column;
                        let value = scratch[start + at];
                        if comptime!(plan.is_added) {
                            output[place] += value;
                        } else {
                            output[place] = value;
                        }
                    }
                }
                sync_cube();
            }
        }
    }
}

/// Adds the partial sums of several workgroups, in order.
#[cube(launch_unchecked)]
pub(super) fn add_parts(parts: &[f32], output: &mut [f32], n_values: usize, n_parts: usize) {
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < n_values {
        let mut sum = parts[at];
        for part in 1..n_parts {
            sum += parts[part * n_values + at];
        }
        output[at] = sum;
    }
}
