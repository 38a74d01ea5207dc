//! Classification heads, which turn an encoder's hidden states into scores of classes: the classes for sequences.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{
    config_json::Fields,
    file_names::PROMPTS_FILE,
    files::TensorFiles,
    own_pooling::{self, dense_from},
    row_order::RowOrder,
    tensor_names::{TensorNames, TensorPart},
    tensor_table::TensorTable,
};
use crate::{
    TokenId,
    config::GptConfig,
    error::Result,
    files::regular_file,
    gpt::{
        Gpt,
        class_head::{ClassDescription, OF_CLASSES},
        param_specs::ParamSpec,
        pooling::{ClassScores, Classifier, DenseActivation, DenseLayer, PairForm, Pooling},
    },
    philox::normal_values,
    text::{
        chat::{ChatTemplate, Ending, Message, RenderContext},
        tokenizer::Tokenizer,
    },
};

/// The suffix of the names of such classes.
pub(super) const SEQUENCE_CLASS: &str = "ForSequenceClassification";

/// How the names of classes for the single tokens of a text end.
pub(super) const TOKEN_CLASS: &str = "ForTokenClassification";

/// How the names of the classes without a head end.
const BASE_CLASS: &str = "Model";

/// Standard deviation of fresh matrices, BERT's.
const INIT_STD: f32 = 0.02;

/// A family's head: the tensors of its first layer, the activation, the tensor of its norm, and the tensors of its last
/// layer.
struct Head {
    model_types: &'static [&'static str],
    first: &'static str,
    activation: DenseActivation,
    norm: Option<&'static str>,
    last: &'static str,
}

const HEADS: &[Head] = &[
    Head {
        model_types: &["bert"],
        first: "bert.pooler.dense",
        activation: DenseActivation::Tanh,
        norm: None,
        last: "classifier",
    },
    Head {
        model_types: &["roberta", "xlm-roberta", "camembert", "mpnet"],
        first: "classifier.dense",
        activation: DenseActivation::Tanh,
        norm: None,
        last: "classifier.out_proj",
    },
    Head {
        model_types: &["distilbert"],
        first: "pre_classifier",
        activation: DenseActivation::Relu,
        norm: None,
        last: "classifier",
    },
    Head {
        model_types: &[MODERN_BERT],
        first: "head.dense",
        activation: DenseActivation::Gelu,
        norm: Some("head.norm"),
        last: "classifier",
    },
    // Its activation is in the configuration.
    Head {
        model_types: &[OWN],
        first: "classes.dense",
        activation: DenseActivation::Identity,
        norm: Some("classes.norm"),
        last: "classes.out",
    },
];

/// The family whose configuration states a pooling.
const MODERN_BERT: &str = "modernbert";
/// Hearth's own model type.
const OWN: &str = "hearth";

/// Names of activations in Hearth's own configurations.
const ACTIVATIONS: [(&str, DenseActivation); 4] = [
    ("identity", DenseActivation::Identity),
    ("tanh", DenseActivation::Tanh),
    ("relu", DenseActivation::Relu),
    ("gelu", DenseActivation::Gelu),
];

fn head_of(model_type: &str) -> Option<&'static Head> {
    // Names of classes have no hyphens.
    let wanted = model_type.replace('-', "");
    HEADS.iter().find(|head| head.model_types.iter().any(|known| known.replace('-', "") == wanted))
}

/// The last layer of a decoder's head, which reads the last token's hidden state.
pub(super) const DECODER_HEAD: &str = "score";

/// The classifier of the model dir `dir` with the configuration `config`, if it has one. `gpt` and `tokenizer` are the
/// dir's; `template` may define how a query and a document are written.
///
/// # Errors
/// A tensor or a name is missing or wrong.
pub(super) fn of_dir(
    dir: &Path,
    (config, config_path): (&Map<String, Value>, &Path),
    gpt: &Gpt,
    (tokenizer, template): (&Tokenizer, Option<&ChatTemplate>),
) -> Result<Option<Classifier>> {
    let fields = Fields::new(config, config_path);
    let model_type = fields.text_or("model_type", "")?;
    if gpt.config().bidirectional && class_of(&fields).ends_with(TOKEN_CLASS) {
        return of_tokens(dir, &fields).map(Some);
    }
    if !has_head(&fields)? {
        let Some(tokens) = deciding_tokens(dir, &fields, tokenizer)? else { return Ok(None) };
        let written = written_pair(template, tokenizer)?.or_else(|| usual_pair(model_type));
        return Ok(Some(Classifier {
            pooling: Pooling::Last,
            layers: vec![difference(gpt, tokens)].into(),
            labels: vec!["LABEL_0".to_owned()],
            scores: stated_scores(dir, &fields)?.unwrap_or(ClassScores::Sigmoid),
            pair_form: written.map_or(PairForm::Joined, PairForm::Within),
        }));
    }
    let classifier = match gpt.config().bidirectional {
        true => of_encoder(dir, &fields)?,
        false => {
            let layer = dense_from(&TensorFiles::open(dir)?.table()?, DECODER_HEAD, DenseActivation::Identity)?;
            Some(with_classes(dir, &fields, (vec![layer], Pooling::Last))?)
        }
    };
    let pair_form = written_pair(template, tokenizer)?.map_or(PairForm::Joined, PairForm::Within);
    Ok(classifier.map(|classifier| Classifier { pair_form, ..classifier }))
}

/// The class in the configuration, if there is one.
fn class_of<'a>(fields: &Fields<'a>) -> &'a str {
    fields.get("architectures").and_then(|classes| classes[0].as_str()).unwrap_or_default()
}

/// The head that tells the classes of an encoder's single tokens: one layer in most families, from each hidden state.
fn of_tokens(dir: &Path, fields: &Fields<'_>) -> Result<Classifier> {
    let files = TensorFiles::open(dir)?;
    let table = files.table()?;
    let layers = match head_of(fields.text_or("model_type", "")?) {
        Some(head) if head.model_types == [MODERN_BERT] => layers(head, &table, fields)?,
        _ => vec![dense_from(&table, "classifier", DenseActivation::Identity)?],
    };
    with_classes(dir, fields, (layers, Pooling::Tokens))
}

/// Whether the configuration is that of a class for sequences.
fn has_head(fields: &Fields<'_>) -> Result<bool> {
    let class = class_of(fields);
    Ok(class.ends_with(SEQUENCE_CLASS) || fields.text_or("model_type", "")? == OWN && fields.has("id2label"))
}

/// The classification head of the encoder in `dir`, if its class has one.
///
/// # Errors
/// A tensor or a name is missing or wrong.
pub(super) fn of_encoder(dir: &Path, fields: &Fields<'_>) -> Result<Option<Classifier>> {
    let Some(head) = head_of(fields.text_or("model_type", "")?) else { return Ok(None) };
    if !has_head(fields)? {
        return Ok(None);
    }
    let layers = layers(head, &TensorFiles::open(dir)?.table()?, fields)?;
    let pooling = fields.text_or("classifier_pooling", "cls")?;
    let Some((_, pooling)) = Pooling::ALL.into_iter().find(|(name, _)| *name == pooling) else {
        return Err(fields.unsupported("classifier_pooling", &Value::from(pooling), "\"cls\", \"mean\", \"max\""));
    };
    Ok(Some(with_classes(dir, fields, (layers, pooling))?))
}

/// A classifier with these layers after the pooling, and the classes and scores that the files name.
fn with_classes(dir: &Path, fields: &Fields<'_>, (layers, pooling): (Vec<DenseLayer>, Pooling)) -> Result<Classifier> {
    let n_labels = layers.last().map_or(0, DenseLayer::d_out);
    let names = fields.object("id2label")?;
    let name = |number: usize| {
        let given = names.as_ref().and_then(|names| names.get(&number.to_string()));
        given.and_then(Value::as_str).map_or_else(|| format!("LABEL_{number}"), str::to_owned)
    };
    Ok(Classifier {
        pooling,
        layers: layers.into(),
        labels: (0..n_labels).map(name).collect(),
        scores: match stated_scores(dir, fields)? {
            Some(scores) => scores,
            None => match (fields.text_or("problem_type", "")?, n_labels) {
                ("multi_label_classification", _) | (_, 1) => ClassScores::Sigmoid,
                _ => ClassScores::Softmax,
            },
        },
        pair_form: PairForm::Joined,
    })
}

/// The tokens with which a reranking decoder answers yes and no: from vLLM's key of `config.json`, which lists no
/// before yes, or as sentence-transformers saves them. The second may be missing.
fn deciding_tokens(
    dir: &Path,
    fields: &Fields<'_>,
    tokenizer: &Tokenizer,
) -> Result<Option<(TokenId, Option<TokenId>)>> {
    const KEY: &str = "classifier_from_token";
    const ALLOWED: &str = "two tokens of the tokenizer, that for no before that for yes";
    if let Some(given) = fields.get(KEY) {
        let id = |at: usize| given[at].as_str().and_then(|token| tokenizer.token_id(token));
        let (Some(no), Some(yes)) = (id(0), id(1)) else { return Err(fields.wrong(KEY, ALLOWED, given)) };
        return Ok(Some((yes, Some(no))));
    }
    let Some(path) = own_pooling::module_path(dir, "LogitScore")? else { return Ok(None) };
    let path = path.join("config.json");
    let json = regular_file::read_json_object(&path)?;
    let fields = Fields::new(&json, &path);
    let id = |key: &str| fields.size(key).map(|id| id.and_then(|id| TokenId::try_from(id).ok()));
    let yes = id("true_token_id")?.ok_or_else(|| fields.missing(&["true_token_id"]))?;
    let ids = (yes, id("false_token_id")?);
    let outside = [Some(ids.0), ids.1].into_iter().flatten().find(|id| *id as usize >= tokenizer.vocab_size());
    match outside {
        Some(id) => Err(fields.wrong("true_token_id", "a token of the tokenizer", &Value::from(id))),
        None => Ok(Some(ids)),
    }
}

/// The layer that computes the difference between the logits of two tokens.
fn difference(gpt: &Gpt, (yes, no): (TokenId, Option<TokenId>)) -> DenseLayer {
    let row = |id| gpt.output_row(id);
    let weight = match no {
        None => row(yes),
        Some(no) => row(yes).iter().zip(row(no)).map(|(yes, no)| yes - no).collect(),
    };
    DenseLayer { d_in: weight.len(), weight, bias: Vec::new(), activation: DenseActivation::Identity, norm: None }
}

/// The strings before a query, between it and a document, and after the document, if the template writes such messages.
fn written_pair(template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Result<Option<[String; 3]>> {
    let knows = |template: &&ChatTemplate| {
        ["query", "document"].iter().all(|role| {
            [format!("'{role}'"), format!("\"{role}\"")].iter().any(|quoted| template.source().contains(quoted))
        })
    };
    let Some(template) = template.filter(knows) else { return Ok(None) };
    const STAND_INS: [&str; 2] = ["first-of-the-pair", "second-of-the-pair"];
    let message = |role: &str, at: usize| Message::new(role, STAND_INS[at]);
    let context = RenderContext { ending: Ending::Closed, ..RenderContext::new(tokenizer) };
    let text = template.render(&[message("query", 0), message("document", 1)], &context)?;
    Ok(text.split_once(STAND_INS[0]).and_then(|(before, rest)| {
        let (between, behind) = rest.split_once(STAND_INS[1])?;
        Some([before, between, behind].map(str::to_owned))
    }))
}

/// How [Qwen3-Reranker](https://huggingface.co/Qwen/Qwen3-Reranker-0.6B) was taught to read a pair, with its usual instruction.
fn usual_pair(model_type: &str) -> Option<[String; 3]> {
    let pair = [
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note \
         that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, \
         retrieve relevant passages that answer the query\n<Query>: ",
        "\n<Document>: ",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ];
    (model_type == "qwen3").then(|| pair.map(str::to_owned))
}

fn layers(head: &Head, table: &TensorTable<'_>, fields: &Fields<'_>) -> Result<Vec<DenseLayer>> {
    let is_own = head.model_types == [OWN];
    let activation = match is_own {
        false => head.activation,
        true => {
            let name = fields.text_or("classifier_activation", "tanh")?;
            let known = ACTIVATIONS.into_iter().find(|(known, _)| *known == name);
            let supported = || ACTIVATIONS.map(|(name, _)| name).join(", ");
            known.ok_or_else(|| fields.unsupported("classifier_activation", &Value::from(name), &supported()))?.1
        }
    };
    let mut first = dense_from(table, head.first, activation)?;
    if let Some(norm) = head.norm.filter(|norm| !is_own || table.get(&format!("{norm}.weight")).is_some()) {
        if !is_own && fields.text_or("classifier_activation", "gelu")? != "gelu" {
            return fields.only("classifier_activation", super::config_json::Fixed::Text("gelu")).map(|()| Vec::new());
        }
        if let Some(bias) = table.get(&format!("{norm}.bias")) {
            return Err(bias.error("is not supported in a head for classes"));
        }
        let weight = table.require(&format!("{norm}.weight"))?;
        weight.require_shape(&[first.d_out()])?;
        first.norm = Some((weight.to_f32()?, fields.number_or("norm_eps", 1e-5)?));
    }
    let last = dense_from(table, head.last, DenseActivation::Identity)?;
    table.require(&format!("{}.weight", head.last))?.require_shape(&[last.d_out(), first.d_out()])?;
    Ok(vec![first, last])
}

/// The activation of the last layer, if sentence-transformers has saved it.
fn stated_scores(dir: &Path, fields: &Fields<'_>) -> Result<Option<ClassScores>> {
    let own = fields.object("sentence_transformers")?.and_then(|own| own.get("activation_fn").and_then(Value::as_str));
    let own = own.or(fields.get("sbert_ce_default_activation_function").and_then(Value::as_str)).map(str::to_owned);
    let path = dir.join(PROMPTS_FILE);
    let own = match own {
        None if path.is_file() => {
            let json = regular_file::read_json_object(&path)?;
            json.get("activation_fn").and_then(Value::as_str).map(str::to_owned)
        }
        own => own,
    };
    Ok(match own.as_deref().map(|name| name.rsplit('.').next().unwrap_or_default()) {
        Some("Identity") => Some(ClassScores::Logits),
        Some("Sigmoid") => Some(ClassScores::Sigmoid),
        _ => None,
    })
}

/// A head with random weights for the classes `labels`, as the family of `fields` has it.
pub(super) fn fresh(
    fields: &Fields<'_>,
    config: &GptConfig,
    (labels, pooling): (&[String], Pooling),
    seed: u64,
) -> Option<Classifier> {
    // Hearth's own head is BERT's.
    let model_type = fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let head = head_of(if model_type == OWN { HEADS[0].model_types[0] } else { model_type })?;
    let has_bias = head.norm.is_none() || fields.get("classifier_bias") == Some(&Value::Bool(true));
    let d_in = config.d_model;
    // Behind all tensors of a model.
    let layer = |number: u32, d_out: usize, has_bias: bool, activation| DenseLayer {
        weight: normal_values(seed, u32::MAX - number, d_out * d_in, INIT_STD),
        bias: if has_bias { vec![0.0; d_out] } else { Vec::new() },
        d_in,
        activation,
        norm: None,
    };
    let mut first = layer(0, d_in, has_bias, head.activation);
    first.norm = head.norm.map(|_| (vec![1.0; d_in], config.norm_eps));
    let last = layer(1, labels.len(), true, DenseActivation::Identity);
    Some(Classifier {
        pooling,
        layers: vec![first, last].into(),
        labels: labels.to_vec(),
        scores: if labels.len() == 1 { ClassScores::Sigmoid } else { ClassScores::Softmax },
        pair_form: PairForm::Joined,
    })
}

/// Whether the class for sequences of the family `model_type` computes this.
pub(super) fn expresses(model_type: &str, classes: &ClassDescription) -> bool {
    let pooled = match classes.pooling {
        Pooling::Cls => true,
        Pooling::Mean => model_type == MODERN_BERT,
        Pooling::Max | Pooling::Last | Pooling::Tokens => false,
    };
    pooled && head_of(model_type).is_some_and(|head| head.activation == classes.activation)
}

/// The entries of `config.json` for a classification head.
pub(super) fn config_of((class, model_type): (&str, &str), classes: &ClassDescription) -> Map<String, Value> {
    let ClassDescription { pooling, activation, has_bias, labels, scores } = classes;
    let mut config = Map::new();
    if let Some(family) = class.strip_suffix(BASE_CLASS) {
        config.insert("architectures".into(), json!([format!("{family}{SEQUENCE_CLASS}")]));
    }
    let by_number = labels.iter().enumerate().map(|(number, label)| (number.to_string(), json!(label)));
    config.insert("id2label".into(), Value::Object(by_number.collect()));
    let by_label = labels.iter().enumerate().map(|(number, label)| (label.clone(), json!(number)));
    config.insert("label2id".into(), Value::Object(by_label.collect()));
    match (scores, labels.len()) {
        (ClassScores::Softmax, _) => config.insert("problem_type".into(), "single_label_classification".into()),
        (ClassScores::Sigmoid, 1) => None,
        (ClassScores::Sigmoid, _) => config.insert("problem_type".into(), "multi_label_classification".into()),
        (ClassScores::Logits, _) => config
            .insert("sentence_transformers".into(), json!({ "activation_fn": "torch.nn.modules.linear.Identity" })),
    };
    if [MODERN_BERT, OWN].contains(&model_type) {
        let name = |known: &[(&'static str, DenseActivation)]| {
            known.iter().find(|(_, known)| known == activation).map_or("", |(name, _)| name)
        };
        let pooling = Pooling::ALL.iter().find(|(_, known)| known == pooling).map_or("", |(name, _)| name);
        config.insert("classifier_pooling".into(), pooling.into());
        config.insert("classifier_activation".into(), name(&ACTIVATIONS).into());
        config.insert("classifier_bias".into(), (*has_bias).into());
    }
    config
}

/// The names of tensors in a model with a head: the encoder's tensors get the prefix that they do not have in the
/// encoder alone.
pub(super) fn names_with_head(names: TensorNames) -> TensorNames {
    TensorNames { body_prefix: names.base_prefix, ..names }
}

/// The tensor of a parameter of the head, in files of the class that `names` are of.
pub(super) fn saved_parts(names: &TensorNames, spec: &ParamSpec) -> Vec<TensorPart> {
    let head =
        names.rows.and_then(|_| head_of(&names.class.strip_suffix(BASE_CLASS).unwrap_or_default().to_lowercase()));
    let part = |part: &str| match (head, part) {
        (Some(head), "dense") => head.first.to_owned(),
        (Some(head), "out") => head.last.to_owned(),
        (Some(head), "norm") => head.norm.unwrap_or_default().to_owned(),
        (_, part) => format!("{OF_CLASSES}{part}"),
    };
    let own = spec.path.strip_prefix(OF_CLASSES).unwrap_or(&spec.path);
    let (path, name) = own.rsplit_once('.').unwrap_or((own, "weight"));
    let name = format!("{}.{name}", part(path));
    vec![TensorPart { name, n_rows: spec.shape[0], order: RowOrder::Same, expert: None }]
}
