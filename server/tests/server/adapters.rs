//! LoRA adapters beside the model: each answer equals that of its adapter alone, also while adapters are (un)loaded.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use axum::http::StatusCode;
use hearth_engine::{
    EngineOptions, Speculation,
    adapters::{AdapterOptions, NamedDir},
};
use hearth_model::weights::{
    StagedDir,
    adapter::{Adapter, AdapterConfig, AdapterModel},
};
use hearth_server::engine::Engine;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::support::{self, MODEL, OPTIONS, Server, config, is_idle};

const CLASS: &str = "LlamaForCausalLM";

/// Writes an adapter of all linear modules, with a `B` that is not 0, to `dir`.
pub(crate) fn write(dir: &Path, rank: usize, seed: u64) {
    write_for(AdapterModel::new(&config(), Some(CLASS)).unwrap(), dir, rank, seed);
}

/// The same for another model.
pub(crate) fn write_for(model: AdapterModel<'_>, dir: &Path, rank: usize, seed: u64) {
    let adapter_config = AdapterConfig::all_linear(rank, 2.0 * rank as f64);
    let mut adapter = Adapter::new(model, adapter_config, seed).unwrap();
    let mut state = seed;
    for update in adapter.values.0.values_mut() {
        let first = update.shape.total_rank() * update.shape.d_in;
        for value in &mut update.values[first..] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *value = 0.3 * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0);
        }
    }
    let staged = StagedDir::creating(dir).unwrap();
    adapter.write(&staged, model, &[]).unwrap();
    staged.commit().unwrap();
}

/// A folder with adapters `a0`, `a1` and so on.
pub(crate) fn folder(n: u64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    (0..n).for_each(|number| write(&folder.path().join(format!("a{number}")), 4 + number as usize, number + 1));
    folder
}

pub(crate) fn named_dirs(folder: &TempDir, n: u64) -> Vec<NamedDir> {
    let named = |number| {
        let name = format!("a{number}");
        NamedDir { dir: folder.path().join(&name), name }
    };
    (0..n).map(named).collect()
}

pub(crate) fn options(given: Vec<NamedDir>, max_loaded: usize, root: Option<PathBuf>) -> EngineOptions {
    EngineOptions { max_batch_size: 16, adapters: AdapterOptions { given, max_loaded, max_rank: 16, root }, ..OPTIONS }
}

pub(crate) async fn post(server: &Server, path: &str, body: Value) -> (StatusCode, String) {
    let answer = server.post_to(path, body.to_string()).await;
    (answer.status, answer.text)
}

pub(crate) async fn load(server: &Server, name: &str, path: &str) -> (StatusCode, String) {
    post(server, "/v1/load_lora_adapter", json!({ "lora_name": name, "lora_path": path })).await
}

pub(crate) async fn unload(server: &Server, name: &str) -> (StatusCode, String) {
    post(server, "/v1/unload_lora_adapter", json!({ "lora_name": name })).await
}

/// A request for the model `model`, of a kind that depends on `number`.
fn request(number: usize, model: &str) -> (&'static str, Value) {
    let prompt = "The quick brown fox jumps over the lazy dog. ".repeat(1 + number % 5) + &number.to_string();
    let mut body = json!({ "model": model, "max_tokens": 5 + number % 20, "seed": number, "ignore_eos": true });
    match number % 5 {
        0 => body["temperature"] = json!(0),
        1 => body["n"] = json!(2),
        2 => body["logprobs"] = json!(3),
        3 => {
            body["messages"] = json!([{ "role": "user", "content": prompt }]);
            return ("/v1/chat/completions", body);
        }
        _ if number.is_multiple_of(2) => body["use_beam_search"] = json!(true),
        _ => return ("/v1/embeddings", json!({ "model": model, "input": prompt })),
    }
    body["prompt"] = json!(prompt);
    ("/v1/completions", body)
}

/// Sends a request, and returns the part of the answer that must be reproducible.
pub(crate) async fn answer(server: &Server, number: usize, model: &str) -> Value {
    let (path, body) = request(number, model);
    let answer = server.post_to(path, body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let answer = answer.json();
    assert_eq!(answer["model"], model);
    match path {
        "/v1/embeddings" => answer["data"].clone(),
        _ => answer["choices"].clone(),
    }
}

/// Another handle of the same server, for a task.
pub(crate) fn shared(server: &Server) -> Server {
    Server { engine: server.engine.clone(), state: server.state.clone() }
}

fn names(n: u64) -> Vec<String> {
    (0..n).map(|number| format!("a{number}")).chain([MODEL.to_owned()]).collect()
}

#[tokio::test]
async fn concurrent_requests_with_adapters_equal_single_runs() {
    let folder = folder(8);
    for speculation in [Speculation::Off, Speculation::PromptLookup { n_tokens: 3 }] {
        let names = names(8);
        let alone = Server::with_options(options(named_dirs(&folder, 8), 8, None));
        let together = Server::with_options(EngineOptions { speculation, ..options(named_dirs(&folder, 8), 8, None) });
        let base = Server::with_options(EngineOptions { max_batch_size: 16, ..OPTIONS });
        let model_of = |number: usize| names[number % names.len()].as_str();
        let mut requests = JoinSet::new();
        for number in 0..100 {
            let (server, name) = (shared(&together), model_of(number).to_owned());
            requests.spawn(async move { (number, answer(&server, number, &name).await) });
        }
        for (number, found) in requests.join_all().await {
            let name = model_of(number);
            assert_eq!(found, answer(&alone, number, name).await, "{number} with {name}");
            let of_base = answer(&base, number, MODEL).await;
            assert_eq!(found == of_base, name == MODEL, "{number} with {name}");
        }
        together.wait_for(is_idle).await;
    }
}

/// There are more adapters than fit into memory: requests for them wait, and adapters are read again.
#[tokio::test]
async fn adapter_loads_unloads_and_evictions_do_not_change_answers() {
    let folder = folder(6);
    let names = names(6);
    let alone = Server::with_options(options(named_dirs(&folder, 6), 6, None));
    let mut expected = BTreeMap::new();
    for (number, name) in (0..60).flat_map(|number| names.iter().map(move |name| (number, name.as_str()))) {
        if (number + name.len()) % 3 == 0 {
            expected.insert((number, name), answer(&alone, number, name).await);
        }
    }
    let server = Server::with_options(options(named_dirs(&folder, 3), 2, Some(folder.path().to_owned())));
    for name in ["a3", "a4", "a5"] {
        assert_eq!(load(&server, name, name).await.0, StatusCode::OK);
    }
    let mut requests = JoinSet::new();
    for ((number, name), expected) in expected {
        let (server, name) = (shared(&server), name.to_owned());
        requests.spawn(async move {
            let name = name.as_str();
            let mut n_missed = 0;
            // If the adapter was unloaded in the meantime, the client loads it again.
            loop {
                let (path, body) = request(number, name);
                let answer = server.post_to(path, body.to_string()).await;
                if answer.status == StatusCode::TOO_MANY_REQUESTS {
                    assert_eq!(answer.json()["error"]["code"], "adapters_busy");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                if answer.status == StatusCode::NOT_FOUND {
                    assert_eq!(answer.json()["error"]["code"], "model_not_found");
                    n_missed += 1;
                    let (status, text) = load(&server, name, name).await;
                    let is_there = text.contains("has already been loaded") || text.contains("adapters_busy");
                    assert!(status == StatusCode::OK || is_there, "{text}");
                    continue;
                }
                assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
                let answer = answer.json();
                let part = if path == "/v1/embeddings" { "data" } else { "choices" };
                assert_eq!(answer[part], expected, "{number} with {name}");
                return n_missed;
            }
        });
    }
    let removals = async {
        let mut n_removed = 0;
        for round in 0..40 {
            let name = format!("a{}", round % 6);
            let (status, text) = unload(&server, &name).await;
            assert!(status == StatusCode::OK || status == StatusCode::NOT_FOUND, "{text}");
            n_removed += usize::from(status == StatusCode::OK);
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        n_removed
    };
    let (missed, n_removed) = tokio::join!(requests.join_all(), removals);
    let n_missed: usize = missed.into_iter().sum();
    assert!(n_missed > 0 && n_removed > 5, "{n_missed} requests found no adapter, {n_removed} were removed");
    server.wait_for(is_idle).await;
    // Reading further adapters evicts others.
    for name in ["a0", "a1", "a2"] {
        let (status, text) = load(&server, name, name).await;
        assert!(status == StatusCode::OK || text.contains("already"), "{text}");
        answer(&server, 0, name).await;
    }
    server.wait_for(is_idle).await;
    answer(&server, 0, "a1").await;
    assert!(server.engine.adapters().n_loaded() <= 2, "{} adapters in memory", server.engine.adapters().n_loaded());
}

#[tokio::test]
async fn lora_adapters_are_listed_in_models_and_openapi() {
    let folder = folder(2);
    let server = Server::with_options(options(named_dirs(&folder, 1), 8, Some(folder.path().to_owned())));
    let (status, text) = load(&server, "late", "a1").await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, "Success: LoRA adapter 'late' added successfully."));
    let list = server.get("/v1/models").await.json();
    let models: Vec<(&str, &str, &Value)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), model["root"].as_str().unwrap(), &model["parent"]))
        .collect();
    let (parent, dir) = (json!(MODEL), folder.path().join("a0"));
    assert_eq!(models, [(MODEL, MODEL, &Value::Null), ("a0", dir.to_str().unwrap(), &parent), ("late", "a1", &parent)]);
    assert_eq!(server.get("/v1/models/late").await.json()["parent"], MODEL);
    let document = server.get("/openapi.json").await.json();
    let schema = &document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(schema["properties"]["model"]["enum"], json!([MODEL, "a0", "late", "", null]));
    let (status, text) = unload(&server, "late").await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, "Success: LoRA adapter 'late' removed successfully."));
    assert_eq!(server.get("/v1/models/late").await.status, StatusCode::NOT_FOUND);
    // An adapter has the tokenizer of the model.
    let ids = |model: &'static str| {
        let server = &server;
        async move { post(server, "/tokenize", json!({ "model": model, "prompt": "the end" })).await }
    };
    let (status, text) = ids("a0").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!((status, text), ids(MODEL).await);
    assert_eq!(ids("late").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn prefix_cache_separates_adapters_by_their_weights() {
    let folder = folder(2);
    let server = Server::with_options(options(named_dirs(&folder, 2), 8, Some(folder.path().to_owned())));
    let cached = |model: &'static str| {
        let body = json!({ "model": model, "prompt": "0123456789".repeat(7), "max_tokens": 1 });
        let server = &server;
        async move {
            let answer = server.complete(body).await;
            answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        }
    };
    for name in ["a0", MODEL, "a1"] {
        assert_eq!(cached(name).await, 0, "{name}");
        assert_eq!(cached(name).await, 64, "{name}");
    }
    // Equal weights under another name share pages; other weights under the same name do not.
    assert_eq!(load(&server, "again", "a0").await.0, StatusCode::OK);
    assert_eq!(cached("again").await, 64);
    write(&folder.path().join("other"), 3, 77);
    let body = json!({ "lora_name": "a0", "lora_path": "other", "load_inplace": true });
    assert_eq!(post(&server, "/v1/load_lora_adapter", body).await.0, StatusCode::OK);
    assert_eq!(cached("a0").await, 0);
}

#[tokio::test]
async fn metrics_count_requests_and_tokens_by_adapter() {
    let folder = folder(2);
    let server = Server::with_options(options(named_dirs(&folder, 2), 5, None));
    let body = json!({ "model": "a1", "prompt": "x", "max_tokens": 7, "ignore_eos": true });
    server.complete(body.clone()).await;
    server.complete(json!({ "prompt": "x", "max_tokens": 3, "ignore_eos": true })).await;
    server.wait_for(is_idle).await;
    let info = |text: &str| {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("vllm:lora_requests_info{")).collect();
        let [line] = lines[..] else { panic!("not one sample: {lines:?}") };
        line.to_owned()
    };
    let text = server.get("/metrics").await.text;
    for line in [
        "hearth_lora_requests_total{L,finished_reason=\"length\",lora=\"a1\"} 1",
        "hearth_lora_generation_tokens_total{L,lora=\"a1\"} 7",
        "vllm:generation_tokens_total{L} 10",
    ] {
        let line = line.replace("{L", &format!("{{model_name=\"{MODEL}\",engine=\"0\""));
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let idle = info(&text);
    assert!(idle.contains("max_lora=\"5\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} "), "{idle}");
    let time: f64 = idle.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(time > 1.7e9, "{idle}");
    // While requests run.
    let long = json!({ "model": "a1", "prompt": "x", "max_tokens": 8000, "ignore_eos": true });
    tokio::select! {
        _ = server.complete(long) => panic!("not so fast"),
        // Scraped before `=>`: after it the request is cancelled.
        () = async {
            server.wait_for(|stats| stats.running == 1).await;
            let busy = info(&server.get("/metrics").await.text);
            assert!(busy.contains("running_lora_adapters=\"a1\",waiting_lora_adapters=\"\"} "), "{busy}");
        } => {}
    }
    server.wait_for(is_idle).await;
    assert!(!Server::start().get("/metrics").await.text.contains("lora_requests_info{"), "there are none");
}

#[tokio::test]
async fn lora_adapter_errors_name_the_cause() {
    let folder = folder(1);
    write(&folder.path().join("high"), 17, 9);
    std::fs::create_dir_all(folder.path().join("empty")).unwrap();
    let other = hearth_model::config::GptConfig { d_model: 64, d_ff: 96, ..config() };
    let model = AdapterModel::new(&other, Some(CLASS)).unwrap();
    let adapter_config = AdapterConfig { rank: 2, ..Adapter::open_config(&folder.path().join("a0")).unwrap() };
    let staged = StagedDir::creating(&folder.path().join("foreign")).unwrap();
    Adapter::new(model, adapter_config, 1).unwrap().write(&staged, model, &[]).unwrap();
    staged.commit().unwrap();

    let server = Server::with_options(options(named_dirs(&folder, 1), 8, Some(folder.path().to_owned())));
    for (name, path, status, message) in [
        ("a0", "a0", 400, "the LoRA adapter `a0` has already been loaded\nhint:"),
        (MODEL, "a0", 400, "`lora_name` must not be the name of the model, got `tiny`"),
        ("x,y", "a0", 400, "the name of a LoRA adapter must have 1 to 256 bytes without control characters or commas"),
        (
            "x",
            "high",
            400,
            "the LoRA adapter `x` has the rank 17, but at most 16 is allowed\nhint: `--max-lora-rank 17`",
        ),
        ("x", "foreign", 400, "cannot load the LoRA adapter `x`: "),
        ("x", "empty", 400, "adapter_config.json"),
        ("x", "nothing", 400, "`lora_path` `nothing` does not exist below `--lora-root`"),
        ("x", "/etc", 400, "`lora_path` must be a folder below `--lora-root`, got `/etc`"),
        ("x", "../a0", 400, "`lora_path` must be a folder below `--lora-root`, got `../a0`"),
    ] {
        let body = json!({ "lora_name": name, "lora_path": path });
        let answer = server.post_to("/v1/load_lora_adapter", body.to_string()).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
        assert!(answer.error().contains(message), "{path}: {}", answer.text);
    }
    let missing = server.post_to("/v1/load_lora_adapter", json!({ "lora_name": "x" }).to_string()).await;
    assert_eq!(
        (missing.status, missing.json()["error"]["param"].clone()),
        (StatusCode::BAD_REQUEST, json!("lora_path"))
    );
    let (status, text) = unload(&server, "x").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(text.contains("the LoRA adapter `x` cannot be found; loaded are `a0`"), "{text}");
    let (status, text) = post(&server, "/v1/completions", json!({ "model": "x", "prompt": "x" })).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(text.contains("the model `x` does not exist; this server has `tiny`, `a0`"), "{text}");
    let (status, text) = post(&server, "/v1/inspect", json!({ "model": "a0", "input": "x" })).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("shows the model `tiny` alone, not the adapter `a0`"), "{text}");

    // A server without `--lora-root` does not load or unload adapters.
    let fixed = Server::with_options(options(named_dirs(&folder, 1), 8, None));
    for (status, text) in [load(&fixed, "x", "a0").await, unload(&fixed, "a0").await] {
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(text.contains("start it with `--lora-root DIR`"), "{text}");
    }
    // An adapter that is given at startup.
    let wrong = vec![NamedDir { name: "x".into(), dir: folder.path().join("high") }];
    let error = Engine::start(|| Ok(support::model()), options(wrong, 8, None)).unwrap_err().to_string();
    assert!(error.starts_with("`--lora`: the LoRA adapter `x` has the rank 17"), "{error}");
}

/// `hearth-train finetune` writes its adapter to `model` in the folder of the run.
#[tokio::test]
async fn training_run_folder_is_accepted_as_a_lora_adapter() {
    let run = tempfile::tempdir().unwrap();
    std::fs::write(run.path().join("config.toml"), "").unwrap();
    write(&run.path().join("model"), 4, 3);
    let named = vec![NamedDir { name: "run".into(), dir: run.path().to_owned() }];
    let server = Server::with_options(options(named, 8, None));
    assert_ne!(answer(&server, 0, "run").await, answer(&server, 0, MODEL).await);
}
