#[path = "../../../../src/ops/types/dtype.rs"]
mod dtype;
#[path = "../../../../src/ops/types/gpu_attention_plan.rs"]
pub(in crate::ops) mod gpu_attention_plan;
#[path = "../../../../src/ops/types/matrix_rows.rs"]
mod matrix_rows;
#[path = "../../../../src/ops/types/operands.rs"]
mod operands;
#[path = "../../../../src/ops/types/quantized_matrix.rs"]
mod quantized_matrix;
#[path = "../../../../src/ops/types/training_ops.rs"]
mod training_ops;
#[path = "../../../../src/ops/types/upload.rs"]
mod upload;

pub(crate) use dtype::BlockLayout;
pub use dtype::{BLOCK_SIZE, Dtype};
pub(in crate::ops) use gpu_attention_plan::{AttentionPlan, AttentionStep, BLOCK_LEN, TILE};
pub use matrix_rows::MatrixRows;
pub use operands::{AdamWStep, DeviceMemory, GpuFeatures, PAGE_SIZE, Precision};
pub(crate) use operands::{
    AttentionOptions, Dropout, LossOptions, NormOptions, NormParts, PagedRows, QkNormParts, Slots,
};
pub use quantized_matrix::{QuantizedBlock, QuantizedMatrix};
pub use training_ops::GPU_LOGITS_AT_ONCE;
pub(in crate::ops) use training_ops::{Activate, AddUpdate, Normalize, QkNormalize, TrainingOp};
