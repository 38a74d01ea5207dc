//! The tensors of a model's files, safetensors or GGUF, by name.

use std::{collections::HashMap, path::Path};

use super::{ggml_types::ElementType, tensor_names::OfExpert};
use crate::{
    error::{Error, Result},
    files::mmap::Mmap,
};

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor<'a> {
    pub(super) path: &'a Path,
    pub(super) name: &'a str,
    pub(super) shape: Vec<usize>,
    pub(super) kind: ValueKind,
    /// What requires the shape, for error messages: "`config.json`" or "the metadata".
    pub(super) asked_by: &'static str,
    /// The bytes; as many as shape and type require.
    pub(super) bytes: &'a [u8],
}

/// The type of a tensor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// Weights.
    Weights(ElementType),
    /// Another type of a safetensors file.
    Other(safetensors::Dtype),
}

impl StoredTensor<'_> {
    /// The type of the weights.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the tensor holds something else.
    pub(super) fn element(&self) -> Result<ElementType> {
        match self.kind {
            ValueKind::Weights(element) => Ok(element),
            ValueKind::Other(other) => Err(self.error(format!("has type {other:?}; supported are F32, F16 and BF16"))),
        }
    }

    /// Rejects another shape than `expected`. Leading dimensions of 1 may be missing or added, as programs that write
    /// GGUF files do.
    pub(super) fn require_shape(&self, expected: &[usize]) -> Result<()> {
        if without_leading_ones(&self.shape) == without_leading_ones(expected) {
            return Ok(());
        }
        Err(self.error(format!("has shape {:?}, but {} requires {expected:?}", self.shape, self.asked_by)))
    }

    /// The part of one expert of a tensor `[n_experts, ...]`.
    pub(super) fn of_expert(&self, OfExpert { number, n_experts }: OfExpert) -> Self {
        if n_experts == 1 {
            return self.clone();
        }
        let n_bytes = self.bytes.len() / n_experts;
        Self { shape: self.shape[1..].to_vec(), bytes: &self.bytes[number * n_bytes..][..n_bytes], ..self.clone() }
    }

    /// All values, in the order of the file.
    pub(super) fn to_f32(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.shape.iter().product()];
        self.element()?.decode(self.bytes, &mut values);
        Ok(values)
    }

    /// Whether `other` holds the same values, however they are stored.
    pub(super) fn has_values_of(&self, other: &StoredTensor<'_>) -> Result<bool> {
        let stored_alike = self.kind == other.kind && self.bytes == other.bytes;
        Ok(self.shape == other.shape && (stored_alike || self.to_f32()? == other.to_f32()?))
    }

    pub(super) fn error(&self, what: impl Into<String>) -> Error {
        Error::tensor(self.path, self.name, what)
    }
}

/// The dimensions from the first on that is not 1; at least the last one.
pub(super) fn without_leading_ones(mut shape: &[usize]) -> &[usize] {
    while let [1, rest @ ..] = shape
        && !rest.is_empty()
    {
        shape = rest;
    }
    shape
}

/// All tensors of a model, by name.
#[derive(Clone, Debug)]
pub(super) struct TensorTable<'a> {
    tensors: HashMap<&'a str, StoredTensor<'a>>,
    /// The first file, for messages about tensors that no file holds.
    path: &'a Path,
    /// All mapped files.
    maps: Vec<&'a Mmap>,
    /// See [`StoredTensor`].
    asked_by: &'static str,
}

impl<'a> TensorTable<'a> {
    /// A table of `all` tensors of a model's files; `path` is the first file. For the rest, see the fields.
    ///
    /// # Errors
    /// [`Error::Tensor`] if a name occurs twice.
    pub(super) fn new(
        path: &'a Path,
        maps: Vec<&'a Mmap>,
        asked_by: &'static str,
        all: impl IntoIterator<Item = StoredTensor<'a>>,
    ) -> Result<Self> {
        let mut table = Self { tensors: HashMap::new(), path, maps, asked_by };
        all.into_iter().try_for_each(|tensor| table.insert(tensor))?;
        Ok(table)
    }

    /// Adds a tensor.
    ///
    /// # Errors
    /// [`Error::Tensor`] if there is one of the same name.
    pub(super) fn insert(&mut self, tensor: StoredTensor<'a>) -> Result<()> {
        if let Some(first) = self.tensors.get(tensor.name) {
            return Err(tensor.error(format!("is also in `{}`", first.path.display())));
        }
        self.tensors.insert(tensor.name, tensor);
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&StoredTensor<'a>> {
        self.tensors.get(name)
    }

    /// The names of all tensors, in no order.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.tensors.keys().copied()
    }

    /// All tensors, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &StoredTensor<'a>> {
        self.tensors.values()
    }

    /// Renames tensors: `name` maps the names in the files to the new names. Error messages keep using the names in the
    /// files. Tensors for which `name` returns `None` are removed from the table and returned.
    ///
    /// # Errors
    /// [`Error::Tensor`] if two tensors get the same name.
    pub(super) fn rename(&mut self, name: impl Fn(&'a str) -> Option<&'a str>) -> Result<Vec<StoredTensor<'a>>> {
        let mut without = Vec::new();
        for (_, tensor) in std::mem::take(&mut self.tensors) {
            let Some(name) = name(tensor.name) else {
                without.push(tensor);
                continue;
            };
            if let Some(other) = self.tensors.get(name) {
                return Err(tensor.error(format!("is the same parameter as `{}`", other.name)));
            }
            self.tensors.insert(name, tensor);
        }
        Ok(without)
    }

    /// Takes a tensor out that is no parameter.
    pub(super) fn take(&mut self, name: &str) -> Option<StoredTensor<'a>> {
        self.tensors.remove(name)
    }

    /// The tensor `name`.
    ///
    /// # Errors
    /// [`Error::Tensor`] if there is none.
    pub(super) fn require(&self, name: &str) -> Result<&StoredTensor<'a>> {
        self.get(name).ok_or_else(|| self.missing(name))
    }

    pub(super) fn missing(&self, name: &str) -> Error {
        Error::tensor(self.path, name, format!("is missing, but {} requires it", self.asked_by))
    }

    /// See [`StoredTensor`].
    pub(super) fn asked_by(&self) -> &'static str {
        self.asked_by
    }

    /// The first file.
    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    pub(super) fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Releases the memory of everything that was read so far: see [`Mmap::release`].
    pub(super) fn release(&self) {
        self.maps.iter().for_each(|map| map.release());
    }
}
