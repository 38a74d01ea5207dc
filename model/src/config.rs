//! The one architecture struct. Every model that Hearth knows is a value of [`GptConfig`]; no architecture has code of its own.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What distinguishes one decoder-only transformer from another.
///
/// It is passed whole to every part of the model. Names follow the field's common words; what Hugging Face calls them
/// is known to `weights::hf` alone. As JSON (all fields always written, unknown ones refused) it is the `config.json`
/// of the architectures that no Hugging Face class expresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptConfig {
    /// Number of token ids: rows of the embedding.
    pub vocab_size: usize,
    /// Longest sequence the positions were made for, in tokens.
    pub max_seq_len: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; each serves `n_heads / n_kv_heads` query heads ([GQA](https://arxiv.org/abs/2305.13245)).
    pub n_kv_heads: usize,
    /// Width of one head; `n_heads * head_dim` need not be `d_model`.
    pub head_dim: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width inside the feed-forward network.
    pub d_ff: usize,
    /// Which normalisation.
    pub norm: NormKind,
    /// Added to the variance under the root.
    pub norm_eps: f64,
    /// Whether norms have a bias (LayerNorm only).
    pub norm_bias: bool,
    /// Added to every norm's stored weight before use: 1 in Gemma, which stores `weight - 1`.
    pub norm_weight_offset: f32,
    /// Where a block normalises: before its two parts, or after each residual sum.
    pub norm_position: NormPosition,
    /// Nonlinearity of the feed-forward network.
    pub activation: Activation,
    /// Whether the network is gated: `down(act(gate(x)) * up(x))` ([GLU variants](https://arxiv.org/abs/2002.05202)).
    pub gated_mlp: bool,
    /// How the model knows the order of its tokens.
    pub positions: Positions,
    /// Attention and feed-forward read the same input and are summed ([GPT-J](https://github.com/kingoflolz/mesh-transformer-jax)).
    pub parallel_residual: bool,
    /// Biases on the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias on the attention's output projection.
    pub attn_out_bias: bool,
    /// Biases in the feed-forward network.
    pub mlp_bias: bool,
    /// `lm_head` is the embedding matrix itself ([Press and Wolf](https://arxiv.org/abs/1608.05859)).
    pub tie_embeddings: bool,
    /// Embeddings are multiplied by `sqrt(d_model)` (["Attention is all you need"](https://arxiv.org/abs/1706.03762), 3.4).
    pub scale_embeddings: bool,
    /// Each position sees itself and this many positions less one before it; `None`: all before it.
    pub sliding_window: Option<usize>,
    /// Share of activations dropped while training, in `[0, 1)`; never applied when serving.
    pub dropout: f64,
}

/// Which normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Mean and variance ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)).
    LayerNorm,
    /// Root mean square only ([Zhang and Sennrich 2019](https://arxiv.org/abs/1910.07467)).
    RmsNorm,
}

/// Where a block normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPosition {
    /// `x + f(norm(x))`, with one more norm after the last block (GPT-2 and nearly everything since).
    Pre,
    /// `norm(x + f(x))`, and none at the end (the original transformer, GPT-1).
    Post,
}

/// Nonlinearity of the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(0, x)`.
    Relu,
    /// `x * Phi(x)` with the error function ([GELU](https://arxiv.org/abs/1606.08415)).
    Gelu,
    /// GELU by its tanh approximation, as GPT-2 uses it.
    GeluTanh,
    /// `x * sigmoid(x)`, also called swish; gated it makes SwiGLU.
    Silu,
}

/// How the model knows the order of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Positions {
    /// Nothing: order shows only through the causal mask.
    None,
    /// A trained vector per position, added to the embedding.
    Learned,
    /// Fixed sines and cosines added to the embedding (["Attention is all you need"](https://arxiv.org/abs/1706.03762), 3.5).
    Sinusoidal,
    /// Queries and keys are rotated by their position ([RoFormer](https://arxiv.org/abs/2104.09864)).
    Rope(Rope),
    /// Scores fall linearly with distance, each head at its own slope ([ALiBi](https://arxiv.org/abs/2108.12409)).
    Alibi,
}

/// Rotary positions, in the pairing of Hugging Face: dimension `i` turns with `i + rotary_dim / 2`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base of the wavelengths.
    pub theta: f64,
    /// How many leading dimensions of each head turn; the rest pass unchanged. Even, at most `head_dim`.
    pub rotary_dim: usize,
}

/// The sizes that a preset leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// See [`GptConfig::vocab_size`].
    pub vocab_size: usize,
    /// See [`GptConfig::max_seq_len`].
    pub max_seq_len: usize,
    /// See [`GptConfig::n_layers`].
    pub n_layers: usize,
    /// See [`GptConfig::n_heads`].
    pub n_heads: usize,
    /// See [`GptConfig::n_kv_heads`].
    pub n_kv_heads: usize,
    /// See [`GptConfig::d_model`].
    pub d_model: usize,
    /// See [`GptConfig::d_ff`].
    pub d_ff: usize,
}

impl GptConfig {
    /// The architecture of GPT-2: LayerNorm, GELU, learned positions, biases everywhere, tied embeddings.
    pub fn gpt2(sizes: Sizes) -> Self {
        Self {
            norm: NormKind::LayerNorm,
            norm_bias: true,
            activation: Activation::GeluTanh,
            gated_mlp: false,
            positions: Positions::Learned,
            qkv_bias: true,
            attn_out_bias: true,
            mlp_bias: true,
            tie_embeddings: true,
            ..Self::llama(sizes)
        }
    }

    /// The architecture of Llama: RMSNorm, SwiGLU, rotary positions, no biases, embeddings apart from `lm_head`.
    pub fn llama(sizes: Sizes) -> Self {
        let Sizes { vocab_size, max_seq_len, n_layers, n_heads, n_kv_heads, d_model, d_ff } = sizes;
        let head_dim = d_model / n_heads.max(1);
        Self {
            vocab_size,
            max_seq_len,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            d_model,
            d_ff,
            norm: NormKind::RmsNorm,
            norm_eps: 1e-5,
            norm_bias: false,
            norm_weight_offset: 0.0,
            norm_position: NormPosition::Pre,
            activation: Activation::Silu,
            gated_mlp: true,
            positions: Positions::Rope(Rope { theta: 10_000.0, rotary_dim: head_dim }),
            parallel_residual: false,
            qkv_bias: false,
            attn_out_bias: false,
            mlp_bias: false,
            tie_embeddings: false,
            scale_embeddings: false,
            sliding_window: None,
            dropout: 0.0,
        }
    }

    /// Refuses sizes that make no model, by field.
    ///
    /// # Errors
    /// [`Error::Config`] with the first field that is out of range.
    pub fn validate(&self) -> Result<()> {
        let positive = [
            ("vocab_size", self.vocab_size),
            ("max_seq_len", self.max_seq_len),
            ("n_layers", self.n_layers),
            ("n_heads", self.n_heads),
            ("n_kv_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("d_model", self.d_model),
            ("d_ff", self.d_ff),
        ];
        for (field, size) in positive {
            // The upper bound keeps every product of two sizes far from overflow; no real model comes near it.
            require(field, (1..=1 << 28).contains(&size), || format!("must be in 1..=2^28, got {size}"))?;
        }
        require("n_kv_heads", self.n_heads.is_multiple_of(self.n_kv_heads), || {
            format!("must divide n_heads = {}, got {}", self.n_heads, self.n_kv_heads)
        })?;
        require("norm_eps", self.norm_eps.is_finite() && self.norm_eps >= 0.0, || {
            format!("must be finite and not negative, got {}", self.norm_eps)
        })?;
        require("norm_bias", !(self.norm_bias && self.norm == NormKind::RmsNorm), || {
            "must be false with norm = rms_norm".to_owned()
        })?;
        require("norm_weight_offset", self.norm_weight_offset.is_finite(), || {
            format!("must be finite, got {}", self.norm_weight_offset)
        })?;
        require("parallel_residual", !(self.parallel_residual && self.norm_position == NormPosition::Post), || {
            "must be false with norm_position = post".to_owned()
        })?;
        require("dropout", (0.0..1.0).contains(&self.dropout), || format!("must be in [0, 1), got {}", self.dropout))?;
        require("sliding_window", self.sliding_window != Some(0), || "must be at least 1, got 0".to_owned())?;
        if let Positions::Rope(Rope { theta, rotary_dim }) = self.positions {
            require("positions.rope.theta", theta.is_finite() && theta > 0.0, || {
                format!("must be finite and positive, got {theta}")
            })?;
            let fits = rotary_dim.is_multiple_of(2) && (2..=self.head_dim).contains(&rotary_dim);
            require("positions.rope.rotary_dim", fits, || {
                format!("must be even and in 2..=head_dim = {}, got {rotary_dim}", self.head_dim)
            })?;
        }
        Ok(())
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Number of trained values; tied embeddings count once.
    pub fn n_params(&self) -> usize {
        crate::gpt::param_specs(self).iter().map(|spec| spec.shape.iter().product::<usize>()).sum()
    }

    /// Bytes of KV cache that one token takes over all layers, at `bytes_per_value` (4 for f32).
    pub fn kv_bytes_per_token(&self, bytes_per_value: usize) -> usize {
        2 * self.n_layers * self.kv_width() * bytes_per_value
    }
}

fn require(field: &'static str, holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Config { field, what: what() }) }
}
