//! Late interaction: a vector for each token, and scores of how well the tokens of a query find their like in a document
//! ([ColBERT](https://arxiv.org/abs/2004.12832)).

use std::{collections::BTreeSet, sync::Arc};

use super::DenseLayer;
use crate::TokenId;

/// How a model for late interaction reads texts.
#[derive(Clone, Debug, PartialEq)]
pub struct LateInteraction {
    /// What the hidden state of each token goes through. Its vector then has the length 1.
    pub layers: Arc<[DenseLayer]>,
    /// How it reads queries.
    pub query: LateText,
    /// How it reads documents.
    pub document: LateText,
    /// What fills short queries up.
    pub expansion: Option<QueryExpansion>,
    /// Tokens of documents that have no vector, such as those of punctuation.
    pub skipped: BTreeSet<TokenId>,
}

/// How a model for late interaction reads texts of a kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LateText {
    /// A token behind the first one, which says of which kind the text is.
    pub mark: Option<TokenId>,
    /// What comes before the text.
    pub prompt: String,
    /// Most tokens of a text, with those that are added; what is longer is cut at its end.
    pub max_tokens: Option<usize>,
}

/// Tokens behind a query, up to a length, which stand for what it does not say ([ColBERT](https://arxiv.org/abs/2004.12832), 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryExpansion {
    /// The token, usually that for masked ones.
    pub token: TokenId,
    /// Tokens of a query with them. Queries are cut to it, too, unless `is_least`.
    pub length: usize,
    /// Whether longer queries stay as they are.
    pub is_least: bool,
    /// Whether other tokens see them.
    pub is_seen: bool,
}

/// The sum of the largest products of each vector of the query with vectors of the document. Both are rows of `width` numbers; 0 if
/// either has no row.
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
