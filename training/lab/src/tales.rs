//! Tales: short English stories made for this project, and conversations about them.
//!
//! A grammar of phrasings and words (`grammar`, written in `plots/` and `words/`) makes millions of different stories.
//! Tale `index` of a seed is a pure function of both. Each text has exactly one derivation, which tests check, so its
//! probability is known, and with it the loss that a perfect model would have: the floor.
//!
//! - `syntax`: how a grammar is written; `walk`: how it makes a tale, one choice after the other
//! - `draw`: choices at random; `derivation`: the tale that choices lead to; `read`, for tests: choices found from a text
//! - `tale`: a tale with its messages, its information and the expected properties of an answer
//! - [`judge`]: scores a model's texts

mod derivation;
mod draw;
mod grammar;
pub mod judge;
#[cfg(test)]
mod read;
mod syntax;
mod tale;
#[cfg(test)]
mod tests;
mod walk;

use anyhow::{Context, Result};
use clap::ValueEnum;

use self::{
    derivation::tell,
    draw::Draw,
    grammar::{Grammar, Symbol},
};
pub use self::{
    grammar::Speaker,
    tale::{Expected, Message, Tale, Task},
};

/// The files of the grammar.
const SOURCES: [(&str, &str); 23] = [
    ("words/characters.txt", include_str!("tales/words/characters.txt")),
    ("words/things.txt", include_str!("tales/words/things.txt")),
    ("words/places.txt", include_str!("tales/words/places.txt")),
    ("words/events.txt", include_str!("tales/words/events.txt")),
    ("words/talk.txt", include_str!("tales/words/talk.txt")),
    ("plots/common.txt", include_str!("tales/plots/common.txt")),
    ("plots/lost.txt", include_str!("tales/plots/lost.txt")),
    ("plots/share.txt", include_str!("tales/plots/share.txt")),
    ("plots/fear.txt", include_str!("tales/plots/fear.txt")),
    ("plots/quarrel.txt", include_str!("tales/plots/quarrel.txt")),
    ("plots/promise.txt", include_str!("tales/plots/promise.txt")),
    ("plots/build.txt", include_str!("tales/plots/build.txt")),
    ("plots/storm.txt", include_str!("tales/plots/storm.txt")),
    ("plots/rescue.txt", include_str!("tales/plots/rescue.txt")),
    ("plots/gift.txt", include_str!("tales/plots/gift.txt")),
    ("plots/learn.txt", include_str!("tales/plots/learn.txt")),
    ("plots/mystery.txt", include_str!("tales/plots/mystery.txt")),
    ("plots/garden.txt", include_str!("tales/plots/garden.txt")),
    ("plots/race.txt", include_str!("tales/plots/race.txt")),
    ("plots/truth.txt", include_str!("tales/plots/truth.txt")),
    ("plots/conversation.txt", include_str!("tales/plots/conversation.txt")),
    ("plots/talk.txt", include_str!("tales/plots/talk.txt")),
    ("plots/drill.txt", include_str!("tales/plots/drill.txt")),
];

/// The kind of a tale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Stories.
    Stories,
    /// Requests, questions about stories, and a little talk.
    Conversations,
    /// Two stories to three conversations.
    Mixed,
    /// Requests, each answered with a story.
    Requests,
    /// Questions about a story, each with its answer.
    Questions,
    /// Short texts with repeated words, from which a model first learns to copy.
    Drills,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] =
        [Kind::Stories, Kind::Conversations, Kind::Mixed, Kind::Requests, Kind::Questions, Kind::Drills];

    fn rule(self) -> &'static str {
        match self {
            Kind::Stories => "story",
            Kind::Conversations => "conversation",
            Kind::Mixed => "mixed",
            Kind::Requests => "request",
            Kind::Questions => "question",
            Kind::Drills => "drill",
        }
    }
}

/// Makes tales.
#[derive(Clone, Debug)]
pub struct Tales {
    grammar: Grammar,
    /// Start symbols of the kinds of tales, in the order of [`Kind::ALL`].
    starts: Vec<Symbol>,
}

impl Tales {
    /// Reads the grammar.
    ///
    /// # Errors
    /// The grammar is wrong, which tests rule out.
    pub fn new() -> Result<Tales> {
        let grammar = Grammar::parse(&SOURCES)?;
        let start = |kind: Kind| {
            let rule = grammar.rule(kind.rule()).with_context(|| format!("there is no rule `{}`", kind.rule()))?;
            Ok(Symbol::Rule(rule))
        };
        let starts = Kind::ALL.into_iter().map(start).collect::<Result<_>>()?;
        Ok(Tales { grammar, starts })
    }

    /// Tale `index` of `seed`; different for each kind.
    ///
    /// # Errors
    /// The grammar has a dead end, which tests rule out.
    pub fn tale(&self, kind: Kind, seed: u64, index: u64) -> Result<Tale> {
        let told = tell(&self.grammar, self.start(kind), &mut Draw::new(seed, kind as u64, index))?;
        Ok(Tale::new(&self.grammar, told))
    }

    fn start(&self, kind: Kind) -> &Symbol {
        &self.starts[kind as usize]
    }
}
