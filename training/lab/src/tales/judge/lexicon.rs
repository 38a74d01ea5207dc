//! Finds the words of the grammar's lists in a text.

use std::collections::{HashMap, HashSet};

use super::super::grammar::{Entry, Grammar, Symbol};

/// All words and phrases of the lists.
#[derive(Clone, Debug)]
pub(super) struct Lexicon {
    /// Phrases by their first word, the longest first.
    phrases: HashMap<String, Vec<Phrase>>,
    /// All words as the grammar writes them, except names: such a word with a capital is not taken for an unknown name.
    capitals: HashSet<String>,
    /// The gender of each name: the values of the feature.
    genders: HashMap<String, u64>,
    /// The gender of each pronoun.
    pronouns: Vec<u64>,
    /// The names of the lists.
    pub(super) lists: Vec<String>,
}

#[derive(Clone, Debug)]
struct Phrase {
    words: Vec<String>,
    list: usize,
    entry: usize,
}

/// A text as its words.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub(super) words: Vec<Word>,
    pub(super) mentions: Vec<Mention>,
}

/// A word of a text.
#[derive(Clone, Debug)]
pub(super) struct Word {
    /// The word, in small letters if a sentence begins with it.
    pub(super) text: String,
    /// The name, if it is or may be one: a word with a capital that the grammar does not know.
    pub(super) name: Option<String>,
    pub(super) is_quoted: bool,
}

/// A word or phrase of a list in a text.
#[derive(Clone, Debug)]
pub(super) struct Mention {
    /// Index of its first word.
    pub(super) at: usize,
    pub(super) list: usize,
    /// The entries of which it may be a form.
    pub(super) entries: Vec<usize>,
}

impl Phrase {
    fn is(&self, words: &[Word]) -> bool {
        self.words.len() == words.len() && self.words.iter().zip(words).all(|(word, found)| *word == found.text)
    }
}

impl Lexicon {
    pub(super) fn new(grammar: &Grammar) -> Lexicon {
        let mut phrases: HashMap<String, Vec<Phrase>> = HashMap::new();
        let mut capitals = HashSet::new();
        let mut genders = HashMap::new();
        for (list, of) in grammar.lists.iter().enumerate() {
            let is_names = of.columns[0] == "name";
            for (entry, of) in of.entries.iter().enumerate() {
                let gender = gender_of(of);
                for form in &of.forms {
                    let words: Vec<String> = bare_words(form).map(str::to_owned).collect();
                    let Some(first) = words.first().cloned() else { continue };
                    if is_names {
                        genders.insert(form.clone(), gender);
                    } else {
                        phrases.entry(first).or_default().push(Phrase { words, list, entry });
                        capitals.extend(bare_words(form).map(str::to_owned));
                    }
                }
            }
        }
        let symbols = grammar.rules.iter().flat_map(|rule| &rule.alternatives).flat_map(|of| &of.symbols);
        for symbol in symbols {
            if let Symbol::Text(text) = symbol {
                capitals.extend(bare_words(text).map(str::to_owned));
            }
        }
        phrases.values_mut().for_each(|phrases| phrases.sort_by_key(|phrase| std::cmp::Reverse(phrase.words.len())));
        let lists = grammar.lists.iter().map(|list| list.columns[0].clone()).collect();
        let pronouns =
            grammar.list("they").map(|list| list.entries.iter().map(gender_of).collect()).unwrap_or_default();
        Lexicon { phrases, capitals, genders, pronouns, lists }
    }

    /// Reads a text.
    pub(super) fn read(&self, text: &str) -> Reading {
        let mut reading = Reading::default();
        let (mut is_start, mut is_quoted) = (true, false);
        for part in split(text) {
            let Some(first) = part.chars().next().filter(|first| first.is_alphanumeric()) else {
                is_quoted ^= part.matches('"').count() % 2 == 1;
                is_start = part.contains(['.', '!', '?', ':', '"', '\n']);
                continue;
            };
            let is_known = self.genders.contains_key(part);
            let is_name = is_known || first.is_uppercase() && !is_start && !self.capitals.contains(part) && part != "I";
            let name = is_name.then(|| part.to_owned());
            let text = if is_start && !is_known { part.to_lowercase() } else { part.to_owned() };
            reading.words.push(Word { text, name, is_quoted });
            is_start = false;
        }
        let mut end = 0;
        for at in 0..reading.words.len() {
            let n_words = self.longest(&reading.words[at..]);
            // Within a longer phrase, words have another meaning than alone: "a kite in a tree" is a sight.
            if at + n_words > end {
                end = at + n_words;
                let mentions = self.mentions(at, &reading.words[at..end]);
                reading.mentions.extend(mentions);
            }
        }
        reading
    }

    fn phrases(&self, words: &[Word]) -> &[Phrase] {
        words.first().and_then(|first| self.phrases.get(&first.text)).map_or(&[], Vec::as_slice)
    }

    /// The number of words of the longest phrase at the beginning of `words`.
    fn longest(&self, words: &[Word]) -> usize {
        let is_here = |phrase: &&Phrase| words.get(..phrase.words.len()).is_some_and(|words| phrase.is(words));
        self.phrases(words).iter().find(is_here).map_or(0, |phrase| phrase.words.len())
    }

    /// The entries, by their list, that have `words` as a form.
    fn mentions(&self, at: usize, words: &[Word]) -> Vec<Mention> {
        let mut mentions: Vec<Mention> = Vec::new();
        for phrase in self.phrases(words).iter().filter(|phrase| phrase.is(words)) {
            match mentions.iter_mut().find(|mention| mention.list == phrase.list) {
                Some(mention) => mention.entries.push(phrase.entry),
                None => mentions.push(Mention { at, list: phrase.list, entries: vec![phrase.entry] }),
            }
        }
        mentions
    }

    /// The number of a list.
    pub(super) fn list(&self, name: &str) -> Option<usize> {
        self.lists.iter().position(|list| list == name)
    }

    /// The gender of a known name.
    pub(super) fn gender(&self, name: &str) -> Option<u64> {
        self.genders.get(name).copied()
    }

    /// The gender of a pronoun, of an entry of the list of pronouns.
    pub(super) fn gender_of_pronoun(&self, entry: usize) -> u64 {
        self.pronouns.get(entry).copied().unwrap_or_default()
    }

    /// The entry of a list that has the form `form`.
    pub(super) fn entry(&self, list: usize, form: &str) -> Option<usize> {
        let words: Vec<&str> = bare_words(form).collect();
        let phrases = self.phrases.get(*words.first()?)?;
        phrases.iter().find(|phrase| phrase.list == list && phrase.words == words).map(|phrase| phrase.entry)
    }
}

/// The gender of a name or pronoun, from the values of its only feature.
fn gender_of(entry: &Entry) -> u64 {
    entry.constraints.first().map_or(0, |constraint| constraint.values)
}

impl Reading {
    /// All names, each as often as it occurs.
    pub(super) fn names(&self) -> Vec<String> {
        self.words.iter().filter_map(|word| word.name.clone()).collect()
    }

    /// Mentions of entries of a list.
    pub(super) fn of_list(&self, list: usize) -> impl Iterator<Item = &Mention> {
        self.mentions.iter().filter(move |mention| mention.list == list)
    }

    /// The word at an index; empty beyond the end.
    pub(super) fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", |word| word.text.as_str())
    }
}

/// Words, and the characters between them.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut before = None;
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    for (index, &(at, char)) in chars.iter().enumerate() {
        let next = chars.get(index + 1).is_some_and(|(_, next)| next.is_alphanumeric());
        let joins = matches!(char, '-' | '\'' | '\u{2019}') && before == Some(true) && next;
        let is_word = char.is_alphanumeric() || joins;
        if before.is_some_and(|before| before != is_word) {
            parts.push(&text[start..at]);
            start = at;
        }
        before = Some(is_word);
    }
    if start < text.len() {
        parts.push(&text[start..]);
    }
    parts
}

/// The words of a text, without the characters between them.
pub(super) fn bare_words(text: &str) -> impl Iterator<Item = &str> {
    split(text).into_iter().filter(|part| part.starts_with(char::is_alphanumeric))
}

/// The words of a text in small letters, each between spaces.
pub(super) fn normalized(text: &str) -> String {
    bare_words(text).fold(" ".to_owned(), |text, word| text + &word.to_lowercase() + " ")
}
