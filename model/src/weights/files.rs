//! Tensors in safetensors files: one file, or shards with an index.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Deref,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::Metadata};
use serde_json::Value;

use super::{
    file_names::{INDEX_FILE, WEIGHTS_FILE},
    ggml_types::ElementType,
    passed_over::shown,
    tensor_table::{StoredTensor, TensorTable, ValueKind},
};
use crate::{
    error::{Error, Result},
    files::{mmap::Mmap, regular_file},
};

mod quantized;
mod writer;

pub(super) use quantized::{minima_of, scales_of};
pub(super) use writer::{TensorPlan, TensorWriter};

/// The library's limit on the size of a header.
const MAX_HEADER_BYTES: usize = 100_000_000;

/// The hint for a file that is shorter than its header states.
pub(super) const TRUNCATED: &str = "the file may be truncated or still downloading";

/// See [`StoredTensor`].
const ASKED_BY: &str = "`config.json`";

/// The dtype of values on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskDtype {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits, IEEE half precision.
    F16,
    /// 16 bits, the upper half of an f32.
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

    /// The bytes of `values`, which are part of the tensor `name`.
    ///
    /// # Errors
    /// [`Error::Param`] if a value is too large for f16.
    pub(super) fn encode(self, name: &str, values: &[f32]) -> Result<Vec<u8>> {
        if self == Self::F16 && values.iter().any(|value| value.is_finite() && f16::from_f32(*value).is_infinite()) {
            let what = format!("is `f16`, but `{name}` has numbers above {}\nhint: use `bf16`", f16::MAX);
            return Err(Error::Param { name: "dtype", what });
        }
        Ok(match self {
            Self::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        })
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

/// The memory-mapped tensors of a model dir.
#[derive(Debug)]
pub(super) struct TensorFiles {
    shards: Vec<Shard>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    bytes: FileBytes,
    metadata: Metadata,
    /// The names of its tensors.
    names: Vec<String>,
    /// The offset of the values in the file.
    data_start: usize,
}

/// The contents of a file.
#[derive(Debug)]
enum FileBytes {
    Mapped(Mmap),
    /// Embedded in the program.
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

/// A hint for a folder that is not a model dir.
pub(super) fn what_else_it_is(dir: &Path) -> String {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    // For split files, the first.
    let gguf = files.filter(|file| file.extension().is_some_and(|extension| extension == "gguf")).min();
    if dir.join("adapter_config.json").exists() {
        "this is an adapter without its base model: merge them first (`hearth merge MODEL ADAPTER OUT`)".to_owned()
    } else if dir.join("pytorch_model.bin").exists() || dir.join("pytorch_model.bin.index.json").exists() {
        "pickled weights are not supported: load them with `transformers` and save them again (`save_pretrained`)"
            .to_owned()
    } else if let Some(file) = gguf {
        format!("the folder has a GGUF file: use `{}`", file.display())
    } else {
        "a model dir has `config.json`, `model.safetensors` and `tokenizer.json`".to_owned()
    }
}

impl TensorFiles {
    /// Opens the weights of the model dir `dir`.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let files = listed_files(dir)?;
        let shards = files.keys().map(|file| Shard::open(&dir.join(file))).collect::<Result<_>>()?;
        let opened = Self { shards };
        opened.log_superseded();
        let table = opened.table()?;
        for (file, tensors) in files {
            if let Some(missing) = tensors.iter().find(|tensor| table.get(tensor).is_none()) {
                let what = format!("maps tensor `{missing}` to `{file}`, which does not have it");
                return Err(Error::file(dir.join(INDEX_FILE), what));
            }
        }
        Ok(opened)
    }

    /// Opens one safetensors file.
    pub(super) fn single(path: &Path) -> Result<Self> {
        Ok(Self { shards: vec![Shard::open(path)?] })
    }

    /// Embedded weights; `path` is for messages.
    pub(super) fn embedded(path: &Path, bytes: &'static [u8]) -> Result<Self> {
        Ok(Self { shards: vec![Shard::new(path, FileBytes::Embedded(bytes))?] })
    }

    /// Says in the log which tensors are in several files.
    fn log_superseded(&self) {
        let mut files: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
        for tensor in self.shards.iter().flat_map(Shard::tensors) {
            files.entry(tensor.name).or_default().push(tensor.path);
        }
        files.retain(|_, files| files.len() > 1);
        if let Some(last) = files.values().flatten().max() {
            let names = shown(files.keys().copied().collect());
            tracing::warn!(
                "`{}`: as in transformers, tensors of earlier files are superseded: {names}",
                last.display()
            );
        }
    }

    /// All tensors by name. As in transformers, if several files have a tensor, the last file by name counts.
    ///
    /// # Errors
    /// [`Error::Tensor`] if a name occurs twice in a file.
    pub(super) fn table(&self) -> Result<TensorTable<'_>> {
        let path = self.shards.first().map_or(Path::new(WEIGHTS_FILE), |shard| &shard.path);
        let maps = self.shards.iter().filter_map(|shard| match &shard.bytes {
            FileBytes::Mapped(map) => Some(map),
            FileBytes::Embedded(_) => None,
        });
        let tensors = self.shards.iter().flat_map(Shard::tensors).map(|tensor| (tensor.name, tensor));
        TensorTable::new(path, maps.collect(), ASKED_BY, tensors.collect::<HashMap<_, _>>().into_values())
    }
}

/// The weights files of the model dir `dir`, sorted by name: the files that [`TensorFiles::open`] reads.
pub(super) fn weight_files(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(listed_files(dir)?.into_keys().map(|file| dir.join(file)).collect())
}

/// The names of the weights files of the model dir `dir`, each with the tensors that the index maps to it, if there is one.
fn listed_files(dir: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let index = dir.join(INDEX_FILE);
    if dir.join(WEIGHTS_FILE).exists() {
        Ok([(WEIGHTS_FILE.to_owned(), Vec::new())].into())
    } else if index.exists() {
        read_index(&index)
    } else {
        let what = format!("has neither `{WEIGHTS_FILE}` nor `{INDEX_FILE}`");
        Err(Error::file(dir, what).with_hint(what_else_it_is(dir)))
    }
}

/// The index of sharded weights at `path`: the tensors of each file.
pub(super) fn read_index(path: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let json = regular_file::read_json_object(path)?;
    let weight_map = json.get("weight_map").and_then(Value::as_object);
    let weight_map = weight_map.ok_or_else(|| Error::file(path, "has no object `weight_map`"))?;
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, file) in weight_map {
        let name = file.as_str().and_then(path_inside).ok_or_else(|| {
            Error::file(
                path,
                format!("maps tensor `{tensor}` to {file}, which is not the path of a file in its folder"),
            )
        })?;
        files.entry(name).or_default().push(tensor.clone());
    }
    Ok(files)
}

impl Shard {
    fn open(path: &Path) -> Result<Self> {
        Self::new(path, FileBytes::Mapped(Mmap::open(path)?))
    }

    fn new(path: &Path, bytes: FileBytes) -> Result<Self> {
        regular_file::refuse_lfs_pointer(path, &bytes)?;
        check_ends(path, &bytes)?;
        // Checks the header's size, that offsets are in order without gaps or overlaps and fit the shapes, and that the
        // file has exactly this length.
        let (header_len, metadata) = SafeTensors::read_metadata(&bytes)
            .map_err(|error| Error::file(path, format!("is not a safetensors file: {error}")).with_hint(TRUNCATED))?;
        let names = metadata.offset_keys();
        Ok(Self { path: path.to_owned(), bytes, metadata, names, data_start: 8 + header_len })
    }

    fn tensors(&self) -> impl Iterator<Item = StoredTensor<'_>> {
        let data = self.bytes.get(self.data_start..).unwrap_or_default();
        self.names.iter().filter_map(move |name| {
            let info = self.metadata.info(name)?;
            let kind = match info.dtype {
                Dtype::F32 => ValueKind::Weights(ElementType::F32),
                Dtype::F16 => ValueKind::Weights(ElementType::F16),
                Dtype::BF16 => ValueKind::Weights(ElementType::Bf16),
                other => ValueKind::Other(other),
            };
            let (start, end) = info.data_offsets;
            let bytes = data.get(start..end)?;
            Some(StoredTensor { path: &self.path, name, shape: info.shape.clone(), kind, asked_by: ASKED_BY, bytes })
        })
    }
}

/// Rejects tensors that end after the end of the file, before the library adds up offsets, which could overflow. The
/// library reports other errors.
fn check_ends(path: &Path, bytes: &[u8]) -> Result<()> {
    let Some((&len, rest)) = bytes.split_first_chunk() else { return Ok(()) };
    let header = usize::try_from(u64::from_le_bytes(len)).ok().filter(|&len| len <= MAX_HEADER_BYTES);
    let Some((header, data)) = header.and_then(|len| rest.split_at_checked(len)) else { return Ok(()) };
    let Ok(header) = serde_json::from_slice::<HashMap<String, Value>>(header) else { return Ok(()) };
    for (tensor, info) in header {
        match info["data_offsets"][1].as_u64() {
            Some(end) if end > data.len() as u64 => {
                let what = format!("ends at byte {end}, but the file has {} bytes of values", data.len());
                return Err(Error::tensor(path, tensor, what).with_hint(TRUNCATED));
            }
            _ => {}
        }
    }
    Ok(())
}

/// `path` as a path of names alone, with `/`, which cannot lead out of the folder that it is relative to.
pub(super) fn path_inside(path: &str) -> Option<String> {
    let names = Path::new(path).components().filter(|component| *component != Component::CurDir);
    let names = names.map(|component| match component {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let names = names.collect::<Option<Vec<_>>>()?;
    (!names.is_empty()).then(|| names.join("/"))
}
