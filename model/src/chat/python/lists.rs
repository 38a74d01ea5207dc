//! Filters of lists.

use std::{cmp::Ordering, collections::HashSet};

use minijinja::{State, Value};

use super::{
    Arguments, Generator, Result, Type, as_index, error, is_true, items,
    keys::{Getter, ignore_case, order},
    length,
    objects::{Group, pairs},
    operators, required, slice, tests, text, tuple,
};

/// `map`, `select`, `reject`, `selectattr` and `rejectattr`, which apply another filter or a test.
pub(super) fn mapped(state: &mut State<'_, '_>, name: &str, list: &Value, arguments: &Arguments) -> Result {
    let (positional, named) = (&arguments.positional[..], &arguments.named[..]);
    if name == "map" {
        return map(state, list, positional, named);
    }
    let (getter, rest) = match (name.ends_with("attr"), positional) {
        (true, [attribute, rest @ ..]) => (Getter::new(Some(attribute), None)?, rest),
        (true, []) => return Err(error(format!("`{name}` needs an attribute"))),
        (false, rest) => (Getter::new(None, None)?, rest),
    };
    if !named.is_empty() {
        return Err(error(format!("`{name}` has no argument `{}`", named[0].0)));
    }
    let wanted = name.starts_with("select");
    let mut kept = Vec::new();
    for item in items(list)? {
        let value = getter.get(&item)?;
        let passes = match rest {
            [] => value.is_true(),
            [test, rest @ ..] => tests::perform(&text(test)?, &value, rest)?,
        };
        if passes == wanted {
            kept.push(item);
        }
    }
    Ok(Generator::value(kept))
}

fn map(state: &mut State<'_, '_>, list: &Value, positional: &[Value], named: &[(String, Value)]) -> Result {
    let items = items(list)?;
    let [filter, rest @ ..] = positional else {
        let find = |name: &str| named.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let unknown = named.iter().find(|(name, _)| name != "attribute" && name != "default");
        return match (find("attribute"), unknown) {
            (Some(attribute), None) => {
                let getter = Getter::new(Some(&attribute), find("default"))?;
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
        arguments.push(minijinja::value::Kwargs::from_iter(named.iter().cloned()).into());
    }
    let mapped = items.iter().map(|item| super::apply_filter(state, &filter, item, &arguments));
    Ok(Generator::value(mapped.collect::<Result<_>>()?))
}

/// The other filters of lists.
pub(super) fn apply(name: &str, list: &Value, arguments: &Arguments) -> Result {
    match name {
        "first" => {
            arguments.none(name)?;
            if let Some(generator) = list.downcast_object_ref::<Generator>() {
                return Ok(generator.next().unwrap_or_default());
            }
            Ok(items(list)?.into_iter().next().unwrap_or_default())
        }
        "last" => {
            arguments.none(name)?;
            match Type::of(list) {
                Type::Generator => Err(error("`last` of a generator")),
                _ => Ok(items(list)?.pop().unwrap_or_default()),
            }
        }
        "reverse" => {
            arguments.none(name)?;
            match Type::of(list) {
                Type::Str => slice(list, [&().into(), &().into(), &(-1).into()]),
                Type::Generator => Ok(items(list)?.into_iter().rev().collect()),
                _ => Ok(Generator::value(items(list)?.into_iter().rev().collect())),
            }
        }
        "join" => {
            let [separator, attribute] = arguments.bind(name, ["d", "attribute"])?;
            let getter = Getter::new(attribute.as_ref().filter(|attribute| !attribute.is_none()), None)?;
            let separator = separator.map_or_else(|| Ok(String::new()), |separator| text(&separator))?;
            let texts = items(list)?.iter().map(|item| text(&getter.get(item)?)).collect::<Result<Vec<_>>>()?;
            Ok(texts.join(&separator).into())
        }
        "sum" => {
            let [attribute, start] = arguments.bind(name, ["attribute", "start"])?;
            let getter = Getter::new(attribute.as_ref().filter(|attribute| !attribute.is_none()), None)?;
            let start = start.unwrap_or_else(|| 0.into());
            if Type::of(&start) == Type::Str {
                return Err(error("`sum` cannot add texts: use `join`"));
            }
            items(list)?.iter().try_fold(start, |sum, item| operators::compute("+", &sum, &getter.get(item)?))
        }
        "batch" => batch(list, arguments),
        "slice" => columns(list, arguments),
        "sort" => {
            let [reverse, case_sensitive, attribute] =
                arguments.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let getters = getters(attribute.as_ref())?;
            let keys = |item: &Value| {
                getters.iter().map(|getter| key(getter, item, case_sensitive.as_ref())).collect::<Result<Vec<_>>>()
            };
            let sorted = sorted(items(list)?, keys, is_true(reverse.as_ref()))?;
            Ok(sorted.into())
        }
        "unique" => unique(list, arguments),
        "groupby" => group_by(list, arguments),
        "dictsort" => sort_dict(list, arguments),
        _ => extreme(name, list, arguments),
    }
}

/// The key by which an item is compared.
fn key(getter: &Getter, item: &Value, case_sensitive: Option<&Value>) -> Result {
    let key = getter.get(item)?;
    Ok(if is_true(case_sensitive) { key } else { ignore_case(key) })
}

/// A getter for each attribute of a list with commas.
fn getters(attribute: Option<&Value>) -> Result<Vec<Getter>> {
    match attribute.and_then(Value::as_str) {
        Some(text) => text.split(',').map(|attribute| Getter::new(Some(&attribute.into()), None)).collect(),
        None => Ok(vec![Getter::new(attribute.filter(|attribute| !attribute.is_none()), None)?]),
    }
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
        // Numbers such as none are compared even with themselves.
        if is_reversed { ordering.reverse() } else { ordering }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

fn batch(list: &Value, arguments: &Arguments) -> Result {
    let [count, fill] = arguments.bind("batch", ["linecount", "fill_with"])?;
    let count = usize::try_from(as_index(&required("batch", "linecount", count)?)?).unwrap_or(0);
    if count == 0 {
        return Err(error("`batch` needs a count of at least 1"));
    }
    let mut rows: Vec<Vec<Value>> = items(list)?.chunks(count).map(<[Value]>::to_vec).collect();
    if let (Some(fill), Some(last)) = (fill.filter(|fill| !fill.is_none()), rows.last_mut()) {
        last.resize(count, fill);
    }
    Ok(Generator::value(rows.into_iter().map(Value::from).collect()))
}

fn columns(list: &Value, arguments: &Arguments) -> Result {
    let [count, fill] = arguments.bind("slice", ["slices", "fill_with"])?;
    let count = usize::try_from(as_index(&required("slice", "slices", count)?)?).unwrap_or(0);
    if count == 0 {
        return Err(error("`slice` needs a count of at least 1"));
    }
    let fill = fill.filter(|fill| !fill.is_none());
    let items = items(list)?;
    let (each, n_longer) = (items.len() / count, items.len() % count);
    let mut rest = items.into_iter();
    let column = |index: usize| {
        let mut column: Vec<Value> = rest.by_ref().take(each + usize::from(index < n_longer)).collect();
        if index >= n_longer {
            column.extend(fill.clone());
        }
        column.into()
    };
    Ok(Generator::value((0..count).map(column).collect()))
}

/// A value by which equal keys of a dict are found. The engine tells truth values from numbers.
fn hashable(value: Value) -> Result {
    match Type::of(&value) {
        Type::List | Type::Dict => Err(error(format!("`unique` of a {}", Type::of(&value).name()))),
        Type::Bool => Ok(i32::from(value.is_true()).into()),
        _ => Ok(value),
    }
}

fn unique(list: &Value, arguments: &Arguments) -> Result {
    let [case_sensitive, attribute] = arguments.bind("unique", ["case_sensitive", "attribute"])?;
    let getter = Getter::new(attribute.as_ref().filter(|attribute| !attribute.is_none()), None)?;
    let (mut seen, mut kept) = (HashSet::new(), Vec::new());
    for item in items(list)? {
        if seen.insert(hashable(key(&getter, &item, case_sensitive.as_ref())?)?) {
            kept.push(item);
        }
    }
    Ok(Generator::value(kept))
}

fn group_by(list: &Value, arguments: &Arguments) -> Result {
    let [attribute, default, case_sensitive] = arguments.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    let attribute = required("groupby", "attribute", attribute)?;
    let getter = Getter::new(Some(&attribute), default.filter(|default| !default.is_none()))?;
    let key = |item: &Value| key(&getter, item, case_sensitive.as_ref());
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for item in sorted(items(list)?, |item| Ok(vec![key(item)?]), false)? {
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

fn sort_dict(dict: &Value, arguments: &Arguments) -> Result {
    let [case_sensitive, by, reverse] = arguments.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let at = match by.as_ref().map_or(Some("key"), Value::as_str) {
        Some("key") => 0i64,
        Some("value") => 1,
        _ => return Err(error("`dictsort` sorts by key or value")),
    };
    if Type::of(dict) != Type::Dict {
        return Err(error(format!("`dictsort` of a {}", Type::of(dict).name())));
    }
    let getter = Getter::new(Some(&at.into()), None)?;
    let keys = |item: &Value| Ok(vec![key(&getter, item, case_sensitive.as_ref())?]);
    Ok(sorted(pairs(dict)?, keys, is_true(reverse.as_ref()))?.into())
}

/// `max` and `min`: the first of the largest or smallest items.
fn extreme(name: &str, list: &Value, arguments: &Arguments) -> Result {
    let [case_sensitive, attribute] = arguments.bind(name, ["case_sensitive", "attribute"])?;
    let getter = Getter::new(attribute.as_ref().filter(|attribute| !attribute.is_none()), None)?;
    let mut found: Option<(Value, Value)> = None;
    for item in items(list)? {
        let key = key(&getter, &item, case_sensitive.as_ref())?;
        let is_better = match &found {
            None => true,
            Some((best, _)) => {
                let ordering = order(&key, best)?;
                if name == "max" { ordering.is_gt() } else { ordering.is_lt() }
            }
        };
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
            let mut sorted = Vec::new();
            for pair in items(&sort_dict(value, &Arguments::new(&[true.into()]))?)? {
                if let [key, value] = &items(&pair)?[..] {
                    sorted.push((key.clone(), with_sorted_keys(value)?));
                }
            }
            Ok(Value::from_pairs(sorted))
        }
        Type::List => Ok(items(value)?.iter().map(with_sorted_keys).collect::<Result<Vec<_>>>()?.into()),
        Type::Tuple if length(value).is_some() => {
            Ok(tuple(items(value)?.iter().map(with_sorted_keys).collect::<Result<_>>()?))
        }
        _ => Ok(value.clone()),
    }
}
