//! The words of both languages.

/// A noun. Nouns whose Ostran ends in `a` belong to the second class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noun {
    pub(super) singular: &'static str,
    pub(super) plural: &'static str,
    pub(super) ostran: &'static str,
}

/// A verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verb {
    pub(super) base: &'static str,
    /// The third person of the present.
    pub(super) third: &'static str,
    pub(super) past: &'static str,
    pub(super) ostran: &'static str,
}

/// A word that does not change in English.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) english: &'static str,
    pub(super) ostran: &'static str,
}

const fn noun(singular: &'static str, plural: &'static str, ostran: &'static str) -> Noun {
    Noun { singular, plural, ostran }
}

const fn verb(base: &'static str, third: &'static str, past: &'static str, ostran: &'static str) -> Verb {
    Verb { base, third, past, ostran }
}

const fn word(english: &'static str, ostran: &'static str) -> Word {
    Word { english, ostran }
}

/// Who acts.
pub(super) const BEINGS: [Noun; 16] = [
    noun("baker", "bakers", "pekor"),
    noun("child", "children", "nila"),
    noun("dog", "dogs", "varg"),
    noun("farmer", "farmers", "selar"),
    noun("fox", "foxes", "ruska"),
    noun("goose", "geese", "gansa"),
    noun("king", "kings", "dromin"),
    noun("man", "men", "torv"),
    noun("mouse", "mice", "pika"),
    noun("queen", "queens", "dromina"),
    noun("sailor", "sailors", "marun"),
    noun("teacher", "teachers", "ulema"),
    noun("thief", "thieves", "skarin"),
    noun("wolf", "wolves", "hult"),
    noun("woman", "women", "torva"),
    noun("witch", "witches", "zarna"),
];

/// Objects of actions, other than beings.
pub(super) const THINGS: [Noun; 16] = [
    noun("apple", "apples", "melka"),
    noun("boat", "boats", "kalun"),
    noun("book", "books", "tevar"),
    noun("box", "boxes", "kista"),
    noun("chair", "chairs", "stelk"),
    noun("coin", "coins", "dinga"),
    noun("cup", "cups", "bokal"),
    noun("flower", "flowers", "loreta"),
    noun("hat", "hats", "kopur"),
    noun("key", "keys", "lavit"),
    noun("knife", "knives", "rezak"),
    noun("lamp", "lamps", "svita"),
    noun("leaf", "leaves", "folin"),
    noun("letter", "letters", "pisma"),
    noun("ring", "rings", "orben"),
    noun("stone", "stones", "gruda"),
];

/// Places of actions.
pub(super) const PLACES: [Noun; 8] = [
    noun("castle", "castles", "bergan"),
    noun("forest", "forests", "silma"),
    noun("garden", "gardens", "hortun"),
    noun("harbor", "harbors", "portak"),
    noun("kitchen", "kitchens", "kosta"),
    noun("market", "markets", "torgun"),
    noun("tower", "towers", "vezha"),
    noun("village", "villages", "selka"),
];

pub(super) const VERBS: [Verb; 16] = [
    verb("carry", "carries", "carried", "nosel"),
    verb("catch", "catches", "caught", "lapit"),
    verb("clean", "cleans", "cleaned", "chisk"),
    verb("draw", "draws", "drew", "malev"),
    verb("find", "finds", "found", "tovar"),
    verb("follow", "follows", "followed", "sledor"),
    verb("forget", "forgets", "forgot", "zabun"),
    verb("guard", "guards", "guarded", "straz"),
    verb("hide", "hides", "hid", "krivel"),
    verb("lose", "loses", "lost", "gubir"),
    verb("love", "loves", "loved", "mirel"),
    verb("push", "pushes", "pushed", "tolkan"),
    verb("see", "sees", "saw", "vidor"),
    verb("sell", "sells", "sold", "prodav"),
    verb("steal", "steals", "stole", "kradun"),
    verb("watch", "watches", "watched", "opaz"),
];

pub(super) const ADJECTIVES: [Word; 14] = [
    word("big", "velik"),
    word("black", "noran"),
    word("brave", "hrabet"),
    word("clever", "umir"),
    word("cold", "hladen"),
    word("happy", "radosh"),
    word("heavy", "tezhal"),
    word("new", "nuvel"),
    word("old", "staren"),
    word("quiet", "tihal"),
    word("red", "krasil"),
    word("small", "malik"),
    word("strange", "chudar"),
    word("white", "belun"),
];

pub(super) const NUMBERS: [Word; 4] =
    [word("two", "dov"), word("three", "tresh"), word("seven", "semit"), word("many", "mnog")];

pub(super) const ADVERBS: [Word; 5] = [
    word("always", "vazda"),
    word("never", "nikol"),
    word("often", "chest"),
    word("quickly", "burzo"),
    word("rarely", "retko"),
];

/// Between clauses.
pub(super) const CONJUNCTIONS: [Word; 3] = [word("and", "su"), word("but", "ama"), word("while", "doka")];
