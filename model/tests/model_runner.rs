//! Captured decoding steps that a GPU replays, against the same steps run eagerly. On the software adapter of wgpu.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use burn::tensor::{Device, Tensor};
use hearth_model::{
    TokenId,
    config::{Activation, GptConfig, Positions, Rope, Sizes},
    decode::{
        model_runner::ModelRunner,
        sampling::{LogitDemand, LogitRow},
    },
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

/// The logits that `needs` asks for, of every row of a decoding step: of some rows each token's id and the bits of its logit.
/// Also the number of bytes that were read for it.
fn read_top(
    runner: &mut ModelRunner,
    tables: &mut [PageTable],
    (seed, needs): (TokenId, &LogitDemand),
) -> (Vec<Vec<(TokenId, u32)>>, usize) {
    let token_ids: Vec<TokenId> = (0..tables.len() as TokenId).map(|at| (seed * 31 + at * 17) % 97).collect();
    let rows: Vec<usize> = (0..tables.len()).collect();
    let mut parts: Vec<StepPart<'_>> = tables.iter_mut().map(|table| StepPart::new(table, 1)).collect();
    let output = runner.step(&token_ids, &mut parts).unwrap();
    let read = runner.read_logits(&output, &rows, &vec![needs.clone(); rows.len()]).unwrap();
    let pairs = |row: LogitRow<'_>| match row {
        LogitRow::Whole(logits) => (0..).zip(logits.iter().map(|logit| logit.to_bits())).collect(),
        LogitRow::Best(logits) => logits.iter().map(|(id, logit)| (*id, logit.to_bits())).collect(),
    };
    (read.iter().map(pairs).collect(), read.n_read_bytes())
}

/// The selection of a row's most likely tokens is in the graph, once the same number has been asked for a few times: it selects 1, 64
/// or 256, so that is what is read. Whatever else is asked for is what an eager step gives.
#[test]
fn captured_steps_select_the_top_tokens_of_eager_steps() {
    let Some(gpu) = gpu() else { return };
    // Several tiles of tokens.
    let config = GptConfig::llama(Sizes { vocab_size: 3000, max_seq_len: 200, n_layers: 1, ..sizes() });
    for n_rows in [1, 12] {
        let mut twins = Twins::new("top tokens", &config, KvDtype::F32, &gpu);
        (0..n_rows).for_each(|_| twins.begin());
        twins.step(&vec![33; n_rows]);
        let best = |n| LogitDemand::Best { n, also: BTreeSet::new() };
        let also = LogitDemand::Best { n: 3, also: [5, 2999].into() };
        // In turn: greedy, the 40 most likely, more than a graph selects, other tokens besides, whole rows, greedy again.
        let whole = 3000 * 4;
        let phases = [
            (best(1), 8),
            (best(40), 64 * 8),
            (best(300), whole),
            (also, 8 * 4),
            (LogitDemand::Whole, whole),
            (best(1), 8),
        ];
        for (needs, bytes_of_row) in phases {
            let mut n_bytes = 0;
            for _ in 0..5 {
                twins.n_steps += 1;
                let [captured, eager] = [0, 1].map(|which| {
                    read_top(&mut twins.runners[which], &mut twins.tables[which], (twins.n_steps, &needs))
                });
                assert!(captured.0 == eager.0, "{needs:?}, step {} of {n_rows} rows", twins.n_steps);
                n_bytes = captured.1;
            }
            assert_eq!(n_bytes, n_rows * bytes_of_row, "{needs:?}");
        }
    }
}

/// The most likely token of each text, and the bits of its logit, after another step.
fn greedy_step(runner: &mut ModelRunner, tables: &mut [PageTable], token_ids: &[TokenId]) -> Vec<(TokenId, u32)> {
    let mut parts: Vec<StepPart<'_>> = tables.iter_mut().map(|table| StepPart::new(table, 1)).collect();
    let output = runner.step(token_ids, &mut parts).unwrap();
    let rows: Vec<usize> = (0..token_ids.len()).collect();
    let needs = vec![LogitDemand::Best { n: 1, also: BTreeSet::new() }; rows.len()];
    let read = runner.read_logits(&output, &rows, &needs).unwrap();
    let best = |row: LogitRow<'_>| match row {
        LogitRow::Best(logits) => (logits[0].0, logits[0].1.to_bits()),
        LogitRow::Whole(_) => unreachable!("not asked for"),
    };
    read.iter().map(best).collect()
}

/// The next step is launched with the tokens of the last one. Whatever comes instead is computed: other tokens, fewer texts, a fork,
/// a text that was cut, other logits.
#[test]
fn steps_that_are_launched_ahead_equal_eager_steps_whatever_comes_next() {
    let Some(gpu) = gpu() else { return };
    let config = GptConfig::llama(Sizes { vocab_size: 3000, max_seq_len: 200, n_layers: 2, ..sizes() });
    for n_rows in [1, 3] {
        let mut twins = Twins::new("a step ahead", &config, KvDtype::F32, &gpu);
        twins.runners[0].go_ahead();
        (0..n_rows).for_each(|_| twins.begin());
        twins.step(&vec![19; n_rows]);
        let mut token_ids = vec![7; n_rows];
        let mut n_ahead = 0;
        for turn in 0..70 {
            let [ahead, eager] =
                [0, 1].map(|which| greedy_step(&mut twins.runners[which], &mut twins.tables[which], &token_ids));
            assert!(ahead == eager, "turn {turn} of {n_rows} texts");
            token_ids = eager.iter().map(|(id, _)| *id).collect();
            match turn {
                30 => token_ids[0] = (token_ids[0] + 1) % 3000,
                35 => twins.tables.iter_mut().for_each(|tables| {
                    let len = tables[0].len() - 1;
                    tables[0].truncate(len);
                }),
                40 => {
                    twins.tables.iter_mut().for_each(|tables| tables.push(tables[0].fork()));
                    token_ids.push(token_ids[0]);
                }
                50 => {
                    twins.tables.iter_mut().for_each(|tables| drop(tables.remove(0)));
                    token_ids.remove(0);
                }
                60 => twins.step(&vec![1; n_rows]),
                _ => {}
            }
            n_ahead = twins.runners[0].n_ahead();
        }
        assert!((20..70).contains(&n_ahead), "{n_ahead} steps of {n_rows} texts were launched ahead");
        assert_eq!(twins.runners[1].n_ahead(), 0);
    }
}
