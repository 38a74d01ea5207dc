//! Classification of texts by linear probes on their embeddings, compared with asking the model for the label.

mod embedder;
mod lbfgs;
mod probe;

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use anyhow::{Result, ensure};
use hearth_model::{
    TokenId,
    decode::sampling::{Purpose, RandomStream},
    text::tokenizer::{EncodeOptions, Tokenizer},
};

pub use embedder::{Embedder, EncodedText};
pub use probe::{Probe, ProbeFit};

use super::jsonl::read_json_records;

/// Labeled texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabeledTexts {
    /// Where each is, for messages.
    pub places: Vec<String>,
    /// The texts.
    pub texts: Vec<String>,
    /// Their labels.
    pub labels: Vec<String>,
}

impl LabeledTexts {
    /// Reads JSON lines with `text` and `label`.
    ///
    /// # Errors
    /// The file cannot be read or is empty, or a record has another form; the message names the line.
    pub fn read(path: &Path) -> Result<Self> {
        let mut read = Self::default();
        for record in read_json_records(path)? {
            let text = record.text("text")?;
            ensure!(!text.trim().is_empty(), "{}: `text` is empty\nhint: correct this line", record.place());
            let label = record.label("label")?;
            ensure!(!label.is_empty(), "{}: `label` is empty\nhint: correct this line", record.place());
            read.texts.push(text.to_owned());
            read.labels.push(label);
            read.places.push(record.place());
        }
        Ok(read)
    }

    /// The different labels, in order.
    pub fn classes(&self) -> Vec<String> {
        self.labels.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }

    /// Splits into two parts, the second with a random `share` of the different texts. Lines with the same text stay together,
    /// so that no text is in both parts. Equal seeds choose the same texts.
    pub fn split(self, share: f64, seed: u64) -> (Self, Self) {
        let random = RandomStream::new(seed, 0);
        // The lines of each text.
        let mut texts: Vec<Vec<usize>> = Vec::new();
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        for (line, text) in self.texts.iter().enumerate() {
            let number = *numbers.entry(text).or_insert(texts.len());
            if number == texts.len() {
                texts.push(Vec::new());
            }
            texts[number].push(line);
        }
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by(|a, b| {
            random.uniform(*a, Purpose::Token).total_cmp(&random.uniform(*b, Purpose::Token)).then(a.cmp(b))
        });
        let n_aside = (share * texts.len() as f64).round() as usize;
        let (aside, rest) = order.split_at(n_aside.min(order.len()));
        let lines = |numbers: &[usize]| numbers.iter().flat_map(|&number| texts[number].clone()).collect();
        (self.chosen(lines(rest)), self.chosen(lines(aside)))
    }

    /// The texts at these places, in the order of the file.
    fn chosen(&self, mut chosen: Vec<usize>) -> Self {
        chosen.sort_unstable();
        let of = |values: &[String]| chosen.iter().map(|&at| values[at].clone()).collect();
        Self { places: of(&self.places), texts: of(&self.texts), labels: of(&self.labels) }
    }

    /// The class of each text.
    ///
    /// # Errors
    /// A label is not in `classes`; the message names the line.
    pub fn class_indices(&self, classes: &[String]) -> Result<Vec<usize>> {
        let index = |(label, place): (&String, &String)| {
            classes.iter().position(|class| class == label).ok_or_else(|| {
                anyhow::anyhow!(
                    "{place}: `label` is `{label}`, which no text to train on has, only `{}`\nhint: correct this line, or add \
                     texts with this label",
                    classes.join("`, `")
                )
            })
        };
        self.labels.iter().zip(&self.places).map(index).collect()
    }

    /// The tokens of each text, as `/v1/embeddings` encodes them.
    ///
    /// # Errors
    /// A text cannot be encoded, or is longer than the model's context; the message names the line.
    pub fn encode(&self, tokenizer: &Tokenizer, max_seq_len: usize) -> Result<Vec<Vec<TokenId>>> {
        let encode = |(text, place): (&String, &String)| {
            let ids = tokenizer.encode(text, EncodeOptions::PROMPT)?;
            ensure!(
                (1..=max_seq_len).contains(&ids.len()),
                "{place}: the text has {} tokens, but must have 1 to {max_seq_len}, the model's context\nhint: shorten it, or leave \
                 it out",
                ids.len()
            );
            Ok(ids)
        };
        self.texts.iter().zip(&self.places).map(encode).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classify_split_has_every_text_once_and_depends_on_the_seed() {
        let names: Vec<String> = (0..50).map(|at| at.to_string()).collect();
        let all = LabeledTexts { places: names.clone(), texts: names.clone(), labels: names.clone() };
        let (train, test) = all.clone().split(0.2, 1);
        assert_eq!((train.texts.len(), test.texts.len()), (40, 10));
        let mut together = [train.texts, test.texts.clone()].concat();
        together.sort_by_key(|name| name.parse::<usize>().unwrap_or_default());
        assert_eq!(together, names);
        assert_eq!(all.clone().split(0.2, 1).1, test);
        assert_ne!(all.split(0.2, 2).1, test);
    }

    #[test]
    fn classify_split_keeps_equal_texts_on_one_side() {
        let texts: Vec<String> = (0..90).map(|at| (at % 20).to_string()).collect();
        let places: Vec<String> = (0..90).map(|at| at.to_string()).collect();
        let all = LabeledTexts { places, labels: texts.clone(), texts };
        let (train, test) = all.split(0.25, 3);
        let different = |texts: &LabeledTexts| texts.texts.iter().cloned().collect::<BTreeSet<_>>();
        assert_eq!((different(&train).len(), different(&test).len()), (15, 5));
        assert!(different(&train).is_disjoint(&different(&test)));
        assert_eq!(train.texts.len() + test.texts.len(), 90);
        let places: Vec<usize> = test.places.iter().map(|place| place.parse().unwrap_or_default()).collect();
        assert!(
            places.is_sorted() && places.iter().zip(&test.texts).all(|(place, text)| (place % 20).to_string() == *text)
        );
    }
}
