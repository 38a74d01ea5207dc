//! Models with Mamba-2 layers.

use super::super::{
    Architecture, Fixed,
    bases::{mamba2, mixture},
    config_rows::{ACTIVATIONS, ConfigRow, flag, head_dim, kv_heads, number, size_or},
    mamba_rows::{BAMBA_LAYERS, GRANITE_EXPERTS, GRANITE_LAYER_TYPES, GRANITE_POSITIONS, MAMBA},
    names, rope,
    row_groups::{ATTENTION_BIAS, GRANITE, LLAMA_SIZES, UNTIED},
};

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "GraniteMoeHybridForCausalLM",
        model_type: "granitemoehybrid",
        base: || mixture(mamba2()),
        config: &[LLAMA_SIZES, GRANITE, &[GRANITE_POSITIONS, GRANITE_EXPERTS], MAMBA, &[GRANITE_LAYER_TYPES]],
        fixed: &[("mlp_bias", Fixed::Flag(false)), ("sliding_window", Fixed::Nothing)],
        names: names::GRANITE_HYBRID,
        base_prefix: "model.",
    },
    Architecture {
        class: "BambaForCausalLM",
        model_type: "bamba",
        base: mamba2,
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(8),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::PHI),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
            ],
            ATTENTION_BIAS,
            UNTIED,
            MAMBA,
            &[BAMBA_LAYERS],
        ],
        fixed: &[("sliding_window", Fixed::Nothing)],
        names: names::BAMBA,
        base_prefix: "model.",
    },
];
