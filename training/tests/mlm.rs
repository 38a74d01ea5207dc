//! Masked language modeling: its loss against transformers (`golden/mlm.py`), and a model from a text as a user makes it.

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
    weights::{
        adapter::{Adapter, AdapterModel},
        model_dir::{LoadOptions, load_class, load_config, load_gpt},
    },
};
use hearth_training::{
    config::{Layers, ObjectiveKind, ObjectiveSettings},
    data::loader::Batch,
    run::learner::Learner,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Golden {
    seq_len: usize,
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
struct Case {
    inputs: Vec<TokenId>,
    targets: Vec<TokenId>,
    weights: Vec<f32>,
    loss: f32,
    norm: f32,
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

#[test]
fn loss_and_gradients_of_masked_tokens_match_transformers_in_one_micro_batch_and_in_several() {
    let golden: Golden = serde_json::from_slice(&fs::read(tests().join("golden/mlm.json")).unwrap()).unwrap();
    let config = Layers::default().resolve().unwrap();
    let objective = ObjectiveSettings { kind: ObjectiveKind::Mlm, ..ObjectiveSettings::default() };
    for (case, Case { inputs, targets, weights, loss, norm }) in golden.cases {
        let dir = tests().join("../../model/tests/golden").join(&case);
        let options = LoadOptions { device: Device::flex().autodiff(), dtype: Some(Dtype::F32) };
        let gpt = load_gpt(&dir, &options).unwrap().with_dropout(0.0);
        let learner = Learner::new(gpt, config.optim.clone(), 0).with_objective(objective);
        for n_rows in [4, 1] {
            let n = n_rows * golden.seq_len;
            let parts = inputs.chunks(n).zip(targets.chunks(n)).zip(weights.chunks(n));
            let batches: Vec<Batch> = parts
                .map(|((inputs, targets), weights)| Batch {
                    batch_size: n_rows,
                    seq_len: golden.seq_len,
                    inputs: inputs.to_vec(),
                    targets: targets.to_vec(),
                    weights: Some(weights.to_vec()),
                    context_tokens: Some(weights.iter().map(|weight| *weight == 0.0).collect()),
                    positions: None,
                    references: None,
                    items: None,
                    sources: None,
                    epoch: 0,
                })
                .collect();
            let index = learner.step_index(0, batches.iter());
            let found = learner.step_gradients(index, batches.into_iter().enumerate()).unwrap();
            for (what, found, expected) in [("loss", found.loss, loss), ("norm", found.grad_norm, norm)] {
                assert!(
                    (found - expected).abs() <= 1e-4 * expected,
                    "{case}, {n_rows} rows: {what} {found}, transformers {expected}"
                );
            }
        }
    }
}

/// A folder in which commands run.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// A run `out` of a tiny encoder that has learned next to nothing, with the files of its data beside it.
    pub(crate) fn encoder(&self, out: &str) {
        let text: String =
            (0..300).map(|line| format!("line {} of the house\n", ["one", "two", "three"][line % 3])).collect();
        self.write("text.txt", &text);
        self.succeed(&["tokenizer", "text.txt", "--out", "tokenizer", "--vocab-size", "280", "--encoder"]);
        self.succeed(&["prepare", "text.txt", "--tokenizer", "tokenizer", "--out", "data"]);
        let steps = ["--out", out, "--set", "schedule.max_steps=4"];
        self.succeed(&[&PRETRAIN[..], &SMALL, &steps].concat());
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.args(args).current_dir(self.0.path()).output().unwrap()
    }

    pub(crate) fn succeed(&self, args: &[&str]) {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn fail(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    pub(crate) fn weights(&self, run: &str) -> Vec<u8> {
        fs::read(self.path(run).join("checkpoints/step-00000008/model.safetensors")).unwrap()
    }

    pub(crate) fn val_losses(&self, run: &str) -> Vec<f64> {
        let lines = fs::read_to_string(self.path(run).join("metrics.jsonl")).unwrap();
        let records = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records.filter_map(|record| record["val_loss"].as_f64()).collect()
    }
}

const PRETRAIN: [&str; 6] = ["pretrain", "--data", "data", "--preset", "bert-tiny", "--device=cpu"];
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
    "optim.lr=3e-3",
];

#[test]
fn encoder_is_trained_from_text_resumed_with_the_same_bits_and_trained_on() {
    let folder = Folder::new();
    folder.encoder("half");
    let pretrain = |out: &str, others: &[&str]| {
        folder.succeed(&[&PRETRAIN[..], &SMALL, &["--out", out], others].concat());
    };
    pretrain("whole", &["--set", "schedule.max_steps=8"]);
    folder.succeed(&["pretrain", "--out", "half", "--resume", "--set", "schedule.max_steps=8", "--device=cpu"]);
    assert!(folder.weights("whole") == folder.weights("half"), "a resumed run ends with other weights");
    let found = folder.val_losses("whole");
    assert!(found.len() == 2 && found[1] < found[0], "{found:?}");
    let model = folder.path("whole/model");
    assert_eq!(load_class(&model).unwrap(), "BertForMaskedLM");

    // On texts, one in each row, and with whole words.
    let records: String = (0..20).map(|line| format!("{{\"text\": \"line {} of the house\"}}\n", line % 4)).collect();
    fs::write(folder.path("texts.jsonl"), records).unwrap();
    let finetune = ["finetune", "whole", "--data", "texts.jsonl", "--device=cpu", "--out"];
    let masked = ["--set", "objective.kind=mlm", "--set", "objective.whole_words=true", "--set", "schedule.epochs=1"];
    folder.succeed(&[&finetune[..], &["tuned"], &masked].concat());
    assert_eq!(load_class(&folder.path("tuned/model")).unwrap(), "BertForMaskedLM");

    // As an adapter, which leaves the model as it is.
    folder.succeed(&[&finetune[..], &["adapter", "--lora", "r=4"], &masked].concat());
    assert_fits(&folder.path("adapter/model"), &folder.path("whole/model"));

    // What does not fit is refused by name.
    let error = folder.fail(&[&finetune[..], &["a"]].concat());
    assert!(error.contains("`objective.kind=next-token` trains models that write text"), "{error}");
    let sets = ["--out", "c", "--set", "model.arch=gpt2"];
    let error = folder.fail(&[&PRETRAIN[..], &SMALL, &sets].concat());
    assert!(error.contains("`objective.kind=mlm` trains encoders"), "{error}");
    let error = folder.fail(&["quickstart", "text.txt", "--preset", "bert-tiny", "--out", "d", "--device=cpu"]);
    assert!(error.contains("`objective.kind=mlm` needs a mask token"), "{error}");
    let pairs = "{\"prompt\": \"line\", \"completion\": \" of the house\"}\n".repeat(10);
    fs::write(folder.path("pairs.jsonl"), pairs).unwrap();
    let other = ["finetune", "whole", "--data", "pairs.jsonl", "--device=cpu", "--out", "e"];
    let error = folder.fail(&[&other[..], &masked].concat());
    assert!(error.contains("`objective.kind=mlm` trains texts"), "{error}");
}

/// Checks that `adapter` is one of the encoder `base`, has learned something, and is none of a decoder to PEFT.
pub(crate) fn assert_fits(adapter: &Path, base: &Path) {
    let config = load_config(base).unwrap();
    let class = load_class(base).unwrap();
    let config_json = fs::read_to_string(adapter.join("adapter_config.json")).unwrap();
    let found: Value = serde_json::from_str(&config_json).unwrap();
    assert_eq!((&found["task_type"], &found["target_modules"][3]), (&Value::Null, &Value::from("output.dense")));
    let adapter = Adapter::open(adapter, AdapterModel::new(&config, Some(class)).unwrap()).unwrap();
    for (path, update) in &adapter.values.0 {
        // `B` begins with zeros.
        let of_b = &update.values[update.shape.total_rank() * update.shape.d_in..];
        assert!(of_b.iter().any(|value| *value != 0.0), "{path}");
    }
}
