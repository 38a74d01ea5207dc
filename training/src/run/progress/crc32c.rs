//! CRC-32C (Castagnoli), as used in TensorBoard's files.

/// The polynomial, bit-reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut value, mut bit) = (byte as u32, 0);
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

/// The checksum of `bytes`.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_matches_published_test_vectors() {
        // The CRC catalogue's check value, then 32 zeros and 32 ones of RFC 3720, B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
