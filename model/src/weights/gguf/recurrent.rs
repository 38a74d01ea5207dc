//! Models with recurrent layers in GGUF files.

use serde_json::Value;

use super::{
    super::{
        architectures::{
            bases::{conv, delta_net, gated_delta, mixture_with, short_conv},
            config_rows::{ConfigRow, custom, derived, head_dim, size, size_or},
        },
        config_json::Fields,
        tensor_names::{
            NameRow,
            RowSelection::{
                BetasByKeyHead, DeltaByKeyHead, DeltaGates, DeltaQkv, GatedQueries, Half, KeysOrValues, LogOfNegated,
                Squeezed,
            },
            ordered, same, stacked,
        },
    },
    config_rows::{GROUPED_HEADS, RMS_EPS, ROPE, ROPE_SECTIONS, SIZES, of_key},
    description::Gguf,
    expert_rows::{EXPERTS, NAMES},
    names::{BLOCK, GATED, OUTSIDE, POST_ATTENTION_NORM, PREDICTION, SEPARATE_QKV},
};
use crate::{
    config::{GptConfig, MAX_LAYERS, RouterScores},
    error::Result,
};

/// Extra layers after the others that predict further tokens.
pub(super) const PREDICTING_LAYERS: &str = "nextn_predict_layers";
/// A flag for each layer.
pub(super) const RECURRENT_LAYERS: &str = "attention.recurrent_layers";
/// One number, or one for each layer.
pub(super) const KEY_HEADS: &str = "attention.head_count_kv";
const INTERVAL: &str = "full_attention_interval";
const INNER: &str = "ssm.inner_size";

/// Qwen's gated delta nets. The norms' weights are stored as they are used, with the 1 added.
const DELTA: &[ConfigRow] = &[
    ROPE,
    ROPE_SECTIONS,
    RMS_EPS,
    size(&["ssm.conv_kernel"], |c| &mut delta_net(c).conv_kernel),
    size(&["ssm.group_count"], |c| &mut delta_net(c).n_key_heads),
    size(&["ssm.time_step_rank"], |c| &mut delta_net(c).n_value_heads),
    size(&["ssm.state_size"], |c| &mut delta_net(c).key_dim),
    custom(
        &[INNER],
        |fields, config| {
            let inner = fields.size(INNER)?.ok_or_else(|| fields.missing(&[INNER]))?;
            let net = delta_net(config);
            net.value_dim = inner / net.n_value_heads.max(1);
            Ok(())
        },
        |config, written| {
            let inner = delta_net(&mut config.clone()).value_width();
            written.insert(INNER.to_owned(), inner.into());
        },
    ),
    WITHOUT_PREDICTING,
    custom(&[RECURRENT_LAYERS, INTERVAL], read_delta_layers, |config, written| {
        let is_recurrent = (0..config.n_layers).map(|layer| !config.attends(layer));
        written.insert(RECURRENT_LAYERS.to_owned(), is_recurrent.collect::<Vec<_>>().into());
    }),
];

/// Layers that predict more than one token are counted with the others.
pub(super) const WITHOUT_PREDICTING: ConfigRow = of_key(&[PREDICTING_LAYERS], |fields, config| {
    config.n_layers = config.n_layers.saturating_sub(fields.size_or(PREDICTING_LAYERS, 0)?);
    Ok(())
});

fn read_delta_layers(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    let interval = fields.size_or(INTERVAL, 4)?.max(1);
    let is_recurrent: Option<Vec<bool>> =
        fields.get(RECURRENT_LAYERS).and_then(Value::as_array).map(|list| list.iter().map(|it| it == true).collect());
    let attends = |layer: &usize| match &is_recurrent {
        Some(list) => !list.get(*layer).copied().unwrap_or(false),
        None => (layer + 1).is_multiple_of(interval),
    };
    set_attention_layers(config, attends);
    Ok(())
}

pub(super) fn set_attention_layers(config: &mut GptConfig, attends: impl Fn(&usize) -> bool) {
    // The size is not validated yet: this limits the list.
    let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
    if let Some(recurrent) = &mut config.recurrent {
        recurrent.attention_layers = layers.filter(attends).collect();
    }
}

/// The layers without key heads are recurrent.
pub(super) const LISTED_HEADS: ConfigRow = custom(
    &[KEY_HEADS],
    |fields, config| {
        let n_heads = fields.whole_numbers(KEY_HEADS)?;
        let of_layer = |layer: &usize| n_heads.get(*layer).or(n_heads.first()).copied().unwrap_or(0);
        config.n_kv_heads = n_heads.iter().copied().max().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        set_attention_layers(config, |layer| of_layer(layer) > 0);
        Ok(())
    },
    |config, written| drop(written.insert(KEY_HEADS.to_owned(), key_heads(config))),
);

/// The number of key heads of each layer.
pub(super) fn key_heads(config: &GptConfig) -> Value {
    let of_layer = |layer| if config.attends(layer) { config.heads_of(layer).n_kv_heads } else { 0 };
    (0..config.n_layers).map(of_layer).collect::<Vec<_>>().into()
}

const LFM2_ROWS: &[&[ConfigRow]] = &[
    SIZES,
    &[
        LISTED_HEADS,
        size_or(&["attention.key_length", "attention.value_length"], |c| &mut c.head_dim, head_dim),
        ROPE,
        RMS_EPS,
        size(&["shortconv.l_cache"], |c| &mut conv(c).kernel),
        EXPERTS,
    ],
];

pub(super) const LFM2: Gguf = Gguf {
    name: "lfm2",
    base: short_conv,
    config: LFM2_ROWS,
    params: &[LFM2_NAMES, OUTSIDE, SEPARATE_QKV, BLOCK, GATED],
};

pub(super) const LFM2_MOE: Gguf = Gguf {
    name: "lfm2moe",
    base: || mixture_with(short_conv(), |experts| experts.scores = RouterScores::Sigmoid),
    config: LFM2_ROWS,
    params: &[LFM2_NAMES, OUTSIDE, SEPARATE_QKV, BLOCK, GATED, NAMES],
};

/// The last norm has the name of a norm after the embedding.
const LFM2_NAMES: &[NameRow] = &[
    same("norm.weight", "token_embd_norm.weight"),
    same("blocks.{}.recurrent.input.weight", "blk.{}.shortconv.in_proj.weight"),
    ordered(Squeezed, "blocks.{}.recurrent.conv.weight", "blk.{}.shortconv.conv.weight"),
    same("blocks.{}.recurrent.out.weight", "blk.{}.shortconv.out_proj.weight"),
];

fn delta() -> GptConfig {
    GptConfig { norm_weight_offset: 0.0, ..gated_delta() }
}

/// The converter puts value heads in another order.
fn tiled() -> GptConfig {
    let mut config = delta();
    delta_net(&mut config).tiled_heads = true;
    config
}

pub(super) const QWEN3_5: Gguf = Gguf {
    name: "qwen35",
    base: tiled,
    config: &[SIZES, GROUPED_HEADS, DELTA],
    params: &[DELTA_NAMES, PREDICTION, SEPARATE_BA, GATED_QKV, OUTSIDE, POST_ATTENTION_NORM, BLOCK, GATED],
};

pub(super) const QWEN3_5_MOE: Gguf = Gguf {
    name: "qwen35moe",
    base: || mixture_with(tiled(), |experts| experts.shared_gate = true),
    config: MIXTURE_ROWS,
    params: &[DELTA_NAMES, PREDICTION, SEPARATE_BA, GATED_QKV, OUTSIDE, POST_ATTENTION_NORM, BLOCK, GATED, NAMES],
};

pub(super) const QWEN3_NEXT: Gguf = Gguf {
    name: "qwen3next",
    base: || mixture_with(delta(), |experts| experts.shared_gate = true),
    config: MIXTURE_ROWS,
    params: &[DELTA_NAMES, PREDICTION, FUSED_BA, GATED_QKV, OUTSIDE, POST_ATTENTION_NORM, BLOCK, GATED, NAMES],
};

/// Files of models whose layers all have experts may omit the width of the MLP.
const MIXTURE_ROWS: &[&[ConfigRow]] = &[
    &[
        size(&["context_length"], |c| &mut c.max_seq_len),
        size(&["embedding_length"], |c| &mut c.d_model),
        size(&["block_count"], |c| &mut c.n_layers),
        size(&["attention.head_count"], |c| &mut c.n_heads),
        size_or(&["feed_forward_length"], |c| &mut c.d_ff, |_| 0),
    ],
    GROUPED_HEADS,
    DELTA,
    &[
        EXPERTS,
        derived(
            |c| &mut c.d_ff,
            |c| match (c.d_ff, &c.experts) {
                (0, Some(experts)) => experts.d_ff,
                (d_ff, _) => d_ff,
            },
        ),
    ],
];

const INPUT: &str = "blocks.{}.recurrent.input.weight";
const BA: &str = "blocks.{}.recurrent.ba.weight";

const DELTA_NAMES: &[NameRow] = &[
    stacked(INPUT, &[("blk.{}.attn_qkv.weight", DeltaQkv), ("blk.{}.attn_gate.weight", DeltaGates)]),
    // As in the first files of Qwen 3 Next.
    ordered(DeltaByKeyHead, INPUT, "blk.{}.ssm_in.weight"),
    ordered(Squeezed, "blocks.{}.recurrent.conv.weight", "blk.{}.ssm_conv1d.weight"),
    ordered(LogOfNegated, "blocks.{}.recurrent.decays.a_log", "blk.{}.ssm_a"),
    same("blocks.{}.recurrent.decays.dt_bias", "blk.{}.ssm_dt.bias"),
    same("blocks.{}.recurrent.norm.weight", "blk.{}.ssm_norm.weight"),
    same("blocks.{}.recurrent.out.weight", "blk.{}.ssm_out.weight"),
];

const SEPARATE_BA: &[NameRow] = &[stacked(BA, &[("blk.{}.ssm_beta.weight", Half), ("blk.{}.ssm_alpha.weight", Half)])];

const FUSED_BA: &[NameRow] = &[ordered(BetasByKeyHead, BA, "blk.{}.ssm_ba.weight")];

const GATED_QKV: &[NameRow] = &[stacked(
    "blocks.{}.attn.qkv.weight",
    &[
        ("blk.{}.attn_q.weight", GatedQueries),
        ("blk.{}.attn_k.weight", KeysOrValues),
        ("blk.{}.attn_v.weight", KeysOrValues),
    ],
)];
