//! The input of the first block.

use burn::tensor::{Int, Tensor};

use super::{Gpt, PerLayerInputs};
use crate::{
    config::GptConfig,
    gpt::{
        forward_pass::{AddedPositions, DropoutPlace, ForwardPass},
        layers::{Embedding, Norm, Relative},
        lora::AdapterRows,
    },
    ops,
};

/// The layers before a stack of blocks: the model's, or its encoder's.
pub(super) struct Inputs<'a> {
    pub(super) config: &'a GptConfig,
    pub(super) embed: &'a Embedding,
    pub(super) pos_embed: Option<&'a Embedding>,
    pub(super) type_embed: Option<&'a Embedding>,
    pub(super) embed_norm: Option<&'a Norm>,
    pub(super) relative: Option<&'a Relative>,
    pub(super) per_layer: Option<&'a PerLayerInputs>,
}

impl Gpt {
    /// From token ids to the input of the first block, `[n_rows, d_model]`. Stores the per-layer inputs in the pass.
    pub(crate) fn embed_input(&self, token_ids: Tensor<1, Int>, pass: &mut ForwardPass<'_>) -> Tensor<2> {
        let inputs = Inputs {
            config: &self.config,
            embed: &self.embed,
            pos_embed: self.pos_embed.as_ref(),
            type_embed: self.type_embed.as_ref(),
            embed_norm: self.embed_norm.as_ref(),
            relative: self.relative.as_ref(),
            per_layer: self.per_layer.as_ref(),
        };
        inputs.forward(token_ids, pass)
    }
}

impl Inputs<'_> {
    /// From token ids to the input of the first block, `[n_rows, d_model]`.
    pub(super) fn forward(&self, token_ids: Tensor<1, Int>, pass: &mut ForwardPass<'_>) -> Tensor<2> {
        let mut x = self.embed.forward(token_ids.clone());
        assert_eq!(x.dims()[0], pass.n_rows(), "token ids, and rows that attend");
        if self.config.scale_embeddings {
            x = x * (self.config.d_model as f64).sqrt();
        }
        if self.config.embedding_multiplier != 1.0 {
            x = x * self.config.embedding_multiplier;
        }
        if let Some(per_layer) = &self.per_layer {
            let [embeddings, for_blocks] = ops::fork(x);
            x = embeddings;
            pass.per_layer = Some(per_layer.forward(token_ids, for_blocks, pass.dropout_seed(), &pass.adapters()));
        }
        match (&self.pos_embed, pass.added()) {
            (Some(pos_embed), AddedPositions::Learned(positions)) => {
                x = ops::add_update(x, pos_embed.forward(positions.tensor()), 1.0, None);
            }
            (_, AddedPositions::Sinusoidal(rows)) => x = x + rows.tensor(),
            _ => {}
        }
        if let (Some(type_embed), Some(types)) = (&self.type_embed, pass.token_types()) {
            x = ops::add_update(x, type_embed.forward(types.tensor()), 1.0, None);
        }
        if let Some(norm) = &self.embed_norm {
            x = norm.forward(x);
        }
        if let Some(relative) = self.relative {
            pass.add_relative(relative);
        }
        ops::dropout(x, pass.dropout(DropoutPlace::Embeddings))
    }
}

impl PerLayerInputs {
    /// The per-layer inputs of all blocks side by side, `[n_rows, n_layers * width]`, from the rows' ids and their
    /// embeddings `[n_rows, d_model]`: the sum of both parts divided by the root of two.
    fn forward(
        &self,
        token_ids: Tensor<1, Int>,
        embeddings: Tensor<2>,
        dropout_seed: Option<u64>,
        adapters: &[AdapterRows],
    ) -> Tensor<2> {
        let norm = self.norm.parts();
        let ([_, d_model], [width]) = (embeddings.dims(), norm.weight.dims());
        let of_ids = self.embed.forward(token_ids) * (width as f64).sqrt();
        let projected = ops::linear_with_lora(embeddings, self.proj.parts(dropout_seed, adapters));
        let projected = ops::head_norm(projected * (d_model as f64).sqrt().recip(), norm);
        (projected + of_ids) * std::f64::consts::FRAC_1_SQRT_2
    }
}
