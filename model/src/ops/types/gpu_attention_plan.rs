//! The sizes of the GPU's attention kernels: queries of a workgroup, and arrays in shared memory. Plain numbers, from which both
//! the table of a step and the kernels follow.

/// Keys of a workgroup, one per lane.
pub(in crate::ops) const TILE: usize = 128;
/// Queries (rows times heads) of a workgroup, at most.
const MAX_QUERIES: usize = 8;
/// Parts of a tile over which maxima and sums are reduced first, for any number of queries.
pub(in crate::ops) const PARTS: usize = 8;
/// Bytes of shared memory that every WGSL device has.
const MAX_SHARED: usize = 16 << 10;
/// Largest alignment of an array in shared memory, in bytes.
const SHARED_ALIGNMENT: usize = 16;

/// Numbers per block in the table: its first row, its number of rows, the position of the first, the index of its list
/// of pages, and the number of the first listed page in the sequence.
pub(in crate::ops) const BLOCK_LEN: usize = 5;

/// The size of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) struct AttentionStep {
    pub(in crate::ops) plan: AttentionPlan,
    pub(in crate::ops) scale: f32,
    pub(in crate::ops) n_blocks: usize,
    /// Number of tiles of the block that has the most.
    pub(in crate::ops) n_tiles: usize,
    /// Index of the slopes in the table.
    pub(in crate::ops) slopes: usize,
}

/// The parameters that all steps of a model share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops) struct AttentionPlan {
    pub(in crate::ops) n_heads: usize,
    pub(in crate::ops) n_kv_heads: usize,
    pub(in crate::ops) head_dim: usize,
    pub(in crate::ops) sliding_window: Option<usize>,
    /// Whether the table ends with a slope for each query head, as the bits of an f32.
    pub(in crate::ops) has_slopes: bool,
    /// The soft cap of the scores, as the bits of an f32.
    pub(in crate::ops) softcap_bits: Option<u32>,
    /// Rows of a block.
    pub(in crate::ops) block_rows: usize,
}

impl AttentionPlan {
    /// Values that a lane reads at a time.
    pub(in crate::ops) fn vector(&self) -> usize {
        if self.head_dim.is_multiple_of(4) { 4 } else { 1 }
    }

    /// Vectors in a head.
    pub(in crate::ops) fn vectors(&self) -> usize {
        self.head_dim / self.vector()
    }

    /// Whether a kernel for it is possible.
    pub(in crate::ops) fn is_possible(&self) -> bool {
        self.vectors() <= TILE && self.with_rows(1).shared(QueryInput::Queries).n_bytes() <= MAX_SHARED
    }

    /// Whether a kernel can also rotate `half` pairs per head and store keys and values, for sequences of one row. Both
    /// values of a pair must be at the same index of their vectors.
    pub(in crate::ops) fn can_fuse(&self, half: usize) -> bool {
        self.block_rows == 1
            && half.is_multiple_of(self.vector())
            && self.shared(QueryInput::Projected { half }).n_bytes() <= MAX_SHARED
    }

    fn with_rows(self, block_rows: usize) -> Self {
        Self { block_rows, ..self }
    }

    /// The kernel's arrays in shared memory.
    pub(in crate::ops) fn shared(&self, given: QueryInput) -> SharedArrays {
        let n_queries = self.heads() * self.block_rows;
        SharedArrays {
            vector: self.vector(),
            queries: n_queries * self.vectors(),
            own: if given == QueryInput::Queries { 1 } else { self.vectors() },
            slots: TILE,
            probs: n_queries * TILE,
            parts: n_queries * PARTS,
            per_query: n_queries,
            spreads: TILE,
        }
    }

    /// Query heads per workgroup: the largest number within the limit that divides the group of heads that share a key
    /// head.
    pub(in crate::ops) fn heads(&self) -> usize {
        let shared = self.n_heads / self.n_kv_heads;
        (1..=MAX_QUERIES).rev().find(|n| shared.is_multiple_of(*n)).unwrap_or(1)
    }

    /// Rows of a block, for sequences with several rows.
    pub(in crate::ops) fn most_rows(&self) -> usize {
        let fits = |rows: &usize| self.with_rows(*rows).shared(QueryInput::Queries).n_bytes() <= MAX_SHARED;
        (1..=MAX_QUERIES / self.heads()).rev().find(fits).unwrap_or(1)
    }
}

/// The lengths of the kernel's arrays in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) struct SharedArrays {
    /// Numbers in a vector.
    vector: usize,
    /// Vectors of the queries.
    pub(in crate::ops) queries: usize,
    /// Vectors of the row's own key, and of its own value.
    pub(in crate::ops) own: usize,
    /// The keys' slots.
    pub(in crate::ops) slots: usize,
    /// Each query's scores, then their exponentials.
    pub(in crate::ops) probs: usize,
    /// Maxima, then sums, of parts of a tile.
    pub(in crate::ops) parts: usize,
    /// Each query's maximum, and its sum.
    pub(in crate::ops) per_query: usize,
    /// Vectors of the lanes' results.
    pub(in crate::ops) spreads: usize,
}

impl SharedArrays {
    fn n_bytes(&self) -> usize {
        let vectors = [self.queries, self.own, self.own, self.spreads].map(|n| n * self.vector);
        let numbers = [self.slots, self.probs, self.parts, self.per_query, self.per_query];
        let lens = vectors.into_iter().chain(numbers);
        lens.map(|len| (len * size_of::<f32>()).next_multiple_of(SHARED_ALIGNMENT)).sum()
    }
}

/// The kernel's input rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::ops) enum QueryInput {
    /// Queries; keys and values are in their pools.
    Queries,
    /// Queries, keys and values from the projection, in which `half` pairs per head are to be rotated.
    Projected { half: usize },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> AttentionPlan {
        AttentionPlan {
            n_heads,
            n_kv_heads,
            head_dim,
            sliding_window: None,
            has_slopes: false,
            softcap_bits: None,
            block_rows: 1,
        }
    }

    #[test]
    fn attention_kernel_plans_fit_into_shared_memory() {
        for (n_heads, n_kv_heads) in [(1, 1), (2, 1), (3, 1), (5, 1), (6, 2), (7, 1), (8, 1), (9, 3), (16, 1), (16, 2)]
        {
            for head_dim in 1..=600 {
                let plan = plan(n_heads, n_kv_heads, head_dim);
                if plan.is_possible() {
                    let most = plan.with_rows(plan.most_rows());
                    assert!(most.shared(QueryInput::Queries).n_bytes() <= MAX_SHARED, "{most:?}");
                }
                if plan.can_fuse(0) {
                    assert!(plan.shared(QueryInput::Projected { half: 0 }).n_bytes() <= MAX_SHARED, "{plan:?}");
                }
            }
        }
        // 8 queries and their scores alone: 9600 and 4096 bytes, and 2048 for the lanes' results.
        assert_eq!(plan(8, 1, 300).shared(QueryInput::Queries).n_bytes(), 9600 + 32 + 512 + 4096 + 256 + 64 + 2048);
        assert!(!plan(8, 1, 300).is_possible() && plan(8, 1, 256).is_possible());
        assert_eq!([64, 256, 320, 512].map(|head_dim| plan(4, 4, head_dim).most_rows()), [8, 8, 7, 5]);
    }
}
