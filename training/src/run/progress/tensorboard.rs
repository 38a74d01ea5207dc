//! TensorBoard's event files: records of TensorFlow's format with a protocol buffer `Event` in each.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};

use super::{EvalRecord, Record, SampleRecord, SkipRecord, StepRecord, crc32c::crc32c};

/// Part of the names of event files, by which TensorBoard finds them.
const INFIX: &str = "tfevents";

#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl EventFile {
    /// Creates an event file in the folder `dir` and removes the files of earlier processes, whose records are written
    /// again.
    ///
    /// Also returns the times at which these records were first written, in seconds since 1970.
    pub(super) fn create(dir: &Path) -> Result<(EventFile, Vec<f64>)> {
        let failed = || format!("cannot write to the folder `{}`", dir.display());
        fs::create_dir_all(dir).with_context(failed)?;
        let mut times = Vec::new();
        for entry in fs::read_dir(dir).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            if entry.file_name().to_string_lossy().contains(INFIX) {
                times = times_of(&fs::read(entry.path()).with_context(failed)?);
                fs::remove_file(entry.path()).with_context(failed)?;
            }
        }
        let path = dir.join(format!("events.out.{INFIX}.{:010}.hearth", now() as u64));
        let file = File::create(&path).with_context(|| format!("cannot write `{}`", path.display()))?;
        let mut events = EventFile { path, file: BufWriter::new(file) };
        events.write_event(&version_event())?;
        Ok((events, times))
    }

    /// Writes the numbers and texts of a record of now.
    pub(super) fn write(&mut self, record: &Record) -> Result<()> {
        self.write_of(record, now())
    }

    /// Writes the numbers and texts of a record of `time`, in seconds since 1970.
    pub(super) fn write_of(&mut self, record: &Record, time: f64) -> Result<()> {
        let step = record.step();
        let values = match record {
            Record::Step(record) => {
                let StepRecord { epoch, tokens, loss, lr, grad_norm, tok_per_sec, .. } = record;
                let others = [
                    scalar("train/epoch", *epoch as f32),
                    scalar("train/tokens", *tokens as f32),
                    scalar("train/lr", *lr as f32),
                    scalar("train/grad_norm", *grad_norm),
                    scalar("speed/tok_per_sec", *tok_per_sec as f32),
                ];
                let some = [
                    ("train/loss", *loss),
                    ("train/balance_loss", record.balance_loss),
                    ("train/expert_load", record.expert_load),
                ];
                let some = some.into_iter().filter_map(|(name, value)| Some(scalar(name, value?)));
                some.chain(others).collect()
            }
            Record::Eval(EvalRecord { val_loss, val_bpb, val_accuracy, .. }) => {
                let others = [("val/bits_per_byte", *val_bpb), ("val/accuracy", *val_accuracy)];
                let others = others.into_iter().filter_map(|(name, value)| Some(scalar(name, value? as f32)));
                [scalar("val/loss", *val_loss as f32)].into_iter().chain(others).collect()
            }
            Record::Sample(SampleRecord { sample, .. }) => vec![text("sample", sample)],
            Record::Skip(SkipRecord { skipped, .. }) => vec![text("skipped", skipped)],
        };
        self.write_event(&event(time, step as u64, &values))
    }

    /// Writes a record: length, data, and masked checksums of both. TensorBoard reads the file while it grows.
    fn write_event(&mut self, event: &[u8]) -> Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let parts = [&length[..], &masked_crc(&length), event, &masked_crc(event)];
        let written = parts.iter().try_for_each(|part| self.file.write_all(part)).and_then(|()| self.file.flush());
        written.with_context(|| format!("cannot write `{}`", self.path.display()))
    }
}

/// The times of the records in an event file, up to the first that is incomplete; the first event has the version.
fn times_of(mut bytes: &[u8]) -> Vec<f64> {
    let mut times = Vec::new();
    // Length and its checksum, 8 and 4 bytes; the event; its checksum.
    while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        let Some(event) = rest.get(4..).and_then(|rest| rest.get(..length)) else { break };
        // `event` and `version_event` begin with the time.
        let Some(time) = event.get(1..9).and_then(|time| time.try_into().ok()) else { break };
        times.push(f64::from_le_bytes(time));
        let Some(next) = rest.get(length.saturating_add(8)..) else { break };
        bytes = next;
    }
    times.into_iter().skip(1).collect()
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Masks a checksum, as the format requires.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Field numbers of the message `Event`.
mod event_field {
    pub(super) const WALL_TIME: u64 = 1;
    pub(super) const STEP: u64 = 2;
    pub(super) const FILE_VERSION: u64 = 3;
    pub(super) const SUMMARY: u64 = 5;
}

/// Field numbers of `Summary` and `Summary.Value`.
mod summary_field {
    pub(super) const VALUE: u64 = 1;
    pub(super) const TAG: u64 = 1;
    pub(super) const SIMPLE_VALUE: u64 = 2;
    pub(super) const TENSOR: u64 = 8;
    pub(super) const METADATA: u64 = 9;
}

fn version_event() -> Vec<u8> {
    let mut event = Vec::new();
    put_f64(&mut event, event_field::WALL_TIME, now());
    put_bytes(&mut event, event_field::FILE_VERSION, b"brain.Event:2");
    event
}

fn event(time: f64, step: u64, values: &[Vec<u8>]) -> Vec<u8> {
    let mut summary = Vec::new();
    values.iter().for_each(|value| put_bytes(&mut summary, summary_field::VALUE, value));
    let mut event = Vec::new();
    put_f64(&mut event, event_field::WALL_TIME, time);
    put_varint(&mut event, event_field::STEP << 3);
    put_varint(&mut event, step);
    put_bytes(&mut event, event_field::SUMMARY, &summary);
    event
}

fn scalar(tag: &str, number: f32) -> Vec<u8> {
    let mut value = Vec::new();
    put_bytes(&mut value, summary_field::TAG, tag.as_bytes());
    // Wire type 5: 32 bits.
    put_varint(&mut value, summary_field::SIMPLE_VALUE << 3 | 5);
    value.extend(number.to_le_bytes());
    value
}

/// A tensor of one string, for the plugin that shows texts.
fn text(tag: &str, text: &str) -> Vec<u8> {
    let (mut tensor, mut plugin, mut metadata) = (Vec::new(), Vec::new(), Vec::new());
    // `TensorProto`: dtype 7 is a string, field 2 an empty shape, field 8 the strings.
    put_varint(&mut tensor, 1 << 3);
    put_varint(&mut tensor, 7);
    put_bytes(&mut tensor, 2, &[]);
    put_bytes(&mut tensor, 8, text.as_bytes());
    // `SummaryMetadata`: field 1 is the plugin's data, with its name in field 1.
    put_bytes(&mut plugin, 1, b"text");
    put_bytes(&mut metadata, 1, &plugin);
    let mut value = Vec::new();
    put_bytes(&mut value, summary_field::TAG, tag.as_bytes());
    put_bytes(&mut value, summary_field::TENSOR, &tensor);
    put_bytes(&mut value, summary_field::METADATA, &metadata);
    value
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Wire type 1: 64 bits.
fn put_f64(out: &mut Vec<u8>, field: u64, value: f64) {
    put_varint(out, field << 3 | 1);
    out.extend(value.to_le_bytes());
}

/// Wire type 2: bytes after their length.
fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn tensorboard_records_are_framed_with_length_and_masked_crc() {
        // The CRC-32C of "123456789" is 0xe3069283: rotated by 15 bits, plus the format's constant.
        assert_eq!(masked_crc(b"123456789"), 0xc78a_b0e5_u32.to_le_bytes());
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("events.out.tfevents.0000000001.old"), "").unwrap();
        let (mut events, times) = EventFile::create(dir.path()).unwrap();
        assert!(times.is_empty(), "the old file has no records");
        let sample = SampleRecord { step: 300, sample: "a\nb".to_owned() };
        events.write_of(&Record::Sample(sample), 1234.5).unwrap();
        let bytes = fs::read(&events.path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the old file is gone");
        let mut rest = bytes.as_slice();
        let mut events = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(rest[8..12], masked_crc(&rest[..8]));
            let data = &rest[12..12 + length];
            assert_eq!(rest[12 + length..16 + length], masked_crc(data));
            events.push(data.to_vec());
            rest = &rest[16 + length..];
        }
        assert_eq!(events.len(), 2);
        assert!(events[0].ends_with(b"brain.Event:2"));
        // 300 in seven bits at a time.
        assert_eq!(events[1][9..12], [0x10, 0xac, 0x02]);
        assert_eq!(times_of(&bytes), [1234.5]);
        // A process that was killed while it wrote the last record, or its checksum.
        for n_missing in [1, 5, 20] {
            assert!(times_of(&bytes[..bytes.len() - n_missing]).len() <= 1);
        }
        let (_, times) = EventFile::create(dir.path()).unwrap();
        assert_eq!(times, [1234.5]);
    }
}
