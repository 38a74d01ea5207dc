//! Classification of texts, or of pairs of texts, by an encoder with a head ([BERT](https://arxiv.org/abs/1810.04805), 4.1).
//!
//! - Rows: texts, or pairs of texts in one row, each with a class.
//! - Loss: the mean cross entropy of the classes.
//! - A step counts texts.
//! - Score: the mean cross entropy, and the share of texts whose class is the most likely one.

use anyhow::{Context, Result};
use burn::tensor::{Int, Tensor};
use hearth_model::{
    gpt::{Gpt, class_head::pooled, pooling::Pooling},
    ops::{Losses, Targets},
    text::tokenizer::Tokenizer,
};

use super::{Objective, RowKind, StepIndex, TrainingPass};
use crate::{
    data::loader::{Batch, RowSource, ids_on},
    eval::{Score, Windows, read_floats},
    ranks::Group,
};

/// Classification.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classify {
    pub(super) pooling: Pooling,
}

impl Classify {
    fn vectors(&self, batch: &Batch, hidden: Tensor<2>) -> Tensor<2> {
        pooled(hidden, (&batch.text_lens(), batch.seq_len), self.pooling)
    }
}

/// The classes of a batch's texts.
fn classes(batch: &Batch) -> &[u32] {
    batch.items.as_ref().map_or(&[], |items| &items.classes)
}

impl Objective for Classify {
    fn rows(&self) -> RowKind {
        RowKind::Texts(1)
    }

    fn trains_vectors(&self) -> bool {
        true
    }

    fn uses_setting(&self, name: &str) -> bool {
        name == "pooling"
    }

    fn takes_z_loss(&self) -> bool {
        false
    }

    fn step_size(&self, _n_tokens: usize, n_items: usize) -> (usize, &'static str) {
        (n_items, "text")
    }

    fn weight(&self, batch: &Batch) -> f64 {
        batch.n_items() as f64
    }

    fn losses(&self, pass: &mut TrainingPass<'_>, index: StepIndex) -> Result<Losses> {
        let hidden = pass.hidden();
        let classes = classes(pass.batch);
        let ids: Tensor<1, Int> = ids_on(classes, &pass.gpt.device().autodiff());
        let weights = vec![(1.0 / index.total_weight) as f32; classes.len()];
        let vectors = self.vectors(pass.batch, hidden);
        let losses = pass.gpt.class_losses(vectors, Targets { ids, weights: Some(weights) });
        losses.context("the model has no head for classes to train")
    }

    fn score(&self, gpt: &Gpt, source: &RowSource, windows: Windows, group: &Group) -> Result<Score> {
        let mut own = Vec::new();
        let batches = source.items().into_iter().flat_map(|items| items.batches(windows.batch_size));
        let batches = batches.take(windows.max_batches.unwrap_or(usize::MAX)).enumerate();
        for (_, batch) in batches.filter(|(number, _)| group.is_mine(*number)) {
            let (inputs, _) = batch.to_device(&gpt.device());
            let vectors = self.vectors(&batch, gpt.forward(inputs, batch.context(None)));
            let logits = gpt.class_logits(vectors).context("the model has no head for classes")?;
            let [n, n_classes] = logits.dims();
            let logits = read_floats(logits.reshape([n * n_classes]))?;
            let (mut losses, mut n_right) = (Vec::with_capacity(n), 0_usize);
            for (row, &class) in logits.chunks_exact(n_classes).zip(classes(&batch)) {
                let value = |class: usize| f64::from(row[class]);
                let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = row.iter().map(|logit| f64::from(logit - most).exp()).sum();
                // Bits, since a message between ranks has not all floats.
                losses.push((sum.ln() + f64::from(most) - value(class as usize)).to_bits());
                n_right += usize::from(row.iter().position(|logit| *logit == most) == Some(class as usize));
            }
            own.push((losses, n_right));
        }
        let (losses, n_right): (Vec<Vec<u64>>, Vec<usize>) = group.in_turn(own)?.into_iter().unzip();
        let losses: Vec<f64> = losses.into_iter().flatten().map(f64::from_bits).collect();
        let n = losses.len().max(1) as f64;
        let accuracy = Some(n_right.into_iter().sum::<usize>() as f64 / n);
        Ok(Score { loss: losses.iter().sum::<f64>() / n, n_targets: losses.len(), accuracy })
    }

    fn bits_per_byte(&self, _score: &Score, _source: &RowSource, _tokenizer: &Tokenizer) -> Option<f64> {
        None
    }
}
