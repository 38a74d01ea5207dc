//! Multi-token prediction heads ([DeepSeek-V3](https://arxiv.org/abs/2412.19437), 2.2), as Qwen 3.5 and Qwen 3 Next
//! have one: an extra layer after the model's that predicts one token further. Its predictions serve as drafts.

use burn::tensor::{Int, Tensor};

use super::{Block, Gpt, initial_values};
use crate::{
    config::{Experts, GptConfig},
    error::Result,
    gpt::{
        forward_pass::{AttentionContext, ForwardPass},
        kv_cache::KvCache,
        layers::{Linear, Norm, Part, modules},
        param_specs::{ParamSpec, PartKind, PartSpec, join_specs, param_specs, part_specs},
        params::{ParamData, ParamSource},
    },
    ops::{self, Dtype, KvDtype, Losses, Targets},
};

modules! {
    /// Makes the layer's input of a token and a hidden state.
    struct Join {
        token_norm: Norm,
        hidden_norm: Norm,
        linear: Linear,
    }

    /// The parameters of a prediction head that trains beside its model.
    pub(super) struct PredictionLayer {
        join: Join,
        blocks: Vec<Block>,
        norm: Option<Norm>,
    }
}

/// Path prefix of a head that trains beside its model.
pub(crate) const OF_HEAD: &str = "prediction.";

/// A prediction head. The input of a row is the model's [hidden state](Gpt::forward) and the token that follows; the
/// output is a hidden state whose [`logits`](Self::logits) predict the token after that. To predict further, the output
/// can be the next row's input in place of the model's hidden state.
///
/// The head attends to its own earlier rows. The embedding and the output matrix are the model's, in the same memory.
#[derive(Debug)]
pub struct PredictionHead {
    join: Join,
    /// A model of one layer.
    body: Gpt,
}

impl PredictionHead {
    /// The head of `gpt` with parameters from `read`, as in [`Gpt::from_params`].
    ///
    /// # Errors
    /// Whatever `read` reports.
    pub fn from_params<'a, P: Into<ParamData<'a>>>(
        gpt: &Gpt,
        dtype: Dtype,
        read: &mut dyn FnMut(&ParamSpec) -> Result<P>,
    ) -> Result<Self> {
        let (config, device) = (gpt.config.of_prediction_head(), gpt.device());
        config.validate()?;
        let mut read = |spec: &ParamSpec| match (spec.path.as_str(), &gpt.lm_head.weight) {
            ("embed.weight", _) => Ok(ParamData::Placed(gpt.embed.weight.clone())),
            ("lm_head.weight", Some(weight)) => Ok(ParamData::Placed(weight.clone())),
            _ => read(spec).map(Into::into),
        };
        let parts = [part_specs(&config), join_specs(&config)].concat();
        let mut source = ParamSource::of_parts(parts, &config, dtype, &device, &mut read);
        Ok(Self { join: Join::read("join", &mut source)?, body: Gpt::read("", &mut source)? })
    }

    /// A head of `gpt` with random weights, as [`Gpt::init`] makes them.
    ///
    /// # Errors
    /// The model's architecture cannot have a prediction head.
    pub fn init(gpt: &Gpt, seed: u64) -> Result<Self> {
        // The numbers of its tensors follow those of the model.
        let mut tensor = param_specs(&gpt.config).len() as u32;
        Self::from_params(gpt, Dtype::F32, &mut |spec| {
            tensor += 1;
            Ok(initial_values(spec, seed, tensor))
        })
    }

    /// Hidden states, `[n_rows, d_model]`, of rows with the hidden states `hidden [n_rows, d_model]`, each with the token that
    /// follows it, `[n_rows]`. `context` as in [`Gpt::forward`].
    ///
    /// # Panics
    /// As [`Gpt::forward`].
    pub fn forward(&self, next_ids: Tensor<1, Int>, hidden: Tensor<2>, context: AttentionContext<'_>) -> Tensor<2> {
        let pass = &mut ForwardPass::new(&self.body.config, context, &next_ids.device());
        let Join { token_norm, hidden_norm, linear } = &self.join;
        let tokens = token_norm.forward(self.body.embed.forward(next_ids));
        let joined = Tensor::cat(vec![tokens, hidden_norm.forward(hidden)], 1);
        let x = ops::linear_with_lora(joined, linear.parts(None, &[]));
        self.body.run_blocks(x, pass)
    }

    /// The configuration of its layer.
    pub fn config(&self) -> &GptConfig {
        &self.body.config
    }

    /// A KV cache of `n_pages` pages.
    ///
    /// # Errors
    /// As [`Gpt::kv_cache`].
    pub fn kv_cache(&self, n_pages: usize, dtype: KvDtype) -> Result<KvCache> {
        self.body.kv_cache_with_states(n_pages, 0, dtype)
    }

    /// Scores of every token to come after the next one: `[n_rows, d_model]` to `[n_rows, vocab_size]`.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.body.logits(hidden)
    }

    /// [`Gpt::losses`] of its hidden states and the tokens after the next ones.
    ///
    /// # Panics
    /// As [`Gpt::losses`].
    pub fn losses(&self, hidden: Tensor<2>, targets: Targets) -> Losses {
        self.body.losses(hidden, targets, 0.0)
    }

    /// Bytes of its own matrices.
    pub fn n_bytes(&self) -> usize {
        let of_layer: usize = self.body.linears().into_iter().map(|(_, linear)| linear.weight().n_bytes()).sum();
        of_layer + self.join.linear.weight().n_bytes()
    }

    /// Bytes of a token's keys and values in a KV cache of `dtype`.
    ///
    /// # Errors
    /// As [`Gpt::kv_bytes_per_token`].
    pub fn kv_bytes_per_token(&self, dtype: KvDtype) -> Result<usize> {
        self.body.kv_bytes_per_token(dtype)
    }
}

impl Gpt {
    /// The model with a head that trains beside it and is saved with it.
    #[must_use]
    pub fn with_prediction_head(self, head: PredictionHead) -> Self {
        let PredictionHead { join, body: Self { blocks, norm, .. } } = head;
        Self { prediction: Some(PredictionLayer { join, blocks, norm }), ..self }
    }

    /// The head that trains beside the model, if there is one. It shares its parameters with the model.
    pub fn prediction_head(&self) -> Option<PredictionHead> {
        let PredictionLayer { join, blocks, norm } = self.prediction.clone()?;
        let body = Self {
            embed: self.embed.clone(),
            pos_embed: None,
            type_embed: None,
            embed_norm: None,
            relative: None,
            per_layer: None,
            encoder: None,
            blocks,
            norm,
            mlm_head: None,
            lm_head: self.lm_head.clone(),
            prediction: None,
            classes: None,
            config: self.config.of_prediction_head(),
        };
        Some(PredictionHead { join, body })
    }

    /// The parameters of the head that trains beside the model; empty without one.
    pub(crate) fn prediction_specs(&self) -> Vec<ParamSpec> {
        let head = self.prediction.as_ref().map(|_| prediction_parts(&self.config));
        let specs = head.into_iter().flatten().flat_map(|part| part.params);
        specs.map(|spec| ParamSpec { path: format!("{OF_HEAD}{}", spec.path), ..spec }).collect()
    }
}

/// The parts that a prediction head does not share with a model of `config`, with paths within the head.
fn prediction_parts(config: &GptConfig) -> Vec<PartSpec> {
    let config = config.of_prediction_head();
    let own =
        part_specs(&config).into_iter().filter(|part| !matches!(part.kind, PartKind::Embedding | PartKind::LmHead));
    own.chain(join_specs(&config)).collect()
}

/// The linear layers of a head that trains beside a model of `config`, in the form of
/// [`linear_dims`](super::linear_dims).
pub fn prediction_linear_dims(config: &GptConfig) -> Vec<(String, [usize; 2])> {
    let linears = prediction_parts(config).into_iter().filter(|part| part.kind == PartKind::Linear);
    linears.map(|part| (format!("{OF_HEAD}{}", part.path), part.matrix_dims())).collect()
}

impl GptConfig {
    /// The configuration of the model's prediction head: one layer, with the embedding and the output matrix shared
    /// with the model. The layer has attention, and experts if layers of the model have experts.
    #[must_use]
    pub fn of_prediction_head(&self) -> Self {
        Self {
            n_layers: 1,
            experts: self.experts.clone().map(|experts| Experts { dense_layers: Vec::new(), ..experts }),
            n_shared_kv_layers: 0,
            per_layer_inputs: None,
            recurrent: None,
            sliding_window: None,
            window_rope: None,
            full_layers: Vec::new(),
            unrotated_layers: Vec::new(),
            layers_without_mlp: Vec::new(),
            layers_without_mixer: Vec::new(),
            ..self.clone()
        }
    }
}
