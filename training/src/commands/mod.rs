//! One file per subcommand: its arguments, and `run`.

pub(crate) mod bench;
pub(crate) mod bilingual;
pub(crate) mod eval;
pub(crate) mod finetune;
pub(crate) mod import;
mod model_files;
pub(crate) mod options;
mod output;
mod plan;
pub(crate) mod prepare;
pub(crate) mod pretrain;
pub(crate) mod quickstart;
pub(crate) mod sample;
mod session;
mod status;
pub(crate) mod tales;
pub(crate) mod tokenizer;
