//! `hearth chat`: a conversation in the terminal, with a model in this process or with a running server. Both are asked the
//! same requests of the same API.

mod client;
mod command;
mod conversation;
mod file;
mod line_editor;
mod markdown;
mod parameters;
mod remote;
mod session;

use std::{
    io::{self, IsTerminal, Read},
    path::PathBuf,
};

use anyhow::{Context, ensure};
use clap::Args;
use hearth_engine::{EngineOptions, Speculation, adapters::AdapterOptions};
use tokio::runtime;

use self::{
    client::Client,
    conversation::{ChatHistory, Setting},
    remote::Remote,
    session::{Session, Stopping},
};
use super::{download::DownloadProgress, sampling::SamplingArgs};
use crate::{
    api::{router::app, wire::state::AppState},
    config::{ModelConfig, Secret},
    engine::Engine,
};

/// The arguments of `hearth chat`.
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelConfig,
    /// KV cache size in tokens, which limits the length of the conversation [default: one full context of the model]
    #[arg(long, env = "HEARTH_KV_CACHE_TOKENS", value_name = "TOKENS")]
    kv_cache_tokens: Option<usize>,
    /// Address of a running server with OpenAI's API, such as `http://127.0.0.1:8080`: chat with it instead of a model in this
    /// process
    #[arg(long, value_name = "URL", conflicts_with_all = ["model", "device", "dtype", "quantize", "kv_cache_dtype", "kv_cache_tokens", "max_seq_len", "precision"])]
    url: Option<String>,
    /// Model or adapter of that server to use [default: its first one]
    #[arg(long, value_name = "NAME", requires = "url")]
    model_name: Option<String>,
    /// API key of that server
    #[arg(long, env = "HEARTH_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<Secret>,
    /// PEM file with that server's own certificate [default: Mozilla's root certificates]
    #[arg(long, value_name = "FILE", requires = "url")]
    tls_cert: Option<PathBuf>,
    /// System prompt: tells the model how to answer
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Maximum number of tokens of an answer [default: the rest of the context]
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Option<usize>,
    /// Any other parameter of `/v1/chat/completions`, as in `/set`; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = Setting::parse_flag)]
    set: Vec<Setting>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Converses until the end of the input. Without a terminal, all of standard input is one message.
pub(crate) fn run(args: ChatArgs) -> anyhow::Result<()> {
    let is_interactive = io::stdin().is_terminal();
    let message = if is_interactive { None } else { Some(piped()?) };
    let mut conversation = ChatHistory::new(args.system.clone());
    conversation.settings = args.sampling.fields();
    if let Some(n) = args.max_tokens {
        conversation.settings.insert("max_tokens".to_owned(), n.into());
    }
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let client = client(&args)?;
    let model = runtime.block_on(client.model(args.model_name))?;
    let mut session = Session { runtime, client, model, conversation, parameters: None };
    let set = args.set.into_iter().try_for_each(|setting| session.set(setting, Stopping::EndsTheProgram));
    let ended = set.and_then(|()| match message {
        Some(message) => session.answer_once(message),
        None => session.converse(),
    });
    session.runtime.shutdown_background();
    ended
}

fn piped() -> anyhow::Result<String> {
    let mut message = String::new();
    io::stdin().read_to_string(&mut message).context("cannot read the message from standard input")?;
    ensure!(
        !message.trim().is_empty(),
        "standard input is empty\nhint: `echo \"Hello\" | hearth chat` sends a message; in a terminal, `hearth chat` asks for it"
    );
    // Removes the line break that `echo` adds.
    let end = message.strip_suffix('\n').map_or(message.len(), |text| text.trim_end_matches('\r').len());
    message.truncate(end);
    Ok(message)
}

fn client(args: &ChatArgs) -> anyhow::Result<Client> {
    // A key in the environment is ignored without `--url`, because it may be meant for other commands.
    ensure!(
        args.url.is_some() || args.api_key.is_none() || std::env::var_os("HEARTH_API_KEY").is_some(),
        "`--api-key` is for a running server\nhint: add its address, `--url`"
    );
    if let Some(url) = &args.url {
        return Ok(Client::There(Remote::new(url, args.api_key.as_ref(), args.tls_cert.as_deref())?));
    }
    let (model, defaults) = (args.model.clone(), args.sampling.defaults.sampling_defaults);
    let options = EngineOptions {
        max_queue: 1,
        max_batch_size: 1,
        max_batch_tokens: 256,
        kv_cache_tokens: args.kv_cache_tokens,
        kept_states: None,
        kv_cache_dtype: args.model.kv_cache_dtype.asked(),
        enforce_eager: false,
        speculation: Speculation::Off,
        adapters: AdapterOptions::NONE,
    };
    let load = move || {
        let mut progress = DownloadProgress::new();
        Ok(defaults.of(model.load(&mut |download| progress.show(&download))?))
    };
    let engine = Engine::start(load, options)?;
    let name = args.model.model_id();
    ensure!(
        engine.model().chat_template.is_some(),
        "the model `{name}` has no chat template, so it cannot answer\nhint: use a model that was trained for conversations \
         (often called `Instruct` or `Chat`); `hearth generate` continues a text with any model"
    );
    Ok(Client::Here(app(AppState::ready(name, engine))))
}
