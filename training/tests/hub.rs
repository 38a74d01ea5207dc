//! Data sets of the hub as sources of `hearth-train tokenizer` and `prepare`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::stand_in_hub::{COMMIT, Fault, StandInHub};

fn lines(first: usize) -> String {
    (first..first + 300).map(|number| format!("{{\"text\": \"row {number} of the data set\"}}\n")).collect()
}

struct Case {
    server: StandInHub,
    dir: TempDir,
}

impl Case {
    fn new() -> Case {
        let (train, more, test) = (lines(0), lines(300), "not JSON");
        let table =
            fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet/snappy.parquet")).unwrap();
        let server = StandInHub::new(&[
            (
                "datasets/org/lines",
                &[
                    ("README.md", b"# A data set"),
                    ("data/test.jsonl", test.as_bytes()),
                    ("data/train-0.jsonl", train.as_bytes()),
                    ("data/train-1.jsonl", more.as_bytes()),
                ],
            ),
            ("datasets/org/tables", &[("de/train.parquet", &table), ("en/train.parquet", &table)]),
        ]);
        Case { server, dir: TempDir::new().unwrap() }
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_hearth-train"))
            .args(args)
            .current_dir(self.dir.path())
            .env("HF_ENDPOINT", &self.server.url)
            .env("HF_HOME", self.dir.path().join("hub"))
            .output()
            .unwrap()
    }

    fn succeed(&self, args: &[&str]) -> Value {
        let output = self.run(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn fail(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn hub_datasets_are_downloaded_once_and_read_as_sources() {
    let case = Case::new();
    // A connection that breaks during a download does not fail the command.
    case.server.fail(&[Fault::CutAfter(1234)]);
    let report = case.succeed(&["tokenizer", "org/lines", "--out", "tok", "--vocab-size", "300"]);
    let n_bytes: usize = (0..600).map(|number| format!("row {number} of the data set").len()).sum();
    assert_eq!(report["bytes"], n_bytes);

    case.server.requests();
    let sources = ["prepare", "org/lines=1", "org/tables:en=1"];
    let report =
        case.succeed(&[&sources[..], &["--tokenizer", "tok", "--out", "data", "--val-fraction", "0.2"]].concat());
    let downloads = case.server.requests().into_iter().filter(|request| request.contains("/storage/lines")).count();
    assert_eq!(downloads, 0, "what the tokenizer read was in the cache");
    let sources = report["data"]["sources"].as_array().unwrap();
    let shown: Vec<_> = sources.iter().map(|source| (&source["path"], &source["commit"])).collect();
    let commit = Value::from(COMMIT);
    assert_eq!(shown, [(&"org/lines".into(), &commit), (&"org/tables:en".into(), &commit)]);

    case.succeed(&[
        "prepare",
        "org/lines:data/train-1.jsonl",
        "--tokenizer",
        "tok",
        "--out",
        "part",
        "--split",
        "tail",
    ]);

    // `finetune` reports the commit of the data set.
    let output =
        case.run(&["finetune", crate::finetune::model().to_str().unwrap(), "--data", "org/lines", "--inspect", "1"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && message.contains(&format!("data set `org/lines` at commit {COMMIT}")),
        "{message}"
    );
}

#[test]
fn prepare_rejects_unusable_hub_datasets_before_writing() {
    let case = Case::new();
    case.succeed(&["tokenizer", "org/lines", "--out", "tok", "--vocab-size", "300"]);
    for (source, message) in [
        ("org/absent", "`org/absent`: the hub has no such data set"),
        ("org/tables", "the data set `org/tables` has documents in 2 folders\nhint: choose one"),
        ("org/tables:fr", "`org/tables:fr` has no Parquet, JSON, CSV or text files in `fr/`"),
        ("org/lines:data/test.jsonl", "test.jsonl"),
        ("absent/file.txt", "cannot read the source `absent/file.txt`"),
    ] {
        let error = case.fail(&["prepare", source, "--tokenizer", "tok", "--out", "data"]);
        assert!(error.contains(message) && error.contains("hint: "), "{source}: {error}");
        assert!(!case.dir.path().join("data").exists());
    }
}

/// `prepare` downloads only the tokenizer of a model; `pretrain --init` and `sample` download all of it.
#[test]
fn prepare_pretrain_and_sample_accept_models_of_the_hub_by_name() {
    let case = Case::new();
    case.succeed(&["tokenizer", "org/lines", "--out", "tok", "--vocab-size", "300"]);
    let train = [
        "pretrain",
        "--device",
        "cpu",
        "--preset",
        "tiny",
        "--set",
        "schedule.max_steps=2",
        "--set",
        "schedule.warmup_steps=1",
    ];
    case.succeed(&["prepare", "org/lines", "--tokenizer", "tok", "--out", "first"]);
    case.succeed(&[&train[..], &["--data", "first", "--out", "run"]].concat());
    let model = case.dir.path().join("run/model");
    let files: Vec<_> = fs::read_dir(&model).unwrap().map(|entry| entry.unwrap().path()).collect();
    let files: Vec<_> =
        files.iter().map(|path| (path.file_name().unwrap().to_str().unwrap(), fs::read(path).unwrap())).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    let server = StandInHub::new(&[("models/org/tiny", &files)]);
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        command.args(args).current_dir(case.dir.path()).env("HF_ENDPOINT", &server.url);
        let output = command.env("HF_HOME", case.dir.path().join("models")).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    fs::write(case.dir.path().join("text.txt"), lines(0)).unwrap();
    run(&["prepare", "text.txt", "--tokenizer", "org/tiny", "--out", "data"]);
    let fetched = server.requests();
    assert!(!fetched.iter().any(|request| request.contains("model.safetensors")), "{fetched:?}");
    run(&[&train[..], &["--data", "data", "--init", "org/tiny", "--out", "more"]].concat());
    let recorded = fs::read_to_string(case.dir.path().join("more/config.toml")).unwrap();
    assert!(recorded.contains(&format!("models--org--tiny/snapshots/{COMMIT}")), "{recorded}");
    let sample = |model: &str| run(&["sample", model, "row", "--device", "cpu", "--set", "sample.max_tokens=4"]);
    assert_eq!(sample("org/tiny"), sample("run"));
}
