//! Adapters as GGUF files.

use std::{collections::HashSet, path::Path};

use super::{
    super::{
        files::DiskDtype,
        gguf::adapter_file::{self, AdapterFile, AdapterTensor},
    },
    Adapter, AdapterConfig, AdapterModel,
    modules::linear_modules,
    pairs::{self, ModulePair, StoredPair},
};
use crate::{
    error::{Error, Result},
    files::partial_file::PartialFile,
    gpt::{lora::LoraValues, param_specs::ROUTED},
};

/// The configuration, as far as the file has it.
pub(super) fn open_config(path: &Path) -> Result<AdapterConfig> {
    adapter_file::read(path, |file| config_of(&file))
}

fn config_of(file: &AdapterFile<'_>) -> Result<AdapterConfig> {
    let mut rank = 0;
    for a in file.tensors.iter().filter(|tensor| tensor.name.ends_with(".lora_a")) {
        rank = rank.max(a.shape[0]);
    }
    if rank == 0 {
        return Err(Error::file(file.tensors.path(), "has no pairs of matrices")
            .with_hint("an adapter has tensors whose names end with `.lora_a` and `.lora_b`"));
    }
    Ok(AdapterConfig::all_linear(rank, file.alpha))
}

/// Opens the adapter in the file `path` for a model.
pub(super) fn open(path: &Path, model: AdapterModel<'_>) -> Result<Adapter> {
    adapter_file::read(path, |file| {
        let config = config_of(&file)?;
        let Some(names) = file.names_for(model.config) else {
            let what = format!("is an adapter for models of the architecture `{}`", file.architecture);
            return Err(Error::file(path, what).with_hint("it belongs to another model"));
        };
        let mut used = HashSet::new();
        let mut found = Vec::new();
        for module in linear_modules(names, model.config) {
            let [a, b] = ["a", "b"].map(|part| file.tensors.get(&format!("{}.weight.lora_{part}", module.name)));
            match (a, b) {
                (Some(a), Some(b)) => {
                    used.extend([a.name, b.name]);
                    let rank = a.shape[0];
                    let scale = if file.alpha == 0.0 { 1.0 } else { (file.alpha / rank as f64) as f32 };
                    found.push(StoredPair { module, rank, scale, a, b });
                }
                (None, None) => {}
                (Some(one), None) | (None, Some(one)) => return Err(one.error("is half of a pair")),
            }
        }
        let surplus = file.tensors.iter().filter(|tensor| !used.contains(tensor.name));
        if let Some(surplus) = surplus.min_by_key(|tensor| tensor.name) {
            let what = format!("is not of a linear module of `{}`", file.architecture);
            return Err(Error::tensor(path, surplus.name, what).with_hint(super::OF_ANOTHER_MODEL));
        }
        Ok(Adapter { config, values: pairs::read(&found)? })
    })
}

/// Writes and finishes `file`.
pub(super) fn write(values: &LoraValues, model: AdapterModel<'_>, file: PartialFile, form: DiskDtype) -> Result<()> {
    if let Some(path) = values.0.keys().find(|path| path.contains(ROUTED)) {
        let what = format!("GGUF adapters do not have routed experts here, and the adapter updates `{path}`");
        return Err(Error::Config { field: "experts".into(), what });
    }
    let (architecture, names) = adapter_file::architecture_of(model.config, Some(model.schema.class()))?;
    let pairs = pairs::of_modules(values, linear_modules(&names, model.config));
    let n_updates: usize = values.0.values().map(|update| update.shape.pairs.len()).sum();
    if pairs.len() != n_updates {
        let what = format!("stacks matrices in GGUF files of `{architecture}` that the adapter updates one by one");
        return Err(Error::Config { field: "architecture".into(), what });
    }
    // One number for all pairs, from which llama.cpp computes scales by rank. If another pair has a different scale,
    // the ratio is multiplied into `B`. The number cannot be negative, and 0 means a scale of 1.
    let alpha = pairs.iter().map(|pair| pair.scale * pair.rank as f32).find(|alpha| *alpha > 0.0).unwrap_or(0.0);
    let mut tensors = Vec::new();
    for ModulePair { module, rank, scale, a, b } in pairs {
        let factor = if alpha == 0.0 { scale } else { scale * rank as f32 / alpha };
        let b: Vec<f32> = if factor == 1.0 { b } else { b.iter().map(|value| value * factor).collect() };
        let name = |part: &str| format!("{}.weight.lora_{part}", module.name);
        tensors.push(AdapterTensor { name: name("a"), shape: [rank, module.d_in], values: a.to_vec(), form });
        tensors.push(AdapterTensor { name: name("b"), shape: [module.rows.len(), rank], values: b, form });
    }
    let name = file.path().file_stem().map_or_else(|| "adapter".into(), |name| name.to_string_lossy().into_owned());
    adapter_file::write(file, (architecture, &name), alpha, &tensors)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{GptConfig, Sizes};

    /// The LoRA update of each row of each matrix.
    fn updates(values: &LoraValues) -> Vec<f32> {
        let of_row = |update: &crate::gpt::lora::MatrixUpdate, row: usize| {
            let mut out = vec![0.0; update.shape.d_in];
            update.add_to_row(row, &mut out);
            out
        };
        let rows = values.0.values().flat_map(|update| {
            let n_rows = update.shape.pairs.iter().map(|pair| pair.rows.end).max().unwrap();
            (0..n_rows).flat_map(move |row| of_row(update, row))
        });
        rows.collect()
    }

    #[test]
    fn gguf_adapter_keeps_zero_and_negative_lora_scales() {
        let sizes =
            Sizes { vocab_size: 20, max_seq_len: 16, n_layers: 1, n_heads: 4, n_kv_heads: 2, d_model: 32, d_ff: 48 };
        let config = GptConfig::llama(sizes);
        let model = AdapterModel::new(&config, Some("LlamaForCausalLM")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        for (alpha, patterns) in [
            (0, json!({})),
            (-8, json!({})),
            (6, json!({"q_proj": 0, "k_proj": -4})),
            (-6, json!({"q_proj": 0, "o_proj": 4})),
        ] {
            let json = json!({
                "peft_type": "LORA", "r": 2, "lora_alpha": alpha, "alpha_pattern": patterns, "target_modules": "all-linear",
            });
            let Value::Object(json) = json else { unreachable!() };
            let mut adapter = Adapter::new(model, AdapterConfig::read(&json, &path).unwrap(), 0).unwrap();
            for update in adapter.values.0.values_mut() {
                update.values.iter_mut().enumerate().for_each(|(n, value)| *value = (n % 7) as f32 - 3.0);
            }
            let file = PartialFile::create(&path).unwrap();
            write(&adapter.values, model, file, DiskDtype::F32).unwrap();
            let found = updates(&open(&path, model).unwrap().values);
            let expected = updates(&adapter.values);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() <= 1e-4 * expected.abs().max(1.0), "{alpha}: {found}, {expected}");
            }
        }
    }
}
