//! From the gradients of a backward pass to new weights: gradients by parameter path, global-norm clipping (here and
//! nowhere else), AdamW.
//!
//! Gradients and moments are held flat, `[n_values]`: the update is the same for every rank, so only reading a gradient and
//! writing a weight know the rank. Nothing here reads back from the device.

use std::collections::BTreeMap;

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Gradients as BackwardGradients, Tensor},
};
use hearth_model::gpt::ParamPath;

use crate::config::OptimSettings;

/// One gradient for each parameter that has one, by the parameter's path (`blocks.0.attn.qkv.weight`).
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    /// Flat gradients, `[n_values]` each.
    by_path: BTreeMap<String, Tensor<1>>,
}

impl Gradients {
    /// Takes the gradients of `module`'s parameters out of a backward pass.
    pub fn from_backward(module: &impl Module, backward: BackwardGradients) -> Gradients {
        let mut taken = TakeGradients { path: ParamPath::default(), backward, taken: Gradients::default() };
        module.visit(&mut taken);
        taken.taken
    }

    /// Adds the gradients of another backward pass of the same module.
    pub fn add(&mut self, other: Gradients) {
        for (path, gradient) in other.by_path {
            let sum = match self.by_path.remove(&path) {
                Some(before) => before + gradient,
                None => gradient,
            };
            self.by_path.insert(path, sum);
        }
    }

    /// The flat gradient of one parameter.
    pub fn get(&self, path: &str) -> Option<&Tensor<1>> {
        self.by_path.get(path)
    }

    /// The paths that have a gradient, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.by_path.keys().map(String::as_str)
    }

    /// The Euclidean norm of all gradients together, as if they were one vector: `[1]`, still on the device. `None` without
    /// any gradient.
    pub fn global_norm(&self) -> Option<Tensor<1>> {
        let squares: Vec<_> = self.by_path.values().map(|gradient| gradient.clone().square().sum()).collect();
        (!squares.is_empty()).then(|| Tensor::cat(squares, 0).sum().sqrt())
    }

    /// Scales all gradients by one factor so that their norm together is at most `max_norm`
    /// ([Pascanu et al., 2012](https://arxiv.org/abs/1211.5063)); smaller ones stay as they are, and so do all with a
    /// `max_norm` of 0. Returns the norm before, as [`Gradients::global_norm`] does.
    pub fn clip(&mut self, max_norm: f64) -> Option<Tensor<1>> {
        let norm = self.global_norm()?;
        if max_norm > 0.0 {
            // The small number is torch's: a norm of zero must not divide.
            let factor = norm.clone().add_scalar(1e-6).recip().mul_scalar(max_norm).clamp_max(1.0);
            for gradient in self.by_path.values_mut() {
                *gradient = gradient.clone() * factor.clone();
            }
        }
        Some(norm)
    }
}

/// AdamW ([Loshchilov and Hutter, 2017](https://arxiv.org/abs/1711.05101)): moments by parameter path, and a decay that
/// touches matrices only. Embeddings are matrices and decay, as in nanoGPT; biases and norm weights do not.
#[derive(Clone, Debug)]
pub struct AdamW {
    settings: OptimSettings,
    /// Updates made so far.
    n_updates: usize,
    moments: BTreeMap<String, Moments>,
}

/// What AdamW remembers of one parameter, `[n_values]` each.
#[derive(Clone, Debug)]
struct Moments {
    /// Running average of gradients.
    first: Tensor<1>,
    /// Running average of squared gradients.
    second: Tensor<1>,
}

impl AdamW {
    /// An optimizer that has seen nothing.
    pub fn new(settings: OptimSettings) -> AdamW {
        AdamW { settings, n_updates: 0, moments: BTreeMap::new() }
    }

    /// One update of every parameter that has a gradient; the others stay as they are.
    pub fn step<M: Module>(&mut self, module: M, gradients: Gradients, lr: f64) -> M {
        self.n_updates += 1;
        module.map(&mut Update { path: ParamPath::default(), adamw: self, gradients, lr })
    }

    /// The new value of a flat parameter, and its new moments.
    fn update(&mut self, path: String, value: Tensor<1>, gradient: Tensor<1>, rate: Rate) -> Tensor<1> {
        let OptimSettings { beta1, beta2, eps, .. } = self.settings;
        let square = gradient.clone().square();
        let moments = match self.moments.remove(&path) {
            Some(Moments { first, second }) => Moments {
                first: first.mul_scalar(beta1) + gradient.mul_scalar(1.0 - beta1),
                second: second.mul_scalar(beta2) + square.mul_scalar(1.0 - beta2),
            },
            // Averages start at zero; the corrections below make up for it.
            None => Moments { first: gradient.mul_scalar(1.0 - beta1), second: square.mul_scalar(1.0 - beta2) },
        };
        let n_updates = self.n_updates as f64;
        let correction1 = 1.0 - beta1.powf(n_updates);
        let correction2 = 1.0 - beta2.powf(n_updates);
        let root = moments.second.clone().sqrt().div_scalar(correction2.sqrt()).add_scalar(eps);
        let change = moments.first.clone().mul_scalar(rate.lr / correction1) / root;
        self.moments.insert(path, moments);
        let value = if rate.weight_decay > 0.0 { value.mul_scalar(1.0 - rate.lr * rate.weight_decay) } else { value };
        value - change
    }
}

/// How far one parameter moves in one update.
#[derive(Clone, Copy, Debug)]
struct Rate {
    lr: f64,
    weight_decay: f64,
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

struct Update<'a> {
    path: ParamPath,
    adamw: &'a mut AdamW,
    gradients: Gradients,
    lr: f64,
}

impl ModuleMapper for Update<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.path.path();
        let Some(gradient) = self.gradients.by_path.remove(&path) else { return param };
        let weight_decay = if D >= 2 { self.adamw.settings.weight_decay } else { 0.0 };
        let rate = Rate { lr: self.lr, weight_decay };
        param.map(|value| {
            let shape = value.shape();
            let flat = value.inner().reshape([shape.num_elements()]);
            let updated = self.adamw.update(path, flat, gradient, rate);
            // A new leaf: the step that made it is not part of the next backward pass.
            Tensor::from_inner(updated.reshape(shape)).require_grad()
        })
    }
}
