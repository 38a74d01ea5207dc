//! Tools that another server would run, such as web search. Agents always send them, so they are removed from the
//! request instead of rejected, and the log names each type once.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

/// Beginnings of the kinds of such tools, at OpenAI and at Anthropic; some kinds end with a date.
const KINDS: [&str; 19] = [
    "advisor",
    "apply_patch",
    "bash_",
    "browser_",
    "code_execution",
    "code_interpreter",
    "computer",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "memory",
    "programmatic_tool_calling",
    "shell",
    "text_editor",
    "tool_search",
    "web_fetch",
    "web_search",
    "x_search",
];

/// Maximum number of kinds that the log names, since clients choose them.
const MAX_LOGGED: usize = 64;

/// Whether tools of this kind are run by a server, or are known to its models without a schema.
pub(crate) fn is_hosted(kind: &str) -> bool {
    KINDS.iter().any(|hosted| kind.starts_with(hosted))
}

/// Logs that a tool of this kind is left out, once for each kind.
pub(crate) fn log_left_out(kind: &str) {
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.len() < MAX_LOGGED && logged.insert(kind.to_owned()) {
        tracing::info!("this server does not run tools of the type `{kind}`: they are left out of requests");
    }
}
