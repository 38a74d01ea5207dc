//! The boundary to speed: one file per operation.
//!
//! Model code calls these functions and reads the same whichever body runs. Each operation has a **reference body** in
//! plain Burn operations, differentiable and right on every device: it is the oracle for faster bodies and what runs
//! where there is none. Only this module knows how a [`Weight`] is stored.

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
mod upload;
mod weight;

pub use activation::{activate, activate_reference, gated, gated_reference, soft_cap, soft_cap_reference};
pub use attention::{
    Attended, AttentionOptions, PagedRows, PagedSequences, Slots, append_and_attend, attend, attention_dense,
    attention_paged, attention_paged_reference, causal_bias,
};
pub use block::{BlockParts, BlockScratch, HeadNormParts, LinearParts, NormParts, PagedAttention, block, has_block};
pub(crate) use cpu::{SCAN_BLOCK, all_below_infinity, block_maxima, relative_weights, sum_of};
pub use cpu::{give_back_memory, lead_threads, limit_arenas, nearest_q8, share_items};
pub use cross_entropy::linear_cross_entropy;
#[cfg(feature = "gpu")]
pub(crate) use cube::{Recording, is_cube as is_gpu};
pub use dtype::Dtype;
pub use embedding::{embedding, take_rows};
pub use kv_append::{append_keys, append_values, copy_pages, new_pool, rope_append};
pub use kv_dtype::KvDtype;
pub use limits::{count_launches, multiply_rate, read_bandwidth};
pub use linear::{linear, linear_add, normed_gated, normed_linear};
pub use matrix_rows::MatrixRows;
pub use norm::{NormOptions, norm, norm_add, norm_reference};
pub use norm_heads::{norm_heads, norm_heads_reference};
pub use quantized_matrix::{BLOCK_SIZE, QuantizedBlock, QuantizedMatrix};
pub(crate) use read_back::{read, to_f32};
pub use read_logits::{LogitRows, read_logits, read_logits_reference};
pub use rope::{Rotation, rope, rope_reference};
pub use upload::{Ints, Rows};
#[cfg(feature = "gpu")]
pub(crate) use upload::{StagingBuffer, Upload};
pub use weight::Weight;
