//! Pairs of files, and the values of a model's matrices that they update.

use std::{collections::HashMap, sync::Arc};

use super::{super::tensor_table::StoredTensor, modules::LinearModule};
use crate::{
    error::Result,
    gpt::lora::{LoraPair, LoraShape, LoraValues, MatrixUpdate},
};

/// A module's pair in a file.
pub(super) struct StoredPair<'t, 'a> {
    pub(super) module: LinearModule,
    pub(super) rank: usize,
    /// Scale of the product of the two.
    pub(super) scale: f32,
    /// `[rank, d_in]`. Of a module that is one of the experts in a parameter, `[n_experts * rank, d_in]`, expert by expert.
    pub(super) a: &'t StoredTensor<'a>,
    /// `[d_out, rank]`, or `[d_out, rank * n_experts]`, rank by rank.
    pub(super) b: &'t StoredTensor<'a>,
}

impl StoredPair<'_, '_> {
    /// The index of the expert in the tensors, and the number of experts.
    fn place(&self) -> (usize, usize) {
        self.module.expert.map_or((0, 1), |expert| (expert.number, expert.n_experts))
    }
}

/// Reads pairs. The pairs of one matrix must be consecutive, in the order of its rows.
///
/// # Errors
/// A tensor has another shape, or values that are not finite.
pub(super) fn read(pairs: &[StoredPair<'_, '_>]) -> Result<LoraValues> {
    // Before memory is taken by the sizes that the configuration claims.
    for pair in pairs {
        let rank = pair.rank.saturating_mul(pair.place().1);
        pair.a.require_shape(&[rank, pair.module.d_in])?;
        pair.b.require_shape(&[pair.module.rows.len(), rank])?;
    }
    let mut values = LoraValues::default();
    // The experts of a layer share tensors.
    let (mut layer, mut read) = (0, HashMap::new());
    for pairs in pairs.chunk_by(|one, next| one.module.path == next.module.path) {
        let of_matrix = |StoredPair { module, rank, scale, .. }: &StoredPair<'_, '_>| LoraPair {
            rows: module.rows.clone(),
            rank: *rank,
            scale: *scale,
        };
        let shape = LoraShape { d_in: pairs[0].module.d_in, pairs: pairs.iter().map(of_matrix).collect() };
        let mut update = vec![0.0; shape.n_values()];
        let places: Vec<_> = shape.places().collect();
        for (pair, [of_a, of_b]) in pairs.iter().zip(places) {
            let StoredPair { module, rank, a, b, .. } = pair;
            if module.layer != layer {
                layer = module.layer;
                read.clear();
            }
            for tensor in [a, b] {
                if !read.contains_key(tensor.name) {
                    read.insert(tensor.name, finite(tensor)?);
                }
            }
            let (number, n_experts) = pair.place();
            let size = of_a.len();
            update[of_a].copy_from_slice(&read[a.name][number * size..][..size]);
            let values_of_b = &read[b.name];
            // PEFT does not transpose the pair of a transposed weight. Only the order of the rows of `B` differs from
            // ours.
            for (n, row) in update[of_b].chunks_exact_mut(*rank).enumerate() {
                let first = module.order.place(n) * rank;
                row.iter_mut()
                    .enumerate()
                    .for_each(|(n, value)| *value = values_of_b[(first + n) * n_experts + number]);
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
