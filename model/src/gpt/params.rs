//! Reads parameters into a model and out of it, by path.

use std::collections::{HashMap, HashSet};

use burn::{
    module::Param,
    tensor::{Device, Tensor, TensorData},
};

use crate::{
    config::GptConfig,
    error::{Error, Result},
    gpt::param_specs::{ENCODER, ParamSpec, PartKind, PartSpec, part_specs},
    ops::{Dtype, MatrixRows, Weight, read, to_f32},
};

/// The value of a parameter.
#[derive(Debug)]
pub enum ParamData<'a> {
    /// Plain values.
    Values(TensorData),
    /// A matrix of plain values that is read on demand.
    Rows(MatrixRows<'a, f32>),
    /// A matrix that is already on its device, such as one that was quantized before.
    Placed(Weight),
}

impl From<TensorData> for ParamData<'_> {
    fn from(values: TensorData) -> Self {
        Self::Values(values)
    }
}

/// A parameter of a model, not yet read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ParamRef<'a> {
    Matrix(&'a Weight),
    Vector(&'a Param<Tensor<1>>),
    /// The weights of a convolution.
    Conv(&'a Param<Tensor<3>>),
    /// A vector that does not learn by gradients.
    Constant(&'a Tensor<1>),
}

impl ParamRef<'_> {
    /// Reads the values as f32 from the device.
    pub(crate) fn read(self) -> Result<TensorData> {
        match self {
            Self::Matrix(weight) => weight.read(),
            Self::Vector(vector) => read(vector.val()),
            Self::Conv(weights) => read(weights.val()),
            Self::Constant(vector) => read(vector.clone()),
        }
    }
}

/// Parameters with their paths.
pub(crate) type ParamList<'a> = Vec<(String, ParamRef<'a>)>;

/// Receives a parameter's path and value.
pub type ParamVisitor<'a> = dyn FnMut(&str, TensorData) -> Result<()> + 'a;

/// Supplies the parameters of a model under construction.
pub(crate) struct ParamSource<'a> {
    /// By their paths.
    parts: HashMap<String, PartSpec>,
    /// The paths of parts, and of the modules that contain them.
    paths: HashSet<String>,
    /// The index of each linear layer among all of them, by path.
    linears: HashMap<String, usize>,
    read: &'a mut dyn FnMut(&ParamSpec) -> Result<ParamData<'a>>,
    pub(crate) dtype: Dtype,
    pub(crate) device: &'a Device,
    config: &'a GptConfig,
}

impl<'a> ParamSource<'a> {
    pub(crate) fn new(
        config: &'a GptConfig,
        dtype: Dtype,
        device: &'a Device,
        read: &'a mut dyn FnMut(&ParamSpec) -> Result<ParamData<'a>>,
    ) -> Self {
        Self::of_parts(part_specs(config), config, dtype, device, read)
    }

    /// As [`new`](Self::new), for a model with other parts than `config` describes.
    pub(crate) fn of_parts(
        parts: Vec<PartSpec>,
        config: &'a GptConfig,
        dtype: Dtype,
        device: &'a Device,
        read: &'a mut dyn FnMut(&ParamSpec) -> Result<ParamData<'a>>,
    ) -> Self {
        let ends = |path: &str| path.match_indices('.').map(|(end, _)| end).chain([path.len()]).collect::<Vec<_>>();
        let paths = parts.iter().flat_map(|PartSpec { path, .. }| ends(path).into_iter().map(|end| path[..end].into()));
        let linears = parts.iter().filter(|part| part.kind == PartKind::Linear).map(|part| part.path.clone()).zip(0..);
        Self {
            paths: paths.collect(),
            linears: linears.collect(),
            parts: parts.into_iter().map(|part| (part.path.clone(), part)).collect(),
            read,
            dtype,
            device,
            config,
        }
    }

    /// Whether the architecture has this part, or this module of parts.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// The configuration of the module at `path`: the model's, or its encoder's.
    pub(crate) fn config_of(&self, path: &str) -> &'a GptConfig {
        let is_of_encoder = path.split('.').next() == Some(ENCODER);
        self.config.encoder.as_deref().filter(|_| is_of_encoder).unwrap_or(self.config)
    }

    /// The index of a linear layer among the model's.
    pub(crate) fn linear_index(&self, path: &str) -> usize {
        self.linears.get(path).copied().unwrap_or_else(|| undescribed(path))
    }

    /// The number of values of a norm.
    pub(crate) fn width(&self, path: &str) -> usize {
        self.parts.get(path).map_or_else(|| undescribed(path), |part| part.width)
    }

    /// The weight of the part at `path`, a matrix, stored in `dtype`; `None` if the part has none.
    pub(crate) fn matrix(&mut self, part: &str, dtype: Dtype) -> Result<Option<Weight>> {
        let Some((path, data)) = self.data(part, "weight")? else { return Ok(None) };
        // All values to be rounded are checked here, whatever their form.
        let rounded = |rows: &MatrixRows<'_, f32>| {
            check_range(&path, rows, dtype)?;
            Weight::from_rows(rows, dtype, self.device)
        };
        let weight = match data {
            ParamData::Values(values) => {
                let dims = values.shape().dims();
                rounded(&MatrixRows::of(&to_f32(values)?, dims))
            }
            ParamData::Rows(rows) => rounded(&rows),
            ParamData::Placed(weight) => Ok(weight),
        };
        weight.map(Some)
    }

    /// A parameter, other than a matrix, of the part at `path`, such as `bias`. `None` if the part has none.
    pub(crate) fn tensor<const D: usize>(&mut self, part: &str, name: &str) -> Result<Option<Param<Tensor<D>>>> {
        let Some((path, data)) = self.data(part, name)? else { return Ok(None) };
        match data {
            ParamData::Values(values) => {
                Ok(Some(Param::from_tensor(Tensor::from_data(values.convert::<f32>(), self.device))))
            }
            ParamData::Rows(_) | ParamData::Placed(_) => {
                Err(Error::Execution { what: format!("`{path}` is no matrix, got one") })
            }
        }
    }

    /// A parameter's path and value, if the part has it.
    fn data(&mut self, part: &str, name: &str) -> Result<Option<(String, ParamData<'a>)>> {
        let Some(spec) = self.parts.get(part) else { undescribed(part) };
        let is_named =
            |spec: &&ParamSpec| spec.path.strip_prefix(part).and_then(|rest| rest.strip_prefix('.')) == Some(name);
        let found = spec.params.iter().find(is_named);
        found.map(|spec| Ok((spec.path.clone(), (self.read)(spec)?))).transpose()
    }
}

fn undescribed(path: &str) -> ! {
    unreachable!("`part_specs` lists every part of a model: `{path}`")
}

/// Rejects a matrix with numbers beyond the range of `dtype`; if it is quantized, also infinite and NaN values, which
/// rounding would hide.
fn check_range(path: &str, rows: &MatrixRows<'_, f32>, dtype: Dtype) -> Result<()> {
    let limit = dtype.largest_weight();
    let largest = if limit < f32::MAX { rows.largest() } else { 0.0 };
    if largest <= limit || !largest.is_finite() && !dtype.is_quantized() {
        return Ok(());
    }
    let name = if dtype.is_quantized() { "quantize" } else { "dtype" };
    let what = format!(
        "is `{dtype}`, which represents weights up to {limit:e}, but `{path}` has {largest:e}\nhint: `f32` and `bf16` \
         represent all finite weights"
    );
    Err(Error::Param { name, what })
}

/// Tracks the path of the current parameter in a module visitor or mapper: call [`enter`](Self::enter) and
/// [`exit`](Self::exit) from the methods for entering and leaving modules.
#[derive(Clone, Debug, Default)]
pub struct ParamPath {
    parts: Vec<String>,
}

impl ParamPath {
    /// Enters a module; `container` is the kind of its parent module.
    pub fn enter(&mut self, name: &str, container: &str) {
        // The internal structure of a weight is hidden: it is one parameter.
        self.parts.push(if WITHIN_WEIGHT.contains(&container) { String::new() } else { name.to_owned() });
    }

    /// Leaves the module that was entered last.
    pub fn exit(&mut self) {
        self.parts.pop();
    }

    /// The path of the parameter being visited, such as `blocks.3.attn.qkv.weight`.
    pub fn path(&self) -> String {
        self.parts.iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join(".")
    }
}

const WITHIN_WEIGHT: [&str; 2] = ["Enum:Weight", "Struct:StoredWeight"];
