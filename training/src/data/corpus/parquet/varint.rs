//! Numbers of variable length, in metadata and in pages.

use super::Problem;

/// Reads a number of 7 bits per byte, lowest first, from the bytes that `next` returns.
pub(super) fn read_varint(mut next: impl FnMut() -> Result<u8, Problem>) -> Result<u64, Problem> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = next()?;
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number has more than 64 bits".to_owned())
}

/// The signed number that a varint encodes: its sign is the lowest bit.
pub(super) fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_end_at_the_first_small_byte_and_have_64_bits() {
        let read = |bytes: &[u8]| {
            let mut bytes = bytes.iter();
            let value = read_varint(|| bytes.next().copied().ok_or_else(|| "cut".to_owned()));
            (value, bytes.len())
        };
        assert_eq!(read(&[0xac, 2, 9]), (Ok(300), 1));
        assert_eq!(read(&[0x80]), (Err("cut".to_owned()), 0));
        assert_eq!(read(&[[0xff; 9].as_slice(), &[1]].concat()), (Ok(u64::MAX), 0));
        let is_long = || Err("a number has more than 64 bits".to_owned());
        assert_eq!(read(&[[0xff; 9].as_slice(), &[2]].concat()), (is_long(), 0));
        assert_eq!(read(&[0x80; 11]), (is_long(), 1));
        assert_eq!([0, 1, 2, 3, u64::MAX].map(zigzag), [0, -1, 1, -2, i64::MIN]);
    }
}
