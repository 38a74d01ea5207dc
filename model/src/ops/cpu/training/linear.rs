//! `x W^T + b`.

use burn::backend::flex::FlexTensor;

use super::{
    dims,
    product::{View, new_product},
    sum_of_rows, tensor, values,
};
use crate::ops::{Precision, types::TrainingOp};

/// Inputs: `x [n_rows, d_in]`, the weight `[d_out, d_in]` and an optional bias `[d_out]`. Output: `[n_rows, d_out]`.
#[derive(Debug)]
pub(in crate::ops) struct Linear {
    /// Precision of all its products.
    pub(in crate::ops) precision: Precision,
}

impl TrainingOp<FlexTensor> for Linear {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let (x, weight) = (&inputs[0], &inputs[1]);
        let ([n_rows, d_in], [d_out, _]) = (dims(x), dims(weight));
        let x = View::new(values(x), [n_rows, d_in], d_in);
        let weight = View::new(values(weight), [d_out, d_in], d_in);
        let output = new_product([x, weight.transposed()], inputs.get(2).map(values), self.precision);
        (tensor(output, [n_rows, d_out]), Vec::new())
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        _saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let ([n_rows, d_in], [d_out, _]) = (dims(&inputs[0]), dims(&inputs[1]));
        let of_bias = inputs.get(2).map(|_| Some(tensor(sum_of_rows(values(gradient), d_out), [d_out])));
        let gradient = View::new(values(gradient), [n_rows, d_out], d_out);
        let x = View::new(values(&inputs[0]), [n_rows, d_in], d_in);
        let weight = View::new(values(&inputs[1]), [d_out, d_in], d_in);
        let product = |operands| new_product(operands, None, self.precision);
        let of_x = wanted[0].then(|| tensor(product([gradient, weight]), [n_rows, d_in]));
        let of_weight = wanted[1].then(|| tensor(product([gradient.transposed(), x]), [d_out, d_in]));
        [of_x, of_weight].into_iter().chain(of_bias).collect()
    }
}
