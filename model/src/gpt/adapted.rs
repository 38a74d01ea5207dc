//! Models with an adapter.

use std::collections::BTreeMap;

use burn::module::Module;

use crate::{
    error::Result,
    gpt::{
        Gpt,
        lora::{Lora, LoraValues},
    },
    ops::is_on_cpu,
};

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
    /// [`Error::Param`](crate::error::Error::Param) if the adapter updates matrices that the model does not have, or
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
    /// [`Error::Execution`](crate::error::Error::Execution) if the device cannot be read.
    pub fn lora(&self) -> Result<Option<LoraValues>> {
        let linears = self.linears().into_iter();
        let found = linears.filter_map(|(path, linear)| Some(linear.lora()?.read().map(|update| (path, update))));
        let found = found.collect::<Result<BTreeMap<_, _>>>()?;
        Ok((!found.is_empty()).then_some(LoraValues(found)))
    }
}
