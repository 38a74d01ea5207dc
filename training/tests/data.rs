//! `hearth-train tokenizer` and `hearth-train prepare` as a user runs them; the tests open their output.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use hearth_model::{
    TokenId,
    text::{
        chat::{ChatTemplate, Message, RenderContext},
        tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
    },
};
use hearth_training::data::{
    loader::{Loader, LoaderSettings, RowOrder},
    shard::{Dataset, Manifest, Split},
};
use serde_json::Value;

const DECODE: DecodeOptions = DecodeOptions { skip_special_tokens: true };

fn hearth_train(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hearth-train")).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must succeed, and gives the JSON of its last line.
pub(crate) fn succeed(args: &[&str]) -> Value {
    let output = hearth_train(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command that must fail, and gives its message.
fn fail(args: &[&str]) -> String {
    let output = hearth_train(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", stderr(&output));
    assert!(output.stdout.is_empty());
    let message = stderr(&output);
    assert!(message.contains("hint: "), "{args:?}: {message}");
    message
}

pub(crate) struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    pub(crate) fn new() -> Files {
        Files { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
        self.name(name)
    }

    /// A BPE tokenizer of 300 tokens.
    pub(crate) fn tokenizer(&self) -> String {
        let text = self.write("for-tokenizer.txt", document(0).repeat(20));
        let out = self.name("tokenizer");
        succeed(&["tokenizer", &text, "--out", &out, "--vocab-size", "300"]);
        out
    }
}

pub(crate) fn document(number: usize) -> String {
    format!("Document {number} says: it's the höuse number {} on the hill.\n", number * 7)
}

/// The documents of a split, as text.
fn documents(data: &Dataset, split: Split) -> Vec<String> {
    let tokenizer = data.open_tokenizer().unwrap();
    let eos = tokenizer.eos().map(|eos| eos.id);
    let ids = data.split(split).to_vec();
    let parts = ids.split_inclusive(|&id| Some(id) == eos);
    parts.map(|ids| tokenizer.decode(ids, DECODE)).collect()
}

#[test]
fn prepared_text_is_split_by_characters_and_decodes_to_the_text() {
    let files = Files::new();
    let text: String = (0..500).map(document).collect();
    let file = files.write("text.txt", &text);
    let (tokenizer, data) = (files.name("tok"), files.name("data"));
    let report = succeed(&["tokenizer", &file, "--out", &tokenizer, "--vocab-size", "400", "--split", "gpt2"]);
    assert_eq!((&report["vocab_size"], &report["bytes"]), (&400.into(), &text.len().into()));
    assert!(report["bytes_per_token"].as_f64().unwrap() > 2.0);

    let report = succeed(&["prepare", &file, "--tokenizer", &tokenizer, "--out", &data]);
    let data = Dataset::open(Path::new(&data)).unwrap();
    // A single text: its last tenth by characters is held out, as nanoGPT does.
    let n_train = (text.chars().count() as f64 * 0.9) as usize;
    let at = text.char_indices().nth(n_train).unwrap().0;
    assert_eq!(documents(&data, Split::Train), [&text[..at]]);
    assert_eq!(documents(&data, Split::Val), [&text[at..]]);
    assert_eq!(data.split(Split::Train).n_bytes(), at as u64);
    let opened = data.open_tokenizer().unwrap();
    let whole = opened.encode(&text[..at], EncodeOptions::TEXT).unwrap();
    assert_eq!(data.split(Split::Train).to_vec(), whole, "as encoded at once");
    assert_eq!(report["data"]["train"]["tokens"], whole.len());
    assert_eq!(serde_json::from_value::<Manifest>(report["data"].clone()).unwrap(), *data.manifest());

    let settings =
        LoaderSettings { seed: 1, seq_len: 32, micro_batch_size: 4, order: RowOrder::Permuted, n_micro_batches: 1 };
    let batch = Loader::new(&data.split(Split::Train).clone().into(), settings).unwrap().batch(3, 0);
    let row = &batch.inputs[..32];
    assert!(whole.windows(32).any(|window| window == row), "rows are parts of the text");
}

#[test]
fn tokenizer_chars_orders_by_code_point_without_special_tokens() {
    let files = Files::new();
    let text = files.write("text.txt", "cab é\ncab");
    let out = files.name("tok");
    let report = succeed(&["tokenizer", &text, "--out", &out, "--chars"]);
    assert_eq!((&report["vocab_size"], &report["special_tokens"]), (&6.into(), &Value::Array(Vec::new())));
    let tokenizer = Tokenizer::from_dir(Path::new(&out)).unwrap();
    assert_eq!(tokenizer.encode("\n abcé", EncodeOptions::TEXT).unwrap(), [0, 1, 2, 3, 4, 5]);
    assert!(tokenizer.eos().is_none());
}

#[test]
fn tokenizer_chat_writes_a_template_that_renders_chatml() {
    let files = Files::new();
    let text = files.write("text.txt", document(1).repeat(9));
    let out = files.name("tok");
    let report = succeed(&["tokenizer", &text, "--out", &out, "--vocab-size", "280", "--chat", "--bos"]);
    let tokens = ["<|endoftext|>", "<|bos|>", "<|pad|>", "<|im_start|>", "<|im_end|>"];
    assert_eq!(report["special_tokens"], serde_json::json!(tokens));
    let tokenizer = Tokenizer::from_dir(Path::new(&out)).unwrap();
    let template = ChatTemplate::from_dir(Path::new(&out)).unwrap().unwrap();
    let messages = [Message::new("system", "Be brief."), Message::new("user", "Hi")];
    let rendered = template.render(&messages, &RenderContext::new(&tokenizer)).unwrap();
    assert_eq!(
        rendered,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn prepare_adds_bos_and_eos_to_texts_and_renders_conversations() {
    let files = Files::new();
    let text = files.write("text.txt", document(1).repeat(9));
    let tokenizer = files.name("tok");
    succeed(&["tokenizer", &text, "--out", &tokenizer, "--vocab-size", "280", "--chat", "--bos"]);
    let line = |n: usize| match n % 2 {
        0 => serde_json::json!({ "text": document(n) }),
        _ => {
            serde_json::json!({ "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Ho" }] })
        }
    };
    let lines = files.write("all.jsonl", (0..40).map(|n| line(n).to_string() + "\n").collect::<String>());
    let out = files.name("data");
    let report = succeed(&["prepare", &lines, "--tokenizer", &tokenizer, "--out", &out, "--val-fraction", "0.3"]);
    let data = Dataset::open(Path::new(&out)).unwrap();
    let opened = data.open_tokenizer().unwrap();
    let shown = |split: Split| opened.decode(&data.split(split).to_vec(), DecodeOptions { skip_special_tokens: false });
    let all = Split::ALL.map(shown).concat();
    let conversation = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n";
    for n in 0..40 {
        let expected = if n % 2 == 0 {
            format!("<|bos|>{}<|endoftext|>", document(n))
        } else {
            format!("{conversation}<|endoftext|>")
        };
        assert!(all.contains(&expected), "{expected} is not in {all}");
    }
    assert_eq!(report["data"]["conversations"], 20);
    // Special tokens are no bytes of text.
    let n_bytes: usize = (0..40).step_by(2).map(|n| document(n).len()).sum();
    let of_conversation = "user\nHi\nassistant\nHo\n".len();
    let found: u64 = Split::ALL.iter().map(|split| data.split(*split).n_bytes()).sum();
    assert_eq!(found as usize, n_bytes + 20 * of_conversation);

    // If `<|im_end|>` is also EOS, an EOS in the data does not say whether a turn or a document ends.
    let turns = files.name("turns");
    succeed(&["tokenizer", &text, "--out", &turns, "--vocab-size", "280", "--chat", "--eos=<|im_end|>"]);
    let out = files.name("cut");
    succeed(&["prepare", &lines, "--tokenizer", &turns, "--out", &out, "--val-fraction", "0.3"]);
    let data = Dataset::open(Path::new(&out)).unwrap();
    let ends = data.split(Split::Train).to_vec();
    assert!(
        !ends.windows(3).any(|ids| ids[0] == ids[2] && ids[0] == data.manifest().eos_id.unwrap()),
        "no end follows an end"
    );
    let run = files.name("run");
    let pretrain = ["pretrain", "--data", &out, "--out", &run, "--preset", "tiny", "--device", "cpu"];
    let message = fail(&[&pretrain[..], &["--set", "data.rows=documents"]].concat());
    assert!(message.contains("cut the data behind each `<|im_end|>`, which ends every turn"), "{message}");
}

#[test]
fn prepare_reads_documents_of_folders_jsonl_and_separated_text() {
    let files = Files::new();
    let tokenizer = files.tokenizer();
    let all: Vec<String> = (0..400).map(document).collect();
    files.write("folder/a.txt", &all[0]);
    files.write("folder/deep/b.md", &all[1]);
    files.write("folder/empty.txt", "");
    files.write("folder/picture.png", b"\x89PNG\xff");
    let line = |text: &String| serde_json::json!({ "id": 1, "body": text }).to_string() + "\n";
    let jsonl = files.write("lines.jsonl", all[2..200].iter().map(line).collect::<String>());
    let separated = files.write("separated.txt", all[200..].join("<|endoftext|>"));
    let data = files.name("data");
    let args = [
        "prepare",
        &files.name("folder"),
        &jsonl,
        &separated,
        "--tokenizer",
        &tokenizer,
        "--out",
        &data,
        "--text-field",
        "body",
        "--separator",
        "<|endoftext|>",
        "--val-fraction",
        "0.1",
    ];
    let report = succeed(&args);
    let data = Dataset::open(Path::new(&data)).unwrap();
    let (train, val) = (documents(&data, Split::Train), documents(&data, Split::Val));
    assert!((15..80).contains(&val.len()), "{} of 400 held out", val.len());
    let mut found = [train, val.clone()].concat();
    found.sort();
    let mut expected = all.clone();
    expected.sort();
    assert_eq!(found, expected);
    let counts: Vec<_> = (0..3).map(|source| report["data"]["sources"][source]["documents"].clone()).collect();
    assert_eq!(counts, [2, 198, 200]);
    let manifest = data.manifest();
    assert_eq!(manifest.train.documents + manifest.val.documents, 400);
    assert_eq!(manifest.train.bytes + manifest.val.bytes, all.iter().map(String::len).sum::<usize>() as u64);

    // The same documents in another order, from another kind of file: the same ones are held out.
    let reversed = files.write("reversed.jsonl", all.iter().rev().map(line).collect::<String>());
    let again = files.name("again");
    succeed(&[
        "prepare",
        &reversed,
        "--tokenizer",
        &tokenizer,
        "--out",
        &again,
        "--text-field",
        "body",
        "--val-fraction",
        "0.1",
    ]);
    let mut same = documents(&Dataset::open(Path::new(&again)).unwrap(), Split::Val);
    same.reverse();
    let mut val = val;
    same.sort();
    val.sort();
    assert_eq!(same, val);
}

/// The texts of both splits.
fn splits(out: &str) -> [Vec<String>; 2] {
    let data = Dataset::open(Path::new(out)).unwrap();
    Split::ALL.map(|split| documents(&data, split))
}

#[test]
fn prepare_splits_a_folder_by_the_names_of_its_files_and_takes_files_for_validation() {
    let files = Files::new();
    let tokenizer = files.tokenizer();
    let line = |n: usize| serde_json::json!({ "text": document(n) }).to_string() + "\n";
    files.write("set/data/train-00000-of-00002.jsonl", line(1));
    files.write("set/data/train-00001-of-00002.jsonl", line(2));
    files.write("set/validation.csv", format!("text\n\"{}\"\n", document(3)));
    files.write("set/test/0.jsonl", line(4));
    let (set, own, test) = (files.name("set"), files.write("own.jsonl", line(5)), files.name("set/test/0.jsonl"));
    let out = |name: &str| files.name(name);
    let args = |source: &'_ str, name: &str, more: &[&str]| -> Vec<String> {
        let all = ["prepare", source, "--tokenizer", &tokenizer, "--out", &files.name(name)];
        all.iter().chain(more).map(|arg| (*arg).to_owned()).collect()
    };
    let run = |args: Vec<String>| hearth_train(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let output = run(args(&set, "named", &[]));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(splits(&out("named")), [vec![document(1), document(2)], vec![document(3)]]);
    assert!(stderr(&output).contains("left out: `test/0.jsonl` (for tests, by name)"), "{}", stderr(&output));
    let output = run(args(&set, "both", &["--val", &own]));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(splits(&out("both")), [vec![document(1), document(2)], vec![document(5)]]);
    let said = stderr(&output);
    assert!(said.contains("left out: `validation.csv` (for validation, by name, but `--val` names others)"), "{said}");
    let output = run(args(&own, "given", &["--val", &test]));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(splits(&out("given")), [vec![document(5)], vec![document(4)]]);
    // Nothing is held out, and training does without it.
    let output = run(args(&own, "all", &["--val-fraction", "0"]));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(splits(&out("all")), [vec![document(5)], vec![]]);
    let pretrain = ["pretrain", "--data", &out("all"), "--out", &out("run"), "--preset", "tiny", "--device", "cpu"];
    let sets = ["--set", "schedule.max_steps=2", "--set", "schedule.warmup_steps=1", "--set", "model.max_seq_len=16"];
    let report = succeed(&[&pretrain[..], &sets].concat());
    assert!(report["val_loss"].is_null() && Path::new(&out("run")).join("model").is_dir(), "{report}");
    for flags in [["--val-fraction", "0.1"], ["--split", "tail"]] {
        let output = run(args(&set, "refused", &flags));
        let message = stderr(&output);
        assert!(
            message.contains("there is a validation split already") && message.contains("validation.csv"),
            "{message}"
        );
    }
}

#[test]
fn prepare_makes_tokens_of_rendered_chats_and_ends_documents_at_their_marks() {
    let files = Files::new();
    let text = files.write("text.txt", document(1).repeat(9));
    let tokenizer = files.name("tok");
    succeed(&["tokenizer", &text, "--out", &tokenizer, "--vocab-size", "280", "--chat"]);
    let prepare = |source: &str, name: &str| {
        let out = files.name(name);
        let output =
            hearth_train(&["prepare", source, "--tokenizer", &tokenizer, "--out", &out, "--val-fraction", "0"]);
        assert!(output.status.success(), "{}", stderr(&output));
        (Dataset::open(Path::new(&out)).unwrap(), stderr(&output))
    };
    let messages = serde_json::json!([{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Ho" }]);
    let written = files.write("messages.jsonl", serde_json::json!({ "messages": messages }).to_string());
    let rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n";
    let rendered = files.write("rendered.jsonl", serde_json::json!({ "text": rendered }).to_string());
    let ((expected, _), (found, said)) = (prepare(&written, "messages"), prepare(&rendered, "rendered"));
    assert_eq!(found.split(Split::Train).to_vec(), expected.split(Split::Train).to_vec());
    assert_eq!(
        (found.manifest().conversations, found.split(Split::Train).n_bytes()),
        (1, expected.split(Split::Train).n_bytes())
    );
    assert!(said.contains("rendered.jsonl`, line 1: it is a chat that a template rendered"), "{said}");

    let (one, two) = (document(1), document(2));
    let marked = files.write("marked.txt", format!("{one}\n<|endoftext|>\n{two}<|endoftext|>\n"));
    let (found, said) = prepare(&marked, "marked");
    assert_eq!(documents(&found, Split::Train), [format!("{one}\n"), format!("\n{two}")]);
    let line = 2 + one.matches('\n').count();
    assert!(
        said.contains(&format!("marked.txt`, line {line}: `<|endoftext|>` in a text ends a document there")),
        "{said}"
    );
    let other = files.write("other.txt", format!("{one}\n</s>\n{two}"));
    let (found, said) = prepare(&other, "other");
    assert_eq!(found.manifest().train.documents, 1);
    assert!(said.contains("other.txt`, line 1: `</s>` in a text is trained as plain characters"), "{said}");
    let foreign = files.write("foreign.txt", "<start_of_turn>user\nHi<end_of_turn>\n");
    assert!(prepare(&foreign, "foreign").1.contains("`<start_of_turn>` is no token of the tokenizer"));
}

#[test]
fn prepare_copies_nanogpt_and_llm_c_token_files_unchanged() {
    let files = Files::new();
    let tokenizer = files.tokenizer();
    let eos = Tokenizer::from_dir(Path::new(&tokenizer)).unwrap().eos().unwrap().id;
    let ids = |n: u32| (0..n).map(|n| if n % 50 == 49 { eos } else { n % 280 }).collect::<Vec<TokenId>>();
    let bytes = |ids: &[TokenId]| ids.iter().flat_map(|&id| (id as u16).to_le_bytes()).collect::<Vec<u8>>();
    let (train, val) = (ids(1000), ids(75));
    files.write("bins/train.bin", bytes(&train));
    files.write("bins/val.bin", bytes(&val));
    let data = files.name("data");
    let report = succeed(&["prepare", &files.name("bins"), "--tokenizer", &tokenizer, "--out", &data]);
    let data = Dataset::open(Path::new(&data)).unwrap();
    assert_eq!((data.split(Split::Train).to_vec(), data.split(Split::Val).to_vec()), (train, val));
    assert_eq!(report["data"]["split"]["by"], "files");
    // llm.c writes the end-of-text token in front of each document, and cuts documents where a file is full.
    let shard = |ids: &[TokenId]| {
        let mut shard: Vec<u8> = [20_240_520, 1, ids.len() as u32].into_iter().flat_map(u32::to_le_bytes).collect();
        shard.resize(1024, 0);
        shard.extend(bytes(ids));
        shard
    };
    let train = [&[eos, 1, 2, eos, 3, eos, 4, 5][..], &[6, 7], &[8, eos, 9], &[eos, 10]];
    let val = vec![eos, 6, 7];
    for (number, ids) in train.iter().enumerate() {
        files.write(&format!("shards/fineweb_train_{number:06}.bin"), shard(ids));
    }
    let train = train.concat();
    files.write("shards/fineweb_val_000000.bin", shard(&val));
    let data = files.name("fineweb");
    let report = succeed(&["prepare", &files.name("shards"), "--tokenizer", &tokenizer, "--out", &data]);
    assert_eq!(["train", "val"].map(|split| &report["data"][split]["documents"]), [&Value::from(5), &1.into()]);
    let data = Dataset::open(Path::new(&data)).unwrap();
    assert_eq!((data.split(Split::Train).to_vec(), data.split(Split::Val).to_vec()), (train, val));
    let other = files.name("other");
    for ignored in [["--val-fraction", "0.1"], ["--split", "hash"]] {
        let args = ["prepare", &files.name("bins"), "--tokenizer", &tokenizer, "--out", &other, ignored[0], ignored[1]];
        assert!(fail(&args).contains("all sources are token files"), "{ignored:?}");
    }
    let small = files.write("small.txt", "ab");
    succeed(&["tokenizer", &small, "--out", &files.name("small"), "--chars"]);
    let error = fail(&["prepare", &files.name("bins"), "--tokenizer", &files.name("small"), "--out", &other]);
    assert!(error.contains("train.bin") && error.contains("small` has 2 tokens"), "{error}");
    assert!(!Path::new(&other).exists());
}

#[test]
fn prepare_gives_weighted_sources_their_shares() {
    let files = Files::new();
    let tokenizer = files.tokenizer();
    let line = |n: usize| serde_json::json!({ "text": document(n).repeat(1 + n % 5) }).to_string() + "\n";
    let large = files.write("large.jsonl", (0..3000).map(line).collect::<String>());
    let small = files.write("small.jsonl", (3000..3300).map(line).collect::<String>());
    for (strategy, weights) in
        [("first_exhausted", [0.7, 0.3]), ("all_exhausted", [1.0, 3.0]), ("first_exhausted", [1.0, 20.0])]
    {
        let data = files.name(&format!("{strategy}-{}", weights[1]));
        let sources = [format!("{large}={}", weights[0]), format!("{small}={}", weights[1])];
        let report = succeed(&[
            "prepare",
            &sources[0],
            &sources[1],
            "--tokenizer",
            &tokenizer,
            "--out",
            &data,
            "--val-fraction",
            "0.05",
            "--stopping-strategy",
            strategy,
        ]);
        let opened = Dataset::open(Path::new(&data)).unwrap();
        let manifest = opened.manifest();
        for (index, weight) in weights.iter().enumerate() {
            let (share, wanted) = (manifest.sources[index].share, weight / weights.iter().sum::<f64>());
            assert!((share - wanted).abs() < 1e-3 * wanted, "{strategy} {weights:?}: {share} is not {wanted}");
        }
        let epochs: Vec<f64> = manifest.sources.iter().map(|source| source.epochs).collect();
        match strategy {
            "first_exhausted" => {
                assert!(epochs.iter().all(|&epochs| epochs <= 1.0) && epochs.contains(&1.0), "{epochs:?}")
            }
            _ => assert!(epochs.iter().all(|&epochs| epochs >= 0.999), "{epochs:?}"),
        }
        // The manifest's counts are those of the decoded documents.
        let train = documents(&opened, Split::Train);
        assert_eq!(train.len() as u64, manifest.train.documents);
        assert_eq!(train.iter().map(String::len).sum::<usize>() as u64, manifest.train.bytes, "{report}");
        assert!(!Path::new(&data).join("spool").exists());
    }
}

#[cfg(unix)]
#[test]
fn prepare_and_tokenizer_reject_bad_input_and_write_nothing() {
    let files = Files::new();
    let tokenizer = files.tokenizer();
    let text = files.write("text.txt", (0..50).map(document).collect::<String>());
    let latin1 = files.write("latin1.txt", b"caf\xe9");
    let latin1_line = files.write("latin1.jsonl", b"{\"text\": \"caf\xe9\"}\n");
    let empty = files.write("empty.txt", "");
    let line = files.write("lines.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
    let gzip = files.write("lines.jsonl.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab");
    let parquet = files.write("table.parquet", b"PAR1 and nothing else");
    let full = files.write("full/file.txt", "x");
    let missing = files.name("missing.txt");
    let out = files.name("out");
    files.write("hidden/.only", "x");
    let hidden = files.name("hidden");
    let weighted = format!("{text}=0");
    let (rare, common) = (format!("{text}=5e-5"), format!("{text}=1"));
    let pipe = files.name("pipe.txt");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let folder = Path::new(&full).parent().unwrap().to_str().unwrap().to_owned();

    let prepare_cases: [(&[&str], &str); 19] = [
        (&[&missing], "missing.txt"),
        (&[&pipe], "pipe.txt`: it is not a regular file"),
        (&[&latin1], "latin1.txt` is not UTF-8 text: byte 0xe9 at offset 3"),
        (&[&latin1_line], "latin1.jsonl`, line 1: it is not UTF-8 text"),
        (&[&empty], "empty.txt` has no text"),
        (&[&line], "lines.jsonl`, line 2"),
        (&[&line, "--text-field", "body"], "line 1: there is no field `body`"),
        (&[&gzip], "lines.jsonl.gz` beyond"),
        (&[&parquet], "table.parquet`"),
        (&[&hidden], "has no files"),
        (&[&text, "--separator", ""], "separator"),
        (&[&text, "--val-fraction", "1.5"], "at least 0 and below 1, got 1.5"),
        (&[&text, "--val-fraction", "-0.1"], "at least 0 and below 1, got -0.1"),
        (&[&text, "--split", "hash"], "the val split has 0 tokens"),
        (&[&weighted], "text.txt` must be positive, got 0"),
        (
            &[&rare, &common, "--separator", "\n", "--stopping-strategy", "all_exhausted"],
            "text.txt` would be repeated more than 10000 times",
        ),
        (&[&format!("{text}=1"), &latin1], "latin1.txt` has no weight"),
        (&[&text, "--tokenizer", &folder], "tokenizer.json"),
        (&[&text, "--out", &folder], "full"),
    ];
    for (args, message) in prepare_cases {
        let mut all = vec!["prepare"];
        all.extend(args);
        for (flag, value) in [("--tokenizer", &tokenizer), ("--out", &out)] {
            if !args.contains(&flag) {
                all.extend([flag, value]);
            }
        }
        let error = fail(&all);
        assert!(error.contains(message), "{args:?}: {error}");
        assert!(!Path::new(&out).exists(), "{args:?} wrote something");
    }
    let tokenizer_cases: [(&[&str], &str); 10] = [
        (&[&missing], "missing.txt"),
        (&[&pipe], "pipe.txt`: it is not a regular file"),
        (&[&latin1], "0xe9 at offset 3"),
        (&[&empty], "no text"),
        (&[&line], "line 2"),
        (&[&text, "--vocab-size", "256"], "from 257 tokens"),
        (&[&text, "--vocab-size", "4000000000"], "hint: use a smaller vocabulary"),
        (&[&text, "--chars", "--eos", "h"], "the special token `h` is also a character of the text"),
        (&[&text, "--pad=<|endoftext|>"], "cannot be both the end-of-text token and the padding token"),
        (&[&text, "--out", &folder], "full"),
    ];
    for (args, message) in tokenizer_cases {
        let mut all = vec!["tokenizer"];
        all.extend(args);
        if !args.contains(&"--out") {
            all.extend(["--out", &out]);
        }
        let error = fail(&all);
        assert!(error.contains(message), "{args:?}: {error}");
        assert!(!Path::new(&out).exists(), "{args:?} wrote something");
    }
    // A character that the tokenizer lacks is named with the file that has it.
    let chars = files.name("chars");
    let abc = files.write("abc.txt", "abc");
    succeed(&["tokenizer", &abc, "--out", &chars, "--chars"]);
    let error = fail(&["prepare", &text, "--tokenizer", &chars, "--out", &out]);
    assert!(error.contains("text.txt") && error.contains("is not in the vocabulary of 3 tokens"), "{error}");
    assert!(!Path::new(&out).exists());
    let leftovers: Vec<_> = fs::read_dir(files.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("hearth-"))
        .collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
}
