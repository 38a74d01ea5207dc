//! Tensors in safetensors files: one file, or shards with an index.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Deref,
    path::{Path, PathBuf},
    slice,
    str::FromStr,
};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::Metadata};
use serde_json::Value;

use super::layout::{INDEX_FILE, WEIGHTS_FILE};
use crate::{
    error::{Error, Result},
    mmap::Mmap,
    regular_file,
};

mod quantized;
mod writer;

pub(super) use quantized::{minima_of, scales_of};
pub(super) use writer::{TensorPlan, TensorWriter};

/// The library's bound on the header of a file, which lists its tensors.
const MAX_HEADER_BYTES: usize = 100_000_000;

/// How values are stored on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskDtype {
    /// 4 bytes a value.
    #[default]
    F32,
    /// IEEE half precision, 2 bytes a value.
    F16,
    /// The upper half of an f32, 2 bytes a value.
    Bf16,
}

impl DiskDtype {
    /// The name in `config.json`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Bytes of a value.
    fn n_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The values that `bytes` hold.
    pub(super) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => each(bytes, out, f32::from_le_bytes),
            Self::F16 => each(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Self::Bf16 => each(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        }
    }

    /// Whether the values that `bytes` hold are numbers, and finite.
    pub(super) fn is_finite(self, bytes: &[u8]) -> bool {
        // Infinities, and what is no number, have all bits of the exponent. Of many values at once, as processors like it.
        fn have_room<const N: usize>(bytes: &[u8], lacks: impl Fn([u8; N]) -> bool) -> bool {
            let mut parts = bytes.as_chunks().0.chunks(1 << 12);
            parts.all(|part| !part.iter().fold(false, |any, &bytes| any | lacks(bytes)))
        }
        match self {
            Self::F32 => have_room(bytes, |bytes| u32::from_le_bytes(bytes) & 0x7f80_0000 == 0x7f80_0000),
            Self::F16 => have_room(bytes, |bytes| u16::from_le_bytes(bytes) & 0x7c00 == 0x7c00),
            Self::Bf16 => have_room(bytes, |bytes| u16::from_le_bytes(bytes) & 0x7f80 == 0x7f80),
        }
    }

    fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        }
    }

    fn safetensors(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::BF16,
        }
    }
}

impl FromStr for DiskDtype {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "bf16" => Ok(Self::Bf16),
            other => Err(format!("must be `f32`, `f16` or `bf16`, got `{other}`")),
        }
    }
}

/// The tensors of a model dir, mapped, not read.
#[derive(Debug)]
pub(super) struct TensorFiles {
    shards: Vec<Shard>,
    /// Name to the shard that holds it.
    holders: HashMap<String, usize>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    bytes: FileBytes,
    metadata: Metadata,
    /// Where the values start in the file.
    data_start: usize,
}

/// The contents of a file.
#[derive(Debug)]
enum FileBytes {
    Mapped(Mmap),
    /// Part of the program.
    Embedded(&'static [u8]),
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Embedded(bytes) => bytes,
        }
    }
}

/// A tensor as it lies in a file.
#[derive(Debug)]
pub(super) struct StoredTensor<'a> {
    pub(super) path: &'a Path,
    pub(super) name: String,
    pub(super) shape: &'a [usize],
    dtype: Dtype,
    bytes: &'a [u8],
}

/// What to do about a folder that is no model dir.
pub(super) fn what_else_it_is(dir: &Path) -> String {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    // Of several files that make one model, the first.
    let gguf = files.filter(|file| file.extension().is_some_and(|extension| extension == "gguf")).min();
    if dir.join("adapter_config.json").exists() {
        "this is an adapter without its model: merge them first (`merge_and_unload` of `peft`)".to_owned()
    } else if dir.join("pytorch_model.bin").exists() || dir.join("pytorch_model.bin.index.json").exists() {
        "pickled weights are not read: open them with `transformers` and save them again (`save_pretrained`)".to_owned()
    } else if let Some(file) = gguf {
        format!("there is a GGUF file in it: give `{}`", file.display())
    } else {
        "a model dir holds `config.json`, `model.safetensors` and `tokenizer.json`".to_owned()
    }
}

impl TensorFiles {
    /// Opens the weights of the model dir `dir`.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let index = dir.join(INDEX_FILE);
        let single = dir.join(WEIGHTS_FILE);
        if single.exists() {
            return Self::from_shards(vec![Shard::open(&single)?]);
        }
        if index.exists() {
            return Self::open_sharded(dir, &index);
        }
        Err(Error::File {
            path: dir.to_owned(),
            what: format!("has neither `{WEIGHTS_FILE}` nor `{INDEX_FILE}`"),
            hint: what_else_it_is(dir),
        })
    }

    /// Weights that are part of the program; `path` is for messages.
    pub(super) fn embedded(path: &Path, bytes: &'static [u8]) -> Result<Self> {
        Self::from_shards(vec![Shard::new(path, FileBytes::Embedded(bytes))?])
    }

    fn open_sharded(dir: &Path, index: &Path) -> Result<Self> {
        let broken = |what: String| Error::File { path: index.to_owned(), what, hint: String::new() };
        let text = regular_file::read(index).map_err(|source| Error::Io {
            action: "read",
            path: index.to_owned(),
            reason: source,
        })?;
        let json: Value = serde_json::from_slice(&text).map_err(|error| broken(format!("is not JSON: {error}")))?;
        let weight_map =
            json["weight_map"].as_object().ok_or_else(|| broken("has no object `weight_map`".to_owned()))?;
        let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, file) in weight_map {
            let name = file.as_str().map(|name| name.strip_prefix("./").unwrap_or(name));
            let file = name.filter(|name| is_plain_name(name)).ok_or_else(|| {
                broken(format!("tensor `{tensor}` is said to be in {file}, which is no file name within the folder"))
            })?;
            files.entry(file).or_default().push(tensor);
        }
        let shards = files.keys().map(|file| Shard::open(&dir.join(file))).collect::<Result<_>>()?;
        let files_of = Self::from_shards(shards)?;
        for (file, tensors) in files {
            if let Some(missing) = tensors.iter().find(|tensor| !files_of.contains(tensor)) {
                return Err(broken(format!("tensor `{missing}` is said to be in `{file}`, which does not hold it")));
            }
        }
        Ok(files_of)
    }

    fn from_shards(shards: Vec<Shard>) -> Result<Self> {
        let mut holders = HashMap::new();
        for (number, shard) in shards.iter().enumerate() {
            for name in shard.metadata.offset_keys() {
                if let Some(other) = holders.insert(name.clone(), number) {
                    let first: &Shard = &shards[other];
                    return Err(Error::Tensor {
                        path: shard.path.clone(),
                        tensor: name,
                        what: format!("is also in `{}`", first.path.display()),
                        hint: String::new(),
                    });
                }
            }
        }
        Ok(Self { shards, holders })
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.holders.contains_key(name)
    }

    /// All names, in no order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.holders.keys().map(String::as_str)
    }

    /// One of the files, for messages about what none of them holds.
    pub(super) fn path(&self) -> &Path {
        self.shards.first().map_or(Path::new(WEIGHTS_FILE), |shard| &shard.path)
    }

    /// Gives back the memory of what was read so far: see [`Mmap::release`].
    pub(super) fn release(&self) {
        for shard in &self.shards {
            if let FileBytes::Mapped(map) = &shard.bytes {
                map.release();
            }
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<StoredTensor<'_>> {
        let shard = &self.shards[*self.holders.get(name)?];
        let info = shard.metadata.info(name)?;
        let (start, end) = info.data_offsets;
        let bytes = shard.bytes.get(shard.data_start..)?.get(start..end)?;
        Some(StoredTensor { path: &shard.path, name: name.to_owned(), shape: &info.shape, dtype: info.dtype, bytes })
    }
}

impl Shard {
    fn open(path: &Path) -> Result<Self> {
        Self::new(path, FileBytes::Mapped(Mmap::open(path)?))
    }

    fn new(path: &Path, bytes: FileBytes) -> Result<Self> {
        check_ends(path, &bytes)?;
        // Checks that the header is within bounds, that offsets are in order, without gaps or overlaps, that they fit
        // the shapes, and that the file is exactly as long as they say.
        let (header_len, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| Error::File {
            path: path.to_owned(),
            what: format!("is not a safetensors file: {error}"),
            hint: "the file may be cut short or may still be downloading".to_owned(),
        })?;
        Ok(Self { path: path.to_owned(), bytes, metadata, data_start: 8 + header_len })
    }
}

/// Refuses tensors that end behind the end of the file, before their ends are added up. What is wrong otherwise, the
/// library says.
fn check_ends(path: &Path, bytes: &[u8]) -> Result<()> {
    let Some((&len, rest)) = bytes.split_first_chunk() else { return Ok(()) };
    let header = usize::try_from(u64::from_le_bytes(len)).ok().filter(|&len| len <= MAX_HEADER_BYTES);
    let Some((header, data)) = header.and_then(|len| rest.split_at_checked(len)) else { return Ok(()) };
    let Ok(header) = serde_json::from_slice::<HashMap<String, Value>>(header) else { return Ok(()) };
    for (tensor, info) in header {
        match info["data_offsets"][1].as_u64() {
            Some(end) if end > data.len() as u64 => {
                return Err(Error::Tensor {
                    path: path.to_owned(),
                    tensor,
                    what: format!("ends at byte {end}, the file has {} bytes of values", data.len()),
                    hint: "the file may be cut short or may still be downloading".to_owned(),
                });
            }
            _ => {}
        }
    }
    Ok(())
}

impl<'a> StoredTensor<'a> {
    /// The values, which must be plain numbers.
    pub(super) fn plain(&self) -> Result<PlainValues<'a>> {
        let dtype = match self.dtype {
            Dtype::F32 => DiskDtype::F32,
            Dtype::F16 => DiskDtype::F16,
            Dtype::BF16 => DiskDtype::Bf16,
            other => return Err(self.error(format!("has type {other:?}, supported are F32, F16 and BF16"))),
        };
        Ok(PlainValues { dtype, bytes: self.bytes })
    }

    /// Whether the values are bf16.
    pub(super) fn is_bf16(&self) -> bool {
        self.dtype == Dtype::BF16
    }

    /// Whether `other` holds the same values, however they are stored.
    pub(super) fn has_values_of(&self, other: &StoredTensor<'_>) -> Result<bool> {
        let stored_alike = self.dtype == other.dtype && self.bytes == other.bytes;
        let alike = || Ok(self.plain()?.to_f32() == other.plain()?.to_f32());
        Ok(self.shape == other.shape && (stored_alike || alike()?))
    }

    /// Refuses another shape than `expected`.
    pub(super) fn require_shape(&self, expected: &[usize]) -> Result<()> {
        if self.shape == expected {
            return Ok(());
        }
        Err(self.error(format!("has shape {:?}, `config.json` asks for {expected:?}", self.shape)))
    }

    fn error(&self, what: String) -> Error {
        Error::Tensor { path: self.path.to_owned(), tensor: self.name.clone(), what, hint: String::new() }
    }
}

/// The values of a tensor of plain numbers, in row order.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainValues<'a> {
    pub(super) dtype: DiskDtype,
    pub(super) bytes: &'a [u8],
}

impl PlainValues<'_> {
    /// Row `row` of those that have `out.len()` values each.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        let n_bytes = out.len() * self.dtype.n_bytes();
        self.dtype.decode(&self.bytes[row * n_bytes..][..n_bytes], out);
    }

    /// Column `column` of `n_columns`.
    pub(super) fn column(&self, column: usize, n_columns: usize, out: &mut [f32]) {
        let n_bytes = self.dtype.n_bytes();
        for (row, out) in out.iter_mut().enumerate() {
            let start = (row * n_columns + column) * n_bytes;
            self.dtype.decode(&self.bytes[start..start + n_bytes], slice::from_mut(out));
        }
    }

    /// All values, in row order.
    pub(super) fn to_f32(self) -> Vec<f32> {
        let mut values = vec![0.0; self.bytes.len() / self.dtype.n_bytes()];
        self.row(0, &mut values);
        values
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = value(bytes);
    }
}

/// Whether `name` stays within its folder.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(std::path::Component::Normal(_)), None))
}
