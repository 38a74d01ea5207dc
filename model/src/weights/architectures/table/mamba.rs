//! Models with Mamba-2 layers.

use super::super::{
    Architecture, Fixed,
    bases::{corrected, experts, mamba, mamba2, mixture},
    config_rows::{ACTIVATIONS, ConfigRow, flag, kv_heads, number, size, size_or},
    expert_rows::GROUPS,
    mamba_rows::{
        BAMBA_LAYERS, GRANITE_EXPERTS, GRANITE_LAYER_TYPES, GRANITE_POSITIONS, MAMBA, NEMOTRON_LATENT, NEMOTRON_LAYERS,
        NEMOTRON_TIME_STEPS,
    },
    names, rope,
    row_groups::{ATTENTION_BIAS, GRANITE, HEAD_DIM, LIKE_LLAMA, LLAMA_SIZES, UNTIED, rms_eps},
};
use crate::config::{GptConfig, Positions};

/// The convolution of a Mamba-2 layer has this activation too.
const SILU_ALONE: (&str, Fixed) = ("hidden_act", Fixed::Text("silu"));

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "GraniteMoeHybridForCausalLM",
        model_type: "granitemoehybrid",
        base: || mixture(mamba2()),
        config: &[LLAMA_SIZES, GRANITE, &[GRANITE_POSITIONS, GRANITE_EXPERTS], MAMBA, &[GRANITE_LAYER_TYPES]],
        fixed: &[SILU_ALONE, ("mlp_bias", Fixed::Flag(false)), ("sliding_window", Fixed::Nothing)],
        names: names::GRANITE_HYBRID,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "BambaForCausalLM",
        model_type: "bamba",
        base: mamba2,
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(8),
                HEAD_DIM,
                ConfigRow::Rope(&rope::PHI),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
                rms_eps(1e-5),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
            ],
            ATTENTION_BIAS,
            UNTIED,
            MAMBA,
            &[BAMBA_LAYERS],
        ],
        fixed: &[SILU_ALONE, ("sliding_window", Fixed::Nothing)],
        names: names::BAMBA,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "NemotronHForCausalLM",
        model_type: "nemotron_h",
        base: || corrected(GptConfig { gated_mlp: false, positions: Positions::None, ..mamba2() }),
        config: &[
            &[
                size(&["vocab_size"], |c| &mut c.vocab_size),
                size_or(&["max_position_embeddings"], |c| &mut c.max_seq_len, |_| 4096),
                size(&["hidden_size"], |c| &mut c.d_model),
                size_or(&["num_attention_heads"], |c| &mut c.n_heads, |_| 32),
                kv_heads(8),
                // The second key is from the first files.
                size_or(&["head_dim", "attention_head_dim"], |c| &mut c.head_dim, |_| 128),
                size_or(&["intermediate_size"], |c| &mut c.d_ff, |_| 21504),
                ConfigRow::Activation { key: "mlp_hidden_act", names: ACTIVATIONS, absent: "relu2" },
                number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
                size_or(&["mamba_num_heads"], |c| &mut mamba(c).n_heads, |_| 128),
                size_or(&["mamba_head_dim"], |c| &mut mamba(c).head_dim, |_| 64),
                size_or(&["n_groups", "mamba_n_groups"], |c| &mut mamba(c).n_groups, |_| 8),
                size_or(&["ssm_state_size"], |c| &mut mamba(c).state_dim, |_| 128),
                size_or(&["conv_kernel", "mamba_d_conv"], |c| &mut mamba(c).conv_kernel, |_| 4),
                flag("use_conv_bias", |c| &mut mamba(c).conv_bias, true),
                flag("use_bias", |c| &mut mamba(c).bias, false),
                NEMOTRON_TIME_STEPS,
                size_or(&["n_routed_experts"], |c| &mut experts(c).n_experts, |_| 8),
                size_or(&["num_experts_per_tok"], |c| &mut experts(c).n_active, |_| 2),
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 7688),
                size_or(&["moe_shared_expert_intermediate_size"], |c| &mut experts(c).shared_d_ff, |_| 7688),
                NEMOTRON_LATENT,
                flag("norm_topk_prob", |c| &mut experts(c).normalized, true),
                number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, 1.0),
                GROUPS,
            ],
            UNTIED,
            &[NEMOTRON_LAYERS],
        ],
        fixed: &[
            ("attention_bias", Fixed::Flag(false)),
            ("mlp_bias", Fixed::Flag(false)),
            ("mamba_proj_bias", Fixed::Flag(false)),
            ("mamba_hidden_act", Fixed::Text("silu")),
            ("sliding_window", Fixed::Nothing),
            ("mamba_conv_bias", Fixed::Flag(true)),
            ("mamba_dt_limit", Fixed::Nothing),
            ("mamba_dt_min", Fixed::Nothing),
        ],
        names: names::NEMOTRON_H,
        base_prefix: "backbone.",
    },
];
