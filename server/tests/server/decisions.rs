//! `/v1/decisions`: probabilities of labels, the same alone and together, and an input that is read once.

use axum::http::StatusCode;
use hearth_model::text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use crate::support::{MODEL, OPTIONS, Server, engine, tokenizer};

const PATH: &str = "/v1/decisions";

fn predicate(instructions: &str) -> Value {
    json!({ "type": "predicate", "name": "p", "instructions": instructions })
}

fn choice(values: &[Value]) -> Value {
    let choices: Vec<Value> = values.iter().map(|value| json!({ "value": value })).collect();
    json!({ "type": "choice", "instructions": "Which?", "choices": choices })
}

fn score() -> Value {
    json!({
        "type": "score", "name": "s", "instructions": "How?",
        "levels": [{ "label": "bad" }, { "label": "fair", "description": "in between" }, { "label": "good" }],
    })
}

async fn decide(server: &Server, input: Value, questions: &[Value]) -> Value {
    let body = json!({ "model": MODEL, "input": input, "questions": questions });
    let answer = server.post_to(PATH, body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}

/// The log-probabilities of tokens after a prompt, from another endpoint.
async fn logprobs(server: &Server, prompt: &str, tokens: &[&str]) -> Vec<f64> {
    let mut found = Vec::new();
    for token in tokens {
        let [id] = tokenizer().encode(token, EncodeOptions::TEXT).unwrap()[..] else { panic!("{token}") };
        let prompt = tokenizer().encode(prompt, EncodeOptions::RENDERED).unwrap();
        let body = json!({ "prompt": prompt, "max_tokens": 1, "logprobs": 0, "allowed_token_ids": [id] });
        let choice = server.complete(body).await["choices"][0].clone();
        found.push(choice["logprobs"]["token_logprobs"][0].as_f64().unwrap());
    }
    found
}

fn softmax(logprobs: &[f64]) -> Vec<f64> {
    let total: f64 = logprobs.iter().map(|logprob| logprob.exp()).sum();
    logprobs.iter().map(|logprob| logprob.exp() / total).collect()
}

fn assert_near(found: &Value, expected: f64) {
    assert!((found.as_f64().unwrap() - expected).abs() < 1e-6, "{found} and {expected}");
}

#[tokio::test]
async fn probabilities_are_those_of_the_labels_at_the_first_position() {
    let server = Server::start();
    let answer = decide(&server, json!("in"), &[choice(&[json!("true"), json!(true), json!("x")]), score()]).await;
    let prompt = "[user]in\n\nWhich?\n\nA: true\nB: true\nC: x\n\nAnswer with the label of one line, which is in front of its \
                  colon.<|end|>[assistant]";
    let raw = logprobs(&server, prompt, &["A", "B", "C"]).await;
    let expected = softmax(&raw);
    let chosen = &answer["answers"][0];
    assert_eq!((&chosen["type"], &chosen["name"]), (&json!("choice"), &Value::Null));
    for (at, value) in [json!("true"), json!(true), json!("x")].iter().enumerate() {
        assert_eq!(&chosen["probabilities"][at]["value"], value);
        assert_near(&chosen["probabilities"][at]["probability"], expected[at]);
    }
    let best = (0..3).max_by(|&a, &b| raw[a].total_cmp(&raw[b])).unwrap();
    assert_eq!(chosen["choice"], chosen["probabilities"][best]["value"]);
    assert_near(&chosen["confidence"], raw[best].exp());

    let prompt = "[user]in\n\nHow?\n\n0: bad\n1: fair - in between\n2: good\n\nAnswer with the label of one line, which is in \
                  front of its colon.<|end|>[assistant]";
    let expected = softmax(&logprobs(&server, prompt, &["0", "1", "2"]).await);
    let scored = &answer["answers"][1];
    assert_eq!((&scored["type"], &scored["name"]), (&json!("score"), &json!("s")));
    assert_near(&scored["score"], expected[1] + 2.0 * expected[2]);
    assert_eq!(scored["probabilities"][1]["label"], "fair");
    assert_eq!(scored["probabilities"][2]["value"], 2);
    assert_eq!(answer["usage"]["output_tokens"], 2);
    assert_eq!(answer["model"], MODEL);
}

#[tokio::test]
async fn answers_are_the_same_alone_and_together_and_the_input_is_read_once() {
    let input = "the end of the long and winding sentence ".repeat(20);
    let questions: Vec<Value> = (0..400)
        .map(|number| match number % 3 {
            0 => predicate(&format!("It is {number}.")),
            1 => choice(&[json!("a"), json!("b"), json!(number.to_string())]),
            _ => score(),
        })
        .collect();
    let together = decide(&Server::start(), json!(input), &questions).await;
    let answers = together["answers"].as_array().unwrap();
    assert_eq!(answers.len(), questions.len());
    for at in [0, 1, 2, 63, 64, 399] {
        let alone = decide(&Server::start(), json!(input), &questions[at..=at]).await;
        assert_eq!(alone["answers"][0], answers[at], "{at}");
    }
    // Whole pages of the input are found by all questions but the first.
    let n_input = tokenizer().encode(&format!("[user]{input}"), EncodeOptions::TEXT).unwrap().len();
    let cached = together["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize;
    assert!(cached >= 399 * (n_input - 64), "{cached} of {}", 399 * n_input);
    let usage = &together["usage"];
    assert_eq!(usage["total_tokens"].as_u64().unwrap(), usage["input_tokens"].as_u64().unwrap() + 400);
}

#[tokio::test]
async fn input_may_be_a_conversation_with_calls_and_json() {
    let server = Server::trusting_templates(engine(OPTIONS));
    let call = json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" });
    let output = json!({ "type": "function_call_output", "call_id": "1", "output": "42" });
    let data = json!({ "type": "input_json", "data": { "a": [1, null] } });
    let user = json!({ "role": "user", "content": [{ "type": "input_text", "text": "x" }, data] });
    let items = json!([{ "role": "developer", "content": "d" }, user, call, output]);
    let first = decide(&server, items, &[predicate("y")]).await;
    // The question follows as a message of its own.
    let called = json!([{ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } }]);
    let question = "Is this statement true?\ny\n\nAnswer with `A` if it is, or `B`.";
    let messages = json!([
        { "role": "developer", "content": "d" },
        { "role": "user", "content": "x\n{\"a\":[1,null]}" },
        { "role": "assistant", "content": "", "tool_calls": called },
        { "role": "tool", "tool_call_id": "1", "name": "f", "content": "42" },
        { "role": "user", "content": question },
    ]);
    let mut raw = Vec::new();
    for label in ["A", "B"] {
        let id = tokenizer().encode(label, EncodeOptions::TEXT).unwrap();
        let body = json!({ "messages": messages, "max_tokens": 1, "logprobs": true, "allowed_token_ids": id });
        let choice = server.chat(body).await["choices"][0].clone();
        raw.push(choice["logprobs"]["content"][0]["logprob"].as_f64().unwrap());
    }
    let expected = softmax(&raw);
    assert_near(&first["answers"][0]["probability"], expected[0]);
    let parts = json!([{ "type": "input_text", "text": "p" }, { "type": "input_json", "data": [{}] }]);
    decide(&server, json!("x"), &[json!({ "type": "predicate", "instructions": parts })]).await;
}

#[tokio::test]
async fn wrong_questions_are_rejected_with_their_path() {
    let server = Server::start();
    let many: Vec<Value> = (0..256).map(|number| json!(number.to_string())).collect();
    let image = json!([{ "type": "input_image", "image_url": "x" }]);
    let cases = [
        (json!([]), "questions", "from 1 to 400"),
        (json!(vec![predicate("x"); 401]), "questions", "from 1 to 400"),
        (json!([{ "type": "rank", "instructions": "x" }]), "questions[0].type", "`predicate`"),
        (json!([predicate("x"), { "type": "predicate" }]), "questions[1].instructions", "Missing"),
        (json!([{ "type": "predicate", "instructions": image }]), "questions[0].instructions[0].type", "input_text"),
        (json!([{ "type": "choice", "instructions": "x" }]), "questions[0].choices", "Missing"),
        (json!([choice(&[json!("a")])]), "questions[0].choices", "from 2 to 255"),
        (json!([choice(&many)]), "questions[0].choices", "from 2 to 255"),
        (json!([choice(&[json!("a"), json!("a")])]), "questions[0].choices[1].value", "unique"),
        (json!([choice(&[json!("a"), json!(1)])]), "questions[0].choices[1].value", "a string or a boolean"),
        (json!([predicate("x"), choice(&many[..255])]), "questions[1]", "255 options"),
        (
            json!([{ "type": "score", "instructions": "x", "levels": [{}, {}] }]),
            "questions[0].levels[0].label",
            "Missing",
        ),
        (json!([{ "type": "predicate", "instructions": "x", "choices": 3 }]), "questions[0].choices", "an array"),
        (
            json!([{ "type": "predicate", "instructions": "x", "levels": [{ "label": "a" }, { "label": "b" }] }]),
            "questions[0].levels",
            "only for",
        ),
    ];
    for (questions, param, message) in cases {
        let body = json!({ "model": MODEL, "input": "x", "questions": questions });
        let answer = server.post_to(PATH, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body:.200}");
        assert!(answer.error().contains(message), "{}", answer.text);
        assert_eq!(answer.json()["error"]["param"], param, "{}", answer.text);
    }
    for (input, param) in [
        (json!([]), "input"),
        (json!(3), "input"),
        (json!([{ "role": "user", "content": image }]), "input[0].content[0].type"),
        (json!([{ "role": "user", "content": [{ "type": "input_json", "data": 3 }] }]), "input[0].content[0].data"),
        (json!([{ "type": "function_call_output", "call_id": "2", "output": "x" }]), "input[0].call_id"),
    ] {
        let body = json!({ "input": input, "questions": [predicate("x")] });
        let answer = server.post_to(PATH, body.to_string()).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(param)),
            "{body}"
        );
    }
}
