//! Low-rank updates of some rows of a product: each sequence of a step may have its own adapter.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use burn::tensor::{Device, Tensor};

use super::{LoraPair, LoraShape, Placement, cpu};

/// An adapter's update of one matrix, in the form in which the device computes with it.
#[derive(Debug)]
pub(crate) struct LoraMatrix(UpdateForm);

#[derive(Debug)]
enum UpdateForm {
    Packed(cpu::LoraPanels),
    /// Uploaded at the first use, by the thread that computes.
    OnDevice {
        host: Vec<f32>,
        shape: Arc<LoraShape>,
        device: Device,
        values: Box<OnceLock<Tensor<1>>>,
    },
}

/// The rows of a step that one adapter updates, with its updates of one matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowUpdate<'a> {
    /// In ascending order; no row is in two updates.
    pub(crate) rows: &'a [usize],
    pub(crate) matrix: &'a LoraMatrix,
}

impl LoraMatrix {
    /// `values [shape.n_values()]` for `device`.
    pub(crate) fn new(values: &[f32], shape: &Arc<LoraShape>, device: &Device) -> Self {
        Self(match Placement::of(device) {
            Placement::Cpu => UpdateForm::Packed(cpu::LoraPanels::new(values, shape)),
            _ => {
                let (host, shape, device) = (values.to_vec(), shape.clone(), device.clone());
                UpdateForm::OnDevice { host, shape, device, values: Box::default() }
            }
        })
    }

    /// Bytes that it takes on its device.
    pub(crate) fn n_bytes(&self) -> usize {
        match &self.0 {
            UpdateForm::Packed(panels) => panels.n_bytes(),
            UpdateForm::OnDevice { host, .. } => size_of_val(host.as_slice()),
        }
    }

    /// The form on the CPU.
    pub(super) fn packed(&self) -> &cpu::LoraPanels {
        match &self.0 {
            UpdateForm::Packed(panels) => panels,
            UpdateForm::OnDevice { .. } => unreachable!("an adapter is on its model's device"),
        }
    }
}

impl<'a> RowUpdate<'a> {
    /// The form on the CPU.
    pub(super) fn packed(self) -> cpu::RowUpdate<'a> {
        cpu::RowUpdate { rows: self.rows, matrix: self.matrix.packed() }
    }
}

/// Adds the updates that rows of `x [n_rows, d_in]` get to the same rows of `output [n_rows, d_out]`.
pub(super) fn add_row_updates(output: Tensor<2>, x: Tensor<2>, updates: &[RowUpdate<'_>]) -> Tensor<2> {
    if Placement::of(&x.device()) != Placement::Cpu {
        return updates.iter().fold(output, |output, update| add_reference(output, &x, *update));
    }
    let ([_, d_out], x) = (output.dims(), cpu::values(x));
    let updates: Vec<_> = updates.iter().map(|update| update.packed()).collect();
    cpu::changed(output, |output| cpu::add_row_updates(output, d_out, x.as_slice(), &updates))
}

/// Adds the update of one adapter, in plain Burn operations.
fn add_reference(output: Tensor<2>, x: &Tensor<2>, RowUpdate { rows, matrix }: RowUpdate<'_>) -> Tensor<2> {
    let UpdateForm::OnDevice { host, shape, device, values } = &matrix.0 else {
        unreachable!("an adapter is on its model's device")
    };
    let values = values.get_or_init(|| Tensor::from_data(host.as_slice(), device));
    let ([_, d_out], [_, d_in]) = (output.dims(), x.dims());
    rows.chunk_by(|one, next| *next == one + 1).fold(output, |output, rows| {
        let rows = rows[0]..rows[0] + rows.len();
        let (own, x) = (output.clone().slice([rows.clone(), 0..d_out]), x.clone().slice([rows.clone(), 0..d_in]));
        let updated = add_lora_reference(own, x, values.clone(), shape);
        output.slice_assign([rows, 0..d_out], updated)
    })
}

/// `output [n_rows, d_out]` plus the updates of `x [n_rows, d_in]`, in plain Burn operations.
pub(crate) fn add_lora_reference(output: Tensor<2>, x: Tensor<2>, values: Tensor<1>, shape: &LoraShape) -> Tensor<2> {
    let [n_rows, d_out] = output.dims();
    let places: Vec<_> = shape.places().collect();
    let add = |output: Tensor<2>, (pair, [of_a, of_b]): (&LoraPair, [Range<usize>; 2])| {
        let LoraPair { rows, rank, scale } = pair.clone();
        let a = values.clone().slice([of_a]).reshape([rank, shape.d_in]);
        let b = values.clone().slice([of_b]).reshape([rows.len(), rank]);
        let update = x.clone().matmul(a.transpose()).matmul(b.transpose()) * scale;
        let zeros = |width: usize| Tensor::zeros([n_rows, width], &update.device());
        let (before, behind) = (zeros(rows.start), zeros(d_out - rows.end));
        let parts = [before, update, behind].into_iter().filter(|part| part.dims()[1] > 0);
        output + Tensor::cat(parts.collect(), 1)
    };
    shape.pairs.iter().zip(places).fold(output, add)
}
