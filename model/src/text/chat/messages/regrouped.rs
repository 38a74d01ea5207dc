//! Conversations in the order of roles that strict templates accept: one system message, at the beginning, and then
//! alternating messages of the user and the assistant.

use super::{ASSISTANT, DEVELOPER, Message, SYSTEM, USER};

/// Between the texts of messages that become one.
const BETWEEN_MESSAGES: &str = "\n\n";

/// Variants of the conversation with messages merged, each with one change more than the variant before; no text is
/// left out. Changes without effect are skipped.
pub(super) fn regrouped(messages: &[Message]) -> impl Iterator<Item = Vec<Message>> {
    let mut last = messages.to_vec();
    [one_system_message_first, neighbors_merged, user_first, system_in_user].into_iter().filter_map(move |change| {
        let changed = change(last.clone());
        let is_new = changed != last;
        last = changed;
        is_new.then(|| last.clone())
    })
}

fn is_system(message: &Message) -> bool {
    matches!(message.role.as_str(), SYSTEM | DEVELOPER)
}

fn has_calls(message: &Message) -> bool {
    message.extra.contains_key("tool_calls")
}

/// All system messages as one, before the others.
fn one_system_message_first(messages: Vec<Message>) -> Vec<Message> {
    let (system, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_system);
    system.into_iter().reduce(merged).into_iter().chain(others).collect()
}

/// Merges consecutive messages of the user, and of the assistant, into one.
fn neighbors_merged(messages: Vec<Message>) -> Vec<Message> {
    let mut groups: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        let is_same = |last: &mut Message| {
            last.role == message.role && [USER, ASSISTANT].contains(&last.role.as_str()) && !has_calls(last)
        };
        match groups.pop_if(is_same) {
            Some(last) => groups.push(merged(last, message)),
            None => groups.push(message),
        }
    }
    groups
}

/// An empty message of the user before an assistant that begins the conversation.
fn user_first(mut messages: Vec<Message>) -> Vec<Message> {
    let first = messages.iter().position(|message| !is_system(message));
    if let Some(first) = first.filter(|&first| messages[first].role == ASSISTANT) {
        messages.insert(first, Message::new(USER, ""));
    }
    messages
}

/// The system message at the beginning of the user's message that follows it, or as a message of the user.
fn system_in_user(mut messages: Vec<Message>) -> Vec<Message> {
    if messages.first().is_some_and(is_system) {
        let system = messages.remove(0);
        let user = messages.first().is_some_and(|next| next.role == USER).then(|| messages.remove(0));
        let whole = user.into_iter().fold(system, merged);
        messages.insert(0, Message { role: USER.into(), ..whole });
    }
    messages
}

/// Two messages as one of the first one's role.
fn merged(mut first: Message, second: Message) -> Message {
    let separator = if first.content.is_empty() || second.content.is_empty() { "" } else { BETWEEN_MESSAGES };
    first.content = format!("{}{separator}{}", first.content, second.content);
    for (name, value) in second.extra {
        first.extra.entry(name).or_insert(value);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of these roles and texts, shortened to `role:text`.
    fn messages(written: &[&str]) -> Vec<Message> {
        let pairs = written.iter().filter_map(|message| message.split_once(':'));
        pairs.map(|(role, text)| Message::new(role, text)).collect()
    }

    fn forms(written: &[&str]) -> Vec<Vec<String>> {
        let shown = |message: Message| format!("{}:{}", message.role, message.content);
        regrouped(&messages(written)).map(|form| form.into_iter().map(shown).collect()).collect()
    }

    #[test]
    fn messages_are_regrouped_for_strict_templates_without_losing_text() {
        assert_eq!(forms(&["user:a", "assistant:b", "user:c"]), Vec::<Vec<String>>::new());
        assert_eq!(
            forms(&["system:s", "developer:t", "user:a", "system:u", "user:b"]),
            [
                vec!["system:s\n\nt\n\nu", "user:a", "user:b"],
                vec!["system:s\n\nt\n\nu", "user:a\n\nb"],
                vec!["user:s\n\nt\n\nu\n\na\n\nb"],
            ]
        );
        assert_eq!(
            forms(&["system:s", "assistant:a", "assistant:b"]),
            [
                vec!["system:s", "assistant:a\n\nb"],
                vec!["system:s", "user:", "assistant:a\n\nb"],
                vec!["user:s", "assistant:a\n\nb"],
            ]
        );
        assert_eq!(forms(&["system:s"]), [["user:s"]]);
        let results = ["user:a", "assistant:b", "tool:c", "tool:d"];
        assert_eq!(forms(&results), Vec::<Vec<String>>::new(), "results stay apart");
    }

    #[test]
    fn message_with_calls_is_merged_only_with_the_text_before_it() {
        let mut given = messages(&["user:q", "assistant:a", "assistant:b", "assistant:c"]);
        given[2].extra.insert("tool_calls".into(), serde_json::json!([{}]));
        let form: Vec<_> = regrouped(&given).flatten().collect();
        let found: Vec<_> = form.iter().map(|message| (message.content.as_str(), has_calls(message))).collect();
        assert_eq!(found, [("q", false), ("a\n\nb", true), ("c", false)]);
    }
}
