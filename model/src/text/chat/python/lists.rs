//! Filters of lists.

use std::{cmp::Ordering, collections::HashSet};

use minijinja::{State, Value, value::Kwargs};

use super::{
    Generator, Result, Type,
    calls::Call,
    error, items,
    keys::{Getter, ignore_case, order},
    length,
    objects::{Group, pairs},
    operators, slice, tests, text, tuple,
};

/// `select`, `reject`, `selectattr` and `rejectattr`: the items that pass a test, or do not.
pub(super) fn select(state: &mut State<'_, '_>, call: &Call<'_>) -> Result {
    let name = call.name;
    let (attribute, test) = match (name.ends_with("attr"), &call.arguments.positional[..]) {
        (true, [attribute, test @ ..]) => (Some(attribute), test),
        (true, []) => return Err(error(format!("`{name}` needs an attribute"))),
        (false, test) => (None, test),
    };
    if let Some((argument, _)) = call.arguments.named.first() {
        return Err(error(format!("`{name}` has no argument `{argument}`")));
    }
    let getter = Getter::new(attribute, None);
    let mut kept = Vec::new();
    for item in items(call.value)? {
        let value = getter.get(&item)?;
        let passes = match test {
            [] => value.is_true(),
            [test, rest @ ..] => tests::perform(state, &text(test)?, &value, rest)?,
        };
        if passes == name.starts_with("select") {
            kept.push(item);
        }
    }
    Ok(Generator::value(kept))
}

/// `map(attribute=..., default=...)`, or `map` with the name and the arguments of another filter.
pub(super) fn map(state: &mut State<'_, '_>, call: &Call<'_>) -> Result {
    let (items, named) = (items(call.value)?, &call.arguments.named);
    let [filter, rest @ ..] = &call.arguments.positional[..] else {
        let find = |name: &str| named.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let unknown = named.iter().find(|(name, _)| name != "attribute" && name != "default");
        return match (find("attribute"), unknown) {
            (Some(attribute), None) => {
                let getter = Getter::new(Some(&attribute), find("default"));
                Ok(Generator::value(items.iter().map(|item| getter.get(item)).collect::<Result<_>>()?))
            }
            (_, Some((name, _))) => Err(error(format!("`map` has no argument `{name}`"))),
            (None, None) if items.is_empty() => Ok(Generator::value(items)),
            (None, None) => Err(error("`map` needs a filter or an attribute")),
        };
    };
    let filter = text(filter)?;
    let mut arguments = rest.to_vec();
    if !named.is_empty() {
        arguments.push(Kwargs::from_iter(named.iter().cloned()).into());
    }
    let mapped = items.iter().map(|item| super::apply_filter(state, &filter, item, &arguments));
    Ok(Generator::value(mapped.collect::<Result<_>>()?))
}

pub(super) fn first(call: &Call<'_>) -> Result {
    let first = match call.value.downcast_object_ref::<Generator>() {
        Some(generator) => generator.next(),
        None => items(call.value)?.into_iter().next(),
    };
    Ok(first.unwrap_or_default())
}

pub(super) fn last(call: &Call<'_>) -> Result {
    match Type::of(call.value) {
        Type::Generator => Err(call.unsuitable()),
        _ => Ok(items(call.value)?.pop().unwrap_or_default()),
    }
}

pub(super) fn reverse(call: &Call<'_>) -> Result {
    match Type::of(call.value) {
        Type::Str => slice(call.value, [&().into(), &().into(), &(-1).into()]),
        Type::Generator => Ok(items(call.value)?.into_iter().rev().collect()),
        _ => Ok(Generator::value(items(call.value)?.into_iter().rev().collect())),
    }
}

pub(super) fn join(call: &Call<'_>) -> Result {
    let getter = Getter::new(call.given(1), None);
    let separator = call.get(0).map_or_else(|| Ok(String::new()), text)?;
    let texts = items(call.value)?.iter().map(|item| text(&getter.get(item)?)).collect::<Result<Vec<_>>>()?;
    Ok(texts.join(&separator).into())
}

pub(super) fn sum(call: &Call<'_>) -> Result {
    let getter = Getter::new(call.given(0), None);
    let start = call.get(1).cloned().unwrap_or_else(|| 0.into());
    if Type::of(&start) == Type::Str {
        return Err(error("`sum` cannot add texts: use `join`"));
    }
    items(call.value)?.iter().try_fold(start, |sum, item| operators::compute("+", &sum, &getter.get(item)?))
}

/// The sort key of an item: the getter's value, ignoring case unless the argument at `place` is true.
fn key(call: &Call<'_>, place: usize, getter: &Getter, item: &Value) -> Result {
    let key = getter.get(item)?;
    Ok(if call.is_true(place) { key } else { ignore_case(key) })
}

pub(super) fn sort(call: &Call<'_>) -> Result {
    // One or several attributes, with commas between them.
    let getters = match call.get(2).and_then(Value::as_str) {
        Some(text) => text.split(',').map(|attribute| Getter::new(Some(&attribute.into()), None)).collect(),
        None => vec![Getter::new(call.given(2), None)],
    };
    let keys = |item: &Value| getters.iter().map(|getter| key(call, 1, getter, item)).collect();
    Ok(sorted(items(call.value)?, keys, call.is_true(0))?.into())
}

/// Sorts by lists of keys; equal items keep their order.
fn sorted(items: Vec<Value>, keys: impl Fn(&Value) -> Result<Vec<Value>>, is_reversed: bool) -> Result<Vec<Value>> {
    let mut keyed = items.into_iter().map(|item| Ok((keys(&item)?, item))).collect::<Result<Vec<_>>>()?;
    let mut failure = None;
    keyed.sort_by(|(left, _), (right, _)| {
        let mut ordering = Ordering::Equal;
        for (left, right) in left.iter().zip(right) {
            ordering = match operators::is_equal(left, right) {
                true => Ordering::Equal,
                false => order(left, right).unwrap_or_else(|error| {
                    failure.get_or_insert(error);
                    Ordering::Equal
                }),
            };
            if ordering != Ordering::Equal {
                break;
            }
        }
        // NaN and the like are incomparable even with themselves.
        if is_reversed { ordering.reverse() } else { ordering }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

/// The number of rows or columns, the first argument.
fn count(call: &Call<'_>) -> Result<usize> {
    match usize::try_from(call.index(0)?) {
        Ok(count @ 1..) => Ok(count),
        _ => Err(error(format!("`{}` needs a count of at least 1", call.name))),
    }
}

pub(super) fn batch(call: &Call<'_>) -> Result {
    let count = count(call)?;
    let mut rows: Vec<Vec<Value>> = items(call.value)?.chunks(count).map(<[Value]>::to_vec).collect();
    if let (Some(fill), Some(last)) = (call.given(1), rows.last_mut()) {
        last.resize(count, fill.clone());
    }
    Ok(Generator::value(rows.into_iter().map(Value::from).collect()))
}

pub(super) fn columns(call: &Call<'_>) -> Result {
    let count = count(call)?;
    let items = items(call.value)?;
    let (each, n_longer) = (items.len() / count, items.len() % count);
    let mut rest = items.into_iter();
    let column = |index: usize| {
        let mut column: Vec<Value> = rest.by_ref().take(each + usize::from(index < n_longer)).collect();
        if index >= n_longer {
            column.extend(call.given(1).cloned());
        }
        column.into()
    };
    Ok(Generator::value((0..count).map(column).collect()))
}

/// A value by which equal keys of a dict are found. Unlike Python, the engine distinguishes booleans from numbers.
fn hashable(value: Value) -> Result {
    match Type::of(&value) {
        Type::List | Type::Dict => Err(error(format!("`unique` of a {}", Type::of(&value).name()))),
        Type::Bool => Ok(i32::from(value.is_true()).into()),
        _ => Ok(value),
    }
}

pub(super) fn unique(call: &Call<'_>) -> Result {
    let getter = Getter::new(call.given(1), None);
    let (mut seen, mut kept) = (HashSet::new(), Vec::new());
    for item in items(call.value)? {
        if seen.insert(hashable(key(call, 0, &getter, &item)?)?) {
            kept.push(item);
        }
    }
    Ok(Generator::value(kept))
}

pub(super) fn group_by(call: &Call<'_>) -> Result {
    let getter = Getter::new(Some(call.needed(0)?), call.given(1).cloned());
    let key = |item: &Value| key(call, 2, &getter, item);
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for item in sorted(items(call.value)?, |item| Ok(vec![key(item)?]), false)? {
        let found = key(&item)?;
        match groups.last_mut() {
            Some((key, group)) if operators::is_equal(key, &found) => group.push(item),
            _ => groups.push((found, vec![item])),
        }
    }
    let group = |(_, list): (Value, Vec<Value>)| {
        let grouper = list.first().map_or(Ok(Value::UNDEFINED), |first| getter.get(first))?;
        Ok(Value::from_object(Group { grouper, list: list.into() }))
    };
    Ok(groups.into_iter().map(group).collect::<Result<Vec<_>>>()?.into())
}

pub(super) fn sort_dict(call: &Call<'_>) -> Result {
    let place: i64 = match call.get(1).map_or(Some("key"), Value::as_str) {
        Some("key") => 0,
        Some("value") => 1,
        _ => return Err(error("`dictsort` sorts by key or value")),
    };
    if Type::of(call.value) != Type::Dict {
        return Err(call.unsuitable());
    }
    let getter = Getter::new(Some(&place.into()), None);
    let keys = |item: &Value| Ok(vec![key(call, 0, &getter, item)?]);
    Ok(sorted(pairs(call.value)?, keys, call.is_true(2))?.into())
}

/// `max` and `min`: the first of the largest or smallest items.
pub(super) fn extreme(call: &Call<'_>) -> Result {
    let getter = Getter::new(call.given(1), None);
    let wanted = if call.name == "max" { Ordering::Greater } else { Ordering::Less };
    let mut found: Option<(Value, Value)> = None;
    for item in items(call.value)? {
        let key = key(call, 0, &getter, &item)?;
        let is_better = found.as_ref().map_or(Ok(true), |(best, _)| order(&key, best).map(|order| order == wanted))?;
        if is_better {
            found = Some((key, item));
        }
    }
    Ok(found.map(|(_, item)| item).unwrap_or_default())
}

/// The value with the keys of all dicts in it sorted, as `pprint` prints it.
pub(super) fn with_sorted_keys(value: &Value) -> Result {
    match Type::of(value) {
        Type::Dict => {
            let keys = |pair: &Value| Ok(vec![pair.get_item(&0.into())?]);
            let pair = |pair: Value| Ok((pair.get_item(&0.into())?, with_sorted_keys(&pair.get_item(&1.into())?)?));
            Ok(Value::from_pairs(
                sorted(pairs(value)?, keys, false)?.into_iter().map(pair).collect::<Result<Vec<_>>>()?,
            ))
        }
        Type::List => Ok(items(value)?.iter().map(with_sorted_keys).collect::<Result<Vec<_>>>()?.into()),
        Type::Tuple if length(value).is_some() => {
            Ok(tuple(items(value)?.iter().map(with_sorted_keys).collect::<Result<_>>()?))
        }
        _ => Ok(value.clone()),
    }
}
