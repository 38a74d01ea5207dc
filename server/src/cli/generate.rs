//! `hearth generate`: continues a prompt in the terminal, without a server.

use std::{
    io::{self, Read, Write},
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use hearth_engine::{
    Event, LocalEngine, LocalOptions,
    request::{RequestParts, StopConditions, ValidationError, begun_by},
};
use hearth_model::text::tokenizer::EncodeOptions;

use super::{download, sampling::SamplingArgs};
use crate::config::ModelConfig;

/// The arguments of `hearth generate`.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// Text to continue, or the source of an encoder-decoder; `-` reads it from standard input
    prompt: String,
    /// How the answer of an encoder-decoder begins, such as the token of a target language [default: the tokens that the model's
    /// files name]
    #[arg(long, value_name = "TEXT")]
    decoder_prompt: Option<String>,
    #[command(flatten)]
    model: ModelConfig,
    /// Maximum number of tokens to generate
    #[arg(long, value_name = "TOKENS", default_value_t = 128, allow_negative_numbers = true)]
    max_tokens: usize,
    /// Stop string: ends the generation and is removed from the output; repeatable
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Streams the text to standard output and the speed to standard error.
pub(crate) fn run(args: GenerateArgs) -> anyhow::Result<()> {
    anyhow::ensure!(!args.stop.iter().any(String::is_empty), "`--stop` must not be empty");
    let prompt = read_prompt(args.prompt)?;
    let model = args.sampling.defaults.sampling_defaults.of(download::load_for_answers(&args.model)?);
    let given_ids = model.tokenizer.encode(&prompt, EncodeOptions::PROMPT)?;
    let n_prompt = given_ids.len();
    let (source_ids, prompt_ids) = match (model.gpt.config().is_encoder_decoder(), &args.decoder_prompt) {
        (true, None) => (given_ids, model.decoder_start),
        (true, Some(begun)) => {
            let begun = model.tokenizer.encode(begun, EncodeOptions::RENDERED)?;
            (given_ids, begun_by(&model.decoder_start, begun))
        }
        (false, None) => (Vec::new(), given_ids),
        (false, Some(_)) => return Err(ValidationError::NoEncoder { param: "--decoder-prompt" }.into()),
    };
    let n_begun = prompt_ids.len();
    let request = RequestParts {
        prompt_ids: prompt_ids.into(),
        source_ids: source_ids.into(),
        sampling: args.sampling.over(model.sampling_defaults),
        stop: StopConditions {
            max_tokens: args.max_tokens,
            stop_strings: args.stop.into(),
            stop_token_ids: Arc::new(model.eos_token_ids.into_iter().collect()),
            ..StopConditions::default()
        },
        ..RequestParts::default()
    };
    let n_tokens = model.gpt.config().max_seq_len.min(n_begun.saturating_add(args.max_tokens));
    let options = LocalOptions::for_one(request.n_source_places() + n_tokens, args.model.kv_cache_dtype.asked());

    let mut written = Ok(());
    let mut timer = Timer::start();
    LocalEngine::new(model.gpt, &model.tokenizer, options)?.run(vec![request], |_, event| {
        let delta = match event {
            Event::Token { text, .. } => {
                timer.token();
                text
            }
            Event::Finished { text, .. } => text + "\n",
            Event::PromptLogprobs(_) | Event::Embedding(_) => String::new(),
        };
        written = write_delta(&delta);
        if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    match written {
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        written => written.context("cannot write to standard output")?,
    }
    // The text has been written; failing to write the statistics is not an error.
    let _ = writeln!(io::stderr(), "{}", timer.summary(n_prompt));
    Ok(())
}

fn read_prompt(given: String) -> anyhow::Result<String> {
    if given != "-" {
        return Ok(given);
    }
    let mut prompt = String::new();
    io::stdin().read_to_string(&mut prompt).context("cannot read the prompt from standard input")?;
    Ok(prompt)
}

fn write_delta(delta: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(delta.as_bytes())?;
    stdout.flush()
}

/// Measures the time of the prompt (to the first token) and of the tokens after it.
struct Timer {
    started: Instant,
    first_token: Option<Instant>,
    n_tokens: usize,
}

impl Timer {
    fn start() -> Self {
        Self { started: Instant::now(), first_token: None, n_tokens: 0 }
    }

    fn token(&mut self) {
        self.first_token.get_or_insert_with(Instant::now);
        self.n_tokens += 1;
    }

    fn summary(&self, n_prompt: usize) -> String {
        let Some(first_token) = self.first_token else {
            return format!("prompt {n_prompt} tokens, no tokens generated");
        };
        let ttft = first_token - self.started;
        let decoding = first_token.elapsed();
        let decoded = match self.n_tokens - 1 {
            0 => String::new(),
            n_decoded => format!(", then {:.1} tok/s", per_second(n_decoded, decoding)),
        };
        format!(
            "prompt {n_prompt} tokens in {:.2} s ({:.1} tok/s), generated {} tokens{decoded}",
            ttft.as_secs_f64(),
            per_second(n_prompt, ttft),
            self.n_tokens,
        )
    }
}

fn per_second(n_tokens: usize, elapsed: Duration) -> f64 {
    n_tokens as f64 / elapsed.as_secs_f64().max(1e-9)
}
