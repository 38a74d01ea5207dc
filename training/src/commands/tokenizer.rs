//! `hearth-train tokenizer`: a corpus to a tokenizer.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, ensure};
use hearth_model::{files::byte_size::ByteSize, hub::Download};
use hearth_training::{
    cli::{Status, note_left_out, note_not_text, print_json},
    data::{
        corpus::{
            Cutting, FileSplit, LeftOut, Marks, Origin, ReadOptions, SourceFile, TextsBeside, WhyLeftOut, WordSplit,
            check_separator, files_of,
        },
        tokenizer_build::{
            BuiltTokenizer, END_OF_TEXT, SpecialTokens, bytes_per_token, collect_characters, count_words,
        },
    },
    interrupt::remove_when_interrupted,
    output_files,
};
use serde::Serialize;

/// Trains a tokenizer on a corpus
///
/// Makes a folder with `tokenizer.json` and `tokenizer_config.json`, which `hearth-train prepare` takes and `transformers`
/// opens. The default is byte-level BPE, which encodes any text.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Text files, jsonl, CSV, TSV or Parquet files (all but Parquet also compressed with gzip or zstd), folders of them, or
    /// data sets of the Hugging Face hub (`org/name`); files for validation and tests are left out
    #[arg(value_name = "FILES", required = true)]
    files: Vec<String>,

    /// Folder for the tokenizer; it must not be there, or be empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Size of the vocabulary, special tokens and the 256 bytes included
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, conflicts_with = "chars")]
    vocab_size: usize,

    /// One token for each character that occurs, as nanoGPT's character-level example has it
    #[arg(long)]
    chars: bool,

    /// How text is split into words, which merges never cross
    #[arg(long, value_enum, default_value_t = WordSplit::Gpt4, conflicts_with = "chars")]
    split: WordSplit,

    /// Token that ends a document; an empty string: none [default: <|endoftext|>, and none with --chars]
    #[arg(long, value_name = "TOKEN")]
    eos: Option<String>,

    /// Token that begins a document [default: none; without a value: <|bos|>]
    #[arg(long, value_name = "TOKEN", num_args = 0..=1, default_missing_value = "<|bos|>", require_equals = true)]
    bos: Option<String>,

    /// Padding token [default: none, and <|pad|> with --chat or without a value]
    #[arg(long, value_name = "TOKEN", num_args = 0..=1, default_missing_value = PAD, require_equals = true)]
    pad: Option<String>,

    /// For an encoder (`objective.kind=mlm`) or an encoder-decoder (`seq2seq`): `<s>` before a text, `</s>` after it,
    /// `<pad>` and `<mask>`
    #[arg(long, conflicts_with_all = ["eos", "bos", "pad", "chat"])]
    encoder: bool,

    /// Add <|im_start|> and <|im_end|>, and a ChatML template that uses them
    #[arg(long)]
    chat: bool,

    /// Field or column of the text, in jsonl and Parquet
    #[arg(long, value_name = "NAME", default_value = "text")]
    text_field: String,

    /// String between the documents of a text file, which is not learned from
    #[arg(long, value_name = "TEXT")]
    separator: Option<String>,

    /// Print the result on stdout as one JSON object
    #[arg(long)]
    json: bool,
}

const PAD: &str = "<|pad|>";

/// The result, printed on stdout.
#[derive(Debug, Serialize)]
struct Report {
    /// The folder of the tokenizer.
    out: PathBuf,
    /// Tokens of the vocabulary, special tokens included.
    vocab_size: usize,
    /// Special tokens.
    special_tokens: Vec<String>,
    /// Bytes of text it was trained on.
    bytes: u64,
    /// Bytes of that text in a token, on average.
    bytes_per_token: f64,
    /// Duration in seconds.
    seconds: f64,
}

/// Reads, counts, trains and writes.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let mut status = Status::new();
    let special = args.special_tokens();
    special.check()?;
    check_separator(args.separator.as_deref())?;
    if !args.chars {
        BuiltTokenizer::check_bpe(args.vocab_size, &special)?;
    }
    let (mut files, mut left_out) = (Vec::new(), Vec::new());
    // Checked before the work, not after it.
    let staged = output_files::stage(&args.out)?;
    remove_when_interrupted(staged.path());
    let origins: Vec<Origin> = args.files.iter().map(|file| Origin::parse(file)).collect();
    let mut download = |download: Download| status.show(|_| download.to_string());
    let [found, _] = files_of(&origins.iter().collect::<Vec<_>>(), &[], TextsBeside::ByName, &mut download)?;
    for found in found {
        let (train, val): (Vec<_>, Vec<_>) = found.files.into_iter().partition(|file| file.split == FileSplit::Train);
        files.extend(train);
        left_out.extend(found.left_out);
        let name = |file: SourceFile| file.path.display().to_string();
        left_out.extend(val.into_iter().map(|file| LeftOut { name: name(file), why: WhyLeftOut::ForValidation }));
    }
    note_left_out(&mut status, &left_out);
    let total: u64 = files.iter().map(|file| file.n_bytes).sum();

    // Words and characters do not depend on the borders of pieces.
    let (separator, cutting) = (args.separator, Cutting::Pieces);
    let marks = Marks::of_end(special.eos.as_deref());
    let options = ReadOptions { text_field: args.text_field, separator, marks, cutting };
    let mut progress = |n_read: u64| {
        status.show(|elapsed| {
            let rate = n_read as f64 / elapsed.as_secs_f64() / 1e6;
            format!("read {} of {}, {rate:.1} MB/s", ByteSize(n_read), ByteSize(total))
        });
    };
    let (built, n_bytes, per_token, report) = if args.chars {
        let (characters, report) = collect_characters(&files, &options, &mut progress)?;
        ensure_text(characters.n_bytes, &args.files)?;
        let built = BuiltTokenizer::from_characters(&characters.set, &special)?;
        (built, characters.n_bytes, characters.n_bytes as f64 / characters.n_chars as f64, report)
    } else {
        let (counts, report) = count_words(&files, &options, args.split, &mut progress)?;
        ensure_text(counts.n_bytes(), &args.files)?;
        status.note(&format!("{} of text, {} different words; merging", ByteSize(counts.n_bytes()), counts.n_words()));
        if let Some((n_dropped, floor)) = counts.dropped() {
            status.note(&format!(
                "to save memory, rare words were dropped {n_dropped} times (words seen at most {floor} times)"
            ));
        }
        if counts.n_learned() < counts.n_words() {
            status.note(&format!(
                "to save memory, merges are learned from the {} most frequent words",
                counts.n_learned()
            ));
        }
        let built = BuiltTokenizer::from_words(&counts, args.vocab_size, &special)?;
        let per_token = bytes_per_token(&counts, &built.open()?)?;
        (built, counts.n_bytes(), per_token, report)
    };
    let not_text: Vec<PathBuf> = report.not_text.into_iter().map(|index| files[index].path.clone()).collect();
    note_not_text(&mut status, &not_text);
    status.note_all(&report.notes);
    let tokenizer = built.open()?;
    for (name, text) in built.files() {
        staged.write(name, text.as_bytes())?;
    }
    staged.commit()?;

    let vocab_size = tokenizer.vocab_size();
    if !args.chars && vocab_size < args.vocab_size {
        status.note(&format!("the text has only enough pairs for {vocab_size} tokens, fewer than {}", args.vocab_size));
    }
    status.note(&format!(
        "a tokenizer of {vocab_size} tokens is in `{}`: {per_token:.2} bytes per token on this text, {:.1} s",
        args.out.display(),
        status.elapsed().as_secs_f64()
    ));
    if args.json {
        return print_json(&Report {
            out: args.out,
            vocab_size,
            special_tokens: tokenizer.special_tokens().into_iter().map(|(_, token)| token).collect(),
            bytes: n_bytes,
            bytes_per_token: per_token,
            seconds: status.elapsed().as_secs_f64(),
        });
    }
    Ok(ExitCode::SUCCESS)
}

fn ensure_text(n_bytes: u64, sources: &[String]) -> Result<()> {
    ensure!(
        n_bytes > 0,
        "there is no text in `{}`: all files are empty\nhint: use files or folders with text",
        sources.join("`, `")
    );
    Ok(())
}

impl Args {
    fn special_tokens(&self) -> SpecialTokens {
        if self.encoder {
            return SpecialTokens::of_encoder();
        }
        let default_eos = (!self.chars).then(|| END_OF_TEXT.to_owned());
        SpecialTokens {
            eos: self.eos.clone().or(default_eos).filter(|eos| !eos.is_empty()),
            bos: self.bos.clone(),
            pad: self.pad.clone().or_else(|| self.chat.then(|| PAD.to_owned())),
            mask: None,
            has_chat: self.chat,
        }
    }
}
