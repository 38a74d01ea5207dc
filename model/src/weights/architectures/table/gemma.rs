//! Gemma: norms that store `weight - 1`, from the second version on before and after each part.

use super::super::{
    Architecture, Fixed,
    bases::{gemma2, gemma4, llama},
    config_rows::{ConfigRow, flag, kv_heads, size_or},
    layer_rows::{GEMMA4, GEMMA4_UNIFIED},
    names, rope,
    row_groups::{ATTENTION_BIAS, GEMMA_ACTIVATIONS, GEMMA2, LIKE_LLAMA, LLAMA_SIZES, rms_eps},
    window,
};
use crate::config::{GptConfig, NormPosition};

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "GemmaForCausalLM",
        model_type: "gemma",
        base: || GptConfig { norm_weight_offset: 1.0, scale_embeddings: true, tie_embeddings: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            ATTENTION_BIAS,
            &[
                kv_heads(16),
                size_or(&["head_dim"], |c| &mut c.head_dim, |_| 256),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                // `gelu` was written by mistake: the weights were trained with the approximation.
                ConfigRow::Activation { key: "hidden_act", names: GEMMA_ACTIVATIONS, absent: "gelu_pytorch_tanh" },
                rms_eps(1e-6),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        // Versions 4.38 to 4.57 of transformers read this key in place of `hidden_act`.
        fixed: &[("hidden_activation", Fixed::Text("gelu_pytorch_tanh")), ("mlp_bias", Fixed::Flag(false))],
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Gemma2ForCausalLM",
        model_type: "gemma2",
        base: gemma2,
        config: GEMMA2_ROWS,
        names: names::GEMMA2,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "VaultGemmaForCausalLM",
        model_type: "vaultgemma",
        base: || GptConfig { norm_position: NormPosition::Pre, ..gemma2() },
        config: GEMMA2_ROWS,
        names: names::GEMMA2,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        base: || GptConfig { qk_norm: true, ..gemma2() },
        config: &[
            LLAMA_SIZES,
            GEMMA2,
            &[
                ConfigRow::Cap { key: "final_logit_softcapping", of: |c| &mut c.logit_softcap, absent: None },
                ConfigRow::Window(&window::GEMMA3),
                ConfigRow::Rope(&rope::GEMMA3),
            ],
        ],
        names: names::GEMMA2,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Gemma4ForCausalLM",
        model_type: "gemma4_text",
        base: gemma4,
        config: GEMMA4,
        fixed: &[("rope_theta", Fixed::Nothing), ("rope_scaling", Fixed::Nothing)],
        names: names::GEMMA4,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Gemma4UnifiedForCausalLM",
        model_type: "gemma4_unified_text",
        base: gemma4,
        config: GEMMA4_UNIFIED,
        fixed: &[("rope_theta", Fixed::Nothing), ("rope_scaling", Fixed::Nothing)],
        names: names::GEMMA4,
        ..LIKE_LLAMA
    },
];

const GEMMA2_ROWS: &[&[ConfigRow]] = &[
    LLAMA_SIZES,
    GEMMA2,
    &[
        ConfigRow::Cap { key: "final_logit_softcapping", of: |c| &mut c.logit_softcap, absent: Some(30.0) },
        ConfigRow::Cap { key: "attn_logit_softcapping", of: |c| &mut c.attention_softcap, absent: Some(50.0) },
        ConfigRow::Rope(&rope::WHOLE_HEADS),
        ConfigRow::Window(&window::GEMMA2),
    ],
];
