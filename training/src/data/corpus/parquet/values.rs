//! The values of a page, in all encodings of text.

use super::{
    Problem,
    bits::{read_deltas, read_hybrid},
};

/// Maximum number of bytes of text in a page: more than writers use, and small enough for memory. A limit is needed because
/// with DELTA_BYTE_ARRAY a few bytes can repeat the whole text before them.
const MAX_PAGE_TEXT: usize = 1 << 30;

/// Concatenated texts.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
    /// The end of each text.
    ends: Vec<usize>,
}

impl Texts {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start..end)
    }

    fn push(&mut self, parts: [&[u8]; 2]) {
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.ends.push(self.bytes.len());
    }

    /// `n` texts, each after its length in 4 bytes (PLAIN).
    pub(super) fn plain(mut bytes: &[u8], n: usize) -> Result<Texts, Problem> {
        let mut texts = Texts::default();
        for _ in 0..n {
            let cut = || "a page ends inside its texts".to_owned();
            let (length, rest) = bytes.split_first_chunk().ok_or_else(cut)?;
            let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(cut)?;
            texts.push([text, &[]]);
            bytes = rest;
        }
        Ok(texts)
    }

    /// At most `n` lengths, then texts (DELTA_LENGTH_BYTE_ARRAY).
    fn delta_length(mut bytes: &[u8], n: usize) -> Result<Texts, Problem> {
        let mut texts = Texts::default();
        for length in read_deltas(&mut bytes, n)? {
            let (text, rest) = split(bytes, length)?;
            texts.push([text, &[]]);
            bytes = rest;
        }
        Ok(texts)
    }

    /// At most `n` lengths of the prefix shared with the previous text, then the remaining suffixes (DELTA_BYTE_ARRAY).
    fn delta(mut bytes: &[u8], n: usize) -> Result<Texts, Problem> {
        let prefixes = read_deltas(&mut bytes, n)?;
        let suffixes = Texts::delta_length(bytes, n)?;
        if prefixes.len() != suffixes.len() {
            return Err(format!("a page has {} prefixes and {} suffixes of texts", prefixes.len(), suffixes.len()));
        }
        let mut texts = Texts::default();
        for (index, length) in prefixes.into_iter().enumerate() {
            let before = index.checked_sub(1).and_then(|before| texts.get(before)).unwrap_or_default();
            let prefix = split(before, length)?.0.to_vec();
            texts.push([&prefix, suffixes.get(index).unwrap_or_default()]);
            if texts.bytes.len() > MAX_PAGE_TEXT {
                return Err(format!("the texts of a page have over {MAX_PAGE_TEXT} bytes"));
            }
        }
        Ok(texts)
    }
}

fn split(bytes: &[u8], length: i64) -> Result<(&[u8], &[u8]), Problem> {
    let length = usize::try_from(length).ok();
    length.and_then(|length| bytes.split_at_checked(length)).ok_or_else(|| "a page ends inside its texts".to_owned())
}

/// The values of a page: texts, or indices into the dictionary.
#[derive(Clone, Debug)]
pub(super) enum Values {
    Texts(Texts),
    Indices(Vec<u32>),
}

impl Values {
    /// Decodes `n` values in the given encoding.
    pub(super) fn decode(encoding: i64, bytes: &[u8], n: usize) -> Result<Values, Problem> {
        let values = match encoding {
            0 => Values::Texts(Texts::plain(bytes, n)?),
            2 | 8 => {
                let Some((&width, packed)) = bytes.split_first() else {
                    return match n {
                        0 => Ok(Values::Indices(Vec::new())),
                        _ => Err("a page has no indices".to_owned()),
                    };
                };
                Values::Indices(read_hybrid(packed, width.into(), n)?)
            }
            6 => Values::Texts(Texts::delta_length(bytes, n)?),
            7 => Values::Texts(Texts::delta(bytes, n)?),
            other => {
                return Err(format!(
                    "a page has the encoding {other}\nhint: write the file again with the encoding PLAIN"
                ));
            }
        };
        let found = match &values {
            Values::Texts(texts) => texts.len(),
            Values::Indices(indices) => indices.len(),
        };
        if found != n {
            return Err(format!("a page has {found} values, expected {n}"));
        }
        Ok(values)
    }

    /// The text of the value at `index`.
    pub(super) fn get<'a>(&'a self, index: usize, dictionary: &'a Texts) -> Result<&'a [u8], Problem> {
        let text = match self {
            Values::Texts(texts) => texts.get(index),
            Values::Indices(indices) => indices.get(index).and_then(|&at| dictionary.get(at as usize)),
        };
        text.ok_or_else(|| format!("a value is not among the {} of the dictionary", dictionary.len()))
    }
}
