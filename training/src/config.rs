//! Every setting of a training run, its default, and the presets. Defaults live here and nowhere else.
//! Plain data: nothing that reads a file or knows the command line may come in.

use anyhow::{Result, bail, ensure};
use hearth_model::config::{GptConfig, Sizes};
use serde::{Deserialize, Serialize};

/// The architecture that a model is trained in; both are ones that `transformers` opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// RMSNorm, SwiGLU and rotary positions, as `LlamaForCausalLM`
    Llama,
    /// LayerNorm, GELU and learned positions, as `GPT2LMHeadModel`
    Gpt2,
}

/// The whole of a run: written to the run's folder as `train_config.json`, and enough to repeat the run on the same text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Seeds the weights, the batches, dropout and the samples.
    pub seed: u64,
    /// What is trained.
    pub model: ModelSettings,
    /// What it is trained on.
    pub data: DataSettings,
    /// How weights are updated.
    pub optim: OptimSettings,
    /// How long, and at which learning rate.
    pub schedule: ScheduleSettings,
    /// What is measured and shown on the way.
    pub eval: EvalSettings,
}

/// Sizes of the model. The vocabulary's comes from the tokenizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSettings {
    /// The architecture.
    pub arch: Arch,
    /// Transformer layers.
    pub n_layers: usize,
    /// Attention heads; must divide the width.
    pub n_heads: usize,
    /// Heads for keys and values; must divide the heads. `None`: as many as heads.
    pub n_kv_heads: Option<usize>,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width inside the MLP. `None`: the architecture's own, see [`ModelSettings::d_ff`].
    pub d_ff: Option<usize>,
    /// Context length in tokens.
    pub max_seq_len: usize,
    /// Probability with which an activation is dropped while training.
    pub dropout: f64,
}

/// The text and how it is cut into batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// Tokens of the byte-level BPE vocabulary to train. `None`: character level, one token for each character of the text.
    pub vocab_size: Option<usize>,
    /// Share of the text's characters, at its end, that is held out for validation.
    pub val_fraction: f64,
    /// Sequences in one forward pass; evaluation uses it too, so that what fits in training fits in evaluation.
    pub micro_batch_size: usize,
    /// Forward passes whose gradients are averaged into one step.
    pub grad_accum_steps: usize,
}

/// AdamW ([Loshchilov and Hutter, 2017](https://arxiv.org/abs/1711.05101)) and clipping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimSettings {
    /// Decay of the average of gradients.
    pub beta1: f64,
    /// Decay of the average of squared gradients.
    pub beta2: f64,
    /// Added to the root of the average of squared gradients.
    pub eps: f64,
    /// Decay of matrices (embeddings included, as in nanoGPT) per unit of learning rate. Biases and norm weights never decay.
    pub weight_decay: f64,
    /// Largest norm of all gradients together; larger ones are scaled down. 0: no clipping.
    pub clip: f64,
}

/// The number of steps and the learning rate over them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSettings {
    /// Optimizer steps.
    pub max_steps: usize,
    /// Learning rate at the end of the warmup, the highest.
    pub lr: f64,
    /// Learning rate at the last step.
    pub min_lr: f64,
    /// Steps over which the learning rate rises linearly.
    pub warmup_steps: usize,
}

/// What is measured and shown on the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalSettings {
    /// Steps between evaluations over the whole validation split. 0: at the end only.
    pub eval_every: usize,
    /// Steps between samples of text. 0: none.
    pub sample_every: usize,
    /// Tokens in a sample.
    pub sample_tokens: usize,
    /// Steps between progress lines; the device is read back no more often than this.
    pub log_every: usize,
}

/// A named starting point for a run.
#[derive(Debug)]
pub struct Preset {
    /// What `--preset` takes.
    pub name: &'static str,
    /// One line on what it is for.
    pub about: &'static str,
    /// Its settings.
    pub config: TrainConfig,
}

/// More micro batches in a step than any batch is large.
const MAX_GRAD_ACCUM_STEPS: usize = 1 << 16;

/// More tokens at once than the activations of any model leave room for.
const MAX_MICRO_BATCH_TOKENS: usize = 1 << 26;

/// What every preset starts from: each row of [`PRESETS`] lists only what differs.
const BASE: TrainConfig = TrainConfig {
    seed: 1337,
    model: ModelSettings {
        arch: Arch::Llama,
        n_layers: 4,
        n_heads: 4,
        n_kv_heads: None,
        d_model: 128,
        d_ff: None,
        max_seq_len: 64,
        dropout: 0.0,
    },
    data: DataSettings { vocab_size: None, val_fraction: 0.1, micro_batch_size: 12, grad_accum_steps: 1 },
    optim: OptimSettings { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, clip: 1.0 },
    schedule: ScheduleSettings { max_steps: 2000, lr: 1e-3, min_lr: 1e-4, warmup_steps: 100 },
    eval: EvalSettings { eval_every: 500, sample_every: 500, sample_tokens: 200, log_every: 10 },
};

/// The presets; the first is what a run without `--preset` uses.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "shakespeare-char-cpu",
        about: "0.8M parameters, minutes on a laptop's CPU: nanoGPT's CPU settings for Shakespeare by characters",
        config: BASE,
    },
    Preset {
        name: "shakespeare-char",
        about: "11M parameters, minutes on a GPU: nanoGPT's settings for Shakespeare by characters",
        config: TrainConfig {
            model: ModelSettings {
                n_layers: 6,
                n_heads: 6,
                d_model: 384,
                max_seq_len: 256,
                dropout: 0.2,
                ..BASE.model
            },
            data: DataSettings { micro_batch_size: 64, ..BASE.data },
            schedule: ScheduleSettings { max_steps: 5000, ..BASE.schedule },
            // A small text overfits this model: look often enough to catch the best.
            eval: EvalSettings { eval_every: 250, sample_every: 1000, ..BASE.eval },
            ..BASE
        },
    },
    Preset {
        name: "tiny",
        about: "30k parameters, seconds: for trying the commands out",
        config: TrainConfig {
            model: ModelSettings { n_layers: 2, n_heads: 2, d_model: 32, max_seq_len: 32, ..BASE.model },
            data: DataSettings { micro_batch_size: 8, ..BASE.data },
            schedule: ScheduleSettings { max_steps: 100, lr: 3e-3, min_lr: 3e-4, warmup_steps: 10 },
            eval: EvalSettings { eval_every: 50, sample_every: 100, sample_tokens: 60, ..BASE.eval },
            ..BASE
        },
    },
];

impl TrainConfig {
    /// The settings of the preset called `name`; the error lists the presets.
    pub fn preset(name: &str) -> Result<TrainConfig> {
        let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) else {
            let names: Vec<_> = PRESETS.iter().map(|preset| format!("`{}`", preset.name)).collect();
            bail!("no preset is called `{name}`\nhint: the presets are {}", names.join(", "));
        };
        Ok(preset.config.clone())
    }

    /// Tokens that one step trains on.
    pub fn tokens_per_step(&self) -> usize {
        self.data.micro_batch_size * self.data.grad_accum_steps * self.model.max_seq_len
    }

    /// Refuses settings that no run can have; the message names the field. The sizes of the model are checked by
    /// [`GptConfig::validate`].
    pub fn validate(&self) -> Result<()> {
        let TrainConfig { seed: _, model, data, optim, schedule, eval } = self;
        for (name, value) in [
            ("model.n_layers", model.n_layers),
            ("model.n_heads", model.n_heads),
            ("model.d_model", model.d_model),
            ("model.max_seq_len", model.max_seq_len),
            ("data.micro_batch_size", data.micro_batch_size),
            ("data.grad_accum_steps", data.grad_accum_steps),
            ("schedule.max_steps", schedule.max_steps),
            ("eval.log_every", eval.log_every),
        ] {
            ensure!(value > 0, "`{name}` must be at least 1, got 0");
        }
        ensure!(model.max_seq_len >= 2, "`model.max_seq_len` must be at least 2, a token and the next, got 1");
        ensure!(
            data.grad_accum_steps <= MAX_GRAD_ACCUM_STEPS,
            "`data.grad_accum_steps` must be at most {MAX_GRAD_ACCUM_STEPS}, got {}",
            data.grad_accum_steps
        );
        ensure!(
            data.micro_batch_size.saturating_mul(model.max_seq_len) <= MAX_MICRO_BATCH_TOKENS,
            "`data.micro_batch_size` times `model.max_seq_len` must be at most {MAX_MICRO_BATCH_TOKENS} tokens, got {} \
             times {}\nhint: `--grad-accum` makes larger batches without more memory",
            data.micro_batch_size,
            model.max_seq_len
        );
        for (name, value) in [("model.n_kv_heads", model.n_kv_heads), ("model.d_ff", model.d_ff)] {
            ensure!(value != Some(0), "`{name}` must be at least 1, got 0");
        }
        ensure!(
            model.d_model.is_multiple_of(model.n_heads),
            "`model.d_model` must be a multiple of `model.n_heads`, got {} and {}",
            model.d_model,
            model.n_heads
        );
        if let Some(n_kv_heads) = model.n_kv_heads {
            ensure!(
                model.n_heads.is_multiple_of(n_kv_heads),
                "`model.n_heads` must be a multiple of `model.n_kv_heads`, got {} and {n_kv_heads}",
                model.n_heads
            );
        }
        ensure!(
            model.arch != Arch::Gpt2 || model.n_kv_heads.is_none_or(|n_kv_heads| n_kv_heads == model.n_heads),
            "`model.n_kv_heads` must equal `model.n_heads` for the architecture `gpt2`, got {:?} and {}\nhint: \
             `llama` has grouped heads",
            model.n_kv_heads,
            model.n_heads
        );
        let fraction = 0.0..1.0;
        for (name, value) in
            [("model.dropout", model.dropout), ("optim.beta1", optim.beta1), ("optim.beta2", optim.beta2)]
        {
            ensure!(fraction.contains(&value), "`{name}` must be at least 0 and below 1, got {value}");
        }
        ensure!(
            data.val_fraction > 0.0 && data.val_fraction < 1.0,
            "`data.val_fraction` must be above 0 and below 1, got {}",
            data.val_fraction
        );
        for (name, value) in [("optim.eps", optim.eps), ("schedule.lr", schedule.lr)] {
            ensure!(value.is_finite() && value > 0.0, "`{name}` must be above 0, got {value}");
        }
        for (name, value) in [
            ("optim.weight_decay", optim.weight_decay),
            ("optim.clip", optim.clip),
            ("schedule.min_lr", schedule.min_lr),
        ] {
            ensure!(value.is_finite() && value >= 0.0, "`{name}` must be 0 or more, got {value}");
        }
        ensure!(
            schedule.min_lr <= schedule.lr,
            "`schedule.min_lr` must not be above `schedule.lr`, got {} and {}",
            schedule.min_lr,
            schedule.lr
        );
        ensure!(
            schedule.warmup_steps <= schedule.max_steps,
            "`schedule.warmup_steps` must not be above `schedule.max_steps`, got {} and {}",
            schedule.warmup_steps,
            schedule.max_steps
        );
        Ok(())
    }

    /// The architecture for a vocabulary of `vocab_size` tokens.
    pub fn gpt_config(&self, vocab_size: usize) -> Result<GptConfig> {
        self.validate()?;
        let sizes = Sizes {
            vocab_size,
            max_seq_len: self.model.max_seq_len,
            n_layers: self.model.n_layers,
            n_heads: self.model.n_heads,
            n_kv_heads: self.model.n_kv_heads.unwrap_or(self.model.n_heads),
            d_model: self.model.d_model,
            d_ff: self.model.d_ff(),
        };
        let arch = match self.model.arch {
            Arch::Llama => GptConfig::llama(sizes),
            Arch::Gpt2 => GptConfig::gpt2(sizes),
        };
        let config = GptConfig { dropout: self.model.dropout, ..arch };
        config.validate()?;
        Ok(config)
    }
}

impl ModelSettings {
    /// Width inside the MLP: as set, or the architecture's own. GPT-2 has four times the width; a gated MLP has three
    /// matrices where GPT-2's has two, so 8/3 of the width holds as many parameters
    /// ([Shazeer, 2020](https://arxiv.org/abs/2002.05202)), rounded up to a multiple of 32 that kernels like.
    pub fn d_ff(&self) -> usize {
        self.d_ff.unwrap_or(match self.arch {
            Arch::Gpt2 => 4 * self.d_model,
            Arch::Llama => (8 * self.d_model).div_ceil(3).next_multiple_of(32),
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn every_preset_is_valid_and_survives_json() {
        for preset in PRESETS {
            preset.config.validate().unwrap();
            let json = serde_json::to_string(&preset.config).unwrap();
            assert_eq!(serde_json::from_str::<TrainConfig>(&json).unwrap(), preset.config, "{}", preset.name);
        }
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let mut json = serde_json::to_value(&PRESETS[0].config).unwrap();
        json["optim"]["momentum"] = 0.9.into();
        let error = serde_json::from_value::<TrainConfig>(json).unwrap_err().to_string();
        assert!(error.contains("momentum"), "{error}");
    }

    #[test]
    fn an_unknown_preset_lists_the_presets() {
        let error = TrainConfig::preset("gpt5").unwrap_err().to_string();
        assert!(error.contains("`gpt5`") && error.contains("`shakespeare-char-cpu`"), "{error}");
    }

    #[test]
    fn a_bad_setting_is_refused_with_its_name_and_value() {
        type Spoil = fn(&mut TrainConfig);
        let spoils: [(&str, &str, Spoil); 11] = [
            ("model.max_seq_len", "1", |config| config.model.max_seq_len = 1),
            ("data.grad_accum_steps", "1000000000", |config| config.data.grad_accum_steps = 1_000_000_000),
            ("data.micro_batch_size", "18446744073709551615", |config| config.data.micro_batch_size = usize::MAX),
            ("model.n_layers", "0", |config| config.model.n_layers = 0),
            ("model.d_model", "130", |config| config.model.d_model = 130),
            ("model.n_kv_heads", "3", |config| config.model.n_kv_heads = Some(3)),
            ("model.dropout", "1", |config| config.model.dropout = 1.0),
            ("schedule.lr", "NaN", |config| config.schedule.lr = f64::NAN),
            ("schedule.min_lr", "0.5", |config| config.schedule.min_lr = 0.5),
            ("schedule.warmup_steps", "9999", |config| config.schedule.warmup_steps = 9999),
            ("optim.clip", "-1", |config| config.optim.clip = -1.0),
        ];
        for (field, given, spoil) in spoils {
            let mut config = BASE;
            spoil(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")) && error.contains(given), "{field}: {error}");
        }
    }

    #[test]
    fn the_width_of_the_mlp_follows_the_architecture() {
        assert_eq!(BASE.model.d_ff(), 352); // 8/3 of 128 is 341.3
        assert_eq!(ModelSettings { arch: Arch::Gpt2, ..BASE.model }.d_ff(), 512);
        assert_eq!(ModelSettings { d_ff: Some(100), ..BASE.model }.d_ff(), 100);
    }
}
