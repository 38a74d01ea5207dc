//! Operations: the boundary to fast code, one file per operation.
//!
//! Model code calls these functions and does not know which body runs. Each operation has a **reference body** in plain
//! Burn operations, which is differentiable and correct on every device: the oracle for faster bodies, and the fallback
//! where there is none. Faster bodies take the memory out of Burn's tensors, compute on it and wrap the result, on the
//! CPU (`cpu`) and on GPUs (`cube`); those with a backward pass are backend extensions of Burn (`training`). Only this
//! module knows how a [`Weight`] is stored.
//!
//! GPU kernels do not check bounds. So operations are private to the crate, shapes are checked before each launch, and
//! ids, rows and slots are checked where they are made. Public are dtypes, threads and measurements.

mod activation;
mod adamw;
mod attention;
mod block;
mod clip;
mod cpu;
mod cross_entropy;
#[cfg(feature = "gpu")]
mod cube;
#[cfg(not(feature = "gpu"))]
#[path = "no_gpu.rs"]
mod cube;
mod divergence;
mod embedding;
mod experts;
mod gated_norm;
mod kv_append;
mod kv_dtype;
mod latent;
mod limits;
mod linear;
mod mlp;
mod muon;
mod norm;
mod qk_norm;
mod read_back;
mod recurrence;
mod residual;
mod rope;
mod row_updates;
mod short_conv;
mod staging;
#[cfg(test)]
mod tests;
mod training;
mod types;
mod weight;

use burn::tensor::Device;

use activation::soft_cap_reference;
pub(crate) use activation::{activate, clamped_swiglu, gated, gelu_of, sigmoid_gated, soft_cap, xielu};
pub use adamw::adamw;
pub(crate) use attention::{
    append_and_attend, attention_dense, attention_paged, causal_bias, document_bias, padding_bias, rope_and_attend,
};
pub(crate) use block::{Block, BlockScratch, PagedAttention, block, has_block};
pub use clip::{clip_norm, clip_part, square_sums};
pub(crate) use cpu::choose;
pub use cpu::{
    ATTENTION_QUERIES, MAX_KEPT_BYTES, ROWS_AT_ONCE, give_back_memory, instruction_set, keep_freed_memory,
    limit_arenas, loss_rows_at_once, n_threads, parallel_for_each, start_threads, use_threads,
};
pub(crate) use cpu::{SCAN_BLOCK, all_below_infinity, block_maxima, nearest_q8, relative_weights, sum_of};
pub use cross_entropy::{Losses, Targets};
pub(crate) use cross_entropy::{linear_cross_entropy, token_losses};
pub(crate) use cube::{Address, CapturedGraph, flush, read_ints_while, top_k_logits};
pub(crate) use divergence::linear_divergence;
pub(crate) use embedding::{embedding, take_rows};
pub(crate) use experts::{RouterParts, Routes, experts, experts_routed_by};
pub(crate) use gated_norm::gated_norm;
pub(crate) use kv_append::{append, copy_pages, new_pool, rope_append};
pub use kv_dtype::KvDtype;
pub(crate) use latent::latent_qkv;
pub use limits::{count_launches, device_memory, gpu_features, has_fast_bf16_products, multiply_rate, read_bandwidth};
pub(crate) use linear::{LinearParts, linear, linear_add, linear_with_lora, normed_gated, normed_linear};
pub(crate) use mlp::normed_mlp;
pub use muon::muon;
use norm::norm_reference;
pub(crate) use norm::{norm, norm_add};
pub(crate) use qk_norm::{head_norm, qk_norm, rope_qk, scale_queries};
pub(crate) use read_back::{read, read_ids, to_f32};
pub(crate) use recurrence::{copy_state, delta_gates, gated_delta, new_states, state_space, state_space_gates};
pub use residual::add_gradients;
pub(crate) use residual::{add_update, dropout, fork};
pub(crate) use rope::{Rotation, rope};
pub(crate) use row_updates::{LoraMatrix, RowUpdate};
pub(crate) use short_conv::{gated_short_conv, short_conv};
pub(crate) use staging::{StagingBuffer, Upload, packed};
pub use training::{OpTime, Pass, RECOMPUTED_FROM, profile_training};
pub use types::{
    AdamWStep, BLOCK_SIZE, DeviceMemory, Dtype, GPU_LOGITS_AT_ONCE, GpuFeatures, LoraPair, LoraShape, MatrixRows,
    MuonParam, MuonStep, PAGE_SIZE, Precision, QuantizedBlock, QuantizedMatrix,
};
pub(crate) use types::{
    AttentionOptions, BlockLayout, BlockOperands, BlockSteps, CrossAttention, Dropout, ExpertsBesideMlp, FeedForward,
    GateOrder, GatedNormOptions, Ints, KvSource, LatentHeads, LatentQkv, LoraParts, LossOptions, Mixer, Mlp,
    NormOptions, NormParts, PagedRows, PagedSequences, PerLayerUpdate, Placement, QkNormParts, Qkv, Recurrent,
    RecurrentHeads, RecurrentKind, RecurrentRows, RelativeScores, RoutedExperts, Routing, Rows, SelfAttention,
    SharedExpert, ShortConv, Slots, StatePart, Sublayer, k_quants, run_block,
};
pub use weight::Weight;

/// Whether operations on `device` record gradients. The bodies for inference have no backward pass, so operations then
/// run the bodies of [`training`] where there are any, and their reference bodies otherwise.
pub(crate) fn records_gradients(device: &Device) -> bool {
    Placement::of(device).records_gradients()
}

/// Whether tensors on `device` are in the CPU's memory, with gradients recorded or not.
pub fn is_on_cpu(device: &Device) -> bool {
    Placement::of(device).is_cpu()
}
