//! Sources of documents: files, folders and data sets of the hub.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Result, anyhow, bail, ensure};
use hearth_model::hub::{Download, Hub, HubOptions};

use super::{
    conversation::Conversation,
    document_chunk::{Cutting, DocumentChunk},
    files::{FileKind, LeftOut, SourceFile, kind_of, list_files, split_files},
    hub_dataset::{Downloaded, HubDataset},
    marks::Marks,
    message::Turn,
    notes::{Note, Notes},
    open::{BytesRead, open_stream},
    parquet::ParquetTable,
    record::{Record, RecordOptions, RecordOutcome, kind_by_content, read_records},
    record_kind::{RecordKind, record_members},
    text::{NotUtf8, TextOptions, read_text, send_text},
};

/// A source from the command line, and its weight in a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSpec {
    /// Where the documents are.
    pub origin: Origin,
    /// Its weight, if given.
    pub weight: Option<f64>,
}

impl SourceSpec {
    /// Parses `ORIGIN` or `ORIGIN=WEIGHT`. If a file with the whole name exists, the name is a path.
    ///
    /// # Errors
    /// The weight is not positive.
    pub fn parse(text: &str) -> Result<SourceSpec> {
        let whole = || SourceSpec { origin: Origin::parse(text), weight: None };
        let Some((origin, weight)) = text.rsplit_once('=') else { return Ok(whole()) };
        let Ok(weight) = weight.parse::<f64>() else { return Ok(whole()) };
        if Path::new(text).exists() {
            return Ok(whole());
        }
        ensure!(
            weight.is_finite() && weight > 0.0,
            "the weight of `{origin}` must be positive, got {weight}\nhint: remove the source, or set a weight above 0"
        );
        Ok(SourceSpec { origin: Origin::parse(origin), weight: Some(weight) })
    }
}

/// Where documents are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file or folder.
    Path(PathBuf),
    /// A data set of the hub.
    Hub(HubDataset),
}

impl Origin {
    /// `org/name` is a data set of the hub, unless it is a path: a file or folder that exists, or a name that looks
    /// like a file name, or a path in a folder that exists.
    pub fn parse(text: &str) -> Origin {
        let path = Path::new(text);
        let is_file_name =
            |part: &str| kind_of(part.as_ref()).is_some_and(|kind| kind != FileKind::Text) || part.ends_with(".txt");
        let (id, inner) = text.split_once(':').map_or((text, None), |(id, inner)| (id, Some(inner)));
        let looks_like_path =
            path.exists() || inner.is_none() && is_file_name(id) || Path::new(id).parent().is_some_and(Path::is_dir);
        match HubDataset::parse(text) {
            Some(dataset) if !looks_like_path => Origin::Hub(dataset),
            _ => Origin::Path(path.to_owned()),
        }
    }

    /// The files, downloaded if needed, by the split in their names.
    ///
    /// # Errors
    /// As [`list_files`] and [`HubDataset::download`].
    pub fn files(&self, progress: &mut dyn FnMut(Download)) -> Result<Files> {
        match self {
            Origin::Path(path) => {
                let (files, left_out) = split_files(path, list_files(path)?);
                Ok(Files { files, left_out, notes: Notes::default(), commit: None })
            }
            Origin::Hub(dataset) => {
                let hub = Hub::new(HubOptions::from_env()?)?;
                let Downloaded { files, left_out, commit } = dataset.download(&hub, progress)?;
                Ok(Files { files, left_out, notes: Notes::default(), commit: Some(commit) })
            }
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Path(path) => path.display().fmt(f),
            Origin::Hub(dataset) => dataset.fmt(f),
        }
    }
}

/// The files of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The files.
    pub files: Vec<SourceFile>,
    /// Files that are left out.
    pub left_out: Vec<LeftOut>,
    /// Notes about file names.
    pub notes: Notes,
    /// The commit that they are from, of a data set of the hub.
    pub commit: Option<String>,
}

/// Settings for reading documents.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The field or column of the text, in jsonl and Parquet.
    pub text_field: String,
    /// The separator between documents in a text file; `None`: one document per file.
    pub separator: Option<String>,
    /// The marks that end a document in a text, and that identify rendered chats.
    pub marks: Marks,
    /// Whether documents may be split into pieces.
    pub cutting: Cutting,
}

/// The required form of each object of a corpus, for messages.
const DOCUMENT: &str = "a JSON object with the text in a field, such as {\"text\": \"...\"}";

/// Reads the documents of a file and passes their pieces to `sink`. Notes about them are added to `notes`.
///
/// # Errors
/// The file cannot be read or is damaged; the message has its name and, if known, the line or row. Errors of `sink`.
pub fn read_documents(
    file: &SourceFile,
    options: &ReadOptions,
    bytes_read: &BytesRead,
    notes: &mut Notes,
    sink: &mut dyn FnMut(DocumentChunk) -> Result<()>,
) -> Result<RecordOutcome> {
    let ReadOptions { text_field, separator, marks, cutting } = options;
    let texts = TextOptions { separator: separator.as_deref(), marks, cutting: *cutting };
    let path = &file.path;
    let kind = kind_by_content(file)?;
    let members = record_members(text_field);
    let table = if kind == FileKind::Parquet { Some(ParquetTable::open(path)?) } else { None };
    if let Some(table) = table.filter(|table| is_column_of_texts(table, text_field, &members)) {
        for name in table.names().filter(|name| name != text_field) {
            notes.add(Note::Unread(name.to_owned()), &format!("`{}`", path.display()));
        }
        let mut row = 0;
        table.read_texts(text_field, bytes_read, &mut |text| {
            row += 1;
            send_text(text, texts, &|| format!("`{}`, text {row}", path.display()), notes, sink)
        })?;
        return Ok(RecordOutcome::Read);
    }
    match kind {
        FileKind::Text => {
            if file.is_found {
                // Read completely before passing it on: half a document is not a document.
                let reader = open_stream(path, &BytesRead::default())?;
                match read_text(path, reader, texts, &mut Notes::default(), &mut |_| Ok(())) {
                    Err(error) if error.is::<NotUtf8>() => {
                        bytes_read.add(file.n_bytes);
                        return Ok(RecordOutcome::NotText);
                    }
                    read => read?,
                }
            }
            read_text(path, open_stream(path, bytes_read)?, texts, notes, sink)?;
        }
        FileKind::Json | FileKind::Table(_) | FileKind::Parquet => {
            let options = RecordOptions { members: &members, text_member: text_field, expected: DOCUMENT, marks };
            let mut said = Notes::default();
            let outcome = read_records(file, options, bytes_read, &mut said, &mut |record| {
                send_record(file, record, text_field, texts, notes, sink)
            });
            notes.extend(said);
            return outcome;
        }
        FileKind::Tokens => bail!(
            "`{}` has tokens, not text\nhint: use it with `hearth-train prepare` and the tokenizer that made it",
            path.display()
        ),
    }
    Ok(RecordOutcome::Read)
}

/// Whether a Parquet file has the text column. Also true if it has no column of a record: the error is then about the
/// missing text column.
fn is_column_of_texts(table: &ParquetTable<'_>, text_field: &str, members: &[&str]) -> bool {
    table.has_flat(text_field) || !table.names().any(|name| name != text_field && members.contains(&name))
}

/// Sends the document of a record: a text or a conversation. One that is empty or null is skipped.
fn send_record(
    file: &SourceFile,
    record: Record,
    text_field: &str,
    texts: TextOptions<'_>,
    notes: &mut Notes,
    sink: &mut dyn FnMut(DocumentChunk) -> Result<()>,
) -> Result<()> {
    let Record { place, members } = record;
    let full_place = || format!("`{}`, {place}", file.path.display());
    let wrong = |what: &str, hint: &str| anyhow!("{}: {what}\nhint: {hint}", full_place());
    if RecordKind::is_nothing(&members, text_field) {
        return Ok(());
    }
    let (form, said) = RecordKind::of(&members, text_field).map_err(|(what, hint)| {
        match RecordKind::is_known(&members, text_field) {
            true => wrong(&what, hint),
            false => {
                let names: Vec<&str> = members.keys().map(String::as_str).collect();
                let what = format!("there is no field `{text_field}`, only: `{}`", names.join("`, `"));
                wrong(&what, "set the field of the text with `--text-field`")
            }
        }
    })?;
    said.into_iter().for_each(|note| notes.add(note, &full_place()));
    match form {
        RecordKind::Text(text) => send_text(&text, texts, &full_place, notes, sink),
        RecordKind::Conversation { turns, tools, .. } => {
            if let Some(index) = turns.iter().position(|turn| turn.is_assistant() && !turn.is_trained) {
                return Err(wrong(
                    &format!("message {} is not to be trained, but here every token counts", index + 1),
                    "fine-tune on it with `hearth-train finetune`, or remove what says so",
                ));
            }
            let messages = turns.into_iter().map(|Turn { message, .. }| message).collect();
            sink(DocumentChunk::conversation(Conversation { messages, tools, place }))
        }
        RecordKind::Completion { .. } => Err(wrong(
            "it is a prompt with a completion, which is an example for fine-tuning",
            "use it with `hearth-train finetune`, or set the field of the text with `--text-field`",
        )),
        RecordKind::Keep(_) => {
            Err(wrong("it is a text to `keep`, which is for fine-tuning", "use it with `hearth-train finetune`"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use hearth_model::text::chat::Message;

    use super::*;

    #[test]
    fn source_weight_follows_the_last_equals_sign() {
        let parse = |text: &str| SourceSpec::parse(text).unwrap();
        let spec = |path: &str, weight| SourceSpec { origin: Origin::Path(path.into()), weight };
        assert_eq!(parse("a/b.txt"), spec("a/b.txt", None));
        assert_eq!(parse("a=b=0.5"), spec("a=b", Some(0.5)));
        assert_eq!(parse("a=b").weight, None);
        for wrong in ["a=0", "a=-1", "a=inf", "a=nan"] {
            assert!(SourceSpec::parse(wrong).unwrap_err().to_string().contains("`a` must be positive"), "{wrong}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run=2");
        fs::write(&path, "x").unwrap();
        assert_eq!(parse(path.to_str().unwrap()), spec(path.to_str().unwrap(), None));
    }

    #[test]
    fn origin_parse_distinguishes_hub_ids_from_paths() {
        for id in ["org/name", "org/name@v1", "org/name:data/train.parquet", "org/name:en"] {
            assert_eq!(Origin::parse(id), Origin::Hub(HubDataset::parse(id).unwrap()));
        }
        // `src` is a folder here.
        for path in ["org/name.txt", "org/data.jsonl.gz", "src/absent", "name", "a/b/c", "/a/b", "./a"] {
            assert_eq!(Origin::parse(path), Origin::Path(path.into()));
        }
        let weighted = SourceSpec::parse("org/name:en=0.25").unwrap();
        assert_eq!((weighted.origin.to_string().as_str(), weighted.weight), ("org/name:en", Some(0.25)));
    }

    #[test]
    fn non_utf8_file_in_a_folder_is_skipped_whole_but_rejected_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("picture");
        fs::write(&path, [&b"text ".repeat(100_000)[..], b"\xff"].concat()).unwrap();
        let options = options(Cutting::Pieces);
        let read = |path: &Path| {
            let mut n_pieces = 0;
            let mut sink = |_| {
                n_pieces += 1;
                Ok(())
            };
            let outcome = read_documents(
                &list_files(path).unwrap()[0],
                &options,
                &BytesRead::default(),
                &mut Notes::default(),
                &mut sink,
            );
            (outcome.map_err(|error| error.to_string()), n_pieces)
        };
        assert_eq!(read(dir.path()), (Ok(RecordOutcome::NotText), 0));
        assert!(read(&path).0.unwrap_err().contains("0xff at offset 500000"));
    }

    fn options(cutting: Cutting) -> ReadOptions {
        ReadOptions { text_field: "text".into(), separator: None, marks: Marks::default(), cutting }
    }

    /// Reads a text as `a.jsonl`.
    fn read(text: &str, field: &str, sink: &mut dyn FnMut(DocumentChunk) -> Result<()>) -> Result<Notes> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        fs::write(&path, text).unwrap();
        let options = ReadOptions { text_field: field.into(), ..options(Cutting::Whole) };
        let mut notes = Notes::default();
        read_documents(&list_files(&path).unwrap()[0], &options, &BytesRead::default(), &mut notes, sink)?;
        Ok(notes)
    }

    fn documents(text: &str, field: &str) -> Result<Vec<String>> {
        let mut documents = Vec::new();
        read(text, field, &mut |piece| {
            documents.push(piece.text);
            Ok(())
        })?;
        Ok(documents)
    }

    #[test]
    fn jsonl_text_field_of_each_line_is_a_document() {
        let text = "{\"text\": \"one\\nline \\u00e9\"}\n\n{\"id\": {\"text\": 1}, \"text\": \"two\"}\r\n{\"text\": null}\n{\"text\":\"\"}\n{\"text\":\"three\"}";
        assert_eq!(documents(text, "text").unwrap(), ["one\nline é", "two", "three"]);
        assert_eq!(documents("{\"body\": \"x\", \"text\": 1}", "body").unwrap(), ["x"]);
    }

    #[test]
    fn json_array_elements_are_read_as_documents() {
        let text = "\n [\n  {\"text\": \"one\\n\", \"id\": [1, 2]},\n  {\"text\": null}, {\"text\": \"\"},\n{\"text\":\"t\u{e9}\"}\n]\n";
        assert_eq!(documents(text, "text").unwrap(), ["one\n", "té"]);
        assert_eq!(documents("[]", "text").unwrap(), [""; 0]);
    }

    #[test]
    fn jsonl_messages_are_a_conversation_and_lines_with_both_are_rejected() {
        let mut pieces = Vec::new();
        let text = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yes?\"}]}\n\
                    {\"messages\": []}\n{\"messages\": null, \"text\": \"t\"}\n{\"text\": \"u\", \"messages\": null}\n\
                    {\"text\": null, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n{\"messages\": null, \"text\": null}";
        read(text, "text", &mut |piece| {
            pieces.push(piece);
            Ok(())
        })
        .unwrap();
        let conversation = |place: &str, messages: &[Message]| {
            DocumentChunk::conversation(Conversation { messages: messages.to_vec(), tools: None, place: place.into() })
        };
        let text = |text: &str| DocumentChunk::text(text, true);
        let messages = [Message::new("user", "Hi"), Message::new("assistant", "Yes?")];
        let first = conversation("line 1", &messages);
        assert_eq!(first.text, "user\nHi\nassistant\nYes?\n");
        assert_eq!(pieces, [first, text("t"), text("u"), conversation("line 5", &messages[..1])]);
        for (line, message) in [
            ("{\"messages\": [{\"role\": \"user\"}]}", "`messages[0]` has no `content`"),
            ("{\"messages\": [1], \"text\": \"t\"}", "there is both `messages` and `text`"),
            (
                "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"loss\": false}]}",
                "message 1 is not to be trained",
            ),
            (
                "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"function_call\": {\"name\": \"f\"}}]}",
                "`messages[0]` has no `content`, only `function_call`",
            ),
            ("{\"prompt\": \"a\", \"completion\": \"b\"}", "a prompt with a completion"),
        ] {
            let error = documents(&format!("\n{line}"), "text").unwrap_err().to_string();
            assert!(error.contains("a.jsonl`, line 2: ") && error.contains(message), "{error}");
            assert!(error.contains("\nhint: "), "{error}");
        }
    }

    #[test]
    fn jsonl_tools_belong_to_the_conversation_and_to_no_text() {
        let messages = "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]";
        let read = |text: String| {
            let mut tools = Vec::new();
            super::tests::read(&text, "text", &mut |piece| {
                tools.push(piece.conversation.and_then(|conversation| conversation.tools));
                Ok(())
            })
            .map(|_| tools)
        };
        let found = read(format!(
            "{{\"tools\": [{{\"name\": \"f\"}}], {messages}}}\n{{{messages}, \"tools\": null}}\n\
             {{\"text\": \"t\", \"tools\": \"a hammer\"}}"
        ));
        assert_eq!(found.unwrap(), [Some(serde_json::json!([{ "name": "f" }])), None, None]);
        let error = read(format!("{{{messages}, \"tools\": \"a hammer\"}}")).unwrap_err().to_string();
        assert!(error.contains("line 1: `tools` is not a list of objects\nhint: "), "{error}");
    }

    #[test]
    fn json_array_reading_stops_with_the_error_of_its_sink() {
        let text = "[{\"text\": \"a\"}, {\"text\": \"b\"}]";
        let mut n = 0;
        let error = read(text, "text", &mut |_| {
            n += 1;
            Err(anyhow!("no room"))
        });
        assert_eq!((error.unwrap_err().to_string().as_str(), n), ("no room", 1));
    }

    #[test]
    fn invalid_json_is_rejected_by_line_or_element_number() {
        let cases = [
            ("{\"text\": \"a\"}\n{\"text\": \"b\n", "line 2: EOF while parsing a string at column 11\n"),
            ("{\n  \"text\": \"a\"\n}\n", "line 1: EOF while parsing an object at column 1\n"),
            (
                "{\"text\": \"a\"}\n{\"body\": \"b\", \"id\": 1}\n",
                "line 2: there is no field `text`, only: `body`, `id`",
            ),
            ("1\n", "line 1: invalid type"),
            ("[1]\n", "behind element 0 of the array: invalid type"),
            ("[{\"text\": \"a\"},\n{\"body\": \"b\"}]", "element 2: there is no field `text`, only: `body`"),
            ("[{\"text\": \"a\"},\n{\"te", "behind element 1 of the array: EOF"),
            ("[{\"text\": \"a\"}]\n[]", "behind element 1 of the array: trailing characters at line 2"),
            ("{\"text\": 5}\n", "line 1: `text` is not a string"),
            ("{\"text\": \"a\"} x\n", "line 1: trailing characters"),
            ("\n\nnot json\n", "line 3"),
        ];
        for (text, message) in cases {
            let error = documents(text, "text").unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("a.jsonl") && error.contains("\nhint: "), "{error}");
        }
    }
}
