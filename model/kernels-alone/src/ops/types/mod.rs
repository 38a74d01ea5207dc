#[path = "../../../../src/ops/types/dtype.rs"]
mod dtype;
#[path = "../../../../src/ops/types/k_quants.rs"]
pub(crate) mod k_quants;
#[path = "../../../../src/ops/types/matrix_rows.rs"]
mod matrix_rows;
#[path = "../../../../src/ops/types/operands.rs"]
mod operands;
#[path = "../../../../src/ops/types/quantized_matrix.rs"]
mod quantized_matrix;
#[path = "../../../../src/ops/types/recurrent.rs"]
mod recurrent;

mod upload {
    use burn::tensor::{Device, Int, Tensor};

    #[derive(Clone, Debug)]
    pub(crate) struct Ints(Vec<i32>);

    impl Ints {
        pub(crate) fn new(host: Vec<i32>, _: &Device) -> Self {
            Self(host)
        }

        pub(crate) fn host(&self) -> &[i32] {
            &self.0
        }

        pub(crate) fn tensor(&self) -> Tensor<1, Int> {
            unimplemented!("there are no tensors here")
        }
    }
}

pub(crate) use dtype::BlockLayout;
pub use dtype::{BLOCK_SIZE, Dtype};
pub use matrix_rows::MatrixRows;
pub(crate) use operands::{AttentionOptions, NormOptions, NormParts, PagedRows, QkNormParts, Slots};
pub use operands::{PAGE_SIZE, Precision};
pub use quantized_matrix::QuantizedBlock;
pub(in crate::ops) use recurrent::{
    GateOrder, GatedNormOptions, Recurrence, RecurrentHeads, RecurrentRows, RecurrentRule, RecurrentSpan, STATE_COLUMNS,
};
