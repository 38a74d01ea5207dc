//! `hearth-lab tales` and `bilingual` as a user runs them, and `hearth-training` on their files.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use hearth_training::data::{
    corpus::{Cutting, Marks, Origin, ReadOptions, SourceSpec, WordSplit},
    prepare::{PrepareSettings, StoppingStrategy, prepare},
    tokenizer_build::{BuiltTokenizer, SpecialTokens, count_words},
};
use serde_json::Value;

fn hearth_lab(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hearth-lab")).args(args).current_dir(dir).output().unwrap()
}

/// Runs a command that must succeed, and gives its report.
fn succeed(dir: &Path, args: &[&str]) -> Value {
    let output = hearth_lab(dir, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fail(dir: &Path, args: &[&str]) -> String {
    let output = hearth_lab(dir, args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Trains a tokenizer on a jsonl file, as `hearth-train tokenizer` does, and writes it to a folder.
fn train_tokenizer((file, out): (&Path, &Path), vocab_size: usize, special: &SpecialTokens) {
    let files = Origin::parse(file.to_str().unwrap()).files(&mut |_| {}).unwrap().files;
    let options = ReadOptions {
        text_field: "text".to_owned(),
        separator: None,
        marks: Marks::of_end(special.eos.as_deref()),
        cutting: Cutting::Pieces,
    };
    let (counts, _) = count_words(&files, &options, WordSplit::Gpt4, &mut |_| {}).unwrap();
    let built = BuiltTokenizer::from_words(&counts, vocab_size, special).unwrap();
    fs::create_dir(out).unwrap();
    for (name, text) in built.files() {
        fs::write(out.join(name), text).unwrap();
    }
}

/// Encodes a jsonl file, as `hearth-train prepare` does; returns the number of tokens.
fn n_prepared(file: &Path, tokenizer: &Path, out: &Path) -> u64 {
    let settings = PrepareSettings {
        sources: vec![SourceSpec::parse(file.to_str().unwrap()).unwrap()],
        validation: Vec::new(),
        tokenizer: tokenizer.to_owned(),
        out: out.to_owned(),
        split: None,
        val_fraction: None,
        text_field: "text".to_owned(),
        separator: None,
        stopping: StoppingStrategy::default(),
        shard_tokens: 1 << 20,
    };
    let manifest = prepare(&settings, &mut |_| {}).unwrap().manifest;
    manifest.train.tokens + manifest.val.tokens
}

#[test]
fn tales_command_writes_measures_and_judges_tales() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let report = succeed(dir, &["tales", "--out", "a.jsonl", "--count", "2000", "--seed", "3"]);
    assert_eq!(report["tales"], 2000);
    succeed(dir, &["tales", "--out", "b.jsonl", "--count", "100", "--seed", "3"]);
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    assert!(read("a.jsonl").starts_with(&read("b.jsonl")), "the first tales do not depend on the number");
    succeed(dir, &["tales", "--out", "s.jsonl", "--count", "50", "--kind", "stories", "--prompts"]);
    for line in read("s.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), ["text"]);
    }
    assert!(fail(dir, &["tales", "--out", "a.jsonl"]).contains("`a.jsonl` exists already\nhint: "));

    // Without and with BOS. In the second case, `<|im_end|>` is also EOS.
    let with_chat = |bos: Option<&str>, eos: &str| SpecialTokens {
        bos: bos.map(str::to_owned),
        eos: Some(eos.to_owned()),
        has_chat: true,
        ..SpecialTokens::default()
    };
    for (number, special) in
        [with_chat(None, "<|endoftext|>"), with_chat(Some("<|bos|>"), "<|im_end|>")].iter().enumerate()
    {
        let (tokenizer, data) = (format!("tokenizer-{number}"), format!("data-{number}"));
        train_tokenizer((&dir.join("a.jsonl"), &dir.join(&tokenizer)), 1000, special);
        let floor = succeed(dir, &["tales", "--floor", &tokenizer, "--count", "2000", "--seed", "3"]);
        let tokens = n_prepared(&dir.join("a.jsonl"), &dir.join(&tokenizer), &dir.join(&data));
        assert_eq!((floor["tokens_per_tale"].as_f64().unwrap() * 2000.0).round() as u64, tokens, "{special:?}");
        let nats = floor["nats_per_tale"].as_f64().unwrap() * 2000.0 / tokens as f64;
        assert!((floor["nats_per_token"].as_f64().unwrap() - nats).abs() < 1e-9);
    }

    let judged = succeed(dir, &["tales", "--judge", "a.jsonl"]);
    assert!(judged["passed"].as_f64().unwrap() >= 0.99, "{judged}");
    succeed(dir, &["tales", "--out", "q.jsonl", "--count", "500", "--kind", "questions"]);
    let shuffled = succeed(dir, &["tales", "--judge", "q.jsonl", "--shuffle-names"]);
    assert!(shuffled["passed"].as_f64().unwrap() <= 0.2, "{shuffled}");
    succeed(dir, &["tales", "--out", "p.jsonl", "--count", "5", "--kind", "requests", "--prompts"]);
    let line: Value = serde_json::from_str(read("p.jsonl").lines().next().unwrap()).unwrap();
    assert_eq!(line["messages"].as_array().unwrap().len(), 1);
    assert!(
        fail(dir, &["tales", "--judge", "p.jsonl"])
            .contains("`p.jsonl`, line 1: the last message is not the assistant's")
    );
    fs::write(dir.join("text.jsonl"), "Once\n").unwrap();
    let error = fail(dir, &["tales", "--judge", "text.jsonl"]);
    assert!(error.contains("`text.jsonl`, line 1: expected value at column 1\nhint: "), "{error}");
}

/// No partial file remains that would block another attempt or look complete.
#[cfg(unix)]
#[test]
fn tales_and_bilingual_remove_partial_output_if_writing_fails() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for args in [["tales", "--out", "a.jsonl"], ["bilingual", "--out", "data"]] {
        // `ulimit` limits files to a few kilobytes.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_hearth-lab")]);
        let output = command.args(args).current_dir(dir).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
        assert!(message.contains("cannot write `"), "{message}");
        let left: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[cfg(unix)]
#[test]
fn interrupted_tales_command_removes_its_partial_file() {
    use std::{fs::File, io::Read, process::Stdio};

    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let dir = tempfile::tempdir().unwrap();
        let partial = dir.path().join("a.jsonl.hearth-partial");
        assert!(Command::new("mkfifo").arg(&partial).status().unwrap().success());
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-lab"));
        command.args(["tales", "--out", "a.jsonl", "--count", "4000"]).current_dir(dir.path()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // It writes more than a pipe holds, and nobody reads the rest: it cannot end by itself.
        let mut pipe = File::open(&partial).unwrap();
        pipe.read_exact(&mut [0; 10]).unwrap();
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

/// Waits until `condition` holds, for a minute at most.
#[cfg(target_os = "linux")]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} after a minute");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A write that fails while a signal is ending the command does not decide the exit code.
#[cfg(target_os = "linux")]
#[test]
fn write_error_after_a_signal_does_not_change_the_exit_code() {
    use std::{fs::File, io::Read, process::Stdio};

    let dir = tempfile::tempdir().unwrap();
    let folder = fs::canonicalize(dir.path()).unwrap();
    let partial = folder.join("a.jsonl.hearth-partial");
    assert!(Command::new("mkfifo").arg(&partial).status().unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-lab"));
    command.args(["tales", "--out", "a.jsonl", "--count", "4000"]).current_dir(&folder).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = File::open(&partial).unwrap();
    pipe.read_exact(&mut [0; 10]).unwrap();
    // The removal waits for this lock.
    let lock = File::open(&folder).unwrap();
    lock.lock().unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    // The signal is ending the command: it has opened the folder, to lock it.
    let open_files = format!("/proc/{}/fd", child.id());
    wait_until("the removal has not begun", || {
        let files = fs::read_dir(&open_files).unwrap();
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|path| path == folder))
    });
    // Now writing fails, for which the command removes the file itself.
    drop(pipe);
    wait_until("the file is still there", || !partial.exists());
    assert!(child.try_wait().unwrap().is_none(), "it ended before the removal");
    drop(lock);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("error: "), "{output:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn second_signal_ends_the_process_during_a_blocked_removal() {
    use std::{
        fs::File,
        process::Stdio,
        thread,
        time::{Duration, Instant},
    };

    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-lab"));
    command.args(["bilingual", "--out", "data", "--count", "4000000000"]).current_dir(dir.path()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // Each file is written under this name until it is complete and on the disk.
    let partial = dir.path().join("data.hearth-partial/pairs.jsonl.hearth-partial");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !partial.exists() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    // Holding the lock of the parent folder, as the final rename does, blocks the removal.
    let lock = File::open(dir.path()).unwrap();
    lock.lock().unwrap();
    for signal in ["-TERM", "-INT"] {
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    }
    let mut has_ended = false;
    while !has_ended && Instant::now() < deadline {
        has_ended = child.try_wait().unwrap().is_some();
        thread::sleep(Duration::from_millis(1));
    }
    // Does nothing if it has ended.
    let _ = child.kill();
    let status = child.wait().unwrap();
    // Both signals may come at once.
    assert!(has_ended && [Some(130), Some(143)].contains(&status.code()), "{status}");
    assert!(partial.is_file());
}

#[test]
fn bilingual_command_writes_files_that_tokenizer_and_prepare_read() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    succeed(dir, &["bilingual", "--out", "data", "--count", "300", "--test-count", "20"]);
    let lines = |name: &str| fs::read_to_string(dir.join("data").join(name)).unwrap().lines().count();
    assert_eq!(["pairs.jsonl", "texts.jsonl"].map(lines), [300; 2]);
    for set in ["combinations", "lengths"] {
        assert_eq!(
            ["jsonl", "references.txt", "word-for-word.txt"].map(|ending| lines(&format!("{set}.{ending}"))),
            [20; 3]
        );
    }
    let special = SpecialTokens { eos: Some("<|endoftext|>".to_owned()), ..SpecialTokens::default() };
    let (texts, tokenizer) = (dir.join("data/texts.jsonl"), dir.join("tokenizer"));
    train_tokenizer((&texts, &tokenizer), 400, &special);
    assert!(n_prepared(&texts, &tokenizer, &dir.join("tokens")) > 300);
    let error = fail(dir, &["bilingual", "--out", "data"]);
    assert!(error.contains("`data` exists already") && error.contains("hint: "), "{error}");
}
