//! The optimizer against torch (`golden/adamw.py`), and clipping against a computation by hand.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor, TensorData},
};
use hearth_training::{
    config::OptimSettings,
    run::{
        optim::{Gradients, Optimizer},
        schedule::Rates,
        tree_sum::Sum,
    },
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    settings: GoldenSettings,
    shapes: BTreeMap<String, Vec<usize>>,
    start: Values,
    steps: Vec<GoldenStep>,
}

#[derive(Deserialize)]
struct GoldenSettings {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    clip: f64,
}

#[derive(Deserialize)]
struct GoldenStep {
    lr: f64,
    gradients: Values,
    norm: f32,
    after: Values,
}

/// Flat values by parameter.
type Values = BTreeMap<String, Vec<f32>>;

/// Two matrices and a vector.
#[derive(Module, Debug)]
struct Three {
    first: Param<Tensor<2>>,
    second: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

impl Three {
    fn new(values: &Values, shapes: &BTreeMap<String, Vec<usize>>, device: &Device) -> Three {
        let data = |name: &str| TensorData::new(values[name].clone(), shapes[name].as_slice());
        Three {
            first: Param::from_data(data("first"), device),
            second: Param::from_data(data("second"), device),
            bias: Param::from_data(data("bias"), device),
        }
    }

    /// The gradients that `values` says: those of the sum of each parameter times its gradient.
    fn gradients(&self, values: &Values, device: &Device) -> Gradients {
        fn term<const D: usize>(param: &Param<Tensor<D>>, values: &[f32], device: &Device) -> Tensor<1> {
            let shape = param.val().shape();
            let gradient = Tensor::from_data(TensorData::new(values.to_vec(), shape), device);
            (param.val() * gradient).sum()
        }
        let loss = term(&self.first, &values["first"], device)
            + term(&self.second, &values["second"], device)
            + term(&self.bias, &values["bias"], device);
        Gradients::from_backward(self, loss.backward())
    }

    fn values(&self) -> Values {
        let matrix = |param: &Param<Tensor<2>>| param.val().into_data().try_to_vec::<f32>().unwrap();
        let bias = self.bias.val().into_data().try_to_vec::<f32>().unwrap();
        [("first", matrix(&self.first)), ("second", matrix(&self.second)), ("bias", bias)]
            .map(|(name, values)| (name.to_owned(), values))
            .into()
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden/adamw.json")).unwrap()
}

fn assert_close(found: f32, expected: f32, what: &str) {
    assert!((found - expected).abs() <= 2e-6 * expected.abs().max(1.0), "{what}: {found}, torch has {expected}");
}

#[test]
fn adamw_and_gradient_clipping_match_torch_step_by_step() {
    let golden = golden();
    let device = Device::flex().autodiff();
    let GoldenSettings { beta1, beta2, eps, weight_decay, clip } = golden.settings;
    // The learning rate is 1, so the factor of each step is the golden rate.
    let settings = OptimSettings { lr: 1.0, beta1, beta2, eps, weight_decay, clip, ..OptimSettings::default() };
    let mut optimizer = Optimizer::new(settings, BTreeMap::new());
    let mut module = Three::new(&golden.start, &golden.shapes, &device);
    for (number, step) in golden.steps.iter().enumerate() {
        let mut gradients = module.gradients(&step.gradients, &device);
        let norm = gradients.clip(clip).unwrap();
        assert_close(norm.into_scalar::<f32>(), step.norm, &format!("norm of step {number}"));
        module = optimizer.step(module, gradients, Rates { lr: step.lr, decay: 1.0, momentum: 0.0 });
        let values = module.values();
        assert!(values.keys().eq(step.after.keys()), "other parameters after step {number}");
        for (name, values) in values {
            assert_eq!(values.len(), step.after[&name].len(), "{name} after step {number}");
            for (index, (&found, &expected)) in values.iter().zip(&step.after[&name]).enumerate() {
                assert_close(found, expected, &format!("{name}[{index}] after step {number}"));
            }
        }
    }
}

#[test]
fn gradient_clipping_uses_the_norm_of_all_tensors_together() {
    let golden = golden();
    let device = Device::flex().autodiff();
    let module = Three::new(&golden.start, &golden.shapes, &device);
    // 3 and 4 in two tensors, zeros elsewhere: a norm of 5 together, where none alone is above 4.
    let mut values: Values =
        golden.start.iter().map(|(name, values)| (name.clone(), vec![0.0; values.len()])).collect();
    values.get_mut("first").unwrap()[2] = 3.0;
    values.get_mut("bias").unwrap()[1] = -4.0;
    let clipped = |max_norm: f64| {
        let mut gradients = module.gradients(&values, &device);
        let norm = gradients.clip(max_norm).unwrap().into_scalar::<f32>();
        let at = |path: &str, index: usize| {
            gradients.get(path).unwrap().clone().into_data().try_to_vec::<f32>().unwrap()[index]
        };
        (norm, at("first", 2), at("bias", 1), at("second", 0))
    };
    let (norm, first, bias, second) = clipped(4.5);
    assert_close(norm, 5.0, "norm");
    assert_close(first, 2.7, "3 * 4.5 / 5");
    assert_close(bias, -3.6, "-4 * 4.5 / 5");
    assert_close(second, 0.0, "zero");
    assert_eq!(clipped(6.0), (5.0, 3.0, -4.0, 0.0), "small gradients stay as they are");
    assert_eq!(clipped(0.0), (5.0, 3.0, -4.0, 0.0), "0 turns clipping off");
}

#[test]
fn gradients_of_two_backward_passes_are_summed() {
    let golden = golden();
    let device = Device::flex().autodiff();
    let module = Three::new(&golden.start, &golden.shapes, &device);
    let [first, second] = [0, 1].map(|step: usize| module.gradients(&golden.steps[step].gradients, &device));
    let sum = Gradients::sum(first, second);
    assert_eq!(sum.paths().collect::<Vec<_>>(), ["bias", "first", "second"]);
    for path in ["bias", "first", "second"] {
        let found = sum.get(path).unwrap().clone().into_data().try_to_vec::<f32>().unwrap();
        let parts = golden.steps[0].gradients[path].iter().zip(&golden.steps[1].gradients[path]);
        for (found, (first, second)) in found.iter().zip(parts) {
            assert_close(*found, first + second, path);
        }
    }
}
