//! The files of a command's sources: training files, validation files, and files that are left out.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use hearth_model::hub::Download;

use super::{
    files::{FileKind, FileSplit, LeftOut, SourceFile, WhyLeftOut, held_out_by_name, is_text_name},
    notes::Note,
    source::{Files, Origin},
};

/// Which texts count in a folder that also has files of examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextsBeside {
    /// Texts by their names (`.txt`): the other files describe the data.
    ByName,
    /// None: texts describe the data.
    None,
}

/// The training files of `sources`, with their validation files by name, and the files of `validation`, in the order of
/// the sources; they are downloaded if needed. If there are sources for validation, validation files by name are left
/// out, and a validation file is never a training file.
///
/// # Errors
/// As [`Origin::files`], and all files of a source are for validation or tests.
pub fn files_of(
    sources: &[&Origin],
    validation: &[Origin],
    texts: TextsBeside,
    progress: &mut dyn FnMut(Download),
) -> Result<[Vec<Files>; 2]> {
    let for_validation = |origin: &Origin| Ok(only_validation(chosen(origin.files(progress)?, texts)));
    let val = validation.iter().map(for_validation).collect::<Result<Vec<_>>>()?;
    let held_out: BTreeSet<PathBuf> = val.iter().flat_map(|files| &files.files).map(|file| whole(&file.path)).collect();
    let mut train = Vec::new();
    for origin in sources {
        let mut files = chosen(origin.files(progress)?, texts);
        note_named(origin, &mut files);
        let (n_train, first) = (n_train(&files), files.files.first().map(|file| file.path.display().to_string()));
        ensure!(
            n_train > 0,
            "`{origin}` has no files to train on: by their names, all are for validation or tests, such as `{}`\nhint: name a \
             file of it to train on that file",
            first.unwrap_or_else(|| files
                .left_out
                .iter()
                .map(|one| one.name.as_str())
                .collect::<Vec<_>>()
                .join("`, `"))
        );
        if !validation.is_empty() {
            hold_out(origin, &mut files, &held_out);
            ensure!(
                self::n_train(&files) > 0,
                "`{origin}` has no files to train on: `--val` names all of them\nhint: give other files to one of the two"
            );
        }
        train.push(files);
    }
    Ok([train, val])
}

fn n_train(files: &Files) -> usize {
    files.files.iter().filter(|file| file.split == FileSplit::Train).count()
}

/// The path of a file that is compared with others.
fn whole(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Removes validation files: the files in `held_out`, and validation files by name.
fn hold_out(origin: &Origin, files: &mut Files, held_out: &BTreeSet<PathBuf>) {
    let is_held_out = |path: &Path| held_out.contains(&whole(path));
    let Files { files, left_out, .. } = files;
    if let Origin::Path(folder) = origin {
        left_out.retain(|one| !is_held_out(&folder.join(&one.name)));
    }
    let (kept, others) = std::mem::take(files)
        .into_iter()
        .filter(|file| !is_held_out(&file.path))
        .partition(|file| file.split == FileSplit::Train);
    *files = kept;
    left_out.extend(others.iter().map(|file| LeftOut::new(name_in(origin, file), WhyLeftOut::Replaced)));
}

fn name_in(origin: &Origin, file: &SourceFile) -> String {
    let inner = match origin {
        Origin::Path(folder) => file.path.strip_prefix(folder).ok(),
        Origin::Hub(_) => None,
    };
    inner.filter(|inner| !inner.as_os_str().is_empty()).unwrap_or(&file.path).display().to_string()
}

/// Notes that a file named on the command line is trained on, whatever its name shows.
fn note_named(origin: &Origin, files: &mut Files) {
    if let (Origin::Path(path), [file]) = (origin, files.files.as_slice())
        && !file.is_found
        && file.kind != FileKind::Tokens
        && let Some(split) = held_out_by_name(path)
    {
        let what =
            format!("its name says `{split}`, but it is trained on, since it was named; `--val` holds out files");
        files.notes.add(Note::Other(what), &format!("`{origin}`"));
    }
}

/// All files except training files that are next to validation files.
fn only_validation(mut files: Files) -> Files {
    if files.files.iter().any(|file| file.split == FileSplit::Val) {
        files.files.retain(|file| file.split == FileSplit::Val);
    }
    files.files.iter_mut().for_each(|file| file.split = FileSplit::Val);
    files
}

/// Leaves out texts next to files of examples.
fn chosen(mut files: Files, texts: TextsBeside) -> Files {
    let is_objects = |file: &SourceFile| matches!(file.kind, FileKind::Json | FileKind::Table(_) | FileKind::Parquet);
    if !files.files.iter().any(is_objects) {
        return files;
    }
    let is_text = |file: &SourceFile| is_text_name(&file.path.to_string_lossy().to_lowercase());
    let is_kept = |file: &SourceFile| {
        !file.is_found || file.kind != FileKind::Text || texts == TextsBeside::ByName && is_text(file)
    };
    let (kept, others): (Vec<_>, Vec<_>) = files.files.into_iter().partition(is_kept);
    files.files = kept;
    files
        .left_out
        .extend(others.iter().map(|file| LeftOut::new(file.path.display().to_string(), WhyLeftOut::NotExamples)));
    files
}
