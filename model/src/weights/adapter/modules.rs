//! The linear modules that a model's stacked matrices consist of in files: adapters have a pair for each.

use std::ops::Range;

use super::super::{
    row_order::RowOrder,
    tensor_names::{OfExpert, TensorNames},
};
use crate::{
    config::GptConfig,
    gpt::param_specs::{PartSpec, ROUTED, linear_specs},
};

/// A linear layer of a Hugging Face class, or of an architecture of GGUF files.
#[derive(Clone, Debug)]
pub(super) struct LinearModule {
    /// Its name in the class or architecture, such as `model.layers.3.self_attn.q_proj` or `blk.3.attn_q`.
    pub(super) name: String,
    /// The path of Hearth's matrix, such as `blocks.3.attn.qkv`.
    pub(super) path: String,
    pub(super) layer: usize,
    /// Its rows in our matrix.
    pub(super) rows: Range<usize>,
    /// The order of Hearth's rows in the module's own matrix.
    pub(super) order: RowOrder,
    /// Inputs.
    pub(super) d_in: usize,
    /// Its position, if it is one of the matrices of a parameter that stacks all experts; `name` is then the
    /// parameter's name.
    pub(super) expert: Option<OfExpert>,
    /// The module that holds the pair in PEFT's files.
    pub(super) holder: String,
}

impl LinearModule {
    /// Whether it belongs to a routed expert with separate modules.
    pub(super) fn is_of_one_expert(&self) -> bool {
        self.expert.is_none() && self.path.contains(ROUTED)
    }
}

/// All linear layers of the blocks outside routed experts, in the order of Hearth's parameters. Modules of one matrix
/// are consecutive, in the order of its rows.
pub(super) fn linear_modules(names: &TensorNames, config: &GptConfig) -> Vec<LinearModule> {
    let linears = linear_specs(config).filter(|linear| !linear.path.contains(ROUTED));
    modules_of(linears, names, config, &|_| false)
}

/// Modules of the routed experts. With `are_stacked`, one parameter has the matrices of all experts of a layer;
/// otherwise each expert has separate modules. Empty if the class does not have this form.
pub(super) fn expert_modules(names: &TensorNames, config: &GptConfig, are_stacked: bool) -> Vec<LinearModule> {
    let linears = linear_specs(config).filter(|linear| linear.path.contains(ROUTED));
    let is_stacked = |name: &str| name.rsplit_once(".experts.").is_some_and(|(_, last)| !last.contains('.'));
    let mut modules = modules_of(linears, names, config, &|name| are_stacked && is_stacked(name));
    modules.retain(|module| module.expert.is_some() == are_stacked);
    modules
}

/// The modules of `linears`, for a class whose files have the tensors for which `has` is true.
fn modules_of(
    linears: impl Iterator<Item = PartSpec>,
    names: &TensorNames,
    config: &GptConfig,
    has: &dyn Fn(&str) -> bool,
) -> Vec<LinearModule> {
    let mut modules = Vec::new();
    for linear in linears {
        let (Some(layer), Some(weight)) = (linear.layer, linear.params.first()) else { continue };
        let mut first = 0;
        for part in names.parts(weight, config, has) {
            let rows = first..first + part.n_rows;
            first = rows.end;
            let name = part.name.strip_suffix(".weight").unwrap_or(&part.name).to_owned();
            modules.push(LinearModule {
                holder: name.clone(),
                name,
                path: linear.path.clone(),
                layer,
                rows,
                order: part.order,
                d_in: weight.shape[1],
                expert: part.expert,
            });
        }
    }
    modules
}
