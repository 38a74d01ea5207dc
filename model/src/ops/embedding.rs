//! Rows of a matrix by number.

use burn::tensor::{DType, Int, Tensor};

use super::{Weight, cpu, cube, weight::Form};

/// Looks up `ids [n]` in `table [n_entries, d_model]`: `[n, d_model]` in f32. Ids must be below `n_entries`.
pub fn embedding(table: &Weight, ids: Tensor<1, Int>) -> Tensor<2> {
    match table.form() {
        Form::Stored(table) => table.select(0, ids).cast(DType::F32),
        Form::OnGpu(matrix) => cube::embedding(matrix, ids),
        Form::Packed(panels) => {
            let ([_, d_model], [n]) = (panels.dims(), ids.dims());
            let rows = cpu::ints(ids).into_iter().flat_map(|id| panels.row(id as usize)).collect();
            cpu::tensor(rows, [n, d_model])
        }
    }
}
