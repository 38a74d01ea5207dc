//! From a run's settings to the architecture.

use anyhow::{Context, Result, ensure};
use hearth_model::{
    config::{Experts, GptConfig, Positions, Rope, Sizes},
    gpt::RouterLossWeights,
    weights::DiskDtype,
};

use super::{Arch, ModelSettings, OptimSettings, Purpose, SaveDtype, TrainConfig};

impl TrainConfig {
    /// The architecture for a vocabulary of `vocab_size` tokens.
    ///
    /// # Errors
    /// Sizes that are invalid, by field.
    pub fn gpt_config(&self, vocab_size: usize) -> Result<GptConfig> {
        let model = &self.model;
        let sizes = Sizes {
            vocab_size,
            max_seq_len: model.max_seq_len,
            n_layers: model.n_layers,
            n_heads: model.n_heads,
            n_kv_heads: model.n_kv_heads.unwrap_or(model.n_heads),
            d_model: model.d_model,
            d_ff: model.d_ff(),
        };
        let mut config = match model.arch {
            Arch::Gpt2 => GptConfig::gpt2(sizes),
            Arch::Llama => GptConfig::llama(sizes),
            Arch::Qwen3 => GptConfig { qk_norm: true, ..GptConfig::llama(sizes) },
            Arch::NanoChat => GptConfig::nanochat(sizes),
            Arch::Bert => GptConfig::bert(sizes).with_mlm_head(),
            Arch::T5 => GptConfig::t5(sizes),
        };
        config.head_dim = model.head_dim.unwrap_or(config.head_dim);
        config.tie_embeddings = model.tie_embeddings.unwrap_or(config.tie_embeddings);
        if let Positions::Rope(rope) = &config.positions {
            config.positions = Positions::Rope(Rope::new(model.rope_theta.unwrap_or(rope.theta), config.head_dim));
        }
        if let Some(experts) = model.experts(self.optim.router_aux_loss_coef) {
            config.d_ff = experts.d_ff;
            config.experts = Some(experts);
        }
        if config.is_encoder_decoder() {
            // As in the first T5, whose output matrix is the embedding.
            config.logit_multiplier = if config.tie_embeddings { (config.d_model as f64).powf(-0.5) } else { 1.0 };
            config = config.with_own_encoder();
        }
        let config = config.with_dropout(model.dropout);
        config.validate().context("the settings of `model` make no model")?;
        Ok(config)
    }
}

impl TrainConfig {
    /// The weights of the losses of a model's routers.
    ///
    /// # Errors
    /// Such a loss is set for a model without experts.
    pub fn router_losses(&self, gpt: &GptConfig) -> Result<RouterLossWeights> {
        let OptimSettings { router_aux_loss_coef, router_z_loss_coef, .. } = self.optim;
        let Some(experts) = &gpt.experts else {
            let set = [
                ("router_aux_loss_coef", router_aux_loss_coef.unwrap_or_default()),
                ("router_z_loss_coef", router_z_loss_coef),
            ];
            for (name, weight) in set {
                ensure!(
                    weight == 0.0,
                    "`optim.{name}` must be 0 for a model without experts, got {weight}\nhint: leave it out"
                );
            }
            return Ok(RouterLossWeights::default());
        };
        let has_own = self.purpose != Some(Purpose::Finetune) && self.objective.objective().takes_z_loss();
        let own = if has_own { experts.balance_loss } else { 0.0 };
        Ok(RouterLossWeights { balance: router_aux_loss_coef.unwrap_or(own), z: router_z_loss_coef })
    }
}

/// The weight of the load-balancing loss that classes of `transformers` have by default.
const BALANCE_LOSS: f64 = 0.001;

impl ModelSettings {
    /// Experts that a token goes through, in a model that has some.
    pub fn n_active_experts(&self) -> usize {
        self.n_active_experts.unwrap_or(2)
    }

    /// Width inside an expert.
    pub fn expert_d_ff(&self) -> usize {
        self.expert_d_ff.unwrap_or_else(|| self.d_ff() / self.n_active_experts().max(1))
    }

    /// The experts in place of the MLPs, if there are any: the chosen probabilities are normalised. `balance` is the
    /// weight of the load-balancing loss, if it is set.
    fn experts(&self, balance: Option<f64>) -> Option<Experts> {
        (self.n_experts > 0).then(|| Experts {
            balance_loss: balance.unwrap_or(BALANCE_LOSS),
            ..Experts::plain(self.n_experts, self.n_active_experts(), self.expert_d_ff())
        })
    }

    /// Width inside the MLP: as set, or the architecture's default. GPT-2's and
    /// nanochat's are four times the width. A gated MLP has
    /// three matrices instead of two, so 8/3 of the width gives the same number of parameters ([Shazeer,
    /// 2020](https://arxiv.org/abs/2002.05202)), rounded up to a multiple of 32 for the kernels.
    pub fn d_ff(&self) -> usize {
        self.d_ff.unwrap_or(match self.arch {
            Arch::Gpt2 | Arch::NanoChat | Arch::Bert => 4 * self.d_model,
            Arch::Llama | Arch::Qwen3 | Arch::T5 => (8 * self.d_model).div_ceil(3).next_multiple_of(32),
        })
    }
}

impl SaveDtype {
    /// As the writer of model dirs has it.
    pub fn on_disk(self) -> DiskDtype {
        match self {
            Self::F32 => DiskDtype::F32,
            Self::F16 => DiskDtype::F16,
            Self::Bf16 => DiskDtype::Bf16,
        }
    }
}
