//! Weights from the scores of a chunk, and sums over chunks. Scores are multiplied by `log2 e`, so that a weight is a power of
//! two.

use std::{f32::consts::LOG2_E, ops::Range};

use super::{LANES, Query};
use crate::ops::cpu::math::{exp2_nonpositive, tanh};

/// The largest score of some positions, and the sum of their weights, which are relative to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoftmaxState {
    pub(super) max: f32,
    pub(super) sum: f32,
}

impl Default for SoftmaxState {
    /// The state of no positions.
    fn default() -> Self {
        Self { max: f32::NEG_INFINITY, sum: 0.0 }
    }
}

impl SoftmaxState {
    /// The softmax's denominator. It includes the sink: a score, scaled as [`AttentionOptions::scale`] leaves it,
    /// without a value.
    #[inline(always)]
    pub(super) fn denominator(&self, sink: Option<f32>) -> f32 {
        let Some(sink) = sink else { return self.sum };
        let above = LOG2_E * sink - self.max;
        let weight =
            if above > 0.0 { 1.0 / exp2_nonpositive::<false>(-above) } else { exp2_nonpositive::<false>(above) };
        self.sum + weight
    }

    /// Merges the weighted values of the next chunk into the running `sum`. An empty state overwrites it.
    #[inline(always)]
    pub(super) fn add(&mut self, sum: &mut [f32], of_chunk: &[f32], chunk: SoftmaxState) {
        if self.max == f32::NEG_INFINITY && self.sum == 0.0 {
            sum.copy_from_slice(of_chunk);
            *self = chunk;
            return;
        }
        // Without fused multiply-add, so that this gives the same bits whatever instructions the calling code is
        // compiled for.
        if chunk.max > self.max {
            let factor = exp2_nonpositive::<false>(self.max - chunk.max);
            sum.iter_mut().zip(of_chunk).for_each(|(sum, of_chunk)| *sum = *sum * factor + of_chunk);
            *self = Self { max: chunk.max, sum: self.sum * factor + chunk.sum };
        } else {
            let factor = exp2_nonpositive::<false>(chunk.max - self.max);
            sum.iter_mut().zip(of_chunk).for_each(|(sum, of_chunk)| *sum += of_chunk * factor);
            self.sum += chunk.sum * factor;
        }
    }
}

/// Scales and biases a query's scores, of the keys from position `first` on, and sets the scores of keys that it must
/// not see to -infinity. Returns the largest score and the range of visible keys. Without a `scale`, scores are scaled
/// already, also by `log2 e`.
#[inline(always)]
fn finish_scores<const FUSED: bool>(
    scores: &mut [f32],
    first: usize,
    query: &Query<'_>,
    scale: Option<f32>,
) -> (f32, Range<usize>) {
    let visible = query.sees.start.saturating_sub(first).min(scores.len())
        ..query.sees.end.saturating_sub(first).min(scores.len());
    scores[..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..].fill(f32::NEG_INFINITY);
    let factor = match (query.softcap, scale) {
        (Some(cap), scale) => {
            let within = scale.unwrap_or(1.0) / cap;
            for score in &mut scores[visible.clone()] {
                *score = LOG2_E * cap * tanh::<FUSED>(*score * within);
            }
            1.0
        }
        (None, Some(scale)) => LOG2_E * scale,
        (None, None) => 1.0,
    };
    if let Some(slope) = query.slope {
        let slope = LOG2_E * slope;
        let to_first = query.sees.end as f32 - 1.0 - first as f32;
        for (n, score) in scores.iter_mut().enumerate().take(visible.end).skip(visible.start) {
            *score = *score * factor - slope * (to_first - n as f32);
        }
    } else if let Some(relative) = query.relative {
        // The bias may have no values for keys that the query does not see.
        let added = relative.get(first + visible.start..first + visible.end).unwrap_or_default();
        for (score, added) in scores[visible.clone()].iter_mut().zip(added) {
            *score = *score * factor + LOG2_E * added;
        }
    } else if factor != 1.0 {
        scores[visible.clone()].iter_mut().for_each(|score| *score *= factor);
    }
    let mut most = [f32::NEG_INFINITY; LANES];
    for scores in scores.as_chunks::<LANES>().0 {
        for (most, score) in most.iter_mut().zip(scores) {
            *most = if score > most { *score } else { *most };
        }
    }
    (most.into_iter().fold(f32::NEG_INFINITY, f32::max), visible)
}

/// Replaces a query's scores, of the keys from position `first` on, with weights: 0 for keys that it must not see.
#[inline(always)]
pub(super) fn softmax<const FUSED: bool>(
    scores: &mut [f32],
    first: usize,
    query: &Query<'_>,
    scale: Option<f32>,
) -> SoftmaxState {
    let (most, visible) = finish_scores::<FUSED>(scores, first, query, scale);
    if visible.is_empty() {
        scores.fill(0.0);
        return SoftmaxState::default();
    }
    // Lanes are chosen by absolute position, so the order of the sum does not depend on where the keys begin.
    let mut sums = [0.0; LANES];
    for scores in scores.as_chunks_mut::<LANES>().0 {
        for (sum, score) in sums.iter_mut().zip(scores) {
            *score = exp2_nonpositive::<FUSED>(*score - most);
            *sum += *score;
        }
    }
    SoftmaxState { max: most, sum: sum_of_lanes(&sums) }
}

/// The sum of all lanes, in four independent chains of additions.
#[inline(always)]
fn sum_of_lanes(lanes: &[f32; LANES]) -> f32 {
    let mut chains = [0.0; 4];
    for (n, chain) in chains.iter_mut().enumerate() {
        *chain = (lanes[n] + lanes[n + 4]) + (lanes[n + 8] + lanes[n + 12]);
    }
    (chains[0] + chains[1]) + (chains[2] + chains[3])
}
