//! The KV cache: logits equal those of a pass without it for every chunking, and no page is ever lost.
#![expect(clippy::unwrap_used, reason = "tests")]

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    config::{
        Experts, GatedConv, GatedDeltaNet, GptConfig, HeadSizes, LatentAttention, Mamba2, NormPosition, PerLayerInputs,
        Positions, Recurrence, Recurrent, Rope, RopeScaling, RouterScores, Sizes,
    },
    gpt::{
        Gpt,
        attention::AttentionContext,
        kv_cache::{CacheUnit, KvCache, OutOfPages, PAGE_SIZE, PageKey, PagePool, PageTable, StepPart},
        token_ids::token_tensor,
    },
    ops::KvDtype,
    weights::model_dir::{self, LoadOptions},
};
use proptest::prelude::*;

use crate::test_gpu::gpu;

/// A key for each number.
pub(crate) fn page_key(n: u128) -> PageKey {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&n.to_le_bytes());
    PageKey(bytes)
}

pub(crate) const VOCAB: usize = 50;

/// Tolerances against logits without a cache, relative to the largest logit. f16 rounds keys and values to 11 bits,
/// which sharp attention amplifies.
const TOLERANCES: [(KvDtype, f32); 2] = [(KvDtype::F32, 1e-4), (KvDtype::F16, 2e-2)];

/// Those for `config`: rounded keys may send a row to other experts, which is no small difference.
fn tolerances(config: &GptConfig) -> Vec<(KvDtype, f32)> {
    let is_smooth = config.experts.is_none();
    TOLERANCES.into_iter().filter(|(dtype, _)| is_smooth || *dtype == KvDtype::F32).collect()
}

fn sizes() -> Sizes {
    Sizes { vocab_size: VOCAB, max_seq_len: 128, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 16, d_ff: 24 }
}

/// Architectures whose caches could go wrong in different ways.
fn configs() -> Vec<GptConfig> {
    let llama = GptConfig::llama(sizes());
    let window = |config: &GptConfig| GptConfig { sliding_window: Some(7), ..config.clone() };
    let alibi = GptConfig { positions: Positions::Alibi, ..llama.clone() };
    vec![
        GptConfig::gpt2(Sizes { n_kv_heads: 4, ..sizes() }),
        window(&llama),
        window(&alibi),
        alibi,
        GptConfig { parallel_residual: true, ..llama.clone() },
        GptConfig { full_layers: vec![1], unrotated_layers: vec![0], ..window(&llama) },
        GptConfig { norm_position: NormPosition::Sandwich, window_rope: Some(Rope::new(50.0, 2)), ..window(&llama) },
        GptConfig {
            positions: Positions::Sinusoidal,
            scale_embeddings: true,
            norm_position: NormPosition::Post,
            final_norm: false,
            ..GptConfig::gpt2(Sizes { n_kv_heads: 4, ..sizes() })
        },
        GptConfig {
            experts: Some(Experts {
                router_bias: true,
                shared_d_ff: 20,
                shared_gate: true,
                dense_layers: vec![0],
                ..Experts::plain(5, 2, 12)
            }),
            ..llama.clone()
        },
        GptConfig { full_layers: vec![1], attention_sinks: true, ..window(&llama) },
        shared_keys(&llama),
        GptConfig {
            experts: Some(beside_mlp()),
            per_layer_inputs: Some(PerLayerInputs { vocab_size: VOCAB, width: 6 }),
            ..shared_keys(&llama)
        },
        llama,
    ]
    .into_iter()
    .chain(recurrent_configs())
    .chain(latent_configs())
    .collect()
}

/// Layers with heads of two sizes, without values, and without keys of their own.
fn shared_keys(llama: &GptConfig) -> GptConfig {
    let scaling = RopeScaling::Proportional { n_pairs: 2, factor: 1.0 };
    GptConfig {
        n_layers: 6,
        sliding_window: Some(7),
        full_layers: vec![0, 2, 5],
        full_heads: Some(HeadSizes { n_kv_heads: 1, head_dim: 6 }),
        positions: Positions::Rope(Rope { scaling, ..Rope::new(10_000.0, 6) }),
        window_rope: Some(Rope::new(50.0, 4)),
        qk_norm: true,
        value_norm: true,
        keys_as_values: true,
        n_shared_kv_layers: 2,
        wide_shared_mlp: true,
        layer_scale: true,
        norm_position: NormPosition::Sandwich,
        ..llama.clone()
    }
}

fn beside_mlp() -> Experts {
    Experts { dense_layers: vec![0], beside_mlp: true, ..Experts::plain(5, 2, 12) }
}

/// A layer that attends behind recurrent ones: gated delta nets, short convolutions, Mamba-2, and Mamba-2 in layers of their own.
pub(crate) fn recurrent_configs() -> [GptConfig; 4] {
    let with = |recurrence| GptConfig {
        recurrent: Some(Recurrent { recurrence, attention_layers: vec![1] }),
        qk_norm: true,
        ..GptConfig::llama(Sizes { n_layers: 3, ..sizes() })
    };
    // Neither whole registers nor whole blocks of columns.
    let net = GatedDeltaNet {
        n_key_heads: 2,
        n_value_heads: 4,
        key_dim: 6,
        value_dim: 35,
        conv_kernel: 4,
        tiled_heads: false,
    };
    let mamba = Mamba2 {
        n_groups: 2,
        n_heads: 4,
        head_dim: 35,
        state_dim: 6,
        conv_kernel: 4,
        conv_bias: true,
        bias: true,
        min_time_step: 0.01,
        max_time_step: Some(2.0),
    };
    [
        GptConfig { attention_gate: true, norm_weight_offset: 1.0, ..with(Recurrence::GatedDelta(net)) },
        with(Recurrence::ShortConv(GatedConv { kernel: 3, bias: true })),
        GptConfig { residual_multiplier: 0.7, ..with(Recurrence::Mamba2(mamba)) },
        alone(with(Recurrence::Mamba2(mamba))),
    ]
}

/// Latent attention, with values that are narrower than keys, or wider.
pub(crate) fn latent_configs() -> [GptConfig; 2] {
    let with = |query_rank, value_dim| GptConfig {
        head_dim: 10,
        positions: Positions::Rope(Rope::new(500.0, 4)),
        latent: Some(LatentAttention {
            query_rank,
            kv_rank: 9,
            rope_dim: 4,
            value_dim,
            norm_eps: 1e-6,
            interleaved: true,
        }),
        ..GptConfig::llama(Sizes { n_kv_heads: 4, ..sizes() })
    };
    [with(Some(11), 7), with(None, 12)]
}

/// Layers that are a recurrent layer, experts of narrower rows, attention, or an MLP only.
fn alone(config: GptConfig) -> GptConfig {
    let experts = Experts {
        scores: RouterScores::Sigmoid,
        weight_multiplier: 1.5,
        selection_bias: true,
        shared_d_ff: 20,
        dense_layers: vec![3],
        latent_width: 8,
        ..Experts::plain(5, 2, 12)
    };
    GptConfig {
        n_layers: 5,
        recurrent: config.recurrent.map(|recurrent| Recurrent { attention_layers: vec![2], ..recurrent }),
        experts: Some(experts),
        layers_without_mixer: vec![1, 3],
        layers_without_mlp: vec![0, 2, 4],
        positions: Positions::None,
        gated_mlp: false,
        ..config
    }
}

/// Fresh weights are small: attention would be nearly uniform and hide mistakes, so they are made wider. Decays are made slow.
pub(crate) fn model(config: &GptConfig) -> Gpt {
    model_on(config, &Device::flex())
}

pub(crate) fn model_on(config: &GptConfig, device: &Device) -> Gpt {
    let fresh = Gpt::init(config, 7, &Device::flex()).unwrap();
    let mut params = std::collections::HashMap::new();
    fresh
        .read_params(&mut |path, data| {
            let is_narrow = ["norm", "decays", "conv"].iter().any(|part| path.contains(part));
            let factor = if is_narrow { 1.0 } else { 12.0 };
            let added = if path.ends_with("a_log") { -4.0 } else { 0.0 };
            let wide: Vec<f32> = data.as_slice::<f32>().unwrap().iter().map(|x| x * factor + added).collect();
            params.insert(path.to_owned(), burn::tensor::TensorData::new(wide, data.shape().clone()));
            Ok(())
        })
        .unwrap();
    Gpt::from_params(config, hearth_model::ops::Dtype::F32, device, &mut |spec| Ok(params[&spec.path].clone())).unwrap()
}

pub(crate) fn uncached(gpt: &Gpt, ids: &[TokenId]) -> Vec<f32> {
    let hidden = gpt.forward(token_tensor(gpt, ids), AttentionContext::dense(1, ids.len()));
    gpt.logits(hidden).into_data().try_into_vec().unwrap()
}

/// Logits of every row of one step over several sequences.
pub(crate) fn step(gpt: &Gpt, cache: &mut KvCache, parts: &mut [(&mut PageTable, &[TokenId])]) -> Vec<f32> {
    let ids: Vec<TokenId> = parts.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
    let mut parts: Vec<_> = parts.iter_mut().map(|(table, ids)| StepPart::new(table, ids.len())).collect();
    let step = cache.step(&mut parts).unwrap();
    let hidden = gpt.forward(token_tensor(gpt, &ids), AttentionContext::Paged(step));
    gpt.logits(hidden).into_data().try_into_vec().unwrap()
}

pub(crate) fn assert_close(found: &[f32], expected: &[f32]) {
    assert_within(TOLERANCES[0].1, found, expected);
}

fn assert_within(tolerance: f32, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let spread = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let far = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far <= tolerance * spread, "{far} away, of values up to {spread}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn cached_logits_equal_uncached_for_every_chunking(
        ids in prop::collection::vec(0..VOCAB as TokenId, 1..60),
        cuts in prop::collection::vec(1..20usize, 1..60),
    ) {
        let of_each = |config: GptConfig| tolerances(&config).into_iter().map(move |each| (config.clone(), each));
        for (config, (dtype, tolerance)) in configs().into_iter().flat_map(of_each) {
            let gpt = model(&config);
            let mut cache = KvCache::new(&config, 8, dtype, &Device::flex());
            let mut table = cache.table();
            let (mut found, mut rest, mut cuts) = (Vec::new(), ids.as_slice(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (chunk, tail) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                found.extend(step(&gpt, &mut cache, &mut [(&mut table, chunk)]));
                rest = tail;
            }
            assert_within(tolerance, &found, &uncached(&gpt, &ids));
        }
    }

    /// Two sequences in one step, and a fork that continues differently, do not see each other.
    #[test]
    fn batched_sequences_and_forks_do_not_see_each_other(
        a in prop::collection::vec(0..VOCAB as TokenId, 1..40),
        b in prop::collection::vec(0..VOCAB as TokenId, 1..40),
        tails in prop::collection::vec(0..VOCAB as TokenId, 2..10),
    ) {
        let configs = [GptConfig::llama(sizes())].into_iter().chain(recurrent_configs());
        let of_each = |config: GptConfig| tolerances(&config).into_iter().map(move |each| (config.clone(), each));
        for (config, (dtype, tolerance)) in configs.flat_map(of_each) {
        let gpt = model(&config);
        let mut cache = KvCache::new(&config, 16, dtype, &Device::flex());
        let (mut table_a, mut table_b) = (cache.table(), cache.table());
        let found = step(&gpt, &mut cache, &mut [(&mut table_a, &a), (&mut table_b, &b)]);
        assert_within(tolerance, &found[..a.len() * VOCAB], &uncached(&gpt, &a));
        assert_within(tolerance, &found[a.len() * VOCAB..], &uncached(&gpt, &b));
        let mut fork = table_a.fork();
        let other: Vec<TokenId> = tails.iter().map(|id| (id + 1) % VOCAB as TokenId).collect();
        let found = step(&gpt, &mut cache, &mut [(&mut fork, &other), (&mut table_a, &tails)]);
        let whole = |tail: &[TokenId]| uncached(&gpt, &[&a, tail].concat())[a.len() * VOCAB..].to_vec();
        assert_within(tolerance, &found[..other.len() * VOCAB], &whole(&other));
        assert_within(tolerance, &found[other.len() * VOCAB..], &whole(&tails));
        }
    }

    /// Tables that grow, fork and end in any order hold as many pages as their lengths allow, and return all of them.
    #[test]
    fn kv_pages_are_never_lost_or_leaked(actions in prop::collection::vec((0..4u8, 0..8usize, 0..40usize), 1..80)) {
        let config = GptConfig { n_layers: 1, ..GptConfig::llama(sizes()) };
        let n_pages = 12;
        let mut cache = KvCache::new(&config, n_pages, KvDtype::F32, &Device::flex());
        let mut tables: Vec<PageTable> = Vec::new();
        for (action, which, n) in actions {
            let which = which % tables.len().max(1);
            match action {
                0 => tables.push(cache.table()),
                1 if !tables.is_empty() => {
                    let (len, free) = (tables[which].len(), cache.n_free_pages());
                    let needed = tables[which].pages_needed(n);
                    let outcome = cache.step(&mut [StepPart::new(&mut tables[which], n)]).map(drop);
                    if needed <= free {
                        prop_assert_eq!(outcome, Ok(()));
                        prop_assert_eq!(tables[which].len(), len + n);
                        prop_assert_eq!(cache.n_free_pages(), free - needed);
                    } else {
                        prop_assert_eq!(outcome, Err(OutOfPages { of: CacheUnit::Page, needed, free }));
                        prop_assert_eq!(tables[which].len(), len);
                        prop_assert_eq!(cache.n_free_pages(), free);
                    }
                }
                2 if !tables.is_empty() => {
                    let free = cache.n_free_pages();
                    let fork = tables[which].fork();
                    tables.push(fork);
                    prop_assert_eq!(cache.n_free_pages(), free);
                }
                3 if !tables.is_empty() => drop(tables.swap_remove(which)),
                _ => {}
            }
            let most: usize = tables.iter().map(|table| table.len().div_ceil(PAGE_SIZE)).sum();
            let least = tables.iter().map(|table| table.len().div_ceil(PAGE_SIZE)).max().unwrap_or(0);
            let held = n_pages - cache.n_free_pages();
            prop_assert!(least <= held && held <= most, "{held} pages held, tables want {least}..={most}");
        }
        drop(tables);
        prop_assert_eq!(cache.n_free_pages(), n_pages);
    }
}

/// Every architecture that there is a golden dir of, against what `transformers` computes without a cache: texts longer
/// than the windows, and than the contexts before rotary scaling; row by row, in chunks that straddle pages and windows,
/// and whole.
#[test]
fn cached_logits_match_uncached_transformers() {
    let dirs = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).unwrap();
    let mut n_cases = 0;
    for dir in dirs.map(|dir| dir.unwrap().path()).filter(|dir| dir.join("config.json").exists()) {
        let options = LoadOptions { device: Device::flex(), dtype: None };
        let gpt = model_dir::load_gpt(&dir, &options).unwrap();
        // Encoders are computed whole (`encoders.rs`), and encoder-decoders have texts of two kinds (`seq2seq.rs`).
        if gpt.config().bidirectional || gpt.config().encoder.is_some() {
            continue;
        }
        let bytes = std::fs::read(dir.join("oracle.safetensors")).unwrap();
        let oracle = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let ids = oracle.tensor("input_ids").unwrap();
        let (batch, seq_len) = (ids.shape()[0], ids.shape()[1]);
        let ids: Vec<TokenId> = ids.data().as_chunks().0.iter().map(|&id| TokenId::from_le_bytes(id)).collect();
        let logits = oracle.tensor("logits").unwrap();
        let logits: Vec<f32> = logits.data().as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
        let texts = ids.chunks(seq_len).zip(logits.chunks(logits.len() / batch));
        for cut in [1, 3, 7, 17, seq_len] {
            for ((dtype, tolerance), (ids, logits)) in
                TOLERANCES.iter().flat_map(|each| texts.clone().map(move |text| (*each, text)))
            {
                let mut cache = KvCache::new(gpt.config(), 2, dtype, &Device::flex());
                let mut table = cache.table();
                let found = ids.chunks(cut).flat_map(|chunk| step(&gpt, &mut cache, &mut [(&mut table, chunk)]));
                assert_within(tolerance, &found.collect::<Vec<_>>(), logits);
            }
        }
        n_cases += 1;
    }
    assert!(n_cases >= 38, "{n_cases} golden dirs found");
}

/// On a GPU, layers with and without a sliding window have separate tables of slots.
#[test]
fn windowed_and_full_layers_on_wgpu_match_the_uncached_cpu() {
    let Some(gpu) = gpu() else { return };
    let config = GptConfig {
        sliding_window: Some(19),
        full_layers: vec![1],
        unrotated_layers: vec![2],
        window_rope: Some(Rope::new(50.0, 4)),
        ..GptConfig::llama(Sizes { n_layers: 3, max_seq_len: 400, ..sizes() })
    };
    let ids: Vec<TokenId> = (0..300).map(|at| (at * 7 + at / 9) % VOCAB as TokenId).collect();
    let expected = uncached(&model(&config), &ids);
    let gpt = model_on(&config, &gpu);
    for ((dtype, tolerance), cut) in TOLERANCES.iter().flat_map(|each| [33, ids.len()].map(|cut| (*each, cut))) {
        let mut cache = KvCache::new(&config, 20, dtype, &gpu);
        let mut table = cache.table();
        let found = ids.chunks(cut).flat_map(|chunk| step(&gpt, &mut cache, &mut [(&mut table, chunk)]));
        assert_within(tolerance, &found.collect::<Vec<_>>(), &expected);
    }
}

/// Its pages may be beyond the ends of these pools.
#[test]
#[should_panic(expected = "a page table of another cache")]
fn page_table_of_another_cache_panics() {
    let config = GptConfig { n_layers: 1, ..GptConfig::llama(sizes()) };
    let mut cache = KvCache::new(&config, 2, KvDtype::F32, &Device::flex());
    let mut foreign = PagePool::new(1000).table();
    let _ = cache.step(&mut [StepPart::new(&mut foreign, 5)]);
}

/// Two forks of a half-full page and one free page: only one of them can have its own copy.
#[test]
fn step_fails_as_a_whole_if_pages_run_out() {
    let config = GptConfig { n_layers: 1, ..GptConfig::llama(sizes()) };
    let mut cache = KvCache::new(&config, 2, KvDtype::F32, &Device::flex());
    let mut first = cache.table();
    drop(cache.step(&mut [StepPart::new(&mut first, PAGE_SIZE - 1)]).unwrap());
    let (mut second, third) = (first.fork(), first.fork());
    let mut parts = [StepPart::new(&mut first, 1), StepPart::new(&mut second, 1)];
    assert_eq!(cache.step(&mut parts).map(drop), Err(OutOfPages { of: CacheUnit::Page, needed: 2, free: 1 }));
    assert_eq!((first.len(), second.len(), cache.n_free_pages()), (PAGE_SIZE - 1, PAGE_SIZE - 1, 1));
    drop(third);
    drop(second);
    drop(cache.step(&mut [StepPart::new(&mut first, 2)]).unwrap());
    assert_eq!(cache.n_free_pages(), 0);
}

/// Pages kept from an earlier sequence give the logits that computing them again gives.
#[test]
fn prefix_cache_pages_give_the_logits_of_recomputing() {
    let config = GptConfig::llama(sizes());
    let gpt = model(&config);
    let mut cache = KvCache::new(&config, 16, KvDtype::F32, &Device::flex());
    let ids: Vec<TokenId> = (0..50).map(|at| (at * 7 + 3) % VOCAB as TokenId).collect();
    let keys = [page_key(1), page_key(2), page_key(3)];
    let mut first = cache.table();
    step(&gpt, &mut cache, &mut [(&mut first, &ids)]);
    keys.iter().enumerate().for_each(|(index, &key)| first.keep(index, key));
    let expected = uncached(&gpt, &ids);
    for still_held in [true, false] {
        if !still_held {
            first = cache.table();
        }
        let mut second = cache.table();
        assert_eq!(second.share_kept(&keys[..2]), 2 * PAGE_SIZE);
        let found = step(&gpt, &mut cache, &mut [(&mut second, &ids[2 * PAGE_SIZE..])]);
        assert_close(&found, &expected[2 * PAGE_SIZE * VOCAB..]);
    }
    drop(first);
    assert_eq!(cache.n_free_pages(), 16);
}

#[test]
fn prefix_cache_pages_are_evicted_last_in_lru_order() {
    let pool = PagePool::new(6);
    let key = |text: u128, page: u128| page_key(text << 8 | page);
    let compute = |text: u128| {
        let mut table = pool.table();
        table.append(2 * PAGE_SIZE).unwrap();
        (0..2).for_each(|page| table.keep(page as usize, key(text, page)));
    };
    let n_kept = |text: u128| pool.table().share_kept(&[key(text, 0), key(text, 1)]);
    compute(1);
    compute(2);
    assert_eq!(pool.n_free(), 6);
    // The lookup makes the first text the more recently used one.
    assert_eq!((n_kept(2), n_kept(1)), (2 * PAGE_SIZE, 2 * PAGE_SIZE));
    let mut other = pool.table();
    other.append(2 * PAGE_SIZE).unwrap();
    assert_eq!((n_kept(2), n_kept(1)), (2 * PAGE_SIZE, 2 * PAGE_SIZE), "unkept pages go first");
    // The last page of the second text, then its first.
    assert_eq!((n_kept(2), n_kept(1)), (2 * PAGE_SIZE, 2 * PAGE_SIZE));
    other.append(PAGE_SIZE).unwrap();
    assert_eq!((n_kept(2), n_kept(1)), (PAGE_SIZE, 2 * PAGE_SIZE));
    other.append(PAGE_SIZE).unwrap();
    assert_eq!((n_kept(2), n_kept(1)), (0, 2 * PAGE_SIZE));
    // A page in use is never handed out, and a page that is not full is never kept.
    let mut held = pool.table();
    assert_eq!(held.share_kept(&[key(1, 0), key(1, 1)]), 2 * PAGE_SIZE);
    assert_eq!(other.append(1), Err(OutOfPages { of: CacheUnit::Page, needed: 1, free: 0 }));
    drop(other);
    held.append(PAGE_SIZE - 1).unwrap();
    held.keep(2, key(1, 2));
    assert_eq!(pool.table().share_kept(&[key(1, 0), key(1, 1), key(1, 2)]), 2 * PAGE_SIZE);
    drop(held);
    assert_eq!(pool.n_free(), 6);
}

#[test]
fn logits_after_truncating_a_page_table_match_uncached() {
    let config = GptConfig::llama(sizes());
    let gpt = model(&config);
    let mut cache = KvCache::new(&config, 8, KvDtype::F32, &Device::flex());
    let ids: Vec<TokenId> = (0..50).map(|at| (at * 7 + 3) % VOCAB as TokenId).collect();
    let wrong: Vec<TokenId> = (0..30).map(|at| (at * 5 + 1) % VOCAB as TokenId).collect();
    let expected = uncached(&gpt, &ids);
    let mut table = cache.table();
    step(&gpt, &mut cache, &mut [(&mut table, &ids[..20])]);
    step(&gpt, &mut cache, &mut [(&mut table, &wrong)]);
    assert_eq!(cache.n_free_pages(), 4);
    // Longer than it is: nothing happens. Into the second page.
    table.truncate(51);
    assert_eq!(table.len(), 50);
    table.truncate(20);
    assert_eq!((table.len(), cache.n_free_pages()), (20, 6));
    // A fork keeps what its parent gives up.
    let mut fork = table.fork();
    table.truncate(10);
    let found = step(&gpt, &mut cache, &mut [(&mut table, &ids[10..]), (&mut fork, &ids[20..])]);
    assert_close(&found, &[&expected[10 * VOCAB..], &expected[20 * VOCAB..]].concat());
    drop((table, fork));
    assert_eq!(cache.n_free_pages(), 8);
}

#[test]
fn prefix_cache_page_is_unregistered_when_written_again() {
    let pool = PagePool::new(4);
    let key = page_key(5);
    let mut table = pool.table();
    table.append(PAGE_SIZE).unwrap();
    table.keep(0, key);
    table.truncate(PAGE_SIZE - 1);
    assert_eq!(pool.table().share_kept(&[key]), PAGE_SIZE, "as long as it is whole");
    table.append(1).unwrap();
    assert_eq!(pool.table().share_kept(&[key]), 0);
    drop(table);
    assert_eq!(pool.n_free(), 4);
}

/// A model whose keys have biases of several hundred in a quarter of their dimensions, as Qwen 2.5's have; or none.
fn with_key_biases(largest: f32) -> Gpt {
    let sizes = Sizes { max_seq_len: 256, n_layers: 4, d_model: 64, d_ff: 128, ..sizes() };
    let rope = Positions::Rope(Rope::new(1e6, 32));
    let config = GptConfig { qkv_bias: true, head_dim: 32, positions: rope, ..GptConfig::llama(sizes) };
    let fresh = Gpt::init(&config, 7, &Device::flex()).unwrap();
    let mut params = std::collections::HashMap::new();
    fresh
        .read_params(&mut |path, data| {
            let mut values = data.as_slice::<f32>().unwrap().to_vec();
            if path.ends_with("qkv.bias") {
                let keys = &mut values[config.q_width()..][..config.kv_width()];
                for (at, bias) in keys.iter_mut().enumerate().filter(|(at, _)| (8..16).contains(&(at % 32))) {
                    *bias = largest * (at as f32 * 1.7).sin();
                }
            } else if !path.contains("norm") {
                values.iter_mut().for_each(|value| *value *= 7.0);
            }
            params.insert(path.to_owned(), burn::tensor::TensorData::new(values, data.shape().clone()));
            Ok(())
        })
        .unwrap();
    let dtype = hearth_model::ops::Dtype::F32;
    Gpt::from_params(&config, dtype, &Device::flex(), &mut |spec| Ok(params[&spec.path].clone())).unwrap()
}

/// The log-probabilities of the tokens of a text with a cache of `dtype`.
fn text_logprobs(gpt: &Gpt, dtype: KvDtype) -> Vec<f32> {
    let ids: Vec<TokenId> = (0..200).map(|n| (n * 31 + n * n * 7) % VOCAB as TokenId).collect();
    let mut cache = gpt.kv_cache(ids.len().div_ceil(PAGE_SIZE), dtype).unwrap();
    let mut table = cache.table();
    let step = cache.step(&mut [StepPart::new(&mut table, ids.len())]).unwrap();
    let hidden = gpt.forward(token_tensor(gpt, &ids), AttentionContext::Paged(step));
    let logits: Vec<f32> = gpt.logits(hidden).into_data().try_into_vec().unwrap();
    let logprob = |(row, &id): (&[f32], &TokenId)| {
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        row[id as usize] - largest - row.iter().map(|logit| (logit - largest).exp()).sum::<f32>().ln()
    };
    logits.chunks_exact(VOCAB).zip(&ids[1..]).map(logprob).collect()
}

#[test]
fn q8_cache_keeps_log_probabilities_whatever_biases_the_keys_have() {
    for (largest, expected) in [(0.0, KvDtype::Q8), (1.0, KvDtype::Q8), (12.0, KvDtype::F16), (400.0, KvDtype::F32)] {
        let gpt = with_key_biases(largest);
        assert_eq!(gpt.kv_dtypes(KvDtype::Q8).unwrap(), [expected; 4], "{largest}");
        let (exact, rounded) = (text_logprobs(&gpt, KvDtype::F32), text_logprobs(&gpt, KvDtype::Q8));
        let change = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).sum::<f32>() / exact.len() as f32;
        assert!(change < 0.03, "biases up to {largest}: {change}");
        let of_layer = 2 * gpt.config().n_layers;
        let n_bytes = [2 * (32 + 4), 2 * 2 * 32, 2 * 4 * 32]
            [[KvDtype::Q8, KvDtype::F16, KvDtype::F32].iter().position(|dtype| *dtype == expected).unwrap()];
        assert_eq!(gpt.kv_bytes_per_token(KvDtype::Q8).unwrap(), of_layer * n_bytes);
    }
    // Other dtypes are as asked for.
    assert_eq!(with_key_biases(400.0).kv_dtypes(KvDtype::F16).unwrap(), [KvDtype::F16; 4]);
}
