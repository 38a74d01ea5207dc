//! Retrieval by text vectors: documents are ranked by the cosine similarity to a query, and the ranking is measured
//! against relevance judgments.

mod data;
mod measures;

use rayon::prelude::*;

pub use data::{Judgments, RetrievalData, Text};
pub use measures::{Measures, measures_of};

/// A document's place in the data, and its score for a query.
pub type Scored = (usize, f32);

/// For each query the `depth` documents with the highest scores, in order. Vectors must have length 1. `skipped` has,
/// for each query, the document that does not count.
///
/// As in `trec_eval`, among equal scores the document with the greater id comes first.
pub fn search(
    queries: &[Vec<f32>],
    documents: &[Vec<f32>],
    ids: &[Text],
    (depth, skipped): (usize, &[Option<usize>]),
) -> Vec<Vec<Scored>> {
    let order = |one: &Scored, other: &Scored| {
        other.1.total_cmp(&one.1).then_with(|| ids[other.0].id.as_bytes().cmp(ids[one.0].id.as_bytes()))
    };
    let of_query = |(query, skipped): (&Vec<f32>, &Option<usize>)| {
        let counted = documents.iter().enumerate().filter(|(document, _)| Some(*document) != *skipped);
        let mut scored: Vec<Scored> = counted.map(|(document, vector)| (document, dot(query, vector))).collect();
        if scored.len() > depth {
            scored.select_nth_unstable_by(depth, order);
            scored.truncate(depth);
        }
        scored.sort_unstable_by(order);
        scored
    };
    queries.par_iter().zip(skipped).map(of_query).collect()
}

fn dot(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| f64::from(*one) * f64::from(*other)).sum::<f64>() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_orders_by_score_and_then_by_id_and_leaves_out_what_does_not_count() {
        let ids: Vec<Text> = ["b", "a", "c", "d"].map(|id| Text { id: id.to_owned(), text: String::new() }).into();
        let documents = [vec![0.6, 0.8], vec![1.0, 0.0], vec![0.6, -0.8], vec![0.0, 1.0]];
        let queries = vec![vec![1.0, 0.0]; 2];
        let found = search(&queries, &documents, &ids, (3, &[None, Some(1)]));
        let places = |ranking: &[Scored]| ranking.iter().map(|(document, _)| *document).collect::<Vec<_>>();
        assert_eq!(places(&found[0]), [1, 2, 0]);
        assert_eq!(places(&found[1]), [2, 0, 3]);
    }
}
