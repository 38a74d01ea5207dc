//! Examples for encoder-decoders: a source, and the target that the model learns to write.

use anyhow::Result;
use hearth_model::{
    Error, TokenId,
    hub::Download,
    text::tokenizer::{EncodeOptions, Tokenizer},
};

use super::{
    Example, ExampleSettings, Examples, TooLong,
    encode::wrong,
    read::{Fitted, read_all},
};
use crate::data::corpus::{FieldNames, Marks, Origin, Record, RecordOptions, SourceTarget, source_target_members};

/// A source and its target as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The encoder's input.
    pub source: Vec<TokenId>,
    /// The decoder's target: the start token, which is not trained, then the target with its end.
    pub target: Example,
}

/// Encodes sources and targets for a model.
#[derive(Clone, Debug)]
pub struct TranslationEncoder {
    /// The tokenizer of sources.
    pub sources: Tokenizer,
    /// The tokenizer of targets, which is another one in Marian's models.
    pub targets: Tokenizer,
    /// The tokens with which the decoder begins; not empty.
    pub decoder_start: Vec<TokenId>,
    /// Tokens that end a target.
    pub eos_token_ids: Vec<TokenId>,
    /// The members of source and target; `None`: the usual ones.
    pub fields: Option<[String; 2]>,
    /// The text before each source.
    pub source_prefix: String,
    /// The text at the start of each target, in place of the tokens that the tokenizer adds around a text: the language
    /// token.
    pub decoder_prompt: Option<String>,
}

impl TranslationEncoder {
    fn encode(&self, pair: &SourceTarget, origin: &str) -> Result<Translation, Error> {
        let source = format!("{}{}", self.source_prefix, pair.source);
        let source = self.sources.encode(&source, EncodeOptions::PROMPT)?;
        let (start, forced) = self.decoder_start.split_at(1);
        let mut ids = start.to_vec();
        match &self.decoder_prompt {
            Some(prompt) => {
                ids.extend(self.targets.encode(prompt, EncodeOptions::RENDERED)?);
                ids.extend(self.targets.encode(&pair.target, EncodeOptions::RENDERED)?);
            }
            None => {
                let target = self.targets.encode(&pair.target, EncodeOptions::PROMPT)?;
                // Tokens that generation forces are not duplicated.
                ids.extend(forced.iter().filter(|forced| target.first() != Some(forced)));
                ids.extend(target);
            }
        }
        // mBART has the language token after the end token.
        if !ids[1..].iter().rev().take(2).any(|id| self.eos_token_ids.contains(id)) {
            ids.extend(self.eos_token_ids.first());
        }
        let trained = (0..ids.len()).map(|at| at > 0).collect();
        Ok(Translation { source, target: Example { ids, trained, origin: origin.to_owned() } })
    }

    /// The translation within the limit: source and target have at most as many tokens as a row has inputs.
    fn fit(&self, mut pair: Translation, settings: &ExampleSettings) -> Result<Fitted<Translation>> {
        let limit = settings.max_len;
        let lens = [("source", pair.source.len()), ("target", pair.target.ids.len() - 1)];
        let Some((what, len)) = lens.into_iter().find(|(_, len)| *len > limit) else { return Ok(Fitted::Kept(pair)) };
        match settings.too_long {
            TooLong::Refuse => Err(wrong(
                &pair.target.origin,
                (
                    format!("its {what} has {len} tokens, at most {limit} fit into a row (`model.max_seq_len`)"),
                    "leave long ones out with `--set data.too_long=drop`, or cut them with `--set data.too_long=cut`",
                ),
            )),
            TooLong::Drop => Ok(Fitted::Dropped),
            TooLong::Cut => {
                if pair.source.len() > limit {
                    // The token that ends a source stays.
                    let last = pair.source.last().copied().filter(|last| self.sources.is_special(*last));
                    pair.source.truncate(limit);
                    pair.source.splice(limit - usize::from(last.is_some()).., last);
                }
                let is_endless = pair.target.ids.len() > limit + 1;
                pair.target.ids.truncate(limit + 1);
                pair.target.trained.truncate(limit + 1);
                Ok(Fitted::Cut { kept: pair, is_endless })
            }
        }
    }
}

/// Reads records with sources and targets, in all layouts of `SourceTarget`, from jsonl, JSON arrays, CSV, TSV and Parquet.
///
/// # Errors
/// A source cannot be read or has no records, or a record has no source or target or a too long one; the message has file and line.
pub fn read_translations(
    sources: &[Origin],
    encoder: &TranslationEncoder,
    settings: &ExampleSettings,
    progress: &mut dyn FnMut(Download),
) -> Result<Examples<Translation>> {
    let fields: &FieldNames = &encoder.fields;
    let members = source_target_members(fields);
    let options = RecordOptions {
        members: &members,
        text_member: "text",
        expected: "a JSON object with a source and a target, such as {\"source\": \"...\", \"target\": \"...\"}",
        marks: &Marks::default(),
    };
    let encode = |record: &Record, origin: &str| {
        let (pair, notes) = SourceTarget::of(&record.members, fields).map_err(|problem| wrong(origin, problem))?;
        let pair = encoder.encode(&pair, origin).map_err(|error| anyhow::anyhow!("{origin}: {error}"))?;
        Ok((encoder.fit(pair, settings)?, notes))
    };
    read_all((sources, &settings.validation), options, &encode, progress)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::data::tokenizer_build::{BuiltTokenizer, SpecialTokens};

    /// The letters have the ids from 0 to 7; `</s>` is 8, `<s>` 9, `<pad>` 10 and `<mask>` 11.
    fn encoder() -> TranslationEncoder {
        let letters = "abcdefgh".chars().collect();
        let tokenizer =
            BuiltTokenizer::from_characters(&letters, &SpecialTokens::of_encoder()).unwrap().open().unwrap();
        TranslationEncoder {
            sources: tokenizer.clone(),
            targets: tokenizer,
            decoder_start: vec![10],
            eos_token_ids: vec![8],
            fields: None,
            source_prefix: "h".to_owned(),
            decoder_prompt: None,
        }
    }

    fn pair(source: &str, target: &str) -> SourceTarget {
        SourceTarget { source: source.to_owned(), target: target.to_owned() }
    }

    #[test]
    fn target_begins_with_the_decoders_tokens_and_ends() {
        let found = encoder().encode(&pair("ab", "cd"), "").unwrap();
        assert_eq!((found.source, &*found.target.ids), (vec![9, 7, 0, 1, 8], &[10, 9, 2, 3, 8][..]));
        assert_eq!(found.target.trained, [false, true, true, true, true]);
        let forced = TranslationEncoder { decoder_start: vec![10, 9], ..encoder() };
        assert_eq!(forced.encode(&pair("ab", "cd"), "").unwrap().target.ids, [10, 9, 2, 3, 8]);
        let forced = TranslationEncoder { decoder_start: vec![10, 11], ..encoder() };
        assert_eq!(forced.encode(&pair("ab", "cd"), "").unwrap().target.ids, [10, 11, 9, 2, 3, 8]);
        let prompted = TranslationEncoder { decoder_prompt: Some("<mask>".to_owned()), ..encoder() };
        assert_eq!(prompted.encode(&pair("ab", "cd"), "").unwrap().target.ids, [10, 11, 2, 3, 8]);
    }

    #[test]
    fn long_sources_and_targets_are_refused_cut_or_left_out() {
        let settings =
            |too_long| ExampleSettings { max_len: 5, too_long, text_field: "text".to_owned(), validation: Vec::new() };
        let encoder = encoder();
        let fit = |source: &str, target: &str, too_long| {
            encoder.fit(encoder.encode(&pair(source, target), "line 1").unwrap(), &settings(too_long))
        };
        assert!(matches!(fit("ab", "cde", TooLong::Refuse), Ok(Fitted::Kept(_))));
        for (source, target, message) in [
            ("abcd", "c", "line 1: its source has 7 tokens, at most 5 fit"),
            ("a", "cdefgh", "line 1: its target has 8 tokens, at most 5 fit"),
        ] {
            let Err(error) = fit(source, target, TooLong::Refuse) else { unreachable!("it is too long") };
            assert!(error.to_string().contains(message), "{error}");
            assert!(matches!(fit(source, target, TooLong::Drop), Ok(Fitted::Dropped)));
        }
        let Ok(Fitted::Cut { kept, is_endless }) = fit("abcd", "cdefgh", TooLong::Cut) else {
            unreachable!("it is cut")
        };
        assert_eq!((kept.source, kept.target.ids, is_endless), (vec![9, 7, 0, 1, 8], vec![10, 9, 2, 3, 4, 5], true));
    }
}
