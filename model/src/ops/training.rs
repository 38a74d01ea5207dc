//! Operations with a hand-written backward pass, for training.
//!
//! Each is a [`TrainingOp`]: plain functions, forward and backward, of slices on the CPU and of tensors on a GPU. Backend
//! extensions add them to Burn's autodiff graph. On the CPU they run for all plain tensors, with gradients recorded or not;
//! on a GPU, most do where gradients are recorded. Elsewhere the reference bodies run, against which they are tested. The
//! order of every sum on the CPU depends only on shapes, so results do not depend on the number of threads.

mod profile;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::{
    backend::{
        Autodiff, Backend, Dispatch, Flex, TensorMetadata,
        autodiff::{
            NodeId,
            checkpoint::{
                base::Checkpointer,
                retro_forward::RetroForward,
                state::BackwardStates,
                strategy::{BalancedCheckpointing, CheckpointStrategy},
            },
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        backend_extension,
        flex::FlexTensor,
        tensor::FloatTensor,
    },
    tensor::{DType, Tensor},
};

use gpu::OnGpu;
pub(super) use gpu::apply_on_gpu;
use profile::timed;
pub use profile::{OpTime, Pass, profile_training};

use super::types::{Placement, TrainingOp};

/// Runs `op`, which has bodies for both kinds of device, where its `inputs` are: [`apply`] or [`apply_on_gpu`].
pub(super) fn apply_on_its_device<const D: usize>(
    inputs: Vec<Input>,
    op: impl TrainingOp<FlexTensor> + OnGpu + 'static,
) -> Tensor<D> {
    match inputs.first().is_some_and(Input::is_on_cpu) {
        true => apply(inputs, op),
        false => apply_on_gpu(inputs, op),
    }
}

/// An operand of [`apply`], of any rank.
pub(super) struct Input(FloatTensor<Dispatch>);

impl Input {
    fn is_on_cpu(&self) -> bool {
        Placement::of_backend(&self.0.device()).is_cpu()
    }
}

impl<const D: usize> From<Tensor<D>> for Input {
    fn from(tensor: Tensor<D>) -> Self {
        Self(tensor.into_dispatch())
    }
}

/// An operation on the tensors of `B`.
type Op<B> = Arc<dyn TrainingOp<FloatTensor<B>>>;

/// The backend extension `$extension` of `$backend`, which runs operations on its tensors, and the function `$apply`, which
/// calls it. The extension has a method per number of inputs: backend extensions do not take lists.
macro_rules! training_extension {
    ($extension:ident of $backend:ident ($selector:ident), $(#[$doc:meta])* $apply:ident) => {
        #[backend_extension($selector, Autodiff)]
        trait $extension: Backend {
            fn of_one(one: FloatTensor<Self>, op: Op<$backend>) -> FloatTensor<Self>;

            fn of_two(one: FloatTensor<Self>, two: FloatTensor<Self>, op: Op<$backend>) -> FloatTensor<Self>;

            fn of_three(
                one: FloatTensor<Self>,
                two: FloatTensor<Self>,
                three: FloatTensor<Self>,
                op: Op<$backend>,
            ) -> FloatTensor<Self>;
        }

        impl $extension for $backend {
            fn of_one(one: FloatTensor<Self>, op: Op<Self>) -> FloatTensor<Self> {
                plain::<Self, 1>([one], &*op)
            }

            fn of_two(one: FloatTensor<Self>, two: FloatTensor<Self>, op: Op<Self>) -> FloatTensor<Self> {
                plain::<Self, 2>([one, two], &*op)
            }

            fn of_three(
                one: FloatTensor<Self>,
                two: FloatTensor<Self>,
                three: FloatTensor<Self>,
                op: Op<Self>,
            ) -> FloatTensor<Self> {
                plain::<Self, 3>([one, two, three], &*op)
            }
        }

        impl<C: CheckpointStrategy> $extension for Autodiff<$backend, C> {
            fn of_one(one: FloatTensor<Self>, op: Op<$backend>) -> FloatTensor<Self> {
                record::<$backend, 1, C>([one], op)
            }

            fn of_two(one: FloatTensor<Self>, two: FloatTensor<Self>, op: Op<$backend>) -> FloatTensor<Self> {
                record::<$backend, 2, C>([one, two], op)
            }

            fn of_three(
                one: FloatTensor<Self>,
                two: FloatTensor<Self>,
                three: FloatTensor<Self>,
                op: Op<$backend>,
            ) -> FloatTensor<Self> {
                record::<$backend, 3, C>([one, two, three], op)
            }
        }

        $(#[$doc])*
        pub(in crate::ops) fn $apply<const D: usize>(
            inputs: Vec<Input>,
            op: impl TrainingOp<FloatTensor<$backend>> + 'static,
        ) -> Tensor<D> {
            let op = Arc::new(op);
            let mut inputs = inputs.into_iter().map(|Input(input)| input);
            Tensor::from_dispatch(match (inputs.next(), inputs.next(), inputs.next(), inputs.next()) {
                (Some(one), None, None, None) => <Dispatch as $extension>::of_one(one, op),
                (Some(one), Some(two), None, None) => <Dispatch as $extension>::of_two(one, two, op),
                (Some(one), Some(two), Some(three), None) => <Dispatch as $extension>::of_three(one, two, three, op),
                _ => unreachable!("operations have one to three inputs"),
            })
        }
    };
}

// Behind the macro, which it uses.
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(not(feature = "gpu"))]
#[path = "training/no_gpu.rs"]
mod gpu;

training_extension! {
    CpuTraining of Flex (Flex),
    /// Runs `op` on one to three `inputs`, recorded in Burn's graph if gradients are.
    ///
    /// # Panics
    /// Unless they are on the CPU.
    apply
}

/// A backend with operations of this kind.
trait TrainingBackend: Backend {
    /// The tensor with its values in the order of the shape.
    fn contiguous(tensor: &FloatTensor<Self>) -> FloatTensor<Self>;
}

impl TrainingBackend for Flex {
    fn contiguous(tensor: &FlexTensor) -> FlexTensor {
        debug_assert_eq!(tensor.dtype(), DType::F32);
        tensor.to_contiguous()
    }
}

/// Runs `op` without recording it.
fn plain<B: TrainingBackend, const N: usize>(
    inputs: [FloatTensor<B>; N],
    op: &dyn TrainingOp<FloatTensor<B>>,
) -> FloatTensor<B> {
    forward(op, &inputs.map(|input| B::contiguous(&input)), &[false; N]).0
}

/// Number of input values from which a norm or an activation recomputes its output in the backward pass instead of
/// keeping it. For smaller inputs, the saved memory is not worth the time.
pub const RECOMPUTED_FROM: usize = 1 << 19;

/// Runs `op` and records it. Large outputs of cheap operations are not kept for the operations that read them: Burn's
/// checkpointer recomputes them when the first of these needs its input.
fn record<B: TrainingBackend, const N: usize, C: CheckpointStrategy>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    op: Arc<dyn TrainingOp<FloatTensor<B>>>,
) -> FloatTensor<Autodiff<B, C>> {
    let values: Vec<_> = inputs.iter().map(|input| B::contiguous(input.primitive())).collect();
    let nodes = inputs.each_ref().map(|input| input.node());
    let wanted = inputs.each_ref().map(|input| input.is_tracked());
    // Independent of the device's strategy `C`: this one recomputes exactly the operations that are marked as memory
    // bound.
    let prepared = Backward::<B, N>::prepare::<BalancedCheckpointing>(RecordedOp, nodes);
    // Burn registers untracked operations too, and would keep what recomputes them, with its tensors, until the next
    // backward pass. So only tracked ones are marked.
    let is_tracked = wanted.contains(&true);
    let prepared = if is_tracked && op.is_cheap() && inputs[0].shape().num_elements() >= RECOMPUTED_FROM {
        let again = Recompute::<B, N> { op: op.clone(), inputs: inputs.each_ref().map(SavedInput::new) };
        prepared.memory_bound().retro_forward(again).parents(inputs.iter().filter(|input| input.is_tracked()))
    } else {
        prepared.compute_bound()
    };
    match prepared.stateful() {
        OpsKind::Tracked(mut prepared) => {
            let (output, saved) = forward(&*op, &values, &wanted);
            let kept = if op.keeps_inputs() { &inputs[..] } else { &[] };
            for input in kept.iter().filter(|input| input.is_tracked()) {
                prepared.checkpoint(input);
            }
            let added_to = op.adds_to_gradient().then(|| inputs[0].clone());
            let inputs = kept.iter().map(SavedInput::new).collect();
            prepared.finish(SavedOp { op, inputs, saved, added_to }, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(forward(&*op, &values, &wanted).0),
    }
}

/// An operand of a recorded operation.
#[derive(Clone, Debug)]
enum SavedInput<T> {
    /// The output of this node, which the checkpointer has or recomputes.
    Node(NodeId),
    /// The value of an operand that needs no gradient.
    Value(T),
}

impl<T: Clone> SavedInput<T> {
    fn new<B: TrainingBackend<FloatTensorPrimitive = T>>(tensor: &FloatTensor<Autodiff<B>>) -> Self {
        if tensor.is_tracked() { Self::Node(tensor.id()) } else { Self::Value(tensor.primitive().clone()) }
    }
}

/// How the output of an operation is recomputed.
#[derive(Debug)]
struct Recompute<B: Backend, const N: usize> {
    op: Arc<dyn TrainingOp<FloatTensor<B>>>,
    inputs: [SavedInput<FloatTensor<B>>; N],
}

impl<B: TrainingBackend, const N: usize> RetroForward for Recompute<B, N> {
    fn forward(&self, states: &mut BackwardStates, node: NodeId) {
        let inputs = self.inputs.each_ref().map(|input| {
            B::contiguous(&match input {
                SavedInput::Node(id) => states.get_state(id),
                SavedInput::Value(value) => value.clone(),
            })
        });
        states.save(node, forward(&*self.op, &inputs, &[false; N]).0);
    }
}

/// Data for the backward pass of one operation.
#[derive(Clone, Debug)]
struct SavedOp<B: Backend> {
    op: Arc<dyn TrainingOp<FloatTensor<B>>>,
    inputs: Vec<SavedInput<FloatTensor<B>>>,
    saved: Vec<FloatTensor<B>>,
    /// The parameter to whose gradient the operation adds. Only parameters: an abandoned graph would keep any other
    /// tensor alive.
    added_to: Option<FloatTensor<Autodiff<B>>>,
}

#[derive(Debug)]
struct RecordedOp;

impl<B: TrainingBackend, const N: usize> Backward<B, N> for RecordedOp {
    type State = SavedOp<B>;

    fn backward(self, ops: Ops<Self::State, N>, gradients: &mut Gradients, checkpointer: &mut Checkpointer) {
        let SavedOp { op, inputs, mut saved, added_to } = ops.state;
        let of_kept = |kept| {
            B::contiguous(&match kept {
                SavedInput::Node(id) => checkpointer.retrieve_node_output(id),
                SavedInput::Value(value) => value,
            })
        };
        let inputs: Vec<_> = inputs.into_iter().map(of_kept).collect();
        let gradient = B::contiguous(&gradients.consume::<B>(&ops.node));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let sum = match &ops.parents[0] {
            Some(parent) if op.takes_gradient() => Some(gradients.consume::<B>(parent)),
            _ => added_to.and_then(|parameter| gradients.remove::<B>(&parameter)),
        };
        saved.extend(sum);
        let of_inputs = timed(op.name(), Pass::Backward, || op.backward(&inputs, saved, &gradient, &wanted));
        for (parent, gradient) in ops.parents.into_iter().zip(of_inputs) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

fn forward<T>(op: &dyn TrainingOp<T>, inputs: &[T], wanted: &[bool]) -> (T, Vec<T>) {
    timed(op.name(), Pass::Forward, || op.forward(inputs, wanted))
}
