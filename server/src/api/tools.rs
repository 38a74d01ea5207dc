//! Tools: the functions that a client offers, the choice among them, and the format of calls.
//!
//! A model writes calls in the format of its chat template. If the template does not support tools, they are given as text in
//! Hermes' format ([`hearth_model::chat::hermes`]).

use std::borrow::Cow;

use hearth_model::{
    TokenId,
    chat::ChatTemplate,
    constraint::{check_enforceable, in_lark, lenient},
    tokenizer::Tokenizer,
};
use serde_json::{Map, Value, json};

use super::{
    call_format::{CallFormat, HERMES},
    error::ApiError,
    fields::{Fields, missing, must_be, shown},
    schema,
    structured::{CallGrammar, Structure, one_only, refusal},
    tool_parser::{Calls, ToolParser},
};

/// Maximum number of tools per request, as at OpenAI.
const MAX_TOOLS: usize = 128;

/// Maximum number of calls in an answer whose calls follow a grammar.
const MAX_CALLS: usize = 16;

/// The tools that an answer may or must call.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    list: Vec<Tool>,
    choice: ToolChoice,
    n_calls: Calls,
}

#[derive(Clone, Debug)]
struct Tool {
    name: String,
    /// The schema of an object.
    parameters: Value,
    /// As the client sent it, for the template.
    json: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ToolChoice {
    /// The model decides.
    Auto,
    /// Any tool.
    Required,
    /// The tool with this name.
    Named(String),
}

/// How tools are described to a model and how it writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToolStyle {
    /// `None`: a format of the template's own, which Hearth cannot parse.
    format: Option<&'static CallFormat>,
    /// Whether the template writes the tools itself.
    is_in_template: bool,
}

impl ToolStyle {
    pub(crate) fn of(template: &ChatTemplate) -> Self {
        let source = template.tools_source();
        let is_in_template = template.takes_tools();
        let format = if is_in_template { CallFormat::of_template(source) } else { Some(&HERMES) };
        Self { format, is_in_template }
    }

    /// The format of calls that the server writes or enforces.
    fn enforced_format(self) -> &'static CallFormat {
        self.format.unwrap_or(&HERMES)
    }

    /// Whether marks of calls are special tokens, which must be kept in the text.
    pub(crate) fn has_special_marks(self, tokenizer: &Tokenizer) -> bool {
        let is_special = |mark| tokenizer.token_id(mark).is_some_and(|id| tokenizer.is_special(id));
        self.enforced_format().marks().any(is_special)
    }

    /// The tools that the template receives.
    pub(crate) fn template_tools(self, tools: Option<&Tools>) -> Option<Value> {
        tools.filter(|_| self.is_in_template).map(|tools| tools.json().into())
    }
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
    /// The tools as the client sent them.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.list.iter().map(|tool| tool.json.clone()).collect()
    }

    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`. `None` if nothing may be called.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let is_given = fields.has("tools");
        let items = fields.objects("tools")?.unwrap_or_default();
        if items.len() > MAX_TOOLS {
            let message = format!(
                "Invalid `tools`: array too long. Expected an array with maximum length {MAX_TOOLS}, but got an array with \
                 length {} instead.",
                items.len()
            );
            return Err(ApiError::invalid("tools", message));
        }
        let list = tools(items)?;
        let only_with_tools = |name: &'static str| {
            let message = format!("Invalid value for `{name}`: `{name}` is only allowed when `tools` are specified.");
            ApiError::invalid(name, message)
        };
        let choice = choice(fields.take_as("tool_choice", choice_schema), &list)?;
        let parallel = fields.flag("parallel_tool_calls")?;
        if list.is_empty() {
            // An agent that has no tools just now may say how it would use them.
            return match (choice, parallel) {
                (Some(Some(ToolChoice::Auto)) | Some(None) | None, _) if is_given => Ok(None),
                (Some(Some(_)), _) => Err(only_with_tools("tool_choice")),
                (_, Some(_)) => Err(only_with_tools("parallel_tool_calls")),
                _ => Ok(None),
            };
        }
        let n_calls = if parallel == Some(false) { Calls::One } else { Calls::Several };
        Ok(match choice {
            Some(None) => None,
            Some(Some(choice)) => Some(Self { list, choice, n_calls }),
            None => Some(Self { list, choice: ToolChoice::Auto, n_calls }),
        })
    }

    /// The structure of the answer: calls if the answer must call, else `form` or calls.
    ///
    /// # Errors
    /// The answer would have two structures, or the model decides but its format of calls is unknown.
    pub(crate) fn structure(
        &self,
        style: ToolStyle,
        tokenizer: &Tokenizer,
        form: Option<&Structure>,
    ) -> Result<Option<Structure>, ApiError> {
        if self.choice != ToolChoice::Auto {
            return match form {
                None => Ok(Some(Structure::calls(self.calls(style.enforced_format(), tokenizer)))),
                Some(form) => Err(one_only("tool_choice", form.param())),
            };
        }
        match (style.format, form) {
            (Some(_), None) => Ok(None),
            (Some(format), Some(form)) => match form.or_calls(self.calls(format, tokenizer)) {
                Some(structure) => Ok(Some(structure)),
                None => Err(one_only("tools", form.param())),
            },
            (None, _) => {
                let message = "`tool_choice` `auto` is not supported with this model: its chat template writes calls in a \
                               format other than those of Hermes, Llama 3, Mistral and Granite 3\n\
                               hint: `tool_choice` `required` or a named function works with every model";
                Err(ApiError::invalid("tool_choice", message))
            }
        }
    }

    /// The parser for the calls in the answer's text.
    pub(crate) fn parser(&self, style: ToolStyle) -> ToolParser {
        let format = style.enforced_format();
        let names = self.list.iter().map(|tool| tool.name.clone()).collect();
        match self.choice {
            ToolChoice::Auto => ToolParser::searching(format, names, self.n_calls),
            ToolChoice::Required | ToolChoice::Named(_) => ToolParser::following(format),
        }
    }

    fn schemas(&self) -> Vec<(String, Value)> {
        let path = |index: usize| format!("tools[{index}].function.parameters");
        self.list.iter().enumerate().map(|(index, tool)| (path(index), tool.parameters.clone())).collect()
    }

    /// Calls in the model's format, with arguments that follow the schema.
    fn calls(&self, format: &CallFormat, tokenizer: &Tokenizer) -> CallGrammar {
        let marks = special_marks(format, tokenizer);
        let special_tokens = marks.iter().map(|&(_, id)| id).collect();
        CallGrammar { rules: self.call_rules(format, &marks), schemas: self.schemas(), special_tokens }
    }

    /// The rule `calls` and those that it needs.
    fn call_rules(&self, format: &CallFormat, marks: &[(&str, TokenId)]) -> String {
        let callable: Vec<&Tool> = match &self.choice {
            ToolChoice::Named(name) => self.list.iter().filter(|tool| tool.name == *name).collect(),
            _ => self.list.iter().collect(),
        };
        let is_one = self.n_calls == Calls::One || matches!(self.choice, ToolChoice::Named(_));
        let text = |text: &str| text_in_lark(text, marks);
        let ([first, last], [before, between, after]) = (format.around_all, format.around_parts);
        let more =
            if is_one { String::new() } else { format!(" ({} call){{0,{}}}", text(format.separator), MAX_CALLS - 1) };
        let mut rules = vec![
            format!("calls: {} call{more} {}", text(first), text(last)),
            format!(
                "call: {}",
                (0..callable.len()).map(|index| format!("call_{index}")).collect::<Vec<_>>().join(" | ")
            ),
        ];
        for (index, tool) in callable.into_iter().enumerate() {
            let before = format!("{before}{}{between}", tool.name);
            rules.push(format!("call_{index}: {} arguments_{index} {}", text(&before), text(after)));
            rules.push(format!("arguments_{index}: {}", in_lark(&tool.parameters)));
        }
        rules.join("\n")
    }
}

/// The marks of a format that are special tokens.
fn special_marks(format: &CallFormat, tokenizer: &Tokenizer) -> Vec<(&'static str, TokenId)> {
    let special = |mark: &str| tokenizer.token_id(mark).filter(|&id| tokenizer.is_special(id));
    format.marks().filter_map(|mark| Some((mark, special(mark)?))).collect()
}

/// A text in Lark: strings, and the ids of the marks in it.
pub(crate) fn text_in_lark(text: &str, marks: &[(&str, TokenId)]) -> String {
    let (mut parts, mut rest) = (Vec::new(), text);
    let quoted = |text: &str| Value::from(text).to_string();
    while let Some((at, mark, id)) = marks.iter().filter_map(|&(mark, id)| Some((rest.find(mark)?, mark, id))).min() {
        let (before, after) = (&rest[..at], &rest[at + mark.len()..]);
        parts.extend((!before.is_empty()).then(|| quoted(before)));
        parts.push(format!("<[{id}]>"));
        rest = after;
    }
    parts.extend((!rest.is_empty()).then(|| quoted(rest)));
    parts.join(" ")
}

fn tools(items: Vec<Fields>) -> Result<Vec<Tool>, ApiError> {
    let mut tools: Vec<Tool> = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let tool = tool(item)?;
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

fn tool(mut item: Fields) -> Result<Tool, ApiError> {
    let json = item.to_value();
    item.require("type", |item, name| item.one_of(name, &[("function", ())]))?;
    let mut function = item.require("function", Fields::object)?;
    let name = function.require("name", Fields::name)?;
    function.string("description")?;
    let is_strict = function.flag("strict")?.unwrap_or(false);
    let parameters = match function.any_object("parameters")? {
        None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        Some(schema) => object_schema(schema, &name, || function.path("parameters"))?,
    };
    let parameters = if is_strict {
        check_enforceable(&parameters).map_err(|error| refusal(&function.path("parameters"), &error))?;
        parameters
    } else {
        lenient(parameters, &name)
    };
    // The template receives all fields and may read them.
    item.ignore_rest();
    function.ignore_rest();
    Ok(Tool { name, parameters, json })
}

/// The schema of arguments, which must be an object.
fn object_schema(
    mut schema: Map<String, Value>,
    name: &str,
    path: impl Fn() -> Cow<'static, str>,
) -> Result<Value, ApiError> {
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
    // A function whose schema names no parameters has none.
    const SAYS_NOTHING: [&str; 6] = ["type", "title", "description", "$schema", "$id", "$comment"];
    if schema.keys().all(|keyword| SAYS_NOTHING.contains(&keyword.as_str())) {
        schema.insert("properties".into(), json!({}));
    }
    Ok(Value::Object(schema))
}

/// `None` if absent, `Some(None)` for `none`.
fn choice(value: Option<Value>, tools: &[Tool]) -> Result<Option<Option<ToolChoice>>, ApiError> {
    const NAME: &str = "tool_choice";
    const ALLOWED: &str = "`none`, `auto`, `required` or a function: \
                           {\"type\": \"function\", \"function\": {\"name\": \"...\"}}";
    let Some(value) = value else { return Ok(None) };
    let choice = match &value {
        Value::String(word) => match word.as_str() {
            "none" => None,
            "auto" => Some(ToolChoice::Auto),
            "required" => Some(ToolChoice::Required),
            _ => return Err(must_be(NAME, ALLOWED, &value)),
        },
        Value::Object(members) if members.get("type").is_some_and(|kind| kind == "function") => {
            let name = value.pointer("/function/name").and_then(Value::as_str);
            let Some(name) = name else { return Err(missing("tool_choice.function.name")) };
            if !tools.is_empty() && !tools.iter().any(|tool| tool.name == name) {
                let message = format!("Tool choice {} not found in `tools` parameter.", shown(&Value::from(name)));
                return Err(ApiError::invalid(NAME, message));
            }
            Some(ToolChoice::Named(name.to_owned()))
        }
        _ => return Err(must_be(NAME, ALLOWED, &value)),
    };
    Ok(Some(choice))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::{
        super::call_format::{GRANITE, LLAMA, MISTRAL, MISTRAL_NAMED},
        *,
    };

    fn style(source: &str) -> ToolStyle {
        ToolStyle::of(&ChatTemplate::new(source, Path::new("chat_template.jinja")).unwrap())
    }

    #[test]
    fn tool_style_uses_the_template_format_only_if_it_takes_tools() {
        assert_eq!(style("{{ tools }}{{ '[TOOL_CALLS][' }}").format, Some(&MISTRAL));
        assert_eq!(style("{{ tools }}{{ '<|tool_call|>' }}").format, Some(&GRANITE));
        assert_eq!(style("{{ tools }}{{ '<tools>' }}").format, None);
        assert_eq!(style("{{ '[TOOL_CALLS][' }}").format, Some(&HERMES));
    }

    /// The rules for calls of two functions.
    fn rules(format: &CallFormat, marks: &[(&str, TokenId)], choice: ToolChoice) -> String {
        let schema = json!({ "type": "object" });
        let tool = |name: &str| Tool { name: name.into(), parameters: schema.clone(), json: Value::Null };
        let tools = Tools { list: vec![tool("f"), tool("g")], choice, n_calls: Calls::Several };
        tools.call_rules(format, marks).replace(&in_lark(&schema), "JSON")
    }

    #[test]
    fn tool_grammar_writes_special_token_marks_by_id() {
        let g = || ToolChoice::Named("g".into());
        let call = r#"call: call_0
call_0: "{\"name\": \"g\", \"arguments\": " arguments_0 "}"
arguments_0: JSON"#;
        let marks = [("[TOOL_CALLS]", 5), ("[ARGS]", 7), ("<|tool_call|>", 8)];
        assert_eq!(rules(&MISTRAL, &marks, g()), format!("calls: <[5]> \"[\" call \"]\"\n{call}"));
        assert_eq!(rules(&MISTRAL, &[], g()), format!("calls: \"[TOOL_CALLS][\" call \"]\"\n{call}"));
        assert_eq!(rules(&GRANITE, &marks, g()), format!("calls: <[8]> \"[\" call \"]\"\n{call}"));
        let named = "calls:  call \ncall: call_0\ncall_0: <[5]> \"g\" <[7]> arguments_0 \narguments_0: JSON";
        assert_eq!(rules(&MISTRAL_NAMED, &marks, g()), named);
    }

    #[test]
    fn tool_grammar_allows_up_to_16_parallel_calls() {
        for (format, more) in [
            (&HERMES, "calls:  call (\"\\n\" call){0,15} \n"),
            (&LLAMA, "calls:  call (\"; \" call){0,15} \n"),
            (&MISTRAL, "calls: \"[TOOL_CALLS][\" call (\", \" call){0,15} \"]\"\n"),
            (&MISTRAL_NAMED, "calls:  call ( call){0,15} \n"),
        ] {
            let rules = rules(format, &[], ToolChoice::Required);
            assert!(rules.starts_with(more) && rules.contains("call: call_0 | call_1\n"), "{rules}");
        }
    }
}
