//! Ids of tool calls for templates that accept only ids of nine letters and digits: Mistral's.

use std::collections::{HashMap, HashSet};

use ring::digest::{SHA256, digest};
use serde_json::Value;

use super::Message;

const LEN: usize = 9;
const CHARACTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The messages with short ids: [`LEN`] letters and digits. `None` if their ids are short already, or there are none.
///
/// Equal ids stay equal, so results match their calls, and different ids stay different. A new id is a hash of the old
/// one, so it is the same when more messages follow.
pub(super) fn shortened(messages: &[Message]) -> Option<Vec<Message>> {
    let mut messages = messages.to_vec();
    let mut taken: HashSet<String> =
        messages.iter_mut().flat_map(ids).filter(|id| is_short(id)).map(|id| id.clone()).collect();
    let mut new_ids: HashMap<String, String> = HashMap::new();
    for id in messages.iter_mut().flat_map(ids).filter(|id| !is_short(id)) {
        let new = new_ids.entry(id.clone()).or_insert_with(|| {
            let new = free_id(id, &taken);
            taken.insert(new.clone());
            new
        });
        id.clone_from(new);
    }
    (!new_ids.is_empty()).then_some(messages)
}

/// The ids of the calls of a message, or the id of the call that it has the result of.
fn ids(message: &mut Message) -> impl Iterator<Item = &mut String> {
    message.extra.iter_mut().flat_map(|(name, value)| match (name.as_str(), value) {
        ("tool_call_id", Value::String(id)) => vec![id],
        ("tool_calls", Value::Array(calls)) => calls
            .iter_mut()
            .filter_map(|call| match call.get_mut("id")? {
                Value::String(id) => Some(id),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    })
}

fn is_short(id: &str) -> bool {
    id.len() == LEN && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The first short id for `id` that is not taken.
fn free_id(id: &str, taken: &HashSet<String>) -> String {
    let mut attempt = 0;
    loop {
        let new = short_hash(id, attempt);
        if !taken.contains(&new) {
            return new;
        }
        attempt += 1;
    }
}

fn short_hash(id: &str, attempt: u32) -> String {
    let hash = digest(&SHA256, format!("{attempt}:{id}").as_bytes());
    let mut number = hash.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    let next = || {
        let character = CHARACTERS[(number % 62) as usize];
        number /= 62;
        char::from(character)
    };
    std::iter::repeat_with(next).take(LEN).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn messages(ids: &[&str]) -> Vec<Message> {
        let calls: Vec<_> = ids.iter().map(|id| json!({ "id": id, "function": { "name": "f" } })).collect();
        let results = ids.iter().map(|id| json!({ "role": "tool", "content": "1", "tool_call_id": id }));
        let all = [json!({ "role": "assistant", "tool_calls": calls })].into_iter().chain(results);
        serde_json::from_value(all.collect()).unwrap()
    }

    fn ids_of(mut messages: Vec<Message>) -> Vec<String> {
        messages.iter_mut().flat_map(ids).map(|id| id.clone()).collect()
    }

    #[test]
    fn shortened_call_ids_stay_equal_or_distinct_and_stable() {
        let given = ["call_abc123", "call_abc124", "abcDEF123", "call_abc12", "", "é2345678"];
        let new = ids_of(shortened(&messages(&given)).unwrap());
        let (calls, results) = new.split_at(given.len());
        assert_eq!(calls, results);
        assert!(calls.iter().all(|id| is_short(id)), "{calls:?}");
        assert_eq!(calls.iter().collect::<HashSet<_>>().len(), given.len());
        assert_eq!(calls[2], given[2], "it is short");
        // A conversation with fewer messages gets the same ids, so that the beginning of a prompt stays the same.
        assert_eq!(ids_of(shortened(&messages(&given[..1])).unwrap())[0], calls[0]);
        assert_eq!(shortened(&messages(&["abcDEF123"])), None);
        assert_eq!(shortened(&[Message::new("user", "a")]), None);
    }

    #[test]
    fn shortened_call_id_avoids_ids_already_in_use() {
        let first = short_hash("call_abc123", 0);
        let new = ids_of(shortened(&messages(&["call_abc123", &first])).unwrap());
        assert_eq!(new[..2], [short_hash("call_abc123", 1), first]);
    }
}
