//! Defaults that follow the data, so that a small set is learned too. Settings of the user are not changed, and a
//! resumed run keeps the settings with which it began.

use std::collections::BTreeSet;

use crate::{
    config::{BUDGETS, MicroBatchSize, Purpose, Resolved, Rows, SaveDtype, TrainConfig},
    objective::RowKind,
    run::schedule::{RunSize, Schedule, rows_per_step},
};

/// Number of steps per pass over a small set: a step has this fraction of the set's tokens, but at least one example
/// and at most the preset's number of tokens.
const STEPS_PER_PASS: usize = 32;

/// Minimum number of updates of a fine-tuning run: with a small set, it makes more passes than the preset.
const MIN_UPDATES: usize = 96;

/// Learning rate for training all weights on a small set, if the preset's is smaller: with 2e-5, SmolLM2-135M recalled
/// eight trained facts only at temperature 0; with 5e-5 also at temperature 1.
const LR_OF_SMALL_SETS: f64 = 5e-5;

/// Minimum number of held-out examples. With fewer, their loss says little about which model is best, and they are
/// missing in training: then none is held out.
const MIN_HELD_OUT: f64 = 8.0;

/// Items of a step that learns vectors of texts.
const ITEMS_PER_STEP: usize = 32;

/// Maximum warmup, as a fraction of a run's steps (one in this many).
const MAX_WARMUP: usize = 10;

/// The settings that may follow the data.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// The keys that the user set.
    explicit: BTreeSet<String>,
    /// The keys that a preset set which the user named.
    of_preset: BTreeSet<String>,
    /// The settings with which the run began, if it is resumed.
    earlier: Option<TrainConfig>,
}

/// The examples of a fine-tuning run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExamplesSize {
    /// Examples, or pairs.
    pub n_examples: usize,
    /// Their tokens.
    pub n_tokens: usize,
    /// Tokens of the longest one.
    pub longest: usize,
}

impl Defaults {
    /// Settings that the user did not set in `settings` may follow the data, unless the run continues one with the settings
    /// `earlier`.
    pub fn new(settings: &Resolved, earlier: Option<TrainConfig>) -> Defaults {
        Defaults { explicit: settings.explicit.clone(), of_preset: settings.of_preset.clone(), earlier }
    }

    /// Whether the user set `key`.
    pub fn is_set(&self, key: &str) -> bool {
        self.explicit.contains(key)
    }

    fn is_free(&self, key: &str) -> bool {
        self.earlier.is_none() && !self.is_set(key)
    }

    /// Copies the settings that were derived from the data from the settings with which the run began.
    pub fn keep_earlier(&self, config: &mut TrainConfig) {
        let Some(earlier) = &self.earlier else { return };
        if !self.is_set("schedule.warmup_steps") {
            config.schedule.warmup_steps = earlier.schedule.warmup_steps;
        }
        if config.purpose != Some(Purpose::Finetune) {
            return;
        }
        if !self.is_set("model.max_seq_len") {
            config.model.max_seq_len = earlier.model.max_seq_len;
        }
        if !self.is_set("data.tokens_per_step") {
            config.data.tokens_per_step = earlier.data.tokens_per_step;
        }
        if !self.is_set("data.val_fraction") {
            config.data.val_fraction = earlier.data.val_fraction;
        }
        if !self.is_set("optim.lr") && config.lora.is_none() {
            config.optim.lr = earlier.optim.lr;
        }
        if config.schedule.epochs.is_some() && !self.has_budget() {
            config.schedule.epochs = earlier.schedule.epochs.or(config.schedule.epochs);
        }
    }

    /// Makes a step one micro-batch of texts that become vectors, since these are computed together, and saves the
    /// trained weights in the precision of training.
    pub fn fit_texts(&self, config: &mut TrainConfig) {
        if !matches!(config.objective.objective().rows(), RowKind::Texts(_)) {
            return;
        }
        if !self.is_set("checkpoint.save_dtype") {
            config.checkpoint.save_dtype = SaveDtype::F32;
        }
        if let Some(earlier) = &self.earlier {
            if !self.is_set("data.micro_batch_size") {
                config.data.micro_batch_size = earlier.data.micro_batch_size;
            }
            return;
        }
        if !self.is_set("data.micro_batch_size") {
            config.data.micro_batch_size = MicroBatchSize::Rows(ITEMS_PER_STEP);
        }
        if !self.is_set("data.tokens_per_step") {
            config.data.tokens_per_step = None;
        }
    }

    fn has_budget(&self) -> bool {
        BUDGETS.iter().any(|budget| self.is_set(&format!("schedule.{budget}")))
    }

    /// Limits rows to the model's context of `context` tokens, and fits rows and steps to each other. Returns messages
    /// about settings of the user that had to be changed.
    pub fn fit_context(&self, config: &mut TrainConfig, context: usize) -> Vec<String> {
        let mut notes = Vec::new();
        let rows = config.data.micro_batch_size.rows().max(1);
        if let Some(tokens) = config.data.tokens_per_step
            && self.is_free("model.max_seq_len")
            && self.is_set("data.tokens_per_step")
        {
            config.model.max_seq_len = config.model.max_seq_len.min(tokens / rows).max(2);
        }
        let fills_context = config.model.max_seq_len >= context;
        if config.model.max_seq_len > context {
            notes.push(format!(
                "rows have {context} tokens, the model's context, instead of {}",
                config.model.max_seq_len
            ));
            config.model.max_seq_len = context;
        }
        let micro = config.micro_batch_tokens();
        if let Some(tokens) = config.data.tokens_per_step.filter(|tokens| *tokens > 0)
            && tokens.checked_rem(micro).is_some_and(|rest| rest > 0)
            && (fills_context || self.is_free("data.tokens_per_step"))
        {
            let fitting = (tokens / micro).max(1) * micro;
            if self.is_set("data.tokens_per_step") {
                notes.push(format!("a step has {fitting} tokens, a multiple of {micro}, instead of {tokens}"));
            }
            config.data.tokens_per_step = Some(fitting);
        }
        notes
    }

    /// Fits rows, steps and the share that is held out to the examples of a fine-tuning run. Returns the settings that it
    /// changed.
    pub fn fit_examples(&self, config: &mut TrainConfig, size: ExamplesSize) -> Vec<String> {
        let before = config.clone();
        let held_out = size.n_examples as f64 * config.data.val_fraction;
        // A user who sets up evaluations wants examples for them.
        let evaluates = ["eval.every", "eval.batches", "eval.patience"].iter().any(|key| self.is_set(key));
        if self.is_free("data.val_fraction") && !evaluates && held_out < MIN_HELD_OUT {
            config.data.val_fraction = 0.0;
        }
        let is_texts = matches!(config.objective.objective().rows(), RowKind::Texts(_));
        if is_texts && self.is_free("data.micro_batch_size") {
            // Otherwise a step would contain some examples twice, each a negative of itself.
            let n_trained = size.n_examples - (size.n_examples as f64 * config.data.val_fraction).round() as usize;
            let rows = config.data.micro_batch_size.rows().min(n_trained).max(1);
            config.data.micro_batch_size = MicroBatchSize::Rows(rows);
        }
        if is_texts && config.data.tokens_per_step.is_none() && self.is_free("model.max_seq_len") {
            // Rows are as long as their texts; the limit decides how much memory a run may need.
            config.model.max_seq_len = size.longest.next_multiple_of(8).clamp(2, config.model.max_seq_len);
        }
        let (rows, limit) = (config.data.micro_batch_size.rows().max(1), config.model.max_seq_len);
        if let Some(most) = config.data.tokens_per_step
            && self.is_free("data.tokens_per_step")
        {
            let is_packed =
                config.data.rows == Rows::Documents && config.objective.objective().rows() == RowKind::Sequences;
            let in_step = if is_packed {
                let tokens = (size.n_tokens / STEPS_PER_PASS).clamp(1, most);
                if self.is_free("model.max_seq_len") {
                    let len = (tokens / rows).max(size.longest.saturating_sub(1)).next_multiple_of(8);
                    config.model.max_seq_len = len.clamp(2, limit);
                }
                tokens / config.model.max_seq_len
            } else {
                (size.n_examples / STEPS_PER_PASS).min(most / limit)
            };
            config.data.tokens_per_step = Some((in_step / rows).max(1) * config.micro_batch_tokens());
        }
        changes(&before, config)
    }

    /// Fits the warmup to the steps of the run, and the passes of a fine-tuning run to the fewest updates. Returns the settings
    /// that it changed.
    pub fn fit_run(&self, config: &mut TrainConfig, size: RunSize) -> Vec<String> {
        let before = config.clone();
        if let Some(epochs) = config.schedule.epochs
            && self.earlier.is_none()
            && !self.has_budget()
            && config.purpose == Some(Purpose::Finetune)
        {
            let rows = (MIN_UPDATES * rows_per_step(config)) as f64;
            let fewest = (rows / size.rows_per_epoch.max(1) as f64).ceil();
            if fewest > epochs {
                config.schedule.epochs = Some(fewest);
                let is_default = self.is_free("optim.lr") && !self.of_preset.contains("optim.lr");
                if config.lora.is_none() && config.objective.objective().rows() == RowKind::Sequences && is_default {
                    config.optim.lr = config.optim.lr.max(LR_OF_SMALL_SETS);
                }
            }
        }
        let mut changed = changes(&before, config);
        changed.extend(self.fit_warmup(config, Schedule::new(config, size).total()));
        changed
    }

    /// Fits the warmup to a run of `total` steps, if they are known. Returns the setting if it changed.
    pub fn fit_warmup(&self, config: &mut TrainConfig, total: Option<usize>) -> Vec<String> {
        let before = config.clone();
        if let Some(total) = total
            && self.is_free("schedule.warmup_steps")
            && !self.keeps_warmup_of_preset(config, total)
        {
            config.schedule.warmup_steps = config.schedule.warmup_steps.min(total / MAX_WARMUP);
        }
        changes(&before, config)
    }

    /// Whether the warmup comes from a pretraining preset that the user named, and fits the run.
    fn keeps_warmup_of_preset(&self, config: &TrainConfig, total: usize) -> bool {
        config.purpose != Some(Purpose::Finetune)
            && self.of_preset.contains("schedule.warmup_steps")
            && config.schedule.check_steps(total).is_ok()
    }
}

/// The settings that may follow the data, where `now` has another value than `before`.
fn changes(before: &TrainConfig, now: &TrainConfig) -> Vec<String> {
    let shown = |config: &TrainConfig| {
        [
            ("model.max_seq_len", config.model.max_seq_len.to_string()),
            ("data.micro_batch_size", config.data.micro_batch_size.to_string()),
            ("data.tokens_per_step", config.data.tokens_per_step.unwrap_or_default().to_string()),
            ("data.val_fraction", config.data.val_fraction.to_string()),
            ("schedule.epochs", config.schedule.epochs.unwrap_or_default().to_string()),
            ("schedule.warmup_steps", config.schedule.warmup_steps.to_string()),
            ("optim.lr", config.optim.lr.to_string()),
        ]
    };
    let pairs = shown(before).into_iter().zip(shown(now));
    pairs.filter(|(before, now)| before != now).map(|(_, (key, value))| format!("`{key}={value}`")).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::Layers;

    fn resolved(sets: &[&str]) -> (TrainConfig, Defaults) {
        let layers = Layers {
            purpose: Some(Purpose::Finetune),
            default_preset: Some("finetune".to_owned()),
            sets: sets.iter().map(|set| (*set).to_owned()).collect(),
            ..Layers::default()
        };
        let settings = layers.resolve_all().unwrap();
        let defaults = Defaults::new(&settings, None);
        (settings.config, defaults)
    }

    /// Rows, tokens of a step and the share held out, for examples of 75 tokens.
    fn fitted(n_examples: usize, sets: &[&str]) -> (usize, usize, f64) {
        let (mut config, defaults) = resolved(sets);
        defaults.fit_context(&mut config, 2048);
        let size = ExamplesSize { n_examples, n_tokens: 75 * n_examples, longest: 90 };
        defaults.fit_examples(&mut config, size);
        config.validate_for(Purpose::Finetune).unwrap();
        (config.model.max_seq_len, config.data.tokens_per_step.unwrap(), config.data.val_fraction)
    }

    #[test]
    fn rows_and_steps_of_finetune_follow_the_number_of_examples() {
        assert_eq!(fitted(8, &[]), (96, 96, 0.0));
        assert_eq!(fitted(40, &[]), (96, 96, 0.0));
        assert_eq!(fitted(200, &[]), (472, 472, 0.05));
        assert_eq!(fitted(1000, &[]), (1024, 2048, 0.05));
        assert_eq!(fitted(100_000, &[]), (1024, 4096, 0.05), "the preset's");
        assert_eq!(fitted(8, &["data.micro_batch_size=4"]), (96, 384, 0.0));
        assert_eq!(fitted(8, &["data.rows=unpacked"]), (1024, 1024, 0.0));
        assert_eq!(fitted(128, &["objective.kind=dpo"]), (1024, 4096, 0.0));
    }

    #[test]
    fn what_the_user_set_does_not_follow_the_data() {
        assert_eq!(fitted(8, &["data.tokens_per_step=1024"]), (1024, 1024, 0.0));
        assert_eq!(fitted(8, &["data.tokens_per_step=192"]), (192, 192, 0.0));
        assert_eq!(fitted(8, &["model.max_seq_len=80"]), (80, 80, 0.0));
        assert_eq!(fitted(8, &["data.val_fraction=0.1"]).2, 0.1);
        assert_eq!(fitted(8, &["eval.every=5"]).2, 0.05, "who asks for evaluations gets them");
    }

    #[test]
    fn small_sets_get_more_passes_and_a_warmup_of_a_tenth_unless_both_are_set() {
        let run = |rows: u64, sets: &[&str]| {
            let (mut config, defaults) = resolved(&[&["data.tokens_per_step=1024"], sets].concat());
            let size = RunSize { n_params: 1, rows_per_epoch: rows, tokens_per_epoch: 1024 * rows };
            defaults.fit_run(&mut config, size);
            (config.schedule.epochs, config.schedule.warmup_steps)
        };
        assert_eq!(run(8, &[]), (Some(12.0), 9));
        assert_eq!(run(32, &[]), (Some(3.0), 9));
        assert_eq!(run(1000, &[]), (Some(3.0), 10));
        assert_eq!(run(8, &["schedule.epochs=3"]), (Some(3.0), 2));
        assert_eq!(run(8, &["schedule.max_steps=5"]), (None, 0));
        assert_eq!(run(8, &["schedule.epochs=3", "schedule.warmup_steps=10"]), (Some(3.0), 10));
    }

    #[test]
    fn learning_rate_of_all_weights_is_higher_for_a_small_set() {
        let lr = |n_examples: u64, sets: &[&str]| {
            let (mut config, defaults) = resolved(sets);
            let size = RunSize { n_params: 1, rows_per_epoch: n_examples, tokens_per_epoch: 100 * n_examples };
            config.data.tokens_per_step = Some(config.micro_batch_tokens());
            defaults.fit_run(&mut config, size);
            config.optim.lr
        };
        let of_preset = lr(1000, &[]);
        assert!(of_preset < LR_OF_SMALL_SETS);
        assert_eq!(lr(8, &[]), LR_OF_SMALL_SETS);
        assert_eq!(lr(8, &["optim.lr=1e-5"]), 1e-5);
        assert_eq!(lr(8, &["schedule.epochs=3"]), of_preset);
        assert_eq!(lr(8, &["objective.kind=dpo"]), lr(1000, &["objective.kind=dpo"]));
    }

    #[test]
    fn warmup_of_a_named_preset_stays_where_it_fits_and_the_default_one_is_a_tenth() {
        let warmup = |preset: Option<&str>, steps: usize| {
            let layers = Layers {
                purpose: Some(Purpose::Pretrain),
                preset: preset.map(str::to_owned),
                sets: vec![format!("schedule.max_steps={steps}")],
                ..Layers::default()
            };
            let mut settings = layers.resolve_all().unwrap();
            let size = RunSize { n_params: 1, rows_per_epoch: 10, tokens_per_epoch: 100 };
            Defaults::new(&settings, None).fit_run(&mut settings.config, size);
            settings.config.schedule.warmup_steps
        };
        assert_eq!([5, 10, 15, 1000].map(|steps| warmup(Some("tiny"), steps)), [0, 10, 10, 10]);
        assert_eq!([5, 10, 150, 5000].map(|steps| warmup(None, steps)), [0, 1, 15, 100]);
    }

    #[test]
    fn run_that_goes_on_keeps_what_the_data_decided_when_it_began() {
        let (config, _) = resolved(&[]);
        let mut earlier = config.clone();
        (earlier.model.max_seq_len, earlier.data.tokens_per_step, earlier.data.val_fraction) = (96, Some(96), 0.0);
        (earlier.schedule.epochs, earlier.schedule.warmup_steps) = (Some(12.0), 9);
        let (mut now, defaults) = resolved(&[]);
        let defaults = Defaults { earlier: Some(earlier.clone()), ..defaults };
        defaults.keep_earlier(&mut now);
        assert_eq!(now, earlier);
        let size = RunSize { n_params: 1, rows_per_epoch: 500, tokens_per_epoch: 500 };
        assert!(defaults.fit_run(&mut now, size).is_empty());
        let more = ExamplesSize { n_examples: 9, n_tokens: 9000, longest: 90 };
        assert!(defaults.fit_examples(&mut now, more).is_empty() && now == earlier);
    }
}
