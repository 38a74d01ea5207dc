//! Norms of queries and keys.

use burn::backend::flex::FlexTensor;

use super::{ROWS_AT_ONCE, add_rows, dims, norm::backward_row, tensor, values};
use crate::{
    config::QkNormSpan,
    ops::{
        AttentionOptions, NormOptions,
        cpu::{
            self, NormValues,
            thread_pool::{self, SharedMut},
        },
        training::CpuOp,
    },
};

/// Inputs: `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]`, and the weights of queries and of keys; there are no
/// biases. See [`qk_norm`](crate::ops::qk_norm).
#[derive(Debug)]
pub(in crate::ops) struct QkNormalize {
    pub(in crate::ops) span: QkNormSpan,
    pub(in crate::ops) options: AttentionOptions,
    /// Of queries, and of keys.
    pub(in crate::ops) norms: [NormOptions; 2],
}

impl CpuOp for QkNormalize {
    fn forward(&self, inputs: &[FlexTensor], _is_recorded: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let mut output = values(&inputs[0]).to_vec();
        let norm = |n: usize| NormValues { weight: values(&inputs[1 + n]), bias: None, options: self.norms[n] };
        cpu::qk_norm(&mut output, &[norm(0), norm(1)], self.span, &self.options);
        (tensor(output, dims(&inputs[0])), Vec::new())
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        _saved: &[FlexTensor],
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let [n_rows, width] = dims(&inputs[0]);
        let (qkv, gradient) = (values(&inputs[0]), values(gradient));
        let weights = [values(&inputs[1]), values(&inputs[2])];
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = self.options;
        let parts = [0..n_heads * head_dim, n_heads * head_dim..(n_heads + n_kv_heads) * head_dim];
        let n_weights = weights[0].len() + weights[1].len();
        let mut of_qkv = gradient.to_vec();
        // For each group of rows: the sums for both weights, and those for biases, which there are not.
        let mut partial = vec![0.0; n_rows.div_ceil(ROWS_AT_ONCE) * 2 * n_weights];
        let shared = SharedMut::new(&mut of_qkv);
        thread_pool::parallel_chunks(&mut partial, 2 * n_weights, |group, sums| {
            let (of_weights, of_biases) = sums.split_at_mut(n_weights);
            for row in group * ROWS_AT_ONCE..n_rows.min((group + 1) * ROWS_AT_ONCE) {
                let mut first = 0;
                for ((part, weight), options) in parts.iter().zip(weights).zip(self.norms) {
                    let sums = first..first + weight.len();
                    first = sums.end;
                    for start in part.clone().step_by(weight.len()) {
                        let range = row * width + start..row * width + start + weight.len();
                        #[expect(unsafe_code, reason = "threads write disjoint rows of one matrix")]
                        // SAFETY: each group of rows is claimed once.
                        let of_x = unsafe { shared.part(range.clone()) };
                        let of_weight = &mut of_weights[sums.clone()];
                        let of_bias = &mut of_biases[sums.clone()];
                        backward_row(&qkv[range.clone()], &gradient[range], weight, options, of_x, of_weight, of_bias);
                    }
                }
            }
        });
        let mut sums = vec![0.0; 2 * n_weights];
        add_rows(&mut sums, &partial);
        let [of_queries, of_keys] = [0..weights[0].len(), weights[0].len()..n_weights].map(|range| {
            let sums = sums[range].to_vec();
            let n = sums.len();
            Some(tensor(sums, [n]))
        });
        vec![Some(tensor(of_qkv, [n_rows, width])), of_queries, of_keys]
    }
}
