//! Encoder-decoders against `transformers`: the encoder's output, logits, loss and gradients of tiny models, whole and token by
//! token over a cache, and what they write. `golden/make_seq2seq.py` makes the golden dirs.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::HashMap, fs, sync::Arc};

use burn::tensor::{Device, Int, Tensor, TensorData};
use half::f16;
use hearth_model::{
    TokenId,
    config::GptConfig,
    decode::{
        inspect::{InspectOptions, Inspector},
        model_runner::{ModelRunner, StepOutput},
    },
    gpt::{
        Gpt,
        attention::AttentionContext,
        kv_cache::{PAGE_SIZE, PageTable, StepPart},
    },
    ops::{Dtype, KvDtype},
    weights::model_dir::{self, LoadOptions, SaveOptions},
};
use safetensors::SafeTensors;

use crate::golden::{
    assert_gradients, distance, f32s, golden, gradients_by_hf_name, load, mutations, params, stored_gradients,
    without_dropout,
};

const CASES: &[&str] = &["t5", "t5-gated", "mt5", "umt5", "bart", "mbart", "marian", "m2m100"];
/// Relative to the spread of the numbers.
const TOLERANCE: f32 = 1e-4;

struct Oracle {
    batch: usize,
    source_len: usize,
    seq_len: usize,
    source_ids: Vec<i32>,
    input_ids: Vec<i32>,
    encoded: Vec<f32>,
    logits: Vec<f32>,
    loss: f32,
    grads: HashMap<String, (Vec<usize>, Vec<f32>)>,
    generated: Vec<TokenId>,
}

impl Oracle {
    fn read(case: &str) -> Self {
        let bytes = fs::read(golden(case).join("seq2seq.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let floats = |name: &str| f32s(file.tensor(name).unwrap().data());
        let ids = |name: &str| -> Vec<i32> {
            let tensor = file.tensor(name).unwrap();
            tensor.data().chunks(4).map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap())).collect()
        };
        let len_of = |name: &str| file.tensor(name).unwrap().shape()[1];
        Self {
            batch: file.tensor("source_ids").unwrap().shape()[0],
            source_len: len_of("source_ids"),
            seq_len: len_of("input_ids"),
            source_ids: ids("source_ids"),
            input_ids: ids("input_ids"),
            encoded: floats("encoded"),
            logits: floats("logits"),
            loss: floats("loss")[0],
            grads: stored_gradients(&file),
            generated: ids("generated").into_iter().map(|id| id as TokenId).collect(),
        }
    }

    fn source(&self, number: usize) -> Vec<TokenId> {
        tokens(&self.source_ids[number * self.source_len..][..self.source_len])
    }

    fn text(&self, number: usize) -> Vec<TokenId> {
        tokens(&self.input_ids[number * self.seq_len..][..self.seq_len])
    }
}

fn tokens(ids: &[i32]) -> Vec<TokenId> {
    ids.iter().map(|&id| id as TokenId).collect()
}

fn tensor(ids: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(ids.to_vec(), [ids.len()]), device)
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

fn encoded(gpt: &Gpt, oracle: &Oracle) -> Tensor<2> {
    let ids = tensor(&oracle.source_ids, &gpt.device());
    gpt.encode(ids, AttentionContext::dense(oracle.batch, oracle.source_len))
}

/// Without a cache.
fn hidden(gpt: &Gpt, oracle: &Oracle) -> Tensor<2> {
    let context = AttentionContext::dense(oracle.batch, oracle.seq_len).with_source(encoded(gpt, oracle));
    gpt.forward(tensor(&oracle.input_ids, &gpt.device()), context)
}

fn logits(gpt: &Gpt, oracle: &Oracle) -> Vec<f32> {
    floats(gpt.logits(hidden(gpt, oracle)))
}

fn loss(gpt: &Gpt, oracle: &Oracle) -> Tensor<1> {
    let device = gpt.device();
    let rows = |skip: usize| {
        let of_text = |text: usize| (0..oracle.seq_len - 1).map(move |row| (text * oracle.seq_len + row + skip) as i32);
        tensor(&(0..oracle.batch).flat_map(of_text).collect::<Vec<_>>(), &device)
    };
    let targets = tensor(&oracle.input_ids, &device).select(0, rows(1));
    gpt.loss(hidden(gpt, oracle).select(0, rows(0)), targets)
}

/// The source with what fills its last page, and then the text.
fn places(source: &[TokenId], text: &[TokenId]) -> Vec<TokenId> {
    let filled = source.len().next_multiple_of(PAGE_SIZE) - source.len();
    [source, &vec![0; filled], text].concat()
}

/// Runs the source and the first `n_first` tokens of the text in one step, the others one by one: the logits of all.
fn stepped(runner: &mut ModelRunner, source: &[TokenId], text: &[TokenId], n_first: usize) -> Vec<f32> {
    let mut table = runner.cache().table();
    let first = places(source, &text[..n_first]);
    let rows: Vec<usize> = (first.len() - n_first..first.len()).collect();
    let output = step(runner, &mut table, &first, source.len());
    let mut logits = floats(runner.logits(&output, &rows));
    for id in &text[n_first..] {
        let output = step(runner, &mut table, &[*id], source.len());
        logits.extend(floats(runner.logits(&output, &[0])));
    }
    logits
}

fn step(runner: &mut ModelRunner, table: &mut PageTable, ids: &[TokenId], source_len: usize) -> StepOutput {
    let part = StepPart { source_len, ..StepPart::new(table, ids.len()) };
    runner.step(ids, &mut [part]).unwrap()
}

fn runner(gpt: Gpt) -> ModelRunner {
    ModelRunner::new(gpt.packed().unwrap(), 32, KvDtype::F32).unwrap()
}

#[test]
fn encoders_hidden_states_decoders_logits_and_loss_match_transformers() {
    for case in CASES {
        let (gpt, oracle) = (load(case, &Device::flex()), Oracle::read(case));
        let far = distance(&floats(encoded(&gpt, &oracle)), &oracle.encoded);
        assert!(far < TOLERANCE, "{case}: the encoder's output is {far} spreads away");
        let far = distance(&logits(&gpt, &oracle), &oracle.logits);
        assert!(far < TOLERANCE, "{case}: logits are {far} spreads away");
        let loss = loss(&gpt, &oracle).into_scalar::<f32>();
        assert!((loss / oracle.loss - 1.0).abs() < 1e-5, "{case}: loss {loss}, expected {}", oracle.loss);
    }
}

#[test]
fn attention_of_encoder_and_decoder_and_to_the_source_matches_transformers() {
    for case in ["t5", "bart", "marian"] {
        let (gpt, oracle) = (load(case, &Device::flex()), Oracle::read(case));
        let bytes = fs::read(golden(case).join("attentions.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let all = |config: &GptConfig| ((0..config.n_layers).collect(), (0..config.n_heads).collect());
        let (attention_layers, attention_heads) = all(gpt.config());
        let (encoder_layers, encoder_heads) = all(gpt.config().encoder.as_ref().unwrap());
        let options = InspectOptions {
            attention_layers,
            attention_heads,
            encoder_layers,
            encoder_heads,
            ..InspectOptions::default()
        };
        let inspector = Inspector::new(&gpt);
        let found = inspector.inspect_behind(&oracle.source(0), &oracle.text(0), &options, &|| true).unwrap();
        let source = found.source.unwrap();
        let maps = [
            ("encoder_attentions", source.encoder),
            ("decoder_attentions", found.attention),
            ("cross_attentions", source.cross),
        ];
        for (name, found) in maps {
            let expected = file.tensor(name).unwrap();
            let expected = expected.data().chunks(2).map(|bytes| f16::from_le_bytes(bytes.try_into().unwrap()));
            assert_eq!(found.len(), expected.len(), "{case}: {name}");
            for (at, (found, expected)) in found.into_iter().zip(expected).enumerate() {
                assert!((found.to_f32() - expected.to_f32()).abs() < 1e-3, "{case}: {name}, {at}: {found}, {expected}");
            }
        }
    }
}

#[test]
fn every_gradient_of_an_encoder_decoder_matches_transformers() {
    for case in CASES {
        let oracle = Oracle::read(case);
        let gpt = without_dropout(&load(case, &Device::flex()), &Device::flex().autodiff());
        let mut found = gradients_by_hf_name(case, &gpt, (loss(&gpt, &oracle), false));
        // It does not train there.
        found.remove("final_logits_bias");
        if *case == "marian" {
            // Its texts begin with the padding token, whose embedding learns nothing as an input in torch.
            let pad = gpt.config().vocab_size - 1;
            let (shape, expected) = &oracle.grads["model.shared.weight"];
            let row = pad * shape[1]..(pad + 1) * shape[1];
            let (_, values) = found.get_mut("model.shared.weight").unwrap();
            values[row.clone()].copy_from_slice(&expected[row]);
        }
        assert_gradients(case, &found, &oracle.grads);
    }
}

/// The loss of these texts, each behind the first tokens of its source, in one batch.
fn loss_behind(gpt: &Gpt, oracle: &Oracle, texts: &[(usize, usize)]) -> Tensor<1> {
    let (device, n_texts) = (gpt.device(), texts.len());
    let source_len = texts.iter().map(|(_, len)| *len).max().unwrap();
    let filled = |(text, len): &(usize, usize)| {
        let source = oracle.source_ids[text * oracle.source_len..][..*len].to_vec();
        [source, vec![7; source_len - len]].concat()
    };
    let positions =
        |(_, len): &(usize, usize)| (0..*len as u32).chain(0..(source_len - len) as u32).collect::<Vec<_>>();
    let context = AttentionContext::dense(n_texts, source_len)
        .with_positions(Arc::new(texts.iter().flat_map(positions).collect()));
    let encoded = gpt.encode(tensor(&texts.iter().flat_map(filled).collect::<Vec<_>>(), &device), context);
    let lens = Arc::new(texts.iter().map(|(_, len)| *len).collect());
    let context = AttentionContext::dense(n_texts, oracle.seq_len).with_sources(encoded, lens);
    let of_texts = |skip: usize| {
        let rows = texts.iter().flat_map(|(text, _)| text * oracle.seq_len..(text + 1) * oracle.seq_len);
        let rows = rows.map(|row| oracle.input_ids[(row + skip) % oracle.input_ids.len()]);
        tensor(&rows.collect::<Vec<_>>(), &device)
    };
    gpt.loss(gpt.forward(of_texts(0), context), of_texts(1))
}

#[test]
fn padding_behind_a_source_changes_no_loss_and_no_gradient() {
    for case in CASES {
        let oracle = Oracle::read(case);
        let gpt = without_dropout(&load(case, &Device::flex()), &Device::flex().autodiff());
        let texts = [(0, oracle.source_len), (1, 5)];
        let of = |texts: &[(usize, usize)]| {
            let loss = loss_behind(&gpt, &oracle, texts);
            (loss.clone().into_scalar::<f32>(), gradients_by_hf_name(case, &gpt, (loss, false)))
        };
        let (loss, together) = of(&texts);
        let [(one, mut expected), (other, of_other)] = texts.map(|text| of(&[text]));
        assert!((loss - (one + other) / 2.0).abs() < 1e-5 * loss, "{case}: {loss}, alone {one} and {other}");
        for (name, (_, values)) in &mut expected {
            values.iter_mut().zip(&of_other[name].1).for_each(|(value, other)| *value = (*value + other) / 2.0);
        }
        assert_gradients(case, &together, &expected);
    }
}

/// Whatever is computed in one step: the bits are the same.
#[test]
fn logits_over_a_cache_equal_those_without_in_any_steps() {
    for case in CASES {
        let (gpt, oracle) = (load(case, &Device::flex()), Oracle::read(case));
        let mut runner = runner(gpt);
        let width = runner.gpt().config().vocab_size;
        for number in 0..oracle.batch {
            let (source, text) = (oracle.source(number), oracle.text(number));
            let whole = stepped(&mut runner, &source, &text, text.len());
            let expected = &oracle.logits[number * oracle.seq_len * width..][..oracle.seq_len * width];
            let far = distance(&whole, expected);
            assert!(far < TOLERANCE, "{case}: logits are {far} spreads away");
            for n_first in [1, 7] {
                assert!(stepped(&mut runner, &source, &text, n_first) == whole, "{case}: {n_first} tokens at first");
            }
        }
    }
}

/// A source of another length beside it changes nothing.
#[test]
fn texts_with_other_sources_in_the_same_step_have_the_same_bits() {
    for case in CASES {
        let (gpt, oracle) = (load(case, &Device::flex()), Oracle::read(case));
        let mut runner = runner(gpt);
        let sources = [oracle.source(0), oracle.source(1)[..5].to_vec()];
        let texts = [oracle.text(0)[..3].to_vec(), oracle.text(1)[..1].to_vec()];
        let alone: Vec<Vec<f32>> = (0..2)
            .map(|n| {
                let (mut table, ids) = (runner.cache().table(), places(&sources[n], &texts[n]));
                let output = step(&mut runner, &mut table, &ids, sources[n].len());
                floats(runner.logits(&output, &[ids.len() - 1]))
            })
            .collect();
        let (mut one, mut other) = (runner.cache().table(), runner.cache().table());
        let ids = [places(&sources[0], &texts[0]), places(&sources[1], &texts[1])];
        let lens = sources.each_ref().map(Vec::len);
        let parts = &mut [
            StepPart { source_len: lens[0], ..StepPart::new(&mut one, ids[0].len()) },
            StepPart { source_len: lens[1], ..StepPart::new(&mut other, ids[1].len()) },
        ];
        let output = runner.step(&ids.concat(), parts).unwrap();
        let rows = [ids[0].len() - 1, ids[0].len() + ids[1].len() - 1];
        assert!(floats(runner.logits(&output, &rows)) == alone.concat(), "{case}");
        // One goes on beside a source that is read.
        let next = oracle.text(0)[3];
        let mut apart = runner.cache().table();
        let first = places(&sources[0], &oracle.text(0)[..4]);
        let expected = step(&mut runner, &mut apart, &first, sources[0].len());
        let expected = floats(runner.logits(&expected, &[first.len() - 1]));
        let mut third = runner.cache().table();
        let both = [&[next][..], &ids[1]].concat();
        let parts = &mut [
            StepPart { source_len: lens[0], ..StepPart::new(&mut one, 1) },
            StepPart { source_len: lens[1], ..StepPart::new(&mut third, ids[1].len()) },
        ];
        let output = runner.step(&both, parts).unwrap();
        assert!(floats(runner.logits(&output, &[0])) == expected, "{case}");
    }
}

#[test]
fn forks_share_the_pages_of_their_source() {
    let (gpt, oracle) = (load("t5", &Device::flex()), Oracle::read("t5"));
    let mut runner = runner(gpt);
    let (source, text) = (oracle.source(0), oracle.text(0));
    let mut table = runner.cache().table();
    step(&mut runner, &mut table, &places(&source, &text[..1]), source.len());
    let before = runner.cache().n_free_pages();
    let mut forks: Vec<PageTable> = (0..3).map(|_| table.fork()).collect();
    assert_eq!(runner.cache().n_free_pages(), before);
    let whole = stepped(&mut runner, &source, &text, 2);
    let width = runner.gpt().config().vocab_size;
    for fork in &mut forks {
        let output = step(&mut runner, fork, &text[1..2], source.len());
        assert!(floats(runner.logits(&output, &[0])) == whole[width..2 * width]);
    }
    // Each has a page of its own for its text, the last of them that of the first table's.
    assert_eq!(before - runner.cache().n_free_pages(), forks.len());
}

#[test]
fn greedy_texts_are_those_that_transformers_generates() {
    for case in CASES {
        let (gpt, oracle) = (load(case, &Device::flex()), Oracle::read(case));
        let mut runner = runner(gpt);
        let source = oracle.source(0);
        let mut table = runner.cache().table();
        let mut ids = places(&source, &oracle.text(0)[..1]);
        let mut generated = Vec::new();
        while generated.len() < oracle.generated.len() {
            let output = step(&mut runner, &mut table, &ids, source.len());
            let logits = floats(runner.logits(&output, &[ids.len() - 1]));
            // What is forced is given in the first step otherwise.
            let forced = (case == &"bart" || case == &"m2m100") && generated.is_empty();
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as TokenId;
            generated.push(if forced { oracle.generated[0] } else { best });
            ids = vec![generated[generated.len() - 1]];
        }
        assert_eq!(generated, oracle.generated, "{case}");
    }
}

#[test]
fn logits_reveal_every_misread_config_field_of_an_encoder_decoder() {
    let device = Device::flex();
    let mut unnoticed = Vec::new();
    for case in CASES {
        let (gpt, oracle) = (load(case, &device), Oracle::read(case));
        let (params, config) = (params(&gpt), gpt.config());
        let of_decoder = mutations(config).into_iter();
        let of_encoder = mutations(config.encoder.as_ref().unwrap())
            .into_iter()
            .map(|(field, mutant)| (field, GptConfig { encoder: Some(Box::new(mutant)), ..config.clone() }));
        // The encoder has no head.
        let has_effect =
            |field: &str| !["tie_embeddings", "lm_head_bias", "logit_multiplier", "logit_softcap"].contains(&field);
        let of_encoder = of_encoder.filter(|(field, _)| has_effect(field));
        // BART's kin have no key for the epsilon of norms, and the two kinds of GELU are too near each other in a model this small.
        let is_bart = !case.contains("t5");
        let is_told = move |(field, _): &(&str, GptConfig)| !is_bart || !["norm_eps", "activation"].contains(field);
        let of_decoder = of_decoder.filter(is_told);
        let of_encoder = of_encoder.filter(is_told);
        let mut n_valid = 0;
        for (field, mutant) in of_decoder.chain(of_encoder).filter(|(_, mutant)| mutant.validate().is_ok()) {
            n_valid += 1;
            let missing = std::cell::Cell::new(false);
            let mutant = Gpt::from_params(&mutant, Dtype::F32, &device, &mut |spec| {
                let found = params.get(&spec.path);
                missing.set(missing.get() || found.is_none());
                Ok(found.cloned().unwrap_or_else(|| TensorData::zeros::<f32, _>(spec.shape.as_slice())))
            });
            let far = distance(&logits(&mutant.unwrap(), &oracle), &oracle.logits);
            assert!(!missing.get(), "{case}: a wrong `{field}` has other parameters");
            if far <= 5.0 * TOLERANCE {
                unnoticed.push(format!("{case}: a wrong `{field}` moves the logits by {far} spreads only"));
            }
        }
        assert!(n_valid > 20, "{case}: {n_valid} mutations");
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

#[test]
fn saved_encoder_decoders_reopen_with_the_same_config_and_logits() {
    let device = Device::flex();
    for case in CASES {
        let (gpt, oracle) = (load(case, &device), Oracle::read(case));
        let class = model_dir::load_class(&golden(case)).unwrap();
        for class in [Some(class.to_owned()), Some("HearthForCausalLM".to_owned())] {
            let dir = tempfile::tempdir().unwrap();
            let options = SaveOptions { class, ..SaveOptions::default() };
            model_dir::save(dir.path(), &gpt, &options).unwrap();
            let options = LoadOptions { device: device.clone(), dtype: None };
            let reopened = model_dir::load_gpt(dir.path(), &options).unwrap();
            let expected = gpt.config().clone().with_dropout(reopened.config().dropout);
            assert_eq!(reopened.config(), &expected, "{case}");
            assert_eq!(logits(&reopened, &oracle), logits(&gpt, &oracle), "{case}");
        }
    }
}

#[test]
fn steps_of_encoder_decoders_need_whole_sources() {
    let (gpt, oracle) = (load("t5", &Device::flex()), Oracle::read("t5"));
    let mut runner = runner(gpt);
    let (source, text) = (oracle.source(0), oracle.text(0));
    let whole = places(&source, &text[..1]);
    let refused = |runner: &mut ModelRunner, ids: &[TokenId], source_len| {
        let mut table = runner.cache().table();
        let part = StepPart { source_len, ..StepPart::new(&mut table, ids.len()) };
        let error = runner.step(ids, &mut [part]).map(drop).unwrap_err().to_string();
        assert!(table.is_empty());
        error
    };
    assert_eq!(refused(&mut runner, &whole, 0), "`source_len` must be from 1 to 64, got 0");
    assert_eq!(refused(&mut runner, &[3; 100], 65), "`source_len` must be from 1 to 64, got 65");
    let message = "`token_ids` must have a whole source and a token behind it";
    assert_eq!(refused(&mut runner, &whole[..32], source.len()), message);
    let llama = load("llama", &Device::flex());
    let mut decoder = ModelRunner::new(llama, 8, KvDtype::F32).unwrap();
    assert_eq!(refused(&mut decoder, &[1, 2], 1), "`source_len` must be from 0 to 0, got 1");
}
