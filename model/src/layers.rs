//! The pieces that blocks are made of: matrices, embeddings and norms with their parameters, around the operations of
//! [`ops`]. What they make of a text is for attention and the model to say.

use burn::{
    module::{Module, Param},
    tensor::{Int, Tensor},
};

use crate::{
    config::Activation,
    error::Result,
    ops::{self, LinearParts, NormOptions, NormParts, Weight},
    params::{ParamList, ParamRef, ParamSource},
};

/// A matrix, and a bias where the architecture has one.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    pub(crate) fn new(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        Ok(Self { weight: params.matrix(&format!("{path}.weight"))?, bias: params.vector(&format!("{path}.bias"))? })
    }

    pub(crate) fn weight(&self) -> &Weight {
        &self.weight
    }

    pub(crate) fn list_params<'a>(&'a self, path: &str, list: &mut ParamList<'a>) {
        list.push((format!("{path}.weight"), ParamRef::Matrix(&self.weight)));
        list.extend(self.bias.iter().map(|bias| (format!("{path}.bias"), ParamRef::Vector(bias))));
    }

    pub(crate) fn parts(&self) -> LinearParts<'_> {
        LinearParts { weight: &self.weight, bias: self.bias.as_ref().map(Param::val) }
    }

    /// `[n_rows, d_in]` to `[n_rows, d_out]`.
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        ops::linear(x, &self.weight, self.bias.as_ref().map(Param::val))
    }

    /// [`forward`](Self::forward) of the normalised rows.
    pub(crate) fn forward_normed(&self, x: Tensor<2>, norm: &Norm) -> Tensor<2> {
        ops::normed_linear(x, norm.parts(), &self.weight, self.bias.as_ref().map(Param::val))
    }

    /// The left half of [`forward_normed`](Self::forward_normed) gates the right: `[n_rows, d_out / 2]`.
    pub(crate) fn forward_gated(&self, x: Tensor<2>, norm: &Norm, activation: Activation) -> Tensor<2> {
        ops::normed_gated(x, norm.parts(), &self.weight, self.bias.as_ref().map(Param::val), activation)
    }

    /// [`forward`](Self::forward), plus `residual [n_rows, d_out]`.
    pub(crate) fn forward_add(&self, x: Tensor<2>, residual: Tensor<2>) -> Tensor<2> {
        ops::linear_add(x, &self.weight, self.bias.as_ref().map(Param::val), residual)
    }
}

/// Where logits come from: a matrix of its own unless the embedding serves as such, and in few architectures a bias.
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

/// Rows of a matrix by number.
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
    weight: Param<Tensor<1>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    options: NormOptions,
}

impl Norm {
    pub(crate) fn new(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let config = params.config;
        Ok(Self {
            weight: params.required_vector(&format!("{path}.weight"))?,
            bias: params.vector(&format!("{path}.bias"))?,
            options: NormOptions { kind: config.norm, eps: config.norm_eps, weight_offset: config.norm_weight_offset },
        })
    }

    /// The norm at `path`, if the architecture has it.
    pub(crate) fn if_any(path: &str, params: &mut ParamSource<'_>) -> Result<Option<Self>> {
        params.has(&format!("{path}.weight")).then(|| Self::new(path, params)).transpose()
    }

    pub(crate) fn with_eps(mut self, eps: Option<f64>) -> Self {
        self.options.eps = eps.unwrap_or(self.options.eps);
        self
    }

    pub(crate) fn list_params<'a>(&'a self, path: &str, list: &mut ParamList<'a>) {
        list.push((format!("{path}.weight"), ParamRef::Vector(&self.weight)));
        list.extend(self.bias.iter().map(|bias| (format!("{path}.bias"), ParamRef::Vector(bias))));
    }

    pub(crate) fn parts(&self) -> NormParts {
        let bias = self.bias.as_ref().map(Param::val);
        NormParts { weight: self.weight.val(), bias, options: self.options }
    }

    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        ops::norm(x, self.weight.val(), self.bias.as_ref().map(Param::val), self.options)
    }
}
