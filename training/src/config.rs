//! All settings of a training run in one struct, filled from the defaults here, then a preset, a file, and `--set
//! key=value`. All defaults are here; presets (`presets/*.toml`) list only differences.

use std::path::PathBuf;

use hearth_model::ops::{Dtype, Precision};
use serde::{Deserialize, Serialize};

mod command_settings;
mod effective;
mod foreign;
mod keys;
mod layers;
mod micro_batch;
mod model;
mod parallel;
mod presets;
mod same_past;
mod seq2seq;
mod validate;
mod value_error;

pub use command_settings::Purpose;
pub use keys::{hint_of_argument, hint_of_unknown, known_keys};
pub(crate) use layers::BUDGETS;
pub use layers::{Layers, Resolved};
pub use micro_batch::MicroBatchSize;
pub use parallel::ParallelSettings;
pub use presets::{PRESETS, Preset};
pub use same_past::differences;
pub use seq2seq::Seq2SeqSettings;

pub use crate::{
    data::examples::TooLong,
    objective::{ObjectiveKind, ObjectiveSettings, TextPooling},
};

/// All settings of a run. The run's `config.toml` is this struct, resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// The command that uses the settings. It decides which settings have an effect; `None`: any. Not itself a setting.
    #[serde(skip)]
    pub purpose: Option<Purpose>,
    /// Seed of the weights, batches, dropout and samples.
    pub seed: u64,
    /// The model.
    pub model: ModelSettings,
    /// The training data.
    pub data: DataSettings,
    /// The training objective.
    pub objective: ObjectiveSettings,
    /// Sources and targets.
    #[serde(skip_serializing_if = "Seq2SeqSettings::is_default")]
    pub seq2seq: Seq2SeqSettings,
    /// The adapter to train instead of the model; left out: the model itself is trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSettings>,
    /// The optimizer.
    pub optim: OptimSettings,
    /// The number of steps and the learning rates.
    pub schedule: ScheduleSettings,
    /// Evaluation and progress output.
    pub eval: EvalSettings,
    /// Sampling, during training and in `hearth-train sample`.
    pub sample: SampleSettings,
    /// Checkpoints.
    pub checkpoint: CheckpointSettings,
    /// Several processes.
    #[serde(skip_serializing_if = "ParallelSettings::is_default")]
    pub parallel: ParallelSettings,
}

/// The model's architecture; `transformers` supports all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// LayerNorm, GELU, learned positions and tied embeddings, as `GPT2LMHeadModel`.
    Gpt2,
    /// RMSNorm, SwiGLU and rotary positions, as `LlamaForCausalLM`.
    Llama,
    /// As Llama, with norms of queries and keys, as `Qwen3ForCausalLM`.
    Qwen3,
    /// RMSNorm without weights, also of embeddings, queries and keys, squared ReLU, rotary positions and capped logits, as
    /// `NanoChatForCausalLM`.
    NanoChat,
    /// BERT, an encoder, for `objective.kind=mlm`: as `BertForMaskedLM`.
    Bert,
    /// T5 1.1, an encoder-decoder, for `objective.kind=seq2seq`: as `T5ForConditionalGeneration`.
    T5,
}

/// Sizes of the model. The vocabulary's comes from the tokenizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// A model to start from, instead of random weights: a model dir, or the name of one of the Hugging Face hub, whose
    /// folder in the cache the run then records. The architecture is then taken from that model: in this section, only
    /// `dropout` and `max_seq_len`, the length of rows, can be set.
    pub init: Option<PathBuf>,
    /// The architecture.
    pub arch: Arch,
    /// Transformer layers.
    pub n_layers: usize,
    /// Attention heads.
    pub n_heads: usize,
    /// Heads for keys and values; must divide `n_heads`. Left out: `n_heads`.
    pub n_kv_heads: Option<usize>,
    /// Width of one head. Left out: `d_model / n_heads`.
    pub head_dim: Option<usize>,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width inside the MLP. Left out: the architecture's own, see [`ModelSettings::d_ff`].
    pub d_ff: Option<usize>,
    /// Number of experts in place of each layer's MLP; a router chooses some of them for each token. 0: an MLP. `llama`
    /// becomes a `MixtralForCausalLM`, `qwen3` a `Qwen3MoeForCausalLM`; the other architectures have none.
    pub n_experts: usize,
    /// Experts that a token goes through. Left out: 2.
    pub n_active_experts: Option<usize>,
    /// Width inside an expert. Left out: `d_ff / n_active_experts`, so that a token uses as many parameters as in an
    /// MLP.
    pub expert_d_ff: Option<usize>,
    /// Context length in tokens, and the length of a row of a batch.
    pub max_seq_len: usize,
    /// Base of the rotary wavelengths. Left out: 10,000.
    pub rope_theta: Option<f64>,
    /// Whether `lm_head` is the embedding matrix. Left out: the architecture's own setting.
    pub tie_embeddings: Option<bool>,
    /// Initialize the matrices that write to the residual stream, and an untied `lm_head`, with zeros ([Zhang et al.,
    /// 2019](https://arxiv.org/abs/1901.09321)).
    pub zero_init_outputs: bool,
    /// Standard deviation of fresh token embeddings. Left out: 0.02. Larger values keep tokens distinct, so that a small model
    /// with tied embeddings learns sooner to copy from its context.
    pub embedding_std: Option<f64>,
    /// Dropout probability.
    pub dropout: f64,
}

/// The data and its batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSettings {
    /// The folder made by `hearth-train prepare`; set by `--data`.
    pub path: Option<PathBuf>,
    /// `quickstart` only: vocabulary size of a byte-level BPE tokenizer. Left out: one token per character.
    pub vocab_size: Option<usize>,
    /// Fraction that is held out for validation, or 0: in `quickstart` of the text's characters, at its end; in `finetune` of the
    /// examples, chosen by the seed, unless there are examples for validation.
    pub val_fraction: f64,
    /// `finetune` only: how to handle an example that is longer than `model.max_seq_len`.
    pub too_long: TooLong,
    /// The order of rows.
    pub rows: Rows,
    /// Rows per forward pass, in training and evaluation, or `auto`.
    pub micro_batch_size: MicroBatchSize,
    /// Tokens in one optimizer step, a multiple of `micro_batch_size * max_seq_len`: gradients are summed over the
    /// necessary number of micro-batches. Left out: one micro-batch.
    pub tokens_per_step: Option<usize>,
    /// `pretrain` with `objective.kind=seq2seq`: the folder of the tokenizer; set by `--tokenizer`. Left out: the one of `model.init`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
}

/// The order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rows {
    /// Every row once per epoch, in a different order each time.
    Epochs,
    /// At random positions, as in nanoGPT.
    Windows,
    /// Whole documents, as many per row as fit; attention does not cross document borders, and positions restart in
    /// each document. Every row is used once per epoch.
    Documents,
    /// As [`Documents`](Self::Documents), without packing: one document per row.
    Unpacked,
}

/// The name in [`LoraSettings::targets`] for all linear layers of the blocks.
pub(crate) const ALL_LINEAR: &str = "all-linear";

/// A low-rank adapter ([LoRA](https://arxiv.org/abs/2106.09685)).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoraSettings {
    /// The rank, at most 65,536.
    pub r: usize,
    /// The update is multiplied by `alpha / r`.
    pub alpha: f64,
    /// The linear layers that are updated, by the last part of their Hugging Face names, such as `q_proj`; or `all-linear`.
    pub targets: Vec<String>,
    /// The experts' matrices that are updated, by the ends of the names of the parameters that stack all experts of a
    /// layer, such as `experts.gate_up_proj`, as PEFT's `target_parameters`. Always in all layers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub target_parameters: Vec<String>,
    /// The layers that are updated. Left out: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<usize>>,
    /// Dropout probability of the updates' inputs.
    pub dropout: f64,
    /// Multiply by `alpha / sqrt(r)` instead ([rsLoRA](https://arxiv.org/abs/2312.03732)).
    pub rslora: bool,
    /// How the model's own matrices are held in memory, on the CPU: `q8` and `q4` round them
    /// ([QLoRA](https://arxiv.org/abs/2305.14314)). Left out: the dtype of its files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseDtype>,
}

impl LoraSettings {
    /// Whether the model's own matrices are rounded to 8 bits or fewer.
    pub(crate) fn rounds_base(&self) -> bool {
        matches!(self.base, Some(BaseDtype::Q8 | BaseDtype::Q4))
    }
}

/// How matrices that do not train are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BaseDtype {
    /// 32 bits.
    F32,
    /// 16 bits, the upper half of `f32`.
    Bf16,
    /// Blocks of 32 with 8 bits each.
    Q8,
    /// Blocks of 32 with 4 bits each.
    Q4,
}

/// The optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimSettings {
    /// The optimizer of the blocks' matrices. Embeddings, `lm_head` and vectors always use AdamW.
    pub matrices: Algorithm,
    /// AdamW's highest learning rate.
    pub lr: f64,
    /// AdamW's decay of the average of gradients.
    pub beta1: f64,
    /// AdamW's decay of the average of squared gradients.
    pub beta2: f64,
    /// Added to the root of the average of squared gradients.
    pub eps: f64,
    /// Decay of matrices (embeddings included, as in nanoGPT) per unit of AdamW's learning rate. Biases and norm weights
    /// never decay.
    pub weight_decay: f64,
    /// How weight decay changes during the run.
    pub decay_schedule: DecaySchedule,
    /// Maximum norm of all gradients together; larger gradients are scaled down. 0: no clipping.
    pub clip: f64,
    /// Weight of the squared logarithm of the softmax's denominator in the loss
    /// ([PaLM](https://arxiv.org/abs/2204.02311), 5). 0: off.
    pub z_loss: f64,
    /// Weight of the load-balancing loss of a mixture's routers in the loss ([Switch
    /// Transformers](https://arxiv.org/abs/2101.03961), 2.2), as `router_aux_loss_coef` in transformers. Left out: the model's own
    /// in pretraining, 0 in `finetune`. 0: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_aux_loss_coef: Option<f64>,
    /// Weight of the mean squared logarithm of the denominators of a mixture's routers in the loss
    /// ([ST-MoE](https://arxiv.org/abs/2202.08906), 2.2); 0.001 is usual. 0: off.
    pub router_z_loss_coef: f64,
    /// A step whose gradient norm is more than this many times the median of the last 100 is skipped. 0: disabled.
    /// Steps with an infinite or NaN loss or norm are always skipped.
    pub spike_factor: f64,
    /// The arithmetic of products with the model's matrices: `bf16` rounds both operands, which is faster on CPUs of AMD's with
    /// AVX512_BF16 and on GPUs with matrix instructions for bf16 (there attention's products are rounded, too), and no faster
    /// on other CPUs. Matrices, gradients and sums are f32, and so is evaluation.
    pub precision: Precision,
    /// Keep only the input of each block, and recompute the rest in the backward pass (gradient checkpointing), on the
    /// CPU. Uses less memory and more time; results are bit-identical. Left out: true if `lora.base` is `q8` or `q4`,
    /// which are used to save memory.
    pub recompute: bool,
    /// Settings of Muon, if `matrices` is `muon`.
    pub muon: MuonSettings,
}

/// The optimizer of the blocks' matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// [Loshchilov and Hutter, 2017](https://arxiv.org/abs/1711.05101).
    AdamW,
    /// [Jordan et al., 2024](https://kellerjordan.github.io/posts/muon/).
    Muon,
}

/// [Muon](https://kellerjordan.github.io/posts/muon/): momentum with equalized singular values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MuonSettings {
    /// Muon's highest learning rate.
    pub lr: f64,
    /// Decay of the average of gradients, after its warmup.
    pub momentum: f64,
    /// Decay at the first step; it rises linearly.
    pub momentum_start: f64,
    /// Steps of this rise.
    pub momentum_warmup_steps: usize,
    /// Use Nesterov momentum.
    pub nesterov: bool,
    /// Newton-Schulz iterations.
    pub iterations: usize,
    /// Decay of Muon's matrices per unit of its learning rate.
    pub weight_decay: f64,
}

/// How weight decay changes during the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecaySchedule {
    /// Constant.
    Constant,
    /// Linearly to 0.
    Linear,
    /// Along a half cosine to 0.
    Cosine,
}

/// The budget (exactly one must be set) and the learning rate schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSettings {
    /// The learning rate after the warmup.
    pub kind: ScheduleKind,
    /// Budget in optimizer steps.
    pub max_steps: Option<usize>,
    /// Budget in passes over the data, at most a million. The last step has only the remaining rows.
    pub epochs: Option<f64>,
    /// Budget in tokens, rounded up to whole steps.
    pub max_tokens: Option<u64>,
    /// Budget in tokens for each parameter of the model.
    pub tokens_per_param: Option<f64>,
    /// Budget in minutes of training, with `constant` and `wsd` only: other schedules depend on the number of steps.
    pub max_minutes: Option<f64>,
    /// Steps over which the learning rate rises linearly. Left out: the preset's, but at most a tenth of the run.
    pub warmup_steps: usize,
    /// The last learning rate as a fraction of the highest.
    pub min_lr_ratio: f64,
    /// `wsd`: fraction of the steps, at the end, over which the rate falls linearly.
    pub cooldown_ratio: f64,
    /// `wsd`: the same in steps, instead of `cooldown_ratio`.
    pub cooldown_steps: Option<usize>,
}

/// The learning rate after the warmup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// Constant.
    Constant,
    /// Falls linearly.
    Linear,
    /// Falls along a half cosine ([Loshchilov and Hutter, 2016](https://arxiv.org/abs/1608.03983)).
    Cosine,
    /// Warmup-stable-decay ([Hu et al., 2024](https://arxiv.org/abs/2404.06395)): constant, then a linear cooldown.
    Wsd,
}

/// Evaluation and progress output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalSettings {
    /// Steps between evaluations on the validation split; the last step always evaluates. 0: only the last step.
    pub every: usize,
    /// Number of batches per evaluation. Left out: the whole split.
    pub batches: Option<usize>,
    /// Early stopping: the run ends after this many evaluations in a row that are no better than the best before them. Left out:
    /// it does not end early.
    pub patience: Option<usize>,
    /// Steps between progress lines.
    pub log_every: usize,
}

/// Sampling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SampleSettings {
    /// Steps between samples during training. 0: none.
    pub every: usize,
    /// The prompt of samples during training.
    pub prompt: String,
    /// Maximum number of tokens per sample.
    pub max_tokens: usize,
    /// Divides the logits; 0 always takes the most likely token.
    pub temperature: f32,
    /// Keep this many of the most likely tokens. 0: all.
    pub top_k: usize,
    /// Keep the smallest set of most likely tokens whose probabilities sum to this value. 1: all.
    pub top_p: f32,
}

/// Checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSettings {
    /// Steps between checkpoints; the last step always has one. 0: only the last step.
    pub every: usize,
    /// Number of latest checkpoints to keep.
    pub keep: usize,
    /// Further steps whose checkpoints are written and kept.
    pub keep_steps: Vec<usize>,
    /// The dtype of `model/`: `f32`, `f16` or `bf16`. Checkpoints always have f32.
    pub save_dtype: SaveDtype,
}

/// The dtype of values on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SaveDtype {
    /// 32 bits.
    F32,
    /// 16 bits, IEEE 754.
    F16,
    /// 16 bits, the upper half of `f32`.
    Bf16,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            purpose: None,
            seed: 1337,
            model: ModelSettings::default(),
            data: DataSettings::default(),
            objective: ObjectiveSettings::default(),
            seq2seq: Seq2SeqSettings::default(),
            lora: None,
            optim: OptimSettings::default(),
            schedule: ScheduleSettings::default(),
            eval: EvalSettings::default(),
            sample: SampleSettings::default(),
            checkpoint: CheckpointSettings::default(),
            parallel: ParallelSettings::default(),
        }
    }
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self {
            init: None,
            arch: Arch::Gpt2,
            n_layers: 4,
            n_heads: 4,
            n_kv_heads: None,
            head_dim: None,
            d_model: 128,
            d_ff: None,
            n_experts: 0,
            n_active_experts: None,
            expert_d_ff: None,
            max_seq_len: 64,
            rope_theta: None,
            tie_embeddings: None,
            zero_init_outputs: false,
            embedding_std: None,
            dropout: 0.0,
        }
    }
}

impl Default for DataSettings {
    fn default() -> Self {
        Self {
            path: None,
            vocab_size: None,
            val_fraction: 0.1,
            too_long: TooLong::Refuse,
            rows: Rows::Epochs,
            micro_batch_size: MicroBatchSize::Rows(12),
            tokens_per_step: None,
            tokenizer: None,
        }
    }
}

impl Default for LoraSettings {
    fn default() -> Self {
        Self {
            r: 16,
            alpha: 32.0,
            targets: vec![ALL_LINEAR.to_owned()],
            target_parameters: Vec::new(),
            layers: None,
            dropout: 0.0,
            rslora: false,
            base: None,
        }
    }
}

impl BaseDtype {
    /// The dtype with which the model is loaded.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::Bf16,
            Self::Q8 => Dtype::Q8,
            Self::Q4 => Dtype::Q4,
        }
    }

    /// Bits of a value, scales included, rounded up to whole bits.
    pub fn bits(self) -> u64 {
        match self {
            Self::F32 => 32,
            Self::Bf16 => 16,
            Self::Q8 => 9,
            Self::Q4 => 5,
        }
    }
}

impl Default for OptimSettings {
    fn default() -> Self {
        Self {
            matrices: Algorithm::AdamW,
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            decay_schedule: DecaySchedule::Constant,
            clip: 1.0,
            z_loss: 0.0,
            router_aux_loss_coef: None,
            router_z_loss_coef: 0.0,
            spike_factor: 0.0,
            precision: Precision::F32,
            recompute: false,
            muon: MuonSettings::default(),
        }
    }
}

impl Default for MuonSettings {
    fn default() -> Self {
        Self {
            lr: 0.02,
            momentum: 0.95,
            momentum_start: 0.85,
            momentum_warmup_steps: 300,
            nesterov: true,
            iterations: 5,
            weight_decay: 0.0,
        }
    }
}

impl Default for ScheduleSettings {
    fn default() -> Self {
        Self {
            kind: ScheduleKind::Cosine,
            max_steps: None,
            epochs: None,
            max_tokens: None,
            tokens_per_param: None,
            max_minutes: None,
            warmup_steps: 100,
            min_lr_ratio: 0.1,
            cooldown_ratio: 0.2,
            cooldown_steps: None,
        }
    }
}

impl Default for EvalSettings {
    fn default() -> Self {
        Self { every: 500, batches: None, patience: None, log_every: 10 }
    }
}

impl Default for SampleSettings {
    fn default() -> Self {
        Self { every: 500, prompt: "\n".to_owned(), max_tokens: 200, temperature: 1.0, top_k: 0, top_p: 1.0 }
    }
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        Self { every: 500, keep: 2, keep_steps: Vec::new(), save_dtype: SaveDtype::F32 }
    }
}
