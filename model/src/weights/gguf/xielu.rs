//! Apertus's activation: files have its four numbers as metadata, in a list each with one number for each layer.

use std::path::Path;

use super::{
    super::{
        ggml_types::ElementType,
        tensor_table::{StoredTensor, ValueKind},
    },
    header::{ASKED_BY, Metadata, Value},
};
use crate::error::Result;

/// In the order of our parameter.
const KEYS: [&str; 4] = ["xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"];

/// The numbers of each layer, with the names of the tensors that they are taken for.
pub(super) struct XieluNumbers(Vec<(String, Vec<u8>)>);

impl XieluNumbers {
    /// # Errors
    /// [`Error::File`](crate::Error::File) if a list is missing or does not have a number for each layer.
    pub(super) fn read(metadata: &Metadata<'_>, n_layers: usize) -> Result<Self> {
        let list = |key: &str| -> Result<Vec<f32>> {
            let numbers = match metadata.get(key) {
                Some(Value::Array(array)) => array.scalars().map(|items| {
                    let number = |item| if let Value::F32(number) = item { Some(number) } else { None };
                    items.map(number).collect::<Option<Vec<_>>>()
                }),
                Some(_) => None,
                None => return Err(metadata.missing(key)),
            };
            numbers.flatten().filter(|numbers| numbers.len() == n_layers).ok_or_else(|| {
                metadata.error(format!("`{key}` must be a list of {n_layers} numbers, one for each layer"))
            })
        };
        let [above, below, beta, eps] = KEYS.map(list);
        let lists = [above?, below?, beta?, eps?];
        let of_layer = |layer: usize| {
            (format!("blk.{layer}.xielu"), lists.iter().flat_map(|list| list[layer].to_le_bytes()).collect())
        };
        Ok(Self((0..n_layers).map(of_layer).collect()))
    }

    /// As tensors of the file at `path`.
    pub(super) fn tensors<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = StoredTensor<'a>> {
        self.0.iter().map(move |(name, bytes)| StoredTensor {
            path,
            name,
            shape: vec![KEYS.len()],
            kind: ValueKind::Weights(ElementType::F32),
            asked_by: ASKED_BY,
            bytes,
        })
    }
}
