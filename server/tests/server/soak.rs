//! Many concurrent requests of all kinds to a server process: every answer is right, and afterwards no page is in use.
//!
//! `HEARTH_SOAK=10000 cargo test --release --workspace --test server soak -- --nocapture` runs it at length and looks at
//! the memory too.

use std::{
    io::{BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::{Value, json};

use crate::{
    cli::{hearth, model_dir, wait_for_line},
    support::{TEST_TIMEOUT, events, fold},
};

const N_REQUESTS: usize = 400;
const N_CLIENTS: usize = 24;

/// Requests of mixed lengths and kinds.
pub(crate) fn bodies() -> Vec<Value> {
    let one = |index: usize| {
        let words = "the hand and the other one in her land ".repeat(index % 7 + 1);
        let mut body = json!({
            "prompt": format!("{} {words}", if index.is_multiple_of(3) { "once" } else { "then" }),
            "max_tokens": 1 + index * 5 % 37,
            "temperature": if index.is_multiple_of(2) { 0.0 } else { 0.9 },
            "seed": index,
        });
        match index % 8 {
            1 => body["n"] = json!(3),
            2 => body["logprobs"] = json!(2),
            3 => body["stop"] = json!(["e", "\n"]),
            4 => body["priority"] = json!(index % 3),
            5 => (body["echo"], body["logprobs"]) = (json!(true), json!(1)),
            6 => {
                (body["use_beam_search"], body["best_of"]) = (json!(true), json!(3));
                body["prompt"] = json!("the other hand");
            }
            _ => {}
        }
        body
    };
    (0..32).map(one).collect()
}

const MALFORMED: [&str; 5] =
    ["", "{\"prompt\": [", r#"{"prompt": "x", "n": -1}"#, r#"{"prompt": [99999]}"#, r#"{"prompt": "x", "seed": "s"}"#];

/// The served process.
pub(crate) struct Server {
    child: Child,
    address: String,
}

impl Server {
    pub(crate) fn start(model: &std::path::Path, args: &[&str]) -> Self {
        let model = model.to_str().unwrap();
        let mut command = hearth(&["serve", "--port", "0", "--device", "cpu", "--model", model]);
        command.args(args);
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address =
            wait_for_line(&mut log, "listening on http://").trim().rsplit_once("http://").unwrap().1.to_owned();
        wait_for_line(&mut log, "is ready");
        // The log is read so that the pipe does not fill up.
        thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, address }
    }

    /// Opens a connection and sends the request.
    pub(crate) fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        connection.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let n_bytes = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {n_bytes}\r\n\r\n{body}"
        );
        connection.write_all(request.as_bytes()).unwrap();
        connection
    }

    /// Status and body.
    pub(crate) fn answer(&self, head: &str, body: &str) -> (u16, String) {
        let mut answer = Vec::new();
        self.send(head, body).read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn complete(&self, body: &Value) -> String {
        let (status, answer) = self.answer(COMPLETIONS, &body.to_string());
        assert_eq!(status, 200, "{body} {answer}");
        answer
    }

    fn choices(&self, body: &Value) -> Value {
        let answer: Value = serde_json::from_str(&self.complete(body)).unwrap();
        answer["choices"].clone()
    }

    fn metric(&self, name: &str) -> f64 {
        let (_, page) = self.answer("GET /metrics", "");
        let start = format!("vllm:{name}{{");
        let line = page.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no {name} in {page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Resident memory in megabytes, where the system reports it.
    pub(crate) fn resident_megabytes(&self) -> Option<f64> {
        self.megabytes("VmRSS:")
    }

    /// Peak resident memory in megabytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak_megabytes(&self) -> Option<f64> {
        self.megabytes("VmHWM:")
    }

    fn megabytes(&self, name: &str) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // If the test failed, the process is still running.
        let _ = self.child.kill();
    }
}

pub(crate) const COMPLETIONS: &str = "POST /v1/completions";

#[test]
fn mixed_requests_get_right_answers_and_leave_no_pages_in_use() {
    let n_requests = std::env::var("HEARTH_SOAK").map_or(N_REQUESTS, |n| n.parse().expect("HEARTH_SOAK is a number"));
    let dir = model_dir();
    // 20 pages: enough for one of each kind, not for all that run, so that some are preempted.
    let args = ["--kv-cache-tokens", "320", "--max-batch-size", "8", "--max-batch-tokens", "64"];
    let mut server = Server::start(dir.path(), &args);
    let bodies = bodies();
    let mut expected = Vec::new();
    for body in &bodies {
        expected.push(server.choices(body));
    }
    let (next, memory) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let client = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= n_requests {
                break;
            }
            if index.is_multiple_of(16) {
                memory.lock().unwrap().extend(server.resident_megabytes());
            }
            // 7 and 32 have no common factor, so every kind of body is sent by every kind of client.
            let which = index * 7 % bodies.len();
            send_and_check(&server, index, &bodies[which], &expected[which]);
        }
    };
    thread::scope(|scope| {
        for client in (0..N_CLIENTS).map(|_| scope.spawn(client)).collect::<Vec<_>>() {
            client.join().expect("every request is answered as it should be");
        }
    });
    // The engine notices disconnected clients at its next step.
    while server.metric("num_requests_running") + server.metric("num_requests_waiting") > 0.0 {}
    assert_eq!(server.metric("kv_cache_usage_perc"), 0.0);
    let n_preemptions = server.metric("num_preemptions_total");
    assert!(n_preemptions > 0.0, "the test shows too little");
    assert!(Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap().success());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let memory = memory.lock().unwrap();
    let quarter = |number: usize| {
        let part = &memory[memory.len() * number / 4..memory.len() * (number + 1) / 4];
        part.iter().sum::<f64>() / part.len().max(1) as f64
    };
    let quarters = [0, 1, 2, 3].map(quarter);
    let growth = quarters[3] / quarters[0] - 1.0;
    println!(
        "{n_requests} requests, {n_preemptions} preemptions; resident memory by quarters {quarters:.2?} MB, {:+.2} %",
        growth * 100.0
    );
    // With a few hundred requests, memory still grows while the allocator warms up.
    assert!(n_requests < 10_000 || growth < 0.02, "resident memory grew");
}

fn send_and_check(server: &Server, index: usize, body: &Value, expected: &Value) {
    if index % 10 == 3 {
        let (status, answer) = server.answer(COMPLETIONS, MALFORMED[index / 10 % MALFORMED.len()]);
        assert_eq!(status, 400);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert!(answer["error"]["message"].is_string(), "{answer}");
    } else if index % 5 == 1 {
        let mut body = body.clone();
        (body["stream"], body["ignore_eos"], body["max_tokens"]) =
            (json!(index.is_multiple_of(2)), json!(true), json!(80));
        let mut connection = server.send(COMPLETIONS, &body.to_string());
        if index.is_multiple_of(2) {
            // Disconnects in the middle of the stream; otherwise before the answer.
            let n_bytes = connection.read(&mut [0; 300]).unwrap();
            assert!(n_bytes > 0, "{body}");
        }
    } else if index.is_multiple_of(2) {
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        assert_eq!(json!(fold(&events(&server.complete(&streamed)))), *expected, "{body}");
    } else {
        assert_eq!(server.choices(body), *expected, "{body}");
    }
}
