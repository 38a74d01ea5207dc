//! The encoder of an encoder-decoder: blocks like the decoder's, but bidirectional.

use burn::tensor::{Int, Tensor};

use super::{Block, Gpt, inputs::Inputs};
use crate::{
    config::GptConfig,
    gpt::{
        forward_pass::{AttentionContext, ForwardPass},
        layers::{Embedding, Norm, Relative, modules},
    },
    ops,
};

modules! {
    /// The encoder of an encoder-decoder. Its embedding is the decoder's.
    pub(super) struct Encoder {
        pos_embed: Option<Embedding>,
        embed_norm: Option<Norm>,
        relative: Option<Relative>,
        blocks: Vec<Block>,
        norm: Option<Norm>,
        ; config: GptConfig,
    }
}

impl Encoder {
    pub(super) fn with_dropout(self, dropout: f64) -> Self {
        Self { config: self.config.with_dropout(dropout), ..self }
    }
}

impl Gpt {
    /// The same model for training, with the parameters frozen that `transformers` keeps fixed: the bias of an
    /// encoder-decoder's logits.
    #[must_use]
    pub fn with_fixed_logit_bias(mut self) -> Self {
        if self.config.is_encoder_decoder() {
            self.lm_head.bias = self.lm_head.bias.map(|bias| bias.set_require_grad(false));
        }
        self
    }

    /// The token ids of sources to the encoder's output, a row for each token: `[n_tokens]` to `[n_tokens, d_model]`.
    /// `context` defines which tokens belong to one source.
    ///
    /// # Panics
    /// If the model has no encoder, and as [`forward`](Self::forward).
    pub fn encode(&self, token_ids: Tensor<1, Int>, context: AttentionContext<'_>) -> Tensor<2> {
        let Some(encoder) = &self.encoder else { unreachable!("a source for a model without an encoder") };
        let device = token_ids.device();
        let pass = &mut ForwardPass::new(&encoder.config, context, &device);
        let inputs = Inputs {
            config: &encoder.config,
            embed: &self.embed,
            pos_embed: encoder.pos_embed.as_ref(),
            type_embed: None,
            embed_norm: encoder.embed_norm.as_ref(),
            relative: encoder.relative.as_ref(),
            per_layer: None,
        };
        let mut x = inputs.forward(token_ids, pass);
        for (layer, block) in encoder.blocks.iter().enumerate() {
            x = block.forward(layer, x, &encoder.config, pass);
        }
        match &encoder.norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }

    /// The keys and values of decoder block `layer` of the encoder's output `[n_tokens, d_model]`: `[n_tokens, 2 * kv_width]`.
    pub(crate) fn source_keys(&self, layer: usize, encoded: Tensor<2>) -> Tensor<2> {
        let Some(cross) = &self.blocks[layer].cross else {
            unreachable!("a decoder block without attention to a source")
        };
        ops::linear_with_lora(encoded, cross.kv.parts(None, &[]))
    }
}
