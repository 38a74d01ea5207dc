//! Classes with RMSNorm or LayerNorm in other places than Llama: after each part, or one for both.

use super::super::{
    Architecture, Fixed,
    bases::{cohere, olmo2},
    config_rows::{self, ConfigRow, derived, head_dim, size_or},
    names, rope,
    row_groups::{COHERE, LLAMA_SIZES, OLMO2},
    window,
};

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
