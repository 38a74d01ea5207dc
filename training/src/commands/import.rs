//! `hearth-train import`: checkpoints of other training programs to model dirs.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::Device;
use hearth_model::{
    text::tokenizer::Tokenizer,
    weights::{
        DiskDtype, StagedDir,
        import::{self, Imported, PickledTokenizer, Program, read_tokenizer},
        model_dir::{self, SaveOptions},
    },
};
use hearth_training::{
    cli::{Status, print_json},
    data::tokenizer_build::{BuiltTokenizer, SpecialTokens, from_encoding},
    interrupt::remove_when_interrupted,
};
use serde::Serialize;

/// Turns a checkpoint of nanoGPT, LitGPT or nanochat into a model dir
///
/// Reads nanoGPT's `ckpt.pt`, LitGPT's `lit_model.pth` and nanochat's `model_NNNNNN.pt` without executing code in their
/// pickles. The result opens in `hearth serve`, `hearth generate`, `hearth-train pretrain --init` and `transformers`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The checkpoint, or the folder that holds it
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,

    /// Folder for the model; it must not be there, or be empty
    #[arg(long, value_name = "MODEL_DIR")]
    out: PathBuf,

    /// The tokenizer: a folder with `tokenizer.json`, nanoGPT's `meta.pkl`, or nanochat's `tokenizer.pkl` [default: the
    /// file where the training program keeps it]
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,

    /// How values are stored: f32, f16 or bf16 [default: as in the checkpoint; f32 if it mixes them]
    #[arg(long, value_name = "DTYPE", value_parser = DiskDtype::from_str)]
    dtype: Option<DiskDtype>,

    /// Print the result on stdout as one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    program: String,
    checkpoint: PathBuf,
    tokenizer: PathBuf,
    out: PathBuf,
    class: &'static str,
    n_params: usize,
    vocab_size: usize,
    tokenizer_vocab_size: usize,
}

/// Reads, checks, writes, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let mut status = Status::new();
    // Before the work, not after it.
    let staged = StagedDir::creating(&args.out)?;
    remove_when_interrupted(staged.path());
    let imported = import::load(&args.checkpoint, &Device::flex())?;
    let path = match &args.tokenizer {
        Some(path) => path.clone(),
        None => find_tokenizer(&imported)?,
    };
    let TokenizerFiles { files, tokenizer } = TokenizerFiles::read(&path)?;
    let (vocab_size, n_tokens) = (imported.gpt.config().vocab_size, tokenizer.vocab_size());
    ensure!(
        n_tokens <= vocab_size,
        "the tokenizer in `{}` has {n_tokens} tokens, but the model in `{}` has {vocab_size}\nhint: give the tokenizer that \
         the model was trained with: `--tokenizer PATH`",
        path.display(),
        imported.path.display()
    );
    let bos_ends = tokenizer.bos().filter(|_| imported.program == Program::NanoChat);
    let mut eos_token_ids: Vec<_> = tokenizer.eos().into_iter().chain(bos_ends).map(|token| token.id).collect();
    eos_token_ids.dedup();
    let options = SaveOptions {
        dtype: args.dtype.unwrap_or(imported.dtype),
        class: imported.class.map(str::to_owned),
        eos_token_ids,
        extra_files: files,
        ..SaveOptions::default()
    };
    model_dir::write(&staged, &imported.gpt, &options)?;
    staged.commit()?;

    let class = model_dir::load_class(&args.out)?;
    let n_params = imported.gpt.config().n_params();
    status.note(&format!(
        "{}'s `{}`, {n_params} parameters, is in `{}` as `{class}`, with the tokenizer of `{}`",
        imported.program,
        imported.path.display(),
        args.out.display(),
        path.display()
    ));
    if n_tokens < vocab_size {
        status.note(&format!(
            "the model has {vocab_size} token ids and the tokenizer {n_tokens} tokens: the rest is kept, so that probabilities \
             stay those of {}",
            imported.program
        ));
    }
    if class == HEARTH_CLASS {
        status.note("no class of `transformers` expresses this architecture: only Hearth opens it");
    }
    if args.json {
        return print_json(&Report {
            program: imported.program.to_string(),
            checkpoint: imported.path,
            tokenizer: path,
            out: args.out,
            class,
            n_params,
            vocab_size,
            tokenizer_vocab_size: n_tokens,
        });
    }
    Ok(ExitCode::SUCCESS)
}

const TOKENIZER_FILE: &str = "tokenizer.json";

/// The class for models that only Hearth can express.
const HEARTH_CLASS: &str = "HearthForCausalLM";

/// Where the training program keeps the tokenizer of the checkpoint.
fn find_tokenizer(imported: &Imported) -> Result<PathBuf> {
    let folder = imported.path.parent().unwrap_or(Path::new(""));
    let (places, hint) = match imported.program {
        Program::NanoGpt => {
            let dataset =
                imported.dataset.as_deref().filter(|name| !name.is_empty() && !name.contains(['/', '\\', '.']));
            let of_data = dataset.map(|name| folder.join("../data").join(name).join("meta.pkl"));
            let places = [Some(folder.join("meta.pkl")), of_data].into_iter().flatten().collect::<Vec<_>>();
            let hint = "give `--tokenizer PATH`: the `meta.pkl` beside the data of a character-level model, else a folder with \
                        GPT-2's `tokenizer.json`";
            (places, hint)
        }
        Program::LitGpt => {
            let places = vec![folder.join(TOKENIZER_FILE)];
            (places, "give `--tokenizer DIR`, the folder with the `tokenizer.json` that the model was trained with")
        }
        Program::NanoChat => {
            let places = vec![folder.join("tokenizer.pkl"), folder.join("../../tokenizer/tokenizer.pkl")];
            (places, "give `--tokenizer PATH`, nanochat's `tokenizer.pkl`")
        }
    };
    if let Some(found) = places.iter().find(|place| place.is_file()) {
        let is_json = found.ends_with(TOKENIZER_FILE);
        return Ok(if is_json { folder.to_owned() } else { found.clone() });
    }
    let looked: Vec<_> = places.iter().map(|place| format!("`{}`", place.display())).collect();
    bail!("no tokenizer for `{}`: there is no {}\nhint: {hint}", imported.path.display(), looked.join(", no "))
}

/// A tokenizer as files of a model dir.
struct TokenizerFiles {
    files: Vec<(String, Vec<u8>)>,
    tokenizer: Tokenizer,
}

impl TokenizerFiles {
    /// The tokenizer at `path`: a model dir's, or a pickled one.
    fn read(path: &Path) -> Result<TokenizerFiles> {
        if path.is_dir() && path.join(TOKENIZER_FILE).is_file() {
            let tokenizer = model_dir::load_tokenizer(path)?;
            return Ok(TokenizerFiles { files: model_dir::files_beside_weights(path)?, tokenizer });
        }
        let pickled = ["tokenizer.pkl", "meta.pkl"].map(|name| path.join(name)).into_iter().find(|file| file.is_file());
        ensure!(
            pickled.is_some() || !path.is_dir(),
            "`{}` has no `{TOKENIZER_FILE}`, no `meta.pkl` and no `tokenizer.pkl`\nhint: give the folder or file of the tokenizer",
            path.display()
        );
        let path = pickled.unwrap_or_else(|| path.to_owned());
        let built = match read_tokenizer(&path)? {
            PickledTokenizer::Characters(characters) => {
                let twice = (1..characters.len()).find(|&id| characters[..id].contains(&characters[id]));
                if let Some(id) = twice {
                    bail!("`{}`: the character {:?} has two ids", path.display(), characters[id]);
                }
                BuiltTokenizer::from_numbered_characters(characters.into_iter(), &SpecialTokens::default())
            }
            PickledTokenizer::Encoding(encoding) => from_encoding(&encoding),
        };
        let built = built.with_context(|| format!("cannot use the tokenizer in `{}`", path.display()))?;
        let files = built.files().into_iter().map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        Ok(TokenizerFiles { files: files.collect(), tokenizer: built.open()? })
    }
}
