//! `hearth-lab bilingual`: makes sentences with their translations.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::value_parser;
use hearth_lab::bilingual::{Pair, Split, pair};
use hearth_model::files::partial_file::PartialFile;
use hearth_training::{
    cli::{Status, print_json},
    interrupt::remove_when_interrupted,
    output_files,
};
use serde_json::json;

/// Makes English sentences with translations into a language invented for Hearth
///
/// Writes a folder: `pairs.jsonl` with `prompt` and `completion` for `hearth-train finetune`, and `texts.jsonl` with the same as
/// `text` for `hearth-train tokenizer` and `prepare`; `translations.jsonl` has them with `source` and `target` for encoder-decoders. For `hearth-train eval translation` there are two held-out sets:
/// `combinations.jsonl`, with pairs of words that no training sentence has, and `lengths.jsonl`, with sentences longer than any
/// training sentence. For `hearth-train eval score`, each of these two has a file `.references.txt` with the translations and a
/// file `.word-for-word.txt` with translations by a dictionary alone. The same seed gives the same sentences.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder to write; it must not be there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Number of sentences to train on
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = value_parser!(u64).range(1..))]
    count: u64,

    /// Number of sentences in each of the two held-out sets
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = value_parser!(u64).range(1..))]
    test_count: u64,

    /// Seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Print the result on stdout as one JSON object
    #[arg(long)]
    json: bool,
}

/// Makes the files.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let Args { out, count, test_count, seed, json } = args;
    ensure!(!out.exists(), "`{}` exists already\nhint: remove it, or give another folder as `--out`", out.display());
    let mut status = Status::new();
    let staged = output_files::stage(&out)?;
    let folder = staged.path();
    remove_when_interrupted(folder);
    let pairs = |split, count| (0..count).map(move |index| pair(split, seed, index));
    write(&folder.join("pairs.jsonl"), pairs(Split::Training, count), |pair| {
        json!({ "prompt": format!("{}\n", pair.source), "completion": pair.target }).to_string()
    })?;
    write(&folder.join("texts.jsonl"), pairs(Split::Training, count), |pair| {
        json!({ "text": format!("{}\n{}", pair.source, pair.target) }).to_string()
    })?;
    let translation = |pair: Pair| json!({ "source": pair.source, "target": pair.target }).to_string();
    write(&folder.join("translations.jsonl"), pairs(Split::Training, count), translation)?;
    for (split, name) in [(Split::Combinations, "combinations"), (Split::Lengths, "lengths")] {
        let pairs = || pairs(split, test_count);
        let file = |ending: &str| folder.join(format!("{name}.{ending}"));
        write(&file("jsonl"), pairs(), translation)?;
        write(&file("references.txt"), pairs(), |pair| pair.target)?;
        write(&file("word-for-word.txt"), pairs(), |pair| pair.word_for_word)?;
    }
    staged.commit()?;
    status.note(&format!("{count} sentences and twice {test_count} held out are in `{}`", out.display()));
    if json {
        return print_json(&json!({ "out": out, "sentences": count, "held_out": 2 * test_count }));
    }
    Ok(ExitCode::SUCCESS)
}

/// A line for each pair.
fn write(path: &Path, pairs: impl Iterator<Item = Pair>, line: impl Fn(Pair) -> String) -> Result<()> {
    let failed = || format!("cannot write `{}`", path.display());
    let mut file = PartialFile::create(path).with_context(failed)?;
    for pair in pairs {
        writeln!(file, "{}", line(pair)).with_context(failed)?;
    }
    // Flushed to disk before the folder is moved to its place.
    file.finish().with_context(failed)
}
