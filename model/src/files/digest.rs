//! SHA-256 digests: they identify texts, data and adapters, and verify files.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::Path,
};

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::{Error, Result};

/// A SHA-256 digest, formatted as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// Computes a digest incrementally.
#[derive(Clone)]
pub struct Digester(Context);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        let mut digester = Digester::new();
        digester.update(bytes);
        digester.finish()
    }

    /// The digest of the file at `path`.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read.
    pub fn of_file(path: &Path) -> Result<Digest> {
        let mut digester = Digester::new();
        let read = File::open(path).and_then(|file| read_chunks(file, |chunk| digester.update(chunk)));
        read.map_err(Error::io("read", path))?;
        Ok(digester.finish())
    }

    /// The first 8 digits, for messages.
    pub fn short(&self) -> String {
        self.prefix(8)
    }

    /// The first `n_digits` of the 64 digits.
    pub fn prefix(&self, n_digits: usize) -> String {
        self.to_string().chars().take(n_digits).collect()
    }

    /// The first 8 bytes as a number, for hashing.
    pub fn to_u64(self) -> u64 {
        let Digest([a, b, c, d, e, f, g, h, ..]) = self;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl Digester {
    /// A digest without input so far.
    #[expect(clippy::new_without_default, reason = "a digest of nothing is no sensible default")]
    pub fn new() -> Digester {
        Digester(Context::new(&SHA256))
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all added bytes.
    pub fn finish(self) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.finish().as_ref());
        Digest(bytes)
    }
}

impl fmt::Debug for Digester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digester")
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text)
            .ok_or_else(|| de::Error::custom(format!("`{text}` is not a SHA-256 digest of 64 hexadecimal digits")))
    }
}

/// Passes the contents of `file` to `visit`, chunk by chunk.
pub(crate) fn read_chunks(mut file: File, mut visit: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            n => visit(&buffer[..n]),
        }
    }
}

fn parse(text: &str) -> Option<Digest> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'))?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(Digest(bytes))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard_and_read_back() {
        // FIPS 180-2, appendix B.1.
        let digest = Digest::of(b"abc");
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), hex);
        assert_eq!(serde_json::from_str::<Digest>(&serde_json::to_string(&digest).unwrap()).unwrap(), digest);
        assert_eq!((digest.short(), digest.prefix(10)), ("ba7816bf".to_owned(), "ba7816bf8f".to_owned()));
        for wrong in ["", "ba78", &hex.replace('b', "x"), &hex.replace("ba", "+a")] {
            assert!(serde_json::from_str::<Digest>(&format!("\"{wrong}\"")).is_err(), "{wrong}");
        }
    }
}
