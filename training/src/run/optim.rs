//! Computes new weights from gradients: gradients by parameter path, global-norm clipping (nowhere else), AdamW, and
//! Muon for matrices.
//!
//! Gradients and moments are flat, `[n_values]`: most of an update is the same for tensors of any number of dimensions, so
//! only reading a gradient and writing a weight depend on it. Nothing here reads back from the device.

mod adamw;
mod gradients;
mod muon;

use std::{
    array,
    collections::{BTreeMap, BTreeSet},
};

use anyhow::{Context, Result, bail, ensure};
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::Tensor,
};
use hearth_model::{
    gpt::{ParamPath, ROUTED},
    ops::{self, MuonParam},
};

pub use self::gradients::Gradients;
pub use self::muon::{matrices_of, matrices_with_head};
use crate::{
    config::{Algorithm, OptimSettings},
    run::schedule::Rates,
};

/// The optimizer of a model: its state for each parameter, by path.
#[derive(Clone, Debug)]
pub struct Optimizer {
    settings: OptimSettings,
    /// Matrices that Muon updates, by path, with the number of rows of each stacked matrix.
    matrices: BTreeMap<String, Vec<usize>>,
    /// Number of updates so far.
    n_updates: usize,
    moments: BTreeMap<String, Moments>,
    /// The paths of the parameters that this optimizer updates; `None`: all. Other ranks update the others.
    owned: Option<BTreeSet<String>>,
}

/// The state of one parameter, `[n_values]` each.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "handles of tensors: what they hold is far larger")]
enum Moments {
    AdamW {
        /// Running average of gradients.
        first: Tensor<1>,
        /// Running average of squared gradients.
        second: Tensor<1>,
    },
    Muon {
        /// Running average of gradients.
        momentum: Tensor<1>,
    },
}

/// Suffixes of the names of saved moments, after the parameter's path: torch's names.
const FIRST: &str = "exp_avg";
const SECOND: &str = "exp_avg_sq";
const MOMENTUM: &str = "momentum_buffer";

impl Optimizer {
    /// A new optimizer. Muon may update `matrices`, see [`matrices_of`].
    pub fn new(settings: OptimSettings, matrices: BTreeMap<String, Vec<usize>>) -> Optimizer {
        let matrices = if settings.matrices == Algorithm::Muon { matrices } else { BTreeMap::new() };
        Optimizer { settings, matrices, n_updates: 0, moments: BTreeMap::new(), owned: None }
    }

    /// Restricts the optimizer to the parameters with these paths. It must have no state yet.
    #[must_use]
    pub fn owning(self, paths: BTreeSet<String>) -> Optimizer {
        Optimizer { owned: Some(paths), ..self }
    }

    /// Whether it updates the parameter at `path`.
    pub fn owns(&self, path: &str) -> bool {
        self.owned.as_ref().is_none_or(|owned| owned.contains(path))
    }

    /// By path, for each trained parameter of `module`: its number of values, and the number of values in the
    /// optimizer's state.
    pub fn state_sizes<M: Module>(&self, module: &M) -> BTreeMap<String, [usize; 2]> {
        let mut sizes = Sizes::default();
        module.visit(&mut sizes);
        let of_param = |(path, n_values): (String, usize)| {
            let n_moments = if self.matrices.contains_key(&path) { 1 } else { 2 };
            (path, [n_values, n_moments * n_values])
        };
        sizes.found.into_iter().map(of_param).collect()
    }

    /// Its settings.
    pub fn settings(&self) -> &OptimSettings {
        &self.settings
    }

    /// Number of updates so far.
    pub fn n_updates(&self) -> usize {
        self.n_updates
    }

    /// Updates every parameter that has a gradient.
    pub fn step<M: Module>(&mut self, module: M, gradients: Gradients, rates: Rates) -> M {
        self.n_updates += 1;
        let mut update = Update { path: ParamPath::default(), optimizer: self, gradients, rates, taken: Vec::new() };
        let module = module.map(&mut update);
        let taken = update.taken;
        if taken.is_empty() {
            return module;
        }
        let updated = self.update_matrices(taken, rates);
        module.map(&mut PutValues::new(updated))
    }

    /// Muon's update of all its parameters: each thread updates one matrix at a time. Returns the new values by path,
    /// `[n_rows, width]`.
    fn update_matrices(&mut self, taken: Vec<(String, MuonParam)>, rates: Rates) -> BTreeMap<String, Tensor<2>> {
        let (paths, params): (Vec<String>, Vec<MuonParam>) = taken.into_iter().unzip();
        let widths: Vec<usize> = params.iter().map(|param| param.width).collect();
        let updated = ops::muon(params, &muon::step(&self.settings.muon, rates));
        let mut values = BTreeMap::new();
        for ((path, width), (value, momentum)) in paths.into_iter().zip(widths).zip(updated) {
            let n_rows = value.dims()[0] / width;
            values.insert(path.clone(), value.reshape([n_rows, width]));
            self.moments.insert(path, Moments::Muon { momentum });
        }
        values
    }

    /// All moments, flat, by name, sorted: `PATH.exp_avg`, `PATH.exp_avg_sq`, `PATH.momentum_buffer`.
    pub fn moments(&self) -> Vec<(String, Tensor<1>)> {
        let named = |path: &str, name: &str, values: &Tensor<1>| (format!("{path}.{name}"), values.clone());
        let of_param = |(path, moments): (&String, &Moments)| match moments {
            Moments::AdamW { first, second } => vec![named(path, FIRST, first), named(path, SECOND, second)],
            Moments::Muon { momentum } => vec![named(path, MOMENTUM, momentum)],
        };
        self.moments.iter().flat_map(of_param).collect()
    }

    /// Bytes of the optimizer's state.
    pub fn n_bytes(&self) -> u64 {
        self.moments().iter().map(|(_, values)| 4 * values.dims()[0] as u64).sum()
    }

    /// Restores the result of [`moments`](Self::moments) after `n_updates` updates of `module`.
    ///
    /// # Errors
    /// A name belongs to no moment of a parameter that trains, or a moment is missing or has another size than its parameter.
    pub fn restore<M: Module>(
        &mut self,
        n_updates: usize,
        moments: BTreeMap<String, Tensor<1>>,
        module: &M,
    ) -> Result<()> {
        let mut moments = moments;
        let mut restored = BTreeMap::new();
        while let Some((name, values)) = moments.pop_first() {
            let Some((path, kind)) = name.rsplit_once('.') else { bail!("`{name}` is not a moment of a parameter") };
            let of_param = match kind {
                FIRST => {
                    let second = moments.remove(&format!("{path}.{SECOND}"));
                    let Some(second) = second else { bail!("`{path}.{SECOND}` is missing") };
                    Moments::AdamW { first: values, second }
                }
                MOMENTUM => Moments::Muon { momentum: values },
                _ => bail!("`{name}` is not a moment of a parameter"),
            };
            let is_muon = self.matrices.contains_key(path);
            ensure!(
                is_muon == matches!(of_param, Moments::Muon { .. }),
                "`{name}` belongs to another optimizer than that of `{path}`"
            );
            restored.insert(path.to_owned(), of_param);
        }
        let mut sizes = Sizes::default();
        module.visit(&mut sizes);
        for (path, moments) in &restored {
            let n_values = sizes.found.remove(path).with_context(|| format!("`{path}` is no parameter that trains"))?;
            let of_param = match moments {
                Moments::AdamW { first, second } => vec![first, second],
                Moments::Muon { momentum } => vec![momentum],
            };
            let found: Vec<usize> = of_param.into_iter().map(|values| values.dims()[0]).collect();
            ensure!(
                found.iter().all(|found| *found == n_values),
                "the moments of `{path}` have {found:?} values, and the parameter {n_values}"
            );
        }
        if let Some((path, _)) = sizes.found.iter().find(|(path, _)| self.owns(path)) {
            ensure!(n_updates == 0, "the moments of `{path}` are missing");
        }
        self.n_updates = n_updates;
        self.moments = restored;
        Ok(())
    }

    /// AdamW's new value, flat, of the parameter at `path`, whose tensor has `n_dims` dimensions. Updates its moments.
    fn update(&mut self, path: String, [value, gradient]: [Tensor<1>; 2], n_dims: usize, rates: Rates) -> Tensor<1> {
        let before = match self.moments.remove(&path) {
            Some(Moments::AdamW { first, second }) => Some((first, second)),
            _ => None,
        };
        let settings = &self.settings;
        // All values of an adapter belong to matrices.
        let is_matrix = n_dims >= 2 || path.ends_with(".lora.values");
        let weight_decay = if is_matrix { settings.weight_decay * rates.decay } else { 0.0 };
        let rate = adamw::Rate { lr: settings.lr * rates.lr, weight_decay, n_updates: self.n_updates };
        let (value, [first, second]) = adamw::update(value, gradient, before, settings, rate);
        self.moments.insert(path, Moments::AdamW { first, second });
        value
    }
}

/// The numbers of values of the parameters that train, by path.
#[derive(Default)]
struct Sizes {
    path: ParamPath,
    found: BTreeMap<String, usize>,
}

impl ModuleVisitor for Sizes {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.val().is_require_grad() {
            self.found.insert(self.path.path(), param.val().shape().num_elements());
        }
    }
}

/// AdamW's updates. Takes the parameters of Muon out of the module and leaves `[1, 1]` in their places.
struct Update<'a> {
    path: ParamPath,
    optimizer: &'a mut Optimizer,
    gradients: Gradients,
    rates: Rates,
    taken: Vec<(String, MuonParam)>,
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
        let gradient = match self.gradients.take(&path) {
            Some(gradient) => gradient,
            // An expert that no row chose: its moments and its weights decay all the same.
            None if param.val().is_require_grad() && path.contains(ROUTED) && self.optimizer.owns(&path) => {
                let value = param.val().inner();
                Tensor::zeros([value.shape().num_elements()], &value.device())
            }
            None => return param,
        };
        param.map(|value| {
            let shape = value.dims();
            let value = value.inner().reshape([shape.iter().product::<usize>()]);
            // A new leaf: the update is not part of the next backward pass.
            let leaf = |value: Tensor<D>| Tensor::from_inner(value).require_grad();
            match (self.optimizer.matrices.get(&path), shape.as_slice()) {
                (Some(rows), &[_, width]) => {
                    let place = leaf(Tensor::zeros([1; D], &value.device()));
                    let momentum = match self.optimizer.moments.remove(&path) {
                        Some(Moments::Muon { momentum }) => Some(momentum),
                        _ => None,
                    };
                    let rows = rows.clone();
                    self.taken.push((path, MuonParam { value, gradient, momentum, rows, width }));
                    place
                }
                _ => leaf(self.optimizer.update(path, [value, gradient], D, self.rates).reshape(shape)),
            }
        })
    }
}

/// Replaces the values of the parameters with these paths. Flat values take the parameter's shape.
pub(super) struct PutValues<const D: usize> {
    path: ParamPath,
    values: BTreeMap<String, Tensor<D>>,
}

impl<const D: usize> PutValues<D> {
    /// Puts `values`, by path, which are on the inner backend.
    pub(super) fn new(values: BTreeMap<String, Tensor<D>>) -> Self {
        Self { path: ParamPath::default(), values }
    }
}

impl<const N: usize> ModuleMapper for PutValues<N> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(values) = self.values.remove(&self.path.path()) else { return param };
        param.map(|old| {
            // Muon's matrices left `[1, 1]` in their places.
            let shape: [usize; D] = if N == D { array::from_fn(|dim| values.dims()[dim]) } else { old.dims() };
            Tensor::from_inner(values.reshape(shape)).require_grad()
        })
    }
}
