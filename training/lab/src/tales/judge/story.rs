//! Judges stories.

use super::{
    Criterion, Judge, Judged, is_complete,
    lexicon::{Reading, normalized},
};

/// Words in a story.
const STORY_WORDS: std::ops::Range<usize> = 40..300;

impl Judge {
    pub(super) fn story(&self, judged: &Judged) -> Vec<(Criterion, bool)> {
        let reading = self.lexicon.read(&judged.text);
        let plot = judged.expected.plot.as_deref().or_else(|| self.endings.plot_of(&judged.text));
        let mut verdict = vec![
            (Criterion::Names, self.introduces_names(&reading, judged)),
            (Criterion::Pronouns, self.pronouns_fit(&reading)),
            (Criterion::Object, plot.is_some_and(|plot| self.object_stays(&reading, plot, judged))),
            (Criterion::Ending, plot.is_some_and(|plot| self.endings.fits(plot, &judged.text))),
            (Criterion::Complete, is_complete(&judged.text, STORY_WORDS)),
        ];
        if !judged.expected.elements.is_empty() {
            verdict.push((Criterion::Elements, self.has_elements(&reading, judged)));
        }
        verdict
    }

    /// Whether every name is introduced in the story or was asked for, and there is one.
    fn introduces_names(&self, reading: &Reading, judged: &Judged) -> bool {
        let asked = judged.expected.elements.iter().filter(|(list, _)| list == "name").map(|(_, name)| name.as_str());
        let mut introduced: Vec<&str> = asked.collect();
        let names = || reading.words.iter().enumerate().filter_map(|(at, word)| Some((at, word.name.as_deref()?)));
        introduced.extend(names().filter(|&(at, _)| self.is_introduction(reading, at)).map(|(_, name)| name));
        !introduced.is_empty() && names().all(|(_, name)| introduced.contains(&name))
    }

    /// Whether a name is introduced here: "named Ada", "her name was Ada", "Ada the fox", "Ada, a brave fox", "Ada was a fox".
    fn is_introduction(&self, reading: &Reading, at: usize) -> bool {
        let back = |n: usize| at.checked_sub(n).map_or("", |at| reading.word(at));
        if matches!(back(1), "named" | "called") || (back(2), back(1)) == ("name", "was") {
            return true;
        }
        let after = if reading.word(at + 1) == "was" { at + 2 } else { at + 1 };
        let is_kind = |at: usize| {
            let kinds = self.lexicon.list("kind");
            reading.mentions.iter().any(|mention| mention.at == at && Some(mention.list) == kinds)
        };
        match reading.word(after) {
            "the" => is_kind(after + 1),
            "a" | "an" => (after + 1..after + 4).any(is_kind),
            _ => false,
        }
    }

    /// Whether "he" and "she" occur outside of speech only if there is a character of that gender.
    fn pronouns_fit(&self, reading: &Reading) -> bool {
        let names = reading.names();
        let genders: Option<Vec<u64>> = names.iter().map(|name| self.lexicon.gender(name)).collect();
        // Nobody knows the gender of a name that a model invented.
        let Some(genders) = genders else { return true };
        let Some(they) = self.lexicon.list("they") else { return false };
        let told = reading.of_list(they).filter(|mention| !reading.words[mention.at].is_quoted);
        let mut pronouns =
            told.flat_map(|mention| &mention.entries).map(|&entry| self.lexicon.gender_of_pronoun(entry));
        pronouns.all(|gender| genders.iter().any(|known| known & gender != 0))
    }

    /// Whether the story is about one object of the kind that its plot needs, and about the requested one.
    fn object_stays(&self, reading: &Reading, plot: &str, judged: &Judged) -> bool {
        let Some(list) = self.endings.thing_of(plot).and_then(|thing| self.lexicon.list(thing)) else { return false };
        // Several entries may have a form in common; only the entries that fit all mentions remain.
        let mentions: Vec<&Vec<usize>> = reading.of_list(list).map(|mention| &mention.entries).collect();
        let Some((first, rest)) = mentions.split_first() else { return false };
        let mut fitting = first.iter().filter(|entry| rest.iter().all(|entries| entries.contains(entry)));
        let asked = judged.expected.elements.iter().find(|(name, _)| *name == self.lexicon.lists[list]);
        let asked = asked.and_then(|(_, word)| self.lexicon.entry(list, word));
        mentions.len() >= self.endings.least_mentions(plot)
            && fitting.any(|&entry| asked.is_none_or(|asked| asked == entry))
    }

    /// Whether all elements that were asked for are mentioned, in any form.
    fn has_elements(&self, reading: &Reading, judged: &Judged) -> bool {
        let text = normalized(&judged.text);
        judged.expected.elements.iter().all(|(list, word)| {
            text.contains(&normalized(word))
                || self.lexicon.list(list).is_some_and(|list| self.has_entry(reading, list, word))
        })
    }

    /// Whether an entry is mentioned in any of its forms. A name of the same gender counts for a pronoun.
    fn has_entry(&self, reading: &Reading, list: usize, word: &str) -> bool {
        let Some(entry) = self.lexicon.entry(list, word) else { return false };
        let mut genders = reading.words.iter().filter_map(|word| self.lexicon.gender(word.name.as_deref()?));
        reading.of_list(list).any(|mention| mention.entries.contains(&entry))
            || self.lexicon.lists[list] == "they"
                && genders.any(|gender| gender & self.lexicon.gender_of_pronoun(entry) != 0)
    }
}
