//! Files as streams of bytes, decompressed as they are read.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result, anyhow, bail};
use hearth_model::files::regular_file;

use super::{
    decode::{GzipReader, Utf16Reader, is_large_window, zstd_reader},
    text::{damaged, has_nul},
};

/// The byte order mark that some editors write before UTF-8 text. It is not part of the text.
const BYTE_ORDER_MARK: &str = "\u{feff}";
/// The byte order marks of UTF-16 text, little-endian and big-endian.
const UTF16_MARKS: [[u8; 2]; 2] = [[0xff, 0xfe], [0xfe, 0xff]];
/// The byte order mark of little-endian UTF-32 text.
const UTF32_MARK: [u8; 4] = [0xff, 0xfe, 0, 0];

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const XZ_MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const BZIP2_MAGIC: [u8; 3] = *b"BZh";

/// Bytes read from disk so far, before decompression: the measure of progress.
#[derive(Clone, Debug, Default)]
pub struct BytesRead(Arc<AtomicU64>);

impl BytesRead {
    /// The number of bytes.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
}

/// Opens the regular file at `path` for reading.
///
/// # Errors
/// The file is missing, or is a folder, a pipe or a device.
pub(super) fn open_file(path: &Path) -> Result<File> {
    regular_file::open(path).map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "\nhint: give a file that is on this machine",
        io::ErrorKind::PermissionDenied => "\nhint: give a file that this user may read, in a folder that it may open",
        io::ErrorKind::InvalidInput => "\nhint: give a file; write the output of another program to one first",
        _ => "",
    };
    anyhow::Error::from(error).context(format!("cannot read `{}`{hint}", path.display()))
}

/// The text of the regular file at `path`, without a byte order mark. UTF-16 is decoded if it has one.
///
/// # Errors
/// The file cannot be read, or is not text: the message has the byte, its offset and its line.
pub fn read_to_string(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    open_file(path)?.read_to_end(&mut bytes).map_err(|error| unreadable(path, error))?;
    if let Some(mark) = UTF16_MARKS.iter().find(|mark| bytes.starts_with(*mark) && !bytes.starts_with(&UTF32_MARK)) {
        let mut text = String::new();
        let mut reader = Utf16Reader::new(&bytes[mark.len()..], *mark == UTF16_MARKS[1]);
        reader.read_to_string(&mut text).with_context(|| damaged(path, 0))?;
        return Ok(text);
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let (bytes, offset) = (error.as_bytes(), error.utf8_error().valid_up_to());
        let line = 1 + bytes[..offset].iter().filter(|&&byte| byte == b'\n').count();
        let hint = match bytes.starts_with(&GZIP_MAGIC) || bytes.starts_with(&ZSTD_MAGIC) {
            true => "decompress it first; `prepare` reads compressed files too",
            false if bytes.starts_with(&UTF32_MARK) => "convert it first, with `iconv -f UTF-32 -t UTF-8`",
            false => "convert it first, for example with `iconv -f LATIN1 -t UTF-8`",
        };
        let byte = bytes.get(offset).copied().unwrap_or_default();
        anyhow!(
            "`{}` is not UTF-8 text: byte 0x{byte:02x} at offset {offset}, in line {line}\nhint: {hint}",
            path.display()
        )
    })?;
    if let Some(at) = text.find('\0') {
        return Err(has_nul(path, at as u64));
    }
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(text)
}

/// The bytes of the text file at `path`, decompressed if it begins like gzip or zstd, without a byte order mark;
/// converted to UTF-8 if the mark is UTF-16's.
///
/// # Errors
/// The file cannot be opened, is damaged at its start or uses another compression. Other damage is reported while reading.
pub(super) fn open_stream(path: &Path, bytes_read: &BytesRead) -> Result<Box<dyn BufRead + Send>> {
    let counted = Counted { file: open_file(path)?, bytes_read: bytes_read.clone() };
    let mut reader = BufReader::with_capacity(1 << 16, counted);
    let start = reader.fill_buf().with_context(|| format!("cannot read `{}`", path.display()))?;
    if start.starts_with(&GZIP_MAGIC) {
        return without_mark(path, BufReader::with_capacity(1 << 16, GzipReader::new(reader)));
    }
    if start.starts_with(&ZSTD_MAGIC) {
        let decoder = zstd_reader(reader).with_context(|| format!("cannot read `{}`", path.display()))?;
        return without_mark(path, BufReader::with_capacity(1 << 16, decoder));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let named = |extension: &str| name.ends_with(extension);
    let found = match start {
        _ if start.starts_with(&XZ_MAGIC) => Some("xz"),
        _ if start.starts_with(&BZIP2_MAGIC) && named(".bz2") => Some("bzip2"),
        _ => None,
    };
    if let Some(found) = found {
        bail!(
            "`{}` is compressed with {found}\nhint: decompress it first, or compress it with gzip or zstd",
            path.display()
        );
    }
    let expected = match () {
        () if named(".gz") => Some("gzip"),
        () if named(".zst") || named(".zstd") => Some("zstd"),
        () => None,
    };
    match expected {
        Some(expected) => bail!(
            "`{}` does not match its extension: it does not start like a {expected} file\nhint: the file may be damaged, or \
             not compressed: then rename it",
            path.display()
        ),
        None => without_mark(path, reader),
    }
}

fn without_mark(path: &Path, mut reader: impl BufRead + Send + 'static) -> Result<Box<dyn BufRead + Send>> {
    let start = reader.fill_buf().map_err(|error| match is_large_window(&error) {
        true => anyhow!(
            "cannot decompress `{}`: zstd's window is larger than 2 GiB\nhint: decompress it first, or compress it without `--long`",
            path.display()
        ),
        false => anyhow::Error::from(error).context(damaged(path, 0)),
    })?;
    if start.starts_with(&UTF32_MARK) {
        bail!("`{}` is UTF-32, not UTF-8\nhint: convert it first, with `iconv -f UTF-32 -t UTF-8`", path.display());
    }
    if let Some(mark) = UTF16_MARKS.iter().find(|mark| start.starts_with(*mark)) {
        reader.consume(mark.len());
        let decoded = Utf16Reader::new(reader, *mark == UTF16_MARKS[1]);
        return Ok(Box::new(BufReader::with_capacity(1 << 16, decoded)));
    }
    if start.starts_with(BYTE_ORDER_MARK.as_bytes()) {
        reader.consume(BYTE_ORDER_MARK.len());
    }
    Ok(Box::new(reader))
}

/// Counts the bytes that are read.
struct Counted {
    file: File,
    bytes_read: BytesRead,
}

impl Read for Counted {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(out)?;
        self.bytes_read.add(n as u64);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::{fs, io::Write};

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let mut found = Vec::new();
        let bytes_read = BytesRead::default();
        open_stream(&path, &bytes_read)?.read_to_end(&mut found)?;
        assert_eq!(bytes_read.get(), bytes.len() as u64);
        Ok(found)
    }

    #[test]
    fn gzip_and_zstd_files_of_several_members_are_decompressed() {
        let (one, two) = (b"first part\n".repeat(20_000), b"second part\n".repeat(30_000));
        let both = [one.clone(), two.clone()].concat();
        assert_eq!(read("plain", &both).unwrap(), both);
        assert_eq!(read("a.gz", &[gzip(&one), gzip(&two)].concat()).unwrap(), both);
        // Some programs pad files with zeros; other bytes after the last member are damage.
        assert_eq!(read("a.gz", &[gzip(&one), gzip(&two), vec![0; 100_000]].concat()).unwrap(), both);
        assert!(read("a.gz", &[gzip(&one), vec![0; 10], b"x".to_vec()].concat()).is_err());
        assert!(read("a.gz", &[gzip(&one), b"x".to_vec()].concat()).is_err());
        // A skippable frame of 3 bytes in between.
        let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
        assert_eq!(read("a.zst", &[zstd(&one), skippable, zstd(b""), zstd(&two)].concat()).unwrap(), both);
        assert_eq!(read("nothing", b"").unwrap(), b"");
    }

    #[test]
    fn read_to_string_error_names_the_line_that_is_not_utf8() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("latin1.txt");
        fs::write(&path, b"a\nb\ncaf\xe9\n").unwrap();
        let error = read_to_string(&path).unwrap_err().to_string();
        assert!(
            error.contains("latin1.txt` is not UTF-8") && error.contains(", in line 3\n") && error.contains("\nhint: "),
            "{error}"
        );
        fs::write(&path, "a\ncaf\u{e9}\n").unwrap();
        assert_eq!(read_to_string(&path).unwrap(), "a\ncaf\u{e9}\n");
    }

    #[test]
    fn open_stream_strips_a_leading_byte_order_mark() {
        let marked = "\u{feff}a\u{feff}\n".as_bytes();
        for (name, bytes) in [("plain", marked.to_vec()), ("a.gz", gzip(marked)), ("a.zst", zstd(marked))] {
            assert_eq!(read(name, &bytes).unwrap(), "a\u{feff}\n".as_bytes(), "{name}");
        }
        assert_eq!(read("mark", BYTE_ORDER_MARK.as_bytes()).unwrap(), b"");
    }

    #[test]
    fn zstd_with_a_window_of_256_mib_is_decompressed_and_of_4_gib_rejected() {
        // Magic; a descriptor without content size; the window's exponent; a raw block, the last, of two bytes.
        let frame = |exponent: u8| [&ZSTD_MAGIC[..], &[0, (exponent - 10) << 3], &[0b1_0001, 0, 0], b"hi"].concat();
        assert_eq!(read("a.zst", &frame(28)).unwrap(), b"hi");
        let error = format!("{:#}", read("a.zst", &frame(32)).unwrap_err());
        assert!(error.contains("window is larger than 2 GiB") && error.contains("\nhint: "), "{error}");
    }

    #[test]
    fn utf16_with_a_byte_order_mark_is_read_as_utf8() {
        let text = "caf\u{e9} \u{1f600}\n".repeat(9_000);
        let encode = |mark: &str| format!("{mark}{text}").encode_utf16().collect::<Vec<u16>>();
        let little: Vec<u8> = encode("\u{feff}").iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let big: Vec<u8> = encode("\u{feff}").iter().flat_map(|unit| unit.to_be_bytes()).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        for bytes in [&little, &big] {
            assert!(read("a.txt", bytes).unwrap() == text.as_bytes());
            assert!(read("a.txt.gz", &gzip(bytes)).unwrap() == text.as_bytes());
            fs::write(&path, bytes).unwrap();
            assert!(read_to_string(&path).unwrap() == text);
            assert!(read("a.txt", &bytes[..bytes.len() - 1]).is_err(), "half a unit");
        }
        // Without a mark, it is UTF-8 with a NUL after each letter.
        fs::write(&path, b"h\0i\0").unwrap();
        let error = read_to_string(&path).unwrap_err().to_string();
        assert!(error.contains("NUL character at offset 1") && error.contains("iconv -f UTF-16LE -t UTF-8"), "{error}");
        let error = read("a.txt", b"\xff\xfe\0\0h\0\0\0").unwrap_err().to_string();
        assert!(error.contains("iconv -f UTF-32 -t UTF-8"), "{error}");
    }

    #[test]
    fn truncated_corrupt_and_unsupported_compressed_files_are_rejected() {
        let text: Vec<u8> = (0..200_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        for (name, bytes) in [("a.gz", gzip(&text)), ("a.zst", zstd(&text))] {
            for n in [20, bytes.len() / 2, bytes.len() - 1] {
                assert!(read(name, &bytes[..n]).is_err(), "{name} cut at {n}");
            }
            let mut damaged = bytes.clone();
            damaged[bytes.len() / 2] ^= 1;
            assert!(read(name, &damaged).is_err(), "{name}");
        }
        for (name, bytes) in
            [("a.gz", &b"plain"[..]), ("a.zst", b"plain"), ("a", b"\xfd7zXZ\0..."), ("a.bz2", b"BZh9...")]
        {
            let error = read(name, bytes).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("\nhint: "), "{error}");
        }
    }

    #[test]
    fn text_file_error_names_the_offset_of_an_invalid_utf8_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("latin1.txt");
        fs::write(&path, b"caf\xe9 noir").unwrap();
        let error = read_to_string(&path).unwrap_err().to_string();
        assert!(error.contains("0xe9 at offset 3") && error.contains("latin1.txt"), "{error}");
        fs::write(&path, b"\x28\xb5\x2f\xfd").unwrap();
        assert!(read_to_string(&path).unwrap_err().to_string().contains("\nhint: decompress it first"));
    }

    #[test]
    fn text_file_is_read_without_its_byte_order_mark() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("windows.txt");
        fs::write(&path, "\u{feff}caf\u{e9}").unwrap();
        assert_eq!(read_to_string(&path).unwrap(), "caf\u{e9}");
    }

    #[test]
    fn missing_and_non_regular_text_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let error = |path: &Path| format!("{:#}", read_to_string(path).unwrap_err());
        let missing = error(&dir.path().join("nothing.txt"));
        assert!(missing.contains("nothing.txt`\nhint: give a file that is on this machine"), "{missing}");
        let folder = error(dir.path());
        assert!(folder.contains("\nhint: give a file; ") && folder.contains("it is a folder"), "{folder}");
        #[cfg(unix)]
        {
            let pipe = dir.path().join("pipe.txt");
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            let error = error(&pipe);
            assert!(error.contains("pipe.txt") && error.contains("it is not a regular file"), "{error}");
        }
    }
}
