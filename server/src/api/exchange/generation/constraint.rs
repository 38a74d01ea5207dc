//! The grammars of the answers.

use hearth_engine::{
    ServedModel,
    request::{SpecialTokens, Strategy},
};
use hearth_model::decode::{
    constraint::{Constraint, Watch},
    sampling::SamplingParams,
};

use super::GenerateParams;
use crate::api::{error::ApiError, tools::structured::Structure};

impl GenerateParams {
    /// The grammar of whole answers, and the grammar of parts of answers; at most one of the two is set.
    pub(super) fn grammars(
        &self,
        model: &ServedModel,
        sampling: &SamplingParams,
    ) -> Result<(Option<Constraint>, Option<Watch>), ApiError> {
        let Some(structure) = &self.structure else { return Ok((None, None)) };
        if !structure.is_in_text() {
            self.check_ends(structure)?;
            return Ok((Some(structure.compile(model)?), None));
        }
        // These may leave no token to continue with within a call, or may continue with several answers.
        let is_limited = sampling.allowed_token_ids.is_some() || !sampling.bad_words.is_empty();
        if is_limited || self.strategy != Strategy::Sample {
            return Ok((None, None));
        }
        let shows_special = self.text.special_tokens == SpecialTokens::Show;
        Ok((None, structure.compile_in_text(model, shows_special)?))
    }

    /// A structured answer ends where the structure is complete, so other end conditions are rejected.
    fn check_ends(&self, structure: &Structure) -> Result<(), ApiError> {
        let param = if self.ignores_eos {
            "ignore_eos"
        } else if !self.stop.stop_token_ids.is_empty() {
            "stop_token_ids"
        } else {
            return Ok(());
        };
        let form = structure.param();
        let message = format!("`{param}` cannot be combined with `{form}`: the answer ends where it is complete");
        Err(ApiError::invalid(param, message))
    }
}
