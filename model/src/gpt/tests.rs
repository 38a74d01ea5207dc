#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use super::*;
use crate::{
    config::{self, Activation, HeadSizes, NormKind, PerLayerInputs, QkNormSpan, Rope, Sizes},
    decode::sampling::{Purpose, RandomStream},
    gpt::{
        kv_cache::{KvCache, StepPart},
        lora::{LoadedAdapter, LoraPair, LoraShape, LoraValues, MatrixUpdate},
        param_specs::linear_specs,
        token_ids::token_tensor,
    },
    ops::KvDtype,
};

fn configs() -> Vec<(&'static str, GptConfig)> {
    let sizes =
        Sizes { vocab_size: 50, max_seq_len: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 64, d_ff: 96 };
    let llama = GptConfig::llama(sizes);
    let gpt2 = GptConfig::gpt2(Sizes { n_kv_heads: 4, ..sizes });
    let with = |position| GptConfig { norm_position: position, ..llama.clone() };
    let heads = |span| GptConfig { qk_norm: true, qk_norm_span: span, ..llama.clone() };
    let per_layer_inputs = Some(PerLayerInputs { vocab_size: 50, width: 40 });
    vec![
        ("as Qwen 3", heads(QkNormSpan::Head)),
        ("as OLMo 2", GptConfig { norm_position: NormPosition::Inside, ..heads(QkNormSpan::AllHeads) }),
        (
            "as Gemma 3",
            GptConfig {
                norm_position: NormPosition::Sandwich,
                norm_weight_offset: 1.0,
                activation: Activation::GeluTanh,
                ..heads(QkNormSpan::Head)
            },
        ),
        ("as Command R+", heads(QkNormSpan::EachHead)),
        ("as Persimmon", GptConfig { norm: NormKind::LayerNorm, qk_norm_bias: true, ..heads(QkNormSpan::Head) }),
        ("as OLMo 1 7B", GptConfig { clip_qkv: Some(0.5), ..llama.clone() }),
        ("as Gemma 2", GptConfig { attention_softcap: Some(3.0), ..with(NormPosition::Sandwich) }),
        ("as Granite", GptConfig { residual_multiplier: 0.22, ..llama.clone() }),
        ("as GPT-NeoX", GptConfig { parallel_residual: true, activation: Activation::Gelu, ..gpt2.clone() }),
        ("as Phi", GptConfig { parallel_residual: true, shared_norm: true, ..gpt2.clone() }),
        ("as Cohere", GptConfig { parallel_residual: true, norm: NormKind::LayerNorm, ..llama.clone() }),
        ("gated, in halves of no whole panels", GptConfig { d_ff: 40, ..heads(QkNormSpan::Head) }),
        ("as Gemma 4", as_gemma4(&llama)),
        ("as Gemma 4 with per-layer embeddings", GptConfig { per_layer_inputs, ..as_gemma4(&llama) }),
        ("as Gemma 4 with experts", GptConfig { experts: Some(beside_mlp()), ..as_gemma4(&llama) }),
        ("attention alone in a layer", GptConfig { layers_without_mlp: vec![0], ..llama.clone() }),
        ("as GPT-1", GptConfig { norm_position: NormPosition::Post, ..gpt2.clone() }),
        ("norms of the sums, and a multiplier", GptConfig { residual_multiplier: 0.5, ..with(NormPosition::Post) }),
        ("as GPT-2", gpt2),
        ("as Llama", llama),
    ]
}

/// Layers with heads of two sizes, without values, and without keys.
fn as_gemma4(llama: &GptConfig) -> GptConfig {
    GptConfig {
        n_layers: 5,
        norm_position: NormPosition::Sandwich,
        sliding_window: Some(6),
        full_layers: vec![1, 4],
        full_heads: Some(HeadSizes { n_kv_heads: 1, head_dim: 24 }),
        window_rope: Some(Rope::new(100.0, 16)),
        qk_norm: true,
        value_norm: true,
        keys_as_values: true,
        n_shared_kv_layers: 2,
        wide_shared_mlp: true,
        layer_scale: true,
        ..llama.clone()
    }
}

fn beside_mlp() -> config::Experts {
    config::Experts { beside_mlp: true, ..config::Experts::plain(5, 2, 40) }
}

/// An adapter with two pairs for every matrix, which together update some of its rows.
fn random_adapter(gpt: &Gpt, number: &mut dyn FnMut() -> f32) -> LoraValues {
    let update = |(path, linear): (String, &Linear)| {
        let [d_out, d_in] = linear.weight().dims();
        let pair = |rows, rank| LoraPair { rows, rank, scale: 0.5 };
        let shape = LoraShape { d_in, pairs: vec![pair(0..d_out / 3, 2), pair(d_out / 2..d_out, 5)] };
        let values = (0..shape.n_values()).map(|_| number()).collect();
        (path, MatrixUpdate { shape: Arc::new(shape), values })
    };
    LoraValues(gpt.linears().into_iter().map(update).collect())
}

/// Whole blocks give the same bits as their operations one by one, for a prompt and for the tokens after it.
#[test]
fn fused_block_is_bit_identical_to_its_separate_operations() {
    let device = Device::flex();
    for (name, config) in configs() {
        for dtype in [Dtype::F32, Dtype::Q8] {
            let random = RandomStream::new(5, 0);
            let mut n_read = 0;
            let mut number = || {
                n_read += 1;
                random.uniform(n_read, Purpose::Token) as f32 - 0.5
            };
            let mut param = |spec: &ParamSpec| {
                let values: Vec<f32> = (0..spec.shape.iter().product()).map(|_| number()).collect();
                Ok(TensorData::new(values, spec.shape.as_slice()))
            };
            let gpt = Gpt::from_params(&config, dtype, &device, &mut param).unwrap();
            let adapter = Arc::new(LoadedAdapter::new(&config, &random_adapter(&gpt, &mut number), &device).unwrap());
            let run = |is_whole: bool, adapter: Option<&Arc<LoadedAdapter>>| {
                let mut cache = KvCache::new(&config, 8, KvDtype::F32, &device);
                let mut table = cache.table();
                let mut bits = Vec::new();
                for token_ids in [&[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8][..], &[4], &[6, 2]] {
                    let adapter = adapter.cloned();
                    let parts = &mut [StepPart {
                        table: &mut table,
                        n_new: token_ids.len(),
                        adapter,
                        second_text: None,
                        n_hidden: 0,
                        source_len: 0,
                    }];
                    let context = AttentionContext::Paged(cache.step(parts).unwrap());
                    let mut pass = ForwardPass::new(&config, context, &device);
                    let mut x = gpt.embed_input(token_tensor(&gpt, token_ids), &mut pass);
                    for (layer, block) in gpt.blocks.iter().enumerate() {
                        let adapters = pass.adapters();
                        let operands = &block.operands(layer, &config, None, &adapters, pass.per_layer_input(layer));
                        assert!(ops::has_block(&x, operands), "{name}");
                        x = if is_whole {
                            block.forward(layer, x, &config, &mut pass)
                        } else {
                            let steps = &mut ByOperations { layer, block: operands, pass: &mut pass };
                            ops::run_block(steps, operands, x)
                        };
                    }
                    bits.extend(ops::to_f32(ops::read(x).unwrap()).unwrap().into_iter().map(f32::to_bits));
                }
                bits
            };
            let without = run(true, None);
            assert!(without == run(false, None), "{name} in {dtype:?}: other bits");
            let updated = run(true, Some(&adapter));
            assert!(updated == run(false, Some(&adapter)), "{name} in {dtype:?}: other bits with an adapter");
            assert!(updated != without, "{name} in {dtype:?}: the adapter changes nothing");
        }
    }
}

/// The fields of the model's modules are the parts in `part_specs`, in the same order; so are its linear layers.
#[test]
fn a_model_has_the_parameters_that_are_described() {
    let alone = configs().into_iter().map(|(name, config)| {
        let without = if config.parallel_residual || config.n_shared_kv_layers > 0 { Vec::new() } else { vec![1] };
        (name, GptConfig { layers_without_mixer: without, ..config })
    });
    for (name, config) in configs().into_iter().chain(alone) {
        let gpt = Gpt::init(&config, 1, &Device::flex()).unwrap();
        let paths: Vec<String> = gpt.params().into_iter().map(|(path, _)| path).collect();
        let described: Vec<String> = param_specs(&config).into_iter().map(|spec| spec.path).collect();
        assert_eq!(paths, described, "{name}");
        let linears: Vec<String> = gpt.linears().into_iter().map(|(path, _)| path).collect();
        assert_eq!(linears, linear_specs(&config).map(|part| part.path).collect::<Vec<_>>(), "{name}");
    }
}
