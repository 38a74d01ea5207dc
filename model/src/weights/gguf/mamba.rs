//! Models with Mamba-2 layers in GGUF files.

use super::{
    super::{
        architectures::{
            bases::{mamba, mamba2, mixture},
            config_rows::{ConfigRow, head_dim, size, size_or},
        },
        tensor_names::{
            NameRow,
            RowSelection::{Column, ColumnOfNegated, NormGroups, Squeezed},
            ordered, same,
        },
    },
    config_rows::{GRANITE_SCALES, ROPE, ROPE_KEYS, SIZES, VALUE_LENGTH, of_key},
    description::Gguf,
    expert_rows::{GRANITE_HYBRID_EXPERTS, NAMES},
    names::{BLOCK, GATED, INTERLEAVED_QKV, OUTSIDE},
    recurrent::LISTED_HEADS,
};
use crate::config::{GptConfig, MAX_LAYERS, Positions, Recurrence, Recurrent};

const INNER: &str = "ssm.inner_size";

/// The sizes of the layers. llama.cpp does not limit time steps.
const MAMBA: &[ConfigRow] = &[
    size(&["ssm.conv_kernel"], |c| &mut mamba(c).conv_kernel),
    size(&["ssm.group_count"], |c| &mut mamba(c).n_groups),
    size(&["ssm.time_step_rank"], |c| &mut mamba(c).n_heads),
    size(&["ssm.state_size"], |c| &mut mamba(c).state_dim),
    of_key(&[INNER], |fields, config| {
        let inner = fields.size(INNER)?.ok_or_else(|| fields.missing(&[INNER]))?;
        let mamba = mamba(config);
        mamba.head_dim = inner / mamba.n_heads.max(1);
        Ok(())
    }),
];

/// In Granite this key says whether layers rotate at all.
const POSITIONS: ConfigRow = of_key(ROPE_KEYS, |fields, config| {
    if fields.flag_or("rope.scaling.finetuned", true)? {
        return ROPE.read(fields, config);
    }
    config.positions = Positions::None;
    Ok(())
});

/// Queries and keys are interleaved as in Llama's files, which changes nothing where they do not rotate.
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

/// Sets what only the tensors say.
pub(super) fn read_tensors(config: &mut GptConfig, has: &dyn Fn(&str) -> bool) {
    // The size is not validated yet: this limits the search.
    let has_bias = (0..config.n_layers.min(MAX_LAYERS)).any(|layer| has(&format!("blk.{layer}.ssm_conv1d.bias")));
    if let Some(Recurrent { recurrence: Recurrence::Mamba2(mamba), .. }) = &mut config.recurrent {
        mamba.conv_bias = has_bias;
    }
}
