//! The input of metrics, and the signature of a score.

use anyhow::{Result, bail, ensure};
use serde::Serialize;

/// A hypothesis and its references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The text to score.
    pub hypothesis: String,
    /// The texts that it should be like, at least one.
    pub references: Vec<String>,
}

/// The segments that a score is of, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    segments: Vec<Segment>,
}

/// Whether upper and lower case differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Case {
    /// Case matters.
    #[default]
    Mixed,
    /// All text is put into lower case first.
    Lower,
}

/// A score with the signature that documents how it was computed, as in sacrebleu.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SignedScore {
    /// The metric's name, such as `chrF2++`.
    pub name: String,
    /// From 0 to 100; of TER, edits per 100 words of the reference.
    pub score: f64,
    /// The settings, such as `nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:hearth-0.1.0`.
    pub signature: String,
    /// The details of the score, as sacrebleu shows them; empty if it shows none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl Corpus {
    /// A corpus of these segments.
    ///
    /// # Errors
    /// There is no segment, or one has no reference.
    pub fn new(segments: Vec<Segment>) -> Result<Self> {
        ensure!(!segments.is_empty(), "there is nothing to score: no segments");
        if let Some(at) = segments.iter().position(|segment| segment.references.is_empty()) {
            bail!("segment {} has no reference", at + 1);
        }
        Ok(Self { segments })
    }

    /// The segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The number of references for signatures: `var` if it differs between segments.
    fn n_references(&self) -> String {
        let mut counts = self.segments.iter().map(|segment| segment.references.len());
        let first = counts.next().unwrap_or_default();
        if counts.all(|count| count == first) { first.to_string() } else { "var".to_owned() }
    }

    /// A signature of these settings; the version names Hearth, since it computed the score.
    pub(super) fn signature(&self, settings: &[(&str, &str)]) -> String {
        let settings: String = settings.iter().map(|(key, value)| format!("{key}:{value}|")).collect();
        format!("nrefs:{}|{settings}version:hearth-{}", self.n_references(), env!("CARGO_PKG_VERSION"))
    }
}

impl Case {
    /// `text` in this case.
    pub(super) fn apply(self, text: &str) -> String {
        match self {
            Case::Mixed => text.to_owned(),
            Case::Lower => text.to_lowercase(),
        }
    }

    /// Its name in signatures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Case::Mixed => "mixed",
            Case::Lower => "lc",
        }
    }
}
