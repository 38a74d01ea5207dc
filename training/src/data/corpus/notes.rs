//! Parts of the data that are not trained as written, where that is no reason to stop: each kind is reported once, with its
//! first place.

use std::collections::{BTreeMap, btree_map::Entry};

/// Maximum number of kinds that are reported one by one.
const MAX_SAID: usize = 20;
/// Maximum number of members that are named.
const MAX_NAMED: usize = 10;

/// A note about one record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// A member, or a column, that is not read.
    Unread(String),
    /// Anything else, as a clause.
    Other(String),
}

/// Notes about records, each kind once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// For each note its number in the order of the data, and its first place.
    first: BTreeMap<Note, (usize, String)>,
}

impl Notes {
    /// Adds a note about the record at `place`, such as "`a.jsonl`, line 3", unless the same was noted before.
    pub fn add(&mut self, note: Note, place: &str) {
        let number = self.first.len();
        if let Entry::Vacant(entry) = self.first.entry(note) {
            entry.insert((number, place.to_owned()));
        }
    }

    /// Adds later notes.
    pub fn extend(&mut self, later: Notes) {
        let mut all: Vec<_> = later.first.into_iter().collect();
        all.sort_by_key(|(_, (number, _))| *number);
        all.into_iter().for_each(|(note, (_, place))| self.add(note, &place));
    }

    /// The lines to print, in the order of the data; members that are not read share one.
    pub fn lines(&self) -> Vec<String> {
        let mut all: Vec<_> = self.first.iter().collect();
        all.sort_by_key(|(_, (number, _))| *number);
        let (mut names, mut others) = (Vec::new(), Vec::new());
        for (note, (_, place)) in all {
            match note {
                Note::Unread(name) => names.push((name, place)),
                Note::Other(what) => others.push(format!("{place}: {what}")),
            }
        }
        let mut lines: Vec<String> = Vec::new();
        if let Some((_, place)) = names.first() {
            let shown: Vec<&str> = names.iter().take(MAX_NAMED).map(|(name, _)| name.as_str()).collect();
            let more = if names.len() > shown.len() { ", ..." } else { "" };
            lines.push(format!("{place}: not read, here and elsewhere: `{}`{more}", shown.join("`, `")));
        }
        let n_more = others.len().saturating_sub(MAX_SAID);
        others.truncate(MAX_SAID);
        lines.extend(others);
        if n_more > 0 {
            lines.push(format!("and {n_more} more kinds of such remarks"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_say_each_kind_once_with_its_first_place() {
        let mut notes = Notes::default();
        let other = || Note::Other("it is empty".into());
        for (note, place) in [
            (other(), "line 2"),
            (Note::Unread("id".into()), "line 3"),
            (other(), "line 4"),
            (Note::Unread("url".into()), "line 5"),
        ] {
            notes.add(note, place);
        }
        let mut later = Notes::default();
        later.add(other(), "line 9");
        later.add(Note::Other("it is long".into()), "line 10");
        notes.extend(later);
        let expected =
            ["line 3: not read, here and elsewhere: `id`, `url`", "line 2: it is empty", "line 10: it is long"];
        assert_eq!(notes.lines(), expected);
    }
}
