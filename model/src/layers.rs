//! Matrices, embeddings and norms with their parameters, around the operations of [`ops`].

use burn::{
    module::{Module, Param},
    tensor::{Int, Tensor},
};

use crate::{
    error::Result,
    lora::{Lora, LoraDropout},
    ops::{self, LinearParts, NormOptions, NormParts, Precision, RowUpdate, Weight},
    params::{ParamList, ParamRef, ParamSource},
};

/// A matrix, a bias where the architecture has one, and an adapter's updates.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Param<Tensor<1>>>,
    lora: Option<Lora>,
}

impl Linear {
    pub(crate) fn new(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let (weight, bias) = (params.matrix(&format!("{path}.weight"))?, params.vector(&format!("{path}.bias"))?);
        Ok(Self { weight, bias, lora: None })
    }

    pub(crate) fn weight(&self) -> &Weight {
        &self.weight
    }

    pub(crate) fn list_params<'a>(&'a self, path: &str, list: &mut ParamList<'a>) {
        list.push((format!("{path}.weight"), ParamRef::Matrix(&self.weight)));
        list.extend(self.bias.iter().map(|bias| (format!("{path}.bias"), ParamRef::Vector(bias))));
    }

    pub(crate) fn set_precision(&mut self, precision: Precision) {
        self.weight.set_precision(precision);
    }

    pub(crate) fn lora(&self) -> Option<&Lora> {
        self.lora.as_ref()
    }

    pub(crate) fn set_lora(&mut self, lora: Option<Lora>) {
        self.lora = lora;
    }

    /// The operands. `number` is the matrix's place in [`MATRICES`](crate::lora::MATRICES).
    /// `by_row` are the updates of some rows.
    pub(crate) fn parts<'a>(
        &'a self,
        number: usize,
        dropout: Option<LoraDropout>,
        by_row: Vec<RowUpdate<'a>>,
    ) -> LinearParts<'a> {
        LinearParts {
            weight: &self.weight,
            bias: self.bias.as_ref().map(Param::val),
            lora: self.lora.as_ref().map(|lora| lora.parts(number, dropout)),
            by_row,
        }
    }
}

/// The output matrix: its own or the embedding, and in few architectures a bias.
#[derive(Module, Debug)]
pub(crate) struct LmHead {
    pub(crate) weight: Option<Weight>,
    pub(crate) bias: Option<Param<Tensor<1>>>,
}

impl LmHead {
    pub(crate) fn new(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let weight = format!("{path}.weight");
        Ok(Self {
            weight: params.has(&weight).then(|| params.matrix(&weight)).transpose()?,
            bias: params.vector(&format!("{path}.bias"))?,
        })
    }

    pub(crate) fn list_params<'a>(&'a self, path: &str, list: &mut ParamList<'a>) {
        list.extend(self.weight.iter().map(|weight| (format!("{path}.weight"), ParamRef::Matrix(weight))));
        list.extend(self.bias.iter().map(|bias| (format!("{path}.bias"), ParamRef::Vector(bias))));
    }
}

/// An embedding: rows of a matrix by index.
#[derive(Module, Debug)]
pub(crate) struct Embedding {
    pub(crate) weight: Weight,
}

impl Embedding {
    pub(crate) fn new(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let dtype = params.dtype.for_embeddings();
        Ok(Self { weight: params.matrix_as(&format!("{path}.weight"), dtype)? })
    }

    pub(crate) fn list_params<'a>(&'a self, path: &str, list: &mut ParamList<'a>) {
        list.push((format!("{path}.weight"), ParamRef::Matrix(&self.weight)));
    }

    pub(crate) fn forward(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        ops::embedding(&self.weight, ids)
    }
}

/// LayerNorm or RMSNorm with its parameters.
#[derive(Module, Debug)]
pub(crate) struct Norm {
    weight: Option<Param<Tensor<1>>>,
    /// Stands for the weight where the architecture has none: the operations want one.
    ones: Option<Tensor<1>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    options: NormOptions,
}

impl Norm {
    pub(crate) fn new(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let config = params.config;
        let Some(&width) = params.norms.get(path) else {
            unreachable!("`param_specs` lists every norm that the model asks for: `{path}`")
        };
        let weight = params.vector(&format!("{path}.weight"))?;
        Ok(Self {
            ones: weight.is_none().then(|| Tensor::ones([width], params.device)),
            weight,
            bias: params.vector(&format!("{path}.bias"))?,
            options: NormOptions { kind: config.norm, eps: config.norm_eps, weight_offset: config.norm_weight_offset },
        })
    }

    /// The norm at `path`, if the architecture has it.
    pub(crate) fn if_any(path: &str, params: &mut ParamSource<'_>) -> Result<Option<Self>> {
        params.norms.contains_key(path).then(|| Self::new(path, params)).transpose()
    }

    pub(crate) fn with_eps(mut self, eps: Option<f64>) -> Self {
        self.options.eps = eps.unwrap_or(self.options.eps);
        self
    }

    pub(crate) fn list_params<'a>(&'a self, path: &str, list: &mut ParamList<'a>) {
        list.extend(self.weight.iter().map(|weight| (format!("{path}.weight"), ParamRef::Vector(weight))));
        list.extend(self.bias.iter().map(|bias| (format!("{path}.bias"), ParamRef::Vector(bias))));
    }

    pub(crate) fn parts(&self) -> NormParts {
        let bias = self.bias.as_ref().map(Param::val);
        let weight = match (&self.weight, &self.ones) {
            (Some(weight), _) => weight.val(),
            (None, Some(ones)) => ones.clone(),
            (None, None) => unreachable!("a norm has weights or ones"),
        };
        NormParts { weight, bias, options: self.options }
    }

    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let NormParts { weight, bias, options } = self.parts();
        ops::norm(x, weight, bias, options)
    }
}
