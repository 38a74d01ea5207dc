//! Finds the part of a schema that makes it unsatisfiable, for the error.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{
    super::{
        GrammarError,
        values::{Atom, Goal},
    },
    Writer,
    rules::RuleId,
};

impl Writer<'_> {
    /// The error for a grammar that matches no text. `ends[rule]` is whether a rule matches any text.
    ///
    /// It names the schema closest to the root that has no possible value; if there is none, a schema whose values
    /// would have to be nested without end.
    pub(super) fn impossible(&self, ends: &[bool]) -> GrammarError {
        let goals: HashMap<RuleId, &Goal> = self.ids.iter().map(|(goal, &id)| (id, goal)).collect();
        let mut known = HashSet::from([0]);
        // Rules without texts, each with the path of the schema that it is of.
        let mut unseen = VecDeque::from([(0, String::new())]);
        let mut endless = String::new();
        while let Some((id, at)) = unseen.pop_front() {
            let is_named = |goal: &&&Goal| goal.0.iter().any(|atom| matches!(atom, Atom::Is(_)));
            let at = goals.get(&id).filter(is_named).map_or(at, |goal| self.reader.path(goal));
            let blocking: Vec<Vec<RuleId>> =
                self.rules[id].alternatives.iter().map(|alternative| alternative.blocked_by(ends).collect()).collect();
            // Optional members do not count: there is always an alternative without them.
            let Some(fewest) = blocking.iter().map(Vec::len).min() else {
                let what = match self.forbidden.get(&id) {
                    Some(name) => format!("allows no value: it requires a member {name:?}, which it does not allow"),
                    None => "allows no value".to_owned(),
                };
                return GrammarError { at, what };
            };
            for used in blocking.into_iter().filter(|rules| rules.len() == fewest).flatten() {
                if known.insert(used) {
                    unseen.push_back((used, at.clone()));
                }
            }
            endless = at;
        }
        GrammarError {
            at: endless,
            what: "allows no value: each would have to contain another one, without end".to_owned(),
        }
    }
}
