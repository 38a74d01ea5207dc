//! Routed experts: each row goes through the few that its router chooses.

#[cfg(test)]
mod tests;

use burn::tensor::{Int, Tensor, activation};

use super::{
    LinearParts, Mlp, Placement, RoutedExperts, RowUpdate, SharedExpert, Weight, cpu, embedding::take_rows,
    linear::linear, linear_with_lora, normed_mlp, records_gradients, weight::WeightForm,
};
use crate::config::RouterScores;

/// A small matrix that decides.
#[derive(Clone, Debug)]
pub(crate) struct RouterParts<'a> {
    /// `[n_experts, d_model]`.
    pub(crate) weight: &'a Weight,
    /// `[n_experts]`.
    pub(crate) bias: Option<Tensor<1>>,
    /// `[n_experts]`, added to scores for the choice alone.
    pub(crate) selection_bias: Option<Tensor<1>>,
    /// `[n_experts]`, multiplies the weights of the chosen experts.
    pub(crate) expert_scale: Option<Tensor<1>>,
}

/// Experts whose parameters are tensors.
pub(crate) type Experts<'a> = RoutedExperts<LinearParts<'a>, RouterParts<'a>>;

/// The router's choice for some rows.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    /// Its outputs, `[n_rows, n_experts]`.
    pub(crate) logits: Tensor<2>,
    /// The experts that it chooses for each row, in ascending order: `[n_rows, n_active]`, flat.
    pub(crate) chosen: Vec<usize>,
    /// Weight of each chosen expert, `[n_rows, n_active]`.
    pub(crate) weights: Tensor<2>,
}

/// The weighted sum of the chosen experts' outputs for each row of `x [n_rows, d_model]`, plus the shared expert's
/// output if there is one: `[n_rows, d_model]`. Appends the router's choice to `routes` if it is given.
///
/// A row's experts are added in ascending order, so its bits do not depend on other rows.
pub(crate) fn experts(x: Tensor<2>, experts: &Experts<'_>, routes: &mut Option<Vec<Routes>>) -> Tensor<2> {
    experts_routed_by(x.clone(), x, experts, routes)
}

/// As [`experts`], but the router reads `router_input [n_rows, d_model]`.
pub(crate) fn experts_routed_by(
    router_input: Tensor<2>,
    x: Tensor<2>,
    experts: &Experts<'_>,
    routes: &mut Option<Vec<Routes>>,
) -> Tensor<2> {
    match memory(experts) {
        Some(experts) if Placement::of(&x.device()) == Placement::Cpu && routes.is_none() => {
            let dims = x.dims();
            let mut output = Vec::new();
            let inputs = [router_input, x].map(cpu::values);
            let inputs = inputs.each_ref().map(|input| input.as_slice());
            cpu::experts(inputs, &experts, &mut cpu::ExpertScratch::default(), &mut output);
            cpu::tensor(output, dims)
        }
        _ => experts_reference([router_input, x], experts, routes),
    }
}

/// The experts in CPU memory, if they are there and no adapter updates all rows.
fn memory<'a>(experts: &Experts<'a>) -> Option<cpu::Experts<'a>> {
    let are_packed = experts.linears().all(has_memory) && experts.routers().all(RouterParts::has_memory);
    are_packed.then(|| experts.map(&linear_memory, &RouterParts::memory))
}

/// Whether [`linear_memory`] works.
pub(super) fn has_memory(linear: &LinearParts<'_>) -> bool {
    matches!(linear.weight.form(), WeightForm::Packed(_)) && linear.lora.is_none()
}

/// A packed matrix as the CPU's in-place bodies take it.
pub(super) fn linear_memory<'a>(linear: &LinearParts<'a>) -> cpu::LinearMemory<'a> {
    let LinearParts { weight, bias, by_row, .. } = linear;
    let weight: &'a Weight = weight;
    let WeightForm::Packed(panels) = weight.form() else { unreachable!("the caller checked that it is packed") };
    cpu::LinearMemory::new(panels, bias.clone(), by_row.iter().map(|update| update.packed()).collect())
}

impl<'a> RouterParts<'a> {
    pub(super) fn has_memory(&self) -> bool {
        matches!(self.weight.form(), WeightForm::Packed(_))
    }

    pub(super) fn memory(&self) -> cpu::RouterMemory<'a> {
        let weight: &'a Weight = self.weight;
        let WeightForm::Packed(panels) = weight.form() else { unreachable!("the caller checked that it is packed") };
        cpu::RouterMemory::new(panels, self.bias.clone(), self.selection_bias.clone(), self.expert_scale.clone())
    }

    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        linear(x, self.weight, self.bias.clone())
    }
}

/// [`experts`] by operations on the rows of one expert after the other; differentiable, the router too.
pub(super) fn experts_reference(
    [router_input, x]: [Tensor<2>; 2],
    experts: &Experts<'_>,
    routes: &mut Option<Vec<Routes>>,
) -> Tensor<2> {
    let RoutedExperts { router, routing, experts, latent, shared } = experts;
    let ([n_rows, _], n_active) = (x.dims(), routing.n_active);
    let device = x.device();
    let input = match latent {
        Some([down, _]) => linear_with_lora(x.clone(), down.clone()),
        None => x.clone(),
    };
    let [_, width] = input.dims();
    let logits = router.logits(router_input);
    let scores = match routing.scores {
        RouterScores::Softmax => activation::softmax(logits.clone(), 1),
        RouterScores::Sigmoid => activation::sigmoid(logits.clone()),
    };
    let on_host = |tensor: Tensor<2>| if records_gradients(&device) { tensor.inner() } else { tensor };
    let bias = router.selection_bias.clone().map(|bias| on_host(bias.unsqueeze()));
    let chosen = {
        let (scores, bias) = (cpu::values(on_host(scores.clone())), bias.map(cpu::values));
        cpu::choose(scores.as_slice(), bias.as_ref().map(|bias| bias.as_slice()), experts.len(), routing)
    };
    let ids: Vec<i32> = chosen.iter().map(|expert| *expert as i32).collect();
    let ids = Tensor::<1, Int>::from_data(ids.as_slice(), &device);
    let mut weights = scores.gather(1, ids.clone().reshape([n_rows, n_active]));
    if routing.normalized {
        weights = weights.clone() / (weights.sum_dim(1) + cpu::LEAST_SUM);
    }
    let weights = (weights * routing.weight_multiplier).reshape([n_rows * n_active, 1]);
    let weights = match router.expert_scale.clone() {
        Some(scale) => weights * scale.select(0, ids).reshape([n_rows * n_active, 1]),
        None => weights,
    };
    if let Some(kept) = routes {
        let weights = weights.clone().reshape([n_rows, n_active]);
        kept.push(Routes { logits, chosen: chosen.clone(), weights });
    }

    // Where each row's choices are among the outputs, which go expert by expert.
    let (mut places, mut outputs) = (vec![0; n_rows * n_active], Vec::new());
    let mut n_placed = 0;
    for (number, expert) in experts.iter().enumerate() {
        let choices: Vec<usize> = (0..chosen.len()).filter(|&choice| chosen[choice] == number).collect();
        if choices.is_empty() {
            continue;
        }
        let rows: Vec<usize> = choices.iter().map(|choice| choice / n_active).collect();
        let of_expert = through(take_rows(input.clone(), &rows), expert, &rows);
        outputs.push(of_expert * take_rows(weights.clone(), &choices));
        choices.into_iter().for_each(|choice| {
            places[choice] = n_placed;
            n_placed += 1;
        });
    }
    let routed = take_rows(Tensor::cat(outputs, 0), &places).reshape([n_rows, n_active, width]);
    let routed = routed.sum_dim(1).reshape([n_rows, width]);
    let routed = match latent {
        Some([_, up]) => linear_with_lora(routed, up.clone()),
        None => routed,
    };
    let Some(SharedExpert { mlp, gate }) = shared else { return routed };
    let all: Vec<usize> = (0..n_rows).collect();
    let output = through(x.clone(), mlp, &all);
    routed
        + match gate {
            Some(gate) => output * activation::sigmoid(gate.logits(x)),
            None => output,
        }
}

/// Output of `mlp` for `x`, the rows `rows` of the step.
fn through(x: Tensor<2>, mlp: &Mlp<LinearParts<'_>>, rows: &[usize]) -> Tensor<2> {
    let [of_up, of_down] = [&mlp.up, &mlp.down].map(|linear| moved(linear, rows));
    let mlp =
        Mlp { up: of_rows(&mlp.up, &of_up), down: of_rows(&mlp.down, &of_down), xielu: mlp.xielu.clone(), ..*mlp };
    linear_with_lora(normed_mlp(x, None, &mlp), mlp.down)
}

/// The rows of each update of `linear`, as places in `rows`.
fn moved(linear: &LinearParts<'_>, rows: &[usize]) -> Vec<Vec<usize>> {
    linear.by_row.iter().map(|update| places_of(update.rows, rows)).collect()
}

/// The same matrix with updates of other rows.
fn of_rows<'a>(linear: &LinearParts<'a>, updated: &'a [Vec<usize>]) -> LinearParts<'a> {
    let moved = linear.by_row.iter().zip(updated);
    let by_row = moved.map(|(update, rows)| RowUpdate { rows, matrix: update.matrix }).collect();
    LinearParts { by_row, ..linear.clone() }
}

/// Positions in `rows` of the rows that are also in `updated`; both lists ascend.
fn places_of(updated: &[usize], rows: &[usize]) -> Vec<usize> {
    updated.iter().filter_map(|row| rows.binary_search(row).ok()).collect()
}
