//! Models with recurrent layers: gated delta nets, and short convolutions.

use super::super::{
    Architecture, Fixed,
    bases::{conv, delta_net, experts, gated_delta, mixture_with, short_conv},
    config_rows::{ConfigRow, flag, kv_heads, number, size_or},
    expert_rows::{BALANCE_LOSS, NO_MLP, QWEN_LAYERS, first_dense},
    names,
    recurrent_rows::{LFM2_LAYER_TYPES, LFM2_MLP, LFM2_TIED, QWEN_LAYER_TYPES},
    rope,
    row_groups::{ATTENTION_BIAS, HEAD_DIM, LIKE_LLAMA, LLAMA_SIZES, SIZES_WITHOUT_MLP, UNTIED},
};
use crate::config::RouterScores;

/// Rows that Qwen 3.5 and Qwen 3 Next share.
const QWEN: &[ConfigRow] = &[
    size_or(&["head_dim"], |c| &mut c.head_dim, |_| 256),
    ConfigRow::Rope(&rope::QWEN3_5),
    number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
    size_or(&["linear_num_key_heads"], |c| &mut delta_net(c).n_key_heads, |_| 16),
    size_or(&["linear_num_value_heads"], |c| &mut delta_net(c).n_value_heads, |_| 32),
    size_or(&["linear_key_head_dim"], |c| &mut delta_net(c).key_dim, |_| 128),
    size_or(&["linear_value_head_dim"], |c| &mut delta_net(c).value_dim, |_| 128),
    size_or(&["linear_conv_kernel_dim"], |c| &mut delta_net(c).conv_kernel, |_| 4),
    QWEN_LAYER_TYPES,
];

/// The convolution has this activation too.
const QWEN_FIXED: &[(&str, Fixed)] = &[
    ("hidden_act", Fixed::Text("silu")),
    ("mlp_bias", Fixed::Flag(false)),
    ("sliding_window", Fixed::Nothing),
    ("attn_output_gate", Fixed::Flag(true)),
];

/// The experts of Qwen 3.5 and Qwen 3 Next, but for their number.
const QWEN_EXPERTS: &[ConfigRow] = &[
    size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 512),
    size_or(&["shared_expert_intermediate_size"], |c| &mut experts(c).shared_d_ff, |_| 512),
    BALANCE_LOSS,
];

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        class: "Qwen3_5ForCausalLM",
        model_type: "qwen3_5_text",
        base: gated_delta,
        config: &[LLAMA_SIZES, &[kv_heads(4)], QWEN, ATTENTION_BIAS, UNTIED],
        fixed: QWEN_FIXED,
        names: names::QWEN3_5,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Qwen3_5MoeForCausalLM",
        model_type: "qwen3_5_moe_text",
        base: || mixture_with(gated_delta(), |experts| experts.shared_gate = true),
        config: &[
            SIZES_WITHOUT_MLP,
            &[kv_heads(2)],
            QWEN,
            ATTENTION_BIAS,
            UNTIED,
            QWEN_EXPERTS,
            &[
                size_or(&["num_experts"], |c| &mut experts(c).n_experts, |_| 256),
                size_or(&["num_experts_per_tok"], |c| &mut experts(c).n_active, |_| 8),
                NO_MLP,
            ],
        ],
        fixed: QWEN_FIXED,
        names: names::QWEN3_5,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Qwen3NextForCausalLM",
        model_type: "qwen3_next",
        base: || mixture_with(gated_delta(), |experts| experts.shared_gate = true),
        config: &[
            LLAMA_SIZES,
            &[kv_heads(2)],
            QWEN,
            ATTENTION_BIAS,
            UNTIED,
            QWEN_EXPERTS,
            &[
                size_or(&["num_experts"], |c| &mut experts(c).n_experts, |_| 512),
                size_or(&["num_experts_per_tok"], |c| &mut experts(c).n_active, |_| 10),
                flag("norm_topk_prob", |c| &mut experts(c).normalized, true),
                QWEN_LAYERS,
            ],
        ],
        fixed: QWEN_FIXED,
        names: names::QWEN3_NEXT,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Lfm2ForCausalLM",
        model_type: "lfm2",
        base: short_conv,
        config: &[SIZES_WITHOUT_MLP, LFM2, &[LFM2_MLP, LFM2_TIED]],
        fixed: &[],
        names: names::LFM2,
        ..LIKE_LLAMA
    },
    Architecture {
        class: "Lfm2MoeForCausalLM",
        model_type: "lfm2_moe",
        base: || mixture_with(short_conv(), |experts| experts.scores = RouterScores::Sigmoid),
        config: &[
            LLAMA_SIZES,
            LFM2,
            &[
                LFM2_TIED,
                size_or(&["moe_intermediate_size"], |c| &mut experts(c).d_ff, |_| 1792),
                size_or(&["num_experts"], |c| &mut experts(c).n_experts, |_| 32),
                size_or(&["num_experts_per_tok"], |c| &mut experts(c).n_active, |_| 4),
                flag("use_expert_bias", |c| &mut experts(c).selection_bias, true),
                number("routed_scaling_factor", |c| &mut experts(c).weight_multiplier, 1.0),
                flag("norm_topk_prob", |c| &mut experts(c).normalized, true),
                first_dense("num_dense_layers", 2),
            ],
        ],
        fixed: &[],
        names: names::LFM2,
        ..LIKE_LLAMA
    },
];

/// Rows that LFM2 models with and without experts share.
const LFM2: &[ConfigRow] = &[
    kv_heads(8),
    HEAD_DIM,
    ConfigRow::Rope(&rope::MIXTRAL),
    number("norm_eps", |c| &mut c.norm_eps, 1e-5),
    size_or(&["conv_L_cache"], |c| &mut conv(c).kernel, |_| 3),
    flag("conv_bias", |c| &mut conv(c).bias, false),
    LFM2_LAYER_TYPES,
];
