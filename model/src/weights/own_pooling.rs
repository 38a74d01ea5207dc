//! The pooling of a text's hidden states into one vector, as an embedding model's files state it: the files of
//! [sentence-transformers](https://www.sbert.net), and a key of GGUF files.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{
    config_json::Fields,
    file_names::{CONFIG_FILE, MODULES_FILE, POOLING_FILE, PROMPTS_FILE, TEXT_LIMIT_FILE},
    files::{TensorFiles, path_inside},
    tensor_table::TensorTable,
};
use crate::{
    error::Result,
    files::{python_json, regular_file},
    gpt::pooling::{DenseActivation, DenseLayer, OwnPooling, Pooling, Prompts},
};

/// The modes of a pooling, without their prefix.
const MODES: [(&str, Option<Pooling>); 6] = [
    ("mean_tokens", Some(Pooling::Mean)),
    ("lasttoken", Some(Pooling::Last)),
    ("max_tokens", Some(Pooling::Max)),
    ("cls_token", Some(Pooling::Cls)),
    ("mean_sqrt_len_tokens", None),
    ("weightedmean_tokens", None),
];

/// The pooling that the files of the model dir `dir` state.
///
/// # Errors
/// A file cannot be read, or is not JSON.
pub(super) fn of_dir(dir: &Path) -> Result<OwnPooling> {
    let mut pooling_path = dir.join(POOLING_FILE);
    let mut layers = Vec::new();
    for (kind, path) in modules(dir)? {
        match kind.as_str() {
            "Transformer" | "Normalize" => {}
            "Pooling" => pooling_path = path.map_or(pooling_path, |path| dir.join(path).join("config.json")),
            "Dense" => {
                let modules_path = dir.join(MODULES_FILE);
                let layer = path.map(|path| dense_layer(&dir.join(path)));
                let what = || format!("`{}` has a module without a `path`", modules_path.display());
                match layer.ok_or_else(|| crate::Error::file(&modules_path, what()))?? {
                    Ok(layer) => layers.push(layer),
                    Err(what) => return Ok(OwnPooling::Unsupported(what)),
                }
            }
            other => {
                let what = format!("`{}` has the module `{other}`", dir.join(MODULES_FILE).display());
                return Ok(OwnPooling::Unsupported(what));
            }
        }
    }
    if !pooling_path.is_file() {
        return Ok(OwnPooling::Unstated);
    }
    Ok(match of_modes(&regular_file::read_json_object(&pooling_path)?, &pooling_path) {
        OwnPooling::As(pooling) if !layers.is_empty() => OwnPooling::Layered(pooling, layers.into()),
        pooling => pooling,
    })
}

/// The files of sentence-transformers for a model that pools texts by `pooling` into vectors of `width` components and
/// length 1, and reads `max_tokens` of a text.
pub fn pooling_files(pooling: Pooling, width: usize, max_tokens: usize) -> Vec<(String, Vec<u8>)> {
    let module = |index: usize, path: &str, kind: &str| json!({ "idx": index, "name": index.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}") });
    let modules =
        json!([module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling"), module(2, "2_Normalize", "Normalize")]);
    let mut modes = json!({ "word_embedding_dimension": width });
    for (mode, stands_for) in MODES {
        modes[format!("pooling_mode_{mode}")] = (stands_for == Some(pooling)).into();
    }
    let limit = json!({ "max_seq_length": max_tokens, "do_lower_case": false });
    let file = |(name, json): (&str, Value)| (name.to_owned(), format!("{json:#}\n").into_bytes());
    [(MODULES_FILE, modules), (POOLING_FILE, modes), (TEXT_LIMIT_FILE, limit)].map(file).into()
}

/// The maximum number of tokens of a text that the files of the model dir `dir` state, if any.
///
/// # Errors
/// A file cannot be read, or is not JSON.
pub(super) fn text_limit(dir: &Path) -> Result<Option<usize>> {
    let path = dir.join(TEXT_LIMIT_FILE);
    if !path.is_file() {
        return Ok(None);
    }
    Fields::new(&regular_file::read_json_object(&path)?, &path).size("max_seq_length")
}

/// The folder of the module `kind` in the model dir `dir`, if it has one.
///
/// # Errors
/// A file cannot be read, or is not JSON.
pub(super) fn module_path(dir: &Path, kind: &str) -> Result<Option<PathBuf>> {
    let modules = modules(dir)?;
    let found = modules.iter().find(|(name, _)| name == kind);
    Ok(found.and_then(|(_, path)| path.clone()).map(|path| dir.join(path)))
}

/// The modules that texts pass through, from `modules.json` of the model dir `dir`: types of modules with their
/// folders.
pub(super) fn modules(dir: &Path) -> Result<Vec<(String, Option<PathBuf>)>> {
    let path = dir.join(MODULES_FILE);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let modules: Vec<Map<String, Value>> = python_json::parse(&regular_file::read(&path)?)
        .map_err(|error| crate::Error::file(&path, format!("is not a list of modules: {error}")))?;
    let module = |module: &Map<String, Value>| {
        // `sentence_transformers.models.Pooling`, or a longer path in later versions.
        let kind = module.get("type").and_then(Value::as_str).unwrap_or_default().rsplit('.').next();
        let path = module.get("path").and_then(Value::as_str).and_then(path_inside);
        (kind.unwrap_or_default().to_owned(), path.map(PathBuf::from))
    };
    Ok(modules.iter().map(module).collect())
}

/// The prompts of the model dir `dir`, by name.
///
/// # Errors
/// A file cannot be read, or is not JSON; or its prompts are no texts.
pub(super) fn prompts(dir: &Path) -> Result<Prompts> {
    let path = dir.join(PROMPTS_FILE);
    if !path.is_file() {
        return Ok(Prompts::default());
    }
    let json = regular_file::read_json_object(&path)?;
    let fields = Fields::new(&json, &path);
    let by_name = fields.object("prompts")?.map(Fields::to_map).unwrap_or_default().into_iter();
    let by_name = by_name.filter(|(_, prompt)| !prompt.is_null()).map(|(name, prompt)| match prompt.as_str() {
        Some(text) => Ok((name, text.to_owned())),
        None => Err(fields.wrong(&format!("prompts.{name}"), "a string", &prompt)),
    });
    let by_name = by_name.collect::<Result<_>>()?;
    let default_name = fields.get("default_prompt_name").and_then(Value::as_str).map(str::to_owned);
    Ok(Prompts { by_name, default_name })
}

/// The layer in the folder `dir`, or its unsupported setting.
pub(super) fn dense_layer(dir: &Path) -> Result<Result<DenseLayer, String>> {
    let config_path = dir.join(CONFIG_FILE);
    let config = regular_file::read_json_object(&config_path)?;
    // `torch.nn.modules.activation.Tanh`.
    let activation = config.get("activation_function").and_then(Value::as_str).unwrap_or("Tanh");
    let name = activation.rsplit('.').next().unwrap_or_default();
    let activation = match name {
        "Identity" => DenseActivation::Identity,
        "Tanh" => DenseActivation::Tanh,
        "ReLU" => DenseActivation::Relu,
        "GELU" => DenseActivation::Gelu,
        _ => return Ok(Err(format!("`{}` has the activation `{name}`", config_path.display()))),
    };
    if config.get("use_residual") == Some(&Value::Bool(true)) {
        return Ok(Err(format!("`{}` adds its inputs to its outputs (`use_residual`)", config_path.display())));
    }
    let files = TensorFiles::open(dir)?;
    dense_from(&files.table()?, "linear", activation).map(Ok)
}

/// The layer of the tensors `{name}.weight` and, if there is one, `{name}.bias`.
pub(super) fn dense_from(table: &TensorTable<'_>, name: &str, activation: DenseActivation) -> Result<DenseLayer> {
    let weight = table.require(&format!("{name}.weight"))?;
    let &[d_out, d_in] = weight.shape.as_slice() else {
        return Err(weight.error(format!("has the shape {:?}, expected a matrix", weight.shape)));
    };
    let bias = table.get(&format!("{name}.bias"));
    bias.map_or(Ok(()), |bias| bias.require_shape(&[d_out]))?;
    let bias = bias.map(|bias| bias.to_f32()).transpose()?.unwrap_or_default();
    Ok(DenseLayer { weight: weight.to_f32()?, bias, d_in, activation, norm: None })
}

/// The pooling from the settings in the file `path`.
fn of_modes(json: &Map<String, Value>, path: &Path) -> OwnPooling {
    // Later versions have one key, whose values are the modes without the word "tokens".
    let named = json.get("pooling_mode").and_then(Value::as_str);
    let is_set = |mode: &str| match named {
        Some(named) => mode.strip_suffix("_tokens").or(mode.strip_suffix("_token")).unwrap_or(mode) == named,
        None => json.get(&format!("pooling_mode_{mode}")) == Some(&Value::Bool(true)),
    };
    if json.get("include_prompt") == Some(&Value::Bool(false)) {
        let what = format!("`{}` leaves prompts out of the pooling", path.display());
        return OwnPooling::Unsupported(what);
    }
    let modes: Vec<_> = MODES.into_iter().filter(|(mode, _)| is_set(mode)).collect();
    match (modes.as_slice(), named) {
        // Without a mode, the program takes the mean.
        ([], None) => OwnPooling::As(Pooling::Mean),
        ([(_, Some(pooling))], _) => OwnPooling::As(*pooling),
        _ => {
            let names = modes.iter().map(|(mode, _)| *mode).chain(named.filter(|_| modes.is_empty()));
            let names = names.collect::<Vec<_>>().join("` and `");
            OwnPooling::Unsupported(format!("`{}` has the mode `{names}`", path.display()))
        }
    }
}

/// The number of a pooling in GGUF files, if it has one.
pub(super) fn gguf_number(own: &OwnPooling) -> Option<u32> {
    match own {
        OwnPooling::As(Pooling::Mean) => Some(1),
        OwnPooling::As(Pooling::Cls) => Some(2),
        OwnPooling::As(Pooling::Last) => Some(3),
        _ => None,
    }
}

/// The pooling for its number in the GGUF file `path`, under the key `key`.
pub(super) fn of_gguf(number: Option<u64>, key: &str, path: &Path) -> OwnPooling {
    match number {
        None | Some(0) => OwnPooling::Unstated,
        Some(1) => OwnPooling::As(Pooling::Mean),
        Some(2) => OwnPooling::As(Pooling::Cls),
        Some(3) => OwnPooling::As(Pooling::Last),
        Some(other) => {
            let name = match other {
                4 => " (a score for ranking)",
                _ => "",
            };
            OwnPooling::Unsupported(format!("`{}` has `{key}` {other}{name}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::fs;

    use super::*;

    #[test]
    fn pooling_files_say_the_pooling_that_they_were_made_for() {
        for (name, pooling) in Pooling::ALL {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("1_Pooling")).unwrap();
            for (file, bytes) in pooling_files(pooling, 64, 77) {
                fs::write(dir.path().join(file), bytes).unwrap();
            }
            assert_eq!(of_dir(dir.path()).unwrap(), OwnPooling::As(pooling), "{name}");
            assert_eq!(text_limit(dir.path()).unwrap(), Some(77));
        }
    }

    #[test]
    fn pooling_of_sentence_transformers_files_is_read_or_named() {
        let read = |modules: Option<Value>, pooling: Option<Value>| {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("1_Pooling")).unwrap();
            for (file, json) in [(MODULES_FILE, modules), (POOLING_FILE, pooling)] {
                json.into_iter().for_each(|json| fs::write(dir.path().join(file), json.to_string()).unwrap());
            }
            of_dir(dir.path()).unwrap()
        };
        let module =
            |kind: &str| json!({ "path": "1_Pooling", "type": format!("sentence_transformers.models.{kind}") });
        assert_eq!(read(None, None), OwnPooling::Unstated);
        for (mode, pooling) in [
            ("mean_tokens", Pooling::Mean),
            ("lasttoken", Pooling::Last),
            ("max_tokens", Pooling::Max),
            ("cls_token", Pooling::Cls),
        ] {
            let mut json = json!({ "word_embedding_dimension": 64, "pooling_mode_max_tokens": false });
            json[format!("pooling_mode_{mode}")] = json!(true);
            let modules = json!([module("Transformer"), module("Pooling"), module("Normalize")]);
            assert_eq!(read(Some(modules), Some(json.clone())), OwnPooling::As(pooling));
            assert_eq!(read(None, Some(json)), OwnPooling::As(pooling));
            let json = json!({ "pooling_mode": mode.trim_end_matches("_tokens").trim_end_matches("_token") });
            assert_eq!(read(None, Some(json)), OwnPooling::As(pooling));
        }
        assert_eq!(read(None, Some(json!({}))), OwnPooling::As(Pooling::Mean));
        for (modules, pooling, named) in [
            (None, json!({ "pooling_mode_weightedmean_tokens": true }), "`weightedmean_tokens`"),
            (None, json!({ "pooling_mode": "attention" }), "`attention`"),
            (
                None,
                json!({ "pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true }),
                "`mean_tokens` and `max_tokens`",
            ),
            (Some(json!([module("Transformer"), module("Pooling"), module("LSTM")])), json!({}), "`LSTM`"),
        ] {
            let found = read(modules, Some(pooling));
            assert!(matches!(&found, OwnPooling::Unsupported(what) if what.contains(named)), "{named}: {found:?}");
        }
    }
}
