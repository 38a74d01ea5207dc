//! Keys, origins, and limits of clients' requests.
//!
//! - [`options`]: settings; [`api_keys`]: API keys; [`origin`]: allowed origins and hosts
//! - `body_memory`: memory for request bodies; `bounded_json`: parses them; `body_guard`: runs code when a response has ended
//! - `preparation`: runs work before requests are submitted

pub mod api_keys;
pub(crate) mod body_guard;
pub(crate) mod body_memory;
pub(crate) mod bounded_json;
pub mod options;
pub mod origin;
pub(crate) mod preparation;
