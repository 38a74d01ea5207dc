//! Which web pages may use the server.
//!
//! A browser sends requests for any page that is open in it, also to servers that only its own machine can reach. Two
//! headers identify the page, and no page can forge them:
//!
//! - `Origin` is the page's origin. It must be the server's own or an allowed one ([`CorsOrigins`]). Browsers omit it
//!   only from simple `GET`s, which change nothing and whose responses other pages cannot read.
//! - `Host` is the host in the URL that the page requested. Under DNS rebinding, a hostile page lets its own name
//!   resolve to this server; the page is then of the same origin, but `Host` has that name. So `Host` must be an
//!   allowed one ([`AllowedHosts`]).
//!
//! Programs send no `Origin`, and in `Host` the address that they were given. A third rule is checked where bodies
//! are read (`require_json` in `body`): a body must have a JSON content type. Otherwise a page could send one in a
//! simple request, for which browsers do not ask the server first.

use std::{net::IpAddr, str::FromStr};

use axum::http::{
    HeaderValue,
    uri::{Authority, Scheme},
};

use super::api_keys::ApiKeys;

/// A host in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An IP address. IPv4-mapped IPv6 addresses are stored as IPv4.
    Address(IpAddr),
    /// A DNS name in lower case, without a trailing dot.
    Name(String),
}

impl Host {
    /// Whether the host always means the client's own machine: a loopback address, `localhost`, or a name that ends in
    /// `.localhost`.
    fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => address.is_loopback(),
            Self::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        }
    }
}

/// The text is neither a host nor an origin.
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

/// The host, and the port if given, of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) host: Host,
    pub(crate) port: Option<u16>,
}

impl TryFrom<&Authority> for Target {
    type Error = Malformed;

    fn try_from(authority: &Authority) -> Result<Self, Malformed> {
        // Requests do not have user names before the host.
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

/// The origin of a web page: scheme, host and port, without the scheme's default port. `None` is `null`, which
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
    /// Whether this is the server's own origin, if clients reach it as `target`. `scheme` is the server's own; behind
    /// a proxy, `https` pages are possible although the server speaks HTTP.
    pub(crate) fn is_of(&self, target: &Target, scheme: &Scheme) -> bool {
        let Some((given, place)) = &self.0 else { return false };
        (*given == Scheme::HTTPS || given == scheme) && *place == target.clone().without_default_port(given)
    }
}

/// Origins whose pages may use the API, besides the server's own (CORS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigins {
    /// All origins.
    Any,
    /// These origins.
    These(Vec<Origin>),
}

impl CorsOrigins {
    pub(crate) fn contain(&self, origin: &HeaderValue) -> bool {
        match self {
            Self::Any => true,
            Self::These(origins) => {
                origin.to_str().is_ok_and(|origin| origin.parse().is_ok_and(|origin| origins.contains(&origin)))
            }
        }
    }

    /// The value of `access-control-allow-origin` for a page of this origin. The server's own pages need none.
    pub(crate) fn permit(&self, origin: Option<&HeaderValue>) -> Option<HeaderValue> {
        match self {
            Self::Any => Some(HeaderValue::from_static("*")),
            Self::These(_) => origin.filter(|origin| self.contain(origin)).cloned(),
        }
    }
}

/// Hosts that requests may be addressed to (`Host`), at any port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Any host.
    Any,
    /// Loopback names and addresses, and these.
    These(Vec<Host>),
    /// Hosts that nobody else can make resolve to this server: addresses, loopback names, and these names of the
    /// machine.
    Own(Vec<Host>),
}

impl AllowedHosts {
    /// The hosts for a server that listens on `bound`. `listed` are the configured hosts, if any. With API keys any
    /// host is safe, because hostile pages do not have a key.
    pub fn choose(listed: Vec<Host>, bound: IpAddr, keys: &ApiKeys) -> Self {
        match (listed.is_empty(), bound.to_canonical().is_loopback()) {
            (false, _) | (true, true) => Self::These(listed),
            (true, false) if keys.is_open() => Self::Own(own_names()),
            (true, false) => Self::Any,
        }
    }

    /// Adds the name `text`, if it is a name and not an address: the `--host` setting.
    #[must_use]
    pub fn and_name(self, text: &str) -> Self {
        let name = text.parse().ok().filter(|host| matches!(host, Host::Name(_)));
        match self {
            Self::Any => Self::Any,
            Self::These(hosts) => Self::These(hosts.into_iter().chain(name).collect()),
            Self::Own(names) => Self::Own(names.into_iter().chain(name).collect()),
        }
    }

    pub(crate) fn contain(&self, host: &Host) -> bool {
        match self {
            Self::Any => true,
            Self::These(hosts) => host.is_loopback() || hosts.contains(host),
            Self::Own(names) => matches!(host, Host::Address(_)) || host.is_loopback() || names.contains(host),
        }
    }

    /// A description for error messages. It does not list names: rejected clients must not learn them.
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Self::Any => "any host",
            Self::These(_) => "a loopback name such as `localhost`, or a host that `--allowed-host` names",
            Self::Own(_) => "an IP address, `localhost`, or the name of the server's machine",
        }
    }
}

/// The names of this machine: its host name, in full and up to the first dot, and its mDNS name.
fn own_names() -> Vec<Host> {
    let Some(full) = hostname::get().ok().and_then(|name| name.into_string().ok()) else { return Vec::new() };
    let short = full.split('.').next().unwrap_or(&full);
    [full.clone(), short.to_owned(), format!("{short}.local")].iter().filter_map(|name| name.parse().ok()).collect()
}
