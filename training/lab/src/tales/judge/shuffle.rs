//! Puts the names of texts into each other's places, to see whether the judge notices.

use super::{
    super::{Tales, draw::Draw},
    Judged,
};

/// Shuffles all names among all places where names are.
pub fn shuffle_names(tales: &Tales, judged: &mut [Judged], seed: u64) {
    let Some(list) = tales.grammar.list("name") else { return };
    let is_name = |word: &str| list.entries.iter().any(|entry| entry.forms[0] == word);
    let is_letter = |char: char| char.is_alphanumeric();
    // Every second element is a name.
    let cut = |text: &str| {
        let mut parts = vec![String::new()];
        for part in text.split_inclusive(|char| !is_letter(char)) {
            let word = part.trim_end_matches(|char| !is_letter(char));
            if is_name(word) {
                parts.push(word.to_owned());
                parts.push(part[word.len()..].to_owned());
            } else if let Some(last) = parts.last_mut() {
                last.push_str(part);
            }
        }
        parts
    };
    let mut texts: Vec<Vec<String>> = judged.iter().map(|judged| cut(&judged.text)).collect();
    let mut names: Vec<String> = texts.iter().flat_map(|parts| parts.iter().skip(1).step_by(2).cloned()).collect();
    let mut draw = Draw::new(seed, 0, 0);
    for last in (1..names.len()).rev() {
        names.swap(last, draw.below(last as u64 + 1) as usize);
    }
    let places = texts.iter_mut().flat_map(|parts| parts.iter_mut().skip(1).step_by(2));
    places.zip(names).for_each(|(place, name)| *place = name);
    judged.iter_mut().zip(texts).for_each(|(judged, parts)| judged.text = parts.concat());
}
