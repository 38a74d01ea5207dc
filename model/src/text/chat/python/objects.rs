//! Objects and functions that the engine lacks: generators, views of dicts, ranges, groups, `dict` and others.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use minijinja::{
    State, Value,
    value::{Enumerator, Object, ObjectRepr, from_args},
};

use super::{Result, calls::Arguments, error, tuple, write_items};

/// Items that can be read once, such as the result of `select`. They are computed immediately; in Python only when they
/// are read.
#[derive(Debug)]
pub(crate) struct Generator(Mutex<VecDeque<Value>>);

impl Generator {
    pub(super) fn value(items: Vec<Value>) -> Value {
        Value::from_object(Self(Mutex::new(items.into())))
    }

    /// The items that are left.
    pub(super) fn take(&self) -> Vec<Value> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).into()
    }

    pub(super) fn next(&self) -> Option<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.take())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// The result of `keys`, `values` and `items` of a dict.
#[derive(Debug)]
pub(crate) struct View {
    pub(super) name: &'static str,
    pub(super) items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    // Views have no index.
    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        None
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

/// Integers at equal distances.
#[derive(Debug)]
pub(crate) struct Range {
    start: i64,
    stop: i64,
    step: i64,
}

/// Jinja's limit in sandboxes.
const MAX_RANGE: u64 = 100_000;

impl Range {
    pub(super) fn value(start: i64, stop: i64, step: i64) -> Result {
        let range = Self { start, stop, step };
        match range.len() {
            _ if step == 0 => Err(error("the step of `range` must not be 0")),
            len if len > MAX_RANGE => Err(error(format!("`range` is limited to {MAX_RANGE} numbers, got {len}"))),
            _ => Ok(Value::from_object(range)),
        }
    }

    fn len(&self) -> u64 {
        let distance = if self.step < 0 { self.start - self.stop } else { self.stop - self.start };
        u64::try_from(distance).unwrap_or(0).div_ceil(self.step.unsigned_abs().max(1))
    }

    fn numbers(&self) -> impl Iterator<Item = i64> + use<> {
        let (start, step) = (self.start, self.step);
        (0..self.len() as i64).map(move |index| start + index * step)
    }

    /// `len` numbers from index `first` on, taking every `n`th.
    pub(super) fn part(&self, first: i64, n: i64, len: usize) -> Result {
        let start = self.start + first * self.step;
        Self::value(start, start + n * self.step * len as i64, n * self.step)
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.numbers().eq(other.numbers())
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_i64()?;
        let index = if index < 0 { index + self.len() as i64 } else { index };
        let found = u64::try_from(index).is_ok_and(|index| index < self.len());
        found.then(|| (self.start + index * self.step).into())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.numbers().map(Value::from).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        usize::try_from(self.len()).ok()
    }
}

/// `repr` of a view or a range.
pub(super) fn repr(value: &Value) -> Result<String> {
    if let Some(Range { start, stop, step }) = value.downcast_object_ref() {
        let step = if *step == 1 { String::new() } else { format!(", {step}") };
        return Ok(format!("range({start}, {stop}{step})"));
    }
    let Some(View { name, items }) = value.downcast_object_ref() else { return Err(error("no text")) };
    let mut out = format!("{name}(");
    write_items(&mut out, '[', items, ']')?;
    out.push(')');
    Ok(out)
}

/// The contents of a list-like value, without using up a generator.
pub(crate) fn contents(value: &Value) -> Result<Vec<Value>> {
    match value.downcast_object_ref::<Generator>() {
        Some(generator) => Ok(generator.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()),
        None => Ok(value.try_iter()?.collect()),
    }
}

/// A function that also gets named arguments, unchanged. The engine's own function type rejects unknown names.
struct Function<F>(F);

impl<F> fmt::Debug for Function<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("function")
    }
}

impl<F: Fn(&mut State<'_, '_>, &[Value]) -> Result + Send + Sync + 'static> Object for Function<F> {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, arguments: &[Value]) -> Result {
        (self.0)(state, arguments)
    }
}

/// A value that can be called.
pub(crate) fn function(called: impl Fn(&mut State<'_, '_>, &[Value]) -> Result + Send + Sync + 'static) -> Value {
    Value::from_object(Function(called))
}

/// `dict`, which makes dicts and has the method `fromkeys`.
#[derive(Debug)]
pub(crate) struct DictType;

impl Object for DictType {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, arguments: &[Value]) -> Result {
        dict(arguments)
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, method: &str, arguments: &[Value]) -> Result {
        match method {
            "fromkeys" => {
                let bound = Arguments::new(arguments).bind("fromkeys", &["iterable", "value"])?;
                super::dict_from_keys(bound[0].as_ref(), bound[1].as_ref())
            }
            _ => Err(error(format!("`dict` has no method `{method}`"))),
        }
    }
}

/// `cycler(items)`: returns the items one after the other, repeatedly.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        let at = self.at.load(Ordering::Relaxed) % self.items.len().max(1);
        self.items.get(at).cloned().unwrap_or_default()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, method: &str, _: &[Value]) -> Result {
        match method {
            "next" => {
                let current = self.current();
                self.at.fetch_add(1, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(().into())
            }
            _ => Err(error(format!("`cycler` has no method `{method}`"))),
        }
    }
}

pub(crate) fn cycler(items: &[Value]) -> Result {
    match items {
        [] => Err(error("`cycler` needs an item")),
        _ => Ok(Value::from_object(Cycler { items: items.to_vec(), at: AtomicUsize::new(0) })),
    }
}

/// `joiner(separator)`: empty when it is first called, then the separator.
pub(crate) fn joiner(arguments: &[Value]) -> Result {
    let separator = Arguments::new(arguments).bind("joiner", &["sep"])?.remove(0).unwrap_or_else(|| ", ".into());
    let is_used = AtomicBool::new(false);
    Ok(function(move |_, _| Ok(if is_used.swap(true, Ordering::Relaxed) { separator.clone() } else { "".into() })))
}

/// An entry of `groupby`: a tuple with names.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) grouper: Value,
    pub(super) list: Value,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_i64()) {
            (Some("grouper"), _) | (_, Some(0)) => Some(self.grouper.clone()),
            (Some("list"), _) | (_, Some(1)) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

/// `range(stop)`, `range(start, stop)` or `range(start, stop, step)`.
pub(crate) fn range(arguments: &[Value]) -> Result {
    let numbers = arguments.iter().map(super::as_index).collect::<Result<Vec<i64>>>()?;
    match numbers[..] {
        [stop] => Range::value(0, stop, 1),
        [start, stop] => Range::value(start, stop, 1),
        [start, stop, step] => Range::value(start, stop, step),
        _ => Err(error(format!("`range` takes one to three arguments, got {}", numbers.len()))),
    }
}

/// `dict(pairs, name=value)`.
pub(crate) fn dict(arguments: &[Value]) -> Result {
    let arguments = Arguments::new(arguments);
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    match &arguments.positional[..] {
        [] => {}
        [from] if super::Type::of(from) == super::Type::Dict => {
            for key in from.try_iter()? {
                let value = from.get_item(&key)?;
                pairs.push((key, value));
            }
        }
        [from] => {
            for pair in super::items(from)? {
                let [key, value] = &super::items(&pair)?[..] else { return Err(error("`dict` needs pairs")) };
                pairs.push((key.clone(), value.clone()));
            }
        }
        _ => return Err(error("`dict` takes at most one argument without a name")),
    }
    pairs.extend(arguments.named.into_iter().map(|(name, value)| (name.into(), value)));
    Ok(Value::from_pairs(pairs))
}

/// `namespace(dict, name=value)`: a template may assign to its attributes.
pub(crate) fn namespace(arguments: &[Value]) -> Result {
    let members = dict(arguments)?;
    for name in members.try_iter()? {
        check_member(name.as_str().unwrap_or_default())?;
    }
    let (members,) = from_args(&[members])?;
    minijinja::functions::namespace(members)
}

/// Members of namespaces must not begin with an underscore.
pub(crate) fn check_member(name: &str) -> Result<()> {
    match name.starts_with('_') {
        true => Err(error(format!("a namespace must not have the member `{name}`, which begins with `_`"))),
        false => Ok(()),
    }
}

/// The pairs of a dict, as tuples.
pub(super) fn pairs(dict: &Value) -> Result<Vec<Value>> {
    let pair = |key: Value| {
        let value = dict.get_item(&key)?;
        Ok(tuple(vec![key, value]))
    };
    dict.try_iter()?.map(pair).collect()
}
