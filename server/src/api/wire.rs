//! Bodies of requests, and their fields, which errors name.
//!
//! - `body`: request bodies; `fields`: reads their fields one by one; `schema`: records the fields that are read
//! - `text_input`: strings or token ids, one or several
//! - `ignored_params`: the response header that lists ignored parameters; `unsupported_params`: rejects others
//! - `endpoint`: one row of the table of endpoints; [`state`]: state that all share; `request_log`: log lines and spans

pub(crate) mod body;
pub(crate) mod endpoint;
pub(crate) mod fields;
pub(crate) mod ignored_params;
pub(crate) mod request_log;
pub(crate) mod schema;
pub mod state;
pub(crate) mod text_input;
pub(crate) mod unsupported_params;
