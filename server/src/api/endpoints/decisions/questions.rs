//! The questions of a request: reading them, writing them for the model, and their answers.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::{
    error::ApiError,
    wire::{
        fields::{Fields, missing, must_be},
        schema,
    },
};

/// Maximum number of questions, as at OpenAI.
const MAX_QUESTIONS: usize = 400;

/// Maximum number of options of a question, as at OpenAI.
const MAX_OPTIONS: usize = 255;

/// A question.
#[derive(Debug)]
pub(super) struct Question {
    name: Option<String>,
    instructions: String,
    kind: QuestionKind,
}

#[derive(Debug)]
enum QuestionKind {
    /// How likely it is that a statement is true.
    Predicate,
    /// A choice among these options.
    Choice(Vec<ChoiceOption>),
    /// A choice among these levels, in their order.
    Score(Vec<Level>),
}

#[derive(Debug)]
struct ChoiceOption {
    /// A string or a boolean.
    value: Value,
    description: Option<String>,
}

#[derive(Debug)]
struct Level {
    label: String,
    description: Option<String>,
}

/// The set of labels that the model may answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelKind {
    YesOrNo,
    /// From 0.
    Digits,
    Letters,
}

/// An answer.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "DecisionAnswer")]
pub(super) enum Answer {
    Predicate { name: Option<String>, probability: f64 },
    Choice { name: Option<String>, choice: Value, confidence: f64, probabilities: Vec<ChoiceProbability> },
    Score { name: Option<String>, score: f64, confidence: f64, probabilities: Vec<ScoreProbability> },
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ChoiceProbability {
    value: Value,
    probability: f64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ScoreProbability {
    /// The level's place, from 0.
    value: usize,
    label: String,
    probability: f64,
}

impl Question {
    /// Reads `questions`.
    pub(super) fn list(fields: &mut Fields) -> Result<Vec<Self>, ApiError> {
        let items = fields.require("questions", Fields::objects)?;
        let n_questions = items.len();
        if !(1..=MAX_QUESTIONS).contains(&n_questions) {
            let message = format!("`questions` must hold from 1 to {MAX_QUESTIONS} questions, got {n_questions}");
            return Err(ApiError::invalid("questions", message));
        }
        items.into_iter().map(Self::from_fields).collect()
    }

    fn from_fields(mut item: Fields) -> Result<Self, ApiError> {
        #[derive(Clone, Copy)]
        enum Type {
            Predicate,
            Choice,
            Score,
        }
        let types = [("predicate", Type::Predicate), ("choice", Type::Choice), ("score", Type::Score)];
        let kind = item.require("type", |item, name| item.one_of(name, &types))?;
        let instructions = instructions(&mut item)?;
        let name = item.string("name")?;
        let kind = match (kind, choices(&mut item)?, levels(&mut item)?) {
            (Type::Predicate, None, None) => QuestionKind::Predicate,
            (Type::Choice, Some(choices), None) => QuestionKind::Choice(choices),
            (Type::Score, None, Some(levels)) => QuestionKind::Score(levels),
            (Type::Choice, None, _) => return Err(missing(item.path("choices"))),
            (Type::Score, _, None) => return Err(missing(item.path("levels"))),
            (Type::Predicate | Type::Score, Some(_), _) => return Err(only_for(&item, "choices", "choice")),
            (Type::Predicate | Type::Choice, _, Some(_)) => return Err(only_for(&item, "levels", "score")),
        };
        Ok(Self { name, instructions, kind })
    }

    /// The number of labels that it needs.
    pub(super) fn n_labels(&self) -> usize {
        match &self.kind {
            QuestionKind::Predicate => 2,
            QuestionKind::Choice(choices) => choices.len(),
            QuestionKind::Score(levels) => levels.len(),
        }
    }

    /// The labels that suit it best.
    pub(super) fn label_kind(&self) -> LabelKind {
        match &self.kind {
            QuestionKind::Predicate => LabelKind::YesOrNo,
            QuestionKind::Score(levels) if levels.len() <= 10 => LabelKind::Digits,
            QuestionKind::Choice(_) | QuestionKind::Score(_) => LabelKind::Letters,
        }
    }

    /// The question as the model reads it.
    pub(super) fn prompt(&self, labels: &[String]) -> String {
        let line = |label: &String, text: &str, description: Option<&String>| match description {
            Some(description) => format!("{label}: {text} - {description}\n"),
            None => format!("{label}: {text}\n"),
        };
        let instructions = &self.instructions;
        let listed: String = match &self.kind {
            QuestionKind::Predicate => {
                let [yes, no] = [0, 1].map(|at| labels.get(at).map(String::as_str).unwrap_or_default());
                return format!("Is this statement true?\n{instructions}\n\nAnswer with `{yes}` if it is, or `{no}`.");
            }
            QuestionKind::Choice(choices) => {
                let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let lines = labels.iter().zip(choices);
                lines.map(|(label, one)| line(label, &shown(&one.value), one.description.as_ref())).collect()
            }
            QuestionKind::Score(levels) => {
                let lines = labels.iter().zip(levels);
                lines.map(|(label, level)| line(label, &level.label, level.description.as_ref())).collect()
            }
        };
        format!("{instructions}\n\n{listed}\nAnswer with the label of one line, which is in front of its colon.")
    }

    /// The answer, from the model's own log-probabilities of the labels.
    pub(super) fn answer(self, logprobs: &[f32]) -> Answer {
        let Distribution { probabilities, most, confidence } = Distribution::of(logprobs);
        let name = self.name;
        match self.kind {
            QuestionKind::Predicate => {
                Answer::Predicate { name, probability: probabilities.first().copied().unwrap_or(0.0) }
            }
            QuestionKind::Choice(choices) => Answer::Choice {
                name,
                choice: choices.get(most).map(|choice| choice.value.clone()).unwrap_or_default(),
                confidence,
                probabilities: choices
                    .into_iter()
                    .zip(probabilities)
                    .map(|(choice, probability)| ChoiceProbability { value: choice.value, probability })
                    .collect(),
            },
            QuestionKind::Score(levels) => Answer::Score {
                name,
                score: probabilities.iter().enumerate().map(|(value, probability)| value as f64 * probability).sum(),
                confidence,
                probabilities: levels
                    .into_iter()
                    .zip(probabilities)
                    .enumerate()
                    .map(|(value, (level, probability))| ScoreProbability { value, label: level.label, probability })
                    .collect(),
            },
        }
    }
}

/// The probabilities of labels.
struct Distribution {
    /// Among the labels: they sum to 1.
    probabilities: Vec<f64>,
    /// The index of the most likely label, the lowest among equals.
    most: usize,
    /// The most likely label's probability among all tokens.
    confidence: f64,
}

impl Distribution {
    fn of(logprobs: &[f32]) -> Self {
        let largest = logprobs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if largest == f32::NEG_INFINITY {
            // The model rules out all labels, so it prefers none.
            let probabilities = vec![1.0 / logprobs.len().max(1) as f64; logprobs.len()];
            return Self { probabilities, most: 0, confidence: 0.0 };
        }
        let weights: Vec<f64> = logprobs.iter().map(|logprob| f64::from(logprob - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        Self {
            probabilities: weights.into_iter().map(|weight| weight / total).collect(),
            most: logprobs.iter().position(|logprob| *logprob == largest).unwrap_or(0),
            confidence: f64::from(largest).exp().min(1.0),
        }
    }
}

/// Reads `instructions`: a string, or parts that are text or JSON.
fn instructions(item: &mut Fields) -> Result<String, ApiError> {
    const NAME: &str = "instructions";
    let part = || {
        let text = json!({ "type": { "enum": ["input_text"] }, "text": schema::string() });
        let data = json!({ "type": { "enum": ["input_json"] }, "data": { "type": ["object", "array"] } });
        schema::any_of([
            json!({ "type": "object", "properties": text, "required": ["type", "text"] }),
            json!({ "type": "object", "properties": data, "required": ["type", "data"] }),
        ])
    };
    let schema = || schema::any_of([schema::string(), schema::array(part(), 1)]);
    match item.require(NAME, |item, name| Ok(item.take_as(name, schema)))? {
        Value::String(text) => Ok(text),
        Value::Array(parts) => super::super::responses::texts_and_json(item, NAME, parts),
        other => Err(must_be(item.path(NAME), "a string or an array of parts", &other)),
    }
}

/// The error for a member that the type of the question does not have.
fn only_for(item: &Fields, name: &'static str, kind: &str) -> ApiError {
    let path = item.path(name);
    let message = format!("`{path}` is only for questions of the type `{kind}`");
    ApiError::invalid(path, message)
}

fn choices(item: &mut Fields) -> Result<Option<Vec<ChoiceOption>>, ApiError> {
    let mut choices: Vec<ChoiceOption> = Vec::new();
    let Some(options) = options(item, "choices")? else { return Ok(None) };
    for mut choice in options {
        let schema = || schema::any_of([schema::string(), schema::flag()]);
        let value = choice.require("value", |choice, name| Ok(choice.take_as(name, schema)))?;
        if !value.is_string() && !value.is_boolean() {
            return Err(must_be(choice.path("value"), "a string or a boolean", &value));
        }
        if choices.iter().any(|other| other.value == value) {
            let message = format!("`{}` must be unique, got {value} twice", choice.path("value"));
            return Err(ApiError::invalid(choice.path("value"), message));
        }
        choices.push(ChoiceOption { value, description: choice.string("description")? });
    }
    Ok(Some(choices))
}

fn levels(item: &mut Fields) -> Result<Option<Vec<Level>>, ApiError> {
    let level = |mut level: Fields| {
        let label = level.require("label", Fields::string)?;
        Ok::<_, ApiError>(Level { label, description: level.string("description")? })
    };
    options(item, "levels")?.map(|options| options.into_iter().map(level).collect()).transpose()
}

/// The objects of `choices` or `levels`.
fn options(item: &mut Fields, name: &'static str) -> Result<Option<Vec<Fields>>, ApiError> {
    let Some(options) = item.objects(name)? else { return Ok(None) };
    if !(2..=MAX_OPTIONS).contains(&options.len()) {
        let path = item.path(name);
        let message = format!("`{path}` must hold from 2 to {MAX_OPTIONS} entries, got {}", options.len());
        return Err(ApiError::invalid(path, message));
    }
    Ok(Some(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_among_the_labels_and_the_confidence_is_among_all_tokens() {
        let Distribution { probabilities, most, confidence } =
            Distribution::of(&[0.1_f32.ln(), 0.3_f32.ln(), 0.1_f32.ln()]);
        for (probability, expected) in probabilities.iter().zip([0.2, 0.6, 0.2]) {
            assert!((probability - expected).abs() < 1e-6, "{probabilities:?}");
        }
        assert_eq!(most, 1);
        assert!((confidence - 0.3).abs() < 1e-6);
        let none = Distribution::of(&[f32::NEG_INFINITY; 4]);
        assert_eq!((none.probabilities, none.most, none.confidence), (vec![0.25; 4], 0, 0.0));
        // So unlikely that their probabilities round to 0.
        let rare = Distribution::of(&[-200.0, -200.0]);
        assert_eq!((rare.probabilities, rare.confidence < 1e-80), (vec![0.5; 2], true));
    }
}
