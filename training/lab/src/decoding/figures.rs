//! The paper's figures as SVG: the probability of each token that beam search writes, next to human text; and the
//! distribution of tokens by rank.

use super::{Method, MethodTexts, statistics::NgramTable};
use hearth_training::run::svg_plot::Plot;

/// Colors that can be distinguished on white; the first is for human text.
const COLORS: [&str; 13] = [
    "#000000", "#cc3311", "#4477aa", "#ee7733", "#009988", "#aa3377", "#bbbbbb", "#ccbb44", "#66ccee", "#228833",
    "#882255", "#999933", "#332288",
];

/// Figure 2 of the paper: for the passage with this index, the probability of each token under the model, in the text
/// of beam search and in human text. `None` if the study does not have both.
pub fn probabilities_svg(written: &[MethodTexts], passage: usize) -> Option<String> {
    let of = |name: &str| {
        let logprobs = written.iter().find(|written| written.method.name == name)?.logprobs.get(passage)?;
        Some(logprobs.iter().map(|logprob| f64::from(logprob.exp())).collect::<Vec<f64>>())
    };
    let (beam, human) = (of(Method::BEAM)?, of(Method::HUMAN)?);
    let last = (beam.len().max(human.len()).max(2) - 1) as f64;
    let mut plot = start("Probability of each token under the model", "token", "probability");
    for tick in 0..=5 {
        let share = f64::from(tick) / 5.0;
        plot.grid_line(share, format_args!("{share:.1}"));
        plot.mark(share, format_args!("{:.0}", share * last));
    }
    for (number, (name, values)) in [(Method::HUMAN, &human), (Method::BEAM, &beam)].into_iter().enumerate() {
        let points = (0..).zip(values).map(|(at, &probability)| (f64::from(at) / last, probability));
        named_curve(&mut plot, points, COLORS[number], name, number);
    }
    Some(plot.finish())
}

/// Figure 7 of the paper: how often the token of each rank occurs, of every method, on logarithmic axes.
pub fn distributions_svg(written: &[MethodTexts]) -> String {
    let frequencies: Vec<Vec<f64>> = written
        .iter()
        .map(|written| {
            let all: Vec<usize> = (0..written.texts.len()).collect();
            let counts = NgramTable::new(&written.texts, 1).frequencies(&all);
            let n_tokens = counts.iter().sum::<usize>() as f64;
            counts.into_iter().map(|count| count as f64 / n_tokens).collect()
        })
        .collect();
    let longest = frequencies.iter().map(Vec::len).max().unwrap_or(0).max(10) as f64;
    let lowest = frequencies.iter().flatten().copied().fold(0.1, f64::min);
    let decades = (longest.log10().ceil(), (-lowest.log10()).ceil());
    let x = |rank: f64| rank.log10() / decades.0;
    let y = |share: f64| 1.0 + share.log10() / decades.1;
    let mut plot = start("How often the token of each rank occurs", "rank", "share of all tokens");
    for decade in 0..=decades.1 as i32 {
        let share = 10_f64.powi(-decade);
        plot.grid_line(y(share), share);
    }
    for decade in 0..=decades.0 as i32 {
        let rank = 10_f64.powi(decade);
        plot.mark(x(rank), format_args!("{rank:.0}"));
    }
    for (number, (written, frequencies)) in written.iter().zip(&frequencies).enumerate() {
        let mut points: Vec<_> = (1..).zip(frequencies).map(|(rank, &share)| (x(f64::from(rank)), y(share))).collect();
        // Points that fall together are one.
        points.dedup_by(|point, last| {
            let (point, last) = (plot.pixel(*point), plot.pixel(*last));
            (last.0 - point.0).abs() + (last.1 - point.1).abs() <= 0.8
        });
        named_curve(&mut plot, points, COLORS[number % COLORS.len()], &written.method.name, number);
    }
    plot.finish()
}

/// Canvas, title and axes. Right of the plot is room for the legend.
fn start(title: &str, x_label: &str, y_label: &str) -> Plot {
    let mut plot = Plot::new([860.0, 460.0], [60.0, 640.0], [50.0, 410.0]);
    plot.text((350.0, 28.0), "text-anchor=\"middle\" font-size=\"15\"", title);
    plot.text((350.0, 450.0), "text-anchor=\"middle\"", x_label);
    plot.text((16.0, 230.0), "text-anchor=\"middle\" transform=\"rotate(-90 16 230)\"", y_label);
    plot
}

/// A curve, and its name in the legend.
fn named_curve(plot: &mut Plot, points: impl IntoIterator<Item = (f64, f64)>, color: &str, name: &str, number: usize) {
    plot.curve(points, color);
    let y = 60.0 + 22.0 * number as f64;
    plot.line((660.0, y), 20.0, color, 3.0);
    plot.text((688.0, y + 4.0), "", name);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &str, logprobs: Vec<f32>) -> MethodTexts {
        let method = Method { name: name.to_owned(), decoding: None };
        let text = (0..logprobs.len() as u32).map(|at| at % 3).collect();
        MethodTexts { method, texts: vec![text], logprobs: vec![logprobs], n_ended: 0 }
    }

    #[test]
    fn decoding_figures_plot_the_token_probabilities_without_nan() {
        let all = [written(Method::HUMAN, vec![0.5_f32.ln(), 1_f32.ln()]), written(Method::BEAM, vec![0.0, 0.0, 0.0])];
        let svg = probabilities_svg(&all, 0).unwrap_or_default();
        // A probability of 0.5 is halfway up, 1 is at the top; the human text has two of three tokens and ends halfway
        // to the right.
        assert!(svg.contains("points=\"60.0,230.0 350.0,50.0\""), "{svg}");
        assert_eq!(probabilities_svg(&all[..1], 0), None);
        let svg = distributions_svg(&all);
        assert!(svg.contains("beam 16") && svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
