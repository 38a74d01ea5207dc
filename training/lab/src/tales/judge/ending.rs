//! How the stories of each plot end.

use std::collections::BTreeMap;

use hearth_training::eval::subsequence::longest_common;

use super::{
    super::grammar::{Grammar, Symbol},
    lexicon::bare_words,
};

/// Sentences in which an ending is looked for.
const TAIL_SENTENCES: usize = 5;
/// The least share of the words of an ending, in their order, that must be there.
const LEAST_SHARE: f64 = 0.75;

/// The endings of all plots.
#[derive(Clone, Debug)]
pub(super) struct Endings {
    plots: BTreeMap<String, Plot>,
}

#[derive(Clone, Debug)]
struct Plot {
    /// The list of the objects of its stories.
    thing: String,
    least_mentions: usize,
    /// The words of each ending, without the words of its slots.
    endings: Vec<Vec<String>>,
}

impl Endings {
    pub(super) fn new(grammar: &Grammar) -> Endings {
        let mut plots = BTreeMap::new();
        for alternative in grammar.rules.iter().flat_map(|rule| &rule.alternatives) {
            let label = |wanted: &str| {
                alternative.symbols.iter().find_map(|symbol| match symbol {
                    Symbol::Label { key, value } if key == wanted => Some(value.clone()),
                    _ => None,
                })
            };
            let (Some(plot), Some(thing)) = (label("plot"), label("thing")) else { continue };
            let rule = grammar.rule(&format!("{plot}-end")).map(|rule| &grammar.rules[rule]);
            let endings =
                rule.map(|rule| rule.alternatives.iter().map(|ending| fixed_words(&ending.symbols)).collect());
            let least_mentions = label("mentions").and_then(|least| least.parse().ok()).unwrap_or(2);
            plots.insert(plot, Plot { thing, least_mentions, endings: endings.unwrap_or_default() });
        }
        Endings { plots }
    }

    /// The list of the objects of a plot's stories.
    pub(super) fn thing_of(&self, plot: &str) -> Option<&str> {
        self.plots.get(plot).map(|plot| plot.thing.as_str())
    }

    /// How often a story of the plot mentions it, at least.
    pub(super) fn least_mentions(&self, plot: &str) -> usize {
        self.plots.get(plot).map_or(1, |plot| plot.least_mentions)
    }

    /// The plot whose ending the text has.
    pub(super) fn plot_of(&self, text: &str) -> Option<&str> {
        let tail = tail(text);
        let shares = self.plots.iter().map(|(name, plot)| (share(plot, &tail), name.as_str()));
        let best = shares.max_by(|one, other| one.0.total_cmp(&other.0))?;
        (best.0 >= LEAST_SHARE).then_some(best.1)
    }

    /// Whether the text ends as stories of the plot do, and not more like stories of another plot.
    pub(super) fn fits(&self, plot: &str, text: &str) -> bool {
        let tail = tail(text);
        let Some(own) = self.plots.get(plot).map(|plot| share(plot, &tail)) else { return false };
        own >= LEAST_SHARE && self.plots.values().all(|other| share(other, &tail) <= own)
    }
}

/// The share of the words of the best ending that are in `tail`, in their order.
fn share(plot: &Plot, tail: &[String]) -> f64 {
    let shares = plot.endings.iter().map(|ending| longest_common(ending, tail) as f64 / ending.len() as f64);
    shares.fold(0.0, f64::max)
}

/// The words of the last sentences.
fn tail(text: &str) -> Vec<String> {
    let sentences: Vec<&str> = text.trim_end().split_inclusive(['.', '!', '?']).collect();
    let tail = &sentences[sentences.len().saturating_sub(TAIL_SENTENCES)..];
    tail.iter().flat_map(|sentence| bare_words(sentence)).map(str::to_lowercase).collect()
}

fn fixed_words(symbols: &[Symbol]) -> Vec<String> {
    let texts = symbols.iter().filter_map(|symbol| match symbol {
        Symbol::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.flat_map(bare_words).map(str::to_lowercase).collect()
}
