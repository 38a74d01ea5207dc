//! Beam search and stochastic beam search: which partial answers continue, step by step. Without tensors: the input is
//! rows of logits, the output tokens and their parents; the caller computes rows and manages keys and values.
//!
//! Beam search keeps the `width` most likely partial answers. One that ends counts as finished only if it is itself
//! among the best `width` of its step, as in `transformers`. Finished answers are ranked by the sum of their tokens'
//! log-probabilities divided by `length ^ length_penalty`.
//!
//! In groups ([Vijayakumar et al. 2018](https://arxiv.org/abs/1610.02424)), beams compete only within their group, one
//! group after the other. Tokens that earlier groups chose at the same step get a penalty, so that the groups differ.
//!
//! Stochastic beam search ([Kool, van Hoof and Welling 2019](https://arxiv.org/abs/1903.06059)) samples `width`
//! different answers without replacement, with the same distribution as sampling answers one after the other and
//! discarding repetitions. Each answer's log-probability is perturbed with Gumbel noise, and the `width` largest win.
//! The noise is drawn top-down along the tree of answers, so that only `width` branches are visited.

mod rules;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, cmp::Ordering, collections::BTreeSet, sync::Arc};

pub use self::rules::BeamRules;
use super::{
    RandomStream, TokenLogprobs, candidates::LEAST_TEMPERATURE, logprobs::token_logprobs, random::Purpose, select::Scan,
};
use crate::{
    TokenId,
    error::{Error, Result},
    ops,
};

/// Parameters of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamParams {
    /// Number of partial answers.
    pub width: usize,
    /// Beam search, or sampling without replacement.
    pub kind: BeamKind,
    /// Divides the logits if above 0; 0 means 1.
    pub temperature: f32,
    /// Tokens that end an answer.
    pub end_ids: Arc<BTreeSet<TokenId>>,
    /// Minimum number of tokens before an answer may end.
    pub min_tokens: usize,
    /// Maximum number of tokens of an answer, at least 1.
    pub max_tokens: usize,
    /// Number of alternatives to report per token; `None`: no log-probabilities.
    pub n_top: Option<usize>,
    /// Bans and penalties, which are for [`BeamKind::Best`].
    pub rules: Option<BeamRules>,
}

/// How partial answers are ranked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BeamKind {
    /// By probability.
    Best {
        /// Exponent of the length by which the log-probability of a finished answer is divided; values above 0 favour
        /// long answers.
        length_penalty: f32,
        /// When to stop.
        early_stopping: EarlyStopping,
        /// Whether the beams search together.
        groups: BeamGroups,
    },
    /// By sampling without replacement.
    Stochastic {
        /// Equal seeds give equal answers for equal logits.
        seed: u64,
    },
}

/// Groups of beams of the same size, which search one after the other at each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamGroups {
    /// Number of groups; must divide the width.
    pub n_groups: usize,
    /// Subtracted from the log-probability of a token for each beam of an earlier group that chose it at the same step; at least
    /// 0, in nats.
    pub penalty: f64,
}

impl BeamGroups {
    /// All beams together.
    pub const ONE: Self = Self { n_groups: 1, penalty: 0.0 };
}

impl BeamKind {
    fn n_groups(self) -> usize {
        match self {
            Self::Best { groups, .. } => groups.n_groups,
            Self::Stochastic { .. } => 1,
        }
    }
}

/// When beam search stops before every answer is as long as allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// When there are `width` finished answers and the best partial one, if finished now, would not be among them.
    #[default]
    Likely,
    /// When there are `width` finished answers.
    Full,
    /// When no continuation of a partial answer can become one of the finished answers.
    Certain,
}

/// An answer, finished or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// Its tokens, including the one that ended it.
    pub token_ids: Vec<TokenId>,
    /// One entry per token, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Sum of the log-probabilities of its tokens in nats, at the temperature of the search.
    pub logprob: f64,
    /// The value for ranking: the penalized log-probability, or the perturbed one.
    pub score: f64,
    /// Penalty for tokens that earlier groups chose, in nats.
    cost: f64,
    /// The group that it belongs to; the first one has the prompt.
    group: usize,
    /// Whether its last token ended it, not its length.
    pub is_ended: bool,
    /// Identifies the path of tokens for the random stream.
    path: u64,
}

/// A token that may continue a partial answer.
#[derive(Clone, Debug)]
struct Continuation {
    parent: usize,
    id: TokenId,
    logprob: f64,
    score: f64,
    /// As of a [`Hypothesis`].
    cost: f64,
    is_ended: bool,
    reported: Option<TokenLogprobs>,
}

/// The state of a search.
#[derive(Clone, Debug)]
pub struct BeamSearch {
    params: BeamParams,
    beams: Vec<Hypothesis>,
    continuations: Vec<Continuation>,
    finished: Vec<Hypothesis>,
}

impl BeamSearch {
    /// A search at the end of the prompt: one beam without tokens. `params.width` and `params.max_tokens` must be at
    /// least 1.
    pub fn new(params: BeamParams) -> Self {
        let path = match params.kind {
            BeamKind::Best { .. } => 0,
            BeamKind::Stochastic { seed } => seed,
        };
        let root = Hypothesis {
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            logprob: 0.0,
            score: 0.0,
            cost: 0.0,
            group: 0,
            is_ended: false,
            path,
        };
        Self { params, beams: vec![root], continuations: Vec::new(), finished: Vec::new() }
    }

    /// The parameters.
    pub fn params(&self) -> &BeamParams {
        &self.params
    }

    /// The current partial answers.
    pub fn beams(&self) -> &[Hypothesis] {
        &self.beams
    }

    /// Takes the raw logits after the `beam`-th partial answer, `[vocab_size]`. `completes` returns whether a token
    /// that is not in `end_ids` ends the answer, because it completes a stop string. Each beam must be expanded once,
    /// in any order, before [`select`](Self::select).
    ///
    /// # Errors
    /// [`Error::Logits`] if the logits are invalid.
    pub fn expand(&mut self, beam: usize, logits: &[f32], completes: impl Fn(TokenId) -> bool) -> Result<()> {
        let Some(parent) = self.beams.get(beam) else { return Ok(()) };
        if !ops::all_below_infinity(logits)
            && let Some(id) = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY)
        {
            return Err(Error::Logits { what: format!("token {id} has the logit {}", logits[id]) });
        }
        let at_temperature = scaled(logits, self.params.temperature);
        let log_total = log_sum_exp(&at_temperature);
        let (scores, log_total) = match &self.params.rules {
            None => (at_temperature, log_total),
            Some(rules) => {
                let logprob = |logit: &f32| (f64::from(*logit) - log_total) as f32;
                let logprobs: Vec<f32> = at_temperature.iter().map(logprob).collect();
                (rules.applied(&parent.token_ids, &logprobs)?.into(), 0.0)
            }
        };
        let barred = self.barred(parent.token_ids.len());
        let is_possible =
            |id: TokenId| scores[id as usize].is_finite() && !barred.is_some_and(|barred| barred.contains(&id));
        let continuation = |id: TokenId| {
            let logprob = parent.logprob + f64::from(scores[id as usize]) - log_total;
            Continuation { parent: beam, id, logprob, score: logprob, cost: 0.0, is_ended: false, reported: None }
        };
        let BeamParams { width, kind, end_ids, .. } = &self.params;
        let ends = |id: TokenId| end_ids.contains(&id) || completes(id);
        let mut candidates: Vec<Continuation> = match kind {
            BeamKind::Best { .. } => {
                let n_barred = barred.map_or(0, BTreeSet::len);
                let ids = best_that_go_on(*width, &scores, n_barred, is_possible, ends);
                ids.into_iter().map(continuation).collect()
            }
            BeamKind::Stochastic { .. } => {
                let ids = (0..scores.len() as TokenId).filter(|&id| is_possible(id));
                let mut candidates: Vec<Continuation> = ids.map(continuation).collect();
                perturb(parent, &mut candidates);
                keep_best(*width, &mut candidates);
                candidates
            }
        };
        if candidates.is_empty() {
            return Err(Error::Logits { what: "all tokens of a beam are excluded".into() });
        }
        candidates.iter_mut().for_each(|candidate| candidate.is_ended = ends(candidate.id));
        if let Some(n_top) = self.params.n_top {
            for candidate in &mut candidates {
                candidate.reported = Some(token_logprobs(logits, candidate.id, n_top));
            }
        }
        self.continuations.append(&mut candidates);
        Ok(())
    }

    /// Selects the next partial answers, after every beam was expanded. Returns the index of each one's parent among
    /// the previous beams; empty at the end of the search.
    pub fn select(&mut self) -> Vec<usize> {
        let continuations = std::mem::take(&mut self.continuations);
        let parents = match self.params.kind {
            BeamKind::Best { length_penalty, early_stopping, groups } => {
                self.select_in_groups(&continuations, length_penalty, early_stopping, groups)
            }
            BeamKind::Stochastic { .. } => self.select_drawn(continuations),
        };
        if parents.is_empty() {
            self.beams.clear();
        }
        parents
    }

    /// The finished answers, best first; at most `n`.
    pub fn into_best(mut self, n: usize) -> Vec<Hypothesis> {
        self.finished.sort_by(by_score);
        self.finished.truncate(n);
        self.finished
    }

    /// One group after the other.
    fn select_in_groups(
        &mut self,
        continuations: &[Continuation],
        length_penalty: f32,
        early_stopping: EarlyStopping,
        groups: BeamGroups,
    ) -> Vec<usize> {
        let is_start = self.beams.iter().all(|beam| beam.token_ids.is_empty());
        let mut beams: Vec<(Hypothesis, usize)> = Vec::new();
        let mut chosen: Vec<TokenId> = Vec::new();
        for group in 0..groups.n_groups {
            let is_own = |continuation: &&Continuation| is_start || self.beams[continuation.parent].group == group;
            let mut own: Vec<Continuation> = continuations.iter().filter(is_own).cloned().collect();
            for continuation in &mut own {
                let n_others = chosen.iter().filter(|id| **id == continuation.id).count();
                continuation.cost = self.beams[continuation.parent].cost + groups.penalty * n_others as f64;
                continuation.score = continuation.logprob - continuation.cost;
            }
            keep_best(own.len(), &mut own);
            let going_on = own.iter().filter(|continuation| !continuation.is_ended).map(|continuation| continuation.id);
            chosen.extend(going_on.take(self.params.width / groups.n_groups));
            beams.extend(self.select_best(own, group, length_penalty, early_stopping));
        }
        let parents: Vec<usize>;
        (self.beams, parents) = beams.into_iter().unzip();
        parents
    }

    /// The beams of a group, each with its parent; empty if the group's search is over.
    fn select_best(
        &mut self,
        continuations: Vec<Continuation>,
        group: usize,
        length_penalty: f32,
        early_stopping: EarlyStopping,
    ) -> Vec<(Hypothesis, usize)> {
        let max_tokens = self.params.max_tokens;
        let width = self.params.width / self.params.kind.n_groups();
        let penalized = |score: f64, length: usize| score / (length as f64).powf(f64::from(length_penalty));
        let mut beams: Vec<(Hypothesis, usize)> = Vec::new();
        let (mut finished, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.finished).into_iter().partition(|hypothesis| hypothesis.group == group);
        for (rank, continuation) in continuations.into_iter().enumerate() {
            if beams.len() == width {
                break;
            }
            let parent = continuation.parent;
            let mut hypothesis = Hypothesis { group, ..self.continued(continuation) };
            let length = hypothesis.token_ids.len();
            hypothesis.score = penalized(hypothesis.logprob - hypothesis.cost, length);
            if !hypothesis.is_ended && length < max_tokens {
                beams.push((hypothesis, parent));
            } else if rank < width {
                finished.push(hypothesis);
            }
        }
        finished.sort_by(by_score);
        finished.truncate(width);
        let is_over = match (finished.get(width - 1), beams.first()) {
            (_, None) => true,
            (None, _) => false,
            (Some(worst), Some((best, _))) => {
                let length = match early_stopping {
                    // The longest answer has the best score that a log-probability can still reach.
                    EarlyStopping::Certain if length_penalty > 0.0 => max_tokens,
                    _ => best.token_ids.len(),
                };
                early_stopping == EarlyStopping::Full || worst.score >= penalized(best.logprob - best.cost, length)
            }
        };
        self.finished = [others, finished].concat();
        if is_over { Vec::new() } else { beams }
    }

    /// Finished answers keep competing with the perturbed log-probability at their end.
    fn select_drawn(&mut self, continuations: Vec<Continuation>) -> Vec<usize> {
        let BeamParams { width, max_tokens, .. } = self.params;
        let grown = continuations.into_iter().map(|continuation| {
            let (parent, score) = (continuation.parent, continuation.score);
            (Some(parent), Hypothesis { score, ..self.continued(continuation) })
        });
        let mut pool: Vec<(Option<usize>, Hypothesis)> = grown.collect();
        pool.extend(self.finished.drain(..).map(|hypothesis| (None, hypothesis)));
        pool.sort_by(|(_, a), (_, b)| by_score(a, b));
        pool.truncate(width);
        let (mut beams, mut parents) = (Vec::new(), Vec::new());
        for (parent, hypothesis) in pool {
            match parent.filter(|_| !hypothesis.is_ended && hypothesis.token_ids.len() < max_tokens) {
                Some(parent) => {
                    parents.push(parent);
                    beams.push(hypothesis);
                }
                None => self.finished.push(hypothesis),
            }
        }
        self.beams = beams;
        parents
    }

    fn continued(&self, continuation: Continuation) -> Hypothesis {
        let Continuation { parent, id, logprob, score, cost, is_ended, reported } = continuation;
        let parent = &self.beams[parent];
        let mut token_ids = parent.token_ids.clone();
        token_ids.push(id);
        let mut logprobs = parent.logprobs.clone();
        logprobs.extend(reported);
        let path = node_stream(parent.path).bits(id as usize, Purpose::Branch);
        Hypothesis { token_ids, logprobs, logprob, score, cost, group: parent.group, is_ended, path }
    }

    /// Tokens that must not come yet: end tokens, while the answer is too short.
    fn barred(&self, n_tokens: usize) -> Option<&BTreeSet<TokenId>> {
        (n_tokens < self.params.min_tokens).then(|| &*self.params.end_ids)
    }
}

/// The logits divided by `temperature`, 0 meaning 1, up to a common term: at no temperature does a quotient overflow.
fn scaled(logits: &[f32], temperature: f32) -> Cow<'_, [f32]> {
    if temperature <= 0.0 || temperature == 1.0 {
        return logits.into();
    }
    let largest = Scan::new(logits).largest();
    let divisor = temperature.max(LEAST_TEMPERATURE);
    let relative = |logit: f32| ((logit - largest) / divisor).max(f32::MIN);
    logits.iter().map(|&logit| if logit > f32::NEG_INFINITY { relative(logit) } else { logit }).collect()
}

/// Computes each continuation's perturbed log-probability: Gumbel noise around its log-probability, conditioned on the
/// maximum of the children being the parent's (section 4.1 of the paper; numerics in appendix B.3).
fn perturb(parent: &Hypothesis, children: &mut [Continuation]) {
    let noise = node_stream(parent.path);
    for child in &mut *children {
        let uniform = noise.uniform(child.id as usize, Purpose::Gumbel);
        // The logarithms are infinite at 0 and 1.
        let uniform = uniform.clamp(f64::MIN_POSITIVE, 1.0 - f64::EPSILON / 2.0);
        child.score = child.logprob - (-uniform.ln()).ln();
    }
    let largest = children.iter().map(|child| child.score).fold(f64::NEG_INFINITY, f64::max);
    for child in children {
        let below = log_1m_exp(child.score - largest);
        let v = parent.score - child.score + below;
        child.score = parent.score - v.max(0.0) - (-v.abs()).exp().ln_1p();
    }
}

/// `ln(1 - exp(x))` for `x` up to 0, without cancellation.
fn log_1m_exp(x: f64) -> f64 {
    if x > -std::f64::consts::LN_2 { (-x.exp_m1()).ln() } else { (-x.exp()).ln_1p() }
}

/// `ln(sum(exp(logits)))` in double precision: a search subtracts it many times, and sampling without replacement uses
/// differences.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(Scan::new(logits).largest());
    let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    largest + total.ln()
}

/// The noise for the children of a node. A node's number depends only on its tokens, so the noise does not depend on
/// the beam.
fn node_stream(path: u64) -> RandomStream {
    RandomStream::new(path, 0)
}

/// Keeps the `n` best, best first.
fn keep_best(n: usize, continuations: &mut Vec<Continuation>) {
    if n > 0 && n < continuations.len() {
        continuations.select_nth_unstable_by(n - 1, by_rank);
    }
    continuations.truncate(n);
    continuations.sort_unstable_by(by_rank);
}

/// The best allowed tokens, best first: enough that `width` of them continue the answer, if possible. At most
/// `n_barred` tokens with a logit above -infinity are not allowed.
fn best_that_go_on(
    width: usize,
    logits: &[f32],
    n_barred: usize,
    is_possible: impl Fn(TokenId) -> bool,
    ends: impl Fn(TokenId) -> bool,
) -> Vec<TokenId> {
    let scan = Scan::new(logits);
    let mut n = 2 * width;
    loop {
        let ranks = scan.first(n + n_barred).into_iter();
        let best: Vec<TokenId> =
            ranks.map(|rank| rank.place() as TokenId).filter(|&id| is_possible(id)).take(n).collect();
        if n >= logits.len() || best.iter().filter(|id| !ends(**id)).count() >= width {
            return best;
        }
        n *= 4;
    }
}

/// By score, then by parent and token, so that the order of equal scores is fixed.
fn by_rank(a: &Continuation, b: &Continuation) -> Ordering {
    let by_score = b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal);
    by_score.then(a.parent.cmp(&b.parent)).then(a.id.cmp(&b.id))
}

fn by_score(a: &Hypothesis, b: &Hypothesis) -> Ordering {
    b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal)
}
