//! Model FLOPs utilization: which share of the device's arithmetic training uses
//! ([PaLM](https://arxiv.org/abs/2204.02311), appendix B).

use anyhow::Result;
use hearth_model::{
    gpt::Gpt,
    ops::{self, Dtype},
};

/// The multiply-adds that training needs per token, and the device's multiply-adds per second.
#[derive(Clone, Copy, Debug)]
pub struct Utilization {
    products_per_token: f64,
    products_per_second: f64,
}

impl Utilization {
    /// Briefly measures the device's speed in f32. `None` if that cannot be measured. Counts the products of matrices
    /// and of attention over half the context; a backward pass takes twice the products of a forward pass, or the same
    /// number if the matrices themselves do not train.
    ///
    /// # Errors
    /// The device fails.
    pub fn measure(gpt: &Gpt, seq_len: usize) -> Result<Option<Utilization>> {
        let n_keys = seq_len * (seq_len + 1) / 2;
        let passes = if gpt.has_lora() { 2.0 } else { 3.0 };
        let products_per_token = passes * gpt.n_products(seq_len, seq_len, n_keys) as f64 / seq_len as f64;
        let device = gpt.device();
        let device = if device.is_autodiff() { device.inner() } else { device };
        let products_per_second = ops::multiply_rate(Dtype::F32, &device)?;
        Ok((products_per_second > 0.0).then_some(Utilization { products_per_token, products_per_second }))
    }

    /// The share at a speed.
    pub fn at(self, tok_per_sec: f64) -> f64 {
        tok_per_sec * self.products_per_token / self.products_per_second
    }

    /// Multiply-adds of f32 that the device was found to do in a second.
    pub fn products_per_second(self) -> f64 {
        self.products_per_second
    }
}
