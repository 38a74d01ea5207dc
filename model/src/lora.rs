//! Low-rank adapters ([LoRA](https://arxiv.org/abs/2106.09685)): small updates of a model whose own weights do not train.
//!
//! Pairs of matrices belong to the model's stacked matrices, one pair for each Hugging Face module within it. How adapters
//! are stored is the matter of [`weights::adapter`](crate::weights::adapter).

use std::{collections::BTreeMap, sync::Arc};

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};

pub use crate::ops::{LoraPair, LoraShape};
use crate::{
    error::Result,
    ops::{Dropout, LoraParts, read, to_f32},
};

/// First of the places of dropout that belong to adapters; see [`Dropout`].
const FIRST_PLACE: u32 = 1 << 24;

/// The matrices of a block that adapters can update, in the order in which they are used.
pub(crate) const MATRICES: [&str; 4] = ["attn.qkv", "attn.out", "mlp.up", "mlp.down"];

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

/// Which dropout mask the adapter of a matrix uses in a forward pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoraDropout {
    pub(crate) seed: u64,
    pub(crate) layer: usize,
}

impl Lora {
    pub(crate) fn new(update: &MatrixUpdate, dropout: f64, device: &Device) -> Self {
        let values = Tensor::from_data(update.values.as_slice(), device);
        Self { values: Param::from_tensor(values), shape: update.shape.clone(), dropout }
    }

    /// The operand. `number` is the matrix's place in [`MATRICES`].
    pub(crate) fn parts(&self, number: usize, dropout: Option<LoraDropout>) -> LoraParts {
        let of_seed = |LoraDropout { seed, layer }| Dropout {
            probability: self.dropout,
            seed,
            place: FIRST_PLACE + (layer * MATRICES.len() + number) as u32,
        };
        let dropout = dropout.filter(|_| self.dropout > 0.0).map(of_seed);
        LoraParts { values: self.values.val(), shape: self.shape.clone(), dropout }
    }

    pub(crate) fn read(&self) -> Result<MatrixUpdate> {
        Ok(MatrixUpdate { shape: self.shape.clone(), values: to_f32(read(self.values.val())?)? })
    }
}
