//! Classes with RMSNorm or LayerNorm in other places than Llama: after each part, or one for both.

use super::super::{
    Architecture,
    bases::{cohere, llama, muse_glimmer, olmo2},
    config_rows::{ACTIVATIONS, ConfigRow, EXAONE4_ROTATION, ONLY_WINDOWS_ROTATE, flag, kv_heads, number},
    names, rope,
    row_groups::{
        ATTENTION_BIAS, COHERE, GLM, HEAD_DIM, HEAD_DIM_128, HEADS, LIKE_LLAMA, LLAMA_SIZES, NO_BIASES, OLMO2,
        SILU_UNTIED, UNTIED, rms_eps,
    },
    variant_rows::{HYPERCLOVAX_ATTENTION, HYPERCLOVAX_NORMS, MUSE_EPS, MUSE_ROTATION, MUSE_SCORES, NORM_OF_EACH_HEAD},
    window,
};
use crate::config::{GptConfig, NormPosition, QkNormSpan};

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "Olmo2ForCausalLM",
        model_type: "olmo2",
        base: olmo2,
        config: &[LLAMA_SIZES, OLMO2, &[ConfigRow::Rope(&rope::WHOLE_HEADS), ConfigRow::Window(&window::NONE)]],
        names: names::OLMO2,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Olmo3ForCausalLM",
        model_type: "olmo3",
        base: olmo2,
        config: &[LLAMA_SIZES, OLMO2, &[ConfigRow::Window(&window::OLMO3), ConfigRow::Rope(&rope::OLMO3)]],
        names: names::OLMO2,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Exaone4ForCausalLM",
        model_type: "exaone4",
        base: || GptConfig { qk_norm_span: QkNormSpan::Head, ..olmo2() },
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            &[
                kv_heads(32),
                HEAD_DIM,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-5),
                ConfigRow::Window(&window::EXAONE4),
                EXAONE4_ROTATION,
            ],
        ],
        fixed: NO_BIASES,
        names: names::OLMO2,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Glm4ForCausalLM",
        model_type: "glm4",
        base: || GptConfig { norm_position: NormPosition::Sandwich, ..llama() },
        config: &[LLAMA_SIZES, SILU_UNTIED, GLM],
        names: names::GLM4,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "HyperCLOVAXForCausalLM",
        model_type: "hyperclovax",
        config: &[
            LLAMA_SIZES,
            SILU_UNTIED,
            ATTENTION_BIAS,
            HEADS,
            &[
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                rms_eps(1e-6),
                number("embedding_multiplier", |c| &mut c.embedding_multiplier, 1.0),
                number("residual_multiplier", |c| &mut c.residual_multiplier, 1.0),
                number("logits_scaling", |c| &mut c.logit_multiplier, 1.0),
                HYPERCLOVAX_ATTENTION,
                HYPERCLOVAX_NORMS,
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::HYPERCLOVAX,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "CohereForCausalLM",
        model_type: "cohere",
        base: cohere,
        config: &[
            LLAMA_SIZES,
            COHERE,
            &[
                HEAD_DIM,
                flag("use_qk_norm", |c| &mut c.qk_norm, false),
                NORM_OF_EACH_HEAD,
                ConfigRow::Rope(&rope::COHERE),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        names: names::COHERE,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Cohere2ForCausalLM",
        model_type: "cohere2",
        base: cohere,
        config: &[
            LLAMA_SIZES,
            COHERE,
            &[HEAD_DIM, ConfigRow::Rope(&rope::WHOLE_HEADS), ConfigRow::Window(&window::COHERE2), ONLY_WINDOWS_ROTATE],
        ],
        names: names::COHERE,
        ..LIKE_LLAMA
    },
    // Transformers has it only with its vision part, as `MuseGlimmerForConditionalGeneration`.
    Architecture {
        class: "MuseGlimmerForCausalLM",
        model_type: "muse_glimmer_text",
        base: || GptConfig {
            plain_qk_norm: true,
            norm_weight_offset: 1.0,
            final_norm_offset: Some(0.0),
            ..muse_glimmer()
        },
        config: &[
            LLAMA_SIZES,
            UNTIED,
            &[
                kv_heads(2),
                HEAD_DIM_128,
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                MUSE_ROTATION,
                ConfigRow::Window(&window::MUSE_GLIMMER),
                ConfigRow::Activation { key: "hidden_activation", names: ACTIVATIONS, absent: "silu" },
                rms_eps(1e-5),
                MUSE_EPS,
                MUSE_SCORES,
                number("output_multiplier", |c| &mut c.logit_multiplier, 0.196_116_135_138_184_04),
                ConfigRow::Cap { key: "final_logit_softcapping", of: |c| &mut c.logit_softcap, absent: Some(20.0) },
            ],
        ],
        fixed: NO_BIASES,
        names: names::MUSE_GLIMMER,
        ..LIKE_LLAMA
    },
];
