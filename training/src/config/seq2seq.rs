//! How records become sources and targets of an encoder-decoder.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::TrainConfig;
use crate::objective::ObjectiveKind;

/// Sources and targets, for `objective.kind=seq2seq`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Seq2SeqSettings {
    /// The member or column of sources, or their language within `translation`. Left out: `source`, `input` or `prompt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_field: Option<String>,
    /// The member or column of targets, or their language within `translation`. Left out: `target`, `output` or
    /// `completion`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_field: Option<String>,
    /// A text before each source, such as "translate English to German: ".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_prefix: Option<String>,
    /// The text at the start of each target, in place of the tokens that the tokenizer adds around a text: in NLLB,
    /// M2M100 and mBART, the language token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoder_prompt: Option<String>,
}

impl Seq2SeqSettings {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The names of the source and target members, if they are set.
    ///
    /// # Errors
    /// Only one of them is set, or they are equal.
    pub fn fields(&self) -> Result<Option<[String; 2]>> {
        match (&self.source_field, &self.target_field) {
            (None, None) => Ok(None),
            (Some(source), Some(target)) if source != target => Ok(Some([source.clone(), target.clone()])),
            (Some(source), Some(_)) => bail!(
                "`seq2seq.source_field` and `seq2seq.target_field` are both `{source}`\nhint: name the member of the targets too"
            ),
            (Some(_), None) | (None, Some(_)) => bail!(
                "`seq2seq.source_field` and `seq2seq.target_field` must be set together\nhint: for example `--set \
                 seq2seq.source_field=de --set seq2seq.target_field=en`"
            ),
        }
    }
}

impl TrainConfig {
    pub(super) fn validate_seq2seq(&self) -> Result<()> {
        self.seq2seq.fields()?;
        ensure!(
            self.objective.kind != ObjectiveKind::Seq2Seq || !self.optim.recompute,
            "`optim.recompute` must be false with `objective.kind=seq2seq`: an encoder's blocks are not computed again\nhint: leave it \
             out; a smaller `data.micro_batch_size` takes less memory too"
        );
        Ok(())
    }
}
