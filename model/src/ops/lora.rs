//! Low-rank updates of matrices ([LoRA](https://arxiv.org/abs/2106.09685)): `x W^T + s (x A^T) B^T`.

use std::{ops::Range, sync::Arc};

use burn::tensor::Tensor;

use super::{
    Dropout, LinearParts, cpu, dropout, linear, records_gradients,
    training::{apply, is_on_cpu},
    weight::Form,
};

/// The updates of one matrix `[d_out, d_in]`, each of some of its rows.
///
/// All their values are one vector: every `A` (`[rank, d_in]`), one below the other, then every `B` (`[rows.len(), rank]`).
#[derive(Clone, Debug, PartialEq)]
pub struct LoraShape {
    /// Columns of the matrix.
    pub d_in: usize,
    /// The updates.
    pub pairs: Vec<LoraPair>,
}

/// An update of some rows of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraPair {
    /// The rows.
    pub rows: Range<usize>,
    /// Rows of `A` and columns of `B`.
    pub rank: usize,
    /// Multiplies the update.
    pub scale: f32,
}

/// A matrix's updates as an operand.
#[derive(Clone, Debug)]
pub(crate) struct LoraParts {
    /// `[shape.n_values()]`.
    pub(crate) values: Tensor<1>,
    pub(crate) shape: Arc<LoraShape>,
    /// Dropout of the updates' input.
    pub(crate) dropout: Option<Dropout>,
}

impl LoraShape {
    /// Ranks of all pairs together.
    pub fn total_rank(&self) -> usize {
        self.pairs.iter().map(|pair| pair.rank).sum()
    }

    /// Values of all pairs together.
    pub fn n_values(&self) -> usize {
        self.pairs.iter().map(|pair| pair.rank * (self.d_in + pair.rows.len())).sum()
    }

    /// The place of each pair's `A`, and of its `B`.
    pub fn places(&self) -> impl Iterator<Item = [Range<usize>; 2]> {
        let (mut of_a, mut of_b) = (0, self.total_rank() * self.d_in);
        self.pairs.iter().map(move |LoraPair { rows, rank, .. }| {
            let [a, b] = [of_a..of_a + rank * self.d_in, of_b..of_b + rank * rows.len()];
            (of_a, of_b) = (a.end, b.end);
            [a, b]
        })
    }
}

/// [`linear()`] with the updates of `part`, if it has any.
pub(crate) fn linear_with_lora(x: Tensor<2>, part: LinearParts<'_>) -> Tensor<2> {
    let LinearParts { weight, bias, lora } = part;
    let Some(lora) = lora else { return linear(x, weight, bias) };
    let LoraParts { values, shape, dropout: dropped } = lora;
    match weight.form() {
        Form::Packed(weight) if records_gradients(&x.device()) => {
            let bias = bias.map(|bias| cpu::values(bias.inner()).as_slice().to_vec());
            let op = cpu::FrozenLinear { weight: weight.clone(), bias, lora: Some((shape, dropped)) };
            apply(vec![x.into(), values.into()], op)
        }
        _ if is_on_cpu(&x.device()) && !records_gradients(&x.device()) => {
            let (output, values) = (linear(x.clone(), weight, bias), cpu::values(values));
            let x = cpu::values(x);
            cpu::changed(output, |output| cpu::add_lora(output, x.as_slice(), values.as_slice(), &shape))
        }
        _ => {
            let output = linear(x.clone(), weight, bias);
            add_lora_reference(output, dropout(x, dropped), values, &shape)
        }
    }
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
