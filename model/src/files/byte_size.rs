//! Sizes of files, as text for people.

use std::fmt;

/// A number of bytes. Displayed as `3 bytes`, `12.0 MB`, `1.50 GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(n) = *self;
        let text = match n {
            0..1_000 => format!("{n} bytes"),
            1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
            1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
            _ => format!("{:.2} GB", n as f64 / 1e9),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_size_is_displayed_in_the_largest_fitting_unit() {
        for (n, text) in [(3, "3 bytes"), (1_500, "1.5 kB"), (12_000_000, "12.0 MB"), (4_920_000_000, "4.92 GB")] {
            assert_eq!(ByteSize(n).to_string(), text);
        }
        assert_eq!(format!("{:>8}", ByteSize(3)), " 3 bytes");
    }
}
