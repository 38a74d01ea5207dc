//! Which folders clients may load adapters from, and adapters that are evicted from memory and read again.

use std::{
    env, fs,
    path::{Component, Path, PathBuf},
};

use axum::http::StatusCode;
use hearth_engine::{EngineOptions, EngineStats};
use serde_json::{Value, json};

use crate::{
    adapters::{answer, folder, load, named_dirs, options, post, shared, unload, write},
    support::{Answer, MODEL, Server, is_idle},
};

/// Sends a request that takes long, and abandons it when the task is aborted.
fn endless(server: &Server, model: &str) -> tokio::task::JoinHandle<Answer> {
    let (server, model) = (shared(server), model.to_owned());
    let body = json!({ "model": model, "prompt": "x", "max_tokens": 8000, "ignore_eos": true });
    tokio::spawn(async move { server.post(body.to_string()).await })
}

async fn short(server: &Server, model: &str) -> Answer {
    server.post(json!({ "model": model, "prompt": "x", "max_tokens": 1 }).to_string()).await
}

fn code(answer: &Answer) -> Value {
    answer.json()["error"]["code"].clone()
}

/// A path from the working directory to `dir`.
fn relative(dir: &Path) -> PathBuf {
    let here = env::current_dir().unwrap().canonicalize().unwrap();
    let upwards = here.components().filter(|part| matches!(part, Component::Normal(_))).map(|_| "..");
    Path::new(".").join(upwards.collect::<PathBuf>()).join(dir.canonicalize().unwrap().strip_prefix("/").unwrap())
}

#[tokio::test]
async fn load_lora_adapter_accepts_paths_below_a_relative_lora_root() {
    let folder = folder(1);
    let whole = folder.path().join("a0");
    let server = Server::with_options(options(Vec::new(), 8, Some(relative(folder.path()))));
    for (number, path) in ["a0", "./a0", "x/../a0", whole.to_str().unwrap()].into_iter().enumerate() {
        let (status, text) = load(&server, &number.to_string(), path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
    }
    for path in ["..", "../nothing", ".", "/etc"] {
        let (status, text) = load(&server, "x", path).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains("must be a folder below `--lora-root`"), "{path}: {text}");
    }
}

/// The error does not reveal whether the target exists.
#[cfg(unix)]
#[tokio::test]
async fn load_lora_adapter_follows_no_symlinks_out_of_the_lora_root() {
    use std::os::unix::fs::symlink;

    let outer = folder(1);
    let (secret, root) = (outer.path().join("a0"), outer.path().join("root"));
    fs::create_dir_all(root.join("files")).unwrap();
    fs::create_dir_all(root.join("run")).unwrap();
    fs::write(root.join("run/config.toml"), "").unwrap();
    let server = Server::with_options(options(Vec::new(), 1, Some(root.clone())));
    let nowhere = outer.path().join("nowhere");
    // Symlinks out of the root, and the path that is loaded.
    let cases = [
        (&["link"][..], "link"),
        (&["files/adapter_config.json", "files/adapter_model.safetensors"], "files"),
        (&["run/model"], "run"),
    ];
    for (links, path) in cases {
        let mut messages = Vec::new();
        for target in [&secret, &nowhere] {
            for link in links {
                let file = link.strip_prefix("files/").map_or_else(|| target.clone(), |file| target.join(file));
                symlink(file, root.join(link)).unwrap();
            }
            let (status, text) = load(&server, "x", path).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {text}");
            messages.push(text);
            links.iter().for_each(|link| fs::remove_file(root.join(link)).unwrap());
        }
        assert_eq!(messages[0], messages[1]);
    }
    // A folder inside the root at loading may be a symlink out of it when it is read again.
    for name in ["own", "next"] {
        write(&root.join(name), 4, 9);
        assert_eq!(load(&server, name, name).await.0, StatusCode::OK);
    }
    fs::rename(root.join("own"), outer.path().join("moved")).unwrap();
    symlink(outer.path().join("moved"), root.join("own")).unwrap();
    let answer = short(&server, "own").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text);
    assert_eq!(short(&server, "next").await.status, StatusCode::OK);
}

#[tokio::test]
async fn evicted_adapter_with_missing_or_changed_files_answers_503() {
    let folder = folder(3);
    let server = Server::with_options(options(named_dirs(&folder, 3), 1, Some(folder.path().to_owned())));
    let before = answer(&server, 0, "a1").await;
    // Reading another adapter evicts `a1` once no request uses it.
    let evict = async || {
        server.wait_for(is_idle).await;
        answer(&server, 0, "a2").await;
    };
    evict().await;
    fs::rename(folder.path().join("a1"), folder.path().join("away")).unwrap();
    for _ in 0..2 {
        let gone = short(&server, "a1").await;
        assert_eq!(gone.status, StatusCode::SERVICE_UNAVAILABLE, "{}", gone.text);
        assert!(gone.error().starts_with("the LoRA adapter `a1` cannot be read any more"), "{}", gone.text);
        assert_eq!(gone.json()["error"]["param"], Value::Null);
    }
    // The folder may come back.
    fs::rename(folder.path().join("away"), folder.path().join("a1")).unwrap();
    assert_eq!(answer(&server, 0, "a1").await, before);
    evict().await;
    fs::remove_dir_all(folder.path().join("a1")).unwrap();
    write(&folder.path().join("a1"), 5, 77);
    let changed = short(&server, "a1").await;
    assert_eq!(changed.status, StatusCode::SERVICE_UNAVAILABLE, "{}", changed.text);
    assert!(changed.error().contains("`a1` have changed since it was loaded\nhint: load it again with `load_inplace`"));
    let body = json!({ "lora_name": "a1", "lora_path": "a1", "load_inplace": true });
    let (status, text) = post(&server, "/v1/load_lora_adapter", body).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_ne!(answer(&server, 0, "a1").await, before);
}

#[tokio::test]
async fn full_queue_rejects_requests_before_reading_their_adapter() {
    let folder = folder(2);
    let adapters = options(named_dirs(&folder, 2), 1, None);
    let server = Server::with_options(EngineOptions { max_queue: 1, max_batch_size: 1, ..adapters });
    // `a1`, the last adapter given at startup, is in memory; `a0` is not.
    fs::remove_dir_all(folder.path().join("a0")).unwrap();
    let running = endless(&server, MODEL);
    server.wait_for(|stats| stats.running == 1).await;
    let waiting = endless(&server, MODEL);
    server.wait_for(|stats| stats.waiting == 1).await;
    let rejected = short(&server, "a0").await;
    assert_eq!((rejected.status, code(&rejected)), (StatusCode::TOO_MANY_REQUESTS, json!("queue_full")));
    running.abort();
    waiting.abort();
    server.wait_for(is_idle).await;
    // Now `a0` is read from its folder, which is missing.
    assert_eq!(short(&server, "a0").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn too_many_adapters_in_use_answer_429_adapters_busy() {
    let folder = folder(6);
    let server = Server::with_options(options(named_dirs(&folder, 6), 1, Some(folder.path().to_owned())));
    let n_loaded = || server.engine.adapters().n_loaded();
    assert_eq!(n_loaded(), 1);
    let mut requests = Vec::new();
    for number in 0..4 {
        requests.push(endless(&server, &format!("a{number}")));
        let is_there = move |stats: &EngineStats| stats.running + stats.waiting == number + 1;
        server.wait_for(is_there).await;
    }
    assert_eq!(n_loaded(), 4);
    // An unloaded adapter still counts while a request uses it.
    assert_eq!(unload(&server, "a3").await.0, StatusCode::OK);
    let busy = short(&server, "a4").await;
    assert_eq!((busy.status, code(&busy)), (StatusCode::TOO_MANY_REQUESTS, json!("adapters_busy")), "{}", busy.text);
    assert_eq!(busy.header("retry-after"), "2");
    assert!(busy.error().contains("use 4 LoRA adapters, which is the maximum"), "{}", busy.text);
    let (status, text) = load(&server, "new", "a4").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text}");
    requests.iter().for_each(tokio::task::JoinHandle::abort);
    server.wait_for(is_idle).await;
    // Unloading one adapter also drops others from memory that no request uses.
    assert_eq!(unload(&server, "a5").await.0, StatusCode::OK);
    assert_eq!(n_loaded(), 1);
    assert_eq!(short(&server, "a4").await.status, StatusCode::OK);
    server.wait_for(is_idle).await;
    assert_eq!(load(&server, "new", "a4").await.0, StatusCode::OK);
    assert_eq!(n_loaded(), 1);
}

#[tokio::test]
async fn at_most_1024_lora_adapters_can_be_registered() {
    let folder = folder(1);
    let server = Server::with_options(options(Vec::new(), 1, Some(folder.path().to_owned())));
    for number in 0..1024 {
        let (status, text) = load(&server, &number.to_string(), "a0").await;
        assert_eq!(status, StatusCode::OK, "{text}");
    }
    let (status, text) = load(&server, "one more", "a0").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("1024 LoRA adapters are loaded, which is the maximum\\nhint: unload one first"), "{text}");
    let body = json!({ "lora_name": "7", "lora_path": "a0", "load_inplace": true });
    assert_eq!(post(&server, "/v1/load_lora_adapter", body).await.0, StatusCode::OK);
    assert_eq!(unload(&server, "7").await.0, StatusCode::OK);
    assert_eq!(load(&server, "one more", "a0").await.0, StatusCode::OK);
}
