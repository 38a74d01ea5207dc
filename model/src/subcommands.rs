//! The subcommands of both programs: each names the other where a user gives it one that only the other has.

/// The subcommands of `hearth`.
pub const OF_HEARTH: &[&str] = &[
    "serve",
    "chat",
    "generate",
    "pull",
    "list",
    "rm",
    "bench",
    "perplexity",
    "quantize",
    "merge",
    "export",
    "doctor",
    "health",
];

/// The subcommands of `hearth-train`.
pub const OF_HEARTH_TRAIN: &[&str] = &[
    "tokenizer",
    "prepare",
    "quickstart",
    "pretrain",
    "finetune",
    "import",
    "sample",
    "eval",
    "bench",
    "tales",
    "bilingual",
];
