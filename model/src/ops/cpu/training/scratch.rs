//! Memory that a thread keeps for its next piece of work.

/// `len` values of `scratch`, whatever they are.
pub(super) fn resized(scratch: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if scratch.len() < len {
        scratch.resize(len, 0.0);
    }
    &mut scratch[..len]
}
