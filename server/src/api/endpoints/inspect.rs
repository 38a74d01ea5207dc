//! `POST /v1/inspect`: the model's predictions after each token of a text, its attention maps, the experts that are chosen, and the
//! predictions of each layer.
//!
//! Of an encoder-decoder, `input` is the source and `target` what the decoder reads; the answer has the maps of encoder, decoder and
//! cross-attention.
//!
//! Runs outside the engine, with the same weights and without the KV cache; one text at a time.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hearth_engine::ServedModel;
use hearth_model::{
    TokenId,
    decode::inspect::{ChosenExperts, InspectOptions, Inspection},
    text::tokenizer::{EncodeOptions, Tokenizer},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::api::{
    error::ApiError,
    exchange::{
        adapters::{self, Chosen},
        conversation::Conversation,
        stream::{TokenText, finite},
    },
    guard::{
        options::RequestTemplates,
        preparation::{WorkClass, WorkHandle},
    },
    wire::{
        body::Body,
        endpoint::{Operation, ResponseBody, schema_of},
        fields::{Fields, must_be},
        ignored_params,
        schema::Shape,
        state::AppState,
        text_input::TextOrIds,
    },
};

/// Maximum number of alternatives per position.
const MAX_TOP: usize = 20;
/// Maximum number of attention weights in an answer: 8 MiB.
const MAX_ATTENTION: usize = 1 << 22;
/// Maximum number of chosen experts in an answer.
const MAX_CHOICES: usize = 1 << 17;
/// Maximum number of predictions of layers in an answer, counting alternatives.
const MAX_LENS: usize = 1 << 17;
/// Maximum number of multiply-adds for the logits of layers: a few seconds on two cores.
const MAX_LENS_PRODUCTS: usize = 1 << 38;

/// A parsed request; types and ranges are checked.
struct InspectRequest {
    model: Option<String>,
    source: Source,
    /// What the decoder of an encoder-decoder reads.
    target: Option<TextOrIds>,
    shown: Shown,
}

/// The requested parts of the answer.
struct Shown {
    n_top: usize,
    attention: Option<AttentionChoice>,
    experts: Option<ExpertChoice>,
    lens: Option<LensChoice>,
}

enum Source {
    Input(TextOrIds, EncodeOptions),
    Conversation(Box<Conversation>),
}

/// The requested attention maps; `None`: all.
struct AttentionChoice {
    layers: Option<Vec<usize>>,
    heads: Option<Vec<usize>>,
    /// Of the encoder of an encoder-decoder.
    encoder_layers: Option<Vec<usize>>,
    encoder_heads: Option<Vec<usize>>,
}

/// The layers whose experts are requested; `None`: all layers with experts.
struct ExpertChoice {
    layers: Option<Vec<usize>>,
}

/// The layers whose predictions are requested; `None`: all.
struct LensChoice {
    layers: Option<Vec<usize>>,
    n_top: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Inspection")]
struct WireInspection {
    object: &'static str,
    model: String,
    layer_count: usize,
    head_count: usize,
    tokens: Vec<WireToken>,
    /// For each token: the model's prediction after it.
    predictions: Vec<WirePrediction>,
    attention: Option<WireAttention>,
    experts: Option<WireExperts>,
    logit_lens: Option<WireLens>,
    /// Of an encoder-decoder: what it read.
    source: Option<WireSource>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InspectedSource")]
struct WireSource {
    layer_count: usize,
    head_count: usize,
    tokens: Vec<WireSourceToken>,
    /// Of the encoder: from token to token of the source.
    attention: Option<WireAttention>,
    /// Of the decoder: from its tokens to those of the source.
    cross_attention: Option<WireAttention>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InspectedSourceToken")]
struct WireSourceToken {
    id: TokenId,
    token: String,
    bytes: Vec<u8>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InspectedToken")]
struct WireToken {
    id: TokenId,
    token: String,
    bytes: Vec<u8>,
    /// In nats; `null` for the first token, which nothing predicts.
    logprob: Option<f32>,
    /// 1 for the most likely token.
    rank: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InspectedPrediction")]
struct WirePrediction {
    /// In nats.
    entropy: f64,
    top_logprobs: Vec<WireAlternative>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InspectedAlternative")]
struct WireAlternative {
    id: TokenId,
    token: String,
    bytes: Vec<u8>,
    logprob: f32,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InspectedAttention")]
struct WireAttention {
    layers: Vec<usize>,
    heads: Vec<usize>,
    /// Layers, heads, tokens that attend, tokens that are attended to.
    shape: [usize; 4],
    dtype: &'static str,
    /// Little-endian, in base64.
    data: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InspectedExperts")]
struct WireExperts {
    layers: Vec<usize>,
    expert_count: usize,
    /// By layer and token: the numbers of the experts, in ascending order.
    chosen: Vec<Vec<Vec<usize>>>,
    /// By layer and token: the weight of each chosen expert.
    weights: Vec<Vec<Vec<f32>>>,
    /// By layer and expert: how many tokens it was chosen for.
    counts: Vec<Vec<usize>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InspectedLayers")]
struct WireLens {
    /// `k`: the residual stream after `k` blocks.
    layers: Vec<usize>,
    /// By layer and token.
    predictions: Vec<Vec<Vec<WireAlternative>>>,
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const OPERATION: Operation = Operation::post(
    "Show what the model expects after each token, where it attends, which experts it chooses and what its layers predict",
    describe,
    ResponseBody::Json(schema_of::<WireInspection>),
);

fn describe(state: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let message = json!({ "role": "user", "content": "x" });
    for example in
        [json!({ "input": "x", "attention": {}, "experts": {}, "logit_lens": {} }), json!({ "messages": [message] })]
    {
        InspectRequest::from_fields(&mut Fields::describing(example, shape), state.options().request_templates)?;
    }
    // Either one is required.
    shape.note_optional("messages");
    shape.note_optional("input");
    Ok(())
}

/// Handles a request.
pub(crate) async fn create(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let Some(max_tokens) = state.options().max_inspect_tokens else {
        let message = "`/v1/inspect` is turned off on this server\nhint: start it without `--no-inspect`";
        return Err(ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("unknown_url"));
    };
    let templates = state.options().request_templates;
    let read = move |mut fields: Fields| {
        let request = InspectRequest::from_fields(&mut fields, templates)?;
        Ok((request, ignored_params::of(&fields), fields.n_bytes()))
    };
    let (mut request, ignored, n_bytes) = body.read(&state, read).await?;
    if let Chosen::Adapter(name) = adapters::choose(&state, request.model.take().as_deref())? {
        let served = state.model_id();
        let message = format!("`/v1/inspect` shows the model `{served}` alone, not the adapter `{name}`");
        return Err(ApiError::invalid("model", message));
    }
    let model = state.engine_for(body.arrived())?.model().clone();
    request.require_kind(&model)?;
    let preparation = match &request.source {
        Source::Input(..) => WorkClass::of_body(n_bytes),
        Source::Conversation(conversation) => conversation.preparation(n_bytes),
    };
    let encode = {
        let model = model.clone();
        move || {
            let given = request.source.encode(&model, max_tokens)?;
            let (source, ids) = match request.target {
                Some(target) => (given, decoder_ids(&target, &model, max_tokens)?),
                None => (Vec::new(), given),
            };
            let options = options(&model, [source.len(), ids.len()], request.shown)?;
            Ok((source, ids, options))
        }
    };
    let (source, ids, options) = state.prepare(preparation, body.turn_wait(), encode).await?;
    let name = state.model_id().to_owned();
    let inspect = move |progress: &WorkHandle| {
        let found = model.inspector.inspect_behind(&source, &ids, &options, &|| progress.report()).map_err(
            |error| match error {
                hearth_model::Error::Param { name, what } => {
                    let name = match name {
                        "source" => "input",
                        "input" if !source.is_empty() => "target",
                        name => name,
                    };
                    ApiError::invalid(name, format!("`{name}` {what}"))
                }
                error => ApiError::internal(error.to_string()),
            },
        )?;
        Ok(Json(WireInspection::new(name, &model, [&source, &ids], options, found)).into_response())
    };
    let response = state.prepare_in_parts(WorkClass::Inspection, body.turn_wait(), inspect).await?;
    Ok(ignored_params::add_header(ignored, response))
}

impl InspectRequest {
    fn from_fields(fields: &mut Fields, templates: RequestTemplates) -> Result<Self, ApiError> {
        let model = fields.string("model")?;
        let source = match (fields.has("input"), fields.has("messages")) {
            (true, true) => {
                let message = "`input` cannot be combined with `messages`: send one of them";
                return Err(ApiError::invalid("input", message));
            }
            (_, false) => {
                let given = fields.get("input").cloned().unwrap_or_default();
                let Ok([input]) = <[TextOrIds; 1]>::try_from(TextOrIds::from_fields(fields, "input")?) else {
                    return Err(must_be("input", "one text: a string or an array of token ids", &given));
                };
                let add_special_tokens = fields.flag_or("add_special_tokens", true)?;
                Source::Input(input, EncodeOptions { add_special_tokens, ..EncodeOptions::PROMPT })
            }
            (false, true) => Source::Conversation(Box::new(Conversation::from_fields(fields, templates)?)),
        };
        let target = match TextOrIds::from_fields_if_any(fields, "target")? {
            None => None,
            Some(given) => match <[TextOrIds; 1]>::try_from(given) {
                Ok([target]) => Some(target),
                Err(given) => {
                    let message =
                        format!("`target` must be one text: a string or an array of token ids, got {}", given.len());
                    return Err(ApiError::invalid("target", message));
                }
            },
        };
        let n_top = fields.count_or("top_logprobs", 0..=MAX_TOP, 5)?;
        let attention = fields.object("attention")?.map(|mut fields| {
            Ok::<_, ApiError>(AttentionChoice {
                layers: fields.counts("layers")?,
                heads: fields.counts("heads")?,
                encoder_layers: fields.counts("encoder_layers")?,
                encoder_heads: fields.counts("encoder_heads")?,
            })
        });
        let experts = fields
            .object("experts")?
            .map(|mut fields| Ok::<_, ApiError>(ExpertChoice { layers: fields.counts("layers")? }));
        let lens = fields.object("logit_lens")?.map(|mut fields| {
            Ok::<_, ApiError>(LensChoice {
                layers: fields.counts("layers")?,
                n_top: fields.count_or("top", 1..=MAX_TOP, 5)?,
            })
        });
        let (attention, experts, lens) = (attention.transpose()?, experts.transpose()?, lens.transpose()?);
        Ok(Self { model, source, target, shown: Shown { n_top, attention, experts, lens } })
    }

    /// Rejects a request for another kind of model than is served.
    fn require_kind(&self, model: &ServedModel) -> Result<(), ApiError> {
        if model.config.bidirectional {
            let message = "`/v1/inspect` shows what a model expects after each token, and this one is an encoder, which sees them all";
            return Err(ApiError::invalid("model", message));
        }
        let is_encoder_decoder = model.config.is_encoder_decoder();
        let mut of_encoder = self.shown.attention.iter().flat_map(|choice| {
            [("attention.encoder_layers", &choice.encoder_layers), ("attention.encoder_heads", &choice.encoder_heads)]
        });
        if let Some((name, _)) = of_encoder.find(|(_, list)| !is_encoder_decoder && list.is_some()) {
            let message =
                format!("`{name}` is for encoder-decoders, and this model has no encoder\nhint: leave it out");
            return Err(ApiError::invalid(name, message));
        }
        match (is_encoder_decoder, &self.source, &self.target) {
            (true, Source::Conversation(_), _) => {
                let message = "`messages` cannot be inspected: this model is an encoder-decoder\nhint: send `input`, the source, and `target`";
                Err(ApiError::invalid("messages", message))
            }
            (true, _, None) => {
                let message = "`target` is missing: this model is an encoder-decoder, which reads `input` as the source and writes a \
                               text about it\nhint: `target` is that text, such as an answer of `/v1/completions`";
                Err(ApiError::invalid("target", message))
            }
            (false, _, Some(_)) => {
                let message = "`target` is for encoder-decoders, and this model has no encoder\nhint: leave it out";
                Err(ApiError::invalid("target", message))
            }
            _ => Ok(()),
        }
    }
}

/// The ids of what the decoder of an encoder-decoder reads: the tokens that it begins with, as far as they are not given, and the text.
fn decoder_ids(target: &TextOrIds, model: &ServedModel, max_tokens: usize) -> Result<Vec<TokenId>, ApiError> {
    target.check_length("target", model)?;
    let options = EncodeOptions { add_special_tokens: false, ..EncodeOptions::PROMPT };
    let given = target.encode("target", &model.tokenizer, options)?;
    let start = &model.decoder_start;
    let n_missing = (0..=start.len()).find(|&n| given.starts_with(&start[n..])).unwrap_or(start.len());
    let ids = [&start[..n_missing], &given].concat();
    if ids.len() > max_tokens {
        let message = format!(
            "`target` must have at most {max_tokens} tokens to be inspected, got {}\n\
             hint: the server's `--max-inspect-tokens` sets the limit",
            ids.len()
        );
        return Err(ApiError::invalid("target", message));
    }
    Ok(ids)
}

impl Source {
    /// The parameter that has the text.
    fn param(&self) -> &'static str {
        match self {
            Self::Input(..) => "input",
            Self::Conversation(_) => "messages",
        }
    }

    /// At most `max_tokens` token ids. A text with too many bytes for this is rejected before it is tokenized.
    fn encode(self, model: &ServedModel, max_tokens: usize) -> Result<Vec<TokenId>, ApiError> {
        let param = self.param();
        let too_long = |given: String| {
            let message = format!(
                "the text must have at most {max_tokens} tokens to be inspected, got {given}\n\
                 hint: the server's `--max-inspect-tokens` sets the limit"
            );
            ApiError::invalid(param, message)
        };
        let check_length = |n_bytes: usize| match model.tokenizer.max_text_bytes(max_tokens) {
            Some(most) if n_bytes > most => Err(too_long(format!("{n_bytes} bytes, which are more"))),
            _ => Ok(()),
        };
        let ids = match self {
            Self::Input(input, options) => {
                if let TextOrIds::Text(text) = &input {
                    check_length(text.len())?;
                }
                input.encode(param, &model.tokenizer, options)?
            }
            Self::Conversation(conversation) => {
                let template = conversation.template(model)?;
                conversation.encode(&template, model, check_length)?
            }
        };
        if ids.len() > max_tokens { Err(too_long(ids.len().to_string())) } else { Ok(ids) }
    }
}

/// Resolves the choices of layers and heads. Limits the answer, which is not streamed.
fn options(model: &ServedModel, [n_source, n_tokens]: [usize; 2], shown: Shown) -> Result<InspectOptions, ApiError> {
    let Shown { n_top, attention, experts, lens } = shown;
    let config = &model.config;
    let all = |list: Option<Vec<usize>>, n: usize| list.unwrap_or_else(|| (0..n).collect());
    let attending = || (0..config.n_layers).filter(|layer| config.attends(*layer)).collect();
    let (mut encoder_layers, mut encoder_heads) = (Vec::new(), Vec::new());
    let (attention_layers, attention_heads) = attention.map_or_else(Default::default, |choice| {
        if let Some(encoder) = &config.encoder {
            encoder_layers = all(choice.encoder_layers, encoder.n_layers);
            encoder_heads = all(choice.encoder_heads, encoder.n_heads);
        }
        (choice.layers.unwrap_or_else(attending), all(choice.heads, config.n_heads))
    });
    let routed = || (0..config.n_layers).filter(|layer| config.experts_of(*layer).is_some()).collect();
    let expert_layers = experts.map_or_else(Vec::new, |choice| choice.layers.unwrap_or_else(routed));
    let (lens_layers, n_lens_top) =
        lens.map_or_else(Default::default, |choice| (all(choice.layers, config.n_layers + 1), choice.n_top));
    let at_most = |param: &'static str, n: usize, most: usize, what: &str| {
        if n <= most {
            return Ok(());
        }
        let message = format!(
            "`{param}` would take {n} {what}, at most {most} are computed\n\
             hint: ask for fewer layers, or shorten the text"
        );
        Err(ApiError::invalid(param, message))
    };
    // Saturating: the lists may be long.
    let product = |factors: &[usize]| factors.iter().fold(1, |product: usize, &factor| product.saturating_mul(factor));
    let n_weights = product(&[attention_layers.len(), attention_heads.len(), n_tokens, n_tokens + n_source]);
    let n_weights = n_weights.saturating_add(product(&[encoder_layers.len(), encoder_heads.len(), n_source, n_source]));
    at_most("attention", n_weights, MAX_ATTENTION, "attention weights")?;
    if let Some(experts) = &config.experts {
        at_most("experts", product(&[expert_layers.len(), n_tokens, experts.n_active]), MAX_CHOICES, "choices")?;
    }
    let n_rows = product(&[lens_layers.len(), n_tokens]);
    at_most("logit_lens", product(&[n_rows, n_lens_top]), MAX_LENS, "predictions")?;
    let n_products = product(&[n_rows, config.vocab_size, config.d_model]);
    at_most("logit_lens", n_products, MAX_LENS_PRODUCTS, "multiply-adds")?;
    Ok(InspectOptions {
        n_top,
        attention_layers,
        attention_heads,
        encoder_layers,
        encoder_heads,
        expert_layers,
        lens_layers,
        n_lens_top,
    })
}

impl WireInspection {
    fn new(
        name: String,
        model: &ServedModel,
        [source_ids, ids]: [&[TokenId]; 2],
        options: InspectOptions,
        Inspection { predictions, attention, source, experts, lens }: Inspection,
    ) -> Self {
        let tokenizer = &model.tokenizer;
        let before = [None].into_iter().chain(predictions.iter().map(|prediction| prediction.next.as_ref()));
        let tokens = ids.iter().zip(before).map(|(&id, predicted)| {
            let TokenText { text, bytes } = TokenText::new(tokenizer, id);
            let logprob = predicted.map(|predicted| finite(predicted.logprob));
            WireToken { id, token: text, bytes, logprob, rank: predicted.map(|predicted| predicted.rank) }
        });
        let tokens = tokens.collect();
        let (n_source, n_tokens) = (source_ids.len(), ids.len());
        let of_decoder = [&options.attention_layers, &options.attention_heads];
        let source = source.zip(model.config.encoder.as_ref()).map(|(source, encoder)| WireSource {
            layer_count: encoder.n_layers,
            head_count: encoder.n_heads,
            tokens: source_ids
                .iter()
                .map(|&id| {
                    let TokenText { text, bytes } = TokenText::new(tokenizer, id);
                    WireSourceToken { id, token: text, bytes }
                })
                .collect(),
            attention: WireAttention::new(
                source.encoder.iter().map(|weight| weight.to_le_bytes()),
                [&options.encoder_layers, &options.encoder_heads],
                [n_source, n_source],
            ),
            cross_attention: WireAttention::new(
                source.cross.iter().map(|weight| weight.to_le_bytes()),
                of_decoder,
                [n_tokens, n_source],
            ),
        });
        let sizes = model.config.experts.as_ref().map(|experts| (experts.n_experts, experts.n_active));
        let experts =
            sizes.filter(|_| !experts.is_empty()).map(|sizes| WireExperts::new(options.expert_layers, sizes, experts));
        let attention =
            WireAttention::new(attention.iter().map(|weight| weight.to_le_bytes()), of_decoder, [n_tokens, n_tokens]);
        let logit_lens = (!lens.is_empty()).then(|| WireLens {
            layers: options.lens_layers,
            predictions: lens
                .into_iter()
                .map(|layer| layer.into_iter().map(|top| alternatives(tokenizer, top)).collect())
                .collect(),
        });
        let predictions = predictions.into_iter().map(|prediction| WirePrediction {
            entropy: prediction.entropy,
            top_logprobs: alternatives(tokenizer, prediction.top),
        });
        Self {
            object: "inspection",
            model: name,
            layer_count: model.config.n_layers,
            head_count: model.config.n_heads,
            tokens,
            predictions: predictions.collect(),
            attention,
            experts,
            logit_lens,
            source,
        }
    }
}

impl WireExperts {
    /// From the chosen experts of `layers`, each with `n_experts` experts, `n_active` of which are chosen per token.
    fn new(layers: Vec<usize>, (n_experts, n_active): (usize, usize), found: Vec<ChosenExperts>) -> Self {
        let counts = found.iter().map(|layer| {
            let mut counts = vec![0; n_experts];
            layer.chosen.iter().for_each(|expert| counts[*expert] += 1);
            counts
        });
        let counts = counts.collect();
        let of_token = |chosen: &ChosenExperts| chosen.chosen.chunks_exact(n_active).map(<[_]>::to_vec).collect();
        let chosen = found.iter().map(of_token).collect();
        let weights = found.iter().map(|layer| layer.weights.chunks_exact(n_active).map(<[_]>::to_vec).collect());
        Self { layers, expert_count: n_experts, chosen, weights: weights.collect(), counts }
    }
}

impl WireAttention {
    /// The maps of layers and heads, from so many tokens to so many, as 16-bit floats; `None` without any.
    fn new(
        weights: impl Iterator<Item = [u8; 2]>,
        [layers, heads]: [&Vec<usize>; 2],
        [n_from, n_to]: [usize; 2],
    ) -> Option<Self> {
        let weights: Vec<u8> = weights.flatten().collect();
        (!weights.is_empty()).then(|| Self {
            layers: layers.clone(),
            heads: heads.clone(),
            shape: [layers.len(), heads.len(), n_from, n_to],
            dtype: "float16",
            data: BASE64_STANDARD.encode(weights),
        })
    }
}

fn alternatives(tokenizer: &Tokenizer, top: Vec<(TokenId, f32)>) -> Vec<WireAlternative> {
    let alternative = |(id, logprob)| {
        let TokenText { text, bytes } = TokenText::new(tokenizer, id);
        WireAlternative { id, token: text, bytes, logprob: finite(logprob) }
    };
    top.into_iter().map(alternative).collect()
}
