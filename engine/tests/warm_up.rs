//! Kernels of a GPU.

#![cfg(feature = "gpu")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use cubecl_runtime::launched::LaunchedKernels;
use hearth_model::{
    TokenId,
    config::{GptConfig, Sizes},
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

use test_gpu::gpu;

#[path = "../../model/tests/test_gpu.rs"]
mod test_gpu;

/// Batches of 1 to 16, prefill chunks beside decoding, and forks launch only kernels that warm-up compiled.
#[test]
fn after_warm_up_serving_steps_compile_no_new_gpu_kernels() {
    let Some(device) = gpu() else { return };
    // Top-k over the vocabulary takes one pass for 300 tokens, and several for 5000.
    for (vocab_size, (_, kv_dtype)) in [300, 5000].into_iter().zip(KvDtype::ALL) {
        let sizes =
            Sizes { vocab_size, max_seq_len: 512, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 64, d_ff: 96 };
        let gpt = Gpt::init(&GptConfig::llama(sizes), 1, &device).unwrap();
        check_warm_up(ModelRunner::new(gpt, 80, *kv_dtype).unwrap());
    }
}

fn check_warm_up(mut runner: ModelRunner) {
    let collection = LaunchedKernels::new();
    runner.capture_steps();
    runner.warm_up(300).unwrap();
    let compiled = collection.finish();
    assert!(compiled.len() > 10, "{} kernels", compiled.len());

    let collection = LaunchedKernels::new();
    let mut tables: Vec<PageTable> = (0..16).map(|_| runner.cache().table()).collect();
    let mut step = |tables: &mut [PageTable], n_new: &dyn Fn(usize) -> usize| {
        let token_ids: Vec<Vec<TokenId>> = (0..tables.len()).map(|at| vec![at as TokenId; n_new(at)]).collect();
        let parts = tables.iter_mut().zip(&token_ids).map(|(table, token_ids)| StepPart::new(table, token_ids.len()));
        let output = runner.step(&token_ids.concat(), &mut parts.collect::<Vec<_>>()).unwrap();
        let ends = token_ids.iter().scan(0, |end, ids| {
            *end += ids.len();
            Some(*end - 1)
        });
        // Rows of every kind side by side.
        let needs = [
            LogitDemand::Whole,
            LogitDemand::Best { n: 1, also: BTreeSet::new() },
            LogitDemand::Best { n: 100, also: (5..70).collect() },
        ];
        let needs: Vec<LogitDemand> = (1..=tables.len()).map(|at| needs[at % 3].clone()).collect();
        let logits = runner.read_logits(&output, &ends.collect::<Vec<_>>(), &needs).unwrap();
        assert!(logits.iter().all(|row| match row {
            LogitRow::Whole(logits) => logits.iter().all(|logit| logit.is_finite()),
            LogitRow::Best(logits) => logits.iter().all(|(_, logit)| logit.is_finite()),
        }));
        runner.read_hidden(&output, 0..2.min(token_ids[0].len())).unwrap();
    };
    for n in 1..=16 {
        step(&mut tables[..n], &|_| 1);
    }
    for n in [3, 37, 260, 7] {
        step(&mut tables[..3], &|at| if at == 0 { n } else { 1 });
    }
    step(&mut tables[..1], &|_| 33);
    let mut forks: Vec<PageTable> = tables[..2].iter().map(PageTable::fork).collect();
    step(&mut forks, &|_| 1);
    let others = &collection.finish() - &compiled;
    assert!(others.is_empty(), "{} kernels were compiled while serving", others.len());
}
