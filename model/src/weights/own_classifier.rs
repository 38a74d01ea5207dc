//! What makes an encoder's hidden states scores of classes: the heads of the classes for sequences.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{
    config_json::Fields,
    files::TensorFiles,
    own_pooling::dense_from,
    row_order::RowOrder,
    tensor_names::{TensorNames, TensorPart},
    tensor_table::TensorTable,
};
use crate::{
    config::GptConfig,
    error::Result,
    gpt::class_head::{ClassDescription, OF_CLASSES},
    param_specs::ParamSpec,
    philox::normal_values,
    pooling::{ClassScores, Classifier, DenseActivation, DenseLayer, Pooling},
};

/// How the names of such classes end.
pub(super) const SEQUENCE_CLASS: &str = "ForSequenceClassification";

/// How the names of the classes without a head end.
const BASE_CLASS: &str = "Model";

/// Standard deviation of fresh matrices, BERT's.
const INIT_STD: f32 = 0.02;

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

/// The family whose configuration has a pooling.
const MODERN_BERT: &str = "modernbert";
/// Hearth's own.
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

/// The classifier of the model dir `dir` with the configuration `config`, if its class has one.
///
/// # Errors
/// A tensor or a name is missing or wrong.
pub(super) fn of_dir(dir: &Path, config: &Map<String, Value>, config_path: &Path) -> Result<Option<Classifier>> {
    let fields = Fields::new(config, config_path);
    let class = fields.get("architectures").and_then(|classes| classes[0].as_str()).unwrap_or_default();
    let model_type = fields.text_or("model_type", "")?;
    let has_head = class.ends_with(SEQUENCE_CLASS) || model_type == OWN && fields.has("id2label");
    let Some(head) = head_of(model_type).filter(|_| has_head) else { return Ok(None) };
    let files = TensorFiles::open(dir)?;
    let layers = layers(head, &files.table()?, &fields)?;
    let n_labels = layers[1].d_out();
    let names = fields.object("id2label")?;
    let name = |number: usize| {
        let given = names.as_ref().and_then(|names| names.get(&number.to_string()));
        given.and_then(Value::as_str).map_or_else(|| format!("LABEL_{number}"), str::to_owned)
    };
    let pooling = fields.text_or("classifier_pooling", "cls")?;
    let Some((_, pooling)) = Pooling::ALL.into_iter().find(|(name, _)| *name == pooling) else {
        return Err(fields.unsupported("classifier_pooling", &Value::from(pooling), "\"cls\", \"mean\", \"max\""));
    };
    Ok(Some(Classifier {
        pooling,
        layers: layers.into(),
        labels: (0..n_labels).map(name).collect(),
        scores: scores(&fields, n_labels)?,
    }))
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

/// A head with random weights for the classes `labels`, as the family of `fields` has it.
pub(super) fn fresh(
    fields: &Fields<'_>,
    config: &GptConfig,
    (labels, pooling): (&[String], Pooling),
    seed: u64,
) -> Option<Classifier> {
    // Hearth's own is BERT's.
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
    })
}

/// Whether the class for sequences of the family `model_type` computes this.
pub(super) fn expresses(model_type: &str, classes: &ClassDescription) -> bool {
    let pooled = match classes.pooling {
        Pooling::Cls => true,
        Pooling::Mean => model_type == MODERN_BERT,
        Pooling::Max | Pooling::Last => false,
    };
    pooled && head_of(model_type).is_some_and(|head| head.activation == classes.activation)
}

/// What `config.json` has of a head for classes.
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

/// The names of tensors in a model with a head: those of the encoder have the prefix that the encoder alone has not.
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
