//! Limits the memory of a template's text and lists by counting them as they are created. The Jinja engine only counts
//! instructions, but one instruction can double a text (`x ~ x`) or a list's depth (`[x]`), so forty instructions could
//! exhaust the memory and a hundred thousand the stack.
//!
//! [`instructions`](super::instructions) inserts calls into the template's code that lead here: each passes a new
//! value, or the arguments of an operation that can create a large value from small ones.

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

use super::json;

/// Limit in bytes for values that a rendering creates, plus an allowance for its input.
const MAX_BYTES: usize = 32 << 20;

/// Allowance per byte of input: templates copy and modify it several times.
const BYTES_PER_INPUT: usize = 8;

/// Maximum nesting of lists and objects.
const MAX_DEPTH: usize = 64;

/// Approximate size of a list entry in bytes; also of a number's text.
const ENTRY: usize = 32;

/// Bytes that may be copied per byte of the limit.
const COPIED_PER_BYTE: usize = 256;

/// Maximum duration of a rendering. Instructions are counted too, but some are slow on long texts.
const MAX_TIME: Duration = Duration::from_secs(5);

/// Names of the inserted functions, which no template can spell.
pub(super) const MADE: &str = "was made";
pub(super) const RETURNED: &str = "was returned";
pub(super) const KEPT: &str = "is kept";
pub(super) const JOINED: &str = "are joined";
pub(super) const MULTIPLIED: &str = "are multiplied";
pub(super) const COMPARED: &str = "are compared";
pub(super) const SPREAD: &str = "are spread";

/// Filters and methods that can create large values from small ones or split texts, and the functions that check their
/// arguments.
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

/// The template exceeded a limit.
#[derive(Debug)]
pub(super) struct Exceeded(String);

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Exceeded {}

fn exceeded<T>(what: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "limit exceeded").with_source(Exceeded(what)))
}

/// The remaining budget of one rendering.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicUsize,
    total: usize,
    until: Instant,
}

impl Budget {
    /// The budget for rendering `input`.
    pub(super) fn new(input: &Value) -> Arc<Self> {
        let budget = Self { left: AtomicUsize::new(usize::MAX), total: usize::MAX, until: Instant::now() + MAX_TIME };
        let total = MAX_BYTES + BYTES_PER_INPUT * budget.text(input, 0).unwrap_or(0);
        Arc::new(Self { left: AtomicUsize::new(total), total, ..budget })
    }

    /// The environment for the rendering: with the counting functions, without other templates.
    pub(super) fn watch<'source>(self: &Arc<Self>, environment: &Environment<'source>) -> Environment<'source> {
        let mut watched = environment.clone();
        watched.clear_templates();
        watched.remove_global("debug");
        let budget = Arc::clone(self);
        watched.set_formatter(move |out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value| {
            budget.spend(budget.text(value, 0)?)?;
            json::write_output(out, state, value)
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
            return exceeded(format!("did not finish within {} s", MAX_TIME.as_secs()));
        }
        let spent = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        spent.map(drop).or_else(|_| self.too_much())
    }

    /// Checks that `bytes` are left; they are spent when the value is created.
    fn check(&self, bytes: usize) -> Result<(), Error> {
        if bytes <= self.left.load(Ordering::Relaxed) { Ok(()) } else { self.too_much() }
    }

    fn too_much<T>(&self) -> Result<T, Error> {
        exceeded(format!("created more than {} bytes of text and lists", self.total))
    }

    /// Counts a new value: its size and its depth. Lazy values are evaluated now, since lazy values can be nested
    /// without limit.
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

    /// Visits the contents of a value. The entries of the outermost list are new; nested ones have been counted.
    fn walk(&self, value: &Value, depth: usize) -> Result<(), Error> {
        self.spend(if depth <= 1 { ENTRY } else { ENTRY / 4 })?;
        self.each(value, depth, |entry| self.walk(entry, depth + 1))
    }

    /// Checks the repetition of a text or a list.
    fn multiply(&self, left: &Value, right: &Value) -> Result<(), Error> {
        self.check(match (left.as_usize(), right.as_usize()) {
            (None, Some(n)) => self.size(left)?.saturating_mul(n),
            (Some(n), None) => self.size(right)?.saturating_mul(n),
            _ => 0,
        })
    }

    /// Checks assignments to a namespace, whose values outlive a loop iteration. Nested namespaces could form a cycle.
    fn keep(&self, value: &Value, depth: usize) -> Result<(), Error> {
        self.spend(1)?;
        if value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace")) {
            return exceeded("stores a namespace in a namespace".to_owned());
        }
        self.each(value, depth, |entry| self.keep(entry, depth + 1))
    }

    /// The approximate length of a value's text, never much too small.
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

    /// The size of a text, or of a list's entries, in bytes.
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

    /// Checks the arguments of a filter or a method, beginning with the value itself.
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
            // The filter has the separator as the second argument, the method as the first.
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
                // A width that does not parse is too large.
                let widths = numbers.map(|digits| digits.parse::<usize>().unwrap_or(usize::MAX));
                let widths = widths.fold(0usize, usize::saturating_add);
                let n_places = format.matches(['%', '{']).count();
                // With `*`, the width is an argument.
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
            // For texts, each sum copies the previous one.
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
            // Those that create a list.
            _ => ENTRY.saturating_mul(length(value)),
        };
        self.check(bytes)
    }
}

/// A function that is called between the instructions of a template.
#[derive(Debug)]
struct Watch {
    budget: Arc<Budget>,
    name: &'static str,
}

impl Object for Watch {
    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        let Self { budget, name } = self.as_ref();
        match (*name, arguments) {
            // The numbers of a `range` are counted when they become a list.
            (RETURNED, [value]) if value.kind() == ValueKind::Iterable => return Ok(value.clone()),
            (MADE | RETURNED, [value]) => return budget.made(value.clone()),
            (SPREAD, _) => return exceeded("passes a list as arguments (`*args`), which is not supported".to_owned()),
            (KEPT, [value, ..]) => budget.keep(value, 0)?,
            (JOINED, [left, right]) => budget.check(budget.size(left)?.saturating_add(budget.size(right)?))?,
            (MULTIPLIED, [left, right]) => budget.multiply(left, right)?,
            // Only costs time.
            (COMPARED, _) => budget.spend(1)?,
            (check, arguments) => {
                if let Some((name, _)) = CHECKS.iter().find(|(_, known)| *known == check) {
                    budget.before(name, arguments)?;
                }
            }
        }
        // Reversed: `UnpackList` then pushes them in their old order.
        Ok(arguments.iter().rev().cloned().collect::<Vec<_>>().into())
    }
}
