//! The binary as a user runs it: output, messages and exit codes. One file per subject.

mod bench_and_perplexity;
mod chat;
mod generate;
mod health;
mod hub;
mod merge_and_export;
mod quantize;
mod serve;
mod usage;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStderr, Command, Output, Stdio},
};

use hearth_model::{
    TokenId,
    gpt::Gpt,
    weights::model_dir::{SaveOptions, save},
};
use tempfile::TempDir;

use crate::support::{EOS, gpt, tokenizer_files};

/// A command of the binary with `args`, without the settings of the environment, except the number of threads.
pub(crate) fn hearth(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        let is_setting = ["HEARTH_", "OTEL_", "HF_"].iter().any(|start| name_text.starts_with(start));
        if is_setting && name != "HEARTH_THREADS" || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn run(args: &[&str]) -> Output {
    hearth(args).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The tiny model as a model dir.
pub(crate) fn model_dir() -> TempDir {
    let [tokenizer, config] = tokenizer_files();
    save_model(&[EOS], &[("tokenizer.json", tokenizer), ("tokenizer_config.json", config)])
}

fn save_model(eos_token_ids: &[TokenId], files: &[(&str, Vec<u8>)]) -> TempDir {
    save_gpt(&gpt(), eos_token_ids, files)
}

pub(crate) fn save_gpt(gpt: &Gpt, eos_token_ids: &[TokenId], files: &[(&str, Vec<u8>)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let extra_files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
    let options = SaveOptions { eos_token_ids: eos_token_ids.to_vec(), extra_files, ..SaveOptions::default() };
    save(dir.path(), gpt, &options).unwrap();
    dir
}

pub(crate) fn path(dir: &Path) -> &str {
    dir.to_str().unwrap()
}

/// A server process of the tiny model; it is killed if the test fails.
#[cfg(unix)]
pub(super) struct Served {
    child: Child,
    log: BufReader<ChildStderr>,
    pub(super) port: String,
}

#[cfg(unix)]
impl Served {
    pub(super) fn start(dir: &TempDir, args: &[&str]) -> Self {
        let mut command = hearth(&["--port", "0", "--device", "cpu", "--model", path(dir.path())]);
        let mut child = command.args(args).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut served = Self { child, log, port: String::new() };
        let line = wait_for_line(&mut served.log, "listening on ");
        served.port = line.trim().rsplit_once(':').unwrap().1.to_owned();
        wait_for_line(&mut served.log, "is ready");
        served
    }

    pub(super) fn stop(mut self) {
        assert!(Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap().success());
        assert_eq!(exit_code(&mut self.child), Some(0));
    }
}

#[cfg(unix)]
impl Drop for Served {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(unix)]
pub(crate) fn wait_for_line(log: &mut impl BufRead, part: &str) -> String {
    let mut seen = String::new();
    loop {
        let start = seen.len();
        assert!(log.read_line(&mut seen).unwrap() > 0, "no `{part}` in: {seen}");
        if seen[start..].contains(part) {
            return seen[start..].to_owned();
        }
    }
}

#[cfg(unix)]
fn exit_code(child: &mut Child) -> Option<i32> {
    child.wait().unwrap().code()
}
