//! The operations of one micro-batch and their memory. `hearth_model`'s operations define which of their inputs and
//! results they keep for the backward pass.

use std::collections::BTreeMap;

use hearth_model::{
    config::{Experts, GptConfig, NormPosition},
    gpt::param_specs,
};

use super::{
    AdapterSize, MATRICES,
    account::{Account, Op, backward, keeping},
};

/// Sizes of one micro-batch on a device, in values.
pub(super) struct Shape<'a> {
    pub(super) gpt: &'a GptConfig,
    pub(super) n_rows: usize,
    /// The adapter that trains instead of the model.
    pub(super) adapter: Option<AdapterSize>,
    /// Values of each parameter that trains, by path.
    pub(super) params: BTreeMap<String, usize>,
    /// Values that the backward pass of each operation uses and frees; `product_scratch` is per column of the output.
    pub(super) norm_scratch: usize,
    pub(super) qk_norm_scratch: usize,
    pub(super) attention_scratch: usize,
    pub(super) product_scratch: usize,
}

/// Values of each parameter that trains, by path.
pub(super) fn trained_params(gpt: &GptConfig, adapter: Option<AdapterSize>) -> BTreeMap<String, usize> {
    let Some(adapter) = adapter else {
        return param_specs(gpt).into_iter().map(|spec| (spec.path, spec.shape.iter().product())).collect();
    };
    let matrices = (0..gpt.n_layers).flat_map(|layer| MATRICES.map(|matrix| format!("blocks.{layer}.{matrix}.lora")));
    matrices.map(|path| (path, adapter.of_matrix(gpt))).collect()
}

impl Shape<'_> {
    /// Values of the parameters below a path.
    pub(super) fn params(&self, prefix: &str) -> usize {
        let below = |path: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
        self.params.iter().filter(|(path, _)| below(path)).map(|(_, n_values)| n_values).sum()
    }

    /// A norm. It keeps its input, which no other operation holds.
    pub(super) fn norm(&self, path: &str) -> Op {
        let width = self.n_rows * self.gpt.d_model;
        Op { kept: width, of_input: width, of_params: self.params(path), scratch: self.norm_scratch }
    }

    /// A product with `[d_out, d_in]`; it keeps its input, or recomputes it if the operation before had at least
    /// [`RECOMPUTED_FROM`](hearth_model::ops::RECOMPUTED_FROM) values (`recomputed_from`).
    fn linear(&self, path: &str, [d_out, d_in]: [usize; 2], recomputed_from: Option<usize>) -> Op {
        let of_input = self.n_rows * d_in;
        // With an adapter, also the product of the input with its first matrix.
        let kept = self.adapter.map_or(0, |adapter| self.n_rows * adapter.rank);
        let of_params = self.params(&format!("blocks.0.{path}"));
        keeping(Op { kept, of_input, of_params, scratch: self.product_scratch * d_out }, of_input, recomputed_from)
    }

    /// Dropout keeps nothing: it recomputes its mask.
    pub(super) fn dropout(&self) -> Option<Op> {
        (self.gpt.dropout > 0.0).then(|| Op { of_input: self.n_rows * self.gpt.d_model, ..Op::default() })
    }

    /// The operations of one block's attention, and of its MLP.
    pub(super) fn block(&self) -> [Vec<Op>; 2] {
        let gpt = self.gpt;
        let (d, ff, q, q_k_v) = (gpt.d_model, gpt.d_ff, gpt.q_width(), gpt.q_width() + 2 * gpt.kv_width());
        let up = if gpt.gated_mlp { 2 * ff } else { ff };
        let is_pre = matches!(gpt.norm_position, NormPosition::Pre | NormPosition::Sandwich);
        let normed = is_pre.then_some(self.n_rows * d);
        let (of_qkv, of_up) = (self.n_rows * q_k_v, self.n_rows * up);
        // Norms of queries and keys keep their input.
        let qk_norm = gpt.qk_norm.then(|| Op {
            kept: of_qkv,
            of_input: of_qkv,
            of_params: self.params("blocks.0.attn.q_norm") + self.params("blocks.0.attn.k_norm"),
            scratch: self.qk_norm_scratch,
        });
        // Plain operations that rotate before these norms, or multiply queries, copy all.
        let copies = usize::from(gpt.qk_norm_after_rope) + usize::from(gpt.query_temperature.is_some());
        let copy = Op { kept: of_qkv, of_input: of_qkv, ..Op::default() };
        // The operation keeps queries, keys and values, and the logarithm of each row's sum; the product keeps its
        // output.
        let kept = self.n_rows * gpt.n_heads;
        let attend = Op { kept, of_input: of_qkv, of_params: 0, scratch: self.attention_scratch };
        let attend = keeping(attend, of_qkv, gpt.qk_norm.then_some(of_qkv));
        // Plain operations keep all their inputs: input, masks, the exponential and both branches.
        let kept = if gpt.xielu { 6 * of_up } else { of_up };
        let activate = Op { kept, of_input: of_up, ..Op::default() };
        let input = self.linear("attn.qkv", [q_k_v, d], normed);
        let output = self.linear("attn.out", [d, q], None);
        let attention = [input].into_iter().chain(qk_norm).chain(vec![copy; copies]).chain([attend, output]).collect();
        if let Some(experts) = &gpt.experts {
            return [self.part("attn", attention), self.part("mlp", vec![self.experts(experts)])];
        }
        let input = self.linear("mlp.up", [up, d], normed);
        let output = self.linear("mlp.down", [d, ff], (!gpt.xielu).then_some(of_up));
        [self.part("attn", attention), self.part("mlp", vec![input, activate, output])]
    }

    /// Experts with their router, as one operation. Each choice of a row has a row of each product's input and of the
    /// output, which is copied when it is sorted back; the gradients of one expert's rows at a time are small in
    /// comparison.
    fn experts(&self, experts: &Experts) -> Op {
        let gpt = self.gpt;
        let n_up = if gpt.gated_mlp { 2 } else { 1 };
        let of_mlp = |d_ff: usize| (n_up + 1) * d_ff;
        let of_choice = 4 * gpt.d_model + of_mlp(experts.d_ff);
        let of_row = gpt.d_model + 3 * experts.n_experts + of_mlp(experts.shared_d_ff);
        let with_experts = (0..gpt.n_layers).find(|layer| !experts.dense_layers.contains(layer)).unwrap_or_default();
        let of_input = self.n_rows * gpt.d_model;
        Op {
            kept: self.n_rows * (experts.n_active * of_choice + of_row),
            of_input,
            of_params: self.params(&format!("blocks.{with_experts}.experts")) + self.params("blocks.0.mlp"),
            scratch: self.n_rows * experts.n_active * gpt.d_model,
        }
    }

    /// A part with its norms and dropout.
    fn part(&self, name: &str, inner: Vec<Op>) -> Vec<Op> {
        let gpt = self.gpt;
        let mut own = self.norm(&format!("blocks.0.{name}_norm"));
        if gpt.parallel_residual && name == "mlp" {
            // Parallel parts have one input, which attention's norm keeps.
            own.kept = 0;
        }
        let (before, after) = match gpt.norm_position {
            NormPosition::Sandwich => (Some(own), Some(self.norm(&format!("blocks.0.{name}_out_norm")))),
            NormPosition::Inside | NormPosition::Post => (None, Some(own)),
            NormPosition::Pre => (Some(own), None),
        };
        before.into_iter().chain(inner).chain(after).chain(self.dropout()).collect()
    }
}

/// The backward pass of a block. The gradient of its output goes through each sublayer and past it, and the two are
/// added.
pub(super) fn backward_block(account: &mut Account, block: &[Vec<Op>; 2]) {
    for part in block.iter().rev() {
        let through = backward(account, part, 0);
        account.free(through);
    }
}
