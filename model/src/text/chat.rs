//! Chat templates: convert messages to the text, and the token ids, that a model was tuned on.
//!
//! Scope: reading messages and templates, rendering them as `transformers` does, and tokenizing the result. Serving and
//! training share this code, so they cannot differ.
//!
//! A template is a Jinja program that comes with the model. It has access only to its arguments, and its size,
//! instructions, time and memory are limited (`environment` and `budget`), because clients may send their own
//! templates.

mod assistant_mask;
mod budget;
mod environment;
mod files;
pub mod hermes;
mod instructions;
mod marks;
mod messages;
mod operations;
mod parts;
mod python;
mod rendering;
pub mod thought;

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use minijinja::{Environment, value::Serde};
use serde_json::{Map, Value, json};

pub use self::assistant_mask::{MaskSource, MaskedChat};
pub(crate) use self::files::{DEFAULT_FILE, TOOL_USE_FILE};
pub use self::messages::{Message, MessageError};
use self::thought::ThoughtForm;
use crate::{
    TokenId,
    error::{Error, Result},
    text::tokenizer::{EncodeOptions, Tokenizer},
};

/// The inputs of a template besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderContext {
    /// How the conversation ends.
    pub ending: Ending,
    /// The string of the tokenizer's `bos` token. `None` leaves the variable undefined, here and below.
    pub bos_token: Option<String>,
    /// The string of the tokenizer's `eos` token.
    pub eos_token: Option<String>,
    /// The string of the tokenizer's `pad` token.
    pub pad_token: Option<String>,
    /// The string of the tokenizer's `unk` token.
    pub unk_token: Option<String>,
    /// The tools that the model may call: a list of JSON schemas.
    pub tools: Option<Value>,
    /// Further variables, such as `enable_thinking`; a client's `chat_template_kwargs`.
    pub kwargs: Map<String, Value>,
    /// For [`ChatTemplate::encode`]: also add the special tokens of the tokenizer's post-processor, for templates that
    /// omit them.
    pub add_special_tokens: bool,
}

/// How a rendered conversation ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// After the last message, closed as the template does it.
    #[default]
    Closed,
    /// With the start of an assistant message, so that the model answers: `add_generation_prompt`.
    GenerationPrompt,
    /// After the last message's text, so that the model continues it: `continue_final_message`.
    OpenMessage,
}

impl RenderContext {
    /// A context with the tokenizer's special tokens that asks for an answer, without tools.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self {
            ending: Ending::GenerationPrompt,
            bos_token: tokenizer.bos().map(|token| token.content),
            eos_token: tokenizer.eos().map(|token| token.content),
            pad_token: tokenizer.pad().map(|token| token.content),
            unk_token: tokenizer.unk().map(|token| token.content),
            tools: None,
            kwargs: Map::new(),
            add_special_tokens: false,
        }
    }
}

/// The chat template of a model. Clones share one compiled copy.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    sources: Arc<Sources>,
    takes_tools: bool,
    asks_for_none: bool,
    /// Whether it reads the member `reasoning` of messages.
    reads_reasoning: bool,
    /// Whether it reads thoughts as parts of the content, as Mistral's do.
    reads_thinking_parts: bool,
    /// Whether it reads contents only as lists of parts; found when it is first used.
    needs_parts: Arc<OnceLock<bool>>,
}

/// The sources of a model's templates, as its files have them.
#[derive(Debug)]
struct Sources {
    default: String,
    /// Replaces the default if there are tools.
    tool_use: Option<String>,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Names of variables that are separate arguments.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

impl ChatTemplate {
    /// Reads the template of a model dir: `chat_template.jinja` or, in older dirs, `chat_template` in
    /// `tokenizer_config.json`, a string or a list of named templates. `None` if the dir has none.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be read, [`Error::File`] if it has no valid template.
    pub fn from_dir(dir: &Path) -> Result<Option<Self>> {
        let found = files::find(dir)?;
        found.map(|(sources, origin)| Self::from_sources(sources, &origin)).transpose()
    }

    /// Compiles a template. `origin` is the file for error messages.
    ///
    /// # Errors
    /// [`Error::File`] with the line if the source is not a valid template.
    pub fn new(source: &str, origin: &Path) -> Result<Self> {
        Self::with_tool_use(source, None, origin)
    }

    /// Compiles a template, and one that replaces it if there are tools.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_tool_use(source: &str, tool_use: Option<&str>, origin: &Path) -> Result<Self> {
        Self::from_sources(Sources { default: source.into(), tool_use: tool_use.map(str::to_owned) }, origin)
    }

    fn from_sources(sources: Sources, origin: &Path) -> Result<Self> {
        let mut environment = environment::like_transformers(origin)?;
        let named = [(DEFAULT, Some(&sources.default)), (TOOL_USE, sources.tool_use.as_ref())];
        let (mut takes_tools, mut asks_for_none, mut reads_reasoning) = (false, false, false);
        for (name, source) in named.into_iter().filter_map(|(name, source)| Some((name, source?))) {
            // The last template is used with tools.
            takes_tools = environment::add_template(&mut environment, name, source, origin)?;
            asks_for_none |= environment::asks_for_none(source);
            reads_reasoning |= environment::reads_reasoning(source);
        }
        let reads_thinking_parts = environment::reads_thinking_parts(&sources.default);
        let (environment, sources) = (Arc::new(environment), Arc::new(sources));
        let needs_parts = Arc::default();
        Ok(Self {
            environment,
            sources,
            takes_tools,
            asks_for_none,
            reads_reasoning,
            reads_thinking_parts,
            needs_parts,
        })
    }

    /// Renders a conversation to text, with the messages as given.
    ///
    /// # Errors
    /// [`Error::Template`] if the template rejects the messages, fails or exceeds a limit, or if the last message
    /// should be continued and the template does not output its text; [`Error::Param`] if a further variable has a
    /// reserved name, or if there is no message to continue or it has tool calls.
    pub fn render(&self, messages: &[Message], context: &RenderContext) -> Result<String> {
        let inputs = self.inputs(messages, context)?;
        let [_, end] = marks::unused(&inputs, &self.compiled_sources())?;
        self.render_to_end(inputs, context, end)
    }

    /// Renders and tokenizes a conversation. The template gets the messages in the first of these forms that it
    /// accepts: `developer` messages unchanged if it knows that role, or as `system`; arguments of tool calls as JSON
    /// objects, or as strings; ids of tool calls unchanged, or as nine letters and digits. The text parts of a content
    /// are passed as a list if the template reads lists, else joined by newlines.
    ///
    /// Special-token strings that the template writes become tokens. The same strings in inputs (the messages, the
    /// tools, the further variables) stay text, so that nobody can end their own message and write another role's. To
    /// distinguish them, a mark is inserted into such strings while the template runs; so a template cannot find such a
    /// string in a message. A special token of one character cannot be marked and is always parsed as a token.
    ///
    /// # Errors
    /// As [`render`](Self::render) and [`Tokenizer::encode`].
    pub fn encode(&self, tokenizer: &Tokenizer, messages: &[Message], context: &RenderContext) -> Result<Vec<TokenId>> {
        let text = |messages: &[Message]| self.marked_text(tokenizer, messages, context);
        self.in_supported_form(messages, context, text)?.encode(tokenizer)
    }

    /// The text of a conversation that must be answered, for [`PromptText::encode`], so that callers can check its
    /// length first. As [`encode`](Self::encode), with more forms for templates that reject the messages: arguments of
    /// tool calls that are no object as a member of one; system messages as one, at the beginning; then consecutive
    /// messages of one role as one; then an empty message of the user before an assistant that begins the conversation;
    /// then the system message as part of the user's first message.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn prompt_text(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        context: &RenderContext,
    ) -> Result<PromptText> {
        self.in_supported_groups(messages, context, |messages| self.marked_text(tokenizer, messages, context))
    }

    /// Renders a conversation, with marks in strings of the inputs that must not become special tokens.
    fn marked_text(&self, tokenizer: &Tokenizer, messages: &[Message], context: &RenderContext) -> Result<PromptText> {
        let mut inputs = self.inputs(messages, context)?;
        let [mark, end] = marks::unused(&inputs, &self.compiled_sources())?;
        marks::break_up(&mut inputs, &tokenizer.special_tokens(), mark);
        let text = self.render_to_end(inputs, context, end)?;
        Ok(PromptText { text, mark, add_special_tokens: context.add_special_tokens })
    }

    /// The special token that ends an assistant's message, if the template writes one: a model that was trained on this
    /// template ends its answers with it.
    pub fn end_of_turn(&self, tokenizer: &Tokenizer) -> Option<TokenId> {
        let messages = [Message::new("user", "a"), Message::new("assistant", "b")];
        let encode = |ending| {
            let context = RenderContext { ending, ..RenderContext::new(tokenizer) };
            self.encode(tokenizer, &messages, &context).ok()
        };
        let (closed, open) = (encode(Ending::Closed)?, encode(Ending::OpenMessage)?);
        let next = *closed.strip_prefix(&open[..])?.first()?;
        tokenizer.is_special(next).then_some(next)
    }

    /// All inputs of a rendering.
    fn inputs(&self, messages: &[Message], context: &RenderContext) -> Result<Inputs> {
        if let Some(name) = RESERVED.into_iter().find(|name| context.kwargs.contains_key(*name)) {
            let what = format!("must not contain `{name}`, which is a separate parameter");
            return Err(Error::Param { name: "chat_template_kwargs", what });
        }
        let contents = self.contents(messages, context);
        let messages = messages.iter().zip(contents);
        Ok(Inputs {
            messages: messages.map(|(message, content)| message_json(message, content, self)).collect(),
            tools: context.tools.clone(),
            kwargs: context.kwargs.clone(),
        })
    }

    /// The source of the default template.
    pub fn source(&self) -> &str {
        &self.sources.default
    }

    /// The source of the template that is used with tools.
    pub fn tools_source(&self) -> &str {
        self.sources.tool_use.as_ref().unwrap_or(&self.sources.default)
    }

    /// Whether one of the templates reads a variable of this name, such as `enable_thinking`.
    pub fn reads_variable(&self, name: &str) -> bool {
        let sources = [Some(&self.sources.default), self.sources.tool_use.as_ref()];
        let syntax = self.environment.syntax();
        sources.into_iter().flatten().any(|source| environment::reads_variable(source, name, syntax.clone()))
    }

    /// Whether the template for tools uses the variable `tools`.
    pub fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    /// Renders up to `context.ending`. `end` is a character that occurs in no input or template.
    fn render_to_end(&self, mut inputs: Inputs, context: &RenderContext, end: char) -> Result<String> {
        if context.ending != Ending::OpenMessage {
            return self.render_inputs(&inputs, context);
        }
        if inputs.messages.last().is_some_and(|message| message.get("tool_calls").is_some()) {
            let what = "must not end with tool calls if the last message is to be continued: nothing can follow them";
            return Err(Error::Param { name: "messages", what: what.into() });
        }
        if let Some(text) = self.continued_thought(&inputs, context) {
            return Ok(text);
        }
        let content = inputs.messages.last_mut().and_then(|message| match message.get_mut("content")? {
            Value::Array(parts) => parts.last_mut()?.get_mut("text"),
            content => Some(content),
        });
        let Some(Value::String(content)) = content else {
            return Err(Error::Param { name: "messages", what: "must have a last message to continue".into() });
        };
        // The space shows whether the template trims the text; if it does, the text is trimmed too.
        content.extend([end, ' ']);
        let mut text = self.render_inputs(&inputs, context)?;
        let Some(at) = text.rfind(end) else {
            return Err(Error::template("does not output the last message's text, so it cannot be continued"));
        };
        let is_trimmed = text.split_at(at).1.chars().nth(1) != Some(' ');
        text.truncate(at);
        if is_trimmed {
            text.truncate(text.trim_end().len());
        }
        Ok(text)
    }

    /// The conversation up to the end of a last message that has a thought, as the assistant wrote it: its text after
    /// the generation prompt. Templates remove closed thoughts from messages, or write an empty one before an open one.
    /// `None` if the message has no thought, or the template has no generation prompt.
    fn continued_thought(&self, inputs: &Inputs, context: &RenderContext) -> Option<String> {
        let (last, earlier) = inputs.messages.split_last()?;
        let text = match last.get("content")? {
            Value::Array(parts) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
            content => content.as_str()?.to_owned(),
        };
        let text = match (last.get(REASONING_CONTENT).and_then(Value::as_str), ThoughtForm::of_template(self.source()))
        {
            (Some(thought), Some(form)) if !thought::has_mark(&text) => form.written(thought, &text),
            _ => text,
        };
        if last.get("role")? != messages::ASSISTANT || !thought::has_mark(&text) {
            return None;
        }
        let inputs = Inputs { messages: earlier.to_vec(), ..inputs.clone() };
        let render = |ending| self.render_inputs(&inputs, &RenderContext { ending, ..context.clone() }).ok();
        let (prompt, closed) = (render(Ending::GenerationPrompt)?, render(Ending::Closed)?);
        let start = if thought::begins_with(&text) { thought::without_start(&prompt) } else { prompt.as_str() };
        (start != closed).then(|| format!("{start}{text}"))
    }

    fn render_inputs(&self, inputs: &Inputs, context: &RenderContext) -> Result<String> {
        let has_tools = inputs.tools.as_ref().is_some_and(|tools| !tools.is_null());
        let has_own = self.environment.get_template(TOOL_USE).is_ok();
        let name = if has_tools && has_own { TOOL_USE } else { DEFAULT };
        rendering::render(&self.environment, name, variables(inputs, context))
    }

    fn compiled_sources(&self) -> String {
        self.environment.templates().map(|(_, template)| template.source().to_owned()).collect()
    }
}

/// A rendered conversation that is not tokenized yet.
#[derive(Clone, Debug)]
pub struct PromptText {
    text: String,
    /// The character inserted into strings that must not become special tokens.
    mark: char,
    add_special_tokens: bool,
}

impl PromptText {
    /// Length in bytes, without marks.
    pub fn n_bytes(&self) -> usize {
        self.text.len() - self.text.matches(self.mark).count() * self.mark.len_utf8()
    }

    /// The token ids.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<TokenId>> {
        let options = EncodeOptions { add_special_tokens: self.add_special_tokens, ..EncodeOptions::RENDERED };
        tokenizer.encode_marked(&self.text, self.mark, options)
    }
}

/// All inputs of a rendering, as JSON.
#[derive(Clone)]
struct Inputs {
    messages: Vec<Value>,
    tools: Option<Value>,
    kwargs: Map<String, Value>,
}

/// Some templates detect a message with only tool calls by its content being none; others would fail on none.
fn message_json(message: &Message, content: Value, template: &ChatTemplate) -> Value {
    let only_calls = message.content.is_empty() && message.extra.contains_key("tool_calls");
    let content = if only_calls && template.asks_for_none { Value::Null } else { content };
    let mut json = Map::new();
    json.insert("role".into(), message.role.clone().into());
    json.insert("content".into(), content);
    json.extend(message.extra.clone());
    let mut json = with_reasoning(json, template.reads_reasoning);
    if template.reads_thinking_parts
        && let Some(thought) = json.get(REASONING_CONTENT).cloned()
        && let Some(content) = json.get_mut("content")
    {
        let mut parts = vec![json!({ "type": "thinking", "thinking": thought })];
        match content.take() {
            Value::Array(others) => parts.extend(others),
            Value::String(text) if !text.is_empty() => parts.push(json!({ "type": "text", "text": text })),
            _ => {}
        }
        *content = parts.into();
    }
    Value::Object(json)
}

/// The usual name of the model's earlier thoughts (reasoning).
const REASONING_CONTENT: &str = "reasoning_content";

/// The names under which clients send, and templates read, the model's earlier thoughts (reasoning).
pub const REASONING: [&str; 3] = [REASONING_CONTENT, "thinking", "reasoning"];

/// Gives the reasoning of a message every name that a template may read. As in `transformers`, except that `reasoning` is
/// added for templates that read it.
fn with_reasoning(message: Map<String, Value>, reads_reasoning: bool) -> Map<String, Value> {
    let Some(reasoning) = REASONING.into_iter().find_map(|name| message.get(name)).cloned() else { return message };
    let mut named = Map::new();
    if !message.contains_key("thinking") {
        named.insert("thinking".into(), reasoning.clone());
    }
    named.extend(message);
    if reads_reasoning && !named.contains_key("reasoning") {
        named.insert("reasoning".into(), reasoning.clone());
    }
    named.insert(REASONING_CONTENT.into(), reasoning);
    named
}

/// The template's variables, as `transformers` passes them: without tools or documents, `tools` and `documents` are
/// `none`, not undefined; further variables may replace the special tokens.
fn variables(inputs: &Inputs, context: &RenderContext) -> minijinja::Value {
    let special_tokens = [
        ("bos_token", &context.bos_token),
        ("eos_token", &context.eos_token),
        ("pad_token", &context.pad_token),
        ("unk_token", &context.unk_token),
    ];
    let mut variables = Map::new();
    for (name, token) in special_tokens {
        if let Some(token) = token {
            variables.insert(name.into(), token.clone().into());
        }
    }
    variables.insert("documents".into(), Value::Null);
    variables.extend(inputs.kwargs.clone());
    variables.insert("messages".into(), inputs.messages.clone().into());
    variables.insert("tools".into(), inputs.tools.clone().unwrap_or(Value::Null));
    variables.insert("add_generation_prompt".into(), (context.ending == Ending::GenerationPrompt).into());
    minijinja::Value::from(Serde(variables))
}
