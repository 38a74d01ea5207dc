//! The losses of routers against `transformers`: the load-balancing loss of its mixtures, the z-loss of its Switch Transformers, and
//! the gradients of both.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;

use burn::tensor::Device;
use hearth_model::{
    gpt::{RouterLossWeights, attention::AttentionContext},
    weights::model_dir,
};
use safetensors::SafeTensors;

use crate::golden::{
    Oracle, assert_gradients, f32s, golden, gradients_by_hf_name, load, stored_gradients, without_dropout,
};

/// A softmax over all experts, one without normalised weights in some layers, and one over the chosen with biases.
const CASES: [&str; 3] = ["mixtral", "qwen2-moe", "gpt-oss"];
const WEIGHTS: RouterLossWeights = RouterLossWeights { balance: 0.5, z: 0.3 };

#[test]
fn router_losses_and_their_gradients_match_transformers() {
    for case in CASES {
        let bytes = fs::read(golden(case).join("router_losses.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let number = |name: &str| f32s(file.tensor(name).unwrap().data())[0];
        let counted: Vec<bool> = f32s(file.tensor("counted").unwrap().data()).iter().map(|flag| *flag == 1.0).collect();
        let (device, oracle) = (Device::flex().autodiff(), Oracle::read(case));
        let gpt = without_dropout(&load(case, &Device::flex()), &device);
        let (_, logits) =
            gpt.forward_routed(oracle.ids(&device), AttentionContext::dense(oracle.batch, oracle.seq_len));
        for (counted, suffix) in [(None, ""), (Some(&counted[..]), "_counted")] {
            let losses = gpt.router_losses(&logits, counted, WEIGHTS).unwrap().unwrap();
            let is_close = |found: f32, expected: f32| (found / expected - 1.0).abs() < 1e-4;
            let expected = number(&format!("balance{suffix}"));
            assert!(is_close(losses.balance as f32, expected), "{case}: {} is not {expected}", losses.balance);
            let z_alone = RouterLossWeights { balance: 0.0, z: 1.0 };
            let z_alone = gpt.router_losses(&logits, counted, z_alone).unwrap().unwrap();
            let z = z_alone.objective(logits.clone()).unwrap().into_scalar::<f32>();
            let expected = number(&format!("z{suffix}"));
            assert!(is_close(z, expected), "{case}: {z} is not {expected}");
        }
        let losses = gpt.router_losses(&logits, Some(&counted), WEIGHTS).unwrap().unwrap();
        let objective = losses.objective(logits).unwrap();
        let found = gradients_by_hf_name(case, &gpt, (objective, true));
        assert_gradients(case, &found, &stored_gradients(&file));
    }
}

#[test]
fn weights_of_balance_losses_are_read_and_saved() {
    for (case, weight) in [("mixtral", 0.001), ("olmoe", 0.01), ("gpt-oss", 0.001), ("glm4-moe", 0.0)] {
        let config = model_dir::load_config(&golden(case)).unwrap();
        assert_eq!(config.experts.unwrap().balance_loss, weight, "{case}");
    }
}
