//! Scores a model's texts.
//!
//! The judge does not ask for a tale that the grammar could have made: a model may put things differently. It looks for
//! faults that a reader would notice: a name that nobody introduced, an object that became another one, an element that
//! was asked for and is missing, an ending of another story, an answer that is wrong.

mod ending;
mod file;
mod lexicon;
mod shuffle;
mod story;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use self::{ending::Endings, lexicon::Lexicon};
pub use self::{file::Judged, shuffle::shuffle_names};
use super::{Tales, tale::Task};

/// A criterion of judgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Criterion {
    /// A story has all elements that were asked for.
    Elements,
    /// Every name was introduced, asked for or mentioned before.
    Names,
    /// Pronouns fit the gender of the characters.
    Pronouns,
    /// The object of the story stays the same.
    Object,
    /// The ending belongs to the plot.
    Ending,
    /// The answer is right.
    Answer,
    /// The text is complete and does not repeat itself.
    Complete,
}

impl Criterion {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Criterion::Elements => "elements",
            Criterion::Names => "names",
            Criterion::Pronouns => "pronouns",
            Criterion::Object => "object",
            Criterion::Ending => "ending",
            Criterion::Answer => "answer",
            Criterion::Complete => "complete",
        }
    }
}

/// The checked criteria, and whether each holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict(pub Vec<(Criterion, bool)>);

impl Verdict {
    /// Whether all criteria hold.
    pub fn passes(&self) -> bool {
        self.0.iter().all(|&(_, holds)| holds)
    }
}

/// Judges texts.
#[derive(Clone, Debug)]
pub struct Judge {
    lexicon: Lexicon,
    endings: Endings,
}

impl Judge {
    /// A judge of tales.
    pub fn new(tales: &Tales) -> Judge {
        let lexicon = Lexicon::new(&tales.grammar);
        let endings = Endings::new(&tales.grammar);
        Judge { lexicon, endings }
    }

    /// Judges the last message.
    pub fn judge(&self, judged: &Judged) -> Verdict {
        match judged.expected.task {
            Task::Story => Verdict(self.story(judged)),
            Task::Question => Verdict(vec![
                (Criterion::Answer, self.has_answer(judged)),
                (Criterion::Names, self.knows_names(judged)),
                (Criterion::Complete, is_complete(&judged.text, 1..40)),
            ]),
            Task::Talk => Verdict(vec![
                (Criterion::Answer, self.has_answer(judged)),
                (Criterion::Complete, is_complete(&judged.text, 1..60)),
            ]),
        }
    }

    /// Whether the text has all that a right answer must have.
    fn has_answer(&self, judged: &Judged) -> bool {
        let text = lexicon::normalized(&judged.text);
        judged.expected.answer.iter().all(|part| text.contains(&lexicon::normalized(part)))
    }

    /// Whether all names of the text were mentioned before.
    fn knows_names(&self, judged: &Judged) -> bool {
        let before: Vec<&str> = judged.before.iter().flat_map(|text| lexicon::bare_words(text)).collect();
        self.lexicon.read(&judged.text).names().iter().all(|name| before.contains(&name.as_str()))
    }
}

/// Whether a text has a complete ending, has a number of words in `range`, and repeats nothing.
fn is_complete(text: &str, range: std::ops::Range<usize>) -> bool {
    let n_words = text.split_whitespace().count();
    let mut sentences: Vec<&str> = text.split_inclusive(['.', '!', '?']).map(str::trim).collect();
    sentences.retain(|sentence| sentence.split_whitespace().count() > 4);
    let n_sentences = sentences.len();
    sentences.sort_unstable();
    sentences.dedup();
    text.trim_end().ends_with(['.', '!', '?', '"']) && range.contains(&n_words) && sentences.len() == n_sentences
}

/// Shares of the judged texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    tasks: BTreeMap<&'static str, Score>,
}

/// The score of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Score {
    n_judged: u64,
    n_passed: u64,
    /// How often each criterion was looked at, and how often it held.
    criteria: BTreeMap<Criterion, (u64, u64)>,
}

impl Scores {
    /// Counts a verdict.
    pub fn add(&mut self, task: Task, verdict: &Verdict) {
        let score = self.tasks.entry(task.name()).or_default();
        score.n_judged += 1;
        score.n_passed += u64::from(verdict.passes());
        for &(criterion, holds) in &verdict.0 {
            let (n_judged, n_held) = score.criteria.entry(criterion).or_default();
            *n_judged += 1;
            *n_held += u64::from(holds);
        }
    }

    /// The share of all texts that pass.
    pub fn share(&self) -> f64 {
        let sum = |count: fn(&Score) -> u64| self.tasks.values().map(count).sum::<u64>() as f64;
        sum(|score| score.n_passed) / sum(|score| score.n_judged).max(1.0)
    }

    /// A line for each task.
    pub fn lines(&self) -> Vec<String> {
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole as f64;
        let line = |(task, score): (&&str, &Score)| {
            let criterion = |(criterion, &(judged, held)): (&Criterion, &(u64, u64))| {
                format!("{} {:.1} %", criterion.name(), percent(held, judged))
            };
            let criteria: Vec<String> = score.criteria.iter().map(criterion).collect();
            let passed = percent(score.n_passed, score.n_judged);
            format!("{task}: {passed:.1} % of {} pass ({})", score.n_judged, criteria.join(", "))
        };
        self.tasks.iter().map(line).collect()
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let mut json = Map::new();
        for (&task, score) in &self.tasks {
            let share = |(criterion, &(judged, held)): (&Criterion, &(u64, u64))| {
                (criterion.name().to_owned(), json!(held as f64 / judged as f64))
            };
            let criteria: Map<String, Value> = score.criteria.iter().map(share).collect();
            let passed = score.n_passed as f64 / score.n_judged as f64;
            json.insert(task.into(), json!({ "judged": score.n_judged, "passed": passed, "criteria": criteria }));
        }
        json.insert("passed".into(), json!(self.share()));
        Value::Object(json)
    }
}
