//! Tensors with a factor for the wavelength of each pair of dimensions.
//!
//! `rope_freqs.weight` is computed by llama.cpp's converter from Llama 3.1's scaling. The scaling is recovered from the
//! factors; factors of any other origin are rejected. `rope_factors_short.weight` and `rope_factors_long.weight` are the
//! lists of LongRoPE.

use super::{
    super::{config_json::Fields, tensor_table::TensorTable},
    config_rows::{FACTOR_LISTS, LONG_ROPE, long_rope},
};
use crate::{
    config::{GptConfig, Positions, Rope, RopeScaling},
    error::Result,
    gpt::position::rope_frequencies,
};

/// The factors for all lengths.
pub(super) const TENSOR: &str = "rope_freqs.weight";
/// The context length for which all of Llama's models with this scaling were first trained. Only its ratios to
/// `low_freq_factor` and `high_freq_factor` have an effect, so it can be used for every model.
const ORIGINAL_MAX_SEQ_LEN: usize = 8192;
/// Factors from here on mean no rotation; the converter writes 1e30.
const NOT_ROTATING: f32 = 1e20;
/// Relative; the factors were computed in f32.
const TOLERANCE: f32 = 1e-4;

/// Takes the tensors out of the table, if they are there, and sets the scaling that they encode.
pub(super) fn apply(config: &mut GptConfig, fields: &Fields<'_>, tensors: &mut TensorTable<'_>) -> Result<()> {
    let Positions::Rope(rope) = &mut config.positions else { return Ok(()) };
    if let Some(lists) = take_lists(rope.rotary_dim / 2, fields, tensors)? {
        if rope.scaling != RopeScaling::None {
            let what = format!("cannot be combined with the tensors `{}`", FACTOR_LISTS.join("` and `"));
            return Err(fields.invalid("rope.scaling.factor", what));
        }
        rope.scaling = long_rope(fields, config.max_seq_len, lists)?;
    }
    let Some(tensor) = tensors.take(TENSOR) else { return Ok(()) };
    tensor.require_shape(&[rope.rotary_dim / 2])?;
    let factors = tensor.to_f32()?;
    if factors.iter().all(|&factor| factor == 1.0) {
        return Ok(());
    }
    if rope.scaling != RopeScaling::None {
        return Err(tensor.error("cannot be combined with another scaling of the positions"));
    }
    if let Some(n_pairs) = rotating_pairs(&factors) {
        rope.scaling = RopeScaling::Proportional { n_pairs, factor: 1.0 };
        return Ok(());
    }
    let frequencies = |rope: &Rope| rope_frequencies(rope, config.max_seq_len);
    let plain = frequencies(rope);
    let same = |scaling: &RopeScaling| {
        let scaled = frequencies(&Rope { scaling: scaling.clone(), ..*rope });
        let expected = plain.iter().zip(&factors).map(|(frequency, factor)| frequency / factor);
        scaled.iter().zip(expected).all(|(a, b)| (a - b).abs() <= TOLERANCE * b.abs())
    };
    match fit(&plain, &factors).into_iter().find(same) {
        Some(scaling) => rope.scaling = scaling,
        None => {
            return Err(tensor.error("has factors other than those of Llama 3.1's scaling, which are not supported"));
        }
    }
    Ok(())
}

/// The factors for which [`apply`] finds the scaling of `rope`, if files have it as factors.
pub(super) fn frequency_factors(rope: &Rope, max_seq_len: usize) -> Option<Vec<f32>> {
    match rope.scaling {
        RopeScaling::Llama3 { .. } => {
            let plain = rope_frequencies(&Rope { scaling: RopeScaling::None, ..rope.clone() }, max_seq_len);
            let scaled = rope_frequencies(rope, max_seq_len);
            Some(plain.iter().zip(&scaled).map(|(plain, scaled)| plain / scaled).collect())
        }
        RopeScaling::Proportional { n_pairs, factor: 1.0 } => {
            Some((0..rope.rotary_dim / 2).map(|pair| if pair < n_pairs { 1.0 } else { 1e30 }).collect())
        }
        _ => None,
    }
}

/// How many pairs rotate, if the others have a factor so large that they do not.
fn rotating_pairs(factors: &[f32]) -> Option<usize> {
    let n_pairs = factors.iter().take_while(|factor| **factor == 1.0).count();
    factors[n_pairs..].iter().all(|factor| *factor >= NOT_ROTATING).then_some(n_pairs)
}

/// Takes the lists for short and long contexts, of `n_pairs` factors each, if there are any or the type requires them.
fn take_lists(n_pairs: usize, fields: &Fields<'_>, tensors: &mut TensorTable<'_>) -> Result<Option<[Vec<f32>; 2]>> {
    let is_long_rope = fields.text_or("rope.scaling.type", "")? == LONG_ROPE;
    if !is_long_rope && FACTOR_LISTS.iter().all(|name| tensors.get(name).is_none()) {
        return Ok(None);
    }
    let mut take = |name: &str| {
        let tensor = tensors.take(name).ok_or_else(|| tensors.missing(name))?;
        tensor.require_shape(&[n_pairs])?;
        tensor.to_f32()
    };
    let [short, long] = FACTOR_LISTS;
    Ok(Some([take(short)?, take(long)?]))
}

/// The scalings that the factors may come from.
fn fit(frequencies: &[f32], factors: &[f32]) -> Vec<RopeScaling> {
    let factor = factors.iter().fold(0.0f64, |most, &factor| most.max(factor.into()));
    if !factor.is_finite() || factor <= 1.0 {
        return Vec::new();
    }
    let llama3 = |low_freq_factor: f64, high_freq_factor: f64| RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_max_seq_len: ORIGINAL_MAX_SEQ_LEN,
    };
    // The factors of all released models.
    let (released_low, released_high) = (1.0, 4.0);
    let mut found = vec![llama3(released_low, released_high)];
    // Between the two ends, the unscaled share grows linearly with the frequency: two points determine it.
    let turns = |frequency: f32| ORIGINAL_MAX_SEQ_LEN as f64 * f64::from(frequency) / std::f64::consts::TAU;
    let share = |own: f32| (1.0 / f64::from(own) - 1.0 / factor) / (1.0 - 1.0 / factor);
    let points: Vec<_> = frequencies.iter().zip(factors).map(|(&one, &own)| (turns(one), share(own))).collect();
    let between: Vec<_> = points.iter().copied().filter(|(_, share)| (0.001..0.999).contains(share)).collect();
    if between.is_empty() {
        // Any two ends do that have the scaled pairs below and the others above them.
        let (scaled, plain): (Vec<_>, Vec<_>) = points.iter().copied().partition(|(_, share)| *share < 0.5);
        let low = scaled.iter().fold(0.0f64, |most, (turns, _)| most.max(*turns));
        let high = plain.iter().fold(f64::INFINITY, |least, (turns, _)| least.min(*turns));
        found.push(llama3(low, if high.is_finite() { high } else { low * released_high }));
    }
    // One point is enough if `high_freq_factor / low_freq_factor` is as in the released models.
    found.extend(between.first().map(|&(turns, share)| {
        let unit = turns / (released_low + share * (released_high - released_low));
        llama3(released_low * unit, released_high * unit)
    }));
    if let (Some(first), Some(last)) = (between.first(), between.last())
        && first.0 != last.0
    {
        let width = (first.0 - last.0) / (first.1 - last.1);
        let low = first.0 - first.1 * width;
        found.push(llama3(low, low + width));
    }
    found
}
