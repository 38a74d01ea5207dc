//! What happens to texts that are too long to be scored.

use std::borrow::Cow;

use hearth_engine::ServedModel;
use hearth_model::text::tokenizer::{DecodeOptions, EncodeOptions};

use super::{
    prompt::{self, Truncation},
    vectors::{Tokens, cannot_encode},
};
use crate::api::{error::ApiError, wire::fields::Fields};

/// Most tokens of a document in Cohere's API, unless a request says otherwise.
const COHERE_DOCUMENT: usize = 4096;

/// Whether, and how far, texts are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cutting {
    /// `None`: a text that does not fit is refused.
    truncation: Option<Truncation>,
    /// Most tokens of a document by itself.
    document: Option<usize>,
    /// How a request asks for it.
    hint: &'static str,
}

impl Cutting {
    /// vLLM's fields: `truncate_prompt_tokens`.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let truncation = prompt::truncation(fields)?;
        Ok(Self { truncation, document: None, hint: "`truncate_prompt_tokens: -1` cuts it at its end" })
    }

    /// The same, and `max_tokens_per_doc`, which vLLM and Cohere have. In Cohere's API texts are cut if the request does not say
    /// otherwise.
    pub(crate) fn of_documents(fields: &mut Fields, is_cohere: bool) -> Result<Self, ApiError> {
        let cutting = Self::from_fields(fields)?;
        let document = fields.count("max_tokens_per_doc", 1..=usize::MAX)?;
        Ok(match is_cohere {
            true => Self {
                truncation: cutting.truncation.or(Some(Truncation::Fitting)),
                document: document.or(Some(COHERE_DOCUMENT)),
                ..cutting
            },
            false => Self { document, ..cutting },
        })
    }

    /// Those of text-embeddings-inference: `truncate`, from the right.
    pub(crate) fn of_texts(fields: &mut Fields) -> Result<Self, ApiError> {
        let truncates = fields.flag_or("truncate", false)?;
        fields.one_of_or("truncation_direction", &[("right", ()), ("Right", ())], ())?;
        let truncation = truncates.then_some(Truncation::Fitting);
        Ok(Self { truncation, document: None, hint: "`truncate: true` cuts it at its end" })
    }

    /// How a text by itself is read.
    pub(crate) fn truncation(self) -> Option<Truncation> {
        self.truncation
    }

    /// Whether answers say how much was cut.
    pub(crate) fn cuts(self) -> bool {
        self.truncation.is_some() || self.document.is_some()
    }

    /// The most tokens that texts have together in a model that reads `longest`.
    pub(crate) fn most(self, longest: usize) -> usize {
        match self.truncation {
            Some(Truncation::Last(n)) => n.min(longest),
            Some(Truncation::Fitting) | None => longest,
        }
    }

    /// A document without the tokens that it may not have by itself, and their number.
    pub(crate) fn document<'a>(
        self,
        text: &'a str,
        param: &'static str,
        model: &ServedModel,
    ) -> Result<(Cow<'a, str>, usize), ApiError> {
        let Some(most) = self.document else { return Ok((text.into(), 0)) };
        let ids = model.tokenizer.encode(text, EncodeOptions::TEXT).map_err(|error| cannot_encode(param, &error))?;
        let n_cut = ids.len().saturating_sub(most);
        if n_cut == 0 {
            return Ok((text.into(), 0));
        }
        Ok((model.tokenizer.decode(&ids[..most], DecodeOptions::default()).into(), n_cut))
    }

    /// Refuses the text at `place` of a request's `param` if it was cut and must not be. `read` says what the model reads it with.
    pub(crate) fn check(self, text: &Tokens, place: (&'static str, usize), read: &str) -> Result<(), ApiError> {
        if text.n_cut == 0 || self.truncation.is_some() {
            return Ok(());
        }
        let ((param, index), n_read, n_cut) = (place, text.ids.len(), text.n_cut);
        let message = format!(
            "`{param}` has a text that is too long, number {}: {read} it has {} tokens, and the model reads at most {n_read}\n\
             hint: {}",
            index + 1,
            n_read + n_cut,
            self.hint
        );
        Err(ApiError::invalid(param, message))
    }
}
