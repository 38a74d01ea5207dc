//! Inspects a model's computation: attention maps, the chosen experts, and what each layer would predict.

use std::sync::{Mutex, PoisonError};

use burn::tensor::Tensor;
use half::f16;

use crate::{
    TokenId,
    decode::sampling::{TokenLogprobs, entropy, token_logprobs},
    error::{Error, Result},
    gpt::{
        Gpt,
        forward_pass::{AttentionContext, ForwardPass, Trace},
        token_ids::{check_token_ids, token_tensor},
    },
    ops,
};

/// Rows whose logits exist at once.
const ROWS_AT_ONCE: usize = 32;

/// Inspects a model, one text at a time. Shares its weights with whoever else runs it.
#[derive(Debug)]
pub struct Inspector(Mutex<Gpt>);

/// What to compute besides the predictions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InspectOptions {
    /// The number of most likely tokens to report for each position.
    pub n_top: usize,
    /// Attention maps of these layers.
    pub attention_layers: Vec<usize>,
    /// The heads of these layers whose attention maps are reported.
    pub attention_heads: Vec<usize>,
    /// The experts that these layers choose.
    pub expert_layers: Vec<usize>,
    /// Attention maps of these layers of an encoder.
    pub encoder_layers: Vec<usize>,
    /// The heads of these layers whose maps are reported.
    pub encoder_heads: Vec<usize>,
    /// What these layers would predict: `k` stands for the residual stream after `k` blocks
    /// ([nostalgebraist, 2020](https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru/interpreting-gpt-the-logit-lens)).
    pub lens_layers: Vec<usize>,
    /// The number of most likely tokens to report for each lens layer and token.
    pub n_lens_top: usize,
}

/// The results of an inspection.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// For each token: the model's prediction after it.
    pub predictions: Vec<Prediction>,
    /// Attention weights, `[attention_layers, attention_heads, n_tokens, n_tokens]`, flat: rows are queries, columns
    /// are keys.
    pub attention: Vec<f16>,
    /// The chosen experts of each requested layer.
    pub experts: Vec<ChosenExperts>,
    /// What an encoder-decoder did with its source.
    pub source: Option<SourceInspection>,
    /// For each of the lens's layers, and each token: the most likely tokens and their log-probabilities in nats.
    pub lens: Vec<Vec<Vec<(TokenId, f32)>>>,
}

/// The experts that a layer chooses.
#[derive(Clone, Debug)]
pub struct ChosenExperts {
    /// By token, in ascending order: `[n_tokens, n_active]`, flat.
    pub chosen: Vec<usize>,
    /// Weight of each chosen expert, `[n_tokens, n_active]`, flat.
    pub weights: Vec<f32>,
}

/// How an encoder-decoder attends to its source.
#[derive(Clone, Debug)]
pub struct SourceInspection {
    /// Of the encoder: `[encoder_layers, encoder_heads, n_source, n_source]`, flat.
    pub encoder: Vec<f16>,
    /// Of the decoder: `[attention_layers, attention_heads, n_tokens, n_source]`, flat.
    pub cross: Vec<f16>,
}

/// What is expected after a token.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The entropy of the distribution in nats.
    pub entropy: f64,
    /// The most likely tokens and their log-probabilities.
    pub top: Vec<(TokenId, f32)>,
    /// The token that follows in the text; `None` after the last.
    pub next: Option<TokenLogprobs>,
}

impl Inspector {
    /// An inspector of `gpt`, whose weights are shared and not copied.
    pub fn new(gpt: &Gpt) -> Self {
        Self(Mutex::new(gpt.clone()))
    }

    /// Runs the model over `token_ids` at once, without a cache. Calls `goes_on` between parts of the work, and stops
    /// if that returns false.
    ///
    /// # Errors
    /// [`Error::Param`] without tokens, with tokens outside the vocabulary, with more than the context, or for layers
    /// or heads that the model does not have; [`Error::Execution`] if the device fails, or the work was stopped.
    pub fn inspect(
        &self,
        token_ids: &[TokenId],
        options: &InspectOptions,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Inspection> {
        self.inspect_behind(&[], token_ids, options, goes_on)
    }

    /// As [`inspect`](Self::inspect) of what the decoder of an encoder-decoder reads, behind the source `source_ids`. Other models have
    /// no source.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect), also for the source.
    pub fn inspect_behind(
        &self,
        source_ids: &[TokenId],
        token_ids: &[TokenId],
        options: &InspectOptions,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Inspection> {
        // A copy, which shares the weights: an inspection that hangs must not keep the lock.
        let gpt = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        check_source(&gpt, source_ids, options)?;
        check(&gpt, token_ids, options)?;
        let n_tokens = token_ids.len();
        let InspectOptions { attention_layers, attention_heads, lens_layers, .. } = options.clone();
        let mut trace = Trace::new(attention_layers, attention_heads, lens_layers);
        let ids = token_tensor(&gpt, token_ids);
        let device = ids.device();
        let mut encoder = Trace::new(options.encoder_layers.clone(), options.encoder_heads.clone(), Vec::new());
        let encoded = gpt.config().is_encoder_decoder().then(|| {
            let context = AttentionContext::traced(source_ids.len(), &mut encoder);
            gpt.encode(token_tensor(&gpt, source_ids), context)
        });
        let context = AttentionContext::traced(n_tokens, &mut trace);
        let has_source = encoded.is_some();
        let context = match encoded {
            Some(encoded) => context.with_source(encoded),
            None => context,
        };
        let mut pass = ForwardPass::new(gpt.config(), context, &device);
        pass.routes = (!options.expert_layers.is_empty()).then(Vec::new);
        let hidden = gpt.run(ids, &mut pass);
        let routes = pass.routes.take().unwrap_or_default();
        drop(pass);
        let mut predictions = Vec::with_capacity(n_tokens);
        for_logits(&gpt, &hidden, goes_on, |row, logits| {
            let next = token_ids.get(row + 1).map(|&id| token_logprobs(logits, id, 0));
            let top = token_logprobs(logits, 0, options.n_top).top;
            predictions.push(Prediction { entropy: entropy(logits), top, next });
        })?;
        let routed: Vec<usize> =
            (0..gpt.config().n_layers).filter(|layer| gpt.config().experts_of(*layer).is_some()).collect();
        let experts = options.expert_layers.iter().map(|layer| {
            // The layers with experts, in order, are the layers that have routes.
            let Ok(place) = routed.binary_search(layer) else {
                unreachable!("it was checked that layer {layer} has experts")
            };
            let routes = &routes[place];
            let weights = ops::to_f32(ops::read(routes.weights.clone())?)?;
            Ok(ChosenExperts { chosen: routes.chosen.clone(), weights })
        });
        let experts = experts.collect::<Result<_>>()?;
        let InspectOptions { attention_layers, attention_heads, encoder_layers, encoder_heads, .. } = options;
        let attention = maps(attention_layers, attention_heads, |layer| trace.attention_of(layer))?;
        let source = if has_source {
            Some(SourceInspection {
                encoder: maps(encoder_layers, encoder_heads, |layer| encoder.attention_of(layer))?,
                cross: maps(attention_layers, attention_heads, |layer| trace.cross_of(layer))?,
            })
        } else {
            None
        };
        let lens = options.lens_layers.iter().map(|&layer| {
            let mut of_layer = Vec::with_capacity(n_tokens);
            for_logits(&gpt, &gpt.final_norm(trace.stream_of(layer)), goes_on, |_, logits| {
                of_layer.push(token_logprobs(logits, 0, options.n_lens_top).top);
            })?;
            Ok(of_layer)
        });
        Ok(Inspection { predictions, attention, source, experts, lens: lens.collect::<Result<_>>()? })
    }
}

/// The maps of layers in the order of the request, which may name them in any order.
fn maps(layers: &[usize], heads: &[usize], map_of: impl Fn(usize) -> Tensor<4>) -> Result<Vec<f16>> {
    let mut all = Vec::new();
    for layer in layers.iter().filter(|_| !heads.is_empty()) {
        all.extend(ops::to_f32(ops::read(map_of(*layer))?)?.into_iter().map(f16::from_f32));
    }
    Ok(all)
}

/// Calls `visit` with each row's number and logits, from final hidden states `[n_rows, d_model]`, while `goes_on`.
fn for_logits(
    gpt: &Gpt,
    hidden: &Tensor<2>,
    goes_on: &dyn Fn() -> bool,
    mut visit: impl FnMut(usize, &[f32]),
) -> Result<()> {
    let [n_rows, d_model] = hidden.dims();
    for first in (0..n_rows).step_by(ROWS_AT_ONCE) {
        if !goes_on() {
            return Err(Error::Execution { what: "the inspection was ended".to_owned() });
        }
        let rows = first..n_rows.min(first + ROWS_AT_ONCE);
        let logits = gpt.logits(hidden.clone().slice([rows.clone(), 0..d_model]));
        let logits = ops::to_f32(ops::read(logits)?)?;
        rows.zip(logits.chunks_exact(gpt.config().vocab_size)).for_each(|(row, logits)| visit(row, logits));
    }
    Ok(())
}

fn check_source(gpt: &Gpt, source_ids: &[TokenId], options: &InspectOptions) -> Result<()> {
    let refuse = |name, what| Err(Error::Param { name, what });
    let most = gpt.config().max_source_len();
    let least = usize::from(most > 0);
    if !(least..=most).contains(&source_ids.len()) {
        return refuse("source", format!("must have {least} to {most} tokens, got {}", source_ids.len()));
    }
    check_token_ids("source", source_ids, gpt.config().vocab_size)?;
    let (n_layers, n_heads) =
        gpt.config().encoder.as_ref().map_or((0, 0), |encoder| (encoder.n_layers, encoder.n_heads));
    for (name, list, n) in [
        ("attention.encoder_layers", &options.encoder_layers, n_layers),
        ("attention.encoder_heads", &options.encoder_heads, n_heads),
    ] {
        if let Some(beyond) = list.iter().find(|number| **number >= n) {
            return refuse(name, format!("must be numbers below {n}, got {beyond}"));
        }
    }
    Ok(())
}

fn check(gpt: &Gpt, token_ids: &[TokenId], options: &InspectOptions) -> Result<()> {
    let refuse = |name, what| Err(Error::Param { name, what });
    let config = gpt.config();
    if token_ids.is_empty() || token_ids.len() > config.max_seq_len {
        let n_tokens = token_ids.len();
        return refuse("input", format!("must have 1 to {} tokens, got {n_tokens}", config.max_seq_len));
    }
    check_token_ids("input", token_ids, config.vocab_size)?;
    let lists = [
        ("attention.layers", &options.attention_layers, config.n_layers),
        ("attention.heads", &options.attention_heads, config.n_heads),
        ("experts.layers", &options.expert_layers, config.n_layers),
        ("logit_lens.layers", &options.lens_layers, config.n_layers + 1),
    ];
    for (name, list, n) in lists {
        if let Some(beyond) = list.iter().find(|number| **number >= n) {
            return refuse(name, format!("must be numbers below {n}, got {beyond}"));
        }
    }
    let has_maps = !options.attention_heads.is_empty();
    if let Some(layer) = options.attention_layers.iter().find(|layer| has_maps && !config.attends(**layer)) {
        return refuse("attention.layers", format!("must be layers that attend, got {layer}, which does not"));
    }
    if let Some(layer) = options.expert_layers.iter().find(|layer| config.experts_of(**layer).is_none()) {
        return refuse("experts.layers", format!("must be layers with experts, got {layer}, which has none"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use burn::tensor::Device;

    use super::*;
    use crate::config::{Experts, GptConfig, Sizes};

    fn gpt() -> Gpt {
        let sizes =
            Sizes { vocab_size: 50, max_seq_len: 64, n_layers: 3, n_heads: 4, n_kv_heads: 2, d_model: 32, d_ff: 48 };
        Gpt::init(&GptConfig::llama(sizes), 3, &Device::flex()).unwrap()
    }

    fn options() -> InspectOptions {
        InspectOptions {
            n_top: 3,
            attention_layers: vec![2, 0],
            attention_heads: vec![1, 3],
            lens_layers: vec![0, 3],
            n_lens_top: 2,
            ..InspectOptions::default()
        }
    }

    #[test]
    fn inspect_predictions_and_last_lens_layer_match_the_logits() {
        let ids: Vec<TokenId> = (0..40).map(|n| n * 7 % 50).collect();
        let gpt = gpt();
        let found = Inspector::new(&gpt).inspect(&ids, &options(), &|| true).unwrap();
        let logits = gpt.logits(gpt.forward(token_tensor(&gpt, &ids), AttentionContext::dense(1, ids.len())));
        let logits = ops::to_f32(ops::read(logits).unwrap()).unwrap();
        for (row, logits) in logits.chunks(50).enumerate() {
            let expected = token_logprobs(logits, ids.get(row + 1).copied().unwrap_or(0), 3);
            let prediction = &found.predictions[row];
            for ((id, logprob), (expected_id, expected)) in prediction.top.iter().zip(&expected.top) {
                assert!(id == expected_id && (logprob - expected).abs() < 1e-4, "row {row}");
            }
            let weights: Vec<f64> = logits.iter().map(|logit| f64::from(*logit).exp()).collect();
            let total: f64 = weights.iter().sum();
            let entropy: f64 = weights.iter().map(|weight| -weight / total * (weight / total).ln()).sum();
            assert!((prediction.entropy - entropy).abs() < 1e-4, "{} and {entropy}", prediction.entropy);
            assert_eq!(prediction.next.is_some(), row + 1 < ids.len());
            assert_eq!(found.lens[1][row].as_slice(), &prediction.top[..2], "after all blocks");
        }
    }

    #[test]
    fn attention_maps_are_causal_sum_to_one_and_keep_the_layer_order() {
        let ids = [1, 2, 3, 4, 5];
        let found = Inspector::new(&gpt()).inspect(&ids, &options(), &|| true).unwrap();
        assert_eq!(found.attention.len(), 2 * 2 * 25);
        for (row, weights) in found.attention.chunks(5).enumerate() {
            let sum: f32 = weights.iter().map(|weight| weight.to_f32()).sum();
            assert!((sum - 1.0).abs() < 1e-2, "{sum}");
            assert!(weights[row % 5 + 1..].iter().all(|weight| weight.to_f32() == 0.0), "{weights:?}");
        }
        // Layers are returned in the order of the request.
        let one = InspectOptions { attention_layers: vec![0], ..options() };
        let one = Inspector::new(&gpt()).inspect(&ids, &one, &|| true).unwrap();
        assert_eq!(one.attention[..], found.attention[50..]);
    }

    #[test]
    fn experts_of_a_layer_are_those_with_the_highest_scores_whatever_else_is_asked_for() {
        let experts = Experts { dense_layers: vec![1], ..Experts::plain(6, 2, 16) };
        let config = GptConfig { experts: Some(experts), ..gpt().config().clone() };
        let gpt = Gpt::init(&config, 3, &Device::flex()).unwrap();
        let ids = [4, 8, 15, 16, 23, 42];
        let options = InspectOptions { expert_layers: vec![2, 0], ..InspectOptions::default() };
        let found = Inspector::new(&gpt).inspect(&ids, &options, &|| true).unwrap();
        let (hidden, logits) = gpt.forward_routed(token_tensor(&gpt, &ids), AttentionContext::dense(1, ids.len()));
        drop(hidden);
        assert_eq!((found.experts.len(), logits.0.len()), (2, 2));
        for (layer, logits) in found.experts.iter().zip(logits.0.iter().rev()) {
            let logits = ops::to_f32(ops::read(logits.clone()).unwrap()).unwrap();
            for (row, logits) in logits.chunks(6).enumerate() {
                let mut order: Vec<usize> = (0..6).collect();
                order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
                let mut best = order[..2].to_vec();
                best.sort_unstable();
                assert_eq!(layer.chosen[2 * row..][..2], best, "row {row}");
                let sum: f32 = best.iter().map(|expert| logits[*expert].exp()).sum();
                for (weight, expert) in layer.weights[2 * row..][..2].iter().zip(&best) {
                    assert!((weight - logits[*expert].exp() / sum).abs() < 1e-5, "row {row}");
                }
            }
        }
    }

    #[test]
    fn inspect_rejects_empty_long_or_unknown_input_and_missing_layers() {
        let inspector = Inspector::new(&gpt());
        let refused = |ids: &[TokenId], options: InspectOptions| {
            inspector.inspect(ids, &options, &|| true).unwrap_err().to_string()
        };
        assert_eq!(refused(&[], options()), "`input` must have 1 to 64 tokens, got 0");
        assert_eq!(refused(&[1; 65], options()), "`input` must have 1 to 64 tokens, got 65");
        assert_eq!(refused(&[50], options()), "`input` has token id 50, the vocabulary has 50");
        let layers = InspectOptions { attention_layers: vec![3], ..options() };
        assert_eq!(refused(&[1], layers), "`attention.layers` must be numbers below 3, got 3");
        let experts = InspectOptions { expert_layers: vec![1], ..options() };
        let none = "`experts.layers` must be layers with experts, got 1, which has none";
        assert_eq!(refused(&[1], experts), none);
        let lens = InspectOptions { lens_layers: vec![4], ..options() };
        assert_eq!(refused(&[1], lens), "`logit_lens.layers` must be numbers below 4, got 4");
    }

    #[test]
    fn inspection_ends_between_parts_if_it_shall_not_go_on() {
        use std::cell::Cell;
        let n_left = Cell::new(3);
        let goes_on = || {
            n_left.set(n_left.get() - 1);
            n_left.get() > 0
        };
        let error = Inspector::new(&gpt()).inspect(&[1; 40], &options(), &goes_on).unwrap_err();
        assert!(error.to_string().contains("the inspection was ended"), "{error}");
        assert_eq!(n_left.get(), 0);
    }
}
