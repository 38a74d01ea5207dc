//! What a client may ask of the choice of tokens, as plain data.

use std::{collections::BTreeMap, ops::RangeInclusive};

use crate::{
    TokenId,
    error::{Error, Result},
};

/// The sampling parameters of one request, with OpenAI's names and, where OpenAI has none, vLLM's.
///
/// The defaults change nothing: a token is drawn from the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; below 1 the likely tokens gain. 0 takes the most likely token always.
    pub temperature: f32,
    /// Keep this many of the most likely tokens. 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest tokens whose probabilities reach this sum
    /// ([Holtzman et al. 2019](https://arxiv.org/abs/1904.09751)). 1 keeps all.
    pub top_p: f32,
    /// Keep the tokens at least this probable, as a share of the most likely token's probability
    /// ([Nguyen et al. 2024](https://arxiv.org/abs/2407.01082)). 0 keeps all.
    pub min_p: f32,
    /// Makes tokens of the prompt and the output less likely if above 1: positive logits are divided by it, negative
    /// ones multiplied ([Keskar et al. 2019](https://arxiv.org/abs/1909.05858)).
    pub repetition_penalty: f32,
    /// Subtracted from the logit of each token that the output has.
    pub presence_penalty: f32,
    /// Subtracted from the logit of each token once for every time that the output has it.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// Equal seeds draw equal tokens from equal logits.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether no random number is needed.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Checks every field against what it allows. `vocab_size` is the model's: it bounds the ids of `logit_bias`.
    ///
    /// # Errors
    /// [`Error::Param`] for the first field that is out of range, infinite or not a number.
    pub fn validate(&self, vocab_size: usize) -> Result<()> {
        check("temperature", self.temperature, self.temperature >= 0.0, "a number, 0 or more")?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        check_range("min_p", self.min_p, 0.0..=1.0)?;
        check("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "a number above 0")?;
        check_range("presence_penalty", self.presence_penalty, -2.0..=2.0)?;
        check_range("frequency_penalty", self.frequency_penalty, -2.0..=2.0)?;
        self.logit_bias.iter().try_for_each(|(&id, &bias)| check_bias(id, bias, vocab_size))
    }
}

fn check_bias(id: TokenId, bias: f32, vocab_size: usize) -> Result<()> {
    if id as usize >= vocab_size {
        let what = format!("has the token id {id}: allowed are ids below {vocab_size}, the vocabulary's size");
        return Err(Error::Param { name: "logit_bias", what });
    }
    check_range("logit_bias", bias, -100.0..=100.0)
}

fn check_range(name: &'static str, given: f32, allowed: RangeInclusive<f32>) -> Result<()> {
    let words = format!("between {} and {}", allowed.start(), allowed.end());
    check(name, given, allowed.contains(&given), &words)
}

fn check(name: &'static str, given: f32, is_allowed: bool, allowed: &str) -> Result<()> {
    if is_allowed && given.is_finite() {
        return Ok(());
    }
    Err(Error::Param { name, what: format!("must be {allowed}, given {given}") })
}
