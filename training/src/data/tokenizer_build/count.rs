//! Counts the words, or collects the characters, of a corpus on all cores.

use std::collections::BTreeSet;

use anyhow::Result;
use hearth_model::text::tokenizer::{EncodeOptions, Tokenizer};
use rayon::prelude::*;

use super::WordCounts;
use crate::data::corpus::{BytesRead, FilePiece, ReadOptions, ReadReport, SourceFile, WordSplit, read_in_batches};

/// Counts the words of `files`. Calls `progress` with the number of bytes read.
///
/// # Errors
/// A file cannot be read or is damaged.
pub fn count_words(
    files: &[SourceFile],
    options: &ReadOptions,
    split: WordSplit,
    progress: &mut dyn FnMut(u64),
) -> Result<(WordCounts, ReadReport)> {
    let bytes_read = BytesRead::default();
    let mut all = WordCounts::new(split);
    let report = read_in_batches(files, options, &bytes_read, |batch| {
        let count = |mut counts: WordCounts, part: &FilePiece| {
            counts.add(&part.piece.text);
            counts
        };
        let new = || WordCounts::of_part(split);
        let counts = batch.par_iter().fold(new, count).reduce(new, |mut one, other| {
            one.merge(other);
            one
        });
        all.merge(counts);
        progress(bytes_read.get());
        Ok(())
    })?;
    Ok((all, report))
}

/// The distinct characters of a text, and its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Characters {
    /// The distinct characters.
    pub set: BTreeSet<char>,
    /// Total number of characters.
    pub n_chars: u64,
    /// Total number of bytes.
    pub n_bytes: u64,
}

/// Collects the characters of `files`. Calls `progress` with the number of bytes read.
///
/// # Errors
/// A file cannot be read or is damaged.
pub fn collect_characters(
    files: &[SourceFile],
    options: &ReadOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<(Characters, ReadReport)> {
    let bytes_read = BytesRead::default();
    let mut all = Characters::default();
    let report = read_in_batches(files, options, &bytes_read, |batch| {
        let of_piece = |part: &FilePiece| {
            let text = &part.piece.text;
            let mut set = BTreeSet::new();
            let mut n_chars = 0;
            for character in text.chars() {
                n_chars += 1;
                set.insert(character);
            }
            Characters { set, n_chars, n_bytes: text.len() as u64 }
        };
        let join = |mut one: Characters, other: Characters| {
            one.set.extend(other.set);
            Characters { n_chars: one.n_chars + other.n_chars, n_bytes: one.n_bytes + other.n_bytes, ..one }
        };
        let found = batch.par_iter().map(of_piece).reduce(Characters::default, join);
        all = join(std::mem::take(&mut all), found);
        progress(bytes_read.get());
        Ok(())
    })?;
    Ok((all, report))
}

/// Bytes of text per token, over the counted words.
///
/// # Errors
/// The tokenizer cannot encode a word.
pub fn bytes_per_token(counts: &WordCounts, tokenizer: &Tokenizer) -> Result<f64> {
    let words: Vec<(&str, u64)> = counts.words().collect();
    let (n_bytes, n_tokens) = words
        .par_iter()
        .map(|&(word, count)| {
            let n_tokens = tokenizer.encode(word, EncodeOptions::TEXT)?.len() as u64;
            Ok((word.len() as u64 * count, n_tokens * count))
        })
        .try_reduce(|| (0, 0), |one, other| Ok::<_, anyhow::Error>((one.0 + other.0, one.1 + other.1)))?;
    Ok(n_bytes as f64 / n_tokens.max(1) as f64)
}
