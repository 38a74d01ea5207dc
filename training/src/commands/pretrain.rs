//! `hearth-train pretrain`: prepared data to a model.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail, ensure};
use hearth_model::{
    TokenId,
    hub::ModelPart,
    model_source::ModelSource,
    text::{chat::ChatTemplate, tokenizer::Tokenizer},
    weights::model_dir::{self, LoadedText},
};
use hearth_training::{
    cli::{Status, model_path},
    config::{Layers, Purpose, Rows, TrainConfig},
    data::{
        loader::{Documents, Packing, RowSource},
        shard::{Dataset, Split},
    },
    objective::RowKind,
    run::trainer::{Data, DecoderTokens},
};

use super::{
    finetune::{
        require_no_share,
        translations::{TranslationSet, encoder_of_fresh, encoder_of_model},
    },
    session::{RunArgs, Session},
};

/// Trains a model on prepared data
///
/// The run's folder holds its configuration, metrics, checkpoints, and in `model/` the model with the lowest loss on
/// the validation split, for `hearth serve --model RUN` and for `transformers`. `--resume` continues a stopped run,
/// which ends with exactly the same weights as an uninterrupted one.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder that `hearth-train prepare` wrote; with `objective.kind=seq2seq`, a file, a folder or a data set of the hub with
    /// records that have `source` and `target`; sets `data.path`
    #[arg(long, value_name = "DATA")]
    data: Option<PathBuf>,

    /// With `objective.kind=seq2seq`: the folder of the tokenizer, if the model is a fresh one; sets `data.tokenizer`
    #[arg(long, value_name = "TOKENIZER")]
    tokenizer: Option<PathBuf>,

    /// Start from the weights of this model instead of random ones: a model dir, or a model of the Hugging Face hub
    /// (`ORG/NAME[@REVISION]`); sets `model.init`
    #[arg(long, value_name = "MODEL")]
    init: Option<PathBuf>,

    /// Folder of the run: configuration, metrics, checkpoints, and the best model in `model/`
    #[arg(long, value_name = "RUN")]
    out: PathBuf,

    #[command(flatten)]
    run: RunArgs,
}

/// Opens the data, trains, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let paths = [
        ("--data", "data.path", args.data),
        ("--init", "model.init", args.init),
        ("--tokenizer", "data.tokenizer", args.tokenizer),
    ];
    let layers = Layers {
        purpose: Some(Purpose::Pretrain),
        arguments: paths.into_iter().filter_map(|(argument, key, path)| Some((argument, key, path?))).collect(),
        ..Layers::default()
    };
    let session = Session::new(args.out, args.run, layers)?;
    let config = &session.config;
    let path = config.data.path.as_deref().context(
        "no training data: `data.path` is not set\nhint: use `--data DATA` with a folder made by `hearth-train prepare`",
    )?;
    config.validate_for(Purpose::Pretrain)?;
    if config.objective.objective().rows() == RowKind::Translations {
        let data = translations_of(path, &session)?;
        return session.train(data);
    }
    let dataset = Dataset::open(path)?;
    let tokenizer = dataset.open_tokenizer()?;
    let [train, val] = [Split::Train, Split::Val].map(|split| rows_of(&dataset, split, &tokenizer, config));
    let data = Data {
        classifier: None,
        tokenizer_files: model_dir::files_beside_weights(&dataset.tokenizer_dir())?,
        train: train?,
        val: val?,
        hash: dataset.hash(),
        tokenizer_hash: dataset.tokenizer_hash(),
        eos_token_ids: ends_of(&dataset, &tokenizer)?,
        tokenizer,
        decoder: DecoderTokens::default(),
    };
    session.train(data)
}

/// Records of sources and targets, encoded for the model that the run starts with, or for a fresh one.
fn translations_of(path: &Path, session: &Session) -> Result<Data> {
    let mut config = session.config.clone();
    let (dir, text) = match (config.model.init.take(), &config.data.tokenizer) {
        (Some(init), None) => {
            let dir = model_path(&ModelSource::parse(&init), ModelPart::Whole)?;
            let text = model_dir::load_text(&dir)?;
            config.model.init = Some(dir.clone());
            (dir, text)
        }
        (None, Some(dir)) => {
            let tokenizer = Tokenizer::from_dir(dir)?;
            let eos_token_ids = tokenizer.eos().map(|eos| eos.id).into_iter().collect();
            (dir.clone(), LoadedText { tokenizer, chat_template: None, eos_token_ids })
        }
        (Some(_), Some(_)) => {
            bail!("`data.tokenizer` is for fresh models, and `model.init` has its own\nhint: leave one of them out")
        }
        (None, None) => bail!(
            "a fresh model needs a tokenizer: `data.tokenizer` is not set\nhint: use `--tokenizer TOKENIZER` with a folder made by \
             `hearth-train tokenizer`"
        ),
    };
    let encoding = match config.model.init {
        Some(_) => encoder_of_model(&text, &config)?,
        None => encoder_of_fresh(&text, &config)?,
    };
    let path = path.to_str().with_context(|| format!("`{}` is not UTF-8", path.display()))?;
    let mut status = Status::new();
    let found = TranslationSet::read([&[path.to_owned()], &[]], encoding, &config, &mut status)?;
    status.note(&found.summary());
    require_no_share(&session.defaults, found.n_val(), &config)?;
    found.into_data(&dir, text, &config)
}

/// Tokens that end a text, and an answer if the tokenizer has a chat template.
fn ends_of(dataset: &Dataset, tokenizer: &Tokenizer) -> Result<Vec<TokenId>> {
    let template = ChatTemplate::from_dir(&dataset.tokenizer_dir())?;
    let end_of_turn = template.and_then(|template| template.end_of_turn(tokenizer));
    let mut ids: Vec<TokenId> = tokenizer.eos().map(|eos| eos.id).into_iter().chain(end_of_turn).collect();
    ids.dedup();
    Ok(ids)
}

/// A split in rows as set by `data.rows`. An empty split stays a stream.
fn rows_of(dataset: &Dataset, split: Split, tokenizer: &Tokenizer, config: &TrainConfig) -> Result<RowSource> {
    let tokens = dataset.split(split);
    let packing = match config.data.rows {
        Rows::Documents => Packing::BestFit,
        Rows::Unpacked => Packing::Off,
        Rows::Epochs | Rows::Windows => return Ok(tokens.clone().into()),
    };
    if tokens.len() < 2 {
        return Ok(tokens.clone().into());
    }
    let end = tokenizer.eos().context(
        "`data.rows=documents` and `unpacked` need a token that ends each document, but the tokenizer has no end-of-text token\nhint: \
         `data.rows=epochs` cuts rows anywhere",
    )?;
    ensure!(
        !dataset.ends_turns(end.id, tokenizer)?,
        "`data.rows=documents` and `unpacked` cut the data behind each `{}`, which ends every turn of its conversations\nhint: use \
         `data.rows=epochs`, or `hearth-train finetune`",
        end.content
    );
    let documents = Documents::of_stream(tokens, end.id, (config.model.max_seq_len, packing), tokenizer);
    Ok(documents.with_context(|| format!("cannot use the split `{}`", split.name()))?.into())
}
