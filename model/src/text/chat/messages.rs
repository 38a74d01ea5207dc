//! Messages: how they are read, and the forms in which templates take them.

mod arguments;
mod call_ids;
mod regrouped;

use std::{
    borrow::Cow,
    iter,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use self::arguments::ArgumentForm;
use super::{ChatTemplate, Ending, Inputs, REASONING_CONTENT, RenderContext};
use crate::error::{Error, Result};

/// The role whose messages may have no content.
pub(super) const ASSISTANT: &str = "assistant";

/// OpenAI's newer name for [`SYSTEM`].
const DEVELOPER: &str = "developer";
const SYSTEM: &str = "system";
const USER: &str = "user";

/// Types of parts of a content, and the names of their texts.
const TEXT: &str = "text";
const REFUSAL: &str = "refusal";
const THINKING: &str = "thinking";

/// Between the text parts of a content, where it is one text.
const BETWEEN_PARTS: &str = "\n";

/// Time after which a conversation is not tried in another form.
const TIME_FOR_FORMS: Duration = Duration::from_secs(1);

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Message {
    /// The role: `system`, `user`, `assistant`, `tool`, or another that the template supports.
    pub role: String,
    /// The text.
    pub content: String,
    /// Other members that the template uses, such as `name` or `tool_calls`.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
    /// The text parts that `content` was read from, if there were several.
    #[serde(skip)]
    parts: Vec<String>,
}

/// Why a message cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MessageError {
    /// A member is missing or null.
    #[error("missing field `{0}`")]
    Missing(&'static str),
    /// A member has a wrong type or value.
    #[error("`{path}` must be {allowed}")]
    Invalid {
        /// The member's path in the message, such as `content[0].type`.
        path: String,
        /// Allowed types or values.
        allowed: &'static str,
        /// The given value.
        given: Value,
    },
}

impl Message {
    /// A message with text only.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new(), parts: Vec::new() }
    }

    /// The text parts that the content was read from, if there were several and it has not been changed since.
    pub(super) fn parts(&self) -> Option<&[String]> {
        (self.parts.len() > 1 && self.parts.join(BETWEEN_PARTS) == self.content).then_some(self.parts.as_slice())
    }
}

/// Reads a message in OpenAI's format, as in requests and data sets. `content` is a string, or an array of text parts,
/// which are joined by newlines; an assistant's message may have none. An assistant's refusal, a part or a member
/// `refusal`, is text like any other, and its parts of type `thinking` become the member `reasoning_content`. Members
/// that are null, and empty `tool_calls`, are left out: rows of tables have every member, and templates detect messages
/// with calls by the presence of `tool_calls`.
impl TryFrom<Map<String, Value>> for Message {
    type Error = MessageError;

    fn try_from(mut members: Map<String, Value>) -> Result<Self, MessageError> {
        let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        members.retain(|name, value| !(value.is_null() || name == "tool_calls" && is_empty(value)));
        let role = match members.shift_remove("role") {
            Some(Value::String(role)) => role,
            Some(given) => return Err(invalid("role", "a string", given)),
            None => return Err(MessageError::Missing("role")),
        };
        let mut parts = match members.shift_remove("content") {
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(mut given)) => {
                let thoughts = if role == ASSISTANT { take_thoughts(&mut given) } else { Vec::new() };
                if !thoughts.is_empty() {
                    members.entry(REASONING_CONTENT).or_insert_with(|| thoughts.join(BETWEEN_PARTS).into());
                }
                texts_of(&given, &role)?
            }
            Some(given) => return Err(invalid("content", "a string or an array of parts", given)),
            // A message that only calls tools.
            None if role == ASSISTANT => Vec::new(),
            None => return Err(MessageError::Missing("content")),
        };
        if role == ASSISTANT && members.get(REFUSAL).is_some_and(Value::is_string) {
            parts.retain(|text| !text.is_empty());
            parts.extend(members.shift_remove(REFUSAL).as_ref().and_then(Value::as_str).map(str::to_owned));
        }
        let content = parts.join(BETWEEN_PARTS);
        if parts.len() < 2 {
            parts = Vec::new();
        }
        Ok(Self { role, content, extra: members, parts })
    }
}

/// Removes the parts of a content that are thoughts, in Mistral's format, and returns their texts.
fn take_thoughts(parts: &mut Vec<Value>) -> Vec<String> {
    let text =
        |part: &Value| match part.get(THINKING).filter(|_| part.get("type").is_some_and(|kind| kind == THINKING))? {
            Value::String(text) => Some(text.clone()),
            Value::Array(parts) => parts
                .iter()
                .map(|part| part.get(TEXT).and_then(Value::as_str))
                .collect::<Option<Vec<_>>>()
                .map(|all| all.concat()),
            _ => None,
        };
    let thoughts = parts.iter().filter_map(text).collect();
    parts.retain(|part| text(part).is_none());
    thoughts
}

/// The texts of a content's parts. In an assistant's message, a part may also be a refusal.
fn texts_of(parts: &[Value], role: &str) -> Result<Vec<String>, MessageError> {
    let (kinds, allowed): (&[&str], _) = match role {
        ASSISTANT => (&[TEXT, REFUSAL], "`text` or `refusal`"),
        _ => (&[TEXT], "`text`, the only supported type"),
    };
    let texts = parts.iter().enumerate().map(|(index, part)| {
        let kind = part.get("type").and_then(Value::as_str);
        if let Some(unknown) = kind.filter(|kind| !kinds.contains(kind)) {
            return Err(invalid(format!("content[{index}].type"), allowed, unknown.into()));
        }
        // The member with the text has the type's name.
        match kind.and_then(|kind| part.get(kind)) {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => Err(invalid(format!("content[{index}]"), "an object with `type` and `text`", part.clone())),
        }
    });
    texts.collect()
}

fn invalid(path: impl Into<String>, allowed: &'static str, given: Value) -> MessageError {
    MessageError::Invalid { path: path.into(), allowed, given }
}

impl ChatTemplate {
    /// Calls `encode` with the messages in one form after the other, until the template accepts one. If it rejects all, the
    /// first error is returned.
    ///
    /// The first form is the one that most templates support: `system` instead of `developer` (unless the template
    /// knows that role), and [arguments of tool calls as objects](ArgumentForm). A template counts as knowing the
    /// role if its source contains the word `developer`, which may also be part of a text. If the template rejects all
    /// of these forms, they are tried with [short ids](call_ids::shortened) of tool calls. A template that fails only
    /// after [`TIME_FOR_FORMS`] has exceeded a limit and would do so again, so its error is returned.
    pub(super) fn in_supported_form<T>(
        &self,
        messages: &[Message],
        context: &RenderContext,
        encode: impl Fn(&[Message]) -> Result<T>,
    ) -> Result<T> {
        self.in_first_form(messages, context, &ArgumentForm::AS_WRITTEN, encode)
    }

    /// [`in_supported_form`](Self::in_supported_form) with these forms of arguments.
    fn in_first_form<T>(
        &self,
        messages: &[Message],
        context: &RenderContext,
        forms: &[ArgumentForm],
        encode: impl Fn(&[Message]) -> Result<T>,
    ) -> Result<T> {
        let has_tools = context.tools.as_ref().is_some_and(|tools| !tools.is_null());
        let source = if has_tools { self.tools_source() } else { self.source() };
        let has_developer = messages.iter().any(|message| message.role == DEVELOPER);
        let is_system: &[bool] = if has_developer && source.contains(DEVELOPER) { &[false, true] } else { &[true] };
        let started = Instant::now();
        let mut first_error = None;
        let as_given = iter::once_with(|| Some(Cow::Borrowed(messages)));
        let shortened = iter::once_with(|| call_ids::shortened(messages).map(Cow::Owned));
        for messages in as_given.chain(shortened).flatten() {
            for &is_system in is_system {
                let mut given = messages.to_vec();
                let developers = given.iter_mut().filter(|message| is_system && message.role == DEVELOPER);
                developers.for_each(|message| message.role = SYSTEM.into());
                let n_forms = if arguments::has_calls(&given) { forms.len() } else { 1 };
                for form in forms.iter().take(n_forms) {
                    let form = form.of(&given);
                    match encode(&form) {
                        Err(error @ Error::Template { .. }) if started.elapsed() < TIME_FOR_FORMS => {
                            first_error.get_or_insert(error);
                        }
                        done => return done,
                    }
                }
            }
        }
        Err(first_error.unwrap_or_else(|| unreachable!("there is always a form")))
    }

    /// Whether the template accepts a call whose arguments are a string, but does not write the string.
    fn drops_strings(&self, context: &RenderContext) -> bool {
        const PROBE: &str = "Zq1";
        let function = json!({ "name": "f", "arguments": PROBE });
        let call = json!({ "id": "abcdefghi", "type": "function", "function": function });
        let user = json!({ "role": USER, "content": self.text_content(USER, "a") });
        let messages = vec![user, json!({ "role": ASSISTANT, "content": "", "tool_calls": [call] })];
        let inputs = Inputs { messages, tools: context.tools.clone(), kwargs: context.kwargs.clone() };
        let text = self.render_inputs(&inputs, &RenderContext { ending: Ending::Closed, ..context.clone() });
        text.is_ok_and(|text| !text.contains(PROBE))
    }

    /// [`in_supported_form`](Self::in_supported_form) for conversations that must be answered, whatever a model wrote
    /// and whoever made them: also with arguments that are no object as [members of one](ArgumentForm::OnlyObjects), and if the
    /// template rejects the order of the messages, with them [regrouped](regrouped::regrouped). If it rejects these too,
    /// the first error is returned.
    pub(super) fn in_supported_groups<T>(
        &self,
        messages: &[Message],
        context: &RenderContext,
        encode: impl Fn(&[Message]) -> Result<T>,
    ) -> Result<T> {
        let started = Instant::now();
        let mut forms = ArgumentForm::ALL;
        if arguments::has_others(messages) && self.drops_strings(context) {
            forms.reverse();
        }
        let as_given = self.in_first_form(messages, context, &forms, &encode);
        if !matches!(as_given, Err(Error::Template { .. })) {
            return as_given;
        }
        let groups = regrouped::regrouped(messages).take_while(|_| started.elapsed() < TIME_FOR_FORMS);
        let mut encoded = groups.filter_map(|group| self.in_first_form(&group, context, &forms, &encode).ok());
        encoded.next().map_or(as_given, Ok)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::*;
    use crate::text::tokenizer::{DecodeOptions, Tokenizer};

    const ROLES: &str = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}";

    /// A token for each of these characters.
    fn tokenizer() -> Tokenizer {
        let characters = ('a'..='z').chain("[]{}\":1 \\\n".chars());
        let vocab: Map<String, Value> = characters.zip(0..).map(|(token, id)| (token.into(), id.into())).collect();
        let split =
            json!({ "type": "Split", "pattern": { "Regex": "[\\s\\S]" }, "behavior": "Isolated", "invert": false });
        let json = json!({
            "pre_tokenizer": split, "decoder": { "type": "Fuse" },
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "" },
        });
        Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
    }

    /// The text of the conversation's tokens, which both ways of encoding it must give.
    fn encoded(template: &str, messages: Value) -> Result<String> {
        let text = encoded_once(template, &messages)?;
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        let template = ChatTemplate::new(template, Path::new("chat_template.jinja")).unwrap();
        let (tokenizer, context) = (tokenizer(), RenderContext::default());
        let masked = template.encode_with_mask(&tokenizer, &messages, &context, 0).unwrap();
        assert_eq!(tokenizer.decode(&masked.ids, DecodeOptions::default()), text);
        Ok(text)
    }

    fn encoded_once(template: &str, messages: &Value) -> Result<String> {
        let messages: Vec<Message> = serde_json::from_value(messages.clone()).unwrap();
        let template = ChatTemplate::new(template, Path::new("chat_template.jinja")).unwrap();
        let tokenizer = tokenizer();
        let ids = template.prompt_text(&tokenizer, &messages, &RenderContext::default())?.encode(&tokenizer)?;
        Ok(tokenizer.decode(&ids, DecodeOptions::default()))
    }

    #[test]
    fn developer_role_becomes_system_for_templates_without_it() {
        let messages = json!([{ "role": "developer", "content": "a" }, { "role": "user", "content": "b" }]);
        assert_eq!(encoded(ROLES, messages.clone()).unwrap(), "[system]a[user]b");
        let knows = format!("{{% if messages[0].role == 'developer' %}}x{{% endif %}}{ROLES}");
        assert_eq!(encoded(&knows, messages).unwrap(), "x[developer]a[user]b");
    }

    #[test]
    fn tool_call_arguments_are_objects_unless_the_template_wants_strings() {
        let with = |written: &str, arguments: Value| {
            let template = format!(
                "{{% for message in messages %}}[{{{{ message.role }}}}]{{{{ message.content }}}}{{% for call in \
                 message.tool_calls or [] %}}{written}{{% endfor %}}{{% endfor %}}{{% if add_generation_prompt %}}\
                 [assistant]{{% endif %}}"
            );
            let calls = json!([{ "name": "f", "function": { "arguments": arguments } }]);
            let user = json!({ "role": "user", "content": "b" });
            encoded(&template, json!([user, { "role": "assistant", "content": null, "tool_calls": calls }]))
        };
        for arguments in [json!({ "a": 1 }), json!("{\"a\": 1}")] {
            let text = with("{{ call.function.arguments | tojson }}", arguments).unwrap();
            assert_eq!(text, "[user]b[assistant]{\"a\": 1}");
        }
        let text = with("{{ call.name + call.function.arguments }}", json!("{\"a\":1}")).unwrap();
        assert_eq!(text, "[user]b[assistant]f{\"a\":1}");
        let text = with("{{ call.function.arguments }}", json!("a 1")).unwrap();
        assert_eq!(text, "[user]b[assistant]a 1", "not JSON");
        let refuse = "{{ raise_exception('a string' if call.function.arguments is string else 'an object') }}";
        let error = with(refuse, json!("{}")).unwrap_err().to_string();
        assert!(error.contains("an object"), "of the first form: {error}");
    }

    /// Arguments as the templates of many models write them. The templates of Qwen 3 Coder, GLM, Gemma and MiniMax loop
    /// over the arguments; MiniMax's only if they are an object.
    const WRITTEN_ARGUMENTS: [&str; 8] = [
        "{{ f.arguments | tojson }}",
        "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}",
        "{{ 'a ' + f.arguments }}",
        "{% for name, value in f.arguments | items %}{{ name }}:{{ value }} {% endfor %}",
        "{% for name, value in f.arguments.items() %}{{ name }}:{{ value }} {% endfor %}",
        "{% for name, value in f.arguments | dictsort %}{{ name }}:{{ value }} {% endfor %}",
        "{% if f.arguments is mapping %}{% for name, value in f.arguments | items %}{{ name }}:{{ value }} {% endfor %}{% endif %}",
        "{% if f.arguments is not mapping %}{{ raise_exception('mapping') }}{% endif %}{{ f.arguments | tojson }}",
    ];

    #[test]
    fn earlier_calls_keep_arguments_that_are_no_object_under_every_template() {
        let nothing =
            [None, Some(json!(null)), Some(json!("")), Some(json!(" ")), Some(json!("null")), Some(json!({}))];
        let others = [json!("{\"a\": 1"), json!("[1]"), json!([1]), json!("1"), json!(1), json!("a b")];
        for written in WRITTEN_ARGUMENTS {
            let template = format!(
                "{{% for m in messages %}}{{% for call in m.tool_calls or [] %}}{{% set f = call.function or call %}}\
                 {{{{ f.name }}}}[{written}]{{% endfor %}}{{{{ m.content }}}}{{% endfor %}}"
            );
            let text_with = |arguments: Option<&Value>, is_nested: bool| {
                let mut function = json!({ "name": "f" });
                if let Some(arguments) = arguments {
                    function["arguments"] = arguments.clone();
                }
                let call = if is_nested { json!({ "type": "function", "function": function }) } else { function };
                let good = json!({ "function": { "name": "g", "arguments": "{\"b\": 1}" } });
                let asked = json!({ "role": "assistant", "tool_calls": [call, good] });
                encoded_once(&template, &json!([asked, { "role": "user", "content": "q" }])).unwrap()
            };
            for is_nested in [true, false] {
                let empty = text_with(Some(&json!("{}")), is_nested);
                for arguments in &nothing {
                    assert_eq!(text_with(arguments.as_ref(), is_nested), empty, "{written}: {arguments:?}");
                }
                for arguments in &others {
                    let text = text_with(Some(arguments), is_nested);
                    let raw = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
                    let quoted = Value::from(raw.as_str()).to_string();
                    let is_kept = text.contains(&raw) || text.contains(quoted.trim_matches('"'));
                    assert!(is_kept, "{written}: {arguments} becomes {text}");
                    assert!(text.contains('b') && text.ends_with('q'), "{text}");
                }
            }
        }
    }

    /// Rules of the templates of Qwen 3.5, Mistral and Gemma 2, shortened.
    #[test]
    fn messages_are_regrouped_if_the_template_rejects_their_order() {
        let refuse = |condition: &str| format!("{{% if {condition} %}}{{{{ raise_exception('order') }}}}{{% endif %}}");
        let at_beginning = refuse("m.role == 'system' and not loop.first");
        let in_turn = "{% set users = messages | rejectattr('role', 'equalto', 'system') | list %}{% for m in users %}\
                       {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}{% endfor %}";
        let no_system = refuse("m.role == 'system'");
        let each =
            |rule: &str| format!("{{% for m in messages %}}{rule}[{{{{ m.role }}}}]{{{{ m.content }}}}{{% endfor %}}");
        let (strict, in_turn, no_system) = (
            each(&at_beginning),
            format!("{in_turn}{}", each(&at_beginning)),
            format!("{in_turn}{}", each(&no_system)),
        );
        let messages = |written: &[(&str, &str)]| -> Value {
            written.iter().map(|(role, content)| json!({ "role": role, "content": content })).collect()
        };
        for (template, given, expected) in [
            (&strict, vec![("system", "a"), ("user", "b"), ("user", "c")], "[system]a[user]b[user]c"),
            (&strict, vec![("system", "a"), ("developer", "b"), ("user", "c")], "[system]a\n\nb[user]c"),
            (&strict, vec![("user", "a"), ("system", "b"), ("user", "c")], "[system]b[user]a[user]c"),
            (&in_turn, vec![("user", "a"), ("system", "b"), ("user", "c")], "[system]b[user]a\n\nc"),
            (&in_turn, vec![("assistant", "a"), ("user", "b")], "[user][assistant]a[user]b"),
            (&in_turn, vec![("user", "a"), ("assistant", "b"), ("assistant", "c")], "[user]a[assistant]b\n\nc"),
            (&no_system, vec![("system", "a"), ("user", "b")], "[user]a\n\nb"),
        ] {
            assert_eq!(encoded_once(template, &messages(&given)).unwrap(), expected, "{given:?}");
        }
        let error = encoded_once(&refuse("true"), &messages(&[("system", "a"), ("system", "b")])).unwrap_err();
        assert!(error.to_string().contains("order"), "{error}");
    }

    #[test]
    fn messages_use_the_first_form_that_the_template_accepts() {
        let calls = json!([{ "function": { "name": "f", "arguments": "{}" } }]);
        let messages = json!([
            { "role": "developer", "content": "a" },
            { "role": "assistant", "content": null, "tool_calls": calls },
        ]);
        let written = "{% for m in messages %}[{{ m.role }}]{% if m.content is none %}z{% else %}{{ m.content }}{% endif %}{% endfor %}";
        let rejects =
            |condition: &str| format!("{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}{written}");
        for (condition, expected) in [
            ("false", "[system]a[assistant]z"),
            ("messages[0].role == 'developer'", "[system]a[assistant]z"),
            ("messages[0].role != 'developer'", "[developer]a[assistant]z"),
            (
                "messages[0].role == 'developer' or messages[1].tool_calls[0].function.arguments is string",
                "[system]a[assistant]z",
            ),
            (
                "messages[0].role != 'developer' or messages[1].tool_calls[0].function.arguments is mapping",
                "[developer]a[assistant]z",
            ),
            ("messages[1].content == 'x'", "[system]a[assistant]z"),
            ("messages[1].content == ''", "no"),
            ("messages[1].content != '' and false", "[system]a[assistant]"),
        ] {
            let found = encoded_once(&rejects(condition), &messages).unwrap_or_else(|error| error.to_string());
            assert!(found == expected || expected == "no" && found.contains("rejects"), "{condition}: {found}");
        }
        assert!(encoded_once(&rejects("true"), &messages).unwrap_err().to_string().contains("no"));
        // `m.reasoning_content is none` does not count as a comparison of `content`: the content is an empty text, in
        // which `in` works.
        let reasons = "{% for m in messages %}{% if m.reasoning_content is none or 'x' in m.content %}x{% endif %}[{{ m.role }}]{% endfor %}";
        assert_eq!(encoded_once(reasons, &messages).unwrap(), "[system][assistant]");
    }

    /// As Mistral's templates require it.
    #[test]
    fn tool_call_ids_are_shortened_if_the_template_rejects_them() {
        const CHECKS: &str = "{% if id is not defined or id|length != 9 %}{{ raise_exception('nine') }}{% endif %}";
        let written = "{% for m in messages %}[{{ m.role }}]{% for call in m.tool_calls or [] %}{% set id = call.id %}CHECK\
                       {% endfor %}{% if m.role == 'tool' %}{% set id = m.tool_call_id %}CHECK{% set calls = \
                       messages[loop.index0 - 1].tool_calls %}{{ 'same' if calls[0].id == id else 'other' }}{% endif %}{% endfor %}";
        let messages = |id: &str, result_id: &str| {
            let calls = json!([{ "id": id, "function": { "name": "f", "arguments": "{}" } }]);
            json!([
                { "role": "assistant", "tool_calls": calls },
                { "role": "tool", "content": "a", "tool_call_id": result_id },
            ])
        };
        let checked = |id, result_id| encoded_once(&written.replace("CHECK", CHECKS), &messages(id, result_id));
        for id in ["call_abc123", "abcdefghi"] {
            assert_eq!(checked(id, id).unwrap(), "[assistant][tool]same", "{id}");
        }
        assert_eq!(checked("call_abc123", "call_abc124").unwrap(), "[assistant][tool]other");
        let shown = written.replace("CHECK", "{{ id }}");
        let text = encoded_once(&shown, &messages("callabc", "callabc")).unwrap();
        assert_eq!(text, "[assistant]callabc[tool]callabcsame", "the template accepts any");
        let rejects = "{{ raise_exception('never') }}";
        assert!(encoded_once(rejects, &messages("a", "a")).unwrap_err().to_string().contains("never"));
    }

    #[test]
    fn tool_call_argument_limit_applies_to_the_whole_conversation() {
        let half = json!({ "a": vec![0; arguments::MAX_VALUES / 2] }).to_string();
        let call = json!({ "function": { "name": "f", "arguments": half } });
        let message = json!({ "role": "assistant", "tool_calls": [call, call] });
        let messages: Vec<Message> = serde_json::from_value(json!([message, message])).unwrap();
        let n_objects = |message: &Message| {
            let calls = message.extra["tool_calls"].as_array().unwrap().iter();
            calls.filter(|call| call.pointer("/function/arguments").is_some_and(Value::is_object)).count()
        };
        let template = ChatTemplate::new(ROLES, Path::new("chat_template.jinja")).unwrap();
        let encode = |messages: &[Message]| Ok(messages.iter().map(n_objects).collect::<Vec<_>>());
        let in_conversation = template.in_supported_form(&messages, &RenderContext::default(), encode).unwrap();
        // With the list itself, the second half is one value too many.
        assert_eq!(in_conversation, [1, 0]);
        for message in &messages {
            let alone = ArgumentForm::Objects.of(std::slice::from_ref(message));
            assert_eq!(n_objects(&alone[0]), 1, "by itself, each message has the whole limit");
        }
    }

    #[test]
    fn messages_parse_content_parts_and_drop_null_members() {
        let read = serde_json::from_value::<Message>;
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b", "cache_control": {} }]);
        let message = read(json!({ "role": "user", "content": parts, "name": "n", "tool_calls": null })).unwrap();
        let extra: Map<String, Value> = [("name".to_owned(), json!("n"))].into_iter().collect();
        let parts = vec!["a".into(), "b".into()];
        assert_eq!(message, Message { role: "user".into(), content: "a\nb".into(), extra, parts });
        for silent in [
            json!({ "role": "assistant" }),
            json!({ "role": "assistant", "content": null, "tool_calls": [], "refusal": null }),
        ] {
            assert_eq!(read(silent).unwrap(), Message::new("assistant", ""));
        }
        let refusal = json!({ "type": "refusal", "refusal": "No." });
        for refused in [
            json!({ "role": "assistant", "content": [refusal] }),
            json!({ "role": "assistant", "content": null, "refusal": "No." }),
            json!({ "role": "assistant", "content": "", "refusal": "No." }),
        ] {
            assert_eq!(read(refused).unwrap(), Message::new("assistant", "No."));
        }
        let both = read(json!({ "role": "assistant", "content": "a", "refusal": "No." })).unwrap();
        assert_eq!((both.content.as_str(), both.extra.len()), ("a\nNo.", 0));
        for (value, expected) in [
            (json!({ "content": "a" }), "missing field `role`"),
            (json!({ "role": 1, "content": "a" }), "`role` must be a string"),
            (json!({ "role": "user", "content": null }), "missing field `content`"),
            (json!({ "role": "user", "content": 1 }), "`content` must be a string or an array of parts"),
            (json!({ "role": "user", "content": [{ "type": "image_url" }] }), "`content[0].type` must be `text`"),
            (json!({ "role": "user", "content": [{ "type": "text" }] }), "`content[0]` must be an object"),
            (json!({ "role": "user", "content": [refusal] }), "`content[0].type` must be `text`, the only"),
            (
                json!({ "role": "assistant", "content": [{ "type": "audio" }] }),
                "`content[0].type` must be `text` or `refusal`",
            ),
        ] {
            let error = read(value).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
