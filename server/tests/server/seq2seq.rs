//! An encoder-decoder behind the endpoints: a tiny T5 with a tokenizer, whose texts `transformers` generated.

use std::{fs, path::PathBuf};

use axum::http::StatusCode;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use burn::tensor::Device;
use hearth_engine::Models;
use hearth_model::weights::model_dir::{LoadOptions, load};
use hearth_server::{api::wire::state::AppState, engine::Engine};
use serde_json::{Value, json};

use super::cli;
use crate::support::{self, CHAT, MODEL, OPTIONS, Server, fold};

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/t5")
}

fn expected() -> Value {
    serde_json::from_slice(&fs::read(golden().join("expected.json")).unwrap()).unwrap()
}

fn server() -> Server {
    let options = LoadOptions { device: Device::flex(), dtype: None };
    let engine = Engine::start(move || Ok(Models::from(load(&golden(), &options)?)), OPTIONS).unwrap();
    Server { state: AppState::ready(MODEL, engine.clone()), engine }
}

fn request(prompt: &Value) -> Value {
    json!({ "prompt": prompt, "max_tokens": 12, "temperature": 0, "return_token_ids": true })
}

#[tokio::test]
async fn completion_of_an_encoder_decoder_is_what_transformers_generates() {
    let (server, expected) = (server(), expected());
    let body = request(&expected["prompt"]);
    let answer = server.complete(body.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["token_ids"], expected["generated"]);
    assert_eq!(choice["text"], expected["text"]);
    assert_eq!(choice["prompt_token_ids"], expected["source_ids"]);
    let n_source = expected["source_ids"].as_array().unwrap().len();
    assert_eq!(answer["usage"]["prompt_tokens"], n_source + 1, "with the token that the decoder begins with");
    // Streamed, as ids, under vLLM's name, and with the token that begins it.
    let events = server.stream(body.clone()).await;
    assert_eq!(fold(&events)[0]["text"], expected["text"]);
    for (name, value) in [("prompt", &expected["source_ids"]), ("encoder_prompt", &expected["prompt"])] {
        let mut body = body.clone();
        body.as_object_mut().unwrap().remove("prompt");
        body[name] = value.clone();
        body["decoder_prompt"] = json!([0]);
        assert_eq!(server.complete(body).await["choices"][0]["token_ids"], expected["generated"], "{name}");
    }
}

/// A source is read once, and beams and choices share it.
#[tokio::test]
async fn sources_are_cached_whole_and_shared_by_choices_and_beams() {
    let (server, expected) = (server(), expected());
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let body = request(&expected["prompt"]);
    let n_source = expected["source_ids"].as_array().unwrap().len();
    assert_eq!(cached(&server.complete(body.clone()).await), 0);
    assert_eq!(cached(&server.complete(body.clone()).await), n_source);
    // The first page of a long source is another one, if the source ends otherwise.
    let long = |last: u32| json!((0..40).map(|n| 3 + n).chain([last]).collect::<Vec<u32>>());
    assert_eq!(cached(&server.complete(request(&long(5))).await), 0);
    assert_eq!(cached(&server.complete(request(&long(6))).await), 0);
    assert_eq!(cached(&server.complete(request(&long(5))).await), 41);
    let choices = |answer: &Value| answer["choices"].as_array().unwrap().clone();
    let mut several = body.clone();
    several["n"] = json!(3);
    for choice in choices(&server.complete(several).await) {
        assert_eq!(choice["token_ids"], expected["generated"]);
    }
    let mut beams = body.clone();
    beams["use_beam_search"] = json!(true);
    beams["best_of"] = json!(3);
    let found = &choices(&server.complete(beams).await)[0];
    assert_eq!(found["token_ids"], expected["beams"]);
    let many = json!([expected["prompt"], long(7), expected["prompt"], "a dog runs"]);
    let together = choices(&server.complete(request(&many)).await);
    for (prompt, choice) in many.as_array().unwrap().iter().zip(&together) {
        assert_eq!(choice["text"], choices(&server.complete(request(prompt)).await)[0]["text"]);
    }
}

#[tokio::test]
async fn what_an_encoder_decoder_cannot_do_is_a_400_that_says_so() {
    let server = server();
    let refused = async |path: &str, body: Value| {
        let answer = server.post_to(path, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {body}");
        answer.error()
    };
    let error = refused("/v1/embeddings", json!({ "input": "a cat" })).await;
    assert!(error.contains("makes no vectors"), "{error}");
    let error = refused(CHAT, json!({ "messages": [{ "role": "user", "content": "a cat" }] })).await;
    assert!(error.contains("has no conversations\nhint: use `/v1/completions`"), "{error}");
    let error = refused("/v1/completions", request(&json!(vec![3; 65]))).await;
    assert!(error.contains("the source has 65 tokens, but the encoder reads at most 64"), "{error}");
    for (param, value) in [("echo", json!(true)), ("suffix", json!("x")), ("prompt_logprobs", json!(1))] {
        let mut body = request(&json!("a cat"));
        body[param] = value;
        let error = refused("/v1/completions", body).await;
        assert!(error.contains(&format!("`{param}` is not supported for an encoder-decoder")), "{error}");
    }
    let error = refused("/v1/completions", json!({ "prompt": "a", "encoder_prompt": "b" })).await;
    assert!(error.contains("`encoder_prompt` cannot be combined with `prompt`"), "{error}");
    for (body, param, expected) in [
        (
            json!({ "prompt": [3], "decoder_prompt": [100_000] }),
            "decoder_prompt",
            "`decoder_prompt` must hold token ids below",
        ),
        (json!({ "encoder_prompt": [100_000] }), "encoder_prompt", "`encoder_prompt` must hold token ids below"),
        (
            json!({ "prompt": [3], "decoder_prompt": vec![3; 90] }),
            "decoder_prompt",
            "`decoder_prompt` begins the answer with 91 tokens",
        ),
        (json!({ "prompt": "", "add_special_tokens": false }), "prompt", "`prompt` must hold at least one token"),
    ] {
        let answer = server.post(body.to_string()).await;
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
        assert!(answer.error().contains(expected), "{body}: {}", answer.error());
    }
    for (param, body) in [
        ("decoder_prompt", json!({ "prompt": "a", "decoder_prompt": "b" })),
        ("encoder_prompt", json!({ "encoder_prompt": "a" })),
    ] {
        let answer = support::Server::start().post(body.to_string()).await;
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (StatusCode::BAD_REQUEST, Some(param)));
        assert!(answer.error().contains("has no encoder"), "{}", answer.error());
    }
}

/// Of what it writes greedily, each token is the likeliest.
#[tokio::test]
async fn inspection_of_an_encoder_decoder_shows_source_target_and_what_attends_to_what() {
    let (server, expected) = (server(), expected());
    let body = json!({ "input": expected["source_ids"], "target": expected["generated"], "attention": {} });
    let answer = server.post_to("/v1/inspect", body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let found = answer.json();
    let ids = |tokens: &Value| tokens.as_array().unwrap().iter().map(|token| token["id"].clone()).collect::<Vec<_>>();
    let (source, target) = (ids(&found["source"]["tokens"]), ids(&found["tokens"]));
    assert_eq!(json!(source), expected["source_ids"]);
    assert_eq!((&target[0], json!(target[1..])), (&json!(0), expected["generated"].clone()));
    for token in &found["tokens"].as_array().unwrap()[1..] {
        assert_eq!(token["rank"], 1, "{token}");
    }
    let shapes = [
        (&found["attention"], [2, 2, target.len(), target.len()]),
        (&found["source"]["attention"], [3, 2, source.len(), source.len()]),
        (&found["source"]["cross_attention"], [2, 2, target.len(), source.len()]),
    ];
    for (maps, shape) in shapes {
        assert_eq!(maps["shape"], json!(shape));
        let bytes = BASE64_STANDARD.decode(maps["data"].as_str().unwrap()).unwrap();
        let weights: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| half(u16::from_le_bytes(*bytes))).collect();
        assert_eq!(weights.len(), shape.iter().product::<usize>());
        for row in weights.chunks(shape[3]) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-2, "{row:?}");
        }
    }
    for (body, message) in [
        (json!({ "input": "a cat" }), "`target` is missing: this model is an encoder-decoder"),
        (json!({ "messages": [{ "role": "user", "content": "a cat" }] }), "`messages` cannot be inspected"),
        (json!({ "input": vec![3; 65], "target": "a cat" }), "must have 1 to 64 tokens, got 65"),
    ] {
        let answer = server.post_to("/v1/inspect", body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.error().contains(message), "{}", answer.error());
    }
    let body = json!({ "input": "a", "target": "b" });
    let answer = support::Server::start().post_to("/v1/inspect", body.to_string()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.error().contains("`target` is for encoder-decoders"), "{}", answer.error());
}

/// The value of a 16-bit float that is not negative.
fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10), f32::from(bits & 0x3ff));
    if exponent == 0 { fraction * 2.0_f32.powi(-24) } else { (1.0 + fraction / 1024.0) * 2.0_f32.powi(exponent - 15) }
}

/// The beginning of a source is cut, but not the token at its end that the tokenizer adds.
#[tokio::test]
async fn sources_are_cut_at_their_beginning_and_keep_what_the_tokenizer_adds() {
    let (server, expected) = (server(), expected());
    let source: Vec<u64> = serde_json::from_value(expected["source_ids"].clone()).unwrap();
    let mut body = request(&expected["prompt"]);
    body["truncate_prompt_tokens"] = json!(5);
    let answer = server.complete(body).await;
    let kept = &answer["choices"][0]["prompt_token_ids"];
    assert_eq!(*kept, json!(source[source.len() - 5..]));
    assert_eq!(kept[4], 1, "the end of the source");
    let mut body = request(&json!("the small cat sees a big green tree ".repeat(20)));
    body["truncate_prompt_tokens"] = json!(-1);
    let answer = server.complete(body).await;
    let kept = answer["choices"][0]["prompt_token_ids"].as_array().unwrap();
    assert_eq!((kept.len(), &kept[63]), (64, &json!(1)));
}

/// Those of a request count in place of them.
#[tokio::test]
async fn bans_of_the_generation_config_apply_to_every_way_of_decoding() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(golden().join(file), dir.path().join(file)).unwrap();
    }
    let expected = expected();
    let (first, other) = (expected["generated"][0].clone(), expected["generated"][1].clone());
    let rules = json!({ "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "bad_words_ids": [[first]],
                        "suppress_tokens": [other], "no_repeat_ngram_size": 1 });
    fs::write(dir.path().join("generation_config.json"), rules.to_string()).unwrap();
    let (path, options) = (dir.path().to_owned(), LoadOptions { device: Device::flex(), dtype: None });
    let engine = Engine::start(move || Ok(Models::from(load(&path, &options)?)), OPTIONS).unwrap();
    let server = Server { state: AppState::ready(MODEL, engine.clone()), engine };
    let mut beams = request(&expected["prompt"]);
    (beams["use_beam_search"], beams["best_of"]) = (json!(true), json!(3));
    for body in [request(&expected["prompt"]), beams] {
        let ids = server.complete(body.clone()).await["choices"][0]["token_ids"].as_array().unwrap().clone();
        let different: std::collections::BTreeSet<u64> = ids.iter().map(|id| id.as_u64().unwrap()).collect();
        assert!(!ids.contains(&first) && !ids.contains(&other) && different.len() == ids.len(), "{ids:?}");
        let mut free = body.clone();
        (free["bad_words"], free["no_repeat_ngram_size"]) = (json!([]), json!(0));
        let name = if body.get("best_of").is_some() { "beams" } else { "generated" };
        assert_eq!(server.complete(free).await["choices"][0]["token_ids"], expected[name], "{body}");
        let mut allowed = body;
        allowed["allowed_token_ids"] = json!([first]);
        if allowed.get("best_of").is_none() {
            assert_eq!(server.complete(allowed).await["choices"][0]["token_ids"][0], first);
        }
    }
}

#[test]
fn generate_writes_what_an_encoder_decoder_makes_of_a_source() {
    let expected = expected();
    let (dir, prompt) = (golden(), expected["prompt"].as_str().unwrap());
    let model = dir.to_str().unwrap();
    let args = ["generate", prompt, "--model", model, "--device", "cpu", "--max-tokens", "12", "--temperature", "0"];
    let output = cli::run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", cli::stderr(&output));
    assert_eq!(cli::stdout(&output), format!("{}\n", expected["text"].as_str().unwrap()));
    // The token that it begins with, given or not.
    let output = cli::run(&[&args[..], &["--decoder-prompt", "<pad>"]].concat());
    assert_eq!(cli::stdout(&output), format!("{}\n", expected["text"].as_str().unwrap()), "{}", cli::stderr(&output));
    let output = cli::run(&[&args[..], &["--decoder-prompt", "the"]].concat());
    assert_ne!(cli::stdout(&output), format!("{}\n", expected["text"].as_str().unwrap()));
    let output = cli::run(&["generate", "x", "--decoder-prompt", "y", "--max-tokens", "1", "--device", "cpu"]);
    assert!(cli::stderr(&output).contains("`--decoder-prompt` is for encoder-decoders"), "{}", cli::stderr(&output));
    let output =
        cli::run(&["perplexity", dir.join("expected.json").to_str().unwrap(), "--model", model, "--device", "cpu"]);
    assert!(cli::stderr(&output).contains("encoder-decoder"), "{}", cli::stderr(&output));
}
