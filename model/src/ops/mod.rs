//! The boundary to speed: one file per operation.
//!
//! Model code calls these functions and reads the same whichever body runs. Each operation has a **reference body** in
//! plain Burn operations, differentiable and right on every device: it is the oracle for faster bodies and what runs
//! where there is none. Only this module knows how a [`Weight`] is stored.
//!
//! GPU kernels check no bounds. So operations are private to the crate, shapes are checked before each launch, and ids,
//! rows and slots are checked where they are made. Public are types of numbers, reading logits, threads and measurements.

mod activation;
mod attention;
mod block;
mod cpu;
mod cross_entropy;
#[cfg(feature = "gpu")]
mod cube;
mod dtype;
mod embedding;
pub(crate) mod k_quants;
mod kv_append;
mod kv_dtype;
mod limits;
mod linear;
mod matrix_rows;
mod norm;
mod norm_heads;
mod quantized_matrix;
mod read_back;
mod read_logits;
mod rope;
#[cfg(test)]
mod tests;
mod upload;
mod weight;

use activation::soft_cap_reference;
pub(crate) use activation::{activate, gated, soft_cap};
pub(crate) use attention::{
    AttentionOptions, PagedRows, PagedSequences, Slots, append_and_attend, attention_dense, causal_bias,
};
pub(crate) use block::{
    BlockParts, BlockScratch, HeadNormParts, LinearParts, NormParts, PagedAttention, block, has_block,
};
pub(crate) use cpu::{SCAN_BLOCK, all_below_infinity, block_maxima, nearest_q8, relative_weights, sum_of};
pub use cpu::{give_back_memory, lead_threads, limit_arenas, share_items};
pub(crate) use cross_entropy::linear_cross_entropy;
#[cfg(feature = "gpu")]
pub(crate) use cube::{Address, Recording, is_cube as is_gpu};
pub use dtype::Dtype;
pub(crate) use embedding::{embedding, take_rows};
pub(crate) use kv_append::{copy_pages, new_pool, rope_append};
pub use kv_dtype::KvDtype;
pub use limits::{count_launches, multiply_rate, read_bandwidth};
pub(crate) use linear::{linear, linear_add, normed_gated, normed_linear};
pub use matrix_rows::MatrixRows;
use norm::norm_reference;
pub(crate) use norm::{NormOptions, norm, norm_add};
pub(crate) use norm_heads::norm_heads;
pub use quantized_matrix::{BLOCK_SIZE, QuantizedBlock, QuantizedMatrix};
pub(crate) use read_back::{read, to_f32};
pub use read_logits::{LogitRows, read_logits};
pub(crate) use rope::{Rotation, rope};
pub(crate) use upload::{Ints, Rows};
#[cfg(feature = "gpu")]
pub(crate) use upload::{StagingBuffer, Upload};
pub use weight::Weight;
