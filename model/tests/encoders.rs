//! Encoders in steps, as the server runs them: each text whole, texts of any lengths side by side.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    decode::model_runner::ModelRunner,
    gpt::{attention::AttentionContext, kv_cache::StepPart},
    ops::{KvDtype, PAGE_SIZE},
    weights::model_dir::{LoadOptions, load_gpt},
};

use crate::golden::{Oracle, distance, golden, load};

const ENCODERS: [&str; 8] =
    ["bert", "roberta", "xlm-roberta", "distilbert", "modernbert", "mpnet", "nomic-bert", "embedding-gemma"];

/// Texts of several lengths, of ids that are in every vocabulary and no padding.
fn texts() -> Vec<Vec<TokenId>> {
    let text = |number: usize, len: usize| (0..len).map(|at| (3 + (7 * at + 11 * number) % 50) as TokenId).collect();
    [1, 20, 3, 16, 33, 2].into_iter().enumerate().map(|(number, len)| text(number, len)).collect()
}

/// The hidden states of `texts` in one step: those of each text, with the position of its second part, if it is a pair.
fn hidden(runner: &mut ModelRunner, texts: &[(Vec<TokenId>, Option<usize>)]) -> Vec<Vec<f32>> {
    let mut tables: Vec<_> = texts.iter().map(|_| runner.cache().table()).collect();
    let part = |(table, (text, second_text))| StepPart { second_text, ..StepPart::new(table, Vec::len(text)) };
    let seconds = texts.iter().map(|(text, second)| (text, *second));
    let mut parts: Vec<StepPart<'_>> = tables.iter_mut().zip(seconds).map(part).collect();
    let token_ids: Vec<TokenId> = texts.iter().flat_map(|(text, _)| text.clone()).collect();
    let output = runner.step(&token_ids, &mut parts).unwrap();
    let mut start = 0;
    let of_text = |(text, _): &(Vec<TokenId>, Option<usize>)| {
        let rows = start..start + text.len();
        start = rows.end;
        runner.read_hidden(&output, rows).unwrap()
    };
    texts.iter().map(of_text).collect()
}

fn runner(case: &str) -> ModelRunner {
    ModelRunner::new(load(case, &Device::flex()), 64, KvDtype::F32).unwrap()
}

#[test]
fn texts_of_encoders_have_the_same_bits_alone_and_beside_others() {
    for case in ENCODERS {
        let texts: Vec<_> = texts().into_iter().map(|text| (text, None)).collect();
        let together = hidden(&mut runner(case), &texts);
        for (text, together) in texts.into_iter().zip(together) {
            let alone = hidden(&mut runner(case), std::slice::from_ref(&text));
            assert_eq!(alone, [together], "{case}, {} tokens", text.0.len());
        }
    }
}

#[test]
fn encoders_compute_in_steps_what_they_compute_of_whole_batches() {
    for case in ENCODERS {
        let (gpt, oracle) = (load(case, &Device::flex()), Oracle::read(case));
        let context = AttentionContext::dense(oracle.batch, oracle.seq_len);
        let dense: Vec<f32> = gpt.forward(oracle.ids(&Device::flex()), context).into_data().try_into_vec().unwrap();
        let ids: Vec<TokenId> = oracle.input_ids.iter().map(|&id| id as TokenId).collect();
        let texts: Vec<_> = ids.chunks(oracle.seq_len).map(|text| (text.to_vec(), None)).collect();
        let far = distance(&hidden(&mut runner(case), &texts).concat(), &dense);
        assert!(far < 1e-5, "{case}: {far} spreads away");
    }
}

#[test]
fn rows_of_encoders_see_those_behind_them() {
    for case in ENCODERS {
        let mut other = texts()[1].clone();
        *other.last_mut().unwrap() += 1;
        let found = [texts()[1].clone(), other].map(|text| hidden(&mut runner(case), &[(text, None)]).remove(0));
        let d_model = found[0].len() / 20;
        assert_ne!(found[0][..d_model], found[1][..d_model], "{case}");
    }
}

#[test]
fn second_texts_of_pairs_have_embeddings_of_their_own_where_the_model_tells_them_apart() {
    for case in ENCODERS {
        let of = |second_text| hidden(&mut runner(case), &[(texts()[1].clone(), second_text)]);
        assert_eq!(of(None), of(Some(20)), "{case}");
        assert_eq!(of(None) == of(Some(7)), !["bert", "nomic-bert"].contains(&case), "{case}");
    }
}

#[test]
fn encoder_with_the_class_of_a_head_that_its_files_do_not_have_opens_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let from = golden("bert");
    fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let config = fs::read_to_string(from.join("config.json")).unwrap().replace("BertModel", "BertForMaskedLM");
    fs::write(dir.path().join("config.json"), config).unwrap();
    let gpt = load_gpt(dir.path(), &LoadOptions { device: Device::flex(), dtype: None }).unwrap();
    assert_eq!(gpt.config(), load("bert", &Device::flex()).config());
    assert!(load("bert-mlm", &Device::flex()).config().mlm_head.is_some());
}

#[test]
fn parts_of_texts_are_refused() {
    let mut runner = runner("bert");
    let mut table = runner.cache().table();
    runner.step(&[5; PAGE_SIZE], &mut [StepPart::new(&mut table, PAGE_SIZE)]).unwrap();
    let error = runner.step(&[5], &mut [StepPart::new(&mut table, 1)]).unwrap_err().to_string();
    assert_eq!(error, "`token_ids` must be a whole text for a model that looks both ways");
}
