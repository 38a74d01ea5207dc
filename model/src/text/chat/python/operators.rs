//! Operators: arithmetic, comparisons, `in`, `~` and slices.

use std::{cmp::Ordering, iter};

use super::{Range, Result, Type, Value, as_float, as_index, as_int, error, escaped, int, items, text, tuple};

/// `left operator right`.
pub(crate) fn compute(operator: &str, left: &Value, right: &Value) -> Result {
    Ok(match operator {
        "+" => return add(left, right),
        "*" => return multiply(left, right),
        "%" if Type::of(left) == Type::Str => return super::percent_format(left, right),
        "~" => (text(left)? + &text(right)?).into(),
        "==" => is_equal(left, right).into(),
        "!=" => (!is_equal(left, right)).into(),
        "<" => compare(operator, left, right)?.is_some_and(Ordering::is_lt).into(),
        "<=" => compare(operator, left, right)?.is_some_and(Ordering::is_le).into(),
        ">" => compare(operator, left, right)?.is_some_and(Ordering::is_gt).into(),
        ">=" => compare(operator, left, right)?.is_some_and(Ordering::is_ge).into(),
        "in" => contains(right, left)?.into(),
        _ => return calculate(operator, left, right),
    })
}

fn wrong(operator: &str, left: &Value, right: &Value) -> minijinja::Error {
    let (left, right) = (Type::of(left).name(), Type::of(right).name());
    error(format!("`{operator}` is not defined for a {left} and a {right}"))
}

fn add(left: &Value, right: &Value) -> Result {
    match (Type::of(left), Type::of(right)) {
        (Type::Str, Type::Str) => {
            let is_safe = left.is_safe() || right.is_safe();
            let part = |value: &Value| {
                let text = value.as_str().unwrap_or_default();
                if is_safe && !value.is_safe() { escaped(text) } else { text.to_owned() }
            };
            let sum = part(left) + &part(right);
            Ok(if is_safe { Value::from_safe_string(sum) } else { sum.into() })
        }
        (Type::List, Type::List) => Ok([items(left)?, items(right)?].concat().into()),
        (Type::Tuple, Type::Tuple) => Ok(tuple([items(left)?, items(right)?].concat())),
        _ => calculate("+", left, right),
    }
}

fn multiply(left: &Value, right: &Value) -> Result {
    let (sequence, count) = match (Type::of(left), Type::of(right)) {
        (Type::Str | Type::List | Type::Tuple, Type::Int | Type::Bool) => (left, right),
        (Type::Int | Type::Bool, Type::Str | Type::List | Type::Tuple) => (right, left),
        _ => return calculate("*", left, right),
    };
    let count = usize::try_from(as_index(count)?).unwrap_or(0);
    match Type::of(sequence) {
        Type::Str => Ok(sequence.as_str().unwrap_or_default().repeat(count).into()),
        Type::List => Ok(repeated(&items(sequence)?, count).into()),
        _ => Ok(tuple(repeated(&items(sequence)?, count))),
    }
}

fn repeated(items: &[Value], count: usize) -> Vec<Value> {
    iter::repeat_n(items, count).flatten().cloned().collect()
}

/// Arithmetic of numbers.
fn calculate(operator: &str, left: &Value, right: &Value) -> Result {
    if let (Some(a), Some(b)) = (as_int(left), as_int(right)) {
        let result = match operator {
            "+" => a.checked_add(b),
            "-" => a.checked_sub(b),
            "*" => a.checked_mul(b),
            "//" => return divide(a, b).map(|(quotient, _)| int(quotient)),
            "%" => return divide(a, b).map(|(_, rest)| int(rest)),
            "**" if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            _ => return calculate_floats(operator, a as f64, b as f64),
        };
        return result.map(int).ok_or_else(|| error(format!("the result of `{operator}` is too large")));
    }
    match (as_float(left), as_float(right)) {
        (Some(a), Some(b)) => calculate_floats(operator, a, b),
        _ => Err(wrong(operator, left, right)),
    }
}

fn by_zero<T>() -> Result<T> {
    Err(error("division by zero"))
}

/// Quotient and remainder; the remainder has the sign of the divisor.
fn divide(a: i128, b: i128) -> Result<(i128, i128)> {
    let (Some(quotient), Some(rest)) = (a.checked_div(b), a.checked_rem(b)) else { return by_zero() };
    Ok(if rest != 0 && (rest < 0) != (b < 0) { (quotient - 1, rest + b) } else { (quotient, rest) })
}

fn calculate_floats(operator: &str, a: f64, b: f64) -> Result {
    let result = match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" | "//" | "%" if b == 0.0 => return by_zero(),
        "/" => a / b,
        "//" => divide_floats(a, b).0,
        "%" => divide_floats(a, b).1,
        "**" if a == 0.0 && b < 0.0 => return by_zero(),
        "**" if a < 0.0 && b.fract() != 0.0 => return Err(error("`**` with a complex result is not supported")),
        "**" => match a.powf(b) {
            power if power.is_infinite() && a.is_finite() && b.is_finite() => {
                return Err(error("the result of `**` is too large"));
            }
            power => power,
        },
        _ => return Err(error(format!("`{operator}` is not supported"))),
    };
    Ok(result.into())
}

/// As Python computes it, with the remainder first.
fn divide_floats(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0f64.copysign(b);
    } else if (rest < 0.0) != (b < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0f64.copysign(a / b), rest);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, rest)
}

/// `left == right`.
pub(super) fn is_equal(left: &Value, right: &Value) -> bool {
    match (Type::of(left), Type::of(right)) {
        (Type::Undefined, right) | (right, Type::Undefined) => right == Type::Undefined,
        (Type::None, right) | (right, Type::None) => right == Type::None,
        (Type::List, Type::List) | (Type::Tuple, Type::Tuple) => match (items(left), items(right)) {
            (Ok(left), Ok(right)) => {
                left.len() == right.len() && left.iter().zip(&right).all(|(left, right)| is_equal(left, right))
            }
            _ => false,
        },
        (Type::Dict, Type::Dict) => left.len() == right.len() && is_dict_equal(left, right),
        (Type::Range, Type::Range) => {
            let range = |value: &Value| value.downcast_object::<Range>();
            range(left).zip(range(right)).is_some_and(|(left, right)| left.is_same(&right))
        }
        (Type::Str, Type::Str) => left.as_str() == right.as_str(),
        (left_type, right_type) if left_type.is_number() && right_type.is_number() => left == right,
        (left_type, right_type) => left_type == right_type && left_type == Type::Other && left == right,
    }
}

fn is_dict_equal(left: &Value, right: &Value) -> bool {
    let has_same = |key: Value| {
        let (Ok(left), Ok(right)) = (left.get_item(&key), right.get_item(&key)) else { return false };
        is_equal(&left, &right)
    };
    left.try_iter().is_ok_and(|mut keys| keys.all(has_same))
}

/// The order of two values; `None` if one is NaN.
pub(super) fn compare(operator: &str, left: &Value, right: &Value) -> Result<Option<Ordering>> {
    match (Type::of(left), Type::of(right)) {
        (a, b) if a.is_number() && b.is_number() => Ok(match (as_int(left), as_int(right)) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            _ => as_float(left).zip(as_float(right)).and_then(|(a, b)| a.partial_cmp(&b)),
        }),
        (Type::Str, Type::Str) => Ok(Some(left.as_str().cmp(&right.as_str()))),
        (Type::List, Type::List) | (Type::Tuple, Type::Tuple) => {
            let (left, right) = (items(left)?, items(right)?);
            let differ = left.iter().zip(&right).find(|(left, right)| !is_equal(left, right));
            differ
                .map_or_else(|| Ok(Some(left.len().cmp(&right.len()))), |(left, right)| compare(operator, left, right))
        }
        _ => Err(wrong(operator, left, right)),
    }
}

/// `item in container`.
pub(super) fn contains(container: &Value, item: &Value) -> Result<bool> {
    match Type::of(container) {
        Type::Str => match (container.as_str(), item.as_str()) {
            (Some(container), Some(item)) => Ok(container.contains(item)),
            _ => Err(wrong("in", item, container)),
        },
        Type::Dict => match Type::of(item) {
            Type::List | Type::Dict => Err(error("only what is constant can be a key of a dict")),
            Type::Undefined => Ok(false),
            _ => Ok(!container.get_item(item)?.is_undefined() || has_key(container, item)),
        },
        Type::None | Type::Bool | Type::Int | Type::Float | Type::Other => Err(wrong("in", item, container)),
        _ => Ok(items(container)?.iter().any(|found| is_equal(found, item))),
    }
}

/// Whether the dict has this key, even if its value is undefined.
fn has_key(dict: &Value, key: &Value) -> bool {
    dict.try_iter().is_ok_and(|mut keys| keys.any(|found| is_equal(&found, key)))
}

/// `value[start:stop:step]`.
pub(crate) fn slice(value: &Value, bounds: [&Value; 3]) -> Result {
    let part: fn(&Value, &[usize]) -> Result = match Type::of(value) {
        Type::Str => |value, picked| {
            let characters: Vec<char> = value.as_str().unwrap_or_default().chars().collect();
            Ok(picked.iter().filter_map(|&at| characters.get(at)).collect::<String>().into())
        },
        Type::List => |value, picked| Ok(pick(&items(value)?, picked).into()),
        Type::Tuple => |value, picked| Ok(tuple(pick(&items(value)?, picked))),
        Type::Range => |value, picked| Ok(pick(&items(value)?, picked).into()),
        other => return Err(error(format!("a {} cannot be sliced", other.name()))),
    };
    let len = super::length(value).unwrap_or(0) as i64;
    let [start, stop, step] = bounds.map(|bound| if bound.is_none() { Ok(None) } else { as_index(bound).map(Some) });
    let (start, stop, step) = (start?, stop?, step?.unwrap_or(1));
    if step == 0 {
        return Err(error("the step of a slice must not be 0"));
    }
    // Where a slice begins and ends by default, and the range of positions.
    let (first, last, low, high) = if step > 0 { (0, len, 0, len) } else { (len - 1, -1, -1, len - 1) };
    let place = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(at) if at < 0 => (at + len).clamp(low, high),
        Some(at) => at.clamp(low, high),
    };
    let (start, stop) = (place(start, first), place(stop, last));
    let count = if step > 0 { stop - start } else { start - stop };
    let count =
        usize::try_from(count).unwrap_or(0).div_ceil(usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX));
    if let Some(range) = value.downcast_object_ref::<Range>() {
        return range.part(start, if count > 1 { step } else { 1 }, count);
    }
    let picked: Vec<usize> = (0..count as i64).filter_map(|n| usize::try_from(start + n * step).ok()).collect();
    part(value, &picked)
}

fn pick(items: &[Value], picked: &[usize]) -> Vec<Value> {
    picked.iter().filter_map(|&at| items.get(at).cloned()).collect()
}
