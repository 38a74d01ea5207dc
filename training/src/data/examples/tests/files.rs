//! Files and folders of examples and of pairs.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use serde_json::json;

use super::*;

#[test]
fn tables_as_text_and_json_under_another_name_are_read_as_examples() {
    let dir = tempfile::tempdir().unwrap();
    let start = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Yes, I do<|im_end|>\n»";
    for (name, text) in [
        ("alpaca.csv", "instruction,input,output\n\"Hi\",\"\",\"Yes, I do\"\n"),
        ("pairs.tsv", "question\tanswer\nHi\tYes, I do\n"),
        ("lines.txt", "{\"instruction\": \"Hi\", \"output\": \"Yes, I do\"}\n"),
        (
            "lines",
            "\n{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yes, I do\"}]}\n",
        ),
        ("array.data", "[\n{\"query\": \"Hi\", \"response\": \"Yes, I do\"}]"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let found = read(&[Origin::Path(path)], &encoder(CHATML), &settings(), &mut |_| {}).unwrap();
        assert_eq!(found.examples.iter().map(marked).collect::<Vec<_>>(), [start], "{name}");
    }
    let path = dir.path().join("short.csv");
    fs::write(&path, "prompt,completion\na,b\nc\n").unwrap();
    let error = read(&[Origin::Path(path)], &encoder(CHATML), &settings(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("short.csv`, line 3: the row has 1 values"), "{error}");
}

#[test]
fn examples_of_a_folder_are_split_by_the_names_of_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let line = |text: &str| json!({ "text": text }).to_string();
    for (name, text) in [
        ("train.jsonl", line("a")),
        ("dev/0.jsonl", line("b")),
        ("test.jsonl", line("c")),
        ("notes.txt", "d".into()),
        ("more.csv", "text\ne\n".into()),
    ] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let texts = |examples: &[Example]| examples.iter().map(marked).collect::<Vec<_>>();
    let folder = Origin::Path(dir.path().into());
    let found = read(std::slice::from_ref(&folder), &encoder(CHATML), &settings(), &mut |_| {}).unwrap();
    assert_eq!(
        (texts(&found.examples), texts(&found.val)),
        (vec!["«<s>e</s>»".into(), "«<s>a</s>»".into()], vec!["«<s>b</s>»".into()])
    );
    let left_out: Vec<_> = found.left_out.iter().map(|one| (one.name.as_str(), one.why)).collect();
    let [(test, WhyLeftOut::ForTests), (notes, WhyLeftOut::NotExamples)] = left_out[..] else {
        unreachable!("{left_out:?}")
    };
    assert!(test == "test.jsonl" && notes.ends_with("notes.txt"), "{left_out:?}");
    // Sources for validation: a file as it is, or the validation files of a folder.
    let train = [Origin::Path(dir.path().join("train.jsonl"))];
    for (source, expected) in [(Origin::Path(dir.path().join("test.jsonl")), "«<s>c</s>»"), (folder, "«<s>b</s>»")]
    {
        let settings = ExampleSettings { validation: vec![source], ..settings() };
        let found = read(&train, &encoder(CHATML), &settings, &mut |_| {}).unwrap();
        assert_eq!((texts(&found.examples), texts(&found.val)), (vec!["«<s>a</s>»".into()], vec![expected.into()]));
    }
    // Validation sources replace the folder's validation files, and are not trained on: here only the table is trained
    // on.
    let folder = Origin::Path(dir.path().into());
    let validation = ["test.jsonl", "train.jsonl"].map(|name| Origin::Path(dir.path().join(name)));
    let only = ExampleSettings { validation: validation.into(), ..settings() };
    let found = read(std::slice::from_ref(&folder), &encoder(CHATML), &only, &mut |_| {}).unwrap();
    assert_eq!(
        (texts(&found.examples), texts(&found.val)),
        (vec!["«<s>e</s>»".into()], vec!["«<s>c</s>»".into(), "«<s>a</s>»".into()])
    );
    let left_out: Vec<_> = found.left_out.iter().map(|one| (one.name.as_str(), one.why)).collect();
    assert!(left_out.contains(&("dev/0.jsonl", WhyLeftOut::Replaced)) && left_out.len() == 2, "{left_out:?}");
    // A file that is named is trained on, and its name is remarked upon.
    let found =
        read(&[Origin::Path(dir.path().join("test.jsonl"))], &encoder(CHATML), &settings(), &mut |_| {}).unwrap();
    assert!(found.notes.lines()[0].contains("its name says `test`"), "{:?}", found.notes);
    fs::remove_file(dir.path().join("train.jsonl")).unwrap();
    fs::remove_file(dir.path().join("more.csv")).unwrap();
    fs::remove_file(dir.path().join("notes.txt")).unwrap();
    let error =
        read(&[Origin::Path(dir.path().into())], &encoder(CHATML), &settings(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("has no files to train on") && error.contains("\nhint: "), "{error}");
}

#[test]
fn pairs_without_a_difference_are_left_out_and_said() {
    let pair = |chosen: &str, rejected: &str| {
        let says = |text: &str| json!([{ "role": "assistant", "content": text }]);
        json!({ "prompt": [{ "role": "user", "content": "Hi" }], "chosen": says(chosen), "rejected": says(rejected) })
    };
    let long = "user ".repeat(40);
    let lines = [pair("Yes", "No"), pair("Yes", "Yes"), pair(&format!("{long}a"), &format!("{long}b"))];
    let dir = tempfile::tempdir().unwrap();
    let settings = ExampleSettings { max_len: 30, too_long: TooLong::Cut, ..settings() };
    let found = read_preferences(&file(dir.path(), &lines), &encoder(CHATML), &settings, &mut |_| {}).unwrap();
    assert_eq!((found.examples.len(), found.n_same, found.n_cut), (1, 2, 0));
    let said = found.notes.lines();
    assert!(said[0].contains("line 2: `chosen` and `rejected` are the same"), "{said:?}");
    assert!(said[1].contains("line 3: cut, `chosen` and `rejected` are the same"), "{said:?}");
    let question = json!({ "question": "Hi", "system": "S", "chosen": "Yes", "rejected": "No" });
    let found = read_preferences(&file(dir.path(), &[question]), &encoder(CHATML), &settings, &mut |_| {}).unwrap();
    assert!(marked(&found.examples[0].chosen).starts_with("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi"));
    let kto = json!({ "prompt": "Hi", "completion": "Yes", "label": true });
    let error = read_preferences(&file(dir.path(), &[kto]), &encoder(CHATML), &settings, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("KTO's layout"), "{error}");
}

#[test]
fn examples_are_read_from_jsonl_json_and_text_files_and_folders() {
    let dir = tempfile::tempdir().unwrap();
    let line = |text: &str| format!("{}\n", json!({ "text": text }));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(line("a").as_bytes()).unwrap();
    fs::write(dir.path().join("a.jsonl.gz"), gzip.finish().unwrap()).unwrap();
    fs::write(dir.path().join("b.json"), format!("[{},{}]", line("b"), line("c"))).unwrap();
    fs::write(dir.path().join("README.md"), "about").unwrap();
    let golden = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet").join(name);
    fs::copy(golden("snappy-required.parquet"), dir.path().join("c.parquet")).unwrap();
    let read = |path: PathBuf| read(&[Origin::Path(path)], &encoder(CHATML), &settings(), &mut |_| {});
    let error = read(dir.path().into()).unwrap_err().to_string();
    assert!(error.contains("c.parquet`, row 0: `text` is empty"), "{error}");
    fs::remove_file(dir.path().join("c.parquet")).unwrap();
    let found = read(dir.path().into()).unwrap();
    let texts: Vec<String> = found.examples.iter().map(marked).collect();
    assert_eq!(texts, ["«<s>a</s>»", "«<s>b</s>»", "«<s>c</s>»"]);
    assert!(found.examples[2].origin.ends_with("b.json`, element 2"), "{}", found.examples[2].origin);
    assert_eq!(marked(&read(dir.path().join("README.md")).unwrap().examples[0]), "«<s>about</s>»");
    // Row 0 of this file has no messages.
    let error = read(golden("messages.parquet")).unwrap_err().to_string();
    assert!(error.contains("messages.parquet`, row 0: there is no example, only an empty object"), "{error}");
    let error = read(golden("brotli.parquet")).unwrap_err().to_string();
    assert!(error.contains("brotli.parquet`") && error.contains("compression is not supported"), "{error}");
}

#[test]
fn preference_pairs_of_every_form_share_their_prompt() {
    let user = json!({ "role": "user", "content": "Hi" });
    let says = |text: &str| json!({ "role": "assistant", "content": text });
    let lines = [
        json!({ "prompt": [user], "chosen": [says("Yes")], "rejected": [says("No")] }),
        json!({ "messages": [user], "chosen": says("Yes"), "rejected": "No" }),
        json!({ "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
        json!({ "prompt": [user, says("A"), user], "chosen": [says("Yes")], "rejected": [says("No")] }),
        json!({ "prompt": "Hi", "chosen": " Yes", "rejected": " No" }),
        // As in UltraFeedback: the prompt also as text, and `messages` repeats the chosen conversation.
        json!({ "prompt": "Hi", "messages": [user, says("Yes")], "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
        json!({ "messages": [user, says("Yes")], "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
        json!({ "prompt": [user], "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
        json!({ "prompt": "Hi", "chosen": [says("Yes")], "rejected": [says("No")] }),
        json!({ "prompt": [{ "role": "user", "content": "Hi" }], "chosen": [user, says("Yes")], "rejected": says("No") }),
    ];
    let dir = tempfile::tempdir().unwrap();
    let read = |lines: &[Value]| read_preferences(&file(dir.path(), lines), &encoder(CHATML), &settings(), &mut |_| {});
    let found = read(&lines).unwrap().examples;
    let start = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    for pair in found[..3].iter().chain(&found[5..]) {
        assert_eq!(marked(&pair.chosen), format!("{start}«Yes<|im_end|>\n»"));
        assert_eq!(marked(&pair.rejected), format!("{start}«No<|im_end|>\n»"));
    }
    assert_eq!(marked(&found[3].chosen), format!("{start}A<|im_end|>\n{start}«Yes<|im_end|>\n»"));
    assert_eq!(
        (marked(&found[4].chosen), marked(&found[4].rejected)),
        ("<s>Hi« Yes</s>»".into(), "<s>Hi« No</s>»".into())
    );
    for (line, message) in [
        (json!({ "chosen": "a", "rejected": "b" }), "but there is no `prompt`"),
        (json!({ "prompt": "a", "chosen": "b" }), "there is no `rejected`, only `prompt`, `chosen`"),
        (
            json!({ "prompt": "a", "chosen": "b", "rejected": [says("c")] }),
            "`prompt` and `rejected` are of different kinds",
        ),
        (
            json!({ "prompt": [user], "chosen": [user], "rejected": [user] }),
            "`chosen` has only the messages of `prompt`",
        ),
        (
            json!({ "prompt": "Ho", "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
            "`chosen` and `rejected` do not begin with the `prompt` \"Ho\"",
        ),
        (
            json!({ "prompt": [says("Ho"), user], "chosen": [user, says("Yes")], "rejected": [user, says("No")] }),
            "`chosen` begins with a message of `user`, but not with those of `prompt`",
        ),
        (
            json!({ "prompt": [user], "chosen": [says("a")], "rejected": "a".repeat(5000) }),
            "line 2, `rejected`: it has ",
        ),
    ] {
        let error = read(&[lines[0].clone(), line]).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("line 2") && error.contains("\nhint: "), "{error}");
    }
}
