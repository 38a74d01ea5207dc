//! Models whose distribution is known: weights of zero, and a bias of the logits that is the logarithm of the wanted
//! probabilities. The next token then does not depend on what is before it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use burn::tensor::{Device, TensorData};
use hearth_model::{
    config::{GptConfig, Sizes},
    gpt::Gpt,
    ops::Dtype,
    text::tokenizer::Tokenizer,
};
use serde_json::{Value, json};

/// Context of the models.
pub(crate) const MAX_SEQ_LEN: usize = 256;

/// A model of `probabilities.len()` tokens, each of which follows anything with its probability.
pub(crate) fn known_model(probabilities: &[f64]) -> Gpt {
    let sizes = Sizes {
        vocab_size: probabilities.len(),
        max_seq_len: MAX_SEQ_LEN,
        n_layers: 1,
        n_heads: 2,
        n_kv_heads: 2,
        d_model: 16,
        d_ff: 16,
    };
    let config = GptConfig { lm_head_bias: true, ..GptConfig::llama(sizes) };
    Gpt::from_params(&config, Dtype::F32, &Device::flex(), &mut |spec| {
        let n = spec.shape.iter().product();
        let values = match spec.path.as_str() {
            "lm_head.bias" => probabilities.iter().map(|probability| probability.ln() as f32).collect(),
            _ => vec![0.0_f32; n],
        };
        Ok(TensorData::new(values, spec.shape.as_slice()))
    })
    .unwrap()
}

/// A tokenizer of `n` tokens, each a word.
pub(crate) fn word_tokenizer(n: usize) -> Tokenizer {
    let words: serde_json::Map<String, Value> = (0..n).map(|id| (format!("w{id}"), id.into())).collect();
    let json = json!({ "model": { "type": "WordLevel", "vocab": words, "unk_token": "w0" } });
    Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
}
