//! Stubs for the GPU bodies in builds without the feature `gpu`, with the same signatures, so that the operations are
//! the same in all builds. Nothing calls them, since no tensor has [`Placement::Gpu`](super::Placement::Gpu) there.

use burn::tensor::{Device, Int, Tensor};

use super::{
    AdamWStep, AttentionOptions, DeviceMemory, Dtype, GpuFeatures, NormOptions, NormParts, QuantizedMatrix,
    types::AttentionStep,
};
use crate::{
    config::{Activation, QkNormSpan},
    error::Result,
};

/// The end of functions that are never called.
pub(super) fn no_gpu() -> ! {
    unreachable!("builds without the feature `gpu` place nothing on a GPU")
}

/// Functions of these signatures that are never called.
macro_rules! never_called {
    ($($visibility:vis fn $name:ident($($type:ty),*) $(-> $output:ty)?;)*) => {
        $($visibility fn $name($(_: $type),*) $(-> $output)? {
            no_gpu()
        })*
    };
}

never_called! {
    pub(super) fn activate(Tensor<2>, Activation) -> Tensor<2>;
    pub(super) fn adamw(Tensor<1>, Tensor<1>, [Tensor<1>; 2], AdamWStep) -> (Tensor<1>, [Tensor<1>; 2]);
    pub(super) fn append_and_attend(
        Tensor<2>, Option<Tensor<2>>, [&mut Tensor<2>; 2], Tensor<1, Int>, (AttentionStep, usize)
    ) -> Tensor<2>;
    pub(super) fn attention(Tensor<2>, [&Tensor<2>; 2], Tensor<1, Int>, AttentionStep) -> Tensor<2>;
    pub(super) fn can_fuse(usize, &Matrix) -> bool;
    pub(super) fn copy_first_column(Tensor<2, Int>, Tensor<1, Int>) -> Tensor<1, Int>;
    pub(super) fn device_memory(&Device) -> DeviceMemory;
    pub(super) fn embedding(&Matrix, Tensor<1, Int>) -> Tensor<2>;
    pub(crate) fn flush(&Device) -> Result<()>;
    pub(super) fn gated(Tensor<2>, Activation) -> Tensor<2>;
    pub(super) fn gpu_features(&Device) -> GpuFeatures;
    pub(super) fn has_bf16_products(&Device) -> bool;
    pub(super) fn linear(Tensor<2>, &Matrix, Option<Tensor<1>>, Option<Tensor<2>>) -> Tensor<2>;
    pub(super) fn multiply_rate(&Device) -> Result<f64>;
    pub(super) fn norm(Tensor<2>, NormParts, Option<Tensor<2>>) -> Tensor<2>;
    pub(super) fn normed_linear(
        Tensor<2>, NormParts, &Matrix, Option<Tensor<1>>, Option<Activation>
    ) -> Tensor<2>;
    pub(super) fn overwrite(Tensor<1, Int>, Vec<i32>) -> Tensor<1, Int>;
    pub(super) fn part_of_ints(&Tensor<1, Int>, [usize; 2]) -> Tensor<1, Int>;
    pub(super) fn qk_norm(Tensor<2>, [Tensor<1>; 2], QkNormSpan, &AttentionOptions, NormOptions) -> Tensor<2>;
    pub(super) fn read_bandwidth(usize, &Device) -> Result<f64>;
    pub(super) fn rope_append(
        Tensor<2>, Option<Tensor<2>>, [&mut Tensor<2>; 2], Tensor<1, Int>, &AttentionOptions
    ) -> Tensor<2>;
    pub(super) fn rows_in_ints(&Tensor<1, Int>, usize, [usize; 2]) -> Tensor<2>;
    pub(super) fn square_sums(&[Tensor<1>]) -> Tensor<1>;
    pub(super) fn take_rows(Tensor<2>, Tensor<1, Int>) -> Tensor<2>;
    pub(crate) fn top_k_logits(Tensor<2>, Tensor<1, Int>, [usize; 3]) -> Tensor<2, Int>;
}

/// For tests on GPUs.
#[cfg(test)]
pub(super) fn allow_f16() {}

/// Reads `tensor` off a GPU.
pub(crate) fn read_ints_while<T>(_tensor: Tensor<2, Int>, _meanwhile: impl FnOnce() -> T) -> Result<(Vec<i32>, T)> {
    no_gpu()
}

/// Calls `run`, which launches nothing on a GPU.
pub(super) fn count_launches<T>(run: impl FnOnce() -> T) -> (T, usize) {
    (run(), 0)
}

/// A matrix on a GPU, which is never created; the same holds for the types below. (They have a private field rather
/// than no values, because the compiler would otherwise warn about unreachable code.)
#[derive(Debug)]
pub(super) struct Matrix(());

impl Matrix {
    never_called! {
        pub(super) fn new(&[f32], [usize; 2], Dtype, &Device) -> Self;
        pub(super) fn from_quantized(&QuantizedMatrix, &Device) -> Self;
    }

    pub(super) fn dims(&self) -> [usize; 2] {
        no_gpu()
    }

    pub(super) fn dtype(&self) -> Dtype {
        no_gpu()
    }

    pub(super) fn device(&self) -> Device {
        no_gpu()
    }

    pub(super) fn n_bytes(&self) -> usize {
        no_gpu()
    }

    pub(super) fn read(&self) -> Result<Vec<f32>> {
        no_gpu()
    }

    pub(super) fn read_quantized(&self) -> Result<QuantizedMatrix> {
        no_gpu()
    }
}

/// A captured graph.
#[derive(Debug)]
pub(crate) struct CapturedGraph(());

impl CapturedGraph {
    pub(crate) fn new<T>(_: &Device, _: &[usize], _: impl FnMut() -> T) -> Result<(Self, T)> {
        no_gpu()
    }

    #[expect(unsafe_code, reason = "the signature for GPUs")]
    pub(crate) unsafe fn replay(&self) -> Result<()> {
        no_gpu()
    }
}

/// The address of a tensor in a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(());

impl Address {
    pub(crate) fn of(_: &Tensor<2>) -> Option<Self> {
        None
    }
}

/// Operations with a backward pass.
pub(super) mod training {
    use burn::tensor::{Int, Tensor};

    use super::no_gpu;
    use crate::ops::{AttentionOptions, LossOptions, Precision};

    #[derive(Debug)]
    pub(in crate::ops) struct Linear {
        #[expect(dead_code, reason = "read on GPUs")]
        pub(in crate::ops) precision: Precision,
    }

    #[derive(Debug)]
    pub(in crate::ops) struct Embed(());

    impl Embed {
        never_called! { pub(in crate::ops) fn new(Tensor<1, Int>) -> Self; }
    }

    #[derive(Debug)]
    pub(in crate::ops) struct RopeAttend(());

    impl RopeAttend {
        never_called! {
            pub(in crate::ops) fn new(
                &AttentionOptions, usize, Option<Tensor<2>>, Option<&[u32]>, Precision, &Tensor<2>
            ) -> Self;
        }
    }

    #[derive(Debug)]
    pub(in crate::ops) struct LinearCrossEntropy(());

    impl LinearCrossEntropy {
        never_called! {
            pub(in crate::ops) fn new(
                (Tensor<1, Int>, Option<Vec<f32>>), LossOptions, Precision, &Tensor<2>
            ) -> Self;
        }

        pub(in crate::ops) fn of_logits(
            &self,
            _: usize,
            _: Option<Tensor<1>>,
            _: impl Fn(std::ops::Range<usize>) -> Tensor<2>,
        ) -> Tensor<1> {
            no_gpu()
        }
    }
}
