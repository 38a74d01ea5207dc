//! Position encodings: rotary angles, sinusoidal vectors and ALiBi slopes, as plain numbers on the host.
//!
//! They are computed in each step for its rows, so a context of 100,000 tokens needs no table.

use crate::config::{QueryTemperature, Rope, RopeScaling};

/// The rotary angles of rows at `positions`, row after row: `[n_rows, rotary_dim / 2]` in radians, for a model with a
/// context of `max_seq_len`.
///
/// In f32, as in `transformers`: at large positions the rounding matters, and weights were trained with it.
pub fn rope_angles(positions: &[usize], rope: &Rope, max_seq_len: usize) -> Vec<f32> {
    let frequencies = rope_frequencies(rope, max_seq_len);
    positions
        .iter()
        .flat_map(|&position| frequencies.iter().map(move |frequency| position as f32 * frequency))
        .collect()
}

/// Radians per position of each pair of dimensions: `theta^(-2i / rotary_dim)`
/// ([RoFormer](https://arxiv.org/abs/2104.09864), 3.2.2), scaled by [`RopeScaling`] for a model with a context of
/// `max_seq_len`.
pub fn rope_frequencies(rope: &Rope, max_seq_len: usize) -> Vec<f32> {
    let dim = rope.rotary_dim as f64;
    let radii = |theta: f64| (0..rope.rotary_dim / 2).map(move |i| (theta as f32).powf((2 * i) as f32 / dim as f32));
    let plain = |theta: f64| radii(theta).map(|radius| 1.0 / radius);
    match rope.scaling {
        RopeScaling::None | RopeScaling::Dynamic { .. } => plain(rope.theta).collect(),
        RopeScaling::Linear { factor } => plain(rope.theta).map(|f| f / factor as f32).collect(),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_seq_len } => {
            let (factor, low, high) = (factor as f32, low_freq_factor as f32, high_freq_factor as f32);
            let turns = |f: f32| original_max_seq_len as f32 * f / std::f32::consts::TAU;
            let scale = |f: f32| {
                // Fraction of the unscaled frequency: 0 below `low` rotations over the original context, 1 above
                // `high`.
                let share = ((turns(f) - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - share) * f / factor + share * f
            };
            plain(rope.theta).map(scale).collect()
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_seq_len, truncate, .. } => {
            // The dimension, as a real number, that makes `beta` rotations over the original context.
            let dimension = |beta: f64| {
                dim * (original_max_seq_len as f64 / (beta * std::f64::consts::TAU)).ln() / (2.0 * rope.theta.ln())
            };
            let (low, high) = (dimension(beta_fast), dimension(beta_slow));
            let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
            let (low, high) = (low.max(0.0), high.min(dim - 1.0));
            // If both ends coincide, the paper's code makes the ramp this steep.
            let width = if low == high { 0.001 } else { high - low };
            let scale = |(i, f): (usize, f32)| {
                let share = (((i as f64 - low) / width) as f32).clamp(0.0, 1.0);
                f / factor as f32 * share + f * (1.0 - share)
            };
            plain(rope.theta).enumerate().map(scale).collect()
        }
        RopeScaling::LongRope { ref short_factors, ref long_factors, original_max_seq_len, .. } => {
            let factors = if max_seq_len > original_max_seq_len { long_factors } else { short_factors };
            radii(rope.theta).zip(factors).map(|(radius, factor)| 1.0 / (factor * radius)).collect()
        }
        RopeScaling::Proportional { n_pairs, factor } => {
            let rotates = |pair: usize| if pair < n_pairs { 1.0 } else { 0.0 };
            plain(rope.theta).enumerate().map(|(pair, f)| rotates(pair) * f / factor as f32).collect()
        }
    }
}

/// The multipliers of the queries at `positions`.
pub(crate) fn query_factors(positions: &[usize], temperature: QueryTemperature) -> Vec<f32> {
    let QueryTemperature { beta, interval } = temperature;
    positions.iter().map(|position| (1.0 + beta * ((1 + position / interval) as f64).ln()) as f32).collect()
}

/// The sinusoidal vectors of rows at `positions`: `[n_rows, d_model]`; the first half of each row are sines, the second
/// cosines, of `position * 10000^(-2i / d_model)` (["Attention is all you need"](https://arxiv.org/abs/1706.03762),
/// 3.5, with separate halves instead of interleaved, as in CTRL).
pub fn sinusoidal(positions: &[usize], d_model: usize) -> Vec<f32> {
    let half = d_model.div_ceil(2);
    let angle = |position: usize, i: usize| position as f64 / 10_000f64.powf((2 * i) as f64 / d_model as f64);
    positions
        .iter()
        .flat_map(|&position| {
            let sines = (0..half).map(move |i| angle(position, i).sin() as f32);
            let cosines = (0..d_model - half).map(move |i| angle(position, i).cos() as f32);
            sines.chain(cosines)
        })
        .collect()
}

/// The vectors of rows at `positions` for [`Positions::SinusoidalFromTwo`](crate::config::Positions::SinusoidalFromTwo):
/// `[n_rows, d_model]`. In f32, as in `transformers`.
pub(crate) fn sinusoidal_from_two(positions: &[usize], d_model: usize) -> Vec<f32> {
    let half = d_model / 2;
    let step = -(10_000f64.ln() / (half.max(2) - 1) as f64) as f32;
    let angle = |position: usize, i: usize| (position + 2) as f32 * (i as f32 * step).exp();
    positions
        .iter()
        .flat_map(|&position| {
            let sines = (0..half).map(move |i| angle(position, i).sin());
            let cosines = (0..half).map(move |i| angle(position, i).cos());
            sines.chain(cosines).chain(std::iter::repeat_n(0.0, d_model % 2))
        })
        .collect()
}

/// One slope per head: a geometric sequence from `2^(-8 / n)` down to `2^-8`; if the number of heads is not a power of
/// two, the sequence of the next lower power, then every other slope of the next higher one
/// ([ALiBi](https://arxiv.org/abs/2108.12409), 3, and its reference code for other counts).
pub fn alibi_slopes(n_heads: usize) -> Vec<f32> {
    let slopes = |n: usize| (1..=n).map(move |i| 2f64.powf(-8.0 * i as f64 / n as f64) as f32);
    let power = if n_heads.is_power_of_two() { n_heads } else { n_heads.next_power_of_two() / 2 };
    slopes(power).chain(slopes(2 * power).step_by(2)).take(n_heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alibi_slopes_match_the_paper() {
        assert_eq!(alibi_slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
        // Twelve heads: the eight of a power of two, then every other of the sixteen.
        let slopes = alibi_slopes(12);
        assert_eq!(slopes[..8], alibi_slopes(8));
        assert_eq!(slopes[8..], [0.70710677, 0.35355338, 0.17677669, 0.088388346]);
    }

    #[test]
    fn rope_angles_are_position_times_inverse_frequency() {
        let rope = Rope::new(10_000.0, 4);
        assert_eq!(rope_angles(&[0, 3], &rope, 100), [0.0, 0.0, 3.0, 0.03]);
    }

    #[test]
    fn long_rope_divides_frequencies_by_the_factors_of_the_context() {
        let scaling = RopeScaling::LongRope {
            short_factors: vec![1.0, 2.0],
            long_factors: vec![4.0, 8.0],
            attention_factor: 1.5,
            original_max_seq_len: 10,
        };
        let rope = Rope { scaling, ..Rope::new(256.0, 4) };
        assert_eq!(rope_frequencies(&rope, 10), [1.0, 1.0 / 32.0]);
        assert_eq!(rope_frequencies(&rope, 11), [0.25, 1.0 / 128.0]);
        assert_eq!(rope.scaling.attention_factor(), 1.5);
    }

    #[test]
    fn sinusoidal_positions_are_sines_then_cosines_of_the_angles() {
        assert_eq!(sinusoidal(&[0], 4), [0.0, 0.0, 1.0, 1.0]);
        let row = sinusoidal(&[2], 4);
        let expected = [2f32.sin(), 0.02f32.sin(), 2f32.cos(), 0.02f32.cos()];
        assert!(row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{row:?}");
    }
}
