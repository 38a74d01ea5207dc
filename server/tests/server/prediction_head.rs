//! Drafts by the model's own prediction head: they never change an answer, and those of a head that knows the next tokens are all
//! accepted.

use burn::tensor::{Device, TensorData};
use hearth_engine::{EngineOptions, Models, Speculation, StartError, request::RequestParts};
use hearth_model::{
    config::{GptConfig, Positions, Rope},
    decode::sampling::SamplingParams,
    gpt::{Gpt, ParamSpec, prediction_head::PredictionHead},
    ops::Dtype,
    weights::model_dir::LoadedModel,
};
use hearth_server::engine::Engine;

use crate::{
    engine::{mixed_requests, parts, run},
    layer_kinds::configs,
    speculation::repetitive,
    support::{self, OPTIONS, VOCAB_SIZE, is_idle, metric, wait_for},
};

const HEAD: Speculation = Speculation::PredictionHead { n_tokens: 4 };

/// An engine with a model of `config` and a head, whose parameters are `weights`.
fn engine(config: &GptConfig, options: EngineOptions, weights: fn(&ParamSpec) -> TensorData) -> Engine {
    let config = config.clone();
    let load = move || {
        let gpt = Gpt::from_params(&config, Dtype::F32, &Device::flex(), &mut |spec| Ok(weights(spec))).unwrap();
        let head = PredictionHead::from_params(&gpt, Dtype::F32, &mut |spec| Ok(weights(spec))).unwrap();
        let served = LoadedModel { gpt, ..support::model() };
        Ok(Models { prediction_head: Some(head), ..served.into() })
    };
    Engine::start(load, options).unwrap()
}

fn random(spec: &ParamSpec) -> TensorData {
    support::weights(spec, 0.0)
}

fn drafts(engine: &Engine) -> [f64; 2] {
    ["draft_tokens", "accepted_tokens"].map(|name| metric(engine, &format!("spec_decode_num_{name}_total")))
}

/// Greedy and sampled, alone and many at once, with few pages, so that answers are preempted, with few tokens in a step, and
/// with prompts that are in the prefix cache.
#[tokio::test]
async fn drafts_of_a_prediction_head_do_not_change_answers() {
    let mut totals = [0.0; 2];
    for (name, config) in configs() {
        // Two tokens alone: some guesses are right.
        let narrow = |mut parts: RequestParts| {
            parts.sampling.logit_bias = std::sync::Arc::new([(7, 40.0), (9, 40.0)].into());
            parts
        };
        let requests: Vec<_> = repetitive().into_iter().chain(mixed_requests().into_iter().map(narrow)).collect();
        let expected = run(&engine(&config, OPTIONS, random), &requests).await;
        let few_pages = EngineOptions { max_batch_size: 16, kv_cache_tokens: Some(20 * 16), ..OPTIONS };
        for options in [OPTIONS, few_pages, EngineOptions { max_batch_size: 4, max_batch_tokens: 7, ..OPTIONS }] {
            let engine = engine(&config, EngineOptions { speculation: HEAD, ..options }, random);
            for round in 0..2 {
                assert!(run(&engine, &requests).await == expected, "{name}, round {round}");
                wait_for(&engine, is_idle).await;
            }
            totals.iter_mut().zip(drafts(&engine)).for_each(|(total, n)| *total += n);
        }
    }
    let [guessed, accepted] = totals;
    assert!(accepted > 0.0 && accepted < guessed, "{accepted} of {guessed} drafts accepted: the test shows too little");
}

/// A model that counts: token `n` is followed by `n + 1`. The embedding is the identity, and blocks add nothing, so the hidden
/// state says which token it is of.
fn counting(spec: &ParamSpec, head: impl Fn(usize, usize) -> bool) -> TensorData {
    let is = |n_columns: usize, holds: &dyn Fn(usize, usize) -> bool| -> Vec<f32> {
        let places = (0..VOCAB_SIZE * n_columns).map(|at| (at / n_columns, at % n_columns));
        places.map(|(row, column)| if holds(row, column) { 1.0 } else { 0.0 }).collect()
    };
    let values = match spec.path.as_str() {
        "embed.weight" => is(VOCAB_SIZE, &|row, column| row == column),
        "lm_head.weight" => is(VOCAB_SIZE, &|row, column| row == column + 1),
        "join.linear.weight" => is(2 * VOCAB_SIZE, &head),
        path if path.ends_with("norm.weight") => vec![1.0; spec.shape.iter().product()],
        path if path.ends_with("out.weight") || path.ends_with("down.weight") => {
            vec![0.0; spec.shape.iter().product()]
        }
        _ => return random(spec),
    };
    TensorData::new(values, spec.shape.as_slice())
}

/// The head reads the token that follows.
fn counts_by_tokens(spec: &ParamSpec) -> TensorData {
    counting(spec, |row, column| row == column)
}

/// The head reads the hidden state alone, which is of the token before.
fn counts_by_hidden_states(spec: &ParamSpec) -> TensorData {
    counting(spec, |row, column| row + VOCAB_SIZE == column + 1)
}

/// So tokens and hidden states are those of the rows that the drafts follow.
#[tokio::test]
async fn drafts_of_a_head_that_knows_the_next_tokens_are_all_accepted() {
    for (_, config) in configs() {
        let config = GptConfig {
            d_model: VOCAB_SIZE,
            head_dim: 8,
            positions: Positions::Rope(Rope::new(10_000.0, 8)),
            experts: None,
            layers_without_mixer: Vec::new(),
            layers_without_mlp: Vec::new(),
            ..config
        };
        for weights in [counts_by_tokens, counts_by_hidden_states] {
            let engine = engine(&config, EngineOptions { speculation: HEAD, ..OPTIONS }, weights);
            let requests: Vec<_> =
                (0..3).map(|at| parts(vec![90 + at; 20], 60 + at as usize, SamplingParams::greedy())).collect();
            for (at, found) in run(&engine, &requests).await.into_iter().enumerate() {
                let first = 91 + at as u32;
                assert_eq!(found, (first..first + 60 + at as u32).collect::<Vec<_>>());
            }
            wait_for(&engine, is_idle).await;
            let [guessed, accepted] = drafts(&engine);
            // How many there are depends on measured times.
            assert!(guessed > 0.0, "the test shows nothing");
            assert_eq!(guessed, accepted);
        }
    }
}

#[test]
fn drafts_of_a_head_need_a_model_that_has_one() {
    let options = EngineOptions { speculation: HEAD, ..OPTIONS };
    match Engine::start(|| Ok(Models::from(support::model())), options) {
        Err(StartError::Options(message)) => {
            assert!(message.contains("`--speculative mtp`") && message.contains("prediction head"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}
