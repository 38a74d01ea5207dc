//! Low-rank adapters ([LoRA](https://arxiv.org/abs/2106.09685)): small updates of a model whose own weights do not train.
//!
//! An adapter has pairs of matrices, `A` and `B`. Where a matrix of the model stacks several Hugging Face modules, it
//! has one pair for each of them. [`weights::adapter`](crate::weights::adapter) reads and writes adapters.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};

pub use crate::ops::{LoraPair, LoraShape};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    gpt::{
        Gpt,
        param_specs::{PartSpec, linear_specs},
    },
    ops::{Dropout, LoraMatrix, LoraParts, RowUpdate, is_on_cpu, read, to_f32},
};

/// The first [`Dropout::place`] of adapters; the places of the model's own dropout are below it.
const FIRST_PLACE: u32 = 1 << 24;

/// An adapter's values by the path of the matrix that they update, such as `blocks.3.attn.qkv`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoraValues(pub BTreeMap<String, MatrixUpdate>);

/// The updates of one matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixUpdate {
    /// Their sizes, and the order of `values`.
    pub shape: Arc<LoraShape>,
    /// `[shape.n_values()]`.
    pub values: Vec<f32>,
}

impl LoraValues {
    /// Checks that the adapter updates only `matrices`, paths with dimensions, and that the updates have matching
    /// sizes.
    ///
    /// # Errors
    /// [`Error::Param`], with the matrix.
    pub(crate) fn require_fit(&self, matrices: &BTreeMap<String, [usize; 2]>) -> Result<()> {
        let refuse = |what: String| Err(Error::Param { name: "adapter", what });
        for (path, update) in &self.0 {
            let Some([d_out, d_in]) = matrices.get(path) else {
                return refuse(format!(
                    "updates `{path}`, which the model does not have\nhint: it belongs to another model"
                ));
            };
            let fits = update.shape.d_in == *d_in && update.shape.pairs.iter().all(|pair| pair.rows.end <= *d_out);
            if !fits || update.values.len() != update.shape.n_values() {
                return refuse(format!("does not fit `{path}.weight`, which is [{d_out}, {d_in}]: {:?}", update.shape));
            }
        }
        Ok(())
    }

    /// The largest rank of its pairs.
    pub fn max_rank(&self) -> usize {
        let pairs = self.0.values().flat_map(|update| &update.shape.pairs);
        pairs.map(|pair| pair.rank).max().unwrap_or(0)
    }
}

impl MatrixUpdate {
    /// Adds the update of row `row` of the matrix to `out [d_in]`: `scale * B[row] A`.
    pub(crate) fn add_to_row(&self, row: usize, out: &mut [f32]) {
        let LoraShape { d_in, ref pairs } = *self.shape;
        for (LoraPair { rows, rank, scale }, [of_a, of_b]) in pairs.iter().zip(self.shape.places()) {
            if !rows.contains(&row) {
                continue;
            }
            let b = &self.values[of_b][(row - rows.start) * rank..][..*rank];
            for (a, b) in self.values[of_a].chunks_exact(d_in).zip(b) {
                out.iter_mut().zip(a).for_each(|(out, a)| *out += scale * b * a);
            }
        }
    }
}

/// An adapter on the model's device, separate from the model's weights. Each sequence of a step may have a different
/// one.
#[derive(Debug)]
pub struct LoadedAdapter {
    /// The updates of the model's linear layers, in their order.
    matrices: Vec<Option<LoraMatrix>>,
}

impl LoadedAdapter {
    /// Prepares an adapter for a model of `config` on `device`. May run on any thread.
    ///
    /// # Errors
    /// [`Error::Param`] if it updates matrices that the model does not have, or that have other sizes.
    pub fn new(config: &GptConfig, adapter: &LoraValues, device: &Device) -> Result<Self> {
        let linears: Vec<PartSpec> = linear_specs(config).collect();
        adapter.require_fit(&linears.iter().map(|linear| (linear.path.clone(), linear.matrix_dims())).collect())?;
        let matrix = |linear: &PartSpec| {
            let update = adapter.0.get(&linear.path)?;
            Some(LoraMatrix::new(&update.values, &update.shape, device))
        };
        Ok(Self { matrices: linears.iter().map(matrix).collect() })
    }

    /// Bytes of its matrices.
    pub fn n_bytes(&self) -> usize {
        self.matrices.iter().flatten().map(LoraMatrix::n_bytes).sum()
    }
}

/// The rows of a step whose sequences use the same adapter.
#[derive(Clone, Debug)]
pub(crate) struct AdapterRows {
    adapter: Arc<LoadedAdapter>,
    /// In ascending order.
    rows: Vec<usize>,
}

impl AdapterRows {
    /// Adds a sequence's rows, which follow all others.
    pub(crate) fn add(step: &mut Vec<Self>, adapter: &Arc<LoadedAdapter>, rows: Range<usize>) {
        match step.iter_mut().find(|entry| Arc::ptr_eq(&entry.adapter, adapter)) {
            Some(entry) => entry.rows.extend(rows),
            None => step.push(Self { adapter: adapter.clone(), rows: rows.collect() }),
        }
    }
}

/// The updates of a linear layer's matrix by the adapters of a step. `linear` is the layer's index among the model's
/// linear layers.
pub(crate) fn row_updates(step: &[AdapterRows], linear: usize) -> Vec<RowUpdate<'_>> {
    let updates = step.iter().filter_map(|AdapterRows { adapter, rows }| {
        Some(RowUpdate { rows, matrix: adapter.matrices.get(linear)?.as_ref()? })
    });
    updates.collect()
}

/// The updates of one matrix, as part of the model.
#[derive(Module, Debug)]
pub(crate) struct Lora {
    /// `[shape.n_values()]`: one parameter, so that the optimizer and checkpoints have one tensor per matrix.
    values: Param<Tensor<1>>,
    #[module(skip)]
    shape: Arc<LoraShape>,
    /// Share of the input's values that is dropped while training.
    #[module(skip)]
    dropout: f64,
}

impl Lora {
    pub(crate) fn new(update: &MatrixUpdate, dropout: f64, device: &Device) -> Self {
        let values = Tensor::from_data(update.values.as_slice(), device);
        Self { values: Param::from_tensor(values), shape: update.shape.clone(), dropout }
    }

    /// The operand. `linear` is the index of the matrix among the model's linear layers, `dropout_seed` the pass's
    /// seed, if it trains.
    pub(crate) fn parts(&self, linear: usize, dropout_seed: Option<u64>) -> LoraParts {
        let place = FIRST_PLACE + linear as u32;
        let of_seed = |seed| Dropout { probability: self.dropout, seed, place };
        let dropout = dropout_seed.filter(|_| self.dropout > 0.0).map(of_seed);
        LoraParts { values: self.values.val(), shape: self.shape.clone(), dropout }
    }

    pub(crate) fn read(&self) -> Result<MatrixUpdate> {
        Ok(MatrixUpdate { shape: self.shape.clone(), values: to_f32(read(self.values.val())?)? })
    }
}

/// Whether a model with an adapter is to be trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Training {
    /// The adapter's gradients are recorded.
    Yes,
    /// The model only runs.
    No,
}

impl Gpt {
    /// The model with an adapter. With [`Training::Yes`], only the adapter trains, and `dropout` is the share of its
    /// inputs that is dropped. The model must be loaded for its device; for training on a CPU, load it without
    /// autodiff, which is added here.
    ///
    /// # Errors
    /// [`Error::Param`] if the adapter updates matrices that the model does not have, or
    /// that have other sizes.
    pub fn with_lora(self, adapter: &LoraValues, dropout: f64, trains: Training) -> Result<Self> {
        let device = self.device();
        let mut gpt = self.no_grad();
        let dims = gpt.linears().into_iter().map(|(path, linear)| (path, linear.weight().dims()));
        adapter.require_fit(&dims.collect())?;
        for (path, linear) in gpt.linears_mut() {
            if let Some(update) = adapter.0.get(&path) {
                linear.set_lora(Some(Lora::new(update, dropout, &device)));
            }
        }
        Ok(match trains {
            Training::Yes if is_on_cpu(&device) => gpt.train(),
            Training::Yes | Training::No => gpt,
        })
    }

    /// Whether the model has an adapter.
    pub fn has_lora(&self) -> bool {
        self.linears().into_iter().any(|(_, linear)| linear.lora().is_some())
    }

    /// The same model without its adapter; the weights are shared.
    #[must_use]
    pub fn without_lora(mut self) -> Self {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.set_lora(None));
        self
    }

    /// The values of the adapter, if the model has one. Reads them off the device.
    ///
    /// # Errors
    /// [`Error::Execution`] if the device cannot be read.
    pub fn lora(&self) -> Result<Option<LoraValues>> {
        let linears = self.linears().into_iter();
        let found = linears.filter_map(|(path, linear)| Some(linear.lora()?.read().map(|update| (path, update))));
        let found = found.collect::<Result<BTreeMap<_, _>>>()?;
        Ok((!found.is_empty()).then_some(LoraValues(found)))
    }
}
