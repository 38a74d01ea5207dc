//! The model against `transformers`: logits, loss and the gradient of every parameter of tiny models with sharp
//! attention, and a check that the comparison reveals wrong configurations. `golden/make_golden.py` makes the golden dirs.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Gradients, Int, Tensor, TensorData},
};
use hearth_model::{
    config::{
        Activation, GptConfig, LatentAttention, NormKind, NormPosition, Positions, RelativeBuckets, Rope, RopeScaling,
    },
    gpt::{Gpt, ParamPath, attention::AttentionContext},
    ops::Dtype,
    weights::model_dir::{self, LoadOptions, SaveOptions},
};
use safetensors::SafeTensors;

use crate::{
    golden_cases::CASES,
    layer_mutations::{block_mutations, detail_mutations, expert_mutations, recurrent_mutations},
    rope_mutations::{rotated, scaling_mutations},
    test_gpu::gpu,
};

/// The weights of `llama`, stored in other ways; logits and loss only.
const STORED: &[&str] = &["llama-sharded", "llama-f16", "llama-bf16"];

/// Relative to the spread (standard deviation) of the logits.
const LOGITS_TOLERANCE: f32 = 1e-4;
/// Relative.
const LOSS_TOLERANCE: f32 = 1e-5;
/// Relative to the gradient's norm.
const GRAD_TOLERANCE: f32 = 1e-3;
/// Where the true gradient is zero, such as that of a bias on the keys of OPT and CTRL: of the largest norm of the case.
const GRAD_FLOOR: f32 = 1e-6;

pub(crate) fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case)
}

pub(crate) struct Oracle {
    pub(crate) batch: usize,
    pub(crate) seq_len: usize,
    pub(crate) input_ids: Vec<i32>,
    pub(crate) logits: Vec<f32>,
    loss: f32,
    grads: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Oracle {
    pub(crate) fn read(case: &str) -> Self {
        let bytes = fs::read(golden(case).join("oracle.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let floats = |name: &str| f32s(file.tensor(name).unwrap().data());
        let ids = file.tensor("input_ids").unwrap();
        Self {
            batch: ids.shape()[0],
            seq_len: ids.shape()[1],
            input_ids: ids.data().chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect(),
            logits: floats("logits"),
            loss: floats("loss")[0],
            grads: stored_gradients(&file),
        }
    }

    pub(crate) fn ids(&self, device: &Device) -> Tensor<1, Int> {
        Tensor::from_data(TensorData::new(self.input_ids.clone(), [self.input_ids.len()]), device)
    }
}

/// The gradients in an oracle's file, with their shapes.
pub(crate) fn stored_gradients(file: &SafeTensors<'_>) -> HashMap<String, (Vec<usize>, Vec<f32>)> {
    let gradients = file.tensors().into_iter().filter_map(|(name, tensor)| {
        let parameter = name.strip_prefix("grad.")?;
        Some((parameter.to_owned(), (tensor.shape().to_vec(), f32s(tensor.data()))))
    });
    gradients.collect()
}

pub(crate) fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

pub(crate) fn load(case: &str, device: &Device) -> Gpt {
    model_dir::load_gpt(&golden(case), &LoadOptions { device: device.clone(), dtype: None }).unwrap()
}

pub(crate) fn params(gpt: &Gpt) -> HashMap<String, TensorData> {
    let mut params = HashMap::new();
    let read = gpt.read_params(&mut |path, data| {
        params.insert(path.to_owned(), data);
        Ok(())
    });
    read.unwrap();
    params
}

/// Opened for its original context, a model uses the factors that `transformers` uses for texts of that length.
#[test]
fn long_rope_in_a_short_context_matches_transformers_on_short_texts() {
    let (case, device) = ("phi3-longrope", Device::flex());
    let bytes = fs::read(golden(case).join("oracle.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let alone = file.tensor("logits_alone").unwrap();
    let (batch, seq_len) = (alone.shape()[0], alone.shape()[1]);
    let whole = Oracle::read(case);
    let starts = whole.input_ids.chunks(whole.seq_len).flat_map(|ids| ids[..seq_len].to_vec()).collect();
    let oracle = Oracle { batch, seq_len, input_ids: starts, logits: f32s(alone.data()), ..whole };
    let far =
        |max_seq_len| distance(&logits(&load(case, &device).with_max_seq_len(max_seq_len), &oracle), &oracle.logits);
    assert!(far(12) < LOGITS_TOLERANCE, "{} spreads away", far(12));
    assert!(far(13) > 100.0 * LOGITS_TOLERANCE, "the factors are those of a longer context");
}

/// The same model on `device` without dropout, as in the oracles.
pub(crate) fn without_dropout(gpt: &Gpt, device: &Device) -> Gpt {
    let params = params(gpt);
    let config = gpt.config().clone().with_dropout(0.0);
    Gpt::from_params(&config, Dtype::F32, device, &mut |spec| Ok(params[&spec.path].clone())).unwrap()
}

pub(crate) fn logits(gpt: &Gpt, oracle: &Oracle) -> Vec<f32> {
    let context = AttentionContext::dense(oracle.batch, oracle.seq_len);
    gpt.logits(gpt.forward(oracle.ids(&gpt.device()), context)).into_data().try_into_vec().unwrap()
}

/// The loss as language models are trained: every id but the first is a target.
fn loss(gpt: &Gpt, oracle: &Oracle) -> Tensor<1> {
    let device = gpt.device();
    let hidden = gpt.forward(oracle.ids(&device), AttentionContext::dense(oracle.batch, oracle.seq_len));
    let rows = |skip: usize| {
        let rows = (0..oracle.batch)
            .flat_map(|b| (0..oracle.seq_len - 1).map(move |s| (b * oracle.seq_len + s + skip) as i32));
        Tensor::<1, Int>::from_data(rows.collect::<Vec<_>>().as_slice(), &device)
    };
    gpt.loss(hidden.select(0, rows(0)), oracle.ids(&device).select(0, rows(1)))
}

/// The largest difference, in spreads of `expected`.
pub(crate) fn distance(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let mean = expected.iter().sum::<f32>() / expected.len() as f32;
    let spread = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / expected.len() as f32).sqrt();
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // A NaN must not hide behind `max`.
    differences.fold(0.0, |worst: f32, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) }) / spread
}

#[test]
fn logits_and_loss_match_transformers() {
    let device = Device::flex();
    for case in CASES.iter().chain(STORED) {
        let (gpt, oracle) = (load(case, &device), Oracle::read(case));
        let far = distance(&logits(&gpt, &oracle), &oracle.logits);
        assert!(far < LOGITS_TOLERANCE, "{case}: logits are {far} spreads away");
        let loss = loss(&gpt, &oracle).into_scalar::<f32>();
        let far = (loss / oracle.loss - 1.0).abs();
        assert!(far < LOSS_TOLERANCE, "{case}: loss {loss}, expected {}", oracle.loss);
    }
}

#[test]
fn logits_on_wgpu_match_transformers() {
    let Some(device) = gpu() else { return };
    for case in CASES {
        let config = model_dir::load_config(&golden(case)).unwrap();
        let of_cpu = config.experts.is_some() || config.recurrent.is_some() || config.bidirectional;
        if of_cpu || config.latent.is_some() || config.layer_scale || config.attention_gate {
            assert!(model_dir::load_gpt(&golden(case), &LoadOptions { device: device.clone(), dtype: None }).is_err());
            continue;
        }
        let (gpt, oracle) = (load(case, &device), Oracle::read(case));
        let far = distance(&logits(&gpt, &oracle), &oracle.logits);
        assert!(far < LOGITS_TOLERANCE, "{case}: logits are {far} spreads away");
    }
}

/// Collects gradients by parameter path.
struct GradReader<'a> {
    path: ParamPath,
    gradients: &'a Gradients,
    /// Whether the loss does not depend on all parameters.
    are_partial: bool,
    found: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl ModuleVisitor for GradReader<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.val().dims().to_vec();
        // An expert that no row chose has none.
        let values = match param.val().grad(self.gradients) {
            Some(grad) => grad.into_data().try_into_vec().unwrap(),
            None => {
                let path = self.path.path();
                assert!(self.are_partial || path.contains(".experts.routed."), "{path} has no gradient");
                vec![0.0; shape.iter().product()]
            }
        };
        self.found.insert(self.path.path(), (shape, values));
    }

    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }
}

/// The gradients of `gpt` under the names of its Hugging Face class: a model whose parameters are the gradients is
/// saved, and the file read.
pub(crate) fn gradients_by_hf_name(
    case: &str,
    gpt: &Gpt,
    (loss, are_partial): (Tensor<1>, bool),
) -> HashMap<String, (Vec<usize>, Vec<f32>)> {
    let gradients = loss.backward();
    let (path, found) = (ParamPath::default(), HashMap::new());
    let mut reader = GradReader { path, gradients: &gradients, are_partial, found };
    gpt.visit(&mut reader);
    let found = reader.found;
    let as_model = Gpt::from_params(gpt.config(), Dtype::F32, &Device::flex(), &mut |spec| {
        if ["selection_bias", ".scale.weight"].iter().any(|constant| spec.path.ends_with(constant)) {
            return Ok(TensorData::zeros::<f32, _>(spec.shape.as_slice()));
        }
        let (shape, values) = &found[&spec.path];
        assert_eq!(*shape, spec.shape);
        Ok(TensorData::new(values.clone(), shape.as_slice()))
    });
    let dir = tempfile::tempdir().unwrap();
    model_dir::save(dir.path(), &as_model.unwrap(), &as_loaded(case)).unwrap();
    let bytes = fs::read(dir.path().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    // What chooses experts is not learned by gradients.
    let is_learned = |name: &str| !["e_score_correction_bias", "expert_bias"].iter().any(|bias| name.ends_with(bias));
    let learned = file.iter().filter(|(name, _)| is_learned(name));
    learned.map(|(name, tensor)| (name.to_owned(), (tensor.shape().to_vec(), f32s(tensor.data())))).collect()
}

fn norm(values: &[f32]) -> f32 {
    values.iter().map(|x| x * x).sum::<f32>().sqrt()
}

#[test]
fn every_gradient_matches_transformers() {
    for case in CASES {
        let oracle = Oracle::read(case);
        let gpt = without_dropout(&load(case, &Device::flex()), &Device::flex().autodiff());
        let found = gradients_by_hf_name(case, &gpt, (loss(&gpt, &oracle), false));
        assert_gradients(case, &found, &oracle.grads);
    }
}

/// Compares gradients by name.
pub(crate) fn assert_gradients(
    case: &str,
    found: &HashMap<String, (Vec<usize>, Vec<f32>)>,
    expected: &HashMap<String, (Vec<usize>, Vec<f32>)>,
) {
    let mut names: Vec<_> = found.keys().collect();
    names.sort();
    let mut expected_names: Vec<_> = expected.keys().collect();
    expected_names.sort();
    assert_eq!(names, expected_names, "{case}");
    let largest = expected.values().map(|(_, grad)| norm(grad)).fold(0.0, f32::max);
    for (name, (shape, expected)) in expected {
        let (found_shape, grad) = &found[name];
        assert_eq!(found_shape, shape, "{case}: {name}");
        let difference: Vec<_> = grad.iter().zip(expected).map(|(a, b)| a - b).collect();
        let far = norm(&difference);
        let allowed = (GRAD_TOLERANCE * norm(expected)).max(GRAD_FLOOR * largest);
        assert!(far <= allowed, "{case}: gradient of {name} is {far} away, allowed {allowed}");
    }
}

/// Saves under the class that `case` was saved under.
fn as_loaded(case: &str) -> SaveOptions {
    let class = model_dir::load_class(&golden(case)).unwrap();
    SaveOptions { class: Some(class.to_owned()), ..SaveOptions::default() }
}

/// Every way in which the configuration of `case` could be read wrong while the weights still fit.
pub(crate) fn mutations(config: &GptConfig) -> Vec<(&'static str, GptConfig)> {
    let mut mutations = Vec::new();
    let mut mutate = |field: &'static str, change: &dyn Fn(&mut GptConfig)| {
        let mut mutant = config.clone();
        change(&mut mutant);
        mutations.push((field, mutant));
    };
    // Far from the value of the case.
    let other_eps = |eps: f64| if eps < 1e-4 { 1e-3 } else { 1e-6 };
    mutate("norm_eps", &|c| c.norm_eps = other_eps(c.norm_eps));
    if config.final_norm {
        // The residual stream is large there, so a small epsilon has no effect.
        mutate("final_norm_eps", &|c| c.final_norm_eps = Some(0.3));
        mutate("final_norm", &|c| (c.final_norm, c.final_norm_eps, c.final_norm_offset) = (false, None, None));
    }
    // Other norms would be refused.
    let has_both = config.experts.as_ref().is_some_and(|experts| experts.beside_mlp);
    if config.norm_weight && !has_both {
        mutate("norm_weight_offset", &|c| c.norm_weight_offset = 1.0 - c.norm_weight_offset);
        mutate("norm_weight", &|c| {
            (c.norm_weight, c.norm_bias, c.qk_norm_bias, c.norm_weight_offset) = (false, false, false, 0.0);
            c.final_norm_offset = None;
        });
    }
    mutate("scale_embeddings", &|c| c.scale_embeddings = !c.scale_embeddings);
    mutate("embedding_multiplier", &|c| c.embedding_multiplier *= 1.5);
    mutate("residual_multiplier", &|c| c.residual_multiplier *= 1.5);
    mutate("logit_multiplier", &|c| c.logit_multiplier *= 1.5);
    mutate("logit_softcap", &|c| c.logit_softcap = Some(c.logit_softcap.unwrap_or(15.0) * 1.5));
    // A large soft cap changes little.
    mutate("attention_softcap", &|c| c.attention_softcap = Some(c.attention_softcap.unwrap_or(2.0) * 1.5));
    if config.attention_softcap.is_some() {
        mutate("attention_softcap", &|c| c.attention_softcap = None);
    }
    mutate("attention_scale", &|c| c.attention_scale = Some(1.5 * c.score_scale()));
    let may_have_windows = config.positions.buckets().is_none();
    if may_have_windows {
        mutate("sliding_window", &|c| c.sliding_window = Some(c.sliding_window.map_or(5, |window| window + 1)));
    }
    // Layers of both kinds have parameters of the same shapes.
    let are_alike = config.full_heads.is_none() && !config.keys_as_values && config.n_shared_kv_layers == 0;
    if config.sliding_window.is_some() && are_alike {
        mutate("sliding_window", &|c| {
            (c.sliding_window, c.full_layers, c.window_rope) = (None, Vec::new(), None);
        });
    }
    if let Some(rope) = &config.window_rope {
        mutate("window_rope", &|c| {
            let other = Rope { theta: 2.0 * rope.theta, ..rope.clone() };
            c.window_rope = (!are_alike).then_some(other);
        });
    }
    // One layer more or less.
    let toggled =
        |layers: &[usize]| if layers.first() == Some(&0) { layers[1..].to_vec() } else { [&[0], layers].concat() };
    if are_alike && may_have_windows {
        mutate("full_layers", &|c| {
            c.sliding_window.get_or_insert(5);
            c.full_layers = toggled(&c.full_layers);
        });
    }
    if matches!(config.positions, Positions::Rope(_)) {
        // A layer that attends.
        let first = config.recurrent.as_ref().map_or(0, |recurrent| recurrent.attention_layers[0]);
        mutate("unrotated_layers", &|c| {
            c.unrotated_layers = if first == 0 { toggled(&c.unrotated_layers) } else { vec![first] };
        });
    }
    let are_whole = config.layers_without_mixer.is_empty() && config.layers_without_mlp.is_empty();
    let are_whole = are_whole && !config.unnormed_first_mixer;
    if config.norm_position == NormPosition::Pre && !config.shared_norm && are_whole {
        mutate("parallel_residual", &|c| c.parallel_residual = !c.parallel_residual);
    }
    if !config.parallel_residual && !config.unnormed_first_mixer && !has_both {
        let others = [NormPosition::Pre, NormPosition::Post, NormPosition::Inside];
        for norm_position in others.into_iter().filter(|&other| other != config.norm_position) {
            mutate("norm_position", &|c| (c.norm_position, c.out_norm_eps) = (norm_position, None));
        }
    }
    if config.parallel_residual && !config.shared_norm {
        mutate("shared_norm", &|c| c.shared_norm = true);
    }
    // With a head for masked tokens the configuration would be refused.
    if config.bidirectional && config.mlm_head.is_none() {
        mutate("bidirectional", &|c| c.bidirectional = false);
    }
    if config.n_token_types > 0 {
        mutate("n_token_types", &|c| c.n_token_types = 0);
    }
    if config.embed_norm && !config.unnormed_first_mixer {
        mutate("embed_norm", &|c| (c.embed_norm, c.plain_embed_norm) = (false, false));
    }
    if config.qk_norm {
        mutate("qk_norm", &|c| {
            (c.qk_norm, c.qk_norm_bias, c.qk_norm_after_rope) = (false, false, false);
            c.plain_qk_norm = false;
        });
    }
    if config.qk_norm_bias {
        mutate("qk_norm_bias", &|c| c.qk_norm_bias = false);
    }
    if let Some(limit) = config.clip_qkv {
        mutate("clip_qkv", &|c| c.clip_qkv = Some(0.8 * limit));
        mutate("clip_qkv", &|c| c.clip_qkv = None);
    }
    let has_weights = config.norm_weight && !config.plain_qk_norm;
    let can_rotate_first = config.qk_norm && has_weights && config.n_shared_kv_layers == 0;
    if can_rotate_first && matches!(config.positions, Positions::Rope(_)) {
        mutate("qk_norm_after_rope", &|c| c.qk_norm_after_rope = !c.qk_norm_after_rope);
    }
    if config.lm_head_bias {
        mutate("lm_head_bias", &|c| c.lm_head_bias = false);
    }
    let activations =
        [Activation::Relu, Activation::ReluSquared, Activation::Gelu, Activation::GeluTanh, Activation::Silu];
    for activation in activations {
        if config.xielu || config.clamped_swiglu.is_some() || activation != config.activation {
            mutate("activation", &|c| (c.activation, c.xielu, c.clamped_swiglu) = (activation, false, None));
        }
    }
    let rotatable = config.latent.map_or(config.head_dim, |latent| latent.rope_dim);
    let whole_heads = Positions::Rope(Rope::new(10_000.0, rotatable));
    for positions in [Positions::None, Positions::Alibi, Positions::Sinusoidal, whole_heads] {
        let is_possible = positions != Positions::Alibi || !config.bidirectional;
        if positions != config.positions && is_possible {
            mutate("positions", &|c| {
                c.positions = positions.clone();
                (c.unrotated_layers, c.window_rope) = (Vec::new(), None);
            });
        }
    }
    if let Some(buckets) = config.positions.own_buckets() {
        mutate("positions.max_distance", &|c| {
            c.positions =
                Positions::RelativeByLayer(RelativeBuckets { max_distance: 2 * buckets.max_distance, ..buckets });
        });
    }
    if let Positions::Relative(buckets) = config.positions {
        mutate("relative.max_distance", &|c| {
            c.positions = Positions::Relative(RelativeBuckets { max_distance: 2 * buckets.max_distance, ..buckets });
        });
    }
    if let Positions::LearnedAndRelative(buckets) = config.positions {
        let other = RelativeBuckets { max_distance: 2 * buckets.max_distance, ..buckets };
        for positions in [Positions::LearnedAndRelative(other), Positions::Relative(buckets), Positions::Learned] {
            mutate("positions", &|c| c.positions = positions.clone());
        }
    }
    if let Positions::Rope(rope) = &config.positions {
        let scaled = |scaling: &RopeScaling| Positions::Rope(Rope { scaling: scaling.clone(), ..*rope });
        // The first frequency is 1 whatever the base is.
        if rope.rotary_dim > 2 {
            let theta = if rope.theta == 10_000.0 { 500.0 } else { 10_000.0 };
            mutate("rope.theta", &|c| c.positions = Positions::Rope(Rope { theta, ..rope.clone() }));
        }
        let most = config.full_heads.map_or(rotatable, |heads| heads.head_dim);
        let rotary_dim = if rope.rotary_dim == most { most - 2 } else { rope.rotary_dim + 2 };
        mutate("rope.rotary_dim", &|c| c.positions = Positions::Rope(rotated(rope, rotary_dim)));
        for (field, scaling) in scaling_mutations(rope, config.max_seq_len) {
            mutate(field, &|c| c.positions = scaled(&scaling));
        }
        if let RopeScaling::LongRope { original_max_seq_len, .. } = rope.scaling {
            let other = if config.max_seq_len > original_max_seq_len { original_max_seq_len } else { 1000 };
            mutate("max_seq_len", &|c| c.max_seq_len = other);
        }
    }
    if config.norm_bias {
        mutate("norm_bias", &|c| c.norm_bias = false);
        mutate("norm", &|c| {
            c.norm_bias = false;
            c.norm = NormKind::RmsNorm;
        });
    } else {
        mutate("norm", &|c| {
            c.norm = match c.norm {
                NormKind::LayerNorm => NormKind::RmsNorm,
                NormKind::RmsNorm => NormKind::LayerNorm,
            };
        });
    }
    if config.qkv_bias {
        mutate("qkv_bias", &|c| c.qkv_bias = false);
    }
    if config.attn_out_bias {
        mutate("attn_out_bias", &|c| c.attn_out_bias = false);
    }
    mutations.extend(detail_mutations(config));
    mutations.extend(block_mutations(config));
    mutations.extend(expert_mutations(config));
    mutations.extend(recurrent_mutations(config));
    mutations.extend(config.latent.map(|latent| {
        let latent = LatentAttention { norm_eps: other_eps(latent.norm_eps), ..latent };
        ("latent.norm_eps", GptConfig { latent: Some(latent), ..config.clone() })
    }));
    let mut mutate = |field: &'static str, change: &dyn Fn(&mut GptConfig)| {
        let mut mutant = config.clone();
        change(&mut mutant);
        mutations.push((field, mutant));
    };
    if config.mlp_bias {
        mutate("mlp_bias", &|c| c.mlp_bias = false);
    }
    if !config.tie_embeddings {
        mutate("tie_embeddings", &|c| c.tie_embeddings = true);
    }
    // The same matrices, cut into heads another way.
    let (n_heads, n_kv_heads, head_dim) = (config.n_heads, config.n_kv_heads, config.head_dim);
    let are_relative = config.positions.buckets().is_some();
    if head_dim % 4 == 0 && !config.qk_norm && !config.attention_sinks && config.latent.is_none() && !are_relative {
        mutate("head_dim", &|c| {
            (c.n_heads, c.n_kv_heads, c.head_dim) = (2 * n_heads, 2 * n_kv_heads, head_dim / 2);
            if let Positions::Rope(rope) = &c.positions {
                c.positions = Positions::Rope(rotated(rope, rope.rotary_dim.min(head_dim / 2)));
            }
            c.window_rope = c.window_rope.as_ref().map(|rope| rotated(rope, rope.rotary_dim.min(head_dim / 2)));
        });
    }
    mutations
}

#[test]
fn reference_logits_reveal_every_misread_config_field() {
    let device = Device::flex();
    let mut unnoticed = Vec::new();
    for case in CASES {
        let (gpt, oracle) = (load(case, &device), Oracle::read(case));
        let params = params(&gpt);
        for (field, mutant) in mutations(gpt.config()) {
            let mutant = Gpt::from_params(&mutant, Dtype::F32, &device, &mut |spec| {
                Ok(params.get(&spec.path).unwrap_or_else(|| panic!("{case}, {field}: {}", spec.path)).clone())
            });
            let far = distance(&logits(&mutant.unwrap(), &oracle), &oracle.logits);
            if far <= 5.0 * LOGITS_TOLERANCE {
                unnoticed.push(format!("{case}: a wrong `{field}` moves the logits by {far} spreads only"));
            }
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

#[test]
fn saved_models_reopen_with_the_same_config_and_logits() {
    let device = Device::flex();
    for case in CASES {
        let (gpt, oracle) = (load(case, &device), Oracle::read(case));
        let dir = tempfile::tempdir().unwrap();
        // Small shards: the index is exercised too.
        let options = SaveOptions { max_shard_bytes: 5_000, ..as_loaded(case) };
        model_dir::save(dir.path(), &gpt, &options).unwrap();
        assert_eq!(model_dir::load_class(dir.path()).unwrap(), model_dir::load_class(&golden(case)).unwrap());
        assert!(dir.path().join("model.safetensors.index.json").exists());
        let options = LoadOptions { device: device.clone(), dtype: None };
        let reopened = model_dir::load_gpt(dir.path(), &options).unwrap();
        assert_eq!(reopened.config(), &GptConfig { dropout: reopened.config().dropout, ..gpt.config().clone() });
        assert_eq!(logits(&reopened, &oracle), logits(&gpt, &oracle), "{case}");
    }
}

/// Leaves every case as Hearth saves it in `$HEARTH_SAVE_DIR/<case>`, with the logits that Hearth computes, for
/// `golden/check_reopened.py` to open with `transformers`.
#[test]
fn models_are_saved_for_the_check_reopened_script() {
    let Some(out) = std::env::var_os("HEARTH_SAVE_DIR").map(PathBuf::from) else {
        println!("skipped: set HEARTH_SAVE_DIR=DIR to save models there for golden/check_reopened.py");
        return;
    };
    // Transformers has no class for MiniCPM.
    for case in CASES.iter().filter(|case| **case != "minicpm") {
        let (gpt, oracle) = (load(case, &Device::flex()), Oracle::read(case));
        let dir = out.join(case);
        model_dir::save(&dir, &gpt, &as_loaded(case)).unwrap();
        let logits = logits(&gpt, &oracle);
        let shape = [oracle.batch, oracle.seq_len, gpt.config().vocab_size];
        let ids: Vec<u8> = oracle.input_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let logits: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
        let view = |dtype, shape: &[usize], bytes| safetensors::tensor::TensorView::new(dtype, shape.to_vec(), bytes);
        let tensors = [
            ("input_ids", view(safetensors::Dtype::I32, &shape[..2], &ids).unwrap()),
            ("logits", view(safetensors::Dtype::F32, &shape, &logits).unwrap()),
        ];
        fs::write(dir.join("expected.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    }
}
