//! nanochat's `model_NNNNNN.pt`, in the form that `transformers` has a class for: norms without weights, queries and
//! keys normalised, squared ReLU, logits capped at 15. Later forms have more tensors, and are rejected with the names
//! of these.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use super::{Checkpoint, Imported, Program, names, only_known, required};
use crate::{
    config::{Activation, GptConfig, Positions, Rope, Sizes},
    error::{Error, Result},
    files::regular_file,
    weights::config_json::Fields,
};

const KNOWN: &[&str] = &["sequence_len", "vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd", "window_pattern"];

/// Parts of names of tensors that later forms have.
const LATER: &[&str] = &["resid_lambdas", "x0_lambdas", "value_embeds", "ve_gate", "smear", "backout"];

/// Logits stay within this.
const SOFTCAP: f64 = 15.0;

/// The step of the checkpoint at `path`, if it has nanochat's name.
pub(super) fn step_of(path: &Path) -> Option<u64> {
    let step = path.file_name()?.to_str()?.strip_prefix("model_")?.strip_suffix(".pt")?;
    if step.bytes().all(|byte| byte.is_ascii_digit()) { step.parse().ok() } else { None }
}

/// Where the configuration of the checkpoint at `path` is, if it has nanochat's name.
pub(super) fn meta_path(path: &Path) -> Option<PathBuf> {
    step_of(path)?;
    let step = path.file_name()?.to_str()?.strip_prefix("model_")?.strip_suffix(".pt")?;
    Some(path.with_file_name(format!("meta_{step}.json")))
}

pub(super) fn load(checkpoint: &Checkpoint<'_, '_>, meta: &Path) -> Result<Imported> {
    let json = regular_file::read_json_object(meta)?;
    let root = Fields::new(&json, meta);
    let fields = root.object("model_config")?.ok_or_else(|| root.missing(&["model_config"]))?;
    let fields = fields.with_prefix("model_config.");

    let mut tensors = checkpoint.tensors()?;
    let is_later = |name: &str| LATER.iter().any(|part| name.contains(part));
    if let Some(later) = tensors.iter().find(|tensor| is_later(&tensor.name)) {
        let what = "is of a later form of nanochat than the one that `transformers` has a class for";
        return Err(Error::tensor(checkpoint.path, &later.name, what)
            .with_hint(format!("models with `{}` are not supported", LATER.join("`, `"))));
    }
    only_known(&fields, meta, KNOWN)?;
    let windows = fields.text_or("window_pattern", "L")?;
    if windows.bytes().any(|layer| !layer.eq_ignore_ascii_case(&b'L')) {
        return Err(fields.unsupported("window_pattern", &windows.into(), "\"L\": no windows"));
    }
    let n_heads = required(&fields, "n_head")?;
    let d_model = required(&fields, "n_embd")?;
    let vocab_size = required(&fields, "vocab_size")?;
    let head_dim = d_model / n_heads.max(1);
    let config = GptConfig {
        norm_weight: false,
        // `rms_norm` without an epsilon uses the machine epsilon of f32.
        norm_eps: f64::from(f32::EPSILON),
        embed_norm: true,
        qk_norm: true,
        activation: Activation::ReluSquared,
        gated_mlp: false,
        positions: Positions::Rope(Rope::new(10_000.0, head_dim)),
        logit_softcap: Some(SOFTCAP),
        ..GptConfig::llama(Sizes {
            vocab_size,
            max_seq_len: required(&fields, "sequence_len")?,
            n_layers: required(&fields, "n_layer")?,
            n_heads,
            n_kv_heads: fields.size_or("n_kv_head", n_heads)?,
            d_model,
            d_ff: d_model.saturating_mul(4),
        })
    };
    for name in ["transformer.wte.weight", "lm_head.weight"] {
        let tensor = tensors.iter_mut().find(|tensor| tensor.name == name);
        if let Some(tensor) = tensor
            && let [n_rows, _] = tensor.shape[..]
            && n_rows > vocab_size
        {
            // Padding: nanochat rounds the number of rows up, and leaves out the logits of the rows beyond the
            // vocabulary.
            let n_bytes = tensor.bytes.len() / n_rows * vocab_size;
            match &mut tensor.bytes {
                Cow::Borrowed(bytes) => *bytes = &bytes[..n_bytes],
                Cow::Owned(bytes) => bytes.truncate(n_bytes),
            }
            tensor.shape[0] = vocab_size;
        }
    }
    let (gpt, dtype) = checkpoint.build(&tensors, names::NANOCHAT, &config, "`meta_NNNNNN.json`")?;
    Ok(Imported {
        program: Program::NanoChat,
        path: checkpoint.path.to_path_buf(),
        gpt,
        class: Some("NanoChatForCausalLM"),
        dtype,
        dataset: None,
    })
}
