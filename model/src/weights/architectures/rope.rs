//! Rotary positions, in both forms of `config.json`: `rope_parameters` (transformers 5), and before it `rope_theta`
//! with `rope_scaling`.

use serde_json::{Map, Value, json};

use super::super::config_json::Fields;
use crate::{
    config::{GptConfig, Positions, Rope, RopeScaling},
    error::{Error, Result},
};

const THETA: &str = "rope_theta";
const SHARE: &str = "partial_rotary_factor";
/// Ministral 3's growth of the multiplier of queries.
pub(super) const LLAMA4_BETA: &str = "llama_4_scaling_beta";
/// Hunyuan's factor for the base.
const ALPHA: &str = "alpha";
pub(super) const ORIGINAL_LENGTH: &str = "original_max_position_embeddings";

/// The keys in which classes differ.
pub(in super::super) struct RopeKeys {
    /// The older key of the base.
    theta: &'static str,
    /// The base where the file does not have it.
    absent_theta: f64,
    /// The older key of the rotated share of each head, and the share if the key is absent. `None`: the whole head is
    /// rotated.
    share: Option<(&'static str, f64)>,
    /// The names of the scalings that the class computes.
    types: &'static [&'static str],
    /// The base of layers with the window, if these have their own rotary object.
    windowed: Option<WindowedTheta>,
    /// Whether the file must describe the rotation: by default, the class has a special scaling.
    is_required: bool,
    /// Keys of the nested object that only this class has.
    own: &'static [&'static str],
    /// The nested objects to use if the file has none.
    absent_kinds: Option<fn() -> Value>,
}

/// The base of the layers with the window.
struct WindowedTheta {
    /// The older key, if there is one.
    key: Option<&'static str>,
    /// The base where the file does not have it.
    absent: f64,
}

pub(super) const WHOLE_HEADS: RopeKeys = RopeKeys {
    theta: THETA,
    absent_theta: USUAL_THETA,
    share: None,
    types: TYPES,
    windowed: None,
    is_required: false,
    own: &[],
    absent_kinds: None,
};
pub(super) const MIXTRAL: RopeKeys = RopeKeys { absent_theta: 1_000_000.0, ..WHOLE_HEADS };
pub(super) const SMOLLM3: RopeKeys = RopeKeys { absent_theta: 2_000_000.0, ..WHOLE_HEADS };
pub(super) const NEOX: RopeKeys =
    RopeKeys { theta: "rotary_emb_base", share: Some(("rotary_pct", 0.25)), ..WHOLE_HEADS };
/// `longrope` is the only scaling of Phi 3 in transformers. The first files call it `su`.
pub(super) const PHI3: RopeKeys =
    RopeKeys { share: Some((SHARE, 1.0)), types: &["default", LONG_ROPE, "su"], ..WHOLE_HEADS };
pub(super) const STABLELM: RopeKeys = RopeKeys { share: Some((SHARE, 0.25)), ..WHOLE_HEADS };

pub(super) const OLMO3: RopeKeys = RopeKeys {
    absent_theta: 500_000.0,
    types: PER_KIND_TYPES,
    windowed: Some(WindowedTheta { key: None, absent: 500_000.0 }),
    ..WHOLE_HEADS
};
pub(super) const SOLAR: RopeKeys = RopeKeys { absent_theta: 1_000_000.0, share: Some((SHARE, 1.0)), ..WHOLE_HEADS };
pub(super) const MELLUM: RopeKeys = RopeKeys {
    absent_theta: 500_000.0,
    types: PER_KIND_TYPES,
    windowed: Some(WindowedTheta { key: None, absent: USUAL_THETA }),
    ..WHOLE_HEADS
};
pub(super) const GEMMA3: RopeKeys = RopeKeys {
    absent_theta: 1_000_000.0,
    types: PER_KIND_TYPES,
    windowed: Some(WindowedTheta { key: Some("rope_local_base_freq"), absent: USUAL_THETA }),
    ..WHOLE_HEADS
};

/// The file has an object for each type of layer, or none at all.
pub(super) const GEMMA4: RopeKeys = RopeKeys {
    types: &["default", "linear", "llama3", "yarn", PROPORTIONAL],
    windowed: Some(WindowedTheta { key: None, absent: USUAL_THETA }),
    absent_kinds: Some(|| {
        json!({
            FULL: { "rope_type": PROPORTIONAL, SHARE: 0.25, THETA: 1_000_000.0 },
            WINDOWED: { "rope_type": "default", THETA: USUAL_THETA },
        })
    }),
    ..WHOLE_HEADS
};

pub(super) const MODERN_BERT: RopeKeys = RopeKeys {
    theta: "global_rope_theta",
    absent_theta: 160_000.0,
    types: PER_KIND_TYPES,
    windowed: Some(WindowedTheta { key: Some("local_rope_theta"), absent: USUAL_THETA }),
    ..WHOLE_HEADS
};
pub(super) const NOMIC_BERT: RopeKeys =
    RopeKeys { theta: "rotary_emb_base", absent_theta: 1000.0, types: &["default"], ..WHOLE_HEADS };
pub(super) const PHI: RopeKeys = RopeKeys { share: Some((SHARE, 0.5)), ..WHOLE_HEADS };
pub(super) const QWEN3_5: RopeKeys = RopeKeys { share: Some((SHARE, 0.25)), ..WHOLE_HEADS };
pub(super) const MINIMAX: RopeKeys = RopeKeys { absent_theta: 5_000_000.0, share: Some((SHARE, 1.0)), ..WHOLE_HEADS };
pub(super) const COHERE: RopeKeys = RopeKeys { absent_theta: 500_000.0, ..WHOLE_HEADS };
pub(super) const HELIUM: RopeKeys = RopeKeys { absent_theta: 100_000.0, ..WHOLE_HEADS };
/// The class has a special default scaling.
pub(super) const STATED: RopeKeys = RopeKeys { is_required: true, ..WHOLE_HEADS };
pub(super) const MINISTRAL3: RopeKeys = RopeKeys { is_required: true, own: &[LLAMA4_BETA], ..WHOLE_HEADS };
pub(super) const GPT_OSS: RopeKeys = RopeKeys { is_required: true, absent_theta: 150_000.0, ..WHOLE_HEADS };
pub(super) const HUNYUAN: RopeKeys = RopeKeys { own: &[ALPHA], ..WHOLE_HEADS };

const USUAL_THETA: f64 = 10_000.0;

const TYPES: &[&str] = &["default", "linear", "dynamic", "llama3", "yarn", LONG_ROPE];

/// The scalings of classes whose layers with the window have separate rotary positions.
const PER_KIND_TYPES: &[&str] = &["default", "linear", "llama3", "yarn"];
const FULL: &str = "full_attention";
const WINDOWED: &str = "sliding_attention";

const LONG_ROPE: &str = "longrope";
const PROPORTIONAL: &str = "proportional";
const SHORT_FACTORS: &str = "short_factor";
const LONG_FACTORS: &str = "long_factor";

/// Whether the rotary positions of this type depend on the key of the nested object. As in transformers, others are passed over.
fn is_read(kind: &str, key: &str) -> bool {
    let own: &[&str] = match kind {
        "linear" | "dynamic" | PROPORTIONAL => &["factor"],
        "llama3" => &["factor", "low_freq_factor", "high_freq_factor", ORIGINAL_LENGTH],
        "yarn" => &[
            "factor",
            ORIGINAL_LENGTH,
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
        LONG_ROPE | "su" => &["factor", ORIGINAL_LENGTH, "attention_factor", SHORT_FACTORS, LONG_FACTORS],
        _ => &[],
    };
    ["rope_type", "type", THETA, SHARE].contains(&key) || own.contains(&key)
}

/// The object of a class that has one for all layers. As in transformers, the older key takes precedence.
pub(super) fn nested_object<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    match fields.object_if_true("rope_scaling")? {
        None => fields.object("rope_parameters"),
        nested => Ok(nested),
    }
}

impl RopeKeys {
    /// Sets `config.positions`. For classes with windows, these must have been read before.
    pub(super) fn read(&self, fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
        if let Some(windowed) = &self.windowed {
            return self.read_per_kind(windowed, fields, config);
        }
        let empty = Map::new();
        let nested = match nested_object(fields)? {
            None if self.is_required => return Err(fields.missing(&["rope_parameters", "rope_scaling"])),
            nested => nested.unwrap_or_else(|| fields.within(&empty)),
        };
        let theta = fields.number_or(self.theta, self.absent_theta)?;
        let rope = self.read_one(theta, fields, &nested, (config, config.head_dim))?;
        config.positions = Positions::Rope(rope);
        Ok(())
    }

    /// As [`read`](Self::read), for classes whose layers with the window have separate rotary positions.
    fn read_per_kind(&self, windowed: &WindowedTheta, fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
        let absent = match self.absent_kinds.map(|absent| absent()) {
            Some(Value::Object(absent)) => absent,
            _ => Map::new(),
        };
        let kinds = fields.object("rope_parameters")?.unwrap_or_else(|| fields.within(&absent));
        if let Some(key) = kinds.keys().find(|key| ![FULL, WINDOWED].contains(key) && kinds.get(key).is_some()) {
            let value = kinds.get(key).unwrap_or(&Value::Null);
            return Err(kinds.unsupported(key, value, "an object for each kind of layer"));
        }
        let is_missing = |key: &str| kinds.get(key).is_none() && (key == FULL || config.sliding_window.is_some());
        if self.absent_kinds.is_some()
            && let Some(key) = [FULL, WINDOWED].into_iter().find(|key| is_missing(key))
        {
            return Err(kinds.missing(&[key]));
        }
        let object = |key: &str| Ok(kinds.object(key)?.map_or_else(Map::new, |object| object.to_map()));
        let (mut full, own) = (object(FULL)?, object(WINDOWED)?);
        // As in transformers, the older key takes precedence over the newer one, but its `type` is not read.
        if let Some(scaling) = fields.object("rope_scaling")? {
            if !scaling.has("rope_type") {
                scaling.only("type", super::Fixed::Text("default"))?;
            }
            full.extend(scaling.to_map());
        }
        let theta = fields.number_or(self.theta, self.absent_theta)?;
        let full_dim = config.heads_with(false).head_dim;
        let rope = self.read_one(theta, fields, &fields.within(&full), (config, full_dim))?;
        config.positions = Positions::Rope(rope.clone());
        if config.sliding_window.is_none() {
            return Ok(());
        }
        if windowed.key.is_none() && !own.contains_key(THETA) {
            // Some versions of transformers use the older key for these layers too, others do not.
            fields.only(self.theta, super::Fixed::Number(windowed.absent))?;
        }
        let theta = windowed.key.map_or(Ok(windowed.absent), |key| fields.number_or(key, windowed.absent))?;
        let own = self.read_one(theta, fields, &fields.within(&own), (config, config.head_dim))?;
        config.window_rope = (own != rope).then_some(own);
        Ok(())
    }

    /// The rotation of heads of `head_dim` that `nested` describes. `theta` is the base if `nested` has none.
    fn read_one(
        &self,
        theta: f64,
        fields: &Fields<'_>,
        nested: &Fields<'_>,
        (config, head_dim): (&GptConfig, usize),
    ) -> Result<Rope> {
        let kind = nested.text_or("rope_type", nested.text_or("type", "default")?)?;
        if !self.types.contains(&kind) {
            return Err(nested.unsupported("rope_type", &json!(kind), &self.types.join(", ")));
        }
        let is_read = |key: &str| is_read(kind, key) || self.own.contains(&key);
        for key in nested.keys().filter(|key| !is_read(key) && nested.get(key).is_some()) {
            // An object for each kind of layer, in a class that has one for all layers.
            if nested.get(key).is_some_and(Value::is_object) {
                return Err(nested.wrong(key, "a value for all layers", nested.get(key).unwrap_or(&Value::Null)));
            }
            nested.pass_over(|| format!("`{key}` of the rotary positions, which the type {kind} does not have"));
        }
        let theta = nested.number_or(THETA, theta)?;
        if self.theta != THETA && nested.get(THETA).is_none() {
            // Some versions of transformers read `rope_theta` for such a class, others do not.
            fields.only(THETA, super::Fixed::Number(theta))?;
        }
        let rotary_dim = match self.share {
            None if kind == PROPORTIONAL => {
                let share = nested.number_or(SHARE, 1.0)?;
                // Rounded down, as Python's `//` does; `validate` rejects 0 pairs.
                let n_pairs = (head_dim as f64 * share / 2.0) as usize;
                let scaling = RopeScaling::Proportional { n_pairs, factor: nested.number_or("factor", 1.0)? };
                return Ok(Rope { theta, rotary_dim: head_dim, scaling });
            }
            None => {
                for fields in [fields, nested] {
                    fields.only(SHARE, super::Fixed::Number(1.0))?;
                }
                config.latent.map_or(head_dim, |latent| latent.rope_dim)
            }
            Some((key, absent)) => {
                let share = nested.number_or(SHARE, fields.number_or(key, absent)?)?;
                // Rounded down, as Python's `int` does; `validate` rejects shares that give no dimension.
                (head_dim as f64 * share) as usize
            }
        };
        let alpha = if self.own.contains(&ALPHA) { nested.number_or(ALPHA, 0.0)? } else { 0.0 };
        if kind == "dynamic" && alpha != 0.0 {
            // Despite the name, this does not depend on the text's length.
            let dim = rotary_dim as f64;
            return Ok(Rope::new(theta * alpha.powf(dim / (dim - 2.0)), rotary_dim));
        }
        // With an object for each kind of layer, transformers reads no key outside of it.
        let outside = if self.windowed.is_some() { nested } else { fields };
        let scaling = scaling(kind, outside, nested, config.max_seq_len)?;
        Ok(Rope { theta, rotary_dim, scaling })
    }

    pub(super) fn write(&self, config: &GptConfig, written: &mut Map<String, Value>) {
        let Positions::Rope(rope) = &config.positions else { return };
        let mut scaling = scaling_json(rope);
        if let RopeScaling::LongRope { original_max_seq_len, .. } = rope.scaling {
            // Older versions of transformers read it only there.
            written.insert(ORIGINAL_LENGTH.to_owned(), json!(original_max_seq_len));
        }
        // Both forms: transformers 5 reads either, older versions only the older one. They do not have the newest classes.
        if self.absent_kinds.is_none() {
            written.insert(self.theta.to_owned(), json!(rope.theta));
            written.insert(
                "rope_scaling".to_owned(),
                match rope.scaling {
                    RopeScaling::None => Value::Null,
                    _ => Value::Object(older_json(&scaling, config)),
                },
            );
        }
        scaling.insert(THETA.to_owned(), json!(rope.theta));
        if let Some(windowed) = &self.windowed {
            let own = config.window_rope.as_ref().unwrap_or(rope);
            written.extend(windowed.key.map(|key| (key.to_owned(), json!(own.theta))));
            let mut own_scaling = scaling_json(own);
            own_scaling.insert(THETA.to_owned(), json!(own.theta));
            let kinds = json!({ FULL: scaling, WINDOWED: own_scaling });
            written.insert("rope_parameters".to_owned(), kinds);
            return;
        }
        if let Some((key, _)) = self.share {
            let share = rope.rotary_dim as f64 / config.head_dim as f64;
            written.insert(key.to_owned(), json!(share));
            scaling.insert(SHARE.to_owned(), json!(share));
        }
        written.insert("rope_parameters".to_owned(), Value::Object(scaling));
    }
}

fn scaling(kind: &str, fields: &Fields<'_>, nested: &Fields<'_>, max_seq_len: usize) -> Result<RopeScaling> {
    let factor = || nested.number("factor");
    // As in transformers, a key outside the nested object takes precedence.
    let original = || fields.size_or(ORIGINAL_LENGTH, nested.size_or(ORIGINAL_LENGTH, max_seq_len)?);
    Ok(match kind {
        "linear" => RopeScaling::Linear { factor: factor()? },
        "dynamic" => RopeScaling::Dynamic { factor: factor()? },
        "llama3" => RopeScaling::Llama3 {
            factor: factor()?,
            low_freq_factor: nested.number("low_freq_factor")?,
            high_freq_factor: nested.number("high_freq_factor")?,
            original_max_seq_len: original()?,
        },
        "yarn" => {
            let original_max_seq_len = original()?;
            // As in transformers, `null` is the ratio of the lengths, but the key must be there.
            let factor = match nested.number_if_any("factor")? {
                None if nested.has("factor") => max_seq_len as f64 / original_max_seq_len as f64,
                _ => factor()?,
            };
            // Zero counts as absent, as in transformers.
            let beta =
                |key, absent| Ok(Some(nested.number_or(key, absent)?).filter(|&beta| beta != 0.0).unwrap_or(absent));
            RopeScaling::Yarn {
                factor,
                attention_factor: nested.number_or("attention_factor", yarn_attention_factor(factor, nested)?)?,
                beta_fast: beta("beta_fast", 32.0)?,
                beta_slow: beta("beta_slow", 1.0)?,
                original_max_seq_len,
                // As in transformers, `null` is false.
                truncate: nested.flag_or("truncate", !nested.has("truncate"))?,
            }
        }
        LONG_ROPE | "su" => long_rope(fields, nested, max_seq_len)?,
        _ => RopeScaling::None,
    })
}

fn long_rope(fields: &Fields<'_>, nested: &Fields<'_>, max_seq_len: usize) -> Result<RopeScaling> {
    // As in transformers, a key outside the nested object takes precedence.
    let original_max_seq_len = match fields.size(ORIGINAL_LENGTH)? {
        Some(outside) => outside,
        None => nested.size(ORIGINAL_LENGTH)?.ok_or_else(|| nested.missing(&[ORIGINAL_LENGTH]))?,
    };
    let factors = |key| Ok::<Vec<f32>, Error>(nested.numbers(key)?.into_iter().map(|factor| factor as f32).collect());
    let factor = nested.number_or("factor", max_seq_len as f64 / original_max_seq_len as f64)?;
    let absent = RopeScaling::long_rope_attention_factor(factor, original_max_seq_len);
    Ok(RopeScaling::LongRope {
        short_factors: factors(SHORT_FACTORS)?,
        long_factors: factors(LONG_FACTORS)?,
        attention_factor: nested.number_or("attention_factor", absent)?,
        original_max_seq_len,
    })
}

/// YaRN's default multiplier of cosines and sines: `0.1 ln(factor) + 1` (the paper, 3.4), or the
/// ratio of two such values (DeepSeek).
fn yarn_attention_factor(factor: f64, nested: &Fields<'_>) -> Result<f64> {
    let value = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    let (mscale, mscale_all_dim) = (nested.number_or("mscale", 0.0)?, nested.number_or("mscale_all_dim", 0.0)?);
    let both = mscale != 0.0 && mscale_all_dim != 0.0;
    Ok(if both { value(mscale) / value(mscale_all_dim) } else { value(1.0) })
}

/// `scaling`, the JSON of the scaling of `config`, for the older key. There, older versions of transformers accept three
/// keys for `longrope` in Phi 3, the type under its older name.
fn older_json(scaling: &Map<String, Value>, config: &GptConfig) -> Map<String, Value> {
    let Positions::Rope(Rope { scaling: RopeScaling::LongRope { attention_factor, original_max_seq_len, .. }, .. }) =
        &config.positions
    else {
        return scaling.clone();
    };
    let extension = config.max_seq_len as f64 / *original_max_seq_len as f64;
    if *attention_factor != RopeScaling::long_rope_attention_factor(extension, *original_max_seq_len) {
        return scaling.clone();
    }
    let lists =
        [SHORT_FACTORS, LONG_FACTORS].iter().filter_map(|key| Some(((*key).to_owned(), scaling.get(*key)?.clone())));
    [("type".to_owned(), json!(LONG_ROPE))].into_iter().chain(lists).collect()
}

fn scaling_json(rope: &Rope) -> Map<String, Value> {
    let json = match rope.scaling {
        RopeScaling::None => json!({ "rope_type": "default" }),
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Dynamic { factor } => json!({ "rope_type": "dynamic", "factor": factor }),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_seq_len } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            ORIGINAL_LENGTH: original_max_seq_len,
        }),
        RopeScaling::Yarn { factor, attention_factor, beta_fast, beta_slow, original_max_seq_len, truncate } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "attention_factor": attention_factor,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            ORIGINAL_LENGTH: original_max_seq_len,
            "truncate": truncate,
        }),
        RopeScaling::LongRope { ref short_factors, ref long_factors, attention_factor, original_max_seq_len } => {
            json!({
                "rope_type": LONG_ROPE,
                SHORT_FACTORS: short_factors,
                LONG_FACTORS: long_factors,
                "attention_factor": attention_factor,
                ORIGINAL_LENGTH: original_max_seq_len,
            })
        }
        RopeScaling::Proportional { n_pairs, factor } => {
            let share = 2.0 * n_pairs as f64 / rope.rotary_dim as f64;
            json!({ "rope_type": PROPORTIONAL, SHARE: share, "factor": factor })
        }
    };
    match json {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
