//! JSON: one object per line, or an array of objects; one document each: the text in a field, or the conversation in
//! `messages`, with its `tools`.

use std::{fmt, io::BufRead, path::Path};

use anyhow::{Context, Result, anyhow};
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use hearth_model::chat::Message;
use serde_json::Value;

use super::{
    conversation::{Conversation, TOOLS, tools_of},
    piece::{Cutting, Piece},
    text::{Sink, damaged, send_document},
};

/// The field of conversations.
const MESSAGES: &str = "messages";

/// What each object of a corpus must be, for messages.
const TEXT_OBJECT: &str = "a JSON object with the text in a field, such as {\"text\": \"...\"}";

/// Reads the field `field` of each object, or `messages` if that field is missing or null, one object in memory at a time: the
/// elements of an array if the text begins with `[`, else the lines. Empty lines and documents that are empty or null are
/// skipped.
pub(super) fn read_json(
    path: &Path,
    reader: impl BufRead,
    field: &str,
    cutting: Cutting,
    sink: Sink<'_>,
) -> Result<()> {
    let objects = Objects { path, seed: TextField(field), expected: TEXT_OBJECT };
    objects.read(reader, &mut |place, found| send(&place, found, field, cutting, sink))
}

/// Reads objects, one in memory at a time: the elements of an array if the text begins with `[`, else the lines. Empty lines
/// are skipped.
pub(super) struct Objects<'a, S> {
    pub(super) path: &'a Path,
    /// What is read of each object.
    pub(super) seed: S,
    /// What each object must be, for messages.
    pub(super) expected: &'a str,
}

/// Receives what was read of each object.
type Each<'a, T> = &'a mut dyn FnMut(Place<'_>, T) -> Result<()>;

impl<S, T> Objects<'_, S>
where
    S: Copy + for<'de> DeserializeSeed<'de, Value = T>,
{
    /// Passes the objects to `each`, in order.
    ///
    /// # Errors
    /// The text is damaged, or an object is not JSON or not what is expected; the message has the file and the line. Errors
    /// of `each`.
    pub(super) fn read(&self, mut reader: impl BufRead, each: Each<'_, T>) -> Result<()> {
        let start = reader.fill_buf().with_context(|| damaged(self.path, 0))?;
        match start.trim_ascii_start().first() {
            Some(b'[') => read_array(self, reader, each),
            _ => read_lines(self, reader, each),
        }
    }
}

fn read_array<S, T>(objects: &Objects<'_, S>, reader: impl BufRead, each: Each<'_, T>) -> Result<()>
where
    S: Copy + for<'de> DeserializeSeed<'de, Value = T>,
{
    let Objects { path, seed, expected } = *objects;
    let mut stopped = None;
    let mut n_read = 0;
    let array = Array { path, seed, each, stopped: &mut stopped, n_read: &mut n_read };
    let mut json = serde_json::Deserializer::from_reader(reader);
    let read = json.deserialize_seq(array).and_then(|()| json.end());
    if let Some(error) = stopped {
        return Err(error);
    }
    read.map_err(|error| {
        if error.is_io() {
            return anyhow::Error::from(error).context(damaged(path, 0));
        }
        anyhow!(
            "`{}`, behind element {n_read} of the array: {error}\nhint: each element must be {expected}",
            path.display()
        )
    })
}

/// Passes on what is read of each element of an array.
struct Array<'a, S, T> {
    path: &'a Path,
    seed: S,
    each: Each<'a, T>,
    /// The error that stopped the reading, if it is not in the JSON.
    stopped: &'a mut Option<anyhow::Error>,
    n_read: &'a mut u64,
}

impl<'de, S: Copy + DeserializeSeed<'de, Value = T>, T> Visitor<'de> for Array<'_, S, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        while let Some(found) = array.next_element_seed(self.seed)? {
            *self.n_read += 1;
            let place = Place { path: self.path, what: "element", number: *self.n_read };
            if let Err(error) = (self.each)(place, found) {
                *self.stopped = Some(error);
                return Err(de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// Where an object is.
pub(super) struct Place<'a> {
    path: &'a Path,
    /// "line" or "element".
    what: &'static str,
    number: u64,
}

impl Place<'_> {
    /// The place in the file, such as "line 3".
    pub(super) fn in_file(&self) -> String {
        format!("{} {}", self.what, self.number)
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, {} {}", self.path.display(), self.what, self.number)
    }
}

/// Sends what was found in an object.
fn send(place: &Place<'_>, found: Found, field: &str, cutting: Cutting, sink: Sink<'_>) -> Result<()> {
    match found {
        Found::Text(text) => send_document(&text, cutting, sink),
        Found::Null => Ok(()),
        Found::Messages { messages, tools } => {
            let messages: Vec<Message> = serde_json::from_value(messages).map_err(|error| {
                anyhow!(
                    "{place}: `{MESSAGES}` is not a conversation: {error}\nhint: it must be a list of objects with `role` and \
                     `content`, both strings"
                )
            })?;
            if messages.is_empty() {
                return Ok(());
            }
            let tools = tools_of(&tools).map_err(|(what, hint)| anyhow!("{place}: {what}\nhint: {hint}"))?;
            let conversation = Conversation { messages, tools, place: place.in_file() };
            sink(Piece { text: conversation.text(), is_last: true, conversation: Some(conversation) })
        }
        Found::Missing(keys) => Err(anyhow!(
            "{place}: there is no field `{field}`, only: `{}`\nhint: set the field of the text with `--text-field`",
            keys.join("`, `")
        )),
    }
}

fn read_lines<S, T>(objects: &Objects<'_, S>, mut reader: impl BufRead, each: Each<'_, T>) -> Result<()>
where
    S: Copy + for<'de> DeserializeSeed<'de, Value = T>,
{
    let Objects { path, seed, expected } = *objects;
    let mut line = Vec::new();
    let mut offset = 0;
    for number in 1_u64.. {
        line.clear();
        let n_bytes = reader.read_until(b'\n', &mut line).with_context(|| damaged(path, offset))?;
        if n_bytes == 0 {
            break;
        }
        offset += n_bytes as u64;
        if line.trim_ascii().is_empty() {
            continue;
        }
        // Without the line break: serde would report the end of the line as a second line.
        let mut json = serde_json::Deserializer::from_slice(line.trim_ascii_end());
        let found = seed.deserialize(&mut json).and_then(|found| json.end().map(|()| found));
        let place = Place { path, what: "line", number };
        let found = found.map_err(|error| broken_line(&place, &line, &error, expected))?;
        each(place, found)?;
    }
    Ok(())
}

fn broken_line(place: &Place<'_>, line: &[u8], error: &serde_json::Error, expected: &str) -> anyhow::Error {
    if std::str::from_utf8(line).is_err() {
        return anyhow!(
            "{place}: it is not UTF-8 text\nhint: convert the file first, for example with `iconv -f LATIN1 -t UTF-8`"
        );
    }
    let what = error.to_string();
    // Line numbers in serde's message refer to this line alone.
    let what = what.replace(" at line 1 column ", " at column ");
    anyhow!("{place}: {what}\nhint: each line must be {expected}; the file may also be one array of them")
}

/// The value of the field in an object.
enum Found {
    Text(String),
    /// A conversation, in an object without a text.
    Messages {
        messages: Value,
        tools: Value,
    },
    Null,
    /// The keys of the object.
    Missing(Vec<String>),
}

/// Reads one field of an object and skips the others.
#[derive(Clone, Copy)]
struct TextField<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for TextField<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TextField<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let (mut found, mut messages, mut tools) = (None, None, Value::Null);
        let mut keys = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == self.0 {
                let text = map
                    .next_value::<Option<String>>()
                    .map_err(|error| de::Error::custom(format!("field `{key}` is not a string: {error}")))?;
                found = Some(text.map_or(Found::Null, Found::Text));
            } else if key == MESSAGES {
                messages = Some(map.next_value::<Value>()?);
                keys.push(key);
            } else if key == TOOLS {
                tools = map.next_value()?;
                keys.push(key);
            } else {
                map.next_value::<IgnoredAny>()?;
                keys.push(key);
            }
        }
        let messages = messages.filter(Value::is_array).map(|messages| Found::Messages { messages, tools });
        Ok(match found {
            // `messages` also replaces a null text: data from tables has every field in every object.
            None | Some(Found::Null) => messages.or(found).unwrap_or(Found::Missing(keys)),
            Some(found) => found,
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn documents(text: &str, field: &str) -> Result<Vec<String>> {
        let mut documents = Vec::new();
        read_json(Path::new("a.jsonl"), text.as_bytes(), field, Cutting::Whole, &mut |piece| {
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
    fn jsonl_messages_are_a_conversation_unless_the_line_has_a_text() {
        let mut pieces = Vec::new();
        let text = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yes?\"}]}\n\
                    {\"messages\": []}\n{\"messages\": [1], \"text\": \"t\"}\n{\"text\": \"u\", \"messages\": null}\n\
                    {\"text\": null, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n{\"messages\": null, \"text\": null}";
        read_json(Path::new("a.jsonl"), text.as_bytes(), "text", Cutting::Whole, &mut |piece| {
            pieces.push(piece);
            Ok(())
        })
        .unwrap();
        let conversation = |place: &str, messages: &[Message], text: &str| {
            let conversation = Conversation { messages: messages.to_vec(), tools: None, place: place.into() };
            Piece { text: text.into(), is_last: true, conversation: Some(conversation) }
        };
        let text = |text: &str| Piece { text: text.into(), is_last: true, conversation: None };
        let messages = [Message::new("user", "Hi"), Message::new("assistant", "Yes?")];
        let first = conversation("line 1", &messages, "user\nHi\nassistant\nYes?\n");
        assert_eq!(pieces, [first, text("t"), text("u"), conversation("line 5", &messages[..1], "user\nHi\n")]);
        let error = documents("\n{\"messages\": [{\"role\": \"user\"}]}", "text").unwrap_err().to_string();
        assert!(
            error.contains("`a.jsonl`, line 2: `messages` is not a conversation: missing field `content`"),
            "{error}"
        );
    }

    #[test]
    fn jsonl_tools_belong_to_the_conversation_and_to_no_text() {
        let messages = "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]";
        let read = |text: String| {
            let mut tools = Vec::new();
            read_json(Path::new("a.jsonl"), text.as_bytes(), "text", Cutting::Whole, &mut |piece| {
                tools.push(piece.conversation.and_then(|conversation| conversation.tools));
                Ok(())
            })
            .map(|()| tools)
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
        let error = read_json(Path::new("a.json"), text.as_bytes(), "text", Cutting::Whole, &mut |_| {
            n += 1;
            Err(anyhow!("no room"))
        });
        assert_eq!((error.unwrap_err().to_string().as_str(), n), ("no room", 1));
    }

    #[test]
    fn invalid_json_is_rejected_by_line_or_element_number() {
        let cases = [
            (
                "{\"text\": \"a\"}\n{\"text\": \"b\n",
                "line 2: field `text` is not a string: EOF while parsing a string at column 11\n",
            ),
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
            ("{\"text\": 5}\n", "line 1: field `text` is not a string"),
            ("{\"text\": \"a\"} x\n", "line 1: trailing characters"),
            ("\n\nnot json\n", "line 3"),
        ];
        for (text, message) in cases {
            let error = documents(text, "text").unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("a.jsonl") && error.contains("\nhint: "), "{error}");
        }
    }
}
