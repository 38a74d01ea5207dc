//! Classes with RMSNorm or LayerNorm in other places than Llama: after each part, or one for both.

use super::super::{
    Architecture,
    bases::{cohere, llama, olmo2},
    config_rows::{ConfigRow, EXAONE4_ROTATION, ONLY_WINDOWS_ROTATE, flag, kv_heads, number},
    names, rope,
    row_groups::{
        ATTENTION_BIAS, COHERE, GLM, HEAD_DIM, HEADS, LIKE_LLAMA, LLAMA_SIZES, NO_BIASES, OLMO2, SILU_UNTIED, rms_eps,
    },
    variant_rows::{HYPERCLOVAX_ATTENTION, HYPERCLOVAX_NORMS, NORM_OF_EACH_HEAD},
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
];
