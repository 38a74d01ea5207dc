//! The smoke test of the whole training path: a small model overfits one batch, in seconds.

#![expect(clippy::unwrap_used, reason = "tests")]

use burn::tensor::Device;
use hearth_model::{TokenId, config::GptConfig, gpt::Gpt};
use hearth_training::{
    config::{Arch, Layers, TrainConfig},
    data::{
        loader::{Loader, LoaderSettings, RowOrder},
        shard::Tokens,
    },
    objective::StepIndex,
    run::{learner::Learner, schedule::Rates},
};

use crate::test_gpu::gpu;

const VOCAB_SIZE: usize = 16;

fn tiny(arch: Arch) -> (TrainConfig, GptConfig) {
    let mut config = Layers { preset: Some("tiny".to_owned()), ..Layers::default() }.resolve().unwrap();
    config.model.arch = arch;
    config.model.n_kv_heads = (arch != Arch::Gpt2).then_some(1);
    config.optim.lr = 1e-2;
    let gpt_config = config.gpt_config(VOCAB_SIZE).unwrap();
    (config, gpt_config)
}

/// Ids that do not repeat within a context, so that the model must memorize the rows.
fn token_ids() -> Vec<TokenId> {
    (0..500_u32).map(|at| (at * at / 7 + at / 3) % VOCAB_SIZE as u32).collect()
}

fn loader() -> Loader {
    let order = RowOrder::RandomWindows;
    let settings = LoaderSettings { seed: 1, seq_len: 16, micro_batch_size: 4, order, n_micro_batches: 2 };
    Loader::new(&Tokens::from_ids(token_ids(), 0).into(), settings).unwrap()
}

/// Steps until the loss on one batch is below 0.05, at most 300.
fn overfit(arch: Arch, device: &Device) -> (usize, f32) {
    let (config, gpt_config) = tiny(arch);
    let batch = loader().batch(0, 0);
    let device = device.clone().autodiff();
    let mut learner = Learner::new(Gpt::init(&gpt_config, 1, &device).unwrap(), config.optim, 1);
    let total_weight = batch.total_weight();
    let mut last = f32::INFINITY;
    for step in 1..=300 {
        let micro_batches = std::iter::once((0, batch.clone()));
        let mut sums =
            learner.gradients(StepIndex { step, total_weight, n_context_tokens: 0 }, micro_batches).unwrap().unwrap();
        learner.clip(&mut sums.gradients).unwrap();
        learner = learner.update(sums.gradients, Rates { lr: 1.0, decay: 1.0, momentum: 0.9 });
        if step % 20 == 0 {
            last = sums.loss.into_scalar::<f32>();
            if last < 0.05 {
                return (step, last);
            }
        }
    }
    (300, last)
}

#[test]
fn tiny_models_overfit_one_batch_on_the_cpu() {
    for arch in [Arch::Llama, Arch::Gpt2, Arch::Qwen3, Arch::NanoChat] {
        let (steps, loss) = overfit(arch, &Device::flex());
        assert!(loss < 0.05, "{arch:?}: loss {loss} after {steps} steps");
    }
}

#[test]
fn tiny_llama_overfits_one_batch_on_wgpu() {
    let Some(gpu) = gpu() else { return };
    let (steps, loss) = overfit(Arch::Llama, &gpu);
    assert!(loss < 0.05, "loss {loss} after {steps} steps");
}
