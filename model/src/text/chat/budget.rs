//! Limits the memory of a template's text and lists by counting them as they are created. The Jinja engine only counts
//! instructions, but one instruction can double a text (`x ~ x`) or a list's depth (`[x]`), so forty instructions could
//! exhaust the memory and a hundred thousand the stack.
//!
//! The [`operations`](super::operations) of a template ask here: before one that can create a large value from small ones,
//! and for each new value.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

use super::python;

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

/// Filters and methods that turn a text or a list into a list.
const LISTS: [&str; 21] = [
    "chain",
    "dictsort",
    "fromkeys",
    "groupby",
    "items",
    "keys",
    "list",
    "map",
    "partition",
    "reject",
    "rejectattr",
    "reverse",
    "rpartition",
    "rsplit",
    "select",
    "selectattr",
    "sort",
    "split",
    "splitlines",
    "unique",
    "values",
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

    /// Takes from the budget.
    pub(super) fn spend(&self, bytes: usize) -> Result<(), Error> {
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

    /// Checks a value that is written to the output.
    pub(super) fn check_output(&self, value: &Value) -> Result<(), Error> {
        self.spend(self.text(value, 0)?)
    }

    /// Checks that a list of a value's items fits.
    pub(super) fn check_items(&self, value: &Value) -> Result<(), Error> {
        self.check(ENTRY.saturating_mul(length(value)))
    }

    /// Counts a new value: its size and its depth.
    pub(super) fn made(&self, value: Value) -> Result<Value, Error> {
        match value.as_str() {
            Some(text) => self.spend(text.len())?,
            // Its numbers are counted when they become a list.
            None if python::Type::of(&value) == python::Type::Range => {}
            None => self.walk(&value, 0)?,
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
    pub(super) fn keep(&self, value: &Value, depth: usize) -> Result<(), Error> {
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
        for entry in python::contents(value)? {
            if kind == ValueKind::Map {
                look_at(&value.get_item(&entry)?)?;
            }
            look_at(&entry)?;
        }
        Ok(())
    }

    /// Checks the operands of an operator that can create a large value from small ones.
    pub(super) fn before_operator(&self, operator: &str, left: &Value, right: &Value) -> Result<(), Error> {
        match operator {
            "+" | "~" => self.check(self.size(left)?.saturating_add(self.size(right)?)),
            "*" => self.multiply(left, right),
            "%" if left.as_str().is_some() => self.before("format", left, std::slice::from_ref(right)),
            // Only costs time.
            _ => self.spend(1),
        }
    }

    /// Checks the arguments of a filter, a method or a test that can create a large value from small ones.
    pub(super) fn before(&self, name: &str, value: &Value, arguments: &[Value]) -> Result<(), Error> {
        self.spend(1)?;
        let text = |value: &Value| self.text(value, 0);
        let texts = |values: &[Value]| {
            values.iter().try_fold(0, |sum: usize, value| Ok::<_, Error>(sum.saturating_add(text(value)?)))
        };
        let bytes = match (name, arguments) {
            ("replace", [old, new, ..]) => {
                let found = match (value.as_str(), old.as_str()) {
                    (Some(text), Some("")) => text.len() + 1,
                    (Some(text), Some(old)) => text.matches(old).count(),
                    _ => text(value)?,
                };
                text(value)?.saturating_add(found.saturating_mul(text(new)?))
            }
            ("replace" | "translate", rest) => text(value)?.saturating_mul(texts(rest)?),
            // The filter has the separator as the second argument, the method as the first.
            ("join", rest) => {
                let (list, separator) = match rest {
                    [list, ..] if value.as_str().is_some() && list.as_str().is_none() && !list.is_kwargs() => {
                        (list, texts(std::slice::from_ref(value))?)
                    }
                    rest => (value, texts(rest)?),
                };
                text(list)?.saturating_add(separator.saturating_mul(length(list)))
            }
            ("indent" | "wordwrap", rest) => {
                let width = numbers(rest).max(texts(rest)?).max(4);
                let n_lines = match (name, value.as_str()) {
                    ("indent", Some(text)) => text.split('\n').count(),
                    _ => length(value),
                };
                text(value)?.saturating_add(n_lines.saturating_mul(width))
            }
            ("format", rest) => {
                let format = value.as_str().unwrap_or_default();
                let digits = format.split(|char: char| !char.is_ascii_digit()).filter(|digits| !digits.is_empty());
                // A width that does not parse is too large.
                let widths = digits.map(|digits| digits.parse::<usize>().unwrap_or(usize::MAX));
                let widths = widths.fold(0usize, usize::saturating_add);
                let n_places = format.matches(['%', '{']).count();
                // With `*` or a field within a field, the width is an argument.
                let has_width = format.contains('*') || format.split(['{']).skip(1).any(|field| !field.contains('}'));
                let width = if has_width { numbers(rest) } else { 0 };
                let each = width.saturating_add(texts(rest)?.saturating_mul(4));
                format.len().saturating_add(widths).saturating_add(n_places.saturating_mul(each))
            }
            ("center" | "ljust" | "rjust" | "zfill", rest) => {
                text(value)?.saturating_add(numbers(rest).saturating_mul(4))
            }
            ("expandtabs", rest) => text(value)?.saturating_mul(numbers(rest).max(8)),
            ("batch" | "slice", rest) => ENTRY.saturating_mul(length(value).saturating_add(numbers(rest))),
            ("tojson", rest) => text(value)?.saturating_mul(texts(rest)?.saturating_add(8)),
            ("string" | "pprint" | "escape" | "e" | "forceescape" | "urlencode" | "xmlattr", _) => {
                text(value)?.saturating_mul(6)
            }
            // For lists, each sum copies the previous one.
            ("sum", rest) => {
                let each = text(value)?.saturating_add(texts(rest)?);
                each.saturating_mul(length(value)) / COPIED_PER_BYTE
            }
            ("map", [filter, rest @ ..]) => {
                if let Some(filter) = filter.as_str() {
                    for entry in python::contents(value).unwrap_or_default() {
                        self.before(filter, &entry, rest)?;
                    }
                }
                ENTRY.saturating_mul(length(value))
            }
            _ if LISTS.contains(&name) => ENTRY.saturating_mul(length(value)),
            _ => 0,
        };
        self.check(bytes)
    }
}

/// The sum of the numbers among these arguments, with or without names, and in tuples.
fn numbers(arguments: &[Value]) -> usize {
    let number = |value: &Value| value.as_usize().filter(|_| value.is_integer());
    let each = arguments.iter().map(|value| match number(value) {
        Some(number) => number,
        None if value.is_kwargs() || value.is_tuple() => {
            let values: Vec<Value> = match value.is_tuple() {
                true => value.try_iter().into_iter().flatten().collect(),
                false => value.try_iter().into_iter().flatten().filter_map(|key| value.get_item(&key).ok()).collect(),
            };
            values.iter().filter_map(number).fold(0, usize::saturating_add)
        }
        None => 0,
    });
    each.fold(0, usize::saturating_add)
}

/// The number of items, or the bytes of a text.
fn length(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().or_else(|| Some(python::contents(value).ok()?.len())).unwrap_or(0),
    }
}
