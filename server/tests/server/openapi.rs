//! `/openapi.json` matches the server, and `docs/parameters.md` matches `/openapi.json`.

use std::collections::BTreeMap;

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use hearth_server::api::{router::app, wire::state::AppState};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{MODEL, OPTIONS, Server, VOCAB_SIZE, engine};

const PAGE: &str = include_str!("../../../docs/parameters.md");

/// The smallest request body that each endpoint accepts.
fn minimal_body(path: &str) -> Value {
    match path.trim_start_matches("/v1") {
        "/chat/completions" => json!({ "messages": [{ "role": "user", "content": "x" }] }),
        "/decisions" => json!({
            "model": MODEL, "input": "x", "questions": [{ "type": "predicate", "instructions": "x" }],
        }),
        "/infill" => json!({ "input_prefix": "x", "input_suffix": "y" }),
        "/messages" => json!({ "max_tokens": 4, "messages": [{ "role": "user", "content": "x" }] }),
        "/messages/count_tokens" => json!({ "messages": [{ "role": "user", "content": "x" }] }),
        "/responses" | "/responses/input_tokens" => json!({ "input": "x" }),
        "/detokenize" => json!({ "tokens": [0] }),
        "/embeddings" | "/inspect" | "/classify" | "/pooling" => json!({ "input": "x" }),
        "/v2/embed" => json!({ "texts": ["x"] }),
        "/embed" => json!({ "inputs": "x" }),
        "/rerank" => json!({ "query": "x", "documents": ["y"] }),
        "/score" => json!({ "text_1": "x", "text_2": "y" }),
        "/load_lora_adapter" => json!({ "lora_name": "x", "lora_path": "x" }),
        "/unload_lora_adapter" => json!({ "lora_name": "x" }),
        _ => json!({ "prompt": "x" }),
    }
}

async fn document(server: &Server) -> Value {
    let answer = server.get("/openapi.json").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}

/// The schemas of the bodies, by path.
fn bodies(document: &Value) -> BTreeMap<String, Value> {
    let paths = document["paths"].as_object().unwrap().iter();
    let bodies = paths.filter_map(|(path, methods)| {
        Some((path.clone(), methods.pointer("/post/requestBody/content/application~1json/schema")?.clone()))
    });
    bodies.collect()
}

/// Every parameter with its schema and whether it is required; parameters within objects have dotted names.
fn parameters(schema: &Value, within: &str) -> Vec<(String, Value, bool)> {
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let each = properties.iter().flat_map(|(name, property)| {
        let full = format!("{within}{name}");
        let inner = parameters(property, &format!("{full}."));
        [(full, property.clone(), required.contains(&json!(name)))].into_iter().chain(inner)
    });
    each.collect()
}

/// The type of a parameter as the page writes it.
fn in_words(schema: &Value) -> String {
    if let Some(kinds) = schema["anyOf"].as_array() {
        let words = kinds.iter().filter(|kind| kind["type"] != "null").map(in_words);
        return any_of(&each_once(words));
    }
    if let Some(choices) = schema["enum"].as_array() {
        let choices = choices.iter().filter(|choice| !choice.is_null());
        return choices.map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", ");
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => {
            let kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            let kinds: Vec<String> = kinds.map(str::to_owned).collect();
            let [kind] = &kinds[..] else { return any_of(&kinds) };
            json!(kind)
        }
        kind => kind.clone(),
    };
    let bound = |name: &str| schema[name].as_f64();
    match kind.as_str() {
        None => "anything".into(),
        Some("array") => format!("array of {}", plural(&schema["items"])),
        Some("integer" | "number") if schema["format"] == "token-id" => "token id".into(),
        Some("integer") if bound("minimum").is_some_and(|start| start < -1e18) => "64-bit integer".into(),
        Some(kind @ ("integer" | "number")) => {
            let end = bound("maximum").filter(|end| *end < 9e18);
            match (bound("minimum"), bound("exclusiveMinimum"), end) {
                (Some(start), _, None) => format!("{kind} from {start}"),
                (Some(start), _, Some(end)) => format!("{kind} from {start} to {end}"),
                (_, Some(start), None) => format!("{kind} above {start}"),
                (_, Some(start), Some(end)) => format!("{kind} above {start} up to {end}"),
                _ => kind.into(),
            }
        }
        Some(kind) => kind.into(),
    }
}

fn each_once(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = Vec::new();
    words.for_each(|word| {
        if !seen.contains(&word) {
            seen.push(word);
        }
    });
    seen
}

/// `a`, `a or b`, or `a, b, or c`.
fn any_of(words: &[String]) -> String {
    match words {
        [first, second] => format!("{first} or {second}"),
        [first @ .., last] if !first.is_empty() => format!("{}, or {last}", first.join(", ")),
        _ => words.concat(),
    }
}

/// [`in_words`] for several values.
fn plural(items: &Value) -> String {
    if let Some(alternatives) = items["anyOf"].as_array() {
        let words = each_once(alternatives.iter().map(plural));
        return if words.len() == 1 { words.concat() } else { format!("({})", any_of(&words)) };
    }
    let words = in_words(items);
    for (one, several) in [
        ("array", "arrays"),
        ("boolean", "booleans"),
        ("integer", "integers"),
        ("number", "numbers"),
        ("object", "objects"),
        ("string", "strings"),
        ("token id", "token ids"),
    ] {
        if let Some(rest) = words.strip_prefix(one) {
            return format!("{several}{rest}");
        }
    }
    words
}

/// The cells of the page's tables, by the path in the heading and the parameter in the first cell.
fn page() -> BTreeMap<(String, String), Vec<String>> {
    let mut rows = BTreeMap::new();
    let mut paths: Vec<&str> = Vec::new();
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            paths = heading.split('`').filter(|part| part.starts_with('/')).collect();
        }
        if !line.starts_with("| `") {
            continue;
        }
        let cells: Vec<String> = line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
        for path in &paths {
            let name = cells[0].trim_matches('`').to_owned();
            let before = rows.insert(((*path).to_owned(), name), cells.clone());
            assert_eq!(before, None, "{path} has it twice: {line}");
        }
    }
    rows
}

#[tokio::test]
async fn parameters_md_matches_the_openapi_schemas() {
    let server = Server::start();
    let mut rows = page();
    let mut wrong = Vec::new();
    for (path, schema) in bodies(&document(&server).await) {
        for (name, schema, is_required) in parameters(&schema, "") {
            // The enum of `model` holds whatever is served.
            let may_be = if name == "model" { "string".into() } else { in_words(&schema) };
            let default = match (&schema["default"], is_required) {
                (_, true) => "required".into(),
                (Value::Null, false) => "–".into(),
                (default, false) => format!("`{default}`"),
            };
            let expected = format!("| `{name}` | {may_be} | {default} |");
            match rows.remove(&(path.clone(), name.clone())) {
                None => wrong.push(format!("{path} lacks {expected}")),
                Some(cells) if cells.len() != 8 => {
                    wrong.push(format!("{path}: {name} has {} cells, not 8", cells.len()))
                }
                Some(cells) if cells[1] != may_be || cells[2] != default => {
                    wrong.push(format!("{path} has {:?}, but it is {expected}", &cells[..3]));
                }
                Some(cells) => assert_eq!(schema["description"], cells[7].as_str(), "{path}: {name}"),
            }
        }
    }
    wrong.extend(rows.keys().map(|(path, name)| format!("{path} has no `{name}`")));
    assert!(wrong.is_empty(), "docs/parameters.md:\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn values_beyond_the_openapi_ranges_are_rejected() {
    let server = Server::start();
    let mut n_tried = 0;
    for (path, schema) in bodies(&document(&server).await) {
        for (name, schema, _) in parameters(&schema, "").into_iter().filter(|(name, ..)| !name.contains('.')) {
            let beyond = [
                schema["minimum"].as_f64().filter(|start| *start > -1e18).map(|start| start - 1.0),
                schema["exclusiveMinimum"].as_f64(),
                schema["maximum"].as_f64().filter(|end| *end < 1e18).map(|end| end + 1.0),
                schema["enum"].as_array().map(|_| -0.5),
            ];
            for beyond in beyond.into_iter().flatten() {
                let mut body = minimal_body(&path);
                body[&name] = json!(beyond);
                let answer = server.post_to(&path, body.to_string()).await;
                assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {body}");
                // Those of Anthropic, Cohere and text-embeddings-inference have no `param`.
                let error = answer.json();
                let message = match path.as_str() {
                    path if path.starts_with("/v1/messages") => &error["error"]["message"],
                    "/v2/embed" => &error["message"],
                    "/embed" => &error["error"],
                    _ => &error["error"]["param"],
                };
                assert!(message.as_str().unwrap().contains(&name), "{path} {body}");
                n_tried += 1;
            }
        }
    }
    assert!(n_tried > 60, "{n_tried} values tried");
}

#[tokio::test]
async fn openapi_minimal_requests_succeed_and_references_resolve() {
    let server = Server::start();
    let document = document(&server).await;
    for (path, schema) in bodies(&document) {
        let expected = match path.as_str() {
            // Loading adapters is forbidden unless it is enabled.
            path if path.ends_with("lora_adapter") => StatusCode::FORBIDDEN,
            // The model has no tokens for it, or was not trained for it.
            "/infill" | "/classify" | "/v1/rerank" | "/v1/score" => StatusCode::BAD_REQUEST,
            _ => StatusCode::OK,
        };
        assert_eq!(server.post_to(&path, minimal_body(&path).to_string()).await.status, expected, "{path}");
        let parameters = parameters(&schema, "");
        if parameters.iter().any(|(name, ..)| name == "model") {
            assert_eq!(schema["properties"]["model"]["enum"], json!([MODEL, "", null]), "{path}");
        }
    }
    let text = document.to_string();
    assert!(text.contains(&format!("\"maximum\":{}", VOCAB_SIZE - 1)), "token ids end with the vocabulary");
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer} leads nowhere");
    }
    for path in ["/docs", "/docs.js"] {
        assert_eq!(server.get(path).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn openapi_document_answers_304_until_it_changes() {
    let state = AppState::loading(MODEL);
    let router = app(state.clone());
    let get = async |tag: &str| {
        let request = Request::get("/openapi.json").header("host", "localhost").header("if-none-match", tag);
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let tag = head.headers["etag"].to_str().unwrap().to_owned();
        (head.status, tag, body.collect().await.unwrap().to_bytes())
    };
    let (status, before, text) = get("").await;
    assert_eq!(status, StatusCode::OK);
    assert!(serde_json::from_slice::<Value>(&text).unwrap()["paths"].is_object());
    let (status, tag, text) = get(&before).await;
    assert_eq!((status, &tag, text.len()), (StatusCode::NOT_MODIFIED, &before, 0));
    // The document now has the size of the vocabulary.
    state.set_engine(engine(OPTIONS));
    let (status, after, _) = get(&before).await;
    assert_eq!(status, StatusCode::OK);
    assert_ne!(after, before);
    for known in [after.clone(), format!("W/{after}"), format!("\"x\", {after}"), "*".to_owned()] {
        assert_eq!(get(&known).await.0, StatusCode::NOT_MODIFIED, "{known}");
    }
}

#[tokio::test]
async fn openapi_links_point_to_existing_operations_and_fields() {
    let server = Server::start();
    let document = document(&server).await;
    let operations: Vec<&Value> = document["paths"].as_object().unwrap().values().collect();
    let links: Vec<&Value> = operations.iter().flat_map(|path| path.as_object().unwrap().values()).collect();
    let links = links.iter().filter_map(|operation| operation.pointer("/responses/200/links")?.as_object());
    let links: Vec<&Value> = links.flat_map(|links| links.values()).collect();
    assert_eq!(links.len(), 5, "{links:?}");
    for link in links {
        let target = operations.iter().flat_map(|path| path.as_object().unwrap().values());
        let target = target.into_iter().find(|operation| operation["operationId"] == link["operationId"]);
        let target = target.unwrap_or_else(|| panic!("{link} leads nowhere"));
        if let Some(body) = link["requestBody"].as_object() {
            let known = &target["requestBody"]["content"]["application/json"]["schema"]["properties"];
            assert!(body.keys().all(|name| known.get(name).is_some()), "{link}");
        } else {
            assert_eq!(link["parameters"], json!({ "id": "$response.body#/data/0/id" }));
        }
    }
}
