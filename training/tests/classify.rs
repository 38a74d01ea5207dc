//! Training of classes: its loss against transformers (`golden/classify.py`), and a model from texts with labels as a user makes it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    config::GptConfig,
    gpt::pooling::{ClassScores, Classifier, Pooling},
    ops::Dtype,
    weights::{
        encoder_files::{self, load_classifier},
        model_dir::{self, LoadOptions, SaveOptions, load_class},
    },
};
use hearth_training::{
    config::{Layers, ObjectiveKind, ObjectiveSettings},
    data::{
        loader::{Items, Loader, LoaderSettings, RowOrder, RowSource},
        tokenizer_build::BuiltTokenizer,
    },
    eval::Windows,
    ranks::Group,
    run::learner::Learner,
};
use serde::Deserialize;
use serde_json::Value;

use crate::mlm::Folder;

#[derive(Deserialize)]
struct Case {
    dir: String,
    texts: Vec<Vec<TokenId>>,
    second_texts: Vec<Option<usize>>,
    classes: Vec<u32>,
    loss: f32,
    norm: f32,
    accuracy: f64,
}

const SEQ_LEN: usize = 16;

#[test]
fn loss_and_gradients_of_classes_match_transformers_and_heads_are_saved_under_its_names() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let cases: Vec<Case> = serde_json::from_slice(&fs::read(tests.join("classify.json")).unwrap()).unwrap();
    let config = Layers::default().resolve().unwrap();
    let tokenizer = BuiltTokenizer::characters("abcd", 4).unwrap().open().unwrap();
    for Case { dir, texts, second_texts, classes, loss, norm, accuracy } in cases {
        let (path, device) = (tests.join(&dir), Device::flex().autodiff());
        let options = LoadOptions { device: device.clone(), dtype: Some(Dtype::F32) };
        let classifier = load_classifier(&path).unwrap().unwrap();
        assert_eq!(
            (&*classifier.labels, classifier.scores),
            (&["red", "green", "blue"].map(String::from)[..], ClassScores::Softmax)
        );
        let gpt = model_dir::load_gpt(&path, &options).unwrap().with_dropout(0.0);
        let gpt = gpt.with_classifier(&classifier, &device).unwrap();
        let objective = ObjectiveSettings {
            kind: ObjectiveKind::Classify,
            pooling: Some(classifier.pooling.try_into().unwrap()),
            ..ObjectiveSettings::default()
        };
        let learner = Learner::new(gpt, config.optim.clone(), 0).with_objective(objective);
        let n = texts.len();
        let items = Items::new(texts.into_iter().map(|text| vec![text]), 1, SEQ_LEN, &tokenizer).unwrap();
        let source = RowSource::Items(items.with_classes(classes, second_texts));
        // In one micro-batch, and in several.
        for size in [n, 2] {
            let settings = LoaderSettings {
                seed: 3,
                seq_len: SEQ_LEN,
                micro_batch_size: size,
                order: RowOrder::Permuted,
                n_micro_batches: n.div_ceil(size),
            };
            let loader = Loader::new(&source, settings).unwrap().ending_after(Some(n as u64));
            let batches: Vec<_> =
                (0..loader.n_micro_batches(0)).map(|micro_step| loader.batch(0, micro_step)).collect();
            let index = learner.step_index(0, batches.iter());
            let found = learner.step_gradients(index, batches.into_iter().enumerate()).unwrap();
            for (what, found, expected) in [("loss", found.loss, loss), ("norm", found.grad_norm, norm)] {
                assert!((found - expected).abs() <= 1e-4 * expected, "{dir}: {what} {found}, expected {expected}");
            }
        }
        let windows = Windows { batch_size: 3, seq_len: SEQ_LEN, max_batches: None };
        let score =
            learner.objective().score(&learner.gpt.packed().unwrap(), &source, windows, &Group::default()).unwrap();
        assert!((score.loss as f32 - loss).abs() <= 1e-4 * loss, "{dir}: {}", score.loss);
        assert_eq!((score.accuracy, score.n_targets), (Some(accuracy), n), "{dir}");

        // Saved, its files have the same tensors; with a pooling that the class does not know, they are Hearth's own.
        let folder = tempfile::tempdir().unwrap();
        let class = encoder_files::load_class_without_head(&path).unwrap().to_owned();
        let save = |classifier: &Classifier, out: &Path| {
            let plain = LoadOptions { device: Device::flex(), ..options.clone() };
            let gpt = model_dir::load_gpt(&path, &plain).unwrap().with_classifier(classifier, &Device::flex()).unwrap();
            let options = SaveOptions { class: Some(class.clone()), ..SaveOptions::default() };
            model_dir::save(out, &gpt, &options).unwrap();
            assert_eq!(load_classifier(out).unwrap().as_ref(), Some(classifier));
            let config: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
            let expected: &GptConfig = gpt.config();
            assert_eq!(&model_dir::load_config(out).unwrap().with_dropout(0.0), &expected.clone().with_dropout(0.0));
            config["architectures"][0].as_str().unwrap().to_owned()
        };
        let saved = folder.path().join("saved");
        let expected: Value = serde_json::from_slice(&fs::read(path.join("config.json")).unwrap()).unwrap();
        assert_eq!(Value::from(save(&classifier, &saved)), expected["architectures"][0]);
        let names = |dir: &Path| {
            let bytes = fs::read(dir.join("model.safetensors")).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let mut names: Vec<String> = file.names().into_iter().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(names(&saved), names(&path), "{dir}");
        let other = Classifier { pooling: Pooling::Max, ..classifier };
        assert_eq!(save(&other, &folder.path().join("own")), "HearthForCausalLM");
    }
}

/// Texts whose first word says their class.
fn labeled(n: usize, label: impl Fn(usize) -> String) -> String {
    let words = ["one", "two", "three"];
    let line =
        |n: usize| format!("{{\"text\": \"{} of the house {}\", \"label\": {}}}\n", words[n % 3], n % 11, label(n));
    (0..n).map(line).collect()
}

#[test]
fn encoder_learns_classes_is_resumed_with_the_same_bits_and_saved_with_its_head() {
    let folder = Folder::new();
    folder.encoder("base");
    folder.write("texts.jsonl", &labeled(90, |n| format!("\"class {}\"", n % 3)));
    let finetune = ["finetune", "base", "--data", "texts.jsonl", "--device=cpu"];
    let classify = ["--set", "objective.kind=classify"];
    let small = ["--set", "data.micro_batch_size=12", "--set", "data.val_fraction=0.2", "--set", "model.dropout=0.1"];
    let plan = ["--set", "schedule.kind=constant", "--set", "optim.lr=3e-3", "--set", "eval.every=4"];
    let train = |out: &str, others: &[&str]| {
        folder.succeed(&[&finetune[..], &classify, &small, &plan, &["--out", out], others].concat());
    };
    train("whole", &["--set", "schedule.max_steps=8"]);
    train("half", &["--set", "schedule.max_steps=4"]);
    folder.succeed(&[&finetune[..], &["--out", "half", "--resume", "--set", "schedule.max_steps=8"]].concat());
    assert!(folder.weights("whole") == folder.weights("half"), "a resumed run ends with other weights");
    let found = folder.val_losses("whole");
    assert!(found.len() == 2 && found[1] < found[0], "{found:?}");
    let classifier = load_classifier(&folder.path("whole/model")).unwrap().unwrap();
    assert_eq!(classifier.labels, ["class 0", "class 1", "class 2"]);
    assert_eq!(load_class(&folder.path("whole/model")).unwrap(), "BertModel");

    // A head is trained on, by the numbers of its classes too.
    folder.write("numbers.jsonl", &labeled(30, |n| (n % 3).to_string()));
    let more =
        ["finetune", "whole", "--data", "numbers.jsonl", "--device=cpu", "--set", "schedule.max_steps=2", "--out"];
    folder.succeed(&[&more[..], &["more"], &classify].concat());
    assert_eq!(load_classifier(&folder.path("more/model")).unwrap().unwrap().labels, classifier.labels);
    // Pairs of texts, and a pooling that only Hearth reads.
    let pair = |n: usize| {
        format!("{{\"sentence1\": \"line {} of\", \"sentence2\": \"the house\", \"label\": {}}}\n", n % 5, n % 2 + 4)
    };
    folder.write("pairs.jsonl", &(0..24).map(pair).collect::<String>());
    let pairs = ["finetune", "base", "--data", "pairs.jsonl", "--device=cpu", "--set", "schedule.max_steps=2"];
    folder.succeed(&[&pairs[..], &classify, &["--set", "objective.pooling=mean", "--out", "pairs"]].concat());
    let found = load_classifier(&folder.path("pairs/model")).unwrap().unwrap();
    assert_eq!((found.labels, found.pooling), (vec!["4".to_owned(), "5".to_owned()], Pooling::Mean));

    // Probes and the head are measured on the same texts.
    let eval = ["eval", "classify", "whole", "--data", "texts.jsonl", "--device=cpu", "--json"];
    let output = folder.run(&eval);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["head"]["value"].is_f64() && report["label_tokens"].is_null(), "{report}");
    assert_eq!(report["probes"][2]["pooling"], "cls");

    // What does not fit is refused by line and member.
    let refused = |model: &str, data: &str, message: &str| {
        folder.write("refused.jsonl", data);
        let args = ["finetune", model, "--data", "refused.jsonl", "--device=cpu", "--out", "refused"];
        let error = folder.fail(&[&args[..], &classify].concat());
        assert!(error.contains(message), "{message}: {error}");
    };
    refused(
        "whole",
        &labeled(6, |n| format!("\"class {n}\"")),
        "line 4: `label` is `class 3`, which the model's head does not have",
    );
    refused("whole", &labeled(6, |n| n.to_string()), "line 4: `label` is `3`, which the model's head does not have");
    refused("base", &labeled(6, |_| "\"one\"".to_owned()), "all texts have the `label` `one`");
    refused("base", &labeled(6, |n| format!("{n}.5")), "line 1: `label` must be a text or a whole number, got `0.5`");
    folder.write("val.jsonl", &labeled(6, |n| format!("\"class {n}\"")));
    let val = ["--val", "val.jsonl", "--out", "refused"];
    let error = folder.fail(&[&finetune[..], &classify, &val].concat());
    assert!(error.contains("`val.jsonl`, line 4: `label` is `class 3`, which no text to train on has"), "{error}");
}
