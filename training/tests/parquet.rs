//! Parquet files as pyarrow writes them (`golden/parquet/make.py`), through the reader that `prepare` and `tokenizer` use.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use hearth_model::text::{chat::ChatTemplate, tokenizer::Tokenizer};
use hearth_training::data::{
    corpus::{
        BytesRead, Cutting, DocumentChunk, Marks, Notes, Origin, ReadOptions, Record, RecordOptions, list_files,
        read_documents, read_records,
    },
    examples::{self, ExampleEncoder, ExampleSettings, TooLong},
};
use serde_json::{Map, Value, json};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet").join(name)
}

fn read(path: &Path, column: &str) -> Result<Vec<String>> {
    let options = ReadOptions {
        text_field: column.to_owned(),
        separator: None,
        marks: Marks::default(),
        cutting: Cutting::Whole,
    };
    let mut texts = Vec::new();
    let mut sink = |piece: DocumentChunk| {
        texts.push(piece.text);
        Ok(())
    };
    read_documents(&list_files(path)?[0], &options, &BytesRead::default(), &mut Notes::default(), &mut sink)?;
    Ok(texts)
}

/// The documents of the script's rows: those with a text that is not empty.
fn expected(is_optional: bool) -> Vec<String> {
    let rows = (0..60).filter(|row| !is_optional || row % 7 > 0);
    let text =
        |row: usize| format!("row {} é日 ", row % 20).repeat(row % 5) + if row.is_multiple_of(3) { "" } else { "\n" };
    rows.map(text).filter(|text| !text.is_empty()).collect()
}

#[test]
fn parquet_texts_are_read_in_the_encodings_and_codecs_of_pyarrow() {
    for name in
        ["snappy", "gzip-v2", "zstd-plain-v2", "lz4", "none-checksums", "delta-length-byte-array", "delta-byte-array"]
    {
        let found = read(&golden(&format!("{name}.parquet")), "text");
        assert_eq!(found.map_err(|error| error.to_string()), Ok(expected(true)), "{name}");
    }
    assert_eq!(read(&golden("snappy-required.parquet"), "text").unwrap(), expected(false));
}

#[test]
fn parquet_reader_rejects_brotli_and_columns_that_are_not_text() {
    let refuse = |name: &str, column: &str| read(&golden(name), column).unwrap_err().to_string();
    for (name, column, message) in [
        ("brotli.parquet", "text", "brotli: this compression is not supported"),
        ("snappy.parquet", "body", "no column `body`; it has: `meta`, `id`, `text`"),
        ("snappy.parquet", "id", "column `id` is not text"),
        ("snappy.parquet", "meta", "column `meta` is not text"),
    ] {
        let error = refuse(name, column);
        assert!(error.contains(message) && error.contains(name) && error.contains("\nhint: "), "{error}");
    }
}

fn read_messages(path: &Path) -> Result<Vec<Map<String, Value>>> {
    let options = RecordOptions {
        members: &["messages", "prompt"],
        text_member: "text",
        expected: "an object",
        marks: &Marks::default(),
    };
    let mut rows = Vec::new();
    let mut sink = |record: Record| {
        assert_eq!(record.place, format!("row {}", rows.len()));
        rows.push(record.members);
        Ok(())
    };
    read_records(&list_files(path)?[0], options, &BytesRead::default(), &mut Notes::default(), &mut sink)?;
    Ok(rows)
}

#[test]
fn parquet_nested_columns_have_the_values_of_jsonl_lines() {
    let message = |row: usize, n: usize| match n {
        2 => json!({ "role": "user" }),
        _ => json!({ "role": if n == 0 { "user" } else { "assistant" }, "content": format!("{row}.{n}") }),
    };
    let rows = (0..60).map(|row: usize| match (row % 4, row % 5) {
        (0, _) | (_, 4) => Map::new(),
        (n, _) => Map::from_iter([("messages".to_owned(), (0..n).map(|n| message(row, n)).collect())]),
    });
    let rows: Vec<Map<String, Value>> = rows.collect();
    for name in ["messages.parquet", "messages-v2.parquet"] {
        assert_eq!(read_messages(&golden(name)).map_err(|error| error.to_string()), Ok(rows.clone()), "{name}");
    }
    let of_lists = Map::from_iter([("messages".to_owned(), json!({ "role": ["user"], "content": ["Hi"] }))]);
    assert_eq!(read_messages(&golden("object-of-lists.parquet")).unwrap(), [of_lists]);
    let error = read_messages(&golden("snappy.parquet")).unwrap_err().to_string();
    assert!(error.contains("has none of the columns `messages`, `prompt`; it has: `meta`, `id`, `text`"), "{error}");
    let mut weighted = json!([{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Ho" }]);
    weighted[1]["weight"] = json!(0);
    let expected = Map::from_iter([("messages".to_owned(), weighted)]);
    assert_eq!(read_messages(&golden("weights.parquet")).unwrap(), [expected]);
    let messages = json!([{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Ho" }]);
    let expected = Map::from_iter([("messages".to_owned(), messages)]);
    assert_eq!(read_messages(&golden("null-weights.parquet")).unwrap(), [expected]);
    let marks = Marks::default();
    let options = RecordOptions { members: &["meta"], text_member: "text", expected: "an object", marks: &marks };
    let file = &list_files(&golden("snappy.parquet")).unwrap()[0];
    let mut metas = Vec::new();
    let mut sink = |record: Record| {
        metas.push(record.members["meta"].clone());
        Ok(())
    };
    read_records(file, options, &BytesRead::default(), &mut Notes::default(), &mut sink).unwrap();
    assert_eq!(metas, (0..60).map(|row| json!({ "text": row, "tags": ["a", "b"] })).collect::<Vec<_>>());
}

#[test]
fn parquet_lists_of_texts_and_of_numbers_are_read() {
    let marks = Marks::default();
    let options = RecordOptions { members: &["messages"], text_member: "text", expected: "an object", marks: &marks };
    let file = &list_files(&golden("texts.parquet")).unwrap()[0];
    let mut rows = Vec::new();
    let mut sink = |record: Record| {
        rows.push(record.members.get("messages").cloned());
        Ok(())
    };
    read_records(file, options, &BytesRead::default(), &mut Notes::default(), &mut sink).unwrap();
    let text = |row: usize, n: usize| (n != 1 || !row.is_multiple_of(5)).then(|| format!("{row}.{n}"));
    let list = |row: usize| (0..row % 3).map(|n| json!(text(row, n))).collect::<Value>();
    // An empty list counts as missing.
    let expected = (0..60).map(|row: usize| (row % 4 != 3 && !row.is_multiple_of(3)).then(|| list(row)));
    assert_eq!(rows, expected.collect::<Vec<_>>());
    let options = RecordOptions { members: &["prompt"], ..options };
    let mut rows = Vec::new();
    let mut sink = |record: Record| {
        rows.push(record.members["prompt"].clone());
        Ok(())
    };
    read_records(file, options, &BytesRead::default(), &mut Notes::default(), &mut sink).unwrap();
    assert_eq!(rows, (0..60).map(|row| json!([row])).collect::<Vec<_>>());
}

#[test]
fn parquet_examples_equal_those_of_the_same_jsonl_lines() {
    let tokenizer = golden("../masks/tokenizer");
    let tokenizer = Tokenizer::from_dir(&tokenizer).unwrap();
    let encoder = ExampleEncoder::new(&tokenizer, None, &[tokenizer.eos().unwrap().id]);
    let settings =
        ExampleSettings { max_len: 100, too_long: TooLong::Refuse, text_field: "text".into(), validation: Vec::new() };
    let read = |path: PathBuf| {
        let found = examples::read(&[Origin::Path(path)], &encoder, &settings, &mut |_| {}).unwrap();
        found.examples.into_iter().map(|example| (example.ids, example.trained)).collect::<Vec<_>>()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keep.jsonl");
    fs::write(&path, "{\"text\": \"What is it?\"}\n{\"keep\": \"It is a lamp.\"}\n").unwrap();
    let found = read(golden("keep.parquet"));
    assert_eq!(found, read(path));
    assert!(found[0].1.contains(&true) && !found[1].1.contains(&true), "{found:?}");
    // Columns that are null in all rows.
    let path = dir.path().join("nulls.jsonl");
    fs::write(&path, "{\"text\": \"What is it?\", \"keep\": null}\n{\"text\": \"It is a lamp.\", \"tools\": null}\n")
        .unwrap();
    assert_eq!(read(golden("nulls.parquet")), read(path));
}

/// Leaving out a flag that says what is trained would train something else.
#[test]
fn parquet_flags_that_say_what_is_trained_count_as_in_jsonl() {
    let tokenizer = Tokenizer::from_dir(&golden("../masks/tokenizer")).unwrap();
    let template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
    let template = ChatTemplate::new(template, Path::new("chat_template.jinja")).unwrap();
    let encoder = ExampleEncoder::new(&tokenizer, Some(&template), &[tokenizer.eos().unwrap().id]);
    let settings =
        ExampleSettings { max_len: 100, too_long: TooLong::Refuse, text_field: "text".into(), validation: Vec::new() };
    let dir = tempfile::tempdir().unwrap();
    let hi = r#"{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho""#;
    for (name, line, message) in [
        ("loss", format!(r#"{{"messages": [{hi}, "loss": false}}]}}"#), "nothing of it would be trained"),
        ("weights", format!(r#"{{"messages": [{hi}, "weight": 0}}]}}"#), "nothing of it would be trained"),
        ("kto", r#"{"prompt": "Hi", "completion": "Ho", "label": false}"#.to_owned(), "`label` is `false`"),
    ] {
        let json = dir.path().join(format!("{name}.jsonl"));
        fs::write(&json, line + "\n").unwrap();
        let [json, parquet] = [json, golden(&format!("{name}.parquet"))].map(|path| {
            let error = examples::read(&[Origin::Path(path.clone())], &encoder, &settings, &mut |_| {}).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(message) && error.contains("\nhint: "), "{error}");
            error.replace(&path.display().to_string(), "FILE")
        });
        assert_eq!(parquet, json.replace("line 1", "row 0"), "{name}");
    }
}

#[test]
fn parquet_list_errors_after_bit_flips_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.parquet");
    let bytes = fs::read(golden("messages.parquet")).unwrap();
    for at in (0..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, &damaged).unwrap();
        if let Err(error) = read_messages(&path) {
            assert!(format!("{error:#}").contains("damaged.parquet"), "byte {at}: {error:#}");
        }
    }
}

/// Truncated files are rejected. A flipped bit may go unnoticed, but causes no panic, and an error names the file.
#[test]
fn parquet_errors_after_truncation_or_bit_flips_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.parquet");
    for name in ["snappy", "gzip-v2", "zstd-plain-v2", "delta-length-byte-array", "delta-byte-array", "none-checksums"]
    {
        let whole = fs::read(golden(&format!("{name}.parquet"))).unwrap();
        for n_bytes in [0, 3, 11, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..n_bytes]).unwrap();
            let error = read(&path, "text").unwrap_err().to_string();
            assert!(error.contains("damaged.parquet") && error.contains("hint: "), "{name} cut at {n_bytes}: {error}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).unwrap();
            if let Err(error) = read(&path, "text") {
                assert!(error.to_string().contains("damaged.parquet"), "{name}, byte {at}: {error}");
            }
        }
    }
}

#[test]
fn parquet_page_with_a_wrong_checksum_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.parquet");
    let mut bytes = fs::read(golden("none-checksums.parquet")).unwrap();
    let needle = "row 3 é日 ".as_bytes();
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    bytes[at + 4] = b'4';
    fs::write(&path, &bytes).unwrap();
    let error = read(&path, "text").unwrap_err().to_string();
    assert!(error.contains("checksum") && error.contains("row group 0"), "{error}");
}
