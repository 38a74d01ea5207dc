//! Sequence to sequence: losses and gradients against transformers (`golden/seq2seq.py`), and a translator from records as a user
//! makes it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    ops::Dtype,
    weights::model_dir::{LoadOptions, load_class, load_decoder_start, load_gpt},
};
use hearth_training::{
    config::{Layers, ObjectiveKind, ObjectiveSettings},
    data::{
        loader::{Batch, Loader, LoaderSettings, RowOrder, RowSource, Translations},
        tokenizer_build::BuiltTokenizer,
    },
    eval::{Windows, score},
    run::learner::Learner,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Case {
    sources: Vec<Vec<TokenId>>,
    targets: Vec<Vec<TokenId>>,
    loss: f32,
    norms: BTreeMap<String, f32>,
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Rows beside shorter and longer ones, and alone.
#[test]
fn loss_and_gradients_of_targets_match_transformers_with_padded_sources_and_alone() {
    let golden: BTreeMap<String, Case> =
        serde_json::from_slice(&fs::read(tests().join("golden/seq2seq.json")).unwrap()).unwrap();
    let config = Layers::default().resolve().unwrap();
    let tokenizer = BuiltTokenizer::characters("abc", 4).unwrap().open().unwrap();
    for (case, Case { sources, targets, loss, norms }) in golden {
        let dir = tests().join("../../model/tests/golden").join(&case);
        let options = LoadOptions { device: Device::flex().autodiff(), dtype: Some(Dtype::F32) };
        let gpt = load_gpt(&dir, &options).unwrap().with_dropout(0.0).with_fixed_logit_bias();
        let trained = |ids: &Vec<TokenId>| (0..ids.len()).map(|at| at > 0).collect();
        let pairs = sources.into_iter().zip(targets.iter().map(|ids| (ids.clone(), trained(ids))));
        let source = RowSource::Translations(Translations::new(pairs, 16, &tokenizer).unwrap());
        for (smoothing, norm) in norms {
            let objective = ObjectiveSettings {
                kind: ObjectiveKind::Seq2Seq,
                label_smoothing: smoothing.parse().unwrap(),
                ..ObjectiveSettings::default()
            };
            let learner = Learner::new(gpt.clone(), config.optim.clone(), 0).with_objective(objective);
            for n_rows in [4, 2, 1] {
                let settings = LoaderSettings {
                    seed: 1,
                    seq_len: 16,
                    micro_batch_size: n_rows,
                    order: RowOrder::Permuted,
                    n_micro_batches: 4 / n_rows,
                };
                let loader = Loader::new(&source, settings).unwrap();
                let batches: Vec<Batch> = (0..4 / n_rows).map(|micro_step| loader.batch(0, micro_step)).collect();
                let index = learner.step_index(0, batches.iter());
                let found = learner.step_gradients(index, batches.into_iter().enumerate()).unwrap();
                for (what, found, expected) in [("loss", found.loss, loss), ("norm", found.grad_norm, norm)] {
                    assert!(
                        (found - expected).abs() <= 1e-4 * expected,
                        "{case}, {n_rows} rows, smoothing {smoothing}: {what} {found}, transformers {expected}"
                    );
                }
            }
        }
        // As runs evaluate.
        let windows = Windows { batch_size: 3, seq_len: 16, max_batches: None };
        let evaluated =
            score(&load_gpt(&dir, &LoadOptions { device: Device::flex(), dtype: None }).unwrap(), &source, windows);
        assert!((evaluated.unwrap().loss as f32 - loss).abs() <= 1e-4 * loss, "{case}");
    }
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.args(args).current_dir(self.0.path()).output().unwrap()
    }

    fn succeed(&self, args: &[&str]) -> Output {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn fail(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn weights(&self, run: &str, step: &str) -> Vec<u8> {
        fs::read(self.path(run).join(format!("checkpoints/step-{step}/model.safetensors"))).unwrap()
    }
}

/// Words, and the same words the other way round with another ending.
fn pairs(n: usize) -> Vec<[String; 2]> {
    let words = ["one", "two", "three", "four", "five"];
    let pair = |number: usize| {
        let chosen: Vec<&str> = (0..2 + number % 3).map(|at| words[(number * (at + 1) + at) % 5]).collect();
        let target: Vec<String> = chosen.iter().rev().map(|word| format!("{word}o")).collect();
        [chosen.join(" "), target.join(" ")]
    };
    (0..n).map(pair).collect()
}

const PRETRAIN: [&str; 8] =
    ["pretrain", "--data", "pairs.jsonl", "--tokenizer", "tokenizer", "--preset", "seq2seq-tiny", "--device=cpu"];
/// Small enough for a test, with dropout and two micro-batches a step.
const SMALL: [&str; 16] = [
    "--set",
    "model.d_model=32",
    "--set",
    "model.max_seq_len=32",
    "--set",
    "data.micro_batch_size=4",
    "--set",
    "data.tokens_per_step=256",
    "--set",
    "schedule.kind=constant",
    "--set",
    "schedule.warmup_steps=2",
    "--set",
    "eval.every=4",
    "--set",
    "optim.lr=5e-3",
];

fn losses(metrics: &Path) -> Vec<f64> {
    let lines = fs::read_to_string(metrics).unwrap();
    let records = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter_map(|record| record["val_loss"].as_f64()).collect()
}

#[test]
fn translator_is_trained_from_records_resumed_with_the_same_bits_tuned_and_measured() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let all = pairs(200);
    let lines = |write: &dyn Fn(&[String; 2]) -> String| all.iter().map(|pair| write(pair) + "\n").collect::<String>();
    fs::write(folder.path("text.txt"), lines(&|pair| pair.join("\n"))).unwrap();
    let record = |pair: &[String; 2]| serde_json::json!({ "source": pair[0], "target": pair[1] }).to_string();
    fs::write(folder.path("pairs.jsonl"), lines(&record)).unwrap();
    folder.succeed(&["tokenizer", "text.txt", "--out", "tokenizer", "--vocab-size", "280", "--encoder"]);
    let pretrain = |out: &str, others: &[&str]| {
        folder.succeed(&[&PRETRAIN[..], &SMALL, &["--out", out], others].concat());
    };
    pretrain("whole", &["--set", "schedule.max_steps=8", "--set", "sample.every=4", "--set", "sample.prompt=one two"]);
    pretrain("part", &["--set", "schedule.max_steps=2"]);
    for steps in ["3", "6", "8"] {
        let max_steps = format!("schedule.max_steps={steps}");
        folder.succeed(&["pretrain", "--out", "part", "--resume", "--set", &max_steps, "--device=cpu"]);
    }
    assert!(
        folder.weights("whole", "00000008") == folder.weights("part", "00000008"),
        "a resumed run ends with other weights"
    );
    let found = losses(&folder.path("whole/metrics.jsonl"));
    assert!(found.len() == 2 && found[1] < found[0], "{found:?}");
    let model = folder.path("whole/model");
    assert_eq!(load_class(&model).unwrap(), "T5ForConditionalGeneration");
    let (start, pad) = load_decoder_start(&model).unwrap();
    assert!(start.len() == 1 && start.first() == pad.as_ref(), "{start:?} {pad:?}");

    // Goes on with other names, as members, columns and languages.
    let by_language =
        |pair: &[String; 2]| serde_json::json!({ "translation": { "en": pair[0], "eo": pair[1] } }).to_string();
    fs::write(folder.path("languages.jsonl"), lines(&by_language)).unwrap();
    let table = format!("en,eo\n{}", lines(&|pair| pair.join(",")));
    fs::write(folder.path("table.csv"), table).unwrap();
    let finetune =
        ["finetune", "whole", "--device=cpu", "--set", "objective.kind=seq2seq", "--set", "schedule.epochs=1"];
    let fields = ["--set", "seq2seq.source_field=en", "--set", "seq2seq.target_field=eo"];
    for (out, data) in [("of-languages", "languages.jsonl"), ("of-table", "table.csv")] {
        folder.succeed(&[&finetune[..], &fields, &["--data", data, "--out", out]].concat());
    }
    let [of_languages, of_table] =
        ["of-languages", "of-table"].map(|run| fs::read(folder.path(run).join("model/model.safetensors")).unwrap());
    assert!(of_languages == of_table, "the same pairs give other weights");
    assert_eq!(load_decoder_start(&folder.path("of-table/model")).unwrap(), (start, pad));
    let shown = folder.succeed(&[&finetune[..], &["--data", "pairs.jsonl", "--inspect", "1"]].concat()).stdout;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(shown.contains("line 1, source: ") && shown.contains("200 pairs, "), "{shown}");

    let eval =
        ["eval", "translation", "of-table", "--data", "pairs.jsonl", "--max-tokens", "16", "--device=cpu", "--json"];
    for beams in [&[][..], &["--beams", "3"]] {
        let report: Value = serde_json::from_slice(&folder.succeed(&[&eval[..], beams].concat()).stdout).unwrap();
        assert_eq!(report["n_items"], 200, "{report}");
        assert_eq!(report["scores"][0]["name"], "BLEU", "{report}");
    }

    // What does not fit is refused by name.
    let refused = |args: &[&[&str]], message: &str| {
        let error = folder.fail(&args.concat());
        assert!(error.contains(message), "{error}");
    };
    refused(
        &[&["finetune", "whole", "--data", "pairs.jsonl", "--out", "a"]],
        "`objective.kind=next-token` does not train",
    );
    refused(
        &[&finetune, &["--data", "pairs.jsonl", "--out", "a", "--lora"]],
        "`objective.kind=seq2seq` trains all weights",
    );
    refused(
        &[&finetune, &["--data", "languages.jsonl", "--out", "a"]],
        "line 1: there is a `translation` with `en` and `eo`",
    );
    let short = ["--set", "model.max_seq_len=4", "--data", "pairs.jsonl", "--out", "a"];
    refused(&[&finetune, &short], "tokens, at most 4 fit into a row (`model.max_seq_len`)");
    refused(
        &[&PRETRAIN, &["--out", "a", "--set", "model.arch=gpt2"]],
        "`objective.kind=seq2seq` trains encoder-decoders",
    );
    let without = ["pretrain", "--data", "pairs.jsonl", "--preset", "seq2seq-tiny", "--out", "a"];
    refused(&[&without], "a fresh model needs a tokenizer: `data.tokenizer` is not set");
    refused(&[&PRETRAIN, &["--out", "a", "--set", "optim.recompute=true"]], "`optim.recompute` must be false");
    let one = ["--out", "a", "--set", "seq2seq.source_field=en"];
    refused(&[&PRETRAIN, &one], "`seq2seq.source_field` and `seq2seq.target_field` must be set together");
    refused(&[&["quickstart", "text.txt", "--preset", "seq2seq-tiny", "--out", "a"]], "not for `quickstart`");
}
