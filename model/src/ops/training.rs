//! Operations with a hand-written backward pass, for training on the CPU.
//!
//! Each is a [`CpuOp`]: plain functions of slices, forward and backward. One backend extension adds them to Burn's
//! autodiff graph. They run for plain tensors on the CPU, with gradients recorded or not; elsewhere the reference
//! bodies run, against which they are tested. The order of every sum depends only on shapes, so results do not depend
//! on the number of threads.

mod profile;
#[cfg(test)]
mod tests;

use std::{any::type_name, fmt::Debug, sync::Arc};

use burn::{
    backend::{
        Autodiff, Backend, Dispatch, Flex,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        backend_extension,
        flex::FlexTensor,
        tensor::FloatTensor,
    },
    tensor::{DType, Device, Tensor},
};

use profile::timed;
pub use profile::{OpTime, profile_training};

/// Whether the operations of this module run for tensors on `device`: on the CPU, with gradients recorded or not.
pub fn is_on_cpu(device: &Device) -> bool {
    *device == Device::flex()
}

/// An operation on contiguous f32 tensors in CPU memory, with its gradients.
pub(super) trait CpuOp: Debug + Send + Sync {
    /// What a profile calls it.
    fn name(&self) -> &'static str {
        type_name::<Self>()
    }

    /// Returns the output, and data for [`backward`](Self::backward) besides the inputs (may be empty unless
    /// `is_recorded`).
    fn forward(&self, inputs: &[FlexTensor], is_recorded: bool) -> (FlexTensor, Vec<FlexTensor>);

    /// Whether [`backward`](Self::backward) reads the inputs; if not, it gets none.
    fn keeps_inputs(&self) -> bool {
        true
    }

    /// The gradient of each input, in its shape, from that of the output. For an input whose gradient is not `wanted`,
    /// or comes from another operation, it may be `None`.
    fn backward(
        &self,
        inputs: &[FlexTensor],
        saved: &[FlexTensor],
        gradient: &FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>>;
}

/// Runs `op` on one to three `inputs`, recorded in Burn's graph.
///
/// # Panics
/// If [`is_on_cpu`] is false.
pub(super) fn apply<const D: usize>(inputs: Vec<Input>, op: impl CpuOp + 'static) -> Tensor<D> {
    let op = Arc::new(op);
    let mut inputs = inputs.into_iter().map(|Input(input)| input);
    Tensor::from_dispatch(match (inputs.next(), inputs.next(), inputs.next(), inputs.next()) {
        (Some(one), None, None, None) => Dispatch::of_one(one, op),
        (Some(one), Some(two), None, None) => Dispatch::of_two(one, two, op),
        (Some(one), Some(two), Some(three), None) => Dispatch::of_three(one, two, three, op),
        _ => unreachable!("operations have one to three inputs"),
    })
}

/// An operand of [`apply`], of any rank.
pub(super) struct Input(FloatTensor<Dispatch>);

impl<const D: usize> From<Tensor<D>> for Input {
    fn from(tensor: Tensor<D>) -> Self {
        Self(tensor.into_dispatch())
    }
}

/// One method per number of inputs: backend extensions do not take lists.
#[backend_extension(Flex, Autodiff)]
trait TrainingOps: Backend {
    fn of_one(one: FloatTensor<Self>, op: Arc<dyn CpuOp>) -> FloatTensor<Self>;

    fn of_two(one: FloatTensor<Self>, two: FloatTensor<Self>, op: Arc<dyn CpuOp>) -> FloatTensor<Self>;

    fn of_three(
        one: FloatTensor<Self>,
        two: FloatTensor<Self>,
        three: FloatTensor<Self>,
        op: Arc<dyn CpuOp>,
    ) -> FloatTensor<Self>;
}

impl TrainingOps for Flex {
    fn of_one(one: FlexTensor, op: Arc<dyn CpuOp>) -> FlexTensor {
        forward(&*op, &[one].map(|input| contiguous(&input)), false).0
    }

    fn of_two(one: FlexTensor, two: FlexTensor, op: Arc<dyn CpuOp>) -> FlexTensor {
        forward(&*op, &[one, two].map(|input| contiguous(&input)), false).0
    }

    fn of_three(one: FlexTensor, two: FlexTensor, three: FlexTensor, op: Arc<dyn CpuOp>) -> FlexTensor {
        forward(&*op, &[one, two, three].map(|input| contiguous(&input)), false).0
    }
}

impl<C: CheckpointStrategy> TrainingOps for Autodiff<Flex, C> {
    fn of_one(one: FloatTensor<Self>, op: Arc<dyn CpuOp>) -> FloatTensor<Self> {
        record::<1, C>([one], op)
    }

    fn of_two(one: FloatTensor<Self>, two: FloatTensor<Self>, op: Arc<dyn CpuOp>) -> FloatTensor<Self> {
        record::<2, C>([one, two], op)
    }

    fn of_three(
        one: FloatTensor<Self>,
        two: FloatTensor<Self>,
        three: FloatTensor<Self>,
        op: Arc<dyn CpuOp>,
    ) -> FloatTensor<Self> {
        record::<3, C>([one, two, three], op)
    }
}

fn record<const N: usize, C: CheckpointStrategy>(
    inputs: [FloatTensor<Autodiff<Flex, C>>; N],
    op: Arc<dyn CpuOp>,
) -> FloatTensor<Autodiff<Flex, C>> {
    let values: Vec<_> = inputs.iter().map(|input| contiguous(input.primitive())).collect();
    match Recorded.prepare::<C>(inputs.each_ref().map(|input| input.node())).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let (output, saved) = forward(&*op, &values, true);
            let inputs = if op.keeps_inputs() { values } else { Vec::new() };
            prepared.finish(Step { op, inputs, saved }, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(forward(&*op, &values, false).0),
    }
}

/// Data for the backward pass of one operation.
#[derive(Clone, Debug)]
struct Step {
    op: Arc<dyn CpuOp>,
    inputs: Vec<FlexTensor>,
    saved: Vec<FlexTensor>,
}

#[derive(Debug)]
struct Recorded;

impl<const N: usize> Backward<Flex, N> for Recorded {
    type State = Step;

    fn backward(self, ops: Ops<Step, N>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let Step { op, inputs, saved } = ops.state;
        let gradient = contiguous(&gradients.consume::<Flex>(&ops.node));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let of_inputs = timed(op.name(), true, || op.backward(&inputs, &saved, &gradient, &wanted));
        for (parent, gradient) in ops.parents.into_iter().zip(of_inputs) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<Flex>(parent.id, gradient);
            }
        }
    }
}

fn forward(op: &dyn CpuOp, inputs: &[FlexTensor], is_recorded: bool) -> (FlexTensor, Vec<FlexTensor>) {
    timed(op.name(), false, || op.forward(inputs, is_recorded))
}

fn contiguous(tensor: &FlexTensor) -> FlexTensor {
    debug_assert_eq!(tensor.dtype(), DType::F32);
    tensor.to_contiguous()
}
