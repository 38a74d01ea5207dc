//! Operations that have bodies for the CPU and for GPUs.

use crate::{
    config::{Activation, QkNormSpan},
    ops::{AttentionOptions, Dropout, NormOptions},
};

/// Inputs: `x [n_rows, width]`, the weight `[width]` and an optional bias `[width]`; see [`norm`](crate::ops::norm).
#[derive(Debug)]
pub(in crate::ops) struct Normalize(pub(in crate::ops) NormOptions);

/// Inputs: `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]`, and the weights of queries and of keys; there are no
/// biases. See [`qk_norm`](crate::ops::qk_norm).
#[derive(Debug)]
pub(in crate::ops) struct QkNormalize {
    pub(in crate::ops) span: QkNormSpan,
    pub(in crate::ops) options: AttentionOptions,
    /// Of both norms.
    pub(in crate::ops) norm: NormOptions,
}

/// Input: `x [n_rows, d_ff]`, or `[n_rows, 2 * d_ff]` if the left half gates the right; output: `[n_rows, d_ff]`. See
/// [`activate`](crate::ops::activate) and [`gated`](crate::ops::gated).
#[derive(Debug)]
pub(in crate::ops) struct Activate {
    pub(in crate::ops) kind: Activation,
    pub(in crate::ops) is_gated: bool,
}

/// Inputs: an update, and the residual stream that it is added to, if there is one; see
/// [`add_update`](crate::ops::add_update) and [`dropout`](crate::ops::dropout).
#[derive(Debug)]
pub(in crate::ops) struct AddUpdate {
    pub(in crate::ops) multiplier: f64,
    pub(in crate::ops) dropout: Option<Dropout>,
}
