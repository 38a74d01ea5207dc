//! `hearth-train quickstart`: one text file to a model, in one command.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use hearth_model::files::digest::{Digest, Digester};
use hearth_training::{
    cli::Status,
    config::{Layers, PRESETS, Purpose, TrainConfig},
    data::{
        corpus::{Encoder, FileKind, Marks, is_json, kind_of, read_to_string, split_by_chars},
        shard::Tokens,
        tokenizer_build::BuiltTokenizer,
    },
    run::trainer::{Data, DecoderTokens},
};

use super::session::{RunArgs, Session};

/// Trains a tokenizer and a model on a text file
///
/// The last tenth of the text is held out; the model with the lowest loss on it is kept in `RUN/model`, for `hearth serve
/// --model RUN` and for `transformers`. Without `--preset` and `--config`, the preset is `shakespeare-char-cpu`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The text to train on, UTF-8
    #[arg(value_name = "FILE")]
    text: PathBuf,

    /// Folder of the run: configuration, metrics, checkpoints, and the best model in `model/`
    #[arg(long, value_name = "RUN")]
    out: PathBuf,

    #[command(flatten)]
    run: RunArgs,
}

/// Reads, trains, saves, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    ensure!(
        !matches!(kind_of(&args.text), Some(FileKind::Json | FileKind::Table(_) | FileKind::Parquet)),
        "`{}` is a file of documents by its name, and `quickstart` trains on one text\nhint: use `hearth-train tokenizer`, \
         `prepare` and `pretrain`; if it is a text all the same, rename it to `.txt`",
        args.text.display()
    );
    let layers = Layers {
        purpose: Some(Purpose::Quickstart),
        default_preset: Some(PRESETS[0].name.to_owned()),
        ..Layers::default()
    };
    let session = Session::new(args.out, args.run, layers)?;
    session.config.validate_for(Purpose::Quickstart)?;
    let text = text_of(&args.text)?;
    if let Some(remark) = remark_about(&text) {
        Status::new().note(&format!("`{}`, {remark}", args.text.display()));
    }
    let data = data_of(&text, &session.config).with_context(|| format!("cannot train on `{}`", args.text.display()))?;
    session.train(data)
}

/// A note about a text with strings that usually represent tokens: here, all of it is trained as characters.
fn remark_about(text: &str) -> Option<String> {
    let (at, mark) = Marks::default().first_mark(text)?;
    let line = 1 + text[..at].matches('\n').count();
    Some(format!(
        "line {line}: `{mark}` is trained as plain characters; `hearth-train tokenizer`, `prepare` and `pretrain` make one token of \
         it, and end documents where it says so"
    ))
}

/// The text of a file, which must not be empty or JSON.
fn text_of(path: &Path) -> Result<String> {
    let text = read_to_string(path)?;
    ensure!(!text.is_empty(), "the text `{}` is empty\nhint: give a file with text in it", path.display());
    ensure!(
        !is_json(text.as_bytes()),
        "`{}` is JSON by its contents, and `quickstart` trains on one text\nhint: use `hearth-train tokenizer`, `prepare` and \
         `pretrain`",
        path.display()
    );
    Ok(text)
}

/// Tokenizes the text with a tokenizer trained on it.
fn data_of(text: &str, config: &TrainConfig) -> Result<Data> {
    let split = split_by_chars(text, config.data.val_fraction)?;
    let context = config.model.max_seq_len;
    let built = match config.data.vocab_size {
        // Built from the whole text, so that the validation split has no character without an id.
        None => BuiltTokenizer::characters(text, context)?,
        Some(vocab_size) => BuiltTokenizer::bpe(split.train, vocab_size, context)?,
    };
    let tokenizer = built.open()?;
    let encoder = Encoder::new(&tokenizer, built.tokenizer_json.as_bytes())?;
    let (train_ids, val_ids) = (encoder.encode_all(split.train)?, encoder.encode_all(split.val)?);
    let eos = tokenizer.eos().map(|eos| eos.id).into_iter().collect();
    let tokenizer_hash = Digest::of(built.tokenizer_json.as_bytes());
    let mut hash = Digester::new();
    hash.update(&tokenizer_hash.0);
    for ids in [&train_ids, &val_ids] {
        hash.update(&(ids.len() as u64).to_le_bytes());
        ids.iter().for_each(|id| hash.update(&id.to_le_bytes()));
    }
    let file = |name: &str, text: String| (name.to_owned(), text.into_bytes());
    Ok(Data {
        classifier: None,
        tokenizer,
        tokenizer_files: vec![
            file("tokenizer.json", built.tokenizer_json),
            file("tokenizer_config.json", built.tokenizer_config_json),
        ],
        train: Tokens::from_ids(train_ids, split.train.len() as u64).into(),
        val: Tokens::from_ids(val_ids, split.val.len() as u64).into(),
        hash: hash.finish(),
        tokenizer_hash,
        eos_token_ids: eos,
        decoder: DecoderTokens::default(),
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use super::*;

    #[test]
    fn marks_in_the_text_are_remarked_upon_and_json_is_rejected() {
        let remark = remark_about("one\n<|endoftext|>\ntwo").unwrap();
        assert!(remark.starts_with("line 2: `<|endoftext|>` is trained as plain characters"), "{remark}");
        assert_eq!(remark_about("a < b | c > d"), None);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.txt");
        fs::write(&path, "{\"text\": \"a\"}\n").unwrap();
        let error = text_of(&path).unwrap_err().to_string();
        assert!(error.contains("lines.txt` is JSON") && error.contains("\nhint: "), "{error}");
    }

    #[test]
    fn empty_text_file_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nothing.txt");
        fs::write(&path, "").unwrap();
        let error = text_of(&path).unwrap_err().to_string();
        assert!(error.contains("nothing.txt` is empty\nhint: "), "{error}");
    }
}
