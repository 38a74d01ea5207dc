//! Reads examples from files, folders and data sets of the hub.

use anyhow::{Result, ensure};
use hearth_model::hub::Download;
use rayon::prelude::*;

use super::{
    Example, ExampleEncoder, ExampleSettings, Examples, PreferencePair, TooLong,
    encode::wrong,
    form::{CHOSEN, COMPLETION, Form, KEEP, MESSAGES, PROMPT, REJECTED},
};
use crate::corpus::{BytesRead, FileKind, Origin, Outcome, Record, RecordOptions, SourceFile, TOOLS, read_records};

/// Records that are encoded at once, on all cores.
const BATCH: usize = 4096;

/// Reads examples: conversations (`messages`, and `tools`), prompts with completions (`prompt` and `completion`, strings or
/// lists of messages), texts, and texts on which predictions are kept (`keep`), from jsonl, JSON arrays, Parquet with text
/// columns, and text files. Of a folder with jsonl or Parquet files, text files are not read.
///
/// # Errors
/// A source cannot be read, has no examples, or an example would train something else than is meant; the message has its
/// file and line.
pub fn read(
    sources: &[Origin],
    encoder: &ExampleEncoder,
    settings: &ExampleSettings,
    progress: &mut dyn FnMut(Download),
) -> Result<Examples<Example>> {
    let members = [MESSAGES, PROMPT, COMPLETION, TOOLS, KEEP, &settings.text_field];
    let options = RecordOptions {
        members: &members,
        text_member: &settings.text_field,
        expected: "a JSON object with an example, such as {\"messages\": [...]} or {\"prompt\": \"...\", \"completion\": \"...\"}",
    };
    let encode = |record: &Record, origin: &str| {
        let form = Form::of(&record.members, &settings.text_field).map_err(|problem| wrong(origin, problem))?;
        fit(encoder.encode(&form, origin)?, settings)
    };
    read_all(sources, options, &encode, progress)
}

/// Reads pairs for DPO: `chosen` and `rejected`, lists of messages or, with `prompt`, strings.
///
/// # Errors
/// As [`read`].
pub fn read_preferences(
    sources: &[Origin],
    encoder: &ExampleEncoder,
    settings: &ExampleSettings,
    progress: &mut dyn FnMut(Download),
) -> Result<Examples<PreferencePair>> {
    let options = RecordOptions {
        members: &[MESSAGES, PROMPT, CHOSEN, REJECTED, TOOLS],
        text_member: "text",
        expected: "a JSON object with a preference, such as {\"prompt\": \"...\", \"chosen\": \"...\", \"rejected\": \"...\"}",
    };
    let encode = |record: &Record, origin: &str| {
        let forms = Form::pair(&record.members).map_err(|problem| wrong(origin, problem))?;
        let [chosen, rejected] = [CHOSEN, REJECTED].map(|name| format!("{origin}, `{name}`"));
        let [chosen, rejected] = [(&forms[0], chosen), (&forms[1], rejected)]
            .map(|(form, origin)| encoder.encode(form, &origin).and_then(|example| fit(example, settings)));
        Ok(match (chosen?, rejected?) {
            (Fitted::Kept(chosen), Fitted::Kept(rejected)) => Fitted::Kept(PreferencePair { chosen, rejected }),
            (Fitted::Dropped, _) | (_, Fitted::Dropped) => Fitted::Dropped,
            (Fitted::Kept(chosen) | Fitted::Cut(chosen), Fitted::Kept(rejected) | Fitted::Cut(rejected)) => {
                Fitted::Cut(PreferencePair { chosen, rejected })
            }
        })
    };
    read_all(sources, options, &encode, progress)
}

/// An example after the limit on its length.
enum Fitted<T> {
    Kept(T),
    Cut(T),
    Dropped,
}

fn fit(mut example: Example, settings: &ExampleSettings) -> Result<Fitted<Example>> {
    let (n_tokens, max_len) = (example.ids.len(), settings.max_len);
    if n_tokens <= max_len {
        return Ok(Fitted::Kept(example));
    }
    match settings.too_long {
        TooLong::Refuse => Err(wrong(
            &example.origin,
            (
                format!("it has {n_tokens} tokens, at most {max_len} fit into the context"),
                "cut long examples with `--set data.too_long=cut`, or leave them out with `--set data.too_long=drop`",
            ),
        )),
        TooLong::Drop => Ok(Fitted::Dropped),
        TooLong::Cut => {
            let trains = example.n_trained() > 0;
            example.ids.truncate(max_len);
            example.trained.truncate(max_len);
            Ok(if trains && example.n_trained() == 0 { Fitted::Dropped } else { Fitted::Cut(example) })
        }
    }
}

fn read_all<T: Send>(
    sources: &[Origin],
    options: RecordOptions<'_>,
    encode: &(dyn Fn(&Record, &str) -> Result<Fitted<T>> + Sync),
    progress: &mut dyn FnMut(Download),
) -> Result<Examples<T>> {
    let mut found =
        Examples { examples: Vec::new(), n_cut: 0, n_dropped: 0, not_text: Vec::new(), commits: Vec::new() };
    for source in sources {
        let n_before = found.examples.len() + found.n_dropped;
        let files = source.files(progress)?;
        found.commits.push(files.commit);
        for file in chosen(files.files) {
            let mut batch = Vec::new();
            let outcome = read_records(&file, options, &BytesRead::default(), &mut |record| {
                batch.push(record);
                match batch.len() {
                    BATCH => encode_batch(&file, &mut batch, encode, &mut found),
                    _ => Ok(()),
                }
            });
            // First what is before a place that cannot be read: it may have an error too.
            encode_batch(&file, &mut batch, encode, &mut found)?;
            let outcome = outcome?;
            if outcome == Outcome::NotText {
                found.not_text.push(file.path);
            }
        }
        let n_read = found.examples.len() + found.n_dropped - n_before;
        ensure!(n_read > 0, "the source `{source}` has no examples\nhint: remove it, or use another one");
    }
    Ok(found)
}

/// Of a folder, the files with objects, if there are any: the others describe them.
fn chosen(files: Vec<SourceFile>) -> Vec<SourceFile> {
    let is_objects = |file: &SourceFile| matches!(file.kind, FileKind::Json | FileKind::Parquet);
    let has_objects = files.iter().any(is_objects);
    files.into_iter().filter(|file| !file.is_found || !has_objects || is_objects(file)).collect()
}

fn encode_batch<T: Send>(
    file: &SourceFile,
    batch: &mut Vec<Record>,
    encode: &(dyn Fn(&Record, &str) -> Result<Fitted<T>> + Sync),
    found: &mut Examples<T>,
) -> Result<()> {
    let origin = |record: &Record| match record.place.as_str() {
        "" => format!("`{}`", file.path.display()),
        place => format!("`{}`, {place}", file.path.display()),
    };
    let encoded: Vec<Result<Fitted<T>>> =
        std::mem::take(batch).par_iter().map(|record| encode(record, &origin(record))).collect();
    // In order, so that the first error in the file is the one reported.
    for example in encoded {
        match example? {
            Fitted::Kept(example) => found.examples.push(example),
            Fitted::Cut(example) => {
                found.n_cut += 1;
                found.examples.push(example);
            }
            Fitted::Dropped => found.n_dropped += 1,
        }
    }
    Ok(())
}
