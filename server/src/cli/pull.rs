//! `hearth pull`: downloads a model of the Hugging Face hub, or updates it.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use hearth_model::{
    files::byte_size::ByteSize,
    hub::{Hub, HubModel, HubOptions, ModelPart},
};
use serde::Serialize;

use super::{download::DownloadProgress, output};

/// The arguments of `hearth pull`.
#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// Name of the model: `ORG/NAME`, `ORG/NAME@REVISION` (a branch, a tag or a commit), and with `:FILE` or
    /// `:QUANTIZATION` for a GGUF file, as in `ORG/NAME:Q4_K_M`
    name: String,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    name: String,
    commit: String,
    path: PathBuf,
    files: usize,
    bytes: u64,
}

/// Downloads, and prints where the model is.
pub(crate) fn run(args: PullArgs) -> anyhow::Result<()> {
    let model = named(&args.name)?;
    let hub = Hub::new(HubOptions::from_env()?)?;
    let mut progress = DownloadProgress::new();
    let pulled = model.pull(&hub, ModelPart::Whole, &mut |download| progress.show(&download))?;
    drop(progress);
    let report = Report {
        name: model.to_string(),
        commit: pulled.commit,
        path: pulled.path,
        files: pulled.n_files,
        bytes: pulled.n_bytes,
    };
    if args.json {
        return output::print(&format!("{}\n", serde_json::to_string(&report)?));
    }
    let Report { name, commit, path, files, bytes } = report;
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    output::print(&format!(
        "`{name}` is in `{}`: {files}, {}, commit {commit}\nserve it with `hearth serve --model {name}`, or chat with it: \
         `hearth chat --model {name}`\n",
        path.display(),
        ByteSize(bytes)
    ))
}

/// The model that is named on the command line.
pub(super) fn named(name: &str) -> anyhow::Result<HubModel> {
    ensure!(
        !Path::new(name).exists(),
        "`{name}` is a file or folder here, not the name of a model of the hub\nhint: `--model {name}` opens it"
    );
    HubModel::parse(name).with_context(|| {
        format!(
            "`{name}` is not the name of a model\nhint: names are `ORG/NAME`, `ORG/NAME@REVISION`, and with `:FILE` or \
             `:QUANTIZATION` for a GGUF file"
        )
    })
}
