//! Which web pages may use the server (its own and those of allowed origins), and which hosts it accepts.
//! `.ci/hostile-page-test.mjs` tests the same in a browser.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, TcpStream},
    process::Child,
};

use axum::{
    body::Body,
    http::{Method, Request, StatusCode, uri::Scheme},
};
use hearth_server::api::guard::{
    api_keys::ApiKeys,
    origin::{AllowedHosts, CorsOrigins},
};
use serde_json::json;

use crate::{
    cli::{hearth, model_dir, path},
    connections::with_options,
    live_server::Live,
    support::{Answer, CHAT, Server, request_to},
};

const COMPLETIONS: &str = "/v1/completions";

/// Endpoints that answer any origin and host.
const EXEMPT: [&str; 3] = ["/health", "/ready", "/metrics"];

const GUARDED: [(Method, &str); 12] = [
    (Method::GET, "/"),
    (Method::GET, "/main.js"),
    (Method::GET, "/docs"),
    (Method::GET, "/openapi.json"),
    (Method::GET, "/v1/models"),
    (Method::GET, "/v1/models/tiny"),
    (Method::GET, "/tokenizer_info"),
    (Method::POST, COMPLETIONS),
    (Method::POST, CHAT),
    (Method::POST, "/tokenize"),
    (Method::OPTIONS, COMPLETIONS),
    (Method::GET, "/v1/nowhere"),
];

async fn send(server: &Server, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    let builder = Request::builder().method(method).uri(path);
    let builder = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
    server.send(builder.body(Body::from(r#"{"prompt": "x", "max_tokens": 1}"#)).unwrap()).await
}

/// Whether a request for the models with this host and origin is accepted.
async fn is_accepted(server: &Server, host: &str, origin: &str) -> bool {
    let answer = send(server, Method::GET, "/v1/models", &[("host", host), ("origin", origin)]).await;
    if answer.status == StatusCode::FORBIDDEN {
        assert_eq!(answer.json()["error"]["code"], "origin_not_allowed");
    }
    answer.status == StatusCode::OK
}

#[tokio::test]
async fn requests_from_foreign_origins_are_rejected_with_403() {
    let server = Server::start();
    for (method, path) in GUARDED {
        let foreign = [("origin", "http://evil.example"), ("content-type", "application/json")];
        let answer = send(&server, method.clone(), path, &foreign).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {path}");
        let error = answer.error();
        assert!(error.contains("got `http://evil.example`"), "{error}");
        assert!(error.contains("hint: ") && error.contains("`--cors-origin http://evil.example`"), "{error}");
        assert_eq!(answer.header("access-control-allow-origin"), "");
        assert!(answer.headers.get_all("vary").iter().any(|value| value == "origin"));
        assert!(answer.header("x-request-id").starts_with("req-"));
        // Programs other than browsers send no `Origin`.
        let answer = send(&server, method.clone(), path, &[("content-type", "application/json")]).await;
        assert_ne!(answer.status, StatusCode::FORBIDDEN, "{method} {path}");
    }
    for path in EXEMPT {
        let answer =
            send(&server, Method::GET, path, &[("origin", "http://evil.example"), ("host", "evil.example")]).await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (StatusCode::OK, ""), "{path}");
    }
    let preflight = [("origin", "http://evil.example"), ("access-control-request-method", "GET")];
    let answer = send(&server, Method::OPTIONS, "/metrics", &preflight).await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.header("access-control-allow-origin"), "");
}

#[tokio::test]
async fn own_origin_is_accepted_only_if_it_matches_the_host_header() {
    let server = Server::start();
    for (host, origin) in [
        ("localhost:8080", "http://localhost:8080"),
        ("LocalHost:8080", "http://localhost:8080"),
        ("localhost.:8080", "http://localhost.:8080"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("hearth.localhost:8080", "http://hearth.localhost:8080"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        // Behind a TLS proxy.
        ("localhost", "https://localhost"),
        ("localhost:443", "https://localhost"),
        ("localhost:8443", "https://localhost:8443"),
    ] {
        assert!(is_accepted(&server, host, origin).await, "{host} {origin}");
    }
    for (host, origin) in [
        ("localhost:8080", "http://localhost:8081"),
        ("localhost:8080", "http://localhost"),
        ("localhost", "http://localhost:8080"),
        ("localhost:80", "https://localhost"),
        ("localhost:8080", "http://127.0.0.1:8080"),
        ("localhost:8080", "http://evil.localhost:8080"),
        ("localhost:8080", "http://localhost.evil.example:8080"),
        ("localhost:8080", "ftp://localhost:8080"),
        ("localhost:8080", "http://user@localhost:8080"),
        ("localhost:8080", "http://localhost:8080/"),
        ("localhost:8080", "http://localhost:8080 http://evil.example"),
        ("localhost:8080", "localhost:8080"),
        ("localhost:8080", "null"),
        ("localhost:8080", ""),
    ] {
        assert!(!is_accepted(&server, host, origin).await, "{host} {origin}");
    }
    let twice = [("origin", "http://localhost"), ("origin", "http://evil.example")];
    let answer = send(&server, Method::GET, "/v1/models", &twice).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    // A server with TLS rejects pages loaded without TLS, which an attacker could have changed.
    let secure = with_options(|options| options.scheme = Scheme::HTTPS);
    assert!(is_accepted(&secure, "localhost:8443", "https://localhost:8443").await);
    assert!(!is_accepted(&secure, "localhost:8443", "http://localhost:8443").await);
}

#[tokio::test]
async fn allowed_cors_origins_get_preflight_and_cors_headers() {
    let server = with_options(|options| {
        let origins = ["https://good.test", "http://good.test:80", "tauri://localhost"];
        options.cors = CorsOrigins::These(origins.iter().map(|origin| origin.parse().unwrap()).collect());
        options.keys = ApiKeys::new(["sk"]).unwrap();
    });
    let preflight = async |origin: &str, more: &[(&str, &str)]| {
        let asked = [("origin", origin), ("access-control-request-method", "POST")];
        send(&server, Method::OPTIONS, COMPLETIONS, &[&asked, more].concat()).await
    };
    for origin in ["https://good.test", "http://good.test", "tauri://localhost"] {
        // Browsers send no API key with a preflight request.
        let answer = preflight(origin, &[("access-control-request-headers", "authorization, content-type")]).await;
        assert_eq!((answer.status, answer.text.as_str()), (StatusCode::NO_CONTENT, ""));
        assert_eq!(answer.header("access-control-allow-origin"), origin);
        assert!(answer.header("access-control-allow-methods").contains("POST"));
        assert_eq!(answer.header("access-control-allow-headers"), "authorization, content-type");
        assert_eq!(answer.header("access-control-allow-private-network"), "");
        assert!(answer.headers.get_all("vary").iter().any(|value| value == "origin"));
    }
    let answer = preflight("https://good.test", &[("access-control-request-private-network", "true")]).await;
    assert_eq!(answer.header("access-control-allow-private-network"), "true");
    for origin in ["https://good.test.evil.test", "https://good.test:444", "http://good.test:443", "null"] {
        let answer = preflight(origin, &[("access-control-request-private-network", "true")]).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{origin}");
        for name in ["origin", "methods", "headers", "private-network"] {
            assert_eq!(answer.header(&format!("access-control-allow-{name}")), "", "{origin}");
        }
    }
    // An error has CORS headers, too, so the page can read it.
    let answer = send(&server, Method::GET, "/v1/models", &[("origin", "https://good.test")]).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    assert_eq!(answer.header("access-control-allow-origin"), "https://good.test");
    assert!(answer.header("access-control-expose-headers").contains("x-request-id"));
    // The server's own pages need no allowed origin; `null` is an origin if it is listed.
    assert!(is_accepted(&with_options(|_| ()), "localhost", "http://localhost").await);
    let opaque = with_options(|options| options.cors = CorsOrigins::These(vec!["null".parse().unwrap()]));
    assert!(is_accepted(&opaque, "localhost", "null").await);
    assert!(!is_accepted(&opaque, "localhost", "http://evil.example").await);
}

#[tokio::test]
async fn cors_any_allows_every_origin_but_no_foreign_host() {
    let server = with_options(|options| options.cors = CorsOrigins::Any);
    for origin in ["http://elsewhere.test", "null", "no origin"] {
        let asked = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization"),
        ];
        let answer = send(&server, Method::OPTIONS, COMPLETIONS, &asked).await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (StatusCode::NO_CONTENT, "*"));
        assert_eq!(answer.header("access-control-allow-headers"), "authorization");
        assert!(is_accepted(&server, "localhost", origin).await);
    }
    // A foreign host is still rejected (DNS rebinding).
    let answer =
        send(&server, Method::GET, "/v1/models", &[("origin", "http://evil.example"), ("host", "evil.example")]).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn loopback_server_accepts_only_loopback_and_allowed_hosts() {
    let server = Server::start();
    let named = with_options(|options| options.hosts = AllowedHosts::These(vec!["hearth.example".parse().unwrap()]));
    let status = async |server: &Server, host: &str| send(server, Method::GET, "/v1/models", &[("host", host)]).await;
    for host in [
        "localhost",
        "LOCALHOST:1",
        "localhost.:80",
        "a.b.localhost:8080",
        "127.0.0.1:8080",
        "127.255.0.3",
        "[::1]",
        "[0:0:0:0:0:0:0:1]:8080",
        "[::ffff:127.0.0.1]:8080",
    ] {
        assert_eq!(status(&server, host).await.status, StatusCode::OK, "{host}");
        assert_eq!(status(&named, host).await.status, StatusCode::OK, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "notlocalhost",
        "127.0.0.1.evil.example",
        "192.0.2.7:8080",
        "0.0.0.0:8080",
        "[2001:db8::1]:8080",
        "127.1",
        "2130706433",
    ] {
        for server in [&server, &named] {
            let answer = status(server, host).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{host}");
            assert_eq!(answer.json()["error"]["code"], "host_not_allowed");
            assert!(
                answer.error().contains("hint: ") && answer.error().contains("`--allowed-host "),
                "{}",
                answer.text
            );
            // The hostile page can read this.
            assert!(!answer.error().contains("hearth.example"), "{}", answer.text);
        }
    }
    for host in ["hearth.example", "Hearth.Example.:443"] {
        assert_eq!(status(&server, host).await.status, StatusCode::FORBIDDEN, "{host}");
        assert_eq!(status(&named, host).await.status, StatusCode::OK, "{host}");
    }
    for host in [
        "",
        " ",
        "user@localhost",
        "localhost:",
        "localhost:x",
        "localhost:99999",
        "http://localhost",
        "local host",
        "localhost, evil.example",
        "[localhost]",
        "[::1",
        "/",
    ] {
        let answer = status(&server, host).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{host}: {}", answer.text);
        assert!(answer.error().starts_with("`Host` must be"), "{}", answer.text);
    }
    for (method, path) in GUARDED {
        let answer =
            send(&server, method, path, &[("host", "evil.example:8080"), ("origin", "http://evil.example:8080")]).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
    }
    // Headers of proxies that name another host are ignored.
    let forwarded = [("host", "evil.example"), ("x-forwarded-host", "localhost"), ("forwarded", "host=localhost")];
    assert_eq!(send(&server, Method::GET, "/v1/models", &forwarded).await.status, StatusCode::FORBIDDEN);
}

#[test]
fn allowed_hosts_depend_on_bind_address_and_api_keys() {
    let keys = ApiKeys::new(["sk"]).unwrap();
    let open = ApiKeys::default();
    let choose = |listed: &[&str], bound: &str, keys: &ApiKeys| {
        let listed = listed.iter().map(|host| host.parse().unwrap()).collect();
        AllowedHosts::choose(listed, bound.parse::<IpAddr>().unwrap(), keys)
    };
    let listed = AllowedHosts::These(vec!["a.example".parse().unwrap()]);
    for loopback in ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(choose(&[], loopback, &open), AllowedHosts::These(Vec::new()));
        assert_eq!(choose(&[], loopback, &keys), AllowedHosts::These(Vec::new()));
        assert_eq!(choose(&["a.example"], loopback, &open), listed);
    }
    for beyond in ["0.0.0.0", "::", "192.0.2.7", "2001:db8::1"] {
        assert!(matches!(choose(&[], beyond, &open), AllowedHosts::Own(_)));
        assert_eq!(choose(&[], beyond, &keys), AllowedHosts::Any);
        assert_eq!(choose(&["a.example"], beyond, &open), listed);
        assert_eq!(choose(&["a.example"], beyond, &keys), listed);
        // The name given as `--host` is accepted, too.
        assert_eq!(choose(&[], beyond, &keys).and_name("a.example"), AllowedHosts::Any);
        let own = choose(&[], beyond, &open);
        assert_ne!(own.clone().and_name("a.example"), own);
        assert_eq!(own.clone().and_name("192.0.2.7"), own);
    }
    assert_eq!(choose(&[], "127.0.1.1", &open).and_name("A.example"), listed);
}

#[tokio::test]
async fn host_is_checked_in_every_http_request_form() {
    let live = Live::start().await;
    let evil = "host: evil.example\r\n";
    let own = "host: localhost\r\n";
    let h2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned();
    for (request, expected) in [
        (format!("GET /v1/models HTTP/1.1\r\n{own}\r\n"), "200"),
        (format!("GET /v1/models HTTP/1.1\r\n{evil}\r\n"), "403"),
        (format!("GET /v1/models HTTP/1.0\r\n{evil}\r\n"), "403"),
        ("GET /v1/models HTTP/1.1\r\n\r\n".into(), "400"),
        ("GET /v1/models HTTP/1.0\r\n\r\n".into(), "400"),
        ("GET /health HTTP/1.0\r\n\r\n".into(), "200"),
        (format!("GET /v1/models HTTP/1.1\r\n{own}{evil}\r\n"), "400"),
        (format!("GET /v1/models HTTP/1.1\r\n{evil}{own}\r\n"), "400"),
        (format!("GET /v1/models HTTP/1.1\r\n{own}{own}\r\n"), "400"),
        // An absolute URL takes precedence over the header.
        (format!("GET http://evil.example/v1/models HTTP/1.1\r\n{own}\r\n"), "403"),
        (format!("GET http://localhost:8080/v1/models HTTP/1.1\r\n{evil}\r\n"), "200"),
        (format!("GET http://user@localhost/v1/models HTTP/1.1\r\n{own}\r\n"), "400"),
        ("GET http://localhost/v1/models HTTP/1.1\r\n\r\n".into(), "400"),
        (format!("GET http://evil.example/health HTTP/1.1\r\n{evil}\r\n"), "200"),
        (format!("GET http://localhost/v1/models HTTP/1.1\r\n{own}origin: http://evil.example\r\n\r\n"), "403"),
        (format!("CONNECT evil.example:443 HTTP/1.1\r\n{own}\r\n"), "403"),
        (format!("OPTIONS * HTTP/1.1\r\n{evil}\r\n"), "403"),
        // HTTP/2, where the host is in another place, is not supported.
        (h2, "400"),
    ] {
        let mut connection = live.connect().await;
        connection.send(request.replacen("\r\n", "\r\nconnection: close\r\n", 1).as_bytes()).await;
        let answer = connection.all().await;
        let status = answer.split(' ').nth(1).unwrap_or("400");
        assert_eq!(status, expected, "{request}{answer}");
    }
}

#[tokio::test]
async fn post_bodies_require_a_json_content_type() {
    let server = Server::start();
    let paths = [COMPLETIONS, CHAT, "/v1/embeddings", "/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize"];
    for path in paths {
        for (content_type, told) in [
            (None, "got none"),
            (Some("text/plain"), "got `text/plain`"),
            (Some("text/plain; charset=utf-8"), "got `text/plain`"),
            (Some("application/x-www-form-urlencoded"), "got `application/x-www-form-urlencoded`"),
            (Some("multipart/form-data; boundary=application/json"), "got `multipart/form-data`"),
            (Some("text/plain, application/json"), "got `text/plain, application/json`"),
            (Some("text/plain+json"), "got `text/plain+json`"),
            (Some("text/json"), "got `text/json`"),
            (Some("application/jsonl"), "got `application/jsonl`"),
            (Some("json"), "got `json`"),
            (Some(""), "got ``"),
        ] {
            let headers: Vec<_> = content_type.map(|content_type| ("content-type", content_type)).into_iter().collect();
            let answer = send(&server, Method::POST, path, &headers).await;
            assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path} {content_type:?}: {}", answer.text);
            let error = answer.error();
            assert!(error.contains(told) && error.contains("hint: "), "{error}");
        }
        for content_type in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/json;",
            "application/vnd.api+json",
            "application/ld+json ; x=y",
        ] {
            let answer = send(&server, Method::POST, path, &[("content-type", content_type)]).await;
            assert_ne!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path} {content_type:?}");
        }
    }
    let answer = server
        .send(request_to(COMPLETIONS).body(Body::from(json!({ "prompt": "x", "max_tokens": 1 }).to_string())).unwrap())
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
}

/// A process of `hearth serve` that is ready.
struct Serving {
    child: Child,
    port: u16,
    /// Its log up to the line that it is ready.
    log: String,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let model = model_dir();
        let args = [&["serve", "--port", "0", "--device", "cpu", "--model", path(model.path())], args].concat();
        let mut child = hearth(&args).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut log = String::new();
        while !log.contains("is ready") {
            assert!(lines.read_line(&mut log).unwrap() > 0, "it ended: {log}");
        }
        let listening = log.lines().find(|line| line.contains("listening on ")).unwrap();
        let port = listening.rsplit_once(':').unwrap().1.trim().parse().unwrap();
        Self { child, port, log }
    }

    /// The status of the page at this host.
    fn status(&self, host: &str) -> String {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        connection
            .write_all(format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes())
            .unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    fn warns(&self) -> bool {
        self.log.contains("no API key is set: anyone who can reach 0.0.0.0:")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn public_server_accepts_ip_addresses_and_its_own_hostnames() {
    let own = hostname::get().unwrap().into_string().unwrap();
    let local = format!("{}.local:8080", own.split('.').next().unwrap());
    let statuses = |server: &Serving, hosts: &[&str]| hosts.iter().map(|host| server.status(host)).collect::<Vec<_>>();

    // The hosts by which a container published with `docker run -p 8080:8080 hearth` is reached.
    let open = Serving::start(&["--host", "0.0.0.0"]);
    assert!(open.warns(), "{}", open.log);
    let hosts = ["localhost:8080", "192.0.2.7:8080", "[2001:db8::1]:8080", &own, &own.to_uppercase(), &local];
    assert_eq!(statuses(&open, &hosts), ["200"; 6]);
    assert_eq!(statuses(&open, &["evil.example", "evil", &format!("{own}.evil.example")]), ["403"; 3]);

    let named =
        Serving::start(&["--host", "0.0.0.0", "--allowed-host", "a.example,b.example", "--allowed-host", "192.0.2.7"]);
    assert!(named.warns(), "{}", named.log);
    assert_eq!(statuses(&named, &["a.example", "b.example:8080", "192.0.2.7", "localhost:8080"]), ["200"; 4]);
    assert_eq!(statuses(&named, &["evil.example", "192.0.2.8", "c.a.example"]), ["403"; 3]);

    let all = Serving::start(&["--host", "0.0.0.0", "--allowed-host", "*"]);
    assert_eq!(statuses(&all, &["evil.example", "localhost"]), ["200"; 2]);

    let keyed = Serving::start(&["--host", "0.0.0.0", "--api-key", "sk"]);
    assert!(!keyed.warns(), "{}", keyed.log);
    assert_eq!(statuses(&keyed, &["evil.example", "localhost", "192.0.2.7"]), ["200"; 3]);

    let loopback = Serving::start(&["--cors-origin", "none"]);
    assert!(!loopback.log.contains("WARN"), "{}", loopback.log);
    assert_eq!(statuses(&loopback, &["localhost", "evil.example", "192.0.2.7"]), ["200", "403", "403"]);
}
