//! Events of the prefix cache for routers: what the engine tells, in the terms of [`hearth_kv_events`].
//!
//! A page's hash is the last 8 bytes of its key ([`hearth_engine::prefix_cache`]), as a big-endian number, as vLLM shortens its own.

use std::sync::Arc;

use anyhow::anyhow;
use hearth_engine::observer::{CacheChange, Observer, StoredPage};
use hearth_kv_events::{Change, Endpoints, Publisher, Stored};
use hearth_model::gpt::kv_cache::{PAGE_SIZE, PageKey};

use crate::config::KvEventConfig;

/// Publishes what the engine tells of its prefix cache.
#[derive(Debug)]
pub struct KvEvents {
    publisher: Publisher,
}

impl KvEvents {
    /// Binds the sockets, if events are wanted.
    ///
    /// # Errors
    /// An address cannot be bound.
    pub async fn bind(config: &KvEventConfig) -> anyhow::Result<Option<Arc<Self>>> {
        let Some(events) = config.kv_events.clone() else { return Ok(None) };
        let topic = config.kv_events_topic.clone().unwrap_or_default();
        let endpoints = Endpoints { events, topic, replay: config.kv_events_replay.clone() };
        let publisher = Publisher::bind(&endpoints).await.map_err(|error| {
            let flag = if error.endpoint == endpoints.events { "--kv-events" } else { "--kv-events-replay" };
            anyhow!("`{flag}`: {error}\nhint: give an address of this machine and a port that no program uses")
        })?;
        tracing::info!("events of the prefix cache are published at {}", endpoints.events);
        Ok(Some(Arc::new(Self { publisher })))
    }
}

impl Observer for KvEvents {
    fn follows_cache(&self) -> bool {
        true
    }

    fn cache_changed(&self, changes: &[CacheChange]) {
        let change = |change: &CacheChange| match change {
            CacheChange::Stored(StoredPage { key, parent, token_ids, adapter }) => Change::Stored(Stored {
                hash: hash(key),
                parent: parent.as_ref().map(hash),
                token_ids: token_ids.clone(),
                adapter: adapter.as_deref().map(str::to_owned),
            }),
            CacheChange::Removed(key) => Change::Removed(hash(key)),
        };
        self.publisher.publish(&changes.iter().map(change).collect::<Vec<_>>(), PAGE_SIZE);
    }
}

fn hash(key: &PageKey) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = key.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}
