//! `hearth health`.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use super::{Served, hearth, model_dir, path, run, stderr, stdout};
use crate::connections::tls_file;

/// Runs `hearth health`; returns its exit code and its one line of output (stdout on success, stderr on failure).
fn health(args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = hearth(&["health"]).args(args).envs(variables.iter().copied()).output().unwrap();
    let (code, out, err) = (output.status.code(), stdout(&output), stderr(&output));
    let (told, other) = if code == Some(0) { (out, err) } else { (err, out) };
    assert_eq!((told.lines().count(), other), (1, ""), "{told}");
    (code, told.to_owned())
}

#[test]
#[cfg(unix)]
fn health_command_checks_the_server_of_the_same_settings() {
    let dir = model_dir();
    let served = Served::start(&dir, &[]);
    let port = served.port.clone();
    let healthy = (Some(0), format!("`http://127.0.0.1:{port}/health` is healthy\n"));
    assert_eq!(health(&["--port", &port], &[]), healthy);
    assert_eq!(health(&[], &[("HEARTH_PORT", &port)]), healthy);
    // The whole command line of the server, including flags that have no effect here.
    let all = ["--port", &port, "--device", "cpu", "--model", "/nowhere/at/all", "--max-queue", "3", "--api-key", "sk"];
    assert_eq!(health(&all, &[("HEARTH_PORT", "1")]), healthy);
    // TLS, which the server does not use.
    let tls = [tls_file("cert.pem"), tls_file("key.pem")];
    let tls = ["--tls-cert", path(&tls[0]), "--tls-key", path(&tls[1])];
    let (code, told) = health(&[&["--port", &port], &tls[..]].concat(), &[]);
    assert_eq!(code, Some(1));
    assert!(told.starts_with(&format!("error: `https://127.0.0.1:{port}/health`: cannot speak TLS")), "{told}");
    served.stop();
    let (code, told) = health(&["--port", &port], &[]);
    assert_eq!(code, Some(1));
    assert!(told.starts_with(&format!("error: `http://127.0.0.1:{port}/health`: cannot connect: ")), "{told}");
}

/// A TLS server that listens on all addresses, as in a container: the check connects over loopback, which its
/// certificate does not name.
#[test]
#[cfg(unix)]
fn health_command_uses_tls_and_checks_the_server_certificate() {
    let dir = model_dir();
    let files = ["other-cert.pem", "other-key.pem", "cert.pem", "key.pem"].map(tls_file);
    let [certificate, key, another, its_key] = files.each_ref().map(|file| path(file));
    let args = ["--host", "0.0.0.0", "--tls-cert", certificate, "--tls-key", key];
    let served = Served::start(&dir, &args);
    let port = served.port.clone();
    let mut variables = [
        ("HEARTH_HOST", "0.0.0.0"),
        ("HEARTH_PORT", port.as_str()),
        ("HEARTH_TLS_CERT", certificate),
        ("HEARTH_TLS_KEY", key),
    ];
    let healthy = (Some(0), format!("`https://127.0.0.1:{port}/health` is healthy\n"));
    assert_eq!(health(&[], &variables), healthy);
    assert_eq!(health(&["--port", &port, "--tls-cert", certificate], &[]), healthy);
    // The certificate of the settings must be the server's.
    (variables[2].1, variables[3].1) = (another, its_key);
    let (code, told) = health(&[], &variables);
    assert_eq!(code, Some(1));
    assert!(told.contains("cannot speak TLS: `--tls-cert` must be the certificate that the server uses"), "{told}");
    let (code, told) = health(&["--port", &port], &[]);
    assert_eq!(code, Some(1));
    assert!(told.starts_with(&format!("error: `http://127.0.0.1:{port}/health`: ")), "{told}");
    served.stop();
}

#[test]
fn health_command_reports_failures_and_times_out() {
    // A listener that never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let started = Instant::now();
    let (code, told) = health(&["--port", &port], &[]);
    assert_eq!(code, Some(1));
    assert!(told.contains("did not answer within 4 s") && started.elapsed() < Duration::from_secs(20), "{told}");
    // A server that reports a failure, and servers of other kinds.
    let failed = r#"{"error": {"message": "inference failed: x\nhint: y"}}"#;
    for (answer, expected) in [
        (format!("HTTP/1.1 503 Service Unavailable\r\n\r\n{failed}"), "answered 503: inference failed: x\n"),
        ("HTTP/1.1 404 Not Found\r\n\r\n<html>".to_owned(), "answered 404\n"),
        ("SSH-2.0-x\r\n".to_owned(), "the response is not HTTP/1.1: does the server use TLS (`--tls-cert`)?\n"),
        ("\x15\x03\x01\r\n\r\n".to_owned(), "the response is not HTTP/1.1: does the server use TLS (`--tls-cert`)?\n"),
        ("HTTP/1.1 2\r\n\r\n".to_owned(), "the response is not HTTP/1.1: does the server use TLS (`--tls-cert`)?\n"),
        ("HTTP/1.1 200 OK\r\n".to_owned(), "the response is not HTTP/1.1: does the server use TLS (`--tls-cert`)?\n"),
        (String::new(), "the response is not HTTP/1.1: does the server use TLS (`--tls-cert`)?\n"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let server = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                connection.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            connection.write_all(answer.as_bytes()).unwrap();
        });
        let (code, told) = health(&["--port", &port], &[]);
        assert_eq!(code, Some(1));
        assert!(told.starts_with("error: ") && told.ends_with(expected), "{told}");
        server.join().unwrap();
    }
    let (code, told) = health(&["--port", "0"], &[]);
    assert_eq!(code, Some(1));
    assert!(told.starts_with("error: `--port` must be the port"), "{told}");
    let output = run(&["health", "--tls-cert", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(
        told.contains("`--tls-cert`: cannot read `/nowhere/at/all`") && told.matches("os error").count() == 1,
        "{told}"
    );
    for wrong in [&["--port", "high"][..], &["--nonsense"]] {
        assert_eq!(run(&[&["health"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
    let help = run(&["health", "--help"]);
    assert!(stdout(&help).contains("HEARTH_TLS_CERT") && !stdout(&help).contains("--max-queue"), "{}", stdout(&help));
}
