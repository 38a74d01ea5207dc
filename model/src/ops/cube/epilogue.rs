//! What a matrix product fuses: the norm before it; bias, residual and gate after it.

use burn_cubecl::tensor::CubeTensor;

use crate::config::Activation;

/// Operations that a kernel fuses with a product.
#[derive(Clone, Debug, Default)]
pub(super) struct Epilogue {
    /// Added to each row: `[d_out]`.
    pub(super) bias: Option<CubeTensor>,
    /// Added: `[n_rows, d_out]`.
    pub(super) residual: Option<CubeTensor>,
    /// RMSNorm of the input comes first; its weight `[d_in]`. Not together with a residual.
    pub(super) norm: Option<CubeTensor>,
}

/// The scalar options of an [`Epilogue`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) struct LinearOptions {
    /// Epsilon of the norm, if there is one.
    pub(in crate::ops) eps: f32,
    /// Weight offset of the norm, if there is one.
    pub(in crate::ops) weight_offset: f32,
    /// The left half of the outputs gates the right half, which halves the width.
    pub(in crate::ops) gate: Option<Activation>,
}
