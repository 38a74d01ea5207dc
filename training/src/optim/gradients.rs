//! Gradients by parameter path.

use std::collections::BTreeMap;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Gradients as BackwardGradients, Tensor},
};
use hearth_model::gpt::ParamPath;

use crate::combine::Sum;

/// The gradients by parameter path (`blocks.0.attn.qkv.weight`); parameters without one are missing.
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    /// Flat gradients, `[n_values]` each.
    by_path: BTreeMap<String, Tensor<1>>,
}

impl Gradients {
    /// Takes the gradients of `module`'s parameters from a backward pass.
    pub fn from_backward(module: &impl Module, backward: BackwardGradients) -> Gradients {
        let mut taken = TakeGradients { path: ParamPath::default(), backward, taken: Gradients::default() };
        module.visit(&mut taken);
        taken.taken
    }

    /// The flat gradient of one parameter.
    pub fn get(&self, path: &str) -> Option<&Tensor<1>> {
        self.by_path.get(path)
    }

    /// Removes and returns the flat gradient of one parameter.
    pub(super) fn take(&mut self, path: &str) -> Option<Tensor<1>> {
        self.by_path.remove(path)
    }

    /// The paths that have a gradient, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.by_path.keys().map(String::as_str)
    }

    /// The Euclidean norm of all gradients together, `[1]`, still on the device. `None` without gradients.
    pub fn global_norm(&self) -> Option<Tensor<1>> {
        let squares: Vec<_> = self.by_path.values().map(|gradient| gradient.clone().square().sum()).collect();
        (!squares.is_empty()).then(|| Tensor::cat(squares, 0).sum().sqrt())
    }

    /// Scales all gradients by one factor so that their norm together is at most `max_norm` ([Pascanu et al.,
    /// 2012](https://arxiv.org/abs/1211.5063)); smaller gradients are unchanged, and a `max_norm` of 0 disables
    /// clipping. Returns the norm before, as [`Gradients::global_norm`] does.
    pub fn clip(&mut self, max_norm: f64) -> Option<Tensor<1>> {
        let norm = self.global_norm()?;
        if max_norm > 0.0 {
            // The small number is torch's; it avoids division by zero.
            let factor = norm.clone().add_scalar(1e-6).recip().mul_scalar(max_norm).clamp_max(1.0);
            for gradient in self.by_path.values_mut() {
                *gradient = gradient.clone() * factor.clone();
            }
        }
        Some(norm)
    }
}

/// Of two backward passes of the same module.
impl Sum for Gradients {
    fn sum(left: Gradients, mut right: Gradients) -> Gradients {
        let mut by_path = left.by_path;
        for (path, gradient) in &mut by_path {
            if let Some(other) = right.by_path.remove(path) {
                *gradient = gradient.clone() + other;
            }
        }
        by_path.append(&mut right.by_path);
        Gradients { by_path }
    }
}

struct TakeGradients {
    path: ParamPath,
    backward: BackwardGradients,
    taken: Gradients,
}

impl ModuleVisitor for TakeGradients {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad_remove(&mut self.backward) {
            let n_values = gradient.shape().num_elements();
            self.taken.by_path.insert(self.path.path(), gradient.reshape([n_values]));
        }
    }
}
