//! Prepared data: the same tokens in any number of shards, and damaged or foreign files are rejected.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use hearth_training::data::{
    corpus::{Origin, SourceSpec},
    prepare::{PrepareSettings, SplitBy, StoppingStrategy, prepare},
    shard::{Dataset, Split},
};

use crate::data::{Files, document, succeed};

fn settings(source: &str, tokenizer: &str, out: &str, shard_tokens: u64) -> PrepareSettings {
    PrepareSettings {
        sources: vec![SourceSpec { origin: Origin::Path(source.into()), weight: None }],
        validation: Vec::new(),
        tokenizer: tokenizer.into(),
        out: out.into(),
        split: Some(SplitBy::Tail),
        val_fraction: None,
        text_field: "text".into(),
        separator: None,
        stopping: StoppingStrategy::default(),
        shard_tokens,
    }
}

#[test]
fn dataset_of_many_shards_reads_the_same_tokens_as_one_shard() {
    let files = Files::new();
    let tokenizer = files.tokenizer();
    let text = files.write("text.txt", (0..100).map(document).collect::<String>());
    let open = |name: &str, shard_tokens| {
        let settings = settings(&text, &tokenizer, &files.name(name), shard_tokens);
        prepare(&settings, &mut |_| {}).unwrap();
        Dataset::open(&files.path(name)).unwrap()
    };
    let (one, many) = (open("one", 1 << 20), open("many", 97));
    assert_eq!(one.manifest().train.shards.len(), 1);
    assert!(many.manifest().train.shards.len() > 10);
    let (one, many) = (one.split(Split::Train), many.split(Split::Train));
    assert_eq!(one.to_vec(), many.to_vec());
    let mut rows = ([0; 200], [0; 200]);
    for start in 0..one.len() - 200 {
        one.read(start, &mut rows.0);
        many.read(start, &mut rows.1);
        assert_eq!(rows.0, rows.1);
    }
    // The hash depends on the tokens and on their division into shards.
    assert_ne!(Dataset::open(&files.path("one")).unwrap().hash(), Dataset::open(&files.path("many")).unwrap().hash());
    assert_eq!(open("again", 97).hash(), Dataset::open(&files.path("many")).unwrap().hash());
}

/// Files of a data set are damaged, removed, or replaced by those of another; the error says what is wrong.
#[test]
fn dataset_open_rejects_damaged_foreign_and_missing_files() {
    let files = Files::new();
    let tokenizer = files.tokenizer();
    let text = files.write("text.txt", (0..100).map(document).collect::<String>());
    let (data, other) = (files.path("data"), files.path("other"));
    prepare(&settings(&text, &tokenizer, data.to_str().unwrap(), 500), &mut |_| {}).unwrap();
    let chars = files.name("chars");
    succeed(&["tokenizer", &text, "--out", &chars, "--chars"]);
    prepare(&settings(&text, &chars, other.to_str().unwrap(), 500), &mut |_| {}).unwrap();

    let shard = "train-00001.tokens";
    let whole = fs::read(data.join(shard)).unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let manifest = fs::read_to_string(data.join("data.json")).unwrap();
    let cases: [(&str, Option<Vec<u8>>, &str); 13] = [
        (shard, None, shard),
        (shard, Some(whole[..50].to_vec()), "truncated"),
        (shard, Some(whole[..whole.len() - 2].to_vec()), "truncated"),
        (shard, Some([&whole[..], &[0, 0]].concat()), "damaged"),
        (shard, Some(flipped(0)), "is not a token shard"),
        (shard, Some(flipped(8)), "version 0 of the shard format, expected 1"),
        (shard, Some(flipped(40)), "another tokenizer"),
        (shard, Some(flipped(200)), "is damaged: its contents have the checksum"),
        (shard, Some(fs::read(data.join("train-00000.tokens")).unwrap()), "does not match"),
        (shard, Some(fs::read(other.join(shard)).unwrap()), "another tokenizer"),
        (
            "tokenizer/tokenizer.json",
            Some(fs::read(Path::new(&chars).join("tokenizer.json")).unwrap()),
            "is not the tokenizer",
        ),
        ("data.json", Some(manifest.replace("\"version\": 1", "\"version\": 9").into()), "version 9, expected 1"),
        ("data.json", Some(manifest.replacen("\"tokens\": 500", "\"tokens\": 501", 1).into()), "501"),
    ];
    Dataset::open(&data).unwrap();
    for (name, contents, message) in cases {
        let path = data.join(name);
        let before = fs::read(&path).unwrap();
        match &contents {
            Some(contents) => fs::write(&path, contents).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = format!("{:#}", Dataset::open(&data).unwrap_err());
        assert!(error.contains(message), "{name}, {message}: {error}");
        assert!(contents.is_none() || error.contains("\nhint: "), "{error}");
        fs::write(&path, before).unwrap();
    }
    Dataset::open(&data).unwrap();
    let error = Dataset::open(&files.path("nowhere")).unwrap_err().to_string();
    assert!(error.contains("no prepared data at") && error.contains("hearth-train prepare"), "{error}");
    let error = Dataset::open(Path::new(&tokenizer)).unwrap_err().to_string();
    assert!(error.contains("has no `data.json`"), "{error}");
}
