//! One file per subcommand: its arguments, and `run`.

pub(crate) mod bench;
pub(crate) mod eval;
pub(crate) mod finetune;
pub(crate) mod import;
pub(crate) mod moved;
pub(crate) mod options;
mod plan;
pub(crate) mod prepare;
pub(crate) mod pretrain;
pub(crate) mod quickstart;
pub(crate) mod sample;
mod session;
pub(crate) mod tokenizer;
