//! The loop of a conversation: reads input, and answers it.

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    pin::pin,
};

use anyhow::Context;
use serde_json::Value;
use tokio::{runtime::Runtime, select};

use super::super::output::printable;
use super::{
    client::{AnswerPiece, Client},
    command::{self, Command},
    conversation::{ChatHistory, Setting},
    file,
    line_editor::{LineEditor, Typed},
    markdown::{Renderer, Style},
    parameters::Parameters,
};

/// A conversation with whoever answers.
pub(super) struct Session {
    pub(super) runtime: Runtime,
    pub(super) client: Client,
    /// The name of the model; empty if the server does not report it.
    pub(super) model: String,
    pub(super) conversation: ChatHistory,
    /// The server's parameters, once they were requested; the inner `None` if it does not describe them.
    pub(super) parameters: Option<Option<Parameters>>,
}

/// Whether the loop continues.
#[derive(PartialEq, Eq)]
enum Next {
    Read,
    End,
}

/// Writes an answer to standard output.
struct Output {
    /// `None`: not a terminal, so text is written as it is.
    renderer: Option<Renderer>,
}

impl Output {
    fn new() -> Self {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let is_plain = set("NO_COLOR").is_some() || set("TERM").is_some_and(|term| term == "dumb");
        let style = if is_plain { Style::Plain } else { Style::Markdown };
        Self { renderer: io::stdout().is_terminal().then(|| Renderer::new(style)) }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let shown = self.renderer.as_mut().map(|renderer| renderer.push(text));
        put(shown.as_deref().unwrap_or(text))
    }

    fn finish(&mut self) -> io::Result<()> {
        let rest = self.renderer.as_mut().map(Renderer::finish).unwrap_or_default();
        put(&(rest + "\n"))
    }
}

fn put(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Prints a note about the conversation. If standard error is closed, the note is lost.
fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(text));
}

/// Writes the model's thoughts to standard error: standard output has only answers.
#[derive(Default)]
struct Thoughts {
    is_open: bool,
}

impl Thoughts {
    fn write(&mut self, text: &str) {
        self.is_open = true;
        let is_shown = |character: &char| !character.is_control() || ['\n', '\t'].contains(character);
        let text: String = text.chars().filter(is_shown).collect();
        let mut stderr = io::stderr().lock();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            note("\n\n");
        }
    }
}

impl Session {
    /// Answers one message, and ends.
    pub(super) fn answer_once(&mut self, message: String) -> anyhow::Result<()> {
        self.conversation.ask(message);
        match self.answer(Stopping::EndsTheProgram) {
            // The reader has closed the pipe, as `head` does.
            Err(error) if is_broken_pipe(&error) => Ok(()),
            answered => answered,
        }
    }

    /// Reads and answers until the end.
    pub(super) fn converse(&mut self) -> anyhow::Result<()> {
        let mut editor = LineEditor::new();
        let model = if self.model.is_empty() { "the server".to_owned() } else { format!("`{}`", self.model) };
        note(&format!("chat with {model}; /help lists commands, ctrl-c stops an answer, ctrl-d leaves"));
        loop {
            let line = match editor.read()? {
                Typed::Line(line) => line,
                Typed::Interrupt => {
                    note("ctrl-d or /quit leaves");
                    continue;
                }
                Typed::End => return Ok(()),
            };
            let done = match line.trim() {
                "" => continue,
                text if text.starts_with("//") => self.ask(text[1..].to_owned()),
                text if text.starts_with('/') => Command::parse(text).and_then(|command| self.obey(command)),
                _ => self.ask(line.clone()),
            };
            match done {
                Ok(Next::Read) => {}
                Ok(Next::End) => return Ok(()),
                Err(error) if is_broken_pipe(&error) => return Ok(()),
                Err(error) => note(&format!("error: {error:#}")),
            }
        }
    }

    fn obey(&mut self, command: Command) -> anyhow::Result<Next> {
        let conversation = &mut self.conversation;
        match command {
            Command::Help => note(command::help().trim_end()),
            Command::System(None) => note(conversation.system.as_deref().unwrap_or("there is no system prompt")),
            Command::System(Some(text)) => conversation.system = Some(text).filter(|text| !text.is_empty()),
            Command::Set(setting) => self.set(setting, Stopping::EndsTheAnswer)?,
            Command::ShowSettings if conversation.settings.is_empty() => {
                note("all parameters have their defaults; `/set NAME VALUE` sets one");
            }
            Command::ShowSettings => {
                let lines: Vec<_> =
                    conversation.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
                note(&lines.join("\n"));
            }
            Command::Clear => conversation.clear(),
            Command::Regenerate => {
                let before = conversation.forget_answer().context("there is no answer yet")?;
                let n_turns = conversation.n_turns();
                let answered = self.answer(Stopping::EndsTheAnswer);
                if self.conversation.n_turns() == n_turns {
                    self.conversation.add_answer(before);
                }
                answered?;
            }
            Command::Save(path) => {
                let text = file::written(conversation, &self.model)?;
                fs::write(&path, text).with_context(|| format!("cannot write `{path}`"))?;
                note(&format!("saved {} messages to `{path}`", conversation.n_turns()));
            }
            Command::Load(path) => {
                let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{path}`"))?;
                let mut loaded = file::read(&text).with_context(|| format!("cannot load `{path}`"))?;
                for (name, value) in &mut loaded.settings {
                    let checked = self.checked(name, value.take(), Stopping::EndsTheAnswer);
                    *value = checked.with_context(|| format!("cannot load `{path}`"))?;
                }
                note(&format!("loaded {} messages from `{path}`", loaded.n_turns()));
                self.conversation = loaded;
            }
            Command::Model(None) => {
                let models = self.models()?;
                let lines = models.iter().map(|name| {
                    let mark = if *name == self.model { "*" } else { " " };
                    format!("{mark} {name}")
                });
                note(&lines.collect::<Vec<_>>().join("\n"));
            }
            Command::Model(Some(name)) => {
                let models = self.models()?;
                anyhow::ensure!(
                    models.contains(&name),
                    "the server has no model `{name}`\nhint: it has `{}`",
                    models.join("`, `")
                );
                self.model = name;
            }
            Command::Quit => return Ok(Next::End),
        }
        Ok(Next::Read)
    }

    /// Sets a parameter, if the server has it and allows its value.
    pub(super) fn set(&mut self, setting: Setting, stopping: Stopping) -> anyhow::Result<()> {
        let (name, value) = setting.into_parts();
        match value {
            Some(value) => {
                let value = self.checked(&name, value, stopping)?;
                self.conversation.settings.insert(name, value);
            }
            // An unset parameter has its default already, so a wrong name is an error as well.
            None if self.conversation.settings.remove(&name).is_none() => {
                drop(self.checked(&name, Value::Null, stopping)?)
            }
            None => {}
        }
        Ok(())
    }

    /// The value as the server takes it.
    fn checked(&mut self, name: &str, value: Value, stopping: Stopping) -> anyhow::Result<Value> {
        let Self { runtime, client, parameters, .. } = self;
        let asked = parameters.get_or_insert_with(|| {
            runtime.block_on(async {
                select! {
                    biased;
                    () = stopping.interrupt() => None,
                    parameters = client.parameters() => parameters,
                }
            })
        });
        asked.as_ref().map_or(Ok(value.clone()), |parameters| parameters.check(name, value))
    }

    /// The names of the server's models. Ctrl-c stops the request: after the first answer, it no longer ends the program.
    fn models(&self) -> anyhow::Result<Vec<String>> {
        self.runtime.block_on(async {
            select! {
                // First: until this is polled, ctrl-c ends the program, and the request may already have been sent.
                biased;
                () = Stopping::EndsTheAnswer.interrupt() => anyhow::bail!("stopped"),
                models = self.client.models() => models,
            }
        })
    }

    fn ask(&mut self, text: String) -> anyhow::Result<Next> {
        self.conversation.ask(text);
        let answered = self.answer(Stopping::EndsTheAnswer);
        // Without an answer, the message is forgotten, so that it can be sent again.
        self.conversation.take_back();
        answered.map(|()| Next::Read)
    }

    /// Streams the answer to the last message to standard output and adds it to the conversation, also if it is stopped.
    fn answer(&mut self, stopping: Stopping) -> anyhow::Result<()> {
        let Self { runtime, client, model, conversation, .. } = self;
        let (mut text, mut output, mut thoughts) = (String::new(), Output::new(), Thoughts::default());
        let streamed = runtime.block_on(async {
            let mut interrupt = pin!(stopping.interrupt());
            let begun = client.answer(model, conversation.messages(), &conversation.settings);
            let mut answer = select! {
                biased;
                () = &mut interrupt => return Ok(End::Stopped),
                begun = begun => begun?,
            };
            if let Some(ignored) = answer.ignored.take() {
                note(&format!("warning: the server ignores `{ignored}`"));
            }
            let mut reason = String::new();
            loop {
                let piece = select! {
                    () = &mut interrupt => return Ok(End::Stopped),
                    piece = answer.next() => piece?,
                };
                match piece {
                    Some(AnswerPiece::Thought(delta)) => thoughts.write(&delta),
                    Some(AnswerPiece::Text(delta)) => {
                        thoughts.close();
                        output.write(&delta).context("cannot write to standard output")?;
                        text += &delta;
                    }
                    Some(AnswerPiece::Finished(why)) => reason = why,
                    None => return anyhow::Ok(End::Reason(reason)),
                }
            }
        });
        thoughts.close();
        if !text.is_empty() {
            output.finish().context("cannot write to standard output")?;
            conversation.add_answer(text);
        }
        match streamed? {
            End::Stopped => note("stopped"),
            End::Reason(reason) if reason == "length" => {
                note("the answer ends here because of `max_tokens` or the length of the context");
            }
            End::Reason(_) => {}
        }
        Ok(())
    }
}

/// How an answer ended.
enum End {
    /// By ctrl-c.
    Stopped,
    /// By itself; the API's `finish_reason`.
    Reason(String),
}

/// The effect of ctrl-c while a request runs.
#[derive(Clone, Copy)]
pub(super) enum Stopping {
    EndsTheAnswer,
    /// Ctrl-c is not handled, so it ends the program.
    EndsTheProgram,
}

impl Stopping {
    async fn interrupt(self) {
        match self {
            // `EndsTheProgram` installs no handler, so that ctrl-c ends the program.
            Self::EndsTheAnswer if tokio::signal::ctrl_c().await.is_ok() => {}
            _ => std::future::pending().await,
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
