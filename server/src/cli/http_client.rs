//! HTTP/1.1 over connections that commands open to a running server.

use anyhow::Context;
use axum::{
    body::Body,
    http::{Request, Response},
};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Sends one request over `stream`, which is closed when the response has been read or dropped.
///
/// # Errors
/// The response is not HTTP/1.1, or the connection is lost: then an [`io::Error`](std::io::Error) is in the chain.
pub(super) async fn exchange<S>(stream: S, request: Request<Body>) -> anyhow::Result<Response<Body>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.context("cannot speak HTTP")?;
    // The task ends when the response has been read or dropped. The reader of the response gets its errors.
    tokio::spawn(async move { drop(connection.await) });
    let response = sender.send_request(request).await.context("cannot send the request")?;
    Ok(response.map(Body::new))
}
