//! `/v1/embeddings`: vectors equal those of `transformers` and of the model without the engine; rejected requests.

use axum::http::StatusCode;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use burn::tensor::Device;
use hearth_engine::{
    EngineOptions, Event,
    request::{EngineRequest, RequestParts, Strategy},
};
use hearth_model::{
    TokenId,
    decode::sampling::SamplingParams,
    gpt::{
        Gpt,
        attention::AttentionContext,
        kv_cache::{KvCache, StepPart},
        pooling::{OwnPooling, Pooling, VectorScale, VectorSteps},
        token_ids::token_tensor,
    },
    ops::KvDtype,
    text::tokenizer::EncodeOptions,
    weights::model_dir::{LoadOptions, LoadedModel, load, load_embedded},
};
use hearth_server::{api::wire::state::AppState, bundled, engine::Engine};
use serde_json::{Value, json};

use crate::{
    engine::{parts, prompt, request},
    support::{self, MAX_SEQ_LEN, MODEL, OPTIONS, Server, VOCAB_SIZE, engine, is_idle, metric, tokenizer, wait_for},
};

const PATH: &str = "/v1/embeddings";
const POOLINGS: [(&str, Pooling); 4] =
    [("mean", Pooling::Mean), ("last", Pooling::Last), ("max", Pooling::Max), ("cls", Pooling::Cls)];

async fn embed(server: &Server, body: Value) -> Value {
    let answer = server.post_to(PATH, body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}

fn vector(entry: &Value) -> Vec<f32> {
    match &entry["embedding"] {
        Value::String(text) => from_base64(text),
        numbers => numbers.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect(),
    }
}

fn from_base64(text: &str) -> Vec<f32> {
    let bytes = BASE64_STANDARD.decode(text).unwrap();
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn norm(vector: &[f32]) -> f64 {
    vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

/// The vector of a text that the model processes in one step, without the engine.
fn by_hand(gpt: &Gpt, ids: &[TokenId], pooling: Pooling) -> Vec<f32> {
    let mut cache = KvCache::new(gpt.config(), ids.len().div_ceil(16), KvDtype::F32, &gpt.device());
    let mut table = cache.table();
    let mut step = [StepPart::new(&mut table, ids.len())];
    let hidden = gpt.forward(token_tensor(gpt, ids), AttentionContext::Paged(cache.step(&mut step).unwrap()));
    let rows: Vec<f32> = hidden.into_data().try_to_vec().unwrap();
    let rows: Vec<&[f32]> = rows.chunks_exact(gpt.config().d_model).collect();
    let component = |at: usize| {
        let values = rows.iter().map(|row| f64::from(row[at]));
        match pooling {
            Pooling::Mean => values.sum::<f64>() / rows.len() as f64,
            Pooling::Last => f64::from(rows[rows.len() - 1][at]),
            Pooling::Max => values.fold(f64::NEG_INFINITY, f64::max),
            Pooling::Cls => f64::from(rows[0][at]),
            Pooling::Tokens => unreachable!("one vector"),
        }
    };
    (0..gpt.config().d_model).map(|at| component(at) as f32).collect()
}

fn embed_request(token_ids: Vec<TokenId>, pooling: Pooling) -> EngineRequest {
    let vector = VectorSteps { scale: VectorScale::AsIs, ..VectorSteps::default() };
    let strategy = Strategy::Embed { pooling };
    request(RequestParts { prompt_ids: token_ids.into(), strategy, vector, ..RequestParts::default() })
}

#[tokio::test]
async fn embeddings_are_bit_identical_chunked_batched_and_preempted() {
    let gpt = support::gpt();
    let texts: Vec<(Vec<TokenId>, Pooling)> = [1, 130, 17, 64, 3, 99]
        .into_iter()
        .enumerate()
        .map(|(index, n_tokens)| (prompt(n_tokens, index as u32), POOLINGS[index % 4].1))
        .collect();
    let expected: Vec<Vec<f32>> = texts.iter().map(|(ids, pooling)| by_hand(&gpt, ids, *pooling)).collect();
    let mut n_preempted = 0.0;
    for (max_batch_size, max_batch_tokens, n_pages) in [(16, 512, 512), (3, 8, 512), (1, 1, 512), (16, 16, 14)] {
        let kv_cache_tokens = Some(n_pages * 16);
        let engine = engine(EngineOptions { max_batch_size, max_batch_tokens, kv_cache_tokens, ..OPTIONS });
        // Other requests that decode at the same time, and leave pages of the same texts in the prefix cache.
        let others = (0..3).map(|salt| parts(prompt(60, salt), 80, SamplingParams::greedy()));
        let others = engine.submit(others.map(request).collect()).unwrap();
        for round in 0..2 {
            let requests = texts.iter().map(|(ids, pooling)| embed_request(ids.clone(), *pooling)).collect();
            let mut events = engine.submit(requests).unwrap();
            let mut found = vec![Vec::new(); texts.len()];
            while let Some((index, event)) = events.recv().await {
                match event.unwrap() {
                    Event::Embedding(vector) => {
                        assert!(found[index].is_empty(), "one vector each");
                        found[index] = vector;
                    }
                    Event::Finished { .. } => assert!(!found[index].is_empty(), "the end comes last"),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(found, expected, "{max_batch_tokens} tokens, {n_pages} pages, round {round}");
        }
        crate::engine::collect(others, 3).await;
        wait_for(&engine, is_idle).await;
        n_preempted += metric(&engine, "num_preemptions_total");
    }
    assert!(n_preempted > 0.0, "the test shows too little");
}

#[tokio::test]
async fn embeddings_have_the_openai_shape_and_match_the_model() {
    let server = Server::start();
    let gpt = support::gpt();
    let ids = |text: &str| tokenizer().encode(text, EncodeOptions::PROMPT).unwrap();
    let one = embed(&server, json!({ "model": MODEL, "input": "the hand", "user": "me" })).await;
    let data = one["data"][0].as_object().unwrap();
    assert_eq!((&one["object"], &one["model"], &data["object"]), (&json!("list"), &json!(MODEL), &json!("embedding")));
    assert_eq!(data.keys().collect::<Vec<_>>(), ["object", "index", "embedding"]);
    assert_eq!(one["usage"], json!({ "prompt_tokens": 4, "total_tokens": 4 }));
    assert_eq!(vector(&one["data"][0]).len(), 32);
    assert!((norm(&vector(&one["data"][0])) - 1.0).abs() < 1e-6);

    // All forms of input, in order; base64 has the same numbers.
    for input in
        [json!(["the hand", "an end"]), json!([ids("the hand"), ids("an end")]), json!(["the hand", ids("an end")])]
    {
        for (name, pooling) in POOLINGS {
            let body = json!({ "input": input, "pooling": name, "normalize": false, "encoding_format": "float" });
            let two = embed(&server, body.clone()).await;
            let mut coded = body;
            coded["encoding_format"] = json!("base64");
            let coded = embed(&server, coded).await;
            for (index, text) in ["the hand", "an end"].into_iter().enumerate() {
                let expected = by_hand(&gpt, &ids(text), pooling);
                assert_eq!(two["data"][index]["index"], index);
                assert_eq!(vector(&two["data"][index]), expected);
                assert_eq!(vector(&coded["data"][index]), expected);
                assert!(coded["data"][index]["embedding"].is_string());
            }
            assert_eq!(two["usage"]["prompt_tokens"], ids("the hand").len() + ids("an end").len());
        }
    }
    assert_eq!(embed(&server, json!({ "input": ids("the hand"), "dimensions": 32 })).await["data"], one["data"]);
    server.wait_for(is_idle).await;
    assert!(metric(&server.engine, "prompt_tokens_total") > 4.0);
    assert_eq!(metric(&server.engine, "generation_tokens_total"), 0.0);
    assert_eq!(metric(&server.engine, "prefix_cache_queries_total"), 0.0, "every position is wanted");
}

/// Unless the request chooses.
#[tokio::test]
async fn embeddings_are_pooled_as_the_files_of_the_model_say() {
    let server_of = |own_pooling: OwnPooling| {
        let model = move || Ok(LoadedModel { own_pooling, ..support::model() });
        Server::trusting_templates(Engine::start(model, OPTIONS).unwrap())
    };
    let plain = Server::start();
    for (name, pooling) in POOLINGS {
        let chosen = embed(&plain, json!({ "input": "the hand", "pooling": name })).await;
        let own = embed(&server_of(OwnPooling::As(pooling)), json!({ "input": "the hand" })).await;
        assert_eq!(own["data"], chosen["data"], "{name}");
    }
    let server = server_of(OwnPooling::Unsupported("`modules.json` has the module `Dense`".to_owned()));
    let answer = server.post_to(PATH, json!({ "input": "x" }).to_string()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.error().contains("is not supported: `modules.json` has the module `Dense`"), "{}", answer.error());
    embed(&server, json!({ "input": "x", "pooling": "mean" })).await;
}

#[tokio::test]
async fn embedding_inputs_are_truncated_only_on_request() {
    let server = Server::start();
    let long = json!({ "input": vec![97; MAX_SEQ_LEN + 3] });
    let refused = server.post_to(PATH, long.to_string()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let error = &refused.json()["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("input")));
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(MAX_SEQ_LEN + 3), &json!(MAX_SEQ_LEN)));
    let cut = embed(&server, json!({ "input": ["abcdef", "ef"], "truncate_prompt_tokens": 2 })).await;
    assert_eq!(cut["data"][0]["embedding"], cut["data"][1]["embedding"]);
    assert_eq!(
        cut["usage"],
        json!({ "prompt_tokens": 4, "total_tokens": 4, "prompt_tokens_details": { "truncated_tokens": 4 } })
    );
    let small = Server::with_options(EngineOptions { kv_cache_tokens: Some(64), ..OPTIONS });
    let fitting = embed(&small, json!({ "input": vec![97; 70], "truncate_prompt_tokens": -1 })).await;
    assert_eq!(fitting["usage"]["prompt_tokens"], 64, "a text needs no room for an answer");
}

#[tokio::test]
async fn invalid_embedding_requests_are_rejected_naming_the_parameter() {
    let server = Server::start();
    let cases = [
        (json!({}), "input", "`input` is required"),
        (json!({ "input": null }), "input", "`input` is required"),
        (json!({ "input": "" }), "input", "at least one token"),
        (json!({ "input": ["x", ""] }), "input", "at least one token"),
        (json!({ "input": [] }), "input", "got `[]`"),
        (json!({ "input": [1, "x"] }), "input", "got `[1,\"x\"]`"),
        (json!({ "input": [VOCAB_SIZE] }), "input", "token ids below 263, got 263"),
        (json!({ "input": vec!["x"; 2049] }), "input", "at most 2048 texts, got 2049"),
        (json!({ "dimensions": 16 }), "dimensions", "must be 32, the length of the model's vectors, got `16`"),
        (json!({ "dimensions": 0 }), "dimensions", "from 1 up"),
        (json!({ "encoding_format": "int8" }), "encoding_format", "`float` or `base64`, got `\"int8\"`"),
        (json!({ "pooling": "first" }), "pooling", "`mean` or `last` or `max` or `cls`"),
        (json!({ "normalize": 2 }), "normalize", "true or false"),
        (json!({ "truncate_prompt_tokens": 0 }), "truncate_prompt_tokens", "at least 1"),
        (json!({ "priority": 1000 }), "priority", "from -100 to 100"),
    ];
    for (mut body, param, message) in cases {
        if body.get("input").is_none() && param != "input" {
            body["input"] = json!("x");
        }
        let answer = server.post_to(PATH, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.error().contains(message), "{body}: {}", answer.error());
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
    let unknown = server.post_to(PATH, json!({ "input": "x", "model": "gpt-9" }).to_string()).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let told = server.post_to(PATH, json!({ "input": "x", "user": "me", "new_field": 1 }).to_string()).await;
    assert_eq!(told.header("x-ignored-params"), "new_field");
}

#[tokio::test]
async fn embedding_disconnect_frees_the_queue_and_a_full_queue_is_429() {
    let options = EngineOptions { max_queue: 20, max_batch_size: 1, max_batch_tokens: 1, ..OPTIONS };
    let server = Server::with_options(options);
    let long = json!({ "input": vec![vec![97; 4000]; 20] }).to_string();
    // Each of the twenty texts takes a place in the queue until it starts.
    let refused = tokio::select! {
        _ = server.post_to(PATH, long.clone()) => panic!("ended before the next request came"),
        refused = async {
            server.wait_for(|stats| stats.running == 1 && stats.waiting == 19).await;
            server.post_to(PATH, long.clone()).await
        } => refused,
    };
    assert_eq!((refused.status, refused.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "2"));
    // The first request was dropped by `select!`.
    server.wait_for(is_idle).await;
    let late = json!({ "input": vec![97; 8000], "deadline_ms": 1 });
    assert_eq!(server.post_to(PATH, late.to_string()).await.status, StatusCode::GATEWAY_TIMEOUT);
    server.wait_for(is_idle).await;
}

/// Compares the vectors of a model with those of `transformers` (`golden/make_embeddings.py`).
async fn compare_with_transformers<Load>(name: &str, load: Load)
where
    Load: FnOnce() -> hearth_model::Result<LoadedModel> + Send + 'static,
{
    let golden: Value = serde_json::from_str(include_str!("../golden/embeddings.json")).unwrap();
    let engine = Engine::start(load, EngineOptions { kv_cache_tokens: Some(512), ..OPTIONS }).unwrap();
    let server = Server { state: AppState::ready(MODEL, engine.clone()), engine };
    for case in golden[name].as_array().unwrap() {
        for (pooling, expected) in case["vectors"].as_object().unwrap() {
            for normalize in [false, true] {
                let expected = from_base64(expected.as_str().unwrap());
                let scale = if normalize { norm(&expected) } else { 1.0 };
                let expected: Vec<f32> = expected.iter().map(|value| (f64::from(*value) / scale) as f32).collect();
                let body = json!({ "input": case["input"], "pooling": pooling, "normalize": normalize });
                let found = vector(&embed(&server, body).await["data"][0]);
                assert_eq!(found.len(), expected.len());
                let dot: f64 = found.iter().zip(&expected).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let miss = 1.0 - dot / norm(&found) / norm(&expected);
                let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                let error = found.iter().zip(&expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs())) / largest;
                println!("{name} {pooling}: cosine 1 - {miss:.1e}, largest error {error:.1e} of the largest component");
                assert!(miss < 1e-9, "{pooling}: {miss}");
                assert!(error < 2e-5, "{pooling}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn bundled_model_embeddings_match_transformers() {
    let load = || load_embedded(&bundled::DIR, &LoadOptions { device: Device::flex(), dtype: None });
    compare_with_transformers("bundled", load).await;
}

#[tokio::test]
async fn smollm2_embeddings_match_transformers() {
    let Some(dir) = std::env::var_os("HEARTH_SMOLLM2") else {
        println!("skipped: set HEARTH_SMOLLM2=DIR to the Hugging Face dir of SmolLM2-135M-Instruct to run");
        return;
    };
    let load = move || load(dir.as_ref(), &LoadOptions { device: Device::flex(), dtype: None });
    compare_with_transformers("smollm2", load).await;
}
