//! `hearth-train sample`: continues a prompt with a model dir or a run's best model, with the loop that is also used
//! for samples during training and for `hearth generate`.

use std::{
    io::{self, Write},
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::builder::{OsStringValueParser, TypedValueParser};
use hearth_model::{
    device,
    generate::{GenerateOptions, generate},
    hub::ModelPart,
    model_source::ModelSource,
    sampling::SamplingParams,
    tokenizer::{DecodeOptions, Detokenizer, EncodeOptions},
    weights::model_dir::{self, LoadOptions},
};
use hearth_training::run_dir::write_whole;
use serde::Serialize;

use super::{
    model_files,
    options::{Options, print_json},
    status::Status,
};

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

    /// Write the text to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    #[command(flatten)]
    options: Options,
}

/// The JSON output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    /// The generated text.
    text: String,
    /// The number of generated tokens.
    n_tokens: usize,
}

/// Writes the text as it is generated.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let config = args.options.resolve(None)?;
    let path = model_files::open(&args.model, ModelPart::Whole)?;
    let chosen = device::choose(args.options.device)?;
    let model = model_dir::load(&path, &LoadOptions { device: chosen.device, dtype: None })?;
    let prompt_ids = model.tokenizer.encode(&args.prompt, EncodeOptions::PROMPT)?;
    ensure!(!prompt_ids.is_empty(), "the prompt is empty\nhint: give a text to continue, such as `\\n`");
    let options = GenerateOptions {
        max_tokens: config.sample.max_tokens,
        kv_dtype: None,
        sampling: SamplingParams { seed: config.seed, ..config.sample.params(SamplingParams::default()) },
        eos_token_ids: model.eos_token_ids,
    };
    let mut detokenizer =
        Detokenizer::new(&model.tokenizer, DecodeOptions { skip_special_tokens: true }).with_prefix(&prompt_ids);
    let (mut text, mut n_tokens) = (String::new(), 0);
    let mut written = Ok(());
    let is_shown = args.out.is_none() && !args.options.json;
    let write = |delta: &str| match is_shown {
        true => io::stdout().write_all(delta.as_bytes()).and_then(|()| io::stdout().flush()),
        false => Ok(()),
    };
    generate(&model.gpt, &prompt_ids, &options, |id| {
        if options.eos_token_ids.contains(&id) {
            return ControlFlow::Break(());
        }
        n_tokens += 1;
        let delta = detokenizer.push(id);
        text += &delta;
        written = write(&delta);
        if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let tail = detokenizer.finish();
    text += &tail;
    written.and_then(|()| write(&tail)).and_then(|()| write("\n")).context("cannot write the text")?;
    let context = model.gpt.config().max_seq_len;
    if n_tokens < options.max_tokens && prompt_ids.len() + n_tokens == context {
        Status::new().note(&format!(
            "the text ends before `sample.max_tokens={}`: with the prompt, it fills the model's context of {context} tokens",
            options.max_tokens
        ));
    }
    if let Some(path) = &args.out {
        write_whole(path, format!("{text}\n").as_bytes())?;
    }
    if args.options.json {
        return print_json(&Report { text, n_tokens });
    }
    Ok(ExitCode::SUCCESS)
}
