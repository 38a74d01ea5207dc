//! Gradients by parameter path.

use std::collections::BTreeMap;

use anyhow::Result;
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Gradients as BackwardGradients, Tensor},
};
use hearth_model::{gpt::ParamPath, ops};

use crate::run::tree_sum::Sum;

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
    pub(in crate::run) fn take(&mut self, path: &str) -> Option<Tensor<1>> {
        self.by_path.remove(path)
    }

    /// Sets the flat gradient of one parameter; `None`: no gradient.
    pub(in crate::run) fn put(&mut self, path: &str, gradient: Option<Tensor<1>>) {
        if let Some(gradient) = gradient {
            self.by_path.insert(path.to_owned(), gradient);
        }
    }

    /// The sum of two gradients of one parameter; one may be missing.
    pub(in crate::run) fn sum_of(left: Tensor<1>, right: Option<Tensor<1>>) -> Tensor<1> {
        match right {
            Some(right) => ops::add_gradients(left, right),
            None => left,
        }
    }

    /// The paths that have a gradient, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.by_path.keys().map(String::as_str)
    }

    /// Scales all gradients by one factor so that their norm together is at most `max_norm`, see [`ops::clip_norm`].
    /// Returns the norm before, `[1]`, still on the device. `None` without gradients.
    pub fn clip(&mut self, max_norm: f64) -> Option<Tensor<1>> {
        if self.by_path.is_empty() {
            return None;
        }
        let (paths, gradients): (Vec<_>, Vec<_>) = std::mem::take(&mut self.by_path).into_iter().unzip();
        let (norm, gradients) = ops::clip_norm(gradients, max_norm);
        self.by_path = paths.into_iter().zip(gradients).collect();
        Some(norm)
    }

    /// The sums of the squares of each gradient, see [`ops::square_sums`], by path.
    ///
    /// # Errors
    /// The device fails.
    pub fn square_sums(&self) -> Result<BTreeMap<String, Vec<f64>>> {
        self.by_path.iter().map(|(path, gradient)| Ok((path.clone(), ops::square_sums(gradient)?))).collect()
    }

    /// As [`clip`](Self::clip) for a rank that has only some of the gradients: `squares` are the
    /// [`square_sums`](Self::square_sums) of all gradients, in the order of their paths. Returns the norm of all
    /// gradients before clipping.
    ///
    /// # Errors
    /// The device fails.
    pub fn clip_part(&mut self, squares: &[f64], max_norm: f64, device: &Device) -> Result<f32> {
        let (paths, gradients): (Vec<_>, Vec<_>) = std::mem::take(&mut self.by_path).into_iter().unzip();
        let (norm, gradients) = ops::clip_part(squares, gradients, max_norm, device)?;
        self.by_path = paths.into_iter().zip(gradients).collect();
        Ok(norm)
    }
}

/// Sums the gradients of two backward passes of the same module.
impl Sum for Gradients {
    fn sum(left: Gradients, mut right: Gradients) -> Gradients {
        let add = |(path, gradient)| {
            let other = right.by_path.remove(&path);
            (path, Gradients::sum_of(gradient, other))
        };
        let mut by_path: BTreeMap<_, _> = left.by_path.into_iter().map(add).collect();
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
