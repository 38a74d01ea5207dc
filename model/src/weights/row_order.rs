//! The order in which a file's tensor has the rows of one of our parameters. No tensors here, and no names.

use crate::config::{GptConfig, Positions};

/// Where in a tensor a parameter's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// In the same place.
    Same,
    /// In each head, the two dimensions that rotate together are next to each other. In ours, they are `rotary_dim / 2`
    /// apart.
    Interleaved { head_dim: usize, rotary_dim: usize },
    /// In each head, the two halves of the rotated part are exchanged: for classes that rotate by the negative angle.
    Exchanged { head_dim: usize, rotary_dim: usize },
    /// Key head by key head: its `group` queries, its key, its value. Ours go all queries, all keys, all values.
    ByKeyHead { head_dim: usize, n_kv_heads: usize, group: usize },
    /// After this many rows that are not used.
    After(usize),
    /// Each row is a column, in the same order.
    Transposed,
    /// The rows of the two halves alternate, perhaps as columns.
    Alternating { half: usize, transposed: bool },
    /// One value, in a tensor without dimensions.
    Scalar,
}

impl RowOrder {
    /// The rotated dimensions side by side, if there are any.
    pub(super) fn interleaved(config: &GptConfig) -> Self {
        match &config.positions {
            Positions::Rope(rope) => Self::Interleaved { head_dim: config.head_dim, rotary_dim: rope.rotary_dim },
            _ => Self::Same,
        }
    }

    /// The dimensions of heads that rotate the other way round, if any rotate.
    pub(super) fn reversed(config: &GptConfig) -> Self {
        match &config.positions {
            Positions::Rope(rope) => Self::Exchanged { head_dim: config.head_dim, rotary_dim: rope.rotary_dim },
            _ => Self::Same,
        }
    }

    pub(super) fn by_key_head(config: &GptConfig) -> Self {
        let GptConfig { head_dim, n_heads, n_kv_heads, .. } = *config;
        Self::ByKeyHead { head_dim, n_kv_heads, group: n_heads / n_kv_heads }
    }

    /// Whether rows are columns of the tensor.
    pub(super) fn is_transposed(self) -> bool {
        matches!(self, Self::Transposed | Self::Alternating { transposed: true, .. })
    }

    /// The row of the tensor (its column, if it is transposed) that is row `n` of the parameter.
    pub(super) fn place(self, n: usize) -> usize {
        match self {
            Self::Same | Self::Transposed | Self::Scalar => n,
            Self::After(n_before) => n_before + n,
            Self::Alternating { half, .. } => {
                if n < half {
                    2 * n
                } else {
                    2 * (n - half) + 1
                }
            }
            Self::Interleaved { head_dim, rotary_dim } => {
                let (dim, half) = (n % head_dim, rotary_dim / 2);
                n - dim
                    + match dim {
                        _ if dim < half => 2 * dim,
                        _ if dim < rotary_dim => 2 * (dim - half) + 1,
                        _ => dim,
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
            Self::ByKeyHead { head_dim, n_kv_heads, group } => {
                let (head, dim) = (n / head_dim, n % head_dim);
                let n_heads = n_kv_heads * group;
                let (kv_head, within) = match head.checked_sub(n_heads) {
                    None => (head / group, head % group),
                    Some(behind) => (behind % n_kv_heads, group + behind / n_kv_heads),
                };
                (kv_head * (group + 2) + within) * head_dim + dim
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(order: RowOrder, n_rows: usize) -> Vec<usize> {
        (0..n_rows).map(|n| order.place(n)).collect()
    }

    #[test]
    fn interleaved_row_order_puts_rope_pairs_side_by_side() {
        // Two heads of five dimensions, four of which rotate.
        let order = RowOrder::Interleaved { head_dim: 5, rotary_dim: 4 };
        assert_eq!(places(order, 10), [0, 2, 1, 3, 4, 5, 7, 6, 8, 9]);
    }

    #[test]
    fn exchanged_row_order_swaps_the_rotary_halves_of_each_head() {
        // Two heads of five dimensions, four of which rotate.
        let order = RowOrder::Exchanged { head_dim: 5, rotary_dim: 4 };
        assert_eq!(places(order, 10), [2, 3, 0, 1, 4, 7, 8, 5, 6, 9]);
    }

    #[test]
    fn by_key_head_row_order_puts_queries_before_keys_and_values() {
        // Two key heads of two queries each: q q k v, q q k v.
        let order = RowOrder::ByKeyHead { head_dim: 1, n_kv_heads: 2, group: 2 };
        assert_eq!(places(order, 8), [0, 1, 4, 5, 2, 6, 3, 7]);
        // As many key heads as queries.
        let order = RowOrder::ByKeyHead { head_dim: 2, n_kv_heads: 2, group: 1 };
        assert_eq!(places(order, 12), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
    }
}
