//! Reads parameters into a model and out of it, by path.

use std::collections::HashMap;

use burn::{
    module::Param,
    tensor::{Device, Tensor, TensorData},
};

use crate::{
    config::GptConfig,
    error::{Error, Result},
    ops::{Dtype, MatrixRows, Weight, read, to_f32},
    param_specs::ParamSpec,
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
}

impl ParamRef<'_> {
    /// Reads the values as f32 from the device.
    pub(crate) fn read(self) -> Result<TensorData> {
        match self {
            Self::Matrix(weight) => weight.read(),
            Self::Vector(vector) => read(vector.val()),
        }
    }
}

/// Parameters with their paths.
pub(crate) type ParamList<'a> = Vec<(String, ParamRef<'a>)>;

/// Receives a parameter's path and value.
pub type ParamVisitor<'a> = dyn FnMut(&str, TensorData) -> Result<()> + 'a;

/// Supplies the parameters of a model under construction.
pub(crate) struct ParamSource<'a> {
    pub(crate) specs: HashMap<String, ParamSpec>,
    /// The width of each norm, by its path.
    pub(crate) norms: HashMap<String, usize>,
    pub(crate) read: &'a mut dyn FnMut(&ParamSpec) -> Result<ParamData<'a>>,
    pub(crate) dtype: Dtype,
    pub(crate) device: &'a Device,
    pub(crate) config: &'a GptConfig,
}

impl<'a> ParamSource<'a> {
    pub(crate) fn has(&self, path: &str) -> bool {
        self.specs.contains_key(path)
    }

    pub(crate) fn matrix(&mut self, path: &str) -> Result<Weight> {
        let dtype = self.dtype;
        self.matrix_as(path, dtype)
    }

    pub(crate) fn matrix_as(&mut self, path: &str, dtype: Dtype) -> Result<Weight> {
        // All values to be rounded are checked here, whatever their form.
        let rounded = |rows: &MatrixRows<'_, f32>| {
            check_range(path, rows, dtype)?;
            Weight::from_rows(rows, dtype, self.device)
        };
        match self.data(path)? {
            ParamData::Values(values) => {
                let dims = values.shape().dims();
                rounded(&MatrixRows::of(&to_f32(values)?, dims))
            }
            ParamData::Rows(rows) => rounded(&rows),
            ParamData::Placed(weight) => Ok(weight),
        }
    }

    /// The vector at `path`, if the architecture has it.
    pub(crate) fn vector(&mut self, path: &str) -> Result<Option<Param<Tensor<1>>>> {
        if self.has(path) { self.required_vector(path).map(Some) } else { Ok(None) }
    }

    pub(crate) fn required_vector(&mut self, path: &str) -> Result<Param<Tensor<1>>> {
        match self.data(path)? {
            ParamData::Values(values) => {
                Ok(Param::from_tensor(Tensor::from_data(values.convert::<f32>(), self.device)))
            }
            ParamData::Rows(_) | ParamData::Placed(_) => {
                Err(Error::Execution { what: format!("`{path}` is a vector, got a matrix") })
            }
        }
    }

    fn data(&mut self, path: &str) -> Result<ParamData<'a>> {
        let Some(spec) = self.specs.get(path) else {
            unreachable!("`param_specs` lists every parameter that the model asks for: `{path}`")
        };
        (self.read)(spec)
    }
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
