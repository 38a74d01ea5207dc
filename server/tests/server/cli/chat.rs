//! `hearth chat`: with a local model and with a server, through pipes and on a terminal.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::{Arc, Condvar, Mutex, mpsc},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Served, hearth, model_dir, path, stderr, stdout};
use crate::{
    connections::tls_file,
    support::{CHAT_TEMPLATE, TEST_TIMEOUT},
};

/// The tiny model with a chat template.
fn chat_model_dir() -> TempDir {
    let dir = model_dir();
    fs::write(dir.path().join("chat_template.jinja"), CHAT_TEMPLATE).unwrap();
    dir
}

/// Runs `hearth chat` with a message on standard input.
fn ask(message: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = hearth(&[&["chat"], args].concat());
    let mut child = command.envs(variables.iter().copied()).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(message.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn answer(message: &str, args: &[&str]) -> String {
    let output = ask(message, args, &[]);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[cfg(unix)]
fn chat_answers_equally_with_a_local_model_and_with_a_server() {
    let dir = chat_model_dir();
    let here = ["--model", path(dir.path()), "--device", "cpu"];
    let how = ["--temperature", "0", "--max-tokens", "12", "--set", "ignore_eos=true"];
    let expected = answer("the hand", &[&here[..], &how].concat());
    assert!(expected.len() > 5 && expected.ends_with('\n'), "{expected:?}");
    assert_ne!(answer("the hand", &[&here[..], &how, &["--system", "and"]].concat()), expected);
    assert_ne!(answer("in the hand", &[&here[..], &how].concat()), expected);
    assert_eq!(answer("the hand", &[&here[..], &["--top-k", "1", "--seed", "-3"], &how[2..]].concat()), expected);

    let served = Served::start(&dir, &["--api-key", "sk-chat"]);
    for url in [format!("http://127.0.0.1:{}", served.port), format!("http://localhost:{}/v1/", served.port)] {
        let there = ["--url", &url, "--api-key", "sk-chat"];
        assert_eq!(answer("the hand", &[&there[..], &how].concat()), expected);
    }
    let url = format!("http://127.0.0.1:{}", served.port);
    // A flag overrides the variable of a flag that it conflicts with.
    let variables = [("HEARTH_API_KEY", "sk-chat"), ("HEARTH_MODEL", "/nowhere/at/all")];
    let output = ask("the hand", &[&["--url", &url], &how[..]].concat(), &variables);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", stderr(&output));
    let name = dir.path().file_name().unwrap().to_str().unwrap();
    let named = ["--url", &url, "--api-key", "sk-chat", "--model-name", name];
    assert_eq!(answer("the hand", &[&named[..], &how].concat()), expected);
    for (args, message) in [
        (&["--api-key", "sk-wrong"][..], "error: Incorrect API key provided."),
        (&["--api-key", "sk-chat", "--model-name", "gpt-9"], "error: the server has no model `gpt-9`, only `"),
        (&[], "error: an API key is required\nhint: give a key that the server accepts with `--api-key`"),
        (&["--api-key", "sk-chat", "--temperature", "9"], "error: `temperature` must be"),
        (
            &["--api-key", "sk-chat", "--set", "temprature=1"],
            "no parameter `temprature`\nhint: did you mean `temperature`? Its",
        ),
        (&["--api-key", "sk-chat", "--set", "top_k=a"], "error: `top_k` must be a whole number from -1, got `a`"),
    ] {
        let output = ask("the hand", &[&["--url", &url], args].concat(), &[]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(message) && !stderr(&output).contains("sk-"), "{}", stderr(&output));
    }
    let tls = url.replace("http", "https");
    let output = ask("x", &["--url", &tls], &[]);
    assert!(
        stderr(&output).contains("does not speak TLS at this port\nhint: if it speaks plain HTTP, "),
        "{}",
        stderr(&output)
    );
    served.stop();
}

#[test]
fn chat_without_a_model_uses_the_bundled_one() {
    let greedy = ["--device", "cpu", "--temperature", "0"];
    let name = answer("What is your name?\n", &greedy);
    assert!(name.contains("Hearth"), "{name}");
    let story = answer("Tell me a story about a brave fox.\n", &greedy);
    assert!(story.contains("fox") && story.split_whitespace().count() > 50, "{story}");
    // The model ended the story itself, long before the end of its context.
    assert!(story.split_whitespace().count() < 250 && story.trim_end().ends_with(['.', '!', '"']), "{story}");
}

#[test]
#[cfg(unix)]
fn chat_accepts_a_tls_server_only_with_its_certificate() {
    let dir = chat_model_dir();
    let files = ["cert.pem", "key.pem", "other-cert.pem"].map(tls_file);
    let [certificate, key, other] = files.each_ref().map(|file| path(file));
    let served = Served::start(&dir, &["--tls-cert", certificate, "--tls-key", key]);
    let url = format!("https://127.0.0.1:{}", served.port);
    answer("the hand", &["--url", &url, "--tls-cert", certificate, "--max-tokens", "3"]);
    let plain = url.replace("https", "http");
    for (args, message) in [
        (
            &["--url", &url, "--tls-cert", other][..],
            "`--tls-cert` must be the certificate that the server uses, and it uses",
        ),
        (
            &["--url", &url],
            "vouches for the server's certificate\nhint: `--tls-cert FILE` accepts exactly the certificate in",
        ),
        (
            &["--url", &plain],
            "the response is not HTTP/1.1\nhint: the address of a server with TLS begins with `https://`",
        ),
    ] {
        let output = ask("the hand", args, &[]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
        let is_refused = stderr(&output).contains(&format!("cannot speak TLS with `{url}`: "));
        assert_eq!(is_refused, args.contains(&url.as_str()), "{}", stderr(&output));
    }
    served.stop();
}

#[test]
fn chat_rejects_unusable_models_urls_and_settings_at_start() {
    let dir = model_dir();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{free}");
    for (args, message, code) in [
        (&["--model", path(dir.path()), "--device", "cpu"][..], "has no chat template, so it cannot answer\nhint: ", 1),
        (&["--url", &nobody], "hint: is the server running?", 1),
        (&["--url", "localhost:80"], "`--url` must be the address of a server, got `localhost:80`", 1),
        (&["--url", "http://x", "--tls-cert", "y"], "`--tls-cert` requires a `--url` with https", 1),
        (&["--url", "http://x", "--model", "y"], "'--url <URL>' cannot be used with '--model", 2),
        (&["--url", "http://x", "--precision", "bf16"], "'--url <URL>' cannot be used with '--precision", 2),
        (&["--url", "http://x", "--max-seq-len", "9"], "'--url <URL>' cannot be used with '--max-seq-len", 2),
        (&["--model-name", "x"], "--url <URL>", 2),
        (&["--set", "messages=1"], "`messages` cannot be set", 2),
        (&["--set", "="], "must be `NAME VALUE`", 2),
    ] {
        let output = ask("x", args, &[]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(code), ""), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{args:?}: {}", stderr(&output));
    }
    let output = ask(" \n", &["--model", path(dir.path())], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("standard input is empty\nhint: "), "{}", stderr(&output));
}

/// The program on a pseudo-terminal of util-linux's `script`.
#[cfg(target_os = "linux")]
struct Terminal {
    child: Child,
    keys: Arc<Mutex<ChildStdin>>,
    shown: Arc<(Mutex<Vec<u8>>, Condvar)>,
    /// Number of bytes of the output that were already searched.
    seen: usize,
}

#[cfg(target_os = "linux")]
impl Terminal {
    fn start(home: &Path, args: &[&str]) -> Terminal {
        let plain = hearth(&[]);
        let quoted: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
        let line = format!("stty rows 40 cols 200; exec '{}' {}", plain.get_program().display(), quoted.join(" "));
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]);
        for (name, value) in plain.get_envs().filter(|(_, value)| value.is_none()) {
            let _ = value;
            command.env_remove(name);
        }
        command.env("XDG_STATE_HOME", home).env("TERM", "xterm").env_remove("NO_COLOR").current_dir(home);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let keys = Arc::new(Mutex::new(child.stdin.take().unwrap()));
        let shown = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let (mut output, for_thread, to_answer) = (child.stdout.take().unwrap(), Arc::clone(&shown), Arc::clone(&keys));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                // The line editor asks for the cursor position; answer as a terminal does.
                for _ in bytes[..n].windows(4).filter(|window| window == b"\x1b[6n") {
                    let _ = to_answer.lock().unwrap().write_all(b"\x1b[1;1R");
                }
                for_thread.0.lock().unwrap().extend(&bytes[..n]);
                for_thread.1.notify_all();
            }
        });
        Terminal { child, keys, shown, seen: 0 }
    }

    fn press(&self, keys: &str) {
        self.keys.lock().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the editor reads a line. It repaints its prompt at every key, but enables pasting once a line.
    fn wait_for_prompt(&mut self) {
        self.wait_for("\x1b[?2004h");
        self.wait_for(">>> ");
    }

    fn enter(&mut self, line: &str) {
        self.wait_for_prompt();
        self.press(&format!("{line}\r"));
    }

    /// Waits for `part`, and returns what was shown up to its end since the last call.
    fn wait_for(&mut self, part: &str) -> String {
        let (shown, changed) = &*self.shown;
        let seen = self.seen;
        let find = |shown: &[u8]| {
            shown[seen..]
                .windows(part.len())
                .position(|window| window == part.as_bytes())
                .map(|at| seen + at + part.len())
        };
        let waited = changed.wait_timeout_while(shown.lock().unwrap(), TEST_TIMEOUT, |shown| find(shown).is_none());
        let shown = waited.unwrap().0;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let end = find(&shown).unwrap_or_else(|| panic!("no `{part}` in {:?}", text(&shown[seen..])));
        self.seen = end;
        text(&shown[seen..end])
    }
}

#[cfg(target_os = "linux")]
impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether `script` is installed, which provides the pseudo-terminal.
#[cfg(target_os = "linux")]
fn has_terminals() -> bool {
    let has_script = Command::new("script").arg("--version").output().is_ok();
    if !has_script {
        println!("skipped: there is no `script`, of util-linux");
    }
    has_script
}

/// A server that lists its models once, and then accepts one more request, which it does not answer. The channel reports
/// that request. The connections stay open until the thread is joined.
#[cfg(target_os = "linux")]
fn server_that_stalls() -> (String, mpsc::Receiver<()>, thread::JoinHandle<[TcpStream; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stalls, is_stalled) = mpsc::channel();
    let server = thread::spawn(move || {
        let accept = || {
            let (stream, _) = listener.accept().unwrap();
            let mut head = BufReader::new(&stream).lines().map(Result::unwrap);
            assert!(head.any(|line| line.is_empty()));
            drop(head);
            stream
        };
        let mut answered = accept();
        let list = r#"{"data": [{"id": "one"}]}"#;
        write!(answered, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{list}", list.len()).unwrap();
        let stalled = accept();
        stalls.send(()).unwrap();
        [answered, stalled]
    });
    (url, is_stalled, server)
}

#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_cancels_listing_models_without_ending_chat() {
    if !has_terminals() {
        return;
    }
    let (url, is_stalled, server) = server_that_stalls();
    let home = TempDir::new().unwrap();
    let mut terminal = Terminal::start(home.path(), &["chat", "--url", &url]);
    terminal.wait_for("chat with `one`");
    terminal.enter("/model");
    is_stalled.recv_timeout(TEST_TIMEOUT).unwrap();
    terminal.press("\x03");
    terminal.wait_for("error: stopped");
    terminal.wait_for_prompt();
    terminal.press("\x04");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
    drop(server.join().unwrap());
}

#[test]
#[cfg(target_os = "linux")]
fn interactive_chat_handles_commands_ctrl_c_and_history() {
    if !has_terminals() {
        return;
    }
    let (dir, home) = (chat_model_dir(), TempDir::new().unwrap());
    let args = ["chat", "--model", path(dir.path()), "--device", "cpu", "--temperature", "0"];
    let mut terminal = Terminal::start(home.path(), &[&args[..], &["--set", "ignore_eos=true"]].concat());
    terminal.wait_for("/help lists commands, ctrl-c stops an answer, ctrl-d leaves");
    terminal.enter("/help");
    terminal.wait_for("/set [NAME [VALUE]]");
    // Ctrl-C stops an answer of thousands of tokens, and not the program.
    terminal.enter("the hand");
    terminal.wait_for("\x1b[?2004l");
    thread::sleep(Duration::from_millis(300));
    terminal.press("\x03");
    terminal.wait_for("stopped");
    terminal.wait_for_prompt();
    terminal.press("\x03");
    terminal.wait_for("ctrl-d or /quit leaves");
    terminal.enter("/clear");
    terminal.enter("/set max_tokens 4");
    terminal.enter("/system and");
    terminal.enter("in \\\rthe hand");
    terminal.wait_for("the answer ends here because of `max_tokens`");
    terminal.enter("/save first.json");
    terminal.enter("/regen");
    terminal.enter("/save again.json");
    terminal.enter("/sing");
    terminal.wait_for("there is no command `/sing`");
    // Names and values are checked at once.
    terminal.enter("/set temperature 9");
    terminal.wait_for("error: `temperature` must be a number from 0 to 2, got `9`");
    terminal.enter("/set temprature 1");
    terminal.wait_for("did you mean `temperature`?");
    terminal.enter("/set temperature");
    terminal.enter("/set");
    terminal.wait_for("ignore_eos true");
    terminal.enter("/load first.json");
    terminal.wait_for("loaded 2 messages from `first.json`");
    terminal.enter("/model");
    terminal.wait_for(&format!("* {}", dir.path().file_name().unwrap().to_str().unwrap()));
    terminal.wait_for_prompt();
    terminal.press("\x04");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));

    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(home.path().join(name)).unwrap()).unwrap() };
    let saved = read("first.json");
    assert_eq!((&saved["format"], &saved["version"]), (&json!("hearth-conversations"), &json!(1)));
    let conversation = &saved["conversations"][0];
    let messages = conversation["messages"].as_array().unwrap();
    assert_eq!(messages[0], json!({ "role": "user", "content": "in \nthe hand" }));
    assert_eq!((messages.len(), &messages[1]["role"]), (2, &json!("assistant")));
    let parameters = json!({ "temperature": 0.0, "ignore_eos": true, "max_tokens": 4 });
    assert_eq!(conversation["settings"], json!({ "parameters": parameters, "system": "and" }));
    assert_eq!(read("again.json"), saved, "temperature 0 gives the same answer again");
    // The history is saved, readable by its owner only.
    let history = home.path().join("hearth/chat-history");
    assert!(fs::read_to_string(&history).unwrap().contains("the hand"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(history).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}
