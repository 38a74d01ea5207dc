#![expect(clippy::unwrap_used, reason = "tests")]

use burn::tensor::{Device, Tensor, TensorData};

use super::*;
use crate::{
    config::{Activation, ExpertGroups},
    ops::{
        Dtype, LoraMatrix, LoraPair, LoraShape, Routing,
        tests::{assert_within, random, values},
    },
};

const D_MODEL: usize = 40;
const TOLERANCE: f32 = 1e-5;

/// Matrices of experts and routers.
struct Weights {
    up: Vec<Weight>,
    down: Vec<Weight>,
    router: Weight,
    scale: Tensor<1>,
    shared: [Weight; 2],
    gate: Weight,
}

fn weight(d_out: usize, d_in: usize, dtype: Dtype) -> Weight {
    let data: TensorData = random([d_out, d_in], 0.5).into_data();
    Weight::new(data, dtype, &Device::flex()).unwrap()
}

impl Weights {
    fn new(n_experts: usize, d_ff: usize, dtype: Dtype) -> Self {
        let up = |d_ff| weight(2 * d_ff, D_MODEL, dtype);
        let down = |d_ff| weight(D_MODEL, d_ff, dtype);
        Self {
            up: (0..n_experts).map(|_| up(d_ff)).collect(),
            down: (0..n_experts).map(|_| down(d_ff)).collect(),
            router: weight(n_experts, D_MODEL, Dtype::F32),
            scale: random([1, n_experts], 0.5).squeeze(),
            shared: [up(24), down(24)],
            gate: weight(1, D_MODEL, Dtype::F32),
        }
    }

    /// With the updates `by_row` of expert 0's matrices.
    fn experts<'a>(&'a self, routing: Routing, by_row: [&[RowUpdate<'a>]; 2]) -> Experts<'a> {
        let linear = |weight: &'a Weight, by_row: &[RowUpdate<'a>]| LinearParts {
            weight,
            bias: None,
            lora: None,
            by_row: by_row.to_vec(),
        };
        let mlp = |up, down, [of_up, of_down]: [&[RowUpdate<'a>]; 2]| Mlp {
            up: linear(up, of_up),
            down: linear(down, of_down),
            activation: Activation::Silu,
            xielu: None,
            gated: true,
            clamped: None,
        };
        let router =
            |weight: &'a Weight, expert_scale| RouterParts { weight, bias: None, selection_bias: None, expert_scale };
        let pairs = self.up.iter().zip(&self.down).enumerate();
        RoutedExperts {
            router: router(&self.router, Some(self.scale.clone())),
            routing,
            experts: pairs.map(|(n, (up, down))| mlp(up, down, if n == 0 { by_row } else { [&[], &[]] })).collect(),
            latent: None,
            shared: Some(SharedExpert {
                mlp: mlp(&self.shared[0], &self.shared[1], [&[], &[]]),
                gate: Some(router(&self.gate, None)),
            }),
        }
    }
}

fn routings() -> Vec<Routing> {
    let plain =
        Routing { n_active: 2, scores: RouterScores::Softmax, normalized: true, weight_multiplier: 1.0, groups: None };
    let groups = Some(ExpertGroups { n_groups: 3, n_active: 2, n_best: 2 });
    vec![
        plain,
        Routing { n_active: 6, normalized: false, ..plain },
        Routing { n_active: 3, scores: RouterScores::Sigmoid, weight_multiplier: 2.5, groups, ..plain },
    ]
}

#[test]
fn experts_in_place_match_the_reference() {
    // Widths of whole panels and of parts, so with gates stored right away and not.
    for d_ff in [12, 64] {
        for dtype in [Dtype::F32, Dtype::Q8] {
            let weights = Weights::new(6, d_ff, dtype);
            for routing in routings() {
                for n_rows in [1, 2, 7, 40] {
                    let x = random([n_rows, D_MODEL], 1.0);
                    let parts = weights.experts(routing, [&[], &[]]);
                    let expected = experts_reference([x.clone(), x.clone()], &parts, &mut None);
                    assert_within(TOLERANCE, experts(x, &parts, &mut None), expected);
                }
            }
        }
    }
}

/// A row's bits do not depend on which rows share its experts.
#[test]
fn expert_output_of_a_row_is_bit_identical_in_any_company() {
    for d_ff in [12, 64] {
        let weights = Weights::new(6, d_ff, Dtype::Q8);
        for routing in routings() {
            let parts = weights.experts(routing, [&[], &[]]);
            let run = |x: Tensor<2>| values(experts(x, &parts, &mut None));
            let x = random([33, D_MODEL], 1.0);
            let together = run(x.clone());
            for row in 0..33 {
                let alone = run(x.clone().slice([row..row + 1, 0..D_MODEL]));
                assert_eq!(alone, together[row * D_MODEL..(row + 1) * D_MODEL]);
            }
            assert_eq!(run(x.slice([0..20, 0..D_MODEL])), together[..20 * D_MODEL]);
        }
    }
}

#[test]
fn adapters_update_the_rows_of_their_sequences_within_experts() {
    let (d_ff, n_rows) = (64, 20);
    let weights = Weights::new(6, d_ff, Dtype::F32);
    let lora = |d_out: usize, d_in: usize| {
        let shape = LoraShape { d_in, pairs: vec![LoraPair { rows: 0..d_out, rank: 3, scale: 0.5 }] };
        let values: Vec<f32> = values(random([1, shape.n_values()], 0.5));
        LoraMatrix::new(&values, &shape.into(), &Device::flex())
    };
    let (of_up, of_down) = (lora(2 * d_ff, D_MODEL), lora(D_MODEL, d_ff));
    let rows: Vec<usize> = vec![3, 4, 5, 11, 17];
    let updates = [&of_up, &of_down].map(|matrix| [RowUpdate { rows: &rows, matrix }]);
    let x = random([n_rows, D_MODEL], 1.0);
    for routing in routings() {
        let updated = weights.experts(routing, [&updates[0], &updates[1]]);
        let found = experts(x.clone(), &updated, &mut None);
        assert_within(TOLERANCE, found.clone(), experts_reference([x.clone(), x.clone()], &updated, &mut None));
        let plain = values(experts(x.clone(), &weights.experts(routing, [&[], &[]]), &mut None));
        let found = values(found);
        let differs = |row: usize| found[row * D_MODEL..][..D_MODEL] != plain[row * D_MODEL..][..D_MODEL];
        assert!((0..n_rows).filter(|row| !rows.contains(row)).all(|row| !differs(row)));
        // With many experts, perhaps no row chose the one that is updated.
        assert!(routing.n_active < 6 || rows.iter().all(|row| differs(*row)));
    }
}

#[test]
fn choice_of_experts_takes_groups_and_the_selection_bias_into_account() {
    let routing = |groups| Routing { groups, ..routings()[0] };
    let scores = [0.1, 0.4, 0.3, 0.35, 0.0, 0.9];
    assert_eq!(cpu::choose(&scores, None, 6, &routing(None)), [1, 5]);
    // Groups 0-1, 2-3 and 4-5 are worth 0.5, 0.65 and 0.9.
    let groups = |n_active, n_best| Some(ExpertGroups { n_groups: 3, n_active, n_best });
    assert_eq!(cpu::choose(&scores, None, 6, &routing(groups(1, 2))), [4, 5]);
    assert_eq!(cpu::choose(&scores, None, 6, &routing(groups(2, 2))), [3, 5]);
    assert_eq!(cpu::choose(&scores, None, 6, &routing(groups(2, 1))), [1, 5]);
    let bias = [0.0, 0.0, 0.0, 0.0, 1.0, -1.0];
    assert_eq!(cpu::choose(&scores, Some(&bias), 6, &routing(None)), [1, 4]);
    // Of equal scores, the first.
    assert_eq!(cpu::choose(&[0.5; 6], None, 6, &routing(None)), [0, 1]);
}
