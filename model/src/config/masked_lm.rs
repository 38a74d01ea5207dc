//! Encoders that predict masked tokens.

use serde::{Deserialize, Serialize};

use super::{Activation, GptConfig, NormPosition, Sizes};

/// The layers between an encoder's hidden states and the output matrix that predicts masked tokens: `norm(act(dense(x)))`
/// ([BERT](https://arxiv.org/abs/1810.04805), 3.1). The norm is like the model's other norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaskedLmHead {
    /// The activation.
    pub activation: Activation,
    /// Whether the dense layer has a bias.
    pub bias: bool,
}

impl GptConfig {
    /// The architecture of BERT without a head: GPT-1's blocks, bidirectional, after a norm of the embedding.
    pub fn bert(sizes: Sizes) -> Self {
        Self {
            norm_position: NormPosition::Post,
            final_norm: false,
            embed_norm: true,
            activation: Activation::Gelu,
            bidirectional: true,
            n_token_types: 2,
            norm_eps: 1e-12,
            ..Self::gpt2(sizes)
        }
    }

    /// The same architecture with BERT's masked-LM head.
    #[must_use]
    pub fn with_mlm_head(self) -> Self {
        let head = MaskedLmHead { activation: self.activation, bias: true };
        Self { mlm_head: Some(head), lm_head_bias: true, ..self }
    }

    /// The same architecture without a masked-LM head.
    #[must_use]
    pub fn without_mlm_head(self) -> Self {
        match self.mlm_head {
            None => self,
            Some(_) => Self { mlm_head: None, lm_head_bias: false, ..self },
        }
    }
}
