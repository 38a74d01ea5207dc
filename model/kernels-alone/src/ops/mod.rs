pub mod types;

pub use types::{BLOCK_SIZE, Dtype, MatrixRows, PAGE_SIZE, Precision, QuantizedBlock};
pub(crate) use types::{
    AttentionOptions, BlockLayout, NormOptions, NormParts, PagedRows, QkNormParts, Slots, k_quants,
};

pub mod cpu;
