//! Request parameters by their effect on the answer: each one reaches the sampler or the text. The model crate tests
//! the distributions themselves.

use axum::http::StatusCode;
use hearth_model::text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use crate::support::{EOS, MAX_SEQ_LEN, Server, tokenizer};

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

/// A copy of `base` with `fields` set.
fn with(base: &Value, fields: Value) -> Value {
    let mut body = base.clone();
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn strict_sampling_filters_equal_greedy_and_disabled_ones_are_neutral() {
    let server = Server::start();
    let base = json!({ "prompt": "once", "max_tokens": 12, "ignore_eos": true, "seed": 5 });
    let greedy = server.complete(with(&base, json!({ "temperature": 0 }))).await;
    let plain = server.complete(base.clone()).await;
    assert_ne!(text(&plain), text(&greedy));
    for fields in [
        json!({ "top_k": 1 }),
        json!({ "top_p": 0 }),
        json!({ "min_p": 1 }),
        json!({ "top_n_sigma": 1e-6 }),
        json!({ "mirostat": 2, "mirostat_tau": 0, "mirostat_eta": 0 }),
        json!({ "mirostat": 1, "mirostat_tau": 0, "mirostat_eta": 0 }),
        json!({ "temperature": 1e-6, "dynatemp_range": 1e-7 }),
        json!({ "samplers": ["top_k"], "top_k": 1 }),
    ] {
        assert_eq!(text(&server.complete(with(&base, fields.clone())).await), text(&greedy), "{fields}");
    }
    // Parameters that are off, or have nothing to act on, do not change the text.
    for fields in [
        json!({ "top_k": -1, "top_n_sigma": -1, "typical_p": 1, "xtc_probability": 0, "mirostat": 0, "dry_multiplier": 0 }),
        json!({ "samplers": [], "repeat_last_n": -1, "dynatemp_range": 0, "bad_words": [], "mirostat_tau": 3 }),
        json!({ "xtc_probability": 1, "xtc_threshold": 0.9 }),
        json!({ "repetition_penalty": 3, "repeat_last_n": 0 }),
        json!({ "guidance_scale": 1, "negative_prompt": "", "penalty_alpha": 0, "banned_strings": [], "cfg_scale": null }),
        json!({ "typical_p": null, "samplers": null, "allowed_token_ids": null, "logprobs_mode": null }),
    ] {
        assert_eq!(text(&server.complete(with(&base, fields.clone())).await), text(&plain), "{fields}");
    }
    // These change the text.
    for fields in [
        json!({ "typical_p": 0.05 }),
        json!({ "xtc_probability": 1, "xtc_threshold": 0.001 }),
        json!({ "dynatemp_range": 1, "dynatemp_exponent": 3 }),
    ] {
        assert_ne!(text(&server.complete(with(&base, fields.clone())).await), text(&plain), "{fields}");
    }
}

#[tokio::test]
async fn dry_penalizes_repetition_except_at_sequence_breakers() {
    let server = Server::start();
    // The bias makes the model repeat `a`; the penalty for repetition is larger than the bias.
    let base = json!({ "prompt": "x", "max_tokens": 4, "temperature": 0, "logit_bias": { "97": 50, "98": 40 } });
    assert_eq!(text(&server.complete(base.clone()).await), "aaaa");
    let dry = json!({ "dry_multiplier": 30, "dry_base": 1, "dry_allowed_length": 1 });
    let broken = with(&base, dry.clone());
    assert_eq!(text(&server.complete(broken.clone()).await), "aaba");
    let breaker = with(&broken, json!({ "dry_sequence_breakers": ["a"] }));
    assert_eq!(text(&server.complete(breaker).await), "aaaa");
    let blind = with(&broken, json!({ "dry_penalty_last_n": 1 }));
    assert_eq!(text(&server.complete(blind).await), "aaaa");
}

#[tokio::test]
async fn allowed_token_ids_bad_words_and_min_tokens_exclude_tokens() {
    let server = Server::start();
    let base = json!({ "prompt": "x", "max_tokens": 6, "ignore_eos": true, "seed": 3 });
    let allowed = server.complete(with(&base, json!({ "allowed_token_ids": [97, 98] }))).await;
    assert!(text(&allowed).chars().all(|character| "ab".contains(character)), "{allowed}");
    // `b` is next best where `a` may not follow `a`.
    let biased = with(&base, json!({ "temperature": 0, "logit_bias": { "97": 100, "98": 50 } }));
    assert_eq!(text(&server.complete(with(&biased, json!({ "bad_words": ["aa"] }))).await), "ababab");
    assert_eq!(text(&server.complete(with(&biased, json!({ "bad_words": ["a"] }))).await), "bbbbbb");
    let least = with(&biased, json!({ "logit_bias": { (EOS.to_string()): 100, "97": 50 }, "ignore_eos": false }));
    assert_eq!(text(&server.complete(least.clone()).await), "");
    let answer = server.complete(with(&least, json!({ "min_tokens": 4 }))).await;
    assert_eq!((text(&answer), &answer["choices"][0]["finish_reason"]), ("aaaa", &json!("stop")));
}

#[tokio::test]
async fn special_tokens_and_stop_strings_are_in_the_text_on_request() {
    let server = Server::start();
    let ends = json!({ "prompt": "x", "max_tokens": 3, "logit_bias": { (EOS.to_string()): 100 } });
    let shown = |fields: Value| {
        let (server, body) = (&server, with(&ends, fields));
        async move { text(&server.complete(body).await).to_owned() }
    };
    assert_eq!(shown(json!({})).await, "");
    assert_eq!(shown(json!({ "skip_special_tokens": false })).await, "");
    assert_eq!(shown(json!({ "include_stop_str_in_output": true })).await, "");
    assert_eq!(shown(json!({ "skip_special_tokens": false, "include_stop_str_in_output": true })).await, "<|end|>");
    let ignoring = json!({ "skip_special_tokens": false, "ignore_eos": true });
    assert_eq!(shown(ignoring).await, "<|end|><|end|><|end|>");

    let stops = json!({ "prompt": "x", "max_tokens": 6, "logit_bias": { "97": 100 }, "stop": "aaa" });
    let cut = server.complete(stops.clone()).await;
    assert_eq!((text(&cut), &cut["choices"][0]["finish_reason"]), ("", &json!("stop")));
    let kept = with(&stops, json!({ "include_stop_str_in_output": true }));
    assert_eq!(text(&server.complete(kept.clone()).await), "aaa");
    let streamed: String =
        server.stream(kept).await.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, "aaa");
    let by_token = json!({ "prompt": "x", "max_tokens": 6, "logit_bias": { "97": 100 }, "stop_token_ids": [97] });
    assert_eq!(text(&server.complete(by_token.clone()).await), "");
    let kept = with(&by_token, json!({ "include_stop_str_in_output": true }));
    assert_eq!(text(&server.complete(kept).await), "a");
}

#[tokio::test]
async fn truncate_prompt_tokens_cuts_the_start_and_usage_reports_it() {
    let server = Server::start();
    let body = json!({
        "prompt": "abcdef", "max_tokens": 1, "echo": true, "truncate_prompt_tokens": 4, "return_token_ids": true,
        "temperature": 0,
    });
    let answer = server.complete(body.clone()).await;
    assert!(text(&answer).starts_with("cdef"), "{answer}");
    assert_eq!(answer["choices"][0]["prompt_token_ids"], json!([0x63, 0x64, 0x65, 0x66]));
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["prompt_tokens_details"]["truncated_tokens"]), (&json!(4), &json!(2)));
    let whole = server.complete(with(&body, json!({ "truncate_prompt_tokens": 400 }))).await;
    assert_eq!(whole["usage"]["prompt_tokens_details"]["truncated_tokens"], 0);
    // `-1` keeps as much of the prompt as fits beside the answer.
    let long = json!({ "prompt": vec![97; MAX_SEQ_LEN + 5], "max_tokens": 2, "ignore_eos": true });
    let refused = server.post(long.to_string()).await;
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
    let fitting = server.complete(with(&long, json!({ "truncate_prompt_tokens": -1 }))).await;
    assert_eq!(fitting["usage"]["total_tokens"], MAX_SEQ_LEN);
    assert_eq!(fitting["usage"]["prompt_tokens_details"]["truncated_tokens"], 7);
}

#[tokio::test]
async fn prompt_logprobs_have_the_vllm_shape() {
    let server = Server::start();
    let base = json!({ "prompt": "the end", "max_tokens": 1, "temperature": 0 });
    let answer = server.complete(with(&base, json!({ "prompt_logprobs": 2, "echo": true, "logprobs": 5 }))).await;
    let choice = &answer["choices"][0];
    let entries = choice["prompt_logprobs"].as_array().unwrap();
    let ids = tokenizer().encode("the end", EncodeOptions::PROMPT).unwrap();
    assert_eq!((entries.len(), &entries[0]), (ids.len(), &Value::Null));
    for (position, id) in ids.iter().enumerate().skip(1) {
        let own = &entries[position][id.to_string()];
        assert_eq!(own["logprob"], choice["logprobs"]["token_logprobs"][position]);
        let (rank, n) = (own["rank"].as_u64().unwrap(), entries[position].as_object().unwrap().len());
        assert_eq!(n, if rank > 2 { 3 } else { 2 }, "{entries:?}");
        assert!(own["decoded_token"].is_string());
    }
    // Five alternatives, and the token itself if it is not among them.
    assert!((5..=6).contains(&choice["logprobs"]["top_logprobs"][1].as_object().unwrap().len()));
    let chat = server
        .chat(json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1, "prompt_logprobs": 0 }))
        .await;
    assert_eq!(
        chat["prompt_logprobs"].as_array().unwrap().len() as u64,
        chat["usage"]["prompt_tokens"].as_u64().unwrap()
    );
}

#[tokio::test]
async fn logprobs_mode_selects_raw_or_processed_logprobs() {
    let server = Server::start();
    // With a bias of 100 the probabilities of other tokens would underflow.
    let base = json!({ "prompt": "x", "max_tokens": 1, "logprobs": 3, "logit_bias": { "97": 50 } });
    let number = |answer: Value| answer["choices"][0]["logprobs"]["token_logprobs"][0].as_f64().unwrap();
    let raw = number(server.complete(base.clone()).await);
    assert!(raw < -0.01, "the model's own opinion: {raw}");
    let processed = server.complete(with(&base, json!({ "logprobs_mode": "processed_logprobs", "top_k": 2 }))).await;
    assert_eq!(processed["choices"][0]["logprobs"]["top_logprobs"][0].as_object().unwrap().len(), 2);
    assert!(number(processed) > -1e-6);
}

#[tokio::test]
async fn invalid_or_contradictory_parameters_are_rejected_by_name() {
    let server = Server::start();
    let cases = [
        (json!({ "mirostat": 1, "temperature": 0 }), "mirostat", "`temperature`"),
        (json!({ "mirostat": 3 }), "mirostat", "from 0 to 2"),
        (json!({ "mirostat_tau": -1 }), "mirostat_tau", "from 0 up"),
        (json!({ "typical_p": 0 }), "typical_p", "above 0"),
        (json!({ "typical_p": 1.1 }), "typical_p", "above 0, 1 at most"),
        (json!({ "top_n_sigma": -2 }), "top_n_sigma", "from -1 up"),
        (json!({ "top_n_sigma": 1e39 }), "top_n_sigma", "from -1 up"),
        (json!({ "guidance_scale": 1.5 }), "guidance_scale", "classifier-free guidance"),
        (json!({ "negative_prompt": "x", "guidance_scale": 1 }), "negative_prompt", "classifier-free guidance"),
        (json!({ "penalty_alpha": 0.6 }), "penalty_alpha", "contrastive search"),
        (json!({ "banned_strings": ["x"] }), "banned_strings", "`bad_words`"),
        (json!({ "epsilon_cutoff": 2 }), "epsilon_cutoff", "from 0 to 1"),
        (json!({ "eta_cutoff": -0.1 }), "eta_cutoff", "from 0 to 1"),
        (json!({ "tfs": 1.5 }), "tfs", "from 0 to 1"),
        (json!({ "top_a": -1 }), "top_a", "from 0 to 1"),
        (json!({ "smoothing_curve": 4 }), "smoothing_curve", "from 1 to 3"),
        (json!({ "adaptive_decay": 1 }), "adaptive_decay", "from 0 to 0.99"),
        (json!({ "adaptive_target": 0.5, "mirostat": 2 }), "adaptive_target", "`mirostat`"),
        (json!({ "adaptive_target": 0.5, "temperature": 0 }), "adaptive_target", "`temperature`"),
        (json!({ "epsilon_cutoff": 0.1, "mirostat": 2 }), "mirostat", "`epsilon_cutoff`"),
        (json!({ "encoder_repetition_penalty": 0 }), "encoder_repetition_penalty", "above 0"),
        (
            json!({ "no_repeat_ngram_size": 2, "allowed_token_ids": [97] }),
            "no_repeat_ngram_size",
            "`allowed_token_ids`",
        ),
        (json!({ "logit_bias_tokens": 0 }), "logit_bias_tokens", "from 1 up"),
        (json!({ "samplers": ["top_k"], "smoothing_factor": 0.5 }), "samplers", "`smoothing_factor`"),
        (json!({ "xtc_threshold": 2 }), "xtc_threshold", "from 0 to 1"),
        (json!({ "dry_base": 0.5 }), "dry_base", "from 1 up"),
        (json!({ "dry_allowed_length": 0 }), "dry_allowed_length", "from 1 up"),
        (json!({ "dry_multiplier": 1, "dry_sequence_breakers": [""] }), "dry_sequence_breakers", "empty"),
        (json!({ "dry_sequence_breakers": "x" }), "dry_sequence_breakers", "an array of strings"),
        (json!({ "repeat_last_n": -2 }), "repeat_last_n", "from -1 up"),
        (json!({ "repetition_penalty": 2, "repeat_penalty": 3 }), "repetition_penalty", "`repeat_penalty`"),
        (json!({ "samplers": ["heat"] }), "samplers", "got `heat`"),
        (json!({ "samplers": ["top_k"], "top_p": 0.5 }), "samplers", "`top_p`"),
        (json!({ "samplers": ["top_k", "top_k"] }), "samplers", "twice"),
        (json!({ "allowed_token_ids": [] }), "allowed_token_ids", "at least one token id"),
        (json!({ "allowed_token_ids": [263] }), "allowed_token_ids", "263"),
        (json!({ "bad_words": [" "] }), "bad_words", "not empty or blank"),
        (json!({ "truncate_prompt_tokens": 0 }), "truncate_prompt_tokens", "at least 1"),
        (json!({ "logprobs_mode": "raw" }), "logprobs_mode", "`raw_logprobs` or `processed_logprobs`"),
        (json!({ "prompt_logprobs": 21 }), "prompt_logprobs", "from 0 to 20"),
        (
            json!({ "stream_options": { "continuous_usage_stats": true } }),
            "stream_options.continuous_usage_stats",
            "`include_usage`",
        ),
        (json!({ "json_schema": {} }), "json_schema", "not supported\nhint: use `structured_outputs.json`"),
        (json!({ "format": "json" }), "format", "not supported\nhint: use `structured_outputs.json`"),
        (json!({ "regex": "a" }), "regex", "not supported\nhint: use `structured_outputs.regex`"),
        (json!({ "functions": [{ "name": "f" }] }), "functions", "not supported\nhint: use `tools`"),
        (json!({ "logits_processors": ["a.b"] }), "logits_processors", "not supported"),
    ];
    for (fields, param, message) in cases {
        let answer = server.post(with(&json!({ "prompt": "x" }), fields.clone()).to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{fields}");
        assert!(answer.error().contains(message), "{fields}: {}", answer.error());
        assert_eq!(answer.json()["error"]["param"], param, "{fields}");
    }
}
