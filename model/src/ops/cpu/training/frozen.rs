//! Products with a matrix that does not train, in whatever form it is stored: its input has gradients, and so have low-rank
//! updates of it.

use std::{borrow::Cow, sync::Arc};

use burn::backend::flex::FlexTensor;

use super::{
    dims,
    product::{Accumulate, RightOperand, View, new_product, new_product_with, product_at},
    residual::dropped,
    tensor, values,
};
use crate::ops::{Dropout, LoraPair, LoraShape, Precision, cpu::Panels, types::TrainingOp};

/// A frozen matrix, with the precision of its products.
pub(super) enum Matrix<'a> {
    Plain(View<'a>, Precision),
    Packed(&'a Panels),
}

impl Matrix<'_> {
    /// `x [n_rows, d_in]` times the transpose, plus a bias: `[n_rows, d_out]`.
    pub(super) fn multiply(&self, x: View<'_>, bias: Option<&[f32]>) -> Vec<f32> {
        match self {
            Self::Plain(weight, precision) => new_product([x, weight.transposed()], bias, *precision),
            Self::Packed(panels) => {
                new_product_with(x, RightOperand::StoredTransposed(panels), bias, panels.precision())
            }
        }
    }

    /// The gradient of `x`, `[n_rows, d_in]`, from the gradient of the product, `[n_rows, d_out]`.
    pub(super) fn multiply_back(&self, gradient: View<'_>) -> Vec<f32> {
        match self {
            Self::Plain(weight, precision) => new_product([gradient, *weight], None, *precision),
            Self::Packed(panels) => new_product_with(gradient, RightOperand::Stored(panels), None, panels.precision()),
        }
    }
}

/// Inputs: `x [n_rows, d_in]` and, with low-rank updates, their values. Output: `[n_rows, d_out]`.
#[derive(Debug)]
pub(in crate::ops) struct FrozenLinear {
    /// `[d_out, d_in]`.
    pub(in crate::ops) weight: Arc<Panels>,
    /// `[d_out]`.
    pub(in crate::ops) bias: Option<Vec<f32>>,
    /// Low-rank updates, and the dropout of their input.
    pub(in crate::ops) lora: Option<(Arc<LoraShape>, Option<Dropout>)>,
}

impl TrainingOp<FlexTensor> for FrozenLinear {
    fn forward(&self, inputs: &[FlexTensor], wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let is_recorded = wanted.contains(&true);
        let ([n_rows, d_in], [d_out, _]) = (dims(&inputs[0]), self.weight.dims());
        let x = values(&inputs[0]);
        let matrix = Matrix::Packed(&self.weight);
        let mut output = matrix.multiply(View::new(x, [n_rows, d_in], d_in), self.bias.as_deref());
        let mut saved = Vec::new();
        if let Some((shape, dropout)) = &self.lora {
            let reduced = reduce(&dropped_input(x, *dropout), values(&inputs[1]), shape);
            expand(&mut output, &reduced, values(&inputs[1]), shape);
            if is_recorded {
                saved.push(tensor(reduced, [n_rows, shape.total_rank()]));
            }
        }
        (tensor(output, [n_rows, d_out]), saved)
    }

    fn keeps_inputs(&self) -> bool {
        self.lora.is_some()
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let ([n_rows, d_out], d_in) = (dims(gradient), self.weight.dims()[1]);
        let gradient = values(gradient);
        let mut of_x =
            wanted[0].then(|| Matrix::Packed(&self.weight).multiply_back(View::new(gradient, [n_rows, d_out], d_out)));
        let Some((shape, dropout)) = &self.lora else {
            return vec![of_x.map(|of_x| tensor(of_x, [n_rows, d_in]))];
        };
        let (all, reduced, rank) = (values(&inputs[1]), values(&saved[0]), shape.total_rank());
        let mut of_values = vec![0.0; shape.n_values()];
        // Gradients of `x A^T`, before it is scaled.
        let mut of_reduced = vec![0.0; n_rows * rank];
        let mut first = 0;
        for (LoraPair { rows, rank: own, scale }, [_, of_b]) in shape.pairs.iter().zip(shape.places()) {
            let gradient = View::new(&gradient[rows.start..], [n_rows, rows.len()], d_out);
            let b = View::new(&all[of_b.clone()], [rows.len(), *own], *own);
            product_at(&mut of_reduced, (first, rank), [gradient, b], Accumulate::Nothing, Precision::F32);
            of_reduced.chunks_exact_mut(rank).flat_map(|row| &mut row[first..first + own]).for_each(|v| *v *= scale);
            let reduced = View::new(&reduced[first..], [n_rows, *own], rank);
            // The transpose, so that the gradient is read in its rows' order.
            let transposed = new_product([reduced.transposed(), gradient], None, Precision::F32);
            for (row, of_b) in of_values[of_b].chunks_exact_mut(*own).enumerate() {
                of_b.iter_mut().enumerate().for_each(|(n, value)| *value = transposed[n * rows.len() + row]);
            }
            first += own;
        }
        let of_reduced = View::new(&of_reduced, [n_rows, rank], rank);
        let x = dropped_input(values(&inputs[0]), *dropout);
        let x = View::new(&x, [n_rows, d_in], d_in);
        let operands = [of_reduced.transposed(), x];
        product_at(&mut of_values[..rank * d_in], (0, d_in), operands, Accumulate::Nothing, Precision::F32);
        if let Some(of_x) = &mut of_x {
            let a = View::new(&all[..rank * d_in], [rank, d_in], d_in);
            match dropout {
                None => product_at(of_x, (0, d_in), [of_reduced, a], Accumulate::Itself, Precision::F32),
                Some(dropout) => {
                    let through = dropped(&new_product([of_reduced, a], None, Precision::F32), *dropout);
                    of_x.iter_mut().zip(&through).for_each(|(of_x, through)| *of_x += through);
                }
            }
        }
        let n_values = of_values.len();
        vec![of_x.map(|of_x| tensor(of_x, [n_rows, d_in])), Some(tensor(of_values, [n_values]))]
    }
}

/// Adds the updates of `x [n_rows, d_in]` to `output [n_rows, d_out]`.
pub(in crate::ops) fn add_lora(output: &mut [f32], x: &[f32], values: &[f32], shape: &LoraShape) {
    let reduced = reduce(x, values, shape);
    expand(output, &reduced, values, shape);
}

fn dropped_input(x: &[f32], dropout: Option<Dropout>) -> Cow<'_, [f32]> {
    dropout.map_or(x.into(), |dropout| dropped(x, dropout).into())
}

/// `x` times the transpose of each `A`, times the pairs' scales: `[n_rows, total_rank]`.
fn reduce(x: &[f32], values: &[f32], shape: &LoraShape) -> Vec<f32> {
    let (d_in, rank) = (shape.d_in, shape.total_rank());
    let a = View::new(&values[..rank * d_in], [rank, d_in], d_in);
    let x = View::new(x, [x.len() / d_in, d_in], d_in);
    let mut reduced = new_product([x, a.transposed()], None, Precision::F32);
    let scales: Vec<f32> = shape.pairs.iter().flat_map(|pair| std::iter::repeat_n(pair.scale, pair.rank)).collect();
    for row in reduced.chunks_exact_mut(rank.max(1)) {
        row.iter_mut().zip(&scales).for_each(|(value, scale)| *value *= scale);
    }
    reduced
}

/// Multiplies `reduced`, the result of [`reduce`], by each `B` and adds the products to `output [n_rows, d_out]`.
fn expand(output: &mut [f32], reduced: &[f32], values: &[f32], shape: &LoraShape) {
    let rank = shape.total_rank();
    let n_rows = reduced.len() / rank.max(1);
    let d_out = output.len() / n_rows.max(1);
    let mut first = 0;
    for (LoraPair { rows, rank: own, .. }, [_, of_b]) in shape.pairs.iter().zip(shape.places()) {
        let reduced = View::new(&reduced[first..], [n_rows, *own], rank);
        let b = View::new(&values[of_b], [rows.len(), *own], *own);
        product_at(output, (rows.start, d_out), [reduced, b.transposed()], Accumulate::Itself, Precision::F32);
        first += own;
    }
}
