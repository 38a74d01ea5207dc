//! Models by name: `hearth pull`, `list` and `rm`, and `--model ORG/NAME`, against a server that speaks the hub's API.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use super::{hearth, model_dir, path, stderr, stdout};
use crate::stand_in_hub::{COMMIT, Fault, HUGE, StandInHub, TOKEN, checksum, continued};

/// A stand-in hub with the tiny model, and an empty cache.
struct Case {
    server: StandInHub,
    model: TempDir,
    weights: Vec<u8>,
    home: TempDir,
}

impl Case {
    fn new() -> Case {
        let model = model_dir();
        let read = |name: &str| fs::read(model.path().join(name)).unwrap();
        let names =
            ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
        let files = names.map(|name| (name, read(name)));
        let files: Vec<(&str, &[u8])> = files.iter().map(|(name, contents)| (*name, contents.as_slice())).collect();
        let gguf = fs::read(gguf_file()).unwrap();
        let ggufs: [(&str, &[u8]); 2] = [("tiny-Q4_0.gguf", &gguf[..5000]), ("tiny-Q8_0.gguf", &gguf)];
        let server = StandInHub::new(&[
            ("models/org/tiny", &files),
            ("models/private/tiny", &files),
            ("models/org/tiny-GGUF", &ggufs),
            ("models/org/huge", &[(HUGE, &gguf)]),
        ]);
        let weights = read("model.safetensors");
        Case { server, model, weights, home: TempDir::new().unwrap() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = hearth(args);
        // Not in the repository, whose folders could be taken for model names.
        command.current_dir(self.home.path()).env("HF_ENDPOINT", &self.server.url).env("HF_HOME", self.home.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn succeed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
        stdout(&output).to_owned()
    }

    fn fail(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""), "{args:?}: {}", stderr(&output));
        stderr(&output).to_owned()
    }

    fn repository(&self) -> PathBuf {
        self.home.path().join("hub/models--org--tiny")
    }

    fn assert_whole(&self) {
        let path = self.repository().join("snapshots").join(COMMIT).join("model.safetensors");
        assert_eq!(fs::read(path).unwrap(), self.weights);
        let blobs = fs::read_dir(self.repository().join("blobs")).unwrap();
        let names: Vec<_> = blobs.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(!names.iter().any(|name| name.ends_with(".incomplete")), "{names:?}");
    }
}

fn gguf_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/gguf/quantized-Q8_0.gguf")
}

#[test]
fn hub_model_is_pulled_listed_used_and_removed() {
    let case = Case::new();
    let generate = |model: &str| {
        let args =
            ["generate", "the hand", "--model", model, "--device", "cpu", "--max-tokens", "8", "--temperature", "0"];
        case.succeed(&args)
    };
    let expected = generate(path(case.model.path()));
    assert!(case.succeed(&["list"]).starts_with("no models in `"));
    assert_eq!(case.succeed(&["list", "--json"]), "[]\n");

    let pulled = case.succeed(&["pull", "org/tiny"]);
    assert!(pulled.starts_with("`org/tiny` is in `") && pulled.contains(": 5 files, "), "{pulled}");
    assert!(pulled.contains("`hearth serve --model org/tiny`"), "{pulled}");
    case.assert_whole();
    case.server.requests();
    assert_eq!(generate("org/tiny"), expected);
    assert_eq!(case.server.requests(), [""; 0]);

    // Other commands, which download a model that was not pulled.
    assert!(
        case.fail(&["generate", "x", "--model", "org/tiny-GGUF"])
            .contains("hint: choose one, as in `org/tiny-GGUF:Q4_0`")
    );
    let args = ["generate", "ABBA", "--device", "cpu", "--max-tokens", "8", "--temperature", "0", "--model"];
    let of_file = case.succeed(&[&args[..], &[path(&gguf_file())]].concat());
    assert_eq!(case.succeed(&[&args[..], &["org/tiny-GGUF:Q8_0"]].concat()), of_file);
    case.succeed(&["quantize", "org/tiny", "rounded", "--quantize", "q8"]);
    let text = case.home.path().join("text");
    fs::write(&text, "abcabcaabbcc".repeat(8)).unwrap();
    let measured =
        case.succeed(&["perplexity", path(&text), "--model", "org/tiny", "--device", "cpu", "--context", "16"]);
    let report: Value = serde_json::from_str(measured.lines().last().unwrap()).unwrap();
    assert_eq!(report["model"], "org/tiny");

    let list: Value = serde_json::from_str(&case.succeed(&["list", "--json"])).unwrap();
    let rows: Vec<_> =
        list.as_array().unwrap().iter().map(|row| (&row["name"], &row["format"], &row["complete"])).collect();
    assert_eq!(rows.len(), 2, "{list}");
    assert_eq!(rows[0], (&"org/tiny".into(), &"safetensors".into(), &true.into()));
    assert_eq!(rows[1], (&"org/tiny-GGUF:Q8_0".into(), &"gguf".into(), &true.into()));
    assert_eq!(list[0]["commit"], COMMIT);
    let table = case.succeed(&["list"]);
    assert!(table.contains("\norg/tiny            01234567  safetensors, 5 files  "), "{table}");

    let refused = case.fail(&["rm", "org/tiny"]);
    assert!(refused.contains("not a terminal\nhint: `--yes` removes it without asking"), "{refused}");
    case.assert_whole();
    let removed = case.succeed(&["rm", "org/tiny", "--yes"]);
    assert!(removed.starts_with("removed `org/tiny`: 5 files, "), "{removed}");
    assert!(!case.repository().exists());
    assert!(case.fail(&["rm", "org/tiny", "--yes"]).contains("does not have it"));
    assert!(!case.succeed(&["list"]).contains("org/tiny "));
    let json: Value = serde_json::from_str(&case.succeed(&["pull", "org/tiny@v1/a", "--json"])).unwrap();
    assert_eq!((&json["name"], &json["commit"], &json["files"]), (&"org/tiny@v1/a".into(), &COMMIT.into(), &5.into()));
}

/// The served model has the name given as `--model`.
#[test]
#[cfg(unix)]
fn serve_downloads_and_serves_a_hub_model_by_name() {
    let case = Case::new();
    let mut command = case.command(&["serve", "--port", "0", "--device", "cpu", "--model", "org/tiny"]);
    let mut child = command.spawn().unwrap();
    let mut log = std::io::BufReader::new(child.stderr.take().unwrap());
    super::wait_for_line(&mut log, "model `org/tiny` is ready");
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(super::exit_code(&mut child), Some(0));
    case.assert_whole();
}

/// Each request for the weights continues where the answer to the one before was cut.
#[test]
fn pull_completes_after_connections_cut_at_random_bytes() {
    let case = Case::new();
    let n_bytes = case.weights.len();
    let largest_other = fs::metadata(case.model.path().join("tokenizer.json")).unwrap().len() as usize;
    for _ in 0..3 {
        let cut = largest_other + RandomState::new().hash_one(0u8) as usize % (n_bytes - largest_other);
        // The next six responses are cut: those with the four other files, which come first, behind their end.
        case.server.fail(&[Fault::CutAfter(cut); 6]);
        case.succeed(&["pull", "org/tiny"]);
        case.assert_whole();
        assert_eq!(case.server.sent(&case.weights), continued(n_bytes, &[cut; 2]), "cut after {cut}");
        case.succeed(&["rm", "org/tiny", "-y"]);
    }
}

#[test]
fn killed_pull_is_listed_as_unfinished_and_completed_by_the_next() {
    let case = Case::new();
    let half = case.weights.len() / 2;
    let blob = case.repository().join("blobs").join(format!("{}.incomplete", checksum(&case.weights)));
    // The small files are complete; the large one is cut at every attempt.
    case.server.fail(&[Fault::CutAfter(usize::MAX); 4]);
    case.server.fail(&[Fault::CutAfter(half)]);
    case.server.fail(&[Fault::CutAfter(0); 4]);
    let mut child = case.command(&["pull", "org/tiny"]).stdout(Stdio::null()).spawn().unwrap();
    while fs::metadata(&blob).map_or(0, |found| found.len()) < half as u64 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before");
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(blob.exists());
    let list = case.succeed(&["list"]);
    assert!(list.contains("unfinished, 1 file"), "{list}");
    case.server.sent(&case.weights);
    case.succeed(&["pull", "org/tiny"]);
    case.assert_whole();
    let sent = case.server.sent(&case.weights);
    assert!(!sent.is_empty() && sent.iter().all(|(start, _)| *start == half), "{sent:?}");
}

#[test]
fn concurrent_pulls_download_each_large_file_once() {
    let case = Case::new();
    let children: Vec<_> = (0..2).map(|_| case.command(&["pull", "org/tiny"]).spawn().unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    case.assert_whole();
    let downloads = case.server.requests().iter().filter(|request| request.contains("/storage/")).count();
    assert_eq!(downloads, 2, "the weights and the tokenizer, once each");
}

#[test]
fn pull_errors_name_the_cause_and_never_show_the_token() {
    let case = Case::new();
    for (args, message) in [
        (&["org/absent"][..], "error: `org/absent`: the hub has no such model, or does not show it to you"),
        (
            &["private/tiny"],
            "error: `private/tiny`: the hub has no such model, or does not show it to you: Repository not found",
        ),
        (&["org/tiny@v9"], "error: `org/tiny@v9`: the model has no such revision"),
        (&["org/tiny:Q4_0"], "error: `org/tiny`: the repository has no GGUF files, so `:Q4_0` chooses none"),
        (
            &["org/tiny-GGUF"],
            "error: `org/tiny-GGUF`: the repository has 2 GGUF files:\n  :Q4_0     5.0 kB  tiny-Q4_0.gguf\n",
        ),
        (&["org/tiny-GGUF:Q5_K"], "error: `org/tiny-GGUF`: the repository has no GGUF file `Q5_K`; it has:\n"),
        (&["org/huge"], "error: `org/huge`: there is no room for it: "),
        (&["tiny"], "error: `tiny` is not the name of a model\n"),
        (&["../tiny"], "error: `../tiny` is not the name of a model\n"),
        (&["hub"], "error: `hub` is a file or folder here"),
    ] {
        fs::create_dir_all(case.home.path().join("hub")).unwrap();
        let told = case.fail(&[&["pull"], args].concat());
        assert!(told.contains(message) && told.contains("\nhint: "), "{args:?}: {told}");
    }
    // The token gives access, and is never shown or sent to another host.
    let mut command = case.command(&["pull", "private/tiny"]);
    let output = command.env("HF_TOKEN", TOKEN).env("HEARTH_LOG", "trace").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stderr(&output).contains(TOKEN) && !stdout(&output).contains(TOKEN));
    let elsewhere: Vec<_> =
        case.server.requests().into_iter().filter(|request| request.starts_with("localhost ")).collect();
    assert!(
        !elsewhere.is_empty() && elsewhere.iter().all(|request| !request.ends_with(" with token")),
        "{elsewhere:?}"
    );

    let offline = case.command(&["pull", "org/never"]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert_eq!(offline.status.code(), Some(1));
    let told = stderr(&offline);
    assert!(
        told.contains("the model was not downloaded before, and downloads are disabled (`HF_HUB_OFFLINE`)\nhint: "),
        "{told}"
    );
}

#[test]
fn damaged_download_or_full_disk_fails_pull_and_a_retry_succeeds() {
    let case = Case::new();
    case.server.fail(&[Fault::CutAfter(usize::MAX); 2]);
    case.server.fail(&[Fault::Damage; 1]);
    let told = case.fail(&["pull", "org/tiny"]);
    assert!(told.contains("the download has the checksum ") && told.contains("but the hub states "), "{told}");
    assert!(told.contains("\nhint: the download was damaged and is removed; try again"), "{told}");
    case.succeed(&["pull", "org/tiny"]);
    case.assert_whole();
    case.succeed(&["rm", "org/tiny", "--yes"]);
    #[cfg(unix)]
    {
        let blobs = case.repository().join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        let full = blobs.join(format!("{}.incomplete", checksum(&case.weights)));
        std::os::unix::fs::symlink("/dev/full", &full).unwrap();
        let told = case.fail(&["pull", "org/tiny"]);
        assert!(told.contains("there is no room left: cannot write it: No space left on device"), "{told}");
        assert!(told.contains("\nhint: free some room (`hearth list` and `hearth rm`"), "{told}");
        fs::remove_file(full).unwrap();
        case.succeed(&["pull", "org/tiny"]);
        case.assert_whole();
    }
}
