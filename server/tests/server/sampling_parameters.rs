//! Each sampling parameter as a request field: the tokens equal those of the plain loop with the same parameters, and
//! differ from those without them. The model's tests check what each parameter does to a distribution.

use std::sync::Arc;

use hearth_model::{
    TokenId,
    decode::sampling::{AdaptiveP, ChainStep, Dry, Mirostat, MirostatVersion, SamplingParams, Smoothing, Xtc},
    gpt::Gpt,
    text::tokenizer::EncodeOptions,
};
use serde_json::{Value, json};

use crate::{
    plain_generation::{GenerateOptions, generate},
    support::{self, CHAT_TEMPLATE, EOS, Server, tokenizer},
};

const N_TOKENS: usize = 40;
const SEED: u64 = 11;
/// Repetitive, so that penalties for repetition have an effect.
const PROMPT: &str = "the hand in the hand in the end, the hand in the";

/// The tokens that the plain loop generates for the prompt.
fn plain_loop(gpt: &Gpt, prompt_ids: &[TokenId], sampling: SamplingParams) -> Vec<TokenId> {
    let sampling = SamplingParams { seed: SEED, ..sampling };
    let options = GenerateOptions { max_tokens: N_TOKENS, kv_dtype: None, sampling, eos_token_ids: Vec::new() };
    generate(gpt, prompt_ids, &options)
}

fn ids(text: &str) -> Vec<TokenId> {
    tokenizer().encode(text, EncodeOptions::TEXT).unwrap()
}

fn token_ids(answer: &Value) -> Vec<TokenId> {
    serde_json::from_value(answer["choices"][0]["token_ids"].clone()).unwrap()
}

/// The request body with `fields` set.
fn body(fields: &Value) -> Value {
    let mut body = json!({
        "prompt": PROMPT, "max_tokens": N_TOKENS, "seed": SEED, "ignore_eos": true, "return_token_ids": true,
    });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Request fields, and the sampling parameters that they stand for.
fn parameters() -> Vec<(Value, SamplingParams)> {
    let with = |change: &dyn Fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        change(&mut params);
        params
    };
    let tokens_with = |text: &str| -> Vec<TokenId> {
        let holds =
            |id: &TokenId| String::from_utf8(tokenizer().token_bytes(*id)).is_ok_and(|token| token.contains(text));
        (0..=EOS).filter(holds).collect()
    };
    let breakers = ["\n", ":", "\"", "*"].into_iter().flat_map(tokens_with).collect();
    let dry = Dry { multiplier: 2.0, sequence_breakers: Arc::new(breakers), ..Dry::default() };
    let mirostat = |version| Some(Mirostat { version, ..Mirostat::default() });
    let order = vec![ChainStep::TopP, ChainStep::Temperature];
    vec![
        (json!({ "temperature": 0 }), SamplingParams::greedy()),
        (json!({ "temperature": 0.4 }), with(&|params| params.temperature = 0.4)),
        (json!({ "top_k": 5 }), with(&|params| params.top_k = 5)),
        (json!({ "top_p": 0.6 }), with(&|params| params.top_p = 0.6)),
        (json!({ "min_p": 0.2 }), with(&|params| params.min_p = 0.2)),
        (json!({ "typical_p": 0.3 }), with(&|params| params.typical_p = 0.3)),
        (json!({ "top_n_sigma": 1.2 }), with(&|params| params.top_n_sigma = 1.2)),
        (json!({ "epsilon_cutoff": 0.01 }), with(&|params| params.epsilon_cutoff = 0.01)),
        (json!({ "eta_cutoff": 0.05 }), with(&|params| params.eta_cutoff = 0.05)),
        (json!({ "tfs": 0.6 }), with(&|params| params.tfs = 0.6)),
        (json!({ "top_a": 0.4 }), with(&|params| params.top_a = 0.4)),
        (
            json!({ "smoothing_factor": 0.3, "smoothing_curve": 2 }),
            with(&|params| params.smoothing = Smoothing { factor: 0.3, curve: 2.0 }),
        ),
        (
            json!({ "adaptive_target": 0.1, "adaptive_decay": 0.5 }),
            with(&|params| params.adaptive_p = Some(AdaptiveP { target: 0.1, decay: 0.5 })),
        ),
        (json!({ "encoder_repetition_penalty": 1.5 }), with(&|params| params.prompt_bonus = 1.5)),
        (json!({ "no_repeat_ngram_size": 1 }), with(&|params| params.no_repeat_ngram_size = 1)),
        (
            json!({ "logit_bias": { "101": 9 }, "logit_bias_tokens": 3 }),
            with(&|params| {
                (params.logit_bias, params.logit_bias_tokens) = (Arc::new([(101, 9.0)].into()), Some(3));
            }),
        ),
        (
            json!({ "dynatemp_range": 0.8, "dynatemp_exponent": 2 }),
            with(&|params| (params.dynatemp_range, params.dynatemp_exponent) = (0.8, 2.0)),
        ),
        (
            json!({ "xtc_probability": 0.7, "xtc_threshold": 0.02 }),
            with(&|params| params.xtc = Xtc { probability: 0.7, threshold: 0.02 }),
        ),
        (
            json!({ "mirostat": 1, "mirostat_tau": 2, "mirostat_eta": 0.3 }),
            with(&|params| params.mirostat = Some(Mirostat { version: MirostatVersion::V1, tau: 2.0, eta: 0.3 })),
        ),
        (
            json!({ "mirostat": 2, "mirostat_tau": 2, "mirostat_eta": 0.3 }),
            with(&|params| params.mirostat = Some(Mirostat { version: MirostatVersion::V2, tau: 2.0, eta: 0.3 })),
        ),
        (json!({ "mirostat": 2 }), with(&|params| params.mirostat = mirostat(MirostatVersion::V2))),
        (json!({ "repetition_penalty": 1.8 }), with(&|params| params.repetition_penalty = 1.8)),
        (json!({ "repeat_penalty": 1.8 }), with(&|params| params.repetition_penalty = 1.8)),
        (
            json!({ "repetition_penalty": 1.8, "repeat_last_n": 4 }),
            with(&|params| (params.repetition_penalty, params.repeat_last_n) = (1.8, Some(4))),
        ),
        (json!({ "presence_penalty": 2 }), with(&|params| params.presence_penalty = 2.0)),
        (json!({ "frequency_penalty": 2 }), with(&|params| params.frequency_penalty = 2.0)),
        (
            json!({ "dry_multiplier": 2, "logit_bias": { "97": 4, "98": 4 } }),
            with(&|params| (params.dry, params.logit_bias) = (dry.clone(), Arc::new([(97, 4.0), (98, 4.0)].into()))),
        ),
        (
            json!({
                "dry_multiplier": 2, "dry_base": 1.2, "dry_allowed_length": 1, "dry_penalty_last_n": 9,
                "dry_sequence_breakers": ["q"], "logit_bias": { "97": 5, "98": 5 },
            }),
            with(&|params| {
                params.logit_bias = Arc::new([(97, 5.0), (98, 5.0)].into());
                params.dry = Dry {
                    multiplier: 2.0,
                    base: 1.2,
                    allowed_length: 1,
                    penalty_last_n: Some(9),
                    sequence_breakers: Arc::new(tokens_with("q").into_iter().collect()),
                };
            }),
        ),
        (
            json!({ "logit_bias": { "101": 3.5, "32": -100 } }),
            with(&|params| params.logit_bias = Arc::new([(101, 3.5), (32, -100.0)].into())),
        ),
        (
            json!({ "allowed_token_ids": [97, 98, 99, 256] }),
            with(&|params| params.allowed_token_ids = Some(Arc::new([97, 98, 99, 256].into()))),
        ),
        (
            json!({ "bad_words": ["e"], "top_k": 3 }),
            with(&|params| (params.bad_words, params.top_k) = ([ids("e"), ids(" e")].into(), 3)),
        ),
        (
            json!({ "samplers": ["top_p", "temperature"], "temperature": 1.8, "top_p": 0.5 }),
            with(&|params| (params.samplers, params.temperature, params.top_p) = (order.clone(), 1.8, 0.5)),
        ),
        (
            json!({ "samplers": ["typ_p"], "typical_p": 0.3 }),
            with(&|params| (params.samplers, params.typical_p) = (vec![ChainStep::TypicalP], 0.3)),
        ),
        (
            json!({ "temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95, "frequency_penalty": 0.4 }),
            with(&|params| {
                (params.temperature, params.top_k, params.top_p, params.min_p) = (1.5, 20, 0.9, 0.01);
                (params.typical_p, params.frequency_penalty) = (0.95, 0.4);
            }),
        ),
    ]
}

#[tokio::test]
async fn completion_sampling_parameters_match_the_plain_loop() {
    let (server, gpt) = (Server::start(), support::gpt());
    let plain = plain_loop(&gpt, &ids(PROMPT), SamplingParams::default());
    // Without parameters: plain sampling.
    assert_eq!(token_ids(&server.complete(body(&json!({}))).await), plain);
    for (fields, sampling) in parameters() {
        let expected = plain_loop(&gpt, &ids(PROMPT), sampling);
        assert_eq!(token_ids(&server.complete(body(&fields)).await), expected, "{fields}");
        assert_ne!(expected, plain, "{fields} changes nothing: the test shows too little");
    }
}

#[tokio::test]
async fn chat_sampling_parameters_match_the_plain_loop() {
    let (server, gpt) = (Server::start(), support::gpt());
    assert!(CHAT_TEMPLATE.contains("[assistant]"));
    let prompt = tokenizer().encode("[user]hi<|end|>[assistant]", EncodeOptions::RENDERED).unwrap();
    for (fields, sampling) in parameters() {
        let mut body = body(&fields);
        body["messages"] = json!([{ "role": "user", "content": "hi" }]);
        let fields = body.as_object_mut().unwrap();
        fields.remove("prompt");
        let limit = fields.remove("max_tokens").unwrap();
        fields.insert("max_completion_tokens".to_owned(), limit);
        assert_eq!(token_ids(&server.chat(body.clone()).await), plain_loop(&gpt, &prompt, sampling), "{body}");
    }
}
