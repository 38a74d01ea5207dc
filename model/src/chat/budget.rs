//! What a template may take on its way: text and lists, counted as they are made. Jinja's engine counts instructions
//! alone, and one instruction can double a text (`x ~ x`) or a list's depth (`[x]`), so that forty of them exhaust any
//! memory and a hundred thousand any stack.
//!
//! [`instructions`](super::instructions) puts calls between a template's own that lead here: each hands over what was made,
//! or the arguments of what may make much of little.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use minijinja::{
    Environment, Error, ErrorKind, Output, State, Value,
    value::{Object, ValueKind},
};

use super::environment;

/// Bytes that a rendering may make, beside those that its input allows.
const MAX_BYTES: usize = 32 << 20;

/// Templates write their input and change it some times: trim it, put marks around it.
const BYTES_PER_INPUT: usize = 8;

/// How deep lists and objects may nest.
const MAX_DEPTH: usize = 64;

/// Bytes that an entry of a list takes, roughly; also the text of a number.
const ENTRY: usize = 32;

/// Bytes that may be copied in place of one that is made.
const COPIED_PER_BYTE: usize = 256;

/// How long a rendering may take. Instructions are counted, but some take long over long texts.
const MAX_TIME: Duration = Duration::from_secs(5);

/// No template can spell these names.
pub(super) const MADE: &str = "was made";
pub(super) const RETURNED: &str = "was returned";
pub(super) const KEPT: &str = "is kept";
pub(super) const JOINED: &str = "are joined";
pub(super) const MULTIPLIED: &str = "are multiplied";
pub(super) const COMPARED: &str = "are compared";
pub(super) const SPREAD: &str = "are spread";

/// Filters and methods that may make much of little, or that take a text apart, and what looks at their arguments.
pub(super) const CHECKS: [(&str, &str); 21] = [
    ("replace", "before replace"),
    ("join", "before join"),
    ("indent", "before indent"),
    ("format", "before format"),
    ("batch", "before batch"),
    ("slice", "before slice"),
    ("tojson", "before tojson"),
    ("string", "before string"),
    ("pprint", "before pprint"),
    ("sum", "before sum"),
    ("map", "before map"),
    ("list", "before list"),
    ("sort", "before sort"),
    ("unique", "before unique"),
    ("reverse", "before reverse"),
    ("groupby", "before groupby"),
    ("select", "before select"),
    ("reject", "before reject"),
    ("zip", "before zip"),
    ("chain", "before chain"),
    ("split", "before split"),
];

/// A template went beyond its bounds.
#[derive(Debug)]
pub(super) struct Exceeded(String);

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Exceeded {}

fn exceeded<T>(what: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "beyond its bounds").with_source(Exceeded(what)))
}

/// What is left for one rendering.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicUsize,
    total: usize,
    until: Instant,
}

impl Budget {
    /// Of a rendering of `input`.
    pub(super) fn new(input: &Value) -> Arc<Self> {
        let budget = Self { left: AtomicUsize::new(usize::MAX), total: usize::MAX, until: Instant::now() + MAX_TIME };
        let total = MAX_BYTES + BYTES_PER_INPUT * budget.text(input, 0).unwrap_or(0);
        Arc::new(Self { left: AtomicUsize::new(total), total, ..budget })
    }

    /// The environment for the rendering: what counts is in it, other templates are not.
    pub(super) fn watch<'source>(self: &Arc<Self>, environment: &Environment<'source>) -> Environment<'source> {
        let mut watched = environment.clone();
        watched.clear_templates();
        watched.remove_global("debug");
        let budget = Arc::clone(self);
        watched.set_formatter(move |out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value| {
            budget.spend(budget.text(value, 0)?)?;
            environment::write(out, state, value)
        });
        let names = [MADE, RETURNED, KEPT, JOINED, MULTIPLIED, COMPARED, SPREAD]
            .into_iter()
            .chain(CHECKS.iter().map(|(_, name)| *name));
        for name in names {
            watched.add_global(name, Value::from_object(Watch { budget: Arc::clone(self), name }));
        }
        watched
    }

    fn spend(&self, bytes: usize) -> Result<(), Error> {
        if Instant::now() > self.until {
            return exceeded(format!("did not come to an end within {} s", MAX_TIME.as_secs()));
        }
        let spent = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        spent.map(drop).or_else(|_| self.too_much())
    }

    /// Whether there is room for it; it is spent when it is made.
    fn check(&self, bytes: usize) -> Result<(), Error> {
        if bytes <= self.left.load(Ordering::Relaxed) { Ok(()) } else { self.too_much() }
    }

    fn too_much<T>(&self) -> Result<T, Error> {
        exceeded(format!("made more than {} bytes of text and lists on its way", self.total))
    }

    /// Something new: its own bytes, and the depth of what is in it. What would be computed whenever somebody looks at it
    /// is computed now, as such things can stand on top of each other without end.
    fn made(&self, value: Value) -> Result<Value, Error> {
        if let Some(text) = value.as_str() {
            self.spend(text.len())?;
        } else {
            self.walk(&value, 0)?;
        }
        if value.kind() == ValueKind::Iterable {
            return Ok(Value::from(value.try_iter()?.collect::<Vec<_>>()));
        }
        Ok(value)
    }

    /// Goes through what is in a value. The entries of the outermost list are new, those within have been counted.
    fn walk(&self, value: &Value, depth: usize) -> Result<(), Error> {
        self.spend(if depth <= 1 { ENTRY } else { ENTRY / 4 })?;
        self.each(value, depth, |entry| self.walk(entry, depth + 1))
    }

    /// A text or a list so many times.
    fn multiply(&self, left: &Value, right: &Value) -> Result<(), Error> {
        self.check(match (left.as_usize(), right.as_usize()) {
            (None, Some(n)) => self.size(left)?.saturating_mul(n),
            (Some(n), None) => self.size(right)?.saturating_mul(n),
            _ => 0,
        })
    }

    /// A namespace keeps what outlives a turn of a loop. Within each other, they could make a circle.
    fn keep(&self, value: &Value, depth: usize) -> Result<(), Error> {
        self.spend(1)?;
        if value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace")) {
            return exceeded("keeps a namespace within a namespace".to_owned());
        }
        self.each(value, depth, |entry| self.keep(entry, depth + 1))
    }

    /// The length of a value's text, roughly, and never too small by much.
    fn text(&self, value: &Value, depth: usize) -> Result<usize, Error> {
        if let Some(text) = value.as_str() {
            return Ok(text.len());
        }
        self.spend(ENTRY / 4)?;
        let mut sum = ENTRY;
        self.each(value, depth, |entry| {
            sum = sum.saturating_add(2 + self.text(entry, depth + 1)?);
            Ok(())
        })?;
        Ok(sum)
    }

    /// The bytes of a text, or of a list's entries.
    fn size(&self, value: &Value) -> Result<usize, Error> {
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => Ok(ENTRY.saturating_mul(value.len().unwrap_or(0))),
            _ => self.text(value, 0),
        }
    }

    fn each(
        &self,
        value: &Value,
        depth: usize,
        mut look_at: impl FnMut(&Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let kind = value.kind();
        if !matches!(kind, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
            return Ok(());
        }
        if depth >= MAX_DEPTH {
            return exceeded(format!("nests lists and objects more than {MAX_DEPTH} deep"));
        }
        for entry in value.try_iter()? {
            if kind == ValueKind::Map {
                look_at(&value.get_item(&entry)?)?;
            }
            look_at(&entry)?;
        }
        Ok(())
    }

    /// Looks at the arguments of a filter or a method, the value itself first.
    fn before(&self, name: &str, arguments: &[Value]) -> Result<(), Error> {
        let [value, rest @ ..] = arguments else { return Ok(()) };
        let text = |value: &Value| self.text(value, 0);
        let number = |value: &Value| value.as_usize().unwrap_or(0);
        let length = |value: &Value| value.as_str().map_or_else(|| value.len().unwrap_or(0), str::len);
        let bytes = match (name, rest) {
            ("replace", [old, new, ..]) => {
                let found = match (value.as_str(), old.as_str()) {
                    (Some(text), Some("")) => text.len() + 1,
                    (Some(text), Some(old)) => text.matches(old).count(),
                    _ => 0,
                };
                text(value)?.saturating_add(found.saturating_mul(text(new)?))
            }
            // The filter has the separator behind, the method before.
            ("join", rest) => {
                let (list, separator) = match rest {
                    [list, ..] if value.as_str().is_some() && list.as_str().is_none() => (list, Some(value)),
                    rest => (value, rest.first()),
                };
                let separator = separator.map(text).transpose()?.unwrap_or(0);
                text(list)?.saturating_add(separator.saturating_mul(length(list)))
            }
            ("indent", rest) => {
                let width = rest.first().map(|width| number(width).max(length(width))).unwrap_or(4);
                let n_lines = value.as_str().map_or(1, |text| text.split('\n').count());
                text(value)?.saturating_add(n_lines.saturating_mul(width))
            }
            ("format", rest) => {
                let format = value.as_str().unwrap_or_default();
                let numbers = format.split(|char: char| !char.is_ascii_digit()).filter(|digits| !digits.is_empty());
                // A number that is none is too large for one.
                let widths = numbers.map(|digits| digits.parse::<usize>().unwrap_or(usize::MAX));
                let widths = widths.fold(0usize, usize::saturating_add);
                let n_places = format.matches(['%', '{']).count();
                // With `*`, a width is an argument.
                let numbers = rest.iter().map(number).fold(0, usize::saturating_add);
                let texts =
                    rest.iter().try_fold(numbers, |sum, value| Ok::<_, Error>(text(value)?.saturating_add(sum)))?;
                format.len().saturating_add(widths).saturating_add(n_places.saturating_mul(texts))
            }
            ("batch" | "slice", [count, ..]) => ENTRY.saturating_mul(length(value).saturating_add(number(count))),
            ("tojson", rest) => {
                let style =
                    rest.iter().try_fold(8, |sum: usize, value| Ok::<_, Error>(sum.saturating_add(text(value)?)))?;
                text(value)?.saturating_mul(style)
            }
            ("string" | "pprint", _) => text(value)?.saturating_mul(4),
            // Of texts, each sum is a copy of the one before.
            ("sum", rest) => {
                let each = rest
                    .iter()
                    .try_fold(text(value)?, |sum, value| Ok::<_, Error>(sum.saturating_add(text(value)?)))?;
                each.saturating_mul(length(value)) / COPIED_PER_BYTE
            }
            ("map", [filter, rest @ ..]) => {
                if let (Some(filter), Some(_)) = (filter.as_str(), value.len()) {
                    for entry in value.try_iter()? {
                        self.spend(1)?;
                        self.before(filter, &[&[entry], rest].concat())?;
                    }
                }
                ENTRY.saturating_mul(length(value))
            }
            // Those that make a list.
            _ => ENTRY.saturating_mul(length(value)),
        };
        self.check(bytes)
    }
}

/// What is called between the instructions of a template.
#[derive(Debug)]
struct Watch {
    budget: Arc<Budget>,
    name: &'static str,
}

impl Object for Watch {
    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        let Self { budget, name } = self.as_ref();
        match (*name, arguments) {
            // The numbers of a `range` are no list until somebody makes one of them.
            (RETURNED, [value]) if value.kind() == ValueKind::Iterable => return Ok(value.clone()),
            (MADE | RETURNED, [value]) => return budget.made(value.clone()),
            (SPREAD, _) => return exceeded("spreads a list over arguments, so that it cannot be bounded".to_owned()),
            (KEPT, [value, ..]) => budget.keep(value, 0)?,
            (JOINED, [left, right]) => budget.check(budget.size(left)?.saturating_add(budget.size(right)?))?,
            (MULTIPLIED, [left, right]) => budget.multiply(left, right)?,
            // What it costs is time.
            (COMPARED, _) => budget.spend(1)?,
            (check, arguments) => {
                if let Some((name, _)) = CHECKS.iter().find(|(_, known)| *known == check) {
                    budget.before(name, arguments)?;
                }
            }
        }
        // As `UnpackList` wants them to put them back where they were.
        Ok(arguments.iter().rev().cloned().collect::<Vec<_>>().into())
    }
}
