//! Attention over the pages of the KV cache, which are read in place.
//!
//! Keys are processed in tiles of [`TILE`] at absolute positions, one workgroup per tile, so that few rows with long
//! contexts occupy a whole GPU; a second kernel combines the tiles' results in order. A workgroup takes a block of rows
//! of one sequence and all query heads that share a key head, and reads keys and values once for them. A row's result
//! does not depend on its block.
//!
//! If each sequence has one row, the kernel can start from the projection's output: each workgroup rotates the queries
//! that it needs, those whose tile contains the row's own key compute that key and attend to it, and one of them stores
//! it. That saves a launch per layer.

use burn::tensor::DType;
use burn_cubecl::{
    cubecl::{self, ir::ElemType, prelude::*},
    kernel::into_contiguous,
    tensor::CubeTensor,
};

use super::{
    device::element,
    launch::{empty, writable},
    rope::{rotated, storable},
};
use crate::ops::types::{
    AttentionPlan, AttentionStep, BLOCK_LEN, PAGE_SIZE, TILE,
    gpu_attention_plan::{PARTS, QueryInput},
};

/// Values that a lane loads before it uses the first.
const VALUES_AT_A_TIME: usize = 4;
/// Parts of a key that a lane loads before it uses the first.
const KEYS_AT_A_TIME: usize = 4;
/// Values of tiles' results in memory at a time.
const MAX_PARTIAL: usize = 16 << 20;
/// The score of a hidden key, as in the reference.
const HIDDEN: f32 = -1e30;
/// `q [n_rows, n_heads * head_dim]` over pools `[n_slots, n_kv_heads * head_dim]`: as `q`.
pub(super) fn attention([q, keys, values]: [CubeTensor; 3], table: CubeTensor, step: AttentionStep) -> CubeTensor {
    launch([q.clone(), q, keys, values], table, step, QueryInput::Queries)
}

/// [`rope_append`](super::rope::rope_append) and [`attention`] in one, if the plan [can fuse](AttentionPlan::can_fuse)
/// them: the output and the pools. The table gives the slot of each row's position.
pub(super) fn append_and_attend(
    [qkv, angles]: [CubeTensor; 2],
    pools: [CubeTensor; 2],
    table: CubeTensor,
    step: AttentionStep,
    half: usize,
) -> [CubeTensor; 3] {
    let [keys, values] = pools.map(writable);
    let output = launch([qkv, angles, keys.clone(), values.clone()], table, step, QueryInput::Projected { half });
    [output, keys, values]
}

fn launch(operands: [CubeTensor; 4], table: CubeTensor, step: AttentionStep, given: QueryInput) -> CubeTensor {
    let [rows, angles, keys, values] = operands.map(into_contiguous);
    let table = into_contiguous(table);
    let AttentionStep { plan, scale, n_blocks, n_tiles, slopes } = step;
    let is_f16 = keys.dtype == DType::F16;
    let output = empty(&rows, [rows.meta.shape()[0], plan.n_heads * plan.head_dim]);
    // A single tile needs no second kernel.
    let is_whole = n_tiles == 1;
    let block_len = plan.block_rows * plan.n_heads * n_tiles * plan.head_dim;
    let most_blocks = if is_whole { n_blocks } else { (MAX_PARTIAL / block_len.max(1)).clamp(1, n_blocks.max(1)) };
    let most_blocks = most_blocks.min(u16::MAX as usize);
    let groups = plan.n_heads / plan.heads();
    let mut first = 0;
    while first < n_blocks {
        let n = most_blocks.min(n_blocks - first);
        let (partial, sums) = if is_whole {
            (output.clone(), None)
        } else {
            let sums = empty(&output, [n * plan.block_rows, plan.n_heads, n_tiles, 2]);
            (empty(&output, [n, block_len]), Some(sums))
        };
        let client = output.client.clone();
        let sums_or_any = sums.clone().unwrap_or_else(|| rows.clone());
        #[expect(unsafe_code, reason = "kernels without bounds checks")]
        // SAFETY: the table names rows of the input and pages of the pools; tiles and heads are kept below their number.
        unsafe {
            attend_tile::launch_unchecked(
                &client,
                CubeCount::Static(n_tiles as u32, groups as u32, n as u32),
                CubeDim::new_1d(TILE as u32),
                plan.vector(),
                rows.clone().into_buffer_arg(),
                angles.clone().into_buffer_arg(),
                keys.clone().into_buffer_arg(),
                values.clone().into_buffer_arg(),
                table.clone().into_buffer_arg(),
                partial.clone().into_buffer_arg(),
                sums_or_any.into_buffer_arg(),
                scale,
                first,
                n_tiles,
                slopes,
                is_whole,
                is_f16,
                given,
                plan,
                element(&keys),
            );
            if let Some(sums) = sums {
                combine_tiles::launch_unchecked(
                    &client,
                    CubeCount::Static((n * plan.block_rows) as u32, plan.n_heads as u32, 1),
                    CubeDim::new_1d(64),
                    partial.into_buffer_arg(),
                    sums.into_buffer_arg(),
                    table.clone().into_buffer_arg(),
                    output.clone().into_buffer_arg(),
                    first,
                    n_tiles,
                    plan,
                );
            }
        }
        first += n;
    }
    output
}

/// A workgroup attends to one tile: loads the queries (and stores the row's own key), scores a key per lane, takes the
/// exponentials, and adds up the values. One function, since all phases share the lane's registers and the workgroup's memory.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn attend_tile<E: Numeric, V: Size>(
    rows: &[Vector<f32, V>],
    angles: &[Vector<f32, V>],
    keys: &mut [Vector<E, V>],
    values: &mut [Vector<E, V>],
    table: &[i32],
    output: &mut [Vector<f32, V>],
    sums: &mut [f32],
    scale: f32,
    first_block: usize,
    n_tiles: usize,
    slopes: usize,
    #[comptime] is_whole: bool,
    #[comptime] is_f16: bool,
    #[comptime] given: QueryInput,
    #[comptime] plan: AttentionPlan,
    #[define(E)] _element: ElemType,
) {
    let heads = comptime!(plan.heads());
    let block_rows = comptime!(plan.block_rows);
    let n_queries = comptime!(heads * block_rows);
    let vectors = comptime!(plan.vectors());
    let vector = comptime!(plan.vector());
    let together = comptime!((1..=KEYS_AT_A_TIME).rev().find(|n| vectors.is_multiple_of(*n)).unwrap_or(1));
    let kv_vectors = comptime!(plan.n_kv_heads * vectors);
    let q_vectors = comptime!(plan.n_heads * vectors);
    let is_fused = comptime!(given != QueryInput::Queries);
    let row_vectors = comptime!(if is_fused { q_vectors + 2 * kv_vectors } else { q_vectors });
    let half = comptime!(match given {
        QueryInput::Queries => 0,
        QueryInput::Projected { half } => half / vector,
    });
    let shared = comptime!(plan.shared(given));
    let lane = UNIT_POS_X as usize;

    let block = (CUBE_POS_Z as usize + first_block) * BLOCK_LEN;
    let first_row = usize::cast_from(table[block]);
    let n_rows = usize::cast_from(table[block + 1]);
    let position = usize::cast_from(table[block + 2]);
    let pages = usize::cast_from(table[block + 3]);
    let first_page = usize::cast_from(table[block + 4]);
    let first_head = CUBE_POS_Y as usize * heads;
    let kv_head = first_head / comptime!(plan.n_heads / plan.n_kv_heads);

    let last_key = position + n_rows - 1;
    let mut first_key = usize::cast_from(0u32);
    if comptime!(plan.sliding_window.is_some()) {
        let window = comptime!(plan.sliding_window.unwrap_or(0));
        if position + 1 > window {
            first_key = position + 1 - window;
        }
    }
    let tile_start = (first_key / TILE + CUBE_POS_X as usize) * TILE;
    // Beyond this block's tiles all keys are hidden: the sums are 0 and nothing is read.
    let is_inside = tile_start <= last_key;
    let is_last = is_inside && last_key < tile_start + TILE;

    // The block's queries, scaled.
    let mut queries = Shared::<[Vector<f32, V>]>::new_slice(comptime!(shared.queries));
    let mut at = lane;
    while at < comptime!(n_queries * vectors) {
        let row = select(at / vectors / heads < n_rows, first_row + at / vectors / heads, first_row);
        let head = row * row_vectors + (first_head + at / vectors % heads) * vectors;
        queries[at] = rotated(rows, angles, head, at % vectors, row * 2 * half, half) * Vector::new(scale);
        at += TILE;
    }
    // The row's own key and value, rounded as in the pools, which other workgroups see only after this launch. In the
    // pools' type: a compiler may omit a rounding between two f32.
    let mut own_key = Shared::<[Vector<E, V>]>::new_slice(comptime!(shared.own));
    let mut own_value = Shared::<[Vector<E, V>]>::new_slice(comptime!(shared.own));
    if comptime!(is_fused) && is_last && lane < vectors {
        let head = first_row * row_vectors + q_vectors + kv_head * vectors;
        let key = rotated(rows, angles, head, lane, first_row * 2 * half, half);
        let key = storable::<E, V>(key, is_f16);
        let value = storable::<E, V>(rows[head + kv_vectors + lane], is_f16);
        own_key[lane] = key;
        own_value[lane] = value;
        // One of the workgroups that share the key head.
        if first_head == kv_head * comptime!(plan.n_heads / plan.n_kv_heads) {
            let page = usize::cast_from(table[pages + last_key / PAGE_SIZE - first_page]);
            let slot = page * PAGE_SIZE + last_key % PAGE_SIZE;
            keys[slot * kv_vectors + kv_head * vectors + lane] = key;
            values[slot * kv_vectors + kv_head * vectors + lane] = value;
        }
    }
    sync_cube();

    // Each lane scores a key.
    let key = tile_start + lane;
    let known = key >= first_key && key <= last_key;
    let near = select(known, key, last_key);
    let page = usize::cast_from(table[pages + near / PAGE_SIZE - first_page]);
    let slot = page * PAGE_SIZE + near % PAGE_SIZE;
    let mut slots = Shared::<[u32]>::new_slice(comptime!(shared.slots));
    slots[lane] = slot as u32;
    let mut scores = Array::<f32>::new(n_queries);
    #[unroll]
    for n in 0..n_queries {
        scores[n] = 0.0f32;
    }
    if is_inside {
        let first = slot * kv_vectors + kv_head * vectors;
        for chunk in 0..comptime!(vectors / together) {
            let mut parts = Array::<Vector<f32, V>>::new(together);
            if comptime!(is_fused) && key >= last_key {
                #[unroll]
                for p in 0..together {
                    parts[p] = Vector::cast_from(own_key[chunk * together + p]);
                }
            } else {
                #[unroll]
                for p in 0..together {
                    parts[p] = Vector::cast_from(keys[first + chunk * together + p]);
                }
            }
            #[unroll]
            for p in 0..together {
                #[unroll]
                for n in 0..n_queries {
                    let query = queries[n * vectors + chunk * together + p];
                    let mut score = scores[n];
                    #[unroll]
                    for i in 0..vector {
                        score = fma(parts[p].extract(i), query.extract(i), score);
                    }
                    scores[n] = score;
                }
            }
        }
    }
    let mut probs = Shared::<[f32]>::new_slice(comptime!(shared.probs));
    #[unroll]
    for n in 0..n_queries {
        let row_position = position + comptime!(n / heads);
        let mut score = scores[n];
        if comptime!(plan.softcap_bits.is_some()) {
            score = softcapped(score, plan);
        }
        if comptime!(plan.has_slopes) {
            let slope = f32::reinterpret(table[slopes + first_head + comptime!(n % heads)]);
            score += slope * (f32::cast_from(key) - f32::cast_from(row_position));
        }
        probs[n * TILE + lane] = select(known && sees(row_position, key, plan), score, HIDDEN);
    }
    sync_cube();

    // The maximum of each query, then the sum of its exponentials: first per part, then over the parts.
    let mut parts = Shared::<[f32]>::new_slice(comptime!(shared.parts));
    let mut largest = Shared::<[f32]>::new_slice(comptime!(shared.per_query));
    let part_len = comptime!(TILE / PARTS);
    if lane < comptime!(n_queries * PARTS) {
        let start = lane / PARTS * TILE + lane % PARTS * part_len;
        let mut most = probs[start];
        for i in 1..part_len {
            most = max(most, probs[start + i]);
        }
        parts[lane] = most;
    }
    sync_cube();
    if lane < n_queries {
        let mut most = parts[lane * PARTS];
        for i in 1..PARTS {
            most = max(most, parts[lane * PARTS + i]);
        }
        largest[lane] = most;
    }
    sync_cube();
    #[unroll]
    for n in 0..n_queries {
        probs[n * TILE + lane] = (probs[n * TILE + lane] - largest[n]).exp();
    }
    sync_cube();
    if lane < comptime!(n_queries * PARTS) {
        let start = lane / PARTS * TILE + lane % PARTS * part_len;
        let mut sum = f32::new(0.0);
        for i in 0..part_len {
            sum += probs[start + i];
        }
        parts[lane] = sum;
    }
    sync_cube();
    let mut totals = Shared::<[f32]>::new_slice(comptime!(shared.per_query));
    if lane < n_queries {
        let mut sum = f32::new(0.0);
        for i in 0..PARTS {
            sum += parts[lane * PARTS + i];
        }
        totals[lane] = sum;
        let row = lane / heads;
        if comptime!(!is_whole) {
            let head = first_head + lane % heads;
            let row = CUBE_POS_Z as usize * block_rows + row;
            let at = ((row * comptime!(plan.n_heads) + head) * n_tiles + CUBE_POS_X as usize) * 2;
            sums[at] = select(is_inside, largest[lane], HIDDEN);
            sums[at + 1] = select(is_inside, sum, 0.0f32);
        }
    }
    sync_cube();

    // Values: a lane has one vector of the head and every `spread`-th key.
    let spread = comptime!(TILE / plan.vectors());
    let column = lane % vectors;
    let first = lane / vectors;
    let mut attn_out = Array::<Vector<f32, V>>::new(n_queries);
    #[unroll]
    for n in 0..n_queries {
        attn_out[n] = Vector::new(0.0f32);
    }
    let mut end = usize::cast_from(0u32);
    if is_inside && first < spread {
        // The row's own value is not in the pool yet.
        let behind = comptime!(if is_fused { 0 } else { 1 });
        end = select(last_key + behind - tile_start < TILE, last_key + behind - tile_start, TILE);
    }
    let mut start = first;
    if first_key > tile_start + first {
        // This lane's first key that some row sees.
        start = first + (first_key - tile_start - first + comptime!(spread - 1)) / spread * spread;
    }
    // Whether all rows see the same keys of the tile.
    let mut all_see = true;
    if comptime!(block_rows > 1) {
        all_see = last_key == position || tile_start + comptime!(TILE - 1) <= position;
        if comptime!(plan.sliding_window.is_some()) {
            let earliest = select(first_key > tile_start, first_key, tile_start);
            all_see = all_see && earliest + comptime!(plan.sliding_window.unwrap_or(0)) > last_key;
        }
    }
    let mut at = start;
    // The second body skips values that a row must not see: they may be infinite, and 0 times infinity is NaN.
    #[unroll]
    for body in 0..comptime!(if plan.block_rows > 1 { 2usize } else { 1usize }) {
        let is_checked = comptime!(body == 1);
        let mut bound = end;
        if comptime!(plan.block_rows > 1) {
            if comptime!(is_checked) {
                bound = select(all_see, 0, end);
            } else {
                bound = select(all_see, end, 0);
            }
        }
        while at < bound {
            // Load several values before the first is used.
            let mut several = Array::<Vector<E, V>>::new(VALUES_AT_A_TIME);
            #[unroll]
            for i in 0..VALUES_AT_A_TIME {
                let inside = select(at + i * spread < end, at + i * spread, at);
                several[i] = values[slots[inside] as usize * kv_vectors + kv_head * vectors + column];
            }
            #[unroll]
            for i in 0..VALUES_AT_A_TIME {
                if at + i * spread < end {
                    let value = Vector::<f32, V>::cast_from(several[i]);
                    #[unroll]
                    for n in 0..n_queries {
                        let weight = Vector::new(probs[n * TILE + at + i * spread]);
                        if comptime!(is_checked) {
                            let row_position = position + comptime!(n / heads);
                            if sees(row_position, tile_start + at + i * spread, plan) {
                                attn_out[n] = fma(weight, value, attn_out[n]);
                            }
                        } else {
                            attn_out[n] = fma(weight, value, attn_out[n]);
                        }
                    }
                }
            }
            at += comptime!(VALUES_AT_A_TIME * spread);
        }
    }
    if comptime!(is_fused) && is_last {
        let own = last_key - tile_start;
        if own % spread == first {
            let value = Vector::<f32, V>::cast_from(own_value[column]);
            #[unroll]
            for n in 0..n_queries {
                attn_out[n] = fma(Vector::new(probs[n * TILE + own]), value, attn_out[n]);
            }
        }
    }
    let mut spreads = Shared::<[Vector<f32, V>]>::new_slice(comptime!(shared.spreads));
    #[unroll]
    for n in 0..n_queries {
        spreads[lane] = attn_out[n];
        sync_cube();
        let row = comptime!(n / heads);
        if lane < vectors && row < n_rows {
            let mut total = spreads[lane];
            for i in 1..spread {
                total += spreads[i * vectors + lane];
            }
            let head = first_head + comptime!(n % heads);
            if comptime!(is_whole) {
                output[(first_row + row) * q_vectors + head * vectors + lane] = total / Vector::new(totals[n]);
            } else {
                let row = CUBE_POS_Z as usize * block_rows + row;
                let at = (row * comptime!(plan.n_heads) + head) * n_tiles + CUBE_POS_X as usize;
                output[at * vectors + lane] = total;
            }
        }
        sync_cube();
    }
}

/// Whether the row at `row_position` sees the key at `key`.
#[cube]
fn sees(row_position: usize, key: usize, #[comptime] plan: AttentionPlan) -> bool {
    let mut is_seen = key <= row_position;
    if comptime!(plan.sliding_window.is_some()) {
        is_seen = is_seen && key + comptime!(plan.sliding_window.unwrap_or(0)) > row_position;
    }
    is_seen
}

/// `cap * tanh(score / cap)`, as on the CPU.
#[cube]
fn softcapped(score: f32, #[comptime] plan: AttentionPlan) -> f32 {
    let cap = comptime!(f32::from_bits(plan.softcap_bits.unwrap_or(0)));
    let x = score / cap;
    let square = x * x;
    let mut series = square * comptime!(-1382.0f32 / 155_925.0) + comptime!(62.0f32 / 2835.0);
    series = series * square + comptime!(-17.0f32 / 315.0);
    series = series * square + comptime!(2.0f32 / 15.0);
    series = series * square + comptime!(-1.0f32 / 3.0);
    series = series * square + 1.0f32;
    // The clamp keeps the exponential finite.
    let far = 1.0f32 - 2.0f32 / (clamp(2.0f32 * x, -80.0f32, 80.0f32).exp() + 1.0f32);
    cap * select(square < 0.1225f32, x * series, far)
}

#[cube(launch_unchecked)]
fn combine_tiles(
    partial: &[f32],
    sums: &[f32],
    table: &[i32],
    output: &mut [f32],
    first_block: usize,
    n_tiles: usize,
    #[comptime] plan: AttentionPlan,
) {
    let head_dim = comptime!(plan.head_dim);
    let in_chunk = CUBE_POS_X as usize;
    let head = CUBE_POS_Y as usize;
    let block = (in_chunk / comptime!(plan.block_rows) + first_block) * BLOCK_LEN;
    let row = in_chunk % comptime!(plan.block_rows);
    if row >= usize::cast_from(table[block + 1]) {
        terminate!();
    }
    let first = (in_chunk * comptime!(plan.n_heads) + head) * n_tiles;
    let mut most = sums[first * 2];
    for tile in 1..n_tiles {
        most = max(most, sums[(first + tile) * 2]);
    }
    let row = usize::cast_from(table[block]) + row;
    let mut dim = UNIT_POS_X as usize;
    while dim < head_dim {
        let mut total = f32::new(0.0);
        let mut attn_out = f32::new(0.0);
        for tile in 0..n_tiles {
            let weight = (sums[(first + tile) * 2] - most).exp();
            total = fma(weight, sums[(first + tile) * 2 + 1], total);
            attn_out = fma(weight, partial[(first + tile) * head_dim + dim], attn_out);
        }
        output[(row * comptime!(plan.n_heads) + head) * head_dim + dim] = attn_out / total;
        dim += 64;
    }
}
