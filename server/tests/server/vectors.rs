//! Vectors in other programs' shapes, prompts before texts, vectors of tokens, and scores made of them.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use axum::http::StatusCode;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use burn::tensor::Device;
use hearth_engine::Models;
use hearth_model::{
    gpt::pooling::{
        ClassScores, Classifier, DenseActivation, DenseLayer, LateInteraction, LateText, OwnPooling, PairForm, Pooling,
        Prompts,
    },
    weights::model_dir::{LoadOptions, LoadedModel, load},
};
use hearth_server::engine::Engine;
use serde_json::{Value, json};

use crate::support::{self, OPTIONS, Server, tokenizer};

fn server(change: impl FnOnce(LoadedModel) -> LoadedModel + Send + 'static) -> Server {
    Server::trusting_templates(Engine::start(move || Ok(change(support::model())), OPTIONS).unwrap())
}

/// An embedding model with prompts.
fn prompted() -> Server {
    prompted_within(None)
}

/// The same that reads only so many tokens of a text.
fn prompted_within(text_limit: Option<usize>) -> Server {
    let prompts = [("query", "Q: "), ("document", ""), ("passage", "P: "), ("Clustering", "C: ")];
    let prompts = Prompts {
        by_name: prompts.map(|(name, prompt)| (name.to_owned(), prompt.to_owned())).into(),
        default_name: Some("passage".to_owned()),
    };
    server(move |model| LoadedModel { own_pooling: OwnPooling::As(Pooling::Mean), prompts, text_limit, ..model })
}

async fn post(server: &Server, path: &str, body: Value) -> Value {
    let answer = server.post_to(path, body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{path} {body}: {}", answer.text);
    answer.json()
}

/// The vector of a text as it is, without a prompt.
async fn vector(server: &Server, text: &str) -> Value {
    let ids = tokenizer().encode(text, hearth_model::text::tokenizer::EncodeOptions::PROMPT).unwrap();
    post(server, "/v1/embeddings", json!({ "input": ids })).await["data"][0]["embedding"].clone()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

#[tokio::test]
async fn prompts_come_before_texts_by_their_names_and_by_what_clients_call_them() {
    let server = prompted();
    for (how, prefix) in [
        (json!({}), "P: "),
        (json!({ "prompt_name": "query" }), "Q: "),
        (json!({ "prompt_name": "document" }), ""),
        (json!({ "input_type": "query" }), "Q: "),
        (json!({ "input_type": "search_query" }), "Q: "),
        // The first of the usual names that is not empty.
        (json!({ "input_type": "document" }), "P: "),
        (json!({ "input_type": "clustering" }), "C: "),
        (json!({ "input_type": "classification" }), ""),
    ] {
        let mut body = json!({ "input": ["the hand"] });
        body.as_object_mut().unwrap().extend(how.as_object().unwrap().clone());
        let found = post(&server, "/v1/embeddings", body).await["data"][0]["embedding"].clone();
        assert_eq!(found, vector(&server, &format!("{prefix}the hand")).await, "{how}");
    }
    for (body, message) in [
        (json!({ "prompt_name": "question" }), "`Clustering`, `document`, `passage`, `query`, got `\"question\"`"),
        (json!({ "prompt_name": "query", "input_type": "query" }), "give one of them"),
        (json!({ "prompt_name": "query", "input": [97] }), "must be texts with `prompt_name`"),
        (json!({ "input_type": "questions" }), "`query` or `document`"),
    ] {
        let mut whole = json!({ "input": "x" });
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let answer = server.post_to("/v1/embeddings", whole.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.error().contains(message), "{}", answer.error());
    }
    let plain = Server::start();
    let answer = plain.post_to("/v1/embeddings", json!({ "input": "x", "prompt_name": "query" }).to_string()).await;
    assert!(answer.error().contains("left out with a model that has no prompts"), "{}", answer.error());
}

#[tokio::test]
async fn documents_are_ordered_by_vectors_with_the_prompts_of_queries_and_documents() {
    let server = prompted();
    let body = json!({ "query": "the hand", "documents": ["an end", "the hand"] });
    let ranked = post(&server, "/v1/rerank", body).await;
    let query = numbers(&vector(&server, "Q: the hand").await);
    for result in ranked["results"].as_array().unwrap() {
        let text = ["P: an end", "P: the hand"][result["index"].as_u64().unwrap() as usize];
        let document = numbers(&vector(&server, text).await);
        let cosine: f32 = query.iter().zip(&document).map(|(a, b)| a * b).sum();
        assert!((cosine - result["relevance_score"].as_f64().unwrap() as f32).abs() < 1e-5);
    }
}

#[tokio::test]
async fn cohere_embed_answers_in_each_of_its_types_with_errors_of_its_shape() {
    let server = prompted();
    let body = json!({
        "model": "", "texts": ["the hand", "an end"], "input_type": "search_query",
        "embedding_types": ["float", "binary", "ubinary", "base64"],
    });
    let answer = post(&server, "/v2/embed", body).await;
    let expected = numbers(&vector(&server, "Q: an end").await);
    assert_eq!(numbers(&answer["embeddings"]["float"][1]), expected);
    let bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(answer["embeddings"]["base64"][1], BASE64_STANDARD.encode(bytes));
    let unsigned = numbers(&answer["embeddings"]["ubinary"][1]);
    let signed = numbers(&answer["embeddings"]["binary"][1]);
    assert_eq!(unsigned.len(), 4);
    assert!(unsigned.iter().zip(&signed).all(|(unsigned, signed)| unsigned - 128.0 == *signed));
    assert_eq!(unsigned[0] as u8 >> 7 == 1, expected[0] > 0.0);
    assert_eq!(answer["texts"], json!(["the hand", "an end"]));
    assert_eq!(answer["response_type"], "embeddings_by_type");
    assert!(answer["meta"]["billed_units"]["input_tokens"].as_u64().unwrap() > 8);
    let parts = json!({ "inputs": [{ "content": [{ "type": "text", "text": "the hand" }] }], "output_dimension": 8 });
    assert_eq!(post(&server, "/v2/embed", parts).await["embeddings"]["float"][0].as_array().unwrap().len(), 8);
    for (body, message) in [
        (json!({}), "one of `texts` and `inputs` is required"),
        (json!({ "texts": ["x"], "embedding_types": ["int8"] }), "`float`, `ubinary`, `binary`, `base64`"),
        (json!({ "texts": [] }), "must hold 1 to 2048 texts"),
        (json!({ "inputs": [{ "content": [{ "type": "image_url" }] }] }), "an array of parts with the `type` `text`"),
    ] {
        let answer = server.post_to("/v2/embed", body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        let error = answer.json();
        assert_eq!(error.as_object().unwrap().keys().collect::<Vec<_>>(), ["message"]);
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    }
}

#[tokio::test]
async fn embed_of_text_embeddings_inference_answers_with_a_list_and_cuts_at_the_side_it_is_told() {
    let n = 32;
    let server = prompted_within(Some(n));
    let whole = |text: &str| json!({ "inputs": text, "prompt_name": "document" });
    let answer = post(&server, "/embed", whole("the hand")).await;
    assert_eq!(answer[0], vector(&server, "the hand").await);
    let raw = post(&server, "/embed", json!({ "inputs": ["x"], "normalize": false, "dimensions": 3 })).await;
    assert_eq!(raw[0].as_array().unwrap().len(), 3);
    let long = "ab".repeat(60);
    let mut body = whole(&long);
    let refused = server.post_to("/embed", body.to_string()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.json()["error_type"], "Validation");
    assert!(refused.json()["error"].is_string());
    body["truncate"] = json!(true);
    let kept = |range: std::ops::Range<usize>| long[range].to_owned();
    assert_eq!(post(&server, "/embed", body.clone()).await[0], vector(&server, &kept(0..n)).await);
    body["truncation_direction"] = json!("left");
    assert_eq!(post(&server, "/embed", body).await[0], vector(&server, &kept(long.len() - n..long.len())).await);
}

/// Texts are computed in another order than that of the request.
#[tokio::test]
async fn vectors_of_texts_of_all_lengths_come_in_the_order_of_the_texts() {
    let server = Server::start();
    let texts: Vec<String> = (0..40).map(|number| "abc ".repeat(1 + (number * 7) % 13)).collect();
    let together = post(&server, "/v1/embeddings", json!({ "input": texts })).await;
    for (number, text) in texts.iter().enumerate() {
        let alone = post(&server, "/v1/embeddings", json!({ "input": text })).await;
        assert_eq!(together["data"][number]["embedding"], alone["data"][0]["embedding"], "{number}");
    }
}

/// Vectors of 4 numbers for tokens: the first of the hidden state.
fn late() -> Arc<LateInteraction> {
    let weight = (0..4).flat_map(|row| (0..32).map(move |column| f32::from(u8::from(column == row)))).collect();
    let layer = DenseLayer { weight, bias: Vec::new(), d_in: 32, activation: DenseActivation::Identity, norm: None };
    Arc::new(LateInteraction {
        layers: vec![layer].into(),
        query: LateText { prompt: "Q".to_owned(), ..LateText::default() },
        document: LateText { mark: Some(u32::from(b'#')), max_tokens: Some(6), ..LateText::default() },
        expansion: None,
        skipped: BTreeSet::from([u32::from(b'.')]),
    })
}

#[tokio::test]
async fn models_for_late_interaction_give_vectors_of_tokens_and_scores_by_the_nearest() {
    let server = server(|model| LoadedModel { own_pooling: OwnPooling::Late(late()), ..model });
    let rows = async |text: &str, input_type: &str| -> Vec<Vec<f32>> {
        let answer = post(&server, "/pooling", json!({ "input": text, "input_type": input_type })).await;
        assert_eq!(answer["data"][0]["object"], "pooling");
        answer["data"][0]["data"].as_array().unwrap().iter().map(numbers).collect()
    };
    let (query, document) = (rows("xy", "query").await, rows("a.b", "document").await);
    assert_eq!(query.len(), 3, "the prompt has a vector");
    assert_eq!(document.len(), 3, "the mark has a vector, and the full stop has none");
    assert_eq!(rows("abcdefgh", "document").await.len(), 6, "cut");
    let product = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
    assert!(query.iter().all(|row| row.len() == 4 && (product(row, row) - 1.0).abs() < 1e-5));
    let best = |row: &Vec<f32>| document.iter().map(|other| product(row, other)).fold(f32::MIN, f32::max);
    let expected: f32 = query.iter().map(best).sum();
    let scored = post(&server, "/v1/score", json!({ "text_1": "xy", "text_2": ["a.b", "zzz"] })).await;
    assert!((scored["data"][0]["score"].as_f64().unwrap() as f32 - expected).abs() < 1e-5);
    let ranked = post(&server, "/v1/rerank", json!({ "query": "xy", "documents": ["a.b", "zzz"] })).await;
    let of_first = ranked["results"].as_array().unwrap().iter().find(|result| result["index"] == 0).unwrap();
    assert_eq!(of_first["relevance_score"], scored["data"][0]["score"]);
    let refused = server.post_to("/v1/embeddings", json!({ "input": "x" }).to_string()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.error().contains("a vector for each token, and none for a whole text"), "{}", refused.error());
}

#[tokio::test]
async fn pooling_gives_what_the_task_says_in_numbers_and_base64() {
    let server = prompted();
    let pooled = async |body: Value| post(&server, "/pooling", body).await["data"][0]["data"].clone();
    let ids = tokenizer().encode("the hand", hearth_model::text::tokenizer::EncodeOptions::PROMPT).unwrap();
    assert_eq!(pooled(json!({ "input": ids })).await, vector(&server, "the hand").await);
    let tokens = pooled(json!({ "input": ids, "task": "token_embed" })).await;
    assert_eq!(tokens.as_array().unwrap().len(), ids.len());
    let flat: Vec<u8> =
        tokens.as_array().unwrap().iter().flat_map(numbers).flat_map(|value| value.to_le_bytes()).collect();
    let coded = pooled(json!({ "input": ids, "task": "token_embed", "encoding_format": "base64" })).await;
    assert_eq!(coded, BASE64_STANDARD.encode(flat));
    let refused = server.post_to("/pooling", json!({ "input": "x", "task": "classify" }).to_string()).await;
    assert!(refused.error().contains("does not tell classes apart"), "{}", refused.error());
}

/// A score of a pair as `<first|second>`.
fn of_pairs() -> Classifier {
    let weight: Vec<f32> = (0..32u8).map(|column| f32::from(column) / 8.0 - 2.0).collect();
    let layer = DenseLayer { weight, bias: Vec::new(), d_in: 32, activation: DenseActivation::Identity, norm: None };
    Classifier {
        pooling: Pooling::Last,
        layers: vec![layer].into(),
        labels: vec!["LABEL_0".to_owned()],
        scores: ClassScores::Logits,
        pair_form: PairForm::Within(["<".to_owned(), "|".to_owned(), ">".to_owned()]),
    }
}

/// Whatever the texts are compared with.
#[tokio::test]
async fn texts_that_are_too_long_to_be_scored_are_refused_or_cut_as_the_request_says() {
    let long = "zq".repeat(40);
    let by_pairs = server(|model| LoadedModel { classifier: Some(of_pairs()), text_limit: Some(12), ..model });
    let late = LateInteraction {
        layers: Arc::default(),
        query: LateText { prompt: String::new(), mark: None, max_tokens: Some(8) },
        document: LateText { prompt: String::new(), mark: None, max_tokens: Some(8) },
        expansion: None,
        skipped: BTreeSet::new(),
    };
    let by_tokens = server(|model| LoadedModel { own_pooling: OwnPooling::Late(Arc::new(late)), ..model });
    for server in [by_pairs, prompted_within(Some(12)), by_tokens] {
        let refused = async |path: &str, body: Value| {
            let answer = server.post_to(path, body.to_string()).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {body}: {}", answer.text);
            answer.error()
        };
        let pairs = json!({ "text_1": "a", "text_2": ["b", long] });
        let error = refused("/v1/score", pairs.clone()).await;
        assert!(error.contains("`text_2` has a text that is too long, number 2"), "{error}");
        assert!(error.contains("hint: `truncate_prompt_tokens: -1` cuts it at its end"), "{error}");
        let with = |mut body: Value, name: &str, value: Value| {
            body[name] = value;
            body
        };
        let cut = post(&server, "/v1/score", with(pairs, "truncate_prompt_tokens", json!(-1))).await;
        let n_cut = cut["usage"]["prompt_tokens_details"]["truncated_tokens"].as_u64().unwrap();
        assert!(n_cut > 10, "{cut}");
        let documents = json!({ "query": "a", "documents": ["b", long] });
        let error = refused("/v1/rerank", documents.clone()).await;
        assert!(error.contains("`documents` has a text that is too long, number 2"), "{error}");
        // Cohere's API cuts, and says so.
        let by_cohere = post(&server, "/v2/rerank", documents.clone()).await;
        assert_eq!(by_cohere["usage"]["prompt_tokens_details"]["truncated_tokens"], n_cut);
        let score_of = |ranked: &Value, at: u64| {
            let results = ranked["results"].as_array().unwrap().iter();
            results.clone().find(|result| result["index"] == at).unwrap()["relevance_score"].clone()
        };
        assert_eq!(score_of(&by_cohere, 1), cut["data"][1]["score"]);
        // A document that is shortened by itself is read as if it ended there.
        let ids = tokenizer().encode(&long, hearth_model::text::tokenizer::EncodeOptions::TEXT).unwrap();
        let start = tokenizer().decode(&ids[..2], hearth_model::text::tokenizer::DecodeOptions::default());
        let short = post(&server, "/v1/rerank", with(documents, "max_tokens_per_doc", json!(2))).await;
        let expected = post(&server, "/v1/rerank", json!({ "query": "a", "documents": [start] })).await;
        assert_eq!(score_of(&short, 1), score_of(&expected, 0));
        let texts = json!({ "query": "a", "texts": [long] });
        let error = refused("/rerank", texts.clone()).await;
        assert!(error.contains("`texts` has a text") && error.contains("hint: `truncate: true`"), "{error}");
        let whole = post(&server, "/rerank", with(texts.clone(), "truncate", json!(true))).await;
        assert_eq!(whole[0]["score"], cut["data"][1]["score"]);
        let error = refused("/rerank", with(texts, "truncation_direction", json!("left"))).await;
        assert!(error.contains("`truncation_direction`"), "{error}");
    }
}

#[tokio::test]
async fn decoders_that_compare_texts_read_them_within_a_text_and_write_none_if_they_cannot() {
    let server_of = |writes_text| {
        let classifier = Some(of_pairs());
        server(move |model| LoadedModel { classifier, writes_text, ..model })
    };
    let server = server_of(false);
    let scores = post(&server, "/v1/score", json!({ "text_1": "a", "text_2": ["b", "cd"] })).await;
    let single = post(&server, "/pooling", json!({ "input": "<a|cd>" })).await;
    assert_eq!(scores["data"][1]["score"], single["data"][0]["data"][0]);
    let refused = server.post_to("/v1/completions", json!({ "prompt": "x" }).to_string()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let writer = server_of(true);
    assert_eq!(
        post(&writer, "/v1/score", json!({ "text_1": "a", "text_2": ["b", "cd"] })).await["data"],
        scores["data"]
    );
    post(&writer, "/v1/completions", json!({ "prompt": "x", "max_tokens": 1 })).await;
}

/// `model/tests/golden/make_token_classes.py` made the models.
#[tokio::test]
async fn classes_of_tokens_are_those_of_transformers_and_no_classes_of_texts() {
    for family in ["bert", "modernbert"] {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/token-classes").join(family);
        let expected: Value = serde_json::from_slice(&fs::read(golden.join("expected.json")).unwrap()).unwrap();
        let options = LoadOptions { device: Device::flex(), dtype: None };
        let engine = Engine::start(move || Ok(Models::from(load(&golden, &options)?)), OPTIONS).unwrap();
        let server = Server::trusting_templates(engine);
        let expected = expected.as_array().unwrap();
        let texts: Vec<&Value> = expected.iter().map(|case| &case["text"]).collect();
        let found = post(&server, "/pooling", json!({ "input": texts, "task": "token_classify" })).await;
        assert_eq!(found["data"], post(&server, "/pooling", json!({ "input": texts })).await["data"]);
        for (case, found) in expected.iter().zip(found["data"].as_array().unwrap()) {
            let (classes, found) = (case["classes"].as_array().unwrap(), found["data"].as_array().unwrap());
            assert_eq!((classes.len(), found.len()), (case["ids"].as_array().unwrap().len(), classes.len()));
            for (expected, found) in classes.iter().map(numbers).zip(found.iter().map(numbers)) {
                let far = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(found.len() == 3 && far < 1e-5, "{family}, {}: {found:?}, expected {expected:?}", case["text"]);
            }
        }
        for (path, body, message) in [
            ("/classify", json!({ "input": "a cat" }), "tells the classes of tokens, not of texts"),
            ("/pooling", json!({ "input": "a cat", "task": "classify" }), "another than `classify`"),
            ("/v1/score", json!({ "text_1": "a", "text_2": "b" }), "no score for a pair of texts"),
            (
                "/v1/chat/completions",
                json!({ "messages": [{ "role": "user", "content": "a" }] }),
                "this model is an encoder: it makes vectors, scores or classes of texts, and writes none\nhint: use `/v1/embeddings`",
            ),
        ] {
            let answer = server.post_to(path, body.to_string()).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {}", answer.text);
            assert!(answer.error().contains(message), "{}", answer.error());
        }
    }
    let body = json!({ "input": "x", "task": "token_classify" }).to_string();
    let answer = prompted().post_to("/pooling", body).await;
    assert!(answer.error().contains("`ForTokenClassification`"), "{}", answer.error());
}
