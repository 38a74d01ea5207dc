//! Models whose logits depend on the position alone, so that tests choose what they write, and servers of such models.

use std::path::Path;

use burn::tensor::{Device, TensorData};
use hearth_model::{
    config::{GptConfig, Sizes},
    gpt::{Gpt, Init},
    ops::Dtype,
    text::chat::ChatTemplate,
    weights::model_dir::LoadedModel,
};
use hearth_server::engine::Engine;

use crate::support::{OPTIONS, Server, VOCAB_SIZE, model};

pub(crate) const MAX_SEQ_LEN: usize = 1024;
/// At least one dimension for each token.
pub(crate) const D_MODEL: usize = 320;

/// A model of which `positions` fills the embeddings of positions, `[MAX_SEQ_LEN, D_MODEL]`, zeros at first. `head` may
/// change the output matrix, `[VOCAB_SIZE, D_MODEL]`, in which the logit of a token is twice the dimension of its id.
pub(crate) fn gpt(mut positions: impl FnMut(&mut [f32]), mut head: impl FnMut(&mut [f32])) -> Gpt {
    let sizes = Sizes {
        vocab_size: VOCAB_SIZE,
        max_seq_len: MAX_SEQ_LEN,
        n_layers: 1,
        n_heads: 5,
        n_kv_heads: 5,
        d_model: D_MODEL,
        d_ff: 32,
    };
    let config = GptConfig { tie_embeddings: false, ..GptConfig::gpt2(sizes) };
    Gpt::from_params(&config, Dtype::F32, &Device::flex(), &mut |spec| {
        let n = spec.shape.iter().product();
        let mut values = match spec.init {
            Init::Constant(constant) => vec![constant; n],
            Init::Values(values) => values.to_vec(),
            Init::LogUniform { most, .. } => vec![most.ln() as f32; n],
            Init::Normal { .. } => vec![0.0; n],
        };
        match spec.path.as_str() {
            "pos_embed.weight" => positions(&mut values),
            "lm_head.weight" => {
                (0..VOCAB_SIZE).for_each(|token| values[token * D_MODEL + token] = 2.0);
                head(&mut values);
            }
            _ => {}
        }
        Ok(TensorData::new(values, spec.shape.as_slice()))
    })
    .unwrap()
}

/// A server of this model with a chat template.
pub(crate) fn server(template: String, gpt: Gpt) -> Server {
    let load = move || {
        let chat_template = Some(ChatTemplate::new(&template, Path::new("chat_template.jinja"))?);
        Ok(LoadedModel { chat_template, gpt, ..model() })
    };
    Server::trusting_templates(Engine::start(load, OPTIONS).unwrap())
}
