//! Reading values off a device.

use burn::tensor::{Int, Tensor, TensorData};

use crate::error::{Error, Result};

/// Reads a tensor off its device.
pub(crate) fn read<const D: usize>(tensor: Tensor<D>) -> Result<TensorData> {
    tensor.try_into_data().map_err(|error| Error::Execution { what: error.to_string() })
}

/// The values of data read as f32, in row order.
pub(crate) fn to_f32(data: TensorData) -> Result<Vec<f32>> {
    data.try_into_vec().map_err(|error| Error::Execution { what: format!("unexpected data: {error:?}") })
}

/// Reads ids off their device.
pub(crate) fn read_ids(ids: Tensor<1, Int>) -> Result<Vec<i32>> {
    let data = ids.try_into_data().map_err(|error| Error::Execution { what: error.to_string() })?;
    data.try_into_vec_as().map_err(|error| Error::Execution { what: format!("unexpected data: {error:?}") })
}
