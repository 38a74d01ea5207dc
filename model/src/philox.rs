//! Random numbers as a pure function of a key and a counter: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, ["Parallel random
//! numbers: as easy as 1, 2, 3"](https://doi.org/10.1145/2063384.2063405), SC 2011).

use std::f32::consts::TAU;

use rayon::prelude::*;

/// The low half and the high half.
#[inline(always)]
pub(crate) fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Four random words. Ten rounds of Philox4x32: the number that the paper recommends with a safety margin.
// Inlined, so that loops over counters are compiled for their callers' instruction sets.
#[inline(always)]
pub(crate) fn philox(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    const N_ROUNDS: usize = 10;
    for _ in 0..N_ROUNDS {
        counter = round(key, counter);
        // Weyl sequences from the golden ratio and from the square root of 3, minus 1.
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[inline(always)]
fn round(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let [low_0, high_0] = halves(u64::from(counter[0]) * 0xD251_1F53);
    let [low_1, high_1] = halves(u64::from(counter[2]) * 0xCD9E_8D57);
    [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0]
}

/// `n` normally distributed numbers around 0: the initial values of tensor number `tensor` in a model with `seed`.
/// Each is a function of the seed, the tensor and its place, so neither device nor threads change them.
///
/// Two uniform numbers make two normal ones (Box and Muller, ["A note on the generation of random normal
/// deviates"](https://doi.org/10.1214/aoms/1177706645), 1958). None is further from 0 than 5.8 standard deviations.
pub(crate) fn normal_values(seed: u64, tensor: u32, n: usize, standard_deviation: f32) -> Vec<f32> {
    const PURPOSE: u32 = u32::from_le_bytes(*b"init");
    /// Calls of [`philox`] that a thread makes at a time.
    const BLOCK: usize = 1 << 12;
    let pair = |radius: u32, angle: u32| {
        let radius = standard_deviation * (-2.0 * (1.0 - unit_interval(radius)).ln()).sqrt();
        let (sin, cos) = (TAU * unit_interval(angle)).sin_cos();
        [radius * cos, radius * sin]
    };
    let mut values = vec![0.0; n];
    values.par_chunks_mut(4 * BLOCK).enumerate().for_each(|(block, values)| {
        for (number, values) in values.chunks_mut(4).enumerate() {
            let [low, high] = halves((block * BLOCK + number) as u64);
            let [a, b, c, d] = philox(halves(seed), [low, high, tensor, PURPOSE]);
            let [pair_0, pair_1] = [pair(a, b), pair(c, d)];
            let made = [pair_0[0], pair_0[1], pair_1[0], pair_1[1]];
            values.copy_from_slice(&made[..values.len()]);
        }
    });
    values
}

/// The logarithms of values that are uniform in `limits`, by the counters of [`normal_values`].
pub(crate) fn log_uniform_values(seed: u64, tensor: u32, n: usize, [least, most]: [f64; 2]) -> Vec<f32> {
    let word = |n: usize| {
        let [low, high] = halves((n / 4) as u64);
        philox(halves(seed), [low, high, tensor, 0])[n % 4]
    };
    (0..n).map(|n| (least + (most - least) * f64::from(unit_interval(word(n)))).ln() as f32).collect()
}

/// A number in `[0, 1)`: the upper 24 bits of `word`.
pub(crate) fn unit_interval(word: u32) -> f32 {
    (word >> 8) as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_values_have_the_moments_and_quantiles_of_a_normal_distribution() {
        let n = 200_003;
        let values = normal_values(7, 3, n, 0.5);
        let mean = |power: i32| values.iter().map(|value| f64::from(value / 0.5).powi(power)).sum::<f64>() / n as f64;
        // Moments of a standard normal distribution: 0, 1, 0 and 3. Allowed are some 4 standard errors.
        assert!(mean(1).abs() < 0.01, "{}", mean(1));
        assert!((mean(2) - 1.0).abs() < 0.013, "{}", mean(2));
        assert!(mean(3).abs() < 0.035, "{}", mean(3));
        assert!((mean(4) - 3.0).abs() < 0.09, "{}", mean(4));
        for (bound, share) in [(1.0, 0.682_69), (2.0, 0.954_50), (3.0, 0.997_30)] {
            let within = values.iter().filter(|value| value.abs() < bound * 0.5).count() as f64 / n as f64;
            assert!((within - share).abs() < 0.004, "{within} within {bound}");
        }
        // Neighbours are independent: no correlation.
        for distance in 1..5 {
            let product = |n: usize| f64::from(values[n]) * f64::from(values[n + distance]) / 0.25;
            let correlation = (0..n - distance).map(product).sum::<f64>() / n as f64;
            assert!(correlation.abs() < 0.01, "{correlation} at {distance}");
        }
    }

    #[test]
    fn normal_values_depend_on_seed_and_tensor_and_not_on_the_length() {
        let values = normal_values(7, 3, 50_000, 1.0);
        assert_eq!(normal_values(7, 3, 20_001, 1.0), values[..20_001]);
        assert_ne!(normal_values(7, 4, 10, 1.0), values[..10]);
        assert_ne!(normal_values(8, 3, 10, 1.0), values[..10]);
        assert!(normal_values(7, 3, 0, 1.0).is_empty());
    }

    /// Known answers published with Random123, the library of the paper.
    #[test]
    fn philox_matches_the_random123_known_answers() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 2], [u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
