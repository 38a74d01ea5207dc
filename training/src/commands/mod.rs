//! One file per subcommand: its arguments, and `run`.

pub(crate) mod quickstart;
