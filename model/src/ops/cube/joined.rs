//! What a product takes into itself beside the matrix.

use burn_cubecl::tensor::CubeTensor;

use crate::config::Activation;

/// What a product is joined with.
#[derive(Clone, Debug, Default)]
pub(super) struct Joined {
    /// Added to each row: `[d_out]`.
    pub(super) bias: Option<CubeTensor>,
    /// Added: `[n_rows, d_out]`.
    pub(super) residual: Option<CubeTensor>,
    /// RMSNorm of the input comes first; its weight `[d_in]`. Not together with a residual.
    pub(super) norm: Option<CubeTensor>,
}

/// How a product is joined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) struct LinearOptions {
    /// Of the norm, where there is one.
    pub(in crate::ops) eps: f32,
    /// Of the norm, where there is one.
    pub(in crate::ops) weight_offset: f32,
    /// The left half of the outputs gates the right half: what comes back is half as wide.
    pub(in crate::ops) gate: Option<Activation>,
}
