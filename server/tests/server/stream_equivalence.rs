//! Streamed answers equal unstreamed ones (text, log-probabilities, token ids, finish reasons and usage) for hundreds
//! of random requests.

use burn::tensor::Device;
use hearth_engine::EngineOptions;
use hearth_model::weights::model_dir::{LoadOptions, load};
use hearth_server::{api::wire::state::AppState, engine::Engine};
use serde_json::{Value, json};

use crate::support::{EOS, MODEL, OPTIONS, Server, fold, is_idle};

const PROMPTS: [&str; 6] =
    ["the é end", "日本語のテキスト", "🙂🚀 up", "x", "List: 1, 2,\n\n", "Ünï — “quoted” naïve\r\n\ttabs"];

/// Numbers that are a function of the seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    fn one_of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }
}

/// Fields that make the byte-level model repeat this character, most of the time: the bias of each byte is a little
/// lower than that of the byte before it, and the penalty excludes the last bytes.
fn biased_towards(character: &str) -> Value {
    let bias = character.bytes().zip([100, 93, 86, 79]).map(|(byte, bias)| (byte.to_string(), json!(bias)));
    json!({
        "logit_bias": bias.collect::<serde_json::Map<_, _>>(), "repetition_penalty": 100,
        "repeat_last_n": character.len() - 1, "top_p": null, "min_tokens": null,
    })
}

fn request(draws: &mut Draws, max_tokens: usize) -> Value {
    let max_tokens = 1 + draws.below(max_tokens);
    let mut body = json!({
        "prompt": draws.one_of(&PROMPTS),
        "seed": draws.below(1000),
        "max_tokens": max_tokens,
        "n": 1 + draws.below(3),
        "temperature": draws.one_of(&[0.0, 0.7, 1.0, 1.5]),
        "return_token_ids": draws.coin(),
    });
    let mut optional = |name: &str, value: Value| {
        if draws.below(4) == 0 {
            body[name] = value;
        }
    };
    optional("prompt", json!([PROMPTS[0], PROMPTS[1]]));
    optional("top_p", json!(0.9));
    optional("top_k", json!(30));
    optional("min_p", json!(0.02));
    optional("frequency_penalty", json!(0.6));
    optional("repetition_penalty", json!(1.2));
    optional("echo", json!(true));
    optional("ignore_eos", json!(true));
    optional("skip_special_tokens", json!(false));
    optional("include_stop_str_in_output", json!(true));
    optional("min_tokens", json!(max_tokens / 2));
    optional("xtc_probability", json!(0.3));
    optional("stop_token_ids", json!([EOS, 10]));
    if draws.coin() {
        body["logprobs"] = json!(draws.below(4));
    }
    body
}

/// Random parts of the text, across token boundaries, as stop strings; some of them only match partially.
fn random_stops(draws: &mut Draws, text: &str) -> Value {
    let chars: Vec<char> = text.chars().collect();
    if chars.is_empty() || draws.below(4) == 0 {
        return Value::Null;
    }
    let mut stop = || {
        let start = draws.below(chars.len());
        let mut stop: String = chars[start..].iter().take(1 + draws.below(4)).collect();
        if draws.below(3) == 0 {
            stop.push('Ж');
        }
        stop
    };
    let stops = [stop(), stop()];
    if stops[0].len() % 2 == 0 { json!(stops) } else { json!(stops[0]) }
}

fn usage(usage: &Value) -> [Value; 3] {
    ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| usage[name].clone())
}

/// Checks that the streamed answer equals the unstreamed one; returns the unstreamed choices.
async fn compare(server: &Server, body: &Value) -> Vec<Value> {
    let whole = server.complete(body.clone()).await;
    let mut streamed = body.clone();
    streamed["stream_options"] = json!({ "include_usage": true, "continuous_usage_stats": true });
    let events = server.stream(streamed).await;
    assert_eq!(json!(fold(&events)), whole["choices"], "{body}");
    let counts: Vec<u64> = events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(usage(&events.last().unwrap()["usage"]), usage(&whole["usage"]), "{body}");
    whole["choices"].as_array().unwrap().clone()
}

/// Makes the same comparison for the request as a chat.
async fn compare_chat(server: &Server, body: &Value) {
    let mut chat = body.clone();
    let fields = chat.as_object_mut().unwrap();
    fields.remove("echo");
    fields.remove("best_of");
    let prompt = fields.remove("prompt").unwrap();
    let n_top = fields.remove("logprobs");
    fields.insert("messages".to_owned(), json!([{ "role": "user", "content": prompt.as_str().unwrap_or("two") }]));
    if let Some(n_top) = n_top {
        fields.extend([("logprobs".to_owned(), json!(true)), ("top_logprobs".to_owned(), n_top)]);
    }
    let whole = server.chat(chat.clone()).await;
    let events = server.stream_chat(chat.clone()).await;
    for choice in whole["choices"].as_array().unwrap() {
        let parts = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
        let parts: Vec<&Value> = parts.filter(|part| part["index"] == choice["index"]).collect();
        let content: String = parts.iter().filter_map(|part| part["delta"]["content"].as_str()).collect();
        assert_eq!(choice["message"]["content"], content, "{chat}");
        let last = parts.last().unwrap();
        for name in ["finish_reason", "stop_reason"] {
            assert_eq!(last[name], choice[name], "{chat}");
        }
        assert!(parts[..parts.len() - 1].iter().all(|part| part["finish_reason"].is_null()));
        let gathered = |place: &str| {
            let lists = parts.iter().filter_map(|part| part.pointer(place)?.as_array());
            lists.flatten().cloned().collect::<Vec<Value>>()
        };
        if choice["logprobs"].is_object() {
            assert_eq!(choice["logprobs"]["content"], json!(gathered("/logprobs/content")), "{chat}");
        }
        if choice.get("token_ids").is_some() {
            assert_eq!(choice["token_ids"], json!(gathered("/token_ids")), "{chat}");
        }
    }
}

#[tokio::test]
async fn streamed_answers_equal_unstreamed_ones_for_random_requests() {
    const N_CASES: usize = 300;
    let server = Server::start();
    let mut draws = Draws(20_261_120);
    let (mut n_stopped, mut n_multibyte) = (0, 0);
    for case in 0..N_CASES {
        let mut body = request(&mut draws, 50);
        if let Some(character) = [None, Some("日"), Some("🙂")][case % 3] {
            body.as_object_mut().unwrap().extend(biased_towards(character).as_object().unwrap().clone());
        }
        let free = compare(&server, &body).await;
        body["stop"] = random_stops(&mut draws, free[0]["text"].as_str().unwrap());
        let choices = compare(&server, &body).await;
        n_stopped += usize::from(choices.iter().any(|choice| choice["stop_reason"].is_string()));
        n_multibyte +=
            usize::from(choices.iter().any(|choice| choice["text"].as_str().unwrap().contains(['日', '🙂'])));
        if case % 4 == 0 {
            compare_chat(&server, &body).await;
        }
    }
    println!("{n_stopped} of {N_CASES} ended by a stop string, {n_multibyte} had characters of several tokens");
    assert!(n_stopped > N_CASES / 4 && n_multibyte > N_CASES / 4, "the test shows too little");
    server.wait_for(is_idle).await;
}

#[tokio::test]
async fn smollm2_streamed_answers_equal_unstreamed_ones() {
    let Some(dir) = std::env::var_os("HEARTH_SMOLLM2") else {
        println!("skipped: set HEARTH_SMOLLM2=DIR to the Hugging Face dir of SmolLM2-135M-Instruct to run");
        return;
    };
    let load = move || load(dir.as_ref(), &LoadOptions { device: Device::flex(), dtype: None });
    let engine = Engine::start(load, EngineOptions { kv_cache_tokens: Some(2048), ..OPTIONS }).unwrap();
    let server = Server { state: AppState::ready(MODEL, engine.clone()), engine };
    let mut draws = Draws(7);
    let mut n_stopped = 0;
    for case in 0..16 {
        let mut body = request(&mut draws, 16);
        body["prompt"] = json!(["Emoji: 🙂🚀🎉 and then", "日本の首都は", "def add(a, b):\n"][case % 3]);
        let free = server.complete(body.clone()).await["choices"][0]["text"].as_str().unwrap().to_owned();
        body["stop"] = random_stops(&mut draws, &free);
        let choices = compare(&server, &body).await;
        n_stopped += usize::from(choices.iter().any(|choice| choice["stop_reason"].is_string()));
        if case % 4 == 0 {
            compare_chat(&server, &body).await;
        }
    }
    assert!(n_stopped > 3, "{n_stopped} stopped: the test shows too little");
}
