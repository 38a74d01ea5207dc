//! A tiny model with random weights and a byte-level tokenizer, and helpers that send requests to a server of it.

use std::{collections::BTreeMap, path::Path, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Request, StatusCode, header, request},
};
use burn::tensor::{Device, TensorData};
use hearth_engine::{EngineOptions, EngineStats, Speculation, adapters::AdapterOptions};
use hearth_model::{
    config::{GptConfig, Sizes},
    decode::sampling::SamplingParams,
    gpt::{
        Gpt, Init, ParamSpec,
        pooling::{OwnPooling, Prompts},
    },
    ops::Dtype,
    text::{chat::ChatTemplate, tokenizer::Tokenizer},
    weights::model_dir::LoadedModel,
};
use hearth_server::{
    api::{
        guard::options::{ApiOptions, RequestTemplates},
        router::app,
        wire::state::AppState,
    },
    engine::Engine,
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) const MODEL: &str = "tiny";
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const EOS: u32 = 262;
pub(crate) const VOCAB_SIZE: usize = 263;
pub(crate) const MAX_SEQ_LEN: usize = 8192;

/// Longer than anything that ends by itself takes on a slow machine, and shorter than requests that must be cancelled.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const OPTIONS: EngineOptions = EngineOptions {
    max_queue: 2048,
    max_batch_size: 8,
    max_batch_tokens: 64,
    kv_cache_tokens: Some(4 * MAX_SEQ_LEN),
    kept_states: None,
    kv_cache_dtype: None,
    enforce_eager: false,
    speculation: Speculation::Off,
    adapters: AdapterOptions::NONE,
};

pub(crate) fn gpt() -> Gpt {
    gpt_on(&Device::flex())
}

/// The weights are a function of the parameter's path and index, large enough that token probabilities differ clearly.
pub(crate) fn gpt_on(device: &Device) -> Gpt {
    gpt_like(device, 0.0)
}

/// [`gpt_on`] with noise in the weights: a model that often, but not always, predicts the same token.
pub(crate) fn gpt_like(device: &Device, noise: f32) -> Gpt {
    gpt_of(&config(), device, noise)
}

/// [`gpt`] with another context length.
pub(crate) fn short_gpt(max_seq_len: usize) -> Gpt {
    gpt_of(&GptConfig { max_seq_len, ..config() }, &Device::flex(), 0.0)
}

pub(crate) fn config() -> GptConfig {
    GptConfig::llama(Sizes {
        vocab_size: VOCAB_SIZE,
        max_seq_len: MAX_SEQ_LEN,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        d_model: 32,
        d_ff: 64,
    })
}

pub(crate) fn gpt_of(config: &GptConfig, device: &Device, noise: f32) -> Gpt {
    Gpt::from_params(config, Dtype::F32, device, &mut |spec| Ok(weights(spec, noise))).unwrap()
}

/// The values of a parameter.
pub(crate) fn weights(spec: &ParamSpec, noise: f32) -> TensorData {
    let mut state = spec.path.bytes().fold(7u64, |state, byte| mix(state ^ u64::from(byte)));
    let mut value = |spread: f32| {
        state = mix(state);
        // Uniform in [-1, 1).
        spread * ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    };
    let n = spec.shape.iter().product();
    let values: Vec<f32> = match spec.init {
        Init::Normal { .. } => (0..n).map(|_| value(0.4)).collect(),
        Init::LogUniform { most, .. } => (0..n).map(|_| most.ln() as f32 + value(0.2)).collect(),
        Init::Constant(constant) => (0..n).map(|_| constant + value(0.2)).collect(),
        Init::Values(values) => values.to_vec(),
    };
    let values: Vec<f32> = values.into_iter().map(|exact| exact + value(noise)).collect();
    TensorData::new(values, spec.shape.as_slice())
}

/// The finalizer of SplitMix64.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Every byte is a token, a few words are too, and `<|end|>` ends a text.
pub(crate) fn tokenizer() -> Tokenizer {
    let [json, config] = tokenizer_files();
    Tokenizer::from_json(&json, Some(&config), Path::new("tokenizer.json")).unwrap()
}

/// `tokenizer.json` and `tokenizer_config.json`.
pub(crate) fn tokenizer_files() -> [Vec<u8>; 2] {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next_stand_in = 256;
    // GPT-2's byte alphabet: a printable byte is its own character, the others are characters from 256 on.
    let alphabet: Vec<String> = (0..=255u8)
        .map(|byte| {
            let code = if printable(byte) {
                u32::from(byte)
            } else {
                next_stand_in += 1;
                next_stand_in - 1
            };
            char::from_u32(code).unwrap().to_string()
        })
        .collect();
    let merges = [("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("a", "n"), ("an", "d")];
    let mut vocab: BTreeMap<String, usize> = alphabet.into_iter().zip(0..).collect();
    for (left, right) in merges {
        let id = vocab.len();
        vocab.insert(format!("{left}{right}"), id);
    }
    assert_eq!(vocab.len(), EOS as usize);
    let json = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [{
            "id": EOS, "content": "<|end|>", "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        }],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges.map(|(left, right)| format!("{left} {right}")),
        },
    });
    let config = json!({ "eos_token": "<|end|>" });
    [json, config].map(|value| value.to_string().into_bytes())
}

/// `[role]` before and `<|end|>` behind each message.
pub(crate) const CHAT_TEMPLATE: &str = "{% for message in messages %}[{{ message.role }}]{{ message.content }}<|end|>\
    {% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

pub(crate) fn model() -> LoadedModel {
    let chat_template = ChatTemplate::new(CHAT_TEMPLATE, Path::new("chat_template.jinja")).unwrap();
    LoadedModel {
        gpt: gpt(),
        tokenizer: tokenizer(),
        chat_template: Some(chat_template),
        eos_token_ids: vec![EOS],
        decoder_start: Vec::new(),
        sampling_defaults: SamplingParams::default(),
        own_pooling: OwnPooling::Unstated,
        writes_text: true,
        prompts: Prompts::default(),
        text_limit: None,
        classifier: None,
    }
}

pub(crate) fn engine(options: EngineOptions) -> Engine {
    Engine::start(|| Ok(model()), options).unwrap()
}

/// A request with a body of JSON.
pub(crate) fn request_to(path: &str) -> request::Builder {
    Request::post(path).header(header::HOST, "localhost").header(header::CONTENT_TYPE, "application/json")
}

/// A server with its own engine, without a socket.
pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) state: AppState,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with_options(OPTIONS)
    }

    pub(crate) fn with_options(options: EngineOptions) -> Self {
        let engine = engine(options);
        Self { state: AppState::ready(MODEL, engine.clone()), engine }
    }

    /// A server that accepts chat templates from requests.
    pub(crate) fn trusting_templates(engine: Engine) -> Self {
        let options = ApiOptions { request_templates: RequestTemplates::Trusted, ..ApiOptions::default() };
        let state = AppState::loading_with(MODEL, options);
        state.set_engine(engine.clone());
        Self { engine, state }
    }

    /// Sends a request, to the host `localhost` unless it names another, and returns the answer.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Answer {
        request.headers_mut().entry(header::HOST).or_insert(HeaderValue::from_static("localhost"));
        let response = app(self.state.clone()).oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, body: impl Into<Body>) -> Answer {
        self.post_to("/v1/completions", body).await
    }

    pub(crate) async fn post_to(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.send(request_to(path).body(body.into()).unwrap()).await
    }

    /// Sends a chat request that must succeed, and returns the answer.
    pub(crate) async fn chat(&self, body: Value) -> Value {
        let answer = self.post_to(CHAT, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        answer.json()
    }

    /// Sends a chat request that streams, and returns its events without the last one, `[DONE]`.
    pub(crate) async fn stream_chat(&self, mut body: Value) -> Vec<Value> {
        body["stream"] = json!(true);
        let answer = self.post_to(CHAT, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        events(&answer.text)
    }

    /// Sends a completion request that must succeed, and returns the answer.
    pub(crate) async fn complete(&self, body: Value) -> Value {
        let answer = self.post(body.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        answer.json()
    }

    /// Sends a completion request that streams, and returns its events without the last one, `[DONE]`.
    pub(crate) async fn stream(&self, mut body: Value) -> Vec<Value> {
        body["stream"] = json!(true);
        let answer = self.post(body.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        events(&answer.text)
    }

    /// Waits until the engine's statistics satisfy `is_so`.
    pub(crate) async fn wait_for(&self, is_so: impl FnMut(&EngineStats) -> bool) {
        wait_for(&self.engine, is_so).await;
    }
}

pub(crate) async fn wait_for(engine: &Engine, is_so: impl FnMut(&EngineStats) -> bool) {
    let mut stats = engine.stats();
    let reached = tokio::time::timeout(TEST_TIMEOUT, stats.wait_for(is_so)).await;
    assert!(reached.is_ok(), "the engine stays at {engine:?}");
}

/// The value of the metric `vllm:{name}`.
pub(crate) fn metric(engine: &Engine, name: &str) -> f64 {
    let text = engine.metrics_text(MODEL).unwrap();
    let start = format!("vllm:{name}{{");
    let line = text.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Whether no request runs or waits, and every page is free.
pub(crate) fn is_idle(stats: &EngineStats) -> bool {
    stats.running == 0 && stats.waiting == 0 && stats.free_pages == stats.n_pages
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// `error.message` of the error envelope. Panics if a member of the envelope is missing.
    pub(crate) fn error(&self) -> String {
        let json = self.json();
        let error = json["error"].as_object().unwrap_or_else(|| panic!("no envelope: {json}"));
        assert!(["message", "type", "param", "code"].iter().all(|name| error.contains_key(*name)), "{json}");
        json["error"]["message"].as_str().unwrap().to_owned()
    }
}

/// The data of each server-sent event without the last one, which must be `[DONE]`.
pub(crate) fn events(text: &str) -> Vec<Value> {
    let mut data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{text}");
    data.into_iter().map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Streamed events folded into the choices of an unstreamed answer.
pub(crate) fn fold(events: &[Value]) -> Vec<Value> {
    let mut choices: BTreeMap<u64, Value> = BTreeMap::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap();
        let Some(whole) = choices.get_mut(&index) else {
            choices.insert(index, choice.clone());
            continue;
        };
        assert_eq!(whole["finish_reason"], Value::Null, "nothing follows the end of a choice");
        for name in ["finish_reason", "stop_reason"] {
            whole[name] = choice[name].clone();
        }
        whole["text"] = json!(whole["text"].as_str().unwrap().to_owned() + choice["text"].as_str().unwrap());
        if let Some(ids) = choice.get("token_ids") {
            whole["token_ids"].as_array_mut().unwrap().extend(ids.as_array().unwrap().clone());
        }
        let Some(more) = choice["logprobs"].as_object() else { continue };
        if whole["logprobs"].is_null() {
            whole["logprobs"] = choice["logprobs"].clone();
            continue;
        }
        for (name, values) in more {
            whole["logprobs"][name].as_array_mut().unwrap().extend(values.as_array().unwrap().clone());
        }
    }
    choices.into_values().collect()
}
