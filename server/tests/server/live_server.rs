//! A server on a TCP socket, and clients that write their HTTP requests byte by byte.

use std::io::ErrorKind;

use hearth_server::{
    api::{guard::options::ApiOptions, wire::state::AppState},
    connection::ConnectionTimeouts,
    engine::Engine,
    serve::{Ended, ServeError, ServeOptions, serve},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

use crate::support::{MODEL, OPTIONS, Server, TEST_TIMEOUT, engine};

/// A server on a port of its own.
pub(crate) struct Live {
    pub(crate) server: Server,
    pub(crate) address: std::net::SocketAddr,
    pub(crate) signals: mpsc::Sender<()>,
    ended: JoinHandle<Result<Ended, ServeError>>,
}

impl Live {
    pub(crate) async fn start() -> Self {
        Self::with(|_, _| {}).await
    }

    /// Starts a server with changed settings.
    pub(crate) async fn with(set: impl FnOnce(&mut ApiOptions, &mut ServeOptions)) -> Self {
        Self::over(engine(OPTIONS), set).await
    }

    /// Starts a server with changed settings over `engine`.
    pub(crate) async fn over(engine: Engine, set: impl FnOnce(&mut ApiOptions, &mut ServeOptions)) -> Self {
        let (mut api, mut serving) = (ApiOptions::default(), serve_options());
        set(&mut api, &mut serving);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = AppState::loading_with(MODEL, api);
        state.set_engine(engine.clone());
        let server = Server { state, engine };
        let (signals, receiver) = mpsc::channel(2);
        let ended = tokio::spawn(serve(listener, server.state.clone(), receiver, serving));
        Self { server, address, signals, ended }
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection { stream: TcpStream::connect(self.address).await.unwrap(), received: Vec::new() }
    }

    /// Opens a connection and sends a completion request on it.
    pub(crate) async fn post(&self, body: &Value) -> Connection {
        let mut connection = self.connect().await;
        connection.send(post(&body.to_string()).as_bytes()).await;
        connection
    }

    /// Panics unless the server answers a completion request.
    pub(crate) async fn assert_serves(&self) {
        let answer = self.post(&json!({ "prompt": "x", "max_tokens": 1 })).await.all().await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    pub(crate) async fn ended(self) -> Result<Ended, ServeError> {
        timeout(TEST_TIMEOUT, self.ended).await.expect("the server ends").unwrap()
    }
}

/// Timeouts that are longer than any test; tests of timeouts set their own.
pub(crate) fn serve_options() -> ServeOptions {
    let timeouts = ConnectionTimeouts { head: TEST_TIMEOUT, idle: TEST_TIMEOUT };
    ServeOptions { drain_timeout: TEST_TIMEOUT, timeouts, max_connections: 100, tls: None }
}

/// A request for a completion that is the connection's last.
pub(crate) fn post(body: &str) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A client's end of a connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    pub(crate) async fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.stream.writable().await.unwrap();
            match self.stream.try_write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }

    /// Sends until all is sent or the server has closed the connection; returns the number of bytes sent.
    pub(crate) async fn send_all(&mut self, bytes: &[u8]) -> usize {
        let mut n_sent = 0;
        while n_sent < bytes.len() {
            self.stream.writable().await.unwrap();
            match self.stream.try_write(&bytes[n_sent..]) {
                Ok(n) => n_sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        n_sent
    }

    /// Receives the next bytes; `false` at the end of the stream.
    pub(crate) async fn receive(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            self.stream.readable().await.unwrap();
            match self.stream.try_read(&mut buffer) {
                Ok(n) => {
                    self.received.extend_from_slice(&buffer[..n]);
                    return n > 0;
                }
                // The server closed the connection while the client was still sending.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }

    /// Receives until the answer contains `part`.
    pub(crate) async fn until(&mut self, part: &str) {
        let comes = async {
            while !self.text().contains(part) {
                assert!(self.receive().await, "no `{part}` in: {}", self.text());
            }
        };
        timeout(TEST_TIMEOUT, comes).await.unwrap_or_else(|_| panic!("no `{part}`"));
    }

    pub(crate) async fn first_event(&mut self) {
        self.until("\ndata: ").await;
    }

    /// Receives until the server closes the connection, and returns everything received.
    pub(crate) async fn all(mut self) -> String {
        let to_the_end = async { while self.receive().await {} };
        timeout(TEST_TIMEOUT, to_the_end).await.expect("the answer ends");
        self.text()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }
}
