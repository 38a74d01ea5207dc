//! Runs a compiled template within the limits on instructions, memory and time ([`budget`](super::budget)); panics of
//! the template engine become errors.

use minijinja::{AutoEscape, Environment, Value, machinery};

use super::{budget::Budget, environment, instructions::watched, operations::watch};
use crate::{
    error::{Error, Result},
    system::panics,
};

/// Renders the template of this name with `variables`.
pub(super) fn render(environment: &Environment<'_>, name: &str, variables: Value) -> Result<String> {
    let template = environment.get_template(name).map_err(|error| environment::render_error(&error))?;
    let (instructions, blocks) = watched(&template);
    let environment = watch(&Budget::new(&variables), environment);
    let mut text = String::new();
    // A rendering has no shared state that a panic could corrupt.
    let rendered = panics::caught(|| {
        let mut output = machinery::make_string_output(&mut text);
        machinery::eval(&environment, &instructions, variables, &blocks, &mut output, AutoEscape::None).map(drop)
    });
    match rendered {
        Ok(Ok(())) => Ok(text),
        Ok(Err(error)) => Err(environment::render_error(&error)),
        Err(_) => Err(Error::template("has an expression that makes the template engine fail")
            .with_hint("use a corrected template")),
    }
}
