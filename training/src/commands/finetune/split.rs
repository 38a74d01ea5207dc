//! Holds out examples for validation.

use std::collections::{BTreeMap, BTreeSet};

use hearth_model::TokenId;
use hearth_training::{
    config::TrainConfig,
    data::{examples::Example, loader::Permutation},
};

/// Splits examples. Examples with the same prompt stay together, and so do examples without a prompt that have the same
/// text; but if all have the same prompt, each is split separately. The token `bos` alone does not count as a prompt.
pub(super) fn split_by_prompt<T>(
    all: Vec<T>,
    example: impl Fn(&T) -> &Example,
    bos: Option<TokenId>,
    config: &TrainConfig,
) -> [Vec<T>; 2] {
    let prompt = |one: &T| {
        let Example { ids, trained, .. } = example(one);
        let n_read = trained.iter().take_while(|trained| !**trained).count();
        let is_prompt = ids[..n_read].iter().any(|&id| Some(id) != bos);
        if is_prompt { ids[..n_read].to_vec() } else { ids.clone() }
    };
    let mut numbers = BTreeMap::new();
    for one in &all {
        let number = numbers.len();
        numbers.entry(prompt(one)).or_insert(number);
    }
    if config.data.val_fraction == 0.0 {
        return [all, Vec::new()];
    }
    if numbers.len() == 1 {
        return split(all, |_, number| number, config);
    }
    split(all, |one, number| numbers.get(&prompt(one)).copied().unwrap_or(number), config)
}

/// Splits elements into training and held-out ones, each in the given order. `group_of` maps an element and its index
/// to the number of its group, from 0; groups are not divided. The seed chooses the held-out groups. Together they have
/// at most `data.val_fraction` of the elements, but if there are two groups or more and the share is not 0, at least
/// one is held out.
pub(super) fn split<T>(all: Vec<T>, group_of: impl Fn(&T, usize) -> usize, config: &TrainConfig) -> [Vec<T>; 2] {
    let groups: Vec<usize> = all.iter().enumerate().map(|(number, one)| group_of(one, number)).collect();
    let mut sizes = vec![0; groups.iter().max().map_or(0, |last| last + 1)];
    groups.iter().for_each(|&group| sizes[group] += 1);
    let n_val = (all.len() as f64 * config.data.val_fraction).round() as usize;
    let order = Permutation::new(config.seed, 0, sizes.len() as u64);
    let (mut held_out, mut n_held_out) = (BTreeSet::new(), 0);
    let shuffled = || (0..sizes.len() as u64).map(|place| order.at(place) as usize);
    for group in shuffled() {
        if n_held_out + sizes[group] <= n_val && held_out.len() + 1 < sizes.len() {
            held_out.insert(group);
            n_held_out += sizes[group];
        }
    }
    if held_out.is_empty() && sizes.len() > 1 && config.data.val_fraction > 0.0 {
        held_out.extend(shuffled().min_by_key(|&group| sizes[group]));
    }
    let (mut train, mut val) = (Vec::new(), Vec::new());
    for (one, group) in all.into_iter().zip(groups) {
        if held_out.contains(&group) { val.push(one) } else { train.push(one) }
    }
    [train, val]
}

#[cfg(test)]
mod tests {
    use hearth_training::data::examples::PreferencePair;

    use super::*;

    fn pair(prompt: u32, answer: u32) -> PreferencePair {
        let example = |ids: Vec<u32>| Example { trained: vec![false, false, true], ids, origin: String::new() };
        PreferencePair { chosen: example(vec![1, prompt, answer]), rejected: example(vec![1, prompt, answer + 1]) }
    }

    #[test]
    fn split_by_prompt_keeps_equal_prompts_and_equal_texts_together() {
        let mut config = TrainConfig::default();
        config.data.val_fraction = 0.25;
        let example = |ids: Vec<u32>, n_prompt: usize| Example {
            trained: (0..ids.len()).map(|at| at >= n_prompt).collect(),
            ids,
            origin: String::new(),
        };
        let answers = (0..40).map(|n| example(vec![1, n % 8, n], 2));
        let texts = (0..40).map(|n| example(vec![1, 100 + n % 8], n as usize % 2));
        let [train, val] = split_by_prompt(answers.chain(texts).collect(), |example| example, Some(1), &config);
        let starts = |examples: &[Example]| examples.iter().map(|example| example.ids[1]).collect::<BTreeSet<_>>();
        assert_eq!((train.len(), val.len()), (60, 20));
        assert!(starts(&train).is_disjoint(&starts(&val)));
        // A group larger than the validation share is not held out if there are smaller ones.
        let sizes = [20, 3, 7].into_iter().enumerate();
        let all = sizes.flat_map(|(prompt, size)| (0..size).map(move |n| example(vec![prompt as u32 + 5, n], 1)));
        let [_, val] = split_by_prompt(all.collect(), |example| example, None, &config);
        assert!([3, 7].contains(&val.len()), "{}", val.len());
    }

    #[test]
    fn split_by_prompt_keeps_preference_pairs_of_a_prompt_together() {
        let mut config = TrainConfig::default();
        config.data.val_fraction = 0.25;
        let prompts = |pairs: &[PreferencePair]| pairs.iter().map(|pair| pair.chosen.ids[1]).collect::<BTreeSet<_>>();
        let [train, val] =
            split_by_prompt((0..60).map(|n| pair(n % 12, n)).collect(), |pair| &pair.chosen, Some(1), &config);
        assert_eq!((prompts(&train).len(), prompts(&val).len(), train.len(), val.len()), (9, 3, 45, 15));
        assert!(prompts(&train).is_disjoint(&prompts(&val)));
        assert!(val.iter().map(|pair| pair.chosen.ids[2]).is_sorted(), "in order");
        // If all pairs have one prompt, or each has its own, pairs are split individually.
        for n_prompts in [1, 60] {
            let [train, val] = split_by_prompt(
                (0..60).map(|n| pair(n % n_prompts, n)).collect(),
                |pair| &pair.chosen,
                Some(1),
                &config,
            );
            assert_eq!((train.len(), val.len()), (45, 15));
        }
    }
}
