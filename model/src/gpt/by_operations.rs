//! A block, operation by operation: in training, on GPUs, and on the CPU for blocks that have no whole-block body.

use burn::tensor::Tensor;

use super::recurrent;
use crate::{
    gpt::{
        attention,
        forward_pass::{DropoutPlace, ForwardPass},
    },
    ops::{
        self, BlockSteps, CrossAttention, Dropout, FeedForward, LinearParts, Mixer, NormParts, PerLayerUpdate,
        RouterParts, Sublayer,
    },
};

/// The steps of a block.
pub(super) struct ByOperations<'a, 'pass> {
    pub(super) layer: usize,
    pub(super) block: &'a ops::Block<'a>,
    pub(super) pass: &'a mut ForwardPass<'pass>,
}

type MixerParts<'a> = Sublayer<NormParts, Mixer<NormParts, LinearParts<'a>>>;
type CrossParts<'a> = Sublayer<NormParts, CrossAttention<LinearParts<'a>>>;
type MlpParts<'a> = Sublayer<NormParts, FeedForward<NormParts, LinearParts<'a>, RouterParts<'a>>>;

impl<'a> BlockSteps<NormParts, LinearParts<'a>, RouterParts<'a>> for ByOperations<'a, '_> {
    type Stream = Tensor<2>;
    type Hidden = Tensor<2>;

    fn fork(&mut self, x: Tensor<2>) -> [Tensor<2>; 2] {
        ops::fork(x)
    }

    fn mixer(&mut self, mixer: &MixerParts<'a>, x: Tensor<2>) -> Tensor<2> {
        let Sublayer { in_norm, inner, .. } = mixer;
        match inner {
            Mixer::Attention(inner) => attention::attend(self.layer, x, (in_norm.clone(), inner), self.pass),
            Mixer::Recurrent(inner) => {
                recurrent::recur(normed(x, in_norm.clone()), inner, self.pass.recurrent(self.layer))
            }
        }
    }

    fn cross(&mut self, cross: &CrossParts<'a>, x: Tensor<2>) -> Tensor<2> {
        attention::attend_to_source(self.layer, x, (cross.in_norm.clone(), &cross.inner), self.pass)
    }

    /// `[n_rows, d_model]` to `[n_rows, d_ff]`, or to `[n_rows, d_model]` by experts.
    fn mlp(&mut self, mlp: &MlpParts<'a>, x: Tensor<2>) -> Tensor<2> {
        let norm = mlp.in_norm.clone();
        let routes = &mut self.pass.routes;
        match &mlp.inner {
            FeedForward::Dense(mlp) => ops::normed_mlp(x, norm, mlp),
            FeedForward::Routed(experts) => ops::experts(normed(x, norm), experts, routes),
            FeedForward::Both(both) => {
                let [for_mlp, x] = ops::fork(x);
                let [for_router, x] = ops::fork(x);
                let hidden = ops::normed_mlp(for_mlp, norm, &both.mlp);
                let of_mlp = ops::linear_with_lora(hidden, both.mlp.down.clone());
                let inputs =
                    [normed(for_router, Some(both.router_norm.clone())), normed(x, Some(both.in_norm.clone()))];
                let [router_input, x] = inputs;
                let of_experts = ops::experts_routed_by(router_input, x, &both.routed, routes);
                normed(of_mlp, Some(both.mlp_out_norm.clone())) + normed(of_experts, Some(both.out_norm.clone()))
            }
        }
    }

    fn add_mixer(&mut self, mixer: &MixerParts<'a>, residual: Tensor<2>, mixed: Tensor<2>) -> Tensor<2> {
        let dropout = self.pass.dropout(DropoutPlace::Attention(self.layer));
        let Sublayer { inner, out_norm, .. } = mixer;
        self.add(residual, mixed, (Some(inner.out()), out_norm), dropout)
    }

    fn add_cross(&mut self, cross: &CrossParts<'a>, residual: Tensor<2>, attended: Tensor<2>) -> Tensor<2> {
        let dropout = self.pass.dropout(DropoutPlace::Cross(self.layer));
        let Sublayer { inner, out_norm, .. } = cross;
        self.add(residual, attended, (Some(&inner.out), out_norm), dropout)
    }

    fn add_mlp(&mut self, mlp: &MlpParts<'a>, residual: Tensor<2>, hidden: Tensor<2>) -> Tensor<2> {
        let dropout = self.pass.dropout(DropoutPlace::Mlp(self.layer));
        let Sublayer { inner, out_norm, .. } = mlp;
        let last = match inner {
            FeedForward::Dense(mlp) => Some(&mlp.down),
            FeedForward::Routed(_) | FeedForward::Both(_) => None,
        };
        self.add(residual, hidden, (last, out_norm), dropout)
    }

    fn finish(&mut self, block: &ops::Block<'a>, x: Tensor<2>) -> Tensor<2> {
        let x = match &block.per_layer {
            Some(PerLayerUpdate { input, gate, activation, proj, norm }) => {
                let [residual, x] = ops::fork(x);
                let gates = ops::activate(ops::linear_with_lora(x, gate.clone()), *activation);
                ops::norm_add(ops::linear_with_lora(gates * input.clone(), proj.clone()), norm.clone(), residual)
            }
            None => x,
        };
        match &block.scale {
            Some(scale) => x * scale.clone().unsqueeze(),
            None => x,
        }
    }
}

impl ByOperations<'_, '_> {
    /// Multiplies `input` by the sublayer's last matrix, if it is still to come, normalizes it, and adds it to the residual stream.
    fn add(
        &self,
        residual: Tensor<2>,
        input: Tensor<2>,
        (last, out_norm): (Option<&LinearParts<'_>>, &Option<NormParts>),
        dropout: Option<Dropout>,
    ) -> Tensor<2> {
        let (before, after) = match self.block.norm_after_add {
            true => (None, out_norm.clone()),
            false => (out_norm.clone(), None),
        };
        let multiplier = self.block.residual_multiplier;
        let update = |input| match last {
            Some(last) => ops::linear_with_lora(input, last.clone()),
            None => input,
        };
        let sum = match (before, last) {
            (before, _) if multiplier != 1.0 || dropout.is_some() => {
                ops::add_update(residual, normed(update(input), before), multiplier, dropout)
            }
            (Some(norm), _) => ops::norm_add(update(input), norm, residual),
            (None, Some(last)) => ops::linear_add(input, last.clone(), residual),
            (None, None) => ops::add_update(residual, input, 1.0, None),
        };
        normed(sum, after)
    }
}

fn normed(x: Tensor<2>, norm: Option<NormParts>) -> Tensor<2> {
    match norm {
        Some(NormParts { weight, bias, options }) => ops::norm(x, weight, bias, options),
        None => x,
    }
}
