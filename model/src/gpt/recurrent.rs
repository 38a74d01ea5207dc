//! Recurrent layers around the operations of recurrences.

use burn::tensor::Tensor;

use super::RecurrentLayer;
use crate::{
    config::Recurrence,
    gpt::{
        forward_pass::RecurrentPass,
        layers::{Decays, Linear},
    },
    ops::{self, GateOrder, GatedNormOptions, LinearParts, Recurrent, RecurrentKind, ShortConv, StatePart},
};

impl RecurrentLayer {
    /// The operands of the layer, which computes `recurrence`.
    pub(super) fn operands<'a>(
        &'a self,
        recurrence: Recurrence,
        eps: f64,
        linear: impl Fn(&'a Linear) -> LinearParts<'a>,
    ) -> Recurrent<LinearParts<'a>> {
        let kind = match (recurrence, &self.ba, &self.decays, &self.norm) {
            (Recurrence::ShortConv(_), ..) => RecurrentKind::GatedConv,
            (Recurrence::GatedDelta(net), Some(ba), Some(decays), Some(norm)) => RecurrentKind::GatedDelta {
                ba: linear(ba),
                a_log: decays.a_log.val(),
                dt_bias: decays.dt_bias.val(),
                heads: net.heads(),
                norm: norm.parts().weight,
                options: GatedNormOptions { width: net.value_dim, eps, order: GateOrder::AfterNorm },
            },
            (Recurrence::Mamba2(mamba), _, Some(Decays { a_log, dt_bias, skip: Some(skip) }), Some(norm)) => {
                let width = mamba.value_width() / mamba.n_groups;
                RecurrentKind::StateSpace {
                    a_log: a_log.val(),
                    dt_bias: dt_bias.val(),
                    skip: skip.val(),
                    heads: mamba.heads(),
                    norm: norm.parts().weight,
                    options: GatedNormOptions { width, eps, order: GateOrder::BeforeNorm },
                    time_steps: mamba.time_steps(),
                }
            }
            _ => unreachable!("`part_specs` gives a recurrent layer all of its parts"),
        };
        let has_silu = !matches!(kind, RecurrentKind::GatedConv);
        Recurrent { input: linear(&self.input), conv: self.conv.parts(has_silu), kind, out: linear(&self.out) }
    }
}

/// The layer's output for the normalized rows `x [n_rows, d_model]`, before its output projection.
pub(super) fn recur(x: Tensor<2>, layer: &Recurrent<LinearParts<'_>>, pass: RecurrentPass<'_>) -> Tensor<2> {
    let RecurrentPass { rows, mut states } = pass;
    let [n_rows, _] = x.dims();
    let Recurrent { input, conv, kind, .. } = layer;
    let [channels, kernel] = conv.weight.dims();
    let columns = |x: &Tensor<2>, first: usize, width: usize| x.clone().slice([0..n_rows, first..first + width]);
    match kind {
        RecurrentKind::GatedConv => {
            let projected = ops::linear_with_lora(x, input.clone());
            let state = states.as_deref_mut().map(|pool| StatePart { pool, first: 0 });
            ops::gated_short_conv(projected, conv, rows, state)
        }
        RecurrentKind::GatedDelta { ba, a_log, dt_bias, heads, norm, options } => {
            let [for_input, for_gates] = ops::fork(x);
            let projected = ops::linear_with_lora(for_input, input.clone());
            let state = states.as_deref_mut().map(|pool| StatePart { pool, first: 0 });
            let qkv = ops::short_conv(columns(&projected, 0, channels), conv, rows, state);
            let gates = ops::delta_gates(ops::linear_with_lora(for_gates, ba.clone()), a_log.clone(), dt_bias.clone());
            let first = ShortConv::state_len(channels, kernel);
            let state = states.map(|pool| StatePart { pool, first });
            let output = ops::gated_delta(qkv, gates, *heads, rows, state);
            ops::gated_norm(output, columns(&projected, channels, heads.v_width()), norm.clone(), *options)
        }
        RecurrentKind::StateSpace { a_log, dt_bias, skip, heads, norm, options, time_steps } => {
            let projected = ops::linear_with_lora(x, input.clone());
            let v_width = heads.v_width();
            let state = states.as_deref_mut().map(|pool| StatePart { pool, first: 0 });
            let xbc = ops::short_conv(columns(&projected, v_width, channels), conv, rows, state);
            let dt = columns(&projected, v_width + channels, heads.n_v_heads);
            let gates = ops::state_space_gates(dt, a_log.clone(), dt_bias.clone(), *time_steps);
            let first = ShortConv::state_len(channels, kernel);
            let state = states.map(|pool| StatePart { pool, first });
            let output = ops::state_space(xbc, gates, skip.clone(), *heads, rows, state);
            ops::gated_norm(output, columns(&projected, 0, v_width), norm.clone(), *options)
        }
    }
}
