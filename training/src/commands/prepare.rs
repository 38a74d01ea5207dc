//! `hearth-train prepare`: documents and a tokenizer to token shards.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser};
use hearth_model::{files::byte_size::ByteSize, hub::ModelPart, model_source::ModelSource};
use hearth_training::{
    cli::{Status, model_path, note_left_out, note_not_text, print_json},
    data::{
        corpus::{Origin, SourceSpec},
        prepare::{PrepareSettings, Progress, SplitBy, StoppingStrategy, prepare},
        shard::{SHARD_TOKENS, SourceInfo, Split},
    },
    interrupt::remove_when_interrupted,
};
use serde_json::json;

/// Turns documents into token shards to train on
///
/// Makes a folder with the tokens of a training and a validation split, a copy of the tokenizer, and `data.json`, which
/// describes the contents. Each document ends with the tokenizer's end-of-text token. Conversations (`messages` in
/// jsonl, with `role` and `content`) are rendered with the tokenizer's chat template.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Text files, jsonl, CSV, TSV or Parquet files (all but Parquet also compressed with gzip or zstd), folders of them (files of
    /// a test split are left out), data sets of the Hugging Face hub (`org/name`), or token files of nanoGPT (`train.bin`, `val.bin`) and llm.c. `SOURCE=WEIGHT`, for all of
    /// them, sets each one's share of the training tokens
    #[arg(value_name = "SOURCES", required = true)]
    sources: Vec<String>,

    /// The tokenizer: a folder made by `hearth-train tokenizer`, a model dir, or a model of the Hugging Face hub (`ORG/NAME`)
    #[arg(long, value_name = "DIR|NAME", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    tokenizer: ModelSource,

    /// Folder for the data; it must not be there, or be empty
    #[arg(long, value_name = "DATA")]
    out: PathBuf,

    /// Files for the validation split, of the same kinds as SOURCES [default: the files of SOURCES with `validation`,
    /// `valid`, `val` or `dev` in their names]
    #[arg(long, value_name = "FILES", num_args = 1..)]
    val: Vec<String>,

    /// How the validation split is chosen [default: tail for a single text file without --separator, hash otherwise; token
    /// files are split by their names]
    #[arg(long, value_enum)]
    split: Option<SplitBy>,

    /// Share held out for validation, or 0 [default: 0.01 of the documents by hash, 0.1 of the text by tail]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    val_fraction: Option<f64>,

    /// Field or column of the text, in jsonl and Parquet
    #[arg(long, value_name = "NAME", default_value = "text")]
    text_field: String,

    /// String between the documents of a text file [default: a file is one document]
    #[arg(long, value_name = "TEXT")]
    separator: Option<String>,

    /// When a mixture of weighted sources is complete
    #[arg(long, value_enum, default_value_t)]
    stopping_strategy: StoppingStrategy,

    /// Print the result on stdout as one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads, encodes, writes and reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let mut status = Status::new();
    let settings = args.settings()?;
    let prepared = prepare(&settings, &mut |progress| match progress {
        Progress::Begin(partial) => remove_when_interrupted(&partial),
        Progress::Download(download) => status.show(|_| download.to_string()),
        Progress::Encode { bytes_read, bytes_total, tokens } => status.show(|elapsed| {
            let (tokens, seconds) = (tokens as f64 / 1e6, elapsed.as_secs_f64());
            let (bytes_read, bytes_total) = (ByteSize(bytes_read), ByteSize(bytes_total));
            format!("read {bytes_read} of {bytes_total}, {tokens:.1} M tokens, {:.2} M tokens/s", tokens / seconds)
        }),
    })?;
    let manifest = &prepared.manifest;
    note_not_text(&mut status, &prepared.not_text);
    note_left_out(&mut status, &prepared.left_out);
    status.note_all(&prepared.notes);
    if manifest.eos_id.is_none() && manifest.train.documents + manifest.val.documents > 2 {
        status.note("the tokenizer has no end-of-text token: there is no token between documents");
    }
    for source in &manifest.sources {
        status.note(&source_line(source));
    }
    for split in Split::ALL {
        let info = manifest.split_info(split);
        status.note(&format!(
            "{split}: {} documents, {} tokens, {} of text, {:.2} bytes per token",
            info.documents,
            info.tokens,
            ByteSize(info.bytes),
            info.bytes as f64 / info.tokens.max(1) as f64
        ));
    }
    if manifest.val.documents == 0 && args.split.is_none() && args.val_fraction.is_none() {
        let n = manifest.train.documents;
        status.note(&format!(
            "nothing is held out for validation: {n} documents are few; `--val-fraction 0.1` holds some out"
        ));
    }
    let seconds = status.elapsed().as_secs_f64();
    let tokens = manifest.train.tokens + manifest.val.tokens;
    status.note(&format!(
        "the data is in `{}`: {tokens} tokens in {seconds:.1} s, {:.2} M tokens/s",
        args.out.display(),
        tokens as f64 / seconds / 1e6
    ));
    if args.json {
        return print_json(&json!({ "out": args.out, "seconds": seconds, "data": manifest }));
    }
    Ok(ExitCode::SUCCESS)
}

fn source_line(source: &SourceInfo) -> String {
    let SourceInfo { path, share, documents, tokens, bytes: n_bytes, epochs, .. } = source;
    let epochs = if *epochs == 1.0 { String::new() } else { format!(", {epochs:.2} epochs") };
    format!(
        "`{path}`: {documents} documents, {tokens} tokens, {} of text, {:.2} % of the training tokens{epochs}",
        ByteSize(*n_bytes),
        share * 100.0
    )
}

impl Args {
    fn settings(&self) -> Result<PrepareSettings> {
        Ok(PrepareSettings {
            sources: self.sources.iter().map(|source| SourceSpec::parse(source)).collect::<Result<_>>()?,
            validation: self.val.iter().map(|source| Origin::parse(source)).collect(),
            tokenizer: match &self.tokenizer {
                // `prepare` opens the folder and reports errors.
                ModelSource::Path(path) => path.clone(),
                source => model_path(source, ModelPart::BesideWeights)?,
            },
            out: self.out.clone(),
            split: self.split,
            val_fraction: self.val_fraction,
            text_field: self.text_field.clone(),
            separator: self.separator.clone(),
            stopping: self.stopping_strategy,
            shard_tokens: SHARD_TOKENS,
        })
    }
}
