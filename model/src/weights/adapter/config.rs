//! `adapter_config.json`, as [PEFT](https://github.com/huggingface/peft) writes it.

use std::{path::Path, slice};

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value, json};

use super::{
    super::config_json::{Fields, Fixed},
    modules::LinearModule,
};
use crate::error::{Error, Result};

/// Keys whose values are read or checked.
const READ: [&str; 13] = [
    "peft_type",
    "r",
    "lora_alpha",
    "use_rslora",
    "lora_dropout",
    "target_modules",
    "target_parameters",
    "exclude_modules",
    "layers_to_transform",
    "rank_pattern",
    "alpha_pattern",
    "bias",
    "init_lora_weights",
];

/// Keys that change nothing here: the adapter's initialization, training and authors.
const IRRELEVANT: [&str; 14] = [
    "task_type",
    "inference_mode",
    "revision",
    "peft_version",
    "auto_mapping",
    "layers_pattern",
    "megatron_core",
    "loftq_config",
    "corda_config",
    "eva_config",
    "runtime_config",
    "ensure_weight_tying",
    "base_model_name_or_path",
    // Whether a Conv1D's weight is transposed; a pair's are not.
    "fan_in_fan_out",
];

/// Keys that have an effect only together with keys that are rejected. Any value but `true` is accepted.
const DEPENDENT: [&str; 3] = ["qalora_group_size", "arrow_config", "lora_bias"];

/// Values of `init_lora_weights` that leave the base model as it is.
const HARMLESS_INITS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// Maximum number of patterns of ranks, and of alphas: more than any model has linear modules.
const MAX_PATTERNS: usize = 4096;

/// Maximum size in bytes of a compiled pattern.
const MAX_REGEX_BYTES: usize = 1 << 17;

/// The configuration of an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// Rows of `A` and columns of `B`.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Whether the scale is `alpha / sqrt(rank)` ([rsLoRA](https://arxiv.org/abs/2312.03732)) instead of `alpha / rank`.
    pub rank_stabilized: bool,
    /// The share of inputs that is dropped while training.
    pub dropout: f64,
    /// The modules that have pairs.
    pub targets: Targets,
    /// The targeted parameters that stack all experts of a layer, by the ends of their names, such as
    /// `experts.down_proj`.
    pub parameters: Vec<String>,
    /// Modules without a pair, although `targets` includes them.
    pub excludes: Option<Targets>,
    /// The layers that have pairs; `None`: all.
    pub layers: Option<Vec<usize>>,
    /// Other ranks, by a pattern of the ends of module names; the first that matches counts.
    pub ranks: Vec<(NamePattern, usize)>,
    /// Other numerators, likewise.
    pub alphas: Vec<(NamePattern, f64)>,
    /// The name or path of the model that the adapter updates.
    pub base: Option<String>,
}

/// The modules that have pairs.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// All linear layers of the blocks.
    AllLinear,
    /// Modules with one of these names, or whose name ends with a dot and one of them.
    Named(Vec<String>),
    /// Modules whose full name matches.
    Pattern(NamePattern),
}

/// A regular expression over module names.
#[derive(Clone, Debug)]
pub struct NamePattern {
    text: String,
    regex: Regex,
}

impl PartialEq for NamePattern {
    fn eq(&self, other: &Self) -> bool {
        self.regex.as_str() == other.regex.as_str()
    }
}

impl NamePattern {
    /// Matches whole names.
    fn of_names(text: &str) -> Result<Self, String> {
        Self::new(text, "^(?:", ")$")
    }

    /// Matches names, or their ends after a dot.
    fn of_ends(text: &str) -> Result<Self, String> {
        Self::new(text, r"^(?:.*\.)?(?:", ")$")
    }

    fn new(text: &str, before: &str, behind: &str) -> Result<Self, String> {
        let regex = RegexBuilder::new(&format!("{before}{text}{behind}")).size_limit(MAX_REGEX_BYTES).build();
        let regex =
            regex.map_err(|error| format!("has `{text}`, which is not a usable regular expression: {error}"))?;
        Ok(Self { text: text.to_owned(), regex })
    }
}

impl Targets {
    /// Whether nothing is targeted.
    fn are_none(&self) -> bool {
        *self == Self::Named(Vec::new())
    }

    fn has(&self, module: &LinearModule) -> bool {
        match self {
            Self::AllLinear => true,
            Self::Named(names) => names.iter().any(|name| ends_with_module(&module.name, name)),
            Self::Pattern(pattern) => pattern.regex.is_match(&module.name),
        }
    }

    fn write(&self) -> Value {
        match self {
            Self::AllLinear => json!("all-linear"),
            Self::Named(names) => json!(names),
            Self::Pattern(pattern) => json!(pattern.text),
        }
    }

    /// Reads a list of names, or a pattern.
    fn read(value: &Value) -> Result<Self, String> {
        let names = match value {
            Value::String(all) if all == "all-linear" => return Ok(Self::AllLinear),
            Value::String(pattern) => return NamePattern::of_names(pattern).map(Self::Pattern),
            Value::Array(names) => names.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        names.map(Self::Named).ok_or_else(|| format!("must be a list of names or a pattern, got {value}"))
    }
}

impl AdapterConfig {
    /// An adapter of all linear layers, scaled by `alpha / rank`.
    pub fn all_linear(rank: usize, alpha: f64) -> Self {
        Self {
            rank,
            alpha,
            rank_stabilized: false,
            dropout: 0.0,
            targets: Targets::AllLinear,
            parameters: Vec::new(),
            excludes: None,
            layers: None,
            ranks: Vec::new(),
            alphas: Vec::new(),
            base: None,
        }
    }

    /// Whether `module` has a pair.
    pub(super) fn targets(&self, module: &LinearModule) -> bool {
        // As in PEFT, a parameter has no other condition.
        if module.expert.is_some() {
            return self.parameters.iter().any(|name| ends_with_module(&module.name, name));
        }
        self.layers.as_ref().is_none_or(|layers| layers.contains(&module.layer))
            && self.targets.has(module)
            && !self.excludes.as_ref().is_some_and(|excludes| excludes.has(module))
    }

    pub(super) fn rank_of(&self, module: &str) -> usize {
        first_match(&self.ranks, module).unwrap_or(self.rank)
    }

    /// The scale of the update of `module`, whose pair has the rank `rank`.
    ///
    /// # Errors
    /// [`Error::Param`] if the scale does not fit an f32.
    pub(super) fn scale_of(&self, module: &str, rank: usize) -> Result<f32> {
        let alpha = first_match(&self.alphas, module).unwrap_or(self.alpha);
        let rank = rank as f64;
        let scale = (alpha / if self.rank_stabilized { rank.sqrt() } else { rank }) as f32;
        if scale.is_finite() {
            return Ok(scale);
        }
        Err(Error::Param { name: "lora_alpha", what: format!("is {alpha} for `{module}`, which is too large") })
    }

    /// Reads the object of the file `path`. Rejects everything that would change the computation and is not supported.
    pub(super) fn read(json: &Map<String, Value>, path: &Path) -> Result<Self> {
        let fields = Fields::new(json, path);
        let required = |key: &str| fields.get(key).ok_or_else(|| fields.missing(&[key]));
        required("peft_type")?;
        fields.only("peft_type", Fixed::Text("LORA"))?;
        reject_unsupported(&fields)?;
        let rank = required("r")?;
        let dropout = fields.number_or("lora_dropout", 0.0)?;
        if !(0.0..1.0).contains(&dropout) {
            return Err(fields.invalid("lora_dropout", format!("must be from 0 to below 1, got {dropout}")));
        }
        let parameters = read_parameters(&fields)?;
        let targets = read_targets(&fields, "target_modules")?;
        let targets = targets.or_else(|| (!parameters.is_empty()).then(|| Targets::Named(Vec::new())));
        Ok(Self {
            rank: positive(rank).ok_or_else(|| fields.wrong("r", POSITIVE, rank))?,
            alpha: fields.number_or("lora_alpha", 8.0)?,
            rank_stabilized: fields.flag_or("use_rslora", false)?,
            dropout,
            targets: targets.ok_or_else(|| fields.missing(&["target_modules"]))?,
            parameters,
            excludes: read_targets(&fields, "exclude_modules")?,
            layers: read_layers(&fields)?,
            ranks: read_patterns(&fields, "rank_pattern", positive, POSITIVE)?,
            alphas: read_patterns(&fields, "alpha_pattern", Value::as_f64, "a number")?,
            base: fields.get("base_model_name_or_path").and_then(Value::as_str).map(str::to_owned),
        })
    }

    /// The object of the file. `all` are the modules that have pairs, by the ends of their names.
    pub(super) fn write(&self, all: &[String], is_transposed: bool, is_encoder: bool) -> Map<String, Value> {
        let patterns = |of: Vec<(&NamePattern, Value)>| -> Map<String, Value> {
            of.into_iter().map(|(pattern, value)| (pattern.text.clone(), value)).collect()
        };
        // In PEFT each class defines which modules "all linear" are, so they are listed by name.
        let targets = if self.targets == Targets::AllLinear { json!(all) } else { self.targets.write() };
        let fields = json!({
            "alpha_pattern": patterns(self.alphas.iter().map(|(pattern, alpha)| (pattern, json!(alpha))).collect()),
            "base_model_name_or_path": self.base,
            "bias": "none",
            "exclude_modules": self.excludes.as_ref().map(Targets::write),
            "fan_in_fan_out": is_transposed,
            "inference_mode": true,
            "init_lora_weights": true,
            "layers_pattern": null,
            "layers_to_transform": self.layers,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "modules_to_save": null,
            "peft_type": "LORA",
            "r": self.rank,
            "rank_pattern": patterns(self.ranks.iter().map(|(pattern, rank)| (pattern, json!(rank))).collect()),
            "revision": null,
            "target_modules": (!self.targets.are_none()).then_some(targets),
            "target_parameters": (!self.parameters.is_empty()).then_some(&self.parameters),
            // Of an encoder, what it is for is not known here.
            "task_type": (!is_encoder).then_some("CAUSAL_LM"),
            "use_dora": false,
            "use_rslora": self.rank_stabilized,
        });
        match fields {
            Value::Object(map) => map,
            _ => unreachable!("it was written as an object"),
        }
    }
}

/// What [`positive`] accepts, for error messages.
const POSITIVE: &str = "a whole number above 0";

fn positive(value: &Value) -> Option<usize> {
    value.as_u64().filter(|number| *number > 0).map(|number| number as usize)
}

fn read_targets(fields: &Fields<'_>, key: &str) -> Result<Option<Targets>> {
    fields.get(key).map(Targets::read).transpose().map_err(|what| fields.invalid(key, what))
}

/// Names of targeted parameters, which are not modules: they stack all experts of a layer.
fn read_parameters(fields: &Fields<'_>) -> Result<Vec<String>> {
    let key = "target_parameters";
    let Some(value) = fields.get(key) else { return Ok(Vec::new()) };
    let names = value.as_array().map(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect());
    names.flatten().ok_or_else(|| fields.wrong(key, "a list of names", value))
}

/// One layer or a list of layers.
fn read_layers(fields: &Fields<'_>) -> Result<Option<Vec<usize>>> {
    let key = "layers_to_transform";
    let Some(value) = fields.get(key) else { return Ok(None) };
    let list = value.as_array().map_or(slice::from_ref(value), Vec::as_slice);
    let layers = list.iter().map(|layer| Some(layer.as_u64()? as usize)).collect::<Option<_>>();
    layers.map(Some).ok_or_else(|| fields.wrong(key, "a number of a layer, or a list of them", value))
}

/// Numbers by patterns of the ends of module names. `number` reads one, which must be `expected`.
fn read_patterns<T>(
    fields: &Fields<'_>,
    key: &str,
    number: impl Fn(&Value) -> Option<T>,
    expected: &str,
) -> Result<Vec<(NamePattern, T)>> {
    let Some(value) = fields.get(key) else { return Ok(Vec::new()) };
    let map = value.as_object().ok_or_else(|| fields.wrong(key, "an object of patterns and numbers", value))?;
    if map.len() > MAX_PATTERNS {
        return Err(fields.invalid(key, format!("must have at most {MAX_PATTERNS} patterns, got {}", map.len())));
    }
    let entry = |(text, value): (&String, &Value)| {
        let pattern = NamePattern::of_ends(text).map_err(|what| fields.invalid(key, what))?;
        Ok((pattern, number(value).ok_or_else(|| fields.wrong(key, expected, value))?))
    };
    map.iter().map(entry).collect()
}

/// Rejects settings that would change the computation and are not supported.
fn reject_unsupported(fields: &Fields<'_>) -> Result<()> {
    fields.only("bias", Fixed::Text("none"))?;
    match fields.get("init_lora_weights") {
        None | Some(Value::Bool(_)) => {}
        Some(Value::String(init)) if HARMLESS_INITS.contains(&init.as_str()) => {}
        Some(other) => {
            let what = format!("is {other}, which changes the base model, too");
            let hint = "convert it to a plain adapter with `peft` (`path_initial_model_for_weight_conversion`)";
            return Err(fields.invalid("init_lora_weights", what).with_hint(hint));
        }
    }
    for key in fields.keys().filter(|key| !READ.contains(key) && !IRRELEVANT.contains(key)) {
        if !DEPENDENT.contains(&key) || fields.get(key) == Some(&Value::Bool(true)) {
            let hint = "supported are plain LoRA and rsLoRA, with patterns of ranks and alphas";
            fields.only(key, Fixed::Nothing).map_err(|error| error.with_hint(hint))?;
        }
    }
    Ok(())
}

/// Whether `name` is `target`, or ends with a dot and `target`.
fn ends_with_module(name: &str, target: &str) -> bool {
    name.strip_suffix(target).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// The value of the first pattern that matches.
fn first_match<T: Copy>(patterns: &[(NamePattern, T)], name: &str) -> Option<T> {
    patterns.iter().find(|(pattern, _)| pattern.regex.is_match(name)).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::weights::row_order::RowOrder;

    fn module(name: &str, layer: usize) -> LinearModule {
        LinearModule {
            name: name.into(),
            path: String::new(),
            layer,
            rows: 0..4,
            order: RowOrder::Same,
            d_in: 4,
            expert: None,
            holder: name.into(),
        }
    }

    fn read(text: &str) -> Result<AdapterConfig> {
        AdapterConfig::read(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap(), Path::new("a.json"))
    }

    #[test]
    fn lora_target_modules_ranks_and_scales_follow_peft_rules() {
        let q = module("model.layers.2.self_attn.q_proj", 2);
        let config = |text: &str| read(&format!(r#"{{"peft_type":"LORA","r":8,{text}}}"#)).unwrap();
        for (targets, expected) in [
            (r#""target_modules":["q_proj"]"#, true),
            (r#""target_modules":["proj"]"#, false),
            (r#""target_modules":["self_attn.q_proj","x"]"#, true),
            (r#""target_modules":".*\\.self_attn\\.(q|v)_proj""#, true),
            (r#""target_modules":"self_attn\\.(q|v)_proj""#, false),
            (r#""target_modules":"all-linear""#, true),
            (r#""target_modules":["q_proj"],"layers_to_transform":[0,1]"#, false),
            (r#""target_modules":["q_proj"],"layers_to_transform":2"#, true),
            (r#""target_modules":["q_proj"],"exclude_modules":["model.layers.2.self_attn.q_proj"]"#, false),
            (r#""target_modules":"all-linear","exclude_modules":".*\\.2\\..*""#, false),
            (r#""target_modules":["q_proj"],"exclude_modules":["k_proj"]"#, true),
        ] {
            assert_eq!(config(targets).targets(&q), expected, "{targets}");
        }
        let patterns = config(
            r#""lora_alpha":16,"target_modules":["q_proj"],"use_rslora":true,
               "rank_pattern":{"model.layers.2.self_attn.q_proj":4},"alpha_pattern":{"layers\\.[0-9]\\.self_attn\\.q_proj":6}"#,
        );
        assert_eq!(patterns.rank_of(&q.name), 4);
        assert_eq!(patterns.scale_of(&q.name, 4).unwrap(), 3.0);
        assert_eq!(patterns.scale_of("model.layers.12.self_attn.q_proj", 8).unwrap(), (16.0 / 8f64.sqrt()) as f32);
    }

    #[test]
    fn unsupported_or_invalid_peft_config_keys_are_rejected_by_name() {
        for (key, value) in [
            ("use_dora", "true"),
            ("modules_to_save", r#"["lm_head"]"#),
            ("bias", r#""all""#),
            ("init_lora_weights", r#""pissa""#),
            ("lora_bias", "true"),
            ("trainable_token_indices", "[1]"),
            ("layer_replication", "[[0,1]]"),
            ("a_key_of_next_year", "0.5"),
            ("rank_pattern", "5"),
            ("use_rslora", r#""yes""#),
            ("exclude_modules", "[1]"),
            ("target_parameters", "\"experts.down_proj\""),
            ("layers_to_transform", "-1"),
            ("layers_to_transform", "\"x\""),
            ("lora_dropout", "1.5"),
            ("lora_dropout", "\"0.5\""),
        ] {
            let text = format!(r#"{{"peft_type":"LORA","r":8,"target_modules":["q_proj"],"{key}":{value}}}"#);
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")) && error.contains(value), "{error}");
        }
        for (key, value, contains) in
            [("rank_pattern", r#"{"(":4}"#, "`(`"), ("exclude_modules", r#""\\w{1000}{1000}""#, r"`\w{1000}{1000}`")]
        {
            let text = format!(r#"{{"peft_type":"LORA","r":8,"target_modules":["q_proj"],"{key}":{value}}}"#);
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}` has {contains}")), "{error}");
        }
        for text in [r#"{"peft_type":"IA3"}"#, r#"{"peft_type":"LORA"}"#, r#"{"peft_type":"LORA","r":0}"#] {
            read(text).unwrap_err();
        }
    }
}
