//! Matrices stored in bf16 stay in bf16: the same results as in f32, in half the memory.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use burn::tensor::{Device, TensorData};
use half::bf16;
use hearth_model::{
    TokenId,
    gpt::{
        Gpt,
        attention::AttentionContext,
        kv_cache::{KvCache, StepPart},
        token_ids::token_tensor,
    },
    ops::{Dtype, KvDtype, Weight},
    weights::{
        DiskDtype,
        model_dir::{self, LoadOptions, SaveOptions},
    },
};
use safetensors::{SafeTensors, tensor::TensorView};

use crate::test_gpu::gpu;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn files() -> [PathBuf; 2] {
    ["golden/llama-bf16", "gguf/llama-bf16.gguf"].map(|path| tests().join(path))
}

fn load(path: &Path, dtype: Option<Dtype>, device: &Device) -> hearth_model::Result<Gpt> {
    model_dir::load_gpt(path, &LoadOptions { device: device.clone(), dtype })
}

fn ids(gpt: &Gpt) -> Vec<TokenId> {
    (0..40).map(|n| n * 7 % gpt.config().vocab_size as TokenId).collect()
}

/// Logits of every row, without a cache and by chunks of one.
fn logits(gpt: &Gpt) -> [Vec<f32>; 2] {
    let ids = ids(gpt);
    let hidden = gpt.forward(token_tensor(gpt, &ids), AttentionContext::dense(1, ids.len()));
    let uncached = gpt.logits(hidden).into_data().try_into_vec().unwrap();
    let kv_dtype = KvDtype::choose(None, gpt.dtype(), &gpt.device()).unwrap();
    let mut cache = KvCache::new(gpt.config(), 3, kv_dtype, &gpt.device());
    let mut table = cache.table();
    let cached = ids.iter().flat_map(|&id| {
        let step = cache.step(&mut [StepPart::new(&mut table, 1)]).unwrap();
        let hidden = gpt.forward(token_tensor(gpt, &[id]), AttentionContext::Paged(step));
        gpt.logits(hidden).into_data().try_into_vec::<f32>().unwrap()
    });
    [uncached, cached.collect()]
}

fn params(gpt: &Gpt) -> HashMap<String, Vec<f32>> {
    let mut params = HashMap::new();
    let read = gpt.read_params(&mut |path, data: TensorData| {
        params.insert(path.to_owned(), data.try_into_vec().unwrap());
        Ok(())
    });
    read.unwrap();
    params
}

fn n_bytes(gpt: &Gpt) -> usize {
    gpt.matrices().iter().map(|(_, matrix)| matrix.n_bytes()).sum()
}

/// If f32 is requested, the CPU stores the same numbers in 2 bytes each. `ops/cpu/matmul.rs` tests that its kernels
/// then give the bits of f32 in 4 bytes.
#[test]
fn bf16_file_opened_as_bf16_or_f32_has_equal_memory_and_logits() {
    for path in files() {
        let [held, widened] = [None, Some(Dtype::F32)].map(|dtype| load(&path, dtype, &Device::flex()).unwrap());
        assert_eq!([held.dtype(), widened.dtype()], [Dtype::Bf16, Dtype::F32]);
        assert!(held.matrices().iter().all(|(_, matrix)| matrix.dtype() == Dtype::Bf16));
        // Outputs are filled up to whole panels of 32.
        let dims = held.matrices().into_iter().map(|(_, matrix)| matrix.dims());
        let n_values: usize = dims.map(|[d_out, d_in]| d_out.next_multiple_of(32) * d_in).sum();
        assert_eq!([&held, &widened].map(n_bytes), [2 * n_values; 2]);
        assert_eq!(held.step_bytes(1), widened.step_bytes(1));
        assert_eq!(params(&held), params(&widened));
        assert!(logits(&held) == logits(&widened), "{}", path.display());
    }
}

#[test]
fn bf16_model_on_wgpu_has_the_logits_of_f32() {
    let Some(gpu) = gpu() else { return };
    let [held, widened] = [None, Some(Dtype::F32)].map(|dtype| load(&files()[0], dtype, &gpu).unwrap());
    assert_eq!(held.dtype(), Dtype::Bf16);
    assert_eq!(params(&held), params(&widened));
    for (held, widened) in logits(&held).iter().zip(&logits(&widened)) {
        // Rows of the two end in units of different sizes, so sums are in different orders.
        let far = held.iter().zip(widened).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far <= 1e-5 * widened.iter().fold(0.0, |most: f32, x| most.max(x.abs())), "{far}");
    }
}

/// f32 cannot be converted to bf16 without loss, so each matrix has the widest dtype of its tensors.
#[test]
fn mixed_f32_and_bf16_file_keeps_the_widest_dtype_per_matrix() {
    let dir = tempfile::tempdir().unwrap();
    let source = files()[0].clone();
    std::fs::copy(source.join("config.json"), dir.path().join("config.json")).unwrap();
    let bytes = std::fs::read(source.join("model.safetensors")).unwrap();
    let widened: Vec<_> = SafeTensors::deserialize(&bytes)
        .unwrap()
        .iter()
        .map(|(name, tensor)| {
            let values = tensor.data().as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32());
            let is_wide = name.contains("layers.0.self_attn.v_proj") || name.contains("layers.1.mlp.down_proj");
            let (dtype, bytes): (_, Vec<u8>) = if is_wide {
                (safetensors::Dtype::F32, values.flat_map(|value| (value + 1e-6).to_le_bytes()).collect())
            } else {
                (safetensors::Dtype::BF16, tensor.data().to_vec())
            };
            (name.to_owned(), dtype, tensor.shape().to_vec(), bytes)
        })
        .collect();
    let views = widened
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    std::fs::write(dir.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let [held, widened] = [None, Some(Dtype::F32)].map(|dtype| load(dir.path(), dtype, &Device::flex()).unwrap());
    for (path, matrix) in held.matrices() {
        let is_wide = ["blocks.0.attn.qkv.weight", "blocks.1.mlp.down.weight"].contains(&path.as_str());
        assert_eq!(matrix.dtype(), if is_wide { Dtype::F32 } else { Dtype::Bf16 }, "{path}");
    }
    assert_eq!(held.dtype(), Dtype::Bf16);
    assert!(logits(&held) == logits(&widened));
}

/// Saved as f32 (the default) or as bf16, the numbers are the same.
#[test]
fn saving_a_bf16_model_keeps_all_parameters_exactly() {
    let held = load(&files()[0], None, &Device::flex()).unwrap();
    for (dtype, expected) in [(DiskDtype::F32, Dtype::F32), (DiskDtype::Bf16, Dtype::Bf16)] {
        let dir = tempfile::tempdir().unwrap();
        model_dir::save(dir.path(), &held, &SaveOptions { dtype, ..SaveOptions::default() }).unwrap();
        let again = load(dir.path(), None, &Device::flex()).unwrap();
        assert_eq!(again.dtype(), expected);
        // Vectors that the original has in bf16 too.
        assert_eq!(params(&again), params(&held));
    }
}

/// Training uses f32, whatever dtype the file has.
#[test]
fn bf16_file_on_an_autodiff_device_is_loaded_as_f32() {
    let device = Device::flex().autodiff();
    for path in files() {
        let gpt = load(&path, None, &device).unwrap();
        assert!(gpt.matrices().iter().all(|(_, matrix)| matrix.dtype() == Dtype::F32));
        let refused = load(&path, Some(Dtype::Bf16), &device).unwrap_err().to_string();
        assert_eq!(refused, "`dtype` `bf16` is not supported for training\nhint: use `f32`");
    }
}

/// If bf16 is requested, wider numbers are rounded to nearest, ties to even.
#[test]
fn f32_weights_are_rounded_to_nearest_even_in_bf16() {
    let ulp = 2f32.powi(-7);
    let values = vec![1.0 + 0.5 * ulp, 1.0 + 1.5 * ulp, 1.0 + 0.51 * ulp, -1.0 - 0.49 * ulp, 0.0, 3e38];
    let weight = Weight::new(TensorData::new(values, [2, 3]), Dtype::Bf16, &Device::flex()).unwrap();
    let largest = bf16::from_f32(3e38).to_f32();
    let rounded = [1.0, 1.0 + 2.0 * ulp, 1.0 + ulp, -1.0, 0.0, largest];
    assert_eq!(weight.read().unwrap().try_into_vec::<f32>().unwrap(), rounded);
    let gpt = load(&tests().join("golden/llama"), Some(Dtype::Bf16), &Device::flex()).unwrap();
    assert!(gpt.matrices().iter().all(|(_, matrix)| matrix.dtype() == Dtype::Bf16));
}
