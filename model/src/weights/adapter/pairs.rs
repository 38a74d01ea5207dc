//! Pairs of files, and the values of a model's matrices that they update.

use std::sync::Arc;

use super::{super::tensor_table::StoredTensor, modules::LinearModule};
use crate::{
    error::Result,
    lora::{LoraPair, LoraShape, LoraValues, MatrixUpdate},
};

/// A module's pair in a file.
pub(super) struct StoredPair<'t, 'a> {
    pub(super) module: LinearModule,
    pub(super) rank: usize,
    /// Of the product of the two.
    pub(super) scale: f32,
    /// `[rank, d_in]`.
    pub(super) a: &'t StoredTensor<'a>,
    /// `[d_out, rank]`.
    pub(super) b: &'t StoredTensor<'a>,
}

/// Reads pairs. The pairs of one matrix follow each other in the order of its rows.
///
/// # Errors
/// A tensor has another shape, or values that are not finite.
pub(super) fn read(pairs: &[StoredPair<'_, '_>]) -> Result<LoraValues> {
    // Before memory is taken by the sizes that the configuration claims.
    for StoredPair { module, rank, a, b, .. } in pairs {
        a.require_shape(&[*rank, module.d_in])?;
        b.require_shape(&[module.rows.len(), *rank])?;
    }
    let mut values = LoraValues::default();
    for pairs in pairs.chunk_by(|one, next| one.module.path == next.module.path) {
        let of_matrix = |StoredPair { module, rank, scale, .. }: &StoredPair<'_, '_>| LoraPair {
            rows: module.rows.clone(),
            rank: *rank,
            scale: *scale,
        };
        let shape = LoraShape { d_in: pairs[0].module.d_in, pairs: pairs.iter().map(of_matrix).collect() };
        let mut update = vec![0.0; shape.n_values()];
        let places: Vec<_> = shape.places().collect();
        for (StoredPair { module, rank, a, b, .. }, [of_a, of_b]) in pairs.iter().zip(places) {
            update[of_a].copy_from_slice(&finite(a)?);
            let values_of_b = finite(b)?;
            // PEFT does not transpose the pair of a transposed weight. Only the order of the rows of `B` differs from
            // ours.
            for (n, row) in update[of_b].chunks_exact_mut(*rank).enumerate() {
                row.copy_from_slice(&values_of_b[module.order.place(n) * rank..][..*rank]);
            }
        }
        values.0.insert(pairs[0].module.path.clone(), MatrixUpdate { shape: Arc::new(shape), values: update });
    }
    Ok(values)
}

fn finite(tensor: &StoredTensor<'_>) -> Result<Vec<f32>> {
    let values = tensor.to_f32()?;
    if values.iter().any(|value| !value.is_finite()) {
        return Err(tensor.error("has infinite or NaN values"));
    }
    Ok(values)
}

/// A module's pair as files have it.
pub(super) struct ModulePair<'v> {
    pub(super) module: LinearModule,
    pub(super) rank: usize,
    /// See [`StoredPair`].
    pub(super) scale: f32,
    /// `[rank, d_in]`.
    pub(super) a: &'v [f32],
    /// `[d_out, rank]`, with the rows in the order of the module.
    pub(super) b: Vec<f32>,
}

/// The pairs of the `modules` that `values` updates.
pub(super) fn of_modules(values: &LoraValues, modules: Vec<LinearModule>) -> Vec<ModulePair<'_>> {
    let pair = |module: LinearModule| {
        let update = values.0.get(&module.path)?;
        let mut pairs = update.shape.pairs.iter().zip(update.shape.places());
        let (pair, [of_a, of_b]) = pairs.find(|(pair, _)| pair.rows == module.rows)?;
        let mut b = vec![0.0; of_b.len()];
        for (n, row) in update.values[of_b].chunks_exact(pair.rank).enumerate() {
            b[module.order.place(n) * pair.rank..][..pair.rank].copy_from_slice(row);
        }
        Some(ModulePair { rank: pair.rank, scale: pair.scale, a: &update.values[of_a], b, module })
    };
    modules.into_iter().filter_map(pair).collect()
}
