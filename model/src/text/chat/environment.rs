//! The Jinja environment that templates of `transformers` expect, and its errors in our words.

use std::{
    error::Error as _,
    fmt::{self, Write},
    path::Path,
    thread,
};

use minijinja::{
    Environment, ErrorKind, UndefinedBehavior, Value,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
};

use super::{budget::Exceeded, python};
use crate::{
    error::{Error, Result},
    system::panics,
};

/// Longest source of a template; the longest that models come with are a tenth of it.
const MAX_SOURCE_BYTES: usize = 256 << 10;

/// Maximum number of tokens between `{{` and `}}`, or `{%` and `%}`: expressions are compiled recursively.
const MAX_TAG_TOKENS: usize = 2000;

/// Stack size for compiling; chains of `elif` are deepest.
const STACK_BYTES: usize = 128 << 20;

/// Maximum size in bytes of a constant product of a text or a list, which is computed at compile time.
const MAX_PRODUCT: f64 = 1e6;

/// Maximum number of instructions of a rendering, one or two seconds. Long conversations take a few thousand per
/// message.
const MAX_INSTRUCTIONS: u64 = 50_000_000;

/// An environment with the settings and functions of `transformers`.
pub(super) fn like_transformers(origin: &Path) -> Result<Environment<'static>> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|error| compile_error(&error, origin))?;
    // Filters, tests and methods come from `python`.
    let mut environment = Environment::empty();
    environment.set_syntax(syntax);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_global("dict", Value::from_object(python::DictType));
    environment.add_global("range", python::function(|_, arguments| python::range(arguments)));
    environment.add_global("namespace", python::function(|_, arguments| python::namespace(arguments)));
    environment.add_global("cycler", python::function(|_, arguments| python::cycler(arguments)));
    environment.add_global("joiner", python::function(|_, arguments| python::joiner(arguments)));
    Ok(environment)
}

/// Compiles a template and adds it to the environment. Returns whether it uses the variable `tools`.
pub(super) fn add_template(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: &str,
    origin: &Path,
) -> Result<bool> {
    let refuse = |what: String| Error::file(origin, what);
    if source.len() > MAX_SOURCE_BYTES {
        let n = source.len();
        return Err(refuse(format!("the chat template must be at most {MAX_SOURCE_BYTES} bytes, got {n}")));
    }
    // Python's Jinja reads all line ends as line feeds.
    let source = with_generation_marks(&source.replace("\r\n", "\n").replace('\r', "\n"));
    let syntax = environment.syntax().clone();
    check_tags(&source, syntax.clone()).map_err(|what| refuse(format!("the chat template {what}")))?;
    let keeps_tools = keeps_tools(&source, syntax);
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
        let compiler = builder.spawn_scoped(scope, || {
            panics::caught(|| {
                environment.add_template_owned(name, source)?;
                Ok(keeps_tools || environment.get_template(name)?.undeclared_variables(false).contains("tools"))
            })
        });
        let compiler =
            compiler.map_err(|error| refuse(format!("cannot start a thread to compile the chat template: {error}")))?;
        let compiled = compiler.join().unwrap_or_else(|_| Err(String::new()));
        let compiled = compiled.unwrap_or_else(|_| Err(ErrorKind::SyntaxError.into()));
        compiled.map_err(|error: minijinja::Error| compile_error(&error, origin))
    })
}

/// Whether a template sets `tools` to an expression that reads `tools`, as in `{% set tools = tools or [] %}`.
/// minijinja does not count `tools` among the undeclared variables then.
fn keeps_tools(source: &str, syntax: SyntaxConfig) -> bool {
    let tokens: Vec<Token<'_>> =
        tokenize(source, false, syntax).map_while(Result::ok).map(|(token, _)| token).collect();
    tokens.split(|token| matches!(token, Token::BlockStart)).any(|tag| {
        let [Token::Ident("set"), Token::Ident("tools"), Token::Assign, rest @ ..] = tag else { return false };
        let value: Vec<_> = rest.iter().take_while(|token| !matches!(token, Token::BlockEnd)).collect();
        let is_tools = |token: &&Token<'_>| matches!(token, Token::Ident("tools"));
        value.first().is_some_and(is_tools)
            || value.windows(2).any(|pair| is_tools(&pair[1]) && !matches!(pair[0], Token::Dot))
    })
}

/// Whether a template reads a variable of this name; it may also be a variable that the template itself sets.
pub(super) fn reads_variable(source: &str, name: &str, syntax: SyntaxConfig) -> bool {
    let tokens: Vec<Token<'_>> =
        tokenize(source, false, syntax).map_while(Result::ok).map(|(token, _)| token).collect();
    let is_read = |at: usize| {
        let is_member = at > 0 && matches!(tokens[at - 1], Token::Dot);
        !is_member && !matches!(tokens.get(at + 1), Some(Token::Assign))
    };
    (0..tokens.len()).any(|at| matches!(tokens[at], Token::Ident(found) if found == name) && is_read(at))
}

/// Whether a template reads parts of type `thinking` in a content, and not the members of a message that have thoughts.
pub(super) fn reads_thinking_parts(source: &str) -> bool {
    let is_compared = ["== 'thinking'", "== \"thinking\""].iter().any(|kind| source.contains(kind));
    is_compared && !source.contains("reasoning_content")
}

/// Whether a template expects `none` instead of an empty text for a message without content: it compares `content` with
/// `none` (`message['content'] is none`, `message.content is not none`), and nowhere with an empty text. Longer names
/// that end in `content`, such as `reasoning_content`, do not count.
pub(super) fn asks_for_none(source: &str) -> bool {
    let parts: Vec<&str> = source.split("content").collect();
    let is_longer = |before: &str| before.ends_with(|last: char| last == '_' || last.is_alphanumeric());
    let behind = parts.windows(2).filter(|around| !is_longer(around[0])).map(|around| {
        let words = around[1].trim_start_matches(['\'', '"', ']']).split_ascii_whitespace();
        words.take(3).collect::<Vec<_>>()
    });
    let (mut is_none, mut is_empty) = (false, false);
    for words in behind {
        is_none |= match words[..] {
            ["is", "not", word] | ["is", word, ..] => word.starts_with("none"),
            _ => false,
        };
        is_empty |= matches!(words[..], ["==" | "!=", word, ..] if word.starts_with("''") || word.starts_with("\"\""));
    }
    is_none && !is_empty
}

/// Whether a template reads the member `reasoning` of a message, not only names that begin like it.
pub(super) fn reads_reasoning(source: &str) -> bool {
    let parts: Vec<&str> = source.split("reasoning").collect();
    let is_longer = |after: &str| after.starts_with(|next: char| next == '_' || next.is_alphanumeric());
    parts.windows(2).any(|around| around[0].ends_with(['.', '\'', '"']) && !is_longer(around[1]))
}

/// Tags that the engine knows and the Jinja of `transformers` does not have, or that need other templates.
const UNSUPPORTED_TAGS: [&str; 6] = ["autoescape", "do", "extends", "from", "import", "include"];

/// Rejects tags that are not supported or would be too expensive to compile. Syntax errors are left to the compiler.
fn check_tags(source: &str, syntax: SyntaxConfig) -> Result<(), String> {
    // For the current tag: its tokens, the bytes of its texts, its open brackets, and an upper bound of the product of
    // its numbers.
    let (mut n_tokens, mut n_bytes, mut product, mut multiplies) = (0, 0, 1f64, false);
    let mut begins_tag = false;
    for token in tokenize(source, false, syntax) {
        let Ok((token, span)) = token else { return Ok(()) };
        n_tokens += 1;
        if let Token::Ident(name) = token
            && begins_tag
            && UNSUPPORTED_TAGS.contains(&name)
        {
            return Err(format!("uses the tag `{name}`, which is not supported, on line {}", span.start_line));
        }
        begins_tag = matches!(token, Token::BlockStart);
        match token {
            Token::BlockStart | Token::VariableStart | Token::TemplateData(_) => {
                (n_tokens, n_bytes, product, multiplies) = (0, 0, 1.0, false);
            }
            Token::Str(text) => n_bytes += text.len(),
            Token::String(text) => n_bytes += text.len(),
            Token::BracketOpen | Token::ParenOpen => n_bytes += 32,
            Token::Int(number) => product *= number as f64 + 2.0,
            Token::Int128(number) => product *= *number as f64 + 2.0,
            Token::Float(number) => product *= number.abs() + 2.0,
            Token::Mul => multiplies = true,
            Token::Pow => product = f64::INFINITY,
            _ => {}
        }
        if n_tokens > MAX_TAG_TOKENS {
            return Err(format!("has more than {MAX_TAG_TOKENS} tokens in one tag, on line {}", span.start_line));
        }
        if multiplies && n_bytes as f64 * product > MAX_PRODUCT {
            return Err(format!("multiplies a text or a list by too large a number, on line {}", span.start_line));
        }
    }
    Ok(())
}

/// Variables that are written at the start and at the end of each text between `{% generation %}` and
/// `{% endgeneration %}`. Serving leaves them undefined, which writes nothing.
pub(super) const GENERATION_START: &str = "hearth_generation_start";
pub(super) const GENERATION_END: &str = "hearth_generation_end";

/// Replaces `{% generation %}` tags, which mark the assistant's text, by tags that the engine knows. The new tags
/// remove the same white space as the old ones. As in `transformers`, variables that are set between the tags are
/// undefined after them.
fn with_generation_marks(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // Searched after the opening `{%`: in `{%}`, the `%` would otherwise be part of both delimiters.
        let Some(len) = rest[start + 2..].find("%}").map(|end| end + 4) else { break };
        let tag = &rest[start..start + len];
        plain.push_str(&rest[..start]);
        let name = tag[2..len - 2].trim_matches(['-', '+']).trim();
        // The characters before and after the name: white space, and signs that remove white space.
        let (before, after) = tag.split_once(name).unwrap_or((tag, ""));
        match name {
            "generation" => {
                let _ = write!(plain, "{before}with %}}{{{{ {GENERATION_START} }}}}{{% with{after}");
            }
            "endgeneration" => {
                let _ = write!(plain, "{before}endwith %}}{{{{ {GENERATION_END} }}}}{{% endwith{after}");
            }
            _ => plain.push_str(tag),
        }
        rest = &rest[start + len..];
    }
    plain + rest
}

/// The error by which a template rejects the messages.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn raise_exception(message: String) -> Result<(), minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(message)))
}

/// The local time, formatted as Python's `strftime` does.
fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

pub(super) fn compile_error(error: &minijinja::Error, origin: &Path) -> Error {
    Error::file(origin, format!("cannot parse the chat template: {}", describe(error)))
}

pub(super) fn render_error(error: &minijinja::Error) -> Error {
    if let Some(refusal) = find::<Refusal>(error) {
        return Error::template(format!("rejects these messages: {refusal}"))
            .with_hint("change the messages as the template requires");
    }
    if let Some(exceeded) = find::<Exceeded>(error) {
        return Error::template(exceeded.to_string())
            .with_hint("use a template that creates less text and fewer lists");
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::template(format!("did not finish within {MAX_INSTRUCTIONS} instructions"))
            .with_hint("the template has too long a loop; use a corrected template");
    }
    Error::template(describe(error))
}

/// The cause of this type in the error's chain.
fn find<T: std::error::Error + 'static>(error: &minijinja::Error) -> Option<&T> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        source = error.source();
    }
    None
}

fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::chat::{ChatTemplate, RenderContext};

    #[test]
    fn takes_tools_detects_templates_that_read_the_tools_parameter() {
        for (source, takes_tools) in [
            ("{% for tool in tools %}{% endfor %}", true),
            ("{%- set tools = tools or [] -%}{{ tools }}", true),
            ("{% set tools = [] if x else tools %}{{ tools }}", true),
            ("{% set tools = message.tools %}{{ tools }}", false),
            ("{% set tools = [] %}{{ tools }}", false),
            ("tools", false),
        ] {
            let template = ChatTemplate::new(source, Path::new("chat_template.jinja"));
            assert_eq!(template.ok().map(|template| template.takes_tools()), Some(takes_tools), "{source}");
        }
    }

    #[test]
    fn template_line_endings_are_normalized_to_line_feeds() {
        let template = ChatTemplate::new("a\r\nb\rc", Path::new("chat_template.jinja"));
        let rendered = template.and_then(|template| template.render(&[], &RenderContext::default()));
        assert_eq!(rendered.ok().as_deref(), Some("a\nb\nc"));
    }

    #[test]
    fn generation_tags_are_rewritten_to_markers_in_scopes_of_their_own() {
        let source = "a{%- generation -%}b{% set x = '%' %}c{% endgeneration +%}d{% unclosed";
        let start = "{%- with %}{{ hearth_generation_start }}{% with -%}";
        let end = "{% endwith %}{{ hearth_generation_end }}{% endwith +%}";
        let expected = format!("a{start}b{{% set x = '%' %}}c{end}d{{% unclosed");
        assert_eq!(with_generation_marks(source), expected);
    }
}
