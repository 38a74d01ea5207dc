//! What GPUs cannot compute is refused, by its name and before weights are read.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeSet, fs};

use burn::tensor::TensorData;
use hearth_model::{
    Error,
    gpt::{Gpt, ParamSpec},
    ops::{Dtype, KvDtype},
    weights::model_dir,
};

use crate::{golden::golden, test_gpu::gpu};

#[test]
fn models_that_gpus_cannot_compute_are_refused_by_what_they_have() {
    let Some(device) = gpu() else { return };
    let mut refused = BTreeSet::new();
    for dir in fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(config) = model_dir::load_config(&dir) else { continue };
        let mut read =
            |_: &ParamSpec| Err::<TensorData, _>(Error::Param { name: "parameters", what: "are read".to_owned() });
        let what = Gpt::from_params(&config, Dtype::F32, &device, &mut read).unwrap_err().to_string();
        if what != "`parameters` are read" {
            let start = "`device` must be the CPU for a model with ";
            let name = what
                .strip_prefix(start)
                .and_then(|rest| rest.strip_suffix(", got a GPU\nhint: run it with `--device cpu`"));
            refused.insert(name.unwrap_or(&what).to_owned());
        }
    }
    let expected = [
        "an encoder",
        "attention both ways",
        "experts",
        "gated attention",
        "heads of several sizes",
        "latent attention",
        "recurrent layers",
    ];
    assert_eq!(refused, expected.map(str::to_owned).into());
}

#[test]
fn a_kv_cache_in_8_bits_is_refused_on_gpus() {
    let Some(device) = gpu() else { return };
    let what = KvDtype::choose(Some(KvDtype::Q8), Dtype::F16, &device).unwrap_err().to_string();
    assert!(what.contains("does not support the KV cache dtype `q8`"), "{what}");
}
