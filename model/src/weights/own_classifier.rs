//! What makes hidden states scores of classes: the heads of the classes for sequences, and the two tokens by which decoders say
//! whether a document suits a query.

use std::path::Path;

use serde_json::{Map, Value};

use super::{
    config_json::Fields,
    file_names::PROMPTS_FILE,
    files::TensorFiles,
    own_pooling::{self, dense_from},
    tensor_table::TensorTable,
};
use crate::{
    TokenId,
    chat::{ChatTemplate, Ending, Message, RenderContext},
    error::Result,
    gpt::Gpt,
    pooling::{ClassScores, Classifier, DenseActivation, DenseLayer, PairForm, Pooling},
    regular_file,
    tokenizer::Tokenizer,
};

/// How the names of such classes end.
pub(super) const SEQUENCE_CLASS: &str = "ForSequenceClassification";

/// A family's head: the tensors of its first layer and their activation, those of its norm, and those of its last layer.
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
        model_types: &["modernbert"],
        first: "head.dense",
        activation: DenseActivation::Gelu,
        norm: Some("head.norm"),
        last: "classifier",
    },
];

/// The last layer of a decoder's head, which reads the last token's hidden state.
pub(super) const DECODER_HEAD: &str = "score";

/// The classifier of the model dir `dir` with the configuration `config`, if it has one: `gpt` and `tokenizer` are the dir's, and
/// `template` may say how a query and a document are written.
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
    let class = fields.get("architectures").and_then(|classes| classes[0].as_str()).unwrap_or_default();
    let model_type = fields.text_or("model_type", "")?;
    if !class.ends_with(SEQUENCE_CLASS) {
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
    let is_decoder = !gpt.config().bidirectional;
    let head = HEADS.iter().find(|head| head.model_types.contains(&model_type));
    if head.is_none() && !is_decoder {
        return Ok(None);
    }
    let files = TensorFiles::open(dir)?;
    let layers = match head {
        Some(head) => layers(head, &files.table()?, &fields)?,
        None => vec![dense_from(&files.table()?, DECODER_HEAD, DenseActivation::Identity)?],
    };
    let n_labels = layers.last().map_or(0, DenseLayer::d_out);
    let names = fields.object("id2label")?;
    let name = |number: usize| {
        let given = names.as_ref().and_then(|names| names.get(&number.to_string()));
        given.and_then(Value::as_str).map_or_else(|| format!("LABEL_{number}"), str::to_owned)
    };
    let pooling = match fields.text_or("classifier_pooling", "cls")? {
        _ if is_decoder => Pooling::Last,
        "cls" => Pooling::Cls,
        "mean" => Pooling::Mean,
        other => return Err(fields.unsupported("classifier_pooling", &Value::from(other), "\"cls\", \"mean\"")),
    };
    Ok(Some(Classifier {
        pooling,
        layers: layers.into(),
        labels: (0..n_labels).map(name).collect(),
        scores: match stated_scores(dir, &fields)? {
            Some(scores) => scores,
            None => match (fields.text_or("problem_type", "")?, n_labels) {
                ("multi_label_classification", _) | (_, 1) => ClassScores::Sigmoid,
                _ => ClassScores::Softmax,
            },
        },
        pair_form: written_pair(template, tokenizer)?.map_or(PairForm::Joined, PairForm::Within),
    }))
}

/// The tokens by which a decoder says yes and no to a pair of texts, if it is made for that: as vLLM's key of `config.json` names them,
/// no before yes, or as sentence-transformers saves them. The second may be missing.
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

/// The layer that computes by how much the logit of one token is above that of another.
fn difference(gpt: &Gpt, (yes, no): (TokenId, Option<TokenId>)) -> DenseLayer {
    let row = |id| gpt.output_row(id);
    let weight = match no {
        None => row(yes),
        Some(no) => row(yes).iter().zip(row(no)).map(|(yes, no)| yes - no).collect(),
    };
    DenseLayer { d_in: weight.len(), weight, bias: Vec::new(), activation: DenseActivation::Identity, norm: None }
}

/// What stands before a query, between it and a document, and behind that, if the template writes such messages.
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
    let mut first = dense_from(table, head.first, head.activation)?;
    if let Some(norm) = head.norm {
        if fields.text_or("classifier_activation", "gelu")? != "gelu" {
            return fields.only("classifier_activation", super::config_json::Fixed::Text("gelu")).map(|()| Vec::new());
        }
        let weight = table.require(&format!("{norm}.weight"))?;
        weight.require_shape(&[first.d_out()])?;
        first.norm = Some((weight.to_f32()?, fields.number_or("norm_eps", 1e-5)?));
    }
    let last = dense_from(table, head.last, DenseActivation::Identity)?;
    table.require(&format!("{}.weight", head.last))?.require_shape(&[last.d_out(), first.d_out()])?;
    Ok(vec![first, last])
}

/// What the sums of the last layer become, where sentence-transformers has saved it.
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
