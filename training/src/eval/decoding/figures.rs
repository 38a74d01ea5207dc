//! The paper's figures as SVG: the probability of each token that beam search writes, beside that of human text; and the
//! distribution of tokens by rank.

use std::fmt::Write;

use super::{Method, MethodTexts, statistics::NgramTable};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 50.0;
/// Of the plot: the rest is for the legend.
const RIGHT: f64 = 640.0;
const BOTTOM: f64 = 410.0;

/// Colors that are told apart on white; the first is for human text.
const COLORS: [&str; 13] = [
    "#000000", "#cc3311", "#4477aa", "#ee7733", "#009988", "#aa3377", "#bbbbbb", "#ccbb44", "#66ccee", "#228833",
    "#882255", "#999933", "#332288",
];

/// Figure 2 of the paper: for the passage with this index, the probability of each token under the model, of beam search and of
/// human text. `None` if the study had not both.
pub fn probabilities_svg(written: &[MethodTexts], passage: usize) -> Option<String> {
    let of = |name: &str| {
        let logprobs = written.iter().find(|written| written.method.name == name)?.logprobs.get(passage)?;
        Some(logprobs.iter().map(|logprob| f64::from(logprob.exp())).collect::<Vec<f64>>())
    };
    let (beam, human) = (of(Method::BEAM)?, of(Method::HUMAN)?);
    let longest = beam.len().max(human.len()).max(2);
    let x = |at: f64| LEFT + at / (longest - 1) as f64 * (RIGHT - LEFT);
    let y = |probability: f64| BOTTOM - probability * (BOTTOM - TOP);
    let mut svg = start("Probability of each token under the model", "token", "probability");
    for tick in 0..=5 {
        let share = f64::from(tick) / 5.0;
        line_at(&mut svg, y(share), &format!("{share:.1}"));
        mark_at(&mut svg, x(share * (longest - 1) as f64), &format!("{:.0}", share * (longest - 1) as f64));
    }
    for (number, (name, values)) in [(Method::HUMAN, &human), (Method::BEAM, &beam)].into_iter().enumerate() {
        let points = (0..).zip(values).map(|(at, &probability)| (x(f64::from(at)), y(probability)));
        curve(&mut svg, points, COLORS[number], name, number);
    }
    Some(svg + "</svg>\n")
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
    let x = |rank: f64| LEFT + rank.log10() / decades.0 * (RIGHT - LEFT);
    let y = |share: f64| TOP - share.log10() / decades.1 * (BOTTOM - TOP);
    let mut svg = start("How often the token of each rank occurs", "rank", "share of all tokens");
    for decade in 0..=decades.1 as i32 {
        let share = 10_f64.powi(-decade);
        line_at(&mut svg, y(share), &format!("{share}"));
    }
    for decade in 0..=decades.0 as i32 {
        let rank = 10_f64.powi(decade);
        mark_at(&mut svg, x(rank), &format!("{rank:.0}"));
    }
    for (number, (written, frequencies)) in written.iter().zip(&frequencies).enumerate() {
        let points = (1..).zip(frequencies).map(|(rank, &share)| (x(f64::from(rank)), y(share)));
        // Points that fall together are one.
        let mut thinned: Vec<(f64, f64)> = Vec::new();
        for point in points {
            if thinned.last().is_none_or(|last| (last.0 - point.0).abs() + (last.1 - point.1).abs() > 0.8) {
                thinned.push(point);
            }
        }
        curve(&mut svg, thinned.into_iter(), COLORS[number % COLORS.len()], &written.method.name, number);
    }
    svg + "</svg>\n"
}

/// Canvas, title and axes.
fn start(title: &str, x_label: &str, y_label: &str) -> String {
    let (middle_x, middle_y) = ((LEFT + RIGHT) / 2.0, (TOP + BOTTOM) / 2.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n<text x=\"{middle_x}\" y=\"28\" \
         text-anchor=\"middle\" font-size=\"15\">{title}</text>\n<text x=\"{middle_x}\" y=\"{}\" \
         text-anchor=\"middle\">{x_label}</text>\n<text x=\"16\" y=\"{middle_y}\" text-anchor=\"middle\" \
         transform=\"rotate(-90 16 {middle_y})\">{y_label}</text>\n",
        BOTTOM + 40.0
    )
}

/// A horizontal line with its value.
fn line_at(svg: &mut String, y: f64, label: &str) {
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
        LEFT - 6.0,
        y + 4.0
    );
}

/// A value below the plot.
fn mark_at(svg: &mut String, x: f64, label: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", BOTTOM + 18.0);
}

/// A curve, and its name in the legend.
fn curve(svg: &mut String, points: impl Iterator<Item = (f64, f64)>, color: &str, name: &str, number: usize) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let at = TOP + 10.0 + 22.0 * number as f64;
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\" points=\"{}\"/><path d=\"M{} {at}h20\" \
         stroke=\"{color}\" stroke-width=\"3\"/><text x=\"{}\" y=\"{}\">{name}</text>",
        points.join(" "),
        RIGHT + 20.0,
        RIGHT + 48.0,
        at + 4.0
    );
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
    fn the_figures_show_what_was_written() {
        let all = [written(Method::HUMAN, vec![0.5_f32.ln(), 1_f32.ln()]), written(Method::BEAM, vec![0.0, 0.0, 0.0])];
        let svg = probabilities_svg(&all, 0).unwrap_or_default();
        // A probability of one half is half way up, one is at the top; the human text ends half way.
        assert!(
            svg.contains(&format!(
                "points=\"{LEFT:.1},{:.1} {:.1},{TOP:.1}\"",
                (TOP + BOTTOM) / 2.0,
                (LEFT + RIGHT) / 2.0
            )),
            "{svg}"
        );
        assert_eq!(probabilities_svg(&all[..1], 0), None);
        let svg = distributions_svg(&all);
        assert!(svg.contains("beam 16") && svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
