//! Models with recurrent layers: a sequence's state is marked, shared and computed again without another bit, and packed
//! documents do not see each other.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::HashMap, sync::Arc};

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Gradients, Int, Tensor},
};
use hearth_model::{
    TokenId,
    gpt::{
        Gpt, ParamPath,
        attention::AttentionContext,
        kv_cache::{CacheUnit, KvCache, OutOfPages, PAGE_SIZE, PageTable, StepPart},
        token_ids::token_tensor,
    },
    ops::KvDtype,
};

use crate::kv_cache::{VOCAB, assert_close, model, model_on, page_key, recurrent_configs, step, uncached};

fn text(len: u32, factor: u32) -> Vec<TokenId> {
    (0..len).map(|at| (at * factor + at * at / 3 + 3) % VOCAB as TokenId).collect()
}

/// Logits of `ids` behind those in `table`, computed in chunks of `cut`.
fn in_chunks(gpt: &Gpt, cache: &mut KvCache, table: &mut PageTable, ids: &[TokenId], cut: usize) -> Vec<u32> {
    ids.chunks(cut).flat_map(|ids| step(gpt, cache, &mut [(&mut *table, ids)])).map(f32::to_bits).collect()
}

#[test]
fn recurrent_logits_have_the_same_bits_in_chunks_of_every_size_and_after_preemption() {
    for config in recurrent_configs() {
        let gpt = model(&config);
        let ids = text(60, 7);
        let mut cache = KvCache::new(&config, 16, KvDtype::F32, &Device::flex());
        let mut table = cache.table();
        let whole = in_chunks(&gpt, &mut cache, &mut table, &ids, ids.len());
        let values: Vec<f32> = whole.iter().copied().map(f32::from_bits).collect();
        assert_close(&values, &uncached(&gpt, &ids));
        for cut in [1, 5, 16, 33] {
            // Preempted, and computed again while another text is.
            table.truncate(0);
            assert_eq!(table.len(), 0);
            let mut other = cache.table();
            let mut found = Vec::new();
            for ids in ids.chunks(cut) {
                let both = step(&gpt, &mut cache, &mut [(&mut other, &[3, 1]), (&mut table, ids)]);
                found.extend(both[2 * VOCAB..].iter().map(|value| value.to_bits()));
            }
            assert!(found == whole, "other bits in chunks of {cut}");
        }
    }
}

#[test]
fn recurrent_sequences_go_back_to_their_mark_and_go_on_with_the_same_bits() {
    for config in recurrent_configs() {
        let gpt = model(&config);
        let (ids, wrong) = (text(50, 7), text(30, 5));
        let mut cache = KvCache::new(&config, 16, KvDtype::F32, &Device::flex());
        let mut table = cache.table();
        let expected = in_chunks(&gpt, &mut cache, &mut table, &ids, 50);
        let mut table = cache.table();
        in_chunks(&gpt, &mut cache, &mut table, &ids[..20], 20);
        table.mark();
        in_chunks(&gpt, &mut cache, &mut table, &wrong, 4);
        // Only the marked state is there.
        table.truncate(33);
        assert_eq!(table.len(), 20);
        let mut fork = table.fork();
        let mut found = in_chunks(&gpt, &mut cache, &mut table, &ids[20..], 11);
        assert!(found == expected[20 * VOCAB..], "other bits behind a mark");
        found = in_chunks(&gpt, &mut cache, &mut fork, &ids[20..], 30);
        assert!(found == expected[20 * VOCAB..], "other bits in a fork");
    }
}

#[test]
fn recurrent_states_in_the_prefix_cache_give_the_bits_of_recomputing() {
    for config in recurrent_configs() {
        let gpt = model(&config);
        let ids = text(50, 7);
        let mut cache = KvCache::new(&config, 16, KvDtype::F32, &Device::flex());
        let keys = [page_key(1), page_key(2), page_key(3)];
        let mut first = cache.table();
        let mut expected = in_chunks(&gpt, &mut cache, &mut first, &ids[..2 * PAGE_SIZE], 9);
        first.keep_state(keys[1]);
        expected.extend(in_chunks(&gpt, &mut cache, &mut first, &ids[2 * PAGE_SIZE..], 9));
        keys.iter().enumerate().for_each(|(index, &key)| first.keep(index, key));
        drop(first);
        let mut second = cache.table();
        // The third page is kept, but not the state behind it.
        assert_eq!(second.share_kept(&keys), 2 * PAGE_SIZE);
        let found = in_chunks(&gpt, &mut cache, &mut second, &ids[2 * PAGE_SIZE..], 50);
        assert!(found == expected[2 * PAGE_SIZE * VOCAB..], "other bits behind a kept state");
    }
}

#[test]
fn step_fails_as_a_whole_if_states_run_out() {
    let [config, ..] = recurrent_configs();
    let gpt = model(&config);
    let mut cache = gpt.kv_cache_with_states(8, 2, KvDtype::F32).unwrap();
    let mut tables = [0; 3].map(|_| cache.table());
    let mut parts: Vec<_> = tables.iter_mut().map(|table| StepPart::new(table, 1)).collect();
    let refused = Err(OutOfPages { of: CacheUnit::State, needed: 3, free: 2 });
    assert_eq!(cache.step(&mut parts).map(drop), refused);
    assert!(cache.step(&mut parts[..2]).is_ok());
}

/// Keys and values are of one layer of three; a state is of the other two.
#[test]
fn recurrent_layers_have_states_and_no_keys() {
    let [delta, conv, mamba, alone] = recurrent_configs();
    let of_keys = 2 * delta.kv_width() * size_of::<f32>();
    let of_heads = 3 * (2 * 12 + 140) + 4 * 2 * 6 * 32;
    for (config, state_len) in [(delta, of_heads), (conv, 2 * 16), (mamba, of_heads), (alone, of_heads)] {
        let gpt = model(&config);
        assert!(gpt.has_recurrent_layers());
        assert_eq!(gpt.kv_bytes_per_token(KvDtype::F32).unwrap(), of_keys);
        assert_eq!(config.state_bytes(), 2 * 4 * state_len);
    }
}

/// Gradients by parameter path.
struct Reader<'a> {
    path: ParamPath,
    gradients: &'a Gradients,
    found: HashMap<String, Vec<f32>>,
}

impl ModuleVisitor for Reader<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.path();
        let gradient = match param.val().grad(self.gradients) {
            Some(gradient) => gradient.into_data().try_into_vec().unwrap(),
            // What only chooses experts is not learned by gradients, and an expert that no row chose has none.
            None if path.ends_with("selection_bias") => return,
            None => {
                assert!(path.contains(".experts.routed."), "{path} has no gradient");
                vec![0.0; param.val().dims().iter().product()]
            }
        };
        self.found.insert(path, gradient);
    }

    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }
}

/// The sum of the losses of the tokens behind the first of each document, and its gradients.
fn loss_and_gradients(gpt: &Gpt, ids: &[TokenId], context: AttentionContext<'_>) -> (f32, HashMap<String, Vec<f32>>) {
    let positions: Vec<u32> = match &context {
        AttentionContext::Dense(dense) if let Some(positions) = &dense.positions => positions.to_vec(),
        _ => (0..ids.len() as u32).collect(),
    };
    let hidden = gpt.forward(token_tensor(gpt, ids), context);
    let predicted: Vec<i32> = (1..ids.len()).filter(|&row| positions[row] > 0).map(|row| row as i32).collect();
    let rows = |skip: i32| {
        let rows: Vec<i32> = predicted.iter().map(|row| row - skip).collect();
        Tensor::<1, Int>::from_data(rows.as_slice(), &gpt.device())
    };
    let targets = token_tensor(gpt, ids).select(0, rows(0));
    let loss = gpt.loss(hidden.select(0, rows(1)), targets) * predicted.len() as f32;
    let gradients = loss.backward();
    let mut reader = Reader { path: ParamPath::default(), gradients: &gradients, found: HashMap::new() };
    gpt.visit(&mut reader);
    (loss.into_scalar::<f32>(), reader.found)
}

#[test]
fn packed_documents_have_the_loss_and_gradients_of_documents_alone() {
    for config in recurrent_configs() {
        let gpt = model_on(&config, &Device::flex().autodiff());
        let documents = [text(9, 7), text(2, 5), text(17, 11)];
        let packed = documents.concat();
        let positions = documents.iter().flat_map(|ids| 0..ids.len() as u32).collect();
        let context = AttentionContext::dense(1, packed.len()).with_positions(Arc::new(positions));
        let (loss, gradients) = loss_and_gradients(&gpt, &packed, context);
        let alone = documents.map(|ids| loss_and_gradients(&gpt, &ids, AttentionContext::dense(1, ids.len())));
        let expected: f32 = alone.iter().map(|(loss, _)| loss).sum();
        assert!((loss / expected - 1.0).abs() < 1e-5, "{loss}, alone {expected}");
        for (path, gradient) in &gradients {
            let mut expected = vec![0.0; gradient.len()];
            for (_, of_document) in &alone {
                expected.iter_mut().zip(&of_document[path]).for_each(|(sum, value)| *sum += value);
            }
            let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
            let far = norm(&mut gradient.iter().zip(&expected).map(|(a, b)| a - b));
            let length = norm(&mut expected.iter().copied());
            assert!(length > 0.0 && far < 1e-4 * length, "{path}: {far} away, of {length}");
        }
    }
}
