//! What makes an encoder's hidden states scores of classes: the heads of the classes for sequences.

use std::path::Path;

use serde_json::{Map, Value};

use super::{config_json::Fields, files::TensorFiles, own_pooling::dense_from, tensor_table::TensorTable};
use crate::{
    error::Result,
    pooling::{ClassScores, Classifier, DenseActivation, DenseLayer, Pooling},
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
        model_types: &["roberta", "xlm-roberta", "camembert"],
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

/// The classifier of the model dir `dir` with the configuration `config`, if its class has one.
///
/// # Errors
/// A tensor or a name is missing or wrong.
pub(super) fn of_dir(dir: &Path, config: &Map<String, Value>, config_path: &Path) -> Result<Option<Classifier>> {
    let fields = Fields::new(config, config_path);
    let class = fields.get("architectures").and_then(|classes| classes[0].as_str()).unwrap_or_default();
    let model_type = fields.text_or("model_type", "")?;
    let head = HEADS.iter().find(|head| head.model_types.contains(&model_type));
    let Some(head) = head.filter(|_| class.ends_with(SEQUENCE_CLASS)) else { return Ok(None) };
    let files = TensorFiles::open(dir)?;
    let layers = layers(head, &files.table()?, &fields)?;
    let n_labels = layers[1].d_out();
    let names = fields.object("id2label")?;
    let name = |number: usize| {
        let given = names.as_ref().and_then(|names| names.get(&number.to_string()));
        given.and_then(Value::as_str).map_or_else(|| format!("LABEL_{number}"), str::to_owned)
    };
    let pooling = match fields.text_or("classifier_pooling", "cls")? {
        "cls" => Pooling::Cls,
        "mean" => Pooling::Mean,
        other => return Err(fields.unsupported("classifier_pooling", &Value::from(other), "\"cls\", \"mean\"")),
    };
    Ok(Some(Classifier {
        pooling,
        layers: layers.into(),
        labels: (0..n_labels).map(name).collect(),
        scores: scores(&fields, n_labels)?,
    }))
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

/// What the sums of the last layer become: as the model's own settings, or as sentence-transformers computes scores of pairs.
fn scores(fields: &Fields<'_>, n_labels: usize) -> Result<ClassScores> {
    let own = fields.object("sentence_transformers")?.and_then(|own| own.get("activation_fn").and_then(Value::as_str));
    let own = own.or(fields.get("sbert_ce_default_activation_function").and_then(Value::as_str));
    match own.map(|name| name.rsplit('.').next().unwrap_or_default()) {
        Some("Identity") => return Ok(ClassScores::Logits),
        Some("Sigmoid") => return Ok(ClassScores::Sigmoid),
        _ => {}
    }
    Ok(match (fields.text_or("problem_type", "")?, n_labels) {
        ("multi_label_classification", _) | (_, 1) => ClassScores::Sigmoid,
        _ => ClassScores::Softmax,
    })
}
