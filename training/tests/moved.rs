//! Commands of `hearth-train` that moved to another program.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, process::Command};

#[test]
fn command_that_moved_names_its_new_program() {
    let dir = tempfile::tempdir().unwrap();
    for (args, name) in [
        (&["tales", "--out", "a.jsonl", "--count", "5"][..], "tales"),
        (&["bilingual", "--help"], "bilingual"),
        (&["eval", "decoding", "model", "--prompts", "text.txt"], "decoding"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth-train"));
        let output = command.args(args).current_dir(dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        let expected =
            format!("error: moved: `hearth-lab {name}`; build it with `cargo build --release --workspace`\n");
        assert_eq!(error, expected);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
