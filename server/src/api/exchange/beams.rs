//! The fields of beam search, under vLLM's names.

use hearth_engine::request::Strategy;
use hearth_model::decode::sampling::beam::{BeamGroups, BeamKind, EarlyStopping};
use serde_json::json;

use crate::api::{
    error::ApiError,
    wire::fields::{Fields, must_be},
};

/// The maximum number of beams is also the maximum number of groups.
const MAX_GROUPS: usize = 128;

/// How the `n` answers are chosen from `best_of` candidates. `use_beam_search` searches for the most likely ones,
/// with `length_penalty` and `early_stopping`; `stochastic_beam_search` draws different ones at random, with a seed
/// that is set for [each prompt](seeded).
pub(crate) fn strategy(fields: &mut Fields, [n, best_of]: [usize; 2]) -> Result<Strategy, ApiError> {
    let searches = fields.flag_or("use_beam_search", false)?;
    let draws = fields.flag_or("stochastic_beam_search", false)?;
    let length_penalty = fields.number_or("length_penalty", -10.0..=10.0, 1.0)?;
    let early_stopping = fields.take_as("early_stopping", || json!({ "enum": [true, false, "never"] }));
    fields.note_default("early_stopping", &false);
    let early_stopping = match early_stopping {
        None => EarlyStopping::Likely,
        Some(value) => match (value.as_bool(), value.as_str()) {
            (Some(false), _) => EarlyStopping::Likely,
            (Some(true), _) => EarlyStopping::Full,
            (None, Some("never")) => EarlyStopping::Certain,
            _ => return Err(must_be("early_stopping", "true, false or \"never\"", &value)),
        },
    };
    let groups = groups(fields, best_of)?;
    if groups.n_groups > 1 && !searches {
        let message = "`num_beam_groups` needs `use_beam_search`";
        return Err(ApiError::invalid("num_beam_groups", message));
    }
    let kind = match (searches, draws) {
        (false, false) => return Ok(Strategy::Sample),
        (true, false) => BeamKind::Best { length_penalty, early_stopping, groups },
        (false, true) => BeamKind::Stochastic { seed: 0 },
        (true, true) => {
            let message = "`stochastic_beam_search` and `use_beam_search` exclude each other: choose one";
            return Err(ApiError::invalid("stochastic_beam_search", message));
        }
    };
    Ok(Strategy::Beams { width: best_of, n_best: n, kind })
}

/// `num_beam_groups` and `diversity_penalty`, as `transformers` had them.
fn groups(fields: &mut Fields, width: usize) -> Result<BeamGroups, ApiError> {
    let n_groups = fields.count_or("num_beam_groups", 1..=MAX_GROUPS, 1)?;
    let penalty = fields.number_or("diversity_penalty", 0.0..=f32::INFINITY, 0.0)?;
    if !width.is_multiple_of(n_groups) {
        let message =
            format!("`num_beam_groups` must divide `best_of`, the number of beams: got {n_groups} and {width}");
        return Err(ApiError::invalid("num_beam_groups", message));
    }
    Ok(BeamGroups { n_groups, penalty: f64::from(penalty) })
}

/// `strategy` with this seed.
pub(crate) fn seeded(strategy: Strategy, seed: u64) -> Strategy {
    match strategy {
        Strategy::Beams { width, n_best, kind: BeamKind::Stochastic { .. } } => {
            Strategy::Beams { width, n_best, kind: BeamKind::Stochastic { seed } }
        }
        strategy => strategy,
    }
}
