//! Models by name: which files are downloaded, what is in the cache, and what is removed.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use hearth_model::{
    hub::{
        Hub, HubModel, HubOptions, ModelPart, Sizes,
        inventory::{self, CachedFormat},
        removal::Removal,
    },
    weights::model_dir,
};
use tempfile::TempDir;

use crate::stand_in_hub::{COMMIT, HUGE, StandInHub, TOKEN, checksum};

const INDEX: &str =
    r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
const OTHER_COMMIT: &str = "89abcdef0123456789abcdef0123456789abcdef";

fn bytes(number: u8) -> Vec<u8> {
    vec![number; 5_000]
}

struct Case {
    server: StandInHub,
    cache: TempDir,
}

impl Case {
    fn new() -> Case {
        let server = StandInHub::new(&[
            (
                "models/org/sharded",
                &[
                    ("README.md", b"# A model"),
                    ("config.json", b"{}"),
                    ("model-00001-of-00002.safetensors", &bytes(1)),
                    ("model-00002-of-00002.safetensors", &bytes(2)),
                    ("model.safetensors.index.json", INDEX.as_bytes()),
                    ("original/consolidated.safetensors", &bytes(3)),
                    ("pytorch_model.bin", &bytes(4)),
                    ("tokenizer.json", b"{\"version\": 1}"),
                    ("tokenizer_config.json", b"{ }"),
                ],
            ),
            (
                "models/org/lacking",
                &[
                    ("config.json", b"{}"),
                    ("model.safetensors.index.json", INDEX.as_bytes()),
                    ("tokenizer.json", b"{}"),
                ],
            ),
            (
                "models/org/gguf",
                &[
                    ("README.md", b"# Files"),
                    ("m-Q4_K_M.gguf", &bytes(5)),
                    ("m-Q8_0-00001-of-00002.gguf", &bytes(6)),
                    ("m-Q8_0-00002-of-00002.gguf", &bytes(7)),
                ],
            ),
            ("models/org/huge", &[(HUGE, &bytes(8))]),
            ("models/gated/model", &[("m.gguf", &bytes(9))]),
        ]);
        Case { server, cache: TempDir::new().unwrap() }
    }

    fn options(&self) -> HubOptions {
        HubOptions {
            endpoint: self.server.url.clone(),
            token: None,
            cache: self.cache.path().to_owned(),
            is_offline: false,
            retry_delay: Duration::from_millis(1),
        }
    }

    fn open_part(&self, name: &str, part: ModelPart, options: HubOptions) -> Result<PathBuf, String> {
        let mut last = None;
        let hub = Hub::new(options).unwrap();
        let opened = HubModel::parse(name).unwrap().open(&hub, part, &mut |download| last = Some(download));
        if let (Ok(_), Some(last)) = (&opened, last) {
            assert_eq!((last.name.as_str(), last.bytes), (name, last.bytes_total));
        }
        opened.map_err(|error| error.to_string())
    }

    fn open(&self, name: &str) -> Result<PathBuf, String> {
        self.open_part(name, ModelPart::Whole, self.options())
    }

    fn offline(&self, name: &str) -> Result<PathBuf, String> {
        self.open_part(name, ModelPart::Whole, HubOptions { is_offline: true, ..self.options() })
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.cache.path().join(format!("models--org--{name}"))
    }

    fn snapshot(&self, name: &str) -> PathBuf {
        self.dir(name).join("snapshots").join(COMMIT)
    }

    /// Files as another program leaves them, without a list of what there is.
    fn place(&self, name: &str, commit: &str, files: &[(&str, &[u8])]) {
        let snapshot = self.dir(name).join("snapshots").join(commit);
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(self.dir(name).join("blobs")).unwrap();
        for (path, contents) in files {
            let digits = checksum(contents);
            fs::write(self.dir(name).join("blobs").join(&digits), contents).unwrap();
            symlink(format!("../../blobs/{digits}"), snapshot.join(path)).unwrap();
        }
    }

    fn set_ref(&self, name: &str, revision: &str, commit: &str) {
        fs::create_dir_all(self.dir(name).join("refs")).unwrap();
        fs::write(self.dir(name).join("refs").join(revision), commit).unwrap();
    }

    /// Name, format, number of files, size, whether whole.
    fn list(&self) -> Vec<(String, CachedFormat, usize, u64, bool)> {
        let found = inventory::models(self.cache.path()).unwrap();
        found.into_iter().map(|row| (row.name, row.format, row.n_files, row.n_bytes, row.is_whole)).collect()
    }

    fn remove(&self, name: &str) -> Result<u64, String> {
        let removal = Removal::plan(self.cache.path(), &HubModel::parse(name).unwrap());
        let removal = removal.map_err(|error| error.to_string())?;
        let freed = removal.freed_bytes();
        removal.run().map_err(|error| error.to_string())?;
        Ok(freed)
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn model_dir_from_the_hub_downloads_only_needed_files_once() {
    let case = Case::new();
    let dir = case.open_part("org/sharded", ModelPart::BesideWeights, case.options()).unwrap();
    assert_eq!(names(&dir), ["tokenizer.json", "tokenizer_config.json"]);
    assert_eq!(case.open("org/sharded").unwrap(), dir);
    assert_eq!(dir, case.snapshot("sharded"));
    let expected = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names(&dir), expected);
    case.server.requests();
    assert_eq!(case.open("org/sharded").unwrap(), dir);
    assert_eq!(case.offline("org/sharded").unwrap(), dir);
    assert_eq!(case.server.requests(), [""; 0], "nobody asks the hub for what is there");
    // What is missing is noticed.
    fs::remove_file(dir.join("model-00002-of-00002.safetensors")).unwrap();
    fs::remove_file(case.dir("sharded").join("blobs").join(checksum(&bytes(2)))).unwrap();
    let error = case.offline("org/sharded").unwrap_err();
    assert!(error.starts_with("`org/sharded:model-00002-of-00002.safetensors`: the file was not downloaded before"));
    case.open("org/sharded").unwrap();
    assert_eq!(fs::read(dir.join("model-00002-of-00002.safetensors")).unwrap(), bytes(2));
    let error = case.open("org/lacking").unwrap_err();
    assert!(error.contains("the index of its weights names `model-00001-of-00002.safetensors`, which"), "{error}");
}

#[test]
fn chosen_gguf_file_is_downloaded_with_all_its_parts() {
    let case = Case::new();
    let error = case.open("org/gguf").unwrap_err();
    assert!(error.starts_with("`org/gguf`: the repository has 2 GGUF files:\n  :Q4_K_M"), "{error}");
    assert!(error.ends_with("hint: choose one, as in `org/gguf:Q4_K_M`"), "{error}");
    assert!(!case.snapshot("gguf").exists(), "nothing is downloaded before the choice");
    assert_eq!(case.open("org/gguf:q8_0").unwrap(), case.snapshot("gguf").join("m-Q8_0-00001-of-00002.gguf"));
    assert_eq!(names(&case.snapshot("gguf")), ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]);
    case.server.requests();
    case.open("org/gguf:m-Q8_0-00001-of-00002.gguf").unwrap();
    assert_eq!(case.server.requests(), [""; 0]);
    let error = case.offline("org/gguf:Q4_K_M").unwrap_err();
    assert!(error.starts_with("`org/gguf:m-Q4_K_M.gguf`: the file was not downloaded before"), "{error}");
}

#[test]
fn complete_cache_entries_of_other_programs_are_used() {
    let case = Case::new();
    let weights: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("model.safetensors", &bytes(1))];
    case.place("foreign", COMMIT, &weights);
    case.set_ref("foreign", "main", COMMIT);
    // Without a tokenizer it is not whole, and the hub does not have it.
    let error = case.open("org/foreign").unwrap_err();
    assert!(error.contains("`org/foreign`: the hub has no such model"), "{error}");
    // As another program leaves it that asked for the tokenizer alone.
    case.place("part", COMMIT, &[("config.json", b"{}"), ("tokenizer.json", b"{}")]);
    case.set_ref("part", "main", COMMIT);
    let error = case.offline("org/part").unwrap_err();
    assert!(
        error.contains("what was downloaded of it has neither") && error.contains("downloads are disabled"),
        "{error}"
    );
    case.place("foreign", COMMIT, &[("tokenizer.json", b"{}")]);
    case.server.requests();
    for open in [Case::open, Case::offline] {
        assert_eq!(open(&case, "org/foreign").unwrap(), case.snapshot("foreign"));
    }
    assert_eq!(case.server.requests(), [""; 0]);
    case.place("files", COMMIT, &[("m-Q4_0.gguf", &bytes(1)), ("m-Q8_0-00001-of-00002.gguf", &bytes(2))]);
    case.set_ref("files", "main", COMMIT);
    assert!(case.offline("org/files:Q4_0").unwrap().ends_with("m-Q4_0.gguf"));
    let error = case.offline("org/files:Q8_0").unwrap_err();
    assert!(
        error.contains("is in 2 parts, of which the repository has 1") && error.contains("downloads are disabled"),
        "{error}"
    );
}

#[test]
fn lack_of_disk_space_or_hub_access_is_reported_with_a_hint() {
    let case = Case::new();
    let error = case.open("org/huge").unwrap_err();
    assert!(error.starts_with("`org/huge`: there is no room for it: 1152921504.61 GB are to be downloaded"), "{error}");
    assert!(error.contains("`hearth rm`") && error.contains("`HF_HOME`"), "{error}");
    assert!(!case.dir("huge").join("blobs").exists());
    let error = case.open("gated/model").unwrap_err();
    assert!(
        error.starts_with("`gated/model:m.gguf`: the model is gated, and the hub does not give you access"),
        "{error}"
    );
    assert!(error.ends_with(&format!(
        "hint: agree to its terms at {}/gated/model, and set `HF_TOKEN` to an access token of your account",
        case.server.url
    )));
    let with = |token: &str| HubOptions { token: Some(token.to_owned()), ..case.options() };
    case.open_part("gated/model", ModelPart::Whole, with(TOKEN)).unwrap();
    let error = case.open_part("org/gguf:Q8_0", ModelPart::Whole, with("hf_wrong")).unwrap_err();
    assert!(error.contains("the hub does not accept the access token: Invalid credentials"), "{error}");
    assert!(error.ends_with("\nhint: check `HF_TOKEN`") && !error.contains("hf_wrong"), "{error}");
}

#[test]
fn cache_listing_shows_models_formats_sizes_and_completeness() {
    use CachedFormat::{Gguf, Leftover, ModelDir, Other};
    let case = Case::new();
    assert_eq!(case.list(), []);
    case.open("org/sharded").unwrap();
    case.open("org/gguf:Q8_0").unwrap();
    // An older snapshot of another program, half a download, and a tokenizer alone.
    let old: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("model.safetensors", &bytes(1))];
    case.place("sharded", OTHER_COMMIT, &old);
    fs::create_dir_all(case.dir("begun").join("blobs")).unwrap();
    fs::write(case.dir("begun").join("blobs/0123.incomplete"), "abc").unwrap();
    case.place("tokens", COMMIT, &[("tokenizer.json", b"{}")]);
    case.set_ref("tokens", "v1", COMMIT);
    fs::create_dir_all(case.cache.path().join("datasets--org--set/snapshots")).unwrap();
    let n_small = "{}".len() + INDEX.len() + "{\"version\": 1}".len() + "{ }".len();
    let row = |name: &str, format, n_files, n_bytes, is_whole| (name.to_owned(), format, n_files, n_bytes, is_whole);
    let rows = [
        row("org/begun", Leftover, 1, 3, false),
        row("org/gguf:Q8_0", Gguf, 2, 10_000, true),
        row("org/sharded", ModelDir, 6, 10_000 + n_small as u64, true),
        row(&format!("org/sharded@{OTHER_COMMIT}"), ModelDir, 2, 5_002, false),
        row("org/tokens@v1", Other, 1, 2, false),
    ];
    assert_eq!(case.list(), rows);
    let used = inventory::models(case.cache.path()).unwrap()[2].last_used.unwrap();
    assert!(used.elapsed().unwrap() < Duration::from_secs(600));
    // A file that is missing.
    fs::remove_file(case.snapshot("sharded").join("model-00001-of-00002.safetensors")).unwrap();
    fs::remove_file(case.dir("sharded").join("blobs").join(checksum(&bytes(1)))).unwrap();
    assert!(!case.list()[2].4);
    // All of its weights.
    for name in names(&case.snapshot("sharded")).iter().filter(|name| name.ends_with(".safetensors")) {
        fs::remove_file(case.snapshot("sharded").join(name)).unwrap();
    }
    let row = &case.list()[2];
    assert_eq!((row.0.as_str(), row.1, row.4), ("org/sharded", ModelDir, false));
}

#[test]
fn removing_a_model_keeps_files_that_other_snapshots_use() {
    let case = Case::new();
    case.open("org/sharded").unwrap();
    // The other snapshot shares a shard, and has a file of its own.
    case.place("sharded", OTHER_COMMIT, &[("model-00002-of-00002.safetensors", &bytes(2)), ("own.txt", b"own")]);
    case.set_ref("sharded", "v2", OTHER_COMMIT);
    let error = case.remove("org/sharded@v3").unwrap_err();
    assert!(error.contains("does not have it\nhint: it has `org/sharded`, `org/sharded@v2`"), "{error}");
    assert!(case.remove("org/absent").unwrap_err().ends_with("hint: `hearth list` shows what is there"));

    let n_small = "{}".len() + INDEX.len() + "{\"version\": 1}".len() + "{ }".len();
    assert_eq!(case.remove("org/sharded").unwrap(), 5_000 + n_small as u64);
    assert!(!case.snapshot("sharded").exists());
    assert_eq!(names(&case.dir("sharded").join("refs")), ["v2"]);
    let rest = case.dir("sharded").join("snapshots").join(OTHER_COMMIT);
    assert_eq!(fs::read(rest.join("model-00002-of-00002.safetensors")).unwrap(), bytes(2));
    assert_eq!(fs::read(rest.join("own.txt")).unwrap(), b"own");
    assert_eq!(names(&case.dir("sharded").join("blobs")).len(), 2);
    // It can be downloaded again, and the last one takes the folder along.
    case.open("org/sharded").unwrap();
    case.remove("org/sharded").unwrap();
    assert_eq!(case.remove("org/sharded@v2").unwrap(), 5_003);
    assert!(!case.dir("sharded").exists());

    case.open("org/gguf:Q8_0").unwrap();
    case.open("org/gguf:Q4_K_M").unwrap();
    assert_eq!(case.remove("org/gguf:Q8_0").unwrap(), 10_000);
    assert_eq!(names(&case.snapshot("gguf")), ["m-Q4_K_M.gguf"]);
    let error = case.remove("org/gguf:Q8_0").unwrap_err();
    assert!(error.contains("the cache does not have it") && error.contains(":Q4_K_M"), "{error}");
    case.open("org/gguf:Q4_K_M").unwrap();
    assert_eq!(case.remove("org/gguf").unwrap(), 5_000);
    assert_eq!(case.list(), []);
}

#[test]
fn model_being_downloaded_is_not_removed() {
    let case = Case::new();
    case.open("org/gguf:Q4_K_M").unwrap();
    case.open("org/gguf:Q8_0").unwrap();
    let lock = case.cache.path().join(".locks/models--org--gguf").join(format!("{}.lock", checksum(&bytes(5))));
    let lock = File::open(lock).unwrap();
    lock.lock().unwrap();
    for name in ["org/gguf", "org/gguf:Q4_K_M"] {
        let error = case.remove(name).unwrap_err();
        assert!(error.contains("another process is downloading files of this model\nhint: "), "{error}");
    }
    case.remove("org/gguf:Q8_0").unwrap();
    drop(lock);
    case.remove("org/gguf").unwrap();
    assert!(!case.dir("gguf").exists());
}

/// People keep caches on other disks.
#[test]
fn removing_a_model_in_a_symlinked_folder_removes_its_target() {
    let case = Case::new();
    case.open("org/gguf:Q4_K_M").unwrap();
    let elsewhere = TempDir::new().unwrap();
    let moved = elsewhere.path().join("moved");
    fs::rename(case.dir("gguf"), &moved).unwrap();
    symlink(&moved, case.dir("gguf")).unwrap();
    assert_eq!(case.list()[0].0, "org/gguf:Q4_K_M");
    case.remove("org/gguf").unwrap();
    assert!(!moved.exists() && case.dir("gguf").symlink_metadata().is_err());
}

/// The description of a model that is not in the cache: nothing is kept there.
#[test]
fn outline_of_a_model_has_its_configuration_and_sizes_without_its_weights() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let config = fs::read(tests.join("golden/qwen3/config.json")).unwrap();
    let gguf = fs::read(tests.join("gguf/qwen3.gguf")).unwrap();
    let server = StandInHub::new(&[
        (
            "models/org/dir",
            &[
                ("config.json", &config),
                ("model-00001-of-00002.safetensors", &bytes(1)),
                ("model-00002-of-00002.safetensors", &bytes(2)),
                ("model.safetensors.index.json", INDEX.as_bytes()),
                ("tokenizer.json", b"{}"),
            ],
        ),
        ("models/org/file", &[("m.gguf", &gguf)]),
    ]);
    let case = Case { server, cache: TempDir::new().unwrap() };
    let outline = |name: &str, options| HubModel::parse(name).unwrap().outline(&Hub::new(options).unwrap());
    let of_dir = outline("org/dir", case.options()).unwrap();
    assert_eq!(
        model_dir::load_config(of_dir.path()).unwrap(),
        model_dir::load_config(&tests.join("golden/qwen3")).unwrap()
    );
    let others = (config.len() + INDEX.len() + 2) as u64;
    assert_eq!(of_dir.sizes(), Some(Sizes { weight_bytes: 10_000, download_bytes: 10_000 + others }));
    let of_file = outline("org/file", case.options()).unwrap();
    assert_eq!(
        model_dir::load_config(of_file.path()).unwrap(),
        model_dir::load_config(&tests.join("gguf/qwen3.gguf")).unwrap()
    );
    let n_bytes = gguf.len() as u64;
    assert_eq!(of_file.sizes(), Some(Sizes { weight_bytes: n_bytes, download_bytes: n_bytes }));
    assert_eq!(case.list(), [], "nothing is in the cache");
    let folder = of_file.path().to_owned();
    drop(of_file);
    assert!(!folder.exists(), "nor elsewhere");
    // What is in the cache is used from there.
    let path = case.open("org/file").unwrap();
    let offline = outline("org/file", HubOptions { is_offline: true, ..case.options() }).unwrap();
    assert_eq!((offline.path(), offline.sizes()), (&*path, None));
    let refused = outline("org/dir", HubOptions { is_offline: true, ..case.options() }).unwrap_err().to_string();
    assert!(refused.contains("downloads are disabled (`HF_HUB_OFFLINE`)"), "{refused}");
}
