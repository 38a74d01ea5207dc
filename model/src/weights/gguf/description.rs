//! How GGUF files describe one architecture: keys that set fields, and tensors that make up parameters.

use serde_json::{Map, Value};

use super::{
    super::{
        architectures::config_rows::ConfigRow,
        config_json::{Fields, Fixed},
        tensor_names::{NameRow, TensorNames},
    },
    config_rows::{ATTENTION_FACTOR, FACTOR_LISTS},
    expert_rows, layer_rows,
};
use crate::{
    config::{GptConfig, MAX_LAYERS, Recurrence, Recurrent},
    error::Result,
};

/// How GGUF files describe one architecture.
pub(super) struct Gguf {
    /// As in `general.architecture`.
    pub(super) name: &'static str,
    /// The configuration before keys are read; sizes are not set yet.
    pub(super) base: fn() -> GptConfig,
    /// Keys and the fields that they set, in the order in which they are read.
    pub(super) config: &'static [&'static [ConfigRow]],
    /// The tensors of each parameter. If several rows name one parameter, the first row whose tensors exist applies.
    pub(super) params: &'static [&'static [NameRow]],
}

impl Gguf {
    /// Reads the metadata's keys under the architecture's name. `has` is whether there is a tensor of a name.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) with a key that would change the computation but is not supported.
    pub(super) fn read(&self, fields: &Fields<'_>, has: &dyn Fn(&str) -> bool) -> Result<GptConfig> {
        for key in fields.keys().filter(|key| !self.reads(key) && !SILENT.contains(key)) {
            // Unknown keys are rejected unless they have a neutral value, which is 0 for most.
            let neutral = NEUTRAL.iter().find(|(neutral, _)| *neutral == key);
            fields.only(key, neutral.map_or(Fixed::Nothing, |(_, only)| *only))?;
        }
        let mut config = (self.base)();
        self.config.iter().copied().flatten().try_for_each(|row| row.read(fields, &mut config))?;
        if !FACTOR_LISTS.iter().any(|name| has(name)) {
            fields.only(ATTENTION_FACTOR, Fixed::Number(1.0))?;
        }
        config.tie_embeddings = !has("output.weight");
        config.lm_head_bias = has("output.bias");
        // The size is not validated yet: this limits the search.
        let layers = 0..config.n_layers.min(MAX_LAYERS);
        let attends = layers.clone().find(|&layer| config.attends(layer)).unwrap_or_default();
        let any = |layer: usize, names: &[&str]| names.iter().any(|name| has(&format!("blk.{layer}.{name}")));
        config.qkv_bias = any(attends, &["attn_qkv.bias", "attn_q.bias", "attn_kv_a_mqa.bias"]);
        config.attn_out_bias = any(attends, &["attn_output.bias"]);
        config.shared_norm &= !has("blk.0.attn_norm_2.weight");
        config.mlp_bias = any(0, &["ffn_up.bias", "ffn_down.bias", "ffn_down_exps.bias"]);
        config.qk_norm |= QK_NORM_BY_TENSORS.contains(&self.name) && any(attends, &["attn_k_norm.weight"]);
        expert_rows::read_tensors(&mut config, has);
        layer_rows::read_tensors(&mut config, has);
        if let Some(Recurrent { recurrence: Recurrence::Mamba2(mamba), .. }) = &mut config.recurrent {
            mamba.conv_bias = layers.clone().any(|layer| any(layer, &["ssm_conv1d.bias"]));
        }
        Ok(config)
    }

    /// How the files name their tensors.
    pub(super) fn names(&self) -> TensorNames {
        TensorNames { class: self.name, rows: Some(self.params), base_prefix: "", body_prefix: "", is_base: false }
    }

    /// The keys that the rows of this architecture write for `config`, without the keys of rotary positions and
    /// windows.
    pub(super) fn written(&self, config: &GptConfig) -> Map<String, Value> {
        let mut written = Map::new();
        self.config.iter().copied().flatten().for_each(|row| row.write(config, &mut written));
        written
    }

    fn reads(&self, key: &str) -> bool {
        self.config.iter().copied().flatten().any(|row| row.reads(key))
    }
}

/// Architectures in which only the tensors show whether queries and keys are normalized.
const QK_NORM_BY_TENSORS: &[&str] = &["glm4moe"];

/// Keys that no row reads and whose neutral value is not 0.
const NEUTRAL: &[(&str, Fixed)] = &[
    ("attention.causal", Fixed::Flag(true)),
    ("attention.max_alibi_bias", Fixed::Number(8.0)),
    ("rope.scaling.yarn_ext_factor", Fixed::Number(1.0)),
];

/// How texts become vectors, which does not change the model.
pub(super) const POOLING_TYPE: &str = "pooling_type";

/// Keys that are not part of the configuration. The shapes of the tensors imply the first two.
const SILENT: &[&str] = &["vocab_size", "tensor_data_layout", POOLING_TYPE, "classifier.pooling_type"];
