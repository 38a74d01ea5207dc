//! Tables as text, CSV and TSV: a row of names, then rows of values. Values may be in double quotes, and may then
//! contain separators, line breaks, and doubled quotes (RFC 4180).

use std::{
    io::{BufRead, Read},
    path::Path,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value};

use super::text::{MAX_DOCUMENT_BYTES, damaged, too_large};

/// Calls `sink` with the place and the values of each row, by the names of the columns. Empty values are left out.
///
/// # Errors
/// The file is damaged or not UTF-8, has no row of names, or a row with another number of values. Errors of `sink`.
pub(super) fn read_table(
    path: &Path,
    separator: u8,
    reader: impl BufRead,
    sink: &mut dyn FnMut(String, Map<String, Value>) -> Result<()>,
) -> Result<()> {
    let mut rows = Rows { path, separator, reader, offset: 0, n_lines: 0 };
    let Some((_, names)) = rows.next()? else { return Ok(()) };
    check_names(path, &names)?;
    while let Some((line, values)) = rows.next()? {
        ensure!(
            values.len() == names.len(),
            "`{}`, line {line}: the row has {} values, but there are {} columns\nhint: put values with separators or line \
             breaks in double quotes",
            path.display(),
            values.len(),
            names.len()
        );
        let cells = names.iter().zip(values).filter(|(_, value)| !value.is_empty());
        sink(format!("line {line}"), cells.map(|(name, value)| (name.clone(), value.into())).collect())?;
    }
    Ok(())
}

fn check_names(path: &Path, names: &[String]) -> Result<()> {
    for (index, name) in names.iter().enumerate() {
        let is_wrong = name.trim().is_empty() && names.len() > 1 && index > 0;
        if is_wrong || names[..index].contains(name) {
            bail!(
                "`{}`: the first row must have the names of the columns, but value {} is `{name}`, which is empty or there \
                 twice\nhint: add a row such as `prompt,completion`",
                path.display(),
                index + 1
            );
        }
    }
    Ok(())
}

struct Rows<'a, R> {
    path: &'a Path,
    separator: u8,
    reader: R,
    /// Bytes read.
    offset: u64,
    /// Lines read.
    n_lines: u64,
}

/// The reader's position within a value.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Start,
    Plain,
    Quoted,
    /// Behind a quote within a quoted value: its end, or the first of two.
    Quote,
}

impl<R: BufRead> Rows<'_, R> {
    /// The next row that is not empty, and the line at which it begins.
    fn next(&mut self) -> Result<Option<(u64, Vec<String>)>> {
        let mut first = self.n_lines + 1;
        let (mut values, mut value, mut state) = (Vec::new(), Vec::new(), State::Start);
        let mut n_row = 0;
        loop {
            let mut line = Vec::new();
            let mut limited = self.reader.by_ref().take(MAX_DOCUMENT_BYTES as u64 + 1);
            n_row += limited.read_until(b'\n', &mut line).with_context(|| damaged(self.path, self.offset))?;
            self.offset += line.len() as u64;
            if n_row > MAX_DOCUMENT_BYTES {
                let place = format!("`{}`, line {first}", self.path.display());
                return Err(too_large(&place, "check the quotes, or cut the text into several rows"));
            }
            if line.is_empty() {
                ensure!(
                    state != State::Quoted,
                    "`{}`, line {first}: a quote is not closed in this row\nhint: double the quotes within a value",
                    self.path.display()
                );
                return Ok(None);
            }
            self.n_lines += 1;
            if self.n_lines == 1 && self.separator == b',' && !line.contains(&b',') && line.contains(&b';') {
                // As spreadsheets write it where the comma is the decimal point.
                self.separator = b';';
            }
            let is_ended = line.ends_with(b"\n");
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            if text.is_empty() && state == State::Start && values.is_empty() {
                first = self.n_lines + 1;
                continue;
            }
            for &byte in text {
                state = match (state, byte) {
                    (State::Start, b'"') => State::Quoted,
                    (State::Quoted, b'"') => State::Quote,
                    (State::Quote, b'"') => {
                        value.push(b'"');
                        State::Quoted
                    }
                    (State::Quoted, _) => {
                        value.push(byte);
                        State::Quoted
                    }
                    (_, _) if byte == self.separator => {
                        values.push(self.text(std::mem::take(&mut value))?);
                        State::Start
                    }
                    (_, _) => {
                        value.push(byte);
                        State::Plain
                    }
                };
            }
            if state != State::Quoted {
                values.push(self.text(value)?);
                return Ok(Some((first, values)));
            }
            if is_ended {
                value.push(b'\n');
            }
        }
    }

    fn text(&self, value: Vec<u8>) -> Result<String> {
        String::from_utf8(value).map_err(|_| {
            anyhow!(
                "`{}`, line {}: it is not UTF-8 text\nhint: convert the file first, for example with `iconv -f LATIN1 -t UTF-8`",
                self.path.display(),
                self.n_lines
            )
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    fn rows(text: &str, separator: u8) -> Result<Vec<Value>> {
        let mut rows = Vec::new();
        read_table(Path::new("a.csv"), separator, text.as_bytes(), &mut |place, members| {
            rows.push(json!([place, members]));
            Ok(())
        })?;
        Ok(rows)
    }

    #[test]
    fn rows_of_csv_and_tsv_are_read_with_quotes_and_line_breaks() {
        let text = "a,b\r\n1,\"x, \"\"y\"\"\r\nz\"\r\n\r\n,\"\"\n5\" pipe,last";
        let expected = [
            json!(["line 2", { "a": "1", "b": "x, \"y\"\nz" }]),
            json!(["line 5", {}]),
            json!(["line 6", { "a": "5\" pipe", "b": "last" }]),
        ];
        assert_eq!(rows(text, b',').unwrap(), expected);
        assert_eq!(rows("a\tb\n1,2\t3\n", b'\t').unwrap(), [json!(["line 2", { "a": "1,2", "b": "3" }])]);
        assert_eq!(rows("a;b\n1;2,5\n", b',').unwrap(), [json!(["line 2", { "a": "1", "b": "2,5" }])]);
        assert!(rows("", b',').unwrap().is_empty() && rows("a,b\n", b',').unwrap().is_empty());
    }

    #[test]
    fn rows_with_missing_values_or_open_quotes_are_rejected_by_line() {
        for (text, message) in [
            ("a,b\n1,2\n3\n", "line 3: the row has 1 values, but there are 2 columns"),
            ("a,b\n1,\"2\n3,4\n", "line 2: a quote is not closed"),
            ("a,a\n1,2\n", "value 2 is `a`"),
        ] {
            let error = rows(text, b',').unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("\nhint: ") && error.contains("a.csv"), "{error}");
        }
    }
}
