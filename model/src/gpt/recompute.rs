//! Training passes that keep only the input of each block (gradient checkpointing): everything else is recomputed in
//! the backward pass ([Chen et al., 2016](https://arxiv.org/abs/1604.06174)).

use std::slice::from_ref;

use burn::{
    module::Module,
    tensor::{Gradients, Int, Tensor},
};

use crate::gpt::{
    Gpt, RouterLogits, RouterLosses,
    forward_pass::{AttentionContext, ForwardPass},
};

/// A forward pass whose blocks are recomputed in the backward pass, one at a time.
#[derive(Debug)]
pub struct RecomputedPass<'a> {
    gpt: &'a Gpt,
    pass: ForwardPass<'a>,
    /// The input of the first block.
    embedded: Tensor<2>,
    /// The per-layer inputs of all blocks.
    per_layer: Option<Tensor<2>>,
    /// The input of each block except the last, without autodiff.
    inputs: Vec<Tensor<2>>,
    /// The input of the last block, which is kept: its backward pass comes first.
    last_input: Tensor<2>,
    /// The losses of the routers of all blocks except the last, which are not part of the objective.
    router_losses: Option<RouterLosses>,
}

impl Gpt {
    /// [`forward`](Self::forward) on an autodiff device, with the data that its backward pass needs. `context` is
    /// called twice and must return the same each time.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn forward_recomputed<'a>(
        &'a self,
        token_ids: Tensor<1, Int>,
        context: impl Fn() -> AttentionContext<'a>,
    ) -> (Tensor<2>, RecomputedPass<'a>) {
        let (hidden, _, pass) = self.forward_routed_recomputed(token_ids, context, false);
        (hidden, pass)
    }

    /// As [`forward_recomputed`](Self::forward_recomputed), with the router logits if they are wanted. Only the last
    /// block's logits have gradients, and only they may be passed to
    /// [`RouterLosses::objective`](crate::gpt::RouterLosses::objective); pass the losses of the others to
    /// [`with_router_losses`](RecomputedPass::with_router_losses).
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn forward_routed_recomputed<'a>(
        &'a self,
        token_ids: Tensor<1, Int>,
        context: impl Fn() -> AttentionContext<'a>,
        wants_routers: bool,
    ) -> (Tensor<2>, [RouterLogits; 2], RecomputedPass<'a>) {
        let device = token_ids.device();
        let mut pass = ForwardPass::new(self.config(), context(), &device);
        let embedded = self.embed_input(token_ids, &mut pass);
        let per_layer = pass.per_layer.take();
        // On the same device, so that the same operations run, but without recording.
        let unrecorded = self.clone().no_grad();
        let mut unrecorded_pass = ForwardPass::new(self.config(), context(), &device);
        unrecorded_pass.per_layer = per_layer.clone().map(|rows| Tensor::from_inner(rows.inner()));
        for pass in [&mut pass, &mut unrecorded_pass] {
            pass.routes = wants_routers.then(Vec::new);
        }
        // A model has at least one block.
        let last = self.config().n_layers - 1;
        let mut inputs = Vec::with_capacity(last);
        let mut x = embedded.clone().inner();
        for layer in 0..last {
            inputs.push(x.clone());
            x = unrecorded.block(layer, Tensor::from_inner(x), &mut unrecorded_pass).inner();
        }
        let last_input = Tensor::from_inner(x).require_grad();
        pass.per_layer = per_layer.clone().map(as_leaf);
        *pass.lent() = unrecorded_pass.lent().clone().map(|lent| lent.map(as_leaf));
        let hidden = self.final_norm(self.block(last, last_input.clone(), &mut pass));
        let [earlier, of_last] = [&mut unrecorded_pass, &mut pass].map(|pass| RouterLogits::of(pass.routes.take()));
        let pass = RecomputedPass { gpt: self, pass, embedded, per_layer, inputs, last_input, router_losses: None };
        (hidden, [earlier, of_last], pass)
    }
}

impl RecomputedPass<'_> {
    /// Adds the losses of the routers of all blocks except the last.
    #[must_use]
    pub fn with_router_losses(self, router_losses: Option<RouterLosses>) -> Self {
        Self { router_losses, ..self }
    }

    /// The gradients of `objective`, which was computed from the hidden states of this pass: `visit` is called for parts of the
    /// model, last first. A parameter with several uses has gradients in several parts, which are to be added.
    pub fn backward(mut self, objective: Tensor<1>, visit: &mut dyn FnMut(Gradients)) {
        let (mut of_lent, mut of_per_layer) = ([None, None], [None]);
        let mut gradients = objective.backward();
        let mut of_output = gradient_of(&self.last_input, &mut gradients);
        drop(self.last_input);
        add_gradients_of(self.pass.lent(), &mut of_lent, &mut gradients);
        add_gradients_of(from_ref(&self.pass.per_layer), &mut of_per_layer, &mut gradients);
        visit(gradients);
        for (layer, input) in self.inputs.into_iter().enumerate().rev() {
            let input = Tensor::from_inner(input).require_grad();
            self.pass.routes = self.router_losses.is_some().then(Vec::new);
            let output = self.gpt.block(layer, input.clone(), &mut self.pass);
            let logits = RouterLogits::of(self.pass.routes.take());
            let of_routers = self.router_losses.as_ref().and_then(|losses| losses.objective(logits));
            let mut outputs = vec![(output, of_output)];
            if self.gpt.config().lends_keys(layer) {
                // All layers that attend to its keys and values have been here.
                let kind = usize::from(self.gpt.config().window_of(layer).is_some());
                outputs.extend(self.pass.lent()[kind].take().zip(of_lent[kind].take()));
            }
            let mut gradients = backward_from(outputs, of_routers);
            of_output = gradient_of(&input, &mut gradients);
            add_gradients_of(self.pass.lent(), &mut of_lent, &mut gradients);
            add_gradients_of(from_ref(&self.pass.per_layer), &mut of_per_layer, &mut gradients);
            visit(gradients);
        }
        // With an adapter, embeddings do not train, but their projection to per-layer inputs may.
        let [of_per_layer] = of_per_layer;
        let inputs = [(self.embedded, of_output)].into_iter().chain(self.per_layer.zip(of_per_layer));
        let trained: Vec<_> = inputs.filter(|(rows, _)| rows.is_tracked()).collect();
        if !trained.is_empty() {
            visit(backward_from(trained, None));
        }
    }
}

/// A leaf tensor, whose gradient is available after the backward pass of everything computed from it.
fn as_leaf(tensor: Tensor<2>) -> Tensor<2> {
    Tensor::from_inner(tensor.inner()).require_grad()
}

/// Adds the gradients of tensors that layers share: keys and values, or the per-layer inputs.
fn add_gradients_of(leaves: &[Option<Tensor<2>>], sums: &mut [Option<Tensor<2>>], gradients: &mut Gradients) {
    for (leaf, sum) in leaves.iter().zip(sums) {
        if let Some(gradient) = leaf.as_ref().and_then(|leaf| leaf.grad_remove(gradients)) {
            *sum = Some(match sum.take() {
                Some(sum) => sum + gradient,
                None => gradient,
            });
        }
    }
}

/// The gradient of a block's input, which must have one: the input requires it, and the block uses the input.
fn gradient_of(input: &Tensor<2>, gradients: &mut Gradients) -> Tensor<2> {
    input.grad_remove(gradients).unwrap_or_else(|| unreachable!("the input of a block without a gradient"))
}

/// The backward pass from tensors with known gradients, and from an additional loss.
fn backward_from(outputs: Vec<(Tensor<2>, Tensor<2>)>, loss: Option<Tensor<1>>) -> Gradients {
    // The derivative of this sum with respect to each output is exactly its gradient.
    let sums = outputs.into_iter().map(|(output, gradient)| (output * Tensor::from_inner(gradient)).sum());
    let sum = sums.chain(loss).reduce(|sum, other| sum + other);
    sum.unwrap_or_else(|| unreachable!("a block has an output")).backward()
}
