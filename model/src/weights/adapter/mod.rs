//! Low-rank adapters in the format of [PEFT](https://github.com/huggingface/peft): `adapter_config.json` and
//! `adapter_model.safetensors`; and as GGUF files of llama.cpp. Both are read and written.
//!
//! PEFT has a pair of matrices for each linear module of the Hugging Face class. For a parameter that stacks all
//! experts of a layer, it has one pair of tensors with the pairs of all experts; older files have modules for each
//! expert. Hearth's matrices may stack several modules, so a pair updates a range of rows. If the class has these rows
//! in another order, the rows of `B` are reordered.

mod config;
mod gguf_file;
mod modules;
mod pairs;

use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;

pub use self::config::{AdapterConfig, Targets};
use self::{
    modules::{LinearModule, expert_modules, linear_modules},
    pairs::{ModulePair, StoredPair},
};
use super::{
    architectures::{OWN_CLASS, wrappers::wrapped_names},
    files::{DiskDtype, TensorFiles},
    gguf,
    hf_schema::HfSchema,
    staged_dir::StagedDir,
    tensor_names::OfExpert,
    tensor_table::{StoredTensor, TensorTable},
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    files::{partial_file::PartialFile, regular_file},
    gpt::lora::{LoraPair, LoraShape, LoraValues, MatrixUpdate},
    philox::{halves, philox, unit_interval},
};

const CONFIG_FILE: &str = "adapter_config.json";
const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// PEFT's prefix of the names of modules.
const PREFIX: &str = "base_model.model.";

/// A hint.
const OF_ANOTHER_MODEL: &str =
    "the adapter belongs to another model, or updates embeddings or the output matrix, which is not supported";

/// An adapter, ready for a model of one architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Its configuration.
    pub config: AdapterConfig,
    /// Its values.
    pub values: LoraValues,
}

/// The architecture that an adapter is for, and the Hugging Face class that names its modules.
#[derive(Clone, Copy)]
pub struct AdapterModel<'a> {
    config: &'a GptConfig,
    schema: HfSchema,
}

impl std::fmt::Debug for AdapterModel<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdapterModel").field("class", &self.schema.class()).finish_non_exhaustive()
    }
}

impl<'a> AdapterModel<'a> {
    /// Modules are named as in `class`. If the class is unknown or Hearth's own (a quantized copy of a model), they are
    /// named as in the first class that can express `config`.
    ///
    /// # Errors
    /// [`Error::Config`] if `class` is not known or cannot express `config`.
    pub fn new(config: &'a GptConfig, class: Option<&str>) -> Result<Self> {
        let class = class.filter(|class| *class != OWN_CLASS);
        Ok(Self { config, schema: HfSchema::for_config(config, class)?.0 })
    }

    /// The last parts of the names of all linear modules, such as `q_proj`.
    pub fn module_names(&self) -> Vec<String> {
        unique(self.linear_modules().iter().map(|module| last_part(&module.name)))
    }

    /// The ends of the names of the parameters that stack all experts of a layer, such as `experts.down_proj`.
    pub fn parameter_names(&self) -> Vec<String> {
        let modules = expert_modules(&self.schema.tensor_names(), self.config, true);
        unique(modules.iter().map(|module| {
            let container = module.name.rsplit('.').nth(1).map_or(0, |container| container.len() + 1);
            &module.name[module.name.len() - last_part(&module.name).len() - container..]
        }))
    }

    /// A hint.
    fn known_modules(&self) -> String {
        let last = self.config.n_layers.saturating_sub(1);
        let mut hint = format!("the model has `{}`, in layers 0 to {last}", self.module_names().join("`, `"));
        let parameters = self.parameter_names();
        if !parameters.is_empty() {
            hint += &format!("; as target parameters `{}`", parameters.join("`, `"));
        }
        hint
    }

    fn linear_modules(&self) -> Vec<LinearModule> {
        linear_modules(&self.schema.tensor_names(), self.config)
    }

    /// All modules that an adapter of `config` may update. Routed experts are parameters if it targets parameters, and else modules.
    fn modules(&self, config: &AdapterConfig) -> Vec<LinearModule> {
        let are_stacked = !config.parameters.is_empty();
        let mut of_experts = expert_modules(&self.schema.tensor_names(), self.config, are_stacked);
        of_experts.retain(|module| !are_stacked || config.targets(module));
        // PEFT wraps the module of the parameters once for each parameter, the first one innermost.
        for n in 0..if are_stacked { of_experts.len() } else { 0 } {
            let (layer, expert) = (of_experts[n].layer, of_experts[n].expert);
            let rest = of_experts[n + 1..].iter();
            let n_outer = rest.take_while(|other| other.layer == layer && other.expert == expert).count();
            let LinearModule { name, holder, .. } = &mut of_experts[n];
            let container = name.strip_suffix(last_part(name)).and_then(|name| name.strip_suffix('.'));
            *holder = container.unwrap_or_default().to_owned() + &".base_layer".repeat(n_outer);
        }
        let mut modules = self.linear_modules();
        modules.extend(of_experts);
        modules
    }

    /// The modules that a new adapter of `config` updates. Experts only as parameters, as they are in transformers.
    fn targeted(&self, config: &AdapterConfig) -> Vec<LinearModule> {
        let mut modules = self.modules(config);
        modules.retain(|module| config.targets(module) && !module.is_of_one_expert());
        modules
    }
}

/// Each name once.
fn unique<'n>(names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let mut found = Vec::new();
    for name in names {
        if !found.iter().any(|other| other == name) {
            found.push(name.to_owned());
        }
    }
    found
}

impl Adapter {
    /// A new adapter without effect: as in PEFT, `B` is 0 and `A` uniform within `1 / sqrt(d_in)`.
    ///
    /// # Errors
    /// [`Error::Param`] if the targets, or one of their names, match no module of the model, or if the model lacks one
    /// of the layers.
    pub fn new(model: AdapterModel<'_>, config: AdapterConfig, seed: u64) -> Result<Self> {
        let n_layers = model.config.n_layers;
        if let Some(layer) = config.layers.iter().flatten().find(|layer| **layer >= n_layers) {
            let what = format!("has {layer}, but the model has the layers 0 to {}", n_layers.saturating_sub(1));
            return Err(Error::Param { name: "lora.layers", what });
        }
        let modules = model.targeted(&config);
        let refuse = |what: String| {
            Err(Error::Param { name: "lora.targets", what: format!("{what}\nhint: {}", model.known_modules()) })
        };
        for name in &config.parameters {
            let one =
                AdapterConfig { parameters: vec![name.clone()], targets: Targets::Named(Vec::new()), ..config.clone() };
            if model.targeted(&one).is_empty() {
                let hint = format!("hint: {}", model.known_modules());
                let what = format!("has `{name}`, which is not a parameter of all experts of a layer\n{hint}");
                return Err(Error::Param { name: "lora.target_parameters", what });
            }
        }
        if let Targets::Named(names) = &config.targets {
            let without = AdapterConfig { parameters: Vec::new(), ..config.clone() };
            let one = |name: &String| AdapterConfig { targets: Targets::Named(vec![name.clone()]), ..without.clone() };
            for name in names {
                if model.targeted(&one(name)).is_empty() {
                    return refuse(format!("has `{name}`, which is not a linear module of the model"));
                }
            }
        }
        if modules.is_empty() {
            return refuse("match no linear module of the model".to_owned());
        }
        let mut values = LoraValues::default();
        let mut number = 0u64;
        for modules in modules.chunk_by(|one, next| one.path == next.path) {
            let (shape, path) = (shape_of(modules, &config)?, modules[0].path.clone());
            let mut update = vec![0.0; shape.n_values()];
            let bound = 1.0 / (shape.d_in as f32).sqrt();
            for value in &mut update[..shape.total_rank() * shape.d_in] {
                *value = bound * (2.0 * uniform(seed, number) - 1.0);
                number += 1;
            }
            values.0.insert(path, MatrixUpdate { shape: Arc::new(shape), values: update });
        }
        Ok(Self { config, values })
    }

    /// Whether `dir` is the folder of an adapter and not of a model.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(CONFIG_FILE).is_file() && !dir.join("config.json").exists()
    }

    /// Reads only the configuration of the adapter in the folder or GGUF file `dir`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_config(dir: &Path) -> Result<AdapterConfig> {
        if gguf::is_gguf(dir) {
            return gguf_file::open_config(dir);
        }
        let path = dir.join(CONFIG_FILE);
        AdapterConfig::read(&regular_file::read_json_object(&path)?, &path)
    }

    /// Opens the adapter in the folder or GGUF file `dir` for a model.
    ///
    /// # Errors
    /// A file is missing or broken, the adapter is of a kind that is not computed (the error names the key), it belongs to
    /// another model (the error names the tensor), or it targets no module of the model.
    pub fn open(dir: &Path, model: AdapterModel<'_>) -> Result<Self> {
        if gguf::is_gguf(dir) {
            return gguf_file::open(dir, model);
        }
        let config = Self::open_config(dir)?;
        let path = dir.join(WEIGHTS_FILE);
        let files = TensorFiles::single(&path)?;
        let table = files.table()?;
        let mut used = HashSet::new();
        let mut found = Vec::new();
        let modules = model.modules(&config);
        let has_targets = modules.iter().any(|module| config.targets(module));
        // Without any pair of a single expert, the targets meant other modules of the same name.
        let mut without_pair = None;
        for module in modules {
            let tensors = ["lora_A", "lora_B"].map(|part| find(&table, model.schema, &module.holder, part));
            match tensors {
                [Some(a), Some(b)] => {
                    used.extend([a.name, b.name]);
                    let rank = config.rank_of(&module.name);
                    let scale = config.scale_of(&module.name, rank)?;
                    found.push(StoredPair { module, rank, scale, a, b });
                }
                [None, None] if config.targets(&module) && module.is_of_one_expert() => {
                    without_pair.get_or_insert(module.name);
                }
                [None, None] if config.targets(&module) => {
                    let what = format!("has no pair for `{}`, which `{CONFIG_FILE}` targets", module.name);
                    return Err(Error::file(path, what).with_hint("the adapter belongs to another model"));
                }
                [None, None] => {}
                [Some(one), None] | [None, Some(one)] => return Err(one.error("is half of a pair")),
            }
        }
        let has_experts = found.iter().any(|pair: &StoredPair<'_, '_>| pair.module.is_of_one_expert());
        if let Some(name) = without_pair.filter(|_| has_experts) {
            return Err(Error::file(path, format!("has no pair for `{name}`, but for other experts")));
        }
        let surplus = table.iter().filter(|tensor| !used.contains(tensor.name));
        if let Some(surplus) = surplus.min_by_key(|tensor| tensor.name) {
            let what = format!("is not of a linear module of `{}`", model.schema.class());
            return Err(surplus.error(what).with_hint(OF_ANOTHER_MODEL));
        }
        if !has_targets {
            let what = "the modules that it targets (`target_modules`, `exclude_modules`, `layers_to_transform`) include no \
                        linear module of the model";
            return Err(Error::file(dir.join(CONFIG_FILE), what).with_hint(model.known_modules()));
        }
        Ok(Self { config, values: pairs::read(&found)? })
    }

    /// Writes the adapter to a staged folder, with further files by name, such as the tokenizer's.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be written.
    pub fn write(&self, staged: &StagedDir, model: AdapterModel<'_>, extra: &[(String, Vec<u8>)]) -> Result<()> {
        let mut tensors = BTreeMap::new();
        let (mut targets, mut is_transposed) = (Vec::new(), false);
        for ModulePair { module, rank, a, b, .. } in pairs::of_modules(&self.values, model.modules(&self.config)) {
            let [name_of_a, name_of_b] =
                ["lora_A", "lora_B"].map(|part| format!("{PREFIX}{}.{part}.weight", module.holder));
            if let Some(OfExpert { number, n_experts }) = module.expert {
                let zeros = |n: usize, shape: [usize; 2]| move || (vec![0.0; n_experts * n], shape);
                let all = tensors.entry(name_of_a).or_insert_with(zeros(a.len(), [n_experts * rank, module.d_in]));
                all.0[number * a.len()..][..a.len()].copy_from_slice(a);
                let all =
                    tensors.entry(name_of_b).or_insert_with(zeros(b.len(), [module.rows.len(), rank * n_experts]));
                b.iter().enumerate().for_each(|(n, value)| all.0[n * n_experts + number] = *value);
                continue;
            }
            is_transposed |= module.order.is_transposed();
            let target = target_of(&module.name, model.config.bidirectional).to_owned();
            if !targets.contains(&target) {
                targets.push(target);
            }
            tensors.insert(name_of_a, (a.to_vec(), [rank, module.d_in]));
            tensors.insert(name_of_b, (b, [module.rows.len(), rank]));
        }
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let tensors: BTreeMap<_, _> =
            tensors.into_iter().map(|(name, (values, shape))| (name, (bytes(&values), shape))).collect();
        let failed = |error: safetensors::SafeTensorError| Error::Execution { what: error.to_string() };
        let views = tensors.iter().map(|(name, (bytes, shape))| {
            TensorView::new(Dtype::F32, shape.to_vec(), bytes).map(|view| (name.as_str(), view)).map_err(failed)
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let format = [("format".to_owned(), "pt".to_owned())].into();
        let bytes = safetensors::serialize(views, Some(format)).map_err(failed)?;
        staged.write(WEIGHTS_FILE, &bytes)?;
        extra.iter().try_for_each(|(name, bytes)| staged.write(name, bytes))?;
        let json = Value::Object(self.config.write(&targets, is_transposed, model.config.bidirectional));
        staged.write(CONFIG_FILE, format!("{json:#}\n").as_bytes())
    }

    /// Writes the adapter to `file` in the GGUF format, and finishes the file. llama.cpp scales all pairs by one number and
    /// their rank, so other scales become part of the values.
    ///
    /// # Errors
    /// [`Error::Config`] if no architecture of GGUF files describes the model, or not the modules that the adapter updates;
    /// [`Error::Io`] if the file cannot be written.
    pub fn write_gguf(&self, file: PartialFile, model: AdapterModel<'_>, form: DiskDtype) -> Result<()> {
        gguf_file::write(&self.values, model, file, form)
    }

    /// The folder of the model that an adapter in `dir` updates, if its configuration names one that is on this machine:
    /// an absolute path, or one relative to `dir`.
    pub fn base_dir(dir: &Path) -> Result<Option<PathBuf>> {
        let base = Self::open_config(dir)?.base.map(|base| dir.join(base));
        Ok(base.filter(|base| base.exists()))
    }
}

/// The sizes of the pairs of one matrix's modules.
fn shape_of(modules: &[LinearModule], config: &AdapterConfig) -> Result<LoraShape> {
    let pair = |module: &LinearModule| {
        let rank = config.rank_of(&module.name);
        let scale = config.scale_of(&module.name, rank)?;
        Ok(LoraPair { rows: module.rows.clone(), rank, scale })
    };
    let pairs = modules.iter().map(pair).collect::<Result<Vec<_>>>()?;
    Ok(LoraShape { d_in: modules.first().map_or(0, |module| module.d_in), pairs })
}

/// A tensor of a module's pair, with or without the prefix of the class, or under the names of a class that wraps it.
fn find<'t, 'a>(
    table: &'t TensorTable<'a>,
    schema: HfSchema,
    module: &str,
    part: &str,
) -> Option<&'t StoredTensor<'a>> {
    let short = module.strip_prefix(schema.tensor_names().base_prefix).unwrap_or(module);
    let names = [module.to_owned(), short.to_owned()].into_iter().chain(wrapped_names(module, short));
    names.into_iter().find_map(|name| table.get(&format!("{PREFIX}{name}.{part}.weight")))
}

/// By what a module is targeted: the last part of its name. Encoders have other modules that are called `dense` beside the blocks.
fn target_of(name: &str, is_encoder: bool) -> &str {
    let last = last_part(name);
    match name.rsplit('.').nth(1) {
        Some(before) if is_encoder && last == "dense" => &name[name.len() - last.len() - 1 - before.len()..],
        _ => last,
    }
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Random number `number` of an adapter, in `[0, 1)`.
fn uniform(seed: u64, number: u64) -> f32 {
    const LORA: u32 = u32::from_le_bytes(*b"lora");
    let [low, high] = halves(number);
    let [word, ..] = philox(halves(seed), [low, high, 0, LORA]);
    unit_interval(word)
}
