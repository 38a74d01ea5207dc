//! Streams that are decoded as they are read: gzip, zstd, and UTF-16.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// Logarithm of the largest window of zstd that is decoded: the window of `--long=31`, which needs as much memory.
const MAX_WINDOW_LOG: u32 = 31;

/// Decompresses consecutive gzip members. Zeros after the last member are ignored: tapes and some programs pad files
/// with them.
pub(super) struct GzipReader<R> {
    /// `None` after the last member.
    decoder: Option<GzDecoder<R>>,
}

impl<R: BufRead> GzipReader<R> {
    pub(super) fn new(source: R) -> GzipReader<R> {
        GzipReader { decoder: Some(GzDecoder::new(source)) }
    }
}

impl<R: BufRead> Read for GzipReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        while let Some(decoder) = &mut self.decoder {
            let n = decoder.read(out)?;
            if n > 0 {
                return Ok(n);
            }
            let Some(decoder) = self.decoder.take() else { break };
            let mut source = decoder.into_inner();
            let mut n_zeros = 0;
            let has_more = loop {
                let rest = source.fill_buf()?;
                match rest.iter().position(|&byte| byte != 0) {
                    Some(0) if n_zeros == 0 => break true,
                    Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "there is data behind zeros")),
                    None if rest.is_empty() => break false,
                    None => {
                        n_zeros = rest.len();
                        source.consume(n_zeros);
                    }
                }
            };
            self.decoder = has_more.then(|| GzDecoder::new(source));
        }
        Ok(0)
    }
}

/// Decompresses consecutive zstd frames.
///
/// # Errors
/// There is no memory for the decoder.
pub(super) fn zstd_reader<R: BufRead>(source: R) -> io::Result<zstd::Decoder<'static, R>> {
    let mut decoder = zstd::Decoder::with_buffer(source)?;
    decoder.window_log_max(MAX_WINDOW_LOG)?;
    Ok(decoder)
}

/// Whether a zstd frame has a window above the limit: only the library's message shows it.
pub(super) fn is_large_window(error: &io::Error) -> bool {
    error.to_string().contains("requires too much memory")
}

/// Turns UTF-16 into UTF-8.
pub(super) struct Utf16Reader<R> {
    source: R,
    is_big_endian: bool,
    /// Bytes and units that are read, but not decoded: less than a character.
    bytes: Vec<u8>,
    units: Vec<u16>,
    /// Bytes of UTF-8 that are not passed on.
    decoded: io::Cursor<Vec<u8>>,
}

impl<R: Read> Utf16Reader<R> {
    /// `source` starts after its byte order mark.
    pub(super) fn new(source: R, is_big_endian: bool) -> Utf16Reader<R> {
        Utf16Reader { source, is_big_endian, bytes: Vec::new(), units: Vec::new(), decoded: io::Cursor::default() }
    }

    /// Decodes the next block; false at the end.
    fn decode(&mut self) -> io::Result<bool> {
        let mut block = [0; 1 << 14];
        let n = self.source.read(&mut block)?;
        self.bytes.extend_from_slice(&block[..n]);
        let (pairs, rest) = self.bytes.as_chunks();
        let number = if self.is_big_endian { u16::from_be_bytes } else { u16::from_le_bytes };
        self.units.extend(pairs.iter().map(|&pair| number(pair)));
        self.bytes = rest.to_vec();
        // The first half of a pair waits for the second.
        let is_open = self.units.last().is_some_and(|unit| (0xd800..0xdc00).contains(unit)) && n > 0;
        let n_whole = self.units.len() - usize::from(is_open);
        let text: Result<String, _> = char::decode_utf16(self.units.drain(..n_whole)).collect();
        if n == 0 && !self.bytes.is_empty() || text.is_err() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a character of its UTF-16 is incomplete"));
        }
        self.decoded = io::Cursor::new(text.unwrap_or_default().into_bytes());
        Ok(n > 0)
    }
}

impl<R: Read> Read for Utf16Reader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.decoded.read(out)?;
            if n > 0 || out.is_empty() || !self.decode()? {
                return Ok(n);
            }
        }
    }
}
