//! `hearth-train finetune`: a model and examples to a tuned model, or to an adapter of it.

mod inspect;
mod split;
mod texts;
pub(super) mod translations;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail, ensure};
use clap::builder::{OsStringValueParser, TypedValueParser};
use hearth_model::{
    TokenId,
    files::digest::{Digest, Digester},
    hub::ModelPart,
    model_source::ModelSource,
    weights::model_dir::{self, LoadedText},
};
use hearth_training::{
    cli::{Status, counted, model_path, note_left_out, note_not_text},
    config::{Layers, Purpose, Rows, TooLong, TrainConfig},
    data::{
        corpus::Origin,
        examples::{Example, ExampleEncoder, ExampleSettings, Examples, PreferencePair, read, read_preferences},
        loader::{Documents, Packing, Pairs, RowSource},
        shard::Tokens,
    },
    objective::RowKind,
    plan::data_defaults::{Defaults, ExamplesSize},
    run::{
        adapter::{require_model, require_trainable},
        trainer::{Data, DecoderTokens},
    },
};

use self::{split::split_by_prompt, texts::TextItems, translations::TranslationSet};
use super::session::{RunArgs, Session};

/// Fine-tunes a model on conversations, prompts with completions, or texts
///
/// Only assistant messages are trained, including the end-of-turn token; the model's own chat template writes the conversations,
/// as when serving. With `--lora`, an adapter is trained and the model stays as it is. `RUN/model` has the model, or the adapter,
/// with the lowest loss on the examples that are held out, for `hearth serve --model RUN` and for `transformers` and `peft`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A model dir, a run, a GGUF file, or a model of the Hugging Face hub (`ORG/NAME[@REVISION][:FILE]`)
    #[arg(value_name = "MODEL", value_parser = OsStringValueParser::new().map(ModelSource::parse))]
    model: ModelSource,

    /// Examples: jsonl, CSV, TSV or Parquet files with `messages` (and `tools`), `prompt` and `completion`, or `text`, or with
    /// `source` and `target` (for encoder-decoders), or with
    /// `keep` (texts on which predictions should stay unchanged while an adapter trains), or in the layouts of ShareGPT and Alpaca; text files; folders
    /// of them (files of a test split are left out); data sets of the Hugging Face hub
    #[arg(long, value_name = "FILES", required = true, num_args = 1..)]
    data: Vec<String>,

    /// Examples for validation, in files of the same kinds. Without this, they are the files of folders with `validation`,
    /// `valid`, `val` or `dev` in their names, or else `data.val_fraction` of the examples
    #[arg(long, value_name = "FILES", num_args = 1..)]
    val: Vec<String>,

    /// Train a low-rank adapter; settings of `lora` may follow, such as `--lora r=8,alpha=16,targets=q_proj+v_proj`
    #[arg(long, value_name = "KEY=VALUE,...", num_args = 0..=1, default_missing_value = "", require_equals = false)]
    lora: Option<String>,

    /// Print the first N examples, or pairs, as they would be trained, each token marked as trained or not, and end
    #[arg(long, value_name = "N")]
    inspect: Option<usize>,

    /// Folder of the run: configuration, metrics, checkpoints, and the best model in `model/`
    #[arg(long, value_name = "RUN", required_unless_present = "inspect")]
    out: Option<PathBuf>,

    #[command(flatten)]
    run: RunArgs,
}

/// Reads examples, then trains or shows them.
pub(crate) fn run(mut args: Args) -> Result<ExitCode> {
    let preset = if args.lora.is_some() { "finetune-lora" } else { "finetune" };
    if let Some(settings) = &args.lora {
        let sets = lora_sets(settings)?;
        args.run.options.sets.splice(0..0, sets);
    }
    if args.lora.is_none()
        && args.run.begins_by_itself()
        && let Some(set) = args.run.options.sets.iter().find(|set| set.starts_with("lora.") || set.starts_with("lora="))
    {
        bail!("`--set {set}` is a setting of an adapter, but all weights are trained\nhint: add `--lora`");
    }
    let path = model_path(&args.model, ModelPart::Whole)?;
    require_model(&path)?;
    let text = model_dir::load_text(&path)?;
    let layers = Layers {
        purpose: Some(Purpose::Finetune),
        arguments: vec![("MODEL", "model.init", path.clone())],
        default_preset: Some(preset.to_owned()),
        ..Layers::default()
    };
    if let Some(n) = args.inspect {
        let settings = args.run.options.resolve(layers)?;
        let (defaults, mut config) = (Defaults::new(&settings, None), settings.config);
        let steps = config.schedule.max_steps;
        defaults.fit_warmup(&mut config, steps);
        let mut status = Status::new();
        settle(&mut config, &defaults, &path, &mut status)?;
        let all = ExampleSet::read([&args.data, &args.val], &text, &config, &mut status)?;
        defaults.fit_examples(&mut config, all.size());
        return inspect::show(&all, n, &text, &config, args.run.options.json);
    }
    let out = args.out.context("`--out RUN` is missing")?;
    let mut session = Session::new(out, args.run, layers)?;
    let mut status = Status::new();
    settle(&mut session.config, &session.defaults, &path, &mut status)?;
    let all = ExampleSet::read([&args.data, &args.val], &text, &session.config, &mut status)?;
    status.note(&all.summary());
    require_no_share(&session.defaults, all.n_val(), &session.config)?;
    if let ExampleSet::Texts(items) = &all {
        items.follow(&mut session.config, &session.defaults)?;
    }
    session.fit_examples(all.size());
    let data = all.into_data(&path, text, &session.config)?;
    session.train(data)
}

/// Refuses a share to hold out where there are `n_val` examples for validation already.
pub(super) fn require_no_share(defaults: &Defaults, n_val: usize, config: &TrainConfig) -> Result<()> {
    ensure!(
        n_val == 0 || !defaults.is_set("data.val_fraction"),
        "`data.val_fraction` is {}, but there are {n_val} examples for validation already, by `--val` or the names of files\nhint: \
         leave it out, or name only the files to train on",
        config.data.val_fraction
    );
    Ok(())
}

/// The examples that were read, as the objective needs them.
enum ExampleSet {
    Examples(Examples<Example>),
    Pairs(Examples<PreferencePair>),
    Texts(TextItems),
    Translations(TranslationSet),
}

impl ExampleSet {
    /// Reads the training files and the validation files.
    fn read(
        sources: [&[String]; 2],
        text: &LoadedText,
        config: &TrainConfig,
        status: &mut Status,
    ) -> Result<ExampleSet> {
        match config.objective.objective().rows() {
            RowKind::Sequences => examples_of(sources, text, config, status).map(Self::Examples),
            RowKind::Pairs => pairs_of(sources, text, config, status).map(Self::Pairs),
            RowKind::Texts(_) => TextItems::read(sources, text, config, status).map(Self::Texts),
            RowKind::Translations => {
                let encoder = translations::encoder_of_model(text, config)?;
                TranslationSet::read(sources, encoder, config, status).map(Self::Translations)
            }
        }
    }

    fn summary(&self) -> String {
        match self {
            Self::Examples(found) => summary_line(found),
            Self::Pairs(found) => pairs_line(found),
            Self::Texts(items) => items.summary(),
            Self::Translations(found) => found.summary(),
        }
    }

    fn into_data(self, model: &Path, text: LoadedText, config: &TrainConfig) -> Result<Data> {
        match self {
            Self::Examples(found) => data_of(found, model, text, config),
            Self::Pairs(found) => data_of_pairs(found, model, text, config),
            Self::Texts(items) => items.into_data(model, text, config),
            Self::Translations(found) => found.into_data(model, text, config),
        }
    }

    fn n_val(&self) -> usize {
        match self {
            Self::Examples(found) => found.val.len(),
            Self::Pairs(found) => found.val.len(),
            Self::Texts(items) => items.n_val(),
            Self::Translations(found) => found.n_val(),
        }
    }

    fn size(&self) -> ExamplesSize {
        match self {
            Self::Examples(found) => size_of(found),
            Self::Pairs(found) => size_of_pairs(found),
            Self::Texts(items) => items.size(),
            Self::Translations(found) => found.size(),
        }
    }
}

fn size_of(found: &Examples<Example>) -> ExamplesSize {
    size(found.examples.len(), found.examples.iter(), found.val.iter())
}

fn size_of_pairs(found: &Examples<PreferencePair>) -> ExamplesSize {
    let [trained, val] =
        [&found.examples, &found.val].map(|pairs| pairs.iter().flat_map(|pair| [&pair.chosen, &pair.rejected]));
    size(found.examples.len(), trained, val)
}

/// The size of `trained`. Examples for validation need rows as long as theirs.
fn size<'a>(
    n_examples: usize,
    trained: impl Iterator<Item = &'a Example>,
    val: impl Iterator<Item = &'a Example>,
) -> ExamplesSize {
    let longest = val.map(|example| example.ids.len()).max().unwrap_or(0);
    trained.fold(ExamplesSize { n_examples, n_tokens: 0, longest }, |size, example| ExamplesSize {
        n_tokens: size.n_tokens + example.ids.len(),
        longest: size.longest.max(example.ids.len()),
        ..size
    })
}

/// Completes the settings by the model to tune, and checks what can be checked before the data is read.
fn settle(config: &mut TrainConfig, defaults: &Defaults, model: &Path, status: &mut Status) -> Result<()> {
    config.model.init = Some(model.to_owned());
    defaults.fit_texts(config);
    let context = texts::context_of(config, model)?;
    defaults.fit_context(config, context).iter().for_each(|note| status.note(note));
    config.validate_for(Purpose::Finetune)?;
    config.objective.check_model(&model_dir::load_config(model)?)?;
    texts::settle(config, model)?;
    match &config.lora {
        // The targets must be modules of the model.
        Some(lora) => lora.n_values(&model_dir::load_config(model)?, model_dir::load_class(model).ok()).map(|_| ()),
        None => require_trainable(model),
    }
}

/// `--lora r=8,targets=q_proj+v_proj` as `--set lora.r=8` and so on.
fn lora_sets(settings: &str) -> Result<Vec<String>> {
    let mut sets = vec!["lora={}".to_owned()];
    for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
        let (key, value) = setting.split_once('=').with_context(|| {
            format!("`--lora {settings}`: `{setting}` has no `=`\nhint: for example `--lora r=8,alpha=16,targets=q_proj+v_proj`")
        })?;
        let list = |value: &str| value.split('+').map(|one| format!("{one:?}")).collect::<Vec<_>>().join(", ");
        sets.push(match key {
            "targets" | "target_parameters" => format!("lora.{key}=[{}]", list(value)),
            "layers" => format!("lora.layers=[{}]", value.replace('+', ", ")),
            _ => format!("lora.{key}={value}"),
        });
    }
    Ok(sets)
}

fn examples_of(
    [sources, validation]: [&[String]; 2],
    text: &LoadedText,
    config: &TrainConfig,
    status: &mut Status,
) -> Result<Examples<Example>> {
    let (encoder, settings) = encoder_of(text, config, validation);
    let sources: Vec<Origin> = sources.iter().map(|source| Origin::parse(source)).collect();
    let mut examples = read(&sources, &encoder, &settings, &mut |download| status.show(|_| download.to_string()))?;
    status.clear();
    note_sources(status, &sources, &settings, &examples);
    let has_prompt = |example: &&Example| example.trained.contains(&false);
    if let Some(example) = examples.examples.iter().chain(&examples.val).find(has_prompt).filter(|_| is_masked(config))
    {
        bail!(
            "{}: it has parts that are not trained, but `objective.kind=mlm` trains texts\nhint: use `text`",
            example.origin
        );
    }
    let takes_untrained = config.objective.objective().compares_with_base();
    let mut all = examples.examples.iter().chain(&examples.val);
    if let Some(example) = all.find(|example| example.n_trained() == 0 && !takes_untrained) {
        bail!(
            "{}: it has `keep`, but `objective.keep` is 0\nhint: `--set objective.keep=1`, or remove it",
            example.origin
        );
    }
    ensure!(
        examples.examples.iter().any(|example| example.n_trained() > 0) || examples.examples.is_empty(),
        "no example is trained, all of them have `keep`\nhint: add examples with `messages`, `prompt` and `completion`, or `text`"
    );
    ensure!(
        !examples.examples.is_empty(),
        "no example is left to train on: {} were too long\nhint: {}",
        examples.n_dropped,
        shorter(config)
    );
    if is_masked(config) {
        // All tokens are inputs, but the last token of a row is only a target: so it is there twice.
        for Example { ids, trained, .. } in examples.examples.iter_mut().chain(&mut examples.val) {
            ids.extend(ids.last().copied());
            trained.push(true);
        }
    }
    Ok(examples)
}

/// A hint for when all examples were dropped.
fn shorter(config: &TrainConfig) -> &'static str {
    match config.data.too_long {
        TooLong::Cut => "use examples whose answers begin within the model's context",
        _ => "use shorter ones, or `--set data.too_long=cut`",
    }
}

fn encoder_of(text: &LoadedText, config: &TrainConfig, validation: &[String]) -> (ExampleEncoder, ExampleSettings) {
    let LoadedText { tokenizer, chat_template, eos_token_ids } = text;
    let settings = ExampleSettings {
        // A row of next tokens has one token more than inputs: its last token is only a target.
        max_len: config.model.max_seq_len + usize::from(!is_masked(config)),
        too_long: config.data.too_long,
        text_field: "text".to_owned(),
        validation: validation.iter().map(|source| Origin::parse(source)).collect(),
    };
    (ExampleEncoder::new(tokenizer, chat_template.as_ref(), eos_token_ids), settings)
}

fn summary_line(examples: &Examples<Example>) -> String {
    let all = || examples.examples.iter().chain(&examples.val);
    let n_tokens: usize = all().map(|example| example.ids.len()).sum();
    let n_trained: usize = all().map(Example::n_trained).sum();
    let mut line =
        format!("{}, {n_tokens} tokens, of which {n_trained} are trained", counted(all().count(), "example"));
    for (n, what) in [
        (examples.val.len(), "for validation"),
        (examples.n_cut, "cut"),
        (examples.n_endless, "without an end of turn when cut"),
        (examples.n_dropped, "left out as too long"),
    ] {
        if n > 0 {
            line += &format!("; {n} {what}");
        }
    }
    line
}

fn pairs_line(pairs: &Examples<PreferencePair>) -> String {
    let n_pairs = pairs.examples.len() + pairs.val.len();
    let mut line =
        format!("{}; {} cut, {} left out as too long", counted(n_pairs, "pair"), pairs.n_cut, pairs.n_dropped);
    for (n, what) in [(pairs.n_same, "left out without a difference"), (pairs.val.len(), "for validation")] {
        if n > 0 {
            line += &format!(", {n} {what}");
        }
    }
    line
}

/// Whether tokens of the examples are masked.
fn is_masked(config: &TrainConfig) -> bool {
    config.objective.objective().masks().is_some()
}

fn documents_of(examples: &[Example], config: &TrainConfig, text: &LoadedText) -> Result<Documents> {
    let packing = if config.data.rows == Rows::Unpacked { Packing::Off } else { Packing::BestFit };
    let pairs = examples.iter().map(|example| (example.ids.clone(), example.trained.clone()));
    Documents::of_examples(pairs, (config.model.max_seq_len, packing), &text.tokenizer)
}

/// The examples in two splits.
fn data_of(examples: Examples<Example>, model: &Path, text: LoadedText, config: &TrainConfig) -> Result<Data> {
    let hash = hash_of(examples.examples.iter(), examples.val.iter());
    let [train, val] = match examples.val.is_empty() {
        true => split_by_prompt(examples.examples, |example| example, bos_of(&text), config),
        false => [examples.examples, examples.val],
    };
    for (part, name) in [(&train, "trained"), (&val, "held out")] {
        ensure!(
            part.is_empty() || part.iter().any(|example| example.n_trained() > 0),
            "of the examples that are {name}, all have `keep`\nhint: add examples, or change `data.val_fraction` (it is {}) or \
             `seed`",
            config.data.val_fraction
        );
    }
    let rows = |examples: &[Example]| match examples {
        [] => Ok(RowSource::from(Tokens::from_ids(Vec::new(), 0))),
        examples => documents_of(examples, config, &text).map(RowSource::from),
    };
    let splits = [rows(&train)?, rows(&val)?];
    data_with(splits, hash, model, text)
}

/// Preferences in two splits.
fn data_of_pairs(
    pairs: Examples<PreferencePair>,
    model: &Path,
    text: LoadedText,
    config: &TrainConfig,
) -> Result<Data> {
    let [examples, val] =
        [&pairs.examples, &pairs.val].map(|pairs| pairs.iter().flat_map(|pair| [&pair.chosen, &pair.rejected]));
    let hash = hash_of(examples, val);
    let [train, val] = match pairs.val.is_empty() {
        true => split_by_prompt(pairs.examples, |pair| &pair.chosen, bos_of(&text), config),
        false => [pairs.examples, pairs.val],
    };
    let rows = |pairs: Vec<PreferencePair>| {
        if pairs.is_empty() {
            return Ok(RowSource::from(Tokens::from_ids(Vec::new(), 0)));
        }
        let both =
            pairs.into_iter().map(|pair| [pair.chosen, pair.rejected].map(|example| (example.ids, example.trained)));
        Pairs::new(both, config.model.max_seq_len, &text.tokenizer).map(RowSource::Pairs)
    };
    let splits = [rows(train)?, rows(val)?];
    data_with(splits, hash, model, text)
}

fn pairs_of(
    [sources, validation]: [&[String]; 2],
    text: &LoadedText,
    config: &TrainConfig,
    status: &mut Status,
) -> Result<Examples<PreferencePair>> {
    let (encoder, settings) = encoder_of(text, config, validation);
    let sources: Vec<Origin> = sources.iter().map(|source| Origin::parse(source)).collect();
    let found = read_preferences(&sources, &encoder, &settings, &mut |download| status.show(|_| download.to_string()))?;
    status.clear();
    note_sources(status, &sources, &settings, &found);
    ensure!(
        !found.examples.is_empty() || found.n_same == 0,
        "no pair is left to train on: in {} of them `chosen` and `rejected` are the same{}, {} were too long\nhint: the model learns \
         from the difference: use pairs that differ within the model's context",
        found.n_same,
        if config.data.too_long == TooLong::Cut { " (when cut)" } else { "" },
        found.n_dropped
    );
    ensure!(
        !found.examples.is_empty(),
        "no pair is left to train on: {} were too long\nhint: {}",
        found.n_dropped,
        shorter(config)
    );
    Ok(found)
}

/// Reports the commit of each source that is a data set of the hub, files that were left out, and the notes about the
/// data.
fn note_sources<T>(status: &mut Status, sources: &[Origin], settings: &ExampleSettings, found: &Examples<T>) {
    note_not_text(status, &found.not_text);
    note_left_out(status, &found.left_out);
    status.note_all(&found.notes);
    for (source, commit) in sources.iter().chain(&settings.validation).zip(&found.commits) {
        if let Some(commit) = commit {
            status.note(&format!("data set `{source}` at commit {commit}"));
        }
    }
}

fn bos_of(text: &LoadedText) -> Option<TokenId> {
    text.tokenizer.bos().map(|bos| bos.id)
}

/// The digest of the training examples and of the validation examples. Without validation examples, it equals the
/// digest in runs of older versions, which did not include them.
fn hash_of<'a>(examples: impl Iterator<Item = &'a Example>, val: impl Iterator<Item = &'a Example>) -> Digest {
    let mut hash = Digester::new();
    let update = |hash: &mut Digester, example: &Example| {
        hash.update(&(example.ids.len() as u64).to_le_bytes());
        for (id, trained) in example.ids.iter().zip(&example.trained) {
            hash.update(&id.to_le_bytes());
            hash.update(&[u8::from(*trained)]);
        }
    };
    examples.for_each(|example| update(&mut hash, example));
    for (index, example) in val.enumerate() {
        if index == 0 {
            hash.update(b"validation");
        }
        update(&mut hash, example);
    }
    hash.finish()
}

fn data_with([train, val]: [RowSource; 2], hash: Digest, model: &Path, text: LoadedText) -> Result<Data> {
    let tokenizer_files = model_dir::files_beside_weights(model)?;
    let tokenizer_json = tokenizer_files.iter().find(|(name, _)| name == "tokenizer.json");
    Ok(Data {
        classifier: None,
        train,
        val,
        hash,
        tokenizer_hash: Digest::of(tokenizer_json.map_or(&[], |(_, bytes)| bytes)),
        eos_token_ids: text.eos_token_ids,
        tokenizer: text.tokenizer,
        tokenizer_files,
        decoder: DecoderTokens::default(),
    })
}
