//! JSON: one object per line, or an array of objects.

use std::{
    cell::Cell,
    fmt,
    io::{self, BufRead, Read},
    path::Path,
};

use anyhow::{Context, Result, anyhow};
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::text::{damaged, too_large};

/// The members of an object.
type Members = Map<String, Value>;

/// Reads objects, one in memory at a time: the elements of an array if the text begins with `[`, else the lines. Empty lines
/// are skipped.
pub(super) struct Objects<'a> {
    pub(super) path: &'a Path,
    /// The required form of each object, for messages.
    pub(super) expected: &'a str,
    /// Maximum number of bytes of a line or an element: `MAX_DOCUMENT_BYTES`.
    pub(super) max_bytes: usize,
}

/// Receives each object.
type Each<'a> = &'a mut dyn FnMut(Place<'_>, Members) -> Result<()>;

/// The hint for a line or an element that is too large.
const LARGE_HINT: &str = "cut the text into several lines, or save it as a text file";

impl Objects<'_> {
    /// Passes the objects to `each`, in order.
    ///
    /// # Errors
    /// The text is damaged, or an object is not JSON, not of the expected form, or too large; the message has the file
    /// and the line. Errors of `each`.
    pub(super) fn read(&self, mut reader: impl BufRead, each: Each<'_>) -> Result<()> {
        let start = reader.fill_buf().with_context(|| damaged(self.path, 0))?;
        match start.trim_ascii_start().first() {
            Some(b'[') => self.read_array(reader, each),
            _ => self.read_lines(reader, each),
        }
    }

    fn read_array(&self, reader: impl BufRead, each: Each<'_>) -> Result<()> {
        let Objects { path, expected, max_bytes } = *self;
        let mut stopped = None;
        let mut n_read = 0;
        let left = Cell::new(max_bytes);
        let array = Array { path, each, max_bytes, left: &left, stopped: &mut stopped, n_read: &mut n_read };
        let mut json = serde_json::Deserializer::from_reader(Limited { reader, left: &left });
        let read = json.deserialize_seq(array).and_then(|()| json.end());
        if let Some(error) = stopped {
            return Err(error);
        }
        read.map_err(|error| {
            if left.get() == 0 {
                return too_large(&format!("`{}`, behind element {n_read} of the array,", path.display()), LARGE_HINT);
            }
            if error.is_io() {
                return anyhow::Error::from(error).context(damaged(path, 0));
            }
            anyhow!(
                "`{}`, behind element {n_read} of the array: {error}\nhint: each element must be {expected}",
                path.display()
            )
        })
    }

    fn read_lines(&self, mut reader: impl BufRead, each: Each<'_>) -> Result<()> {
        let Objects { path, expected, max_bytes } = *self;
        let mut line = Vec::new();
        let mut offset = 0;
        for number in 1_u64.. {
            line.clear();
            let mut limited = reader.by_ref().take(max_bytes as u64 + 1);
            let n_bytes = limited.read_until(b'\n', &mut line).with_context(|| damaged(path, offset))?;
            if n_bytes == 0 {
                break;
            }
            let place = Place { path, what: "line", number };
            if n_bytes > max_bytes {
                return Err(too_large(&place.to_string(), LARGE_HINT));
            }
            offset += n_bytes as u64;
            if line.trim_ascii().is_empty() {
                continue;
            }
            // Without the line break: serde would report the end of the line as a second line.
            let found: serde_json::Result<Members> = serde_json::from_slice(line.trim_ascii_end());
            each(place, found.map_err(|error| broken_line(&place, &line, &error, expected))?)?;
        }
        Ok(())
    }
}

/// Whether a text is JSON by its start: an object on the first line, or an array of objects.
pub fn is_json(start: &[u8]) -> bool {
    let start = start.trim_ascii_start();
    if let Some(array) = start.strip_prefix(b"[") {
        return array.trim_ascii_start().starts_with(b"{") && is_object(array.trim_ascii_start());
    }
    let (line, is_whole) = match start.iter().position(|&byte| byte == b'\n') {
        Some(end) => (&start[..end], true),
        None => (start, false),
    };
    match serde_json::from_slice::<Members>(line.trim_ascii_end()) {
        Ok(members) => !members.is_empty(),
        // The line may continue.
        Err(error) => !is_whole && error.is_eof() && is_object(line),
    }
}

/// Whether a text begins like an object with a member.
fn is_object(text: &[u8]) -> bool {
    text.strip_prefix(b"{").is_some_and(|members| members.trim_ascii_start().starts_with(b"\""))
}

/// A reader that fails when an element of an array is too large.
struct Limited<'a, R> {
    reader: R,
    /// Bytes that the current element may still have.
    left: &'a Cell<usize>,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let room = out.len().min(left);
        let n = self.reader.read(&mut out[..room])?;
        self.left.set(left - n);
        Ok(n)
    }
}

/// Passes on each element of an array.
struct Array<'a> {
    path: &'a Path,
    each: Each<'a>,
    max_bytes: usize,
    left: &'a Cell<usize>,
    /// The error that stopped the reading, if it is not in the JSON.
    stopped: &'a mut Option<anyhow::Error>,
    n_read: &'a mut u64,
}

impl<'de> Visitor<'de> for Array<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        while let Some(members) = array.next_element()? {
            *self.n_read += 1;
            self.left.set(self.max_bytes);
            let place = Place { path: self.path, what: "element", number: *self.n_read };
            if let Err(error) = (self.each)(place, members) {
                *self.stopped = Some(error);
                return Err(de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// The place of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    path: &'a Path,
    /// "line" or "element".
    what: &'static str,
    number: u64,
}

impl Place<'_> {
    /// The place in the file, such as "line 3".
    pub(super) fn in_file(&self) -> String {
        format!("{} {}", self.what, self.number)
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, {} {}", self.path.display(), self.what, self.number)
    }
}

fn broken_line(place: &Place<'_>, line: &[u8], error: &serde_json::Error, expected: &str) -> anyhow::Error {
    if std::str::from_utf8(line).is_err() {
        return anyhow!(
            "{place}: it is not UTF-8 text\nhint: convert the file first, for example with `iconv -f LATIN1 -t UTF-8`"
        );
    }
    let what = error.to_string();
    // Line numbers in serde's message refer to this line alone.
    let what = what.replace(" at line 1 column ", " at column ");
    anyhow!("{place}: {what}\nhint: each line must be {expected}; the file may also be one array of them")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn json_is_recognized_by_the_start_of_a_text() {
        for json in ["{\"text\": \"a\"}\n{", " \n[\n {\"text\": 1}]", "{\"text\": \"a long te", "{\"a\": 1}"] {
            assert!(is_json(json.as_bytes()), "{json}");
        }
        for text in ["", "{", "{}", "{a}\n", "[1, 2]", "{\"a\": 1} is JSON\n", "{\"a\": \n", "Hello", "[INST] {"] {
            assert!(!is_json(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn json_line_or_element_above_the_limit_is_rejected_before_it_is_read() {
        // Endless: a line is not read to its end.
        let large = || io::repeat(b'x');
        for start in ["{\"text\": \"", "[{\"text\": \"a\"},\n{\"text\": \""] {
            let reader = io::BufReader::new(start.as_bytes().chain(large()));
            let objects = Objects { path: Path::new("a.jsonl"), expected: "an object", max_bytes: 1000 };
            let error = objects.read(reader, &mut |_, _| Ok(())).unwrap_err().to_string();
            let place = if start.starts_with('[') { "behind element 1" } else { "line 1" };
            assert!(error.contains("a document of more than 256 MiB\nhint: ") && error.contains(place), "{error}");
        }
    }
}
