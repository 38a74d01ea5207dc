//! `POST /v1/inspect`: the model's predictions after each token of a text, its attention maps, the experts that are chosen, and the
//! predictions of each layer.
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
    if model.config.bidirectional {
        let message = "`/v1/inspect` shows what a model expects after each token, and this one is an encoder, which sees them all";
        return Err(ApiError::invalid("model", message));
    }
    if model.config.is_encoder_decoder() {
        let message = "`/v1/inspect` shows models without an encoder, and this one is an encoder-decoder";
        return Err(ApiError::invalid("model", message));
    }
    let preparation = match &request.source {
        Source::Input(..) => WorkClass::of_body(n_bytes),
        Source::Conversation(conversation) => conversation.preparation(n_bytes),
    };
    let encode = {
        let model = model.clone();
        move || {
            let ids = request.source.encode(&model, max_tokens)?;
            let options = options(&model, ids.len(), request.shown)?;
            Ok((ids, options))
        }
    };
    let (ids, options) = state.prepare(preparation, body.turn_wait(), encode).await?;
    let name = state.model_id().to_owned();
    let inspect = move |progress: &WorkHandle| {
        let found = model.inspector.inspect(&ids, &options, &|| progress.report()).map_err(|error| match error {
            hearth_model::Error::Param { name, what } => ApiError::invalid(name, format!("`{name}` {what}")),
            error => ApiError::internal(error.to_string()),
        })?;
        Ok(Json(WireInspection::new(name, &model, &ids, options, found)).into_response())
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
        let n_top = fields.count_or("top_logprobs", 0..=MAX_TOP, 5)?;
        let attention = fields.object("attention")?.map(|mut fields| {
            Ok::<_, ApiError>(AttentionChoice { layers: fields.counts("layers")?, heads: fields.counts("heads")? })
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
        Ok(Self { model, source, shown: Shown { n_top, attention, experts, lens } })
    }
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
fn options(model: &ServedModel, n_tokens: usize, shown: Shown) -> Result<InspectOptions, ApiError> {
    let Shown { n_top, attention, experts, lens } = shown;
    let config = &model.config;
    let all = |list: Option<Vec<usize>>, n: usize| list.unwrap_or_else(|| (0..n).collect());
    let attending = || (0..config.n_layers).filter(|layer| config.attends(*layer)).collect();
    let (attention_layers, attention_heads) = attention.map_or_else(Default::default, |choice| {
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
    let n_weights = product(&[attention_layers.len(), attention_heads.len(), n_tokens, n_tokens]);
    at_most("attention", n_weights, MAX_ATTENTION, "attention weights")?;
    if let Some(experts) = &config.experts {
        at_most("experts", product(&[expert_layers.len(), n_tokens, experts.n_active]), MAX_CHOICES, "choices")?;
    }
    let n_rows = product(&[lens_layers.len(), n_tokens]);
    at_most("logit_lens", product(&[n_rows, n_lens_top]), MAX_LENS, "predictions")?;
    let n_products = product(&[n_rows, config.vocab_size, config.d_model]);
    at_most("logit_lens", n_products, MAX_LENS_PRODUCTS, "multiply-adds")?;
    Ok(InspectOptions { n_top, attention_layers, attention_heads, expert_layers, lens_layers, n_lens_top })
}

impl WireInspection {
    fn new(
        name: String,
        model: &ServedModel,
        ids: &[TokenId],
        options: InspectOptions,
        Inspection { predictions, attention, experts, lens }: Inspection,
    ) -> Self {
        let tokenizer = &model.tokenizer;
        let before = [None].into_iter().chain(predictions.iter().map(|prediction| prediction.next.as_ref()));
        let tokens = ids.iter().zip(before).map(|(&id, predicted)| {
            let TokenText { text, bytes } = TokenText::new(tokenizer, id);
            let logprob = predicted.map(|predicted| finite(predicted.logprob));
            WireToken { id, token: text, bytes, logprob, rank: predicted.map(|predicted| predicted.rank) }
        });
        let tokens = tokens.collect();
        let shape = [options.attention_layers.len(), options.attention_heads.len(), ids.len(), ids.len()];
        let attention = (!attention.is_empty()).then(|| WireAttention {
            layers: options.attention_layers,
            heads: options.attention_heads,
            shape,
            dtype: "float16",
            data: BASE64_STANDARD.encode(attention.iter().flat_map(|weight| weight.to_le_bytes()).collect::<Vec<_>>()),
        });
        let sizes = model.config.experts.as_ref().map(|experts| (experts.n_experts, experts.n_active));
        let experts =
            sizes.filter(|_| !experts.is_empty()).map(|sizes| WireExperts::new(options.expert_layers, sizes, experts));
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

fn alternatives(tokenizer: &Tokenizer, top: Vec<(TokenId, f32)>) -> Vec<WireAlternative> {
    let alternative = |(id, logprob)| {
        let TokenText { text, bytes } = TokenText::new(tokenizer, id);
        WireAlternative { id, token: text, bytes, logprob: finite(logprob) }
    };
    top.into_iter().map(alternative).collect()
}
