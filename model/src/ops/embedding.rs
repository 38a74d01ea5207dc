//! Rows of a matrix by number.

use burn::tensor::{DType, Int, Tensor};

use super::{
    Placement, Weight, cpu, cube, records_gradients,
    training::{apply, apply_on_gpu},
    weight::WeightForm,
};

/// Looks up `ids [n]` in `table [n_entries, d_model]`: `[n, d_model]` in f32. Ids must be below `n_entries`. The GPU's
/// kernel cannot report other ids: it takes the last entry for them.
///
/// # Panics
/// Except on a GPU, if an id is not below `n_entries`.
pub(crate) fn embedding(table: &Weight, ids: Tensor<1, Int>) -> Tensor<2> {
    match table.form() {
        WeightForm::Stored(table) if table.dtype() == DType::F32 => match Placement::of(&table.device()) {
            Placement::Cpu | Placement::CpuTraining => apply(vec![table.into()], cpu::Embed { ids: cpu::ints(ids) }),
            Placement::GpuTraining => apply_on_gpu(vec![table.into()], cube::training::Embed::new(ids)),
            Placement::Gpu => table.select(0, ids),
        },
        WeightForm::Stored(table) => table.select(0, ids).cast(DType::F32),
        WeightForm::OnGpu(matrix) => cube::embedding(matrix, ids),
        WeightForm::Packed(panels) => {
            let ([n_entries, d_model], [n]) = (panels.dims(), ids.dims());
            let row = |id: i32| {
                let entry = usize::try_from(id).ok().filter(|entry| *entry < n_entries);
                assert!(entry.is_some(), "id {id} of a table of {n_entries}");
                panels.row(entry.unwrap_or_default())
            };
            let is_recorded = records_gradients(&ids.device());
            let rows = cpu::tensor(cpu::ints(ids).into_iter().flat_map(row).collect(), [n, d_model]);
            if is_recorded { Tensor::from_inner(rows) } else { rows }
        }
    }
}

/// Rows of `x [n_rows, width]` by number, in f32: `[rows.len(), width]`.
///
/// # Panics
/// When a number is not below `n_rows`.
pub(crate) fn take_rows(x: Tensor<2>, rows: &[usize]) -> Tensor<2> {
    let [n_rows, _] = x.dims();
    if rows.iter().copied().eq(0..n_rows) {
        return x;
    }
    assert!(rows.iter().all(|row| *row < n_rows), "rows {rows:?} of {n_rows}");
    let device = x.device();
    let rows: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
    let rows = Tensor::<1, Int>::from_data(rows.as_slice(), &device);
    match Placement::of(&device) {
        // Burn would compile a kernel for each number of rows.
        Placement::Gpu => cube::take_rows(x, rows),
        _ => x.select(0, rows),
    }
}
