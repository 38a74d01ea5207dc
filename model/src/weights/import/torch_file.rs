//! Files of `torch.save`: an uncompressed zip archive with a pickle, which describes tensors, and a file for each storage,
//! the numbers that tensors are views of.

use std::{borrow::Cow, collections::HashMap, path::Path};

use safetensors::Dtype;

use super::{
    super::{ggml_types::ElementType, tensor_table::ValueKind},
    pickle::{Item, Pickle, PickledTensor, Problem, StorageType},
};
use crate::error::{Error, Result};

/// Files in an archive, one for each storage.
const MAX_RECORDS: usize = 1 << 20;

const CUT_SHORT: &str = "the file may be cut short or may still be written";

/// A file of `torch.save`, mapped, not read.
#[derive(Debug)]
pub(super) struct TorchFile<'a> {
    path: &'a Path,
    n_bytes: usize,
    pickle: Pickle<'a>,
    /// Storages by their key.
    storages: HashMap<String, &'a [u8]>,
}

/// A tensor of a file, its values in row order.
#[derive(Debug)]
pub(super) struct ReadTensor<'a> {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) kind: ValueKind,
    pub(super) bytes: Cow<'a, [u8]>,
}

impl<'a> TorchFile<'a> {
    /// Reads everything except the numbers. `bytes` are the contents of the file at `path`.
    ///
    /// # Errors
    /// [`Error::File`] with the broken or unsupported part, and its position.
    pub(super) fn read(bytes: &'a [u8], path: &'a Path) -> Result<Self> {
        if bytes.first() == Some(&0x80) {
            return Err(Error::file(path, "is a bare pickle, not an archive of `torch.save`")
                .with_hint("it may be from before PyTorch 1.6: open it with `torch.load` and save it again"));
        }
        let mut records = records(bytes, path)?;
        let is_root = |name: &&String| name.strip_suffix("/data.pkl").is_some_and(|root| !root.contains('/'));
        let Some(pickle_name) = records.keys().find(is_root).cloned() else {
            return Err(Error::file(path, "is an archive without `data.pkl`").with_hint("give a file of `torch.save`"));
        };
        let root = pickle_name.trim_end_matches("data.pkl").to_owned();
        let pickle = records.remove(&pickle_name).unwrap_or_default();
        if let Some(order) = records.get(&format!("{root}byteorder")).filter(|order| **order != b"little") {
            let what = format!("has numbers in byte order `{}`, supported is `little`", String::from_utf8_lossy(order));
            return Err(Error::file(path, what));
        }
        let pickle = Pickle::read(pickle).map_err(|Problem { at, what }| {
            Error::file(path, format!("at byte {at} of `{pickle_name}`: {what}"))
                .with_hint("only tensors and plain values are read")
        })?;
        let within = format!("{root}data/");
        let storages =
            records.into_iter().filter_map(|(name, data)| Some((name.strip_prefix(&within)?.to_owned(), data)));
        Ok(Self { path, n_bytes: bytes.len(), pickle, storages: storages.collect() })
    }

    /// The saved object.
    pub(super) fn root(&self) -> Item<'_, 'a> {
        self.pickle.root()
    }

    /// The tensors of a state dict, without the prefixes that wrappers of modules add to their names. Other entries are
    /// skipped.
    ///
    /// # Errors
    /// [`Error::Tensor`] with the tensor whose storage is missing or too small.
    pub(super) fn tensors(&self, state: Item<'_, 'a>) -> Result<Vec<ReadTensor<'a>>> {
        let Some(entries) = state.entries() else {
            return Err(self.error(format!("has {} where the tensors of a model should be", state.kind())));
        };
        // Maximum number of bytes of views to copy into row order, over all tensors: the size of the file.
        let mut allowed = self.n_bytes;
        let mut tensors = Vec::new();
        for (name, value) in entries {
            let Some(tensor) = value.tensor() else { continue };
            let Some(name) = name.text() else {
                return Err(self.error(format!("has a tensor whose name is {}", name.kind())));
            };
            tensors.push(self.tensor(without_wrappers(name), tensor, &mut allowed)?);
        }
        Ok(tensors)
    }

    fn tensor(&self, name: &str, tensor: &PickledTensor<'a>, allowed: &mut usize) -> Result<ReadTensor<'a>> {
        let error = |what: String| Error::tensor(self.path, name, what);
        let PickledTensor { storage, offset, shape, strides } = tensor;
        let width = storage.kind.n_bytes();
        let data = *self.storages.get(&storage.key.to_string()).ok_or_else(|| {
            error(format!("is in `data/{}`, which the file does not have", storage.key)).with_hint(CUT_SHORT)
        })?;
        if storage.len.checked_mul(width) != Some(data.len()) {
            let what = format!(
                "is in `data/{}`, which should have {} numbers of {width} bytes and has {} bytes",
                storage.key,
                storage.len,
                data.len()
            );
            return Err(error(what).with_hint(CUT_SHORT));
        }
        let len = shape.iter().try_fold(1usize, |len, &size| len.checked_mul(size));
        // The largest index of a number in the view, relative to the offset.
        let last = shape
            .iter()
            .zip(strides)
            .try_fold(0usize, |last, (&size, &stride)| last.checked_add(stride.checked_mul(size.saturating_sub(1))?));
        let end = last.and_then(|last| last.checked_add(*offset)?.checked_add(1));
        let len = match (len, end) {
            (Some(0), _) => 0,
            (Some(len), Some(end)) if end <= storage.len && len <= storage.len => len,
            _ => {
                let what = format!(
                    "has shape {shape:?} with strides {strides:?} from number {offset} on, its storage has {} numbers",
                    storage.len
                );
                return Err(error(what));
            }
        };
        let bytes = if is_in_order(shape, strides) || len == 0 {
            // An empty tensor may begin anywhere.
            let start = if len == 0 { 0 } else { offset * width };
            Cow::Borrowed(&data[start..][..len * width])
        } else {
            *allowed = allowed
                .checked_sub(len * width)
                .ok_or_else(|| error("and other views of the same numbers are more than the whole file".to_owned()))?;
            Cow::Owned(gather(data, tensor, width, len))
        };
        Ok(ReadTensor { name: name.to_owned(), shape: shape.clone(), kind: value_kind(storage.kind), bytes })
    }

    /// The error for contents that are invalid or not supported.
    pub(super) fn error(&self, what: String) -> Error {
        Error::file(self.path, what)
    }
}

/// The files of an archive by name.
fn records<'a>(bytes: &'a [u8], path: &Path) -> Result<HashMap<String, &'a [u8]>> {
    let refuse = |what: String| Error::file(path, what);
    let broken =
        |reason: rawzip::Error| refuse(format!("is not an archive of `torch.save`: {reason}")).with_hint(CUT_SHORT);
    let archive = rawzip::ZipArchive::from_slice(bytes).map_err(broken)?;
    let mut records = HashMap::new();
    let mut entries = archive.entries();
    while let Some(entry) = entries.next_entry().map_err(broken)? {
        let name = String::from_utf8_lossy(entry.file_path().as_bytes()).into_owned();
        if records.len() == MAX_RECORDS {
            return Err(refuse(format!("has more than {MAX_RECORDS} files in it")));
        }
        if entry.compression_method() != rawzip::CompressionMethod::STORE {
            let hint = "`torch.save` compresses nothing: open it with `torch.load` and save it again";
            return Err(refuse(format!("has `{name}` in it, which is compressed")).with_hint(hint));
        }
        let (start, end) = archive.get_entry(entry.wayfinder()).map_err(broken)?.compressed_data_range();
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let Some(data) = range.and_then(|(start, end)| bytes.get(start..end)) else {
            let what = format!("has `{name}` in it, which ends behind the end of the file");
            return Err(refuse(what).with_hint(CUT_SHORT));
        };
        if records.insert(name.clone(), data).is_some() {
            return Err(refuse(format!("has `{name}` in it twice")));
        }
    }
    Ok(records)
}

/// Removes the prefixes that `torch.compile`, data parallelism and Lightning add to the names of a module's tensors.
fn without_wrappers(mut name: &str) -> &str {
    while let Some(rest) =
        ["_orig_mod.", "module.", "_forward_module."].iter().find_map(|wrapper| name.strip_prefix(wrapper))
    {
        name = rest;
    }
    name
}

/// Whether the values of a tensor follow each other in row order.
fn is_in_order(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1usize;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        // Cannot overflow for checked sizes; wraps if a size of 0 hid from the check that the product of the others is
        // too large.
        expected = expected.wrapping_mul(size);
        fits
    })
}

/// The `len` values of a view in row order. The view was checked to be within `data`.
fn gather(data: &[u8], tensor: &PickledTensor<'_>, width: usize, len: usize) -> Vec<u8> {
    let PickledTensor { offset, shape, strides, .. } = tensor;
    let mut bytes = Vec::with_capacity(len * width);
    let mut index = vec![0; shape.len()];
    let mut at = *offset;
    for _ in 0..len {
        bytes.extend_from_slice(&data[at * width..][..width]);
        // Counts up, the last dimension fastest.
        for dim in (0..shape.len()).rev() {
            index[dim] += 1;
            // Wraps only after the last value, or in a dimension of size 1, whose stride is arbitrary.
            at = at.wrapping_add(strides[dim]);
            if index[dim] < shape[dim] {
                break;
            }
            at = at.wrapping_sub(strides[dim].wrapping_mul(shape[dim]));
            index[dim] = 0;
        }
    }
    bytes
}

fn value_kind(kind: StorageType) -> ValueKind {
    match kind {
        StorageType::F32 => ValueKind::Weights(ElementType::F32),
        StorageType::F16 => ValueKind::Weights(ElementType::F16),
        StorageType::Bf16 => ValueKind::Weights(ElementType::Bf16),
        StorageType::F64 => ValueKind::Other(Dtype::F64),
        StorageType::I64 => ValueKind::Other(Dtype::I64),
        StorageType::I32 => ValueKind::Other(Dtype::I32),
        StorageType::I16 => ValueKind::Other(Dtype::I16),
        StorageType::I8 => ValueKind::Other(Dtype::I8),
        StorageType::U8 => ValueKind::Other(Dtype::U8),
        StorageType::Bool => ValueKind::Other(Dtype::BOOL),
    }
}
