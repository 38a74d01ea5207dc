//! `hearth-train sample`: continues a prompt with a model dir or a run's best model, with the engine that also serves.

use std::{
    io::{self, Write},
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use clap::builder::{OsStringValueParser, TypedValueParser};
use hearth_engine::{
    Event, LocalEngine, LocalOptions, StopCause,
    request::{RequestParts, StopConditions},
};
use hearth_model::{
    decode::sampling::SamplingParams,
    hub::ModelPart,
    model_source::ModelSource,
    system::device,
    text::tokenizer::EncodeOptions,
    weights::model_dir::{self, LoadOptions},
};
use hearth_training::{
    cli::{Status, model_path, print_json},
    config::{Layers, Purpose},
    output_files::write_whole,
};
use serde::Serialize;

use super::options::Options;

/// Continues a prompt with a trained model
///
/// How tokens are drawn is set in `sample`: `--set sample.temperature=0`, `sample.max_tokens`, `sample.top_k`,
/// `sample.top_p`; and `seed`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A model dir, a run, a GGUF file, or a model of the Hugging Face hub (`ORG/NAME[@REVISION][:FILE]`)
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    model: ModelSource,

    /// Text to continue
    prompt: String,

    /// Number of samples: each has the seed of the previous one plus 1; `---` separates them
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    number: u32,

    /// Write the text to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    #[command(flatten)]
    options: Options,
}

/// Stands between two samples.
const SEPARATOR: &str = "---\n";

/// A sample, and the JSON output of `--json` if there is one.
#[derive(Debug, Serialize)]
struct Report {
    /// The generated text.
    text: String,
    /// The number of generated tokens.
    n_tokens: usize,
}

/// The JSON output of several samples.
#[derive(Debug, Serialize)]
struct Reports {
    samples: Vec<Report>,
}

/// Writes the text as it is generated.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let layers = Layers { purpose: Some(Purpose::Sample), ..Layers::default() };
    let config = args.options.resolve(layers)?.config;
    let path = model_path(&args.model, ModelPart::Whole)?;
    let chosen = device::choose(args.options.device)?;
    let model = model_dir::load(&path, &LoadOptions { device: chosen.device, dtype: None })?;
    let prompt_ids = model.tokenizer.encode(&args.prompt, EncodeOptions::PROMPT)?;
    ensure!(!prompt_ids.is_empty(), "the prompt is empty\nhint: give a text to continue, such as `\\n`");
    ensure!(
        args.number == 1 || config.sample.temperature > 0.0,
        "`-n {}` samples would all be the same with `sample.temperature=0`\nhint: leave out one of the two",
        args.number
    );
    let is_shown = args.out.is_none() && !args.options.json;
    let write = |delta: &str| match is_shown {
        true => io::stdout().write_all(delta.as_bytes()).and_then(|()| io::stdout().flush()),
        false => Ok(()),
    };
    let mut samples = Vec::new();
    let context = model.gpt.config().max_seq_len;
    let max_tokens = config.sample.max_tokens;
    // An encoder reads the prompt, and the decoder begins with its start tokens.
    let (source_ids, prompt_ids) = match model.gpt.config().is_encoder_decoder() {
        true => (prompt_ids, model.decoder_start.clone()),
        false => (Vec::new(), prompt_ids),
    };
    let n_tokens = context.min(prompt_ids.len().saturating_add(max_tokens));
    let stop_token_ids = Arc::new(model.eos_token_ids.iter().copied().collect());
    let request = RequestParts {
        prompt_ids: prompt_ids.as_slice().into(),
        source_ids: source_ids.into(),
        stop: StopConditions { max_tokens, stop_token_ids, ..StopConditions::default() },
        ..RequestParts::default()
    };
    let options = LocalOptions::for_one(request.n_source_places() + n_tokens, None);
    let mut engine = LocalEngine::new(model.gpt, &model.tokenizer, options)?;
    for number in 0..u64::from(args.number) {
        if number > 0 {
            write(SEPARATOR).context("cannot write the text")?;
        }
        let sampling = SamplingParams {
            seed: config.seed.wrapping_add(number),
            ..config.sample.params(SamplingParams::default())
        };
        samples.push(sample(&mut engine, RequestParts { sampling, ..request.clone() }, &write)?);
    }
    if samples.iter().any(|Report { n_tokens, .. }| *n_tokens < max_tokens && prompt_ids.len() + n_tokens == context) {
        Status::new().note(&format!(
            "the text ends before `sample.max_tokens={max_tokens}`: with the prompt, it fills the model's context of {context} tokens"
        ));
    }
    if let Some(path) = &args.out {
        let texts: Vec<_> = samples.iter().map(|sample| format!("{}\n", sample.text)).collect();
        write_whole(path, texts.join(SEPARATOR).as_bytes())?;
    }
    if !args.options.json {
        return Ok(ExitCode::SUCCESS);
    }
    match <[Report; 1]>::try_from(samples) {
        Ok([one]) => print_json(&one),
        Err(samples) => print_json(&Reports { samples }),
    }
}

/// Continues the prompt, and calls `write` with the text as it is generated.
fn sample(engine: &mut LocalEngine, request: RequestParts, write: &impl Fn(&str) -> io::Result<()>) -> Result<Report> {
    let (mut text, mut n_tokens) = (String::new(), 0);
    let mut written = Ok(());
    engine.run(vec![request], |_, event| {
        let (delta, end) = match event {
            Event::Token { text, .. } => {
                n_tokens += 1;
                (text, "")
            }
            Event::Finished { cause, text, .. } => {
                // The token that ended the text is not part of it.
                n_tokens -= usize::from(matches!(cause, Some(StopCause::Token(_))));
                (text, "\n")
            }
            Event::PromptLogprobs(_) | Event::Embedding(_) => return ControlFlow::Continue(()),
        };
        text += &delta;
        written = write(&delta).and_then(|()| write(end));
        if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    written.context("cannot write the text")?;
    Ok(Report { text, n_tokens })
}
