//! Latent attention in GGUF files: DeepSeek V2 and V3, models that the converter writes as these, and MiniCPM 3.

use serde_json::json;

use super::{
    super::{
        architectures::{
            bases::{deepseek, experts, latent, mixture_with},
            config_rows::{
                ConfigRow, custom, exact_inverse, inverse_root, one_kv_head_each, set_score_scale, size, size_or,
            },
        },
        config_json::Fields,
        tensor_names::{
            NameRow,
            RowSelection::{LatentDown, LatentKeys, LatentQueries, LatentUp, LatentValues},
            ordered, same, stacked,
        },
    },
    config_rows::{LOG_MULTIPLIER, RMS_EPS, ROPE, SIZES, log_factor, of_key},
    description::Gguf,
    expert_rows::{self, NAMES},
    names::{BLOCK, GATED, OUTSIDE},
    recurrent::{KEY_HEADS, PREDICTING_LAYERS},
};
use crate::{
    config::{ExpertGroups, GptConfig, LatentAttention, Positions, Rope, RopeScaling, RouterScores},
    error::Result,
};

/// Newer files have one key head, which holds the latent. `..._mla` are the widths of heads then.
const HEADS: &[ConfigRow] = &[
    one_kv_head_each(),
    of_key(&[KEY_HEADS], |fields, config| match fields.size_or(KEY_HEADS, config.n_heads)? {
        1 => Ok(()),
        n if n == config.n_heads => Ok(()),
        n => Err(fields.unsupported(
            KEY_HEADS,
            &n.into(),
            &format!("1 or {}, as `attention.head_count`", config.n_heads),
        )),
    }),
    size(&["rope.dimension_count"], |c| &mut latent(c).rope_dim),
    size(&["attention.kv_lora_rank"], |c| &mut latent(c).kv_rank),
    of_key(&["attention.q_lora_rank"], |fields, config| {
        latent(config).query_rank = fields.size("attention.q_lora_rank")?.filter(|&rank| rank > 0);
        Ok(())
    }),
    of_key(&["attention.key_length", "attention.key_length_mla"], |fields, config| {
        config.head_dim = width(fields, ["attention.key_length_mla", "attention.key_length"])?;
        Ok(())
    }),
];

fn width(fields: &Fields<'_>, keys: [&str; 2]) -> Result<usize> {
    let [of_newer, of_older] = keys.map(|key| fields.size(key));
    of_newer?.or(of_older?).ok_or_else(|| fields.missing(&keys))
}

const VALUES: ConfigRow = of_key(&["attention.value_length", "attention.value_length_mla"], |fields, config| {
    latent(config).value_dim = width(fields, ["attention.value_length_mla", "attention.value_length"])?;
    Ok(())
});

/// The keys above as newer files have them.
const WRITTEN: ConfigRow = custom(
    &[],
    |_, _| Ok(()),
    |config, written| {
        let Some(LatentAttention { query_rank, kv_rank, rope_dim, value_dim, .. }) = config.latent else { return };
        let mut write = |key: &str, value: usize| drop(written.insert(key.to_owned(), value.into()));
        write(KEY_HEADS, 1);
        write("attention.q_lora_rank", query_rank.unwrap_or(0));
        write("attention.key_length", kv_rank.saturating_add(rope_dim));
        write("attention.value_length", kv_rank);
        write("attention.key_length_mla", config.head_dim);
        write("attention.value_length_mla", value_dim);
    },
);

/// The multiplier of scores with YaRN, times 0.1. Files have no key for the multiplier of cosines and sines; in
/// released models both are equal and cancel out.
const SCORES: ConfigRow = custom(&[LOG_MULTIPLIER], read_scores, |config, written| {
    if let Positions::Rope(Rope { scaling: RopeScaling::Yarn { factor, .. }, .. }) = config.positions {
        let own = inverse_root(config.head_dim as f64);
        let scale = |tenth: f64| own * log_factor(factor, 10.0 * tenth) * log_factor(factor, 10.0 * tenth);
        let guess = ((config.score_scale() / own).sqrt() - 1.0) / factor.ln();
        // llama.cpp reads no whole number for it.
        written.insert(LOG_MULTIPLIER.to_owned(), json!(exact_inverse(config.score_scale(), guess, scale).as_f64()));
    }
});

fn read_scores(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    let multiplier = 10.0 * fields.number_or(LOG_MULTIPLIER, 0.0)?;
    let own = inverse_root(config.head_dim as f64);
    if let Positions::Rope(Rope { scaling: RopeScaling::Yarn { factor, attention_factor, .. }, .. }) =
        &mut config.positions
        && multiplier != 0.0
    {
        *attention_factor = 1.0;
        let by_length = log_factor(*factor, multiplier);
        let scale = own * by_length * by_length;
        set_score_scale(config, scale);
    }
    Ok(())
}

/// Files of dense models have some of the keys too.
const EXPERTS: ConfigRow = custom(expert_rows::KEYS, read_experts, |config, written| {
    expert_rows::write(config, written);
    if config.experts.is_none() {
        // llama.cpp requires these keys for dense models too.
        let keys = [("expert_feed_forward_length", config.d_ff), ("expert_shared_count", 0)];
        written.extend(keys.map(|(key, value)| (key.to_owned(), value.into())));
        written.insert("leading_dense_block_count".to_owned(), config.n_layers.into());
    }
});

fn read_experts(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    if fields.size_or(expert_rows::COUNT, 0)? == 0 {
        config.experts = None;
        return Ok(());
    }
    expert_rows::read(fields, config)?;
    let experts = experts(config);
    // The first files do not state it: probabilities are not normalized, other scores are.
    if fields.get(expert_rows::SCORES).is_none() && experts.normalized {
        experts.scores = RouterScores::Sigmoid;
    }
    if let (RouterScores::Softmax, Some(groups)) = (experts.scores, experts.groups) {
        experts.groups = Some(ExpertGroups { n_best: 1, ..groups });
    }
    Ok(())
}

pub(super) const DEEPSEEK2: Gguf = Gguf {
    name: "deepseek2",
    base: || mixture_with(deepseek(), |experts| experts.normalized = false),
    config: &[
        SIZES,
        &[of_key(&[PREDICTING_LAYERS], |fields, config| {
            config.n_layers = config.n_layers.saturating_sub(fields.size_or(PREDICTING_LAYERS, 0)?);
            Ok(())
        })],
        HEADS,
        &[VALUES, WRITTEN, ROPE, SCORES, RMS_EPS, EXPERTS],
    ],
    params: &[OUTSIDE, LATENT, BLOCK, GATED, NAMES],
};

/// Files have no keys for the scales; these are the values of the model with 4 billion parameters.
pub(super) const MINICPM3: Gguf = Gguf {
    name: "minicpm3",
    base: || {
        let mut config = GptConfig { embedding_multiplier: 12.0, ..deepseek() };
        latent(&mut config).interleaved = false;
        config
    },
    config: &[
        SIZES,
        HEADS,
        &[
            size_or(&["attention.value_length"], |c| &mut latent(c).value_dim, |c| c.d_model / c.n_heads.max(1)),
            ROPE,
            RMS_EPS,
            of_key(&[], |_, config| {
                config.residual_multiplier = 1.4 / (config.n_layers as f64).sqrt();
                config.logit_multiplier = 256.0 / config.d_model as f64;
                Ok(())
            }),
        ],
    ],
    params: &[OUTSIDE, LATENT, BLOCK, GATED],
};

const QUERIES: &str = "blocks.{}.attn.latent.q.weight";
const UP: &str = "blocks.{}.attn.latent.kv_up.weight";

const LATENT: &[NameRow] = &[
    same("blocks.{}.attn.latent.q_down.weight", "blk.{}.attn_q_a.weight"),
    same("blocks.{}.attn.latent.q_down.bias", "blk.{}.attn_q_a.bias"),
    same("blocks.{}.attn.latent.q_norm.weight", "blk.{}.attn_q_a_norm.weight"),
    ordered(LatentQueries, QUERIES, "blk.{}.attn_q_b.weight").only_if(has_query_rank),
    ordered(LatentQueries, QUERIES, "blk.{}.attn_q.weight").only_if(|config| !has_query_rank(config)),
    ordered(LatentDown, "blocks.{}.attn.latent.kv_down.weight", "blk.{}.attn_kv_a_mqa.weight"),
    ordered(LatentDown, "blocks.{}.attn.latent.kv_down.bias", "blk.{}.attn_kv_a_mqa.bias"),
    same("blocks.{}.attn.latent.kv_norm.weight", "blk.{}.attn_kv_a_norm.weight"),
    // Newer files have the matrices of keys and of values apart.
    stacked(UP, &[("blk.{}.attn_k_b.weight", LatentKeys), ("blk.{}.attn_v_b.weight", LatentValues)]),
    ordered(LatentUp, UP, "blk.{}.attn_kv_b.weight"),
];

fn has_query_rank(config: &GptConfig) -> bool {
    config.latent.is_some_and(|latent| latent.query_rank.is_some())
}
