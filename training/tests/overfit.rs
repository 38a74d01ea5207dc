//! The smoke test of the whole training path: a small model learns one batch by heart, in seconds.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    config::GptConfig,
    device::{self, DeviceChoice},
    gpt::Gpt,
};
use hearth_training::{
    config::{Arch, TrainConfig},
    loader::{Batch, BatchIndex, Loader},
    trainer::Learner,
};

const VOCAB_SIZE: usize = 16;

fn tiny(arch: Arch) -> (TrainConfig, GptConfig) {
    let mut config = TrainConfig::preset("tiny").unwrap();
    config.model.arch = arch;
    config.model.n_kv_heads = (arch == Arch::Llama).then_some(1);
    let gpt_config = config.gpt_config(VOCAB_SIZE).unwrap();
    (config, gpt_config)
}

/// Ids that repeat only after more than a context, so that a row is learned, not a rule.
fn token_ids() -> Vec<TokenId> {
    (0..500_u32).map(|at| (at * at / 7 + at / 3) % VOCAB_SIZE as u32).collect()
}

/// Steps until the loss on one batch is below 0.05, at most 300.
fn overfit(arch: Arch, device: &Device) -> (usize, f32) {
    let (config, gpt_config) = tiny(arch);
    let ids = token_ids();
    let batch = Loader::new(&ids, 4, 16, 1).unwrap().batch(BatchIndex { step: 0, micro_step: 0 });
    let device = device.clone().autodiff();
    let mut learner = Learner::new(Gpt::init(&gpt_config, 1, &device).unwrap(), config.optim);
    let mut last = f32::INFINITY;
    for step in 1..=300 {
        let (next, losses) = learner.step(std::slice::from_ref(&batch), 1e-2).unwrap();
        learner = next;
        if step % 20 == 0 {
            last = losses.loss.into_scalar::<f32>();
            if last < 0.05 {
                return (step, last);
            }
        }
    }
    (300, last)
}

#[test]
fn a_batch_is_learned_by_heart_on_the_cpu() {
    for arch in [Arch::Llama, Arch::Gpt2] {
        let (steps, loss) = overfit(arch, &Device::flex());
        assert!(loss < 0.05, "{arch:?}: loss {loss} after {steps} steps");
    }
}

#[test]
fn a_batch_is_learned_by_heart_on_wgpu() {
    if std::env::var("HEARTH_TEST_WGPU").is_err() {
        eprintln!("skipped: set HEARTH_TEST_WGPU=1 to run on a wgpu adapter, a software one too");
        return;
    }
    let chosen = device::choose(DeviceChoice::Gpu).or_else(|_| device::choose(DeviceChoice::WgpuSoftware)).unwrap();
    let (steps, loss) = overfit(Arch::Llama, &chosen.device);
    assert!(loss < 0.05, "loss {loss} after {steps} steps on {}", chosen.reason);
}

#[test]
fn accumulated_batches_make_the_step_of_one_large_batch() {
    let (config, gpt_config) = tiny(Arch::Llama);
    let device = Device::flex().autodiff();
    let ids = token_ids();
    let loader = Loader::new(&ids, 4, 16, 1).unwrap();
    let parts = [0, 1].map(|micro_step| loader.batch(BatchIndex { step: 0, micro_step }));
    let whole = Batch {
        batch_size: 8,
        seq_len: 16,
        input_ids: parts.iter().flat_map(|part| part.input_ids.clone()).collect(),
        target_ids: parts.iter().flat_map(|part| part.target_ids.clone()).collect(),
    };
    let step = |batches: &[Batch]| {
        let learner = Learner::new(Gpt::init(&gpt_config, 1, &device).unwrap(), config.optim.clone());
        let (_, losses) = learner.step(batches, 1e-3).unwrap();
        (losses.loss.into_scalar::<f32>(), losses.grad_norm.into_scalar::<f32>())
    };
    let ((loss, norm), (whole_loss, whole_norm)) = (step(&parts), step(&[whole]));
    assert!((loss - whole_loss).abs() < 1e-5 * whole_loss, "{loss} {whole_loss}");
    assert!((norm - whole_norm).abs() < 1e-4 * whole_norm, "{norm} {whole_norm}");
}
