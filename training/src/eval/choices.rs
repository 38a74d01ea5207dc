//! Multiple choice: the answer that the model finds most likely, with accuracies by lm-eval's definitions.

mod item;

use anyhow::{Result, ensure};
use hearth_model::{
    TokenId,
    text::tokenizer::{EncodeOptions, Tokenizer},
};
use serde::Serialize;

pub use item::{ChoiceItem, Labeling, read_items};

use super::scorer::{Scorer, TextGroup};

/// The model's result for an item.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ItemResult {
    /// The log-likelihood of each choice in nats: the sum over its tokens.
    pub log_likelihoods: Vec<f64>,
    /// The number of tokens of each choice.
    pub n_tokens: Vec<usize>,
    /// The right choice.
    pub gold: usize,
    /// The most likely choice; the first of equals.
    pub chosen: usize,
    /// The most likely choice per character.
    pub chosen_norm: usize,
    /// The most likely choice per byte.
    pub chosen_bytes: usize,
}

/// A share of items, with its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// From 0 to 1.
    pub value: f64,
    /// Standard error: the standard deviation over items divided by the root of their number.
    pub stderr: f64,
}

/// The accuracies over all items.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChoiceScore {
    /// The most likely choice is right.
    pub acc: Accuracy,
    /// The choice with the largest log-likelihood per character is right.
    pub acc_norm: Accuracy,
    /// The choice with the largest log-likelihood per byte is right.
    pub acc_bytes: Accuracy,
}

/// Scores all choices of all items. Reports the number of finished items to `progress`.
///
/// # Errors
/// An item is longer than the model's context, or a choice has no separate token (the message names the item's line);
/// or the device fails.
pub fn score_items(
    scorer: &Scorer,
    tokenizer: &Tokenizer,
    items: &[ChoiceItem],
    max_seq_len: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<ItemResult>> {
    let groups = items.iter().map(|item| group_of(item, tokenizer, max_seq_len)).collect::<Result<Vec<_>>>()?;
    let logprobs = scorer.logprobs(&groups, progress)?;
    Ok(items.iter().zip(logprobs).map(|(item, logprobs)| result_of(item, &logprobs)).collect())
}

/// The tokens of the context with each choice, tokenized together. If the context alone, without spaces at its end, has n
/// tokens, all tokens after the first n belong to the choice.
fn group_of(item: &ChoiceItem, tokenizer: &Tokenizer, max_seq_len: usize) -> Result<TextGroup> {
    let encode = |text: &str| tokenizer.encode(text, EncodeOptions::PROMPT);
    let n_context = encode(item.context.trim_end())?.len();
    let (mut texts, mut first_scored) = (Vec::new(), Vec::new());
    for (number, choice) in item.choices.iter().enumerate() {
        let ids: Vec<TokenId> = encode(&format!("{} {choice}", item.context))?;
        ensure!(
            n_context > 0 && ids.len() > n_context,
            "{}: choice {} (`{choice}`) has no token of its own behind the text\nhint: correct this line",
            item.place,
            number + 1
        );
        ensure!(
            ids.len() <= max_seq_len,
            "{}: the text with choice {} has {} tokens, more than the model's context of {max_seq_len}\nhint: shorten it, or \
             leave it out",
            item.place,
            number + 1,
            ids.len()
        );
        texts.push(ids);
        first_scored.push(n_context);
    }
    Ok(TextGroup::of_texts(texts, &first_scored))
}

fn result_of(item: &ChoiceItem, logprobs: &[Vec<f32>]) -> ItemResult {
    let log_likelihoods: Vec<f64> =
        logprobs.iter().map(|choice| choice.iter().map(|&logprob| f64::from(logprob)).sum()).collect();
    let chosen_per = |len: &dyn Fn(&str) -> usize| {
        let per: Vec<f64> = log_likelihoods
            .iter()
            .zip(&item.choices)
            .map(|(log_likelihood, choice)| log_likelihood / len(choice) as f64)
            .collect();
        first_of_largest(&per)
    };
    ItemResult {
        n_tokens: logprobs.iter().map(Vec::len).collect(),
        gold: item.gold,
        chosen: first_of_largest(&log_likelihoods),
        chosen_norm: chosen_per(&|choice| choice.chars().count()),
        chosen_bytes: chosen_per(&str::len),
        log_likelihoods,
    }
}

fn first_of_largest(values: &[f64]) -> usize {
    values.iter().enumerate().fold(0, |best, (at, &value)| if value > values[best] { at } else { best })
}

/// The accuracies of `results`, at least one.
pub fn accuracies(results: &[ItemResult]) -> ChoiceScore {
    let of = |chosen: &dyn Fn(&ItemResult) -> usize| {
        let is_right: Vec<bool> = results.iter().map(|result| chosen(result) == result.gold).collect();
        Accuracy::of(&is_right)
    };
    ChoiceScore {
        acc: of(&|result| result.chosen),
        acc_norm: of(&|result| result.chosen_norm),
        acc_bytes: of(&|result| result.chosen_bytes),
    }
}

impl Accuracy {
    /// The share of `true`.
    pub fn of(is_right: &[bool]) -> Self {
        let n = is_right.len() as f64;
        let value = is_right.iter().filter(|is_right| **is_right).count() as f64 / n;
        // The sample variance of ones and zeros.
        let stderr = if n > 1.0 { (value * (1.0 - value) / (n - 1.0)).sqrt() } else { 0.0 };
        Self { value, stderr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_normalization_changes_the_chosen_answer() {
        let choices = vec!["short".to_owned(), "a longer choice".to_owned(), "ééé".to_owned()];
        let item = ChoiceItem { place: String::new(), context: "c".to_owned(), choices, gold: 1 };
        // Per character: -0.4, -0.383, -0.708; per byte of the last: -0.354.
        let result = result_of(&item, &[vec![-1.0, -1.0], vec![-5.75], vec![-2.125]]);
        assert_eq!((result.chosen, result.chosen_norm, result.chosen_bytes), (0, 1, 2));
        assert_eq!(result.log_likelihoods, [-2.0, -5.75, -2.125]);
        assert_eq!(result.n_tokens, [2, 1, 1]);
        let score = accuracies(&[result.clone(), ItemResult { gold: 0, ..result }]);
        assert_eq!((score.acc.value, score.acc_norm.value), (0.5, 0.5));
        assert!((score.acc.stderr - 0.5).abs() < 1e-12, "deviation 0.7071 by the root of 2");
    }

    #[test]
    fn first_of_largest_returns_the_first_of_equal_values() {
        assert_eq!(first_of_largest(&[-2.0, -1.0, -1.0]), 1);
    }
}
