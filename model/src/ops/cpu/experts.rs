//! Routed experts, in place. The rows of a step are grouped by expert, so that each expert's matrices are read once, and threads
//! divide the panels of all experts together.

use std::ops::Range;

use burn::tensor::Tensor;

use super::{
    for_each_isa,
    math::{exp, sum},
    matmul::{Group, Store, grouped_linear_into, linear_into},
    mlp::{LinearMemory, mlp_into, product, resize},
    packed_matrix::Panels,
    row_updates::{RowUpdate, add_row_updates},
    rowwise::{activate_rows, clamped_swiglu_into, for_rows, gated_into},
    tensors::{Values, values},
};
use crate::{
    config::{ExpertGroups, RouterScores},
    ops::types::{Mlp, RoutedExperts, Routing, SharedExpert},
};

/// Added to the sum of weights before dividing by it, as DeepSeek does, for rows whose scores are all 0.
pub(in crate::ops) const LEAST_SUM: f32 = 1e-20;

/// A small matrix that decides, in memory.
pub(in crate::ops) struct RouterMemory<'a> {
    weight: &'a Panels,
    bias: Option<Values>,
    selection_bias: Option<Values>,
    expert_scale: Option<Values>,
}

impl<'a> RouterMemory<'a> {
    pub(in crate::ops) fn new(
        weight: &'a Panels,
        bias: Option<Tensor<1>>,
        selection_bias: Option<Tensor<1>>,
        expert_scale: Option<Tensor<1>>,
    ) -> Self {
        let [bias, selection_bias, expert_scale] =
            [bias, selection_bias, expert_scale].map(|vector| vector.map(values));
        Self { weight, bias, selection_bias, expert_scale }
    }

    fn multiply(&self, x: &[f32], output: &mut Vec<f32>) {
        let [d_out, d_in] = self.weight.dims();
        resize(output, x.len() / d_in * d_out);
        linear_into(x, self.weight, self.bias.as_ref().map(Values::as_slice), Store::Set, output);
    }
}

/// Experts whose parameters are in memory.
pub(in crate::ops) type Experts<'a> = RoutedExperts<LinearMemory<'a>, RouterMemory<'a>>;

/// Buffers that the blocks of a pass share.
#[derive(Debug, Default)]
pub(in crate::ops) struct ExpertScratch {
    scores: Vec<f32>,
    weights: Vec<f32>,
    /// Rows of the input, expert by expert.
    gathered: Vec<f32>,
    wide: Vec<f32>,
    inner: Vec<f32>,
    /// Output of each choice, expert by expert.
    outputs: Vec<f32>,
    shared: Vec<f32>,
    gates: Vec<f32>,
    /// Inputs of the chosen experts and their weighted sum, if experts work in a latent dimension.
    latent: Vec<f32>,
    summed: Vec<f32>,
}

/// Writes the combined output of the experts for the rows of `x [n_rows, d_model]` to `output`. The router reads the
/// rows in the form `router_input`. All three have the same shape.
pub(in crate::ops) fn experts(
    [router_input, x]: [&[f32]; 2],
    experts: &Experts<'_>,
    scratch: &mut ExpertScratch,
    output: &mut Vec<f32>,
) {
    let RoutedExperts { router, routing, experts, latent: projections, shared } = experts;
    let [n_experts, d_model] = router.weight.dims();
    let n_active = routing.n_active;
    let ExpertScratch { scores, weights, gathered, wide, inner, outputs, shared: of_shared, gates, latent, summed } =
        scratch;
    router.multiply(router_input, scores);
    for_rows(scores, n_experts, |_, row| score(row, routing.scores));
    let chosen = choose(scores, router.selection_bias.as_ref().map(Values::as_slice), n_experts, routing);
    weigh(scores, n_experts, &chosen, routing, weights);
    if let Some(scale) = &router.expert_scale {
        let scale = scale.as_slice();
        weights.iter_mut().zip(&chosen).for_each(|(weight, expert)| *weight *= scale[*expert]);
    }

    let order = ByExpert::new(&chosen, n_experts);
    let (input, width) = match projections {
        Some([down, _]) => {
            product(x, down, latent);
            (latent.as_slice(), down.weight.dims()[0])
        }
        None => (x, d_model),
    };
    resize(gathered, chosen.len() * width);
    for_rows(gathered, width, |place, row| {
        let from = order.choices[place] / n_active;
        row.copy_from_slice(&input[from * width..][..width]);
    });
    hidden(gathered, experts, &order, n_active, wide, inner);
    let down = matrices(experts, &order, |expert| &expert.down);
    resize(outputs, chosen.len() * width);
    products(inner, &down, &order, n_active, outputs);
    let sum = if projections.is_some() { &mut *summed } else { &mut *output };
    resize(sum, x.len() / d_model * width);
    for_rows(sum, width, |row, sum| {
        sum.fill(0.0);
        for choice in row * n_active..(row + 1) * n_active {
            let of_expert = &outputs[order.places[choice] * width..][..width];
            add_weighted(sum, of_expert, weights[choice]);
        }
    });
    if let Some([_, up]) = projections {
        product(summed, up, output);
    }
    let Some(SharedExpert { mlp, gate }) = shared else { return };
    mlp_into(x, mlp, wide, inner);
    product(inner, &mlp.down, of_shared);
    if let Some(gate) = gate {
        gate.multiply(x, gates);
        score(gates, RouterScores::Sigmoid);
    }
    for_rows(output, d_model, |row, output| {
        let weight = if gate.is_some() { gates[row] } else { 1.0 };
        add_weighted(output, &of_shared[row * d_model..][..d_model], weight);
    });
}

/// Adds `values` times `weight`.
fn add_weighted(output: &mut [f32], values: &[f32], weight: f32) {
    output.iter_mut().zip(values).for_each(|(output, value)| *output += value * weight);
}

for_each_isa!(score(row: &mut [f32], scores: RouterScores) = score_body);

/// A row of the router's outputs becomes scores.
#[inline(always)]
fn score_body<const FUSED: bool>(row: &mut [f32], scores: RouterScores) {
    match scores {
        RouterScores::Sigmoid => row.iter_mut().for_each(|x| *x = 1.0 / (1.0 + exp::<FUSED>(-*x))),
        RouterScores::Softmax => {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter_mut().for_each(|x| *x = exp::<FUSED>(*x - largest));
            let total = sum(row, |value| value);
            row.iter_mut().for_each(|x| *x /= total);
        }
    }
}

/// The experts of each row of `scores [n_rows, n_experts]`, in ascending order: `[n_rows, n_active]`. Of equal scores, the
/// first wins.
pub(crate) fn choose(
    scores: &[f32],
    selection_bias: Option<&[f32]>,
    n_experts: usize,
    routing: &Routing,
) -> Vec<usize> {
    let mut chosen = Vec::with_capacity(scores.len() / n_experts * routing.n_active);
    let mut candidates: Vec<(f32, usize)> = Vec::with_capacity(n_experts);
    for row in scores.chunks_exact(n_experts) {
        let biased = |expert: usize| row[expert] + selection_bias.map_or(0.0, |bias| bias[expert]);
        candidates.clear();
        match routing.groups {
            None => candidates.extend((0..n_experts).map(|expert| (biased(expert), expert))),
            Some(ExpertGroups { n_groups, n_active, n_best }) => {
                let size = n_experts / n_groups;
                let worth = |group: usize| {
                    let mut of_group: Vec<_> = (0..size).map(|n| (biased(group * size + n), n)).collect();
                    keep_best(&mut of_group, n_best);
                    of_group.iter().map(|(score, _)| score).sum::<f32>()
                };
                let mut groups: Vec<_> = (0..n_groups).map(|group| (worth(group), group)).collect();
                keep_best(&mut groups, n_active);
                let experts = groups.iter().flat_map(|(_, group)| group * size..(group + 1) * size);
                candidates.extend(experts.map(|expert| (biased(expert), expert)));
            }
        }
        keep_best(&mut candidates, routing.n_active);
        candidates.sort_unstable_by_key(|(_, expert)| *expert);
        chosen.extend(candidates.iter().map(|(_, expert)| *expert));
    }
    chosen
}

/// Keeps the `n` candidates with the largest scores, best first.
fn keep_best(candidates: &mut Vec<(f32, usize)>, n: usize) {
    let better = |one: &(f32, usize), other: &(f32, usize)| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1));
    if n < candidates.len() {
        candidates.select_nth_unstable_by(n, better);
        candidates.truncate(n);
    }
    candidates.sort_unstable_by(better);
}

/// Writes the weights of the chosen experts, `[n_rows, n_active]`.
fn weigh(scores: &[f32], n_experts: usize, chosen: &[usize], routing: &Routing, weights: &mut Vec<f32>) {
    let n_active = routing.n_active;
    weights.clear();
    weights.extend(chosen.iter().enumerate().map(|(choice, expert)| scores[choice / n_active * n_experts + expert]));
    for weights in weights.chunks_exact_mut(n_active) {
        let total = if routing.normalized { weights.iter().sum::<f32>() + LEAST_SUM } else { 1.0 };
        weights.iter_mut().for_each(|weight| *weight = *weight / total * routing.weight_multiplier as f32);
    }
}

/// The choices of all rows, grouped by expert. Choice `n` belongs to row `n / n_active`.
struct ByExpert {
    /// Choices in this order; within an expert they ascend.
    choices: Vec<usize>,
    /// The place of each choice in that order.
    places: Vec<usize>,
    /// Where each expert's choices begin, and the end of the last.
    starts: Vec<usize>,
}

impl ByExpert {
    fn new(chosen: &[usize], n_experts: usize) -> Self {
        let mut starts = vec![0; n_experts + 1];
        chosen.iter().for_each(|expert| starts[expert + 1] += 1);
        (0..n_experts).for_each(|expert| starts[expert + 1] += starts[expert]);
        let mut next = starts.clone();
        let (mut choices, mut places) = (vec![0; chosen.len()], vec![0; chosen.len()]);
        for (choice, &expert) in chosen.iter().enumerate() {
            places[choice] = next[expert];
            choices[next[expert]] = choice;
            next[expert] += 1;
        }
        Self { choices, places, starts }
    }

    /// The places of an expert's choices.
    fn places_of(&self, expert: usize) -> Range<usize> {
        self.starts[expert]..self.starts[expert + 1]
    }
}

/// A matrix of an expert, and its range of places in [`ByExpert`]'s order.
type Of<'m, 'a> = (&'m LinearMemory<'a>, Range<usize>);

/// One matrix of each expert that has rows.
fn matrices<'m, 'a>(
    experts: &'m [Mlp<LinearMemory<'a>>],
    order: &ByExpert,
    matrix: impl Fn(&'m Mlp<LinearMemory<'a>>) -> &'m LinearMemory<'a>,
) -> Vec<Of<'m, 'a>> {
    let all = experts.iter().enumerate().map(|(number, expert)| (matrix(expert), order.places_of(number)));
    all.filter(|(_, places)| !places.is_empty()).collect()
}

/// Writes the experts' activations before their down projections to `inner`, `[n_choices, d_ff]`.
fn hidden(
    gathered: &[f32],
    experts: &[Mlp<LinearMemory<'_>>],
    order: &ByExpert,
    n_active: usize,
    wide: &mut Vec<f32>,
    inner: &mut Vec<f32>,
) {
    let up = matrices(experts, order, |expert| &expert.up);
    let Some((Mlp { activation, gated, clamped, .. }, (first, _))) = experts.first().zip(up.first()) else { return };
    let ([d_up, _], n_choices) = (first.weight.dims(), order.choices.len());
    if !gated {
        resize(inner, n_choices * d_up);
        products(gathered, &up, order, n_active, inner);
        return activate_rows(inner, d_up, *activation);
    }
    let d_ff = d_up / 2;
    resize(inner, n_choices * d_ff);
    if clamped.is_none() && up.iter().all(|(linear, _)| linear.can_gate()) {
        return grouped_linear_into(gathered, &groups(&up), Store::Gated(*activation), inner);
    }
    resize(wide, n_choices * d_up);
    products(gathered, &up, order, n_active, wide);
    match clamped {
        Some(clamped) => clamped_swiglu_into(wide, d_ff, *clamped, inner),
        None => gated_into(wide, d_ff, *activation, inner),
    }
}

fn groups<'m>(matrices: &[Of<'m, '_>]) -> Vec<Group<'m>> {
    let group = |(linear, rows): &Of<'m, '_>| Group { rows: rows.clone(), weight: linear.weight, bias: linear.bias() };
    matrices.iter().map(group).collect()
}

/// Each expert's rows of `x` times its matrix, with the updates that adapters make to some rows.
fn products(x: &[f32], matrices: &[Of<'_, '_>], order: &ByExpert, n_active: usize, output: &mut [f32]) {
    grouped_linear_into(x, &groups(matrices), Store::Set, output);
    let Some((first, _)) = matrices.first() else { return };
    let rows_of = |updated: &[usize], places: &Range<usize>| -> Vec<usize> {
        let is_updated = |place: &usize| updated.binary_search(&(order.choices[*place] / n_active)).is_ok();
        places.clone().filter(is_updated).collect()
    };
    let updates = matrices
        .iter()
        .flat_map(|(linear, places)| linear.updates.iter().map(|update| (rows_of(update.rows, places), update.matrix)));
    let updates: Vec<_> = updates.collect();
    if !updates.is_empty() {
        let updates: Vec<_> = updates.iter().map(|(rows, matrix)| RowUpdate { rows, matrix }).collect();
        add_row_updates(output, first.weight.dims()[0], x, &updates);
    }
}
