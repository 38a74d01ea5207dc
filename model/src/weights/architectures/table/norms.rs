//! Classes with RMSNorm or LayerNorm in other places than Llama: after each part, or one for both.

use super::super::{
    Architecture, Fixed,
    bases::{cohere, llama, olmo2},
    config_rows::{self, ConfigRow, derived, head_dim, kv_heads, number, size_or},
    names, rope,
    row_groups::{COHERE, GLM, LLAMA_SIZES, OLMO2, SILU, UNTIED},
    window,
};
use crate::config::{GptConfig, NormPosition, QkNormSpan};

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "Olmo2ForCausalLM",
        model_type: "olmo2",
        base: olmo2,
        config: &[LLAMA_SIZES, OLMO2, &[ConfigRow::Rope(&rope::WHOLE_HEADS), ConfigRow::Window(&window::NONE)]],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::OLMO2,
        base_prefix: "model.",
    },
    Architecture {
        class: "Olmo3ForCausalLM",
        model_type: "olmo3",
        base: olmo2,
        config: &[LLAMA_SIZES, OLMO2, &[ConfigRow::Window(&window::OLMO3), ConfigRow::Rope(&rope::OLMO3)]],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::OLMO2,
        base_prefix: "model.",
    },
    Architecture {
        class: "Exaone4ForCausalLM",
        model_type: "exaone4",
        base: || GptConfig { qk_norm_span: QkNormSpan::Head, ..olmo2() },
        config: &[
            LLAMA_SIZES,
            SILU,
            UNTIED,
            &[
                kv_heads(32),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
                ConfigRow::Window(&window::EXAONE4),
                config_rows::EXAONE4_ROTATION,
            ],
        ],
        fixed: &[("attention_bias", Fixed::Flag(false)), ("mlp_bias", Fixed::Flag(false))],
        names: names::OLMO2,
        base_prefix: "model.",
    },
    Architecture {
        class: "Glm4ForCausalLM",
        model_type: "glm4",
        base: || GptConfig { norm_position: NormPosition::Sandwich, ..llama() },
        config: &[LLAMA_SIZES, SILU, UNTIED, GLM],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::GLM4,
        base_prefix: "model.",
    },
    Architecture {
        class: "CohereForCausalLM",
        model_type: "cohere",
        base: cohere,
        config: &[
            LLAMA_SIZES,
            COHERE,
            &[
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::COHERE),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::COHERE,
        base_prefix: "model.",
    },
    Architecture {
        class: "Cohere2ForCausalLM",
        model_type: "cohere2",
        base: cohere,
        config: &[
            LLAMA_SIZES,
            COHERE,
            &[
                derived(|c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Window(&window::COHERE2),
                config_rows::ONLY_WINDOWS_ROTATE,
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::COHERE,
        base_prefix: "model.",
    },
];
