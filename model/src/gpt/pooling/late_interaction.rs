//! Late interaction: a vector for each token, and scores of how well the tokens of a query find their like in a document
//! ([ColBERT](https://arxiv.org/abs/2004.12832)).

use std::{collections::BTreeSet, sync::Arc};

use super::DenseLayer;
use crate::TokenId;

/// How a model for late interaction reads texts.
#[derive(Clone, Debug, PartialEq)]
pub struct LateInteraction {
    /// Layers applied to the hidden state of each token. The result is normalized to length 1.
    pub layers: Arc<[DenseLayer]>,
    /// How it reads queries.
    pub query: LateText,
    /// How it reads documents.
    pub document: LateText,
    /// Padding of short queries.
    pub expansion: Option<QueryExpansion>,
    /// Tokens of documents that get no vector, such as punctuation.
    pub skipped: BTreeSet<TokenId>,
}

/// How a model for late interaction reads texts of a kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LateText {
    /// A token after the first one that marks the text as a query or a document.
    pub mark: Option<TokenId>,
    /// The prompt before the text.
    pub prompt: String,
    /// Maximum number of tokens of a text, including the added ones; longer texts are cut at the end.
    pub max_tokens: Option<usize>,
}

/// Query expansion: padding tokens after a query, up to a length, whose vectors also count
/// ([ColBERT](https://arxiv.org/abs/2004.12832), 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryExpansion {
    /// The padding token, usually the mask token.
    pub token: TokenId,
    /// Tokens of a query with them. Queries are cut to it, too, unless `is_least`.
    pub length: usize,
    /// Whether longer queries stay as they are.
    pub is_least: bool,
    /// Whether other tokens see them.
    pub is_seen: bool,
}

/// MaxSim: the sum over the query's vectors of the largest dot product with a vector of the document. Both are rows of
/// `width` numbers; 0 if either has no row.
pub fn max_sim(query: &[f32], document: &[f32], width: usize) -> f32 {
    if width == 0 || document.is_empty() {
        return 0.0;
    }
    let product =
        |one: &[f32], other: &[f32]| -> f64 { one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let best =
        |row: &[f32]| document.chunks_exact(width).map(|other| product(row, other)).fold(f64::NEG_INFINITY, f64::max);
    query.chunks_exact(width).map(best).sum::<f64>() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_of_a_query_counts_with_its_nearest_token_of_the_document() {
        let query = [1.0, 0.0, 0.0, 1.0];
        let document = [0.5, 0.25, -1.0, 0.75, 0.125, -1.0];
        assert_eq!(max_sim(&query, &document, 2), 0.5 + 0.75);
        assert_eq!(max_sim(&query[..2], &document[2..], 2), 0.125);
        assert_eq!(max_sim(&query, &[], 2), 0.0);
    }
}
