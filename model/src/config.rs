//! The one architecture struct. Every model that Hearth knows is a value of [`GptConfig`]; no architecture has code of its own.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Far deeper than any model; it bounds the list of parameters that a file can ask for.
const MAX_LAYERS: usize = 1 << 12;
/// A thousand times the largest models, and far from where sizes in bytes overflow.
const MAX_PARAMS: usize = 1 << 50;

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
    /// One more norm after the last block.
    pub final_norm: bool,
    /// That norm's own [`norm_eps`](Self::norm_eps); `None`: the same as everywhere.
    pub final_norm_eps: Option<f64>,
    /// Embeddings are normalised before positions are added to them ([BLOOM](https://arxiv.org/abs/2211.05100), 3.2).
    pub embed_norm: bool,
    /// Each head's query and key are normalised before they are rotated, with one weight for all heads of a layer and
    /// no bias ([Dehghani et al. 2023](https://arxiv.org/abs/2302.05442), 2).
    pub qk_norm: bool,
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
    /// A bias on the logits.
    pub lm_head_bias: bool,
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
    /// `x + f(norm(x))` (GPT-2 and nearly everything since).
    Pre,
    /// `norm(x + f(x))` (the original transformer, GPT-1).
    Post,
}

/// Nonlinearity of the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// How the wavelengths were stretched for longer contexts than the model was first trained on.
    pub scaling: RopeScaling,
}

impl Rope {
    /// Unscaled.
    pub fn new(theta: f64, rotary_dim: usize) -> Self {
        Self { theta, rotary_dim, scaling: RopeScaling::None }
    }
}

/// How rotary wavelengths are stretched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All by the same factor ([position interpolation](https://arxiv.org/abs/2306.15595)).
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// A larger base, so that long wavelengths stretch more than short ones (["NTK-aware"
    /// scaling](https://arxiv.org/abs/2309.00071), 3.1), the larger the longer the text is; none up to
    /// `original_max_seq_len`.
    ///
    /// As with `generate` of `transformers`, the base is that of the text's length when a token comes in: the prompt's
    /// tokens have that of the whole prompt, in however many steps they are computed, each generated one that of the
    /// text up to itself, and keys in the cache keep what they were written with. So beyond `original_max_seq_len`, and
    /// there alone, what is computed for a token depends on whether it was given or generated.
    Dynamic {
        /// At least 1.
        factor: f64,
        /// Longest sequence before scaling.
        original_max_seq_len: usize,
    },
    /// Long wavelengths by the factor, short ones not at all, blended between ([Llama
    /// 3.1](https://arxiv.org/abs/2407.21783)).
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths above `original_max_seq_len / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_seq_len / high_freq_factor` are left alone.
        high_freq_factor: f64,
        /// Longest sequence before scaling.
        original_max_seq_len: usize,
    },
    /// The same, blended by dimension, and attention made sharper ([YaRN](https://arxiv.org/abs/2309.00071)).
    Yarn {
        /// At least 1.
        factor: f64,
        /// Multiplies cosines and sines, and so scores by its square.
        attention_factor: f64,
        /// Dimensions that turn more often than this over the original context are left alone.
        beta_fast: f64,
        /// Dimensions that turn less often than this are stretched in full.
        beta_slow: f64,
        /// Longest sequence before scaling.
        original_max_seq_len: usize,
        /// Whether the blend's ends are rounded outwards to whole dimensions.
        truncate: bool,
    },
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
            final_norm: true,
            final_norm_eps: None,
            embed_norm: false,
            qk_norm: false,
            activation: Activation::Silu,
            gated_mlp: true,
            positions: Positions::Rope(Rope::new(10_000.0, head_dim)),
            parallel_residual: false,
            qkv_bias: false,
            attn_out_bias: false,
            mlp_bias: false,
            tie_embeddings: false,
            lm_head_bias: false,
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
        require("n_layers", self.n_layers <= MAX_LAYERS, || {
            format!("must be at most {MAX_LAYERS}, got {}", self.n_layers)
        })?;
        require("n_kv_heads", self.n_heads.is_multiple_of(self.n_kv_heads), || {
            format!("must divide n_heads = {}, got {}", self.n_heads, self.n_kv_heads)
        })?;
        for (field, eps) in [("norm_eps", Some(self.norm_eps)), ("final_norm_eps", self.final_norm_eps)] {
            let eps = eps.unwrap_or(self.norm_eps);
            require(field, eps.is_finite() && eps >= 0.0, || format!("must be finite and not negative, got {eps}"))?;
        }
        require("final_norm_eps", self.final_norm || self.final_norm_eps.is_none(), || {
            "must be absent with final_norm = false".to_owned()
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
        if let Some(window) = self.sliding_window {
            require("sliding_window", (1..=1 << 32).contains(&window), || {
                format!("must be in 1..=2^32, got {window}")
            })?;
        }
        if let Positions::Rope(rope) = self.positions {
            rope.validate(self.head_dim)?;
        }
        // Sizes that pass one by one may still make a product that no memory holds.
        require("n_layers", self.n_params() <= MAX_PARAMS, || {
            format!("and the other sizes must make at most {MAX_PARAMS} parameters, got {}", self.n_params())
        })
    }

    /// Beyond how many tokens what is computed for a token depends on how long its text was when it came in; `None`:
    /// nowhere. See [`RopeScaling::Dynamic`].
    pub fn text_len_matters_beyond(&self) -> Option<usize> {
        match self.positions {
            Positions::Rope(Rope { scaling: RopeScaling::Dynamic { original_max_seq_len, .. }, .. }) => {
                Some(original_max_seq_len)
            }
            _ => None,
        }
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Bytes of KV cache that one token takes over all layers, at `bytes_per_value` (4 for f32).
    pub fn kv_bytes_per_token(&self, bytes_per_value: usize) -> usize {
        2 * self.n_layers * self.kv_width() * bytes_per_value
    }
}

impl Rope {
    fn validate(&self, head_dim: usize) -> Result<()> {
        let Self { theta, rotary_dim, scaling } = *self;
        // Where theta is 1 or less, wavelengths do not grow with the dimension, and YaRN divides by its logarithm.
        require("positions.rope.theta", theta.is_finite() && theta > 1.0, || {
            format!("must be finite and above 1, got {theta}")
        })?;
        let fits = rotary_dim.is_multiple_of(2) && (2..=head_dim).contains(&rotary_dim);
        require("positions.rope.rotary_dim", fits, || {
            format!("must be even and in 2..=head_dim = {head_dim}, got {rotary_dim}")
        })?;
        let at_least_one = |factor: f64| {
            require("positions.rope.scaling.factor", factor.is_finite() && factor >= 1.0, || {
                format!("must be finite and at least 1, got {factor}")
            })
        };
        let above_zero = |field, value: f64| {
            require(field, value.is_finite() && value > 0.0, || format!("must be finite and positive, got {value}"))
        };
        let length = |length: usize| {
            require("positions.rope.scaling.original_max_seq_len", (1..=1 << 28).contains(&length), || {
                format!("must be in 1..=2^28, got {length}")
            })
        };
        match scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => at_least_one(factor),
            RopeScaling::Dynamic { factor, original_max_seq_len } => {
                require("positions.rope.rotary_dim", rotary_dim > 2, || {
                    "must be above 2 with dynamic scaling, got 2".to_owned()
                })?;
                at_least_one(factor)?;
                length(original_max_seq_len)
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_seq_len } => {
                at_least_one(factor)?;
                above_zero("positions.rope.scaling.low_freq_factor", low_freq_factor)?;
                let above = high_freq_factor.is_finite() && high_freq_factor > low_freq_factor;
                require("positions.rope.scaling.high_freq_factor", above, || {
                    format!("must be finite and above low_freq_factor = {low_freq_factor}, got {high_freq_factor}")
                })?;
                length(original_max_seq_len)
            }
            RopeScaling::Yarn { factor, attention_factor, beta_fast, beta_slow, original_max_seq_len, .. } => {
                at_least_one(factor)?;
                above_zero("positions.rope.scaling.attention_factor", attention_factor)?;
                above_zero("positions.rope.scaling.beta_slow", beta_slow)?;
                let above = beta_fast.is_finite() && beta_fast >= beta_slow;
                require("positions.rope.scaling.beta_fast", above, || {
                    format!("must be finite and not below beta_slow = {beta_slow}, got {beta_fast}")
                })?;
                length(original_max_seq_len)
            }
        }
    }
}

fn require(field: &'static str, holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Config { field, what: what() }) }
}
