//! The settings that a resumed run may change: those that do not affect completed steps.

use anyhow::Result;
use toml::{Table, Value};

use super::TrainConfig;

/// Keys that do not affect completed steps. `schedule` may change if the past rates stay the same, which
/// [`Schedule::has_same_past`](crate::schedule::Schedule::has_same_past) checks; data are compared by hash, not by
/// path.
const FREE: [&str; 7] = ["schedule.", "eval.", "sample.", "checkpoint.", "data.path", "model.init", "optim.recompute"];

/// The settings in which `now` contradicts the run started as `then`: key, old and new value.
pub fn differences(then: &TrainConfig, now: &TrainConfig) -> Result<Vec<String>> {
    let mut found = Vec::new();
    compare("", &then.to_table()?, &now.to_table()?, &mut found);
    Ok(found)
}

fn compare(prefix: &str, then: &Table, now: &Table, found: &mut Vec<String>) {
    let mut keys: Vec<_> = then.keys().chain(now.keys()).collect();
    keys.sort();
    keys.dedup();
    for name in keys {
        let key = format!("{prefix}{name}");
        match (then.get(name), now.get(name)) {
            (Some(Value::Table(then)), Some(Value::Table(now))) => compare(&format!("{key}."), then, now, found),
            (then, now) if then == now || FREE.iter().any(|free| key.starts_with(free)) => {}
            (then, now) => {
                let shown = |value: Option<&Value>| value.map_or("not set".to_owned(), |value| format!("`{value}`"));
                found.push(format!("`{key}` was {} and is now {}", shown(then), shown(now)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::Layers;

    #[test]
    fn differences_lists_old_and_new_values_that_affect_completed_steps() {
        let resolve = |sets: &[&str]| {
            let sets = sets.iter().map(|set| (*set).to_owned()).collect();
            Layers { preset: Some("tiny".to_owned()), sets, ..Layers::default() }.resolve().unwrap()
        };
        let then = resolve(&[]);
        let free = resolve(&["schedule.max_steps=1000", "eval.every=3", "checkpoint.keep=9", "data.path=elsewhere"]);
        assert_eq!(differences(&then, &free).unwrap(), Vec::<String>::new());
        let other = resolve(&["optim.beta1=0.5", "model.n_kv_heads=1"]);
        let found = differences(&then, &other).unwrap();
        assert_eq!(
            found,
            ["`model.n_kv_heads` was not set and is now `1`", "`optim.beta1` was `0.9` and is now `0.5`"]
        );
    }
}
