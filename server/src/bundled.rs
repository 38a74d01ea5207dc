//! The small model in the binary, used if no `--model` is given. `bundled/README.md` describes it.

use hearth_model::weights::model_dir::EmbeddedDir;

/// Its name for clients.
pub const NAME: &str = "hearth-bundled";

/// Its files.
pub const DIR: EmbeddedDir = EmbeddedDir {
    name: NAME,
    config: include_bytes!("../bundled/config.json"),
    weights: include_bytes!("../bundled/model.safetensors"),
    tokenizer: include_bytes!("../bundled/tokenizer.json"),
    tokenizer_config: include_bytes!("../bundled/tokenizer_config.json"),
    chat_template: include_str!("../bundled/chat_template.jinja"),
    generation_config: include_bytes!("../bundled/generation_config.json"),
};
