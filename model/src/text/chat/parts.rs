//! Contents that are lists of text parts.
//!
//! OpenAI's API allows a text or a list of parts as content. Most templates read a text, many also a list, and some
//! only a list. As in vLLM, a template that reads lists gets the parts as they were sent, and a template that reads
//! only lists gets each text as a list of one part. For other templates, and in results of tools, the parts are joined
//! by newlines. Rendering short conversations shows which form a template reads.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{ChatTemplate, Inputs, Message, RenderContext, messages::ASSISTANT};

const USER: &str = "user";
const TOOL: &str = "tool";

/// The parts of a content that show whether a template writes their texts. A template that prints a list as such also
/// writes [`KEY`] between them.
const PROBE: [&str; 2] = ["Zq1", "Zq2"];
const KEY: &str = "type";

impl ChatTemplate {
    /// The contents of the messages, as the template reads them.
    pub(super) fn contents(&self, messages: &[Message], context: &RenderContext) -> Vec<Value> {
        let mut reads_parts: BTreeMap<&str, bool> = BTreeMap::new();
        let mut contents = Vec::with_capacity(messages.len());
        for message in messages {
            let role = message.role.as_str();
            let mut is_read =
                || *reads_parts.entry(role).or_insert_with(|| self.reads_parts(role, context.tools.as_ref()));
            contents.push(match message.parts() {
                Some(parts) if is_read() => list(parts),
                _ => self.text_content(role, &message.content),
            });
        }
        contents
    }

    /// A text as the content of a message of this role.
    pub(super) fn text_content(&self, role: &str, text: &str) -> Value {
        if role != TOOL && self.needs_parts() { list(&[text]) } else { text.into() }
    }

    /// Whether the template writes all parts of a list in a message of this role.
    fn reads_parts(&self, role: &str, tools: Option<&Value>) -> bool {
        role != TOOL && self.writes_probe(role, list(&PROBE), tools)
    }

    /// Whether the template reads lists of parts, but no texts.
    fn needs_parts(&self) -> bool {
        *self.needs_parts.get_or_init(|| {
            self.sources.tool_use.is_none()
                && !self.writes_probe(USER, PROBE.concat().into(), None)
                && self.writes_probe(USER, list(&PROBE), None)
        })
    }

    fn writes_probe(&self, role: &str, content: Value, tools: Option<&Value>) -> bool {
        let other = if content.is_array() { list(&["a"]) } else { "a".into() };
        let own = json!({ "role": role, "content": content });
        let other = json!({ "role": USER, "content": other });
        let messages = match role {
            USER => vec![own],
            ASSISTANT => vec![other, own],
            _ => vec![own, other],
        };
        let inputs = Inputs { messages, tools: tools.cloned(), kwargs: Map::new() };
        let text = self.render_inputs(&inputs, &RenderContext::default());
        text.is_ok_and(|text| {
            let behind = text.split_once(PROBE[0]).and_then(|(_, rest)| rest.split_once(PROBE[1]));
            behind.is_some_and(|(between, _)| !between.contains(KEY))
        })
    }
}

/// A content of these text parts.
fn list(texts: &[impl AsRef<str>]) -> Value {
    texts.iter().map(|text| json!({ KEY: "text", "text": text.as_ref() })).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::{super::Ending, *};

    const TEXTS: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    const LISTS: &str = "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}{% if part.type == 'text' %}\
                         {{ part.text }}{% endif %}{% endfor %}{% endfor %}";
    /// Also trims, as Gemma's templates do.
    const BOTH: &str = "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content | trim }}{% else %}\
                        {% for part in m.content %}{{ part.text | trim }}{% endfor %}{% endif %}{% endfor %}";
    /// Writes only the first part of a system message.
    const FIRST: &str = "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% elif m.role == \
                         'system' %}{{ m.content[0].text }}{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}\
                         {% endif %}{% endfor %}";

    /// Writes each part of a content on a line.
    const LINES: &str =
        "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}{{ part.text }}\n{% endfor %}{% endfor %}";

    fn rendered(source: &str, messages: Vec<Message>, ending: Ending) -> String {
        let template = ChatTemplate::new(source, Path::new("chat_template.jinja")).unwrap();
        template.render(&messages, &RenderContext { ending, ..RenderContext::default() }).unwrap()
    }

    fn message(role: &str, parts: &[&str]) -> Message {
        serde_json::from_value(json!({ "role": role, "content": list(parts) })).unwrap()
    }

    #[test]
    fn content_parts_are_lists_for_templates_that_read_lists_and_joined_for_others() {
        let parts = ["a ", "b"];
        for (source, role, expected) in [
            (TEXTS, "user", "[user]a \nb"),
            (BOTH, "user", "[user]ab"),
            (BOTH, "assistant", "[assistant]ab"),
            (BOTH, "system", "[system]ab"),
            (BOTH, "tool", "[tool]a \nb"),
            (LISTS, "user", "[user]a b"),
            (LINES, "user", "[user]a \nb\n"),
            (FIRST, "user", "[user]a b"),
            (FIRST, "system", "[system]a \nb"),
        ] {
            assert_eq!(rendered(source, vec![message(role, &parts)], Ending::Closed), expected, "{source}");
        }
        for source in [TEXTS, BOTH, LISTS, FIRST] {
            assert_eq!(rendered(source, vec![message("user", &["a"])], Ending::Closed), "[user]a", "{source}");
            assert_eq!(rendered(source, vec![message("user", &[])], Ending::Closed), "[user]", "{source}");
        }
    }

    #[test]
    fn text_is_a_list_of_one_part_for_templates_that_read_only_lists() {
        let messages = || vec![Message::new("system", "be brief"), Message::new("user", "a\nb")];
        for source in [TEXTS, BOTH, LISTS, FIRST] {
            assert_eq!(rendered(source, messages(), Ending::Closed), "[system]be brief[user]a\nb", "{source}");
        }
    }

    #[test]
    fn last_content_part_can_be_continued() {
        for source in [TEXTS, LISTS] {
            let text = rendered(source, vec![Message::new("assistant", "Once ")], Ending::OpenMessage);
            assert_eq!(text, "[assistant]Once ");
        }
        let messages = vec![message("assistant", &["Once ", "upon "])];
        assert_eq!(rendered(LISTS, messages.clone(), Ending::OpenMessage), "[assistant]Once upon ");
        assert_eq!(rendered(TEXTS, messages, Ending::OpenMessage), "[assistant]Once \nupon ");
    }

    /// Templates of Qwen 3 and DeepSeek R1, shortened: they move thoughts, or remove them.
    #[test]
    fn continued_message_keeps_its_thought_as_it_was_written() {
        let qwen = "{% for m in messages %}[{{ m.role }}]{% set content = m.content %}{% if m.role == 'assistant' %}\
                    {% set thought = '' %}{% if '</think>' in content %}{% set thought = content.split('</think>')[0]\
                    .split('<think>')[-1].strip('\n') %}{% set content = content.split('</think>')[-1].lstrip('\n') %}\
                    {% endif %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ content }}{% endfor %}\
                    {% if add_generation_prompt %}[assistant]{% if no_thought %}<think>\n\n</think>\n\n{% endif %}{% endif %}";
        let r1 = "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}\
                  {% if add_generation_prompt %}[assistant]<think>\n{% endif %}";
        let continued = |source: &str, content: &str| {
            rendered(source, vec![Message::new("user", "q"), Message::new("assistant", content)], Ending::OpenMessage)
        };
        for text in ["<think>\na\n</think>\n\nb ", "<think>a</think>b", "<think>\na", "<think>a</think>\n\n"] {
            assert_eq!(continued(qwen, text), format!("[user]q[assistant]{text}"));
            assert_eq!(continued(&qwen.replace("no_thought", "true"), text), format!("[user]q[assistant]{text}"));
            assert_eq!(continued(r1, text), format!("[user]q[assistant]{text}"));
        }
        // The model was given the opening mark, so its answer has only the other.
        assert_eq!(continued(r1, "a</think>b"), "[user]q[assistant]<think>\na</think>b");
        assert_eq!(continued(r1, "b"), "[user]q[assistant]b");
        // Without a generation prompt, the template writes the message.
        assert_eq!(continued(TEXTS, "<think>a</think>b"), "[user]q[assistant]<think>a</think>b");
    }

    #[test]
    fn continued_message_has_its_thought_within_the_marks_of_the_family() {
        let qwen = "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}\
                    {% if add_generation_prompt %}[assistant]<think>\n{% endif %}";
        for (content, expected) in [("", "<think>\na"), ("b", "<think>\na\n</think>\n\nb")] {
            let last = json!({ "role": "assistant", "content": content, "reasoning_content": "a" });
            let messages = vec![Message::new("user", "q"), serde_json::from_value(last).unwrap()];
            assert_eq!(rendered(qwen, messages, Ending::OpenMessage), format!("[user]q[assistant]{expected}"));
        }
    }

    #[test]
    fn message_with_calls_cannot_be_continued() {
        let call: Message =
            serde_json::from_value(json!({ "role": "assistant", "content": "a", "tool_calls": [{}] })).unwrap();
        let template = ChatTemplate::new(TEXTS, Path::new("chat_template.jinja")).unwrap();
        let context = RenderContext { ending: Ending::OpenMessage, ..RenderContext::default() };
        let error = template.render(&[call], &context).unwrap_err().to_string();
        assert!(error.contains("must not end with tool calls"), "{error}");
    }

    /// Magistral's template, shortened.
    #[test]
    fn thoughts_are_parts_for_templates_that_read_such_parts() {
        let mistral = "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}\
                       {% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% elif part.type == 'thinking' %}\
                       [THINK]{{ part.thinking }}[/THINK]{% endif %}{% endfor %}{% endif %}{% endfor %}";
        let thinking = json!({ "type": "thinking", "thinking": [{ "type": "text", "text": "a" }] });
        for given in [
            json!({ "role": "assistant", "content": "b", "reasoning_content": "a" }),
            json!({ "role": "assistant", "content": [thinking, { "type": "text", "text": "b" }] }),
            json!({ "role": "assistant", "content": [{ "type": "thinking", "thinking": "a" }, { "type": "text", "text": "b" }] }),
        ] {
            let message: Message = serde_json::from_value(given.clone()).unwrap();
            assert_eq!(message.extra.get("reasoning_content"), Some(&json!("a")), "{given}");
            let messages = vec![Message::new("user", "q"), message];
            assert_eq!(
                rendered(mistral, messages.clone(), Ending::Closed),
                "[user]q[assistant][THINK]a[/THINK]b",
                "{given}"
            );
            let qwen = "{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content }}|{{ m.content }}{% endfor %}";
            assert_eq!(rendered(qwen, messages, Ending::Closed), "[user]|q[assistant]a|b", "{given}");
        }
    }

    #[test]
    fn changed_content_replaces_its_parts() {
        let mut changed = message("user", &["a ", "b"]);
        changed.content.push('!');
        assert_eq!(rendered(LISTS, vec![changed], Ending::Closed), "[user]a \nb!");
    }
}
