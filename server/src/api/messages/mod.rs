//! Anthropic's API: [messages](https://docs.anthropic.com/en/api/messages), the number of their tokens, the list of
//! models, and errors in its shape.

mod errors;
mod model_list;

pub(crate) use self::{
    errors::{errors_in_own_shape, is_asked},
    model_list::{ModelInfo, ModelPage},
};
