//! Captured decoding steps that a GPU replays, against the same steps run eagerly. On the software adapter of wgpu.
#![expect(clippy::unwrap_used, reason = "tests")]

use burn::tensor::{Device, Tensor};
use hearth_model::{
    TokenId,
    config::{Activation, GptConfig, Positions, Rope, Sizes},
    decode::model_runner::ModelRunner,
    gpt::{
        Gpt,
        kv_cache::{PageTable, StepPart},
    },
    ops::KvDtype,
};

use crate::test_gpu::gpu;

/// The same sequences in two runners: one captures steps, the other runs them eagerly.
struct Twins {
    runners: [ModelRunner; 2],
    tables: [Vec<PageTable>; 2],
    n_steps: u32,
    name: &'static str,
}

impl Twins {
    fn new(name: &'static str, config: &GptConfig, kv_dtype: KvDtype, device: &Device) -> Self {
        let gpt = Gpt::init(config, 3, device).unwrap();
        let mut runners = [0, 1].map(|_| ModelRunner::new(gpt.clone(), 64, kv_dtype).unwrap());
        runners[0].capture_steps();
        Self { runners, tables: [Vec::new(), Vec::new()], n_steps: 0, name }
    }

    /// Another sequence.
    fn begin(&mut self) {
        for (runner, tables) in self.runners.iter().zip(&mut self.tables) {
            tables.push(runner.cache().table());
        }
    }

    /// A sequence with the past of the first.
    fn fork(&mut self) {
        for tables in &mut self.tables {
            let fork = tables[0].fork();
            tables.push(fork);
        }
    }

    fn end(&mut self, sequence: usize) {
        for tables in &mut self.tables {
            tables.remove(sequence);
        }
    }

    /// Appends so many tokens to each sequence, and compares what comes out.
    fn step(&mut self, n_new: &[usize]) {
        self.n_steps += 1;
        let n_tokens = n_new.iter().sum();
        let token_ids: Vec<TokenId> = (0..n_tokens).map(|at| (self.n_steps * 31 + at as TokenId * 17) % 97).collect();
        let [captured, eager] = [0, 1].map(|which| {
            let tables = self.tables[which].iter_mut().zip(n_new);
            let mut parts: Vec<StepPart<'_>> = tables.map(|(table, &n_new)| StepPart::new(table, n_new)).collect();
            let output = self.runners[which].step(&token_ids, &mut parts).unwrap();
            let rows: Vec<usize> = (0..n_tokens).rev().collect();
            let hidden = self.runners[which].hidden(&output, &rows);
            let logits = self.runners[which].logits(&output, &rows);
            let bits = |x: Tensor<2>| x.into_data().try_into_vec::<f32>().unwrap().into_iter().map(f32::to_bits);
            bits(hidden).chain(bits(logits)).collect::<Vec<_>>()
        });
        assert!(captured == eager, "{}, step {} of {n_new:?}: other bits", self.name, self.n_steps);
    }
}

fn check(name: &'static str, config: &GptConfig, kv_dtype: KvDtype) {
    let Some(gpu) = gpu() else { return };
    let mut twins = Twins::new(name, config, kv_dtype, &gpu);
    twins.begin();
    twins.step(&[5]);
    (0..5).for_each(|_| twins.step(&[1]));
    assert_eq!(twins.runners.each_ref().map(ModelRunner::n_graphs), [1, 0]);
    twins.begin();
    twins.begin();
    // Prompts in between, which must not affect captured steps, nor be affected by them.
    twins.step(&[1, 37, 20]);
    (0..6).for_each(|_| twins.step(&[1, 1, 1]));
    assert_eq!(twins.runners[0].n_graphs(), 2);
    twins.fork();
    (0..6).for_each(|_| twins.step(&[1, 1, 1, 1]));
    twins.end(1);
    // As many sequences as before, but other sequences on other pages.
    (0..6).for_each(|_| twins.step(&[1, 1, 1]));
    assert_eq!(twins.runners[0].n_graphs(), 3);
    twins.end(2);
    twins.end(1);
    // Into the second tile of attention.
    twins.step(&[100]);
    (0..12).for_each(|_| twins.step(&[1]));
    assert_eq!(twins.runners[0].n_graphs(), 4);
}

fn sizes() -> Sizes {
    Sizes { vocab_size: 97, max_seq_len: 200, n_layers: 3, n_heads: 4, n_kv_heads: 2, d_model: 32, d_ff: 48 }
}

#[test]
fn captured_steps_equal_eager_steps_with_rope() {
    check("f32", &GptConfig::llama(sizes()), KvDtype::F32);
    check("f16", &GptConfig::llama(sizes()), KvDtype::F16);
}

#[test]
fn captured_steps_equal_eager_with_learned_and_sinusoidal_positions() {
    let config = GptConfig::gpt2(Sizes { n_kv_heads: 4, ..sizes() });
    check("learned", &config, KvDtype::F32);
    check("sinusoidal", &GptConfig { positions: Positions::Sinusoidal, ..config }, KvDtype::F32);
}

#[test]
fn captured_steps_equal_eager_steps_with_windows_alibi_and_softcap() {
    let llama = GptConfig::llama(sizes());
    let windowed = GptConfig { sliding_window: Some(20), ..llama.clone() };
    check("windows", &windowed, KvDtype::F32);
    let mixed = GptConfig {
        full_layers: vec![1],
        window_rope: Some(Rope::new(500.0, 8)),
        attention_softcap: Some(30.0),
        scale_embeddings: true,
        activation: Activation::GeluTanh,
        ..windowed
    };
    check("windows in some layers", &mixed, KvDtype::F32);
    check("slopes", &GptConfig { positions: Positions::Alibi, ..llama }, KvDtype::F32);
}
