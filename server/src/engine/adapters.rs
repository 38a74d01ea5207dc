//! Low-rank adapters that are served beside the model, each under a name of its own.
//!
//! A name is registered with a folder. The values are read when the first request needs them, and stay in memory: when more
//! than [`max_loaded`](AdapterOptions::max_loaded) are there, those that no request holds are dropped, the least recently used
//! first, and read again when the next request comes. A request holds its adapter until it ends, so removing a name takes
//! nothing away from requests that came before.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use burn::tensor::Device;
use hearth_model::{
    Error,
    config::GptConfig,
    lora::{LoadedAdapter, LoraValues},
    weights::{
        adapter::{Adapter, AdapterModel},
        model_dir,
    },
};
use ring::digest::{Context, SHA256};

/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Which adapters may be served.
#[derive(Clone, Debug)]
pub struct AdapterOptions {
    /// Served from the start: names and folders.
    pub given: Vec<NamedDir>,
    /// Maximum number of different adapters among the running requests, and of those that stay in memory without one.
    pub max_loaded: usize,
    /// Maximum rank.
    pub max_rank: usize,
    /// Adapters may be added and removed while the server runs, from below this folder. `None`: not at all.
    pub root: Option<PathBuf>,
}

impl AdapterOptions {
    /// Limits for servers that have no adapters.
    pub const NONE: Self = Self { given: Vec::new(), max_loaded: 1, max_rank: 1, root: None };

    /// Whether there may be any.
    pub fn are_on(&self) -> bool {
        !self.given.is_empty() || self.root.is_some()
    }
}

/// A folder with an adapter, or a training run with one, and the name to serve it under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDir {
    /// The name.
    pub name: String,
    /// The folder.
    pub dir: PathBuf,
}

/// Identifies a registered adapter; a name that is registered again has another number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdapterId {
    /// Unique while the engine runs.
    pub number: u64,
    /// The name.
    pub name: Arc<str>,
}

/// An adapter in memory.
#[derive(Debug)]
pub struct ServedAdapter {
    id: AdapterId,
    loaded: Arc<LoadedAdapter>,
    digest: [u8; 32],
}

impl ServedAdapter {
    /// Its number and name.
    pub fn id(&self) -> &AdapterId {
        &self.id
    }

    /// What the model computes with.
    pub(crate) fn loaded(&self) -> &Arc<LoadedAdapter> {
        &self.loaded
    }

    /// The SHA-256 of its values: pages of the prefix cache belong to them, not to the name.
    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The fingerprint of answers, from that of the model.
    pub fn fingerprint(&self, model: &str) -> String {
        let hex: String = self.digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
        format!("{model}_{hex}")
    }
}

/// A registered adapter, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Its name.
    pub name: String,
    /// Its folder, as it was given.
    pub dir: PathBuf,
    /// When it was registered, in seconds since 1970.
    pub created: u64,
}

/// An adapter by name.
#[derive(Clone, Debug)]
pub enum Found {
    /// In memory.
    Loaded(Arc<ServedAdapter>),
    /// Registered; [`Adapters::load`] reads it.
    OnDisk,
    /// Not registered.
    Unknown,
}

/// What to do if a name is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfTaken {
    /// An error.
    Refuse,
    /// The new adapter takes its place.
    Replace,
}

/// Why an adapter cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// Adapters cannot be added or removed.
    #[error(
        "adapters cannot be loaded or unloaded while this server runs\n\
         hint: start it with `--lora-root DIR`, the folder that they are loaded from"
    )]
    Fixed,
    /// The name cannot be used.
    #[error("`lora_name` must have 1 to {MAX_NAME_BYTES} bytes without control characters or commas, got {0:?}")]
    Name(String),
    /// The name is in use.
    #[error(
        "the LoRA adapter `{0}` has already been loaded\n\
         hint: unload it first, or send `load_inplace` to replace it"
    )]
    Taken(String),
    /// There is no adapter of this name.
    #[error("the LoRA adapter `{name}` cannot be found; loaded are {}", listed(known))]
    Unknown {
        /// As given.
        name: String,
        /// All that there are.
        known: Vec<String>,
    },
    /// The folder is not below the root.
    #[error("`lora_path` must be a folder below `--lora-root`, got `{0}`")]
    Outside(String),
    /// The folder does not exist.
    #[error("`lora_path` `{0}` does not exist below `--lora-root`")]
    Missing(String),
    /// The rank is too large.
    #[error(
        "the LoRA adapter `{name}` has the rank {given}, but at most {allowed} is allowed\n\
         hint: `--max-lora-rank {given}` allows it"
    )]
    Rank {
        /// The adapter's name.
        name: String,
        /// Its rank.
        given: usize,
        /// The limit.
        allowed: usize,
    },
    /// It cannot be read, or belongs to another model.
    #[error("cannot load the LoRA adapter `{name}`: {source}")]
    Load {
        /// The adapter's name.
        name: String,
        /// What is wrong with it.
        source: Error,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { format!("`{}`", names.join("`, `")) }
}

/// All registered adapters.
pub struct Adapters {
    options: AdapterOptions,
    config: GptConfig,
    class: Option<&'static str>,
    device: Device,
    registered: Mutex<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    /// The number of the last one.
    number: u64,
    /// Counts uses.
    clock: u64,
    entries: BTreeMap<Arc<str>, Entry>,
}

#[derive(Debug)]
struct Entry {
    id: AdapterId,
    /// Where it is read from.
    dir: PathBuf,
    /// As it was given.
    given: PathBuf,
    created: u64,
    last_used: u64,
    served: Option<Arc<ServedAdapter>>,
}

impl Adapters {
    /// For the model of `config` on `device`, whose files are those of the Hugging Face class `class`, if that is known. Reads
    /// the adapters that are given.
    ///
    /// # Errors
    /// One of them cannot be served.
    pub(crate) fn new(
        options: AdapterOptions,
        config: &GptConfig,
        class: Option<&'static str>,
        device: &Device,
    ) -> Result<Self, AdapterError> {
        let (config, device) = (config.clone(), device.clone());
        let adapters = Self { options, config, class, device, registered: Mutex::default() };
        for NamedDir { name, dir } in &adapters.options.given {
            adapters.add(name, (dir, dir), IfTaken::Refuse)?;
        }
        Ok(adapters)
    }

    /// The settings.
    pub fn options(&self) -> &AdapterOptions {
        &self.options
    }

    /// All registered adapters, by name.
    pub fn list(&self) -> Vec<AdapterInfo> {
        let registered = self.lock();
        let infos = registered.entries.iter().map(|(name, entry)| AdapterInfo {
            name: name.to_string(),
            dir: entry.given.clone(),
            created: entry.created,
        });
        infos.collect()
    }

    /// Number of adapters in memory.
    pub fn n_loaded(&self) -> usize {
        self.lock().entries.values().filter(|entry| entry.served.is_some()).count()
    }

    /// The adapter with this name. Reads nothing.
    pub fn find(&self, name: &str) -> Found {
        let mut registered = self.lock();
        registered.clock += 1;
        let now = registered.clock;
        let Some(entry) = registered.entries.get_mut(name) else { return Found::Unknown };
        entry.last_used = now;
        entry.served.clone().map_or(Found::OnDisk, Found::Loaded)
    }

    /// The adapter with this name, read from its folder if it is not in memory. May take seconds.
    ///
    /// # Errors
    /// There is none, or it cannot be read any more.
    pub fn load(&self, name: &str) -> Result<Arc<ServedAdapter>, AdapterError> {
        // In a statement of its own, which ends the lock.
        let registered = self.lock().entries.get(name).map(|Entry { id, dir, served, .. }| match served {
            Some(served) => Ok(served.clone()),
            None => Err((id.clone(), dir.clone())),
        });
        let (id, dir) = match registered {
            Some(Ok(served)) => return Ok(served),
            Some(Err(on_disk)) => on_disk,
            None => return Err(self.unknown(name)),
        };
        let served = Arc::new(self.read(id, &dir)?);
        let mut registered = self.lock();
        registered.clock += 1;
        let now = registered.clock;
        // It may have been removed, replaced or loaded meanwhile. This request came before.
        if let Some(entry) = registered.entries.get_mut(name).filter(|entry| entry.id == *served.id()) {
            entry.last_used = now;
            let kept = entry.served.get_or_insert(served).clone();
            self.evict(&mut registered);
            return Ok(kept);
        }
        Ok(served)
    }

    /// Registers the adapter in a folder below the root, and reads it. May take seconds.
    ///
    /// # Errors
    /// The name is in use, the folder is outside of the root, or the adapter cannot be served.
    pub fn register(&self, name: &str, path: &str, if_taken: IfTaken) -> Result<(), AdapterError> {
        let root = self.options.root.as_deref().ok_or(AdapterError::Fixed)?;
        self.check_name(name, if_taken)?;
        let dir = below(root, path)?;
        self.add(name, (&dir, Path::new(path)), if_taken)
    }

    /// Removes a name. Requests that came before keep the adapter until they end.
    ///
    /// # Errors
    /// There is none with this name, or adapters cannot be removed.
    pub fn unregister(&self, name: &str) -> Result<(), AdapterError> {
        if self.options.root.is_none() {
            return Err(AdapterError::Fixed);
        }
        let removed = self.lock().entries.remove(name);
        removed.map(|_| tracing::info!("unloaded the LoRA adapter `{name}`")).ok_or_else(|| self.unknown(name))
    }

    fn add(&self, name: &str, (dir, given): (&Path, &Path), if_taken: IfTaken) -> Result<(), AdapterError> {
        self.check_name(name, if_taken)?;
        let id = {
            let mut registered = self.lock();
            registered.number += 1;
            AdapterId { number: registered.number, name: name.into() }
        };
        let served = Arc::new(self.read(id.clone(), dir)?);
        let n_bytes = served.loaded.n_bytes();
        let mut registered = self.lock();
        // Another request may have taken the name meanwhile.
        if if_taken == IfTaken::Refuse && registered.entries.contains_key(name) {
            return Err(AdapterError::Taken(name.to_owned()));
        }
        registered.clock += 1;
        let entry = Entry {
            dir: dir.to_owned(),
            given: given.to_owned(),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs()),
            last_used: registered.clock,
            served: Some(served),
            id: id.clone(),
        };
        registered.entries.insert(id.name, entry);
        self.evict(&mut registered);
        tracing::info!(n_bytes, "loaded the LoRA adapter `{name}` from `{}`", dir.display());
        Ok(())
    }

    fn check_name(&self, name: &str, if_taken: IfTaken) -> Result<(), AdapterError> {
        let is_possible =
            (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains(|c: char| c.is_control() || c == ',');
        if !is_possible {
            return Err(AdapterError::Name(name.to_owned()));
        }
        if if_taken == IfTaken::Refuse && self.lock().entries.contains_key(name) {
            return Err(AdapterError::Taken(name.to_owned()));
        }
        Ok(())
    }

    fn read(&self, id: AdapterId, dir: &Path) -> Result<ServedAdapter, AdapterError> {
        let failed = |source| AdapterError::Load { name: id.name.to_string(), source };
        let allowed = self.options.max_rank;
        let require_rank = |given: usize| match given {
            given if given > allowed => Err(AdapterError::Rank { name: id.name.to_string(), given, allowed }),
            _ => Ok(()),
        };
        let dir = &*model_dir::model_of(dir);
        // Before its values are read.
        let config = Adapter::open_config(dir).map_err(failed)?;
        require_rank(config.ranks.iter().map(|(_, rank)| *rank).fold(config.rank, usize::max))?;
        let model = AdapterModel::new(&self.config, self.class).map_err(failed)?;
        let Adapter { values, .. } = Adapter::open(dir, model).map_err(failed)?;
        require_rank(values.max_rank())?;
        let loaded = LoadedAdapter::new(&self.config, &values, &self.device).map_err(failed)?;
        Ok(ServedAdapter { loaded: Arc::new(loaded), digest: digest(&values), id })
    }

    /// Drops adapters that no request holds, until as many are in memory as may stay.
    fn evict(&self, registered: &mut Registered) {
        loop {
            let in_memory = registered.entries.values().filter(|entry| entry.served.is_some()).count();
            let idle = registered
                .entries
                .values_mut()
                .filter(|entry| entry.served.as_ref().is_some_and(|served| Arc::strong_count(served) == 1));
            let Some(oldest) = idle.min_by_key(|entry| entry.last_used).filter(|_| in_memory > self.options.max_loaded)
            else {
                return;
            };
            oldest.served = None;
            tracing::debug!("dropped the LoRA adapter `{}` from memory: others are used more", oldest.id.name);
        }
    }

    fn unknown(&self, name: &str) -> AdapterError {
        let known = self.lock().entries.keys().map(ToString::to_string).collect();
        AdapterError::Unknown { name: name.to_owned(), known }
    }

    /// No call panics with the lock held and the entries inconsistent.
    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapters").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The folder `path`, if it is below `root`; a relative one begins there. Of what is outside, not even the existence is told.
fn below(root: &Path, path: &str) -> Result<PathBuf, AdapterError> {
    let outside = || AdapterError::Outside(path.to_owned());
    let missing = |_| AdapterError::Missing(path.to_owned());
    let resolved_root = root.canonicalize().map_err(missing)?;
    let mut plain = PathBuf::new();
    for part in root.join(path).components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    if !plain.starts_with(root) && !plain.starts_with(&resolved_root) {
        return Err(outside());
    }
    // Links may lead out of it.
    let resolved = plain.canonicalize().map_err(missing)?;
    if resolved.starts_with(&resolved_root) && resolved != resolved_root { Ok(resolved) } else { Err(outside()) }
}

/// The SHA-256 of paths, shapes and values.
fn digest(values: &LoraValues) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for (path, update) in &values.0 {
        context.update(format!("{path} {:?}\n", update.shape).as_bytes());
        let mut bytes = Vec::with_capacity(4 * update.values.len());
        bytes.extend(update.values.iter().flat_map(|value| value.to_le_bytes()));
        context.update(&bytes);
    }
    let digest = context.finish();
    std::array::from_fn(|index| digest.as_ref().get(index).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::fs;

    use super::*;

    #[test]
    fn folders_are_below_the_root_or_refused() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(outer.path().join("secret")).unwrap();
        let resolved = root.canonicalize().unwrap();
        for (path, expected) in [("a", "a"), ("a/b", "a/b"), ("./a/../a", "a")] {
            assert_eq!(below(&root, path).unwrap(), resolved.join(expected), "{path}");
        }
        assert_eq!(below(&root, root.join("a").to_str().unwrap()).unwrap(), resolved.join("a"));
        let secret = outer.path().join("secret");
        for path in ["../secret", "../nothing", "a/../../secret", "/etc", secret.to_str().unwrap(), ".", ""] {
            assert!(matches!(below(&root, path), Err(AdapterError::Outside(_))), "{path}");
        }
        assert!(matches!(below(&root, "nothing"), Err(AdapterError::Missing(_))));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&secret, root.join("link")).unwrap();
            assert!(matches!(below(&root, "link"), Err(AdapterError::Outside(_))));
        }
    }
}
