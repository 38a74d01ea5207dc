//! Sampling parameters, as plain data.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::RangeInclusive,
    str::FromStr,
    sync::Arc,
};

use crate::{
    TokenId,
    error::{Error, Result},
};

/// The sampling parameters of one request, with the names of OpenAI, vLLM and llama.cpp, in this order of precedence.
///
/// The defaults are neutral: tokens are sampled from the model's own distribution. The order in which parameters apply
/// is documented at [`Sampler`](super::Sampler). Clones are cheap: they share the lists, which may be as long as the
/// vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; values below 1 favour likely tokens. 0 always takes the most likely token.
    pub temperature: f32,
    /// Dynamic temperature: how far the temperature varies with the entropy of the distribution. 0 disables it. See
    /// [`SamplingParams::dynatemp_exponent`].
    pub dynatemp_range: f32,
    /// The temperature is `low + (high - low) * (entropy / largest possible entropy)^exponent`, from
    /// `low = temperature - range` (but not below 0) to `high = temperature + range`
    /// ([the proposal in llama.cpp](https://github.com/ggml-org/llama.cpp/pull/4972)).
    pub dynatemp_exponent: f32,
    /// Keep this many of the most likely tokens. 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of most likely tokens whose probabilities sum to this value ([Holtzman et al.
    /// 2019](https://arxiv.org/abs/1904.09751)). 1 keeps all.
    pub top_p: f32,
    /// Keep tokens whose probability is at least this fraction of the largest one ([Nguyen et al.
    /// 2024](https://arxiv.org/abs/2407.01082)). 0 keeps all.
    pub min_p: f32,
    /// Keep the smallest set of tokens whose probabilities sum to this value, in the order of how close their surprise
    /// is to the distribution's entropy ([Meister et al. 2022](https://arxiv.org/abs/2202.00666)). 1 keeps all.
    pub typical_p: f32,
    /// Keep tokens whose logit is within this many standard deviations of the largest ([Tang et al.
    /// 2024](https://arxiv.org/abs/2411.07641)). 0 keeps all.
    pub top_n_sigma: f32,
    /// Keep tokens whose probability is at least this value, and always the most likely one ([Hewitt et al.
    /// 2022](https://arxiv.org/abs/2210.15191)). 0 keeps all.
    pub epsilon_cutoff: f32,
    /// Keep tokens whose probability is at least the smaller of this value and `sqrt(value) * exp(-entropy)`, and always the
    /// most likely one (eta sampling, [the same paper](https://arxiv.org/abs/2210.15191)). 0 keeps all.
    pub eta_cutoff: f32,
    /// Tail-free sampling: keep the most likely tokens up to where the curve of sorted probabilities has used this share of
    /// its bends, the absolute second differences ([Phénix and Egan
    /// 2019](https://www.trentonbricken.com/Tail-Free-Sampling/)). 1 keeps all.
    pub tfs: f32,
    /// Keep tokens whose probability is at least this value times the square of the largest one ([the
    /// proposal](https://github.com/BlinkDL/RWKV-LM#the-top-a-sampling-method)). 0 keeps all.
    pub top_a: f32,
    /// Quadratic smoothing of the logits.
    pub smoothing: Smoothing,
    /// XTC: sometimes removes the most likely tokens.
    pub xtc: Xtc,
    /// Mirostat: controls the surprise of the text. Replaces all truncating parameters.
    pub mirostat: Option<Mirostat>,
    /// Adaptive-p: prefers tokens whose probability is near a target.
    pub adaptive_p: Option<AdaptiveP>,
    /// Values above 1 make tokens of the prompt and the output less likely: positive logits are divided by it, negative
    /// ones multiplied ([Keskar et al. 2019](https://arxiv.org/abs/1909.05858)).
    pub repetition_penalty: f32,
    /// Number of last tokens that `repetition_penalty` considers. `None`: all.
    pub repeat_last_n: Option<usize>,
    /// Subtracted from the logit of each token that occurs in the output.
    pub presence_penalty: f32,
    /// Subtracted from the logit of each token, once for every time it occurs in the output.
    pub frequency_penalty: f32,
    /// Values above 1 make tokens of the prompt more likely: positive logits are multiplied by it, negative ones divided
    /// (`transformers`' `encoder_repetition_penalty`, on the prompt).
    pub prompt_bonus: f32,
    /// No sequence of this many tokens occurs twice in prompt and output: a token that would complete one is excluded
    /// ([Paulus et al. 2017](https://arxiv.org/abs/1705.04304), 2.5). 0 disables it.
    pub no_repeat_ngram_size: usize,
    /// DRY: makes tokens less likely that would continue a repetition.
    pub dry: Dry,
    /// Added to the logits of these tokens.
    pub logit_bias: Arc<BTreeMap<TokenId, f32>>,
    /// Number of first tokens of the output that `logit_bias` acts on. `None`: all.
    pub logit_bias_tokens: Option<usize>,
    /// The only allowed tokens. `None`: all.
    pub allowed_token_ids: Option<Arc<BTreeSet<TokenId>>>,
    /// Sequences of tokens that must not occur in the output: the last token of one is excluded after the others.
    pub bad_words: Arc<[Vec<TokenId>]>,
    /// The steps to apply, in this order; other steps are not applied.
    pub samplers: Vec<ChainStep>,
    /// Equal seeds give equal tokens for equal logits.
    pub seed: u64,
}

/// XTC, "exclude top choices": with a given probability, all tokens above a threshold except the least likely one are
/// removed ([the proposal](https://github.com/oobabooga/text-generation-webui/pull/6335)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// Probability of acting, from 0 (never) to 1.
    pub probability: f32,
    /// Minimum probability of the tokens to remove, from 0 to 1. Above 0.5 there is never more than one such token, so
    /// nothing happens.
    pub threshold: f32,
}

/// Smoothing of the logits by a parabola around the largest one ([the
/// proposal](https://github.com/oobabooga/text-generation-webui/pull/5403), and [its
/// curve](https://github.com/oobabooga/text-generation-webui/pull/5551)): at the distance `d = largest - logit`, the new
/// distance is `factor * (d^2 * (3 - curve) / 2 + d^3 * (curve - 1) / 2)`. So tokens near the largest come nearer, and others
/// move away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Smoothing {
    /// Strength. 0: disabled.
    pub factor: f32,
    /// From 1, the parabola, to 3, a cubic curve.
    pub curve: f32,
}

/// Adaptive-p: tokens are drawn by how near their probability is to a target, which moves so that the probabilities of the
/// chosen tokens average to it ([the proposal in llama.cpp](https://github.com/ggml-org/llama.cpp/pull/17927)).
///
/// With probabilities `p` and the moved target `t`, the logits become `5 - 10 * d^2 / (1 + d)`, where `d = |p - t| / 0.3`; and
/// `t` is twice the target less the decaying average of the probabilities of the tokens so far, within 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveP {
    /// Average probability of the chosen tokens, from 0 to 1.
    pub target: f32,
    /// Weight of the average's past at each token, from 0 to 0.99: it is over about `1 / (1 - decay)` tokens.
    pub decay: f32,
}

/// Mirostat: a limit on the surprise of a token that adapts to the surprise of the text so far ([Basu et al.
/// 2020](https://arxiv.org/abs/2007.14966)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// The algorithm of the paper.
    pub version: MirostatVersion,
    /// Target surprise in bits per token.
    pub tau: f32,
    /// Learning rate of the limit.
    pub eta: f32,
}

/// The algorithms of the paper on mirostat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirostatVersion {
    /// Algorithm 1: keeps `k` tokens, by an estimate of the distribution's exponent.
    V1,
    /// Algorithm 2: keeps tokens whose surprise is within the limit.
    V2,
}

/// DRY, "don't repeat yourself": a penalty that grows with the length of the repetition that a token would continue
/// ([the proposal](https://github.com/oobabooga/text-generation-webui/pull/5637)).
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Penalty of a repetition of `allowed_length` tokens. 0: disabled.
    pub multiplier: f32,
    /// Factor of the penalty for each further token of the repetition, at least 1.
    pub base: f32,
    /// Length in tokens of the shortest repetition that is penalized, at least 1.
    pub allowed_length: usize,
    /// Number of last tokens to search for repetitions. `None`: all.
    pub penalty_last_n: Option<usize>,
    /// Tokens that end a repetition; sequences are not matched across them.
    pub sequence_breakers: Arc<BTreeSet<TokenId>>,
}

/// A step of the chain, by its name in `samplers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainStep {
    /// `repetition_penalty`, `presence_penalty` and `frequency_penalty`.
    Penalties,
    /// [`Dry`].
    Dry,
    /// `temperature`, dynamic or not.
    Temperature,
    /// [`Smoothing`].
    Smoothing,
    /// `top_n_sigma`.
    TopNSigma,
    /// `top_k`.
    TopK,
    /// `typical_p`.
    TypicalP,
    /// `epsilon_cutoff`.
    EpsilonCutoff,
    /// `eta_cutoff`.
    EtaCutoff,
    /// `tfs`.
    Tfs,
    /// `top_a`.
    TopA,
    /// `top_p`.
    TopP,
    /// `min_p`.
    MinP,
    /// [`Xtc`].
    Xtc,
}

impl ChainStep {
    /// All steps, in the default order.
    pub const DEFAULT_ORDER: [Self; 14] = [
        Self::Penalties,
        Self::Dry,
        Self::Temperature,
        Self::Smoothing,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::EpsilonCutoff,
        Self::EtaCutoff,
        Self::Tfs,
        Self::TopA,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
    ];

    /// The step's name in requests, as in llama.cpp.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::Temperature => "temperature",
            Self::Smoothing => "smoothing",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typical_p",
            Self::EpsilonCutoff => "epsilon_cutoff",
            Self::EtaCutoff => "eta_cutoff",
            Self::Tfs => "tfs",
            Self::TopA => "top_a",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
        }
    }
}

impl fmt::Display for ChainStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ChainStep {
    type Err = Error;

    /// llama.cpp also uses `typ_p` for `typical_p`.
    fn from_str(name: &str) -> Result<Self> {
        let name = if name == "typ_p" { "typical_p" } else { name };
        Self::DEFAULT_ORDER.into_iter().find(|step| step.name() == name).ok_or_else(|| {
            let names = Self::DEFAULT_ORDER.map(|step| format!("`{step}`")).join(", ");
            Error::Param { name: "samplers", what: format!("must have names from {names}, got `{name}`") }
        })
    }
}

impl Default for Xtc {
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1 }
    }
}

impl Default for Smoothing {
    fn default() -> Self {
        Self { factor: 0.0, curve: 1.0 }
    }
}

impl Default for Mirostat {
    fn default() -> Self {
        Self { version: MirostatVersion::V2, tau: 5.0, eta: 0.1 }
    }
}

impl Default for Dry {
    fn default() -> Self {
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, penalty_last_n: None, sequence_breakers: Arc::default() }
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            tfs: 1.0,
            top_a: 0.0,
            smoothing: Smoothing::default(),
            xtc: Xtc::default(),
            mirostat: None,
            adaptive_p: None,
            repetition_penalty: 1.0,
            repeat_last_n: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            prompt_bonus: 1.0,
            no_repeat_ngram_size: 0,
            dry: Dry::default(),
            logit_bias: Arc::default(),
            logit_bias_tokens: None,
            allowed_token_ids: None,
            bad_words: Arc::default(),
            samplers: ChainStep::DEFAULT_ORDER.to_vec(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Parameters that always take the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether sampling needs no random number.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether a step has an effect, regardless of `samplers`. [`ChainStep::Xtc`] only acts sometimes.
    pub(super) fn acts(&self, step: ChainStep) -> bool {
        match step {
            ChainStep::Penalties => {
                self.repetition_penalty != 1.0
                    || self.presence_penalty != 0.0
                    || self.frequency_penalty != 0.0
                    || self.prompt_bonus != 1.0
            }
            ChainStep::Dry => self.dry.multiplier > 0.0,
            ChainStep::Temperature => self.temperature != 1.0 || self.dynatemp_range > 0.0,
            ChainStep::Smoothing => self.smoothing.factor > 0.0,
            ChainStep::TopNSigma => self.top_n_sigma > 0.0,
            ChainStep::TopK => self.top_k > 0,
            ChainStep::TypicalP => self.typical_p < 1.0,
            ChainStep::EpsilonCutoff => self.epsilon_cutoff > 0.0,
            ChainStep::EtaCutoff => self.eta_cutoff > 0.0,
            ChainStep::Tfs => self.tfs < 1.0,
            ChainStep::TopA => self.top_a > 0.0,
            ChainStep::TopP => self.top_p < 1.0,
            ChainStep::MinP => self.min_p > 0.0,
            ChainStep::Xtc => self.xtc.probability > 0.0,
        }
    }

    /// Checks every field, and combinations of fields. `vocab_size` is the model's, for token ids.
    ///
    /// # Errors
    /// [`Error::Param`] for the first field that is out of range, infinite or NaN, or that contradicts another; the
    /// message then names both.
    pub fn validate(&self, vocab_size: usize) -> Result<()> {
        self.validate_shape()?;
        self.validate_penalties()?;
        self.validate_ids(vocab_size)?;
        self.validate_order()?;
        self.validate_together()
    }

    /// The fields that shape or truncate the distribution.
    fn validate_shape(&self) -> Result<()> {
        check("temperature", self.temperature, self.temperature >= 0.0, "a number, 0 or more")?;
        check("dynatemp_range", self.dynatemp_range, self.dynatemp_range >= 0.0, "a number, 0 or more")?;
        check("dynatemp_exponent", self.dynatemp_exponent, self.dynatemp_exponent > 0.0, "a number above 0")?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        check_range("min_p", self.min_p, 0.0..=1.0)?;
        check("typical_p", self.typical_p, self.typical_p > 0.0 && self.typical_p <= 1.0, "above 0 and at most 1")?;
        check("top_n_sigma", self.top_n_sigma, self.top_n_sigma >= 0.0, "a number, 0 or more")?;
        check_range("epsilon_cutoff", self.epsilon_cutoff, 0.0..=1.0)?;
        check_range("eta_cutoff", self.eta_cutoff, 0.0..=1.0)?;
        check_range("tfs", self.tfs, 0.0..=1.0)?;
        check_range("top_a", self.top_a, 0.0..=1.0)?;
        check("smoothing_factor", self.smoothing.factor, self.smoothing.factor >= 0.0, "a number, 0 or more")?;
        check_range("smoothing_curve", self.smoothing.curve, 1.0..=3.0)?;
        check_range("xtc_probability", self.xtc.probability, 0.0..=1.0)?;
        check_range("xtc_threshold", self.xtc.threshold, 0.0..=1.0)?;
        if let Some(AdaptiveP { target, decay }) = self.adaptive_p {
            check_range("adaptive_target", target, 0.0..=1.0)?;
            check_range("adaptive_decay", decay, 0.0..=0.99)?;
        }
        let Some(Mirostat { tau, eta, .. }) = self.mirostat else { return Ok(()) };
        check("mirostat_tau", tau, tau >= 0.0, "a number, 0 or more")?;
        check("mirostat_eta", eta, eta >= 0.0, "a number, 0 or more")
    }

    fn validate_penalties(&self) -> Result<()> {
        check("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "a number above 0")?;
        check("encoder_repetition_penalty", self.prompt_bonus, self.prompt_bonus > 0.0, "a number above 0")?;
        check_range("presence_penalty", self.presence_penalty, -2.0..=2.0)?;
        check_range("frequency_penalty", self.frequency_penalty, -2.0..=2.0)?;
        let Dry { multiplier, base, allowed_length, .. } = self.dry;
        check("dry_multiplier", multiplier, multiplier >= 0.0, "a number, 0 or more")?;
        check("dry_base", base, base >= 1.0, "a number, 1 or more")?;
        if allowed_length == 0 {
            return refuse("dry_allowed_length", "must be at least 1, got 0");
        }
        Ok(())
    }

    fn validate_ids(&self, vocab_size: usize) -> Result<()> {
        for (&id, &bias) in self.logit_bias.iter() {
            check_id("logit_bias", id, vocab_size)?;
            check_range("logit_bias", bias, -100.0..=100.0)?;
        }
        if let Some(allowed) = &self.allowed_token_ids {
            if allowed.is_empty() {
                return refuse("allowed_token_ids", "must have at least one token id, got none");
            }
            allowed.iter().try_for_each(|&id| check_id("allowed_token_ids", id, vocab_size))?;
        }
        if self.bad_words.iter().any(Vec::is_empty) {
            return refuse("bad_words", "must not contain an empty word");
        }
        self.bad_words.iter().flatten().try_for_each(|&id| check_id("bad_words", id, vocab_size))?;
        let single: BTreeSet<TokenId> =
            self.bad_words.iter().filter(|word| word.len() == 1).flatten().copied().collect();
        if single.len() >= vocab_size {
            return refuse("bad_words", "must leave at least one token of the vocabulary");
        }
        Ok(())
    }

    /// A field that is set must have its step, and no step may occur twice.
    fn validate_order(&self) -> Result<()> {
        for (at, step) in self.samplers.iter().enumerate() {
            if self.samplers.iter().take(at).any(|earlier| earlier == step) {
                return refuse("samplers", format!("must have each sampler at most once, got `{step}` twice"));
            }
        }
        let missing = |step: ChainStep| !self.samplers.contains(&step);
        let set = [
            ("temperature", ChainStep::Temperature, self.temperature != 1.0),
            ("dynatemp_range", ChainStep::Temperature, self.dynatemp_range > 0.0),
            ("repetition_penalty", ChainStep::Penalties, self.repetition_penalty != 1.0),
            ("encoder_repetition_penalty", ChainStep::Penalties, self.prompt_bonus != 1.0),
            ("presence_penalty", ChainStep::Penalties, self.presence_penalty != 0.0),
            ("frequency_penalty", ChainStep::Penalties, self.frequency_penalty != 0.0),
            ("dry_multiplier", ChainStep::Dry, self.acts(ChainStep::Dry)),
            ("smoothing_factor", ChainStep::Smoothing, self.acts(ChainStep::Smoothing)),
        ];
        let unused = set.into_iter().chain(self.cuts()).find(|&(_, step, is_set)| is_set && missing(step));
        unused.map_or(Ok(()), |(name, step, _)| {
            refuse("samplers", format!("must have `{step}` if `{name}` is set, got {}", listed(&self.samplers)))
        })
    }

    /// The truncating fields, their steps, and whether they are set.
    fn cuts(&self) -> [(&'static str, ChainStep, bool); 10] {
        [
            ("top_n_sigma", ChainStep::TopNSigma),
            ("top_k", ChainStep::TopK),
            ("typical_p", ChainStep::TypicalP),
            ("epsilon_cutoff", ChainStep::EpsilonCutoff),
            ("eta_cutoff", ChainStep::EtaCutoff),
            ("tfs", ChainStep::Tfs),
            ("top_a", ChainStep::TopA),
            ("top_p", ChainStep::TopP),
            ("min_p", ChainStep::MinP),
            ("xtc_probability", ChainStep::Xtc),
        ]
        .map(|(name, step)| (name, step, self.acts(step)))
    }

    fn validate_together(&self) -> Result<()> {
        if self.mirostat.is_some() {
            if let Some((name, ..)) = self.cuts().into_iter().find(|&(_, _, is_set)| is_set) {
                return refuse("mirostat", format!("cannot be combined with `{name}`, which it replaces"));
            }
            if self.is_greedy() {
                return refuse(
                    "mirostat",
                    "cannot be combined with `temperature` 0, which always takes the most likely token",
                );
            }
        }
        if self.adaptive_p.is_some() && self.mirostat.is_some() {
            return refuse("adaptive_target", "cannot be combined with `mirostat`: both choose how likely tokens are");
        }
        if self.adaptive_p.is_some() && self.is_greedy() {
            return refuse(
                "adaptive_target",
                "cannot be combined with `temperature` 0, which always takes the most likely token",
            );
        }
        if self.dynatemp_range > 0.0 && self.is_greedy() {
            return refuse("dynatemp_range", "cannot be combined with `temperature` 0");
        }
        if self.allowed_token_ids.is_some() && self.no_repeat_ngram_size > 0 {
            return refuse(
                "no_repeat_ngram_size",
                "cannot be combined with `allowed_token_ids`: together they could leave no token",
            );
        }
        if self.allowed_token_ids.is_some() && !self.bad_words.is_empty() {
            return refuse(
                "bad_words",
                "cannot be combined with `allowed_token_ids`: together they could leave no token",
            );
        }
        Ok(())
    }
}

fn listed(steps: &[ChainStep]) -> String {
    if steps.is_empty() {
        return "none".into();
    }
    steps.iter().map(|step| format!("`{step}`")).collect::<Vec<_>>().join(", ")
}

fn check_id(name: &'static str, id: TokenId, vocab_size: usize) -> Result<()> {
    if (id as usize) < vocab_size {
        return Ok(());
    }
    refuse(name, format!("must have token ids below the vocabulary's size, {vocab_size}, got {id}"))
}

fn check_range(name: &'static str, given: f32, allowed: RangeInclusive<f32>) -> Result<()> {
    let words = format!("between {} and {}", allowed.start(), allowed.end());
    check(name, given, allowed.contains(&given), &words)
}

fn check(name: &'static str, given: f32, is_allowed: bool, allowed: &str) -> Result<()> {
    if is_allowed && given.is_finite() {
        return Ok(());
    }
    refuse(name, format!("must be {allowed}, got {given}"))
}

fn refuse(name: &'static str, what: impl Into<String>) -> Result<()> {
    Err(Error::Param { name, what: what.into() })
}
