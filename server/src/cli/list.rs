//! `hearth list`: the models in the cache of the Hugging Face hub.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use hearth_model::{
    files::byte_size::ByteSize,
    hub::{
        HubOptions,
        inventory::{self, CachedFormat, CachedModel},
    },
};
use serde::Serialize;

use super::output;

/// The arguments of `hearth list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    /// As `--model` takes it.
    name: String,
    commit: Option<String>,
    format: &'static str,
    files: usize,
    bytes: u64,
    complete: bool,
    /// In seconds since 1970.
    last_used: Option<u64>,
    path: PathBuf,
}

/// Prints a table, or JSON.
pub(crate) fn run(args: ListArgs) -> anyhow::Result<()> {
    let cache = HubOptions::from_env()?.cache;
    let found = inventory::models(&cache)?;
    if args.json {
        let rows: Vec<_> = found.into_iter().map(row).collect();
        return output::print(&format!("{}\n", serde_json::to_string_pretty(&rows)?));
    }
    output::print(&table(&found, &cache, SystemTime::now()))
}

fn row(model: CachedModel) -> Row {
    let CachedModel { name, commit, format, n_files, n_bytes, is_whole, last_used, path } = model;
    Row {
        name,
        commit: Some(commit).filter(|commit| !commit.is_empty()),
        format: match format {
            CachedFormat::ModelDir => "safetensors",
            CachedFormat::Gguf => "gguf",
            CachedFormat::Other => "other",
            CachedFormat::Leftover => "leftover",
        },
        files: n_files,
        bytes: n_bytes,
        complete: is_whole,
        last_used: last_used.and_then(|time| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())),
        path,
    }
}

fn table(models: &[CachedModel], cache: &Path, now: SystemTime) -> String {
    let cache = cache.display();
    if models.is_empty() {
        return format!("no models in `{cache}`; `hearth pull ORG/NAME` downloads one\n");
    }
    let heads = ["NAME", "COMMIT", "FORMAT", "SIZE", "LAST USED"].map(str::to_owned);
    let rows: Vec<_> = [heads].into_iter().chain(models.iter().map(|model| cells(model, now))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let mut text = String::new();
    for [name, commit, format, size, used] in &rows {
        let [w0, w1, w2, w3] = widths;
        text += &format!("{name:w0$}  {commit:w1$}  {format:w2$}  {size:>w3$}  {used}\n");
    }
    let total = ByteSize(models.iter().map(|model| model.n_bytes).sum());
    text + &format!("{total} in `{cache}`\n")
}

fn cells(model: &CachedModel, now: SystemTime) -> [String; 5] {
    let CachedModel { name, commit, format, n_files, n_bytes, is_whole, last_used, .. } = model;
    let files = if *n_files == 1 { "1 file".to_owned() } else { format!("{n_files} files") };
    let format = match format {
        CachedFormat::ModelDir => format!("safetensors, {files}"),
        CachedFormat::Gguf => format!("GGUF, {files}"),
        CachedFormat::Other => format!("no model, {files}"),
        CachedFormat::Leftover => format!("unfinished, {files}"),
    };
    let is_partial = !is_whole && (format.starts_with("safetensors") || format.starts_with("GGUF"));
    let format = if is_partial { format!("{format}, incomplete") } else { format };
    let used = last_used.map_or_else(|| "unknown".to_owned(), |time| ago(now.duration_since(time).unwrap_or_default()));
    [name.clone(), commit.chars().take(8).collect(), format, ByteSize(*n_bytes).to_string(), used]
}

fn ago(elapsed: Duration) -> String {
    let minutes = elapsed.as_secs() / 60;
    let (n, unit) = match minutes {
        0 => return "just now".to_owned(),
        1..60 => (minutes, "minute"),
        60..1_440 => (minutes / 60, "hour"),
        _ => (minutes / 1_440, "day"),
    };
    format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_list_table_has_aligned_columns_and_a_total() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let model = |name: &str, format, n_bytes, is_whole| CachedModel {
            name: name.to_owned(),
            commit: "0123456789abcdef".to_owned(),
            format,
            n_files: 2,
            n_bytes,
            is_whole,
            last_used: Some(now - Duration::from_secs(3 * 3600 + 5)),
            path: PathBuf::new(),
        };
        let models = [
            model("a/b", CachedFormat::ModelDir, 5, true),
            model("a/longer:Q4_0", CachedFormat::Gguf, 2_000_000, false),
        ];
        let text = table(&models, Path::new("/cache"), now);
        let expected = "\
            NAME           COMMIT    FORMAT                       SIZE  LAST USED\n\
            a/b            01234567  safetensors, 2 files      5 bytes  3 hours ago\n\
            a/longer:Q4_0  01234567  GGUF, 2 files, incomplete  2.0 MB  3 hours ago\n\
            2.0 MB in `/cache`\n";
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&text), words(expected));
        let ends: Vec<_> = text.lines().take(3).map(|line| line.find("  3 hours").or(line.find("  LAST"))).collect();
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
        assert_eq!(
            table(&[], Path::new("/cache"), now),
            "no models in `/cache`; `hearth pull ORG/NAME` downloads one\n"
        );
        let shown = [0, 60, 7_300, 90_000, 864_000].map(|seconds| ago(Duration::from_secs(seconds)));
        assert_eq!(shown, ["just now", "1 minute ago", "2 hours ago", "1 day ago", "10 days ago"]);
    }
}
