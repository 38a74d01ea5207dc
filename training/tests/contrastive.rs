//! Contrastive training: its loss against sentence-transformers (`golden/contrastive.py`), and a model from pairs as a user makes it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    gpt::pooling::{OwnPooling, Pooling},
    ops::Dtype,
    weights::{
        encoder_files::load_pooling,
        model_dir::{LoadOptions, load_class, load_gpt},
    },
};
use hearth_training::{
    config::{Layers, ObjectiveKind, ObjectiveSettings, TextPooling},
    data::{
        loader::{Items, Loader, LoaderSettings, RowOrder, RowSource},
        tokenizer_build::BuiltTokenizer,
    },
    eval::Windows,
    ranks::Group,
    run::learner::Learner,
};
use serde::Deserialize;

use crate::mlm::Folder;

#[derive(Deserialize)]
struct Case {
    model: String,
    pooling: TextPooling,
    texts_per_item: usize,
    temperature: f64,
    texts: Vec<Vec<TokenId>>,
    loss: f32,
    norm: f32,
    accuracy: f64,
}

const SEQ_LEN: usize = 16;

#[test]
fn loss_and_gradients_of_pairs_match_sentence_transformers_for_each_pooling_and_with_negatives() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let cases: Vec<Case> = serde_json::from_slice(&fs::read(tests.join("golden/contrastive.json")).unwrap()).unwrap();
    let config = Layers::default().resolve().unwrap();
    let tokenizer = BuiltTokenizer::characters("abcd", 4).unwrap().open().unwrap();
    for Case { model, pooling, texts_per_item, temperature, texts, loss, norm, accuracy } in cases {
        let options = LoadOptions { device: Device::flex().autodiff(), dtype: Some(Dtype::F32) };
        let gpt = load_gpt(&tests.join("../../model/tests/golden").join(&model), &options).unwrap().with_dropout(0.0);
        let objective = ObjectiveSettings {
            kind: ObjectiveKind::Contrastive,
            temperature,
            pooling: Some(pooling),
            negatives: texts_per_item == 3,
            ..ObjectiveSettings::default()
        };
        let learner = Learner::new(gpt, config.optim.clone(), 0).with_objective(objective);
        let items = texts.chunks(texts_per_item).map(<[_]>::to_vec);
        let items = Items::new(items, texts_per_item, SEQ_LEN, &tokenizer).unwrap();
        let n_items = items.n_items();
        let source = RowSource::Items(items);
        // In another order than the oracle's, which changes nothing.
        let settings = LoaderSettings {
            seed: 3,
            seq_len: SEQ_LEN,
            micro_batch_size: n_items,
            order: RowOrder::Permuted,
            n_micro_batches: 1,
        };
        let batch = Loader::new(&source, settings).unwrap().batch(0, 0);
        let index = learner.step_index(0, [&batch].into_iter());
        let found = learner.step_gradients(index, [(0, batch)].into_iter()).unwrap();
        for (what, found, expected) in [("loss", found.loss, loss), ("norm", found.grad_norm, norm)] {
            assert!((found - expected).abs() <= 1e-4 * expected, "{model}: {what} {found}, expected {expected}");
        }
        let windows = Windows { batch_size: n_items, seq_len: SEQ_LEN, max_batches: None };
        let score = learner.objective().score(&learner.gpt.packed().unwrap(), &source, windows, &Group::default());
        let score = score.unwrap();
        assert!((score.loss as f32 - loss).abs() <= 1e-4 * loss, "{model}: {}", score.loss);
        assert_eq!((score.accuracy, score.n_targets), (Some(accuracy), n_items), "{model}");
    }
}

/// Anchors and positives that share two rare words, and no others.
fn pairs(n: usize, others: &str) -> String {
    let words = |n: usize| format!("{}{} {}{}", n % 7, n % 3, n / 7, n % 5);
    let pair = |n: usize| {
        format!("{{\"anchor\": \"line {} of\", \"positive\": \"{} the house\"{others}}}\n", words(n), words(n))
    };
    (0..n).map(pair).collect()
}

#[test]
fn encoder_learns_vectors_of_pairs_is_resumed_with_the_same_bits_and_saved_with_its_pooling() {
    let folder = Folder::new();
    folder.encoder("base");
    folder.write("pairs.jsonl", &pairs(60, ""));
    let finetune = ["finetune", "base", "--data", "pairs.jsonl", "--device=cpu"];
    let contrastive = ["--set", "objective.kind=contrastive"];
    let small = ["--set", "data.micro_batch_size=12", "--set", "data.val_fraction=0.2", "--set", "model.dropout=0.1"];
    let plan = ["--set", "schedule.kind=constant", "--set", "optim.lr=3e-3", "--set", "eval.every=4"];
    let train = |out: &str, others: &[&str]| {
        folder.succeed(&[&finetune[..], &contrastive, &small, &plan, &["--out", out], others].concat());
    };
    train("whole", &["--set", "schedule.max_steps=8"]);
    train("half", &["--set", "schedule.max_steps=4"]);
    folder.succeed(&[&finetune[..], &["--out", "half", "--resume", "--set", "schedule.max_steps=8"]].concat());
    assert!(folder.weights("whole") == folder.weights("half"), "a resumed run ends with other weights");
    let found = folder.val_losses("whole");
    // By chance it is the logarithm of the 12 positives of a batch.
    assert!(found.len() == 2 && found.iter().all(|loss| *loss < 0.2 * 12_f64.ln()), "{found:?}");
    let model = folder.path("whole/model");
    assert_eq!(load_class(&model).unwrap(), "BertModel");
    assert_eq!(load_pooling(&model).unwrap(), (OwnPooling::As(Pooling::Mean), Some(32)));

    // What was trained is trained on, with negatives and another pooling.
    folder.write("negatives.jsonl", &pairs(20, ", \"negative\": \"nothing\""));
    let more = ["finetune", "whole", "--data", "negatives.jsonl", "--device=cpu", "--out", "more"];
    folder.succeed(
        &[&more[..], &contrastive, &["--set", "objective.pooling=cls", "--set", "schedule.max_steps=2"]].concat(),
    );
    assert_eq!(load_pooling(&folder.path("more/model")).unwrap().0, OwnPooling::As(Pooling::Cls));
    assert!(fs::read_to_string(folder.path("more/config.toml")).unwrap().contains("negatives = true"));

    // What does not fit is refused by name.
    let refused = |data: &str, others: &[&str], message: &str| {
        folder.write("refused.jsonl", data);
        let args = ["finetune", "base", "--data", "refused.jsonl", "--device=cpu", "--out", "refused"];
        let error = folder.fail(&[&args[..], &contrastive, others].concat());
        assert!(error.contains(message), "{message}: {error}");
    };
    let good = pairs(20, "");
    refused(&good, &["--lora"], "`objective.kind=contrastive` trains all weights");
    refused(
        &good,
        &["--set", "data.micro_batch_size=4", "--set", "data.tokens_per_step=256", "--set", "model.max_seq_len=32"],
        "a step must be one micro-batch",
    );
    refused(&good, &["--set", "objective.temperature=0"], "`objective.temperature` must be from");
    refused(
        &good,
        &["--set", "objective.negatives=true"],
        "`objective.negatives` is true, but the pairs have no `negative`",
    );
    let mixed = format!("{}{}", pairs(3, ""), pairs(3, ", \"negative\": \"nothing\""));
    refused(&mixed, &[], "line 1: there is no `negative`, but there is one in `refused.jsonl`, line 4");
    refused(&good.replacen("positive", "answer", 1), &[], "`refused.jsonl`, line 1: there is no `positive`");
    let long = good.replacen("the house", &"the house ".repeat(30), 1);
    refused(&long, &[], "line 1, `positive`: the text has");
    let other = ["finetune", "base", "--data", "pairs.jsonl", "--device=cpu", "--out", "other"];
    let error = folder.fail(&[&other[..], &["--set", "objective.kind=mlm"]].concat());
    assert!(error.contains("pairs.jsonl`, line 1"), "{error}");
}
