//! Which blocks a server's prefix cache has, published as vLLM publishes it: batches of events in MessagePack, each with a topic and a
//! number, on a PUB socket of ZeroMQ. A ROUTER socket sends past batches again.
//!
//! This crate is no member of the workspace: what it depends on would have Burn compiled anew with other features. It knows nothing
//! of models, so it builds and is tested by itself, in seconds.

#![warn(missing_docs)]

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc::{self, Receiver, Sender};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// Batches that wait to be published. Those behind are dropped: their numbers are missing, so that subscribers notice.
const MAX_WAITING: usize = 10_000;

/// Past batches that can be sent again: vLLM's number.
const MAX_KEPT: usize = 10_000;

/// The number behind the last batch that is sent again: -1.
const END: [u8; 8] = u64::MAX.to_be_bytes();

/// The data-parallel rank: a server is one.
const RANK: u32 = 0;

/// Where events are published.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    /// The address of the PUB socket, such as `tcp://0.0.0.0:5557`.
    pub events: String,
    /// The topic of all events.
    pub topic: String,
    /// The address of the ROUTER socket, if there is one.
    pub replay: Option<String>,
}

/// An address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on `{endpoint}`: {reason}")]
pub struct BindError {
    /// The address.
    pub endpoint: String,
    /// What the socket says.
    pub reason: String,
}

/// An event under vLLM's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub enum Event {
    /// Blocks that follow each other in a text are in the cache now.
    BlockStored {
        /// Their hashes.
        block_hashes: Vec<u64>,
        /// The hash of the block before the first; `None` at the beginning of a text.
        parent_block_hash: Option<u64>,
        /// The tokens of all of them.
        token_ids: Vec<u32>,
        /// Tokens of a block.
        block_size: usize,
        /// Always `None`: vLLM's older name of an adapter.
        lora_id: Option<u32>,
        /// Always `None`.
        medium: Option<String>,
        /// The adapter that computed them.
        lora_name: Option<String>,
    },
    /// Blocks are no longer in the cache.
    BlockRemoved {
        /// Their hashes.
        block_hashes: Vec<u64>,
        /// Always `None`.
        medium: Option<String>,
    },
    /// The cache is empty.
    AllBlocksCleared {},
}

/// A change of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A block was stored.
    Stored(Stored),
    /// The block with this hash was removed.
    Removed(u64),
}

/// A block that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its hash.
    pub hash: u64,
    /// That of the block before it, if there is one.
    pub parent: Option<u64>,
    /// Its tokens.
    pub token_ids: Vec<u32>,
    /// The adapter that computed it.
    pub adapter: Option<String>,
}

/// Publishes changes. Dropping it ends the task that does.
#[derive(Debug)]
pub struct Publisher {
    batches: Sender<Batch>,
    /// The number of the next batch.
    next: AtomicU64,
    is_behind: AtomicBool,
}

/// What is published at once.
#[derive(Debug)]
struct Batch {
    number: u64,
    time: SystemTime,
    events: Vec<Event>,
}

impl Publisher {
    /// Binds the sockets and publishes on a task of the current runtime. The first batch says that the cache is empty.
    ///
    /// # Errors
    /// An address cannot be bound.
    pub async fn bind(endpoints: &Endpoints) -> Result<Self, BindError> {
        let failed = |endpoint: &str, error: zeromq::ZmqError| BindError {
            endpoint: endpoint.to_owned(),
            reason: error.to_string(),
        };
        let mut socket = PubSocket::new();
        socket.bind(&endpoints.events).await.map_err(|error| failed(&endpoints.events, error))?;
        let mut replay = None;
        if let Some(endpoint) = &endpoints.replay {
            let mut socket = RouterSocket::new();
            socket.bind(endpoint).await.map_err(|error| failed(endpoint, error))?;
            replay = Some(socket);
        }
        let (batches, receiver) = mpsc::channel(MAX_WAITING);
        let topic = Bytes::from(endpoints.topic.clone());
        tokio::spawn(Task { socket, topic, kept: VecDeque::new() }.run(receiver, replay));
        let publisher = Self { batches, next: AtomicU64::new(0), is_behind: AtomicBool::new(false) };
        publisher.send(vec![Event::AllBlocksCleared {}]);
        Ok(publisher)
    }

    /// Publishes changes in this order, as one batch. Never waits.
    pub fn publish(&self, changes: &[Change], block_size: usize) {
        self.send(events(changes, block_size));
    }

    fn send(&self, events: Vec<Event>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let sent = self.batches.try_send(Batch { number, time: SystemTime::now(), events });
        let was_behind = self.is_behind.swap(sent.is_err(), Ordering::Relaxed);
        if sent.is_err() && !was_behind {
            tracing::warn!("events of the prefix cache are dropped: {MAX_WAITING} steps wait to be published");
        }
    }
}

/// The task that publishes.
struct Task {
    socket: PubSocket,
    topic: Bytes,
    /// The last batches: their numbers and contents.
    kept: VecDeque<(u64, Bytes)>,
}

impl Task {
    async fn run(mut self, mut batches: Receiver<Batch>, mut replay: Option<RouterSocket>) {
        loop {
            let request = async {
                match &mut replay {
                    Some(replay) => replay.recv().await,
                    None => std::future::pending().await,
                }
            };
            let worked = tokio::select! {
                batch = batches.recv() => match batch {
                    Some(batch) => self.publish(&batch).await,
                    None => return,
                },
                request = request => match (request, &mut replay) {
                    (Ok(request), Some(replay)) => send_again(&self.kept, &request, replay).await,
                    (Err(error), _) => {
                        tracing::warn!("past events of the prefix cache are no longer sent: {error}");
                        replay = None;
                        Ok(())
                    }
                    (Ok(_), None) => Ok(()),
                },
            };
            if let Err(error) = worked {
                // Subscribers come and go.
                tracing::debug!("events of the prefix cache: {error}");
            }
        }
    }

    async fn publish(&mut self, batch: &Batch) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let payload = Bytes::from(payload(batch)?);
        if self.kept.len() == MAX_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((batch.number, payload.clone()));
        let number = Bytes::copy_from_slice(&batch.number.to_be_bytes());
        self.socket.send(message(vec![self.topic.clone(), number, payload])?).await?;
        Ok(())
    }
}

/// Answers a request, which is the client's name, nothing, and the number of the first batch, with those of `kept` from there on.
async fn send_again(
    kept: &VecDeque<(u64, Bytes)>,
    request: &ZmqMessage,
    replay: &mut RouterSocket,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (Some(client), Some(first)) = (request.get(0), request.iter().last()) else { return Ok(()) };
    let first: [u8; 8] = first.as_ref().try_into().map_err(|_| "a request for past events has no number of 8 bytes")?;
    let first = u64::from_be_bytes(first);
    for (number, payload) in kept.iter().filter(|(number, _)| *number >= first) {
        let number = Bytes::copy_from_slice(&number.to_be_bytes());
        replay.send(message(vec![client.clone(), Bytes::new(), number, payload.clone()])?).await?;
    }
    replay.send(message(vec![client.clone(), Bytes::new(), Bytes::from_static(&END), Bytes::new()])?).await?;
    Ok(())
}

fn message(frames: Vec<Bytes>) -> Result<ZmqMessage, &'static str> {
    ZmqMessage::try_from(frames).map_err(|_| "an empty message")
}

/// A batch in MessagePack: a list of its time, its events as maps, and the rank.
fn payload(batch: &Batch) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    let time = batch.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    rmp_serde::to_vec_named(&(time, &batch.events, RANK))
}

/// The events for changes in this order: blocks that follow each other in a text are one event, and so are those that were removed
/// together.
fn events(changes: &[Change], block_size: usize) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    for change in changes {
        match (change, events.last_mut()) {
            (
                Change::Stored(Stored { hash, parent: Some(parent), token_ids, adapter }),
                Some(Event::BlockStored { block_hashes, token_ids: all, lora_name, .. }),
            ) if block_hashes.last() == Some(parent) && lora_name == adapter => {
                block_hashes.push(*hash);
                all.extend(token_ids);
            }
            (Change::Stored(Stored { hash, parent, token_ids, adapter }), _) => events.push(Event::BlockStored {
                block_hashes: vec![*hash],
                parent_block_hash: *parent,
                token_ids: token_ids.clone(),
                block_size,
                lora_id: None,
                medium: None,
                lora_name: adapter.clone(),
            }),
            (Change::Removed(hash), Some(Event::BlockRemoved { block_hashes, .. })) => block_hashes.push(*hash),
            (Change::Removed(hash), _) => {
                events.push(Event::BlockRemoved { block_hashes: vec![*hash], medium: None });
            }
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn stored(hash: u64, parent: Option<u64>, adapter: Option<&str>) -> Change {
        Change::Stored(Stored { hash, parent, token_ids: vec![hash as u32; 4], adapter: adapter.map(str::to_owned) })
    }

    #[test]
    fn blocks_of_one_text_are_one_event_and_other_changes_keep_their_order() {
        let changes = [
            Change::Removed(1),
            Change::Removed(2),
            stored(3, None, None),
            stored(4, Some(3), None),
            stored(5, Some(9), None),
            stored(6, Some(5), Some("support")),
            Change::Removed(3),
        ];
        let shape = |event: &Event| match event {
            Event::BlockStored { block_hashes, parent_block_hash, token_ids, lora_name, .. } => {
                assert_eq!(token_ids.len(), 4 * block_hashes.len());
                format!("{block_hashes:?} behind {parent_block_hash:?} by {lora_name:?}")
            }
            Event::BlockRemoved { block_hashes, .. } => format!("-{block_hashes:?}"),
            Event::AllBlocksCleared {} => "none".to_owned(),
        };
        let expected = [
            "-[1, 2]",
            "[3, 4] behind None by None",
            "[5] behind Some(9) by None",
            "[6] behind Some(5) by Some(\"support\")",
            "-[3]",
        ];
        assert_eq!(events(&changes, 4).iter().map(shape).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn batch_is_a_list_and_its_events_are_maps_with_their_type() {
        let events =
            vec![Event::AllBlocksCleared {}, Event::BlockRemoved { block_hashes: vec![u64::MAX], medium: None }];
        let time = UNIX_EPOCH + Duration::from_millis(1500);
        let found = payload(&Batch { number: 0, time, events }).unwrap();
        let mut expected = vec![0x93, 0xcb];
        expected.extend(1.5_f64.to_be_bytes());
        expected.extend([0x92, 0x81, 0xa4]);
        expected.extend(b"type\xb0AllBlocksCleared\x83\xa4type\xacBlockRemoved\xacblock_hashes\x91\xcf");
        expected.extend([0xff; 8]);
        expected.extend(b"\xa6medium\xc0\x00");
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn address_in_use_is_an_error_that_names_it() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let events = format!("tcp://{}", taken.local_addr().unwrap());
        let error = Publisher::bind(&Endpoints { events: events.clone(), ..Endpoints::default() }).await.unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot listen on `{events}`: ")), "{error}");
    }
}
