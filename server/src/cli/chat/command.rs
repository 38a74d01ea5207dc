//! The commands that begin with `/`.

use anyhow::{bail, ensure};

use super::{conversation::Setting, parameters::nearest};

/// A command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    Help,
    /// Sets the system prompt, removes it (empty), or shows it (none).
    System(Option<String>),
    Set(Setting),
    ShowSettings,
    Clear,
    Regenerate,
    Save(String),
    Load(String),
    /// Chooses a model of the server, or shows them.
    Model(Option<String>),
    Quit,
}

/// Commands with their arguments, and their effects.
const HELP: [(&str, &str, &str); 9] = [
    ("/help", "", "show this list"),
    ("/system", "[TEXT]", "set the system prompt (`/system -` removes it), or show it"),
    ("/set", "[NAME [VALUE]]", "set a parameter, such as `/set temperature 0.7`; without a value: its default again"),
    ("/clear", "", "begin a new conversation; system prompt and parameters stay"),
    ("/regen", "", "answer the last message again"),
    ("/save", "FILE", "write the conversation to a file, which the page can import"),
    ("/load", "FILE", "continue the conversation of such a file, or of an export of the page"),
    ("/model", "[NAME]", "show the models of the server, or choose one"),
    ("/quit", "", "leave, as ctrl-d does"),
];

/// The names, for completion.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    HELP.iter().map(|(name, _, _)| *name)
}

/// The text of `/help`.
pub(super) fn help() -> String {
    let width = HELP.iter().map(|(name, args, _)| name.len() + args.len() + 1).max().unwrap_or(0);
    let lines = HELP.iter().map(|(name, args, what)| format!("{:width$}  {what}\n", format!("{name} {args}")));
    lines.collect::<String>()
        + "A message that ends with `\\` goes on in the next line; `//` begins a message with a slash.\n\
           Ctrl-c stops an answer; the part that was written stays in the conversation.\n"
}

impl Command {
    /// Parses a line that begins with a slash.
    pub(super) fn parse(line: &str) -> anyhow::Result<Command> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let given = (!rest.is_empty()).then(|| rest.to_owned());
        let command = match name {
            "/help" | "/?" => Command::Help,
            "/system" => Command::System(given.map(|text| if text == "-" { String::new() } else { text })),
            "/set" => {
                return Ok(if rest.is_empty() { Command::ShowSettings } else { Command::Set(Setting::parse(rest)?) });
            }
            "/clear" | "/new" => Command::Clear,
            "/regen" | "/retry" => Command::Regenerate,
            "/save" | "/load" => {
                let Some(file) = given else { bail!("`{name}` needs the name of a file, such as `{name} talk.json`") };
                if name == "/save" { Command::Save(file) } else { Command::Load(file) }
            }
            "/model" | "/models" => Command::Model(given),
            "/quit" | "/exit" | "/bye" => Command::Quit,
            _ => {
                let meant = nearest(name, names()).map(|meant| format!("did you mean `{meant}`? ")).unwrap_or_default();
                bail!(
                    "there is no command `{name}`\n\
                     hint: {meant}`/help` lists the commands; `//` begins a message with a slash"
                )
            }
        };
        let takes_nothing = matches!(command, Command::Help | Command::Clear | Command::Regenerate | Command::Quit);
        ensure!(!takes_nothing || rest.is_empty(), "`{name}` takes nothing, got `{rest}`");
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn chat_commands_parse_arguments_and_report_errors() {
        for (line, command) in [
            ("/help", Command::Help),
            ("/system", Command::System(None)),
            ("/system -", Command::System(Some(String::new()))),
            ("/system Be  brief. ", Command::System(Some("Be  brief.".to_owned()))),
            ("/set", Command::ShowSettings),
            ("/clear", Command::Clear),
            ("/save a b.json", Command::Save("a b.json".to_owned())),
            ("/model org/name", Command::Model(Some("org/name".to_owned()))),
            ("/exit", Command::Quit),
        ] {
            assert_eq!(Command::parse(line).unwrap(), command, "{line}");
        }
        for (line, message) in [
            ("/sing", "there is no command `/sing`"),
            ("/lod a.json", "hint: did you mean `/load`? `/help` lists the commands"),
            ("/load", "`/load` needs the name of a file"),
            ("/clear all", "`/clear` takes nothing, got `all`"),
            ("/set stream true", "`stream` cannot be set"),
        ] {
            assert!(Command::parse(line).unwrap_err().to_string().contains(message), "{line}");
        }
        let help = help();
        for name in names() {
            assert!(help.contains(name), "{name}");
            let unknown = Command::parse(name).is_err_and(|error| error.to_string().contains("no command"));
            assert!(!unknown, "{name}");
        }
    }
}
