//! The metadata of a file that is written, and which architecture describes a model.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::{
    super::{
        config_json::Fields,
        tensor_names::{TensorNames, TensorPart},
    },
    SAMPLING_PREFIX,
    architectures::ALL,
    config_rows::{ATTENTION_FACTOR, FACTOR_LISTS, LONG_ROPE, long_rope},
    description::Gguf,
    rope_factors::{self, frequency_factors},
    writer::Entry,
};
use crate::{
    config::{Experts, GptConfig, Positions, Recurrence, Recurrent, RopeScaling, RouterScores},
    decode::sampling::SamplingParams,
    error::{Error, Result},
    gpt::{ParamSpec, param_specs},
};

/// Architectures by the classes that the converter of llama.cpp turns into them.
const OF_CLASSES: &[(&str, &str)] = &[
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
    ("ApertusForCausalLM", "apertus"),
    ("Gemma4ForCausalLM", "gemma4"),
    ("Gemma4UnifiedForCausalLM", "gemma4"),
    ("MixtralForCausalLM", "llama"),
    ("Qwen2MoeForCausalLM", "qwen2moe"),
    ("Qwen3MoeForCausalLM", "qwen3moe"),
    ("OlmoeForCausalLM", "olmoe"),
    ("GraniteMoeForCausalLM", "granitemoe"),
    ("GraniteMoeSharedForCausalLM", "granitemoe"),
    ("Glm4MoeForCausalLM", "glm4moe"),
    ("Ernie4_5_MoeForCausalLM", "ernie4_5-moe"),
    ("GptOssForCausalLM", "gpt-oss"),
    ("DeepseekV2ForCausalLM", "deepseek2"),
    ("DeepseekV3ForCausalLM", "deepseek2"),
    ("Glm4MoeLiteForCausalLM", "deepseek2"),
    ("YoutuForCausalLM", "deepseek2"),
    ("MiniCPM3ForCausalLM", "minicpm3"),
    ("Lfm2ForCausalLM", "lfm2"),
    ("Lfm2MoeForCausalLM", "lfm2moe"),
    ("Qwen3_5ForCausalLM", "qwen35"),
    ("Qwen3_5MoeForCausalLM", "qwen35moe"),
    ("Qwen3NextForCausalLM", "qwen3next"),
    ("GraniteMoeHybridForCausalLM", "granitehybrid"),
    ("BambaForCausalLM", "granitehybrid"),
    ("NemotronHForCausalLM", "nemotron_h"),
];

/// The architectures for which llama.cpp reads the factors of LongRoPE.
const WITH_FACTOR_LISTS: [&str; 3] = ["phi3", "llama", "minicpm"];
/// The architectures for which llama.cpp reads rotary factors for all lengths.
const WITH_FREQUENCY_FACTORS: [&str; 9] =
    ["llama", "mistral3", "exaone", "exaone4", "arcee", "minicpm", "granite", "granitemoe", "gemma4"];
/// The architectures for which llama.cpp reads how the router scores and weights experts.
const WITH_ROUTER_KEYS: [&str; 3] = ["glm4moe", "deepseek2", "nemotron_h_moe"];
/// The architectures for which its routers may have a bias for the selection.
const WITH_SELECTION_BIAS: [&str; 5] = ["glm4moe", "deepseek2", "nemotron_h_moe", "ernie4_5-moe", "lfm2moe"];
/// The architectures whose first layers may have an MLP without experts.
const WITH_DENSE_LAYERS: [&str; 4] = ["glm4moe", "deepseek2", "ernie4_5-moe", "lfm2moe"];

/// The architecture that describes `config`, the configuration as it is in the file (norms have no offset), and the
/// architecture's keys with their values.
///
/// # Errors
/// [`Error::Config`] if none does.
pub(in super::super) fn described(
    config: &GptConfig,
    class: Option<&str>,
) -> Result<(&'static Gguf, GptConfig, Map<String, Value>)> {
    let mut config = GptConfig { norm_weight_offset: 0.0, final_norm_offset: None, ..config.clone() };
    // Files do not have fields that only training needs.
    config.experts.iter_mut().for_each(|experts| experts.balance_loss = 0.0);
    if let Some(Recurrent { recurrence: Recurrence::Mamba2(mamba), .. }) = &mut config.recurrent
        && mamba.min_time_step > 0.0
    {
        tracing::warn!("the least time step, {}, is not exported: GGUF files have no key for it", mamba.min_time_step);
        mamba.min_time_step = 0.0;
    }
    if let Positions::Rope(rope) = &mut config.positions
        && matches!(rope.scaling, RopeScaling::Dynamic { .. })
    {
        // GGUF has no such scaling, and within the model's context it has no effect.
        rope.scaling = RopeScaling::None;
    }
    let usual = OF_CLASSES.iter().find(|(of, _)| Some(*of) == class).map(|(_, name)| *name);
    let is_usual = |gguf: &&Gguf| Some(gguf.name) == usual;
    let candidates = ALL.iter().filter(is_usual).chain(ALL.iter().filter(|gguf| !is_usual(gguf)));
    // For encoders, only reading other programs' files is supported.
    for gguf in candidates.filter(|gguf| !(gguf.base)().bidirectional) {
        if let Some(own) = written(gguf, &config) {
            return Ok((gguf, config, own));
        }
    }
    let why = match (class, ALL.iter().find(|gguf| Some(gguf.name) == usual)) {
        (_, Some(gguf)) => format!("files of `{}` {}", gguf.name, lack(gguf, &config)),
        (Some(class), None) => format!("llama.cpp's converter has none for `{class}` that Hearth writes"),
        (None, None) => format!("tried were {}", ALL.iter().map(|gguf| gguf.name).collect::<Vec<_>>().join(", ")),
    };
    let what = format!(
        "no architecture of GGUF files describes the model: {why}\nhint: serve the model dir instead; `hearth quantize` makes it \
         smaller"
    );
    Err(Error::Config { field: "architecture".into(), what })
}

/// The fields of `config` that files of `gguf` cannot represent.
fn lack(gguf: &Gguf, config: &GptConfig) -> String {
    let names = gguf.names();
    if config.xielu {
        return "have the numbers of xIELU as metadata, which is not written".into();
    }
    if let Some(feature) = unread_by_llama_cpp(gguf, config) {
        return format!("have no {feature} in llama.cpp");
    }
    if let Some(spec) = param_specs(config).iter().find(|spec| !names.knows(spec, config)) {
        return format!("have no tensor for `{}`", spec.path);
    }
    match read_back(gguf, config, false) {
        Err(error) => format!("are not written: {error}"),
        Ok((read, _)) => {
            let fields = |config: &GptConfig| match serde_json::to_value(config) {
                Ok(Value::Object(fields)) => fields,
                _ => Map::new(),
            };
            let (own, read) = (fields(config), fields(&read));
            let differ = own.iter().filter(|(name, value)| read.get(*name) != Some(value));
            let shown = |(name, value): (&String, &Value)| match value {
                Value::Object(_) | Value::Array(_) => format!("this `{name}`"),
                value => format!("`{name}` = {value}"),
            };
            let differ: Vec<_> = differ.map(shown).collect();
            format!("cannot say {}", differ.join(", "))
        }
    }
}

/// A feature that the file could have, but llama.cpp would pass over.
fn unread_by_llama_cpp(gguf: &Gguf, config: &GptConfig) -> Option<&'static str> {
    let has = |list: &[&str]| list.contains(&gguf.name);
    let experts = config.experts.as_ref();
    let router = |experts: &Experts| (experts.scores, experts.normalized, experts.weight_multiplier);
    let of_base = (gguf.base)().experts.as_ref().map_or((RouterScores::Softmax, true, 1.0), router);
    let is_usual = experts.is_none_or(|experts| router(experts) == of_base);
    let dense = experts.map_or(&[][..], |experts| &experts.dense_layers);
    let are_first = dense.iter().copied().eq(0..dense.len());
    let scaling = if let Positions::Rope(rope) = &config.positions { rope.scaling.clone() } else { RopeScaling::None };
    let features = [
        ("value heads in the order that Hearth would write", gguf.name.starts_with("qwen35")),
        ("rotary scaling `longrope`", matches!(scaling, RopeScaling::LongRope { .. }) && !has(&WITH_FACTOR_LISTS)),
        ("rotary scaling `llama3`", matches!(scaling, RopeScaling::Llama3 { .. }) && !has(&WITH_FREQUENCY_FACTORS)),
        ("layers without experts between others", !(dense.is_empty() || are_first && has(&WITH_DENSE_LAYERS))),
        ("router like this one", !is_usual && !has(&WITH_ROUTER_KEYS)),
        ("bias of the router", experts.is_some_and(|it| it.selection_bias) && !has(&WITH_SELECTION_BIAS)),
    ];
    features.into_iter().find(|(_, is_there)| *is_there).map(|(feature, _)| feature)
}

/// The keys of `gguf` for `config`, if reading them back gives `config`.
fn written(gguf: &Gguf, config: &GptConfig) -> Option<Map<String, Value>> {
    let names = gguf.names();
    // The numbers of xIELU are metadata, which is not written.
    let has_names = !config.xielu && param_specs(config).iter().all(|spec| names.knows(spec, config));
    if !has_names || unread_by_llama_cpp(gguf, config).is_some() {
        return None;
    }
    [false, true].into_iter().find_map(|has_pattern| {
        let (read, own) = read_back(gguf, config, has_pattern).ok()?;
        (read == *config).then_some(own)
    })
}

/// The tensors of `spec` in a file that is written. A second norm, which some files of Falcon have, is the mark of models that have
/// two.
pub(super) fn written_parts(names: &TensorNames, spec: &ParamSpec, config: &GptConfig) -> Vec<TensorPart> {
    names.parts(spec, config, &|name| !(config.shared_norm && name.contains(".attn_norm_2.")))
}

/// What reading the keys of `gguf` for `config` gives, and the keys.
fn read_back(gguf: &Gguf, config: &GptConfig, has_pattern: bool) -> Result<(GptConfig, Map<String, Value>)> {
    let names = gguf.names();
    let specs = param_specs(config);
    let lists = factors(config);
    let params = specs.iter().flat_map(|spec| written_parts(&names, spec, config)).map(|part| part.name);
    let tensors: Vec<String> = params.chain(lists.iter().map(|(name, _)| (*name).to_owned())).collect();
    let has = |name: &str| tensors.iter().any(|tensor| tensor == name);
    let own = keys(gguf, config, has_pattern);
    let fields = Fields::new(&own, Path::new("metadata"));
    let mut read = gguf.read(&fields, &has)?;
    if let (Positions::Rope(rope), Positions::Rope(written)) = (&mut read.positions, &config.positions) {
        match &lists[..] {
            [] => {}
            // The same frequencies, whatever parameters they come from.
            [_] => rope.scaling = written.scaling.clone(),
            [short, long, ..] => {
                rope.scaling = long_rope(&fields, config.max_seq_len, [short.1.clone(), long.1.clone()])?;
            }
        }
    }
    if let (Some(read), Some(written)) = (&mut read.per_layer_inputs, &config.per_layer_inputs) {
        // By the tensor's shape.
        read.vocab_size = written.vocab_size;
    }
    Ok((GptConfig { vocab_size: config.vocab_size, dropout: config.dropout, ..read }, own))
}

/// The factors of rotary positions in `config` that are tensors, with their names: two lists of LongRoPE, or one.
pub(super) fn factors(config: &GptConfig) -> Vec<(&'static str, Vec<f32>)> {
    let Positions::Rope(rope) = &config.positions else { return Vec::new() };
    if let RopeScaling::LongRope { short_factors, long_factors, .. } = &rope.scaling {
        let [short, long] = FACTOR_LISTS;
        return vec![(short, short_factors.clone()), (long, long_factors.clone())];
    }
    frequency_factors(rope, config.max_seq_len).map(|list| (rope_factors::TENSOR, list)).into_iter().collect()
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
    if gguf.name.starts_with("granite") {
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
        own.entry("attention.value_length").or_insert(json!(config.head_dim));
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
        Value::Array(list) if list.iter().all(Value::is_boolean) => {
            Entry::Flags(list.iter().filter_map(Value::as_bool).collect())
        }
        Value::Array(list) => {
            let number = |value: &Value| i32::try_from(value.as_i64()?).ok();
            Entry::Ints(list.iter().map(number).collect::<Option<_>>()?)
        }
        Value::Null | Value::Object(_) => return None,
    })
}

/// The sampling defaults under the keys of llama.cpp's converter: those that differ from the neutral ones, and those in
/// `generation`, the contents of `generation_config.json`, since llama.cpp's own defaults are not neutral.
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
