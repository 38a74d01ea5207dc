//! Texts as a model for late interaction reads them, which has a vector for each token.

use std::sync::Arc;

use hearth_engine::ServedModel;
use hearth_model::{
    TokenId,
    gpt::pooling::{DenseLayer, LateInteraction, Pooling, QueryExpansion, VectorScale, VectorSteps},
    text::tokenizer::{CutAt, EncodeOptions},
};

use super::vectors::{Tokens, Wanted, cannot_encode};
use crate::api::error::ApiError;

/// The role of a text in a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Query,
    Document,
}

/// The tokens of a text of the parameter `param`. Longer texts are cut at the end, as all programs for such models do.
pub(crate) fn tokens(
    text: &str,
    side: Side,
    late: &LateInteraction,
    (param, model): (&'static str, &ServedModel),
) -> Result<Tokens, ApiError> {
    let kind = if side == Side::Query { &late.query } else { &late.document };
    let expansion = late.expansion.filter(|_| side == Side::Query);
    let longest = model.limits.max_seq_len;
    let most = match expansion {
        Some(QueryExpansion { length, is_least: false, .. }) => length,
        _ => kind.max_tokens.unwrap_or(longest),
    };
    let most = most.min(longest).saturating_sub(usize::from(kind.mark.is_some()));
    let text = format!("{}{text}", kind.prompt);
    let encoded = model.tokenizer.encode_within(&text, (most, CutAt::End), EncodeOptions::PROMPT);
    let encoded = encoded.map_err(|error| cannot_encode(param, &error))?;
    let mut ids = encoded.token_ids;
    if let Some(mark) = kind.mark {
        let behind_first = ids.first().is_some_and(|first| model.tokenizer.is_special(*first));
        ids.insert(usize::from(behind_first), mark);
    }
    let mut n_hidden = 0;
    if let Some(QueryExpansion { token, length, is_seen, .. }) = expansion {
        let n_added = length.min(longest).saturating_sub(ids.len());
        ids.extend(std::iter::repeat_n(token, n_added));
        n_hidden = if is_seen { 0 } else { n_added };
    }
    Ok(Tokens { n_cut: encoded.n_cut, n_hidden, ..Tokens::of(ids) })
}

/// The request for the vectors of all tokens of `texts`, of length 1 unless `scale` says otherwise.
pub(crate) fn wanted(texts: Vec<Tokens>, layers: Arc<[DenseLayer]>, scale: VectorScale) -> Wanted {
    let steps = VectorSteps { layers, dimensions: None, scale };
    Wanted { texts, pooling: Pooling::Tokens, steps }
}

/// Numbers in a token's vector.
pub(crate) fn width(layers: &[DenseLayer], model: &ServedModel) -> usize {
    layers.last().map_or(model.config.d_model, DenseLayer::d_out)
}

/// Removes the vectors of tokens of a document that have none; `vectors` has one for each of its tokens `ids`.
pub(crate) fn kept(vectors: Vec<f32>, ids: &[TokenId], late: &LateInteraction, width: usize) -> Vec<f32> {
    if late.skipped.is_empty() {
        return vectors;
    }
    let rows = vectors.chunks_exact(width.max(1)).zip(ids);
    rows.filter(|(_, id)| !late.skipped.contains(id)).flat_map(|(row, _)| row.iter().copied()).collect()
}
