//! The study of [Holtzman et al. 2019](https://arxiv.org/abs/1904.09751) for any model and any text: compares texts
//! from each decoding method with human text.

mod bootstrap;
mod figures;
mod methods;
mod passages;
mod report;
pub mod statistics;

use anyhow::Result;
use hearth_model::TokenId;
use hearth_training::eval::{
    generation::{GenerationTask, Generator},
    scorer::{Scorer, TextGroup},
};

use self::statistics::{NgramTable, ends_in_repetition, perplexity, self_bleu};

pub use self::bootstrap::{Bootstrap, BootstrapEstimate};
pub use self::figures::{distributions_svg, probabilities_svg};
pub use self::methods::Method;
pub use self::passages::{Passage, PassageSizes, read_passages};
pub use self::report::{DecodingReport, MethodRow, to_markdown};

/// The texts that a method wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct MethodTexts {
    /// The method.
    pub method: Method,
    /// A continuation of each passage's prompt.
    pub texts: Vec<Vec<TokenId>>,
    /// The log-probability in nats of each token under the model itself, whatever the method.
    pub logprobs: Vec<Vec<f32>>,
    /// Number of texts that ended before their length.
    pub n_ended: usize,
}

/// Whether a text may end before its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextEnd {
    /// With a token that ends texts, as in the paper.
    #[default]
    AtEndToken,
    /// No: all texts of a method have the same length.
    AtLength,
}

/// Receives the progress of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StudyProgress<'a> {
    /// The method.
    pub method: &'a str,
    /// Texts that are done.
    pub n_done: usize,
    /// All texts of the method.
    pub n_all: usize,
}

/// Lets each method continue each passage's prompt, and scores the continuations with the model.
///
/// # Errors
/// A passage does not fit the model's context, or the device fails.
pub fn write_texts(
    (generator, scorer): (&Generator, &Scorer),
    methods: Vec<Method>,
    passages: &[Passage],
    (max_tokens, end): (usize, TextEnd),
    progress: &mut dyn FnMut(StudyProgress<'_>),
) -> Result<Vec<MethodTexts>> {
    let n_all = passages.len();
    let write = |method: Method| {
        let mut n_ended = 0;
        let texts: Vec<Vec<TokenId>> = match &method.decoding {
            None => passages.iter().map(|passage| passage.human.clone()).collect(),
            Some(decoding) => {
                let min_tokens = if end == TextEnd::AtLength { max_tokens } else { 0 };
                let task = |(number, passage): (u32, &Passage)| {
                    let (prompt_ids, decoding) = (passage.prompt.clone(), decoding.clone());
                    GenerationTask { prompt_ids, decoding, number, min_tokens, max_tokens }
                };
                let tasks: Vec<GenerationTask> = (0..).zip(passages).map(task).collect();
                let name = &method.name;
                let generated = generator
                    .generate(&tasks, &mut |n_done| progress(StudyProgress { method: name, n_done, n_all }))?;
                n_ended = generated.iter().filter(|text| text.is_ended).count();
                generated.into_iter().map(|text| text.token_ids).collect()
            }
        };
        let groups: Vec<TextGroup> = passages
            .iter()
            .zip(&texts)
            .map(|(passage, text)| TextGroup::of_text([passage.prompt.as_slice(), text].concat(), passage.prompt.len()))
            .collect();
        let logprobs = scorer.logprobs(&groups, &mut |_| {})?.into_iter().flatten().collect();
        Ok(MethodTexts { method, texts, logprobs, n_ended })
    };
    methods.into_iter().map(write).collect()
}

/// The row of a method.
pub fn measure(written: &MethodTexts, bootstrap: &Bootstrap) -> MethodRow {
    let MethodTexts { method, texts, logprobs, n_ended } = written;
    let mean_of = |values: Vec<f64>| {
        bootstrap.estimate(|selection| selection.iter().map(|&text| values[text]).sum::<f64>() / selection.len() as f64)
    };
    let tables = [1, 2, 3].map(|order| NgramTable::new(texts, order));
    let repetitive = texts.iter().map(|text| if ends_in_repetition(text) { 100.0 } else { 0.0 });
    MethodRow {
        method: method.name.clone(),
        perplexity: bootstrap.estimate(|selection| perplexity(logprobs, selection)),
        self_bleu_4: mean_of(self_bleu(texts, 4)),
        self_bleu_5: mean_of(self_bleu(texts, 5)),
        zipf: bootstrap.estimate(|selection| tables[0].zipf(selection)),
        distinct: tables.each_ref().map(|table| bootstrap.estimate(|selection| table.distinct(selection))),
        repetition: mean_of(repetitive.collect()),
        mean_tokens: texts.iter().map(Vec::len).sum::<usize>() as f64 / texts.len().max(1) as f64,
        n_ended: *n_ended,
    }
}
