//! Reads logits off their device: of each row only the part that its sampler needs.

#[cfg(test)]
mod tests;

use burn::tensor::{DType, Int, Tensor, Transaction};

use crate::{
    TokenId,
    decode::sampling::{LogitDemand, LogitRow},
    error::{Error, Result},
    ops::{Placement, read, read_ints_while, take_rows, to_f32, top_k_logits},
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

    /// The most likely token of each row, if no row is whole.
    pub(crate) fn most_likely(&self) -> Option<Vec<TokenId>> {
        let first = |row: &Vec<(TokenId, f32)>| row.first().map(|(id, _)| *id);
        if self.best.len() == self.places.len() { self.best.iter().map(first).collect() } else { None }
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

/// The most likely tokens of each row of logits, on a GPU: what [`read_logits`] would launch kernels for.
#[derive(Clone, Debug)]
pub(crate) struct TopTokens {
    n: usize,
    vocab_size: usize,
    /// Ids and the bits of their logits, `[n_rows, 2 n]`.
    ids_and_bits: Tensor<2, Int>,
}

impl TopTokens {
    /// Numbers of tokens that are selected: the least of these that is enough.
    const COUNTS: [usize; 3] = [1, 64, LogitDemand::MAX_BEST];

    /// How many tokens of each row satisfy `needs`; `None` if a row needs more than its most likely tokens.
    pub(crate) fn count_for(needs: &[LogitDemand], vocab_size: usize) -> Option<usize> {
        let n_of = |needs: &LogitDemand| match needs {
            LogitDemand::Best { n, also } if also.is_empty() && (1..vocab_size).contains(n) => Some(*n),
            _ => None,
        };
        let most = needs.iter().map(n_of).try_fold(0, |most, n| Some(most.max(n?)))?;
        let n = Self::COUNTS.into_iter().find(|&n| n >= most)?;
        (most > 0).then_some(n.min(vocab_size - 1))
    }

    /// Launches the selection of `n` tokens of each row of `logits [n_rows, vocab_size]`. `rows` has the numbers of all rows.
    pub(crate) fn select(logits: Tensor<2>, rows: Tensor<1, Int>, n: usize) -> Self {
        let [n_rows, vocab_size] = logits.dims();
        Self { n, vocab_size, ids_and_bits: top_k_logits(logits, rows, [n_rows, n, 0]) }
    }

    /// Bytes of the buffers that [`select`](Self::select) allocates for `n_rows` rows, at most.
    pub(crate) fn buffer_sizes([n_rows, vocab_size]: [usize; 2], n: usize) -> Vec<usize> {
        // A launch keeps `n` tokens of each tile of at least 1,024.
        let kept = |width: usize| width.div_ceil(1024) * n;
        let widths = std::iter::successors(Some(kept(vocab_size)), |&width| (width > n).then(|| kept(width)));
        widths.chain([2 * n]).map(|width| n_rows * width * size_of::<u32>()).collect()
    }

    /// Whether these tokens are all that `needs` asks for.
    pub(crate) fn satisfy(&self, needs: &[LogitDemand]) -> bool {
        Self::count_for(needs, self.vocab_size).is_some_and(|n| n <= self.n)
    }

    /// The ids of the tokens, in the first `n` columns.
    pub(crate) fn ids(&self) -> Tensor<2, Int> {
        self.ids_and_bits.clone()
    }

    /// Whether it is one token of each row.
    pub(crate) fn is_one(&self) -> bool {
        self.n == 1
    }

    /// Reads these rows, whose `needs` the tokens must [satisfy](Self::satisfy). Calls `meanwhile`, which may launch what
    /// overwrites them.
    ///
    /// # Errors
    /// [`Error::Execution`] when the device cannot be read.
    pub(crate) fn read<T>(
        &self,
        rows: &[usize],
        needs: &[LogitDemand],
        meanwhile: impl FnOnce() -> T,
    ) -> Result<(LogitRows, T)> {
        let (values, done) = read_ints_while(self.ids(), meanwhile)?;
        let n_read_bytes = size_of_val(values.as_slice());
        let best = rows.iter().zip(needs).map(|(&row, needs)| {
            let n = if let LogitDemand::Best { n, .. } = needs { *n } else { 0 };
            let of_row = &values[2 * self.n * row..][..2 * self.n];
            BestRow { row, n, also: Vec::new() }.gather(of_row, self.n)
        });
        let places = (0..rows.len()).map(RowLocation::Best).collect();
        let (vocab_size, whole) = (self.vocab_size, Vec::new());
        Ok((LogitRows { vocab_size, whole, best: best.collect(), places, n_read_bytes }, done))
    }
}

fn unexpected(error: impl std::fmt::Debug) -> Error {
    Error::Execution { what: format!("unexpected data: {error:?}") }
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
        let picked = picked.map_err(unexpected)?.unwrap_or_default();
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
