//! Texts that become vectors, as token ids.

use anyhow::{Result, anyhow, ensure};
use hearth_model::{
    TokenId,
    hub::Download,
    text::tokenizer::{CutAt, EncodeOptions, Tokenizer},
};

use super::{
    ExampleSettings, Examples, TooLong,
    encode::wrong,
    read::{Fitted, read_all},
};
use crate::data::corpus::{
    MARGIN, Marks, NEGATIVE, Origin, Record, RecordOptions, labeled_members, labeled_of, margin_of, pair_members,
    pair_of,
};

/// Texts that belong together, or one with a label.
#[derive(Clone, Debug, PartialEq)]
pub struct TextItem {
    /// The token ids of each text: of an anchor, its positive, and its negative if it has one.
    pub texts: Vec<Vec<TokenId>>,
    /// Where the second text begins, of a pair of texts with a label that are read together.
    pub second_text: Option<usize>,
    /// The label as it is written; empty if there is none.
    pub label: String,
    /// By how much its positive suits the anchor better than its negative, if that is said.
    pub margin: Option<f64>,
    /// File and line, for messages, such as "`data.jsonl`, line 3".
    pub origin: String,
}

/// Reads pairs for contrastive training: `anchor` (or `query`) and `positive`, and `negative` in all records or in none, and with it
/// `margin` or `scores`.
///
/// # Errors
/// As [`read`](super::read()); and a negative, or a margin, in some records only.
pub fn read_text_pairs(
    sources: &[Origin],
    tokenizer: &Tokenizer,
    settings: &ExampleSettings,
    progress: &mut dyn FnMut(Download),
) -> Result<Examples<TextItem>> {
    let members = pair_members();
    let options = RecordOptions {
        members: &members,
        text_member: &settings.text_field,
        expected: "a JSON object with a pair, such as {\"anchor\": \"...\", \"positive\": \"...\"}",
        marks: &Marks::default(),
    };
    let encode = |record: &Record, origin: &str| {
        let (texts, notes) = pair_of(&record.members).map_err(|problem| wrong(origin, problem))?;
        let margin = margin_of(&record.members).map_err(|problem| wrong(origin, problem))?;
        let fitted: Vec<Fitted<Vec<TokenId>>> = texts
            .into_iter()
            .map(|(name, text)| fit(tokenizer, text, settings, &format!("{origin}, `{name}`")))
            .collect::<Result<_>>()?;
        let is_cut = fitted.iter().any(|text| matches!(text, Fitted::Cut { .. }));
        let texts: Option<Vec<Vec<TokenId>>> = fitted.into_iter().map(Fitted::into_kept).collect();
        let origin = origin.to_owned();
        let item = texts.map(|texts| TextItem { texts, second_text: None, label: String::new(), margin, origin });
        let fitted = match item {
            None => Fitted::Dropped,
            Some(kept) if is_cut => Fitted::Cut { kept, is_endless: false },
            Some(kept) => Fitted::Kept(kept),
        };
        Ok((fitted, notes))
    };
    let found = read_all((sources, &settings.validation), options, &encode, progress)?;
    let all = || found.examples.iter().chain(&found.val);
    if let Some(first) = all().next()
        && let Some(other) = all().find(|item| item.texts.len() != first.texts.len())
    {
        let [with, without] = if first.texts.len() > other.texts.len() { [first, other] } else { [other, first] };
        return Err(anyhow!(
            "{}: there is no `{NEGATIVE}`, but there is one in {}\nhint: give all pairs one, or none",
            without.origin,
            with.origin
        ));
    }
    let margin_of_any = |wanted: bool| all().find(|item| item.margin.is_some() == wanted);
    if let (Some(with), Some(without)) = (margin_of_any(true), margin_of_any(false)) {
        return Err(anyhow!(
            "{}: there is no `{MARGIN}` and no `scores`, but there is one in {}\nhint: give all pairs one, or none",
            without.origin,
            with.origin
        ));
    }
    Ok(found)
}

/// Reads texts, or pairs of texts, with their labels: `text` or `text1` and `text2`, and `label`.
///
/// # Errors
/// As [`read`](super::read()).
pub fn read_labeled_texts(
    sources: &[Origin],
    tokenizer: &Tokenizer,
    settings: &ExampleSettings,
    progress: &mut dyn FnMut(Download),
) -> Result<Examples<TextItem>> {
    let members = labeled_members();
    let options = RecordOptions {
        members: &members,
        text_member: &settings.text_field,
        expected: "a JSON object with a text and its label, such as {\"text\": \"...\", \"label\": \"...\"}",
        marks: &Marks::default(),
    };
    let encode = |record: &Record, origin: &str| {
        let ((texts, label), notes) = labeled_of(&record.members).map_err(|problem| wrong(origin, problem))?;
        let origin_of_item = origin.to_owned();
        let item =
            |ids, second_text| TextItem { texts: vec![ids], second_text, label, margin: None, origin: origin_of_item };
        let fitted = match texts[..] {
            [(name, text)] => match fit(tokenizer, text, settings, &format!("{origin}, `{name}`"))? {
                Fitted::Kept(ids) => Fitted::Kept(item(ids, None)),
                Fitted::Cut { kept, is_endless } => Fitted::Cut { kept: item(kept, None), is_endless },
                Fitted::Dropped | Fitted::Same => Fitted::Dropped,
            },
            [(_, one), (_, other)] => {
                let whole = tokenizer.encode_pair([one, other], settings.max_len, EncodeOptions::PROMPT);
                let whole = whole.map_err(|error| anyhow!("{origin}: {error}"))?;
                let kept = item(whole.token_ids, whole.second_text);
                match (whole.n_cut, settings.too_long) {
                    (0, _) => Fitted::Kept(kept),
                    (_, TooLong::Drop) => Fitted::Dropped,
                    (_, TooLong::Cut) => Fitted::Cut { kept, is_endless: false },
                    (n, TooLong::Refuse) => return Err(too_long(origin, settings.max_len + n, settings.max_len)),
                }
            }
            _ => unreachable!("a record has one text or two"),
        };
        Ok((fitted, notes))
    };
    read_all((sources, &settings.validation), options, &encode, progress)
}

fn too_long(origin: &str, n_tokens: usize, max_len: usize) -> anyhow::Error {
    wrong(
        origin,
        (
            format!("the text has {n_tokens} tokens, and the model reads at most {max_len}"),
            "cut long texts with `--set data.too_long=cut`, or leave them out with `--set data.too_long=drop`",
        ),
    )
}

/// The tokens of a text, as `/v1/embeddings` reads it. The tokens that the tokenizer adds are not cut.
fn fit(tokenizer: &Tokenizer, text: &str, settings: &ExampleSettings, origin: &str) -> Result<Fitted<Vec<TokenId>>> {
    let named = |error: hearth_model::Error| anyhow!("{origin}: {error}");
    let ids = tokenizer.encode(text, EncodeOptions::PROMPT).map_err(named)?;
    ensure!(!ids.is_empty(), "{origin}: the text has no tokens\nhint: remove the line");
    let (n_tokens, max_len) = (ids.len(), settings.max_len);
    if n_tokens <= max_len {
        return Ok(Fitted::Kept(ids));
    }
    match settings.too_long {
        TooLong::Refuse => Err(too_long(origin, n_tokens, max_len)),
        TooLong::Drop => Ok(Fitted::Dropped),
        TooLong::Cut => {
            let kept =
                tokenizer.encode_within(text, (max_len, CutAt::End), EncodeOptions::PROMPT).map_err(named)?.token_ids;
            Ok(Fitted::Cut { kept, is_endless: false })
        }
    }
}
