//! Which web pages may use the server.
//!
//! A browser sends requests for any page that is open in it, also to servers that only its own machine can reach. Two
//! headers say for which page, and no page can forge them:
//!
//! - `Origin` is the page's origin. It must be the server's own or an allowed one ([`CorsOrigins`]). Browsers leave it
//!   out of simple `GET`s alone, which change nothing and whose answers other pages cannot read.
//! - `Host` is the server's host in the page's words. Under DNS rebinding, a hostile page's own name resolves to this
//!   server, so the page is of the same origin, and `Host` has that name: it must be an allowed one ([`AllowedHosts`]).
//!
//! Programs send no `Origin`, and as `Host` what they were given as the server's address. A third rule, that bodies are
//! JSON by their content type, is kept where bodies are read (`fields`): without it, a page could send one in a simple
//! request, about which browsers ask no server beforehand.

use std::{net::IpAddr, str::FromStr};

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header,
        uri::{Authority, Scheme},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{
    error::ApiError,
    options::{ApiKeys, ApiOptions},
    state::AppState,
};

/// What probes and scrapers ask for, under whatever name they have for the server. It changes nothing, and tells nothing of
/// any text.
const EXEMPT_PATHS: [&str; 3] = ["/health", "/ready", "/metrics"];

/// Longest part of a refused header that is repeated to the client.
const MAX_SHOWN_CHARS: usize = 100;

/// Asks whether a page of a public network may use a server of a private one (Private Network Access).
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");

/// Says that it may.
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// A host as it stands in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An IP address; IPv4 within IPv6 is IPv4.
    Address(IpAddr),
    /// A DNS name in lower case, without the dot of the root at its end.
    Name(String),
}

impl Host {
    /// Whether it is this machine for whoever uses it: a loopback address, `localhost`, or a name below that.
    fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => address.is_loopback(),
            Self::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        }
    }
}

/// Neither a host nor an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither a host nor an origin")]
pub struct Malformed;

impl FromStr for Host {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let unbracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        match (unbracketed.unwrap_or(text).parse::<IpAddr>(), unbracketed) {
            (Ok(address), _) => Ok(Self::Address(address.to_canonical())),
            (Err(_), Some(_)) => Err(Malformed),
            (Err(_), None) => {
                let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
                let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
                if name.is_empty() || !name.bytes().all(is_fit) { Err(Malformed) } else { Ok(Self::Name(name)) }
            }
        }
    }
}

/// The host, and the port where one is given, that a request is addressed to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    host: Host,
    port: Option<u16>,
}

impl TryFrom<&Authority> for Target {
    type Error = Malformed;

    fn try_from(authority: &Authority) -> Result<Self, Malformed> {
        // A user's name ahead of the host is no part of it, and of no request.
        let behind_host = authority.as_str().strip_prefix(authority.host()).ok_or(Malformed)?;
        let port = if behind_host.is_empty() { None } else { Some(authority.port_u16().ok_or(Malformed)?) };
        Ok(Self { host: authority.host().parse()?, port })
    }
}

impl FromStr for Target {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let authority: Authority = text.parse().map_err(|_| Malformed)?;
        Self::try_from(&authority)
    }
}

/// The origin of a web page: scheme, host and port, without the scheme's default port. `None` is `null`, which is what
/// browsers send for local files and sandboxed frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(Option<(Scheme, Target)>);

impl FromStr for Origin {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        if text == "null" {
            return Ok(Self(None));
        }
        let text = text.to_ascii_lowercase();
        let (scheme, target) = text.split_once("://").ok_or(Malformed)?;
        let scheme: Scheme = scheme.parse().map_err(|_| Malformed)?;
        let target = target.parse::<Target>()?.without_default_port(&scheme);
        Ok(Self(Some((scheme, target))))
    }
}

impl Target {
    fn without_default_port(self, scheme: &Scheme) -> Self {
        let default = match scheme.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        Self { port: self.port.filter(|port| Some(*port) != default), ..self }
    }
}

impl Origin {
    /// Whether it is the origin of the pages of a server that clients reach as `target`, over `scheme` where no proxy is
    /// in between. A proxy may speak HTTPS to clients where the server speaks HTTP.
    fn is_of(&self, target: &Target, scheme: &Scheme) -> bool {
        let Some((given, place)) = &self.0 else { return false };
        (*given == Scheme::HTTPS || given == scheme) && *place == target.clone().without_default_port(given)
    }
}

/// Whose pages may use the API, beside the server's own (CORS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigins {
    /// Every page.
    Any,
    /// Pages of these origins.
    These(Vec<Origin>),
}

impl CorsOrigins {
    fn contain(&self, origin: &HeaderValue) -> bool {
        match self {
            Self::Any => true,
            Self::These(origins) => {
                origin.to_str().is_ok_and(|origin| origin.parse().is_ok_and(|origin| origins.contains(&origin)))
            }
        }
    }

    /// What `access-control-allow-origin` is for a page of this origin. The server's own pages need none.
    fn permit(&self, origin: Option<&HeaderValue>) -> Option<HeaderValue> {
        match self {
            Self::Any => Some(HeaderValue::from_static("*")),
            Self::These(_) => origin.filter(|origin| self.contain(origin)).cloned(),
        }
    }
}

/// Which hosts requests may be addressed to (`Host`), at any port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Any.
    Any,
    /// Loopback names and addresses, and these.
    These(Vec<Host>),
    /// What nobody else can make resolve to this server: addresses, loopback names, and these names, the machine's own.
    Own(Vec<Host>),
}

impl AllowedHosts {
    /// What a server on the address `bound` needs. `listed` is what its owner has allowed, if anything. Whoever has keys
    /// is safe without: no page has one.
    pub fn choose(listed: Vec<Host>, bound: IpAddr, keys: &ApiKeys) -> Self {
        match (listed.is_empty(), bound.to_canonical().is_loopback()) {
            (false, _) | (true, true) => Self::These(listed),
            (true, false) if keys.is_open() => Self::Own(own_names()),
            (true, false) => Self::Any,
        }
    }

    /// The same and `text`, if that is a name: what the server's owner calls the address that it listens on.
    #[must_use]
    pub fn and_name(self, text: &str) -> Self {
        let name = text.parse().ok().filter(|host| matches!(host, Host::Name(_)));
        match self {
            Self::Any => Self::Any,
            Self::These(hosts) => Self::These(hosts.into_iter().chain(name).collect()),
            Self::Own(names) => Self::Own(names.into_iter().chain(name).collect()),
        }
    }

    fn contain(&self, host: &Host) -> bool {
        match self {
            Self::Any => true,
            Self::These(hosts) => host.is_loopback() || hosts.contains(host),
            Self::Own(names) => matches!(host, Host::Address(_)) || host.is_loopback() || names.contains(host),
        }
    }

    /// Those that are allowed, in words: whoever is refused is not told their names.
    fn describe(&self) -> &'static str {
        match self {
            Self::Any => "any host",
            Self::These(_) => "a loopback name such as `localhost`, or a host that `--allowed-host` names",
            Self::Own(_) => "an IP address, `localhost`, or the name of the server's machine",
        }
    }
}

/// The names under which this machine is known: its host name, in full and up to the first dot, and that in mDNS.
fn own_names() -> Vec<Host> {
    let Some(full) = hostname::get().ok().and_then(|name| name.into_string().ok()) else { return Vec::new() };
    let short = full.split('.').next().unwrap_or(&full);
    [full.clone(), short.to_owned(), format!("{short}.local")].iter().filter_map(|name| name.parse().ok()).collect()
}

/// Refuses requests that browsers send for other origins' pages, and tells browsers which pages may use the API (CORS).
pub(crate) async fn guard(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let options = state.options();
    let permitted = options.cors.permit(request.headers().get(header::ORIGIN));
    let is_preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match check(&request, options) {
        Err(refusal) => refusal.into_response(),
        Ok(()) if is_preflight && permitted.is_some() => {
            (StatusCode::NO_CONTENT, permission(request.headers())).into_response()
        }
        Ok(()) => next.run(request).await,
    };
    let headers = response.headers_mut();
    if options.cors != CorsOrigins::Any {
        // A cache must not give one origin's answer to another.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(permitted) = permitted {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, permitted);
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-request-id, retry-after, x-ignored-params"),
        );
    }
    response
}

/// Refuses what is not allowed with 403. Not with 421, which is for misdirected requests too: browsers send the request
/// once more after that.
fn check(request: &Request, options: &ApiOptions) -> Result<(), ApiError> {
    if EXEMPT_PATHS.contains(&request.uri().path()) {
        return Ok(());
    }
    let Some(host) = only(request.headers(), &header::HOST)? else {
        return Err(ApiError::bad_request("the request must have the header `Host`, got none"));
    };
    // HTTP/1.1: where the request line has the whole URL, that counts, not the header.
    let target = match request.uri().authority() {
        Some(authority) => Target::try_from(authority).map_err(|Malformed| cut(authority.as_str().as_bytes())),
        None => host.to_str().ok().and_then(|host| host.parse().ok()).ok_or_else(|| cut(host.as_bytes())),
    };
    let target = target.map_err(|given| {
        ApiError::bad_request(format!(
            "`Host` must be a host name or an IP address, with or without a port, got `{given}`"
        ))
    })?;
    if !options.hosts.contain(&target.host) {
        let given = match &target.host {
            Host::Address(address) => address.to_string(),
            Host::Name(name) => name.clone(),
        };
        let given = cut(given.as_bytes());
        let message = format!(
            "`Host` must be {}, got `{given}`\nhint: to serve under this host, start the server with `--allowed-host {given}`",
            options.hosts.describe()
        );
        return Err(ApiError::forbidden("host_not_allowed", message));
    }
    let Some(origin) = only(request.headers(), &header::ORIGIN)? else { return Ok(()) };
    let is_own = || {
        let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Origin>().ok());
        origin.is_some_and(|origin| origin.is_of(&target, &options.scheme))
    };
    if options.cors.contain(origin) || is_own() {
        return Ok(());
    }
    let given = cut(origin.as_bytes());
    let message = format!(
        "`Origin` must be the server's own or one that `--cors-origin` names, got `{given}`\n\
         hint: to let pages of this origin use the API, start the server with `--cors-origin {given}`; if they are the \
         server's own, the proxy in between must pass on `Host` as the browser sends it"
    );
    Err(ApiError::forbidden("origin_not_allowed", message))
}

/// The header's value, if it is there.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, ApiError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.count()) {
        (value, 0) => Ok(value),
        (_, others) => Err(ApiError::bad_request(format!(
            "the request must have the header `{name}` once, got it {} times",
            others + 1
        ))),
    }
}

/// A header's value as it is repeated in errors.
fn cut(value: &[u8]) -> String {
    String::from_utf8_lossy(value).chars().take(MAX_SHOWN_CHARS).collect()
}

/// What a page of an allowed origin may do, as a browser's preflight asks.
fn permission(asked: &HeaderMap) -> HeaderMap {
    // `*` does not cover `authorization`, so what is asked for is what is allowed.
    let headers = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut permission = HeaderMap::from_iter([
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS")),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, headers.unwrap_or(HeaderValue::from_static("*"))),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400")),
        (header::VARY, HeaderValue::from_static("access-control-request-headers")),
    ]);
    if asked.get(REQUEST_PRIVATE_NETWORK).is_some_and(|asked| asked == "true") {
        permission.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
    permission
}
