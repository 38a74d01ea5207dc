//! `curves.svg`: the losses over the steps.

use super::Record;
use crate::run::svg_plot::Plot;

/// Maximum number of points per curve; more cannot be distinguished.
const MAX_POINTS: usize = 800;

/// Losses by step.
#[derive(Clone, Debug, Default)]
pub(super) struct Curves {
    train: Vec<(f64, f64)>,
    val: Vec<(f64, f64)>,
}

impl Curves {
    pub(super) fn add(&mut self, record: &Record) {
        match record {
            Record::Step(step) => self.train.extend(step.loss.map(|loss| (step.step as f64, f64::from(loss)))),
            Record::Eval(eval) => self.val.push((eval.step as f64, eval.val_loss)),
            Record::Sample(_) | Record::Skip(_) => {}
        }
    }

    /// The image.
    pub(super) fn svg(&self) -> String {
        let train = thinned(&self.train);
        let points = || train.iter().chain(&self.val).filter(|(_, loss)| loss.is_finite());
        let last = points().map(|(step, _)| *step).fold(1.0, f64::max);
        let low = points().map(|(_, loss)| *loss).fold(f64::INFINITY, f64::min);
        let high = points().map(|(_, loss)| *loss).fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
        let mut plot = Plot::new([800.0, 400.0], [50.0, 750.0], [50.0, 350.0]);
        for tick in 0..=4 {
            let share = f64::from(tick) / 4.0;
            plot.grid_line(share, format_args!("{:.2}", low + share * (high - low)));
            plot.mark(share, format_args!("{:.0}", share * last));
        }
        let curves = [(&train, "#4477aa", "training loss", 540.0), (&self.val, "#cc3311", "validation loss", 650.0)];
        for (points, color, name, at) in curves {
            let shown = points.iter().filter(|(_, loss)| loss.is_finite());
            plot.curve(shown.map(|(step, loss)| (step / last, (loss - low) / (high - low))), color);
            plot.text((at, 30.0), &format!("fill=\"{color}\""), name);
        }
        plot.finish()
    }
}

/// Averages neighbouring points so that at most [`MAX_POINTS`] remain.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(MAX_POINTS).max(1);
    let mean = |points: &[(f64, f64)]| {
        let n = points.len() as f64;
        let (step, loss) = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (step / n, loss / n)
    };
    points.chunks(each).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::progress::{EvalRecord, StepRecord};

    #[test]
    fn curves_svg_of_10000_steps_stays_below_20_kb() {
        let mut curves = Curves::default();
        assert!(curves.svg().contains("<svg"), "also of nothing");
        for step in 1..=10_000 {
            let loss = Some(4.0 / (step as f32).sqrt());
            let (lr, grad_norm, tok_per_sec, seconds) = (0.1, 1.0, 1.0, 1.0);
            let (epoch, tokens) = (0.5, 100);
            curves.add(&Record::Step(StepRecord {
                step,
                epoch,
                tokens,
                loss,
                lr,
                grad_norm,
                tok_per_sec,
                seconds,
                balance_loss: None,
                expert_load: None,
            }));
        }
        let val = EvalRecord {
            step: 10_000,
            val_loss: 0.5,
            val_perplexity: None,
            val_bpb: None,
            val_accuracy: None,
            best: true,
            patience_left: None,
        };
        curves.add(&Record::Eval(val));
        let svg = curves.svg();
        assert!(svg.len() < 20_000 && !svg.contains("NaN") && svg.ends_with("</svg>\n"));
        // The validation curve has one point, at the right edge.
        assert!(svg.contains("points=\"750.0,"));
    }
}
