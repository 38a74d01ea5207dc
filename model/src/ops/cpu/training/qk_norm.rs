//! Norms of queries and keys.

use burn::backend::flex::FlexTensor;

use super::{
    dims,
    norm::{NormedPart, norm_gradients},
    tensor, values,
};
use crate::ops::{
    AttentionOptions,
    cpu::{self, NormValues},
    types::{QkNormalize, TrainingOp},
};

impl TrainingOp<FlexTensor> for QkNormalize {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let mut output = values(&inputs[0]).to_vec();
        let norm = |n: usize| NormValues { weight: values(&inputs[1 + n]), bias: None, options: self.norm };
        cpu::qk_norm(&mut output, &[norm(0), norm(1)], self.span, &self.options);
        (tensor(output, dims(&inputs[0])), Vec::new())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        _saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let [n_rows, width] = dims(&inputs[0]);
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = self.options;
        let part = |columns, n: usize| NormedPart { columns, weight: values(&inputs[1 + n]), options: self.norm };
        let parts = [part(0..n_heads * head_dim, 0), part(n_heads * head_dim..(n_heads + n_kv_heads) * head_dim, 1)];
        // Values are not normalized.
        let mut of_qkv = values(gradient).to_vec();
        let [of_weights, _] = norm_gradients(values(&inputs[0]), values(gradient), &parts, &mut of_qkv, width);
        let (of_queries, of_keys) = of_weights.split_at(parts[0].weight.len());
        let of_weight = |sums: &[f32]| Some(tensor(sums.to_vec(), [sums.len()]));
        vec![Some(tensor(of_qkv, [n_rows, width])), of_weight(of_queries), of_weight(of_keys)]
    }
}
