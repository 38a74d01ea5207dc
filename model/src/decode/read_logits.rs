//! Reads logits off their device: of each row only the part that its sampler needs.

#[cfg(test)]
mod tests;

use burn::tensor::{DType, Int, Tensor, Transaction};

use crate::{
    TokenId,
    decode::sampling::{LogitDemand, LogitRow},
    error::{Error, Result},
    ops::{Placement, read, take_rows, to_f32, top_k_logits},
};

/// Rows of logits that were read off a device.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitRows {
    vocab_size: usize,
    /// Whole rows, one after the other.
    whole: Vec<f32>,
    /// Parts of the other rows: ids and logits.
    best: Vec<Vec<(TokenId, f32)>>,
    /// Where each row is stored.
    places: Vec<RowLocation>,
    n_read_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowLocation {
    /// Index of a whole row.
    Whole(usize),
    /// Index of a part.
    Best(usize),
}

impl LogitRows {
    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = LogitRow<'_>> {
        self.places.iter().map(|place| match *place {
            RowLocation::Whole(at) => LogitRow::from(&self.whole[at * self.vocab_size..][..self.vocab_size]),
            RowLocation::Best(at) => LogitRow::Best(self.best[at].as_slice().into()),
        })
    }

    /// Bytes that were read off the device.
    pub fn n_read_bytes(&self) -> usize {
        self.n_read_bytes
    }
}

/// Reads `logits [n_rows, vocab_size]`: at least the part of each row that `needs` asks for. A GPU selects the most
/// likely tokens itself; on the CPU whole rows are returned, without a copy.
///
/// # Errors
/// [`Error::Execution`] when the device cannot be read.
pub fn read_logits(logits: Tensor<2>, needs: &[LogitDemand]) -> Result<LogitRows> {
    let logits = logits.cast(DType::F32);
    if Placement::of(&logits.device()) == Placement::Gpu {
        return read_parts(logits, needs);
    }
    let [n_rows, vocab_size] = logits.dims();
    let whole = to_f32(read(logits)?)?;
    let n_read_bytes = size_of_val(whole.as_slice());
    let places = (0..n_rows).map(RowLocation::Whole).collect();
    Ok(LogitRows { vocab_size, whole, best: Vec::new(), places, n_read_bytes })
}

/// Which rows are read whole, with their indices among the whole rows or the parts.
fn places(needs: &[LogitDemand], vocab_size: usize) -> Vec<RowLocation> {
    let (mut n_whole, mut n_best) = (0, 0);
    let next = |count: &mut usize| std::mem::replace(count, *count + 1);
    let place = |needs: &LogitDemand| match needs {
        // If all tokens are needed: the whole row.
        LogitDemand::Best { n, .. } if (1..vocab_size.min(LogitDemand::MAX_BEST + 1)).contains(n) => {
            RowLocation::Best(next(&mut n_best))
        }
        _ => RowLocation::Whole(next(&mut n_whole)),
    };
    needs.iter().map(place).collect()
}

/// Reads whole rows and parts of others in one transfer.
fn read_parts(logits: Tensor<2>, needs: &[LogitDemand]) -> Result<LogitRows> {
    let [n_rows, vocab_size] = logits.dims();
    let places = places(needs, vocab_size);
    let whole_rows: Vec<usize> = (0..n_rows).filter(|&row| matches!(places[row], RowLocation::Whole(_))).collect();
    let best_rows: Vec<BestRow> = (0..n_rows)
        .filter_map(|row| match (&needs[row], places[row]) {
            (LogitDemand::Best { n, also }, RowLocation::Best(_)) => {
                let also = also.iter().copied().filter(|id| (*id as usize) < vocab_size).collect();
                Some(BestRow { row, n: *n, also })
            }
            _ => None,
        })
        .collect();
    let mut transaction = Transaction::default();
    let n = best_rows.iter().map(|row| row.n).max().unwrap_or(0);
    let n_also = best_rows.iter().map(|row| row.also.len()).max().unwrap_or(0);
    if !best_rows.is_empty() {
        let mut table = Vec::with_capacity(best_rows.len() * (1 + n_also));
        for BestRow { row, also, .. } in &best_rows {
            table.push(*row as i32);
            let ids = also.iter().map(|&id| id as i32).chain(std::iter::repeat(0));
            table.extend(ids.take(n_also));
        }
        let table = Tensor::<1, Int>::from_data(table.as_slice(), &logits.device());
        transaction = transaction.register(top_k_logits(logits.clone(), table, [best_rows.len(), n, n_also]));
    }
    if !whole_rows.is_empty() {
        transaction = transaction.register(take_rows(logits, &whole_rows));
    }
    let read = transaction.try_execute().map_err(|error| Error::Execution { what: error.to_string() })?;
    let n_read_bytes = read.iter().map(|data| data.bytes().len()).sum();
    let mut data = read.into_iter();
    let mut best = Vec::new();
    if !best_rows.is_empty() {
        let picked = data.next().map(|data| data.try_into_vec::<i32>()).transpose();
        let picked = picked.map_err(|error| Error::Execution { what: format!("unexpected data: {error:?}") })?;
        let picked = picked.unwrap_or_default();
        best = picked.chunks_exact(2 * n + n_also).zip(&best_rows).map(|(values, row)| row.gather(values, n)).collect();
    }
    let whole = data.next().map(to_f32).transpose()?.unwrap_or_default();
    Ok(LogitRows { vocab_size, whole, best, places, n_read_bytes })
}

/// A row that is needed in part.
#[derive(Debug)]
struct BestRow {
    row: usize,
    n: usize,
    also: Vec<TokenId>,
}

impl BestRow {
    /// From the device's result for a row: `n` ids, their logits, and the logits of other ids.
    fn gather(&self, values: &[i32], n: usize) -> Vec<(TokenId, f32)> {
        let (ids, logits) = values.split_at(n);
        let (logits, others) = logits.split_at(n);
        let logit = |bits: &i32| f32::from_bits(bits.cast_unsigned());
        let ranked = ids.iter().zip(logits).map(|(id, bits)| (id.cast_unsigned(), logit(bits)));
        let mut pairs: Vec<(TokenId, f32)> = ranked.take(self.n).collect();
        for (&id, bits) in self.also.iter().zip(others) {
            if !pairs[..self.n].iter().any(|pair| pair.0 == id) {
                pairs.push((id, logit(bits)));
            }
        }
        pairs
    }
}
