//! One sequence's sampler: its parameters, its random stream and the tokens it has seen.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    iter,
    sync::{Arc, OnceLock},
};

use super::{
    AdaptiveP, ChainStep, LogitDemand, LogitRow, SamplingParams, TokenLogprobs,
    candidates::Candidates,
    chain,
    random::{Purpose, RandomStream},
};
use crate::{
    TokenId,
    error::{Error, Result},
};

/// Chooses the tokens of one sequence.
///
/// A row of logits passes, in this order:
/// 1. `allowed_token_ids`, `bad_words` and `no_repeat_ngram_size`, which exclude tokens,
/// 2. `logit_bias`, for the first `logit_bias_tokens` tokens of the output,
/// 3. the steps of `samplers`, by default
///    1. `penalties`: `repetition_penalty` over the last `repeat_last_n` tokens of prompt and output, then
///       `encoder_repetition_penalty` over the tokens of the prompt, then `presence_penalty` and `frequency_penalty` over the tokens of the output,
///    2. `dry`, over the last `dry_penalty_last_n` tokens of prompt and output,
///    3. `temperature`, dynamic if `dynatemp_range` is set; at 0, the largest logit is taken (the lowest id among
///       equals) and later steps have no effect,
///    4. `smoothing`,
///    5. `top_n_sigma`,
///    6. `top_k`,
///    7. `typical_p`,
///    8. `epsilon_cutoff`,
///    9. `eta_cutoff`,
///    10. `tfs`,
///    11. `top_a`,
///    12. `top_p`,
///    13. `min_p`,
///    14. `xtc`,
/// 4. `mirostat`, which is only allowed without 3.5 to 3.14, or `adaptive_target`,
/// 5. sampling.
///
/// Each step works on the distribution that the previous one returned, as probabilities that sum to 1.
///
/// Logits that are NaN or +infinity are an error, and so is a row with only -infinity: the model's computation failed.
/// A single logit of -infinity excludes its token.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    random: RandomStream,
    /// Shared by all answers to the prompt.
    prompt: Arc<[TokenId]>,
    output: Vec<TokenId>,
    /// The distinct tokens of the prompt, computed when a penalty first needs them.
    in_prompt: OnceLock<BTreeSet<TokenId>>,
    /// The number of occurrences of each token in the output.
    output_counts: HashMap<TokenId, u32>,
    /// Whether only a temperature of 0 is set: the most common case, with a fast path.
    is_plain_greedy: bool,
    /// Mirostat's bound, in bits.
    bound: f32,
    /// The probabilities of the tokens so far that adaptive-p averages, and their weights, summed.
    average: [f64; 2],
    /// The probability of the last sampled token before it was steered, until it is accepted.
    drawn: Option<f64>,
}

/// Whether XTC acts at this position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum XtcCoin {
    Acts,
    Rests,
}

impl Sampler {
    /// A sampler for the `choice`-th answer to a prompt. `params` must be valid, see [`SamplingParams::validate`].
    pub fn new(params: SamplingParams, choice: u32, prompt_ids: &[TokenId]) -> Self {
        Self::sharing(params, choice, prompt_ids.into())
    }

    /// As [`new`](Self::new), but shares the prompt instead of copying it.
    pub fn sharing(params: SamplingParams, choice: u32, prompt: Arc<[TokenId]>) -> Self {
        let greedy = SamplingParams { seed: params.seed, ..SamplingParams::greedy() };
        Self {
            is_plain_greedy: params == greedy,
            random: RandomStream::new(params.seed, choice),
            prompt,
            output: Vec::new(),
            in_prompt: OnceLock::new(),
            bound: params.mirostat.map_or(0.0, |mirostat| 2.0 * mirostat.tau),
            average: params.adaptive_p.map_or([0.0; 2], |AdaptiveP { target, decay }| {
                let weight = 1.0 / (1.0 - f64::from(decay));
                [f64::from(target) * weight, weight]
            }),
            drawn: None,
            params,
            output_counts: HashMap::new(),
        }
    }

    /// The part of a row of logits that [`sample`](Self::sample) and [`logprobs`](Self::logprobs) need: the whole row,
    /// unless the first steps of the chain change few logits and the next step keeps few tokens. Before sampling,
    /// tokens in `barred` may be [excluded](LogitRow::without), and `ahead` may be appended to the output.
    pub fn needs(&self, barred: &BTreeSet<TokenId>, ahead: &[TokenId]) -> LogitDemand {
        let params = &self.params;
        if params.allowed_token_ids.is_some() || params.no_repeat_ngram_size > 0 {
            return LogitDemand::Whole;
        }
        // With this many distinct tokens, a part is too large.
        const TOO_MANY: usize = LogitDemand::MAX_BEST + 1;
        let mut changed = barred.clone();
        changed.extend(params.logit_bias.keys().take(TOO_MANY));
        changed.extend(params.bad_words.iter().filter_map(|word| word.last()));
        let mut is_heated = false;
        for step in params.samplers.iter().filter(|step| params.acts(**step)) {
            match step {
                // Not after a temperature: dividing first may make two logits equal.
                ChainStep::Penalties if !is_heated => {
                    changed.extend(ahead);
                    changed.extend(self.repeated().take(TOO_MANY));
                    if params.prompt_bonus != 1.0 {
                        changed.extend(self.in_prompt().iter().take(TOO_MANY));
                    }
                    changed.extend(self.output_counts.keys().take(TOO_MANY));
                }
                ChainStep::Temperature if params.is_greedy() => return LogitDemand::of_top(1, changed),
                // Temperature scales all logits alike, so the most likely tokens stay the same.
                ChainStep::Temperature if params.dynatemp_range == 0.0 => is_heated = true,
                ChainStep::TopK => return LogitDemand::of_top(params.top_k, changed),
                _ => break,
            }
        }
        LogitDemand::Whole
    }

    /// Samples the token for `position`, its index in the sequence. Does not change the sampler's state: call
    /// [`accept`](Self::accept) for a token that joins the output.
    ///
    /// # Errors
    /// [`Error::Logits`] if the logits are invalid, [`Error::Param`] if the parameters exclude all tokens.
    pub fn sample<'a>(&mut self, row: impl Into<LogitRow<'a>>, position: usize) -> Result<TokenId> {
        let row = row.into();
        if self.is_plain_greedy {
            return Candidates::new(&row)?.best().ok_or_else(|| self.ruled_out());
        }
        let uniform = self.random.uniform(position, Purpose::Token);
        let mut shaped = self.shaped(&row, self.xtc_coin(position))?;
        if self.params.mirostat.is_none() && self.params.adaptive_p.is_none() {
            return shaped.draw(uniform).ok_or_else(|| self.ruled_out());
        }
        let mut steered = shaped.clone();
        self.steer(&mut steered);
        let id = steered.draw(uniform).ok_or_else(|| self.ruled_out())?;
        // The probability before this change of the distribution, as in the paper on mirostat.
        self.drawn = Some(shaped.probability(id));
        Ok(id)
    }

    /// Adds a token to the output that the penalties count.
    pub fn accept(&mut self, id: TokenId) {
        if let Some(probability) = self.drawn.take() {
            if let Some(mirostat) = self.params.mirostat {
                self.bound -= mirostat.eta * (-probability.log2() as f32 - mirostat.tau);
            }
            if let Some(AdaptiveP { decay, .. }) = self.params.adaptive_p {
                let [sum, weight] = self.average;
                self.average = [probability + f64::from(decay) * sum, 1.0 + f64::from(decay) * weight];
            }
        }
        self.output.push(id);
        *self.output_counts.entry(id).or_insert(0) += 1;
    }

    /// The tokens that [`sample`](Self::sample) may return for these logits, each with its probability, most likely
    /// first. The probabilities are over all positions, since XTC acts only at some.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn distribution<'a>(&self, row: impl Into<LogitRow<'a>>) -> Result<Vec<(TokenId, f32)>> {
        let row = row.into();
        let share = f64::from(self.params.xtc.probability);
        let mut total: HashMap<TokenId, f64> = HashMap::new();
        for (coin, share) in [(XtcCoin::Rests, 1.0 - share), (XtcCoin::Acts, share)] {
            if share > 0.0 {
                for (id, probability) in self.candidates(&row, coin)?.into_distribution() {
                    *total.entry(id).or_insert(0.0) += share * probability;
                }
            }
        }
        let mut ranked: Vec<(TokenId, f64)> = total.into_iter().collect();
        ranked.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Ok(ranked.into_iter().map(|(id, probability)| (id, probability as f32)).collect())
    }

    /// The log-probability of `id` in the distribution from which the token at `position` is drawn, and the `n_top`
    /// largest ones. All sampling parameters apply here; [`token_logprobs`](super::token_logprobs) is without them.
    /// -infinity for a token that cannot be drawn.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn logprobs<'a>(
        &self,
        row: impl Into<LogitRow<'a>>,
        position: usize,
        wanted: (TokenId, usize),
    ) -> Result<TokenLogprobs> {
        let (id, n_top) = wanted;
        Ok(self.candidates(&row.into(), self.xtc_coin(position))?.into_logprobs(id, n_top))
    }

    /// Log-probabilities `[vocab_size]` after the chain, which must keep all tokens; -infinity for those that are excluded.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub(super) fn penalized(&self, logprobs: &[f32]) -> Result<Vec<f32>> {
        let row = LogitRow::from(logprobs);
        Ok(self.shaped(&row, XtcCoin::Rests)?.logits().to_vec())
    }

    fn xtc_coin(&self, position: usize) -> XtcCoin {
        let probability = f64::from(self.params.xtc.probability);
        if probability > 0.0 && self.random.uniform(position, Purpose::Coin) < probability {
            XtcCoin::Acts
        } else {
            XtcCoin::Rests
        }
    }

    /// All steps before the draw.
    fn candidates<'a>(&self, row: &'a LogitRow<'_>, coin: XtcCoin) -> Result<Candidates<'a>> {
        let mut candidates = self.shaped(row, coin)?;
        self.steer(&mut candidates);
        Ok(candidates)
    }

    /// Mirostat or adaptive-p.
    fn steer(&self, candidates: &mut Candidates<'_>) {
        if let Some(mirostat) = self.params.mirostat {
            candidates.keep_unsurprising(mirostat, self.bound);
        }
        if let Some(AdaptiveP { target, .. }) = self.params.adaptive_p {
            let [sum, weight] = self.average;
            candidates.draw_towards((2.0 * f64::from(target) - sum / weight).clamp(0.0, 1.0));
        }
    }

    /// All steps before mirostat and adaptive-p.
    fn shaped<'a>(&self, row: &'a LogitRow<'_>, coin: XtcCoin) -> Result<Candidates<'a>> {
        let params = &self.params;
        let mut candidates = Candidates::new(row)?;
        self.ban(&mut candidates)?;
        let is_biased = params.logit_bias_tokens.is_none_or(|n| self.output.len() < n);
        for (&id, &bias) in params.logit_bias.iter().filter(|_| is_biased) {
            candidates.change(id, |logit| logit + bias);
        }
        for step in params.samplers.iter().filter(|step| params.acts(**step)) {
            match step {
                ChainStep::Penalties => self.penalize(&mut candidates),
                ChainStep::Dry => self.penalize_repetitions(&mut candidates),
                ChainStep::Xtc if coin != XtcCoin::Acts => {}
                step => candidates.apply(*step, params),
            }
        }
        Ok(candidates)
    }

    fn ban(&self, candidates: &mut Candidates<'_>) -> Result<()> {
        let SamplingParams { allowed_token_ids, bad_words, no_repeat_ngram_size, .. } = &self.params;
        if allowed_token_ids.is_none() && bad_words.is_empty() && *no_repeat_ngram_size == 0 {
            return Ok(());
        }
        if let Some(allowed) = allowed_token_ids {
            candidates.allow(allowed);
        }
        let mut banned: BTreeSet<TokenId> = bad_words
            .iter()
            .filter_map(|word| word.split_last())
            .filter(|(_, before)| self.output.ends_with(before))
            .map(|(&last, _)| last)
            .collect();
        if *no_repeat_ngram_size > 0 {
            banned.extend(chain::completions(&self.last(None), *no_repeat_ngram_size));
        }
        if !banned.is_empty() {
            candidates.ban(&banned);
        }
        if candidates.is_nothing_left() { Err(self.ruled_out()) } else { Ok(()) }
    }

    fn penalize(&self, candidates: &mut Candidates<'_>) {
        let SamplingParams { repetition_penalty, prompt_bonus, presence_penalty, frequency_penalty, .. } = self.params;
        for id in self.repeated() {
            let penalize =
                |logit: f32| if logit > 0.0 { logit / repetition_penalty } else { logit * repetition_penalty };
            candidates.change(id, penalize);
        }
        if prompt_bonus != 1.0 {
            let favour = |logit: f32| if logit > 0.0 { logit * prompt_bonus } else { logit / prompt_bonus };
            self.in_prompt().iter().for_each(|&id| candidates.change(id, favour));
        }
        if presence_penalty != 0.0 || frequency_penalty != 0.0 {
            for (&id, &count) in &self.output_counts {
                candidates.change(id, |logit| logit - presence_penalty - frequency_penalty * count as f32);
            }
        }
    }

    /// The tokens that the repetition penalty acts on, each once.
    fn repeated(&self) -> Box<dyn Iterator<Item = TokenId> + '_> {
        if self.params.repetition_penalty == 1.0 {
            return Box::new(iter::empty());
        }
        if self.params.repeat_last_n.is_some() {
            let window: BTreeSet<TokenId> = self.last(self.params.repeat_last_n).iter().copied().collect();
            return Box::new(window.into_iter());
        }
        let in_prompt = self.in_prompt();
        let in_output = self.output_counts.keys().filter(|id| !in_prompt.contains(id));
        Box::new(in_prompt.iter().chain(in_output).copied())
    }

    /// The distinct tokens of the prompt.
    fn in_prompt(&self) -> &BTreeSet<TokenId> {
        self.in_prompt.get_or_init(|| self.prompt.iter().copied().collect())
    }

    /// The last `n` tokens of prompt and output, or all.
    fn last(&self, n: Option<usize>) -> Cow<'_, [TokenId]> {
        let n_before = self.prompt.len();
        let start = n.map_or(0, |n| (n_before + self.output.len()).saturating_sub(n));
        match start.checked_sub(n_before) {
            Some(start) => Cow::Borrowed(&self.output[start..]),
            None => Cow::Owned([&self.prompt[start..], &self.output].concat()),
        }
    }

    fn penalize_repetitions(&self, candidates: &mut Candidates<'_>) {
        let dry = &self.params.dry;
        for (id, length) in chain::repetitions(&self.last(dry.penalty_last_n), dry) {
            let excess = (length - dry.allowed_length) as f32;
            candidates.change(id, |logit| logit - dry.multiplier * dry.base.powf(excess));
        }
    }

    /// The error if no token is left. Names the parameter that excludes tokens.
    fn ruled_out(&self) -> Error {
        let name = match &self.params {
            SamplingParams { allowed_token_ids: Some(_), .. } => "allowed_token_ids",
            SamplingParams { bad_words, .. } if !bad_words.is_empty() => "bad_words",
            SamplingParams { no_repeat_ngram_size: 1.., .. } => "no_repeat_ngram_size",
            _ => return Error::Logits { what: "no token is left to sample".into() },
        };
        Error::Param { name, what: "leaves no token that could come next".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_without_a_possible_token_names_the_parameter_at_fault() {
        let logits = [0.0, f32::NEG_INFINITY, 0.0];
        let allows = SamplingParams { allowed_token_ids: Some(Arc::new([1].into())), ..SamplingParams::default() };
        let bans = SamplingParams { bad_words: [vec![0], vec![2]].into(), ..SamplingParams::default() };
        for (params, expected) in [(allows, "allowed_token_ids"), (bans, "bad_words")] {
            let logit_bias = Arc::new([(0, 1.0)].into());
            let mut sampler = Sampler::new(SamplingParams { logit_bias, ..params }, 0, &[]);
            let error = sampler.sample(&logits, 0);
            assert!(matches!(error, Err(Error::Param { name, .. }) if name == expected), "{error:?}");
        }
    }
}
