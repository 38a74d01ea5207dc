//! A logistic probe: a linear classifier of embeddings, equal to the one that scikit-learn's
//! `make_pipeline(StandardScaler(), LogisticRegression(C=c))` fits: L2 on the weights but not on the intercepts, one
//! logit for two classes and one per class for more.

use anyhow::{Result, ensure};

use super::lbfgs::{Minimum, minimize};

/// The largest component of the gradient of the mean loss at the end of a fit.
const TOLERANCE: f64 = 1e-8;

/// Tolerance at which a fit counts as converged: rounding may end it above [`TOLERANCE`].
const CONVERGED: f64 = 1e-5;

/// A fitted probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Mean and deviation of each feature of the texts that it was fitted to.
    scales: Vec<(f64, f64)>,
    /// For each logit: the weight of each scaled feature, and the intercept.
    rows: Vec<f64>,
    n_classes: usize,
}

/// How a fit ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeFit {
    /// Steps of L-BFGS.
    pub n_steps: usize,
    /// The largest component of the gradient of the mean loss.
    pub gradient: f64,
}

impl ProbeFit {
    /// Whether the minimum was found, more exactly than scikit-learn asks for by default (1e-4).
    pub fn is_converged(&self) -> bool {
        self.gradient <= CONVERGED
    }
}

impl Probe {
    /// Fits a probe to `features`, all of one length, and the class of each. `c`: the inverse strength of L2, as in scikit-learn.
    ///
    /// # Errors
    /// There are fewer than two classes, a class has no text, or `c` is not above 0.
    pub fn fit(features: &[Vec<f32>], classes: &[usize], n_classes: usize, c: f64) -> Result<(Self, ProbeFit)> {
        ensure!(
            n_classes > 1,
            "a probe needs at least 2 different labels, got {n_classes}\nhint: use texts with other labels"
        );
        ensure!(c > 0.0 && c.is_finite(), "`--c` must be a number above 0, got {c}");
        for class in 0..n_classes {
            ensure!(classes.contains(&class), "class {class} has no text to train on\nhint: use more texts");
        }
        let scales = scales_of(features);
        let scaled: Vec<Vec<f64>> = features.iter().map(|features| scaled(features, &scales)).collect();
        let n_rows = if n_classes == 2 { 1 } else { n_classes };
        let width = scales.len() + 1;
        let loss = |rows: &[f64]| mean_loss(rows, width, (&scaled, classes), c);
        let Minimum { point, n_steps, gradient } = minimize(loss, vec![0.0; n_rows * width], TOLERANCE);
        Ok((Self { scales, rows: point, n_classes }, ProbeFit { n_steps, gradient }))
    }

    /// The most likely class.
    pub fn predict(&self, features: &[f32]) -> usize {
        let logits = self.logits(features);
        match self.n_classes {
            2 => usize::from(logits[0] > 0.0),
            _ => logits.iter().enumerate().fold(0, |best, (at, &logit)| if logit > logits[best] { at } else { best }),
        }
    }

    /// For two classes the logit of the second against the first, else one per class.
    pub fn logits(&self, features: &[f32]) -> Vec<f64> {
        logits(&self.rows, &scaled(features, &self.scales))
    }
}

/// Mean and deviation of each feature; a deviation of 0 counts as 1.
fn scales_of(features: &[Vec<f32>]) -> Vec<(f64, f64)> {
    let n = features.len() as f64;
    let width = features.first().map_or(0, Vec::len);
    let scale = |at: usize| {
        let values = || features.iter().map(move |features| f64::from(features[at]));
        let mean = values().sum::<f64>() / n;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
        (mean, if variance > 0.0 { variance.sqrt() } else { 1.0 })
    };
    (0..width).map(scale).collect()
}

fn scaled(features: &[f32], scales: &[(f64, f64)]) -> Vec<f64> {
    features.iter().zip(scales).map(|(&value, (mean, deviation))| (f64::from(value) - mean) / deviation).collect()
}

fn logits(rows: &[f64], features: &[f64]) -> Vec<f64> {
    let logit = |row: &[f64]| {
        let (weights, intercept) = row.split_at(features.len());
        intercept[0] + weights.iter().zip(features).map(|(weight, value)| weight * value).sum::<f64>()
    };
    rows.chunks_exact(features.len() + 1).map(logit).collect()
}

/// The mean cross entropy and `|weights|^2 / (2 c n)`, with the gradient.
fn mean_loss(rows: &[f64], width: usize, (features, classes): (&[Vec<f64>], &[usize]), c: f64) -> (f64, Vec<f64>) {
    let n = features.len() as f64;
    let (mut loss, mut gradient) = (0.0, vec![0.0; rows.len()]);
    for (features, &class) in features.iter().zip(classes) {
        let logits = logits(rows, features);
        // The gradient with respect to each logit: its probability, minus 1 for the right class.
        let errors: Vec<f64> = match logits.as_slice() {
            [logit] => {
                let target = class as f64;
                // ln(1 + exp(x)) - target x, without overflow.
                loss += logit.max(0.0) + (-logit.abs()).exp().ln_1p() - target * logit;
                vec![1.0 / (1.0 + (-logit).exp()) - target]
            }
            logits => {
                let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                loss += largest + total.ln() - logits[class];
                let error = |(at, weight): (usize, &f64)| weight / total - f64::from(u8::from(at == class));
                weights.iter().enumerate().map(error).collect()
            }
        };
        for (gradient, error) in gradient.chunks_exact_mut(width).zip(errors) {
            let (weights, intercept) = gradient.split_at_mut(width - 1);
            weights.iter_mut().zip(features).for_each(|(gradient, value)| *gradient += error * value);
            intercept[0] += error;
        }
    }
    loss /= n;
    gradient.iter_mut().for_each(|value| *value /= n);
    for (row, gradient) in rows.chunks_exact(width).zip(gradient.chunks_exact_mut(width)) {
        for (weight, gradient) in row.iter().zip(gradient).take(width - 1) {
            loss += weight * weight / (2.0 * c * n);
            *gradient += weight / (c * n);
        }
    }
    (loss, gradient)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn probe_separates_two_linearly_separable_classes() {
        let features: Vec<Vec<f32>> = (0..40)
            .map(|at| {
                let sign = if at % 2 == 0 { 1.0 } else { -1.0 };
                vec![sign + 0.3 * ((at * 7 % 11) as f32 - 5.0) / 5.0, (at * 5 % 13) as f32, 4.0]
            })
            .collect();
        let classes: Vec<usize> = (0..40).map(|at| at % 2).collect();
        let (probe, fit) = Probe::fit(&features, &classes, 2, 1.0).unwrap();
        assert!(fit.gradient <= TOLERANCE && fit.is_converged(), "{fit:?}");
        assert!(!ProbeFit { gradient: 1e-4, ..fit }.is_converged());
        assert!(!ProbeFit { gradient: f64::NAN, ..fit }.is_converged());
        assert!(features.iter().zip(&classes).all(|(features, class)| probe.predict(features) == *class));
    }

    #[test]
    fn probe_fit_rejects_missing_classes_and_an_invalid_c() {
        let features = vec![vec![1.0], vec![2.0]];
        for (classes, n_classes, c, message) in [
            ([0, 0], 1, 1.0, "at least 2 different labels, got 1"),
            ([0, 0], 2, 1.0, "class 1 has no text"),
            ([0, 1], 2, 0.0, "`--c` must be a number above 0"),
        ] {
            let error = Probe::fit(&features, &classes, n_classes, c).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
