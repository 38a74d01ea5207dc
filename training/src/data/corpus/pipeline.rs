//! Reads documents on a separate thread, in parallel with the processing.

use std::{
    panic,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
};

use anyhow::{Context, Result, anyhow};

use super::{
    document_chunk::DocumentChunk,
    files::SourceFile,
    notes::Notes,
    open::BytesRead,
    record::RecordOutcome,
    source::{ReadOptions, read_documents},
};

/// Size of a batch in bytes of text: enough pieces for every core, with little memory.
const BATCH_BYTES: usize = 4 << 20;

/// A piece and its file.
#[derive(Clone, Debug)]
pub struct FilePiece {
    /// Index of the file.
    pub file: usize,
    /// The piece.
    pub piece: DocumentChunk,
}

/// The result of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadReport {
    /// Files in folders that are not text, and were skipped.
    pub not_text: Vec<usize>,
    /// Notes about the documents.
    pub notes: Notes,
}

/// Reads the documents of `files` in order and calls `work` on this thread with batches of their pieces, in order.
///
/// # Errors
/// A file cannot be read, or `work` fails.
pub fn read_in_batches(
    files: &[SourceFile],
    options: &ReadOptions,
    bytes_read: &BytesRead,
    mut work: impl FnMut(Vec<FilePiece>) -> Result<()>,
) -> Result<ReadReport> {
    thread::scope(|scope| {
        // One batch waits, one is being read, one is being processed.
        let (sender, receiver) = sync_channel(1);
        let reader = thread::Builder::new()
            .name("corpus".into())
            .spawn_scoped(scope, || read_all(files, options, bytes_read, sender))
            .context("cannot start the thread that reads documents")?;
        let mut worked = Ok(());
        for batch in &receiver {
            worked = work(batch);
            if worked.is_err() {
                break;
            }
        }
        // Unblocks a reader that waits to send.
        drop(receiver);
        let read = reader.join().unwrap_or_else(|payload| panic::resume_unwind(payload));
        worked.and(read)
    })
}

fn read_all(
    files: &[SourceFile],
    options: &ReadOptions,
    bytes_read: &BytesRead,
    sender: SyncSender<Vec<FilePiece>>,
) -> Result<ReadReport> {
    let mut report = ReadReport::default();
    let mut batch = Vec::new();
    let mut n_bytes = 0;
    let send = |batch: &mut Vec<FilePiece>| {
        sender.send(std::mem::take(batch)).map_err(|_| anyhow!("the receiver of documents is gone"))
    };
    for (index, file) in files.iter().enumerate() {
        let outcome = read_documents(file, options, bytes_read, &mut report.notes, &mut |piece| {
            n_bytes += piece.text.len();
            batch.push(FilePiece { file: index, piece });
            if n_bytes >= BATCH_BYTES {
                n_bytes = 0;
                send(&mut batch)?;
            }
            Ok(())
        })?;
        if outcome == RecordOutcome::NotText {
            report.not_text.push(index);
        }
    }
    if !batch.is_empty() {
        send(&mut batch)?;
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use super::*;
    use crate::data::corpus::{Cutting, Marks, list_files};

    #[test]
    fn read_in_batches_keeps_document_order_and_stops_at_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for index in 0..3 {
            fs::write(dir.path().join(format!("{index}.txt")), format!("text {index} ").repeat(400_000)).unwrap();
        }
        fs::write(dir.path().join("picture.png"), b"\x89PNG").unwrap();
        let files = list_files(dir.path()).unwrap();
        let (marks, cutting) = (Marks::default(), Cutting::Pieces);
        let options = ReadOptions { text_field: "text".into(), separator: None, marks, cutting };
        let mut texts = vec![String::new(); files.len()];
        let report = read_in_batches(&files, &options, &BytesRead::default(), |batch| {
            for FilePiece { file, piece } in batch {
                texts[file].push_str(&piece.text);
            }
            Ok(())
        });
        assert_eq!(report.unwrap().not_text, [3]);
        for (index, text) in texts[..3].iter().enumerate() {
            assert!(*text == format!("text {index} ").repeat(400_000));
        }
        let error = read_in_batches(&files, &options, &BytesRead::default(), |_| Err(anyhow!("no room"))).unwrap_err();
        assert_eq!(error.to_string(), "no room");
        fs::remove_file(&files[1].path).unwrap();
        let error = read_in_batches(&files, &options, &BytesRead::default(), |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("1.txt"), "{error}");
    }
}
