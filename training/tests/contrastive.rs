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
use serde::{Deserialize, de::DeserializeOwned};

use crate::mlm::{Folder, assert_fits};

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
    for Case { model, pooling, texts_per_item, temperature, texts, loss, norm, accuracy } in cases("contrastive.json") {
        let objective =
            ObjectiveSettings { temperature, pooling: Some(pooling), negatives: texts_per_item == 3, ..contrastive() };
        assert_learns(&model, objective, (texts, texts_per_item, None), (loss, norm, accuracy));
    }
}

#[derive(Deserialize)]
struct MarginCase {
    model: String,
    pooling: TextPooling,
    texts: Vec<Vec<TokenId>>,
    margins: Vec<f64>,
    loss: f32,
    norm: f32,
    accuracy: f64,
}

#[test]
fn loss_and_gradients_of_margins_match_sentence_transformers() {
    for MarginCase { model, pooling, texts, margins, loss, norm, accuracy } in cases("margins.json") {
        let objective = ObjectiveSettings { pooling: Some(pooling), negatives: true, margins: true, ..contrastive() };
        assert_learns(&model, objective, (texts, 3, Some(margins)), (loss, norm, accuracy));
    }
}

fn contrastive() -> ObjectiveSettings {
    ObjectiveSettings { kind: ObjectiveKind::Contrastive, ..ObjectiveSettings::default() }
}

fn cases<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    serde_json::from_slice(&fs::read(golden.join(name)).unwrap()).unwrap()
}

/// Checks the loss of a step on all items, the norm of its gradient, and the score, on a golden model.
fn assert_learns(
    model: &str,
    objective: ObjectiveSettings,
    (texts, texts_per_item, margins): (Vec<Vec<TokenId>>, usize, Option<Vec<f64>>),
    (loss, norm, accuracy): (f32, f32, f64),
) {
    let config = Layers::default().resolve().unwrap();
    let tokenizer = BuiltTokenizer::characters("abcd", 4).unwrap().open().unwrap();
    let options = LoadOptions { device: Device::flex().autodiff(), dtype: Some(Dtype::F32) };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(model);
    let gpt = load_gpt(&golden, &options).unwrap().with_dropout(0.0);
    let learner = Learner::new(gpt, config.optim.clone(), 0).with_objective(objective);
    let items = texts.chunks(texts_per_item).map(<[_]>::to_vec);
    let items = Items::new(items, texts_per_item, SEQ_LEN, &tokenizer).unwrap();
    let items = match margins {
        Some(margins) => items.with_margins(margins),
        None => items,
    };
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

    // As an adapter, which is resumed with the same bits and leaves the model as it is.
    let adapter = ["finetune", "base", "--data", "pairs.jsonl", "--device=cpu", "--lora", "r=4,dropout=0.1"];
    let tune = |out: &str, steps: &str| {
        // An adapter has a dropout of its own.
        folder.succeed(&[&adapter[..], &contrastive, &small[..4], &plan, &["--out", out, "--set", steps]].concat());
    };
    tune("adapter", "schedule.max_steps=8");
    tune("half-adapter", "schedule.max_steps=4");
    let resumed = ["--out", "half-adapter", "--resume", "--set", "schedule.max_steps=8"];
    folder.succeed(&[&adapter[..5], &resumed].concat());
    let weights = |run: &str| fs::read(folder.path(run).join("model/adapter_model.safetensors")).unwrap();
    assert!(weights("adapter") == weights("half-adapter"), "a resumed adapter ends with other weights");
    let found = folder.val_losses("adapter");
    assert!(found.len() == 2 && found[1] < found[0], "{found:?}");
    assert_fits(&folder.path("adapter/model"), &folder.path("whole/model"));

    // With margins of a cross-encoder, which the data decide.
    folder.write("margins.jsonl", &pairs(20, ", \"negative\": \"nothing\", \"scores\": [3.5, -1]"));
    let margins = ["finetune", "whole", "--data", "margins.jsonl", "--device=cpu", "--out", "margins"];
    folder.succeed(&[&margins[..], &contrastive, &["--set", "schedule.max_steps=2"]].concat());
    assert!(fs::read_to_string(folder.path("margins/config.toml")).unwrap().contains("margins = true"));

    // What does not fit is refused by name.
    let refused = |data: &str, others: &[&str], message: &str| {
        folder.write("refused.jsonl", data);
        let args = ["finetune", "base", "--data", "refused.jsonl", "--device=cpu", "--out", "refused"];
        let error = folder.fail(&[&args[..], &contrastive, others].concat());
        assert!(error.contains(message), "{message}: {error}");
    };
    let good = pairs(20, "");
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
    refused(&good, &["--set", "objective.margins=true"], "the pairs have no `margin` and no `scores`");
    refused(&pairs(20, ", \"margin\": 1"), &[], "there is no `negative`, which a margin is about");
    let some = [", \"margin\": 1", ""].map(|more| pairs(3, &format!(", \"negative\": \"no\"{more}"))).concat();
    refused(&some, &[], "line 4: there is no `margin` and no `scores`, but there is one in `refused.jsonl`, line 1");
    let mixed = format!("{}{}", pairs(3, ""), pairs(3, ", \"negative\": \"nothing\""));
    refused(&mixed, &[], "line 1: there is no `negative`, but there is one in `refused.jsonl`, line 4");
    refused(&good.replacen("positive", "answer", 1), &[], "`refused.jsonl`, line 1: there is no `positive`");
    let long = good.replacen("the house", &"the house ".repeat(30), 1);
    refused(&long, &[], "line 1, `positive`: the text has");
    let other = ["finetune", "base", "--data", "pairs.jsonl", "--device=cpu", "--out", "other"];
    let error = folder.fail(&[&other[..], &["--set", "objective.kind=mlm"]].concat());
    assert!(error.contains("pairs.jsonl`, line 1"), "{error}");
}
