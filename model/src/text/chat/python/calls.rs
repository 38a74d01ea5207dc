//! Functions that templates call by name: tables of filters, tests and methods, and the arguments of a call.

use minijinja::{Error, State, Value};

use super::{Result, Type, as_index, error, text};

/// A filter, a test or a method: its name, its parameters, and its function.
pub(super) type Row = (&'static str, &'static [&'static str], fn(&mut State<'_, '_>, &Call<'_>) -> Result);

/// The parameters of a function that takes any [arguments](Call::arguments).
pub(super) const ANY: &[&str] = &["*args", "**kwargs"];

/// The row of a name.
pub(super) fn find(table: &'static [Row], name: &str) -> Option<&'static Row> {
    table.iter().find(|(known, ..)| *known == name)
}

/// Calls a row of a table for a value.
pub(super) fn call(row: &Row, state: &mut State<'_, '_>, value: &Value, arguments: &Arguments) -> Result {
    let (name, parameters, function) = *row;
    let bound = if parameters == ANY { Vec::new() } else { arguments.bind(name, parameters)? };
    function(state, &Call { name, value, arguments, parameters, bound })
}

/// Arguments of a call: by position, and by name.
pub(super) struct Arguments {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Arguments {
    pub(super) fn new(values: &[Value]) -> Self {
        let (positional, named) = match values.split_last() {
            Some((last, rest)) if last.is_kwargs() => (rest, Some(last)),
            _ => (values, None),
        };
        let pairs = |named: &Value| -> Vec<(String, Value)> {
            let keys = named.try_iter().into_iter().flatten();
            keys.filter_map(|key| Some((key.as_str()?.to_owned(), named.get_item(&key).ok()?))).collect()
        };
        Self { positional: positional.to_vec(), named: named.map(pairs).unwrap_or_default() }
    }

    /// The arguments of a function with these parameters, in their order.
    pub(super) fn bind(&self, function: &str, parameters: &[&str]) -> Result<Vec<Option<Value>>> {
        let (n, most) = (self.positional.len(), parameters.len());
        if n > most {
            return Err(error(format!("`{function}` takes at most {most} arguments, got {n}")));
        }
        let mut bound: Vec<Option<Value>> = self.positional.iter().cloned().map(Some).collect();
        bound.resize(most, None);
        for (name, value) in &self.named {
            let place = parameters.iter().position(|parameter| parameter == name).and_then(|at| bound.get_mut(at));
            match place {
                Some(place @ None) => *place = Some(value.clone()),
                Some(Some(_)) => return Err(error(format!("`{function}` got `{name}` twice"))),
                None => return Err(error(format!("`{function}` has no argument `{name}`"))),
            }
        }
        Ok(bound)
    }
}

/// A call: the value that is filtered or tested, or whose method is called, and the arguments, which are read by their
/// index among the parameters.
pub(super) struct Call<'a> {
    pub(super) name: &'static str,
    pub(super) value: &'a Value,
    pub(super) arguments: &'a Arguments,
    parameters: &'static [&'static str],
    bound: Vec<Option<Value>>,
}

impl Call<'_> {
    pub(super) fn get(&self, place: usize) -> Option<&Value> {
        self.bound.get(place)?.as_ref()
    }

    /// The argument, unless it is missing or `none`.
    pub(super) fn given(&self, place: usize) -> Option<&Value> {
        self.get(place).filter(|value| !value.is_none())
    }

    pub(super) fn needed(&self, place: usize) -> Result<&Value> {
        let missing = || error(format!("`{}` needs the argument `{}`", self.name, self.parameters[place]));
        self.get(place).ok_or_else(missing)
    }

    /// A text, without conversion.
    pub(super) fn text(&self, place: usize) -> Result<&str> {
        self.as_text(self.needed(place)?)
    }

    pub(super) fn text_or<'a>(&'a self, place: usize, default: &'a str) -> Result<&'a str> {
        self.get(place).map_or(Ok(default), |value| self.as_text(value))
    }

    pub(super) fn index(&self, place: usize) -> Result<i64> {
        as_index(self.needed(place)?)
    }

    pub(super) fn index_or(&self, place: usize, default: i64) -> Result<i64> {
        self.get(place).map_or(Ok(default), as_index)
    }

    pub(super) fn is_true(&self, place: usize) -> bool {
        self.get(place).is_some_and(Value::is_true)
    }

    /// The value, which is a text.
    pub(super) fn str(&self) -> &str {
        self.value.as_str().unwrap_or_default()
    }

    /// `str(value)`.
    pub(super) fn shown(&self) -> Result<String> {
        text(self.value)
    }

    /// A text that is safe if the value is.
    pub(super) fn markup(&self, text: impl Into<String>) -> Result {
        let text = text.into();
        Ok(if self.value.is_safe() { Value::from_safe_string(text) } else { text.into() })
    }

    /// One of the values as a text, without conversion.
    pub(super) fn as_text<'v>(&self, value: &'v Value) -> Result<&'v str> {
        let wrong = || error(format!("`{}` expected a str, got a {}", self.name, Type::of(value).name()));
        value.as_str().ok_or_else(wrong)
    }

    /// The error for values of another type.
    pub(super) fn unsuitable(&self) -> Error {
        error(format!("`{}` of a {}", self.name, Type::of(self.value).name()))
    }
}
