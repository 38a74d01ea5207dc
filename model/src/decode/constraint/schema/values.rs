//! Sets of JSON values of one type, and their intersections.

use std::rc::Rc;

use serde_json::Number;

use super::pattern::Pattern;

/// A schema, by its index in the reader.
pub(super) type NodeId = usize;

/// A condition on a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Atom {
    /// A schema.
    Is(NodeId),
    /// Equality with a value in the document.
    Equals(NodeId),
    /// The opposite of a goal.
    Not(Goal),
}

/// A conjunction of conditions. An empty one allows every value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Goal(pub(super) Vec<Atom>);

impl Goal {
    pub(super) fn is(node: NodeId) -> Self {
        Self(vec![Atom::Is(node)])
    }

    /// The goal that no value satisfies.
    pub(super) fn never() -> Self {
        Self(vec![Atom::Not(Self::default())])
    }

    /// A schema that it names, for messages.
    pub(super) fn node(&self) -> NodeId {
        let schema = |atom: &Atom| if let Atom::Is(node) = atom { Some(*node) } else { None };
        self.0.iter().find_map(schema).unwrap_or_default()
    }

    pub(super) fn opposite(&self) -> Self {
        match self.0.as_slice() {
            [Atom::Not(goal)] => goal.clone(),
            _ => Self(vec![Atom::Not(self.clone())]),
        }
    }

    pub(super) fn and(&self, other: &Self) -> Self {
        let mut atoms = [self.0.as_slice(), &other.0].concat();
        atoms.sort();
        atoms.dedup();
        Self(atoms)
    }
}

/// A set of values of one type. A schema is a list of such sets.
#[derive(Clone, Debug)]
pub(super) enum Values {
    Null,
    Bool(bool),
    Number(Numbers),
    Text(Texts),
    Array(Arrays),
    Object(Objects),
}

/// Numbers within bounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    /// Only this number, as it is written in the schema.
    pub(super) value: Option<Number>,
    /// Whole numbers only.
    pub(super) is_integer: bool,
    /// Only numbers that are not whole.
    pub(super) is_fraction: bool,
    /// The bounds, and whether they are excluded themselves.
    pub(super) least: Option<(f64, bool)>,
    pub(super) most: Option<(f64, bool)>,
    pub(super) multiples: Vec<Number>,
}

/// Strings.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    /// Only these.
    pub(super) only: Option<Vec<Rc<str>>>,
    /// Excludes these.
    pub(super) except: Vec<Rc<str>>,
    pub(super) min_length: u64,
    pub(super) max_length: Option<u64>,
    pub(super) patterns: Pattern,
}

/// Arrays that follow all layers.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrays {
    pub(super) layers: Vec<Items>,
    pub(super) min: u64,
    pub(super) max: Option<u64>,
    /// The schema with `uniqueItems`.
    pub(super) unique: Option<NodeId>,
    pub(super) contains: Vec<Contains>,
}

/// Goals of the items of an array.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Items {
    pub(super) first: Vec<Goal>,
    /// The goal of the remaining items.
    pub(super) rest: Option<Goal>,
}

/// How many items satisfy a goal.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contains {
    /// The schema with `contains`.
    pub(super) node: NodeId,
    pub(super) goal: Goal,
    pub(super) min: u64,
    pub(super) max: Option<u64>,
}

/// Objects that follow all layers.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    pub(super) layers: Vec<Members>,
    pub(super) required: Vec<Rc<str>>,
    pub(super) min: u64,
    /// The schema with `minProperties`.
    pub(super) min_node: NodeId,
    pub(super) max: Option<u64>,
    /// The goal for names of members.
    pub(super) names: Goal,
}

/// Goals of the members of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Members {
    pub(super) named: Vec<(Rc<str>, Goal)>,
    pub(super) patterns: Vec<(Rc<Pattern>, Goal)>,
    /// The goal of the remaining members.
    pub(super) rest: Option<Goal>,
    /// Whether the schema lists members by name, even if it lists none.
    pub(super) lists_names: bool,
}

/// All values, by type.
pub(super) fn anything() -> Vec<Values> {
    vec![
        Values::Null,
        Values::Bool(true),
        Values::Bool(false),
        Values::Number(Numbers::default()),
        Values::Text(Texts::default()),
        Values::Array(Arrays::default()),
        Values::Object(Objects::default()),
    ]
}

impl Values {
    /// The intersection of both sets. `None` if it is certain to be empty.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Null, Self::Null) => Some(Self::Null),
            (Self::Bool(left), Self::Bool(right)) => (left == right).then_some(Self::Bool(*left)),
            (Self::Number(left), Self::Number(right)) => left.and(right).map(Self::Number),
            (Self::Text(left), Self::Text(right)) => left.and(right).map(Self::Text),
            (Self::Array(left), Self::Array(right)) => left.and(right).map(Self::Array),
            (Self::Object(left), Self::Object(right)) => left.and(right).map(Self::Object),
            _ => None,
        }
    }
}

/// Both lists, without repetitions: a schema may apply the same one any number of times.
fn united<T: Clone + PartialEq>(left: &[T], right: &[T]) -> Vec<T> {
    let mut all = left.to_vec();
    right.iter().for_each(|item| {
        if !all.contains(item) {
            all.push(item.clone());
        }
    });
    all
}

/// The smaller of two limits, each of which may be missing.
fn smaller<T: PartialOrd>(left: Option<T>, right: Option<T>) -> Option<T> {
    match (left, right) {
        (Some(left), Some(right)) => Some(if left <= right { left } else { right }),
        (left, right) => left.or(right),
    }
}

/// Whether two numbers of JSON are equal.
pub(super) fn equal(left: &Number, right: &Number) -> bool {
    let whole = |number: &Number| number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    match (whole(left), whole(right)) {
        (Some(left), Some(right)) => left == right,
        _ => left.as_f64() == right.as_f64(),
    }
}

/// A positive number as digits and the power of ten that they are divided by: 25 and 2 for 0.25.
pub(super) fn decimal(number: &Number) -> Option<(u128, u32)> {
    let text = number.to_string();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits: u128 = format!("{}{fraction}", whole.trim_start_matches('-')).parse().ok()?;
    let scale = fraction.len() as i32 - exponent.trim_start_matches('+').parse::<i32>().ok()?;
    if scale >= 0 {
        Some((digits, scale.unsigned_abs()))
    } else {
        Some((digits.checked_mul(10u128.checked_pow(scale.unsigned_abs())?)?, 0))
    }
}

/// Whether `number` is a multiple of `factor`, in decimal numbers.
fn is_multiple(number: &Number, factor: &Number) -> bool {
    let exact = || {
        let ((digits, scale), (factor, factor_scale)) = (decimal(number)?, decimal(factor)?);
        let common = scale.max(factor_scale);
        let digits = digits.checked_mul(10u128.checked_pow(common - scale)?)?;
        let factor = factor.checked_mul(10u128.checked_pow(common - factor_scale)?)?;
        (factor != 0).then(|| digits % factor == 0)
    };
    exact().unwrap_or(false)
}

impl Numbers {
    /// A single number.
    pub(super) fn only(value: Number) -> Self {
        Self { value: Some(value), ..Self::default() }
    }

    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        if let (Some(left), Some(right)) = (&self.value, &other.value)
            && !equal(left, right)
        {
            return None;
        }
        // If two bounds are equal, the excluded one is narrower.
        let exclusive_first = |bound: (f64, bool)| (bound.0, !bound.1);
        let most = smaller(self.most.map(exclusive_first), other.most.map(exclusive_first));
        let multiples = united(&self.multiples, &other.multiples);
        let both = Self {
            value: self.value.clone().or_else(|| other.value.clone()),
            is_integer: self.is_integer || other.is_integer,
            is_fraction: self.is_fraction || other.is_fraction,
            // A missing bound is less than any other.
            least: if self.least >= other.least { self.least } else { other.least },
            most: most.map(exclusive_first),
            multiples,
        };
        (!both.is_empty()).then_some(both)
    }

    fn is_empty(&self) -> bool {
        if self.is_integer && self.is_fraction {
            return true;
        }
        if let Some(value) = &self.value {
            return !self.contains(value);
        }
        let (Some((least, least_excluded)), Some((most, most_excluded))) = (self.least, self.most) else {
            return false;
        };
        let unit = match self.multiples.as_slice() {
            [] if self.is_integer => 1.0,
            [] => return least > most || least == most && (least_excluded || most_excluded),
            multiples => {
                let units = multiples.iter().filter_map(Number::as_f64).fold(0.0, f64::max);
                if self.is_integer { units.max(1.0) } else { units }
            }
        };
        // The first multiple within the bounds. Decimal fractions are not exact in f64.
        const ROUNDING: f64 = 1e-9;
        let first = (least / unit - ROUNDING).ceil();
        let last = most / unit + ROUNDING;
        let is_least = (first * unit - least).abs() <= ROUNDING * unit;
        let first = if least_excluded && is_least { first + 1.0 } else { first };
        first > last || most_excluded && first >= last - 2.0 * ROUNDING
    }

    fn contains(&self, value: &Number) -> bool {
        let number = value.as_f64().unwrap_or(f64::NAN);
        let is_whole = number.fract() == 0.0;
        (!self.is_integer || is_whole)
            && (!self.is_fraction || !is_whole)
            && self.least.is_none_or(|(least, excluded)| number > least || number == least && !excluded)
            && self.most.is_none_or(|(most, excluded)| number < most || number == most && !excluded)
            && self.multiples.iter().all(|factor| is_multiple(value, factor))
    }

    /// The numbers that are not in the set. `None` if no set of this kind has them.
    pub(super) fn others(&self) -> Option<Vec<Values>> {
        if !self.multiples.is_empty() {
            return None;
        }
        let mut others = Vec::new();
        if let Some(value) = &self.value {
            let value = value.as_f64()?;
            others.push(Self { most: Some((value, true)), ..Self::default() });
            others.push(Self { least: Some((value, true)), ..Self::default() });
        }
        if self.is_integer {
            others.push(Self { is_fraction: true, ..Self::default() });
        }
        if self.is_fraction {
            others.push(Self { is_integer: true, ..Self::default() });
        }
        others.extend(self.least.map(|(least, excluded)| Self { most: Some((least, !excluded)), ..Self::default() }));
        others.extend(self.most.map(|(most, excluded)| Self { least: Some((most, !excluded)), ..Self::default() }));
        Some(others.into_iter().map(Values::Number).collect())
    }
}

impl Texts {
    /// Only these.
    pub(super) fn only(texts: Vec<Rc<str>>) -> Self {
        Self { only: Some(texts), ..Self::default() }
    }

    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let only = match (&self.only, &other.only) {
            (Some(left), Some(right)) => Some(left.iter().filter(|text| right.contains(text)).cloned().collect()),
            (left, right) => left.clone().or_else(|| right.clone()),
        };
        let mut both = Self {
            only,
            except: [self.except.as_slice(), &other.except].concat(),
            min_length: self.min_length.max(other.min_length),
            max_length: smaller(self.max_length, other.max_length),
            patterns: self.patterns.and(&other.patterns),
        };
        both.except.sort();
        both.except.dedup();
        let Self { only, except, min_length, max_length, .. } = &mut both;
        if let Some(only) = only {
            only.retain(|text| {
                let length = text.chars().count() as u64;
                !except.contains(text) && length >= *min_length && max_length.is_none_or(|most| length <= most)
            });
            except.clear();
            (*min_length, *max_length) = (0, None);
            if only.is_empty() {
                return None;
            }
        }
        let is_empty = both.max_length.is_some_and(|most| most < both.min_length);
        (!is_empty).then_some(both)
    }

    /// The strings that are not in the set.
    pub(super) fn others(&self) -> Vec<Values> {
        let mut others = Vec::new();
        if let Some(only) = &self.only {
            others.push(Self { except: only.clone(), ..Self::default() });
        }
        if !self.except.is_empty() {
            others.push(Self::only(self.except.clone()));
        }
        if self.min_length > 0 {
            others.push(Self { max_length: Some(self.min_length - 1), ..Self::default() });
        }
        others.extend(self.max_length.map(|most| Self { min_length: most + 1, ..Self::default() }));
        others.extend(self.patterns.others().into_iter().map(|patterns| Self { patterns, ..Self::default() }));
        others.into_iter().map(Values::Text).collect()
    }
}

impl Arrays {
    fn and(&self, other: &Self) -> Option<Self> {
        let both = Self {
            layers: united(&self.layers, &other.layers),
            min: self.min.max(other.min),
            max: smaller(self.max, other.max),
            unique: self.unique.or(other.unique),
            contains: united(&self.contains, &other.contains),
        };
        both.max.is_none_or(|most| most >= both.min).then_some(both)
    }

    /// The goal of an item.
    pub(super) fn item(&self, index: usize) -> Goal {
        let goals = self.layers.iter().filter_map(|layer| layer.first.get(index).or(layer.rest.as_ref()));
        goals.fold(Goal::default(), |all, goal| all.and(goal))
    }

    /// The number of items with separate goals.
    pub(super) fn n_first(&self) -> usize {
        self.layers.iter().map(|layer| layer.first.len()).max().unwrap_or_default()
    }

    /// The goal of the remaining items.
    pub(super) fn rest(&self) -> Goal {
        let goals = self.layers.iter().filter_map(|layer| layer.rest.as_ref());
        goals.fold(Goal::default(), |all, goal| all.and(goal))
    }

    /// The arrays that are not in the set. `None` if no set of this kind has them.
    pub(super) fn others(&self) -> Option<Vec<Values>> {
        if self.unique.is_some() {
            return None;
        }
        let mut others = Vec::new();
        if self.min > 0 {
            others.push(Self { max: Some(self.min - 1), ..Self::default() });
        }
        others.extend(self.max.map(|most| Self { min: most + 1, ..Self::default() }));
        for layer in &self.layers {
            for (index, goal) in layer.first.iter().enumerate().filter(|(_, goal)| !goal.0.is_empty()) {
                let mut first = vec![Goal::default(); index];
                first.push(goal.opposite());
                let layers = vec![Items { first, rest: None }];
                others.push(Self { layers, min: index as u64 + 1, ..Self::default() });
            }
            match &layer.rest {
                Some(rest) if *rest == Goal::never() => {
                    others.push(Self { min: layer.first.len() as u64 + 1, ..Self::default() });
                }
                Some(rest) if !rest.0.is_empty() => {
                    if !layer.first.is_empty() {
                        return None;
                    }
                    let contains = Contains { node: 0, goal: rest.opposite(), min: 1, max: None };
                    others.push(Self { contains: vec![contains], ..Self::default() });
                }
                _ => {}
            }
        }
        for Contains { node, goal, min, max } in &self.contains {
            let contains = |min, max| vec![Contains { node: *node, goal: goal.clone(), min, max }];
            if *min > 0 {
                others.push(Self { contains: contains(0, Some(min - 1)), ..Self::default() });
            }
            others.extend(max.map(|max| Self { contains: contains(max + 1, None), ..Self::default() }));
        }
        Some(others.into_iter().map(Values::Array).collect())
    }
}

impl Objects {
    /// With these members.
    pub(super) fn requiring(required: Vec<Rc<str>>) -> Self {
        Self { required, ..Self::default() }
    }

    fn and(&self, other: &Self) -> Option<Self> {
        let mut required = self.required.clone();
        required.extend(other.required.iter().filter(|name| !self.required.contains(name)).cloned());
        let both = Self {
            layers: united(&self.layers, &other.layers),
            required,
            min: self.min.max(other.min),
            min_node: if self.min >= other.min { self.min_node } else { other.min_node },
            max: smaller(self.max, other.max),
            names: self.names.and(&other.names),
        };
        both.max.is_none_or(|most| most >= both.min && most >= both.required.len() as u64).then_some(both)
    }

    /// The objects that are not in the set. `None` if no set of this kind has them.
    pub(super) fn others(&self) -> Option<Vec<Values>> {
        if !self.names.0.is_empty() {
            return None;
        }
        // All names in their order, which the others keep.
        let listed =
            self.layers.iter().flat_map(|layer| layer.named.iter().map(|(name, _)| (Rc::clone(name), Goal::default())));
        let order = Members { named: listed.collect(), ..Members::default() };
        let with = |name: &Rc<str>, goal: Goal| {
            vec![order.clone(), Members { named: vec![(Rc::clone(name), goal)], ..Members::default() }]
        };
        let mut others = Vec::new();
        for name in &self.required {
            others.push(Self { layers: with(name, Goal::never()), ..Self::default() });
        }
        if self.min > 0 {
            others.push(Self { layers: vec![order.clone()], max: Some(self.min - 1), ..Self::default() });
        }
        others.extend(self.max.map(|most| Self { layers: vec![order.clone()], min: most + 1, ..Self::default() }));
        for layer in &self.layers {
            let is_anything = |goal: &Goal| goal.0.is_empty();
            if !layer.rest.iter().all(is_anything) || !layer.patterns.iter().all(|(_, goal)| is_anything(goal)) {
                return None;
            }
            for (name, goal) in layer.named.iter().filter(|(_, goal)| !is_anything(goal)) {
                let required = vec![Rc::clone(name)];
                others.push(Self { layers: with(name, goal.opposite()), required, ..Self::default() });
            }
        }
        Some(others.into_iter().map(Values::Object).collect())
    }
}
