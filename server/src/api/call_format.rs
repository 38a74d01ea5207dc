//! The formats in which models write tool calls: one table, from which the format of a chat template is detected, the
//! grammar for calls is made, and calls are parsed.

use hearth_model::chat::hermes;

use crate::random::{fresh_id, fresh_word};

/// How calls are written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallFormat {
    /// A chat template has this format if its source contains one of these strings.
    signs: &'static [&'static str],
    /// The marks before calls.
    pub(crate) openings: &'static [&'static str],
    /// The mark after calls, which models may leave out.
    pub(crate) closing: Option<&'static str>,
    /// Whether a JSON object at the start of a line may be a call without a mark.
    pub(crate) is_bare: bool,
    /// The text between the marks.
    pub(crate) body: Body,
    /// The text before the first call and after the last one. The grammar for calls is made of this and the next two
    /// fields.
    pub(crate) around_all: [&'static str; 2],
    /// The text before a function's name, between the name and the arguments, and after the arguments.
    pub(crate) around_parts: [&'static str; 3],
    /// The text between two calls.
    pub(crate) separator: &'static str,
    ids: Ids,
}

/// The text between the marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// A JSON object with the name and the arguments, or a list of such objects.
    Json,
    /// The name, `before_id` and an id, which models may leave out, `before_arguments`, and the arguments.
    Named { before_id: &'static str, before_arguments: &'static str },
}

/// The form of the ids of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ids {
    /// `call_` and hexadecimal digits.
    Prefixed,
    /// Nine letters and digits. Mistral's templates reject others.
    Nine,
}

/// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen, SmolLM3.
pub(crate) static HERMES: CallFormat = CallFormat {
    signs: &["<tool_call>"],
    openings: &["<tool_call>"],
    closing: Some("</tool_call>"),
    is_bare: false,
    body: Body::Json,
    around_all: ["", ""],
    around_parts: hermes::CALL,
    separator: hermes::SEPARATOR,
    ids: Ids::Prefixed,
};

/// `[TOOL_CALLS]name[ARGS]{..}`, in some versions with `[CALL_ID]` and an id after the name: Mistral's tokenizers from
/// version 11 on.
pub(crate) static MISTRAL_NAMED: CallFormat = CallFormat {
    signs: &["[ARGS]"],
    openings: &["[TOOL_CALLS]"],
    closing: None,
    is_bare: false,
    body: Body::Named { before_id: "[CALL_ID]", before_arguments: "[ARGS]" },
    around_all: ["", ""],
    around_parts: ["[TOOL_CALLS]", "[ARGS]", ""],
    separator: "",
    ids: Ids::Nine,
};

/// `[TOOL_CALLS][{"name": .., "arguments": {..}}]`: Mistral's earlier tokenizers.
pub(crate) static MISTRAL: CallFormat = CallFormat {
    signs: &["[TOOL_CALLS]"],
    openings: &["[TOOL_CALLS]"],
    around_all: ["[TOOL_CALLS][", "]"],
    ids: Ids::Nine,
    ..JSON_LIST
};

/// `<|tool_call|>[{"name": .., "arguments": {..}}]`: Granite 3, which in some versions writes `<tool_call>`.
pub(crate) static GRANITE: CallFormat = CallFormat {
    signs: &["<|tool_call|>"],
    openings: &["<|tool_call|>", "<tool_call>"],
    around_all: ["<|tool_call|>[", "]"],
    ..JSON_LIST
};

/// `{"name": .., "parameters": {..}}`, with or without `<|python_tag|>` in front: Llama 3.
pub(crate) static LLAMA: CallFormat = CallFormat {
    signs: &["<|python_tag|>", "\"parameters\""],
    openings: &["<|python_tag|>"],
    closing: None,
    is_bare: true,
    body: Body::Json,
    around_all: ["", ""],
    around_parts: ["{\"name\": \"", "\", \"parameters\": ", "}"],
    separator: "; ",
    ids: Ids::Prefixed,
};

/// What formats with one list of all calls have in common.
const JSON_LIST: CallFormat = CallFormat {
    signs: &[],
    openings: &[],
    closing: None,
    is_bare: false,
    body: Body::Json,
    around_all: ["[", "]"],
    around_parts: ["{\"name\": \"", "\", \"arguments\": ", "}"],
    separator: ", ",
    ids: Ids::Prefixed,
};

/// All formats. If a template has signs of several, the first one counts.
static FORMATS: [&CallFormat; 5] = [&HERMES, &MISTRAL_NAMED, &MISTRAL, &GRANITE, &LLAMA];

impl CallFormat {
    /// The format of a chat template that takes tools, by its source. `None` if it is not in the table.
    pub(crate) fn of_template(source: &str) -> Option<&'static Self> {
        FORMATS.into_iter().find(|format| format.signs.iter().any(|sign| source.contains(sign)))
    }

    /// All marks. In many models they are special tokens.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &'static str> {
        let inner = match self.body {
            Body::Json => [None, None],
            Body::Named { before_id, before_arguments } => [Some(before_id), Some(before_arguments)],
        };
        self.openings.iter().copied().chain(self.closing).chain(inner.into_iter().flatten())
    }

    /// Calls as a model writes them, from the names of functions and arguments as JSON.
    #[cfg(test)]
    pub(crate) fn written(&self, calls: &[(String, String)]) -> String {
        let ([first, last], [before, between, after]) = (self.around_all, self.around_parts);
        let calls = calls.iter().map(|(name, arguments)| format!("{before}{name}{between}{arguments}{after}"));
        format!("{first}{}{last}", calls.collect::<Vec<_>>().join(self.separator))
    }

    /// An id for a call.
    pub(crate) fn fresh_id(&self) -> String {
        match self.ids {
            Ids::Prefixed => fresh_id("call_"),
            Ids::Nine => fresh_word(9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_call_format_is_detected_from_the_chat_template() {
        // Lines of the templates of Qwen 2.5, Mistral 7B v0.3, Mistral Nemo, Devstral, Magistral, Granite 3.3 and
        // Llama 3.1, shortened.
        for (source, format) in [
            (r#"{{- '\n<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}"#, &HERMES),
            (r#"{{- "[TOOL_CALLS] [" }}{%- set out = tool_call.function|tojson %}{{- out[:-1] }}"#, &MISTRAL),
            (r#"{{- "[TOOL_CALLS][" }}{%- set out = tool_call.function|tojson %}{{- out[:-1] }}"#, &MISTRAL),
            (r#"{{- "[TOOL_CALLS]" + tool['function']['name'] + "[ARGS]" + arguments }}"#, &MISTRAL_NAMED),
            (r#"{{- '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments|tojson }}"#, &MISTRAL_NAMED),
            ("respond only with <|tool_call|> followed by a JSON list of tools used.", &GRANITE),
            (r#"{{- 'Respond in the format {"name": name, "parameters": dictionary}.' }}"#, &LLAMA),
            (r#"{{- "<|python_tag|>" + tool_call.name + ".call(" }}"#, &LLAMA),
        ] {
            assert_eq!(CallFormat::of_template(source), Some(format), "{source}");
        }
        for source in ["", "{{ message.tool_calls }}", "<|tool_call_start|>[f(x=1)]<|tool_call_end|>"] {
            assert_eq!(CallFormat::of_template(source), None, "{source}");
        }
    }

    /// The marks that the grammar writes are the ones that the parser looks for.
    #[test]
    fn written_tool_calls_start_and_end_with_the_marks_of_their_format() {
        for format in FORMATS {
            let call = format.written(&[("f".into(), "{}".into())]);
            let is_marked = format.openings.iter().any(|mark| call.starts_with(mark));
            assert!(is_marked || (format.is_bare && call.starts_with('{')), "{call}");
            assert!(format.closing.is_none_or(|mark| call.ends_with(mark)), "{call}");
        }
    }

    #[test]
    fn fresh_tool_call_ids_have_the_form_of_their_format() {
        for format in FORMATS {
            let id = format.fresh_id();
            assert_ne!(id, format.fresh_id());
            match format.ids {
                Ids::Prefixed => assert!(id.starts_with("call_"), "{id}"),
                Ids::Nine => {
                    assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
                }
            }
        }
    }
}
