//! The engine with models that have routed experts, recurrent layers, or both.

use std::sync::Arc;

use burn::tensor::Device;
use hearth_engine::{EngineOptions, Models, Speculation, request::RequestParts};
use hearth_model::{
    config::{Experts, GatedConv, GatedDeltaNet, GptConfig, Mamba2, Recurrence, Recurrent},
    weights::model_dir::LoadedModel,
};
use hearth_server::engine::Engine;

use crate::{
    engine::{mixed_requests, plain_loop_tokens, run},
    speculation::repetitive,
    support::{self, OPTIONS, is_idle, metric, wait_for},
};

fn experts() -> Experts {
    Experts { shared_d_ff: 16, shared_gate: true, ..Experts::plain(6, 2, 24) }
}

pub(crate) fn configs() -> Vec<(&'static str, GptConfig)> {
    let recurrent = |recurrence| Some(Recurrent { recurrence, attention_layers: vec![1] });
    let delta = Recurrence::GatedDelta(GatedDeltaNet {
        n_key_heads: 2,
        n_value_heads: 4,
        key_dim: 8,
        value_dim: 8,
        conv_kernel: 4,
        tiled_heads: false,
    });
    let conv = Recurrence::ShortConv(GatedConv { kernel: 3, bias: false });
    let mamba = Recurrence::Mamba2(Mamba2 {
        n_groups: 2,
        n_heads: 4,
        head_dim: 8,
        state_dim: 8,
        conv_kernel: 4,
        conv_bias: true,
        bias: false,
        min_time_step: 0.0,
        max_time_step: None,
    });
    let config = support::config();
    vec![
        ("experts", GptConfig { experts: Some(experts()), ..config.clone() }),
        ("gated delta net", GptConfig { recurrent: recurrent(delta), ..config.clone() }),
        ("short convolutions", GptConfig { recurrent: recurrent(conv), ..config.clone() }),
        ("Mamba-2", GptConfig { recurrent: recurrent(mamba), ..config.clone() }),
        (
            "layers that are one part only",
            GptConfig {
                n_layers: 4,
                recurrent: Some(Recurrent { recurrence: mamba, attention_layers: vec![2] }),
                experts: Some(Experts { latent_width: 8, dense_layers: vec![3], ..experts() }),
                layers_without_mixer: vec![1, 3],
                layers_without_mlp: vec![0, 2],
                ..config.clone()
            },
        ),
        ("both", GptConfig { recurrent: recurrent(delta), experts: Some(experts()), ..config }),
    ]
}

pub(crate) fn model(config: &GptConfig) -> LoadedModel {
    LoadedModel { gpt: support::gpt_of(config, &Device::flex(), 0.0), ..support::model() }
}

fn engine(config: &GptConfig, options: EngineOptions) -> Engine {
    let config = config.clone();
    Engine::start(move || Ok(Models::from(model(&config))), options).unwrap()
}

/// All at once, in small chunks, with so few pages that answers are preempted, and with few kept states: the tokens of single runs,
/// also when the prompts are found in the prefix cache.
#[tokio::test]
async fn batches_of_other_layers_give_the_tokens_of_single_runs() {
    for (name, config) in configs() {
        let requests = mixed_requests();
        let alone = plain_loop_tokens(&model(&config).gpt, &requests);
        for (max_batch_tokens, kv_cache_tokens, kept_states) in
            [(512, 4096, Some(64)), (24, 4096, Some(64)), (64, 192, Some(64)), (64, 4096, Some(1))]
        {
            let options = EngineOptions {
                max_batch_size: 16,
                max_batch_tokens,
                kv_cache_tokens: Some(kv_cache_tokens),
                kept_states,
                ..OPTIONS
            };
            let engine = engine(&config, options);
            for round in 0..2 {
                assert_eq!(run(&engine, &requests).await, alone, "{name}, {max_batch_tokens} tokens, round {round}");
                wait_for(&engine, is_idle).await;
            }
            let [preemptions, hits] =
                ["num_preemptions_total", "prefix_cache_hits_total"].map(|name| metric(&engine, name));
            let shows = match (kv_cache_tokens, kept_states) {
                (192, _) => preemptions > 0.0,
                (_, Some(1)) => true,
                _ => hits > 0.0,
            };
            assert!(
                shows,
                "{name}: the test shows too little: {preemptions} preemptions, {hits} tokens from the cache"
            );
        }
    }
}

/// A rejected draft takes a recurrent layer's state back.
#[tokio::test]
async fn tokens_of_other_layers_are_unchanged_by_speculative_decoding() {
    let mut totals = [0.0; 2];
    for (name, config) in configs() {
        // Two tokens alone: what follows the last ones was often seen before, and is often guessed wrong.
        let narrow = |mut parts: RequestParts| {
            parts.sampling.logit_bias = Arc::new([(7, 40.0), (9, 40.0)].into());
            parts
        };
        let requests: Vec<_> = repetitive().into_iter().chain(mixed_requests().into_iter().map(narrow)).collect();
        let plain = engine(&config, OPTIONS);
        let expected = run(&plain, &requests).await;
        let speculation = Speculation::PromptLookup { n_tokens: 6 };
        let engine = engine(&config, EngineOptions { speculation, ..OPTIONS });
        assert_eq!(run(&engine, &requests).await, expected, "{name}");
        wait_for(&engine, is_idle).await;
        if config.recurrent.is_some() {
            let names = ["spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"];
            totals.iter_mut().zip(names).for_each(|(total, name)| *total += metric(&engine, name));
        }
    }
    let [guessed, accepted] = totals;
    assert!(accepted > 0.0 && accepted < guessed, "{accepted} of {guessed} drafts accepted: the test shows too little");
}
