//! The classification head of an encoder: projects a text's vector to a score per class. A model has one only while it
//! trains, and when it is saved: for serving, a [`Classifier`] is made from the same files.

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor, TensorData, activation::relu},
};

use super::Gpt;
use crate::{
    config::Activation,
    error::{Error, Result},
    gpt::{
        layers::{Linear, Norm, Part, PartList},
        param_specs::{ParamSpec, class_specs},
        params::ParamSource,
        pooling::{ClassScores, Classifier, DenseActivation, DenseLayer, Pooling},
    },
    ops::{self, Dtype, LossOptions, Losses, Targets},
};

/// The path of the head's parts begins with it.
pub(crate) const OF_CLASSES: &str = "classes.";

/// A classification head: `out(norm(activation(dense(x))))`.
#[derive(Module, Debug)]
pub(super) struct ClassHead {
    dense: Linear,
    norm: Option<Norm>,
    out: Linear,
    #[module(skip)]
    description: ClassDescription,
}

/// A classification head without its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassDescription {
    /// Which hidden states it reads.
    pub pooling: Pooling,
    /// The activation of its first layer.
    pub activation: DenseActivation,
    /// Whether its first layer has a bias.
    pub has_bias: bool,
    /// The names of the classes.
    pub labels: Vec<String>,
    /// How scores become probabilities.
    pub scores: ClassScores,
}

impl Part for ClassHead {
    fn read(path: &str, _params: &mut ParamSource<'_>) -> Result<Self> {
        unreachable!("no architecture has a head for classes: `{path}`")
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        self.dense.list(&format!("{path}.dense"), list);
        self.norm.list(&format!("{path}.norm"), list);
        self.out.list(&format!("{path}.out"), list);
    }

    fn list_linears_mut<'a>(&'a mut self, path: &str, list: &mut Vec<(String, &'a mut Linear)>) {
        list.push((format!("{path}.dense"), &mut self.dense));
        list.push((format!("{path}.out"), &mut self.out));
    }
}

impl ClassHead {
    /// From `[n_texts, d_model]` to the input of the last layer.
    fn features(&self, vectors: Tensor<2>) -> Tensor<2> {
        let dense = ops::linear_with_lora(vectors, self.dense.parts(None, &[]));
        let activated = match self.description.activation {
            DenseActivation::Identity => dense,
            DenseActivation::Tanh => dense.tanh(),
            DenseActivation::Relu => relu(dense),
            DenseActivation::Gelu => ops::activate(dense, Activation::Gelu),
        };
        match &self.norm {
            Some(norm) => norm.forward(activated),
            None => activated,
        }
    }
}

impl Gpt {
    /// The encoder with a classification head, in f32 on `device`.
    ///
    /// # Errors
    /// The classifier is not of two layers of the model's width.
    pub fn with_classifier(self, classifier: &Classifier, device: &Device) -> Result<Self> {
        let d_model = self.config.d_model;
        let [first, last] = &*classifier.layers else { return Err(wrong("must have two layers")) };
        let fits = [first.d_in, first.d_out(), last.d_in] == [d_model; 3] && last.d_out() == classifier.labels.len();
        if !fits || last.norm.is_some() {
            return Err(wrong("does not fit the model"));
        }
        let has_bias = !first.bias.is_empty();
        let parts = class_specs(&self.config, classifier.labels.len(), has_bias, first.norm.is_some());
        let mut read = |spec: &ParamSpec| {
            let DenseLayer { weight, bias, norm, .. } = if spec.path.starts_with("classes.out") { last } else { first };
            let values = match spec.path.as_str() {
                "classes.norm.weight" => norm.iter().flat_map(|(weight, _)| weight.iter().copied()).collect(),
                path if path.ends_with(".weight") => weight.clone(),
                // A last layer without a bias becomes one with zeros.
                _ if bias.is_empty() => vec![0.0; spec.shape[0]],
                _ => bias.clone(),
            };
            Ok(TensorData::new(values, spec.shape.as_slice()).into())
        };
        let params = &mut ParamSource::of_parts(parts, &self.config, Dtype::F32, device, &mut read);
        let head = ClassHead {
            dense: Linear::read("classes.dense", params)?,
            norm: Option::read("classes.norm", params)?,
            out: Linear::read("classes.out", params)?,
            description: ClassDescription {
                pooling: classifier.pooling,
                activation: first.activation,
                has_bias,
                labels: classifier.labels.clone(),
                scores: classifier.scores,
            },
        };
        Ok(Self { classes: Some(head), ..self })
    }

    /// The description of the model's classification head, if it has one.
    pub fn classes(&self) -> Option<&ClassDescription> {
        self.classes.as_ref().map(|head| &head.description)
    }

    /// Class scores before softmax or sigmoid, `[n_texts, n_classes]`, from vectors `[n_texts, d_model]`. `None`
    /// without a classification head.
    pub fn class_logits(&self, vectors: Tensor<2>) -> Option<Tensor<2>> {
        let head = self.classes.as_ref()?;
        Some(ops::linear_with_lora(head.features(vectors), head.out.parts(None, &[])))
    }

    /// The cross entropy in nats, `[1]`, of `vectors [n_texts, d_model]` and their class indices; like
    /// [`losses`](Self::losses) for tokens. `None` without a classification head.
    ///
    /// # Panics
    /// When the number of targets is not the number of texts.
    pub fn class_losses(&self, vectors: Tensor<2>, targets: impl Into<Targets>) -> Option<Losses> {
        let head = self.classes.as_ref()?;
        let out = head.out.parts(None, &[]);
        let options = LossOptions { softcap: None, z_loss: 0.0, label_smoothing: 0.0 };
        Some(ops::linear_cross_entropy(head.features(vectors), (out.weight, out.bias), options, targets.into()))
    }

    /// The parameters of the classification head; empty without one.
    pub(crate) fn class_params(&self) -> Vec<ParamSpec> {
        let Some(ClassHead { norm, description, .. }) = &self.classes else { return Vec::new() };
        let parts = class_specs(&self.config, description.labels.len(), description.has_bias, norm.is_some());
        parts.into_iter().flat_map(|part| part.params).collect()
    }
}

fn wrong(what: &str) -> Error {
    Error::Config { field: "classifier".into(), what: what.to_owned() }
}

/// The vectors of texts, `[n_texts, d_model]`, by `pooling`: text `n` has the first `lens[n]` of `seq_len` rows of
/// `hidden [n_texts * seq_len, d_model]`. [`Pooling::Tokens`] keeps all rows.
///
/// # Panics
/// Unless `hidden` has `n_texts * seq_len` rows, and each text has at least one.
pub fn pooled(hidden: Tensor<2>, (lens, seq_len): (&[usize], usize), pooling: Pooling) -> Tensor<2> {
    let ([n_rows, d_model], device) = (hidden.dims(), hidden.device());
    assert_eq!(n_rows, lens.len() * seq_len, "rows of all texts");
    assert!(lens.iter().all(|len| (1..=seq_len).contains(len)), "a text has rows");
    let rows = |at: &dyn Fn(usize) -> usize| -> Tensor<1, Int> {
        let rows: Vec<i32> = lens.iter().enumerate().map(|(text, len)| (text * seq_len + at(*len)) as i32).collect();
        Tensor::from_data(rows.as_slice(), &device)
    };
    match pooling {
        Pooling::Tokens => hidden,
        Pooling::Cls => hidden.select(0, rows(&|_| 0)),
        Pooling::Last => hidden.select(0, rows(&|len| len - 1)),
        Pooling::Mean | Pooling::Max => {
            let is_text = lens.iter().flat_map(|len| (0..seq_len).map(move |at| (at < *len, *len)));
            let factors: Vec<f32> = match pooling {
                Pooling::Mean => is_text.map(|(is_text, len)| if is_text { 1.0 / len as f32 } else { 0.0 }).collect(),
                // Far below all hidden states.
                _ => is_text.map(|(is_text, _)| if is_text { 0.0 } else { f32::MIN / 2.0 }).collect(),
            };
            let factors = Tensor::<2>::from_data(TensorData::new(factors, [n_rows, 1]), &device);
            let of_texts = |rows: Tensor<2>| rows.reshape([lens.len(), seq_len, d_model]);
            let vectors = match pooling {
                Pooling::Mean => of_texts(hidden * factors).sum_dim(1),
                _ => of_texts(hidden + factors).max_dim(1),
            };
            vectors.reshape([lens.len(), d_model])
        }
    }
}
