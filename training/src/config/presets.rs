//! Presets: TOML files with the differences from the defaults.

use anyhow::{Context, Result, bail};

/// A named set of settings.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The value of `--preset`.
    pub name: &'static str,
    /// The settings as TOML. The first line is a comment that describes the preset.
    pub toml: &'static str,
}

macro_rules! presets {
    ($($name:literal),*) => {
        &[$(Preset { name: $name, toml: include_str!(concat!("../../presets/", $name, ".toml")) }),*]
    };
}

/// The presets; the first is the default.
pub const PRESETS: &[Preset] = presets![
    "shakespeare-char-cpu",
    "shakespeare-char",
    "shakespeare-fast",
    "tales",
    "translation",
    "mixture",
    "gpt2-124m",
    "modern",
    "finetune",
    "finetune-lora",
    "bert-tiny",
    "seq2seq-tiny",
    "seq2seq-translation",
    "tiny"
];

impl Preset {
    /// The preset called `name`; the error lists the presets.
    pub fn named(name: &str) -> Result<&'static Preset> {
        let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) else {
            let names: Vec<_> = PRESETS.iter().map(|preset| format!("`{}`", preset.name)).collect();
            bail!("unknown preset `{name}`\nhint: the presets are {}", names.join(", "));
        };
        Ok(preset)
    }

    /// A one-line description.
    pub fn about(&self) -> &'static str {
        self.toml.lines().next().unwrap_or_default().trim_start_matches(['#', ' '])
    }

    /// Its settings.
    pub(super) fn table(&self) -> Result<toml::Table> {
        toml::from_str(self.toml).with_context(|| format!("cannot read the preset `{}`", self.name))
    }
}
