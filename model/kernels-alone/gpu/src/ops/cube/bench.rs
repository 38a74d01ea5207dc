//! Launches kernels by themselves, on operands of known values.

pub mod cases;
pub mod ceilings;
mod operands;
pub mod show;
pub mod sweeps;
pub mod timing;
mod training_cases;

pub use operands::Gpu;
use operands::Weights;

use burn_cubecl::tensor::CubeTensor;

/// A kernel, or the few that make one operation, on operands of their own.
pub struct Case {
    /// What is computed, on what, and how: unique.
    pub name: String,
    /// Bytes that must be read or written at least.
    pub bytes: usize,
    /// Multiply-adds.
    pub macs: usize,
    run: Box<dyn Fn() -> CubeTensor>,
    /// The largest error of some of the results, relative to the sum of the magnitudes of their terms.
    error: Option<Box<ErrorOf>>,
}

type ErrorOf = dyn Fn(&[f32]) -> f64;

impl Case {
    fn new(name: impl Into<String>, [bytes, macs]: [usize; 2], run: impl Fn() -> CubeTensor + 'static) -> Self {
        Self { name: name.into(), bytes, macs, run: Box::new(run), error: None }
    }

    /// Launches it.
    pub fn launch(&self) -> CubeTensor {
        (self.run)()
    }

    fn with_error(mut self, error: impl Fn(&[f32]) -> f64 + 'static) -> Self {
        self.error = Some(Box::new(error));
        self
    }
}

/// What a caller does with a case.
pub type Visit<'a> = &'a mut dyn FnMut(&Case) -> anyhow::Result<()>;
