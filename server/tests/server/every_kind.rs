//! Requests of every kind to a server with one compute thread, and with two: all are answered, and memory stays flat.
//!
//! `HEARTH_EVERY_KIND=500 cargo test --release -p hearth-server --test server every_kind -- --nocapture` sends each 500
//! times, and prints the resident memory.

use std::path::Path;

use burn::tensor::Device;
use hearth_model::{
    config::{GatedDeltaNet, GptConfig, Recurrence, Recurrent},
    weights::{adapter::AdapterModel, model_dir},
};
use serde_json::{Value, json};

use crate::{
    adapters::write_for,
    cli::save_gpt,
    soak::Server,
    support::{EOS, config, gpt_of, tokenizer_files},
};

/// How often each kind is sent, if the variable does not say.
const N_ROUNDS: usize = 60;

/// How much memory may grow after the first third of the rounds. A mask of one structured answer that is not freed takes
/// 35 KB and more: here, that would be 10 MB.
const MAX_GROWTH_MB: f64 = 4.0;

/// The path, and the body of a kind of request. `round` makes texts that are in no cache.
fn requests(round: usize) -> Vec<(&'static str, Value)> {
    let chat = "/v1/chat/completions";
    let completions = "/v1/completions";
    let words = format!("Once upon a time there were {round} little foxes who lived in a forest beside the sea");
    let user = json!([{ "role": "user", "content": words }]);
    let person = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": { "name": { "type": "string", "maxLength": 8 }, "age": { "type": "integer", "minimum": 0, "maximum": 99 } },
    });
    let tool = json!({ "type": "function", "function": { "name": "greet", "parameters": person } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": person } });
    vec![
        (completions, json!({ "prompt": words, "max_tokens": 3 })),
        (completions, json!({ "prompt": words, "max_tokens": 3, "n": 3, "logprobs": 2, "echo": true })),
        (completions, json!({ "prompt": words, "max_tokens": 3, "use_beam_search": true, "best_of": 3 })),
        (completions, json!({ "prompt": words, "max_tokens": 3, "model": "adapter" })),
        (completions, json!({ "prompt": words, "max_tokens": 16, "structured_outputs": { "regex": "[a-z]{3,8}" } })),
        (chat, json!({ "messages": user, "max_tokens": 3 })),
        (chat, json!({ "messages": user, "max_tokens": 48, "response_format": format })),
        (chat, json!({ "messages": user, "max_tokens": 48, "tools": [tool], "tool_choice": "required" })),
        ("/v1/embeddings", json!({ "input": [words, "two"] })),
        ("/tokenize", json!({ "prompt": words })),
        ("/detokenize", json!({ "tokens": [5, 6, 7] })),
        ("/v1/inspect", json!({ "input": words, "attention": {}, "logit_lens": {} })),
        // Refused.
        (completions, json!({ "prompt": words, "structured_outputs": { "regex": "(" } })),
    ]
}

fn send_all(server: &Server, round: usize) {
    for (path, body) in requests(round) {
        let (status, answer) = server.answer(&format!("POST {path}"), &body.to_string());
        let expected = if body["structured_outputs"]["regex"] == "(" { 400 } else { 200 };
        assert_eq!(status, expected, "{path} {body} {answer}");
    }
    let mut streamed = json!({ "prompt": "x", "max_tokens": 200, "ignore_eos": true, "stream": true });
    // Clients that go away before their answer has ended, also while a mask is computed.
    for structure in [json!(null), json!({ "regex": "[a-z ]{100,}" })] {
        streamed["structured_outputs"] = structure;
        drop(server.send("POST /v1/completions", &streamed.to_string()));
    }
}

fn check(n_threads: &str) {
    let n_rounds = std::env::var("HEARTH_EVERY_KIND").map_or(N_ROUNDS, |n| n.parse().expect("a number"));
    let bundled = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/bundled"));
    let dir = tempfile::tempdir().unwrap();
    let adapter = dir.path().join("adapter");
    let (config, class) = (model_dir::load_config(bundled).unwrap(), model_dir::load_class(bundled).unwrap());
    write_for(AdapterModel::new(&config, Some(class)).unwrap(), &adapter, 2, 1);
    let adapter = format!("adapter={}", adapter.display());
    let server = Server::start(bundled, &["--threads", n_threads, "--lora", &adapter]);
    let mut memory = Vec::new();
    for round in 0..n_rounds {
        send_all(&server, round);
        memory.extend(server.resident_megabytes());
    }
    let third = |number: usize| {
        let part = &memory[memory.len() * number / 3..memory.len() * (number + 1) / 3];
        part.iter().sum::<f64>() / part.len().max(1) as f64
    };
    let thirds = [0, 1, 2].map(third);
    println!("{n_rounds} requests of each kind, {n_threads} threads: resident memory by thirds {thirds:.2?} MB");
    assert!(thirds[2] - thirds[1] < MAX_GROWTH_MB, "resident memory grew: {thirds:?}");
}

#[test]
fn every_kind_of_request_is_answered_with_one_thread_and_memory_stays_flat() {
    check("1");
}

#[test]
fn every_kind_of_request_is_answered_with_two_threads_and_memory_stays_flat() {
    check("2");
}

/// States of a megabyte each, of which five are kept, and 60 conversations of two turns: memory grows by the kept ones and by those of
/// sequences that run, and not with the conversations.
#[test]
fn kept_states_take_the_memory_that_their_number_says() {
    const KEPT: usize = 5;
    let delta = GatedDeltaNet {
        n_key_heads: 8,
        n_value_heads: 16,
        key_dim: 128,
        value_dim: 128,
        conv_kernel: 4,
        tiled_heads: false,
    };
    let recurrence = Recurrence::GatedDelta(delta);
    let recurrent = Some(Recurrent { recurrence, attention_layers: vec![1] });
    let gpt = gpt_of(&GptConfig { recurrent, ..config() }, &Device::flex(), 0.0);
    let [tokenizer, settings] = tokenizer_files();
    let dir = save_gpt(&gpt, &[EOS], &[("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)]);
    let server = Server::start(dir.path(), &["--kept-states", &KEPT.to_string(), "--kv-cache-dtype", "f32"]);
    let ask = |prompt: &str| {
        let body = json!({ "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true });
        let (status, answer) = server.answer("POST /v1/completions", &body.to_string());
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str::<Value>(&answer).unwrap()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let converse = |round: usize| {
        let first = format!("{round} foxes lived in a forest beside the sea. ").repeat(2);
        let answer = ask(&first);
        ask(&format!("{first}{answer} And then? "));
    };
    (0..12).for_each(converse);
    let Some(before) = server.resident_megabytes() else { return };
    (12..60).for_each(converse);
    let after = server.resident_megabytes().unwrap();
    println!("resident memory {before:.1} and {after:.1} MB");
    assert!(after - before < 4.0, "96 answers later, {before:.1} MB are {after:.1} MB");
}
