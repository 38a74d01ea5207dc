//! The linear modules that a model's stacked matrices consist of in files: adapters have a pair for each.

use std::ops::Range;

use super::super::{row_order::RowOrder, tensor_names::TensorNames};
use crate::{
    config::GptConfig,
    param_specs::{ROUTED, linear_specs},
};

/// A linear layer of a Hugging Face class, or of an architecture of GGUF files.
#[derive(Clone, Debug)]
pub(super) struct LinearModule {
    /// Its name there, such as `model.layers.3.self_attn.q_proj` or `blk.3.attn_q`.
    pub(super) name: String,
    /// The path of our matrix, such as `blocks.3.attn.qkv`.
    pub(super) path: String,
    pub(super) layer: usize,
    /// Its rows in our matrix.
    pub(super) rows: Range<usize>,
    /// Where our rows are in its own matrix.
    pub(super) order: RowOrder,
    /// Inputs.
    pub(super) d_in: usize,
}

/// All linear layers of the blocks, in the order of our parameters. Those of one matrix follow each other, and so do their
/// rows.
pub(super) fn linear_modules(names: &TensorNames, config: &GptConfig) -> Vec<LinearModule> {
    let mut modules = Vec::new();
    // Routed experts are parameters of three dimensions to PEFT, and not modules.
    for linear in linear_specs(config).filter(|linear| !linear.path.contains(ROUTED)) {
        let (Some(layer), Some(weight)) = (linear.layer, linear.params.first()) else { continue };
        let mut first = 0;
        for part in names.parts(weight, config, &|_| false) {
            let rows = first..first + part.n_rows;
            first = rows.end;
            let name = part.name.strip_suffix(".weight").unwrap_or(&part.name).to_owned();
            modules.push(LinearModule {
                name,
                path: linear.path.clone(),
                layer,
                rows,
                order: part.order,
                d_in: weight.shape[1],
            });
        }
    }
    modules
}
