//! Validation of settings. Messages name the key, the value found and the values allowed.

use anyhow::{Result, anyhow, bail, ensure};
use burn::tensor::Device;
use hearth_model::{
    Error,
    decode::sampling::SamplingParams,
    ops::{self, Precision},
};

use super::{
    ALL_LINEAR, Algorithm, Arch, DecaySchedule, MicroBatchSize, ObjectiveKind, OptimSettings, ParallelSettings,
    SaveDtype, ScheduleKind, TrainConfig, value_error::with_hint,
};

/// Maximum size of a model in any dimension, and of its number of layers.
const MAX_SIZE: usize = 1 << 28;
const MAX_LAYERS: usize = 1 << 12;

/// Far above any useful number of micro-batches per step.
const MAX_MICRO_STEPS: usize = 1 << 16;

/// The largest rank of an adapter: far above the width of any model's matrices.
const MAX_RANK: usize = 1 << 16;
/// Maximum of `lora.alpha`: larger factors make numbers infinite before anything is learned.
const MAX_FACTOR: f64 = 1e6;

/// Maximum number of passes over the data.
const MAX_EPOCHS: f64 = 1e6;

/// Far above the number of tokens whose activations fit in memory, even for the smallest models.
const MAX_MICRO_BATCH_TOKENS: usize = 1 << 26;

/// Maximum of [`ParallelSettings::replicas`]: each has its weights and its optimizer in memory.
const MAX_REPLICAS: usize = 64;

/// Maximum of [`ParallelSettings::peer_timeout`]: a week.
const MAX_PEER_TIMEOUT: u64 = 7 * 24 * 3600;

impl TrainConfig {
    /// Rejects invalid settings; the message names the key. Invalid model sizes are rejected by
    /// [`gpt_config`](Self::gpt_config).
    pub fn validate(&self) -> Result<()> {
        self.check().map_err(with_hint)
    }

    fn check(&self) -> Result<()> {
        self.validate_model()?;
        self.validate_data()?;
        self.validate_lora()?;
        self.validate_mtp()?;
        self.validate_seq2seq()?;
        self.validate_optim()?;
        self.validate_schedule()?;
        // The vocabulary size does not matter: no setting of `sample` contains token ids.
        self.sample.params(SamplingParams::default()).validate(usize::MAX).map_err(|error| match error {
            Error::Param { name, what } => anyhow!("`sample.{name}` {what}"),
            error => error.into(),
        })?;
        ensure!(self.eval.log_every > 0, "`eval.log_every` must be at least 1, got 0");
        ensure!(self.eval.batches != Some(0), "`eval.batches` must be at least 1, got 0");
        ensure!(
            self.eval.patience != Some(0),
            "`eval.patience` must be at least 1, got 0\nhint: leave it out for a run that does not end early"
        );
        ensure!(
            self.eval.patience.is_none() || self.eval.every > 0,
            "`eval.patience` needs evaluations during the run, but `eval.every` is 0\nhint: set `eval.every`"
        );
        ensure!(self.checkpoint.keep > 0, "`checkpoint.keep` must be at least 1, got 0");
        self.validate_replicas()?;
        if let Some(seconds) = self.parallel.peer_timeout {
            ensure!(
                (1..=MAX_PEER_TIMEOUT).contains(&seconds),
                "`parallel.peer_timeout` must be from 1 to {MAX_PEER_TIMEOUT} seconds, got {seconds}\nhint: longer than rank 0 takes for a \
                 checkpoint"
            );
        }
        ensure!(
            i64::try_from(self.seed).is_ok(),
            "`seed` must be at most {}, the largest number in TOML, got {}",
            i64::MAX,
            self.seed
        );
        Ok(())
    }

    /// Replicas share out whole steps, and there is one model to evaluate and to save only where they meet.
    fn validate_replicas(&self) -> Result<()> {
        let ParallelSettings { replicas, sync_every, outer_lr, outer_momentum, .. } = self.parallel;
        ensure!(
            replicas.is_power_of_two() && replicas <= MAX_REPLICAS,
            "`parallel.replicas` must be a power of two up to {MAX_REPLICAS}, got {replicas}"
        );
        ensure!(sync_every > 0, "`parallel.sync_every` must be at least 1, got 0");
        ensure!(outer_lr > 0.0 && outer_lr <= 2.0, "`parallel.outer_lr` must be above 0 and at most 2, got {outer_lr}");
        ensure!(
            (0.0..1.0).contains(&outer_momentum),
            "`parallel.outer_momentum` must be at least 0 and below 1, got {outer_momentum}"
        );
        if replicas == 1 {
            return Ok(());
        }
        let n_micro = self.micro_steps();
        ensure!(
            n_micro.is_multiple_of(replicas),
            "`parallel.replicas` must divide the micro-batches of a step, which are {n_micro}, got {replicas}\nhint: a larger \
             `data.tokens_per_step`, or a smaller `data.micro_batch_size`"
        );
        let of_keep = self.checkpoint.keep_steps.iter().map(|step| ("checkpoint.keep_steps", *step));
        let all = [("eval.every", self.eval.every), ("checkpoint.every", self.checkpoint.every)];
        let samples = [("sample.every", self.sample.every)];
        if let Some((name, steps)) =
            all.into_iter().chain(samples).chain(of_keep).find(|(_, steps)| !steps.is_multiple_of(sync_every))
        {
            bail!(
                "`{name}` must be a multiple of `parallel.sync_every`, which is {sync_every}, got {steps}: there is one model only where \
                 the replicas meet\nhint: `--set {name}={}`",
                steps.next_multiple_of(sync_every)
            );
        }
        Ok(())
    }

    fn validate_model(&self) -> Result<()> {
        let model = &self.model;
        for (name, value) in
            [("model.n_layers", model.n_layers), ("model.n_heads", model.n_heads), ("model.d_model", model.d_model)]
        {
            ensure!(value > 0, "`{name}` must be at least 1, got 0");
        }
        ensure!(
            model.max_seq_len >= 2,
            "`model.max_seq_len` must be at least 2 (a token and its successor), got {}",
            model.max_seq_len
        );
        for (name, value) in
            [("model.n_kv_heads", model.n_kv_heads), ("model.d_ff", model.d_ff), ("model.head_dim", model.head_dim)]
        {
            ensure!(value != Some(0), "`{name}` must be at least 1, got 0");
        }
        ensure!(
            model.head_dim.is_some() || model.d_model.is_multiple_of(model.n_heads),
            "`model.d_model` must be a multiple of `model.n_heads`, got {} and {}\nhint: change one of them, or \
             set the width of a head, `model.head_dim`",
            model.d_model,
            model.n_heads
        );
        let head_dim = model.head_dim.unwrap_or(model.d_model / model.n_heads);
        ensure!(
            matches!(model.arch, Arch::Gpt2 | Arch::Bert | Arch::T5) || head_dim.is_multiple_of(2),
            "{}, must be even for the rotary positions of this `model.arch`, got {head_dim}\nhint: change one of them, or use \
             `model.arch=gpt2`, which has other positions",
            match model.head_dim {
                Some(_) => "the width of a head, `model.head_dim`",
                None => "the width of a head, `model.d_model` divided by `model.n_heads`",
            }
        );
        ensure!(
            model.rope_theta.is_none_or(|theta| theta.is_finite() && theta > 1.0),
            "`model.rope_theta` must be above 1 and finite, got {}",
            model.rope_theta.unwrap_or_default()
        );
        for (name, value) in [
            ("n_heads", model.n_heads),
            ("d_model", model.d_model),
            ("d_ff", model.d_ff()),
            ("max_seq_len", model.max_seq_len),
            ("head_dim", head_dim),
        ] {
            ensure!(value <= MAX_SIZE, "`model.{name}` must be at most {MAX_SIZE}, got {value}");
        }
        ensure!(model.n_layers <= MAX_LAYERS, "`model.n_layers` must be at most {MAX_LAYERS}, got {}", model.n_layers);
        if let Some(n_kv_heads) = model.n_kv_heads {
            ensure!(
                model.n_heads.is_multiple_of(n_kv_heads),
                "`model.n_heads` must be a multiple of `model.n_kv_heads`, got {} and {n_kv_heads}",
                model.n_heads
            );
        }
        self.validate_experts()?;
        if matches!(model.arch, Arch::Gpt2 | Arch::Bert | Arch::T5) {
            let own = [
                ("n_kv_heads", model.n_kv_heads.is_none_or(|n_kv_heads| n_kv_heads == model.n_heads)),
                (
                    "head_dim",
                    model.arch == Arch::T5
                        || model.head_dim.is_none_or(|head_dim| head_dim * model.n_heads == model.d_model),
                ),
                ("rope_theta", model.rope_theta.is_none()),
                ("tie_embeddings", model.arch != Arch::Bert || model.tie_embeddings != Some(false)),
            ];
            let name_of = match model.arch {
                Arch::Gpt2 => "gpt2",
                Arch::T5 => "t5",
                _ => "bert",
            };
            for (name, holds) in own {
                ensure!(
                    holds,
                    "`model.{name}` cannot be set for the architecture `{name_of}`\nhint: `model.arch=llama` and \
                     `model.arch=qwen3` support it"
                );
            }
        }
        ensure!(
            model.embedding_std.is_none_or(|std| std > 0.0 && std.is_finite()),
            "`model.embedding_std` must be above 0 and finite, got {}",
            model.embedding_std.unwrap_or_default()
        );
        ensure!(
            (0.0..1.0).contains(&model.dropout),
            "`model.dropout` must be at least 0 and below 1, got {}",
            model.dropout
        );
        Ok(())
    }

    fn validate_data(&self) -> Result<()> {
        let data = &self.data;
        ensure!(data.micro_batch_size.rows() > 0, "`data.micro_batch_size` must be at least 1, got 0");
        ensure!(
            data.micro_batch_size != MicroBatchSize::Auto || data.tokens_per_step.is_some(),
            "`data.micro_batch_size` can be `auto` only with `data.tokens_per_step`: what a step trains on must not depend on the \
             machine\nhint: for example `--set data.tokens_per_step={}`",
            12 * self.model.max_seq_len
        );
        ensure!(
            (0.0..1.0).contains(&data.val_fraction),
            "`data.val_fraction` must be at least 0 and below 1, got {}",
            data.val_fraction
        );
        let micro = self.micro_batch_tokens();
        ensure!(
            micro <= MAX_MICRO_BATCH_TOKENS,
            "`data.micro_batch_size` times `model.max_seq_len` must be at most {MAX_MICRO_BATCH_TOKENS} tokens, got {} \
             times {}\nhint: `data.tokens_per_step` allows larger steps without more memory",
            data.micro_batch_size,
            self.model.max_seq_len
        );
        if let Some(tokens) = data.tokens_per_step {
            ensure!(
                tokens > 0 && tokens.is_multiple_of(micro),
                "`data.tokens_per_step` must be a multiple of `data.micro_batch_size` times `model.max_seq_len`, \
                 {} times {} = {micro}, got {tokens}\nhint: for example `--set data.tokens_per_step={}`",
                data.micro_batch_size,
                self.model.max_seq_len,
                (tokens / micro).max(1) * micro
            );
            ensure!(
                tokens / micro <= MAX_MICRO_STEPS,
                "`data.tokens_per_step` must be at most {MAX_MICRO_STEPS} micro-batches of {micro} tokens, got {tokens}"
            );
        }
        Ok(())
    }

    /// Texts that are each other's negatives are computed together.
    pub(super) fn validate_negatives(&self) -> Result<()> {
        let is_contrastive = self.objective.kind == ObjectiveKind::Contrastive;
        ensure!(
            !is_contrastive || self.data.micro_batch_size != MicroBatchSize::Auto,
            "`data.micro_batch_size` must be a number with `objective.kind=contrastive`, got `auto`: it says how many pairs are each \
             other's negatives\nhint: for example `--set data.micro_batch_size=32`"
        );
        ensure!(
            !is_contrastive || self.micro_steps() == 1,
            "with `objective.kind=contrastive`, a step must be one micro-batch, whose pairs are each other's negatives, got {}\nhint: \
             leave out `data.tokens_per_step`, and set how many pairs a step has by `data.micro_batch_size`",
            self.micro_steps()
        );
        Ok(())
    }

    fn validate_experts(&self) -> Result<()> {
        let model = &self.model;
        if model.n_experts == 0 {
            return Ok(());
        }
        ensure!(
            matches!(model.arch, Arch::Llama | Arch::Qwen3),
            "`model.n_experts` must be 0 for this `model.arch`, got {}\nhint: `model.arch=llama` and `model.arch=qwen3` have experts",
            model.n_experts
        );
        let n_active = model.n_active_experts();
        ensure!(
            (1..=model.n_experts).contains(&n_active),
            "`model.n_active_experts` must be from 1 to `model.n_experts` = {}, got {n_active}",
            model.n_experts
        );
        for (name, value) in [("n_experts", model.n_experts), ("expert_d_ff", model.expert_d_ff())] {
            ensure!((1..=MAX_SIZE).contains(&value), "`model.{name}` must be from 1 to {MAX_SIZE}, got {value}");
        }
        Ok(())
    }

    fn validate_mtp(&self) -> Result<()> {
        let (model, mtp) = (&self.model, self.objective.mtp);
        ensure!(
            mtp == 0.0 || matches!(model.arch, Arch::Llama | Arch::Qwen3) && model.n_experts == 0,
            "`objective.mtp` must be 0 for this `model.arch`, and with `model.n_experts` above 0, got {mtp}\nhint: dense models of \
             `model.arch=llama` and `model.arch=qwen3` can have a prediction head"
        );
        Ok(())
    }

    fn validate_lora(&self) -> Result<()> {
        let OptimSettings { z_loss, router_aux_loss_coef, router_z_loss_coef, .. } = self.optim;
        let losses = [
            ("z_loss", z_loss),
            ("router_aux_loss_coef", router_aux_loss_coef.unwrap_or_default()),
            ("router_z_loss_coef", router_z_loss_coef),
        ];
        self.objective.check(self.lora.is_some(), &losses)?;
        let Some(lora) = &self.lora else { return Ok(()) };
        ensure!(
            (1..=MAX_RANK).contains(&lora.r),
            "`lora.r` must be from 1 to {MAX_RANK}, got {}\nhint: 8 to 64 are usual",
            lora.r
        );
        ensure!(
            lora.alpha > 0.0 && lora.alpha <= MAX_FACTOR,
            "`lora.alpha` must be above 0 and at most {MAX_FACTOR}, got {}\nhint: one or two times `lora.r` is usual",
            lora.alpha
        );
        ensure!(
            (0.0..1.0).contains(&lora.dropout),
            "`lora.dropout` must be at least 0 and below 1, got {}",
            lora.dropout
        );
        ensure!(
            !lora.targets.is_empty() || !lora.target_parameters.is_empty(),
            "`lora.targets` must name at least one linear layer\nhint: `{ALL_LINEAR}` stands for all of them"
        );
        ensure!(
            lora.targets.len() == 1 || lora.targets.iter().all(|target| target != ALL_LINEAR),
            "`lora.targets` must be `{ALL_LINEAR}` alone or names of linear layers, got `{}`\nhint: `{ALL_LINEAR}` stands for all \
             of them",
            lora.targets.join("`, `")
        );
        ensure!(
            lora.dropout == 0.0 || lora.target_parameters.is_empty(),
            "`lora.dropout` must be 0 with `lora.target_parameters`, got {}\nhint: PEFT has none for parameters either",
            lora.dropout
        );
        ensure!(
            self.model.init.is_some(),
            "`lora` needs a model to adapt\nhint: use `hearth-train finetune MODEL`, or set `model.init`"
        );
        ensure!(
            self.model.dropout == 0.0,
            "`model.dropout` must be 0 with `lora`, got {}\nhint: `lora.dropout` drops inputs of the adapter",
            self.model.dropout
        );
        ensure!(
            self.optim.matrices == Algorithm::AdamW,
            "`optim.matrices` must be `adamw` with `lora`\nhint: leave it out; matrices of an adapter always use AdamW"
        );
        ensure!(
            self.checkpoint.save_dtype == SaveDtype::F32,
            "`checkpoint.save_dtype` must be `f32` with `lora`\nhint: leave it out; an adapter is always saved in f32"
        );
        Ok(())
    }

    fn validate_optim(&self) -> Result<()> {
        let optim = &self.optim;
        let muon = &optim.muon;
        for (name, value) in [
            ("optim.beta1", optim.beta1),
            ("optim.beta2", optim.beta2),
            ("optim.muon.momentum", muon.momentum),
            ("optim.muon.momentum_start", muon.momentum_start),
        ] {
            ensure!((0.0..1.0).contains(&value), "`{name}` must be at least 0 and below 1, got {value}");
        }
        for (name, value) in [("optim.eps", optim.eps), ("optim.lr", optim.lr), ("optim.muon.lr", muon.lr)] {
            ensure!(value.is_finite() && value > 0.0, "`{name}` must be above 0 and finite, got {value}");
        }
        for (name, value) in [
            ("optim.weight_decay", optim.weight_decay),
            ("optim.clip", optim.clip),
            ("optim.z_loss", optim.z_loss),
            ("optim.router_aux_loss_coef", optim.router_aux_loss_coef.unwrap_or_default()),
            ("optim.router_z_loss_coef", optim.router_z_loss_coef),
            ("optim.muon.weight_decay", muon.weight_decay),
        ] {
            ensure!(value.is_finite() && value >= 0.0, "`{name}` must be 0 or more and finite, got {value}");
        }
        ensure!(
            optim.spike_factor == 0.0 || optim.spike_factor.is_finite() && optim.spike_factor > 1.0,
            "`optim.spike_factor` must be 0 (off) or above 1, got {}",
            optim.spike_factor
        );
        ensure!(
            optim.matrices != Algorithm::Muon || (1..=100).contains(&muon.iterations),
            "`optim.muon.iterations` must be from 1 to 100, got {}",
            muon.iterations
        );
        Ok(())
    }

    /// Rejects settings that `device` does not support; the message names the key.
    ///
    /// # Errors
    /// `optim.recompute` on a GPU, or `optim.precision=bf16` on a GPU without fast bf16 products.
    pub fn validate_on(&self, device: &Device) -> Result<()> {
        ensure!(
            !self.optim.recompute || ops::is_on_cpu(device),
            "`optim.recompute=true` is only supported on the CPU so far\nhint: leave it out, or use `--device cpu`"
        );
        ensure!(
            self.optim.precision == Precision::F32 || ops::is_on_cpu(device) || ops::has_fast_bf16_products(device),
            "`optim.precision=bf16` needs a GPU whose driver offers matrix instructions for bf16, and a build with \
             `--features vulkan`\nhint: leave it out, or use `--device cpu`"
        );
        Ok(())
    }

    fn validate_schedule(&self) -> Result<()> {
        let schedule = &self.schedule;
        let set = [
            ("max_steps", schedule.max_steps.map(|steps| steps as f64)),
            ("epochs", schedule.epochs),
            ("max_tokens", schedule.max_tokens.map(|tokens| tokens as f64)),
            ("tokens_per_param", schedule.tokens_per_param),
            ("max_minutes", schedule.max_minutes),
        ];
        let budgets: Vec<(&str, f64)> = set.into_iter().filter_map(|(name, budget)| Some((name, budget?))).collect();
        let [(name, budget)] = budgets[..] else {
            anyhow::bail!(
                "exactly one of `schedule.max_steps`, `schedule.epochs`, `schedule.max_tokens`, `schedule.tokens_per_param` and \
                 `schedule.max_minutes` must be set, got {}\nhint: use `--preset`, or `--set schedule.max_steps=2000`",
                budgets.len()
            );
        };
        ensure!(
            budget.is_finite() && budget > 0.0,
            "`schedule.{name}` must be above 0 and finite, got {budget}\nhint: for example `schedule.{name}=10`"
        );
        ensure!(
            schedule.epochs.is_none_or(|epochs| epochs <= MAX_EPOCHS),
            "`schedule.epochs` must be at most {MAX_EPOCHS}, got {}",
            schedule.epochs.unwrap_or_default()
        );
        ensure!(
            schedule.max_minutes.is_none() || matches!(schedule.kind, ScheduleKind::Constant | ScheduleKind::Wsd),
            "`schedule.max_minutes` requires `schedule.kind` to be `constant` or `wsd`\nhint: other learning rates depend on the \
             number of steps"
        );
        ensure!(
            schedule.max_minutes.is_none() || self.optim.decay_schedule == DecaySchedule::Constant,
            "`schedule.max_minutes` requires `optim.decay_schedule=constant`\nhint: other weight decays depend on the number of \
             steps"
        );
        ensure!(
            (0.0..=1.0).contains(&schedule.min_lr_ratio),
            "`schedule.min_lr_ratio` must be from 0 to 1, got {}",
            schedule.min_lr_ratio
        );
        ensure!(
            (0.0..=1.0).contains(&schedule.cooldown_ratio),
            "`schedule.cooldown_ratio` must be from 0 to 1, got {}",
            schedule.cooldown_ratio
        );
        ensure!(
            schedule.max_minutes.is_none() || schedule.cooldown_ratio < 1.0,
            "`schedule.cooldown_ratio` must be below 1 with `schedule.max_minutes`, got {}",
            schedule.cooldown_ratio
        );
        // The steps of other budgets depend on the data.
        schedule.max_steps.map_or(Ok(()), |max_steps| schedule.check_steps(max_steps))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use crate::config::Layers;

    #[test]
    fn invalid_setting_is_rejected_by_key_with_a_hint() {
        for (key, value) in [
            ("model.max_seq_len", "1"),
            ("data.tokens_per_step", "1000"),
            ("data.micro_batch_size", "9223372036854775807"),
            ("data.micro_batch_size", "0"),
            ("data.micro_batch_size", "auto"),
            ("model.n_layers", "0"),
            ("model.d_model", "130"),
            ("model.d_model", "12"),
            ("model.head_dim", "5"),
            ("model.rope_theta", "1"),
            ("model.d_ff", "999999999"),
            ("model.n_layers", "5000"),
            ("model.n_kv_heads", "3"),
            ("model.dropout", "1"),
            ("optim.beta2", "1.5"),
            ("optim.lr", "-1"),
            ("optim.clip", "nan"),
            ("optim.lr", "inf"),
            ("optim.eps", "nan"),
            ("objective.beta", "inf"),
            ("schedule.max_steps", "0"),
            ("schedule.epochs", "nan"),
            ("schedule.tokens_per_param", "inf"),
            ("optim.spike_factor", "0.5"),
            ("schedule.warmup_steps", "1000"),
            ("schedule.max_minutes", "3"),
            ("schedule.epochs", "1e300"),
            ("schedule.min_lr_ratio", "2"),
            ("eval.log_every", "0"),
            ("sample.temperature", "-1"),
            ("sample.top_p", "0"),
            ("checkpoint.keep", "0"),
            ("parallel.peer_timeout", "0"),
            ("parallel.replicas", "3"),
            ("parallel.replicas", "0"),
            ("parallel.sync_every", "0"),
            ("parallel.outer_lr", "0.0"),
            ("parallel.outer_momentum", "1.0"),
        ] {
            let layers = Layers {
                preset: Some("tiny".to_owned()),
                sets: vec!["model.n_heads=4".to_owned(), "model.arch=llama".to_owned(), format!("{key}={value}")],
                ..Layers::default()
            };
            let error = layers.resolve().unwrap().validate().unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")) && error.contains("\nhint: "), "{key}={value}: {error}");
        }
    }

    #[test]
    fn invalid_lora_settings_are_rejected_with_a_hint() {
        let validate = |set: &str| {
            let sets = ["model.init=model", set].map(str::to_owned).to_vec();
            let layers = Layers { preset: Some("finetune-lora".to_owned()), sets, ..Layers::default() };
            layers.resolve().unwrap().validate().map_err(|error| error.to_string())
        };
        for set in
            ["lora.r=1", "lora.r=65536", "lora.targets=[\"q_proj\", \"v_proj\"]", "lora.targets=[\"all-linear\"]"]
        {
            validate(set).unwrap();
        }
        for (set, message) in [
            ("lora.r=0", "`lora.r` must be from 1 to 65536, got 0\nhint: "),
            ("lora.r=65537", "`lora.r` must be from 1 to 65536, got 65537\nhint: "),
            ("lora.targets=[\"all-linear\", \"q_proj\"]", "got `all-linear`, `q_proj`\nhint: "),
            ("optim.matrices=muon", "`optim.matrices` must be `adamw` with `lora`\nhint: "),
            ("checkpoint.save_dtype=bf16", "`checkpoint.save_dtype` must be `f32` with `lora`\nhint: "),
        ] {
            let error = validate(set).unwrap_err();
            assert!(error.contains(message), "{set}: {error}");
        }
    }

    #[test]
    fn cooldown_that_overlaps_the_warmup_is_rejected_naming_both_settings() {
        let validate = |sets: &[&str]| {
            let sets = ["schedule.kind=wsd", "schedule.max_steps=100"].iter().chain(sets).map(|set| (*set).to_owned());
            let layers = Layers { preset: Some("tiny".to_owned()), sets: sets.collect(), ..Layers::default() };
            layers.resolve().unwrap().validate().map_err(|error| error.to_string())
        };
        validate(&["schedule.warmup_steps=30", "schedule.cooldown_ratio=0.7"]).unwrap();
        for (cooldown, told) in [("cooldown_ratio=0.8", "80"), ("cooldown_steps=71", "71")] {
            let error = validate(&["schedule.warmup_steps=30", &format!("schedule.{cooldown}")]).unwrap_err();
            let expected = format!(
                "`schedule.{cooldown}` is a cooldown of {told} steps, but `schedule.warmup_steps=30` leaves 70 of the run's 100 \
                 steps\nhint: "
            );
            assert!(error.contains(&expected), "{error}");
        }
    }
}
