//! The sampling parameters of a request, for both generation endpoints.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use hearth_model::{
    TokenId,
    decode::sampling::{AdaptiveP, ChainStep, Dry, Mirostat, MirostatVersion, SamplingParams, Smoothing, Xtc},
    files::decimal,
    text::tokenizer::{EncodeOptions, Tokenizer},
};
use serde_json::{Value, json};

use crate::{
    api::{
        error::ApiError,
        wire::{
            fields::{Fields, at_most_strings, must_be, shown, string_list, token_ids},
            schema::{self, NumberRange},
        },
    },
    random::random_u64,
};

/// Default sequence breakers, as the DRY proposal has them.
const DRY_SEQUENCE_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Maximum number of `dry_sequence_breakers`: each is searched for in every token of the vocabulary.
const MAX_BREAKERS: usize = 64;

/// Maximum number of `bad_words`: all of them are checked for every token.
const MAX_BAD_WORDS: usize = 1024;

/// The sampling parameters of a request, and the texts that must be tokenized first.
#[derive(Clone, Debug)]
pub(crate) struct Sampling {
    /// The seed is set for each prompt.
    params: SamplingParams,
    /// `None`: a random seed for each prompt.
    seed: Option<u64>,
    /// `None`: those of the model's defaults, in `params`.
    bad_words: Option<Vec<String>>,
    dry_sequence_breakers: Vec<String>,
}

impl Sampling {
    /// Reads the fields; absent fields get the values of `default`.
    pub(crate) fn from_fields(fields: &mut Fields, default: SamplingParams) -> Result<Self, ApiError> {
        refuse_what_is_not_computed(fields)?;
        let non_negative = 0.0..=f32::INFINITY;
        // Bans that only the model's files ask for give way.
        let has_allowed = fields.has("allowed_token_ids");
        let params = SamplingParams {
            temperature: fields.number_or("temperature", 0.0..=2.0, default.temperature)?,
            dynatemp_range: fields.number_or("dynatemp_range", non_negative.clone(), default.dynatemp_range)?,
            dynatemp_exponent: fields.number_or(
                "dynatemp_exponent",
                NumberRange::above(0.0, f32::INFINITY),
                default.dynatemp_exponent,
            )?,
            // 0 and -1 both disable it.
            top_k: usize::try_from(fields.integer_or("top_k", -1..=i64::MAX, signed(default.top_k))?).unwrap_or(0),
            // OpenAI allows 0, which keeps only the most likely token.
            top_p: fields.number_or("top_p", 0.0..=1.0, default.top_p)?.max(f32::MIN_POSITIVE),
            min_p: fields.number_or("min_p", 0.0..=1.0, default.min_p)?,
            typical_p: fields.number_or("typical_p", NumberRange::above(0.0, 1.0), default.typical_p)?,
            // -1 disables it, as in llama.cpp.
            top_n_sigma: fields.number_or("top_n_sigma", -1.0..=f32::INFINITY, default.top_n_sigma)?.max(0.0),
            epsilon_cutoff: fields.number_or("epsilon_cutoff", 0.0..=1.0, default.epsilon_cutoff)?,
            eta_cutoff: fields.number_or("eta_cutoff", 0.0..=1.0, default.eta_cutoff)?,
            tfs: fields.number_or("tfs", 0.0..=1.0, default.tfs)?,
            top_a: fields.number_or("top_a", 0.0..=1.0, default.top_a)?,
            smoothing: Smoothing {
                factor: fields.number_or("smoothing_factor", non_negative.clone(), default.smoothing.factor)?,
                curve: fields.number_or("smoothing_curve", 1.0..=3.0, default.smoothing.curve)?,
            },
            xtc: Xtc {
                probability: fields.number_or("xtc_probability", 0.0..=1.0, default.xtc.probability)?,
                threshold: fields.number_or("xtc_threshold", 0.0..=1.0, default.xtc.threshold)?,
            },
            mirostat: mirostat(fields)?,
            adaptive_p: adaptive_p(fields)?,
            repetition_penalty: repetition_penalty(fields, default.repetition_penalty)?,
            repeat_last_n: last_n(fields, "repeat_last_n")?,
            prompt_bonus: fields.number_or(
                "encoder_repetition_penalty",
                NumberRange::above(0.0, f32::INFINITY),
                default.prompt_bonus,
            )?,
            no_repeat_ngram_size: fields.count_or(
                "no_repeat_ngram_size",
                0..=usize::MAX,
                if has_allowed { 0 } else { default.no_repeat_ngram_size },
            )?,
            presence_penalty: fields.number_or("presence_penalty", -2.0..=2.0, default.presence_penalty)?,
            frequency_penalty: fields.number_or("frequency_penalty", -2.0..=2.0, default.frequency_penalty)?,
            dry: Dry {
                multiplier: fields.number_or("dry_multiplier", non_negative, default.dry.multiplier)?,
                base: fields.number_or("dry_base", 1.0..=f32::INFINITY, default.dry.base)?,
                allowed_length: fields.count_or("dry_allowed_length", 1..=usize::MAX, default.dry.allowed_length)?,
                penalty_last_n: last_n(fields, "dry_penalty_last_n")?,
                sequence_breakers: Arc::default(),
            },
            logit_bias: Arc::new(logit_bias(fields)?),
            logit_bias_tokens: fields.count("logit_bias_tokens", 1..=usize::MAX)?,
            allowed_token_ids: allowed_token_ids(fields)?.map(Arc::new),
            bad_words: if has_allowed { Arc::default() } else { default.bad_words },
            samplers: samplers(fields, default.samplers)?,
            seed: 0,
        };
        let seed = fields.seed("seed")?;
        let breakers = fields.string_list("dry_sequence_breakers")?;
        fields.note_default("dry_sequence_breakers", &DRY_SEQUENCE_BREAKERS);
        let breakers = breakers.unwrap_or_else(|| DRY_SEQUENCE_BREAKERS.map(str::to_owned).to_vec());
        let bad_words = fields.string_list("bad_words")?;
        let bad_words = bad_words.map(|words| at_most_strings(MAX_BAD_WORDS, "bad_words", words)).transpose()?;
        Ok(Self {
            params,
            seed,
            bad_words,
            dry_sequence_breakers: at_most_strings(MAX_BREAKERS, "dry_sequence_breakers", breakers)?,
        })
    }

    /// Whether the request itself bans words.
    pub(crate) fn bans_words(&self) -> bool {
        self.bad_words.as_ref().is_some_and(|words| !words.is_empty())
    }

    /// The parameters without those that depend on the tokenizer.
    pub(crate) fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The seed for a prompt: the request's, else a random one at each call.
    pub(crate) fn draw_seed(&self) -> u64 {
        self.seed.unwrap_or_else(random_u64)
    }

    /// The parameters with texts converted to token ids; shared by all answers to a request. `default_breakers` keeps
    /// the tokens of the default sequence breakers, since finding them takes a scan of the vocabulary.
    pub(crate) fn resolve(
        &self,
        tokenizer: &Tokenizer,
        default_breakers: &OnceLock<Arc<BTreeSet<TokenId>>>,
    ) -> Result<SamplingParams, ApiError> {
        let mut params = self.params.clone();
        if let Some(words) = &self.bad_words {
            params.bad_words = resolve_bad_words(words, tokenizer)?.into();
        }
        if params.dry.multiplier > 0.0 {
            let breakers = &self.dry_sequence_breakers;
            if breakers.iter().any(String::is_empty) {
                let message = "`dry_sequence_breakers` must not contain an empty string";
                return Err(ApiError::invalid("dry_sequence_breakers", message));
            }
            let find = || Arc::new(tokens_with(breakers, tokenizer));
            let is_default = *breakers == DRY_SEQUENCE_BREAKERS;
            params.dry.sequence_breakers =
                if is_default { Arc::clone(default_breakers.get_or_init(find)) } else { find() };
        }
        Ok(params)
    }
}

/// Decoding methods that other programs have and Hearth has not, with the values that switch them off, which clients send.
const NOT_COMPUTED: [(&str, &[&str], &str); 5] = [
    ("guidance_scale", &["1", "1.0"], "classifier-free guidance"),
    ("cfg_scale", &["1", "1.0"], "classifier-free guidance"),
    ("negative_prompt", &["\"\""], "classifier-free guidance"),
    ("penalty_alpha", &["0", "0.0"], "contrastive search"),
    ("banned_strings", &["[]", "\"\""], "banned strings; `bad_words` bans tokens"),
];

/// Refuses a parameter that would change the text, where others are ignored.
fn refuse_what_is_not_computed(fields: &Fields) -> Result<(), ApiError> {
    for (name, off, method) in NOT_COMPUTED {
        let Some(value) = fields.get(name).filter(|value| !value.is_null()) else { continue };
        let given = value.to_string();
        if !off.contains(&given.as_str()) {
            let message = format!("`{name}` is not supported, got {}: there is no {method}", shown(value));
            return Err(ApiError::invalid(name, message));
        }
    }
    Ok(())
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn repetition_penalty(fields: &mut Fields, default: f32) -> Result<f32, ApiError> {
    let penalty = fields.number("repetition_penalty", NumberRange::above(0.0, f32::INFINITY))?;
    let alias = fields.number("repeat_penalty", NumberRange::above(0.0, f32::INFINITY))?;
    fields.note_default("repetition_penalty", &decimal::to_f64(default));
    match (penalty, alias) {
        (Some(penalty), Some(alias)) if penalty != alias => {
            let message = format!(
                "`repetition_penalty` and `repeat_penalty` are the same parameter and must be equal, got {penalty} and \
                 {alias}"
            );
            Err(ApiError::invalid("repetition_penalty", message))
        }
        _ => Ok(penalty.or(alias).unwrap_or(default)),
    }
}

fn mirostat(fields: &mut Fields) -> Result<Option<Mirostat>, ApiError> {
    let default = Mirostat::default();
    let version = fields.count_or("mirostat", 0..=2, 0)?;
    let tau = fields.number_or("mirostat_tau", 0.0..=f32::INFINITY, default.tau)?;
    let eta = fields.number_or("mirostat_eta", 0.0..=f32::INFINITY, default.eta)?;
    let version = match version {
        0 => return Ok(None),
        1 => MirostatVersion::V1,
        _ => MirostatVersion::V2,
    };
    Ok(Some(Mirostat { version, tau, eta }))
}

/// A negative target disables it, as in llama.cpp.
fn adaptive_p(fields: &mut Fields) -> Result<Option<AdaptiveP>, ApiError> {
    let target = fields.number_or("adaptive_target", -1.0..=1.0, -1.0)?;
    let decay = fields.number_or("adaptive_decay", 0.0..=0.99, 0.9)?;
    Ok((target >= 0.0).then_some(AdaptiveP { target, decay }))
}

/// A window of last tokens; -1 means all.
fn last_n(fields: &mut Fields, name: &'static str) -> Result<Option<usize>, ApiError> {
    Ok(usize::try_from(fields.integer_or(name, -1..=i64::MAX, -1)?).ok())
}

fn logit_bias(fields: &mut Fields) -> Result<BTreeMap<TokenId, f32>, ApiError> {
    const ALLOWED: &str = "an object of token ids with numbers from -100 to 100";
    let bias = || schema::number(NumberRange::from(-100.0..=100.0));
    let schema = || json!({ "type": "object", "propertyNames": { "pattern": "^(0|[1-9][0-9]*)$" }, "additionalProperties": bias() });
    let entries = match fields.take_as("logit_bias", schema) {
        None => return Ok(BTreeMap::new()),
        Some(Value::Object(entries)) => entries,
        Some(other) => return Err(must_be("logit_bias", ALLOWED, &other)),
    };
    let biases = entries.into_iter().map(|(id, bias)| {
        let number = bias.as_f64().map(|bias| bias as f32).filter(|bias| (-100.0..=100.0).contains(bias));
        // `05` would be another name of 5.
        let token = id.parse().ok().filter(|token: &TokenId| token.to_string() == id);
        let parsed = token.zip(number);
        parsed.ok_or_else(|| must_be("logit_bias", ALLOWED, &json!({ id: bias })))
    });
    biases.collect()
}

fn allowed_token_ids(fields: &mut Fields) -> Result<Option<BTreeSet<TokenId>>, ApiError> {
    let Some(value) = fields.take_as("allowed_token_ids", || schema::array(schema::token_id(), 1)) else {
        return Ok(None);
    };
    match token_ids(&value) {
        Some(ids) if !ids.is_empty() => Ok(Some(ids.into_iter().collect())),
        _ => Err(must_be("allowed_token_ids", "an array of at least one token id", &value)),
    }
}

fn samplers(fields: &mut Fields, default: Vec<ChainStep>) -> Result<Vec<ChainStep>, ApiError> {
    let schema = || {
        let names: Vec<&str> = ChainStep::DEFAULT_ORDER.map(ChainStep::name).into_iter().chain(["typ_p"]).collect();
        let mut schema = schema::array(json!({ "type": "string", "enum": names }), 0);
        schema["uniqueItems"] = json!(true);
        schema
    };
    let given = fields.take_as("samplers", schema);
    fields.note_default("samplers", &default.iter().map(|step| step.name()).collect::<Vec<_>>());
    let Some(value) = given else { return Ok(default) };
    let names = string_list(&value).ok_or_else(|| must_be("samplers", "an array of strings", &value))?;
    chain(&names).map_err(|error| ApiError::invalid("samplers", error.to_string()))
}

fn chain(names: &[String]) -> hearth_model::Result<Vec<ChainStep>> {
    names.iter().map(|name| name.parse()).collect()
}

/// The defaults for a request: the model's own, or neutral ones if the request sets another decoding strategy or
/// sampler order. The model's parameters could contradict a strategy that the request chose. Beam search keeps those
/// that exclude or penalize tokens. Values that disable a strategy do not count.
pub(crate) fn applicable(advised: SamplingParams, fields: &Fields) -> SamplingParams {
    let is_plain = |name: &str, value: &Value| match name {
        "mirostat" => value.as_f64() == Some(0.0),
        "samplers" => string_list(value).and_then(|names| chain(&names).ok()).as_ref() == Some(&advised.samplers),
        _ => *value == Value::Bool(false),
    };
    let is_plain = |name: &str| fields.get(name).is_none_or(|value| is_plain(name, value));
    match (["mirostat", "samplers", "stochastic_beam_search"].into_iter().all(is_plain), is_plain("use_beam_search")) {
        (true, true) => advised,
        // What excludes or penalizes tokens holds for the most likely answers too.
        (true, false) => SamplingParams {
            repetition_penalty: advised.repetition_penalty,
            no_repeat_ngram_size: advised.no_repeat_ngram_size,
            bad_words: advised.bad_words,
            ..SamplingParams::default()
        },
        (false, _) => SamplingParams::default(),
    }
}

/// Tokenizes each word at the start of a line and after a space: most vocabularies have different tokens for these.
fn resolve_bad_words(words: &[String], tokenizer: &Tokenizer) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let mut sequences = BTreeSet::new();
    for word in words {
        let bare = word.trim_start();
        if bare.is_empty() {
            return Err(must_be("bad_words", "strings that are not empty or blank", &Value::from(word.as_str())));
        }
        for text in [bare.to_owned(), format!(" {bare}")] {
            let ids = tokenizer.encode(&text, EncodeOptions::TEXT);
            let ids = ids.map_err(|error| {
                ApiError::invalid("bad_words", format!("`bad_words` has `{word}`, which cannot be encoded: {error}"))
            })?;
            sequences.insert(ids);
        }
    }
    Ok(sequences.into_iter().collect())
}

/// The tokens whose text contains a breaker. For a breaker that no token contains, the last token of its tokenization.
fn tokens_with(breakers: &[String], tokenizer: &Tokenizer) -> BTreeSet<TokenId> {
    let (mut ids, mut is_found) = (BTreeSet::new(), vec![false; breakers.len()]);
    for id in 0..tokenizer.vocab_size() as TokenId {
        let bytes = tokenizer.token_bytes(id);
        for (breaker, is_found) in breakers.iter().zip(&mut is_found) {
            if contains(&bytes, breaker.as_bytes()) {
                *is_found = true;
                ids.insert(id);
            }
        }
    }
    let others = breakers.iter().zip(is_found).filter(|(_, is_found)| !is_found);
    ids.extend(others.filter_map(|(breaker, _)| tokenizer.encode(breaker, EncodeOptions::TEXT).ok()?.last().copied()));
    ids
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::*;
    use crate::api::{guard::api_keys::Sender, wire::request_log::RequestLog};

    #[test]
    fn default_dry_sequence_breakers_are_tokenized_once() {
        let tokenizer = json!({
            "decoder": { "type": "Fuse" },
            "model": { "type": "WordLevel", "vocab": { "a": 0, "b:": 1, "*": 2 }, "unk_token": "a" },
        });
        let tokenizer =
            Tokenizer::from_json(tokenizer.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap();
        let kept = OnceLock::new();
        let breakers = |body: Value| {
            let entries = body.as_object().unwrap().clone();
            let mut fields = Fields::of_body(entries, RequestLog::default(), 0, Sender::default());
            let sampling = Sampling::from_fields(&mut fields, SamplingParams::default()).unwrap();
            sampling.resolve(&tokenizer, &kept).unwrap().dry.sequence_breakers
        };
        let default = breakers(json!({ "dry_multiplier": 1 }));
        let named = breakers(json!({ "dry_multiplier": 2, "dry_sequence_breakers": DRY_SEQUENCE_BREAKERS }));
        assert!(Arc::ptr_eq(&default, &named), "one set");
        assert_eq!(*default, [0, 1, 2].into(), "`a` is the unknown token, which stands for the others");
        let own = breakers(json!({ "dry_multiplier": 1, "dry_sequence_breakers": ["b"] }));
        assert_eq!(*own, [1].into());
    }
}
