//! The tensor `rope_freqs.weight`: a factor for the wavelength of each pair of dimensions. llama.cpp's converter
//! computes it from Llama 3.1's scaling. The scaling is recovered from the factors; factors of any other origin are
//! rejected.

use super::super::tensor_table::TensorTable;
use crate::{
    config::{GptConfig, Positions, RopeScaling},
    error::Result,
    position::rope_frequencies,
};

const TENSOR: &str = "rope_freqs.weight";
/// The context length for which all of Llama's models with this scaling were first trained. Only its ratios to
/// `low_freq_factor` and `high_freq_factor` have an effect, so it can be used for every model.
const ORIGINAL_MAX_SEQ_LEN: usize = 8192;
/// Relative; the factors were computed in f32.
const TOLERANCE: f32 = 1e-4;

/// Takes the tensor out of the table, if it is there, and sets the scaling that it is made of.
pub(super) fn apply(config: &mut GptConfig, tensors: &mut TensorTable<'_>) -> Result<()> {
    let Positions::Rope(rope) = &mut config.positions else { return Ok(()) };
    let Some(tensor) = tensors.take(TENSOR) else { return Ok(()) };
    tensor.require_shape(&[rope.rotary_dim / 2])?;
    let factors = tensor.to_f32()?;
    if factors.iter().all(|&factor| factor == 1.0) {
        return Ok(());
    }
    if rope.scaling != RopeScaling::None {
        return Err(tensor.error("cannot be combined with another scaling of the positions"));
    }
    let plain = rope_frequencies(rope, 1);
    let same = |scaling: &RopeScaling| {
        let scaled = rope_frequencies(&crate::config::Rope { scaling: *scaling, ..*rope }, 1);
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
    // Between the two ends, the share that is not scaled grows in proportion to the frequency: two points tell how.
    let turns = |frequency: f32| ORIGINAL_MAX_SEQ_LEN as f64 * f64::from(frequency) / std::f64::consts::TAU;
    let share = |own: f32| (1.0 / f64::from(own) - 1.0 / factor) / (1.0 - 1.0 / factor);
    let points = frequencies.iter().zip(factors).map(|(&frequency, &own)| (turns(frequency), share(own)));
    let between: Vec<_> = points.filter(|(_, share)| (0.001..0.999).contains(share)).collect();
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
