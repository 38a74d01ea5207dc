//! Settings that only some commands use: the others refuse them, so that none is ignored silently.

use anyhow::{Result, bail, ensure};

use super::{DataSettings, ModelSettings, Objective, ObjectiveSettings, Rows, TooLong, TrainConfig};

/// What settings are for: the command that trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `quickstart`: one text.
    Quickstart,
    /// `pretrain`: prepared data.
    Pretrain,
    /// `finetune`: examples.
    Finetune,
}

impl TrainConfig {
    /// Rejects invalid settings, and those that `purpose` would ignore; the message names the key.
    ///
    /// # Errors
    /// As [`validate`](Self::validate), and a setting that belongs to another command.
    pub fn validate_for(&self, purpose: Purpose) -> Result<()> {
        self.validate()?;
        let data = &self.data;
        if purpose == Purpose::Finetune {
            self.require_no_architecture()?;
        }
        match purpose {
            Purpose::Quickstart => ensure!(
                matches!(data.rows, Rows::Epochs | Rows::Windows),
                "`data.rows` must be `epochs` or `windows` in `quickstart`: a text is one document\nhint: `prepare` and \
                 `pretrain` train on documents"
            ),
            Purpose::Pretrain => {}
            Purpose::Finetune => ensure!(
                matches!(data.rows, Rows::Documents | Rows::Unpacked),
                "`data.rows` must be `documents` or `unpacked` in `finetune`: an example is never split\nhint: `--set \
                 data.rows=documents`"
            ),
        }
        for (key, is_set, user) in [
            ("objective.kind=dpo", self.objective.kind == Objective::Dpo, Purpose::Finetune),
            ("data.too_long", data.too_long != TooLong::Refuse, Purpose::Finetune),
            ("data.vocab_size", data.vocab_size.is_some(), Purpose::Quickstart),
            ("data.path", data.path.is_some(), Purpose::Pretrain),
        ] {
            ensure!(
                !is_set || user == purpose,
                "`{key}` is for `{}`, not for `{}`\nhint: leave it out, or use that command",
                user.command(),
                purpose.command()
            );
        }
        ensure!(
            purpose != Purpose::Pretrain || data.val_fraction == DataSettings::default().val_fraction,
            "`data.val_fraction` is for `quickstart` and `finetune`, not for `pretrain`\nhint: leave it out; `prepare \
             --val-fraction` holds out data for `pretrain`"
        );
        ensure!(
            self.objective.kind == Objective::Dpo || self.objective.beta == ObjectiveSettings::default().beta,
            "`objective.beta` is for `objective.kind=dpo`\nhint: leave it out, or set `objective.kind=dpo` too"
        );
        Ok(())
    }

    /// The architecture is that of the model to tune.
    fn require_no_architecture(&self) -> Result<()> {
        let ModelSettings { init, max_seq_len, dropout, .. } = &self.model;
        let plain =
            ModelSettings { init: init.clone(), max_seq_len: *max_seq_len, dropout: *dropout, ..Default::default() };
        let [now, plain] = [&self.model, &plain].map(toml::Table::try_from);
        let (now, plain) = (now?, plain?);
        if let Some((key, value)) = now.iter().find(|(key, value)| plain.get(*key) != Some(*value)) {
            bail!(
                "`model.{key}={value}` is for fresh models: `finetune` tunes the model that it is given\nhint: leave it out; of \
                 `model`, `max_seq_len` and `dropout` can be set"
            );
        }
        Ok(())
    }
}

impl Purpose {
    fn command(self) -> &'static str {
        match self {
            Self::Quickstart => "quickstart",
            Self::Pretrain => "pretrain",
            Self::Finetune => "finetune",
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::Layers;

    #[test]
    fn setting_that_a_command_would_ignore_is_rejected_by_key() {
        let validate = |preset: &str, set: &str, purpose: Purpose| {
            let sets = [set.to_owned()].into_iter().filter(|set| !set.is_empty()).collect();
            let layers = Layers { preset: Some(preset.to_owned()), sets, ..Layers::default() };
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
            ("finetune", "model.n_layers=2", finetune, "`model.n_layers=2` is for fresh models"),
            ("finetune", "model.arch=llama", finetune, "`model.arch=\"llama\"` is for fresh models"),
            ("tiny", "data.rows=documents", quickstart, "`data.rows` must be `epochs` or `windows` in `quickstart`"),
            ("tiny", "data.val_fraction=0.2", pretrain, "`data.val_fraction` is for `quickstart` and `finetune`"),
            ("tiny", "objective.beta=1", pretrain, "`objective.beta` is for `objective.kind=dpo`"),
            ("finetune", "objective.beta=1", finetune, "`objective.beta` is for `objective.kind=dpo`"),
            ("tiny", "data.too_long=cut", pretrain, "`data.too_long` is for `finetune`"),
            ("tiny", "data.vocab_size=300", pretrain, "`data.vocab_size` is for `quickstart`, not for `pretrain`"),
            ("finetune", "data.rows=windows", finetune, "`data.rows` must be `documents` or `unpacked` in `finetune`"),
            ("finetune", "data.rows=epochs", finetune, "`data.rows` must be `documents` or `unpacked` in `finetune`"),
            ("finetune", "data.path=a", finetune, "`data.path` is for `pretrain`, not for `finetune`"),
            ("finetune", "data.vocab_size=300", finetune, "`data.vocab_size` is for `quickstart`, not for `finetune`"),
        ] {
            let error = validate(preset, set, purpose).unwrap_err();
            assert!(error.contains(message) && error.contains("\nhint: "), "{set}: {error}");
        }
    }
}
