//! Tools: what a client offers, which of them the model is to call, and how the model writes its calls.
//!
//! A model writes calls in the format that its chat template names. A template that knows no tools gets them as a section
//! of the system message, in Hermes' format, and earlier calls and results as text.

use hearth_model::{
    chat::{ChatTemplate, Message},
    constraint::in_lark,
    tokenizer::Tokenizer,
};
use serde_json::{Map, Value, json};

use super::{
    error::ApiError,
    fields::{Fields, must_be, shown},
    schema,
    structured::{Structure, check_name, missing, one_only},
    tool_parser::{CallFormat, ToolParser},
};

/// Most tools in one request; OpenAI's.
const MAX_TOOLS: usize = 128;

/// Most calls in an answer that must call.
const MAX_CALLS: usize = 16;

/// The tools that an answer may or must call.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    list: Vec<Tool>,
    choice: Choice,
    n_calls: Calls,
}

#[derive(Clone, Debug)]
struct Tool {
    name: String,
    /// A schema of an object.
    parameters: Value,
    /// As the client gave it, for the template.
    json: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    /// The model decides.
    Auto,
    /// Some tool.
    Required,
    /// The tool of this name.
    Named(String),
}

/// `parallel_tool_calls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    One,
    Several,
}

/// Where the tools are told if the template does not tell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the system message, which may be there for them alone.
    System,
    /// In the first message, whoever speaks: some templates know no system message.
    First,
}

/// How tools reach a model and calls come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToolStyle {
    /// `None`: a format of the template's own, which is not read here.
    format: Option<CallFormat>,
    /// Whether the template writes the tools itself.
    is_in_template: bool,
    /// Whether the template writes earlier calls itself.
    has_history: bool,
    /// Whether it writes them as it is told here to make new ones, where it does not write the tools itself.
    is_alike: bool,
}

impl ToolStyle {
    pub(crate) fn of(template: &ChatTemplate) -> Self {
        let source = template.tools_source();
        let is_in_template = template.takes_tools();
        let format = if !is_in_template || source.contains("<tool_call>") {
            Some(CallFormat::Hermes)
        } else if source.contains("<|python_tag|>") || source.contains("\"parameters\"") {
            Some(CallFormat::Llama)
        } else {
            None
        };
        let has_history = is_in_template || source.contains("tool_call");
        Self { format, is_in_template, has_history, is_alike: is_in_template || source.contains("<tool_call>") }
    }

    /// Whether the tools are told by messages.
    pub(crate) fn is_by_messages(self) -> bool {
        !self.is_in_template
    }

    /// What the template is given as tools.
    pub(crate) fn template_tools(self, tools: Option<&Tools>) -> Option<Value> {
        tools.filter(|_| self.is_in_template).map(|tools| tools.list.iter().map(|tool| tool.json.clone()).collect())
    }

    /// The messages with what the template does not write by itself.
    pub(crate) fn messages(self, mut messages: Vec<Message>, tools: Option<&Tools>, place: Place) -> Vec<Message> {
        // With tools, earlier calls are to look as new ones should.
        let is_written = if tools.is_some() { self.is_alike } else { self.has_history };
        if !is_written {
            messages = messages.into_iter().map(as_text).fold(Vec::new(), joined);
        }
        if let Some(tools) = tools.filter(|_| !self.is_in_template) {
            let section = tools.section();
            match (messages.first_mut(), place) {
                (Some(first), _) if matches!(first.role.as_str(), "system" | "developer") => {
                    first.content = format!("{}\n\n{section}", first.content);
                }
                (Some(first), Place::First) => first.content = format!("{section}\n\n{}", first.content),
                _ => messages.insert(0, Message::new("system", section)),
            }
        }
        messages
    }
}

/// A call or a result as the text that stands for it.
fn as_text(mut message: Message) -> Message {
    if message.role == "tool" {
        return Message::new("user", format!("<tool_response>\n{}\n</tool_response>", message.content));
    }
    let Some(Value::Array(calls)) = message.extra.shift_remove("tool_calls") else { return message };
    for call in &calls {
        let part = |name: &str| call.pointer(name).cloned().unwrap_or_default();
        let (name, arguments) = (part("/function/name"), part("/function/arguments"));
        let separator = if message.content.is_empty() { "" } else { "\n" };
        let call = format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>");
        message.content.push_str(&format!("{separator}{call}"));
    }
    message
}

/// Results of several calls are one message: some templates want the speakers to take turns.
fn joined(mut messages: Vec<Message>, message: Message) -> Vec<Message> {
    let is_result = |message: &Message| message.role == "user" && message.content.starts_with("<tool_response>");
    match messages.last_mut() {
        Some(last) if is_result(last) && is_result(&message) => {
            last.content = format!("{}\n{}", last.content, message.content);
        }
        _ => messages.push(message),
    }
    messages
}

fn tool_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "type": { "enum": ["function"] },
            "function": {
                "type": "object",
                "properties": {
                    "name": { "type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[a-zA-Z0-9_-]+$" },
                    "description": { "type": ["string", "null"] },
                    "parameters": { "type": ["object", "null"] },
                    "strict": { "type": ["boolean", "null"] },
                },
                "required": ["name"],
            },
        },
        "required": ["type", "function"],
    })
}

fn choice_schema() -> Value {
    let named = json!({
        "type": "object",
        "properties": {
            "type": { "enum": ["function"] },
            "function": { "type": "object", "properties": { "name": schema::string() }, "required": ["name"] },
        },
        "required": ["type", "function"],
    });
    schema::any_of([json!({ "type": "string", "enum": ["none", "auto", "required"] }), named])
}

impl Tools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`. `None` if nothing may be called.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let list = match fields.take_as("tools", || schema::array(tool_schema(), 0)) {
            None => Vec::new(),
            Some(Value::Array(items)) if items.len() <= MAX_TOOLS => tools(items)?,
            Some(Value::Array(items)) => {
                let message = format!(
                    "Invalid `tools`: array too long. Expected an array with maximum length {MAX_TOOLS}, but got an array \
                     with length {} instead.",
                    items.len()
                );
                return Err(ApiError::invalid("tools", message));
            }
            Some(other) => return Err(must_be("tools", "an array", &other)),
        };
        let only_with_tools = |name: &'static str| {
            let message = format!("Invalid value for `{name}`: `{name}` is only allowed when `tools` are specified.");
            ApiError::invalid(name, message)
        };
        let choice = choice(fields.take_as("tool_choice", choice_schema), &list)?;
        let parallel = fields.flag("parallel_tool_calls")?;
        if list.is_empty() {
            return match (choice, parallel) {
                (Some(Some(_)), _) => Err(only_with_tools("tool_choice")),
                (_, Some(_)) => Err(only_with_tools("parallel_tool_calls")),
                _ => Ok(None),
            };
        }
        let n_calls = if parallel == Some(false) { Calls::One } else { Calls::Several };
        Ok(match choice {
            Some(None) => None,
            Some(Some(choice)) => Some(Self { list, choice, n_calls }),
            None => Some(Self { list, choice: Choice::Auto, n_calls }),
        })
    }

    /// What the answer must look like: calls if it must call something, else `form` or calls.
    ///
    /// # Errors
    /// The answer would have two forms, or the model decides but writes calls in a way that is not known here.
    pub(crate) fn structure(&self, style: ToolStyle, form: Option<&Structure>) -> Result<Option<Structure>, ApiError> {
        if self.choice != Choice::Auto {
            let calls = self.calls(style.format.unwrap_or(CallFormat::Hermes));
            let structure = Structure::calls(format!("start: calls\n{calls}"), self.schemas());
            return match form {
                None => Ok(Some(structure)),
                Some(form) => Err(one_only("tool_choice", form.param())),
            };
        }
        match (style.format, form) {
            (Some(_), None) => Ok(None),
            (Some(format), Some(form)) => match form.or_calls(&self.calls(format), self.schemas()) {
                Some(structure) => Ok(Some(structure)),
                None => Err(one_only("tools", form.param())),
            },
            (None, _) => {
                let message = "`tool_choice` `auto` is not supported with this model: its chat template writes calls in a \
                               format other than `<tool_call>` or Llama 3's JSON\n\
                               hint: `tool_choice` `required` or a named function works with every model";
                Err(ApiError::invalid("tool_choice", message))
            }
        }
    }

    /// Reads the calls out of the answer's text.
    pub(crate) fn parser(&self, style: ToolStyle) -> ToolParser {
        let format = style.format.unwrap_or(CallFormat::Hermes);
        let names = self.list.iter().map(|tool| tool.name.clone()).collect();
        match self.choice {
            Choice::Auto => ToolParser::searching(format, names, self.n_calls),
            Choice::Required | Choice::Named(_) => ToolParser::following(format),
        }
    }

    /// Whether the marks of calls can only be seen with special tokens written out.
    pub(crate) fn hides_marks(&self, style: ToolStyle, tokenizer: &Tokenizer) -> bool {
        let marks = style.format.map_or(&[] as &[&str], CallFormat::marks);
        let is_special = |mark: &&str| tokenizer.token_id(mark).is_some_and(|id| tokenizer.is_special(id));
        self.choice == Choice::Auto && marks.iter().any(is_special)
    }

    fn schemas(&self) -> Vec<(String, Value)> {
        let path = |index: usize| format!("tools[{index}].function.parameters");
        self.list.iter().enumerate().map(|(index, tool)| (path(index), tool.parameters.clone())).collect()
    }

    /// Calls as the model would write them, with arguments of the right form: the rule `calls`.
    fn calls(&self, format: CallFormat) -> String {
        let callable: Vec<&Tool> = match &self.choice {
            Choice::Named(name) => self.list.iter().filter(|tool| tool.name == *name).collect(),
            _ => self.list.iter().collect(),
        };
        let is_one = self.n_calls == Calls::One || matches!(self.choice, Choice::Named(_));
        let text = |text: &str| Value::from(text).to_string();
        let (open, close) = format.brackets();
        let more =
            if is_one { String::new() } else { format!(" ({} call){{0,{}}}", text(format.separator()), MAX_CALLS - 1) };
        let mut rules = vec![
            format!("calls: call{more}"),
            format!(
                "call: {}",
                (0..callable.len()).map(|index| format!("call_{index}")).collect::<Vec<_>>().join(" | ")
            ),
        ];
        for (index, tool) in callable.into_iter().enumerate() {
            let before = format!("{open}{{\"name\": \"{}\", \"{}\": ", tool.name, format.arguments_key());
            let after = format!("}}{close}");
            rules.push(format!("call_{index}: {} arguments_{index} {}", text(&before), text(&after)));
            rules.push(format!("arguments_{index}: {}", in_lark(&tool.parameters)));
        }
        rules.join("\n")
    }

    /// For templates that write no tools: in the words of none of them, in Hermes' format.
    fn section(&self) -> String {
        let signatures: Vec<String> = self.list.iter().map(|tool| tool.json.to_string()).collect();
        format!(
            "You can call the functions whose signatures follow, one JSON object per line:\n<tools>\n{}\n</tools>\n\n\
             To call a function, write a JSON object with its name and its arguments between tags:\n<tool_call>\n\
             {{\"name\": \"the function's name\", \"arguments\": {{\"an argument\": \"its value\"}}}}\n</tool_call>",
            signatures.join("\n")
        )
    }
}

fn tools(items: Vec<Value>) -> Result<Vec<Tool>, ApiError> {
    let mut tools: Vec<Tool> = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let tool = tool(index, item)?;
        if tools.iter().any(|other| other.name == tool.name) {
            let path = format!("tools[{index}].function.name");
            let message =
                format!("Invalid `{path}`: function names must be unique, but `{}` is used twice.", tool.name);
            return Err(ApiError::invalid(path, message));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(index: usize, json: Value) -> Result<Tool, ApiError> {
    let path = |rest: &str| format!("tools[{index}]{rest}");
    let wrong = |rest: &str, what: &str, given: &Value| {
        let path = path(rest);
        let message = format!("Invalid type for `{path}`: expected {what}, but got {} instead.", shown(given));
        ApiError::invalid(path, message)
    };
    let Some(members) = json.as_object() else { return Err(wrong("", "an object", &json)) };
    match members.get("type").unwrap_or(&Value::Null) {
        Value::Null => return Err(missing(path(".type"))),
        kind if kind == "function" => {}
        kind => {
            let path = path(".type");
            let message = format!("Invalid value: {}. Supported values for `{path}` are: `function`.", shown(kind));
            return Err(ApiError::invalid(path, message));
        }
    }
    let function = match members.get("function").unwrap_or(&Value::Null) {
        Value::Null => return Err(missing(path(".function"))),
        Value::Object(function) => function,
        other => return Err(wrong(".function", "an object", other)),
    };
    let name = match function.get("name").unwrap_or(&Value::Null) {
        Value::Null => return Err(missing(path(".function.name"))),
        Value::String(name) => name.clone(),
        other => return Err(wrong(".function.name", "a string", other)),
    };
    check_name(&path(".function.name"), &name)?;
    match function.get("description").unwrap_or(&Value::Null) {
        Value::Null | Value::String(_) => {}
        other => return Err(wrong(".function.description", "a string", other)),
    }
    match function.get("strict").unwrap_or(&Value::Null) {
        Value::Null | Value::Bool(_) => {}
        other => return Err(wrong(".function.strict", "a boolean", other)),
    }
    let parameters = match function.get("parameters").unwrap_or(&Value::Null) {
        Value::Null => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        Value::Object(schema) => object_schema(schema.clone(), &name, || path(".function.parameters"))?,
        other => return Err(wrong(".function.parameters", "an object", other)),
    };
    Ok(Tool { name, parameters, json })
}

/// The schema of arguments, which are an object.
fn object_schema(mut schema: Map<String, Value>, name: &str, path: impl Fn() -> String) -> Result<Value, ApiError> {
    match schema.get("type") {
        Some(kind) if kind == "object" => {}
        None => {
            schema.insert("type".into(), "object".into());
        }
        Some(kind) => {
            let message = format!(
                "Invalid schema for function `{name}`: schema must be a JSON Schema of `type: \"object\"`, got `type: \
                 {kind}`."
            );
            return Err(ApiError::invalid(path(), message));
        }
    }
    Ok(Value::Object(schema))
}

/// `None` if nothing is said, `Some(None)` for `none`.
fn choice(value: Option<Value>, tools: &[Tool]) -> Result<Option<Option<Choice>>, ApiError> {
    const NAME: &str = "tool_choice";
    const ALLOWED: &str = "`none`, `auto`, `required` or a function: \
                           {\"type\": \"function\", \"function\": {\"name\": \"...\"}}";
    let Some(value) = value else { return Ok(None) };
    let choice = match &value {
        Value::String(word) => match word.as_str() {
            "none" => None,
            "auto" => Some(Choice::Auto),
            "required" => Some(Choice::Required),
            _ => return Err(must_be(NAME, ALLOWED, &value)),
        },
        Value::Object(members) if members.get("type").is_some_and(|kind| kind == "function") => {
            let name = value.pointer("/function/name").and_then(Value::as_str);
            let Some(name) = name else { return Err(missing("tool_choice.function.name")) };
            if !tools.is_empty() && !tools.iter().any(|tool| tool.name == name) {
                let message = format!("Tool choice {} not found in `tools` parameter.", shown(&Value::from(name)));
                return Err(ApiError::invalid(NAME, message));
            }
            Some(Choice::Named(name.to_owned()))
        }
        _ => return Err(must_be(NAME, ALLOWED, &value)),
    };
    Ok(Some(choice))
}
