//! Reads examples from files, folders and data sets of the hub.

use anyhow::{Result, ensure};
use hearth_model::hub::Download;
use rayon::prelude::*;

use super::{Example, ExampleEncoder, ExampleSettings, Examples, PreferencePair, TooLong, encode::wrong};
use crate::data::corpus::{
    BytesRead, CHOSEN, FileSplit, Marks, Note, Notes, Origin, REJECTED, Record, RecordKind, RecordOptions,
    RecordOutcome, SourceFile, TextsBeside, files_of, read_records, record_members,
};

/// Number of records that are encoded together, on all cores.
const BATCH: usize = 4096;

/// Reads examples: conversations, prompts with completions, questions with answers, texts, and texts on which predictions are
/// kept (`keep`), in all layouts of `RecordKind`, from jsonl, JSON arrays, CSV, TSV, Parquet with text columns, and text files. Of a
/// folder with files of objects, text files are not read.
///
/// # Errors
/// A source cannot be read or has no examples; an example would not train what it is meant to (the message has its file
/// and line); or all examples lose the end of their turn when they are cut.
pub fn read(
    sources: &[Origin],
    encoder: &ExampleEncoder,
    settings: &ExampleSettings,
    progress: &mut dyn FnMut(Download),
) -> Result<Examples<Example>> {
    let members = record_members(&settings.text_field);
    let options = RecordOptions {
        members: &members,
        text_member: &settings.text_field,
        expected: "a JSON object with an example, such as {\"messages\": [...]} or {\"prompt\": \"...\", \"completion\": \"...\"}",
        marks: encoder.marks(),
    };
    let encode = |record: &Record, origin: &str| {
        let (form, mut notes) =
            RecordKind::of(&record.members, &settings.text_field).map_err(|problem| wrong(origin, problem))?;
        let (example, said) = encoder.encode(&form, origin)?;
        notes.extend(said);
        Ok((fit(example, encoder, settings)?, notes))
    };
    let found = read_all((sources, &settings.validation), options, &encode, progress)?;
    ensure!(
        found.n_endless == 0 || found.examples.iter().any(|example| encoder.trains_end(example)),
        "`data.too_long=cut` removes the end of every answer, so the model would not learn to stop: all {} examples have more \
         than {} tokens\nhint: use shorter examples or a larger `model.max_seq_len`, or leave long ones out with `--set \
         data.too_long=drop`",
        found.n_endless,
        settings.max_len
    );
    Ok(found)
}

/// Reads pairs for DPO: `chosen` and `rejected`, lists of messages or, with `prompt`, strings. Pairs without a difference are left
/// out.
///
/// # Errors
/// As [`read`].
pub fn read_preferences(
    sources: &[Origin],
    encoder: &ExampleEncoder,
    settings: &ExampleSettings,
    progress: &mut dyn FnMut(Download),
) -> Result<Examples<PreferencePair>> {
    let members = record_members("text");
    let options = RecordOptions {
        members: &members,
        text_member: "text",
        expected: "a JSON object with a preference, such as {\"prompt\": \"...\", \"chosen\": \"...\", \"rejected\": \"...\"}",
        marks: &Marks::default(),
    };
    let encode = |record: &Record, origin: &str| {
        let (forms, mut notes) = RecordKind::pair(&record.members).map_err(|problem| wrong(origin, problem))?;
        let [chosen, rejected] = [CHOSEN, REJECTED].map(|name| format!("{origin}, `{name}`"));
        let [chosen, rejected] = [(&forms[0], chosen), (&forms[1], rejected)].map(|(form, origin)| {
            let (example, said) = encoder.encode(form, &origin)?;
            Ok::<_, anyhow::Error>((fit(example, encoder, settings)?, said))
        });
        let ((chosen, said), (rejected, also_said)) = (chosen?, rejected?);
        notes.extend(said.into_iter().chain(also_said));
        let fitted = match (chosen, rejected) {
            (Fitted::Dropped, _) | (_, Fitted::Dropped) => Fitted::Dropped,
            (Fitted::Kept(chosen), Fitted::Kept(rejected)) => Fitted::Kept(PreferencePair { chosen, rejected }),
            (one, other) => {
                let is_endless =
                    [&one, &other].iter().any(|fitted| matches!(fitted, Fitted::Cut { is_endless: true, .. }));
                match (one.into_kept(), other.into_kept()) {
                    (Some(chosen), Some(rejected)) => {
                        Fitted::Cut { kept: PreferencePair { chosen, rejected }, is_endless }
                    }
                    _ => Fitted::Dropped,
                }
            }
        };
        Ok(match fitted {
            Fitted::Kept(pair) if pair.chosen.ids == pair.rejected.ids => {
                notes.push(Note::Other(format!("`{CHOSEN}` and `{REJECTED}` are the same; such pairs are left out")));
                (Fitted::Same, notes)
            }
            Fitted::Cut { kept, .. } if kept.chosen.ids == kept.rejected.ids => {
                notes.push(Note::Other(format!(
                    "cut, `{CHOSEN}` and `{REJECTED}` are the same; such pairs are left out"
                )));
                (Fitted::Same, notes)
            }
            fitted => (fitted, notes),
        })
    };
    read_all((sources, &settings.validation), options, &encode, progress)
}

/// An example after the limit on its length.
pub(super) enum Fitted<T> {
    Kept(T),
    Cut {
        kept: T,
        /// Whether the end of the last turn that is trained was removed, and no other is left.
        is_endless: bool,
    },
    Dropped,
    /// A pair without a difference.
    Same,
}

impl<T> Fitted<T> {
    pub(super) fn into_kept(self) -> Option<T> {
        match self {
            Fitted::Kept(kept) | Fitted::Cut { kept, .. } => Some(kept),
            Fitted::Dropped | Fitted::Same => None,
        }
    }
}

fn fit(mut example: Example, encoder: &ExampleEncoder, settings: &ExampleSettings) -> Result<Fitted<Example>> {
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
            let is_endless = trains && !encoder.trains_end(&example);
            Ok(match trains && example.n_trained() == 0 {
                true => Fitted::Dropped,
                false => Fitted::Cut { kept: example, is_endless },
            })
        }
    }
}

/// Encodes a record, given its file and line.
pub(super) type Encode<'a, T> = &'a (dyn Fn(&Record, &str) -> Result<(Fitted<T>, Vec<Note>)> + Sync);

pub(super) fn read_all<T: Send>(
    (sources, validation): (&[Origin], &[Origin]),
    options: RecordOptions<'_>,
    encode: Encode<'_, T>,
    progress: &mut dyn FnMut(Download),
) -> Result<Examples<T>> {
    let mut found = Examples::default();
    let [train, val] = files_of(&sources.iter().collect::<Vec<_>>(), validation, TextsBeside::None, progress)?;
    for (source, files) in sources.iter().zip(train).chain(validation.iter().zip(val)) {
        let n_before = found.n_read();
        found.commits.push(files.commit);
        found.left_out.extend(files.left_out);
        found.notes.extend(files.notes);
        for file in files.files {
            let mut batch = Vec::new();
            let mut notes = Notes::default();
            let outcome = read_records(&file, options, &BytesRead::default(), &mut notes, &mut |record| {
                batch.push(record);
                match batch.len() {
                    BATCH => encode_batch(&file, &mut batch, encode, &mut found),
                    _ => Ok(()),
                }
            });
            found.notes.extend(notes);
            // First encode the records before an unreadable place: one of them may have an error too.
            encode_batch(&file, &mut batch, encode, &mut found)?;
            let outcome = outcome?;
            if outcome == RecordOutcome::NotText {
                found.not_text.push(file.path);
            }
        }
        ensure!(
            found.n_read() > n_before,
            "the source `{source}` has no examples\nhint: remove it, or use another one"
        );
    }
    Ok(found)
}

fn encode_batch<T: Send>(
    file: &SourceFile,
    batch: &mut Vec<Record>,
    encode: Encode<'_, T>,
    found: &mut Examples<T>,
) -> Result<()> {
    let origin = |record: &Record| match record.place.as_str() {
        "" => format!("`{}`", file.path.display()),
        place => format!("`{}`, {place}", file.path.display()),
    };
    let encoded: Vec<_> = std::mem::take(batch)
        .par_iter()
        .map(|record| {
            let origin = origin(record);
            let (fitted, notes) = encode(record, &origin)?;
            let first = (!notes.is_empty()).then_some(origin);
            Ok::<_, anyhow::Error>((fitted, notes, first))
        })
        .collect();
    // In order, so that the first error in the file is the one reported.
    for encoded in encoded {
        let (fitted, notes, origin) = encoded?;
        notes.into_iter().for_each(|note| found.notes.add(note, origin.as_deref().unwrap_or_default()));
        match &fitted {
            Fitted::Kept(_) => {}
            Fitted::Cut { is_endless, .. } => {
                found.n_cut += 1;
                found.n_endless += usize::from(*is_endless);
            }
            Fitted::Dropped => found.n_dropped += 1,
            Fitted::Same => found.n_same += 1,
        }
        match file.split {
            FileSplit::Train => found.examples.extend(fitted.into_kept()),
            FileSplit::Val => found.val.extend(fitted.into_kept()),
        }
    }
    Ok(())
}
