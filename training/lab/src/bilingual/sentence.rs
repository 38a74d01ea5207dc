//! The meaning of a sentence, and its form in each language.

use hearth_training::data::loader::mix;

use super::lexicon::{ADJECTIVES, ADVERBS, BEINGS, CONJUNCTIONS, NUMBERS, Noun, PLACES, THINGS, VERBS, Verb, Word};
use crate::draw::Draw;

/// One in this many pairs of words is held out.
const HELD_OUT: u64 = 8;

/// The determiner of a noun phrase, which also decides between singular and plural.
#[derive(Clone, Copy, Debug)]
enum Determiner {
    /// `the` or `a`.
    One {
        is_known: bool,
    },
    /// `the` with a plural.
    All,
    Counted(Word),
}

impl Determiner {
    fn is_plural(self) -> bool {
        !matches!(self, Self::One { .. })
    }
}

#[derive(Clone, Copy, Debug)]
struct NounPhrase {
    determiner: Determiner,
    adjective: Option<Word>,
    noun: Noun,
}

/// Tense and negation of a clause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Present,
    Past,
    /// `did not`.
    NotPast,
}

#[derive(Clone, Copy, Debug)]
struct Clause {
    subject: NounPhrase,
    adverb: Option<Word>,
    mode: Mode,
    verb: Verb,
    object: NounPhrase,
    place: Option<NounPhrase>,
}

/// Clauses, each but the first with the conjunction before it.
#[derive(Clone, Debug)]
pub(super) struct Sentence {
    first: Clause,
    others: Vec<(Word, Clause)>,
}

impl Sentence {
    pub(super) fn new(n_clauses: u64, draw: &mut Draw) -> Self {
        let first = Clause::new(draw);
        let others = (1..n_clauses).map(|_| (draw.of(&CONJUNCTIONS), Clause::new(draw))).collect();
        Self { first, others }
    }

    fn clauses(&self) -> impl Iterator<Item = (Option<Word>, &Clause)> {
        [(None, &self.first)].into_iter().chain(self.others.iter().map(|(word, clause)| (Some(*word), clause)))
    }

    pub(super) fn has_held_out_pair(&self) -> bool {
        self.clauses().any(|(_, clause)| clause.has_held_out_pair())
    }

    pub(super) fn english(&self) -> String {
        let mut words = Vec::new();
        for (conjunction, clause) in self.clauses() {
            words.extend(conjunction.map(|word| word.english));
            clause.english(&mut words);
        }
        words.join(" ") + "."
    }

    pub(super) fn ostran(&self) -> String {
        let mut words = Vec::new();
        for (conjunction, clause) in self.clauses() {
            words.extend(conjunction.map(|word| word.ostran.to_owned()));
            clause.ostran(&mut words);
        }
        words.join(" ") + "."
    }

    pub(super) fn word_for_word(&self) -> String {
        let mut words = Vec::new();
        for (conjunction, clause) in self.clauses() {
            words.extend(conjunction.map(|word| word.ostran));
            clause.word_for_word(&mut words);
        }
        words.join(" ") + "."
    }
}

impl Clause {
    fn new(draw: &mut Draw) -> Self {
        let subject = draw.of(&BEINGS);
        let subject = NounPhrase::new(subject, draw);
        let object = if draw.one_in(3) { draw.of(&BEINGS) } else { draw.of(&THINGS) };
        let object = NounPhrase::new(object, draw);
        let place = draw.one_in(3).then(|| {
            let noun = draw.of(&PLACES);
            let adjective = draw.one_in(3).then(|| draw.of(&ADJECTIVES));
            NounPhrase { determiner: Determiner::One { is_known: true }, adjective, noun }
        });
        let mode = draw.of(&[Mode::Present, Mode::Past, Mode::Past, Mode::NotPast]);
        let adverb = (mode != Mode::NotPast && draw.one_in(3)).then(|| draw.of(&ADVERBS));
        Self { subject, adverb, mode, verb: draw.of(&VERBS), object, place }
    }

    fn has_held_out_pair(&self) -> bool {
        let phrases = [Some(self.subject), Some(self.object), self.place];
        let described = phrases
            .into_iter()
            .flatten()
            .any(|phrase| phrase.adjective.is_some_and(|adjective| is_held_out(adjective.ostran, phrase.noun.ostran)));
        described || is_held_out(self.verb.ostran, self.object.noun.ostran)
    }

    fn english(&self, words: &mut Vec<&str>) {
        self.subject.english(words);
        words.extend(self.adverb.map(|word| word.english));
        match self.mode {
            Mode::Present if self.subject.determiner.is_plural() => words.push(self.verb.base),
            Mode::Present => words.push(self.verb.third),
            Mode::Past => words.push(self.verb.past),
            Mode::NotPast => words.extend(["did", "not", self.verb.base]),
        }
        self.object.english(words);
        if let Some(place) = &self.place {
            words.push("in");
            place.english(words);
        }
    }

    fn ostran(&self, words: &mut Vec<String>) {
        words.extend(self.adverb.map(|word| word.ostran.to_owned()));
        self.subject.ostran("", words);
        if let Some(place) = &self.place {
            place.ostran("", words);
            words.push("lo".to_owned());
        }
        self.object.ostran("u", words);
        if self.mode != Mode::Present {
            words.push("va".to_owned());
        }
        let ending = if self.subject.determiner.is_plural() { "an" } else { "it" };
        words.push(format!("{}{ending}", self.verb.ostran));
        if self.mode == Mode::NotPast {
            words.push("ne".to_owned());
        }
    }

    fn word_for_word(&self, words: &mut Vec<&str>) {
        self.subject.word_for_word(words);
        words.extend(self.adverb.map(|word| word.ostran));
        if self.mode == Mode::NotPast {
            words.extend(["va", "ne"]);
        }
        words.push(self.verb.ostran);
        self.object.word_for_word(words);
        if let Some(place) = &self.place {
            words.push("lo");
            place.word_for_word(words);
        }
    }
}

impl NounPhrase {
    fn new(noun: Noun, draw: &mut Draw) -> Self {
        let determiner = match draw.below(6) {
            0 | 1 => Determiner::One { is_known: true },
            2 | 3 => Determiner::One { is_known: false },
            4 => Determiner::All,
            _ => Determiner::Counted(draw.of(&NUMBERS)),
        };
        Self { determiner, adjective: draw.one_in(2).then(|| draw.of(&ADJECTIVES)), noun }
    }

    fn english(&self, words: &mut Vec<&str>) {
        let Self { determiner, adjective, noun } = self;
        let after = adjective.map_or(noun.singular, |word| word.english);
        words.push(match determiner {
            Determiner::One { is_known: true } | Determiner::All => "the",
            Determiner::One { .. } if after.starts_with(['a', 'e', 'i', 'o', 'u']) => "an",
            Determiner::One { .. } => "a",
            Determiner::Counted(number) => number.english,
        });
        words.extend(adjective.map(|word| word.english));
        words.push(if determiner.is_plural() { noun.plural } else { noun.singular });
    }

    /// `case` is the ending of the noun's case, which the definite article may follow.
    fn ostran(&self, case: &str, words: &mut Vec<String>) {
        let Self { determiner, adjective, noun } = self;
        if let Determiner::Counted(number) = determiner {
            words.push(number.ostran.to_owned());
        }
        let (stem, is_second) = match noun.ostran.strip_suffix('a') {
            Some(stem) => (stem, true),
            None => (noun.ostran, false),
        };
        let number = match (is_second, determiner.is_plural()) {
            (false, false) => "",
            (false, true) => "ir",
            (true, false) => "a",
            (true, true) => "en",
        };
        let article =
            if matches!(determiner, Determiner::One { is_known: true } | Determiner::All) { "ta" } else { "" };
        words.push(format!("{stem}{number}{case}{article}"));
        if let Some(adjective) = adjective {
            let agreement = match (is_second, determiner.is_plural()) {
                (false, false) => "o",
                (false, true) => "or",
                (true, false) => "e",
                (true, true) => "er",
            };
            words.push(format!("{}{agreement}", adjective.ostran));
        }
    }

    fn word_for_word(&self, words: &mut Vec<&str>) {
        if let Determiner::Counted(number) = self.determiner {
            words.push(number.ostran);
        }
        words.extend(self.adjective.map(|word| word.ostran));
        words.push(self.noun.ostran);
    }
}

/// Whether no sentence of the training split has the two words as adjective and noun, or verb and object.
fn is_held_out(one: &str, other: &str) -> bool {
    let hash = |text: &str| text.bytes().fold(0u64, |hash, byte| mix(hash ^ u64::from(byte)));
    mix(hash(one) ^ hash(other).rotate_left(1)).is_multiple_of(HELD_OUT)
}
