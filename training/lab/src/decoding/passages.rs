//! Passages of human text: a prompt for every method, and how a person continued it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use hearth_model::{
    TokenId,
    text::tokenizer::{EncodeOptions, Tokenizer},
};
use hearth_training::{
    data::{continuation::encode_continued, corpus::read_to_string},
    eval::jsonl::read_json_records,
};

/// A prompt and its human continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The prompt's tokens, at least one.
    pub prompt: Vec<TokenId>,
    /// The tokens of the continuation, at least one.
    pub human: Vec<TokenId>,
}

/// Sizes of passages, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassageSizes {
    /// Number of passages.
    pub n_passages: usize,
    /// Tokens of a prompt that is cut off a text.
    pub prompt_tokens: usize,
    /// Most tokens of the continuation.
    pub max_tokens: usize,
}

/// An upper bound of the average number of bytes per token: limits how much text is tokenized for a passage.
const BYTES_PER_TOKEN: usize = 32;

/// Reads passages. JSON lines have `text`, whose first tokens are the prompt, or `prompt` and `human`; the first lines are
/// taken. From a text file, passages begin at paragraphs at equal distances.
///
/// # Errors
/// The file cannot be read or is empty, a record has another form or is too short, or a text has too few paragraphs.
pub fn read_passages(path: &Path, tokenizer: &Tokenizer, sizes: PassageSizes) -> Result<Vec<Passage>> {
    let is_json = path.extension().is_some_and(|extension| extension == "jsonl" || extension == "ndjson");
    let passages = if is_json { of_records(path, tokenizer, sizes) } else { of_text(path, tokenizer, sizes) }?;
    ensure!(
        passages.len() > 1,
        "`{}` has {} passages, but texts are compared with each other: at least 2 are needed\nhint: use a longer file",
        path.display(),
        passages.len()
    );
    Ok(passages)
}

fn of_records(path: &Path, tokenizer: &Tokenizer, sizes: PassageSizes) -> Result<Vec<Passage>> {
    let records = read_json_records(path)?;
    let passages = records.iter().take(sizes.n_passages).map(|record| {
        if record.has("prompt") {
            let prompt = record.text("prompt")?;
            let (ids, human) = encode_continued(tokenizer, prompt, record.text("human")?)?;
            ensure!(
                !ids.is_empty() && !human.is_empty(),
                "{}: `prompt` or `human` is empty\nhint: correct this line",
                record.place()
            );
            return Ok(Passage { prompt: ids, human: human[..human.len().min(sizes.max_tokens)].to_vec() });
        }
        let ids = tokenizer.encode(record.text("text")?, EncodeOptions::PROMPT)?;
        cut(&ids, sizes).with_context(|| {
            format!(
                "{}: the text has {} tokens, and its prompt {}\nhint: use longer texts, or a smaller `--prompt-tokens`",
                record.place(),
                ids.len(),
                sizes.prompt_tokens
            )
        })
    });
    passages.collect()
}

fn of_text(path: &Path, tokenizer: &Tokenizer, sizes: PassageSizes) -> Result<Vec<Passage>> {
    let text = read_to_string(path)?;
    let starts: Vec<usize> = paragraphs(&text).collect();
    let n_tokens = sizes.prompt_tokens + sizes.max_tokens;
    let mut passages: Vec<Passage> = Vec::new();
    let (mut next, mut end) = (0, 0);
    for number in 0..sizes.n_passages {
        // The first paragraph after its share of the file that does not overlap the previous passage.
        next = next.max(starts.len() * number / sizes.n_passages);
        next += starts[next.min(starts.len())..].iter().take_while(|start| **start < end).count();
        let Some(&start) = starts.get(next) else { break };
        let limit = text.floor_char_boundary(text.len().min(start + n_tokens * BYTES_PER_TOKEN));
        let mut ids = tokenizer.encode(&text[start..limit], EncodeOptions::PROMPT)?;
        if ids.len() < n_tokens {
            break;
        }
        ids.truncate(n_tokens);
        end = start + tokenizer.text_bytes(&ids) as usize;
        next += 1;
        passages.extend(cut(&ids, sizes));
    }
    ensure!(
        passages.len() == sizes.n_passages,
        "`{}` has room for {} passages of {n_tokens} tokens that begin with a paragraph, not for {}\nhint: use a longer text, or a \
         smaller `--passages`",
        path.display(),
        passages.len(),
        sizes.n_passages
    );
    Ok(passages)
}

/// Where paragraphs begin: the first line and each line after one or more empty ones, unless it is indented.
fn paragraphs(text: &str) -> impl Iterator<Item = usize> {
    let (mut end, mut is_after_gap) = (0, true);
    text.split_inclusive('\n').filter_map(move |line| {
        let start = end;
        end += line.len();
        let is_first = is_after_gap && !line.starts_with(char::is_whitespace);
        is_after_gap = matches!(line, "\n" | "\r\n");
        is_first.then_some(start)
    })
}

/// The first tokens as the prompt and the tokens after them; `None` if there are too few.
fn cut(ids: &[TokenId], sizes: PassageSizes) -> Option<Passage> {
    let (prompt, rest) = ids.split_at_checked(sizes.prompt_tokens)?;
    let human = &rest[..rest.len().min(sizes.max_tokens)];
    (!human.is_empty() && !prompt.is_empty()).then(|| Passage { prompt: prompt.to_vec(), human: human.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_start_after_one_or_more_empty_lines() {
        let text = "One.\nStill one.\n\nTwo.\n\n\nThree.\n\n\n\nFour.\n\n indented\r\n\r\nFive.\n\n";
        let starts: Vec<&str> = paragraphs(text).filter_map(|start| text[start..].lines().next()).collect();
        assert_eq!(starts, ["One.", "Two.", "Three.", "Four.", "Five."]);
        assert_eq!(paragraphs("\n\nOne.").collect::<Vec<_>>(), [2]);
        assert_eq!(paragraphs("").count(), 0);
    }

    #[test]
    fn passage_requires_a_continuation_after_the_prompt() {
        let sizes = PassageSizes { n_passages: 1, prompt_tokens: 2, max_tokens: 3 };
        assert_eq!(cut(&[1, 2], sizes), None);
        assert_eq!(cut(&[1, 2, 3], sizes), Some(Passage { prompt: vec![1, 2], human: vec![3] }));
        let passage = cut(&[1, 2, 3, 4, 5, 6], sizes);
        assert_eq!(passage, Some(Passage { prompt: vec![1, 2], human: vec![3, 4, 5] }));
    }
}
