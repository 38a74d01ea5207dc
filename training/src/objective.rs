//! Training objectives: an [`Objective`] is chosen by the settings in `objective`.
//!
//! - `next_token`: the cross entropy of the next token, and of the one after it with a prediction head
//! - `keep`: as `next_token`, with a penalty on the adapter's changes of other predictions
//! - `mlm`: masked tokens, for encoders
//! - `seq2seq`: from a source to a target, for encoder-decoders
//! - `dpo`: preferences, direct preference optimization
//! - `contrastive`: vectors of texts that belong together, for encoders
//! - `classify`: classes of texts, for encoders
//!
//! Each file defines the rows of its objective, the loss of a micro-batch, the unit that a step counts, and the score
//! by which models are compared. No other code depends on which objective a run has. A new one is such a file, its
//! settings and its arm in [`ObjectiveSettings::objective`], a rule in `config/effective.rs` for each new setting, and
//! a row in `docs/settings.md`. If its rows are neither sequences nor pairs, extend [`RowKind`] and the code that
//! matches on it.

mod classify;
mod contrastive;
mod dpo;
mod keep;
mod margins;
mod mlm;
mod next_token;
mod pass;
mod seq2seq;
mod text_vectors;

use std::{fmt, sync::Arc};

use anyhow::{Result, bail, ensure};
use hearth_model::{
    config::GptConfig,
    gpt::{Gpt, pooling::Pooling},
    ops::Losses,
    text::tokenizer::Tokenizer,
};
use serde::{Deserialize, Serialize};

pub use self::pass::{RouterBalance, TrainingPass};
use self::{
    classify::Classify, contrastive::Contrastive, dpo::Dpo, keep::Keep, mlm::MaskedLm, next_token::NextToken,
    seq2seq::Seq2Seq,
};
use crate::{
    data::loader::{Batch, MaskSettings, RowSource},
    eval::{Score, Windows},
    interrupt::Interrupt,
    ranks::Group,
};

/// Maximum of [`ObjectiveSettings::keep`]: larger weights make numbers infinite before anything is learned.
const MAX_KEEP: f64 = 1e6;

/// Maximum of [`ObjectiveSettings::mtp`].
const MAX_MTP: f64 = 10.0;

/// Minimum of [`ObjectiveSettings::temperature`]: at smaller ones, the exponentials lose all meaning.
const MIN_TEMPERATURE: f64 = 1e-4;

/// Settings of the training objective.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectiveSettings {
    /// The kind of loss.
    pub kind: ObjectiveKind,
    /// `dpo`: weight of the difference to the reference model.
    pub beta: f64,
    /// Weight of a penalty that preserves the model's knowledge while an adapter trains: the mean KL divergence from
    /// the predictions of the model without the adapter, over all tokens that are read but not trained ([Li and Hoiem,
    /// 2016](https://arxiv.org/abs/1606.09282)). 0: off.
    pub keep: f64,
    /// `mlm`: the share of a row's tokens that is hidden and predicted.
    pub mask_ratio: f64,
    /// `mlm`: choose all tokens of a word, or none.
    pub whole_words: bool,
    /// Trains a prediction head beside a fresh model, which predicts one token further ([DeepSeek-AI,
    /// 2024](https://arxiv.org/abs/2412.19437), 2.2): this is the weight of its loss, added to the model's. 0: no head.
    pub mtp: f64,
    /// `seq2seq`: the share of a target's probability that is spread over all tokens ([Szegedy et al.,
    /// 2015](https://arxiv.org/abs/1512.00567), 7).
    pub label_smoothing: f64,
    /// `contrastive`: divisor of cosines.
    pub temperature: f64,
    /// `contrastive`, `classify`: how the hidden states of a text are pooled to its vector. Left out: as the model's
    /// files state, or else the mean (`contrastive`) or the first token (`classify`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling: Option<TextPooling>,
    /// `contrastive`: whether each pair comes with a negative, as the data have it.
    pub negatives: bool,
    /// `contrastive`: whether each pair comes with the margin between its positive and its negative, which is then learned, as the data
    /// have it.
    pub margins: bool,
}

/// How the hidden states of a text become its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TextPooling {
    /// Their mean.
    Mean,
    /// The first token's.
    Cls,
    /// The maximum of each component.
    Max,
    /// The last token's.
    Last,
}

impl From<TextPooling> for Pooling {
    fn from(pooling: TextPooling) -> Pooling {
        match pooling {
            TextPooling::Mean => Pooling::Mean,
            TextPooling::Cls => Pooling::Cls,
            TextPooling::Max => Pooling::Max,
            TextPooling::Last => Pooling::Last,
        }
    }
}

impl TryFrom<Pooling> for TextPooling {
    type Error = anyhow::Error;

    fn try_from(pooling: Pooling) -> Result<TextPooling> {
        Ok(match pooling {
            Pooling::Mean => TextPooling::Mean,
            Pooling::Cls => TextPooling::Cls,
            Pooling::Max => TextPooling::Max,
            Pooling::Last => TextPooling::Last,
            Pooling::Tokens => bail!(
                "the model keeps a vector for each token (late interaction), and `objective.kind=contrastive` trains one for each text\n\
                 hint: `--set objective.pooling=mean` trains the mean of them"
            ),
        })
    }
}

/// The kind of loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectiveKind {
    /// The cross entropy of the next token.
    NextToken,
    /// Direct preference optimization ([Rafailov et al., 2023](https://arxiv.org/abs/2305.18290)) on pairs of a better and a
    /// worse answer, in `finetune` only. Rows of a micro-batch are then pairs, and have twice as many tokens.
    Dpo,
    /// Masked language modeling ([BERT](https://arxiv.org/abs/1810.04805), 3.1), for encoders.
    Mlm,
    /// A source to a target, for encoder-decoders.
    #[serde(rename = "seq2seq")]
    Seq2Seq,
    /// Vectors of texts that belong together, with the other texts of a batch as negatives, for encoders, in `finetune` only. Rows of
    /// a micro-batch are then pairs.
    Contrastive,
    /// Classes of texts or of pairs of texts, for encoders, in `finetune` only.
    Classify,
}

impl ObjectiveKind {
    /// Whether it trains encoders, which write no text.
    pub fn is_for_encoders(self) -> bool {
        matches!(self, Self::Mlm | Self::Contrastive | Self::Classify)
    }
}

impl fmt::Display for ObjectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NextToken => "next-token",
            Self::Dpo => "dpo",
            Self::Mlm => "mlm",
            Self::Contrastive => "contrastive",
            Self::Classify => "classify",
            Self::Seq2Seq => "seq2seq",
        })
    }
}

impl Default for ObjectiveSettings {
    fn default() -> Self {
        Self {
            kind: ObjectiveKind::NextToken,
            beta: 0.1,
            keep: 0.0,
            mask_ratio: 0.15,
            whole_words: false,
            mtp: 0.0,
            temperature: 0.05,
            pooling: None,
            negatives: false,
            margins: false,
            label_smoothing: 0.0,
        }
    }
}

impl ObjectiveSettings {
    /// The objective with these settings.
    pub fn objective(self) -> Arc<dyn Objective> {
        match self.kind {
            ObjectiveKind::NextToken if self.keep > 0.0 => Arc::new(Keep { weight: self.keep }),
            ObjectiveKind::NextToken => Arc::new(NextToken { mtp: self.mtp }),
            ObjectiveKind::Dpo => Arc::new(Dpo { beta: self.beta }),
            ObjectiveKind::Mlm => {
                Arc::new(MaskedLm { masks: MaskSettings { ratio: self.mask_ratio, whole_words: self.whole_words } })
            }
            ObjectiveKind::Contrastive => Arc::new(Contrastive {
                temperature: self.temperature,
                pooling: self.pooling.unwrap_or(TextPooling::Mean),
                texts_per_item: if self.negatives { 3 } else { 2 },
                margins: self.margins,
            }),
            ObjectiveKind::Classify => Arc::new(Classify { pooling: self.pooling.map_or(Pooling::Cls, Pooling::from) }),
            ObjectiveKind::Seq2Seq => Arc::new(Seq2Seq { label_smoothing: self.label_smoothing }),
        }
    }

    /// Rejects invalid settings, also in combination with the run's: whether it `has_adapter`, and the weights of `losses`
    /// beside the objective, by their names in `optim`. The message names the key.
    ///
    /// # Errors
    /// A value that is not allowed.
    pub fn check(self, has_adapter: bool, losses: &[(&'static str, f64)]) -> Result<()> {
        let ObjectiveSettings { kind, beta, keep, mask_ratio, mtp, temperature, label_smoothing, .. } = self;
        ensure!(beta.is_finite() && beta > 0.0, "`objective.beta` must be above 0 and finite, got {beta}");
        ensure!(
            (0.0..=MAX_KEEP).contains(&keep),
            "`objective.keep` must be from 0 to {MAX_KEEP}, got {keep}\nhint: 1 to 10 is usual"
        );
        ensure!(
            mask_ratio > 0.0 && mask_ratio <= 1.0,
            "`objective.mask_ratio` must be above 0 and at most 1, got {mask_ratio}\nhint: 0.15 to 0.4 is usual"
        );
        ensure!(
            temperature.is_finite() && (MIN_TEMPERATURE..=1e3).contains(&temperature),
            "`objective.temperature` must be from {MIN_TEMPERATURE} to 1000, got {temperature}\nhint: 0.01 to 0.1 is usual"
        );
        ensure!(
            (0.0..1.0).contains(&label_smoothing),
            "`objective.label_smoothing` must be at least 0 and below 1, got {label_smoothing}\nhint: 0.1 is usual"
        );
        ensure!(
            !matches!(kind, ObjectiveKind::Classify | ObjectiveKind::Seq2Seq) || !has_adapter,
            "`objective.kind={kind}` trains all weights, not an adapter\nhint: leave out `lora`"
        );
        let objective = self.objective();
        ensure!(
            keep == 0.0 || has_adapter && objective.uses_setting("keep"),
            "`objective.keep` needs an adapter and `objective.kind=next-token`\nhint: train an adapter (`--lora`), or leave it out"
        );
        ensure!(
            (0.0..=MAX_MTP).contains(&mtp),
            "`objective.mtp` must be from 0 to {MAX_MTP}, got {mtp}\nhint: 0.1 to 0.3 is usual"
        );
        ensure!(
            mtp == 0.0 || !has_adapter && objective.uses_setting("mtp"),
            "`objective.mtp` needs `objective.kind=next-token`, and a model that trains whole\nhint: leave it out"
        );
        for &(name, weight) in losses {
            ensure!(
                weight == 0.0 || objective.takes_z_loss(),
                "`optim.{name}` must be 0 with `objective.kind={kind}`, got {weight}"
            );
        }
        Ok(())
    }
}

impl ObjectiveSettings {
    /// Rejects a model of `gpt` that does not learn this.
    ///
    /// # Errors
    /// A model of another kind than the objective trains, or an encoder without the head.
    pub fn check_model(self, gpt: &GptConfig) -> Result<()> {
        match (self.kind, gpt.is_encoder_decoder()) {
            (ObjectiveKind::Seq2Seq, true) => return Ok(()),
            (ObjectiveKind::Seq2Seq, false) => bail!(
                "`objective.kind=seq2seq` trains encoder-decoders, and the model is none\nhint: leave it out, use `model.arch=t5` (the \
                 preset `seq2seq-tiny`), or start with a model such as a `T5ForConditionalGeneration`"
            ),
            (kind, true) => bail!(
                "`objective.kind={kind}` does not train encoder-decoders, and the model is one\nhint: `--set objective.kind=seq2seq` does"
            ),
            (_, false) => {}
        }
        match (self.kind, gpt.bidirectional) {
            (ObjectiveKind::Mlm, false) => bail!(
                "`objective.kind=mlm` trains encoders, and the model is one that writes text\nhint: leave it out, use \
                 `model.arch=bert` (the preset `bert-tiny`), or start with a model such as a `BertForMaskedLM`"
            ),
            (kind, false) if kind.is_for_encoders() => bail!(
                "`objective.kind={kind}` trains encoders, and the model is one that writes text\nhint: use an encoder, such as a \
                 `BertModel` or a model of sentence-transformers"
            ),
            (ObjectiveKind::Contrastive | ObjectiveKind::Classify, true) => {}
            (ObjectiveKind::Mlm, true) => ensure!(
                gpt.mlm_head.is_some(),
                "the model is an encoder without a head for masked tokens, which `objective.kind=mlm` trains\nhint: start with a \
                 model whose class ends in `ForMaskedLM`"
            ),
            (kind, true) => bail!(
                "`objective.kind={kind}` trains models that write text, and the model is an encoder\nhint: `--set objective.kind=mlm` \
                 (or `contrastive`, `classify`) trains encoders"
            ),
            (_, false) => {}
        }
        Ok(())
    }
}

/// The kind of the rows of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Parts of texts, texts, or examples, depending on `data.rows`.
    Sequences,
    /// Pairs of a better and a worse answer: each answer is a row.
    Pairs,
    /// Items of this many texts that become a vector each: each text is a row.
    Texts(usize),
    /// Targets, each with a source that an encoder reads.
    Translations,
}

impl RowKind {
    /// Rows for each row, pair or item that `data.micro_batch_size` counts.
    pub fn rows_per_item(self) -> usize {
        match self {
            Self::Sequences | Self::Translations => 1,
            Self::Pairs => 2,
            Self::Texts(n) => n,
        }
    }
}

/// A training objective.
pub trait Objective: fmt::Debug + Send + Sync {
    /// The kind of its rows.
    fn rows(&self) -> RowKind {
        RowKind::Sequences
    }

    /// Which tokens of rows are masked, if some are.
    fn masks(&self) -> Option<MaskSettings> {
        None
    }

    /// Whether it trains vectors of texts, which no other head of the model reads.
    fn trains_vectors(&self) -> bool {
        false
    }

    /// Whether the setting `objective.NAME` has an effect.
    fn uses_setting(&self, name: &str) -> bool;

    /// Whether `optim.z_loss` and the losses of routers can be added to its loss.
    fn takes_z_loss(&self) -> bool {
        true
    }

    /// The size of a step of `n_tokens` inputs in `n_items` rows (or pairs), with its unit, such as 512 and `token`.
    fn step_size(&self, n_tokens: usize, n_items: usize) -> (usize, &'static str);

    /// The weight of a batch in a step. The step's losses are divided by the sum of these weights.
    fn weight(&self, batch: &Batch) -> f64;

    /// The losses of a micro-batch of the step `index`, `[1]` each: this micro-batch's part of the means over the whole
    /// step, so that the step's losses are sums over its micro-batches.
    ///
    /// # Errors
    /// The device cannot be read.
    fn losses(&self, pass: &mut TrainingPass<'_>, index: StepIndex) -> Result<Losses>;

    /// Whether a micro-batch may also take a forward pass of the model without its adapter, and the divergence of both predictions.
    fn compares_with_base(&self) -> bool {
        false
    }

    /// Whether the loss is relative to a reference model: the first model of the run, without its adapter.
    fn has_reference(&self) -> bool {
        false
    }

    /// The training and the validation split with the results of the model `reference`, which must be on an autodiff
    /// device, for their rows, `batch_size` rows or pairs at a time. `None`: a signal came meanwhile.
    ///
    /// # Errors
    /// The device fails.
    fn with_reference(
        &self,
        splits: [&RowSource; 2],
        _reference: Gpt,
        _batch_size: usize,
        _interrupt: &Interrupt,
    ) -> Result<Option<[RowSource; 2]>> {
        Ok(Some(splits.map(RowSource::clone)))
    }

    /// The score of `gpt` on a split; a model with a lower loss is better. The model must be without autodiff and dropout. The ranks of
    /// `group` share the batches, and all get the score.
    ///
    /// # Errors
    /// A split without targets, a device that fails, or a rank that does not answer.
    fn score(&self, gpt: &Gpt, source: &RowSource, windows: Windows, group: &Group) -> Result<Score>;

    /// Bits per byte of text for a score on `source`; `None` if the loss is not a loss of text.
    fn bits_per_byte(&self, score: &Score, source: &RowSource, tokenizer: &Tokenizer) -> Option<f64>;
}

/// The step to which a micro-batch belongs.
#[derive(Clone, Copy, Debug)]
pub struct StepIndex {
    /// The step, counted from 0.
    pub step: usize,
    /// Total weight of all micro-batches of the step ([`Objective::weight`]), by which the losses are divided.
    pub total_weight: f64,
    /// Total number of context tokens of the step ([`Batch::n_context_tokens`]), by which the divergence from the model
    /// without its adapter is divided.
    pub n_context_tokens: usize,
}

impl StepIndex {
    /// The step `step` of these micro-batches.
    pub fn new<'a>(
        step: usize,
        objective: &dyn Objective,
        micro_batches: impl Iterator<Item = &'a Batch>,
    ) -> StepIndex {
        let empty = StepIndex { step, total_weight: 0.0, n_context_tokens: 0 };
        micro_batches.fold(empty, |index, batch| StepIndex {
            total_weight: index.total_weight + objective.weight(batch),
            n_context_tokens: index.n_context_tokens + batch.n_context_tokens(),
            step,
        })
    }
}
