//! The grammar of tales: rules of phrasings, and lists of words that go into their slots.
//!
//! A slot such as `{hero.name}` names a role (`hero`) and a column of a list (`name`). The first time that a tale comes to
//! it, an entry of the list is chosen; from then on the role keeps it, so names, pronouns and objects stay consistent.
//! Entries have features (`g=she`), which must agree within a role: after `{hero.kind}` became "girl", only names of
//! girls fit `{hero.name}`. Roles never share an entry of a list: two characters have two names.
//!
//! [`syntax`](super::syntax) describes how rules and lists are written.

use std::borrow::Cow;

/// Rules and lists, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Grammar {
    pub(super) rules: Vec<Rule>,
    pub(super) lists: Vec<List>,
    /// Names of the roles. Roles whose names differ only in digits at the end share their features: the number is the
    /// index of the first of them.
    pub(super) roles: Vec<(String, usize)>,
    /// Names of the features, each with the names of its values.
    pub(super) features: Vec<(String, Vec<String>)>,
}

/// The phrasings among which one is chosen.
#[derive(Clone, Debug, Default)]
pub(super) struct Rule {
    /// Empty for alternatives in brackets.
    pub(super) name: String,
    pub(super) alternatives: Vec<Alternative>,
}

/// One phrasing.
#[derive(Clone, Debug)]
pub(super) struct Alternative {
    /// How often it is chosen, relative to the others.
    pub(super) weight: u64,
    /// Conditions for choosing the alternative; they also hold afterwards.
    pub(super) conditions: Vec<Condition>,
    pub(super) symbols: Vec<Symbol>,
}

/// A feature of a role must have one of some values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    /// The role whose features it constrains: the first of those that share them.
    pub(super) role: usize,
    pub(super) constraint: Constraint,
}

/// A feature, and the set of its values that are possible, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Constraint {
    pub(super) feature: usize,
    pub(super) values: u64,
}

/// A part of a phrasing.
#[derive(Clone, Debug)]
pub(super) enum Symbol {
    Text(String),
    Rule(usize),
    Slot(Slot),
    /// Starts a message of a conversation.
    Message(Speaker),
    /// A label of the tale that its text does not show, such as its plot.
    Label {
        key: String,
        value: String,
    },
}

/// Who speaks in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// A place for a word of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// `None`: the entry is chosen anew each time, and not remembered.
    pub(super) role: Option<usize>,
    pub(super) list: usize,
    pub(super) column: usize,
    pub(super) article: Article,
    /// Whether the first letter of the word is a capital.
    pub(super) is_capital: bool,
    /// Whether a right answer must contain this.
    pub(super) is_key: bool,
}

/// The article before the word of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Article {
    None,
    /// "a" or "an", as the word needs it.
    Small,
    /// "A" or "An".
    Capital,
}

/// Words of a kind.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    /// The names of its columns, by which slots refer to it; the first is also the name of the list.
    pub(super) columns: Vec<String>,
    pub(super) entries: Vec<Entry>,
    /// Whether several roles may have the same entry.
    pub(super) repeats: bool,
}

/// A word and its forms.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// One form per column.
    pub(super) forms: Vec<String>,
    pub(super) constraints: Vec<Constraint>,
}

impl Grammar {
    /// The number of the rule `name`.
    pub(super) fn rule(&self, name: &str) -> Option<usize> {
        self.rules.iter().position(|rule| rule.name == name)
    }

    /// The list with a column `name`, and the number of that column.
    pub(super) fn column(&self, name: &str) -> Option<(usize, usize)> {
        let column = |list: &List| list.columns.iter().position(|column| column == name);
        self.lists.iter().enumerate().find_map(|(index, list)| Some((index, column(list)?)))
    }

    /// The list whose first column is `name`.
    pub(super) fn list(&self, name: &str) -> Option<&List> {
        self.lists.iter().find(|list| list.columns.first().is_some_and(|column| column == name))
    }
}

impl Slot {
    /// The text of the slot if `entry` is chosen.
    pub(super) fn text<'a>(&self, entry: &'a Entry) -> Cow<'a, str> {
        let form = entry.forms[self.column].as_str();
        let word = if self.is_capital { Cow::Owned(capitalized(form)) } else { Cow::Borrowed(form) };
        match self.article {
            Article::None => word,
            Article::Small => format!("{} {word}", article(form)).into(),
            Article::Capital => format!("{} {word}", capitalized(article(form))).into(),
        }
    }
}

/// `text` with a capital first letter.
pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// The indefinite article of a word, by how the word sounds.
pub(super) fn article(word: &str) -> &'static str {
    let word = word.to_lowercase();
    let begins = |starts: &[&str]| starts.iter().any(|start| word.starts_with(start));
    let sounds_like_vowel =
        begins(&["a", "e", "i", "o", "u", "hour", "honest"]) && !begins(&["uni", "use", "one", "eu"]);
    if sounds_like_vowel { "an" } else { "a" }
}
