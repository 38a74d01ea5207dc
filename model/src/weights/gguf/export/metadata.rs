//! The metadata of a file that is written, and which architecture describes a model.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::{
    super::config_json::Fields,
    SAMPLING_PREFIX,
    architectures::ALL,
    config_rows::{ATTENTION_FACTOR, FACTOR_LISTS, LONG_ROPE, long_rope},
    description::Gguf,
    writer::Entry,
};
use crate::{
    config::{GptConfig, Positions, RopeScaling},
    error::{Error, Result},
    gpt::param_specs,
    sampling::SamplingParams,
};

/// Architectures by the classes that the converter of llama.cpp turns into them.
const OF_CLASSES: [(&str, &str); 33] = [
    ("LlamaForCausalLM", "llama"),
    ("MistralForCausalLM", "llama"),
    ("Qwen2ForCausalLM", "qwen2"),
    ("Qwen3ForCausalLM", "qwen3"),
    ("GPT2LMHeadModel", "gpt2"),
    ("GPTNeoXForCausalLM", "gptneox"),
    ("SmolLM3ForCausalLM", "smollm3"),
    ("Gemma3ForCausalLM", "gemma3"),
    ("GraniteForCausalLM", "granite"),
    ("Phi3ForCausalLM", "phi3"),
    ("PhiForCausalLM", "phi2"),
    ("GemmaForCausalLM", "gemma"),
    ("Gemma2ForCausalLM", "gemma2"),
    ("Olmo2ForCausalLM", "olmo2"),
    ("Olmo3ForCausalLM", "olmo2"),
    ("StableLmForCausalLM", "stablelm"),
    ("GPTBigCodeForCausalLM", "starcoder"),
    ("FalconForCausalLM", "falcon"),
    ("CohereForCausalLM", "command-r"),
    ("Cohere2ForCausalLM", "cohere2"),
    ("BloomForCausalLM", "bloom"),
    ("Starcoder2ForCausalLM", "starcoder2"),
    ("Ministral3ForCausalLM", "mistral3"),
    ("Exaone4ForCausalLM", "exaone4"),
    ("Ernie4_5ForCausalLM", "ernie4_5"),
    ("Glm4ForCausalLM", "glm4"),
    ("HunYuanDenseV1ForCausalLM", "hunyuan-dense"),
    ("SeedOssForCausalLM", "seed_oss"),
    ("ArceeForCausalLM", "arcee"),
    ("NemotronForCausalLM", "nemotron"),
    ("OlmoForCausalLM", "olmo"),
    ("MiniCPMForCausalLM", "minicpm"),
    ("Jais2ForCausalLM", "jais2"),
];

/// The architectures for which llama.cpp reads the factors of LongRoPE.
const WITH_FACTOR_LISTS: [&str; 3] = ["phi3", "llama", "minicpm"];

/// The architecture that describes `config`, the configuration as the file has it (its norms have no offset), and the
/// architecture's keys with their values.
///
/// # Errors
/// [`Error::Config`] if none does.
pub(in super::super) fn described(
    config: &GptConfig,
    class: Option<&str>,
) -> Result<(&'static Gguf, GptConfig, Map<String, Value>)> {
    let mut config = GptConfig { norm_weight_offset: 0.0, ..config.clone() };
    if let Positions::Rope(rope) = &mut config.positions
        && matches!(rope.scaling, RopeScaling::Dynamic { .. })
    {
        // GGUF has no such scaling, and within the model's context it has no effect.
        rope.scaling = RopeScaling::None;
    }
    let usual = OF_CLASSES.iter().find(|(of, _)| Some(*of) == class).map(|(_, name)| *name);
    let is_usual = |gguf: &&Gguf| Some(gguf.name) == usual;
    let candidates = ALL.iter().filter(is_usual).chain(ALL.iter().filter(|gguf| !is_usual(gguf)));
    for gguf in candidates {
        if let Some(own) = written(gguf, &config) {
            return Ok((gguf, config, own));
        }
    }
    let names: Vec<_> = ALL.iter().map(|gguf| gguf.name).collect();
    let what = format!(
        "no architecture of GGUF files describes the model; tried were {}\nhint: rotary scaling `llama3`, the activation xIELU \
         and architectures of Hearth's own cannot be exported",
        names.join(", ")
    );
    Err(Error::Config { field: "architecture".into(), what })
}

/// The keys of `gguf` for `config`, if reading them gives it again.
fn written(gguf: &Gguf, config: &GptConfig) -> Option<Map<String, Value>> {
    let names = gguf.names();
    let specs = param_specs(config);
    // Its numbers are metadata, which is not written.
    if config.xielu {
        return None;
    }
    if !specs.iter().all(|spec| names.knows(spec, config)) {
        return None;
    }
    let lists = factor_lists(config);
    if lists.is_some() && !WITH_FACTOR_LISTS.contains(&gguf.name) {
        return None;
    }
    let params = specs.iter().flat_map(|spec| names.parts(spec, config, &|_| false)).map(|part| part.name);
    let tensors: Vec<String> = params.chain(lists.iter().flatten().map(|(name, _)| (*name).to_owned())).collect();
    let has = |name: &str| tensors.iter().any(|tensor| tensor == name);
    [false, true].into_iter().find_map(|has_pattern| {
        let own = keys(gguf, config, has_pattern);
        let fields = Fields::new(&own, Path::new("metadata"));
        let mut read = gguf.read(&fields, &has).ok()?;
        if let (Some(lists), Positions::Rope(rope)) = (lists, &mut read.positions) {
            rope.scaling = long_rope(&fields, config.max_seq_len, lists.map(|(_, list)| list.to_vec())).ok()?;
        }
        let read = GptConfig { vocab_size: config.vocab_size, dropout: config.dropout, ..read };
        (read == *config).then_some(own)
    })
}

/// The factors of LongRoPE in `config`, with the names of their tensors.
pub(super) fn factor_lists(config: &GptConfig) -> Option<[(&'static str, &[f32]); 2]> {
    let Positions::Rope(rope) = &config.positions else { return None };
    let RopeScaling::LongRope { short_factors, long_factors, .. } = &rope.scaling else { return None };
    let [short, long] = FACTOR_LISTS;
    Some([(short, short_factors), (long, long_factors)])
}

/// All keys of an architecture. `has_pattern`: whether they state for each layer if it has the window.
fn keys(gguf: &Gguf, config: &GptConfig, has_pattern: bool) -> Map<String, Value> {
    let mut own = gguf.written(config);
    let mut put = |key: &str, value: Value| drop(own.insert(key.to_owned(), value));
    if let Positions::Rope(rope) = &config.positions {
        put("rope.freq_base", json!(rope.theta));
        put("rope.dimension_count", json!(rope.rotary_dim));
        match &rope.scaling {
            RopeScaling::Linear { factor } => {
                put("rope.scaling.type", json!("linear"));
                put("rope.scaling.factor", json!(factor));
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_seq_len, .. } => {
                put("rope.scaling.type", json!("yarn"));
                put("rope.scaling.factor", json!(factor));
                put("rope.scaling.original_context_length", json!(original_max_seq_len));
                put("rope.scaling.yarn_beta_fast", json!(beta_fast));
                put("rope.scaling.yarn_beta_slow", json!(beta_slow));
            }
            RopeScaling::LongRope { attention_factor, original_max_seq_len, .. } => {
                put("rope.scaling.type", json!(LONG_ROPE));
                put("rope.scaling.original_context_length", json!(original_max_seq_len));
                put(ATTENTION_FACTOR, json!(attention_factor));
            }
            _ => {}
        }
    }
    if gguf.name == "granite" {
        put("attention.scale", json!(config.score_scale()));
    }
    if let Some(window_rope) = &config.window_rope {
        put("rope.freq_base_swa", json!(window_rope.theta));
    }
    if let Some(window) = config.sliding_window {
        put("attention.sliding_window", json!(window));
        if has_pattern {
            let windowed: Vec<bool> = (0..config.n_layers).map(|layer| config.window_of(layer).is_some()).collect();
            put("attention.sliding_window_pattern", json!(windowed));
        }
    }
    if config.head_dim * config.n_heads != config.d_model || own.contains_key("attention.key_length") {
        own.insert("attention.value_length".to_owned(), json!(config.head_dim));
    }
    own
}

/// The metadata of the model itself.
pub(super) fn entries(gguf: &Gguf, own: &Map<String, Value>, name: &str) -> Vec<(String, Entry)> {
    let mut pairs = vec![
        ("general.architecture".to_owned(), Entry::Text(gguf.name.to_owned())),
        ("general.name".to_owned(), Entry::Text(name.to_owned())),
        ("general.quantization_version".to_owned(), Entry::Unsigned(2)),
    ];
    let of_own = own.iter().filter_map(|(key, value)| {
        let entry = match value {
            // Granite's divisor is written as a whole number where it is one; in GGUF files it is a float.
            Value::Number(number) if key == "logit_scale" => Entry::Float(number.as_f64()? as f32),
            value => entry_of_json(value)?,
        };
        Some((format!("{}.{key}", gguf.name), entry))
    });
    pairs.extend(of_own);
    pairs
}

/// Its value in a file.
fn entry_of_json(value: &Value) -> Option<Entry> {
    Some(match value {
        Value::Bool(flag) => Entry::Flag(*flag),
        Value::Number(number) => match number.as_u64().and_then(|number| u32::try_from(number).ok()) {
            Some(number) => Entry::Unsigned(number),
            None => Entry::Float(number.as_f64()? as f32),
        },
        Value::String(text) => Entry::Text(text.clone()),
        Value::Array(flags) => Entry::Flags(flags.iter().map(Value::as_bool).collect::<Option<_>>()?),
        Value::Null | Value::Object(_) => return None,
    })
}

/// The sampling defaults under the keys of llama.cpp's converter: those that differ from the neutral ones, and those that
/// `generation`, the contents of `generation_config.json`, states, since llama.cpp has defaults of its own.
pub(super) fn sampling_entries(defaults: &SamplingParams, generation: &Map<String, Value>) -> Vec<(String, Entry)> {
    let neutral = SamplingParams::default();
    if defaults.typical_p != neutral.typical_p {
        tracing::warn!("`typical_p` = {} is not exported: GGUF files have no key for it", defaults.typical_p);
    }
    let is_stated = |name: &str| {
        generation.get("do_sample") != Some(&Value::Bool(false)) && generation.get(name).is_some_and(|it| !it.is_null())
    };
    let floats = [
        ("temp", "temperature", defaults.temperature, neutral.temperature),
        ("top_p", "top_p", defaults.top_p, neutral.top_p),
        ("min_p", "min_p", defaults.min_p, neutral.min_p),
        ("penalty_repeat", "repetition_penalty", defaults.repetition_penalty, neutral.repetition_penalty),
    ];
    let floats = floats.into_iter().filter(|(_, name, value, neutral)| value != neutral || is_stated(name));
    let top_k = u32::try_from(defaults.top_k).ok().filter(|top_k| *top_k > 0 || is_stated("top_k"));
    let entries = floats
        .map(|(key, _, value, _)| (key, Entry::Float(value)))
        .chain(top_k.map(|top_k| ("top_k", Entry::Unsigned(top_k))));
    entries.map(|(key, entry)| (format!("{SAMPLING_PREFIX}{key}"), entry)).collect()
}
