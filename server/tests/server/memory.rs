//! Peak memory of a server process for one request, for the worst kinds of requests.
//!
//! `docs/serving/security.md` documents the bound.

#![cfg(target_os = "linux")]

use burn::tensor::Device;
use hearth_model::config::{GptConfig, Sizes};
use serde_json::{Value, json};

use crate::{
    cli::save_gpt,
    soak::{COMPLETIONS, Server},
    support::{CHAT_TEMPLATE, EOS, gpt_of, tokenizer_files},
};

/// The documented bound for bodies of up to 8 MiB.
const MAX_MEGABYTES: f64 = 512.0;
const MAX_BODY_BYTES: usize = 8 << 20;

const VOCAB_SIZE: usize = 1 << 15;
const MAX_SEQ_LEN: usize = 1 << 14;

const CHAT: &str = "POST /v1/chat/completions";

/// A small model with a large vocabulary and a long context.
fn model_dir() -> tempfile::TempDir {
    let sizes = Sizes {
        vocab_size: VOCAB_SIZE,
        max_seq_len: MAX_SEQ_LEN,
        n_layers: 1,
        n_heads: 2,
        n_kv_heads: 1,
        d_model: 8,
        d_ff: 16,
    };
    let [tokenizer, config] = tokenizer_files();
    let files = [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", config),
        ("chat_template.jinja", CHAT_TEMPLATE.as_bytes().to_vec()),
    ];
    save_gpt(&gpt_of(&GptConfig::llama(sizes), &Device::flex(), 0.0), &[EOS], &files)
}

/// A body of `start`, as many copies of `part` as fit, and `end`.
fn filled(start: &str, part: &str, end: &str) -> String {
    let room = MAX_BODY_BYTES - start.len() - end.len() - part.len();
    // The copies end with a comma, except the last one.
    format!("{start}{}{}{end}", part.repeat(room / part.len()), part.trim_end_matches(','))
}

/// The maximum number of choices, with prompts and lists of the maximum length.
fn many_choices() -> Value {
    let ids = || (0..VOCAB_SIZE).map(|id| id.to_string());
    let words = |n: usize, n_bytes: usize| (0..n).map(|at| format!("{at:0n_bytes$}")).collect::<Vec<_>>();
    json!({
        "prompt": (0..16).map(|at| vec![at; MAX_SEQ_LEN / 4]).collect::<Vec<_>>(), "n": 128, "max_tokens": 1,
        "logit_bias": ids().map(|id| (id, json!(0.5))).collect::<serde_json::Map<_, _>>(),
        "stop_token_ids": (1..VOCAB_SIZE).collect::<Vec<_>>(),
        "stop": words(128, 512), "bad_words": words(1024, 64), "dry_sequence_breakers": words(64, 1024),
        "dry_multiplier": 1, "repetition_penalty": 1.1, "cache_salt": "s".repeat(1024), "user": "u".repeat(1 << 20),
    })
}

#[test]
fn no_request_uses_more_memory_than_documented() {
    let dir = model_dir();
    let text = |n_bytes: usize| "a b ".repeat(n_bytes / 4);
    let user = |content: &str| json!([{ "role": "user", "content": content }]);
    let deep = || json!({ "type": "object", "properties": { "a": { "type": "array", "items": { "enum": [1] } } } });
    let tools: Vec<Value> = (0..128).map(|at| json!({
        "type": "function", "function": { "name": format!("f{at}"), "parameters": { "anyOf": vec![deep(); 128] } },
    })).collect();
    let requests = [
        ("ids", COMPLETIONS, filled("{\"prompt\": [", "0,", "]}")),
        ("lists", COMPLETIONS, filled("{\"prompt\": [", "[0],", "]}")),
        ("empty texts", COMPLETIONS, filled("{\"prompt\": [", "\"\",", "]}")),
        ("objects", COMPLETIONS, filled("{\"x\": [", "{\"\":0},", "]}")),
        ("texts", "POST /v1/embeddings", filled("{\"input\": [", "[0,0,0],", "]}")),
        ("tokens", "POST /detokenize", filled("{\"tokens\": [", "262,", "]}")),
        (
            "messages",
            CHAT,
            format!("{{\"messages\": [{}]}}", vec!["{\"role\":\"user\",\"content\":\"\"}"; 110_000].join(",")),
        ),
        (
            "variables",
            CHAT,
            json!({ "messages": user("x"), "chat_template_kwargs": { "x": vec![[0]; 160_000] } }).to_string(),
        ),
        ("tools", CHAT, json!({ "messages": user("x"), "tools": tools, "max_tokens": 1 }).to_string()),
        ("a long text", COMPLETIONS, json!({ "prompt": text(MAX_BODY_BYTES - 1000) }).to_string()),
        ("a long word", COMPLETIONS, json!({ "prompt": "a".repeat(MAX_BODY_BYTES - 1000) }).to_string()),
        ("a long message", CHAT, json!({ "messages": user(&text(MAX_BODY_BYTES - 1000)) }).to_string()),
        (
            "a long text with its tokens",
            "POST /tokenize",
            json!({ "prompt": text(MAX_BODY_BYTES - 1000), "return_token_strs": true }).to_string(),
        ),
        ("choices", COMPLETIONS, many_choices().to_string()),
        (
            "prompt logprobs",
            COMPLETIONS,
            json!({ "prompt": vec![1; 300], "n": 128, "max_tokens": 1, "prompt_logprobs": 20 }).to_string(),
        ),
        (
            "echoes with logprobs",
            COMPLETIONS,
            json!({ "prompt": vec![1; 300], "n": 128, "max_tokens": 1, "echo": true, "logprobs": 20 }).to_string(),
        ),
        (
            "echoes",
            COMPLETIONS,
            json!({ "prompt": vec![text(MAX_SEQ_LEN - 100); 15], "n": 128, "max_tokens": 1, "echo": true }).to_string(),
        ),
        (
            "logprobs",
            COMPLETIONS,
            json!({ "prompt": [1], "n": 128, "max_tokens": 400, "ignore_eos": true, "logprobs": 20 }).to_string(),
        ),
        (
            "grammars",
            COMPLETIONS,
            json!({ "prompt": [1], "n": 128, "max_tokens": 1, "guided_json": { "anyOf": vec![deep(); 256] } })
                .to_string(),
        ),
    ];
    let mut peaks = Vec::new();
    for (name, head, body) in requests {
        assert!(body.len() <= MAX_BODY_BYTES, "{name}: {} bytes", body.len());
        // A new server for each request: the allocator may keep memory of an earlier one.
        let server = Server::start(dir.path(), &[]);
        let before = server.peak_megabytes().unwrap();
        let (status, answer) = server.answer(head, &body);
        assert!([200, 400].contains(&status), "{name}: {status} {answer:.400}");
        peaks.push((name, status, server.peak_megabytes().unwrap() - before));
    }
    println!("{peaks:.0?}");
    assert!(peaks.iter().all(|(_, _, peak)| *peak < MAX_MEGABYTES), "{peaks:.0?}");
}
