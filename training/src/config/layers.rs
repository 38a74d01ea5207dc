//! Layers of TOML that make up one configuration: defaults, then a preset, then a file, then `--set`. Each layer is
//! checked separately, so that an error names the source of the key.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use toml::{Table, Value};

use super::{
    LoraSettings, Preset, Purpose, TrainConfig,
    effective::{remove_without_effect, without_effect},
    keys::{deserialize, dotted_keys, hint_of_unknown, nested, remove, unknown_field, value_at},
    value_error::of_type,
};

/// Budgets in `schedule`: a layer that sets one of these keys replaces what earlier layers set.
pub(crate) const BUDGETS: [&str; 5] = ["max_steps", "epochs", "max_tokens", "tokens_per_param", "max_minutes"];

/// Lengths of the cooldown in `schedule`, handled like [`BUDGETS`].
const COOLDOWNS: [&str; 2] = ["cooldown_ratio", "cooldown_steps"];

/// Groups of keys of `schedule`; a layer may set at most one key of a group.
const GROUPS: [&[&str]; 2] = [&BUDGETS, &COOLDOWNS];

/// The sources of settings, in order.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// The command that uses the settings; `None`: any.
    pub purpose: Option<Purpose>,
    /// A resolved configuration to start from, instead of the defaults.
    pub base: Option<TrainConfig>,
    /// The preset that the command uses if the user gives neither a preset nor a file, and there is no base.
    pub default_preset: Option<String>,
    /// The name of a preset.
    pub preset: Option<String>,
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// Paths that arguments of the command set, such as `--data`: argument, key and path.
    pub arguments: Vec<(&'static str, &'static str, PathBuf)>,
    /// `dotted.key=value`, all of them one layer; the last value of a key counts.
    pub sets: Vec<String>,
}

/// The settings that [`Layers`] result in.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The settings.
    pub config: TrainConfig,
    /// The keys that a file, an argument or `--set` has set. Nothing else may change these.
    pub explicit: BTreeSet<String>,
    /// The keys that a preset named by the user has set.
    pub of_preset: BTreeSet<String>,
    /// Messages: settings of a preset or file that a later layer has made idle.
    pub notes: Vec<String>,
}

/// One source of settings.
struct Layer {
    /// As messages name it.
    source: String,
    table: Table,
    origin: Origin,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Not given by the user: the base, or the command's own preset.
    Command,
    Preset,
    File,
    /// The command line.
    Given,
}

impl Layers {
    /// As [`resolve_all`](Self::resolve_all); the settings alone.
    ///
    /// # Errors
    /// The same.
    pub fn resolve(&self) -> Result<TrainConfig> {
        Ok(self.resolve_all()?.config)
    }

    /// Merges the layers. Rejects unknown keys, with the nearest known one, and settings without effect, naming the layer.
    ///
    /// # Errors
    /// The layer and the key. Values are checked by [`TrainConfig::validate`].
    pub fn resolve_all(&self) -> Result<Resolved> {
        let mut merged = match &self.base {
            Some(config) => config.to_table()?,
            None => Table::new(),
        };
        let defaults = TrainConfig::default().to_table()?;
        let of_base = dotted_keys(&merged).into_iter().filter(|key| value_at(&merged, key) != value_at(&defaults, key));
        let mut sources: BTreeMap<_, _> = of_base.map(|key| (key, "the run's `config.toml`".to_owned())).collect();
        let (mut explicit, mut of_preset) = (BTreeSet::new(), BTreeSet::new());
        let mut idle = Vec::new();
        for Layer { source, table, origin } in self.before_sets()? {
            let keys = dotted_keys(&table);
            put(&mut merged, table, &source)?;
            if origin != Origin::Command {
                let of_layer = keys.iter().map(|key| (key.clone(), source.clone()));
                idle.extend(self.idle(&merged, of_layer.collect(), origin)?);
                let set = if origin == Origin::Preset { &mut of_preset } else { &mut explicit };
                set.extend(keys.iter().cloned());
                sources.extend(keys.into_iter().map(|key| (key, source.clone())));
            }
        }
        let mut given = Table::new();
        let mut set_by = Vec::new();
        for set in &self.sets {
            let (table, source) = (table_of_set(set)?, format!("`--set {set}`"));
            let keys = dotted_keys(&table);
            put(&mut merged, table.clone(), &source)?;
            merge(&mut given, table);
            for (argument, key, _) in &self.arguments {
                ensure!(
                    keys.iter().all(|set| set != key),
                    "{source} and `{argument}` set the same\nhint: leave out one of them"
                );
            }
            sources.extend(keys.iter().map(|key| (key.clone(), source.clone())));
            set_by.extend(keys.into_iter().map(|key| (key, source.clone())));
        }
        refuse_contradictions(&given, "`--set`")?;
        explicit.extend(set_by.iter().map(|(key, _)| key.clone()));
        idle.extend(set_by);
        self.refuse(&merged, idle)?;
        let recomputes = merged.get("optim").is_some_and(|optim| optim.get("recompute").is_some());
        let (mut config, notes) = self.without_idle(merged, &sources)?;
        if !recomputes {
            config.optim.recompute = config.lora.as_ref().is_some_and(LoraSettings::rounds_base);
        }
        Ok(Resolved { config, explicit, of_preset, notes })
    }

    /// The layers before `--set`.
    fn before_sets(&self) -> Result<Vec<Layer>> {
        let mut layers = Vec::new();
        let is_bare = self.base.is_none() && self.preset.is_none() && self.file.is_none();
        let own = self.default_preset.as_ref().filter(|_| is_bare).map(|name| (name, Origin::Command));
        for (name, origin) in own.into_iter().chain(self.preset.as_ref().map(|name| (name, Origin::Preset))) {
            layers.push(Layer { source: format!("preset `{name}`"), table: Preset::named(name)?.table()?, origin });
        }
        if let Some(path) = &self.file {
            let table = self.table_of_file(path)?;
            layers.push(Layer { source: format!("`{}`", path.display()), table, origin: Origin::File });
        }
        for (argument, key, path) in &self.arguments {
            let table = nested(key, path_value(path)?);
            layers.push(Layer { source: format!("`{argument}`"), table, origin: Origin::Given });
        }
        Ok(layers)
    }

    fn table_of_file(&self, path: &Path) -> Result<Table> {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| {
            format!(
                "cannot read the configuration `{shown}`\nhint: give a TOML file, such as the `config.toml` of a run"
            )
        })?;
        let mut table: Table = toml::from_str(&text).map_err(|error| {
            let error = error.to_string();
            anyhow!("`{shown}` is not TOML: {}\nhint: the `config.toml` of a run is an example", error.trim_end())
        })?;
        // Earlier versions wrote every setting that has a default to the `config.toml` of a run, used or not.
        let defaults = TrainConfig::default().to_table()?;
        if dotted_keys(&defaults).iter().all(|key| value_at(&table, key).is_some())
            && let Ok(config) = deserialize(table.clone())
        {
            let idle = remove_without_effect(&mut defaults.clone(), &TrainConfig { purpose: self.purpose, ..config });
            for (key, _) in idle {
                if value_at(&table, &key) == value_at(&defaults, &key) {
                    remove(&mut table, &key);
                }
            }
        }
        Ok(table)
    }

    /// The settings of a layer, with their sources, that have no effect with this layer and the layers below it. In
    /// commands that are not runs, only settings on the command line count as meant for the command.
    fn idle(&self, merged: &Table, settings: Vec<(String, String)>, origin: Origin) -> Result<Vec<(String, String)>> {
        if origin != Origin::Given && self.purpose.is_some_and(|purpose| !purpose.is_run()) {
            return Ok(Vec::new());
        }
        let config = TrainConfig { purpose: self.purpose, ..typed(merged.clone())? };
        Ok(settings.into_iter().filter(|(key, _)| without_effect(&config, key).is_some()).collect())
    }

    /// Rejects `settings` that have no effect after all layers.
    fn refuse(&self, merged: &Table, settings: Vec<(String, String)>) -> Result<()> {
        let config = TrainConfig { purpose: self.purpose, ..typed(merged.clone())? };
        for (key, source) in settings {
            // A later layer may have replaced it by another budget or cooldown.
            let Some(value) = value_at(merged, &key) else { continue };
            if let Some(reason) = without_effect(&config, &key) {
                bail!("{source}: `{key}={value}` has no effect: it is for {reason}\nhint: leave it out");
            }
        }
        Ok(())
    }

    /// The configuration without the settings that have no effect, so that it equals the one that is read back from
    /// `config.toml`; and a message for each source and reason.
    fn without_idle(
        &self,
        mut merged: Table,
        sources: &BTreeMap<String, String>,
    ) -> Result<(TrainConfig, Vec<String>)> {
        let config = TrainConfig { purpose: self.purpose, ..typed(merged.clone())? };
        if !self.purpose.is_none_or(Purpose::is_run) {
            return Ok((config, Vec::new()));
        }
        let mut told: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
        for (key, reason) in remove_without_effect(&mut merged, &config) {
            // No message for sample settings if samples are off: that is expected.
            if let Some(source) = sources.get(&key).filter(|_| !key.starts_with("sample.")) {
                told.entry((source, reason)).or_default().push(format!("`{key}`"));
            }
        }
        let note = |((source, reason), keys): ((&str, String), Vec<String>)| {
            format!("{source}: not used here: {} (for {reason})", keys.join(", "))
        };
        let notes = told.into_iter().map(note).collect();
        Ok((TrainConfig { purpose: self.purpose, ..typed(merged)? }, notes))
    }
}

/// A path as a TOML value.
fn path_value(path: &Path) -> Result<Value> {
    let text = path.to_str().with_context(|| format!("the path `{}` is not UTF-8\nhint: rename it", path.display()))?;
    Ok(Value::String(text.to_owned()))
}

/// The settings in a table; the message names the key that has another type.
fn typed(table: Table) -> Result<TrainConfig> {
    deserialize(table).map_err(|error| anyhow!(of_type(&error)))
}

impl TrainConfig {
    /// The resolved configuration as TOML, without settings that have no effect.
    pub fn to_toml(&self) -> Result<String> {
        let mut table = self.to_table()?;
        remove_without_effect(&mut table, self);
        toml::to_string_pretty(&table).context("cannot write the configuration as TOML")
    }

    /// Parses the output of [`to_toml`](Self::to_toml).
    pub fn from_toml(text: &str) -> Result<TrainConfig> {
        toml::from_str(text).map_err(|error| anyhow!("{error}"))
    }

    pub(super) fn to_table(&self) -> Result<Table> {
        Table::try_from(self).context("cannot write the configuration as TOML")
    }
}

/// Checks a layer and merges it over the previous ones.
fn put(merged: &mut Table, layer: Table, source: &str) -> Result<()> {
    if let Err(error) = deserialize(layer.clone()) {
        match unknown_field(&error) {
            Some((field, _)) => {
                let given = dotted_keys(&layer).into_iter().find(|key| key.split('.').any(|part| part == field));
                let key = given.unwrap_or(field);
                bail!("{source}: unknown key `{key}`\nhint: {}", hint_of_unknown(&key))
            }
            None => bail!("{source}: {}", of_type(&error)),
        }
    }
    refuse_contradictions(&layer, source)?;
    for group in GROUPS {
        if !given_of(group, &layer).is_empty()
            && let Some(Value::Table(before)) = merged.get_mut("schedule")
        {
            before.retain(|key, _| group.iter().all(|name| key != *name));
        }
    }
    merge(merged, layer);
    Ok(())
}

/// Rejects a layer that sets several keys of a group.
fn refuse_contradictions(layer: &Table, source: &str) -> Result<()> {
    for group in GROUPS {
        let given = given_of(group, layer);
        ensure!(
            given.len() <= 1,
            "{source}: only one of {} may be set\nhint: leave out all but one",
            given.iter().map(|key| format!("`schedule.{key}`")).collect::<Vec<_>>().join(" and ")
        );
    }
    Ok(())
}

/// The keys of a group that a layer sets.
fn given_of<'a>(group: &[&'a str], layer: &Table) -> Vec<&'a str> {
    let schedule = layer.get("schedule").and_then(Value::as_table);
    group.iter().copied().filter(|key| schedule.is_some_and(|schedule| schedule.contains_key(*key))).collect()
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// Parses `key=value` to a table. A value that is not TOML is a string, so quotes may be omitted.
fn table_of_set(set: &str) -> Result<Table> {
    let Some((key, value)) = set.split_once('=') else {
        bail!("`--set {set}` has no `=`\nhint: for example `--set schedule.max_steps=200`");
    };
    let (key, value) = (key.trim(), value.trim());
    ensure!(!key.split('.').any(str::is_empty), "`--set {set}`: `{key}` is not a key, such as `optim.lr`");
    let parsed = toml::from_str::<Table>(&format!("value = {value}")).ok();
    // A text with line breaks may parse as several keys: it is then not a TOML value.
    let parsed = parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    Ok(nested(key, parsed.unwrap_or_else(|| Value::String(value.to_owned()))))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::{Arch, PRESETS, ParallelSettings, known_keys};

    fn sets(sets: &[&str]) -> Layers {
        Layers {
            purpose: Some(Purpose::Pretrain),
            preset: Some("tiny".to_owned()),
            sets: sets.iter().map(|set| (*set).to_owned()).collect(),
            ..Layers::default()
        }
    }

    #[test]
    fn every_preset_is_valid_and_survives_a_toml_round_trip() {
        for preset in PRESETS {
            let is_tuning = preset.name.starts_with("finetune");
            let purpose = Some(if is_tuning { Purpose::Finetune } else { Purpose::Pretrain });
            let arguments = if is_tuning { vec![("MODEL", "model.init", "model".into())] } else { Vec::new() };
            let layers = Layers { preset: Some(preset.name.to_owned()), purpose, arguments, ..Layers::default() };
            let Resolved { config, notes, .. } = layers.resolve_all().unwrap();
            config.validate().unwrap();
            assert!(notes.is_empty(), "{notes:?}");
            let read = TrainConfig::from_toml(&config.to_toml().unwrap()).unwrap();
            assert_eq!(TrainConfig { purpose, ..read }, config, "{}", preset.name);
            assert!(preset.toml.starts_with("# ") && preset.about().len() > 20, "{}", preset.name);
        }
    }

    #[test]
    fn later_config_layers_override_and_a_new_budget_replaces_the_old() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mine.toml");
        fs::write(&file, "seed = 5\n[optim]\nlr = 0.5\nbeta2 = 0.9\n").unwrap();
        let mut layers = sets(&["optim.lr=1", "model.arch=llama", "schedule.max_tokens=9_000", "sample.prompt=a b"]);
        layers.file = Some(file);
        let config = layers.resolve().unwrap();
        assert_eq!((config.seed, config.optim.lr, config.optim.beta2), (5, 1.0, 0.9));
        assert_eq!((config.model.arch, config.model.d_model), (Arch::Llama, 32), "the preset's width stays");
        assert_eq!((config.schedule.max_steps, config.schedule.max_tokens), (None, Some(9000)));
        assert_eq!(config.sample.prompt, "a b");
    }

    #[test]
    fn two_budgets_or_two_cooldowns_in_one_config_layer_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mine.toml");
        fs::write(&file, "[schedule]\nmax_steps = 5\nepochs = 1\n").unwrap();
        let of_file = Layers { file: Some(file), ..Layers::default() };
        for (layers, keys) in [
            (of_file, "`schedule.max_steps` and `schedule.epochs`"),
            (sets(&["schedule.epochs=1", "schedule.max_steps=12"]), "`schedule.max_steps` and `schedule.epochs`"),
            (
                sets(&["schedule.cooldown_steps=3", "schedule.cooldown_ratio=0.1"]),
                "`schedule.cooldown_ratio` and `schedule.cooldown_steps`",
            ),
        ] {
            let error = layers.resolve().unwrap_err().to_string();
            assert!(error.contains(&format!("only one of {keys} may be set\nhint: ")), "{error}");
        }
        let config = sets(&["schedule.kind=wsd", "schedule.cooldown_steps=3"]).resolve().unwrap();
        let of_run = dir.path().join("config.toml");
        fs::write(&of_run, config.to_toml().unwrap()).unwrap();
        let of_file = Layers { purpose: Some(Purpose::Pretrain), file: Some(of_run), ..Layers::default() };
        assert_eq!(of_file.resolve().unwrap(), config);
        let config = sets(&["schedule.epochs=1", "schedule.epochs=2"]).resolve().unwrap();
        assert_eq!((config.schedule.epochs, config.schedule.max_steps), (Some(2.0), None));
    }

    #[test]
    fn quantized_lora_base_enables_recompute_unless_it_is_set() {
        let recomputes = |given: &[&str]| sets(given).resolve().unwrap().optim.recompute;
        assert!(!recomputes(&["lora.r=8"]) && !recomputes(&["lora.base=bf16"]));
        assert!(recomputes(&["lora.base=q4"]) && recomputes(&["lora.base=q8"]));
        assert!(!recomputes(&["lora.base=q4", "optim.recompute=false"]));
        // A resumed run keeps its value.
        let base = Some(sets(&["lora.r=8"]).resolve().unwrap());
        let layers = Layers { base, sets: vec!["lora.base=q4".to_owned()], ..Layers::default() };
        assert!(!layers.resolve().unwrap().optim.recompute);
    }

    #[test]
    fn unknown_config_key_is_rejected_with_the_nearest_known_key() {
        for (set, nearest) in [
            ("optim.lrr=1", "`optim.lr`"),
            ("foo=1", "hint: docs/settings.md lists all settings"),
            ("nothing.foo=1", "hint: docs/settings.md lists all settings"),
            (
                "parallel.foo=1",
                "hint: `parallel` has `replicas`, `sync_every`, `outer_lr`, `outer_momentum`, `peer_timeout`",
            ),
            ("parallel.sync=5", "did you mean `parallel.sync_every`?"),
            ("lora.rank=5", "did you mean `lora.r`?"),
            ("batch_size=8", "`data.micro_batch_size`"),
            ("optim.learning_rate=1e-4", "`learning_rate` (nanoGPT, Hugging Face, nanochat) is here `optim.lr`"),
            ("max_step=3", "`schedule.max_steps`"),
            ("optim.muon.momentun=0.9", "`optim.muon.momentum`"),
            ("modle.n_layers=2", "`model.n_layers`"),
        ] {
            let error = sets(&[set]).resolve().unwrap_err().to_string();
            let key = set.split('=').next().unwrap();
            assert!(error.contains(&format!("unknown key `{key}`")), "{error}");
            assert!(error.contains(nearest), "{error}");
        }
    }

    #[test]
    fn invalid_set_arguments_and_presets_are_rejected_with_what_was_given() {
        let whole = "must be a whole number from 0 to 9223372036854775807, such as `1_000_000`, got ";
        for (set, parts) in [
            ("optim.lr=fast", ["`optim.lr` must be a number, got \"fast\"", "the default is `optim.lr=0.001`; docs"]),
            (
                "model.arch=gpt5",
                [
                    "`model.arch` must be one of `gpt2`, `llama`, `qwen3`, `nanochat`, `bert`, `t5`, got `gpt5`",
                    "`model.arch=\"gpt2\"`",
                ],
            ),
            ("seed=-1", [whole, "got `-1`\nhint: the default is `seed=1337`; docs"]),
            ("seed=18446744073709551615", [whole, "got \"18446744073709551615\"\nhint: the default is `seed=1337`"]),
            ("schedule.max_tokens=1e9", [whole, "got `1000000000.0`\nhint: docs/settings.md lists all settings"]),
            (
                "checkpoint.keep_steps=5",
                ["`checkpoint.keep_steps` must be a list, got `5`", "`checkpoint.keep_steps=[]`"],
            ),
            ("lora.rslora=1", ["`lora.rslora` must be `true` or `false`, got `1`", "`lora.rslora=false`"]),
            ("optim=5", ["`optim` must be a section of settings, got `5`", "\nhint: docs/settings.md"]),
            (
                "data.micro_batch_size=some",
                ["must be a number of rows, or `auto`, got \"some\"", "`data.micro_batch_size=12`"],
            ),
            ("optim.lr", ["no `=`", "\nhint: "]),
            ("=3", ["is not a key", ""]),
        ] {
            let error = sets(&[set]).resolve().unwrap_err().to_string();
            assert!(error.contains("--set") && parts.iter().all(|part| error.contains(part)), "{set}: {error}");
        }
        let error = Layers { preset: Some("gpt5".into()), ..Layers::default() }.resolve().unwrap_err().to_string();
        assert!(error.contains("`gpt5`") && error.contains("`shakespeare-char-cpu`"), "{error}");
    }

    #[test]
    fn settings_docs_page_lists_every_key_with_its_default() {
        let page = include_str!("../../../docs/settings.md");
        let (page, _) = page.split_once("## Names in other programs").unwrap();
        let mut defaults =
            TrainConfig { lora: Some(LoraSettings::default()), ..TrainConfig::default() }.to_table().unwrap();
        // As it is, this section is left out.
        defaults.insert("parallel".to_owned(), Value::try_from(ParallelSettings::default()).unwrap());
        let mut listed: Vec<String> = Vec::new();
        for row in page.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split(" | ").collect();
            let [key, default, _] = cells[..] else { unreachable!("{row}") };
            let key = key.trim_start_matches("| ").trim_matches('`');
            let found =
                key.split('.').try_fold(&Value::Table(defaults.clone()), |value, part| value.get(part)).cloned();
            let expected = match default {
                "–" => None,
                default => {
                    toml::from_str::<Table>(&format!("value = {}", default.trim_matches('`'))).unwrap().remove("value")
                }
            };
            assert_eq!(found, expected, "the default of `{key}`");
            listed.push(key.to_owned());
        }
        assert_eq!(listed, known_keys());
    }
}
