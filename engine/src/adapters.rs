//! LoRA adapters by name.
//!
//! A name is registered with a folder, whose values are read and kept in memory. If more than
//! [`max_loaded`](AdapterOptions::max_loaded) adapters are in memory, adapters that no request holds are evicted, least
//! recently used first, and read again for the next request. A request holds its adapter until it ends, so removing a
//! name does not affect earlier requests. The number of adapters that requests hold is limited by
//! [`MAX_HELD_PER_LOADED`].

mod source;

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use burn::tensor::Device;
use hearth_model::{
    Error,
    config::GptConfig,
    files::digest::{Digest, Digester},
    gpt::lora::{LoadedAdapter, LoraValues},
    weights::adapter::{Adapter, AdapterModel},
};

use self::source::Source;
use crate::clock::unix_time;

/// Maximum length of a name in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// Maximum number of names.
pub const MAX_NAMES: usize = 1024;

/// Running and waiting requests hold at most this many times [`max_loaded`](AdapterOptions::max_loaded) different
/// adapters; no more are read until requests have ended.
pub const MAX_HELD_PER_LOADED: usize = 4;

/// Which adapters may be served.
#[derive(Clone, Debug)]
pub struct AdapterOptions {
    /// Adapters to serve from the start: names and folders.
    pub given: Vec<NamedDir>,
    /// Maximum number of different adapters among running requests. If more are in memory, unused ones are evicted.
    pub max_loaded: usize,
    /// Maximum rank.
    pub max_rank: usize,
    /// Clients may add adapters from below this folder, and remove adapters. `None`: they may do neither.
    pub root: Option<PathBuf>,
}

impl AdapterOptions {
    /// Options of servers without adapters.
    pub const NONE: Self = Self { given: Vec::new(), max_loaded: 1, max_rank: 1, root: None };

    /// Whether the engine may have adapters.
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

/// Identifies a registered adapter; a name that is registered again gets another number.
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
    digest: Digest,
    /// A reference that counts this adapter: see [`Adapters::n_in_memory`].
    _counted: Arc<()>,
}

impl ServedAdapter {
    /// Its number and name.
    pub fn id(&self) -> &AdapterId {
        &self.id
    }

    /// The adapter's weights on the device.
    pub(crate) fn loaded(&self) -> &Arc<LoadedAdapter> {
        &self.loaded
    }

    /// The SHA-256 of the adapter's values, which identifies its pages in the prefix cache.
    pub(crate) fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The fingerprint of answers with this adapter. `model` is the fingerprint of the model.
    pub fn fingerprint(&self, model: &str) -> String {
        format!("{model}_{}", self.digest.prefix(10))
    }
}

/// A registered adapter, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Its name.
    pub name: String,
    /// The adapter's folder, as it was given.
    pub dir: PathBuf,
    /// When it was registered, in seconds since 1970.
    pub created: u64,
}

/// The result of finding an adapter by name.
#[derive(Clone, Debug)]
pub enum Found {
    /// In memory.
    Loaded(Arc<ServedAdapter>),
    /// Registered; [`Adapters::load`] reads it.
    OnDisk,
    /// Not registered.
    Unknown,
}

/// What to do if a name is already registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfTaken {
    /// Return an error.
    Refuse,
    /// Replace the adapter.
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
    #[error(
        "the name of a LoRA adapter must have 1 to {MAX_NAME_BYTES} bytes without control characters or commas, got {0:?}"
    )]
    Name(String),
    /// The name is in use.
    #[error(
        "the LoRA adapter `{0}` has already been loaded\n\
         hint: unload it first, or send `load_inplace` to replace it"
    )]
    Taken(String),
    /// The maximum number of names is registered.
    #[error("{MAX_NAMES} LoRA adapters are loaded, which is the maximum\nhint: unload one first")]
    TooMany,
    /// Requests hold the maximum number of adapters.
    #[error("running and waiting requests use {0} LoRA adapters, which is the maximum: try again later")]
    Busy(usize),
    /// The adapter was evicted from memory, and cannot be read again.
    #[error("the LoRA adapter `{0}` cannot be read any more; the server's log has the reason")]
    Gone(String),
    /// It was evicted from memory, and its files have changed.
    #[error(
        "the files of the LoRA adapter `{0}` have changed since it was loaded\n\
         hint: load it again with `load_inplace`, or restart the server"
    )]
    Changed(String),
    /// There is no adapter of this name.
    #[error("the LoRA adapter `{name}` cannot be found; loaded are {}", listed(known))]
    Unknown {
        /// As given.
        name: String,
        /// All registered names.
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
    #[error("cannot load the LoRA adapter `{name}`: {reason}")]
    Load {
        /// The adapter's name.
        name: String,
        /// The error. Part of the message, so it is not a `source`, which would be printed twice.
        reason: Error,
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
    /// Each adapter in memory has a clone, so its reference count is their number.
    counted: Arc<()>,
}

#[derive(Debug, Default)]
struct Registered {
    /// The number of the last adapter.
    number: u64,
    /// Counts uses, to order them.
    clock: u64,
    entries: BTreeMap<Arc<str>, Entry>,
}

#[derive(Debug)]
struct Entry {
    id: AdapterId,
    source: Source,
    created: u64,
    last_used: u64,
    /// The digest of the adapter's values when it was registered.
    digest: Digest,
    served: Option<Arc<ServedAdapter>>,
}

impl Registered {
    fn require_free(&self, name: &str, if_taken: IfTaken) -> Result<(), AdapterError> {
        match self.entries.contains_key(name) {
            true if if_taken == IfTaken::Refuse => Err(AdapterError::Taken(name.to_owned())),
            false if self.entries.len() >= MAX_NAMES => Err(AdapterError::TooMany),
            _ => Ok(()),
        }
    }
}

impl Adapters {
    /// Adapters for the model of `config` on `device`; `class` is the Hugging Face class of its files, if known. Reads
    /// the adapters in `options`.
    ///
    /// # Errors
    /// An adapter cannot be served.
    pub(crate) fn new(
        options: AdapterOptions,
        config: &GptConfig,
        class: Option<&'static str>,
        device: &Device,
    ) -> Result<Self, AdapterError> {
        let (config, device) = (config.clone(), device.clone());
        let adapters = Self { options, config, class, device, registered: Mutex::default(), counted: Arc::default() };
        for NamedDir { name, dir } in &adapters.options.given {
            adapters.check_name(name, IfTaken::Refuse)?;
            adapters.add(name, Source::anywhere(dir), IfTaken::Refuse)?;
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
            dir: entry.source.given.clone(),
            created: entry.created,
        });
        infos.collect()
    }

    /// Number of adapters in memory.
    pub fn n_loaded(&self) -> usize {
        self.lock().entries.values().filter(|entry| entry.served.is_some()).count()
    }

    /// Finds the adapter with this name, without reading it.
    pub fn find(&self, name: &str) -> Found {
        let mut registered = self.lock();
        registered.clock += 1;
        let now = registered.clock;
        let Some(entry) = registered.entries.get_mut(name) else { return Found::Unknown };
        entry.last_used = now;
        let found = entry.served.clone().map_or(Found::OnDisk, Found::Loaded);
        self.evict(&mut registered);
        found
    }

    /// The adapter with this name, read from its folder if it is not in memory. May take seconds.
    ///
    /// # Errors
    /// The name is not registered, the adapter cannot be read any more or has changed, or requests hold too many
    /// others.
    pub fn load(&self, name: &str) -> Result<Arc<ServedAdapter>, AdapterError> {
        // The lock ends with this statement.
        let on_disk = match self.lock().entries.get(name) {
            Some(Entry { served: Some(served), .. }) => return Ok(served.clone()),
            Some(entry) => Some((entry.id.clone(), entry.source.clone(), entry.digest)),
            None => None,
        };
        let (id, source, digest) = on_disk.ok_or_else(|| self.unknown(name))?;
        self.require_room()?;
        let served = self.read(id, &source).map_err(|error| {
            tracing::error!("the LoRA adapter `{name}` cannot be read again from `{}`: {error}", source.dir.display());
            AdapterError::Gone(name.to_owned())
        })?;
        if served.digest != digest {
            tracing::error!("the LoRA adapter `{name}` has changed in `{}` since it was loaded", source.dir.display());
            return Err(AdapterError::Changed(name.to_owned()));
        }
        let served = Arc::new(served);
        let mut registered = self.lock();
        registered.clock += 1;
        let now = registered.clock;
        // It may have been removed, replaced or loaded meanwhile. This request uses the version that it has read.
        if let Some(entry) = registered.entries.get_mut(name).filter(|entry| entry.id == *served.id()) {
            entry.last_used = now;
            let kept = entry.served.get_or_insert(served).clone();
            self.evict(&mut registered);
            return Ok(kept);
        }
        Ok(served)
    }

    /// Checks whether a client may register an adapter under this name. Does not read it.
    ///
    /// # Errors
    /// Adapters cannot be added, or the name is invalid or in use.
    pub fn check_new(&self, name: &str, if_taken: IfTaken) -> Result<(), AdapterError> {
        if self.options.root.is_none() {
            return Err(AdapterError::Fixed);
        }
        self.check_name(name, if_taken)
    }

    /// Registers the adapter in a folder below the root, and reads it. May take seconds.
    ///
    /// # Errors
    /// The name is in use, the folder is outside of the root, the adapter cannot be served, or requests hold too many
    /// others.
    pub fn register(&self, name: &str, path: &str, if_taken: IfTaken) -> Result<(), AdapterError> {
        let root = self.options.root.as_deref().ok_or(AdapterError::Fixed)?;
        self.check_name(name, if_taken)?;
        let source = Source::below(root, path)?;
        self.require_room()?;
        self.add(name, source, if_taken)
    }

    /// Removes a name, also one from the command line. Earlier requests keep the adapter until they end.
    ///
    /// # Errors
    /// The name is not registered, or adapters cannot be removed.
    pub fn unregister(&self, name: &str) -> Result<(), AdapterError> {
        if self.options.root.is_none() {
            return Err(AdapterError::Fixed);
        }
        let removed = {
            let mut registered = self.lock();
            let removed = registered.entries.remove(name).is_some();
            self.evict(&mut registered);
            removed
        };
        if !removed {
            return Err(self.unknown(name));
        }
        tracing::info!("unloaded the LoRA adapter `{name}`");
        Ok(())
    }

    fn add(&self, name: &str, source: Source, if_taken: IfTaken) -> Result<(), AdapterError> {
        let id = {
            let mut registered = self.lock();
            registered.number += 1;
            AdapterId { number: registered.number, name: name.into() }
        };
        let served = Arc::new(self.read(id.clone(), &source)?);
        let (n_bytes, dir) = (served.loaded.n_bytes(), source.dir.clone());
        let mut registered = self.lock();
        // Another request may have taken the name meanwhile.
        registered.require_free(name, if_taken)?;
        registered.clock += 1;
        let entry = Entry {
            source,
            created: unix_time().as_secs(),
            last_used: registered.clock,
            digest: served.digest,
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
        self.lock().require_free(name, if_taken)
    }

    /// Number of adapters in memory, including removed and replaced ones that requests still hold.
    fn n_in_memory(&self) -> usize {
        Arc::strong_count(&self.counted) - 1
    }

    /// Rejects reading another adapter while requests hold too many.
    fn require_room(&self) -> Result<(), AdapterError> {
        self.evict(&mut self.lock());
        let allowed = self.options.max_loaded.saturating_mul(MAX_HELD_PER_LOADED);
        if self.n_in_memory() < allowed { Ok(()) } else { Err(AdapterError::Busy(allowed)) }
    }

    fn read(&self, id: AdapterId, source: &Source) -> Result<ServedAdapter, AdapterError> {
        let failed = |reason| AdapterError::Load { name: id.name.to_string(), reason };
        let allowed = self.options.max_rank;
        let require_rank = |given: usize| match given {
            given if given > allowed => Err(AdapterError::Rank { name: id.name.to_string(), given, allowed }),
            _ => Ok(()),
        };
        let dir = &source.folder().map_err(failed)?;
        // Before its values are read.
        let config = Adapter::open_config(dir).map_err(failed)?;
        require_rank(config.ranks.iter().map(|(_, rank)| *rank).fold(config.rank, usize::max))?;
        let model = AdapterModel::new(&self.config, self.class).map_err(failed)?;
        let Adapter { values, .. } = Adapter::open(dir, model).map_err(failed)?;
        require_rank(values.max_rank())?;
        let loaded = LoadedAdapter::new(&self.config, &values, &self.device).map_err(failed)?;
        Ok(ServedAdapter { loaded: Arc::new(loaded), digest: digest(&values), id, _counted: self.counted.clone() })
    }

    /// Evicts adapters that no request holds while more than the maximum are in memory.
    fn evict(&self, registered: &mut Registered) {
        // Usually false, so the entries are not searched.
        while self.n_in_memory() > self.options.max_loaded {
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

    /// Ignores poisoning: no call panics while the entries are inconsistent.
    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapters").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The SHA-256 of paths, shapes and values.
fn digest(values: &LoraValues) -> Digest {
    let mut digester = Digester::new();
    for (path, update) in &values.0 {
        digester.update(format!("{path} {:?}\n", update.shape).as_bytes());
        let mut bytes = Vec::with_capacity(4 * update.values.len());
        bytes.extend(update.values.iter().flat_map(|value| value.to_le_bytes()));
        digester.update(&bytes);
    }
    digester.finish()
}
