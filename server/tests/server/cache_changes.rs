//! What the engine tells of the pages of its prefix cache: each has the tokens and the parent that its key was made of.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use hearth_engine::{
    EngineOptions,
    observer::{CacheChange, Observer, StoredPage},
};
use hearth_model::{
    files::digest::Digester,
    gpt::kv_cache::{PAGE_SIZE, PageKey},
};
use hearth_server::engine::Engine;

use crate::{
    engine::{mixed_requests, run},
    prefix_sharing::choices,
    speculation::{LOOKUP, repetitive},
    support::{self, OPTIONS, is_idle, wait_for},
};

/// Keeps what it is told.
#[derive(Debug, Default)]
struct Recorder {
    changes: Mutex<Vec<CacheChange>>,
}

impl Observer for Recorder {
    fn follows_cache(&self) -> bool {
        true
    }

    fn cache_changed(&self, changes: &[CacheChange]) {
        self.changes.lock().unwrap().extend_from_slice(changes);
    }
}

#[tokio::test]
async fn changes_of_the_prefix_cache_have_the_tokens_and_parents_that_their_keys_are_made_of() {
    let requests = [mixed_requests(), repetitive(), choices(3, None)].concat();
    for kv_cache_tokens in [None, Some(20 * PAGE_SIZE)] {
        let options = EngineOptions { kv_cache_tokens, speculation: LOOKUP, max_batch_tokens: 40, ..OPTIONS };
        let recorder = Arc::new(Recorder::default());
        let engine = Engine::start_observed(|| Ok(support::model()), options, Some(recorder.clone())).unwrap();
        for _ in 0..2 {
            run(&engine, &requests).await;
            wait_for(&engine, is_idle).await;
        }
        let n_pages = engine.stats().borrow().n_pages;
        let (mut kept, mut seen) = (HashSet::new(), HashSet::new());
        let mut n_removed = 0;
        for change in recorder.changes.lock().unwrap().drain(..) {
            match change {
                CacheChange::Stored(StoredPage { key, parent, token_ids, adapter }) => {
                    assert_eq!((token_ids.len(), adapter), (PAGE_SIZE, None));
                    let mut digester = Digester::new();
                    digester.update(&parent.map_or([0; 32], |parent| parent.0));
                    token_ids.iter().for_each(|id| digester.update(&id.to_le_bytes()));
                    assert_eq!(key, PageKey(digester.finish().0));
                    assert!(parent.is_none_or(|parent| seen.contains(&parent)), "a parent that nobody was told of");
                    assert!(kept.insert(key), "a page is there twice");
                    seen.insert(key);
                }
                CacheChange::Removed(key) => {
                    assert!(kept.remove(&key), "a page goes that was not there");
                    n_removed += 1;
                }
            }
        }
        assert!(kept.len() > 10 && kept.len() <= n_pages, "{} of {n_pages} pages", kept.len());
        assert_eq!(n_removed > 0, kv_cache_tokens.is_some(), "{n_removed} pages were evicted");
    }
}
