#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    rc::Rc,
    sync::mpsc,
    thread,
    time::Duration,
};

use burn::tensor::Device;

use super::{super::model_dir, disk::watch, *};
use crate::{
    config::GptConfig,
    gpt::Gpt,
    ops,
    weights::{
        DiskDtype,
        model_dir::{LoadOptions, SaveOptions},
    },
};

/// Set for the processes that a test starts: the model dir that they save to, and how.
const DIR: &str = "HEARTH_TEST_DIR";
const STOP_AT: &str = "HEARTH_TEST_STOP_AT";
const NO_EXCHANGE: &str = "HEARTH_TEST_NO_EXCHANGE";
const STOPPED: &str = "stopped";
const README: &str = "README.md";

/// The files of a folder and of those in it, by name.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn files(dir: &Path) -> Files {
    let mut found = Files::new();
    for name in entries(dir).unwrap() {
        let path = dir.join(&name);
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|(within, bytes)| (Path::new(&name).join(within), bytes)));
        } else {
            found.insert(name.into(), fs::read(&path).unwrap());
        }
    }
    found
}

/// Two models that have no file in common: one of two blocks in shards, one of a block in one file and another dtype.
fn model(number: usize) -> (Gpt, SaveOptions) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama");
    let config = GptConfig { n_layers: 2 - number, ..model_dir::load_config(&golden).unwrap() };
    let gpt = Gpt::init(&config, number as u64, &Device::flex()).unwrap();
    let tokenizer = |name: &str| (name.to_owned(), format!("{name} of {number}").into_bytes());
    let extra_files = match number {
        0 => vec![
            tokenizer("tokenizer.json"),
            tokenizer("vocab.json"),
            tokenizer("additional_chat_templates/tool_use.jinja"),
        ],
        _ => vec![tokenizer("tokenizer.json")],
    };
    let options = SaveOptions {
        dtype: [DiskDtype::F32, DiskDtype::Bf16][number],
        max_shard_bytes: [20_000, usize::MAX][number],
        eos_token_ids: vec![number as u32],
        extra_files,
        ..SaveOptions::default()
    };
    (gpt, options)
}

fn save(dir: &Path, number: usize) -> Result<()> {
    let (gpt, options) = model(number);
    model_dir::save(dir, &gpt, &options)
}

/// The files of either model alone, and the README.
fn files_of_each_saved_model() -> [Files; 2] {
    [0, 1].map(|number| {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), number).unwrap();
        let mut files = files(dir.path());
        files.insert(README.into(), b"mine".to_vec());
        files
    })
}

/// Checks that the folder holds exactly one of the two models, and that it opens. Returns which.
fn found(dir: &Path, models: &[Files; 2]) -> usize {
    let options = LoadOptions { device: Device::flex(), dtype: None };
    let gpt = model_dir::load_gpt(dir, &options).unwrap();
    let files = files(dir);
    let number = models.iter().position(|model| *model == files);
    let number = number.unwrap_or_else(|| unreachable!("files of both: {:?}", files.keys()));
    assert_eq!(gpt.config().n_layers, 2 - number);
    number
}

/// Saves the first model, with a README that is not part of it.
fn save_first_model_and_readme(parent: &Path) -> PathBuf {
    let dir = parent.join("model");
    save(&dir, 0).unwrap();
    fs::write(dir.join(README), "mine").unwrap();
    dir
}

/// Makes the exchange of folders fail, as on systems and file systems that do not support it.
fn fail_exchange(what: &str) -> io::Result<()> {
    if what == "exchange" { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
}

/// Until the returned value is dropped, `step` is called before each step of this thread.
fn watched(step: impl FnMut(&'static str, &Path) -> io::Result<()> + 'static) -> impl Drop {
    struct Unwatch;
    impl Drop for Unwatch {
        fn drop(&mut self) {
            watch(None);
        }
    }
    watch(Some(Box::new(step)));
    Unwatch
}

/// Starts a process that runs only the test `test`.
fn child(test: &str, variables: &[(&str, &str)]) -> Child {
    let test = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &test, "--ignored", "--nocapture", "--test-threads", "1"]);
    command.envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Whether the process reports that it has stopped at a step; otherwise it has ended.
fn has_stopped(child: &mut Child) -> bool {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.map_while(io::Result::ok).any(|line| line.ends_with(STOPPED))
}

#[test]
#[ignore = "a process that another test starts"]
fn child_process_saves_a_model() {
    let Ok(dir) = env::var(DIR) else { return };
    let stop_at: usize = env::var(STOP_AT).unwrap().parse().unwrap();
    let exchanges = env::var(NO_EXCHANGE).is_err();
    let mut n_steps = 0;
    let _watch = watched(move |what, _| {
        if n_steps == stop_at {
            writeln!(io::stdout(), "{STOPPED}").unwrap();
            // Until the other process kills this one.
            io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        n_steps += 1;
        if exchanges { Ok(()) } else { fail_exchange(what) }
    });
    save(Path::new(&dir), 1).unwrap();
}

/// Kills a save before each of its steps, with and without exchange: the folder then has the old model or the new one.
/// The next save removes the leftovers of the killed one.
#[test]
fn killed_save_leaves_the_old_or_the_new_model() {
    let models = files_of_each_saved_model();
    for mode in [&[][..], &[(NO_EXCHANGE, "1")]] {
        let mut n_found = [0, 0];
        for stop_at in 0.. {
            let parent = tempfile::tempdir().unwrap();
            let dir = save_first_model_and_readme(parent.path());
            let stop_at = stop_at.to_string();
            let variables = [&[(DIR, dir.to_str().unwrap()), (STOP_AT, &stop_at)], mode].concat();
            let mut saving = child("child_process_saves_a_model", &variables);
            let was_killed = has_stopped(&mut saving);
            saving.kill().unwrap();
            saving.wait().unwrap();
            n_found[found(&dir, &models)] += 1;
            assert!(n_found[1] == 0 || found(&dir, &models) == 1, "the new model, once it is there");
            if !was_killed {
                break;
            }
            let next = n_found[1].min(1);
            save(&dir, 1 - next).unwrap();
            assert_eq!(found(&dir, &models), 1 - next);
            assert_eq!(entries(parent.path()).unwrap(), ["model"], "after a kill at step {stop_at}");
        }
        assert!(n_found[0] > 20 && n_found[1] >= 3, "{n_found:?}");
    }
}

/// Lets each step of a save fail with a full disk.
#[test]
fn failed_save_leaves_the_old_or_the_new_model() {
    let models = files_of_each_saved_model();
    for exchanges in [true, false] {
        for fail_at in 0.. {
            let parent = tempfile::tempdir().unwrap();
            let dir = save_first_model_and_readme(parent.path());
            let n_steps = Rc::new(RefCell::new(0));
            let counted = Rc::clone(&n_steps);
            let watch = watched(move |what, _| match counted.replace_with(|n| *n + 1) == fail_at {
                true => Err(io::ErrorKind::StorageFull.into()),
                false if exchanges => Ok(()),
                false => fail_exchange(what),
            });
            let result = save(&dir, 1);
            drop(watch);
            let found = found(&dir, &models);
            match result {
                Ok(()) => assert_eq!(found, 1),
                Err(error) => {
                    assert!(error.to_string().contains(&format!("{}", io::ErrorKind::StorageFull)), "{error}")
                }
            }
            if found == 0 {
                assert_eq!(entries(parent.path()).unwrap(), ["model"], "at step {fail_at}");
            }
            save(&dir, 0).unwrap();
            assert_eq!(entries(parent.path()).unwrap(), ["model"], "at step {fail_at}");
            if n_steps.take() <= fail_at {
                assert!(fail_at > 20);
                break;
            }
        }
    }
}

/// Data that is only in the page cache is lost when the power fails.
#[test]
fn save_flushes_all_files_to_disk_before_the_swap() {
    let parent = tempfile::tempdir().unwrap();
    let dir = save_first_model_and_readme(parent.path());
    let steps = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&steps);
    let watch = watched(move |what, path| {
        log.borrow_mut().push((what, path.to_owned()));
        Ok(())
    });
    save(&dir, 0).unwrap();
    drop(watch);
    let steps = steps.take();
    let at = |what: &str, path: &Path| steps.iter().rposition(|step| *step == (what, path.to_owned()));
    let partial = beside(&fs::canonicalize(&dir).unwrap(), PARTIAL);
    let swap = at("exchange", &partial).unwrap();
    for name in files(&dir).into_keys().filter(|name| name != Path::new(README)) {
        let path = partial.join(&name);
        let (written, flushed) = (at("write", &path).unwrap(), at("flush", &path).unwrap());
        let folder = at("flush", path.parent().unwrap()).unwrap();
        assert!(written < flushed && flushed < folder && folder < swap, "{}", name.display());
    }
    assert!(at("flush", &partial).unwrap() < swap);
    let parent = at("flush", partial.parent().unwrap()).unwrap();
    assert!(swap < parent && parent < at("remove", &partial).unwrap());
}

/// The folder that was moved aside is always complete, so it is renamed back; an incomplete one only has the other
/// name.
#[test]
fn model_dir_left_aside_by_an_unfinished_swap_is_restored() {
    let parent = tempfile::tempdir().unwrap();
    let (dir, models) = (save_first_model_and_readme(parent.path()), files_of_each_saved_model());
    let (partial, aside) = (beside(&dir, PARTIAL), beside(&dir, ASIDE));
    for reader in [
        |dir: &Path| drop(model_dir::load_config(dir).unwrap()),
        |dir: &Path| assert_eq!(model_dir::load_class(dir).unwrap(), "LlamaForCausalLM"),
        |dir: &Path| assert_eq!(model_dir::files_beside_weights(dir).unwrap().len(), 4),
        |dir: &Path| drop(StagedDir::replacing(dir).unwrap()),
        |dir: &Path| assert!(StagedDir::creating(dir).is_err()),
    ] {
        fs::rename(&dir, &aside).unwrap();
        fs::create_dir_all(&partial).unwrap();
        reader(&dir);
        assert_eq!(found(&dir, &models), 0);
    }
    // A swap that ended, but for the removal.
    fs::create_dir(&aside).unwrap();
    fs::write(aside.join("config.json"), "old").unwrap();
    save(&dir, 1).unwrap();
    assert_eq!(found(&dir, &models), 1);
    assert_eq!(entries(parent.path()).unwrap(), ["model"]);
    assert!(model_dir::load_config(&parent.path().join("never")).is_err());
}

/// While a process is writing a folder, neither another writer nor a reader treats that folder as a leftover.
#[cfg(unix)]
#[test]
fn staged_dir_is_locked_while_it_is_written_and_swapped() {
    let parent = tempfile::tempdir().unwrap();
    let (dir, models) = (save_first_model_and_readme(parent.path()), files_of_each_saved_model());
    let staged = StagedDir::replacing(&dir).unwrap();
    for refused in [StagedDir::replacing(&dir).map(drop), save(&dir, 1)] {
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("model.hearth-partial`: another process is writing it\nhint: "), "{message}");
    }
    drop(staged);
    assert_eq!(entries(parent.path()).unwrap(), ["model"]);

    // In the middle of a swap, a reader that would rename the old folder back must wait, and so must a writer that
    // would remove leftovers.
    let folder = parent.path().to_owned();
    let was_locked = Rc::new(RefCell::new(false));
    let seen = Rc::clone(&was_locked);
    let watch = watched(move |what, path| {
        if what == "rename" && path.ends_with("model.hearth-partial") {
            *seen.borrow_mut() = DirLock::try_on(&folder).unwrap().is_none();
        }
        fail_exchange(what)
    });
    save(&dir, 1).unwrap();
    drop(watch);
    assert!(was_locked.take());
    assert_eq!(found(&dir, &models), 1);
}

#[test]
fn model_dir_replaced_during_a_read_is_read_again() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("model");
    let write = |number: usize| {
        let staged = StagedDir::replacing(&dir).unwrap();
        staged.write("config.json", &[number as u8]).unwrap();
        staged.write("tokenizer.json", &[number as u8]).unwrap();
        staged.commit().unwrap();
    };
    write(0);
    // Twice: the second folder may reuse the first one's inode.
    let mut n_reads = 0;
    let read = read_whole(&dir, || {
        n_reads += 1;
        let config = fs::read(dir.join("config.json")).unwrap();
        if n_reads == 1 {
            (1..=2).for_each(write);
        }
        Ok((config, fs::read(dir.join("tokenizer.json")).unwrap()))
    });
    assert_eq!((read.unwrap(), n_reads), ((vec![2], vec![2]), 2));
    let always = read_whole(&dir, || {
        write(3);
        Ok(())
    });
    assert!(always.unwrap_err().to_string().contains("was replaced 10 times"));
}

#[test]
fn saving_keeps_files_that_are_not_part_of_the_model() {
    let parent = tempfile::tempdir().unwrap();
    let (dir, models) = (save_first_model_and_readme(parent.path()), files_of_each_saved_model());
    let mut metrics = File::create(dir.join("metrics.jsonl")).unwrap();
    let folders = ["plots/a", "additional_chat_templates", "empty"].map(|folder| dir.join(folder));
    folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
    fs::write(dir.join("plots/a/loss.svg"), "plot").unwrap();
    fs::write(dir.join("additional_chat_templates/mine.jinja"), "mine").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(README, dir.join("link.md")).unwrap();
    for number in [1, 0, 1] {
        save(&dir, number).unwrap();
        // An open file stays the one in the folder.
        writeln!(metrics, "{number}").unwrap();
    }
    let mut expected = models[1].clone();
    expected.insert("metrics.jsonl".into(), b"1\n0\n1\n".to_vec());
    expected.insert("plots/a/loss.svg".into(), b"plot".to_vec());
    expected.insert("additional_chat_templates/mine.jinja".into(), b"mine".to_vec());
    #[cfg(unix)]
    {
        expected.insert("link.md".into(), b"mine".to_vec());
        assert_eq!(fs::read_link(dir.join("link.md")).unwrap(), Path::new(README));
    }
    assert_eq!(files(&dir), expected);
    assert!(dir.join("empty").is_dir());
}

#[cfg(unix)]
#[test]
fn saving_to_a_symlink_replaces_the_folder_it_points_to() {
    use std::os::unix::fs::symlink;

    let parent = tempfile::tempdir().unwrap();
    let (dir, models) = (save_first_model_and_readme(parent.path()), files_of_each_saved_model());
    let (link, ahead) = (parent.path().join("link"), parent.path().join("ahead"));
    symlink("model", &link).unwrap();
    save(&link, 1).unwrap();
    assert_eq!((found(&dir, &models), found(&link, &models)), (1, 1));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    // A symlink to a folder that does not exist yet.
    symlink("new/deep", &ahead).unwrap();
    save(&ahead, 1).unwrap();
    let names = |dir: &Path| files(dir).into_keys().filter(|name| name != Path::new(README)).collect::<Vec<_>>();
    assert_eq!(names(&parent.path().join("new/deep")), names(&dir));
    // A symlink with the name of a staging folder is not treated as a leftover.
    symlink("model", beside(&parent.path().join("other"), PARTIAL)).unwrap();
    let message = save(&parent.path().join("other"), 0).unwrap_err().to_string();
    assert!(message.contains("other.hearth-partial`: exists and is not a folder"), "{message}");
    assert_eq!(found(&dir, &models), 1);
}

#[test]
fn irreplaceable_folder_is_rejected_before_anything_is_written() {
    let refused = |dir: &Path, what: &str| {
        let message = StagedDir::replacing(dir).unwrap_err().to_string();
        assert!(message.contains(what) && message.contains("\nhint: "), "{message}");
    };
    // This package's folder, and the one that it is in.
    refused(Path::new("."), "is the working directory or contains it");
    refused(Path::new(".."), "is the working directory or contains it");
    if cfg!(target_os = "linux") {
        refused(Path::new("/proc"), "`/proc`: is a mount point");
        refused(Path::new("/"), "`/`: is a mount point");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&file, "is not a folder");
    assert_eq!(entries(dir.path()).unwrap(), ["file"]);
}

/// A signal may come at any time, also while the folder is moved to its place.
#[cfg(unix)]
#[test]
fn remove_unfinished_removes_the_staged_dir_or_waits_for_its_move() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("model");
    let staged = StagedDir::creating(&dir).unwrap();
    staged.write(README, b"mine").unwrap();
    StagedDir::remove_unfinished(staged.path()).unwrap();
    assert!(entries(parent.path()).unwrap().is_empty());
    StagedDir::remove_unfinished(staged.path()).unwrap();
    drop(staged);

    let (sender, ended) = mpsc::channel();
    let ended = Rc::new(ended);
    let too_early = Rc::clone(&ended);
    let watch = watched(move |what, path| {
        if what == "rename" {
            let (path, sender) = (path.to_owned(), sender.clone());
            thread::spawn(move || sender.send(StagedDir::remove_unfinished(&path).is_ok()));
            assert!(too_early.recv_timeout(Duration::from_millis(100)).is_err());
        }
        Ok(())
    });
    save(&dir, 1).unwrap();
    drop(watch);
    assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true));
    assert_eq!(entries(parent.path()).unwrap(), ["model"]);
    model_dir::load_gpt(&dir, &LoadOptions { device: Device::flex(), dtype: None }).unwrap();
}

/// A new model dir is complete or does not exist, and neither do the folders created above it, whatever fails.
#[test]
fn new_model_dir_is_complete_or_absent() {
    let parent = tempfile::tempdir().unwrap();
    let models = files_of_each_saved_model();
    let n_entries = |dir: &Path| fs::read_dir(dir).unwrap().count();
    let [absent, deep, empty, filled] = ["absent", "deep/er", "empty", "filled"].map(|name| parent.path().join(name));
    for dir in [&empty, &filled] {
        fs::create_dir(dir).unwrap();
    }
    // The state after a process was killed while it filled the folder.
    fs::create_dir(filled.join(PARTIAL)).unwrap();
    fs::write(filled.join(PARTIAL).join("vocab.json"), "").unwrap();
    let create = |dir: &Path, more: &str| {
        let (gpt, options) = model(1);
        let staged = StagedDir::creating(dir)?;
        model_dir::write(&staged, &gpt, &options)?;
        staged.write(more, b"mine")?;
        staged.commit()
    };
    for dir in [&absent, &deep, &empty, &filled] {
        assert!(create(dir, &"x".repeat(300)).is_err(), "a name that is too long");
        assert_eq!(
            (n_entries(parent.path()), n_entries(&empty), n_entries(&filled)),
            (2, 0, usize::from(dir != &filled))
        );
    }
    for dir in [&absent, &deep, &empty, &filled] {
        create(dir, README).unwrap();
        assert_eq!(found(dir, &models), 1);
        let message = create(dir, README).unwrap_err().to_string();
        assert!(message.contains("already exists and is not empty\nhint: "), "{message}");
    }
    assert_eq!(n_entries(parent.path()), 4);
    // Another process fills the folder before the commit.
    let (gpt, options) = model(1);
    fs::create_dir(parent.path().join("taken")).unwrap();
    let staged = StagedDir::creating(&parent.path().join("taken")).unwrap();
    model_dir::write(&staged, &gpt, &options).unwrap();
    fs::write(parent.path().join("taken/config.json"), "somebody's").unwrap();
    assert!(staged.commit().is_err());
    assert_eq!(fs::read_to_string(parent.path().join("taken/config.json")).unwrap(), "somebody's");
    assert_eq!(n_entries(parent.path()), 5);
}

/// KiB that the system counts as `what` of this process.
#[cfg(target_os = "linux")]
fn memory(what: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim_matches(|character: char| !character.is_ascii_digit()).parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "a process that another test starts"]
fn child_process_measures_memory_of_a_save() {
    let Ok(dir) = env::var(DIR) else { return };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama");
    let golden = model_dir::load_config(&golden).unwrap();
    let config = GptConfig { d_model: 512, d_ff: 1536, n_layers: 10, ..golden };
    let gpt = Gpt::init(&config, 0, &Device::flex()).unwrap();
    ops::give_back_memory();
    let before = memory("VmRSS:");
    // Resets the peak memory of the process.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let options = SaveOptions { max_shard_bytes: 40_000_000, ..SaveOptions::default() };
    model_dir::save(Path::new(&dir), &gpt, &options).unwrap();
    let taken = memory("VmHWM:").saturating_sub(before);
    let bytes = files(Path::new(&dir)).into_values().map(|bytes| bytes.len()).sum::<usize>();
    writeln!(io::stdout(), "{STOPPED} {taken} {}", bytes / 1024).unwrap();
}

/// In a separate process, so that no other test is measured.
#[cfg(target_os = "linux")]
#[test]
fn saving_needs_less_memory_than_a_quarter_of_the_model() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("model");
    let measuring = child("child_process_measures_memory_of_a_save", &[(DIR, dir.to_str().unwrap())]);
    let output = measuring.wait_with_output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let line = output.lines().find(|line| line.contains(STOPPED)).unwrap_or_else(|| unreachable!("{output}"));
    let numbers: Vec<usize> =
        line.split_once(STOPPED).unwrap().1.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let [taken, model] = numbers[..] else { unreachable!("{line}") };
    assert!(model > 90_000 && taken < model / 4, "a model of {model} KiB was saved with {taken} KiB");
}
