//! The configurations that families of classes start from. Rows and files set sizes and change other fields.

use crate::config::{
    Activation, ClampedSwiglu, Experts, GatedConv, GatedDeltaNet, GptConfig, LatentAttention, Mamba2, MaskedLmHead,
    NormKind, NormPosition, QkNormSpan, Recurrence, Recurrent, RouterScores, Sizes,
};

/// Set by the rows.
const OPEN: Sizes =
    Sizes { vocab_size: 0, max_seq_len: 0, n_layers: 0, n_heads: 0, n_kv_heads: 0, d_model: 0, d_ff: 0 };

pub(in super::super) fn gpt2() -> GptConfig {
    GptConfig::gpt2(OPEN)
}

pub(in super::super) fn llama() -> GptConfig {
    GptConfig::llama(OPEN)
}

pub(in super::super) fn olmo2() -> GptConfig {
    GptConfig { norm_position: NormPosition::Inside, qk_norm: true, qk_norm_span: QkNormSpan::AllHeads, ..llama() }
}

pub(in super::super) fn gemma2() -> GptConfig {
    GptConfig { norm_position: NormPosition::Sandwich, norm_weight_offset: 1.0, scale_embeddings: true, ..llama() }
}

pub(in super::super) fn gemma4() -> GptConfig {
    GptConfig {
        norm_weight_offset: 0.0,
        qk_norm: true,
        value_norm: true,
        attention_scale: Some(1.0),
        layer_scale: true,
        ..gemma2()
    }
}

/// Muse Glimmer, except for the norms, which its files describe.
pub(in super::super) fn muse_glimmer() -> GptConfig {
    GptConfig {
        norm_position: NormPosition::Sandwich,
        embed_norm: true,
        plain_embed_norm: true,
        qk_norm: true,
        attention_gate: true,
        out_norm_eps: Some(1e-8),
        ..llama()
    }
}

pub(in super::super) fn nanochat() -> GptConfig {
    GptConfig::nanochat(OPEN)
}

/// GPT-2 with parallel residuals that share one norm, and rotary positions.
pub(in super::super) fn shared_norm() -> GptConfig {
    GptConfig { positions: llama().positions, parallel_residual: true, shared_norm: true, ..gpt2() }
}

pub(in super::super) fn cohere() -> GptConfig {
    GptConfig { norm: NormKind::LayerNorm, parallel_residual: true, shared_norm: true, ..llama() }
}

pub(in super::super) fn encoder() -> GptConfig {
    GptConfig::bert(OPEN)
}

/// The masked-LM head of a configuration, to be read or set.
pub(in super::super) fn mlm_head(config: &mut GptConfig) -> &mut MaskedLmHead {
    // `write` also tries configurations without.
    config.mlm_head.get_or_insert(MaskedLmHead { activation: Activation::Gelu, bias: true })
}

/// ModernBERT: Llama's blocks with LayerNorm, bidirectional.
pub(in super::super) fn modern_encoder() -> GptConfig {
    GptConfig {
        norm: NormKind::LayerNorm,
        embed_norm: true,
        unnormed_first_mixer: true,
        activation: Activation::Gelu,
        tie_embeddings: true,
        bidirectional: true,
        ..llama()
    }
}

/// NomicBERT: BERT with rotary positions, a gated MLP, and biases only in norms.
pub(in super::super) fn nomic_encoder() -> GptConfig {
    GptConfig {
        positions: llama().positions,
        activation: Activation::Silu,
        gated_mlp: true,
        qkv_bias: false,
        attn_out_bias: false,
        mlp_bias: false,
        ..encoder()
    }
}

/// T5: Llama's norms and no biases, with distances in scores, which are not scaled.
pub(in super::super) fn t5() -> GptConfig {
    GptConfig {
        activation: Activation::Relu,
        gated_mlp: false,
        tie_embeddings: true,
        attention_scale: Some(1.0),
        norm_eps: 1e-6,
        ..llama()
    }
}

/// BART: GPT-1's blocks after a norm of the embedding, with a bias of the logits.
pub(in super::super) fn bart() -> GptConfig {
    GptConfig {
        norm_position: NormPosition::Post,
        final_norm: false,
        embed_norm: true,
        activation: Activation::Gelu,
        lm_head_bias: true,
        ..gpt2()
    }
}

/// mBART: BART with norms before attention and MLP, and one after the last block.
pub(in super::super) fn mbart() -> GptConfig {
    GptConfig { norm_position: NormPosition::Pre, final_norm: true, ..bart() }
}

/// `base` with experts whose weights are normalized probabilities.
pub(in super::super) fn mixture(base: GptConfig) -> GptConfig {
    GptConfig { experts: Some(no_experts()), ..base }
}

fn no_experts() -> Experts {
    Experts::plain(0, 0, 0)
}

/// The experts of a configuration, to be read or set.
pub(in super::super) fn experts(config: &mut GptConfig) -> &mut Experts {
    // `write` also tries configurations without.
    config.experts.get_or_insert_with(no_experts)
}

/// [`mixture`] of `base` with changed experts.
pub(in super::super) fn mixture_with(base: GptConfig, change: impl FnOnce(&mut Experts)) -> GptConfig {
    let mut config = mixture(base);
    change(experts(&mut config));
    config
}

/// [`mixture`] of `base` with DeepSeek's choice of experts: by sigmoids, with a bias.
pub(in super::super) fn corrected(base: GptConfig) -> GptConfig {
    mixture_with(base, |experts| {
        experts.scores = RouterScores::Sigmoid;
        experts.selection_bias = true;
    })
}

/// gpt-oss: experts with biases and a special activation, and attention with sinks.
pub(in super::super) fn gpt_oss() -> GptConfig {
    let clamped_swiglu = Some(ClampedSwiglu { alpha: 1.702, limit: 7.0 });
    let biased = GptConfig { qkv_bias: true, attn_out_bias: true, mlp_bias: true, ..llama() };
    let base = GptConfig { attention_sinks: true, clamped_swiglu, ..biased };
    mixture_with(base, |experts| experts.router_bias = true)
}

/// The experts of a configuration that [`write`](super::Architecture::write) tries; some, if the class cannot express it.
pub(in super::super) fn described(config: &GptConfig) -> Experts {
    config.experts.clone().unwrap_or_else(no_experts)
}

/// DeepSeek's attention. The norms of its latents have a fixed epsilon, whatever the file says.
pub(in super::super) fn deepseek() -> GptConfig {
    GptConfig { latent: Some(NO_LATENT), ..llama() }
}

const NO_LATENT: LatentAttention =
    LatentAttention { query_rank: None, kv_rank: 0, rope_dim: 0, value_dim: 0, norm_eps: 1e-6, interleaved: true };

/// The latent attention of a configuration, to be read or set.
pub(in super::super) fn latent(config: &mut GptConfig) -> &mut LatentAttention {
    // `write` also tries configurations without.
    config.latent.get_or_insert(NO_LATENT)
}

/// Qwen 3.5: gated delta nets and gated attention.
pub(in super::super) fn gated_delta() -> GptConfig {
    let net = Recurrence::GatedDelta(NO_DELTA_NET);
    GptConfig { norm_weight_offset: 1.0, qk_norm: true, attention_gate: true, ..recurrent(net) }
}

/// LFM2: short convolutions.
pub(in super::super) fn short_conv() -> GptConfig {
    GptConfig { qk_norm: true, ..recurrent(Recurrence::ShortConv(NO_CONV)) }
}

/// Mamba-2 layers beside attention.
pub(in super::super) fn mamba2() -> GptConfig {
    recurrent(Recurrence::Mamba2(NO_MAMBA))
}

fn recurrent(recurrence: Recurrence) -> GptConfig {
    GptConfig { recurrent: Some(Recurrent { recurrence, attention_layers: Vec::new() }), ..llama() }
}

const NO_DELTA_NET: GatedDeltaNet =
    GatedDeltaNet { n_key_heads: 0, n_value_heads: 0, key_dim: 0, value_dim: 0, conv_kernel: 0, tiled_heads: false };
const NO_CONV: GatedConv = GatedConv { kernel: 0, bias: false };
const NO_MAMBA: Mamba2 = Mamba2 {
    n_groups: 0,
    n_heads: 0,
    head_dim: 0,
    state_dim: 0,
    conv_kernel: 0,
    conv_bias: false,
    bias: false,
    min_time_step: 0.0,
    max_time_step: None,
};

/// The gated delta net of a configuration, to be read or set.
pub(in super::super) fn delta_net(config: &mut GptConfig) -> &mut GatedDeltaNet {
    match recurrence(config, Recurrence::GatedDelta(NO_DELTA_NET)) {
        Recurrence::GatedDelta(net) => net,
        _ => unreachable!("just set"),
    }
}

/// The short convolution of a configuration, to be read or set.
pub(in super::super) fn conv(config: &mut GptConfig) -> &mut GatedConv {
    match recurrence(config, Recurrence::ShortConv(NO_CONV)) {
        Recurrence::ShortConv(conv) => conv,
        _ => unreachable!("just set"),
    }
}

/// The Mamba-2 layer of a configuration, to be read or set.
pub(in super::super) fn mamba(config: &mut GptConfig) -> &mut Mamba2 {
    match recurrence(config, Recurrence::Mamba2(NO_MAMBA)) {
        Recurrence::Mamba2(mamba) => mamba,
        _ => unreachable!("just set"),
    }
}

/// The recurrence of a configuration, which becomes one of the kind of `usual`: `write` also tries configurations with others.
fn recurrence(config: &mut GptConfig, usual: Recurrence) -> &mut Recurrence {
    let recurrent =
        config.recurrent.get_or_insert_with(|| Recurrent { recurrence: usual, attention_layers: Vec::new() });
    if std::mem::discriminant(&recurrent.recurrence) != std::mem::discriminant(&usual) {
        recurrent.recurrence = usual;
    }
    &mut recurrent.recurrence
}
