//! The optimizer's moments as a safetensors file, one tensor in memory at a time.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufReader, BufWriter, Read, Write},
    path::Path,
};

use anyhow::{Context, Result, anyhow, ensure};
use burn::tensor::{Device, Tensor, TensorData};
use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};

use super::moments_of_all::{MomentsOfAll, SavedMoment};

/// Writes flat tensors by name and flushes the file to the disk.
pub(super) fn write(path: &Path, moments: &MomentsOfAll<'_>) -> Result<()> {
    let mut end = 0;
    let infos = moments.all().iter().map(|SavedMoment { name, n_values, .. }| {
        let start = end;
        end += 4 * n_values;
        let info = TensorInfo { dtype: Dtype::F32, shape: vec![*n_values], data_offsets: (start, end) };
        (name.clone(), info)
    });
    let metadata = Metadata::new(None, infos.collect()).context("cannot serialize the header of the moments")?;
    let mut header = serde_json::to_vec(&metadata).context("cannot serialize the header of the moments")?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let failed = || format!("cannot write `{}`", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(failed)?);
    file.write_all(&(header.len() as u64).to_le_bytes()).with_context(failed)?;
    file.write_all(&header).with_context(failed)?;
    for moment in moments.all() {
        let bytes: Vec<u8> = moments.read(moment)?.into_iter().flat_map(f32::to_le_bytes).collect();
        file.write_all(&bytes).with_context(failed)?;
    }
    let file = file.into_inner().map_err(|error| error.into_error()).with_context(failed)?;
    file.sync_all().with_context(failed)
}

/// Reads the tensors of a file that [`write`] wrote and whose names are `wanted`, by name, to `device`.
pub(super) fn read(path: &Path, device: &Device, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Tensor<1>>> {
    let failed = || format!("cannot read `{}`", path.display());
    let file = File::open(path).with_context(failed)?;
    let n_bytes = file.metadata().with_context(failed)?.len();
    let mut file = BufReader::new(file);
    let mut length = [0; 8];
    file.read_exact(&mut length).with_context(failed)?;
    let n_header = u64::from_le_bytes(length);
    ensure!(n_header <= n_bytes, "`{}` is damaged: its header would have {n_header} bytes", path.display());
    let mut header = vec![0; n_header as usize];
    file.read_exact(&mut header).with_context(failed)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| anyhow!("`{}` is damaged: {error}", path.display()))?;
    let tensors = metadata.tensors();
    let mut infos: Vec<_> = tensors.iter().collect();
    infos.sort_by_key(|(_, info)| info.data_offsets);
    let mut moments = BTreeMap::new();
    for (name, info) in infos {
        ensure!(info.dtype == Dtype::F32, "`{}`: `{name}` is {:?}, expected F32", path.display(), info.dtype);
        let mut bytes = vec![0; info.data_offsets.1 - info.data_offsets.0];
        file.read_exact(&mut bytes).with_context(failed)?;
        if !wanted(name) {
            continue;
        }
        let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let n_values = values.len();
        moments.insert(name.clone(), Tensor::from_data(TensorData::new(values, [n_values]), device));
    }
    Ok(moments)
}
