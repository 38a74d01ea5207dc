//! Token ids on their way into a model.

use burn::tensor::{Int, Tensor, TensorData};

use crate::{
    TokenId,
    error::{Error, Result},
    gpt::Gpt,
};

/// Token ids as a tensor on the model's device, `[n]`.
///
/// # Panics
/// If an id is outside the model's vocabulary.
pub fn token_tensor(gpt: &Gpt, token_ids: &[TokenId]) -> Tensor<1, Int> {
    let vocab_size = gpt.config().vocab_size;
    assert!(token_ids.iter().all(|id| (*id as usize) < vocab_size), "a token id beyond the vocabulary of {vocab_size}");
    let ids: Vec<i32> = token_ids.iter().map(|&id| id as i32).collect();
    Tensor::from_data(TensorData::new(ids, [token_ids.len()]), &gpt.device())
}

/// Rejects ids of the parameter `name` that are outside the vocabulary.
pub(crate) fn check_token_ids(name: &'static str, token_ids: &[TokenId], vocab_size: usize) -> Result<()> {
    match token_ids.iter().find(|id| **id as usize >= vocab_size) {
        None => Ok(()),
        Some(id) => Err(Error::Param { name, what: format!("has token id {id}, the vocabulary has {vocab_size}") }),
    }
}
