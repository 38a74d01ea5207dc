//! One file per subcommand: its arguments, and `run`.

pub(crate) mod bilingual;
pub(crate) mod decoding;
pub(crate) mod tales;
