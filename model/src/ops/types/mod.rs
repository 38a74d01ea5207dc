//! The base types of operations: placements of tensors, formats of weights, and options of operations. The bodies and
//! the functions of [`ops`](super) import this module; it imports neither.

mod block;
mod dtype;
pub(in crate::ops) mod gpu_attention_plan;
pub(crate) mod k_quants;
mod matrix_rows;
mod operands;
mod paged_sequences;
mod placement;
mod quantized_matrix;
mod recurrent;
mod training_ops;
mod upload;

pub(crate) use block::{
    BlockOperands, BlockSteps, CrossAttention, ExpertsBesideMlp, FeedForward, KvSource, LatentHeads, LatentQkv, Mixer,
    Mlp, PerLayerUpdate, Qkv, Recurrent, RecurrentKind, RoutedExperts, Routing, SelfAttention, SharedExpert, Sublayer,
    run_block,
};
pub(crate) use dtype::BlockLayout;
pub use dtype::{BLOCK_SIZE, Dtype};
pub(in crate::ops) use gpu_attention_plan::{AttentionPlan, AttentionStep, BLOCK_LEN, TILE};
pub use matrix_rows::MatrixRows;
pub use operands::{
    AdamWStep, DeviceMemory, GpuFeatures, LoraPair, LoraShape, MuonParam, MuonStep, PAGE_SIZE, Precision,
};
pub(crate) use operands::{
    AttentionOptions, Dropout, LoraParts, LossOptions, NormOptions, NormParts, PagedRows, QkNormParts, RelativeScores,
    Slots,
};
pub(in crate::ops) use operands::{CLIP_EPS, document_ends};
pub(crate) use paged_sequences::PagedSequences;
pub(crate) use placement::Placement;
pub use quantized_matrix::{QuantizedBlock, QuantizedMatrix};
pub(crate) use recurrent::{GateOrder, GatedNormOptions, RecurrentHeads, RecurrentRows, ShortConv, StatePart};
pub(in crate::ops) use recurrent::{Recurrence, RecurrentRule, RecurrentSpan, STATE_COLUMNS};
pub use training_ops::GPU_LOGITS_AT_ONCE;
pub(in crate::ops) use training_ops::{Activate, AddUpdate, Normalize, QkNormalize, TrainingOp};
pub(crate) use upload::{Ints, Rows};
