//! Models with Mamba-2 layers in GGUF files.

use super::{
    super::{
        architectures::{
            bases::{experts, mamba, mamba2, mixture, mixture_with},
            config_rows::{ConfigRow, custom, head_dim, size, size_or},
        },
        config_json::Fields,
        tensor_names::{
            NameRow,
            RowSelection::{Column, ColumnOfNegated, NormGroups, Squeezed},
            ordered, same,
        },
    },
    config_rows::{GRANITE_SCALES, ROPE, ROPE_KEYS, SIZES, VALUE_LENGTH, of_key},
    description::Gguf,
    expert_rows::{GRANITE_HYBRID_EXPERTS, NAMES, NEMOTRON_EXPERTS, UNGATED_NAMES},
    names::{BLOCK, FUSED_QKV, GATED, INTERLEAVED_QKV, OUTSIDE, SEPARATE_QKV, UNGATED},
    recurrent::{KEY_HEADS, LISTED_HEADS, PREDICTING_LAYERS},
};
use crate::{
    config::{Activation, GptConfig, MAX_LAYERS, Mamba2, Positions, RouterScores},
    error::{Error, Result},
};

const INNER: &str = "ssm.inner_size";

/// The sizes of the layers. llama.cpp does not limit time steps.
const MAMBA: &[ConfigRow] = &[
    size(&["ssm.conv_kernel"], |c| &mut mamba(c).conv_kernel),
    size(&["ssm.group_count"], |c| &mut mamba(c).n_groups),
    size(&["ssm.time_step_rank"], |c| &mut mamba(c).n_heads),
    size(&["ssm.state_size"], |c| &mut mamba(c).state_dim),
    custom(
        &[INNER],
        |fields, config| {
            let inner = fields.size(INNER)?.ok_or_else(|| fields.missing(&[INNER]))?;
            let mamba = mamba(config);
            mamba.head_dim = inner / mamba.n_heads.max(1);
            Ok(())
        },
        |config, written| {
            let Mamba2 { n_heads, head_dim, .. } = *mamba(&mut config.clone());
            written.insert(INNER.to_owned(), n_heads.saturating_mul(head_dim).into());
        },
    ),
];

/// In Granite this key states whether layers rotate at all.
const POSITIONS: ConfigRow = custom(
    ROPE_KEYS,
    |fields, config| {
        if fields.flag_or(ROTATES, true)? {
            return ROPE.read(fields, config);
        }
        config.positions = Positions::None;
        Ok(())
    },
    |config, written| drop(written.insert(ROTATES.to_owned(), (config.positions != Positions::None).into())),
);

const ROTATES: &str = "rope.scaling.finetuned";

/// Queries and keys are interleaved as in Llama's files; this has no effect if they are not rotated.
pub(super) const GRANITE_HYBRID: Gguf = Gguf {
    name: "granitehybrid",
    base: || mixture(mamba2()),
    config: &[
        SIZES,
        &[
            LISTED_HEADS,
            size_or(&["attention.key_length"], |c| &mut c.head_dim, head_dim),
            VALUE_LENGTH,
            POSITIONS,
            GRANITE_HYBRID_EXPERTS,
        ],
        GRANITE_SCALES,
        MAMBA,
    ],
    params: &[MAMBA_NAMES, OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED, NAMES],
};

/// One number, or one for each layer.
pub(super) const MLP_WIDTH: &str = "feed_forward_length";

/// A layer with an MLP has its width, one that attends has key heads, and a Mamba-2 layer has neither.
const LAYERS: ConfigRow = custom(&[MLP_WIDTH, KEY_HEADS, PREDICTING_LAYERS], read_layers, |config, written| {
    let width = |layer| if config.layers_without_mlp.binary_search(&layer).is_err() { config.d_ff } else { 0 };
    written.insert(MLP_WIDTH.to_owned(), (0..config.n_layers).map(width).collect::<Vec<_>>().into());
    let attends = |layer: usize| config.layers_without_mixer.binary_search(&layer).is_err() && config.attends(layer);
    let heads = |layer| if attends(layer) { config.n_kv_heads } else { 0 };
    written.insert(KEY_HEADS.to_owned(), (0..config.n_layers).map(heads).collect::<Vec<_>>().into());
});

fn read_layers(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    config.n_layers = config.n_layers.saturating_sub(fields.size_or(PREDICTING_LAYERS, 0)?);
    let numbers_of = |key| {
        let numbers = fields.whole_numbers(key)?;
        let largest = numbers.iter().copied().max().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let of_layer = move |layer: usize| numbers.get(layer).or(numbers.first()).is_some_and(|number| *number > 0);
        Ok::<_, Error>((largest, of_layer))
    };
    let ((d_ff, has_mlp), (n_kv_heads, attends)) = (numbers_of(MLP_WIDTH)?, numbers_of(KEY_HEADS)?);
    (config.d_ff, config.n_kv_heads) = (d_ff, n_kv_heads);
    // The size is not validated yet: this limits the lists.
    let layers = 0..config.n_layers.min(MAX_LAYERS + 1);
    (config.layers_without_mixer, config.layers_without_mlp) = layers.clone().partition(|&layer| has_mlp(layer));
    if let Some(recurrent) = &mut config.recurrent {
        recurrent.attention_layers = layers.filter(|&layer| attends(layer) && !has_mlp(layer)).collect();
    }
    Ok(())
}

const NEMOTRON_ROWS: &[ConfigRow] = &[
    size(&["context_length"], |c| &mut c.max_seq_len),
    size(&["embedding_length"], |c| &mut c.d_model),
    size(&["block_count"], |c| &mut c.n_layers),
    size(&["attention.head_count"], |c| &mut c.n_heads),
    LAYERS,
    size_or(&["attention.key_length"], |c| &mut c.head_dim, head_dim),
    VALUE_LENGTH,
    // Nothing is rotated, whatever these keys say.
    of_key(ROPE_KEYS, |_, _| Ok(())),
    // The first is the epsilon of the norms if the second is absent.
    custom(
        &["attention.layer_norm_epsilon", RMS_EPS_KEY],
        |fields, config| {
            config.norm_eps = fields.number_or(RMS_EPS_KEY, fields.number_or("attention.layer_norm_epsilon", 1e-5)?)?;
            Ok(())
        },
        |config, written| {
            for key in ["attention.layer_norm_epsilon", RMS_EPS_KEY] {
                written.insert(key.to_owned(), config.norm_eps.into());
            }
        },
    ),
];

const RMS_EPS_KEY: &str = "attention.layer_norm_rms_epsilon";

/// The architecture without experts. The name of the one with experts has this prefix.
pub(super) const NEMOTRON_H: &str = "nemotron_h";

pub(super) const NEMOTRON_H_DENSE: Gguf = Gguf {
    name: NEMOTRON_H,
    base: nemotron_h,
    config: &[NEMOTRON_ROWS, MAMBA],
    params: &[NEMOTRON_NORMS, MAMBA_NAMES, OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, UNGATED],
};

pub(super) const NEMOTRON_H_MOE: Gguf = Gguf {
    name: "nemotron_h_moe",
    base: || mixture_with(nemotron_h(), |experts| experts.scores = RouterScores::Sigmoid),
    config: &[
        NEMOTRON_ROWS,
        MAMBA,
        &[NEMOTRON_EXPERTS, size_or(&["moe_latent_size"], |c| &mut experts(c).latent_width, |_| 0)],
    ],
    params: &[NEMOTRON_NORMS, MAMBA_NAMES, OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, UNGATED, UNGATED_NAMES, NAMES],
};

fn nemotron_h() -> GptConfig {
    let activation = Activation::ReluSquared;
    GptConfig { gated_mlp: false, activation, positions: Positions::None, ..mamba2() }
}

/// Every layer has one norm.
const NEMOTRON_NORMS: &[NameRow] = &[same("blocks.{}.mlp_norm.weight", "blk.{}.attn_norm.weight")];

const MAMBA_NAMES: &[NameRow] = &[
    same("blocks.{}.recurrent.input.weight", "blk.{}.ssm_in.weight"),
    ordered(Squeezed, "blocks.{}.recurrent.conv.weight", "blk.{}.ssm_conv1d.weight"),
    same("blocks.{}.recurrent.conv.bias", "blk.{}.ssm_conv1d.bias"),
    ordered(ColumnOfNegated, "blocks.{}.recurrent.decays.a_log", "blk.{}.ssm_a"),
    same("blocks.{}.recurrent.decays.dt_bias", "blk.{}.ssm_dt.bias"),
    ordered(Column, "blocks.{}.recurrent.decays.skip", "blk.{}.ssm_d"),
    ordered(NormGroups, "blocks.{}.recurrent.norm.weight", "blk.{}.ssm_norm.weight"),
    same("blocks.{}.recurrent.out.weight", "blk.{}.ssm_out.weight"),
];
