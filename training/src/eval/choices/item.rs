//! Multiple-choice items in the forms of HellaSwag, ARC, MMLU and labeled texts, with the prompts of
//! [lm-eval](https://github.com/EleutherAI/lm-evaluation-harness).

use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::eval::jsonl::{JsonRecord, read_json_records};

/// A question and its possible answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceItem {
    /// Where it is, for messages.
    pub place: String,
    /// The text that the answers continue, after a space.
    pub context: String,
    /// The answers, at least two.
    pub choices: Vec<String>,
    /// The index of the right one.
    pub gold: usize,
}

/// How labeled texts become items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labeling {
    /// All labels, at least two.
    pub labels: Vec<String>,
    /// The prompt, in which `{text}` stands for the text.
    pub template: String,
}

/// Reads the items of a file; with `labeling`, of labeled texts.
///
/// # Errors
/// The file cannot be read or is empty; an item has another form, fewer than two answers, or a right answer that is not among
/// them. The message names the line.
pub fn read_items(path: &Path, labeling: Option<&Labeling>) -> Result<Vec<ChoiceItem>> {
    let records = read_json_records(path)?;
    let items = records.iter().map(|record| match labeling {
        Some(labeling) => labeling.item(record),
        None => item_of(record),
    });
    let items = items.collect::<Result<Vec<_>>>()?;
    for item in &items {
        ensure!(
            item.choices.len() > 1,
            "{}: there must be at least two choices, got {}\nhint: correct this line",
            item.place,
            item.choices.len()
        );
        if let Some(number) = item.choices.iter().position(|choice| choice.trim().is_empty()) {
            bail!("{}: choice {} is empty\nhint: correct this line", item.place, number + 1);
        }
        ensure!(
            !item.context.trim().is_empty(),
            "{}: the text before the choices is empty\nhint: correct this line",
            item.place
        );
    }
    Ok(items)
}

fn item_of(record: &JsonRecord) -> Result<ChoiceItem> {
    match () {
        () if record.has("endings") => hellaswag(record),
        () if record.get("choices").is_some_and(Value::is_array) => mmlu(record),
        () if record.has("choices") => arc(record),
        () if record.has("text") => bail!(
            "{}: this is a labeled text, and its labels are not known\nhint: give all labels with `--labels A,B,...`",
            record.place()
        ),
        () => bail!(
            "{}: this is no multiple-choice item: it has neither `endings` nor `choices`\nhint: use HellaSwag's form (`ctx`, \
             `endings`, `label`), ARC's (`question`, `choices`, `answerKey`) or MMLU's (`question`, `choices`, `answer`)",
            record.place()
        ),
    }
}

/// `ctx`, `endings` and `label`. Items of the data set itself also have `activity_label`, `ctx_a` and `ctx_b`; they are cleaned as
/// lm-eval does it, so that scores compare.
fn hellaswag(record: &JsonRecord) -> Result<ChoiceItem> {
    let endings = record.texts("endings")?;
    let (context, choices) = if record.has("activity_label") && record.has("ctx_a") {
        let second = record.get("ctx_b").and_then(Value::as_str).unwrap_or_default();
        let context = format!("{}: {} {}", record.text("activity_label")?, record.text("ctx_a")?, capitalized(second));
        (cleaned(&context), endings.iter().map(|ending| cleaned(ending)).collect())
    } else {
        (record.text("ctx")?.to_owned(), endings)
    };
    let label = record.label("label")?;
    let gold = label.parse().ok().filter(|&gold: &usize| gold < choices.len()).ok_or_else(|| {
        anyhow!(
            "{}: `label` must be the index of one of the {} endings, from 0, got `{label}`\nhint: correct this line",
            record.place(),
            choices.len()
        )
    })?;
    Ok(ChoiceItem { place: record.place(), context, choices, gold })
}

/// The first letter in upper case, the others in lower case.
fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(chars.as_str().to_lowercase().chars()).collect())
}

/// Without the marks of the data's origin: `[title]`, `[step]` and others.
fn cleaned(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let (mut rest, mut kept) = (&*text, String::new());
    // A bracket that is not closed on its line stays.
    while let Some(open) = rest.find('[') {
        let closed = rest[open..].find(']').filter(|&len| !rest[open..open + len].contains('\n'));
        let Some(len) = closed else {
            kept += &rest[..=open];
            rest = &rest[open + 1..];
            continue;
        };
        kept += &rest[..open];
        rest = &rest[open + len + 1..];
    }
    (kept + rest).replace("  ", " ")
}

/// `question`, `choices` with `text` and `label`, and `answerKey`.
fn arc(record: &JsonRecord) -> Result<ChoiceItem> {
    let place = record.place();
    let list = |name: &str| -> Result<Vec<String>> {
        let list = record.get("choices").and_then(|choices| choices.get(name)).and_then(Value::as_array);
        let texts = list.map(|list| list.iter().map(text_of).collect::<Option<Vec<String>>>());
        texts.flatten().ok_or_else(|| {
            anyhow!("{place}: `choices.{name}` must be a list of strings\nhint: ARC's form is {{\"choices\": {{\"text\": [...], \"label\": [...]}}}}")
        })
    };
    let (choices, labels, key) = (list("text")?, list("label")?, record.label("answerKey")?);
    ensure!(
        choices.len() == labels.len(),
        "{place}: there are {} texts of choices and {} labels\nhint: correct this line",
        choices.len(),
        labels.len()
    );
    let gold = labels.iter().position(|label| *label == key).ok_or_else(|| {
        anyhow!(
            "{place}: `answerKey` is `{key}`, which is not among the labels `{}`\nhint: correct this line",
            labels.join("`, `")
        )
    })?;
    let context = format!("Question: {}\nAnswer:", record.text("question")?);
    Ok(ChoiceItem { place, context, choices, gold })
}

/// The letters of MMLU's answers.
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// `question`, `choices` (a list) and `answer` (an index from 0, or a letter), perhaps with `subject`. The model
/// chooses among the letters, as in lm-eval's MMLU.
fn mmlu(record: &JsonRecord) -> Result<ChoiceItem> {
    let place = record.place();
    let (texts, answer) = (record.texts("choices")?, record.label("answer")?);
    ensure!(
        texts.len() <= LETTERS.len(),
        "{place}: there are {} choices, at most {} are supported\nhint: correct this line",
        texts.len(),
        LETTERS.len()
    );
    let gold = answer.parse().ok().or_else(|| LETTERS.find(&answer).filter(|_| answer.len() == 1));
    let gold = gold.filter(|&gold: &usize| gold < texts.len()).ok_or_else(|| {
        anyhow!(
            "{place}: `answer` must be the index of one of the {} choices, from 0, or its letter, got `{answer}`\nhint: correct this line",
            texts.len()
        )
    })?;
    let letters: Vec<String> = LETTERS.chars().take(texts.len()).map(String::from).collect();
    let mut context = match record.get("subject").and_then(Value::as_str) {
        Some(subject) => {
            let subject = subject.replace('_', " ");
            format!("The following are multiple choice questions (with answers) about {subject}.\n\n")
        }
        None => String::new(),
    };
    context += record.text("question")?.trim();
    letters.iter().zip(&texts).for_each(|(letter, text)| context += &format!("\n{letter}. {text}"));
    context += "\nAnswer:";
    Ok(ChoiceItem { place, context, choices: letters, gold })
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

impl Labeling {
    /// These labels and this template.
    ///
    /// # Errors
    /// There are fewer than two labels, a label is empty or occurs twice, or the template has no place for the text.
    pub fn new(labels: Vec<String>, template: String) -> Result<Self> {
        ensure!(
            labels.len() > 1,
            "there must be at least two different labels, got {}\nhint: one of them is chosen for each text: add others",
            labels.len()
        );
        for (at, label) in labels.iter().enumerate() {
            ensure!(!label.trim().is_empty(), "label {} is empty\nhint: give it a name", at + 1);
            ensure!(!labels[..at].contains(label), "the label `{label}` is there twice\nhint: name each label once");
        }
        ensure!(
            template.contains("{text}"),
            "the template `{template}` has no place for the text\nhint: put `{{text}}` into it"
        );
        Ok(Self { labels, template })
    }

    fn item(&self, record: &JsonRecord) -> Result<ChoiceItem> {
        let (text, label) = (record.text("text")?, record.label("label")?);
        let gold = self.labels.iter().position(|known| *known == label).ok_or_else(|| {
            anyhow!(
                "{}: `label` is `{label}`, which is not among the labels `{}`\nhint: add it to `--labels`, or correct this line",
                record.place(),
                self.labels.join("`, `")
            )
        })?;
        Ok(self.of_text(record.place(), text, gold))
    }

    /// The item that asks for the label of `text`; the right label has index `gold`.
    pub fn of_text(&self, place: String, text: &str, gold: usize) -> ChoiceItem {
        let context = self.template.replace("{text}", text);
        ChoiceItem { place, context, choices: self.labels.clone(), gold }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;

    use super::*;

    fn read(text: &str, labeling: Option<&Labeling>) -> Result<Vec<ChoiceItem>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        fs::write(&path, text).unwrap();
        read_items(&path, labeling)
    }

    #[test]
    fn multiple_choice_items_are_read_in_every_form() {
        let own = r#"{"ctx": "The cat", "endings": ["sat.", "flew."], "label": "1"}"#;
        let item = read(own, None).unwrap().remove(0);
        assert_eq!((item.context.as_str(), item.gold), ("The cat", 1));
        let original = r#"{"activity_label": "Baking", "ctx_a": "[header] A cook [title] stirs", "ctx_b": "the COOK", "ctx": "", "endings": [" [step] eats  it.", "b"], "label": 0}"#;
        let item = read(original, None).unwrap().remove(0);
        assert_eq!(item.context, "Baking: A cook. stirs The cook");
        assert_eq!(item.choices, [" eats it.", "b"]);
        let arc = r#"{"question": "Why?", "choices": {"text": ["so", "no"], "label": ["A", "B"]}, "answerKey": "B"}"#;
        let item = read(arc, None).unwrap().remove(0);
        assert_eq!((item.context.as_str(), item.gold), ("Question: Why?\nAnswer:", 1));
        let mmlu = r#"{"question": " Why? ", "subject": "abstract_algebra", "choices": ["so", "no"], "answer": 1}"#;
        for (text, subject) in [
            (mmlu.to_owned(), "The following are multiple choice questions (with answers) about abstract algebra.\n\n"),
            (mmlu.replace("\"subject\": \"abstract_algebra\", ", "").replace("1}", "\"B\"}"), ""),
        ] {
            let item = read(&text, None).unwrap().remove(0);
            assert_eq!((item.context, item.gold), (format!("{subject}Why?\nA. so\nB. no\nAnswer:"), 1));
            assert_eq!(item.choices, ["A", "B"]);
        }
        let labeling = Labeling::new(vec!["bad".into(), "good".into()], "Text: {text}\nMood:".into()).unwrap();
        let item = read(r#"{"text": "Fine day", "label": "good"}"#, Some(&labeling)).unwrap().remove(0);
        assert_eq!((item.context.as_str(), item.gold), ("Text: Fine day\nMood:", 1));
    }

    #[test]
    fn invalid_multiple_choice_items_are_rejected_by_line() {
        let labeling = Labeling::new(vec!["a".into(), "b".into()], "{text}".into()).unwrap();
        for (text, labeling, message) in [
            (
                r#"{"ctx": "c", "endings": ["x", "y"], "label": 2}"#,
                None,
                "`label` must be the index of one of the 2 endings",
            ),
            (r#"{"ctx": "c", "endings": ["x"], "label": 0}"#, None, "at least two choices, got 1"),
            (r#"{"ctx": "c", "endings": ["x", " "], "label": 0}"#, None, "choice 2 is empty"),
            (r#"{"ctx": " ", "endings": ["x", "y"], "label": 0}"#, None, "the text before the choices is empty"),
            (
                r#"{"question": "q", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "C"}"#,
                None,
                "`answerKey` is `C`",
            ),
            (
                r#"{"question": "q", "choices": {"text": ["x", "y"], "label": ["A"]}, "answerKey": "A"}"#,
                None,
                "2 texts of choices and 1 labels",
            ),
            (r#"{"question": "q", "choices": {"text": "x"}, "answerKey": "A"}"#, None, "`choices.text` must be a list"),
            (r#"{"question": "q", "choices": ["x", "y"], "answerKey": "A"}"#, None, "`answer`"),
            (
                r#"{"question": "q", "choices": ["x", "y"], "answer": 2}"#,
                None,
                "`answer` must be the index of one of the 2 choices",
            ),
            (r#"{"text": "t", "label": "a"}"#, None, "`--labels A,B,...`"),
            (r#"{"story": "t"}"#, None, "neither `endings` nor `choices`"),
            (
                r#"{"text": "t", "label": "c"}"#,
                Some(&labeling),
                "`label` is `c`, which is not among the labels `a`, `b`",
            ),
        ] {
            let error = read(text, labeling).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("line 1") && error.contains("\nhint: "), "{error}");
        }
    }

    #[test]
    fn labeling_rejects_indistinct_labels_and_a_template_without_text() {
        for (labels, template) in
            [(vec!["a"], "{text}"), (vec!["a", "a"], "{text}"), (vec!["a", ""], "{text}"), (vec!["a", "b"], "text")]
        {
            let labels = labels.into_iter().map(str::to_owned).collect();
            let error = Labeling::new(labels, template.to_owned()).unwrap_err().to_string();
            // The hint must not name `--labels`: `classify` has no such option.
            assert!(error.contains("\nhint: ") && !error.contains("--labels"), "{error}");
        }
    }
}
