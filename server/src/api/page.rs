//! The web page at `/` and the API reference at `/docs`: the files of `web/`, embedded in the binary.

use axum::{
    http::{HeaderName, header},
    response::{IntoResponse, Response},
};

/// The page loads everything from this server, except its empty inline icon. Other pages must not frame it: they
/// could trick users into clicking on it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types dompurify";

pub(crate) async fn index() -> Response {
    file("text/html; charset=utf-8", include_str!("../../../web/index.html"))
}

pub(crate) async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("../../../web/app.js"))
}

pub(crate) async fn docs() -> Response {
    file("text/html; charset=utf-8", include_str!("../../../web/docs.html"))
}

pub(crate) async fn docs_script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("../../../web/docs.js"))
}

pub(crate) async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("../../../web/style.css"))
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // A new binary may have a new page.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
