//! Outputs that are recomputed in the backward pass.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::flex::FlexTensor;

use super::*;
use crate::ops::{
    activation::gated_reference,
    training::{RECOMPUTED_FROM, TrainingOp, apply},
};

/// Returns its input and counts its forward calls.
#[derive(Clone, Debug, Default)]
struct Counted(Arc<AtomicUsize>);

impl TrainingOp<FlexTensor> for Counted {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        (inputs[0].clone(), Vec::new())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn keeps_inputs(&self) -> bool {
        false
    }

    fn backward(
        &self,
        _inputs: &[FlexTensor],
        _saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        vec![Some(gradient.clone())]
    }
}

/// Once, whatever the number of operations that read them.
#[test]
fn large_outputs_of_cheap_ops_are_recomputed_once_in_backward() {
    for (n_values, n_readers, expected) in
        [(RECOMPUTED_FROM, 1, 2), (RECOMPUTED_FROM, 3, 2), (RECOMPUTED_FROM - 8, 1, 1), (RECOMPUTED_FROM, 0, 1)]
    {
        let (x, op) = (leaf(1, [n_values / 8, 8], 1.0), Counted::default());
        let output: Tensor<2> = apply(vec![x.clone().into()], op.clone());
        let (held, _) = weight(2, [3, 8]);
        let read = (0..n_readers).map(|_| ops::linear(output.clone(), &held, None).sum());
        // A sum does not read its input in its backward pass.
        let sum = read.fold(output.clone().sum(), |sum, read| sum + read);
        assert!(x.grad(&sum.backward()).is_some());
        assert_eq!(op.0.load(Ordering::Relaxed), expected, "{n_values} values, {n_readers} readers");
    }
}

#[test]
fn recomputed_norms_and_activations_on_gpu_match_the_reference() {
    on_gpu(recomputed_norms_and_activations_match_the_reference);
}

/// A part of a block, whose norm has two readers.
#[test]
fn recomputed_norms_and_activations_match_the_reference() {
    let [n_rows, d, n_outputs] = [1024, 512, 6];
    let options = NormOptions { kind: NormKind::LayerNorm, eps: 1e-5, weight_offset: 0.0 };
    for (is_gated, trains_norm) in [(false, true), (true, true), (false, false)] {
        let case = format!("gated {is_gated}, a norm that trains {trains_norm}");
        let x = leaf(1, [n_rows, d], 1.0);
        let [norm_weight, bias] = [2, 3].map(|seed| leaf(seed, [d], 1.0).set_require_grad(trains_norm));
        let d_up = if is_gated { 2 * d } else { d };
        let (up, up_leaf) = weight(4, [d_up, d]);
        let (down, down_leaf) = weight(5, [n_outputs, d]);
        let (beside, beside_leaf) = weight(6, [n_outputs, d]);
        let mut of: Vec<GradientOf<'_>> = Vec::new();
        let of_matrices = [gradient(&up_leaf), gradient(&down_leaf), gradient(&beside_leaf)];
        let (of_x, of_norm) = (gradient(&x), [gradient(&norm_weight), gradient(&bias)]);
        of.push(&of_x);
        of.extend(of_matrices.iter().map(|of| of as GradientOf<'_>));
        if trains_norm {
            of.extend(of_norm.iter().map(|of| of as GradientOf<'_>));
        }
        let normed = norm(x.clone(), norm_weight.clone(), Some(bias.clone()), options);
        let hidden = ops::linear(normed.clone(), &up, None);
        let hidden = match is_gated {
            true => ops::gated(hidden, Activation::Silu),
            false => ops::activate(hidden, Activation::Silu),
        };
        let found = outcome(ops::linear(hidden, &down, None) + ops::linear(normed, &beside, None), &of);
        let normed = norm_reference(x.clone(), norm_weight.clone(), Some(bias.clone()), options);
        let product = |x: Tensor<2>, leaf: &Tensor<2>| x.matmul(leaf.clone().transpose());
        let hidden = product(normed.clone(), &up_leaf);
        let hidden = match is_gated {
            true => gated_reference(hidden, Activation::Silu),
            false => activate_reference(hidden, Activation::Silu),
        };
        let expected = outcome(product(hidden, &down_leaf) + product(normed, &beside_leaf), &of);
        assert_close(&found, &expected, &case);
    }
}
