//! Minimization of a smooth convex function: limited-memory BFGS ([Liu and Nocedal
//! 1989](https://doi.org/10.1007/BF01589116)) with a line search by bisection for the weak Wolfe conditions ([Lewis and Overton
//! 2013](https://doi.org/10.1007/s10107-012-0514-2)). Deterministic.

use std::collections::VecDeque;

/// Pairs of steps and changes of the gradient that are kept.
const N_PAIRS: usize = 10;
/// Maximum number of steps.
const MAX_STEPS: usize = 2000;
/// Maximum number of points that a line search tries.
const MAX_TRIES: usize = 60;
/// The constants of the weak Wolfe conditions: c1, for sufficient decrease, and c2, for the curvature.
const DECREASE: f64 = 1e-4;
const FLATNESS: f64 = 0.9;

/// The result of a minimization.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Minimum {
    pub(super) point: Vec<f64>,
    pub(super) n_steps: usize,
    /// The largest component of the gradient.
    pub(super) gradient: f64,
}

/// Minimizes `function`, which returns its value and gradient, from `start` on, until no component of the gradient exceeds
/// `tolerance` or no step gets lower.
pub(super) fn minimize(function: impl Fn(&[f64]) -> (f64, Vec<f64>), start: Vec<f64>, tolerance: f64) -> Minimum {
    let mut point = start;
    let (mut value, mut gradient) = function(&point);
    let mut pairs: VecDeque<(Vec<f64>, Vec<f64>)> = VecDeque::new();
    let mut n_steps = 0;
    while largest(&gradient) > tolerance && n_steps < MAX_STEPS {
        let mut direction = direction_of(&gradient, &pairs);
        let mut slope = dot(&direction, &gradient);
        if slope >= 0.0 {
            // Rounding errors in the pairs: the direction goes up. Restarts with steepest descent.
            pairs.clear();
            direction = gradient.iter().map(|value| -value).collect();
            slope = -dot(&gradient, &gradient);
        }
        let first = if pairs.is_empty() { 1.0 / largest(&gradient).max(1.0) } else { 1.0 };
        let Some((step, next_value, next_gradient)) = search(&function, &point, &direction, (value, slope), first)
        else {
            break;
        };
        let moved: Vec<f64> = direction.iter().map(|value| step * value).collect();
        let changed: Vec<f64> = next_gradient.iter().zip(&gradient).map(|(new, old)| new - old).collect();
        point.iter_mut().zip(&moved).for_each(|(value, moved)| *value += moved);
        if dot(&moved, &changed) > 0.0 {
            pairs.push_back((moved, changed));
            if pairs.len() > N_PAIRS {
                pairs.pop_front();
            }
        }
        (value, gradient) = (next_value, next_gradient);
        n_steps += 1;
    }
    Minimum { point, n_steps, gradient: largest(&gradient) }
}

/// Minus the gradient times the inverse of the second derivative, as the pairs estimate it.
fn direction_of(gradient: &[f64], pairs: &VecDeque<(Vec<f64>, Vec<f64>)>) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|value| -value).collect();
    let mut shares = Vec::with_capacity(pairs.len());
    for (moved, changed) in pairs.iter().rev() {
        let share = dot(moved, &direction) / dot(moved, changed);
        add(&mut direction, -share, changed);
        shares.push(share);
    }
    if let Some((moved, changed)) = pairs.back() {
        let scale = dot(moved, changed) / dot(changed, changed);
        direction.iter_mut().for_each(|value| *value *= scale);
    }
    for ((moved, changed), share) in pairs.iter().zip(shares.into_iter().rev()) {
        let other = dot(changed, &direction) / dot(moved, changed);
        add(&mut direction, share - other, moved);
    }
    direction
}

/// A step along `direction` with its value and gradient; `None` if no step lowers the value.
fn search(
    function: impl Fn(&[f64]) -> (f64, Vec<f64>),
    point: &[f64],
    direction: &[f64],
    (value, slope): (f64, f64),
    first: f64,
) -> Option<(f64, f64, Vec<f64>)> {
    let (mut low, mut high, mut step) = (0.0, f64::INFINITY, first);
    let mut best: Option<(f64, f64, Vec<f64>)> = None;
    for _ in 0..MAX_TRIES {
        let there: Vec<f64> = point.iter().zip(direction).map(|(value, moved)| value + step * moved).collect();
        let (next, gradient) = function(&there);
        // False too where the value is not a number.
        let is_lower = next <= value + DECREASE * step * slope;
        if !is_lower {
            high = step;
        } else if dot(&gradient, direction) < FLATNESS * slope {
            low = step;
            best = Some((step, next, gradient));
        } else {
            return Some((step, next, gradient));
        }
        step = if high.is_finite() { 0.5 * (low + high) } else { 2.0 * low };
    }
    best
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

fn add(to: &mut [f64], factor: f64, values: &[f64]) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to += factor * value);
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lbfgs_finds_the_minimum_of_an_ill_conditioned_function() {
        // The sum of c (x - i)^2 with very different c, and a term that is not quadratic.
        let function = |x: &[f64]| {
            let (mut value, mut gradient) = (0.0, Vec::new());
            for (at, x) in x.iter().enumerate() {
                let (curvature, off) = (10_f64.powi(at as i32 - 2), x - at as f64);
                value += curvature * off * off + off.powi(4);
                gradient.push(2.0 * curvature * off + 4.0 * off.powi(3));
            }
            (value, gradient)
        };
        let Minimum { point, n_steps, gradient } = minimize(function, vec![30.0; 6], 1e-9);
        assert!(gradient <= 1e-9 && n_steps < 200, "{gradient} after {n_steps} steps");
        for (at, x) in point.iter().enumerate() {
            assert!((x - at as f64).abs() < 1e-6, "{x} is not {at}");
        }
    }
}
