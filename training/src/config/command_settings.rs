//! The commands that use settings, and the requirements of each.

use anyhow::{Result, ensure};

use super::{Rows, TrainConfig};
use crate::objective::RowKind;

/// The command that uses the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `quickstart`: one text.
    Quickstart,
    /// `pretrain`: prepared data.
    Pretrain,
    /// `finetune`: examples.
    Finetune,
    /// `bench`: measures steps of a run.
    Bench,
    /// `sample`: continues a prompt.
    Sample,
}

impl TrainConfig {
    /// Rejects invalid settings, and values that `purpose` does not support; the message names the key.
    ///
    /// # Errors
    /// As [`validate`](Self::validate), and a value that belongs to another command.
    pub fn validate_for(&self, purpose: Purpose) -> Result<()> {
        self.validate()?;
        self.validate_negatives()?;
        let (rows, kind) = (self.data.rows, self.objective.objective().rows());
        match purpose {
            Purpose::Quickstart => ensure!(
                matches!(rows, Rows::Epochs | Rows::Windows),
                "`data.rows` must be `epochs` or `windows` in `quickstart`: a text is one document\nhint: `prepare` and \
                 `pretrain` train on documents"
            ),
            Purpose::Finetune => ensure!(
                kind != RowKind::Sequences || matches!(rows, Rows::Documents | Rows::Unpacked),
                "`data.rows` must be `documents` or `unpacked` in `finetune`: an example is never split\nhint: `--set \
                 data.rows=documents`"
            ),
            Purpose::Pretrain | Purpose::Bench | Purpose::Sample => {}
        }
        ensure!(
            kind == RowKind::Sequences
                || purpose == Purpose::Finetune
                || kind == RowKind::Translations && purpose == Purpose::Pretrain,
            "`objective.kind={}` is for `finetune`{}, not for `{}`\nhint: leave it out, or use that command",
            self.objective.kind,
            if kind == RowKind::Translations { " and `pretrain`" } else { "" },
            purpose.command()
        );
        Ok(())
    }
}

impl Purpose {
    /// The name of the command.
    pub fn command(self) -> &'static str {
        match self {
            Self::Quickstart => "quickstart",
            Self::Pretrain => "pretrain",
            Self::Finetune => "finetune",
            Self::Bench => "bench",
            Self::Sample => "sample",
        }
    }

    /// Whether the command trains a model and saves it: settings of files and presets are then for it.
    pub(super) fn is_run(self) -> bool {
        matches!(self, Self::Quickstart | Self::Pretrain | Self::Finetune)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::Layers;

    #[test]
    fn value_that_a_command_does_not_support_is_rejected_by_key() {
        let validate = |preset: &str, set: &str, purpose: Purpose| {
            let sets = [set.to_owned()].into_iter().filter(|set| !set.is_empty()).collect();
            let purpose_of = Some(purpose);
            let layers = Layers { preset: Some(preset.to_owned()), sets, purpose: purpose_of, ..Layers::default() };
            layers.resolve().unwrap().validate_for(purpose).map_err(|error| error.to_string())
        };
        let (quickstart, pretrain, finetune) = (Purpose::Quickstart, Purpose::Pretrain, Purpose::Finetune);
        for (preset, set, purpose) in [
            ("tiny", "", quickstart),
            ("tiny", "data.vocab_size=300", quickstart),
            ("tiny", "data.path=somewhere", pretrain),
            ("tiny", "data.rows=windows", pretrain),
            ("finetune", "objective.kind=dpo", finetune),
            ("finetune", "data.rows=unpacked", finetune),
            ("finetune", "data.too_long=cut", finetune),
            ("finetune", "data.val_fraction=0.2", finetune),
            ("tiny", "data.val_fraction=0.2", quickstart),
        ] {
            validate(preset, set, purpose).unwrap();
        }
        for (preset, set, purpose, message) in [
            ("tiny", "objective.kind=dpo", quickstart, "`objective.kind=dpo` is for `finetune`, not for `quickstart`"),
            ("tiny", "objective.kind=dpo", pretrain, "`objective.kind=dpo` is for `finetune`, not for `pretrain`"),
            ("tiny", "data.rows=documents", quickstart, "`data.rows` must be `epochs` or `windows` in `quickstart`"),
            ("finetune", "data.rows=windows", finetune, "`data.rows` must be `documents` or `unpacked` in `finetune`"),
            ("finetune", "data.rows=epochs", finetune, "`data.rows` must be `documents` or `unpacked` in `finetune`"),
        ] {
            let error = validate(preset, set, purpose).unwrap_err();
            assert!(error.contains(message) && error.contains("\nhint: "), "{set}: {error}");
        }
    }
}
