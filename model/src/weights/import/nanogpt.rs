//! nanoGPT's `ckpt.pt`: GPT-2, with biases or without.

use super::{
    super::{files::DiskDtype, tensor_table::ValueKind},
    Checkpoint, Imported, Program, names, only_known, required, zero_biases,
};
use crate::{
    config::{Activation, GptConfig, Sizes},
    error::Result,
    weights::{config_json::Fields, ggml_types::ElementType},
};

pub(super) const FILE: &str = "ckpt.pt";
/// The key of the model's configuration.
pub(super) const MODEL_ARGS: &str = "model_args";

/// All keys, of every version.
const KNOWN: &[&str] = &["n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size", "dropout"];

pub(super) fn load(checkpoint: &Checkpoint<'_, '_>) -> Result<Imported> {
    let Checkpoint { file, path, .. } = checkpoint;
    let args = file.root().get(MODEL_ARGS).map_or(Ok(Default::default()), |args| args.to_map());
    let args = args.map_err(|what| file.error(format!("`{MODEL_ARGS}` {what}")))?;
    let fields = Fields::new(&args, path).with_prefix("model_args.");
    only_known(&fields, path, KNOWN)?;
    let n_heads = required(&fields, "n_head")?;
    let d_model = required(&fields, "n_embd")?;
    let sizes = Sizes {
        vocab_size: required(&fields, "vocab_size")?,
        max_seq_len: required(&fields, "block_size")?,
        n_layers: required(&fields, "n_layer")?,
        n_heads,
        n_kv_heads: n_heads,
        d_model,
        d_ff: d_model.saturating_mul(4),
    };
    let config = GptConfig {
        activation: Activation::Gelu,
        norm_eps: 1e-5,
        dropout: fields.number_or("dropout", 0.0)?,
        ..GptConfig::gpt2(sizes)
    };
    // Before zeros of these sizes are allocated.
    config.validate()?;
    let mut tensors = checkpoint.tensors()?;
    let has_biases = fields.flag_or("bias", true)?;
    let biases = if has_biases { Vec::new() } else { zero_biases(&names::NANOGPT, &config) };
    // Zeros get the 16-bit type of the other tensors, so that the model is not saved in f32 because of them.
    let is_short = |kind| kind == ValueKind::Weights(ElementType::F16) || kind == ValueKind::Weights(ElementType::Bf16);
    let short = tensors.first().map(|tensor| tensor.kind).filter(|&kind| is_short(kind));
    for mut bias in biases {
        if let Some(kind) = short {
            bias.kind = kind;
            let n_bytes = bias.bytes.len() / 2;
            bias.bytes.to_mut().truncate(n_bytes);
        }
        if !tensors.iter().any(|tensor| tensor.name == bias.name) {
            tensors.push(bias);
        }
    }
    let (gpt, dtype): (_, DiskDtype) = checkpoint.build(&tensors, names::NANOGPT, &config, "`model_args`")?;
    let dataset = file.root().get("config").and_then(|config| config.get("dataset")?.text());
    Ok(Imported {
        program: Program::NanoGpt,
        path: path.to_path_buf(),
        gpt,
        class: Some("GPT2LMHeadModel"),
        dtype,
        dataset: dataset.map(str::to_owned),
    })
}
