//! Documents that are trained whole: rows hold one or several, and attention does not cross from one to the next.

use std::ops::Range;

use anyhow::{Result, ensure};
use hearth_model::{TokenId, text::tokenizer::Tokenizer};

use super::{Batch, in_batches};
use crate::data::{examples::pack, shard::Tokens};

/// Documents, and the rows that they are placed in.
#[derive(Clone, Debug)]
pub struct Documents {
    tokens: Tokens,
    /// For each token whether it is a target; `None`: all are, except the first of each document.
    trained: Option<Vec<bool>>,
    documents: Vec<Document>,
    /// The documents of each row.
    rows: Vec<Vec<usize>>,
    n_targets: u64,
    target_bytes: u64,
}

/// Tokens of a document, or of a piece of a long one.
#[derive(Clone, Copy, Debug)]
struct Document {
    start: u64,
    /// Inputs; there is one token more.
    len: u32,
}

/// Whether rows hold several documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// As many documents as fit.
    BestFit,
    /// One in each row.
    Off,
}

impl Documents {
    /// The documents of `tokens`, each of which ends with the token `end`. Documents with more than `seq_len` inputs
    /// are cut into pieces; all tokens but the first of each document are targets.
    ///
    /// # Errors
    /// No document has two tokens or more.
    pub fn of_stream(
        tokens: &Tokens,
        end: TokenId,
        (seq_len, packing): (usize, Packing),
        tokenizer: &Tokenizer,
    ) -> Result<Documents> {
        let mut documents = Vec::new();
        for Range { start, end } in tokens.documents(end) {
            let n_inputs = end - start - 1;
            documents.extend((0..n_inputs).step_by(seq_len).map(|first| {
                let len = (n_inputs - first).min(seq_len as u64) as u32;
                Document { start: start + first, len }
            }));
        }
        ensure!(
            !documents.is_empty(),
            "no document has two tokens or more (the split has {} tokens)\nhint: use `data.rows=epochs`, or longer documents; \
             for validation, hold out more with `hearth-train prepare --val-fraction`",
            tokens.len()
        );
        Self::new(tokens.clone(), None, documents, (seq_len, packing), tokenizer)
    }

    /// Documents in memory, each with whether its tokens are targets; the first never is.
    ///
    /// # Errors
    /// There are no documents, or one has fewer than two tokens or more than `seq_len` inputs.
    pub fn of_examples(
        examples: impl IntoIterator<Item = (Vec<TokenId>, Vec<bool>)>,
        (seq_len, packing): (usize, Packing),
        tokenizer: &Tokenizer,
    ) -> Result<Documents> {
        let (mut ids, mut trained, mut documents) = (Vec::new(), Vec::new(), Vec::new());
        for (of_example, is_trained) in examples {
            let n_tokens = of_example.len();
            ensure!(
                is_trained.len() == n_tokens && (2..=seq_len + 1).contains(&n_tokens),
                "an example must have 2 to {} tokens, got {n_tokens}",
                seq_len + 1
            );
            documents.push(Document { start: ids.len() as u64, len: n_tokens as u32 - 1 });
            ids.extend(of_example);
            trained.extend(is_trained);
        }
        ensure!(!documents.is_empty(), "there is no example");
        Self::new(Tokens::from_ids(ids, 0), Some(trained), documents, (seq_len, packing), tokenizer)
    }

    fn new(
        tokens: Tokens,
        trained: Option<Vec<bool>>,
        documents: Vec<Document>,
        (seq_len, packing): (usize, Packing),
        tokenizer: &Tokenizer,
    ) -> Result<Documents> {
        let lengths: Vec<usize> = documents.iter().map(|document| document.len as usize).collect();
        let rows = match packing {
            Packing::BestFit => pack(&lengths, seq_len),
            Packing::Off => (0..documents.len()).map(|number| vec![number]).collect(),
        };
        let mut all = Documents { tokens, trained, documents, rows, n_targets: 0, target_bytes: 0 };
        let bytes: Vec<u64> = (0..tokenizer.vocab_size() as TokenId).map(|id| tokenizer.text_bytes(&[id])).collect();
        let (mut n_targets, mut target_bytes) = (0, 0);
        for number in 0..all.documents.len() {
            for (id, is_target) in all.targets(number) {
                n_targets += u64::from(is_target);
                target_bytes += if is_target { bytes.get(id as usize).copied().unwrap_or(0) } else { 0 };
            }
        }
        (all.n_targets, all.target_bytes) = (n_targets, target_bytes);
        Ok(all)
    }

    /// The tokens after the first one of a document, and whether each is a target.
    fn targets(&self, number: usize) -> impl Iterator<Item = (TokenId, bool)> {
        let Document { start, len } = self.documents[number];
        let mut ids = vec![0; len as usize];
        self.tokens.read(start + 1, &mut ids);
        let is_target = move |n: usize| self.trained.as_ref().is_none_or(|trained| trained[start as usize + 1 + n]);
        ids.into_iter().enumerate().map(move |(n, id)| (id, is_target(n)))
    }

    /// The number of rows.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The number of documents; each piece of a long one counts.
    pub fn n_documents(&self) -> usize {
        self.documents.len()
    }

    /// Inputs of all documents.
    pub fn n_tokens(&self) -> u64 {
        self.documents.iter().map(|document| u64::from(document.len)).sum()
    }

    /// Targets of all documents.
    pub fn n_targets(&self) -> u64 {
        self.n_targets
    }

    /// Bytes of text that the targets represent.
    pub fn target_bytes(&self) -> u64 {
        self.target_bytes
    }

    /// The batch of the rows `numbers`, as long as the longest of them. Each is a row number.
    pub(super) fn batch(&self, numbers: &[u64]) -> Batch {
        let rows: Vec<&[usize]> = numbers.iter().map(|&number| &*self.rows[number as usize]).collect();
        let len = |row: &[usize]| row.iter().map(|&number| self.documents[number].len as usize).sum::<usize>();
        let seq_len = rows.iter().map(|row| len(row)).max().unwrap_or(0);
        let mut batch = Batch::empty(seq_len);
        let n = rows.len() * seq_len;
        let (mut weights, mut positions) = (Vec::with_capacity(n), Vec::with_capacity(n));
        let mut context_tokens = Vec::with_capacity(n);
        for row in rows {
            for &number in row {
                let Document { start, len } = self.documents[number];
                let mut first = [0];
                self.tokens.read(start, &mut first);
                batch.inputs.push(first[0]);
                for (id, is_target) in self.targets(number) {
                    batch.targets.push(id);
                    weights.push(f32::from(is_target));
                    context_tokens.push(!is_target);
                    batch.inputs.push(id);
                }
                // The last target is no input.
                batch.inputs.pop();
                positions.extend(0..len);
            }
            // The rest of the row is a separate document, whose targets have weight 0.
            let end = (batch.batch_size + 1) * seq_len;
            positions.extend(0..(end - batch.inputs.len()) as u32);
            batch.inputs.resize(end, 0);
            batch.targets.resize(end, 0);
            weights.resize(end, 0.0);
            context_tokens.resize(end, false);
            batch.batch_size += 1;
        }
        batch.weights = Some(weights);
        batch.context_tokens = Some(context_tokens);
        batch.positions = Some(positions);
        batch
    }

    /// All rows in order, in batches.
    pub(crate) fn batches(&self, batch_size: usize) -> impl Iterator<Item = Batch> {
        in_batches(self.rows.len() as u64, batch_size).map(|numbers| self.batch(&numbers))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::data::tokenizer_build::BuiltTokenizer;

    fn tokenizer() -> Tokenizer {
        BuiltTokenizer::characters("abcdefghij", 8).unwrap().open().unwrap()
    }

    #[test]
    fn token_stream_is_divided_into_documents_after_each_end_token() {
        // Documents of 3, 1 and 9 tokens, and a rest without an end.
        let ids = vec![1, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 5, 6];
        let documents =
            Documents::of_stream(&Tokens::from_ids(ids, 0), 0, (5, Packing::BestFit), &tokenizer()).unwrap();
        // The document of one token has no target. The document of nine tokens becomes two pieces; the second starts
        // with the last target of the first.
        let batches: Vec<Batch> = documents.batches(10).collect();
        let batch = &batches[0];
        assert_eq!((batch.batch_size, batch.seq_len, batches.len()), (3, 5, 1));
        assert_eq!(batch.inputs, [1, 2, 6, 7, 8, 1, 2, 3, 4, 5, 5, 0, 0, 0, 0]);
        assert_eq!(batch.targets, [2, 0, 7, 8, 0, 2, 3, 4, 5, 6, 6, 0, 0, 0, 0]);
        assert_eq!(batch.positions.as_deref().unwrap(), [0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 0, 0, 1, 2, 3]);
        assert_eq!(batch.weights.as_deref().unwrap().iter().sum::<f32>(), 11.0);
        assert_eq!((documents.n_documents(), documents.n_targets(), documents.n_tokens()), (4, 11, 11));
    }

    #[test]
    fn documents_without_any_target_are_rejected() {
        let tokens = Tokens::from_ids(vec![0, 0, 0], 0);
        let error = Documents::of_stream(&tokens, 0, (5, Packing::BestFit), &tokenizer()).unwrap_err().to_string();
        assert!(error.contains("(the split has 3 tokens)\nhint: use `data.rows=epochs`"), "{error}");
        let none: [(Vec<TokenId>, Vec<bool>); 0] = [];
        let error = Documents::of_examples(none, (4, Packing::Off), &tokenizer()).unwrap_err().to_string();
        assert!(error.contains("there is no example"), "{error}");
    }

    #[test]
    fn only_trained_tokens_of_an_example_count_as_targets() {
        let examples = [(vec![1, 2, 3], vec![true, false, true]), (vec![4, 5], vec![false, true])];
        for (packing, n_rows) in [(Packing::BestFit, 1), (Packing::Off, 2)] {
            let documents = Documents::of_examples(examples.clone(), (4, packing), &tokenizer()).unwrap();
            assert_eq!((documents.n_rows(), documents.n_targets()), (n_rows, 2));
            let batch = documents.batches(2).next().unwrap();
            // The batch is as long as its longest row.
            assert_eq!(batch.seq_len, if packing == Packing::BestFit { 3 } else { 2 });
            assert_eq!(batch.total_weight(), 2.0);
        }
        let error = Documents::of_examples([(vec![1], vec![true])], (4, Packing::Off), &tokenizer()).unwrap_err();
        assert!(error.to_string().contains("2 to 5 tokens, got 1"), "{error}");
    }
}
