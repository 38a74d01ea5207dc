//! When settings have an effect: one table, by which a setting without effect is rejected where it is set, and left out
//! of `config.toml`.

use toml::{Table, Value};

use super::{Algorithm, OptimSettings, Purpose, ScheduleKind, ScheduleSettings, TrainConfig};
use crate::objective::{ObjectiveKind, RowKind};

/// Settings that have an effect only under a condition.
struct Rule {
    /// Keys of the settings; a key that ends in `.` covers a whole section.
    keys: &'static [&'static str],
    when: When,
}

enum When {
    /// For these commands.
    Commands(&'static [Purpose]),
    /// With other settings, described by a text that completes the words "is for".
    Settings(&'static str, fn(&TrainConfig) -> bool),
}

use Purpose::{Bench, Finetune, Pretrain, Quickstart, Sample};

/// The commands that train a model and save it.
const RUNS: &[Purpose] = &[Quickstart, Pretrain, Finetune];

const RULES: &[Rule] = &[
    Rule { keys: &["data.path"], when: When::Commands(&[Pretrain]) },
    Rule { keys: &["data.vocab_size"], when: When::Commands(&[Quickstart]) },
    Rule {
        keys: &["data.val_fraction"],
        when: When::Settings(
            "`quickstart` and `finetune`, not for `pretrain` without `objective.kind=seq2seq`",
            |config| matches!(config.purpose, Some(Quickstart | Finetune)) || reads_records(config),
        ),
    },
    Rule {
        keys: &["data.too_long"],
        when: When::Settings("`finetune`, not for `pretrain` without `objective.kind=seq2seq`", |config| {
            config.purpose == Some(Finetune) || reads_records(config)
        }),
    },
    Rule {
        keys: &["data.rows", "objective.", "schedule.", "eval.", "checkpoint.", "parallel."],
        when: When::Commands(RUNS),
    },
    Rule { keys: &["sample.every", "sample.prompt"], when: When::Commands(RUNS) },
    Rule { keys: &["sample."], when: When::Commands(&[Quickstart, Pretrain, Finetune, Sample]) },
    Rule {
        keys: &["model.", "data.", "lora.", "optim."],
        when: When::Commands(&[Quickstart, Pretrain, Finetune, Bench]),
    },
    Rule {
        keys: &[
            "model.arch",
            "model.n_layers",
            "model.n_heads",
            "model.n_kv_heads",
            "model.head_dim",
            "model.d_model",
            "model.d_ff",
            "model.n_experts",
            "model.n_active_experts",
            "model.expert_d_ff",
            "model.rope_theta",
            "model.tie_embeddings",
            "model.zero_init_outputs",
            "model.embedding_std",
            "objective.mtp",
        ],
        when: When::Settings("fresh models, and this run begins with a model that has its own", |config| {
            config.model.init.is_none() && config.purpose != Some(Finetune)
        }),
    },
    Rule {
        keys: &["model.n_active_experts", "model.expert_d_ff"],
        when: When::Settings("`model.n_experts` above 0", |config| config.model.n_experts > 0),
    },
    Rule {
        keys: &["optim.router_aux_loss_coef", "optim.router_z_loss_coef"],
        when: When::Settings("mixtures of experts (`model.n_experts` above 0, or a model that has some)", |config| {
            let is_fresh = config.model.init.is_none() && config.purpose != Some(Finetune);
            config.model.n_experts > 0 || !is_fresh
        }),
    },
    Rule {
        keys: &["data.rows"],
        when: When::Settings(
            "`objective.kind=next-token` and `mlm`; with others, each answer, text or target is a row",
            |config| config.objective.objective().rows() == RowKind::Sequences,
        ),
    },
    Rule {
        keys: &["objective.beta"],
        when: When::Settings("`objective.kind=dpo`", |config| config.objective.objective().uses_setting("beta")),
    },
    Rule {
        keys: &["objective.mtp"],
        when: When::Settings("`objective.kind=next-token`", |config| config.objective.objective().uses_setting("mtp")),
    },
    Rule {
        keys: &["objective.mask_ratio", "objective.whole_words"],
        when: When::Settings("`objective.kind=mlm`", |config| config.objective.objective().uses_setting("mask_ratio")),
    },
    Rule {
        keys: &["objective.pooling"],
        when: When::Settings("`objective.kind=contrastive` and `classify`", |config| {
            config.objective.objective().uses_setting("pooling")
        }),
    },
    Rule {
        keys: &["objective.negatives", "objective.margins"],
        when: When::Settings("`objective.kind=contrastive`", |config| {
            config.objective.objective().uses_setting("negatives")
        }),
    },
    Rule {
        keys: &["objective.temperature"],
        when: When::Settings("`objective.kind=contrastive` without margins", |config| {
            config.objective.objective().uses_setting("temperature")
        }),
    },
    Rule {
        keys: &["sample."],
        when: When::Settings("models that write text, not encoders", |config| !config.objective.kind.is_for_encoders()),
    },
    Rule {
        keys: &["objective.label_smoothing", "seq2seq."],
        when: When::Settings("`objective.kind=seq2seq`", |config| config.objective.kind == ObjectiveKind::Seq2Seq),
    },
    Rule {
        keys: &["data.tokenizer"],
        when: When::Settings("`pretrain` with `objective.kind=seq2seq`; prepared data have a tokenizer", reads_records),
    },
    Rule {
        keys: &["optim.muon."],
        when: When::Settings("`optim.matrices=muon`", |config| config.optim.matrices == Algorithm::Muon),
    },
    Rule {
        keys: &["optim.muon.momentum_start"],
        when: When::Settings("`optim.muon.momentum_warmup_steps` above 0", |config| {
            config.optim.muon.momentum_warmup_steps > 0
        }),
    },
    Rule {
        keys: &["optim.decay_schedule"],
        when: When::Settings("a weight decay above 0 (`optim.weight_decay`)", |config| {
            let OptimSettings { matrices, weight_decay, ref muon, .. } = config.optim;
            weight_decay > 0.0 || matrices == Algorithm::Muon && muon.weight_decay > 0.0
        }),
    },
    Rule {
        keys: &["schedule.cooldown_ratio", "schedule.cooldown_steps"],
        when: When::Settings("`schedule.kind=wsd`", |config| config.schedule.kind == ScheduleKind::Wsd),
    },
    Rule {
        keys: &["parallel.sync_every", "parallel.outer_lr", "parallel.outer_momentum"],
        when: When::Settings("`parallel.replicas` above 1", |config| config.parallel.replicas > 1),
    },
    Rule {
        keys: &["schedule.cooldown_ratio"],
        when: When::Settings("runs without `schedule.cooldown_steps`", |config| {
            config.schedule.cooldown_steps.is_none()
        }),
    },
    Rule {
        keys: &["schedule.min_lr_ratio"],
        when: When::Settings(
            "a learning rate that falls (`schedule.kind` `linear`, `cosine`, or `wsd` with a cooldown)",
            |config| {
                let ScheduleSettings { kind, cooldown_ratio, cooldown_steps, .. } = config.schedule;
                match kind {
                    ScheduleKind::Constant => false,
                    ScheduleKind::Wsd => cooldown_steps.map_or(cooldown_ratio > 0.0, |steps| steps > 0),
                    ScheduleKind::Linear | ScheduleKind::Cosine => true,
                }
            },
        ),
    },
    Rule {
        keys: &["sample.prompt", "sample.max_tokens", "sample.temperature", "sample.top_k", "sample.top_p"],
        when: When::Settings("samples, and this run makes none (`sample.every=0`)", |config| {
            config.sample.every > 0 || config.purpose == Some(Sample)
        }),
    },
    Rule {
        keys: &["seed"],
        when: When::Settings("a `sample.temperature` above 0", |config| {
            config.purpose != Some(Sample) || config.sample.temperature > 0.0
        }),
    },
    Rule {
        keys: &["sample.top_k", "sample.top_p"],
        when: When::Settings("a `sample.temperature` above 0", |config| config.sample.temperature > 0.0),
    },
];

/// Whether `pretrain` reads records, not prepared data.
fn reads_records(config: &TrainConfig) -> bool {
    config.purpose == Some(Pretrain) && config.objective.kind == ObjectiveKind::Seq2Seq
}

impl Rule {
    fn covers(&self, key: &str) -> bool {
        self.keys.iter().any(|own| *own == key || own.ends_with('.') && key.starts_with(own))
    }

    /// Why the rule's settings have no effect in `config`, which is for `purpose`; completes the words "is for". `None`
    /// if they have an effect.
    fn violated(&self, config: &TrainConfig, purpose: Purpose) -> Option<String> {
        match &self.when {
            When::Settings(what, holds) => (!holds(config)).then(|| (*what).to_owned()),
            When::Commands(commands) if commands.contains(&purpose) => None,
            When::Commands(commands) => {
                let names: Vec<_> = commands.iter().map(|command| format!("`{}`", command.command())).collect();
                let (last, others) = names.split_last()?;
                let names = if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) };
                Some(format!("{names}, not for `{}`", purpose.command()))
            }
        }
    }
}

/// Why the setting `key` has no effect in `config`, such as "`optim.matrices=muon`"; completes the words "is for".
/// `None` if it has an effect, or if the command is not known.
pub(super) fn without_effect(config: &TrainConfig, key: &str) -> Option<String> {
    let purpose = config.purpose?;
    RULES.iter().filter(|rule| rule.covers(key)).find_map(|rule| rule.violated(config, purpose))
}

/// Removes the settings from `table` that have no effect in `config`, and returns their keys with the reasons.
pub(super) fn remove_without_effect(table: &mut Table, config: &TrainConfig) -> Vec<(String, String)> {
    fn below(prefix: &str, table: &mut Table, config: &TrainConfig, removed: &mut Vec<(String, String)>) {
        table.retain(|name, value| {
            let key = format!("{prefix}{name}");
            if let Value::Table(section) = value {
                let was_empty = section.is_empty();
                below(&format!("{key}."), section, config, removed);
                // `[lora]` alone has a meaning.
                return was_empty || !section.is_empty();
            }
            let reason = without_effect(config, &key);
            let stays = reason.is_none();
            removed.extend(reason.map(|reason| (key, reason)));
            stays
        });
    }
    let mut removed = Vec::new();
    below("", table, config, &mut removed);
    removed
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::{fs, path::Path};

    use super::*;
    use crate::config::{Layers, Resolved, known_keys};

    fn layers(purpose: Purpose, sets: &[&str]) -> Layers {
        let preset = if purpose == Finetune { "finetune" } else { "tiny" };
        Layers {
            default_preset: Some(preset.to_owned()),
            sets: sets.iter().map(|set| (*set).to_owned()).collect(),
            purpose: Some(purpose),
            ..Layers::default()
        }
    }

    /// A command, other settings, a setting that has no effect with them, and the condition in the message.
    const CASES: [(Purpose, &[&str], &str, &str); 32] = [
        (Pretrain, &["model.init=m"], "model.n_layers=2", "fresh models"),
        (Pretrain, &["model.init=m"], "objective.mtp=0.3", "fresh models"),
        (Pretrain, &["model.init=m"], "model.arch=\"llama\"", "fresh models"),
        (Quickstart, &["model.init=m"], "model.embedding_std=0.1", "fresh models"),
        (Finetune, &[], "model.tie_embeddings=true", "fresh models"),
        (Pretrain, &["model.arch=qwen3"], "model.expert_d_ff=8", "`model.n_experts` above 0"),
        (Pretrain, &[], "optim.router_aux_loss_coef=0.01", "mixtures of experts"),
        (Pretrain, &[], "optim.muon.lr=0.01", "`optim.matrices=muon`"),
        (
            Pretrain,
            &["optim.matrices=muon", "optim.muon.momentum_warmup_steps=0"],
            "optim.muon.momentum_start=0.5",
            "`optim.muon.momentum_warmup_steps` above 0",
        ),
        (Pretrain, &["optim.weight_decay=0"], "optim.decay_schedule=linear", "a weight decay above 0"),
        (Pretrain, &["schedule.kind=cosine"], "schedule.cooldown_ratio=0.3", "`schedule.kind=wsd`"),
        // Also where the value is the default.
        (Pretrain, &["schedule.kind=cosine"], "schedule.cooldown_ratio=0.2", "`schedule.kind=wsd`"),
        (Pretrain, &["schedule.kind=linear"], "schedule.cooldown_steps=3", "`schedule.kind=wsd`"),
        (Pretrain, &["schedule.kind=constant"], "schedule.min_lr_ratio=0.5", "a learning rate that falls"),
        (
            Pretrain,
            &["schedule.kind=wsd", "schedule.cooldown_steps=0"],
            "schedule.min_lr_ratio=0.5",
            "a learning rate that falls",
        ),
        (Pretrain, &["sample.every=0"], "sample.prompt=x", "samples, and this run makes none"),
        (Pretrain, &["sample.temperature=0"], "sample.top_k=5", "a `sample.temperature` above 0"),
        (Pretrain, &[], "objective.beta=0.1", "`objective.kind=dpo`"),
        (Pretrain, &[], "objective.mask_ratio=0.2", "`objective.kind=mlm`"),
        (Pretrain, &["objective.kind=mlm"], "sample.every=5", "models that write text"),
        (Finetune, &[], "objective.temperature=0.1", "`objective.kind=contrastive`"),
        (Pretrain, &[], "objective.label_smoothing=0.1", "`objective.kind=seq2seq`"),
        (Finetune, &[], "seq2seq.source_prefix=x", "`objective.kind=seq2seq`"),
        (Finetune, &["objective.kind=seq2seq"], "data.tokenizer=a", "`pretrain` with"),
        (Finetune, &["objective.kind=dpo"], "data.rows=unpacked", "`objective.kind=next-token`"),
        (Pretrain, &[], "data.val_fraction=0.1", "`quickstart` and `finetune`, not for `pretrain`"),
        (Pretrain, &[], "data.too_long=refuse", "`finetune`, not for `pretrain`"),
        (Finetune, &[], "data.vocab_size=300", "`quickstart`, not for `finetune`"),
        (Finetune, &[], "data.path=a", "`pretrain`, not for `finetune`"),
        (Sample, &[], "optim.lr=1", "not for `sample`"),
        (Sample, &["sample.temperature=0"], "seed=2", "a `sample.temperature` above 0"),
        (Bench, &[], "schedule.max_steps=3", "not for `bench`"),
    ];

    #[test]
    fn setting_without_effect_is_refused_naming_it_its_layer_and_what_it_is_for() {
        let dir = tempfile::tempdir().unwrap();
        for (number, (purpose, others, set, condition)) in CASES.into_iter().enumerate() {
            layers(purpose, others).resolve().unwrap();
            let key = set.split('=').next().unwrap();
            let error = layers(purpose, &[others, &[set]].concat()).resolve().unwrap_err().to_string();
            let expected = format!("`--set {set}`: `{key}=");
            assert!(error.starts_with(&expected) && error.contains("` has no effect: it is for "), "{set}: {error}");
            assert!(error.contains(condition), "{set}: {error}");
            assert!(error.contains("\nhint: leave it out"), "{error}");
            // The same in a file, of a run's settings.
            if !RUNS.contains(&purpose) {
                continue;
            }
            let file = dir.path().join(format!("{number}.toml"));
            let quoted = |set: &&str| {
                let (key, value) = set.split_once('=').unwrap();
                let is_toml = toml::from_str::<Table>(&format!("v = {value}")).is_ok();
                if is_toml { format!("{key} = {value}\n") } else { format!("{key} = {value:?}\n") }
            };
            fs::write(&file, [others, &[set]].concat().iter().map(quoted).collect::<String>()).unwrap();
            let with_file = Layers { preset: Some("tiny".to_owned()), file: Some(file), ..layers(purpose, &[]) };
            let with_file = if purpose == Finetune { Layers { preset: None, ..with_file } } else { with_file };
            let error = with_file.resolve().unwrap_err().to_string();
            assert!(error.contains(&format!("{number}.toml`: `{key}=")) && error.contains(condition), "{error}");
        }
        let preset = Layers { preset: Some("tiny".to_owned()), ..layers(Finetune, &[]) };
        let error = preset.resolve().unwrap_err().to_string();
        assert!(error.starts_with("preset `tiny`: `model."), "{error}");
    }

    #[test]
    fn setting_that_a_later_layer_makes_idle_is_reported_once_and_left_out() {
        let layers = Layers {
            preset: Some("shakespeare-fast".to_owned()),
            ..layers(Pretrain, &["optim.matrices=adamw", "schedule.kind=cosine"])
        };
        let Resolved { config, notes, .. } = layers.resolve_all().unwrap();
        assert_eq!(config.optim.muon, crate::config::MuonSettings::default());
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(
            notes[0].starts_with("preset `shakespeare-fast`: not used here: `optim.muon.lr`, ")
                && notes[0].ends_with(" (for `optim.matrices=muon`)"),
            "{notes:?}"
        );
        let text = config.to_toml().unwrap();
        assert!(!text.contains("muon") && !text.contains("cooldown"), "{text}");
        // And one that a later layer gives an effect counts.
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mine.toml");
        fs::write(&file, "[schedule]\nmax_steps = 50\ncooldown_ratio = 0.3\n").unwrap();
        let config = Layers { file: Some(file), ..self::layers(Pretrain, &["schedule.kind=wsd"]) }.resolve().unwrap();
        assert_eq!(config.schedule.cooldown_ratio, 0.3);
    }

    #[test]
    fn config_toml_has_only_settings_with_an_effect_and_reads_back_equal() {
        let arguments = vec![("MODEL", "model.init", "model".into())];
        let tuning = |sets| Layers { arguments: arguments.clone(), ..layers(Finetune, sets) };
        let tuned = tuning(&[]).resolve().unwrap();
        let text = tuned.to_toml().unwrap();
        for absent in ["arch", "n_layers", "muon", "cooldown", "beta =", "prompt", "temperature"] {
            assert!(!text.contains(absent), "{absent} of {text}");
        }
        let read = TrainConfig::from_toml(&text).unwrap();
        assert_eq!(TrainConfig { purpose: Some(Finetune), ..read }, tuned);
        assert_eq!(tuned.model.init.as_deref(), Some(Path::new("model")));
        let error = tuning(&["model.init=other"]).resolve().unwrap_err().to_string();
        assert!(error.starts_with("`--set model.init=other` and `MODEL` set the same\nhint: "), "{error}");
        // A file as a run of an earlier version wrote it, with all settings, stays a `--config`.
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        let earlier = layers(Pretrain, &[]).resolve().unwrap();
        fs::write(&file, toml::to_string(&earlier).unwrap()).unwrap();
        let again = Layers { file: Some(file), default_preset: None, ..layers(Pretrain, &[]) };
        assert_eq!(again.resolve().unwrap(), earlier);
    }

    #[test]
    fn every_key_of_a_rule_is_a_setting() {
        let keys = known_keys();
        for key in RULES.iter().flat_map(|rule| rule.keys) {
            assert!(keys.iter().any(|known| known == key || key.ends_with('.') && known.starts_with(key)), "{key}");
        }
    }
}
