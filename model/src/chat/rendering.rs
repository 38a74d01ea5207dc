//! Runs a compiled template: within bounds on its instructions, on what it makes and on its time ([`budget`](super::budget)), and so that
//! a fault of the template engine is an error like any other.

use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::{AutoEscape, Environment, Value, machinery};

use super::{budget::Budget, environment, instructions::watched};
use crate::error::{Error, Result};

/// The text that the template of this name makes of `variables`.
pub(super) fn render(environment: &Environment<'_>, name: &str, variables: Value) -> Result<String> {
    let template = environment.get_template(name).map_err(|error| environment::render_error(&error))?;
    let (instructions, blocks) = watched(&template);
    let environment = Budget::new(&variables).watch(environment);
    let mut text = String::new();
    // The engine panics where it slices an empty list backwards (minijinja 3.0.5). A rendering leaves nothing behind
    // that a panic could break.
    let rendered = catch_unwind(AssertUnwindSafe(|| {
        let mut output = machinery::make_string_output(&mut text);
        machinery::eval(&environment, &instructions, variables, &blocks, &mut output, AutoEscape::None).map(drop)
    }));
    match rendered {
        Ok(Ok(())) => Ok(text),
        Ok(Err(error)) => Err(environment::render_error(&error)),
        Err(_) => {
            let what = "has an expression on which the template engine breaks down".to_owned();
            Err(Error::Template { what, hint: "use a corrected template".to_owned() })
        }
    }
}
