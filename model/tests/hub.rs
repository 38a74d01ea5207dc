//! The hub's client against a server that speaks its API: redirects, ranges, connections that are cut, refusals.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path, thread, time::Duration};

use hearth_model::hub::{Hub, HubOptions, Repo, RepoKind};
use tempfile::TempDir;

use crate::stand_in_hub::{COMMIT, Fault, StandInHub, TOKEN, checksum, continued};

/// Large enough for several reads.
fn large() -> Vec<u8> {
    (0..300_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn stand_in() -> StandInHub {
    StandInHub::new(&[
        (
            "models/org/model",
            &[
                ("config.json", b"{}"),
                ("empty.txt", b""),
                ("model.safetensors", &large()),
                ("sub/dir/a b.txt", b"inner"),
                ("vocab.txt", b"a b c"),
            ],
        ),
        ("datasets/org/model", &[("train.txt", b"of the data set")]),
        ("models/private/model", &[("model.safetensors", &large())]),
        ("models/org/hostile", &[("../../escaped", b"x")]),
    ])
}

fn options(server: &StandInHub, cache: &Path) -> HubOptions {
    HubOptions {
        endpoint: server.url.clone() + "/",
        token: None,
        cache: cache.to_owned(),
        is_offline: false,
        retry_delay: Duration::from_millis(1),
    }
}

fn model(id: &str) -> Repo {
    Repo::parse(RepoKind::Model, id).unwrap()
}

/// Downloads one file of a repository and reads it.
fn get(hub: &Hub, repo: &Repo, path: &str) -> Result<Vec<u8>, String> {
    let snapshot = hub.snapshot(repo).map_err(|error| error.to_string())?;
    let file = snapshot.files.iter().find(|file| file.path == path).unwrap();
    let mut last = 0;
    let mut progress = |n_bytes| last = n_bytes;
    let path = hub.fetch(&snapshot, file, &mut progress).map_err(|error| error.to_string())?;
    assert_eq!(last, file.n_bytes);
    Ok(fs::read(path).unwrap())
}

#[test]
fn hub_files_are_listed_and_downloaded_once() {
    let (server, cache) = (stand_in(), TempDir::new().unwrap());
    let hub = Hub::new(options(&server, cache.path())).unwrap();
    let repo = model("org/model");
    let snapshot = hub.snapshot(&repo).unwrap();
    let found: Vec<_> = snapshot.files.iter().map(|file| (file.path.as_str(), file.n_bytes)).collect();
    let expected = [
        ("config.json", 2),
        ("empty.txt", 0),
        ("model.safetensors", 1_200_000),
        ("sub/dir/a b.txt", 5),
        ("vocab.txt", 5),
    ];
    assert_eq!(found, expected);
    assert_eq!(snapshot.commit, COMMIT);
    for (path, contents) in
        [("model.safetensors", large()), ("sub/dir/a b.txt", b"inner".to_vec()), ("empty.txt", vec![])]
    {
        assert_eq!(get(&hub, &repo, path).unwrap(), contents);
    }

    // The layout that huggingface_hub reads.
    let dir = cache.path().join("models--org--model");
    assert_eq!(fs::read_to_string(dir.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read(dir.join("blobs").join(checksum(&large()))).unwrap(), large());
    let link = fs::read_link(dir.join("snapshots").join(COMMIT).join("sub/dir/a b.txt")).unwrap();
    assert_eq!(link, Path::new("../../../../blobs").join(checksum(b"inner")));

    server.requests();
    assert_eq!(get(&hub, &repo, "model.safetensors").unwrap(), large());
    assert!(server.requests().iter().all(|request| request.contains("/api/")), "it was downloaded again");
    // What a commit holds does not change.
    get(&hub, &model(&format!("org/model@{COMMIT}")), "model.safetensors").unwrap();
    assert_eq!(server.requests(), [""; 0]);

    let dataset = Repo::parse(RepoKind::Dataset, "org/model@v1/a").unwrap();
    assert_eq!(get(&hub, &dataset, "train.txt").unwrap(), b"of the data set");
    assert!(cache.path().join("datasets--org--model/refs/v1/a").exists());
}

#[test]
fn offline_hub_serves_only_what_was_downloaded_before() {
    let (server, cache) = (stand_in(), TempDir::new().unwrap());
    let online = options(&server, cache.path());
    let offline = Hub::new(HubOptions { is_offline: true, ..online.clone() }).unwrap();
    let repo = model("org/model");
    let refused = |path| get(&offline, &repo, path).unwrap_err();
    assert!(
        refused("vocab.txt").contains("`org/model`: the model was not downloaded before"),
        "{}",
        refused("vocab.txt")
    );
    get(&Hub::new(online).unwrap(), &repo, "vocab.txt").unwrap();
    server.requests();
    assert_eq!(get(&offline, &repo, "vocab.txt").unwrap(), b"a b c");
    assert!(refused("config.json").contains("`org/model:config.json`: the file was not downloaded before"));
    assert_eq!(server.requests(), [""; 0]);
}

/// Each request continues where the answer to the one before was cut.
#[test]
fn download_succeeds_after_connections_are_cut() {
    let length = large().len();
    for cut in [0, 1, 999, 65_536, 65_537, 777_777, length - 1] {
        let (server, cache) = (stand_in(), TempDir::new().unwrap());
        let hub = Hub::new(options(&server, cache.path())).unwrap();
        // Eight cuts of which each makes progress are more than there are attempts.
        let cuts = [&[cut, 10][..], &[1000; 8]].concat();
        server.fail(&cuts.iter().map(|&cut| Fault::CutAfter(cut)).collect::<Vec<_>>());
        assert_eq!(get(&hub, &model("org/model"), "model.safetensors").unwrap(), large(), "cut after {cut}");
        assert_eq!(server.sent(&large()), continued(length, &cuts), "cut after {cut}");
    }
}

#[test]
fn cut_download_starts_over_if_the_server_ignores_ranges() {
    let (server, cache) = (stand_in(), TempDir::new().unwrap());
    let hub = Hub::new(options(&server, cache.path())).unwrap();
    server.fail(&[Fault::CutAfter(500), Fault::NoRanges]);
    assert_eq!(get(&hub, &model("org/model"), "model.safetensors").unwrap(), large());
    assert_eq!(server.sent(&large()), [(0, 500), (500, large().len())]);
}

#[test]
fn leftover_partial_download_is_completed_or_discarded() {
    let (server, contents) = (stand_in(), large());
    let longer = [&contents[..], b"more"].concat();
    let wrong = [&[contents[0] ^ 1], &contents[1..500]].concat();
    for (left, starts, is_good) in [
        (&contents[..500], &[500usize][..], true),
        (&contents, &[], true),
        (&longer, &[0], true),
        (&[], &[0], true),
        (&wrong, &[500, 0], false),
    ] {
        let cache = TempDir::new().unwrap();
        let hub = Hub::new(options(&server, cache.path())).unwrap();
        let blobs = cache.path().join("models--org--model/blobs");
        fs::create_dir_all(&blobs).unwrap();
        let incomplete = blobs.join(format!("{}.incomplete", checksum(&contents)));
        fs::write(&incomplete, left).unwrap();
        let got = get(&hub, &model("org/model"), "model.safetensors");
        if !is_good {
            let error = got.unwrap_err();
            assert!(error.contains("`org/model:model.safetensors`: the download has the checksum"), "{error}");
            assert_eq!(get(&hub, &model("org/model"), "model.safetensors").unwrap(), contents);
        } else {
            assert_eq!(got.unwrap(), contents);
        }
        assert!(!incomplete.exists());
        assert_eq!(server.sent(&contents).into_iter().map(|(start, _)| start).collect::<Vec<_>>(), starts);
    }
}

#[test]
fn download_with_a_wrong_checksum_is_rejected_and_not_kept() {
    let (server, cache) = (stand_in(), TempDir::new().unwrap());
    let hub = Hub::new(options(&server, cache.path())).unwrap();
    for path in ["model.safetensors", "vocab.txt"] {
        server.fail(&[Fault::Damage]);
        let error = get(&hub, &model("org/model"), path).unwrap_err();
        assert!(error.contains("but the hub states") && error.contains("\nhint: "), "{error}");
        get(&hub, &model("org/model"), path).unwrap();
    }
}

#[test]
fn download_to_a_full_disk_reports_no_space_left() {
    let (server, cache) = (stand_in(), TempDir::new().unwrap());
    let hub = Hub::new(options(&server, cache.path())).unwrap();
    let blobs = cache.path().join("models--org--model/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let full = blobs.join(format!("{}.incomplete", checksum(&large())));
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let error = get(&hub, &model("org/model"), "model.safetensors").unwrap_err();
    assert!(error.contains("cannot write") && error.contains("No space left"), "{error}");
    fs::remove_file(full).unwrap();
    get(&hub, &model("org/model"), "model.safetensors").unwrap();
}

#[test]
fn access_token_is_sent_only_to_the_hub() {
    let (server, cache) = (stand_in(), TempDir::new().unwrap());
    let anonymous = options(&server, cache.path());
    let error = get(&Hub::new(anonymous.clone()).unwrap(), &model("private/model"), "model.safetensors").unwrap_err();
    assert!(error.contains("has no such model, or does not show it") && error.contains("`HF_TOKEN`"), "{error}");
    server.requests();
    let hub = Hub::new(HubOptions { token: Some(TOKEN.to_owned()), ..anonymous }).unwrap();
    get(&hub, &model("private/model"), "model.safetensors").unwrap();
    let requests = server.requests();
    let (hubs, others): (Vec<_>, Vec<_>) = requests.iter().partition(|request| request.starts_with("127.0.0.1 "));
    assert!(hubs.iter().all(|request| request.ends_with(" with token")), "{hubs:?}");
    assert!(!others.is_empty() && others.iter().all(|request| !request.ends_with(" with token")), "{others:?}");
}

#[test]
fn hub_errors_are_retried_or_reported_with_their_cause() {
    let (server, cache) = (stand_in(), TempDir::new().unwrap());
    let hub = Hub::new(options(&server, cache.path())).unwrap();
    let refused = |id: &str| hub.snapshot(&model(id)).unwrap_err().to_string();
    for (id, message) in [
        ("org/absent", "`org/absent`: the hub has no such model"),
        ("org/model@nowhere", "`org/model@nowhere`: the model has no such revision"),
        ("org/hostile", "`org/hostile`: the hub lists a file with an invalid path or checksum: `../../escaped`"),
    ] {
        assert!(refused(id).contains(message), "{}", refused(id));
    }
    server.fail(&[Fault::Status(403)]);
    assert!(refused("org/model").contains("does not give you access to this model: as asked\nhint: "));
    server.fail(&[Fault::Status(503), Fault::Status(429), Fault::Status(500)]);
    get(&hub, &model("org/model"), "vocab.txt").unwrap();
    server.fail(&[Fault::Status(503); 5]);
    let error = refused("org/model");
    assert!(error.contains("5 requests to the hub failed; the last: the hub answered 503"), "{error}");

    let unreachable = HubOptions { endpoint: "http://127.0.0.1:1".to_owned(), ..options(&server, cache.path()) };
    let error = Hub::new(unreachable.clone()).unwrap().snapshot(&model("org/model")).unwrap_err().to_string();
    assert!(error.contains("5 requests to the hub failed") && error.contains("HF_HUB_OFFLINE=1"), "{error}");
    let error = Hub::new(HubOptions { endpoint: "hub".to_owned(), ..unreachable }).unwrap_err().to_string();
    assert!(error.contains("`HF_ENDPOINT`: must be a URL with http or https, got `hub`"), "{error}");
}

#[test]
fn concurrent_downloads_of_a_file_fetch_it_once() {
    let (server, cache) = (stand_in(), TempDir::new().unwrap());
    let download = || get(&Hub::new(options(&server, cache.path())).unwrap(), &model("org/model"), "model.safetensors");
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(download)).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap(), large());
        }
    });
    let downloads = server.requests().iter().filter(|request| request.contains("/storage/")).count();
    assert_eq!(downloads, 1);
}
