//! The gradient of a tensor with two uses.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::flex::FlexTensor;

/// Where the gradient of one use waits for the backward pass of the other, which adds its own.
#[derive(Clone, Debug, Default)]
pub(in crate::ops) struct SharedGradient(Arc<Mutex<Option<FlexTensor>>>);

impl SharedGradient {
    /// Leaves the gradient of the use whose backward pass comes first.
    pub(super) fn leave(&self, gradient: Option<FlexTensor>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = gradient;
    }

    /// What was left.
    pub(super) fn take(&self) -> Option<FlexTensor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
