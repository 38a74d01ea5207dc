//! Decimal numbers that are f32 in memory and f64 in JSON.

/// The `f64` with the shortest decimal form of `number`: 0.1, not 0.10000000149.
pub fn to_f64(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_keep_their_digits_in_f64() {
        assert_eq!([0.1, -0.7, 1e-5, 0.0, f32::MAX].map(to_f64), [0.1, -0.7, 1e-5, 0.0, 3.402_823_5e38]);
        assert_eq!(to_f64(f32::INFINITY), f64::INFINITY);
        assert!(to_f64(f32::NAN).is_nan());
    }
}
