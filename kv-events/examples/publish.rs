//! Publishes the changes of a cache of 300 blocks, at random, and writes the hashes that it has at the end, one on a line. For
//! `deploy/checks/kv_events.py --publisher`. Usage: publish EVENTS_ENDPOINT REPLAY_ENDPOINT TOPIC BATCHES

use std::{collections::VecDeque, env, time::Duration};

use hearth_kv_events::{Change, Endpoints, Publisher, Stored};

const BLOCK_SIZE: usize = 16;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [events, replay, topic, n_batches] = arguments.as_slice() else { panic!("EVENTS REPLAY TOPIC BATCHES") };
    let endpoints = Endpoints { events: events.clone(), topic: topic.clone(), replay: Some(replay.clone()) };
    let publisher = Publisher::bind(&endpoints).await.expect("the addresses are free");
    // Subscribers connect.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut kept: VecDeque<u64> = VecDeque::new();
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 31
    };
    for _ in 0..n_batches.parse().expect("a number of batches") {
        let mut changes = Vec::new();
        let mut parent = (random() % 2 == 0).then(|| kept.back().copied()).flatten();
        for _ in 0..random() % 6 {
            if kept.len() == 300 {
                changes.extend(kept.pop_front().map(Change::Removed));
            }
            let hash = random();
            let token_ids = (0..BLOCK_SIZE).map(|_| (random() % 128_000) as u32).collect();
            let adapter = (random() % 4 == 0).then(|| "support".to_owned());
            changes.push(Change::Stored(Stored { hash, parent, token_ids, adapter }));
            kept.push_back(hash);
            parent = Some(hash);
        }
        publisher.publish(&changes, BLOCK_SIZE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Subscribers ask for past batches.
    for hash in &kept {
        println!("{hash}");
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
}
