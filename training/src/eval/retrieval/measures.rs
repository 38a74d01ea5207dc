//! Measures of rankings, by the definitions of `trec_eval` (and so of `pytrec_eval`).

use std::collections::HashMap;

use serde::Serialize;

/// Minimum judgment of a relevant document.
const RELEVANT: i64 = 1;

/// Measures of one ranking, or their means over queries. Those with a cutoff have a value for each.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measures {
    /// Normalized discounted cumulative gain; the gain of a document is its judgment (`ndcg_cut`).
    pub ndcg: Vec<f64>,
    /// The reciprocal of the rank of the first relevant document, 0 if it is beyond the cutoff (`recip_rank` of as many
    /// documents as the cutoff).
    pub mrr: Vec<f64>,
    /// The share of relevant documents within the cutoff (`recall`).
    pub recall: Vec<f64>,
    /// Average precision of the whole ranking (`map`).
    pub map: f64,
}

/// The measures of `ranking`, documents in order, at each of `cutoffs`; `judged` has the judgments of documents.
pub fn measures_of(ranking: &[usize], judged: &HashMap<usize, i64>, unfound: &[i64], cutoffs: &[usize]) -> Measures {
    let judgment = |document: &usize| judged.get(document).copied().unwrap_or(0);
    let found: Vec<i64> = ranking.iter().map(judgment).collect();
    let mut ideal: Vec<i64> = judged.values().chain(unfound).copied().collect();
    ideal.sort_unstable_by(|one, other| other.cmp(one));
    let n_relevant = ideal.iter().filter(|judgment| **judgment >= RELEVANT).count();
    let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
    let is_relevant = |judgment: &i64| *judgment >= RELEVANT;
    let first = found.iter().position(is_relevant);
    let (mut n_found, mut precisions) = (0, 0.0);
    for (at, _) in found.iter().enumerate().filter(|(_, judgment)| is_relevant(judgment)) {
        n_found += 1;
        precisions += f64::from(n_found) / (at + 1) as f64;
    }
    let at = |cutoff: usize| &found[..cutoff.min(found.len())];
    Measures {
        ndcg: cutoffs.iter().map(|&k| share(gain(at(k)), gain(&ideal[..k.min(ideal.len())]))).collect(),
        mrr: cutoffs
            .iter()
            .map(|&k| first.filter(|first| *first < k).map_or(0.0, |at| 1.0 / (at + 1) as f64))
            .collect(),
        recall: cutoffs
            .iter()
            .map(|&k| share(at(k).iter().filter(|judgment| is_relevant(judgment)).count() as f64, n_relevant as f64))
            .collect(),
        map: share(precisions, n_relevant as f64),
    }
}

/// The discounted cumulative gain of judgments in order.
fn gain(judgments: &[i64]) -> f64 {
    let discounted = |(at, judgment): (usize, &i64)| *judgment as f64 / ((at + 2) as f64).log2();
    judgments.iter().enumerate().filter(|(_, judgment)| **judgment > 0).map(discounted).sum()
}

impl Measures {
    /// The means over the queries.
    pub fn mean(of_queries: &[Measures]) -> Measures {
        let n = of_queries.len().max(1) as f64;
        let n_cutoffs = of_queries.first().map_or(0, |measures| measures.ndcg.len());
        let mean = |of: &dyn Fn(&Measures) -> f64| of_queries.iter().map(of).sum::<f64>() / n;
        let each = |of: &dyn Fn(&Measures, usize) -> f64| -> Vec<f64> {
            (0..n_cutoffs).map(|at| mean(&|measures| of(measures, at))).collect()
        };
        Measures {
            ndcg: each(&|measures, at| measures.ndcg[at]),
            mrr: each(&|measures, at| measures.mrr[at]),
            recall: each(&|measures, at| measures.recall[at]),
            map: mean(&|measures| measures.map),
        }
    }
}
