//! Matrices, embeddings and norms with their parameters, around the operations of [`ops`].

use burn::{
    module::{Module, Param},
    tensor::{Device, Int, Tensor},
};

use crate::{
    error::Result,
    gpt::{
        lora::{AdapterRows, Lora, row_updates},
        params::{ParamList, ParamRef, ParamSource},
    },
    ops::{self, Dtype, LinearParts, NormOptions, NormParts, Precision, RouterParts, ShortConv, Weight},
};

/// A part of a model: a layer with parameters, or one of the [`modules`] that have parts.
/// [`part_specs`](crate::gpt::param_specs::part_specs) describes which parts a model has, and their shapes.
pub(crate) trait Part: Sized {
    /// Reads the part at `path`.
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self>;

    /// Adds the part at `path` to the list.
    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>);

    /// Adds its linear layers to the list, in the order of [`list`](Self::list).
    fn list_linears_mut<'a>(&'a mut self, _path: &str, _list: &mut Vec<(String, &'a mut Linear)>) {}
}

/// A list of a model's parts, with paths.
#[derive(Debug, Default)]
pub(crate) struct PartList<'a> {
    pub(crate) params: ParamList<'a>,
    pub(crate) linears: Vec<(String, &'a Linear)>,
}

impl<'a> PartList<'a> {
    fn add(&mut self, part: &str, weight: Option<ParamRef<'a>>, bias: Option<&'a Param<Tensor<1>>>) {
        let named = [("weight", weight), ("bias", bias.map(ParamRef::Vector))].into_iter();
        self.params.extend(named.filter_map(|(name, param)| Some((format!("{part}.{name}"), param?))));
    }
}

/// A part that some architectures, or some layers, do not have.
impl<P: Part> Part for Option<P> {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        params.has(path).then(|| P::read(path, params)).transpose()
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        self.iter().for_each(|part| part.list(path, list));
    }

    fn list_linears_mut<'a>(&'a mut self, path: &str, list: &mut Vec<(String, &'a mut Linear)>) {
        self.iter_mut().for_each(|part| part.list_linears_mut(path, list));
    }
}

/// Parts by number.
impl<P: Part> Part for Vec<P> {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let paths = (0..).map(|index| format!("{path}.{index}"));
        let mut parts = Vec::new();
        for path in paths {
            match Option::read(&path, params)? {
                Some(part) => parts.push(part),
                None => break,
            }
        }
        Ok(parts)
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        self.iter().enumerate().for_each(|(index, part)| part.list(&format!("{path}.{index}"), list));
    }

    fn list_linears_mut<'a>(&'a mut self, path: &str, list: &mut Vec<(String, &'a mut Linear)>) {
        let parts = self.iter_mut().enumerate();
        parts.for_each(|(index, part)| part.list_linears_mut(&format!("{path}.{index}"), list));
    }
}

/// The path of a part of the module at `path`, which is empty for the model itself.
pub(crate) fn path_of(path: &str, part: &str) -> String {
    if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") }
}

/// Defines modules that consist of [`Part`]s: Burn's module, and how it is read and listed. A field's name is the
/// part's name in [`part_specs`](crate::gpt::param_specs::part_specs), and an `Option` is a part that not every
/// architecture or layer has. Burn's own visitor is not enough: it does not see matrices that do not train, and lends
/// tensors only during the visit.
macro_rules! modules {
    ($($(#[$meta:meta])* $vis:vis struct $module:ident {
        $($(#[$part_meta:meta])* $part:ident: $kind:ty,)+
        $(; $config:ident: $config_type:ty,)?
    })+) => { $(
        $(#[$meta])*
        #[derive(burn::module::Module, Debug)]
        $vis struct $module {
            $($(#[$part_meta])* $part: $kind,)+
            $(#[module(skip)] $config: $config_type,)?
        }

        impl $crate::gpt::layers::Part for $module {
            fn read(path: &str, params: &mut $crate::gpt::params::ParamSource<'_>) -> $crate::error::Result<Self> {
                Ok(Self {
                    $($part: $crate::gpt::layers::Part::read(&$crate::gpt::layers::path_of(path, stringify!($part)), params)?,)+
                    $($config: params.config_of(path).clone(),)?
                })
            }

            fn list<'a>(&'a self, path: &str, list: &mut $crate::gpt::layers::PartList<'a>) {
                $(self.$part.list(&$crate::gpt::layers::path_of(path, stringify!($part)), list);)+
            }

            fn list_linears_mut<'a>(
                &'a mut self,
                path: &str,
                list: &mut Vec<(String, &'a mut $crate::gpt::layers::Linear)>,
            ) {
                $(self.$part.list_linears_mut(&$crate::gpt::layers::path_of(path, stringify!($part)), list);)+
            }
        }
    )+ };
}

pub(crate) use modules;

/// A matrix, a bias where the architecture has one, and an adapter's updates.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Param<Tensor<1>>>,
    lora: Option<Lora>,
    /// Its place among the model's linear layers.
    #[module(skip)]
    index: usize,
}

impl Part for Linear {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let (weight, bias) = (required_matrix(path, params, params.dtype)?, params.tensor(path, "bias")?);
        Ok(Self { weight, bias, lora: None, index: params.linear_index(path) })
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        list.add(path, Some(ParamRef::Matrix(&self.weight)), self.bias.as_ref());
        list.linears.push((path.to_owned(), self));
    }

    fn list_linears_mut<'a>(&'a mut self, path: &str, list: &mut Vec<(String, &'a mut Linear)>) {
        list.push((path.to_owned(), self));
    }
}

fn required_matrix(path: &str, params: &mut ParamSource<'_>, dtype: Dtype) -> Result<Weight> {
    let weight = params.matrix(path, dtype)?;
    Ok(weight.unwrap_or_else(|| unreachable!("a matrix without values: `{path}`")))
}

impl Linear {
    pub(crate) fn weight(&self) -> &Weight {
        &self.weight
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

    /// The operands. `dropout_seed` is the pass's seed, if it trains; each of `adapters` updates some rows.
    pub(crate) fn parts<'a>(&'a self, dropout_seed: Option<u64>, adapters: &'a [AdapterRows]) -> LinearParts<'a> {
        LinearParts {
            weight: &self.weight,
            bias: self.bias.as_ref().map(Param::val),
            lora: self.lora.as_ref().map(|lora| lora.parts(self.index, dropout_seed)),
            by_row: row_updates(adapters, self.index),
        }
    }
}

/// A small matrix for routing, such as the one that chooses the experts of a row; never rounded.
#[derive(Module, Debug)]
pub(crate) struct Router {
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Param<Tensor<1>>>,
    // Not learned by gradients.
    pub(crate) selection_bias: Option<Tensor<1>>,
    // Factors of the experts' outputs.
    pub(crate) expert_scale: Option<Param<Tensor<1>>>,
}

impl Part for Router {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        Ok(Self {
            weight: required_matrix(path, params, Dtype::F32)?,
            bias: params.tensor(path, "bias")?,
            selection_bias: params.tensor(path, "selection_bias")?.map(|bias| bias.val()),
            expert_scale: params.tensor(path, "expert_scale")?,
        })
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        list.add(path, Some(ParamRef::Matrix(&self.weight)), self.bias.as_ref());
        let bias = self.selection_bias.as_ref().map(ParamRef::Constant);
        list.params.extend(bias.map(|bias| (format!("{path}.selection_bias"), bias)));
        let scale = self.expert_scale.as_ref().map(ParamRef::Vector);
        list.params.extend(scale.map(|scale| (format!("{path}.expert_scale"), scale)));
    }
}

impl Router {
    pub(crate) fn parts(&self) -> RouterParts<'_> {
        RouterParts {
            weight: &self.weight,
            bias: self.bias.as_ref().map(Param::val),
            selection_bias: self.selection_bias.clone(),
            expert_scale: self.expert_scale.as_ref().map(Param::val),
        }
    }
}

/// A depthwise convolution over the rows of a sequence.
#[derive(Module, Debug)]
pub(crate) struct Conv {
    /// `[channels, 1, kernel]`.
    weight: Param<Tensor<3>>,
    bias: Option<Param<Tensor<1>>>,
}

impl Part for Conv {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let weight = params.tensor(path, "weight")?;
        let weight = weight.unwrap_or_else(|| unreachable!("a convolution without values: `{path}`"));
        Ok(Self { weight, bias: params.tensor(path, "bias")? })
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        list.add(path, Some(ParamRef::Conv(&self.weight)), self.bias.as_ref());
    }
}

impl Conv {
    pub(crate) fn parts(&self, has_silu: bool) -> ShortConv {
        let weight = self.weight.val();
        let [channels, _, kernel] = weight.dims();
        ShortConv { weight: weight.reshape([channels, kernel]), bias: self.bias.as_ref().map(Param::val), has_silu }
    }
}

/// Parameters of the decays of a recurrence's heads, and in Mamba-2 the factors of values that skip the state.
#[derive(Module, Debug)]
pub(crate) struct Decays {
    pub(crate) a_log: Param<Tensor<1>>,
    pub(crate) dt_bias: Param<Tensor<1>>,
    pub(crate) skip: Option<Param<Tensor<1>>>,
}

impl Part for Decays {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let mut vector = |name: &str| {
            let vector = params.tensor(path, name)?;
            Ok(vector.unwrap_or_else(|| unreachable!("decays without `{name}`: `{path}`")))
        };
        Ok(Self { a_log: vector("a_log")?, dt_bias: vector("dt_bias")?, skip: params.tensor(path, "skip")? })
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        let named = [("a_log", &self.a_log), ("dt_bias", &self.dt_bias)].into_iter();
        let named = named.chain(self.skip.iter().map(|skip| ("skip", skip)));
        list.params.extend(named.map(|(name, vector)| (format!("{path}.{name}"), ParamRef::Vector(vector))));
    }
}

/// The output matrix: its own or the embedding's, with a bias in few architectures.
#[derive(Module, Debug)]
pub(crate) struct LmHead {
    pub(crate) weight: Option<Weight>,
    pub(crate) bias: Option<Param<Tensor<1>>>,
}

impl Part for LmHead {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        Ok(Self { weight: params.matrix(path, params.dtype)?, bias: params.tensor(path, "bias")? })
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        list.add(path, self.weight.as_ref().map(ParamRef::Matrix), self.bias.as_ref());
    }
}

/// An embedding: rows of a matrix by index.
#[derive(Module, Debug)]
pub(crate) struct Embedding {
    pub(crate) weight: Weight,
}

impl Part for Embedding {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        Ok(Self { weight: required_matrix(path, params, params.dtype.for_embeddings())? })
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        list.add(path, Some(ParamRef::Matrix(&self.weight)), None);
    }
}

impl Embedding {
    pub(crate) fn forward(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        ops::embedding(&self.weight, ids)
    }
}

/// Relative position bias of the scores: a row for each bucket.
#[derive(Module, Debug)]
pub(crate) struct Relative {
    weight: Weight,
}

impl Part for Relative {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        Ok(Self { weight: required_matrix(path, params, Dtype::F32)? })
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        list.add(path, Some(ParamRef::Matrix(&self.weight)), None);
    }
}

impl Relative {
    pub(crate) fn device(&self) -> Device {
        self.weight.device()
    }

    /// The numbers of `buckets [n]` for each head: `[n, n_heads]`.
    pub(crate) fn of(&self, buckets: Tensor<1, Int>) -> Tensor<2> {
        ops::embedding(&self.weight, buckets)
    }
}

/// A vector of a layer: the parameters of its [`xielu`](ops::xielu), or the sinks of its heads.
#[derive(Module, Debug)]
pub(crate) struct Vector {
    weight: Param<Tensor<1>>,
}

impl Part for Vector {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let weight = params.tensor(path, "weight")?;
        Ok(Self { weight: weight.unwrap_or_else(|| unreachable!("a vector without numbers: `{path}`")) })
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        list.add(path, Some(ParamRef::Vector(&self.weight)), None);
    }
}

impl Vector {
    pub(crate) fn weight(&self) -> Tensor<1> {
        self.weight.val()
    }
}

/// The factor of a block's output, which does not learn by gradients.
#[derive(Module, Debug)]
pub(crate) struct Scale {
    weight: Tensor<1>,
}

impl Part for Scale {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let weight = params.tensor(path, "weight")?.map(|weight| weight.val().detach());
        Ok(Self { weight: weight.unwrap_or_else(|| unreachable!("a factor without a number: `{path}`")) })
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        list.add(path, Some(ParamRef::Constant(&self.weight)), None);
    }
}

impl Scale {
    pub(crate) fn weight(&self) -> Tensor<1> {
        self.weight.clone()
    }
}

/// LayerNorm or RMSNorm with its parameters.
#[derive(Module, Debug)]
pub(crate) struct Norm {
    weight: Option<Param<Tensor<1>>>,
    /// Ones, used if the architecture has no weight: the operations require one.
    ones: Option<Tensor<1>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    options: NormOptions,
}

impl Part for Norm {
    fn read(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        let config = params.config_of(path);
        let weight = params.tensor(path, "weight")?;
        let (eps, offset) = config.norm_options(path);
        let weight_offset = if weight.is_some() { offset } else { 0.0 };
        Ok(Self {
            ones: weight.is_none().then(|| Tensor::ones([params.width(path)], params.device)),
            weight,
            bias: params.tensor(path, "bias")?,
            options: NormOptions { kind: config.norm, eps, weight_offset },
        })
    }

    fn list<'a>(&'a self, path: &str, list: &mut PartList<'a>) {
        list.add(path, self.weight.as_ref().map(ParamRef::Vector), self.bias.as_ref());
    }
}

impl Norm {
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
