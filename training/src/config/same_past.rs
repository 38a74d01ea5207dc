//! The settings that a resumed run may change: those that do not affect completed steps.

use anyhow::Result;
use toml::{Table, Value};

use super::{TrainConfig, effective::remove_without_effect};

/// Keys that do not affect completed steps. `schedule` may change if the past rates stay the same, which
/// [`Schedule::has_same_past`](crate::run::schedule::Schedule::has_same_past) checks; data are compared by hash, not by
/// path.
const FREE: [&str; 9] = [
    "schedule.",
    "eval.",
    "sample.",
    "checkpoint.",
    "parallel.peer_timeout",
    "data.path",
    "model.init",
    "optim.recompute",
    "data.tokenizer",
];

/// The settings in which `now` contradicts the run started as `then`: key, old and new value. Settings without effect
/// do not count, and neither does the division of a step into micro-batches, which only affects the rounding of sums.
pub fn differences(then: &TrainConfig, now: &TrainConfig) -> Result<Vec<String>> {
    let then = TrainConfig { purpose: now.purpose, ..then.clone() };
    let mut now = now.clone();
    if now.tokens_per_step() == then.tokens_per_step() && now.model.max_seq_len == then.model.max_seq_len {
        now.data.micro_batch_size = then.data.micro_batch_size;
        now.data.tokens_per_step = then.data.tokens_per_step;
    }
    let effective = |config: &TrainConfig| {
        let mut table = config.to_table()?;
        remove_without_effect(&mut table, config);
        anyhow::Ok(table)
    };
    let mut found = Vec::new();
    compare("", &effective(&then)?, &effective(&now)?, &mut found);
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
    use crate::config::{Layers, Purpose};

    #[test]
    fn differences_lists_old_and_new_values_that_affect_completed_steps() {
        let resolve = |sets: &[&str]| {
            let sets = sets.iter().map(|set| (*set).to_owned()).collect();
            let purpose = Some(Purpose::Pretrain);
            Layers { preset: Some("tiny".to_owned()), sets, purpose, ..Layers::default() }.resolve().unwrap()
        };
        let then = resolve(&[]);
        let free = resolve(&["schedule.max_steps=1000", "eval.every=3", "checkpoint.keep=9", "data.path=elsewhere"]);
        assert_eq!(differences(&then, &free).unwrap(), Vec::<String>::new());
        // Eight rows of 32 tokens a step, in other micro-batches.
        for cut in [&["data.tokens_per_step=256"][..], &["data.micro_batch_size=2", "data.tokens_per_step=256"]] {
            assert_eq!(differences(&then, &resolve(cut)).unwrap(), Vec::<String>::new());
        }
        let smaller = differences(&then, &resolve(&["data.micro_batch_size=4"])).unwrap();
        assert_eq!(smaller, ["`data.micro_batch_size` was `8` and is now `4`"]);
        // A setting without effect, as an earlier version kept it.
        let mut earlier = then.clone();
        earlier.optim.muon.lr = 0.5;
        assert_eq!(differences(&earlier, &then).unwrap(), Vec::<String>::new());
        let other = resolve(&["optim.beta1=0.5", "model.n_kv_heads=1"]);
        let found = differences(&then, &other).unwrap();
        assert_eq!(
            found,
            ["`model.n_kv_heads` was not set and is now `1`", "`optim.beta1` was `0.9` and is now `0.5`"]
        );
    }
}
