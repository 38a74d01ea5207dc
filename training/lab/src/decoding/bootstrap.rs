//! Confidence intervals by bootstrap: how much a statistic varies over sets of texts drawn with replacement.

use hearth_model::decode::sampling::{Purpose, RandomStream};
use serde::Serialize;

/// Share of resampled values outside of the interval, on each side.
const TAIL: f64 = 0.025;

/// An estimate with its 95 % confidence interval. `None` where it is not defined, such as the perplexity of no tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BootstrapEstimate {
    /// The value for the texts as they are.
    pub value: Option<f64>,
    /// The ends of the interval.
    pub interval: Option<[f64; 2]>,
}

/// Draws sets of texts.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    n_texts: usize,
    selections: Vec<Vec<usize>>,
}

impl Bootstrap {
    /// `n_resamples` samples of `n_texts` texts each, drawn with replacement. Equal seeds draw equal samples, so that
    /// methods are compared on the same ones.
    pub fn new(n_texts: usize, n_resamples: usize, seed: u64) -> Self {
        let draw = |number: usize| {
            let random = RandomStream::new(seed, number as u32);
            let text = |at: usize| (random.uniform(at, Purpose::Token) * n_texts as f64) as usize;
            (0..n_texts).map(|at| text(at).min(n_texts.saturating_sub(1))).collect()
        };
        Self { n_texts, selections: (0..n_resamples).map(draw).collect() }
    }

    /// The statistic over all texts, and the interval of its values over the drawn samples, shifted so that their mean
    /// equals the statistic. Otherwise the interval would be biased: drawn samples have some texts twice, and so fewer
    /// different n-grams.
    pub fn estimate(&self, statistic: impl Fn(&[usize]) -> f64) -> BootstrapEstimate {
        let all: Vec<usize> = (0..self.n_texts).collect();
        let value = Some(statistic(&all)).filter(|value| value.is_finite());
        let mut drawn: Vec<f64> =
            self.selections.iter().map(|selection| statistic(selection)).filter(|value| value.is_finite()).collect();
        drawn.sort_by(f64::total_cmp);
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let interval = value.filter(|_| drawn.len() > 1).map(|value| {
            let last = drawn.len() - 1;
            let cut = (TAIL * drawn.len() as f64) as usize;
            [drawn[cut], drawn[last - cut]].map(|end| value + end - mean)
        });
        BootstrapEstimate { value, interval }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The mean of n numbers with deviation s varies by s / root n: the interval is 1.96 of that on each side.
    #[test]
    fn bootstrap_interval_of_a_mean_matches_the_normal_approximation() {
        let n = 400;
        let values: Vec<f64> = (0..n).map(|at| f64::from(at % 2)).collect();
        let bootstrap = Bootstrap::new(n as usize, 2000, 7);
        let mean = |selection: &[usize]| selection.iter().map(|&at| values[at]).sum::<f64>() / selection.len() as f64;
        let BootstrapEstimate { value, interval } = bootstrap.estimate(mean);
        let [low, high] = interval.unwrap();
        assert_eq!(value, Some(0.5));
        let expected = 1.96 * 0.5 / f64::from(n).sqrt();
        assert!((high - 0.5 - expected).abs() < 0.1 * expected && (0.5 - low - expected).abs() < 0.1 * expected);
    }

    #[test]
    fn bootstrap_estimate_of_nan_has_no_value_and_no_interval() {
        let bootstrap = Bootstrap::new(3, 10, 1);
        assert_eq!(bootstrap.estimate(|_| f64::NAN), BootstrapEstimate::default());
        let same = bootstrap.estimate(|_| 2.0);
        assert_eq!(same, BootstrapEstimate { value: Some(2.0), interval: Some([2.0, 2.0]) });
    }
}
