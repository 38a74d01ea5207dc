//! Requests with a common prefix: prefix cache and forks. Tokens and log-probabilities equal those of a request that
//! shares nothing.

use axum::http::{Request, StatusCode, header};
use hearth_engine::{
    EngineOptions, Event, EventStream,
    prefix_cache::PrefixSalt,
    request::{EngineRequest, RequestParts},
};
use hearth_model::{TokenId, decode::sampling::SamplingParams};
use hearth_server::{
    api::guard::{api_keys::ApiKeys, options::PrefixSharing},
    engine::Engine,
};
use serde_json::{Value, json};

use crate::{
    connections::with_options,
    engine::{mixed_requests, parts, plain_loop_tokens, prompt, request, run},
    support::{self, OPTIONS, Server, engine, is_idle, metric, wait_for},
};

/// Everything that a client receives for one request; log-probabilities as bits, to compare them exactly.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClientAnswer {
    pub(crate) token_ids: Vec<TokenId>,
    pub(crate) text: String,
    logprobs: Vec<u32>,
    prompt_logprobs: Vec<Option<u32>>,
}

async fn collect_answers(mut events: EventStream, n_answers: usize) -> (Vec<ClientAnswer>, usize) {
    let (mut told, mut n_cached) = (vec![ClientAnswer::default(); n_answers], 0);
    while let Some((index, event)) = events.recv().await {
        let told = &mut told[index];
        match event.unwrap() {
            Event::Token { id, text, logprobs, .. } => {
                told.token_ids.push(id);
                told.text += &text;
                told.logprobs.extend(logprobs.map(|logprobs| logprobs.logprob.to_bits()));
            }
            Event::PromptLogprobs(logprobs) => {
                assert!(told.prompt_logprobs.is_empty(), "told once");
                let bits = logprobs.iter().map(|logprobs| logprobs.as_ref().map(|logprobs| logprobs.logprob.to_bits()));
                told.prompt_logprobs = bits.collect();
            }
            Event::Finished { text, cached_tokens, .. } => {
                told.text += &text;
                n_cached += cached_tokens;
            }
            other => panic!("{other:?}"),
        }
    }
    (told, n_cached)
}

pub(crate) async fn answers(engine: &Engine, requests: &[RequestParts]) -> (Vec<ClientAnswer>, usize) {
    let requests: Vec<EngineRequest> = requests.iter().cloned().map(request).collect();
    let n_answers = requests.len();
    collect_answers(engine.submit(requests).unwrap(), n_answers).await
}

fn with_start(start: &[TokenId], salt: u32) -> Vec<TokenId> {
    [start, &prompt(5 + salt as usize * 7, salt)].concat()
}

#[tokio::test]
async fn prefix_cache_hits_save_work_and_do_not_change_answers() {
    let start = prompt(100, 9);
    let sampled = SamplingParams { temperature: 0.8, seed: 5, ..SamplingParams::default() };
    let requests: Vec<RequestParts> = (0..6)
        .map(|salt| RequestParts {
            logprobs: Some(2),
            ..parts(
                with_start(&start, salt),
                25,
                if salt % 2 == 0 { SamplingParams::greedy() } else { sampled.clone() },
            )
        })
        .collect();
    let mut fresh = Vec::new();
    for parts in &requests {
        let engine = engine(OPTIONS);
        let (told, n_cached) = answers(&engine, std::slice::from_ref(parts)).await;
        assert_eq!(n_cached, 0);
        fresh.extend(told);
    }
    let engine = engine(OPTIONS);
    let (first, _) = answers(&engine, &requests[..1]).await;
    assert_eq!(first, fresh[..1]);
    let before = metric(&engine, "iteration_tokens_total_sum");
    let (told, n_cached) = answers(&engine, &requests).await;
    assert_eq!(told, fresh);
    // The common start has 6 full pages. The prompt of the first request has 105 tokens: no more full pages.
    assert_eq!(n_cached, 6 * 96);
    let n_computed = metric(&engine, "iteration_tokens_total_sum") - before;
    let n_tokens: usize = requests.iter().map(|parts| parts.prompt_ids.len() + 24 - 96).sum();
    assert_eq!(n_computed, n_tokens as f64);
    assert_eq!(metric(&engine, "prefix_cache_hits_total"), 6.0 * 96.0);
    // Generated tokens are cached, too: a prompt that continues an answer.
    let continued = [&requests[0].prompt_ids[..], &fresh[0].token_ids].concat();
    let (_, n_cached) = answers(&engine, &[parts(continued, 1, SamplingParams::greedy())]).await;
    assert_eq!(n_cached, 128, "of 130 tokens, the last of which was never computed");
    // Another salt shares no pages with unsalted requests, but with itself.
    let salted = RequestParts { prefix_salt: Some(PrefixSalt::of_request("mine")), ..requests[0].clone() };
    for expected in [0, 96] {
        let (told, n_cached) = answers(&engine, std::slice::from_ref(&salted)).await;
        assert_eq!((told.as_slice(), n_cached), (&fresh[..1], expected));
    }
    wait_for(&engine, is_idle).await;
}

#[tokio::test]
async fn tokens_stay_correct_when_the_prefix_cache_overflows() {
    let requests = mixed_requests();
    let alone = plain_loop_tokens(&support::gpt(), &requests);
    // 16 pages: cached pages are evicted within the same round.
    let engine = engine(EngineOptions { kv_cache_tokens: Some(256), max_batch_size: 3, ..OPTIONS });
    for round in 0..3 {
        assert_eq!(run(&engine, &requests).await, alone);
        wait_for(&engine, is_idle).await;
        // Both are longer than a page. One was among the last to end, so its pages are still cached; after the other ended,
        // later requests filled more than all pages, so its pages were evicted.
        for (index, is_cached) in [(14, true), (2, false)] {
            let (told, n_cached) = answers(&engine, &requests[index..=index]).await;
            assert_eq!(told[0].token_ids, alone[index], "request {index}, round {round}");
            assert_eq!(n_cached > 0, is_cached, "request {index}, round {round}: {n_cached} cached tokens");
            wait_for(&engine, is_idle).await;
        }
    }
}

#[tokio::test]
async fn prompt_logprobs_requests_do_not_use_the_prefix_cache() {
    let scored = RequestParts {
        logprobs: Some(0),
        prompt_logprobs: Some(1),
        ..parts(prompt(90, 3), 4, SamplingParams::greedy())
    };
    let engine = engine(OPTIONS);
    let (first, _) = answers(&engine, std::slice::from_ref(&scored)).await;
    let (again, n_cached) = answers(&engine, std::slice::from_ref(&scored)).await;
    assert_eq!((&again, n_cached), (&first, 0));
    assert_eq!(first[0].prompt_logprobs.len(), 90);
    assert!(first[0].prompt_logprobs.iter().skip(1).all(Option::is_some));
}

/// Choices of one prompt, with different random streams, and with log-probabilities of the prompt if requested.
pub(crate) fn choices(n: u32, prompt_logprobs: Option<usize>) -> Vec<RequestParts> {
    let sampling = SamplingParams { temperature: 1.2, seed: 77, ..SamplingParams::default() };
    let one = |choice| RequestParts {
        choice,
        logprobs: Some(1),
        prompt_logprobs,
        ..parts(prompt(70, 4), 20 + choice as usize, sampling.clone())
    };
    (0..n).map(one).collect()
}

#[tokio::test]
async fn forked_choices_equal_single_runs_and_prefill_the_prompt_once() {
    for prompt_logprobs in [None, Some(1)] {
        let requests = choices(7, prompt_logprobs);
        let mut fresh = Vec::new();
        for parts in &requests {
            let engine = engine(OPTIONS);
            fresh.extend(answers(&engine, std::slice::from_ref(parts)).await.0);
        }
        // All at once; some waiting; one at a time; and with so few pages that they preempt each other.
        let pages = |n_pages: usize| Some(n_pages * 16);
        for (max_batch_size, kv_cache_tokens) in [(8, None), (3, None), (1, None), (8, pages(12)), (8, pages(7))] {
            let engine = engine(EngineOptions { max_batch_size, kv_cache_tokens, max_batch_tokens: 24, ..OPTIONS });
            let (told, n_cached) = answers(&engine, &requests).await;
            assert_eq!(told, fresh, "{max_batch_size} at once, {kv_cache_tokens:?} tokens");
            assert_eq!(n_cached, 0, "the prompt was computed for this submission");
            wait_for(&engine, is_idle).await;
            assert_eq!(metric(&engine, "prompt_tokens_total"), 70.0);
            let n_generated: usize = fresh.iter().map(|told| told.token_ids.len()).sum();
            assert_eq!(metric(&engine, "generation_tokens_total"), n_generated as f64);
            if max_batch_size == 8 && kv_cache_tokens.is_none() {
                // Each answer's last token is never fed back.
                let n_computed = metric(&engine, "iteration_tokens_total_sum");
                assert_eq!(n_computed, (70 + n_generated - requests.len()) as f64);
            }
        }
    }
}

#[tokio::test]
async fn best_of_returns_the_answers_with_the_highest_mean_logprob() {
    let server = Server::start();
    let body = |n: usize, best_of: usize| {
        json!({ "prompt": ["one and", "x"], "max_tokens": 6, "n": n, "best_of": best_of, "seed": 3, "logprobs": 0,
                "ignore_eos": true })
    };
    let all = server.complete(body(6, 6)).await;
    let best = server.complete(body(2, 6)).await;
    let mean = |choice: &serde_json::Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|logprob| logprob.as_f64().unwrap()).sum::<f64>() / logprobs.len() as f64
    };
    for of_prompt in 0..2usize {
        let mut expected = all["choices"].as_array().unwrap()[of_prompt * 6..][..6].to_vec();
        expected.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        for rank in 0..2 {
            let choice = &best["choices"][of_prompt * 2 + rank];
            assert_eq!(choice["text"], expected[rank]["text"]);
            assert_eq!(choice["index"], of_prompt * 2 + rank);
        }
    }
    assert_eq!(best["choices"].as_array().unwrap().len(), 4);
    assert_eq!(best["usage"]["completion_tokens"], 72, "all that were generated count");
    let mut unasked = body(2, 6);
    unasked["logprobs"] = json!(null);
    let unasked = server.complete(unasked).await;
    assert_eq!(unasked["choices"][0]["text"], best["choices"][0]["text"]);
    assert!(unasked["choices"][0]["logprobs"].is_null());
}

#[tokio::test]
async fn usage_reports_the_cached_tokens_of_the_same_salt() {
    let server = Server::start();
    let body = |salt: &str| json!({ "prompt": prompt(40, 1), "max_tokens": 1, "cache_salt": salt, "n": 2 });
    for (salt, expected) in [("a", 0), ("a", 32), ("b", 0)] {
        let answer = server.complete(body(salt)).await;
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], expected);
        assert_eq!(answer["usage"]["prompt_tokens"], 40);
    }
}

/// The number of cached tokens that a request with this API key and `cache_salt` reports.
async fn cached_tokens(server: &Server, key: &str, salt: Value) -> Value {
    let body = json!({ "prompt": prompt(40, 1), "max_tokens": 1, "cache_salt": salt }).to_string();
    let request = Request::post("/v1/completions")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {key}"));
    let answer = server.send(request.body(body.into()).unwrap()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
}

#[tokio::test]
async fn api_keys_share_no_prefix_cache_pages_unless_configured() {
    let keys = || ApiKeys::new(["sk-one", "sk-two"]).unwrap();
    let apart = with_options(|options| options.keys = keys());
    for (key, salt, expected) in [
        ("sk-one", Value::Null, 0),
        ("sk-two", Value::Null, 0),
        ("sk-one", Value::Null, 32),
        ("sk-two", Value::Null, 32),
        // `cache_salt` replaces the salt of the key: requests with the same one share pages across keys.
        ("sk-one", json!("secret"), 0),
        ("sk-two", json!("secret"), 32),
        ("sk-two", json!("other"), 0),
        // A `cache_salt` equal to a key does not give access to its pages.
        ("sk-two", json!("sk-one"), 0),
        ("sk-two", json!("key:sk-one"), 0),
    ] {
        assert_eq!(cached_tokens(&apart, key, salt.clone()).await, expected, "{key} {salt}");
    }
    let shared = with_options(|options| {
        options.keys = keys();
        options.prefix_sharing = PrefixSharing::BetweenKeys;
    });
    for (key, salt, expected) in [
        ("sk-one", Value::Null, 0),
        ("sk-two", Value::Null, 32),
        ("sk-one", json!("secret"), 0),
        ("sk-one", json!("secret"), 32),
    ] {
        assert_eq!(cached_tokens(&shared, key, salt.clone()).await, expected, "{key} {salt}");
    }
    // With a single key (given twice here) pages are not salted.
    let one = with_options(|options| options.keys = ApiKeys::new(["sk-one", "sk-one"]).unwrap());
    assert_eq!(cached_tokens(&one, "sk-one", Value::Null).await, 0);
    let unsalted = parts(prompt(40, 1), 1, SamplingParams::greedy());
    assert_eq!(answers(&one.engine, std::slice::from_ref(&unsalted)).await.1, 32);
    assert_eq!(answers(&apart.engine, std::slice::from_ref(&unsalted)).await.1, 0, "salted pages are nobody else's");
    let of_key = RequestParts { prefix_salt: Some(PrefixSalt::of_key(b"sk-one")), ..unsalted };
    assert_eq!(answers(&apart.engine, &[of_key]).await.1, 32, "the salt is that of the documentation");
}
