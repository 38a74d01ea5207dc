//! Texts that become vectors: pairs for contrastive training, and texts with labels.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Result, bail, ensure};
use hearth_model::{
    files::digest::{Digest, Digester},
    gpt::pooling::{ClassScores, Classifier, OwnPooling, Pooling},
    weights::{
        encoder_files,
        model_dir::{self, LoadedText},
    },
};
use hearth_training::{
    cli::{Status, counted},
    config::{ObjectiveKind, TextPooling, TrainConfig},
    data::{
        corpus::Origin,
        examples::{Example, ExampleSettings, Examples, TextItem, read_labeled_texts, read_text_pairs},
        loader::{Items, RowSource},
        shard::Tokens,
    },
    objective::RowKind,
    plan::data_defaults::{Defaults, ExamplesSize},
    run::trainer::Data,
};

use super::{data_with, note_sources, shorter, size, split::split};

/// Maximum number of labels in a message.
const MAX_SHOWN: usize = 20;

/// Whether the objective learns from texts of this kind.
fn is_of_texts(config: &TrainConfig) -> bool {
    matches!(config.objective.objective().rows(), RowKind::Texts(_))
}

/// Maximum number of tokens of a row, or of a text that becomes a vector: the model's context, or the limit that its
/// files state.
pub(super) fn context_of(config: &TrainConfig, model: &Path) -> Result<usize> {
    let context = model_dir::load_config(model)?.max_seq_len;
    let limit = if is_of_texts(config) { encoder_files::load_pooling(model)?.1 } else { None };
    Ok(limit.map_or(context, |limit| limit.min(context)))
}

/// Takes the pooling from the model's files if it is not set.
///
/// # Errors
/// The files state an unsupported pooling, or layers after it.
pub(super) fn settle(config: &mut TrainConfig, model: &Path) -> Result<()> {
    if !is_of_texts(config) || config.objective.pooling.is_some() {
        return Ok(());
    }
    if is_classify(config) {
        let own = encoder_files::load_classifier(model)?.map_or(Pooling::Cls, |own| own.pooling);
        config.objective.pooling = Some(own.try_into()?);
        return Ok(());
    }
    config.objective.pooling = Some(match encoder_files::load_pooling(model)?.0 {
        OwnPooling::Unstated => TextPooling::Mean,
        OwnPooling::As(pooling) => pooling.try_into()?,
        OwnPooling::Layered(..) => bail!(
            "`{}` has layers behind its pooling (`Dense`), which are not trained\nhint: use a model without, or set \
             `objective.pooling`, which leaves them out",
            model.display()
        ),
        OwnPooling::Late(_) => TextPooling::try_from(Pooling::Tokens)?,
        OwnPooling::Unsupported(what) => {
            bail!("the model's own pooling is not trained: {what}\nhint: set `objective.pooling`")
        }
    });
    Ok(())
}

fn is_classify(config: &TrainConfig) -> bool {
    config.objective.kind == ObjectiveKind::Classify
}

/// The pairs, or the texts with labels, that were read.
pub(super) struct TextItems {
    found: Examples<TextItem>,
    is_labeled: bool,
}

impl TextItems {
    pub(super) fn read(
        [sources, validation]: [&[String]; 2],
        text: &LoadedText,
        config: &TrainConfig,
        status: &mut Status,
    ) -> Result<TextItems> {
        let origins = |sources: &[String]| sources.iter().map(|source| Origin::parse(source)).collect::<Vec<_>>();
        let settings = ExampleSettings {
            max_len: config.model.max_seq_len,
            too_long: config.data.too_long,
            text_field: "text".to_owned(),
            validation: origins(validation),
        };
        let sources = origins(sources);
        let mut progress = |download: hearth_model::hub::Download| status.show(|_| download.to_string());
        let is_labeled = is_classify(config);
        let found = match is_labeled {
            true => read_labeled_texts(&sources, &text.tokenizer, &settings, &mut progress)?,
            false => read_text_pairs(&sources, &text.tokenizer, &settings, &mut progress)?,
        };
        status.clear();
        note_sources(status, &sources, &settings, &found);
        ensure!(
            !found.examples.is_empty(),
            "no {} is left to train on: {} were too long\nhint: {}",
            if is_labeled { "text" } else { "pair" },
            found.n_dropped,
            shorter(config)
        );
        let items = TextItems { found, is_labeled };
        let n_shared = items.n_shared();
        if n_shared > 0 {
            status.note(&format!(
                "warning: {} a `positive` that another pair has too; where both are in one batch, each is trained as a wrong \
                 answer to the other's anchor",
                if n_shared == 1 { "1 pair has".to_owned() } else { format!("{n_shared} pairs have") }
            ));
        }
        Ok(items)
    }

    /// Number of pairs whose positive also occurs in an earlier pair.
    fn n_shared(&self) -> usize {
        if self.is_labeled {
            return 0;
        }
        let positives: BTreeSet<_> = self.found.examples.iter().filter_map(|item| item.texts.get(1)).collect();
        self.found.examples.len() - positives.len()
    }

    /// Follows the data: whether pairs have negatives, and margins.
    ///
    /// # Errors
    /// The user has set something else.
    pub(super) fn follow(&self, config: &mut TrainConfig, defaults: &Defaults) -> Result<()> {
        if self.is_labeled {
            return Ok(());
        }
        let has_negatives = self.texts_per_item() == 3;
        ensure!(
            !defaults.is_set("objective.negatives") || config.objective.negatives == has_negatives,
            "`objective.negatives` is {}, but the pairs have {} `negative`\nhint: leave it out: it follows the data",
            config.objective.negatives,
            if has_negatives { "a" } else { "no" }
        );
        config.objective.negatives = has_negatives;
        let has_margins = self.found.examples.first().is_some_and(|item| item.margin.is_some());
        ensure!(
            !defaults.is_set("objective.margins") || config.objective.margins == has_margins,
            "`objective.margins` is {}, but the pairs have {}\nhint: leave it out: it follows the data",
            config.objective.margins,
            if has_margins { "margins" } else { "no `margin` and no `scores`" }
        );
        config.objective.margins = has_margins;
        Ok(())
    }

    fn texts_per_item(&self) -> usize {
        self.found.examples.first().map_or(2, |item| item.texts.len())
    }

    pub(super) fn summary(&self) -> String {
        let Examples { examples, val, n_cut, n_dropped, .. } = &self.found;
        let n_tokens: usize = examples.iter().chain(val).flat_map(|item| &item.texts).map(Vec::len).sum();
        let what = match self.texts_per_item() {
            1 => "text",
            2 => "pair",
            _ => "pair with a negative",
        };
        let mut line = format!("{}, {n_tokens} tokens", counted(examples.len() + val.len(), what));
        for (n, what) in [(val.len(), "for validation"), (*n_cut, "cut"), (*n_dropped, "left out as too long")] {
            if n > 0 {
                line += &format!("; {n} {what}");
            }
        }
        line
    }

    pub(super) fn n_val(&self) -> usize {
        self.found.val.len()
    }

    pub(super) fn size(&self) -> ExamplesSize {
        let [trained, val] = [&self.found.examples, &self.found.val].map(|items| examples(items));
        size(self.found.examples.len(), trained.iter(), val.iter())
    }

    /// The texts of all pairs as examples, to show them, with the numbers of pairs, of cut pairs, and of dropped pairs.
    pub(super) fn shown(&self) -> (Vec<Example>, [usize; 3]) {
        let Examples { examples: trained, val, n_cut, n_dropped, .. } = &self.found;
        ([examples(trained), examples(val)].concat(), [trained.len() + val.len(), *n_cut, *n_dropped])
    }

    /// The pairs, or the texts, in two splits. Those with the same anchor, or text, stay in one split.
    pub(super) fn into_data(self, model: &Path, text: LoadedText, config: &TrainConfig) -> Result<Data> {
        let (texts_per_item, hash) = (self.texts_per_item(), self.hash());
        let head = if self.is_labeled { Some(self.head(model, config)?) } else { None };
        let [train, val] = match self.found.val.is_empty() {
            true => split_by_anchor(self.found.examples, config),
            false => [self.found.examples, self.found.val],
        };
        let rows = |items: Vec<TextItem>| -> Result<RowSource> {
            if items.is_empty() {
                return Ok(RowSource::from(Tokens::from_ids(Vec::new(), 0)));
            }
            let classes: Option<Vec<u32>> =
                items.iter().map(|item| head.as_ref().and_then(|head| head.class_of(&item.label))).collect();
            let margins: Option<Vec<f64>> = items.iter().map(|item| item.margin).collect();
            let second_texts: Vec<Option<usize>> = items.iter().map(|item| item.second_text).collect();
            let texts = items.into_iter().map(|item| item.texts);
            let items = Items::new(texts, texts_per_item, config.model.max_seq_len, &text.tokenizer)?;
            Ok(RowSource::Items(match (classes, margins) {
                (Some(classes), _) => items.with_classes(classes, second_texts),
                (None, Some(margins)) => items.with_margins(margins),
                (None, None) => items,
            }))
        };
        let splits = [rows(train)?, rows(val)?];
        let mut data = data_with(splits, hash, model, text)?;
        let is_of_vectors =
            |name: &str| name == "modules.json" || name.contains("_Dense/") || name.contains("_Pooling/");
        if let Some(head) = head {
            // These files would describe another model.
            data.tokenizer_files.retain(|(name, _)| !is_of_vectors(name));
            return Ok(Data { classifier: Some(head.classifier), ..data });
        }
        let pooling = config.objective.pooling.map_or(Pooling::Mean, Pooling::from);
        let (own, limit) = encoder_files::load_pooling(model)?;
        if own != OwnPooling::As(pooling) {
            let gpt = model_dir::load_config(model)?;
            let files = model_dir::pooling_files(pooling, gpt.d_model, limit.unwrap_or(gpt.max_seq_len));
            data.tokenizer_files.retain(|(name, _)| !is_of_vectors(name) && files.iter().all(|(new, _)| new != name));
            data.tokenizer_files.extend(files);
        }
        Ok(data)
    }

    /// The initial head: the model's own, or a new one for the training labels.
    ///
    /// # Errors
    /// The head does not have a label, there are fewer than two labels, or the head's classes are not mutually
    /// exclusive.
    fn head(&self, model: &Path, config: &TrainConfig) -> Result<Head> {
        let Examples { examples, val, .. } = &self.found;
        let pooling = config.objective.pooling.map_or(Pooling::Cls, Pooling::from);
        let own = encoder_files::load_classifier(model)?;
        let is_own = own.is_some();
        let classifier = match own {
            Some(own) => Classifier { pooling, ..own },
            None => encoder_files::fresh_classifier(model, &labels_of(examples), pooling, config.seed)?,
        };
        let head = Head { classifier, is_own };
        let Classifier { labels, scores, .. } = &head.classifier;
        ensure!(
            labels.len() > 1 || is_own,
            "all texts have the `label` `{}`, so there is nothing to tell apart\nhint: add texts with another label",
            labels.join("")
        );
        ensure!(
            labels.len() > 1 && *scores == ClassScores::Softmax,
            "the head of `{}` gives each of its {} a score by itself, and `objective.kind=classify` trains classes of which one \
             applies\nhint: begin with a model without a head",
            model.display(),
            counted(labels.len(), "class")
        );
        if let Some(TextItem { label, origin, .. }) =
            examples.iter().chain(val).find(|item| head.class_of(&item.label).is_none())
        {
            let (who, hint) = match is_own {
                true => ("the model's head does not have", "correct this line, or begin with a model without a head"),
                false => ("no text to train on has", "correct this line"),
            };
            bail!("{origin}: `label` is `{label}`, which {who}, only {}\nhint: {hint}", shown(labels));
        }
        Ok(head)
    }

    /// The digest of the training items and of the validation items.
    fn hash(&self) -> Digest {
        let mut hash = Digester::new();
        for items in [&self.found.examples, &self.found.val] {
            hash.update(&(items.len() as u64).to_le_bytes());
            for TextItem { texts, label, margin, .. } in items {
                for ids in texts {
                    hash.update(&(ids.len() as u64).to_le_bytes());
                    ids.iter().for_each(|id| hash.update(&id.to_le_bytes()));
                }
                hash.update(label.as_bytes());
                margin.iter().for_each(|margin| hash.update(&margin.to_le_bytes()));
            }
        }
        hash.finish()
    }
}

/// Each text as a separate example.
fn examples(items: &[TextItem]) -> Vec<Example> {
    let of_item = |item: &TextItem| {
        let example =
            |ids: &Vec<_>| Example { trained: vec![true; ids.len()], ids: ids.clone(), origin: item.origin.clone() };
        item.texts.iter().map(example).collect::<Vec<_>>()
    };
    items.iter().flat_map(of_item).collect()
}

/// The initial classification head.
struct Head {
    classifier: Classifier,
    /// Whether it is the model's.
    is_own: bool,
}

impl Head {
    /// The number of the class `label`, by its name; or the number itself, if the model has the head.
    fn class_of(&self, label: &str) -> Option<u32> {
        let labels = &self.classifier.labels;
        let by_name = labels.iter().position(|name| name == label);
        let by_number = || label.parse().ok().filter(|number: &usize| self.is_own && *number < labels.len());
        by_name.or_else(by_number).map(|class| class as u32)
    }
}

/// The different labels: numbers in their order, or else texts in theirs.
fn labels_of(items: &[TextItem]) -> Vec<String> {
    let labels: BTreeSet<&String> = items.iter().map(|item| &item.label).collect();
    let mut labels: Vec<String> = labels.into_iter().cloned().collect();
    let numbers: Option<Vec<i64>> = labels.iter().map(|label| label.parse().ok()).collect();
    if numbers.is_some() {
        labels.sort_by_key(|label| label.parse::<i64>().unwrap_or_default());
    }
    labels
}

/// The first labels.
fn shown(labels: &[String]) -> String {
    let more = if labels.len() > MAX_SHOWN { ", ..." } else { "" };
    format!("`{}`{more}", labels[..labels.len().min(MAX_SHOWN)].join("`, `"))
}

fn split_by_anchor(items: Vec<TextItem>, config: &TrainConfig) -> [Vec<TextItem>; 2] {
    if config.data.val_fraction == 0.0 {
        return [items, Vec::new()];
    }
    let mut numbers = BTreeMap::new();
    for item in &items {
        let number = numbers.len();
        numbers.entry(item.texts[0].clone()).or_insert(number);
    }
    split(items, |item, number| numbers.get(&item.texts[0]).copied().unwrap_or(number), config)
}
