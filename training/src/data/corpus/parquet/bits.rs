//! Packed numbers: Parquet's hybrid of run lengths and bit packing, and its packed deltas.

use super::{Problem, varint};

const CUT: &str = "a page ends inside its numbers";

/// Decodes `n` numbers of `width` bits from the hybrid of run lengths and bit packing.
pub(super) fn read_hybrid(mut bytes: &[u8], width: u32, n: usize) -> Result<Vec<u32>, Problem> {
    if width > 32 {
        return Err(format!("a page has numbers of {width} bits, expected at most 32"));
    }
    let mut values = Vec::with_capacity(n.min(1 << 20));
    while values.len() < n {
        let header = read_varint(&mut bytes)?;
        let wanted = n - values.len();
        if header & 1 == 0 {
            let n_bytes = width.div_ceil(8) as usize;
            let (value, rest) = bytes.split_at_checked(n_bytes).ok_or(CUT)?;
            bytes = rest;
            let value = value.iter().rev().fold(0_u32, |value, &byte| value << 8 | u32::from(byte));
            let run = usize::try_from(header >> 1).unwrap_or(usize::MAX);
            if run == 0 {
                return Err("a page has an empty run".to_owned());
            }
            values.resize(values.len() + run.min(wanted), value);
        } else {
            // Groups of 8. The last may be padded, or cut after the last number.
            let packed = usize::try_from(header >> 1).unwrap_or(usize::MAX).saturating_mul(8);
            let taken = packed.min(wanted);
            for index in 0..taken {
                values.push(unpack(bytes, index, width)? as u32);
            }
            let n_bytes = (packed / 8).saturating_mul(width as usize);
            bytes = bytes.get(n_bytes..).unwrap_or_default();
            if packed == 0 {
                return Err("a page has an empty run".to_owned());
            }
        }
    }
    Ok(values)
}

/// The number at `index` among those packed in `width` bits, lowest bits first.
fn unpack(bytes: &[u8], index: usize, width: u32) -> Result<u64, Problem> {
    let (start, end) = (index * width as usize, (index + 1) * width as usize);
    let window = bytes.get(start / 8..end.div_ceil(8)).ok_or(CUT)?;
    let value = window.iter().rev().fold(0_u128, |value, &byte| value << 8 | u128::from(byte));
    Ok((value >> (start % 8) & ((1 << width) - 1)) as u64)
}

/// Decodes all numbers of packed deltas (DELTA_BINARY_PACKED), of which there may be `most`, and advances `bytes` beyond
/// them.
pub(super) fn read_deltas(bytes: &mut &[u8], most: usize) -> Result<Vec<i64>, Problem> {
    let block = read_varint(bytes)? as usize;
    let n_mini = read_varint(bytes)? as usize;
    let n = read_varint(bytes)? as usize;
    if n > most {
        // Deltas of 0 bits take no bytes, so a page may say that there are any number of them.
        return Err(format!("a page has {n} packed numbers, expected at most {most}"));
    }
    let mut value = read_zigzag(bytes)?;
    let per_mini =
        block.checked_div(n_mini).filter(|&per| per > 0 && per % 8 == 0 && per <= 1 << 20 && n_mini <= 1 << 16);
    let Some(per_mini) = per_mini else {
        return Err(format!("a page has blocks of {block} numbers in {n_mini} parts"));
    };
    let mut values = Vec::with_capacity(n.min(1 << 20));
    if n > 0 {
        values.push(value);
    }
    while values.len() < n {
        let least = read_zigzag(bytes)?;
        let (widths, rest) = bytes.split_at_checked(n_mini).ok_or(CUT)?;
        *bytes = rest;
        for &width in widths {
            let wanted = (n - values.len()).min(per_mini);
            if wanted == 0 {
                break;
            }
            if width > 64 {
                return Err(format!("a page has numbers of {width} bits, expected at most 64"));
            }
            for index in 0..wanted {
                let delta = unpack(bytes, index, width.into())? as i64;
                value = value.wrapping_add(least).wrapping_add(delta);
                values.push(value);
            }
            *bytes = bytes.get(per_mini / 8 * usize::from(width)..).unwrap_or_default();
        }
    }
    Ok(values)
}

fn read_varint(bytes: &mut &[u8]) -> Result<u64, Problem> {
    varint::read_varint(|| {
        let (&byte, rest) = bytes.split_first().ok_or(CUT)?;
        *bytes = rest;
        Ok(byte)
    })
}

fn read_zigzag(bytes: &mut &[u8]) -> Result<i64, Problem> {
    read_varint(bytes).map(varint::zigzag)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn read_hybrid_decodes_runs_and_bit_packed_values() {
        // The numbers 0 to 7 in 3 bits, packed: the example of the format's documentation.
        let packed = [0b0000_0011, 0b1000_1000, 0b1100_0110, 0b1111_1010];
        assert_eq!(read_hybrid(&packed, 3, 8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        // A run of five 300s in 9 bits.
        assert_eq!(read_hybrid(&[10, 0x2c, 1], 9, 5).unwrap(), [300; 5]);
        assert_eq!(read_hybrid(&[], 0, 0).unwrap(), [0_u32; 0]);
        assert_eq!(read_hybrid(&[8], 0, 4).unwrap(), [0; 4]);
        for (bytes, width, n) in
            [(&packed[..3], 3, 8), (&[10, 0x2c], 9, 5), (&[0, 1], 8, 1), (&[1], 8, 1), (&[2, 0], 33, 1)]
        {
            assert!(read_hybrid(bytes, width, n).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn read_deltas_rejects_more_values_than_expected() {
        // 1,000 equal numbers, in 8 bytes.
        let bytes = [128, 8, 1, 232, 7, 2, 0, 0];
        assert_eq!(read_deltas(&mut &bytes[..], 1000).unwrap(), [1; 1000]);
        let error = read_deltas(&mut &bytes[..], 999).unwrap_err();
        assert_eq!(error, "a page has 1000 packed numbers, expected at most 999");
    }

    #[test]
    fn read_deltas_decodes_delta_binary_packed_values() {
        // 1, 2, 3, 4, 5: all differences are 1, so each takes 0 bits.
        let mut bytes = &[8, 1, 5, 2, 2, 0][..];
        assert_eq!(read_deltas(&mut bytes, 5).unwrap(), [1, 2, 3, 4, 5]);
        // 7, 5, 3, 1, 2, 3, 4, 5: the minimum difference is -2; what exceeds it (0, 0, 0, 3, 3, 3, 3) takes 2 bits each.
        let mut bytes = &[8, 1, 8, 14, 3, 2, 0b1100_0000, 0b0011_1111, 9][..];
        assert_eq!(read_deltas(&mut bytes, 8).unwrap(), [7, 5, 3, 1, 2, 3, 4, 5]);
        assert_eq!(bytes, [9]);
        for bytes in [&[8, 0, 5, 2][..], &[8, 1, 5, 2, 2, 200], &[7, 1, 5, 2], &[8, 1, 200, 1, 2, 0, 0]] {
            let mut left = bytes;
            assert!(read_deltas(&mut left, 200).is_err(), "{bytes:?}");
        }
    }
}
