pub mod types;

pub(crate) use types::{
    AttentionOptions, BlockLayout, NormOptions, NormParts, PagedRows, QkNormParts, Slots, k_quants,
};
pub use types::{BLOCK_SIZE, Dtype, MatrixRows, PAGE_SIZE, Precision, QuantizedBlock};

pub mod cpu;
