//! The order in which a file's tensor has the rows of one of our parameters. No tensors here, and no names.

use crate::config::{GatedDeltaNet, GptConfig, LatentAttention, Positions};

/// The order of a parameter's rows in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// In the same place.
    Same,
    /// In each head, the two dimensions that rotate together are next to each other. In ours, they are `rotary_dim / 2`
    /// apart.
    Interleaved { head_dim: usize, rotary_dim: usize },
    /// In each head, the two halves of the rotated part are exchanged: for classes that rotate by the negative angle.
    Exchanged { head_dim: usize, rotary_dim: usize },
    /// As [`Interleaved`](Self::Interleaved), in a tensor with a row for each head.
    InterleavedRows { head_dim: usize, rotary_dim: usize },
    /// Queries and keys are interleaved, and the rows come in four parts (shards of the model), each with its queries,
    /// values and keys.
    Shards { width: usize, head_dim: usize, rotary_dim: usize },
    /// In each head, the rotated part follows the rest, and if `interleaved`, the two dimensions that rotate together
    /// are adjacent. Hearth's heads begin with the rotated part.
    RotatedLast { head_dim: usize, rotary_dim: usize, interleaved: bool },
    /// In the same place, with a dimension for the heads before the others.
    Heads { n_heads: usize },
    /// As [`Heads`](Self::Heads), and each row is a column of its head's matrix.
    HeadColumns { n_heads: usize },
    /// In the same place, but the tensor lacks a dimension of 1.
    Squeezed,
    /// In the same place; the values are the logarithms of the tensor's, negated.
    LogOfNegated {
        /// Whether the tensor has a last dimension of 1.
        is_column: bool,
    },
    /// In the same place of a tensor that has the vector as a matrix with this many rows.
    Folded { n_rows: usize },
    /// Group by group, each with rows of several kinds. Ours go kind by kind.
    Grouped { n_groups: usize, kinds: [KindOfRows; 4] },
    /// After this many rows that are not used.
    After(usize),
    /// Each row is a column, in the same order.
    Transposed,
    /// Each row is a column; the columns of the two halves alternate.
    TransposedPairs { n_pairs: usize },
    /// One value, in a tensor without dimensions.
    Scalar,
}

/// Rows of one kind in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KindOfRows {
    /// Where they begin in the group.
    first: usize,
    n_rows: usize,
}

impl RowOrder {
    /// Groups with this many rows of each kind, in our order of kinds.
    fn grouped(n_groups: usize, n_rows: [usize; 4]) -> Self {
        let mut first = 0;
        let kinds = n_rows.map(|n_rows| {
            first += n_rows;
            KindOfRows { first: first - n_rows, n_rows }
        });
        Self::Grouped { n_groups, kinds }
    }

    /// Head by head, its query and then its gate. Ours go all gates, all queries.
    pub(super) fn gated_queries(config: &GptConfig) -> Self {
        let kind = |first| KindOfRows { first, n_rows: config.head_dim };
        let none = KindOfRows::default();
        Self::Grouped { n_groups: config.n_heads, kinds: [kind(config.head_dim), kind(0), none, none] }
    }

    /// Key head by key head: its query, its key, its values, their gates.
    pub(super) fn delta_by_key_head(net: &GatedDeltaNet) -> Self {
        let of_values = net.n_value_heads / net.n_key_heads * net.value_dim;
        Self::grouped(net.n_key_heads, [net.key_dim, net.key_dim, of_values, of_values])
    }

    /// Key head by key head: its betas, its decays.
    pub(super) fn delta_gates_by_key_head(net: &GatedDeltaNet) -> Self {
        let n_heads = net.n_value_heads / net.n_key_heads;
        Self::grouped(net.n_key_heads, [n_heads, n_heads, 0, 0])
    }

    /// A gate's row, then the row that it gates.
    pub(super) fn pairs(n_pairs: usize) -> Self {
        Self::grouped(n_pairs, [1, 1, 0, 0])
    }

    /// Whether each row is a column of the tensor.
    pub(super) fn is_transposed(self) -> bool {
        matches!(self, Self::Transposed | Self::TransposedPairs { .. })
    }

    /// Queries of latent attention.
    pub(super) fn latent_queries(config: &GptConfig, latent: &LatentAttention) -> Self {
        let LatentAttention { rope_dim, interleaved, .. } = *latent;
        Self::RotatedLast { head_dim: config.head_dim, rotary_dim: rope_dim, interleaved }
    }

    /// The latent of keys and values, followed by the rotated part of keys.
    pub(super) fn latent_down(latent: &LatentAttention) -> Self {
        let LatentAttention { kv_rank, rope_dim, interleaved, .. } = *latent;
        Self::RotatedLast { head_dim: kv_rank + rope_dim, rotary_dim: rope_dim, interleaved }
    }

    /// For each head, the unrotated part of its key, then its value.
    pub(super) fn latent_up(config: &GptConfig, latent: &LatentAttention) -> Self {
        Self::grouped(config.n_heads, [config.head_dim - latent.rope_dim, latent.value_dim, 0, 0])
    }

    /// [`interleaved`](Self::interleaved), in a tensor with a row for each head.
    pub(super) fn interleaved_rows(config: &GptConfig) -> Self {
        let rotary_dim = if let Positions::Rope(rope) = &config.positions { rope.rotary_dim } else { 0 };
        Self::InterleavedRows { head_dim: config.head_dim, rotary_dim }
    }

    /// Queries, values and keys of four parts of a model.
    pub(super) fn shards(config: &GptConfig) -> Self {
        let rotary_dim = if let Positions::Rope(rope) = &config.positions { rope.rotary_dim } else { 0 };
        Self::Shards { width: config.q_width(), head_dim: config.head_dim, rotary_dim }
    }

    /// The rotated dimensions in adjacent pairs, if any are rotated.
    pub(super) fn interleaved(config: &GptConfig) -> Self {
        match &config.positions {
            Positions::Rope(rope) => Self::Interleaved { head_dim: config.head_dim, rotary_dim: rope.rotary_dim },
            _ => Self::Same,
        }
    }

    /// The dimensions of heads that are rotated by the negative angle, if any are rotated.
    pub(super) fn reversed(config: &GptConfig) -> Self {
        match &config.positions {
            Positions::Rope(rope) => Self::Exchanged { head_dim: config.head_dim, rotary_dim: rope.rotary_dim },
            _ => Self::Same,
        }
    }

    /// Key head by key head: its queries, its key, its value.
    pub(super) fn by_key_head(config: &GptConfig) -> Self {
        let GptConfig { head_dim, n_heads, n_kv_heads, .. } = *config;
        Self::grouped(n_kv_heads, [n_heads / n_kv_heads * head_dim, head_dim, head_dim, 0])
    }

    /// The row of the tensor (its column, if it is transposed) that is row `n` of the parameter.
    pub(super) fn place(self, n: usize) -> usize {
        match self {
            Self::Same | Self::Transposed | Self::Scalar | Self::Squeezed => n,
            Self::LogOfNegated { .. } | Self::Folded { .. } | Self::Heads { .. } | Self::HeadColumns { .. } => n,
            Self::TransposedPairs { n_pairs } => Self::pairs(n_pairs).place(n),
            Self::After(n_before) => n_before + n,
            Self::Shards { width, head_dim, rotary_dim } => {
                const N_SHARDS: usize = 4;
                let (part, dim, of_shard) = (n / width, n % width, width / N_SHARDS);
                let (place, dim) = match part {
                    0 => (0, Self::Interleaved { head_dim, rotary_dim }.place(dim)),
                    1 => (2, Self::Interleaved { head_dim, rotary_dim }.place(dim)),
                    _ => (1, dim),
                };
                (3 * (dim / of_shard) + place) * of_shard + dim % of_shard
            }
            Self::Interleaved { head_dim, rotary_dim } | Self::InterleavedRows { head_dim, rotary_dim } => {
                let (dim, half) = (n % head_dim, rotary_dim / 2);
                n - dim
                    + match dim {
                        _ if dim < half => 2 * dim,
                        _ if dim < rotary_dim => 2 * (dim - half) + 1,
                        _ => dim,
                    }
            }
            Self::RotatedLast { head_dim, rotary_dim, interleaved } => {
                let (dim, first, half) = (n % head_dim, head_dim - rotary_dim, rotary_dim / 2);
                n - dim
                    + match dim {
                        _ if dim >= rotary_dim => dim - rotary_dim,
                        _ if !interleaved => first + dim,
                        _ if dim < half => first + 2 * dim,
                        _ => first + 2 * (dim - half) + 1,
                    }
            }
            Self::Exchanged { head_dim, rotary_dim } => {
                let (dim, half) = (n % head_dim, rotary_dim / 2);
                match dim {
                    _ if dim < half => n + half,
                    _ if dim < 2 * half => n - half,
                    _ => n,
                }
            }
            Self::Grouped { n_groups, kinds } => {
                let in_group: usize = kinds.iter().map(|kind| kind.n_rows).sum();
                let mut n = n;
                for KindOfRows { first, n_rows } in kinds {
                    match n.checked_sub(n_rows * n_groups) {
                        Some(behind) => n = behind,
                        None => return n / n_rows * in_group + first + n % n_rows,
                    }
                }
                unreachable!("a row beyond those of all groups")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sizes;

    fn places(order: RowOrder, n_rows: usize) -> Vec<usize> {
        (0..n_rows).map(|n| order.place(n)).collect()
    }

    #[test]
    fn interleaved_row_order_puts_rope_pairs_side_by_side() {
        // Two heads of five dimensions, four of which are rotated.
        let order = RowOrder::Interleaved { head_dim: 5, rotary_dim: 4 };
        assert_eq!(places(order, 10), [0, 2, 1, 3, 4, 5, 7, 6, 8, 9]);
    }

    #[test]
    fn exchanged_row_order_swaps_the_rotary_halves_of_each_head() {
        // Two heads of five dimensions, four of which are rotated.
        let order = RowOrder::Exchanged { head_dim: 5, rotary_dim: 4 };
        assert_eq!(places(order, 10), [2, 3, 0, 1, 4, 7, 8, 5, 6, 9]);
    }

    #[test]
    fn latent_row_order_puts_what_rotates_before_the_rest_of_each_head() {
        // Two heads of six dimensions, the last four of which are rotated.
        let order = |interleaved| RowOrder::RotatedLast { head_dim: 6, rotary_dim: 4, interleaved };
        assert_eq!(places(order(true), 12), [2, 4, 3, 5, 0, 1, 8, 10, 9, 11, 6, 7]);
        assert_eq!(places(order(false), 6), [2, 3, 4, 5, 0, 1]);
    }

    #[test]
    fn shards_have_queries_values_and_keys_of_each_part_of_the_model() {
        // One head of four dimensions, two of which are rotated: they are adjacent already.
        let order = RowOrder::Shards { width: 4, head_dim: 4, rotary_dim: 2 };
        assert_eq!(places(order, 12), [0, 3, 6, 9, 2, 5, 8, 11, 1, 4, 7, 10]);
    }

    #[test]
    fn by_key_head_row_order_puts_queries_before_keys_and_values() {
        // Two key heads of two queries each: q q k v, q q k v.
        let order = RowOrder::grouped(2, [2, 1, 1, 0]);
        assert_eq!(places(order, 8), [0, 1, 4, 5, 2, 6, 3, 7]);
        // As many key heads as queries.
        let order = RowOrder::grouped(2, [2, 2, 2, 0]);
        assert_eq!(places(order, 12), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
    }

    #[test]
    fn rows_in_pairs_of_a_gate_and_what_it_gates_are_in_turns() {
        for order in [RowOrder::pairs(3), RowOrder::TransposedPairs { n_pairs: 3 }] {
            assert_eq!(places(order, 6), [0, 2, 4, 1, 3, 5]);
        }
    }

    #[test]
    fn gated_row_orders_put_gates_first_and_kinds_of_rows_side_by_side() {
        // Two heads of two dimensions: q q g g, q q g g.
        let sizes = Sizes { n_heads: 2, d_model: 4, ..SIZES };
        let order = RowOrder::gated_queries(&GptConfig::llama(sizes));
        assert_eq!(places(order, 8), [2, 3, 6, 7, 0, 1, 4, 5]);
        let net = GatedDeltaNet {
            n_key_heads: 2,
            n_value_heads: 4,
            key_dim: 1,
            value_dim: 1,
            conv_kernel: 4,
            tiled_heads: false,
        };
        // For each of two key heads: q k v v z z.
        assert_eq!(places(RowOrder::delta_by_key_head(&net), 12), [0, 6, 1, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
        // b b a a.
        assert_eq!(places(RowOrder::delta_gates_by_key_head(&net), 8), [0, 1, 4, 5, 2, 3, 6, 7]);
    }

    const SIZES: Sizes =
        Sizes { vocab_size: 8, max_seq_len: 8, n_layers: 1, n_heads: 1, n_kv_heads: 1, d_model: 8, d_ff: 8 };
}
