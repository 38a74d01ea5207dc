//! The architecture of a model. All supported models are values of [`GptConfig`]; no architecture has separate code.

use serde::{Deserialize, Serialize};

mod experts;
mod heads;
mod latent;
mod masked_lm;
mod recurrent;
mod rope;
mod seq2seq;
mod validate;

pub use experts::{ExpertGroups, Experts, RouterScores};
pub use heads::{HeadSizes, PerLayerInputs};
pub use latent::LatentAttention;
pub use masked_lm::MaskedLmHead;
pub use recurrent::{GatedConv, GatedDeltaNet, Mamba2, Recurrence, Recurrent};
pub use rope::{Rope, RopeScaling};
pub use seq2seq::RelativeBuckets;
pub(crate) use validate::MAX_LAYERS;

/// The architecture of a transformer.
///
/// Passed as a whole to every part of the model. Names are the field's common terms; Hugging Face's names are only used
/// in `weights::architectures`. As JSON (all fields are written, unknown ones are rejected) it is the `config.json` of
/// architectures that no Hugging Face class can express.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptConfig {
    /// Vocabulary size: rows of the embedding.
    pub vocab_size: usize,
    /// Context length in tokens.
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
    /// Width inside the MLP.
    pub d_ff: usize,
    /// The kind of norm.
    pub norm: NormKind,
    /// Epsilon: added to the variance under the root.
    pub norm_eps: f64,
    /// Whether norms have weights; without, they only normalise ([nanochat](https://github.com/karpathy/nanochat)).
    #[serde(default = "yes")]
    pub norm_weight: bool,
    /// Whether norms have a bias (LayerNorm only).
    pub norm_bias: bool,
    /// Added to every norm's stored weight: 1 for Gemma, which stores `weight - 1`.
    pub norm_weight_offset: f32,
    /// Position of the norms in a block.
    pub norm_position: NormPosition,
    /// Whether there is a final norm after the last block.
    pub final_norm: bool,
    /// [`norm_eps`](Self::norm_eps) of the final norm; `None`: the same as for other norms.
    pub final_norm_eps: Option<f64>,
    /// Whether the input of the first block is normalized ([BLOOM](https://arxiv.org/abs/2211.05100), 3.2; BERT).
    pub embed_norm: bool,
    /// Whether queries and keys are normalized before rotation ([Dehghani et al.
    /// 2023](https://arxiv.org/abs/2302.05442), 2).
    pub qk_norm: bool,
    /// Over which values the norms of queries and keys are computed.
    #[serde(default)]
    pub qk_norm_span: QkNormSpan,
    /// Activation of the MLP.
    pub activation: Activation,
    /// Whether the MLP is gated: `down(act(gate(x)) * up(x))` ([GLU variants](https://arxiv.org/abs/2002.05202)).
    pub gated_mlp: bool,
    /// Position encoding.
    pub positions: Positions,
    /// Whether attention and MLP read the same input and are summed
    /// ([GPT-J](https://github.com/kingoflolz/mesh-transformer-jax)).
    pub parallel_residual: bool,
    /// With parallel residuals: whether attention and MLP share attention's norm (GPT-J) or each has its own
    /// (GPT-NeoX).
    #[serde(default)]
    pub shared_norm: bool,
    /// Biases on the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias on the attention's output projection.
    pub attn_out_bias: bool,
    /// Biases in the MLP.
    pub mlp_bias: bool,
    /// Whether `lm_head` is the embedding matrix ([Press and Wolf](https://arxiv.org/abs/1608.05859)).
    pub tie_embeddings: bool,
    /// Whether the logits have a bias.
    pub lm_head_bias: bool,
    /// Whether embeddings are multiplied by `sqrt(d_model)` (["Attention is all you
    /// need"](https://arxiv.org/abs/1706.03762), 3.4).
    pub scale_embeddings: bool,
    /// Multiplier of the embeddings ([Granite 3.0](https://huggingface.co/ibm-granite/granite-3.0-8b-base), whose four
    /// multipliers come from [muP](https://arxiv.org/abs/2203.03466)).
    #[serde(default = "one")]
    pub embedding_multiplier: f64,
    /// Multiplier of the outputs of attention and MLP before they are added to the residual stream.
    #[serde(default = "one")]
    pub residual_multiplier: f64,
    /// Multiplier of the logits.
    #[serde(default = "one")]
    pub logit_multiplier: f64,
    /// Soft cap of the logits: `c * tanh(logit / c)`, which stays within `-c..c` ([Gemma
    /// 2](https://arxiv.org/abs/2408.00118), 2).
    #[serde(default)]
    pub logit_softcap: Option<f64>,
    /// Multiplier of attention scores; `None`: `1 / sqrt(head_dim)`.
    #[serde(default)]
    pub attention_scale: Option<f64>,
    /// Soft cap of scaled attention scores before the softmax: `c * tanh(score / c)` (Gemma 2, as above).
    #[serde(default)]
    pub attention_softcap: Option<f64>,
    /// Sliding window: each position sees the last this many positions, including itself; `None`: all.
    pub sliding_window: Option<usize>,
    /// The layers, counted from 0, that see all positions in spite of [`sliding_window`](Self::sliding_window), as in
    /// [Longformer](https://arxiv.org/abs/2004.05150) and Gemma 2. Ascending; empty without a window.
    #[serde(default)]
    pub full_layers: Vec<usize>,
    /// The layers, counted from 0, that do not rotate queries and keys ([NoPE](https://arxiv.org/abs/2305.19466), here
    /// [among layers that do](https://arxiv.org/abs/2501.18795)). Ascending.
    #[serde(default)]
    pub unrotated_layers: Vec<usize>,
    /// Rotary positions of the layers with the window, if they differ from [`positions`](Self::positions) ([Gemma
    /// 3](https://arxiv.org/abs/2503.19786), 2.1).
    #[serde(default)]
    pub window_rope: Option<Rope>,
    /// Routed experts in place of the MLP, in all layers or most.
    #[serde(default)]
    pub experts: Option<Experts>,
    /// Whether queries and keys are normalized after rotation instead of before
    /// ([Hunyuan](https://arxiv.org/abs/2411.02265)).
    #[serde(default)]
    pub qk_norm_after_rope: bool,
    /// Multiplier of queries that grows with their position.
    #[serde(default)]
    pub query_temperature: Option<QueryTemperature>,
    /// Whether the MLP, which must not be gated, has the activation [xIELU](https://arxiv.org/abs/2411.13010) in place
    /// of [`activation`](Self::activation): a parabola above 0 and an exponential below, with factors that each layer
    /// learns.
    #[serde(default)]
    pub xielu: bool,
    /// Recurrent layers in place of attention, in all layers or most.
    #[serde(default)]
    pub recurrent: Option<Recurrent>,
    /// Whether each head's output is multiplied by a sigmoid of the row ([gated
    /// attention](https://arxiv.org/abs/2505.06708)).
    #[serde(default)]
    pub attention_gate: bool,
    /// Keys and values of all heads from one narrow vector of each token.
    #[serde(default)]
    pub latent: Option<LatentAttention>,
    /// Sizes of the heads in layers without the window, if they differ from the sizes in layers with it ([Gemma
    /// 4](https://ai.google.dev/gemma/docs/core/model_card_4), as the fields below).
    #[serde(default)]
    pub full_heads: Option<HeadSizes>,
    /// Whether values are normalized too, each head separately and without weights.
    #[serde(default)]
    pub value_norm: bool,
    /// Whether the layers without the window have no projection to values: these are the keys before norm and rotation.
    #[serde(default)]
    pub keys_as_values: bool,
    /// Number of last layers without keys and values of their own. Each attends to the keys and values of the last
    /// earlier layer of its kind (with or without the window) that has its own
    /// ([YOCO](https://arxiv.org/abs/2405.05254)).
    #[serde(default)]
    pub n_shared_kv_layers: usize,
    /// Whether the MLP is twice as wide in the layers without keys and values of their own.
    #[serde(default)]
    pub wide_shared_mlp: bool,
    /// Whether the output of each block is multiplied by a number, which does not learn by gradients.
    #[serde(default)]
    pub layer_scale: bool,
    /// A second embedding; each block reads its own slice of it.
    #[serde(default)]
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// The layers, counted from 0, that have no MLP and no experts, only attention or a recurrent layer, as in
    /// [Nemotron-H](https://arxiv.org/abs/2504.03624). Ascending.
    #[serde(default)]
    pub layers_without_mlp: Vec<usize>,
    /// The layers, counted from 0, that have an MLP or experts only. Ascending.
    #[serde(default)]
    pub layers_without_mixer: Vec<usize>,
    /// Whether each head has a learned score that is added to the softmax's denominator but has no value ([attention
    /// sinks](https://arxiv.org/abs/2309.17453), here as in [gpt-oss](https://arxiv.org/abs/2508.10925)).
    #[serde(default)]
    pub attention_sinks: bool,
    /// Whether the gated MLP is clamped, in place of [`activation`](Self::activation).
    #[serde(default)]
    pub clamped_swiglu: Option<ClampedSwiglu>,
    /// Whether each position sees all others of its text, later ones too: an encoder
    /// ([BERT](https://arxiv.org/abs/1810.04805)). A sliding window then extends to both sides.
    #[serde(default)]
    pub bidirectional: bool,
    /// Number of token types, such as the first and the second text of a pair (BERT, 3): a learned vector for each
    /// token's type is added to its embedding. 0: none.
    #[serde(default)]
    pub n_token_types: usize,
    /// Whether the first block's mixer reads the residual stream without a norm, since the embeddings are normalized already
    /// ([ModernBERT](https://arxiv.org/abs/2412.13663)).
    #[serde(default)]
    pub unnormed_first_mixer: bool,
    /// Whether the norms of queries and keys have biases.
    #[serde(default)]
    pub qk_norm_bias: bool,
    /// Clamps queries, keys and values to this magnitude, before norms and rotation
    /// ([DBRX](https://www.databricks.com/blog/introducing-dbrx-new-state-art-open-llm), OLMo 1).
    #[serde(default)]
    pub clip_qkv: Option<f64>,
    /// Whether the norm after the embedding has no weight.
    #[serde(default)]
    pub plain_embed_norm: bool,
    /// Whether the norms of queries and keys have no weights.
    #[serde(default)]
    pub plain_qk_norm: bool,
    /// [`norm_eps`](Self::norm_eps) of the norms after attention and after the MLP; `None`: the same as for other norms.
    #[serde(default)]
    pub out_norm_eps: Option<f64>,
    /// [`norm_weight_offset`](Self::norm_weight_offset) of the final norm; `None`: the same as for other norms.
    #[serde(default)]
    pub final_norm_offset: Option<f32>,
    /// Head between the hidden states and the output matrix, in encoders that predict masked tokens.
    #[serde(default)]
    pub mlm_head: Option<MaskedLmHead>,
    /// The encoder of an encoder-decoder (["Attention is all you need"](https://arxiv.org/abs/1706.03762), 3.1), a
    /// bidirectional model. Each block of the decoder attends to the encoder's output, one row per source token,
    /// besides its own rows. The encoder shares the decoder's embedding. All other fields are the decoder's.
    #[serde(default)]
    pub encoder: Option<Box<GptConfig>>,
    /// Dropout probability, in `[0, 1)`; not applied when serving.
    pub dropout: f64,
}

/// A gated MLP between its matrices: `(up + 1) * gate * sigmoid(alpha * gate)`, where `gate` is at most `limit`, and `up` within
/// `-limit..limit` ([gpt-oss](https://arxiv.org/abs/2508.10925)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClampedSwiglu {
    /// Slope of the sigmoid; positive.
    pub alpha: f64,
    /// Bound of both inputs; positive.
    pub limit: f64,
}

/// Queries are multiplied by `1 + beta * ln(1 + floor(position / interval))`, after
/// ["scalable softmax"](https://arxiv.org/abs/2501.19399): attention stays sharp in long contexts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryTemperature {
    /// Growth per unit of the logarithm; positive.
    pub beta: f64,
    /// Positions below it are not multiplied; at least 1.
    pub interval: usize,
}

/// The kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Mean and variance ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)).
    LayerNorm,
    /// Root mean square only ([Zhang and Sennrich 2019](https://arxiv.org/abs/1910.07467)).
    RmsNorm,
}

/// The position of norms in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPosition {
    /// `x + f(norm(x))` (GPT-2 and nearly everything since).
    Pre,
    /// `norm(x + f(x))` (the original transformer, GPT-1).
    Post,
    /// `x + norm(f(x))` ([OLMo 2](https://arxiv.org/abs/2501.00656), 3.2).
    Inside,
    /// `x + norm(f(norm(x)))`, two norms for each part ([CogView](https://arxiv.org/abs/2105.13290), 2.4; Gemma 2).
    Sandwich,
}

/// Over which values the norms of queries and keys are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNormSpan {
    /// Each head separately, with one weight for all heads of a layer (Qwen 3).
    #[default]
    Head,
    /// All heads of a row together (OLMo 2).
    AllHeads,
    /// Each head separately, with a weight for each head of a layer (Cohere's Command R+).
    EachHead,
}

/// The activation function of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(0, x)`.
    Relu,
    /// `max(0, x)^2` ([Primer](https://arxiv.org/abs/2109.08668)).
    ReluSquared,
    /// `x * Phi(x)` with the error function ([GELU](https://arxiv.org/abs/1606.08415)).
    Gelu,
    /// GELU by its tanh approximation, as GPT-2 uses it.
    GeluTanh,
    /// `x * sigmoid(x)`, also called swish; gated it makes SwiGLU.
    Silu,
}

/// The position encoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Positions {
    /// None: only the causal mask conveys order.
    None,
    /// A learned vector per position, added to the embedding.
    Learned,
    /// Fixed sines and cosines added to the embedding (["Attention is all you need"](https://arxiv.org/abs/1706.03762), 3.5).
    Sinusoidal,
    /// As [`Sinusoidal`](Self::Sinusoidal), but with a longest wavelength of exactly 10,000 times the shortest, as in
    /// [tensor2tensor](https://github.com/tensorflow/tensor2tensor), and with positions that start at 2, as in
    /// [fairseq](https://github.com/facebookresearch/fairseq).
    SinusoidalFromTwo,
    /// Rotary: queries and keys are rotated by their position ([RoFormer](https://arxiv.org/abs/2104.09864)).
    Rope(Rope),
    /// ALiBi: scores decrease linearly with distance, with one slope per head
    /// ([ALiBi](https://arxiv.org/abs/2108.12409)).
    Alibi,
    /// A learned number for each head and bucket of distances is added to scores; all layers share them
    /// ([T5](https://arxiv.org/abs/1910.10683), 2.1).
    Relative(RelativeBuckets),
    /// The same with numbers of its own in each layer ([UMT5](https://arxiv.org/abs/2304.09151)).
    RelativeByLayer(RelativeBuckets),
    /// Both: learned vectors, and numbers for distances ([MPNet](https://arxiv.org/abs/2004.09297)).
    LearnedAndRelative(RelativeBuckets),
}

/// The sizes of a preset architecture.
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

    /// Epsilon and weight offset of the norm at `path`.
    pub(crate) fn norm_options(&self, path: &str) -> (f64, f32) {
        let is_behind = ["attn_out_norm", "mlp_out_norm"].iter().any(|name| path.ends_with(name));
        let (eps, offset) = match path {
            "norm" => (self.final_norm_eps, self.final_norm_offset),
            _ if is_behind => (self.out_norm_eps, None),
            _ => (None, None),
        };
        (eps.unwrap_or(self.norm_eps), offset.unwrap_or(self.norm_weight_offset))
    }

    /// The architecture of Llama: RMSNorm, SwiGLU, rotary positions, no biases, untied embeddings.
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
            norm_weight: true,
            norm_bias: false,
            norm_weight_offset: 0.0,
            norm_position: NormPosition::Pre,
            final_norm: true,
            final_norm_eps: None,
            embed_norm: false,
            qk_norm: false,
            qk_norm_span: QkNormSpan::Head,
            activation: Activation::Silu,
            gated_mlp: true,
            positions: Positions::Rope(Rope::new(10_000.0, head_dim)),
            parallel_residual: false,
            shared_norm: false,
            qkv_bias: false,
            attn_out_bias: false,
            mlp_bias: false,
            tie_embeddings: false,
            lm_head_bias: false,
            scale_embeddings: false,
            embedding_multiplier: 1.0,
            residual_multiplier: 1.0,
            logit_multiplier: 1.0,
            logit_softcap: None,
            attention_scale: None,
            attention_softcap: None,
            sliding_window: None,
            full_layers: Vec::new(),
            unrotated_layers: Vec::new(),
            window_rope: None,
            experts: None,
            qk_norm_after_rope: false,
            query_temperature: None,
            xielu: false,
            recurrent: None,
            attention_gate: false,
            latent: None,
            full_heads: None,
            value_norm: false,
            keys_as_values: false,
            n_shared_kv_layers: 0,
            wide_shared_mlp: false,
            layer_scale: false,
            per_layer_inputs: None,
            layers_without_mlp: Vec::new(),
            layers_without_mixer: Vec::new(),
            attention_sinks: false,
            clamped_swiglu: None,
            bidirectional: false,
            n_token_types: 0,
            unnormed_first_mixer: false,
            qk_norm_bias: false,
            clip_qkv: None,
            plain_embed_norm: false,
            plain_qk_norm: false,
            out_norm_eps: None,
            final_norm_offset: None,
            mlm_head: None,
            encoder: None,
            dropout: 0.0,
        }
    }

    /// The architecture of [nanochat](https://github.com/karpathy/nanochat): Llama's, except that norms have no weights
    /// and also apply to embeddings, queries and keys, that the MLP is an ungated squared ReLU, and that logits have a
    /// soft cap of 15.
    pub fn nanochat(sizes: Sizes) -> Self {
        Self {
            norm_eps: 1e-6,
            norm_weight: false,
            embed_norm: true,
            qk_norm: true,
            activation: Activation::ReluSquared,
            gated_mlp: false,
            logit_softcap: Some(15.0),
            ..Self::llama(sizes)
        }
    }

    /// Whether `layer`, counted from 0, has attention or a recurrent layer.
    pub fn has_mixer(&self, layer: usize) -> bool {
        self.layers_without_mixer.binary_search(&layer).is_err()
    }

    /// Whether `layer`, counted from 0, has an MLP or experts.
    pub fn has_mlp(&self, layer: usize) -> bool {
        self.layers_without_mlp.binary_search(&layer).is_err()
    }

    /// Whether other programs extend the context by [`RopeScaling::Dynamic`].
    pub fn is_extended_dynamically(&self) -> bool {
        matches!(&self.positions, Positions::Rope(Rope { scaling: RopeScaling::Dynamic { .. }, .. }))
    }

    /// The sliding window of `layer`, counted from 0, if it has one.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|_| self.full_layers.binary_search(&layer).is_err())
    }

    /// The rotary positions of `layer`, if it has them.
    pub fn rope_of(&self, layer: usize) -> Option<&Rope> {
        let Positions::Rope(rope) = &self.positions else { return None };
        let rotates = self.unrotated_layers.binary_search(&layer).is_err();
        rotates.then(|| self.window_rope.as_ref().filter(|_| self.window_of(layer).is_some()).unwrap_or(rope))
    }

    /// The multiplier of attention scores, for heads of the model's [`head_dim`](Self::head_dim).
    pub fn score_scale(&self) -> f64 {
        self.attention_scale.unwrap_or_else(|| (self.head_dim as f64).sqrt().recip())
    }
}

/// Default for files without multipliers.
fn one() -> f64 {
    1.0
}

/// For files from before there were norms without weights.
fn yes() -> bool {
    true
}
