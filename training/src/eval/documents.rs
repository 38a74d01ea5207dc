//! The documents on which the loss is measured: text files of every kind that `hearth-train prepare` reads, and tokens.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use hearth_model::{
    TokenId,
    files::digest::Digest,
    hub::Download,
    text::{
        chat::ChatTemplate,
        tokenizer::{EncodeOptions, Tokenizer},
    },
    weights::model_dir::LoadedModel,
};

use crate::data::{
    corpus::{
        BytesRead, ConversationEncoder, Cutting, DocumentChunk, FileKind, FileSplit, Marks, Notes, Origin, ReadOptions,
        SourceFile, list_files, read_documents, read_tokens,
    },
    shard::{DATA_FILE, Dataset, Split, Tokens},
};

/// How documents are tokenized: the tokenizer's special tokens are added in front, and such strings in the text stay
/// text.
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

/// Reads the documents of a source: a file, a folder, a prepared data set, a token file, or a data set of the hub.
/// `model_path` is the model's path. All files of a folder are read. Notes about the documents are added to `notes`.
///
/// # Errors
/// The source cannot be read, is empty, or has tokens of another tokenizer.
pub fn read_source(
    source: &str,
    (model, model_path): (&LoadedModel, &Path),
    options: &DocumentOptions,
    notes: &mut Notes,
    progress: &mut dyn FnMut(Download),
) -> Result<Vec<Tokens>> {
    let path = Path::new(source);
    let documents = if path.join(DATA_FILE).is_file() {
        split_of(path, (model, model_path), options.split)?
    } else {
        let files = match Origin::parse(source) {
            Origin::Path(path) => list_files(&path)?,
            hub => {
                let files = hub.files(progress)?.files;
                let has_train = files.iter().any(|file| file.split == FileSplit::Train);
                files.into_iter().filter(|file| !has_train || file.split == FileSplit::Train).collect()
            }
        };
        let mut documents = Vec::new();
        for file in &files {
            match file.kind {
                FileKind::Tokens => documents.push(token_file(&file.path, &model.tokenizer, model_path)?),
                _ => documents.extend(read_file(file, model, options, notes)?),
            }
        }
        documents
    };
    ensure!(!documents.is_empty(), "`{source}` has no text\nhint: give a file with text");
    Ok(documents)
}

fn read_file(
    file: &SourceFile,
    model: &LoadedModel,
    options: &DocumentOptions,
    notes: &mut Notes,
) -> Result<Vec<Tokens>> {
    let DocumentOptions { text_field, separator, .. } = options;
    let marks = Marks::new(&model.tokenizer, model.chat_template.as_ref());
    let (text_field, separator) = (text_field.clone(), separator.clone());
    let read = ReadOptions { text_field, separator, marks, cutting: Cutting::Whole };
    let mut documents = Vec::new();
    read_documents(file, &read, &BytesRead::default(), notes, &mut |piece| {
        let place = || format!("cannot encode a document of `{}`", file.path.display());
        documents.push(encode(piece, &model.tokenizer, model.chat_template.as_ref()).with_context(place)?);
        Ok(())
    })?;
    Ok(documents)
}

fn encode(piece: DocumentChunk, tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Result<Tokens> {
    match (&piece.conversation, template) {
        (None, _) if piece.is_rendered => {
            Ok(of_ids(tokenizer.encode(&piece.text, EncodeOptions::RENDERED)?, tokenizer))
        }
        (None, _) => Ok(Tokens::from_ids(tokenizer.encode(&piece.text, DOCUMENT)?, piece.text.len() as u64)),
        (Some(conversation), Some(template)) => {
            let encoder = ConversationEncoder::new(tokenizer, template.clone());
            let (ids, _) = encoder.encode(conversation).with_context(|| conversation.place.clone())?;
            // The bytes are counted from the ids: `piece.text` is not the text that the template writes.
            Ok(of_ids(ids, tokenizer))
        }
        (Some(conversation), None) => bail!(
            "{} is a conversation, but the model has no chat template\nhint: evaluate a model with one, or text",
            conversation.place
        ),
    }
}

/// The documents of a split of a prepared data set, with the tokens that begin and end them; or the whole split as one document,
/// if no token ends documents alone.
fn split_of(dir: &Path, (model, model_path): (&LoadedModel, &Path), split: Split) -> Result<Vec<Tokens>> {
    let dataset = Dataset::open(dir)?;
    let tokenizer_file = tokenizer_file(model_path);
    let is_other = match tokenizer_file.exists() {
        true => Digest::of_file(&tokenizer_file)? != dataset.tokenizer_hash(),
        // A GGUF file has its tokenizer within.
        false => {
            let of_data = dataset.open_tokenizer()?;
            of_data.vocab_size() != model.tokenizer.vocab_size() || of_data.first_difference(&model.tokenizer).is_some()
        }
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
    match dataset.manifest().eos_id {
        Some(end) if !dataset.ends_turns(end, &model.tokenizer)? => {
            let n_bytes = |range| model.tokenizer.text_bytes(&tokens.read_range(range));
            let documents = tokens.documents(end).into_iter();
            Ok(documents.map(|range| tokens.part(range.clone(), n_bytes(range))).collect())
        }
        _ => Ok(vec![tokens.clone()]),
    }
}

fn tokenizer_file(model_path: &Path) -> PathBuf {
    hearth_model::weights::model_dir::model_of(model_path).join("tokenizer.json")
}

/// A token file of nanoGPT or llm.c, as one document.
fn token_file(path: &Path, tokenizer: &Tokenizer, model_path: &Path) -> Result<Tokens> {
    let mut ids = Vec::new();
    read_tokens(path, (tokenizer.vocab_size(), model_path), &BytesRead::default(), &mut |read| {
        ids.extend_from_slice(read);
        Ok(())
    })?;
    Ok(of_ids(ids, tokenizer))
}

fn of_ids(ids: Vec<TokenId>, tokenizer: &Tokenizer) -> Tokens {
    let n_bytes = tokenizer.text_bytes(&ids);
    Tokens::from_ids(ids, n_bytes)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use hearth_model::text::chat::Message;

    use super::*;
    use crate::data::{corpus::Conversation, tokenizer_build::BuiltTokenizer};

    #[test]
    fn conversation_byte_count_is_that_of_its_rendered_template() {
        let tokenizer = BuiltTokenizer::bpe(&"Be brief. user Hi ".repeat(20), 280, 64).unwrap().open().unwrap();
        let source = "Be brief.{% for m in messages %}<|endoftext|>[{{ m.content }}]{% endfor %}";
        let template = ChatTemplate::new(source, Path::new("chat_template.jinja")).unwrap();
        let messages = vec![Message::new("user", "Hié")];
        let conversation = Conversation { messages, tools: None, place: "line 1".to_owned() };
        let text = conversation.text();
        let piece = DocumentChunk::conversation(conversation);
        let document = encode(piece, &tokenizer, Some(&template)).unwrap();
        // The special token has no bytes.
        assert_eq!(document.n_bytes(), "Be brief.[Hié]".len() as u64);
        assert_ne!(document.n_bytes(), text.len() as u64);
    }
}
