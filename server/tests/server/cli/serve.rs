//! `hearth serve`: its log and its shutdown.

#![cfg(unix)]

use std::{
    io::{BufReader, Read, Write},
    net::TcpStream,
    process::Command,
};

use serde_json::{Value, json};

use super::{exit_code, hearth, model_dir, path, wait_for_line};
use crate::support::events;

#[test]
fn serve_answers_and_stops_on_sigterm() {
    let dir = model_dir();
    let mut command = hearth(&["--port", "0", "--device", "cpu"]);
    let mut child = command.env("HEARTH_MODEL", dir.path()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let address = wait_for_line(&mut log, "listening on http://");
    let address = address.trim().rsplit_once("http://").unwrap().1.to_owned();
    wait_for_line(&mut log, "is ready");

    let body = json!({ "prompt": "the", "max_tokens": 5, "stream": true, "ignore_eos": true, "stream_options": { "include_usage": true } }).to_string();
    let mut connection = TcpStream::connect(&address).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(events(&answer).last().unwrap()["usage"]["total_tokens"], 6);

    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(exit_code(&mut child), Some(0));
}

/// If stderr is closed or its pipe is full, requests are still answered, and the server shuts down cleanly.
#[test]
fn closed_or_unread_stderr_does_not_stop_the_server() {
    let dir = model_dir();
    for reads_no_more in [true, false] {
        let mut child = hearth(&["--port", "0", "--device", "cpu", "--model", path(dir.path())]).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let line = wait_for_line(&mut log, "listening on http://");
        let address = line.trim().rsplit_once("http://").unwrap().1.to_owned();
        wait_for_line(&mut log, "is ready");
        // In the second round the pipe stays open but is not read: some 200 lines fill it.
        let held = (!reads_no_more).then_some(log);
        for _ in 0..if reads_no_more { 3 } else { 600 } {
            let mut connection = TcpStream::connect(&address).unwrap();
            connection.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
            let body = r#"{"prompt": "a", "max_tokens": 1}"#;
            let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ";
            connection.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        assert_eq!(exit_code(&mut child), Some(0));
        drop(held);
    }
}

#[test]
fn request_log_has_no_keys_and_has_prompts_only_with_log_prompts() {
    let dir = model_dir();
    let keys = dir.path().join("keys");
    std::fs::write(&keys, "sk-from-the-file\n\n  sk-another  \n").unwrap();
    for logs_prompts in [false, true] {
        let mut command =
            hearth(&["--port", "0", "--device", "cpu", "--log-format", "json", "--model", path(dir.path())]);
        command.args(["--api-key", "sk-from-the-flag", "--api-key-file", path(&keys)]);
        command.args(logs_prompts.then_some("--log-prompts"));
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let line = |log: &mut _, part: &str| -> Value { serde_json::from_str(&wait_for_line(log, part)).unwrap() };
        let listening = line(&mut log, "listening on http://")["message"].as_str().unwrap().to_owned();
        let address = listening.rsplit_once("http://").unwrap().1.to_owned();
        line(&mut log, "is ready");
        let ask = |key: &str, id: &str| {
            let body = json!({ "prompt": "the secret", "max_tokens": 5, "n": 2, "ignore_eos": true }).to_string();
            let head = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\nx-request-id: {id}\r\n\
                 authorization: Bearer {key}\r\ntraceparent: 00-{:032x}-{:016x}-01\r\n\r\n",
                body.len(),
                0xabc,
                1
            );
            let mut connection = TcpStream::connect(&address).unwrap();
            connection.write_all(format!("{head}{body}").as_bytes()).unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            answer
        };
        let mut texts = String::new();
        for (key, id, status) in [("sk-wrong", "a", 401), ("sk-from-the-flag", "b", 200), ("sk-another", "c", 200)] {
            assert!(ask(key, id).starts_with(&format!("HTTP/1.1 {status}")));
            let line = line(&mut log, "POST /v1/completions");
            texts += &line.to_string();
            assert_eq!((&line["request_id"], &line["status"]), (&json!(id), &json!(status)));
            assert_eq!(line["trace_id"], format!("{:032x}", 0xabc));
            assert!(line["total_ms"].as_f64().unwrap() > 0.0);
            if status == 200 {
                assert_eq!((&line["end"], &line["completion_tokens"]), (&json!("length"), &json!(10)));
                assert_eq!(line["prompt_tokens"], 8);
                let ms = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("no {name}: {line}"));
                assert!(ms("prefill_ms") > 0.0);
                // Both are counted from the request's arrival; the log rounds to microseconds.
                assert!(ms("ttft_ms") + 0.01 >= ms("queue_ms") + ms("prefill_ms"), "{line}");
                assert!(ms("queue_ms") + ms("prefill_ms") + ms("decode_ms") <= ms("total_ms"), "{line}");
                assert_eq!(line["cached_tokens"], 0);
            }
        }
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        log.read_to_string(&mut texts).unwrap();
        assert_eq!(exit_code(&mut child), Some(0));
        assert!(!texts.contains("sk-"), "{texts}");
        assert_eq!(texts.contains("the secret"), logs_prompts, "{texts}");
    }
}
