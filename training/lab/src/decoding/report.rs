//! The table of a study.

use serde::Serialize;

use super::bootstrap::BootstrapEstimate;

/// A study of decoding methods.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecodingReport {
    /// The model, as given on the command line.
    pub model: String,
    /// The dtype of most of its matrices.
    pub dtype: String,
    /// Number of passages.
    pub n_passages: usize,
    /// Most tokens of a continuation.
    pub max_tokens: usize,
    /// Number of resampled sets for each interval.
    pub n_resamples: usize,
    /// The seed of sampling and resampling.
    pub seed: u64,
    /// A row per method.
    pub rows: Vec<MethodRow>,
    /// Time of the study.
    pub seconds: f64,
}

/// The measurements of a method.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodRow {
    /// The method's name.
    pub method: String,
    /// Perplexity of the method's texts under the model.
    pub perplexity: BootstrapEstimate,
    /// Mean BLEU of a text against all others, orders 1 to 4.
    pub self_bleu_4: BootstrapEstimate,
    /// As `self_bleu_4`, with order 5.
    pub self_bleu_5: BootstrapEstimate,
    /// The exponent of the rank-frequency distribution of tokens.
    pub zipf: BootstrapEstimate,
    /// Different n-grams of tokens divided by all, of orders 1 to 3.
    pub distinct: [BootstrapEstimate; 3],
    /// Texts that end in a loop, in percent.
    pub repetition: BootstrapEstimate,
    /// Mean length of a text in tokens.
    pub mean_tokens: f64,
    /// Texts that ended before the longest length.
    pub n_ended: usize,
}

/// The table in Markdown: each estimate with its 95 % confidence interval.
pub fn to_markdown(report: &DecodingReport) -> String {
    let mut text = String::from(
        "| method | perplexity | self-BLEU 4 | self-BLEU 5 | Zipf | distinct-1 | distinct-2 | distinct-3 | repetition % | \
         tokens |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in &report.rows {
        let [one, two, three] = row.distinct;
        let cells = [
            shown(row.perplexity, 2),
            shown(row.self_bleu_4, 2),
            shown(row.self_bleu_5, 2),
            shown(row.zipf, 2),
            shown(one, 2),
            shown(two, 2),
            shown(three, 2),
            shown(row.repetition, 0),
        ];
        text += &format!("| {} | {} | {:.0} |\n", row.method, cells.join(" | "), row.mean_tokens);
    }
    text
}

/// A number with its interval in small print.
fn shown(BootstrapEstimate { value, interval }: BootstrapEstimate, digits: usize) -> String {
    match (value, interval) {
        (Some(value), Some([low, high])) => {
            // No interval shows a negative zero.
            let [low, high] =
                [low, high].map(|end| if end.abs() < 0.5 * 0.1_f64.powi(digits as i32) { 0.0 } else { end });
            format!("{value:.digits$} ({low:.digits$} to {high:.digits$})")
        }
        (Some(value), None) => format!("{value:.digits$}"),
        (None, _) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undefined_estimate_is_shown_as_a_dash() {
        let interval = Some([-0.001, 12.349]);
        assert_eq!(shown(BootstrapEstimate { value: Some(1.5), interval }, 2), "1.50 (0.00 to 12.35)");
        assert_eq!(shown(BootstrapEstimate::default(), 2), "-");
    }
}
