//! Generated text against references: translation, and any task with expected answers.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use hearth_model::{
    TokenId,
    text::{
        chat::{Message, RenderContext},
        tokenizer::EncodeOptions,
    },
    weights::model_dir::LoadedModel,
};
use serde::Serialize;

use super::{
    generation::{Decoding, GenerationTask, Generator},
    jsonl::{JsonRecord, read_json_records},
    metrics::{
        Case, Corpus, Segment, SignedScore,
        bleu::bleu,
        chrf::{ChrfKind, chrf},
        exact_match::exact_match,
        rouge_l::{RougeScore, rouge_l},
        ter::ter,
    },
};

/// A prompt and the texts that are expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslationItem {
    /// Where it is, for messages.
    pub place: String,
    /// The prompt.
    pub prompt: String,
    /// The references, at least one.
    pub references: Vec<String>,
}

/// How a prompt reaches the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptForm {
    /// As text that the model continues.
    #[default]
    Text,
    /// As a user's message, through the model's chat template.
    Chat,
}

/// All metrics of a corpus.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CorpusScores {
    /// BLEU, chrF, chrF++ and TER with their signatures.
    pub scores: Vec<SignedScore>,
    /// Hypotheses that equal a reference, in percent.
    pub exact_match: f64,
    /// ROUGE-L, from 0 to 1.
    pub rouge_l: RougeScore,
}

/// Reads items: `source` and `target`, put into `template` (`{source}` is replaced by the source), or `prompt` and
/// `reference`, `references` or `completion`.
///
/// # Errors
/// The file cannot be read or is empty, or an item has another form; the message names the line. The template has no place for
/// the source.
pub fn read_items(path: &Path, template: &str) -> Result<Vec<TranslationItem>> {
    ensure!(
        template.contains("{source}"),
        "the template `{template}` has no place for the source\nhint: put `{{source}}` into it"
    );
    read_json_records(path)?.iter().map(|record| item_of(record, template)).collect()
}

fn item_of(record: &JsonRecord, template: &str) -> Result<TranslationItem> {
    let prompt = match only_one(record, &["source", "prompt"])? {
        Some("source") => template.replace("{source}", record.text("source")?),
        Some(name) => record.text(name)?.to_owned(),
        None => bail!(
            "{}: there is neither `source` nor `prompt`\nhint: use `source` and `target`, or `prompt` and `reference`",
            record.place()
        ),
    };
    let Some(name) = only_one(record, &["target", "reference", "references", "completion"])? else {
        bail!(
            "{}: there is no reference to compare with\nhint: add `target`, `reference` or `references` to this line",
            record.place()
        )
    };
    let references = match record.get(name).is_some_and(serde_json::Value::is_array) {
        true => record.texts(name)?,
        false => vec![record.text(name)?.to_owned()],
    };
    Ok(TranslationItem { place: record.place(), prompt, references })
}

/// The only one of `names` that the record has, if any.
fn only_one<'a>(record: &JsonRecord, names: &[&'a str]) -> Result<Option<&'a str>> {
    let found: Vec<&str> = names.iter().copied().filter(|name| record.has(name)).collect();
    ensure!(
        found.len() < 2,
        "{}: there are both `{}`\nhint: leave one of them out of this line",
        record.place(),
        found.join("` and `")
    );
    Ok(found.first().copied())
}

/// Encodes the prompts of `items`.
///
/// # Errors
/// With [`PromptForm::Chat`], the model has no chat template or it rejects the prompt; a prompt has no tokens, or does
/// not fit the context together with `max_tokens`. The message names the line.
pub fn encode_prompts(
    items: &[TranslationItem],
    model: &LoadedModel,
    form: PromptForm,
    max_tokens: usize,
) -> Result<Vec<Vec<TokenId>>> {
    let config = model.gpt.config();
    let limit = config.max_seq_len;
    let encode = |item: &TranslationItem| {
        let ids = encode(&item.prompt, model, form).with_context(|| item.place.clone())?;
        ensure!(!ids.is_empty(), "{}: the prompt is empty\nhint: correct this line", item.place);
        if config.is_encoder_decoder() {
            ensure!(
                ids.len() <= config.max_source_len(),
                "{}: the source has {} tokens, but the encoder reads at most {}\nhint: shorten it",
                item.place,
                ids.len(),
                config.max_source_len()
            );
            return Ok(ids);
        }
        ensure!(
            ids.len() + max_tokens <= limit,
            "{}: the prompt of {} tokens with {max_tokens} tokens to generate does not fit the model's context of {limit}\nhint: \
             shorten it, or generate fewer tokens: `--max-tokens`",
            item.place,
            ids.len()
        );
        Ok(ids)
    };
    items.iter().map(encode).collect()
}

fn encode(prompt: &str, model: &LoadedModel, form: PromptForm) -> Result<Vec<TokenId>> {
    match (form, &model.chat_template) {
        (PromptForm::Text, _) => Ok(model.tokenizer.encode(prompt, EncodeOptions::PROMPT)?),
        (PromptForm::Chat, Some(template)) => {
            let messages = [Message::new("user", prompt)];
            Ok(template.encode(&model.tokenizer, &messages, &RenderContext::new(&model.tokenizer))?)
        }
        (PromptForm::Chat, None) => {
            bail!("the model has no chat template\nhint: leave `--chat` out, or use a model with a template")
        }
    }
}

/// Generates a text for each prompt: without special tokens and stop strings, and without white space at its ends.
///
/// # Errors
/// As [`Generator::generate`].
pub fn generate_texts(
    generator: &Generator,
    prompts: Vec<Vec<TokenId>>,
    (decoding, max_tokens): (&Decoding, usize),
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<String>> {
    let tasks: Vec<GenerationTask> = (0..)
        .zip(prompts)
        .map(|(number, prompt_ids)| {
            let decoding = decoding.clone();
            GenerationTask { prompt_ids, decoding, number, min_tokens: 0, max_tokens }
        })
        .collect();
    let generated = generator.generate(&tasks, progress)?;
    Ok(generated.iter().map(|generated| generated.text.trim().to_owned()).collect())
}

/// Scores hypotheses against the references of their items.
///
/// # Errors
/// There is no item.
pub fn corpus_of(hypotheses: &[String], items: &[TranslationItem]) -> Result<Corpus> {
    let segments = hypotheses
        .iter()
        .zip(items)
        .map(|(hypothesis, item)| Segment { hypothesis: hypothesis.clone(), references: item.references.clone() });
    Corpus::new(segments.collect())
}

/// All metrics of a corpus. `case`: of BLEU and chrF; TER ignores case as sacrebleu's does by default.
pub fn scores_of(corpus: &Corpus, case: Case) -> CorpusScores {
    CorpusScores {
        scores: vec![
            bleu(corpus, case),
            chrf(corpus, ChrfKind::Chars, case),
            chrf(corpus, ChrfKind::CharsAndWords, case),
            ter(corpus, Case::Lower),
        ],
        exact_match: exact_match(corpus),
        rouge_l: rouge_l(corpus),
    }
}

impl CorpusScores {
    /// A line per metric, in the form of sacrebleu.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for SignedScore { name, score, signature, details } in &self.scores {
            text += format!("{name}|{signature} = {score:.2} {details}").trim_end();
            text.push('\n');
        }
        let RougeScore { precision, recall, f_measure } = self.rouge_l;
        text += &format!("exact match = {:.2} %\n", self.exact_match);
        text + &format!("ROUGE-L = {f_measure:.4} (precision {precision:.4}, recall {recall:.4})\n")
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;

    use super::*;

    fn read(text: &str) -> Result<Vec<TranslationItem>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        fs::write(&path, text).unwrap();
        read_items(&path, "{source} =>")
    }

    #[test]
    fn translation_items_are_read_in_every_form() {
        let items = read(
            "{\"source\": \"eins\", \"target\": \"one\"}\n{\"prompt\": \"p\", \"references\": [\"a\", \"b\"]}\n\
             {\"prompt\": \"p\", \"completion\": \"c\"}\n{\"prompt\": \"p\", \"reference\": \"r\"}",
        );
        let items: Vec<_> = items.unwrap().into_iter().map(|item| (item.prompt, item.references.join("|"))).collect();
        let expected = [("eins =>", "one"), ("p", "a|b"), ("p", "c"), ("p", "r")];
        assert_eq!(items, expected.map(|(prompt, references)| (prompt.to_owned(), references.to_owned())));
    }

    #[test]
    fn invalid_translation_items_are_rejected_by_line() {
        for (text, message) in [
            ("{\"prompt\": \"p\", \"reference\": \"r\"}\n{\"source\": \"a\"}", "line 2: there is no reference"),
            (
                "{\"prompt\": \"p\", \"references\": []}",
                "line 1: `references` must be a list of strings with at least one",
            ),
            (
                "{\"prompt\": \"p\", \"reference\": \"r\", \"references\": [\"s\"]}",
                "line 1: there are both `reference` and `references`",
            ),
            (
                "{\"prompt\": \"p\", \"source\": \"s\", \"target\": \"t\"}",
                "line 1: there are both `source` and `prompt`",
            ),
            ("{\"target\": \"a\"}", "line 1: there is neither `source` nor `prompt`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("\nhint: "), "{error}");
        }
        assert!(read_items(Path::new("absent"), "no place").unwrap_err().to_string().contains("`{source}`"));
    }
}
