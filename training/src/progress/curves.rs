//! `curves.svg`: the losses over the steps.

use std::fmt::Write;

use super::Record;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 50.0;

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
        let x = |step: f64| MARGIN + step / last * (WIDTH - 2.0 * MARGIN);
        let y = |loss: f64| HEIGHT - MARGIN - (loss - low) / (high - low) * (HEIGHT - 2.0 * MARGIN);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        for tick in 0..=4 {
            let share = f64::from(tick) / 4.0;
            let (loss, step) = (low + share * (high - low), share * last);
            let (at, left, right) = (y(loss), MARGIN, WIDTH - MARGIN);
            let _ = writeln!(
                svg,
                "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{loss:.2}</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{step:.0}</text>",
                left - 6.0,
                at + 4.0,
                x(step),
                HEIGHT - MARGIN + 18.0
            );
        }
        let mut curve = |points: &[(f64, f64)], color: &str, name: &str, at: f64| {
            let shown = points.iter().filter(|(_, loss)| loss.is_finite());
            let places: Vec<_> = shown.map(|(step, loss)| format!("{:.1},{:.1}", x(*step), y(*loss))).collect();
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\" points=\"{}\"/><text x=\"{at}\" \
                 y=\"30\" fill=\"{color}\">{name}</text>",
                places.join(" ")
            );
        };
        curve(&train, "#4477aa", "training loss", WIDTH - 260.0);
        curve(&self.val, "#cc3311", "validation loss", WIDTH - 150.0);
        svg + "</svg>\n"
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
    use crate::progress::{EvalRecord, StepRecord};

    #[test]
    fn a_long_run_becomes_a_small_picture() {
        let mut curves = Curves::default();
        assert!(curves.svg().contains("<svg"), "also of nothing");
        for step in 1..=10_000 {
            let loss = Some(4.0 / (step as f32).sqrt());
            let (lr, grad_norm, tok_per_sec, seconds) = (0.1, 1.0, 1.0, 1.0);
            curves.add(&Record::Step(StepRecord { step, loss, lr, grad_norm, tok_per_sec, seconds }));
        }
        let val = EvalRecord {
            step: 10_000,
            val_loss: 0.5,
            val_perplexity: None,
            val_bpb: None,
            val_accuracy: None,
            best: true,
        };
        curves.add(&Record::Eval(val));
        let svg = curves.svg();
        assert!(svg.len() < 20_000 && !svg.contains("NaN") && svg.ends_with("</svg>\n"));
        // The end of the validation curve stands at the right, above the foot.
        assert!(svg.contains(&format!("points=\"{:.1},", WIDTH - MARGIN)));
    }
}
