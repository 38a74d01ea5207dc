//! Sources and targets for encoder-decoders, of `finetune` and `pretrain`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use hearth_model::{
    files::digest::{Digest, Digester},
    text::tokenizer::Tokenizer,
    weights::model_dir::{self, LoadedText},
};
use hearth_training::{
    cli::{Status, counted},
    config::TrainConfig,
    data::{
        corpus::Origin,
        examples::{Example, ExampleSettings, Examples, Translation, TranslationEncoder, read_translations},
        loader::{RowSource, Translations},
        shard::Tokens,
    },
    plan::data_defaults::ExamplesSize,
    run::trainer::{Data, DecoderTokens},
};

use super::{data_with, note_sources, shorter, size, split::split};

/// Sources and targets that were read.
pub(in crate::commands) struct TranslationSet {
    found: Examples<Translation>,
    decoder: DecoderTokens,
}

/// The encoder of sources and targets, and the decoder's special tokens.
pub(in crate::commands) type Encoding = (TranslationEncoder, DecoderTokens);

/// The encoding of the model that `config` starts with, whose tokenizer is in `text`.
///
/// # Errors
/// Its files do not state the decoder's start token.
pub(in crate::commands) fn encoder_of_model(text: &LoadedText, config: &TrainConfig) -> Result<Encoding> {
    let dir = config.model.init.as_deref().context("there is no model")?;
    let (start, pad) = model_dir::load_decoder_start(dir)?;
    let targets = if dir.is_dir() {
        Tokenizer::for_targets_from_dir(&model_dir::model_of(dir))?.for_vocabulary(text.tokenizer.vocab_size())
    } else {
        text.tokenizer.clone()
    };
    encoding([&text.tokenizer, &targets], text, DecoderTokens { start, pad }, config)
}

/// The encoding of a new model: its decoder starts with the padding token, or else with the begin-of-text token or the
/// end-of-text token.
///
/// # Errors
/// The tokenizer has no end-of-text token.
pub(in crate::commands) fn encoder_of_fresh(text: &LoadedText, config: &TrainConfig) -> Result<Encoding> {
    let tokenizer = &text.tokenizer;
    ensure!(
        !text.eos_token_ids.is_empty(),
        "the tokenizer has no token that ends a text, so the model would not learn to stop\nhint: `hearth-train tokenizer --encoder` \
         makes one with `<s>`, `</s>` and `<pad>`"
    );
    let pad = tokenizer.pad().map(|pad| pad.id);
    let bos = tokenizer.bos().map(|bos| bos.id);
    let start = pad.or(bos).or(text.eos_token_ids.first().copied());
    encoding([tokenizer; 2], text, DecoderTokens { start: start.into_iter().collect(), pad }, config)
}

fn encoding(
    [sources, targets]: [&Tokenizer; 2],
    text: &LoadedText,
    decoder: DecoderTokens,
    config: &TrainConfig,
) -> Result<Encoding> {
    let encoder = TranslationEncoder {
        sources: sources.clone(),
        targets: targets.clone(),
        decoder_start: decoder.start.clone(),
        eos_token_ids: text.eos_token_ids.clone(),
        fields: config.seq2seq.fields()?,
        source_prefix: config.seq2seq.source_prefix.clone().unwrap_or_default(),
        decoder_prompt: config.seq2seq.decoder_prompt.clone(),
    };
    Ok((encoder, decoder))
}

impl TranslationSet {
    /// Reads files of training records and of validation records.
    ///
    /// # Errors
    /// As [`read_translations`], and if no training records are left.
    pub(in crate::commands) fn read(
        [sources, validation]: [&[String]; 2],
        (encoder, decoder): Encoding,
        config: &TrainConfig,
        status: &mut Status,
    ) -> Result<TranslationSet> {
        let origins = |sources: &[String]| sources.iter().map(|source| Origin::parse(source)).collect::<Vec<_>>();
        let settings = ExampleSettings {
            max_len: config.model.max_seq_len,
            too_long: config.data.too_long,
            text_field: "text".to_owned(),
            validation: origins(validation),
        };
        let sources = origins(sources);
        let mut progress = |download: hearth_model::hub::Download| status.show(|_| download.to_string());
        let found = read_translations(&sources, &encoder, &settings, &mut progress)?;
        status.clear();
        note_sources(status, &sources, &settings, &found);
        ensure!(
            !found.examples.is_empty(),
            "no pair is left to train on: {} were too long\nhint: {}",
            found.n_dropped,
            shorter(config)
        );
        ensure!(
            found.n_endless < found.examples.len() + found.val.len(),
            "`data.too_long=cut` removes the end of every target, so the model would not learn to stop\nhint: use a larger \
             `model.max_seq_len`, or leave long ones out with `--set data.too_long=drop`"
        );
        Ok(TranslationSet { found, decoder })
    }

    fn all(&self) -> impl Iterator<Item = &Translation> {
        self.found.examples.iter().chain(&self.found.val)
    }

    /// One line about the records that were read.
    pub(in crate::commands) fn summary(&self) -> String {
        let n_source: usize = self.all().map(|pair| pair.source.len()).sum();
        let n_target: usize = self.all().map(|pair| pair.target.n_trained()).sum();
        let found = &self.found;
        let mut line =
            format!("{}, {n_source} tokens of sources and {n_target} of targets", counted(self.all().count(), "pair"));
        for (n, what) in [
            (found.val.len(), "for validation"),
            (found.n_cut, "cut"),
            (found.n_endless, "without the end of the target when cut"),
            (found.n_dropped, "left out as too long"),
        ] {
            if n > 0 {
                line += &format!("; {n} {what}");
            }
        }
        line
    }

    /// Pairs for validation.
    pub(in crate::commands) fn n_val(&self) -> usize {
        self.found.val.len()
    }

    /// Pairs, and pairs that were cut or left out.
    pub(super) fn counts(&self) -> [usize; 3] {
        [self.all().count(), self.found.n_cut, self.found.n_dropped]
    }

    /// For each pair, its source, as an example without targets, and its target.
    pub(super) fn examples(&self) -> Vec<Example> {
        let of_pair = |pair: &Translation| {
            let trained = vec![false; pair.source.len()];
            let source =
                Example { ids: pair.source.clone(), trained, origin: format!("{}, source", pair.target.origin) };
            [source, pair.target.clone()]
        };
        self.all().flat_map(of_pair).collect()
    }

    pub(super) fn size(&self) -> ExamplesSize {
        let [trained, val] = [&self.found.examples, &self.found.val].map(|pairs| pairs.iter().map(|pair| &pair.target));
        size(self.found.examples.len(), trained, val)
    }

    /// The data of a run. Pairs with the same source stay together.
    ///
    /// # Errors
    /// The tokenizer's files in `dir` cannot be read.
    pub(in crate::commands) fn into_data(self, dir: &Path, text: LoadedText, config: &TrainConfig) -> Result<Data> {
        let hash = hash_of(&self.found, &self.decoder);
        let Examples { examples, val, .. } = self.found;
        let [train, val] = if val.is_empty() { split_by_source(examples, config) } else { [examples, val] };
        let rows = |pairs: Vec<Translation>| {
            if pairs.is_empty() {
                return Ok(RowSource::from(Tokens::from_ids(Vec::new(), 0)));
            }
            let pairs = pairs.into_iter().map(|pair| (pair.source, (pair.target.ids, pair.target.trained)));
            Translations::new(pairs, config.model.max_seq_len, &text.tokenizer).map(RowSource::Translations)
        };
        let splits = [rows(train)?, rows(val)?];
        Ok(Data { decoder: self.decoder, ..data_with(splits, hash, dir, text)? })
    }
}

fn split_by_source(all: Vec<Translation>, config: &TrainConfig) -> [Vec<Translation>; 2] {
    if config.data.val_fraction == 0.0 {
        return [all, Vec::new()];
    }
    let mut numbers = std::collections::BTreeMap::new();
    for pair in &all {
        let number = numbers.len();
        numbers.entry(pair.source.clone()).or_insert(number);
    }
    split(all, |pair, number| numbers.get(&pair.source).copied().unwrap_or(number), config)
}

/// The digest of the training pairs and of the validation pairs.
fn hash_of(found: &Examples<Translation>, decoder: &DecoderTokens) -> Digest {
    let mut hash = Digester::new();
    hash.update(b"seq2seq");
    let mut update = |ids: &[u32]| {
        hash.update(&(ids.len() as u64).to_le_bytes());
        ids.iter().for_each(|id| hash.update(&id.to_le_bytes()));
    };
    update(&decoder.start);
    for pairs in [&found.examples, &found.val] {
        update(&[pairs.len() as u32]);
        pairs.iter().for_each(|pair| {
            update(&pair.source);
            update(&pair.target.ids);
        });
    }
    hash.finish()
}
