//! Settings of the events of the prefix cache.

use anyhow::ensure;
use clap::Args;

/// Events of the prefix cache.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "KV cache events")]
pub struct KvEventConfig {
    /// Publish which pages the prefix cache has, for routers: events in vLLM's format on a ZeroMQ PUB socket at this address, such as
    /// `tcp://*:5557`. They contain the tokens of prompts, so do not make the address public. Needs a build with
    /// `--features kv-events` [default: no events]
    #[arg(long, env = "HEARTH_KV_EVENTS", value_name = "ENDPOINT", value_parser = endpoint)]
    pub kv_events: Option<String>,
    /// Topic of the events. llm-d expects `kv@POD@MODEL` [default: none]
    #[arg(long, env = "HEARTH_KV_EVENTS_TOPIC", value_name = "TOPIC", requires = "kv_events")]
    pub kv_events_topic: Option<String>,
    /// Address of a ZeroMQ ROUTER socket that sends missed events again, such as `tcp://*:5558` [default: none]
    #[arg(long, env = "HEARTH_KV_EVENTS_REPLAY", value_name = "ENDPOINT", value_parser = endpoint, requires = "kv_events")]
    pub kv_events_replay: Option<String>,
}

impl KvEventConfig {
    /// Checks that this build can publish events, if they are wanted.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.kv_events.is_none() || cfg!(feature = "kv-events"),
            "`--kv-events`: this build of Hearth has no ZeroMQ\nhint: build it with `--features kv-events`"
        );
        Ok(())
    }
}

/// `tcp://ADDRESS:PORT`; the address `*` stands for all of the machine.
fn endpoint(text: &str) -> Result<String, String> {
    let parts = text.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'));
    match parts {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(format!("tcp://{}:{port}", if host == "*" { "0.0.0.0" } else { host }))
        }
        _ => Err("it must be an address and a port, such as `tcp://*:5557` or `tcp://127.0.0.1:5557`".to_owned()),
    }
}
