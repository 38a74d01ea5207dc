//! Operations with a hand-written backward pass: their trait, and the ones that have bodies for the CPU and for GPUs.

use std::{any::type_name, fmt::Debug};

use super::{AttentionOptions, Dropout, NormOptions};
use crate::config::{Activation, QkNormSpan};

/// Maximum number of logits in a GPU's memory, unless a row has more: 256 MB, or the device's largest buffer. The
/// logits of a whole batch never exist.
pub const GPU_LOGITS_AT_ONCE: usize = 1 << 26;

/// An operation on contiguous f32 tensors `T` in the memory of one kind of device, with its gradients.
pub(in crate::ops) trait TrainingOp<T>: Debug + Send + Sync {
    /// The operation's name in a profile.
    fn name(&self) -> &'static str {
        type_name::<Self>()
    }

    /// Returns the output, and the data that [`backward`](Self::backward) needs besides the inputs. `wanted` says for
    /// each input whether its gradient will be needed; if none will be, `backward` is not called and no data need be
    /// returned.
    fn forward(&self, inputs: &[T], wanted: &[bool]) -> (T, Vec<T>);

    /// Whether a large output is recomputed in the backward pass instead of being kept for it.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Whether [`backward`](Self::backward) reads the inputs; if not, it gets none.
    fn keeps_inputs(&self) -> bool {
        true
    }

    /// Whether this operation adds the gradients of all uses of its first input, a parameter. Burn would allocate a
    /// separate tensor for each use. If true, the last of `saved` in the backward pass is the sum so far, if there is
    /// one, and the gradient that [`backward`](Self::backward) returns replaces it.
    fn adds_to_gradient(&self) -> bool {
        false
    }

    /// As [`adds_to_gradient`](Self::adds_to_gradient), for an input that is no parameter. Asked once in the backward pass, and
    /// true only if the input has a gradient.
    fn takes_gradient(&self) -> bool {
        false
    }

    /// The gradient of each input, in its shape, from the gradient of the output. It may be `None` for an input whose
    /// gradient is not `wanted`, or comes from another operation.
    fn backward(&self, inputs: &[T], saved: Vec<T>, gradient: &T, wanted: &[bool]) -> Vec<Option<T>>;
}

/// Inputs: `x [n_rows, width]`, the weight `[width]` and an optional bias `[width]`; see [`norm`](crate::ops::norm).
#[derive(Debug)]
pub(in crate::ops) struct Normalize(pub(in crate::ops) NormOptions);

/// Inputs: `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]`, and the weights of queries and of keys; there are no
/// biases. See [`qk_norm`](crate::ops::qk_norm).
#[derive(Debug)]
pub(in crate::ops) struct QkNormalize {
    pub(in crate::ops) span: QkNormSpan,
    pub(in crate::ops) options: AttentionOptions,
    /// Options of both norms.
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
