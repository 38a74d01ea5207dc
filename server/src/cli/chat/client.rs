//! Requests to OpenAI's API, wherever it is served, and its streamed answers.

use std::{collections::VecDeque, pin::Pin};

use anyhow::{Context, anyhow, bail};
use axum::{
    Router,
    body::{Body, BodyDataStream, to_bytes},
    http::{Method, Request, Response, StatusCode, header},
};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Map, Value, json};
use tokio_stream::StreamExt;

use super::{parameters::Parameters, remote::Remote};

/// Maximum size in bytes of a response that is not streamed.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Longer lines of a stream are rejected.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Who answers.
#[derive(Debug)]
pub(super) enum Client {
    /// The API in this process, without a socket.
    Here(Router),
    /// A running server.
    There(Remote),
}

/// A piece of a streamed answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerPiece {
    /// More of the model's thoughts (reasoning).
    Thought(String),
    /// More text.
    Text(String),
    /// Why the answer ended.
    Finished(String),
}

impl Client {
    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Response<Body>> {
        let request = |uri: String| Request::builder().method(method.clone()).uri(uri);
        let to_body = |body: Option<Value>| body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        match self {
            Client::Here(router) => {
                let request = request(path.to_owned()).header(header::HOST, "localhost");
                let request = request.header(header::CONTENT_TYPE, "application/json").body(to_body(body))?;
                match TowerToHyperService::new(router.clone()).call(request).await {
                    Ok(response) => Ok(response),
                    Err(never) => match never {},
                }
            }
            Client::There(remote) => {
                let request = request(remote.path(path)).header(header::CONTENT_TYPE, "application/json");
                remote.send(request.body(to_body(body))?).await
            }
        }
    }

    /// The model that was `asked` for, if the server has it; else its first one.
    pub(super) async fn model(&self, asked: Option<String>) -> anyhow::Result<String> {
        let models = self.models().await?;
        match asked {
            None => Ok(models.into_iter().next().unwrap_or_default()),
            Some(asked) if models.contains(&asked) => Ok(asked),
            Some(asked) => bail!(
                "the server has no model `{asked}`, only {}\nhint: without `--model-name`, its first one answers",
                models.iter().map(|model| format!("`{model}`")).collect::<Vec<_>>().join(", ")
            ),
        }
    }

    /// The models that the server has.
    pub(super) async fn models(&self) -> anyhow::Result<Vec<String>> {
        let response = accepted(self.send(Method::GET, "/v1/models", None).await?).await?;
        let body = to_bytes(response.into_body(), MAX_BODY_BYTES).await.context("cannot read the list of models")?;
        let list: Value = serde_json::from_slice(&body).map_err(|error| {
            anyhow!("the list of models is not JSON: {error}\nhint: `--url` must be a server with OpenAI's API")
        })?;
        let ids = list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str());
        Ok(ids.map(str::to_owned).collect())
    }

    /// The parameters that the server describes. `None` if it does not describe them as Hearth does.
    pub(super) async fn parameters(&self) -> Option<Parameters> {
        let response = accepted(self.send(Method::GET, "/openapi.json", None).await.ok()?).await.ok()?;
        let body = to_bytes(response.into_body(), MAX_BODY_BYTES).await.ok()?;
        Parameters::in_description(&serde_json::from_slice(&body).ok()?)
    }

    /// Begins an answer to `messages`.
    pub(super) async fn answer(
        &self,
        model: &str,
        messages: Vec<Value>,
        settings: &Map<String, Value>,
    ) -> anyhow::Result<Answer> {
        let mut body = settings.clone();
        body.insert("messages".to_owned(), messages.into());
        body.insert("stream".to_owned(), json!(true));
        if !model.is_empty() {
            body.insert("model".to_owned(), json!(model));
        }
        let sent = self.send(Method::POST, "/v1/chat/completions", Some(Value::Object(body))).await?;
        let response = accepted(sent).await?;
        let ignored = response.headers().get("x-ignored-params").and_then(|value| value.to_str().ok());
        Ok(Answer {
            ignored: ignored.map(str::to_owned),
            body: response.into_body().into_data_stream(),
            lines: Lines::default(),
            pieces: VecDeque::new(),
            is_done: false,
        })
    }
}

/// The response, if it is a success.
async fn accepted(response: Response<Body>) -> anyhow::Result<Response<Body>> {
    let status = response.status();
    if status == StatusCode::OK {
        return Ok(response);
    }
    let body = to_bytes(response.into_body(), MAX_BODY_BYTES).await.unwrap_or_default();
    let message = serde_json::from_slice::<Value>(&body).ok().and_then(|body| message(&body));
    match message {
        Some(message) if status == StatusCode::UNAUTHORIZED => {
            // The hint in the error is for programs.
            let what = message.split("\nhint: ").next().unwrap_or_default();
            bail!("{what}\nhint: give a key that the server accepts with `--api-key` or in `HEARTH_API_KEY`")
        }
        Some(message) => bail!("{message}"),
        None => bail!("the server answered {status}\nhint: `--url` must be a server with OpenAI's API"),
    }
}

/// The message of an error.
fn message(body: &Value) -> Option<String> {
    let error = body.get("error")?;
    Some(error["message"].as_str().or_else(|| error.as_str())?.to_owned())
}

/// An answer that is being streamed. Dropping it stops it.
pub(super) struct Answer {
    /// Parameters that the server has ignored.
    pub(super) ignored: Option<String>,
    body: BodyDataStream,
    lines: Lines,
    pieces: VecDeque<AnswerPiece>,
    is_done: bool,
}

impl Answer {
    /// The next piece; `None` at the end.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<AnswerPiece>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            if self.is_done {
                return Ok(None);
            }
            let Some(bytes) = Pin::new(&mut self.body).next().await else {
                bail!("the connection was closed before the end of the answer");
            };
            for line in self.lines.push(&bytes.context("the connection was lost")?)? {
                match event(&line)? {
                    Event::Pieces(pieces) => self.pieces.extend(pieces),
                    Event::Done => self.is_done = true,
                }
            }
        }
    }
}

/// The meaning of a line of the stream.
enum Event {
    Pieces(Vec<AnswerPiece>),
    Done,
}

fn event(line: &str) -> anyhow::Result<Event> {
    // Lines without data: comments, names of events, and the empty line after each event.
    let Some(data) = line.strip_prefix("data:").map(str::trim) else { return Ok(Event::Pieces(Vec::new())) };
    if data == "[DONE]" {
        return Ok(Event::Done);
    }
    let chunk: Value = serde_json::from_str(data).context("the server sent an event that is not JSON")?;
    if let Some(message) = message(&chunk) {
        bail!("{message}");
    }
    let choice = &chunk["choices"][0];
    let delta = &choice["delta"];
    let given = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    // Servers have one of the names, or both.
    let thought = given(&delta["reasoning_content"]).or_else(|| given(&delta["reasoning"]));
    let pieces = [
        thought.map(AnswerPiece::Thought),
        given(&delta["content"]).map(AnswerPiece::Text),
        choice["finish_reason"].as_str().map(|reason| AnswerPiece::Finished(reason.to_owned())),
    ];
    Ok(Event::Pieces(pieces.into_iter().flatten().collect()))
}

/// Cuts bytes into lines.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<String>> {
        self.rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned());
        }
        anyhow::ensure!(
            self.rest.len() <= MAX_LINE_BYTES,
            "the server sent a line of more than {MAX_LINE_BYTES} bytes"
        );
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn pieces(line: &str) -> Result<Vec<AnswerPiece>, String> {
        match event(line) {
            Ok(Event::Pieces(pieces)) => Ok(pieces),
            Ok(Event::Done) => Err("done".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn chat_client_parses_sse_deltas_errors_and_done() {
        for nothing in ["", ": keep-alive", "event: error", r#"data: {"choices": []}"#] {
            assert_eq!(pieces(nothing).unwrap(), [], "{nothing}");
        }
        assert_eq!(
            pieces(r#"data:{"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}"#).unwrap(),
            [AnswerPiece::Text("a".to_owned()), AnswerPiece::Finished("stop".to_owned())]
        );
        for delta in [r#"{"reasoning": "t"}"#, r#"{"reasoning_content": "t", "reasoning": "t"}"#] {
            let event = format!(r#"data: {{"choices": [{{"delta": {delta}}}]}}"#);
            assert_eq!(pieces(&event).unwrap(), [AnswerPiece::Thought("t".to_owned())]);
        }
        assert_eq!(pieces("data: [DONE]").unwrap_err(), "done");
        assert_eq!(pieces(r#"data: {"error": {"message": "it failed"}}"#).unwrap_err(), "it failed");
        assert!(pieces("data: {").unwrap_err().contains("not JSON"));
    }

    #[test]
    fn sse_lines_are_reassembled_from_chunks_cut_at_any_byte() {
        let text = "data: é\r\n\ndata: x\n";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let (first, second) = text.as_bytes().split_at(cut);
            let found = [lines.push(first).unwrap(), lines.push(second).unwrap()].concat();
            assert_eq!(found, ["data: é", "", "data: x"], "cut at {cut}");
        }
    }
}
