//! Streams tensors to safetensors files, with one tensor in memory at a time. Their shapes and types are known in
//! advance, and so are the file and the offset of each.

use std::collections::HashMap;

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use serde_json::json;

use super::{
    super::{
        file_names::{INDEX_FILE, shard_file},
        staged_dir::{NewFile, StagedDir},
    },
    DiskDtype, MAX_HEADER_BYTES,
};
use crate::error::{Error, Result};

/// Values converted to bytes at a time.
const VALUES_AT_ONCE: usize = 1 << 16;

/// A tensor to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct TensorPlan {
    pub(in super::super) name: String,
    pub(in super::super) dtype: Dtype,
    pub(in super::super) shape: Vec<usize>,
}

impl TensorPlan {
    pub(in super::super) fn plain(name: String, dtype: DiskDtype, shape: Vec<usize>) -> Self {
        Self { name, dtype: dtype.safetensors(), shape }
    }

    fn n_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// Writes one file, or shards with an index if the tensors exceed `max_shard_bytes`.
#[derive(Debug)]
pub(in super::super) struct TensorWriter<'a> {
    folder: &'a StagedDir,
    dtype: DiskDtype,
    shards: Vec<Shard>,
    /// The position of each tensor.
    places: HashMap<String, TensorLocation>,
    /// The current shard.
    open: Option<(usize, NewFile)>,
}

#[derive(Debug)]
struct Shard {
    file: String,
    header: Vec<u8>,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug)]
struct TensorLocation {
    shard: usize,
    start: u64,
    n_bytes: usize,
    n_written: usize,
}

impl<'a> TensorWriter<'a> {
    /// A writer of the tensors of `plan`, which must be written in this order, each at once or in parts. Plain values are stored in `dtype`.
    ///
    /// # Errors
    /// [`Error::File`] if a file would have more tensors than its header can list.
    pub(in super::super) fn new(
        folder: &'a StagedDir,
        dtype: DiskDtype,
        max_shard_bytes: usize,
        plan: Vec<TensorPlan>,
    ) -> Result<Self> {
        let parts = split(plan, max_shard_bytes);
        let n_shards = parts.len();
        let mut shards = Vec::with_capacity(n_shards);
        let mut places = HashMap::new();
        for (shard, tensors) in parts.into_iter().enumerate() {
            let file = shard_file(shard, n_shards);
            let (header, within) = lay_out(tensors, &file)?;
            let data_start = header.len() as u64;
            places.extend(within.into_iter().map(|(name, (start, end))| {
                let place =
                    TensorLocation { shard, start: data_start + start as u64, n_bytes: end - start, n_written: 0 };
                (name, place)
            }));
            shards.push(Shard { file, header });
        }
        Ok(Self { folder, dtype, shards, places, open: None })
    }

    /// Writes a tensor of plain values, or its next part.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::Param`] if a value is too large for the dtype.
    pub(in super::super) fn write_values(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let dtype = self.dtype;
        self.write(name, values.chunks(VALUES_AT_ONCE).map(|values| dtype.encode(name, values)))
    }

    /// Writes the bytes of a tensor, or of its next part, in pieces.
    ///
    /// # Errors
    /// [`Error::Io`] with the file that cannot be written; [`Error::Tensor`] if there are more bytes than planned, or
    /// the tensor is not in the plan.
    pub(super) fn write(&mut self, name: &str, pieces: impl Iterator<Item = Result<Vec<u8>>>) -> Result<()> {
        let Some(&TensorLocation { shard, start, n_bytes, n_written }) = self.places.get(name) else {
            return Err(self.error(0, name, "is not in the file's plan"));
        };
        if self.open.as_ref().is_none_or(|(number, _)| *number != shard) {
            self.close()?;
            let mut file = self.folder.create(&self.shards[shard].file)?;
            file.write_at(0, &self.shards[shard].header)?;
            self.open = Some((shard, file));
        }
        let mut written = n_written;
        if let Some((_, file)) = &mut self.open {
            for bytes in pieces {
                let bytes = bytes?;
                file.write_at(start + written as u64, &bytes)?;
                written += bytes.len();
            }
        }
        if let Some(place) = self.places.get_mut(name) {
            place.n_written = written;
        }
        if written > n_bytes { Err(self.wrong_length(name)) } else { Ok(()) }
    }

    /// The error for a tensor with more or fewer bytes than planned.
    fn wrong_length(&self, name: &str) -> Error {
        let TensorLocation { shard, n_bytes, n_written, .. } = self.places[name];
        self.error(shard, name, format!("has {n_written} bytes, but its shape requires {n_bytes}"))
    }

    /// Finishes the last file, and writes the index if there are several.
    ///
    /// # Errors
    /// [`Error::Io`] with the file that cannot be written; [`Error::Tensor`] if a tensor is not whole.
    pub(in super::super) fn finish(mut self) -> Result<()> {
        let unfinished = self.places.iter().filter(|(_, place)| place.n_written != place.n_bytes);
        if let Some(name) = unfinished.map(|(name, _)| name).min() {
            return Err(self.wrong_length(name));
        }
        self.close()?;
        if self.shards.len() < 2 {
            return Ok(());
        }
        let total_size: usize = self.places.values().map(|place| place.n_bytes).sum();
        let mut files: Vec<_> = self.places.iter().map(|(name, place)| (place.shard, name)).collect();
        files.sort_unstable();
        let weight_map: serde_json::Map<_, _> =
            files.into_iter().map(|(shard, name)| (name.clone(), json!(self.shards[shard].file))).collect();
        let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
        self.folder.write(INDEX_FILE, format!("{index:#}\n").as_bytes())
    }

    fn close(&mut self) -> Result<()> {
        self.open.take().map_or(Ok(()), |(_, file)| file.finish())
    }

    fn error(&self, shard: usize, name: &str, what: impl Into<String>) -> Error {
        let path = self.shards.get(shard).map(|shard| self.folder.path().join(&shard.file)).unwrap_or_default();
        Error::tensor(path, name, what)
    }
}

/// The tensors of each shard: a new shard begins when the next tensor would make it too large.
fn split(plan: Vec<TensorPlan>, max_shard_bytes: usize) -> Vec<Vec<TensorPlan>> {
    let mut shards = vec![Vec::new()];
    let mut shard_bytes = 0;
    for tensor in plan {
        let n_bytes = tensor.n_bytes();
        if shard_bytes > 0 && shard_bytes + n_bytes > max_shard_bytes {
            shards.push(Vec::new());
            shard_bytes = 0;
        }
        shard_bytes += n_bytes;
        if let Some(shard) = shards.last_mut() {
            shard.push(tensor);
        }
    }
    shards
}

/// Names of tensors, and the range of their bytes after the header.
type Offsets = Vec<(String, (usize, usize))>;

/// The header of a file and the positions of its tensors: as the library `safetensors` writes them.
fn lay_out(mut tensors: Vec<TensorPlan>, file: &str) -> Result<(Vec<u8>, Offsets)> {
    let error = |what: String| Error::file(file, format!("cannot be created: {what}"));
    // The widest types first, so that all are aligned.
    tensors.sort_by(|left, right| right.dtype.cmp(&left.dtype).then_with(|| left.name.cmp(&right.name)));
    let mut end = 0;
    let infos = tensors.into_iter().map(|tensor| {
        let start = end;
        end += tensor.n_bytes();
        (tensor.name, TensorInfo { dtype: tensor.dtype, shape: tensor.shape, data_offsets: (start, end) })
    });
    let infos: Vec<_> = infos.collect();
    let offsets = infos.iter().map(|(name, info)| (name.clone(), info.data_offsets)).collect();
    // `transformers` requires a framework name, and does not know Hearth.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(metadata), infos).map_err(|reason| error(reason.to_string()))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|reason| error(reason.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    if json.len() > MAX_HEADER_BYTES {
        return Err(error(format!(
            "its header would have {} bytes; at most {MAX_HEADER_BYTES} are allowed",
            json.len()
        )));
    }
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok((header, offsets))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::fs;

    use safetensors::tensor::TensorView;

    use super::*;

    /// The library's own writer needs all tensors at once.
    #[test]
    fn tensor_writer_writes_the_same_bytes_as_the_safetensors_library() {
        let dir = tempfile::tempdir().unwrap();
        let plain =
            |name: &str, dtype: DiskDtype, shape: &[usize]| TensorPlan::plain(name.into(), dtype, shape.to_vec());
        let plan = vec![
            plain("b", DiskDtype::Bf16, &[3, 5]),
            plain("z.norm", DiskDtype::F32, &[7]),
            TensorPlan { name: "a".into(), dtype: Dtype::U8, shape: vec![2, 16] },
            plain("c", DiskDtype::F16, &[4, 4]),
            plain("y", DiskDtype::F32, &[2, 2]),
        ];
        let bytes_of = |tensor: &TensorPlan| -> Vec<u8> {
            (0..tensor.n_bytes())
                .map(|n| (n * 31 + tensor.name.len() + tensor.name.as_bytes()[0] as usize) as u8)
                .collect()
        };
        // One shard, several shards, and one file per tensor.
        for max_shard_bytes in [usize::MAX, 70, 1] {
            let staged = StagedDir::replacing(&dir.path().join(max_shard_bytes.to_string())).unwrap();
            let mut writer = TensorWriter::new(&staged, DiskDtype::F32, max_shard_bytes, plan.clone()).unwrap();
            for tensor in &plan {
                let bytes = bytes_of(tensor);
                writer.write(&tensor.name, bytes.chunks(6).map(|bytes| Ok(bytes.to_vec()))).unwrap();
            }
            writer.finish().unwrap();
            let shards = split(plan.clone(), max_shard_bytes);
            for (number, shard) in shards.iter().enumerate() {
                let tensors: Vec<_> = shard.iter().map(|tensor| (tensor, bytes_of(tensor))).collect();
                let views = tensors.iter().map(|(tensor, bytes)| {
                    (tensor.name.as_str(), TensorView::new(tensor.dtype, tensor.shape.clone(), bytes).unwrap())
                });
                let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
                let expected = safetensors::serialize(views, Some(metadata)).unwrap();
                let file = shard_file(number, shards.len());
                assert!(fs::read(staged.path().join(&file)).unwrap() == expected, "{file} of {max_shard_bytes}");
            }
            assert_eq!(staged.path().join(INDEX_FILE).exists(), shards.len() > 1);
        }
    }

    #[test]
    fn tensor_writer_rejects_tensors_that_differ_from_the_plan() {
        let dir = tempfile::tempdir().unwrap();
        let staged = StagedDir::replacing(&dir.path().join("model")).unwrap();
        let plan = vec![TensorPlan::plain("a".into(), DiskDtype::F32, vec![3])];
        let mut writer = TensorWriter::new(&staged, DiskDtype::F32, usize::MAX, plan).unwrap();
        let error = writer.write_values("a", &[0.0; 4]).unwrap_err().to_string();
        assert!(error.contains("`a`: has 16 bytes, but its shape requires 12"), "{error}");
        let error = writer.write_values("b", &[0.0]).unwrap_err().to_string();
        assert!(error.contains("`b`: is not in the file's plan"), "{error}");
        let plan = vec![TensorPlan::plain("a".into(), DiskDtype::F16, vec![2])];
        let mut writer = TensorWriter::new(&staged, DiskDtype::F16, usize::MAX, plan).unwrap();
        let error = writer.write_values("a", &[1.0, 7e4]).unwrap_err().to_string();
        assert!(error.contains("`a` has numbers above 65504"), "{error}");
    }
}
