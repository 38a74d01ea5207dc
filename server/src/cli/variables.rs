//! Resolves conflicts between environment variables and the command line.
//!
//! A flag on the command line overrides variables, also the variable of another flag that it excludes. Two variables
//! that exclude each other are an error.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command, builder::Resettable, error::ErrorKind, parser::ValueSource};

/// Removes the variables that the command line `args` overrides.
///
/// # Errors
/// Two variables exclude each other.
pub(super) fn apply_environment(command: Command, args: &[OsString]) -> Result<Command, clap::Error> {
    // Empty variables, as compose files set them, count as unset.
    let command = without_variables(command, &|_, name| std::env::var_os(name).is_some_and(|value| value.is_empty()));
    // Other errors on the command line are reported when it is parsed again with its variables.
    let without = without_variables(command.clone(), &|_, _| true).ignore_errors(true);
    let Ok(given) = without.try_get_matches_from(args) else { return Ok(command) };
    let Some((name, given)) = given.subcommand() else { return Ok(command) };
    let Some(subcommand) = command.find_subcommand(name) else { return Ok(command) };
    let is_given = |arg: &Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let mut overridden = Vec::new();
    for (one, other) in conflicts(subcommand) {
        match (is_given(one), is_given(other)) {
            (true, false) => overridden.push(other.get_id().clone()),
            (false, true) => overridden.push(one.get_id().clone()),
            (true, true) => {}
            (false, false) => {
                if let (Some(first), Some(second)) = (set_variable(one), set_variable(other)) {
                    let (first, second) = (first.display(), second.display());
                    let flags = [one, other].map(|arg| format!("`--{}`", arg.get_long().unwrap_or_default()));
                    let what = format!(
                        "the environment variables `{first}` and `{second}` exclude each other, but both are set\n\
                         hint: unset one of them, or give {} or {}, which override variables",
                        flags[0], flags[1]
                    );
                    return Err(command.clone().error(ErrorKind::ArgumentConflict, what));
                }
            }
        }
    }
    let name = name.to_owned();
    Ok(command
        .mut_subcommand(name, |subcommand| without_variables(subcommand, &|arg, _| overridden.contains(arg.get_id()))))
}

/// Each pair of a command's arguments that exclude each other; some pairs twice.
fn conflicts(command: &Command) -> impl Iterator<Item = (&Arg, &Arg)> {
    command
        .get_arguments()
        .flat_map(|arg| command.get_arg_conflicts_with(arg).into_iter().map(move |other| (arg, other)))
}

/// The variable of an argument, if it has one and it is set.
fn set_variable(arg: &Arg) -> Option<&OsStr> {
    arg.get_env().filter(|name| std::env::var_os(name).is_some())
}

/// The command and its subcommands without the variables of some arguments.
fn without_variables(command: Command, is_unwanted: &dyn Fn(&Arg, &OsStr) -> bool) -> Command {
    let command = command.mut_args(|arg| match arg.get_env() {
        Some(name) if is_unwanted(&arg, name) => arg.env(Resettable::Reset),
        _ => arg,
    });
    command.mut_subcommands(|below| without_variables(below, is_unwanted))
}
