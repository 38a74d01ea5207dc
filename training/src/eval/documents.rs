//! What the loss is measured on: text files of every kind that `hearth-train prepare` reads, and tokens.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use hearth_model::{
    chat::{Ending, RenderContext},
    hub::Download,
    tokenizer::{EncodeOptions, Tokenizer},
    weights::model_dir::LoadedModel,
};

use super::text_loss::Document;
use crate::{
    corpus::{BytesRead, Cutting, FileKind, Origin, Piece, ReadOptions, SourceFile, read_documents, read_tokens},
    digest::Digest,
    shard::{DATA_FILE, Dataset, Split},
};

/// How documents become tokens: special tokens are added in front as the tokenizer wants it, and strings like theirs in the text
/// stay text.
const DOCUMENT: EncodeOptions = EncodeOptions { add_special_tokens: true, parse_special_tokens: false };

/// How to read documents.
#[derive(Clone, Debug)]
pub struct DocumentOptions {
    /// The field or column of the text, in JSON and Parquet.
    pub text_field: String,
    /// The separator between documents in a text file; `None`: one document per file.
    pub separator: Option<String>,
    /// The split of a prepared data set.
    pub split: Split,
}

/// Reads the documents of a source: a file, a folder, a prepared data set, a token file, or a data set of the hub. `model_path` is
/// where the model was opened from.
///
/// # Errors
/// The source cannot be read, is empty, or has tokens of another tokenizer.
pub fn read_source(
    source: &str,
    (model, model_path): (&LoadedModel, &Path),
    options: &DocumentOptions,
    progress: &mut dyn FnMut(Download),
) -> Result<Vec<Document>> {
    let path = Path::new(source);
    let documents = if path.join(DATA_FILE).is_file() {
        vec![split_of(path, (model, model_path), options.split)?]
    } else {
        let files = Origin::parse(source).files(progress)?.files;
        let mut documents = Vec::new();
        for file in &files {
            match file.kind {
                FileKind::Tokens => documents.push(token_file(&file.path, &model.tokenizer)?),
                _ => documents.extend(read_file(file, model, options)?),
            }
        }
        documents
    };
    ensure!(!documents.is_empty(), "`{source}` has no text\nhint: give a file with text");
    Ok(documents)
}

fn read_file(file: &SourceFile, model: &LoadedModel, options: &DocumentOptions) -> Result<Vec<Document>> {
    let DocumentOptions { text_field, separator, .. } = options;
    let read = ReadOptions { text_field: text_field.clone(), separator: separator.clone(), cutting: Cutting::Whole };
    let mut documents = Vec::new();
    read_documents(file, &read, &BytesRead::default(), &mut |piece| {
        let place = || format!("cannot encode a document of `{}`", file.path.display());
        documents.push(encode(piece, model).with_context(place)?);
        Ok(())
    })?;
    Ok(documents)
}

fn encode(piece: Piece, model: &LoadedModel) -> Result<Document> {
    let n_bytes = piece.text.len() as u64;
    let ids = match (&piece.conversation, &model.chat_template) {
        (None, _) => model.tokenizer.encode(&piece.text, DOCUMENT)?,
        (Some(conversation), Some(template)) => {
            let context = RenderContext { ending: Ending::Closed, ..RenderContext::new(&model.tokenizer) };
            template.encode(&model.tokenizer, &conversation.messages, &context)?
        }
        (Some(conversation), None) => bail!(
            "{} is a conversation, but the model has no chat template\nhint: evaluate a model with one, or text",
            conversation.place
        ),
    };
    Ok(Document { ids, n_bytes })
}

/// A split of a prepared data set, as one document.
fn split_of(dir: &Path, (model, model_path): (&LoadedModel, &Path), split: Split) -> Result<Document> {
    let dataset = Dataset::open(dir)?;
    let tokenizer_file = tokenizer_file(model_path);
    let is_other = match std::fs::read(&tokenizer_file) {
        Ok(json) => Digest::of(&json) != dataset.tokenizer_hash(),
        // A GGUF file has no such file.
        Err(_) => dataset.manifest().vocab_size != model.tokenizer.vocab_size(),
    };
    ensure!(
        !is_other,
        "`{}` has tokens of another tokenizer than that of the model `{}`\nhint: prepare the data with `--tokenizer {}`, or \
         evaluate on text",
        dir.display(),
        model_path.display(),
        model_path.display()
    );
    let tokens = dataset.split(split);
    ensure!(
        tokens.len() > 1,
        "the split `{split}` of `{}` has {} tokens\nhint: use the other split: `--split`",
        dir.display(),
        tokens.len()
    );
    Ok(Document { ids: tokens.to_vec(), n_bytes: tokens.n_bytes() })
}

fn tokenizer_file(model_path: &Path) -> PathBuf {
    hearth_model::weights::model_dir::model_of(model_path).join("tokenizer.json")
}

/// A token file of nanoGPT or llm.c, as one document.
fn token_file(path: &Path, tokenizer: &Tokenizer) -> Result<Document> {
    let mut ids = Vec::new();
    read_tokens(path, tokenizer.vocab_size(), &BytesRead::default(), &mut |read| {
        ids.extend_from_slice(read);
        Ok(())
    })?;
    let bytes_of = |id: &u32| if tokenizer.is_special(*id) { 0 } else { tokenizer.token_bytes(*id).len() as u64 };
    let n_bytes = ids.iter().map(bytes_of).sum();
    Ok(Document { ids, n_bytes })
}
